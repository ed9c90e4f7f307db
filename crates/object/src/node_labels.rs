//! Who has given a Node its labels: the node itself, or somebody who is to be believed (an operator, the token that the
//! node joined with).
//!
//! [`NODE_LABELS_ANNOTATION`] has those that came from the node, with their values. All others were given to it: also one of
//! the annotation that has another value on the Node.

use std::collections::BTreeMap;

use super::name::{check_label_key, check_label_value};
use super::{Labels, Object};
use serde_json::{Map, Value};

/// The annotation of a Node with the labels that came from the node itself, as `key=value` separated by commas. It is
/// there, if only empty, once the node has reported: a Node that an operator has applied has none.
pub const NODE_LABELS_ANNOTATION: &str = "edgesync.io/node-labels";
/// The label with the name of the node, which the cloud side gives.
const HOST_NAME_LABEL: &str = "kubernetes.io/hostname";
/// The most labels that a node sets; further ones are ignored.
pub const MAX_NODE_LABELS: usize = 64;
/// Labels that a node cannot give itself at all, as in Kubernetes.
const RESTRICTED: &str = "node-restriction.kubernetes.io";

/// The labels of a Node, by who has given them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLabels {
    /// Given to it.
    pub given: Labels,
    /// Those that it has given itself.
    pub claimed: Labels,
}

impl NodeLabels {
    /// Those of a Node.
    #[must_use]
    pub fn of(node: &Object) -> Self {
        let noted = noted(node);
        let is_noted = |key: &String, value: &mut String| noted.get(key) == Some(&*value);
        let mut given = node.labels();
        let claimed = given.extract_if(.., is_noted).collect();
        Self { given, claimed }
    }
}

/// What the annotation notes.
fn noted(node: &Object) -> Labels {
    let annotation = node.annotations().remove(NODE_LABELS_ANNOTATION).unwrap_or_default();
    let pairs = annotation.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The labels by which a node is known to everybody: those that follow from its name.
#[must_use]
pub fn labels_by_name(name: &str) -> Labels {
    let fits = !name.is_empty() && check_label_value(name).is_ok();
    fits.then(|| (HOST_NAME_LABEL.to_owned(), name.to_owned())).into_iter().collect()
}

/// Puts what a node says of itself in the place of what it said before. Labels that were given to it stay, also where the
/// node uses their keys.
pub fn claim_labels(node: &mut Object, reported: &BTreeMap<String, String>) {
    let NodeLabels { given, .. } = NodeLabels::of(node);
    let may_claim = |(key, value): &(&String, &String)| may_set(key, value) && !given.contains_key(*key);
    let claimed = reported.iter().filter(may_claim).take(MAX_NODE_LABELS);
    let claimed = claimed.map(|(key, value)| (key.clone(), value.clone())).collect();
    let labels = NodeLabels { given, claimed };
    write(node, &labels);
    note(node, &labels.claimed);
}

/// Gives labels to a node, whoever else has set them, in the place of those that were given in the same way before.
pub fn give_labels(node: &mut Object, before: &Labels, labels: &Labels) {
    let NodeLabels { mut given, mut claimed } = NodeLabels::of(node);
    given.retain(|key, value| before.get(key) != Some(value));
    claimed.retain(|key, _| !labels.contains_key(key));
    given.extend(labels.clone());
    write(node, &NodeLabels { given, claimed });
}

/// Gives labels to a node, but for those that somebody else has given already.
pub fn give_missing_labels(node: &mut Object, labels: &Labels) {
    let given = NodeLabels::of(node).given;
    let missing = labels.iter().filter(|(key, _)| !given.contains_key(*key));
    let missing = missing.map(|(key, value)| (key.clone(), value.clone())).collect();
    give_labels(node, &Labels::new(), &missing);
}

/// Notes that somebody has removed or changed labels that came from the node: what they set next is theirs, whatever its
/// value.
pub fn note_changed_labels(node: &mut Object) {
    if has_reported(node) {
        let claimed = NodeLabels::of(node).claimed;
        note(node, &claimed);
    }
}

/// Whether a Node is one that has reported.
#[must_use]
pub fn has_reported(node: &Object) -> bool {
    node.annotations().contains_key(NODE_LABELS_ANNOTATION)
}

/// Whether a node may set a label on its own Node.
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
