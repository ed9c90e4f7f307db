//! What the simulation puts in the place of the real parts: a transactional table for the edge's database
//! and one for the cloud's, each with exactly one copy of what is committed. A crash loses everything else.

mod outbox;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::object::{ObjectKey, Resource, ResourceVersion, Scope};
use crate::sync::change::{Change, ObjectRef, Put, Uid};
use crate::sync::cloud::testing::Wish;
use crate::sync::cloud::{Issued, LedgerFacts, Loaded, Record, RecordBatch};
use crate::sync::digest::{BucketSet, Buckets, Digest, Epoch};
use crate::sync::edge::{ChangesPage, Commit, Entry, InventoryPage};
use crate::sync::fault::{Fault, planted};
use crate::sync::replica::{self, Applied, Held, Rows, Totals};

use super::timeline::Random;
use outbox::Effects;
pub(super) use outbox::{Outbox, Thing};

pub(super) fn config_map() -> Arc<Resource> {
    Arc::new(Resource {
        group: String::new(),
        version: "v1".into(),
        kind: "ConfigMap".into(),
        plural: "configmaps".into(),
        scope: Scope::Namespaced,
    })
}

pub(super) fn object_ref(name: &str) -> ObjectRef {
    ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "default".into(),
        name: name.into(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    version: ResourceVersion,
    key: ObjectKey,
    revision: u64,
}

/// The edge's database: what is committed.
#[derive(Clone)]
pub(in crate::sync) struct EdgeDb {
    rows: BTreeMap<Uid, Row>,
    tombstones: BTreeMap<u64, (Uid, ObjectKey)>,
    totals: Totals,
    pub(in crate::sync) confirmed: u64,
    pub(super) incarnation: Option<String>,
    pub(super) outbox: Outbox,
    /// Everything that was ever committed in this file: what may be reported.
    ever: HashSet<(Uid, ResourceVersion)>,
    /// Totals not yet saved, when the planted bug saves them apart from the rows.
    unsaved: Option<Totals>,
}

struct Transaction<'a> {
    db: &'a mut EdgeDb,
    allowed_removals: HashSet<Uid>,
    supersedes: HashMap<Uid, ResourceVersion>,
}

impl Rows for Transaction<'_> {
    type Row = Uid;
    type Error = String;

    fn by_uid(&mut self, uid: &str) -> Result<Option<Held<Uid>>, String> {
        Ok(self.db.rows.get_key_value(uid).map(|(uid, row)| Held {
            row: uid.clone(),
            uid: uid.clone(),
            version: row.version.clone(),
            key: row.key.clone(),
        }))
    }

    fn by_name(&mut self, key: &ObjectKey) -> Result<Option<Held<Uid>>, String> {
        let found = self.db.rows.iter().find(|(_, row)| row.key == *key).map(|(uid, _)| uid.clone());
        found.map_or(Ok(None), |uid| self.by_uid(&uid))
    }

    fn put(&mut self, revision: u64, put: &Put, _replaced: Option<Uid>) -> Result<(), String> {
        if let Some(old) = self.db.rows.get(&put.uid)
            && put.version.is_older_than(&old.version)
            && self.supersedes.get(&put.uid) != Some(&old.version)
        {
            return Err(format!("G2: {} went from {} back to {}", put.uid, old.version, put.version));
        }
        let row = Row { version: put.version.clone(), key: put.key(), revision };
        self.db.rows.insert(put.uid.clone(), row);
        self.db.ever.insert((put.uid.clone(), put.version.clone()));
        Ok(())
    }

    fn remove(&mut self, revision: u64, held: Held<Uid>) -> Result<(), String> {
        if !self.allowed_removals.contains(&held.uid) {
            return Err(format!("G3: {} was removed though nobody named it", held.uid));
        }
        self.db.rows.remove(&held.uid);
        self.db.tombstones.insert(revision, (held.uid, held.key));
        Ok(())
    }
}

impl EdgeDb {
    pub(in crate::sync) fn new(epoch: u64) -> Self {
        Self {
            rows: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            totals: Totals { epoch: Epoch(u128::from(epoch)), ..Totals::default() },
            confirmed: 0,
            incarnation: None,
            outbox: Outbox::new(epoch),
            ever: HashSet::new(),
            unsaved: None,
        }
    }

    pub(in crate::sync) fn totals(&self) -> Totals {
        self.unsaved.unwrap_or(self.totals)
    }

