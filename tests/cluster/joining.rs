//! Joining at several replicas of the cloud side, with tokens, certificates and keys in the
//! cluster.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use edgesync_enrollment::membership::MembershipStore;
use edgesync_enrollment::{Enrollment, EnrollmentOptions, EnrollmentRole, EnrollmentService, now};
use edgesync_kubernetes::cluster::Cluster;
use edgesync_object::{Labels, NodeName, Status};
use edgesync_transport::proxy::ProxyRules;
use edgesync_transport::tls::{Certificate, Key};
use serde_json::json;
use tokio::task::JoinSet;

use crate::cluster::kubernetes::Kubernetes;
use edgesync_testkit::fleet::node_name;
use edgesync_testkit::kubectl::Kubectl;
use edgesync_testkit::site::Site;
use edgesync_testkit::timing::{assert_within, within};

/// The namespace of edgesync, and that of its keys.
const NAMESPACE: &str = "edgesync";
const CA_NAMESPACE: &str = "edgesync-ca";
const HOUR: Duration = Duration::from_secs(3600);
/// Maximum time until a revocation is in force everywhere.
const SOON: Duration = Duration::from_secs(2);
/// Maximum time for a restarted server to serve again.
const PATIENCE: Duration = Duration::from_secs(90);

struct Setup {
    // Dropped before the directory that its processes use.
    kubernetes: Kubernetes,
    admin: Kubectl,
    site: Site,
}

/// A replica that follows the changes of others.
struct Replica {
    service: EnrollmentService,
    _keeping: JoinSet<()>,
}

impl Setup {
    async fn start() -> Self {
        let site = Site::new();
        let kubernetes = Kubernetes::start(&site).await;
        let admin = Kubectl::with_kubeconfig(&site, "admin", &kubernetes.admin);
        Self { kubernetes, admin, site }
    }

    fn create_namespaces(&self) {
        for namespace in [NAMESPACE, CA_NAMESPACE] {
            self.admin.run(&["create", "namespace", namespace]).ok();
        }
    }

    fn directory(&self, name: &str) -> PathBuf {
        self.site.path(name)
    }

    async fn cluster(&self) -> Cluster {
        Cluster::connect(Some(&self.kubernetes.admin), &ProxyRules::default()).await.unwrap()
    }

    async fn enrollment(&self) -> Enrollment {
        Enrollment::connect(std::sync::Arc::new(self.cluster().await), NAMESPACE).await.unwrap()
    }

    async fn open(&self, name: &str) -> anyhow::Result<EnrollmentService> {
        let options = EnrollmentOptions {
            directory: self.directory(name),
            names: vec!["cloud.example".into()],
            broker: "mqtts://:8883".into(),
            brokers: Vec::new(),
            prefix: "edgesync/v1".into(),
            lifetime: HOUR,
            grace: HOUR,
            external: false,
            role: EnrollmentRole::Whole,
        };
        EnrollmentService::open(
            options,
            MembershipStore::of_cluster(std::sync::Arc::new(self.cluster().await), NAMESPACE),
        )
        .await
    }

    async fn replica(&self, name: &str) -> Replica {
        let service = self.open(name).await.unwrap();
        let kept = service.clone();
        let mut keeping = JoinSet::new();
        keeping.spawn(async move { kept.run(None).await });
        Replica { service, _keeping: keeping }
    }
}

async fn join(service: &EnrollmentService, token: &str, node: &str) -> Result<Certificate, Status> {
    let (_, bearer) = token.split_once('.').unwrap();
    let request = Key::generate().unwrap().node_request(node).unwrap();
    service.join(bearer, &node_name(node), &request).await
}

impl Replica {
    async fn token(&self, node: Option<&str>, uses: u32) -> String {
        let node = node.map(node_name);
        let made = self.service.enrollment().create_token(node.as_ref(), HOUR, uses, Labels::new()).await;
        made.unwrap().token
    }

    /// Returns the nodes to disconnect next; fails after this time.
    async fn cut_within(&self, time: Duration) -> Vec<NodeName> {
        within("a node is cut", time, self.service.nodes_to_disconnect()).await
    }

