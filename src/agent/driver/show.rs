//! Builds the agent's status: objects, connections, queues, failures.

mod cloud_core;

use super::Driver;
use crate::agent::status::{StoreView, seconds};
use crate::store::{EdgeStats, Writing};
use edgesync_admin::agent::{
    AgentCounters, AgentStatus, CloudStatus, LimitsHit, LinkState, LinkStatus, ListenStatus, ObjectCounts,
    Program, StoreStatus, SyncStatus,
};
use edgesync_object::time::rfc3339;
use edgesync_protocol::edge::EdgePhase;
use edgesync_runtime::VERSION;

impl Driver {
    /// Returns the status, for callers who may read sealed objects or not. The callers add files,
    /// local API and seal keys, which the loop does not own.
    pub(super) fn status(
        &self,
        StoreView { stats, kinds }: &StoreView,
        reads_sealed: bool,
    ) -> Box<AgentStatus> {
        let traffic = self.link.traffic();
        let kinds = kinds
            .iter()
            .map(|(resource, count)| (format!("{}/{}", resource.api_version(), resource.kind), *count))
            .collect();
        Box::new(AgentStatus {
            node: self.settings.node.clone(),
            agent: Program { version: VERSION.to_owned(), started: rfc3339(self.timeline.started) },
            link: self.show_link(),
            kubeedge: self.show_cloud_core(),
            identity: self.identity.as_ref().map(|identity| identity.state().show()),
            cloud: self.show_cloud(),
            sync: self.show_sync(),
            outbox: self.reporting.outbox.show(),
            conditions: self.reporting.node.show(),
            traffic: self.reporting.traffic.show(),
            objects: ObjectCounts { total: self.machine.totals().count, kinds },
            store: self.show_store(stats.as_ref()),
            limits_hit: LimitsHit {
                objects_too_large: self.statistics.limits.object_size,
                store_full: self.statistics.limits.store_size,
                link_queue_full: self.statistics.limits.link_queue,
                reading_stalled: traffic.stalled,
                events_dropped: stats.as_ref().map(|stats| stats.events_dropped),
            },
            rejected: self.statistics.rejected.values().map(|entry| entry.show(reads_sealed)).collect(),
            counters: self.show_counters(),
            api: ListenStatus::Off,
            files: None,
        })
    }

    fn show_link(&self) -> LinkStatus {
        let traffic = self.link.traffic();
        let connected = self.connection.link.connected;
        LinkStatus {
            state: if connected { LinkState::Connected } else { LinkState::Disconnected },
            link_type: self.wire.link_type().name().to_owned(),
            broker: self.settings.peer.clone(),
            since: self.connection.link.since.map(rfc3339),
            cause: self.connection.link.cause.clone(),
            retry_in_seconds: (!connected).then(|| seconds(self.connection.link.retry_in)),
            connections: self.connection.link.reconnects,
            bytes_in: traffic.bytes_in,
            bytes_out: traffic.bytes_out,
        }
    }

    fn show_cloud(&self) -> CloudStatus {
        let machine = &self.machine;
        let state = match (self.connection.link.connected, machine.phase(), self.connection.cloud_online) {
            (false, ..) => format!("unknown: no connection to {}", self.wire.peer()),
            (true, EdgePhase::Live, _) => CloudStatus::CONNECTED.to_owned(),
            _ if self.connection.removed => {
                "node removed from the fleet; hint: 'edgesync-cloud node admit NODE'".to_owned()
            }
            (true, _, Some(false)) => "offline".to_owned(),
            (true, ..) if let Some(why) = &self.connection.refusal => format!("refused: {why}"),
            (true, ..) => format!("unreachable: {}", self.wire.silence()),
        };
        CloudStatus {
            state,
            incarnation: machine.incarnation().map(str::to_owned),
            session: machine.session().map(str::to_owned),
            removed: self.connection.removed,
        }
    }

    fn show_sync(&self) -> SyncStatus {
        let machine = &self.machine;
        let (pending, held_back) = machine.announced();
        SyncStatus {
            in_sync: machine.in_sync(),
            in_sync_since: self.statistics.in_sync_since.map(rfc3339),
            pending,
            held_back,
            unconfirmed: machine.totals().revision.saturating_sub(machine.confirmed_revision()),
            last_confirm: self.statistics.last_report.map(rfc3339),
        }
    }

    fn show_store(&self, stats: Option<&EdgeStats>) -> StoreStatus {
        let totals = self.machine.totals();
        StoreStatus {
            epoch: totals.epoch.to_string(),
            digest: totals.digest.to_string(),
            revision: totals.revision,
            confirmed: self.machine.confirmed_revision(),
            writing: match self.store.health().borrow().writing.clone() {
                Writing::Works => StoreStatus::WORKS.to_owned(),
                Writing::Full => "full".to_owned(),
                Writing::Fails { reason } => format!("fails: {reason}"),
            },
            resets: self.storing.resets_seen(),
            database_bytes: stats.map(|stats| stats.database_bytes),
            wal_bytes: stats.map(|stats| stats.wal_bytes),
            free_bytes: stats.map(|stats| stats.free_bytes),
            commits: stats.map(|stats| stats.writer.commits),
            seal: None,
        }
    }

    fn show_counters(&self) -> AgentCounters {
        let counters = self.machine.counters();
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
            bad_frames: self
                .statistics
                .bad_frames
                .iter()
                .map(|(what, count)| ((*what).to_owned(), *count))
                .collect(),
        }
    }
}
