//! Unrequested messages: changes of objects that concern a node, and objects missing according to
//! the ObjectSyncs.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::CloudCore;
use super::cluster::{Change, Key, resource};
use super::message::{Draft, bare};
use super::session::Tracked;

/// The state of one object that a node has acknowledged.
#[derive(Clone, Debug)]
pub struct ObjectSync {
    pub key: Key,
    pub version: String,
}

/// Parses a version: they are compared as numbers.
fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl CloudCore {
    /// Returns whether anything is pushed to a node at all.
    pub fn is_edge(&self, node: &str) -> bool {
        let found = self.cluster.get(&Key::new("node", "", node));
        found.is_some_and(|node| node["metadata"]["labels"]["node-role.kubernetes.io/edge"] == "")
    }

    /// Writes CloudCore's address into the connecting node.
    pub fn annotate(&mut self, node: &str) {
        let Some(object) = self.cluster.get(&Key::new("node", "", node)) else { return };
        let mut object = object.clone();
        object["metadata"]["annotations"]["cloudcore"] = json!("192.0.2.2");
        let (_, change) = self.cluster.apply(object);
        self.happened(change);
    }

    /// Handles an event of the informers.
    pub fn happened(&mut self, change: Option<Change>) {
        let Some(change) = change else { return };
        let (operation, object) = match &change {
            Change::Added(object) => ("insert", object),
            Change::Modified(object) => ("update", object),
            Change::Deleted(object) => ("delete", object),
        };
        let Some(key) = self.cluster.key(object) else { return };
        match key.kind.as_str() {
            "pod" => self.pod_happened(operation, &key, object),
            "configmap" | "secret" => self.config_happened(operation, &key, object),
            "node" => self.node_happened(operation, &key, object),
            _ => {}
        }
        self.notify_listeners(operation, object);
        self.pump();
    }

    fn pod_happened(&mut self, operation: &'static str, key: &Key, pod: &Value) {
        let node = text(&pod["spec"]["nodeName"]).to_owned();
        if node.is_empty() || !self.is_edge(&node) {
            return;
        }
        if operation != "delete" {
            for name in references(pod) {
                self.locations.entry(name).or_default().insert(node.clone());
            }
        }
        self.push(&node, "edgecontroller", operation, &key.resource(), pod);
    }

    fn config_happened(&mut self, operation: &'static str, key: &Key, object: &Value) {
        let nodes = match operation {
            // One recreated under this name is therefore sent nowhere.
            "delete" => self.locations.remove(key),
            _ => self.locations.get(key).cloned(),
        };
        let operation = if key.kind == "secret" && operation == "insert" { "update" } else { operation };
        for node in nodes.unwrap_or_default() {
            self.push(&node, "edgecontroller", operation, &key.resource(), object);
        }
    }

    fn node_happened(&mut self, operation: &'static str, key: &Key, object: &Value) {
        if operation == "delete" {
            self.syncs.remove(&key.name);
            if let Some(connection) = self.connection_of(&key.name) {
                self.close(connection);
            }
        } else if self.is_edge(&key.name) {
            self.push(&key.name, "edgecontroller", "update", &key.resource(), object);
        }
    }

    /// Sends an object unless the node is known to have it.
    pub fn push(
        &mut self,
        node: &str,
        source: &str,
        operation: &'static str,
        resource: &str,
        object: &Value,
    ) {
        let draft = Draft {
            source: source.to_owned(),
            operation,
            resource: resource.to_owned(),
            version: text(&object["metadata"]["resourceVersion"]).to_owned(),
            parent: String::new(),
            content: object.clone(),
        };
        self.track(node, draft);
    }

    /// Queues a message that requires an acknowledgement.
    pub fn track(&mut self, node: &str, draft: Draft) {
        if draft.resource.contains("podlist") || draft.resource.contains("membership") {
            return self.answer(node, &draft);
        }
        let metadata = &draft.content["metadata"];
        let is_dying = !metadata["deletionTimestamp"].is_null();
        if draft.version.is_empty() && draft.operation != "delete" && !is_dying {
            return;
        }
        let uid = text(&metadata["uid"]).to_owned();
        let forced = is_dying || matches!(draft.operation, "response" | "delete");
        if !forced && !self.is_news(node, &uid, &draft) {
            return;
        }
        let id = self.ids.uuid();
        let connection = self.connection_of(node);
        if let Some(session) = connection.and_then(|at| self.sessions.get_mut(&at)) {
            session.enqueue(Tracked { id, uid, draft });
        }
    }

    fn is_news(&mut self, node: &str, uid: &str, draft: &Draft) -> bool {
        let version = number(&draft.version);
        let session = self.connection_of(node).and_then(|at| self.sessions.get(&at));
        if let Some(stored) = session.and_then(|session| session.stored(uid)) {
            return !stored.is_delete() && number(&stored.draft.version) < version;
        }
        let syncs = self.syncs.entry(node.to_owned()).or_default();
        match syncs.get(uid) {
            Some(sync) => number(&sync.version) < version,
            None => {
                if let Some(key) = key_of(draft) {
                    syncs.insert(uid.to_owned(), ObjectSync { key, version: "0".into() });
                }
                true
            }
        }
    }

    /// Records an acknowledged message.
    pub fn recorded(&mut self, node: &str, message: &Tracked) {
        let syncs = self.syncs.entry(node.to_owned()).or_default();
        if message.is_delete() {
            syncs.remove(&message.uid);
        } else if let Some(key) = key_of(&message.draft) {
            let version = message.draft.version.clone();
            syncs.insert(message.uid.clone(), ObjectSync { key, version });
        }
    }

    /// Sends a message without acknowledgement to the session that serves the node.
    pub fn answer(&mut self, node: &str, draft: &Draft) {
        let text = draft.text(&self.ids.uuid(), self.wall(), self.settings.deletes);
        let connection = self.connection_of(node);
        if let Some(session) = connection.and_then(|at| self.sessions.get_mut(&at)) {
            session.out.push_back(text);
        }
    }

    /// Compares all ObjectSyncs with the cluster.
    pub fn scan(&mut self) {
        let all: Vec<(String, String, ObjectSync)> = self
            .syncs
            .iter()
            .flat_map(|(node, syncs)| {
                syncs.iter().map(|(uid, sync)| (node.clone(), uid.clone(), sync.clone()))
            })
            .collect();
        for (node, uid, sync) in all {
            let found = self.cluster.get(&sync.key).filter(|object| text(&object["metadata"]["uid"]) == uid);
            match found.cloned() {
                None => {
                    let mut metadata = json!({"name": sync.key.name, "uid": uid});
                    if !sync.key.namespace.is_empty() {
                        metadata["namespace"] = json!(sync.key.namespace);
                    }
                    let draft = Draft {
                        source: "edgecontroller".into(),
                        operation: "delete",
                        resource: sync.key.resource(),
                        version: String::new(),
                        parent: String::new(),
                        content: bare(&metadata),
                    };
                    self.track(&node, draft);
                }
                Some(object) => {
                    if number(text(&object["metadata"]["resourceVersion"])) > number(&sync.version) {
                        self.push(&node, "edgecontroller", "update", &sync.key.resource(), &object);
                    }
                }
            }
        }
    }
}

