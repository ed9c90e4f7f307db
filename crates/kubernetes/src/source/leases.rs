//! The Leases of nodes in `kube-node-lease`, which also tell which replica serves a node.
//!
//! Whoever renews the Lease of a node writes its own id beside ([`SERVED_BY`]). A node renews over
//! its newest connection, so a replica that holds an old one, and does not know it, stops renewing.
//! [`Leases::served`] asks who it is. It is what keeps such a replica from writing what is out of
//! date, see [`super::syncs`] and [`super::uploads`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::mark::{self, MARK, MARKED, SERVED_BY};
use super::requests::Requests;
use crate::cluster::{Failure, Precondition};
pub(super) use edgesync_fleet::source::{LeaseRenewal, Result, SourceError};
use edgesync_object::time::rfc3339_micros;
use edgesync_object::{NodeName, Object, Resource, kinds};

/// Where the Leases of nodes are.
pub(crate) const NAMESPACE: &str = "kube-node-lease";
/// Leases that are renewed at a time.
const AT_A_TIME: usize = 16;
/// How often a Lease is looked at that others change or remove.
const ATTEMPTS: usize = 3;

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
    known: HashMap<NodeName, Known>,
    /// Nodes of others of which the log has a line.
    foreign: HashSet<NodeName>,
}

/// A Lease that is this program's.
#[derive(Clone, Debug)]
struct Known {
    uid: Arc<str>,
    /// The renewal that this replica has written last, as the cluster has it.
    renewed: Option<Timestamp>,
}

/// Who serves a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// This replica, or nobody.
    Here,
    /// Another one has renewed its Lease since this one did.
    By(String),
}

/// A Lease of a node, as it is in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Its UID.
    pub(super) uid: Arc<str>,
    /// What it says.
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

/// What there is of a node.
enum Look {
    /// A Lease, and the UID of the Node.
    Lease(Object, String),
    /// The Node alone, with this UID.
    Node(String),
    /// The Node of somebody else.
    Foreign,
    /// Nothing.
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

    /// The same, in the background of the rate.
    pub(super) fn in_background(&self) -> Self {
        Self { requests: self.requests.in_background(), ..self.clone() }
    }

    /// Renews Leases, the last renewal of each node, and makes those that there are not. Nodes that
    /// there is no Node of get none, and those of others are left alone, with a line in the log.
    ///
    /// # Errors
    /// One of them could not be renewed. All others are, unless they could not be either.
    pub(super) async fn renew(&self, renewals: Vec<LeaseRenewal>) -> Result<()> {
        let last: BTreeMap<NodeName, LeaseRenewal> =
            renewals.into_iter().map(|renewal| (renewal.node.clone(), renewal)).collect();
        let writes = last.into_values().map(|renewal| async move { self.renew_one(&renewal).await });
        let results: Vec<Result<()>> = stream::iter(writes).buffer_unordered(AT_A_TIME).collect().await;
        results.into_iter().collect()
    }

    /// Writes that this replica serves a node from now on, whose session has begun here: until its
    /// first renewal has arrived the Lease would name the replica that served it before.
    ///
    /// # Errors
    /// The Lease could not be written.
    pub(super) async fn claim(&self, node: &NodeName) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let Look::Lease(lease, _) = self.look(node).await? else { return Ok(()) };
            let patch = json!({"metadata": {"annotations": {SERVED_BY: &*self.replica}}});
            let same = Precondition { uid: Some(lease.uid()), version: None };
            match self.requests.merge(&self.lease, (NAMESPACE, node), same, patch).await {
                Ok(lease) => {
                    self.note(node, &lease);
                    return Ok(());
                }
                Err(Failure::Conflict(_) | Failure::NotFound(_) | Failure::Invalid(_)) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(unsettled(node))
    }

    /// Who serves a node: another replica if its renewal is at least as new as the last one of this
    /// replica, of which it has taken the place then. Renewals of one node follow its own clock.
    ///
    /// # Errors
    /// The Lease could not be read.
    pub(super) async fn served(&self, node: &NodeName) -> Result<Served> {
        let Some(lease) = self.requests.get(&self.lease, NAMESPACE, node).await? else {
            return Ok(Served::Here);
        };
        let by = lease.annotations().remove(SERVED_BY).unwrap_or_default();
        if by.is_empty() || by == *self.replica {
            return Ok(Served::Here);
        }
        let own = self.state().known.get(node).and_then(|known| known.renewed);
        let is_older = renewed(&lease).zip(own).is_some_and(|(theirs, own)| theirs < own);
        Ok(if is_older { Served::Here } else { Served::By(by) })
    }

    /// The Leases of all nodes, as they are now.
    ///
    /// # Errors
    /// They could not be read.
    pub(super) async fn list(&self) -> Result<Vec<Found>> {
        let leases = self.requests.list(&self.lease, Some(NAMESPACE), &mark::selector()).await?;
        Ok(leases.iter().filter_map(read).collect())
    }

