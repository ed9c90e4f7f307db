//! Whose label is whose, however node, operators and tokens take turns.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn node() -> Object {
    serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap()
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// What `kubectl label` does.
fn label(node: &mut Object, key: &str, value: Option<&str>) {
    let mut labels = node.labels();
    labels.remove(key);
    labels.extend(value.map(|value| (key.to_owned(), value.to_owned())));
    node.set_metadata("labels", json!(labels));
    note_changed_labels(node);
}

#[test]
fn what_a_node_says_of_itself_is_told_from_what_was_given_to_it() {
    let mut node = node();
    label(&mut node, "site", Some("south"));
    claim_labels(&mut node, &labels(&[("site", "north"), ("rack", "7")]));
    let expected = NodeLabels { given: labels(&[("site", "south")]), claimed: labels(&[("rack", "7")]) };
    assert_eq!(NodeLabels::of(&node), expected);
    // Also when it says later what an operator has said.
    claim_labels(&mut node, &labels(&[("site", "south"), ("rack", "7")]));
    assert_eq!(NodeLabels::of(&node), expected);
}

#[test]
fn a_label_that_was_removed_and_set_again_is_the_operators_also_with_the_same_value() {
    let mut node = node();
    claim_labels(&mut node, &labels(&[("site", "north")]));
    label(&mut node, "site", None);
    assert_eq!(NodeLabels::of(&node), NodeLabels::default());
    label(&mut node, "site", Some("north"));
    assert_eq!(NodeLabels::of(&node).given, labels(&[("site", "north")]));
    // Another value and back is the same.
    claim_labels(&mut node, &labels(&[("rack", "1")]));
    label(&mut node, "rack", Some("2"));
    label(&mut node, "rack", Some("1"));
    assert_eq!(NodeLabels::of(&node).given, labels(&[("rack", "1"), ("site", "north")]));
}

#[test]
fn whoever_takes_the_annotation_away_believes_all_that_the_node_has_said() {
    let mut node = node();
    claim_labels(&mut node, &labels(&[("site", "north")]));
    node.remove_metadata("annotations");
    note_changed_labels(&mut node);
    assert!(!has_reported(&node));
    claim_labels(&mut node, &labels(&[("site", "north"), ("rack", "7")]));
    let expected = NodeLabels { given: labels(&[("site", "north")]), claimed: labels(&[("rack", "7")]) };
    assert_eq!(NodeLabels::of(&node), expected);
}

#[test]
fn labels_of_a_token_take_the_place_of_those_of_the_token_before() {
    let mut node = node();
    claim_labels(&mut node, &labels(&[("site", "north"), ("rack", "7")]));
    let (first, second) = (labels(&[("site", "south"), ("tier", "a")]), labels(&[("site", "west")]));
    give_labels(&mut node, &Labels::new(), &first);
    assert_eq!(NodeLabels::of(&node), NodeLabels { given: first.clone(), claimed: labels(&[("rack", "7")]) });
    give_labels(&mut node, &first, &second);
    assert_eq!(NodeLabels::of(&node).given, second);
    // What an operator has set since stays when the node is made known again, and goes when it joins again.
    label(&mut node, "site", Some("mine"));
    give_missing_labels(&mut node, &second);
    assert_eq!(NodeLabels::of(&node).given, labels(&[("site", "mine")]));
    give_labels(&mut node, &second, &second);
    assert_eq!(NodeLabels::of(&node).given, second);
}

proptest! {
    /// Whatever the node says, in between too: what was given to it is there, and it gives itself nothing that counts.
    #[test]
    fn no_node_gives_itself_anything_or_takes_anything_away(
        steps in proptest::collection::vec((0..3usize, "[ab]", "[xy]"), 1..20),
    ) {
        let (mut node, mut given) = (node(), Labels::new());
        for (who, key, value) in steps {
            match who {
                0 => claim_labels(&mut node, &labels(&[(&key, &value)])),
                1 if NodeLabels::of(&node).claimed.get(&key) != Some(&value) => {
                    label(&mut node, &key, Some(&value));
                    given.insert(key, value);
                }
                1 => {}
                _ => {
                    label(&mut node, &key, None);
                    given.remove(&key);
                }
            }
            prop_assert_eq!(&NodeLabels::of(&node).given, &given);
        }
    }

    #[test]
    fn a_node_as_anybody_may_have_left_it_panics_nowhere(annotation in ".{0,60}", key in ".{0,10}", value in ".{0,10}") {
        let mut odd: Object = serde_json::from_value(json!({"metadata": {
            "labels": {&key: &value}, "annotations": {NODE_LABELS_ANNOTATION: annotation}}})).unwrap();
        claim_labels(&mut odd, &labels(&[(&key, &value)]));
        note_changed_labels(&mut odd);
        give_missing_labels(&mut odd, &labels(&[(&key, &value)]));
        prop_assert!(NodeLabels::of(&odd).given.get(&key) == Some(&value));
    }
}
