use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{apply_defaults, prune, to_openapi, validate, validate_change};

const PATH: &str = "spec.versions[0].schema.openAPIV3Schema";

fn with_spec(spec: impl Into<Value>) -> Value {
    json!({"type": "object", "properties": {"spec": spec.into()}})
}

fn refused(openapi: &Value) -> Vec<(String, String)> {
    let causes = read(openapi, PATH).expect_err("it must be refused");
    causes.into_iter().map(|cause| (cause.field, cause.reason)).collect()
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        other => panic!("{other} is no object"),
    }
}

#[test]
fn custom_kind_is_pruned_defaulted_and_validated() {
    let schema = read(
        &with_spec(json!({
            "type": "object", "required": ["cron", "size"],
            "properties": {
                "cron": {"type": "string", "pattern": "^(\\d+|\\*)(/\\d+)?$", "maxLength": 6},
                "size": {"type": "integer", "minimum": 1, "maximum": 10, "exclusiveMaximum": true, "default": 2},
                "step": {"type": "number", "multipleOf": 0.1},
                "mode": {"type": "string", "enum": ["fast", "slow"]},
                "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                "note": {"type": "string", "nullable": true},
                "parts": {
                    "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    "maxItems": 2,
                    "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
                },
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            },
            "oneOf": [{"required": ["mode"]}, {"required": ["step"]}],
        })),
        PATH,
    )
    .unwrap();
    let mut good = object(json!({
        "apiVersion": "lab.io/v1", "kind": "W", "metadata": {"name": "w"},
        "spec": {"cron": "*/5", "mode": "fast", "note": null, "free": {"a": [{"b": 1}]}, "port": "http", "x": 1},
    }));
    assert_eq!(prune(&schema, &mut good), ["spec.x"]);
    apply_defaults(&schema, &mut good);
    assert_eq!(good["spec"]["size"], 2);
    assert_eq!(good["spec"]["note"], Value::Null);
    assert_eq!(validate(&schema, &good), []);

    let bad = object(json!({"spec": {
        "cron": "every day", "size": 10, "step": 0.25, "mode": "medium", "port": 1.5,
        "parts": [{"name": "a"}, {"name": "a"}, {}],
    }}));
    let causes = validate(&schema, &bad);
    let found: Vec<(&str, &str)> = causes.iter().map(|c| (&*c.field, c.reason.as_str())).collect();
    assert_eq!(
        found,
        [
            ("spec.cron", "FieldValueTooLong"),
            ("spec.cron", "FieldValueInvalid"),
            ("spec.mode", "FieldValueNotSupported"),
            ("spec.parts[2].name", "FieldValueRequired"),
            ("spec.parts", "FieldValueTooMany"),
            ("spec.parts[1]", "FieldValueDuplicate"),
            ("spec.port", "FieldValueTypeInvalid"),
            ("spec.size", "FieldValueInvalid"),
            ("spec.step", "FieldValueInvalid"),
            ("spec", "FieldValueInvalid"),
        ]
    );
    assert_eq!(causes[7].message, "Invalid value: 10: must be less than 10");
}

