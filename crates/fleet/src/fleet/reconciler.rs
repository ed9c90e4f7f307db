//! The nodes' machines and the objects that they reconcile with. Every input of a machine passes
//! through here: a machine first receives all broadcasts, then the input, and gets its turn
//! afterwards.
//!
//! No I/O: the loop performs the effects of the machines.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;

use super::assignments::{Assignment, Assignments, RuleIndex};
use super::broadcasts::Broadcasts;
use super::ledger_loader::LedgerLoader;
use super::node::{DesiredOn, Node, desired};
use super::nodes::{NodeId, Nodes};
use super::settings::Settings;
use super::timeline::Timeline;
use crate::lifecycle::SyncState;
use crate::source::{NodeEffects, NodeFacts};
use crate::work::Work;
use edgesync_object::{Labels, NodeName};
use edgesync_placement::{Delta, Placement, Summary, Unread};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{CloudEffect, CloudMachine, CloudPhase, Desired, DesiredState as _, Records};
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};
use edgesync_protocol::timing::Now;

/// Machines, desired objects and broadcasts; see the module.
pub(super) struct Reconciler {
    pub(super) nodes: Nodes,
    pub(super) desired: DesiredObjects,
    pub(super) broadcasts: Broadcasts,
    pub(super) ledgers: LedgerLoader,
    pub(super) timeline: Timeline,
    pub(super) settings: Settings,
    pub(super) work: Work,
    /// Whether other replicas may serve the same nodes.
    pub(super) is_shared: bool,
    /// Nodes whose connection has ended, not yet released by the rest of the fleet.
    left: Vec<NodeName>,
    /// The source of jitter.
    pub(super) random: fn() -> u64,
    /// The wall clock of roll-outs.
    pub(super) clock: fn() -> Timestamp,
    origin: Instant,
}

/// The desired objects of all nodes.
pub(super) struct DesiredObjects {
    pub(super) placement: Placement,
    /// Revisions of rules with a roll-out.
    pub(super) rollouts: Assignments,
    /// Scopes that cannot be read now.
    unread: Vec<Unread>,
    /// Whether a list is being read after changes were missed: until its end some objects and Nodes
    /// are newer than the others, and what only looks undesired must not be removed.
    pub(super) is_listing: bool,
}

impl DesiredObjects {
    /// Returns the desired objects of a node, as far as they can be read.
    pub(super) fn on<'a>(&'a self, name: &NodeName, work: &'a Work) -> DesiredOn<'a> {
        let Self { placement, rollouts, unread, is_listing } = self;
        let placed = placement.on(name);
        let assignment = rollouts.of(name).map(|it| &**it);
        let is_governed =
            assignment.is_some() || !rollouts.is_empty() && placed.rules().any(|rule| rollouts.governs(rule));
        let governed = is_governed.then_some((rollouts, assignment));
        DesiredOn { placed, unread, is_listing: *is_listing, governed, work }
    }

    /// Returns the revisions that a node is to be assigned now. `labels` are those that others have
    /// assigned to it.
    fn target(&mut self, name: &NodeName, labels: &Labels) -> Option<Arc<Assignment>> {
        let Self { placement, rollouts, .. } = self;
        rollouts.target(name, labels, placement.on(name).rules())
    }

    /// Returns the number of objects desired on a node.
    fn count(&mut self, name: &NodeName, work: &Work) -> u64 {
        let on_node = self.on(name, work);
        match on_node.governed.is_some() {
            true => on_node.count() as u64,
            false => self.placement.count(name) as u64,
        }
    }
}

impl Reconciler {
    pub(super) fn new(
        nodes: Nodes,
        placement: Placement,
        timeline: Timeline,
        settings: Settings,
        is_shared: bool,
    ) -> Self {
        Self {
            nodes,
            desired: DesiredObjects {
                placement,
                rollouts: Assignments::default(),
                unread: Vec::new(),
                is_listing: false,
            },
            broadcasts: Broadcasts::default(),
            ledgers: LedgerLoader::default(),
            timeline,
            settings,
            work: Work::default(),
            is_shared,
            left: Vec::new(),
            random: edgesync_runtime::random,
            clock: Timestamp::now,
            origin: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Now {
        self.origin.elapsed()
    }

    /// Converts a time of [`Reconciler::now`] to an instant.
    pub(super) fn instant(&self, at: Now) -> Instant {
        self.origin + at
    }

    /// Returns whether neither Nodes nor objects are known.
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.names().len() == 0 && self.desired.placement.is_empty()
    }

    // --- one node

    /// Returns a node for an input to its machine, after the broadcasts it lacks.
    pub(super) fn node(&mut self, id: NodeId) -> Option<&mut Node> {
        self.inform(id);
        self.nodes.get_mut(id)
    }

    /// Returns the desired objects of a node.
    pub(super) fn desired_on(&self, name: &NodeName) -> DesiredOn<'_> {
        self.desired.on(name, &self.work)
    }

