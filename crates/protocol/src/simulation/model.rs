//! Models of the real parts: a transactional table for the edge's database and one for the cloud's,
//! each with exactly one copy of its committed state. A crash loses everything else. [`History`]
//! remembers every write, whatever is lost.

#[cfg(test)]
mod cloud;
#[cfg(test)]
mod effects;
#[cfg(test)]
mod history;
mod outbox;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::apply::{self, Applied, Held, HeldBody, Rows, Totals};
use crate::change::{Change, ObjectRef, Put, Rejected, Uid};
use crate::digest::{BucketSet, Buckets, Digest, Epoch};
use crate::edge::{ChangesPage, Commit, Entry, InventoryPage};
use crate::fault::{Fault, planted};
use crate::frame::PartialMessage;
use crate::parts;
use edgesync_object::{ObjectKey, Resource, ResourceVersion, Scope};

#[cfg(test)]
pub(crate) use cloud::urgency_of;
#[cfg(test)]
pub use cloud::{CloudDb, noise};
#[cfg(test)]
pub use history::History;
pub use outbox::{Outbox, Thing};

pub fn config_map() -> Arc<Resource> {
    Arc::new(Resource {
        group: String::new(),
        version: "v1".into(),
        kind: "ConfigMap".into(),
        plural: "configmaps".into(),
        scope: Scope::Namespaced,
    })
}

pub fn object_ref(name: &str) -> ObjectRef {
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
    /// The write number in the body.
    content: Option<u64>,
    body: Arc<str>,
}

/// The committed state of the edge's database.
#[derive(Clone)]
pub struct EdgeDb {
    rows: BTreeMap<Uid, Row>,
    /// The UID of each name.
    names: HashMap<ObjectKey, Uid>,
    tombstones: BTreeMap<u64, (Uid, ObjectKey)>,
    totals: Totals,
    pub confirmed: u64,
    /// The confirmed revision as of the last commit: the journal starts after it.
    journal_start: u64,
    pub incarnation: Option<String>,
    pub outbox: Outbox,
    /// The message in parts, and its bytes kept so far.
    parts: Option<(PartialMessage, String)>,
    /// Everything ever committed in this file: the versions that may be reported.
    ever: HashSet<(Uid, ResourceVersion)>,
    /// Totals not saved yet, if the injected bug saves them apart from the rows.
    unsaved: Option<Totals>,
    /// Objects removed since the last call of [`EdgeDb::take_gone`].
    gone: Vec<Uid>,
}

/// Decides whether a change of a row is right (guarantees G2 and G3).
pub trait Truth {
    /// Returns whether this version of an object may replace that one.
    fn may_replace(&self, uid: &Uid, old: &ResourceVersion, new: &ResourceVersion) -> bool;
    /// Returns whether an object that is not held may be inserted in this version.
    fn may_insert(&self, _uid: &Uid, _version: &ResourceVersion) -> bool {
        true
    }
    /// Returns whether the object may be removed.
    fn may_remove(&self, uid: &Uid, key: &ObjectKey) -> bool;
}

struct Transaction<'a> {
    db: &'a mut EdgeDb,
    truth: &'a dyn Truth,
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
        let found = self.db.names.get(key).cloned();
        found.map_or(Ok(None), |uid| self.by_uid(&uid))
    }

    fn body(&mut self, held: &Held<Uid>) -> Result<Option<HeldBody>, String> {
        let row = self.db.rows.get(&held.row);
        Ok(row.map(|row| HeldBody { resource: config_map(), text: row.body.to_string() }))
    }

    fn put(&mut self, revision: u64, put: &Put, _replaced: Option<Uid>) -> Result<(), String> {
        if let Some(old) = self.db.rows.get(&put.uid)
            && !self.truth.may_replace(&put.uid, &old.version, &put.version)
        {
            return Err(format!("G2: {} went from {} back to {}", put.uid, old.version, put.version));
        }
        if !self.db.rows.contains_key(&put.uid) && !self.truth.may_insert(&put.uid, &put.version) {
            return Err(format!("G2: {} came back as it was at {}", put.uid, put.version));
        }
        let content = written(put.body.get());
        let body = put.body.get().into();
        let row = Row { version: put.version.clone(), key: put.key(), revision, content, body };
        self.db.names.insert(row.key.clone(), put.uid.clone());
        if let Some(old) = self.db.rows.insert(put.uid.clone(), row).filter(|old| old.key != put.key()) {
            self.db.names.remove(&old.key);
        }
        self.db.ever.insert((put.uid.clone(), put.version.clone()));
        Ok(())
    }

    fn remove(&mut self, revision: u64, held: Held<Uid>) -> Result<(), String> {
        if !self.truth.may_remove(&held.uid, &held.key) {
            return Err(format!("G3: {} was removed though it was wanted all the time", held.uid));
        }
        self.db.rows.remove(&held.uid);
        if self.db.names.get(&held.key) == Some(&held.uid) {
            self.db.names.remove(&held.key);
        }
        self.db.gone.push(held.uid.clone());
        self.db.tombstones.insert(revision, (held.uid, held.key));
        Ok(())
    }
}

impl EdgeDb {
    pub fn new(epoch: u64) -> Self {
        Self {
            rows: BTreeMap::new(),
            names: HashMap::new(),
            tombstones: BTreeMap::new(),
            totals: Totals { epoch: Epoch(u128::from(epoch)), ..Totals::default() },
            confirmed: 0,
            journal_start: 0,
            incarnation: None,
            outbox: Outbox::new(epoch),
            parts: None,
            ever: HashSet::new(),
            unsaved: None,
            gone: Vec::new(),
        }
    }

    pub fn totals(&self) -> Totals {
        self.unsaved.unwrap_or(self.totals)
    }

