//! Which nodes live: their Leases, and the conditions of their Nodes that follow from them. Pure: the time comes in,
//! changes of Leases and Nodes come out in batches.
//!
//! What counts is when a renewal arrives, by the cloud's own clock that never jumps: the clock of a node may be wrong.
//! After a start every node that is known has the time of its Lease to show itself.

use std::time::Duration;

use jiff::Timestamp;

use crate::store::cloud::{LeaseRenewal, NodeChange, Registered};
use crate::sync::timing::Now;
use crate::sync::upload::Lease;

/// See the module.
#[derive(Debug)]
pub(super) struct Vitals {}

impl Vitals {
    /// Begins with what is stored; `flush` is how often Leases are written.
    pub(super) fn new(_now: Now, _known: &Registered, _flush: Duration) -> Self {
        todo!()
    }

    /// A renewal has arrived.
    pub(super) fn renewed(&mut self, _now: Now, _clock: Timestamp, _node: &str, _lease: &Lease) {
        todo!()
    }

    /// A node has been welcomed.
    pub(super) fn welcomed(&mut self, _now: Now, _node: &str) {
        todo!()
    }

    /// Whether a node is in sync, and if not, what is missing. A change is told once it has lasted for a while.
    pub(super) fn in_sync(
        &mut self,
        _now: Now,
        _node: &str,
        _in_sync: bool,
        _pending: u64,
        _rejected: u64,
        _held: u64,
    ) {
        todo!()
    }

    /// A node has been removed.
    pub(super) fn forget(&mut self, _node: &str) {
        todo!()
    }

    /// Leases to be written now, if it is time to.
    pub(super) fn leases_due(&mut self, _now: Now) -> Vec<LeaseRenewal> {
        todo!()
    }

    /// Conditions to be written now.
    pub(super) fn changes_due(&mut self, _now: Now) -> Vec<NodeChange> {
        todo!()
    }

    /// When to ask again.
    pub(super) fn deadline(&self) -> Option<Now> {
        todo!()
    }
}
