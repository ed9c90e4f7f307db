//! Calendar of windows: when the changes of a rule may take effect, in the time of a zone. Pure:
//! the caller passes the time, and the zone with its transitions.

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, Timestamp};

/// Minutes of a day; also the time `24:00`, at which a window may end.
const DAY: u16 = 24 * 60;
/// Days before and after the current date on which a window that matters may begin. A week has
/// every weekday, and a zone may skip a date.
const NEARBY_DAYS: std::ops::RangeInclusive<i64> = -2..=9;

const DAYS: [(&str, Weekday); 7] = [
    ("Mon", Weekday::Monday),
    ("Tue", Weekday::Tuesday),
    ("Wed", Weekday::Wednesday),
    ("Thu", Weekday::Thursday),
    ("Fri", Weekday::Friday),
    ("Sat", Weekday::Saturday),
    ("Sun", Weekday::Sunday),
];

/// A recurring window: days on which it begins, and its times in a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// One bit for each day of [`DAYS`].
    days: u8,
    /// Minute of the day at which it opens.
    from: u16,
    /// Minute of the day at which it closes, of the next day if it is not after `from`.
    to: u16,
    zone: TimeZone,
}

/// Reason why a text is not a window, with its requirement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// The text has neither one part nor two.
    #[error("must be days and times such as \"Mon-Fri 02:00-04:00\", or times alone for every day")]
    Parts,
    /// A day is not one of the week.
    #[error("day {0:?} is unknown: must be Mon, Tue, Wed, Thu, Fri, Sat or Sun")]
    Day(String),
    /// A time is not one of the day.
    #[error("time {0:?} is invalid: must be between \"00:00\" and \"24:00\"")]
    Time(String),
    /// Both times are equal, which may mean no time or a whole day.
    #[error("begins and ends at {0}: must have different times, or \"00:00-24:00\" for the whole day")]
    Empty(String),
}

/// State of a calendar at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// A window is open, and closes then.
    Open(Timestamp),
    /// No window is open; the next one opens then, if there is one.
    Closed(Option<Timestamp>),
}

impl Window {
    /// Parses days and times such as `Mon-Fri 02:00-04:00`, `Sat,Sun 22:00-06:00` or
    /// `00:00-24:00`. Times over midnight belong to the day on which they begin.
    ///
    /// # Errors
    /// The text has another form.
    pub fn parse(text: &str, zone: TimeZone) -> Result<Self, WindowError> {
        let mut parts = text.split_whitespace();
        let (days, times) = match (parts.next(), parts.next(), parts.next()) {
            (Some(times), None, None) => (0b111_1111, times),
            (Some(days), Some(times), None) => (parse_days(days)?, times),
            _ => return Err(WindowError::Parts),
        };
        let (from, to) = times.split_once('-').ok_or(WindowError::Parts)?;
        let (begin, end) = (parse_time(from)?, parse_time(to)?);
        if begin == DAY {
            return Err(WindowError::Time(from.to_owned()));
        }
        if begin == end {
            return Err(WindowError::Empty(from.to_owned()));
        }
        Ok(Self { days, from: begin, to: end, zone })
    }

    /// Returns when the window that begins on a date opens and closes; `None` if none begins then.
    ///
    /// A clock that is set forward skips local times, one that is set back repeats them. A time
    /// that is skipped is the next one that exists, a time that is repeated the first of both. A
    /// window that is skipped or repeated as a whole opens once, for its length.
    fn on(&self, date: Date) -> Option<(Timestamp, Timestamp)> {
        let index = DAYS.iter().position(|(_, day)| *day == date.weekday())?;
        if self.days & (1 << index) == 0 {
            return None;
        }
        let end_date = if self.to <= self.from { date.tomorrow().ok()? } else { date };
        let (opens, closes) = (at(date, self.from)?, at(end_date, self.to)?);
        let (begin, begin_is) = instant(&self.zone, opens)?;
        let (end, _) = instant(&self.zone, closes)?;
        let (_, last_is) = instant(&self.zone, closes.checked_sub(Span::new().minutes(1)).ok()?)?;
        let is_repeated = begin_is == Existence::Repeated && last_is == Existence::Repeated;
        let length = i64::from((DAY + self.to - self.from - 1) % DAY + 1);
        let by_length = begin.checked_add(Span::new().minutes(length)).ok()?;
        Some((begin, if end <= begin || is_repeated { by_length } else { end }))
    }
}

/// Returns whether one of the windows is open at a time, and until when that stays so.
#[must_use]
pub fn opening(windows: &[Window], now: Timestamp) -> Opening {
    let (mut closes, mut opens) = (None, None);
    for window in windows {
        let today = window.zone.to_datetime(now).date();
        let dates = NEARBY_DAYS.filter_map(|days| today.checked_add(Span::new().days(days)).ok());
        for (begin, end) in dates.filter_map(|date| window.on(date)) {
            if begin > now {
                opens = Some(opens.map_or(begin, |opens: Timestamp| opens.min(begin)));
            } else if end > now {
                closes = Some(closes.map_or(end, |closes: Timestamp| closes.max(end)));
            }
        }
    }
    closes.map_or(Opening::Closed(opens), Opening::Open)
}

/// How often a local time exists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Existence {
    Once,
    Skipped,
    Repeated,
}

/// Returns the time at which a local time comes first, or the next one that exists.
fn instant(zone: &TimeZone, local: DateTime) -> Option<(Timestamp, Existence)> {
    let of = |offset: jiff::tz::Offset| offset.to_timestamp(local).ok();
    match zone.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Unambiguous { offset } => Some((of(offset)?, Existence::Once)),
        AmbiguousOffset::Fold { before, .. } => Some((of(before)?, Existence::Repeated)),
        AmbiguousOffset::Gap { before, after } => {
            let transition = zone.following(of(after)?).next().map(|next| next.timestamp());
            Some((transition.or_else(|| of(before))?, Existence::Skipped))
        }
    }
}

fn at(date: Date, minute: u16) -> Option<DateTime> {
    if minute == DAY {
        return Some(date.tomorrow().ok()?.to_datetime(Time::midnight()));
    }
    let (hour, minute) = (i8::try_from(minute / 60).ok()?, i8::try_from(minute % 60).ok()?);
    Some(date.to_datetime(Time::new(hour, minute, 0, 0).ok()?))
}

fn parse_days(text: &str) -> Result<u8, WindowError> {
    let day = |word: &str| {
        let found = DAYS.iter().position(|(name, _)| name.eq_ignore_ascii_case(word));
        found.ok_or_else(|| WindowError::Day(word.to_owned()))
    };
    let mut days = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        // Over the end of the week, as in Fri-Mon.
        let count = (7 + last - first) % 7;
        days |= (0..=count).fold(0, |days, more| days | (1 << ((first + more) % 7)));
    }
    Ok(days)
}

fn parse_time(text: &str) -> Result<u16, WindowError> {
    let digits = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = text.split_once(':').filter(|(hour, minute)| digits(hour) && digits(minute));
    let read =
        parts.and_then(|(hour, minute)| Some((hour.parse::<u16>().ok()?, minute.parse::<u16>().ok()?)));
    let minutes = read.filter(|(_, minute)| *minute < 60).map(|(hour, minute)| hour * 60 + minute);
    minutes.filter(|minutes| *minutes <= DAY).ok_or_else(|| WindowError::Time(text.to_owned()))
}

#[cfg(test)]
mod tests;
