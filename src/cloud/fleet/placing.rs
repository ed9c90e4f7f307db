//! What the source tells of changes: objects go into the placement, Nodes are taken in and given up.

use std::collections::HashSet;

use super::Fleet;
use crate::cloud::node::{DesiredOn, desired};
use crate::cloud::source::{Change, Source};
use crate::placement::{Delta, Summary};

impl<S: Source> Fleet<S> {
    pub(super) fn changed(&mut self, change: Change) {
        match change {
            Change::Begun if self.labels.is_empty() && self.placement.is_empty() => {}
            Change::Begun => self.told = Some(HashSet::new()),
            Change::Listed(objects) => objects.into_iter().for_each(|object| self.upsert(object)),
            Change::Set(object) => self.upsert(Summary::clone(&object)),
            Change::Gone(object) => self.remove(&object),
            Change::Complete => self.compare(),
            Change::Failed(error) => tracing::error!(%error, "the store cannot be read: trying again"),
        }
    }

    /// Gives up what was not told, after changes were missed.
    fn compare(&mut self) {
        let Some(told) = self.told.take() else { return };
        let gone: Vec<String> =
            self.labels.keys().filter(|name| !told.contains(name.as_str())).cloned().collect();
        for name in gone {
            self.node_deleted(&name);
        }
        let deltas = self.placement.retain(&told);
        self.place(deltas);
    }

    pub(super) fn upsert(&mut self, summary: Summary) {
        if let Some(told) = &mut self.told {
            told.insert(if summary.is_node() { summary.name.clone() } else { summary.uid.clone() });
        }
        if !summary.is_node() {
            let deltas = self.placement.upsert(summary);
            return self.place(deltas);
        }
        self.labels.insert(summary.name.to_string(), summary.labels.clone());
        if self.removals.has(&summary.name) {
            return self.node_created(&summary.name);
        }
        let deltas = self.placement.set_node(&summary.name, summary.labels);
        self.place(deltas);
    }

    fn remove(&mut self, summary: &Summary) {
        if summary.is_node() {
            self.node_deleted(&summary.name);
        } else {
            let deltas = self.placement.remove(summary);
            self.place(deltas);
        }
    }

    /// Whoever deletes the Node of a node removes the node.
    fn node_deleted(&mut self, name: &str) {
        self.labels.remove(name);
        if self.nodes.contains_key(name) || self.registered.contains(name) {
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
            let (Some(uid), Some(node)) = (delta.uid(), self.nodes.get_mut(&*delta.node)) else { continue };
            match (&delta.before, &delta.after) {
                (None, Some(_)) => node.desired += 1,
                (Some(_), None) => node.desired = node.desired.saturating_sub(1),
                _ => {}
            }
            let before = delta.before.as_deref().map(desired);
            let on_node = DesiredOn(self.placement.on(&delta.node));
            if self.openings.is_full() {
                node.machine.fall_behind();
            }
            node.machine.desire(now, uid, before, &on_node);
            self.touch(&delta.node);
        }
    }
}
