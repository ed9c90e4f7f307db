//! The values that go into and come out of the cloud machine.

use std::sync::Arc;
use std::time::Duration;

use crate::change::{ObjectRef, RejectReason, Uid};
use crate::digest::{Epoch, Tally};
use crate::message::Body;
use crate::upload::{Lease, Upload};
use edgesync_object::ResourceVersion;

/// The limits and delays of the cloud side, for one node.
#[derive(Clone, Debug, PartialEq)]
pub struct CloudConfig {
    /// The largest number of objects sent and not yet reported.
    pub window_objects: usize,
    /// The largest number of bytes loaded or sent and not yet reported. Objects that are larger than a frame have as much
    /// again to themselves; a single one that is larger still may be under way alone.
    pub window_bytes: usize,
    /// The largest number of objects in a frame.
    pub frame_objects: usize,
    /// The largest frame in bytes, decoded; the node's own limit may lower it.
    pub max_frame: u32,
    /// The shortest time after which an unreported object is sent again.
    pub resend_min: Duration,
    /// The longest time between two attempts to send an object.
    pub resend_max: Duration,
    /// The time after which a rejected object is tried again; doubles up to `reject_retry_max`.
    pub reject_retry_min: Duration,
    /// The longest time between two attempts with a rejected object.
    pub reject_retry_max: Duration,
    /// How long to wait for the next page or report of a node that reconnects.
    pub answer_timeout: Duration,
    /// The share of a node's objects (0 to 1) whose removal is held back after the cloud's store changed.
    pub mass_delete_share: f64,
    /// Removals up to this number are never held back.
    pub mass_delete_min: u64,
    /// The most objects of a node that are recorded although it is not to hold them and nobody has given them to it.
    pub max_unknown: usize,
}

/// How a node stands with one object.
#[derive(Clone, Copy, Debug)]
pub struct Stands<'a> {
    /// Nothing if it holds the version that it is to hold; else what it holds instead, if anything.
    pub other: Option<Option<&'a Record>>,
    /// Why it refuses the object, if it does.
    pub refusal: Option<&'a Refusal>,
}

#[cfg(any(test, feature = "simulation"))]
impl CloudConfig {
    /// Those of the configuration.
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

/// One ObjectSync: the version of an object that the node was last known to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The version held.
    pub version: ResourceVersion,
    /// Which object it is.
    pub object: Arc<ObjectRef>,
}

/// The body of an object, loaded for sending.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The UID.
    pub uid: Uid,
    /// The version of the body, which may be newer than the one asked for.
    pub version: ResourceVersion,
    /// The object.
    pub body: Body,
}

/// Changes to a node's ObjectSync records, to be stored in one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordBatch {
    /// Comes back with the answer.
    pub token: u64,
    /// The database file of the node.
    pub epoch: Epoch,
    /// The newest change of the node that is covered.
    pub confirmed: u64,
    /// The incarnation under which the node's removals were found plausible.
    pub accepted: Option<Arc<str>>,
    /// Count and digest of all records of the node once these are stored, under `epoch`; none if they are not known.
    pub tally: Option<Tally>,
    /// For each database file that the node has had lately, that of now included: the newest change that was ever
    /// recorded of it.
    pub epochs: Vec<(Epoch, u64)>,
    /// Whether `put` is all that the node holds: all other records of it go.
    pub reset: bool,
    /// Records to write.
    pub put: Vec<(Uid, Record)>,
    /// Records to remove, before others are written.
    pub remove: Vec<Uid>,
}

impl RecordBatch {
    /// Whether it has all that the node holds, and not only the first part of that.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.reset && self.tally.is_some_and(|tally| tally.count == self.put.len() as u64)
    }
}

/// Work for the cloud's store and fleet.
#[derive(Debug)]
pub enum CloudEffect {
    /// The node differs from what it is to hold: read its records; answer with [`super::CloudMachine::opened`]. With
    /// [`super::Records::Proven`] there are none: answer with none once there is room for what differs.
    Open,
    /// Let this replica catch up: answer with [`super::CloudMachine::caught_up`] once the machine was told of everything
    /// that the store had when this was polled, however long that takes. Until then the node only gets newer versions of
    /// what it holds. Only with [`super::Records::Proven`].
    CatchUp {
        /// Comes back with the answer.
        token: u64,
    },
    /// Load these bodies; answer with [`super::CloudMachine::loaded`], with what could be loaded. At most
    /// two at a time; the answer to one of an earlier session is ignored.
    Load {
        /// Comes back with the answer.
        token: u64,
        /// The objects, and the versions that the node is to hold: a newer one is as good.
        objects: Vec<(Uid, ResourceVersion)>,
    },
    /// Store these records; answer with [`super::CloudMachine::recorded`].
    Record(RecordBatch),
    /// The node says that it has a version that the store gave in a life that is lost: that it was replaced by an older copy.
    /// The fleet is to begin a new incarnation if [`super::Witnesses`] agree.
    StoreWentBack,
    /// The node lives: its Lease is to be renewed. It was sent within the session of now.
    Renew(Lease),
    /// Items of the node's outbox are to take effect, as [`crate::upload::Taken`] says; answer with
    /// [`super::CloudMachine::taken`]. One at a time.
    Take {
        /// Comes back with the answer.
        token: u64,
        /// The items.
        upload: Upload,
    },
    /// Something that an operator may want to know.
    Notice(CloudNotice),
}

