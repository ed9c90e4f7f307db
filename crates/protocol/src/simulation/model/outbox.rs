//! The outbox of the simulated node.

use std::collections::BTreeSet;

use serde_json::value::RawValue;

use crate::change::ObjectRef;
use crate::simulation::numbered::{Numbered, Waits};
use crate::upload::{Content, EffectContent, EffectState, Lane};

/// The most pending items: few enough that some are dropped.
const MAX_ROWS: usize = 30;

/// An item's key and its number over the whole run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Thing {
    pub key: String,
    pub made: u64,
    /// The key of the item.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// An outbox table of the edge's database.
#[derive(Clone)]
pub struct Outbox {
    pub items: Numbered<Thing>,
    /// Items that must take effect: neither replaced by a later item of their key nor dropped.
    owed: BTreeSet<u64>,
    /// Whether the file is an older copy whose numbers are not compared with the cloud's yet.
    is_copy: bool,
    /// Whether it ever was a copy, and so has assigned numbers twice.
    had_another_life: bool,
    dropped: u64,
}

impl Outbox {
    pub fn new(id: u64) -> Self {
        Self {
            items: Numbered::new(id),
            owed: BTreeSet::new(),
            is_copy: false,
            had_another_life: false,
            dropped: 0,
        }
    }

    /// Adds an item, which replaces the one of its key under a new number.
    pub fn put(&mut self, lane: Lane, thing: Thing) {
        let same = |(at, row): (&(Lane, u64), &Thing)| (at.0 == lane && row.key == thing.key).then_some(*at);
        if let Some(old) = self.items.rows.iter().find_map(same).and_then(|at| self.items.rows.remove(&at)) {
            self.owed.remove(&old.made);
        }
        self.owed.insert(thing.made);
        self.items.insert(lane, thing);
        while self.items.rows.len() > MAX_ROWS {
            let Some(lane) = self.items.rows.keys().map(|(lane, _)| *lane).max() else { return };
            let Some(oldest) = self.items.rows.keys().find(|at| at.0 == lane).copied() else { return };
            if let Some(row) = self.items.rows.remove(&oldest) {
                self.owed.remove(&row.made);
                self.dropped += 1;
            }
        }
    }

    /// Deletes confirmed items and returns those that must have taken effect.
    pub fn settle(&mut self, lane: Lane, upto: u64) -> Vec<Thing> {
        let gone = self.items.settle(lane, upto).into_iter();
        gone.filter(|thing| self.owed.contains(&thing.made)).collect()
    }

    /// Marks the file as an older copy: its pending items may have been sent, or replaced, after
    /// the copy.
    pub fn was_rolled_back(&mut self) {
        self.owed.clear();
        self.is_copy = true;
        self.had_another_life = true;
    }

    /// Handles a restore of the cloud's store from an older copy. If the file was rolled back
    /// before, the store may know numbers of the lost life: pending items with them count as sent.
    pub fn cloud_was_rolled_back(&mut self) {
        if self.had_another_life {
            self.was_rolled_back();
        }
    }

    /// Opens the file: an earlier life may have sent all of its items. In a copy these numbers may
    /// belong to other items: earlier items count as sent if the agent restarts before it has
    /// reached the cloud.
    pub fn open(&mut self) {
        if self.is_copy {
            self.owed.clear();
        }
    }

    /// Records that the numbers were compared with the cloud's.
    pub fn was_compared(&mut self) {
        self.is_copy = false;
    }

    pub fn waiting(&self) -> impl Iterator<Item = u64> {
        self.items.rows.values().map(|thing| thing.made)
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the items that must have taken effect once none is pending.
    pub fn owed(&self) -> impl Iterator<Item = u64> {
        self.owed.iter().copied()
    }
}

impl Waits for Thing {
    /// Returns the content; in the status lane it is the effect of an object.
    fn content(&self, lane: Lane) -> Box<RawValue> {
        if lane == Lane::Status {
            return serde_json::value::to_raw_value(&Content::Effect(self.effect())).unwrap();
        }
        let thing = serde_json::value::to_raw_value(self).unwrap();
        serde_json::value::to_raw_value(&Content::Event(&thing)).unwrap()
    }
}

impl Thing {
    fn effect(&self) -> EffectContent {
        EffectContent {
            uid: self.key.as_str().into(),
            object: ObjectRef {
                api_version: "v1".into(),
                kind: "ConfigMap".into(),
                namespace: "plant".into(),
                name: "line".into(),
            },
            version: Some(self.made.into()),
            wanted: self.made.into(),
            state: EffectState::InEffect,
            rule: String::new(),
            message: self.text.clone(),
            since: self.made.cast_signed(),
        }
    }
}
