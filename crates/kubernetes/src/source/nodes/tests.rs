use crate::node_name;
use serde_json::json;

use super::super::testing::{RECORDS, Rig, at, labels, renewal};
use super::*;
use edgesync_object::ObjectRef;
use edgesync_protocol::cloud::Record;
use edgesync_protocol::node::{Condition, ConditionStatus, NodeReport, READY};

fn report(memory: &str) -> NodeReport {
    let status =
        json!({"capacity": {"memory": memory, "pods": "110"}, "nodeInfo": {"architecture": "arm64"}});
    let Value::Object(status) = status else { panic!("{status}") };
    NodeReport { labels: labels(&[("arch", "arm"), ("site", "mine")]), status, ..NodeReport::default() }
}

fn reported(node: &str, memory: &str) -> NodeChange {
    NodeChange { node: node_name(node), report: Some(report(memory)), conditions: Vec::new() }
}

fn condition(node: &str, name: &str, status: ConditionStatus) -> NodeChange {
    let condition =
        Condition { condition: name.into(), status, reason: "Tested".into(), ..Condition::default() };
    NodeChange { node: node_name(node), report: None, conditions: vec![condition] }
}

/// Removes a node with the Node that it has.
async fn remove(nodes: &Nodes, name: &str) -> bool {
    let name = node_name(name);
    let uid = nodes.identity(&name).await.unwrap().map(|node| node.uid);
    nodes.remove(&name, uid.as_deref()).await.unwrap()
}

/// Clusters add their own taints to Nodes that are not ready.
fn is_tainted(node: &Object) -> bool {
    let taints = at(node, "/spec/taints").as_array().cloned().unwrap_or_default();
    taints.contains(&json!({"key": "edgesync.io/edge", "effect": "NoSchedule"}))
}

#[tokio::test]
async fn a_new_node_is_ours_and_takes_no_pods() {
    let rig = Rig::start().await;
    let nodes = rig.replica("a").nodes;
    nodes
        .change(vec![condition("edge-1", READY, ConditionStatus::True), reported("edge-1", "1Gi")])
        .await
        .unwrap();
    let node = rig.node("edge-1").await.unwrap();
    let expected = [
        ("arch", "arm"),
        ("edgesync.io/edge", "true"),
        ("kubernetes.io/hostname", "edge-1"),
        ("node-role.kubernetes.io/edge", ""),
        ("node.kubernetes.io/exclude-from-external-load-balancers", ""),
        ("site", "a"),
    ];
    assert_eq!(node.labels(), labels(&expected), "the token counts more than the node");
    assert!(is_tainted(&node), "{node:?}");
    assert_eq!(at(&node, "/status/capacity"), &json!({"memory": "1Gi", "pods": "0"}));
    assert_eq!(at(&node, "/status/allocatable/pods"), "0");
    assert_eq!(at(&node, "/status/conditions/0/status"), "True");

    // An unchanged report writes nothing.
    nodes.change(vec![reported("edge-1", "1Gi")]).await.unwrap();
    assert_eq!(rig.node("edge-1").await.unwrap().resource_version(), node.resource_version());
    // Fields set by others stay.
    rig.patch(&node, json!({"metadata": {"labels": {"arch": "theirs"}}, "spec": {"unschedulable": true}}))
        .await;
    nodes.change(vec![reported("edge-1", "2Gi")]).await.unwrap();
    let node = rig.node("edge-1").await.unwrap();
    assert_eq!(at(&node, "/status/capacity"), &json!({"memory": "2Gi", "pods": "0"}));
    assert_eq!((&*node.labels()["arch"], at(&node, "/spec/unschedulable")), ("theirs", &json!(true)));
    assert_eq!(at(&node, "/status/conditions/0/status"), "True");
}

#[test]
fn hostname_label_is_the_name_of_the_node_not_the_tokens() {
    let member = labels(&[("kubernetes.io/hostname", "evil"), ("site", "a")]);
    let node = changed(None, &reported("edge-1", "1Gi"), member, &[], Timestamp::now());
    let shown = node.labels();
    assert_eq!((&*shown["kubernetes.io/hostname"], &*shown["site"]), ("edge-1", "a"));
}

