//! kubectl changes the status of a node's objects: on the node, without the cloud.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use edgesync_admin::agent::AgentStatus;
use edgesync_testkit::kubectl;
use edgesync_testkit::site;
use kubectl::{Cluster, Edge};
use serde_json::{Value, json};
use site::PATIENCE;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

const NODE: &str = "edge-1";

const OBJECTS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default, labels: {app: web}}
spec:
  nodeName: edge-1
  containers:
  - {name: nginx, image: 'nginx:1.27'}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: default}
data: {mode: fast}
---
apiVersion: lab.io/v1
kind: Robot
metadata: {name: arm, namespace: default, labels: {edgesync.io/node: edge-1}}
spec: {speed: 3}
";

const ROBOTS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: robots.lab.io}
spec:
  group: lab.io
  scope: Namespaced
  names: {plural: robots, kind: Robot}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

/// Starts a node that holds [`OBJECTS`] and has lost its cloud.
async fn alone() -> (Edge, Cluster) {
    let mut cluster = Cluster::start().await;
    let edge = Edge::start(&cluster, NODE).await;
    cluster.apply(ROBOTS);
    cluster.kubectl(&["wait", "--for=condition=Established", "crd/robots.lab.io", "--timeout=30s"]).ok();
    cluster.apply(OBJECTS);
    cluster.cloud.in_sync(NODE, 3).await;
    assert!(cluster.cloud.process.terminate(PATIENCE).await.success());
    edge.agent.until("the cloud is gone", |status| !status.sync.in_sync).await;
    (edge, cluster)
}

fn patch<'a>(object: &'a str, kind: &'a str, patch: &'a str) -> [&'a str; 7] {
    ["patch", object, "--subresource=status", "--type", kind, "-p", patch]
}

