//! Search for objects of the index, and for the nodes on which one is desired.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Placed, Placement, RuleId};
use edgesync_object::{NodeName, Resource, Target};

impl Placement {
    /// Scans up to `count` objects, starting at number `from`. Returns those accepted by `matches`
    /// (kind, namespace, name); and the number to continue from, if there are more.
    pub fn find(
        &self,
        from: u32,
        count: u32,
        matches: impl Fn(&Resource, &str, &str) -> bool,
    ) -> (Vec<Arc<Placed>>, Option<u32>) {
        let end = self.slots.end().min(from.saturating_add(count));
        let slots = (from..end).filter_map(|id| self.slots.get(id));
        let found = slots.filter(|slot| {
            self.slots
                .words(slot)
                .is_some_and(|(resource, namespace)| matches(resource, namespace, slot.name()))
        });
        let found = found.filter_map(|slot| self.slots.whole(slot)).collect();
        (found, (end < self.slots.end()).then_some(end))
    }

    /// Returns the nodes on which an object is desired, in order.
    #[must_use]
    pub fn nodes_with(&self, uid: &str) -> Vec<NodeName> {
        let Some(slot) = self.slots.by_uid(uid).and_then(|id| self.slots.get(id)) else { return Vec::new() };
        let rules = self.selections.get(slot.rules);
        let ruled = rules.iter().filter_map(|number| self.rules.get(*number)).flat_map(|rule| &rule.nodes);
        let named = self.names.get(slot.nodes);
        let referring =
            self.slots.name(slot).and_then(|(target, space, name)| self.referring(target, space, name));
        let referring = referring.into_iter().flat_map(|nodes| nodes.keys());
        let nodes: BTreeSet<&NodeName> = ruled.chain(named.iter()).chain(referring).collect();
        nodes.into_iter().cloned().collect()
    }

    /// Returns whether a rule selects an object.
    #[must_use]
    pub fn is_of_rule(&self, uid: &str, rule: RuleId) -> bool {
        let slot = self.slots.by_uid(uid).and_then(|id| self.slots.get(id));
        slot.is_some_and(|slot| self.is_selected(slot, &[rule.number()]))
    }

    /// Returns whether a kind is secret: users with view-only access do not see its objects.
    #[must_use]
    pub fn is_secret(resource: &Resource) -> bool {
        Target::of(resource) == Some(Target::Secret)
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::PlacementRule;
    use crate::{NamedNodes, NodeMatch, ObjectMatch, Summary};
    use edgesync_object::{Labels, kinds};

    use super::*;

    fn summary(name: &str, nodes: &[&str]) -> Summary {
        Summary {
            uid: format!("u-{name}").into(),
            version: "1".into(),
            resource: Arc::new(kinds::by_word("cm").unwrap().resource()),
            namespace: "plant".into(),
            name: name.into(),
            labels: Labels::new(),
            notes: None,
            nodes: NamedNodes {
                annotation: nodes.iter().map(|node| NodeName::parse(node).unwrap()).collect(),
                ..NamedNodes::default()
            },
            references: BTreeSet::new(),
            rule: None,
            size: 0,
            urgency: Default::default(),
        }
    }

    fn names(nodes: &[NodeName]) -> Vec<&str> {
        nodes.iter().map(|name| &**name).collect()
    }

    #[test]
    fn search_works_in_parts_and_returns_nodes_in_order() {
        let rule = PlacementRule {
            nodes: NodeMatch { names: vec!["edge-*".parse().unwrap()], ..NodeMatch::default() },
            objects: ObjectMatch::default(),
        };
        let mut placement = Placement::new(vec![rule]);
        for node in ["edge-2", "edge-1", "other"] {
            placement.set_node(&NodeName::parse(node).unwrap(), Labels::new());
        }
        for name in ["a", "b", "c"] {
            placement.upsert(&summary(name, if name == "b" { &["other", "edge-1"] } else { &[] }));
        }
        let (first, next) = placement.find(0, 2, |_, _, _| true);
        let (rest, end) = placement.find(next.unwrap(), 2, |_, _, _| true);
        assert_eq!((first.len(), rest.len(), end), (2, 1, None));
        let (found, _) = placement.find(0, 10, |_, namespace, name| namespace == "plant" && name == "c");
        assert_eq!(found.iter().map(|object| &*object.uid).collect::<Vec<_>>(), ["u-c"]);
        assert_eq!(names(&placement.nodes_with("u-a")), ["edge-1", "edge-2"]);
        assert_eq!(names(&placement.nodes_with("u-b")), ["edge-1", "edge-2", "other"]);
        assert!(placement.nodes_with("none").is_empty());
    }
}
