//! Types of scalars by the rules of `kubectl`: YAML 1.1 as implemented by go-yaml 2. Pure.
//!
//! `yes`, `on` and `y` are true, `0400` and `0o400` are 256, `1_000` is 1000. Times stay strings,
//! and so does `1:30`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Number, Value};

/// Parses a scalar. `tag` is the name after `!!`; without one, only an unquoted (`plain`) scalar
/// can be other than a string.
///
/// # Errors
/// The text does not have the type of the tag, or is a number that JSON lacks.
pub(super) fn scalar(text: &str, plain: bool, tag: Option<&str>) -> Result<Value, String> {
    let value = match tag {
        None if plain => implicit(text),
        None | Some("str") => return Ok(text.into()),
        Some("binary") => {
            let packed: String = text.split_ascii_whitespace().collect();
            let bytes = STANDARD.decode(packed).map_err(|_| "the !!binary value is not Base64".to_owned())?;
            return Ok(String::from_utf8_lossy(&bytes).into());
        }
        Some(_) => implicit(text),
    };
    let fits = match tag {
        Some("int") => value.is_i64() || value.is_u64(),
        Some("float") => value.is_number(),
        Some("bool") => value.is_boolean(),
        Some("null") => value.is_null(),
        _ => true,
    };
    if !fits {
        return Err(format!("{text:?} is not a valid !!{}", tag.unwrap_or_default()));
    }
    match text.trim_start_matches(['+', '-']) {
        ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN" if value.is_string() => {
            Err(format!("{text} is not a JSON number"))
        }
        _ => Ok(value),
    }
}

/// Parses an unquoted scalar.
fn implicit(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return true.into();
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return false.into();
        }
        _ => {}
    }
    let number = match text.as_bytes() {
        [b'.', ..] => float(text),
        [b'0'..=b'9' | b'+' | b'-', ..] => {
            let digits = text.replace('_', "");
            integer(&digits).or_else(|| float(&digits))
        }
        _ => None,
    };
    number.map_or_else(|| text.into(), Value::Number)
}

/// Parses a whole number with Go's prefixes: `0x`, `0o`, `0b`, and `0` alone for base 8.
fn integer(text: &str) -> Option<Number> {
    let (negative, unsigned) = match text.strip_prefix(['+', '-']) {
        Some(unsigned) => (text.starts_with('-'), unsigned),
        None => (false, text),
    };
    let (radix, digits) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &unsigned[2..]),
        [b'0', b'o' | b'O', ..] => (8, &unsigned[2..]),
        [b'0', b'b' | b'B', ..] => (2, &unsigned[2..]),
        [b'0', _, ..] => (8, &unsigned[1..]),
        _ => (10, unsigned),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let size = u64::from_str_radix(digits, radix).ok()?;
    if negative { 0i64.checked_sub_unsigned(size).map(Number::from) } else { Some(size.into()) }
}

/// Parses a decimal number with a point or an exponent. A whole one becomes an integer, as in Go.
fn float(text: &str) -> Option<Number> {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let is_number = digits(whole) && digits(fraction) && digits(exponent) && !exponent.is_empty();
    if !is_number || whole.len() + fraction.len() == 0 {
        return None;
    }
    let number: f64 = text.parse().ok()?;
    whole_number(number).map(Number::from).or_else(|| Number::from_f64(number))
}

/// Returns the number as an integer, if it is whole and small enough.
#[allow(clippy::cast_possible_truncation, reason = "it is within the bounds")]
fn whole_number(number: f64) -> Option<i64> {
    const END: f64 = 9_223_372_036_854_775_808.0;
    (number.fract() == 0.0 && (-END..END).contains(&number)).then_some(number as i64)
}

/// Returns a value as a key; `None` if it cannot be one.
pub(super) fn key(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
