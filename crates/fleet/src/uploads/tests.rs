use super::*;
use crate::node_name;
use edgesync_object::ResourceVersion;
use edgesync_placement::{Placement, Summary};
use edgesync_protocol::upload::UploadItem;
use proptest::prelude::*;
use serde_json::json;
use serde_json::value::RawValue;

fn upload(lane: Lane, contents: &[Value]) -> Upload {
    let raw = |content: &Value| RawValue::from_string(content.to_string()).unwrap();
    let items = contents.iter().zip(7..).map(|(content, seq)| UploadItem { seq, content: raw(content) });
    Upload { session: "s".into(), outbox: "o".into(), lane, confirmed: 6, items: items.collect() }
}

fn pod(uid: &str) -> NodePlacement {
    let fields = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "shop", "uid": uid}, "spec": {"nodeName": "edge-1"},
    });
    let object = Object::from(fields.as_object().unwrap().clone());
    let resource = Arc::new(kinds::by_word("pods").unwrap().resource());
    let mut placement = Placement::default();
    placement.upsert(&Summary::of(&object, resource, ResourceVersion::from(3)));
    NodePlacement::Placed(placement.object(uid).unwrap().clone())
}

fn place(uid: &str) -> NodePlacement {
    match uid {
        "here" => pod(uid),
        _ => NodePlacement::NotPlaced,
    }
}

fn builtin(resource: &Resource) -> Option<Arc<Schema>> {
    schema::builtin(&resource.group, &resource.version, &resource.kind)
}

fn prepared(lane: Lane, content: Value) -> Result<Effect, Refusal> {
    let upload = upload(lane, &[content]);
    let batch = prepare((&node_name("edge-1"), Epoch(7)), &upload, &placements(&upload, place), builtin);
    assert_eq!((&*batch.node, &*batch.outbox, batch.lane, batch.confirmed), ("edge-1", "o", lane, 6));
    let mut items = batch.items;
    assert_eq!((items.len(), items[0].seq), (1, 7));
    items.remove(0).effect
}

fn refused(lane: Lane, content: Value) -> Refusal {
    let shown = content.to_string().chars().take(200).collect::<String>();
    let (reason, message) = prepared(lane, content).map(|effect| format!("{effect:?}")).expect_err(&shown);
    assert!(!message.is_empty() && message.len() <= MAX_MESSAGE, "{message}");
    (reason, message)
}

#[allow(clippy::needless_pass_by_value, reason = "values are written as they come to hand")]
fn status(uid: &str, kind: &str, name: &str, status: Value) -> Value {
    let object = json!({"apiVersion": "v1", "kind": kind, "namespace": "shop", "name": name});
    json!({"status": {"uid": uid, "object": object, "status": status}})
}

fn event(namespace: &str) -> Value {
    json!({"event": {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": namespace},
        "eventTime": "2024-01-02T00:00:00.000000Z", "type": "Normal", "reason": "Started", "action": "Start",
        "reportingController": "edgesync.io/agent", "reportingInstance": "edge-1", "note": "well",
        "regarding": {"kind": "Node", "name": "edge-1"},
    }})
}

#[test]
fn node_report_is_accepted_if_its_node_is_valid() {
    let report = json!({"labels": {"a": "b"}, "status": {"capacity": {"memory": "1Gi"}}});
    match prepared(Lane::Status, json!({"node": report})).unwrap() {
        Effect::Node(report) => assert_eq!(report.labels.get("a").map(String::as_str), Some("b")),
        other => panic!("{other:?}"),
    }
    for wrong in [
        json!(7),
        json!({"status": {"nodeInfo": 7}}),
        json!({"conditions": [{"type": "a b", "status": "True", "reason": "X"}]}),
        json!({"labels": {"a": "b".repeat(MAX_REPORT)}}),
    ] {
        assert_eq!(refused(Lane::Status, json!({"node": wrong})).0, RefusedReason::Invalid);
    }
}

#[test]
fn status_is_accepted_from_a_node_with_the_object() {
    let running = json!({"phase": "Running", "nonsense": 1});
    match prepared(Lane::Status, status("here", "Pod", "p", running.clone())).unwrap() {
        Effect::Status { resource, namespace, name, uid, placed, status } => {
            assert!(placed);
            assert_eq!((&*resource.plural, &*namespace, &*name, &*uid), ("pods", "shop", "p", "here"));
            assert_eq!(status, json!({"phase": "Running"}));
        }
        other => panic!("{other:?}"),
    }
    let elsewhere = prepared(Lane::Status, status("elsewhere", "Pod", "p", running.clone()));
    let Ok(Effect::Status { placed: false, .. }) = elsewhere else {
        panic!("the store decides: {elsewhere:?}")
    };
    for (uid, kind, name, value, reason) in [
        ("gone", "Node", "edge-2", running.clone(), RefusedReason::NotPlaced),
        ("gone", "Event", "e", running.clone(), RefusedReason::NotPlaced),
        ("here", "Pod", "other", running.clone(), RefusedReason::Invalid),
        ("here", "Secret", "p", running.clone(), RefusedReason::Invalid),
        ("here", "Pod", "p", json!({"phase": 7}), RefusedReason::Invalid),
        ("here", "Pod", "p", json!("Running"), RefusedReason::Invalid),
        ("gone", "ConfigMap", "c", json!({}), RefusedReason::Invalid),
    ] {
        let (found, message) = refused(Lane::Status, status(uid, kind, name, value));
        assert_eq!(found, reason, "{uid} {kind} {name}: {message}");
    }
    let other_lane = refused(Lane::Events, status("here", "Pod", "p", running));
    assert_eq!(other_lane.0, RefusedReason::Invalid);
}

