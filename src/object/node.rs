//! The Node object: what a node says of itself, and conditions by the rules of the API conventions ("Typical status
//! properties"): one of each type, `lastTransitionTime` moves only when the status does. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a node says of itself. It travels as one item of the outbox, whenever it differs from what was said last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Labels of the configuration and those that describe the machine.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The fields of `status` that the node knows, but for conditions: `nodeInfo`, `capacity`, `allocatable`,
    /// `addresses`.
    #[serde(default)]
    pub status: Map<String, Value>,
    /// The conditions that the node alone can know.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody knows.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A condition of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its type, such as `Ready` or `edgesync.io/InSync`.
    #[serde(rename = "type")]
    pub condition: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why it came to be so: one word in CamelCase.
    pub reason: String,
    /// The same for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Since when the status is what it is; left out by those who leave it to [`set_condition`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
}

/// The node takes part in the fleet: its Lease is renewed.
pub const READY: &str = "Ready";
/// The node holds what it is to hold.
pub const IN_SYNC: &str = "edgesync.io/InSync";
/// The node's database takes changes.
pub const STORE_HEALTHY: &str = "edgesync.io/StoreHealthy";
/// The cloud side and the node talk to each other.
pub const CLOUD_REACHABLE: &str = "edgesync.io/CloudReachable";
/// The disk of the node's database is almost full.
pub const DISK_PRESSURE: &str = "edgesync.io/DiskPressure";
/// The node's budget of bytes for the day is spent.
pub const TRAFFIC_BUDGET_SPENT: &str = "edgesync.io/TrafficBudgetSpent";
