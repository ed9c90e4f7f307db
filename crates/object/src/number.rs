//! Numbers in Go's notation: whole ones without a fraction. Pure.

use serde_json::{Number, Value};

/// Above this, whole numbers are not exact (2^53).
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Returns the number as an integer, if it is whole and exact.
#[allow(clippy::cast_possible_truncation, reason = "whole, and less than 2^53")]
pub fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < EXACT).then_some(number as i64)
}

/// Replaces `1.0` by `1` and `1e3` by `1000` at any depth: a Go client that reads and writes an
/// object makes the same change.
pub fn shorten(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().filter(|_| number.is_f64()).and_then(whole) {
                *number = Number::from(whole);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(shorten),
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_lose_their_fraction_at_any_depth() {
        for (sent, kept) in [
            ("1.0", "1"),
            ("-0.0", "0"),
            ("1e3", "1000"),
            ("123456789.0", "123456789"),
            (r#"{"a":[2.0,{"b":-3.0}],"c":"1.0"}"#, r#"{"a":[2,{"b":-3}],"c":"1.0"}"#),
            // Fractions, inexact numbers and integers stay.
            ("1.5", "1.5"),
            ("1e300", "1e300"),
            ("18446744073709551615", "18446744073709551615"),
        ] {
            let mut value = serde_json::from_str(sent).unwrap();
            shorten(&mut value);
            assert_eq!(value, serde_json::from_str::<Value>(kept).unwrap(), "{sent}");
        }
    }
}
