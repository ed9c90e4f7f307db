//! What deciding about an object takes, without its body: identity, version, labels, and what ties it to
//! nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::name::check_subdomain;
use super::objectsync::is_sync_record;
use super::owned::Object;
use super::resource::Resource;
use super::selector::Labels;
use super::version::ResourceVersion;

/// The label that places an object on one node: its value is the node's name.
pub const NODE_LABEL: &str = "edgesync.io/node";
/// The annotation that places an object on several nodes, or on one whose name is no label value: node
/// names, separated by commas.
pub const NODES_ANNOTATION: &str = "edgesync.io/nodes";
/// The most nodes that one annotation may name; further ones are ignored.
pub const MAX_NAMED_NODES: usize = 1024;
/// The most ConfigMaps and Secrets of one Pod that are followed; further ones are ignored.
pub const MAX_REFERENCES: usize = 1024;

/// An object without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The UID.
    pub uid: Arc<str>,
    /// The version.
    pub version: ResourceVersion,
    /// The kind.
    pub resource: Arc<Resource>,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// Labels.
    pub labels: Labels,
    /// The nodes that the object itself names: label, annotation, `spec.nodeName` of a Pod.
    pub nodes: BTreeSet<Arc<str>>,
    /// What a Pod needs in its namespace; empty for other kinds.
    pub references: BTreeSet<Reference>,
    /// The length of its JSON text in bytes; zero if nobody has counted.
    pub size: usize,
}

/// A ConfigMap or Secret that a Pod refers to, in the Pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    /// Which kind.
    pub target: Target,
    /// Its name.
    pub name: Arc<str>,
}

/// The kinds that a Pod takes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl Target {
    /// The target that objects of this kind are.
    #[must_use]
    pub fn of(resource: &Resource) -> Option<Self> {
        match (resource.group.as_str(), resource.kind.as_str()) {
            ("", "ConfigMap") => Some(Self::ConfigMap),
            ("", "Secret") => Some(Self::Secret),
            _ => None,
        }
    }
}

impl Summary {
    /// Summarises an object of the given kind and version.
    #[must_use]
    pub fn of(object: &Object, resource: Arc<Resource>, version: ResourceVersion) -> Self {
        let labels = object.labels();
        let mut nodes = named_nodes(object, &labels);
        let mut references = BTreeSet::new();
        if resource.group.is_empty()
            && resource.kind == "Pod"
            && let Some(spec) = object.fields().get("spec").and_then(Value::as_object)
        {
            nodes.extend(node(string(spec, "nodeName")));
            references = pod_references(spec);
        }
        Self {
            uid: object.uid().into(),
            version,
            resource,
            namespace: object.namespace().into(),
            name: object.name().into(),
            labels,
            nodes,
            references,
            size: 0,
        }
    }

    /// With the length of the JSON text, in bytes.
    #[must_use]
    pub fn with_size(self, size: usize) -> Self {
        Self { size, ..self }
    }

    /// Whether objects of this kind can be placed on nodes. Records and Events come from the nodes, Leases
    /// and Nodes are about them: sending those back would never end.
    #[must_use]
    pub fn is_placeable(resource: &Resource) -> bool {
        !is_sync_record(resource)
            && !matches!(
                (resource.group.as_str(), resource.kind.as_str()),
                ("" | "events.k8s.io", "Event") | ("coordination.k8s.io", "Lease") | ("", "Node")
            )
    }

    /// Whether this is a Node, whose labels placement rules select by.
    #[must_use]
    pub fn is_node(&self) -> bool {
        self.resource.group.is_empty() && self.resource.kind == "Node"
    }
}

fn node(name: &str) -> Option<Arc<str>> {
    check_subdomain(name).is_ok().then(|| name.into())
}

/// The nodes that label and annotation name. Names that no node can have are ignored.
fn named_nodes(object: &Object, labels: &Labels) -> BTreeSet<Arc<str>> {
    let mut nodes: BTreeSet<Arc<str>> =
        labels.get(NODE_LABEL).and_then(|name| node(name)).into_iter().collect();
    let annotations =
        object.metadata().and_then(|metadata| metadata.get("annotations")).and_then(Value::as_object);
    if let Some(annotations) = annotations {
        let names = string(annotations, NODES_ANNOTATION).split(',').map(str::trim);
        nodes.extend(names.filter_map(node).take(MAX_NAMED_NODES));
    }
    nodes
}

fn string<'a>(map: &'a Map<String, Value>, field: &str) -> &'a str {
    map.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// Everything that a Pod's spec refers to. Parts of a wrong type are skipped, the rest still counts.
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
        // Volume drivers take a reference to the Secret with their credentials.
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
    use crate::object::kinds;
    use serde_json::json;

    fn summary(word: &str, value: Value) -> Summary {
        let resource = Arc::new(kinds::by_word(word).unwrap().resource());
        Summary::of(&serde_json::from_value(value).unwrap(), resource, 7.into())
    }

    fn names(references: &BTreeSet<Reference>, target: Target) -> Vec<&str> {
        references.iter().filter(|r| r.target == target).map(|r| &*r.name).collect()
    }

    #[test]
    fn a_pod_names_its_node_and_everything_it_takes_along() {
        let pod = summary(
            "pod",
            json!({
                "metadata": {"name": "web", "namespace": "lab", "uid": "u"},
                "spec": {
                    "nodeName": "edge-1",
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
                }
            }),
        );
        assert_eq!(pod.nodes, BTreeSet::from(["edge-1".into()]));
        assert_eq!(names(&pod.references, Target::ConfigMap), ["c1", "c2", "c3", "c4"]);
        assert_eq!(names(&pod.references, Target::Secret), ["pull", "s1", "s2", "s3", "s4", "s5"]);
    }

    #[test]
    fn a_malformed_part_of_a_pod_hides_nothing_else() {
        let pod = summary(
            "pod",
            json!({"spec": {
            "nodeName": "edge-1", "containers": "none", "imagePullSecrets": [7, {"name": 1}, {"name": "../x"}],
            "volumes": [7, null, {"configMap": {"name": "c"}}]}}),
        );
        assert_eq!(pod.references.len(), 1);
        assert_eq!(pod.nodes.len(), 1);
    }

    #[test]
    fn label_and_annotation_name_nodes_and_nonsense_is_ignored() {
        let map = summary(
            "cm",
            json!({"metadata": {
            "labels": {NODE_LABEL: "a"}, "annotations": {NODES_ANNOTATION: " b, c.d ,,A/B,a"}}}),
        );
        assert_eq!(map.nodes.iter().map(|n| &**n).collect::<Vec<_>>(), ["a", "b", "c.d"]);
        assert!(summary("cm", json!({"spec": {"nodeName": "x"}})).nodes.is_empty());
    }

    #[test]
    fn what_nodes_send_or_are_is_never_placed_on_them() {
        for word in ["objectsyncs", "clusterobjectsyncs", "events", "events.events.k8s.io", "leases", "nodes"]
        {
            assert!(!Summary::is_placeable(&kinds::by_word(word).unwrap().resource()), "{word}");
        }
        for word in ["cm", "pods", "deploy", "ns", "crd"] {
            assert!(Summary::is_placeable(&kinds::by_word(word).unwrap().resource()), "{word}");
        }
    }
}
