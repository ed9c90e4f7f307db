//! Committed changes, as the [`Feed`](super::Feed) reports them to the fleet.

use std::sync::Arc;

use edgesync_placement::Summary;

/// Type of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

impl ChangeKind {
    /// Returns the code stored in the history.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Added => 0,
            Self::Modified => 1,
            Self::Deleted => 2,
        }
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        [Self::Added, Self::Modified, Self::Deleted].into_iter().find(|kind| kind.code() == code)
    }
}

/// Committed change of an object that placement depends on.
#[derive(Clone, Debug)]
pub struct FeedChange {
    /// The type of the change.
    pub kind: ChangeKind,
    /// Version of the change, larger than those of all earlier changes.
    pub version: u64,
    /// The object after the change; for a deletion, its last state.
    pub object: Arc<Summary>,
}
