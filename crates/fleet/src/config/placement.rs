//! `[[placement]]`: the rules that place objects on nodes.

use toml::Spanned;
use toml::de::DeValue;

use edgesync_config::rules::{RuleList, rules};
use edgesync_config::selection::{parse, read_objects, read_table, selector, table};
use edgesync_config::units;
use edgesync_config::{Binding as _, Keys, Raw, Refusals};
use edgesync_placement::rules::{NodeMatch, PlacementRule};

/// Maximum number of rules.
const MAX_RULES: usize = 1000;

/// The rules, in the order of the file.
pub type Placement = RuleList<PlacementRule>;

/// Binds the key, which is at the top level.
pub(super) fn bind(placement: &mut Placement, keys: &mut dyn Keys) {
    keys.section("");
    keys.fixed("placement", rules(placement, "placement", MAX_RULES, rule));
}

const NODES: &str = "a table such as { names = [\"edge-*\"], selector = \"region=eu\" }";
const NAMES: &str = "a list of name patterns such as [\"edge-*\"]";

fn rule(value: &Spanned<DeValue<'_>>, _: &[PlacementRule]) -> Result<PlacementRule, Refusals> {
    let mut rule = PlacementRule::default();
    let refusals = read_table(table(value, "a rule")?, &["nodes", "objects"], |key, value| match key {
        "nodes" => Some(read_nodes(value, &mut rule.nodes)),
        "objects" => Some(read_objects(value, &mut rule.objects)),
        _ => None,
    });
    refusals.result().map(|()| rule)
}

fn read_nodes(value: &Spanned<DeValue<'_>>, nodes: &mut NodeMatch) -> Result<(), Refusals> {
    let refusals = read_table(table(value, NODES)?, &["names", "selector"], |key, value| match key {
        "names" => Some(units::list(&mut nodes.names, NAMES, parse).set(Raw::Toml(value.get_ref()))),
        "selector" => Some(selector(Raw::Toml(value.get_ref()), &mut nodes.selector)),
        _ => None,
    });
    refusals.result()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;
    use edgesync_object::Labels;

    fn read(text: &str) -> Result<Vec<PlacementRule>, String> {
        let loaded = edgesync_config::parse::<Config>(Path::new("x.toml"), text, []);
        loaded.map(|loaded| loaded.config.placement.rules).map_err(|errors| errors.to_string())
    }

    #[test]
    fn rule_is_parsed() {
        let rules = read(
            r#"
            [[placement]]
            nodes = { names = ["edge-*", "lab?"], selector = "region=eu" }
            objects = { kinds = ["cm", "deployments.apps", "Widget.lab.io"], namespaces = ["shop-*"], selector = "tier in (a)" }
            [[placement]]
            nodes.names = ["*"]
            "#,
        )
        .unwrap();
        assert_eq!(rules.len(), 2);
        let first = &rules[0].nodes;
        let eu = Labels::from([("region".into(), "eu".into())]);
        assert!(first.matches("edge-1", &eu) && first.matches("lab7", &eu));
        assert!(!first.matches("edge-1", &Labels::new()) && !first.matches("lab77", &eu));
        assert!(rules[1].nodes.matches("anything", &Labels::new()));
        assert_eq!((rules[0].objects.kinds.len(), rules[0].objects.namespaces.len()), (3, 1));
    }

    #[test]
    fn all_errors_of_all_rules_are_reported_together() {
        let error = read(
            r#"
[[placement]]
nodes = { names = ["Edge", 7], selector = "a in", name = "x" }
objects.kinds = ["Event", "a b"]
object = {}
[[placement]]
nodes = "edge-1"
objects.kind = ["cm"]
"#,
        )
        .unwrap_err();
        let lines: Vec<&str> = error.lines().filter(|line| line.starts_with("x.toml:")).collect();
        let expected = [
            "x.toml:3:20: placement.nodes.names: the name pattern 'Edge' must be",
            "x.toml:3:28: placement.nodes.names: must be a string, not the integer 7",
            "x.toml:3:43: placement.nodes.selector: expected '(' at position 4",
            "x.toml:3:51: placement.nodes: unknown key: \"name\"; did you mean 'names'?",
            "x.toml:4:18: placement.objects.kinds: objects of kind 'Event' cannot be placed",
            "x.toml:4:27: placement.objects.kinds: the kind 'a b' must be",
            "x.toml:5:1: placement: unknown key: \"object\"; did you mean 'objects'?",
            "x.toml:7:9: placement.nodes: must be a table such as { names = [\"edge-*\"]",
            "x.toml:8:9: placement.objects: unknown key: \"kind\"; did you mean 'kinds'?",
        ];
        assert_eq!(lines.len(), expected.len(), "{error}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.starts_with(expected), "{line}: {expected}");
        }
    }
}
