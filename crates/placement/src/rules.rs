//! Placement rules: which objects belong on which nodes. They come from the configuration, or from
//! objects (`spec.rs`).

use serde::Deserialize;

use super::summary::Summary;
use edgesync_object::matching::any;
use edgesync_object::{Labels, Selector};

pub use edgesync_object::matching::{Glob, GlobError, KindError, KindMatch, ObjectMatch, Selection};

/// One rule: every object that it selects belongs on every node that it selects. Omitted fields do
/// not restrict the selection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlacementRule {
    /// Nodes that receive the objects; all nodes if omitted.
    pub nodes: NodeMatch,
    /// Objects that the nodes receive; all placeable objects if omitted.
    pub objects: ObjectMatch,
}

/// Selects nodes by name and by label; both must match if both are given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeMatch {
    /// Patterns of names. One must match; an empty list matches any name.
    pub names: Vec<Glob>,
    /// Selector over the labels of the Node object.
    pub selector: Selector,
}

impl NodeMatch {
    /// Returns whether the node is selected.
    #[must_use]
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        any(&self.names, |glob| glob.matches(name)) && self.selector.matches(labels)
    }
}

impl Summary {
    /// Returns whether the object is selected.
    #[must_use]
    pub(crate) fn is_selected_by(&self, objects: &ObjectMatch) -> bool {
        objects.names(&self.resource, &self.namespace, &self.name) && objects.selector.matches(&self.labels)
    }

    /// Returns whether the object is in a selection.
    #[must_use]
    pub fn is_in(&self, selection: &Selection) -> bool {
        let labels = |selector: &Selector| selector.matches(&self.labels);
        selection.selects((&self.resource, &self.namespace, &self.name), labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use edgesync_object::kinds;

    #[test]
    fn cluster_level_kinds_are_placed_only_by_name() {
        let object = |word: &str| {
            let resource = Arc::new(kinds::by_word(word).unwrap().resource());
            let object = serde_json::from_str(r#"{"metadata":{"name":"a"}}"#).unwrap();
            Summary::of(&object, resource, "1".into())
        };
        let named = |kinds: &[&str]| ObjectMatch {
            kinds: kinds.iter().map(|kind| kind.parse().unwrap()).collect(),
            ..ObjectMatch::default()
        };
        for word in ["namespace", "crd"] {
            assert!(
                !object(word).is_selected_by(&named(&[])) && object(word).is_selected_by(&named(&[word])),
                "{word}"
            );
        }
        assert!(object("clusterrole").is_selected_by(&named(&[])));
    }
}
