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
    /// Whether the round waits for a token.
    is_waiting: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Self { tokens: BURST, given: Now::ZERO, interval: SLOWEST, is_waiting: false }
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

    /// Returns whether `count` tokens are available. If not, the round waits for the next one.
    pub(super) fn has(&mut self, count: u32, now: Now) -> bool {
        self.refill(now);
        self.is_waiting |= self.tokens < count;
        self.tokens >= count
    }

    /// Ends the wait for a token.
    pub(super) fn stop_waiting(&mut self) {
        self.is_waiting = false;
    }

    /// Takes up to `count` tokens.
    pub(super) fn take(&mut self, count: u32) {
        self.tokens = self.tokens.saturating_sub(count);
    }

    /// Returns the time of the next token while the round waits for it.
    pub(super) fn deadline(&self) -> Option<Now> {
        self.is_waiting.then(|| self.given + self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_has_a_deadline_only_while_a_token_is_missing() {
        let start = Now::ZERO + Duration::from_secs(1000);
        let mut budget = Budget::default();
        budget.pace(start, 80, Duration::from_secs(100));
        assert!(budget.has(BURST, start));
        assert_eq!(budget.deadline(), None);
        budget.take(1);
        assert!(budget.has(1, start) && !budget.has(BURST, start));
        let next = start + Duration::from_secs(1);
        assert_eq!(budget.deadline(), Some(next));
        budget.stop_waiting();
        assert!(budget.has(BURST, next));
        assert_eq!(budget.deadline(), None);
    }
}
