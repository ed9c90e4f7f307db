//! Limits log lines that peers can cause, and counts those suppressed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Period to which the limit applies.
const EVERY: Duration = Duration::from_secs(10);

/// Limits the number of log lines of one kind.
#[derive(Debug)]
pub struct LogThrottle {
    most: u32,
    state: Mutex<Option<State>>,
}

/// A line that may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct LinePermit {
    /// Number of lines suppressed before it, for its field `suppressed`; `None` if there are none.
    pub suppressed: Option<u64>,
}

#[derive(Debug)]
struct State {
    since: Instant,
    written: u32,
    suppressed: u64,
}

impl Default for LogThrottle {
    fn default() -> Self {
        Self::new()
    }
}

impl LogThrottle {
    /// Returns a throttle of one line in ten seconds.
    #[must_use]
    pub const fn new() -> Self {
        Self::of(1)
    }

    /// Returns a throttle of `most` lines in ten seconds.
    #[must_use]
    pub const fn of(most: u32) -> Self {
        Self { most, state: Mutex::new(None) }
    }

    /// Counts a line, and permits it unless it is over the limit.
    pub fn permit_line(&self) -> Option<LinePermit> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match &mut *state {
            Some(state) if now.duration_since(state.since) < EVERY => {
                let is_written = state.written < self.most;
                state.written += u32::from(is_written);
                state.suppressed += u64::from(!is_written);
                is_written.then_some(LinePermit { suppressed: None })
            }
            state => {
                let before = state.replace(State { since: now, written: 1, suppressed: 0 });
                let suppressed = before.map(|before| before.suppressed).filter(|count| *count > 0);
                Some(LinePermit { suppressed })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn throttle_counts_the_lines_left_out() {
        for most in [1, 20] {
            let throttle = LogThrottle::of(most);
            let written = (0..1000).filter(|_| throttle.permit_line().is_some()).count();
            assert_eq!(written, most as usize);
            tokio::time::advance(EVERY).await;
            let suppressed = Some(1000 - u64::from(most));
            assert_eq!(throttle.permit_line(), Some(LinePermit { suppressed }));
            tokio::time::advance(EVERY).await;
            assert_eq!(throttle.permit_line(), Some(LinePermit { suppressed: None }));
        }
    }
}
