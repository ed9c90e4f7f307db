//! Record of written files and of objects in effect. Kept by the helper, not by the agent, so that
//! neither the agent nor its database can claim files as written by edgesync.

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::gate::WaitReason;

/// Maximum length of a message about an object, in bytes.
const MAX_MESSAGE: usize = 1024;
/// Change of the end of a wait that is not reported, in microseconds.
const MAX_DRIFT: u64 = 90_000_000;
/// Message about objects whose files the program may not have read.
pub(super) const RELOAD_OWED: &str = "reload pending: the program may not have read the current files";

/// Location of an object's files: a directory with files, or one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Directory that the rule itself names.
    pub base: String,
    /// Path below it, made of validated names.
    pub below: String,
}

impl Place {
    /// Returns the last component of the path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.below.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the whole path.
    #[must_use]
    pub fn path(&self) -> String {
        self.at(&self.below)
    }

    /// Returns the paths of the directories between base and place, the nearest first.
    pub(crate) fn parents(&self) -> impl Iterator<Item = String> {
        std::iter::successors(above(self.below.as_str()), |below| above(below)).map(|below| self.at(below))
    }

    fn at(&self, below: &str) -> String {
        format!("{}/{}", self.base.trim_end_matches('/'), below)
    }
}

fn above(below: &str) -> Option<&str> {
    below.rsplit_once('/').map(|(above, _)| above)
}

/// Layout of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// A directory in which each file is a link through `..data`.
    Directory,
    /// A single regular file.
    File,
}

/// A keyed digest of a file: without the key no other file with the same digest can be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest(u64, u64);

impl Digest {
    /// Computes the digest of bytes.
    #[must_use]
    pub fn of(key: (u64, u64), bytes: &[u8]) -> Self {
        let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
        hasher.write(bytes);
        let hash = hasher.finish128();
        Self(hash.h1, hash.h2)
    }

    /// Returns half of the digest, for checksums.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// An object that files are derived from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// UID of the object.
    pub uid: String,
    /// Version of the object.
    pub version: String,
}

/// Files that were written to a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Location of the files.
    pub place: Place,
    /// Layout of the place.
    pub shape: Shape,
    /// Stamp of the version.
    pub stamp: u64,
    /// Whether the directory was created for it.
    pub made: bool,
    /// Number of parent directories, the nearest first, that were created for files of the rule.
    /// They are removed with the last place in them.
    #[serde(default)]
    pub parents: u32,
    /// Digests of the files.
    pub files: BTreeMap<String, Digest>,
    /// Sizes of the files in bytes, in the order of their names. Empty in records of older
    /// versions.
    #[serde(default)]
    pub sizes: Vec<u64>,
    /// Size of all files in bytes.
    pub bytes: u64,
    /// Objects that the files are derived from.
    pub members: Vec<Member>,
    /// Digest of the rule's text that they were derived by.
    pub rule: Digest,
    /// Stamp of the copy that outlives a reboot; none if there is no copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<u64>,
    /// Whether the memory with the files was lost, and they must be written from the copy.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lost: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde demands")]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl Held {
    /// Returns the names of the files, each with the sizes that it can have as it was written.
    pub fn sizes(&self) -> impl Iterator<Item = (&str, RangeInclusive<u64>)> {
        let known = self.sizes.iter().map(|size| *size..=*size);
        let sizes = known.chain(std::iter::repeat(0..=self.bytes));
        self.files.keys().map(String::as_str).zip(sizes)
    }
}

/// A change of a place, recorded before it begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Location of the files.
    pub place: Place,
    /// Layout of the place.
    pub shape: Shape,
    /// Stamp of the new version.
    pub stamp: u64,
    /// The version written before, if any.
    pub old: Option<Held>,
    /// Whether the place's file exists already.
    pub exists: bool,
    /// Whether the directory must be created.
    pub makes: bool,
    /// Number of parent directories, as in [`Held::parents`], after the change.
    #[serde(default)]
    pub parents: u32,
    /// Digests of the new files; none to remove the place.
    pub new: Option<BTreeMap<String, Digest>>,
}

/// A change that could not be rolled back: its place is in an unknown state until it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// The change whose rollback failed.
    pub change: Change,
    /// Reason why its last rollback failed.
    pub message: String,
}

