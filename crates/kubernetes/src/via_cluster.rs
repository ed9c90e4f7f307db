//! Operator requests answered from the Kubernetes cluster alone, without a running replica, from
//! any machine that reaches the API server.
//!
//! Paths and answers are those of the replicas' API. This module takes no decision that belongs to
//! a replica: it writes only what replicas read, which is tokens and names in the namespace of
//! edgesync, Nodes and their annotations.
//!
//! # Removing a node
//! The removal is recorded first, then the Node is deleted. The record prevents a replica from
//! recreating the Node in between. A crash between the two steps leaves a node that is served as
//! before, and the same command completes the removal. Replicas that observe the deletion of the
//! Node record the removal too and delete the remaining objects of the node, as after `kubectl
//! delete node`. The command waits for running replicas, because they would undo a change that
//! precedes their own record.

mod nodes;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Failure, Precondition};
use crate::source::{LEASES, mark, recorded_incarnation};
use edgesync_admin::cloud::{
    AdmitRequest, Admitted, Confirmed, NodeInfo, NodeList, OperatorCertificate, OperatorList, Removed,
    RevokedCertificates, RevokedOperators, RevokedToken, TokenList,
};
use edgesync_admin::{NodeAction, Route};
use edgesync_enrollment::membership::{MembershipError, MembershipStore, NodeIdentity};
use edgesync_enrollment::{Enrollment, check_revoked_operators, check_revoked_token, now};
use edgesync_fleet::answers::{self, answer, node_name, parse_request};
use edgesync_object::objectsync::split_sync_name;
use edgesync_object::status::{Reason, Result};
use edgesync_object::{NodeName, Object, Resource, Status, kinds};
use edgesync_placement::DELETIONS_CONFIRMED_ANNOTATION;

/// Attempts to annotate a Node that others change concurrently.
const ATTEMPTS: usize = 10;
/// Time limit for replicas to delete the remaining objects of a node, and the poll interval.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time for which a name must stay free: after that no replica is expected to record its removal.
const NAME_FREE_TIME: Duration = Duration::from_secs(1);
/// Retry delay after a conflict, in seconds.
const RETRY_SECONDS: u32 = 1;

/// Answers operator requests from the cluster.
#[derive(Debug)]
pub struct ViaCluster {
    cluster: Cluster,
    namespace: String,
    membership: MembershipStore,
    node: Resource,
    lease: Resource,
}

impl ViaCluster {
    /// Returns a handle for the fleet whose replicas have their Secrets in this namespace. Sends no
    /// request.
    #[must_use]
    pub fn new(cluster: Cluster, namespace: &str) -> Self {
        Self {
            membership: MembershipStore::of_cluster(Arc::new(cluster.clone()), namespace),
            namespace: namespace.to_owned(),
            node: kinds::guess("v1", "Node", false),
            lease: kinds::guess("coordination.k8s.io/v1", "Lease", true),
            cluster,
        }
    }

    /// Executes a request and answers as a replica does. `body` is that of a POST.
    ///
    /// # Errors
    /// Those of a replica, and refusals of the cluster.
    pub async fn call(&self, route: Route<'_>, body: &Value) -> Result<Value> {
        match route {
            Route::Nodes => answer(&self.nodes().await?),
            Route::Node(node) => answer(&self.show(&node_name(node)?).await?),
            Route::Placement(_) => Err(Status::new(
                Reason::NotFound,
                "placement decisions are known to replicas only; hint: use --server, or a kubeconfig from 'edgesync-cloud \
                 kubeconfig'",
            )),
            Route::ChangeNode(node, action) => self.change_node(&node_name(node)?, action, body).await,
            Route::Tokens => answer(&self.tokens().await?),
            Route::CreateToken => answers::create_token(&self.enrollment().await?, body, None).await,
            Route::RevokeToken(id) => {
                let revoked = self.membership.revoke_token(id, now()).await.map_err(membership_status)?;
                let revoked = check_revoked_token(id, revoked)?;
                answer(&RevokedToken { id: id.to_owned(), revoked })
            }
            Route::Operators => answer(&self.operators().await?),
            Route::CreateOperator => {
                let OperatorCertificate { user, role, lifetime_seconds } = parse_request(body)?;
                let enrollment = self.enrollment().await?;
                let lifetime = Duration::from_secs(lifetime_seconds);
                let identity = enrollment.new_operator(&user, role, lifetime).await?;
                answer(&answers::new_operator(&enrollment.trust(), &identity))
            }
            Route::RevokeOperators(which) => {
                let revoked = self.membership.revoke_operators(which, now()).await;
                let certificates = check_revoked_operators(which, revoked.map_err(membership_status)?)?;
                answer(&RevokedOperators { operator: which.to_owned(), certificates })
            }
            Route::BrokerConfig => Err(Status::new(
                Reason::NotFound,
                "broker files depend on the configuration of a replica; hint: run 'edgesync-cloud broker-config' on the \
                 machine of a replica",
            )),
            _ => Err(Status::no_such_path()),
        }
    }

