//! Which nodes live: their Leases, and the conditions of their Nodes that follow from them. Pure:
//! the time comes in, changes of Leases and Nodes come out in batches.
//!
//! What counts is when a renewal arrives, by the cloud's own clock that never jumps: the clock of a
//! node may be wrong. After a start every node that is known has the time of its Lease to show
//! itself.
//!
//! When the Lease of a node runs out, all its conditions become Unknown, those that it has reported
//! itself too, as Kubernetes' node lifecycle controller has it: a full disk of which nobody has
//! heard for hours is not known to be full. What the node has reported is kept in memory and set
//! again when it renews. After a start nothing is kept: then the node is asked for its report
//! ([`NodeLifecycle::wants_report`]).
//!
//! Conditions are written as they are when it is time to, not as they have changed: a write that
//! failed, or that passed another one, is simply made again.

mod conditions;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

pub use conditions::Counts;
use conditions::{Told, View};
use edgesync_object::NodeName;
use edgesync_protocol::node::Condition;
use edgesync_protocol::timing::{Now, earlier};
use edgesync_protocol::upload::Lease;

use super::source::{LeaseRenewal, NodeChange, Registered};

/// How long a node is given that has not said how long its Lease is good.
const DEFAULT_SECONDS: u32 = 40;
/// The longest Lease, in seconds: a day.
const MAX_SECONDS: u32 = 86_400;
/// How long a node is in or out of sync before that is told.
const STEADY: Duration = Duration::from_secs(10);
/// How long a change of conditions waits for others.
const GATHER: Duration = Duration::from_millis(100);
/// How long a write that failed is not tried again.
const RETRY: Duration = Duration::from_secs(1);
/// The most nodes that are looked at at a time: those of which thousands fall silent at once are
/// looked at in parts.
const LOOKS: usize = 1000;
/// The most Leases, and the most Nodes, in one transaction.
const BATCH: usize = 2000;

/// See the module.
#[derive(Debug)]
pub(super) struct NodeLifecycle {
    nodes: HashMap<NodeName, Vital>,
    /// When a node is to be looked at again: its Lease runs out, or it has been in its state of
    /// sync for long enough.
    deadlines: BTreeSet<(Now, NodeName)>,
    leases: Batches,
    changes: Batches,
    flush: Duration,
    /// Other replicas may serve the same nodes: of those that are not connected here nothing is
    /// said.
    is_shared: bool,
}

/// What is to be written of one sort, one write at a time.
#[derive(Debug, Default)]
struct Batches {
    due: BTreeSet<NodeName>,
    /// Nothing is written before.
    at: Now,
    under_way: BTreeSet<NodeName>,
}

/// A node.
#[derive(Debug, Default)]
struct Vital {
    lease: Option<LeaseRenewal>,
    /// When the last renewal arrived, by the cloud's clock.
    arrived: Option<Timestamp>,
    life: Life,
    /// When its life is over unless it renews.
    until: Option<Now>,
    sync: Option<Sync>,
    /// The conditions that it has reported since this process runs.
    reported: Option<Arc<[Condition]>>,
    /// Its own conditions may be Unknown in the store although it lives.
    restore: bool,
    /// When it is to be looked at, as entered in the table.
    deadline: Option<Now>,
}

/// Whether a node lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Life {
    /// Nothing has been heard of it since the start.
    #[default]
    Unheard,
    /// It has been welcomed, and has not renewed yet.
    Welcomed,
    /// It renews its Lease.
    Renewed,
    /// Its Lease has run out.
    Lost,
}

/// Whether a node is in sync: as it is, and as it was told.
#[derive(Debug)]
struct Sync {
    told: Told,
    seen: View,
    /// Since when it is other than it was told.
    since: Now,
}

