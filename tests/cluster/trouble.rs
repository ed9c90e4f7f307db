//! Failures of a cluster as seen by a node: cut and expired watches, an overloaded server, kinds
//! that are deleted and recreated. Nothing is lost, nothing is sent twice, and an unreadable object
//! is never removed from a node.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::fault_proxy::{FaultProxy, ProxyMode};
use crate::cluster::kubernetes::Kubernetes;
use crate::cluster::setup::{
    ANYTHING, EVERYWHERE, PATIENCE, Setup, arrived, confirm_deletions, define, replica_by,
};
use edgesync_testkit::proxy::{Mode, Proxy, Way};
use edgesync_testkit::site::{Agent, Site, eventually, held, steadily};

/// Maximum requests per second of a replica with two nodes to an overloaded server: about one for
/// each watch that it retries in turn.
const MOST: f64 = 12.0;

/// Returns whether the cluster refuses a watch of ConfigMaps from this version as expired.
async fn is_too_old(kubernetes: &Kubernetes, version: &str) -> bool {
    let path =
        format!("/api/v1/namespaces/shop/configmaps?watch=1&timeoutSeconds=1&resourceVersion={version}");
    kubernetes.client.text(&path).await.unwrap().contains("\"code\":410")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn cut_and_expired_watches_lose_and_repeat_nothing() {
    // Without a watch cache the server asks etcd, which compacts.
    let setup = Setup::start_with(&["--watch-cache=false"]).await;
    setup.apply(EVERYWHERE);
    for number in 0..20 {
        setup.put(&format!("c{number}"), "old").await;
    }
    let line = Proxy::start(setup.kubernetes.address);
    let kubeconfig = setup.kubernetes.admin_by("replica", &format!("https://{}", line.address()));
    let home = Site::new();
    let mut cloud = replica_by(&home, &kubeconfig);
    cloud.run().await;
    let agent = Agent::start(&setup.site, "edge-1", cloud.mqtt).await;
    setup.holds(&agent, "cm").await;

    // Repeated cuts in the middle of a watch.
    line.cut_series((0..6).map(|number| (Way::Down, 3000 + 1000 * number)));
    for round in 0..6 {
        for number in 0..20 {
            setup.put(&format!("c{number}"), &format!("r{round}")).await;
        }
    }
    setup.holds(&agent, "cm").await;
    let (objects, applied) = arrived(&agent).await;
    assert_eq!(objects, applied, "something was sent that was held already");

    // Offline while changes happen that expire from history.
    let newest = setup.admin.run(&["get", "cm/c19", "-n", "shop", "-o", "json"]).json();
    let newest = newest["metadata"]["resourceVersion"].as_str().unwrap();
    line.cut_series([]);
    line.set(Mode::Refuse);
    line.cut();
    for name in ["c0", "c1", "c2", "new"] {
        setup.put(name, "after").await;
    }
    setup.admin.run(&["delete", "cm/c3", "cm/c4", "-n", "shop"]).ok();
    setup.kubernetes.compact().await;
    assert!(is_too_old(&setup.kubernetes, newest).await, "etcd still knows {newest}");
    line.set(Mode::Pass);
    setup.holds(&agent, "cm").await;
    agent.until("in sync", |status| status.sync.in_sync).await;
    assert_eq!(arrived(&agent).await.0 - objects, 4, "what has changed, and nothing else");
    setup.records_everything(&["edge-1"], "cm").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn overloaded_server_gets_few_requests_and_loses_nothing() {
    let setup = Setup::start().await;
    setup.apply(EVERYWHERE);
    for number in 0..20 {
        setup.put(&format!("c{number}"), "old").await;
    }
    let proxy = FaultProxy::start(&setup.kubernetes).await;
    let kubeconfig = setup.kubernetes.admin_by("replica", &format!("http://{}", proxy.address));
    let home = Site::new();
    let mut cloud = replica_by(&home, &kubeconfig);
    cloud.run().await;
    let agent = Agent::start(&setup.site, "edge-1", cloud.mqtt).await;
    setup.holds(&agent, "cm").await;
    setup.records_everything(&["edge-1"], "cm").await;
    let before = held(&agent.client()).await;
    let sent = arrived(&agent).await.0;

    proxy.set(ProxyMode::Busy);
    proxy.take_requests();
    let since = Instant::now();
    for name in ["c0", "c1", "new"] {
        setup.put(name, "while it is busy").await;
    }
    setup.admin.run(&["delete", "cm/c3", "-n", "shop"]).ok();
    // A node that connects meanwhile is accepted, and an existing one keeps its objects.
    let new = Agent::start(&setup.site, "edge-2", cloud.mqtt).await;
    new.until("connected", |status| status.link.is_connected()).await;
    steadily("the node keeps what it holds", Duration::from_secs(12), async || {
        held(&agent.client()).await == before && agent.is_connected().await
    })
    .await;
    let (requests, seconds) = (proxy.take_requests(), since.elapsed().as_secs_f64());
    #[allow(clippy::cast_precision_loss)] // a small number
    let rate = requests.len() as f64 / seconds;
    println!("{rate:.1} requests a second");
    assert!(rate <= MOST, "{rate:.1} requests a second: {requests:#?}");

    proxy.set(ProxyMode::Late(Duration::from_secs(2)));
    setup.all_hold([&agent, &new], "cm").await;
    assert_eq!(arrived(&agent).await.0 - sent, 3, "what has changed, and nothing else");
    proxy.set(ProxyMode::Pass);
    setup.records_everything(&["edge-1", "edge-2"], "cm").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn deleted_kind_removes_no_other_objects_from_nodes() {
    let setup = Setup::start().await;
    let lamp = "{apiVersion: example.com/v1, kind: Lamp, metadata: {name: hall, namespace: shop}, spec: {color: red}}";
    define(&setup.admin, "Lamp", ANYTHING);
    setup.apply(&EVERYWHERE.replace("secrets", "lamps.example.com"));
    setup.apply(lamp);
    for number in 0..20 {
        setup.put(&format!("c{number}"), "old").await;
    }
    let home = Site::new();
    let mut cloud = setup.replica(&home);
    cloud.run().await;
    let there = Agent::start(&setup.site, "edge-1", cloud.mqtt).await;
    let mut away = Agent::start(&setup.site, "edge-2", cloud.mqtt).await;
    let lamps = async |agent: &Agent| {
        let list = agent.client().get::<Value>("/apis/example.com/v1/lamps").await.unwrap();
        let uid = |item: &Value| item["metadata"]["uid"].as_str().unwrap().to_owned();
        list["items"].as_array().unwrap().iter().map(uid).collect::<Vec<_>>()
    };
    let uid = || {
        let lamp = setup.admin.run(&["get", "lamp/hall", "-n", "shop", "-o", "json"]).json();
        vec![lamp["metadata"]["uid"].as_str().unwrap().to_owned()]
    };
    let first = uid();
    for agent in [&there, &away] {
        setup.holds(agent, "cm").await;
        eventually("it holds the lamp", PATIENCE, async || (lamps(agent).await == first).then_some(())).await;
    }
    setup.accepted("Accepted").await;
    away.stop().await;

    setup.admin.run(&["delete", "crd/lamps.example.com"]).ok();
    let why = setup.accepted("KindUnknown").await;
    assert!(why.contains("lamps.example.com") && why.contains("kind not served"), "{why}");
    // Other kinds sync.
    setup.put("c0", "while there are no lamps").await;
    setup.admin.run(&["delete", "cm/c1", "-n", "shop"]).ok();
    away.run().await;
    setup.all_hold([&there, &away], "cm").await;
    // The node keeps its objects of an unreadable kind.
    away.until("in sync", |status| status.sync.in_sync).await;
    assert_eq!(lamps(&away).await, first);

    define(&setup.admin, "Lamp", ANYTHING);
    setup.apply(lamp);
    setup.accepted("Accepted").await;
    let second = uid();
    assert_ne!(first, second);
    for agent in [&there, &away] {
        eventually("it holds the new lamp alone", PATIENCE, async || {
            (lamps(agent).await == second).then_some(())
        })
        .await;
    }
    setup.all_hold([&there, &away], "cm").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn restored_cluster_with_raised_versions_removes_nothing() {
    let mut setup = Setup::start().await;
    setup.apply(EVERYWHERE);
    setup.put("kept", "old").await;
    setup.kubernetes.copy_or_restore().await;
    let home = Site::new();
    let mut cloud = setup.replica(&home);
    cloud.run().await;
    let agent = Agent::start(&setup.site, "edge-1", cloud.mqtt).await;
    for number in 0..60 {
        setup.put(&format!("c{number}"), "fast").await;
    }
    setup.holds(&agent, "cm").await;
    agent.until("in sync", |status| status.sync.in_sync).await;

    setup.kubernetes.restore_raised().await;
    eventually("removals are held back", PATIENCE, async || {
        (cloud.node("edge-1").await?.held_back() == Some(60)).then_some(())
    })
    .await;
    assert_eq!(held(&agent.client()).await.len(), 61);
    confirm_deletions(&cloud, "edge-1").await;
    setup.holds(&agent, "cm").await;
}
