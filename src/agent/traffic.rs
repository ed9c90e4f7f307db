//! Counts messages and bytes in both directions, by type of frame and kind of object: today (UTC)
//! and in total. Persisted across restarts with next to no extra writes.
//!
//! Three layers are counted: the bytes that the link exchanged with TCP; the frames within, as sent
//! and received (compressed); and the objects within those, as JSON.
//!
//! Pure: the time is a parameter.

use std::cmp::Ordering;
use std::sync::LazyLock;

use jiff::Timestamp;

use super::clock::RELEASE;
pub(super) use edgesync_admin::agent::Direction;
use edgesync_admin::agent::{FrameTraffic, KindTraffic, Traffic, TrafficSince, TrafficSpan};
use edgesync_object::Resource;
use edgesync_protocol::frame::{Received, Up};
use edgesync_transport::link;

mod budget;
mod hard;
mod persisted;

pub(super) use budget::{Budget, BudgetState};
pub(super) use hard::{HardBudgets, Limits, Reservation};

/// The labels of messages: the frames of the protocol and [`OTHERS`].
static FRAMES: LazyLock<Vec<&str>> =
    LazyLock::new(|| [Up::NAMES, Received::NAMES, Received::BINARY_NAMES, &OTHERS].concat());
/// Retained presence messages, messages from and to a CloudCore, and the rest.
const OTHERS: [&str; 16] = [
    "Presence",
    "insert",
    "update",
    "patch",
    "delete",
    "response",
    "application",
    "acknowledgement",
    "keepalive",
    "query",
    "node",
    "status",
    "event",
    "lease",
    "ping",
    OTHER,
];
/// Label of everything without a separate row.
const OTHER: &str = "other";
/// Maximum number of kinds with a separate row.
const MAX_KINDS: usize = 64;
/// Maximum bytes of a kind's name.
const MAX_KIND: usize = 128;
const SECONDS_A_DAY: i64 = 86_400;

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    messages: u64,
    bytes: u64,
}

/// A count for today, included in the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    today: Count,
    total: Count,
}

/// Counts of both directions, indexed by [`Direction`].
type Directions = [Counts; 2];

/// Counts of a kind such as `ConfigMap` or `Deployment.apps`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
    name: Box<str>,
    directions: Directions,
}

/// The traffic counts, owned by the agent's loop. Takes about 1 KB, and 100 bytes for each kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Meter {
    /// Day of today's counts, in days since 1970-01-01.
    day: i64,
    /// Date of the clock at the last update.
    last_date: i64,
    /// Start of the total counts: Unix time in seconds.
    since: i64,
    /// Bytes of TCP; messages are not counted.
    link: Directions,
    /// The link's counters at the last update.
    read: [u64; 2],
    /// In the order of [`FRAMES`].
    frames: Vec<Directions>,
    /// Sorted by name, for the binary search.
    kinds: Vec<Kind>,
}

impl Meter {
    /// Continues from persisted counts ([`Meter::keep`]); starts at zero if they cannot be parsed.
    pub(super) fn new(persisted: Option<&str>, now: Timestamp) -> Self {
        let mut meter =
            persisted.and_then(persisted::read).unwrap_or_else(|| Self::empty(date(now), now.as_second()));
        meter.last_date = date(now);
        meter.update_day(now);
        meter
    }

    /// Creates a meter without counts.
    fn empty(day: i64, since: i64) -> Self {
        Self {
            day,
            last_date: day,
            since,
            link: Directions::default(),
            read: [0; 2],
            frames: vec![Directions::default(); FRAMES.len()],
            kinds: Vec::new(),
        }
    }

    /// Counts a frame of so many bytes, as sent or received. `frame` is the name of its type, or
    /// `Presence`.
    pub(super) fn frame(&mut self, direction: Direction, frame: &'static str, bytes: usize) {
        let row = FRAMES.iter().position(|name| *name == frame).unwrap_or(FRAMES.len() - 1);
        if let Some(directions) = self.frames.get_mut(row) {
            directions[direction as usize].add(1, bytes as u64);
        }
    }

    /// Counts an object in a frame, with its bytes as JSON.
    pub(super) fn object(&mut self, direction: Direction, kind: &Resource, bytes: usize) {
        let row = self.kind_row(&kind.kind, &kind.group);
        if let Some(row) = self.kinds.get_mut(row) {
            row.directions[direction as usize].add(1, bytes as u64);
        }
    }

    /// Updates the link's counters: bytes of TCP since its start. Call it at least once a minute
    /// under traffic: bytes since the last call count for the day of that call, and a new day
    /// begins here.
    pub(super) fn link(&mut self, traffic: &link::Traffic, now: Timestamp) {
        let counted = [traffic.bytes_out, traffic.bytes_in];
        for ((directions, read), counted) in self.link.iter_mut().zip(&mut self.read).zip(counted) {
            // A restarted link counts from zero.
            directions.add(0, counted.checked_sub(*read).unwrap_or(counted));
            *read = counted;
        }
        self.update_day(now);
    }

    /// Returns today's bytes of TCP in both directions.
    pub(super) fn today(&self) -> u64 {
        self.link.iter().fold(0, |sum, way| sum.saturating_add(way.today.bytes))
    }

    /// Serializes the counts: a few hundred bytes, and about 30 for each kind.
    pub(super) fn keep(&self) -> String {
        persisted::write(self)
    }

    /// Returns the counts for `edgesync traffic`.
    pub(super) fn show(&self) -> Traffic {
        Traffic {
            day: show_day(self.day),
            today: self.show_span(|counts| counts.today),
            total: TrafficSince {
                since: Timestamp::from_second(self.since).unwrap_or_default().to_string(),
                span: self.show_span(|counts| counts.total),
            },
            metered: None,
        }
    }

