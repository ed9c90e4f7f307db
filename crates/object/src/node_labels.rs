//! Ownership of a Node's labels: the node itself, or a trusted party (an operator, the enrollment
//! token).
//!
//! [`NODE_LABELS_ANNOTATION`] records the labels set by the node, with their values. All others are
//! assigned, including a recorded one whose value on the Node differs.
//! the annotation that has another value on the Node.

use std::collections::BTreeMap;

use super::name::{check_label_key, check_label_value};
use super::{Labels, Object};
use serde_json::{Map, Value};

/// Annotation of a Node with the labels set by the node itself, as `key=value` separated by commas.
/// Present, even if empty, once the node has reported: a Node that an operator has applied lacks
/// it.
pub const NODE_LABELS_ANNOTATION: &str = "edgesync.io/node-labels";
/// Label with the name of the node, set by the cloud side.
const HOST_NAME_LABEL: &str = "kubernetes.io/hostname";
/// Maximum number of labels that a node sets; further ones are ignored.
pub const MAX_NODE_LABELS: usize = 64;
/// Prefix of labels that a node must not set, as in Kubernetes.
const RESTRICTED: &str = "node-restriction.kubernetes.io";

/// Labels of a Node by owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLabels {
    /// Labels assigned by trusted parties.
    pub given: Labels,
    /// Labels set by the node itself.
    pub claimed: Labels,
}

impl NodeLabels {
    /// Splits the labels of a Node by owner.
    #[must_use]
    pub fn of(node: &Object) -> Self {
        let recorded = recorded(node);
        let is_recorded = |key: &String, value: &mut String| recorded.get(key) == Some(&*value);
        let mut given = node.labels();
        let claimed = given.extract_if(.., is_recorded).collect();
        Self { given, claimed }
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
pub fn claim_labels(node: &mut Object, reported: &BTreeMap<String, String>) {
    let NodeLabels { given, .. } = NodeLabels::of(node);
    let may_claim = |(key, value): &(&String, &String)| may_set(key, value) && !given.contains_key(*key);
    let claimed = reported.iter().filter(may_claim).take(MAX_NODE_LABELS);
    let claimed = claimed.map(|(key, value)| (key.clone(), value.clone())).collect();
    let labels = NodeLabels { given, claimed };
    write(node, &labels);
    note(node, &labels.claimed);
}

/// Assigns labels to a node, overriding other owners, and removes those of `before` that were
/// assigned in the same way.
pub fn give_labels(node: &mut Object, before: &Labels, labels: &Labels) {
    let NodeLabels { mut given, mut claimed } = NodeLabels::of(node);
    given.retain(|key, value| before.get(key) != Some(value));
    claimed.retain(|key, _| !labels.contains_key(key));
    given.extend(labels.clone());
    write(node, &NodeLabels { given, claimed });
}

/// Assigns labels to a node, except those that are already assigned.
pub fn give_missing_labels(node: &mut Object, labels: &Labels) {
    let given = NodeLabels::of(node).given;
    let missing = labels.iter().filter(|(key, _)| !given.contains_key(*key));
    let missing = missing.map(|(key, value)| (key.clone(), value.clone())).collect();
    give_labels(node, &Labels::new(), &missing);
}

/// Updates the annotation after another party has changed or removed labels of the node: what it
/// sets later is assigned, even with the same value.
pub fn note_changed_labels(node: &mut Object) {
    if has_reported(node) {
        let claimed = NodeLabels::of(node).claimed;
        note(node, &claimed);
    }
}

/// Returns whether the node of this Node object has reported.
#[must_use]
pub fn has_reported(node: &Object) -> bool {
    node.annotations().contains_key(NODE_LABELS_ANNOTATION)
}

/// Returns whether a node may set a label on its own Node.
fn may_set(key: &str, value: &str) -> bool {
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
    let below = prefix.strip_suffix(RESTRICTED).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    !below && check_label_key(key).is_ok() && check_label_value(value).is_ok()
}

fn write(node: &mut Object, labels: &NodeLabels) {
    let all = labels.given.iter().chain(&labels.claimed);
    let all: Map<String, Value> = all.map(|(key, value)| (key.clone(), value.as_str().into())).collect();
    if all.is_empty() {
        node.remove_metadata("labels");
    } else {
        node.set_metadata("labels", all);
    }
    if has_reported(node) {
        note(node, &labels.claimed);
    }
}

fn note(node: &mut Object, claimed: &Labels) {
    let mut annotations = match node.remove_metadata("annotations") {
        Some(Value::Object(annotations)) => annotations,
        _ => Map::new(),
    };
    let pairs: Vec<String> = claimed.iter().map(|(key, value)| format!("{key}={value}")).collect();
    annotations.insert(NODE_LABELS_ANNOTATION.to_owned(), pairs.join(",").into());
    node.set_metadata("annotations", annotations);
}

#[cfg(test)]
mod tests;
