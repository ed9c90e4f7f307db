//! The frames of the protocol and their encoding: JSON with `type` and `protocol`, compressed with
//! zstd where that pays. `docs/protocol.md` shows each with an example.
//!
//! Decoders take bytes from the network and a [`Budget`], which bounds what they build, decompressed. Every word of a
//! node's frame is checked. Every failure is a [`FrameError`].

mod words;

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use edgesync_object::{Budget, Exceeded, ResourceVersion};

use super::change::{Change, ObjectRef, Rejected, Uid};
use super::compression;
use super::digest::{BucketSet, Buckets, Digest, Epoch, Tally};
use super::message::{Interner, Message, MessageText};
pub use super::upload::{Lease, Upload, UploadConfirm};
pub use words::MAX_WORD;

/// The version of the protocol that this module speaks.
pub const PROTOCOL: u32 = 1;
/// The largest frame in bytes, decoded, that is assumed where a Hello does not say another one.
pub const DEFAULT_MAX_FRAME: u32 = 256 * 1024;
/// The largest object in bytes that is assumed where a Hello does not say another one.
pub const DEFAULT_MAX_OBJECT: u32 = 8 * 1024 * 1024;
/// The smallest frame limit that is accepted: an InventoryRequest and a page of items must fit.
pub const MIN_MAX_FRAME: u32 = 16 * 1024;

/// The first four bytes of a zstd frame (RFC 8878, section 3.1.1). JSON text never starts so.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The first frame of a connection: who the node is and, in constant size, what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    /// The name of the node; must be the one of the topic.
    pub node: String,
    /// The version of the agent.
    pub agent: String,
    /// Random, new with each Hello. Every later frame of both sides carries it.
    pub session: String,
    /// The identity of the database file and key of the digest.
    pub epoch: Epoch,
    /// The newest change of a row.
    pub revision: u64,
    /// The newest change that the cloud has confirmed. Absent when it is `revision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<u64>,
    /// The number of objects held.
    pub count: u64,
    /// The digest over (UID, version) of the objects held.
    pub digest: Digest,
    /// The cloud incarnation that the node last worked with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// The largest frame the node accepts, in bytes, decoded.
    #[serde(default = "default_max_frame", skip_serializing_if = "is_default_max_frame")]
    pub max_frame: u32,
    /// The largest object the node accepts, in bytes of JSON.
    #[serde(default = "default_max_object", skip_serializing_if = "is_default_max_object")]
    pub max_object: u32,
}

impl Hello {
    /// Count and digest of the objects held.
    pub(crate) fn held(&self) -> Tally {
        Tally { count: self.count, digest: self.digest }
    }

    /// The newest change that the cloud has confirmed, by the node's word.
    pub(crate) fn last_confirmed(&self) -> u64 {
        self.confirmed.unwrap_or(self.revision).min(self.revision)
    }
}

fn default_max_frame() -> u32 {
    DEFAULT_MAX_FRAME
}
fn default_max_object() -> u32 {
    DEFAULT_MAX_OBJECT
}
// serde hands these a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_default_max_frame(value: &u32) -> bool {
    *value == DEFAULT_MAX_FRAME
}
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_default_max_object(value: &u32) -> bool {
    *value == DEFAULT_MAX_OBJECT
}
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

// serde hands it a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !*value
}

/// One held object in a Report or an Inventory: an ObjectSync as the edge sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    /// The UID of the object.
    pub uid: Uid,
    /// The version held.
    pub resource_version: ResourceVersion,
    /// Which object it is; left out when the cloud has just sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectRef>,
}

/// What the edge holds after a commit. Covers the changes `from < revision ≤ to`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The session.
    pub session: String,
    /// The revision before the first change.
    pub from: u64,
    /// The revision after the last change; equal to `from` when nothing changed.
    pub to: u64,
    /// Objects held, each UID once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Item>,
    /// UIDs held no more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<Uid>,
    /// Objects that could not be applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<Rejected>,
    /// The object whose parts are arriving: a sign of life while a large object crosses a slow link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiving: Option<Uid>,
    /// How many bytes of its message have arrived without a gap. Absent when nothing is being received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
    /// The receipt of the [`Objects`] whose commit this tells, or of the last [`Part`]. Absent, and zero, in all other
    /// reports.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub receipt: u64,
}

