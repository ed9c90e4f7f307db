#![allow(clippy::needless_pass_by_value, reason = "values are written as they come to hand")]

use proptest::prelude::*;
use serde_json::json;

use super::super::merge::merge as merge_patch;
use super::super::merge::tests::documents;
use super::*;
use edgesync_schema::{PatchStrategy, Type};

fn scalar() -> Schema {
    Schema { kind: Type::String, ..Schema::default() }
}

fn object<const N: usize>(fields: [(&str, Schema); N]) -> Schema {
    let properties = fields.into_iter().map(|(name, schema)| (name.into(), schema.into())).collect();
    Schema { kind: Type::Object, properties, ..Schema::default() }
}

fn list(items: Schema, patch: PatchStrategy) -> Schema {
    Schema { kind: Type::Array, items: Some(items.into()), patch, ..Schema::default() }
}

fn by(key: &str) -> PatchStrategy {
    PatchStrategy::Merge { key: Some(key.into()), retain_keys: false }
}

/// The fields of a Pod that the tests use.
fn pod() -> Schema {
    let port = object([("containerPort", Schema::default()), ("protocol", scalar())]);
    let env = object([("name", scalar()), ("value", scalar())]);
    let container = object([
        ("name", scalar()),
        ("image", scalar()),
        ("args", list(scalar(), PatchStrategy::Default)),
        ("env", list(env, by("name"))),
        ("ports", list(port, by("containerPort"))),
    ]);
    let finalizers = list(scalar(), PatchStrategy::Merge { key: None, retain_keys: false });
    object([
        ("metadata", object([("finalizers", finalizers)])),
        (
            "spec",
            object([
                ("containers", list(container, by("name"))),
                ("tolerations", list(object([]), PatchStrategy::Default)),
                ("strategy", object([])),
            ]),
        ),
    ])
}

fn patched(document: Value, patch: &Value) -> Value {
    strategic(document, patch, &pod()).unwrap()
}

fn refused(patch: Value) -> String {
    let document = json!({"spec": {"containers": [{"name": "a"}]}, "metadata": {"finalizers": ["x"]}});
    let status = strategic(document, &patch, &pod()).unwrap_err();
    assert_eq!(status.code, 400, "{status}");
    status.message
}

fn containers(value: Value) -> Value {
    json!({"spec": {"containers": value}})
}

/// A list of containers with these names.
fn named(names: &str) -> Value {
    containers(names.chars().map(|name| json!({"name": name.to_string()})).collect())
}

fn finalizers(names: &[&str]) -> Value {
    json!({"metadata": {"finalizers": names}})
}

#[test]
fn items_merge_by_key_and_new_ones_come_first() {
    let document = containers(json!([{"name": "a", "image": "1", "args": ["x", "y"]}, {"name": "b"}]));
    let patch = containers(json!([{"name": "c", "image": "3"}, {"name": "a", "image": "2", "args": ["z"]}]));
    let expected = json!([
        {"name": "c", "image": "3"},
        {"name": "a", "image": "2", "args": ["z"]},
        {"name": "b"},
    ]);
    assert_eq!(patched(document, &patch), containers(expected));
}

