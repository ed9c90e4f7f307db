//! The numbers for the metrics, as far as the fleet has them. Made when somebody asks: with many nodes they are
//! many.

use jiff::Timestamp;

use super::Fleet;
use crate::cloud::metrics::{CloudNumbers, add_counters};
use crate::cloud::source::Source;
use crate::sync::cloud::CloudCounters;

/// What the fleet counts and no node does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Leases written to the store.
    pub(super) leases_written: u64,
    /// Events deleted after their time to live.
    pub(super) events_expired: u64,
    /// What the machines of nodes counted that are gone.
    pub(super) gone: CloudCounters,
}

impl<S: Source> Fleet<S> {
    /// The numbers of now, but for those of store and broker.
    pub(super) fn numbers(&self) -> CloudNumbers {
        let mut numbers = CloudNumbers {
            objects: self.placement.len() as u64,
            bad_frames: self.bad_frames.clone(),
            leases_written: self.counts.leases_written,
            events_expired: self.counts.events_expired,
            bodies: self.bodies.numbers(),
            ..CloudNumbers::default()
        };
        add_counters(&mut numbers.nodes.counters, &self.counts.gone);
        numbers.nodes.waiting = self.openings.waiting() as u64;
        let (now, clock) = (self.now(), Timestamp::now());
        for (name, node) in &self.nodes {
            let node = node.numbers(name, now, clock, &self.lifecycle);
            numbers.nodes.add(&node);
            if self.metrics_per_node {
                numbers.each.push(node);
            }
        }
        let CloudCounters { leases, upload_items, uploads_refused, .. } = numbers.nodes.counters;
        numbers.leases_renewed = leases;
        numbers.uploads_taken = upload_items.saturating_sub(uploads_refused);
        numbers.uploads_refused = uploads_refused;
        numbers.each.sort_by(|one, other| one.name.cmp(&other.name));
        numbers
    }
}
