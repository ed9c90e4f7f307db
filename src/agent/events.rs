//! Events of the agent (`events.k8s.io/v1`): what an operator must know, kept on the node and sent to the cloud
//! through the outbox. Repeats become a series; each source has a bucket of tokens.

use std::time::Duration;

use crate::object::ObjectRef;
use crate::store::edge::EdgeStore;
use crate::sync::change::Uid;

/// Why an Event is made: the reasons that the agent has, with their type and action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Why {
    /// The agent has started after it was stopped in order, or for the first time.
    AgentStarted,
    /// The agent has started after it ended without being told to.
    AgentRestartedUncleanly,
    /// The agent was told to stop.
    AgentStopped,
    /// An object was rejected.
    ObjectRejected,
    /// The database was damaged or lost; what could be read is kept.
    StoreSalvaged,
    /// The database or its disk is full.
    StoreFull,
    /// The database cannot be written.
    StoreFailing,
    /// The database takes changes again.
    StoreRecovered,
    /// The cloud's store is another one than before.
    CloudIncarnationChanged,
    /// The cloud holds back removals that look like a loss of its store.
    DeletionsHeldBack,
    /// Another client has connected in this node's name.
    SessionTakenOver,
    /// The wall clock was set.
    ClockJumped,
    /// A limit of the configuration was hit.
    LimitHit,
    /// Items of the outbox were dropped.
    OutboxOverflow,
    /// The status of an object was refused by the cloud.
    StatusRefused,
    /// The budget of bytes for the day is spent.
    TrafficBudgetSpent,
    /// An operator has removed the node from the fleet.
    NodeRemoved,
}

/// What an Event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Regarding {
    /// The Node.
    #[default]
    Node,
    /// An object.
    Object(ObjectRef, Uid),
}

/// How many Events a source may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventLimits {
    /// At once.
    pub(super) burst: u32,
    /// After how long one more.
    pub(super) refill: Duration,
}

/// Makes Events; cheap to clone. Never waits: what a full queue does not take is counted.
#[derive(Clone, Debug)]
pub(super) struct Events {}

/// How the last run of the agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastRun {
    /// There was none.
    None,
    /// It was told to stop.
    Clean,
    /// It was not.
    Unclean,
}

impl Events {
    /// Starts the task that writes Events. It ends when all handles are dropped.
    pub(super) async fn start(_store: EdgeStore, _node: &str, _limits: EventLimits) -> Self {
        todo!()
    }

    /// Makes an Event. `note` is for people, at most 1,024 bytes.
    pub(super) fn emit(&self, _why: Why, _regarding: Regarding, _note: String) {
        todo!()
    }

    /// Notes in the database that the agent runs, and says how the last run ended.
    pub(super) async fn begin_run(&self) -> LastRun {
        todo!()
    }

    /// Notes in the database that the agent was told to stop, along with the Event that says so, and waits
    /// until all Events are written.
    pub(super) async fn end_run(&self) {
        todo!()
    }

    /// Other limits.
    pub(super) fn set_limits(&self, _limits: EventLimits) {
        todo!()
    }

    /// Events left out because their source made too many, and because the queue was full.
    pub(super) fn suppressed(&self) -> u64 {
        todo!()
    }
}
