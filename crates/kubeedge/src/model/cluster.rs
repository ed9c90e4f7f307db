//! The API server's storage: objects with one UID each and versions from one counter.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Ids;

/// Type (the kind in lower case), namespace (empty for none), name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self { kind: kind.to_lowercase(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns the resource as messages name it.
    pub fn resource(&self) -> String {
        resource(&self.namespace, &self.kind, &self.name)
    }
}

pub(super) fn resource(namespace: &str, kind: &str, name: &str) -> String {
    let namespace = if namespace.is_empty() { "null" } else { namespace };
    format!("{namespace}/{kind}/{name}")
}

/// A kind that the API server knows.
#[derive(Clone, Debug)]
pub struct Kind {
    pub api_version: String,
    pub kind: String,
    pub plural: String,
    /// Whether CloudCore may list it.
    pub allowed: bool,
}

/// A change of an object.
#[derive(Clone, Debug)]
pub enum Change {
    Added(Value),
    Modified(Value),
    Deleted(Value),
}

pub struct Cluster {
    objects: BTreeMap<Key, Value>,
    kinds: Vec<Kind>,
    version: u64,
    ids: Ids,
}

impl Cluster {
    pub fn new(seed: u64) -> Self {
        let kind = |api_version: &str, kind: &str, plural: &str| Kind {
            api_version: api_version.into(),
            kind: kind.into(),
            plural: plural.into(),
            allowed: true,
        };
        let kinds = vec![
            kind("v1", "Pod", "pods"),
            kind("v1", "ConfigMap", "configmaps"),
            kind("v1", "Secret", "secrets"),
            kind("v1", "Node", "nodes"),
            kind("v1", "Event", "events"),
            kind("coordination.k8s.io/v1", "Lease", "leases"),
        ];
        Self { objects: BTreeMap::new(), kinds, version: 300, ids: Ids(seed) }
    }

    /// Creates a CustomResourceDefinition for a kind.
    pub fn define(&mut self, api_version: &str, kind: &str, plural: &str) {
        self.kinds.push(Kind {
            api_version: api_version.into(),
            kind: kind.into(),
            plural: plural.into(),
            allowed: true,
        });
    }

    /// Sets whether CloudCore's own account may list a kind.
    pub fn allow(&mut self, plural: &str, allowed: bool) {
        for kind in self.kinds.iter_mut().filter(|kind| kind.plural == plural) {
            kind.allowed = allowed;
        }
    }

    pub fn kind(&self, api_version: &str, plural: &str) -> Option<&Kind> {
        self.kinds.iter().find(|kind| kind.api_version == api_version && kind.plural == plural)
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn key(&self, object: &Value) -> Option<Key> {
        let metadata = &object["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        Some(Key::new(object["kind"].as_str()?, namespace, metadata["name"].as_str()?))
    }

    pub fn get(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key)
    }

    pub fn all(&self) -> impl Iterator<Item = &Value> {
        self.objects.values()
    }

    /// Returns all objects of a kind in the order of their names.
    pub fn of_kind<'a>(&'a self, kind: &'a Kind) -> impl Iterator<Item = &'a Value> {
        let is_one = |object: &&Value| {
            object["apiVersion"] == kind.api_version.as_str() && object["kind"] == kind.kind.as_str()
        };
        self.objects.values().filter(is_one)
    }

    fn next_version(&mut self) -> Value {
        self.version += 1;
        json!(self.version.to_string())
    }

    /// Creates or replaces the object and keeps its identity. An unchanged object keeps its
    /// version.
    pub fn apply(&mut self, mut object: Value) -> (String, Option<Change>) {
        let key = self.key(&object).expect("an object with kind and name");
        let Some(old) = self.objects.get(&key) else {
            let metadata = &mut object["metadata"];
            if !metadata["uid"].is_string() {
                metadata["uid"] = json!(self.ids.uuid());
            }
            metadata["creationTimestamp"] = json!("2026-11-21T01:42:31Z");
            let uid = metadata["uid"].as_str().unwrap_or_default().to_owned();
            object["metadata"]["resourceVersion"] = self.next_version();
            self.objects.insert(key, object.clone());
            return (uid, Some(Change::Added(object)));
        };
        for field in ["uid", "creationTimestamp", "resourceVersion"] {
            object["metadata"][field] = old["metadata"][field].clone();
        }
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        if object == *old {
            return (uid, None);
        }
        object["metadata"]["resourceVersion"] = self.next_version();
        self.objects.insert(key, object.clone());
        (uid, Some(Change::Modified(object)))
    }

    pub fn delete(&mut self, key: &Key) -> Option<(String, Option<Change>)> {
        let mut object = self.objects.remove(key)?;
        object["metadata"]["resourceVersion"] = self.next_version();
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        Some((uid, Some(Change::Deleted(object))))
    }
}

/// Applies a strategic merge patch, as far as Nodes and Pods need it: conditions and addresses are
/// merged by type.
pub(super) fn strategic(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (name, value) in patch {
        if name.starts_with('$') {
            continue;
        }
        match value {
            Value::Null => {
                target.as_object_mut().map(|target| target.remove(name));
            }
            Value::Array(items) if matches!(name.as_str(), "conditions" | "addresses") => {
                let list = &mut target[name];
                if !list.is_array() {
                    *list = json!([]);
                }
                merge_by_type(list, items);
            }
            Value::Array(_) => target[name] = value.clone(),
            _ => strategic(&mut target[name], value),
        }
    }
}

fn merge_by_type(list: &mut Value, items: &[Value]) {
    let Value::Array(list) = list else { return };
    for item in items {
        match list.iter_mut().find(|old| old["type"] == item["type"]) {
            Some(old) => strategic(old, item),
            None => list.push(item.clone()),
        }
    }
}

/// Applies a merge patch (RFC 7396).
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (name, value) in patch {
        if value.is_null() {
            target.as_object_mut().map(|target| target.remove(name));
        } else {
            merge(&mut target[name], value);
        }
    }
}
