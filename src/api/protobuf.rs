//! Objects in the protobuf encoding of Kubernetes, read as JSON values. Pure; depends on `object` only.
//!
//! `kubectl create namespace`, `create configmap` and the like send nothing else, and so do clients with the
//! types of the built-in kinds for their writes. Only requests are read: whoever accepts protobuf accepts JSON
//! as well. `protobuf/messages.txt` has the numbers of the fields that are known, one message per
//! line; as with any protobuf, the others are skipped.

use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::object::status::{Reason, Result};
use crate::object::{MAX_DEPTH, Status};

/// The content type.
pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// What the encoding begins with.
const MAGIC: &[u8] = b"k8s\0";

/// `<number>=<field>:<type>` for each field. A field without a name has its fields in the message itself. In
/// the type, `*` keeps empty values, `[` is a list, `{` a map; then `.` and a message, or one letter.
const MESSAGES: &str = include_str!("protobuf/messages.txt");

static TABLE: LazyLock<HashMap<&str, Vec<Field>>> = LazyLock::new(|| {
    let message = |line: &'static str| {
        let (name, fields) = line.split_once(' ')?;
        Some((name, fields.split(' ').filter_map(Field::read).collect()))
    };
    MESSAGES.lines().filter_map(message).collect()
});

/// A field of a message.
struct Field {
    number: u64,
    /// In JSON; empty if its fields are those of the message around it.
    name: &'static str,
    /// Whether a value that is empty is a value.
    keep: bool,
    many: Many,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Many {
    One,
    List,
    Map,
}

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Integer,
    Boolean,
    /// Base64 in JSON.
    Bytes,
    Time,
    /// A message around a text.
    Quantity,
    IntOrString,
    Message(&'static str),
}

impl Field {
    fn read(text: &'static str) -> Option<Self> {
        let (number, rest) = text.split_once('=')?;
        let (name, rest) = rest.split_once(':')?;
        let (keep, rest) = rest.strip_prefix('*').map_or((false, rest), |rest| (true, rest));
        let (many, rest) = match (rest.strip_prefix('['), rest.strip_prefix('{')) {
            (Some(rest), _) => (Many::List, rest),
            (None, Some(rest)) => (Many::Map, rest),
            (None, None) => (Many::One, rest),
        };
        let kind = match rest {
            "s" => Kind::Text,
            "i" => Kind::Integer,
            "b" => Kind::Boolean,
            "y" => Kind::Bytes,
            "t" => Kind::Time,
            "q" => Kind::Quantity,
            "x" => Kind::IntOrString,
            _ => Kind::Message(rest.strip_prefix('.')?),
        };
        Some(Self { number: number.parse().ok()?, name, keep, many, kind })
    }
}

/// Reads an object.
///
/// # Errors
/// 400 for bytes that are not what they should be, 415 for a kind that is not known in this encoding.
pub(super) fn read(body: &[u8]) -> Result<Value> {
    let broken = || Status::bad_request("the body must be an object in the protobuf encoding of Kubernetes");
    let envelope = body.strip_prefix(MAGIC).ok_or_else(broken)?;
    let (mut api_version, mut kind, mut raw) = (None, None, &[][..]);
    for part in Parts(envelope) {
        match part.ok_or_else(broken)? {
            (1, Part::Bytes(types)) => {
                for part in Parts(types) {
                    match part.ok_or_else(broken)? {
                        (1, Part::Bytes(text)) => api_version = text_of(text),
                        (2, Part::Bytes(text)) => kind = text_of(text),
                        _ => {}
                    }
                }
            }
            (2, Part::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let (api_version, kind) = api_version.zip(kind).ok_or_else(broken)?;
    if !TABLE.contains_key(kind) {
        let shown: String = kind.chars().take(64).collect();
        let message =
            format!("objects of kind \"{shown}\" are not read as {MEDIA_TYPE}, only as JSON or YAML");
        return Err(Status::new(Reason::UnsupportedMediaType, message));
    }
    let mut fields = Map::new();
    message(kind, raw, &mut fields, MAX_DEPTH - 1).ok_or_else(broken)?;
    fields.insert("apiVersion".into(), api_version.into());
    fields.insert("kind".into(), kind.into());
    Ok(Value::Object(fields))
}

/// Adds the fields of a message; `None` if they cannot be read.
fn message(name: &str, bytes: &[u8], into: &mut Map<String, Value>, depth: usize) -> Option<()> {
    let known = TABLE.get(name)?;
    let depth = depth.checked_sub(1)?;
    for part in Parts(bytes) {
        let (number, part) = part?;
        let Some(field) = known.iter().find(|field| field.number == number) else { continue };
        if let (true, Kind::Message(inner), Part::Bytes(bytes)) = (field.name.is_empty(), field.kind, &part) {
            message(inner, bytes, into, depth)?;
            continue;
        }
        match field.many {
            Many::One => {
                let value = value(field.kind, &part, depth)?;
                if field.keep || !is_empty(&value) {
                    into.insert(field.name.to_owned(), value);
                }
            }
            Many::List => {
                let value = value(field.kind, &part, depth.checked_sub(1)?)?;
                if let Value::Array(items) =
                    into.entry(field.name).or_insert_with(|| Value::Array(Vec::new()))
                {
                    items.push(value);
                }
            }
            Many::Map => {
                let (name, value) = entry(field.kind, &part, depth.checked_sub(1)?)?;
                if let Value::Object(entries) =
                    into.entry(field.name).or_insert_with(|| Value::Object(Map::new()))
                {
                    entries.insert(name, value);
                }
            }
        }
    }
    Some(())
}

/// An entry of a map: a message of a name and a value, each of which may be missing if it is empty.
fn entry(kind: Kind, part: &Part<'_>, depth: usize) -> Option<(String, Value)> {
    let Part::Bytes(bytes) = part else { return None };
    let mut name = String::new();
    let mut content = None;
    for part in Parts(bytes) {
        match part? {
            (1, Part::Bytes(text)) => text_of(text)?.clone_into(&mut name),
            (2, part) => content = Some(value(kind, &part, depth)?),
            _ => {}
        }
    }
    let content = match content {
        Some(content) => content,
        None => value(kind, &Part::Bytes(&[]), depth)?,
    };
    Some((name, content))
}

fn value(kind: Kind, part: &Part<'_>, depth: usize) -> Option<Value> {
    Some(match (kind, part) {
        (Kind::Text, Part::Bytes(bytes)) => text_of(bytes)?.into(),
        (Kind::Bytes, Part::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        (Kind::Integer, Part::Number(number)) => number.cast_signed().into(),
        (Kind::Boolean, Part::Number(number)) => (*number != 0).into(),
        (Kind::Quantity, Part::Bytes(bytes)) => {
            let text = Parts(bytes).find_map(|part| match part {
                Some((1, Part::Bytes(text))) => text_of(text),
                _ => None,
            });
            text.unwrap_or("0").into()
        }
        (Kind::IntOrString, Part::Bytes(bytes)) => int_or_string(bytes)?,
        (Kind::Time, Part::Bytes(bytes)) => time(bytes)?,
        (Kind::Message(name), Part::Bytes(bytes)) => {
            let mut fields = Map::new();
            message(name, bytes, &mut fields, depth)?;
            Value::Object(fields)
        }
        _ => return None,
    })
}

/// A message of a type (1 for a text), a number and a text.
fn int_or_string(bytes: &[u8]) -> Option<Value> {
    let (mut is_text, mut number, mut text) = (false, 0, "");
    for part in Parts(bytes) {
        match part? {
            (1, Part::Number(kind)) => is_text = kind == 1,
            (2, Part::Number(value)) => number = value.cast_signed(),
            (3, Part::Bytes(bytes)) => text = text_of(bytes)?,
            _ => {}
        }
    }
    Some(if is_text { text.into() } else { number.into() })
}

/// A message of seconds and nanoseconds; null if it is empty, which is no time.
fn time(bytes: &[u8]) -> Option<Value> {
    let (mut seconds, mut nanos) = (None, 0);
    for part in Parts(bytes) {
        match part? {
            (1, Part::Number(value)) => seconds = Some(value.cast_signed()),
            (2, Part::Number(value)) => nanos = i32::try_from(value.cast_signed()).ok()?,
            _ => {}
        }
    }
    let Some(seconds) = seconds else { return Some(Value::Null) };
    Some(jiff::Timestamp::new(seconds, nanos).ok()?.to_string().into())
}

/// Whether JSON would leave a value out: clients send such fields always.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

fn text_of(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// A field as it is on the wire.
enum Part<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message with their numbers; ends with `None` as an item where bytes make no sense.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn part(&mut self) -> Option<(u64, Part<'a>)> {
        let tag = self.varint()?;
        let part = match tag & 7 {
            0 => Part::Number(self.varint()?),
            1 => Part::Bytes(self.take(8)?),
            2 => {
                let length = self.varint()?;
                Part::Bytes(self.take(length)?)
            }
            5 => Part::Bytes(self.take(4)?),
            _ => return None,
        };
        Some((tag >> 3, part))
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = Option<(u64, Part<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let part = self.part();
        if part.is_none() {
            self.0 = &[];
        }
        Some(part)
    }
}

#[cfg(test)]
mod tests;