    /// Forgets a node that is not served here any more.
    pub(super) fn forget(&self, node: &NodeName) {
        let mut state = self.state();
        state.known.remove(node);
        state.foreign.remove(node);
    }

    /// Deletes the Lease of a node, if it is one of edgesync. Tells whether there was one.
    ///
    /// # Errors
    /// It could not be read or deleted.
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
        let known = self.state().known.get(node).cloned();
        if let Some(known) = known
            && self.patch(node, &known.uid, self.text(renewal, None)).await?
        {
            return Ok(());
        }
        for _ in 0..ATTEMPTS {
            let done = match self.look(node).await? {
                Look::Lease(lease, owner) => {
                    self.patch(node, lease.uid(), self.text(renewal, Some(&owner))).await?
                }
                Look::Node(owner) => self.grant(renewal, &owner).await?,
                Look::Foreign => {
                    if self.state().foreign.insert(node.clone()) {
                        tracing::warn!(
                            node = node.as_str(),
                            "the Lease of a node is left alone: its Node was made by somebody else"
                        );
                    }
                    true
                }
                Look::Nothing => true,
            };
            if done {
                return Ok(());
            }
        }
        Err(unsettled(node))
    }

    /// Tells whether the Lease is the one that was meant.
    async fn patch(&self, node: &NodeName, uid: &str, patch: Value) -> Result<bool> {
        let same = Precondition { uid: Some(uid), version: None };
        match self.requests.merge(&self.lease, (NAMESPACE, node), same, patch).await {
            Ok(lease) => {
                self.note(node, &lease);
                Ok(true)
            }
            // A UID that is not the one of the object is a conflict to some servers, and to others
            // a change of what cannot be changed.
            Err(Failure::Conflict(_) | Failure::NotFound(_) | Failure::Invalid(_)) => {
                self.state().known.remove(node);
                Ok(false)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Makes a Lease. Tells whether there was none.
    async fn grant(&self, renewal: &LeaseRenewal, owner: &str) -> Result<bool> {
        let mut lease = self.text(renewal, Some(owner));
        lease["apiVersion"] = json!(self.lease.api_version());
        lease["kind"] = json!(self.lease.kind);
        lease["metadata"]["name"] = json!(renewal.node);
        lease["metadata"]["namespace"] = json!(NAMESPACE);
        let lease = match lease {
            Value::Object(fields) => Object::from(fields),
            _ => Object::default(),
        };
        match self.requests.create(&self.lease, &lease).await {
            Ok(lease) => {
                self.note(&renewal.node, &lease);
                Ok(true)
            }
            Err(Failure::Conflict(_)) => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    /// A renewal as fields of the Lease; with those that make it this program's if it may not be
    /// yet.
    fn text(&self, renewal: &LeaseRenewal, owner: Option<&str>) -> Value {
        let mut metadata = json!({"annotations": {SERVED_BY: &*self.replica}});
        if let Some(uid) = owner {
            metadata["labels"] = json!({MARK: MARKED});
            metadata["ownerReferences"] = json!([mark::owner(&renewal.node, uid)]);
        }
        let spec = json!({
            "acquireTime": rfc3339_micros(renewal.acquired),
            "holderIdentity": renewal.node,
            "leaseDurationSeconds": renewal.seconds,
            "leaseTransitions": renewal.transitions,
            "renewTime": rfc3339_micros(renewal.renewed),
        });
        json!({"metadata": metadata, "spec": spec})
    }

    async fn look(&self, node: &NodeName) -> Result<Look> {
        let Some(found) = self.requests.get(&self.node, "", node).await? else { return Ok(Look::Nothing) };
        if !mark::is_marked(&found) {
            return Ok(Look::Foreign);
        }
        let owner = found.uid().to_owned();
        Ok(match self.requests.get(&self.lease, NAMESPACE, node).await? {
            Some(lease) => Look::Lease(lease, owner),
            None => Look::Node(owner),
        })
    }

    /// Notes what this replica has written.
    fn note(&self, node: &NodeName, lease: &Object) {
        let known = Known { uid: lease.uid().into(), renewed: renewed(lease) };
        self.state().known.insert(node.clone(), known);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unsettled(node: &NodeName) -> SourceError {
    SourceError::Contended { kind: "Lease", name: node.to_string() }
}

fn renewed(lease: &Object) -> Option<Timestamp> {
    lease.fields().get("spec")?.get("renewTime")?.as_str()?.parse().ok()
}

fn read(lease: &Object) -> Option<Found> {
    let spec = Spec::deserialize(lease.fields().get("spec")?).ok()?;
    let renewal = LeaseRenewal {
        node: NodeName::parse(lease.name()).ok()?,
        seconds: spec.lease_duration_seconds,
        acquired: spec.acquire_time.unwrap_or(spec.renew_time),
        renewed: spec.renew_time,
        transitions: spec.lease_transitions,
    };
    Some(Found { uid: lease.uid().into(), renewal })
}

#[cfg(test)]
mod tests;
