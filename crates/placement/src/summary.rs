//! Summaries of objects for placement, without their bodies: identity, version, labels, and
//! references to nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use edgesync_object::file_rules::FILE_RULES_ANNOTATION;
use edgesync_object::node_labels::{NodeLabels, has_reported};
use edgesync_object::objectsync::{is_placeable, is_placement};
use edgesync_object::urgency::{URGENCY_ANNOTATION, Urgency};
use edgesync_object::{Labels, NodeName, Object, Reference, Resource, ResourceVersion, pod_references};

/// Label that places an object on one node: its value is the node's name.
pub const NODE_LABEL: &str = "edgesync.io/node";
/// Annotation that places an object on several nodes, or on one whose name is not a valid label
/// value: node names, separated by commas.
pub const NODES_ANNOTATION: &str = "edgesync.io/nodes";
/// Annotation of a Node with which an operator confirms removals that are held back, where several
/// replicas serve the node: `INCARNATION/COUNT`, the incarnation and the maximum number of removals
/// confirmed.
pub const DELETIONS_CONFIRMED_ANNOTATION: &str = "edgesync.io/deletions-confirmed";
/// Limit of the nodes in one annotation; further ones are ignored.
pub(crate) const MAX_NAMED_NODES: usize = 1024;

/// An object without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// UID of the object.
    pub uid: Arc<str>,
    /// `metadata.resourceVersion` of the summarized state.
    pub version: ResourceVersion,
    /// Kind of the object, with group, plural and scope.
    pub resource: Arc<Resource>,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// Name within the namespace.
    pub name: Arc<str>,
    /// Labels; for a Node, only those assigned to it by others.
    pub labels: Labels,
    /// Further state of a Node; `None` for other kinds.
    pub notes: Option<Box<NodeNotes>>,
    /// The nodes that the object itself names.
    pub nodes: NamedNodes,
    /// References of a Pod within its namespace; empty for other kinds.
    pub references: BTreeSet<Reference>,
    /// The rule of a Placement or ClusterPlacement; `None` for other kinds.
    pub rule: Option<Arc<RuleText>>,
    /// Length of its JSON text in bytes; zero if not counted.
    pub size: usize,
    /// Its urgency, see [`URGENCY_ANNOTATION`].
    pub urgency: Urgency,
}

/// The nodes that an object names, by the way in which it does so. Invalid names are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedNodes {
    /// The node in [`NODE_LABEL`].
    pub(crate) label: Option<NodeName>,
    /// The nodes in [`NODES_ANNOTATION`], at most [`MAX_NAMED_NODES`].
    pub(crate) annotation: BTreeSet<NodeName>,
    /// The node in `spec.nodeName` of a Pod.
    pub(crate) pod: Option<NodeName>,
}

/// Annotation of a Node: the time (RFC 3339) until which the node is asked to stay connected.
pub const STAY_ANNOTATION: &str = "edgesync.io/stay-until";

/// Whether the objects that file rules concern are in effect on a node, by its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesInEffect {
    /// All are, and the desired objects are held.
    Yes,
    /// Those that are not wait for a window or a hold.
    Waiting,
    /// Some are not.
    No,
}

/// Whether a node holds its desired objects, by its conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeSync {
    /// It is alive and holds all.
    InSync,
    /// It is alive, and those that it does not hold wait for its link.
    Waiting,
    /// It does not hold all, or may not be alive.
    #[default]
    Pending,
}

/// State of a Node that the fleet uses, beside the labels assigned to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeNotes {
    /// Labels reported by the node itself; `None` before its first report.
    pub claimed: Option<Labels>,
    /// [`DELETIONS_CONFIRMED_ANNOTATION`]; empty if absent.
    pub confirmed: Box<str>,
    /// Whether the condition `Ready` is Unknown: the node was found silent.
    pub silent: bool,
    /// Whether the node holds its desired objects.
    pub sync: NodeSync,
    /// Whether the objects that file rules concern are in effect there; `None` without such rules.
    pub in_effect: Option<FilesInEffect>,
    /// [`STAY_ANNOTATION`]; empty if absent.
    pub stay: Box<str>,
    /// [`FILE_RULES_ANNOTATION`]; empty if absent.
    pub file_rules: Box<str>,
}

/// A rule that is an object, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleText {
    /// `metadata.generation`: it increases with changes of the spec, not of the status.
    pub generation: u64,
    /// `metadata.creationTimestamp`; empty if absent.
    pub created: Box<str>,
    /// The field `spec` as JSON text.
    pub spec: Box<str>,
    /// The field `status` as JSON text; empty if absent.
    pub status: Box<str>,
}

impl RuleText {
    /// Returns the rule text of an object; `None` for other kinds.
    #[must_use]
    pub fn of(object: &Object, resource: &Resource) -> Option<Self> {
        let field =
            |name: &str| object.fields().get(name).map(ToString::to_string).unwrap_or_default().into();
        is_placement(resource).then(|| Self {
            generation: object.generation(),
            created: object.creation_timestamp().into(),
            spec: field("spec"),
            status: field("status"),
        })
    }
}

