//! Nodes as objects of the cloud side. A scripted node registers, renews its Lease, uploads its
//! outbox, disconnects, and is removed and admitted again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::site;
use std::time::Duration;

use edgesync_admin::cloud::state::REMOVED;
use edgesync_admin::cloud::{Admitted, Removed};
use edgesync_admin::{NodeAction, Route};
use edgesync_object::status::Reason;
use edgesync_protocol::upload::{Lane, RefusedReason};
use serde_json::{Value, json};
use site::{Cloud, PATIENCE, Scripted, Site, ask, config_map, eventually, path_of};

const NODE: &str = "edge-1";
const NODE_PATH: &str = "/api/v1/nodes/edge-1";
const LEASE_PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge-1";

async fn get(cloud: &Cloud, path: &str) -> Option<Value> {
    match cloud.client().get(path).await {
        Ok(found) => Some(found),
        Err(error) if error.status().is_some_and(|status| status.is(&Reason::NotFound)) => None,
        Err(error) => panic!("{error}"),
    }
}

async fn remove(cloud: &Cloud) -> Removed {
    ask(&cloud.client(), Route::ChangeNode(NODE, NodeAction::Remove)).await.unwrap()
}

async fn admit(cloud: &Cloud) -> Admitted {
    ask(&cloud.client(), Route::ChangeNode(NODE, NodeAction::Admit)).await.unwrap()
}

/// Waits until a condition of the Node has this status and reason.
async fn condition(cloud: &Cloud, name: &str, status: &str, reason: &str) {
    let mut last = Value::Null;
    eventually(&format!("{name} is {status} because of {reason}"), PATIENCE, async || {
        last = get(cloud, NODE_PATH).await?["status"]["conditions"].take();
        let found = last.as_array()?.iter().find(|found| found["type"] == name)?;
        (found["status"] == status && found["reason"] == reason).then_some(())
    })
    .await;
}

async fn started(site: &Site) -> Cloud {
    Cloud::start_with(site, |settings| {
        settings.text("nodes.lease_flush", "100ms");
    })
    .await
}

#[tokio::test]
async fn node_registers_renews_is_lost_and_returns() {
    let site = Site::new();
    let mut cloud = started(&site).await;
    let mut node = Scripted::connect(NODE, cloud.mqtt).await;
    assert!(node.welcome().await.register, "nothing is known of it");
    node.renew(40).await;
    node.report().await;
    condition(&cloud, "Ready", "True", "AgentReady").await;
    condition(&cloud, "edgesync.io/CloudReachable", "True", "Connected").await;
    condition(&cloud, "edgesync.io/InSync", "True", "InSync").await;
    condition(&cloud, "edgesync.io/DiskPressure", "False", "SufficientDisk").await;
    let object = get(&cloud, NODE_PATH).await.unwrap();
    assert_eq!(object["metadata"]["labels"]["site"], "plant-7");
    assert!(!node.welcome().await.register, "it is known");

    node.renew(40).await;
    let lease = eventually("the Lease is written", PATIENCE, async || get(&cloud, LEASE_PATH).await).await;
    assert_eq!(lease["spec"]["holderIdentity"], NODE);
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
    assert_eq!(lease["spec"]["acquireTime"], "1970-01-01T00:00:00.000005Z");
    let nodes = cloud.nodes().await.items;
    assert_eq!(nodes[0].ready(), Some(true));
    assert!(nodes[0].last_renewal().is_some_and(|at| !at.contains('.')), "whole seconds: {nodes:?}");

    node.renew(1).await;
    condition(&cloud, "Ready", "Unknown", "NodeStatusUnknown").await;
    condition(&cloud, "edgesync.io/DiskPressure", "Unknown", "NodeStatusUnknown").await;
    node.renew(40).await;
    condition(&cloud, "Ready", "True", "AgentReady").await;
    condition(&cloud, "edgesync.io/DiskPressure", "False", "SufficientDisk").await;

    node.renew(1).await;
    condition(&cloud, "Ready", "Unknown", "NodeStatusUnknown").await;
    // The old connection must not reconnect beside the next one.
    let sent = node.sent;
    drop(node);
    cloud.crash().await;
    let mut node = Scripted::connect(NODE, cloud.mqtt).await;
    node.sent = sent;
    assert!(node.welcome().await.register, "what it reported is not known any more");
    node.renew(40).await;
    node.report().await;
    condition(&cloud, "edgesync.io/DiskPressure", "False", "SufficientDisk").await;
    condition(&cloud, "Ready", "True", "AgentReady").await;
}

