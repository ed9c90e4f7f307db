//! Liveness of nodes: their Leases, and the conditions of their Nodes derived from them. Pure:
//! takes the time as input, and returns batches of Lease renewals and Node changes.
//!
//! Liveness depends on the arrival of a renewal by the cloud's monotonic clock, because the clock
//! of a node may be wrong. After a start, every known node has the duration of its Lease to renew
//! it.
//!
//! When the Lease of a node expires, all its conditions become Unknown, including those that it has
//! reported itself, as in Kubernetes' node lifecycle controller: the last report of a full disk is
//! stale. Reported conditions are kept in memory and restored when the node renews. After a restart
//! of this process they are lost, and the node's report is requested
//! ([`NodeLifecycle::wants_report`]).
//!
//! A node that announced its absence and disconnected in order is away: it is judged by the term
//! that it announced, and overdue afterwards.
//!
//! A write contains the current conditions, not the changes: one that failed or raced with another
//! is simply repeated.

mod absence;
mod conditions;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use absence::Absence;
pub(crate) use absence::{MissedCheckIn, ShownAbsence};
pub use conditions::Counts;
use conditions::SyncCondition;
pub(super) use conditions::SyncState;
use edgesync_object::NodeName;
use edgesync_protocol::node::Condition;
use edgesync_protocol::renewal::CheckIn;
use edgesync_protocol::renewal::Lease;
use edgesync_protocol::timing::{Now, earlier};

use super::source::{LeaseRenewal, NodeChange, Registered};

/// Assumed duration of a Lease, in seconds, for a node that has not sent one.
const DEFAULT_SECONDS: u32 = 40;
/// Maximum duration of a Lease, in seconds: a day.
const MAX_SECONDS: u32 = 86_400;
/// Longest absence that a node may announce, unless configured.
const DEFAULT_ABSENCE: Duration = Duration::from_secs(86_400);
/// Time for which a change of sync state must last before it is published.
const STEADY: Duration = Duration::from_secs(10);
/// Debounce time for changes of conditions.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Delay before a failed write is retried.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum number of deadlines processed per step: thousands of nodes may expire at once.
const MAX_DEADLINES: usize = 1000;
/// Maximum number of Leases, and of Nodes, in one transaction.
const BATCH: usize = 2000;

/// Leases and conditions of all nodes; see the module.
#[derive(Debug)]
pub(super) struct NodeLifecycle {
    nodes: HashMap<NodeName, Liveness>,
    /// Deadlines: a Lease expires, or a sync state becomes steady.
    deadlines: BTreeSet<(Now, NodeName)>,
    leases: Batches,
    changes: Batches,
    flush: Duration,
    /// Longest absence that a node may announce.
    max_absence: Duration,
    /// Overdue nodes whose Event waits to be written.
    missed: VecDeque<MissedCheckIn>,
    /// Number of Events that are being written.
    event_writes: usize,
    /// Whether other replicas may serve the same nodes. If so, nodes not connected here are not
    /// judged.
    is_shared: bool,
}

/// Pending writes of one kind, one in flight at a time.
#[derive(Debug, Default)]
struct Batches {
    due: BTreeSet<NodeName>,
    /// Earliest time of the next write.
    at: Now,
    in_flight: BTreeSet<NodeName>,
}

/// Liveness of a node.
#[derive(Debug, Default)]
struct Liveness {
    lease: Option<LeaseRenewal>,
    /// Duration of the Lease while the node is connected, in seconds.
    seconds: Option<u32>,
    /// Absence announced by the last renewal.
    check_in: Option<CheckIn>,
    /// Whether the node has disconnected in order since its last Welcome.
    has_left: bool,
    /// The planned absence of a node that is away or overdue.
    absence: Option<Absence>,
    /// Whether it was overdue since its last Welcome.
    has_missed: bool,
    /// Arrival of the last renewal, by the cloud's clock.
    arrived: Option<Timestamp>,
    life: Life,
    /// Expiry of its life without a renewal.
    until: Option<Now>,
    sync: Option<Sync>,
    /// Conditions reported since this process started.
    reported: Option<Arc<[Condition]>>,
    /// Whether its reported conditions may be Unknown in the store although it is alive.
    restore: bool,
    /// Its deadline, as entered in the table.
    deadline: Option<Now>,
}

