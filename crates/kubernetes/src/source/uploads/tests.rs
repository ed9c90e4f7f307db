use crate::node_name;
use serde_json::json;

use super::super::testing::{Rig, at, object_of, renewal};
use super::*;
pub(super) use edgesync_fleet::source::UploadEffect;
use edgesync_protocol::upload::Lane;

/// A kind without the status subresource.
const LAMPS: &str = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: lamps.lab.io }
spec:
  group: lab.io
  scope: Namespaced
  names: { plural: lamps, singular: lamp, kind: Lamp }
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema: { type: object, x-kubernetes-preserve-unknown-fields: true }
";

const OUTBOX: &str = "00000000000000000000000000000001";

fn batch(lane: Lane, confirmed: u64, items: Vec<(u64, Effect)>) -> UploadBatch {
    let items = items.into_iter().map(|(seq, effect)| UploadEffect { seq, effect: Ok(effect) });
    UploadBatch { node: node_name("edge-1"), outbox: OUTBOX.into(), lane, confirmed, items: items.collect() }
}

fn status_of(object: &Object, status: Value) -> Effect {
    Effect::Status {
        resource: kinds::guess(object.api_version(), object.kind(), true),
        namespace: object.namespace().into(),
        name: object.name().into(),
        uid: object.uid().into(),
        status,
    }
}

fn event(name: &str, count: u64) -> Effect {
    let mut event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
        "eventTime": "2026-11-22T00:00:00.000000Z", "reportingController": "c", "reportingInstance": "i",
        "action": "A", "reason": "R", "type": "Normal",
        "regarding": {"kind": "ConfigMap", "namespace": "default", "name": "m"},
    });
    if count > 1 {
        event["series"] = json!({"count": count, "lastObservedTime": "2026-11-22T00:00:09.000000Z"});
    }
    Effect::Event(Box::new(object_of(event)))
}

async fn deployment(rig: &Rig, name: &str) -> Object {
    rig.create(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    }))
    .await
}

fn reasons(outcome: &UploadOutcome) -> Vec<(u64, RefusedReason)> {
    outcome.refused.iter().map(|refused| (refused.seq, refused.reason)).collect()
}

async fn events(rig: &Rig, name: &str) -> Option<Object> {
    rig.get("events.k8s.io/v1", "Event", "default", name).await
}

#[tokio::test]
async fn a_status_is_written_only_to_the_object_with_its_uid() {
    let rig = Rig::start().await;
    let uploads = rig.replica("a").uploads;
    let one = deployment(&rig, "one").await;
    let mut recreated = deployment(&rig, "two").await;
    recreated.set_metadata("uid", "another");
    let mut gone = one.clone();
    gone.set_metadata("name", "gone");
    let items = vec![
        (1, status_of(&one, json!({"replicas": 3}))),
        (2, status_of(&recreated, json!({"replicas": 4}))),
        (3, status_of(&gone, json!({"replicas": 5}))),
        (4, status_of(&one, json!({"replicas": "many"}))),
        (5, status_of(&one, json!([]))),
    ];
    let outcome = uploads.ingest(batch(Lane::Status, 0, items)).await.unwrap();
    let expected = [
        (2, RefusedReason::NotPlaced),
        (3, RefusedReason::NotPlaced),
        (4, RefusedReason::Invalid),
        (5, RefusedReason::Invalid),
    ];
    assert_eq!((reasons(&outcome), outcome.taken.last.status), (expected.to_vec(), 5));
    let words = ["two", "gone"].map(|name| format!("Deployment 'default/{name}' is not placed on this node"));
    assert_eq!([&outcome.refused[0].message, &outcome.refused[1].message], words.each_ref());
    let get = async |name| rig.get("apps/v1", "Deployment", "default", name).await.unwrap();
    let after = get("one").await;
    assert_eq!((at(&after, "/status"), at(&after, "/spec")), (&json!({"replicas": 3}), at(&one, "/spec")));
    assert_eq!(at(&get("two").await, "/status/replicas"), &Value::Null);

    let again = vec![(7, status_of(&one, json!({"replicas": 3}))), (8, status_of(&one, Value::Null))];
    uploads.ingest(batch(Lane::Status, 5, again)).await.unwrap();
    let none = get("one").await;
    assert_eq!(at(&none, "/status/replicas"), &Value::Null);
    let again = vec![(9, status_of(&one, Value::Null)), (10, status_of(&one, json!({})))];
    uploads.ingest(batch(Lane::Status, 8, again)).await.unwrap();
    assert_eq!(get("one").await.resource_version(), none.resource_version(), "it has none already");
}

