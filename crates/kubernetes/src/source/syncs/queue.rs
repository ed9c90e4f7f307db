//! Bounded queue of ObjectSyncs to write, with the newest state per node and object. Pure.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::super::records::{Known, KnownRecords};
use edgesync_object::NodeName;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Record;
use edgesync_protocol::digest::Epoch;

/// Records of one node written per turn.
const AT_A_TURN: usize = 64;

/// Desired records; `None` for one to delete.
pub(super) type Wanted = HashMap<Uid, Option<Record>>;

/// Queue entry of a node. The serial differs after the node was dropped and added again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) node: NodeName,
    serial: u64,
}

/// Queue of nodes with desired records. A node is in at most one of `ready`, `unlisted` and
/// `later`.
#[derive(Debug)]
pub(super) struct Queue {
    nodes: HashMap<NodeName, Node>,
    /// Nodes with records to write.
    ready: VecDeque<Turn>,
    /// Nodes with records to write whose current records are unknown.
    unlisted: VecDeque<Turn>,
    /// Nodes with failed writes, until [`Queue::resume`].
    later: Vec<Turn>,
    /// Nodes whose records were dropped, by overflow or fencing, and must be set again.
    due: BTreeSet<NodeName>,
    /// Formerly due nodes whose records were requested. Their changes are ignored until
    /// [`Queue::replace`].
    asked: HashSet<NodeName>,
    /// Nodes served by another replica.
    fenced: HashSet<NodeName>,
    /// Number of records queued or being written.
    entries: usize,
    limit: usize,
    serials: u64,
}

#[derive(Debug, Default)]
struct Node {
    serial: u64,
    wanted: Wanted,
    /// Set when `wanted` is complete, so that other records are deleted.
    all: bool,
    known: Option<KnownRecords>,
    /// The epoch of the node's database, if known.
    epoch: Option<Epoch>,
    owner: Option<Arc<str>>,
    /// Set while the node is queued or being written.
    waits: bool,
    /// Set when the node is dropped after its writes.
    leaves: bool,
}

/// Records of a node being written.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) node: NodeName,
    serial: u64,
    /// Records left to write. The writer removes each one it has written.
    pub(super) wanted: Wanted,
    /// Current records of the node. The writer updates each one it has written.
    pub(super) known: KnownRecords,
    /// The UID of the Node, if known.
    pub(super) owner: Option<Arc<str>>,
    /// The epoch of the node's database, if known.
    pub(super) epoch: Option<Epoch>,
    entries: usize,
}

