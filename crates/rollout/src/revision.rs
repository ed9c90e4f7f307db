//! Revisions: immutable sets of objects in certain versions, and the versions that were undone.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use edgesync_object::{Labels, ObjectRef, ResourceVersion, labels_of};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use std::hash::Hasher as _;

use super::fault::{Fault, planted};

pub use edgesync_object::Uid;

/// The objects that a rule selects now, each with its newest version.
pub type Selection = BTreeMap<Uid, ResourceVersion>;

/// Limit of the rejected versions of one object; more are kept only of versions without an order.
const MAX_REJECTED_OF_OBJECT: usize = 4;
/// Limit of the rejected versions of a rule. The configured limit of a rule's objects must not be
/// larger.
pub const MAX_REJECTED: usize = 1024;

/// A 128-bit digest: SipHash-2-4 with a key of zeros. As text 32 hexadecimal digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(u128);

/// A version in a revision, without its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Version of the object.
    pub version: ResourceVersion,
    /// The object.
    pub object: ObjectRef,
    /// Its labels in this version.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Length of the body in bytes.
    pub size: u64,
    /// [`Digest::of`] the body, by which the stored body is verified.
    pub digest: Arc<str>,
}

/// An immutable set of objects in certain versions: the content of a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Set(BTreeMap<Uid, Entry>);

/// How an object differs from one set to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// UID of the object.
    pub uid: Uid,
    /// Version in the new set; `None` if it is not in there.
    pub version: Option<ResourceVersion>,
}

/// A version that was undone: later revisions do not have it until the object changes again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejected {
    /// UID of the object.
    pub uid: Uid,
    /// The version; absent if the removal of the object was undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<ResourceVersion>,
}

/// The undone versions of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rejections(Vec<Rejected>);

/// Where a new revision takes an object from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The source, in this version: its body has to be read and stored.
    Source(ResourceVersion),
    /// The revision below, because the version of the source was undone.
    Below(Entry),
}

/// The content of the next revision, before bodies are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan(BTreeMap<Uid, Origin>);

/// A version of the source was undone, and the set that has the version before is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BelowUnknown;

/// A hasher of texts with their lengths.
pub(crate) struct TextHasher(SipHasher24);

pub(crate) fn hasher() -> TextHasher {
    TextHasher(SipHasher24::new())
}

impl TextHasher {
    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.write(&u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_le_bytes());
        self.0.write(bytes);
    }

    pub(crate) fn finish(&self) -> Digest {
        Digest(self.0.finish128().as_u128())
    }
}

/// Returns the digest of a set of versions.
fn digest<'a>(versions: impl Iterator<Item = (&'a Uid, &'a ResourceVersion)>) -> Digest {
    let mut hasher = hasher();
    for (uid, version) in versions {
        hasher.text(uid);
        hasher.text(version.as_str());
    }
    hasher.finish()
}

impl Digest {
    /// Returns the digest of a byte string. It detects damage, not tampering: the key is fixed.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = hasher();
        hasher.bytes(bytes);
        hasher.finish()
    }
}

impl Entry {
    /// Describes a version by its body.
    #[must_use]
    pub fn new(version: ResourceVersion, object: ObjectRef, body: &str) -> Self {
        let size = u64::try_from(body.len()).unwrap_or(u64::MAX);
        let digest = Digest::of(body.as_bytes()).to_string().into();
        Self { version, object, labels: labels_of(body), size, digest }
    }

    /// Returns whether a text is the body of this version.
    #[must_use]
    pub fn is_body(&self, text: &str) -> bool {
        u64::try_from(text.len()) == Ok(self.size) && Digest::of(text.as_bytes()).to_string() == *self.digest
    }
}

impl Set {
    /// Creates a set.
    #[must_use]
    pub fn new(entries: BTreeMap<Uid, Entry>) -> Self {
        Self(entries)
    }

    /// Returns the entries by UID.
    #[must_use]
    pub fn entries(&self) -> &BTreeMap<Uid, Entry> {
        &self.0
    }

    /// Returns the version of an object; `None` if it is not in the set.
    #[must_use]
    pub fn version(&self, uid: &str) -> Option<&ResourceVersion> {
        self.0.get(uid).map(|entry| &entry.version)
    }

    /// Returns the digest over UIDs and versions; equal digests mean equal sets.
    #[must_use]
    pub fn digest(&self) -> Digest {
        digest(self.0.iter().map(|(uid, entry)| (uid, &entry.version)))
    }

    /// Returns the length of all bodies in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.0.values().fold(0, |sum, entry| sum.saturating_add(entry.size))
    }

    /// Returns what differs from the set below, by UID.
    #[must_use]
    pub fn difference(&self, below: &Self) -> Vec<Difference> {
        let changed = self.0.iter().filter(|(uid, entry)| below.version(uid) != Some(&entry.version));
        let changed = changed.map(|(uid, entry)| (uid, Some(entry.version.clone())));
        let removed = below.0.keys().filter(|uid| !self.0.contains_key(*uid)).map(|uid| (uid, None));
        let all: BTreeMap<_, _> = changed.chain(removed).collect();
        all.into_iter().map(|(uid, version)| Difference { uid: uid.clone(), version }).collect()
    }

    /// Returns whether each object that both sets have is in the same or a newer version here, as
    /// far as versions have an order.
    #[must_use]
    pub fn follows(&self, below: &Self) -> bool {
        let is_older = |(uid, entry): (&Uid, &Entry)| {
            below.version(uid).is_some_and(|old| entry.version.is_older_than(old))
        };
        !self.0.iter().any(is_older)
    }
}

