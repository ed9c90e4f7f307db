//! Planned absences of nodes: what a node announced, and when it is overdue. Pure.

use std::time::Duration;

use jiff::Timestamp;

use edgesync_object::NodeName;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};
use edgesync_protocol::node::{Condition, NodeReason};
use edgesync_protocol::renewal::{CheckIn, CheckInReason};
use edgesync_protocol::timing::Now;

use super::conditions::SyncState;
use super::{DEFAULT_SECONDS, Life, Liveness, NodeLifecycle, Sync};
use crate::source::LeaseRenewal;

/// Shortest tolerance after the time of a check-in, whatever a node announces: it has to connect
/// and be welcomed.
const MIN_TOLERANCE: Duration = Duration::from_secs(60);
/// Longest tolerance; a tenth of the absence otherwise.
const MAX_TOLERANCE: Duration = Duration::from_secs(300);
/// Maximum number of Events of missed check-ins that are written at once: after an outage thousands
/// of nodes may be overdue.
const MAX_EVENT_WRITES: usize = 4;

/// A planned absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Absence {
    /// Time by which the node has announced to connect again, by the cloud's clock.
    due: Timestamp,
    /// Its cause; unknown after a restart of this process.
    reason: Option<CheckInReason>,
}

/// Absence of a node, for tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShownAbsence {
    /// Time by which the node has announced to connect again.
    pub(crate) next: Timestamp,
    /// Whether that time and its tolerance have passed.
    pub(crate) is_overdue: bool,
}

/// A node that has not connected by the time that it announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MissedCheckIn {
    pub(crate) node: NodeName,
    /// Time that the node announced.
    pub(crate) due: Timestamp,
}

/// Returns the tolerance after the time of a check-in.
fn tolerance(within: Duration) -> Duration {
    (within / 10).clamp(MIN_TOLERANCE, MAX_TOLERANCE)
}

impl Absence {
    /// Continues an absence that is stored in a Lease.
    pub(super) fn stored(due: Timestamp) -> Self {
        Self { due, reason: None }
    }

    /// Returns the text for conditions.
    fn message(&self) -> String {
        let reason = self.reason.map_or("plan", CheckInReason::as_str);
        format!("next check-in by {}, by {reason}", edgesync_object::time::rfc3339(self.due))
    }
}

impl Liveness {
    /// Returns the conditions of a node that is away as planned. Its reported conditions keep their
    /// last values.
    pub(super) fn away(&self) -> Vec<Condition> {
        let message = self.absence.as_ref().map(Absence::message).unwrap_or_default();
        let mut conditions = vec![
            Condition::new(NodeReason::CheckInPlanned, &message),
            Condition::new(NodeReason::Away, message),
        ];
        conditions.extend(self.sync.as_ref().map(Sync::published));
        conditions
    }

    /// Ends the absence of a node that has connected again. The stored Lease has its usual duration
    /// from then on.
    pub(super) fn end_absence(&mut self) {
        (self.absence, self.check_in) = (None, None);
        (self.has_left, self.has_missed) = (false, false);
        let seconds = self.seconds.unwrap_or(DEFAULT_SECONDS);
        if let Some(lease) = &mut self.lease
            && lease.next.take().is_some()
        {
            lease.seconds = seconds;
        }
    }
}

impl NodeLifecycle {
    /// Returns an announced absence within the limit.
    fn absence_limit(&self, within: u32) -> Duration {
        let within = Duration::from_secs(within.into());
        #[cfg(test)]
        if planted(Fault::AbsenceUnbounded) {
            return within;
        }
        within.min(self.max_absence)
    }

    /// Continues the absence that a stored Lease has, after a start. The node has at least the
    /// usual grace to connect, even if the wall clock has jumped.
    pub(super) fn resume_absence(&mut self, now: Now, clock: Timestamp, lease: &LeaseRenewal) {
        let Some(due) = lease.next else { return };
        #[cfg(test)]
        if planted(Fault::AbsenceForgotten) {
            return;
        }
        let term = Duration::from_secs(lease.seconds.into());
        let passed = Duration::try_from(clock.duration_since(lease.renewed)).unwrap_or_default();
        let left = term.saturating_sub(passed).min(self.max_absence + MAX_TOLERANCE);
        let Some(liveness) = self.nodes.get_mut(&lease.node) else { return };
        liveness.absence = Some(Absence::stored(due));
        if !left.is_zero() {
            liveness.life = Life::Away;
        }
        liveness.until = Some(now + left.max(Duration::from_secs(DEFAULT_SECONDS.into())));
        self.reschedule(&lease.node);
    }

