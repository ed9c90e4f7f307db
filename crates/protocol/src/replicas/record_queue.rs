//! Bounded queue of ObjectSyncs to write, with the newest state per node and object.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::change::Uid;
use crate::cloud::Record;
use crate::digest::Epoch;
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use edgesync_object::NodeName;

/// Maximum number of records in a job.
const RECORDS_PER_JOB: usize = 64;

/// Desired records in the order of their writes; `None` for one to delete.
type DesiredRecords = BTreeMap<Uid, Option<Record>>;

/// A record of a node as stored, in the form that its writer remembers.
pub trait StoredRecord {
    /// Returns whether it equals the desired record.
    fn matches(&self, record: &Record) -> bool;

    /// Returns whether it shows effects that stem from another epoch of the node's database.
    fn is_outdated(&self, epoch: Option<Epoch>) -> bool;
}

/// Queue entry of a node. The serial differs after the node was dropped and added again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// The node.
    pub node: NodeName,
    serial: u64,
}

/// Queue of nodes with desired records. A node is in at most one of `ready`, `unlisted` and
/// `later`.
#[derive(Debug)]
pub struct RecordQueue<K> {
    nodes: HashMap<NodeName, Node<K>>,
    /// Nodes with records to write.
    ready: VecDeque<QueueEntry>,
    /// Nodes with records to write whose current records are unknown.
    unlisted: VecDeque<QueueEntry>,
    /// Nodes with failed writes, until [`RecordQueue::resume`].
    later: Vec<QueueEntry>,
    /// Nodes whose records were dropped, by overflow or fencing, and must be set again.
    due: BTreeSet<NodeName>,
    /// Formerly due nodes whose records were requested. Their changes are ignored until
    /// [`RecordQueue::replace`].
    requested: HashSet<NodeName>,
    /// Nodes served by another replica.
    fenced: HashSet<NodeName>,
    /// Number of records queued or being written.
    entries: usize,
    limit: usize,
    serials: u64,
}

#[derive(Debug)]
struct Node<K> {
    serial: u64,
    desired: DesiredRecords,
    /// Set when `desired` is complete, so that other records are deleted.
    all: bool,
    known: Option<HashMap<Uid, K>>,
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
pub struct Job<K> {
    /// The node.
    pub node: NodeName,
    serial: u64,
    /// Records left to write. The writer removes each one it has written.
    pub desired: DesiredRecords,
    /// Current records of the node. The writer updates each one it has written.
    pub known: HashMap<Uid, K>,
    /// The UID of the Node, if known.
    pub owner: Option<Arc<str>>,
    /// The epoch of the node's database, if known.
    pub epoch: Option<Epoch>,
    entries: usize,
}

/// Result of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The rest is written in the node's next job.
    Continue,
    /// The current records differ from the known ones.
    Changed,
    /// The rest cannot be written now.
    Later,
    /// A write has failed, and may have taken effect: the rest cannot be written now, and the
    /// current records are unknown.
    Failed,
    /// The Node belongs to others, so nothing is written.
    Foreign,
    /// Another replica serves the node: its records are dropped.
    Fenced,
}

impl<K> Default for Node<K> {
    fn default() -> Self {
        Self {
            serial: 0,
            desired: DesiredRecords::new(),
            all: false,
            known: None,
            epoch: None,
            owner: None,
            is_queued: false,
            is_leaving: false,
        }
    }
}

