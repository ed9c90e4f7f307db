//! Inputs and outputs of the edge machine.

use std::time::Duration;

use crate::apply::{Applied, Totals};
use crate::change::{Change, ObjectRef, Rejected, Uid};
use crate::digest::BucketSet;
use crate::frame::PartialMessage;
use crate::upload::{Lane, Lanes, RefusedReason};
use edgesync_object::ResourceVersion;

/// The limits and delays of the edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeConfig {
    /// The name of the node.
    pub node: String,
    /// The version of the agent.
    pub agent: String,
    /// The largest frame accepted, in bytes, decoded.
    pub max_frame: u32,
    /// The largest object accepted, in bytes of JSON.
    pub max_object: u32,
    /// The timeout of a Hello before it is repeated; doubles up to `retry_max`.
    pub hello_timeout: Duration,
    /// The timeout of reported changes before they are reported again; doubles up to `retry_max`.
    pub report_timeout: Duration,
    /// The longest delay between two attempts.
    pub retry_max: Duration,
    /// The largest number of unanswered reports before a new Hello.
    pub report_attempts: u32,
    /// The largest number of frames in commit; more are left to the link.
    pub max_applying: usize,
    /// The renewal interval of the Lease while the cloud answers, less up to a tenth of jitter.
    pub lease_interval: Duration,
    /// The validity of the Lease without renewal.
    pub lease_duration: Duration,
    /// Whether the store has the content of held objects, so that it can apply patches.
    pub patches: bool,
}

#[cfg(any(test, feature = "simulation"))]
impl EdgeConfig {
    /// Returns the defaults of the configuration.
    pub fn defaults(node: &str) -> Self {
        Self {
            node: node.into(),
            agent: "test".into(),
            max_frame: 256 << 10,
            max_object: 8 << 20,
            hello_timeout: Duration::from_secs(10),
            report_timeout: Duration::from_secs(10),
            retry_max: Duration::from_secs(60),
            report_attempts: 4,
            max_applying: 8,
            lease_interval: Duration::from_secs(10),
            lease_duration: Duration::from_secs(40),
            patches: true,
        }
    }

    /// Returns the defaults with the sizes of a test.
    #[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    pub fn of_tests(node: &str, max_frame: usize, max_object: usize) -> Self {
        Self {
            max_frame: u32::try_from(max_frame).unwrap(),
            max_object: u32::try_from(max_object).unwrap(),
            ..Self::defaults(node)
        }
    }
}

/// Work for the store and the clock.
#[derive(Debug)]
pub enum EdgeEffect {
    /// Apply the changes in one transaction; answer with [`EdgeMachine::applied`].
    Apply {
        /// The token that the answer repeats.
        token: u64,
        /// The changes, in order.
        changes: Vec<Change>,
    },
    /// Keep the next bytes of a message that arrives in parts; answer with
    /// [`EdgeMachine::part_kept`]. They may be lost at any time: the store keeps them to save a
    /// transfer, not to be complete.
    KeepPart {
        /// The message, with the number of its bytes before these. Nothing else is kept: zero
        /// replaces whatever is.
        message: PartialMessage,
        /// The bytes to append, always valid UTF-8.
        text: String,
    },
    /// Complete a message: append the rest to the kept bytes, check the whole with
    /// [`crate::parts::assemble`], and apply its change, in order with [`EdgeEffect::Apply`].
    /// Answer with [`EdgeMachine::applied`], or with [`EdgeMachine::parts_lost`] if the bytes are
    /// damaged or gone. Unless the store fails, nothing is kept afterwards.
    ApplyParts {
        /// The token that the answer repeats.
        token: u64,
        /// The message, with the number of its kept bytes.
        message: PartialMessage,
        /// The bytes after them.
        rest: String,
        /// The largest object accepted, in bytes of JSON.
        max_object: usize,
    },
    /// Drop what is kept of a message in parts.
    DropParts,
    /// Read what is kept of a message in parts; answer with [`EdgeMachine::parts_read`].
    ReadParts,
    /// Read changes after a revision; answer with [`EdgeMachine::changes_read`], or with
    /// [`EdgeMachine::changes_compacted`] if the journal starts later.
    ReadChanges {
        /// The revision before the first requested change.
        after: u64,
        /// The largest number of entries.
        limit: usize,
    },
    /// Compute the bucket digests; answer with [`EdgeMachine::buckets_read`].
    ReadBuckets,
    /// Read the objects held in some buckets; answer with [`EdgeMachine::inventory_read`].
    ReadInventory {
        /// The buckets to read.
        buckets: BucketSet,
        /// The end of the last page; zero for the first one.
        cursor: u64,
        /// The largest number of entries.
        limit: usize,
    },
    /// The cloud has recorded everything up to this revision: the store may drop its tombstones.
    Confirm(u64),
    /// Store the incarnation of the cloud.
    SetIncarnation(String),
    /// Read items of the outbox; answer with [`EdgeMachine::outbox_read`].
    ReadOutbox {
        /// The lane to read.
        lane: Lane,
        /// The number before the first requested item.
        after: u64,
        /// The largest number of items.
        limit: usize,
        /// The approximate size of the page in bytes; one item is returned in any case.
        bytes: usize,
    },
    /// Items of a lane up to this number are confirmed end to end: the outbox may delete them.
    SettleOutbox {
        /// The lane of the items.
        lane: Lane,
        /// The last number confirmed.
        upto: u64,
    },
    /// The numbers after `sent` were already assigned in a lost life of this file: renumber the
    /// items that have them above `above`. Answer with [`EdgeMachine::outbox_changed`].
    RenumberOutbox {
        /// The lane to renumber.
        lane: Lane,
        /// Items with larger numbers have never been sent.
        sent: u64,
        /// The new numbers, and all later ones, start above this, even if no item is pending:
        /// afterwards the largest assigned number is at least this.
        above: u64,
    },
    /// Renew the Lease: answer with [`EdgeMachine::renew`] and the time of the clock.
    RenewLease,
    /// An event for operators.
    Notice(EdgeNotice),
}

