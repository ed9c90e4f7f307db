//! Counters of the fleet that belong to no single node.

use std::collections::BTreeMap;

use crate::metrics::{CloudNumbers, add_counters};
use edgesync_protocol::cloud::CloudCounters;

/// Counters since the start; see the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Rejected frames, by cause.
    pub(super) bad_frames: BTreeMap<&'static str, u64>,
    /// Leases written to the store.
    pub(super) leases_written: u64,
    /// Events deleted after their time to live.
    pub(super) events_expired: u64,
    /// Events of nodes evicted by newer ones.
    pub(super) events_dropped: u64,
    /// Counters of removed machines.
    pub(super) gone: CloudCounters,
    /// Bytes of frames received.
    pub(super) received: u64,
    /// Decoded bytes of the frames of the current event.
    pub(super) decoded: usize,
}

impl Counts {
    /// Counts a rejected frame. Returns the count for its cause.
    pub(super) fn bad_frame(&mut self, cause: &'static str) -> u64 {
        let count = self.bad_frames.entry(cause).or_default();
        *count += 1;
        *count
    }

    /// Adds these counters to the numbers of all nodes.
    pub(super) fn add_to(&self, numbers: &mut CloudNumbers) {
        numbers.bad_frames.clone_from(&self.bad_frames);
        numbers.leases_written = self.leases_written;
        numbers.events_expired = self.events_expired;
        numbers.events_dropped = self.events_dropped;
        add_counters(&mut numbers.nodes.counters, &self.gone);
        let CloudCounters { leases, upload_items, uploads_refused, .. } = numbers.nodes.counters;
        numbers.leases_renewed = leases;
        numbers.uploads_taken = upload_items.saturating_sub(uploads_refused);
        numbers.uploads_refused = uploads_refused;
    }
}
