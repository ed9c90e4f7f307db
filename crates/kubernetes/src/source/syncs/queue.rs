//! Bounded queue of ObjectSyncs to write, with the newest state per node and object. Pure.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::super::records::{KnownRecord, KnownRecords};
use edgesync_object::NodeName;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Record;
use edgesync_protocol::digest::Epoch;

/// Maximum number of records in a job.
const RECORDS_PER_JOB: usize = 64;

/// Desired records; `None` for one to delete.
pub(super) type DesiredRecords = HashMap<Uid, Option<Record>>;

/// Queue entry of a node. The serial differs after the node was dropped and added again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueueEntry {
    pub(super) node: NodeName,
    serial: u64,
}

/// Queue of nodes with desired records. A node is in at most one of `ready`, `unlisted` and
/// `later`.
#[derive(Debug)]
pub(super) struct Queue {
    nodes: HashMap<NodeName, Node>,
    /// Nodes with records to write.
    ready: VecDeque<QueueEntry>,
    /// Nodes with records to write whose current records are unknown.
    unlisted: VecDeque<QueueEntry>,
    /// Nodes with failed writes, until [`Queue::resume`].
    later: Vec<QueueEntry>,
    /// Nodes whose records were dropped, by overflow or fencing, and must be set again.
    due: BTreeSet<NodeName>,
    /// Formerly due nodes whose records were requested. Their changes are ignored until
    /// [`Queue::replace`].
    requested: HashSet<NodeName>,
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
    desired: DesiredRecords,
    /// Set when `desired` is complete, so that other records are deleted.
    all: bool,
    known: Option<KnownRecords>,
    /// The epoch of the node's database, if known.
    epoch: Option<Epoch>,
    owner: Option<Arc<str>>,
    /// Set while the node is queued or being written.
    is_queued: bool,
    /// Set when the node is dropped after its writes.
    is_leaving: bool,
}

