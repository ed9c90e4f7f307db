//! Formats of times: RFC 3339 as in objects, and ages as in `kubectl`. Pure: the current time is an
//! argument.

use std::time::Duration;

use jiff::Timestamp;

/// Text for a missing time.
const UNKNOWN: &str = "<unknown>";
/// Text for an invalid or future time.
const INVALID: &str = "<invalid>";

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Formats a time as RFC 3339 in UTC with whole seconds, as Kubernetes does.
#[must_use]
pub fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Formats a time with microseconds: Kubernetes' `MicroTime`.
#[must_use]
pub fn rfc3339_micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// Formats a time difference in seconds, with its sign: `+3600s`, `-0.500s`.
#[must_use]
pub fn signed_seconds(milliseconds: i64) -> String {
    let sign = if milliseconds < 0 { '-' } else { '+' };
    let (seconds, rest) = (milliseconds.unsigned_abs() / 1000, milliseconds.unsigned_abs() % 1000);
    match rest {
        0 => format!("{sign}{seconds}s"),
        _ => format!("{sign}{seconds}.{rest:03}s"),
    }
}

/// Formats a measured duration in whole seconds, below ten seconds in milliseconds: `12s`, `840ms`.
#[must_use]
pub fn rounded(duration: Duration) -> String {
    match duration.as_millis() {
        millis @ 0..10_000 => format!("{millis}ms"),
        _ => format!("{}s", duration.as_secs()),
    }
}

/// Formats the age of a time given as text; "unknown" if it is empty.
#[must_use]
pub fn since(now: Timestamp, text: &str) -> String {
    if text.is_empty() {
        return UNKNOWN.to_owned();
    }
    match text.parse() {
        Ok(time) => between(time, now),
        Err(_) => INVALID.to_owned(),
    }
}

/// Formats the duration between two times.
#[must_use]
pub fn between(from: Timestamp, to: Timestamp) -> String {
    duration(to.duration_since(from).as_secs())
}

/// Formats a duration in seconds with at most two units. Tolerates small differences of clocks.
#[must_use]
pub fn duration(seconds: i64) -> String {
    let two = |large: i64, large_unit: char, small: i64, small_unit: char| match small {
        0 => format!("{large}{large_unit}"),
        _ => format!("{large}{large_unit}{small}{small_unit}"),
    };
    match seconds {
        ..-1 => INVALID.to_owned(),
        -1..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(seconds / MINUTE, 'm', seconds % MINUTE, 's'),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(seconds / HOUR, 'h', seconds % HOUR / MINUTE, 'm'),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two(seconds / DAY, 'd', seconds % DAY / HOUR, 'h'),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => two(seconds / YEAR, 'y', seconds % YEAR / DAY, 'd'),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn differences_are_formatted_in_seconds() {
        assert_eq!(
            [-1_500, -1, 0, 60_000, 1_020].map(signed_seconds),
            ["-1.500s", "-0.001s", "+0s", "+60s", "+1.020s"]
        );
        assert!(signed_seconds(i64::MIN).starts_with('-'));
    }

    #[test]
    fn measured_durations_have_no_fractions() {
        let shown = [0, 344, 2_771_136, 9_999_999, 10_000_000, 75_400_000]
            .map(|micros| rounded(Duration::from_micros(micros)));
        assert_eq!(shown, ["0ms", "0ms", "2771ms", "9999ms", "10s", "75s"]);
    }

    #[test]
    fn durations_have_at_most_two_units() {
        for (seconds, expected) in [
            (i64::MIN, "<invalid>"),
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (5, "5s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (12_600, "3h30m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (2 * DAY + 3 * HOUR, "2d3h"),
            (8 * DAY, "8d"),
            (400 * DAY, "400d"),
            (2 * YEAR, "2y"),
            (2 * YEAR + DAY, "2y1d"),
            (8 * YEAR + DAY, "8y"),
            (i64::MAX, "292471208677y"),
        ] {
            assert_eq!(duration(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn micro_time_has_six_digits_of_the_second() {
        for (nanos, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (1_500_000_999, "1970-01-01T00:00:01.500000Z"),
            (-1_000, "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(rfc3339_micros(Timestamp::from_nanosecond(nanos).unwrap()), expected);
        }
    }

    #[test]
    fn ages_and_formats_pass_the_ends_of_32_bits() {
        // 2038-01-19 for signed, 2106-02-07 for unsigned seconds.
        for end in [1_i64 << 31, 1 << 32] {
            let [before, after] = [end - 30, end + 30].map(|second| Timestamp::from_second(second).unwrap());
            assert_eq!((between(before, after), between(after, before)), ("60s".into(), "<invalid>".into()));
            assert_eq!(since(after, &rfc3339_micros(before)), "60s");
            assert_eq!(rfc3339(after).parse::<Timestamp>().unwrap(), after);
        }
    }

    #[test]
    fn missing_or_invalid_time_has_no_age() {
        let now = "2024-01-02T00:00:00Z".parse().unwrap();
        assert_eq!(since(now, "2024-01-01T21:00:00Z"), "3h");
        assert_eq!(since(now, "2024-01-01T23:59:54.500000Z"), "5s");
        assert_eq!(since(now, "2024-01-02T01:00:00+01:00"), "0s");
        assert_eq!(since(now, "2024-01-02T00:00:10Z"), "<invalid>");
        assert_eq!(since(now, ""), "<unknown>");
        assert_eq!(since(now, "yesterday"), "<invalid>");
        let (first, last) = (Timestamp::MIN, Timestamp::MAX);
        assert_eq!((between(first, last), between(last, first)), ("20012y".into(), "<invalid>".into()));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}", seconds: i64) {
            let now = "2024-01-02T00:00:00Z".parse().unwrap();
            prop_assert!(!since(now, &text).is_empty());
            prop_assert!(!duration(seconds).is_empty());
        }
    }
}
