//! The frames of the protocol and their encoding: JSON with `type` and `protocol`, compressed with
//! zstd if that is shorter. Only [`Patches`] is binary.
//!
//! `docs/protocol.md` shows each frame with an example.
//!
//! Decoders take untrusted bytes and a [`Budget`], which bounds the decoded frame. Every string
//! field of a node's frame is validated. Every failure is a [`FrameError`].

mod patches;
mod probe;
mod validation;

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use edgesync_object::{Budget, Exceeded, ResourceVersion};

use super::change::{Change, ObjectRef, Rejected, Uid};
use super::compression;
use super::digest::{BucketSet, Buckets, Digest, Epoch, MessageDigest, Tally};
#[cfg(any(test, feature = "simulation"))]
use super::fault::{Fault, planted};
use super::message::{Interner, Message, MessageText};
pub use super::metered::Credit;
use super::metered::{MeteredLink, Waiting};
use super::patch::Unpatched;
pub use super::renewal::Lease;
use super::renewal::{Feature, LeaseTerms, Renew, Stay};
pub use super::upload::{Upload, UploadConfirm};
pub use patches::Patches;
pub use validation::MAX_WORD;

/// The protocol version of this module.
pub const PROTOCOL: u32 = 1;
/// The largest frame in bytes, decoded, unless a Hello states another limit.
pub const DEFAULT_MAX_FRAME: u32 = 256 * 1024;
/// The largest object in bytes, unless a Hello states another limit.
pub const DEFAULT_MAX_OBJECT: u32 = 8 * 1024 * 1024;
/// The smallest accepted frame limit: an InventoryRequest and a page of items must fit.
pub const MIN_MAX_FRAME: u32 = 16 * 1024;
/// The largest frame to the node on a link with a credit, in bytes. Larger objects are sent in
/// parts, which continue in the next session.
pub(crate) const MAX_METERED_FRAME: u32 = MIN_MAX_FRAME;

/// The first four bytes of a zstd frame (RFC 8878, section 3.1.1). JSON text never starts so.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The first frame of a connection: the identity of the node and, in constant size, a summary of
/// the objects it holds.
///
/// The node sends a Hello once per session and repeats it under a new session until the cloud
/// answers. The cloud answers with a [`Welcome`] if its records equal count and digest, with an
/// [`InventoryRequest`] if they differ, and with a [`HelloRequest`] if the node has to wait.
/// Reports of unconfirmed changes may follow the Hello before the answer arrives.
///
/// ```
/// use edgesync_object::Budget;
/// use edgesync_protocol::digest::{Digest, Epoch};
/// use edgesync_protocol::frame::{DEFAULT_MAX_FRAME, DEFAULT_MAX_OBJECT, Hello, Up};
///
/// let hello = Hello {
///     node: "station-17".into(),
///     agent: "1.4.0".into(),
///     session: "5f3a0c11".into(),
///     epoch: Epoch(7),
///     revision: 12,
///     confirmed: None,
///     count: 0,
///     digest: Digest::default(),
///     incarnation: None,
///     max_frame: DEFAULT_MAX_FRAME,
///     max_object: DEFAULT_MAX_OBJECT,
///     partial: None,
///     patches: true,
///     lease: None,
///     metered: None,
/// };
/// let bytes = Up::Hello(hello.clone()).encode(1024)?;
/// let decoded = Up::decode(&bytes, &mut Budget::of(64 * 1024))?;
/// assert!(matches!(decoded, Up::Hello(decoded) if decoded == hello));
/// # Ok::<(), edgesync_protocol::frame::FrameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    /// The name of the node; must equal the one in the topic.
    pub node: String,
    /// The version of the agent.
    pub agent: String,
    /// The session id, random for each Hello. Every later frame of both sides carries it.
    pub session: String,
    /// The identity of the database file and key of the digest.
    pub epoch: Epoch,
    /// The newest revision of the node's rows.
    pub revision: u64,
    /// The newest revision that the cloud has confirmed. Absent if it equals `revision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<u64>,
    /// The number of objects held.
    pub count: u64,
    /// The digest over (UID, version) of the objects held.
    pub digest: Digest,
    /// The cloud incarnation of the node's last session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// The largest frame the node accepts, in bytes, decoded.
    #[serde(default = "default_max_frame", skip_serializing_if = "is_default_max_frame")]
    pub max_frame: u32,
    /// The largest object the node accepts, in bytes of JSON.
    #[serde(default = "default_max_object", skip_serializing_if = "is_default_max_object")]
    pub max_object: u32,
    /// The message that the node holds a part of. The cloud continues it, or starts another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<Box<PartialMessage>>,
    /// Whether the node applies [`Patches`]. Absent if not, as from older versions.
    #[serde(default, skip_serializing_if = "is_false")]
    pub patches: bool,
    /// The terms of the Lease. The cloud side applies them with its Welcome if it names
    /// [`Feature::Renew`] there. Absent from older versions, which read no features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseTerms>,
    /// The terms of a metered link. Absent on other links, and from older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metered: Option<MeteredLink>,
}

