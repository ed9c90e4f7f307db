use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::*;
use crate::memory::{Memory, kind, object};
use edgesync_api::Writable;

fn definition(plural: &str, kind: &str) -> Value {
    let structural = json!({"openAPIV3Schema": {"type": "object"}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.lab.io"), "uid": plural},
        "spec": {"group": "lab.io", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [
                {"name": "v1beta1", "served": true, "storage": false, "schema": structural, "deprecated": true},
                {"name": "v1", "served": true, "storage": true, "schema": structural, "subresources": {"status": {}},
                    "selectableFields": [{"jsonPath": ".spec.color"}],
                    "additionalPrinterColumns": [{"name": "Age", "type": "date", "jsonPath": ".metadata.age"}]},
                {"name": "v0", "served": false, "storage": false, "schema": structural}]}})
}

fn admitted(value: Value) -> Object {
    let mut given = object(value);
    admit(&Kind::without_schema(kind("crd")), None, &mut given).unwrap();
    given
}

/// Returns the invalid fields of a definition after a change.
fn wrong(change: impl Fn(&mut Value)) -> Vec<String> {
    let mut value = definition("widgets", "Widget");
    change(&mut value);
    let status = admit(&Kind::without_schema(kind("crd")), None, &mut object(value)).err();
    let causes = status.and_then(|status| status.details).map(|details| details.causes);
    causes.into_iter().flatten().map(|cause| cause.field).collect()
}

#[test]
fn definition_is_completed_with_names_and_a_finalizer() {
    let complete = admitted(definition("widgets", "Widget"));
    let names = &complete.fields()["spec"]["names"];
    assert_eq!((&names["singular"], &names["listKind"]), (&json!("widget"), &json!("WidgetList")));
    assert_eq!(complete.metadata().unwrap()["finalizers"], json!([CLEANUP]));
    let mut again = complete.clone();
    admit(&Kind::without_schema(kind("crd")), Some(&complete), &mut again).unwrap();
    assert_eq!(again, complete);
    let mut map = object(json!({"metadata": {}}));
    admit(&Kind::without_schema(kind("cm")), None, &mut map).unwrap();
    assert_eq!(map, object(json!({"metadata": {}})));
}

#[test]
fn definition_problems_name_their_field() {
    assert_eq!(wrong(|_| {}), Vec::<String>::new());
    let checks: [(&str, Value, &[&str]); 12] = [
        ("/metadata/name", json!("widgets.other.io"), &["metadata.name"]),
        ("/spec/group", json!("lab"), &["spec.group", "metadata.name"]),
        ("/spec/scope", json!("Everywhere"), &["spec.scope"]),
        ("/spec/names/plural", json!("Widgets"), &["spec.names.plural", "metadata.name"]),
        (
            "/spec/names/kind",
            json!("wid_get"),
            &["spec.names.singular", "spec.names.kind", "spec.names.listKind"],
        ),
        ("/spec/versions/0/name", json!("v1"), &["spec.versions[1].name"]),
        ("/spec/versions/0/storage", json!(true), &["spec.versions"]),
        ("/spec/versions/1/storage", json!(false), &["spec.versions"]),
        ("/spec/versions/0/schema", json!(null), &["spec.versions[0].schema.openAPIV3Schema"]),
        (
            "/spec/versions/1/selectableFields/0/jsonPath",
            json!(".metadata.x"),
            &["spec.versions[1].selectableFields[0].jsonPath"],
        ),
        (
            "/spec/versions/1/additionalPrinterColumns/0/type",
            json!("text"),
            &["spec.versions[1].additionalPrinterColumns[0].type"],
        ),
        ("/spec/versions", json!([]), &["spec.versions"]),
    ];
    for (pointer, value, fields) in checks {
        let set = |given: &mut Value| *given.pointer_mut(pointer).unwrap() = value.clone();
        assert_eq!(wrong(set), fields, "{pointer}");
    }
    let in_kubernetes = |given: &mut Value| {
        given["spec"]["group"] = json!("x.k8s.io");
        given["metadata"]["name"] = json!("widgets.x.k8s.io");
    };
    assert_eq!(wrong(in_kubernetes), ["metadata.annotations[api-approved.kubernetes.io]"]);
}