impl NodeLifecycle {
    /// Begins with what is stored; `flush` is how often Leases are written.
    pub(super) fn new(now: Now, clock: Timestamp, known: &Registered, flush: Duration) -> Self {
        let mut lifecycle = Self {
            nodes: HashMap::new(),
            deadlines: BTreeSet::new(),
            leases: Batches { at: now + flush, ..Batches::default() },
            changes: Batches::default(),
            flush,
            is_shared: false,
        };
        for node in &known.nodes {
            lifecycle.nodes.insert(node.clone(), Vital::default());
        }
        for lease in &known.leases {
            let vital = lifecycle.nodes.entry(lease.node.clone()).or_default();
            vital.arrived = Some(lease.renewed);
            // It may have run out before the start: then the store has the node's own conditions as
            // Unknown.
            let good = jiff::SignedDuration::from_secs(lease.seconds.into());
            vital.restore = clock.duration_since(lease.renewed) > good;
            vital.lease = Some(lease.clone());
        }
        let names: Vec<NodeName> = lifecycle.nodes.keys().cloned().collect();
        for name in &names {
            lifecycle.extend(now, name);
        }
        lifecycle
    }

    /// One of several replicas: it says nothing of nodes that are not connected here, whatever is
    /// stored of them.
    pub(super) fn of_replica(now: Now, clock: Timestamp, flush: Duration) -> Self {
        Self { is_shared: true, ..Self::new(now, clock, &Registered::default(), flush) }
    }

    /// How often Leases are written from now on.
    pub(super) fn set_flush(&mut self, now: Now, flush: Duration) {
        self.flush = flush;
        self.leases.at = self.leases.at.min(now + flush);
    }

    /// A renewal has arrived. A node whose clock is wrong by more than its Lease is long gets the
    /// time of the cloud: what reads the Lease compares it with the cloud's clock.
    pub(super) fn renewed(&mut self, now: Now, clock: Timestamp, node: &NodeName, lease: &Lease) {
        let name = node.clone();
        let vital = self.nodes.entry(name.clone()).or_default();
        let seconds = lease.seconds.clamp(1, MAX_SECONDS);
        let acquired = timestamp(lease.acquired);
        let renewed = timestamp(lease.renewed);
        let off = clock.duration_since(renewed).abs() > jiff::SignedDuration::from_secs(seconds.into());
        let transitions = match &vital.lease {
            Some(last) => last.transitions.saturating_add(u32::from(last.acquired != acquired)),
            None => 0,
        };
        vital.lease = Some(LeaseRenewal {
            node: node.clone(),
            seconds,
            acquired,
            renewed: if off { clock } else { renewed },
            transitions,
        });
        vital.arrived = Some(clock);
        let before = std::mem::replace(&mut vital.life, Life::Renewed);
        vital.restore |= before == Life::Lost;
        self.extend(now, &name);
        self.leases.due.insert(name.clone());
        if before != Life::Renewed {
            self.change(now, name);
        }
    }

    /// A node has been welcomed.
    pub(super) fn welcomed(&mut self, now: Now, node: &NodeName) {
        let name = node.clone();
        let vital = self.nodes.entry(name.clone()).or_default();
        if vital.life != Life::Renewed {
            vital.restore |= vital.life == Life::Lost;
            vital.life = Life::Welcomed;
            self.extend(now, &name);
            self.change(now, name);
        }
    }

    /// Whether a node is in sync, and if not, what is missing. A change is told once it has lasted
    /// for a while; of changing numbers only that of the removals that are held back, which an
    /// operator confirms.
    pub(super) fn in_sync(
        &mut self,
        now: Now,
        node: &NodeName,
        in_sync: bool,
        pending: u64,
        rejected: u64,
        held: u64,
    ) {
        let Some((name, vital)) = self.nodes.get_key_value(node) else { return };
        if !matches!(vital.life, Life::Welcomed | Life::Renewed) {
            return;
        }
        let view = View { in_sync, pending, rejected, held };
        let name = name.clone();
        let Some(vital) = self.nodes.get_mut(&name) else { return };
        let Some(sync) = &mut vital.sync else {
            vital.sync = Some(Sync { told: view.told(), seen: view, since: now });
            return self.change(now, name);
        };
        let (told, before, after) = (&sync.told, sync.seen.told(), view.told());
        // False for one reason and then for another is False all the time.
        let same_status = after.status == before.status && after.status != told.status;
        let is_same = before.reason == after.reason && before.held == after.held;
        let goes_on = before.differs_from(told) && (is_same || same_status);
        if !goes_on {
            sync.since = now;
        }
        sync.seen = view;
        self.reschedule(&name);
    }

