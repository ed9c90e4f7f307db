//! A device that was taken over, with a valid certificate: what it names in its uploads to a
//! replica.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use edgesync_protocol::upload::{Lane, RefusedReason, UploadConfirm};
use serde_json::{Value, json};

use crate::cluster::audit::Audit;
use crate::cluster::setup::{Setup, config_map};
use edgesync_testkit::site::{Cloud, Scripted, Site};

const NODE: &str = "edge-1";
/// Places the ConfigMap `mine` of the namespace `shop` on all nodes, and nothing else.
const MINE: &str = "{apiVersion: edgesync.io/v1alpha1, kind: Placement, metadata: {name: mine, namespace: shop}, \
     spec: {objects: {kinds: [configmaps], names: [mine]}, nodes: {names: ['*']}}}";

/// A replica over a real cluster, and the device that holds the ConfigMap `mine`.
struct Attack {
    setup: Setup,
    node: Scripted,
    _cloud: Cloud,
    _home: Site,
}

impl Attack {
    async fn start(arguments: &[String]) -> Self {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let setup = Setup::start_with(&arguments).await;
        setup.apply(MINE);
        setup.apply(&config_map("mine", "fast"));
        setup.apply(&config_map("other", "fast"));
        setup
            .admin
            .run(&["create", "secret", "generic", "hidden", "-n", "shop", "--from-literal=pin=1"])
            .ok();
        let home = Site::new();
        let mut cloud = setup.replica(&home);
        cloud.settings.set("nodes.max_events", "10");
        cloud.run().await;
        let mut node = Scripted::connect(NODE, cloud.mqtt).await;
        node.welcome().await;
        // New objects are sent once the replica is current.
        node.is_sent("mine").await;
        Self { setup, node, _cloud: cloud, _home: home }
    }

    fn uid(&self, object: &str) -> String {
        let object = self.setup.admin.run(&["get", object, "-n", "shop", "-o", "json"]).json();
        object["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Returns the Events that the node has created in the cluster.
    fn events(&self) -> Vec<Value> {
        let is_its = |event: &Value| event["metadata"]["annotations"]["edgesync.io/node"] == NODE;
        self.setup.list("events").into_iter().filter(is_its).collect()
    }
}

fn reference(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "namespace": "shop", "name": name})
}

fn status(uid: &str, object: &Value) -> Value {
    json!({"status": {"uid": uid, "object": object, "status": {"phase": "Running"}}})
}

fn effect(uid: &str, object: &Value, state: &str) -> Value {
    json!({"effect": {"uid": uid, "object": object, "wanted": "1", "state": state, "since": 1}})
}

fn reasons(confirm: &UploadConfirm) -> Vec<RefusedReason> {
    confirm.refused.iter().map(|refused| refused.reason).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn references_of_a_device_cause_no_requests() {
    let audit = Audit::new();
    let mut attack = Attack::start(&audit.arguments()).await;
    let (hidden, other) = (attack.uid("secret/hidden"), attack.uid("configmap/other"));
    let mine = attack.uid("configmap/mine");
    let invented = "00000000-0000-4000-8000-000000000000";
    let elsewhere = [
        (&*hidden, reference("Secret", "hidden")),
        (invented, reference("Secret", "hidden")),
        (invented, reference("Secret", "absent")),
        (&*other, reference("ConfigMap", "other")),
        (invented, reference("ConfigMap", "other")),
        (invented, reference("Widget", "absent")),
    ];
    for (uid, object) in &elsewhere {
        let items = [status(uid, object), effect(uid, object, "NotInEffect"), effect(uid, object, "Gone")];
        let confirm = attack.node.upload(Lane::Status, &items).await;
        assert_eq!(reasons(&confirm), [RefusedReason::NotPlaced; 2], "{object}: {confirm:?}");
        // The words are the same whether or not the object exists.
        let words = format!(
            "{} 'shop/{}' is not placed on this node",
            object["kind"].as_str().unwrap(),
            object["name"].as_str().unwrap()
        );
        assert!(confirm.refused.iter().all(|refused| refused.message == words), "{confirm:?}");
    }
    for object in [
        reference("ConfigMap", "?x=1"),
        reference("ConfigMap", "../secrets/hidden"),
        reference("x/../../../api/v1/secret", "hidden"),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": "../..", "name": "mine"}),
        json!({"apiVersion": "v1/../../api", "kind": "ConfigMap", "namespace": "shop", "name": "mine"}),
    ] {
        for uid in [invented, &mine] {
            let items = [status(uid, &object), effect(uid, &object, "NotInEffect")];
            let confirm = attack.node.upload(Lane::Status, &items).await;
            assert_eq!(reasons(&confirm), [RefusedReason::Invalid; 2], "{object}: {confirm:?}");
        }
    }
    // One that is placed on the node is read: ConfigMaps have no status.
    let confirm = attack.node.upload(Lane::Status, &[status(&mine, &reference("ConfigMap", "mine"))]).await;
    assert_eq!(reasons(&confirm), [RefusedReason::Invalid], "{confirm:?}");

    let requests: Vec<String> = audit.requests().iter().map(ToString::to_string).collect();
    let is_read = |text: &str| requests.iter().any(|request| request.contains(text));
    assert!(is_read("get /api/v1/namespaces/shop/configmaps/mine"), "{requests:#?}");
    // Keys and members are Secrets of these.
    let of_edgesync = |request: &&String| {
        ["/namespaces/edgesync/", "/namespaces/edgesync-ca/"].iter().any(|own| request.contains(own))
    };
    for text in ["/secrets/", "/configmaps/other", "/widgets", "x=1", "..", &hidden, &other, invented] {
        let found = requests.iter().filter(|request| request.contains(text) && !of_edgesync(request));
        let found: Vec<&String> = found.collect();
        assert!(found.is_empty(), "{text}: {found:#?}");
    }
}

fn event(name: &str, namespace: &str, regarding: &Value) -> Value {
    json!({"event": {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name, "namespace": namespace},
        "eventTime": "2026-11-22T00:00:00.000000Z", "type": "Normal", "reason": "Test", "action": "Test",
        "reportingController": "example.com/doors", "reportingInstance": "edge-2", "note": "a test",
        "regarding": regarding,
    }})
}

