//! Application of a schema to an object: pruning of unknown fields, defaults, validation. Depends
//! on `schema`, and on regular expressions for the cloud side.
//!
//! `null` in a field that is not nullable counts as absent everywhere, as in Kubernetes' own kinds:
//! it is removed silently, defaulted, and missing if the field is required. As an item of a list it
//! is a value of the wrong type. As a value in a map of strings it is the empty string.
//!
//! The functions recurse as deep as the object, whose depth the parser limits.

use serde_json::{Map, Value};

use super::{MICRO_TIME, Schema, TIME, Type};

mod format;
mod normalize;
mod quantity;
mod validate;

pub use normalize::keep_empty;
pub(super) use validate::{ByKeys, PatternCheck, value_problems};
pub use validate::{validate, validate_change, wrong_types};

/// Maximum number of unknown fields in a report; all are removed.
pub const MAX_UNKNOWN: usize = 100;
/// Maximum size of the defaults applied to one object, approximately in bytes of text. It exceeds
/// the size limit of objects, so no storable object reaches it.
pub const MAX_DEFAULTS: usize = 4 * 1024 * 1024;

/// Removes unknown fields and returns their paths, such as `spec.foo[0].bar`; at most
/// [`MAX_UNKNOWN`] of them. `apiVersion`, `kind` and `metadata` are always known.
pub fn prune(schema: &Schema, object: &mut Map<String, Value>) -> Vec<String> {
    let mut pruner = Pruner::default();
    pruner.object(schema, object, true);
    pruner.unknown
}

#[derive(Default)]
struct Pruner {
    path: String,
    unknown: Vec<String>,
}

impl Pruner {
    fn value(&mut self, schema: &Schema, value: &mut Value) {
        match value {
            Value::Object(fields) => self.object(schema, fields, false),
            Value::Array(items) => {
                let Some(of) = &schema.items else { return };
                for (index, item) in items.iter_mut().enumerate() {
                    let length = self.path.len();
                    self.path.push_str(&format!("[{index}]"));
                    self.value(of, item);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    fn object(&mut self, schema: &Schema, fields: &mut Map<String, Value>, root: bool) {
        let keep_unknown = schema.preserve_unknown || schema.kind == Type::Any;
        fields.retain(|name, value| {
            let property = schema.properties.get(name.as_str());
            let Some(field) = property.or(schema.additional.as_ref()) else {
                let known = keep_unknown || (root && is_object_field(name));
                if !known {
                    self.report(name);
                }
                return known;
            };
            if value.is_null() && !field.nullable && field.kind != Type::Any {
                if property.is_none() && field.kind == Type::String {
                    *value = Value::String(String::new());
                }
                return property.is_none();
            }
            let length = self.enter(name);
            self.value(field, value);
            self.path.truncate(length);
            true
        });
    }

    fn enter(&mut self, name: &str) -> usize {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        length
    }

    fn report(&mut self, name: &str) {
        if self.unknown.len() < MAX_UNKNOWN {
            let length = self.enter(name);
            self.unknown.push(self.path.clone());
            self.path.truncate(length);
        }
    }
}

/// Returns whether every object has this field.
fn is_object_field(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

/// Applies defaults to missing fields, recursively. Removes empty values that mean the same as
/// absent ones before, and normalizes quantities and times. Stops at [`MAX_DEFAULTS`]: then the
/// object is too large to be stored.
pub fn apply_defaults(schema: &Schema, object: &mut Map<String, Value>) {
    let mut left = MAX_DEFAULTS;
    default_fields(schema, object, &mut left);
}

/// The same with another limit for the size of the defaults.
pub fn apply_defaults_within(schema: &Schema, object: &mut Map<String, Value>, mut limit: usize) {
    default_fields(schema, object, &mut limit);
}

fn default_fields(schema: &Schema, fields: &mut Map<String, Value>, left: &mut usize) {
    if !schema.omitted.is_empty() {
        let omitted = |name: &String| schema.omitted.iter().any(|omitted| **omitted == **name);
        fields.retain(|name, value| {
            let field = schema.properties.get(name.as_str());
            !field.is_some_and(|field| normalize::is_empty_value(field, value) && omitted(name))
        });
    }
    for (name, field) in &schema.properties {
        let Some(default) = &field.default else { continue };
        let absent = fields.get(name.as_ref()).is_none_or(|value| value.is_null() && !field.nullable);
        if absent {
            let Some(rest) = left.checked_sub(name.len() + weight(default)) else {
                *left = 0;
                return;
            };
            *left = rest;
            fields.insert(name.to_string(), default.clone());
        }
    }
    for (name, value) in fields {
        if let Some(field) = schema.field(name) {
            default_value(field, value, left);
        }
    }
}

/// Applies defaults within a value, up to the remaining size.
pub(super) fn default_value(schema: &Schema, value: &mut Value, left: &mut usize) {
    match value {
        Value::Object(fields) => default_fields(schema, fields, left),
        Value::Array(items) => {
            let Some(of) = &schema.items else { return };
            for item in items {
                default_value(of, item, left);
            }
        }
        value if &*schema.format == "quantity" => quantity::normalize(value),
        Value::String(text) if matches!(&*schema.format, TIME | MICRO_TIME) => {
            normalize::time(text, &*schema.format == MICRO_TIME);
        }
        _ => {}
    }
}

/// Returns the approximate size of a value as text, at least one byte per value in it.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(weight).sum::<usize>() + 2,
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| name.len() + 4 + weight(value)).sum::<usize>() + 2
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

#[cfg(test)]
mod tests;
