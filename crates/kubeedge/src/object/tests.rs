use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::message::decode;
use crate::names::WatchRule;
use crate::testing::config;
use edgesync_protocol::change::RejectReason;

const UID: &str = "413d5245-1fd6-4e85-b576-9a25b00c7340";

/// Returns a message of a source about a resource.
fn message(source: &str, operation: &str, resource: &str, content: &Value) -> Value {
    json!({
        "header": {"msg_id": "5f0ecd1c-19ab-4d0b-8fb1-0a5c4f0b9d11", "timestamp": 1},
        "route": {"source": source, "group": "resource", "operation": operation, "resource": resource},
        "content": content,
    })
}

fn config_map(version: &Value) -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1", "data": {"a": "b"},
        "metadata": {"name": "web", "namespace": "lab", "uid": UID, "resourceVersion": version},
    })
}

fn widget(kind: &str) -> Value {
    json!({
        "apiVersion": "lab.io/v1", "kind": kind,
        "metadata": {"name": "w1", "namespace": "lab", "uid": UID, "resourceVersion": "7"},
    })
}

fn read_with(message: &Value, config: &BridgeConfig, kinds: &mut Kinds) -> Option<About> {
    let text = message.to_string();
    read(&decode(text.as_bytes()).unwrap(), config, kinds)
}

fn about(message: &Value) -> Option<About> {
    read_with(message, &config(), &mut Kinds::default())
}

fn put_of(about: Option<About>) -> Put {
    match about {
        Some(About::Change(Change::Put(put))) => put,
        other => panic!("must be held: {other:?}"),
    }
}

fn delete_of(about: Option<About>) -> Delete {
    match about {
        Some(About::Change(Change::Delete(delete))) => delete,
        other => panic!("must be a delete: {other:?}"),
    }
}

fn rejected_of(about: Option<About>) -> Rejected {
    match about {
        Some(About::Rejected(rejected)) => rejected,
        other => panic!("must be rejected: {other:?}"),
    }
}

#[test]
fn each_operation_with_an_object_holds_it_from_any_source() {
    for operation in ["insert", "update", "patch", "response"] {
        for source in ["edgecontroller", "synccontroller", "whoever", ""] {
            let message = message(source, operation, "lab/configmap/web", &config_map(&"7".into()));
            let put = put_of(about(&message));
            assert_eq!((&*put.uid, put.version.as_str(), &*put.resource.plural), (UID, "7", "configmaps"));
        }
    }
}

#[test]
fn a_cluster_scoped_object_has_the_namespace_null_in_its_route() {
    let node = json!({
        "kind": "Node", "apiVersion": "v1", "metadata": {"name": "edgea", "uid": UID, "resourceVersion": "7"},
    });
    let put = put_of(about(&message("edgecontroller", "update", "null/node/edgea", &node)));
    assert_eq!((&*put.namespace, put.resource.scope), ("", Scope::Cluster));
    let wrong = message("edgecontroller", "insert", "null/configmap/web", &config_map(&"7".into()));
    assert!(rejected_of(about(&wrong)).message.contains("route.resource"));
    let mut homeless = config_map(&"7".into());
    homeless["metadata"].as_object_mut().unwrap().remove("namespace");
    let homeless = message("edgecontroller", "insert", "null/configmap/web", &homeless);
    assert!(rejected_of(about(&homeless)).message.contains("scope"));
}

#[test]
fn a_version_need_not_be_a_number_but_must_be_there() {
    let read = |version: Value| {
        about(&message("edgecontroller", "update", "lab/configmap/web", &config_map(&version)))
    };
    assert_eq!(put_of(read("v-7:x".into())).version.as_str(), "v-7:x");
    for wrong in ["".into(), Value::from("9".repeat(200))] {
        let rejected = rejected_of(read(wrong));
        assert_eq!((rejected.reason, &*rejected.uid), (RejectReason::Invalid, UID));
        assert!(rejected.message.contains("resourceVersion"), "{}", rejected.message);
        let object = rejected.object.unwrap();
        assert_eq!((&*object.kind, &*object.namespace, &*object.name), ("ConfigMap", "lab", "web"));
    }
    rejected_of(read(Value::Null));
    rejected_of(read(7.into()));
}

#[test]
fn a_header_that_says_another_version_is_a_fault() {
    let mut message = message("edgecontroller", "update", "lab/configmap/web", &config_map(&"7".into()));
    message["header"]["resourceversion"] = "7".into();
    put_of(about(&message));
    message["header"]["resourceversion"] = "8".into();
    let rejected = rejected_of(about(&message));
    assert_eq!(rejected.resource_version.as_str(), "8");
    message["header"]["resourceversion"] = "".into();
    put_of(about(&message));
}

