//! The outbox of the simulated node, and what the cloud's store keeps of it.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::value::RawValue;

use crate::change::ObjectRef;
use crate::fault::{Fault, planted};
use crate::simulation::numbered::{Numbered, Waits};
use crate::upload::{Content, EffectContent, EffectState, Lane, Refused, RefusedReason, Taken, Upload};

/// So many items may wait: few enough that some are dropped.
const MAX_ROWS: usize = 30;

/// What an item is about, and how many were made before it in the whole run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Thing {
    pub key: String,
    pub made: u64,
    /// What is said of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// A table of the edge's database.
#[derive(Clone)]
pub struct Outbox {
    pub items: Numbered<Thing>,
    /// What must take effect: not what a later item of its key has taken the place of, and not what was dropped.
    owed: BTreeSet<u64>,
    /// Whether the file is an older copy that has not compared its numbers with the cloud yet.
    is_copy: bool,
    /// Whether it ever was one: then it has given numbers that had been given before.
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

    /// An item takes the place of the one of its key, under a new number.
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

    /// Forgets what is confirmed, and says what of it must have taken effect.
    pub fn settle(&mut self, lane: Lane, upto: u64) -> Vec<Thing> {
        let gone = self.items.settle(lane, upto).into_iter();
        gone.filter(|thing| self.owed.contains(&thing.made)).collect()
    }

    /// The file is an older copy: what waits in it may have been sent, or overtaken, after it was made.
    pub fn was_rolled_back(&mut self) {
        self.owed.clear();
        self.is_copy = true;
        self.had_another_life = true;
    }

    /// An older copy took the place of the cloud's store. If the file was rolled back before, that may know numbers of the
    /// life that was lost: what waits under them counts as sent.
    pub fn cloud_was_rolled_back(&mut self) {
        if self.had_another_life {
            self.was_rolled_back();
        }
    }

    /// All that is in the file may have been sent by an earlier life. In a copy these numbers may be those of
    /// other items: what was put into it counts as sent if the agent starts anew before it has met the cloud.
    pub fn open(&mut self) {
        if self.is_copy {
            self.owed.clear();
        }
    }

    /// The numbers were compared with the cloud's.
    pub fn was_compared(&mut self) {
        self.is_copy = false;
    }

    pub fn waiting(&self) -> impl Iterator<Item = u64> {
        self.items.rows.values().map(|thing| thing.made)
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// What must have taken effect by now if nothing waits any more.
    pub fn owed(&self) -> impl Iterator<Item = u64> {
        self.owed.iter().copied()
    }
}

impl Waits for Thing {
    /// In the lane of status, things say which version of an object is in effect.
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

    /// What an item says, as it was written.
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

/// What the cloud's store keeps of the outbox of the node, and the effects of its items.
#[derive(Clone, Default)]
pub struct Effects {
    taken: Taken,
    /// Numbers not yet stored, when the planted bug stores them apart from the effects.
    unsaved: Option<Taken>,
    pub log: Vec<Thing>,
    newest: BTreeMap<String, u64>,
}

impl Effects {
    /// One transaction: the effects and the numbers. Every seventh item is refused, which is an effect as well.
    pub fn take(&mut self, upload: &Upload) -> Result<(Taken, Vec<Refused>), String> {
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

    /// Effects from `start` on take place once, and for each key in the order in which they were made.
    pub fn check(&mut self, start: usize, excused: &HashSet<u64>) -> Result<(), String> {
        for thing in self.log[start..].iter().filter(|thing| !excused.contains(&thing.made)) {
            let before = self.newest.insert(thing.key.clone(), thing.made);
            if before.is_some_and(|before| before >= thing.made) {
                return Err(format!("outbox: {thing:?} took effect after {before:?}"));
            }
        }
        Ok(())
    }

    /// The outbox that the numbers are of.
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
