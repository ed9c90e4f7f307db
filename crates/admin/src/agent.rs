//! Answers of the agent.

mod files;
mod kubeedge;
mod traffic;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, nullable};
use edgesync_object::ObjectRef;

pub use files::{FilesCheck, FilesList, FilesObject, FilesRule, FilesState, PlannedSteps};
pub use kubeedge::{BridgeCounts, BridgeLease, BridgeNode, CloudCoreStatus, Round, VerifiedRound};
pub use traffic::{Direction, FrameTraffic, KindTraffic, Traffic, TrafficSince, TrafficSpan};

/// The status: what the agent holds, is connected to, waits for, and has run into. Times are RFC 3339.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// Name of the node.
    pub node: String,
    pub agent: Program,
    pub link: LinkStatus,
    /// The bridge to a CloudCore, with that link only.
    #[serde(deserialize_with = "nullable")]
    pub kubeedge: Option<CloudCoreStatus>,
    /// The certificate, once the node has joined.
    #[serde(deserialize_with = "nullable")]
    pub identity: Option<IdentityStatus>,
    pub cloud: CloudStatus,
    pub sync: SyncStatus,
    /// By lane.
    pub outbox: BTreeMap<String, LaneStatus>,
    pub conditions: Vec<Condition>,
    pub traffic: TrafficToday,
    pub objects: ObjectCounts,
    pub store: StoreStatus,
    pub limits_hit: LimitsHit,
    pub rejected: Vec<RejectedObject>,
    pub counters: AgentCounters,
    /// The TCP address of the local API.
    pub api: ListenStatus,
    /// Files, where rules for them exist.
    #[serde(deserialize_with = "nullable")]
    pub files: Option<FilesSummary>,
}

impl Answer for AgentStatus {
    const NAME: &'static str = "the agent's status";
}

/// The part of [`AgentStatus`] that says which agent answers: what agents of all versions have.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct AgentIdentity {
    pub node: String,
    pub agent: ProgramVersion,
}

impl Answer for AgentIdentity {
    const NAME: &'static str = AgentStatus::NAME;
}

/// The version of [`Program`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ProgramVersion {
    pub version: String,
}

/// The running program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub version: String,
    /// When it was started.
    pub started: String,
}

/// Whether the link is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    Connected,
    Disconnected,
}

/// The link to a broker or a CloudCore.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkStatus {
    pub state: LinkState,
    /// `mqtt` or `kubeedge`.
    #[serde(rename = "type")]
    pub link_type: String,
    /// Its URL.
    pub broker: String,
    /// Since when the state holds.
    #[serde(deserialize_with = "nullable")]
    pub since: Option<String>,
    /// Why the last connection ended or failed.
    #[serde(deserialize_with = "nullable")]
    pub cause: Option<String>,
    /// Longest wait until the next attempt, while disconnected.
    #[serde(deserialize_with = "nullable")]
    pub retry_in_seconds: Option<f64>,
    pub connections: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl LinkStatus {
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state == LinkState::Connected
    }
}

/// The certificate of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityStatus {
    pub subject: String,
    pub serial: String,
    pub not_before: String,
    pub not_after: String,
    /// `good`, `ends soon`, `expired`, or why nobody knows.
    pub validity: String,
    pub renew_at: String,
    /// Renewals since the start.
    pub renewals: u64,
    #[serde(deserialize_with = "nullable")]
    pub renewal_failure: Option<String>,
}

/// The cloud side, as far as it has answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudStatus {
    /// [`CloudStatus::CONNECTED`], or what is wrong.
    pub state: String,
    #[serde(deserialize_with = "nullable")]
    pub incarnation: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub session: Option<String>,
    /// The node was removed from the fleet.
    pub removed: bool,
}

impl CloudStatus {
    /// The state in which it answers.
    pub const CONNECTED: &'static str = "connected";
}

/// How far the node is from its desired objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncStatus {
    pub in_sync: bool,
    #[serde(deserialize_with = "nullable")]
    pub in_sync_since: Option<String>,
    /// Changes that the cloud has announced.
    pub pending: u64,
    /// Removals that wait for a confirmation in the cloud.
    pub held_back: u64,
    /// Changes applied here that the cloud has not recorded.
    pub unconfirmed: u64,
    #[serde(deserialize_with = "nullable")]
    pub last_confirm: Option<String>,
}

