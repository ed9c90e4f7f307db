//! What in a cluster is this program's: the marks of Nodes, Leases and ObjectSyncs. All else
//! belongs to somebody, and is left alone. Pure.

use serde_json::{Value, json};

use edgesync_object::name::check_label_value;
use edgesync_object::{NodeName, Object};
use edgesync_protocol::digest::Epoch;
use edgesync_store::checksum::checksum64;

/// The label of Nodes and Leases of edgesync; a Node without it is a kubelet's.
pub(crate) const MARK: &str = "edgesync.io/edge";
/// Its value.
pub(crate) const MARKED: &str = "true";
/// The label of ObjectSyncs with the node that they are of. Those of a KubeEdge in the same cluster
/// have none.
pub(crate) const RECORD_NODE: &str = "edgesync.io/node";
/// The label of ObjectSyncs that show what is in effect with the database file of the node that has
/// said so, hashed: what another one knew is not in effect.
pub(crate) const EFFECT_EPOCH: &str = "edgesync.io/effect-epoch";
/// The annotation of a Lease with the replica that has renewed it last: the one that serves the
/// node.
pub(crate) const SERVED_BY: &str = "edgesync.io/served-by";
/// What is left of the name of a node where it is no label value.
const MAX_START: usize = 46;

/// What selects Nodes and Leases of edgesync.
pub(crate) fn selector() -> String {
    format!("{MARK}={MARKED}")
}

/// Whether a Node or Lease is one of edgesync.
pub(crate) fn is_marked(object: &Object) -> bool {
    object.labels().get(MARK).is_some_and(|value| value == MARKED)
}

/// A reference to a Node as an owner.
pub(crate) fn owner(node: &NodeName, uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid})
}

/// The value of [`RECORD_NODE`] for a node: its name, or what stands for it if that is longer than
/// a value may be. Two nodes may share one, so whoever selects by it looks at the names too.
pub(crate) fn node_value(node: &str) -> String {
    if check_label_value(node).is_ok() {
        return node.to_owned();
    }
    let start = node.get(..node.floor_char_boundary(MAX_START)).unwrap_or_default();
    format!("{}.{:016x}", start.trim_end_matches(['.', '-']), checksum64(&[node.as_bytes()]))
}

/// The value of [`EFFECT_EPOCH`].
pub(crate) fn epoch_value(epoch: Epoch) -> String {
    format!("{:016x}", checksum64(&[&epoch.0.to_le_bytes()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_a_node_has_a_label_value_of_its_own() {
        assert_eq!(node_value("edge-1.site"), "edge-1.site");
        let long = |end: &str| format!("{}-{}{end}", "x".repeat(45), "y".repeat(200));
        for name in [long(""), long("a"), "z".repeat(64)] {
            assert_eq!(check_label_value(&node_value(&name)), Ok(()), "{name}");
        }
        assert_ne!(node_value(&long("a")), node_value(&long("b")));
    }
}
