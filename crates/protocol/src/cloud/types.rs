//! Inputs and outputs of the cloud machine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::body::Body;
use crate::change::{ObjectRef, RejectReason, Uid};
use crate::digest::{Epoch, Tally};
use crate::patch::Patch;
use crate::renewal::Renewal;
use crate::upload::Upload;
use edgesync_object::{ResourceVersion, split_api_version};

/// The limits and delays of the cloud side, for one node.
#[derive(Clone, Debug, PartialEq)]
pub struct CloudConfig {
    /// The largest number of objects sent and not yet reported.
    pub window_objects: usize,
    /// The largest number of bytes loaded or sent and not yet reported. Objects larger than a frame
    /// have a second window of this size; a single object may exceed it alone.
    pub window_bytes: usize,
    /// The largest number of objects in a frame.
    pub frame_objects: usize,
    /// The largest frame in bytes, decoded; the node's own limit may lower it.
    pub max_frame: u32,
    /// The minimum time before an unreported object is sent again.
    pub resend_min: Duration,
    /// The maximum time between two attempts to send an object.
    pub resend_max: Duration,
    /// The time before a rejected object is retried; doubles up to `reject_retry_max`.
    pub reject_retry_min: Duration,
    /// The maximum time between two attempts with a rejected object.
    pub reject_retry_max: Duration,
    /// The timeout for the next page or report of a reconnecting node.
    pub answer_timeout: Duration,
    /// The share of a node's objects (0 to 1) whose removal is held back after the cloud's store
    /// changed.
    pub mass_delete_share: f64,
    /// The number of removals up to which none is held back.
    pub mass_delete_min: u64,
    /// The most objects of a node that are recorded although they are neither desired nor known.
    pub max_unknown: usize,
}

/// The state of one object on a node.
#[derive(Clone, Copy, Debug)]
pub struct ObjectState<'a> {
    /// `None` if the node holds the desired version; else its record of another version, if any.
    pub other: Option<Option<&'a Record>>,
    /// The refusal of the object by the node.
    pub refusal: Option<&'a Refusal>,
}

#[cfg(any(test, feature = "simulation"))]
impl CloudConfig {
    /// Returns the defaults of the configuration.
    pub fn defaults() -> Self {
        Self {
            window_objects: 1024,
            window_bytes: 1 << 20,
            frame_objects: 128,
            max_frame: 256 << 10,
            resend_min: Duration::from_secs(5),
            resend_max: Duration::from_secs(300),
            reject_retry_min: Duration::from_secs(300),
            reject_retry_max: Duration::from_secs(3600),
            answer_timeout: Duration::from_secs(10),
            mass_delete_share: 0.1,
            mass_delete_min: 10,
            max_unknown: 20_000,
        }
    }
}

/// One ObjectSync: the version of an object that the node last reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The version last reported as held.
    pub version: ResourceVersion,
    /// API version, kind, namespace and name of the object.
    pub object: Arc<ObjectRef>,
}

/// The newest version that a store is known to have issued.
#[derive(Clone, Debug)]
pub struct Reached {
    /// The version, comparable within `groups` only.
    pub version: ResourceVersion,
    /// The API groups of the store; `None` for all. Other groups have versions of other stores,
    /// which have no relation to this one.
    pub groups: Option<Arc<BTreeSet<String>>>,
}

impl Reached {
    /// Returns whether a record has a version of this store that is not issued yet.
    pub(super) fn is_before(&self, record: &Record) -> bool {
        let (group, _) = split_api_version(&record.object.api_version);
        self.version.is_older_than(&record.version)
            && self.groups.as_ref().is_none_or(|groups| groups.contains(group))
    }
}

impl From<u64> for Reached {
    fn from(version: u64) -> Self {
        Self { version: version.into(), groups: None }
    }
}

/// An object to load for sending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadRequest {
    /// The UID of the object.
    pub uid: Uid,
    /// The desired version: a newer version is as good.
    pub version: ResourceVersion,
    /// The version that the node holds, if a patch against it is wanted. Without a patch, the whole
    /// object is sent.
    pub base: Option<ResourceVersion>,
}

