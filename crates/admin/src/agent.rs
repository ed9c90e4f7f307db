//! Responses of the agent.

mod files;
mod kubeedge;
mod traffic;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, nullable};
use edgesync_object::ObjectRef;
use edgesync_object::urgency::Urgency;

pub use files::{FilesCheck, FilesHold, FilesList, FilesObject, FilesRule, FilesState, FilesWait, RulePlan};
pub use kubeedge::{BridgeCounts, BridgeLease, BridgeNode, CloudCoreStatus, Round, VerifiedRound};
pub use traffic::{Direction, FrameTraffic, KindTraffic, Traffic, TrafficSince, TrafficSpan};

/// Agent status: held objects, connection, pending work and failures. Times are RFC 3339.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    pub node: String,
    pub agent: Program,
    pub link: LinkStatus,
    /// The CloudCore bridge; `None` with other links.
    #[serde(deserialize_with = "nullable")]
    pub kubeedge: Option<CloudCoreStatus>,
    /// The certificate; `None` before enrollment.
    #[serde(deserialize_with = "nullable")]
    pub identity: Option<IdentityStatus>,
    pub cloud: CloudStatus,
    pub sync: SyncStatus,
    /// Outbox by lane: `status`, `events` and `bulk`.
    pub outbox: BTreeMap<String, LaneStatus>,
    pub conditions: Vec<Condition>,
    pub traffic: TrafficToday,
    /// Limits for metered links; absent if none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metered: Option<MeteredStatus>,
    pub objects: ObjectCounts,
    pub store: StoreStatus,
    pub limits_hit: LimitsHit,
    pub rejected: Vec<RejectedObject>,
    pub counters: AgentCounters,
    /// TCP listener of the local API.
    pub api: ListenStatus,
    /// File rules; `None` if there are none.
    #[serde(deserialize_with = "nullable")]
    pub files: Option<FilesSummary>,
}

impl Answer for AgentStatus {
    const NAME: &'static str = "agent status";
}

/// The part of [`AgentStatus`] that agents of all versions have.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct AgentIdentity {
    pub node: String,
    pub agent: ProgramVersion,
}

impl Answer for AgentIdentity {
    const NAME: &'static str = AgentStatus::NAME;
}

/// Version of the running [`Program`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ProgramVersion {
    pub version: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub version: String,
    /// Start time of the process.
    pub started: String,
}

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
    /// `mqtt`, or `kubeedge` for the link to a CloudCore.
    #[serde(rename = "type")]
    pub link_type: String,
    /// URL of the broker or CloudCore.
    pub broker: String,
    /// Time of the last change of state.
    #[serde(deserialize_with = "nullable")]
    pub since: Option<String>,
    /// Cause of the last disconnect or failed attempt.
    #[serde(deserialize_with = "nullable")]
    pub cause: Option<String>,
    /// Longest time until the next attempt, while disconnected.
    #[serde(deserialize_with = "nullable")]
    pub retry_in_seconds: Option<f64>,
    pub connections: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// When the node connects, as configured; absent if always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// Time of the next planned check-in, while the node is away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_check_in: Option<String>,
}

/// Answer to the request to connect now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncStarted {
    /// Whether the node was connected already.
    pub was_connected: bool,
    /// Time until which the budget of the metered link is spent: the node does not connect before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent_until: Option<String>,
}

impl Answer for SyncStarted {
    const NAME: &'static str = "start of a sync";
}

impl LinkStatus {
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state == LinkState::Connected
    }
}

/// The node's certificate and its renewal, with times in RFC 3339.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityStatus {
    pub subject: String,
    pub serial: String,
    pub not_before: String,
    pub not_after: String,
    /// `valid`, `expires soon`, `expired`, or the reason why it is unknown.
    pub validity: String,
    pub renew_at: String,
    /// Renewals since the process started.
    pub renewals: u64,
    #[serde(deserialize_with = "nullable")]
    pub renewal_failure: Option<String>,
}

/// The cloud side as last reported by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudStatus {
    /// [`CloudStatus::CONNECTED`], or the problem.
    pub state: String,
    #[serde(deserialize_with = "nullable")]
    pub incarnation: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub session: Option<String>,
    /// Whether the node was removed from the fleet.
    pub removed: bool,
}

impl CloudStatus {
    /// The state while the cloud side answers.
    pub const CONNECTED: &'static str = "connected";
}

/// Distance of the node from its desired objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncStatus {
    pub in_sync: bool,
    #[serde(deserialize_with = "nullable")]
    pub in_sync_since: Option<String>,
    /// Changes announced by the cloud and not applied yet.
    pub pending: u64,
    /// Removals held back until they are confirmed in the cloud.
    pub held_back: u64,
    /// Applied changes that the cloud has not recorded yet.
    pub unconfirmed: u64,
    #[serde(deserialize_with = "nullable")]
    pub last_confirm: Option<String>,
}

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

/// Bytes of the current day; [`Traffic`] has more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficToday {
    pub bytes_today: u64,
    #[serde(deserialize_with = "nullable")]
    pub daily_budget: Option<u64>,
    pub budget_spent: bool,
}

