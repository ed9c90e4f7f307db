//! ConfigMaps and Secrets referenced by a Pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::name::check_subdomain;
use super::resource::Resource;

/// Maximum number of references followed per Pod; further ones are ignored.
pub const MAX_REFERENCES: usize = 1024;

/// A reference of a Pod to a ConfigMap or Secret in its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    /// Kind of the referenced object.
    pub target: Target,
    /// Name of the referenced object.
    pub name: Arc<str>,
}

/// Kinds that a Pod references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// ConfigMap of the core group.
    ConfigMap,
    /// Secret of the core group.
    Secret,
}

impl Target {
    /// Returns the target kind of a resource, if it is one.
    #[must_use]
    pub fn of(resource: &Resource) -> Option<Self> {
        match (resource.group.as_str(), resource.kind.as_str()) {
            ("", "ConfigMap") => Some(Self::ConfigMap),
            ("", "Secret") => Some(Self::Secret),
            _ => None,
        }
    }
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// Returns all references in a Pod's spec. Parts of a wrong type are skipped.
#[must_use]
pub fn pod_references(spec: &Map<String, Value>) -> BTreeSet<Reference> {
    let mut found = Found::default();
    for field in ["containers", "initContainers", "ephemeralContainers"] {
        for container in spec.get(field).and_then(Value::as_array).into_iter().flatten() {
            found.container(container);
        }
    }
    for volume in spec.get("volumes").and_then(Value::as_array).into_iter().flatten() {
        found.volume(volume);
    }
    for secret in spec.get("imagePullSecrets").and_then(Value::as_array).into_iter().flatten() {
        found.add(Target::Secret, secret.get("name"));
    }
    found.0
}

#[derive(Default)]
struct Found(BTreeSet<Reference>);

impl Found {
    fn add(&mut self, target: Target, name: Option<&Value>) {
        let name = name.and_then(Value::as_str).filter(|name| check_subdomain(name).is_ok());
        if let Some(name) = name
            && self.0.len() < MAX_REFERENCES
        {
            self.0.insert(Reference { target, name: name.into() });
        }
    }

    fn container(&mut self, container: &Value) {
        for variable in list(container, "env") {
            if let Some(from) = variable.get("valueFrom") {
                self.add(Target::ConfigMap, from.pointer("/configMapKeyRef/name"));
                self.add(Target::Secret, from.pointer("/secretKeyRef/name"));
            }
        }
        for from in list(container, "envFrom") {
            self.add(Target::ConfigMap, from.pointer("/configMapRef/name"));
            self.add(Target::Secret, from.pointer("/secretRef/name"));
        }
    }

    fn volume(&mut self, volume: &Value) {
        self.add(Target::ConfigMap, volume.pointer("/configMap/name"));
        self.add(Target::Secret, volume.pointer("/secret/secretName"));
        // Volume drivers reference the Secret with their credentials.
        if let Some(sources) = volume.as_object() {
            for source in sources.values() {
                self.add(Target::Secret, source.pointer("/secretRef/name"));
                self.add(Target::Secret, source.pointer("/nodePublishSecretRef/name"));
            }
        }
        if let Some(projected) = volume.get("projected") {
            for source in list(projected, "sources") {
                self.add(Target::ConfigMap, source.pointer("/configMap/name"));
                self.add(Target::Secret, source.pointer("/secret/name"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn references(spec: &Value) -> BTreeSet<Reference> {
        pod_references(spec.as_object().unwrap())
    }

    fn names(references: &BTreeSet<Reference>, target: Target) -> Vec<&str> {
        references.iter().filter(|r| r.target == target).map(|r| &*r.name).collect()
    }

    #[test]
    fn pod_references_are_found_everywhere() {
        let references = references(&json!({
                    "imagePullSecrets": [{"name": "pull"}],
                    "initContainers": [{"envFrom": [{"configMapRef": {"name": "c1"}}, {"secretRef": {"name": "s1"}}]}],
                    "containers": [{"env": [
                        {"name": "A", "value": "x"},
                        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c2", "key": "k"}}},
                        {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s2", "key": "k"}}}]}],
                    "volumes": [
                        {"name": "a", "configMap": {"name": "c3"}}, {"name": "b", "secret": {"secretName": "s3"}},
                        {"name": "c", "projected": {"sources": [
                            {"configMap": {"name": "c4"}}, {"secret": {"name": "s4"}},
                            {"serviceAccountToken": {"path": "token"}}]}},
                        {"name": "d", "csi": {"driver": "x", "nodePublishSecretRef": {"name": "s5"}}},
                        {"name": "e", "emptyDir": {}}]
        }));
        assert_eq!(names(&references, Target::ConfigMap), ["c1", "c2", "c3", "c4"]);
        assert_eq!(names(&references, Target::Secret), ["pull", "s1", "s2", "s3", "s4", "s5"]);
    }

    #[test]
    fn malformed_part_of_a_pod_hides_no_other_reference() {
        let references = references(&json!({
            "containers": "none", "imagePullSecrets": [7, {"name": 1}, {"name": "../x"}],
            "volumes": [7, null, {"configMap": {"name": "c"}}],
        }));
        assert_eq!(references.len(), 1);
    }
}
