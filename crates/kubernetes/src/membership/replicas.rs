//! Tests of several replicas of the cloud side on one cluster.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::served::{NAMESPACE, Served};
use super::*;
use edgesync_enrollment::{Enrollment, EnrollmentOptions, EnrollmentRole, EnrollmentService, now};
use edgesync_testkit::timing::{assert_within, is_within, within};
use edgesync_transport::tls::Key;

const HOUR: Duration = Duration::from_secs(3600);
/// Time limit for a revocation to take effect on all replicas.
pub(super) const SOON: Duration = Duration::from_secs(2);

/// A replica that follows changes of others.
pub(super) struct Replica {
    pub(super) service: EnrollmentService,
    _tasks: JoinSet<()>,
}

pub(super) fn options(served: &Served, name: &str) -> EnrollmentOptions {
    EnrollmentOptions {
        directory: served.path(name),
        names: vec!["cloud.example".into()],
        broker: "mqtts://:8883".into(),
        brokers: Vec::new(),
        prefix: "edgesync/v1".into(),
        lifetime: HOUR,
        grace: HOUR,
        external: false,
        role: EnrollmentRole::Whole,
    }
}

pub(super) async fn open(served: &Served, name: &str) -> Replica {
    Replica::of(EnrollmentService::open(options(served, name), served.members().await).await.unwrap())
}

