//! Estimates the memory that a body takes once parsed, without parsing it: a short text can become
//! many values. Pure.

use super::media::Syntax;

/// A list item or an object field, in bytes: its value, a name, and spare capacity.
const ITEM_BYTES: usize = 96;
/// A non-empty object, in bytes: its fields are stored in nodes of eleven.
const OBJECT_BYTES: usize = 700;
/// A string, in bytes, beyond its characters.
const TEXT_BYTES: usize = 16;
/// Bytes per byte of protobuf: a field with an empty message is two bytes long.
const PROTOBUF_FACTOR: usize = 64;
/// Copies of an object during a write: as sent, as it was before, and as it will be stored.
const COPIES: usize = 3;

/// Estimates the memory of a request with this body, in bytes; never much too low.
pub(super) fn weight(syntax: Syntax, body: &[u8]) -> usize {
    let value = match syntax {
        Syntax::Json => json(body),
        Syntax::Yaml => yaml(body),
        Syntax::Protobuf => body.len().saturating_mul(PROTOBUF_FACTOR),
    };
    body.len().saturating_add(value.saturating_mul(COPIES))
}

/// Counts the structural characters outside of strings.
fn json(body: &[u8]) -> usize {
    let (mut value, mut in_text, mut escaped) = (body.len(), false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => {
                in_text = !in_text;
                value = value.saturating_add(TEXT_BYTES / 2);
            }
            _ if in_text => {}
            b',' | b'[' => value = value.saturating_add(ITEM_BYTES),
            b'{' => value = value.saturating_add(OBJECT_BYTES),
            _ => {}
        }
    }
    value
}

/// Counts every possible item and field: in YAML any line may be an item, and any colon the first
/// field of an object. Strings cannot be recognised.
fn yaml(body: &[u8]) -> usize {
    let of = |byte: &u8| match byte {
        b'\n' | b',' | b'[' => 1 + ITEM_BYTES,
        b'{' => 1 + OBJECT_BYTES,
        // A list of objects with one field each: the hyphen precedes the field.
        b'-' => 1 + OBJECT_BYTES / 2,
        b':' => 1 + ITEM_BYTES,
        _ => 1,
    };
    body.iter().map(of).fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Returns the least memory a value takes, as the standard library stores it.
    fn least(value: &Value) -> usize {
        let value_bytes = size_of::<Value>();
        match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(|item| value_bytes + least(item)).sum(),
            Value::Object(fields) => {
                // A node of eleven, at least half full.
                let node = 11 * (value_bytes + size_of::<String>());
                let fields: Vec<usize> =
                    fields.iter().map(|(name, field)| name.len() + least(field)).collect();
                fields.len().div_ceil(6) * node + fields.iter().sum::<usize>()
            }
            _ => 0,
        }
    }

    #[test]
    fn weight_of_json_covers_many_small_values() {
        for one in
            [r#"{"":0},"#, "{},", "[],", "0,", r#""",{"a":{"b":[]}},"#, r#"{"a":1,"b":2,"c":3,"d":[4]},"#]
        {
            let text = format!("[{}0]", one.repeat(1000));
            let value: Value = serde_json::from_str(&text).unwrap();
            let weight = weight(Syntax::Json, text.as_bytes());
            assert!(weight >= least(&value) * COPIES, "{one}: {weight}, and it is {}", least(&value));
        }
    }

    #[test]
    fn weight_of_yaml_covers_many_short_lines() {
        let list = "- a: 0\n".repeat(1000);
        let value = edgesync_object::yaml::parse(&list).unwrap();
        assert!(weight(Syntax::Yaml, list.as_bytes()) >= least(&value) * COPIES / 2);
    }

    #[test]
    fn weight_of_a_string_is_its_length() {
        let inside = r#"{\"a\":[1,2,3,{\"b\":\"\\\\\"}]}"#.repeat(1000);
        let text = format!(r#"{{"data":"{inside}"}}"#);
        serde_json::from_str::<Value>(&text).unwrap();
        assert!(weight(Syntax::Json, text.as_bytes()) < 4 * text.len() + 4 * OBJECT_BYTES);
    }
}
