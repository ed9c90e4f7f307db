//! Responses of the cloud side.

mod enrollment;
mod nodes;
mod rollouts;
mod summary;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, nullable};
use edgesync_object::Labels;

pub use enrollment::{
    AdmitRequest, Admitted, BrokerConfigRequest, BrokerFiles, Confirmed, NewOperator, NewToken, Operator,
    OperatorCertificate, OperatorList, PageInvitation, Removed, RevokedCertificates, RevokedOperators,
    RevokedPageKeys, RevokedToken, Token, TokenList, TokenRequest,
};
pub use nodes::{
    HeldBackObject, JoinedNode, Membership, NodeCounters, NodeInfo, NodeList, NodeObjectCounts, NodeTraffic,
    ObjectNotInEffect, RecordedNode, RemovedNode, ServedNode, state,
};
pub use rollouts::{
    Curve, EndedRevision, FailedNode, RejectedVersion, Rollout, RolloutAction, RolloutCommand,
    RolloutCondition, RolloutRevision, RolloutStatus, RolloutTarget, RolloutWave, RuleItem, RuleList,
    RuleName, RuleRollout, Straggler,
};
pub use summary::{SummaryLine, SummaryRow, SummaryRows, SummaryState};

/// The last hour of a node, one sample per minute, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeHistory {
    /// Time of the last sample, in seconds since 1970.
    pub last: i64,
    /// Interval of the samples, in seconds.
    pub seconds: u64,
    pub latency_milliseconds: Vec<u64>,
    pub bytes_sent: Vec<u64>,
    pub bytes_received: Vec<u64>,
}

impl Answer for NodeHistory {
    const NAME: &'static str = "node history";
}

/// The last hour of the fleet: one list per number, oldest sample first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetHistory {
    pub states: Vec<String>,
    /// Time of each sample, in seconds since 1970.
    pub at: Vec<i64>,
    /// Node counts, by index of the state in `states`, then by sample.
    pub counts: Vec<Vec<u64>>,
    pub held: Vec<u64>,
    pub desired: Vec<u64>,
    pub bytes_sent: Vec<u64>,
    pub bytes_received: Vec<u64>,
}

impl Answer for FleetHistory {
    const NAME: &'static str = "fleet history";
}

/// Result of a search for objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectList {
    pub items: Vec<PlacedObject>,
    /// Whether more objects match.
    pub more: bool,
}

impl Answer for ObjectList {
    const NAME: &'static str = "object list";
}

/// Identity and size of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacedObject {
    pub uid: String,
    pub resource_version: String,
    pub api_version: String,
    pub kind: String,
    pub plural: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
    /// Length of the JSON in bytes; 0 if unknown.
    pub bytes: usize,
}

/// Objects of a node, those out of sync first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeObjects {
    pub items: Vec<NodeObject>,
    /// Whether the node has more objects.
    pub more: bool,
    /// Whether the node is connected, so that its versions are known.
    pub known: bool,
}

impl Answer for NodeObjects {
    const NAME: &'static str = "objects of the node";
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeObject {
    #[serde(flatten)]
    pub object: PlacedObject,
    /// Held version; empty if none is held, `None` if unknown.
    #[serde(deserialize_with = "nullable")]
    pub held: Option<String>,
    /// Reason of a rejection by the node.
    #[serde(flatten)]
    pub rejection: Option<Rejection>,
}

/// Reason of a rejection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// One word in CamelCase.
    pub reason: String,
    pub message: String,
}

/// Answer about node labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum LabelAnswer {
    /// Without a key in the query.
    Keys(LabelKeys),
    /// With a key in the query: its values.
    Values(LabelValues),
}

/// Keys of all node labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelKeys {
    pub keys: Vec<LabelKey>,
}

impl Answer for LabelKeys {
    const NAME: &'static str = "label keys";
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelKey {
    pub key: String,
    /// Number of nodes with the key.
    pub nodes: usize,
    /// Number of distinct values.
    pub values: usize,
}

/// Values of one label key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelValues {
    pub key: String,
    /// Node names by value.
    pub values: BTreeMap<String, Vec<String>>,
}

impl Answer for LabelValues {
    const NAME: &'static str = "label values";
}

/// Explains why an object is or is not placed on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementExplanation {
    pub node: String,
    /// `None` if the node has no labels or was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Labels>,
    pub rules: Vec<RuleVerdict>,
    /// The object that was asked about, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectVerdict>,
}

impl Answer for PlacementExplanation {
    const NAME: &'static str = "placement explanation";
}

/// Evaluation of a rule for a node and an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleVerdict {
    pub rule: String,
    pub selects_node: bool,
    /// The clause that excludes the node.
    #[serde(deserialize_with = "nullable")]
    pub node_mismatch: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub selects_object: Option<bool>,
    /// The clause that excludes the object.
    #[serde(deserialize_with = "nullable")]
    pub object_mismatch: Option<String>,
}

/// State of an object on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectVerdict {
    /// Whether the object is desired on the node.
    pub desired: bool,
    /// Description of the state for people.
    pub state: String,
    /// Further facts; `None` if the node was removed.
    #[serde(flatten)]
    pub facts: Option<ObjectFacts>,
}

/// An object and its version on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectFacts {
    pub uid: String,
    /// The newest version, whether or not any node holds it.
    pub version: String,
    pub labels: Labels,
    /// Rules that place the object on the node.
    pub because: Vec<String>,
    /// Version that the node holds.
    #[serde(deserialize_with = "nullable")]
    pub held: Option<String>,
}
