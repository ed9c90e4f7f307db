//! Normalization of values that are equivalent to absent ones, and of times. Pure.

use serde_json::{Map, Value};

use super::super::{Schema, Type};
use edgesync_object::time::{rfc3339, rfc3339_micros};

/// Returns whether a field with this value may be omitted: zero, false, empty. Objects with their
/// own fields are left to [`keep_empty`], because clients expect to find them as written.
pub(super) fn is_empty_value(schema: &Schema, value: &Value) -> bool {
    match (schema.kind, value) {
        (Type::Boolean, Value::Bool(value)) => !value,
        (Type::Integer | Type::Number | Type::IntOrString, Value::Number(number)) => {
            number.as_f64() == Some(0.0)
        }
        (Type::String | Type::IntOrString, Value::String(text)) => text.is_empty(),
        (Type::Array, Value::Array(items)) => items.is_empty(),
        (Type::Object, Value::Object(fields)) => fields.is_empty() && schema.additional.is_some(),
        _ => false,
    }
}

/// Normalizes a time to UTC with whole seconds or with microseconds; an invalid one stays as
/// written.
pub(super) fn time(text: &mut String, micro: bool) {
    if let Ok(time) = text.parse() {
        *text = if micro { rfc3339_micros(time) } else { rfc3339(time) };
    }
}

/// Copies the empty objects of the previous version to an object, and removes those that it lacked,
/// where empty means the same as absent.
pub fn keep_empty(schema: &Schema, old: &Map<String, Value>, new: &mut Map<String, Value>) {
    for name in &schema.omitted {
        let Some(field) = schema.properties.get(name).filter(|field| field.kind == Type::Object) else {
            continue;
        };
        match (old.get(&**name), new.get(&**name)) {
            (None, Some(value)) if has_only_empty_objects(field, value) => drop(new.remove(&**name)),
            (Some(value), None) if has_only_empty_objects(field, value) => {
                new.insert(name.to_string(), value.clone());
            }
            _ => {}
        }
    }
    for (name, value) in new {
        if let (Some(field), Some(before)) = (schema.field(name), old.get(name)) {
            keep_empty_in(field, before, value);
        }
    }
}

fn keep_empty_in(schema: &Schema, old: &Value, new: &mut Value) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => keep_empty(schema, old, new),
        (Value::Array(old), Value::Array(new)) => {
            let Some(of) = &schema.items else { return };
            for (before, item) in old.iter().zip(new) {
                keep_empty_in(of, before, item);
            }
        }
        _ => {}
    }
}

/// Returns whether an object contains only such objects, recursively.
fn has_only_empty_objects(schema: &Schema, value: &Value) -> bool {
    let is_omitted = |name: &String, value: &Value| {
        let omitted = schema.omitted.iter().any(|omitted| **omitted == **name);
        omitted
            && schema.properties.get(name.as_str()).is_some_and(|field| has_only_empty_objects(field, value))
    };
    value.as_object().is_some_and(|fields| fields.iter().all(|(name, value)| is_omitted(name, value)))
}