    /// Simulates a power cut: totals not saved yet are lost, and confirmations since the last
    /// commit.
    pub fn crash(&mut self) {
        self.unsaved = None;
        self.confirmed = self.journal_start;
    }

    pub fn apply(&mut self, changes: &[Change], truth: &dyn Truth) -> Result<Commit, String> {
        let mut totals = self.totals();
        let before = totals.revision;
        self.cut_journal(before);
        let mut applied = Applied::default();
        let mut transaction = Transaction { db: self, truth };
        for change in changes {
            apply::apply(&mut transaction, &mut totals, change, &mut applied)?;
        }
        if planted(Fault::DigestOutsideTransaction) {
            self.unsaved = Some(totals);
        } else {
            self.totals = totals;
        }
        Ok(Commit { before, totals, applied })
    }

    /// Keeps the next bytes of a message in parts. Returns false if those before them are gone.
    pub fn keep_part(&mut self, message: PartialMessage, text: &str) -> bool {
        if message.received == 0 {
            self.parts = Some((message, text.to_owned()));
            return true;
        }
        match &mut self.parts {
            Some((kept, before))
                if kept.is_same_message(&message) && before.len() as u64 == message.received =>
            {
                before.push_str(text);
                true
            }
            _ => false,
        }
    }

    /// Returns what is kept of a message in parts.
    pub fn parts(&self) -> Option<PartialMessage> {
        let (message, text) = self.parts.as_ref()?;
        Some(PartialMessage { received: text.len() as u64, ..message.clone() })
    }

    /// Drops what is kept of a message in parts.
    pub fn drop_parts(&mut self) {
        self.parts = None;
    }

    /// Completes a message in parts. Returns `None` if its bytes are damaged or gone.
    pub fn assemble(
        &mut self,
        message: &PartialMessage,
        rest: &str,
        max_object: usize,
    ) -> Option<Result<Change, Rejected>> {
        let (kept, mut text) = self.parts.take()?;
        if !kept.is_same_message(message) {
            return None;
        }
        text.push_str(rest);
        parts::assemble(&text, message.digest, self.totals.epoch, max_object)
    }

    /// Damages one of the kept bytes of a message in parts. Returns whether there are any.
    pub fn damage_parts(&mut self) -> bool {
        let Some((_, text)) = &mut self.parts else { return false };
        let at = text.len() / 2;
        let other = if text.as_bytes()[at] == b'a' { "b" } else { "a" };
        text.replace_range(at..=at, other);
        true
    }

    /// Returns the objects removed since the last call.
    pub fn take_gone(&mut self) -> Vec<Uid> {
        std::mem::take(&mut self.gone)
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn save_totals(&mut self) {
        if let Some(totals) = self.unsaved.take() {
            self.totals = totals;
        }
    }

    /// Returns a page of changes; `None` if the journal starts later.
    pub fn changes(&self, after: u64, limit: usize) -> Option<ChangesPage> {
        if after < self.journal_start {
            return None;
        }
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
            // A tombstone is void once its UID is held again.
            .filter(|(_, uid, version, _)| version.is_some() || !self.rows.contains_key(*uid))
            .map(|(_, uid, version, key)| entry(uid, version, key))
            .collect();
        Some(ChangesPage { from: after, to, entries })
    }

    pub fn buckets(&self) -> Buckets {
        let mut buckets = Buckets::default();
        for (uid, row) in &self.rows {
            buckets.add(self.totals.epoch, uid, &row.version);
        }
        buckets
    }

    pub fn inventory(&self, set: BucketSet, cursor: u64, limit: usize) -> InventoryPage {
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

    pub fn confirm(&mut self, revision: u64) {
        self.confirmed = self.confirmed.max(revision);
    }

    /// Drops confirmed changes from the journal, as each commit does.
    fn cut_journal(&mut self, newest: u64) {
        self.journal_start = self.confirmed.min(newest);
        self.tombstones.retain(|at, _| *at > self.journal_start);
    }

    pub fn held(&self) -> BTreeMap<Uid, ResourceVersion> {
        self.rows.iter().map(|(uid, row)| (uid.clone(), row.version.clone())).collect()
    }

    /// Returns the held version of an object.
    pub fn version(&self, uid: &str) -> Option<&ResourceVersion> {
        self.rows.get(uid).map(|row| &row.version)
    }

    /// Returns the object held under a name.
    pub fn named(&self, key: &ObjectKey) -> Option<&Uid> {
        self.names.get(key)
    }

    /// Returns the text of a held object.
    pub fn text(&self, uid: &str) -> Option<&str> {
        self.rows.get(uid).map(|row| &*row.body)
    }

    /// Gives a held object another text for the same content, as another serialization would.
    pub fn reformat(&mut self, uid: &str) {
        if let Some(row) = self.rows.get_mut(uid) {
            row.body = row.body.replacen("{\"", "{ \"", 1).into();
        }
    }

    /// Returns the write number of a held object.
    pub fn content(&self, uid: &str) -> Option<u64> {
        self.rows.get(uid)?.content
    }

    pub fn ever_held(&self, uid: &Uid, version: &ResourceVersion) -> bool {
        self.ever.contains(&(uid.clone(), version.clone()))
    }

    /// Checks that the totals equal the rows.
    pub fn check_totals(&self) -> Result<(), String> {
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

/// Returns the write number in a body.
pub fn written(body: &str) -> Option<u64> {
    let (_, rest) = body.split_once(r#""written":""#)?;
    rest.split_once('"')?.0.parse().ok()
}

fn entry(uid: &Uid, version: Option<&ResourceVersion>, key: &ObjectKey) -> Entry {
    Entry { uid: uid.clone(), version: version.cloned(), object: object_ref(&key.name) }
}
