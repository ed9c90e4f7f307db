//! Rules as objects: `Placement` places objects of its namespace only, so write access to the
//! namespace decides; `ClusterPlacement` places objects of any namespace and cluster-scoped ones.
//! `packaging/kubernetes/crds` defines both.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::rules::{Glob, GlobError, KindMatch, NodeMatch, ObjectMatch, PlacementRule};
use super::summary::RuleText;
use edgesync_object::selector::LabelSelector;
use edgesync_object::{Problems, Selector};
use edgesync_rollout::Rollout;

/// Field path of the kinds of objects.
const KINDS: &str = "spec.objects.kinds";
/// Field path of the roll-out.
const ROLLOUT: &str = "spec.rollout";

/// Effective part of a rule that is an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// The rule; `None` if no part of it is in force.
    pub rule: Option<PlacementRule>,
    /// How changes reach the nodes.
    pub rollout: RuleRollout,
    /// Problems of the parts that are not in force.
    pub problems: Problems,
}

/// The roll-out of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RuleRollout {
    /// The rule has none: changes reach all nodes at once.
    #[default]
    None,
    /// It is valid.
    Valid(Arc<Rollout>),
    /// It is invalid: no wave opens and no revision begins. Nodes keep what is assigned to them, as
    /// without a roll-out a change would reach all of them.
    Invalid,
}

#[derive(Deserialize)]
struct Spec {
    objects: Objects,
    #[serde(default)]
    nodes: Nodes,
    #[serde(default)]
    rollout: Option<Value>,
}