/// Stage of a node's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Life {
    /// No sign of life since the start.
    #[default]
    Unknown,
    /// Welcomed, but without a renewal yet.
    Welcomed,
    /// Has renewed its Lease, which is valid: the node is ready.
    Renewed,
    /// Its Lease has expired.
    Lost,
    /// Not connected as planned, until the announced time.
    Away,
}

/// Sync state of a node, as published and as observed.
#[derive(Debug)]
struct Sync {
    published: SyncCondition,
    observed: SyncState,
    /// Time since which the observed state differs from the published one.
    since: Now,
}

impl NodeLifecycle {
    /// Starts with the stored state; `flush` is the interval of Lease writes.
    pub(super) fn new(now: Now, clock: Timestamp, known: &Registered, flush: Duration) -> Self {
        let mut lifecycle = Self {
            nodes: HashMap::new(),
            deadlines: BTreeSet::new(),
            leases: Batches { at: now + flush, ..Batches::default() },
            changes: Batches::default(),
            flush,
            max_absence: DEFAULT_ABSENCE,
            missed: VecDeque::new(),
            event_writes: 0,
            is_shared: false,
        };
        for node in &known.nodes {
            lifecycle.nodes.insert(node.clone(), Liveness::default());
        }
        for lease in &known.leases {
            let liveness = lifecycle.nodes.entry(lease.node.clone()).or_default();
            liveness.arrived = Some(lease.renewed);
            // If it expired before the start, the store has the node's reported conditions as
            // Unknown.
            let good = jiff::SignedDuration::from_secs(lease.seconds.into());
            liveness.restore = clock.duration_since(lease.renewed) > good;
            liveness.seconds = lease.next.is_none().then_some(lease.seconds);
            liveness.lease = Some(lease.clone());
        }
        let names: Vec<NodeName> = lifecycle.nodes.keys().cloned().collect();
        for name in &names {
            lifecycle.extend(now, name);
        }
        for lease in &known.leases {
            lifecycle.resume_absence(now, clock, lease);
        }
        lifecycle
    }

    /// Creates the lifecycle of one of several replicas, without stored state: it does not judge
    /// nodes that are not connected here.
    pub(super) fn of_replica(now: Now, clock: Timestamp, flush: Duration) -> Self {
        Self { is_shared: true, ..Self::new(now, clock, &Registered::default(), flush) }
    }

    /// Changes the interval of Lease writes.
    pub(super) fn set_flush(&mut self, now: Now, flush: Duration) {
        self.flush = flush;
        self.leases.at = self.leases.at.min(now + flush);
    }

    /// Changes the longest absence that a node may announce, for those that follow.
    pub(super) fn set_max_absence(&mut self, max_absence: Duration) {
        self.max_absence = max_absence;
    }

    /// Handles a renewal. If the node's clock deviates by more than the duration of the Lease, the
    /// cloud's time replaces it: readers compare the Lease with the cloud's clock.
    pub(super) fn renewed(&mut self, now: Now, clock: Timestamp, node: &NodeName, lease: &Lease) {
        let name = node.clone();
        let liveness = self.nodes.entry(name.clone()).or_default();
        let seconds = lease.seconds.clamp(1, MAX_SECONDS);
        let acquired = timestamp(lease.acquired);
        let renewed = timestamp(lease.renewed);
        let off = clock.duration_since(renewed).abs() > jiff::SignedDuration::from_secs(seconds.into());
        let transitions = match &liveness.lease {
            Some(last) => last.transitions.saturating_add(u32::from(last.acquired != acquired)),
            None => 0,
        };
        liveness.lease = Some(LeaseRenewal {
            node: node.clone(),
            seconds,
            acquired,
            renewed: if off { clock } else { renewed },
            transitions,
            next: None,
        });
        liveness.seconds = Some(seconds);
        liveness.check_in = lease.check_in;
        liveness.absence = None;
        liveness.arrived = Some(clock);
        let before = std::mem::replace(&mut liveness.life, Life::Renewed);
        liveness.restore |= before == Life::Lost;
        self.extend(now, &name);
        self.leases.due.insert(name.clone());
        if before != Life::Renewed {
            self.change(now, name.clone());
        }
        self.begin_absence(now, clock, &name);
    }