#[test]
fn a_push_without_an_object_is_shown_and_others_ignored() {
    for content in [Value::Null, json!({}), json!("OK"), json!({"metadata": null}), json!([])] {
        for resource in ["lab/configmap/web", "lab/widget/w1", "nonsense"] {
            let mut message = message("edgecontroller", "update", resource, &content);
            message["header"]["resourceversion"] = "9".into();
            let rejected = rejected_of(about(&message));
            assert_eq!((rejected.reason, rejected.resource_version.as_str()), (RejectReason::Invalid, "9"));
            message["route"]["source"] = "whoever".into();
            assert!(about(&message).is_none(), "{message}");
        }
        let answer = message("edgecontroller", "response", "lab/configmap/web", &content);
        assert!(about(&answer).is_none());
        let lease = message("edgecontroller", "update", "kube-node-lease/lease/edgea", &content);
        assert!(about(&lease).is_none());
    }
}

#[test]
fn unstored_kinds_are_ignored_in_every_operation() {
    let content = json!({"metadata": {"name": "x", "namespace": "lab", "uid": UID, "resourceVersion": "1"}});
    for kind in [
        "lease",
        "event",
        "nodepatch",
        "podpatch",
        "serviceaccounttoken",
        "serviceaccountaccess",
        "membership",
    ] {
        for operation in ["insert", "update", "delete", "response"] {
            let message = message("edgecontroller", operation, &format!("lab/{kind}/x"), &content);
            assert!(about(&message).is_none(), "{message}");
        }
    }
}

#[test]
fn a_delete_counts_by_its_uid() {
    let old = "a55cfa71-152e-4737-afb0-8cc68fd13fd6";
    let content = json!({"metadata": {"name": "web", "namespace": "lab", "uid": old}});
    let delete = delete_of(about(&message("edgecontroller", "delete", "lab/configmap/web", &content)));
    let key = &delete.key;
    assert_eq!((&*delete.uid, &*key.kind, &*key.namespace, &*key.name), (old, "ConfigMap", "lab", "web"));
    let only_uid = json!({"metadata": {"uid": old}});
    let delete = delete_of(about(&message("edgecontroller", "delete", "null/node/edgea", &only_uid)));
    assert_eq!((&*delete.uid, &*delete.key.kind, &*delete.key.namespace), (old, "Node", ""));
}

#[test]
fn a_late_delete_of_the_old_uid_leaves_the_new_one() {
    let mut kinds = Kinds::default();
    let update = message("edgecontroller", "update", "lab/configmap/web", &config_map(&"9".into()));
    let new = put_of(read_with(&update, &config(), &mut kinds));
    let content = json!({"metadata": {"name": "web", "namespace": "lab", "uid": "old"}});
    let old = message("edgecontroller", "delete", "lab/configmap/web", &content);
    let old = delete_of(read_with(&old, &config(), &mut kinds));
    assert_eq!(new.key(), old.key);
    assert_ne!(new.uid, old.uid);
}

#[test]
fn a_delete_that_does_not_say_which_object_removes_nothing() {
    for content in [
        Value::Null,
        json!({}),
        json!("OK"),
        json!({"metadata": {}}),
        json!({"metadata": {"name": "web", "namespace": "lab", "uid": ""}}),
        json!({"metadata": {"name": "web", "namespace": "lab", "uid": "../.."}}),
        json!({"metadata": {"uid": 7}}),
    ] {
        let message = message("edgecontroller", "delete", "lab/configmap/web", &content);
        assert!(matches!(about(&message), Some(About::Unclear)), "{message}");
    }
    let content = json!({"metadata": {"uid": UID}});
    for resource in ["lab/configmap/../x", "LAB/configmap/x", "lab/c o/x"] {
        let message = message("edgecontroller", "delete", resource, &content);
        assert!(matches!(about(&message), Some(About::Unclear)), "{message}");
    }
}

#[test]
fn the_kind_of_a_delete_is_learned_or_the_type() {
    let mut kinds = Kinds::default();
    let content = json!({"metadata": {"uid": UID}});
    let delete = message("edgecontroller", "delete", "lab/widget/w1", &content);
    let unknown = delete_of(read_with(&delete, &config(), &mut kinds)).key;
    assert_eq!((&*unknown.group, &*unknown.kind), ("", "widget"));
    let insert = message("dynamiccontroller", "insert", "lab/widget/w1", &widget("Widget"));
    put_of(read_with(&insert, &config(), &mut kinds));
    let learned = delete_of(read_with(&delete, &config(), &mut kinds)).key;
    assert_eq!((&*learned.group, &*learned.kind), ("lab.io", "Widget"));
    let whole = message("dynamiccontroller", "delete", "lab/gadget/w1", &widget("Gadget"));
    let whole = delete_of(read_with(&whole, &config(), &mut kinds)).key;
    assert_eq!((&*whole.group, &*whole.kind), ("lab.io", "Gadget"));
}

