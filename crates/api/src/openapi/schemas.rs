//! Schemas of a document: shared ones, and those of a kind and its list. Pure.

use serde_json::{Map, Value, json};

use super::{Dialect, names};
use crate::kind::Kind;
use edgesync_schema as schema;
use edgesync_schema::{Schema, to_openapi};

/// Description of the metadata. Conformance tests of `kubectl explain` compare its beginning, and
/// those of `apiVersion` and `creationTimestamp`.
const METADATA: &str = "Standard object's metadata: name, labels and the like.";

/// Returns the schemas of a kind and of its list.
pub(super) fn of_kind(kind: &Kind, dialect: Dialect) -> Map<String, Value> {
    let mut schemas = Map::new();
    schemas.insert(names::schema(kind), object(kind, dialect));
    schemas.insert(names::list(kind), list(kind, dialect));
    schemas
}

fn object(kind: &Kind, dialect: Dialect) -> Value {
    let mut schema = Map::new();
    match kind.schema.as_deref() {
        // A custom kind on a device: definitions stay in the cloud.
        None => drop(schema.insert("description".into(), json!("The cloud side explains its fields."))),
        // Clients of version 2 treat the listed fields as exhaustive.
        Some(known) if known.preserve_unknown && dialect == Dialect::V2 => {}
        Some(known) => {
            if let Value::Object(converted) = converted(known, dialect) {
                schema = converted;
            }
            let properties = schema.entry("properties").or_insert_with(|| json!({}));
            if let Value::Object(properties) = properties {
                add_type(properties);
                let metadata = reference(dialect, "ObjectMeta", METADATA);
                properties.insert("metadata".into(), metadata);
            }
        }
    }
    schema.insert("type".into(), json!("object"));
    mark(&mut schema, kind, &kind.resource.kind);
    Value::Object(schema)
}

/// Converts a schema to the dialect.
fn converted(schema: &Schema, dialect: Dialect) -> Value {
    match (to_openapi(schema), dialect) {
        (Value::Object(schema), Dialect::V2) => Value::Object(downgrade(schema)),
        (schema, _) => schema,
    }
}

fn list(kind: &Kind, dialect: Dialect) -> Value {
    let mut properties = Map::new();
    add_type(&mut properties);
    properties
        .insert("metadata".into(), reference(dialect, "ListMeta", "Version and continuation of the list."));
    let items = json!({
        "description": "The objects.",
        "type": "array",
        "items": dialect.schema(&names::schema(kind)),
    });
    properties.insert("items".into(), items);
    let mut schema = Map::new();
    schema.insert("description".into(), json!(format!("A list of objects of kind {}.", kind.resource.kind)));
    schema.insert("type".into(), json!("object"));
    schema.insert("required".into(), json!(["items"]));
    schema.insert("properties".into(), Value::Object(properties));
    mark(&mut schema, kind, &kind.list_kind);
    Value::Object(schema)
}

/// Marks a schema with its kind.
fn mark(schema: &mut Map<String, Value>, kind: &Kind, name: &str) {
    let resource = &kind.resource;
    let kinds = json!([{ "group": resource.group, "version": resource.version, "kind": name }]);
    schema.insert("x-kubernetes-group-version-kind".into(), kinds);
}

/// Adds `apiVersion` and `kind`, unless the schema describes them.
fn add_type(properties: &mut Map<String, Value>) {
    for (name, description) in [("apiVersion", "Group and version of the kind."), ("kind", "The kind.")] {
        properties.entry(name).or_insert_with(|| text(description));
    }
}

/// Returns a field that refers to a shared schema. OpenAPI 3 ignores siblings of a reference.
fn reference(dialect: Dialect, name: &str, description: &str) -> Value {
    let mut reference = dialect.schema(&names::meta(name));
    if dialect == Dialect::V3 {
        reference = json!({ "allOf": [reference] });
    }
    reference["description"] = json!(description);
    reference
}

/// Removes keywords that Swagger 2.0 lacks, recursively.
fn downgrade(schema: Map<String, Value>) -> Map<String, Value> {
    let mut downgraded_schema = Map::new();
    for (name, value) in schema {
        let value = match (name.as_str(), value) {
            ("nullable" | "anyOf" | "oneOf" | "not", _) => continue,
            ("properties", Value::Object(fields)) => {
                Value::Object(fields.into_iter().map(|(name, field)| (name, downgraded(field))).collect())
            }
            ("items" | "additionalProperties", value) => downgraded(value),
            ("allOf", Value::Array(schemas)) => schemas.into_iter().map(downgraded).collect(),
            (_, value) => value,
        };
        downgraded_schema.insert(name, value);
    }
    downgraded_schema
}

