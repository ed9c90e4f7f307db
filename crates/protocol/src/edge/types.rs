//! The values that go into and come out of the edge machine.

use std::time::Duration;

use crate::change::{Change, ObjectRef, Rejected, Uid};
use crate::digest::BucketSet;
use crate::replica::{Applied, Totals};
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
    /// How long a Hello waits for its Welcome before it is said again; doubles up to `retry_max`.
    pub hello_timeout: Duration,
    /// How long reported changes wait for their Confirm before they are reported again; doubles up to `retry_max`.
    pub report_timeout: Duration,
    /// The longest delay between two attempts.
    pub retry_max: Duration,
    /// The largest number of unanswered reports before a new Hello is said.
    pub report_attempts: u32,
    /// The number of frames that may wait for their commit; more are left to the link.
    pub max_applying: usize,
    /// How often the Lease is renewed while the cloud answers; up to a tenth earlier, at random.
    pub lease_interval: Duration,
    /// How long the Lease is good without renewal.
    pub lease_duration: Duration,
}

#[cfg(any(test, feature = "simulation"))]
impl EdgeConfig {
    /// Those of the configuration.
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
        }
    }

    /// Sizes are the test's; times are those of the configuration.
    #[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    pub fn of_tests(node: &str, max_frame: usize, max_object: usize) -> Self {
        Self {
            max_frame: u32::try_from(max_frame).unwrap(),
            max_object: u32::try_from(max_object).unwrap(),
            ..Self::defaults(node)
        }
    }
}

/// Work for the store. Each is answered by the method of the same name in past tense.
#[derive(Debug)]
pub enum EdgeEffect {
    /// Apply the changes in one transaction; answer with [`EdgeMachine::applied`].
    Apply {
        /// Comes back with the answer.
        token: u64,
        /// The changes, in order.
        changes: Vec<Change>,
    },
    /// Read changes after a revision; answer with [`EdgeMachine::changes_read`].
    ReadChanges {
        /// The revision before the first change wanted.
        after: u64,
        /// The largest number of entries.
        limit: usize,
    },
    /// Compute the bucket digests; answer with [`EdgeMachine::buckets_read`].
    ReadBuckets,
    /// Read what is held in some buckets; answer with [`EdgeMachine::inventory_read`].
    ReadInventory {
        /// The buckets.
        buckets: BucketSet,
        /// Where the last page ended; zero for the first one.
        cursor: u64,
        /// The largest number of entries.
        limit: usize,
    },
    /// The cloud has recorded everything up to this revision: the store may forget its tombstones.
    Confirm(u64),
    /// Remember the incarnation of the cloud.
    SetIncarnation(String),
    /// Read items of the outbox; answer with [`EdgeMachine::outbox_read`].
    ReadOutbox {
        /// The lane.
        lane: Lane,
        /// The number before the first item wanted.
        after: u64,
        /// The largest number of items.
        limit: usize,
        /// About how many bytes of items; one item is given in any case.
        bytes: usize,
    },
    /// Items of a lane up to this number are confirmed end to end: the outbox may forget them.
    SettleOutbox {
        /// The lane.
        lane: Lane,
        /// The last number confirmed.
        upto: u64,
    },
    /// The numbers after `sent` were given before, in a life of this file that is lost: items that have them
    /// are to be numbered anew, above `above`. Answer with [`EdgeMachine::outbox_changed`].
    RenumberOutbox {
        /// The lane.
        lane: Lane,
        /// Items with larger numbers have never been sent.
        sent: u64,
        /// Above this are the new numbers, and all that are given from then on, even if no item waits: afterwards the
        /// largest number given is at least this.
        above: u64,
    },
    /// The Lease is to be renewed: answer with [`EdgeMachine::renew`], which wants the time of the clock.
    RenewLease,
    /// Something that an operator may want to know.
    Notice(EdgeNotice),
}

/// How the outbox stands: what the machine must know of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxMarks {
    /// The random id of the outbox.
    pub id: String,
    /// The largest numbers that were given.
    pub last: Lanes,
    /// The last numbers that were confirmed.
    pub confirmed: Lanes,
    /// How many items wait.
    pub rows: Lanes,
}

/// Something that an operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EdgeNotice {
    /// The cloud has welcomed the node.
    Welcomed {
        /// Objects that will be sent or removed.
        pending: u64,
        /// Removals held back by the cloud.
        held: u64,
        /// Hello to Welcome.
        round_trip: Duration,
    },
    /// The cloud is of another incarnation than before: its store was restored or lost.
    IncarnationChanged {
        /// The one known before.
        from: String,
        /// The one of now.
        to: String,
    },
    /// The cloud asked for the inventory: its records differed.
    Repairing,
    /// The link is up but the cloud does not answer.
    CloudSilent {
        /// How many times the node has tried.
        attempts: u32,
    },
    /// The cloud asked to wait or to say Hello again.
    HelloRequested {
        /// Its reason.
        reason: String,
        /// Seconds to wait.
        retry_after_seconds: u64,
    },
    /// An object was rejected.
    Rejected(Rejected),
    /// The cloud knows nothing of the Node and wants to be told.
    Register,
    /// An operator has removed the node from the fleet.
    Removed {
        /// What the cloud says.
        reason: String,
    },
    /// An item of the outbox was refused for good.
    UploadRefused {
        /// What the item said, as JSON text of a [`crate::upload::Content`].
        content: String,
        /// Why.
        reason: RefusedReason,
        /// Why, for people.
        message: String,
    },
}

/// One entry of a page read from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The UID.
    pub uid: Uid,
    /// The version held, none for a tombstone.
    pub version: Option<ResourceVersion>,
    /// Which object it is.
    pub object: ObjectRef,
}

/// Changes read from the store's journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangesPage {
    /// The revision asked for.
    pub from: u64,
    /// The revision that the page reaches; equal to the newest one when nothing is left.
    pub to: u64,
    /// One entry per object, in order of revision; superseded changes are left out.
    pub entries: Vec<Entry>,
}

/// Rows read from the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InventoryPage {
    /// The rows of the wanted buckets.
    pub entries: Vec<Entry>,
    /// Where the next page begins, none after the last.
    pub next: Option<u64>,
}

/// The answer to [`EdgeEffect::Apply`].
#[derive(Debug)]
pub struct Commit {
    /// The revision before the first change of the batch.
    pub before: u64,
    /// The totals after the last change of the batch.
    pub totals: Totals,
    /// What the batch came to.
    pub applied: Applied,
}

/// What the status shows of the connection to the cloud.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EdgePhase {
    /// No link.
    #[default]
    Down,
    /// The link is up, commits of the last connection are awaited.
    Settling,
    /// Hello was said, the cloud has not answered.
    Greeting,
    /// Welcomed.
    Live,
}

/// Numbers for the status and the metrics. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeCounters {
    /// Hellos said.
    pub hellos: u64,
    /// Objects stored or removed.
    pub applied: u64,
    /// Objects rejected.
    pub rejected: u64,
    /// Frames ignored because they were of another session.
    pub foreign_session: u64,
    /// Times that reports were repeated because no Confirm came.
    pub repeated_reports: u64,
    /// Items of the outbox that were sent, each attempt counted.
    pub uploads_sent: u64,
    /// Items of the outbox that were sent again.
    pub uploads_resent: u64,
    /// Items of the outbox that were refused.
    pub uploads_refused: u64,
    /// Leases sent.
    pub leases: u64,
}
