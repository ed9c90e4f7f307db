//! Estimates of Kubernetes for the same schemas and rules.

use serde_json::{Value, json};

use super::super::rule_problems;
use crate::read;

const PATH: &str = "spec.versions[0].schema.openAPIV3Schema";

/// Returns the estimated cost of a rule on a schema, the spec of an object.
fn cost(schema: &Value, rule: &str) -> u64 {
    let mut spec = schema.clone();
    spec["x-kubernetes-validations"] = json!([{"rule": rule}]);
    let read = read(&json!({"type": "object", "properties": {"spec": spec}}), PATH).unwrap();
    let rules = read.properties["spec"].rules.as_ref().unwrap();
    assert!(rules.list[0].programs.is_some(), "{rule}");
    rules.list[0].costs.rule
}

/// Returns a schema with another keyword.
fn with(schema: &Value, keyword: &str, value: u64) -> Value {
    let mut schema = schema.clone();
    schema[keyword] = json!(value);
    schema
}

fn of(name: &str) -> Value {
    match name {
        "duration" | "date" | "date-time" | "byte" => json!({"type": "string", "format": name}),
        "int-or-string" => json!({"x-kubernetes-int-or-string": true}),
        name => json!({"type": name}),
    }
}

fn list(item: &Value) -> Value {
    json!({"type": "array", "items": item})
}

fn map(value: &Value) -> Value {
    json!({"type": "object", "additionalProperties": value})
}

fn pair() -> Value {
    json!({"type": "object", "required": ["required"],
        "properties": {"required": of("string"), "optional": of("string")}})
}

#[test]
fn lists_cost_as_much_as_fits_into_a_request() {
    let all = "self.all(x, true)";
    for (item, unbounded) in [
        (of("number"), 4_718_591),
        (of("string"), 3_145_727),
        (of("boolean"), 1_887_437),
        (list(&of("number")), 3_145_727),
        (pair(), 555_128),
        (of("int-or-string"), 4_718_591),
        (of("duration"), 2_359_295),
        (of("date"), 725_936),
        (of("date-time"), 428_963),
    ] {
        assert_eq!(cost(&list(&item), all), unbounded, "{item}");
        assert_eq!(cost(&with(&list(&item), "maxItems", 10), all), 32, "{item}");
    }
}

#[test]
fn maps_cost_as_much_as_fits_into_a_request() {
    let all = "self.all(x, true)";
    for (value, unbounded) in [
        (of("number"), 1_348_169),
        (of("string"), 1_179_647),
        (of("boolean"), 943_718),
        (of("int-or-string"), 1_348_169),
        (pair(), 428_963),
        (map(&of("number")), 1_179_647),
        (list(&of("number")), 1_179_647),
        (of("duration"), 1_048_577),
        (of("date"), 524_288),
        (of("date-time"), 349_526),
    ] {
        assert_eq!(cost(&map(&value), all), unbounded, "{value}");
        assert_eq!(cost(&with(&map(&value), "maxProperties", 25), all), 77, "{value}");
    }
}

#[test]
fn texts_cost_four_bytes_for_each_character() {
    for (rule, unbounded, length, bounded) in [
        ("self.contains('test')", 314_574, 10, 5),
        ("self.startsWith('test')", 2, 15, 2),
        ("size(self + 'hello') > size('hello')", 314_578, 4, 7),
        ("self.matches('x')", 314_574, 50, 22),
        ("''.matches('(((((((((())))))))))[0-9]')", 7, 10, 7),
        ("self.matches('')", 1, 100, 1),
        ("self == 'x'", 2, 0, 1),
        ("self.find('[0-9]+') == ''", 629_147, 10, 11),
        ("self.lowerAscii() == 'lower!'", 314_575, 10, 6),
    ] {
        assert_eq!(cost(&of("string"), rule), unbounded, "{rule}");
        assert_eq!(cost(&with(&of("string"), "maxLength", length), rule), bounded, "{rule}");
    }
    assert_eq!(cost(&of("byte"), "self == b'x'"), 2);
    assert_eq!(cost(&with(&of("byte"), "maxLength", 0), "self == b'x'"), 1);
    assert_eq!(cost(&of("int-or-string"), "isQuantity(self)"), 314_574);
    assert_eq!(cost(&with(&of("int-or-string"), "maxLength", 20), "isQuantity(self)"), 9);
    let choices = json!({"type": "string", "enum": ["A", "B", "C", "LongValue"]});
    assert_eq!(cost(&choices, "self.contains('A')"), 2);
    assert_eq!(cost(&with(&choices, "maxLength", 1000), "self.contains('A')"), 401);
}