#[cfg(any(test, feature = "simulation"))]
impl Hello {
    /// Returns the first Hello of a node that holds nothing, with the default limits.
    #[must_use]
    pub fn of_empty_node(node: &str, session: &str) -> Self {
        Self {
            node: node.to_owned(),
            agent: "test".to_owned(),
            session: session.to_owned(),
            epoch: Epoch(7),
            revision: 0,
            confirmed: None,
            count: 0,
            digest: Digest::default(),
            incarnation: None,
            max_frame: DEFAULT_MAX_FRAME,
            max_object: DEFAULT_MAX_OBJECT,
            partial: None,
            patches: false,
            lease: None,
            metered: None,
        }
    }
}

/// The first bytes of a message in parts, held by the node over sessions and restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartialMessage {
    /// The UID of the object.
    pub uid: Uid,
    /// The version of the object.
    pub resource_version: ResourceVersion,
    /// The length of the whole message in bytes.
    pub total: u64,
    /// The digest of the whole message, as the parts stated it.
    pub digest: MessageDigest,
    /// The number of bytes held, without a gap from the start.
    pub received: u64,
}

impl PartialMessage {
    /// Returns whether both are parts of one message.
    #[must_use]
    pub fn is_same_message(&self, other: &Self) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::PartsOfAnyVersion) {
            return self.uid == other.uid;
        }
        (&self.uid, &self.resource_version) == (&other.uid, &other.resource_version)
            && (self.total, self.digest) == (other.total, other.digest)
    }
}

impl Hello {
    /// Returns count and digest of the objects held.
    pub(crate) fn held(&self) -> Tally {
        Tally { count: self.count, digest: self.digest }
    }

    /// Returns the newest confirmed revision, as claimed by the node.
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
// serde passes a reference.
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

// serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !*value
}

/// One held object in a [`Report`] or an [`Inventory`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    /// The UID of the object.
    pub uid: Uid,
    /// The version that the node holds.
    pub resource_version: ResourceVersion,
    /// The object's reference; absent if the cloud has just sent the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectRef>,
}

/// The observed state after a commit; covers the changes `from < revision ≤ to`.
///
/// The node sends one report per [`Objects`] frame, after its commit, and repeats unconfirmed
/// ranges until a [`Confirm`] covers them. A report with `from == to` reports no new change.
///
/// ```
/// use edgesync_object::Budget;
/// use edgesync_protocol::frame::{Item, Report, Up};
///
/// let report = Report {
///     session: "5f3a0c11".into(),
///     from: 12,
///     to: 13,
///     objects: vec![Item { uid: "uid-a".into(), resource_version: 900.into(), object: None }],
///     receipt: 1,
///     ..Report::default()
/// };
/// let bytes = Up::Report(report.clone()).encode(1024)?;
/// let decoded = Up::decode(&bytes, &mut Budget::of(64 * 1024))?;
/// assert!(matches!(decoded, Up::Report(decoded) if decoded == report));
/// # Ok::<(), edgesync_protocol::frame::FrameError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The session of the Hello.
    pub session: String,
    /// The revision before the first change.
    pub from: u64,
    /// The revision after the last change; equals `from` if nothing changed.
    pub to: u64,
    /// Objects held, each UID once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Item>,
    /// UIDs deleted since `from`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<Uid>,
    /// Objects that could not be applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<Rejected>,
    /// Patches that could not be applied: the cloud sends these objects as a whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unpatched: Vec<Unpatched>,
    /// The object whose parts are arriving: a keepalive while a large object crosses a slow link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiving: Option<Uid>,
    /// The number of bytes of its message that have arrived without a gap. Absent if nothing is
    /// being received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
    /// The receipt of the [`Objects`] frame whose commit this reports, or of the last [`Part`].
    /// Absent, and zero, in all other reports.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub receipt: u64,
}

