//! Detects that another client uses this node's name, although CloudCore does not report it.
//!
//! CloudCore silently closes the older session of a node when a new one arrives, which looks like
//! any lost connection; two agents with one name would evict each other forever. An unreachable
//! server refuses the next attempt. A server that closes connections in quick succession and
//! accepts each reconnect at once is reachable and prefers another client.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The number of consecutive closes that prove an eviction.
const MIN_CLOSES: usize = 3;
/// The time within which they must occur.
const WINDOW: Duration = Duration::from_secs(40);

/// The consecutive connections that the peer closed.
#[derive(Default)]
pub(super) struct Evictions {
    at: VecDeque<Instant>,
}

impl Evictions {
    /// Records a silent close by the peer; returns whether another client has the session.
    pub(super) fn closed(&mut self, now: Instant) -> bool {
        self.at.retain(|at| now.saturating_duration_since(*at) <= WINDOW);
        self.at.push_back(now);
        let is_evicted = self.at.len() >= MIN_CLOSES;
        if is_evicted {
            self.at.clear();
        }
        is_evicted
    }

    /// Records a failed attempt, or another end of a connection.
    pub(super) fn reset(&mut self) {
        self.at.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns which of the connections that end at these seconds count as evictions; a negative
    /// one is a failed attempt.
    fn is_evicted(seconds: &[i64]) -> Vec<bool> {
        let (start, mut evictions) = (Instant::now(), Evictions::default());
        let mut one = |second: &i64| match u64::try_from(*second) {
            Ok(second) => evictions.closed(start + Duration::from_secs(second)),
            Err(_) => {
                evictions.reset();
                false
            }
        };
        seconds.iter().map(&mut one).collect()
    }

    #[test]
    fn the_third_consecutive_close_is_an_eviction() {
        assert_eq!(is_evicted(&[0, 20, 40]), [false, false, true]);
    }

    #[test]
    fn the_count_restarts_after_the_pause() {
        assert_eq!(is_evicted(&[0, 1, 2, 3, 4, 5]), [false, false, true, false, false, true]);
    }

    #[test]
    fn closes_far_apart_are_the_network() {
        assert_eq!(is_evicted(&[0, 21, 42, 63, 84]), [false; 5]);
    }

    #[test]
    fn a_restart_with_a_failed_attempt_between_does_not_count() {
        assert_eq!(is_evicted(&[0, -1, 5, 6, -1, 7, 8]), [false; 7]);
    }
}
