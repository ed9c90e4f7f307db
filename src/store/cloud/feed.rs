//! The changes of the store, in order, for the fleet within the same process.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::placement::Summary;

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

/// What comes out of a [`Feed`].
#[derive(Clone, Debug)]
pub enum FeedItem {
    /// The next change.
    Change(FeedChange),
    /// The receiver was too slow and changes are lost to it: it must take a new snapshot.
    Missed {
        /// How many changes are lost.
        changes: u64,
    },
    /// The store has been closed.
    Closed,
}

/// All changes after a snapshot, in order and none twice.
#[derive(Debug)]
pub struct Feed {
    receiver: broadcast::Receiver<FeedChange>,
    /// The version of the snapshot: changes up to it are in there.
    after: u64,
}

impl Feed {
    pub(super) fn new(receiver: broadcast::Receiver<FeedChange>, after: u64) -> Self {
        Self { receiver, after }
    }

    /// Waits for the next item. Can be cancelled without loss.
    pub async fn next(&mut self) -> FeedItem {
        loop {
            match self.receiver.recv().await {
                Ok(change) if change.version <= self.after => {}
                Ok(change) => return FeedItem::Change(change),
                Err(broadcast::error::RecvError::Lagged(changes)) => return FeedItem::Missed { changes },
                Err(broadcast::error::RecvError::Closed) => return FeedItem::Closed,
            }
        }
    }
}