fn key_of(draft: &Draft) -> Option<Key> {
    let metadata = &draft.content["metadata"];
    let name = metadata["name"].as_str()?;
    let kind = draft.resource.split('/').nth(1)?;
    Some(Key::new(kind, text(&metadata["namespace"]), name))
}

/// Returns the ConfigMaps and Secrets that CloudCore finds in a Pod: it ignores `initContainers`.
fn references(pod: &Value) -> BTreeSet<Key> {
    let spec = &pod["spec"];
    let mut found: Vec<(&str, &Value)> = Vec::new();
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let volumes = list(&spec["volumes"]);
    let projected: Vec<Value> =
        volumes.iter().flat_map(|volume| list(&volume["projected"]["sources"])).collect();
    let containers = list(&spec["containers"]);
    let env: Vec<Value> = containers.iter().flat_map(|container| list(&container["env"])).collect();
    let env_from: Vec<Value> = containers.iter().flat_map(|container| list(&container["envFrom"])).collect();
    let pull = list(&spec["imagePullSecrets"]);
    for volume in &volumes {
        found.extend([
            ("configmap", &volume["configMap"]["name"]),
            ("secret", &volume["secret"]["secretName"]),
        ]);
    }
    for source in &projected {
        found.extend([("configmap", &source["configMap"]["name"]), ("secret", &source["secret"]["name"])]);
    }
    for variable in &env {
        let from = &variable["valueFrom"];
        found.extend([
            ("configmap", &from["configMapKeyRef"]["name"]),
            ("secret", &from["secretKeyRef"]["name"]),
        ]);
    }
    for source in &env_from {
        found.extend([
            ("configmap", &source["configMapRef"]["name"]),
            ("secret", &source["secretRef"]["name"]),
        ]);
    }
    found.extend(pull.iter().map(|secret| ("secret", &secret["name"])));
    let namespace = text(&pod["metadata"]["namespace"]);
    let named = found.into_iter().filter_map(|(kind, name)| Some(Key::new(kind, namespace, name.as_str()?)));
    named.collect()
}

/// Returns the resource of an object sent by the dynamic controller: the type is derived from the
/// plural.
pub(super) fn guessed_resource(object: &Value, plural: &str) -> String {
    let kind = if let Some(stem) = plural.strip_suffix("ies") {
        format!("{stem}y")
    } else if plural.ends_with("ses") {
        plural.strip_suffix("es").unwrap_or(plural).to_owned()
    } else {
        plural.strip_suffix('s').unwrap_or(plural).to_owned()
    };
    resource(text(&object["metadata"]["namespace"]), &kind, text(&object["metadata"]["name"]))
}
