//! Conversions between types.

use std::sync::Arc;

use jiff::Timestamp;

use super::meter::{Meter, Outcome, failed, truncated};
use super::spans;
use super::value::Val;

/// Calls a conversion; `None` if there is no such overload.
pub(super) fn call<'a>(name: &str, values: &[Val<'a>], meter: &mut Meter) -> Outcome<Option<Val<'a>>> {
    let [value] = values else { return Ok(None) };
    match value {
        Val::Text(text) => meter.bytes(text.len())?,
        Val::Bytes(bytes) => meter.bytes(bytes.len())?,
        _ => {}
    }
    Ok(match name {
        "dyn" => Some(value.clone()),
        "type" => Some(Val::Kind(value.kind().into())),
        "int" => int(value)?.map(Val::Int),
        "uint" => uint(value)?.map(Val::Uint),
        "double" => double(value)?.map(Val::Double),
        "string" => string(value)?,
        "bytes" => match value {
            Val::Text(text) => Some(Val::Bytes(Arc::from(text.as_bytes()))),
            Val::Bytes(_) => Some(value.clone()),
            _ => None,
        },
        "bool" => match value {
            Val::Bool(_) => Some(value.clone()),
            Val::Text(text) => match &**text {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(Val::Bool(true)),
                "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(Val::Bool(false)),
                _ => {
                    return failed(format!(
                        "type conversion error from 'string' to 'bool': {:?}",
                        truncated(text)
                    ));
                }
            },
            _ => None,
        },
        "timestamp" => match value {
            Val::Time(_) => Some(value.clone()),
            Val::Text(text) => Some(Val::Time(spans::moment(text)?)),
            Val::Int(seconds) => match Timestamp::from_second(*seconds) {
                Ok(time) => Some(Val::Time(time)),
                Err(_) => return failed("timestamp overflow"),
            },
            _ => None,
        },
        "duration" => match value {
            Val::Span(_) => Some(value.clone()),
            Val::Text(text) => Some(Val::Span(spans::span(text)?)),
            _ => None,
        },
        _ => None,
    })
}

fn wrong<T>(text: &str, to: &str) -> Outcome<T> {
    failed(format!("type conversion error from 'string' to '{to}': {:?}", truncated(text)))
}

fn int(value: &Val<'_>) -> Outcome<Option<i64>> {
    Ok(Some(match value {
        Val::Int(number) => *number,
        Val::Uint(number) => i64::try_from(*number).or_else(|_| failed("integer overflow"))?,
        // At 2^63 the cast would saturate.
        Val::Double(number) if number.is_finite() && number.abs() < 9.223_372_036_854_775e18 => {
            *number as i64
        }
        Val::Double(_) => return failed("integer overflow"),
        Val::Text(text) => text.parse().or_else(|_| wrong(text, "int"))?,
        Val::Time(time) => time.as_second(),
        Val::Span(span) => i64::try_from(span.as_nanos()).or_else(|_| failed("integer overflow"))?,
        _ => return Ok(None),
    }))
}

fn uint(value: &Val<'_>) -> Outcome<Option<u64>> {
    Ok(Some(match value {
        Val::Uint(number) => *number,
        Val::Int(number) => u64::try_from(*number).or_else(|_| failed("unsigned integer overflow"))?,
        Val::Double(number) if *number >= 0.0 && *number < 1.844_674_407_370_955e19 => *number as u64,
        Val::Double(_) => return failed("unsigned integer overflow"),
        Val::Text(text) => text.parse().or_else(|_| wrong(text, "uint"))?,
        _ => return Ok(None),
    }))
}

fn double(value: &Val<'_>) -> Outcome<Option<f64>> {
    match value {
        Val::Text(text) => text.parse().map(Some).or_else(|_| wrong(text, "double")),
        other => Ok(other.double()),
    }
}

/// Formats a float as Go does: with an exponent if it is large or small.
fn number_text(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => number.to_string(),
    }
}

fn string<'a>(value: &Val<'a>) -> Outcome<Option<Val<'a>>> {
    Ok(Some(match value {
        Val::Text(_) => value.clone(),
        Val::Bool(_) | Val::Int(_) | Val::Uint(_) => Val::text(value.to_string()),
        Val::Double(number) => Val::text(number_text(*number)),
        Val::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Val::text(text),
            Err(_) => return failed("invalid UTF-8 in bytes, cannot convert to string"),
        },
        Val::Time(time) => Val::text(time.to_string()),
        Val::Span(span) => Val::text(spans::seconds(*span)),
        Val::Ip(address) => Val::text(address.to_string()),
        Val::Cidr(address, bits) => Val::text(format!("{address}/{bits}")),
        _ => return Ok(None),
    }))
}