/// A page of what the edge holds in the buckets that were found to differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// The session.
    pub session: String,
    /// Counts the pages from zero: a gap means a lost page.
    pub page: u32,
    /// The buckets this inventory is about.
    pub buckets: BucketSet,
    /// Whether another page follows.
    pub more: bool,
    /// The objects held.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Item>,
}

/// The cloud has compared: its records equal what the node holds, and what is missing follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Welcome {
    /// The session of the Hello.
    pub session: String,
    /// The incarnation of the cloud. Absent when it is the one of the Hello.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// The newest change of the edge that the cloud has recorded.
    pub confirmed: u64,
    /// The number of objects that are going to be sent or removed. Absent when zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pending: u64,
    /// The number of removals held back by the mass-delete guard. Absent when zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held: u64,
    /// Whether the cloud knows nothing of the Node and wants to be told. Absent when not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub register: bool,
}

/// The cloud has recorded all changes of the edge up to `revision`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Confirm {
    /// The session.
    pub session: String,
    /// The newest change recorded.
    pub revision: u64,
    /// The number of objects still to be sent or removed. Absent when zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pending: u64,
    /// The number of removals held back by the mass-delete guard. Absent when zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held: u64,
}

/// The records differ from what the node holds: it is asked for the buckets that differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InventoryRequest {
    /// The session.
    pub session: String,
    /// The bucket digests of the cloud's records, with the node's epoch as the key.
    pub buckets: Buckets,
}

/// The cloud does not know the session: the node is asked to say Hello (again). Its form and its protocol number stay
/// what they are whatever comes: with it nodes of other protocols are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HelloRequest {
    /// The session that is not known; a node that has moved on ignores the request.
    pub session: String,
    /// Why, for people.
    pub reason: String,
    /// Seconds to wait first. Absent when zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u64,
    /// Whether an operator has removed the node from the fleet. Absent when not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub removed: bool,
}

/// What the cloud says to a node of another protocol, which can do nothing but wait for an update.
#[must_use]
pub fn other_protocol(session: String, found: u32) -> HelloRequest {
    let behind = if found > PROTOCOL { "the cloud side" } else { "the agent" };
    HelloRequest {
        session,
        reason: format!("the node speaks protocol {found}, the cloud side {PROTOCOL}: update {behind}"),
        retry_after_seconds: 3600,
        removed: false,
    }
}

/// A piece of one message that is larger than a frame. Pieces arrive in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// The session.
    pub session: String,
    /// Comes back in the [`Report`] that answers it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub receipt: u64,
    /// The UID of the object.
    pub uid: Uid,
    /// The version of the object.
    pub resource_version: ResourceVersion,
    /// Where the piece starts, in bytes of the message.
    pub offset: u64,
    /// The length of the whole message in bytes.
    pub total: u64,
    /// The piece. Empty when the message is larger than the node accepts: an announcement
    /// that the node answers with a rejection.
    pub data: String,
    /// Which object is announced, for what the node says of its rejection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<Box<ObjectRef>>,
}

/// The changes of an `Objects` frame as it is read.
#[derive(Debug)]
pub struct Objects {
    /// The session.
    pub session: String,
    /// Changes that passed their checks.
    pub changes: Vec<Change>,
    /// Objects that did not.
    pub rejected: Vec<Rejected>,
    /// Comes back in the [`Report`] of exactly these changes.
    pub receipt: u64,
}

/// The same as it is written.
#[derive(Debug)]
pub struct ObjectsText {
    /// The session.
    pub session: String,
    /// Comes back in the [`Report`] that answers it: the number of the frame on its connection.
    pub receipt: u64,
    /// Messages.
    pub messages: Vec<MessageText>,
}