#[tokio::test]
async fn a_status_without_subresource_is_an_ordinary_field() {
    let rig = Rig::start().await;
    let uploads = rig.replica("a").uploads;
    rig.define(LAMPS).await;
    let lamp = json!({
        "apiVersion": "lab.io/v1", "kind": "Lamp", "metadata": {"name": "hall", "namespace": "default"}, "color": "red",
    });
    let lamp = rig.create(lamp).await;
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"}});
    let map = rig.create(map).await;
    let items = vec![(1, status_of(&lamp, json!({"lit": true}))), (2, status_of(&map, json!({"lit": true})))];
    let outcome = uploads.ingest(batch(Lane::Status, 0, items)).await.unwrap();
    assert_eq!(reasons(&outcome), [(2, RefusedReason::Invalid)], "{outcome:?}");
    let lamp = rig.get("lab.io/v1", "Lamp", "default", "hall").await.unwrap();
    assert_eq!((at(&lamp, "/status/lit"), at(&lamp, "/color")), (&json!(true), &json!("red")));
}

#[tokio::test]
async fn an_event_is_created_once_and_never_replaces_a_foreign_one() {
    let rig = Rig::start().await;
    let (a, b) = (rig.replica("a").uploads, rig.replica("b").uploads);
    let Effect::Event(other) = event("taken", 1) else { panic!() };
    let other = rig.create(Value::Object(other.into_fields())).await;
    let items = || vec![(1, event("mine", 1)), (2, event("taken", 1)), (3, event("mine", 2))];
    a.ingest(batch(Lane::Events, 0, items())).await.unwrap();
    let mine = events(&rig, "mine").await.unwrap();
    assert_eq!(at(&mine, "/series/count"), &json!(2));
    assert_eq!(mine.annotations()["edgesync.io/node"], "edge-1");
    assert_eq!(events(&rig, "taken").await, Some(other), "it is another writer's");
    let beside = events(&rig, "taken.edge-1").await.unwrap();

    // The replica crashed before it could confirm them, so another one receives all of them.
    b.ingest(batch(Lane::Events, 0, items())).await.unwrap();
    assert_eq!(events(&rig, "mine").await, Some(mine));
    assert_eq!(events(&rig, "taken.edge-1").await, Some(beside));
    assert_eq!(events(&rig, "mine.edge-1").await, None);
    b.ingest(batch(Lane::Events, 3, vec![(4, event("mine", 3))])).await.unwrap();
    assert_eq!(at(&events(&rig, "mine").await.unwrap(), "/series/count"), &json!(3));
}

/// Most recorders of client-go write Events of this form, and count repeats in place.
#[tokio::test]
async fn an_event_of_the_core_group_is_created_and_updated() {
    let rig = Rig::start().await;
    let uploads = rig.replica("a").uploads;
    let core = |count: u64, last: &str| {
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": "core", "namespace": "default"}, "reason": "BackOff", "type": "Warning",
            "note": "back-off", "regarding": {"kind": "ConfigMap", "namespace": "default", "name": "m"},
            "deprecatedSource": {"component": "doors", "host": "edge-1"}, "deprecatedCount": count,
            "deprecatedFirstTimestamp": "2026-11-22T00:00:00Z", "deprecatedLastTimestamp": last,
        });
        Effect::Event(Box::new(object_of(event)))
    };
    let items = vec![(1, core(1, "2026-11-22T00:00:00Z")), (2, core(7, "2026-11-22T00:01:00Z"))];
    let outcome = uploads.ingest(batch(Lane::Bulk, 0, items)).await.unwrap();
    assert_eq!(reasons(&outcome), []);
    let stored = rig.get("v1", "Event", "default", "core").await.unwrap();
    assert_eq!((at(&stored, "/count"), at(&stored, "/message")), (&json!(7), &json!("back-off")));
    assert_eq!(at(&stored, "/source"), &json!({"component": "doors", "host": "edge-1"}));
}

/// The attack: a device fills etcd with Events.
#[tokio::test]
async fn a_node_has_only_so_many_events_and_the_oldest_make_room() {
    let rig = Rig::start().await;
    let uploads = rig.replica("a").uploads;
    let names = async || {
        let mut found = Vec::new();
        for number in 1..=40 {
            found.extend(events(&rig, &format!("e{number}")).await.map(|_| number));
        }
        found
    };
    let Effect::Event(other) = event("e40", 1) else { panic!() };
    rig.create(Value::Object(other.into_fields())).await;
    let all = (1..=25).map(|number| (number, event(&format!("e{number}"), 1))).collect();
    let outcome = uploads.ingest(batch(Lane::Events, 0, all)).await.unwrap();
    assert_eq!((reasons(&outcome), outcome.events_dropped), (vec![], 15));
    assert_eq!(names().await, [16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 40]);

    // A continued Event needs no room and is the most recent one. A long one counts five times.
    let Effect::Event(mut long) = event("e26", 1) else { panic!() };
    long.set_metadata("annotations", json!({"long": "x".repeat(9 << 10)}));
    let items = vec![(26, event("e16", 2)), (27, Effect::Event(long))];
    // The log outlives the connection.
    uploads.forget(&node_name("edge-1"));
    let outcome = uploads.ingest(batch(Lane::Events, 25, items)).await.unwrap();
    assert_eq!((reasons(&outcome), outcome.events_dropped), (vec![], 5));
    assert_eq!(names().await, [16, 22, 23, 24, 25, 26, 40]);

    // A continued Event that grows takes the room of the oldest ones.
    let Effect::Event(mut grown) = event("e22", 2) else { panic!() };
    grown.set_metadata("annotations", json!({"long": "x".repeat(9 << 10)}));
    let outcome = uploads.ingest(batch(Lane::Events, 27, vec![(28, Effect::Event(grown))])).await.unwrap();
    assert_eq!((reasons(&outcome), outcome.events_dropped), (vec![], 4));
    assert_eq!(names().await, [22, 26, 40]);
}

