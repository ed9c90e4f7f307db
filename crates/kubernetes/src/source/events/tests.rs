use super::super::testing::{Rig, at, object_of};
use super::*;
use crate::node_name;
use edgesync_fleet::source::SourceError;

/// An Event of a roll-out, as the fleet emits it.
fn event(namespace: &str) -> Object {
    object_of(json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "web.1.waveopened", "namespace": namespace},
        "eventTime": "2026-11-27T00:00:00.000001Z", "reportingController": "edgesync.io/cloud",
        "reportingInstance": "edgesync-cloud", "action": "RollOut", "reason": "WaveOpened", "type": "Normal",
        "regarding": {"apiVersion": "edgesync.io/v1alpha1", "kind": "ClusterPlacement", "namespace": "", "name": "web"},
        "note": "revision 2: wave 1 of 3 opened",
    }))
}

#[tokio::test]
async fn event_of_the_cloud_side_is_created_once_in_the_background() {
    let rig = Rig::start().await;
    let requests = rig.requests();
    emit(&requests, event("default")).await.unwrap();
    let created = rig.get("v1", "Event", "default", "web.1.waveopened").await.unwrap();
    for (field, value) in [
        ("/reportingComponent", "edgesync.io/cloud"),
        ("/reason", "WaveOpened"),
        ("/message", "revision 2: wave 1 of 3 opened"),
        ("/involvedObject/name", "web"),
    ] {
        assert_eq!(at(&created, field), value, "{field}");
    }
    // A former leader, or a request whose answer was lost.
    emit(&requests, event("default")).await.unwrap();
    let after = rig.get("v1", "Event", "default", "web.1.waveopened").await.unwrap();
    assert_eq!(after.resource_version(), created.resource_version());
    let used = requests.used();
    assert_eq!((used.urgent, used.background), (0, 2));
}

#[tokio::test]
async fn event_that_the_cluster_refuses_is_an_error() {
    let rig = Rig::start().await;
    let refused = emit(&rig.requests(), event("nowhere")).await;
    assert!(matches!(refused, Err(SourceError::Cluster(_))), "{refused:?}");
}

#[test]
fn an_event_about_a_cluster_scoped_object_has_a_legacy_form() {
    let of = |regarding: Value| {
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
            "eventTime": "2026-11-22T00:00:00.500000Z", "reportingComponent": "edgesync.io/agent",
            "reportingInstance": "edge-1", "action": "A", "reason": "R", "type": "Normal", "message": "m",
            "series": {"count": 3, "lastObservedTime": "2026-11-22T00:00:09.000000Z"},
            "involvedObject": regarding,
        });
        object_of(event)
    };
    let mut event = of(json!({"kind": "Node", "name": "edge-1"}));
    assert!(make_legacy(&mut event, Some(&node_name("edge-1"))));
    for (field, value) in [
        ("firstTimestamp", json!("2026-11-22T00:00:00Z")),
        ("lastTimestamp", json!("2026-11-22T00:00:09Z")),
        ("count", json!(3)),
        ("source", json!({"component": "edgesync.io/agent", "host": "edge-1"})),
        ("message", json!("m")),
    ] {
        assert_eq!(event.fields().get(field), Some(&value), "{field}");
    }
    assert!(!event.fields().contains_key("eventTime") && !event.fields().contains_key("series"));
    assert!(!make_legacy(&mut event, Some(&node_name("edge-1"))), "it has that form already");
    let mut namespaced = of(json!({"kind": "Pod", "namespace": "default", "name": "p"}));
    let before = namespaced.clone();
    assert!(!make_legacy(&mut namespaced, Some(&node_name("edge-1"))));
    assert_eq!(namespaced, before);
}