#[test]
fn kind_and_api_version_of_known_types_are_added() {
    let missing: [&[&str]; 4] = [&["kind", "apiVersion"], &["kind"], &["apiVersion"], &[]];
    for fields in missing {
        let mut content = config_map(&"7".into());
        for field in fields {
            content.as_object_mut().unwrap().remove(*field);
        }
        for managed_fields in [true, false] {
            let config = BridgeConfig { managed_fields, ..config() };
            let message = message("edgecontroller", "insert", "lab/configmap/web", &content);
            let put = put_of(read_with(&message, &config, &mut Kinds::default()));
            let body: Value = serde_json::from_str(put.body.get()).unwrap();
            assert_eq!(body, config_map(&"7".into()));
        }
    }
    let mut content = config_map(&"7".into());
    content["kind"] = "".into();
    let put = put_of(about(&message("edgecontroller", "insert", "lab/configmap/web", &content)));
    assert_eq!(serde_json::from_str::<Value>(put.body.get()).unwrap(), config_map(&"7".into()));
    let nameless = json!({"metadata": widget("x")["metadata"]});
    rejected_of(about(&message("edgecontroller", "insert", "lab/widget/w1", &nameless)));
}

#[test]
fn content_must_be_the_object_of_the_route() {
    for resource in ["lab/secret/web", "lab/configmap/other", "default/configmap/web", "lab/configmap/web/x"]
    {
        let message = message("edgecontroller", "update", resource, &config_map(&"7".into()));
        let rejected = rejected_of(about(&message));
        assert!(rejected.message.contains("route.resource"), "{}", rejected.message);
        assert_eq!(&*rejected.uid, UID);
    }
    let bad = [("name", "../x"), ("namespace", "A"), ("uid", "a.b")];
    for (field, value) in bad {
        let mut content = config_map(&"7".into());
        content["metadata"][field] = value.into();
        let message = message("edgecontroller", "update", "lab/configmap/web", &content);
        assert!(rejected_of(about(&message)).message.contains(field));
    }
}

#[test]
fn a_watched_kind_comes_from_content_and_rule() {
    let plain = message("dynamiccontroller", "insert", "lab/widget/w1", &widget("Widget"));
    assert_eq!(put_of(about(&plain)).resource.plural, "widgets");
    // A plural that no rule of grammar forms: its singular is derived as the whole word.
    let guessed = message("dynamiccontroller", "insert", "lab/cacti/w1", &widget("Cactus"));
    let later = message("edgecontroller", "update", "lab/cactus/w1", &widget("Cactus"));
    let watching = |rule: &str| BridgeConfig { watch: vec![WatchRule::parse(rule).unwrap()], ..config() };
    let mut kinds = Kinds::default();
    let first = put_of(read_with(&guessed, &watching("lab.io/v1/cacti"), &mut kinds));
    let second = put_of(read_with(&later, &watching("lab.io/v1/cacti"), &mut kinds));
    assert_eq!((&*first.resource.kind, &*first.resource.plural), ("Cactus", "cacti"));
    assert!(Arc::ptr_eq(&first.resource, &second.resource), "kinds are shared");
    assert_eq!(kinds.get("cacti"), kinds.get("cactus"));
    let other_group = put_of(read_with(&guessed, &watching("else.io/v1/cacti"), &mut Kinds::default()));
    assert_eq!(other_group.resource.plural, "cactuses");
}

#[test]
fn a_custom_resource_may_be_called_like_a_known_kind() {
    let message = message("dynamiccontroller", "insert", "lab/pod/w1", &widget("Podx"));
    let put = put_of(about(&message));
    assert_eq!((&*put.resource.group, &*put.resource.kind), ("lab.io", "Podx"));
}

#[test]
fn singulars_are_guessed_as_the_dynamic_controller_does() {
    for (plural, singular) in [
        ("widgets", "widget"),
        ("policies", "policy"),
        ("buses", "bus"),
        ("boxes", "boxe"),
        ("cacti", "cacti"),
        ("", ""),
    ] {
        assert!(is_singular(singular, plural), "{plural}");
        assert!(!is_singular(&format!("{singular}s"), plural) && !is_singular("x", plural), "{plural}");
    }
}