#[test]
fn conversion_webhooks_are_refused() {
    let with = |strategy: &'static str| {
        wrong(move |given| given["spec"]["conversion"] = json!({ "strategy": strategy }))
    };
    assert_eq!(with("None"), [""; 0]);
    assert_eq!(with("Webhook"), ["spec.conversion.strategy"]);
}

#[test]
fn expensive_rules_are_refused_unless_the_definition_had_them() {
    let with_rule = |rule: &str| {
        let mut value = definition("widgets", "Widget");
        let names = json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": rule}]});
        value["spec"]["versions"][1]["schema"]["openAPIV3Schema"] = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"names": names}}}});
        object(value)
    };
    let crd = Kind::without_schema(kind("crd"));
    let unique = "self.all(x, self.exists_one(y, x == y))";
    let refused = admit(&crd, None, &mut with_rule(unique)).unwrap_err();
    assert_eq!(refused.code, 422);
    let cause = &refused.details.unwrap().causes[0];
    let at = "spec.versions[1].schema.openAPIV3Schema.properties[spec].properties[names].x-kubernetes-validations[0].rule";
    assert_eq!((&*cause.field, &*cause.reason), (at, "FieldValueForbidden"));
    assert!(cause.message.contains("exceeds budget by factor of more than 100x"), "{cause}");
    admit(&crd, None, &mut with_rule("self.size() < 9")).unwrap();
    // A definition that was stored without the limit stays, and its rule is evaluated.
    let old = with_rule(unique);
    let mut new = old.clone();
    new.fields_mut()["spec"]["versions"][1]["deprecated"] = json!(true);
    admit(&crd, Some(&old), &mut new).unwrap();
    let known = BTreeMap::from([("widgets.lab.io".to_owned(), Definition::of(&old, 1))]);
    assert_eq!(known["widgets.lab.io"].lacking, [""; 0]);
    let other = "self.all(x, self.exists(y, x == y))";
    admit(&crd, Some(&old), &mut with_rule(other)).unwrap_err();
}

#[test]
fn invalid_rules_are_refused_and_unevaluated_ones_reported() {
    let with_rule = |rule: &str| {
        let mut value = definition("widgets", "Widget");
        value["spec"]["versions"][1]["schema"]["openAPIV3Schema"] = json!({"type": "object",
            "properties": {"spec": {"type": "object", "x-kubernetes-validations": [{"rule": rule}]}}});
        object(value)
    };
    let crd = Kind::without_schema(kind("crd"));
    let at = "spec.versions[1].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule";
    let refused = admit(&crd, None, &mut with_rule("self.x == 1")).unwrap_err();
    assert_eq!(refused.details.unwrap().causes[0].field, at);
    let mut lacking = with_rule("math.abs(1) == 1");
    let warnings = admit(&crd, None, &mut lacking).unwrap();
    assert_eq!(warnings, [format!("{at}: \"math.abs(1) == 1\" is not evaluated here: math.abs")]);
    let mut default = with_rule("has(self.x)");
    let spec = "/versions/1/schema/openAPIV3Schema/properties/spec";
    let spec = default.fields_mut()["spec"].pointer_mut(spec).unwrap();
    *spec = json!({"default": {}, "properties": {"x": {"type": "string"}},
        "type": "object", "x-kubernetes-validations": spec["x-kubernetes-validations"]});
    let refused = admit(&crd, None, &mut default).unwrap_err();
    let field = &refused.details.unwrap().causes[0].field;
    assert_eq!(field, "spec.versions[1].schema.openAPIV3Schema.properties[spec].default");
    // A definition stored before rules were validated stays in use, with a warning.
    let mut old = with_rule("self.x == 1");
    check::complete(&mut old);
    let mut new = old.clone();
    new.fields_mut()["spec"]["versions"][1]["deprecated"] = json!(true);
    admit(&crd, Some(&old), &mut new).unwrap();
    for (given, part) in [(&lacking, "math.abs"), (&old, "undefined field 'x'")] {
        let known = BTreeMap::from([("widgets.lab.io".to_owned(), Definition::of(given, 1))]);
        let outcome = names::resolve(&known, &[]);
        let definition = &known["widgets.lab.io"];
        assert!(outcome["widgets.lab.io"].established, "{:?}", definition.problem);
        let status = names::status(definition, &outcome["widgets.lab.io"], "2026-01-01T00:00:00Z");
        let conditions = status["conditions"].as_array().unwrap();
        let condition =
            conditions.iter().find(|condition| condition["type"] == "edgesync.io/RulesNotEvaluated");
        let condition = condition
            .map(|condition| (condition["status"].clone(), condition["message"].to_string()))
            .unwrap();
        assert!(condition.0 == "True" && condition.1.contains(part), "{condition:?}");
        let cured = Definition { lacking: Vec::new(), status: status.clone(), ..definition.clone() };
        let status = names::status(&cured, &outcome["widgets.lab.io"], "2026-01-01T00:00:00Z");
        assert!(!status["conditions"].to_string().contains("RulesNotEvaluated"));
    }
}

