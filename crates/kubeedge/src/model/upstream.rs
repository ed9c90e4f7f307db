//! Requests and writes of the node, without Applications.

use serde_json::{Value, json};

use super::CloudCore;
use super::cluster::{Key, strategic};
use super::message::{NodeMessage, failure};

const CONTROLLER: &str = "edgecontroller";

fn not_found(plural: &str, name: &str, details: Value) -> Value {
    failure(404, "NotFound", format!("{plural} \"{name}\" not found"), details)
}

impl CloudCore {
    pub fn upstream(&mut self, node: &str, received_message: &NodeMessage) {
        let Some((namespace, kind, name)) = received_message.parts() else { return };
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        match (kind, received_message.operation.as_str()) {
            ("configmap" | "secret", "query") => {
                self.query_config(node, received_message, &Key::new(kind, &namespace, &name));
            }
            ("node", "query") => {
                let found = self.cluster.get(&Key::new("node", "", &name)).cloned();
                let missing = not_found("node", &name, json!({"name": name, "kind": "node"}));
                self.respond(node, received_message, found.unwrap_or(missing));
            }
            ("lease", operation) => {
                let answer = self.lease(operation, &namespace, &name, &received_message.content);
                if let Some(answer) = answer {
                    let draft = received_message.answer(CONTROLLER, answer);
                    self.answer(node, &draft);
                }
            }
            ("node", "insert") => self.insert_node(node, received_message, &name),
            ("node", "update") => self.update_node(node, received_message, &name),
            ("nodepatch", _) => self.patch_status(node, received_message, &Key::new("node", "", &name)),
            ("podpatch", _) => self.patch_status(node, received_message, &Key::new("pod", &namespace, &name)),
            ("pod", "delete") => self.delete_pod(node, received_message, &Key::new("pod", &namespace, &name)),
            ("event", _) => self.event(received_message),
            _ => {}
        }
    }

    /// Sends an answer without acknowledgement, with the version of its object.
    fn respond(&mut self, node: &str, received_message: &NodeMessage, content: Value) {
        let metadata = if content["metadata"].is_object() {
            &content["metadata"]
        } else {
            &content["Object"]["metadata"]
        };
        let version = match content["Err"].is_null() {
            true => metadata["resourceVersion"].as_str().unwrap_or_default().to_owned(),
            false => String::new(),
        };
        let mut draft = received_message.answer(CONTROLLER, content);
        draft.version = version;
        self.answer(node, &draft);
    }

    fn query_config(&mut self, node: &str, received_message: &NodeMessage, key: &Key) {
        match self.cluster.get(key).cloned() {
            Some(object) => {
                let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
                let mut draft = received_message.answer(CONTROLLER, object);
                draft.version = version;
                self.track(node, draft);
            }
            None => {
                let details = json!({"name": key.name, "kind": key.kind});
                self.respond(node, received_message, not_found(&key.kind, &key.name, details));
            }
        }
    }

    fn lease(&mut self, operation: &str, namespace: &str, name: &str, content: &Value) -> Option<Value> {
        let details =
            |name: &str, kind: &str| json!({"name": name, "group": "coordination.k8s.io", "kind": kind});
        let empty = json!({"metadata": {"creationTimestamp": null}, "spec": {}});
        if operation == "query" {
            let missing = not_found("lease.coordination.k8s.io", name, details(name, "lease"));
            return Some(match self.cluster.get(&Key::new("lease", namespace, name)) {
                Some(lease) => json!({"Object": lease, "Err": null}),
                None => json!({"Object": null, "Err": missing}),
            });
        }
        let name = content["metadata"]["name"].as_str()?;
        let key = Key::new("lease", namespace, name);
        let old = self.cluster.get(&key);
        let refused = |code, reason, message: String| {
            Some(json!({"Object": empty, "Err": failure(code, reason, message, details(name, "leases"))}))
        };
        let version = content["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        match (operation, old) {
            ("insert", Some(_)) => {
                return refused(
                    409,
                    "AlreadyExists",
                    format!("leases.coordination.k8s.io \"{name}\" already exists"),
                );
            }
            ("insert", None) => {}
            ("update", _) if version.is_empty() => {
                let message = format!(
                    "Lease.coordination.k8s.io \"{name}\" is invalid: metadata.resourceVersion: Invalid value: 0x0: must be specified for an update"
                );
                return refused(422, "Invalid", message);
            }
            ("update", None) => {
                return refused(404, "NotFound", format!("leases.coordination.k8s.io \"{name}\" not found"));
            }
            ("update", Some(old)) if old["metadata"]["resourceVersion"] != version => {
                let message = format!(
                    "Operation cannot be fulfilled on leases.coordination.k8s.io \"{name}\": the object has been modified; please apply your changes to the latest version and try again"
                );
                return refused(409, "Conflict", message);
            }
            ("update", Some(_)) => {}
            _ => return None,
        }
        let mut lease = content.clone();
        lease["apiVersion"] = json!("coordination.k8s.io/v1");
        lease["kind"] = json!("Lease");
        lease["metadata"]["namespace"] = json!(namespace);
        if operation == "insert" {
            lease["metadata"].as_object_mut().map(|metadata| metadata.remove("uid"));
        }
        let (_, change) = self.cluster.apply(lease);
        self.happened(change);
        let lease = self.cluster.get(&key).cloned();
        Some(json!({"Object": lease, "Err": null}))
    }

