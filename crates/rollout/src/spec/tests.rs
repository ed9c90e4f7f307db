use super::*;
use proptest::prelude::*;
use serde_json::json;

fn parse(value: &Value) -> Result<Rollout, String> {
    Rollout::parse(value, "spec.rollout").map_err(|problems| problems.to_string())
}

#[test]
fn all_fields_are_read() {
    let rollout = parse(&json!({
        "waves": [{"selector": "stage=canary", "heldOnly": true}, {"percent": 10, "allowEmpty": true}, {}],
        "soak": "30m",
        "healthyWithin": "90s",
        "minSuccess": {"percent": 60, "atLeast": 2},
        "maxFailures": {"percent": 1, "groupBy": "site"},
        "offline": {"after": "2h"},
        "waiting": {"after": "1d"},
        "onFailure": "RollBack",
        "onChange": "Queue",
        "settle": "7s",
    }))
    .unwrap();
    assert_eq!((rollout.waves.count(), rollout.soak, rollout.healthy_within), (3, 30 * MINUTE, 90 * SECOND));
    assert!(rollout.waves.as_slice()[0].held_only && rollout.waves.as_slice()[1].allow_empty);
    assert_eq!(rollout.min_success, MinSuccess { percent: 60, at_least: 2 });
    assert_eq!(rollout.max_failures, MaxFailures { percent: 1, group_by: Some("site".into()) });
    assert_eq!((rollout.offline_after, rollout.waiting_after), (2 * HOUR, DAY));
    assert_eq!((rollout.on_failure, rollout.on_change), (OnFailure::RollBack, OnChange::Queue));
    assert_eq!(rollout.settle, 7 * SECOND);
}

#[test]
fn omitted_fields_have_defaults() {
    let rollout = parse(&json!({"waves": [{}], "minSuccess": {"atLeast": 3}, "soak": null})).unwrap();
    assert_eq!(
        (rollout.soak, rollout.healthy_within, rollout.settle),
        (30 * MINUTE, 10 * MINUTE, 5 * SECOND)
    );
    assert_eq!(rollout.min_success, MinSuccess { percent: 50, at_least: 3 });
    assert_eq!(rollout.max_failures, MaxFailures { percent: 5, group_by: None });
    assert_eq!((rollout.offline_after, rollout.waiting_after), (HOUR, DAY));
    assert_eq!((rollout.on_failure, rollout.on_change), (OnFailure::Pause, OnChange::Replace));
}

