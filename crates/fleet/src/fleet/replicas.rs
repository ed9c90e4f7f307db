//! Coordination with other replicas that may serve the same nodes. Reasons:
//! `docs/decisions/0018-replicas.md`.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::Fleet;
use super::broadcasts::Waiting;
use super::nodes::NodeId;
use super::reconciler::Reconciler;
use super::requests::Inbox;
use crate::config::ObjectSyncs;
use crate::node::Node;
use crate::source::{Changes as _, Replication, Result, Source};
use edgesync_object::{Labels, NodeName, ResourceVersion};
use edgesync_placement::{NodeNotes, Summary};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{CloudPhase, Record};
use edgesync_protocol::timing::Now;

/// Time for which a difference may last without an ObjectSync, in the mode that writes differences
/// only.
const SETTLE: Duration = Duration::from_secs(5);

/// State shared with other replicas; see the module.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    /// Machines that wait until this replica has caught up, in order of their questions: the
    /// question, the node, the machine's token.
    asked: VecDeque<(u64, NodeId, u64)>,
    /// Set while the source is a restored older copy: its list is complete when this question is
    /// answered.
    restored: Option<u64>,
    /// Nodes whose differences become ObjectSyncs, and when.
    differing: BTreeSet<(Now, NodeId)>,
}

impl Replicas {
    /// Returns the next machine that this answer serves.
    fn next_answered(&mut self, question: u64) -> Option<(NodeId, u64)> {
        let (_, node, token) = self.asked.pop_front_if(|(asked, ..)| *asked <= question)?;
        Some((node, token))
    }

    /// Returns whether the list of a restored copy is still incomplete.
    pub(super) fn is_being_restored(&self) -> bool {
        self.restored.is_some()
    }

    /// Queues a node that differs, or still has ObjectSyncs from earlier differences.
    fn watch_differences(&mut self, now: Now, id: NodeId, node: &mut Node) {
        let is_due = node.progress.different() > 0 || node.replicas.has_syncs();
        if is_due && node.replicas.queue() {
            self.differing.insert((now + SETTLE, id));
        }
    }

    /// Returns the next node whose differences become ObjectSyncs.
    fn next_differing(&mut self, now: Now) -> Option<NodeId> {
        self.differing.first().filter(|(at, _)| *at <= now)?;
        self.differing.pop_first().map(|(_, id)| id)
    }

    /// Returns when the next differences are due.
    pub(super) fn deadline(&self) -> Option<Now> {
        self.differing.first().map(|(at, _)| *at)
    }
}

impl<S: Source> Fleet<S> {
    pub(super) fn ask_to_catch_up(&mut self, id: NodeId, token: u64) {
        let question = self.feed.changes.catch_up();
        self.replicas.asked.push_back((question, id, token));
    }

    /// Answers one of the waiting machines. All earlier changes have reached all machines.
    pub(super) fn caught_up(&mut self, question: u64, reached: ResourceVersion) {
        self.replicas.restored.take_if(|until| *until <= question);
        let Some((id, token)) = self.replicas.next_answered(question) else { return };
        let now = self.reconciler.now();
        self.reconciler.work.node();
        self.reconciler.with_machine(id, |machine, desired| machine.caught_up(now, token, &reached, desired));
        self.look_for_confirmation(id);
        self.reconciler.broadcasts.go_on_with(Waiting::CaughtUp(question, reached));
    }

    /// Marks the source as a restored older copy, until this question is answered.
    pub(super) fn restored(&mut self, until: u64) {
        self.replicas.restored = Some(until);
        self.reconciler.broadcasts.restored();
    }

    /// Handles a Node that is missing in a restored copy: the copy is older than the Node. The node
    /// sends its report again.
    pub(super) fn node_lost(&mut self, name: &NodeName) {
        tracing::warn!(node = name.as_str(), "Node missing in the restored store, recreating it");
        self.reconciler.nodes.set_registered(name, false);
        self.reconciler.set_labels(name, Labels::new());
        let Some(id) = self.reconciler.nodes.id(name) else { return };
        if let Some(node) = self.reconciler.node(id) {
            node.machine.set_registered(false);
        }
        self.reconciler.prove_anew(id);
    }

    /// Handles a Node that exists or has changed. Every replica that may serve it keeps a machine
    /// for it, which receives all changes from then on.
    pub(super) fn node_told(&mut self, name: &NodeName, summary: &Summary) {
        let Some(NodeNotes { claimed, confirmed, silent, in_sync, in_effect }) = summary.notes.as_deref()
        else {
            return;
        };
        if *silent {
            let now = self.reconciler.now();
            self.reconciler.nodes.lifecycle.found_silent(now, name);
        }
        if claimed.is_some() {
            self.reconciler.nodes.set_registered(name, true);
        }
        let Some(id) = self.meet(name) else { return };
        if let Some(node) = self.reconciler.nodes.get_mut(id) {
            node.replicas.observe(confirmed.clone(), *in_effect, *in_sync);
        }
        self.look_for_confirmation(id);
    }

