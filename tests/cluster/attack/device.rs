//! The certificate of one device: what it names in its uploads, and how many Events it creates.

use serde_json::{Value, json};

use super::{Attack, PATIENCE, holds, object};
use edgesync_protocol::upload::{Lane, RefusedReason, UploadConfirm};
use edgesync_testkit::site::fleet::in_sync;
use edgesync_testkit::site::{Scripted, eventually};

/// The node of the stolen certificate.
const NODE: &str = "edge-1";
/// A UID that no object has.
const INVENTED: &str = "00000000-0000-4000-8000-000000000000";
/// Number of Events of the flood, the bytes of each, and how many go into a frame.
const EVENTS: usize = 2_000;
const EVENT_BYTES: usize = 70_000;
const EVENTS_PER_FRAME: usize = 3;
/// The largest number of Events in the cluster, a small one among them: `nodes.max_events` counts
/// each 2 KiB.
const MAX_EVENTS: usize = 1_000 / (EVENT_BYTES / 2_048 + 1) + 1;

/// Places the Widget `press` on both nodes, and a Secret and a ConfigMap on the other node alone;
/// then connects with the stolen certificate.
async fn connected(attack: &Attack) -> Scripted {
    let placement = |name: &str, objects: Value, node: &str| {
        json!({
            "apiVersion": "edgesync.io/v1alpha1", "kind": "Placement",
            "metadata": {"name": name, "namespace": "plant"},
            "spec": {"objects": objects, "nodes": {"names": [node]}},
        })
    };
    let mut press = object("Widget", "plant", "press");
    press["apiVersion"] = "example.com/v1".into();
    let (hidden, other) = (object("Secret", "plant", "hidden"), object("ConfigMap", "plant", "other"));
    attack.apply(&[
        &press,
        &hidden,
        &other,
        &placement("both", json!({"kinds": ["widgets.example.com"]}), "*"),
        &placement("one", json!({"kinds": ["secrets", "configmaps"]}), "edge-2"),
    ]);
    // The replica knows them all.
    holds(&attack.other, &[&press, &hidden, &other]).await;
    let mut node = Scripted::connect_as(&attack.stolen, attack.replica.fleet.cloud.mqtt).await;
    node.welcome().await;
    node.is_sent("press").await;
    node.report().await;
    node
}

fn reference(kind: &str, namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "namespace": namespace, "name": name})
}

/// Returns the reference to the object that is placed on the node.
fn press() -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "namespace": "plant", "name": "press"})
}

fn status(uid: &str, object: &Value) -> Value {
    json!({"status": {"uid": uid, "object": object, "status": {"phase": "Running"}}})
}

fn effect(uid: &str, object: &Value, state: &str) -> Value {
    json!({"effect": {"uid": uid, "object": object, "wanted": "1", "state": state, "since": 1}})
}

/// Returns the refusals of a confirm: reasons and words.
fn refusals(confirm: &UploadConfirm) -> Vec<(RefusedReason, String)> {
    confirm.refused.iter().map(|refused| (refused.reason, refused.message.clone())).collect()
}

fn reasons(confirm: &UploadConfirm) -> Vec<RefusedReason> {
    confirm.refused.iter().map(|refused| refused.reason).collect()
}

