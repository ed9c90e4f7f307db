//! Fence of the writes for a node: the replica that its Lease names.

#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};

/// Returns whether a replica may write for a node whose Lease names `server`, which is empty if it
/// names none.
#[must_use]
pub fn serves(server: &str, replica: &str) -> bool {
    #[cfg(any(test, feature = "simulation"))]
    if planted(Fault::FenceIgnored) {
        return true;
    }
    server.is_empty() || server == replica
}

/// The number of different renewals that a replica drops after another one has taken the Lease. The
/// caller writes the newest one at a time, so the second may have waited while the first was
/// dropped, but the third has arrived later.
const DROPPED: u8 = 2;

/// A replica's knowledge of the Lease of a node: the Lease that it has written last, of type `L`,
/// and the last renewal of type `R` that it has dropped.
///
/// No clock is compared. A replica that finds another one in the Lease drops the renewals that may
/// have arrived before the node left. A node renews over its newest connection only: with a later
/// renewal it is back, and the replica takes over.
#[derive(Debug)]
pub struct LeaseFence<L, R> {
    written: Option<L>,
    dropped: Option<R>,
    /// The number of different renewals dropped in a row.
    count: u8,
}

impl<L, R> Default for LeaseFence<L, R> {
    fn default() -> Self {
        Self { written: None, dropped: None, count: 0 }
    }
}

impl<L, R: Clone + PartialEq> LeaseFence<L, R> {
    /// Returns the Lease that this replica has written last: the base of its next compare-and-swap.
    #[must_use]
    pub fn written(&self) -> Option<&L> {
        self.written.as_ref()
    }

    /// Records a write of this replica.
    pub fn record_write(&mut self, lease: L) {
        *self = Self { written: Some(lease), ..Self::default() };
    }

    /// Records that a compare-and-swap has failed: the Lease has changed.
    pub fn record_conflict(&mut self) {
        self.written = None;
    }

    /// Returns whether a renewal is dropped, given the replica that the Lease names. After a
    /// failure the caller repeats renewals, so the same one is dropped again.
    pub fn drops(&mut self, server: &str, replica: &str, renewal: &R) -> bool {
        if server.is_empty() || server == replica {
            return false;
        }
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::LateRenewalCounts) {
            return false;
        }
        if self.dropped.as_ref() != Some(renewal) {
            self.dropped = Some(renewal.clone());
            self.count = self.count.saturating_add(1);
        }
        let most = DROPPED;
        #[cfg(any(test, feature = "simulation"))]
        let most = if planted(Fault::WaitingRenewalCounts) { 1 } else { most };
        self.count <= most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_replica_serves_a_node() {
        assert!(serves("a", "a") && serves("", "a"));
        assert!(!serves("b", "a"));
    }

    #[test]
    fn only_a_third_renewal_at_a_fenced_replica_counts() {
        let mut fence = LeaseFence::<u64, u64>::default();
        assert!(!fence.drops("", "a", &1) && !fence.drops("a", "a", &1));
        assert!(fence.drops("b", "a", &1) && fence.drops("b", "a", &1), "the same one again");
        assert!(fence.drops("b", "a", &2), "it may have waited for the first one");
        assert!(!fence.drops("b", "a", &3), "the node is back");
        fence.record_write(7);
        assert_eq!(fence.written(), Some(&7));
        assert!(fence.drops("b", "a", &4), "a write begins another time of service");
        fence.record_conflict();
        assert_eq!(fence.written(), None);
        assert!(fence.drops("b", "a", &5) && !fence.drops("b", "a", &6));
    }
}
