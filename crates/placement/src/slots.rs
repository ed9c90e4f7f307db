//! Compact storage of the index's objects, found by UID and by name.
//!
//! An object that several nodes may hold is stored whole, so that all messages in flight share it.
//! An object that at most one node may hold, or that is not placed, is a text of UID, version and
//! name, from which the whole object is built on demand.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;

use super::{Summary, Uid};
use edgesync_object::urgency::Urgency;
use edgesync_object::{ObjectRef, Resource, ResourceVersion, Target};

/// A placed object. Its labels are not stored: they are matched against the rules when the object
/// is applied.
#[derive(Debug, PartialEq, Eq)]
pub struct Placed {
    /// UID of the object.
    pub uid: Uid,
    /// `metadata.resourceVersion` of the object as last upserted.
    pub version: ResourceVersion,
    /// API version, kind, namespace and name.
    pub object: Arc<ObjectRef>,
    /// Kind of the object, with group, plural and scope.
    pub resource: Arc<Resource>,
    /// Length of its JSON text in bytes; zero if not counted.
    pub size: usize,
    /// Its urgency.
    pub urgency: Urgency,
}

/// Number of an object while it is in the index.
pub(super) type Id = u32;

/// Objects per chunk of the table. A growing table does not move existing chunks.
const CHUNK: usize = 1024;
/// Shards of a hash table, which grow independently.
const SHARDS: usize = 256;

/// An object in the table.
#[derive(Debug)]
pub(super) struct Slot {
    form: Form,
    /// Number of the pair of kind and namespace.
    words: u32,
    weight: Weight,
    /// Number of the set of rules that select it.
    pub(super) rules: u32,
    /// Number of the set of nodes that it names.
    pub(super) nodes: u32,
}

/// Size and urgency of an object in four bytes: a million objects are stored.
#[derive(Clone, Copy, Debug)]
struct Weight(u32);

impl Weight {
    /// The bits of the size. No object is as large.
    const SIZE: u32 = u32::MAX >> 2;

    fn new(size: usize, urgency: Urgency) -> Self {
        let urgency = match urgency {
            Urgency::Normal => 0,
            Urgency::Low => 1,
            Urgency::High => 2,
        };
        Self(u32::try_from(size).unwrap_or(u32::MAX).min(Self::SIZE) | urgency << 30)
    }

    fn size(self) -> usize {
        (self.0 & Self::SIZE) as usize
    }

    fn urgency(self) -> Urgency {
        match self.0 >> 30 {
            0 => Urgency::Normal,
            1 => Urgency::Low,
            _ => Urgency::High,
        }
    }
}

#[derive(Debug)]
enum Form {
    Whole(Arc<Placed>),
    /// UID, version and name, with the lengths of the first two.
    Text(Box<str>, u16, u16),
}

impl Slot {
    pub(super) fn uid(&self) -> &str {
        match &self.form {
            Form::Whole(object) => &object.uid,
            Form::Text(text, uid, _) => &text[..usize::from(*uid)],
        }
    }

    pub(super) fn name(&self) -> &str {
        match &self.form {
            Form::Whole(object) => &object.object.name,
            Form::Text(text, uid, version) => &text[usize::from(*uid) + usize::from(*version)..],
        }
    }

    /// Returns the version; shared if the object is stored whole.
    pub(super) fn version(&self) -> ResourceVersion {
        match &self.form {
            Form::Whole(object) => object.version.clone(),
            Form::Text(..) => self.version_text().into(),
        }
    }

    pub(super) fn version_text(&self) -> &str {
        match &self.form {
            Form::Whole(object) => object.version.as_str(),
            Form::Text(text, uid, version) => &text[usize::from(*uid)..][..usize::from(*version)],
        }
    }

    fn text(&self) -> Option<Form> {
        text(self.uid(), self.version_text(), self.name())
    }
}

/// Builds the text form; `None` if a part exceeds 64 KiB, which no valid name does.
fn text(uid: &str, version: &str, name: &str) -> Option<Form> {
    let (uid_length, version_length) = (u16::try_from(uid.len()).ok()?, u16::try_from(version.len()).ok()?);
    Some(Form::Text([uid, version, name].concat().into_boxed_str(), uid_length, version_length))
}

/// A pair of kind and namespace, shared by its objects.
#[derive(Debug)]
struct Words {
    resource: Arc<Resource>,
    api_version: Arc<str>,
    kind: Arc<str>,
    namespace: Arc<str>,
}