#[test]
fn kinds_are_learned_up_to_a_limit() {
    let mut kinds = Kinds::default();
    let kind = |name: String| Arc::new(kinds::guess("lab.io/v1", &name, true));
    for number in 0..1000 {
        kinds.learn(&kind(format!("K{number}")));
    }
    assert!(kinds.get("k255").is_some() && kinds.get("k256").is_none());
    assert_eq!(kinds.get("pod").unwrap().kind, "Pod");
    let mut other = Resource::clone(&kinds.get("k7").unwrap());
    other.plural = "sevens".to_owned();
    kinds.learn(&Arc::new(other));
    assert_eq!(kinds.get("k7").unwrap().plural, "sevens");
}

#[test]
fn managed_fields_are_kept_only_on_request() {
    let mut content = config_map(&"7".into());
    content["metadata"]["managedFields"] = json!([{"manager": "m"}]);
    content["metadata"]["deletionTimestamp"] = "2026-11-21T01:44:24Z".into();
    let message = message("edgecontroller", "update", "lab/configmap/web", &content);
    for managed_fields in [true, false] {
        let config = BridgeConfig { managed_fields, ..config() };
        let put = put_of(read_with(&message, &config, &mut Kinds::default()));
        assert_eq!(put.body.get().contains("managedFields"), managed_fields);
        assert!(put.body.get().contains("deletionTimestamp"));
    }
}

#[test]
fn too_large_and_too_deep_objects_are_rejected_by_name() {
    let mut content = config_map(&"7".into());
    content["data"] = "x".repeat(2 << 20).into();
    let large = rejected_of(about(&message("edgecontroller", "update", "lab/configmap/web", &content)));
    assert_eq!((large.reason, &*large.uid, large.object.is_some()), (RejectReason::TooLarge, UID, true));
    let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
    let text = message("edgecontroller", "update", "lab/configmap/web", &config_map(&"7".into())).to_string();
    let text = text.replace(r#""b""#, &deep);
    let read = read(&decode(text.as_bytes()).unwrap(), &config(), &mut Kinds::default());
    assert!(rejected_of(read).message.contains("deep"));
}

#[test]
fn items_of_a_list_have_the_kind_of_the_list() {
    let resource = Arc::new(kinds::guess("lab.io/v1", "Widget", true));
    let item = |content: &Value| read_item(&content.to_string(), &resource, &config());
    let bare = json!({"metadata": widget("x")["metadata"]});
    let Ok(Change::Put(put)) = item(&bare) else { panic!("must be held") };
    assert_eq!(serde_json::from_str::<Value>(put.body.get()).unwrap(), widget("Widget"));
    assert!(Arc::ptr_eq(&put.resource, &resource));
    assert!(item(&widget("Widget")).is_ok());
    assert!(item(&widget("Gadget")).unwrap_err().message.contains("Widget"));
    for wrong in [Value::Null, json!({}), json!([]), json!({"metadata": {"name": "x"}})] {
        assert_eq!(item(&wrong).unwrap_err().reason, RejectReason::Invalid);
    }
}

proptest! {
    #[test]
    fn no_message_makes_it_panic(
        source in "edgecontroller|dynamiccontroller|.{0,3}", operation in "insert|delete|response|.{0,3}",
        resource in "(lab|null|.{0,3})/(pod|node|device|.{0,3})/.{0,5}|.{0,9}",
        kind in "Pod|.{0,4}", uid in "u1|.{0,4}", name in ".{0,5}", version in ".{0,3}",
    ) {
        let content = json!({
            "kind": kind, "apiVersion": version, "metadata": {"name": name, "uid": uid, "resourceVersion": version},
        });
        let _ = about(&message(&source, &operation, &resource, &content));
        let _ = read_item(&content.to_string(), &Arc::new(kinds::guess("v1", "Pod", true)), &config());
    }

    #[test]
    fn no_content_makes_it_panic(content in r#"\{("(kind|apiVersion|metadata|uid)":([\{\}\[\]0-9]|null|"x"|,){0,3}){0,3}\}"#) {
        let text = format!(
            r#"{{"header":{{}},"route":{{"operation":"insert","resource":"lab/pod/x"}},"content":{content}}}"#
        );
        if let Ok(incoming) = decode(text.as_bytes()) {
            let _ = read(&incoming, &config(), &mut Kinds::default());
        }
        let _ = read_item(&content, &Arc::new(kinds::guess("v1", "Pod", true)), &config());
    }
}
