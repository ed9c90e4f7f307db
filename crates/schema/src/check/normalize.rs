//! What says nothing makes no difference: empty objects that one client writes and another leaves out. Pure.

use serde_json::{Map, Value};

use super::super::{Schema, Type};
use edgesync_object::time::{rfc3339, rfc3339_micros};

/// Whether a field can be left out with this value: nought, no, nothing. Objects with fields of their own are left to
/// [`keep_empty`], because clients expect to find them as they wrote them.
pub(super) fn says_nothing(schema: &Schema, value: &Value) -> bool {
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

/// Writes a time in UTC with whole seconds, or with six digits of the second; what is none stays as it is.
pub(super) fn time(text: &mut String, micro: bool) {
    if let Ok(time) = text.parse() {
        *text = if micro { rfc3339_micros(time) } else { rfc3339(time) };
    }
}

/// Gives an object the empty objects that the one before it has, and takes those that it does not have, where empty
/// means the same as absent.
pub fn keep_empty(schema: &Schema, old: &Map<String, Value>, new: &mut Map<String, Value>) {
    for name in &schema.omitted {
        let Some(field) = schema.properties.get(name).filter(|field| field.kind == Type::Object) else {
            continue;
        };
        match (old.get(&**name), new.get(&**name)) {
            (None, Some(value)) if is_hollow(field, value) => drop(new.remove(&**name)),
            (Some(value), None) if is_hollow(field, value) => {
                new.insert(name.to_string(), value.clone());
            }
            _ => {}
        }
    }
    for (name, value) in new {
        if let (Some(field), Some(before)) = (schema.field(name), old.get(name)) {
            keep_in(field, before, value);
        }
    }
}

fn keep_in(schema: &Schema, old: &Value, new: &mut Value) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => keep_empty(schema, old, new),
        (Value::Array(old), Value::Array(new)) => {
            let Some(of) = &schema.items else { return };
            for (before, item) in old.iter().zip(new) {
                keep_in(of, before, item);
            }
        }
        _ => {}
    }
}

/// Whether an object has nothing in it but such objects.
fn is_hollow(schema: &Schema, value: &Value) -> bool {
    let hollow = |name: &String, value: &Value| {
        let omitted = schema.omitted.iter().any(|omitted| **omitted == **name);
        omitted && schema.properties.get(name.as_str()).is_some_and(|field| is_hollow(field, value))
    };
    value.as_object().is_some_and(|fields| fields.iter().all(|(name, value)| hollow(name, value)))
}
