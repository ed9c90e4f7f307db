//! Work for the nodes that are connected to this replica: sessions, Leases, Nodes, ObjectSyncs and
//! uploads.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::incarnation::Incarnation;
use super::intake::OtherSources;
use super::lease_expiry::LeaseExpiryCheck;
use super::leases::Leases;
use super::nodes::Nodes;
use super::records::Records;
use super::requests::Requests;
use super::serving::Serving;
use super::syncs::Syncs;
use super::uploads::{EffectRecords, Uploads};
use edgesync_enrollment::membership::MembershipStore;
use edgesync_fleet::config::{Config, ObjectSyncs};
use edgesync_fleet::source::{
    LeaseRenewal, NodeChange, Removal, RemovalCause, Result, UploadBatch, UploadOutcome,
};
use edgesync_object::NodeName;
use edgesync_placement::DELETIONS_CONFIRMED_ANNOTATION;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{Record, RecordBatch};
use edgesync_protocol::digest::Epoch;

/// Maximum number of queued ObjectSyncs, at about 200 bytes each.
const MAX_SYNCS: usize = 200_000;

/// Writes what nodes cause. All writers share one rate limit and the Leases that fence them.
pub(super) struct NodeService {
    members: MembershipStore,
    object_syncs: ObjectSyncs,
    leases: Leases,
    nodes: Nodes,
    uploads: Uploads,
    syncs: Syncs,
    serving: Serving,
}

impl NodeService {
    /// Creates the writers of a replica. Nothing is written before a node connects.
    pub(super) fn new(requests: &Requests, members: MembershipStore, config: &Config, replica: &str) -> Self {
        let options = &config.kubernetes;
        let object_syncs = options.objectsyncs;
        let leases = Leases::new(requests.clone(), replica);
        let records = Records::new(requests);
        let store = members.clone();
        let labels_of_token = Arc::new(move |node: &NodeName| match store.membership(node) {
            Some(membership) if membership.removed.is_some() => None,
            membership => Some(membership.map(|member| (*member.labels).clone()).unwrap_or_default()),
        });
        let networks = options.node_addresses.as_slice().into();
        let nodes = Nodes::new(requests.clone(), leases.clone(), records.clone(), labels_of_token, networks);
        let syncs = Syncs::new(requests, records.clone(), &leases, MAX_SYNCS);
        let effect_records = EffectRecords { records, syncs: syncs.clone() };
        let effect_records = Some(effect_records).filter(|_| object_syncs == ObjectSyncs::All);
        let uploads = Uploads::new(
            requests.clone(),
            leases.clone(),
            nodes.clone(),
            effect_records,
            config.nodes.max_events,
        );
        let serving = Serving::new(leases.clone(), syncs.clone());
        Self { members, object_syncs, leases, nodes, uploads, syncs, serving }
    }

    /// Returns the sources of changes apart from the objects themselves.
    pub(super) fn other_sources(&self, incarnation: &Incarnation) -> OtherSources {
        OtherSources {
            incarnation: incarnation.clone(),
            syncs: self.syncs.clone(),
            members: self.members.clone(),
            changes: self.members.changes(),
        }
    }

    /// Returns a function that creates the check for expired Leases, for each new leader.
    pub(super) fn lease_expiry_checks(
        &self,
        requests: &Requests,
    ) -> impl Fn() -> LeaseExpiryCheck + Send + use<> {
        let (requests, leases, nodes) = (requests.clone(), self.leases.clone(), self.nodes.clone());
        move || LeaseExpiryCheck::new(&requests, &leases, nodes.clone())
    }

    pub(super) fn members(&self) -> &MembershipStore {
        &self.members
    }

    /// Returns which objects have ObjectSyncs.
    pub(super) fn object_syncs(&self) -> ObjectSyncs {
        self.object_syncs
    }

    pub(super) fn syncs(&self) -> &Syncs {
        &self.syncs
    }

    /// Starts the session of a node.
    pub(super) fn begin_session(&self, node: &NodeName) {
        self.serving.begin(node);
    }

    /// Ends the session of a node. Its queued ObjectSyncs are still written.
    pub(super) fn end_session(&self, node: &NodeName) {
        self.serving.end(node);
        self.uploads.forget(node);
        self.leases.forget(node);
    }

    /// Sets the epoch of a node's database. Called before [`Self::set_syncs`].
    pub(super) fn set_epoch(&self, node: &NodeName, epoch: Epoch) {
        self.syncs.set_epoch(node, epoch);
    }

    /// Sets all ObjectSyncs of a node.
    pub(super) fn set_syncs(&self, node: &NodeName, held: Vec<(Uid, Record)>) {
        self.serving.replace(node, held);
    }

