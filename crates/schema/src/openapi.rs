//! OpenAPI v3 output with Kubernetes' extensions, for `kubectl explain` and client libraries.
//! Depends on `schema` only.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Limits, ListType, MICRO_TIME, PatchStrategy, Schema, TIME, Type};
use edgesync_object::number::whole;

/// Converts a schema to OpenAPI v3, without references. Recurses as deep as the schema, whose depth
/// the parser limits.
#[must_use]
pub fn to_openapi(schema: &Schema) -> Value {
    let mut out = Writer(Map::new());
    out.base(schema);
    out.extensions(schema);
    if let Some(limits) = &schema.limits {
        out.limits(limits);
    }
    if let Some(rules) = schema.rules.as_ref().filter(|rules| !rules.given.is_null()) {
        out.put("x-kubernetes-validations", rules.given.clone());
    }
    Value::Object(out.0)
}

/// Returns the name of a type in a Kubernetes schema; `None` if it has none.
fn type_name(kind: Type) -> Option<&'static str> {
    match kind {
        Type::Any | Type::IntOrString => None,
        Type::Object => Some("object"),
        Type::Array => Some("array"),
        Type::String => Some("string"),
        Type::Integer => Some("integer"),
        Type::Number => Some("number"),
        Type::Boolean => Some("boolean"),
    }
}

struct Writer(Map<String, Value>);

impl Writer {
    fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    fn put_if(&mut self, name: &str, condition: bool) {
        if condition {
            self.put(name, true);
        }
    }

    fn put_some(&mut self, name: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }

    fn put_text(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            self.put(name, text);
        }
    }

    fn put_all(&mut self, name: &str, schemas: &[Arc<Schema>]) {
        if !schemas.is_empty() {
            let schemas: Vec<Value> = schemas.iter().map(|schema| to_openapi(schema)).collect();
            self.put(name, schemas);
        }
    }

    fn base(&mut self, schema: &Schema) {
        self.put_some("type", type_name(schema.kind));
        self.put_text("description", &schema.description);
        self.put_text(
            "format",
            match &*schema.format {
                TIME | MICRO_TIME => "date-time",
                format => format,
            },
        );
        if !schema.properties.is_empty() {
            let fields = schema.properties.iter();
            let fields: Map<String, Value> =
                fields.map(|(name, field)| (name.to_string(), to_openapi(field))).collect();
            self.put("properties", fields);
        }
        self.put_some("additionalProperties", schema.additional.as_deref().map(to_openapi));
        self.put_some("items", schema.items.as_deref().map(to_openapi));
        if !schema.required.is_empty() {
            self.put("required", texts(&schema.required));
        }
        self.put_some("default", schema.default.clone());
        self.put_if("nullable", schema.nullable);
    }

    fn extensions(&mut self, schema: &Schema) {
        if schema.kind == Type::IntOrString {
            self.put("x-kubernetes-int-or-string", true);
            self.put("anyOf", int_or_string());
        }
        self.put_if("x-kubernetes-preserve-unknown-fields", schema.preserve_unknown);
        self.put_if("x-kubernetes-embedded-resource", schema.embedded_resource);
        if schema.atomic_map {
            self.put("x-kubernetes-map-type", "atomic");
        }
        match &schema.list {
            ListType::Atomic => {}
            ListType::Set => self.put("x-kubernetes-list-type", "set"),
            ListType::Map(keys) => {
                self.put("x-kubernetes-list-type", "map");
                self.put("x-kubernetes-list-map-keys", texts(keys));
            }
        }
        match &schema.patch {
            PatchStrategy::Default => {}
            PatchStrategy::RetainKeys => self.put("x-kubernetes-patch-strategy", "retainKeys"),
            PatchStrategy::Merge { key, retain_keys } => {
                let strategy = if *retain_keys { "merge,retainKeys" } else { "merge" };
                self.put("x-kubernetes-patch-strategy", strategy);
                self.put_some("x-kubernetes-patch-merge-key", key.as_deref());
            }
        }
    }

    fn limits(&mut self, limits: &Limits) {
        if !limits.choices.is_empty() {
            self.put("enum", limits.choices.clone());
        }
        self.put_some("pattern", limits.pattern.as_deref());
        self.put_some("minLength", limits.min_length);
        self.put_some("maxLength", limits.max_length);
        self.put_some("minItems", limits.min_items);
        self.put_some("maxItems", limits.max_items);
        self.put_some("minProperties", limits.min_properties);
        self.put_some("maxProperties", limits.max_properties);
        self.put_if("uniqueItems", limits.unique_items);
        self.put_some("multipleOf", limits.multiple_of.map(number));
        self.put_some("minimum", limits.minimum.map(|(least, _)| number(least)));
        self.put_if("exclusiveMinimum", limits.minimum.is_some_and(|(_, exclusive)| exclusive));
        self.put_some("maximum", limits.maximum.map(|(most, _)| number(most)));
        self.put_if("exclusiveMaximum", limits.maximum.is_some_and(|(_, exclusive)| exclusive));
        self.put_all("allOf", &limits.all_of);
        self.put_all("anyOf", &limits.any_of);
        self.put_all("oneOf", &limits.one_of);
        self.put_some("not", limits.not.as_deref().map(to_openapi));
    }
}

/// Returns the `anyOf` of an int-or-string value.
pub(super) fn int_or_string() -> Value {
    json!([{ "type": "integer" }, { "type": "string" }])
}

fn texts(texts: &[Arc<str>]) -> Vec<Value> {
    texts.iter().map(|text| Value::from(&**text)).collect()
}

/// Converts a number; whole ones lose their fraction.
fn number(number: f64) -> Value {
    whole(number).map_or_else(|| Value::from(number), Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    #[test]
    fn built_in_kind_has_merge_keys_and_list_types() {
        let lease = to_openapi(&builtin("coordination.k8s.io", "v1", "Lease").unwrap());
        assert_eq!(lease["type"], "object");
        let metadata = &lease["properties"]["metadata"];
        let owners = &metadata["properties"]["ownerReferences"];
        assert_eq!(owners["x-kubernetes-patch-strategy"], "merge");
        assert_eq!(owners["x-kubernetes-patch-merge-key"], "uid");
        assert_eq!(owners["x-kubernetes-list-type"], "map");
        assert_eq!(owners["x-kubernetes-list-map-keys"], json!(["uid"]));
        assert_eq!(owners["items"]["x-kubernetes-map-type"], "atomic");
        assert_eq!(owners["items"]["required"], json!(["apiVersion", "kind", "name", "uid"]));
        assert_eq!(lease["properties"]["spec"]["properties"]["renewTime"]["format"], "date-time");
    }

    #[test]
    fn numbers_keep_their_value() {
        for value in [0.0, -1.0, 1.5, 1e300, -0.25, 9e15] {
            assert_eq!(number(value).as_f64(), Some(value));
        }
        assert_eq!(number(3.0).to_string(), "3");
    }
}