#[test]
fn fields_that_stored_objects_need_are_immutable() {
    let mut old = admitted(definition("widgets", "Widget"));
    old.fields_mut().insert(
        "status".to_owned(),
        json!({"conditions": [{"type": "Established", "status": "True"}], "storedVersions": ["v1"]}),
    );
    let mut new = old.clone();
    new.fields_mut()["spec"]["scope"] = json!("Cluster");
    new.fields_mut()["spec"]["versions"][1]["name"] = json!("v2");
    let status = admit(&Kind::without_schema(kind("crd")), Some(&old), &mut new).unwrap_err();
    let fields: Vec<String> = status.details.unwrap().causes.into_iter().map(|cause| cause.field).collect();
    assert_eq!(fields, ["spec.scope", "spec.versions"]);
}

#[test]
fn definition_yields_a_kind_per_served_version() {
    let definition = Definition::of(&admitted(definition("widgets", "Widget")), 1);
    assert_eq!(definition.problem, None);
    let kinds = definition.served(&definition.names);
    let versions: Vec<&str> = kinds.iter().map(|kind| &*kind.resource.version).collect();
    assert_eq!(versions, ["v1", "v1beta1"]);
    let [new, old] = &kinds[..] else { panic!("{kinds:?}") };
    assert!(new.preferred && !old.preferred && new.custom && new.writable == Writable::Everything);
    assert!(new.status_subresource && !old.status_subresource);
    assert_eq!((&*new.singular, &*new.list_kind), ("widget", "WidgetList"));
    assert_eq!(new.selectable_fields, ["spec.color".into()]);
    assert_eq!((new.columns.len(), old.columns.len()), (1, 0));
    assert_eq!(old.warning.as_deref(), Some("lab.io/v1beta1 Widget is deprecated"));
    assert_eq!((&old.stored_as, &*old.stored_as.version), (&new.stored_as, "v1"));
}

