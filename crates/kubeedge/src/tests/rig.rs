//! A test rig: an edge machine, a store and a small CloudCore around a bridge, in virtual time.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::store::Store;
use crate::testing;
use crate::{
    Bridge, BridgeConfig, BridgeEffect, BridgeNotice, FetchRule, Moment, RoundReason, Sent, WatchRule,
};
use edgesync_object::NodeName;
use edgesync_protocol::change::Change;
use edgesync_protocol::edge::{EdgeConfig, EdgeEffect, EdgeMachine, EdgeNotice};
use edgesync_protocol::timing::{Now, earlier};

pub(super) const NODE: &str = "edge-1";

pub(super) fn config(fetch: &[&str], watch: &[&str]) -> BridgeConfig {
    BridgeConfig {
        node: NodeName::parse(NODE).unwrap(),
        max_object: 16 << 10,
        fetch: fetch.iter().map(|rule| FetchRule::parse(rule).unwrap()).collect(),
        watch: watch.iter().map(|rule| WatchRule::parse(rule).unwrap()).collect(),
        ..testing::config()
    }
}

fn machine(store: &Store) -> EdgeMachine {
    let config = EdgeConfig::of_tests(NODE, 1 << 20, 16 << 10);
    EdgeMachine::new(config, store.totals, store.totals.revision, None)
}

/// Returns a Kubernetes object.
pub(super) fn object(kind: &str, path: &str, uid: &str, version: u64) -> Value {
    let (namespace, name) = path.split_once('/').unwrap();
    let api_version = if kind == "Widget" { "lab.io/v1" } else { "v1" };
    json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": version.to_string()},
    })
}

/// Returns a Pod of the node that references ConfigMaps.
pub(super) fn pod(path: &str, uid: &str, version: u64, config_maps: &[&str]) -> Value {
    let mut pod = object("Pod", path, uid, version);
    let volumes: Vec<_> =
        config_maps.iter().map(|name| json!({"name": name, "configMap": {"name": name}})).collect();
    pod["spec"] = json!({"nodeName": NODE, "containers": [], "volumes": volumes});
    pod
}

fn resource_of(object: &Value) -> String {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap();
    let kind = text("/kind").to_lowercase();
    format!("{}/{kind}/{}", text("/metadata/namespace"), text("/metadata/name"))
}

/// The objects of CloudCore and its API server, and its failure modes.
pub(super) struct Cloud {
    pub(super) objects: Vec<Value>,
    pub(super) lease: Option<Value>,
    pub(super) version: u64,
    pub(super) answers: bool,
    pub(super) answers_queries: bool,
    pub(super) has_dynamic_controller: bool,
    /// Keys that may not be listed.
    pub(super) denied: BTreeSet<String>,
    /// Items on a page of a list, regardless of the requested limit.
    pub(super) largest_page: usize,
    next_id: u64,
}

impl Cloud {
    fn message(
        &mut self,
        parent: Option<&str>,
        source: &str,
        operation: &str,
        resource: &str,
        content: &Value,
    ) -> (String, String) {
        self.next_id += 1;
        let id = format!("00000000-0000-4000-8000-{:012x}", self.next_id);
        let mut header = json!({"msg_id": id, "timestamp": 1});
        if let Some(parent) = parent {
            header["parent_msg_id"] = parent.into();
        }
        if operation != "delete"
            && let Some(version) = content.pointer("/metadata/resourceVersion")
        {
            header["resourceversion"] = version.clone();
        }
        let route =
            json!({"source": source, "group": "resource", "operation": operation, "resource": resource});
        (id, format!("{}\n", json!({"header": header, "route": route, "content": content})))
    }

    /// Stores an object under a new version.
    pub(super) fn write(&mut self, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let resource = resource_of(&object);
        self.objects.retain(|other| resource_of(other) != resource);
        self.objects.push(object.clone());
        object
    }

    pub(super) fn remove(&mut self, resource: &str) {
        self.version += 1;
        self.objects.retain(|object| resource_of(object) != resource);
    }