    /// Changes some ObjectSyncs of a node, if every object has one.
    pub(super) fn change_syncs(&self, node: &NodeName, batch: RecordBatch) {
        if self.object_syncs == ObjectSyncs::All {
            self.serving.change(node, batch.put, batch.remove);
        }
    }

    /// Renews the Leases of nodes.
    ///
    /// # Errors
    /// See [`Leases::renew`].
    pub(super) async fn renew_leases(&self, renewals: Vec<LeaseRenewal>) -> Result<()> {
        let nodes: Vec<NodeName> = renewals.iter().map(|renewal| renewal.node.clone()).collect();
        let renewed = self.leases.renew(renewals).await;
        self.syncs.regain(nodes.iter().filter(|node| self.leases.has_written(node)));
        renewed
    }

    /// Writes changes of Nodes.
    ///
    /// # Errors
    /// See [`Nodes::change`].
    pub(super) async fn change_nodes(&self, changes: Vec<NodeChange>) -> Result<()> {
        self.nodes.change(changes).await
    }

    /// Applies an upload of a node.
    ///
    /// # Errors
    /// The node is not served here; see [`Uploads::ingest`].
    pub(super) async fn ingest(&self, batch: UploadBatch) -> Result<UploadOutcome> {
        let node = batch.node.clone();
        self.serving.in_session(&node, self.uploads.ingest(batch)).await
    }

    /// Forgets Events of nodes last written more than `ttl` ago: the API server has deleted them.
    pub(super) fn expire_events(&self, ttl: Duration) {
        self.uploads.expire_events(ttl);
    }

    /// Removes a node: records the removal unless another process has done so, and deletes its
    /// objects. Each replica does that, after its own writes for the node: one that is late
    /// deletes nothing of a node that has returned.
    ///
    /// # Errors
    /// The removal could not be recorded, or an object not deleted.
    pub(super) async fn remove(&self, node: &NodeName, cause: RemovalCause) -> Result<Removal> {
        // Stops all writes for the node before its removal.
        self.serving.end(node);
        self.syncs.forget(node);
        let removal = match cause {
            RemovalCause::Requested => Some(self.members.remove_node(node, None, Timestamp::now()).await?),
            RemovalCause::NodeDeleted(deleted) => {
                let now = Timestamp::now();
                if !self.members.remove_deleted_node(node, deleted.as_ref(), now).await? {
                    return Ok(Removal::Returned);
                }
                // A name that is not known has no record.
                self.recorded(node).await?
            }
            RemovalCause::Recorded => {
                let Some(removal) = self.recorded(node).await? else { return Ok(Removal::Returned) };
                Some(removal)
            }
        };
        let deleted = self.nodes.identity(node).await?;
        // The Node of a node that has returned is newer than its readmission. Other replicas see
        // this deletion, too.
        if let Some(deleted) = &deleted
            && removal.is_some()
            && !self.members.add_removed_node(node, deleted).await?
        {
            return Ok(Removal::Returned);
        }
        self.nodes.remove(node, deleted.as_ref().map(|deleted| &*deleted.uid)).await?;
        if let Some(removal) = removal {
            self.members.complete_removal(node, removal).await?;
        }
        Ok(Removal::Removed(removal))
    }

    /// Reads the recorded removal of a node.
    async fn recorded(&self, node: &NodeName) -> Result<Option<Timestamp>> {
        Ok(self.members.removal_and_member(node).await?.0)
    }

    /// Returns the known removal of a node from the fleet.
    pub(super) fn removal(&self, node: &NodeName) -> Option<Timestamp> {
        self.members.membership(node)?.removed
    }

