use proptest::prelude::*;
use serde_json::{Value, json as value};

use super::super::merge::tests::documents;
use super::*;
use edgesync_fuzz::fuzz;

const LIMIT: usize = 1 << 20;

fn patched(document: &Value, patch: &Value) -> Result<Value> {
    json(document.clone(), patch, LIMIT)
}

/// Returns the cause of the refusal.
fn cause(document: &Value, patch: &Value) -> String {
    let status = patched(document, patch).unwrap_err();
    assert_eq!((status.code, status.reason), (422, Some(Reason::Invalid)), "{}", status.message);
    status.details.unwrap().causes.iter().map(ToString::to_string).collect()
}

fn malformed(patch: &Value) -> String {
    let status = patched(&value!({}), patch).unwrap_err();
    assert_eq!(status.code, 400, "{patch}: {status}");
    status.message
}

#[test]
fn successful_cases_of_the_rfc_succeed() {
    let cases = [
        // A.1 to A.7: add, remove and replace, in objects and lists
        (
            value!({"foo": "bar"}),
            value!([{"op": "add", "path": "/baz", "value": "qux"}]),
            value!({"baz": "qux", "foo": "bar"}),
        ),
        (
            value!({"foo": ["bar", "baz"]}),
            value!([{"op": "add", "path": "/foo/1", "value": "qux"}]),
            value!({"foo": ["bar", "qux", "baz"]}),
        ),
        (
            value!({"baz": "qux", "foo": "bar"}),
            value!([{"op": "remove", "path": "/baz"}]),
            value!({"foo": "bar"}),
        ),
        (
            value!({"foo": ["bar", "qux", "baz"]}),
            value!([{"op": "remove", "path": "/foo/1"}]),
            value!({"foo": ["bar", "baz"]}),
        ),
        (
            value!({"baz": "qux", "foo": "bar"}),
            value!([{"op": "replace", "path": "/baz", "value": "boo"}]),
            value!({"baz": "boo", "foo": "bar"}),
        ),
        (
            value!({"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}}),
            value!([{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}]),
            value!({"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}}),
        ),
        (
            value!({"foo": ["all", "grass", "cows", "eat"]}),
            value!([{"op": "move", "from": "/foo/1", "path": "/foo/3"}]),
            value!({"foo": ["all", "cows", "eat", "grass"]}),
        ),
        // A.8: successful tests
        (
            value!({"baz": "qux", "foo": ["a", 2, "c"]}),
            value!([{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}]),
            value!({"baz": "qux", "foo": ["a", 2, "c"]}),
        ),
        // A.10, A.11: a nested object, an unknown member
        (
            value!({"foo": "bar"}),
            value!([{"op": "add", "path": "/child", "value": {"grandchild": {}}, "xyz": 123}]),
            value!({"foo": "bar", "child": {"grandchild": {}}}),
        ),
        // A.14: escapes
        (
            value!({"/": 9, "~1": 10}),
            value!([{"op": "test", "path": "/~01", "value": 10}, {"op": "test", "path": "/~1", "value": 9}]),
            value!({"/": 9, "~1": 10}),
        ),
        // A.16: a list into a list
        (
            value!({"foo": ["bar"]}),
            value!([{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}]),
            value!({"foo": ["bar", ["abc", "def"]]}),
        ),
        // operations missing in the appendix
        (
            value!({"a": {"b": 1}}),
            value!([{"op": "copy", "from": "/a", "path": "/c"}]),
            value!({"a": {"b": 1}, "c": {"b": 1}}),
        ),
        (value!({"a": 1}), value!([{"op": "replace", "path": "", "value": [1]}]), value!([1])),
        (value!({"a": 1}), value!([{"op": "add", "path": "", "value": {}}]), value!({})),
        (value!({"": {"": 1}}), value!([{"op": "remove", "path": "//"}]), value!({"": {}})),
        (value!({"a": 1}), value!([{"op": "move", "from": "/a", "path": "/a"}]), value!({"a": 1})),
        (
            value!({"a": [1.0, {"b": 2}]}),
            value!([{"op": "test", "path": "/a", "value": [1, {"b": 2.0}]}]),
            value!({"a": [1.0, {"b": 2}]}),
        ),
        (value!({}), value!([{"op": "test", "path": "/a", "value": null}]), value!({})),
    ];
    for (document, patch, expected) in cases {
        assert_eq!(patched(&document, &patch).unwrap(), expected, "{document} with {patch}");
    }
}

#[test]
fn failing_cases_of_the_rfc_name_operation_and_path() {
    // A.9: a failed test
    let test = value!([{"op": "test", "path": "/baz", "value": "bar"}]);
    assert_eq!(cause(&value!({"baz": "qux"}), &test), "patch[0]: the test failed: '/baz' has another value");
    // A.12: a missing parent
    let nowhere = value!([{"op": "add", "path": "/a/b", "value": 1}]);
    let expected = "patch[0]: the parent of '/a/b' does not exist";
    assert_eq!(cause(&value!({"q": 1}), &nowhere), expected);
    // A.15: a number is not a string
    let text = value!([{"op": "test", "path": "/~01", "value": "10"}]);
    assert_eq!(
        cause(&value!({"/": 9, "~1": 10}), &text),
        "patch[0]: the test failed: '/~01' has another value"
    );
}

#[test]
fn operations_on_missing_values_are_refused() {
    let document = value!({"a": [1, 2], "n": 1});
    for path in ["/b", "/a/2", "/a/-", "/a/01", "/a/+1", "/a/x", "/n/x", "/a/99999999999999999999999"] {
        for operation in [
            value!({"op": "remove", "path": path}),
            value!({"op": "replace", "path": path, "value": 1}),
            value!({"op": "test", "path": path, "value": 1}),
            value!({"op": "move", "from": path, "path": "/c"}),
            value!({"op": "copy", "from": path, "path": "/c"}),
        ] {
            assert!(!cause(&document, &value!([operation])).is_empty());
        }
    }
    for path in ["/a/3", "/a/-1", "/a/x", "/n/x", "/b/c"] {
        assert!(!cause(&document, &value!([{"op": "add", "path": path, "value": 1}])).is_empty());
    }
}

#[test]
fn value_cannot_move_into_itself() {
    let patch = value!([{"op": "move", "from": "/a", "path": "/a/b"}]);
    assert_eq!(cause(&value!({"a": {}}), &patch), "patch[0]: '/a' cannot be moved into itself");
}

#[test]
fn failed_operation_is_named_by_its_index() {
    let patch = value!([{"op": "add", "path": "/a", "value": 1}, {"op": "remove", "path": "/b"}]);
    assert_eq!(cause(&value!({}), &patch), "patch[1]: '/b' does not exist");
}

#[test]
fn malformed_patch_is_a_bad_request() {
    assert_eq!(malformed(&value!({"op": "add"})), "a JSON patch must be a list of operations");
    let cases = [
        (value!(1), "it must have the field `op`"),
        (value!({"path": "/a"}), "it must have the field `op`"),
        (value!({"op": 1}), "`op` must be a string"),
        (value!({"op": "Add", "path": "/a", "value": 1}), "`op` must be add, remove"),
        (value!({"op": "add", "value": 1}), "it must have the field `path`"),
        (value!({"op": "add", "path": "/a"}), "it must have the field `value`"),
        (value!({"op": "move", "path": "/a"}), "it must have the field `from`"),
        (value!({"op": "remove", "path": "a"}), "'a' must be a JSON pointer"),
        (value!({"op": "remove", "path": "/a~2"}), "'/a~2' must be a JSON pointer"),
        (value!({"op": "remove", "path": "/a~"}), "'/a~' must be a JSON pointer"),
        (value!({"op": "remove", "path": null}), "`path` must be a string"),
    ];
    for (operation, why) in cases {
        let message = malformed(&value!([operation]));
        assert!(message.starts_with("operation 0 of the JSON patch is malformed: "), "{message}");
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn number_of_operations_is_limited() {
    let operation = value!({"op": "add", "path": "/a", "value": 1});
    let mut operations = vec![operation.clone(); MAX_OPERATIONS];
    assert_eq!(patched(&value!({}), &Value::from(operations.clone())).unwrap(), value!({"a": 1}));
    operations.push(operation);
    assert_eq!(patched(&value!({}), &Value::from(operations)).unwrap_err().code, 413);
}

#[test]
fn copies_are_limited() {
    let double = value!({"op": "copy", "from": "/a", "path": "/a/-"});
    let document = value!({"a": ["0123456789"]});
    let status = json(document.clone(), &Value::from(vec![double.clone(); 40]), 4096).unwrap_err();
    assert_eq!((status.code, &*status.message), (413, "the JSON patch must not copy more than 4096 bytes"));
    assert!(json(document, &Value::from(vec![double; 6]), 4096).is_ok());
}

#[test]
fn nesting_is_limited() {
    let deeper = value!({"op": "copy", "from": "/a", "path": "/a/a"});
    let reason = cause(&value!({"a": {}}), &Value::from(vec![deeper; MAX_DEPTH]));
    assert!(reason.ends_with("must not nest deeper than 100 levels"), "{reason}");
    let mut deep = value!({});
    for _ in 1..MAX_DEPTH {
        deep = value!({"a": deep});
    }
    assert!(patched(&value!({}), &value!([{"op": "add", "path": "", "value": deep}])).is_ok());
    for operation in [
        value!({"op": "add", "path": "/b", "value": deep}),
        value!({"op": "replace", "path": "/b", "value": deep}),
    ] {
        assert!(cause(&value!({"b": 1}), &value!([operation])).contains("nest deeper"));
    }
    let under = value!([{"op": "move", "from": "/a", "path": "/b/c"}]);
    assert!(cause(&value!({"a": deep["a"], "b": {}}), &under).contains("nest deeper"));
}

#[test]
fn moves_are_limited() {
    let list = Value::from(vec![Value::from(0); 500_000]);
    let turn = value!({"op": "move", "from": "/a/0", "path": "/a/-"});
    let status = json(value!({"a": list}), &Value::from(vec![turn; 1_000]), LIMIT).unwrap_err();
    assert_eq!((status.code, &*status.message), (413, "the JSON patch moves too much"));
}

fn pointers() -> impl Strategy<Value = String> {
    let token = prop_oneof![6 => "[a-d]", 3 => "[0-3]", 1 => Just("-".to_owned()), 1 => "[~0/1é]{0,3}"];
    prop::collection::vec(token, 0..5)
        .prop_map(|tokens| tokens.iter().map(|token| format!("/{token}")).collect())
}

fn operations() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec!["add", "remove", "replace", "move", "copy", "test"]);
    (names, pointers(), pointers(), documents())
        .prop_map(|(op, path, from, new)| value!({"op": op, "path": path, "from": from, "value": new}))
}

#[test]
fn patches_never_panic_fuzzed() {
    let document = value!({"metadata": {"name": "a", "labels": {"a/b": "c~d"}}, "spec": {"list": [1, {"name": "x"}, []]}});
    let samples = [
        r#"[{"op":"add","path":"/spec/list/-","value":{"a":1}},{"op":"remove","path":"/spec/list/0"}]"#,
        r#"[{"op":"test","path":"/metadata/labels/a~1b","value":"c~d"},{"op":"copy","from":"/spec","path":"/spec/x"}]"#,
        r#"[{"op":"move","from":"/spec/list/1","path":"/metadata/y"},{"op":"replace","path":"","value":{}}]"#,
        r#"{"spec":{"list":null,"$patch":"replace"},"metadata":{"labels":{"x":"y"}}}"#,
    ];
    fuzz("patch", &samples.map(|text| text.as_bytes().to_vec()), |bytes| {
        if let Ok(patch) = serde_json::from_slice::<Value>(bytes) {
            let _ = patched(&document, &patch);
            let _ = super::super::merge::merge(document.clone(), &patch);
        }
    });
}

proptest! {
    #[test]
    fn operations_never_panic_or_exceed_limits(
        document in documents(),
        patch in prop::collection::vec(operations(), 0..40),
    ) {
        let added: usize = patch.iter().map(|one| measure(one).bytes).sum();
        let before = measure(&document).bytes;
        let mut document = document;
        // Run one by one, so that a failing operation does not hide the others.
        for one in patch {
            let next = json(document.clone(), &Value::from(vec![one]), 256);
            document = next.unwrap_or(document);
            prop_assert!(measure(&document).depth <= MAX_DEPTH);
        }
        prop_assert!(measure(&document).bytes <= before + added + 40 * 300);
    }

    #[test]
    fn added_value_exists_until_removed(document in documents(), name in "[a-f~/]{1,3}", new in documents()) {
        let path = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        let add = value!([
            {"op": "add", "path": path, "value": new},
            {"op": "test", "path": path, "value": new},
        ]);
        let with = patched(&document, &add).unwrap();
        prop_assert_eq!(&with[&name], &new);
        let without = patched(&with, &value!([{"op": "remove", "path": path}])).unwrap();
        let mut expected = document;
        expected.as_object_mut().unwrap().remove(&name);
        prop_assert_eq!(without, expected);
    }

    #[test]
    fn any_json_is_handled(document in documents(), patch in documents(), text in ".{0,12}") {
        let _ = patched(&document, &value!([patch]));
        let _ = patched(&document, &value!([{"op": "remove", "path": text}, {"op": text}]));
    }
}
