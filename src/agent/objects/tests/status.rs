//! The status of synced objects, written through the node's API: the outbox item, and the result of
//! reads.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::*;
use crate::store::MAX_UPLOAD_BYTES;
use edgesync_api::{Access, Address, Limits, Listener, Server, own_uid};
use edgesync_store::seal::{KeySource, SealOptions};

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// A node that holds some objects, and its API.
pub(super) struct Node {
    pub(super) storage: Arc<EdgeObjects>,
    socket: std::path::PathBuf,
    pub(super) dir: tempfile::TempDir,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Node {
    pub(super) async fn holding(changes: Vec<Change>) -> Self {
        Self::with(EdgeOptions::default(), changes).await
    }

    pub(super) async fn with(options: EdgeOptions, changes: Vec<Change>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let storage = open_storage_with(&dir.path().join("edge.db"), options, 1 << 20, LONG).await;
        for change in &changes {
            if let Change::Put(put) = change {
                storage.kinds.register(&put.resource);
            }
        }
        storage.store.apply(changes).await.unwrap();
        let storage = Arc::new(storage);
        let socket = dir.path().join("api.sock");
        let listener = Listener::bind(&Address::Unix(socket.clone())).await.unwrap();
        let server = Server::new(storage.clone(), (), Access::tokens(Vec::new(), own_uid()), Limits::edge());
        let server = tokio::spawn(async move { server.serve(listener, std::future::pending()).await });
        Self { storage, socket, dir, server }
    }

    /// Sends a request. Returns status code and body.
    pub(super) async fn send(&self, method: &str, path: &str, kind: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nuser-agent: test/1\r\n\
             content-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = UnixStream::connect(&self.socket).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}")))
    }

    /// Sends a request that must succeed.
    pub(super) async fn ok(&self, method: &str, path: &str, kind: &str, body: &Value) -> Value {
        let (code, answer) = self.send(method, path, kind, body).await;
        assert!((200..300).contains(&code), "{method} {path}: {answer}");
        answer
    }

    pub(super) async fn get(&self, path: &str) -> Value {
        self.ok("GET", path, "application/json", &Value::Null).await
    }

    async fn patch(&self, path: &str, status: Value) -> Value {
        self.ok("PATCH", path, MERGE, &json!({ "status": status })).await
    }

    /// Returns the pending status of an object.
    async fn waiting(&self, uid: &str) -> Option<Value> {
        let item = self.storage.store.outbox_item(Lane::Status, format!("status/{uid}")).await.unwrap();
        item.map(|content| serde_json::from_str::<Value>(&content).unwrap()["status"].take())
    }

    fn rows(&self) -> u64 {
        self.storage.store.outbox().borrow().marks.rows.status
    }

    /// Returns the last number of the lane.
    fn last(&self) -> u64 {
        self.storage.store.outbox().borrow().marks.last.status
    }

    async fn put(&self, changes: Vec<Change>) {
        self.storage.store.apply(changes).await.unwrap();
    }
}

const POD: &str = "/api/v1/namespaces/ns/pods/web";
const POD_STATUS: &str = "/api/v1/namespaces/ns/pods/web/status";

fn object(word: &str, name: &str, uid: &str, version: u64, status: Value) -> Change {
    let resource = resource(word);
    let mut body = json!({"apiVersion": resource.api_version(), "kind": resource.kind,
        "metadata": {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1},
        "spec": {"containers": [{"name": "c", "image": "nginx"}]}});
    body["status"] = status;
    put_body(resource, name, uid, version, &body)
}

fn put_body(resource: Arc<Resource>, name: &str, uid: &str, version: u64, body: &Value) -> Change {
    Change::Put(Put {
        uid: uid.into(),
        version: version.into(),
        supersedes: None,
        resource,
        namespace: "ns".into(),
        name: name.into(),
        body: RawValue::from_string(body.to_string()).unwrap(),
    })
}

fn pod(version: u64, status: Value) -> Change {
    object("pods", "web", "u-1", version, status)
}

async fn node() -> Node {
    Node::holding(vec![pod(5, json!({"phase": "Pending", "qosClass": "BestEffort"}))]).await
}

