//! `[[placement]]`: the rules that place objects on nodes.

use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;
use toml::Spanned;
use toml::de::DeValue;

use edgesync_config::rules::{RuleList, rules};
use edgesync_config::selection::{parse, read_objects, read_table, selector, table};
use edgesync_config::units;
use edgesync_config::{Binding as _, Keys, Raw, Refusal, Refusals};
use edgesync_object::name::check_subdomain;
use edgesync_placement::rules::{NodeMatch, PlacementRule};
use edgesync_rollout::Rollout;

/// Maximum number of rules.
const MAX_RULES: usize = 1000;

/// A rule of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfiguredRule {
    /// Its selection of objects and nodes.
    pub rule: PlacementRule,
    /// Its name, unique among the rules. The state of its roll-out is stored under it.
    pub name: Option<Arc<str>>,
    /// How changes reach the nodes. Only rules with a name have it.
    pub rollout: Option<Arc<Rollout>>,
}

/// The rules, in the order of the file.
pub type Placement = RuleList<ConfiguredRule>;

/// Binds the key, which is at the top level.
pub(super) fn bind(placement: &mut Placement, keys: &mut dyn Keys) {
    keys.section("");
    keys.fixed("placement", rules(placement, "placement", MAX_RULES, rule));
}

const NODES: &str = "a table such as { names = [\"edge-*\"], selector = \"region=eu\" }";
const NAMES: &str = "a list of name patterns such as [\"edge-*\"]";

const RULE_NAME: &str = "a name such as \"web\"";
const RULE_KEYS: [&str; 4] = ["name", "nodes", "objects", "rollout"];

fn rule(value: &Spanned<DeValue<'_>>, before: &[ConfiguredRule]) -> Result<ConfiguredRule, Refusals> {
    let ConfiguredRule { mut rule, mut name, mut rollout } = ConfiguredRule::default();
    let table = table(value, "a rule")?;
    let refusals = read_table(table, &RULE_KEYS, |key, value| match key {
        "name" => Some(read_name(value, before).map(|read| name = Some(read))),
        "nodes" => Some(read_nodes(value, &mut rule.nodes)),
        "objects" => Some(read_objects(value, &mut rule.objects)),
        "rollout" => Some(read_rollout(value).map(|read| rollout = Some(Arc::new(read)))),
        _ => None,
    });
    refusals.result()?;
    if rollout.is_some() && name.is_none() {
        let message = "a rule with 'rollout' needs a unique 'name', under which its state is stored";
        return Err(message.to_owned().into());
    }
    Ok(ConfiguredRule { rule, name, rollout })
}

fn read_name(value: &Spanned<DeValue<'_>>, before: &[ConfiguredRule]) -> Result<Arc<str>, Refusals> {
    let DeValue::String(name) = value.get_ref() else {
        return Err(Raw::Toml(value.get_ref()).expected(RULE_NAME).into());
    };
    check_subdomain(name)?;
    let same = before.iter().position(|rule| rule.name.as_deref() == Some(&**name));
    match same {
        Some(number) => {
            Err(format!("must be unique, rule {} of [[placement]] is named \"{name}\" too", number + 1)
                .into())
        }
        None => Ok(Arc::from(&**name)),
    }
}

/// Reads a roll-out, which is written as in a rule that is an object.
fn read_rollout(value: &Spanned<DeValue<'_>>) -> Result<Rollout, Refusals> {
    Rollout::parse(&json(value.get_ref()), "").map_err(|problems| {
        let refusal = |problem: edgesync_object::FieldProblem| {
            let key = problem.field.trim_start_matches('.').to_owned();
            let span = Some(span_of(value, &key));
            Refusal { key, message: problem.message, span }
        };
        problems.0.into_iter().map(refusal).collect()
    })
}

/// Converts a value of the file to JSON. Dates become texts.
fn json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.into(),
            Err(_) => Value::String(number.to_string()),
        },
        DeValue::Float(number) => match number.as_str().parse::<f64>() {
            Ok(number) => number.into(),
            Err(_) => Value::String(number.to_string()),
        },
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Datetime(date) => Value::String(date.to_string()),
        DeValue::Array(array) => array.iter().map(|value| json(value.get_ref())).collect(),
        DeValue::Table(table) => {
            table.iter().map(|(key, value)| (key.get_ref().to_string(), json(value.get_ref()))).collect()
        }
    }
}

