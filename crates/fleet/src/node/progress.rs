//! How far a node is with what it must hold: how many objects that are, how many differ, and since
//! when it lags behind.

use std::time::Duration;

use edgesync_protocol::timing::Now;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Objects that the node must hold.
    desired: u64,
    /// Differences of its ledger, as they are in the fleet's sum.
    different: usize,
    /// Since when it is connected and not in sync.
    lags_since: Option<Now>,
}

impl Progress {
    pub(crate) fn desired(&self) -> u64 {
        self.desired
    }

    pub(crate) fn set_desired(&mut self, desired: u64) {
        self.desired = desired;
    }

    /// The node must hold one more object.
    pub(crate) fn gain(&mut self) {
        self.desired += 1;
    }

    /// The node must hold one object less.
    pub(crate) fn lose(&mut self) {
        self.desired = self.desired.saturating_sub(1);
    }

    pub(crate) fn different(&self) -> usize {
        self.different
    }

    /// Replaces the number of differences, and returns the one before.
    pub(crate) fn set_different(&mut self, different: usize) -> usize {
        std::mem::replace(&mut self.different, different)
    }

    /// Notes whether the node lags behind now.
    pub(crate) fn set_lags(&mut self, lags: bool, now: Now) {
        self.lags_since = if lags { self.lags_since.or(Some(now)) } else { None };
    }

    /// Returns for how long it has lagged behind; zero if it does not.
    pub(super) fn lag(&self, now: Now) -> Duration {
        self.lags_since.map(|since| now.saturating_sub(since)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_is_counted_from_its_beginning() {
        let at = Now::from_secs;
        let mut progress = Progress::default();
        progress.set_lags(true, at(1));
        progress.set_lags(true, at(3));
        assert_eq!(progress.lag(at(5)), at(4));
        progress.set_lags(false, at(6));
        assert_eq!(progress.lag(at(7)), Duration::ZERO);
        progress.set_lags(true, at(8));
        assert_eq!(progress.lag(at(9)), at(1));
    }
}
