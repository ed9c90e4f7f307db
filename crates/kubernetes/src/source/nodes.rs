//! Writes the Nodes of a fleet: creates and updates them on reports, and never adopts those of a
//! kubelet.

mod addresses;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::leases::{Leases, Served};
use super::mark::{self, MARK, MARKED};
use super::records::Records;
use super::requests::Requests;
use crate::cluster::{Failure, Precondition};
use addresses::admit_addresses;
use edgesync_enrollment::membership::NodeIdentity;
use edgesync_fleet::config::Network;
pub(super) use edgesync_fleet::source::{NodeChange, Result, SourceError};
use edgesync_object::node_labels::{EDGE_ROLE, assign_missing_labels, has_reported, labels_by_name};
use edgesync_object::{Labels, NodeName, Object, Resource, kinds};
use edgesync_protocol::node::{merge_report, new_node, set_node_condition};
use edgesync_store::checksum::checksum64;

/// Label of Nodes that controllers of load balancers send no traffic to; others may remove it.
const NO_LOAD_BALANCER: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Taint of our Nodes, which keeps the scheduler from placing Pods there.
///
/// The effect is `NoSchedule`, not `NoExecute`: the latter would delete Pods bound to the node by
/// `spec.nodeName`, which are the desired objects of the node. Pods that tolerate every taint, such
/// as those of many DaemonSets, stay pending, because the capacity for Pods is zero
/// ([`complete_status`]).
const TAINT: &str = "edgesync.io/edge";
/// Maximum number of Nodes that one call writes at a time.
const CONCURRENCY: usize = 8;
/// Number of locks; Nodes that share one are written one after another.
const LOCKS: usize = 64;
/// Attempts of a compare-and-swap.
const ATTEMPTS: usize = 10;
/// Required fields of `nodeInfo`; empty if unknown.
const NODE_INFO: [&str; 10] = [
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
];

/// Returns the labels that a member's token gave it; `None` for a removed node, whose Node is not
/// created.
pub(super) type MemberLabels = Arc<dyn Fn(&NodeName) -> Option<Labels> + Send + Sync>;

/// Reason why a Node is not written.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum NodeError {
    /// The Node belongs to others.
    #[error(
        "Node '{0}' has no label {MARK}={MARKED} and is left unchanged: rename the device, or hand the Node over; \
         hint: kubectl label node {0} {MARK}={MARKED}"
    )]
    Foreign(String),
    /// Permanent: the cluster rejects the Node.
    #[error("{0}")]
    Refused(String),
    /// Temporary: a later attempt may succeed.
    #[error(transparent)]
    Failed(#[from] SourceError),
}

impl NodeError {
    /// Converts the error for the caller that asked for this Node.
    pub(super) fn into_source(self, node: &NodeName) -> SourceError {
        match self {
            Self::Failed(error) => error,
            refused => SourceError::NodeRefused { node: node.to_string(), why: refused.to_string() },
        }
    }
}

impl From<Failure> for NodeError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Invalid(why) => Self::Refused(why),
            failure => Self::Failed(failure.into()),
        }
    }
}

/// Writes Nodes. Cheap to clone.
#[derive(Clone)]
pub(super) struct Nodes {
    requests: Requests,
    leases: Leases,
    records: Records,
    node: Arc<Resource>,
    member_labels: MemberLabels,
    /// Networks of the addresses that devices may report.
    networks: Arc<[Network]>,
    /// Locks that serialize this replica's writes to a Node, which would conflict otherwise.
    locks: Arc<[tokio::sync::Mutex<()>]>,
}

