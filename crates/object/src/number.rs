//! Numbers as Go writes them: whole ones without a fraction. Pure.

use serde_json::{Number, Value};

/// Whole numbers beyond have no exact form (2^53).
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The whole number that this one is, if it is one and exact.
#[allow(clippy::cast_possible_truncation, reason = "whole, and less than 2^53")]
pub fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < EXACT).then_some(number as i64)
}

/// Makes `1` of `1.0` and `1000` of `1e3`, wherever they stand. To a client in Go that reads an object and writes it again,
/// they are the same.
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
    fn whole_numbers_have_no_fraction_wherever_they_stand() {
        for (sent, kept) in [
            ("1.0", "1"),
            ("-0.0", "0"),
            ("1e3", "1000"),
            ("123456789.0", "123456789"),
            (r#"{"a":[2.0,{"b":-3.0}],"c":"1.0"}"#, r#"{"a":[2,{"b":-3}],"c":"1.0"}"#),
            // A fraction, what has no exact form, and what was whole stay.
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