/// Changes of a transaction, recorded before it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Number of the transaction.
    pub run: u64,
    /// Changes of the transaction.
    pub changes: Vec<Change>,
    /// Whether the changes are only checked, and none of them replaces a file.
    #[serde(default, skip_serializing_if = "is_false")]
    pub check_only: bool,
}

/// State of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum State {
    /// No rule selects the object any more.
    #[default]
    Gone,
    /// The desired version is in effect.
    InEffect,
    /// The desired version passed its check, and waits until changes may take effect.
    Waiting,
    /// The desired version is not in effect.
    NotInEffect,
    /// Its files were changed by another party.
    Conflict,
}

/// Status of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// API version, such as `v1`.
    pub api_version: String,
    /// Kind, such as `ConfigMap`.
    pub kind: String,
    /// Plural of the kind; empty if it follows from the kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plural: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Whether its kind is sealed in the database.
    #[serde(default)]
    pub sealed: bool,
    /// Version that is in effect.
    pub version: Option<String>,
    /// Version that was tried last.
    pub wanted: Option<String>,
    /// State of that version.
    pub state: State,
    /// Reason why it is not in effect.
    pub message: String,
    /// Whether its files were rolled back.
    pub rolled_back: bool,
    /// Time of the last state change, in microseconds since 1970.
    pub since: i64,
    /// Sequence number of this status; later ones are larger.
    pub seq: u64,
    /// Reason why it waits; none if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<WaitReason>,
    /// When it may take effect, in microseconds since 1970, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
}

/// Backoff of a place after failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Objects that were tried.
    pub members: Vec<Member>,
    /// Digest of the rule's text that was tried.
    pub rule: Digest,
    /// Number of consecutive failures.
    pub tries: u32,
    /// Time of the next attempt, in microseconds since 1970.
    pub until: i64,
}

/// Changes of a place that have passed their check, and wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Objects that were checked; for a removal, those that the files are derived from.
    pub members: Vec<Member>,
    /// Digest of the rule's text that they were checked by.
    pub rule: Digest,
    /// Whether all changed objects ask for their change outside of windows.
    pub urgent: bool,
}

/// Persistent record of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Number of the last committed transaction.
    pub done: u64,
    /// Last stamp assigned to a version.
    pub stamp: u64,
    /// Whether the program may not have read the current files.
    pub owes_reload: bool,
    /// Held files, by path.
    pub places: BTreeMap<String, Held>,
    /// Places in backoff, by path.
    pub waits: BTreeMap<String, Wait>,
    /// Changes that could not be rolled back, by path. They block their place and no other.
    pub stuck: BTreeMap<String, Stuck>,
    /// Status of each object, by UID.
    pub objects: BTreeMap<String, Status>,
    /// Last lines of the last failed check or reload.
    pub output: String,
    /// Number of successful reloads.
    pub reloads: u64,
    /// Number of transactions rolled back.
    pub rollbacks: u64,
    /// Places whose changes wait, by path.
    pub pending: BTreeMap<String, Pending>,
}

impl Record {
    /// Returns the difference from an earlier record.
    #[must_use]
    pub fn since(&self, before: &Self) -> Delta {
        let (places, waits, stuck, objects, pending) = Default::default();
        let (output, owes_reload) = (self.output.clone(), self.owes_reload);
        let Self { done, stamp, reloads, rollbacks, .. } = *self;
        Delta {
            head: Self {
                done,
                stamp,
                owes_reload,
                places,
                waits,
                stuck,
                objects,
                output,
                reloads,
                rollbacks,
                pending,
            },
            places: changed(&before.places, &self.places),
            waits: changed(&before.waits, &self.waits),
            stuck: changed(&before.stuck, &self.stuck),
            objects: changed(&before.objects, &self.objects),
            pending: changed(&before.pending, &self.pending),
        }
    }

    /// Applies a difference to the record that it was computed from.
    pub fn apply(&mut self, delta: Delta) {
        let Self { places, waits, stuck, objects, pending, .. } = std::mem::replace(self, delta.head);
        self.places = merged(places, delta.places);
        self.waits = merged(waits, delta.waits);
        self.stuck = merged(stuck, delta.stuck);
        self.objects = merged(objects, delta.objects);
        self.pending = merged(pending, delta.pending);
    }

