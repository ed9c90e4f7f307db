//! Applies changes of the source: updates the placement, and adds and removes nodes.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::broadcasts::QueuedChange;
use super::{Fleet, absences, replicas, rules};
use crate::source::{Change, Changes, RemovalCause, Source};
use edgesync_enrollment::membership::NodeIdentity;
use edgesync_object::NodeName;
use edgesync_placement::Summary;
use edgesync_protocol::cloud::Reached;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};

/// Number of objects compared with the list in one step.
const COMPARED: u32 = 1024;

/// The source's change stream, and the list under way.
pub(super) struct Feed<C> {
    pub(super) changes: C,
    /// During a relist: the UIDs of the objects and the names of the Nodes listed so far.
    listed: Option<HashSet<Arc<str>>>,
    /// Answered questions that wait until revisions are read.
    deferred: VecDeque<(u64, Reached)>,
}

impl<C: Changes> Feed<C> {
    pub(super) fn new(changes: C) -> Self {
        Self { changes, listed: None, deferred: VecDeque::new() }
    }

    /// Waits for the next change. Cancel-safe.
    pub(super) async fn next(&mut self) -> Change {
        self.changes.next().await
    }

    /// Records a listed object.
    fn record(&mut self, summary: &Summary) {
        if let Some(listed) = &mut self.listed {
            listed.insert(if summary.is_node() { summary.name.clone() } else { summary.uid.clone() });
        }
    }
}

impl<S: Source> Fleet<S> {
    /// Continues broadcasts and queued changes within the budget of one turn. Returns whether work
    /// is left.
    pub(super) fn deliver_changes(&mut self) -> bool {
        let end = self.reconciler.work.part();
        while !self.reconciler.work.has_reached(end) {
            let has_more = self.reconciler.deliver_next()
                || self.reconciler.reassign_next()
                || self.rollouts_settled()
                || self.apply_next();
            if !has_more {
                return false;
            }
        }
        true
    }

    /// Applies the next queued change.
    fn apply_next(&mut self) -> bool {
        let is_behind = self.rollout_loop.is_behind(&self.reconciler.desired.rollouts);
        if !is_behind && let Some((question, reached)) = self.feed.deferred.pop_front() {
            self.reconciler.broadcasts.requeue(QueuedChange::CaughtUp(question, reached));
        }
        let Some(change) = self.reconciler.broadcasts.next_change() else { return false };
        self.reconciler.work.change();
        // The revisions of a status that arrived before are assigned first. Other changes do not
        // wait for them.
        let change = match change {
            QueuedChange::CaughtUp(question, reached) if is_behind => {
                self.feed.deferred.push_back((question, reached));
                return true;
            }
            change => change,
        };
        self.apply(change);
        true
    }

    pub(super) fn changed(&mut self, change: Change) {
        match change {
            Change::ListStarted => self.reconciler.broadcasts.queue([QueuedChange::ListStarted]),
            Change::Listed(objects) => {
                self.reconciler
                    .broadcasts
                    .queue(objects.into_iter().map(|object| QueuedChange::Set(Arc::new(object))));
            }
            Change::Set(object) => self.reconciler.broadcasts.queue([QueuedChange::Set(object)]),
            Change::Deleted(object) => self.reconciler.broadcasts.queue([QueuedChange::Deleted(object)]),
            Change::Complete => self.reconciler.broadcasts.queue([QueuedChange::ListComplete]),
            Change::Relisted => self.reconciler.broadcasts.queue([QueuedChange::Relisted]),
            Change::CaughtUp { question, reached } => {
                self.reconciler.broadcasts.queue([QueuedChange::CaughtUp(question, reached)]);
            }
            Change::Unread(unread) => self.reconciler.broadcasts.queue([QueuedChange::Unread(unread)]),
            Change::Restored(until) => self.reconciler.broadcasts.queue([QueuedChange::Restored(until)]),
            Change::Removed(node) => self.removed_elsewhere(&node),
            Change::Admitted(node) => self.admitted_elsewhere(&node),
            Change::SyncsDue(node) => {
                if let Some(id) = self.reconciler.nodes.id(&node) {
                    replicas::set_syncs(&mut self.reconciler, &self.requests, id);
                }
            }
            Change::Failed(error) => tracing::error!(%error, "reading the store failed, retrying"),
        }
    }

    /// Applies a change. All nodes know the earlier ones.
    fn apply(&mut self, change: QueuedChange) {
        match change {
            QueuedChange::ListStarted if self.reconciler.is_empty() => {}
            QueuedChange::ListStarted => {
                self.feed.listed = Some(HashSet::new());
                self.reconciler.list_started();
            }
            QueuedChange::Set(object) => {
                if self.replicas.is_being_restored() {
                    self.bodies.discard(&object.uid);
                }
                self.upsert(&object);
            }
            QueuedChange::Deleted(object) => self.remove(&object),
            QueuedChange::ListComplete => self.list_completed(),
            QueuedChange::Relisted => {
                if let Some(objects) = self.rules.relisted(&mut self.reconciler) {
                    self.feed.changes.relist(objects);
                }
            }
            QueuedChange::CaughtUp(question, reached) => match self.removals.next_caught_up(question) {
                Some(name) => {
                    self.admit(&name);
                    self.reconciler.broadcasts.requeue(QueuedChange::CaughtUp(question, reached));
                }
                None => self.replicas.caught_up(&mut self.reconciler, question, reached),
            },
            QueuedChange::Unread(unread) => self.reconciler.set_unread(unread),
            QueuedChange::Restored(until) => {
                self.bodies.begin_timeline();
                self.rollout_loop.restored();
                self.replicas.restored(&mut self.reconciler, until);
            }
            QueuedChange::Shrink(id) => rules::shrink(&mut self.reconciler, id),
            QueuedChange::Missing(uid) if self.rules.has(&uid) => self.rule_deleted(&uid),
            QueuedChange::Missing(uid) => {
                let differences = self.reconciler.desired.placement.remove(&uid);
                self.reconciler.spread(differences);
            }
            QueuedChange::Compare(listed, from) => self.compare(listed, from),
            QueuedChange::MissingNode(name) => {
                let deleted = self.reconciler.nodes.identity(&name).cloned();
                self.node_deleted(&name, deleted);
            }
        }
    }

