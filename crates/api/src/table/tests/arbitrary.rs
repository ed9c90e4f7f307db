//! Arbitrary objects never break a table.

use proptest::prelude::*;

use super::*;
use edgesync_object::kinds::KINDS;

/// Words that columns look for, so that columns find values in arbitrary objects.
const WORDS: &[&str] = &[
    "metadata",
    "spec",
    "status",
    "name",
    "creationTimestamp",
    "annotations",
    "labels",
    "ownerReferences",
    "phase",
    "conditions",
    "type",
    "reason",
    "containers",
    "initContainers",
    "containerStatuses",
    "initContainerStatuses",
    "state",
    "lastState",
    "terminated",
    "waiting",
    "running",
    "exitCode",
    "restartCount",
    "finishedAt",
    "template",
    "selector",
    "matchLabels",
    "matchExpressions",
    "key",
    "operator",
    "values",
    "ports",
    "port",
    "subsets",
    "addresses",
    "ip",
    "endpoints",
    "metrics",
    "target",
    "resource",
    "rules",
    "host",
    "replicas",
    "subjects",
    "kind",
    "roleRef",
    "series",
    "count",
    "True",
    "Ready",
    "Always",
    "Resource",
    "In",
    "2024-01-01T00:00:00Z",
    "-009999-01-02T01:59:59Z",
    "9999-12-30T22:00:00.999999999Z",
];

fn any_value() -> impl Strategy<Value = Value> {
    let words = || proptest::sample::select(WORDS).prop_map(str::to_owned);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        words().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 120, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((words(), inner), 0..8)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// An object with values at the paths of all columns, one of them replaced.
fn nearly_right(position: usize, other: Value) -> Value {
    let item = json!({"name": "a", "type": "Resource", "image": "i", "ready": true, "restartCount": 2, "port": 1,
        "nodePort": 2, "ip": "1.1.1.1", "host": "h", "key": "k", "operator": "In", "values": ["v"],
        "addresses": [{"ip": "1.1.1.1"}], "ports": [{"port": 1}], "restartPolicy": "Always",
        "state": {"terminated": {"exitCode": 1}}, "lastState": {"terminated": {"finishedAt": "2024-01-01T00:00:00Z"}},
        "resource": {"name": "cpu", "target": {"averageUtilization": 1}}, "kind": "User"});
    let list = json!([item, item]);
    let pods = json!({"containers": list, "initContainers": list, "readinessGates": list, "nodeSelector": {"a": "b"}});
    let mut object = json!({
        "metadata": {"name": "n.u", "creationTimestamp": "2024-01-01T00:00:00Z", "labels": {"kubernetes.io/role": "r"},
            "annotations": {}, "ownerReferences": [{"controller": true, "apiVersion": "a/b"}],
            "deletionTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {"containers": list, "initContainers": list, "readinessGates": list, "ports": list, "replicas": 1,
            "selector": {"matchLabels": {"a": "b"}, "matchExpressions": list}, "template": {"spec": pods},
            "metrics": list, "rules": list, "leaseDurationSeconds": 1, "completions": 1, "type": "LoadBalancer"},
        "status": {"containerStatuses": list, "initContainerStatuses": list, "conditions": list, "currentMetrics": list,
            "loadBalancer": {"ingress": list}, "startTime": "2024-01-01T00:00:00Z", "addresses": list},
        "subsets": list, "endpoints": list, "ports": list, "subjects": list,
        "eventTime": "2024-01-01T00:00:00Z", "series": {"count": 1},
    });
    let mut left = position;
    if let Some(value) = nth(&mut object, &mut left) {
        *value = other;
    }
    object
}

/// Returns the value reached after `left` others.
fn nth<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Object(fields) => fields.values_mut().find_map(|value| nth(value, left)),
        Value::Array(items) => items.iter_mut().find_map(|value| nth(value, left)),
        _ => None,
    }
}

fn check(view: &TableView, object: &Value) -> std::result::Result<(), TestCaseError> {
    let row = view.row(object.clone(), now());
    let cells = row["cells"].as_array().map(Vec::len);
    prop_assert_eq!(cells, view.definitions().as_array().map(Vec::len));
    prop_assert!(row["object"] == *object || row["object"] == partial(object.clone(), META_V1));
    Ok(())
}

fn check_every_kind(object: &Value) -> std::result::Result<(), TestCaseError> {
    for known in KINDS {
        check(&TableView::new(&kind(known), Include::Object, META_V1), object)?;
    }
    let paths =
        [("a", "integer", ".spec[*]"), ("b", "date", ".metadata.name"), ("c", "string", ".a[?(@.b)]")];
    check(&custom(&paths), object)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_object_gives_a_cell_per_column(object in any_value()) {
        check_every_kind(&object)?;
    }

    #[test]
    fn object_with_one_odd_value_gives_a_cell_per_column(position in 0usize..2_500, other in any_value()) {
        check_every_kind(&nearly_right(position, other))?;
    }
}