#[derive(Deserialize)]
struct Objects {
    kinds: Vec<String>,
    #[serde(default)]
    namespaces: Vec<Glob>,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    selector: LabelSelector,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Nodes {
    names: Vec<Glob>,
    selector: LabelSelector,
}

impl InForce {
    /// Parses a rule. A rule in a namespace selects objects of that namespace only.
    #[must_use]
    pub fn of(rule: &RuleText, namespace: &str) -> Self {
        let spec = match serde_json::from_str::<Spec>(&rule.spec) {
            Ok(spec) => spec,
            Err(error) => {
                let problems = Problems::one("spec", error.to_string());
                let spec: Value = serde_json::from_str(&rule.spec).unwrap_or_default();
                let has_rollout = spec.get("rollout").is_some_and(|rollout| !rollout.is_null());
                let rollout = if has_rollout { RuleRollout::Invalid } else { RuleRollout::None };
                return Self { rule: None, rollout, problems };
            }
        };
        let (rollout, of_rollout) = read_rollout(spec.rollout.as_ref());
        let (rule, mut problems) = match read(spec, namespace) {
            Ok((rule, problems)) => (Some(rule), problems),
            Err(problems) => (None, problems),
        };
        problems.0.extend(of_rollout.0);
        Self { rule, rollout, problems }
    }
}

/// Returns the roll-out of a rule, and its problems.
fn read_rollout(rollout: Option<&Value>) -> (RuleRollout, Problems) {
    match rollout.map(|rollout| Rollout::parse(rollout, ROLLOUT)) {
        None => (RuleRollout::None, Problems::default()),
        Some(Ok(rollout)) => (RuleRollout::Valid(Arc::new(rollout)), Problems::default()),
        Some(Err(problems)) => (RuleRollout::Invalid, problems),
    }
}

/// Returns the rule and its invalid kinds: the valid ones are placed nevertheless.
fn read(spec: Spec, namespace: &str) -> Result<(PlacementRule, Problems), Problems> {
    let Spec { objects, nodes, .. } = spec;
    if objects.kinds.is_empty() {
        return Err(Problems::one(KINDS, "must name at least one kind"));
    }
    let (kinds, wrong): (Vec<_>, Vec<_>) =
        objects.kinds.iter().map(|kind| kind.parse::<KindMatch>()).partition(Result::is_ok);
    let wrong: Vec<String> =
        wrong.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
    let problems =
        if wrong.is_empty() { Problems::default() } else { Problems::one(KINDS, wrong.join("; ")) };
    if kinds.is_empty() {
        return Err(problems);
    }
    let selector = |field: &str, selector: LabelSelector| {
        Selector::try_from(selector).map_err(|error| Problems::one(field, error.to_string()))
    };
    let namespaces = match namespace {
        "" => objects.namespaces,
        // A namespace contains no pattern characters.
        own => vec![
            own.parse().map_err(|error: GlobError| Problems::one("metadata.namespace", error.to_string()))?,
        ],
    };
    let rule = PlacementRule {
        nodes: NodeMatch { names: nodes.names, selector: selector("spec.nodes.selector", nodes.selector)? },
        objects: ObjectMatch {
            kinds: kinds.into_iter().flatten().collect(),
            namespaces,
            names: objects.names,
            selector: selector("spec.objects.selector", objects.selector)?,
        },
    };
    Ok((rule, problems))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Summary;
    use edgesync_object::{Labels, kinds};
    use serde_json::json;

    fn rule(kind: &str, spec: &Value) -> InForce {
        let resource = kinds::guess("edgesync.io/v1alpha1", kind, kind == "Placement");
        let namespace = if kind == "Placement" { "shop" } else { "" };
        let object =
            json!({"metadata": {"name": "p", "namespace": namespace, "generation": 3}, "spec": spec});
        let object = Summary::of(&serde_json::from_value(object).unwrap(), Arc::new(resource), 1.into());
        let text = object.rule.unwrap();
        assert_eq!((text.generation, &*text.status), (3, ""));
        InForce::of(&text, &object.namespace)
    }

    fn config_map(namespace: &str, name: &str, labels: &Value) -> Summary {
        let resource = Arc::new(kinds::by_word("cm").unwrap().resource());
        let object =
            json!({"metadata": {"namespace": namespace, "name": name, "uid": "u", "labels": labels}});
        Summary::of(&serde_json::from_value(object).unwrap(), resource, 1.into())
    }

    #[test]
    fn placement_selects_only_in_its_own_namespace() {
        let spec = json!({
            "objects": {"kinds": ["configmaps"], "namespaces": ["*"], "names": ["a", "b"],
                "selector": {"matchLabels": {"app": "web"}}},
            "nodes": {"names": ["edge-*"], "selector": {"matchExpressions": [{"key": "site", "operator": "Exists"}]}},
        });
        let rule = rule("Placement", &spec).rule.unwrap();
        let web = json!({"app": "web"});
        assert!(config_map("shop", "a", &web).is_selected_by(&rule.objects));
        for other in [
            config_map("other", "a", &web),
            config_map("shop", "c", &web),
            config_map("shop", "a", &json!({})),
        ] {
            assert!(!other.is_selected_by(&rule.objects), "{other:?}");
        }
        let site = Labels::from([("site".into(), "x".into())]);
        assert!(rule.nodes.matches("edge-1", &site) && !rule.nodes.matches("edge-1", &Labels::new()));
        let everywhere = self::rule("ClusterPlacement", &spec).rule.unwrap();
        assert!(config_map("other", "a", &web).is_selected_by(&everywhere.objects));
    }

    #[test]
    fn invalid_spec_names_field_and_cause() {
        let kinds = json!({"kinds": ["cm"]});
        for (spec, expected) in [
            (json!({}), "missing field `objects`"),
            (json!({"objects": {"kinds": []}}), "spec.objects.kinds: must name at least one"),
            (json!({"objects": {"kinds": ["Lease"]}}), "kind 'Lease' cannot be placed"),
            (json!({"objects": {"kinds": ["a b"]}}), "the kind 'a b' must be"),
            (json!({"objects": kinds, "nodes": {"names": ["Edge"]}}), "the name pattern 'Edge' must be"),
            (
                json!({"objects": kinds, "nodes": {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}}),
                "spec.nodes.selector: ",
            ),
            (
                json!({"objects": {"kinds": ["cm"], "selector": {"matchLabels": {"a b": "c"}}}}),
                "spec.objects.selector: ",
            ),
        ] {
            let InForce { rule, problems, .. } = rule("Placement", &spec);
            let error = problems.to_string();
            assert!(rule.is_none() && error.contains(expected), "{spec}: {error}");
        }
        let InForce { rule, problems, .. } =
            rule("Placement", &json!({"objects": {"kinds": ["Lease", "cm"]}}));
        assert!(
            config_map("shop", "a", &json!({})).is_selected_by(&rule.unwrap().objects),
            "the others are placed"
        );
        assert!(problems.to_string().contains("kind 'Lease'"));
    }

    #[test]
    fn rollout_is_parsed_beside_the_rule() {
        let of = |rollout: &Value| {
            rule("Placement", &json!({"objects": {"kinds": ["cm"]}, "nodes": {}, "rollout": rollout}))
        };
        let valid = of(&json!({"waves": [{"selector": "stage=canary"}, {}], "soak": "1h"}));
        let RuleRollout::Valid(rollout) = &valid.rollout else { panic!("{valid:?}") };
        assert_eq!((rollout.waves.count(), rollout.soak.as_secs()), (2, 3600));
        assert!(valid.rule.is_some() && valid.problems.0.is_empty());
        let none = of(&Value::Null);
        assert_eq!((&none.rollout, &none.rule), (&RuleRollout::None, &valid.rule));
        // The rule stays in force: its objects must not leave the nodes because of it.
        let invalid = of(&json!({"waves": [{"percent": 101}], "soka": "1h"}));
        assert_eq!((&invalid.rollout, &invalid.rule), (&RuleRollout::Invalid, &valid.rule));
        let text = invalid.problems.to_string();
        for expected in
            ["spec.rollout.waves[0].percent: must be a whole number from 1 to 100", "spec.rollout.soka"]
        {
            assert!(text.contains(expected), "{text}");
        }
        // Problems of both parts are listed.
        let both = rule("Placement", &json!({"objects": {"kinds": ["Lease"]}, "rollout": {"waves": []}}));
        assert!(both.rule.is_none() && both.rollout == RuleRollout::Invalid);
        let text = both.problems.to_string();
        assert!(text.contains("kind 'Lease'") && text.contains("spec.rollout.waves"), "{text}");
    }
}
