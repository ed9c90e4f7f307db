//! Ownership of a Node's labels: the node itself, or a trusted party (an operator, the enrollment
//! token).
//!
//! [`NODE_LABELS_ANNOTATION`] records the labels set by the node, with their values. All others are
//! assigned, including a recorded one whose value on the Node differs.

use std::collections::BTreeMap;

use super::name::{check_label_key, check_label_value};
use super::{Labels, Object, label_pairs};
use serde_json::{Map, Value};

/// Annotation of a Node with the labels set by the node itself, as `key=value` separated by commas.
/// Present, even if empty, once the node has reported: a Node that an operator has applied lacks
/// it.
pub const NODE_LABELS_ANNOTATION: &str = "edgesync.io/node-labels";
/// Label with the name of the node, set by the cloud side.
const HOST_NAME_LABEL: &str = "kubernetes.io/hostname";
/// Maximum number of labels that a node sets; further ones are ignored.
pub const MAX_NODE_LABELS: usize = 64;
/// Namespaces of keys that belong to Kubernetes, with all below them.
const RESERVED: [&str; 2] = ["kubernetes.io", "k8s.io"];
/// Those among them in which a node may set every label.
const OWN_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// Other reserved labels that a node may set.
const OWN_LABELS: [&str; 11] = [
    HOST_NAME_LABEL,
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
];
/// Those that every agent sets, from what it finds on its device.
const AGENT_LABELS: [&str; 5] = [
    HOST_NAME_LABEL,
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
];
/// The role of every node of edgesync, without a value, which agents report.
pub const EDGE_ROLE: &str = "node-role.kubernetes.io/edge";

/// Labels of a Node by owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLabels {
    /// Labels assigned by trusted parties.
    pub assigned: Labels,
    /// Labels set by the node itself.
    pub reported: Labels,
}

impl NodeLabels {
    /// Splits the labels of a Node by owner.
    #[must_use]
    pub fn of(node: &Object) -> Self {
        let recorded = recorded(node);
        let is_recorded = |key: &String, value: &mut String| recorded.get(key) == Some(&*value);
        let mut assigned = node.labels();
        let reported = assigned.extract_if(.., is_recorded).collect();
        Self { assigned, reported }
    }
}

/// Returns the labels that the annotation records.
fn recorded(node: &Object) -> Labels {
    let annotation = node.annotations().remove(NODE_LABELS_ANNOTATION).unwrap_or_default();
    let pairs = annotation.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Returns the labels that follow from the node's name.
#[must_use]
pub fn labels_by_name(name: &str) -> Labels {
    let fits = !name.is_empty() && check_label_value(name).is_ok();
    fits.then(|| (HOST_NAME_LABEL.to_owned(), name.to_owned())).into_iter().collect()
}

/// Replaces the labels set by the node. Assigned labels stay, also where the node uses their keys.
pub fn set_reported_labels(node: &mut Object, labels: &BTreeMap<String, String>) {
    let NodeLabels { assigned, .. } = NodeLabels::of(node);
    let is_allowed = |(key, value): &(&String, &String)| may_set(key, value) && !assigned.contains_key(*key);
    let reported = labels.iter().filter(is_allowed).take(MAX_NODE_LABELS);
    let reported = reported.map(|(key, value)| (key.clone(), value.clone())).collect();
    let labels = NodeLabels { assigned, reported };
    write(node, &labels);
    note_reported(node, &labels.reported);
}

/// Assigns labels to a node, overriding other owners, and removes those of `before` that were
/// assigned in the same way.
pub fn assign_labels(node: &mut Object, before: &Labels, labels: &Labels) {
    let NodeLabels { mut assigned, mut reported } = NodeLabels::of(node);
    assigned.retain(|key, value| before.get(key) != Some(value));
    reported.retain(|key, _| !labels.contains_key(key));
    assigned.extend(labels.clone());
    write(node, &NodeLabels { assigned, reported });
}

/// Assigns labels to a node, except those that are already assigned.
pub fn assign_missing_labels(node: &mut Object, labels: &Labels) {
    let assigned = NodeLabels::of(node).assigned;
    let missing = labels.iter().filter(|(key, _)| !assigned.contains_key(*key));
    let missing = missing.map(|(key, value)| (key.clone(), value.clone())).collect();
    assign_labels(node, &Labels::new(), &missing);
}

/// Updates the annotation after another party has changed or removed labels of the node: values
/// that it sets later are assigned, even if they are the same.
pub fn note_changed_labels(node: &mut Object) {
    if has_reported(node) {
        let reported = NodeLabels::of(node).reported;
        note_reported(node, &reported);
    }
}

/// Returns whether the node of this Node object has reported.
#[must_use]
pub fn has_reported(node: &Object) -> bool {
    node.annotations().contains_key(NODE_LABELS_ANNOTATION)
}

/// Returns whether a node may set a label on its own Node: what the admission plugin
/// NodeRestriction allows a kubelet, and the role of every node. So no node becomes a control plane
/// by its own word.
#[must_use]
pub fn may_set(key: &str, value: &str) -> bool {
    let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
    let is_below = |parent: &&str| {
        namespace.strip_suffix(*parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let is_allowed = !RESERVED.iter().any(is_below)
        || OWN_NAMESPACES.iter().any(is_below)
        || OWN_LABELS.contains(&key)
        || (key, value) == (EDGE_ROLE, "");
    is_allowed && check_label_key(key).is_ok() && check_label_value(value).is_ok()
}

/// Returns whether agents set this label themselves, so that an assigned one is not expected: the
/// name of the host, platform, role, and the namespaces of a kubelet.
#[must_use]
pub fn is_set_by_agents(key: &str) -> bool {
    let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
    AGENT_LABELS.contains(&key) || key == EDGE_ROLE || OWN_NAMESPACES.contains(&namespace)
}

fn write(node: &mut Object, labels: &NodeLabels) {
    let all = labels.assigned.iter().chain(&labels.reported);
    let all: Map<String, Value> = all.map(|(key, value)| (key.clone(), value.as_str().into())).collect();
    if all.is_empty() {
        node.remove_metadata("labels");
    } else {
        node.set_metadata("labels", all);
    }
    if has_reported(node) {
        note_reported(node, &labels.reported);
    }
}

fn note_reported(node: &mut Object, reported: &Labels) {
    node.set_annotation(NODE_LABELS_ANNOTATION, Some(&label_pairs(reported)));
}

#[cfg(test)]
mod tests;