/// One page of the objects held in the buckets that differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// The session of the Hello.
    pub session: String,
    /// The page number from zero: a gap reveals a lost page.
    pub page: u32,
    /// The buckets this inventory covers.
    pub buckets: BucketSet,
    /// Whether another page follows.
    pub more: bool,
    /// The objects held in these buckets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Item>,
}

/// The cloud's answer to a Hello after a successful comparison: its records equal the objects the
/// node holds, and missing changes follow.
///
/// The node is live from here on: [`Objects`] and [`Part`] frames follow, and the node may send
/// leases and uploads.
///
/// ```
/// use edgesync_object::Budget;
/// use edgesync_protocol::frame::{Down, Received, Welcome};
///
/// let welcome = Welcome {
///     session: "5f3a0c11".into(),
///     incarnation: None,
///     confirmed: 12,
///     pending: 3,
///     held: 0,
///     register: false,
///     features: Vec::new(),
///     waiting: Default::default(),
/// };
/// let bytes = Down::Welcome(welcome.clone()).encode(1024)?;
/// let decoded = Received::decode(&bytes, &mut Budget::of(64 * 1024), 8 << 20)?;
/// assert!(matches!(decoded, Received::Welcome(decoded) if decoded == welcome));
/// # Ok::<(), edgesync_protocol::frame::FrameError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Welcome {
    /// The session of the Hello.
    pub session: String,
    /// The incarnation of the cloud. Absent if it equals the one of the Hello.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// The newest revision of the edge that the cloud has recorded.
    pub confirmed: u64,
    /// The number of objects that will be sent or removed. Absent if zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pending: u64,
    /// The number of removals held back by the mass-delete guard. Absent if zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held: u64,
    /// Whether the cloud has no Node object and requests a node report. Absent if not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub register: bool,
    /// The optional parts of the protocol that the cloud side understands. Absent if none, and for
    /// nodes that read no features.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<Feature>,
    /// The objects that wait for the link. Absent if none.
    #[serde(default, skip_serializing_if = "Waiting::is_none")]
    pub waiting: Waiting,
}

/// Confirms that the cloud has recorded all changes of the edge up to `revision`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Confirm {
    /// The session of the Hello.
    pub session: String,
    /// The newest recorded revision.
    pub revision: u64,
    /// The number of objects still to send or remove. Absent if zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pending: u64,
    /// The number of removals held back by the mass-delete guard. Absent if zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held: u64,
    /// The objects that wait for the link, without those that are pending. Absent if none.
    #[serde(default, skip_serializing_if = "Waiting::is_none")]
    pub waiting: Waiting,
    /// The receipt of the newest frame with objects that left before this one, if objects wait for
    /// a credit: with a [`Credit`] the node repeats it. Absent otherwise.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub receipt: u64,
}

/// Requests the inventory of the buckets in which the cloud's records differ from the node's
/// objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InventoryRequest {
    /// The session of the Hello.
    pub session: String,
    /// The bucket digests of the cloud's records, keyed with the node's epoch.
    pub buckets: Buckets,
}

/// Requests a new Hello: the cloud does not know the session.
///
/// Form and protocol number of this frame never change, because it also answers nodes of other
/// protocol versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HelloRequest {
    /// The unknown session; a node that has moved on ignores the request.
    pub session: String,
    /// The reason, for people.
    pub reason: String,
    /// Seconds to wait first. Absent if zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u64,
    /// Whether an operator has removed the node from the fleet. Absent if not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub removed: bool,
}

/// Returns the answer to a node of another protocol version, which can only wait for an update.
#[must_use]
pub fn other_protocol(session: String, found: u32) -> HelloRequest {
    let behind = if found > PROTOCOL { "the cloud side" } else { "the agent" };
    HelloRequest {
        session,
        reason: format!("the node speaks protocol {found}, the cloud side {PROTOCOL}; hint: update {behind}"),
        retry_after_seconds: 3600,
        removed: false,
    }
}