/// A lane of the outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneStatus {
    pub waiting: u64,
    pub bytes: u64,
    pub dropped: u64,
}

/// A condition of the Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word in CamelCase.
    pub reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
}

/// Bytes of the day; [`Traffic`] has more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficToday {
    pub bytes_today: u64,
    #[serde(deserialize_with = "nullable")]
    pub daily_budget: Option<u64>,
    pub budget_spent: bool,
}

/// Objects held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectCounts {
    pub total: u64,
    /// By `apiVersion/kind`.
    pub kinds: BTreeMap<String, u64>,
}

/// The database. Sizes and counters are `None` if it cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreStatus {
    pub epoch: String,
    pub digest: String,
    pub revision: u64,
    pub confirmed: u64,
    /// [`StoreStatus::WORKS`], `full`, or why it cannot be written.
    pub writing: String,
    pub resets: u64,
    #[serde(deserialize_with = "nullable")]
    pub database_bytes: Option<u64>,
    #[serde(deserialize_with = "nullable")]
    pub wal_bytes: Option<u64>,
    #[serde(deserialize_with = "nullable")]
    pub free_bytes: Option<u64>,
    #[serde(deserialize_with = "nullable")]
    pub commits: Option<u64>,
    /// The keys of sealed objects, where objects are sealed.
    #[serde(deserialize_with = "nullable")]
    pub seal: Option<SealStatus>,
}

impl StoreStatus {
    /// What [`StoreStatus::writing`] is while changes are taken.
    pub const WORKS: &'static str = "works";
}

/// The keys of sealed objects. A rotation answers with it too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SealStatus {
    pub keys: u64,
    /// Whether the credential of the service wraps them.
    pub wrapped: bool,
    /// When the newest one was made.
    pub newest: String,
    pub sealed_objects: u64,
}

impl Answer for SealStatus {
    const NAME: &'static str = "the agent's answer to a rotation";
}

/// How often limits were hit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitsHit {
    pub objects_too_large: u64,
    pub store_full: u64,
    pub link_queue_full: u64,
    pub reading_stalled: u64,
    #[serde(deserialize_with = "nullable")]
    pub events_dropped: Option<u64>,
}

/// An object that the node has rejected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RejectedObject {
    pub uid: String,
    /// `None` if its text did not say.
    #[serde(deserialize_with = "nullable")]
    pub object: Option<ObjectRef>,
    pub resource_version: String,
    /// One word in CamelCase.
    pub reason: String,
    pub message: String,
}

/// Counters since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentCounters {
    pub hellos: u64,
    pub leases: u64,
    pub uploads_sent: u64,
    pub uploads_resent: u64,
    pub uploads_refused: u64,
    pub applied: u64,
    pub rejected: u64,
    pub repeated_reports: u64,
    pub foreign_session: u64,
    /// By what is wrong with them.
    pub bad_frames: BTreeMap<String, u64>,
}

/// The TCP address of the local API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum ListenStatus {
    /// The configuration has none.
    Off,
    /// Clients can connect.
    Open { address: String },
    /// Another program has it; it is tried again.
    Waiting { address: String, why: String },
}

/// Files, in numbers of objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilesSummary {
    pub rules: u64,
    pub objects: u64,
    pub in_effect: u64,
    pub not_in_effect: u64,
    pub conflicts: u64,
    /// Why no rule can be applied.
    #[serde(deserialize_with = "nullable")]
    pub problem: Option<String>,
}

/// What a verification has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    pub store: VerifiedStore,
    pub cloud: VerifiedCloud,
}

impl Answer for Verification {
    const NAME: &'static str = "the agent's answer to a verification";
}

/// The check of the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum VerifiedStore {
    /// All rows were read.
    Checked(CheckedRows),
    /// The file cannot be used and is replaced by what can be read of it.
    Damaged { problem: String },
}

/// Rows of the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckedRows {
    pub rows: u64,
    pub removed: u64,
    pub local_removed: u64,
    pub outbox_removed: u64,
    /// The store has a new epoch because of what was found.
    pub renewed: bool,
    /// Always `null`.
    #[serde(deserialize_with = "nullable")]
    pub problem: Option<()>,
}

/// The comparison with the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifiedCloud {
    pub in_sync: bool,
    /// The cloud had other records.
    pub differed: bool,
    /// Changes applied meanwhile.
    pub applied: u64,
    #[serde(deserialize_with = "nullable")]
    pub problem: Option<String>,
}
