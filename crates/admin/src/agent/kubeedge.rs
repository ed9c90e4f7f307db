//! The CloudCore bridge in the agent's status.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::answer::nullable;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CloudCoreStatus {
    pub acknowledged: u64,
    pub unacknowledged: u64,
    #[serde(deserialize_with = "nullable")]
    pub acknowledged_at: Option<String>,
    pub rejected: u64,
    pub withheld: u64,
    pub lease: BridgeLease,
    pub node: BridgeNode,
    pub dynamic_controller: String,
    /// The comparison in progress.
    #[serde(deserialize_with = "nullable")]
    pub round: Option<Round>,
    /// The last completed comparison.
    #[serde(deserialize_with = "nullable")]
    pub verified: Option<VerifiedRound>,
    /// Some of the desired objects that are not held.
    pub missing: Vec<String>,
    pub missing_count: u64,
    pub counters: BridgeCounts,
    /// Kinds refused by the dynamic controller, with its messages.
    pub denied: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BridgeLease {
    #[serde(deserialize_with = "nullable")]
    pub resource_version: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub acknowledged_at: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BridgeNode {
    #[serde(deserialize_with = "nullable")]
    pub uid: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub resource_version: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub acknowledged_at: Option<String>,
}

/// A comparison in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    pub reason: String,
    pub compared: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedRound {
    pub at: String,
    pub reason: String,
    pub compared: u64,
    pub differed: u64,
}

/// Counters of the bridge since the process started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeCounts {
    pub received: u64,
    pub repeated: u64,
    pub bad: u64,
    pub ignored: u64,
    pub unwanted: u64,
    pub unclear: u64,
    pub errors: u64,
    pub asked: u64,
    pub answered: u64,
    pub unanswered: u64,
    pub differed: u64,
    pub rounds: u64,
}
