use super::*;
use crate::node_name;
use crate::source::MAX_MESSAGE;
use edgesync_fuzz::{files, fuzz};
use edgesync_object::{Budget, Labels, ResourceVersion, kinds};
use edgesync_placement::{NODES_ANNOTATION, Placement, Summary};
use edgesync_protocol::frame::{DEFAULT_MAX_FRAME, Up};
use edgesync_protocol::upload::{Lane, UploadItem};
use proptest::prelude::*;
use serde_json::json;
use serde_json::value::RawValue;

/// The namespace in which nodes create no Events.
const SYSTEM: &str = "kube-system";

fn upload(lane: Lane, contents: &[Value]) -> Upload {
    let raw = |content: &Value| RawValue::from_string(content.to_string()).unwrap();
    let items = contents.iter().zip(7..).map(|(content, seq)| UploadItem { seq, content: raw(content) });
    Upload { session: "s".into(), outbox: "o".into(), lane, confirmed: 6, items: items.collect() }
}

/// Returns the objects of a fleet: a Pod and a cluster-scoped Lamp on `edge-1`, a Pod and a Secret
/// on other nodes.
fn placement() -> Placement {
    let mut placement = Placement::default();
    let mut add = |object: Value, resource: Resource, node: &str| {
        let mut object = Object::from(object.as_object().unwrap().clone());
        object.set_metadata("annotations", json!({ NODES_ANNOTATION: node }));
        let summary = Summary::of(&object, Arc::new(resource), ResourceVersion::from(3));
        placement.upsert(&summary);
    };
    let named = |kind: &str, name: &str, uid: &str| {
        let metadata = json!({"name": name, "namespace": "shop", "uid": uid});
        json!({"apiVersion": "v1", "kind": kind, "metadata": metadata})
    };
    let of = |word: &str| kinds::by_word(word).unwrap().resource();
    add(named("Pod", "p", "here"), of("pods"), "edge-1");
    add(named("Pod", "q", "elsewhere"), of("pods"), "edge-2");
    add(named("Secret", "s", "secret"), of("secrets"), "edge-2");
    add(named("ConfigMap", "system", "of-system"), of("configmaps"), "edge-1");
    let lamp =
        json!({"apiVersion": "lab.io/v1", "kind": "Lamp", "metadata": {"name": "hall", "uid": "lamp"}});
    add(lamp, kinds::guess("lab.io/v1", "Lamp", false), "edge-1");
    placement.add_node(&node_name("edge-1"), Labels::new());
    placement
}

/// Looks up the references of an upload. The node holds the object `held` without being its place.
fn targets(upload: &Upload) -> Targets {
    let held = |uid: &str| {
        let object = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "p"});
        (uid == "held").then(|| serde_json::from_value(object).unwrap())
    };
    References::of(upload).resolve(&node_name("edge-1"), &placement().on(&node_name("edge-1")), held)
}

fn builtin(resource: &Resource) -> Option<Arc<Schema>> {
    schema::builtin(&resource.group, &resource.version, &resource.kind)
}

fn prepared(lane: Lane, content: Value) -> Result<Effect, Refusal> {
    let upload = upload(lane, &[content]);
    let batch = prepare((&node_name("edge-1"), Epoch(7)), &upload, &targets(&upload), builtin);
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
        Effect::Status { resource, namespace, name, uid, status } => {
            assert_eq!((&*resource.plural, &*namespace, &*name, &*uid), ("pods", "shop", "p", "here"));
            assert_eq!(status, json!({"phase": "Running"}));
        }
        other => panic!("{other:?}"),
    }
    for (uid, kind, name, value, reason) in [
        ("here", "Pod", "other", running.clone(), RefusedReason::Invalid),
        ("here", "Secret", "p", running.clone(), RefusedReason::Invalid),
        ("here", "Pod", "p", json!({"phase": 7}), RefusedReason::Invalid),
        ("here", "Pod", "p", json!("Running"), RefusedReason::Invalid),
        ("held", "Pod", "p", running.clone(), RefusedReason::NotPlaced),
    ] {
        let (found, message) = refused(Lane::Status, status(uid, kind, name, value));
        assert_eq!(found, reason, "{uid} {kind} {name}: {message}");
    }
    let other_lane = refused(Lane::Events, status("here", "Pod", "p", running));
    assert_eq!(other_lane.0, RefusedReason::Invalid);
}

