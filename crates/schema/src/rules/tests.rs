//! Tests of rules on objects.

use serde_json::{Value, json};

use super::*;
use crate::read;

const PATH: &str = "spec.versions[0].schema.openAPIV3Schema";

fn schema_of(spec: &Value) -> Schema {
    read(&json!({"type": "object", "properties": {"spec": spec}}), PATH).unwrap()
}

/// Returns the problems of a `spec`, or of a change from `old`.
fn problems_of(schema: &Schema, old: Option<&Value>, new: &Value) -> Vec<String> {
    let object = |spec: &Value| {
        let object =
            json!({"apiVersion": "lab.io/v1", "kind": "Lab", "metadata": {"name": "first"}, "spec": spec});
        object.as_object().cloned().unwrap()
    };
    let old = old.map(object);
    check_rules(schema, old, object(new)).iter().map(ToString::to_string).collect()
}

fn problems(spec: &Value) -> Vec<String> {
    rule_problems(&schema_of(spec), PATH).causes.iter().map(ToString::to_string).collect()
}

/// Rules as in well-known operators: an old value, a new value, and whether the change is allowed.
#[test]
fn rules_of_well_known_operators_work() {
    let text = json!({"type": "string"});
    let number = json!({"type": "integer"});
    let cases = [
        // Exactly one of several, as for issuers and sources of routes.
        (
            json!({"type": "object", "properties": {"acme": {"type": "object", "properties": {"url": text}}, "ca": {"type": "object", "properties": {"secret": text}}}}),
            "[has(self.acme), has(self.ca)].filter(given, given).size() == 1",
            json!(null),
            json!({"ca": {"secret": "a"}}),
            json!({"ca": {}, "acme": {}}),
        ),
        // Immutable fields.
        (
            json!({"type": "object", "properties": {"class": text}}),
            "self.class == oldSelf.class",
            json!({"class": "a"}),
            json!({"class": "a", "x": 1}),
            json!({"class": "b"}),
        ),
        // Fields that cannot be removed once set.
        (
            json!({"type": "object", "properties": {"host": text, "port": number}}),
            "!has(oldSelf.host) || has(self.host)",
            json!({"host": "a"}),
            json!({"host": "b"}),
            json!({"port": 1}),
        ),
        // Limits by another field, as of replicas.
        (
            json!({"type": "object", "properties": {"min": number, "max": number, "now": number}}),
            "self.min <= self.now && self.now <= self.max",
            json!(null),
            json!({"min": 1, "now": 2, "max": 3}),
            json!({"min": 1, "now": 4, "max": 3}),
        ),
        // A field required by another one.
        (
            json!({"type": "object", "properties": {"type": text, "redirect": {"type": "object", "properties": {"to": text}}}}),
            "self.type == 'Redirect' ? has(self.redirect) : !has(self.redirect)",
            json!(null),
            json!({"type": "Redirect", "redirect": {"to": "x"}}),
            json!({"type": "Rewrite", "redirect": {"to": "x"}}),
        ),
        // Unique names of listeners.
        (
            json!({"type": "object", "properties": {"listeners": {"type": "array", "items": {"type": "object", "properties": {"name": text, "port": number}}}}}),
            "self.listeners.all(one, self.listeners.exists_one(two, one.name == two.name))",
            json!(null),
            json!({"listeners": [{"name": "a"}, {"name": "b"}]}),
            json!({"listeners": [{"name": "a"}, {"name": "a"}]}),
        ),
        // Networks that contain each other.
        (
            json!({"type": "object", "properties": {"pods": text, "gateway": text}}),
            "isCIDR(self.pods) && cidr(self.pods).containsIP(self.gateway)",
            json!(null),
            json!({"pods": "10.1.0.0/16", "gateway": "10.1.0.1"}),
            json!({"pods": "10.1.0.0/16", "gateway": "10.2.0.1"}),
        ),
        // Versions that only increase.
        (
            json!({"type": "object", "properties": {"version": text}}),
            "semver(self.version).compareTo(semver(oldSelf.version)) >= 0",
            json!({"version": "1.9.0"}),
            json!({"version": "1.10.0"}),
            json!({"version": "1.8.5"}),
        ),
        // Quantities in any unit.
        (
            json!({"type": "object", "properties": {"size": {"x-kubernetes-int-or-string": true}, "limit": text}}),
            "quantity(string(self.size)).compareTo(quantity(self.limit)) <= 0",
            json!(null),
            json!({"size": "1024Mi", "limit": "1Gi"}),
            json!({"size": 2_000_000_000, "limit": "1Gi"}),
        ),
        // Either a number or a percentage.
        (
            json!({"type": "object", "properties": {"surge": {"x-kubernetes-int-or-string": true}}}),
            "type(self.surge) == string ? self.surge.matches('^[0-9]+%$') : self.surge >= 0",
            json!(null),
            json!({"surge": "25%"}),
            json!({"surge": "25"}),
        ),
        // Durations and times by their formats.
        (
            json!({"type": "object", "properties": {"every": {"type": "string", "format": "duration"}, "from": {"type": "string", "format": "date-time"}}}),
            "self.every >= duration('1m') && self.from.getFullYear() >= 2024",
            json!(null),
            json!({"every": "1h", "from": "2024-01-01T00:00:00Z"}),
            json!({"every": "30s", "from": "2024-01-01T00:00:00Z"}),
        ),
        // Keys of a map.
        (
            json!({"type": "object", "properties": {"selector": {"type": "object", "additionalProperties": text}}}),
            "self.selector.all(key, key.startsWith('lab.io/')) && !self.selector.exists(k, v, v == '')",
            json!(null),
            json!({"selector": {"lab.io/a": "1"}}),
            json!({"selector": {"other.io/a": "1"}}),
        ),
        // Names that are no identifiers.
        (
            json!({"type": "object", "properties": {"max-size": number, "a.b/c": number, "namespace": text}}),
            "self.max__dash__size > self.a__dot__b__slash__c && self.__namespace__ != ''",
            json!(null),
            json!({"max-size": 2, "a.b/c": 1, "namespace": "x"}),
            json!({"max-size": 1, "a.b/c": 1, "namespace": "x"}),
        ),
        // Sets are equal in any order.
        (
            json!({"type": "object", "properties": {"zones": {"type": "array", "x-kubernetes-list-type": "set", "items": text}}}),
            "self.zones == oldSelf.zones",
            json!({"zones": ["a", "b"]}),
            json!({"zones": ["b", "a"]}),
            json!({"zones": ["a", "c"]}),
        ),
        // Optional fields without conditions.
        (
            json!({"type": "object", "properties": {"tls": {"type": "object", "properties": {"mode": text, "certs": {"type": "array", "items": text}}}}}),
            "self.?tls.mode.orValue('Terminate') != 'Terminate' || self.?tls.certs.orValue([]).size() > 0",
            json!(null),
            json!({"tls": {"certs": ["a"]}}),
            json!({"tls": {"mode": "Terminate"}}),
        ),
        // Bytes and URLs.
        (
            json!({"type": "object", "properties": {"bundle": {"type": "string", "format": "byte"}, "server": text}}),
            "self.bundle.size() > 0 && isURL(self.server) && url(self.server).getScheme() == 'https'",
            json!(null),
            json!({"bundle": "YWJj", "server": "https://a.example"}),
            json!({"bundle": "YWJj", "server": "http://a.example"}),
        ),
        // Numbers have their declared type, however they are written.
        (
            json!({"type": "object", "properties": {"share": {"type": "number"}}}),
            "self.share <= 1.0",
            json!(null),
            json!({"share": 1}),
            json!({"share": 1.5}),
        ),
    ];
    for (mut spec, rule, old, good, bad) in cases {
        spec["x-kubernetes-validations"] = json!([{"rule": rule}]);
        assert_eq!(problems(&spec), Vec::<String>::new(), "{rule}");
        let schema = schema_of(&spec);
        let old = Some(&old).filter(|old| !old.is_null());
        assert_eq!(problems_of(&schema, old, &good), Vec::<String>::new(), "{rule}: {good}");
        let expected = format!("spec: Invalid value: \"object\": failed rule: {rule}");
        assert_eq!(problems_of(&schema, old, &bad), [expected], "{bad}");
    }
}