impl Replica {
    pub(super) fn of(service: EnrollmentService) -> Self {
        let running = service.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { running.run(None).await });
        Self { service, _tasks: tasks }
    }

    async fn join(
        &self,
        token: &str,
        node: &str,
    ) -> edgesync_object::status::Result<edgesync_transport::tls::Certificate> {
        let (_, bearer) = token.split_once('.').unwrap();
        let request = Key::generate().unwrap().node_request(node).unwrap();
        self.service.join(bearer, &node_name(node), &request).await
    }

    /// Returns the next nodes to disconnect; fails after [`SOON`].
    async fn disconnected(&self) -> Vec<NodeName> {
        within("a node is cut", SOON, self.service.nodes_to_disconnect()).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_use_token_admits_one_device_at_three_replicas() {
    let served = Served::start().await;
    let replicas = [open(&served, "1").await, open(&served, "2").await, open(&served, "3").await];
    let token = replicas[0].service.enrollment().create_token(None, HOUR, 1, Labels::new()).await.unwrap();
    let mut joining = JoinSet::new();
    for number in 0..20 {
        let (service, token) = (replicas[number % 3].service.clone(), token.token.clone());
        joining.spawn(async move {
            let node = format!("node-{number}");
            let (_, bearer) = token.split_once('.').unwrap();
            let request = Key::generate().unwrap().node_request(&node).unwrap();
            let joined = service.join(bearer, &node_name(&node), &request).await;
            joined.map(|certificate| certificate.serial().to_owned())
        });
    }
    let (mut let_in, mut refusals) = (Vec::new(), Vec::new());
    while let Some(joined) = joining.join_next().await {
        match joined.unwrap() {
            Ok(serial) => let_in.push(serial),
            Err(status) => refusals.push((status.code, status.message)),
        }
    }
    assert_eq!((let_in.len(), refusals.len()), (1, 19), "{refusals:?}");
    assert!(
        refusals.iter().all(|(code, words)| *code == 401 && words.contains("token used up")),
        "{refusals:?}"
    );
    let enrollment = Enrollment::connect(Arc::new(served.cluster().await), NAMESPACE).await.unwrap();
    let mut recorded = 0;
    for number in 0..20 {
        let node = format!("node-{number}");
        recorded += enrollment.store().revoke_certificates(&node_name(&node), now()).await.unwrap();
    }
    assert_eq!(recorded, 1);
    assert_eq!(enrollment.store().revocations().await.unwrap().serials[0].0, let_in[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_reaches_other_replicas_within_two_seconds() {
    let served = Served::start().await;
    let (one, other) = (open(&served, "1").await, open(&served, "2").await);
    let token = one
        .service
        .enrollment()
        .create_token(Some(&node_name("a")), HOUR, 1, Labels::new())
        .await
        .unwrap()
        .token;
    let certificate = one.join(&token, "a").await.unwrap();
    let empty = other.service.revocation_list().unwrap();
    let begun = Instant::now();
    assert_eq!(one.service.revoke_node(&node_name("a")).await.unwrap(), 1);
    assert_eq!(other.disconnected().await, ["a"]);
    assert_within(begun.elapsed(), SOON);
    assert!(other.service.is_revoked(&node_name("a")));
    let list = other.service.revocation_list().unwrap();
    assert_ne!(list, empty);
    // The file for brokers is written when the list takes effect.
    let file = served.path("2").join("revoked.crl");
    while std::fs::read_to_string(&file).unwrap() != list {
        assert!(is_within(begun.elapsed(), SOON), "{} has an older list", file.display());
        tokio::task::yield_now().await;
    }
    let request = Key::generate().unwrap().node_request("a").unwrap();
    let renewed = other.service.renew(&certificate, &node_name("a"), &request).await;
    assert_eq!(renewed.unwrap_err().code, 403);
    assert_eq!(one.disconnected().await, ["a"]);
    // A replica that starts later reads it at startup.
    assert!(open(&served, "3").await.service.is_revoked(&node_name("a")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_rejoined_meanwhile_is_disconnected_too() {
    let served = Served::start().await;
    let (one, other) = (open(&served, "1").await, open(&served, "2").await);
    let create = async || {
        one.service
            .enrollment()
            .create_token(Some(&node_name("a")), HOUR, 1, Labels::new())
            .await
            .unwrap()
            .token
    };
    one.join(&create().await, "a").await.unwrap();
    one.service.revoke_node(&node_name("a")).await.unwrap();
    one.join(&create().await, "a").await.unwrap();
    // The node has a valid certificate, and possibly a connection from before.
    assert_eq!(other.disconnected().await, ["a"]);
    assert!(!one.service.is_revoked(&node_name("a")));
    let end = Instant::now() + SOON;
    while other.service.is_revoked(&node_name("a")) {
        assert!(Instant::now() < end, "it is shut out at the other replica");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_operator_manages_tokens_nodes_and_operators() {
    let served = Served::start().await;
    let replica = open(&served, "1").await;
    let enrollment = Enrollment::connect(Arc::new(served.cluster().await), NAMESPACE).await.unwrap();
    let labels = Labels::from([("site".to_owned(), "north".to_owned())]);
    let new = enrollment.create_token(None, HOUR, 2, labels.clone()).await.unwrap();
    replica.join(&new.token, "a").await.unwrap();
    let listed = enrollment.tokens().await.unwrap();
    assert_eq!(listed, [TokenRecord { used: 1, ..new.record.clone() }]);
    assert_eq!(enrollment.store().member_labels(&node_name("a")).await.unwrap(), Some(labels));
    assert!(enrollment.revoke_token(&new.record.id).await.unwrap());
    assert_eq!(replica.join(&new.token, "b").await.unwrap_err().code, 401);
    assert_eq!(enrollment.store().revoke_certificates(&node_name("a"), now()).await.unwrap(), 1);
    assert_eq!(replica.disconnected().await, ["a"]);
    assert!(enrollment.store().forget_name(&node_name("a"), now()).await.unwrap());

    let identity = enrollment.new_operator("ada", edgesync_api::Role::View, HOUR).await.unwrap();
    let certificate = identity.certificate();
    let table = replica.service.operators();
    let mut told = table.revoked();
    while table.find(certificate).is_none() {
        within("the operator is known", SOON, told.changed()).await.unwrap();
    }
    assert_eq!(enrollment.store().revoke_operators("ada", now()).await.unwrap(), 1);
    while table.find(certificate).is_some() {
        within("the operator is refused", SOON, told.changed()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_fail_and_revocations_stay_during_an_outage() {
    let mut served = Served::start().await;
    let replica = open(&served, "1").await;
    let token = async |node| {
        replica
            .service
            .enrollment()
            .create_token(Some(&node_name(node)), HOUR, 1, Labels::new())
            .await
            .unwrap()
            .token
    };
    let (a, b) = (token("a").await, token("b").await);
    replica.join(&a, "a").await.unwrap();
    replica.service.revoke_node(&node_name("a")).await.unwrap();
    served.stop().await;
    let refused = replica.join(&b, "b").await.unwrap_err();
    assert_eq!(refused.code, 503);
    assert!(refused.message.contains("connect to API server"), "{}", refused.message);
    assert!(replica.service.is_revoked(&node_name("a")));
    served.run().await;
    replica.join(&b, "b").await.unwrap();
}
