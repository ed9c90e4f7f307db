//! Accessors of timestamps and durations.

use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

/// Parses a time zone: `UTC`, or an offset such as `+02:00`; names need a database.
pub(super) fn zone(text: &str) -> Option<TimeZone> {
    if matches!(text, "UTC" | "Z") {
        return Some(TimeZone::UTC);
    }
    let (hours, minutes) = text.split_once(':')?;
    let negative = hours.starts_with('-');
    let digits = |text: &str| text.len() <= 2 && text.bytes().all(|letter| letter.is_ascii_digit());
    let number = |text: &str| text.parse::<i32>().ok().filter(|_| digits(text));
    let (hours, minutes) = (number(hours.strip_prefix(['-', '+']).unwrap_or(hours))?, number(minutes)?);
    let seconds = (hours * 60 + minutes) * 60;
    Offset::from_seconds(if negative { -seconds } else { seconds }).ok().map(TimeZone::fixed)
}

/// Returns a field of a timestamp; `None` if there is no such accessor.
pub(super) fn of_time(name: &str, time: Timestamp, zone: TimeZone) -> Option<i64> {
    let time = time.to_zoned(zone);
    Some(match name {
        "getFullYear" => time.year().into(),
        "getMonth" => i64::from(time.month()) - 1,
        "getDate" => time.day().into(),
        "getDayOfMonth" => i64::from(time.day()) - 1,
        "getDayOfWeek" => time.weekday().to_sunday_zero_offset().into(),
        "getDayOfYear" => i64::from(time.day_of_year()) - 1,
        "getHours" => time.hour().into(),
        "getMinutes" => time.minute().into(),
        "getSeconds" => time.second().into(),
        "getMilliseconds" => time.millisecond().into(),
        _ => return None,
    })
}

/// Returns a duration in a unit; `None` if there is no such accessor.
pub(super) fn of_span(name: &str, span: SignedDuration) -> Option<i64> {
    Some(match name {
        "getHours" => span.as_secs() / 3600,
        "getMinutes" => span.as_secs() / 60,
        "getSeconds" => span.as_secs(),
        "getMilliseconds" => i64::try_from(span.as_millis()).ok()?,
        _ => return None,
    })
}