/// The metered link: its limits, what they have cost, and what waits. Absent without limits for
/// metered links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeteredStatus {
    /// Whether the current link is metered, or the last one.
    pub metered: bool,
    /// The reason: the configuration, an interface or NetworkManager.
    pub because: String,
    /// Lowest urgency of objects that may come.
    pub min_urgency: Urgency,
    /// Largest object that may come, in bytes.
    #[serde(deserialize_with = "nullable")]
    pub max_object: Option<u64>,
    /// The budgets; absent ones are not configured.
    #[serde(deserialize_with = "nullable")]
    pub day: Option<BudgetStatus>,
    #[serde(deserialize_with = "nullable")]
    pub month: Option<BudgetStatus>,
    /// Time until which a budget is spent and the node stays disconnected.
    #[serde(deserialize_with = "nullable")]
    pub spent_until: Option<String>,
    /// Objects that wait, as the cloud side said last.
    pub waiting: WaitingForLink,
}

/// A hard budget of bytes on the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetStatus {
    pub limit: u64,
    pub used: u64,
}

/// Numbers of objects that wait for a metered link, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingForLink {
    /// Objects below the urgency that may come.
    pub urgency: u64,
    /// Objects above the size that may come.
    pub size: u64,
    /// Objects and removals for which the budget does not suffice now.
    pub budget: u64,
}

impl WaitingForLink {
    /// Returns the number of all of them.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.urgency.saturating_add(self.size).saturating_add(self.budget)
    }
}

/// Numbers of held objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectCounts {
    pub total: u64,
    /// Numbers by `apiVersion/kind`, such as `v1/ConfigMap`.
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
    /// [`StoreStatus::WORKS`], `full`, or the reason why writes fail.
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
    /// Keys of sealed objects; `None` if no objects are sealed.
    #[serde(deserialize_with = "nullable")]
    pub seal: Option<SealStatus>,
}

impl StoreStatus {
    /// Value of [`StoreStatus::writing`] while writes succeed.
    pub const WORKS: &'static str = "works";
}

/// Keys of sealed objects; also the response to a rotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SealStatus {
    pub keys: u64,
    /// Whether the keys are wrapped by the service's credential.
    pub wrapped: bool,
    /// Creation time of the newest key.
    pub newest: String,
    pub sealed_objects: u64,
}

impl Answer for SealStatus {
    const NAME: &'static str = "result of the key rotation";
}

/// How often limits were reached.
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

/// An object rejected by the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RejectedObject {
    pub uid: String,
    /// `None` if the object could not be identified.
    #[serde(deserialize_with = "nullable")]
    pub object: Option<ObjectRef>,
    pub resource_version: String,
    /// One word in CamelCase.
    pub reason: String,
    pub message: String,
}

/// Counters since the process started.
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
    /// Invalid frames by cause.
    pub bad_frames: BTreeMap<String, u64>,
}

/// TCP listener of the local API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum ListenStatus {
    /// No address is configured: `api.listen` is `off`.
    Off,
    /// The API accepts connections at this address.
    Open { address: String },
    /// The address is in use; binding is retried.
    Waiting { address: String, why: String },
}

/// Number of file rules and their objects by state. An object that several rules write counts
/// once, in its worst state. Counts are those of the helper's last answer, and `None` before its
/// first one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilesSummary {
    pub rules: u64,
    #[serde(deserialize_with = "nullable")]
    pub objects: Option<u64>,
    #[serde(deserialize_with = "nullable")]
    pub in_effect: Option<u64>,
    /// Without those in conflict.
    #[serde(deserialize_with = "nullable")]
    pub not_in_effect: Option<u64>,
    #[serde(deserialize_with = "nullable")]
    pub conflicts: Option<u64>,
    /// The reason why no rule can be applied.
    #[serde(deserialize_with = "nullable")]
    pub problem: Option<String>,
    /// Whether that reason is a missing helper: no rule runs.
    pub helper_unreachable: bool,
    /// Objects that wait until changes may take effect.
    #[serde(deserialize_with = "nullable")]
    pub waiting: Option<u64>,
    /// What the rules with waiting objects wait for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<FilesWait>,
    /// Holds in force, as of the helper's last answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<FilesHold>,
}

impl FilesSummary {
    /// Returns the counts of objects; `None` before the helper's first answer.
    #[must_use]
    pub fn counts(&self) -> Option<FilesCounts> {
        Some(FilesCounts {
            objects: self.objects?,
            in_effect: self.in_effect?,
            not_in_effect: self.not_in_effect?,
            conflicts: self.conflicts?,
            waiting: self.waiting.unwrap_or(0),
        })
    }
}

/// Numbers of objects that file rules select, by state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesCounts {
    /// The number of objects in any state.
    pub objects: u64,
    pub in_effect: u64,
    /// Without those in conflict, and those that wait.
    pub not_in_effect: u64,
    pub conflicts: u64,
    pub waiting: u64,
}

/// Result of a verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    pub store: VerifiedStore,
    pub cloud: VerifiedCloud,
}

impl Answer for Verification {
    const NAME: &'static str = "result of the verification";
}

/// Result of checking the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum VerifiedStore {
    /// All rows were read.
    Checked(CheckedRows),
    /// The file is unusable and is rebuilt from its readable rows.
    Damaged { problem: String },
}

/// Numbers of database rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckedRows {
    pub rows: u64,
    pub removed: u64,
    pub local_removed: u64,
    pub outbox_removed: u64,
    /// Whether the store got a new epoch as a result.
    pub renewed: bool,
    /// Always `null`, so that both variants of [`VerifiedStore`] have the field.
    #[serde(deserialize_with = "nullable")]
    pub problem: Option<()>,
}

/// Result of comparing with the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifiedCloud {
    pub in_sync: bool,
    /// Whether the cloud's records differed.
    pub differed: bool,
    /// Changes applied during the comparison.
    pub applied: u64,
    #[serde(deserialize_with = "nullable")]
    pub problem: Option<String>,
}
