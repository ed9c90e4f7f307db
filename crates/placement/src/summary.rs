//! What deciding about an object takes, without its body: identity, version, labels, and what ties
//! it to nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use edgesync_object::node_labels::{NodeLabels, has_reported};
use edgesync_object::objectsync::{is_placeable, is_placement};
use edgesync_object::{Labels, NodeName, Object, Reference, Resource, ResourceVersion, pod_references};

/// The label that places an object on one node: its value is the node's name.
pub const NODE_LABEL: &str = "edgesync.io/node";
/// The annotation that places an object on several nodes, or on one whose name is no label value:
/// node names, separated by commas.
pub const NODES_ANNOTATION: &str = "edgesync.io/nodes";
/// The annotation of a Node with which an operator confirms removals that are held back, where
/// several replicas serve the node: `INCARNATION/COUNT`, the incarnation and the most removals that
/// are meant.
pub const DELETIONS_CONFIRMED_ANNOTATION: &str = "edgesync.io/deletions-confirmed";
/// The most nodes that one annotation may name; further ones are ignored.
pub(crate) const MAX_NAMED_NODES: usize = 1024;

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
    /// Labels; of a Node those that were given to it.
    pub labels: Labels,
    /// What else a Node tells; nothing for other kinds.
    pub notes: Option<Box<NodeNotes>>,
    /// The nodes that the object itself names: label, annotation, `spec.nodeName` of a Pod.
    pub nodes: BTreeSet<NodeName>,
    /// What a Pod needs in its namespace; empty for other kinds.
    pub references: BTreeSet<Reference>,
    /// Of a Placement or ClusterPlacement: the rule that it is.
    pub rule: Option<Arc<RuleText>>,
    /// The length of its JSON text in bytes; zero if nobody has counted.
    pub size: usize,
}

/// What a Node tells the fleet, beside the labels that were given to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeNotes {
    /// Labels that it has given itself; nothing before it has reported.
    pub claimed: Option<Labels>,
    /// [`DELETIONS_CONFIRMED_ANNOTATION`]; empty for none.
    pub confirmed: Box<str>,
    /// Somebody has found it silent: whether it is `Ready` is Unknown.
    pub silent: bool,
    /// It lives and is said to hold what it is to hold.
    pub in_sync: bool,
    /// Whether all objects that rules for files concern there are in effect, and it holds what it
    /// is to hold; nothing without such rules.
    pub in_effect: Option<bool>,
}

/// A rule that is an object, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleText {
    /// `metadata.generation`: it grows with the spec, and not with the status.
    pub generation: u64,
    /// The field `spec` as JSON text.
    pub spec: Box<str>,
    /// The field `status` as JSON text; empty for none.
    pub status: Box<str>,
}

impl RuleText {
    /// The rule that an object is; nothing for one of another kind.
    #[must_use]
    pub fn of(object: &Object, resource: &Resource) -> Option<Self> {
        let field =
            |name: &str| object.fields().get(name).map(ToString::to_string).unwrap_or_default().into();
        is_placement(resource).then(|| Self {
            generation: object.generation(),
            spec: field("spec"),
            status: field("status"),
        })
    }
}

