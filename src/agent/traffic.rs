//! How many bytes and messages went in both directions, for each type of frame and each kind of object: today (UTC)
//! and in total. Kept across restarts without writes of its own to speak of.
//!
//! Three layers are counted: what the link handed to TCP and took from it; the frames within, as they are sent and
//! received (compressed); and the objects within those, as JSON.
//!
//! Pure: the time comes in.

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
mod kept;

pub(super) use budget::{Budget, BudgetState};

/// What is counted on its own: the frames of the protocol and [`OTHERS`].
static FRAMES: LazyLock<Vec<&str>> = LazyLock::new(|| [Up::NAMES, Received::NAMES, &OTHERS].concat());
/// The messages that are retained for others, those of a CloudCore and to it, and the rest.
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
/// Where everything is counted that has no row.
const OTHER: &str = "other";
/// The most kinds that are counted on their own.
const MAX_KINDS: usize = 64;
/// The longest name of a kind, in bytes.
const MAX_KIND: usize = 128;
const SECONDS_A_DAY: i64 = 86_400;

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    messages: u64,
    bytes: u64,
}

/// A count for today, which is a part of the one in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    today: Count,
    total: Count,
}

/// Counts by [`Direction`].
type Ways = [Counts; 2];

/// An object's kind, such as `ConfigMap` or `Deployment.apps`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
    name: Box<str>,
    ways: Ways,
}

/// Counts; has one owner, the agent's loop. About 1 KB, and 100 bytes for each kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Meter {
    /// The day that today's counts are of, from 1970-01-01.
    day: i64,
    /// The date of the clock when it was last seen.
    seen: i64,
    /// When counting began: Unix time in seconds.
    since: i64,
    /// Bytes of TCP; messages are not counted.
    link: Ways,
    /// What the link had counted when it was last read.
    read: [u64; 2],
    /// In the order of [`FRAMES`].
    frames: Vec<Ways>,
    /// By name.
    kinds: Vec<Kind>,
}

impl Meter {
    /// Goes on from what was kept ([`Meter::keep`]); begins anew if that cannot be read.
    pub(super) fn new(kept: Option<&str>, now: Timestamp) -> Self {
        let mut meter =
            kept.and_then(kept::read).unwrap_or_else(|| Self::starting(date(now), now.as_second()));
        meter.seen = date(now);
        meter.turn(now);
        meter
    }

    /// Nothing is counted yet.
    fn starting(day: i64, since: i64) -> Self {
        Self {
            day,
            seen: day,
            since,
            link: Ways::default(),
            read: [0; 2],
            frames: vec![Ways::default(); FRAMES.len()],
            kinds: Vec::new(),
        }
    }

    /// A frame of so many bytes, as sent or received. `frame` is the name of its type, or `Presence`.
    pub(super) fn frame(&mut self, direction: Direction, frame: &'static str, bytes: usize) {
        let row = FRAMES.iter().position(|name| *name == frame).unwrap_or(FRAMES.len() - 1);
        if let Some(ways) = self.frames.get_mut(row) {
            ways[direction as usize].add(1, bytes as u64);
        }
    }

    /// An object of this kind in a frame: so many bytes of JSON.
    pub(super) fn object(&mut self, direction: Direction, kind: &Resource, bytes: usize) {
        let row = self.kind_row(&kind.kind, &kind.group);
        if let Some(row) = self.kinds.get_mut(row) {
            row.ways[direction as usize].add(1, bytes as u64);
        }
    }

    /// What the link has counted since it was started: bytes of TCP in both directions. To be called at least once a
    /// minute while anything moves: what was counted since the last time is of the day of that time, and a new day
    /// begins here.
    pub(super) fn link(&mut self, traffic: &link::Traffic, now: Timestamp) {
        let counted = [traffic.bytes_out, traffic.bytes_in];
        for ((ways, read), counted) in self.link.iter_mut().zip(&mut self.read).zip(counted) {
            // A link that was started again counts from zero.
            ways.add(0, counted.checked_sub(*read).unwrap_or(counted));
            *read = counted;
        }
        self.turn(now);
    }

    /// Bytes of TCP in both directions today.
    pub(super) fn today(&self) -> u64 {
        self.link.iter().fold(0, |sum, way| sum.saturating_add(way.today.bytes))
    }

