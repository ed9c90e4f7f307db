//! The scripted CloudCore against the captured sessions of a real one: what the node has sent is fed to the model, and what
//! the model sends must be what the real one has sent, but for identities, times and versions.
// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use edgesync_kubeedge::model::{CloudCore, Connection, Settings};

/// A captured message.
struct Frame {
    file: String,
    is_from_node: bool,
    text: String,
    message: Value,
}

impl Frame {
    fn header(&self, name: &str) -> &str {
        self.message["header"][name].as_str().unwrap_or_default()
    }

    fn operation(&self) -> &str {
        self.message["route"]["operation"].as_str().unwrap_or_default()
    }

    fn content(&self) -> &Value {
        &self.message["content"]
    }
}

fn session(name: &str) -> Vec<Frame> {
    let dir = edgesync_testkit::programs::root().join("tests/fixtures/kubeedge").join(name);
    let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let frames = files.into_iter().filter_map(|path| {
        let file = path.file_name()?.to_str()?.to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        // Beside the messages there are the heads of the upgrade.
        let message: Option<Value> =
            (!file.ends_with("http.json")).then(|| serde_json::from_str(&text).unwrap());
        Some(Frame { is_from_node: file.contains("c2s"), file, text, message: message? })
    });
    frames.collect()
}

/// What is compared of a message.
fn outline(message: &Value) -> String {
    let (header, route, content) = (&message["header"], &message["route"], &message["content"]);
    let keys = |value: &Value| match value {
        Value::Object(fields) => fields.keys().cloned().collect::<BTreeSet<_>>(),
        Value::Null => BTreeSet::from(["null".to_owned()]),
        Value::String(text) => BTreeSet::from([format!("{text:?}")]),
        _ => BTreeSet::new(),
    };
    let error = keys(&content["Err"]["ErrStatus"]);
    let header_fields: Vec<_> = keys(header).into_iter().filter(|field| field != "sync").collect();
    let body = content["RespBody"].as_str().map(|body| {
        let body = STANDARD.decode(body).unwrap();
        keys(&serde_json::from_slice(&body).unwrap())
    });
    // What the API server answers may have a kind or not.
    let object = content.get("Object").map(Value::is_null);
    format!(
        "{route} parent {} fields {header_fields:?} content {:?} object-is-null {object:?} error {error:?} body {body:?}",
        header["parent_msg_id"],
        keys(content),
    )
}

struct Replay {
    core: CloudCore,
    connection: Connection,
    now: Duration,
    /// Sent by the model, and not seen in the capture yet.
    sent: Vec<Value>,
    /// The ids of the model by those of the capture.
    ids: BTreeMap<String, String>,
}

impl Replay {
    fn drain(&mut self) {
        self.core.tick(self.now);
        while let Some(text) = self.core.poll(self.connection) {
            assert!(text.ends_with('\n'), "no newline after {text}");
            self.sent.push(serde_json::from_str(&text).unwrap());
        }
    }

    fn take(&mut self, frame: &Frame) -> Option<Value> {
        let same = |sent: &Value| {
            sent["route"] == frame.message["route"]
                && sent["header"]["parent_msg_id"] == frame.message["header"]["parent_msg_id"]
        };
        let at = self.sent.iter().position(same)?;
        Some(self.sent.remove(at))
    }

    /// The real one has sent this: so does the model, once the cluster is as it was then.
    fn expect(&mut self, frame: &Frame) {
        self.drain();
        let found = self.take(frame).or_else(|| {
            self.change_cluster(frame);
            self.drain();
            self.take(frame)
        });
        let found = found.unwrap_or_else(|| panic!("{} is not sent; waiting: {:?}", frame.file, self.sent));
        assert_eq!(outline(&found), outline(&frame.message), "{}", frame.file);
        let id = found["header"]["msg_id"].as_str().unwrap().to_owned();
        self.ids.insert(frame.header("msg_id").to_owned(), id);
    }

    fn change_cluster(&mut self, frame: &Frame) {
        let object = frame.content().clone();
        let metadata = &object["metadata"];
        let name = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        if frame.operation() == "delete" {
            let kind = object["kind"].as_str().unwrap_or_default().to_owned();
            self.core.delete(self.now, &kind, &name("namespace"), &name("name"));
        } else if object["kind"].is_string() {
            self.core.apply(self.now, object);
        }
    }

