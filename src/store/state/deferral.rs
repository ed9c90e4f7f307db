//! Writes without a caller that waits for them: confirmations, and metadata that may be lost. They
//! join the next transaction, or get one of their own after a while.

use std::time::{Duration, Instant};

/// Time after a failed transaction for which transactions include only their jobs: confirmations
/// and metadata that may be lost must not be why an object does not fit.
const BACKOFF: Duration = Duration::from_secs(30);

/// Time until confirmations are written without another transaction.
#[derive(Debug)]
pub(super) struct FlushTimer {
    after: Duration,
    /// When the oldest unwritten confirmation was first seen.
    since: Option<Instant>,
}

impl FlushTimer {
    pub(super) fn new(after: Duration) -> Self {
        Self { after, since: None }
    }

    /// Returns the time until the flush is due; zero if it is. `has_unwritten`: whether there is
    /// anything to write.
    pub(super) fn remaining(&mut self, has_unwritten: bool) -> Duration {
        if !has_unwritten {
            self.restart();
            return self.after;
        }
        self.after.saturating_sub(self.since.get_or_insert_with(Instant::now).elapsed())
    }

    /// Starts the next period, after a flush. Returns its length.
    pub(super) fn restart(&mut self) -> Duration {
        self.since = None;
        self.after
    }
}

/// Deferred writes in the running transaction.
#[derive(Debug, Default)]
pub(super) struct Additions {
    /// Whether the transaction includes more than its jobs.
    included: bool,
    /// When such a transaction last failed.
    failed_at: Option<Instant>,
}

impl Additions {
    /// Returns whether a transaction may include deferred writes: none failed lately.
    pub(super) fn are_allowed(&self) -> bool {
        self.failed_at.is_none_or(|since| since.elapsed() >= BACKOFF)
    }

    /// Records whether the running transaction includes deferred writes.
    pub(super) fn set_included(&mut self, included: bool) {
        self.included = included;
    }

    /// Records that the transaction was rolled back: if it included deferred writes, the next ones
    /// include none for a while.
    pub(super) fn rolled_back(&mut self) {
        if std::mem::take(&mut self.included) {
            self.failed_at = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_due_after_its_period_with_unwritten_confirmations() {
        let hour = Duration::from_secs(3600);
        let mut timer = FlushTimer::new(hour);
        assert_eq!(timer.remaining(false), hour);
        let first = timer.remaining(true);
        assert!(first <= hour && timer.remaining(true) <= first, "counts down");
        assert_eq!(timer.restart(), hour);
        assert_eq!(FlushTimer::new(Duration::ZERO).remaining(true), Duration::ZERO);
    }

    #[test]
    fn additions_pause_only_after_a_failure_that_included_some() {
        let mut additions = Additions::default();
        additions.rolled_back();
        assert!(additions.are_allowed(), "the job alone failed");
        additions.set_included(true);
        additions.rolled_back();
        assert!(!additions.are_allowed());
        additions.rolled_back();
        assert!(!additions.are_allowed());
    }
}