impl Plan {
    /// Returns the objects by UID.
    #[must_use]
    pub fn objects(&self) -> &BTreeMap<Uid, Origin> {
        &self.0
    }

    /// Returns the digest of the set that follows from the plan.
    #[must_use]
    pub fn digest(&self) -> Digest {
        digest(self.0.iter().map(|(uid, origin)| match origin {
            Origin::Source(version) => (uid, version),
            Origin::Below(entry) => (uid, &entry.version),
        }))
    }
}

impl Rejections {
    /// Returns the rejected versions.
    #[must_use]
    pub fn as_slice(&self) -> &[Rejected] {
        &self.0
    }

    /// Returns whether a version of an object, or its removal, was undone. A version that is
    /// certainly older than an undone one counts as undone: only a late reader still sees it.
    #[must_use]
    pub fn has(&self, uid: &str, version: Option<&ResourceVersion>) -> bool {
        let mut same = self.0.iter().filter(|rejected| &*rejected.uid == uid);
        same.any(|rejected| match (&rejected.version, version) {
            (None, None) => true,
            (Some(undone), Some(version)) => undone == version || version.is_older_than(undone),
            (None, Some(_)) | (Some(_), None) => false,
        })
    }

    /// Plans the next revision from what the rule selects now. For an undone version it takes the
    /// one of the newest revision, whose set is `below`; an object that is not in there stays out,
    /// and one whose removal was undone stays in.
    ///
    /// # Errors
    /// Something was undone, and `below` is not known.
    pub fn plan(&self, selection: &Selection, below: Option<&Set>) -> Result<Plan, BelowUnknown> {
        let ignored = planted(Fault::RejectedTaken);
        let mut plan = BTreeMap::new();
        for (uid, version) in selection {
            if ignored || !self.has(uid, Some(version)) {
                plan.insert(uid.clone(), Origin::Source(version.clone()));
            } else if let Some(entry) = below.ok_or(BelowUnknown)?.entries().get(uid) {
                plan.insert(uid.clone(), Origin::Below(entry.clone()));
            }
        }
        for rejected in self.0.iter().filter(|rejected| rejected.version.is_none() && !ignored) {
            if !selection.contains_key(&rejected.uid)
                && let Some(entry) = below.ok_or(BelowUnknown)?.entries().get(&rejected.uid)
            {
                plan.insert(rejected.uid.clone(), Origin::Below(entry.clone()));
            }
        }
        Ok(Plan(plan))
    }

    /// Returns the first object of a set whose version, or whose absence, was undone, other than as
    /// in the set below.
    pub(crate) fn first_in<'a>(&'a self, set: &Set, below: &Set) -> Option<&'a Uid> {
        let is_new = |rejected: &&Rejected| {
            let version = set.version(&rejected.uid);
            version != below.version(&rejected.uid) && self.has(&rejected.uid, version)
        };
        self.0.iter().find(is_new).map(|rejected| &rejected.uid)
    }

    /// Returns whether a set has a version, or lacks an object, that was undone.
    pub(crate) fn is_in(&self, set: &Set) -> bool {
        self.0.iter().any(|rejected| self.has(&rejected.uid, set.version(&rejected.uid)))
    }

    /// Adds what an undone revision has changed. Of versions with an order the newest one of an
    /// object stands for all older ones.
    pub(crate) fn add(&mut self, undone: Vec<Difference>) {
        for Difference { uid, version } in undone {
            if version.is_none() && planted(Fault::UndoneRemovalForgotten) {
                continue;
            }
            let covered = |rejected: &Rejected| {
                rejected.uid == uid
                    && match (&rejected.version, &version) {
                        (Some(old), Some(new)) => old == new || old.is_older_than(new),
                        (old, new) => old == new,
                    }
            };
            self.0.retain(|rejected| !covered(rejected));
            self.0.push(Rejected { uid: uid.clone(), version });
            let count = self.0.iter().filter(|rejected| rejected.uid == uid).count();
            if count > MAX_REJECTED_OF_OBJECT
                && let Some(first) = self.0.iter().position(|rejected| rejected.uid == uid)
            {
                self.0.remove(first);
            }
        }
    }

    /// Removes undone removals of objects that are selected again, and beyond the limit those
    /// versions first whose objects neither the source nor a revision has.
    pub(crate) fn prune(&mut self, selection: &Selection, is_in_a_set: impl Fn(&Uid) -> bool) {
        if planted(Fault::RejectionsForgotten) {
            self.0.clear();
        }
        self.0.retain(|rejected| rejected.version.is_some() || !selection.contains_key(&rejected.uid));
        if self.0.len() > MAX_REJECTED {
            self.0.retain(|rejected| selection.contains_key(&rejected.uid) || is_in_a_set(&rejected.uid));
            let excess = self.0.len().saturating_sub(MAX_REJECTED);
            self.0.drain(..excess);
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0 >> 96)
    }
}

impl FromStr for Digest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
        number.map(Self).ok_or("a digest must be 32 lower-case hexadecimal digits")
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for BelowUnknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bodies of the newest revision are lost, so an undone version has no substitute")
    }
}

impl std::error::Error for BelowUnknown {}

#[cfg(test)]
mod tests;
