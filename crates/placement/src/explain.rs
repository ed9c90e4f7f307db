//! Explanation of placement: the verdict of each rule on a node and an object. Pure.

use super::{NodeMatch, ObjectMatch, Placement, RuleId, Stage, Summary};
use edgesync_object::matching::any;
use edgesync_object::objectsync::is_placeable;
use edgesync_object::{Labels, NodeName, Target, label_pairs};

/// Verdict of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The rule, which is in force; [`RuleId::number`] gives its index.
    pub rule: RuleId,
    /// The clause that excludes the node; `None` if the rule selects it.
    pub node: Option<String>,
    /// The clause that excludes the object; `None` if the rule selects it, or if no object is
    /// given.
    pub object: Option<String>,
}

impl Placement {
    /// Returns the verdict of each rule in force on a node and, if given, on an object.
    #[must_use]
    pub fn verdicts(&self, node: &NodeName, object: Option<&Summary>) -> Vec<Verdict> {
        let labels = self.nodes.get(node).map(|node| &node.labels);
        let rules = self.rules.iter().enumerate().filter(|(_, rule)| rule.stage == Stage::InForce);
        let verdict = |(number, rule): (usize, &super::Rule)| Verdict {
            rule: RuleId::of(number),
            node: match labels {
                Some(labels) => rule.rule.nodes.mismatch(node, labels),
                None => Some("rules select only nodes that have connected".to_owned()),
            },
            object: object.and_then(|object| match self.is_reserved(object) {
                true => Some(format!("namespace {} is reserved for edgesync", object.namespace)),
                false => mismatch(&rule.rule.objects, object),
            }),
        };
        rules.map(verdict).collect()
    }

    /// Describes the reasons other than rules that place an object on a node.
    #[must_use]
    pub fn other_reasons(&self, node: &NodeName, object: &Summary) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.is_reserved(object) {
            return reasons;
        }
        if self.named(object).contains(node) {
            let pod = if object.resource.kind == "Pod" { " or spec.nodeName" } else { "" };
            reasons.push(format!(
                "object names the node: label edgesync.io/node, annotation edgesync.io/nodes{pod}"
            ));
        }
        let referring = Target::of(&object.resource)
            .and_then(|target| self.referring(target, &object.namespace, &object.name));
        if referring.is_some_and(|nodes| nodes.contains_key(node)) {
            reasons.push("a Pod on the node references it".to_owned());
        }
        reasons
    }

    /// Returns whether an object names a node without permission to do so.
    #[must_use]
    pub fn ignores_name(&self, node: &NodeName, object: &Summary) -> bool {
        object.nodes.all().contains(node) && !self.named(object).contains(node)
    }
}

impl NodeMatch {
    /// Returns the first clause that does not match.
    fn mismatch(&self, name: &str, labels: &Labels) -> Option<String> {
        if !any(&self.names, |glob| glob.matches(name)) {
            let names: Vec<String> = self.names.iter().map(ToString::to_string).collect();
            return Some(format!("nodes.names: {} does not match {}", name, names.join(", ")));
        }
        (!self.selector.matches(labels)).then(|| {
            format!(
                "nodes.selector: {} does not match the labels that placement uses: {}",
                self.selector,
                shown(labels)
            )
        })
    }
}

/// Returns the first clause that does not match.
fn mismatch(objects: &ObjectMatch, object: &Summary) -> Option<String> {
    let Summary { resource, namespace, name, labels, .. } = object;
    if !is_placeable(resource) {
        return Some(format!("kind {} is never placed", resource.kind));
    }
    if !objects.takes(resource) {
        return Some(match objects.kinds.is_empty() {
            true => {
                format!("objects.kinds: {}s are placed only by rules that name the kind", resource.kind)
            }
            false => format!("objects.kinds: {} is not listed", resource.kind),
        });
    }
    if !objects.namespaces.is_empty() && namespace.is_empty() {
        return Some("objects.namespaces: cluster-scoped object".to_owned());
    }
    if !any(&objects.namespaces, |glob| glob.matches(namespace)) {
        let patterns: Vec<String> = objects.namespaces.iter().map(ToString::to_string).collect();
        return Some(format!("objects.namespaces: {namespace} does not match {}", patterns.join(", ")));
    }
    if !any(&objects.names, |listed| **listed == **name) {
        return Some(format!("objects.names: {name} is not listed"));
    }
    (!objects.selector.matches(labels)).then(|| {
        format!("objects.selector: {} does not match the labels {}", objects.selector, shown(labels))
    })
}