    /// Runs an action on the machine of a node, and schedules its turn.
    pub(super) fn with_machine<T>(
        &mut self,
        id: NodeId,
        act: impl FnOnce(&mut CloudMachine, &DesiredOn<'_>) -> T,
    ) -> Option<T> {
        #[cfg(test)]
        if planted(Fault::InputBeforeBroadcasts) {
            return self.with_uninformed(id, act);
        }
        self.inform(id);
        self.with_uninformed(id, act)
    }

    fn with_uninformed<T>(
        &mut self,
        id: NodeId,
        act: impl FnOnce(&mut CloudMachine, &DesiredOn<'_>) -> T,
    ) -> Option<T> {
        let node = self.nodes.get_mut(id)?;
        let result = act(&mut node.machine, &self.desired.on(&node.name, &self.work));
        self.nodes.touch(id);
        Some(result)
    }

    /// Returns the next effect of a node's machine, if any. The outer `None`: no such node.
    pub(super) fn next_effect(&mut self, id: NodeId) -> Option<Option<CloudEffect>> {
        let node = self.nodes.get_mut(id)?;
        Some(node.machine.poll_effect(&self.desired.on(&node.name, &self.work)))
    }

    /// Adds a node that may never have reported; `facts` is its stored state. Returns `None` if the
    /// limit of nodes is reached.
    pub(super) fn meet(&mut self, name: &NodeName, facts: Option<NodeFacts>) -> Option<NodeId> {
        if let Some(id) = self.nodes.id(name) {
            self.inform(id);
            return Some(id);
        }
        if self.nodes.is_full() {
            return None;
        }
        let labels = self.nodes.labels(name).cloned().unwrap_or_default();
        self.desired.placement.add_node(name, labels);
        let ledger = facts.as_ref().map(|facts| facts.ledger.clone()).unwrap_or_default();
        let records = if self.is_shared { Records::Proven } else { Records::Stored(ledger) };
        let (incarnation, issued) = (self.timeline.incarnation().clone(), self.timeline.issued().clone());
        let mut machine = CloudMachine::new(self.settings.machine.clone(), incarnation, issued, records);
        machine.set_registered(self.nodes.has_report(name));
        let mut node = Node::new(name.clone(), machine, self.broadcasts.count());
        let assignment = self.desired.target(name, self.nodes.assigned_labels(name));
        self.desired.rollouts.set(name, assignment);
        node.progress.set_desired(self.desired.count(name, &self.work));
        self.work.objects(self.desired.placement.on(name).direct_count());
        if let Some(facts) = facts {
            node.reported.agent = facts.agent_version;
            node.reported.last_report = Some(facts.last_seen);
        }
        self.nodes.insert(node)
    }

    /// Ends the session of a node whose connection has ended.
    pub(super) fn disconnected(&mut self, name: &NodeName) {
        if let Some(id) = self.nodes.id(name)
            && let Some(node) = self.nodes.get_mut(id)
        {
            node.session.disconnected();
            node.machine.disconnected();
            if self.is_shared {
                node.replicas.set_has_syncs(false);
                // Another replica receives its reports from now on.
                node.reported.effects = NodeEffects::default();
            }
            self.nodes.touch(id);
        }
        if self.is_shared {
            // The replica that serves it maintains its Lease. A node that has left in order is
            // remembered for its term: its planned absence is still to be written.
            if !self.nodes.lifecycle.has_left(name) {
                self.nodes.lifecycle.forget(name);
            }
        }
        self.left.push(name.clone());
    }

    /// Returns the nodes whose connection has ended since the last call.
    pub(super) fn take_left(&mut self) -> Vec<NodeName> {
        std::mem::take(&mut self.left)
    }

    /// Removes a node with all its state.
    pub(super) fn remove(&mut self, name: &NodeName) -> Option<Node> {
        let node = self.nodes.remove(name);
        if let Some(node) = &node {
            self.ledgers.count(node.progress.different(), 0);
        }
        self.remove_from_placement(name);
        self.desired.rollouts.set(name, None);
        node
    }

    /// Discards the proof of a node's state: it belongs to a timeline of the source that is lost.
    pub(super) fn restart_after_rollback(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.machine.restart_after_rollback();
            self.nodes.touch(id);
        }
    }

    /// Compares a node again after more can be read: it may hold objects that are not desired, kept
    /// because they could not be read.
    pub(super) fn recheck(&mut self, id: NodeId) {
        let now = self.now();
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.machine.reads_more(now, &self.desired.on(&node.name, &self.work));
        self.nodes.touch(id);
    }

    /// Records the differences and the deadline of a machine after its turn. Returns whether the
    /// node is in sync.
    pub(super) fn end_turn(&mut self, id: NodeId) -> bool {
        let now = self.now();
        self.nodes.schedule(id);
        let Some(node) = self.nodes.get_mut(id) else { return false };
        let differences = node.machine.differences();
        let before = node.progress.set_different(differences);
        self.ledgers.count(before, differences);
        let machine = &node.machine;
        node.progress.set_lags(machine.phase() != CloudPhase::Offline && !machine.is_settled(), now);
        if machine.phase() != CloudPhase::Live {
            return false;
        }
        let (in_sync, rejected) = (machine.in_sync(), machine.refused().count() as u64);
        let (pending, held, waiting) = (machine.pending(), machine.held_count(), machine.waiting().all());
        let state = match in_sync {
            true => SyncState { in_sync, ..SyncState::default() },
            false => SyncState { in_sync, pending, rejected, held, waiting },
        };
        let name = node.name.clone();
        self.nodes.lifecycle.in_sync(now, &name, state);
        in_sync
    }

    // --- desired objects

    /// Sets the labels by which rules select a node.
    pub(super) fn set_labels(&mut self, name: &NodeName, labels: Labels) {
        let deltas = self.desired.placement.set_node(name, labels);
        #[cfg(test)]
        if planted(Fault::WaveKept) && deltas.is_empty() {
            return;
        }
        self.place(deltas);
        self.reassign_at_once(name);
    }

    /// Removes the node from the selection of all rules.
    pub(super) fn remove_from_placement(&mut self, name: &NodeName) {
        let deltas = self.desired.placement.remove_node(name);
        self.place(deltas);
        self.reassign_at_once(name);
    }

    /// Applies changes of the desired objects to the machines.
    pub(super) fn place(&mut self, deltas: Vec<Delta>) {
        let now = self.now();
        for delta in deltas {
            let Some(id) = self.nodes.id(&delta.node) else { continue };
            self.inform(id);
            let (Some(uid), Some(node)) = (delta.uid(), self.nodes.get_mut(id)) else { continue };
            let on_node = self.desired.on(&delta.node, &self.work);
            let [before, after] = both(&on_node, &self.desired.rollouts, uid, &delta);
            match (&before, &after) {
                (None, Some(_)) => node.progress.gain(),
                (Some(_), None) => node.progress.lose(),
                (None, None) => continue,
                (Some(one), Some(other)) if is_same(one, other) => continue,
                (Some(_), Some(_)) => {}
            }
            if self.ledgers.is_full() {
                node.machine.fall_behind();
            }
            node.machine.desire(now, uid, before.as_ref(), &on_node);
            self.nodes.touch(id);
            self.nodes.lifecycle.desired_changed(now, &delta.node);
        }
    }

    // --- roll-outs

    /// Assigns its revisions to the next queued node, and the desired objects that differ.
    /// Returns whether there was one.
    pub(super) fn reassign_next(&mut self) -> bool {
        let Some(name) = self.desired.rollouts.next_queued() else { return false };
        self.work.node();
        self.reassign(&name);
        true
    }

    /// Assigns its revisions to a node that other rules select now. Its machine gets no turn
    /// before: under the old assignment an object of another roll-out would look like a removed
    /// one.
    fn reassign_at_once(&mut self, name: &NodeName) {
        if !self.desired.rollouts.is_empty() {
            self.reassign(name);
        }
    }

    /// Handles the end of the queue of assignments. Returns the rules that have become active.
    pub(super) fn settle_rollouts(&mut self) -> Vec<RuleIndex> {
        if self.desired.rollouts.is_empty() {
            return Vec::new();
        }
        let active = self.desired.rollouts.settle();
        if self.desired.rollouts.is_empty() {
            self.desired.placement.set_reports_reasons(false);
        }
        active
    }

    fn reassign(&mut self, name: &NodeName) {
        let now = self.now();
        let Some(id) = self.nodes.id(name) else { return self.desired.rollouts.set(name, None) };
        self.inform(id);
        let before = self.desired.rollouts.of(name).cloned();
        let after = self.desired.target(name, self.nodes.assigned_labels(name));
        let is_same_assignment = match (&before, &after) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            (before, after) => before.is_none() && after.is_none(),
        };
        if is_same_assignment {
            return;
        }
        let DesiredObjects { placement, rollouts, .. } = &self.desired;
        let objects = |rule| {
            let objects = placement.objects_of(rule).map(|object| object.uid.clone());
            objects.collect::<Vec<_>>()
        };
        let all = || placement.on(name).iter().map(|(uid, _)| Uid::from(uid)).collect::<Vec<Uid>>();
        let exists = |uid: &Uid| placement.object(uid).is_some();
        let uids = rollouts.candidates(before.as_ref(), after.as_ref(), objects, all, exists);
        let on_node = self.desired.on(name, &self.work);
        let old: Vec<_> = uids.into_iter().map(|uid| (on_node.get(&uid), uid)).collect();
        let had_lost = before.as_ref().is_some_and(|before| before.has_lost());
        self.desired.rollouts.set(name, after);
        let Some(node) = self.nodes.get_mut(id) else { return };
        let on_node = self.desired.on(name, &self.work);
        if self.ledgers.is_full() {
            node.machine.fall_behind();
        }
        for (before, uid) in old {
            match (&before, &on_node.get(&uid)) {
                (None, None) => continue,
                (None, Some(_)) => node.progress.gain(),
                (Some(_), None) => node.progress.lose(),
                (Some(one), Some(other)) if is_same(one, other) => continue,
                (Some(_), Some(_)) => {}
            }
            node.machine.desire(now, &uid, before.as_ref(), &on_node);
        }
        if had_lost {
            node.machine.reads_more(now, &on_node);
        }
        self.nodes.touch(id);
        self.nodes.lifecycle.desired_changed(now, name);
    }

