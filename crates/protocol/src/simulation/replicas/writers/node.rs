//! A node: its machine over the model of its database, and the items of its outbox.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::Deserialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::server::Key;
use crate::change::{ObjectRef, Uid};
use crate::edge::EdgeMachine;
use crate::simulation::model::EdgeDb;
use crate::simulation::numbered::{Numbered, Waits};
use crate::timing::Now;
use crate::upload::{Content, EffectContent, EffectState, Lane, StatusContent};

/// An item of the outbox. The number is unique over all nodes, and grows.
#[derive(Clone, Debug)]
pub(super) struct Thing {
    pub(super) key: Key,
    pub(super) made: u64,
    pub(super) at: Now,
    /// The object that it is about, in the version that the node held; none for an Event.
    object: Option<(Uid, ObjectRef, u64)>,
}

#[derive(Deserialize)]
struct Numbers {
    made: u64,
    #[serde(default)]
    name: u64,
}

/// The content of an item, as a replica reads it.
pub(super) struct Read {
    pub(super) key: Key,
    pub(super) made: u64,
    pub(super) held: u64,
    pub(super) object: Option<ObjectRef>,
}

impl Thing {
    /// Creates an item about an object that the node holds in this version.
    pub(super) fn about(is_effect: bool, object: (Uid, ObjectRef, u64), made: u64, at: Now) -> Self {
        let uid = object.0.clone();
        let key = if is_effect { Key::Effect(uid) } else { Key::Status(uid) };
        Self { key, made, at, object: Some(object) }
    }

    /// Creates an Event.
    pub(super) fn event(name: u64, made: u64, at: Now) -> Self {
        Self { key: Key::Event(name), made, at, object: None }
    }

    pub(super) fn lane(&self) -> Lane {
        if matches!(self.key, Key::Event(_)) { Lane::Events } else { Lane::Status }
    }

    /// Returns the UID of the object that it is about.
    pub(super) fn uid(&self) -> Option<&Uid> {
        self.object.as_ref().map(|(uid, ..)| uid)
    }
}

impl Waits for Thing {
    fn content(&self, _: Lane) -> Box<RawValue> {
        let made = self.made;
        let Some((uid, object, held)) = &self.object else {
            let Key::Event(name) = self.key else { unreachable!("only Events are about no object") };
            let event = to_raw_value(&json!({"made": made, "name": name})).unwrap();
            return to_raw_value(&Content::Event(&event)).unwrap();
        };
        let (uid, object) = (uid.clone(), object.clone());
        if matches!(self.key, Key::Status(_)) {
            let status = to_raw_value(&json!({"made": made})).unwrap();
            return to_raw_value(&Content::Status(StatusContent { uid, object, status: &status })).unwrap();
        }
        let effect = EffectContent {
            uid,
            object,
            version: Some((*held).into()),
            wanted: (*held).into(),
            state: EffectState::InEffect,
            rule: String::new(),
            message: made.to_string(),
            since: 0,
        };
        to_raw_value(&Content::Effect(effect)).unwrap()
    }
}

/// Reads the content of an item.
pub(super) fn read(content: &str) -> Result<Read, String> {
    let numbers = |json: &RawValue| -> Result<Numbers, String> {
        serde_json::from_str(json.get()).map_err(|error| error.to_string())
    };
    match Content::parse(content)? {
        Content::Event(event) => {
            let Numbers { made, name } = numbers(event)?;
            Ok(Read { key: Key::Event(name), made, held: 0, object: None })
        }
        Content::Status(StatusContent { uid, object, status }) => {
            let made = numbers(status)?.made;
            Ok(Read { key: Key::Status(uid), made, held: 0, object: Some(object) })
        }
        Content::Effect(EffectContent { uid, object, wanted, message, .. }) => {
            let made = message.parse().map_err(|_| format!("an effect without a number: {message}"))?;
            let held = super::state::number(&wanted);
            Ok(Read { key: Key::Effect(uid), made, held, object: Some(object) })
        }
        Content::Node(_) => Err("no node sends a report".to_owned()),
    }
}

/// A node with what it remembers, and with what the checks remember of it.
pub(super) struct Node {
    pub(super) db: EdgeDb,
    pub(super) edge: Option<EdgeMachine>,
    /// The number of starts, and of crashes.
    pub(super) life: u64,
    pub(super) outbox: Numbered<Thing>,
    /// The connection that it uses.
    pub(super) link: Option<usize>,
    pub(super) last_commit: Now,
    pub(super) last_answer: Now,
    /// Items settled since the last check, and the numbers of refused ones.
    pub(super) settling: Vec<Thing>,
    pub(super) refused: BTreeSet<u64>,
    /// The newest number settled under each key, and the time at which its item was made.
    pub(super) settled: BTreeMap<Key, (u64, Now)>,
    /// The last time at which it removed an object.
    pub(super) removed: BTreeMap<Uid, Now>,
    /// The time of its last Hello, and what it held then.
    pub(super) hello: Now,
    pub(super) held_then: HashSet<Uid>,
}

impl Node {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            db: EdgeDb::new(seed),
            edge: None,
            life: 0,
            outbox: Numbered::new(seed),
            link: None,
            last_commit: Now::ZERO,
            last_answer: Now::ZERO,
            settling: Vec::new(),
            refused: BTreeSet::new(),
            settled: BTreeMap::new(),
            removed: BTreeMap::new(),
            hello: Now::ZERO,
            held_then: HashSet::new(),
        }
    }

    /// Adds an item, which replaces the one of its key under a new number.
    pub(super) fn put(&mut self, thing: Thing) {
        let same = |(at, row): (&(Lane, u64), &Thing)| (row.key == thing.key).then_some(*at);
        if let Some(at) = self.outbox.rows.iter().find_map(same) {
            self.outbox.rows.remove(&at);
        }
        self.outbox.insert(thing.lane(), thing);
    }
}