/// Something that an operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloudNotice {
    /// The node is connected and its records are proven equal to what it holds.
    Welcomed {
        /// Objects to send or to remove.
        pending: u64,
        /// Removals held back.
        held: u64,
    },
    /// The node came back with another database file.
    EpochChanged {
        /// The file known before.
        from: Epoch,
        /// The file of now.
        to: Epoch,
    },
    /// The node came back with an older copy of its database.
    NodeWentBack {
        /// The newest change that was recorded of it.
        recorded: u64,
        /// The newest change that it now has.
        revision: u64,
    },
    /// The records differ from what the node holds: they are being rewritten.
    Repairing,
    /// The node names more objects than it can have been given: its session has ended.
    OverQuota {
        /// How many it may name beyond those that are known.
        limit: usize,
    },
    /// Removals are held back until they are confirmed.
    DeletionsHeld {
        /// How many.
        count: u64,
    },
    /// An object was rejected by the node.
    Rejected {
        /// The UID of the object.
        uid: Uid,
        /// The object, if known.
        object: Option<Arc<ObjectRef>>,
        /// Why.
        reason: RejectReason,
        /// In words.
        message: String,
    },
}

/// An object that the node refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The version refused.
    pub version: ResourceVersion,
    /// Why.
    pub reason: RejectReason,
    /// In words.
    pub message: String,
}

/// Where the node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudPhase {
    /// Not connected, or no Hello yet.
    Offline,
    /// The reports that follow a Hello are being taken.
    Replaying,
    /// The records are being rewritten from the node's inventory.
    Repairing,
    /// The records equal what the node holds; changes are sent.
    Live,
}

/// Numbers for the status and the metrics. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloudCounters {
    /// Hellos received.
    pub hellos: u64,
    /// Objects sent, each attempt counted.
    pub sent: u64,
    /// Objects removed by message, each attempt counted.
    pub removals_sent: u64,
    /// Objects sent again.
    pub resent: u64,
    /// Reports taken.
    pub reports: u64,
    /// Objects reported as held.
    pub reported: u64,
    /// Objects rejected.
    pub rejected: u64,
    /// Inventories asked for.
    pub repairs: u64,
    /// Frames ignored because they were of another session.
    pub foreign_session: u64,
    /// Sessions that ended because the node named more objects than it can have been given.
    pub over_quota: u64,
    /// Leases renewed.
    pub leases: u64,
    /// Frames of the node's outbox that were handed to the store; those that only ask are among them.
    pub uploads: u64,
    /// Items in them, those that come again counted again.
    pub upload_items: u64,
    /// Items that were refused.
    pub uploads_refused: u64,
}

/// The versions that a store has given out, as far as they can be told from those of a lost timeline.
///
/// At each opening the store jumps to a number larger than any it can have given out before, so what
/// lies in a gap was given out by a store that this one replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Issued {
    /// For each opening, in their order: the last version before, and the first one after.
    pub gaps: Vec<(u64, u64)>,
    /// The version with which the incarnation of now began; none if it began with the store. What was lost before is
    /// what that incarnation is for.
    pub since: Option<u64>,
}

impl Issued {
    /// Whether the version was given out by a store that was since replaced by an older copy.
    #[must_use]
    pub fn is_lost(&self, version: &ResourceVersion) -> bool {
        self.gap_of(version).is_some()
    }

    /// Whether the version shows a loss that the incarnation of now knows nothing of.
    #[must_use]
    pub fn is_news(&self, version: &ResourceVersion) -> bool {
        self.gap_of(version).is_some_and(|end| self.since.is_none_or(|since| since < end))
    }

    /// The end of the gap that a version lies within, if it does: no state of this timeline has such a version.
    /// The end itself is the version of the store as it was opened.
    #[must_use]
    pub fn end_of(&self, version: u64) -> Option<u64> {
        let next = self.gaps.partition_point(|(_, base)| *base <= version);
        self.gaps.get(next).filter(|(last, _)| *last < version).map(|(_, base)| *base)
    }

    /// The same once a new incarnation has begun with the last opening.
    #[cfg(test)]
    pub(crate) fn renewed(&self) -> Self {
        Self { since: self.gaps.last().map(|(_, base)| *base), ..self.clone() }
    }

    /// What is no number of 64 bits was given out by no store.
    fn gap_of(&self, version: &ResourceVersion) -> Option<u64> {
        self.end_of(version.as_str().parse().ok().filter(|_| version.is_decimal())?)
    }
}
