//! What is to be written of ObjectSyncs: of each node and object the newest, in a bounded number.
//! Pure.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::super::records::{Known, KnownRecords};
use edgesync_object::NodeName;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Record;
use edgesync_protocol::digest::Epoch;

/// Records of one node that are written before it is the turn of the next node.
const AT_A_TURN: usize = 64;

/// What a record is to say; nothing if there is to be none.
pub(super) type Wanted = HashMap<Uid, Option<Record>>;

/// The turn of a node. One that was forgotten since, and has come back, has another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) node: NodeName,
    serial: u64,
}

/// See the module. A node is in one of the lines at most.
#[derive(Debug)]
pub(super) struct Queue {
    nodes: HashMap<NodeName, Node>,
    /// Nodes of which something is to be written.
    ready: VecDeque<Turn>,
    /// Nodes of which something is to be written, and whose records are not known yet.
    unlisted: VecDeque<Turn>,
    /// Nodes that could not be written, until [`Queue::resume`].
    later: Vec<Turn>,
    /// What did not fit, or was told by whoever is not believed: all is to be told anew.
    due: BTreeSet<NodeName>,
    /// Those of them that were asked for it. Until then changes of theirs mean nothing.
    asked: HashSet<NodeName>,
    /// Nodes that another replica serves.
    fenced: HashSet<NodeName>,
    /// Records that are to be written, and those that are being.
    entries: usize,
    limit: usize,
    serials: u64,
}

#[derive(Debug, Default)]
struct Node {
    serial: u64,
    wanted: Wanted,
    /// Whether `wanted` is all that there is to be: what is not in it goes.
    all: bool,
    known: Option<KnownRecords>,
    /// Its database file, once that was told.
    epoch: Option<Epoch>,
    owner: Option<Arc<str>>,
    /// Whether it is in a line, or being written.
    waits: bool,
    /// To be forgotten once all is written.
    leaves: bool,
}

/// Records of a node that are being written.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) node: NodeName,
    serial: u64,
    /// What is left to be written: whoever has written something takes it out.
    pub(super) wanted: Wanted,
    /// What is known of all its records: whoever has written something notes it.
    pub(super) known: KnownRecords,
    /// The UID of its Node, once that is known.
    pub(super) owner: Option<Arc<str>>,
    /// Its database file, if that was told.
    pub(super) epoch: Option<Epoch>,
    entries: usize,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// What is left is to be tried again at its turn.
    Again,
    /// Its records are not as they were known.
    Changed,
    /// What is left cannot be written now.
    Later,
    /// The Node is not this program's: there is nothing to be written of it.
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

    /// These are all records that a node is to have.
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

    /// Records of a node have changed.
    pub(super) fn change(&mut self, node: &NodeName, put: Vec<(Uid, Record)>, remove: Vec<Uid>) {
        if self.fenced.remove(node) {
            // It has come back, or else nothing would change: what was dropped is to be told anew.
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

    /// A node has this database file.
    pub(super) fn follow(&mut self, node: &NodeName, epoch: Epoch) {
        let found = self.node(node);
        found.epoch = Some(epoch);
        found.leaves = false;
    }

    /// A record of a node was written beside this. If it is being written here at this moment, that
    /// conflicts.
    pub(super) fn noted(&mut self, node: &NodeName, uid: &Uid, known: Known) {
        if let Some(records) = self.nodes.get_mut(node).and_then(|node| node.known.as_mut()) {
            records.insert(uid.clone(), known);
        }
    }

    /// Forgets all of a node, written or not.
    pub(super) fn forget(&mut self, node: &NodeName) {
        self.drop_wanted(node);
        self.nodes.remove(node);
        self.due.remove(node);
        self.asked.remove(node);
        self.fenced.remove(node);
    }

    /// Forgets a node once what is left of it is written.
    pub(super) fn leave(&mut self, node: &NodeName) {
        let Some(found) = self.nodes.get_mut(node) else { return self.forget(node) };
        found.leaves = true;
        self.leave_if_done(node);
    }

    /// Another replica serves the node: nothing is written of it.
    pub(super) fn fence(&mut self, node: &NodeName) {
        self.forget(node);
        self.fenced.insert(node.clone());
    }

    /// The next records to be written. [`Queue::finish`] is to follow.
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

    /// Records were written, or not.
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
                // Newer is what came meanwhile; and if that was all, what is not in it is to go.
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

    /// Tries those again that could not be written.
    pub(super) fn resume(&mut self) {
        for turn in std::mem::take(&mut self.later) {
            if let Some(node) = self.of(&turn) {
                node.waits = false;
                self.line_up(&turn.node);
            }
        }
    }

    /// Nodes whose records are to be read. [`Queue::listed`] is to follow for each, or
    /// [`Queue::not_listed`].
    pub(super) fn take_unlisted(&mut self, most: usize) -> Vec<Turn> {
        let count = self.unlisted.len().min(most);
        let mut turns: Vec<Turn> = self.unlisted.drain(..count).collect();
        turns.retain(|turn| self.of(turn).is_some());
        turns
    }

    /// The records of a node were read.
    pub(super) fn listed(&mut self, turn: &Turn, known: KnownRecords) {
        if let Some(node) = self.of(turn) {
            node.known = Some(known);
            node.waits = false;
            self.line_up(&turn.node);
        }
    }

    /// The records of a node could not be read.
    pub(super) fn not_listed(&mut self, turn: Turn) {
        if self.of(&turn).is_some() {
            self.later.push(turn);
        }
    }

    fn of(&mut self, turn: &Turn) -> Option<&mut Node> {
        self.nodes.get_mut(&turn.node).filter(|node| node.serial == turn.serial)
    }

    /// A node of which all is to be told anew, if there is room for that.
    pub(super) fn ask(&mut self) -> Option<NodeName> {
        if self.entries > self.limit / 2 {
            return None;
        }
        let name = self.due.pop_first()?;
        self.asked.insert(name.clone());
        Some(name)
    }

    /// Records that are to be written.
    pub(super) fn len(&self) -> usize {
        self.entries
    }

    /// Whether nothing is to be written, nor anything known of a node that is to be told anew.
    pub(super) fn is_settled(&self) -> bool {
        self.nodes.values().all(|node| !node.waits && node.wanted.is_empty() && !node.all)
    }

    fn node(&mut self, name: &NodeName) -> &mut Node {
        if !self.nodes.contains_key(name) {
            self.serials += 1;
            let node = Node { serial: self.serials, ..Node::default() };
            self.nodes.insert(name.clone(), node);
        }
        // It is there now.
        self.nodes.entry(name.clone()).or_default()
    }

    fn drop_wanted(&mut self, name: &NodeName) {
        if let Some(node) = self.nodes.get_mut(name) {
            self.entries -= node.wanted.len();
            node.wanted = Wanted::new();
            node.all = false;
        }
    }

    /// Whether so much more fits. If not, all of the node is dropped, and to be told anew later. A
    /// node that has more than fits at all is let in when it is alone.
    fn has_room(&mut self, name: &NodeName, more: usize) -> bool {
        let fits = self.entries == 0 || self.entries.saturating_add(more) <= self.limit;
        if !fits {
            self.drop_wanted(name);
            self.due.insert(name.clone());
        }
        fits
    }

    /// Puts a node into the line that it belongs into.
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
