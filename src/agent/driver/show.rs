//! Builds the agent's status and the loop's part of the metrics.

mod cloud_core;

use super::Driver;
use super::statistics::Statistics;
use super::uplink::Uplink;
use crate::agent::metrics::{
    AgentNumbers, EventNumbers, LinkNumbers, ObjectNumbers, OutboxNumbers, SessionNumbers, TrafficNumbers,
    Transferred,
};
use crate::agent::status::{StoreView, seconds};
use crate::agent::traffic::Direction;
use crate::store::{EdgeStats, EdgeStore, Writing};
use edgesync_admin::agent::{
    AgentCounters, AgentStatus, CloudStatus, LimitsHit, LinkState, LinkStatus, ListenStatus, ObjectCounts,
    Program, StoreStatus, SyncStatus,
};
use edgesync_config::ConnectPlan;
use edgesync_object::time::rfc3339;
use edgesync_protocol::edge::{EdgeMachine, EdgePhase};
use edgesync_runtime::VERSION;

impl Driver {
    /// Returns the status, for callers who may read sealed objects or not. The callers add files,
    /// local API and seal keys, which the loop does not own.
    pub(super) fn status(
        &self,
        StoreView { stats, kinds }: &StoreView,
        reads_sealed: bool,
    ) -> Box<AgentStatus> {
        let traffic = self.uplink.link.traffic();
        let kinds = kinds
            .iter()
            .map(|(resource, count)| (format!("{}/{}", resource.api_version(), resource.kind), *count))
            .collect();
        Box::new(AgentStatus {
            node: self.settings.node.to_string(),
            agent: Program { version: VERSION.to_owned(), started: rfc3339(self.timeline.started) },
            link: self.link_status(),
            kubeedge: self.uplink.wire.cloud_core().map(cloud_core::status),
            identity: self.identity.as_ref().map(|identity| identity.state().show()),
            cloud: cloud_status(&self.uplink, &self.machine),
            sync: sync_status(&self.machine, &self.statistics),
            outbox: self.reporting.outbox.show(),
            conditions: self.reporting.node.show(),
            traffic: self.reporting.traffic.show(),
            metered: self.show_metered(),
            objects: ObjectCounts { total: self.machine.totals().count, kinds },
            store: store_status(&self.machine, &self.store, self.storing.resets_seen(), stats.as_ref()),
            limits_hit: LimitsHit {
                objects_too_large: self.statistics.limits.object_size,
                store_full: self.statistics.limits.store_size,
                link_queue_full: self.statistics.limits.link_queue,
                reading_stalled: traffic.stalled,
                events_dropped: stats.as_ref().map(|stats| stats.events_dropped),
            },
            rejected: self.statistics.rejected.values().map(|entry| entry.show(reads_sealed)).collect(),
            counters: counters(&self.machine, &self.statistics),
            api: ListenStatus::Off,
            files: None,
        })
    }

    /// Returns the current values of the metrics, except those of the store.
    pub(super) fn numbers(&self) -> AgentNumbers {
        let (machine, now) = (&self.machine, self.now());
        let totals = machine.totals();
        let (pending, held_back) = machine.announced();
        let (statistics, reporting) = (&self.statistics, &self.reporting);
        let (events, meter) = (&reporting.events, &reporting.traffic.meter);
        AgentNumbers {
            node: self.settings.node.to_string(),
            link: LinkNumbers {
                connected: self.uplink.is_connected(),
                traffic: self.uplink.link.traffic(),
                endings: self.uplink.link.endings(),
            },
            session: SessionNumbers {
                phase: machine.phase(),
                welcome_round_trip: self.uplink.connection.welcome_round_trip,
                in_sync: machine.in_sync(),
                lag: statistics.ages.oldest_change(now),
                unconfirmed: totals.revision.saturating_sub(machine.confirmed_revision()),
                pending,
                held_back,
                counters: machine.counters(),
                bad_frames: statistics.bad_frames.clone(),
            },
            objects: ObjectNumbers {
                held: totals.count,
                rejected_now: statistics.rejected.len() as u64,
                rejections: statistics.rejections,
            },
            traffic: TrafficNumbers {
                frames: transferred(meter.frames()),
                kinds: transferred(meter.kinds()),
                today: meter.today(),
                budget: reporting.traffic.budget(),
                metered: self.show_metered(),
            },
            certificate_end: self
                .identity
                .as_ref()
                .map(|identity| identity.state().certificate.not_after().as_second()),
            outbox: OutboxNumbers {
                state: reporting.outbox.state.borrow().clone(),
                ages: statistics.ages.oldest_items(now),
            },
            events: EventNumbers { emitted: events.emitted(), suppressed: events.suppressed() },
            limits: statistics.limits,
            kubeedge: self
                .uplink
                .wire
                .cloud_core()
                .map(|core| (core.bridge.counters(), core.bridge.status())),
            ..AgentNumbers::default()
        }
    }
}

