//! Applies changes of the source: updates the placement, and adds and removes nodes.

use std::collections::HashSet;
use std::sync::Arc;

use super::broadcasts::Waiting;
use super::{Fleet, rules};
use crate::source::{Change, Changes, Source};
use edgesync_object::NodeName;
use edgesync_placement::Summary;

/// Number of objects compared with the list in one step.
const COMPARED: u32 = 1024;

/// The source's change stream, and the list under way.
pub(super) struct Feed<C> {
    pub(super) changes: C,
    /// During a relist: the UIDs of the objects and the names of the Nodes listed so far.
    told: Option<HashSet<Arc<str>>>,
}

impl<C: Changes> Feed<C> {
    pub(super) fn new(changes: C) -> Self {
        Self { changes, told: None }
    }

    /// Waits for the next change. Cancel-safe.
    pub(super) async fn next(&mut self) -> Change {
        self.changes.next().await
    }

    fn note(&mut self, summary: &Summary) {
        if let Some(told) = &mut self.told {
            told.insert(if summary.is_node() { summary.name.clone() } else { summary.uid.clone() });
        }
    }
}

impl<S: Source> Fleet<S> {
    /// Continues broadcasts and queued changes within the budget of one turn. Returns whether work
    /// is left.
    pub(super) fn spread_news(&mut self) -> bool {
        let end = self.reconciler.work.part();
        while !self.reconciler.work.has_reached(end) {
            if !self.reconciler.spread_next() && !self.change_next() {
                return false;
            }
        }
        true
    }

    /// Applies the next queued change.
    fn change_next(&mut self) -> bool {
        let Some(change) = self.reconciler.broadcasts.next_change() else { return false };
        self.reconciler.work.change();
        self.take_in(change);
        true
    }

    pub(super) fn changed(&mut self, change: Change) {
        match change {
            Change::Begun => self.reconciler.broadcasts.wait([Waiting::Begun]),
            Change::Listed(objects) => {
                self.reconciler
                    .broadcasts
                    .wait(objects.into_iter().map(|object| Waiting::Set(Arc::new(object))));
            }
            Change::Set(object) => self.reconciler.broadcasts.wait([Waiting::Set(object)]),
            Change::Gone(object) => self.reconciler.broadcasts.wait([Waiting::Gone(object)]),
            Change::Complete => self.reconciler.broadcasts.wait([Waiting::Complete]),
            Change::Again => self.reconciler.broadcasts.wait([Waiting::Again]),
            Change::CaughtUp { question, reached } => {
                self.reconciler.broadcasts.wait([Waiting::CaughtUp(question, reached)]);
            }
            Change::Unread(unread) => self.reconciler.broadcasts.wait([Waiting::Unread(unread)]),
            Change::Restored(until) => self.reconciler.broadcasts.wait([Waiting::Restored(until)]),
            Change::Admitted(node) => self.admitted_elsewhere(&node),
            Change::SyncsDue(node) => {
                if let Some(id) = self.reconciler.nodes.id(&node) {
                    self.tell_syncs(id);
                }
            }
            Change::Failed(error) => tracing::error!(%error, "reading the store failed, retrying"),
        }
    }

    /// Applies a change. All nodes know the earlier ones.
    fn take_in(&mut self, change: Waiting) {
        match change {
            Waiting::Begun if self.reconciler.is_empty() => {}
            Waiting::Begun => self.feed.told = Some(HashSet::new()),
            Waiting::Set(object) => self.upsert(&object),
            Waiting::Gone(object) => self.remove(&object),
            Waiting::Complete => self.all_told(),
            Waiting::Again => {
                if self.rules.told_again(&mut self.reconciler) {
                    self.feed.changes.again();
                }
            }
            Waiting::CaughtUp(question, reached) => self.caught_up(question, reached),
            Waiting::Unread(unread) => self.reconciler.set_unread(unread),
            Waiting::Restored(until) => self.restored(until),
            Waiting::Shrink(id) => rules::shrink(&mut self.reconciler, id),
            Waiting::Missing(uid) if self.rules.has(&uid) => self.rules.drop(&mut self.reconciler, &uid),
            Waiting::Missing(uid) => {
                let differences = self.reconciler.desired.placement.remove(&uid);
                self.reconciler.spread(differences);
            }
            Waiting::Compare(told, from) => self.compare(told, from),
            Waiting::MissingNode(name) => self.node_deleted(&name),
        }
    }

    /// Removes what the list lacks, after changes were missed.
    fn all_told(&mut self) {
        let Some(told) = self.feed.told.take() else { return };
        let nodes = self.reconciler.nodes.names().filter(|name| !told.contains(name.as_str()));
        let nodes: Vec<Waiting> = nodes.cloned().map(Waiting::MissingNode).collect();
        let rules = self.rules.uids().filter(|uid| !told.contains(*uid));
        let rules: Vec<Waiting> = rules.cloned().map(Waiting::Missing).collect();
        self.reconciler.broadcasts.wait(nodes);
        self.reconciler.broadcasts.wait(rules);
        self.reconciler.broadcasts.wait([Waiting::Compare(told, 0)]);
    }

    /// Compares a part of the objects with the list, from a number on.
    fn compare(&mut self, told: HashSet<Arc<str>>, from: u32) {
        self.reconciler.work.objects(COMPARED as usize);
        let (absent, next) = self.reconciler.desired.placement.absent(&told, from, COMPARED);
        self.reconciler.broadcasts.wait(absent.into_iter().map(Waiting::Missing));
        self.reconciler.broadcasts.wait(next.map(|next| Waiting::Compare(told, next)));
    }

    fn upsert(&mut self, summary: &Arc<Summary>) {
        self.feed.note(summary);
        if summary.rule.is_some() {
            if self.rules.set(&mut self.reconciler, summary) {
                self.feed.changes.again();
            }
            return;
        }
        let Some(name) = summary.node_name() else {
            self.rules.object_told();
            let differences = self.reconciler.desired.placement.upsert(summary);
            return self.reconciler.spread(differences);
        };
        let labels = summary.trusted_labels(&self.reconciler.settings.trusted_labels);
        self.reconciler.nodes.set_labels(&name, labels.clone());
        if self.removals.has(&name) {
            return self.node_created(&name);
        }
        self.reconciler.set_labels(&name, labels);
        if self.reconciler.is_shared {
            self.node_told(&name, summary);
        }
    }

    fn remove(&mut self, summary: &Summary) {
        if summary.rule.is_some() {
            self.rules.drop(&mut self.reconciler, &summary.uid);
        } else if let Some(name) = summary.node_name() {
            self.node_deleted(&name);
        } else {
            let differences = self.reconciler.desired.placement.remove(&summary.uid);
            self.reconciler.spread(differences);
        }
    }

    /// Removes the node of a deleted Node from the fleet.
    fn node_deleted(&mut self, name: &NodeName) {
        self.reconciler.nodes.object_deleted(name);
        if self.replicas.is_being_restored() {
            self.node_lost(name);
        } else if self.reconciler.nodes.contains(name) || self.reconciler.nodes.is_registered(name) {
            tracing::warn!(node = name.as_str(), "Node was deleted, removing the node");
            self.dismiss(name, None);
        } else if !self.removals.has(name) {
            self.reconciler.remove_from_placement(name);
        }
    }
}
