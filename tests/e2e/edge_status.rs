//! The real kubectl changes the status of what a node holds: on the node, without the cloud.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use crate::kubectl;
use crate::site;
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

/// A node that holds [`OBJECTS`] and has lost its cloud.
async fn alone() -> (Edge, Cluster) {
    let mut cluster = Cluster::start().await;
    let edge = Edge::start(&cluster, NODE).await;
    cluster.apply(ROBOTS);
    cluster.kubectl(&["wait", "--for=condition=Established", "crd/robots.lab.io", "--timeout=30s"]).ok();
    cluster.apply(OBJECTS);
    cluster.cloud.in_sync(NODE, 3).await;
    assert!(cluster.cloud.process.terminate(PATIENCE).await.success());
    edge.agent.until("the cloud is gone", |status| status["sync"]["inSync"] == false).await;
    (edge, cluster)
}

fn patch<'a>(object: &'a str, kind: &'a str, patch: &'a str) -> [&'a str; 7] {
    ["patch", object, "--subresource=status", "--type", kind, "-p", patch]
}

#[tokio::test]
async fn the_status_is_patched_applied_replaced_and_edited_and_the_rest_stays() {
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

    // It waits on the disk: an agent that was killed goes on from it.
    edge.crash().await;
    assert_eq!(edge.get("pod/web")["status"]["phase"], "Succeeded");
    edge.kubectl(&patch("pod/web", "merge", r#"{"status":{"reason":"Again"}}"#)).ok();
    let status = edge.get("pod/web")["status"].take();
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Succeeded"), &json!("Again")));
}

#[tokio::test]
async fn everything_else_is_refused_and_kinds_without_a_status_have_none() {
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

    // Of a custom kind the definition is not on the node.
    edge.kubectl(&patch("robot/arm", "merge", r#"{"status":{"position":[1,2]},"spec":{"speed":9}}"#)).ok();
    let robot = edge.get("robot/arm");
    assert_eq!((&robot["status"], &robot["spec"]), (&json!({"position": [1, 2]}), &json!({"speed": 3})));
    let rows = edge.kubectl(&["get", "--raw", "/apis/lab.io/v1"]).json();
    let status = rows["resources"].as_array().unwrap().iter().find(|entry| entry["name"] == "robots/status");
    assert_eq!(status.unwrap()["verbs"], json!(["get", "patch", "update"]));
}

/// A field of a message in Protocol Buffers that is a text or a message.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
}

/// Clients in Go write a status of a built-in kind as Protocol Buffers, and have no other way.
#[tokio::test]
async fn a_status_is_written_as_go_clients_write_it() {
    let (edge, _cluster) = alone().await;
    let pod = [field(1, &field(1, b"web")), field(2, &field(10, b"edge-1")), field(3, &field(1, b"Running"))];
    let kind = [field(1, b"v1"), field(2, b"Pod")].concat();
    let body = [b"k8s\0".to_vec(), field(1, &kind), field(2, &pod.concat())].concat();
    let mut stream = UnixStream::connect(&edge.agent.socket).await.unwrap();
    let head = format!(
        "PUT /api/v1/namespaces/default/pods/web/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/vnd.kubernetes.protobuf\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(edge.get("pod/web")["status"]["phase"], "Running");
}
