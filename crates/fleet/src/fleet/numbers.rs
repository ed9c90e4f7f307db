//! The numbers for the metrics, as far as the fleet has them and no node. Made when somebody asks.

use super::Fleet;
use crate::metrics::{CloudNumbers, add_counters};
use crate::source::Source;
use edgesync_protocol::cloud::CloudCounters;

/// What the fleet counts and no node does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Leases written to the store.
    pub(super) leases_written: u64,
    /// Events deleted after their time to live.
    pub(super) events_expired: u64,
    /// Events of nodes that made room for newer ones.
    pub(super) events_dropped: u64,
    /// What the machines of nodes counted that are gone.
    pub(super) gone: CloudCounters,
}

impl<S: Source> Fleet<S> {
    /// Adds what is not of single nodes; those of store and broker are not known here.
    pub(super) fn complete(&self, numbers: &mut CloudNumbers) {
        numbers.objects = self.placement.len() as u64;
        numbers.bad_frames.clone_from(&self.bad_frames);
        numbers.leases_written = self.counts.leases_written;
        numbers.events_expired = self.counts.events_expired;
        numbers.events_dropped = self.counts.events_dropped;
        numbers.bodies = self.bodies.numbers();
        numbers.cluster = self.source.numbers();
        numbers.nodes.waiting = self.openings.waiting() as u64;
        add_counters(&mut numbers.nodes.counters, &self.counts.gone);
        let CloudCounters { leases, upload_items, uploads_refused, .. } = numbers.nodes.counters;
        numbers.leases_renewed = leases;
        numbers.uploads_taken = upload_items.saturating_sub(uploads_refused);
        numbers.uploads_refused = uploads_refused;
    }
}
