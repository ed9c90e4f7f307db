use super::*;
use crate::Writable;
use edgesync_object::{Resource, Scope};
use edgesync_schema::{PatchStrategy, Schema, Type};

fn kind(group: &str, name: &str, scope: Scope) -> Kind {
    let (group, version, kind) = (group.to_owned(), "v1".to_owned(), name.to_owned());
    let plural = edgesync_object::pluralize(name);
    Kind {
        writable: Writable::Everything,
        ..Kind::without_schema(Arc::new(Resource { group, version, kind, plural, scope }))
    }
}

fn of(kind: Type) -> Arc<Schema> {
    Arc::new(Schema { kind, ..Schema::default() })
}

fn kinds() -> Vec<Arc<Kind>> {
    let ports = Schema {
        kind: Type::Array,
        items: Some(of(Type::Object)),
        patch: PatchStrategy::Merge { key: Some("port".into()), retain_keys: false },
        ..Schema::default()
    };
    let schema = Schema {
        kind: Type::Object,
        properties: [("ports".into(), Arc::new(ports)), ("metadata".into(), of(Type::Object))].into(),
        ..Schema::default()
    };
    let service = Kind {
        schema: Some(Arc::new(schema)),
        status_subresource: true,
        ..kind("", "Service", Scope::Namespaced)
    };
    let node = Kind { writable: Writable::Nothing, ..kind("", "Node", Scope::Cluster) };
    let custom = Kind { custom: true, ..kind("example.com", "Thing", Scope::Namespaced) };
    [service, node, custom].map(Arc::new).into()
}

fn v3(group: &str) -> Value {
    let document = v3_document(&kinds(), group, "v1").unwrap();
    serde_json::from_str(&document.text()).unwrap()
}

fn v2() -> Value {
    serde_json::from_str(&v2_document(&kinds()).text()).unwrap()
}

/// Checks that every reference of a document resolves.
fn check_references(value: &Value, document: &Value) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get("$ref") {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
            }
            members.values().for_each(|member| check_references(member, document));
        }
        Value::Array(items) => items.iter().for_each(|item| check_references(item, document)),
        _ => {}
    }
}

#[test]
fn documents_are_json_and_references_resolve() {
    for document in [v3(""), v3("example.com"), v2()] {
        check_references(&document, &document);
    }
    assert!(v3_document(&kinds(), "apps", "v1").is_none());
    assert!(v3_document(&kinds(), "", "v2").is_none());
    let empty: Value = serde_json::from_str(&v2_document(&[]).text()).unwrap();
    assert_eq!(empty["swagger"], "2.0");
}

#[test]
fn explain_finds_path_and_schema_of_a_kind() {
    let document = v3("");
    let list = &document["paths"]["/api/v1/services"]["get"];
    let gvk = &list["x-kubernetes-group-version-kind"];
    assert_eq!(*gvk, json!({ "group": "", "version": "v1", "kind": "Service" }));
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let of_kind = |schema: &&Value| {
        schema["x-kubernetes-group-version-kind"].as_array().is_some_and(|kinds| kinds.contains(gvk))
    };
    let found: Vec<&Value> = schemas.values().filter(of_kind).collect();
    assert_eq!(found, [&schemas["io.k8s.api.core.v1.Service"]]);
    assert_eq!(found[0]["properties"]["ports"]["x-kubernetes-patch-merge-key"], "port");
    assert_eq!(
        found[0]["properties"]["metadata"]["allOf"][0]["$ref"],
        "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
    assert_eq!(found[0]["properties"]["kind"]["type"], "string");
}

#[test]
fn patches_declare_validation_and_merge_keys() {
    let document = v3("");
    let mut patches = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let Some(patch) = methods.get("patch") else { continue };
        patches += 1;
        let parameters = patch["parameters"].as_array().unwrap();
        for name in ["dryRun", "fieldValidation"] {
            let there = |parameter: &Value| parameter["name"] == name && parameter["in"] == "query";
            assert!(parameters.iter().any(there), "{name} is missing at {path}");
        }
        let content = patch["requestBody"]["content"].as_object().unwrap();
        assert!(content.contains_key("application/strategic-merge-patch+json"), "{path}");
    }
    assert_eq!(patches, 2, "the object and its status");
    let custom = v3("example.com");
    let content = &custom["paths"]["/apis/example.com/v1/namespaces/{namespace}/things/{name}"]["patch"]["requestBody"]
        ["content"];
    assert!(content.get("application/merge-patch+json").is_some());
    assert!(content.get("application/strategic-merge-patch+json").is_none());
}

#[test]
fn undescribed_kinds_have_no_fields() {
    let custom = v3("example.com");
    let schema = custom["components"]["schemas"]["com.example.v1.Thing"].as_object().unwrap();
    let said = ["description", "type", "x-kubernetes-group-version-kind"];
    assert_eq!(schema.keys().collect::<Vec<_>>(), said);
    assert_eq!(
        v2()["definitions"]["com.example.v1.Thing"],
        custom["components"]["schemas"]["com.example.v1.Thing"]
    );
}

/// Returns the published schema of a custom kind.
fn published(schema: &Value, dialect: Dialect) -> Value {
    let schema = edgesync_schema::read(schema, "schema").unwrap();
    let kind = Kind {
        custom: true,
        schema: Some(Arc::new(schema)),
        ..kind("example.com", "Thing", Scope::Namespaced)
    };
    schemas::of_kind(&kind, dialect).remove("com.example.v1.Thing").unwrap()
}

