//! The rows of an open transaction, as [`edgesync_protocol::apply`] requires them.

use rusqlite::{CachedStatement, Connection, Row};

use super::commit_listener::{Recorder, Transition};
use super::journal::{JournalChange, JournalEntry};
use super::rows::{INSERT, ObjectRow, Resources, insert_with, uid_key};
use super::seals::Seals;
use super::{ObjectRef, Stored, read};
use edgesync_object::{ObjectKey, ResourceVersion};
use edgesync_protocol::apply::{Held, HeldBody, Rows};
use edgesync_protocol::change::{Change, Put};
use edgesync_store::StoreError;
use edgesync_store::engine::integer;

/// Returns the approximate bytes of a change in the writer's queue.
pub(super) fn weight(change: &Change) -> usize {
    const ROW: usize = 256;
    match change {
        Change::Put(put) => ROW + put.body.get().len(),
        // Base and result.
        Change::Patch(patch) => ROW + 2 * patch.length(),
        Change::Delete(_) => ROW,
    }
}

/// Reference to a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowRef {
    id: i64,
    resource_id: i64,
}

/// The rows of an open transaction.
pub(super) struct Tables<'a> {
    conn: &'a Connection,
    resources: &'a mut Resources,
    entries: Vec<JournalEntry>,
    recorder: &'a mut Recorder,
    seals: &'a Seals,
    /// Revisions plus this base are versions.
    base: u64,
    statements: Statements<'a>,
}

/// The statements of a bulk load, prepared once for a transaction.
#[derive(Default)]
struct Statements<'a> {
    by_uid: Option<CachedStatement<'a>>,
    by_name: Option<CachedStatement<'a>>,
    insert: Option<CachedStatement<'a>>,
}

/// Returns a statement, which its first use prepares.
fn prepared<'s, 'a>(
    statement: &'s mut Option<CachedStatement<'a>>,
    conn: &'a Connection,
    sql: &str,
) -> Result<&'s mut CachedStatement<'a>, StoreError> {
    match statement {
        Some(statement) => Ok(statement),
        None => Ok(statement.insert(conn.prepare_cached(sql)?)),
    }
}

impl<'a> Tables<'a> {
    pub(super) fn new(
        conn: &'a Connection,
        resources: &'a mut Resources,
        recorder: &'a mut Recorder,
        seals: &'a Seals,
        base: u64,
    ) -> Self {
        let statements = Statements::default();
        Self { conn, resources, entries: Vec::new(), recorder, seals, base, statements }
    }

    /// Returns the recorded changes.
    pub(super) fn into_entries(self) -> Vec<JournalEntry> {
        self.entries
    }

    /// Returns the object in a row, for watches. A damaged one was not visible to them: they must
    /// relist.
    fn before(&mut self, row: Option<RowRef>) -> Result<Option<Stored>, StoreError> {
        let Some(row) = row.filter(|_| self.recorder.is_on()) else { return Ok(None) };
        let before = read::by_id(self.conn, self.resources, self.seals, self.base, row.id)?;
        if before.is_none() {
            self.recorder.forget();
        }
        Ok(before)
    }
}

fn held(resources: &Resources, row: &Row<'_>) -> Result<Held<RowRef>, StoreError> {
    let (id, resource_id) = (row.get(0)?, row.get(2)?);
    let text = |index: usize| row.get_ref(index)?.as_str().map_err(rusqlite::Error::from);
    let kind = resources.by_id(resource_id).ok_or_else(|| {
        StoreError::corrupt(format!("object {id} is of kind {resource_id}, which is not in table resources"))
    })?;
    Ok(Held {
        row: RowRef { id, resource_id },
        uid: text(1)?.into(),
        version: ResourceVersion::from(text(5)?),
        key: kind.key(text(3)?, text(4)?),
    })
}

const HELD_BY_UID: &str = "SELECT id, uid, resource_id, namespace, name, version FROM objects
   WHERE uid_key = ?1 AND uid = ?2";
const HELD_BY_NAME: &str = "SELECT id, uid, resource_id, namespace, name, version FROM objects
   WHERE resource_id = ?1 AND namespace = ?2 AND name = ?3";

