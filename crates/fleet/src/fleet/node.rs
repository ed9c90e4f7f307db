//! State of one node: its machine, session, schedule and reports.

mod event_bucket;
mod progress;
mod replication;
mod schedule;
mod session;

use std::sync::Arc;

use jiff::Timestamp;

use super::assignments::{Assignment, Assignments, Effective, Named, Revision};
use crate::metrics::NodeNumbers;
use edgesync_admin::agent::{RejectedObject, WaitingForLink};
use edgesync_admin::cloud::{HeldBackObject, NodeCounters, NodeObjectCounts, NodeTraffic, ServedNode, state};
use edgesync_object::time::rfc3339;
use edgesync_object::{NodeName, ObjectRef, ResourceVersion};
use edgesync_placement::{OnNode, Placed, Unread};
use edgesync_protocol::cloud::{CloudMachine, CloudPhase, Desired, DesiredState, RecordBatch};
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};
use edgesync_protocol::metered::Waiting;
use edgesync_protocol::timing::Now;

use crate::lifecycle::{NodeLifecycle, ShownAbsence};
use crate::source::NodeEffects;
use crate::summary::{Past, Row};
use crate::work::Work;
use event_bucket::EventBucket;
pub(super) use event_bucket::EventRate;
use progress::Progress;
use replication::ReplicaState;
use schedule::Schedule;
use session::Session;

/// A node. Each part owns its state.
pub(super) struct Node {
    pub(super) name: NodeName,
    pub(super) machine: Box<CloudMachine>,
    pub(super) session: Session,
    pub(super) schedule: Schedule,
    pub(super) progress: Progress,
    pub(super) reported: Reported,
    pub(super) replicas: ReplicaState,
    pub(super) events: EventBucket,
    pub(super) shown: Shown,
}

/// State that a node has reported.
#[derive(Default)]
pub(super) struct Reported {
    /// Version of its agent.
    pub(super) agent: Option<String>,
    /// Arrival of its last report.
    pub(super) last_report: Option<Timestamp>,
    /// Its objects in effect.
    pub(super) effects: NodeEffects,
}

impl Reported {
    /// Updates the objects in effect before records of the node are stored. Objects that it no
    /// longer holds, and effects reported by another database file of it, are not in effect there.
    pub(super) fn record(&mut self, batch: &RecordBatch) {
        #[cfg(test)]
        if planted(Fault::EffectsOfAnyEpoch) {
            return;
        }
        self.effects.follow(batch.epoch);
        batch.remove.iter().for_each(|uid| self.effects.forget(uid));
        if batch.is_whole() {
            self.effects.keep(batch.put.iter().map(|(uid, _)| &**uid));
        }
    }
}

/// State of a node for pages and roll-outs.
#[derive(Default)]
pub(super) struct Shown {
    /// Samples of its last hour.
    pub(super) past: Past,
    /// Its row in the overview, as last published.
    pub(super) row: Option<Row>,
}

impl Node {
    /// Creates a node that knows this many broadcasts.
    pub(super) fn new(name: NodeName, machine: CloudMachine, broadcasts: u64) -> Self {
        Self {
            name,
            machine: Box::new(machine),
            session: Session::default(),
            schedule: Schedule::new(broadcasts),
            progress: Progress::default(),
            reported: Reported::default(),
            replicas: ReplicaState::default(),
            events: EventBucket::default(),
            shown: Shown::default(),
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
            CloudPhase::Live if !machine.waiting().is_none() => "waiting",
            CloudPhase::Live => "live",
        }
    }

