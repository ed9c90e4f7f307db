//! Checks the scripted CloudCore against captured sessions of a real one. The model receives what
//! the node sent, and must send what the real one sent, except for identities, times and versions.
// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use edgesync_kubeedge::model::{CloudCore, Connection, Settings};

/// A captured message, with its file and direction.
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
        // The capture also contains the heads of the upgrade.
        let message: Option<Value> =
            (!file.ends_with("http.json")).then(|| serde_json::from_str(&text).unwrap());
        Some(Frame { is_from_node: file.contains("c2s"), file, text, message: message? })
    });
    frames.collect()
}

/// The parts of a message that the tests compare.
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
    // Responses of the API server may have a kind or not.
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
    /// Messages of the model that the capture has not matched yet.
    sent: Vec<Value>,
    /// Message ids of the model by those of the capture.
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

    /// Expects a message of the real CloudCore from the model, if necessary after changing the
    /// cluster to its state of that time.
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

    /// Feeds a message of the node to the model.
    fn feed(&mut self, frame: &Frame) {
        let mut text = frame.text.clone();
        if let Some(id) = self.ids.get(frame.header("parent_msg_id")) {
            text = text.replace(frame.header("parent_msg_id"), id);
        }
        self.core.receive(self.now, self.connection, &self.with_our_versions(&text));
    }

    /// Replaces the version in a write of the Lease with the one that the model assigned.
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

/// Replays a session. The cluster starts with the objects that responses contain, and `more`.
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
        // The model has no separate state for the end of the grace period.
        let is_last_breath = frame.content()["metadata"]["deletionGracePeriodSeconds"] == 0;
        if frame.is_from_node {
            replay.feed(frame);
        } else if !(is_last_breath && frame.operation() == "update") {
            replay.expect(frame);
        }
    }
    replay.drain();
    // The real CloudCore skips some versions of the Node in quick succession.
    replay.sent.retain(|sent| sent["route"]["resource"] != format!("null/node/{node}"));
    assert_eq!(replay.sent, Vec::<Value>::new(), "sent beyond the capture");
    assert_eq!(replay.core.violations(), <[String; 0]>::default());
    replay
}

#[test]
fn registering_node_with_a_pod_gets_the_captured_responses() {
    let replay = replay("edgecore-edged-session", "edgea", Vec::new());
    assert!(replay.core.object("lease", "kube-node-lease", "edgea").is_some());
    // The pod and everything it references were deleted, and the deletes acknowledged.
    let node = replay.core.object("node", "", "edgea").unwrap();
    let held = replay.core.objectsyncs("edgea");
    assert_eq!(held.keys().collect::<Vec<_>>(), [node["metadata"]["uid"].as_str().unwrap()]);
}

#[test]
fn custom_resources_are_served_as_in_the_capture() {
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
fn client_that_only_acknowledges_gets_the_captured_messages() {
    replay("py-first-session", "edge1", Vec::new());
}