/// An Event of the form that most recorders of client-go write.
fn core_event(count: u64) -> Value {
    json!({"event": {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "core", "namespace": "shop"},
        "involvedObject": reference("ConfigMap", "mine"), "type": "Warning", "reason": "BackOff",
        "message": "again", "count": count, "source": {"component": "doors", "host": "edge-2"},
        "firstTimestamp": "2026-11-22T00:00:00Z", "lastTimestamp": "2026-11-22T00:00:01Z",
    }})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn events_of_a_device_are_its_own_and_bounded() {
    let mut attack = Attack::start(&[]).await;
    let node = json!({"kind": "Node", "name": NODE});
    let forged = [
        event("f1", "default", &json!({"kind": "Node", "name": "edge-2"})),
        event("f2", "shop", &reference("ConfigMap", "other")),
        event("f3", "shop", &reference("Secret", "hidden")),
        event("f4", "shop", &reference("Secret", "absent")),
        event("f5", "kube-system", &node),
    ];
    let confirm = attack.node.upload(Lane::Bulk, &forged).await;
    let expected = [[RefusedReason::NotPlaced; 4].as_slice(), &[RefusedReason::Invalid]].concat();
    assert_eq!(reasons(&confirm), expected, "{confirm:?}");
    assert_eq!(attack.events().len(), 0);

    let confirm = attack.node.upload(Lane::Bulk, &[core_event(1), core_event(7)]).await;
    assert_eq!(reasons(&confirm), [], "{confirm:?}");
    let own = [event("mine", "shop", &reference("ConfigMap", "mine")), event("node", "default", &node)];
    let confirm = attack.node.upload(Lane::Bulk, &own).await;
    assert_eq!(reasons(&confirm), [], "{confirm:?}");
    let events = attack.events();
    let named = |name: &str| events.iter().find(|event| event["metadata"]["name"] == name).unwrap();
    assert_eq!((&named("core")["count"], &named("core")["source"]["host"]), (&json!(7), &json!(NODE)));
    assert_eq!(named("core")["involvedObject"]["uid"], attack.uid("configmap/mine"));
    assert_eq!(named("mine")["reportingInstance"], NODE);
    // Servers of this version accept Events with a time about Nodes in kube-system only.
    let of_node = named("node");
    assert_eq!((&of_node["metadata"]["namespace"], &of_node["count"]), (&json!("default"), &json!(1)));

    for part in 0..4 {
        let items: Vec<Value> =
            (0..10).map(|number| event(&format!("e{part}{number}"), "default", &node)).collect();
        let confirm = attack.node.upload(Lane::Bulk, &items).await;
        assert_eq!(reasons(&confirm), [], "{confirm:?}");
        let count = attack.events().len();
        assert_eq!(count, 10, "the oldest make room");
    }
    let newest = attack
        .events()
        .iter()
        .filter(|event| event["metadata"]["name"].as_str().unwrap().starts_with("e3"))
        .count();
    assert_eq!(newest, 10);
}