    /// Sets the status of an object at a time in microseconds since 1970. A status that differs in
    /// what is reported gets the next sequence number. Returns whether it has to be persisted.
    pub(crate) fn set(&mut self, uid: &str, mut status: Status, seq: &mut u64, now: i64) -> bool {
        let before = self.objects.get(uid);
        let reported =
            |status: &Status| (status.state, status.version.clone(), status.wanted.clone(), status.reason);
        if status.state != State::Waiting {
            (status.reason, status.until) = (None, None);
        }
        // The end of a wait is computed again with each reading of the clocks.
        let is_close = |(one, other): (i64, i64)| one.abs_diff(other) < MAX_DRIFT;
        if let Some(until) = before.and_then(|before| before.until)
            && status.until.is_some_and(|new| is_close((new, until)))
        {
            status.until = Some(until);
        }
        status.since = match before {
            Some(before) if before.state == status.state && before.version == status.version => before.since,
            _ => now,
        };
        // Another message for the same state is not reported: programs put candidate names and
        // times into messages.
        status.seq = match before {
            Some(before) if reported(before) == reported(&status) && before.until == status.until => {
                before.seq
            }
            _ => {
                *seq += 1;
                *seq
            }
        };
        let differs = before != Some(&status);
        // The explanation of a wait may have a time or a counter in it, and is read again with each
        // look at the gate: it is no reason to write to a disk.
        let is_explained_anew = before.is_some_and(|before| {
            status.state == State::Waiting
                && *before == Status { message: before.message.clone(), ..status.clone() }
        });
        if differs {
            self.objects.insert(uid.to_owned(), status);
        }
        differs && !is_explained_anew
    }

    /// Withdraws all versions in effect, because the program may not have read the current files.
    /// Returns whether a status has changed.
    pub fn withhold(&mut self, seq: &mut u64, now: i64) -> bool {
        let claims = |status: &Status| status.state == State::InEffect || status.version.is_some();
        let claiming = self.objects.iter().filter(|(_, status)| claims(status));
        let claiming: Vec<_> = claiming.map(|(uid, status)| (uid.clone(), status.clone())).collect();
        for (uid, status) in &claiming {
            let mut withheld = Status { version: None, ..status.clone() };
            if status.state == State::InEffect {
                withheld.state = State::NotInEffect;
                RELOAD_OWED.clone_into(&mut withheld.message);
            }
            self.set(uid, withheld, seq, now);
        }
        !claiming.is_empty()
    }

    /// Returns the number of objects that wait.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.objects.values().filter(|object| object.state == State::Waiting).count() as u64
    }

    /// Returns the numbers of objects in effect, not in effect, and in conflict; those that wait
    /// are none of them.
    #[must_use]
    pub fn counts(&self) -> [u64; 3] {
        let count =
            |state: State| self.objects.values().filter(|object| object.state == state).count() as u64;
        [State::InEffect, State::NotInEffect, State::Conflict].map(count)
    }
}

/// Difference of two records: the head fields, and changed, new or removed entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    head: Record,
    places: Entries<Held>,
    waits: Entries<Wait>,
    #[serde(default)]
    stuck: Entries<Stuck>,
    objects: Entries<Status>,
    #[serde(default)]
    pending: Entries<Pending>,
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

/// Returns the end of a text, where programs put their errors.
pub(crate) fn tail(text: &str) -> String {
    let mut from = text.len().saturating_sub(MAX_MESSAGE);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.get(from..).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pass writes the record only if something has changed.
    #[test]
    fn versions_are_withheld_once() {
        let (mut record, mut seq) = (Record::default(), 0);
        let status = Status { state: State::InEffect, version: Some("1".to_owned()), ..Status::default() };
        record.set("u", status, &mut seq, 1);
        assert!(record.withhold(&mut seq, 2));
        let status = &record.objects["u"];
        assert_eq!((status.state, status.version.as_deref()), (State::NotInEffect, None));
        assert!(!record.withhold(&mut seq, 3));
    }
}
