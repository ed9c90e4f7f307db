//! Row of a node in the overview: its state with a timestamp, and its numbers of objects.

use edgesync_admin::cloud::{SummaryRow, SummaryState};
use edgesync_object::NodeName;

/// Published numbers of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) state: SummaryState,
    /// Time of the last change of state, in seconds since 1970; at the earliest the start of the
    /// cloud side.
    pub(crate) since: i64,
    /// Objects that the node holds, by its ObjectSync records.
    pub(crate) held: u64,
    /// Objects that are placed on the node.
    pub(crate) desired: u64,
    /// Objects to be sent or removed.
    pub(crate) pending: u64,
    /// Objects that are rejected, held back from removal, or not in effect.
    pub(crate) problems: u64,
}

impl Row {
    /// Returns whether only frequently changing numbers differ, as while a node syncs.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.state == other.state && self.problems == other.problems
    }

    /// Returns the row of a node with this name.
    pub(super) fn with_name(&self, name: &NodeName) -> SummaryRow {
        let Self { state, since, held, desired, pending, problems } = *self;
        SummaryRow(name.clone(), state as usize, since, held, desired, pending, problems)
    }
}

/// Number of nodes in each state, and sums of their objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// By the index of the state in [`SummaryState::ALL`].
    pub(crate) counts: [u64; SummaryState::ALL.len()],
    /// Held objects of all nodes.
    pub(crate) held: u64,
    /// Desired objects of all nodes.
    pub(crate) desired: u64,
}

impl Tally {
    pub(super) fn add(&mut self, row: &Row) {
        self.counts[row.state as usize] += 1;
        self.held += row.held;
        self.desired += row.desired;
    }

    pub(super) fn remove(&mut self, row: &Row) {
        let count = &mut self.counts[row.state as usize];
        *count = count.saturating_sub(1);
        self.held = self.held.saturating_sub(row.held);
        self.desired = self.desired.saturating_sub(row.desired);
    }
}