#[test]
fn nested_lists_merge_by_their_own_keys() {
    let env = |value: Value| containers(json!([{"name": "a", "env": value}]));
    let document = env(json!([{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]));
    let patch = env(json!([{"name": "Y", "value": "3"}, {"name": "X", "$patch": "delete"}]));
    assert_eq!(patched(document, &patch), env(json!([{"name": "Y", "value": "3"}])));
}

#[test]
fn element_order_keeps_items_of_the_document_alone() {
    let ordered = |order: &str, items: Value| {
        let order: Value = order.chars().map(|name| json!({"name": name.to_string()})).collect();
        json!({"spec": {"$setElementOrder/containers": order, "containers": items}})
    };
    assert_eq!(patched(named("abc"), &ordered("bca", json!([]))), named("bca"));
    // Items of the document alone stay before their successors.
    assert_eq!(patched(named("xaybz"), &ordered("ba", json!([]))), named("xybaz"));
    assert_eq!(patched(named("ab"), &ordered("anb", json!([{"name": "n"}]))), named("anb"));
    // kubectl: the last item was removed from the manifest, a new one added at its end.
    let patch = ordered("an", json!([{"name": "n"}, {"name": "b", "$patch": "delete"}]));
    assert_eq!(patched(named("abs"), &patch), named("ans"));
    // An order of absent items changes nothing.
    assert_eq!(
        patched(json!({"spec": {}}), &json!({"spec": {"$setElementOrder/containers": [{"name": "a"}]}})),
        json!({"spec": {}})
    );
}

#[test]
fn list_is_replaced_by_the_directive() {
    let patch = containers(json!([{"name": "b", "image": null}, {"$patch": "replace"}]));
    assert_eq!(patched(named("abc"), &patch), named("b"));
    let patch = containers(json!([{"$patch": "replace"}]));
    assert_eq!(patched(named("abc"), &patch), json!({"spec": {}}));
    let patch = json!({"spec": {"tolerations": [{"$patch": "replace"}, {"key": "k"}]}});
    let expected = json!({"spec": {"tolerations": [{"key": "k"}]}});
    assert_eq!(patched(json!({"spec": {"tolerations": [{"key": "a"}]}}), &patch), expected);
}

#[test]
fn delete_removes_all_items_with_the_key() {
    let patch = containers(json!([{"name": "a", "$patch": "delete"}]));
    assert_eq!(patched(named("abaa"), &patch), named("b"));
    assert_eq!(patched(named("a"), &patch), json!({"spec": {}}));
    assert_eq!(patched(json!({}), &patch), json!({"spec": {}}));
}

#[test]
fn items_with_equal_keys_are_added_to_an_empty_list() {
    let ports = json!([{"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}]);
    let patch = containers(json!([{"name": "dns", "ports": ports}]));
    assert_eq!(patched(json!({}), &patch), patch);
    assert_eq!(patched(containers(json!([{"name": "dns"}])), &patch), patch);
}

#[test]
fn numbers_are_valid_keys() {
    let ports = |value: Value| containers(json!([{"name": "a", "ports": value}]));
    let document = ports(json!([{"containerPort": 80}, {"containerPort": 443}]));
    let patch = ports(json!([{"containerPort": 443, "protocol": "TCP"}]));
    let expected = ports(json!([{"containerPort": 80}, {"containerPort": 443, "protocol": "TCP"}]));
    assert_eq!(patched(document, &patch), expected);
}

#[test]
fn scalars_merge_as_a_set() {
    assert_eq!(patched(finalizers(&["a", "b"]), &finalizers(&["c", "b", "c"])), finalizers(&["c", "a", "b"]));
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a", "x"]}});
    assert_eq!(patched(finalizers(&["a", "b", "a"]), &patch), finalizers(&["b"]));
    assert_eq!(patched(finalizers(&["a"]), &patch), json!({"metadata": {}}));
    assert_eq!(patched(json!({}), &patch), json!({"metadata": {}}));
    let patch = json!({"metadata": {
        "$deleteFromPrimitiveList/finalizers": ["a"],
        "$setElementOrder/finalizers": ["n", "b"],
        "finalizers": ["n"],
    }});
    assert_eq!(patched(finalizers(&["a", "b", "s"]), &patch), finalizers(&["n", "b", "s"]));
}

#[test]
fn objects_are_replaced_deleted_and_retained() {
    let strategy = |value: Value| json!({"spec": {"strategy": value}});
    let document = || strategy(json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}));
    let patch = strategy(json!({"$patch": "replace", "type": "Recreate", "gone": null}));
    assert_eq!(patched(document(), &patch), strategy(json!({"type": "Recreate"})));
    assert_eq!(patched(document(), &strategy(json!({"$patch": "delete"}))), json!({"spec": {}}));
    let patch = strategy(json!({"$retainKeys": ["type"], "type": "Recreate", "rollingUpdate": null}));
    assert_eq!(patched(document(), &patch), strategy(json!({"type": "Recreate"})));
    let patch = strategy(json!({"$patch": "merge", "type": "Recreate"}));
    let expected = strategy(json!({"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}));
    assert_eq!(patched(document(), &patch), expected);
    assert_eq!(patched(document(), &json!({"$patch": "delete"})), json!({}));
}

#[test]
fn added_values_have_no_directives_and_nulls() {
    let patch = json!({"spec": {
        "$retainKeys": ["containers", "strategy"],
        "strategy": {"$patch": "replace", "a": {"b": null}},
        "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
        "containers": [{"name": "b", "image": null}, {"name": "a", "$patch": "merge"}],
    }});
    let expected = json!({"spec": {"strategy": {"a": {}}, "containers": [{"name": "b"}, {"name": "a"}]}});
    assert_eq!(patched(json!({"spec": "was a text"}), &patch), expected);
}

#[test]
fn unknown_dollar_names_are_fields() {
    let patch = json!({"$ref": "x", "$schema": {"$id": 1}});
    assert_eq!(patched(json!({}), &patch), patch);
}

#[test]
fn invalid_patch_is_refused_with_the_path() {
    let cases = [
        (json!([1]), "must be an object"),
        (json!({"$patch": "remove"}), "applied: `$patch` must be 'delete', 'merge' or 'replace'"),
        (json!({"spec": {"strategy": {"$patch": 1}}}), "at `spec.strategy`: `$patch` must be"),
        (containers(json!([{"image": "x"}])), "at `spec.containers[0]`: it must have the merge key `name`"),
        (
            containers(json!([{"name": "a"}, {"name": {}}])),
            "at `spec.containers[1]`: it must have the merge key",
        ),
        (containers(json!([{"$patch": "delete"}])), "at `spec.containers[0]`: it must have the merge key"),
        (containers(json!(["a"])), "at `spec.containers[0]`: it must be an object"),
        (containers(json!([{"name": "a", "$patch": "?"}])), "at `spec.containers[0]`: `$patch` must be"),
        (json!({"metadata": {"finalizers": [{"a": 1}]}}), "at `metadata.finalizers`: items must be scalars"),
        (json!({"spec": {"tolerations": [{"$patch": "delete"}]}}), "`$patch` must not be 'delete'"),
        (json!({"spec": {"$setElementOrder/tolerations": []}}), "only lists that are merged take an order"),
        (
            json!({"spec": {"$setElementOrder/containers": {}}}),
            "`$setElementOrder/containers` must be a list",
        ),
        (json!({"spec": {"$setElementOrder/containers": ["a"]}}), "with the merge key `name`"),
        (
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "c"}]}}),
            "at `spec.containers`: its items must be in `$setElementOrder`",
        ),
        (
            json!({"metadata": {"$setElementOrder/finalizers": ["a", "b"], "finalizers": ["b", "a"]}}),
            "in the same order",
        ),
        (json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [{}]}}), "only scalars can be deleted"),
        (
            json!({"metadata": {"$deleteFromPrimitiveList/x": ["a"], "x": 1}}),
            "at `metadata.x`: it must be a list",
        ),
        (json!({"spec": {"$retainKeys": "a"}}), "at `spec`: `$retainKeys` must be a list of strings"),
        (
            json!({"spec": {"$retainKeys": ["a"], "b": 1}}),
            "`$retainKeys` must list 'b', which the patch sets",
        ),
    ];
    for (patch, why) in cases {
        let message = refused(patch);
        assert!(message.contains(why), "{message} does not contain {why}");
    }
}

