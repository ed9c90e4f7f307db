//! Placement rules, and the progress of rules and objects.

use serde::{Deserialize, Serialize};

use super::PlacedObject;
use crate::answer::{Answer, nullable};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleList {
    pub items: Vec<RuleItem>,
}

impl Answer for RuleList {
    const NAME: &'static str = "rule list";
}

/// A rule with the numbers of objects and nodes that it selects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleItem {
    #[serde(flatten)]
    pub rule: RuleName,
    pub objects: u64,
    pub nodes: u64,
}

/// Identity of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleName {
    /// `configuration` for rules of the configuration.
    pub kind: String,
    pub namespace: String,
    /// For rules of the configuration, their number from 1.
    pub name: String,
    /// `None` for rules of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Only in lists, and for rules of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<bool>,
}

/// Progress of an object or a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    #[serde(flatten)]
    pub of: RolloutTarget,
    /// Time of the count, in milliseconds since 1970.
    pub at: i64,
    /// Time at which the version was first seen, in milliseconds since 1970; `None` if it was not
    /// observed.
    #[serde(deserialize_with = "nullable")]
    pub since: Option<i64>,
    /// Nodes that should hold it.
    pub desired: usize,
    /// Nodes that hold it.
    pub holding: usize,
    pub in_effect: usize,
    pub not_in_effect: usize,
    pub states: Vec<String>,
    /// Nodes that do not hold it, by index of their state in `states`.
    pub behind: Vec<usize>,
    pub curve: Curve,
    /// The first nodes per reason.
    pub stragglers: Vec<Straggler>,
}

impl Answer for Rollout {
    const NAME: &'static str = "roll-out";
}

/// The subject of a roll-out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RolloutTarget {
    /// An object at a version.
    Object { object: PlacedObject, version: String },
    /// A rule with the number of objects that it selects.
    Placement { placement: RuleName, objects: u64 },
}

/// Node counts over time, one list per number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curve {
    /// Times of the points, in milliseconds since 1970.
    pub at: Vec<i64>,
    pub holding: Vec<usize>,
    pub desired: Vec<usize>,
    pub offline: Vec<usize>,
}

/// A node that does not hold the subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Straggler {
    pub node: String,
    /// A state of the summary.
    pub why: String,
    #[serde(deserialize_with = "nullable")]
    pub since: Option<String>,
    /// Version that the node holds.
    #[serde(deserialize_with = "nullable")]
    pub held: Option<String>,
    /// The first object that is missing.
    #[serde(deserialize_with = "nullable")]
    pub object: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub message: Option<String>,
}