impl Attack {
    fn uid(&self, kind: &str, namespace: &str, name: &str) -> String {
        let object = self.setup.get(&[kind, name, "-n", namespace]);
        object["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Returns the number of requests for objects in the namespace of the keys.
    fn requests_for_keys(&self) -> usize {
        let requests = self.requests_of_replica();
        requests.iter().filter(|request| request.namespace == "edgesync-ca").count()
    }

    /// Returns the Events in the cluster that the attacker has created.
    fn events(&self) -> Vec<Value> {
        let mut events = self.setup.get(&["events", "--all-namespaces"]);
        let Value::Array(items) = events["items"].take() else { panic!("{events}") };
        let is_its = |event: &Value| event["metadata"]["annotations"]["edgesync.io/node"] == NODE;
        items.into_iter().filter(is_its).collect()
    }
}

/// Reports status and effects of an object, with all UIDs. Returns the refusals, which are the
/// same for each UID.
async fn ask(node: &mut Scripted, object: &Value, uids: &[&str]) -> Vec<(RefusedReason, String)> {
    let mut answers = Vec::new();
    for uid in uids {
        let items = [status(uid, object), effect(uid, object, "NotInEffect"), effect(uid, object, "Gone")];
        answers.push(refusals(&node.upload(Lane::Status, &items).await));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{object}: {answers:?}");
    answers.remove(0)
}

/// A reference to an unplaced object causes no request, and gets the same answer whether it exists
/// or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn a_device_learns_of_no_object_elsewhere() {
    let attack = Attack::start(&[]).await;
    let mut node = connected(&attack).await;
    let uids = [
        attack.uid("secret", "plant", "hidden"),
        attack.uid("configmap", "plant", "other"),
        attack.uid("secret", "edgesync-ca", "edgesync-ca"),
    ];
    let uids: Vec<&str> = uids.iter().map(String::as_str).chain([INVENTED]).collect();
    let before = attack.requests_for_keys();

    // The names are of the same length, so the answers are, too.
    for (kind, namespace, existing, absent) in [
        ("Secret", "plant", "hidden", "absent"),
        ("ConfigMap", "plant", "other", "never"),
        ("Secret", "edgesync-ca", "edgesync-ca", "edgesync-cb"),
        ("Secret", "edgesync", "edgesync-member.edge-2", "edgesync-member.edge-9"),
        ("Node", "", "edge-2", "edge-9"),
    ] {
        let answers = [
            ask(&mut node, &reference(kind, namespace, existing), &uids).await,
            ask(&mut node, &reference(kind, namespace, absent), &uids).await,
        ];
        let words = answers.each_ref().map(|answer| answer.iter().map(|(_, words)| words.as_str()));
        let words = words.map(|words| words.collect::<Vec<_>>().join("\n"));
        assert_eq!(words[0], words[1].replace(absent, existing));
        let expected = [RefusedReason::NotPlaced; 2];
        assert!(answers.iter().all(|answer| answer.iter().map(|(reason, _)| *reason).eq(expected)));
    }
    // Kinds that there are, and kinds that a replica might guess.
    for kind in ["Secrets", "SecretList", "Widget", "PodExecOptions", "Absent"] {
        let answer = ask(&mut node, &reference(kind, "plant", "hidden"), &uids).await;
        let words = format!("{kind} 'plant/hidden' is not placed on this node");
        assert_eq!(answer, [(RefusedReason::NotPlaced, words.clone()), (RefusedReason::NotPlaced, words)]);
    }

    let own = attack.uid("widget", "plant", "press");
    let long = "x".repeat(254);
    let names = ["", "?x=1", "../secrets/hidden", "a b", "a/b", "%2e%2e", long.as_str()];
    let kinds = ["", "x/../../../api/v1/secrets", "Secret?x=1", long.as_str()];
    let namespaces = ["../..", "?x=1", long.as_str()];
    let mut malformed = Vec::new();
    malformed.extend(names.map(|name| reference("ConfigMap", "plant", name)));
    malformed.extend(kinds.map(|kind| reference(kind, "plant", "hidden")));
    malformed.extend(namespaces.map(|namespace| reference("Secret", namespace, "hidden")));
    let mut version = reference("Secret", "plant", "hidden");
    version["apiVersion"] = "v1/../../api".into();
    malformed.push(version);
    for object in &malformed {
        for uid in [own.as_str(), INVENTED] {
            let items = [status(uid, object), effect(uid, object, "NotInEffect")];
            let confirm = node.upload(Lane::Status, &items).await;
            assert_eq!(reasons(&confirm), [RefusedReason::Invalid; 2], "{object}: {confirm:?}");
        }
    }

    // The same items about an object that is placed on the node.
    let items = [status(&own, &press()), effect(&own, &press(), "NotInEffect")];
    let confirm = node.upload(Lane::Status, &items).await;
    assert_eq!(reasons(&confirm), [], "{confirm:?}");
    let widget = attack.setup.get(&["widget", "press", "-n", "plant"]);
    assert_eq!(widget["status"]["phase"], "Running");

    let requests: Vec<String> = attack.requests_of_replica().iter().map(ToString::to_string).collect();
    let found = |text: &str| requests.iter().find(|request| request.contains(text));
    assert!(found("/namespaces/plant/widgets/press").is_some(), "{requests:#?}");
    for uid in &uids {
        assert_eq!(found(&format!("{NODE}.{uid}")), None);
    }
    for text in [
        "/plant/secrets/",
        "/plant/configmaps/",
        "/nodes/edge-9",
        "/secretlists",
        "/absents",
        "x=1",
        "..",
        INVENTED,
        long.as_str(),
    ] {
        assert_eq!(found(text), None, "{text}");
    }
    assert_eq!(attack.requests_for_keys(), before);
}

/// Builds an Event in the name of another node.
fn event((namespace, name): (&str, &str), regarding: &Value, bytes: usize) -> Value {
    json!({"event": {
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": name, "namespace": namespace, "annotations": {"filler": "x".repeat(bytes)}},
        "eventTime": "2026-11-22T00:00:00.000000Z", "type": "Normal", "reason": "Test", "action": "Test",
        "reportingController": "kubelet", "reportingInstance": "edge-2", "note": "a test",
        "regarding": regarding,
    }})
}

/// Events without end, about anything, in the name of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn a_device_creates_few_events_and_all_in_its_name() {
    let attack = Attack::start(&[]).await;
    let mut node = connected(&attack).await;
    let forged = [
        event(("default", "f1"), &json!({"kind": "Node", "name": "edge-2"}), 0),
        event(("plant", "f2"), &reference("ConfigMap", "plant", "other"), 0),
        event(("plant", "f3"), &reference("Secret", "plant", "absent"), 0),
        event(("edgesync-ca", "f4"), &reference("Secret", "edgesync-ca", "edgesync-ca"), 0),
        event(("kube-system", "f5"), &json!({"kind": "Node", "name": NODE}), 0),
    ];
    let confirm = node.upload(Lane::Bulk, &forged).await;
    let expected = [[RefusedReason::NotPlaced; 4].as_slice(), &[RefusedReason::Invalid]].concat();
    assert_eq!(reasons(&confirm), expected, "{confirm:?}");
    assert_eq!(attack.events().len(), 0);
    let own = [event(("plant", "own"), &press(), 0)];
    let confirm = node.upload(Lane::Bulk, &own).await;
    assert_eq!(reasons(&confirm), [], "{confirm:?}");
    assert_eq!(attack.events().len(), 1);

    // The lane of statuses, because Events there get an answer at once.
    let numbers: Vec<usize> = (0..EVENTS).collect();
    let mut accepted = 0;
    for (frame, numbers) in numbers.chunks(EVENTS_PER_FRAME).enumerate() {
        let event = |number: &usize| event(("plant", &format!("e{number}")), &press(), EVENT_BYTES);
        let items: Vec<Value> = numbers.iter().map(event).collect();
        let confirm = node.upload(Lane::Status, &items).await;
        assert!(confirm.refused.iter().all(|refused| refused.reason == RefusedReason::Other), "{confirm:?}");
        accepted += items.len() - confirm.refused.len();
        if frame % 100 == 10 {
            let count = attack.events().len();
            assert!(count <= MAX_EVENTS, "{count} after {frame} frames");
        }
    }
    assert!((1..EVENTS / 10).contains(&accepted), "{accepted}");
    let events = attack.events();
    assert!((2..=MAX_EVENTS).contains(&events.len()), "{}", events.len());
    for event in &events {
        let metadata = &event["metadata"];
        assert_eq!((&metadata["namespace"], &event["reportingInstance"]), (&json!("plant"), &json!(NODE)));
        assert_eq!(event["involvedObject"]["name"], "press", "{metadata}");
    }
    let system = attack.setup.get(&["events", "-n", "kube-system"]);
    assert!(!system.to_string().contains(NODE), "{system:#}");

    // The other node goes on.
    in_sync(&attack.other).await;
    let more = object("ConfigMap", "plant", "more");
    attack.apply(&[&more]);
    holds(&attack.other, &[&more]).await;
    eventually("the other node is in sync", PATIENCE, async || {
        (attack.replica.fleet.cloud.state("edge-2").await? == "in sync").then_some(())
    })
    .await;
}
