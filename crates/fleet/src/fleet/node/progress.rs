//! Progress of a node towards its desired objects: their number, the number of differences, and the
//! start of its lag.

use std::time::Duration;

use edgesync_protocol::timing::Now;

/// Counters and lag of a node; see the module.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Number of desired objects.
    desired: u64,
    /// Number of differences in its ledger, as counted in the fleet's sum.
    different: usize,
    /// Time since which it is connected and not in sync.
    lags_since: Option<Now>,
}

impl Progress {
    pub(crate) fn desired(&self) -> u64 {
        self.desired
    }

    pub(crate) fn set_desired(&mut self, desired: u64) {
        self.desired = desired;
    }

    /// Counts one more desired object.
    pub(crate) fn gain(&mut self) {
        self.desired += 1;
    }

    /// Counts one desired object less.
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

    /// Starts or ends the lag.
    pub(crate) fn set_lags(&mut self, lags: bool, now: Now) {
        self.lags_since = if lags { self.lags_since.or(Some(now)) } else { None };
    }

    /// Returns the duration of the lag; zero without one.
    pub(crate) fn lag(&self, now: Now) -> Duration {
        self.lags_since.map(|since| now.saturating_sub(since)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_measured_from_its_start() {
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
