//! The status as JSON: what the agent holds, is connected to, waits for, and has run into.

mod cloud_core;

use serde_json::{Map, Value, json};

use super::Driver;
use crate::agent::status::{StoreView, seconds};
use crate::store::Writing;
use edgesync_protocol::edge::EdgePhase;
use edgesync_runtime::VERSION;

impl Driver {
    /// The status as JSON.
    pub(super) fn status(&self, StoreView { stats, kinds }: &StoreView) -> Value {
        let machine = &self.machine;
        let totals = machine.totals();
        let (pending, held) = machine.announced();
        let traffic = self.link.traffic();
        let counters = machine.counters();
        let health = self.store.health().borrow().clone();
        let kinds: Map<String, Value> = kinds
            .iter()
            .map(|(resource, count)| (format!("{}/{}", resource.api_version(), resource.kind), json!(count)))
            .collect();
        let cloud = match (self.connection.link.connected, machine.phase(), self.connection.cloud_online) {
            (false, ..) => format!("unknown: no connection to {}", self.wire.peer()),
            (true, EdgePhase::Live, _) => "connected".to_owned(),
            _ if self.connection.removed => {
                "this node was removed from the fleet: 'edgesync-cloud node admit NODE' takes it in again"
                    .to_owned()
            }
            (true, _, Some(false)) => "offline".to_owned(),
            (true, ..) if let Some(why) = &self.connection.refusal => format!("refuses this node: {why}"),
            (true, ..) => format!("unreachable: {} (yet)", self.wire.silence()),
        };
        json!({
            "node": self.settings.node,
            "agent": { "version": VERSION, "started": self.timeline.started.to_string() },
            "link": {
                "state": if self.connection.link.connected { "connected" } else { "disconnected" },
                "type": self.wire.link_type().name(),
                "broker": self.settings.peer,
                "since": self.connection.link.since.map(|at| at.to_string()),
                "cause": self.connection.link.cause,
                "retryInSeconds": (!self.connection.link.connected).then(|| seconds(self.connection.link.retry_in)),
                "connections": self.connection.link.reconnects,
                "bytesIn": traffic.bytes_in,
                "bytesOut": traffic.bytes_out,
            },
            "kubeedge": self.show_cloud_core(),
            "identity": self.identity.as_ref().map(|identity| identity.state().show()),
            "cloud": {
                "state": cloud,
                "incarnation": machine.incarnation(),
                "session": machine.session(),
                "removed": self.connection.removed,
            },
            "sync": {
                "inSync": machine.in_sync(),
                "inSyncSince": self.statistics.in_sync_since.map(|at| at.to_string()),
                "pending": pending,
                "heldBack": held,
                "unconfirmed": totals.revision.saturating_sub(machine.confirmed_revision()),
                "lastConfirm": self.statistics.last_report.map(|at| at.to_string()),
            },
            "outbox": self.show_upstream(),
            "conditions": self.upstream.conditions,
            "traffic": self.upstream.show_traffic(),
            "objects": { "total": totals.count, "kinds": kinds },
            "store": {
                "epoch": totals.epoch.to_string(),
                "digest": totals.digest.to_string(),
                "revision": totals.revision,
                "confirmed": machine.confirmed_revision(),
                "writing": match health.writing {
                    Writing::Works => "works".to_owned(),
                    Writing::Full => "full".to_owned(),
                    Writing::Fails { reason } => format!("fails: {reason}"),
                },
                "resets": self.storing.resets_seen(),
                "databaseBytes": stats.as_ref().map(|stats| stats.database_bytes),
                "walBytes": stats.as_ref().map(|stats| stats.wal_bytes),
                "freeBytes": stats.as_ref().map(|stats| stats.free_bytes),
                "commits": stats.as_ref().map(|stats| stats.writer.commits),
            },
            "limitsHit": {
                "objectsTooLarge": self.statistics.limits.object_size,
                "storeFull": self.statistics.limits.store_size,
                "linkQueueFull": self.statistics.limits.link_queue,
                "readingStalled": traffic.stalled,
                "eventsDropped": stats.as_ref().map(|stats| stats.events_dropped),
            },
            "rejected": self.statistics.rejected.values().collect::<Vec<_>>(),
            "counters": {
                "hellos": counters.hellos,
                "leases": counters.leases,
                "uploadsSent": counters.uploads_sent,
                "uploadsResent": counters.uploads_resent,
                "uploadsRefused": counters.uploads_refused,
                "applied": counters.applied,
                "rejected": counters.rejected,
                "repeatedReports": counters.repeated_reports,
                "foreignSession": counters.foreign_session,
                "badFrames": self.statistics.bad_frames,
            },
        })
    }
}
