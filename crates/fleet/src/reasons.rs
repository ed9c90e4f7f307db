//! Reasons of the conditions of rules and of CustomResourceDefinitions. docs/events.md explains
//! each; a test compares its tables with these enums. [`NodeReason`] has those of Nodes.
//!
//! [`NodeReason`]: edgesync_protocol::node::NodeReason

use edgesync_protocol::node::ConditionStatus::{self, False, True, Unknown};

/// Reason of a condition of a Placement or ClusterPlacement. It decides type and status of the
/// condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementReason {
    /// The rule is in force, and all of its kinds are read.
    Accepted,
    /// A field of the rule is invalid.
    Invalid,
    /// A kind of the rule is not served.
    KindUnknown,
    /// The rule names a namespace of edgesync itself, whose objects are never placed.
    NamespaceReserved,
    /// The cloud side has no right to read a kind of the rule.
    Forbidden,
    /// All rules together need more watches than the limit.
    TooManyWatches,
    /// The cluster does not let a kind of the rule be read, for another reason.
    Unreadable,
    /// All nodes of the rule are connected and in sync.
    InSync,
    /// A node of the rule is not connected or not in sync.
    NodesBehind,
    /// The rule may select objects that are not read.
    ObjectsUnread,
    /// The objects are in effect on all nodes that have reported about them.
    InEffect,
    /// The objects are not in effect on one of these nodes.
    NotInEffect,
    /// No node has reported about the objects.
    NoReport,
}

impl PlacementReason {
    /// All reasons, each at the index of its number.
    pub const ALL: [Self; 13] = [
        Self::Accepted,
        Self::Invalid,
        Self::KindUnknown,
        Self::NamespaceReserved,
        Self::Forbidden,
        Self::TooManyWatches,
        Self::Unreadable,
        Self::InSync,
        Self::NodesBehind,
        Self::ObjectsUnread,
        Self::InEffect,
        Self::NotInEffect,
        Self::NoReport,
    ];

    /// Returns the type, status and reason of the condition.
    #[must_use]
    pub fn fields(self) -> (&'static str, ConditionStatus, &'static str) {
        match self {
            Self::Accepted => ("Accepted", True, "Accepted"),
            Self::Invalid => ("Accepted", False, "Invalid"),
            Self::KindUnknown => ("Accepted", False, "KindUnknown"),
            Self::NamespaceReserved => ("Accepted", False, "NamespaceReserved"),
            Self::Forbidden => ("Accepted", False, "Forbidden"),
            Self::TooManyWatches => ("Accepted", False, "TooManyWatches"),
            Self::Unreadable => ("Accepted", False, "Unreadable"),
            Self::InSync => ("InSync", True, "InSync"),
            Self::NodesBehind => ("InSync", False, "NodesBehind"),
            Self::ObjectsUnread => ("InSync", Unknown, "ObjectsUnread"),
            Self::InEffect => ("InEffect", True, "InEffect"),
            Self::NotInEffect => ("InEffect", False, "NotInEffect"),
            Self::NoReport => ("InEffect", Unknown, "NoReport"),
        }
    }
}

/// Reason of a condition of a CustomResourceDefinition. It decides type and status of the
/// condition. All are those of Kubernetes, except [`Self::InvalidDefinition`] and
/// [`Self::NotSupported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefinitionReason {
    /// No name belongs to another kind.
    NoConflicts,
    /// The plural name belongs to another kind.
    PluralConflict,
    /// The singular name belongs to another kind.
    SingularConflict,
    /// A short name belongs to another kind.
    ShortNamesConflict,
    /// The kind belongs to another definition.
    KindConflict,
    /// The kind of lists belongs to another definition.
    ListKindConflict,
    /// The kind is served.
    InitialNamesAccepted,
    /// The definition is invalid.
    InvalidDefinition,
    /// A name belongs to another kind, so the kind is not served.
    NotAccepted,
    /// Rules of the schema are not evaluated.
    NotSupported,
    /// The definition is being deleted, and its objects before it.
    InstanceDeletionInProgress,
}

/// Type of the condition that lists rules that are not evaluated.
pub(crate) const RULES_NOT_EVALUATED: &str = "edgesync.io/RulesNotEvaluated";

impl DefinitionReason {
    /// All reasons, each at the index of its number.
    pub const ALL: [Self; 11] = [
        Self::NoConflicts,
        Self::PluralConflict,
        Self::SingularConflict,
        Self::ShortNamesConflict,
        Self::KindConflict,
        Self::ListKindConflict,
        Self::InitialNamesAccepted,
        Self::InvalidDefinition,
        Self::NotAccepted,
        Self::NotSupported,
        Self::InstanceDeletionInProgress,
    ];

    /// Returns the type, status and reason of the condition.
    #[must_use]
    pub fn fields(self) -> (&'static str, ConditionStatus, &'static str) {
        match self {
            Self::NoConflicts => ("NamesAccepted", True, "NoConflicts"),
            Self::PluralConflict => ("NamesAccepted", False, "PluralConflict"),
            Self::SingularConflict => ("NamesAccepted", False, "SingularConflict"),
            Self::ShortNamesConflict => ("NamesAccepted", False, "ShortNamesConflict"),
            Self::KindConflict => ("NamesAccepted", False, "KindConflict"),
            Self::ListKindConflict => ("NamesAccepted", False, "ListKindConflict"),
            Self::InitialNamesAccepted => ("Established", True, "InitialNamesAccepted"),
            Self::InvalidDefinition => ("Established", False, "InvalidDefinition"),
            Self::NotAccepted => ("Established", False, "NotAccepted"),
            Self::NotSupported => (RULES_NOT_EVALUATED, True, "NotSupported"),
            Self::InstanceDeletionInProgress => ("Terminating", True, "InstanceDeletionInProgress"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_name_and_index() {
        for (index, reason) in PlacementReason::ALL.into_iter().enumerate() {
            assert_eq!((reason as usize, reason.fields().2), (index, &*format!("{reason:?}")));
        }
        for (index, reason) in DefinitionReason::ALL.into_iter().enumerate() {
            assert_eq!((reason as usize, reason.fields().2), (index, &*format!("{reason:?}")));
        }
    }
}