#[test]
fn rules_work_at_every_level() {
    let rule = |rule: &str, message: &str| json!([{"rule": rule, "message": message}]);
    let spec = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "x-kubernetes-validations": rule("self != 'bad'", "a bad name")},
            "list": {"type": "array", "x-kubernetes-validations": rule("self.size() < 3", "too many"),
                "items": {"type": "integer", "x-kubernetes-validations": rule("self > 0", "too small")}},
            "map": {"type": "object",
                "additionalProperties": {"type": "boolean", "x-kubernetes-validations": rule("self", "must be")}}}});
    let mut whole = json!({"type": "object", "properties": {"spec": spec}});
    whole["x-kubernetes-validations"] = rule(
        "self.metadata.name == 'second' && self.kind == 'Lab' && !has(self.metadata.generateName)",
        "another name",
    );
    let schema = read(&whole, PATH).unwrap();
    assert_eq!(rule_problems(&schema, PATH), RuleProblems::default());
    let new = json!({"name": "bad", "list": [1, 0, 2], "map": {"a": true, "b": false}});
    assert_eq!(
        problems_of(&schema, None, &new),
        [
            "<nil>: Invalid value: \"object\": another name",
            "spec.list: Invalid value: \"array\": too many",
            "spec.list[1]: Invalid value: \"integer\": too small",
            "spec.map[b]: Invalid value: \"boolean\": must be",
            "spec.name: Invalid value: \"string\": a bad name",
        ]
    );
    let refused = read(
        &json!({"type": "object", "x-kubernetes-validations": rule("self.metadata.labels.size() == 0", "")}),
        PATH,
    );
    let messages = rule_problems(&refused.unwrap(), PATH).causes[0].to_string();
    assert!(messages.contains("undefined field 'labels'"), "{messages}");
}