impl std::fmt::Debug for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nodes").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl Nodes {
    pub(super) fn new(
        requests: Requests,
        leases: Leases,
        records: Records,
        member_labels: MemberLabels,
        networks: Arc<[Network]>,
    ) -> Self {
        let node = Arc::new(kinds::guess("v1", "Node", false));
        let locks = (0..LOCKS).map(|_| tokio::sync::Mutex::default()).collect();
        Self { requests, leases, records, node, member_labels, networks, locks }
    }

    async fn lock(&self, node: &NodeName) -> tokio::sync::MutexGuard<'_, ()> {
        let index = checksum64(&[node.as_bytes()]).unsigned_abs() as usize % self.locks.len();
        self.locks[index].lock().await
    }

    /// Updates Nodes, and creates missing ones. Skips, with a log line, Nodes of others and changes
    /// that the cluster rejects.
    ///
    /// # Errors
    /// A Node could not be written. The others are still attempted.
    pub(super) async fn change(&self, changes: Vec<NodeChange>) -> Result<()> {
        let mut by_node: BTreeMap<NodeName, Vec<NodeChange>> = BTreeMap::new();
        for change in changes {
            by_node.entry(change.node.clone()).or_default().push(change);
        }
        let writes = by_node.into_values().map(|changes| async move { self.change_all(&changes).await });
        let results: Vec<Result<()>> = stream::iter(writes).buffer_unordered(CONCURRENCY).collect().await;
        results.into_iter().collect()
    }

    /// Writes a node's own report, if this replica serves the node. A conflict is an error, so that
    /// the report is checked again before a retry ([`super::uploads`]).
    ///
    /// # Errors
    /// See [`NodeError`].
    pub(super) async fn report(&self, change: &NodeChange) -> Result<(), NodeError> {
        self.check(change)?;
        let _guard = self.lock(&change.node).await;
        self.attempt(change, true).await.map_err(NodeError::from_attempt)
    }

    /// Reads which Node there is; `None` if there is none of edgesync.
    ///
    /// # Errors
    /// It could not be read.
    pub(super) async fn identity(&self, node: &NodeName) -> Result<Option<NodeIdentity>> {
        let found = self.requests.get(&self.node, "", node).await?;
        Ok(found.filter(mark::is_marked).as_ref().map(NodeIdentity::of))
    }

    /// Deletes a Node, if it has this UID, its Lease and its ObjectSyncs; returns whether any
    /// existed. The Node is deleted first: a repeated call deletes the rest after a failure, and
    /// nothing is created for a node without a Node. Explicit deletion is necessary in clusters
    /// without a controller manager, which would garbage-collect the rest.
    ///
    /// # Errors
    /// Something could not be deleted.
    pub(super) async fn remove(&self, node: &NodeName, uid: Option<&str>) -> Result<bool> {
        let mut found = false;
        if uid.is_some() {
            let same = Precondition { uid, version: None };
            found |= self.requests.delete(&self.node, ("", node), same).await?;
        }
        found |= self.leases.remove(node).await?;
        found |= self.records.remove_all(node).await?;
        Ok(found)
    }

    /// Sets or removes an annotation of a Node.
    ///
    /// # Errors
    /// See [`Self::edit`].
    pub(super) async fn annotate(
        &self,
        node: &NodeName,
        key: &str,
        value: Option<&str>,
    ) -> Result<bool, NodeError> {
        let annotate = |node: &mut Object| {
            node.set_annotation(key, value);
        };
        self.edit(node, annotate).await
    }

    /// Edits the Node of this name by compare-and-swap, if it belongs to edgesync. Returns whether
    /// it exists.
    ///
    /// # Errors
    /// The Node could not be read or written.
    pub(super) async fn edit(&self, node: &NodeName, edit: impl Fn(&mut Object)) -> Result<bool, NodeError> {
        let _guard = self.lock(node).await;
        for _ in 0..ATTEMPTS {
            let found = self.requests.get(&self.node, "", node).await?;
            let Some(old) = found.filter(mark::is_marked) else { return Ok(false) };
            let mut new = old.clone();
            edit(&mut new);
            match self.write(Some(old), new).await {
                Err(failure) if is_race(&failure) => {}
                result => return result.map(|()| true).map_err(NodeError::from),
            }
        }
        Err(contended(node).into())
    }

    async fn change_all(&self, changes: &[NodeChange]) -> Result<()> {
        for change in changes {
            match self.change_one(change).await {
                Ok(()) => {}
                Err(NodeError::Failed(error)) => return Err(error),
                Err(error) => tracing::warn!(node = change.node.as_str(), %error, "Node not changed"),
            }
        }
        Ok(())
    }

    async fn change_one(&self, change: &NodeChange) -> Result<(), NodeError> {
        self.check(change)?;
        let _guard = self.lock(&change.node).await;
        for _ in 0..ATTEMPTS {
            match self.attempt(change, false).await {
                Err(Attempt::Raced(_)) => {}
                result => return result.map_err(NodeError::from_attempt),
            }
        }
        Err(contended(&change.node).into())
    }

    fn check(&self, change: &NodeChange) -> Result<(), NodeError> {
        let report = change.report.as_ref().and_then(|report| report.check().err());
        let problem = report.map(|problems| format!("node report: {problems}"));
        match problem {
            Some(problem) => Err(NodeError::Refused(problem)),
            None => Ok(()),
        }
    }

    async fn attempt(&self, change: &NodeChange, fenced: bool) -> Result<(), Attempt> {
        let node = &change.node;
        let old = self.requests.get(&self.node, "", node).await.map_err(Attempt::of)?;
        if old.as_ref().is_some_and(|old| !mark::is_marked(old)) {
            return Err(Attempt::Never(NodeError::Foreign(node.to_string())));
        }
        // Fencing check after the read: a replica that claims the node later reads the Node later,
        // or makes this write conflict.
        if fenced && let Served::By(replica) = self.leases.served(node).await.map_err(Attempt::failed)? {
            return Err(Attempt::failed(SourceError::ServedElsewhere { node: node.to_string(), replica }));
        }
        let member_labels = (self.member_labels)(node);
        if old.is_none() && member_labels.is_none() {
            return Ok(());
        }
        let member_labels = member_labels.unwrap_or_default();
        let new = changed(old.clone(), change, member_labels, &self.networks, Timestamp::now());
        self.write(old, new).await.map_err(Attempt::of)
    }

    /// Writes the differences; the status has its own subresource.
    async fn write(&self, old: Option<Object>, mut new: Object) -> Result<(), Failure> {
        let status = new.fields_mut().remove("status").unwrap_or_else(|| json!({}));
        let mut stored = match old {
            None => {
                new.fields_mut().insert("status".to_owned(), status.clone());
                self.requests.create(&self.node, &new).await?
            }
            Some(mut old) => {
                let before = old.fields_mut().remove("status");
                let mut stored =
                    if old == new { old } else { self.requests.replace(&self.node, &new).await? };
                // A concurrent change would have made the replace conflict.
                before.and_then(|before| stored.fields_mut().insert("status".to_owned(), before));
                stored
            }
        };
        if stored.fields().get("status") != Some(&status) {
            stored.fields_mut().insert("status".to_owned(), status);
            self.requests.replace_status(&self.node, &stored).await?;
        }
        Ok(())
    }
}

