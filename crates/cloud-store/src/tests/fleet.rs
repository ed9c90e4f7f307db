//! Nodes as objects: created and changed by reports and conditions, removed, and listed at startup.

use super::leases::{lease, renewal};
use super::*;
use edgesync_object::node_labels::NODE_LABELS_ANNOTATION;
use edgesync_protocol::node::{Condition, ConditionStatus, NodeReport, READY};

fn report(name: &str) -> NodeReport {
    serde_json::from_value(json!({"labels": {"kubernetes.io/hostname": name},
        "status": {"nodeInfo": {"architecture": "arm64"}}}))
    .unwrap()
}

fn says(node: &str) -> NodeChange {
    NodeChange { node: node_name(node), report: Some(report(node)), conditions: Vec::new() }
}

fn ready(node: &str, status: ConditionStatus) -> NodeChange {
    let reason = "Because".to_owned();
    let condition = Condition { condition: READY.into(), status, reason, ..Condition::default() };
    NodeChange { node: node_name(node), report: None, conditions: vec![condition] }
}

async fn node(store: &CloudStore, name: &str) -> Result<Object, CloudError> {
    store.get(kind("nodes").key("", name)).await.map(|stored| object(&stored))
}

fn config_map_on(name: &str) -> RecordBatch {
    RecordBatch { put: vec![records::put(name, 1)], ..RecordBatch::default() }
}

#[tokio::test]
async fn a_report_makes_a_node_and_the_feed_tells_its_labels() {
    let Fixture { store, .. } = &fixture();
    let (_, mut feed) = follow(store).await;
    store.change_nodes(vec![says("edge-1"), ready("edge-1", ConditionStatus::True)]).await.unwrap();
    let made = node(store, "edge-1").await.unwrap();
    assert_eq!(made.validate(&kind("nodes")), Ok(()));
    assert_eq!(made.fields()["status"]["conditions"][0]["status"], "True");
    let FeedItem::Change(change) = feed.next().await else { panic!() };
    assert_eq!(
        (change.kind, &change.object.labels["kubernetes.io/hostname"][..]),
        (ChangeKind::Added, "edge-1")
    );
    let start = store.version();
    store.change_nodes(vec![says("edge-1"), ready("edge-1", ConditionStatus::True)]).await.unwrap();
    assert_eq!(store.version(), start, "what changes nothing costs no version");
    store.change_nodes(vec![ready("edge-1", ConditionStatus::Unknown)]).await.unwrap();
    let [change] = &history(store, start).await.unwrap()[..] else { panic!() };
    assert_eq!((change.kind, change.version), (ChangeKind::Modified, start + 1));
    assert_eq!(node(store, "edge-1").await.unwrap().generation(), 1);
}

#[tokio::test]
async fn a_change_that_cannot_be_spoils_no_other() {
    let Fixture { store, .. } = &fixture();
    let bad: NodeReport = serde_json::from_value(json!({"status": {"capacity": {"cpu": "a lot"}}})).unwrap();
    let unreadable = NodeChange { report: Some(bad), ..says("b") };
    store.change_nodes(vec![unreadable, says("c")]).await.unwrap();
    assert_eq!(store.registered().await.unwrap().nodes, ["c"]);
    assert!(matches!(node(store, "b").await, Err(CloudError::NotFound { .. })));
}

#[tokio::test]
async fn only_nodes_that_have_reported_are_registered() {
    let Fixture { store, .. } = &fixture();
    let applied = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "planned",
        "annotations": {"a/b": "c"}}});
    store.create(&kind("nodes"), serde_json::from_value(applied).unwrap()).await.unwrap();
    store.change_nodes(vec![ready("silent", ConditionStatus::Unknown), says("here")]).await.unwrap();
    assert_eq!(store.registered().await.unwrap().nodes, ["here"]);
    let silent = node(store, "silent").await.unwrap();
    assert_eq!(silent.labels()["kubernetes.io/hostname"], "silent");
    store.change_nodes(vec![says("planned"), ready("silent", ConditionStatus::True)]).await.unwrap();
    assert_eq!(store.registered().await.unwrap().nodes, ["here", "planned"]);
    let planned = node(store, "planned").await.unwrap();
    assert_eq!(planned.annotations()["a/b"], "c");
    assert!(planned.annotations().contains_key(NODE_LABELS_ANNOTATION));
}

