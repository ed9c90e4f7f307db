//! The Nodes of a fleet in a cluster: made when a node reports, changed as it reports, and never
//! taken from a kubelet.

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
pub(super) use edgesync_fleet::source::{NodeChange, Result, SourceError};
use edgesync_object::node_labels::{give_missing_labels, has_reported, labels_by_name};
use edgesync_object::{Labels, NodeName, Object, Resource, kinds};
use edgesync_protocol::node::{merge_report, new_node, set_node_condition};
use edgesync_store::checksum::checksum64;

/// The role that `kubectl get nodes` shows. Others may take it away.
const ROLE: &str = "node-role.kubernetes.io/edge";
/// The taint of our Nodes, so that the scheduler puts no Pod there.
///
/// It is `NoSchedule` and not `NoExecute` too: that would have Pods deleted which somebody has
/// bound to the node by `spec.nodeName`, and these are what a node is to hold. There are Pods that
/// tolerate every taint, those of many DaemonSets among them. They stay pending: no Pod fits onto a
/// Node with room for none ([`complete_status`]).
const TAINT: &str = "edgesync.io/edge";
/// Nodes that are changed at a time.
const AT_A_TIME: usize = 8;
/// So many Nodes can be changed at a time; those of a share take turns.
const TURNS: usize = 64;
/// How often a change is made anew because somebody else has changed the Node meanwhile.
const ATTEMPTS: usize = 10;
/// What the API has of every machine, empty if it is not known.
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

/// The labels that were given to the member of a name, by the token that it has joined with;
/// nothing for one that was removed, of which no Node is made.
pub(super) type GivenLabels = Arc<dyn Fn(&NodeName) -> Option<Labels> + Send + Sync>;

/// Why a Node is not changed.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum NodeError {
    /// It is not this program's.
    #[error(
        "the Node '{0}' was made by somebody else and is left alone: give the device another name, or hand the Node over \
         with kubectl label node {0} {MARK}={MARKED}"
    )]
    Foreign(String),
    /// It never can be as it is to be.
    #[error("{0}")]
    Refused(String),
    /// Not now.
    #[error(transparent)]
    Failed(#[from] SourceError),
}

impl NodeError {
    /// The same for whoever asked for the change of this Node.
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
    given: GivenLabels,
    /// One at a time changes a Node here: others would only be in each other's way.
    turns: Arc<[tokio::sync::Mutex<()>]>,
}