/// The state of the outbox as the machine needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxMarks {
    /// The random id of the outbox.
    pub id: String,
    /// The largest assigned numbers.
    pub last: Lanes,
    /// The last confirmed numbers.
    pub confirmed: Lanes,
    /// The number of pending items.
    pub rows: Lanes,
}

/// An event for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EdgeNotice {
    /// The cloud has welcomed the node.
    Welcomed {
        /// Objects to be sent or removed.
        pending: u64,
        /// Removals held back by the cloud.
        held: u64,
        /// The time from Hello to Welcome.
        round_trip: Duration,
    },
    /// The cloud's incarnation has changed: its store was restored or lost.
    IncarnationChanged {
        /// The incarnation of the last session.
        from: String,
        /// The incarnation in the cloud's Welcome.
        to: String,
    },
    /// The cloud requested the inventory: its records differ.
    Repairing,
    /// The link is up but the cloud does not answer.
    CloudSilent {
        /// The number of attempts so far.
        attempts: u32,
    },
    /// The cloud requested a new Hello, perhaps after a delay.
    HelloRequested {
        /// The cloud's reason, for people.
        reason: String,
        /// Seconds to wait before the Hello.
        retry_after_seconds: u64,
    },
    /// An object was rejected.
    Rejected(Rejected),
    /// The cloud has no Node object and requests a node report.
    Register,
    /// An operator has removed the node from the fleet.
    Removed {
        /// The cloud's reason, for people.
        reason: String,
    },
    /// An outbox item was refused permanently.
    UploadRefused {
        /// The item's content, JSON text of a [`crate::upload::Content`].
        content: String,
        /// The reason, for programs.
        reason: RefusedReason,
        /// The reason, for people.
        message: String,
    },
}

/// One entry of a page read from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The UID of the object.
    pub uid: Uid,
    /// The version held; `None` for a tombstone.
    pub version: Option<ResourceVersion>,
    /// API version, kind, namespace and name of the object.
    pub object: ObjectRef,
}

/// Changes read from the store's journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangesPage {
    /// The revision that the request named.
    pub from: u64,
    /// The last revision of the page; equals the newest one if nothing is left.
    pub to: u64,
    /// One entry per object, in order of revision, without superseded changes.
    pub entries: Vec<Entry>,
}

/// Rows read from the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InventoryPage {
    /// The rows of the requested buckets.
    pub entries: Vec<Entry>,
    /// The start of the next page; `None` after the last one.
    pub next: Option<u64>,
}

/// The answer to [`EdgeEffect::Apply`].
#[derive(Debug)]
pub struct Commit {
    /// The revision before the first change of the batch.
    pub before: u64,
    /// The totals after the last change of the batch.
    pub totals: Totals,
    /// The outcome of the batch.
    pub applied: Applied,
}

/// The phase of the connection to the cloud, for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EdgePhase {
    /// No link is up.
    #[default]
    Down,
    /// The link is up; commits of the last connection are in flight.
    Settling,
    /// Hello was sent; the cloud has not answered.
    Greeting,
    /// The cloud has welcomed the node.
    Live,
}

/// Counters for status and metrics. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeCounters {
    /// Hellos sent since start.
    pub hellos: u64,
    /// Objects stored or removed.
    pub applied: u64,
    /// Objects rejected, with or without a commit.
    pub rejected: u64,
    /// Objects stored by patches.
    pub patched: u64,
    /// Patches that could not be applied: the cloud sends the objects as a whole.
    pub unpatched: u64,
    /// Frames ignored because of a foreign session.
    pub foreign_session: u64,
    /// Repeated reports for lack of a Confirm.
    pub repeated_reports: u64,
    /// Outbox items sent, each attempt counted.
    pub uploads_sent: u64,
    /// Outbox items sent again.
    pub uploads_resent: u64,
    /// Outbox items refused by either side.
    pub uploads_refused: u64,
    /// Leases sent since start.
    pub leases: u64,
}
