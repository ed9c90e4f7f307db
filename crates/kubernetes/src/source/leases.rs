//! Leases of nodes in `kube-node-lease`, which also record the replica that serves a node.
//!
//! The replica with a node's newest session writes its id into [`SERVED_BY`]. [`Leases::served`]
//! checks that annotation, which fences the writes of other replicas, see [`super::syncs`] and
//! [`super::uploads`].
//!
//! Each write is a compare-and-swap on the Lease's `resourceVersion`, so a late renewal of a
//! replica with a stale connection changes nothing. Such a replica drops it and is fenced. A node
//! renews over its newest connection only: if renewals continue to arrive at a fenced replica, the
//! node is back, and the replica takes over ([`LeaseFence`]). No clock is compared, neither the
//! nodes' nor the replicas'.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::mark::{self, MARK, MARKED, SERVED_BY};
use super::requests::Requests;
use crate::cluster::{Failure, Precondition};
use edgesync_cloud_store::NEXT_CHECK_IN;
pub(super) use edgesync_fleet::source::{LeaseRenewal, Result, SourceError};
use edgesync_object::time::rfc3339;
use edgesync_object::{NodeName, Object, Resource, kinds};
use edgesync_protocol::replicas::{LeaseFence, serves};

/// The namespace of node Leases.
pub(crate) const NAMESPACE: &str = "kube-node-lease";
/// Maximum number of Leases that one call renews at a time.
const CONCURRENCY: usize = 16;
/// Attempts with a Lease that changes concurrently.
const ATTEMPTS: usize = 3;
/// Duration of a Lease that a claim has created, until the first renewal sets that of the node.
const CLAIMED_SECONDS: u32 = 40;
/// Time for which a write of a Lease proves that this replica serves the node: longer than the
/// interval of renewals, so that a replica with a live connection rarely reads the Lease.
const PROOF: Duration = Duration::from_secs(15);

/// Writes the Leases of nodes. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    requests: Requests,
    replica: Arc<str>,
    lease: Arc<Resource>,
    node: Arc<Resource>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    fences: HashMap<NodeName, LeaseFence<OwnLease, LeaseRenewal>>,
    /// Nodes of others that are already logged.
    logged_foreign: HashSet<NodeName>,
}

/// A Lease that this replica has written.
#[derive(Clone, Debug)]
struct OwnLease {
    uid: Arc<str>,
    /// The `resourceVersion` that this replica wrote.
    version: Arc<str>,
    /// A time before the write.
    written: Instant,
}

/// The server of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// This replica, or none.
    Here,
    /// Another replica, which has claimed the Lease or renewed it last.
    By(String),
}

/// The Lease of a node, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredLease {
    pub(super) uid: Arc<str>,
    pub(super) renewal: LeaseRenewal,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    lease_duration_seconds: u32,
    acquire_time: Option<Timestamp>,
    renew_time: Timestamp,
    #[serde(default)]
    lease_transitions: u32,
}

/// State of a node's Node and Lease.
enum NodeState {
    /// The Lease, and the UID of the Node.
    Lease(Object, String),
    /// Only the Node, with this UID.
    Node(String),
    /// The Node belongs to others.
    Foreign,
    /// There is no Node.
    Nothing,
}

impl Leases {
    pub(super) fn new(requests: Requests, replica: &str) -> Self {
        Self {
            requests,
            replica: replica.into(),
            lease: Arc::new(kinds::guess("coordination.k8s.io/v1", "Lease", true)),
            node: Arc::new(kinds::guess("v1", "Node", false)),
            state: Arc::default(),
        }
    }

    /// Returns a handle with background priority.
    pub(super) fn in_background(&self) -> Self {
        Self { requests: self.requests.in_background(), ..self.clone() }
    }

    /// Renews Leases with the last renewal of each node, and creates missing ones. Skips nodes
    /// without a Node, and those of others with a log line.
    ///
    /// # Errors
    /// A Lease could not be renewed. The others are still attempted.
    pub(super) async fn renew(&self, renewals: Vec<LeaseRenewal>) -> Result<()> {
        let last: BTreeMap<NodeName, LeaseRenewal> =
            renewals.into_iter().map(|renewal| (renewal.node.clone(), renewal)).collect();
        let writes = last.into_values().map(|renewal| async move { self.renew_one(&renewal).await });
        let results: Vec<Result<()>> = stream::iter(writes).buffer_unordered(CONCURRENCY).collect().await;
        results.into_iter().collect()
    }

