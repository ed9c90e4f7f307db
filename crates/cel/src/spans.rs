//! Parses and formats timestamps and durations.

use jiff::{SignedDuration, Timestamp};

use super::meter::{Outcome, failed, truncated};

/// Units of durations in nanoseconds, longer names first.
const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a timestamp in RFC 3339, as CEL requires it.
pub(super) fn moment(text: &str) -> Outcome<Timestamp> {
    if matches!(text.as_bytes().get(10), Some(b'T' | b't')) && !text.contains('[') {
        return time(text);
    }
    failed(format!("invalid timestamp: {:?}", truncated(text)))
}

/// Parses a timestamp or a day, as schemas have them.
pub(super) fn time(text: &str) -> Outcome<Timestamp> {
    let day = || text.parse::<jiff::civil::Date>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok();
    if text.len() == 10
        && let Some(day) = day()
    {
        return Ok(day.timestamp());
    }
    text.parse().or_else(|_| failed(format!("invalid timestamp: {:?}", truncated(text))))
}

/// Parses a duration in Go's notation: `1h30m`, `-1.5s`.
pub(super) fn span(text: &str) -> Outcome<SignedDuration> {
    match nanoseconds(text).and_then(|nanoseconds| i64::try_from(nanoseconds).ok()) {
        Some(nanoseconds) => Ok(SignedDuration::from_nanos(nanoseconds)),
        None => failed(format!("time: invalid duration {:?}", truncated(text))),
    }
}

fn nanoseconds(text: &str) -> Option<i128> {
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Some(0);
    }
    let mut sum: i128 = 0;
    if rest.is_empty() || rest.len() > 100 {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, after) = rest.split_at_checked(end)?;
        let unit = after.find(|letter: char| letter.is_ascii_digit() || letter == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(unit)?;
        let (_, size) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        sum = sum.checked_add(whole.checked_mul(*size)?)?;
        if !fraction.is_empty() {
            let digits = fraction.get(..fraction.len().min(12))?;
            let part: i128 = digits.parse().ok()?;
            sum = sum.checked_add(part * size / 10i128.checked_pow(u32::try_from(digits.len()).ok()?)?)?;
        }
        rest = after;
    }
    Some(if negative { -sum } else { sum })
}

/// Formats a duration in seconds, as CEL's `string` does.
pub(super) fn seconds(span: SignedDuration) -> String {
    let text = format!("{}.{:09}", span.as_secs().unsigned_abs(), span.subsec_nanos().unsigned_abs());
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{}{text}s", if span.is_negative() { "-" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_in_go_notation() {
        for (text, millis) in
            [("1h30m", 5_400_000), ("-1.5s", -1500), ("0", 0), ("100ms", 100), ("1h0m0.001s", 3_600_001)]
        {
            assert_eq!(span(text).unwrap().as_millis(), millis, "{text}");
        }
        for text in ["", "1", "1d", "h", "1h1", "1.h.", "99999999999999999h", "-"] {
            assert!(span(text).is_err(), "{text}");
        }
        assert_eq!(seconds(span("-1500ms").unwrap()), "-1.5s");
        assert_eq!(seconds(span("1h").unwrap()), "3600s");
    }
}
