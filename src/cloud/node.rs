//! One node as the fleet sees it: its machine, and what has to be kept beside it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::metrics::NodeNumbers;
use crate::object::ObjectRef;
use crate::placement::Summary;
use crate::sync::cloud::{CloudMachine, CloudPhase, Desired};
use crate::sync::frame::Up;
use crate::sync::timing::Now;

use super::lifecycle::NodeLifecycle;

/// Frames of a node that wait while its records are read.
const MAX_BACKLOG: usize = 256;

/// A node.
pub(super) struct Node {
    pub(super) state: NodeMachine,
    /// The connection in use: a number at the embedded endpoint, the id in the presence otherwise.
    pub(super) connection: Option<String>,
    /// A frame for which its link had no room.
    pub(super) waiting: Option<Vec<u8>>,
    /// A task waits for room in its link.
    pub(super) awaiting_room: bool,
    pub(super) agent: Option<String>,
    pub(super) last_report: Option<Timestamp>,
    /// When its machine wants to be ticked, as entered in the fleet's table.
    pub(super) deadline: Option<Duration>,
    /// Since when it is connected and not in sync.
    pub(super) lagging: Option<Now>,
    /// The session of its last Hello.
    pub(super) session: Option<String>,
    /// Reads and writes of the store about it that are under way.
    pub(super) busy: u32,
}

/// The machine, or what came for it while its records are being read.
pub(super) enum NodeMachine {
    Loading { backlog: Vec<Up>, dropped: bool },
    Ready(Box<CloudMachine>),
}

impl Node {
    pub(super) fn loading() -> Self {
        Self {
            state: NodeMachine::Loading { backlog: Vec::new(), dropped: false },
            connection: None,
            waiting: None,
            awaiting_room: false,
            lagging: None,
            agent: None,
            last_report: None,
            deadline: None,
            session: None,
            busy: 0,
        }
    }

    pub(super) fn machine(&mut self) -> Option<&mut CloudMachine> {
        match &mut self.state {
            NodeMachine::Ready(machine) => Some(machine),
            NodeMachine::Loading { .. } => None,
        }
    }

    /// Keeps a frame until the records are there. A Hello makes what came before it pointless.
    pub(super) fn keep(&mut self, frame: Up) {
        if let NodeMachine::Loading { backlog, dropped } = &mut self.state {
            if matches!(frame, Up::Hello(_)) {
                backlog.clear();
            }
            if backlog.len() < MAX_BACKLOG {
                backlog.push(frame);
            } else {
                *dropped = true;
            }
        }
    }

    pub(super) fn state_name(&self) -> &'static str {
        match &self.state {
            NodeMachine::Loading { .. } => "loading",
            NodeMachine::Ready(machine) => match machine.phase() {
                CloudPhase::Offline => "offline",
                CloudPhase::Replaying => "connecting",
                CloudPhase::Repairing => "repairing",
                CloudPhase::Live if machine.in_sync() => "in sync",
                CloudPhase::Live if machine.held().next().is_some() => "held back",
                CloudPhase::Live if machine.pending() > 0 => "syncing",
                CloudPhase::Live => "live",
            },
        }
    }

    /// The node as the metrics show it.
    pub(super) fn numbers(
        &self,
        name: &str,
        now: Now,
        clock: Timestamp,
        lifecycle: &NodeLifecycle,
    ) -> NodeNumbers {
        let age = |at: Timestamp| clock.duration_since(at).try_into().unwrap_or_default();
        let (ready, renewed) = lifecycle.show(name);
        let mut numbers = NodeNumbers {
            name: name.to_owned(),
            state: self.state_name(),
            connected: self.connection.is_some(),
            ready,
            lease_age: renewed.map(age),
            report_age: self.last_report.map(age),
            lag: self.lagging.map(|since| now.saturating_sub(since)).unwrap_or_default(),
            ..NodeNumbers::default()
        };
        if let NodeMachine::Ready(machine) = &self.state {
            numbers.in_sync = machine.in_sync();
            numbers.records = machine.records().count() as u64;
            numbers.desired = machine.desired().count() as u64;
            numbers.pending = machine.pending();
            numbers.rejected = machine.refused().count() as u64;
            numbers.held_back = machine.held().count() as u64;
            numbers.round_trip = machine.round_trip();
            numbers.counters = machine.counters();
        }
        numbers
    }

    /// The node as JSON.
    pub(super) fn show(&self, name: &str, lifecycle: &NodeLifecycle) -> Value {
        let (ready, renewed) = lifecycle.show(name);
        let mut shown = json!({
            "name": name,
            "state": self.state_name(),
            "ready": ready,
            "lastRenewal": renewed.map(|at| at.to_string()),
            "agentVersion": self.agent,
            "lastReport": self.last_report.map(|at| at.to_string()),
        });
        if let (NodeMachine::Ready(machine), Some(fields)) = (&self.state, shown.as_object_mut()) {
            let counters = machine.counters();
            fields.insert("objects".into(), json!(machine.records().count()));
            fields.insert("desired".into(), json!(machine.desired().count()));
            fields.insert("pending".into(), json!(machine.pending()));
            fields.insert("rejected".into(), json!(machine.refused().count()));
            fields.insert("heldBack".into(), json!(machine.held().count()));
            fields.insert("confirmedRevision".into(), json!(machine.confirmed()));
            fields.insert(
                "roundTripMilliseconds".into(),
                json!(machine.round_trip().map(|time| time.as_secs_f64() * 1000.0)),
            );
            fields.insert(
                "counters".into(),
                json!({
                    "hellos": counters.hellos,
                    "objectsSent": counters.sent,
                    "removalsSent": counters.removals_sent,
                    "objectsResent": counters.resent,
                    "reports": counters.reports,
                    "objectsReported": counters.reported,
                    "objectsRejected": counters.rejected,
                    "inventories": counters.repairs,
                    "foreignSession": counters.foreign_session,
                }),
            );
        }
        shown
    }

    /// The node as JSON, with what it refuses and what is held back.
    pub(super) fn show_all(&self, name: &str, lifecycle: &NodeLifecycle) -> Value {
        let mut shown = self.show(name, lifecycle);
        if let (NodeMachine::Ready(machine), Some(fields)) = (&self.state, shown.as_object_mut()) {
            let refused: Vec<Value> = machine
                .refused()
                .map(|(uid, refusal)| {
                    json!({
                        "uid": &**uid,
                        "resourceVersion": refusal.version,
                        "reason": refusal.reason,
                        "message": refusal.message,
                    })
                })
                .collect();
            let held: Vec<Value> =
                machine.held().map(|(uid, object)| json!({ "uid": &**uid, "object": object })).collect();
            fields.insert("refusedObjects".into(), json!(refused));
            fields.insert("heldBackObjects".into(), json!(held));
        }
        shown
    }
}

/// What a node is to hold, from the summary of the object.
pub(super) fn desired(summary: &Arc<Summary>) -> Desired {
    Desired {
        version: summary.version.clone(),
        object: Arc::new(ObjectRef {
            api_version: summary.resource.api_version().into(),
            kind: summary.resource.kind.as_str().into(),
            namespace: summary.namespace.clone(),
            name: summary.name.clone(),
        }),
        resource: summary.resource.clone(),
        size: summary.size,
    }
}
