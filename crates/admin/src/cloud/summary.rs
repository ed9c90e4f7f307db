//! Summary of all nodes for pages, and its changes.

use edgesync_object::NodeName;
use serde::{Deserialize, Serialize};

use crate::answer::Answer;

/// Declares the states with their names in JSON, in the order of their indices.
macro_rules! states {
    ($($(#[$about:meta])* $state:ident = $name:literal,)*) => {
        /// State of a node in the summary; a row contains its index.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub enum SummaryState {
            $($(#[$about])* $state,)*
        }

        impl SummaryState {
            /// All states, by index.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$state),*];

            /// Returns the name used in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$state => $name,)*
                }
            }
        }
    };
}

states! {
    /// Holds all desired objects.
    InSync = "in sync",
    /// Is being sent changes.
    Syncing = "syncing",
    /// Connected; its held objects are being determined.
    Connecting = "connecting",
    /// Holds all desired objects, but some are not in effect.
    NotInEffect = "not in effect",
    /// Rejects at least one desired object.
    Rejecting = "rejecting",
    /// Waits for an operator to confirm removals.
    HeldBack = "held back",
    /// Not connected to this or, as far as known, another replica.
    #[default]
    Offline = "offline",
    /// Removed from the fleet.
    Removed = "removed",
    /// Not connected as planned, until its next check-in.
    Away = "away",
    /// Has not connected by the time of its check-in.
    Overdue = "overdue",
    /// Holds all desired objects that may come over its metered link.
    Waiting = "waiting",
}

impl SummaryState {
    /// Returns the names of all states, by index.
    #[must_use]
    pub fn names() -> Vec<String> {
        Self::ALL.map(|state| state.name().to_owned()).to_vec()
    }
}

/// A line of the summary stream; a snapshot line is also the whole summary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "UPPERCASE")]
pub enum SummaryLine {
    Snapshot(SummaryRows),
    /// New and changed nodes, and deleted ones.
    Changed(SummaryRows),
    /// Keepalive, sent after ten seconds without changes.
    Alive {
        /// Time of the last pass over all nodes, in milliseconds since 1970.
        at: i64,
    },
}

impl Answer for SummaryLine {
    const NAME: &'static str = "fleet summary";
}

/// Sums and rows. The rows come last, for readers that parse the text incrementally.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryRows {
    /// Identifies the process run that `revision` belongs to.
    pub start: String,
    pub revision: u64,
    /// Time of the pass that found the changes, in milliseconds since 1970.
    pub at: i64,
    /// Names of the states, by index.
    pub states: Vec<String>,
    /// Node counts by index of the state in `states`.
    pub counts: Vec<u64>,
    /// Objects held by all nodes.
    pub held: u64,
    /// Objects desired on all nodes.
    pub desired: u64,
    pub gone: Vec<NodeName>,
    pub nodes: Vec<SummaryRow>,
}

/// A node in the summary: name, index of its state, time of the state in seconds since 1970,
/// objects held, desired and pending, and objects that need attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryRow(pub NodeName, pub usize, pub i64, pub u64, pub u64, pub u64, pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_of_a_state_is_its_position_among_all() {
        for (position, state) in SummaryState::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, position, "{}", state.name());
        }
    }
}