    async fn change_node(&self, node: &NodeName, action: NodeAction, body: &Value) -> Result<Value> {
        match action {
            NodeAction::Remove => {
                answer(&Removed { node: node.to_string(), removed: self.remove(node).await? })
            }
            NodeAction::Admit => {
                let request: AdmitRequest = parse_request::<Option<_>>(body)?.unwrap_or_default();
                if request.broker_updated {
                    let noted = self.membership.note_refused(node, now()).await;
                    return answer(&answers::certificates(node, noted.map_err(membership_status)?));
                }
                answer(&Admitted { node: node.to_string(), admitted: self.admit(node).await? })
            }
            NodeAction::Revoke => answer(&self.revoke(node).await?),
            NodeAction::Forget => answer(&self.forget(node).await?),
            NodeAction::ConfirmDeletions => {
                let confirmed = self.confirm_deletions(node).await?;
                answer(&Confirmed { node: node.to_string(), confirmed })
            }
        }
    }

    /// Returns a page of the ObjectSyncs or ClusterObjectSyncs written by this program, of one node
    /// or of all, and the continue token of the next page.
    ///
    /// # Errors
    /// The cluster refuses the request or does not have the kind.
    pub async fn syncs(
        &self,
        kind: &Resource,
        node: Option<&str>,
        from: Option<&str>,
    ) -> Result<(Vec<Object>, Option<String>)> {
        let selector = match node {
            Some(node) => format!("{}={}", mark::RECORD_NODE, mark::node_value(node)),
            None => mark::RECORD_NODE.to_owned(),
        };
        let page = self.cluster.page(kind, None, &selector, from).await;
        let (mut objects, next) = page.map_err(|failure| match failure {
            Failure::NotFound(_) => Status::new(
                Reason::NotFound,
                format!(
                    "kind {} not served by the cluster; hint: apply its CustomResourceDefinition, which comes with \
                     edgesync",
                    kind.kind
                ),
            ),
            failure => cluster_status(failure),
        })?;
        // Names that are no valid label values may share one.
        objects.retain(|object| {
            node.is_none_or(|node| split_sync_name(object.name()).is_some_and(|(name, _)| name == node))
        });
        Ok((objects, next))
    }
}

impl ViaCluster {
    async fn tokens(&self) -> Result<TokenList> {
        let tokens = self.membership.listed_tokens(now()).await.map_err(membership_status)?;
        self.check_fleet(tokens.is_empty()).await?;
        Ok(answers::tokens(&tokens))
    }

    async fn operators(&self) -> Result<OperatorList> {
        let operators = self.membership.operators().await.map_err(membership_status)?;
        self.check_fleet(operators.is_empty()).await?;
        Ok(answers::operators(operators))
    }

    /// Refuses an empty list if there is no fleet in this namespace. A caller with rights to the
    /// records only gets the list.
    async fn check_fleet(&self, is_empty: bool) -> Result<()> {
        if !is_empty {
            return Ok(());
        }
        match self.incarnation().await {
            Err(status) if status.code != 403 => Err(status),
            _ => Ok(()),
        }
    }

    /// Revokes the certificates and tokens of a node. Returns the number of certificates.
    async fn revoke_certificates(&self, name: &NodeName) -> Result<usize> {
        self.membership.revoke_certificates(name, now()).await.map_err(membership_status)
    }

    async fn nodes(&self) -> Result<NodeList> {
        let incarnation = self.incarnation().await?;
        let selector = mark::selector();
        let nodes = self.cluster.list(&self.node, None, &selector).await.map_err(cluster_status)?;
        let leases = self.cluster.list(&self.lease, Some(LEASES), &selector).await.map_err(cluster_status)?;
        let (removed, members) = self.membership.removed_and_members().await.map_err(membership_status)?;
        Ok(NodeList {
            incarnation: incarnation.to_string(),
            bad_frames: None,
            frames_of_removed_nodes: None,
            items: answers::with_members(nodes::all(&nodes, &leases, &removed), &members),
        })
    }