/// Whether placement decides about objects of this kind, or by them.
#[must_use]
pub fn concerns(resource: &Resource) -> bool {
    is_placeable(resource) || is_placement(resource) || is_node(resource)
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
            nodes.extend(NodeName::parse(string(spec, "nodeName")));
            references = pod_references(spec);
        }
        let (labels, notes) = match is_node(&resource) {
            true => {
                let NodeLabels { given, claimed } = NodeLabels::of(object);
                let claimed = has_reported(object).then_some(claimed);
                let confirmed = object.annotations().remove(DELETIONS_CONFIRMED_ANNOTATION);
                let confirmed = confirmed.unwrap_or_default().into();
                let silent = condition(object, "Ready") == Some("Unknown");
                let in_sync = condition(object, "edgesync.io/InSync") == Some("True");
                let files = condition(object, "edgesync.io/FilesInEffect");
                let in_effect = files.map(|status| status == "True" && in_sync);
                let in_sync = in_sync && !silent;
                let notes = NodeNotes { claimed, confirmed, silent, in_sync, in_effect };
                (given, Some(Box::new(notes)))
            }
            false => (labels, None),
        };
        Self {
            uid: object.uid().into(),
            version,
            namespace: object.namespace().into(),
            name: object.name().into(),
            labels,
            notes,
            nodes,
            references,
            rule: RuleText::of(object, &resource).map(Arc::new),
            resource,
            size: 0,
        }
    }

    /// With the length of the JSON text, in bytes.
    #[must_use]
    pub fn with_size(self, size: usize) -> Self {
        Self { size, ..self }
    }

    /// Whether this is a Node, whose labels placement rules select by.
    #[must_use]
    pub fn is_node(&self) -> bool {
        is_node(&self.resource)
    }

    /// The name of the node that a Node stands for; `None` for other kinds.
    #[must_use]
    pub fn node_name(&self) -> Option<NodeName> {
        NodeName::try_from(self.name.clone()).ok().filter(|_| self.is_node())
    }

    /// The labels that a Node has given itself.
    pub fn claimed(&self) -> impl Iterator<Item = (&String, &String)> {
        self.notes.iter().flat_map(|notes| notes.claimed.iter().flatten())
    }

    /// The labels that rules select a Node by: those that were given to it, and of those that it
    /// has given itself the ones that an operator trusts. A trusted one is a key, or the beginning
    /// of keys with a `*` after it.
    #[must_use]
    pub fn trusted_labels(&self, trusted: &[String]) -> Labels {
        let fits = |key: &str| {
            trusted.iter().any(|one| one.strip_suffix('*').map_or(one == key, |begin| key.starts_with(begin)))
        };
        let claimed = self.claimed().filter(|(key, _)| fits(key));
        let claimed = claimed.map(|(key, value)| (key.clone(), value.clone()));
        self.labels.clone().into_iter().chain(claimed).collect()
    }
}

fn is_node(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.kind == "Node"
}

/// The status of a condition of a Node.
fn condition<'n>(node: &'n Object, kind: &str) -> Option<&'n str> {
    let conditions = node.fields().get("status").and_then(|status| status.get("conditions"));
    let mut conditions = conditions.and_then(Value::as_array).into_iter().flatten();
    conditions.find(|condition| condition["type"] == kind)?["status"].as_str()
}

/// The nodes that label and annotation name. Names that no node can have are ignored.
fn named_nodes(object: &Object, labels: &Labels) -> BTreeSet<NodeName> {
    let mut nodes: BTreeSet<NodeName> =
        labels.get(NODE_LABEL).and_then(|name| NodeName::parse(name).ok()).into_iter().collect();
    let annotations =
        object.metadata().and_then(|metadata| metadata.get("annotations")).and_then(Value::as_object);
    if let Some(annotations) = annotations {
        let names = string(annotations, NODES_ANNOTATION).split(',').map(str::trim);
        nodes.extend(names.filter_map(|name| NodeName::parse(name).ok()).take(MAX_NAMED_NODES));
    }
    nodes
}

fn string<'a>(map: &'a Map<String, Value>, field: &str) -> &'a str {
    map.get(field).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::kinds;
    use serde_json::json;

    fn summary(word: &str, value: Value) -> Summary {
        let resource = Arc::new(kinds::by_word(word).unwrap().resource());
        Summary::of(&serde_json::from_value(value).unwrap(), resource, 7.into())
    }

    #[test]
    fn a_pod_names_its_node_even_if_a_part_of_it_is_malformed() {
        let pod = summary(
            "pod",
            json!({"spec": {"nodeName": "edge-1", "containers": "none",
            "volumes": [null, {"configMap": {"name": "c"}}]}}),
        );
        assert_eq!(pod.nodes, BTreeSet::from([NodeName::parse("edge-1").unwrap()]));
        assert_eq!(pod.references.len(), 1);
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
}
