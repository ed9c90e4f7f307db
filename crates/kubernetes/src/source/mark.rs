//! Labels and annotations that mark edgesync's Nodes, Leases and ObjectSyncs. Objects without them
//! belong to others and are never modified. Pure.

use serde_json::{Value, json};

use edgesync_object::name::check_label_value;
use edgesync_object::{NodeName, Object};
use edgesync_protocol::digest::Epoch;
use edgesync_store::checksum::checksum64;

/// Label of edgesync's Nodes and Leases; a Node without it belongs to a kubelet.
pub(crate) const MARK: &str = "edgesync.io/edge";
/// Value of the label [`MARK`]; a Node with another value counts as foreign.
pub(crate) const MARKED: &str = "true";
/// Label of ObjectSyncs with the name of their node. Those of a KubeEdge in the same cluster lack
/// it.
pub(crate) const RECORD_NODE: &str = "edgesync.io/node";
/// Label of ObjectSyncs with the hashed epoch of the node's database that reported the effect. An
/// effect reported with another epoch is outdated.
pub(crate) const EFFECT_EPOCH: &str = "edgesync.io/effect-epoch";
/// Annotation of a Lease with the replica that renewed it last, which serves the node.
pub(crate) const SERVED_BY: &str = "edgesync.io/served-by";
/// Length of the node name's prefix in a hashed label value.
const MAX_START: usize = 46;

/// Returns the label selector for edgesync's Nodes and Leases.
pub(crate) fn selector() -> String {
    format!("{MARK}={MARKED}")
}

/// Returns whether a Node or Lease belongs to edgesync.
pub(crate) fn is_marked(object: &Object) -> bool {
    object.labels().get(MARK).is_some_and(|value| value == MARKED)
}

/// Returns an owner reference to a Node.
pub(crate) fn owner(node: &NodeName, uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid})
}

/// Returns the value of [`RECORD_NODE`] for a node: its name, or a prefix with a hash if the name
/// is too long. Values can collide, so a selector's result is also filtered by name.
pub(crate) fn node_value(node: &str) -> String {
    if check_label_value(node).is_ok() {
        return node.to_owned();
    }
    let start = node.get(..node.floor_char_boundary(MAX_START)).unwrap_or_default();
    format!("{}.{:016x}", start.trim_end_matches(['.', '-']), checksum64(&[node.as_bytes()]))
}

/// Returns the value of [`EFFECT_EPOCH`].
pub(crate) fn epoch_value(epoch: Epoch) -> String {
    format!("{:016x}", checksum64(&[&epoch.0.to_le_bytes()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_name_has_its_own_label_value() {
        assert_eq!(node_value("edge-1.site"), "edge-1.site");
        let long = |end: &str| format!("{}-{}{end}", "x".repeat(45), "y".repeat(200));
        for name in [long(""), long("a"), "z".repeat(64)] {
            assert_eq!(check_label_value(&node_value(&name)), Ok(()), "{name}");
        }
        assert_ne!(node_value(&long("a")), node_value(&long("b")));
    }
}