#[test]
fn unchanged_values_are_not_checked() {
    let spec = json!({"type": "object", "properties": {
        "size": {"type": "integer", "x-kubernetes-validations": [{"rule": "self < 10"}]},
        "level": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "never less"}]},
        "note": {"type": "string"}}});
    let schema = schema_of(&spec);
    let old = json!({"size": 20, "level": 3});
    assert_eq!(problems_of(&schema, Some(&old), &json!({"size": 20, "level": 3, "note": "x"})), [""; 0]);
    assert_eq!(problems_of(&schema, Some(&old), &json!({"size": 21, "level": 3})).len(), 1);
    assert_eq!(
        problems_of(&schema, Some(&old), &json!({"size": 20, "level": 2})),
        ["spec.level: Invalid value: \"integer\": never less"]
    );
    assert_eq!(problems_of(&schema, None, &json!({"level": 2})), [""; 0], "nothing was before");
}

#[test]
fn items_of_a_map_are_matched_by_keys() {
    let spec = json!({"type": "object", "properties": {"ports": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"],
            "properties": {"name": {"type": "string"}, "port": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": "self.port == oldSelf.port", "fieldPath": ".port",
                "reason": "FieldValueForbidden", "message": "a port stays"}]}}}});
    assert_eq!(problems(&spec), [""; 0]);
    let schema = schema_of(&spec);
    let old = json!({"ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]});
    let turned =
        json!({"ports": [{"name": "b", "port": 2}, {"name": "c", "port": 9}, {"name": "a", "port": 1}]});
    assert_eq!(problems_of(&schema, Some(&old), &turned), [""; 0]);
    let changed = json!({"ports": [{"name": "b", "port": 3}]});
    assert_eq!(problems_of(&schema, Some(&old), &changed), ["spec.ports[0].port: Forbidden: a port stays"]);
    let mut atomic = spec;
    atomic["properties"]["ports"]["x-kubernetes-list-type"] = json!("atomic");
    atomic["properties"]["ports"].as_object_mut().unwrap().remove("x-kubernetes-list-map-keys");
    let messages = problems(&atomic);
    assert!(
        messages[0].contains("oldSelf cannot be used on the uncorrelatable portion of the schema"),
        "{messages:?}"
    );
}

#[test]
fn old_self_may_be_optional() {
    let spec = json!({"type": "object", "properties": {"size": {"type": "integer", "x-kubernetes-validations": [
        {"rule": "oldSelf.hasValue() || self == 1", "optionalOldSelf": true, "message": "begins with 1"},
        {"rule": "self - oldSelf.orValue(0) <= 1", "optionalOldSelf": true, "message": "one at a time"}]}}});
    assert_eq!(problems(&spec), [""; 0]);
    let schema = schema_of(&spec);
    assert_eq!(problems_of(&schema, None, &json!({"size": 1})), [""; 0]);
    assert_eq!(problems_of(&schema, None, &json!({"size": 2})).len(), 2);
    assert_eq!(problems_of(&schema, Some(&json!({"size": 1})), &json!({"size": 2})), [""; 0]);
    assert_eq!(problems_of(&schema, Some(&json!({"size": 1})), &json!({"size": 3})).len(), 1);
}

#[test]
fn failed_message_expressions_are_replaced() {
    let spec = |message: &str| {
        json!({"type": "object", "properties": {"size": {"type": "integer"}, "list": {"type": "array", "items": {"type": "integer"}}},
            "x-kubernetes-validations": [{"rule": "self.size < 3", "message": "too large", "messageExpression": message}]})
    };
    let messages =
        |message: &str| problems_of(&schema_of(&spec(message)), None, &json!({"size": 5, "list": []}));
    assert_eq!(
        messages("'size ' + string(self.size) + ' is more than 2'"),
        ["spec: Invalid value: \"object\": size 5 is more than 2"]
    );
    for message in ["string(self.list[0])", "'  '", "'a\\nb'"] {
        assert_eq!(messages(message), ["spec: Invalid value: \"object\": too large"], "{message}");
    }
    assert!(problems(&spec("self.size"))[0].contains("messageExpression must evaluate to a string"));
}

#[test]
fn errors_are_worded_as_in_kubernetes() {
    let spec = |rule: &str| {
        json!({"type": "object", "properties": {"list": {"type": "array", "items": {"type": "integer"}},
            "any": {"x-kubernetes-int-or-string": true}}, "x-kubernetes-validations": [{"rule": rule}]})
    };
    let many: Vec<u32> = (0..3000).collect();
    for (rule, value, expected) in [
        (
            "self.list[3] == 1",
            json!({"list": []}),
            "index out of bounds: 3 evaluating rule: self.list[3] == 1",
        ),
        ("self.list.size() == 0", json!({}), "no such key: list evaluating rule: self.list.size() == 0"),
        (
            "self.any > 1",
            json!({"any": "x"}),
            "'no such overload: _>_(string, int)': call arguments did not match a supported operator, function or macro signature for rule: self.any > 1",
        ),
        (
            "self.list.all(a, self.list.all(b, self.list.exists(c, a + b == c)))",
            json!({"list": many}),
            "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: self.list.all(a, self.list.all(b, self.list.exists(c, a + b == c)))",
        ),
    ] {
        let messages = problems_of(&schema_of(&spec(rule)), None, &value);
        assert_eq!(messages, [format!("spec: Invalid value: \"object\": {expected}")]);
    }
}

#[test]
fn rules_for_many_items_share_one_budget() {
    let spec = json!({"type": "object", "properties": {"lists": {"type": "array", "items": {
        "type": "array", "items": {"type": "integer"},
        "x-kubernetes-validations": [{"rule": "self.all(a, self.all(b, a + b >= 0))"}]}}}});
    let list: Vec<u32> = (0..200).collect();
    let messages = problems_of(&schema_of(&spec), None, &json!({"lists": vec![list; 1000]}));
    assert_eq!(messages.len(), 1);
    assert!(messages[0].contains("validation failed due to running out of cost budget"), "{messages:?}");
}

#[test]
fn invalid_rule_is_reported_with_its_path() {
    let spec = |rule: Value| json!({"type": "object", "properties": {"a": {"type": "string"}}, "x-kubernetes-validations": [rule]});
    let at = format!("{PATH}.properties[spec].x-kubernetes-validations[0]");
    for (rule, keyword, expected) in [
        (
            json!({"rule": "self.b == 1"}),
            "rule",
            "Invalid value: \"self.b == 1\": compilation failed: ERROR: <input>:1:5: undefined field 'b'",
        ),
        (json!({"rule": "self.a"}), "rule", "cel expression must evaluate to a bool"),
        (json!({"rule": ""}), "rule", "Required value: rule is not specified"),
        (json!({"rule": "true", "message": "a\nb"}), "message", "message must not contain line breaks"),
        (
            json!({"rule": "true &&\ntrue"}),
            "message",
            "Required value: message must be specified if rule contains line breaks",
        ),
        (json!({"rule": "true", "reason": "Why"}), "reason", "Unsupported value: \"Why\""),
        (
            json!({"rule": "true", "fieldPath": ".b"}),
            "fieldPath",
            "fieldPath must be a valid path: does not refer to a valid field",
        ),
        (
            json!({"rule": "true", "optionalOldSelf": true}),
            "optionalOldSelf",
            "may not be set if oldSelf is not used in rule",
        ),
    ] {
        let messages = problems(&spec(rule));
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(
            messages[0].starts_with(&format!("{at}.{keyword}: ")) && messages[0].contains(expected),
            "{messages:?}"
        );
    }
    let inner = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}},
        "anyOf": [{"x-kubernetes-validations": [{"rule": "true"}]}]}}});
    assert!(read(&inner, PATH).unwrap_err()[0].field.ends_with("anyOf[0].x-kubernetes-validations"));
}