#[test]
fn old_problems_are_tolerated_in_place() {
    let count = json!({"type": "integer", "maximum": 9});
    let schema = with_spec(json!({
        "type": "object", "required": ["owner"],
        "properties": {
            "owner": {"type": "string", "nullable": true}, "size": {"type": "integer"},
            "cron": {"type": "string", "maxLength": 6},
            "counts": {"type": "array", "items": count, "maxItems": 2},
            "choice": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "count": count}}},
        },
        "not": {"properties": {"size": {"enum": [7]}}, "required": ["size"]},
    }));
    let schema = read(&schema, PATH).unwrap();
    let found = |old: &Value, new: &Value| {
        let [old, new] = [old, new].map(|spec| object(json!({"spec": spec})));
        let causes = validate_change(&schema, Some(&old), &new);
        causes.into_iter().map(|cause| cause.field).collect::<Vec<_>>()
    };
    let old = json!({
        "size": 1, "cron": "1234567", "counts": [99, 1, 1], "choice": {"a": 1, "b": 1, "x": [1]},
        "parts": [{"name": "a", "count": 1}, {"name": "b", "count": 99}],
    });
    assert_eq!(validate(&schema, &object(json!({"spec": old}))).len(), 6);
    let with = |field: &str, value: Value| {
        let mut new = old.clone();
        new[field] = value;
        new
    };
    let mut without = old.clone();
    without.as_object_mut().unwrap().remove("choice");
    let none: [&str; 0] = [];
    assert_eq!(found(&old, &old), none);
    assert_eq!(found(&old, &without), none);
    assert_eq!(found(&old, &with("size", json!(2))), none);
    assert_eq!(
        found(&old, &with("size", json!(7))),
        ["spec"],
        "what is said of the whole is looked at again"
    );
    // Items are matched by their keys, wherever they are.
    assert_eq!(found(&old, &with("parts", json!([{"name": "b", "count": 99}]))), none);
    assert_eq!(found(&old, &with("parts", json!([{"name": "c", "count": 99}]))), ["spec.parts[0].count"]);
    assert_eq!(found(&old, &with("parts", json!([{"name": "b", "count": 98}]))), ["spec.parts[0].count"]);
    // A changed value is checked, even if its problem is the same.
    assert_eq!(found(&old, &with("cron", json!("7654321"))), ["spec.cron"]);
    assert_eq!(found(&old, &with("choice", json!({"a": 2, "b": 1, "x": [1]}))), ["spec.choice"]);
    // Items of a list without keys cannot be matched.
    assert_eq!(found(&old, &with("counts", json!([99, 2, 1]))), ["spec.counts[0]", "spec.counts"]);
    // A present value must not be removed.
    assert_eq!(found(&with("owner", json!("me")), &old), ["spec.owner"]);
}

#[test]
fn additional_fields_may_be_anything() {
    let spec =
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": true});
    let schema = read(&with_spec(spec), PATH).unwrap();
    let mut object = json!({"spec": {"a": "x", "b": {"c": 1}}}).as_object().unwrap().clone();
    assert!(prune(&schema, &mut object).is_empty());
    assert_eq!(object["spec"]["b"]["c"], 1);
}

#[test]
fn non_structural_schema_is_refused_with_its_path() {
    let at = |rest: &str| format!("{PATH}{rest}");
    let cases = [
        (json!("text"), at(""), "FieldValueInvalid"),
        (json!({}), at(".type"), "FieldValueRequired"),
        (json!({"type": "string"}), at(".type"), "FieldValueInvalid"),
        (
            json!({"type": "object", "additionalProperties": true}),
            at(".additionalProperties"),
            "FieldValueForbidden",
        ),
        (with_spec(json!({})), at(".properties[spec].type"), "FieldValueRequired"),
        (with_spec(json!({"type": "map"})), at(".properties[spec].type"), "FieldValueInvalid"),
        (with_spec(json!({"type": "array"})), at(".properties[spec].items"), "FieldValueRequired"),
        (
            with_spec(json!({"type": "object", "$ref": "#/x"})),
            at(".properties[spec].$ref"),
            "FieldValueForbidden",
        ),
        (
            with_spec(json!({"type": "object", "additionalProperties": false})),
            at(".properties[spec].additionalProperties"),
            "FieldValueForbidden",
        ),
        (
            with_spec(json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true})),
            at(".properties[spec].uniqueItems"),
            "FieldValueForbidden",
        ),
        (
            with_spec(json!({"type": "string", "pattern": "("})),
            at(".properties[spec].pattern"),
            "FieldValueInvalid",
        ),
        (
            with_spec(json!({"type": "string", "pattern": "(((a{999}){999}){999})"})),
            at(".properties[spec].pattern"),
            "FieldValueInvalid",
        ),
        (
            with_spec(json!({"type": "string", "minLength": -1})),
            at(".properties[spec].minLength"),
            "FieldValueInvalid",
        ),
        (
            with_spec(json!({"type": "integer", "default": "a"})),
            at(".properties[spec].default"),
            "FieldValueTypeInvalid",
        ),
        (
            with_spec(json!({"type": "object", "anyOf": [{"type": "object"}]})),
            at(".properties[spec].anyOf[0].type"),
            "FieldValueForbidden",
        ),
        (
            with_spec(
                json!({"type": "object", "anyOf": [{"allOf": [{"properties": {"a": {"minimum": 1}}}]}]}),
            ),
            at(".properties[spec].anyOf[0].allOf[0].properties[a]"),
            "FieldValueRequired",
        ),
        (
            with_spec(json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"})),
            at(".properties[spec].x-kubernetes-list-map-keys"),
            "FieldValueRequired",
        ),
        (
            with_spec(
                json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"],
                "items": {"type": "object", "properties": {"a": {"type": "string"}}}}),
            ),
            at(".properties[spec].x-kubernetes-list-map-keys[0]"),
            "FieldValueInvalid",
        ),
        (
            with_spec(json!({"type": "string", "x-kubernetes-list-type": "set"})),
            at(".properties[spec].x-kubernetes-list-type"),
            "FieldValueForbidden",
        ),
    ];
    for (openapi, field, reason) in cases {
        assert_eq!(refused(&openapi), [(field, reason.to_owned())], "{openapi}");
    }
}