    /// The report of a node has been stored, with these conditions.
    pub(super) fn reported(&mut self, now: Now, node: &NodeName, conditions: &[Condition]) {
        let name = node.clone();
        let vital = self.nodes.entry(name.clone()).or_default();
        vital.reported = Some(conditions.into());
        vital.restore = false;
        // A write of conditions that is under way may pass the report: it is made again after it.
        if self.changes.under_way.contains(&name) || vital.life == Life::Lost {
            vital.restore = true;
            self.change(now, name);
        }
    }

    /// Whether a node is to be asked for its report: its own conditions may be Unknown in the
    /// store, and what it reported before is not known here.
    pub(super) fn wants_report(&self, node: &NodeName) -> bool {
        let unknown = |vital: &Vital| vital.restore || vital.life == Life::Lost;
        self.nodes.get(node).is_some_and(|vital| vital.reported.is_none() && unknown(vital))
    }

    /// Somebody else has noted that a node has fallen silent. One that renews its Lease here lives:
    /// that is written again.
    pub(super) fn found_silent(&mut self, now: Now, node: &NodeName) {
        let lives = self.nodes.get(node).is_some_and(|vital| vital.life == Life::Renewed);
        if lives {
            let name = node.clone();
            self.change(now, name);
        }
    }

    /// A node has been removed.
    pub(super) fn forget(&mut self, node: &NodeName) {
        if let Some((name, vital)) = self.nodes.remove_entry(node) {
            if let Some(at) = vital.deadline {
                self.deadlines.remove(&(at, name.clone()));
            }
            self.leases.due.remove(&name);
            self.changes.due.remove(&name);
        }
    }

    /// Whether a write about a node is under way.
    pub(super) fn is_writing(&self, node: &NodeName) -> bool {
        self.leases.under_way.contains(node) || self.changes.under_way.contains(node)
    }

    /// Whether a write of Leases is under way.
    pub(super) fn is_writing_leases(&self) -> bool {
        !self.leases.under_way.is_empty()
    }

    /// Leases to be written now, if it is time to. [`NodeLifecycle::leases_written`] is to follow.
    pub(super) fn leases_due(&mut self, now: Now) -> Vec<LeaseRenewal> {
        let names = self.leases.take(now);
        names.iter().filter_map(|name| self.nodes.get(name)?.lease.clone()).collect()
    }

    /// All Leases that are not written yet, whatever the time: for the end.
    pub(super) fn leases_left(&mut self) -> Vec<LeaseRenewal> {
        self.leases.under_way.append(&mut self.leases.due);
        let names = self.leases.under_way.iter();
        names.filter_map(|name| self.nodes.get(name)?.lease.clone()).collect()
    }

    /// The Leases are written, or could not be.
    pub(super) fn leases_written(&mut self, now: Now, stored: bool) {
        self.leases.written(stored, now + self.flush);
        self.leases.due.retain(|name| self.nodes.contains_key(name));
    }

    /// Conditions to be written now. [`NodeLifecycle::changes_written`] is to follow.
    pub(super) fn changes_due(&mut self, now: Now) -> Vec<NodeChange> {
        self.tick(now);
        let names = self.changes.take(now);
        let change = |name: &NodeName| {
            let vital = self.nodes.get(name)?;
            Some(NodeChange { node: name.clone(), report: None, conditions: vital.conditions() })
        };
        let changes = names.iter().filter_map(change).collect();
        for name in &names {
            if let Some(vital) = self.nodes.get_mut(name)
                && vital.reported.is_some()
                && vital.life != Life::Lost
            {
                vital.restore = false;
            }
        }
        changes
    }

    /// The conditions are written, or could not be.
    pub(super) fn changes_written(&mut self, now: Now, stored: bool) {
        if !stored {
            for name in &self.changes.under_way {
                if let Some(vital) = self.nodes.get_mut(name) {
                    vital.restore |= vital.reported.is_some();
                }
            }
        }
        self.changes.written(stored, if stored { self.changes.at } else { now + RETRY });
        self.changes.due.retain(|name| self.nodes.contains_key(name));
    }

    /// When to ask again.
    pub(super) fn deadline(&self) -> Option<Now> {
        let looks = self.deadlines.first().map(|(at, _)| *at);
        earlier(looks, earlier(self.leases.next(), self.changes.next()))
    }

