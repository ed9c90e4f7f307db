//! Leader's check for nodes with an expired Lease, whichever replica served them last.
//!
//! The node lifecycle controller of a cluster sets `Ready` to Unknown when a Lease expires. In a
//! cluster without one, the leader does. In any case the leader sets the conditions of edgesync to
//! Unknown. Expiry is measured as in [`super::leader`]: by the local time for which a Lease has not
//! changed.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::leases::{Leases, StoredLease};
use super::nodes::Nodes;
use super::requests::Requests;
use crate::cluster::Failure;
use edgesync_fleet::source::Result;
use edgesync_object::time::rfc3339;
use edgesync_object::{NodeName, Object, Resource, kinds};
use edgesync_protocol::node::{CLOUD_REACHABLE, Condition, IN_SYNC, READY, set_node_condition};

/// Interval of the check.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);
/// The Lease of the controller manager.
const MANAGER: (&str, &str) = ("kube-system", "kube-controller-manager");
/// Duration of that Lease if it has none.
const MANAGER_SECONDS: Duration = Duration::from_secs(15);
/// Prefix of edgesync's conditions.
const OWN: &str = "edgesync.io/";

/// State of the check; each leader starts with a new one.
#[derive(Debug)]
pub(super) struct LeaseExpiryCheck {
    requests: Requests,
    leases: Leases,
    nodes: Nodes,
    lease: Resource,
    event: Resource,
    unchanged: UnchangedLeases,
    manager: Option<(String, Instant)>,
}

/// Leases that have not changed, with the time since when. Pure.
#[derive(Debug, Default)]
struct UnchangedLeases {
    observed: HashMap<NodeName, ObservedRenewal>,
    marked: HashSet<NodeName>,
}

#[derive(Debug)]
struct ObservedRenewal {
    renewed: Timestamp,
    since: Instant,
}

impl UnchangedLeases {
    /// Records the current Leases. Returns the nodes with an expired Lease that is not marked yet.
    fn update(&mut self, now: Instant, leases: &[StoredLease]) -> Vec<NodeName> {
        let there: HashSet<&str> = leases.iter().map(|lease| lease.renewal.node.as_str()).collect();
        self.observed.retain(|node, _| there.contains(&**node));
        self.marked.retain(|node| there.contains(&**node));
        let mut silent = Vec::new();
        for StoredLease { renewal, .. } in leases {
            let node = renewal.node.clone();
            let renewed = renewal.renewed;
            let observed =
                self.observed.entry(node.clone()).or_insert(ObservedRenewal { renewed, since: now });
            if observed.renewed != renewed {
                *observed = ObservedRenewal { renewed, since: now };
                self.marked.remove(&node);
            } else if now.duration_since(observed.since) >= Duration::from_secs(renewal.seconds.into())
                && !self.marked.contains(&node)
            {
                silent.push(node);
            }
        }
        silent
    }
}

impl LeaseExpiryCheck {
    pub(super) fn new(requests: &Requests, leases: &Leases, nodes: Nodes) -> Self {
        Self {
            requests: requests.clone(),
            leases: leases.clone(),
            nodes,
            lease: kinds::guess("coordination.k8s.io/v1", "Lease", true),
            event: kinds::guess("v1", "Event", true),
            unchanged: UnchangedLeases::default(),
            manager: None,
        }
    }

    /// Checks all Leases. Called every [`INTERVAL`] while this replica leads. Returns the number of
    /// nodes newly marked.
    ///
    /// # Errors
    /// The Leases could not be read, or a Node not written; the next check retries.
    pub(super) async fn run(&mut self) -> Result<usize> {
        let managed = self.is_managed().await?;
        let leases = self.leases.list().await?;
        let due: HashMap<NodeName, Timestamp> = leases
            .iter()
            .filter_map(|StoredLease { renewal, .. }| Some((renewal.node.clone(), renewal.next?)))
            .collect();
        let (mut count, mut failed) = (0, None);
        for node in self.unchanged.update(Instant::now(), &leases) {
            match self.nodes.edit(&node, |object| all_unknown(object, managed, Timestamp::now())).await {
                Ok(_) => {
                    count += 1;
                    if let Some(due) = due.get(&node) {
                        self.emit_missed(&node, *due).await;
                    }
                    self.unchanged.marked.insert(node);
                }
                Err(error) => failed = Some(error.into_source(&node)),
            }
        }
        failed.map_or(Ok(count), Err)
    }

    /// Creates the Event of a missed check-in, once; a failure is logged.
    async fn emit_missed(&self, node: &NodeName, due: Timestamp) {
        tracing::warn!(node = node.as_str(), due = %rfc3339(due), "planned check-in missed");
        match self.requests.create(&self.event, &missed_event(node, due, Timestamp::now())).await {
            // An earlier leader has created it.
            Ok(_) | Err(Failure::Conflict(_)) => {}
            Err(error) => tracing::error!(node = node.as_str(), %error, "creating an Event failed"),
        }
    }

    /// Returns whether a controller manager maintains the Nodes, which means that it renews its
    /// Lease. It counts as alive until observed for long enough.
    async fn is_managed(&mut self) -> Result<bool> {
        let Some(lease) = self.requests.get(&self.lease, MANAGER.0, MANAGER.1).await? else {
            self.manager = None;
            return Ok(false);
        };
        let seconds = lease.fields().get("spec").and_then(|spec| spec.get("leaseDurationSeconds"));
        let good = seconds.and_then(Value::as_u64).map_or(MANAGER_SECONDS, Duration::from_secs);
        let version = lease.resource_version();
        if self.manager.as_ref().is_some_and(|(before, _)| before != version) {
            self.manager = None;
        }
        let (_, since) = self.manager.get_or_insert_with(|| (version.to_owned(), Instant::now()));
        Ok(since.elapsed() < good.max(INTERVAL * 2))
    }
}

/// Returns the Event of a missed check-in, in the form of the core group. The replica that served
/// the node may create it too, under the same name: that of the absence, which the Lease has in
/// seconds.
fn missed_event(node: &NodeName, due: Timestamp, now: Timestamp) -> Object {
    let time = rfc3339(now);
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": format!("{node}.{:x}", due.as_second()), "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node},
        "source": {"component": "edgesync.io/cloud"},
        "reason": "CheckInMissed",
        "message": format!("not connected at its check-in of {}", rfc3339(due)),
        "type": "Warning",
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    });
    match event {
        Value::Object(fields) => Object::from(fields),
        _ => Object::default(),
    }
}

/// Sets edgesync's conditions to Unknown, and `Ready` too unless a controller manager maintains it.
fn all_unknown(node: &mut Object, managed: bool, now: Timestamp) {
    let mut names: Vec<String> = vec![CLOUD_REACHABLE.to_owned(), IN_SYNC.to_owned()];
    if !managed {
        names.insert(0, READY.to_owned());
    }
    let conditions = node.fields().get("status").and_then(|status| status.get("conditions"));
    let there = conditions.and_then(Value::as_array).into_iter().flatten();
    let own = there.filter_map(|condition| condition.get("type")?.as_str());
    let own: Vec<String> = own
        .filter(|name| name.starts_with(OWN) && !names.iter().any(|known| known == name))
        .map(str::to_owned)
        .collect();
    for condition in names.into_iter().chain(own) {
        set_node_condition(node, &Condition::unknown(condition), now);
    }
}

#[cfg(test)]
mod tests;
