//! The outbox of the simulated node, and its effects in the cloud's store.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::value::RawValue;

use crate::change::ObjectRef;
use crate::fault::{Fault, planted};
use crate::simulation::numbered::{Numbered, Waits};
use crate::upload::{
    Content, EffectContent, EffectState, IngestCursor, Lane, Refused, RefusedReason, Upload,
};

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

    /// Parses the content of an item.
    fn read(content: &str) -> Result<Self, String> {
        match serde_json::from_str(content).map_err(|error| error.to_string())? {
            Content::Event(thing) => serde_json::from_str(thing.get()).map_err(|error| error.to_string()),
            Content::Effect(effect) => {
                let version = effect.version.filter(|version| *version == effect.wanted);
                let made = version.and_then(|version| version.as_str().parse().ok());
                let made = made.ok_or("the version in effect is another one than was put")?;
                Ok(Self { key: effect.uid.to_string(), made, text: effect.message })
            }
            other => Err(format!("nobody has put {other:?}")),
        }
    }
}

/// The cursor of the cloud's store into the node's outbox, and the effects of its items.
#[derive(Clone, Default)]
pub struct Effects {
    taken: IngestCursor,
    /// Numbers not stored yet, if the injected bug stores them apart from the effects.
    unsaved: Option<IngestCursor>,
    pub log: Vec<Thing>,
    newest: BTreeMap<String, u64>,
}

impl Effects {
    /// Ingests an upload in one transaction: the effects and the numbers. Every seventh item is
    /// refused, which is an effect as well.
    pub fn take(&mut self, upload: &Upload) -> Result<(IngestCursor, Vec<Refused>), String> {
        let mut taken = self.unsaved.clone().unwrap_or_else(|| self.taken.clone());
        let mut refused = Vec::new();
        taken.begin(&upload.outbox, upload.lane, upload.confirmed);
        for item in &upload.items {
            let is_news = taken.accept(upload.lane, item.seq);
            let repeats = upload.lane == Lane::Status && planted(Fault::EffectOfAnyNumber);
            if !is_news && !repeats {
                continue;
            }
            let thing = Thing::read(item.content.get()).map_err(|error| format!("{item:?}: {error}"))?;
            if thing.made.is_multiple_of(7) {
                let (reason, message) = (RefusedReason::Gone, "gone".to_owned());
                refused.push(Refused { seq: item.seq, reason, message });
            }
            self.log.push(thing);
        }
        if planted(Fault::NumberApartFromEffect) {
            self.unsaved = Some(taken.clone());
        } else {
            self.taken = taken.clone();
        }
        Ok((taken, refused))
    }

    /// Checks that effects from `start` on occurred once, and in order for each key.
    pub fn check(&mut self, start: usize, excused: &HashSet<u64>) -> Result<(), String> {
        for thing in self.log[start..].iter().filter(|thing| !excused.contains(&thing.made)) {
            let before = self.newest.insert(thing.key.clone(), thing.made);
            if before.is_some_and(|before| before >= thing.made) {
                return Err(format!("outbox: {thing:?} took effect after {before:?}"));
            }
        }
        Ok(())
    }

    /// Returns the outbox that the numbers belong to.
    pub fn outbox(&self) -> &str {
        &self.taken.outbox
    }

    pub fn save_numbers(&mut self) {
        if let Some(taken) = self.unsaved.take() {
            self.taken = taken;
        }
    }

    pub fn crash(&mut self) {
        self.unsaved = None;
    }
}
