//! Collects the loop's share of the metrics.

use super::Driver;
use crate::agent::metrics::{AgentNumbers, Transferred};
use crate::agent::traffic::Direction;

impl Driver {
    /// Returns the current values, except those of the store.
    pub(super) fn numbers(&self) -> AgentNumbers {
        let (machine, now) = (&self.machine, self.now());
        let totals = machine.totals();
        let (pending, held_back) = machine.announced();
        AgentNumbers {
            node: self.settings.node.clone(),
            connected: self.connection.link.connected,
            link: self.link.traffic(),
            endings: self.link.endings(),
            phase: machine.phase(),
            welcome_round_trip: self.connection.welcome_round_trip,
            in_sync: machine.in_sync(),
            lag: self.statistics.ages.oldest_change(now),
            unconfirmed: totals.revision.saturating_sub(machine.confirmed_revision()),
            pending,
            held_back,
            objects: totals.count,
            rejected_now: self.statistics.rejected.len() as u64,
            rejections: self.statistics.rejections,
            sync: machine.counters(),
            bad_frames: self.statistics.bad_frames.clone(),
            frames: transferred(self.reporting.traffic.meter.frames()),
            kinds: transferred(self.reporting.traffic.meter.kinds()),
            traffic_today: self.reporting.traffic.meter.today(),
            traffic_budget: self.reporting.traffic.budget(),
            certificate_end: self
                .identity
                .as_ref()
                .map(|identity| identity.state().certificate.not_after().as_second()),
            outbox: self.reporting.outbox.state.borrow().clone(),
            events_emitted: self.reporting.events.emitted(),
            events_suppressed: self.reporting.events.suppressed(),
            outbox_ages: self.statistics.ages.oldest_items(now),
            limits: self.statistics.limits,
            kubeedge: self.wire.cloud_core().map(|core| (core.bridge.counters(), core.bridge.status())),
            ..AgentNumbers::default()
        }
    }
}

fn transferred<L: Into<String>>(rows: Vec<(Direction, L, u64, u64)>) -> Vec<Transferred> {
    let row = |(direction, label, count, bytes): (Direction, L, u64, u64)| Transferred {
        direction: direction.name(),
        label: label.into(),
        count,
        bytes,
    };
    rows.into_iter().map(row).collect()
}