    async fn show(&self, name: &NodeName) -> Result<NodeInfo> {
        self.incarnation().await?;
        let node = self.node(name).await?;
        let lease = self.lease(name).await?;
        let (removed, member) = self.membership.removal_and_member(name).await.map_err(membership_status)?;
        let shown = match (node, removed) {
            (Some(node), removed) => Some(nodes::show(&node, lease.as_ref(), removed)),
            (None, Some(since)) => Some(nodes::show_removed(name, since)),
            (None, None) => None,
        };
        answers::with_member(shown, member.as_ref()).ok_or_else(|| answers::unknown(name))
    }

    /// Removes a node. Returns whether its Node existed.
    async fn remove(&self, name: &NodeName) -> Result<bool> {
        self.incarnation().await?;
        let node = self.node(name).await?;
        let (removed, member) = self.membership.removal_and_member(name).await.map_err(membership_status)?;
        match (&node, removed, member) {
            (None, None, Some(_)) => return Err(answers::never_connected(name)),
            (None, None, None) => return Err(answers::unknown(name)),
            _ => {}
        }
        let Some(node) = node else { return Ok(false) };
        let deleted = NodeIdentity::of(&node);
        let removal = self.membership.remove_node(name, Some(&deleted), Timestamp::now());
        let removal = removal.await.map_err(membership_status)?;
        let same = Precondition { uid: Some(node.uid()), version: None };
        self.cluster.delete(&self.node, ("", name), same).await.map_err(cluster_status)?;
        self.wait_for_cleanup(name).await?;
        // A Node that is created from now on readmits the node, even if no replica runs.
        self.membership.complete_removal(name, removal).await.map_err(membership_status)?;
        Ok(true)
    }

