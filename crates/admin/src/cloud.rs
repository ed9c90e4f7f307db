//! Answers of the cloud side.

mod enrollment;
mod nodes;
mod rollouts;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, nullable};
use edgesync_object::Labels;

pub use enrollment::{
    AdmitRequest, Admitted, BrokerConfigRequest, BrokerFiles, Confirmed, NewOperator, NewToken, Operator,
    OperatorCertificate, OperatorList, PageInvitation, Removed, RevokedCertificates, RevokedOperators,
    RevokedToken, Token, TokenList, TokenRequest,
};
pub use nodes::{
    JoinedNode, Membership, NodeCounters, NodeInfo, NodeList, ObjectNotInEffect, RecordedNode, RemovedNode,
    ServedNode, WithheldObject, state,
};
pub use rollouts::{Curve, Rollout, RolloutTarget, RuleItem, RuleList, RuleName, Straggler};

/// The last hour of a node: a sample each minute, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeHistory {
    /// When the last sample was taken, in seconds since 1970.
    pub last: i64,
    /// From one sample to the next.
    pub seconds: u64,
    pub latency_milliseconds: Vec<u64>,
    pub bytes_sent: Vec<u64>,
    pub bytes_received: Vec<u64>,
}

impl Answer for NodeHistory {
    const NAME: &'static str = "the history of a node";
}

/// The last hour of the fleet: a column for each number, the oldest sample first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetHistory {
    pub states: Vec<String>,
    /// Seconds since 1970.
    pub at: Vec<i64>,
    /// Nodes by the place of their state in `states`, then by sample.
    pub counts: Vec<Vec<u64>>,
    pub held: Vec<u64>,
    pub wanted: Vec<u64>,
    pub bytes_sent: Vec<u64>,
    pub bytes_received: Vec<u64>,
}

impl Answer for FleetHistory {
    const NAME: &'static str = "the history of the fleet";
}

/// A line of the summary, and the summary itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "UPPERCASE")]
pub enum SummaryLine {
    /// All nodes.
    Snapshot(SummaryRows),
    /// Nodes that are new or have changed, and those that are gone.
    Changed(SummaryRows),
    /// Nothing has changed.
    Alive {
        /// Milliseconds since 1970.
        at: i64,
    },
}

impl Answer for SummaryLine {
    const NAME: &'static str = "the summary of the fleet";
}

/// Rows of the summary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryRows {
    /// The start of the program that the revision belongs to.
    pub start: String,
    pub revision: u64,
    /// Milliseconds since 1970.
    pub at: i64,
    pub states: Vec<String>,
    /// Nodes by the place of their state in `states`.
    pub counts: Vec<u64>,
    /// Objects held by all nodes.
    pub held: u64,
    /// Objects desired on all nodes.
    pub wanted: u64,
    pub gone: Vec<String>,
    pub nodes: Vec<SummaryRow>,
}

/// A node in the summary: name, place of its state, since when in seconds since 1970, objects held, desired, pending, and
/// those that need a look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryRow(pub String, pub usize, pub i64, pub u64, pub u64, pub u64, pub u64);

/// Objects by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectList {
    pub items: Vec<PlacedObject>,
    /// There are more.
    pub more: bool,
}

impl Answer for ObjectList {
    const NAME: &'static str = "the list of objects";
}

/// An object in a few words.
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
    /// Length of its JSON; zero if it is not known.
    pub bytes: usize,
}

/// Objects of a node, those first that it does not hold as desired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeObjects {
    pub items: Vec<NodeObject>,
    /// There are more.
    pub more: bool,
    /// The node is connected, so that its versions are known.
    pub known: bool,
}

impl Answer for NodeObjects {
    const NAME: &'static str = "the objects of a node";
}

/// An object on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeObject {
    #[serde(flatten)]
    pub object: PlacedObject,
    /// The version held, empty if none is; `None` if nobody knows.
    #[serde(deserialize_with = "nullable")]
    pub held: Option<String>,
    /// Why the node rejects it.
    #[serde(flatten)]
    pub rejection: Option<Rejection>,
}

/// Why a node rejects an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// One word in CamelCase.
    pub reason: String,
    pub message: String,
}

/// The keys of all labels of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelKeys {
    pub keys: Vec<LabelKey>,
}

impl Answer for LabelKeys {
    const NAME: &'static str = "the labels of nodes";
}

/// A key of labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelKey {
    pub key: String,
    /// How many nodes have it.
    pub nodes: usize,
    /// How many values it has.
    pub values: usize,
}

/// The values of one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelValues {
    pub key: String,
    /// Names of nodes by value.
    pub values: BTreeMap<String, Vec<String>>,
}

impl Answer for LabelValues {
    const NAME: &'static str = "the values of a label";
}

/// Why an object is on a node, or is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementAnswer {
    pub node: String,
    /// `None` if the node has none or was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Labels>,
    pub rules: Vec<RuleVerdict>,
    /// The object, if one was asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectVerdict>,
}

impl Answer for PlacementAnswer {
    const NAME: &'static str = "the answer about the placement";
}

/// What a rule says of a node and an object.
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

/// What has come of an object on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectVerdict {
    /// It is desired there.
    pub wanted: bool,
    /// What happens with it, in words.
    pub state: String,
    /// More about it, unless the node was removed.
    #[serde(flatten)]
    pub facts: Option<ObjectFacts>,
}

/// An object and its version on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectFacts {
    pub uid: String,
    /// The newest version.
    pub version: String,
    pub labels: Labels,
    /// The rules that place it there.
    pub because: Vec<String>,
    /// The version held there.
    #[serde(deserialize_with = "nullable")]
    pub held: Option<String>,
}