/// Result of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The rest is written in the node's next turn.
    Again,
    /// The current records differ from the known ones.
    Changed,
    /// The rest cannot be written now.
    Later,
    /// The Node belongs to others, so nothing is written.
    Nothing,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            nodes: HashMap::new(),
            ready: VecDeque::new(),
            unlisted: VecDeque::new(),
            later: Vec::new(),
            due: BTreeSet::new(),
            asked: HashSet::new(),
            fenced: HashSet::new(),
            entries: 0,
            limit,
            serials: 0,
        }
    }

    /// Sets all desired records of a node.
    pub(super) fn replace(&mut self, node: &NodeName, all: Vec<(Uid, Record)>) {
        self.drop_wanted(node);
        self.due.remove(node);
        self.asked.remove(node);
        self.fenced.remove(node);
        if !self.has_room(node, all.len()) {
            return;
        }
        let found = self.node(node);
        found.all = true;
        found.leaves = false;
        found.wanted = all.into_iter().map(|(uid, record)| (uid, Some(record))).collect();
        self.entries += self.nodes.get(node).map_or(0, |node| node.wanted.len());
        self.line_up(node);
    }

    /// Changes some desired records of a node.
    pub(super) fn change(&mut self, node: &NodeName, put: Vec<(Uid, Record)>, remove: Vec<Uid>) {
        if self.fenced.remove(node) {
            // A change proves that the node is served here again, so the dropped records are
            // requested.
            self.due.insert(node.clone());
        }
        if self.due.contains(node)
            || self.asked.contains(node)
            || !self.has_room(node, put.len() + remove.len())
        {
            return;
        }
        let found = self.node(node);
        found.leaves = false;
        let before = found.wanted.len();
        for uid in remove {
            if found.all {
                found.wanted.remove(&uid);
            } else {
                found.wanted.insert(uid, None);
            }
        }
        found.wanted.extend(put.into_iter().map(|(uid, record)| (uid, Some(record))));
        let after = found.wanted.len();
        self.entries = self.entries + after - before;
        self.line_up(node);
    }

    /// Sets the epoch of a node's database.
    pub(super) fn follow(&mut self, node: &NodeName, epoch: Epoch) {
        let found = self.node(node);
        found.epoch = Some(epoch);
        found.leaves = false;
    }

    /// Records a write by another writer. A concurrent job with the same record conflicts.
    pub(super) fn noted(&mut self, node: &NodeName, uid: &Uid, known: Known) {
        if let Some(records) = self.nodes.get_mut(node).and_then(|node| node.known.as_mut()) {
            records.insert(uid.clone(), known);
        }
    }

    /// Drops a node with its queued records.
    pub(super) fn forget(&mut self, node: &NodeName) {
        self.drop_wanted(node);
        self.nodes.remove(node);
        self.due.remove(node);
        self.asked.remove(node);
        self.fenced.remove(node);
    }

    /// Drops a node after its queued records are written.
    pub(super) fn leave(&mut self, node: &NodeName) {
        let Some(found) = self.nodes.get_mut(node) else { return self.forget(node) };
        found.leaves = true;
        self.leave_if_done(node);
    }

    /// Drops a node that another replica serves.
    pub(super) fn fence(&mut self, node: &NodeName) {
        self.forget(node);
        self.fenced.insert(node.clone());
    }

    /// Takes the next job. The caller passes it to [`Queue::finish`].
    pub(super) fn take(&mut self) -> Option<Job> {
        while let Some(Turn { node: name, serial }) = self.ready.pop_front() {
            let Some(node) = self.nodes.get_mut(&name).filter(|node| node.serial == serial) else { continue };
            node.waits = false;
            let Some(known) = node.known.take() else {
                self.line_up(&name);
                continue;
            };
            let before = node.wanted.len();
            if std::mem::take(&mut node.all) {
                for uid in known.keys() {
                    node.wanted.entry(uid.clone()).or_insert(None);
                }
            }
            node.wanted.retain(|uid, wanted| match (wanted, known.get(uid)) {
                (Some(record), Some(known)) => !known.says(record) || known.is_outdated(node.epoch),
                (None, None) => false,
                _ => true,
            });
            self.entries = self.entries + node.wanted.len() - before;
            let turn: Vec<Uid> = node.wanted.keys().take(AT_A_TURN).cloned().collect();
            let wanted: Wanted = turn.into_iter().filter_map(|uid| node.wanted.remove_entry(&uid)).collect();
            if wanted.is_empty() {
                node.known = Some(known);
                self.leave_if_done(&name);
                continue;
            }
            node.waits = true;
            let (owner, epoch, entries) = (node.owner.clone(), node.epoch, wanted.len());
            return Some(Job { node: name, serial, wanted, known, owner, epoch, entries });
        }
        None
    }

    /// Completes a job.
    pub(super) fn finish(&mut self, job: Job, end: End) {
        let Job { node: name, serial, wanted, known, owner, entries, .. } = job;
        self.entries -= entries;
        let Some(node) = self.nodes.get_mut(&name).filter(|node| node.serial == serial) else { return };
        node.waits = false;
        node.owner = owner;
        if end != End::Changed {
            node.known = Some(known);
        }
        if end != End::Nothing {
            for (uid, wanted) in wanted {
                // Records changed meanwhile are newer. If all were set meanwhile, the rest is
                // obsolete.
                if !node.all && !node.wanted.contains_key(&uid) {
                    node.wanted.insert(uid, wanted);
                    self.entries += 1;
                }
            }
        }
        if end == End::Later && !node.wanted.is_empty() {
            node.waits = true;
            self.later.push(Turn { node: name, serial });
        } else if end == End::Nothing {
            self.drop_wanted(&name);
        } else {
            self.line_up(&name);
            self.leave_if_done(&name);
        }
    }

    /// Queues nodes with failed writes again.
    pub(super) fn resume(&mut self) {
        for turn in std::mem::take(&mut self.later) {
            if let Some(node) = self.of(&turn) {
                node.waits = false;
                self.line_up(&turn.node);
            }
        }
    }

    /// Takes nodes whose records must be read. The caller passes each to [`Queue::listed`] or
    /// [`Queue::not_listed`].
    pub(super) fn take_unlisted(&mut self, most: usize) -> Vec<Turn> {
        let count = self.unlisted.len().min(most);
        let mut turns: Vec<Turn> = self.unlisted.drain(..count).collect();
        turns.retain(|turn| self.of(turn).is_some());
        turns
    }

    /// Sets the current records of a node.
    pub(super) fn listed(&mut self, turn: &Turn, known: KnownRecords) {
        if let Some(node) = self.of(turn) {
            node.known = Some(known);
            node.waits = false;
            self.line_up(&turn.node);
        }
    }

    /// Schedules a retry after the records of a node could not be read.
    pub(super) fn not_listed(&mut self, turn: Turn) {
        if self.of(&turn).is_some() {
            self.later.push(turn);
        }
    }

    fn of(&mut self, turn: &Turn) -> Option<&mut Node> {
        self.nodes.get_mut(&turn.node).filter(|node| node.serial == turn.serial)
    }

    /// Takes a due node once half of the queue is free.
    pub(super) fn ask(&mut self) -> Option<NodeName> {
        if self.entries > self.limit / 2 {
            return None;
        }
        let name = self.due.pop_first()?;
        self.asked.insert(name.clone());
        Some(name)
    }

    /// Returns the number of records queued or being written.
    pub(super) fn len(&self) -> usize {
        self.entries
    }

    /// Returns whether nothing is queued or being written. Ignores due nodes.
    pub(super) fn is_settled(&self) -> bool {
        self.nodes.values().all(|node| !node.waits && node.wanted.is_empty() && !node.all)
    }

    fn node(&mut self, name: &NodeName) -> &mut Node {
        if !self.nodes.contains_key(name) {
            self.serials += 1;
            let node = Node { serial: self.serials, ..Node::default() };
            self.nodes.insert(name.clone(), node);
        }
        // The entry exists.
        self.nodes.entry(name.clone()).or_default()
    }

    fn drop_wanted(&mut self, name: &NodeName) {
        if let Some(node) = self.nodes.get_mut(name) {
            self.entries -= node.wanted.len();
            node.wanted = Wanted::new();
            node.all = false;
        }
    }

    /// Returns whether `more` records fit. Otherwise drops the node's records and makes it due. An
    /// empty queue accepts a node that exceeds the limit.
    fn has_room(&mut self, name: &NodeName, more: usize) -> bool {
        let fits = self.entries == 0 || self.entries.saturating_add(more) <= self.limit;
        if !fits {
            self.drop_wanted(name);
            self.due.insert(name.clone());
        }
        fits
    }

    /// Adds a node to the matching queue.
    fn line_up(&mut self, name: &NodeName) {
        let Some((name, node)) = self.nodes.get_key_value(name) else { return };
        if node.waits || (node.wanted.is_empty() && !node.all) {
            return;
        }
        let (turn, is_known) = (Turn { node: name.clone(), serial: node.serial }, node.known.is_some());
        if let Some(node) = self.of(&turn) {
            node.waits = true;
        }
        if is_known { self.ready.push_back(turn) } else { self.unlisted.push_back(turn) }
    }

    fn leave_if_done(&mut self, name: &NodeName) {
        let is_done = |node: &Node| node.leaves && !node.waits && node.wanted.is_empty() && !node.all;
        if self.nodes.get(name).is_some_and(is_done) {
            self.nodes.remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