#[tokio::test]
async fn uploads_take_effect_once_or_are_refused_with_a_reason() {
    let site = Site::new();
    let cloud = started(&site).await;
    let mut node = Scripted::connect(NODE, cloud.mqtt).await;
    node.welcome().await;
    let event = |name: &str, namespace: &str, reason: &str, (kind, object): (&str, &str)| {
        json!({"event": {
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": "2024-01-02T00:00:00.000000Z", "type": "Normal", "reason": reason, "action": "Test",
            "reportingController": "edgesync.io/agent", "reportingInstance": "edge-2", "note": "a test",
            "regarding": {"kind": kind, "namespace": namespace, "name": object},
        }})
    };
    let here = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "here", "namespace": "shop"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    // No rule places it.
    let there = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "there", "namespace": "shop"},
        "spec": {"ports": [{"port": 80}]},
    });
    cloud.apply([json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})]).await;
    cloud.apply([here.clone(), there.clone(), config_map(1)]).await;
    let uid = cloud.get(&here).await["metadata"]["uid"].clone();
    let items = [
        event("one", "shop", "First", ("Pod", "here")),
        event("two", "shop", "", ("Pod", "here")),
        json!({"event": 7}),
        event("four", "nowhere", "First", ("Pod", "here")),
        event("five", "shop", "First", ("Service", "there")),
        event("six", "shop", "First", ("Pod", "invented")),
    ];
    node.is_sent("here").await;
    let confirm = node.upload(Lane::Events, &items).await;
    assert_eq!(confirm.last.events, 6);
    let refused: Vec<_> = confirm.refused.iter().map(|refused| (refused.seq, refused.reason)).collect();
    use RefusedReason::{Invalid, NotPlaced};
    assert_eq!(refused, [(2, Invalid), (3, Invalid), (4, NotPlaced), (5, NotPlaced), (6, NotPlaced)]);
    assert!(confirm.refused[0].message.contains("reason"), "{confirm:?}");
    let words = "regarding: must be the Node 'edge-1' or an object that is placed on it";
    assert!(confirm.refused[2..].iter().all(|refused| refused.message == words), "{confirm:?}");
    let events: Value = cloud.client().get("/api/v1/namespaces/shop/events").await.unwrap();
    let shown: Vec<_> = events["items"].as_array().unwrap().iter().collect();
    let [event] = &shown[..] else { panic!("{events:#}") };
    assert_eq!((&event["reason"], &event["involvedObject"]["uid"]), (&json!("First"), &uid));
    assert_eq!(event["reportingInstance"], NODE, "a node reports in no other name");
    assert!(get(&cloud, "/api/v1/namespaces/nowhere").await.is_none(), "nodes make no namespaces");

    let status = |uid: &Value, name: &str, status: Value| {
        let object = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": name});
        json!({"status": {"uid": uid, "object": object, "status": status}})
    };
    let there_uid = cloud.get(&there).await["metadata"]["uid"].clone();
    let items = [
        status(&uid, "here", json!({"phase": "Running"})),
        status(&json!("another-uid"), "here", json!({"phase": "Failed"})),
        status(&uid, "here", json!({"phase": 7})),
        // Whether the object exists, under this UID or another one, makes no difference.
        status(&there_uid, "there", json!({"phase": "Failed"})),
        status(&json!("another-uid"), "there", json!({"phase": "Failed"})),
        status(&json!("another-uid"), "?x=1", json!({"phase": "Failed"})),
    ];
    let confirm = node.upload(Lane::Status, &items).await;
    let refused: Vec<_> = confirm.refused.iter().map(|refused| (refused.seq, refused.reason)).collect();
    assert_eq!(refused, [(2, NotPlaced), (3, Invalid), (4, NotPlaced), (5, NotPlaced), (6, Invalid)]);
    let message = |index: usize| &confirm.refused[index].message;
    assert_eq!((message(2), &**message(2)), (message(3), "Pod 'shop/there' is not placed on this node"));
    assert_eq!(cloud.get(&here).await["status"]["phase"], "Running");
    assert_eq!(cloud.get(&there).await["status"]["phase"], Value::Null);
    cloud.delete(&here).await;
    let confirm = node.upload(Lane::Status, &[status(&uid, "here", json!({"phase": "Failed"}))]).await;
    assert_eq!(confirm.refused[0].reason, NotPlaced);
}