    /// Waits until this node is disconnected, possibly after others.
    async fn until_cut(&self, node: &str, time: Duration) {
        let cut = async { while !self.service.nodes_to_disconnect().await.iter().any(|cut| *cut == node) {} };
        within("the node is cut", time, cut).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn replicas_share_one_ca_and_count_token_uses_together() {
    let setup = Setup::start().await;
    let error = format!("{:#}", setup.open("0").await.unwrap_err());
    assert!(error.contains("kubectl create namespace edgesync-ca"), "{error}");
    setup.create_namespaces();
    let (one, two, three) = tokio::join!(setup.replica("1"), setup.replica("2"), setup.replica("3"));
    let replicas = [one, two, three];
    let trusted: Vec<_> = replicas.iter().map(|replica| replica.service.trust().0[0].fingerprint()).collect();
    assert!(trusted.iter().all(|one| *one == trusted[0]), "{trusted:?}");

    let token = replicas[0].token(None, 1).await;
    let mut joining = JoinSet::new();
    for number in 0..20 {
        let (service, token) = (replicas[number % 3].service.clone(), token.clone());
        joining.spawn(async move { join(&service, &token, &format!("node-{number}")).await.err() });
    }
    let refusals: Vec<Status> = joining.join_all().await.into_iter().flatten().collect();
    assert_eq!(refusals.len(), 19, "{refusals:?}");
    assert!(refusals.iter().all(|status| status.message.contains("token used up")), "{refusals:?}");
    let members = ["get", "secrets", "-n", NAMESPACE, "-l", "edgesync.io/pairing=member", "-o", "name"];
    assert_eq!(setup.admin.run(&members).lines().len(), 1);

    // A token for many uses is contended and counts each use.
    let token = replicas[0].token(None, 30).await;
    let mut joining = JoinSet::new();
    for number in 0..30 {
        let (service, token) = (replicas[number % 3].service.clone(), token.clone());
        joining.spawn(async move { join(&service, &token, &format!("many-{number}")).await.err() });
    }
    let refusals: Vec<Status> = joining.join_all().await.into_iter().flatten().collect();
    assert!(refusals.is_empty(), "{refusals:?}");
    assert_eq!(join(&replicas[1].service, &token, "late").await.unwrap_err().code, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn revocations_reach_all_replicas_across_a_server_crash() {
    let mut setup = Setup::start().await;
    setup.create_namespaces();
    let (one, other) = (setup.replica("1").await, setup.replica("2").await);
    for node in ["a", "b", "c"] {
        join(&one.service, &one.token(Some(node), 1).await, node).await.unwrap();
    }
    let begun = Instant::now();
    one.service.revoke_node(&node_name("a")).await.unwrap();
    assert_eq!(other.cut_within(SOON).await, ["a"]);
    assert!(other.service.is_revoked(&node_name("a")));
    assert_within(begun.elapsed(), SOON);
    // From the command line of an operator, without a replica's port.
    let enrollment = setup.enrollment().await;
    assert_eq!(enrollment.store().revoke_certificates(&node_name("b"), now()).await.unwrap(), 1);
    assert_eq!(other.cut_within(SOON).await, ["b"]);
    one.until_cut("b", SOON).await;

    setup.kubernetes.server.kill();
    assert_eq!(other.service.revoke_node(&node_name("c")).await.unwrap_err().code, 503);
    assert!(one.service.is_revoked(&node_name("a")) && other.service.is_revoked(&node_name("b")));
    setup.kubernetes.run().await;
    assert_eq!(enrollment.store().revoke_certificates(&node_name("c"), now()).await.unwrap(), 1);
    one.until_cut("c", PATIENCE).await;
    other.until_cut("c", PATIENCE).await;
    let late = setup.replica("3").await;
    assert!(["a", "b", "c"].iter().all(|node| late.service.is_revoked(&node_name(node))));
    assert!(enrollment.store().forget_name(&node_name("a"), now()).await.unwrap());
    join(&late.service, &late.token(None, 1).await, "a").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn lost_ca_is_reported_with_working_advice() {
    let setup = Setup::start().await;
    setup.create_namespaces();
    let fingerprint = setup.open("1").await.unwrap().trust().0[0].fingerprint();
    let kept = setup.admin.run(&["get", "secret", "edgesync-ca", "-n", CA_NAMESPACE, "-o", "json"]).json();
    assert_eq!(kept["type"], "kubernetes.io/tls");
    setup.admin.run(&["delete", "secret", "edgesync-ca", "-n", CA_NAMESPACE]).ok();
    let error = format!("{:#}", setup.open("1").await.unwrap_err());
    assert!(error.contains(&fingerprint) && error.contains("create secret tls edgesync-ca"), "{error}");
    let restored = json!({
        "apiVersion": "v1", "kind": "Secret", "type": kept["type"], "data": kept["data"],
        "metadata": {"name": "edgesync-ca", "namespace": CA_NAMESPACE},
    });
    setup.admin.feed(&["create", "-f", "-"], &restored.to_string()).ok();
    assert_eq!(setup.open("1").await.unwrap().trust().0[0].fingerprint(), fingerprint);
    // The alternative advice: start over.
    setup.admin.run(&["delete", "secret", "edgesync-ca", "edgesync-token-key", "-n", CA_NAMESPACE]).ok();
    assert_ne!(setup.open("1").await.unwrap().trust().0[0].fingerprint(), fingerprint);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn revocations_reach_replicas_of_a_restored_cluster() {
    let mut setup = Setup::start().await;
    setup.create_namespaces();
    let replica = setup.replica("1").await;
    for node in ["a", "b", "c"] {
        join(&replica.service, &replica.token(Some(node), 1).await, node).await.unwrap();
    }
    setup.enrollment().await.store().revoke_certificates(&node_name("a"), now()).await.unwrap();
    replica.until_cut("a", SOON).await;
    setup.kubernetes.copy_or_restore().await;
    // So many that a restarted server does not reach their versions on its own.
    let many: String = (0..50)
        .map(|n| format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{ name: m{n} }}\n"))
        .collect();
    setup.admin.feed(&["create", "-f", "-"], &many).ok();
    setup.enrollment().await.store().revoke_certificates(&node_name("b"), now()).await.unwrap();
    replica.until_cut("b", PATIENCE).await;

    setup.kubernetes.copy_or_restore().await;
    assert_eq!(
        setup.enrollment().await.store().revoke_certificates(&node_name("c"), now()).await.unwrap(),
        1
    );
    replica.until_cut("c", PATIENCE).await;
    assert!(replica.service.is_revoked(&node_name("a")));
}