#[test]
fn long_lists_merge_quickly() {
    let many = |from: usize, image: &str| {
        containers((from..from + 100_000).map(|n| json!({"name": n.to_string(), "image": image})).collect())
    };
    let merged = patched(many(0, "old"), &many(50_000, "new"));
    let items = merged["spec"]["containers"].as_array().unwrap();
    assert_eq!(items.len(), 150_000);
    assert_eq!(items.iter().filter(|one| one["image"] == "old").count(), 50_000);
}

/// Objects with unique names in a few lists, with occasional directives.
fn patches(directives: bool) -> impl Strategy<Value = Value> {
    let item = (prop::option::of("[1-3]"), 0..if directives { 6 } else { 1_u8 });
    let items = prop::collection::btree_map("[a-e]", item, 0..5).prop_shuffle_items();
    let scalars = prop::sample::subsequence(vec!["p", "q", "r", "s"], 0..4).prop_shuffle();
    let removed = prop::sample::subsequence(vec!["p", "q", "r", "s"], 0..3);
    (items, scalars, removed, any::<[bool; 3]>()).prop_map(move |(items, scalars, removed, with)| {
        let mut order = Vec::new();
        let mut list = Vec::new();
        for (name, (image, directive)) in items {
            let mut fields = json!({"name": name});
            if directive == 1 {
                fields["$patch"] = "delete".into();
            } else {
                order.push(json!({"name": name}));
                fields["image"] = image.into();
            }
            list.push(fields);
        }
        let mut spec = json!({"containers": list});
        let kept: Vec<&str> = scalars.iter().copied().filter(|one| !removed.contains(one)).collect();
        let mut metadata = json!({"finalizers": kept});
        if directives && with[0] {
            spec["$setElementOrder/containers"] = order.into();
        }
        if directives && with[1] {
            metadata["$deleteFromPrimitiveList/finalizers"] = json!(removed);
        }
        if directives && with[2] {
            metadata["$setElementOrder/finalizers"] = json!(kept);
        }
        json!({"metadata": metadata, "spec": spec})
    })
}