#[tokio::test]
async fn late_writes_do_not_restore_a_removed_node() {
    let fixture = fixture();
    let store = &fixture.store;
    store.change_nodes(vec![says("a"), says("b")]).await.unwrap();
    store.renew_leases(vec![renewal("a", 0), renewal("b", 0)]).await.unwrap();
    store.record(&node_name("a"), None, config_map_on("u1")).await.unwrap();
    let (_, mut feed) = follow(store).await;
    assert!(remove_node(store, "a").await.unwrap());
    let FeedItem::Change(change) = feed.next().await else { panic!() };
    assert_eq!((change.kind, &*change.object.name), (ChangeKind::Deleted, "a"));
    // Renewals and changes in flight at the removal.
    store.renew_leases(vec![renewal("a", 10), renewal("b", 10)]).await.unwrap();
    store.change_nodes(vec![says("a"), ready("a", ConditionStatus::Unknown)]).await.unwrap();
    assert_eq!(store.nodes().await.unwrap(), []);
    assert!(matches!(lease(store, "a").await, Err(CloudError::NotFound { .. })));
    assert!(matches!(node(store, "a").await, Err(CloudError::NotFound { .. })));
    let known = fixture.reopen().await.store.registered().await.unwrap();
    assert_eq!((&known.nodes[..], &known.leases[..]), (&[node_name("b")][..], &[renewal("b", 10)][..]));
    assert_eq!(known.removed.len(), 1);
    let (name, at) = &known.removed[0];
    assert_eq!((&**name, &*at.to_string()), ("a", REMOVED));
}

#[tokio::test]
async fn a_removal_is_in_the_history_like_any_deletion() {
    let Fixture { store, .. } = &fixture();
    store.change_nodes(vec![says("a")]).await.unwrap();
    store.renew_leases(vec![renewal("a", 0)]).await.unwrap();
    store.record(&node_name("a"), None, config_map_on("u1")).await.unwrap();
    let start = store.version();
    remove_node(store, "a").await.unwrap();
    let changes = history(store, start).await.unwrap();
    let mut seen: Vec<_> =
        changes.iter().map(|change| (change.kind, &*change.of.kind, &*change.name)).collect();
    seen.sort_by_key(|(_, kind, _)| kind.to_owned());
    let deleted = ChangeKind::Deleted;
    assert_eq!(seen, [(deleted, "Lease", "a"), (deleted, "Node", "a"), (deleted, "ObjectSync", "a.u1")]);
}

#[tokio::test]
async fn absent_node_can_be_removed() {
    let Fixture { store, .. } = &fixture();
    store.change_nodes(vec![says("a")]).await.unwrap();
    store.renew_leases(vec![renewal("a", 0)]).await.unwrap();
    store.delete(&kind("nodes"), "", "a", None).await.unwrap();
    assert!(remove_node(store, "a").await.unwrap());
    let first = store.registered().await.unwrap().removed;
    assert!(!remove_node(store, "a").await.unwrap());
    assert_eq!(store.registered().await.unwrap().removed, first);
    assert!(remove_node(store, "never").await.unwrap());
    assert_eq!(store.registered().await.unwrap().removed.len(), 2);
}

#[tokio::test]
async fn an_admitted_node_comes_back_as_a_new_one() {
    let Fixture { store, .. } = &fixture();
    store.change_nodes(vec![says("a")]).await.unwrap();
    let before = node(store, "a").await.unwrap();
    remove_node(store, "a").await.unwrap();
    assert!(admit_node(store, "a").await.unwrap());
    assert!(!admit_node(store, "a").await.unwrap());
    store.change_nodes(vec![says("a")]).await.unwrap();
    store.renew_leases(vec![renewal("a", 0)]).await.unwrap();
    let after = node(store, "a").await.unwrap();
    assert_ne!(after.uid(), before.uid());
    let lease = object(&lease(store, "a").await.unwrap());
    assert_eq!(lease.fields()["metadata"]["ownerReferences"][0]["uid"], after.uid());
}
