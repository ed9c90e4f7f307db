//! Token bucket of a node's Events. It outlives connections: a node that reconnects gains nothing.

use std::time::Duration;

use edgesync_protocol::timing::Now;

/// Rate of Events: `burst` tokens at once, then one per `refill`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventRate {
    pub(crate) burst: u32,
    pub(crate) refill: Duration,
}

/// The bucket, stored as the time at which it is full again.
#[derive(Debug, Default)]
pub(crate) struct EventBucket {
    full: Now,
}

impl EventBucket {
    /// Returns whether the bucket has a token.
    pub(crate) fn has_token(&self, now: Now, rate: EventRate) -> bool {
        self.full.saturating_sub(now) < rate.refill.saturating_mul(rate.burst)
    }

    /// Takes tokens. A frame may take more than there are; the next one then waits for them, too.
    pub(crate) fn take(&mut self, now: Now, tokens: u32, rate: EventRate) {
        self.full = self.full.max(now).saturating_add(rate.refill.saturating_mul(tokens));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const RATE: EventRate = EventRate { burst: 10, refill: SECOND };

    #[test]
    fn a_burst_is_free_and_further_tokens_follow_the_rate() {
        let (mut bucket, hour) = (EventBucket::default(), SECOND * 3600);
        for _ in 0..10 {
            assert!(bucket.has_token(hour, RATE));
            bucket.take(hour, 1, RATE);
        }
        assert!(!bucket.has_token(hour, RATE) && bucket.has_token(hour + SECOND * 2, RATE));
        // A frame of 35 tokens is admitted once, and paid for later.
        let later = hour + SECOND * 2;
        bucket.take(later, 35, RATE);
        assert!(!bucket.has_token(later + SECOND * 30, RATE) && bucket.has_token(later + SECOND * 36, RATE));
    }

    #[test]
    fn a_pause_saves_no_more_than_the_burst() {
        let mut bucket = EventBucket::default();
        bucket.take(Now::ZERO, 10, RATE);
        let late = SECOND * 3600;
        let mut taken = 0;
        while taken < 100 && bucket.has_token(late, RATE) {
            bucket.take(late, 1, RATE);
            taken += 1;
        }
        assert_eq!(taken, 10);
    }

    #[test]
    fn no_number_of_tokens_overflows() {
        let (mut bucket, rate) =
            (EventBucket::default(), EventRate { burst: u32::MAX, refill: Duration::MAX });
        bucket.take(Now::MAX, u32::MAX, rate);
        assert!(!EventBucket { full: Now::MAX }.has_token(Now::ZERO, RATE));
    }
}
