//! The outbox of the simulated node: items by lane and number, as the store keeps them.

use std::collections::BTreeMap;

use serde_json::value::{RawValue, to_raw_value};

use super::objects;
use crate::sync::edge::OutboxMarks;
use crate::sync::upload::{Content, Lane, Lanes, UploadItem};

/// So many items may wait.
const MAX_ROWS: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Node(u64),
    Event(u64),
}

#[derive(Clone)]
pub(super) struct Outbox {
    id: String,
    rows: BTreeMap<(Lane, u64), Item>,
    last: Lanes,
    confirmed: Lanes,
}

fn raw(item: Item) -> Box<RawValue> {
    match item {
        Item::Node(number) => {
            let report = to_raw_value(&objects::report(number)).unwrap();
            to_raw_value(&Content::Node(&report)).unwrap()
        }
        Item::Event(number) => {
            let event = to_raw_value(&objects::event(number)).unwrap();
            to_raw_value(&Content::Event(&event)).unwrap()
        }
    }
}

impl Outbox {
    pub(super) fn new(id: u64) -> Self {
        let (last, confirmed) = (Lanes::default(), Lanes::default());
        Self { id: format!("{id:016x}"), rows: BTreeMap::new(), last, confirmed }
    }

    pub(super) fn marks(&self) -> OutboxMarks {
        let mut rows = Lanes::default();
        for (lane, _) in self.rows.keys() {
            rows.set(*lane, rows.get(*lane) + 1);
        }
        OutboxMarks { id: self.id.clone(), last: self.last, confirmed: self.confirmed, rows }
    }

    /// Puts an item, if there is room. Of reports only the last one waits.
    pub(super) fn put(&mut self, lane: Lane, item: Item) -> bool {
        if matches!(item, Item::Node(_)) {
            self.rows.retain(|_, row| !matches!(row, Item::Node(_)));
        } else if self.rows.len() >= MAX_ROWS {
            return false;
        }
        let number = self.last.get(lane) + 1;
        self.last.set(lane, number);
        self.rows.insert((lane, number), item);
        true
    }

    pub(super) fn page(&self, lane: Lane, after: u64, limit: usize) -> Vec<UploadItem> {
        let rows = self.rows.range((lane, after + 1)..=(lane, u64::MAX)).take(limit);
        rows.map(|((_, seq), item)| UploadItem { seq: *seq, content: raw(*item) }).collect()
    }

    pub(super) fn settle(&mut self, lane: Lane, upto: u64) -> Vec<Item> {
        self.confirmed.set(lane, self.confirmed.get(lane).max(upto));
        let gone: Vec<_> = self.rows.range((lane, 0)..=(lane, upto)).map(|(at, _)| *at).collect();
        gone.into_iter().filter_map(|at| self.rows.remove(&at)).collect()
    }

    /// The numbers after `sent` become those after `above`.
    pub(super) fn renumber(&mut self, lane: Lane, sent: u64, above: u64) {
        self.last.set(lane, self.last.get(lane).max(above));
        let moved: Vec<_> = self.rows.range((lane, sent + 1)..=(lane, u64::MAX)).map(|(at, _)| *at).collect();
        for at in moved {
            if let Some(item) = self.rows.remove(&at) {
                let number = self.last.get(lane) + 1;
                self.last.set(lane, number);
                self.rows.insert((lane, number), item);
            }
        }
    }

    pub(super) fn items(&self) -> impl Iterator<Item = Item> {
        self.rows.values().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }
}
