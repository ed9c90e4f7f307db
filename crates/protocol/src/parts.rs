//! Reassembles a message that is larger than a frame, over sessions and restarts.
//!
//! One message is received at a time. The store keeps its first bytes, memory only those after
//! them. The stored bytes are a cache: [`assemble`] proves the whole message before it is applied,
//! and a message whose bytes are damaged or gone is received again from its start.

use std::sync::Arc;

use edgesync_object::{ResourceVersion, name};

use super::apply::check_length;
use super::change::{Change, RejectReason, Rejected, Uid};
use super::digest::{Epoch, MessageDigest};
#[cfg(any(test, feature = "simulation"))]
use super::fault::{Fault, planted};
use super::frame::{Part, PartialMessage};
use super::message::{Interner, Message};
use super::patch::Patch;

/// Allowance for header and route around the object, in bytes.
const ENVELOPE: u64 = 4096;
/// The most bytes of a message in memory before the store keeps them, unless `link.max_frame` is
/// smaller.
const PIECE_BYTES: usize = 128 << 10;
/// The share of these bytes that is worth a commit at the end of a session.
const MIN_PIECE_SHARE: usize = 8;
/// The least bytes that a Hello names. Fewer cost less to send again.
const MIN_NAMED: u64 = 4096;

/// Returns the most bytes in memory before the store keeps them.
pub(super) fn piece_bytes(max_frame: usize) -> usize {
    max_frame.min(PIECE_BYTES)
}

/// Returns the least bytes that the store keeps at the end of a session.
pub(super) fn min_piece_bytes(max_frame: usize) -> usize {
    piece_bytes(max_frame) / MIN_PIECE_SHARE
}

/// Parses a message that arrived in parts. Returns `None` if its text is not the announced one.
#[must_use]
pub fn assemble(
    text: &str,
    expected: MessageDigest,
    epoch: Epoch,
    max_object: usize,
) -> Option<Result<Change, Rejected>> {
    let is_whole = epoch.message_digest([text]) == expected;
    #[cfg(any(test, feature = "simulation"))]
    let is_whole = is_whole || planted(Fault::DamagedParts);
    is_whole.then(|| parse(text, max_object))
}

/// Parses the text of one message, or of a patch.
pub(super) fn parse(text: &str, max_object: usize) -> Result<Change, Rejected> {
    if let Some(patch) = Patch::from_text(text) {
        let patch = patch.map_err(|problem| invalid(format!("must be a patch: {problem}")))?;
        check_length(&patch, max_object)?;
        return Ok(Change::Patch(Arc::new(patch)));
    }
    let message = serde_json::from_str::<Message<'_>>(text);
    let message = message.map_err(|error| invalid(format!("must be the JSON of a message: {error}")))?;
    message.to_change(&mut Interner::default(), max_object)
}

/// Rejects a message that names no valid object.
fn invalid(message: String) -> Rejected {
    Rejected {
        uid: "".into(),
        resource_version: "".into(),
        reason: RejectReason::Invalid,
        message,
        object: None,
    }
}

/// The outcome of one part.
#[derive(Debug)]
pub(super) enum Arrival {
    /// More parts are needed; `received` bytes have arrived without a gap.
    Incomplete { received: u64 },
    /// The message is complete, in memory.
    Whole { text: String, digest: Option<MessageDigest> },
    /// The message is complete: the store keeps the first `message.received` bytes.
    Kept { message: PartialMessage, rest: String },
    /// The message cannot be taken.
    Rejected(Rejected),
}

/// The message in reassembly.
#[derive(Debug)]
struct Open {
    uid: Uid,
    version: ResourceVersion,
    total: u64,
    /// Absent from a cloud side of an older version, which continues nothing: the store keeps
    /// nothing of it.
    digest: Option<MessageDigest>,
    /// The first bytes, which were given to the store.
    kept: u64,
    /// The bytes after them.
    tail: String,
}

impl Open {
    fn new(part: &Part) -> Self {
        Self {
            uid: part.uid.clone(),
            version: part.resource_version.clone(),
            total: part.total,
            digest: part.digest,
            kept: 0,
            tail: String::new(),
        }
    }

    fn received(&self) -> u64 {
        self.kept + self.tail.len() as u64
    }

    fn is_continued_by(&self, part: &Part) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::PartsOfAnyVersion) {
            return self.uid == part.uid;
        }
        (&self.uid, &self.version, self.total, self.digest)
            == (&part.uid, &part.resource_version, part.total, part.digest)
    }

    /// Returns the identity of the message with this number of its bytes.
    fn with(&self, received: u64) -> Option<PartialMessage> {
        Some(PartialMessage {
            uid: self.uid.clone(),
            resource_version: self.version.clone(),
            total: self.total,
            digest: self.digest?,
            received,
        })
    }
}

