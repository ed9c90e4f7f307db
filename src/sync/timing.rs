//! Time as the machines see it, and the delays they compute from it.

use std::time::Duration;

/// A point in time: the duration since an arbitrary origin that never goes backwards.
pub type Now = Duration;

/// A delay that doubles with each attempt, from `min` up to `max`, less a random part.
///
/// `random` is a fresh random number; half of the delay is fixed and half is drawn, so that nodes
/// that failed together do not come back together, and none comes back at once.
#[must_use]
pub fn backoff(min: Duration, max: Duration, attempt: u32, random: u64) -> Duration {
    let factor = 1u32.checked_shl(attempt.min(20)).unwrap_or(u32::MAX);
    let full = min.saturating_mul(factor).min(max);
    let half = full / 2;
    let spread = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).max(1);
    half + Duration::from_micros(random % spread)
}

/// The earlier of two optional points in time.
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