    /// Replaces the scopes that cannot be read.
    /// Returns whether objects of one of these kinds may exist that the source does not report.
    pub(super) fn may_have_unread(&self, api_version: &str, kinds: &[&str]) -> bool {
        let has = |unread: &Unread| kinds.iter().any(|kind| unread.may_have_kind(api_version, kind));
        self.desired.unread.iter().any(has)
    }

    pub(super) fn set_unread(&mut self, unread: Vec<Unread>) {
        for unread in unread.iter().filter(|unread| !self.desired.unread.contains(unread)) {
            tracing::warn!(%unread, "objects unreadable, nodes keep those that they hold");
        }
        let before = std::mem::replace(&mut self.desired.unread, unread);
        if before.iter().any(|before| !self.desired.unread.contains(before)) {
            self.broadcasts.reads_more();
        }
    }

    /// Records that a list is being read after changes were missed.
    pub(super) fn list_started(&mut self) {
        self.desired.is_listing = true;
    }

    /// Lets nodes remove what is undesired by the list that was read.
    pub(super) fn list_completed(&mut self) {
        self.desired.is_listing = false;
        self.broadcasts.reads_more();
    }

    /// Returns whether other rules would select a Node if all labels that the node claims for
    /// itself were trusted.
    pub(super) fn claims_more(&self, summary: &Summary) -> bool {
        let mut all = summary.labels.clone();
        all.extend(summary.claimed().map(|(key, value)| (key.clone(), value.clone())));
        let trusted = summary.trusted_labels(&self.settings.trusted_labels);
        summary.node_name().is_some_and(|name| self.desired.placement.distinguishes(&name, &all, &trusted))
    }
}

/// Returns the desired object of a UID before and after a difference of the placement index, under
/// the same assignment.
fn both(on_node: &DesiredOn<'_>, rollouts: &Assignments, uid: &Uid, delta: &Delta) -> [Option<Desired>; 2] {
    let Delta { before, after, reasons, .. } = delta;
    // A rule with a roll-out may have selected the node until now.
    let has_governed = || reasons.iter().flat_map(|it| &it.rules).any(|rule| rollouts.governs(*rule));
    let assignment = match on_node.governed {
        Some((_, assignment)) => assignment,
        None if has_governed() => None,
        None => return [before, after].map(|object| object.as_deref().map(desired)),
    };
    let [reasons_before, reasons_after] = reasons;
    [(before, reasons_before), (after, reasons_after)].map(|(object, reasons)| {
        rollouts.desired(assignment, uid, object.as_deref().map(|object| (object, reasons)))
    })
}

/// Returns whether two desired objects of a UID are the same for a machine.
fn is_same(one: &Desired, other: &Desired) -> bool {
    (&one.version, one.is_exact) == (&other.version, other.is_exact)
}
