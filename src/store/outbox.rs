//! The outbox: what must reach the cloud and does not follow from the rows. It waits here until the cloud has
//! confirmed it end to end. Rows are written by the writer within its groups, along with whatever else is written:
//! no message costs an fsync of its own. A row that turns out damaged, or sealed with a lost key, is dropped and counted.

mod mirror;
pub(super) mod row;
mod shared;
mod times;

use rusqlite::Connection;

use super::notes::MAX_NOTE_BYTES;
use super::seals::Seals;
use super::types::LocalObject;
use edgesync_object::without_managed_fields;
use edgesync_protocol::edge::OutboxMarks;
use edgesync_protocol::upload::{Content, EffectContent, Lane, Lanes};
use edgesync_store::StoreError;

pub(super) use mirror::{Numbering, Outbox};
pub(super) use row::{damaged, seal};
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

/// How keys of the status of objects begin; the UID follows.
const STATUS_PREFIX: &str = "status/";

/// The key of the status of an object.
#[must_use]
pub fn status_key(uid: &str) -> String {
    format!("{STATUS_PREFIX}{uid}")
}

/// How keys of what is in effect of objects begin; the UID follows.
const EFFECT_PREFIX: &str = "effect/";

/// The key of what is in effect of an object.
#[must_use]
pub fn effect_key(uid: &str) -> String {
    format!("{EFFECT_PREFIX}{uid}")
}

/// The status of an object that waits, as a connection sees it: what has a number up to `settled` is confirmed. A
/// damaged one, or one that cannot be opened, is left to the next check.
pub(super) fn waiting_status(
    conn: &Connection,
    seals: &Seals,
    uid: &str,
    settled: u64,
) -> Result<Option<String>, StoreError> {
    let found = row::item(conn, seals, Lane::Status, &status_key(uid))?.and_then(Result::ok);
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
    /// A [`edgesync_protocol::upload::Content`] as JSON text, at most [`MAX_UPLOAD_BYTES`].
    pub content: String,
}

/// Something to be written with other things in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Posting {
    /// An Event of this node, created or replaced, and put into the outbox. One that is refused goes nowhere: the others
    /// are written.
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
    /// Items dropped since the store was opened, by lane: no room, damaged, or sealed with a lost key.
    pub dropped: Lanes,
}

impl OutboxPut {
    /// An Event that is kept on the node, for the cloud.
    pub(super) fn event(lane: Lane, key: String, at: Clocked, event: &LocalObject) -> Self {
        let body = without_managed_fields(event.body.clone());
        Self { lane, key, at, content: format!(r#"{{"event":{body}}}"#) }
    }

    /// What is in effect of an object, in the place of what waits of it. None if it is beyond its limits.
    #[must_use]
    pub fn effect(at: Clocked, effect: EffectContent) -> Option<Self> {
        let key = effect_key(&effect.uid);
        let content = effect.is_sane().then(|| serde_json::to_string(&Content::Effect(effect)).ok())??;
        Some(Self { lane: Lane::Status, key, at, content })
    }
}

impl Posting {
    /// What it holds in memory, about.
    pub(super) fn weight(&self) -> usize {
        const ROW: usize = 256;
        ROW + match self {
            Self::Event { object, .. } => 2 * object.body.len(),
            Self::Upload(put) => put.content.len(),
            Self::Note(_, text) => text.len().min(MAX_NOTE_BYTES),
        }
    }
}
