//! Formats of strings and numbers in schemas. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Number;

use super::super::{MICRO_TIME, TIME};

/// Returns the problem of a string in this format; unknown formats accept everything.
pub(super) fn text_problem(format: &str, text: &str) -> Option<&'static str> {
    let (fits, message) = match format {
        "date-time" | TIME | MICRO_TIME => {
            (is_date_time(text), "must be a time in RFC 3339 form, such as '2006-01-02T15:04:05Z'")
        }
        "byte" => (is_base64(text), "must be encoded in Base64"),
        "quantity" => (is_quantity(text), "must be a quantity, such as '500m', '1.5' or '2Gi'"),
        _ => return None,
    };
    (!fits).then_some(message)
}

/// Returns the problem of a whole number in this format.
pub(super) fn number_problem(format: &str, number: &Number) -> Option<&'static str> {
    let fits = match format {
        "int32" => whole(number).is_some_and(|number| i32::try_from(number).is_ok()),
        "int64" => whole(number).is_some_and(|number| i64::try_from(number).is_ok()),
        _ => return None,
    };
    let message = match format {
        "int32" => "must be in the range of 32-bit integers",
        _ => "must be in the range of 64-bit integers",
    };
    (!fits).then_some(message)
}

/// Returns the number if it is whole; `1.0` is.
pub(super) fn whole(number: &Number) -> Option<i128> {
    if let Some(number) = number.as_i64() {
        return Some(number.into());
    }
    if let Some(number) = number.as_u64() {
        return Some(number.into());
    }
    // At 2^63 and above a float exceeds every checked range, so the cast may saturate.
    number.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i128)
}

fn is_date_time(text: &str) -> bool {
    text.len() >= "2006-01-02T15:04:05Z".len()
        && text.as_bytes().get(10).is_some_and(|separator| matches!(separator, b'T' | b't'))
        && text.parse::<jiff::Timestamp>().is_ok()
}

/// Returns whether a text is Base64 with padding; line breaks are skipped, as in YAML block
/// scalars.
fn is_base64(text: &str) -> bool {
    if text.contains(['\n', '\r']) {
        return is_base64(&text.replace(['\n', '\r'], ""));
    }
    STANDARD.decode(text).is_ok()
}

/// Returns whether a text is a quantity: sign, digits with a dot, and a suffix or exponent.
fn is_quantity(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end).unwrap_or((text, ""));
    let digits = number.bytes().any(|letter| letter.is_ascii_digit());
    let one_dot = number.bytes().filter(|&letter| letter == b'.').count() <= 1;
    digits && one_dot && is_suffix(suffix)
}

fn is_suffix(suffix: &str) -> bool {
    const POWERS: &[&str] =
        &["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    POWERS.contains(&suffix)
        || suffix.strip_prefix(['e', 'E']).is_some_and(|exponent| {
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_recognised() {
        for text in ["1", "500m", "1.5", ".5", "2Gi", "-1", "+3k", "1e3", "1E-3", "0", "1."] {
            assert_eq!(text_problem("quantity", text), None, "{text}");
        }
        for text in ["", "a", "1 Gi", "1.2.3", "1gi", "1e", "1e+", "Gi", ".", "--1", "1é", "é"] {
            assert!(text_problem("quantity", text).is_some(), "{text}");
        }
    }

    #[test]
    fn times_need_date_time_and_offset() {
        for text in ["2024-05-06T07:08:09Z", "2024-05-06T07:08:09.123456Z", "2024-05-06T07:08:09+02:00"] {
            assert_eq!(text_problem("date-time", text), None, "{text}");
        }
        for text in [
            "",
            "yesterday",
            "2024-05-06",
            "2024-05-06T07:08:09",
            "2024-13-06T07:08:09Z",
            "2024-05-06 07:08:09Z",
        ] {
            assert!(text_problem("date-time", text).is_some(), "{text}");
        }
    }

    #[test]
    fn base64_may_have_line_breaks_only() {
        for text in ["", "aGk=", "aGVs\nbG8=\n"] {
            assert_eq!(text_problem("byte", text), None, "{text}");
        }
        for text in ["hi!", "aGk", "a", "aGk =", "äöü="] {
            assert!(text_problem("byte", text).is_some(), "{text}");
        }
    }

    #[test]
    fn integers_have_the_range_of_their_format() {
        let problem = |format: &str, number: serde_json::Value| {
            number_problem(format, number.as_number().unwrap()).is_some()
        };
        assert!(!problem("int32", json!(i32::MAX)) && problem("int32", json!(i64::from(i32::MAX) + 1)));
        assert!(!problem("int64", json!(i64::MIN)) && problem("int64", json!(u64::MAX)));
        assert!(!problem("int32", json!(3.0)) && problem("int64", json!(1e300)));
        assert!(!problem("", json!(1e300)));
    }
}