#[test]
fn too_deep_or_too_large_schema_is_refused() {
    let mut deep = json!({"type": "string"});
    for _ in 0..200 {
        deep = json!({"type": "array", "items": deep});
    }
    assert_eq!(refused(&with_spec(deep)).len(), 1);
    let fields: Map<String, Value> =
        (0..=MAX_SCHEMAS).map(|number| (format!("f{number}"), json!({"type": "string"}))).collect();
    assert_eq!(refused(&json!({"type": "object", "properties": fields})).len(), 1);
    let wrong: Map<String, Value> = (0..1000).map(|number| (format!("f{number}"), json!({}))).collect();
    assert_eq!(refused(&json!({"type": "object", "properties": wrong})).len(), MAX_CAUSES);
}

#[test]
fn embedded_object_has_the_common_fields() {
    let spec = json!({"type": "object", "properties": {"pod": {
        "type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true,
    }}});
    let schema = read(&with_spec(spec), PATH).unwrap();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "x": 1}, "spec": {"y": 1}});
    let mut owner = object(json!({"spec": {"pod": pod}}));
    assert_eq!(prune(&schema, &mut owner), ["spec.pod.metadata.x"]);
}

fn text() -> impl Strategy<Value = Arc<str>> {
    "[a-z]{1,6}".prop_map(Arc::from)
}

fn scalar() -> impl Strategy<Value = Schema> {
    let limits = (any::<Option<u32>>(), any::<Option<(i32, bool)>>(), any::<bool>()).prop_map(
        |(length, minimum, pattern)| Limits {
            max_length: length.map(u64::from),
            min_items: length.map(u64::from),
            minimum: minimum.map(|(least, exclusive)| (f64::from(least) / 4.0, exclusive)),
            pattern: pattern.then(|| "^a+$".into()),
            choices: if pattern { vec![json!("a"), json!(1)] } else { Vec::new() },
            all_of: if pattern { vec![Schema::default().into()] } else { Vec::new() },
            not: pattern.then(|| Arc::new(Schema { required: vec!["a".into()], ..Schema::default() })),
            ..Limits::default()
        },
    );
    let kind = prop::sample::select(vec![
        Type::String,
        Type::Integer,
        Type::Number,
        Type::Boolean,
        Type::IntOrString,
        Type::Any,
    ]);
    (kind, text(), any::<bool>(), limits).prop_map(|(kind, description, nullable, limits)| Schema {
        kind,
        description,
        nullable,
        preserve_unknown: kind == Type::Any,
        limits: (limits != Limits::default()).then(|| Box::new(limits)),
        ..Schema::default()
    })
}

