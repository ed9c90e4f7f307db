//! The cloud's records of one node: its ObjectSync records with their count and digest.
//!
//! Records equal to the desired state are not kept. An open ledger holds the differences only, so
//! that a node in sync takes no memory for its objects. A closed one holds none: the store has
//! them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::change::Uid;
use crate::digest::{BucketSet, Buckets, Epoch, Tally};
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use edgesync_object::{ObjectKey, Relation, ResourceVersion};

use super::desired::{Desired, DesiredState};
use super::types::Record;

/// The stored facts about a node beside its records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerFacts {
    /// The database file of the node that the records describe; `None` before the first Hello.
    pub epoch: Option<Epoch>,
    /// The newest recorded revision of the node.
    pub confirmed: u64,
    /// The incarnation of the cloud under which the node's removals were last found plausible.
    pub accepted: Option<Arc<str>>,
    /// Count and digest of the records under `epoch`, if known.
    pub tally: Option<Tally>,
    /// The newest recorded revision of each recent database file of the node. The last entry is the
    /// current file.
    pub epochs: Vec<(Epoch, u64)>,
}

/// The location of a node's records while it is not connected.
#[derive(Clone, Debug)]
pub enum Records {
    /// In the store, which no other cloud side shares: the records are read if the node differs
    /// from them.
    Stored(LedgerFacts),
    /// Nowhere. Other replicas may serve the node, so its records are dropped with the session.
    /// Each session starts from the proof in the Hello: the node holds the desired state, or a
    /// known difference from it.
    Proven,
}

/// The most database files per node whose newest revision is remembered.
const MAX_EPOCHS: usize = 8;

impl LedgerFacts {
    /// Returns the newest revision ever recorded of a database file of the node, if remembered.
    pub(super) fn highest(&self, epoch: Epoch) -> Option<u64> {
        let recorded = (self.epoch == Some(epoch)).then_some(self.confirmed);
        let remembered = self.epochs.iter().find(|(other, _)| *other == epoch);
        recorded.max(remembered.map(|(_, highest)| *highest))
    }

    /// Returns the entries to remember once this revision of a file is recorded.
    pub(super) fn epochs_with(&self, epoch: Epoch, confirmed: u64) -> Vec<(Epoch, u64)> {
        let highest = self.highest(epoch).max(Some(confirmed)).unwrap_or_default();
        let mut epochs: Vec<_> = self.epochs.iter().filter(|(other, _)| *other != epoch).copied().collect();
        epochs.push((epoch, highest));
        epochs.drain(..epochs.len().saturating_sub(MAX_EPOCHS));
        epochs
    }
}

/// The differences between recorded and desired state by UID; a `None` value means that nothing is
/// recorded.
pub(super) type Differences = HashMap<Uid, Option<Record>>;

/// The ledger of one node, open or closed.
#[derive(Debug)]
pub(super) struct Ledger {
    facts: LedgerFacts,
    /// The key of the digest.
    epoch: Epoch,
    tally: Tally,
    /// The differences; `None` while the ledger is closed.
    differences: Option<Differences>,
    /// Held objects that are not desired, by name: a new object of that name replaces them.
    leftovers: HashMap<ObjectKey, Uid>,
    /// Whether a request for the records is in flight.
    is_reading: bool,
    /// Whether changes of the desired state were missed: the records have to be read again before
    /// anything is sent.
    is_behind: bool,
}