#[tokio::test]
async fn kubectl_changes_only_the_status_of_node_objects() {
    let (mut edge, _cluster) = alone().await;
    let before = edge.get("pod/web");
    edge.kubectl(&patch(
        "pod/web",
        "strategic",
        r#"{"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#,
    ))
    .ok();
    edge.kubectl(&patch("pod/web", "merge", r#"{"status":{"phase":"Running"},"spec":{"nodeName":"other"}}"#))
        .ok();
    edge.kubectl(&patch("pod/web", "json", r#"[{"op":"add","path":"/status/message","value":"well"}]"#)).ok();
    let shown = edge.get("pod/web");
    assert_eq!(
        (&shown["spec"], &shown["metadata"]["resourceVersion"]),
        (&before["spec"], &before["metadata"]["resourceVersion"])
    );
    assert_eq!(shown["status"]["conditions"][0]["type"], "Ready");
    assert_eq!((&shown["status"]["phase"], &shown["status"]["message"]), (&json!("Running"), &json!("well")));
    let row = &edge.kubectl(&["get", "pods"]).rows()[1];
    assert_eq!(row[2], "Running", "{row:?}");
    let part = edge.kubectl(&["get", "pod", "web", "--subresource=status", "-o", "json"]).json();
    assert_eq!(part["status"], shown["status"]);

    let applied = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
        "status": {"reason": "Testing"}});
    edge.feed(&["apply", "--server-side", "--subresource=status", "--field-manager=prober"], &applied).ok();
    assert_eq!(edge.get("pod/web")["status"]["reason"], "Testing");
    let mut replaced = edge.get("pod/web");
    replaced["status"] = json!({"phase": "Failed"});
    edge.feed(&["replace", "--subresource=status"], &replaced).ok();
    assert_eq!(edge.get("pod/web")["status"]["phase"], "Failed");
    edge.local.editor("sed -i 's/phase: Failed/phase: Succeeded/' \"$1\"");
    edge.kubectl(&["edit", "pod/web", "--subresource=status"]).ok();
    edge.kubectl(&["wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/web", "--timeout=30s"]).ok();

    // The status is on disk, so a killed agent continues with it.
    edge.crash().await;
    assert_eq!(edge.get("pod/web")["status"]["phase"], "Succeeded");
    edge.kubectl(&patch("pod/web", "merge", r#"{"status":{"reason":"Again"}}"#)).ok();
    let status = edge.get("pod/web")["status"].take();
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Succeeded"), &json!("Again")));
}

#[tokio::test]
async fn writes_other_than_status_are_refused_on_a_node() {
    let (edge, _cluster) = alone().await;
    let phase = r#"{"status":{"phase":"Running"}}"#;
    let before: Value = edge.get("pod/web");
    let message = edge.kubectl(&["patch", "pod/web", "-p", phase]).fails_with("(Forbidden)");
    assert!(message.contains("change it on the cloud side"), "{message}");
    edge.kubectl(&["label", "pod/web", "mine=1"]).fails_with("(Forbidden)");
    edge.kubectl(&patch("configmap/settings", "merge", phase)).fails_with("(NotFound)");
    edge.kubectl(&patch("pod/none", "merge", phase)).fails_with("(NotFound)");
    let older = r#"{"metadata":{"resourceVersion":"1"},"status":{"phase":"Running"}}"#;
    edge.kubectl(&patch("pod/web", "merge", older)).fails_with("(Conflict)");
    let dry =
        [&patch("pod/web", "merge", phase)[..], &["--dry-run=server", "-o", "jsonpath={.status.phase}"]]
            .concat();
    edge.kubectl(&dry).says("Running");
    assert_eq!(edge.get("pod/web"), before);

    // The node has no definition of a custom kind.
    edge.kubectl(&patch("robot/arm", "merge", r#"{"status":{"position":[1,2]},"spec":{"speed":9}}"#)).ok();
    let robot = edge.get("robot/arm");
    assert_eq!((&robot["status"], &robot["spec"]), (&json!({"position": [1, 2]}), &json!({"speed": 3})));
    let rows = edge.kubectl(&["get", "--raw", "/apis/lab.io/v1"]).json();
    let status = rows["resources"].as_array().unwrap().iter().find(|entry| entry["name"] == "robots/status");
    assert_eq!(status.unwrap()["verbs"], json!(["get", "patch", "update"]));
}

/// Encodes a varint of Protocol Buffers.
fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap());
    bytes
}

/// Encodes a length-delimited field of Protocol Buffers.
fn field(number: usize, content: &[u8]) -> Vec<u8> {
    [&varint(number << 3 | 2), &varint(content.len()), content].concat()
}

/// Parses a message that has only length-delimited fields.
fn fields(mut message: &[u8]) -> Vec<(usize, &[u8])> {
    let mut fields = Vec::new();
    let number = |message: &mut &[u8]| {
        let length = message.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let (bytes, rest) = message.split_at(length);
        *message = rest;
        bytes.iter().rev().fold(0_usize, |number, byte| number << 7 | usize::from(byte & 0x7f))
    };
    while !message.is_empty() {
        let key = number(&mut message);
        assert_eq!(key & 7, 2);
        let length = number(&mut message);
        let (content, rest) = message.split_at(length);
        fields.push((key >> 3, content));
        message = rest;
    }
    fields
}

/// Converts a server's encoding to that of a client which read the object on the node and requires
/// no version.
fn as_sent(encoded: &[u8], namespace: &str) -> Vec<u8> {
    let label = [field(1, b"edgesync.io/node"), field(2, NODE.as_bytes())].concat();
    let metadata = [field(1, b"status"), field(3, namespace.as_bytes()), field(11, &label)].concat();
    let envelope = fields(encoded.strip_prefix(b"k8s\0").unwrap()).into_iter().map(|(number, content)| {
        if number != 2 {
            return field(number, content);
        }
        let object = fields(content).into_iter();
        let object = object.map(|(number, part)| field(number, if number == 1 { &metadata } else { part }));
        field(2, &object.collect::<Vec<_>>().concat())
    });
    [b"k8s\0".to_vec(), envelope.collect::<Vec<_>>().concat()].concat()
}

/// Removes empty and zero values.
fn said(value: &Value) -> Value {
    let nothing = [json!(null), json!({}), json!([]), json!(""), json!(0), json!(false)];
    match value {
        Value::Object(fields) => {
            let said = fields.iter().map(|(name, value)| (name.clone(), said(value)));
            Value::Object(said.filter(|(_, value)| !nothing.contains(value)).collect())
        }
        Value::Array(items) => items.iter().map(said).collect(),
        other => other.clone(),
    }
}

/// Returns an object of each kind as a real server shows and encodes it.
fn encoded_statuses() -> Vec<(Value, Vec<u8>)> {
    let directory = edgesync_testkit::programs::root().join("tests/fixtures/protobuf/status");
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "bin"));
    let read = |path: &Path| std::fs::read(path).unwrap();
    files
        .map(|path| (serde_json::from_slice(&read(&path.with_extension("json"))).unwrap(), read(&path)))
        .collect()
}

/// Go clients write the status of built-in kinds as Protocol Buffers only.
#[tokio::test]
async fn status_of_every_kind_is_accepted_as_protobuf() {
    let cluster = Cluster::start().await;
    let edge = Edge::start(&cluster, NODE).await;
    let mut statuses = encoded_statuses();
    // The cloud owns the status of these kinds.
    statuses.retain(|(object, _)| !["Namespace", "Node"].contains(&object["kind"].as_str().unwrap()));
    let manifests = statuses.iter().map(|(object, _)| {
        let mut metadata = json!({"name": "status", "labels": {"edgesync.io/node": NODE}});
        metadata["namespace"] = object["metadata"]["namespace"].clone();
        let (api_version, kind, spec) = (&object["apiVersion"], &object["kind"], &object["spec"]);
        json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}).to_string()
    });
    cluster.apply(&manifests.collect::<Vec<_>>().join("\n---\n"));
    cluster.cloud.in_sync(NODE, statuses.len() as u64).await;

    for (object, encoded) in &statuses {
        let (api_version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let root = if api_version.contains('/') { "apis" } else { "api" };
        let place = if namespace.is_empty() { String::new() } else { format!("namespaces/{namespace}/") };
        let plural = kind.to_lowercase() + if kind.ends_with('s') { "es" } else { "s" };
        let body = as_sent(encoded, namespace);
        let mut stream = UnixStream::connect(&edge.agent.socket).await.unwrap();
        let head = format!(
            "PUT /{root}/{api_version}/{place}{plural}/status/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/vnd.kubernetes.protobuf\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{kind}: {answer}");
        let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(said(&answer["status"]), said(&object["status"]), "{kind}");
    }
    let told = |status: &AgentStatus| status.outbox.values().all(|lane| lane.waiting == 0);
    edge.agent.until("the cloud has the statuses", told).await;
    for (object, _) in &statuses {
        let kind = object["kind"].as_str().unwrap();
        let stored = cluster.get(&format!("{kind}/status"));
        assert_eq!(said(&stored["status"]), said(&object["status"]), "{kind}");
    }
}
