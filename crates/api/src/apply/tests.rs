//! Ownership as documented by Kubernetes, and laws for arbitrary objects.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::fieldset::Element;
use super::managed::MAX_UPDATERS;
use super::shape::fields_of;
use super::*;
use edgesync_object::status::Reason;
use edgesync_schema::{ListType, Type};

mod laws;

fn leaf(kind: Type) -> Schema {
    Schema { kind, ..Schema::default() }
}

fn map_of(value: Schema) -> Schema {
    Schema { kind: Type::Object, additional: Some(Arc::new(value)), ..Schema::default() }
}

fn fields<const N: usize>(fields: [(&str, Schema); N]) -> Schema {
    let properties = fields.into_iter().map(|(name, schema)| (name.into(), Arc::new(schema))).collect();
    Schema { kind: Type::Object, properties, ..Schema::default() }
}

fn list(list: ListType, items: Schema) -> Schema {
    Schema { kind: Type::Array, list, items: Some(Arc::new(items)), ..Schema::default() }
}

fn keyed(keys: &[&str], items: Schema) -> Schema {
    list(ListType::Map(keys.iter().map(|key| Arc::from(*key)).collect()), items)
}

/// A Pod-like schema with every kind of ownership.
fn pod() -> Schema {
    let text = || leaf(Type::String);
    let port = fields([
        ("containerPort", leaf(Type::Integer)),
        ("protocol", Schema { default: Some(json!("TCP")), ..text() }),
        ("name", text()),
    ]);
    let container = fields([
        ("name", text()),
        ("image", text()),
        ("args", list(ListType::Atomic, text())),
        ("ports", keyed(&["containerPort", "protocol"], port)),
    ]);
    let metadata = fields([
        ("name", text()),
        ("labels", map_of(text())),
        ("annotations", map_of(text())),
        ("finalizers", list(ListType::Set, text())),
    ]);
    let spec = fields([
        ("replicas", leaf(Type::Integer)),
        ("containers", keyed(&["name"], container)),
        ("nodeSelector", Schema { atomic_map: true, ..map_of(text()) }),
    ]);
    let status = fields([("phase", text()), ("conditions", keyed(&["type"], Schema::default()))]);
    fields([
        ("apiVersion", text()),
        ("kind", text()),
        ("metadata", metadata),
        ("spec", spec),
        ("data", map_of(text())),
        ("status", status),
    ])
}

#[allow(clippy::needless_pass_by_value, reason = "called with literals")]
fn object(rest: Value) -> Object {
    let mut object = json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x"}});
    for (name, value) in rest.as_object().unwrap() {
        object[name] = value.clone();
    }
    object["metadata"]["name"] = json!("x");
    serde_json::from_value(object).unwrap()
}

fn by(name: &str) -> Manager<'_> {
    Manager { name, api_version: "v1", subresource: "", now: "2026-01-01T00:00:00Z" }
}

fn later(name: &str) -> Manager<'_> {
    Manager { now: "2026-01-01T00:01:00Z", ..by(name) }
}

fn create(rest: Value, manager: &str) -> Object {
    let mut new = object(rest);
    record_update(None, &mut new, Some(&pod()), &by(manager));
    new
}

/// Replaces everything but the metadata, as an update does.
fn update(old: &Object, rest: Value, manager: &Manager<'_>) -> Object {
    let mut new = object(rest);
    new.set_metadata("managedFields", old.metadata().unwrap()["managedFields"].clone());
    record_update(Some(old), &mut new, Some(&pod()), manager);
    new
}

fn try_apply(live: Option<&Object>, rest: Value, manager: &str, force: bool) -> Result<Object> {
    apply(live, &object(rest), Some(&pod()), &later(manager), force)
}

fn applied(live: Option<&Object>, rest: Value, manager: &str) -> Object {
    try_apply(live, rest, manager, false).unwrap()
}

fn refused(live: &Object, rest: Value, manager: &str) -> Status {
    try_apply(Some(live), rest, manager, false).unwrap_err()
}

/// Returns the paths that a manager owns by one operation.
fn owned(object: &Object, manager: &str, operation: Operation) -> Vec<String> {
    let managed = Managed::of(object);
    let mine = |entry: &&Entry| entry.manager == manager && entry.operation == operation;
    managed.entries().iter().filter(mine).flat_map(|entry| entry.fields.paths(1_000)).collect()
}

fn time_of(object: &Object, manager: &str) -> String {
    let managed = Managed::of(object);
    managed.entries().iter().find(|entry| entry.manager == manager).unwrap().time.clone()
}

fn part<'a>(object: &'a Object, name: &str) -> &'a Value {
    object.fields().get(name).unwrap_or(&Value::Null)
}

