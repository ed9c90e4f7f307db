//! Text format of the persisted counts: a line for the day, one for the link, one for each type of
//! frame and each kind.
//!
//! ```text
//! traffic 1 20778 1795219210
//! link 0 1840 0 92000 0 960 0 48000
//! frame Hello 1 230 12 2760 0 0 0 0
//! kind Deployment.apps 0 0 0 0 1 1024 40 40960
//! end
//! ```
//!
//! The first line has the format's version, the day, and the second at which the totals begin. The
//! eight numbers are up and then down, for today and then in total, messages and bytes.

use std::fmt::Write as _;
use std::str::FromStr;

use jiff::Timestamp;

use super::{Count, Counts, Directions, FRAMES, Kind, MAX_KINDS, Meter, OTHER, SECONDS_A_DAY, is_kind_name};

/// Version mark of the format.
const MARK: &str = "traffic 1";
/// Maximum length that is parsed: more than [`write`] ever produces.
const MAX_TEXT: usize = 64 << 10;

pub(super) fn write(meter: &Meter) -> String {
    let mut out = format!("{MARK} {} {}\n", meter.day, meter.since);
    write_row(&mut out, "link", "", &meter.link);
    for (name, directions) in FRAMES.iter().zip(&meter.frames) {
        if *directions != Directions::default() {
            write_row(&mut out, "frame ", name, directions);
        }
    }
    for Kind { name, directions } in &meter.kinds {
        write_row(&mut out, "kind ", name, directions);
    }
    out.push_str("end");
    out
}

fn write_row(out: &mut String, row: &str, name: &str, directions: &Directions) {
    out.push_str(row);
    out.push_str(name);
    for Count { messages, bytes } in directions.iter().flat_map(|counts| [counts.today, counts.total]) {
        // Writing to a String cannot fail.
        let _ = write!(out, " {messages} {bytes}");
    }
    out.push('\n');
}

/// Parses the output of [`write`], and nothing else.
pub(super) fn read(text: &str) -> Option<Meter> {
    if text.len() > MAX_TEXT {
        return None;
    }
    let mut lines = text.lines();
    let mut first = Words(lines.next()?.strip_prefix(MARK)?.strip_prefix(' ')?);
    let (day, since) = (first.number::<i64>()?, first.number::<i64>()?);
    Timestamp::from_second(day.checked_mul(SECONDS_A_DAY)?).ok()?;
    Timestamp::from_second(since).ok()?;
    let mut meter = Meter::empty(day, since);
    for line in lines {
        let mut words = Words(line);
        match words.next()? {
            "link" => meter.link = words.directions()?,
            "frame" => {
                let name = words.next()?;
                let row = FRAMES.iter().position(|frame| *frame == name)?;
                *meter.frames.get_mut(row)? = words.directions()?;
            }
            "kind" => {
                let name = words.next()?;
                let is_sorted = meter.kinds.last().is_none_or(|last| *last.name < *name);
                if !is_sorted || !is_kind_name(name) {
                    return None;
                }
                meter.kinds.push(Kind { name: name.into(), directions: words.directions()? });
            }
            _ => break,
        }
    }
    let has_other = meter.kinds.iter().any(|kind| &*kind.name == OTHER);
    if meter.kinds.len() > MAX_KINDS + usize::from(has_other) {
        return None;
    }
    // A text that differs from its canonical form is foreign or truncated.
    (write(&meter) == text).then_some(meter)
}

/// Words separated by single spaces.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }

    fn number<T: FromStr>(&mut self) -> Option<T> {
        self.next()?.parse().ok()
    }

    fn count(&mut self) -> Option<Count> {
        Some(Count { messages: self.number()?, bytes: self.number()? })
    }

    /// Today's count is part of the total.
    fn counts(&mut self) -> Option<Counts> {
        let (today, total) = (self.count()?, self.count()?);
        let is_part = today.messages <= total.messages && today.bytes <= total.bytes;
        is_part.then_some(Counts { today, total })
    }

    fn directions(&mut self) -> Option<Directions> {
        Some([self.counts()?, self.counts()?])
    }
}