/// The attack: a device names objects that were not placed on it, to learn of them.
#[test]
fn nothing_tells_whether_an_object_elsewhere_exists() {
    let running = json!({"phase": "Running"});
    for (kind, name) in [("Secret", "s"), ("Pod", "q"), ("Node", "edge-2"), ("Event", "e"), ("Widget", "w")] {
        let words = format!("{kind} 'shop/{name}' is not placed on this node");
        for uid in ["elsewhere", "secret", "invented"] {
            let answer = refused(Lane::Status, status(uid, kind, name, running.clone()));
            assert_eq!(answer, (RefusedReason::NotPlaced, words.clone()), "{uid}");
        }
    }
}

#[test]
fn references_that_no_object_can_have_go_nowhere() {
    for (kind, name) in [
        ("ConfigMap", "?x=1"),
        ("ConfigMap", "../secrets/ca"),
        ("x/../../../api/v1/secret", "a"),
        ("Pod", ""),
    ] {
        let (reason, message) = refused(Lane::Status, status("here", kind, name, json!({})));
        assert_eq!(reason, RefusedReason::Invalid, "{kind} {name}: {message}");
        let content = status("here", kind, name, json!({}));
        let references = References::of(&upload(Lane::Status, &[content]));
        assert!(!targets_of(references).has_unplaced(), "{kind} {name}");
    }
    let (reason, _) = refused(Lane::Status, status("a/b", "Pod", "p", json!({})));
    assert_eq!(reason, RefusedReason::Invalid);
}

fn targets_of(references: References) -> Targets {
    references.resolve(&node_name("edge-1"), &placement().on(&node_name("edge-1")), |_| None)
}

