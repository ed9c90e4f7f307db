//! Canonical form of quantities: `1000m` becomes `1`, `1024Mi` becomes `1Gi`. Pure.
//!
//! As in Kubernetes: no fraction, and the largest suffix of the same kind that avoids one. Digits
//! below a billionth are rounded up.

use serde_json::Value;

use edgesync_cel::quantity_text::{BINARY, DECIMAL, Form, ParsedQuantity, read};

/// Smallest decimal exponent, that of the suffix `n`; digits below it are rounded up.
const NANO: i32 = -9;
/// Largest amount of a quantity.
const MAX_AMOUNT: i128 = i64::MAX as i128;
/// Maximum number of digits; longer quantities stay as written.
const MAX_DIGITS: usize = 24;

/// Normalizes the quantity in a value; invalid or too long ones stay as written.
pub(super) fn normalize(value: &mut Value) {
    let text = match value {
        Value::String(text) => canonical(text),
        Value::Number(number) => canonical(&number.to_string()),
        _ => None,
    };
    if let Some(text) = text
        && value.as_str() != Some(&text)
    {
        *value = text.into();
    }
}

fn canonical(text: &str) -> Option<String> {
    let ParsedQuantity { negative, digits, exponent, factor, form } = read(text, MAX_DIGITS)?;
    let (amount, exponent) = bounded(digits.checked_mul(factor)?, exponent)?;
    let sign = if negative && amount != 0 { "-" } else { "" };
    Some(format!("{sign}{}", formatted(amount, exponent, form)?))
}

/// Removes trailing zeros, rounds to a billionth, and limits to the maximum.
fn bounded(mut amount: i128, mut exponent: i32) -> Option<(i128, i32)> {
    while amount != 0 && amount % 10 == 0 {
        (amount, exponent) = (amount / 10, exponent + 1);
    }
    if amount == 0 {
        return Some((0, 0));
    }
    while exponent < NANO {
        (amount, exponent) = ((amount + 9) / 10, exponent + 1);
    }
    let size = u32::try_from(exponent).map(|exponent| 10i128.checked_pow(exponent)?.checked_mul(amount));
    match size {
        Ok(size) if size.is_none_or(|size| size > MAX_AMOUNT) => Some((MAX_AMOUNT, 0)),
        _ => Some((amount, exponent)),
    }
}

fn formatted(mut amount: i128, mut exponent: i32, form: Form) -> Option<String> {
    if amount == 0 {
        return Some("0".to_owned());
    }
    if form == Form::Binary
        && let Ok(power) = u32::try_from(exponent)
    {
        let mut size = 10i128.checked_pow(power)?.checked_mul(amount)?;
        if size >= 1024 {
            let mut power = 0;
            while size % 1024 == 0 && power + 1 < BINARY.len() {
                (size, power) = (size / 1024, power + 1);
            }
            return Some(format!("{size}{}", BINARY.get(power)?));
        }
    }
    while exponent % 3 != 0 {
        (amount, exponent) = (amount.checked_mul(10)?, exponent - 1);
    }
    while amount % 1000 == 0 {
        (amount, exponent) = (amount / 1000, exponent + 3);
    }
    if form == Form::Exponent {
        return Some(if exponent == 0 { amount.to_string() } else { format!("{amount}e{exponent}") });
    }
    let (name, _) = DECIMAL.iter().find(|(_, power)| *power == exponent)?;
    Some(format!("{amount}{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_quantities_have_one_form() {
        for (text, expected) in [
            ("1000m", "1"),
            ("1", "1"),
            ("+1.0", "1"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("1500m", "1500m"),
            ("1.5", "1500m"),
            ("1000", "1k"),
            ("1000k", "1M"),
            ("1000Ki", "1000Ki"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1Ki", "1Ki"),
            ("1024", "1024"),
            ("0.1Mi", "104857600m"),
            ("-1000m", "-1"),
            ("0", "0"),
            ("-0Mi", "0"),
            ("1e3", "1e3"),
            ("12e4", "120e3"),
            ("100E-2", "1"),
            ("1E", "1E"),
            ("100E", "9223372036854775807"),
            ("0.1n", "1n"),
            ("1.0000000001", "1000000001n"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
            assert_eq!(canonical(expected).as_deref(), Some(expected), "{expected}: once more");
        }
        for text in ["", "a", "1.2.3", "1gi", "--1", ".", "1e", &"9".repeat(40)] {
            assert_eq!(canonical(text), None, "{text}");
        }
        let mut value = json!(2);
        normalize(&mut value);
        assert_eq!(value, json!("2"));
    }
}