#[test]
fn unsupported_rule_is_reported_and_not_applied() {
    let spec = json!({"type": "object", "properties": {"a": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "math.greatest(self.a, 3) == 3"}, {"rule": "self.a > 0"}]});
    let schema = schema_of(&spec);
    let problems = rule_problems(&schema, PATH);
    assert_eq!(problems.causes, []);
    assert_eq!(
        problems.lacking,
        [format!(
            "{PATH}.properties[spec].x-kubernetes-validations[0].rule: \"math.greatest(self.a, 3) == 3\" is not evaluated here: math.greatest"
        )]
    );
    assert_eq!(problems_of(&schema, None, &json!({"a": 9})), [""; 0]);
    assert_eq!(problems_of(&schema, None, &json!({"a": 0})).len(), 1);
}

#[test]
fn fields_of_an_atomic_value_are_not_correlated() {
    let rule = json!([{"rule": "self == oldSelf"}]);
    let text = json!({"type": "string", "x-kubernetes-validations": rule});
    let keyed = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"],
        "items": {"type": "object", "required": ["a"], "properties": {"a": text}}});
    for field in [
        json!({"type": "object", "properties": {"a": text}}),
        json!({"type": "object", "additionalProperties": text}),
        json!({"type": "object", "properties": {"list": keyed}}),
    ] {
        assert_eq!(problems(&field), [""; 0]);
        let mut atomic = field;
        atomic["x-kubernetes-map-type"] = json!("atomic");
        let messages = problems(&atomic);
        assert!(messages[0].contains("oldSelf cannot be used on the uncorrelatable portion"), "{messages:?}");
        atomic.as_object_mut().unwrap().insert("x-kubernetes-validations".to_owned(), rule.clone());
        assert_eq!(problems(&atomic).len(), 1, "the whole of it can be compared");
    }
}