/// The objects by number.
#[derive(Debug, Default)]
struct Table {
    chunks: Vec<Vec<Option<Slot>>>,
    free: Vec<Id>,
    words: Vec<Words>,
    hasher: RandomState,
}

/// Storage of the index's objects. See the module.
#[derive(Debug, Default)]
pub(super) struct Slots {
    table: Table,
    len: usize,
    by_words: HashMap<Arc<Resource>, HashMap<Arc<str>, u32>>,
    by_uid: Shards,
    /// ConfigMaps and Secrets only.
    by_name: Shards,
}

impl Table {
    fn get(&self, id: Id) -> Option<&Slot> {
        self.chunks.get(id as usize / CHUNK)?.get(id as usize % CHUNK)?.as_ref()
    }

    fn place(&mut self, id: Id) -> Option<&mut Option<Slot>> {
        self.chunks.get_mut(id as usize / CHUNK)?.get_mut(id as usize % CHUNK)
    }

    fn get_mut(&mut self, id: Id) -> Option<&mut Slot> {
        self.place(id)?.as_mut()
    }

    fn put(&mut self, slot: Slot) -> Option<Id> {
        if let Some(id) = self.free.pop() {
            *self.place(id)? = Some(slot);
            return Some(id);
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let chunks = self.chunks.len() - 1;
        let chunk = self.chunks.last_mut()?;
        let id = Id::try_from(chunks * CHUNK + chunk.len()).ok()?;
        chunk.push(Some(slot));
        Some(id)
    }

    fn take(&mut self, id: Id) -> Option<Slot> {
        let slot = self.place(id)?.take()?;
        self.free.push(id);
        Some(slot)
    }

    fn uid_hash(&self, id: Id) -> u64 {
        self.get(id).map_or(0, |slot| self.hasher.hash_one(slot.uid()))
    }

    fn name_hash(&self, id: Id) -> u64 {
        let name = self.get(id).and_then(|slot| self.name(slot));
        name.map_or(0, |(target, namespace, name)| self.hasher.hash_one((target, &**namespace, name)))
    }

    /// Returns the key under which Pods refer to an object; `None` for kinds without references.
    fn name<'a>(&'a self, slot: &'a Slot) -> Option<(Target, &'a Arc<str>, &'a str)> {
        let words = self.words.get(slot.words as usize)?;
        Some((Target::of(&words.resource)?, &words.namespace, slot.name()))
    }
}

