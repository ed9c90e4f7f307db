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
    /// Only for rules with a roll-out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RuleRollout>,
}

/// The roll-out of a rule in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleRollout {
    /// The rule in commands: `NAME`, or `NAMESPACE/NAME` for a Placement.
    pub rule: String,
    /// Number of the newest revision; `None` before the first one.
    #[serde(deserialize_with = "nullable")]
    pub revision: Option<u64>,
    /// Number of waves that it is open for; all of them if it is the stable one.
    pub open: usize,
    pub waves: usize,
    /// Reason of the pause; `None` if it is not paused.
    #[serde(deserialize_with = "nullable")]
    pub paused: Option<String>,
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

/// State of the roll-out of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// `NAME`, or `NAMESPACE/NAME` for a Placement.
    pub rule: String,
    /// Whether the field `rollout` of the rule is valid; the last valid one stays in force.
    pub valid: bool,
    /// Reason of the pause; `None` if it is not paused.
    #[serde(deserialize_with = "nullable")]
    pub paused: Option<String>,
    pub conditions: Vec<RolloutCondition>,
    /// Revisions from the stable one to the newest one.
    pub revisions: Vec<RolloutRevision>,
    /// Waves with the counts of the newest revision.
    pub waves: Vec<RolloutWave>,
    /// Versions that were undone.
    pub rejected: Vec<RejectedVersion>,
    /// Revisions that have ended, the newest last.
    pub history: Vec<EndedRevision>,
}

impl Answer for RolloutStatus {
    const NAME: &'static str = "status of the roll-out";
}

/// A condition of a roll-out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutCondition {
    pub r#type: String,
    pub status: bool,
    pub reason: String,
    pub message: String,
}

/// A revision that nodes have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutRevision {
    pub number: u64,
    /// Number of waves that it is open for; the first revision of the list is for all nodes.
    pub open: usize,
    /// Number of its objects; `None` if they are lost.
    #[serde(deserialize_with = "nullable")]
    pub objects: Option<usize>,
    pub started_at: String,
    pub opened_at: String,
    /// Since when its last open wave has been good.
    #[serde(deserialize_with = "nullable")]
    pub good_since: Option<String>,
}

/// A wave with the states of its nodes; zeros while it is not open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutWave {
    pub selector: String,
    /// Share of all nodes, in percent.
    #[serde(deserialize_with = "nullable")]
    pub percent: Option<u8>,
    pub open: bool,
    pub nodes: usize,
    pub good: usize,
    pub held_only: usize,
    pub pending: usize,
    pub waiting: usize,
    pub failed: usize,
    pub away: usize,
    /// The first failures.
    pub failures: Vec<FailedNode>,
}

/// A node that has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedNode {
    pub node: String,
    pub message: String,
}

/// A version that later revisions do not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedVersion {
    pub uid: String,
    /// `None` if the removal of the object was undone.
    #[serde(deserialize_with = "nullable")]
    pub version: Option<String>,
}

/// A revision that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndedRevision {
    pub number: u64,
    pub open: usize,
    pub started_at: String,
    pub ended_at: String,
    pub outcome: String,
    /// The operator who has ended it; empty if it was none.
    pub by: String,
}

/// Request to move the roll-out of a rule. It names what the operator has seen: a repeated one
/// changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RolloutCommand {
    pub action: RolloutAction,
    /// Number of the newest revision; for `promote` and `undo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Number of waves that it is open for; for `promote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<usize>,
    /// Reason of the pause; for `resume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether nodes apply the revision below outside of their windows; for `undo`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub override_windows: bool,
}

/// Action on a roll-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RolloutAction {
    Pause,
    Resume,
    Promote,
    Undo,
}