    fn answer(&mut self, message: &Value) -> Option<String> {
        let text = |path: &str| message.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let (id, operation, resource) =
            (text("/header/msg_id"), text("/route/operation"), text("/route/resource"));
        let content = match operation {
            _ if !self.answers => return None,
            _ if resource.contains("/lease/") => self.lease(operation, &message["content"]),
            "query" if self.answers_queries => self.query(resource),
            "null" if self.has_dynamic_controller => {
                let (resource, content) = match resource {
                    "watchapp/sync" => (resource, json!({})),
                    _ => ("ignore/Application/ignore", self.application(&message["content"])),
                };
                let answer =
                    self.message(Some(id), "dynamiccontroller", "applicationResponse", resource, &content);
                return Some(answer.1);
            }
            _ => return None,
        };
        Some(self.message(Some(id), "edgecontroller", "response", resource, &content).1)
    }

    fn lease(&mut self, operation: &str, content: &Value) -> Value {
        if operation != "query" {
            self.version += 1;
            let mut lease = content.clone();
            lease["metadata"]["resourceVersion"] = self.version.to_string().into();
            self.lease = Some(lease);
        }
        match &self.lease {
            Some(lease) => json!({"Object": lease, "Err": null}),
            None => json!({"Object": null, "Err": not_found("lease")}),
        }
    }

    fn query(&self, resource: &str) -> Value {
        let found = self.objects.iter().find(|object| resource_of(object) == resource);
        found.cloned().unwrap_or_else(|| not_found(resource))
    }

    fn application(&self, asked: &Value) -> Value {
        let mut answer = asked.clone();
        let key = asked["Key"].as_str().unwrap();
        if self.denied.contains(key) {
            answer["Status"] = "Rejected".into();
            answer["Reason"] = "get current list error: forbidden".into();
            return answer;
        }
        answer["Status"] = "Approved".into();
        if asked["Verb"] == "list" {
            let option = BASE64.decode(asked["Option"].as_str().unwrap()).unwrap();
            let option: Value = serde_json::from_slice(&option).unwrap();
            answer["RespBody"] = BASE64.encode(self.list(key, &option).to_string()).into();
        }
        answer
    }

    fn list(&self, key: &str, option: &Value) -> Value {
        let [group, version, plural, namespace] = key.split('/').skip(1).take(4).collect::<Vec<_>>()[..]
        else {
            panic!("{key}")
        };
        let api_version = if group == "core" { version.to_owned() } else { format!("{group}/{version}") };
        let kind = |object: &Value| format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
        let is_meant = |object: &&Value| {
            kind(object) == plural && (namespace == "null" || object["metadata"]["namespace"] == namespace)
        };
        let all: Vec<_> = self.objects.iter().filter(is_meant).cloned().collect();
        let limit = usize::try_from(option["limit"].as_u64().unwrap()).unwrap().min(self.largest_page);
        let from: usize = option["continue"].as_str().map_or(0, |from| from.parse().unwrap());
        let items: Vec<_> = all.iter().skip(from).take(limit).cloned().collect();
        let to = from + items.len();
        let next = if to < all.len() { to.to_string() } else { String::new() };
        let list_kind = match plural {
            "configmaps" => "ConfigMapList",
            "secrets" => "SecretList",
            "pods" => "PodList",
            _ => "WidgetList",
        };
        let metadata = json!({"resourceVersion": self.version.to_string(), "continue": next});
        json!({"apiVersion": api_version, "kind": list_kind, "metadata": metadata, "items": items})
    }
}

fn not_found(what: &str) -> Value {
    let message = format!("{what} not found");
    json!({"ErrStatus": {"metadata": {}, "status": "Failure", "message": message, "reason": "NotFound", "code": 404}})
}

/// The bridge with its surroundings.
pub(super) struct Rig {
    pub(super) now: Now,
    pub(super) bridge: Bridge,
    pub(super) machine: EdgeMachine,
    pub(super) store: Store,
    pub(super) cloud: Cloud,
    /// The bridge's messages, in order.
    pub(super) sent: Vec<Value>,
    pub(super) notices: Vec<BridgeNotice>,
    pub(super) edge_notices: Vec<EdgeNotice>,
    pub(super) reconnects: usize,
    /// Whether commits wait for [`Rig::commit`].
    pub(super) holds_commits: bool,
    commits: VecDeque<(u64, Vec<Change>)>,
    random: u64,
}

