//! Reasons of the conditions of rules and of CustomResourceDefinitions. docs/events.md explains
//! each; a test compares its tables with these enums. [`NodeReason`] has those of Nodes.
//!
//! [`NodeReason`]: edgesync_protocol::node::NodeReason

use edgesync_protocol::condition_reasons;

condition_reasons! {
    /// Reason of a condition of a Placement or ClusterPlacement. It decides type and status of
    /// the condition.
    pub enum PlacementReason {
        /// The rule is in force, and all of its kinds are read.
        Accepted = ("Accepted", True),
        /// A field of the rule is invalid.
        Invalid = ("Accepted", False),
        /// A kind of the rule is not served.
        KindUnknown = ("Accepted", False),
        /// The rule names a namespace of edgesync itself, whose objects are never placed.
        NamespaceReserved = ("Accepted", False),
        /// The cloud side has no right to read a kind of the rule.
        Forbidden = ("Accepted", False),
        /// All rules together need more watches than the limit.
        TooManyWatches = ("Accepted", False),
        /// The cluster does not let a kind of the rule be read, for another reason.
        Unreadable = ("Accepted", False),
        /// All nodes of the rule are connected and in sync.
        InSync = ("InSync", True),
        /// A node of the rule is not connected or not in sync.
        NodesBehind = ("InSync", False),
        /// The rule may select objects that are not read.
        ObjectsUnread = ("InSync", Unknown),
        /// The objects are in effect on all nodes that have reported about them.
        InEffect = ("InEffect", True),
        /// The objects are not in effect on one of these nodes.
        NotInEffect = ("InEffect", False),
        /// No node has reported about the objects.
        NoReport = ("InEffect", Unknown),
    }
}

condition_reasons! {
    /// Reason of a condition of a CustomResourceDefinition. It decides type and status of the
    /// condition. All are those of Kubernetes, except [`Self::InvalidDefinition`] and
    /// [`Self::NotSupported`].
    pub enum DefinitionReason {
        /// No name belongs to another kind.
        NoConflicts = ("NamesAccepted", True),
        /// The plural name belongs to another kind.
        PluralConflict = ("NamesAccepted", False),
        /// The singular name belongs to another kind.
        SingularConflict = ("NamesAccepted", False),
        /// A short name belongs to another kind.
        ShortNamesConflict = ("NamesAccepted", False),
        /// The kind belongs to another definition.
        KindConflict = ("NamesAccepted", False),
        /// The kind of lists belongs to another definition.
        ListKindConflict = ("NamesAccepted", False),
        /// The kind is served.
        InitialNamesAccepted = ("Established", True),
        /// The definition is invalid.
        InvalidDefinition = ("Established", False),
        /// A name belongs to another kind, so the kind is not served.
        NotAccepted = ("Established", False),
        /// Rules of the schema are not evaluated.
        NotSupported = (RULES_NOT_EVALUATED, True),
        /// The definition is being deleted, and its objects before it.
        InstanceDeletionInProgress = ("Terminating", True),
    }
}

/// Type of the condition that lists rules that are not evaluated.
pub(crate) const RULES_NOT_EVALUATED: &str = "edgesync.io/RulesNotEvaluated";
