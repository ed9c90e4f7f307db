//! Coordination with other replicas that may serve the same nodes. Reasons:
//! `docs/decisions/0018-replicas.md`.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::broadcasts::QueuedChange;
use super::node::Node;
use super::nodes::NodeId;
use super::reconciler::Reconciler;
use super::requests::{Requests, Response};
use crate::config::ObjectSyncs;
use crate::source::{Replication, Source};
use edgesync_object::{Labels, NodeName};
use edgesync_placement::{NodeNotes, Summary};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{CloudPhase, Reached, Record};
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};
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
        #[cfg(test)]
        let question = if planted(Fault::CatchUpOutdated) { u64::MAX } else { question };
        let (_, node, token) = self.asked.pop_front_if(|(asked, ..)| *asked <= question)?;
        Some((node, token))
    }

    /// Returns whether the list of a restored copy is still incomplete.
    pub(super) fn is_being_restored(&self) -> bool {
        self.restored.is_some()
    }

    /// Queues a node that differs, or still has ObjectSyncs from earlier differences.
    fn queue_differences(&mut self, now: Now, id: NodeId, node: &mut Node) {
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

impl Replicas {
    /// Queues a machine until this replica has caught up: the source answers its question.
    pub(super) fn await_catch_up(&mut self, question: u64, id: NodeId, token: u64) {
        self.asked.push_back((question, id, token));
    }

    /// Answers one of the waiting machines. All earlier changes have reached all machines.
    pub(super) fn caught_up(&mut self, reconciler: &mut Reconciler, question: u64, reached: Reached) {
        self.restored.take_if(|until| *until <= question);
        let Some((id, token)) = self.next_answered(question) else { return };
        let now = reconciler.now();
        reconciler.work.node();
        reconciler.with_machine(id, |machine, desired| machine.caught_up(now, token, &reached, desired));
        apply_confirmation(reconciler, id);
        reconciler.broadcasts.requeue(QueuedChange::CaughtUp(question, reached));
    }

    /// Marks the source as a restored older copy, until this question is answered.
    pub(super) fn restored(&mut self, reconciler: &mut Reconciler, until: u64) {
        self.restored = Some(until);
        reconciler.broadcasts.restored();
    }
}

/// Handles a Node that is missing in a restored copy: the copy is older than the Node. The node
/// sends its report again.
pub(super) fn node_missing(reconciler: &mut Reconciler, name: &NodeName) {
    tracing::warn!(node = name.as_str(), "Node missing in the restored store, recreating it");
    reconciler.nodes.set_registered(name, false);
    reconciler.set_labels(name, Labels::new());
    let Some(id) = reconciler.nodes.id(name) else { return };
    if let Some(node) = reconciler.node(id) {
        node.machine.set_registered(false);
    }
    reconciler.restart_after_rollback(id);
}

/// Handles a Node that exists or has changed, of a node that is not removed. Every replica that may
/// serve it keeps a machine for it, which receives all changes from then on.
pub(super) fn node_changed(reconciler: &mut Reconciler, name: &NodeName, summary: &Summary) {
    let Some(NodeNotes { confirmed, silent, sync, in_effect, .. }) = summary.notes.as_deref() else {
        return;
    };
    if *silent {
        let now = reconciler.now();
        reconciler.nodes.lifecycle.found_silent(now, name);
    }
    let Some(id) = reconciler.meet(name, None) else { return };
    if let Some(node) = reconciler.nodes.get_mut(id) {
        node.replicas.observe(confirmed.clone(), *in_effect, *sync);
    }
    apply_confirmation(reconciler, id);
}

// --- confirmation of held-back removals

/// Confirms the held-back removals of a node for an operator. Returns their number; `None` if the
/// node is unknown.
pub(super) fn confirm_deletions<S: Source>(
    reconciler: &mut Reconciler,
    requests: &Requests<S>,
    name: &NodeName,
) -> Option<u64> {
    let now = reconciler.now();
    let id = reconciler.nodes.id(name)?;
    let confirmed =
        reconciler.with_machine(id, |machine, desired| machine.confirm_deletions(now, desired))?;
    tracing::info!(node = name.as_str(), confirmed, "held-back removals confirmed");
    if confirmed > 0 {
        write_confirmation(reconciler, requests, name, Some(confirmed));
    }
    Some(confirmed)
}

/// Applies an operator's confirmation, given at any replica, to the removals held back here.
fn apply_confirmation(reconciler: &mut Reconciler, id: NodeId) {
    let Some(node) = reconciler.nodes.get(id) else { return };
    let Some((incarnation, count)) = node.replicas.confirmation() else { return };
    let held = node.machine.held_count();
    if incarnation == &**reconciler.timeline.incarnation() && (1..=count).contains(&held) {
        let now = reconciler.now();
        tracing::info!(node = node.name.as_str(), held, "operator confirmed held-back removals");
        reconciler.with_machine(id, |machine, desired| machine.confirm_deletions(now, desired));
    }
}

/// Deletes a confirmation that has been carried out.
pub(super) fn end_confirmation<S: Source>(reconciler: &mut Reconciler, requests: &Requests<S>, id: NodeId) {
    if let Some(node) = reconciler.nodes.get_mut(id)
        && node.replicas.end_confirmation()
    {
        let name = node.name.clone();
        write_confirmation(reconciler, requests, &name, None);
    }
}

fn write_confirmation<S: Source>(
    reconciler: &Reconciler,
    requests: &Requests<S>,
    name: &NodeName,
    count: Option<u64>,
) {
    let (node, incarnation) = (name.clone(), reconciler.timeline.incarnation().clone());
    requests.ask_replicas(|replication| async move {
        let written = replication.confirm_deletions(&node, &incarnation, count).await;
        Response::Confirmed(node, written)
    });
}

// --- serving replica and ObjectSyncs

/// Announces this replica as the one that serves a node whose state is proven.
pub(super) fn welcomed<S: Source>(reconciler: &mut Reconciler, requests: &Requests<S>, id: NodeId) {
    let Some(replication) = requests.replication() else { return };
    let Some(node) = reconciler.nodes.get_mut(id) else { return };
    replication.set_served(&node.name, true);
    // Another replica may have left ObjectSyncs.
    node.replicas.set_has_syncs(true);
    replication.set_epoch(&node.name, node.machine.epoch());
    if replication.object_syncs() == ObjectSyncs::All {
        set_syncs(reconciler, requests, id);
    }
}

/// Sets the ObjectSyncs of a node that is live here.
pub(super) fn set_syncs<S: Source>(reconciler: &mut Reconciler, requests: &Requests<S>, id: NodeId) {
    let Some(replication) = requests.replication() else { return };
    let Reconciler { nodes, desired, work, .. } = reconciler;
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

impl Replicas {
    /// Queues a node that differs, or has ObjectSyncs from earlier differences, in the mode that
    /// writes differences only.
    pub(super) fn watch_differences<S: Source>(
        &mut self,
        reconciler: &mut Reconciler,
        requests: &Requests<S>,
        id: NodeId,
    ) {
        let mode = requests.replication().map(Replication::object_syncs);
        if mode != Some(ObjectSyncs::Differences) {
            return;
        }
        let now = reconciler.now();
        if let Some(node) = reconciler.nodes.get_mut(id) {
            self.queue_differences(now, id, node);
        }
    }

    /// Writes the differences that are due, within the budget of one turn.
    pub(super) fn write_differences<S: Source>(
        &mut self,
        reconciler: &mut Reconciler,
        requests: &Requests<S>,
    ) {
        let (now, end) = (reconciler.now(), reconciler.work.part());
        while !reconciler.work.has_reached(end)
            && let Some(id) = self.next_differing(now)
        {
            if let Some(node) = reconciler.nodes.get_mut(id) {
                node.replicas.unqueue();
                set_syncs(reconciler, requests, id);
            }
        }
    }
}