    /// The node has sent this.
    fn hear(&mut self, frame: &Frame) {
        let mut text = frame.text.clone();
        if let Some(id) = self.ids.get(frame.header("parent_msg_id")) {
            text = text.replace(frame.header("parent_msg_id"), id);
        }
        self.core.receive(self.now, self.connection, &self.with_our_versions(&text));
    }

    /// A write of the Lease names the version that the model has given it.
    fn with_our_versions(&self, text: &str) -> String {
        let mut message: Value = serde_json::from_str(text).unwrap();
        let Some(metadata) = message.pointer_mut("/content/metadata") else { return text.to_owned() };
        let lease =
            metadata["name"].as_str().and_then(|name| self.core.object("lease", "kube-node-lease", name));
        match lease {
            Some(lease) if metadata["resourceVersion"].is_string() => {
                metadata["resourceVersion"] = lease["metadata"]["resourceVersion"].clone();
                message.to_string()
            }
            _ => text.to_owned(),
        }
    }
}

/// What existed before the session: what questions were answered with, and `more`.
fn replay(name: &str, node: &str, more: Vec<Value>) -> Replay {
    let frames = session(name);
    assert!(frames.len() > 20, "{name} is not there");
    let mut core = CloudCore::new(Settings { resend: Duration::from_secs(3600), ..Settings::default() });
    core.cluster.define("lab.io/v1", "Widget", "widgets");
    for object in more {
        core.apply(Duration::ZERO, object);
    }
    for frame in frames.iter().filter(|frame| !frame.is_from_node && frame.operation() == "response") {
        if frame.content()["kind"].is_string() {
            core.apply(Duration::ZERO, frame.content().clone());
        }
    }
    let connection = core.connect(Duration::ZERO, node);
    let start = frames[0].message["header"]["timestamp"].as_u64().unwrap();
    let mut replay = Replay { core, connection, now: Duration::ZERO, sent: Vec::new(), ids: BTreeMap::new() };
    for frame in &frames {
        let at = frame.message["header"]["timestamp"].as_u64().unwrap().saturating_sub(start);
        replay.now = replay.now.max(Duration::from_millis(at));
        // The end of the grace period is no state of its own in the model.
        let is_last_breath = frame.content()["metadata"]["deletionGracePeriodSeconds"] == 0;
        if frame.is_from_node {
            replay.hear(frame);
        } else if !(is_last_breath && frame.operation() == "update") {
            replay.expect(frame);
        }
    }
    replay.drain();
    // Of versions of the Node that follow each other at once the real one skips some.
    replay.sent.retain(|sent| sent["route"]["resource"] != format!("null/node/{node}"));
    assert_eq!(replay.sent, Vec::<Value>::new(), "sent beyond the capture");
    assert_eq!(replay.core.violations(), <[String; 0]>::default());
    replay
}

#[test]
fn a_node_that_registers_and_holds_a_pod_is_answered_as_in_the_capture() {
    let replay = replay("edgecore-edged-session", "edgea", Vec::new());
    assert!(replay.core.object("lease", "kube-node-lease", "edgea").is_some());
    // Everything about the pod and what it references was deleted, and the deletes were acknowledged.
    let node = replay.core.object("node", "", "edgea").unwrap();
    let held = replay.core.objectsyncs("edgea");
    assert_eq!(held.keys().collect::<Vec<_>>(), [node["metadata"]["uid"].as_str().unwrap()]);
}

#[test]
fn custom_resources_are_listed_watched_and_pushed_as_in_the_capture() {
    let frames = session("edgecore-metaserver-session");
    let of = |operation: &str, resource: &str| {
        let found = frames.iter().find(|frame| {
            !frame.is_from_node
                && frame.operation() == operation
                && frame.message["route"]["resource"] == resource
        });
        found.unwrap().content().clone()
    };
    let mut node = of("update", "null/node/edgea");
    node["status"] = json!({});
    let lease = of("response", "kube-node-lease/lease/edgea")["Object"].clone();
    let list = of("applicationResponse", "ignore/Application/ignore");
    let list: Value =
        serde_json::from_slice(&STANDARD.decode(list["RespBody"].as_str().unwrap()).unwrap()).unwrap();
    let mut objects = vec![node, lease];
    objects.extend(list["items"].as_array().unwrap().iter().cloned());
    let replay = replay("edgecore-metaserver-session", "edgea", objects);
    assert_eq!(replay.core.watches("edgea"), Vec::<String>::new());
}

#[test]
fn a_client_that_only_acknowledges_is_sent_what_the_capture_has() {
    replay("py-first-session", "edge1", Vec::new());
}
