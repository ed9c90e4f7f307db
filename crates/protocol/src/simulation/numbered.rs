//! A table of outbox items by lane and number, as the store keeps them.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::edge::OutboxMarks;
use crate::upload::{Lane, Lanes, UploadItem};

/// A pending item of an outbox.
pub trait Waits {
    /// Returns the content to send.
    fn content(&self, lane: Lane) -> Box<RawValue>;
}

/// A table of numbered items with their marks.
#[derive(Clone)]
pub struct Numbered<T> {
    pub id: String,
    pub rows: BTreeMap<(Lane, u64), T>,
    last: Lanes,
    confirmed: Lanes,
}

impl<T: Waits> Numbered<T> {
    pub fn new(id: u64) -> Self {
        let (last, confirmed) = (Lanes::default(), Lanes::default());
        Self { id: format!("{id:016x}"), rows: BTreeMap::new(), last, confirmed }
    }

    pub fn marks(&self) -> OutboxMarks {
        let mut rows = Lanes::default();
        for (lane, _) in self.rows.keys() {
            rows.set(*lane, rows.get(*lane) + 1);
        }
        OutboxMarks { id: self.id.clone(), last: self.last, confirmed: self.confirmed, rows }
    }

    /// Adds an item under the next number.
    pub fn insert(&mut self, lane: Lane, item: T) {
        let number = self.last.get(lane) + 1;
        self.last.set(lane, number);
        self.rows.insert((lane, number), item);
    }

    /// Returns a page of at most `limit` items and about `bytes` bytes, but at least one item.
    pub fn page(&self, lane: Lane, after: u64, limit: usize, bytes: usize) -> Vec<UploadItem> {
        let rows = self.rows.range((lane, after + 1)..=(lane, u64::MAX)).take(limit);
        let mut before = 0;
        rows.map(|((lane, seq), item)| UploadItem { seq: *seq, content: item.content(*lane) })
            .take_while(|item| {
                let has_room = before < bytes;
                before += item.content.get().len();
                has_room
            })
            .collect()
    }

    /// Deletes and returns confirmed items.
    pub fn settle(&mut self, lane: Lane, upto: u64) -> Vec<T> {
        self.confirmed.set(lane, self.confirmed.get(lane).max(upto));
        let gone: Vec<_> = self.rows.range((lane, 0)..=(lane, upto)).map(|(at, _)| *at).collect();
        gone.into_iter().filter_map(|at| self.rows.remove(&at)).collect()
    }

    /// Moves the numbers after `sent` above `above`.
    pub fn renumber(&mut self, lane: Lane, sent: u64, above: u64) {
        self.last.set(lane, self.last.get(lane).max(above));
        let moved: Vec<_> = self.rows.range((lane, sent + 1)..=(lane, u64::MAX)).map(|(at, _)| *at).collect();
        for at in moved {
            if let Some(item) = self.rows.remove(&at) {
                self.insert(lane, item);
            }
        }
    }
}