    /// Waits until replicas have deleted the Lease of a removed node, which they do after they have
    /// recorded the removal. The wait is bounded: without a running replica, the cluster
    /// garbage-collects the dependents of the Node.
    async fn wait_for_cleanup(&self, name: &NodeName) -> Result<()> {
        let until = tokio::time::Instant::now() + CLEANUP_TIMEOUT;
        while self.lease(name).await?.is_some() && tokio::time::Instant::now() < until {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Admits a removed node again. Returns whether it was removed.
    async fn admit(&self, name: &NodeName) -> Result<bool> {
        self.incarnation().await?;
        let membership = &self.membership;
        if membership.admit_node(name).await.map_err(membership_status)? {
            return Ok(true);
        }
        if self.node(name).await?.is_none()
            && !membership.knows_name(name).await.map_err(membership_status)?
        {
            return Err(answers::unknown(name));
        }
        Ok(false)
    }

    async fn revoke(&self, name: &NodeName) -> Result<RevokedCertificates> {
        let certificates = self.revoke_certificates(name).await?;
        if certificates == 0 && !self.membership.knows_name(name).await.map_err(membership_status)? {
            return Err(answers::unknown(name));
        }
        Ok(answers::certificates(name, certificates))
    }

    /// Revokes a node, removes it and frees its name. Idempotent.
    async fn forget(&self, name: &NodeName) -> Result<RevokedCertificates> {
        let certificates = self.revoke_certificates(name).await?;
        let removed = match self.remove(name).await {
            Ok(removed) => Some(removed),
            Err(status) if status.code == 404 => None,
            Err(status) => return Err(status),
        };
        let known = self.free(name).await?;
        if !known && removed.is_none() && certificates == 0 {
            return Err(answers::unknown(name));
        }
        if removed == Some(true) {
            // Each replica records a removal when it observes it, possibly after this point.
            let mut free_since = tokio::time::Instant::now();
            while free_since.elapsed() < NAME_FREE_TIME {
                tokio::time::sleep(POLL_INTERVAL).await;
                if self.free(name).await? {
                    free_since = tokio::time::Instant::now();
                }
            }
        }
        Ok(answers::certificates(name, certificates))
    }

    /// Frees a name. Returns whether it was in use.
    async fn free(&self, name: &NodeName) -> Result<bool> {
        let admitted = self.membership.admit_node(name).await.map_err(membership_status)?;
        let forgotten = self.membership.forget_name(name, now()).await.map_err(membership_status)?;
        Ok(forgotten || admitted)
    }

    /// Confirms the held-back removals of a node, as many as its Node reports. Returns the number.
    async fn confirm_deletions(&self, name: &NodeName) -> Result<u64> {
        let incarnation = self.incarnation().await?;
        for _ in 0..ATTEMPTS {
            let node = self.node(name).await?.ok_or_else(|| answers::unknown(name))?;
            let Some(held) = nodes::held_back(&node) else {
                let message = format!(
                    "held-back removals of node '{name}' unknown: it is not connected; confirm them when it is back"
                );
                return Err(Status::new(Reason::Conflict, message));
            };
            if held == 0 {
                return Ok(0);
            }
            let text = format!("{incarnation}/{held}");
            let patch = json!({"metadata": {"annotations": {DELETIONS_CONFIRMED_ANNOTATION: text}}});
            // The precondition limits the confirmation to the removals that were counted.
            let same = Precondition { uid: Some(node.uid()), version: Some(node.resource_version()) };
            match self.cluster.merge(&self.node, ("", name), same, patch).await {
                Ok(_) => return Ok(held),
                Err(Failure::Conflict(_)) => {}
                Err(failure) => return Err(cluster_status(failure)),
            }
        }
        let message = format!("annotate Node '{name}': too many conflicting writes; try again");
        Err(Status::unavailable(message, RETRY_SECONDS))
    }

    /// Sets or removes an annotation of the Node of a node.
    ///
    /// # Errors
    /// There is no such node, or the cluster refuses.
    pub async fn annotate(&self, name: &str, key: &str, value: Option<&str>) -> Result<()> {
        let name = node_name(name)?;
        let node = self.node(&name).await?.ok_or_else(|| answers::unknown(&name))?;
        let patch = json!({"metadata": {"annotations": {key: value}}});
        let same = Precondition { uid: Some(node.uid()), version: None };
        self.cluster.merge(&self.node, ("", &name), same, patch).await.map_err(cluster_status)?;
        Ok(())
    }

    /// Returns the Node of a node, if it exists.
    async fn node(&self, name: &NodeName) -> Result<Option<Object>> {
        let found = self.cluster.get(&self.node, "", name).await.map_err(cluster_status)?;
        if found.as_ref().is_some_and(|node| !mark::is_marked(node)) {
            let message = format!("Node '{name}' has no label {}: not managed by edgesync", mark::selector());
            return Err(Status::new(Reason::Conflict, message));
        }
        Ok(found)
    }

    async fn lease(&self, name: &NodeName) -> Result<Option<Object>> {
        let found = self.cluster.get(&self.lease, LEASES, name).await.map_err(cluster_status)?;
        Ok(found.filter(mark::is_marked))
    }

    /// Returns the incarnation that replicas use. Its absence means that no replica has run in this
    /// namespace.
    async fn incarnation(&self) -> Result<Arc<str>> {
        let found = recorded_incarnation(&self.cluster, &self.namespace).await.map_err(cluster_status)?;
        found.ok_or_else(|| {
            let message = format!(
                "no replica of edgesync-cloud has run in namespace '{}' of {:?}; hint: name another namespace with -n, or \
                 another cluster",
                self.namespace, self.cluster
            );
            Status::new(Reason::NotFound, message)
        })
    }

    /// Connects to the keys, for what needs a signature: nothing else reads them.
    async fn enrollment(&self) -> Result<Enrollment> {
        let opened = Enrollment::connect(Arc::new(self.cluster.clone()), &self.namespace).await;
        opened.map_err(|error| {
            let reason = match error.downcast_ref::<Failure>() {
                Some(Failure::Forbidden(_)) => Reason::Forbidden,
                Some(Failure::Unserved(_)) => Reason::ServiceUnavailable,
                _ => Reason::NotFound,
            };
            Status::new(reason, format!("{error:#}"))
        })
    }
}

/// Maps a failure of the cluster to an API status.
fn cluster_status(failure: Failure) -> Status {
    match failure {
        Failure::Forbidden(why) => Status::new(Reason::Forbidden, why),
        Failure::Invalid(why) => Status::bad_request(why),
        Failure::NotFound(_) => Status::new(Reason::NotFound, failure.to_string()),
        Failure::Conflict(_) | Failure::Unserved(_) => {
            Status::unavailable(failure.to_string(), RETRY_SECONDS)
        }
    }
}

/// Maps an error of the membership store to an API status.
fn membership_status(error: MembershipError) -> Status {
    match error {
        MembershipError::Cluster(failure) => cluster_status(failure),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests;
