//! The dynamic controller: Applications and their listeners.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::CloudCore;
use super::cluster::{Key, Kind, merge};
use super::message::{Draft, Heard, failure};
use super::push::guessed_resource;

/// Lists that are being read page by page.
const MAX_LISTS: usize = 16;

/// Somebody who wants to hear of changes of a kind.
#[derive(Clone, Debug)]
struct Listener {
    node: String,
    kind: Kind,
    namespace: String,
    fields: String,
    labels: String,
}

/// The rest of a list.
pub(super) struct Listed {
    version: String,
    rest: Vec<Value>,
}

#[derive(Default)]
pub(super) struct Dynamic {
    /// By kind (version and plural) and ID alone: another node with the same ID takes the place of the first one.
    listeners: BTreeMap<(String, String), Listener>,
    lists: BTreeMap<u64, Listed>,
    next_list: u64,
}

/// What a Key names: the kind's version and plural, namespace and name (both may be empty).
struct Asked {
    api_version: String,
    plural: String,
    namespace: String,
    name: String,
}

impl Asked {
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

/// What is refused: the reason in words, and the Status if there is one.
type Refusal = (String, Option<Value>);

fn decode(value: &Value) -> Option<Value> {
    let bytes = STANDARD.decode(value.as_str()?).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Equalities only, as `a=b,c=d`.
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
    fn hears(&self, object: &Value) -> bool {
        let is_kind = object["apiVersion"] == self.kind.api_version.as_str()
            && object["kind"] == self.kind.kind.as_str();
        // For pods the namespace has another name, and no pod has a field of that.
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
    pub fn application(&mut self, node: &str, heard: &Heard) {
        if !self.settings.dynamic_controller {
            return;
        }
        if heard.resource == "watchapp/sync" {
            return self.sync_watches(node, heard);
        }
        if !heard.content.is_object() {
            return;
        }
        let mut application = heard.content.clone();
        application["Nodename"] = json!(node);
        self.process(node, &mut application);
        let draft = Draft {
            source: "dynamiccontroller".into(),
            operation: "applicationResponse",
            resource: "ignore/Application/ignore".into(),
            version: String::new(),
            parent: heard.id.clone(),
            content: application,
        };
        self.answer(node, &draft);
    }

    /// Does what an Application asks for and writes the outcome into it.
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
        let asked = Asked::read(key).ok_or_else(|| (String::new(), Some(unknown())))?;
        match text(&application["Verb"]) {
            "list" => {
                let list = self
                    .list(&asked, option)
                    .map_err(|message| (format!("get current list error: {message}"), None))?;
                let connection = self.connection_of(node);
                if let Some(session) = connection.and_then(|at| self.sessions.get_mut(&at)) {
                    session.approved.push(key.to_owned());
                }
                Ok(list)
            }
            "get" => self.get(&asked),
            "patch" => self.patch(&asked, option),
            "watch" => {
                self.watch(node, text(&application["ID"]), key, &asked, option);
                Ok(Value::Null)
            }
            verb => Err((format!("unsupported Application Verb type :{verb}"), None)),
        }
    }

    /// The kind, if CloudCore may see it.
    fn allowed(&self, asked: &Asked) -> Result<Kind, String> {
        let kind = self.cluster.kind(&asked.api_version, &asked.plural);
        let kind = kind.ok_or("the server could not find the requested resource")?;
        if kind.allowed {
            return Ok(kind.clone());
        }
        let what = match asked.group() {
            "" => asked.plural.clone(),
            group => format!("{}.{group}", asked.plural),
        };
        Err(format!(
            "{what} is forbidden: User \"system:serviceaccount:kubeedge:cloudcore\" cannot list resource \"{}\" in API group \"{}\" at the cluster scope",
            asked.plural,
            asked.group()
        ))
    }

    fn list(&mut self, asked: &Asked, option: &Value) -> Result<Value, String> {
        let kind = self.allowed(asked)?;
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
                    (asked.namespace.is_empty() || text(&object["metadata"]["namespace"]) == asked.namespace)
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

    fn found(&self, asked: &Asked, name: &str) -> Result<Key, Refusal> {
        let kind =
            self.cluster.kind(&asked.api_version, &asked.plural).ok_or((String::new(), Some(unknown())))?;
        let key = Key::new(&kind.kind, &asked.namespace, name);
        if self.cluster.get(&key).is_some() {
            return Ok(key);
        }
        let details = json!({"name": name, "group": asked.group(), "kind": asked.plural});
        let message = format!("{}.{} \"{name}\" not found", asked.plural, asked.group());
        Err((String::new(), Some(failure(404, "NotFound", message, details))))
    }

    fn get(&self, asked: &Asked) -> Result<Value, Refusal> {
        let key = self.found(asked, &asked.name)?;
        Ok(self.cluster.get(&key).cloned().unwrap_or_default())
    }

    fn patch(&mut self, asked: &Asked, option: &Value) -> Result<Value, Refusal> {
        let key = self.found(asked, text(&option["Name"]))?;
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

    fn watch(&mut self, node: &str, id: &str, key: &str, asked: &Asked, option: &Value) {
        let session = self.connection_of(node).and_then(|at| self.sessions.get(&at));
        let was_listed = session.is_some_and(|session| session.approved.iter().any(|listed| listed == key));
        if !was_listed {
            self.violations.push(format!("node {node} watches {key}, which it has not listed"));
        }
        let kind = match self.allowed(asked) {
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
            namespace: asked.namespace.clone(),
            fields: text(&option["fieldSelector"]).to_owned(),
            labels: text(&option["labelSelector"]).to_owned(),
            kind,
        };
        let place = (format!("{}/{}", asked.api_version, asked.plural), id.to_owned());
        let before = self.dynamic.listeners.get(&place).filter(|before| before.node != node);
        if let Some(before) = before {
            self.violations.push(format!("node {node} takes the listener of {}", before.node));
        }
        let known = self.cluster.all().filter(|object| listener.hears(object));
        let known = known.take(self.settings.watch_begins_with).cloned().collect::<Vec<_>>();
        for object in known {
            let resource = guessed_resource(&object, &listener.kind.plural);
            self.push(node, "dynamiccontroller", "insert", &resource, &object);
        }
        self.dynamic.listeners.insert(place, listener);
    }

    /// Tells those who watch a kind of a change.
    pub fn tell_listeners(&mut self, operation: &'static str, object: &Value) {
        let hear: Vec<Listener> =
            self.dynamic.listeners.values().filter(|listener| listener.hears(object)).cloned().collect();
        for listener in hear {
            let resource = guessed_resource(object, &listener.kind.plural);
            self.push(&listener.node, "dynamiccontroller", operation, &resource, object);
        }
    }

    /// The whole set of watches that a node wants.
    fn sync_watches(&mut self, node: &str, heard: &Heard) {
        let Value::Object(wanted) = &heard.content else { return };
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
        let mut draft = heard.answer("dynamiccontroller", Value::Object(failed));
        draft.operation = "applicationResponse";
        self.answer(node, &draft);
    }

    /// The listeners of a node: their kinds and selectors.
    pub fn watches(&self, node: &str) -> Vec<String> {
        let own = self.dynamic.listeners.iter().filter(|(_, listener)| listener.node == node);
        own.map(|((kind, _), listener)| format!("{kind} {} {}", listener.namespace, listener.fields))
            .collect()
    }
}

fn unknown() -> Value {
    failure(404, "NotFound", "the server could not find the requested resource".into(), json!({}))
}
