//! The outbox: items for the cloud that do not derive from the rows. An item stays until the cloud
//! has confirmed it end to end. The writer writes items in its group commits, so no item costs an
//! extra fsync. A row that is damaged or sealed with a lost key is dropped and counted.

mod outbox_totals;
pub(super) mod row;
mod shared;
mod times;

use rusqlite::Connection;

use super::metadata::MAX_METADATA_BYTES;
use super::seals::Seals;
use super::types::LocalObject;
use edgesync_object::without_managed_fields;
use edgesync_protocol::edge::OutboxMarks;
use edgesync_protocol::upload::{Content, EffectContent, Lane, Lanes};
use edgesync_store::StoreError;

pub(super) use outbox_totals::{Numbering, Outbox};
pub(super) use row::{damaged, seal};
pub(super) use shared::OutboxShared;
pub(super) use times::shift_event;

pub use times::TIME_CORRECTED;

/// Prefix of the keys of Events; namespace, a slash and the name follow.
pub(super) const EVENT_PREFIX: &str = "event/";

/// Returns the key of an Event.
#[must_use]
pub fn event_key(namespace: &str, name: &str) -> String {
    format!("{EVENT_PREFIX}{namespace}/{name}")
}

/// Prefix of the keys of objects' status; the UID follows.
const STATUS_PREFIX: &str = "status/";

/// Returns the key of an object's status.
#[must_use]
pub fn status_key(uid: &str) -> String {
    format!("{STATUS_PREFIX}{uid}")
}

/// Prefix of the keys of objects' effect; the UID follows.
const EFFECT_PREFIX: &str = "effect/";

/// Returns the key of an object's effect.
#[must_use]
pub fn effect_key(uid: &str) -> String {
    format!("{EFFECT_PREFIX}{uid}")
}

/// Returns the pending status of an object, as a connection sees it: numbers up to `settled` are
/// confirmed. A damaged one, or one that cannot be opened, is left to the next check.
pub(super) fn waiting_status(
    conn: &Connection,
    seals: &Seals,
    uid: &str,
    settled: u64,
) -> Result<Option<String>, StoreError> {
    let found = row::item(conn, seals, Lane::Status, &status_key(uid))?.and_then(Result::ok);
    Ok(found.filter(|(number, _)| *number > settled).map(|(_, content)| content))
}

/// Maximum bytes of an item's JSON.
pub const MAX_UPLOAD_BYTES: usize = 64 << 10;

/// Limits of the outbox. Beyond them the oldest items of the least important lane are dropped, and
/// counted. A new item is dropped itself if more important items leave too little space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxLimits {
    /// Maximum number of items.
    pub rows: u64,
    /// Maximum bytes of all items.
    pub bytes: u64,
}

impl Default for OutboxLimits {
    fn default() -> Self {
        Self { rows: 10_000, bytes: 8 << 20 }
    }
}

/// A time by the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MonotonicTime {
    /// Number of the device's boot: each boot has its own clock.
    pub boot: u64,
    /// Milliseconds since that boot, including suspended time.
    pub since_boot: u64,
}

/// An item for the outbox, which replaces the pending one of the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxPut {
    pub lane: Lane,
    /// Its subject: at most one item of a key is pending.
    pub key: String,
    /// Time of the occurrence.
    pub at: MonotonicTime,
    /// A [`edgesync_protocol::upload::Content`] as JSON text, at most [`MAX_UPLOAD_BYTES`].
    pub content: String,
}

/// An entry of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutboxWrite {
    /// An Event of this node, created or replaced, and put into the outbox. A refused one is
    /// skipped: the others are written.
    Event {
        lane: Lane,
        /// Key of the item: [`event_key`], or one shared with other Events.
        key: String,
        /// Time of the occurrence.
        at: MonotonicTime,
        object: LocalObject,
    },
    /// An item for the outbox.
    Upload(OutboxPut),
    /// Metadata of the agent under its own key, such as whether the last run ended cleanly: durable
    /// with the other entries. See [`super::EdgeStore::keep_note`] for values that may be lost.
    Metadata(&'static str, String),
}

/// State of the outbox after the last commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxState {
    /// Last numbers and row counts, by lane.
    pub marks: OutboxMarks,
    /// Bytes of the pending items, by lane.
    pub bytes: Lanes,
    /// Items dropped since the store was opened, by lane: over the limits, damaged, or sealed with
    /// a lost key.
    pub dropped: Lanes,
}

impl OutboxPut {
    /// Returns the item of an Event that the node stores, too.
    pub(super) fn event(lane: Lane, key: String, at: MonotonicTime, event: &LocalObject) -> Self {
        let body = without_managed_fields(event.body.clone());
        Self { lane, key, at, content: format!(r#"{{"event":{body}}}"#) }
    }

    /// Returns the item of an object's effect, which replaces the pending one. `None` if it exceeds
    /// its limits.
    #[must_use]
    pub fn effect(at: MonotonicTime, effect: EffectContent) -> Option<Self> {
        let key = effect_key(&effect.uid);
        let content = effect.is_sane().then(|| serde_json::to_string(&Content::Effect(effect)).ok())??;
        Some(Self { lane: Lane::Status, key, at, content })
    }
}

impl OutboxWrite {
    /// Returns the approximate bytes in memory.
    pub(super) fn weight(&self) -> usize {
        const ROW: usize = 256;
        ROW + match self {
            Self::Event { object, .. } => 2 * object.body.len(),
            Self::Upload(put) => put.content.len(),
            Self::Metadata(_, text) => text.len().min(MAX_METADATA_BYTES),
        }
    }
}
