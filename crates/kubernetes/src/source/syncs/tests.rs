use crate::node_name;
use serde_json::{Value, json};

use super::super::testing::{RECORDS, Replica, Rig, at, pass, renewal};
use super::*;
use edgesync_object::{Object, ObjectRef};

fn record(namespace: &str, name: &str, version: u64) -> Record {
    let kind = if namespace.is_empty() { "Namespace" } else { "ConfigMap" };
    let object = ObjectRef {
        api_version: "v1".into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    Record { version: version.into(), object: Arc::new(object) }
}

async fn write(replica: &Replica) {
    tokio::select! {
        () = replica.syncs.run() => {}
        () = replica.syncs.settled() => {}
    }
}

async fn sync(rig: &Rig, name: &str) -> Option<Object> {
    rig.get(RECORDS, "ObjectSync", "shop", name).await
}

async fn version(rig: &Rig, name: &str) -> Value {
    sync(rig, name).await.map_or(Value::Null, |sync| at(&sync, "/status/objectResourceVersion").clone())
}

#[tokio::test]
async fn records_are_created_updated_and_deleted_except_foreign_ones() {
    let rig = Rig::start().await;
    rig.define_records().await;
    let node = rig.create_node("edge-1").await;
    let foreign = |name: &str| {
        json!({
            "apiVersion": RECORDS, "kind": "ObjectSync", "metadata": {"name": name, "namespace": "shop"},
            "spec": {"objectAPIVersion": "v1", "objectKind": "ConfigMap", "objectName": "x"},
            "status": {"objectResourceVersion": "1"},
        })
    };
    let theirs = [rig.create(foreign("edge-1.u-9")).await, rig.create(foreign("edge-1.u-8")).await];
    let a = rig.replica("a");
    let all = vec![
        ("u-1".into(), record("shop", "one", 10)),
        ("u-2".into(), record("shop", "two", 20)),
        ("u-3".into(), record("", "shop", 30)),
        // KubeEdge has a record of that name.
        ("u-9".into(), record("shop", "nine", 90)),
    ];
    a.syncs.replace(&node_name("edge-1"), all);
    write(&a).await;
    let one = sync(&rig, "edge-1.u-1").await.unwrap();
    let spec = json!({"objectAPIVersion": "v1", "objectKind": "ConfigMap", "objectName": "one"});
    assert_eq!((at(&one, "/spec"), at(&one, "/status/objectResourceVersion")), (&spec, &json!("10")));
    assert_eq!(at(&one, "/metadata/labels"), &json!({"edgesync.io/node": "edge-1"}));
    assert_eq!(at(&one, "/metadata/ownerReferences/0/uid"), node.uid());
    let cluster = rig.get(RECORDS, "ClusterObjectSync", "", "edge-1.u-3").await.unwrap();
    assert_eq!(at(&cluster, "/status/objectResourceVersion"), "30");

    a.syncs.change(
        &node_name("edge-1"),
        vec![("u-1".into(), record("shop", "one", 11))],
        vec!["u-3".into(), "u-8".into()],
    );
    write(&a).await;
    assert_eq!(version(&rig, "edge-1.u-1").await, "11");
    assert_eq!(rig.get(RECORDS, "ClusterObjectSync", "", "edge-1.u-3").await, None);

    // Another replica reads the existing records.
    let b = rig.replica("b");
    let two = sync(&rig, "edge-1.u-2").await.unwrap();
    b.syncs.replace(&node_name("edge-1"), vec![("u-2".into(), record("shop", "two", 20))]);
    write(&b).await;
    assert_eq!(sync(&rig, "edge-1.u-1").await, None);
    assert_eq!(sync(&rig, "edge-1.u-2").await.unwrap(), two, "what it says already is not written");
    for theirs in theirs {
        assert_eq!(sync(&rig, theirs.name()).await, Some(theirs));
    }
}

#[tokio::test]
async fn a_record_follows_a_change_of_kind_or_namespace() {
    let rig = Rig::start().await;
    rig.define_records().await;
    rig.create_node("edge-1").await;
    let a = rig.replica("a");
    a.syncs.replace(&node_name("edge-1"), vec![("u-1".into(), record("shop", "one", 10))]);
    write(&a).await;
    let mut object = ObjectRef::clone(&record("shop", "one", 10).object);
    object.api_version = "example.com/v2".into();
    a.syncs.change(
        &node_name("edge-1"),
        vec![("u-1".into(), Record { version: 12.into(), object: Arc::new(object) })],
        vec![],
    );
    write(&a).await;
    let one = sync(&rig, "edge-1.u-1").await.unwrap();
    assert_eq!(at(&one, "/spec/objectAPIVersion"), "example.com/v2");
    assert_eq!(at(&one, "/status/objectResourceVersion"), "12");
    // A different namespace needs a different record.
    a.syncs.change(&node_name("edge-1"), vec![("u-1".into(), record("lab", "one", 13))], vec![]);
    write(&a).await;
    assert_eq!(sync(&rig, "edge-1.u-1").await, None);
    let moved = rig.get(RECORDS, "ObjectSync", "lab", "edge-1.u-1").await.unwrap();
    assert_eq!(at(&moved, "/status/objectResourceVersion"), "13");
}

#[tokio::test]
async fn a_replica_with_a_dead_connection_overwrites_nothing_newer() {
    let rig = Rig::start().await;
    rig.define_records().await;
    rig.create_node("edge-1").await;
    let (a, b) = (rig.replica("a"), rig.replica("b"));
    a.leases.renew(vec![renewal("edge-1", 1)]).await.unwrap();
    a.syncs.replace(&node_name("edge-1"), vec![("u-1".into(), record("shop", "one", 10))]);
    write(&a).await;
    // Replica `a` still has queued writes when the node moves to replica `b`.
    a.syncs.change(&node_name("edge-1"), vec![("u-1".into(), record("shop", "one", 11))], vec![]);
    b.leases.claim(&node_name("edge-1")).await.unwrap();
    b.syncs.replace(&node_name("edge-1"), vec![("u-1".into(), record("shop", "one", 12))]);
    write(&b).await;
    write(&a).await;
    assert_eq!(version(&rig, "edge-1.u-1").await, "12");
    assert_eq!(a.syncs.queued(), 0, "it has dropped it");

    // A replica that has not read the records yet is fenced as well.
    let c = rig.replica("c");
    c.syncs.replace(&node_name("edge-1"), vec![("u-1".into(), record("shop", "one", 9))]);
    write(&c).await;
    assert_eq!(version(&rig, "edge-1.u-1").await, "12");

    // The node moves back: all of its records are requested.
    a.leases.claim(&node_name("edge-1")).await.unwrap();
    a.syncs.change(&node_name("edge-1"), vec![("u-1".into(), record("shop", "one", 13))], vec![]);
    assert_eq!(&*a.syncs.due().await, "edge-1");
    a.syncs.replace(&node_name("edge-1"), vec![("u-1".into(), record("shop", "one", 14))]);
    write(&a).await;
    assert_eq!(version(&rig, "edge-1.u-1").await, "14");
}

#[tokio::test]
async fn a_check_of_the_lease_long_ago_permits_no_write() {
    let rig = Rig::start().await;
    rig.define_records().await;
    rig.create_node("edge-1").await;
    let (a, b) = (rig.replica("a"), rig.replica("b"));
    a.syncs.replace(&node_name("edge-1"), vec![("u-1".into(), record("shop", "one", 10))]);
    write(&a).await;
    assert_eq!(version(&rig, "edge-1.u-1").await, "10", "there is no Lease yet");
    b.leases.renew(vec![renewal("edge-1", 1)]).await.unwrap();
    a.syncs.change(&node_name("edge-1"), vec![("u-1".into(), record("shop", "one", 11))], vec![]);
    write(&a).await;
    assert_eq!(version(&rig, "edge-1.u-1").await, "10");
    assert_eq!(a.syncs.queued(), 0, "it has dropped it");
}

#[tokio::test]
async fn a_concurrent_change_of_a_record_is_corrected() {
    let rig = Rig::start().await;
    rig.define_records().await;
    rig.create_node("edge-1").await;
    let a = rig.replica("a");
    let all = |version| {
        vec![("u-1".into(), record("shop", "one", version)), ("u-2".into(), record("shop", "two", version))]
    };
    a.syncs.replace(&node_name("edge-1"), all(10));
    write(&a).await;
    rig.patch(
        &sync(&rig, "edge-1.u-1").await.unwrap(),
        json!({"metadata": {"annotations": {"seen": "yes"}}}),
    )
    .await;
    rig.delete(&sync(&rig, "edge-1.u-2").await.unwrap()).await;
    a.syncs.change(&node_name("edge-1"), all(11), vec![]);
    write(&a).await;
    assert_eq!(
        (version(&rig, "edge-1.u-1").await, version(&rig, "edge-1.u-2").await),
        (json!("11"), json!("11"))
    );
}

#[tokio::test]
async fn records_wait_for_their_node() {
    let rig = Rig::start().await;
    rig.define_records().await;
    rig.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker"}})).await;
    let a = rig.replica("a");
    a.syncs.replace(&node_name("edge-1"), vec![("u-1".into(), record("shop", "one", 10))]);
    a.syncs.replace(&node_name("worker"), vec![("u-1".into(), record("shop", "one", 10))]);
    let others = async {
        let mut wakeups = a.syncs.shared.wakeups.subscribe();
        // The Node of a kubelet gets none, and blocks nothing.
        while a.syncs.queued() != 1 {
            wakeups.changed().await.unwrap();
        }
        rig.create_node("edge-1").await;
        pass(MISSING_NODE_DELAY).await;
        a.syncs.settled().await;
    };
    tokio::select! {
        () = a.syncs.run() => {}
        () = others => {}
    }
    assert_eq!(version(&rig, "edge-1.u-1").await, "10");
    assert_eq!(sync(&rig, "worker.u-1").await, None);
}

#[tokio::test]
async fn a_terminating_namespace_blocks_no_records() {
    let rig = Rig::start().await;
    rig.define_records().await;
    rig.create_node("edge-1").await;
    rig.delete(&rig.get("v1", "Namespace", "", "lab").await.unwrap()).await;
    let going = rig.get("v1", "Namespace", "", "lab").await.unwrap();
    assert!(going.deletion_timestamp().is_some(), "{going:?}");
    let a = rig.replica("a");
    let all = vec![("u-1".into(), record("lab", "one", 10)), ("u-2".into(), record("shop", "two", 20))];
    a.syncs.replace(&node_name("edge-1"), all);
    write(&a).await;
    assert_eq!(version(&rig, "edge-1.u-2").await, "20");
    assert_eq!(a.syncs.queued(), 0);
}