use Operation::{Apply, Update};

#[test]
fn creator_owns_the_written_fields() {
    let made =
        create(json!({"data": {"a": "1"}, "metadata": {"labels": {"l": "x"}, "uid": "u"}}), "kubectl-create");
    let expected = json!([{"apiVersion": "v1", "fieldsType": "FieldsV1", "manager": "kubectl-create",
        "operation": "Update", "time": "2026-01-01T00:00:00Z", "fieldsV1": {
            "f:data": {".": {}, "f:a": {}}, "f:metadata": {"f:labels": {".": {}, "f:l": {}}}}}]);
    assert_eq!(made.metadata().unwrap()["managedFields"], expected);
}

#[test]
fn change_takes_ownership_and_removal_releases_it() {
    let made = create(json!({"data": {"a": "1", "b": "1", "c": "1"}}), "one");
    let changed = update(&made, json!({"data": {"a": "2", "b": "1", "d": "1"}}), &later("two"));
    assert_eq!(owned(&changed, "one", Update), [".data", ".data.b"]);
    assert_eq!(owned(&changed, "two", Update), [".data.a", ".data.d"]);
    assert_eq!(
        (time_of(&changed, "one"), time_of(&changed, "two")),
        (by("").now.into(), later("").now.into())
    );
    let gone = update(&changed, json!({}), &later("three"));
    assert!(!gone.metadata().unwrap().contains_key("managedFields"));
}

#[test]
fn update_without_changes_keeps_the_record() {
    let made = create(json!({"data": {"a": "1"}}), "one");
    assert_eq!(update(&made, json!({"data": {"a": "1"}}), &later("one")), made);
    assert_eq!(update(&made, json!({"data": {"a": "1"}}), &later("two")), made);
    let removed = update(&made, json!({"data": {}}), &later("one"));
    assert_eq!(
        (owned(&removed, "one", Update), time_of(&removed, "one")),
        (vec![".data".into()], later("").now.into())
    );
}

#[test]
fn status_write_records_the_status_only() {
    let made = create(json!({"data": {"a": "1"}}), "one");
    let mut new = object(json!({"data": {"a": "2"}, "status": {"phase": "Ready"}}));
    let manager = Manager { subresource: "status", ..later("one") };
    new.set_metadata("managedFields", json!([]));
    record_update(Some(&made), &mut new, Some(&pod()), &manager);
    let managed = Managed::of(&new);
    let status = managed.entries().iter().find(|entry| entry.subresource == "status").unwrap();
    assert_eq!(status.fields.paths(9), [".status", ".status.phase"]);
    assert_eq!(owned(&new, "one", Update)[..2], [".data".to_owned(), ".data.a".to_owned()]);
}

#[test]
fn sent_managed_fields_are_used_reset_or_ignored() {
    let made = create(json!({"data": {"a": "1"}}), "one");
    let own = made.metadata().unwrap()["managedFields"].clone();
    let mut other = own.clone();
    other[0]["manager"] = json!("other");
    let mut broken = other.clone();
    broken[0]["fieldsV1"] = json!({"nonsense": {}});
    let cases = [
        (json!(null), "one"),
        (broken, "one"),
        (json!([{}, {}]), "one"),
        (json!("text"), "one"),
        (other, "other"),
        (json!([]), ""),
        (json!([{}]), ""),
    ];
    for (sent, expected) in cases {
        let mut new = object(json!({"data": {"a": "1"}}));
        new.set_metadata("managedFields", sent.clone());
        record_update(Some(&made), &mut new, Some(&pod()), &later("two"));
        let managed = Managed::of(&new);
        let names: Vec<&str> = managed.entries().iter().map(|entry| entry.manager.as_str()).collect();
        assert_eq!(names.concat(), expected, "{sent}");
    }
}

#[test]
fn object_without_a_record_gets_one_at_the_first_apply() {
    let bare = object(json!({"data": {"a": "1", "b": "1"}}));
    let mut changed = object(json!({"data": {"a": "2", "b": "1"}}));
    record_update(Some(&bare), &mut changed, Some(&pod()), &later("one"));
    assert_eq!(changed, object(json!({"data": {"a": "2", "b": "1"}})));
    let message = refused(&changed, json!({"data": {"a": "3"}}), "me").message;
    let expected = "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .data.a";
    assert_eq!(message, expected);
    let shared = applied(Some(&changed), json!({"data": {"a": "2"}}), "me");
    assert_eq!(owned(&shared, "me", Apply), [".data.a"]);
    assert_eq!(owned(&shared, BEFORE_FIRST_APPLY, Update), [".data", ".data.a", ".data.b"]);
}