    fn insert_node(&mut self, node: &str, received_message: &NodeMessage, name: &str) {
        let key = Key::new("node", "", name);
        if !received_message.content.is_object() {
            let draft = received_message.answer(CONTROLLER, json!("unmarshal message content failed"));
            return self.answer(node, &draft);
        }
        let mut object = received_message.content.clone();
        if self.cluster.get(&key).is_some() {
            let details = json!({"name": name, "kind": "nodes"});
            let refused = failure(409, "AlreadyExists", format!("nodes \"{name}\" already exists"), details);
            let labels = object["metadata"]["labels"].take();
            let empty =
                json!({"metadata": {"creationTimestamp": null, "labels": labels}, "spec": {}, "status": {}});
            return self.respond(node, received_message, json!({"Object": empty, "Err": refused}));
        }
        object["apiVersion"] = json!("v1");
        object["kind"] = json!("Node");
        object["metadata"]["name"] = json!(name);
        object["metadata"]["annotations"]["cloudcore"] = json!("192.0.2.2");
        let (_, change) = self.cluster.apply(object);
        let object = self.cluster.get(&key).cloned();
        let mut draft = received_message.answer(CONTROLLER, json!({"Object": typeless(object), "Err": null}));
        draft.version = String::new();
        self.answer(node, &draft);
        self.happened(change);
    }

    /// Merges labels and annotations; a failure is not answered.
    fn update_node(&mut self, node: &str, received_message: &NodeMessage, name: &str) {
        let Some(object) = self.cluster.get(&Key::new("node", "", name)) else { return };
        let (mut object, said) = (object.clone(), &received_message.content["metadata"]);
        let patch = json!({"metadata": {"labels": said["labels"], "annotations": said["annotations"]}});
        strategic(&mut object, &patch);
        let (_, change) = self.cluster.apply(object);
        let draft = received_message.answer(CONTROLLER, json!("OK"));
        self.answer(node, &draft);
        self.happened(change);
    }

    fn patch_status(&mut self, node: &str, received_message: &NodeMessage, key: &Key) {
        let patch = match &received_message.content {
            Value::String(text) => serde_json::from_str(text).unwrap_or(Value::Null),
            content => content.clone(),
        };
        let plural = format!("{}s", key.kind);
        let details = json!({"name": key.name, "kind": plural});
        let empty = json!({"metadata": {"creationTimestamp": null}, "spec": {}, "status": {}});
        let refused = match self.cluster.get(key) {
            None => Some(not_found(&plural, &key.name, details)),
            Some(object) => {
                let uid = &patch["metadata"]["uid"];
                let differs = uid.is_string() && *uid != object["metadata"]["uid"];
                differs.then(|| {
                    failure(409, "Conflict", "Precondition failed: UID in precondition".into(), details)
                })
            }
        };
        if let Some(refused) = refused {
            return self.respond(node, received_message, json!({"Object": empty, "Err": refused}));
        }
        let mut object = self.cluster.get(key).cloned().unwrap_or_default();
        let spec = object["spec"].clone();
        strategic(&mut object, &patch);
        object["spec"] = spec;
        let (_, change) = self.cluster.apply(object);
        let object = typeless(self.cluster.get(key).cloned());
        self.respond(node, received_message, json!({"Object": object, "Err": null}));
        self.happened(change);
    }

    fn delete_pod(&mut self, node: &str, received_message: &NodeMessage, key: &Key) {
        let wanted = match &received_message.content {
            Value::String(uid) => json!(uid),
            options => options["preconditions"]["uid"].clone(),
        };
        let same = |pod: &Value| wanted.is_null() || pod["metadata"]["uid"] == wanted;
        let change = match self.cluster.get(key).is_some_and(same) {
            true => self.cluster.delete(key).and_then(|(_, change)| change),
            false => None,
        };
        let draft = received_message.answer(CONTROLLER, json!("OK"));
        self.answer(node, &draft);
        self.happened(change);
    }

    /// Writes an Event to the API server, without an answer.
    fn event(&mut self, received_message: &NodeMessage) {
        let said = if received_message.operation == "patch" {
            &received_message.content["event"]
        } else {
            &received_message.content
        };
        let mut event = said.clone();
        let metadata = &event["metadata"];
        let (Some(namespace), Some(name)) = (metadata["namespace"].as_str(), metadata["name"].as_str())
        else {
            return;
        };
        let key = Key::new("event", namespace, name);
        event["apiVersion"] = json!("v1");
        event["kind"] = json!("Event");
        let exists = self.cluster.get(&key).is_some();
        match received_message.operation.as_str() {
            "insert" if exists => {}
            "insert" => {}
            "update" | "patch" if !exists => return,
            "update" => {}
            "patch" => {
                let patch = received_message.content["patchData"]
                    .as_str()
                    .and_then(|text| serde_json::from_str(text).ok());
                let mut old = self.cluster.get(&key).cloned().unwrap_or_default();
                strategic(&mut old, &patch.unwrap_or(Value::Null));
                event = old;
            }
            _ => return,
        }
        self.event_writes.push(event.clone());
        if received_message.operation != "insert" || !exists {
            let (_, change) = self.cluster.apply(event);
            self.happened(change);
        }
    }
}

/// Returns the object without its kind, as the API server answers a write.
fn typeless(object: Option<Value>) -> Value {
    let mut object = object.unwrap_or_default();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    object
}
