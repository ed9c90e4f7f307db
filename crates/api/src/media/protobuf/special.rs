//! Messages with a special JSON form: times, quantities, numbers or strings, JSON. Pure.

use jiff::Timestamp;
use serde_json::Value;

use super::wire::{Decoded, Parts};
use edgesync_object::number::whole;
use edgesync_object::time::{rfc3339, rfc3339_micros};

/// Year 0 in seconds; RFC 3339 cannot express earlier times.
const FIRST_SECOND: i64 = -62_167_219_200;

/// Decodes a time; `None` for an empty message. JSON has whole seconds, or microseconds with
/// `micro`.
pub(super) fn time(bytes: &[u8], micro: bool) -> Decoded<Option<Value>> {
    const OUT_OF_RANGE: &str = "a time is out of range";
    if bytes.is_empty() {
        return Ok(None);
    }
    let (mut seconds, mut nanos) = (0, 0);
    for part in Parts(bytes) {
        match part? {
            (1, part) => seconds = part.varint()?.cast_signed(),
            (2, part) => nanos = part.varint()?.cast_signed(),
            _ => {}
        }
    }
    let nanos = i32::try_from(nanos).ok().filter(|nanos| (0..1_000_000_000).contains(nanos));
    if seconds < FIRST_SECOND {
        return Err(OUT_OF_RANGE);
    }
    let time = Timestamp::new(seconds, nanos.ok_or(OUT_OF_RANGE)?).map_err(|_| OUT_OF_RANGE)?;
    Ok(Some(if micro { rfc3339_micros(time) } else { rfc3339(time) }.into()))
}

/// Decodes a quantity: a message with a string.
pub(super) fn quantity(bytes: &[u8]) -> Decoded<Value> {
    let mut text = "0";
    for part in Parts(bytes) {
        if let (1, part) = part? {
            text = part.text()?;
        }
    }
    Ok(text.into())
}

/// Decodes an `IntOrString` by its type field.
pub(super) fn int_or_string(bytes: &[u8]) -> Decoded<Value> {
    let (mut kind, mut number, mut text) = (0, 0, "");
    for part in Parts(bytes) {
        match part? {
            (1, part) => kind = part.varint()?,
            (2, part) => number = int32(part.varint()?),
            (3, part) => text = part.text()?,
            _ => {}
        }
    }
    match kind {
        0 => Ok(number.into()),
        1 => Ok(text.into()),
        _ => Err("a value is neither a number nor a string"),
    }
}

/// Truncates a number to its lower 32 bits.
pub(super) fn int32(number: u64) -> i32 {
    // The encoding specifies the truncation.
    number as i32
}

/// Decodes a double; without a fraction if it is whole.
pub(super) fn double(number: f64) -> Decoded<Value> {
    if let Some(whole) = whole(number) {
        return Ok(whole.into());
    }
    let number = serde_json::Number::from_f64(number).ok_or("a number is not finite")?;
    Ok(Value::Number(number))
}

/// Decodes embedded JSON at most `levels` deep; `None` if it is empty.
pub(super) fn json(bytes: &[u8], levels: usize) -> Decoded<Option<Value>> {
    let mut text: &[u8] = &[];
    for part in Parts(bytes) {
        if let (1, part) = part? {
            text = part.bytes()?;
        }
    }
    if text.is_empty() {
        return Ok(None);
    }
    let value = serde_json::from_slice(text).map_err(|_| "a field with JSON is invalid")?;
    if nests_deeper(&value, levels) { Err(super::TOO_DEEP) } else { Ok(Some(value)) }
}

/// Returns whether objects and lists nest deeper than `levels`. Recursion is bounded by the JSON
/// parser's own limit.
fn nests_deeper(value: &Value, levels: usize) -> bool {
    let inner = levels.checked_sub(1);
    match value {
        Value::Object(fields) => {
            inner.is_none_or(|inner| fields.values().any(|value| nests_deeper(value, inner)))
        }
        Value::Array(items) => inner.is_none_or(|inner| items.iter().any(|value| nests_deeper(value, inner))),
        _ => false,
    }
}