/// The body of an object, loaded for sending.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The UID of the object.
    pub uid: Uid,
    /// The version of the body, possibly newer than the requested one.
    pub version: ResourceVersion,
    /// The object as JSON text.
    pub body: Body,
    /// A patch from the wanted base to this version, if there is one that saves enough.
    pub patch: Option<Arc<Patch>>,
}

/// Changes of a node's ObjectSync records, stored in one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordBatch {
    /// The token that the answer repeats.
    pub token: u64,
    /// The database file of the node.
    pub epoch: Epoch,
    /// The newest covered revision of the node.
    pub confirmed: u64,
    /// The incarnation under which the node's removals were found plausible.
    pub accepted: Option<Arc<str>>,
    /// Count and digest of all records of the node after this batch, under `epoch`; `None` if
    /// unknown.
    pub tally: Option<Tally>,
    /// The newest recorded revision of each recent database file of the node, the current one
    /// included.
    pub epochs: Vec<(Epoch, u64)>,
    /// Whether the batch replaces all records of the node.
    pub reset: bool,
    /// Records to insert or replace.
    pub put: Vec<(Uid, Record)>,
    /// Records to remove, before others are written.
    pub remove: Vec<Uid>,
}

impl RecordBatch {
    /// Returns whether the batch has all objects of the node, not just a first part.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.reset && self.tally.is_some_and(|tally| tally.count == self.put.len() as u64)
    }
}

/// Work for the cloud's store and fleet.
#[derive(Debug)]
pub enum CloudEffect {
    /// Read the records of the node, which differs from the desired state; answer with
    /// [`super::CloudMachine::opened`]. With [`super::Records::Proven`] there are none: answer with
    /// an empty list once memory for the differences is available.
    ReadRecords,
    /// Let this replica catch up: answer with [`super::CloudMachine::caught_up`] once
    /// [`super::CloudMachine::desire`] has received every change that the store had when this was
    /// polled, however long that takes. Until then the node receives only newer versions of objects
    /// it holds. Only with [`super::Records::Proven`].
    CatchUp {
        /// The token that the answer repeats.
        token: u64,
    },
    /// Load these bodies; answer with [`super::CloudMachine::loaded`] and the loaded ones. At most
    /// two loads at a time; the answer to one of an earlier session is ignored.
    Load {
        /// The token that the answer repeats.
        token: u64,
        /// The objects to load.
        objects: Vec<LoadRequest>,
    },
    /// Store these records; answer with [`super::CloudMachine::recorded`].
    Record(RecordBatch),
    /// The node claims a version that a lost store issued: the store was replaced by an older copy.
    /// The fleet begins a new incarnation if [`super::Witnesses`] agree.
    RollbackClaimed,
    /// Renew the Lease of the node, sent within the current session. If the terms of
    /// [`Renewal::Again`] are not known, answer with
    /// [`super::CloudMachine::request_terms`].
    Renew(Renewal),
    /// Apply items of the node's outbox by the rule of [`crate::upload::IngestCursor`]; answer with
    /// [`super::CloudMachine::taken`]. One upload at a time. Refuse an item because its object is
    /// not placed on the node only if [`super::CloudMachine::may_refuse`]; otherwise answer `None`.
    Ingest {
        /// The token that the answer repeats.
        token: u64,
        /// The upload with its items.
        upload: Upload,
    },
    /// An event for operators.
    Notice(CloudNotice),
}

/// An event for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloudNotice {
    /// The node is connected and its records are proven equal to its objects.
    Welcomed {
        /// Objects to send or to remove.
        pending: u64,
        /// The number of removals held back.
        held: u64,
    },
    /// The node reconnected with another database file.
    EpochChanged {
        /// The previous database file.
        from: Epoch,
        /// The current database file.
        to: Epoch,
    },
    /// The node reconnected with an older copy of its database.
    NodeRolledBack {
        /// The newest recorded revision of the node.
        recorded: u64,
        /// The newest revision that the node has now.
        revision: u64,
    },
    /// The records differ from the objects that the node holds: they are being rewritten.
    Repairing,
    /// The node named too many unknown objects: its session has ended.
    OverQuota {
        /// The quota of unknown objects.
        limit: usize,
    },
    /// Removals are held back until an operator confirms them.
    DeletionsHeld {
        /// The number of removals held back.
        count: u64,
    },
    /// An object was rejected by the node.
    Rejected {
        /// The UID of the object.
        uid: Uid,
        /// The object, if known.
        object: Option<Arc<ObjectRef>>,
        /// The reason, for programs.
        reason: RejectReason,
        /// The reason, for people.
        message: String,
    },
}