fn effect(uid: &str, name: &str, state: &str) -> Value {
    json!({"effect": {"uid": uid, "object": {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": name},
        "version": "3", "wanted": "3", "state": state, "rule": "r", "since": 7}})
}

#[test]
fn effect_must_match_an_object_of_the_node_and_its_limits() {
    for (uid, expected) in [("here", true), ("elsewhere", false)] {
        match prepared(Lane::Status, effect(uid, "p", "InEffect")).unwrap() {
            Effect::InEffect { effect, epoch, placed } => {
                assert_eq!((&*effect.uid, epoch, placed), (uid, Epoch(7), expected));
            }
            other => panic!("{other:?}"),
        }
    }
    let mut long = effect("here", "p", "NotInEffect");
    long["effect"]["message"] = json!("x".repeat(1025));
    let mut contradicts = effect("here", "p", "InEffect");
    contradicts["effect"]["wanted"] = json!("4");
    let mut without = effect("here", "p", "InEffect");
    without["effect"].as_object_mut().unwrap().remove("since");
    for wrong in [effect("here", "other", "InEffect"), long, contradicts, without] {
        let (reason, message) = refused(Lane::Status, wrong);
        assert_eq!(reason, RefusedReason::Invalid, "{message}");
    }
    assert_eq!(refused(Lane::Events, effect("here", "p", "InEffect")).0, RefusedReason::Invalid);
}

#[test]
fn kind_without_a_schema_accepts_any_status() {
    let upload = upload(Lane::Status, &[status("here", "Pod", "p", json!({"any": 1}))]);
    let batch = prepare((&node_name("edge-1"), Epoch(7)), &upload, &placements(&upload, place), |_| None);
    assert!(batch.items[0].effect.is_ok());
}

#[test]
fn events_are_validated_as_by_the_api() {
    match prepared(Lane::Events, event("default")).unwrap() {
        Effect::Event(event) => assert_eq!((event.name(), event.namespace()), ("e", "default")),
        other => panic!("{other:?}"),
    }
    let (reason, message) = refused(Lane::Bulk, event("shop"));
    assert_eq!(reason, RefusedReason::Invalid);
    assert!(message.contains("regarding.namespace"), "{message}");
}

#[test]
fn event_limit_admits_the_largest_event_of_a_device() {
    let long = |bytes: usize| {
        let mut event = event("default");
        event["event"]["metadata"]["annotations"] = json!({"a": "x".repeat(bytes)});
        event
    };
    assert!(prepared(Lane::Bulk, long(64 << 10)).is_ok());
    let (reason, message) = refused(Lane::Bulk, long(MAX_EVENT));
    assert_eq!(reason, RefusedReason::Invalid);
    assert!(message.contains("at most 73728 bytes, is 7"), "{message}");
}

#[test]
fn invalid_items_are_refused_and_the_rest_is_applied() {
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    let contents = [json!(7), json!({"other": {}}), json!({"event": deep}), event("default")];
    let upload = upload(Lane::Events, &contents);
    let batch = prepare((&node_name("edge-1"), Epoch(7)), &upload, &placements(&upload, place), builtin);
    let taken: Vec<_> = batch.items.iter().map(|item| (item.seq, item.effect.is_ok())).collect();
    assert_eq!(taken, [(7, false), (8, false), (9, false), (10, true)]);
}

proptest! {
    #[test]
    fn nothing_panics_and_every_item_has_an_answer(
        word in prop_oneof!["node", "status", "event", "[a-z]{1,6}"],
        text in ".{0,300}",
        number: i64,
    ) {
        let values = [json!(text), json!(number), json!({ &text: number }), json!({"uid": text, "status": {}})];
        for lane in Lane::ALL {
            let contents: Vec<Value> = values.iter().map(|value| json!({ &word: value })).collect();
            let upload = upload(lane, &contents);
            let batch = prepare((&node_name("edge-1"), Epoch(7)), &upload, &placements(&upload, place), builtin);
            prop_assert_eq!(batch.items.len(), contents.len());
            for item in batch.items {
                if let Err((_, message)) = item.effect {
                    prop_assert!(message.len() <= MAX_MESSAGE);
                }
            }
        }
    }
}