impl Driver {
    fn link_status(&self) -> LinkStatus {
        let plan = self.check_ins.plan();
        LinkStatus {
            plan: (plan != ConnectPlan::Always).then(|| plan.to_string()),
            next_check_in: self.next_check_in().map(rfc3339),
            ..link_status(&self.uplink, self.settings.peer(self.uplink.link.position()))
        }
    }
}

fn link_status(Uplink { link, wire, connection }: &Uplink, peer: &str) -> LinkStatus {
    let traffic = link.traffic();
    let connected = connection.link.connected;
    LinkStatus {
        state: if connected { LinkState::Connected } else { LinkState::Disconnected },
        link_type: wire.link_type().name().to_owned(),
        broker: peer.to_owned(),
        since: connection.link.since.map(rfc3339),
        cause: connection.link.cause.clone(),
        retry_in_seconds: (!connected).then(|| seconds(connection.link.retry_in)),
        connections: connection.link.reconnects,
        bytes_in: traffic.bytes_in,
        bytes_out: traffic.bytes_out,
        plan: None,
        next_check_in: None,
    }
}

fn cloud_status(Uplink { wire, connection, .. }: &Uplink, machine: &EdgeMachine) -> CloudStatus {
    let state = match (connection.link.connected, machine.phase(), connection.cloud_online) {
        (false, ..) => format!("unknown: no connection to {}", wire.peer()),
        (true, EdgePhase::Live, _) => CloudStatus::CONNECTED.to_owned(),
        _ if connection.removed => {
            "node removed from the fleet; hint: 'edgesync-cloud node admit NODE'".to_owned()
        }
        (true, _, Some(false)) => "offline".to_owned(),
        (true, ..) if let Some(why) = &connection.refusal => format!("refused: {why}"),
        (true, ..) => format!("unreachable: {}", wire.silence()),
    };
    CloudStatus {
        state,
        incarnation: machine.incarnation().map(str::to_owned),
        session: machine.session().map(str::to_owned),
        removed: connection.removed,
    }
}

fn sync_status(machine: &EdgeMachine, statistics: &Statistics) -> SyncStatus {
    let (pending, held_back) = machine.announced();
    SyncStatus {
        in_sync: machine.in_sync(),
        in_sync_since: statistics.in_sync_since.map(rfc3339),
        pending,
        held_back,
        unconfirmed: machine.totals().revision.saturating_sub(machine.confirmed_revision()),
        last_confirm: statistics.last_report.map(rfc3339),
    }
}

fn store_status(
    machine: &EdgeMachine,
    store: &EdgeStore,
    resets: u64,
    stats: Option<&EdgeStats>,
) -> StoreStatus {
    let totals = machine.totals();
    StoreStatus {
        epoch: totals.epoch.to_string(),
        digest: totals.digest.to_string(),
        revision: totals.revision,
        confirmed: machine.confirmed_revision(),
        writing: match store.health().borrow().writing.clone() {
            Writing::Works => StoreStatus::WORKS.to_owned(),
            Writing::Full => "full".to_owned(),
            Writing::Fails { reason } => format!("fails: {reason}"),
        },
        resets,
        database_bytes: stats.map(|stats| stats.database_bytes),
        wal_bytes: stats.map(|stats| stats.wal_bytes),
        free_bytes: stats.map(|stats| stats.free_bytes),
        commits: stats.map(|stats| stats.writer.commits),
        seal: None,
    }
}

fn counters(machine: &EdgeMachine, statistics: &Statistics) -> AgentCounters {
    let counters = machine.counters();
    AgentCounters {
        hellos: counters.hellos,
        leases: counters.leases,
        uploads_sent: counters.uploads_sent,
        uploads_resent: counters.uploads_resent,
        uploads_refused: counters.uploads_refused,
        applied: counters.applied,
        rejected: counters.rejected,
        repeated_reports: counters.repeated_reports,
        foreign_session: counters.foreign_session,
        bad_frames: statistics.bad_frames.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect(),
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
