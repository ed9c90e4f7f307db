//! The outbox: what must reach the cloud and does not follow from the rows. It waits here until the cloud has
//! confirmed it end to end. Rows are written by the writer within its groups, along with whatever else is written:
//! no message costs an fsync of its own. A row that turns out damaged is dropped and counted.

use tokio::sync::watch;

use super::EdgeStore;
use super::local::LocalWrite;
use crate::store::StoreError;
use crate::sync::edge::OutboxMarks;
use crate::sync::upload::{Lane, Lanes, UploadItem};

/// The longest item, in bytes of JSON.
pub const MAX_UPLOAD_BYTES: usize = 64 << 10;

/// What may wait. Beyond it the oldest items of the least important lane are dropped, and counted; an item that is
/// of no more importance than all others and larger than the room they leave is dropped itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxLimits {
    /// Items.
    pub rows: u64,
    /// Bytes of items.
    pub bytes: u64,
}

impl Default for OutboxLimits {
    fn default() -> Self {
        Self { rows: 10_000, bytes: 8 << 20 }
    }
}

/// When something happened by a clock that never jumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocked {
    /// Names the boot of the device: other boots have other clocks.
    pub boot: u64,
    /// Milliseconds since that boot, with the time spent asleep.
    pub since_boot: u64,
}

/// An item to be put into the outbox, in the place of the one that waits under the same key, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxPut {
    /// Its lane.
    pub lane: Lane,
    /// What it is about: at most one item of a key waits.
    pub key: String,
    /// When it happened.
    pub at: Clocked,
    /// A [`crate::sync::upload::Content`] as JSON text, at most [`MAX_UPLOAD_BYTES`].
    pub content: String,
}

/// Something to be written with other things in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Posting {
    /// A Lease or an Event of this node. A refusal is no error: the others are written.
    Local(LocalWrite),
    /// An item for the outbox.
    Upload(OutboxPut),
    /// A fact about the agent, under a key of its own, such as whether it has ended in order.
    Note(&'static str, String),
}

/// How the outbox stands after the last commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxState {
    /// Numbers and rows.
    pub marks: OutboxMarks,
    /// Bytes of the items that wait, by lane.
    pub bytes: Lanes,
    /// Items dropped since the store was opened, by lane: no room, or damaged.
    pub dropped: Lanes,
}

impl EdgeStore {
    /// Writes all of this in one transaction, and answers after the commit.
    ///
    /// # Errors
    /// The store's; then nothing of it is in the database.
    pub async fn post(&self, _postings: Vec<Posting>) -> Result<(), StoreError> {
        todo!()
    }

    /// Told after each commit that changed the outbox.
    #[must_use]
    pub fn outbox(&self) -> watch::Receiver<OutboxState> {
        todo!()
    }

    /// Items of a lane after a number, in order: up to `limit`, and about up to `bytes`, but one in any case.
    ///
    /// # Errors
    /// The store's.
    pub async fn outbox_page(
        &self,
        _lane: Lane,
        _after: u64,
        _limit: usize,
        _bytes: usize,
    ) -> Result<Vec<UploadItem>, StoreError> {
        todo!()
    }

    /// The item that waits under a key, as JSON text of its content.
    ///
    /// # Errors
    /// The store's.
    pub async fn outbox_item(&self, _lane: Lane, _key: String) -> Result<Option<String>, StoreError> {
        todo!()
    }

    /// Notes that items up to a number are confirmed. They go with the next commit, or after a while: losing that
    /// costs an item that is sent again, nothing more.
    pub fn settle_outbox(&self, _lane: Lane, _upto: u64) {
        todo!()
    }

    /// Gives the items after `sent` new numbers, above `above`.
    ///
    /// # Errors
    /// The store's.
    pub async fn renumber_outbox(&self, _lane: Lane, _sent: u64, _above: u64) -> Result<(), StoreError> {
        todo!()
    }

    /// Changes what may wait.
    pub fn set_outbox_limits(&self, _limits: OutboxLimits) {
        todo!()
    }

    /// The clock was wrong until `before` (milliseconds since this boot) and was then set forward by this many
    /// milliseconds: corrects the times in Events that wait and were made before that, and says so in an
    /// annotation. Returns how many were corrected.
    ///
    /// # Errors
    /// The store's.
    pub async fn correct_times(&self, _before: Clocked, _forward_ms: i64) -> Result<u64, StoreError> {
        todo!()
    }
}