    /// Handles a renewal with the terms of the last one. Returns `false` if they are not known.
    pub(super) fn renewed_again(&mut self, now: Now, clock: Timestamp, node: &NodeName) -> bool {
        let Some(liveness) = self.nodes.get(node) else { return false };
        let (Some(lease), Some(seconds)) = (&liveness.lease, liveness.seconds) else { return false };
        let again = Lease {
            session: String::new(),
            seconds,
            acquired: lease.acquired.as_microsecond(),
            renewed: clock.as_microsecond(),
            check_in: None,
        };
        self.renewed(now, clock, node, &again);
        true
    }

    /// Handles the welcome of a node.
    pub(super) fn welcomed(&mut self, now: Now, node: &NodeName) {
        let name = node.clone();
        let liveness = self.nodes.entry(name.clone()).or_default();
        let was_away = liveness.life == Life::Away;
        liveness.end_absence();
        if was_away {
            // It has been ready all the time; its next renewal is due as after any other.
            liveness.life = Life::Renewed;
            self.extend(now, &name);
            self.leases.due.insert(name.clone());
            return self.change(now, name);
        }
        if liveness.life != Life::Renewed {
            liveness.restore |= liveness.life == Life::Lost;
            liveness.life = Life::Welcomed;
            self.extend(now, &name);
            self.change(now, name);
        }
    }

    /// Updates the sync state of a node. A change is published once it is steady. Of changed
    /// numbers only that of held-back removals is published, because an operator confirms it.
    pub(super) fn in_sync(&mut self, now: Now, node: &NodeName, state: SyncState) {
        let Some((name, liveness)) = self.nodes.get_key_value(node) else { return };
        if !matches!(liveness.life, Life::Welcomed | Life::Renewed) {
            return;
        }
        let name = name.clone();
        let Some(liveness) = self.nodes.get_mut(&name) else { return };
        let Some(sync) = &mut liveness.sync else {
            liveness.sync = Some(Sync { published: state.condition(), observed: state, since: now });
            return self.change(now, name);
        };
        let (published, before, after) = (&sync.published, sync.observed.condition(), state.condition());
        // A status that stays False while its reason changes counts as steady.
        let same_status = after.status() == before.status() && after.status() != published.status();
        let is_same = before.reason == after.reason && before.held == after.held;
        let continues = before.differs_from(published) && (is_same || same_status);
        if !continues {
            sync.since = now;
        }
        sync.observed = state;
        self.reschedule(&name);
    }

    /// Handles a stored report of a node, with its conditions.
    pub(super) fn reported(&mut self, now: Now, node: &NodeName, conditions: &[Condition]) {
        let name = node.clone();
        let liveness = self.nodes.entry(name.clone()).or_default();
        liveness.reported = Some(conditions.into());
        liveness.restore = false;
        // A write of conditions in flight may overtake the report: it is repeated.
        if self.changes.in_flight.contains(&name) || liveness.life == Life::Lost {
            liveness.restore = true;
            self.change(now, name);
        }
    }

    /// Returns whether the node's report is needed: its reported conditions may be Unknown in the
    /// store, and are not known here.
    pub(super) fn wants_report(&self, node: &NodeName) -> bool {
        let unknown = |liveness: &Liveness| liveness.restore || liveness.life == Life::Lost;
        self.nodes.get(node).is_some_and(|liveness| liveness.reported.is_none() && unknown(liveness))
    }

