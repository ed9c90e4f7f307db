//! Rules, and how far they or an object have come.

use serde::{Deserialize, Serialize};

use super::PlacedObject;
use crate::answer::{Answer, nullable};

/// All rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleList {
    pub items: Vec<RuleItem>,
}

impl Answer for RuleList {
    const NAME: &'static str = "the list of rules";
}

/// A rule and how much it selects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleItem {
    #[serde(flatten)]
    pub rule: RuleName,
    pub objects: u64,
    pub nodes: u64,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleName {
    /// `configuration` for those of the configuration.
    pub kind: String,
    pub namespace: String,
    /// Its number from 1 for those of the configuration.
    pub name: String,
    /// Those of the configuration have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// In lists, and for those of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<bool>,
}

/// How far an object or a rule has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    #[serde(flatten)]
    pub of: RolloutTarget,
    /// When it was counted, in milliseconds since 1970.
    pub at: i64,
    /// Since when it is this version, in milliseconds since 1970, if that was seen.
    #[serde(deserialize_with = "nullable")]
    pub since: Option<i64>,
    /// Nodes that are to hold it.
    pub wanted: usize,
    /// Nodes that hold it.
    pub holding: usize,
    pub in_effect: usize,
    pub not_in_effect: usize,
    pub states: Vec<String>,
    /// Nodes that do not hold it, by the place of their state in `states`.
    pub behind: Vec<usize>,
    pub curve: Curve,
    /// The first ones for each reason.
    pub stragglers: Vec<Straggler>,
}

impl Answer for Rollout {
    const NAME: &'static str = "the roll-out";
}

/// What is rolled out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RolloutTarget {
    /// An object in a version.
    Object { object: PlacedObject, version: String },
    /// What a rule selects: so many objects.
    Placement { placement: RuleName, objects: u64 },
}

/// Numbers of nodes over time: a column for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curve {
    /// Milliseconds since 1970.
    pub at: Vec<i64>,
    pub holding: Vec<usize>,
    pub wanted: Vec<usize>,
    pub offline: Vec<usize>,
}

/// A node that does not hold it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Straggler {
    pub node: String,
    /// A state of the summary.
    pub why: String,
    #[serde(deserialize_with = "nullable")]
    pub since: Option<String>,
    /// The version held.
    #[serde(deserialize_with = "nullable")]
    pub held: Option<String>,
    /// The first object that is missing.
    #[serde(deserialize_with = "nullable")]
    pub object: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub message: Option<String>,
}