    /// Removes what the list lacks, after changes were missed.
    fn list_completed(&mut self) {
        let Some(listed) = self.feed.listed.take() else { return };
        self.reconciler.list_completed();
        #[cfg(test)]
        if planted(Fault::MissingKept) {
            return;
        }
        let nodes = self.reconciler.nodes.names().chain(self.removals.with_node());
        let nodes = nodes.filter(|name| !listed.contains(name.as_str()));
        let nodes: Vec<QueuedChange> = nodes.cloned().map(QueuedChange::MissingNode).collect();
        let rules = self.rules.uids().filter(|uid| !listed.contains(*uid));
        let rules: Vec<QueuedChange> = rules.cloned().map(QueuedChange::Missing).collect();
        self.reconciler.broadcasts.queue(nodes);
        self.reconciler.broadcasts.queue(rules);
        self.reconciler.broadcasts.queue([QueuedChange::Compare(listed, 0)]);
    }

    /// Compares a part of the objects with the list, from a number on.
    fn compare(&mut self, listed: HashSet<Arc<str>>, from: u32) {
        self.reconciler.work.objects(COMPARED as usize);
        let (absent, next) = self.reconciler.desired.placement.absent(&listed, from, COMPARED);
        self.reconciler.broadcasts.queue(absent.into_iter().map(QueuedChange::Missing));
        self.reconciler.broadcasts.queue(next.map(|next| QueuedChange::Compare(listed, next)));
    }

    fn upsert(&mut self, summary: &Arc<Summary>) {
        self.feed.record(summary);
        if summary.rule.is_some() {
            let was_known = self.rules.has(&summary.uid);
            if let Some(objects) = self.rules.set(&mut self.reconciler, summary) {
                self.feed.changes.relist(objects);
            }
            self.rule_changed(summary, was_known);
            return;
        }
        let Some(name) = summary.node_name() else {
            self.rules.object_listed();
            let differences = self.reconciler.desired.placement.upsert(summary);
            return self.reconciler.spread(differences);
        };
        let labels = summary.trusted_labels(&self.reconciler.settings.trusted_labels);
        self.reconciler.nodes.set_object(&name, identity(summary), labels.clone(), &summary.labels);
        // A Node that was recreated or restored may lack the report of its node.
        let has_report = summary.notes.as_deref().is_some_and(|notes| notes.claimed.is_some());
        self.reconciler.nodes.set_registered(&name, has_report);
        let file_rules = summary.notes.as_deref().map_or("", |notes| &notes.file_rules);
        self.reconciler.nodes.set_file_rules(&name, file_rules);
        let stay = summary.notes.as_deref().and_then(|notes| notes.stay.parse().ok());
        absences::set_stay(&mut self.reconciler, &name, stay);
        if self.removals.has(&name) {
            return self.node_of_removed(&name, &summary.uid);
        }
        self.reconciler.set_labels(&name, labels);
        if self.reconciler.is_shared {
            replicas::node_changed(&mut self.reconciler, &name, summary);
        }
    }

    fn remove(&mut self, summary: &Summary) {
        if summary.rule.is_some() {
            self.rule_deleted(&summary.uid);
        } else if let Some(name) = summary.node_name() {
            // After missed changes, a list has the new Node before the deletion of the earlier one.
            if !self.reconciler.nodes.is_replaced(&name, &summary.uid) {
                self.node_deleted(&name, Some(identity(summary)));
            }
        } else {
            let differences = self.reconciler.desired.placement.remove(&summary.uid);
            self.reconciler.spread(differences);
        }
    }

    /// Removes the node of a deleted Node from the fleet.
    fn node_deleted(&mut self, name: &NodeName, deleted: Option<NodeIdentity>) {
        self.reconciler.nodes.object_deleted(name);
        if self.removals.has(name) {
            self.removals.node_deleted(name);
        } else if self.replicas.is_being_restored() {
            replicas::node_missing(&mut self.reconciler, name);
        } else if self.reconciler.nodes.contains(name) || self.reconciler.nodes.is_registered(name) {
            tracing::warn!(node = name.as_str(), "Node was deleted, removing the node");
            self.dismiss(name, RemovalCause::NodeDeleted(deleted), None);
        } else {
            self.reconciler.remove_from_placement(name);
        }
    }
}

/// Returns which Node a summary is of.
fn identity(node: &Summary) -> NodeIdentity {
    NodeIdentity { uid: node.uid.clone(), version: node.version.clone() }
}
