//! One node among all: in what state it is, since when, and the numbers that tell how far it is.

use std::fmt::Write as _;

use serde_json::Value;

/// In what state a node is, in one word. The first that holds counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// It holds what it is to hold.
    InSync,
    /// It is being sent something.
    Syncing,
    /// It is connected, and what it holds is being found out.
    Connecting,
    /// It holds everything, and something of that is not in effect.
    NotInEffect,
    /// It rejects something.
    Rejecting,
    /// It waits until somebody confirms removals.
    HeldBack,
    /// It is not connected.
    #[default]
    Offline,
    /// It was removed from the fleet.
    Removed,
}

/// The states in their order, as they are written: a row has the place of its state here.
pub(crate) const STATES: [&str; 8] =
    ["in sync", "syncing", "connecting", "not in effect", "rejecting", "held back", "offline", "removed"];

/// What is told of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) state: State,
    /// Since when, in seconds since 1970; since the cloud side has started if it was so then.
    pub(crate) since: i64,
    /// Objects that it holds.
    pub(crate) held: u64,
    /// Objects that it is to hold.
    pub(crate) wanted: u64,
    /// Objects to be sent or removed.
    pub(crate) pending: u64,
    /// Objects that it rejects, whose removal is held back, or that are not in effect.
    pub(crate) troubles: u64,
}

impl Row {
    /// Whether only numbers differ, which change all the time while a node syncs.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.state == other.state && self.troubles == other.troubles
    }

    /// `[name, state, since, held, wanted, pending, troubles],`
    pub(super) fn write(&self, name: &str, out: &mut String) {
        let Self { state, since, held, wanted, pending, troubles } = self;
        // Writing to a text does not fail.
        let _ = write!(
            out,
            "[{},{},{since},{held},{wanted},{pending},{troubles}],",
            Value::from(name),
            *state as usize
        );
    }
}

/// How many nodes there are in each state, and what they hold together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// By the place of the state in [`STATES`].
    pub(crate) counts: [u64; STATES.len()],
    /// Objects that all hold.
    pub(crate) held: u64,
    /// Objects that all are to hold.
    pub(crate) wanted: u64,
}

impl Tally {
    pub(super) fn add(&mut self, row: &Row) {
        self.counts[row.state as usize] += 1;
        self.held += row.held;
        self.wanted += row.wanted;
    }

    pub(super) fn remove(&mut self, row: &Row) {
        let count = &mut self.counts[row.state as usize];
        *count = count.saturating_sub(1);
        self.held = self.held.saturating_sub(row.held);
        self.wanted = self.wanted.saturating_sub(row.wanted);
    }
}
