//! The values that go into and come out of the bridge.

use std::time::Duration;

use super::names::{FetchRule, Name, WatchRule};
use edgesync_object::ResourceVersion;
use edgesync_protocol::change::{ObjectRef, Uid};
use edgesync_protocol::timing::Now;

/// A moment, by both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// By the clock that never goes backwards.
    pub now: Now,
    /// By the clock on the wall: Unix time in milliseconds. For what messages tell, and for how long ago something was
    /// in an earlier run of the agent; never for another decision.
    pub wall: i64,
}

/// Rules, limits and times of the bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeConfig {
    /// The name of the node.
    pub node: String,
    /// How often the Lease is renewed.
    pub lease_interval: Duration,
    /// How often CloudCore is told that the node lives; it ends a session after 30 s without.
    pub keepalive: Duration,
    /// How long an answer may take before the question is put again.
    pub answer_timeout: Duration,
    /// The longest delay between two attempts at one thing.
    pub retry_max: Duration,
    /// The largest object accepted, in bytes of JSON.
    pub max_object: usize,
    /// Whether `metadata.managedFields`, often half of an object, is kept.
    pub managed_fields: bool,
    /// ConfigMaps and Secrets that are asked for beside those that held pods reference.
    pub fetch: Vec<FetchRule>,
    /// Kinds that are watched through the dynamic controller.
    pub watch: Vec<WatchRule>,
    /// How long it may take until everything held has been compared once.
    pub verify_interval: Duration,
}

/// Something for the link to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// A TEXT message.
    Text {
        /// A short fixed word, for counters.
        name: &'static str,
        /// The JSON, with the newline that KubeEdge ends it with.
        text: String,
    },
    /// A WebSocket ping. Its pong says that everything sent before was read: [`super::Bridge::pong`].
    Ping(u64),
}

/// Work for the store, and news.
#[derive(Debug)]
pub enum BridgeEffect {
    /// Read what is held, in the order of the inventory; answer with [`super::Bridge::held_read`] or
    /// [`super::Bridge::read_failed`].
    ReadHeld {
        /// Where the last page ended; zero for the first one.
        cursor: u64,
        /// The largest number of entries.
        limit: usize,
    },
    /// Keep this text in the database; the next run of the agent gives it to [`super::Bridge::recall`].
    Remember(String),
    /// CloudCore takes what is sent and answers nothing, as it does beyond its node limit: a new connection may help, after
    /// the backoff of a failed one.
    Reconnect,
    /// Something that an operator may want to know.
    Notice(BridgeNotice),
}

/// A page of what is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldPage {
    /// The objects.
    pub entries: Vec<HeldEntry>,
    /// Where the next page begins, none after the last.
    pub next: Option<u64>,
}

/// An object that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldEntry {
    /// Its UID.
    pub uid: Uid,
    /// The version held.
    pub version: ResourceVersion,
    /// Which object it is.
    pub object: ObjectRef,
    /// What it references, if it is a Pod, each with the object that is held under the name: [`super::references`] of its
    /// body. Empty for all others.
    pub references: Vec<(Name, Option<Uid>)>,
}

/// Something that an operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BridgeNotice {
    /// A message cannot be read.
    BadMessage {
        /// What is wrong with it.
        problem: String,
    },
    /// A round begins because what CloudCore believes to be here is not: everything is asked for again.
    Refilling(RoundReason),
    /// A round is over.
    Verified {
        /// Why it was begun.
        reason: RoundReason,
        /// Objects that were compared.
        compared: u64,
        /// Objects that were missing, older, or held although they are gone.
        differed: u64,
    },
    /// The dynamic controller does not answer: it is switched off, or older than what is asked.
    DynamicControllerSilent,
    /// It refuses a list or a watch.
    Denied {
        /// What was asked for.
        what: String,
        /// Its words.
        message: String,
    },
}

/// Why everything held is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundReason {
    /// The node has no Lease with a marker: it is new here, or another agent had its name.
    First,
    /// The marker in the Lease is not that of the database: it was lost, or is an older copy.
    Lost,
    /// A new connection, with the database of before.
    Reconnect,
    /// The rules of the configuration have changed.
    Rules,
    /// It is time.
    Routine,
    /// An operator wants to know.
    Asked,
}

impl RoundReason {
    /// A short fixed word.
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

    /// Whether it goes as fast as CloudCore answers, lists included, and the database is not proven before it is over.
    #[must_use]
    pub(crate) fn is_urgent(self) -> bool {
        matches!(self, Self::First | Self::Lost | Self::Asked)
    }

    /// Whether everything held is compared.
    #[must_use]
    pub(crate) fn compares(self) -> bool {
        self.is_urgent() || self == Self::Routine
    }
}

/// What is known of the dynamic controller of this CloudCore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DynamicController {
    /// Nothing was asked of it yet.
    #[default]
    Unknown,
    /// It answers.
    On,
    /// It does not.
    Silent,
}

impl DynamicController {
    /// A short fixed word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::On => "on",
            Self::Silent => "silent",
        }
    }
}

/// What the status shows. Times are Unix milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeStatus {
    /// Messages whose commit has not returned yet.
    pub unacknowledged: u64,
    /// When a message was acknowledged last.
    pub acknowledged_at: Option<i64>,
    /// The version of the Lease that CloudCore has answered with last.
    pub lease_version: Option<String>,
    /// When that was.
    pub lease_at: Option<i64>,
    /// The UID of the Node, once CloudCore has told it.
    pub node_uid: Option<String>,
    /// The version of the Node that CloudCore has answered a patch with last.
    pub node_version: Option<String>,
    /// When that was.
    pub node_at: Option<i64>,
    /// The dynamic controller.
    pub dynamic_controller: DynamicController,
    /// The round under way: its reason, what was compared, whether it goes as fast as CloudCore answers.
    pub round: Option<(RoundReason, u64)>,
    /// The last round that is over: when, why, what was compared, what differed.
    pub verified: Option<(i64, RoundReason, u64, u64)>,
    /// Objects that are to be held, and are not: asked for in vain so far. At most a few.
    pub missing: Vec<String>,
    /// How many those are.
    pub missing_count: u64,
}

/// Numbers for the status and the metrics. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgeCounters {
    /// Messages received.
    pub received: u64,
    /// Messages acknowledged after their commit, or because there was nothing to store.
    pub acknowledged: u64,
    /// Messages of these whose object was rejected.
    pub rejected: u64,
    /// Messages that were not acknowledged because nothing can be stored: CloudCore sends them again.
    pub withheld: u64,
    /// Messages that came again while their commit was under way.
    pub repeated: u64,
    /// Messages that cannot be read.
    pub bad: u64,
    /// Messages about nothing that is kept here.
    pub ignored: u64,
    /// Objects that no rule asks for.
    pub unwanted: u64,
    /// Deletes that do not say which object is meant.
    pub unclear: u64,
    /// Messages with the operation `error`.
    pub errors: u64,
    /// Questions put.
    pub asked: u64,
    /// Questions answered.
    pub answered: u64,
    /// Questions given up without an answer.
    pub unanswered: u64,
    /// Objects that a round found missing, older, or held although they are gone.
    pub differed: u64,
    /// Rounds that are over.
    pub rounds: u64,
}
