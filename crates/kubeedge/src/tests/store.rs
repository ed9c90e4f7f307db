//! An in-memory store with the real rules, for the bridge's tests.

use std::collections::BTreeMap;

use crate::{HeldEntry, HeldPage, Name, references};
use edgesync_object::{ObjectKey, ResourceVersion};
use edgesync_protocol::apply::{self, Applied, Held, Rows, Totals};
use edgesync_protocol::change::{Change, ObjectRef, Put, RejectReason, Uid};
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::edge::Commit;

#[derive(Clone)]
pub(super) struct Row {
    pub(super) version: ResourceVersion,
    pub(super) object: ObjectRef,
    key: ObjectKey,
    body: String,
    place: u64,
}

/// The rows and the failure mode of the store.
#[derive(Clone)]
pub(super) struct Store {
    pub(super) rows: BTreeMap<Uid, Row>,
    pub(super) totals: Totals,
    /// The reason why nothing can be stored, if set.
    pub(super) broken: Option<RejectReason>,
    /// The text that the bridge has stored.
    pub(super) note: String,
    places: u64,
}

impl Rows for Store {
    type Row = Uid;
    type Error = ();

    fn by_uid(&mut self, uid: &str) -> Result<Option<Held<Uid>>, ()> {
        Ok(self.rows.get_key_value(uid).map(|(uid, row)| Held {
            row: uid.clone(),
            uid: uid.clone(),
            version: row.version.clone(),
            key: row.key.clone(),
        }))
    }

    fn by_name(&mut self, key: &ObjectKey) -> Result<Option<Held<Uid>>, ()> {
        let uid = self.rows.iter().find(|(_, row)| row.key == *key).map(|(uid, _)| uid.clone());
        uid.map_or(Ok(None), |uid| self.by_uid(&uid))
    }

    fn put(&mut self, _revision: u64, put: &Put, _replaced: Option<Uid>) -> Result<(), ()> {
        self.places += 1;
        let row = Row {
            version: put.version.clone(),
            object: put.object_ref(),
            key: put.key(),
            body: put.body.get().to_owned(),
            place: self.places,
        };
        self.rows.insert(put.uid.clone(), row);
        Ok(())
    }

    fn remove(&mut self, _revision: u64, held: Held<Uid>) -> Result<(), ()> {
        self.rows.remove(&held.uid);
        Ok(())
    }
}

impl Store {
    pub(super) fn new(epoch: u128) -> Self {
        let totals = Totals { epoch: Epoch(epoch), ..Totals::default() };
        Self { rows: BTreeMap::new(), totals, broken: None, note: String::new(), places: 0 }
    }

    pub(super) fn apply(&mut self, changes: &[Change]) -> Result<Commit, (RejectReason, String)> {
        if let Some(reason) = self.broken {
            return Err((reason, "no room".to_owned()));
        }
        let (mut totals, mut applied) = (self.totals, Applied::default());
        for change in changes {
            apply::apply(self, &mut totals, change, &mut applied).unwrap();
        }
        let before = std::mem::replace(&mut self.totals, totals).revision;
        Ok(Commit { before, totals, applied })
    }

    pub(super) fn page(&self, cursor: u64, limit: usize) -> HeldPage {
        let mut rows: Vec<_> = self.rows.iter().filter(|(_, row)| row.place > cursor).collect();
        rows.sort_by_key(|(_, row)| row.place);
        let next = rows.get(limit.saturating_sub(1)).filter(|_| rows.len() > limit).map(|(_, row)| row.place);
        let entry = |(uid, row): (&Uid, &Row)| HeldEntry {
            uid: uid.clone(),
            version: row.version.clone(),
            object: row.object.clone(),
            references: if &*row.object.kind == "Pod" {
                references(&row.body)
                    .into_iter()
                    .map(|name| (self.held_under(&name), name))
                    .map(|(held, name)| (name, held))
                    .collect()
            } else {
                Vec::new()
            },
        };
        HeldPage { entries: rows.into_iter().take(limit).map(entry).collect(), next }
    }

    /// Returns the object held under a name.
    pub(super) fn held_under(&self, name: &Name) -> Option<Uid> {
        let is_it = |object: &ObjectRef| {
            *object.kind == *name.kind.kind()
                && *object.namespace == *name.namespace
                && *object.name == *name.name
        };
        self.rows.iter().find(|(_, row)| is_it(&row.object)).map(|(uid, _)| uid.clone())
    }

    /// Formats each object as `<kind> <namespace>/<name> <uid> <version>`.
    pub(super) fn shown(&self) -> Vec<String> {
        let show = |(uid, row): (&Uid, &Row)| {
            let ObjectRef { kind, namespace, name, .. } = &row.object;
            format!("{kind} {namespace}/{name} {uid} {}", row.version)
        };
        let mut shown: Vec<_> = self.rows.iter().map(show).collect();
        shown.sort();
        shown
    }
}
