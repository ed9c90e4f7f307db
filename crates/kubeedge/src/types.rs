//! Inputs and outputs of the bridge.

use std::time::Duration;

use super::names::{FetchRule, Name, WatchRule};
use edgesync_object::{NodeName, ResourceVersion};
use edgesync_protocol::change::{ObjectRef, Uid};
use edgesync_protocol::timing::Now;

/// A point in time by both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The time of the monotonic clock.
    pub now: Now,
    /// The wall clock: Unix time in milliseconds. Only for timestamps in messages and for durations
    /// since an earlier run of the agent.
    pub wall: i64,
}

/// Rules, limits and times of the bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeConfig {
    /// The name of the node.
    pub node: NodeName,
    /// The renewal interval of the Lease.
    pub lease_interval: Duration,
    /// The interval of keepalive messages; CloudCore ends a session after 30 s without one.
    pub keepalive: Duration,
    /// The timeout of an answer before the query is repeated.
    pub answer_timeout: Duration,
    /// The longest delay between two attempts at the same operation.
    pub retry_max: Duration,
    /// The largest object accepted, in bytes of JSON.
    pub max_object: usize,
    /// Whether to keep `metadata.managedFields`, often half of an object.
    pub managed_fields: bool,
    /// ConfigMaps and Secrets to query beside those that held Pods reference.
    pub fetch: Vec<FetchRule>,
    /// Kinds to watch through the dynamic controller.
    pub watch: Vec<WatchRule>,
    /// The time within which everything held is compared once.
    pub verify_interval: Duration,
}

/// An item for the link to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// A WebSocket TEXT message.
    Text {
        /// A short fixed label for metrics.
        name: &'static str,
        /// The JSON, with KubeEdge's trailing newline.
        text: String,
    },
    /// A WebSocket ping. Its pong proves that everything sent before was read:
    /// [`super::Bridge::pong`].
    Ping(u64),
}

/// Work for the store and events for operators.
#[derive(Debug)]
pub enum BridgeEffect {
    /// Read the held objects in the order of the inventory; answer with
    /// [`super::Bridge::held_read`] or [`super::Bridge::read_failed`].
    ReadHeld {
        /// The end of the last page; zero for the first one.
        cursor: u64,
        /// The largest number of entries.
        limit: usize,
    },
    /// Store this text in the database; the next run of the agent passes it to
    /// [`super::Bridge::restore_state`].
    SaveState(String),
    /// Reconnect after the backoff of a failed connection: CloudCore accepts messages but answers
    /// nothing, as it does beyond its node limit.
    Reconnect,
    /// An event for operators.
    Notice(BridgeNotice),
}

/// A page of held objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldPage {
    /// The entries of the page.
    pub entries: Vec<HeldEntry>,
    /// The start of the next page; `None` after the last one.
    pub next: Option<u64>,
}

/// One held object of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldEntry {
    /// The UID of the object.
    pub uid: Uid,
    /// The version that the node holds.
    pub version: ResourceVersion,
    /// API version, kind, namespace and name of the object.
    pub object: ObjectRef,
    /// The names that a Pod references, each with the object held under it: [`super::references`]
    /// of its body. Empty for all other kinds.
    pub references: Vec<(Name, Option<Uid>)>,
}

/// An event for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BridgeNotice {
    /// A message of CloudCore cannot be read.
    BadMessage {
        /// The problem, for people.
        problem: String,
    },
    /// A full relist begins, because CloudCore's view of this node is outdated.
    Refilling(RoundReason),
    /// A round is complete.
    Verified {
        /// The reason of the round.
        reason: RoundReason,
        /// The number of objects compared.
        compared: u64,
        /// The number of objects that were missing, older, or held although deleted.
        differed: u64,
    },
    /// The dynamic controller does not answer: it is disabled, or too old for the request.
    DynamicControllerSilent,
    /// The dynamic controller refuses a list or a watch.
    Denied {
        /// The rule of the refused request.
        what: String,
        /// The message of the dynamic controller.
        message: String,
    },
}