/// Records of a node being written.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) node: NodeName,
    serial: u64,
    /// Records left to write. The writer removes each one it has written.
    pub(super) desired: DesiredRecords,
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
pub(super) enum Outcome {
    /// The rest is written in the node's next job.
    Continue,
    /// The current records differ from the known ones.
    Changed,
    /// The rest cannot be written now.
    Later,
    /// The Node belongs to others, so nothing is written.
    Foreign,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            nodes: HashMap::new(),
            ready: VecDeque::new(),
            unlisted: VecDeque::new(),
            later: Vec::new(),
            due: BTreeSet::new(),
            requested: HashSet::new(),
            fenced: HashSet::new(),
            entries: 0,
            limit,
            serials: 0,
        }
    }

    /// Sets all desired records of a node.
    pub(super) fn replace(&mut self, node: &NodeName, all: Vec<(Uid, Record)>) {
        self.drop_desired(node);
        self.due.remove(node);
        self.requested.remove(node);
        self.fenced.remove(node);
        if !self.reserve(node, all.len()) {
            return;
        }
        let found = self.node(node);
        found.all = true;
        found.is_leaving = false;
        found.desired = all.into_iter().map(|(uid, record)| (uid, Some(record))).collect();
        self.entries += self.nodes.get(node).map_or(0, |node| node.desired.len());
        self.enqueue(node);
    }

    /// Changes some desired records of a node.
    pub(super) fn change(&mut self, node: &NodeName, put: Vec<(Uid, Record)>, remove: Vec<Uid>) {
        if self.fenced.remove(node) {
            // A change proves that the node is served here again, so the dropped records are
            // requested.
            self.due.insert(node.clone());
        }
        if self.due.contains(node)
            || self.requested.contains(node)
            || !self.reserve(node, put.len() + remove.len())
        {
            return;
        }
        let found = self.node(node);
        found.is_leaving = false;
        let before = found.desired.len();
        for uid in remove {
            if found.all {
                found.desired.remove(&uid);
            } else {
                found.desired.insert(uid, None);
            }
        }
        found.desired.extend(put.into_iter().map(|(uid, record)| (uid, Some(record))));
        let after = found.desired.len();
        self.entries = self.entries + after - before;
        self.enqueue(node);
    }

    /// Sets the epoch of a node's database.
    pub(super) fn set_epoch(&mut self, node: &NodeName, epoch: Epoch) {
        let found = self.node(node);
        found.epoch = Some(epoch);
        found.is_leaving = false;
    }

    /// Records a write by another writer. A concurrent job with the same record conflicts.
    pub(super) fn record_write(&mut self, node: &NodeName, uid: &Uid, known: KnownRecord) {
        if let Some(records) = self.nodes.get_mut(node).and_then(|node| node.known.as_mut()) {
            records.insert(uid.clone(), known);
        }
    }

    /// Drops a node with its queued records.
    pub(super) fn forget(&mut self, node: &NodeName) {
        self.drop_desired(node);
        self.nodes.remove(node);
        self.due.remove(node);
        self.requested.remove(node);
        self.fenced.remove(node);
    }

    /// Drops a node after its queued records are written.
    pub(super) fn forget_when_written(&mut self, node: &NodeName) {
        let Some(found) = self.nodes.get_mut(node) else { return self.forget(node) };
        found.is_leaving = true;
        self.remove_if_done(node);
    }

    /// Drops a node that another replica serves.
    pub(super) fn fence(&mut self, node: &NodeName) {
        self.forget(node);
        self.fenced.insert(node.clone());
    }

    /// Takes the next job. The caller passes it to [`Queue::finish`].
    pub(super) fn take(&mut self) -> Option<Job> {
        while let Some(QueueEntry { node: name, serial }) = self.ready.pop_front() {
            let Some(node) = self.nodes.get_mut(&name).filter(|node| node.serial == serial) else { continue };
            node.is_queued = false;
            let Some(known) = node.known.take() else {
                self.enqueue(&name);
                continue;
            };
            let before = node.desired.len();
            if std::mem::take(&mut node.all) {
                for uid in known.keys() {
                    node.desired.entry(uid.clone()).or_insert(None);
                }
            }
            node.desired.retain(|uid, desired| match (desired, known.get(uid)) {
                (Some(record), Some(known)) => !known.matches(record) || known.is_outdated(node.epoch),
                (None, None) => false,
                _ => true,
            });
            self.entries = self.entries + node.desired.len() - before;
            let entry: Vec<Uid> = node.desired.keys().take(RECORDS_PER_JOB).cloned().collect();
            let desired: DesiredRecords =
                entry.into_iter().filter_map(|uid| node.desired.remove_entry(&uid)).collect();
            if desired.is_empty() {
                node.known = Some(known);
                self.remove_if_done(&name);
                continue;
            }
            node.is_queued = true;
            let (owner, epoch, entries) = (node.owner.clone(), node.epoch, desired.len());
            return Some(Job { node: name, serial, desired, known, owner, epoch, entries });
        }
        None
    }

    /// Ends a job: queues its unwritten records again, or drops them if the Node is foreign.
    pub(super) fn finish(&mut self, job: Job, outcome: Outcome) {
        let Job { node: name, serial, desired, known, owner, entries, .. } = job;
        self.entries -= entries;
        let Some(node) = self.nodes.get_mut(&name).filter(|node| node.serial == serial) else { return };
        node.is_queued = false;
        node.owner = owner;
        if outcome != Outcome::Changed {
            node.known = Some(known);
        }
        if outcome != Outcome::Foreign {
            for (uid, desired) in desired {
                // Records changed meanwhile are newer. If all were set meanwhile, the rest is
                // obsolete.
                if !node.all && !node.desired.contains_key(&uid) {
                    node.desired.insert(uid, desired);
                    self.entries += 1;
                }
            }
        }
        if outcome == Outcome::Later && !node.desired.is_empty() {
            node.is_queued = true;
            self.later.push(QueueEntry { node: name, serial });
        } else if outcome == Outcome::Foreign {
            self.drop_desired(&name);
        } else {
            self.enqueue(&name);
            self.remove_if_done(&name);
        }
    }

    /// Queues nodes with failed writes again.
    pub(super) fn resume(&mut self) {
        for entry in std::mem::take(&mut self.later) {
            if let Some(node) = self.current(&entry) {
                node.is_queued = false;
                self.enqueue(&entry.node);
            }
        }
    }

    /// Takes nodes whose records must be read. The caller passes each to [`Queue::listed`] or
    /// [`Queue::not_listed`].
    pub(super) fn take_unlisted(&mut self, most: usize) -> Vec<QueueEntry> {
        let count = self.unlisted.len().min(most);
        let mut entries: Vec<QueueEntry> = self.unlisted.drain(..count).collect();
        entries.retain(|entry| self.current(entry).is_some());
        entries
    }

    /// Sets the current records of a node.
    pub(super) fn listed(&mut self, entry: &QueueEntry, known: KnownRecords) {
        if let Some(node) = self.current(entry) {
            node.known = Some(known);
            node.is_queued = false;
            self.enqueue(&entry.node);
        }
    }

    /// Schedules a retry after the records of a node could not be read.
    pub(super) fn not_listed(&mut self, entry: QueueEntry) {
        if self.current(&entry).is_some() {
            self.later.push(entry);
        }
    }

    fn current(&mut self, entry: &QueueEntry) -> Option<&mut Node> {
        self.nodes.get_mut(&entry.node).filter(|node| node.serial == entry.serial)
    }

    /// Takes a due node once half of the queue is free.
    pub(super) fn take_due(&mut self) -> Option<NodeName> {
        if self.entries > self.limit / 2 {
            return None;
        }
        let name = self.due.pop_first()?;
        self.requested.insert(name.clone());
        Some(name)
    }

    /// Returns the number of records queued or being written.
    pub(super) fn len(&self) -> usize {
        self.entries
    }

    /// Returns whether nothing is queued or being written. Ignores due nodes.
    pub(super) fn is_settled(&self) -> bool {
        self.nodes.values().all(|node| !node.is_queued && node.desired.is_empty() && !node.all)
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

    fn drop_desired(&mut self, name: &NodeName) {
        if let Some(node) = self.nodes.get_mut(name) {
            self.entries -= node.desired.len();
            node.desired = DesiredRecords::new();
            node.all = false;
        }
    }

    /// Returns whether `more` records fit. Otherwise drops the node's records and makes it due. An
    /// empty queue accepts a node that exceeds the limit.
    fn reserve(&mut self, name: &NodeName, more: usize) -> bool {
        let fits = self.entries == 0 || self.entries.saturating_add(more) <= self.limit;
        if !fits {
            self.drop_desired(name);
            self.due.insert(name.clone());
        }
        fits
    }

    /// Adds a node to the matching queue.
    fn enqueue(&mut self, name: &NodeName) {
        let Some((name, node)) = self.nodes.get_key_value(name) else { return };
        if node.is_queued || (node.desired.is_empty() && !node.all) {
            return;
        }
        let (entry, is_known) =
            (QueueEntry { node: name.clone(), serial: node.serial }, node.known.is_some());
        if let Some(node) = self.current(&entry) {
            node.is_queued = true;
        }
        if is_known { self.ready.push_back(entry) } else { self.unlisted.push_back(entry) }
    }

    fn remove_if_done(&mut self, name: &NodeName) {
        let is_done =
            |node: &Node| node.is_leaving && !node.is_queued && node.desired.is_empty() && !node.all;
        if self.nodes.get(name).is_some_and(is_done) {
            self.nodes.remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