    /// A power cut: totals that the planted bug had not saved yet are gone.
    pub(in crate::sync) fn crash(&mut self) {
        self.unsaved = None;
    }

    pub(in crate::sync) fn apply(&mut self, changes: &[Change]) -> Result<Commit, String> {
        let mut allowed: HashSet<Uid> = HashSet::new();
        let mut supersedes = HashMap::new();
        for change in changes {
            match change {
                Change::Delete(delete) => {
                    allowed.insert(delete.uid.clone());
                }
                Change::Put(put) => {
                    // A new object of the same name takes the place of the old one.
                    let key = put.key();
                    let old = self.rows.iter().filter(|(uid, row)| row.key == key && **uid != put.uid);
                    allowed.extend(old.map(|(uid, _)| uid.clone()));
                    if let Some(old) = &put.supersedes {
                        supersedes.insert(put.uid.clone(), old.clone());
                    }
                }
            }
        }
        let mut totals = self.totals();
        let before = totals.revision;
        let mut applied = Applied::default();
        let mut transaction = Transaction { db: self, allowed_removals: allowed, supersedes };
        for change in changes {
            replica::apply(&mut transaction, &mut totals, change, &mut applied)?;
        }
        if planted(Fault::DigestOutsideTransaction) {
            self.unsaved = Some(totals);
        } else {
            self.totals = totals;
        }
        Ok(Commit { before, totals, applied })
    }

    pub(super) fn save_totals(&mut self) {
        if let Some(totals) = self.unsaved.take() {
            self.totals = totals;
        }
    }

    pub(in crate::sync) fn changes(&self, after: u64, limit: usize) -> ChangesPage {
        let rows = self.rows.iter().map(|(uid, row)| (row.revision, uid, Some(&row.version), &row.key));
        let gone = self.tombstones.iter().map(|(at, (uid, key))| (*at, uid, None, key));
        let mut all: Vec<_> = rows.chain(gone).filter(|(revision, ..)| *revision > after).collect();
        all.sort_by_key(|(revision, ..)| *revision);
        let more = all.len() > limit;
        all.truncate(limit);
        let to = match all.last() {
            Some((revision, ..)) if more => *revision,
            _ => self.totals().revision,
        };
        let entries = all
            .into_iter()
            // A tombstone under which the UID lives again says nothing any more.
            .filter(|(_, uid, version, _)| version.is_some() || !self.rows.contains_key(*uid))
            .map(|(_, uid, version, key)| entry(uid, version, key))
            .collect();
        ChangesPage { from: after, to, entries }
    }

    pub(super) fn buckets(&self) -> Buckets {
        let mut buckets = Buckets::default();
        for (uid, row) in &self.rows {
            buckets.add(self.totals.epoch, uid, &row.version);
        }
        buckets
    }

    pub(super) fn inventory(&self, set: BucketSet, cursor: u64, limit: usize) -> InventoryPage {
        let mut wanted = self
            .rows
            .iter()
            .enumerate()
            .skip(usize::try_from(cursor).unwrap())
            .filter(|(_, (uid, _))| set.contains(self.totals.epoch.bucket(uid)));
        let entries = wanted
            .by_ref()
            .take(limit)
            .map(|(at, (uid, row))| (at, entry(uid, Some(&row.version), &row.key)))
            .collect::<Vec<_>>();
        let next = wanted.next().map(|(at, _)| at as u64);
        InventoryPage { entries: entries.into_iter().map(|(_, entry)| entry).collect(), next }
    }

    pub(in crate::sync) fn confirm(&mut self, revision: u64) {
        self.confirmed = self.confirmed.max(revision);
        self.tombstones.retain(|at, _| *at > revision);
    }

    pub(in crate::sync) fn held(&self) -> BTreeMap<Uid, ResourceVersion> {
        self.rows.iter().map(|(uid, row)| (uid.clone(), row.version.clone())).collect()
    }

    pub(in crate::sync) fn ever_held(&self, uid: &Uid, version: &ResourceVersion) -> bool {
        self.ever.contains(&(uid.clone(), version.clone()))
    }

    /// What is kept beside the rows must be what the rows say.
    pub(in crate::sync) fn check_totals(&self) -> Result<(), String> {
        let mut digest = Digest::default();
        for (uid, row) in &self.rows {
            digest.add(self.totals.epoch, uid, &row.version);
        }
        let totals = self.totals();
        if totals.count != self.rows.len() as u64 || totals.digest != digest {
            return Err(format!("totals {totals:?} do not fit {} rows with {digest}", self.rows.len()));
        }
        Ok(())
    }
}