struct Running(tokio::task::JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn run(storage: &Arc<Memory>) -> Running {
    let served = Arc::clone(storage);
    let serve: Serve = Box::new(move |kinds| served.set_custom(kinds));
    let definitions = Definitions::start(Arc::clone(storage), serve).await.unwrap();
    Running(tokio::spawn(definitions.run()))
}

async fn create(storage: &Memory, value: Value) {
    let resource = kind("crd");
    storage.create(&resource, admitted(value)).await.unwrap();
}

fn condition(object: &Object, kind: &str) -> (String, String) {
    let condition = list(map(object.fields(), "status"), "conditions").find(|c| text(c, "type") == kind);
    condition.map(|c| (text(c, "status").to_owned(), text(c, "reason").to_owned())).unwrap_or_default()
}

/// Waits until a definition has a condition.
async fn wait_for(storage: &Memory, name: &str, kind: &str) -> Object {
    let mut version = 0;
    loop {
        if let Some(found) = storage.find("crd", "", name).await
            && !condition(&found, kind).0.is_empty()
        {
            return found;
        }
        let resource = super::super::memory::kind("crd");
        let next = tokio::time::timeout(Duration::from_secs(600), storage.changes(&resource, version));
        version = next.await.unwrap_or_else(|_| panic!("{name} is not {kind}")).unwrap().version;
    }
}

#[tokio::test(start_paused = true)]
async fn established_definition_has_its_kind_served() {
    let storage = Memory::new();
    let _running = run(&storage).await;
    create(&storage, definition("widgets", "Widget")).await;
    let established = wait_for(&storage, "widgets.lab.io", "Established").await;
    assert!(storage.kind("lab.io", "v1beta1", "widgets").is_some());
    assert_eq!(condition(&established, "Established"), ("True".into(), "InitialNamesAccepted".into()));
    let status = &established.fields()["status"];
    assert_eq!(status["storedVersions"], json!(["v1"]));
    assert_eq!(status["acceptedNames"]["singular"], "widget");
}

#[tokio::test(start_paused = true)]
async fn names_belong_to_the_first_definition() {
    let storage = Memory::new();
    storage.describe("objectsyncs");
    let _running = run(&storage).await;
    create(&storage, definition("widgets", "Widget")).await;
    wait_for(&storage, "widgets.lab.io", "Established").await;
    let mut second = definition("gadgets", "Gadget");
    second["spec"]["names"]["shortNames"] = json!(["widget"]);
    create(&storage, second).await;
    let refused = wait_for(&storage, "gadgets.lab.io", "Established").await;
    assert_eq!(condition(&refused, "NamesAccepted"), ("False".into(), "ShortNamesConflict".into()));
    assert_eq!(condition(&refused, "Established"), ("False".into(), "NotAccepted".into()));
    assert!(storage.kind("lab.io", "v1", "gadgets").is_none());
    let mut built_in = definition("objectsyncs", "ObjectSync");
    built_in["spec"]["group"] = json!("reliablesyncs.kubeedge.io");
    built_in["metadata"]["name"] = json!("objectsyncs.reliablesyncs.kubeedge.io");
    create(&storage, built_in).await;
    let refused = wait_for(&storage, "objectsyncs.reliablesyncs.kubeedge.io", "NamesAccepted").await;
    assert_eq!(condition(&refused, "NamesAccepted").1, "PluralConflict");
    // After the first one is deleted, the second one gets the name.
    storage
        .edit("crd", "", "widgets.lab.io", |first| {
            first.set_metadata("deletionTimestamp", "2026-01-01T00:00:00Z");
        })
        .await;
    let served = || storage.kind("lab.io", "v1", "gadgets").is_some();
    storage.until("the second definition", |names| !names.iter().any(|name| name.contains("widgets"))).await;
    storage.until("its status", |_| served()).await;
}

#[tokio::test(start_paused = true)]
async fn definition_is_deleted_after_its_objects() {
    let storage = Memory::new();
    let _running = run(&storage).await;
    create(&storage, definition("widgets", "Widget")).await;
    wait_for(&storage, "widgets.lab.io", "Established").await;
    let resource = Arc::clone(&storage.kind("lab.io", "v1", "widgets").unwrap().stored_as);
    for (name, finalizers) in [("free", json!([])), ("held", json!(["lab.io/hold"]))] {
        let widget = json!({"metadata": {"name": name, "namespace": "n", "finalizers": finalizers}});
        storage.create(&resource, object(widget)).await.unwrap();
    }
    storage
        .edit("crd", "", "widgets.lab.io", |crd| {
            crd.set_metadata("deletionTimestamp", "2026-01-01T00:00:00Z");
        })
        .await;
    storage.until("the end of the free one", |names| !names.contains(&"Widget free".to_owned())).await;
    let waiting = wait_for(&storage, "widgets.lab.io", "Terminating").await;
    assert_eq!(condition(&waiting, "Terminating").1, "InstanceDeletionInProgress");
    let held = storage.get(&resource, "n", "held").await.unwrap().unwrap();
    storage.remove(&resource, &held).await.unwrap();
    storage.until("the end of the definition", <[String]>::is_empty).await;
}

#[tokio::test(start_paused = true)]
async fn start_serves_stored_definitions_first() {
    let storage = Memory::new();
    let resource = kind("crd");
    let mut stored = admitted(definition("widgets", "Widget"));
    stored
        .fields_mut()
        .insert("status".to_owned(), json!({"conditions": [{"type": "Established", "status": "True"}]}));
    storage.create(&resource, stored).await.unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let serve: Serve = Box::new(move |kinds| {
        counted.fetch_add(kinds.len(), Ordering::SeqCst);
    });
    Definitions::start(Arc::clone(&storage), serve).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

/// It was changed between its read and the write of its status: the change is followed, and
/// settles it.
#[tokio::test]
async fn definition_that_has_changed_meanwhile_is_no_failure() {
    let storage = Memory::new();
    create(&storage, definition("widgets", "Widget")).await;
    let definitions = Definitions::start(Arc::clone(&storage), Box::new(|_| {})).await.unwrap();
    storage.conflicts.store(1, Ordering::SeqCst);
    assert!(definitions.settle().await);
    storage.failures.store(1, Ordering::SeqCst);
    assert!(!definitions.settle().await);
}

/// Clusters get the same definitions, with the same rules.
#[test]
fn own_definitions_are_accepted_with_all_their_rules() {
    for text in [
        include_str!("../../../../packaging/kubernetes/crds/clusterplacements.yaml"),
        include_str!("../../../../packaging/kubernetes/crds/placements.yaml"),
    ] {
        let warnings =
            admit(&Kind::without_schema(kind("crd")), None, &mut object(yaml::parse(text).unwrap()));
        assert_eq!(warnings.unwrap(), Vec::<String>::new());
    }
}

#[test]
fn own_rules_refuse_patterns_and_selectors_with_a_reason() {
    let expression = |operator: &str, values: Value| json!({"matchExpressions": [{"key": "site", "operator": operator, "values": values}]});
    let selector = "spec.objects.selector.matchExpressions[0]";
    for (path, value, expected) in [
        ("/nodes/names", json!(["edge-*", "Edge"]), Some(("spec.nodes.names[1]", "wildcards * and ?"))),
        ("/nodes/names", json!(["*", "gw-?.plant"]), None),
        (
            "/objects/namespaces",
            json!(["plant/a"]),
            Some(("spec.objects.namespaces[0]", "wildcards * and ?")),
        ),
        ("/objects/selector", expression("In", json!([])), Some((selector, "needs values with In"))),
        ("/objects/selector", expression("Exists", json!(["a"])), Some((selector, "none with Exists"))),
        ("/objects/selector", expression("NotIn", json!(["a"])), None),
        ("/objects/selector", expression("DoesNotExist", json!([])), None),
        ("/objects/selector", json!({"matchExpressions": [{"key": "site", "operator": "Exists"}]}), None),
    ] {
        let mut rule = json!({"apiVersion": "edgesync.io/v1alpha1", "kind": "ClusterPlacement",
            "metadata": {"name": "a"}, "spec": {"objects": {"kinds": ["cm"]}, "nodes": {}}});
        let (parent, field) = path.rsplit_once('/').unwrap();
        rule["spec"].pointer_mut(parent).unwrap()[field] = value;
        let kinds = own();
        let kind = kinds.iter().find(|kind| kind.resource.kind == "ClusterPlacement").unwrap();
        let causes =
            schema::check_rules(kind.schema.as_ref().unwrap(), None, object(rule.clone()).into_fields());
        match expected {
            None => assert!(causes.is_empty(), "{rule}: {causes:?}"),
            Some((field, why)) => assert!(
                causes.len() == 1 && causes[0].field == field && causes[0].message.contains(why),
                "{rule}: {causes:?}"
            ),
        }
    }
}