    /// Handles another process's verdict that a node is silent. If the node renews its Lease here,
    /// its conditions are written again.
    pub(super) fn found_silent(&mut self, now: Now, node: &NodeName) {
        let lives = self.nodes.get(node).is_some_and(|liveness| liveness.life == Life::Renewed);
        if lives {
            let name = node.clone();
            self.change(now, name);
        }
    }

    pub(super) fn forget(&mut self, node: &NodeName) {
        if let Some((name, liveness)) = self.nodes.remove_entry(node) {
            if let Some(at) = liveness.deadline {
                self.deadlines.remove(&(at, name.clone()));
            }
            self.leases.due.remove(&name);
            self.changes.due.remove(&name);
        }
    }

    /// Returns whether a write for the node is in flight.
    pub(super) fn is_writing(&self, node: &NodeName) -> bool {
        self.leases.in_flight.contains(node) || self.changes.in_flight.contains(node)
    }

    /// Returns whether a write of Leases is in flight.
    pub(super) fn is_writing_leases(&self) -> bool {
        !self.leases.in_flight.is_empty()
    }

    /// Returns the Leases to write, if they are due. [`NodeLifecycle::leases_written`] follows.
    pub(super) fn leases_due(&mut self, now: Now) -> Vec<LeaseRenewal> {
        let names = self.leases.take(now);
        names.iter().filter_map(|name| self.nodes.get(name)?.lease.clone()).collect()
    }

    /// Returns all unwritten Leases at once, for the shutdown.
    pub(super) fn leases_left(&mut self) -> Vec<LeaseRenewal> {
        self.leases.in_flight.append(&mut self.leases.due);
        let names = self.leases.in_flight.iter();
        names.filter_map(|name| self.nodes.get(name)?.lease.clone()).collect()
    }

    /// Handles the end of a write of Leases; `stored` is its success.
    pub(super) fn leases_written(&mut self, now: Now, stored: bool) {
        self.leases.written(stored, now + self.flush);
        self.leases.due.retain(|name| self.nodes.contains_key(name));
    }

    /// Returns the conditions to write, if they are due. [`NodeLifecycle::changes_written`]
    /// follows.
    pub(super) fn changes_due(&mut self, now: Now) -> Vec<NodeChange> {
        self.tick(now);
        let names = self.changes.take(now);
        let change = |name: &NodeName| {
            let liveness = self.nodes.get(name)?;
            Some(NodeChange { node: name.clone(), report: None, conditions: liveness.conditions() })
        };
        let changes = names.iter().filter_map(change).collect();
        for name in &names {
            if let Some(liveness) = self.nodes.get_mut(name)
                && liveness.reported.is_some()
                && liveness.life != Life::Lost
            {
                liveness.restore = false;
            }
        }
        changes
    }

    /// Handles the end of a write of conditions; `stored` is its success.
    pub(super) fn changes_written(&mut self, now: Now, stored: bool) {
        if !stored {
            for name in &self.changes.in_flight {
                if let Some(liveness) = self.nodes.get_mut(name) {
                    liveness.restore |= liveness.reported.is_some();
                }
            }
        }
        self.changes.written(stored, if stored { self.changes.at } else { now + RETRY });
        self.changes.due.retain(|name| self.nodes.contains_key(name));
    }

    /// Returns the next deadline.
    pub(super) fn deadline(&self) -> Option<Now> {
        let next = self.deadlines.first().map(|(at, _)| *at);
        earlier(next, earlier(self.leases.next(), self.changes.next()))
    }

    /// Returns the readiness of a node, if known, and the arrival of its last renewal.
    pub(super) fn show(&self, node: &NodeName) -> (Option<bool>, Option<Timestamp>) {
        let Some(liveness) = self.nodes.get(node) else { return (None, None) };
        let ready = match liveness.life {
            Life::Renewed | Life::Away => Some(true),
            Life::Lost => Some(false),
            Life::Unknown | Life::Welcomed => None,
        };
        (ready, liveness.arrived)
    }