#[tokio::test]
async fn a_pending_status_is_shown_and_the_row_is_unchanged() {
    let node = node().await;
    let pods = resource("pods");
    let stored =
        node.storage.store.get(pods.clone(), "ns".into(), "web".into()).await.unwrap().expect("it is held");
    let (before, versions) = (node.get(POD).await, node.storage.store.versions());
    let answer = node.patch(POD_STATUS, json!({"phase": "Running"})).await;
    let mut expected = before.clone();
    expected["status"] = json!({"phase": "Running", "qosClass": "BestEffort"});
    assert_eq!(answer, expected, "everything else and the version are as before");
    let item = json!({"uid": "u-1", "status": expected["status"],
        "object": {"apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "web"}});
    assert_eq!(node.waiting("u-1").await, Some(item));

    for path in [POD, POD_STATUS] {
        assert_eq!(node.get(path).await, expected);
    }
    let list = node.get("/api/v1/pods").await;
    assert_eq!(list["items"][0]["status"], expected["status"]);
    let again = node.storage.store.get(pods, "ns".into(), "web".into()).await.unwrap();
    assert_eq!((again, node.storage.store.versions()), (Some(stored), versions));

    // The next write continues from the pending one, and replaces it.
    let answer = node.patch(POD_STATUS, json!({"message": "well", "qosClass": null})).await;
    let status = json!({"phase": "Running", "message": "well"});
    assert_eq!(answer["status"], status);
    assert_eq!(node.waiting("u-1").await.unwrap()["status"], status);
    assert_eq!(node.rows(), 1);
}

#[tokio::test]
async fn every_patch_type_and_put_write_only_the_status() {
    let node = node().await;
    let conditions = |ready: &str| json!([{"type": "Ready", "status": ready}]);
    let strategic = json!({"metadata": {"labels": {"mine": "1"}}, "spec": {"nodeName": "x"},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let answer = node.ok("PATCH", POD_STATUS, STRATEGIC, &strategic).await;
    assert_eq!(answer["status"]["conditions"], conditions("False"));
    let strategic = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let answer = node.ok("PATCH", POD_STATUS, STRATEGIC, &strategic).await;
    assert_eq!(answer["status"]["conditions"], conditions("True"), "merged by type");
    let operations = json!([{"op": "replace", "path": "/status/phase", "value": "Running"},
        {"op": "add", "path": "/spec/nodeName", "value": "x"}]);
    let answer = node.ok("PATCH", POD_STATUS, JSON_PATCH, &operations).await;
    assert_eq!(answer["status"]["phase"], "Running");
    assert_eq!(answer["status"]["conditions"], conditions("True"));

    let mut whole = answer.clone();
    whole["spec"]["nodeName"] = json!("x");
    whole["metadata"]["labels"] = json!({"mine": "1"});
    whole["status"] = json!({"phase": "Failed"});
    let answer = node.ok("PUT", POD_STATUS, "application/json", &whole).await;
    assert_eq!(answer["status"], json!({"phase": "Failed"}));
    assert_eq!(answer["spec"], json!({"containers": [{"name": "c", "image": "nginx"}]}));
    assert_eq!(answer["metadata"].get("labels"), None);
    whole.as_object_mut().unwrap().remove("status");
    node.ok("PUT", POD_STATUS, "application/json", &whole).await;
    assert_eq!(node.waiting("u-1").await.unwrap()["status"], json!({}));
}

#[tokio::test]
async fn an_applied_status_has_field_owners_while_the_agent_runs() {
    let node = node().await;
    let apply = async |manager: &str, status: Value| {
        let path = format!("{POD_STATUS}?fieldManager={manager}");
        let body = json!({"apiVersion": "v1", "kind": "Pod", "status": status});
        node.send("PATCH", &path, APPLY, &body).await
    };
    // Fields from the cloud have no owner and cause no conflict.
    let (code, answer) = apply("one", json!({"phase": "Running", "message": "mine"})).await;
    assert_eq!((code, &answer["status"]["phase"]), (200, &json!("Running")), "{answer}");
    let (code, answer) = apply("two", json!({"phase": "Failed"})).await;
    assert_eq!(code, 409, "{answer}");
    assert_eq!(answer["details"]["causes"][0]["field"], ".status.phase");
    let (code, _) = apply("two", json!({"reason": "Evicted"})).await;
    assert_eq!(code, 200);
    // The cloud's version comes without the record, and the owner can still remove what it has set.
    let settled = node.last();
    node.storage.store.settle_outbox(Lane::Status, settled);
    let status =
        json!({"phase": "Running", "message": "mine", "reason": "Evicted", "qosClass": "BestEffort"});
    node.put(vec![pod(6, status)]).await;
    let (code, answer) = apply("one", json!({"phase": "Succeeded"})).await;
    assert_eq!(code, 200, "{answer}");
    let expected = json!({"phase": "Succeeded", "reason": "Evicted", "qosClass": "BestEffort"});
    assert_eq!(answer["status"], expected);
    let managed = answer["metadata"]["managedFields"].as_array().unwrap();
    assert!(managed.iter().all(|entry| entry["subresource"] == "status"), "{managed:?}");
    assert_eq!(node.get(POD).await["metadata"], answer["metadata"]);
}

#[tokio::test]
async fn synced_objects_are_read_only_except_for_the_status() {
    let config = put(resource("cm"), 1, 1, 5);
    let deployment = object("deployments", "app", "u-2", 5, json!({}));
    let node = Node::holding(vec![pod(5, json!({"phase": "Pending"})), config, deployment]).await;
    let patch = json!({"spec": {"nodeName": "x"}, "status": {"phase": "Running"}});
    let record = "/apis/reliablesyncs.kubeedge.io/v1alpha1/namespaces/ns/objectsyncs/gw-1.u-1";
    for (method, path) in [
        ("PATCH", POD.to_owned()),
        ("PUT", POD.to_owned()),
        ("DELETE", POD.to_owned()),
        ("PATCH", format!("{record}/status")),
        ("PATCH", "/api/v1/nodes/gw-1/status".to_owned()),
    ] {
        let (code, answer) = node.send(method, &path, MERGE, &patch).await;
        assert_eq!(code, 403, "{method} {path}: {answer}");
        assert!(answer["message"].as_str().unwrap().contains("on the cloud side"), "{answer}");
    }
    for path in [
        "/api/v1/namespaces/ns-1/configmaps/o-1/status",
        "/api/v1/namespaces/ns/secrets/any/status",
        "/api/v1/namespaces/ns/pods/none/status",
        "/apis/coordination.k8s.io/v1/namespaces/ns/leases/any/status",
    ] {
        let (code, answer) = node.send("PATCH", path, MERGE, &patch).await;
        assert_eq!(code, 404, "{path}: {answer}");
    }
    assert_eq!(node.send("DELETE", POD_STATUS, MERGE, &Value::Null).await.0, 405);
    assert_eq!(node.rows(), 0);

    let resources = node.get("/api/v1").await["resources"].clone();
    let verbs = |name: &str| {
        let entry = resources.as_array().unwrap().iter().find(|entry| entry["name"] == name);
        entry.map(|entry| entry["verbs"].clone())
    };
    assert_eq!(verbs("pods"), Some(json!(["get", "list", "watch"])));
    assert_eq!(verbs("pods/status"), Some(json!(["get", "patch", "update"])));
    assert_eq!(verbs("nodes/status"), Some(json!(["get"])));
    assert_eq!(verbs("configmaps/status"), None);
}

#[tokio::test]
async fn a_refused_or_empty_write_leaves_no_outbox_item() {
    let node = node().await;
    let send = async |path: &str, body: Value| node.send("PATCH", path, MERGE, &body).await;
    let version = node.get(POD).await["metadata"]["resourceVersion"].clone();
    let older = (version.as_str().unwrap().parse::<u64>().unwrap() - 1).to_string();
    let status = json!({"phase": "Running"});
    for (metadata, expected) in [(json!({"resourceVersion": older}), 409), (json!({"uid": "other"}), 409)] {
        let (code, answer) = send(POD_STATUS, json!({"metadata": metadata, "status": status})).await;
        assert_eq!(code, expected, "{answer}");
    }
    let large = json!({"status": {"message": "x".repeat(MAX_UPLOAD_BYTES - 100)}});
    assert_eq!(send(POD_STATUS, large).await.0, 413, "with the name of the object it is too large");
    assert_eq!(send(POD_STATUS, json!({"status": {"phase": 7}})).await.0, 400);
    assert_eq!(send(POD_STATUS, json!({"status": {"phase": "Pending"}})).await.0, 200);
    let dry = format!("{POD_STATUS}?dryRun=All");
    let (code, answer) = send(&dry, json!({"status": status})).await;
    assert_eq!((code, &answer["status"]["phase"]), (200, &json!("Running")));
    assert_eq!((node.rows(), node.last()), (0, 0));
    assert_eq!(node.get(POD).await["status"]["phase"], "Pending");

    let (code, _) =
        send(POD_STATUS, json!({"metadata": {"resourceVersion": version}, "status": status})).await;
    assert_eq!(code, 200);
    let last = node.last();
    node.patch(POD_STATUS, status).await;
    assert_eq!((node.rows(), node.last()), (1, last), "it waits already");
}

#[tokio::test]
async fn concurrent_writers_do_not_revert_each_other() {
    let node = node().await;
    // Each adds a different condition.
    let patch =
        |number| json!({"status": {"conditions": [{"type": format!("t{number}"), "status": "True"}]}});
    let patches: Vec<Value> = (0..12).map(patch).collect();
    let sent = patches.iter().map(|patch| node.send("PATCH", POD_STATUS, STRATEGIC, patch));
    let answers = futures::future::join_all(sent).await;
    let written = answers.iter().filter(|(code, _)| *code == 200).count();
    assert!(answers.iter().all(|(code, _)| [200, 409].contains(code)), "{answers:?}");
    let conditions = node.get(POD).await["status"]["conditions"].as_array().unwrap().len();
    assert!(conditions == written && written > 1, "{conditions} of {written}");
    assert_eq!(node.rows(), 1);
}

#[tokio::test]
async fn a_confirmed_status_is_shown_until_its_version_arrives() {
    let node = node().await;
    node.patch(POD_STATUS, json!({"phase": "Running"})).await;
    node.storage.store.settle_outbox(Lane::Status, node.last());
    // Confirmed items are removed with the next commit.
    node.put(vec![object("pods", "other", "u-9", 7, json!({}))]).await;
    assert_eq!(node.waiting("u-1").await, None);
    let shown = json!({"phase": "Running", "qosClass": "BestEffort"});
    assert_eq!(node.get(POD).await["status"], shown);
    assert_eq!(node.get("/api/v1/pods?fieldSelector=metadata.name=web").await["items"][0]["status"], shown);
    // A patch continues from it: otherwise it would revert the first one.
    let answer = node.patch(POD_STATUS, json!({"message": "well"})).await;
    assert_eq!(answer["status"], json!({"phase": "Running", "qosClass": "BestEffort", "message": "well"}));

    node.storage.store.settle_outbox(Lane::Status, node.last());
    node.put(vec![pod(8, json!({"phase": "Running", "message": "from the cloud"}))]).await;
    for path in [POD, POD_STATUS] {
        let status = node.get(path).await["status"].take();
        assert_eq!(status, json!({"phase": "Running", "message": "from the cloud"}), "{path}");
    }
}

#[tokio::test]
async fn a_status_does_not_apply_to_the_next_object_of_the_name() {
    let node = node().await;
    node.patch(POD_STATUS, json!({"phase": "Running"})).await;
    let gone = Change::Delete(Delete { uid: "u-1".into(), key: resource("pods").key("ns", "web") });
    node.put(vec![gone, object("pods", "web", "u-2", 9, json!({"phase": "Pending"}))]).await;
    assert_eq!(node.get(POD).await["status"], json!({"phase": "Pending"}));
    assert_eq!(node.get("/api/v1/pods").await["items"][0]["status"], json!({"phase": "Pending"}));
    node.patch(POD_STATUS, json!({"phase": "Failed"})).await;
    assert_eq!(node.waiting("u-1").await.unwrap()["status"]["phase"], "Running", "the cloud decides");
    assert_eq!(node.waiting("u-2").await.unwrap()["status"]["phase"], "Failed");
}

#[tokio::test]
async fn a_pending_status_causes_no_watch_event_nor_selector_match() {
    let node = node().await;
    let pods = resource("pods");
    let version = node.storage.version(&pods);
    let follower = {
        let (storage, pods) = (node.storage.clone(), pods.clone());
        tokio::spawn(async move { storage.changes(&pods, version).await })
    };
    node.patch(POD_STATUS, json!({"phase": "Running"})).await;
    let selected = async |phase: &str| {
        let list = node.get(&format!("/api/v1/pods?fieldSelector=status.phase={phase}")).await;
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["status"]["phase"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(selected("Pending").await, ["Running"], "as a watch selects, and shown as it is");
    assert_eq!(selected("Running").await, Vec::<Value>::new());
    node.put(vec![pod(6, json!({"phase": "Running"}))]).await;
    let batch = follower.await.unwrap().unwrap();
    assert_eq!(batch.changes.len(), 1, "the version from the cloud, and nothing before");
    let previous = batch.changes[0].previous.as_deref().unwrap();
    assert!(previous.contains("\"Pending\"") && batch.changes[0].object.version > version, "{batch:?}");
}

#[tokio::test]
async fn the_status_of_a_custom_kind_is_writable() {
    let resource = Arc::new(Resource {
        group: "plant.example".into(),
        version: "v1".into(),
        kind: "Robot".into(),
        plural: "robots".into(),
        scope: Scope::Namespaced,
    });
    let body = json!({"apiVersion": "plant.example/v1", "kind": "Robot", "spec": {"speed": 3},
        "metadata": {"name": "arm", "namespace": "ns", "uid": "u-1", "resourceVersion": "5"}});
    let node = Node::holding(vec![put_body(resource, "arm", "u-1", 5, &body)]).await;
    let path = "/apis/plant.example/v1/namespaces/ns/robots/arm";
    let answer = node.patch(&format!("{path}/status"), json!({"position": [1, 2]})).await;
    assert_eq!((&answer["status"], &answer["spec"]), (&json!({"position": [1, 2]}), &json!({"speed": 3})));
    let apply = json!({"apiVersion": "plant.example/v1", "kind": "Robot", "status": {"load": 0.5}});
    let answer = node.ok("PATCH", &format!("{path}/status?fieldManager=m"), APPLY, &apply).await;
    assert_eq!(answer["status"], json!({"position": [1, 2], "load": 0.5}));
    assert_eq!(node.waiting("u-1").await.unwrap()["object"]["apiVersion"], "plant.example/v1");
    assert_eq!(node.send("PATCH", path, MERGE, &json!({"spec": {"speed": 9}})).await.0, 403);
    assert_eq!(node.get(path).await["status"], answer["status"]);
}

#[tokio::test]
async fn a_pending_status_of_a_sealed_kind_is_sealed() {
    let keys = tempfile::tempdir().unwrap();
    let sealing = |kinds: &[&str]| {
        let keys = KeySource { file: keys.path().join("seal.key"), ..KeySource::default() };
        let kinds = kinds.iter().map(|&kind| kind.to_owned()).collect();
        EdgeOptions { seal: Some(SealOptions { kinds, keys }), ..EdgeOptions::default() }
    };
    for (kinds, readable) in [(&["secrets"][..], true), (&["pods"], false)] {
        let node = Node::with(sealing(kinds), vec![pod(5, json!({"phase": "Pending"}))]).await;
        let answer = node.patch(POD_STATUS, json!({"message": "correct-horse"})).await;
        for shown in [answer, node.get(POD).await, node.get("/api/v1/pods").await["items"][0].clone()] {
            assert_eq!(shown["status"], json!({"phase": "Pending", "message": "correct-horse"}));
        }
        let mut files = std::fs::read_dir(node.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let has = |path: std::path::PathBuf| {
            let bytes = std::fs::read(path).unwrap_or_default();
            bytes.windows(13).any(|window| window == b"correct-horse")
        };
        assert_eq!(files.any(has), readable, "{kinds:?}");
    }
}