#[test]
fn at_most_ten_updates_stay_separate() {
    let mut live = create(json!({"data": {"k0": "v"}}), "m0");
    for number in 1..30 {
        let mut new = live.clone();
        new.fields_mut()["data"][format!("k{number}")] = json!("v");
        let now = format!("2026-01-01T00:00:{number:02}Z");
        record_update(
            Some(&live),
            &mut new,
            Some(&pod()),
            &Manager { now: &now, ..by(&format!("m{number}")) },
        );
        live = new;
    }
    assert_eq!(Managed::of(&live).entries().len(), MAX_UPDATERS);
    assert_eq!(owned(&live, "ancient-changes", Update).len(), 22);
}

#[test]
fn field_no_longer_applied_is_removed_unless_shared() {
    let one = applied(None, json!({"data": {"a": "1", "b": "1", "c": "1"}}), "one");
    let two = applied(Some(&one), json!({"data": {"b": "1"}}), "two");
    let updated = update(&two, json!({"data": {"a": "1", "b": "1", "c": "2"}}), &later("three"));
    let less = applied(Some(&updated), json!({}), "one");
    assert_eq!(part(&less, "data"), &json!({"b": "1", "c": "2"}));
    assert_eq!(owned(&less, "one", Apply), [""; 0]);
    assert_eq!(owned(&less, "two", Apply), [".data.b"]);
    let none = applied(Some(&less), json!({}), "two");
    assert_eq!(part(&none, "data"), &json!({"c": "2"}));
}

#[test]
fn field_is_removed_with_its_last_content() {
    let live = applied(None, json!({"spec": {"replicas": 1}, "data": {"a": "1"}}), "one");
    let less = applied(Some(&live), json!({"data": {}}), "one");
    assert_eq!((part(&less, "spec"), part(&less, "data")), (&Value::Null, &json!({})));
    assert_eq!(owned(&less, "one", Apply), [".data"]);
}

#[test]
fn different_value_conflicts_and_equal_value_is_shared() {
    let live = create(json!({"data": {"a": "1", "b": "1"}}), "kubectl-create");
    let status = refused(&live, json!({"data": {"a": "2", "b": "2"}}), "me");
    assert!(status.is(&Reason::Conflict));
    let expected =
        "Apply failed with 2 conflicts: conflicts with \"kubectl-create\" using v1:\n- .data.a\n- .data.b";
    assert_eq!(status.message, expected);
    let details = status.details.unwrap();
    assert_eq!(details.causes[1].field, ".data.b");
    assert_eq!(details.causes[1].reason, "FieldManagerConflict");
    assert_eq!(details.causes[1].message, "conflict with \"kubectl-create\" using v1");

    let shared = applied(Some(&live), json!({"data": {"a": "1"}}), "me");
    assert_eq!(owned(&shared, "me", Apply), [".data.a"]);
    assert_eq!(owned(&shared, "kubectl-create", Update), [".data", ".data.a", ".data.b"]);
}

#[test]
fn force_takes_over_fields() {
    let live = create(json!({"data": {"a": "1", "b": "1"}}), "other");
    let taken = try_apply(Some(&live), json!({"data": {"a": "2"}}), "me", true).unwrap();
    assert_eq!(part(&taken, "data"), &json!({"a": "2", "b": "1"}));
    assert_eq!(owned(&taken, "me", Apply), [".data.a"]);
    assert_eq!(owned(&taken, "other", Update), [".data", ".data.b"]);
    assert_eq!(time_of(&taken, "other"), by("").now, "who loses a field keeps his time");
}

#[test]
fn manager_can_hand_a_field_over() {
    // The documentation's example: a user leaves the replicas to an autoscaler.
    let user = applied(None, json!({"spec": {"replicas": 3}, "data": {"a": "1"}}), "user");
    let scaler = applied(Some(&user), json!({"spec": {"replicas": 3}}), "scaler");
    let given = applied(Some(&scaler), json!({"data": {"a": "1"}}), "user");
    assert_eq!(part(&given, "spec"), &json!({"replicas": 3}));
    let scaled = applied(Some(&given), json!({"spec": {"replicas": 5}}), "scaler");
    assert_eq!(part(&scaled, "spec"), &json!({"replicas": 5}));
}

