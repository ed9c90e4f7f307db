//! What a schema does to an object: unknown fields go, missing ones get their defaults, wrong ones are named.
//! Depends on `schema` alone, and on the regular expressions of the cloud side.
//!
//! `null` in a field that is not nullable counts as absent everywhere, as it does in Kubernetes' own kinds: it is
//! removed without a word, defaulted, and missing where the field is required. As an item of a list it is a value of
//! the wrong type. As a value in a map of texts it is the empty text.
//!
//! The functions descend as deep as the object, whose depth is bounded where it is read.

use serde_json::{Map, Value};

use super::{MICRO_TIME, Schema, TIME, Type};

mod format;
mod quantity;
mod settle;
mod validate;

pub use settle::keep_empty;
pub(super) use validate::{ByKeys, PatternCheck, value_problems};
pub use validate::{validate, validate_change, wrong_types};

/// The most unknown fields that are named; all are removed.
pub const MAX_UNKNOWN: usize = 100;
/// The most that the defaults of one object may weigh together, about their bytes as text. It is more than an
/// object may have in all, so that no object that can be stored comes near.
pub const MAX_DEFAULTS: usize = 4 * 1024 * 1024;

/// Removes the fields that the schema does not know and returns their paths, such as `spec.foo[0].bar`; at most
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

/// Whether every object has this field.
fn is_object_field(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

/// Gives missing fields their defaults, also within the defaults; what is empty and would as well be absent goes before,
/// and quantities and times are written in their one way. Stops at [`MAX_DEFAULTS`]: the object is
/// too large to be stored then.
pub fn apply_defaults(schema: &Schema, object: &mut Map<String, Value>) {
    let mut left = MAX_DEFAULTS;
    default_fields(schema, object, &mut left);
}

/// The same, but stops when the defaults weigh so much.
pub fn apply_defaults_within(schema: &Schema, object: &mut Map<String, Value>, mut limit: usize) {
    default_fields(schema, object, &mut limit);
}

fn default_fields(schema: &Schema, fields: &mut Map<String, Value>, left: &mut usize) {
    if !schema.omitted.is_empty() {
        let omitted = |name: &String| schema.omitted.iter().any(|omitted| **omitted == **name);
        fields.retain(|name, value| {
            let field = schema.properties.get(name.as_str());
            !field.is_some_and(|field| settle::says_nothing(field, value) && omitted(name))
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

/// Gives what is missing within a value its defaults, which may weigh as much as is left.
pub(super) fn default_value(schema: &Schema, value: &mut Value, left: &mut usize) {
    match value {
        Value::Object(fields) => default_fields(schema, fields, left),
        Value::Array(items) => {
            let Some(of) = &schema.items else { return };
            for item in items {
                default_value(of, item, left);
            }
        }
        value if &*schema.format == "quantity" => quantity::settle(value),
        Value::String(text) if matches!(&*schema.format, TIME | MICRO_TIME) => {
            settle::time(text, &*schema.format == MICRO_TIME);
        }
        _ => {}
    }
}

/// About how many bytes a value is as text, and at least one for each value in it.
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
