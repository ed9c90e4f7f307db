//! The effects of outbox items in the cloud's store.

use std::collections::{BTreeMap, HashSet};

use super::Thing;
use crate::fault::{Fault, planted};
use crate::upload::{Content, IngestCursor, Lane, Refused, RefusedReason, Upload};

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
            let thing = read(item.content.get()).map_err(|error| format!("{item:?}: {error}"))?;
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

/// Parses the content of an item.
fn read(content: &str) -> Result<Thing, String> {
    match serde_json::from_str(content).map_err(|error| error.to_string())? {
        Content::Event(thing) => serde_json::from_str(thing.get()).map_err(|error| error.to_string()),
        Content::Effect(effect) => {
            let version = effect.version.filter(|version| *version == effect.wanted);
            let made = version.and_then(|version| version.as_str().parse().ok());
            let made = made.ok_or("the version in effect is another one than was put")?;
            Ok(Thing { key: effect.uid.to_string(), made, text: effect.message })
        }
        other => Err(format!("unexpected content: {other:?}")),
    }
}
