//! The bridge to a CloudCore in the status.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::answer::nullable;

/// The bridge to a CloudCore.
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
    /// The round under way.
    #[serde(deserialize_with = "nullable")]
    pub round: Option<Round>,
    /// The last round that is over.
    #[serde(deserialize_with = "nullable")]
    pub verified: Option<VerifiedRound>,
    /// Some of the objects that are desired and not held.
    pub missing: Vec<String>,
    pub missing_count: u64,
    pub counters: BridgeCounts,
    /// What the dynamic controller refuses, with its words.
    pub denied: BTreeMap<String, String>,
}

/// The Lease in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BridgeLease {
    #[serde(deserialize_with = "nullable")]
    pub resource_version: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub acknowledged_at: Option<String>,
}

/// The Node in the cluster.
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

/// A round of comparisons under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    pub reason: String,
    pub compared: u64,
}

/// A round of comparisons that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedRound {
    pub at: String,
    pub reason: String,
    pub compared: u64,
    pub differed: u64,
}

/// Counters of the bridge since the start.
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
