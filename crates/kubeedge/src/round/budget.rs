//! How many questions a round that is not urgent may put.

use std::time::Duration;

use super::BURST;
use edgesync_protocol::timing::Now;

/// The longest time between two questions.
const SLOWEST: Duration = Duration::from_secs(60);
/// The shortest time between two questions.
const FASTEST: Duration = Duration::from_millis(1);

/// A token bucket. It is of the process, not of a connection: one that flaps does not fill it.
#[derive(Debug)]
pub(super) struct Budget {
    tokens: u32,
    /// Up to when tokens were given.
    given: Now,
    interval: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self { tokens: BURST, given: Now::ZERO, interval: SLOWEST }
    }
}

impl Budget {
    /// As many questions as there are rows in this time, and a quarter more: a walk is over before the next one is due.
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

    /// What may be asked at once.
    pub(super) fn left(&mut self, now: Now) -> u32 {
        self.refill(now);
        self.tokens
    }

    /// Takes up to `count` tokens.
    pub(super) fn take(&mut self, count: u32) {
        self.tokens = self.tokens.saturating_sub(count);
    }

    /// When the next token comes.
    pub(super) fn next_at(&self) -> Now {
        self.given + self.interval
    }
}