/// Returns whether placement depends on objects of this kind: placeable ones, rules and Nodes.
#[must_use]
pub fn concerns(resource: &Resource) -> bool {
    is_placeable(resource) || is_placement(resource) || is_node(resource)
}

impl Summary {
    /// Summarises an object of the given kind and version.
    #[must_use]
    pub fn of(object: &Object, resource: Arc<Resource>, version: ResourceVersion) -> Self {
        let labels = object.labels();
        let mut nodes = NamedNodes::of(object, &labels);
        let mut references = BTreeSet::new();
        if resource.group.is_empty()
            && resource.kind == "Pod"
            && let Some(spec) = object.fields().get("spec").and_then(Value::as_object)
        {
            nodes.pod = NodeName::parse(string(spec, "nodeName")).ok();
            references = pod_references(spec);
        }
        let (labels, notes) = match is_node(&resource) {
            true => {
                let NodeLabels { assigned, reported } = NodeLabels::of(object);
                let claimed = has_reported(object).then_some(reported);
                let mut annotations = object.annotations();
                let mut annotation = |key: &str| annotations.remove(key).unwrap_or_default().into();
                let confirmed = annotation(DELETIONS_CONFIRMED_ANNOTATION);
                let status = |kind| condition(object, kind)?["status"].as_str();
                let silent = status("Ready") == Some("Unknown");
                let published = condition(object, "edgesync.io/InSync").map_or(NodeSync::Pending, |held| {
                    match (held["status"].as_str(), held["reason"].as_str()) {
                        (Some("True"), _) => NodeSync::InSync,
                        (Some("False"), Some("ObjectsWaiting")) => NodeSync::Waiting,
                        _ => NodeSync::Pending,
                    }
                });
                let in_effect = condition(object, "edgesync.io/FilesInEffect").map(|files| {
                    match (published, files["status"].as_str(), files["reason"].as_str()) {
                        (NodeSync::InSync, Some("True"), _) => FilesInEffect::Yes,
                        (NodeSync::InSync, _, Some("Waiting")) => FilesInEffect::Waiting,
                        _ => FilesInEffect::No,
                    }
                });
                let sync = if silent { NodeSync::Pending } else { published };
                let stay = annotation(STAY_ANNOTATION);
                let file_rules = annotation(FILE_RULES_ANNOTATION);
                let notes = NodeNotes { claimed, confirmed, silent, sync, in_effect, stay, file_rules };
                (assigned, Some(Box::new(notes)))
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
            urgency: urgency(object),
        }
    }

    /// Sets the length of the JSON text, in bytes.
    #[must_use]
    pub fn with_size(self, size: usize) -> Self {
        Self { size, ..self }
    }

    /// Returns whether this is a Node, whose labels placement rules select by.
    #[must_use]
    pub fn is_node(&self) -> bool {
        is_node(&self.resource)
    }

    /// Returns the name of the node that a Node represents; `None` for other kinds.
    #[must_use]
    pub fn node_name(&self) -> Option<NodeName> {
        NodeName::try_from(self.name.clone()).ok().filter(|_| self.is_node())
    }

    /// Returns the labels that a Node reports about itself.
    pub fn claimed(&self) -> impl Iterator<Item = (&String, &String)> {
        self.notes.iter().flat_map(|notes| notes.claimed.iter().flatten())
    }

    /// Returns the labels by which rules select a Node: all assigned labels, and those reported
    /// labels that an operator trusts. An entry of `trusted` is a key, or a prefix of keys with a
    /// trailing `*`.
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

fn urgency(object: &Object) -> Urgency {
    let annotations = object.metadata().and_then(|metadata| metadata.get("annotations"));
    let value = annotations.and_then(|annotations| annotations.get(URGENCY_ANNOTATION));
    Urgency::of_annotation(value.and_then(Value::as_str))
}

fn is_node(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.kind == "Node"
}

/// Returns the status of a Node's condition.
fn condition<'n>(node: &'n Object, kind: &str) -> Option<&'n Value> {
    let conditions = node.fields().get("status").and_then(|status| status.get("conditions"));
    let mut conditions = conditions.and_then(Value::as_array).into_iter().flatten();
    conditions.find(|condition| condition["type"] == kind)
}

impl NamedNodes {
    /// Returns the nodes named by label and annotation.
    fn of(object: &Object, labels: &Labels) -> Self {
        let label = labels.get(NODE_LABEL).and_then(|name| NodeName::parse(name).ok());
        let annotations =
            object.metadata().and_then(|metadata| metadata.get("annotations")).and_then(Value::as_object);
        let names = annotations.map(|annotations| string(annotations, NODES_ANNOTATION)).unwrap_or_default();
        let names = names.split(',').filter_map(|name| NodeName::parse(name.trim()).ok());
        Self { label, annotation: names.take(MAX_NAMED_NODES).collect(), pod: None }
    }

