//! Events that local programs create through the API: stored here, and on their way to the cloud.

use super::status::Node;
use super::*;

const JSON: &str = "application/json";
const PATH: &str = "/apis/events.k8s.io/v1/namespaces/lab/events";

#[allow(clippy::needless_pass_by_value, reason = "values are written as they come to hand")]
fn event(metadata: Value) -> Value {
    json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": metadata, "type": "Warning",
        "reason": "Jammed", "note": "the belt stands still", "action": "Move", "reportingController": "belt",
        "reportingInstance": "belt-1", "eventTime": "2026-01-01T00:00:00.000000Z",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "belt", "namespace": "lab"}})
}

/// Returns the pending Event of a name.
async fn waiting(node: &Node, name: &str) -> Option<Value> {
    let item = node.storage.store.outbox_item(Lane::Bulk, format!("event/lab/{name}")).await.unwrap();
    item.map(|content| serde_json::from_str::<Value>(&content).unwrap()["event"].take())
}

#[tokio::test]
async fn events_of_both_apis_are_created_updated_and_sent() {
    let node = Node::holding(Vec::new()).await;
    let made = node.ok("POST", PATH, JSON, &event(json!({"name": "jam", "namespace": "lab"}))).await;
    assert_eq!(waiting(&node, "jam").await.unwrap()["note"], made["note"]);
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}});
    let path = format!("{PATH}/jam");
    node.ok("PATCH", &path, "application/merge-patch+json", &series).await;
    let sent = waiting(&node, "jam").await.unwrap();
    assert_eq!((&sent["series"]["count"], &sent["reason"]), (&json!(2), &json!("Jammed")));
    let mut again = node.get(&path).await;
    again["series"]["count"] = json!(3);
    node.ok("PUT", &path, JSON, &again).await;
    assert_eq!(waiting(&node, "jam").await.unwrap()["series"]["count"], 3);

    let core = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "belt.", "namespace": "lab"},
        "type": "Normal", "reason": "Moved", "message": "the belt moves", "source": {"component": "belt"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "belt", "namespace": "lab"},
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z", "count": 1});
    let made = node.ok("POST", "/api/v1/namespaces/lab/events", JSON, &core).await;
    let name = made["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("belt.") && name.len() == "belt.".len() + 5, "{name}");
    let sent = waiting(&node, name).await.unwrap();
    assert_eq!((&sent["apiVersion"], &sent["note"]), (&json!("events.k8s.io/v1"), &json!("the belt moves")));
    assert_eq!(node.storage.store.outbox().borrow().marks.rows.bulk, 2);
}

#[tokio::test]
async fn a_deleted_event_still_reaches_the_cloud() {
    let node = Node::holding(Vec::new()).await;
    node.ok("POST", PATH, JSON, &event(json!({"name": "jam", "namespace": "lab"}))).await;
    node.ok("DELETE", &format!("{PATH}/jam"), JSON, &Value::Null).await;
    assert_eq!(node.get(PATH).await["items"], json!([]));
    assert_eq!(waiting(&node, "jam").await.unwrap()["reason"], "Jammed");
    let dry = format!("{PATH}?dryRun=All");
    node.ok("POST", &dry, JSON, &event(json!({"name": "dry", "namespace": "lab"}))).await;
    assert_eq!(waiting(&node, "dry").await, None);
}
