//! Object source and node store of a fleet in a Kubernetes cluster, shared by any number of
//! replicas.
//!
//! # Layout
//! - changes from the cluster, through the cache: `intake`;
//! - writes: `leases`, `nodes`, `uploads`, `syncs` with `records`, `rules`; all pass the rate limit
//!   of `requests` and touch only objects with the label in `mark`;
//! - assignment of nodes to replicas: `serving`; leader election and the leader's work: `leader`,
//!   `sweep`; detection of a restored cluster: `incarnation`.

mod incarnation;
mod intake;
mod leader;
mod leases;
pub(crate) mod mark;
mod nodes;
mod records;
mod requests;
mod rules;
mod serving;
mod sweep;
mod syncs;
#[cfg(test)]
mod testing;
mod uploads;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::cache::Cache;
use crate::cluster::{Cause, Cluster, Feed, Interest, Origin, Problem, Throttle};
use edgesync_enrollment::membership::MembershipStore;
use edgesync_enrollment::now;
use edgesync_fleet::config::Config;
use edgesync_fleet::config::{Kubernetes as Options, ObjectSyncs};
use edgesync_fleet::metrics::ClusterNumbers;
pub use edgesync_fleet::source::{
    LeaseRenewal, NodeChange, NodeFacts, NodeStore, ObjectSource, Registered, Replication, Result,
    RuleProblem, RuleStatus, Source, SourceError, Standing, UploadBatch, UploadOutcome,
};
use edgesync_object::{NodeName, OmittedFields, Resource, Target};
use edgesync_placement::{DELETIONS_CONFIRMED_ANNOTATION, KindMatch};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{Issued, Loaded, Record, RecordBatch};
use edgesync_protocol::digest::Epoch;
use edgesync_schema::Schema;
use incarnation::Incarnation;
pub(crate) use incarnation::recorded as recorded_incarnation;
use intake::{Intake, Problems};
use leader::Leader;
use leases::Leases;
pub(crate) use leases::NAMESPACE as LEASES;
use nodes::Nodes;
use records::Records;
use requests::Requests;
use rules::Rules;
use serving::Serving;
use sweep::Sweep;
use syncs::Syncs;
use uploads::{Shown, Uploads};

/// Maximum number of queued ObjectSyncs, at about 200 bytes each.
const MAX_SYNCS: usize = 200_000;
/// Interval between checks of the cluster's incarnation.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Time limit for flushing queued ObjectSyncs on shutdown, and for releasing the leader's Lease.
const LAST_SYNCS: Duration = Duration::from_secs(5);

/// A Kubernetes cluster as [`Source`] of a fleet. Cheap to clone.
#[derive(Clone)]
pub struct Kubernetes(Arc<Shared>);

struct Shared {
    cluster: Cluster,
    cache: Cache,
    register: MembershipStore,
    interests: Vec<Interest>,
    problems: Problems,
    object_syncs: ObjectSyncs,
    requests: Requests,
    incarnation: Incarnation,
    leases: Leases,
    nodes: Nodes,
    uploads: Uploads,
    syncs: Syncs,
    serving: Serving,
    rules: Rules,
    leader: Leader,
    /// Set to true when this replica shuts down.
    stopping: watch::Sender<bool>,
    /// Background tasks; aborted on drop.
    tasks: Mutex<JoinSet<()>>,
}

impl Kubernetes {
    /// Opens the shared state and starts the background writers. Reads no objects before
    /// [`Source::follow`].
    ///
    /// # Errors
    /// The API server is unavailable or denies access.
    pub async fn open(
        config: &Config,
        cluster: Cluster,
        cache: Cache,
        register: MembershipStore,
        replica: &str,
    ) -> Result<Self> {
        let options = &config.kubernetes;
        let requests = Requests::new(cluster.clone(), Throttle::new(options.qps, options.burst));
        let incarnation = Incarnation::open(requests.clone(), &options.namespace).await?;
        let leases = Leases::new(requests.clone(), replica);
        let records = Records::new(&requests);
        let members = register.clone();
        let given = Arc::new(move |node: &NodeName| match members.membership(node) {
            Some(membership) if membership.removed.is_some() => None,
            membership => Some(membership.map(|member| (*member.labels).clone()).unwrap_or_default()),
        });
        let nodes = Nodes::new(requests.clone(), leases.clone(), records.clone(), given);
        let syncs = Syncs::new(&requests, records.clone(), &leases, MAX_SYNCS);
        let shown = Shown { records, syncs: syncs.clone() };
        let shown = Some(shown).filter(|_| options.objectsyncs == ObjectSyncs::All);
        let shared = Shared {
            interests: interests(config),
            problems: Problems::default(),
            object_syncs: options.objectsyncs,
            uploads: Uploads::new(requests.clone(), leases.clone(), nodes.clone(), shown),
            serving: Serving::new(leases.clone(), syncs.clone()),
            rules: Rules::new(&requests),
            leader: Leader::new(requests.clone(), &options.namespace, replica),
            stopping: watch::channel(false).0,
            tasks: Mutex::default(),
            cluster,
            cache,
            register,
            requests,
            incarnation,
            leases,
            nodes,
            syncs,
        };
        let source = Self(Arc::new(shared));
        source.start();
        Ok(source)
    }