/// Reassembles one message at a time.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    open: Option<Open>,
    /// Whether the store keeps bytes of a message that is not continued.
    is_stale: bool,
}

impl Assembler {
    /// Continues the message that the store keeps from an earlier run.
    pub(super) fn resume(&mut self, kept: PartialMessage, max_object: u64) {
        let PartialMessage { uid, resource_version, total, digest, received } = kept;
        if total > max_object.saturating_add(ENVELOPE) {
            self.is_stale = true;
            return;
        }
        self.open = Some(Open {
            uid,
            version: resource_version,
            total,
            digest: Some(digest),
            kept: received,
            tail: String::new(),
        });
    }

    /// Drops the message in reassembly.
    pub(super) fn forget(&mut self) {
        if let Some(open) = self.open.take() {
            self.is_stale |= open.kept > 0;
        }
    }

    /// Ends a session. A cloud side of an older version sends the message from its start again.
    pub(super) fn end_session(&mut self) {
        self.open.take_if(|open| open.digest.is_none());
    }

    /// Returns whether the store shall drop what it keeps, once.
    pub(super) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.is_stale)
    }

    /// Returns whether the store keeps bytes of the message in reassembly.
    pub(super) fn is_kept(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.kept > 0)
    }

    /// Returns whether a message about this object is in reassembly.
    pub(super) fn is_about(&self, uid: &str) -> bool {
        self.open.as_ref().is_some_and(|open| *open.uid == *uid)
    }

    /// Returns the message in reassembly, for a Hello.
    pub(super) fn partial(&self) -> Option<PartialMessage> {
        let open = self.open.as_ref().filter(|open| open.received() >= MIN_NAMED)?;
        open.with(open.received())
    }

    /// Takes the bytes in memory for the store, if they are at least so many. Returns them with the
    /// message, whose `received` counts the bytes before them.
    pub(super) fn cut(&mut self, least: usize) -> Option<(PartialMessage, String)> {
        let open = self.open.as_mut().filter(|open| !open.tail.is_empty() && open.tail.len() >= least)?;
        let message = open.with(open.kept)?;
        let text = std::mem::take(&mut open.tail);
        open.kept += text.len() as u64;
        Some((message, text))
    }

    /// Drops the message that the store could not keep. Returns whether it was in reassembly.
    pub(super) fn not_kept(&mut self, message: &PartialMessage) -> bool {
        let open = self.open.as_ref().and_then(|open| open.with(0));
        let is_open = open.is_some_and(|open| open.is_same_message(message));
        if is_open {
            self.forget();
        }
        is_open
    }

    /// Takes the next part. A part that does not continue the message is dropped; the sender learns
    /// how much has arrived and resumes there.
    pub(super) fn take(&mut self, part: Part, max_object: u64) -> Arrival {
        // A part without data is an announcement: the sender knows the limit and requests the
        // rejection.
        if part.total > max_object.saturating_add(ENVELOPE) || part.data.is_empty() {
            return Arrival::Rejected(Rejected {
                uid: part.uid,
                resource_version: part.resource_version,
                reason: RejectReason::TooLarge,
                message: format!("must be at most {max_object} bytes, has {}", part.total),
                object: part.object,
            });
        }
        // A Hello names them.
        if let Err(problem) = name::check_uid(&part.uid) {
            return Arrival::Rejected(invalid(format!("`uid` {problem}")));
        }
        if let Err(problem) = name::check_version(part.resource_version.as_str()) {
            return Arrival::Rejected(invalid(format!("`resourceVersion` {problem}")));
        }
        if part.offset == 0 {
            self.forget();
            self.open = Some(Open::new(&part));
        }
        let Some(open) = self.open.as_mut().filter(|open| open.is_continued_by(&part)) else {
            return Arrival::Incomplete { received: 0 };
        };
        let received = open.received();
        let end = received + part.data.len() as u64;
        if part.offset != received || end > open.total {
            return Arrival::Incomplete { received };
        }
        open.tail.push_str(&part.data);
        if end < open.total {
            return Arrival::Incomplete { received: end };
        }
        let (message, digest) = (open.with(open.kept), open.digest);
        let rest = std::mem::take(&mut open.tail);
        self.open = None;
        match message.filter(|message| message.received > 0) {
            Some(message) => Arrival::Kept { message, rest },
            None => Arrival::Whole { text: rest, digest },
        }
    }
}

#[cfg(test)]
mod tests;