/// One piece of a message that is larger than a frame. Pieces are sent in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// The session of the Hello.
    pub session: String,
    /// The number that the answering [`Report`] repeats.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub receipt: u64,
    /// The UID of the object.
    pub uid: Uid,
    /// The version of the object.
    pub resource_version: ResourceVersion,
    /// The offset of the piece in bytes of the message.
    pub offset: u64,
    /// The length of the whole message in bytes.
    pub total: u64,
    /// The piece. Empty if the message exceeds the node's limit: an announcement that the node
    /// answers with a rejection.
    pub data: String,
    /// The digest of the whole message under the epoch of the Hello. Absent from older versions,
    /// and in an announcement: such a message is not kept over sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<MessageDigest>,
    /// The announced object, for the node's rejection notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<Box<ObjectRef>>,
}

/// The decoded changes of an `Objects` frame.
///
/// The node applies the changes in one transaction and answers with one [`Report`] that repeats
/// `receipt`. A malformed object does not fail the frame; it becomes a [`Rejected`].
///
/// ```
/// use edgesync_object::Budget;
/// use edgesync_protocol::frame::{Down, ObjectsText, Received};
///
/// let text = ObjectsText { session: "5f3a0c11".into(), receipt: 4, messages: Vec::new() };
/// let frame = Down::Objects(text);
/// let bytes = frame.encode(1024)?;
/// let decoded = Received::decode(&bytes, &mut Budget::of(64 * 1024), 8 << 20)?;
/// let Received::Objects(objects) = decoded else { panic!("must be an Objects frame") };
/// assert_eq!((objects.receipt, objects.changes.len(), objects.rejected.len()), (4, 0, 0));
/// # Ok::<(), edgesync_protocol::frame::FrameError>(())
/// ```
#[derive(Debug)]
pub struct Objects {
    /// The session of the Hello.
    pub session: String,
    /// The changes that passed validation, in order.
    pub changes: Vec<Change>,
    /// The objects that failed validation.
    pub rejected: Vec<Rejected>,
    /// The number that the [`Report`] of exactly these changes repeats.
    pub receipt: u64,
}

/// An `Objects` frame to encode.
#[derive(Debug)]
pub struct ObjectsText {
    /// The session of the Hello.
    pub session: String,
    /// The number that the answering [`Report`] repeats: the frame's number on its connection.
    pub receipt: u64,
    /// The messages, already JSON text.
    pub messages: Vec<MessageText>,
}