fn structural() -> impl Strategy<Value = Schema> {
    scalar().prop_recursive(4, 32, 4, |inner| {
        let list = (inner.clone(), any::<bool>()).prop_map(|(items, set)| Schema {
            kind: Type::Array,
            items: Some(items.into()),
            list: if set { ListType::Set } else { ListType::Atomic },
            ..Schema::default()
        });
        let map = inner.clone().prop_map(|values| Schema {
            kind: Type::Object,
            additional: Some(values.into()),
            ..Schema::default()
        });
        prop_oneof![list, map, fields(inner)]
    })
}

fn fields(inner: impl Strategy<Value = Schema>) -> impl Strategy<Value = Schema> {
    let fields = prop::collection::btree_map(text(), inner.prop_map(Arc::new), 1..4);
    (fields, any::<[bool; 3]>()).prop_map(|(properties, [required, atomic_map, preserve_unknown])| Schema {
        kind: Type::Object,
        required: if required { properties.keys().cloned().collect() } else { Vec::new() },
        properties,
        atomic_map,
        preserve_unknown,
        ..Schema::default()
    })
}

#[test]
fn rules_and_patterns_are_bounded() {
    let fields = |number: usize, field: &dyn Fn(usize) -> Value| {
        let fields: BTreeMap<String, Value> = (0..number).map(|n| (format!("f{n}"), field(n))).collect();
        with_spec(json!({"type": "object", "properties": fields}))
    };
    let ruled = |rule: String| json!({"type": "string", "x-kubernetes-validations": [{"rule": rule}]});
    assert!(read(&fields(500, &|_| ruled("self == 'a'".to_owned())), PATH).is_ok());
    let many = fields(MAX_RULES + 10, &|_| ruled("self == 'a'".to_owned()));
    let long = fields(10, &|_| ruled(format!("self == '{}'", "a".repeat(MAX_RULE_BYTES / 9))));
    for (openapi, what) in [(many, "x-kubernetes-validations"), (long, "x-kubernetes-validations")] {
        let causes = refused(&openapi);
        assert_eq!(causes.len(), 1, "{causes:?}");
        assert!(causes[0].0.ends_with(what) && causes[0].1 == "FieldValueForbidden", "{causes:?}");
    }
    let patterned = |pattern: String| json!({"type": "string", "pattern": pattern});
    assert!(read(&fields(500, &|n| patterned(format!("^[a-z]{{1,{}}}$", n % 60 + 1))), PATH).is_ok());
    let groups = refused(&fields(1, &|_| patterned("()".repeat(2000))));
    assert!(groups[0].0.ends_with("pattern"), "{groups:?}");
    // Each is accepted; all together exceed the limit.
    let large = |n: usize| patterned(format!("(((((((x{{1,100}}){{1,15}})))))){n}"));
    assert!(read(&fields(2, &large), PATH).is_ok());
    assert!(refused(&fields(100, &large))[0].0.ends_with("pattern"));
}

proptest! {
    #[test]
    fn openapi_output_survives_a_round_trip(mut schema in fields(structural())) {
        add_object_fields(&mut schema.properties);
        prop_assert_eq!(read(&to_openapi(&schema), PATH), Ok(schema));
    }

    #[test]
    fn arbitrary_schemas_never_panic(
        keys in prop::collection::btree_map(
            prop::sample::select(vec![
                "type", "properties", "items", "required", "default", "enum", "pattern", "anyOf", "not", "minimum",
                "x-kubernetes-list-type", "x-kubernetes-int-or-string", "additionalProperties", "maxLength",
            ]),
            prop::sample::select(vec![
                json!(null), json!(1), json!(-1.5), json!("object"), json!("array"), json!([]), json!({}), json!(true),
                json!({"a": {"type": "string"}}), json!([{"type": "integer"}]), json!(["a"]), json!({"type": "object"}),
            ]),
            0..8,
        ),
    ) {
        let openapi: BTreeMap<_, _> = keys.into_iter().collect();
        let openapi = json!(openapi);
        if let Ok(schema) = read(&openapi, PATH) {
            prop_assert_eq!(read(&to_openapi(&schema), PATH), Ok(schema));
        }
        let _ = read(&with_spec(openapi), PATH);
    }
}
