//! What a commit has changed, as the fleet is told of it.

use std::sync::Arc;

use edgesync_placement::Summary;

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// It has another content.
    Modified,
    /// It is no more.
    Deleted,
}

impl ChangeKind {
    /// As stored in the history.
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

/// A committed change of an object that placement cares about.
#[derive(Clone, Debug)]
pub struct FeedChange {
    /// What happened.
    pub kind: ChangeKind,
    /// The version of the change; larger than that of every earlier one.
    pub version: u64,
    /// The object after the change; a deleted one as it was last.
    pub object: Arc<Summary>,
}