impl Ledger {
    /// Creates a closed ledger.
    pub(super) fn new(facts: LedgerFacts) -> Self {
        let epoch = facts.epoch.unwrap_or_default();
        let tally = facts.tally.unwrap_or_default();
        Self {
            facts,
            epoch,
            tally,
            differences: None,
            leftovers: HashMap::new(),
            is_reading: false,
            is_behind: false,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.differences.is_some()
    }

    /// Returns whether changes of the desired state were missed: the differences are out of date.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Returns whether the recorded state is unknown.
    pub(super) fn is_blind(&self) -> bool {
        self.is_behind || !self.is_open()
    }

    /// Ignores changes of the desired state until the records are read again.
    pub(super) fn fall_behind(&mut self) {
        self.is_behind = true;
    }

    /// Begins a request for the records. Returns false while one is in flight.
    pub(super) fn request(&mut self) -> bool {
        !std::mem::replace(&mut self.is_reading, true)
    }

    /// Ends the request for the records.
    pub(super) fn end_request(&mut self) {
        self.is_reading = false;
    }

    /// Opens the ledger without reading the records, if held, recorded and desired state have equal
    /// digests.
    pub(super) fn open_if_equal(&mut self, epoch: Epoch, held: Tally, desired: &impl DesiredState) {
        let equal = self.facts.epoch == Some(epoch) && self.facts.tally == Some(held);
        if equal && !self.is_open() && desired.tally(epoch) == held {
            (self.epoch, self.tally) = (epoch, held);
            self.differences = Some(Differences::new());
        }
    }

    /// Opens the ledger for a node that holds the desired state with these exceptions.
    pub(super) fn presume(
        &mut self,
        epoch: Epoch,
        confirmed: u64,
        tally: Tally,
        mut exceptions: Differences,
        desired: &impl DesiredState,
    ) {
        exceptions.retain(|uid, record| !is_satisfied(record.as_ref(), desired.get(uid).as_ref()));
        self.differences = Some(exceptions);
        (self.epoch, self.tally) = (epoch, tally);
        let (epoch, tally) = (Some(epoch), Some(tally));
        self.facts = LedgerFacts { epoch, confirmed, tally, ..LedgerFacts::default() };
    }

    /// Opens the ledger with the records of the store.
    pub(super) fn open(
        &mut self,
        records: impl IntoIterator<Item = (Uid, Record)>,
        desired: &impl DesiredState,
    ) {
        self.epoch = self.facts.epoch.unwrap_or_default();
        self.tally = Tally::default();
        let (mut differences, mut equal) = (Differences::new(), HashSet::new());
        for (uid, record) in records {
            self.tally.add(self.epoch, &uid, &record.version);
            if desired.get(&uid).is_some_and(|desired| is_same(&desired.version, &record.version)) {
                equal.insert(uid);
            } else {
                differences.insert(uid, Some(record));
            }
        }
        for (uid, _) in desired.iter() {
            if !equal.contains(uid) && !differences.contains_key(uid) {
                differences.insert(uid.into(), None);
            }
        }
        self.differences = Some(differences);
    }

    /// Declares the ledger up to date: it was opened with the current desired state.
    pub(super) fn catch_up(&mut self) {
        self.is_behind = false;
    }

    /// Closes the ledger; the records stay in the store.
    pub(super) fn close(&mut self) {
        if self.differences.take().is_some() {
            self.epoch = self.facts.epoch.unwrap_or_default();
            self.tally = self.facts.tally.unwrap_or_default();
        }
    }

    /// Computes the digest under another key.
    pub(super) fn rekey(&mut self, epoch: Epoch, desired: &impl DesiredState) {
        let mut tally = Tally::default();
        for (uid, version) in self.versions(desired) {
            tally.add(epoch, uid, &version);
        }
        (self.epoch, self.tally) = (epoch, tally);
    }

    /// Returns the record of a UID; `None` if the ledger is closed.
    pub(super) fn get(&self, uid: &str, desired: &impl DesiredState) -> Option<Record> {
        match self.differences.as_ref()?.get(uid) {
            Some(recorded) => recorded.clone(),
            None => desired.get(uid).map(|desired| desired.record()),
        }
    }

    /// Handles a change of the desired object of a UID; `before` is the previous one. A ledger that
    /// is behind ignores it.
    pub(super) fn note_change(&mut self, uid: &Uid, before: Option<Record>, desired: &impl DesiredState) {
        if self.is_behind {
            return;
        }
        let Some(differences) = &mut self.differences else { return };
        differences.entry(uid.clone()).or_insert(before);
        self.forget_if_equal(uid, desired);
    }

    fn forget_if_equal(&mut self, uid: &str, desired: &impl DesiredState) {
        let Some(differences) = &mut self.differences else { return };
        let equal = |record: &Option<Record>| is_satisfied(record.as_ref(), desired.get(uid).as_ref());
        if differences.get(uid).is_some_and(equal) {
            differences.remove(uid);
        }
    }

    /// Collects the names of held objects that are no longer desired.
    pub(super) fn note_leftovers(&mut self, desired: &impl DesiredState) {
        let undesired = self.differences().filter(|(uid, _)| desired.get(uid).is_none());
        self.leftovers =
            undesired.filter_map(|(uid, record)| Some((record?.object.key(), uid.clone()))).collect();
    }

    /// Adds the name of an object that has just ceased to be desired, if it is recorded.
    pub(super) fn note_leftover(&mut self, uid: &Uid, desired: &impl DesiredState) {
        if let Some(record) = self.get(uid, desired) {
            self.leftovers.insert(record.object.key(), uid.clone());
        }
    }

    /// Returns the held object of this name that is no longer desired.
    pub(super) fn leftover(&self, key: &ObjectKey) -> Option<&Uid> {
        self.leftovers.get(key)
    }

    pub(super) fn has_leftovers(&self) -> bool {
        !self.leftovers.is_empty()
    }

    pub(super) fn forget_leftovers(&mut self) {
        self.leftovers = HashMap::new();
    }

    /// Returns the recorded version of an undesired UID under a name: a new object of that name
    /// replaces it on the node.
    pub(super) fn replaced_under(
        &self,
        key: &ObjectKey,
        desired: &impl DesiredState,
    ) -> Option<ResourceVersion> {
        let uid = self.leftovers.get(key)?;
        if desired.get(uid).is_some() {
            return None;
        }
        self.get(uid, desired).map(|record| record.version)
    }

    /// Applies a stored batch.
    pub(super) fn store(
        &mut self,
        facts: LedgerFacts,
        reset: bool,
        put: impl IntoIterator<Item = (Uid, Record)>,
        remove: Vec<Uid>,
        desired: &impl DesiredState,
    ) {
        for uid in &remove {
            if let Some(record) = self.get(uid, desired) {
                self.leftovers.remove(&record.object.key());
            }
        }
        if let Some(differences) = &mut self.differences {
            if reset {
                *differences = desired.iter().map(|(uid, _)| (uid.into(), None)).collect();
            }
            let put = put.into_iter().map(|(uid, record)| (uid, Some(record)));
            for (uid, record) in put.chain(remove.into_iter().map(|uid| (uid, None))) {
                let equal = is_satisfied(record.as_ref(), desired.get(&uid).as_ref());
                #[cfg(any(test, feature = "simulation"))]
                let equal = equal && !planted(Fault::LedgerOfAll);
                if equal {
                    differences.remove(&uid);
                } else {
                    differences.insert(uid, record);
                }
            }
        }
        if let Some(tally) = facts.tally {
            self.tally = tally;
        }
        self.facts = facts;
    }

    /// Returns count and digest after a batch is stored.
    pub(super) fn tally_after(
        &self,
        reset: bool,
        put: &HashMap<Uid, Record>,
        remove: &HashSet<Uid>,
        desired: &impl DesiredState,
    ) -> Tally {
        let mut tally = if reset { Tally::default() } else { self.tally };
        for uid in put.keys().chain(remove) {
            if let Some(old) = (!reset).then(|| self.get(uid, desired)).flatten() {
                tally.remove(self.epoch, uid, &old.version);
            }
        }
        for (uid, record) in put {
            tally.add(self.epoch, uid, &record.version);
        }
        tally
    }

    /// Returns the difference of a UID between recorded and desired state; `None` if the ledger is
    /// closed.
    pub(super) fn difference(&self, uid: &str) -> Option<Option<Option<&Record>>> {
        self.differences.as_ref().map(|differences| differences.get(uid).map(Option::as_ref))
    }

    /// Returns all differences; a `None` record means that nothing is recorded.
    pub(super) fn differences(&self) -> impl Iterator<Item = (&Uid, Option<&Record>)> {
        self.differences.iter().flatten().map(|(uid, record)| (uid, record.as_ref()))
    }

    /// Returns the number of differences.
    pub(super) fn different(&self) -> usize {
        self.differences.as_ref().map_or(0, HashMap::len)
    }

    /// Returns all recorded UIDs and versions.
    pub(super) fn versions<'a>(
        &'a self,
        desired: &'a impl DesiredState,
    ) -> impl Iterator<Item = (&'a str, ResourceVersion)> {
        let other = self.differences().filter_map(|(uid, record)| Some((&**uid, record?.version.clone())));
        let equal = self
            .differences
            .as_ref()
            .into_iter()
            .flat_map(|differences| desired.iter().filter(|(uid, _)| !differences.contains_key(*uid)));
        other.chain(equal)
    }