/// An object that the node refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The version that the node refuses.
    pub version: ResourceVersion,
    /// The reason, for programs.
    pub reason: RejectReason,
    /// The reason, for people.
    pub message: String,
}

/// The phase of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudPhase {
    /// The node is not connected, or has sent no Hello.
    Offline,
    /// The reports that follow a Hello are being recorded.
    Replaying,
    /// The records are being rewritten from the node's inventory.
    Repairing,
    /// The records equal what the node holds; changes are sent.
    Live,
}

/// Counters for status and metrics. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloudCounters {
    /// Hellos received since start.
    pub hellos: u64,
    /// Objects sent, each attempt counted.
    pub sent: u64,
    /// Removals sent, each attempt counted.
    pub removals_sent: u64,
    /// Objects sent as patches, each attempt counted; they count in `sent`, too.
    pub patches_sent: u64,
    /// Patches that the node could not apply.
    pub patches_refused: u64,
    /// The bytes that the sent patches saved, compared with the compressed objects.
    pub patch_bytes_saved: u64,
    /// Objects sent again after a loss or a timeout.
    pub resent: u64,
    /// Reports of current sessions.
    pub reports: u64,
    /// Objects reported as held.
    pub reported: u64,
    /// Objects rejected by the node.
    pub rejected: u64,
    /// Inventories requested from the node.
    pub repairs: u64,
    /// Frames ignored because of a foreign session.
    pub foreign_session: u64,
    /// Sessions ended because the node named too many unknown objects.
    pub over_quota: u64,
    /// Leases renewed since start.
    pub leases: u64,
    /// Upload frames passed to the store, probes without items included.
    pub uploads: u64,
    /// Items in those frames, repetitions included.
    pub upload_items: u64,
    /// Items refused by the store.
    pub uploads_refused: u64,
}

/// The versions issued by a store, distinguished from those of a lost timeline.
///
/// At each opening the store jumps to a number larger than any it can have issued before, so a
/// version within a gap was issued by a store that this one replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Issued {
    /// For each opening, in order: the last version before, and the first one after.
    pub gaps: Vec<(u64, u64)>,
    /// The version at which the current incarnation began; `None` if it began with the store.
    /// Earlier losses are accounted for by that incarnation.
    pub since: Option<u64>,
}

impl Issued {
    /// Returns whether a store since replaced by an older copy issued the version.
    #[must_use]
    pub fn is_lost(&self, version: &ResourceVersion) -> bool {
        self.gap_of(version).is_some()
    }

    /// Returns whether the version reveals a loss that the current incarnation does not account
    /// for.
    #[must_use]
    pub fn is_news(&self, version: &ResourceVersion) -> bool {
        self.gap_of(version).is_some_and(|end| self.since.is_none_or(|since| since < end))
    }

    /// Returns the end of the gap that contains the version; no state of this timeline has such a
    /// version. The end itself is the version of the store when it was opened.
    #[must_use]
    pub fn end_of(&self, version: u64) -> Option<u64> {
        let next = self.gaps.partition_point(|(_, base)| *base <= version);
        self.gaps.get(next).filter(|(last, _)| *last < version).map(|(_, base)| *base)
    }

    /// Returns the value after a new incarnation has begun with the last opening.
    #[cfg(test)]
    pub(crate) fn renewed(&self) -> Self {
        Self { since: self.gaps.last().map(|(_, base)| *base), ..self.clone() }
    }

    /// No store issued a version that is not a 64-bit number.
    fn gap_of(&self, version: &ResourceVersion) -> Option<u64> {
        self.end_of(version.as_str().parse().ok().filter(|_| version.is_decimal())?)
    }
}
