//! Decodes objects in the Protocol Buffers encoding of Kubernetes to JSON values. Pure; depends on
//! `object` only.
//!
//! Clients with typed built-in kinds write their requests in it: `kubectl create configmap`, leader
//! elections. It is accepted in requests only; such clients accept JSON responses. The result
//! equals the JSON of the same client except for empty values, which encoders mostly write and this
//! decoder omits. Field numbers are in the tables of the built-in kinds.
//!
//! Unknown fields are skipped, as usual with Protocol Buffers. Of repeated values the last one
//! wins, and messages are merged. Time and memory are linear in the body.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use edgesync_object::status::{Reason, Result};
use edgesync_object::{MAX_DEPTH, Status};
use edgesync_schema::{Content, Found, Many, Message, MessageField, Within, message, message_of_kind};

mod special;
mod wire;

use wire::{Decoded, Part, Parts};

/// The media type of the encoding.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Prefix of every body.
const MAGIC: &[u8] = b"k8s\0";
/// Content types supported inside the envelope.
const CONTENT_TYPES: [&str; 3] = ["", MEDIA_TYPE, "application/json"];
/// Maximum number of characters of a kind echoed in an error.
const MAX_SHOWN: usize = 64;
const TOO_DEEP: &str = "it is nested too deeply";

/// Decodes a body: the object with its `apiVersion` and `kind`.
///
/// # Errors
/// 400 for bytes that are not an object in this encoding or nest deeper than [`MAX_DEPTH`], 415 for
/// unsupported kinds and contents.
pub(crate) fn read(body: &[u8]) -> Result<Value> {
    let envelope = Envelope::read(body).map_err(malformed)?;
    if !envelope.encoding.is_empty() || !CONTENT_TYPES.contains(&envelope.content_type) {
        return Err(unsupported("only contents that are neither compressed nor of another media type"));
    }
    let mut object = Map::new();
    if envelope.content_type == CONTENT_TYPES[2] {
        match super::read_body(None, envelope.raw)? {
            Value::Object(fields) => object = fields,
            _ => return Err(malformed("its JSON is not an object")),
        }
    } else {
        let (group, version) = envelope.api_version.split_once('/').unwrap_or(("", envelope.api_version));
        let Some(message) = message_of_kind(group, version, envelope.kind) else {
            let kind: String = envelope.kind.chars().take(MAX_SHOWN).collect();
            return Err(unsupported(&format!("only built-in kinds, but not '{kind}'")));
        };
        add_fields(&message, Within::default(), envelope.raw, &mut object, MAX_DEPTH).map_err(malformed)?;
    }
    object.insert("apiVersion".to_owned(), envelope.api_version.into());
    object.insert("kind".to_owned(), envelope.kind.into());
    Ok(Value::Object(object))
}

fn malformed(reason: &str) -> Status {
    Status::bad_request(format!("the body is not a valid object in Protocol Buffers: {reason}"))
}

fn unsupported(what: &str) -> Status {
    let message = format!("of {MEDIA_TYPE}, {what}, can be read; JSON and YAML are read for all kinds");
    Status::new(Reason::UnsupportedMediaType, message)
}

/// The envelope of an object.
#[derive(Default)]
struct Envelope<'a> {
    api_version: &'a str,
    kind: &'a str,
    raw: &'a [u8],
    encoding: &'a str,
    content_type: &'a str,
}

impl<'a> Envelope<'a> {
    fn read(body: &'a [u8]) -> Decoded<Self> {
        let bytes = body.strip_prefix(MAGIC).ok_or("its first bytes are not those of an envelope")?;
        let mut envelope = Self::default();
        for part in Parts(bytes) {
            match part? {
                (1, part) => envelope.read_type(part.bytes()?)?,
                (2, part) => envelope.raw = part.bytes()?,
                (3, part) => envelope.encoding = part.text()?,
                (4, part) => envelope.content_type = part.text()?,
                _ => {}
            }
        }
        if envelope.api_version.is_empty() || envelope.kind.is_empty() {
            return Err("apiVersion or kind is missing");
        }
        Ok(envelope)
    }