    /// Returns all records, desired ones included.
    pub(super) fn records<'a>(
        &'a self,
        desired: &'a impl DesiredState,
    ) -> impl Iterator<Item = (Uid, Record)> {
        let uids = self.versions(desired).map(|(uid, _)| Uid::from(uid));
        uids.filter_map(|uid| Some((uid.clone(), self.get(&uid, desired)?)))
    }

    /// Returns the number of recorded objects.
    pub(super) fn count(&self) -> usize {
        usize::try_from(self.tally.count).unwrap_or(usize::MAX)
    }

    /// Returns the number of entries in memory.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.different() + self.leftovers.len()
    }

    /// Returns count and digest under the current key.
    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    pub(super) fn buckets(&self, desired: &impl DesiredState) -> Buckets {
        let mut buckets = Buckets::default();
        for (uid, version) in self.versions(desired) {
            buckets.add(self.epoch, uid, &version);
        }
        buckets
    }

    /// Returns the recorded UIDs in some buckets.
    pub(super) fn in_buckets(&self, set: BucketSet, desired: &impl DesiredState) -> Vec<Uid> {
        let all = self.versions(desired).map(|(uid, _)| uid);
        all.filter(|uid| set.contains(self.epoch.bucket(uid))).map(Uid::from).collect()
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn facts(&self) -> &LedgerFacts {
        &self.facts
    }
}

/// Returns whether the held record equals the desired object.
fn is_satisfied(held: Option<&Record>, desired: Option<&Desired>) -> bool {
    match (held, desired) {
        (Some(held), Some(desired)) => is_same(&desired.version, &held.version),
        (None, None) => true,
        _ => false,
    }
}

fn is_same(one: &ResourceVersion, other: &ResourceVersion) -> bool {
    one.relation(other) == Relation::Equal
}
