//! Time as the machines see it, and backoff delays.

use std::time::Duration;

/// A point in time: the duration since an arbitrary origin, never decreasing.
pub type Now = Duration;

/// The largest forward step of the wall clock against the monotonic clock that counts as drift.
const JUMP: Duration = Duration::from_secs(2);

/// Detects a jump of the wall clock against the monotonic clock.
///
/// A machine restored from a snapshot resumes at the monotonic time of the snapshot. Once its wall
/// clock is corrected, the wall clock is further ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockJumpDetector(Option<u64>);

impl ClockJumpDetector {
    /// Samples both clocks, the wall clock in microseconds since 1970, and returns whether the wall
    /// clock has jumped ahead.
    pub fn has_jumped(&mut self, wall: u64, running: Duration) -> bool {
        let ahead = wall.saturating_sub(u64::try_from(running.as_micros()).unwrap_or(u64::MAX));
        let before = self.0.replace(ahead);
        #[cfg(any(test, feature = "simulation"))]
        if super::fault::planted(super::fault::Fault::PauseUnnoticed) {
            return false;
        }
        before.is_some_and(|before| u128::from(ahead.saturating_sub(before)) > JUMP.as_micros())
    }
}

/// Returns an exponential backoff delay: doubles with each attempt from `min` up to `max`, less
/// jitter.
///
/// `random` is a fresh random number. Half of the delay is fixed and half is drawn, so that nodes
/// that failed together do not retry together, and none retries at once.
#[must_use]
pub fn backoff(min: Duration, max: Duration, attempt: u32, random: u64) -> Duration {
    let factor = 1u32.checked_shl(attempt.min(20)).unwrap_or(u32::MAX);
    let full = min.saturating_mul(factor).min(max);
    let half = full / 2;
    let spread = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).max(1);
    half + Duration::from_micros(random % spread)
}

/// Returns the earlier of two optional points in time.
#[must_use]
pub fn earlier(a: Option<Now>, b: Option<Now>) -> Option<Now> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_wall_clock_that_jumps_ahead_is_noticed_once() {
        let mut lead = ClockJumpDetector::default();
        let mut look = |wall: u64, running| lead.has_jumped(wall * 1_000_000, Duration::from_secs(running));
        assert!(!look(1_000_000, 50), "there is nothing to compare with");
        assert!(!look(1_000_060, 110) && !look(1_000_063, 111), "it is set by two seconds at most");
        assert!(look(1_000_163, 112) && !look(1_000_164, 113));
        assert!(!look(5, 114) && look(1_000_165, 115), "once it was far behind");
    }

    proptest! {
        #[test]
        fn a_delay_stays_between_half_and_whole(attempt: u32, random: u64) {
            let (min, max) = (Duration::from_secs(1), Duration::from_secs(60));
            let delay = backoff(min, max, attempt, random);
            prop_assert!(delay >= min / 2 && delay <= max);
            if attempt >= 6 {
                prop_assert!(delay >= max / 2);
            }
        }
    }
}