/// Returns the place of the part at a path such as `waves[0].percent`, or of the innermost part
/// that contains it.
fn span_of(value: &Spanned<DeValue<'_>>, path: &str) -> Range<usize> {
    let mut part = value;
    for name in path.split(['.', '[', ']']).filter(|name| !name.is_empty()) {
        let inner = match part.get_ref() {
            DeValue::Table(table) => {
                table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value)
            }
            DeValue::Array(array) => name.parse().ok().and_then(|index: usize| array.get(index)),
            _ => None,
        };
        let Some(inner) = inner else { break };
        part = inner;
    }
    part.span()
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

    fn read(text: &str) -> Result<Vec<ConfiguredRule>, String> {
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
        let first = &rules[0].rule.nodes;
        let eu = Labels::from([("region".into(), "eu".into())]);
        assert!(first.matches("edge-1", &eu) && first.matches("lab7", &eu));
        assert!(!first.matches("edge-1", &Labels::new()) && !first.matches("lab77", &eu));
        assert!(rules[1].rule.nodes.matches("anything", &Labels::new()));
        let objects = &rules[0].rule.objects;
        assert_eq!((objects.kinds.len(), objects.namespaces.len()), (3, 1));
        assert!(rules[0].name.is_none() && rules[0].rollout.is_none());
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

    #[test]
    fn rollout_is_parsed_as_that_of_an_object() {
        let rules = read(
            r#"
            [[placement]]
            name = "web"
            rollout = { waves = [{ selector = "stage=canary", allowEmpty = true }, { percent = 0x0a }, {}], soak = "1h" }
            [[placement]]
            name = "db"
            "#,
        )
        .unwrap();
        let json = serde_json::json!({
            "waves": [{"selector": "stage=canary", "allowEmpty": true}, {"percent": 10}, {}], "soak": "1h",
        });
        assert_eq!(rules[0].rollout, Some(Arc::new(Rollout::parse(&json, "").unwrap())));
        let names: Vec<_> = rules.iter().map(|rule| rule.name.as_deref()).collect();
        assert_eq!(names, [Some("web"), Some("db")]);
    }

    #[test]
    fn errors_of_a_rollout_point_at_its_parts() {
        let error = read(
            r#"
[[placement]]
name = "web"
rollout.soak = "1y"
rollout.waves = [{ percent = 101 }, { soak = 1 }]
[[placement]]
name = "web"
[[placement]]
name = "We b"
[[placement]]
name = 7
rollout = "fast"
[[placement]]
rollout = { waves = [{}] }
"#,
        )
        .unwrap_err();
        let lines: Vec<&str> = error.lines().filter(|line| line.starts_with("x.toml:")).collect();
        let expected = [
            "x.toml:4:16: placement.rollout.soak: must be a duration",
            "x.toml:5:30: placement.rollout.waves[0].percent: must be a whole number from 1 to 100, not 101",
            "x.toml:5:46: placement.rollout.waves[1].soak: is unknown",
            "x.toml:9:8: placement.name: ",
            "x.toml:11:8: placement.name: must be a name such as",
            "x.toml:12:11: placement.rollout: must be an object with fields, not a text",
        ];
        for expected in expected {
            assert!(lines.iter().any(|line| line.starts_with(expected)), "{expected}: {error}");
        }
        assert!(error.contains("placement: a rule with 'rollout' needs a unique 'name'"), "{error}");
        let twice = read("[[placement]]\nname = \"web\"\n[[placement]]\nname = \"web\"\n").unwrap_err();
        let expected =
            "x.toml:4:8: placement.name: must be unique, rule 1 of [[placement]] is named \"web\" too";
        assert!(twice.contains(expected), "{twice}");
    }

    #[test]
    fn rollout_requires_the_embedded_store() {
        let rule = "[[placement]]\nname = \"web\"\nrollout = { waves = [{}] }\n";
        assert_eq!(read(rule).unwrap().len(), 1);
        let error = read(&format!("[store]\ntype = \"kubernetes\"\n{rule}")).unwrap_err();
        assert!(error.contains("[[placement]] with rollout requires store.type = \"sqlite\""), "{error}");
    }
}