impl Rig {
    /// Returns a node that CloudCore knows, without a marker in its Lease.
    pub(super) fn new(config: BridgeConfig) -> Self {
        let store = Store::new(1);
        let lease = json!({"metadata": {"name": NODE, "namespace": "kube-node-lease", "resourceVersion": "5",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-uid"}]}, "spec": {}});
        let cloud = Cloud {
            objects: Vec::new(),
            lease: Some(lease),
            version: 100,
            answers: true,
            answers_queries: true,
            has_dynamic_controller: false,
            denied: BTreeSet::new(),
            largest_page: usize::MAX,
            next_id: 0,
        };
        Self {
            now: Duration::from_secs(1),
            bridge: Bridge::new(config),
            machine: machine(&store),
            store,
            cloud,
            sent: Vec::new(),
            notices: Vec::new(),
            edge_notices: Vec::new(),
            reconnects: 0,
            holds_commits: false,
            commits: VecDeque::new(),
            random: 7,
        }
    }

    /// Returns a connected node after its first round.
    pub(super) fn settled(config: BridgeConfig, cloud: impl FnOnce(&mut Cloud)) -> Self {
        let mut rig = Self::new(config);
        cloud(&mut rig.cloud);
        rig.connect();
        rig.pass(60);
        assert!(rig.bridge.status().verified.is_some(), "{:?}", rig.notices);
        rig.sent.clear();
        rig.notices.clear();
        rig
    }

    fn at(&self) -> Moment {
        Moment { now: self.now, wall: 1_700_000_000_000 + i64::try_from(self.now.as_millis()).unwrap() }
    }

    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.random
    }

    pub(super) fn connect(&mut self) {
        let (seed, random) = (self.draw(), self.draw());
        self.bridge.connected(self.at(), seed);
        self.machine.connected(self.now, 1 << 20, random);
        self.run();
    }

    pub(super) fn disconnect(&mut self) {
        self.bridge.disconnected();
        self.machine.disconnected();
        self.run();
    }

    /// Restarts the agent with this store.
    pub(super) fn restart(&mut self, config: BridgeConfig, store: Store) {
        let rules = config.fetch.clone();
        self.bridge = Bridge::new(config);
        self.bridge.restore_state(&store.note);
        let page = store.page(0, usize::MAX);
        for (name, held) in page.entries.iter().flat_map(|entry| &entry.references) {
            self.bridge.restore_name(name, held.as_ref());
        }
        for name in rules.iter().filter_map(FetchRule::exact) {
            self.bridge.restore_name(&name, store.held_under(&name).as_ref());
        }
        self.machine = machine(&store);
        self.store = store;
        self.commits.clear();
    }

    /// Pushes a message from CloudCore and returns its id.
    pub(super) fn push(&mut self, source: &str, operation: &str, resource: &str, content: &Value) -> String {
        let (id, text) = self.cloud.message(None, source, operation, resource, content);
        self.hear(&text);
        id
    }

    /// Pushes an object from CloudCore.
    pub(super) fn push_object(&mut self, operation: &str, object: &Value) -> String {
        self.push("edgecontroller", operation, &resource_of(object), object)
    }

    pub(super) fn hear(&mut self, text: &str) {
        self.bridge.message_received(self.at(), text.as_bytes());
        self.run();
    }

    /// Runs everything possible without advancing time.
    pub(super) fn run(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 1_000_000, "it does not come to rest");
        }
    }