impl Slots {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, id: Id) -> Option<&Slot> {
        self.table.get(id)
    }

    /// Returns the number of objects stored whole.
    #[cfg(test)]
    pub(super) fn shared(&self) -> usize {
        let slots = (0..self.end()).filter_map(|id| self.get(id));
        slots.filter(|slot| matches!(slot.form, Form::Whole(_))).count()
    }

    /// Returns the number after the last one in use.
    pub(super) fn end(&self) -> Id {
        Id::try_from(self.table.chunks.iter().map(Vec::len).sum::<usize>()).unwrap_or(Id::MAX)
    }

    /// Finds an object by UID.
    pub(super) fn by_uid(&self, uid: &str) -> Option<Id> {
        let is_it = |id| self.get(id).is_some_and(|slot| slot.uid() == uid);
        self.by_uid.find(self.table.hasher.hash_one(uid), is_it)
    }

    /// Finds a ConfigMap or Secret by name.
    pub(super) fn by_name(&self, (target, namespace, name): (Target, &str, &str)) -> Option<Id> {
        let is_it = |id| {
            let found = self.get(id).and_then(|slot| self.table.name(slot));
            found.is_some_and(|(t, space, found)| t == target && **space == *namespace && found == name)
        };
        self.by_name.find(self.table.hasher.hash_one((target, namespace, name)), is_it)
    }

    /// Inserts an object that is not in the table. `shared`: several nodes may hold it. Returns
    /// `None` if a name exceeds its limit.
    pub(super) fn insert(&mut self, object: &Summary, shared: bool, rules: u32, nodes: u32) -> Option<Id> {
        let words = self.words_of(&object.resource, &object.namespace)?;
        let form = text(&object.uid, object.version.as_str(), &object.name)?;
        let weight = Weight::new(object.size, object.urgency);
        let mut slot = Slot { form, words, weight, rules, nodes };
        if shared {
            slot.form = Form::Whole(self.whole(&slot)?);
        }
        let is_named = self.table.name(&slot).is_some();
        let id = self.table.put(slot)?;
        self.len += 1;
        self.by_uid.insert(self.table.uid_hash(id), id, |id| self.table.uid_hash(id));
        if is_named {
            self.by_name.insert(self.table.name_hash(id), id, |id| self.table.name_hash(id));
        }
        Some(id)
    }

    /// Removes an object. An object that is still shared was stored whole.
    pub(super) fn remove(&mut self, id: Id) -> Option<Slot> {
        self.by_uid.remove(self.table.uid_hash(id), id);
        self.by_name.remove(self.table.name_hash(id), id);
        self.len -= usize::from(self.get(id).is_some());
        self.table.take(id)
    }

    /// Returns the key under which Pods refer to an object; `None` for kinds without references.
    pub(super) fn name<'a>(&'a self, slot: &'a Slot) -> Option<(Target, &'a Arc<str>, &'a str)> {
        self.table.name(slot)
    }

    /// Returns kind and namespace.
    pub(super) fn words(&self, slot: &Slot) -> Option<(&Resource, &str)> {
        self.table.words.get(slot.words as usize).map(|words| (&*words.resource, &*words.namespace))
    }

    /// Replaces the set of rules that select an object. Returns the previous set.
    pub(super) fn select(&mut self, id: Id, rules: u32) -> Option<u32> {
        self.table.get_mut(id).map(|slot| std::mem::replace(&mut slot.rules, rules))
    }

    /// Stores an object whole (`shared`) or as text.
    pub(super) fn share(&mut self, id: Id, shared: bool) {
        let Some(slot) = self.get(id) else { return };
        let form = match (&slot.form, shared) {
            (Form::Text(..), true) => self.whole(slot).map(Form::Whole),
            (Form::Whole(_), false) => slot.text(),
            _ => None,
        };
        if let (Some(form), Some(slot)) = (form, self.table.get_mut(id)) {
            slot.form = form;
        }
    }

    /// Returns the whole object.
    pub(super) fn whole(&self, slot: &Slot) -> Option<Arc<Placed>> {
        if let Form::Whole(object) = &slot.form {
            return Some(object.clone());
        }
        let Words { resource, api_version, kind, namespace } = self.table.words.get(slot.words as usize)?;
        let object = ObjectRef {
            api_version: api_version.clone(),
            kind: kind.clone(),
            namespace: namespace.clone(),
            name: slot.name().into(),
        };
        Some(Arc::new(Placed {
            uid: slot.uid().into(),
            version: slot.version(),
            object: Arc::new(object),
            resource: resource.clone(),
            size: slot.weight.size(),
            urgency: slot.weight.urgency(),
        }))
    }

    fn words_of(&mut self, resource: &Arc<Resource>, namespace: &Arc<str>) -> Option<u32> {
        let known = self.by_words.entry(resource.clone()).or_default();
        if let Some(number) = known.get(namespace) {
            return Some(*number);
        }
        let number = u32::try_from(self.table.words.len()).ok()?;
        known.insert(namespace.clone(), number);
        let (api_version, kind) = (resource.api_version().into(), resource.kind.as_str().into());
        let (resource, namespace) = (resource.clone(), namespace.clone());
        self.table.words.push(Words { resource, api_version, kind, namespace });
        Some(number)
    }
}

/// Sharded hash table of object numbers.
#[derive(Debug)]
struct Shards(Vec<HashTable<Id>>);

impl Default for Shards {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| HashTable::new()).collect())
    }
}

impl Shards {
    /// Selects the shard by hash bits that the table itself does not use first.
    fn shard(hash: u64) -> usize {
        (hash >> 32) as usize % SHARDS
    }

    fn find(&self, hash: u64, is_it: impl Fn(Id) -> bool) -> Option<Id> {
        self.0.get(Self::shard(hash))?.find(hash, |id| is_it(*id)).copied()
    }

    fn insert(&mut self, hash: u64, id: Id, hash_of: impl Fn(Id) -> u64) {
        if let Some(shard) = self.0.get_mut(Self::shard(hash)) {
            shard.insert_unique(hash, id, |id| hash_of(*id));
        }
    }

