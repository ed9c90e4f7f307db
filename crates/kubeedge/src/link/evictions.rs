//! Finds out that another client uses our node's name when CloudCore does not say so. Pure.
//!
//! CloudCore closes the older session of a node without a word when a new one comes, which looks like any lost
//! connection; two agents with one name would throw each other out for ever. But a server that has gone is not there
//! at the next attempt: one that closes connections in quick succession and lets us in at once each time is there,
//! and prefers somebody else.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So many connections in a row.
const IN_A_ROW: usize = 3;
/// Within so long.
const WINDOW: Duration = Duration::from_secs(40);

/// The connections in a row that the peer closed.
#[derive(Default)]
pub(super) struct Evictions {
    at: VecDeque<Instant>,
}

impl Evictions {
    /// The peer closed a connection without a word; returns whether somebody else has the session.
    pub(super) fn closed(&mut self, now: Instant) -> bool {
        self.at.retain(|at| now.saturating_duration_since(*at) <= WINDOW);
        self.at.push_back(now);
        let evicted = self.at.len() >= IN_A_ROW;
        if evicted {
            self.at.clear();
        }
        evicted
    }

    /// An attempt failed, or a connection ended in another way.
    pub(super) fn otherwise(&mut self) {
        self.at.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the connections that end at these seconds count as evictions; a negative one is a failed attempt.
    fn evicted(seconds: &[i64]) -> Vec<bool> {
        let (start, mut evictions) = (Instant::now(), Evictions::default());
        let mut one = |second: &i64| match u64::try_from(*second) {
            Ok(second) => evictions.closed(start + Duration::from_secs(second)),
            Err(_) => {
                evictions.otherwise();
                false
            }
        };
        seconds.iter().map(&mut one).collect()
    }

    #[test]
    fn the_third_close_in_a_row_is_somebody_else() {
        assert_eq!(evicted(&[0, 20, 40]), [false, false, true]);
    }

    #[test]
    fn after_the_pause_it_is_counted_anew() {
        assert_eq!(evicted(&[0, 1, 2, 3, 4, 5]), [false, false, true, false, false, true]);
    }

    #[test]
    fn closes_far_apart_are_the_network() {
        assert_eq!(evicted(&[0, 21, 42, 63, 84]), [false; 5]);
    }

    #[test]
    fn a_restart_with_a_failed_attempt_between_does_not_count() {
        assert_eq!(evicted(&[0, -1, 5, 6, -1, 7, 8]), [false; 7]);
    }
}
