//! Object source and node store of a fleet in a Kubernetes cluster, shared by any number of
//! replicas.
//!
//! # Layout
//! - changes from the cluster, through the cache: `intake`;
//! - writes: `leases`, `nodes`, `uploads`, `syncs` with `records`, `rules`, `events`; all pass the
//!   rate limit of `requests` and touch only objects with the label in `mark`;
//! - roll-outs: their statuses in `rules`, the bodies of revisions in `revisions`;
//! - assignment of nodes to replicas: `serving`; leader election and the leader's work: `leader`,
//!   `sweep`; detection of a restored cluster: `incarnation`.

mod background;
mod events;
mod incarnation;
mod intake;
mod leader;
mod lease_expiry;
mod leases;
pub(crate) mod mark;
mod node_service;
mod nodes;
mod reader;
mod records;
mod requests;
mod revisions;
mod rules;
mod serving;
mod syncs;
#[cfg(test)]
mod testing;
mod uploads;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::cache::Cache;
use crate::cluster::{Cluster, RateLimiter};
use background::Background;
use edgesync_enrollment::membership::MembershipStore;
use edgesync_fleet::config::{Config, ObjectSyncs};
use edgesync_fleet::metrics::ClusterNumbers;
pub use edgesync_fleet::source::{
    Admission, LeaseRenewal, NodeChange, NodeStore, ObjectSource, Registered, Removal, RemovalCause,
    Replication, Result, RevisionKey, RolloutStore, RolloutWrite, RuleProblem, RuleStatus, Source,
    SourceError, Sweep, UploadBatch, UploadOutcome,
};
use edgesync_object::{NodeName, Object, OmittedFields, ResourceVersion};
use edgesync_placement::KindMatch;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{Issued, Loaded, Record, RecordBatch};
use edgesync_protocol::digest::Epoch;
use edgesync_rollout::Set;
use incarnation::Incarnation;
pub(crate) use incarnation::recorded as recorded_incarnation;
use intake::Intake;
use leader::Leader;
pub(crate) use leases::NAMESPACE as LEASES;
use node_service::NodeService;
use reader::Reader;
use requests::Requests;
use revisions::Revisions;
use rules::Rules;

/// Time limit for flushing queued ObjectSyncs on shutdown, and for releasing the leader's Lease.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// A Kubernetes cluster as [`Source`] of a fleet. Cheap to clone.
#[derive(Clone)]
pub struct Kubernetes(Arc<Shared>);

struct Shared {
    requests: Requests,
    reader: Reader,
    nodes: NodeService,
    rules: Rules,
    revisions: Revisions,
    incarnation: Incarnation,
    background: Background,
}

impl Kubernetes {
    /// Opens the shared state and starts the background writers. Reads no objects before
    /// [`ObjectSource::follow`].
    ///
    /// # Errors
    /// The API server is unavailable or denies access.
    pub async fn open(
        config: &Config,
        cluster: Cluster,
        cache: Cache,
        members: MembershipStore,
        replica: &str,
    ) -> Result<Self> {
        let options = &config.kubernetes;
        let requests = Requests::new(cluster.clone(), RateLimiter::new(options.qps, options.burst));
        let incarnation = Incarnation::open(requests.clone(), &options.namespace).await?;
        let leader = Leader::new(requests.clone(), &options.namespace, replica);
        let shared = Arc::new(Shared {
            reader: Reader::new(config, cluster, cache),
            nodes: NodeService::new(&requests, members, config, replica),
            rules: Rules::new(&requests),
            revisions: Revisions::new(&requests, &options.namespace),
            background: Background::new(leader),
            requests,
            incarnation,
        });
        let Shared { nodes, background, incarnation, .. } = &*shared;
        background.start(
            nodes.syncs().clone(),
            incarnation.clone(),
            nodes.lease_expiry_checks(&shared.requests),
        );
        Ok(Self(shared))
    }

    /// Waits until this replica gains or loses leadership; returns whether it leads now.
    pub async fn leadership_changed(&self) -> bool {
        self.0.background.leadership_changed().await
    }

    /// Returns whether this replica is the leader.
    pub fn is_leader(&self) -> bool {
        self.0.background.is_leader()
    }
}

impl ObjectSource for Kubernetes {
    type Changes = Intake;

    fn follow(&self) -> Intake {
        self.0.reader.follow(self.0.nodes.other_sources(&self.0.incarnation))
    }

    async fn bodies(&self, uids: Vec<Uid>, left_out: OmittedFields) -> Result<Vec<Loaded>> {
        self.0.reader.bodies(uids, left_out).await
    }

    async fn bases(
        &self,
        wanted: Vec<(Uid, ResourceVersion)>,
        left_out: OmittedFields,
    ) -> Result<Vec<(Uid, ResourceVersion, String)>> {
        self.0.reader.bases(wanted, left_out).await
    }

    fn rule_problems(&self, rule: &Uid, _: &[KindMatch]) -> Vec<RuleProblem> {
        self.0.reader.rule_problems(rule)
    }

    async fn set_rule_status(&self, status: RuleStatus) -> Result<()> {
        // All replicas compute nearly the same status, so only the leader writes it.
        if !self.is_leader() {
            return Ok(());
        }
        self.0.rules.set_status(status).await
    }