    /// Waits until this replica gains or loses leadership; returns whether it leads now.
    pub async fn leads_otherwise(&self) -> bool {
        self.0.leader.changed(self.0.leader.is_leader()).await
    }

    /// Returns whether this replica is the leader.
    pub fn is_leader(&self) -> bool {
        self.0.leader.is_leader()
    }

    fn start(&self) {
        let Shared { syncs, leader, incarnation, stopping, .. } = &*self.0;
        let mut tasks = self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let syncs = syncs.clone();
        tasks.spawn(async move { syncs.run().await });
        let (lead, mut stopped) = (leader.clone(), stopping.subscribe());
        tasks.spawn(async move {
            let stopped = async {
                // A closed channel also means stop.
                let _ = stopped.wait_for(|stopping| *stopping).await;
            };
            lead.run(stopped).await;
        });
        let incarnation = incarnation.clone();
        tasks.spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                if let Err(error) = incarnation.look().await {
                    tracing::debug!(%error, "which life of the cluster it is cannot be looked at");
                }
            }
        });
        let (leader, requests, leases, nodes) =
            (leader.clone(), self.0.requests.clone(), self.0.leases.clone(), self.0.nodes.clone());
        tasks.spawn(async move {
            loop {
                while !leader.changed(leader.is_leader()).await {}
                sweep_while(&leader, Sweep::new(&requests, &leases, nodes.clone())).await;
            }
        });
    }

    fn members(&self) -> &MembershipStore {
        &self.0.register
    }

    fn problems_of(&self, rule: &Uid) -> Vec<Problem> {
        let problems = self.0.problems.lock().unwrap_or_else(PoisonError::into_inner);
        let is_its = |problem: &&Problem| matches!(&problem.origin, Origin::Rule(uid) if uid == rule);
        problems.iter().filter(is_its).cloned().collect()
    }
}

/// Checks the Leases of all nodes while this replica leads.
async fn sweep_while(leader: &Leader, mut sweep: Sweep) {
    while leader.is_leader() {
        match sweep.look().await {
            Ok(0) => {}
            Ok(silent) => tracing::warn!(silent, "nodes have stopped renewing their Leases"),
            Err(error) => tracing::debug!(%error, "the Leases of nodes cannot be looked at"),
        }
        tokio::time::sleep(sweep::EVERY).await;
    }
}

/// Returns the interests that the configuration and the fleet itself give.
fn interests(config: &Config) -> Vec<Interest> {
    let Options { labelled, annotated, pods, .. } = &config.kubernetes;
    let mut interests: Vec<Interest> = Interest::fleet(mark::selector().parse().unwrap_or_default()).into();
    let rules = config.placement.rules.iter().enumerate();
    interests
        .extend(rules.map(|(number, rule)| Interest::rule(Origin::Configured(number), rule.objects.clone())));
    if !labelled.is_empty() {
        interests.push(Interest::labelled(labelled.clone()));
    }
    if !annotated.is_empty() {
        interests.push(Interest::annotated(annotated.clone()));
    }
    for namespace in pods {
        interests.push(Interest::pods(namespace.clone()));
        for target in [Target::ConfigMap, Target::Secret] {
            interests.push(Interest::referred(target, namespace.clone()));
        }
    }
    interests
}

/// Maps a problem of a rule to a problem in its status.
fn rule_problem(problem: &Problem) -> RuleProblem {
    let (reason, hides) = match &problem.cause {
        Cause::Unserved => ("KindUnknown", false),
        Cause::Refused(_) => ("Forbidden", true),
        Cause::TooMany => ("TooManyWatches", true),
        Cause::Unasked | Cause::Broken(_) => ("Unreadable", true),
    };
    RuleProblem { reason, message: format!("{}: {}", problem.kind, problem.cause), hides }
}

impl ObjectSource for Kubernetes {
    type Changes = Intake;

    fn follow(&self) -> Intake {
        let Shared { cluster, cache, interests, problems, incarnation, syncs, register, .. } = &*self.0;
        let feed = Feed::new(cluster.clone(), interests.clone());
        let beside = intake::Beside {
            incarnation: incarnation.clone(),
            syncs: syncs.clone(),
            register: register.clone(),
            changes: self.members().changes(),
        };
        Intake::new(feed, cache.clone(), Arc::clone(problems), beside)
    }

