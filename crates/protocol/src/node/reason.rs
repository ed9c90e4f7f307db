//! Reasons of the conditions of a Node. docs/events.md explains each; a test compares its table
//! with this enum.

use super::{
    CERTIFICATE_VALID, CLOUD_REACHABLE, Condition, ConditionStatus, DISK_PRESSURE, FILES_IN_EFFECT, IN_SYNC,
    READY, STORE_HEALTHY, TRAFFIC_BUDGET_SPENT,
};

/// Reason of all conditions after the Lease has expired, as in Kubernetes' node lifecycle
/// controller.
const STATUS_UNKNOWN: &str = "NodeStatusUnknown";

/// The fields of a condition that its reason decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConditionFields {
    /// The type of the condition.
    pub condition: &'static str,
    /// The status of the condition.
    pub status: ConditionStatus,
    /// The name of the reason.
    pub reason: &'static str,
}

/// Declares an enum of reasons, each with type and status of its condition. The name of a reason
/// is that of its variant.
#[macro_export]
macro_rules! condition_reasons {
    ($(#[$about:meta])* pub enum $name:ident {
        $($(#[$doc:meta])* $reason:ident = ($condition:expr, $status:ident),)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $reason,)*
        }

        impl $name {
            /// All reasons, in the order of their declaration.
            pub const ALL: [Self; [$(stringify!($reason)),*].len()] = [$(Self::$reason),*];

            /// Returns the fields of the condition that the reason decides.
            #[must_use]
            pub fn fields(self) -> $crate::node::ConditionFields {
                let (condition, status, reason) = match self {
                    $(Self::$reason => (
                        $condition,
                        $crate::node::ConditionStatus::$status,
                        stringify!($reason),
                    ),)*
                };
                $crate::node::ConditionFields { condition, status, reason }
            }
        }
    };
}

condition_reasons! {
    /// Reason of a condition of a Node. It decides type and status of the condition.
    ///
    /// [`Condition::unknown`] is the one exception: its reason is the same for all types.
    pub enum NodeReason {
        /// The agent renews its Lease.
        AgentReady = (READY, True),
        /// The node has a session with the cloud side.
        Connected = (CLOUD_REACHABLE, True),
        /// The node holds all desired objects at their latest version.
        InSync = (IN_SYNC, True),
        /// Objects have yet to be sent or removed.
        ObjectsPending = (IN_SYNC, False),
        /// All objects that have yet to be sent or removed wait for the link of the node.
        ObjectsWaiting = (IN_SYNC, False),
        /// The node rejects objects.
        ObjectsRejected = (IN_SYNC, False),
        /// The mass-delete guard holds back removals.
        RemovalsHeldBack = (IN_SYNC, False),
        /// The database accepts changes.
        StoreWorks = (STORE_HEALTHY, True),
        /// The database accepts changes, and was damaged or missing before.
        StoreSalvaged = (STORE_HEALTHY, True),
        /// The database or its disk is full.
        StoreFull = (STORE_HEALTHY, False),
        /// The database cannot be written.
        StoreFailing = (STORE_HEALTHY, False),
        /// The disk of the database is almost full.
        DiskAlmostFull = (DISK_PRESSURE, True),
        /// The database has almost reached its limit.
        DatabaseAlmostFull = (DISK_PRESSURE, True),
        /// Disk and database have free space.
        SufficientDisk = (DISK_PRESSURE, False),
        /// The free space of the disk cannot be determined.
        FreeSpaceUnknown = (DISK_PRESSURE, Unknown),
        /// The configuration has no traffic budget.
        NoBudget = (TRAFFIC_BUDGET_SPENT, False),
        /// The day's traffic is within the budget.
        WithinBudget = (TRAFFIC_BUDGET_SPENT, False),
        /// The day's budget is spent.
        BudgetSpent = (TRAFFIC_BUDGET_SPENT, True),
        /// The certificate is valid.
        Valid = (CERTIFICATE_VALID, True),
        /// The certificate expires soon, and its renewal fails.
        ExpiresSoon = (CERTIFICATE_VALID, False),
        /// The certificate has expired.
        Expired = (CERTIFICATE_VALID, False),
        /// The clock of the node is not set, so the validity is unknown.
        ClockNotSet = (CERTIFICATE_VALID, Unknown),
        /// All objects selected by file rules are in effect.
        InEffect = (FILES_IN_EFFECT, True),
        /// An object is not in effect.
        NotInEffect = (FILES_IN_EFFECT, False),
        /// An object is not in effect because others own a file.
        Conflict = (FILES_IN_EFFECT, False),
        /// A file rule failed, or a request to the helper about all rules.
        RuleFailed = (FILES_IN_EFFECT, False),
        /// The helper cannot be reached.
        HelperUnreachable = (FILES_IN_EFFECT, False),
        /// The helper has not reported the states of objects yet.
        NoReport = (FILES_IN_EFFECT, Unknown),
        /// Objects wait for a window, a condition, or the end of a hold, and all others are in
        /// effect.
        Waiting = (FILES_IN_EFFECT, False),
        /// The node is not connected as planned, and not overdue.
        CheckInPlanned = (READY, True),
        /// The node is not connected as planned: it is reachable at its next check-in.
        Away = (CLOUD_REACHABLE, False),
    }
}

impl Condition {
    /// Returns the condition that a reason decides, without a transition time.
    #[must_use]
    pub fn new(reason: NodeReason, message: impl Into<String>) -> Self {
        let ConditionFields { condition, status, reason } = reason.fields();
        Self {
            condition: condition.to_owned(),
            status,
            reason: reason.to_owned(),
            message: message.into(),
            last_transition_time: None,
        }
    }

    /// Returns a condition of a node whose Lease has expired, of any type.
    #[must_use]
    pub fn unknown(condition: impl Into<String>) -> Self {
        Self {
            condition: condition.into(),
            status: ConditionStatus::Unknown,
            reason: STATUS_UNKNOWN.to_owned(),
            message: "agent stopped renewing its Lease".to_owned(),
            last_transition_time: None,
        }
    }
}