/// A map in random order.
trait ShuffleItems: Strategy {
    fn prop_shuffle_items<K, V>(self) -> impl Strategy<Value = Vec<(K, V)>>
    where
        Self: Strategy<Value = std::collections::BTreeMap<K, V>> + Sized,
        K: Clone + fmt::Debug + 'static,
        V: Clone + fmt::Debug + 'static,
    {
        self.prop_map(|map| map.into_iter().collect::<Vec<_>>()).prop_shuffle()
    }
}
impl<S: Strategy> ShuffleItems for S {}

proptest! {
    #[test]
    fn patch_without_schema_and_directives_is_a_merge_patch(document in documents(), patch in documents()) {
        let expected = merge_patch(document.clone(), &patch);
        prop_assert_eq!(strategic(document, &patch, &Schema::default()).unwrap(), expected);
    }

    #[test]
    fn strategic_patch_is_idempotent(start in patches(false), patch in patches(true)) {
        let once = patched(patched(json!({}), &start), &patch);
        prop_assert_eq!(patched(once.clone(), &patch), once);
    }

    #[test]
    fn items_are_neither_lost_nor_duplicated(start in patches(false), patch in patches(true)) {
        let document = patched(json!({}), &start);
        let names = |value: &Value| -> HashSet<String> {
            let items = value["spec"]["containers"].as_array().cloned().unwrap_or_default();
            let names: HashSet<String> = items.iter().map(|one| one["name"].to_string()).collect();
            assert_eq!(names.len(), items.len());
            names
        };
        let (deleted, set): (Vec<Value>, Vec<Value>) = patch["spec"]["containers"]
            .as_array().unwrap().iter().cloned().partition(|one| one["$patch"] == "delete");
        let mut expected = names(&document);
        expected.extend(set.iter().map(|one| one["name"].to_string()));
        for one in deleted {
            expected.remove(&one["name"].to_string());
        }
        prop_assert_eq!(names(&patched(document, &patch)), expected);
    }

    #[test]
    fn any_json_is_handled(document in documents(), patch in patches(true), other in documents()) {
        let mut mixed = patch;
        mixed["spec"]["x"] = other.clone();
        mixed["spec"]["$setElementOrder/x"] = other["a"].clone();
        mixed["metadata"]["$retainKeys"] = other["b"].clone();
        let _ = strategic(document, &mixed, &pod());
        let _ = strategic(mixed, &other, &pod());
    }
}