fn downgraded(value: Value) -> Value {
    match value {
        Value::Object(schema) => Value::Object(downgrade(schema)),
        other => other,
    }
}

/// Returns the schemas shared by all kinds.
pub(super) fn shared(dialect: Dialect) -> Map<String, Value> {
    let schemas = [
        ("DeleteOptions", delete_options()),
        ("ListMeta", list_meta()),
        ("ObjectMeta", converted(&schema::object_meta(), dialect)),
        ("Patch", json!({ "description": "A patch, in the form of its media type.", "type": "object" })),
        ("Status", status()),
    ];
    let mut shared: Map<String, Value> =
        schemas.into_iter().map(|(name, schema)| (names::meta(name), schema)).collect();
    if let Some(status) = shared.get_mut(&names::meta("Status")) {
        status["x-kubernetes-group-version-kind"] =
            json!([{ "group": "", "version": "v1", "kind": "Status" }]);
        status["properties"]["metadata"] = reference(dialect, "ListMeta", "Empty.");
    }
    shared
}

fn text(description: &str) -> Value {
    json!({ "description": description, "type": "string" })
}

fn number(description: &str, format: &str) -> Value {
    json!({ "description": description, "type": "integer", "format": format })
}

fn flag(description: &str) -> Value {
    json!({ "description": description, "type": "boolean" })
}

fn list_meta() -> Value {
    json!({
        "description": "Metadata of a list.",
        "type": "object",
        "properties": {
            "continue": text("The token for the next page; empty on the last."),
            "remainingItemCount": number("Number of remaining objects, if known.", "int64"),
            "resourceVersion": text("Version of the list, from which to watch."),
            "selfLink": text("Deprecated: always empty."),
        },
    })
}

fn delete_options() -> Value {
    json!({
        "description": "Options of a deletion.",
        "type": "object",
        "properties": {
            "apiVersion": text("Group and version of these options."),
            "dryRun": {
                "description": "With 'All' the request is validated and nothing is deleted.",
                "type": "array",
                "items": { "type": "string" },
                "x-kubernetes-list-type": "atomic",
            },
            "gracePeriodSeconds": number("Seconds before the object is deleted.", "int64"),
            "kind": text("DeleteOptions."),
            "orphanDependents": flag("Deprecated: use propagationPolicy."),
            "preconditions": {
                "description": "Preconditions of the deletion.",
                "type": "object",
                "properties": {
                    "resourceVersion": text("Required version of the object."),
                    "uid": text("Required UID of the object."),
                },
            },
            "propagationPolicy": text("Treatment of the dependents of the object: 'Orphan', 'Background' or 'Foreground'."),
        },
    })
}

fn status() -> Value {
    json!({
        "description": "Result of a request.",
        "type": "object",
        "properties": {
            "apiVersion": text("v1."),
            "code": number("The HTTP code.", "int32"),
            "details": {
                "description": "Details of the reason.",
                "type": "object",
                "properties": {
                    "causes": {
                        "description": "The invalid fields.",
                        "type": "array",
                        "x-kubernetes-list-type": "atomic",
                        "items": {
                            "type": "object",
                            "properties": {
                                "field": text("The field."),
                                "message": text("Human-readable description of the cause."),
                                "reason": text("Machine-readable cause."),
                            },
                        },
                    },
                    "group": text("Group of the kind."),
                    "kind": text("The resource."),
                    "name": text("Name of the object."),
                    "retryAfterSeconds": number("Seconds to wait before the next attempt.", "int32"),
                    "uid": text("UID of the object."),
                },
            },
            "kind": text("Status."),
            "message": text("Human-readable result."),
            "reason": text("Machine-readable reason of the failure."),
            "status": text("'Success' or 'Failure'."),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_keywords_are_removed_but_fields_stay() {
        let schema = json!({
            "type": "object",
            "properties": {
                "not": { "type": "string", "nullable": true },
                "list": { "type": "array", "items": { "oneOf": [{}], "format": "int-or-string" } },
            },
            "additionalProperties": true,
            "not": {},
        });
        let Value::Object(schema) = schema else { unreachable!() };
        let expected = json!({
            "type": "object",
            "properties": {
                "not": { "type": "string" },
                "list": { "type": "array", "items": { "format": "int-or-string" } },
            },
            "additionalProperties": true,
        });
        assert_eq!(Value::Object(downgrade(schema)), expected);
    }
}
