//! What the source tells of changes: objects go into the placement, Nodes are taken in and given up.

use std::collections::HashSet;
use std::sync::Arc;

use super::Fleet;
use super::news::Waiting;
use crate::node::desired;
use crate::source::{Change, Source};
use edgesync_placement::{Delta, Summary};

/// Objects that are compared at a time with what was told.
const COMPARED: u32 = 1024;

impl<S: Source> Fleet<S> {
    pub(super) fn changed(&mut self, change: Change) {
        match change {
            Change::Begun => self.news.wait([Waiting::Begun]),
            Change::Listed(objects) => {
                self.news.wait(objects.into_iter().map(|object| Waiting::Set(Arc::new(object))));
            }
            Change::Set(object) => self.news.wait([Waiting::Set(object)]),
            Change::Gone(object) => self.news.wait([Waiting::Gone(object)]),
            Change::Complete => self.news.wait([Waiting::Complete]),
            Change::Again => self.news.wait([Waiting::Again]),
            Change::CaughtUp { question, reached } => self.news.wait([Waiting::CaughtUp(question, reached)]),
            Change::Unread(unread) => self.news.wait([Waiting::Unread(unread)]),
            Change::Restored(until) => self.news.wait([Waiting::Restored(until)]),
            Change::Admitted(node) => self.admitted_elsewhere(&node),
            Change::SyncsDue(node) => self.tell_syncs(&node),
            Change::Failed(error) => tracing::error!(%error, "the store cannot be read: trying again"),
        }
    }

    /// Takes in a change: all nodes know of those before it.
    pub(super) fn take_in(&mut self, change: Waiting) {
        match change {
            Waiting::Begun if self.labels.is_empty() && self.placement.is_empty() => {}
            Waiting::Begun => self.told = Some(HashSet::new()),
            Waiting::Set(object) => self.upsert(&object),
            Waiting::Gone(object) => self.remove(&object),
            Waiting::Complete => self.all_told(),
            Waiting::Again => self.told_again(),
            Waiting::CaughtUp(question, reached) => self.caught_up(question, reached),
            Waiting::Unread(unread) => self.reads_other_than_before(unread),
            Waiting::Restored(until) => self.restored(until),
            Waiting::Shrink(id) => self.shrink_rule(id),
            Waiting::Missing(uid) if self.rules.has(&uid) => self.drop_rule(&uid),
            Waiting::Missing(uid) => {
                let differences = self.placement.remove(&uid);
                self.spread(differences);
            }
            Waiting::Compare(told, from) => self.compare(told, from),
            Waiting::MissingNode(name) => self.node_deleted(&name),
        }
    }

    /// Gives up what was not told, after changes were missed.
    fn all_told(&mut self) {
        let Some(told) = self.told.take() else { return };
        let nodes = self.labels.keys().filter(|name| !told.contains(name.as_str()));
        let nodes: Vec<Waiting> = nodes.cloned().map(Waiting::MissingNode).collect();
        let rules = self.rules.uids().filter(|uid| !told.contains(*uid));
        let rules: Vec<Waiting> = rules.cloned().map(Waiting::Missing).collect();
        self.news.wait(nodes);
        self.news.wait(rules);
        self.news.wait([Waiting::Compare(told, 0)]);
    }

    /// The same for some of the objects, from a number on.
    fn compare(&mut self, told: HashSet<Arc<str>>, from: u32) {
        self.work.objects(COMPARED as usize);
        let (absent, next) = self.placement.absent(&told, from, COMPARED);
        self.news.wait(absent.into_iter().map(Waiting::Missing));
        self.news.wait(next.map(|next| Waiting::Compare(told, next)));
    }

    fn upsert(&mut self, summary: &Arc<Summary>) {
        if let Some(told) = &mut self.told {
            told.insert(if summary.is_node() { summary.name.clone() } else { summary.uid.clone() });
        }
        if summary.rule.is_some() {
            return self.set_rule(summary);
        }
        if !summary.is_node() {
            self.rules.object_told();
            let differences = self.placement.upsert(summary);
            return self.spread(differences);
        }
        let labels = summary.trusted_labels(&self.trusted_labels);
        self.labels.insert(summary.name.to_string(), labels.clone());
        if self.removals.has(&summary.name) {
            return self.node_created(&summary.name);
        }
        let deltas = self.placement.set_node(&summary.name, labels);
        self.place(deltas);
        if S::IS_SHARED {
            self.node_told(summary);
        }
    }

    /// Whether a Node would be selected by other rules if all were believed that the node says of itself.
    pub(super) fn claims_more(&self, summary: &Summary) -> bool {
        let mut all = summary.labels.clone();
        all.extend(summary.claimed().map(|(key, value)| (key.clone(), value.clone())));
        summary.is_node()
            && self.placement.tells_apart(&summary.name, &all, &summary.trusted_labels(&self.trusted_labels))
    }

    fn remove(&mut self, summary: &Summary) {
        if summary.rule.is_some() {
            self.drop_rule(&summary.uid);
        } else if summary.is_node() {
            self.node_deleted(&summary.name);
        } else {
            let differences = self.placement.remove(&summary.uid);
            self.spread(differences);
        }
    }

    /// Whoever deletes the Node of a node removes the node.
    fn node_deleted(&mut self, name: &str) {
        self.labels.remove(name);
        if self.is_being_restored() {
            self.node_lost(name);
        } else if self.nodes.contains_key(name) || self.registered.contains(name) {
            tracing::warn!(node = name, "its Node was deleted: it is removed from the fleet");
            self.dismiss(name, None);
        } else if !self.removals.has(name) {
            let deltas = self.placement.remove_node(name);
            self.place(deltas);
        }
    }

    pub(super) fn place(&mut self, deltas: Vec<Delta>) {
        let now = self.now();
        for delta in deltas {
            self.inform(&delta.node);
            let (Some(uid), Some(node)) = (delta.uid(), self.nodes.get_mut(&*delta.node)) else { continue };
            match (&delta.before, &delta.after) {
                (None, Some(_)) => node.desired += 1,
                (Some(_), None) => node.desired = node.desired.saturating_sub(1),
                _ => {}
            }
            let before = delta.before.as_deref().map(desired);
            let on_node = self.replicas.desired(self.placement.on(&delta.node), &self.work);
            if self.openings.is_full() {
                node.machine.fall_behind();
            }
            node.machine.desire(now, uid, before.as_ref(), &on_node);
            self.touch(&delta.node);
        }
    }
}