    /// The counts as text, to be kept: a few hundred bytes, and some 30 for each kind.
    pub(super) fn keep(&self) -> String {
        kept::write(self)
    }

    /// The counts, for `edgesync traffic`.
    pub(super) fn show(&self) -> Traffic {
        Traffic {
            day: show_day(self.day),
            today: self.show_span(|counts| counts.today),
            total: TrafficSince {
                since: Timestamp::from_second(self.since).unwrap_or_default().to_string(),
                span: self.show_span(|counts| counts.total),
            },
        }
    }

    /// All counts in total: direction, frame type, messages and bytes.
    pub(super) fn frames(&self) -> Vec<(Direction, &'static str, u64, u64)> {
        let rows = self.frame_rows(|counts| counts.total);
        rows.map(|(way, name, count)| (way, name, count.messages, count.bytes)).collect()
    }

    /// All counts in total: direction, kind (`ConfigMap`, `Deployment.apps`), objects and bytes.
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
            // Frames are counted when they are handed over, which is a moment before the link counts them.
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
        counted(self.kinds.iter().map(|kind| (&*kind.name, &kind.ways)), span)
    }

    /// Where a kind is counted; makes the row if there is room for one.
    fn kind_row(&mut self, kind: &str, group: &str) -> usize {
        let at = match self.find(kind, group) {
            Ok(row) => return row,
            Err(at) => at,
        };
        let dot = if group.is_empty() { "" } else { "." };
        let name = format!("{kind}{dot}{group}");
        if self.kinds.len() < MAX_KINDS && is_kind_name(&name) {
            self.kinds.insert(at, Kind { name: name.into(), ways: Ways::default() });
            return at;
        }
        self.find(OTHER, "").unwrap_or_else(|at| {
            self.kinds.insert(at, Kind { name: OTHER.into(), ways: Ways::default() });
            at
        })
    }

    /// Finds a kind without making its name: this is done for each object.
    fn find(&self, kind: &str, group: &str) -> Result<usize, usize> {
        let dot = if group.is_empty() { "" } else { "." };
        self.kinds.binary_search_by(|row| compare(&row.name, [kind, dot, group]))
    }

    /// Begins a new day if the clock says so.
    ///
    /// A clock that cannot be right, as after a start without a battery, says nothing of the day: today goes on, so
    /// that a budget is not there anew with each start. Only when that clock passes midnight a day begins. Any other
    /// clock is believed, also when it was set back.
    fn turn(&mut self, now: Timestamp) {
        let date = date(now);
        let passed_midnight = date > self.seen;
        self.seen = date;
        let is_believed = now >= RELEASE || passed_midnight || date > self.day;
        if date == self.day || !is_believed {
            return;
        }
        self.day = date;
        let kinds = self.kinds.iter_mut().map(|kind| &mut kind.ways);
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

/// Rows in which something was counted.
fn counted<'a, N: Copy>(
    rows: impl Iterator<Item = (N, &'a Ways)>,
    span: impl Fn(&Counts) -> Count,
) -> impl Iterator<Item = (Direction, N, Count)> {
    let rows = rows.flat_map(|(name, ways)| Direction::ALL.into_iter().zip(ways).map(move |way| (name, way)));
    rows.filter_map(move |(name, (way, counts))| {
        let count = span(counts);
        (count.messages > 0).then_some((way, name, count))
    })
}

/// Compares a text with another one that is in parts.
fn compare(text: &str, parts: [&str; 3]) -> Ordering {
    text.bytes().cmp(parts.into_iter().flat_map(str::bytes))
}

/// Whether a name can be kept and shown as it is.
fn is_kind_name(name: &str) -> bool {
    (1..=MAX_KIND).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic())
}

/// The date (UTC), in days from 1970-01-01.
fn date(now: Timestamp) -> i64 {
    now.as_second().div_euclid(SECONDS_A_DAY)
}

/// A date as in `2026-11-21`.
fn show_day(day: i64) -> String {
    let midnight = day.checked_mul(SECONDS_A_DAY).and_then(|second| Timestamp::from_second(second).ok());
    let text = midnight.unwrap_or_default().to_string();
    text.split('T').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
