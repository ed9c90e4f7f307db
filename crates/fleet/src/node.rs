//! One node as the fleet sees it: its machine, and what has to be kept beside it.

use std::time::Duration;

use jiff::Timestamp;

use super::metrics::NodeNumbers;
use edgesync_admin::agent::RejectedObject;
use edgesync_admin::cloud::{NodeCounters, ServedNode, WithheldObject, state};
use edgesync_object::{NodeName, ObjectRef, ResourceVersion};
use edgesync_placement::{OnNode, Placed, Unread};
use edgesync_protocol::cloud::{CloudMachine, CloudPhase, Desired, DesiredState};
use edgesync_protocol::timing::Now;
use edgesync_transport::gate::Seldom;

use super::lifecycle::NodeLifecycle;
use super::source::Standing;
use super::summary::{Past, Row};
use super::work::Work;

/// Lines in the log that what a node says may cause in ten seconds.
const LINES: u32 = 20;

/// A node.
pub(super) struct Node {
    pub(super) machine: Box<CloudMachine>,
    /// How many objects it is to hold.
    pub(super) desired: u64,
    /// How many differences of its ledger are in the fleet's sum.
    pub(super) different: usize,
    /// What it knows of the news: their number.
    pub(super) news: u64,
    /// It waits for its machine's turn.
    pub(super) touched: bool,
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
    /// Until then nothing of it is heard: it has exceeded its quota.
    pub(super) refused_until: Now,
    /// Lines of the log that it causes.
    pub(super) quiet: Seldom,
    /// Reads and writes of the store about it that are under way.
    pub(super) busy: u32,
    /// It is in the table of those whose differences are to be told; and it has ObjectSyncs because it differed.
    pub(super) differs: bool,
    pub(super) has_syncs: bool,
    /// What an operator has confirmed at some replica, as its Node has it.
    pub(super) confirmed: Box<str>,
    /// What it has said of what is in effect there.
    pub(super) standing: Standing,
    /// Where other replicas may serve it: what its Node says of that, if anything.
    pub(super) in_effect: Option<bool>,
    /// The same of whether it is in sync.
    pub(super) in_sync_elsewhere: bool,
    /// Bytes of frames to it and from it.
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Its last hour.
    pub(super) past: Past,
    /// What pages were told of it.
    pub(super) row: Option<Row>,
}

impl Node {
    /// A node that knows so many news.
    pub(super) fn new(machine: CloudMachine, news: u64) -> Self {
        Self {
            machine: Box::new(machine),
            desired: 0,
            different: 0,
            news,
            touched: false,
            connection: None,
            waiting: None,
            awaiting_room: false,
            lagging: None,
            agent: None,
            last_report: None,
            deadline: None,
            session: None,
            refused_until: Now::ZERO,
            quiet: Seldom::of(LINES),
            busy: 0,
            differs: false,
            has_syncs: false,
            confirmed: "".into(),
            standing: Standing::default(),
            in_effect: None,
            in_sync_elsewhere: false,
            sent: 0,
            received: 0,
            past: Past::default(),
            row: None,
        }
    }