impl<K: StoredRecord> RecordQueue<K> {
    /// Creates a queue of at most `limit` records.
    #[must_use]
    pub fn new(limit: usize) -> Self {
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

    /// Begins a session of a node: the records queued in earlier ones are obsolete, and another
    /// replica may have written newer ones since. All of them are set next.
    pub fn begin(&mut self, node: &NodeName) {
        self.forget(node);
    }

    /// Sets all desired records of a node.
    pub fn replace(&mut self, node: &NodeName, all: Vec<(Uid, Record)>) {
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
    pub fn change(&mut self, node: &NodeName, put: Vec<(Uid, Record)>, remove: Vec<Uid>) {
        // A change proves that the node is served here again.
        self.regain(node);
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
    pub fn set_epoch(&mut self, node: &NodeName, epoch: Epoch) {
        let found = self.node(node);
        found.epoch = Some(epoch);
        found.is_leaving = false;
    }

    /// Records a write by another writer. A concurrent job with the same record conflicts.
    pub fn record_write(&mut self, node: &NodeName, uid: &Uid, known: K) {
        if let Some(records) = self.nodes.get_mut(node).and_then(|node| node.known.as_mut()) {
            records.insert(uid.clone(), known);
        }
    }

    /// Drops a node with its queued records.
    pub fn forget(&mut self, node: &NodeName) {
        self.drop_desired(node);
        self.nodes.remove(node);
        self.due.remove(node);
        self.requested.remove(node);
        self.fenced.remove(node);
    }

    /// Drops a node after its queued records are written.
    pub fn forget_when_written(&mut self, node: &NodeName) {
        let Some(found) = self.nodes.get_mut(node) else { return self.forget(node) };
        found.is_leaving = true;
        self.remove_if_done(node);
    }

    /// Drops a node that another replica serves.
    fn fence(&mut self, node: &NodeName) {
        self.forget(node);
        self.fenced.insert(node.clone());
    }

    /// Requests the records of a node that another replica served and this one serves again.
    pub fn regain(&mut self, node: &NodeName) {
        if self.fenced.remove(node) {
            self.due.insert(node.clone());
        }
    }

    /// Takes the next job. The caller passes it to [`RecordQueue::finish`].
    pub fn take(&mut self) -> Option<Job<K>> {
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

    /// Returns whether the node of a job was not dropped since. If it was, its records are
    /// obsolete.
    #[must_use]
    pub fn is_current(&self, job: &Job<K>) -> bool {
        self.nodes.get(&job.node).is_some_and(|node| node.serial == job.serial)
    }

    /// Ends a job: queues its unwritten records again, or drops them if the Node is foreign.
    pub fn finish(&mut self, job: Job<K>, outcome: Outcome) {
        let Job { node: name, serial, desired, known, owner, entries, .. } = job;
        self.entries -= entries;
        let Some(node) = self.nodes.get_mut(&name).filter(|node| node.serial == serial) else { return };
        if outcome == Outcome::Fenced {
            return self.fence(&name);
        }
        node.is_queued = false;
        node.owner = owner;
        let is_known = !matches!(outcome, Outcome::Changed | Outcome::Failed);
        #[cfg(any(test, feature = "simulation"))]
        let is_known = is_known || planted(Fault::KnownAfterConflict);
        if is_known {
            node.known = Some(known);
        }
        if outcome != Outcome::Foreign {
            for (uid, desired) in desired {
                // Records changed meanwhile are newer. If all were set meanwhile, the rest is
                // obsolete.
                let is_newest = !node.all && !node.desired.contains_key(&uid);
                #[cfg(any(test, feature = "simulation"))]
                let is_newest = is_newest || planted(Fault::OlderRecordWins);
                if is_newest && node.desired.insert(uid, desired).is_none() {
                    self.entries += 1;
                }
            }
        }
        if matches!(outcome, Outcome::Later | Outcome::Failed) && !node.desired.is_empty() {
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
    pub fn resume(&mut self) {
        for entry in std::mem::take(&mut self.later) {
            if let Some(node) = self.current(&entry) {
                node.is_queued = false;
                self.enqueue(&entry.node);
            }
        }
    }

    /// Takes nodes whose records must be read. The caller passes each to [`RecordQueue::listed`],
    /// [`RecordQueue::not_listed`] or [`RecordQueue::not_served`].
    pub fn take_unlisted(&mut self, most: usize) -> Vec<QueueEntry> {
        let count = self.unlisted.len().min(most);
        let mut entries: Vec<QueueEntry> = self.unlisted.drain(..count).collect();
        entries.retain(|entry| self.current(entry).is_some());
        entries
    }

    /// Sets the current records of a node.
    pub fn listed(&mut self, entry: &QueueEntry, known: HashMap<Uid, K>) {
        if let Some(node) = self.current(entry) {
            node.known = Some(known);
            node.is_queued = false;
            self.enqueue(&entry.node);
        }
    }

    /// Schedules a retry after the records of a node could not be read.
    pub fn not_listed(&mut self, entry: QueueEntry) {
        if self.current(&entry).is_some() {
            self.later.push(entry);
        }
    }

    /// Drops a node whose records were read, because another replica serves it. A node that was
    /// dropped meanwhile may have begun another session since.
    pub fn not_served(&mut self, entry: &QueueEntry) {
        if self.current(entry).is_some() {
            self.fence(&entry.node);
        }
    }

    fn current(&mut self, entry: &QueueEntry) -> Option<&mut Node<K>> {
        self.nodes.get_mut(&entry.node).filter(|node| node.serial == entry.serial)
    }

    /// Takes a due node once half of the queue is free.
    pub fn take_due(&mut self) -> Option<NodeName> {
        if self.entries > self.limit / 2 {
            return None;
        }
        let name = self.due.pop_first()?;
        self.requested.insert(name.clone());
        Some(name)
    }

    /// Returns the number of records queued or being written.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.entries
    }

    /// Returns whether nothing is queued or being written. Ignores due nodes.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.nodes.values().all(|node| !node.is_queued && node.desired.is_empty() && !node.all)
    }

    fn node(&mut self, name: &NodeName) -> &mut Node<K> {
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
            |node: &Node<K>| node.is_leaving && !node.is_queued && node.desired.is_empty() && !node.all;
        if self.nodes.get(name).is_some_and(is_done) {
            self.nodes.remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