/// The reason of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundReason {
    /// The node has no Lease with a marker: it is new, or another agent had its name.
    First,
    /// The marker in the Lease differs from the database's: the database was lost, or is an older
    /// copy.
    Lost,
    /// A new connection with the previous database.
    Reconnect,
    /// The rules of the configuration have changed.
    Rules,
    /// The verify interval has elapsed.
    Routine,
    /// An operator has requested a relist.
    Asked,
}

impl RoundReason {
    /// Returns a short fixed label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Lost => "lost",
            Self::Reconnect => "reconnect",
            Self::Rules => "rules",
            Self::Routine => "routine",
            Self::Asked => "asked",
        }
    }

    /// Returns whether the round runs as fast as CloudCore answers, lists included, and the
    /// database is unproven until it is complete.
    #[must_use]
    pub(crate) fn is_urgent(self) -> bool {
        matches!(self, Self::First | Self::Lost | Self::Asked)
    }

    /// Returns whether the round compares everything held.
    #[must_use]
    pub(crate) fn compares(self) -> bool {
        self.is_urgent() || self == Self::Routine
    }
}

/// The observed state of CloudCore's dynamic controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DynamicController {
    /// No request was sent yet.
    #[default]
    Unknown,
    /// The dynamic controller answers.
    On,
    /// The dynamic controller does not answer.
    Silent,
}

impl DynamicController {
    /// Returns a short fixed label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::On => "on",
            Self::Silent => "silent",
        }
    }
}

/// The state of the bridge, for the status. Times are Unix milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeStatus {
    /// Messages whose commit has not returned yet.
    pub unacknowledged: u64,
    /// The time of the last acknowledgement.
    pub acknowledged_at: Option<i64>,
    /// The Lease version in CloudCore's last answer.
    pub lease_version: Option<String>,
    /// The time of that answer.
    pub lease_at: Option<i64>,
    /// The UID of the Node, once CloudCore has sent it.
    pub node_uid: Option<String>,
    /// The Node version in CloudCore's last answer to a patch.
    pub node_version: Option<String>,
    /// The time of that answer.
    pub node_at: Option<i64>,
    /// The state of the dynamic controller.
    pub dynamic_controller: DynamicController,
    /// The current round: its reason and the number of compared objects.
    pub round: Option<(RoundReason, u64)>,
    /// The last complete round: time, reason, compared and differing objects.
    pub verified: Option<(i64, RoundReason, u64, u64)>,
    /// Desired objects that are not held although queried; at most a few names.
    pub missing: Vec<String>,
    /// The number of those objects.
    pub missing_count: u64,
}

/// Counters for status and metrics. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgeCounters {
    /// Messages received from CloudCore.
    pub received: u64,
    /// Messages acknowledged after their commit, or because there was nothing to store.
    pub acknowledged: u64,
    /// Acknowledged messages whose object was rejected.
    pub rejected: u64,
    /// Messages left unacknowledged because the store cannot save anything: CloudCore sends them
    /// again.
    pub withheld: u64,
    /// Messages repeated while their commit was in flight.
    pub repeated: u64,
    /// Messages that cannot be read.
    pub bad: u64,
    /// Messages about kinds that are not kept.
    pub ignored: u64,
    /// Objects that no rule matches.
    pub unwanted: u64,
    /// Deletes that do not identify an object.
    pub unclear: u64,
    /// Messages with the operation `error`.
    pub errors: u64,
    /// Queries sent, repetitions included.
    pub asked: u64,
    /// Queries answered by CloudCore.
    pub answered: u64,
    /// Queries abandoned without an answer.
    pub unanswered: u64,
    /// Objects that a round found missing, older, or held although deleted.
    pub differed: u64,
    /// Rounds completed since start.
    pub rounds: u64,
}
