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

    /// Returns whether a line may be written: `None` if it is over the limit, else the number of
    /// lines suppressed before it, if there are any, for the field `suppressed` of the line.
    pub fn line(&self) -> Option<Option<u64>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match &mut *state {
            Some(state) if now.duration_since(state.since) < EVERY => {
                let is_written = state.written < self.most;
                state.written += u32::from(is_written);
                state.suppressed += u64::from(!is_written);
                is_written.then_some(None)
            }
            state => {
                let before = state.replace(State { since: now, written: 1, suppressed: 0 });
                Some(before.map(|before| before.suppressed).filter(|suppressed| *suppressed > 0))
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
            let seldom = LogThrottle::of(most);
            let written = (0..1000).filter(|_| seldom.line().is_some()).count();
            assert_eq!(written, most as usize);
            tokio::time::advance(EVERY).await;
            assert_eq!(seldom.line(), Some(Some(1000 - u64::from(most))));
            tokio::time::advance(EVERY).await;
            assert_eq!(seldom.line(), Some(None), "none was suppressed");
        }
    }
}
