//! Work for the nodes that are connected to this replica: sessions, Leases, Nodes, ObjectSyncs and
//! uploads.

use std::sync::Arc;
use std::time::Duration;

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
use edgesync_enrollment::now;
use edgesync_fleet::config::{Config, ObjectSyncs};
use edgesync_fleet::source::{LeaseRenewal, NodeChange, Result, UploadBatch, UploadOutcome};
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

    /// Removes a node: records the removal if it is a member or `is_requested`, and deletes its
    /// objects. Returns whether anything was removed.
    ///
    /// # Errors
    /// The removal could not be recorded, or an object not deleted.
    pub(super) async fn remove(&self, node: &NodeName, is_requested: bool) -> Result<bool> {
        // Stops all writes for the node before its removal.
        self.serving.end(node);
        self.syncs.forget(node);
        let is_new = match is_requested {
            true => self.members.remove_node(node, now()).await?,
            false => self.members.remove_deleted_node(node, now()).await?,
        };
        let existed = self.nodes.remove(node).await?;
        Ok(is_new || existed)
    }

    /// Returns whether a node is removed from the fleet.
    pub(super) fn is_removed(&self, node: &NodeName) -> bool {
        self.members.membership(node).is_some_and(|membership| membership.removed.is_some())
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