    fn incarnation(&self) -> Arc<str> {
        self.0.incarnation.id()
    }

    async fn new_incarnation(&self) -> Result<Arc<str>> {
        let reached = self.0.requests.reached().await?;
        self.0.incarnation.begin_new(&reached).await
    }

    fn issued(&self) -> Arc<Issued> {
        // Each answer to a catch-up carries the version that the cluster has reached.
        Arc::default()
    }
}

impl NodeStore for Kubernetes {
    async fn registered(&self) -> Result<Registered> {
        let members = self.0.nodes.members();
        // One that is recorded in between is observed, and is not among the removed ones.
        let removed = members.removed().await?;
        let removing = members.unfinished_removals().await?;
        Ok(Registered { removed, removing, ..Registered::default() })
    }

    async fn records(&self, _: &NodeName) -> Result<Vec<(Uid, Record)>> {
        Ok(Vec::new())
    }

    async fn record(
        &self,
        node: &NodeName,
        _: Option<String>,
        batch: RecordBatch,
    ) -> Result<Vec<(Uid, String)>> {
        self.0.nodes.change_syncs(node, batch);
        Ok(Vec::new())
    }

    async fn renew_leases(&self, renewals: Vec<LeaseRenewal>) -> Result<()> {
        self.0.nodes.renew_leases(renewals).await
    }

    async fn change_nodes(&self, changes: Vec<NodeChange>) -> Result<()> {
        self.0.nodes.change_nodes(changes).await
    }

    async fn remove_node(&self, node: &NodeName, cause: RemovalCause) -> Result<Removal> {
        self.0.nodes.remove(node, cause).await
    }

    async fn admit_node(&self, node: &NodeName, removal: Option<Timestamp>) -> Result<Admission> {
        Ok(match self.0.nodes.members().admit_from(node, removal).await? {
            true => Admission::Admitted,
            false => Admission::RemovedAgain,
        })
    }

    async fn ingest(&self, batch: UploadBatch) -> Result<UploadOutcome> {
        self.0.nodes.ingest(batch).await
    }

    async fn emit_event(&self, event: Object) -> Result<()> {
        events::emit(&self.0.requests, event).await
    }

    async fn expire_events(&self, ttl: Duration, _: usize) -> Result<u64> {
        // The API server deletes them itself.
        self.0.nodes.expire_events(ttl);
        Ok(0)
    }
}

impl RolloutStore for Kubernetes {
    fn leads_rollouts(&self) -> bool {
        self.is_leader()
    }

    async fn rollout_statuses(&self) -> Result<Vec<(String, String)>> {
        // The configuration of replicas has no rules with a roll-out.
        Ok(Vec::new())
    }

    async fn write_rollout(&self, write: RolloutWrite) -> Result<bool> {
        self.0.rules.write_rollout(write).await
    }

    async fn store_revision(&self, key: RevisionKey, set: Arc<Set>, bodies: Vec<Loaded>) -> Result<()> {
        self.0.revisions.store(key, set, bodies).await
    }

    async fn revision(&self, key: RevisionKey) -> Result<Option<Arc<Set>>> {
        self.0.revisions.set(&key).await
    }

    async fn revision_bodies(&self, key: RevisionKey, uids: Vec<Uid>) -> Result<Vec<Loaded>> {
        self.0.revisions.bodies(&key, uids).await
    }

    async fn sweep_revisions(&self, sweep: Sweep) -> Result<()> {
        if !self.is_leader() {
            return Ok(());
        }
        self.0.revisions.sweep(&sweep, Timestamp::now()).await
    }
}

impl Source for Kubernetes {
    type Replication = Self;

    fn replication(&self) -> Option<&Self> {
        Some(self)
    }
}

impl Replication for Kubernetes {
    fn object_syncs(&self) -> ObjectSyncs {
        self.0.nodes.object_syncs()
    }

    fn set_syncs(&self, node: &NodeName, held: Vec<(Uid, Record)>) {
        self.0.nodes.set_syncs(node, held);
    }

    fn set_served(&self, node: &NodeName, served: bool) {
        if served {
            self.0.nodes.begin_session(node);
        } else {
            self.0.nodes.end_session(node);
        }
    }

    fn set_epoch(&self, node: &NodeName, epoch: Epoch) {
        self.0.nodes.set_epoch(node, epoch);
    }

    fn removal(&self, node: &NodeName) -> Option<Timestamp> {
        self.0.nodes.removal(node)
    }

    async fn confirm_deletions(&self, node: &NodeName, incarnation: &str, count: Option<u64>) -> Result<()> {
        self.0.nodes.confirm_deletions(node, incarnation, count).await
    }

    fn numbers(&self) -> ClusterNumbers {
        let used = self.0.requests.used();
        ClusterNumbers {
            urgent_requests: used.urgent,
            background_requests: used.background,
            waiting_requests: used.waiting as u64,
            waiting_syncs: self.0.nodes.syncs().queued() as u64,
            is_leader: self.is_leader(),
        }
    }

    async fn finish(&self) {
        let Shared { nodes, background, reader, .. } = &*self.0;
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, nodes.syncs().settled()).await.is_err() {
            tracing::warn!(left = nodes.syncs().queued(), "stopping with unwritten ObjectSyncs");
        }
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, background.resign()).await;
        reader.close().await;
    }
}
