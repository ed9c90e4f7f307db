//! Node information derived from Nodes and Leases, in the shape of the replicas' API. Pure.
//!
//! Replicas know more than they write: the number of held objects and the time of the last report
//! are missing here.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;

use crate::source::mark::SERVED_BY;
use edgesync_admin::cloud::{NodeInfo, RecordedNode, RemovedNode, state};
use edgesync_cloud_store::NEXT_CHECK_IN;
use edgesync_fleet::lifecycle::Counts;
use edgesync_object::time::rfc3339;
use edgesync_object::{NodeName, Object};
use edgesync_protocol::node::{CLOUD_REACHABLE, FILES_IN_EFFECT, FilesSummary, IN_SYNC, READY};

/// Reason of the condition `edgesync.io/CloudReachable` of a node that is away as planned.
const AWAY: &str = "Away";

/// A condition of a Node's status.
struct Condition<'a> {
    status: &'a str,
    reason: &'a str,
    message: &'a str,
}

fn condition<'a>(node: &'a Object, name: &str) -> Option<Condition<'a>> {
    let conditions = node.fields().get("status")?.get("conditions")?.as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == name)?;
    let text = |field: &str| found[field].as_str().unwrap_or_default();
    Some(Condition { status: text("status"), reason: text("reason"), message: text("message") })
}

/// Returns the counts of pending, rejected and held-back changes, if known.
fn counts(node: &Object) -> Option<Counts> {
    match condition(node, IN_SYNC)? {
        Condition { status: "True", .. } => Some(Counts::default()),
        Condition { status: "False", message, .. } => Some(Counts::read(message)),
        _ => None,
    }
}

/// Returns the number of held-back removals of a node, if known.
pub(super) fn held_back(node: &Object) -> Option<u64> {
    counts(node).map(|counts| counts.held)
}

/// Returns the state of a node in the terms of the replicas' API.
fn state_of(node: &Object, is_ready: Option<bool>) -> &'static str {
    let in_sync = condition(node, IN_SYNC);
    match (is_ready, in_sync, counts(node).unwrap_or_default()) {
        (Some(true), None, _) => "connecting",
        (Some(true), Some(Condition { status: "True", .. }), _) => "in sync",
        (Some(true), _, Counts { held: 1.., .. }) => "held back",
        (Some(true), _, Counts { pending: 1.., .. }) => "syncing",
        (Some(true), _, Counts { waiting: 1.., .. }) => "waiting",
        (Some(true), ..) => "live",
        _ => "offline",
    }
}

/// Describes a node that has a Node.
pub(super) fn show(node: &Object, lease: Option<&Object>, removed: Option<Timestamp>) -> NodeInfo {
    let is_ready = condition(node, READY).map(|ready| ready.status == "True");
    let counts = counts(node);
    let files = condition(node, FILES_IN_EFFECT).and_then(|files| FilesSummary::read(files.message));
    let next = lease.and_then(|lease| lease.annotations().remove(NEXT_CHECK_IN));
    // A controller manager sets `Ready` to Unknown while the node is away, and no other condition.
    let is_away = condition(node, CLOUD_REACHABLE).is_some_and(|reachable| reachable.reason == AWAY);
    let state = match removed {
        // The deletion of the Node follows, or its command crashed before it.
        Some(_) => state::BEING_REMOVED,
        None if is_away => state::AWAY,
        None => match state_of(node, is_ready) {
            state::OFFLINE if next.is_some() => state::OVERDUE,
            state => state,
        },
    };
    let renewed = lease.and_then(|lease| lease.fields().get("spec")?.get("renewTime")?.as_str());
    // A replica has created the Lease, and the node has not renewed it yet.
    let is_never = |renewed: &str| renewed.parse().is_ok_and(|at: Timestamp| at == Timestamp::UNIX_EPOCH);
    let renewed = renewed.filter(|renewed| !is_never(renewed));
    NodeInfo::Recorded(Box::new(RecordedNode {
        name: node.name().to_owned(),
        labels: node.labels(),
        state: state.to_owned(),
        ready: is_ready,
        last_renewal: renewed.map(str::to_owned),
        agent_version: agent_version(node).map(str::to_owned),
        served_by: lease.and_then(|lease| lease.annotations().remove(SERVED_BY)),
        pending: counts.map(|counts| counts.pending),
        rejected: counts.map(|counts| counts.rejected),
        held_back: counts.map(|counts| counts.held),
        files_in_effect: files.map(|(in_effect, _)| in_effect),
        files_not_in_effect: files.map(|(_, not_in_effect)| not_in_effect),
        removed: removed.map(rfc3339),
        membership: None,
        next_check_in: next,
    }))
}

/// Describes a removed node without a Node.
pub(super) fn show_removed(name: &NodeName, since: Timestamp) -> NodeInfo {
    NodeInfo::Removed(RemovedNode {
        name: name.to_string(),
        state: state::REMOVED.to_owned(),
        removed: rfc3339(since),
        connected: None,
        objects_not_in_effect: None,
    })
}

/// Returns the agent's version without the decoration of `kubeletVersion`.
fn agent_version(node: &Object) -> Option<&str> {
    let version = node.fields().get("status")?.get("nodeInfo")?.get("kubeletVersion")?.as_str()?;
    let version = version.strip_prefix('v').unwrap_or(version);
    Some(version.strip_suffix("-edgesync").unwrap_or(version)).filter(|version| !version.is_empty())
}

/// Returns all nodes, including removed ones, sorted by name.
pub(super) fn all(nodes: &[Object], leases: &[Object], removed: &[(NodeName, Timestamp)]) -> Vec<NodeInfo> {
    let leases: HashMap<&str, &Object> = leases.iter().map(|lease| (lease.name(), lease)).collect();
    let since: HashMap<&str, Timestamp> = removed.iter().map(|(name, since)| (&**name, *since)).collect();
    let gone = removed.iter().map(|(name, since)| (name.as_str(), show_removed(name, *since)));
    let mut shown: BTreeMap<&str, NodeInfo> = gone.collect();
    shown.extend(nodes.iter().map(|node| {
        let name = node.name();
        let lease = leases.get(name).copied();
        (name, show(node, lease, since.get(name).copied()))
    }));
    shown.into_values().collect()
}