    /// Returns the state, in which a node that is not connected as planned is away or overdue.
    fn state_in(&self, lifecycle: &NodeLifecycle) -> &'static str {
        match (self.state_name(), lifecycle.absence(&self.name)) {
            (state::OFFLINE, Some(ShownAbsence { is_overdue: true, .. })) => state::OVERDUE,
            (state::OFFLINE, Some(_)) => state::AWAY,
            (state, _) => state,
        }
    }

    /// Returns the state for operators, in which a node that never connected is not merely offline.
    fn shown_state(&self, lifecycle: &NodeLifecycle, is_registered: bool) -> &'static str {
        let was_here = is_registered || self.reported.agent.is_some() || self.reported.last_report.is_some();
        match self.state_in(lifecycle) {
            "offline" if !was_here && !self.session.is_connected() => state::NEVER_CONNECTED,
            state => state,
        }
    }

    /// Returns the numbers of the node for metrics.
    pub(super) fn numbers(&self, now: Now, clock: Timestamp, lifecycle: &NodeLifecycle) -> NodeNumbers {
        let age = |at: Timestamp| clock.duration_since(at).try_into().unwrap_or_default();
        let (ready, renewed) = lifecycle.show(&self.name);
        let machine = &self.machine;
        NodeNumbers {
            name: self.name.to_string(),
            state: self.state_in(lifecycle),
            overdue: lifecycle
                .absence(&self.name)
                .filter(|absence| absence.is_overdue)
                .map(|absence| age(absence.next)),
            connected: self.session.is_connected(),
            ready,
            lease_age: renewed.map(age),
            report_age: self.reported.last_report.map(age),
            lag: self.progress.lag(now),
            in_sync: machine.in_sync(),
            records: machine.recorded_tally().count,
            desired: self.progress.desired(),
            pending: machine.pending(),
            rejected: machine.refused().count() as u64,
            held_back: machine.held_count(),
            waiting_for_link: machine.waiting().all(),
            files: self.reported.effects.counts(),
            round_trip: machine.round_trip(),
            counters: machine.counters(),
        }
    }

    /// Returns the node for operators, without labels.
    pub(super) fn show(&self, lifecycle: &NodeLifecycle, is_registered: bool) -> Box<ServedNode> {
        let (ready, renewed) = lifecycle.show(&self.name);
        let machine = &self.machine;
        let counters = machine.counters();
        let files = Some(self.reported.effects.counts()).filter(|files| files.objects() > 0);
        Box::new(ServedNode {
            name: self.name.to_string(),
            state: self.shown_state(lifecycle, is_registered).to_owned(),
            ready,
            labels: None,
            last_renewal: renewed.map(rfc3339),
            agent_version: self.reported.agent.clone(),
            last_report: self.reported.last_report.map(rfc3339),
            objects: NodeObjectCounts {
                held: machine.recorded_tally().count,
                desired: self.progress.desired(),
                pending: machine.pending(),
                rejected: machine.refused().count() as u64,
                held_back: machine.held_count(),
                files_in_effect: files.map(|files| files.in_effect),
                files_not_in_effect: files.map(|files| files.not_in_effect + files.conflicts + files.waiting),
            },
            traffic: NodeTraffic {
                confirmed_revision: machine.confirmed(),
                bytes_sent: self.session.sent(),
                bytes_received: self.session.received(),
                round_trip_milliseconds: machine.round_trip().map(|time| time.as_secs_f64() * 1000.0),
            },
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
            next_check_in: lifecycle.absence(&self.name).map(|absence| rfc3339(absence.next)),
            waiting_for_link: waiting_for_link(&machine.waiting()),
        })
    }

    /// Returns the node with its rejected objects and its held-back removals.
    pub(super) fn show_all(
        &self,
        lifecycle: &NodeLifecycle,
        is_registered: bool,
        desired: &DesiredOn<'_>,
    ) -> Box<ServedNode> {
        let refused = self.machine.refused().map(|(uid, refusal)| RejectedObject {
            uid: uid.to_string(),
            object: desired.get(uid).map(|desired| (*desired.object).clone()),
            resource_version: refusal.version.to_string(),
            reason: format!("{:?}", refusal.reason),
            message: refusal.message.clone(),
        });
        let held = self.machine.held(desired).map(|(uid, object)| HeldBackObject {
            uid: uid.to_string(),
            object: object.map(|object| (*object).clone()),
        });
        let mut shown = self.show(lifecycle, is_registered);
        shown.refused_objects = Some(refused.collect());
        shown.held_back_objects = Some(held.collect());
        shown
    }
}

/// Returns the counts of objects that wait for the link; `None` if none does.
fn waiting_for_link(waiting: &Waiting) -> Option<WaitingForLink> {
    let Waiting { urgency, size, credit } = *waiting;
    (!waiting.is_none()).then_some(WaitingForLink { urgency, size, budget: credit })
}

/// Desired objects of a node for its machine: what the placement index places there, except for
/// objects that rules with a roll-out govern. Counts lookups as work.
pub(super) struct DesiredOn<'a> {
    pub(super) placed: OnNode<'a>,
    /// Scopes that cannot be read.
    pub(super) unread: &'a [Unread],
    /// Whether a list is being read after changes were missed.
    pub(super) is_listing: bool,
    /// Governing rules, and the assignment of the node; `None` if none of them selects the node.
    pub(super) governed: Option<(&'a Assignments, Option<&'a Assignment>)>,
    pub(super) work: &'a Work,
}

impl<'a> DesiredOn<'a> {
    /// Returns the revision from which an object is to be read; `None` if its newest version is
    /// desired, or none.
    pub(super) fn revision(&self, uid: &str) -> Option<&'a Arc<Revision>> {
        let (rules, assignment) = self.governed?;
        let reasons = self.placed.reasons(uid).unwrap_or_default();
        match rules.effective(assignment, uid, &reasons, Named::On(&self.placed)) {
            Effective::Version(_, revision) => Some(revision),
            Effective::Newest | Effective::Absent | Effective::Unknown => None,
        }
    }
}

impl DesiredState for DesiredOn<'_> {
    fn get(&self, uid: &str) -> Option<Desired> {
        self.work.object();
        let Some((rules, assignment)) = self.governed else {
            return self.placed.get(uid).map(|object| desired(&object));
        };
        let object = self.placed.with_reasons(uid);
        rules.desired(assignment, uid, object.as_ref().map(|(object, reasons)| (&**object, reasons)))
    }

    fn iter(&self) -> impl Iterator<Item = (&str, ResourceVersion)> {
        let placed = self.placed.iter().filter_map(|(uid, newest)| {
            self.work.object();
            let version = match self.governed {
                None => newest,
                Some((rules, assignment)) => rules.version(assignment, &self.placed, uid, newest)?,
            };
            Some((uid, version))
        });
        let pinned = self.governed.into_iter();
        let pinned = pinned.flat_map(|(rules, assignment)| rules.pinned(assignment, self.placed));
        placed.chain(pinned.inspect(|_| self.work.object()))
    }

    fn is_unread(&self, object: &ObjectRef) -> bool {
        let may_select = |id| self.placed.may_be_selected(id, object);
        let is_lost = |(rules, assignment): (&Assignments, Option<&Assignment>)| {
            assignment.is_some_and(|assignment| rules.may_be_lost(assignment, may_select))
        };
        self.is_listing
            || self.unread.iter().any(|unread| unread.may_have(object))
            || self.governed.is_some_and(is_lost)
    }
}

/// Converts a placed object for a machine.
pub(super) fn desired(object: &Placed) -> Desired {
    let Placed { version, object, resource, size, urgency, .. } = object;
    Desired {
        version: version.clone(),
        object: object.clone(),
        resource: resource.clone(),
        size: *size,
        urgency: *urgency,
        is_exact: false,
    }
}