fn effect(uid: &str, name: &str, state: &str) -> Value {
    json!({"effect": {"uid": uid, "object": {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": name},
        "version": "3", "wanted": "3", "state": state, "rule": "r", "since": 7}})
}

#[test]
fn effect_must_match_an_object_of_the_node_and_its_limits() {
    for (uid, expected) in [("here", true), ("held", true), ("elsewhere", false)] {
        match prepared(Lane::Status, effect(uid, "p", "InEffect")).unwrap() {
            Effect::InEffect { effect, epoch, known } => {
                assert_eq!((&*effect.uid, epoch, known), (uid, Epoch(7), expected));
            }
            other => panic!("{other:?}"),
        }
    }
    let other_name = refused(Lane::Status, effect("held", "other", "InEffect"));
    assert_eq!(other_name.0, RefusedReason::NotPlaced);
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
    let batch = prepare((&node_name("edge-1"), Epoch(7)), &upload, &targets(&upload), |_| None);
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

fn about(namespace: &str, regarding: Value) -> Value {
    let mut event = event(namespace);
    event["event"]["regarding"] = regarding;
    event
}

fn kept(content: Value) -> Object {
    match prepared(Lane::Bulk, content).unwrap() {
        Effect::Event(event) => *event,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_event_regards_the_node_or_an_object_placed_on_it() {
    let node = json!({"apiVersion": "v1", "kind": "Node", "name": "edge-1", "uid": "edge-1"});
    assert_eq!(
        kept(about("default", json!({"kind": "Node", "name": "edge-1", "uid": "u"}))).fields()["regarding"],
        node
    );
    let pod =
        |uid: &str| json!({"kind": "Pod", "namespace": "shop", "name": "p", "uid": uid, "fieldPath": "spec"});
    let placed = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "p", "uid": "here", "fieldPath": "spec"});
    for uid in ["here", "", "of-an-earlier-one", "elsewhere"] {
        assert_eq!(kept(about("shop", pod(uid))).fields()["regarding"], placed, "{uid}");
    }
    let lamp = json!({"apiVersion": "lab.io/v2", "kind": "Lamp", "name": "hall"});
    assert_eq!(kept(about("default", lamp)).fields()["regarding"]["uid"], "lamp");

    let forged = [
        ("default", json!({"kind": "Node", "name": "edge-2"})),
        ("default", json!({"apiVersion": "lab.io/v1", "kind": "Node", "name": "edge-1"})),
        ("shop", json!({"kind": "Pod", "namespace": "shop", "name": "q", "uid": "elsewhere"})),
        ("shop", json!({"kind": "Pod", "namespace": "shop", "name": "q", "uid": "here"})),
        ("shop", json!({"kind": "Secret", "namespace": "shop", "name": "s"})),
        ("shop", json!({"kind": "Secret", "namespace": "shop", "name": "invented"})),
        ("default", json!({})),
    ];
    let words = "regarding: must be the Node 'edge-1' or an object that is placed on it";
    for (namespace, regarding) in forged {
        let answer = refused(Lane::Bulk, about(namespace, regarding.clone()));
        assert_eq!(answer, (RefusedReason::NotPlaced, words.to_owned()), "{regarding}");
    }
    let mut related = event("default");
    related["event"]["related"] = json!({"kind": "Secret", "namespace": "shop", "name": "s"});
    assert_eq!(refused(Lane::Bulk, related).0, RefusedReason::NotPlaced);
}

#[test]
fn an_event_is_reported_by_its_node_and_never_in_kube_system() {
    let mut forged = event("default");
    forged["event"]["reportingInstance"] = json!("edge-2");
    assert_eq!(kept(forged).fields()["reportingInstance"], "edge-1");
    let core = json!({"event": {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "shop"},
        "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "p"}, "type": "Warning",
        "reason": "BackOff", "message": "again", "count": 3, "source": {"component": "x", "host": "edge-2"},
        "firstTimestamp": "2024-01-02T00:00:00Z", "lastTimestamp": "2024-01-02T00:00:01Z",
    }});
    let kept = kept(core);
    assert_eq!(kept.fields()["deprecatedSource"], json!({"component": "x", "host": "edge-1"}));
    assert_eq!(
        (&kept.fields()["regarding"]["uid"], &kept.fields()["reportingInstance"]),
        (&json!("here"), &json!("edge-1"))
    );

    let (reason, message) = refused(Lane::Bulk, event("kube-system"));
    assert_eq!(
        (reason, &*message),
        (RefusedReason::Invalid, "metadata.namespace: must not be 'kube-system'")
    );
}

#[test]
fn events_beyond_the_rate_are_refused_and_statuses_are_not() {
    let upload = upload(Lane::Status, &[event("default"), status("here", "Pod", "p", json!({}))]);
    assert_eq!(References::of(&upload).event_tokens(), 1);
    let mut targets = targets(&upload);
    targets.refuse_events();
    let batch = prepare((&node_name("edge-1"), Epoch(7)), &upload, &targets, builtin);
    let taken: Vec<bool> = batch.items.iter().map(|item| item.effect.is_ok()).collect();
    assert_eq!(taken, [false, true]);
    assert_eq!([0, 1, 2048, 2049, 72 << 10].map(event_tokens), [1, 1, 1, 2, 36]);
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
    let batch = prepare((&node_name("edge-1"), Epoch(7)), &upload, &targets(&upload), builtin);
    let taken: Vec<_> = batch.items.iter().map(|item| (item.seq, item.effect.is_ok())).collect();
    assert_eq!(taken, [(7, false), (8, false), (9, false), (10, true)]);
}

/// UIDs of the objects that are placed on the node.
const PLACED: [&str; 3] = ["here", "lamp", "of-system"];

/// Asserts that an effect concerns the node itself or an object that is placed on it.
fn assert_own(effect: &Effect) {
    match effect {
        Effect::Node(_) => {}
        Effect::Status { uid, .. } => assert!(PLACED.contains(&&**uid), "{uid}"),
        Effect::InEffect { effect, known, .. } => assert_eq!(*known, PLACED.contains(&&*effect.uid)),
        Effect::Event(event) => {
            let uid = event.fields()["regarding"]["uid"].as_str().unwrap();
            assert!(uid == "edge-1" || PLACED.contains(&uid), "{uid}");
            assert_eq!(event.fields()["reportingInstance"], "edge-1");
            assert_ne!(event.namespace(), SYSTEM);
        }
    }
}

/// Returns contents of all types: about the node, about objects on it, and about others.
fn contents() -> [Value; 9] {
    let pod = json!({"kind": "Pod", "namespace": "shop", "name": "p", "uid": "here"});
    [
        json!({"node": {"labels": {"a": "b"}, "status": {"capacity": {"memory": "1Gi"}}}}),
        status("here", "Pod", "p", json!({"phase": "Running"})),
        status("secret", "Secret", "s", json!({})),
        effect("here", "p", "InEffect"),
        effect("elsewhere", "q", "NotInEffect"),
        event("default"),
        event(SYSTEM),
        about("shop", pod),
        about("shop", json!({"kind": "Secret", "namespace": "shop", "name": "s", "uid": "secret"})),
    ]
}

/// A device affects itself and its own objects only, with any upload.
#[test]
fn fuzz_uploads() {
    let (placement, node) = (placement(), node_name("edge-1"));
    fuzz("upload", &contents().map(|content| content.to_string().into_bytes()), |bytes| {
        let Ok(content) = String::from_utf8(bytes.to_vec()) else { return };
        let Ok(content) = RawValue::from_string(content) else { return };
        for lane in Lane::ALL {
            let items = vec![UploadItem { seq: 7, content: content.clone() }];
            let upload = Upload { session: "s".into(), outbox: "o".into(), lane, confirmed: 6, items };
            let targets = References::of(&upload).resolve(&node, &placement.on(&node), |_| None);
            let batch = prepare((&node, Epoch(7)), &upload, &targets, builtin);
            batch.items.iter().flat_map(|item| &item.effect).for_each(assert_own);
        }
    });
}

/// The same from the bytes of a whole frame, whose items share their references.
#[test]
fn fuzz_frames_of_uploads() {
    let (placement, node) = (placement(), node_name("edge-1"));
    let limit = DEFAULT_MAX_FRAME as usize;
    let frames = Lane::ALL.map(|lane| Up::Upload(upload(lane, &contents())));
    let mut samples = files("frames/0.1.0/up", ".json");
    for frame in &frames {
        samples.extend([0, usize::MAX].map(|above| frame.encode(above).unwrap()));
    }
    fuzz("upload-frame", &samples, |bytes| {
        let Ok(Up::Upload(upload)) = Up::decode(bytes, &mut Budget::of(limit)) else { return };
        let mut targets = References::of(&upload).resolve(&node, &placement.on(&node), |_| None);
        for is_within_rate in [true, false] {
            if !is_within_rate {
                targets.refuse_events();
            }
            let batch = prepare((&node, Epoch(7)), &upload, &targets, builtin);
            assert!(batch.items.iter().map(|item| item.seq).eq(upload.items.iter().map(|item| item.seq)));
            for item in &batch.items {
                match &item.effect {
                    Ok(effect) => {
                        assert!(is_within_rate || !matches!(effect, Effect::Event(_)), "{effect:?}");
                        assert_own(effect);
                    }
                    Err((_, message)) => assert!(message.len() <= MAX_MESSAGE, "{message}"),
                }
            }
        }
    });
}

proptest! {
    #[test]
    fn nothing_panics_and_every_item_has_an_answer(
        word in prop_oneof!["node", "status", "event", "effect", "[a-z]{1,6}"],
        text in ".{0,300}",
        number: i64,
    ) {
        let values = [json!(text), json!(number), json!({ &text: number }), json!({"uid": text, "status": {}})];
        for lane in Lane::ALL {
            let contents: Vec<Value> = values.iter().map(|value| json!({ &word: value })).collect();
            let upload = upload(lane, &contents);
            let batch = prepare((&node_name("edge-1"), Epoch(7)), &upload, &targets(&upload), builtin);
            prop_assert_eq!(batch.items.len(), contents.len());
            for item in batch.items {
                if let Err((_, message)) = item.effect {
                    prop_assert!(message.len() <= MAX_MESSAGE);
                }
            }
        }
    }
}
