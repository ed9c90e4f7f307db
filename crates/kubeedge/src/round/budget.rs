//! The query budget of a routine round: a token bucket.

use std::time::Duration;

use super::BURST;
use edgesync_protocol::timing::Now;

/// The longest interval between two queries.
const SLOWEST: Duration = Duration::from_secs(60);
/// The shortest interval between two queries.
const FASTEST: Duration = Duration::from_millis(1);

/// A token bucket that outlives connections, so that a flapping connection does not refill it.
#[derive(Debug)]
pub(super) struct Budget {
    tokens: u32,
    /// The time up to which tokens were granted.
    given: Now,
    interval: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self { tokens: BURST, given: Now::ZERO, interval: SLOWEST }
    }
}

impl Budget {
    /// Sets the rate to the number of rows within `time`, and a quarter more, so that a walk
    /// completes before the next one is due.
    pub(super) fn pace(&mut self, now: Now, rows: u64, time: Duration) {
        self.refill(now);
        let rows = u32::try_from(rows).unwrap_or(u32::MAX).max(1);
        self.interval = (time / 5 * 4 / rows).clamp(FASTEST, SLOWEST);
    }

    fn refill(&mut self, now: Now) {
        let passed = now.saturating_sub(self.given).as_nanos() / self.interval.as_nanos().max(1);
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        if passed >= BURST.saturating_sub(self.tokens) {
            (self.tokens, self.given) = (BURST, now);
        } else {
            self.tokens += passed;
            self.given += self.interval * passed;
        }
    }

    /// Returns the tokens available now.
    pub(super) fn left(&mut self, now: Now) -> u32 {
        self.refill(now);
        self.tokens
    }

    /// Takes up to `count` tokens.
    pub(super) fn take(&mut self, count: u32) {
        self.tokens = self.tokens.saturating_sub(count);
    }

    /// Returns the time of the next token.
    pub(super) fn next_at(&self) -> Now {
        self.given + self.interval
    }
}