    /// Claims a node whose session has begun here, and creates a missing Lease. Until its first
    /// renewal arrives, the Lease would name the previous replica, or none.
    ///
    /// # Errors
    /// The Lease could not be written.
    pub(super) async fn claim(&self, node: &NodeName) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let is_claimed = match self.read_node(node).await? {
                NodeState::Lease(lease, _) => {
                    let patch = json!({"metadata": {"annotations": {SERVED_BY: &*self.replica}}});
                    self.patch(node, (lease.uid(), lease.resource_version()), patch).await?
                }
                NodeState::Node(owner) => self.create(&unrenewed(node), &owner).await?,
                NodeState::Foreign | NodeState::Nothing => true,
            };
            if is_claimed {
                return Ok(());
            }
        }
        Err(contended(node))
    }

    /// Returns which replica serves a node.
    ///
    /// # Errors
    /// The Lease could not be read.
    pub(super) async fn served(&self, node: &NodeName) -> Result<Served> {
        let Some(lease) = self.requests.get(&self.lease, NAMESPACE, node).await? else {
            return Ok(Served::Here);
        };
        let by = lease.annotations().remove(SERVED_BY).unwrap_or_default();
        Ok(if serves(&by, &self.replica) { Served::Here } else { Served::By(by) })
    }

    /// Returns which replica serves a node, as [`Self::served`] or by a write of this replica
    /// within [`PROOF`].
    ///
    /// # Errors
    /// The Lease could not be read.
    pub(super) async fn served_lately(&self, node: &NodeName) -> Result<Served> {
        let is_proven = {
            let state = self.state();
            let lease = state.fences.get(node).and_then(LeaseFence::written);
            lease.is_some_and(|lease| lease.written.elapsed() < PROOF)
        };
        if is_proven { Ok(Served::Here) } else { self.served(node).await }
    }

    /// Returns whether this replica has written the Lease of a node last, as far as it knows.
    pub(super) fn has_written(&self, node: &NodeName) -> bool {
        self.state().fences.get(node).is_some_and(|fence| fence.written().is_some())
    }

    /// Lists the Leases of all nodes.
    ///
    /// # Errors
    /// They could not be read.
    pub(super) async fn list(&self) -> Result<Vec<StoredLease>> {
        let leases = self.requests.list(&self.lease, Some(NAMESPACE), &mark::selector()).await?;
        Ok(leases.iter().filter_map(read).collect())
    }

    /// Drops the state of a node that is no longer served here.
    pub(super) fn forget(&self, node: &NodeName) {
        let mut state = self.state();
        state.fences.remove(node);
        state.logged_foreign.remove(node);
    }

    /// Deletes the Lease of a node, if it belongs to edgesync. Returns whether it existed.
    ///
    /// # Errors
    /// The Lease could not be read or deleted.
    pub(super) async fn remove(&self, node: &NodeName) -> Result<bool> {
        self.forget(node);
        let Some(lease) = self.requests.get(&self.lease, NAMESPACE, node).await? else { return Ok(false) };
        if !mark::is_marked(&lease) {
            return Ok(false);
        }
        let same = Precondition { uid: Some(lease.uid()), version: None };
        Ok(self.requests.delete(&self.lease, (NAMESPACE, node), same).await?)
    }

    async fn renew_one(&self, renewal: &LeaseRenewal) -> Result<()> {
        let node = &renewal.node;
        let known = self.state().fences.get(node).and_then(|fence| fence.written().cloned());
        if let Some(known) = known
            && self.patch(node, (&known.uid, &known.version), self.patch_body(renewal, None)).await?
        {
            return Ok(());
        }
        for _ in 0..ATTEMPTS {
            let done = match self.read_node(node).await? {
                NodeState::Lease(lease, owner) => {
                    if self.is_fenced(renewal, &lease) {
                        return Ok(());
                    }
                    let version = (lease.uid(), lease.resource_version());
                    self.patch(node, version, self.patch_body(renewal, Some(&owner))).await?
                }
                NodeState::Node(owner) => self.create(renewal, &owner).await?,
                NodeState::Foreign => {
                    if self.state().logged_foreign.insert(node.clone()) {
                        tracing::warn!(
                            node = node.as_str(),
                            "Node without label edgesync.io/edge: Lease not renewed"
                        );
                    }
                    true
                }
                NodeState::Nothing => true,
            };
            if done {
                return Ok(());
            }
        }
        Err(contended(node))
    }

    /// Returns whether a renewal is dropped, see [`LeaseFence::drops`].
    fn is_fenced(&self, renewal: &LeaseRenewal, lease: &Object) -> bool {
        let by = lease.annotations().remove(SERVED_BY).unwrap_or_default();
        let node = &renewal.node;
        let is_dropped =
            self.state().fences.entry(node.clone()).or_default().drops(&by, &self.replica, renewal);
        if is_dropped {
            tracing::debug!(
                node = node.as_str(),
                replica = by,
                "Lease renewal dropped, node served elsewhere"
            );
        }
        is_dropped
    }

    /// Patches a Lease with this UID and `resourceVersion`. Returns false if it has changed since,
    /// or was deleted.
    async fn patch(&self, node: &NodeName, (uid, version): (&str, &str), patch: Value) -> Result<bool> {
        let same = Precondition { uid: Some(uid), version: Some(version) };
        let started = Instant::now();
        match self.requests.merge(&self.lease, (NAMESPACE, node), same, patch).await {
            Ok(lease) => {
                self.record(node, &lease, started);
                Ok(true)
            }
            // A UID mismatch is a conflict on some servers, and an invalid change of an immutable
            // field on others.
            Err(Failure::Conflict(_) | Failure::NotFound(_) | Failure::Invalid(_)) => {
                if let Some(fence) = self.state().fences.get_mut(node) {
                    fence.record_conflict();
                }
                Ok(false)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Creates a Lease. Returns false if one exists.
    async fn create(&self, renewal: &LeaseRenewal, owner: &str) -> Result<bool> {
        let mut lease = self.patch_body(renewal, Some(owner));
        lease["apiVersion"] = json!(self.lease.api_version());
        lease["kind"] = json!(self.lease.kind);
        lease["metadata"]["name"] = json!(renewal.node);
        lease["metadata"]["namespace"] = json!(NAMESPACE);
        if renewal.next.is_none()
            && let Some(annotations) = lease["metadata"]["annotations"].as_object_mut()
        {
            annotations.remove(NEXT_CHECK_IN);
        }
        let lease = match lease {
            Value::Object(fields) => Object::from(fields),
            _ => Object::default(),
        };
        let started = Instant::now();
        match self.requests.create(&self.lease, &lease).await {
            Ok(lease) => {
                self.record(&renewal.node, &lease, started);
                Ok(true)
            }
            Err(Failure::Conflict(_)) => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Returns the fields of a renewal; with `owner`, also those that mark the Lease as edgesync's.
    fn patch_body(&self, renewal: &LeaseRenewal, owner: Option<&str>) -> Value {
        // Null removes the annotation of an earlier absence.
        let next = renewal.next.map(rfc3339);
        let mut metadata = json!({"annotations": {SERVED_BY: &*self.replica, NEXT_CHECK_IN: next}});
        if let Some(uid) = owner {
            metadata["labels"] = json!({MARK: MARKED});
            metadata["ownerReferences"] = json!([mark::owner(&renewal.node, uid)]);
        }
        json!({"metadata": metadata, "spec": renewal.spec()})
    }

    async fn read_node(&self, node: &NodeName) -> Result<NodeState> {
        let Some(found) = self.requests.get(&self.node, "", node).await? else {
            return Ok(NodeState::Nothing);
        };
        if !mark::is_marked(&found) {
            return Ok(NodeState::Foreign);
        }
        let owner = found.uid().to_owned();
        Ok(match self.requests.get(&self.lease, NAMESPACE, node).await? {
            Some(lease) => NodeState::Lease(lease, owner),
            None => NodeState::Node(owner),
        })
    }

    /// Records what this replica has written since `started`.
    fn record(&self, node: &NodeName, lease: &Object, started: Instant) {
        let (uid, version) = (lease.uid().into(), lease.resource_version().into());
        let known = OwnLease { uid, version, written: started };
        self.state().fences.entry(node.clone()).or_default().record_write(known);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn contended(node: &NodeName) -> SourceError {
    SourceError::Contended { kind: "Lease", name: node.to_string() }
}

/// Returns the content of a Lease that was never renewed. Its time is older than that of any
/// renewal: the node lifecycle controller ignores renewals that are not later than what it has
/// read first, and all renewals of a Lease that had no time.
fn unrenewed(node: &NodeName) -> LeaseRenewal {
    LeaseRenewal {
        node: node.clone(),
        seconds: CLAIMED_SECONDS,
        acquired: Timestamp::UNIX_EPOCH,
        renewed: Timestamp::UNIX_EPOCH,
        transitions: 0,
        next: None,
    }
}

fn read(lease: &Object) -> Option<StoredLease> {
    let spec = Spec::deserialize(lease.fields().get("spec")?).ok()?;
    let renewal = LeaseRenewal {
        node: NodeName::parse(lease.name()).ok()?,
        seconds: spec.lease_duration_seconds,
        acquired: spec.acquire_time.unwrap_or(spec.renew_time),
        renewed: spec.renew_time,
        transitions: spec.lease_transitions,
        next: lease.annotations().remove(NEXT_CHECK_IN).and_then(|next| next.parse().ok()),
    };
    Some(StoredLease { uid: lease.uid().into(), renewal })
}

#[cfg(test)]
mod tests;