    pub(super) fn state_name(&self) -> &'static str {
        let machine = &self.machine;
        match machine.phase() {
            CloudPhase::Offline => "offline",
            CloudPhase::Replaying => "connecting",
            CloudPhase::Repairing => "repairing",
            CloudPhase::Live if machine.in_sync() => "in sync",
            CloudPhase::Live if machine.held_count() > 0 => "held back",
            CloudPhase::Live if machine.pending() > 0 => "syncing",
            CloudPhase::Live => "live",
        }
    }

    /// What it is doing, as it is shown: whether one that is offline was ever here.
    fn shown_state(&self, is_registered: bool) -> &'static str {
        let was_here = is_registered || self.agent.is_some() || self.last_report.is_some();
        match self.state_name() {
            "offline" if !was_here && self.connection.is_none() => state::NEVER_CONNECTED,
            state => state,
        }
    }

    /// The node as the metrics show it.
    pub(super) fn numbers(
        &self,
        name: &NodeName,
        now: Now,
        clock: Timestamp,
        lifecycle: &NodeLifecycle,
    ) -> NodeNumbers {
        let age = |at: Timestamp| clock.duration_since(at).try_into().unwrap_or_default();
        let (ready, renewed) = lifecycle.show(name);
        let machine = &self.machine;
        NodeNumbers {
            name: name.to_string(),
            state: self.state_name(),
            connected: self.connection.is_some(),
            ready,
            lease_age: renewed.map(age),
            report_age: self.last_report.map(age),
            lag: self.lagging.map(|since| now.saturating_sub(since)).unwrap_or_default(),
            in_sync: machine.in_sync(),
            records: machine.recorded_tally().count,
            desired: self.desired,
            pending: machine.pending(),
            rejected: machine.refused().count() as u64,
            held_back: machine.held_count(),
            files: self.standing.counts(),
            round_trip: machine.round_trip(),
            counters: machine.counters(),
        }
    }

    /// The node as operators see it; its labels are known elsewhere.
    pub(super) fn show(
        &self,
        name: &NodeName,
        lifecycle: &NodeLifecycle,
        is_registered: bool,
    ) -> Box<ServedNode> {
        let (ready, renewed) = lifecycle.show(name);
        let machine = &self.machine;
        let counters = machine.counters();
        let files = Some(self.standing.counts()).filter(|files| files.objects() > 0);
        Box::new(ServedNode {
            name: name.to_string(),
            state: self.shown_state(is_registered).to_owned(),
            ready,
            labels: None,
            last_renewal: renewed.map(|at| at.to_string()),
            agent_version: self.agent.clone(),
            last_report: self.last_report.map(|at| at.to_string()),
            objects: machine.recorded_tally().count,
            desired: self.desired,
            pending: machine.pending(),
            rejected: machine.refused().count() as u64,
            held_back: machine.held_count(),
            files_in_effect: files.map(|files| files.in_effect),
            files_not_in_effect: files.map(|files| files.not_in_effect + files.conflicts),
            confirmed_revision: machine.confirmed(),
            bytes_sent: self.sent,
            bytes_received: self.received,
            round_trip_milliseconds: machine.round_trip().map(|time| time.as_secs_f64() * 1000.0),
            counters: NodeCounters {
                hellos: counters.hellos,
                objects_sent: counters.sent,
                removals_sent: counters.removals_sent,
                objects_resent: counters.resent,
                reports: counters.reports,
                objects_reported: counters.reported,
                objects_rejected: counters.rejected,
                inventories: counters.repairs,
                foreign_session: counters.foreign_session,
                over_quota: counters.over_quota,
            },
            membership: None,
            refused_objects: None,
            held_back_objects: None,
            objects_not_in_effect: None,
        })
    }

    /// The same with the objects that it refuses and those whose removal is held back.
    pub(super) fn show_all(
        &self,
        name: &NodeName,
        lifecycle: &NodeLifecycle,
        is_registered: bool,
        desired: &DesiredOn<'_>,
    ) -> Box<ServedNode> {
        let refused = self.machine.refused().map(|(uid, refusal)| RejectedObject {
            uid: uid.to_string(),
            object: desired.get(uid).map(|wanted| (*wanted.object).clone()),
            resource_version: refusal.version.to_string(),
            reason: format!("{:?}", refusal.reason),
            message: refusal.message.clone(),
        });
        let held = self.machine.held(desired).map(|(uid, object)| WithheldObject {
            uid: uid.to_string(),
            object: object.map(|object| (*object).clone()),
        });
        let mut shown = self.show(name, lifecycle, is_registered);
        shown.refused_objects = Some(refused.collect());
        shown.held_back_objects = Some(held.collect());
        shown
    }
}

/// What a node is to hold, as its machine sees it; and what of it cannot be read now. Counts how often it looks.
pub(super) struct DesiredOn<'a>(pub(super) OnNode<'a>, pub(super) &'a [Unread], pub(super) &'a Work);

impl DesiredState for DesiredOn<'_> {
    fn get(&self, uid: &str) -> Option<Desired> {
        self.2.object();
        self.0.get(uid).map(|object| desired(&object))
    }

    fn iter(&self) -> impl Iterator<Item = (&str, ResourceVersion)> {
        self.0.iter().inspect(|_| self.2.object())
    }

    fn is_unread(&self, object: &ObjectRef) -> bool {
        self.1.iter().any(|unread| unread.may_have(object))
    }
}

/// An object of the placement, as a machine sees it.
pub(super) fn desired(object: &Placed) -> Desired {
    let Placed { version, object, resource, size, .. } = object;
    Desired { version: version.clone(), object: object.clone(), resource: resource.clone(), size: *size }
}