#[tokio::test]
async fn removed_node_is_refused_until_it_is_admitted() {
    let site = Site::new();
    let mut cloud = started(&site).await;
    let mut node = Scripted::connect(NODE, cloud.mqtt).await;
    node.welcome().await;
    node.renew(40).await;
    node.report().await;
    condition(&cloud, "Ready", "True", "AgentReady").await;
    assert_eq!(remove(&cloud).await, Removed { node: NODE.to_owned(), removed: true });
    let request = node.requested().await;
    assert_eq!(
        (request.removed, request.retry_after_seconds, &request.session),
        (true, 3600, &node.session())
    );
    assert!(request.reason.contains("node admit edge-1"), "{}", request.reason);
    assert_eq!((get(&cloud, NODE_PATH).await, get(&cloud, LEASE_PATH).await), (None, None));
    assert!(!remove(&cloud).await.removed);

    node.renew(40).await;
    eventually("its frames are dropped", PATIENCE, async || {
        (cloud.nodes().await.frames_of_removed_nodes == Some(1)).then_some(())
    })
    .await;
    assert_eq!(cloud.state(NODE).await.as_deref(), Some(REMOVED));
    assert_eq!(get(&cloud, NODE_PATH).await, None, "nothing of it comes back");

    drop(node);
    cloud.crash().await;
    let mut node = Scripted::connect(NODE, cloud.mqtt).await;
    node.hello().await;
    assert!(node.requested().await.removed, "a start does not forget it");
    assert!(admit(&cloud).await.admitted);
    let asked = node.requested().await;
    assert_eq!((asked.removed, asked.retry_after_seconds, asked.session), (false, 0, node.session()));
    assert!(node.welcome().await.register);
    node.renew(40).await;
    condition(&cloud, "Ready", "True", "AgentReady").await;
    assert!(!admit(&cloud).await.admitted);
    let unknown = Route::ChangeNode("nobody", NodeAction::Remove);
    let unknown = ask::<Removed>(&cloud.client(), unknown).await;
    assert!(unknown.unwrap_err().status().unwrap().is(&Reason::NotFound));
}

#[tokio::test]
async fn node_object_deletion_removes_and_creation_admits_the_node() {
    let site = Site::new();
    let cloud = started(&site).await;
    let mut node = Scripted::connect(NODE, cloud.mqtt).await;
    node.welcome().await;
    node.renew(40).await;
    node.report().await;
    condition(&cloud, "Ready", "True", "AgentReady").await;
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
    cloud.delete(&object).await;
    assert!(node.requested().await.removed);
    eventually("the Lease has gone with the Node", PATIENCE, async || {
        get(&cloud, LEASE_PATH).await.is_none().then_some(())
    })
    .await;
    eventually("the removal is done", Duration::from_secs(10), async || {
        (!remove(&cloud).await.removed).then_some(())
    })
    .await;
    cloud.apply([object.clone()]).await;
    assert!(!node.requested().await.removed);
    node.welcome().await;
    node.renew(40).await;
    condition(&cloud, "Ready", "True", "AgentReady").await;
    assert_eq!(path_of(&object), NODE_PATH);
}