impl std::fmt::Debug for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nodes").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl Nodes {
    pub(super) fn new(requests: Requests, leases: Leases, records: Records, given: GivenLabels) -> Self {
        let node = Arc::new(kinds::guess("v1", "Node", false));
        let turns = (0..TURNS).map(|_| tokio::sync::Mutex::default()).collect();
        Self { requests, leases, records, node, given, turns }
    }

    async fn turn(&self, node: &NodeName) -> tokio::sync::MutexGuard<'_, ()> {
        let place = checksum64(&[node.as_bytes()]).unsigned_abs() as usize % self.turns.len();
        self.turns[place].lock().await
    }

    /// Changes Nodes, and makes those that there are not. Left out, with a line in the log, are
    /// Nodes of others and what the cluster refuses for good.
    ///
    /// # Errors
    /// One of them could not be written. All others are, unless they could not be either.
    pub(super) async fn change(&self, changes: Vec<NodeChange>) -> Result<()> {
        let mut by_node: BTreeMap<NodeName, Vec<NodeChange>> = BTreeMap::new();
        for change in changes {
            by_node.entry(change.node.clone()).or_default().push(change);
        }
        let writes = by_node.into_values().map(|changes| async move { self.change_all(&changes).await });
        let results: Vec<Result<()>> = stream::iter(writes).buffer_unordered(AT_A_TIME).collect().await;
        results.into_iter().collect()
    }

    /// What a node says of itself. Nothing is written if another replica serves it; and what
    /// somebody else changes meanwhile is a failure, so that what the node says is looked at once
    /// more before it is written ([`super::uploads`]).
    ///
    /// # Errors
    /// See [`NodeError`].
    pub(super) async fn report(&self, change: &NodeChange) -> Result<(), NodeError> {
        self.check(change)?;
        let _turn = self.turn(&change.node).await;
        self.attempt(change, true).await.map_err(NodeError::from_attempt)
    }

    /// Removes a Node, its Lease and its ObjectSyncs, and tells whether there was anything. The
    /// Node goes first: what remains if this fails goes when it is called again, and nothing is
    /// made for a node without a Node. A cluster with a controller manager would collect the rest
    /// by itself, others would keep it.
    ///
    /// # Errors
    /// Something could not be removed.
    pub(super) async fn remove(&self, node: &NodeName) -> Result<bool> {
        let mut found = false;
        let there = self.requests.get(&self.node, "", node).await?;
        if let Some(there) = there.filter(mark::is_marked) {
            let same = Precondition { uid: Some(there.uid()), version: None };
            found |= self.requests.delete(&self.node, ("", node), same).await?;
        }
        found |= self.leases.remove(node).await?;
        found |= self.records.remove_all(node).await?;
        Ok(found)
    }

    /// Gives an annotation to a Node, or takes it away.
    ///
    /// # Errors
    /// See [`Self::edit`].
    pub(super) async fn annotate(
        &self,
        node: &NodeName,
        key: &str,
        value: Option<&str>,
    ) -> Result<bool, NodeError> {
        self.edit(node, |node| {
            let mut annotations = node.annotations();
            match value {
                Some(value) => drop(annotations.insert(key.to_owned(), value.to_owned())),
                None => drop(annotations.remove(key)),
            }
            node.set_metadata("annotations", json!(annotations));
        })
        .await
    }

    /// Has a Node of this name changed by a closure, if it is this program's, until nobody else
    /// changes it meanwhile. Tells whether there is one.
    ///
    /// # Errors
    /// It could not be read or written.
    pub(super) async fn edit(&self, node: &NodeName, edit: impl Fn(&mut Object)) -> Result<bool, NodeError> {
        let _turn = self.turn(node).await;
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
        Err(unsettled(node).into())
    }

    async fn change_all(&self, changes: &[NodeChange]) -> Result<()> {
        for change in changes {
            match self.change_one(change).await {
                Ok(()) => {}
                Err(NodeError::Failed(error)) => return Err(error),
                Err(error) => tracing::warn!(node = change.node.as_str(), %error, "a Node is not changed"),
            }
        }
        Ok(())
    }

    async fn change_one(&self, change: &NodeChange) -> Result<(), NodeError> {
        self.check(change)?;
        let _turn = self.turn(&change.node).await;
        for _ in 0..ATTEMPTS {
            match self.attempt(change, false).await {
                Err(Attempt::Raced(_)) => {}
                result => return result.map_err(NodeError::from_attempt),
            }
        }
        Err(unsettled(&change.node).into())
    }

    fn check(&self, change: &NodeChange) -> Result<(), NodeError> {
        let report = change.report.as_ref().and_then(|report| report.check().err());
        let problem = report.map(|problems| format!("the node's report: {problems}"));
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
        // After the Node was read: who serves the node next reads it later, or this write
        // conflicts.
        if fenced && let Served::By(replica) = self.leases.served(node).await.map_err(Attempt::failed)? {
            return Err(Attempt::failed(SourceError::ServedElsewhere { node: node.to_string(), replica }));
        }
        let given = (self.given)(node);
        if old.is_none() && given.is_none() {
            return Ok(());
        }
        let new = changed(old.clone(), change, given.unwrap_or_default(), Timestamp::now());
        self.write(old, new).await.map_err(Attempt::of)
    }

    /// Writes what differs: the status has a place of its own.
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
                // One that was replaced in between would have conflicted.
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

/// How an attempt went wrong.
enum Attempt {
    /// Somebody else was faster.
    Raced(SourceError),
    /// It is not to be made again.
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

fn unsettled(node: &NodeName) -> SourceError {
    SourceError::Contended { kind: "Node", name: node.to_string() }
}

/// What becomes of a Node, or of none.
fn changed(old: Option<Object>, change: &NodeChange, given: Labels, now: Timestamp) -> Object {
    let is_new = old.is_none();
    let mut node = old.unwrap_or_else(|| new_node(&change.node));
    if is_new || change.report.is_some() {
        let mut labels = labels_by_name(&change.node);
        if !has_reported(&node) {
            labels.extend(given);
        }
        labels.insert(MARK.to_owned(), MARKED.to_owned());
        if is_new {
            labels.insert(ROLE.to_owned(), String::new());
        }
        give_missing_labels(&mut node, &labels);
        taint(&mut node);
    }
    if let Some(report) = &change.report {
        merge_report(&mut node, report, now);
    }
    for condition in &change.conditions {
        set_node_condition(&mut node, condition, now);
    }
    if is_new || change.report.is_some() {
        complete_status(&mut node);
    }
    node
}

/// Gives a Node our taint, if it has not been given it.
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

/// Leaves no room for Pods, whatever the device has, and gives what else the API has of every Node:
/// what it would add itself would be a difference each time that the node reports.
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