fn entry(uid: &Uid, version: Option<&ResourceVersion>, key: &ObjectKey) -> Entry {
    Entry { uid: uid.clone(), version: version.cloned(), object: object_ref(&key.name) }
}

/// One object of the cloud's store.
#[derive(Clone)]
pub(super) struct CloudObject {
    pub(super) version: u64,
    pub(super) name: String,
    size: usize,
}

/// The cloud's database: what is committed.
#[derive(Clone)]
pub(super) struct CloudDb {
    pub(super) objects: BTreeMap<Uid, CloudObject>,
    pub(super) facts: LedgerFacts,
    pub(super) records: HashMap<Uid, Record>,
    pub(super) incarnation: String,
    pub(super) effects: Effects,
    last_version: u64,
    gaps: Vec<(ResourceVersion, ResourceVersion)>,
    uids: Random,
}

impl CloudDb {
    pub(super) fn new(random: &mut Random) -> Self {
        Self {
            objects: BTreeMap::new(),
            facts: LedgerFacts::default(),
            records: HashMap::new(),
            incarnation: format!("{:016x}", random.next()),
            effects: Effects::default(),
            last_version: 100,
            gaps: Vec::new(),
            uids: Random(random.next()),
        }
    }

    /// Opening jumps to a version that no lost copy can have given out.
    pub(super) fn open(&mut self, base: u64) {
        let base = base.max(self.last_version + 1);
        self.gaps.push((self.last_version.into(), base.into()));
        self.last_version = base;
        self.uids = Random(self.uids.next() ^ base);
    }

    pub(super) fn issued(&self) -> Arc<Issued> {
        Arc::new(Issued { gaps: self.gaps.clone() })
    }

    /// Creates the object, or gives it a new version.
    pub(super) fn write(&mut self, name: &str, size: usize) -> Uid {
        self.last_version += 1;
        let version = self.last_version;
        let found = self.objects.iter_mut().find(|(_, object)| object.name == name);
        if let Some((uid, object)) = found {
            (object.version, object.size) = (version, size);
            return uid.clone();
        }
        let uid: Uid = format!("uid-{:016x}", self.uids.next()).into();
        self.objects.insert(uid.clone(), CloudObject { version, name: name.into(), size });
        uid
    }

    pub(super) fn delete(&mut self, name: &str) -> Option<Uid> {
        let uid = self.objects.iter().find(|(_, object)| object.name == name)?.0.clone();
        self.last_version += 1;
        self.objects.remove(&uid);
        Some(uid)
    }

    /// What the node is to hold of a UID, as the store has it now.
    pub(super) fn wish(&self, uid: &Uid) -> Option<Wish> {
        self.objects.get(uid).map(|object| Wish {
            version: object.version.into(),
            object: Arc::new(object_ref(&object.name)),
            resource: config_map(),
            size: object.size,
        })
    }

    pub(super) fn load(&self, objects: &[(Uid, ResourceVersion)]) -> Vec<Loaded> {
        let load = |(uid, _): &(Uid, ResourceVersion)| {
            let object = self.objects.get(uid)?;
            let body = format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{}","namespace":"default","uid":"{uid}","resourceVersion":"{}"}},"data":{{"x":"{}"}}}}"#,
                object.name,
                object.version,
                "x".repeat(object.size)
            );
            Some(Loaded { uid: uid.clone(), version: object.version.into(), body: body.into() })
        };
        objects.iter().filter_map(load).collect()
    }

    pub(super) fn record(&mut self, batch: &RecordBatch) {
        if batch.reset {
            self.records.clear();
        }
        self.records.extend(batch.put.iter().cloned());
        for uid in &batch.remove {
            self.records.remove(uid);
        }
        let RecordBatch { epoch, confirmed, accepted, tally, .. } = batch.clone();
        self.facts = LedgerFacts { epoch: Some(epoch), confirmed, accepted, tally };
    }

    /// What a node can be brought to hold: everything that it does not have to refuse.
    pub(super) fn acceptable(&self, max_object: usize) -> BTreeMap<Uid, ResourceVersion> {
        self.objects
            .iter()
            .filter(|(_, object)| !object.name.contains("..") && object.size < max_object)
            .map(|(uid, object)| (uid.clone(), object.version.into()))
            .collect()
    }

    pub(super) fn names(&self) -> BTreeSet<String> {
        self.objects.values().map(|object| object.name.clone()).collect()
    }
}