#[test]
fn unevaluated_rules_count_towards_the_limit() {
    let spec = |rules: usize| {
        let rules = vec![json!({"rule": "self >= 0"}); rules];
        json!({"type": "object", "properties": {"list": {"type": "array",
            "items": {"type": "integer", "x-kubernetes-validations": rules}}}})
    };
    assert_eq!(problems(&spec(256)), [""; 0]);
    let at = format!("{PATH}.properties[spec].properties[list].items.x-kubernetes-validations");
    assert_eq!(problems(&spec(257)), [format!("{at}: Too many: 257: must have at most 256 items")]);
    // Nothing changes, so no rule is evaluated.
    let same = |items: usize| {
        let list = json!({"list": vec![1; items]});
        problems_of(&schema_of(&spec(200)), Some(&list), &list)
    };
    assert_eq!(same(40_000), [""; 0]);
    let messages = same(60_000);
    assert_eq!(messages.len(), 1);
    assert!(messages[0].contains("validation failed due to running out of cost budget"), "{messages:?}");
}

#[test]
fn rules_at_unevaluated_positions_are_reported() {
    let rule = |rule: &str| json!([{"rule": rule}]);
    let name = json!({"type": "string", "x-kubernetes-validations": rule("self != 'a'")});
    let schema = json!({"type": "object", "properties": {
        "metadata": {"type": "object", "properties": {"name": name}},
        "spec": {"type": "object", "properties": {"a": {"type": "string"}},
            "allOf": [{"x-kubernetes-validations": rule("has(self.a)")},
                {"properties": {"a": {"x-kubernetes-validations": rule("self != ''")}}}]}}});
    let read = read(&schema, PATH).unwrap();
    let problems = rule_problems(&read, PATH);
    assert_eq!(problems.causes, []);
    let name = "properties[metadata].properties[name].x-kubernetes-validations[0].rule: \"self != 'a'\"";
    let any = "properties[spec].allOf[0].x-kubernetes-validations[0].rule: \"has(self.a)\"";
    let field = "properties[spec].allOf[1].properties[a].x-kubernetes-validations[0].rule: \"self != ''\"";
    let why = "rules of `metadata`; hint: use rules of the whole object";
    assert_eq!(
        problems.lacking,
        [(name, why), (any, "rules within `allOf`"), (field, "rules within `allOf`")]
            .map(|(at, why)| format!("{PATH}.{at} is not evaluated here: {why}"))
    );
    assert_eq!(problems_of(&read, None, &json!({})), [""; 0]);
    let shown = crate::to_openapi(&read).to_string();
    assert!(!shown.contains("x-kubernetes-validations"), "{shown}");
}