#[test]
fn parts_of_values_have_the_sizes_of_their_schemas() {
    let nested = list(&map(&pair()));
    let keys = map(&of("string"));
    let two = json!({"type": "object", "properties": {"str": of("string"),
        "before": with(&of("string"), "maxLength", 2), "after": with(&of("string"), "maxLength", 4)}});
    for (schema, rule, expected) in [
        (list(&of("number")), "self[1] == 0.0", 2),
        (list(&of("string")), "self[1] == self[1]", 314_577),
        (list(&of("int-or-string")), "self[0] == 5", 3),
        (list(&of("boolean")), "self[0] == false", 2),
        (list(&pair()), "self[0] == null", 2),
        (list(&list(&of("number"))), "self[0][0] == -1.0", 3),
        (list(&map(&of("number"))), "self.all(x, x.y == 25.2)", 6_291_452),
        (list(&map(&of("number"))), "self[0].x > 2.0", 4),
        (list(&of("duration")), "self[0].getHours() == 2", 4),
        (list(&of("date")), "self[2].getDayOfMonth() == 13", 4),
        (list(&of("number")), "self.all(x, x == 0.0)", 6_291_454),
        (keys, "self.all(x, x.contains(self[x]))", 2_752_507),
        (nested, "self.all(x, x['y'].required == 'z')", 7_340_027),
        (map(&of("number")), "self['x'] == 0.0", 2),
        (map(&of("integer")), "oldSelf.size() == self.size()", 5),
        (map(&of("date-time")), "self['a'] == self['b']", 8),
        (list(&of("string")), "self.join(' ') == 'aa bb'", 329_853_068_905),
        (list(&of("string")), "self.isSorted() == true", 329_854_432_052),
        (two, "self.str.replace(self.before, self.after) == 'does not matter'", 629_154),
    ] {
        assert_eq!(cost(&schema, rule), expected, "{rule}");
    }
}

/// Returns the exceeded limits of a schema, without the prefix of their paths.
fn exceeded(spec: &Value) -> Vec<String> {
    let read = read(&json!({"type": "object", "properties": {"spec": spec}}), PATH).unwrap();
    let problems = rule_problems(&read, PATH);
    assert_eq!(problems.causes, []);
    let texts = problems.costs.iter().map(ToString::to_string);
    texts.map(|text| text.replace(PATH, "…")).collect()
}

#[test]
fn costs_count_for_each_value_of_an_object() {
    let rule = |rule: &str| json!([{"rule": rule}]);
    let mut text = with(&of("string"), "maxLength", 40);
    text["x-kubernetes-validations"] = rule("self.contains('abcdefghijklmnopqrst')");
    // 33 for each of 1,048,576 texts.
    let unbounded = exceeded(&list(&text));
    assert_eq!(unbounded.len(), 1, "{unbounded:?}");
    let hint = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)";
    assert_eq!(
        unbounded[0],
        format!(
            "….properties[spec].items.x-kubernetes-validations[0].rule: Forbidden: \
             estimated rule cost exceeds budget by factor of 3.5x {hint}"
        )
    );
    assert_eq!(exceeded(&with(&list(&text), "maxItems", 300_000)), [""; 0]);
    let near = exceeded(&with(&list(&text), "maxItems", 400_000));
    assert!(near[0].contains("by factor of 1.320000x"), "{near:?}");
    let maps = with(&map(&with(&list(&text), "maxItems", 1000)), "maxProperties", 1000);
    assert!(exceeded(&maps)[0].contains("by factor of 3.3x"), "{:?}", exceeded(&maps));
}

#[test]
fn expensive_messages_and_totals_are_refused() {
    let quadratic = "self.all(x, self.all(y, true))";
    let mut numbers = list(&of("number"));
    numbers["x-kubernetes-validations"] = json!([{"rule": quadratic}]);
    let refused = exceeded(&numbers);
    assert!(refused[0].contains("estimated rule cost exceeds budget by factor of more than 100x"));
    assert!(refused[1].contains("[0].rule: Forbidden: contributed to estimated rule cost total"));
    assert!(refused[2].starts_with("…: Forbidden: x-kubernetes-validations estimated rule cost total"));
    assert_eq!(refused.len(), 3, "{refused:?}");

    let mut text = of("string");
    let long = format!("self.matches('{}') ? 'a' : 'b'", "x".repeat(200));
    text["x-kubernetes-validations"] = json!([{"rule": "self != 'x'", "messageExpression": long}]);
    let refused = exceeded(&text);
    assert!(
        refused[0].contains("[0].messageExpression: Forbidden: estimated messageExpression cost exceeds")
    );
    assert_eq!(refused.len(), 1, "{refused:?}");

    // Each of them is within the limit.
    let mut many = list(&of("number"));
    let rules: Vec<Value> = (0..25).map(|_| json!({"rule": "self.all(x, true)"})).collect();
    many["x-kubernetes-validations"] = rules.into();
    let refused = exceeded(&many);
    assert_eq!(refused.len(), 4 + 1, "{refused:?}");
    assert!(refused[4].contains("by factor of 1.179648x"), "{refused:?}");
}

#[test]
fn names_of_objects_are_short() {
    let whole = json!({"type": "object", "properties": {"spec": {"type": "object"}},
        "x-kubernetes-validations": [{"rule": "self.metadata.name.contains('x')"}]});
    let read = read(&whole, PATH).unwrap();
    assert_eq!(read.rules.as_ref().unwrap().list[0].costs.rule, 3 + 102);
}