/// The frames of one direction. The name of each variant is what stands in the `type` field.
macro_rules! frames {
    ($(#[$doc:meta])* $name:ident$(<$objects:ident>)? { $($type:ident($body:ident),)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name$(<$objects>)? {
            $(#[doc = concat!("See [`", stringify!($type), "`].")] $type($body),)*
        }

        impl$(<$objects>)? $name$(<$objects>)? {
            /// The names of all types.
            pub const NAMES: &[&'static str] = &[$(stringify!($type)),*];

            /// The name in the `type` field.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$type(_) => stringify!($type),)*
                }
            }

            /// The frame as bytes, compressed when its JSON is longer than `compress_above`.
            ///
            /// # Errors
            /// When the JSON cannot be written or compressed.
            pub fn encode(&self, compress_above: usize) -> Result<Vec<u8>, FrameError>
            where
                $($objects: Written)?
            {
                let json = match self {
                    $(Self::$type(body) => body.to_json(stringify!($type)),)*
                }?;
                compress(json, compress_above)
            }

            fn read(bytes: &[u8], budget: &mut Budget, max_object: usize) -> Result<Self, FrameError>
            where
                $($objects: Read)?
            {
                let text = decompress(bytes, budget)?;
                let json = std::str::from_utf8(&text)?;
                match &*probe(json)?.r#type {
                    $(stringify!($type) => Ok(Self::$type(Read::read(json, max_object)?)),)*
                    other => Err(FrameError::Type {
                        expected: Self::NAMES,
                        found: other.chars().take(40).collect(),
                    }),
                }
            }
        }
    };
}

frames! {
    /// A frame from a node.
    Up {
        Hello(Hello),
        Report(Report),
        Inventory(Inventory),
        Lease(Lease),
        Upload(Upload),
    }
}

frames! {
    /// A frame to a node, with objects in one of two forms.
    ToNode<O> {
        Welcome(Welcome),
        Objects(O),
        Part(Part),
        Confirm(Confirm),
        InventoryRequest(InventoryRequest),
        HelloRequest(HelloRequest),
        UploadConfirm(UploadConfirm),
    }
}

/// A frame to a node, as it is written.
pub type Down = ToNode<ObjectsText>;
/// A frame to a node, as it is read.
pub type Received = ToNode<Objects>;

/// Bytes that are not a frame. Nothing of them was used.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// More than the receiver accepts, before or after decompression.
    #[error("frame {0}")]
    TooLarge(#[from] Exceeded),
    /// The compressed data is damaged.
    #[error("frame must be valid zstd: {0}")]
    Compression(std::io::Error),
    /// Not UTF-8.
    #[error("frame must be UTF-8: {0}")]
    Encoding(#[from] std::str::Utf8Error),
    /// Not JSON, or not of the form that its type has.
    #[error("frame must be the JSON of its type: {0}")]
    Json(#[from] serde_json::Error),
    /// A name, UID, version or id that nothing can have.
    #[error("frame has a word that cannot be: {0}")]
    Invalid(String),
    /// A newer or foreign protocol.
    #[error("protocol must be {PROTOCOL}, is {found}")]
    Protocol {
        /// The number that was found.
        found: u32,
        /// The session, if the frame is a Hello: it can be answered.
        hello: Option<String>,
    },
    /// A type that this side does not know.
    #[error("type must be one of {}, is '{found}'", expected.join(", "))]
    Type {
        /// The types that are known.
        expected: &'static [&'static str],
        /// The type that was found.
        found: String,
    },
}

impl FrameError {
    /// Whether it is a frame as a later version may send it, rather than nonsense.
    #[must_use]
    pub fn is_of_another_version(&self) -> bool {
        matches!(self, Self::Protocol { .. } | Self::Type { .. })
    }

    /// A short stable name for counters.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::TooLarge(_) => "too_large",
            Self::Compression(_) => "compression",
            Self::Encoding(_) => "encoding",
            Self::Json(_) => "json",
            Self::Invalid(_) => "invalid",
            Self::Protocol { .. } => "protocol",
            Self::Type { .. } => "type",
        }
    }
}

#[derive(Serialize)]
struct Envelope<'a, T> {
    r#type: &'static str,
    protocol: u32,
    #[serde(flatten)]
    body: &'a T,
}

#[derive(Serialize)]
struct ObjectsOut<'a> {
    session: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    receipt: u64,
    objects: [(); 0],
}

#[derive(Deserialize)]
struct ObjectsIn<'a> {
    session: String,
    #[serde(default)]
    receipt: u64,
    #[serde(borrow)]
    objects: Vec<Message<'a>>,
}

#[derive(Deserialize)]
struct Probe<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    protocol: u32,
    #[serde(borrow)]
    session: Option<&'a RawValue>,
}