#[tokio::test]
async fn numbers_start_after_those_the_node_calls_confirmed() {
    let rig = Rig::start().await;
    let uploads = rig.replica("a").uploads;
    let items = vec![(4, event("old", 1)), (5, event("new", 1))];
    let outcome = uploads.ingest(batch(Lane::Events, 4, items.clone())).await.unwrap();
    assert_eq!((outcome.taken.last.events, outcome.taken.outbox.as_str()), (5, OUTBOX));
    assert_eq!(events(&rig, "old").await, None);
    let new = events(&rig, "new").await.unwrap();
    rig.delete(&new).await;
    uploads.ingest(batch(Lane::Events, 4, items)).await.unwrap();
    assert_eq!(events(&rig, "new").await, None, "it was taken already");
    let mut another = batch(Lane::Events, 0, vec![(1, event("first", 1))]);
    another.outbox = "00000000000000000000000000000002".into();
    assert_eq!(uploads.ingest(another).await.unwrap().taken.last.events, 1);
    assert!(events(&rig, "first").await.is_some());
}

/// Each replica counts in memory: Events from before its restart stay until the API server deletes
/// them.
#[tokio::test]
async fn a_restarted_replica_begins_a_new_count_of_events() {
    let rig = Rig::start().await;
    let items = |numbers: std::ops::RangeInclusive<u64>| {
        numbers.map(|number| (number, event(&format!("e{number}"), 1))).collect::<Vec<_>>()
    };
    let before = rig.replica("a").uploads;
    let outcome = before.ingest(batch(Lane::Events, 0, items(1..=10))).await.unwrap();
    assert_eq!((reasons(&outcome), outcome.events_dropped), (vec![], 0));
    drop(before);
    let after = rig.replica("a").uploads;
    let outcome = after.ingest(batch(Lane::Events, 10, items(11..=25))).await.unwrap();
    assert_eq!((reasons(&outcome), outcome.events_dropped), (vec![], 5));
    let mut left = Vec::new();
    for number in 1..=25 {
        left.extend(events(&rig, &format!("e{number}")).await.map(|_| number));
    }
    assert_eq!(left, (1..=10).chain(16..=25).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_fenced_replica_changes_nothing_and_loses_nothing() {
    let rig = Rig::start().await;
    rig.create_node("edge-1").await;
    let (a, b) = (rig.replica("a"), rig.replica("b"));
    let one = deployment(&rig, "one").await;
    a.leases.renew(vec![renewal("edge-1", 1)]).await.unwrap();
    a.uploads
        .ingest(batch(Lane::Status, 0, vec![(1, status_of(&one, json!({"replicas": 1})))]))
        .await
        .unwrap();
    let mut missing = one.clone();
    missing.set_metadata("name", "missing");
    let old = || {
        vec![(2, status_of(&missing, json!({"replicas": 2}))), (3, status_of(&one, json!({"replicas": 3})))]
    };
    b.leases.claim(&node_name("edge-1")).await.unwrap();
    b.uploads
        .ingest(batch(Lane::Status, 3, vec![(4, status_of(&one, json!({"replicas": 4})))]))
        .await
        .unwrap();
    let error = a.uploads.ingest(batch(Lane::Status, 1, old())).await.unwrap_err().to_string();
    assert!(error.contains("replica") && error.contains('b'), "{error}");
    let after = rig.get("apps/v1", "Deployment", "default", "one").await.unwrap();
    assert_eq!(at(&after, "/status/replicas"), &json!(4));

    // The node moves back and sends the unconfirmed items again.
    a.leases.claim(&node_name("edge-1")).await.unwrap();
    let outcome = a.uploads.ingest(batch(Lane::Status, 1, old())).await.unwrap();
    let expected = [(2, RefusedReason::NotPlaced)];
    assert_eq!(reasons(&outcome), expected, "the refusal of the failed batch is returned");
    assert_eq!(outcome.taken.last.status, 3);
}

#[tokio::test]
async fn a_report_creates_the_node_and_never_changes_a_kubelets() {
    let rig = Rig::start().await;
    let uploads = rig.replica("a").uploads;
    let report = || Effect::Node(Box::default());
    assert!(uploads.ingest(batch(Lane::Status, 0, vec![(1, report())])).await.unwrap().refused.is_empty());
    assert!(rig.node("edge-1").await.is_some());
    rig.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker"}})).await;
    let mut others = batch(Lane::Status, 0, vec![(1, report())]);
    others.node = node_name("worker");
    let outcome = uploads.ingest(others).await.unwrap();
    assert_eq!(reasons(&outcome), [(1, RefusedReason::Other)]);
    assert!(outcome.refused[0].message.contains("has no label edgesync.io/edge=true"), "{outcome:?}");
}