    fn change(&mut self, now: Now, name: NodeName) {
        if self.changes.due.is_empty() {
            self.changes.at = self.changes.at.max(now + DEBOUNCE);
        }
        self.changes.due.insert(name);
    }

    /// Extends the life of a node by the duration of its Lease.
    fn extend(&mut self, now: Now, name: &NodeName) {
        if let Some(liveness) = self.nodes.get_mut(name) {
            let seconds = liveness.seconds.unwrap_or(DEFAULT_SECONDS);
            liveness.until = Some(now + Duration::from_secs(seconds.into()));
            self.reschedule(name);
        }
    }

    fn reschedule(&mut self, name: &NodeName) {
        let Some(liveness) = self.nodes.get_mut(name) else { return };
        let steady = liveness.sync.as_ref().and_then(Sync::due);
        let deadline = earlier(liveness.until, steady);
        if deadline != liveness.deadline {
            if let Some(old) = liveness.deadline {
                self.deadlines.remove(&(old, name.clone()));
            }
            self.deadlines.extend(deadline.map(|at| (at, name.clone())));
            liveness.deadline = deadline;
        }
    }

    /// Processes passed deadlines, at most [`MAX_DEADLINES`] of them.
    fn tick(&mut self, now: Now) {
        for _ in 0..MAX_DEADLINES {
            if self.deadlines.first().is_none_or(|(at, _)| *at > now) {
                return;
            }
            let Some((_, name)) = self.deadlines.pop_first() else { return };
            let Some(liveness) = self.nodes.get_mut(&name) else { continue };
            liveness.deadline = None;
            let mut changed = false;
            if liveness.until.is_some_and(|until| until <= now) {
                if self.is_shared {
                    // It may be alive at another replica. The watcher of all Leases detects if it
                    // is not.
                    self.forget(&name);
                    continue;
                }
                liveness.until = None;
                liveness.life = Life::Lost;
                liveness.sync = None;
                changed = true;
            }
            if let Some(sync) = &mut liveness.sync
                && sync.due().is_some_and(|due| due <= now)
            {
                sync.publish();
                changed = true;
            }
            if liveness.life == Life::Lost {
                self.queue_missed(&name);
            }
            self.reschedule(&name);
            if changed {
                self.change(now, name);
            }
        }
    }
}

impl Sync {
    /// Publishes the observed state.
    fn publish(&mut self) {
        self.published = self.observed.condition();
    }

    /// Returns the published condition.
    fn published(&self) -> Condition {
        let SyncCondition { reason, message, .. } = &self.published;
        Condition::new(*reason, message)
    }

    /// Returns when the observed state is published.
    fn due(&self) -> Option<Now> {
        self.observed.condition().differs_from(&self.published).then(|| self.since + STEADY)
    }
}

impl Batches {
    /// Returns the names to write, if no write is in flight and one is due.
    fn take(&mut self, now: Now) -> BTreeSet<NodeName> {
        if !self.in_flight.is_empty() || now < self.at {
            return BTreeSet::new();
        }
        let rest = match self.due.iter().nth(BATCH).cloned() {
            Some(first_left) => self.due.split_off(&first_left),
            None => BTreeSet::new(),
        };
        self.in_flight = std::mem::replace(&mut self.due, rest);
        self.in_flight.clone()
    }

    /// Handles the end of a write. The rest waits until `at`, unless the batch was full.
    fn written(&mut self, stored: bool, at: Now) {
        let full = self.in_flight.len() >= BATCH;
        let written = std::mem::take(&mut self.in_flight);
        if !stored {
            self.due.extend(written);
        }
        if !stored || !full {
            self.at = at;
        }
    }

    /// Returns when the next write is due.
    fn next(&self) -> Option<Now> {
        (self.in_flight.is_empty() && !self.due.is_empty()).then_some(self.at)
    }
}

/// Clamps a node's timestamp to the range of Kubernetes timestamps.
fn timestamp(micros: i64) -> Timestamp {
    let micros = micros.clamp(0, Timestamp::MAX.as_microsecond());
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
