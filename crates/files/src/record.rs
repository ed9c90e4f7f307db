//! What is remembered of what was written, and what is in effect. It is kept by who writes, not by the agent, so that
//! neither the agent nor its database can say what belongs to edgesync.

use std::collections::BTreeMap;
use std::hash::Hasher as _;

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128 as _, SipHasher13};

/// Where the files of objects are: a directory with files, or one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The directory that the rule names itself.
    pub base: String,
    /// The path below it, of checked names.
    pub below: String,
}

impl Place {
    /// The name of its last part.
    #[must_use]
    pub fn name(&self) -> &str {
        self.below.rsplit('/').next().unwrap_or_default()
    }

    /// The whole path.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/{}", self.base.trim_end_matches('/'), self.below)
    }
}

/// What a place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// A directory, in which each file is a link through `..data`.
    Directory,
    /// One file.
    File,
}

/// A keyed digest of a file: whoever does not know the key cannot make another file with the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest(u64, u64);

impl Digest {
    /// The digest of some bytes.
    #[must_use]
    pub fn of(key: (u64, u64), bytes: &[u8]) -> Self {
        let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
        hasher.write(bytes);
        let hash = hasher.finish128();
        Self(hash.h1, hash.h2)
    }

    /// Half of it, where no more is needed to tell things apart.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// An object that files are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// UID.
    pub uid: String,
    /// The version.
    pub version: String,
}

/// What was written at a place and is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The place.
    pub place: Place,
    /// What it is.
    pub shape: Shape,
    /// The number of what is there.
    pub stamp: u64,
    /// Whether the directory was made for it.
    pub made: bool,
    /// The digests of the files.
    pub files: BTreeMap<String, Digest>,
    /// The bytes in them.
    pub bytes: u64,
    /// The objects that they are made of.
    pub members: Vec<Member>,
    /// The digest of the rule's text by which they were made.
    pub rule: Digest,
}

/// A change of a place, as it is noted before it is begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The place.
    pub place: Place,
    /// What it is.
    pub shape: Shape,
    /// The number of what is to be there.
    pub stamp: u64,
    /// What edgesync has written there before.
    pub old: Option<Held>,
    /// Whether there is a file already.
    pub exists: bool,
    /// Whether the directory has to be made.
    pub makes: bool,
    /// What is to be there; nothing if the place is to go.
    pub new: Option<BTreeMap<String, Digest>>,
}

/// What is about to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Its number.
    pub run: u64,
    /// The changes.
    pub changes: Vec<Change>,
}

/// Whether an object is in effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum State {
    /// No rule concerns it any more.
    #[default]
    Gone,
    /// It is.
    InEffect,
    /// It is not.
    NotInEffect,
    /// Somebody else has had a hand in its files.
    Conflict,
}

/// What became of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// `v1`.
    pub api_version: String,
    /// `ConfigMap`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Whether its kind is sealed where objects are kept.
    #[serde(default)]
    pub sealed: bool,
    /// The version that is in effect.
    pub version: Option<String>,
    /// The version that was tried last.
    pub wanted: Option<String>,
    /// Whether that is in effect.
    pub state: State,
    /// Why not.
    pub message: String,
    /// Whether files were put back for it.
    pub rolled_back: bool,
    /// Since when, in microseconds since 1970.
    pub since: i64,
    /// The number of this state: a later one has a larger number.
    pub seq: u64,
}

/// A place that waits to be tried again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// What was tried.
    pub members: Vec<Member>,
    /// The digest of the rule's text by which it was tried.
    pub rule: Digest,
    /// How often.
    pub tries: u32,
    /// Until when it waits, in microseconds since 1970.
    pub until: i64,
}

/// What is remembered of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The number of the last run that went well.
    pub done: u64,
    /// The last number that was given to what is written.
    pub stamp: u64,
    /// Whether the program may not have read what is there.
    pub owes_reload: bool,
    /// What is there, by path.
    pub places: BTreeMap<String, Held>,
    /// Places that wait to be tried again, by path.
    pub waits: BTreeMap<String, Wait>,
    /// What became of each object, by UID.
    pub objects: BTreeMap<String, Status>,
    /// The last lines of the last check or reload that failed.
    pub output: String,
    /// How often the program was made to read its files.
    pub reloads: u64,
    /// How often files were put back.
    pub rollbacks: u64,
}

impl Record {
    /// What has changed since a record was as `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Delta {
        let (places, waits, objects) = Default::default();
        let (output, owes_reload) = (self.output.clone(), self.owes_reload);
        let Self { done, stamp, reloads, rollbacks, .. } = *self;
        Delta {
            head: Self { done, stamp, owes_reload, places, waits, objects, output, reloads, rollbacks },
            places: changed(&before.places, &self.places),
            waits: changed(&before.waits, &self.waits),
            objects: changed(&before.objects, &self.objects),
        }
    }

    /// Makes a change: the record is as the one that was compared.
    pub fn apply(&mut self, delta: Delta) {
        let Self { places, waits, objects, .. } = std::mem::replace(self, delta.head);
        self.places = merged(places, delta.places);
        self.waits = merged(waits, delta.waits);
        self.objects = merged(objects, delta.objects);
    }

    /// How many objects are in which state: in effect, not, in conflict.
    #[must_use]
    pub fn counts(&self) -> [u64; 3] {
        let count =
            |state: State| self.objects.values().filter(|object| object.state == state).count() as u64;
        [State::InEffect, State::NotInEffect, State::Conflict].map(count)
    }
}

/// What has changed in a record: what it says itself, and which entries are others, new or gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    head: Record,
    places: Entries<Held>,
    waits: Entries<Wait>,
    objects: Entries<Status>,
}

type Entries<V> = BTreeMap<String, Option<V>>;

fn changed<V: Clone + PartialEq>(before: &BTreeMap<String, V>, now: &BTreeMap<String, V>) -> Entries<V> {
    let gone = before.keys().filter(|key| !now.contains_key(*key)).map(|key| (key.clone(), None));
    let new = now.iter().filter(|(key, value)| before.get(*key) != Some(value));
    gone.chain(new.map(|(key, value)| (key.clone(), Some(value.clone())))).collect()
}

fn merged<V>(mut entries: BTreeMap<String, V>, changes: Entries<V>) -> BTreeMap<String, V> {
    for (key, value) in changes {
        match value {
            Some(value) => drop(entries.insert(key, value)),
            None => drop(entries.remove(&key)),
        }
    }
    entries
}