    fn remove(&mut self, hash: u64, id: Id) {
        let shard = self.0.get_mut(Self::shard(hash));
        if let Some(Ok(entry)) = shard.map(|shard| shard.find_entry(hash, |other| *other == id)) {
            entry.remove();
        }
    }
}

/// Interner of sets that objects have in common, with reference counts.
#[derive(Debug)]
pub(super) struct Sets<T> {
    numbers: HashMap<Arc<[T]>, u32>,
    /// The sets with their reference counts. The first one is empty and permanent.
    sets: Vec<(Arc<[T]>, usize)>,
    free: Vec<u32>,
}

impl<T> Default for Sets<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), sets: vec![(Arc::default(), 0)], free: Vec::new() }
    }
}

impl<T: Hash + Eq + Clone> Sets<T> {
    /// Adds a reference to a set. Returns the set's number.
    pub(super) fn take(&mut self, set: &[T]) -> u32 {
        if set.is_empty() {
            return 0;
        }
        if let Some(number) = self.numbers.get(set)
            && let Some((_, count)) = self.sets.get_mut(*number as usize)
        {
            *count += 1;
            return *number;
        }
        let set: Arc<[T]> = set.into();
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.sets.push((Arc::default(), 0));
                u32::try_from(self.sets.len() - 1).unwrap_or(u32::MAX)
            }
        };
        if let Some(place) = self.sets.get_mut(number as usize) {
            *place = (set.clone(), 1);
        }
        self.numbers.insert(set, number);
        number
    }

    /// Drops a reference to a set.
    pub(super) fn release(&mut self, number: u32) {
        let Some((set, count)) = self.sets.get_mut(number as usize).filter(|_| number > 0) else { return };
        *count -= 1;
        if *count == 0 {
            self.numbers.remove(set);
            *set = Arc::default();
            self.free.push(number);
        }
    }

    pub(super) fn get(&self, number: u32) -> &Arc<[T]> {
        // The first set is permanent.
        let (set, _) = self.sets.get(number as usize).unwrap_or(&self.sets[0]);
        set
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::config_map;

    /// Returns a table of `count` ConfigMaps: `c0` with UID `u0`, `c1` with UID `u1` and so on.
    fn filled(count: usize) -> Slots {
        let mut slots = Slots::default();
        for number in 0..count {
            let map = config_map(&format!("u{number}"), 1, &format!("c{number}"));
            assert!(slots.insert(&map, false, 0, 0).is_some());
        }
        slots
    }

    #[test]
    fn every_object_is_before_the_end() {
        assert_eq!(Slots::default().end(), 0);
        let slots = filled(CHUNK + 1);
        let end = slots.end();
        assert_eq!(end as usize, CHUNK + 1);
        assert_eq!(slots.by_uid(&format!("u{CHUNK}")), Some(end - 1));
    }

    #[test]
    fn objects_are_spread_over_the_shards() {
        let slots = filled(CHUNK);
        for shards in [&slots.by_uid, &slots.by_name] {
            let largest = shards.0.iter().map(HashTable::len).max();
            assert!(largest < Some(CHUNK / 16), "{largest:?}");
        }
    }

    #[test]
    fn removed_object_frees_its_number_and_its_entries() {
        let mut slots = filled(100);
        let end = slots.end();
        for number in 0..50 {
            let id = slots.by_uid(&format!("u{number}")).unwrap();
            assert!(slots.remove(id).is_some());
        }
        let entries = |shards: &Shards| shards.0.iter().map(HashTable::len).sum::<usize>();
        assert_eq!((slots.len(), entries(&slots.by_uid), entries(&slots.by_name)), (50, 50, 50));
        let there = (0..100).filter(|number| slots.by_uid(&format!("u{number}")).is_some());
        assert!(there.eq(50..100));
        assert!(slots.insert(&config_map("new", 2, "new"), false, 0, 0).is_some());
        assert_eq!(slots.end(), end);
    }

    #[test]
    fn equal_sets_have_one_number_until_the_last_release() {
        let mut sets = Sets::default();
        let (one, other) = (sets.take(&[1, 2]), sets.take(&[1, 3]));
        assert!(one != other && one != 0 && other != 0);
        assert_eq!((sets.take(&[1, 2]), sets.take(&[])), (one, 0));
        sets.release(one);
        assert_eq!(sets.get(one)[..], [1, 2]);
        sets.release(one);
        assert_eq!((sets.len(), sets.take(&[4])), (1, one));
    }
}