    fn read_type(&mut self, bytes: &'a [u8]) -> Decoded<()> {
        for part in Parts(bytes) {
            match part? {
                (1, part) => self.api_version = part.text()?,
                (2, part) => self.kind = part.text()?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Decodes the fields of a message into `object`. `within` is the embedded message that the bytes
/// belong to; `levels` is the allowed depth, including this one.
fn add_fields(
    message: &Message,
    within: Within,
    bytes: &[u8],
    object: &mut Map<String, Value>,
    levels: usize,
) -> Decoded<()> {
    let levels = levels.checked_sub(1).ok_or(TOO_DEEP)?;
    for part in Parts(bytes) {
        let (number, part) = part?;
        match message.find(within, number) {
            Found::Field(field) => add(field, part, object, levels)?,
            // An embedded message adds no level in JSON.
            Found::Embedded(within) => add_fields(message, within, part.bytes()?, object, levels + 1)?,
            Found::Nothing => {}
        }
    }
    Ok(())
}

/// Decodes one part of a field.
fn add(field: &MessageField, part: Part<'_>, object: &mut Map<String, Value>, levels: usize) -> Decoded<()> {
    match field.many {
        Many::One => set(field, part, object, levels),
        Many::List => {
            let items = object.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
            let Value::Array(items) = items else { return Ok(()) };
            let levels = levels.checked_sub(1).ok_or(TOO_DEEP)?;
            match (field.content, part) {
                (Content::Int32 | Content::Int64 | Content::Boolean, Part::Bytes(packed)) => {
                    let mut numbers = Parts(packed);
                    while !numbers.0.is_empty() {
                        let number = Part::Varint(numbers.varint()?);
                        items.extend(value(field.content, number, levels)?);
                    }
                }
                _ => items.extend(value(field.content, part, levels)?),
            }
            Ok(())
        }
        Many::Map => {
            let entries = object.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(entries) = entries else { return Ok(()) };
            let levels = levels.checked_sub(1).ok_or(TOO_DEEP)?;
            let (mut name, mut content) = ("", empty(field.content));
            for part in Parts(part.bytes()?) {
                match part? {
                    (1, part) => name = part.text()?,
                    (2, part) => content = part,
                    _ => {}
                }
            }
            entries.extend(value(field.content, content, levels)?.map(|value| (name.to_owned(), value)));
            Ok(())
        }
    }
}

/// Sets a field with one value, or merges it if it is a message.
fn set(field: &MessageField, part: Part<'_>, object: &mut Map<String, Value>, levels: usize) -> Decoded<()> {
    if let Content::Message(name) = field.content
        && let Some(Value::Object(fields)) = object.get_mut(field.name)
        && let Some(message) = message(name).filter(|message| !message.one)
    {
        return add_fields(&message, Within::default(), part.bytes()?, fields, levels);
    }
    let value = value(field.content, part, levels)?;
    match value.filter(|value| field.keeps_empty || !is_empty(value)) {
        Some(value) => object.insert(field.name.to_owned(), value),
        None => object.remove(field.name),
    };
    Ok(())
}

/// Decodes a value; `None` if JSON has none.
fn value(content: Content, part: Part<'_>, levels: usize) -> Decoded<Option<Value>> {
    Ok(Some(match content {
        Content::Text => part.text()?.into(),
        Content::Boolean => (part.varint()? != 0).into(),
        Content::Int32 => special::int32(part.varint()?).into(),
        Content::Int64 => part.varint()?.cast_signed().into(),
        Content::Double => special::double(part.double()?)?,
        Content::Bytes => STANDARD.encode(part.bytes()?).into(),
        Content::Time => return special::time(part.bytes()?, false),
        Content::MicroTime => return special::time(part.bytes()?, true),
        Content::Quantity => special::quantity(part.bytes()?)?,
        Content::IntOrString => special::int_or_string(part.bytes()?)?,
        Content::Json => return special::json(part.bytes()?, levels),
        Content::Unread => return Ok(None),
        Content::Message(name) => {
            let Some(message) = message(name) else { return Ok(None) };
            let mut fields = Map::new();
            add_fields(&message, Within::default(), part.bytes()?, &mut fields, levels)?;
            if message.one {
                return Ok(message.fields().rev().find_map(|field| fields.remove(field.name)));
            }
            Value::Object(fields)
        }
    }))
}

/// Returns the default value of a map entry.
fn empty(content: Content) -> Part<'static> {
    match content {
        Content::Boolean | Content::Int32 | Content::Int64 => Part::Varint(0),
        Content::Double => Part::Fixed64([0; 8]),
        _ => Part::Bytes(&[]),
    }
}

/// Returns whether a value is the encoder's form of an absent one.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

#[cfg(test)]
mod tests;