#[test]
fn bad_input_is_refused_with_field_and_requirement() {
    let nine = vec![json!({}); 9];
    for (value, expected) in [
        (json!(7), "spec.rollout: must be an object with fields, not a number"),
        (json!({}), "spec.rollout.waves: must list the waves in order"),
        (json!({"waves": []}), "spec.rollout.waves: must hold 1 to 8 waves, not 0"),
        (json!({"waves": nine}), "spec.rollout.waves: must hold 1 to 8 waves, not 9"),
        (json!({"waves": "all"}), "spec.rollout.waves: must be a list of waves"),
        (json!({"waves": [{}, "x"]}), "spec.rollout.waves[1]: must be an object with fields, not a text"),
        (
            json!({"waves": [{"percent": 101}]}),
            "waves[0].percent: must be a whole number from 1 to 100, not 101",
        ),
        (json!({"waves": [{"percent": 0}]}), "waves[0].percent: must be a whole number from 1 to 100, not 0"),
        (json!({"waves": [{"percent": -1}]}), "from 1 to 100, not -1"),
        (json!({"waves": [{"percent": 2.5}]}), "from 1 to 100, not 2.5"),
        (json!({"waves": [{"percent": "10"}]}), "from 1 to 100, not a text"),
        (json!({"waves": [{"selector": "a b"}]}), "waves[0].selector: expected"),
        (
            json!({"waves": [{"selector": "kubernetes.io/arch=arm64"}]}),
            "nodes set 'kubernetes.io/arch' themselves",
        ),
        (
            json!({"waves": [{"selector": "a"}, {"selector": "a"}]}),
            "waves[1]: selects no node, because waves[0]",
        ),
        (json!({"waves": [{"percent": 10}, {"percent": 10}]}), "waves[1]: selects no node"),
        (json!({"waves": [{"percent": 20}, {"percent": 10, "selector": "a"}]}), "waves[1]: selects no node"),
        (json!({"waves": [{}, {"selector": "a"}]}), "waves[1]: selects no node"),
        (json!({"waves": [{"name": "x"}]}), "waves[0].name: is unknown; the fields are selector, percent"),
        (json!({"waves": [{}], "soak": "3y"}), "spec.rollout.soak: must be a duration"),
        (json!({"waves": [{}], "soak": 30}), "spec.rollout.soak: must be a duration"),
        (json!({"waves": [{}], "soak": "1000d"}), "spec.rollout.soak: must be between 0s and 30d, not 1000d"),
        (json!({"waves": [{}], "soak": "99999999999999999999d"}), "spec.rollout.soak: must be a duration"),
        (json!({"waves": [{}], "settle": "1ms"}), "spec.rollout.settle: must be between 1s and 1h, not 1ms"),
        (json!({"waves": [{}], "onFailure": "Panic"}), "spec.rollout.onFailure: must be Pause or RollBack"),
        (json!({"waves": [{}], "onChange": 1}), "spec.rollout.onChange: must be Replace or Queue"),
        (
            json!({"waves": [{}], "minSuccess": {"percent": 101}}),
            "minSuccess.percent: must be a whole number",
        ),
        (
            json!({"waves": [{}], "minSuccess": {"atLeast": 0}}),
            "minSuccess.atLeast: must be a whole number from 1",
        ),
        (json!({"waves": [{}], "maxFailures": {"groupBy": "a b"}}), "maxFailures.groupBy: the label key"),
        (
            json!({"waves": [{}], "maxFailures": {"groupBy": "kubernetes.io/hostname"}}),
            "would choose their wave",
        ),
        (json!({"waves": [{}], "offline": "1h"}), "spec.rollout.offline: must be an object with fields"),
        (json!({"waves": [{}], "Soak": "1h"}), "spec.rollout.Soak: is unknown; the fields are waves, soak"),
    ] {
        let error = parse(&value).unwrap_err();
        assert!(error.contains(expected), "{value}: {error}");
    }
}

#[test]
fn all_problems_are_listed_up_to_a_limit() {
    let error = parse(&json!({"waves": [{"percent": 0}], "soak": 1, "settle": 2})).unwrap_err();
    assert_eq!(error.matches("; spec.rollout").count(), 2, "{error}");
    let many: serde_json::Map<_, _> = (0..100).map(|number| (format!("f{number}"), json!(1))).collect();
    assert_eq!(Rollout::parse(&Value::Object(many), "spec.rollout").unwrap_err().0.len(), 16);
}

#[test]
fn zones_and_sites_that_operators_assign_are_accepted() {
    let waves =
        json!([{"selector": "topology.kubernetes.io/zone=a"}, {"selector": "site in (x,y)", "percent": 5}]);
    assert!(parse(&json!({"waves": waves})).is_ok());
}

fn any_json() -> impl Strategy<Value = Value> {
    let names =
        ["waves", "soak", "percent", "selector", "minSuccess", "atLeast", "maxFailures", "groupBy", "x"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[0-9a-zé=!,() ]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 9, move |inner| {
        let name = prop::sample::select(names.to_vec());
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..9).prop_map(Value::from),
            prop::collection::vec((name, inner), 0..9)
                .prop_map(|pairs| pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        ]
    })
}

proptest! {
    #[test]
    fn no_value_panics(value in any_json()) {
        if let Err(problems) = Rollout::parse(&value, "rollout") {
            prop_assert!(!problems.0.is_empty() && problems.0.len() <= 16);
        }
    }
}