    /// Returns all total counts: direction, frame type, messages and bytes.
    pub(super) fn frames(&self) -> Vec<(Direction, &'static str, u64, u64)> {
        let rows = self.frame_rows(|counts| counts.total);
        rows.map(|(way, name, count)| (way, name, count.messages, count.bytes)).collect()
    }

    /// Returns all total counts: direction, kind (`ConfigMap`, `Deployment.apps`), objects and
    /// bytes.
    pub(super) fn kinds(&self) -> Vec<(Direction, String, u64, u64)> {
        let rows = self.kind_rows(|counts| counts.total);
        rows.map(|(way, name, count)| (way, name.to_owned(), count.messages, count.bytes)).collect()
    }

    fn show_span(&self, span: impl Fn(&Counts) -> Count + Copy) -> TrafficSpan {
        let [up, down] = self.link.each_ref().map(|counts| span(counts).bytes);
        let payload = self.frame_rows(span).fold(0u64, |sum, (.., count)| sum.saturating_add(count.bytes));
        let frames = self.frame_rows(span).map(|(direction, name, Count { messages, bytes })| FrameTraffic {
            direction,
            frame: name.to_owned(),
            messages,
            bytes,
        });
        let kinds = self.kind_rows(span).map(|(direction, name, Count { messages: objects, bytes })| {
            KindTraffic { direction, kind: name.to_owned(), objects, bytes }
        });
        TrafficSpan {
            bytes_up: up,
            bytes_down: down,
            // Frames are counted when queued, a moment before the link counts them.
            transport_bytes: up.saturating_add(down).saturating_sub(payload),
            frames: frames.collect(),
            kinds: kinds.collect(),
        }
    }

    fn frame_rows(
        &self,
        span: impl Fn(&Counts) -> Count,
    ) -> impl Iterator<Item = (Direction, &'static str, Count)> {
        counted(FRAMES.iter().copied().zip(&self.frames), span)
    }

    fn kind_rows(&self, span: impl Fn(&Counts) -> Count) -> impl Iterator<Item = (Direction, &str, Count)> {
        counted(self.kinds.iter().map(|kind| (&*kind.name, &kind.directions)), span)
    }

    /// Returns the row of a kind; adds one below the limit.
    fn kind_row(&mut self, kind: &str, group: &str) -> usize {
        let at = match self.find(kind, group) {
            Ok(row) => return row,
            Err(at) => at,
        };
        let dot = if group.is_empty() { "" } else { "." };
        let name = format!("{kind}{dot}{group}");
        if self.kinds.len() < MAX_KINDS && is_kind_name(&name) {
            self.kinds.insert(at, Kind { name: name.into(), directions: Directions::default() });
            return at;
        }
        self.find(OTHER, "").unwrap_or_else(|at| {
            self.kinds.insert(at, Kind { name: OTHER.into(), directions: Directions::default() });
            at
        })
    }

    /// Finds a kind without allocating its name: called for each object.
    fn find(&self, kind: &str, group: &str) -> Result<usize, usize> {
        let dot = if group.is_empty() { "" } else { "." };
        self.kinds.binary_search_by(|row| compare(&row.name, [kind, dot, group]))
    }

    /// Begins a new day if the clock says so.
    ///
    /// A clock that cannot be right, as after a start without a battery, does not change the day:
    /// otherwise each start would renew the budget. Then only a midnight that this clock passes
    /// begins a day. Any other clock is trusted, even if it was set back.
    fn update_day(&mut self, now: Timestamp) {
        let date = date(now);
        let passed_midnight = date > self.last_date;
        self.last_date = date;
        let is_believed = now >= RELEASE || passed_midnight || date > self.day;
        if date == self.day || !is_believed {
            return;
        }
        self.day = date;
        let kinds = self.kinds.iter_mut().map(|kind| &mut kind.directions);
        for counts in kinds.chain(&mut self.frames).chain([&mut self.link]).flatten() {
            counts.today = Count::default();
        }
        if now >= RELEASE && self.since < RELEASE.as_second() {
            self.since = now.as_second();
        }
    }
}

impl Counts {
    fn add(&mut self, messages: u64, bytes: u64) {
        for count in [&mut self.today, &mut self.total] {
            count.messages = count.messages.saturating_add(messages);
            count.bytes = count.bytes.saturating_add(bytes);
        }
    }
}

/// Returns the rows with a count above zero.
fn counted<'a, N: Copy>(
    rows: impl Iterator<Item = (N, &'a Directions)>,
    span: impl Fn(&Counts) -> Count,
) -> impl Iterator<Item = (Direction, N, Count)> {
    let rows = rows.flat_map(|(name, directions)| {
        Direction::ALL.into_iter().zip(directions).map(move |way| (name, way))
    });
    rows.filter_map(move |(name, (way, counts))| {
        let count = span(counts);
        (count.messages > 0).then_some((way, name, count))
    })
}

/// Compares a text with the concatenation of parts.
fn compare(text: &str, parts: [&str; 3]) -> Ordering {
    text.bytes().cmp(parts.into_iter().flat_map(str::bytes))
}

/// Returns whether a name can be persisted and displayed as it is.
fn is_kind_name(name: &str) -> bool {
    (1..=MAX_KIND).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic())
}

/// Returns the date (UTC), in days since 1970-01-01.
fn date(now: Timestamp) -> i64 {
    now.as_second().div_euclid(SECONDS_A_DAY)
}

/// Formats a date as in `2026-11-21`.
fn show_day(day: i64) -> String {
    let midnight = day.checked_mul(SECONDS_A_DAY).and_then(|second| Timestamp::from_second(second).ok());
    let text = midnight.unwrap_or_default().to_string();
    text.split('T').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