    /// Confirms the held-back removals of a node for an operator. Returns their number; `None` if
    /// the node is unknown.
    pub(super) fn confirm_deletions(&mut self, name: &NodeName) -> Option<u64> {
        let now = self.reconciler.now();
        let id = self.reconciler.nodes.id(name)?;
        let confirmed =
            self.reconciler.with_machine(id, |machine, desired| machine.confirm_deletions(now, desired))?;
        tracing::info!(node = name.as_str(), confirmed, "held-back removals confirmed");
        if confirmed > 0 {
            self.write_confirmation(name, Some(confirmed));
        }
        Some(confirmed)
    }

    /// Applies an operator's confirmation, given at any replica, to the removals held back here.
    fn look_for_confirmation(&mut self, id: NodeId) {
        let Some(node) = self.reconciler.nodes.get(id) else { return };
        let Some((incarnation, count)) = node.replicas.confirmation() else { return };
        let held = node.machine.held_count();
        if incarnation == &**self.reconciler.timeline.incarnation() && (1..=count).contains(&held) {
            let now = self.reconciler.now();
            tracing::info!(node = node.name.as_str(), held, "operator confirmed held-back removals");
            self.reconciler.with_machine(id, |machine, desired| machine.confirm_deletions(now, desired));
        }
    }

    /// Deletes a confirmation that has been carried out.
    pub(super) fn end_confirmation(&mut self, id: NodeId) {
        if let Some(node) = self.reconciler.nodes.get_mut(id)
            && node.replicas.end_confirmation()
        {
            let name = node.name.clone();
            self.write_confirmation(&name, None);
        }
    }

    fn write_confirmation(&self, name: &NodeName, count: Option<u64>) {
        let (node, incarnation) = (name.clone(), self.reconciler.timeline.incarnation().clone());
        self.requests.ask_replicas(|replication| async move {
            let written = replication.confirm_deletions(&node, &incarnation, count).await;
            Inbox::Confirmed(node, written)
        });
    }

    pub(super) fn confirmation_written(&mut self, node: &NodeName, written: &Result<()>) {
        if let Err(error) = written {
            tracing::error!(node = node.as_str(), %error, "publishing confirmed removals to other replicas failed");
        }
    }
}

// --- serving replica and ObjectSyncs

impl<S: Source> Fleet<S> {
    /// Announces this replica as the one that serves a node whose state is proven.
    pub(super) fn welcomed_here(&mut self, id: NodeId) {
        let Some(replication) = self.requests.replication() else { return };
        let Some(node) = self.reconciler.nodes.get_mut(id) else { return };
        replication.set_served(&node.name, true);
        // Another replica may have left ObjectSyncs.
        node.replicas.set_has_syncs(true);
        replication.set_epoch(&node.name, node.machine.epoch());
        if replication.object_syncs() == ObjectSyncs::All {
            self.tell_syncs(id);
        }
    }

    /// Sets the ObjectSyncs of a node that is live here.
    pub(super) fn tell_syncs(&mut self, id: NodeId) {
        let Some(replication) = self.requests.replication() else { return };
        let Reconciler { nodes, desired, work, .. } = &mut self.reconciler;
        let Some(node) = nodes.get_mut(id) else { return };
        if node.machine.phase() != CloudPhase::Live {
            return;
        }
        let held: Vec<(Uid, Record)> = match replication.object_syncs() {
            ObjectSyncs::All => node.machine.held_by_node(&desired.on(&node.name, work)).collect(),
            ObjectSyncs::Differences => {
                let outdated = node.machine.outdated_on_node();
                outdated.map(|(uid, record)| (uid.clone(), record.clone())).collect()
            }
            ObjectSyncs::Off => return,
        };
        work.objects(held.len());
        node.replicas.set_has_syncs(!held.is_empty());
        replication.set_syncs(&node.name, held);
    }

    /// Releases nodes whose connection has ended: drops their loads of bodies, and announces that
    /// this replica no longer serves them.
    pub(super) fn release(&mut self) {
        for name in self.reconciler.take_left() {
            if let Some(id) = self.reconciler.nodes.id(&name) {
                self.bodies.forget(id);
            }
            if let Some(replication) = self.requests.replication() {
                replication.set_served(&name, false);
            }
        }
    }

    /// Queues a node that differs, or has ObjectSyncs from earlier differences, in the mode that
    /// writes differences only.
    pub(super) fn watch_differences(&mut self, id: NodeId) {
        let mode = self.requests.replication().map(Replication::object_syncs);
        if mode != Some(ObjectSyncs::Differences) {
            return;
        }
        let now = self.reconciler.now();
        if let Some(node) = self.reconciler.nodes.get_mut(id) {
            self.replicas.watch_differences(now, id, node);
        }
    }

    /// Writes the differences that are due, within the budget of one turn.
    pub(super) fn tell_differences(&mut self, now: Now) {
        let end = self.reconciler.work.part();
        while !self.reconciler.work.has_reached(end)
            && let Some(id) = self.replicas.next_differing(now)
        {
            if let Some(node) = self.reconciler.nodes.get_mut(id) {
                node.replicas.unqueue();
                self.tell_syncs(id);
            }
        }
    }
}