#[tokio::test]
async fn the_node_of_a_kubelet_is_refused_and_unchanged() {
    let rig = Rig::start().await;
    let nodes = rig.replica("a").nodes;
    let kubelets =
        rig.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker"}})).await;
    let error = nodes.report(&reported("worker", "1Gi")).await.unwrap_err();
    assert!(matches!(&error, NodeError::Foreign(name) if name == "worker"), "{error}");
    assert!(error.to_string().contains("kubectl label node worker edgesync.io/edge=true"), "{error}");
    let changes = vec![condition("worker", READY, ConditionStatus::Unknown), reported("edge-1", "1Gi")];
    nodes.change(changes).await.unwrap();
    assert!(rig.node("edge-1").await.is_some(), "it holds no other up");
    assert!(!remove(&nodes, "worker").await);
    assert!(!nodes.edit(&node_name("worker"), |node| node.set_metadata("labels", json!({}))).await.unwrap());
    assert_eq!(rig.node("worker").await, Some(kubelets.clone()));

    // The label that the error suggests.
    rig.patch(&kubelets, json!({"metadata": {"labels": {"edgesync.io/edge": "true"}}})).await;
    nodes.report(&reported("worker", "1Gi")).await.unwrap();
    let node = rig.node("worker").await.unwrap();
    assert_eq!((node.uid(), is_tainted(&node)), (kubelets.uid(), true));
}

#[tokio::test]
async fn concurrent_changes_of_replicas_are_all_kept() {
    let rig = Rig::start().await;
    let (a, b) = (rig.replica("a").nodes, rig.replica("b").nodes);
    let name = |n: u32| format!("edgesync.io/Test{n}");
    let changes = |start: u32| async move {
        (start..start + 5).map(|n| condition("edge-1", &name(n), ConditionStatus::True)).collect::<Vec<_>>()
    };
    let (first, second) = (changes(0).await, changes(5).await);
    let (one, other) = tokio::join!(a.change(first), b.change(second));
    one.unwrap();
    other.unwrap();
    let node = rig.node("edge-1").await.unwrap();
    let conditions = at(&node, "/status/conditions").as_array().unwrap().clone();
    assert_eq!(conditions.len(), 10, "{conditions:?}");
}

#[tokio::test]
async fn a_fenced_replica_writes_no_report() {
    let rig = Rig::start().await;
    let (a, b) = (rig.replica("a"), rig.replica("b"));
    a.nodes.change(vec![reported("edge-1", "1Gi")]).await.unwrap();
    a.leases.renew(vec![renewal("edge-1", 1)]).await.unwrap();
    a.nodes.report(&reported("edge-1", "2Gi")).await.unwrap();
    b.leases.claim(&node_name("edge-1")).await.unwrap();
    b.nodes.report(&reported("edge-1", "3Gi")).await.unwrap();
    let error = a.nodes.report(&reported("edge-1", "2Gi")).await.unwrap_err();
    assert!(matches!(error, NodeError::Failed(_)), "{error}");
    assert_eq!(at(&rig.node("edge-1").await.unwrap(), "/status/capacity/memory"), "3Gi");
}

#[tokio::test]
async fn removal_of_a_node_deletes_all_of_its_objects() {
    let rig = Rig::start().await;
    rig.define_records().await;
    let a = rig.replica("a");
    rig.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker"}})).await;
    rig.create_node("entered").await;
    a.nodes
        .change(vec![reported("edge-1", "1Gi"), reported("edge-2", "1Gi"), reported("removed", "1Gi")])
        .await
        .unwrap();
    assert_eq!(rig.node("removed").await, None);
    a.leases.renew(vec![renewal("edge-1", 1), renewal("edge-2", 1)]).await.unwrap();
    let object =
        ObjectRef { api_version: "v1".into(), kind: "Node".into(), namespace: "".into(), name: "n".into() };
    let record = Record { version: 7.into(), object: Arc::new(object) };
    for node in ["edge-1", "edge-2"] {
        a.syncs.replace(&node_name(node), vec![("u-1".into(), record.clone())]);
    }
    tokio::select! {
        () = a.syncs.run() => {}
        () = a.syncs.settled() => {}
    }
    rig.delete(&rig.node("edge-2").await.unwrap()).await;
    let b = rig.replica("b");

    assert!(remove(&b.nodes, "edge-1").await);
    assert!(!remove(&b.nodes, "edge-1").await);
    assert_eq!((rig.node("edge-1").await, rig.lease("edge-1").await), (None, None));
    let sync = |node: &str| format!("{node}.u-1");
    assert_eq!(rig.get(RECORDS, "ClusterObjectSync", "", &sync("edge-1")).await, None);
    assert!(rig.get(RECORDS, "ClusterObjectSync", "", &sync("edge-2")).await.is_some());
    assert!(remove(&b.nodes, "edge-2").await, "there is no Node of it, but the rest");
    assert_eq!(rig.get(RECORDS, "ClusterObjectSync", "", &sync("edge-2")).await, None);
}