/// Defines the frames of one direction. Each variant's name is the value of the `type` field, but
/// for those that are not JSON.
macro_rules! frames {
    (
        $(#[$doc:meta])* $name:ident$(<$objects:ident>)? { $($type:ident($body:ident),)* }
        binary { $($binary:ident($bytes:ident),)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name$(<$objects>)? {
            $(#[doc = concat!("See [`", stringify!($type), "`].")] $type($body),)*
            $(#[doc = concat!("See [`", stringify!($binary), "`].")] $binary($bytes),)*
        }

        impl$(<$objects>)? $name$(<$objects>)? {
            /// The names of all types with the form of JSON.
            pub const NAMES: &[&'static str] = &[$(stringify!($type)),*];
            /// The names of the other types.
            pub const BINARY_NAMES: &[&'static str] = &[$(stringify!($binary)),*];

            /// Returns the name of the type.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$type(_) => stringify!($type),)*
                    $(Self::$binary(_) => stringify!($binary),)*
                }
            }

            /// Encodes the frame, compressed if its JSON is longer than `compress_above` bytes.
            ///
            /// # Errors
            /// Fails when the JSON cannot be written or compressed.
            pub fn encode(&self, compress_above: usize) -> Result<Vec<u8>, FrameError>
            where
                $($objects: Written)?
            {
                let json = match self {
                    $(Self::$type(body) => body.to_json(stringify!($type)),)*
                    $(Self::$binary(body) => return Ok(body.encode()),)*
                }?;
                compress(json, compress_above)
            }

            fn read(bytes: &[u8], budget: &mut Budget, max_object: usize) -> Result<Self, FrameError>
            where
                $($objects: Read)?
            {
                let text = decompress(bytes, budget)?;
                let json = std::str::from_utf8(&text)?;
                match &*probe::type_of(json)? {
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
        Renew(Renew),
        Credit(Credit),
    }
    binary {}
}

frames! {
    /// A frame to a node. `O` is the form of its objects: [`ObjectsText`] to encode, [`Objects`]
    /// decoded.
    ToNode<O> {
        Welcome(Welcome),
        Objects(O),
        Part(Part),
        Confirm(Confirm),
        InventoryRequest(InventoryRequest),
        HelloRequest(HelloRequest),
        UploadConfirm(UploadConfirm),
        Stay(Stay),
    }
    binary {
        Patches(Patches),
    }
}

/// A frame to a node, to encode.
pub type Down = ToNode<ObjectsText>;
/// A decoded frame to a node.
pub type Received = ToNode<Objects>;

/// The error for bytes that are not a frame. No part of them was used.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The frame exceeds the receiver's limit, before or after decompression.
    #[error("frame {0}")]
    TooLarge(#[from] Exceeded),
    /// The compressed data is damaged.
    #[error("frame must be valid zstd: {0}")]
    Compression(std::io::Error),
    /// The frame is not UTF-8.
    #[error("frame must be UTF-8: {0}")]
    Encoding(#[from] std::str::Utf8Error),
    /// The frame is not JSON, or lacks the form of its type.
    #[error("frame must be the JSON of its type: {0}")]
    Json(#[from] serde_json::Error),
    /// An invalid name, UID, version or id.
    #[error("frame has an invalid word: {0}")]
    Invalid(String),
    /// The bytes are no frame with patches.
    #[error("frame must be a list of patches: {0}")]
    Patches(&'static str),
    /// A newer or foreign protocol version.
    #[error("protocol must be {PROTOCOL}, is {found}")]
    Protocol {
        /// The protocol number of the frame.
        found: u32,
        /// The session, if the frame is a Hello: it can be answered.
        hello: Option<String>,
    },
    /// A type unknown to this side.
    #[error("type must be one of {}, is '{found}'", expected.join(", "))]
    Type {
        /// The known types of this direction.
        expected: &'static [&'static str],
        /// The type of the frame, truncated.
        found: String,
    },
}

impl FrameError {
    /// Returns whether a later version may send this frame, as opposed to garbage.
    #[must_use]
    pub fn is_of_another_version(&self) -> bool {
        matches!(self, Self::Protocol { .. } | Self::Type { .. })
    }

    /// Returns a short stable label for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::TooLarge(_) => "too_large",
            Self::Compression(_) => "compression",
            Self::Encoding(_) => "encoding",
            Self::Json(_) => "json",
            Self::Invalid(_) | Self::Patches(_) => "invalid",
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

/// Serializes the body of a frame.
pub trait Written {
    /// Returns the whole frame as JSON.
    ///
    /// # Errors
    /// Fails when the body cannot be serialized.
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

impl Written for Renew {
    fn to_json(&self, _: &'static str) -> serde_json::Result<String> {
        serde_json::to_string(&self.session)
    }
}

/// Deserializes the body of a frame; objects above `max_object` bytes are rejected one by one.
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
    /// Decodes a frame and validates its string fields. The decompressed size and the items are
    /// charged to the budget.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub fn decode(bytes: &[u8], budget: &mut Budget) -> Result<Self, FrameError> {
        let frame = match bytes.first() {
            Some(b'"') => {
                budget.take_bytes(bytes.len())?;
                Self::Renew(Renew { session: serde_json::from_slice(bytes)? })
            }
            _ => Self::read(bytes, budget, 0)?,
        };
        frame.check_fields(budget)?;
        Ok(frame)
    }
}

impl Received {
    /// Decodes a frame and charges it to the budget; objects above `max_object` bytes are rejected
    /// one by one.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub fn decode(bytes: &[u8], budget: &mut Budget, max_object: usize) -> Result<Self, FrameError> {
        if bytes.first() == Some(&patches::MARK) {
            return Patches::decode(bytes, budget).map(Self::Patches);
        }
        let frame = Self::read(bytes, budget, max_object)?;
        if let Self::Objects(objects) = &frame {
            budget.take_items(objects.changes.len() + objects.rejected.len())?;
        }
        Ok(frame)
    }
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
    // The size in the header is untrusted: it may lower the allocation, never raise it.
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
