//! Bounds the memory of ledgers. The records of a node are read only if the node differs from its
//! desired objects, and only while the differences of all nodes together stay below a limit. The
//! other nodes wait in order; each receives an acknowledgement of its Hello from time to time. A
//! node in sync with many changes while the limit is reached falls behind: its machine drops the
//! differences, and has its records read like the others.

use std::collections::VecDeque;
use std::time::Duration;

use super::nodes::{NodeId, Nodes};
use edgesync_object::NodeName;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};
use edgesync_protocol::timing::Now;

/// Differences of all nodes together above which no further records are read; about 200 bytes each.
const MAX_DIFFERENCES: usize = 500_000;
/// Maximum number of concurrent reads of records.
const MAX_READS: usize = 16;
/// Time after which one node is read in spite of the limit, so that nodes that reject objects or
/// apply them slowly cannot starve all others.
const PATIENCE: Duration = Duration::from_secs(1);

/// Queue of nodes and sum of their differences; see the module.
#[derive(Debug)]
pub(super) struct LedgerLoader {
    waiting: VecDeque<NodeId>,
    /// Limit of the differences; [`MAX_DIFFERENCES`].
    limit: usize,
    /// Number of reads in flight, and the differences that they may add.
    reading: usize,
    expected: usize,
    /// Sum of the differences of all nodes.
    different: usize,
    /// Start of the last read.
    last: Now,
}

impl Default for LedgerLoader {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            limit: MAX_DIFFERENCES,
            reading: 0,
            expected: 0,
            different: 0,
            last: Now::ZERO,
        }
    }
}

impl LedgerLoader {
    #[cfg(test)]
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns the number of waiting nodes.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Queues a node whose machine needs its records.
    pub(super) fn wait(&mut self, node: NodeId) {
        self.waiting.push_back(node);
    }

    /// Returns whether the limit of differences is exceeded.
    pub(super) fn is_full(&self) -> bool {
        self.different + self.expected > self.limit
    }

    /// Replaces the differences of one node in the sum.
    pub(super) fn count(&mut self, before: usize, now: usize) {
        self.different = self.different.saturating_sub(before) + now;
    }

    fn has_room(&self, now: Now, more: usize) -> bool {
        let sum = self.different + self.expected;
        // A single node may exceed the limit.
        let more = more.min(self.limit / 2);
        self.reading < MAX_READS
            && (sum + more <= self.limit || (self.reading == 0 && now.saturating_sub(self.last) >= PATIENCE))
    }

    /// Returns the next node whose records to read, and its expected number of differences; `None`
    /// while the limit is reached. [`LedgerLoader::ended`] follows.
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

    /// Releases the expected differences of a read that has ended.
    pub(super) fn ended(&mut self, expected: usize) {
        self.reading = self.reading.saturating_sub(1);
        #[cfg(test)]
        let expected = if planted(Fault::ExpectedKept) { 0 } else { expected };
        self.expected = self.expected.saturating_sub(expected);
    }

    /// Returns when a node is read in spite of the limit.
    pub(super) fn deadline(&self) -> Option<Now> {
        let stuck = !self.waiting.is_empty() && self.reading == 0;
        stuck.then(|| self.last + PATIENCE)
    }
}
