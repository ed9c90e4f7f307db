//! Lines of the log that strangers cause: one in a while, with the number of those that were left out.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How often a line is written.
const EVERY: Duration = Duration::from_secs(10);

/// Lets one line of many through. One for each thing that is told.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Option<(Instant, u64)>>);

impl Seldom {
    /// One that has let nothing through.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Whether the line is to be written: how many before it were not.
    pub fn line(&self) -> Option<u64> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match &mut *last {
            Some((at, left_out)) if now.duration_since(*at) < EVERY => {
                *left_out += 1;
                None
            }
            last => Some(last.replace((now, 0)).map_or(0, |(_, left_out)| left_out)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_in_a_while_tells_of_all() {
        let seldom = Seldom::new();
        assert_eq!(seldom.line(), Some(0));
        assert!((0..1000).all(|_| seldom.line().is_none()));
        tokio::time::advance(EVERY).await;
        assert_eq!(seldom.line(), Some(1000));
        assert_eq!(seldom.line(), None);
    }
}