impl Rows for Tables<'_> {
    type Row = RowRef;
    type Error = StoreError;

    fn by_uid(&mut self, uid: &str) -> Result<Option<Held<RowRef>>, StoreError> {
        let statement = prepared(&mut self.statements.by_uid, self.conn, HELD_BY_UID)?;
        let mut rows = statement.query((uid_key(uid), uid))?;
        rows.next()?.map(|row| held(self.resources, row)).transpose()
    }

    fn by_name(&mut self, key: &ObjectKey) -> Result<Option<Held<RowRef>>, StoreError> {
        // The same object may have been received under another version of its group.
        for kind in self.resources.iter().filter(|kind| kind.group == key.group && kind.kind == key.kind) {
            let statement = prepared(&mut self.statements.by_name, self.conn, HELD_BY_NAME)?;
            let mut rows = statement.query((kind.id, &*key.namespace, &*key.name))?;
            if let Some(row) = rows.next()? {
                return held(self.resources, row).map(Some);
            }
        }
        Ok(None)
    }

    fn body(&mut self, held: &Held<RowRef>) -> Result<Option<HeldBody>, StoreError> {
        let stored = read::by_id(self.conn, self.resources, self.seals, self.base, held.row.id)?;
        Ok(stored.map(|stored| HeldBody { resource: stored.object.resource, text: stored.body }))
    }

    fn put(&mut self, revision: u64, put: &Put, replaced: Option<RowRef>) -> Result<(), StoreError> {
        let before = self.before(replaced)?;
        let kind = self.resources.intern(self.conn, &put.resource)?;
        let mut row = ObjectRow {
            id: replaced.map_or(0, |row| row.id),
            uid: &put.uid,
            resource_id: kind.id,
            namespace: &put.namespace,
            name: &put.name,
            version: put.version.as_str(),
            revision: integer(revision),
            checksum: 0,
            body: put.body.get(),
        };
        let sealed = self.seals.seal(row.binding(), row.body, || self.seals.covers(&kind.resource))?;
        // The checksum covers the stored text, so that damage is detected without a key.
        row.body = sealed.as_deref().unwrap_or(row.body);
        row.checksum = row.expected_checksum(&kind);
        let change = match replaced {
            Some(held) => {
                update(self.conn, &row, held)?;
                JournalChange::Put { object_id: held.id, in_place: row.resource_id == held.resource_id }
            }
            None => {
                insert_with(prepared(&mut self.statements.insert, self.conn, INSERT)?, &row)?;
                JournalChange::Put { object_id: self.conn.last_insert_rowid(), in_place: false }
            }
        };
        self.entries.push(JournalEntry { revision, change });
        if self.recorder.is_on() {
            let after = Stored {
                uid: put.uid.clone(),
                version: put.version.clone(),
                revision,
                own_version: self.base + revision,
                object: ObjectRef {
                    resource: kind.resource,
                    namespace: put.namespace.to_string(),
                    name: put.name.to_string(),
                },
                body: put.body.get().to_owned(),
            };
            self.recorder.object(Transition { version: self.base + revision, before, after: Some(after) });
        }
        Ok(())
    }

    fn remove(&mut self, revision: u64, held: Held<RowRef>) -> Result<(), StoreError> {
        let before = self.before(Some(held.row))?;
        self.conn.prepare_cached("DELETE FROM objects WHERE id = ?1")?.execute([held.row.id])?;
        if self.recorder.is_on() {
            self.recorder.object(Transition { version: self.base + revision, before, after: None });
        }
        let Held { row, uid, version, key } = held;
        let change = JournalChange::Removed { uid, resource_id: row.resource_id, key, version };
        self.entries.push(JournalEntry { revision, change });
        Ok(())
    }
}

/// Updates a row in place. Names an indexed column only if it changes: naming it would rewrite the
/// index.
fn update(conn: &Connection, row: &ObjectRow<'_>, held: RowRef) -> Result<(), StoreError> {
    if row.resource_id != held.resource_id {
        conn.prepare_cached("UPDATE objects SET resource_id = ?2 WHERE id = ?1")?
            .execute((row.id, row.resource_id))?;
    }
    conn.prepare_cached(
        "UPDATE objects SET version = ?2, revision = ?3, checksum = ?4, totals = NULL, body = ?5 WHERE id = ?1",
    )?
    .execute((row.id, row.version, row.revision, row.checksum, row.body))?;
    Ok(())
}
