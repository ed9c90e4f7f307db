//! The outbox of the simulated node: items by lane and number, as the store keeps them.

use serde_json::value::{RawValue, to_raw_value};

use super::objects;
use edgesync_protocol::simulation::numbered::{Numbered, Waits};
use edgesync_protocol::upload::{Content, Lane};

/// The most pending items.
const MAX_ROWS: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Node(u64),
    Event(u64),
}

pub(super) type Outbox = Numbered<Item>;

impl Waits for Item {
    fn content(&self, _: Lane) -> Box<RawValue> {
        match *self {
            Self::Node(number) => {
                let report = to_raw_value(&objects::report(number)).unwrap();
                to_raw_value(&Content::Node(&report)).unwrap()
            }
            Self::Event(number) => {
                let event = to_raw_value(&objects::event(number)).unwrap();
                to_raw_value(&Content::Event(&event)).unwrap()
            }
        }
    }
}

/// Adds an item if the outbox has capacity. Only the last node report is kept.
pub(super) fn put(outbox: &mut Outbox, lane: Lane, item: Item) -> bool {
    if matches!(item, Item::Node(_)) {
        outbox.rows.retain(|_, row| !matches!(row, Item::Node(_)));
    } else if outbox.rows.len() >= MAX_ROWS {
        return false;
    }
    outbox.insert(lane, item);
    true
}