/// What is written of a frame beside its type.
pub trait Written {
    /// The whole frame as JSON.
    ///
    /// # Errors
    /// It cannot be written.
    fn to_json(&self, r#type: &'static str) -> serde_json::Result<String>;
}

impl<T: Serialize> Written for T {
    fn to_json(&self, r#type: &'static str) -> serde_json::Result<String> {
        serde_json::to_string(&Envelope { r#type, protocol: PROTOCOL, body: self })
    }
}

impl Written for ObjectsText {
    fn to_json(&self, r#type: &'static str) -> serde_json::Result<String> {
        const END: &str = "]}";
        let Self { session, receipt, messages } = self;
        let mut json = ObjectsOut { session, receipt: *receipt, objects: [] }.to_json(r#type)?;
        json.truncate(json.len() - END.len());
        json.reserve(messages.iter().map(|message| message.len() + 1).sum::<usize>() + END.len());
        for (index, message) in messages.iter().enumerate() {
            if index > 0 {
                json.push(',');
            }
            message.write_to(&mut json);
        }
        json.push_str(END);
        Ok(json)
    }
}

/// What is read of a frame beside its type; objects above `max_object` bytes are rejected singly.
trait Read: Sized {
    fn read(json: &str, max_object: usize) -> serde_json::Result<Self>;
}

impl<T: DeserializeOwned> Read for T {
    fn read(json: &str, _: usize) -> serde_json::Result<Self> {
        serde_json::from_str(json)
    }
}

impl Read for Objects {
    fn read(json: &str, max_object: usize) -> serde_json::Result<Self> {
        let ObjectsIn { session, receipt, objects } = serde_json::from_str(json)?;
        let (mut changes, mut rejected) = (Vec::with_capacity(objects.len()), Vec::new());
        let mut interner = Interner::default();
        for message in &objects {
            match message.to_change(&mut interner, max_object) {
                Ok(change) => changes.push(change),
                Err(reason) => rejected.push(reason),
            }
        }
        Ok(Self { session, changes, rejected, receipt })
    }
}

impl Up {
    /// Reads a frame, and checks every word of it. What it takes, decompressed, goes off the budget.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub fn decode(bytes: &[u8], budget: &mut Budget) -> Result<Self, FrameError> {
        let frame = Self::read(bytes, budget, 0)?;
        frame.check_words(budget)?;
        Ok(frame)
    }
}

impl Received {
    /// Reads a frame, which takes from the budget; objects above `max_object` bytes are rejected singly.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub fn decode(bytes: &[u8], budget: &mut Budget, max_object: usize) -> Result<Self, FrameError> {
        let frame = Self::read(bytes, budget, max_object)?;
        if let Self::Objects(objects) = &frame {
            budget.take_items(objects.changes.len() + objects.rejected.len())?;
        }
        Ok(frame)
    }
}

fn probe(json: &str) -> Result<Probe<'_>, FrameError> {
    let probe: Probe<'_> = serde_json::from_str(json)?;
    if probe.protocol != PROTOCOL {
        let session = probe.session.filter(|_| probe.r#type == "Hello");
        let hello = session.and_then(|session| serde_json::from_str(session.get()).ok());
        return Err(FrameError::Protocol { found: probe.protocol, hello });
    }
    Ok(probe)
}

fn compress(json: String, above: usize) -> Result<Vec<u8>, FrameError> {
    if json.len() <= above {
        return Ok(json.into_bytes());
    }
    let compressed = compression::compress(json.as_bytes()).map_err(FrameError::Compression)?;
    Ok(if compressed.len() < json.len() { compressed } else { json.into_bytes() })
}

fn decompress<'a>(bytes: &'a [u8], budget: &mut Budget) -> Result<Cow<'a, [u8]>, FrameError> {
    let limit = budget.bytes();
    if bytes.len() > limit || !bytes.starts_with(&ZSTD_MAGIC) {
        budget.take_bytes(bytes.len())?;
        return Ok(Cow::Borrowed(bytes));
    }
    // The size in the header is the sender's word: it may lower what is allocated, never raise it.
    let size = compression::decompressed_size(bytes)
        .map_or(limit, |size| usize::try_from(size).unwrap_or(usize::MAX));
    if size > limit {
        return Err(Exceeded::Bytes { limit }.into());
    }
    let text = compression::decompress(bytes, size).map_err(FrameError::Compression)?;
    budget.take_bytes(text.len())?;
    Ok(Cow::Owned(text))
}

#[cfg(test)]
mod tests;