#[test]
fn reapply_changes_nothing() {
    let config = json!({"metadata": {"labels": {"l": "x"}, "creationTimestamp": null}, "data": {"a": "1"}, "status": null,
        "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]}});
    let live = apply(None, &object(config.clone()), Some(&pod()), &by("me"), false).unwrap();
    assert_eq!(applied(Some(&live), config, "me"), live);
    assert_eq!(time_of(&live, "me"), by("").now);
    assert!(!live.fields().contains_key("status") && live.metadata().unwrap().len() == 3);
}

#[test]
fn server_metadata_cannot_be_applied() {
    let mut live = create(json!({"data": {"a": "1"}}), "one");
    live.set_metadata("uid", "u");
    live.set_metadata("resourceVersion", "7");
    let config = json!({"metadata": {"uid": "other", "resourceVersion": "6", "creationTimestamp": null}});
    let result = applied(Some(&live), config, "me");
    assert_eq!(result, live);
}

#[test]
fn list_items_are_owned_by_their_keys() {
    let one = json!({"spec": {"containers": [
        {"name": "a", "image": "1", "ports": [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]}]}});
    let live = applied(None, one, "one");
    let expected = [
        ".spec.containers[name=\"a\"]",
        ".spec.containers[name=\"a\"].image",
        ".spec.containers[name=\"a\"].name",
        ".spec.containers[name=\"a\"].ports[containerPort=80,protocol=\"TCP\"]",
        ".spec.containers[name=\"a\"].ports[containerPort=80,protocol=\"TCP\"].containerPort",
        ".spec.containers[name=\"a\"].ports[containerPort=80,protocol=\"UDP\"]",
        ".spec.containers[name=\"a\"].ports[containerPort=80,protocol=\"UDP\"].containerPort",
        ".spec.containers[name=\"a\"].ports[containerPort=80,protocol=\"UDP\"].protocol",
    ];
    assert_eq!(owned(&live, "one", Apply), expected);

    let two = json!({"spec": {"containers": [
        {"name": "b", "image": "2"}, {"name": "a", "ports": [{"containerPort": 81}]}]}});
    let both = applied(Some(&live), two, "two");
    let containers = json!([{"name": "b", "image": "2"}, {"name": "a", "image": "1", "ports": [
        {"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}, {"containerPort": 81}]}]);
    assert_eq!(part(&both, "spec")["containers"], containers);

    let less = applied(Some(&both), json!({}), "one");
    let containers = json!([{"name": "b", "image": "2"}, {"name": "a", "ports": [{"containerPort": 81}]}]);
    assert_eq!(part(&less, "spec")["containers"], containers);
    let none = applied(Some(&less), json!({}), "two");
    assert_eq!(part(&none, "spec"), &Value::Null);
}

#[test]
fn removed_item_takes_along_fields_of_others() {
    let live = applied(None, json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}), "one");
    let containers = json!([{"name": "a"}, {"name": "b", "image": "set"}]);
    let set = update(&live, json!({"spec": {"containers": containers}}), &later("other"));
    let less = applied(Some(&set), json!({"spec": {"containers": [{"name": "a"}]}}), "one");
    assert_eq!(part(&less, "spec"), &json!({"containers": [{"name": "a"}]}));
    assert_eq!(Managed::of(&less).entries().len(), 1);
}

#[test]
fn sets_grow_and_shrink_per_item() {
    let live = applied(None, json!({"metadata": {"finalizers": ["a", "b"]}}), "one");
    let both = applied(Some(&live), json!({"metadata": {"finalizers": ["b", "c"]}}), "two");
    assert_eq!(both.metadata().unwrap()["finalizers"], json!(["a", "b", "c"]));
    assert_eq!(owned(&both, "two", Apply), [".metadata.finalizers[=\"b\"]", ".metadata.finalizers[=\"c\"]"]);
    let less = applied(Some(&both), json!({}), "one");
    assert_eq!(less.metadata().unwrap()["finalizers"], json!(["b", "c"]));
}

#[test]
fn atomic_lists_and_maps_are_one_value() {
    let config = |args: Value, selector: Value| json!({"spec": {"containers": [{"name": "a", "args": args}], "nodeSelector": selector}});
    let live = applied(None, config(json!(["x"]), json!({"n": "1"})), "one");
    assert!(owned(&live, "one", Apply).contains(&".spec.nodeSelector".to_owned()));
    let status = refused(&live, config(json!(["x", "y"]), json!({"m": "1"})), "two");
    let fields: Vec<String> = status.details.unwrap().causes.into_iter().map(|cause| cause.field).collect();
    assert_eq!(fields, [".spec.containers[name=\"a\"].args", ".spec.nodeSelector"]);
    let forced = try_apply(Some(&live), config(json!(["y"]), json!({"m": "1"})), "two", true).unwrap();
    assert_eq!(part(&forced, "spec")["nodeSelector"], json!({"m": "1"}));
    assert!(!owned(&forced, "one", Apply).contains(&".spec.nodeSelector".to_owned()));
}

#[test]
fn status_is_applied_separately() {
    let live = applied(None, json!({"data": {"a": "1"}}), "one");
    let config =
        object(json!({"data": {"a": "2"}, "metadata": {"labels": {"l": "x"}}, "status": {"phase": "Up"}}));
    let manager = Manager { subresource: "status", ..later("one") };
    let result = apply(Some(&live), &config, Some(&pod()), &manager, false).unwrap();
    assert_eq!(
        (part(&result, "data"), part(&result, "status")),
        (&json!({"a": "1"}), &json!({"phase": "Up"}))
    );
    assert!(!result.metadata().unwrap().contains_key("labels"));
    assert_eq!(owned(&result, "one", Apply), [".data.a", ".status.phase"]);
    let again = applied(Some(&result), json!({"data": {"a": "1"}}), "one");
    assert_eq!(again, result, "the object's own apply leaves the status alone");
    let other = Manager { subresource: "status", ..later("two") };
    let config = object(json!({"status": {"phase": "Down"}}));
    let message = apply(Some(&result), &config, Some(&pod()), &other, false).unwrap_err().message;
    assert_eq!(
        message,
        "Apply failed with 1 conflict: conflict with \"one\" with subresource \"status\": .status.phase"
    );
}

#[test]
fn invalid_configurations_are_refused() {
    let live = create(json!({"data": {"a": "1"}}), "one");
    let wrong_version = Manager { api_version: "v2", ..by("me") };
    let config = object(json!({}));
    assert_eq!(apply(None, &config, None, &wrong_version, false).unwrap_err().code, 400);
    let managed = refused(&live, json!({"metadata": {"managedFields": []}}), "me");
    assert_eq!((managed.code, &*managed.message), (400, "metadata.managedFields must be nil"));
    let kind = refused(&live, json!({"kind": "Other"}), "me");
    assert_eq!((kind.code, &*kind.message), (400, "invalid object type: v1, Kind=Other"));

    let items = json!({"metadata": {"finalizers": ["a", "a", {}]}, "spec": {"containers": [
        {"name": "a", "ports": [{"containerPort": 1}, {"containerPort": 1, "protocol": "TCP"}]}, {"image": "i"}, 7]}});
    let status = refused(&live, items, "me");
    assert_eq!(status.code, 422);
    let fields: Vec<String> = status.details.unwrap().causes.into_iter().map(|cause| cause.field).collect();
    let expected = [
        "metadata.finalizers",
        "metadata.finalizers[2]",
        "spec.containers[name=\"a\"].ports",
        "spec.containers[1]",
        "spec.containers[2]",
    ];
    assert_eq!(fields, expected);
}

#[test]
fn kinds_without_a_schema_have_granular_maps_and_atomic_lists() {
    let config = |list: Value| object(json!({"spec": {"a": {"b": 1, "c": null}, "list": list}}));
    let live = apply(None, &config(json!([1])), None, &by("one"), false).unwrap();
    let expected = [".spec", ".spec.a", ".spec.a.b", ".spec.a.c", ".spec.list"];
    assert_eq!(owned(&live, "one", Apply), expected);
    let message = apply(Some(&live), &config(json!([2])), None, &by("two"), false).unwrap_err().message;
    assert_eq!(message, "Apply failed with 1 conflict: conflict with \"one\": .spec.list");
}

#[test]
fn kubectl_migrates_to_server_side_apply_without_conflicts() {
    let last = |data: Value| {
        let text = format!("{}\n", object(json!({"data": data})));
        json!({"annotations": {"kubectl.kubernetes.io/last-applied-configuration": text}})
    };
    let config = json!({"a": "1", "b": "1"});
    let made = create(json!({"data": config, "metadata": last(config.clone())}), "kubectl-client-side-apply");
    assert_eq!(refused(&made, json!({"data": {"a": "2"}}), "other").code, 409);

    let result = applied(Some(&made), json!({"data": {"a": "2"}}), "kubectl");
    assert_eq!(part(&result, "data"), &json!({"a": "2", "b": "1"}));
    assert_eq!(result.metadata().unwrap()["annotations"], last(json!({"a": "2"}))["annotations"]);

    // A later change by another manager is a conflict.
    let touched = json!({"data": {"a": "1", "b": "9"}, "metadata": last(config)});
    let touched = update(&made, touched, &later("somebody"));
    let message = refused(&touched, json!({"data": {"a": "2", "b": "2"}}), "kubectl").message;
    assert_eq!(message, "Apply failed with 1 conflict: conflict with \"somebody\" using v1: .data.b");
}