fn shown(labels: &Labels) -> String {
    if labels.is_empty() { "(none)".to_owned() } else { label_pairs(labels) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::rules::PlacementRule;
    use crate::tests::{config_map, node_name, pod};
    use edgesync_object::{Object, kinds};

    fn rule(nodes: &str, objects: &str) -> PlacementRule {
        toml::from_str(&format!("nodes = {nodes}\nobjects = {objects}")).unwrap()
    }

    fn object(word: &str, metadata: &str) -> Summary {
        let object: Object = serde_json::from_str(&format!(r#"{{"metadata": {metadata}}}"#)).unwrap();
        Summary::of(&object, Arc::new(kinds::by_word(word).unwrap().resource()), "1".into())
    }

    #[test]
    fn first_mismatching_clause_is_named() {
        let mut placement = Placement::new(vec![
            rule("{ names = ['edge-*'] }", "{ namespaces = ['plant'] }"),
            rule("{ selector = 'site=north' }", "{ kinds = ['secrets'] }"),
            rule("{}", "{ names = ['line-1'], selector = 'tier=web' }"),
        ]);
        placement.set_node(&node_name("edge-1"), Labels::from([("site".into(), "south".into())]));
        placement.set_node(&node_name("gw-1"), Labels::new());
        let line =
            object("cm", r#"{"namespace": "plant", "name": "line-1", "uid": "u", "labels": {"tier": "db"}}"#);
        let verdicts = placement.verdicts(&node_name("edge-1"), Some(&line));
        assert!(verdicts.iter().map(|verdict| verdict.rule.number()).eq(0..3), "{verdicts:?}");
        let verdict = |number: usize| (verdicts[number].node.as_deref(), verdicts[number].object.as_deref());
        assert_eq!(verdict(0), (None, None));
        let (node, kind) = verdict(1);
        assert!(
            node.unwrap().contains("site=north does not match") && node.unwrap().ends_with("site=south"),
            "{node:?}"
        );
        assert_eq!(kind, Some("objects.kinds: ConfigMap is not listed"));
        assert_eq!(verdict(2), (None, Some("objects.selector: tier=web does not match the labels tier=db")));
        let elsewhere = placement.verdicts(&node_name("gw-1"), Some(&line));
        assert_eq!(elsewhere[0].node.as_deref(), Some("nodes.names: gw-1 does not match edge-*"));
        assert!(placement.verdicts(&node_name("unknown"), None).iter().all(|verdict| verdict.node.is_some()));

        let namespace = placement.verdicts(&node_name("edge-1"), Some(&object("ns", r#"{"name": "plant"}"#)));
        assert_eq!(
            namespace[2].object.as_deref(),
            Some("objects.kinds: Namespaces are placed only by rules that name the kind")
        );
        let event = placement
            .verdicts(&node_name("edge-1"), Some(&object("lease", r#"{"name": "x", "namespace": "plant"}"#)));
        assert_eq!(event[0].object.as_deref(), Some("kind Lease is never placed"));
    }

    #[test]
    fn node_name_in_an_object_is_a_reason_of_its_own() {
        let mut placement = Placement::new(Vec::new());
        let named = object(
            "cm",
            r#"{"namespace": "plant", "name": "a", "uid": "u", "labels": {"edgesync.io/node": "edge-1"}}"#,
        );
        drop(placement.upsert(&named));
        assert_eq!(placement.other_reasons(&node_name("edge-1"), &named).len(), 1);
        assert!(placement.other_reasons(&node_name("edge-2"), &named).is_empty());
    }

    #[test]
    fn reference_of_a_pod_is_a_reason_of_its_own() {
        let mut placement = Placement::new(Vec::new());
        let referred = config_map("u", 1, "c");
        drop(placement.upsert(&referred));
        drop(placement.upsert(&pod("p", 2, "edge-1", &["c"])));
        let reasons = placement.other_reasons(&node_name("edge-1"), &referred);
        assert_eq!(reasons, ["a Pod on the node references it"]);
        assert!(placement.other_reasons(&node_name("edge-2"), &referred).is_empty());
    }
}