/// Failure of one attempt.
enum Attempt {
    /// Lost a race with another writer.
    Raced(SourceError),
    /// Not to be retried.
    Never(NodeError),
}

impl Attempt {
    fn of(failure: Failure) -> Self {
        if is_race(&failure) { Self::Raced(failure.into()) } else { Self::Never(failure.into()) }
    }

    fn failed(error: SourceError) -> Self {
        Self::Never(NodeError::Failed(error))
    }
}

impl NodeError {
    fn from_attempt(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Raced(error) => Self::Failed(error),
            Attempt::Never(error) => error,
        }
    }
}

fn is_race(failure: &Failure) -> bool {
    matches!(failure, Failure::Conflict(_) | Failure::NotFound(_))
}

fn contended(node: &NodeName) -> SourceError {
    SourceError::Contended { kind: "Node", name: node.to_string() }
}

/// Computes the new Node from the old one, or from scratch.
fn changed(
    old: Option<Object>,
    change: &NodeChange,
    member_labels: Labels,
    networks: &[Network],
    now: Timestamp,
) -> Object {
    let is_new = old.is_none();
    let mut node = old.unwrap_or_else(|| new_node(&change.node));
    if is_new || change.report.is_some() {
        let mut labels = Labels::new();
        if !has_reported(&node) {
            labels.extend(member_labels);
        }
        labels.extend(labels_by_name(&change.node));
        labels.insert(MARK.to_owned(), MARKED.to_owned());
        if is_new {
            labels.extend([EDGE_ROLE, NO_LOAD_BALANCER].map(|key| (key.to_owned(), String::new())));
        }
        assign_missing_labels(&mut node, &labels);
        taint(&mut node);
    }
    if let Some(report) = &change.report {
        merge_report(&mut node, report, now);
        admit_addresses(&mut node, networks);
    }
    for condition in &change.conditions {
        set_node_condition(&mut node, condition, now);
    }
    if is_new || change.report.is_some() {
        complete_status(&mut node);
    }
    node
}

/// Adds our taint if it is missing.
fn taint(node: &mut Object) {
    let spec = node.fields_mut().entry("spec").or_insert_with(|| json!({}));
    let mut taints = match spec.get_mut("taints").map(Value::take) {
        Some(Value::Array(taints)) => taints,
        _ => Vec::new(),
    };
    if !taints.iter().any(|taint| taint["key"] == TAINT) {
        taints.push(json!({"key": TAINT, "effect": "NoSchedule"}));
    }
    spec["taints"] = json!(taints);
}

/// Sets the capacity for Pods to zero, and fills in the fields that the API server would default.
/// Otherwise each report would differ from the stored Node.
fn complete_status(node: &mut Object) {
    let status = node.fields_mut().entry("status").or_insert_with(|| json!({}));
    for field in ["allocatable", "capacity", "nodeInfo"] {
        if !status[field].is_object() {
            status[field] = json!({});
        }
    }
    for field in ["allocatable", "capacity"] {
        status[field]["pods"] = json!("0");
    }
    for field in NODE_INFO {
        if !status["nodeInfo"][field].is_string() {
            status["nodeInfo"][field] = json!("");
        }
    }
    status["daemonEndpoints"] = json!({"kubeletEndpoint": {"Port": 0}});
}

#[cfg(test)]
mod tests;
