//! Whose records are read. Only nodes that differ from what they are to hold need theirs, and what differs takes memory:
//! so many are read at a time that the differences of all nodes together keep within a bound. The others wait, in their
//! order; each is told from time to time that its Hello was heard. Nodes in sync for which much changes at once fall behind
//! when there is no room: their machines forget what differs, and have their records read like the others.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Fleet, Inbox};
use crate::source::Source;
use edgesync_protocol::timing::Now;

/// Differences of all nodes together with which no further records are read: about 200 bytes each.
const MAX_DIFFERENCES: usize = 500_000;
/// Nodes whose records are being read at the same time.
const MAX_READS: usize = 16;
/// After so long one node is read in spite of the bound: what nodes refuse, or are slow to take, must not keep all others
/// out.
const PATIENCE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Openings {
    waiting: VecDeque<String>,
    /// Reads under way, and the differences that they may bring.
    reading: usize,
    expected: usize,
    /// The differences of all nodes.
    different: usize,
    /// When a read was begun last.
    last: Now,
}

impl Openings {
    /// Nodes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there is no room for further differences.
    pub(super) fn is_full(&self) -> bool {
        self.different + self.expected > MAX_DIFFERENCES
    }

    /// Takes the differences of one node into the sum, in the place of those from before.
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
}

impl<S: Source> Fleet<S> {
    /// A machine wants the records of its node.
    pub(super) fn wants_records(&mut self, name: &str) {
        self.openings.waiting.push_back(name.to_owned());
    }

    /// Begins the reads for which there is room.
    pub(super) fn read_next(&mut self) {
        let now = self.now();
        while let Some(name) = self.openings.waiting.front() {
            let Some(node) = self.nodes.get(name) else {
                self.openings.waiting.pop_front();
                continue;
            };
            let recorded = usize::try_from(node.machine.recorded_tally().count).unwrap_or(usize::MAX);
            let expected = recorded.saturating_add(usize::try_from(node.desired).unwrap_or(usize::MAX));
            if !self.openings.has_room(now, expected) {
                return;
            }
            let Some(name) = self.openings.waiting.pop_front() else { return };
            self.openings.reading += 1;
            self.openings.expected = self.openings.expected.saturating_add(expected);
            self.openings.last = now;
            self.begun(&name);
            let (source, inbox) = (self.source.clone(), self.inbox.clone());
            tokio::spawn(async move {
                let records = source.records(&name).await;
                let _ = inbox.send(Inbox::Opened(name, expected, records)).await;
            });
        }
    }

    /// A read has ended for which so many differences were expected.
    pub(super) fn read_ended(&mut self, expected: usize) {
        self.openings.reading = self.openings.reading.saturating_sub(1);
        self.openings.expected = self.openings.expected.saturating_sub(expected);
    }

    /// When there is something to read in spite of the bound.
    pub(super) fn reading_deadline(&self) -> Option<Now> {
        let stuck = !self.openings.waiting.is_empty() && self.openings.reading == 0;
        stuck.then(|| self.openings.last + PATIENCE)
    }
}
