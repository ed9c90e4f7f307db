//! Bounds the memory of ledgers: the records of a node are read only if the node differs from what
//! it is to hold, and only as many are read at a time as keep the differences of all nodes together
//! below a limit. The others wait in their order; each is told from time to time that its Hello was
//! received. A node in sync for which much changes while there is no room falls behind: its machine
//! forgets what differs, and has its records read like the others.

use std::collections::VecDeque;
use std::time::Duration;

use super::nodes::{NodeId, Nodes};
use edgesync_object::NodeName;
use edgesync_protocol::timing::Now;

/// Differences of all nodes together with which no further records are read: about 200 bytes each.
const MAX_DIFFERENCES: usize = 500_000;
/// Nodes whose records are being read at the same time.
const MAX_READS: usize = 16;
/// After so long one node is read in spite of the bound: what nodes refuse, or are slow to take,
/// must not keep all others out.
const PATIENCE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LedgerLoader {
    waiting: VecDeque<NodeId>,
    /// Reads under way, and the differences that they may bring.
    reading: usize,
    expected: usize,
    /// The differences of all nodes.
    different: usize,
    /// When a read was begun last.
    last: Now,
}

impl LedgerLoader {
    /// Nodes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Enters a node whose machine wants its records.
    pub(super) fn wait(&mut self, node: NodeId) {
        self.waiting.push_back(node);
    }

    /// Whether there is no room for further differences.
    pub(super) fn is_full(&self) -> bool {
        self.different + self.expected > MAX_DIFFERENCES
    }

    /// Replaces the differences of one node in the sum.
    pub(super) fn count(&mut self, before: usize, now: usize) {
        self.different = self.different.saturating_sub(before) + now;
    }

    fn has_room(&self, now: Now, more: usize) -> bool {
        let sum = self.different + self.expected;
        // A node alone may need more than there is room for.
        let more = more.min(MAX_DIFFERENCES / 2);
        self.reading < MAX_READS
            && (sum + more <= MAX_DIFFERENCES
                || (self.reading == 0 && now.saturating_sub(self.last) >= PATIENCE))
    }

    /// The next node whose records are to be read, and how many differences are expected; none
    /// while there is no room. [`LedgerLoader::ended`] follows.
    pub(super) fn next(&mut self, now: Now, nodes: &Nodes) -> Option<(NodeId, NodeName, usize)> {
        while let Some(id) = self.waiting.front().copied() {
            let Some(node) = nodes.get(id) else {
                self.waiting.pop_front();
                continue;
            };
            let recorded = usize::try_from(node.machine.recorded_tally().count).unwrap_or(usize::MAX);
            let expected =
                recorded.saturating_add(usize::try_from(node.progress.desired()).unwrap_or(usize::MAX));
            if !self.has_room(now, expected) {
                return None;
            }
            self.reading += 1;
            self.expected = self.expected.saturating_add(expected);
            self.last = now;
            self.waiting.pop_front();
            return Some((id, node.name.clone(), expected));
        }
        None
    }

    /// A read has ended for which so many differences were expected.
    pub(super) fn ended(&mut self, expected: usize) {
        self.reading = self.reading.saturating_sub(1);
        self.expected = self.expected.saturating_sub(expected);
    }

    /// When a node is read in spite of the bound.
    pub(super) fn deadline(&self) -> Option<Now> {
        let stuck = !self.waiting.is_empty() && self.reading == 0;
        stuck.then(|| self.last + PATIENCE)
    }
}