#[test]
fn defaults_must_comply_with_rules() {
    let port = |default: i64| {
        json!({"type": "integer", "default": default,
            "x-kubernetes-validations": [{"rule": "self > 1024", "message": "needs root"}]})
    };
    let server = |default: serde_json::Value, port: serde_json::Value| {
        json!({"type": "object", "properties": {"servers": {"type": "array", "items": {"type": "object", "default": default,
            "x-kubernetes-validations": [{"rule": "has(self.port)"}],
            "properties": {"port": port}}}}})
    };
    let problems = |spec: &Value| {
        check_defaults(&schema_of(spec), PATH).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // Nested defaults are applied before rules are evaluated.
    assert_eq!(problems(&server(json!({}), port(8080))), [""; 0]);
    let at = format!("{PATH}.properties[spec].properties[servers].items");
    let root = |at: &str| format!("{at}: Invalid value: \"integer\": needs root");
    assert_eq!(
        problems(&server(json!({"port": 22}), port(80))),
        [root(&format!("{at}.default.port")), root(&format!("{at}.properties[port].default"))]
    );
    let missing = problems(&server(json!({}), json!({"type": "integer"})));
    assert_eq!(missing, [format!("{at}.default: Invalid value: \"object\": failed rule: has(self.port)")]);
    // All of them share the cost limit of one object.
    let heavy = json!({"type": "array", "items": {"type": "integer"}, "default": vec![1; 900],
        "x-kubernetes-validations": [{"rule": "self.all(a, self.all(b, a == b))"}]});
    let many: serde_json::Map<_, _> = (0..40).map(|number| (format!("f{number}"), heavy.clone())).collect();
    let messages = problems(&json!({"type": "object", "properties": many}));
    assert!(messages.last().unwrap().contains("cost"), "{messages:?}");
    assert!(messages.len() < 40, "{}", messages.len());
}
