//! Reasons of the conditions of a Node. docs/events.md explains each; a test compares its table
//! with this enum.

use super::{
    CERTIFICATE_VALID, CLOUD_REACHABLE, Condition, ConditionStatus, DISK_PRESSURE, FILES_IN_EFFECT, IN_SYNC,
    READY, STORE_HEALTHY, TRAFFIC_BUDGET_SPENT,
};

/// Reason of all conditions after the Lease has expired, as in Kubernetes' node lifecycle
/// controller.
const STATUS_UNKNOWN: &str = "NodeStatusUnknown";

/// Reason of a condition of a Node. It decides type and status of the condition.
///
/// [`Condition::unknown`] is the one exception: its reason is the same for all types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeReason {
    /// The agent renews its Lease.
    AgentReady,
    /// The node has a session with the cloud side.
    Connected,
    /// The node holds all desired objects at their latest version.
    InSync,
    /// Objects have yet to be sent or removed.
    ObjectsPending,
    /// The node rejects objects.
    ObjectsRejected,
    /// The mass-delete guard holds back removals.
    RemovalsHeldBack,
    /// The database accepts changes.
    StoreWorks,
    /// The database accepts changes, and was damaged or missing before.
    StoreSalvaged,
    /// The database or its disk is full.
    StoreFull,
    /// The database cannot be written.
    StoreFailing,
    /// The disk of the database is almost full.
    DiskAlmostFull,
    /// The database has almost reached its limit.
    DatabaseAlmostFull,
    /// Disk and database have free space.
    SufficientDisk,
    /// The free space of the disk cannot be determined.
    FreeSpaceUnknown,
    /// The configuration has no traffic budget.
    NoBudget,
    /// The day's traffic is within the budget.
    WithinBudget,
    /// The day's budget is spent.
    BudgetSpent,
    /// The certificate is valid.
    Valid,
    /// The certificate expires soon, and its renewal fails.
    ExpiresSoon,
    /// The certificate has expired.
    Expired,
    /// The clock of the node is not set, so the validity is unknown.
    ClockNotSet,
    /// All objects selected by file rules are in effect.
    InEffect,
    /// An object is not in effect.
    NotInEffect,
    /// An object is not in effect because others own a file.
    Conflict,
    /// A file rule failed, or a request to the helper about all rules.
    RuleFailed,
    /// The helper cannot be reached.
    HelperUnreachable,
    /// The helper has not reported the states of objects yet.
    NoReport,
}

impl NodeReason {
    /// All reasons, each at the index of its number.
    pub const ALL: [Self; 27] = [
        Self::AgentReady,
        Self::Connected,
        Self::InSync,
        Self::ObjectsPending,
        Self::ObjectsRejected,
        Self::RemovalsHeldBack,
        Self::StoreWorks,
        Self::StoreSalvaged,
        Self::StoreFull,
        Self::StoreFailing,
        Self::DiskAlmostFull,
        Self::DatabaseAlmostFull,
        Self::SufficientDisk,
        Self::FreeSpaceUnknown,
        Self::NoBudget,
        Self::WithinBudget,
        Self::BudgetSpent,
        Self::Valid,
        Self::ExpiresSoon,
        Self::Expired,
        Self::ClockNotSet,
        Self::InEffect,
        Self::NotInEffect,
        Self::Conflict,
        Self::RuleFailed,
        Self::HelperUnreachable,
        Self::NoReport,
    ];

    /// Returns the type of the condition.
    #[must_use]
    pub fn condition(self) -> &'static str {
        self.fields().0
    }

    /// Returns the status of the condition.
    #[must_use]
    pub fn status(self) -> ConditionStatus {
        self.fields().1
    }

    /// Returns the field `reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.fields().2
    }

    fn fields(self) -> (&'static str, ConditionStatus, &'static str) {
        use ConditionStatus::{False, True, Unknown};
        match self {
            Self::AgentReady => (READY, True, "AgentReady"),
            Self::Connected => (CLOUD_REACHABLE, True, "Connected"),
            Self::InSync => (IN_SYNC, True, "InSync"),
            Self::ObjectsPending => (IN_SYNC, False, "ObjectsPending"),
            Self::ObjectsRejected => (IN_SYNC, False, "ObjectsRejected"),
            Self::RemovalsHeldBack => (IN_SYNC, False, "RemovalsHeldBack"),
            Self::StoreWorks => (STORE_HEALTHY, True, "StoreWorks"),
            Self::StoreSalvaged => (STORE_HEALTHY, True, "StoreSalvaged"),
            Self::StoreFull => (STORE_HEALTHY, False, "StoreFull"),
            Self::StoreFailing => (STORE_HEALTHY, False, "StoreFailing"),
            Self::DiskAlmostFull => (DISK_PRESSURE, True, "DiskAlmostFull"),
            Self::DatabaseAlmostFull => (DISK_PRESSURE, True, "DatabaseAlmostFull"),
            Self::SufficientDisk => (DISK_PRESSURE, False, "SufficientDisk"),
            Self::FreeSpaceUnknown => (DISK_PRESSURE, Unknown, "FreeSpaceUnknown"),
            Self::NoBudget => (TRAFFIC_BUDGET_SPENT, False, "NoBudget"),
            Self::WithinBudget => (TRAFFIC_BUDGET_SPENT, False, "WithinBudget"),
            Self::BudgetSpent => (TRAFFIC_BUDGET_SPENT, True, "BudgetSpent"),
            Self::Valid => (CERTIFICATE_VALID, True, "Valid"),
            Self::ExpiresSoon => (CERTIFICATE_VALID, False, "ExpiresSoon"),
            Self::Expired => (CERTIFICATE_VALID, False, "Expired"),
            Self::ClockNotSet => (CERTIFICATE_VALID, Unknown, "ClockNotSet"),
            Self::InEffect => (FILES_IN_EFFECT, True, "InEffect"),
            Self::NotInEffect => (FILES_IN_EFFECT, False, "NotInEffect"),
            Self::Conflict => (FILES_IN_EFFECT, False, "Conflict"),
            Self::RuleFailed => (FILES_IN_EFFECT, False, "RuleFailed"),
            Self::HelperUnreachable => (FILES_IN_EFFECT, False, "HelperUnreachable"),
            Self::NoReport => (FILES_IN_EFFECT, Unknown, "NoReport"),
        }
    }
}

impl Condition {
    /// Returns the condition that a reason decides, without a transition time.
    #[must_use]
    pub fn new(reason: NodeReason, message: impl Into<String>) -> Self {
        let (condition, status, reason) = reason.fields();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_name_and_index() {
        for (index, reason) in NodeReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index, "{reason:?}");
            assert_eq!(reason.as_str(), format!("{reason:?}"));
            let condition = Condition::new(reason, "text");
            let shown = (condition.condition.as_str(), condition.status, condition.reason.as_str());
            assert_eq!(shown, (reason.condition(), reason.status(), reason.as_str()));
        }
    }
}
