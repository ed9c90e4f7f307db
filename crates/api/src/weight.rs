//! What a body takes in memory once it has been read as JSON, without reading it: short texts can become much. Pure.

use super::media::Syntax;

/// What an item of a list or a field of an object takes, bytes: its value, a name, and room that is kept for more.
const ITEM_BYTES: usize = 96;
/// What an object takes that has fields, bytes: they come in nodes of eleven.
const OBJECT_BYTES: usize = 700;
/// What a text takes beside its characters, bytes.
const TEXT_BYTES: usize = 16;
/// What a byte of protobuf may become: a field of an empty message is two bytes.
const PROTOBUF_FACTOR: usize = 64;
/// An object is in memory as it came, as it was before, and as it will be stored.
const COPIES: usize = 3;

/// About how many bytes of memory a request takes with this body; never much less than it does.
pub(super) fn weight(syntax: Syntax, body: &[u8]) -> usize {
    let value = match syntax {
        Syntax::Json => json(body),
        Syntax::Yaml => yaml(body),
        Syntax::Protobuf => body.len().saturating_mul(PROTOBUF_FACTOR),
    };
    body.len().saturating_add(value.saturating_mul(COPIES))
}

/// Counts what stands outside of texts.
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

/// In YAML any line may be an item, and any colon the first field of an object. Texts cannot be told apart.
fn yaml(body: &[u8]) -> usize {
    let of = |byte: &u8| match byte {
        b'\n' | b',' | b'[' => 1 + ITEM_BYTES,
        b'{' => 1 + OBJECT_BYTES,
        // Lists of objects with one field each: the hyphen before the field.
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

    /// What a value takes at least, as the standard library keeps it.
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
    fn short_texts_that_become_much_weigh_as_much() {
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
    fn short_lines_of_yaml_that_become_much_weigh_as_much() {
        let list = "- a: 0\n".repeat(1000);
        let value = edgesync_object::yaml::parse(&list).unwrap();
        assert!(weight(Syntax::Yaml, list.as_bytes()) >= least(&value) * COPIES / 2);
    }

    #[test]
    fn what_stands_in_a_text_weighs_what_it_is_long() {
        let inside = r#"{\"a\":[1,2,3,{\"b\":\"\\\\\"}]}"#.repeat(1000);
        let text = format!(r#"{{"data":"{inside}"}}"#);
        serde_json::from_str::<Value>(&text).unwrap();
        assert!(weight(Syntax::Json, text.as_bytes()) < 4 * text.len() + 4 * OBJECT_BYTES);
    }
}