    /// Whether a node is ready, if that is known, and when its last renewal came.
    pub(super) fn show(&self, node: &NodeName) -> (Option<bool>, Option<Timestamp>) {
        let Some(vital) = self.nodes.get(node) else { return (None, None) };
        let ready = match vital.life {
            Life::Renewed => Some(true),
            Life::Lost => Some(false),
            Life::Unheard | Life::Welcomed => None,
        };
        (ready, vital.arrived)
    }

    fn change(&mut self, now: Now, name: NodeName) {
        if self.changes.due.is_empty() {
            self.changes.at = self.changes.at.max(now + GATHER);
        }
        self.changes.due.insert(name);
    }

    /// A sign of life: the node has the time of its Lease from now.
    fn extend(&mut self, now: Now, name: &NodeName) {
        if let Some(vital) = self.nodes.get_mut(name) {
            let seconds = vital.lease.as_ref().map_or(DEFAULT_SECONDS, |lease| lease.seconds);
            vital.until = Some(now + Duration::from_secs(seconds.into()));
            self.reschedule(name);
        }
    }

    fn reschedule(&mut self, name: &NodeName) {
        let Some(vital) = self.nodes.get_mut(name) else { return };
        let steady = vital.sync.as_ref().and_then(Sync::due);
        let wanted = earlier(vital.until, steady);
        if wanted != vital.deadline {
            if let Some(old) = vital.deadline {
                self.deadlines.remove(&(old, name.clone()));
            }
            self.deadlines.extend(wanted.map(|at| (at, name.clone())));
            vital.deadline = wanted;
        }
    }

    /// Looks at the nodes whose time has come, at most [`LOOKS`] of them.
    fn tick(&mut self, now: Now) {
        for _ in 0..LOOKS {
            if self.deadlines.first().is_none_or(|(at, _)| *at > now) {
                return;
            }
            let Some((_, name)) = self.deadlines.pop_first() else { return };
            let Some(vital) = self.nodes.get_mut(&name) else { continue };
            vital.deadline = None;
            let mut changed = false;
            if vital.until.is_some_and(|until| until <= now) {
                if self.is_shared {
                    // It may live at another replica. Who looks after all Leases says if it does
                    // not.
                    self.forget(&name);
                    continue;
                }
                vital.until = None;
                vital.life = Life::Lost;
                vital.sync = None;
                changed = true;
            }
            if let Some(sync) = &mut vital.sync
                && sync.due().is_some_and(|due| due <= now)
            {
                sync.told = sync.seen.told();
                changed = true;
            }
            self.reschedule(&name);
            if changed {
                self.change(now, name);
            }
        }
    }
}

impl Sync {
    /// When what is seen is to be told.
    fn due(&self) -> Option<Now> {
        self.seen.told().differs_from(&self.told).then(|| self.since + STEADY)
    }
}

impl Batches {
    /// What is to be written now, if nothing is under way and it is time to.
    fn take(&mut self, now: Now) -> BTreeSet<NodeName> {
        if !self.under_way.is_empty() || now < self.at {
            return BTreeSet::new();
        }
        let rest = match self.due.iter().nth(BATCH).cloned() {
            Some(first_left) => self.due.split_off(&first_left),
            None => BTreeSet::new(),
        };
        self.under_way = std::mem::replace(&mut self.due, rest);
        self.under_way.clone()
    }

    /// The write has ended. What is left is not written before `at`, if there was not more than
    /// fits one write.
    fn written(&mut self, stored: bool, at: Now) {
        let full = self.under_way.len() >= BATCH;
        let written = std::mem::take(&mut self.under_way);
        if !stored {
            self.due.extend(written);
        }
        if !stored || !full {
            self.at = at;
        }
    }

    /// When something is to be written.
    fn next(&self) -> Option<Now> {
        (self.under_way.is_empty() && !self.due.is_empty()).then_some(self.at)
    }
}

/// A time that objects can have: what a node says is not trusted to be one.
fn timestamp(micros: i64) -> Timestamp {
    let micros = micros.clamp(0, Timestamp::MAX.as_microsecond());
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
