//! The dynamic controller: Applications and their listeners.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::CloudCore;
use super::cluster::{Key, Kind, merge};
use super::message::{Draft, NodeMessage, failure};
use super::push::guessed_resource;

/// The lists being read page by page.
const MAX_LISTS: usize = 16;

/// A watch for changes of a kind.
#[derive(Clone, Debug)]
struct Listener {
    node: String,
    kind: Kind,
    namespace: String,
    fields: String,
    labels: String,
}

/// The remaining items of a list.
pub(super) struct Listed {
    version: String,
    rest: Vec<Value>,
}

#[derive(Default)]
pub(super) struct Dynamic {
    /// By kind (version and plural) and ID alone: another node with the same ID replaces the first
    /// one.
    listeners: BTreeMap<(String, String), Listener>,
    lists: BTreeMap<u64, Listed>,
    next_list: u64,
}

/// The parts of a Key: the kind's version and plural, namespace and name (both may be empty).
struct RequestKey {
    api_version: String,
    plural: String,
    namespace: String,
    name: String,
}

impl RequestKey {
    fn read(key: &str) -> Option<Self> {
        let mut parts = key.strip_prefix('/')?.split('/');
        let (group, version, plural) = (parts.next()?, parts.next()?, parts.next()?);
        let or_empty = |part: Option<&str>| match part {
            None | Some("null") => String::new(),
            Some(part) => part.to_owned(),
        };
        let api_version = if group == "core" { version.to_owned() } else { format!("{group}/{version}") };
        let (namespace, name) = (or_empty(parts.next()), or_empty(parts.next()));
        Some(Self { api_version, plural: plural.to_owned(), namespace, name })
    }

    fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

/// A refusal: the text, and the Status if there is one.
type Refusal = (String, Option<Value>);

fn decode(value: &Value) -> Option<Value> {
    let bytes = STANDARD.decode(value.as_str()?).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Supports equalities only, as `a=b,c=d`.
fn selected(selector: &str, value: impl Fn(&str) -> String) -> bool {
    selector.split(',').filter(|part| !part.is_empty()).all(|part| {
        let (name, wanted) = part.split_once('=').unwrap_or((part, ""));
        value(name) == wanted.trim_start_matches('=')
    })
}

fn field(object: &Value, path: &str) -> String {
    let value = path.split('.').fold(object, |value, part| &value[part]);
    text(value).to_owned()
}

fn label(object: &Value, name: &str) -> String {
    text(&object["metadata"]["labels"][name]).to_owned()
}

impl Listener {
    fn matches(&self, object: &Value) -> bool {
        let is_kind = object["apiVersion"] == self.kind.api_version.as_str()
            && object["kind"] == self.kind.kind.as_str();
        // For Pods the namespace field has another name, which no Pod has.
        let is_there = self.namespace.is_empty()
            || (self.kind.kind != "Pod" && text(&object["metadata"]["namespace"]) == self.namespace);
        let known = |name: &str| match name {
            "metadata.name" | "metadata.namespace" => field(object, name),
            _ => "\u{0}".into(),
        };
        is_kind
            && is_there
            && selected(&self.fields, known)
            && selected(&self.labels, |name| label(object, name))
    }
}

impl CloudCore {
    pub fn application(&mut self, node: &str, received_message: &NodeMessage) {
        if !self.settings.dynamic_controller {
            return;
        }
        if received_message.resource == "watchapp/sync" {
            return self.sync_watches(node, received_message);
        }
        if !received_message.content.is_object() {
            return;
        }
        let mut application = received_message.content.clone();
        application["Nodename"] = json!(node);
        self.process(node, &mut application);
        let draft = Draft {
            source: "dynamiccontroller".into(),
            operation: "applicationResponse",
            resource: "ignore/Application/ignore".into(),
            version: String::new(),
            parent: received_message.id.clone(),
            content: application,
        };
        self.answer(node, &draft);
    }

    /// Executes an Application and writes the outcome into it.
    fn process(&mut self, node: &str, application: &mut Value) {
        let result = match decode(&application["Option"]) {
            None | Some(Value::Null) => {
                if application["Verb"] == "delete" {
                    self.violations.push("an Application deletes with the option null".into());
                }
                Err(("failed to parse Option bytes, unexpected end of JSON input".into(), None))
            }
            Some(option) => self.perform(node, application, &option),
        };
        application["RespBody"] = Value::Null;
        application["Reason"] = json!("");
        application["Error"] = json!({"ErrStatus": {"metadata": {}}});
        match result {
            Ok(body) => {
                application["Status"] = json!("Approved");
                if !body.is_null() {
                    application["RespBody"] = json!(STANDARD.encode(body.to_string()));
                }
            }
            Err((reason, status)) => {
                application["Status"] = json!("Rejected");
                application["Reason"] = json!(reason);
                if let Some(status) = status {
                    application["Error"] = status;
                }
            }
        }
    }

    fn perform(&mut self, node: &str, application: &Value, option: &Value) -> Result<Value, Refusal> {
        let key = text(&application["Key"]);
        let request_key = RequestKey::read(key).ok_or_else(|| (String::new(), Some(unknown())))?;
        match text(&application["Verb"]) {
            "list" => {
                let list = self
                    .list(&request_key, option)
                    .map_err(|message| (format!("get current list error: {message}"), None))?;
                let connection = self.connection_of(node);
                if let Some(session) = connection.and_then(|at| self.sessions.get_mut(&at)) {
                    session.approved.push(key.to_owned());
                }
                Ok(list)
            }
            "get" => self.get(&request_key),
            "patch" => self.patch(&request_key, option),
            "watch" => {
                self.watch(node, text(&application["ID"]), key, &request_key, option);
                Ok(Value::Null)
            }
            verb => Err((format!("unsupported Application Verb type :{verb}"), None)),
        }
    }

    /// Returns the kind, if CloudCore may read it.
    fn allowed(&self, request_key: &RequestKey) -> Result<Kind, String> {
        let kind = self.cluster.kind(&request_key.api_version, &request_key.plural);
        let kind = kind.ok_or("the server could not find the requested resource")?;
        if kind.allowed {
            return Ok(kind.clone());
        }
        let what = match request_key.group() {
            "" => request_key.plural.clone(),
            group => format!("{}.{group}", request_key.plural),
        };
        Err(format!(
            "{what} is forbidden: User \"system:serviceaccount:kubeedge:cloudcore\" cannot list resource \"{}\" in API group \"{}\" at the cluster scope",
            request_key.plural,
            request_key.group()
        ))
    }

    fn list(&mut self, request_key: &RequestKey, option: &Value) -> Result<Value, String> {
        let kind = self.allowed(request_key)?;
        let listed = match option["continue"].as_str().filter(|token| !token.is_empty()) {
            Some(token) => {
                let found = token.parse().ok().and_then(|token| self.dynamic.lists.remove(&token));
                found.ok_or(
                    "The provided continue parameter is too old to display a consistent list result.",
                )?
            }
            None => {
                let (fields, labels) = (text(&option["fieldSelector"]), text(&option["labelSelector"]));
                let wanted = |object: &&Value| {
                    (request_key.namespace.is_empty()
                        || text(&object["metadata"]["namespace"]) == request_key.namespace)
                        && selected(fields, |name| field(object, name))
                        && selected(labels, |name| label(object, name))
                };
                let rest = self.cluster.of_kind(&kind).filter(wanted).cloned().collect();
                Listed { version: self.cluster.version().to_string(), rest }
            }
        };
        let Listed { version, mut rest } = listed;
        let limit = option["limit"].as_u64().map_or(usize::MAX, |limit| limit as usize).max(1);
        let after = rest.split_off(rest.len().min(limit));
        let mut metadata = json!({"resourceVersion": version, "continue": ""});
        if !after.is_empty() {
            self.dynamic.next_list += 1;
            let token = self.dynamic.next_list;
            metadata["continue"] = json!(token.to_string());
            metadata["remainingItemCount"] = json!(after.len());
            self.dynamic.lists.insert(token, Listed { version, rest: after });
            if self.dynamic.lists.len() > MAX_LISTS {
                self.dynamic.lists.pop_first();
            }
        }
        Ok(
            json!({"apiVersion": kind.api_version, "kind": format!("{}List", kind.kind), "metadata": metadata, "items": rest}),
        )
    }

    fn found(&self, request_key: &RequestKey, name: &str) -> Result<Key, Refusal> {
        let kind = self
            .cluster
            .kind(&request_key.api_version, &request_key.plural)
            .ok_or((String::new(), Some(unknown())))?;
        let key = Key::new(&kind.kind, &request_key.namespace, name);
        if self.cluster.get(&key).is_some() {
            return Ok(key);
        }
        let details = json!({"name": name, "group": request_key.group(), "kind": request_key.plural});
        let message = format!("{}.{} \"{name}\" not found", request_key.plural, request_key.group());
        Err((String::new(), Some(failure(404, "NotFound", message, details))))
    }

    fn get(&self, request_key: &RequestKey) -> Result<Value, Refusal> {
        let key = self.found(request_key, &request_key.name)?;
        Ok(self.cluster.get(&key).cloned().unwrap_or_default())
    }

    fn patch(&mut self, request_key: &RequestKey, option: &Value) -> Result<Value, Refusal> {
        let key = self.found(request_key, text(&option["Name"]))?;
        let patch = decode(&option["Data"]).unwrap_or_default();
        let old = self.cluster.get(&key).cloned().unwrap_or_default();
        let mut object = old.clone();
        merge(&mut object, &patch);
        let wanted = &patch["metadata"]["uid"];
        if wanted.is_string() && *wanted != old["metadata"]["uid"] {
            let message = "the UID in the precondition differs".to_owned();
            return Err((String::new(), Some(failure(409, "Conflict", message, json!({})))));
        }
        if option["Subresources"] == json!(["status"]) {
            let status = object["status"].take();
            object = old;
            object["status"] = status;
        }
        let (_, change) = self.cluster.apply(object);
        let object = self.cluster.get(&key).cloned().unwrap_or_default();
        self.happened(change);
        Ok(object)
    }

    fn watch(&mut self, node: &str, id: &str, key: &str, request_key: &RequestKey, option: &Value) {
        let session = self.connection_of(node).and_then(|at| self.sessions.get(&at));
        let was_listed = session.is_some_and(|session| session.approved.iter().any(|listed| listed == key));
        if !was_listed {
            self.violations.push(format!("node {node} watches {key}, which it has not listed"));
        }
        let kind = match self.allowed(request_key) {
            Ok(kind) => kind,
            Err(message) => {
                return self
                    .violations
                    .push(format!("CloudCore would end or hang: watch of {key}: {message}"));
            }
        };
        if !id.contains(node) && id.len() < 32 {
            self.violations.push(format!("the listener {id:?} of {node} may be that of another node"));
        }
        let listener = Listener {
            node: node.to_owned(),
            namespace: request_key.namespace.clone(),
            fields: text(&option["fieldSelector"]).to_owned(),
            labels: text(&option["labelSelector"]).to_owned(),
            kind,
        };
        let place = (format!("{}/{}", request_key.api_version, request_key.plural), id.to_owned());
        let before = self.dynamic.listeners.get(&place).filter(|before| before.node != node);
        if let Some(before) = before {
            self.violations.push(format!("node {node} takes the listener of {}", before.node));
        }
        let known = self.cluster.all().filter(|object| listener.matches(object));
        let known = known.take(self.settings.watch_begins_with).cloned().collect::<Vec<_>>();
        for object in known {
            let resource = guessed_resource(&object, &listener.kind.plural);
            self.push(node, "dynamiccontroller", "insert", &resource, &object);
        }
        self.dynamic.listeners.insert(place, listener);
    }

    /// Notifies the watches of a kind of a change.
    pub fn notify_listeners(&mut self, operation: &'static str, object: &Value) {
        let hear: Vec<Listener> =
            self.dynamic.listeners.values().filter(|listener| listener.matches(object)).cloned().collect();
        for listener in hear {
            let resource = guessed_resource(object, &listener.kind.plural);
            self.push(&listener.node, "dynamiccontroller", operation, &resource, object);
        }
    }

    /// Handles the complete set of a node's watches.
    fn sync_watches(&mut self, node: &str, received_message: &NodeMessage) {
        let Value::Object(wanted) = &received_message.content else { return };
        self.dynamic.listeners.retain(|(_, id), listener| listener.node != node || wanted.contains_key(id));
        let mut failed = Map::new();
        for (id, application) in wanted {
            if self.dynamic.listeners.keys().any(|(_, known)| known == id) {
                continue;
            }
            let mut application = application.clone();
            self.process(node, &mut application);
            if application["Status"] != "Approved" {
                failed.insert(id.clone(), application);
            }
        }
        let mut draft = received_message.answer("dynamiccontroller", Value::Object(failed));
        draft.operation = "applicationResponse";
        self.answer(node, &draft);
    }

    /// Returns the kinds and selectors of a node's watches.
    pub fn watches(&self, node: &str) -> Vec<String> {
        let own = self.dynamic.listeners.iter().filter(|(_, listener)| listener.node == node);
        own.map(|((kind, _), listener)| format!("{kind} {} {}", listener.namespace, listener.fields))
            .collect()
    }
}

fn unknown() -> Value {
    failure(404, "NotFound", "the server could not find the requested resource".into(), json!({}))
}
