//! The outbox: what must reach the cloud and does not follow from the rows. It waits here until the cloud has
//! confirmed it end to end. Rows are written by the writer within its groups, along with whatever else is written:
//! no message costs an fsync of its own. A row that turns out damaged is dropped and counted.

mod mirror;
mod row;
mod shared;
mod times;

use rusqlite::Connection;
use tokio::sync::watch;

use super::EdgeStore;
use super::local::{LocalObject, LocalWrite};
use super::notes::MAX_NOTE_BYTES;
use crate::object::without_managed_fields;
use crate::store::StoreError;
use crate::sync::edge::OutboxMarks;
use crate::sync::upload::{Lane, Lanes, UploadItem};

pub(super) use mirror::{Numbering, Outbox};
pub(super) use row::damaged;
pub(super) use shared::OutboxShared;
pub(super) use times::shift_event;

pub use times::TIME_CORRECTED;

/// How keys of Events begin; namespace, a slash and the name follow.
pub(super) const EVENT_PREFIX: &str = "event/";

/// The key of an Event.
#[must_use]
pub fn event_key(namespace: &str, name: &str) -> String {
    format!("{EVENT_PREFIX}{namespace}/{name}")
}

/// The key of the status of an object.
#[must_use]
pub fn status_key(uid: &str) -> String {
    format!("status/{uid}")
}

/// The status of an object that waits, as a connection sees it: what has a number up to `settled` is confirmed. A
/// damaged one is left to the next check.
pub(super) fn waiting_status(
    conn: &Connection,
    uid: &str,
    settled: u64,
) -> Result<Option<String>, StoreError> {
    let found = row::item(conn, Lane::Status, &status_key(uid))?.and_then(Result::ok);
    Ok(found.filter(|(number, _)| *number > settled).map(|(_, content)| content))
}

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
    /// A Lease or an Event of this node, which stays on the node: see [`Posting::Event`] for those that do not. A
    /// refusal is no error: the others are written.
    Local(LocalWrite),
    /// An Event of this node, created or replaced, and put into the outbox. One that is refused goes nowhere.
    Event {
        /// The lane.
        lane: Lane,
        /// The key of the item: [`event_key`], or one that other Events share with it.
        key: String,
        /// When it happened.
        at: Clocked,
        /// The Event.
        object: LocalObject,
    },
    /// An item for the outbox.
    Upload(OutboxPut),
    /// A fact about the agent, under a key of its own, such as whether it has ended in order: durable with the
    /// others. See [`EdgeStore::keep_note`] for those that may be lost.
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

impl OutboxPut {
    /// An Event that is kept on the node, for the cloud.
    pub(super) fn event(lane: Lane, key: String, at: Clocked, event: &LocalObject) -> Self {
        let body = without_managed_fields(event.body.clone());
        Self { lane, key, at, content: format!(r#"{{"event":{body}}}"#) }
    }
}

impl Posting {
    /// What it holds in memory, about.
    fn weight(&self) -> usize {
        const ROW: usize = 256;
        ROW + match self {
            Self::Local(write) => write.object().body.len(),
            Self::Event { object, .. } => 2 * object.body.len(),
            Self::Upload(put) => put.content.len(),
            Self::Note(_, text) => text.len().min(MAX_NOTE_BYTES),
        }
    }
}

impl EdgeStore {
    /// Writes all of this in one transaction, and answers after the commit.
    ///
    /// # Errors
    /// The store's; then nothing of it is in the database.
    pub async fn post(&self, postings: Vec<Posting>) -> Result<(), StoreError> {
        let bytes = postings.iter().map(Posting::weight).sum();
        self.inner.writer.run(bytes, move |conn, state| state.post(conn, &postings)).await
    }

    /// Told after each commit that changed the outbox.
    #[must_use]
    pub fn outbox(&self) -> watch::Receiver<OutboxState> {
        self.inner.shared.outbox.watch()
    }

    /// Items of a lane after a number, in order: up to `limit`, and about up to `bytes`, but one in any case.
    ///
    /// # Errors
    /// The store's. Items whose rows turn out damaged are left out, and are dropped.
    pub async fn outbox_page(
        &self,
        lane: Lane,
        after: u64,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<UploadItem>, StoreError> {
        let shared = self.inner.shared.clone();
        let read = move |conn: &_| {
            let after = after.max(shared.outbox.settled().get(lane));
            row::page(conn, lane, after, limit, bytes)
        };
        let (items, damaged) = self.inner.readers.run(read).await?;
        self.report_outbox_damage(damaged);
        Ok(items)
    }

    /// The item that waits under a key, as JSON text of its content.
    ///
    /// # Errors
    /// The store's. An item whose row turns out damaged is not found, and is dropped.
    pub async fn outbox_item(&self, lane: Lane, key: String) -> Result<Option<String>, StoreError> {
        let found = self.inner.readers.run(move |conn| row::item(conn, lane, &key)).await?;
        match found {
            Some(Ok((number, content))) => {
                Ok(Some(content).filter(|_| number > self.inner.shared.outbox.settled().get(lane)))
            }
            Some(Err(id)) => {
                self.report_outbox_damage(vec![id]);
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Notes that items up to a number are confirmed. They go with the next commit, or after a while: losing that
    /// costs an item that is sent again, nothing more.
    pub fn settle_outbox(&self, lane: Lane, upto: u64) {
        self.inner.shared.outbox.settle(lane, upto);
    }

    /// Gives the items after `sent` new numbers, above `above`.
    ///
    /// # Errors
    /// The store's.
    pub async fn renumber_outbox(&self, lane: Lane, sent: u64, above: u64) -> Result<(), StoreError> {
        self.inner.writer.run(0, move |conn, state| state.renumber_outbox(conn, lane, sent, above)).await
    }

    /// Changes what may wait. What is too much by that is dropped soon.
    pub fn set_outbox_limits(&self, limits: OutboxLimits) {
        if self.inner.shared.outbox.set_limits(limits) {
            drop(self.inner.writer.post(|conn, state| state.trim_outbox(conn)));
        }
    }

    /// The clock was wrong until `before` (milliseconds since this boot) and was then set forward by this many
    /// milliseconds: corrects the times in Events that wait and were made before that, and says so in an
    /// annotation. Returns how many were corrected.
    ///
    /// # Errors
    /// The store's; some may have been corrected then.
    pub async fn correct_times(&self, before: Clocked, forward_ms: i64) -> Result<u64, StoreError> {
        let last = self.inner.shared.outbox.last();
        let mut corrected = 0;
        for lane in Lane::ALL {
            let mut after = Some(0);
            while let Some(from) = after {
                let range = (lane, from, last.get(lane));
                let job = move |conn: &_, state: &mut super::state::State| {
                    state.correct_times(conn, range, before, forward_ms)
                };
                let count;
                (count, after) = self.inner.writer.run(0, job).await?;
                corrected += count;
            }
        }
        Ok(corrected)
    }

    fn report_outbox_damage(&self, damaged: Vec<i64>) {
        if !damaged.is_empty() {
            drop(self.inner.writer.post(move |conn, state| state.repair_outbox(conn, &damaged)));
        }
    }
}
