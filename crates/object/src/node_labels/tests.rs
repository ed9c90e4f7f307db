//! Ownership of labels in all sequences of node, operator and token.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn node() -> Object {
    serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap()
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Acts like `kubectl label`.
fn label(node: &mut Object, key: &str, value: Option<&str>) {
    let mut labels = node.labels();
    labels.remove(key);
    labels.extend(value.map(|value| (key.to_owned(), value.to_owned())));
    node.set_metadata("labels", json!(labels));
    note_changed_labels(node);
}

#[test]
fn labels_of_the_node_differ_from_assigned_ones() {
    let mut node = node();
    label(&mut node, "site", Some("south"));
    set_reported_labels(&mut node, &labels(&[("site", "north"), ("rack", "7")]));
    let expected = NodeLabels { assigned: labels(&[("site", "south")]), reported: labels(&[("rack", "7")]) };
    assert_eq!(NodeLabels::of(&node), expected);
    // The same if the node later reports a label of the operator.
    set_reported_labels(&mut node, &labels(&[("site", "south"), ("rack", "7")]));
    assert_eq!(NodeLabels::of(&node), expected);
}

#[test]
fn label_set_again_by_an_operator_is_assigned() {
    let mut node = node();
    set_reported_labels(&mut node, &labels(&[("site", "north")]));
    label(&mut node, "site", None);
    assert_eq!(NodeLabels::of(&node), NodeLabels::default());
    label(&mut node, "site", Some("north"));
    assert_eq!(NodeLabels::of(&node).assigned, labels(&[("site", "north")]));
    // Changing the value and back gives the same result.
    set_reported_labels(&mut node, &labels(&[("rack", "1")]));
    label(&mut node, "rack", Some("2"));
    label(&mut node, "rack", Some("1"));
    assert_eq!(NodeLabels::of(&node).assigned, labels(&[("rack", "1"), ("site", "north")]));
}

#[test]
fn removing_the_annotation_assigns_all_labels() {
    let mut node = node();
    set_reported_labels(&mut node, &labels(&[("site", "north")]));
    node.remove_metadata("annotations");
    note_changed_labels(&mut node);
    assert!(!has_reported(&node));
    set_reported_labels(&mut node, &labels(&[("site", "north"), ("rack", "7")]));
    let expected = NodeLabels { assigned: labels(&[("site", "north")]), reported: labels(&[("rack", "7")]) };
    assert_eq!(NodeLabels::of(&node), expected);
}

#[test]
fn labels_of_a_new_token_replace_those_of_the_old() {
    let mut node = node();
    set_reported_labels(&mut node, &labels(&[("site", "north"), ("rack", "7")]));
    let (first, second) = (labels(&[("site", "south"), ("tier", "a")]), labels(&[("site", "west")]));
    assign_labels(&mut node, &Labels::new(), &first);
    assert_eq!(
        NodeLabels::of(&node),
        NodeLabels { assigned: first.clone(), reported: labels(&[("rack", "7")]) }
    );
    assign_labels(&mut node, &first, &second);
    assert_eq!(NodeLabels::of(&node).assigned, second);
    // Labels of an operator stay when the node is created again, and are removed when it joins
    // again.
    label(&mut node, "site", Some("mine"));
    assign_missing_labels(&mut node, &second);
    assert_eq!(NodeLabels::of(&node).assigned, labels(&[("site", "mine")]));
    assign_labels(&mut node, &second, &second);
    assert_eq!(NodeLabels::of(&node).assigned, second);
}

#[test]
fn reserved_labels_of_a_report_are_not_set() {
    let mut node = node();
    let control_plane = ("node-role.kubernetes.io/control-plane", "");
    set_reported_labels(&mut node, &labels(&[control_plane, ("k8s.io/x", "1"), ("site", "north")]));
    assert_eq!(node.labels(), labels(&[("site", "north")]));
}

/// A device used to make its Node a control plane.
#[test]
fn node_sets_the_labels_that_kubernetes_allows_a_kubelet() {
    for key in [
        "site",
        "example.com/rack",
        "notkubernetes.io/x",
        "cluster.x-k8s.io/x",
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "kubelet.kubernetes.io/x",
        "mine.kubelet.kubernetes.io/x",
        "node.kubernetes.io/instance-type",
        "x.node.kubernetes.io/y",
    ] {
        assert!(may_set(key, "v"), "{key}");
    }
    for key in [
        "node-role.kubernetes.io/control-plane",
        "node-role.kubernetes.io/master",
        "kubernetes.io/role",
        "kubernetes.io/cluster-service",
        "node-restriction.kubernetes.io/x",
        "x.node-restriction.kubernetes.io/y",
        "my-node-restriction.kubernetes.io/y",
        "notnode.kubernetes.io/x",
        "k8s.io/x",
        "autoscaler.k8s.io/x",
    ] {
        assert!(!may_set(key, ""), "{key}");
    }
    assert!(may_set("node-role.kubernetes.io/edge", "") && !may_set("node-role.kubernetes.io/edge", "x"));
}

proptest! {
    /// Assigned labels persist whatever the node reports, and the node sets no privileged label.
    #[test]
    fn node_neither_gains_nor_removes_assigned_labels(
        steps in proptest::collection::vec((0..3usize, "[ab]", "[xy]"), 1..20),
    ) {
        let (mut node, mut given) = (node(), Labels::new());
        for (who, key, value) in steps {
            match who {
                0 => set_reported_labels(&mut node, &labels(&[(&key, &value)])),
                1 if NodeLabels::of(&node).reported.get(&key) != Some(&value) => {
                    label(&mut node, &key, Some(&value));
                    given.insert(key, value);
                }
                1 => {}
                _ => {
                    label(&mut node, &key, None);
                    given.remove(&key);
                }
            }
            prop_assert_eq!(&NodeLabels::of(&node).assigned, &given);
        }
    }

    #[test]
    fn arbitrary_annotations_never_panic(annotation in ".{0,60}", key in ".{0,10}", value in ".{0,10}") {
        let mut odd: Object = serde_json::from_value(json!({"metadata": {
            "labels": {&key: &value}, "annotations": {NODE_LABELS_ANNOTATION: annotation}}})).unwrap();
        set_reported_labels(&mut odd, &labels(&[(&key, &value)]));
        note_changed_labels(&mut odd);
        assign_missing_labels(&mut odd, &labels(&[(&key, &value)]));
        prop_assert!(NodeLabels::of(&odd).assigned.get(&key) == Some(&value));
    }
}

#[test]
fn labels_that_every_agent_sets_are_known() {
    for key in ["kubernetes.io/arch", "kubernetes.io/hostname", EDGE_ROLE, "node.kubernetes.io/instance-type"]
    {
        assert!(is_set_by_agents(key), "{key}");
    }
    for key in ["stage", "topology.kubernetes.io/zone", "example.com/os", "xkubernetes.io/arch"] {
        assert!(!is_set_by_agents(key), "{key}");
    }
}