    /// Handles the orderly disconnection of a node. It is a planned absence if the last renewal has
    /// announced one, in whichever order both arrive.
    pub(crate) fn left(&mut self, now: Now, clock: Timestamp, node: &NodeName) {
        if let Some(liveness) = self.nodes.get_mut(node) {
            liveness.has_left = true;
            self.begin_absence(now, clock, node);
        }
    }

    /// Returns whether a node has disconnected in order since its last Welcome.
    pub(crate) fn has_left(&self, node: &NodeName) -> bool {
        self.nodes.get(node).is_some_and(|liveness| liveness.has_left)
    }

    pub(super) fn begin_absence(&mut self, now: Now, clock: Timestamp, node: &NodeName) {
        let Some(liveness) = self.nodes.get(node) else { return };
        let has_left = liveness.has_left;
        #[cfg(test)]
        let has_left = has_left || planted(Fault::AbsentWithoutDisconnect);
        let Some(CheckIn { within, reason }) = liveness.check_in.filter(|_| has_left) else { return };
        if liveness.life != Life::Renewed {
            return;
        }
        let within = self.absence_limit(within);
        let term = within + tolerance(within);
        #[cfg(test)]
        let term = match planted(Fault::AbsenceTooShort) {
            true => Duration::from_secs(liveness.seconds.unwrap_or(DEFAULT_SECONDS).into()),
            false => term,
        };
        let due = clock.checked_add(within).unwrap_or(Timestamp::MAX);
        let name = node.clone();
        let Some(liveness) = self.nodes.get_mut(&name) else { return };
        liveness.life = Life::Away;
        liveness.absence = Some(Absence { due, reason: Some(reason) });
        liveness.until = Some(now + term);
        if let Some(lease) = &mut liveness.lease {
            lease.seconds = u32::try_from(term.as_secs()).unwrap_or(u32::MAX);
            lease.next = Some(due);
        }
        // The check-in may have been shorter than the time for which a change must last.
        if let Some(sync) = &mut liveness.sync {
            sync.publish();
        }
        self.reschedule(&name);
        self.leases.due.insert(name.clone());
        self.change(now, name);
    }

    /// Handles a change of the desired objects of a node that is away: they wait for its return.
    pub(crate) fn desired_changed(&mut self, now: Now, node: &NodeName) {
        let Some((name, liveness)) = self.nodes.get_key_value(node) else { return };
        if liveness.life != Life::Away {
            return;
        }
        let name = name.clone();
        let observed = SyncState { pending: 1, ..SyncState::default() };
        let Some(liveness) = self.nodes.get_mut(&name) else { return };
        let is_known = liveness.sync.as_ref().is_some_and(|sync| sync.observed == observed);
        if is_known {
            return;
        }
        let mut published = observed.condition();
        published.message = "changed objects wait for the check-in".to_owned();
        liveness.sync = Some(Sync { published, observed, since: now });
        self.reschedule(&name);
        self.change(now, name);
    }

    /// Returns the absence of a node: planned, or overdue.
    pub(crate) fn absence(&self, node: &NodeName) -> Option<ShownAbsence> {
        let liveness = self.nodes.get(node)?;
        let next = liveness.absence?.due;
        match liveness.life {
            Life::Away => Some(ShownAbsence { next, is_overdue: false }),
            Life::Lost => Some(ShownAbsence { next, is_overdue: true }),
            Life::Unknown | Life::Welcomed | Life::Renewed => None,
        }
    }

    /// Queues the Event of an overdue node, one for each absence.
    pub(super) fn queue_missed(&mut self, node: &NodeName) {
        let Some(liveness) = self.nodes.get_mut(node) else { return };
        if let Some(Absence { due, .. }) = liveness.absence
            && !std::mem::replace(&mut liveness.has_missed, true)
        {
            self.missed.push_back(MissedCheckIn { node: node.clone(), due });
        }
    }

    /// Returns the next overdue node, if its Event may be written now.
    /// [`NodeLifecycle::missed_written`] follows.
    pub(crate) fn next_missed(&mut self) -> Option<MissedCheckIn> {
        if self.event_writes == MAX_EVENT_WRITES {
            return None;
        }
        let missed = self.missed.pop_front()?;
        self.event_writes += 1;
        Some(missed)
    }

    /// Handles the end of a write of an Event.
    pub(crate) fn missed_written(&mut self) {
        self.event_writes = self.event_writes.saturating_sub(1);
    }
}

#[cfg(test)]
mod simulation;