    /// Returns all named nodes, in order.
    #[must_use]
    pub fn all(&self) -> BTreeSet<&NodeName> {
        self.label.iter().chain(&self.annotation).chain(&self.pod).collect()
    }
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
    fn malformed_pod_still_names_its_node() {
        let pod = summary(
            "pod",
            json!({"spec": {"nodeName": "edge-1", "containers": "none",
            "volumes": [null, {"configMap": {"name": "c"}}]}}),
        );
        assert_eq!(pod.nodes.all(), BTreeSet::from([&NodeName::parse("edge-1").unwrap()]));
        assert_eq!(pod.references.len(), 1);
    }

    #[test]
    fn label_and_annotation_name_nodes_and_ignore_invalid_names() {
        let map = summary(
            "cm",
            json!({"metadata": {
            "labels": {NODE_LABEL: "a"}, "annotations": {NODES_ANNOTATION: " b, c.d ,,A/B,a"}}}),
        );
        assert_eq!(map.nodes.all().into_iter().map(|n| &**n).collect::<Vec<_>>(), ["a", "b", "c.d"]);
        assert!(summary("cm", json!({"spec": {"nodeName": "x"}})).nodes.all().is_empty());
    }

    #[test]
    fn annotation_decides_the_urgency() {
        let urgency =
            |annotations: Value| summary("cm", json!({"metadata": {"annotations": annotations}})).urgency;
        assert_eq!(urgency(json!({URGENCY_ANNOTATION: "high"})), Urgency::High);
        assert_eq!(urgency(json!({URGENCY_ANNOTATION: "low"})), Urgency::Low);
        for other in [json!({URGENCY_ANNOTATION: 7}), json!("none"), json!({}), Value::Null] {
            assert_eq!(urgency(other), Urgency::Normal);
        }
    }

    #[test]
    fn placement_depends_on_placed_kinds_rules_and_nodes() {
        assert!(concerns(&kinds::guess("edgesync.io/v1alpha1", "ClusterPlacement", false)));
        for (word, expected) in [("cm", true), ("nodes", true), ("events", false), ("leases", false)] {
            assert_eq!(concerns(&kinds::by_word(word).unwrap().resource()), expected, "{word}");
        }
    }

    #[test]
    fn only_a_node_has_the_name_of_a_node() {
        let named = json!({"metadata": {"name": "edge-1"}});
        let node = summary("node", named.clone());
        assert_eq!((node.is_node(), node.node_name()), (true, NodeName::parse("edge-1").ok()));
        let map = summary("cm", named);
        assert_eq!((map.is_node(), map.node_name()), (false, None));
    }

    #[test]
    fn conditions_of_a_node_decide_its_state() {
        use NodeSync::{InSync, Pending, Waiting};
        let state = |conditions: &[(&str, &str)]| {
            let condition = |(kind, status): &(&str, &str)| {
                let (status, reason) = status.split_once(' ').unwrap_or((status, ""));
                json!({"type": kind, "status": status, "reason": reason})
            };
            let conditions: Vec<Value> = conditions.iter().map(condition).collect();
            let notes = summary("node", json!({"status": {"conditions": conditions}})).notes.unwrap();
            (notes.silent, notes.sync, notes.in_effect)
        };
        let (in_sync, in_effect) = (("edgesync.io/InSync", "True"), ("edgesync.io/FilesInEffect", "True"));
        assert_eq!(state(&[]), (false, Pending, None));
        assert_eq!(state(&[("Ready", "True"), in_sync]), (false, InSync, None));
        assert_eq!(state(&[("Ready", "Unknown"), in_sync]), (true, Pending, None));
        let metered = ("edgesync.io/InSync", "False ObjectsWaiting");
        assert_eq!(state(&[("Ready", "True"), metered]), (false, Waiting, None));
        assert_eq!(state(&[("Ready", "Unknown"), metered]), (true, Pending, None));
        assert_eq!(state(&[("edgesync.io/InSync", "False ObjectsPending")]), (false, Pending, None));
        assert_eq!(state(&[("edgesync.io/InSync", "Unknown ObjectsWaiting")]), (false, Pending, None));
        let waiting = ("edgesync.io/FilesInEffect", "False Waiting");
        assert_eq!(state(&[waiting, in_sync]), (false, InSync, Some(FilesInEffect::Waiting)));
        assert_eq!(state(&[waiting]), (false, Pending, Some(FilesInEffect::No)));
        let conflict = ("edgesync.io/FilesInEffect", "False Conflict");
        assert_eq!(state(&[conflict, in_sync]), (false, InSync, Some(FilesInEffect::No)));
        assert_eq!(state(&[in_effect, in_sync]), (false, InSync, Some(FilesInEffect::Yes)));
        assert_eq!(state(&[in_effect]), (false, Pending, Some(FilesInEffect::No)));
    }
}