#[test]
fn v2_lists_no_fields_of_an_open_custom_kind() {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"spec": {"type": "object"}}});
    let old = published(&open, Dialect::V2);
    assert_eq!(
        old.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["type", "x-kubernetes-group-version-kind"]
    );
    let new = published(&open, Dialect::V3);
    assert_eq!(
        (&new["x-kubernetes-preserve-unknown-fields"], &new["type"]),
        (&json!(true), &json!("object"))
    );
    assert_eq!(new["properties"]["spec"]["type"], "object");
}

#[test]
fn common_fields_are_explained_for_custom_kinds() {
    let fields = json!({"apiVersion": {"type": "string", "description": "theirs"}, "kind": {"type": "string"},
        "metadata": {"type": "object"}, "spec": {"type": "object"}});
    for dialect in [Dialect::V2, Dialect::V3] {
        let published = published(&json!({"type": "object", "properties": fields}), dialect);
        for field in ["apiVersion", "kind", "metadata"] {
            let description = &published["properties"][field]["description"];
            assert!(description.as_str().is_some_and(|text| text != "theirs"), "{field}: {description}");
        }
    }
}

/// Conformance tests of `kubectl explain` look for these texts in custom kinds.
#[test]
fn custom_kinds_are_explained_in_the_words_of_kubernetes() {
    let spec = json!({"type": "object", "description": "Specification of Foo"});
    let schema = json!({"type": "object", "description": "Foo", "properties": {"spec": spec}});
    let foo = published(&schema, Dialect::V3);
    let described = |pointer: &str, text: &str| {
        let description = foo.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        assert!(description.starts_with(text), "{pointer}: {description}");
    };
    described("/description", "Foo");
    described("/properties/apiVersion/description", "APIVersion defines");
    described("/properties/metadata/description", "Standard object's metadata");
    described("/properties/spec/description", "Specification of Foo");
    let meta = schemas::shared(Dialect::V3);
    let created = &meta[&names::meta("ObjectMeta")]["properties"]["creationTimestamp"];
    assert!(created["description"].as_str().unwrap().starts_with("CreationTimestamp is a timestamp"));
    let empty = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    assert_eq!(published(&empty, Dialect::V3).get("description"), None);
}

#[test]
fn read_only_kinds_have_no_write_operations() {
    let document = v3("");
    let object = document["paths"]["/api/v1/nodes/{name}"].as_object().unwrap();
    assert_eq!(object.keys().collect::<Vec<_>>(), ["get", "parameters"]);
    let mut kinds = kinds();
    kinds[0] = Arc::new(Kind { writable: Writable::Status, ..Kind::clone(&kinds[0]) });
    let document = v3_document(&kinds, "", "v1").unwrap();
    let document: Value = serde_json::from_str(&document.text()).unwrap();
    for (path, expected) in [
        ("services", &["get", "parameters"][..]),
        ("services/{name}", &["get", "parameters"]),
        ("services/{name}/status", &["get", "parameters", "patch", "put"]),
    ] {
        let operations = document["paths"][format!("/api/v1/namespaces/{{namespace}}/{path}")].as_object();
        assert_eq!(operations.unwrap().keys().collect::<Vec<_>>(), expected, "{path}");
    }
}

#[test]
fn operation_ids_are_unique() {
    let mut names = BTreeSet::new();
    for methods in v2()["paths"].as_object().unwrap().values() {
        for operation in methods.as_object().unwrap().values() {
            if let Some(name) = operation.get("operationId") {
                assert!(names.insert(name.to_string()), "{name} is there twice");
            }
        }
    }
    assert!(names.len() > 20);
}

#[test]
fn kinds_with_the_same_name_are_described_once() {
    let twice: Vec<Arc<Kind>> = [kinds(), kinds()].concat();
    let once = v3_document(&kinds(), "", "v1").unwrap();
    let document = v3_document(&twice, "", "v1").unwrap();
    assert_eq!(document.text(), once.text());
}

#[test]
fn index_digests_change_with_a_kind() {
    let read = |index: &V3Index| serde_json::from_str::<Value>(index.text()).unwrap()["paths"].take();
    let index = V3Index::of(&kinds());
    let url = format!("/openapi/v3/apis/example.com/v1?hash={}", index.digest("example.com", "v1").unwrap());
    let index = read(&index);
    assert_eq!(index["apis/example.com/v1"]["serverRelativeURL"], url);
    assert_eq!(index.as_object().unwrap().len(), 2);
    let mut changed = kinds();
    changed[2] = Arc::new(Kind { status_subresource: true, ..Kind::clone(&changed[2]) });
    let changed = read(&V3Index::of(&changed));
    assert_eq!(changed["api/v1"], index["api/v1"]);
    assert_ne!(changed["apis/example.com/v1"], index["apis/example.com/v1"]);
}

#[test]
fn v2_is_served_in_the_form_of_go_clients() {
    let protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    assert_eq!(V2Form::accepted(Some(protobuf)), Some(V2Form::Protobuf));
    assert_eq!(V2Form::accepted(Some("application/json")), Some(V2Form::Json));
    assert_eq!(V2Form::accepted(Some("")), Some(V2Form::Json));
    assert_eq!(V2Form::accepted(None), Some(V2Form::Json));
    assert_eq!(V2Form::accepted(Some("text/html")), None);
    assert!(!V2Form::Protobuf.content_type().contains('@'));
    let bytes = v2_protobuf();
    // The version of the specification, and a message with title and version of the API.
    assert_eq!(bytes[..6], *b"\x0a\x032.0\x12");
    assert_eq!(bytes.len(), 7 + usize::from(bytes[6]));
    assert!(bytes.ends_with(env!("CARGO_PKG_VERSION").as_bytes()));
    assert!(v3_accepts(Some("application/json")) && v3_accepts(None) && v3_accepts(Some("*/*")));
    assert!(!v3_accepts(Some("application/com.github.proto-openapi.spec.v3@v1.0+protobuf")));
}