    fn step(&mut self) -> bool {
        let at = self.at();
        if let Some(effect) = self.machine.poll_effect() {
            self.edge_effect(effect);
        } else if let Some(up) = self.machine.poll_frame(self.now) {
            self.machine.link_progress(self.now, 0, 0);
            self.bridge.up(at, up, self.machine.totals());
        } else if let Some(effect) = self.bridge.poll_effect() {
            match effect {
                BridgeEffect::ReadHeld { cursor, limit } => {
                    assert!(limit <= 64);
                    let page = self.store.page(cursor, limit);
                    self.bridge.held_read(at, page);
                }
                BridgeEffect::SaveState(text) => self.store.note = text,
                BridgeEffect::Reconnect => self.reconnects += 1,
                BridgeEffect::Notice(notice) => self.notices.push(notice),
            }
        } else if self.machine.wants_frame() && self.bridge.has_frame() {
            let frame = self.bridge.poll_frame().unwrap();
            let random = self.draw();
            self.machine.received(self.now, frame, random);
        } else if let Some(message) = self.bridge.poll_message() {
            if let Sent::Text { text, .. } = message {
                let message: Value = serde_json::from_str(&text).unwrap();
                let answer = self.cloud.answer(&message);
                self.sent.push(message);
                if let Some(answer) = answer {
                    self.bridge.message_received(at, answer.as_bytes());
                }
            }
        } else {
            return false;
        }
        true
    }

    fn edge_effect(&mut self, effect: EdgeEffect) {
        match effect {
            EdgeEffect::Apply { token, changes } => {
                self.commits.push_back((token, changes));
                if !self.holds_commits {
                    self.commit();
                }
            }
            EdgeEffect::RenewLease => {
                let random = self.draw();
                self.machine.renew(self.now, 0, 1_700_000_000_000_000, random);
            }
            EdgeEffect::Notice(notice) => self.edge_notices.push(notice),
            _ => {}
        }
    }

    /// Returns the next commit.
    pub(super) fn commit(&mut self) {
        let (token, changes) = self.commits.pop_front().expect("a commit is under way");
        let result = self.store.apply(&changes);
        let random = self.draw();
        self.machine.applied(self.now, token, result, random);
    }

    pub(super) fn commit_all(&mut self) {
        while !self.commits.is_empty() {
            self.commit();
            self.run();
        }
    }

    /// Advances time by so many seconds.
    pub(super) fn pass(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        let mut steps = 0;
        self.run();
        while let Some(due) =
            earlier(self.bridge.deadline(), self.machine.deadline()).filter(|due| *due <= end)
        {
            self.now = self.now.max(due);
            self.bridge.tick(self.at());
            let random = self.draw();
            self.machine.tick(self.now, random);
            self.run();
            steps += 1;
            assert!(steps < 100_000, "it is busy for nothing");
        }
        self.now = end;
    }

    /// Returns the number of acknowledgements sent for a message.
    pub(super) fn acknowledged(&self, id: &str) -> usize {
        let is_it = |sent: &&Value| {
            sent["header"]["parent_msg_id"] == id
                && sent["route"]["operation"] == "response"
                && sent["content"] == "OK"
        };
        self.sent.iter().filter(is_it).count()
    }

    /// Returns the names queried with `query`, in order, without the Lease.
    pub(super) fn queried(&self) -> Vec<&str> {
        let is_query = |sent: &&Value| sent["route"]["operation"] == "query";
        let resources =
            self.sent.iter().filter(is_query).map(|sent| sent["route"]["resource"].as_str().unwrap());
        resources.filter(|resource| !resource.contains("/lease/")).collect()
    }

    /// Returns verb and key of the sent Applications, in order.
    pub(super) fn applications(&self) -> Vec<String> {
        let is_application = |sent: &&Value| sent["route"]["resource"] == "null";
        let show = |sent: &Value| {
            let (verb, key) = (&sent["content"]["Verb"], &sent["content"]["Key"]);
            format!("{} {}", verb.as_str().unwrap(), key.as_str().unwrap())
        };
        self.sent.iter().filter(is_application).map(show).collect()
    }

    /// Returns the marker in the Lease.
    pub(super) fn marker(&self) -> Option<&str> {
        self.cloud.lease.as_ref()?.pointer("/metadata/annotations/edgesync.io~1store")?.as_str()
    }

    pub(super) fn verified(&self) -> Option<(RoundReason, u64)> {
        self.bridge.status().verified.map(|(_, reason, _, differed)| (reason, differed))
    }
}
