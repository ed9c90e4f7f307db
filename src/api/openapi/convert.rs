//! A schema as OpenAPI writes it. Pure.

use serde_json::{Map, Value, json};

use crate::object::schema::{ListType, PatchStrategy, Schema, Type};

/// Writes a schema. Goes as deep as the schema does.
pub(super) fn to_openapi(schema: &Schema) -> Value {
    let mut out = Map::new();
    let mut put = |name: &str, value: Value| {
        out.insert(name.to_owned(), value);
    };
    match schema.kind {
        Type::Any => {}
        Type::Object => put("type", json!("object")),
        Type::Array => put("type", json!("array")),
        Type::String => put("type", json!("string")),
        Type::Integer => put("type", json!("integer")),
        Type::Number => put("type", json!("number")),
        Type::Boolean => put("type", json!("boolean")),
        Type::IntOrString => put("x-kubernetes-int-or-string", json!(true)),
    }
    if !schema.description.is_empty() {
        put("description", json!(&*schema.description));
    }
    if !schema.format.is_empty() {
        put("format", json!(&*schema.format));
    }
    if !schema.properties.is_empty() {
        let fields = schema.properties.iter().map(|(name, field)| (name.to_string(), to_openapi(field)));
        put("properties", Value::Object(fields.collect()));
    }
    if let Some(values) = &schema.additional {
        put("additionalProperties", to_openapi(values));
    }
    if let Some(items) = &schema.items {
        put("items", to_openapi(items));
    }
    if !schema.required.is_empty() {
        put("required", schema.required.iter().map(|name| json!(&**name)).collect());
    }
    if let Some(default) = &schema.default {
        put("default", default.clone());
    }
    if schema.preserve_unknown {
        put("x-kubernetes-preserve-unknown-fields", json!(true));
    }
    match &schema.list {
        ListType::Atomic => {}
        ListType::Set => put("x-kubernetes-list-type", json!("set")),
        ListType::Map(keys) => {
            put("x-kubernetes-list-type", json!("map"));
            put("x-kubernetes-list-map-keys", keys.iter().map(|key| json!(&**key)).collect());
        }
    }
    match &schema.patch {
        PatchStrategy::Default => {}
        PatchStrategy::RetainKeys => put("x-kubernetes-patch-strategy", json!("retainKeys")),
        PatchStrategy::Merge { key, retain_keys } => {
            let strategy = if *retain_keys { "merge,retainKeys" } else { "merge" };
            put("x-kubernetes-patch-strategy", json!(strategy));
            if let Some(key) = key {
                put("x-kubernetes-patch-merge-key", json!(&**key));
            }
        }
    }
    Value::Object(out)
}