    /// Records the confirmation of held-back removals at the Node; `None` withdraws it.
    ///
    /// # Errors
    /// The Node could not be written.
    pub(super) async fn confirm_deletions(
        &self,
        node: &NodeName,
        incarnation: &str,
        count: Option<u64>,
    ) -> Result<()> {
        let text = count.map(|count| format!("{incarnation}/{count}"));
        let edited = self.nodes.annotate(node, DELETIONS_CONFIRMED_ANNOTATION, text.as_deref()).await;
        edited.map(drop).map_err(|error| error.into_source(node))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Rig;
    use super::*;
    use crate::node_name;
    use edgesync_enrollment::membership::NodeIdentity;

    /// Creates a Node and deletes it.
    async fn deleted(rig: &Rig) -> RemovalCause {
        let node = rig.create_node("edge-1").await;
        rig.delete(&node).await;
        RemovalCause::NodeDeleted(Some(NodeIdentity::of(&node)))
    }

    #[tokio::test]
    async fn late_removal_takes_no_returned_node_back() {
        let (rig, node) = (Rig::start().await, node_name("edge-1"));
        let (a, b) = (rig.node_service("a"), rig.node_service("b"));
        let removed = async |replica: &NodeService, cause| {
            matches!(replica.remove(&node, cause).await.unwrap(), Removal::Removed(Some(_)))
        };
        let removed_node = rig.create_node("edge-1").await;
        assert!(removed(&a, RemovalCause::Requested).await);
        assert_eq!(rig.node("edge-1").await, None);
        assert!(b.recorded(&node).await.unwrap().is_some());
        assert!(removed(&b, RemovalCause::Recorded).await);
        assert!(a.members().admit_node(&node).await.unwrap());
        // Replicas see late that it was removed, and that its Node was deleted.
        assert!(!removed(&b, RemovalCause::Recorded).await);
        let late = RemovalCause::NodeDeleted(Some(NodeIdentity::of(&removed_node)));
        assert!(!removed(&b, late).await);

        let cause = deleted(&rig).await;
        assert!(removed(&a, cause.clone()).await);
        assert!(removed(&b, cause.clone()).await);
        assert!(a.members().admit_node(&node).await.unwrap());
        let returned = rig.create_node("edge-1").await;
        assert!(!removed(&b, cause).await);
        assert_eq!(rig.node("edge-1").await.unwrap().uid(), returned.uid());
        assert_eq!(b.recorded(&node).await.unwrap(), None);
    }

    /// A client replaces a Node, and the node is removed and readmitted, before a replica sees the
    /// first deletion.
    #[tokio::test]
    async fn late_deletion_of_a_replaced_node_removes_nothing() {
        let (rig, node) = (Rig::start().await, node_name("edge-1"));
        let (a, b) = (rig.node_service("a"), rig.node_service("b"));
        let replaced = deleted(&rig).await;
        rig.create_node("edge-1").await;
        assert!(matches!(a.remove(&node, RemovalCause::Requested).await.unwrap(), Removal::Removed(_)));
        assert!(a.members().admit_node(&node).await.unwrap());
        assert_eq!(b.remove(&node, replaced).await.unwrap(), Removal::Returned);
        assert_eq!(b.recorded(&node).await.unwrap(), None);
        // The deletion of a Node that was created since removes the node.
        let cause = deleted(&rig).await;
        assert!(matches!(b.remove(&node, cause).await.unwrap(), Removal::Removed(Some(_))));
    }

    #[tokio::test]
    async fn removal_deletes_the_node_that_exists_by_then() {
        let (rig, node) = (Rig::start().await, node_name("edge-1"));
        let replica = rig.node_service("a");
        rig.create_node("edge-1").await;
        replica.remove(&node, RemovalCause::Requested).await.unwrap();
        replica.members().admit_node(&node).await.unwrap();
        let cause = deleted(&rig).await;
        // A write in flight has created it again.
        let again = rig.create_node("edge-1").await;
        let removal = replica.recorded(&node).await.unwrap();
        assert_eq!(removal, None);
        assert!(matches!(replica.remove(&node, cause).await.unwrap(), Removal::Removed(Some(_))));
        assert_eq!(rig.node("edge-1").await, None);
        assert!(replica.recorded(&node).await.unwrap().is_some());
        replica.members().admit_node(&node).await.unwrap();
        let late = RemovalCause::NodeDeleted(Some(NodeIdentity::of(&again)));
        assert_eq!(rig.node_service("b").remove(&node, late).await.unwrap(), Removal::Returned);
    }

    #[tokio::test]
    async fn removal_is_unfinished_until_its_objects_are_deleted() {
        let (rig, node) = (Rig::start().await, node_name("edge-1"));
        let replica = rig.node_service("a");
        let unfinished = async || replica.members().unfinished_removals().await.unwrap();
        rig.create_node("edge-1").await;
        // Another replica has ended after it had recorded the removal.
        let recorded = replica.members().remove_node(&node, None, Timestamp::now()).await.unwrap();
        assert_eq!(unfinished().await, std::slice::from_ref(&node));
        let removal = replica.remove(&node, RemovalCause::Recorded).await.unwrap();
        assert_eq!(removal, Removal::Removed(Some(recorded)));
        assert_eq!((unfinished().await, rig.node("edge-1").await), (Vec::new(), None));
        // A readmission of this removal undoes no later one.
        assert!(replica.members().admit_from(&node, Some(recorded)).await.unwrap());
        let Removal::Removed(Some(again)) = replica.remove(&node, RemovalCause::Requested).await.unwrap()
        else {
            panic!("must be removed")
        };
        assert_ne!(again, recorded);
        assert!(!replica.members().admit_from(&node, Some(recorded)).await.unwrap());
        assert_eq!(replica.recorded(&node).await.unwrap(), Some(again));
    }
}
