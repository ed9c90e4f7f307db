//! Lines of the log that others cause: some in a while, and the number of those that were left out.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How often lines are written.
const EVERY: Duration = Duration::from_secs(10);

/// Lets some lines of many through. One for each thing that is told.
#[derive(Debug)]
pub struct Seldom {
    most: u32,
    state: Mutex<Option<State>>,
}

#[derive(Debug)]
struct State {
    since: Instant,
    written: u32,
    left_out: u64,
}

impl Default for Seldom {
    fn default() -> Self {
        Self::new()
    }
}

impl Seldom {
    /// One line in ten seconds.
    #[must_use]
    pub const fn new() -> Self {
        Self::of(1)
    }

    /// So many.
    #[must_use]
    pub const fn of(most: u32) -> Self {
        Self { most, state: Mutex::new(None) }
    }

    /// Whether the line is to be written: how many before it were not.
    pub fn line(&self) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match &mut *state {
            Some(state) if now.duration_since(state.since) < EVERY => {
                let is_written = state.written < self.most;
                state.written += u32::from(is_written);
                state.left_out += u64::from(!is_written);
                is_written.then_some(0)
            }
            state => {
                let before = state.replace(State { since: now, written: 1, left_out: 0 });
                Some(before.map_or(0, |before| before.left_out))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn some_lines_in_a_while_tell_of_all() {
        for most in [1, 20] {
            let seldom = Seldom::of(most);
            let written = (0..1000).filter(|_| seldom.line().is_some()).count();
            assert_eq!(written, most as usize);
            tokio::time::advance(EVERY).await;
            assert_eq!(seldom.line(), Some(1000 - u64::from(most)));
        }
    }
}