    async fn bodies(&self, uids: Vec<Uid>, left_out: OmittedFields) -> Result<Vec<Loaded>> {
        Ok(self.0.cache.bodies(uids, left_out).await?)
    }

    fn schema(&self, _: &Resource) -> Option<Arc<Schema>> {
        // The API server validates writes.
        None
    }

    fn rule_problems(&self, rule: &Uid, _: &[KindMatch]) -> Vec<RuleProblem> {
        // Several watch scopes of a kind have the same problem.
        let told: BTreeMap<String, RuleProblem> = self
            .problems_of(rule)
            .iter()
            .map(rule_problem)
            .map(|problem| (problem.message.clone(), problem))
            .collect();
        told.into_values().collect()
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
        self.0.incarnation.begin_another(&reached).await
    }

    fn issued(&self) -> Arc<Issued> {
        // Each answer to a catch-up carries the version that the cluster has reached.
        Arc::default()
    }
}

impl NodeStore for Kubernetes {
    async fn registered(&self) -> Result<Registered> {
        let removed = self.members().removed().await?;
        Ok(Registered { removed, ..Registered::default() })
    }

    async fn nodes(&self) -> Result<Vec<(NodeName, NodeFacts)>> {
        Ok(Vec::new())
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
        if self.0.object_syncs == ObjectSyncs::All {
            self.0.serving.change(node, batch.put, batch.remove);
        }
        Ok(Vec::new())
    }

    async fn renew_leases(&self, renewals: Vec<LeaseRenewal>) -> Result<()> {
        self.0.leases.renew(renewals).await
    }

    async fn change_nodes(&self, changes: Vec<NodeChange>) -> Result<()> {
        self.0.nodes.change(changes).await
    }

    async fn remove_node(&self, node: &NodeName, asked: bool) -> Result<bool> {
        // Stops all writes for the node before its removal.
        self.0.serving.end(node);
        self.0.syncs.forget(node);
        let is_member = asked || self.members().knows_name(node).await?;
        let known = is_member && self.members().remove_node(node, now()).await?;
        let there = self.0.nodes.remove(node).await?;
        Ok(known || there)
    }

    async fn admit_node(&self, node: &NodeName) -> Result<bool> {
        Ok(self.members().admit_node(node).await?)
    }

    async fn ingest(&self, batch: UploadBatch) -> Result<UploadOutcome> {
        self.0.serving.claimed(&batch.node).await?;
        self.0.uploads.take(batch).await
    }

    async fn expire_events(&self, _: Duration, _: usize) -> Result<u64> {
        // The API server expires Events itself.
        Ok(0)
    }

    async fn standings(&self) -> Result<HashMap<NodeName, Standing>> {
        // Nodes report what is in effect at each connection, to any replica.
        Ok(HashMap::new())
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
        self.0.object_syncs
    }

    fn set_syncs(&self, node: &NodeName, held: Vec<(Uid, Record)>) {
        self.0.serving.replace(node, held);
    }

    fn set_served(&self, node: &NodeName, served: bool) {
        if served {
            return self.0.serving.begin(node);
        }
        self.0.serving.end(node);
        self.0.uploads.forget(node);
        self.0.leases.forget(node);
    }

    fn set_epoch(&self, node: &NodeName, epoch: Epoch) {
        self.0.syncs.follow(node, epoch);
    }

    fn is_removed(&self, node: &NodeName) -> bool {
        self.0.register.membership(node).is_some_and(|membership| membership.removed.is_some())
    }

    async fn confirm_deletions(&self, node: &NodeName, incarnation: &str, count: Option<u64>) -> Result<()> {
        let text = count.map(|count| format!("{incarnation}/{count}"));
        let edited = self.0.nodes.annotate(node, DELETIONS_CONFIRMED_ANNOTATION, text.as_deref()).await;
        edited.map(drop).map_err(|error| error.into_source(node))
    }

    fn numbers(&self) -> ClusterNumbers {
        let used = self.0.requests.used();
        ClusterNumbers {
            urgent_requests: used.urgent,
            background_requests: used.background,
            waiting_requests: used.waiting as u64,
            waiting_syncs: self.0.syncs.waiting() as u64,
            is_leader: self.is_leader(),
        }
    }

    async fn finish(&self) {
        let settled = tokio::time::timeout(LAST_SYNCS, self.0.syncs.settled()).await;
        if settled.is_err() {
            tracing::warn!(left = self.0.syncs.waiting(), "not all ObjectSyncs could be written");
        }
        self.0.stopping.send_replace(true);
        let leads = self.0.leader.clone();
        // Releases the Lease, so that a successor need not wait for it to expire.
        let given_back = async { while leads.is_leader() && leads.changed(true).await {} };
        let _ = tokio::time::timeout(LAST_SYNCS, given_back).await;
        self.0.cache.close().await;
    }
}
