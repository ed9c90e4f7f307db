//! The rows of an open transaction, as [`crate::sync::replica`] wants them.

use std::sync::Arc;

use rusqlite::{Connection, Row};

use super::journal::{Noted, What};
use super::observer::{Recorder, Transition};
use super::seals::Seals;
use super::{ObjectRef, Stored, read};
use crate::object::{ObjectKey, Resource, ResourceVersion, Scope};
use crate::store::StoreError;
use crate::store::engine::{checksum64, integer};
use crate::store::seal::Binding;
use crate::sync::change::{Change, Put};
use crate::sync::replica::{Held, Rows};

/// What a change weighs in the writer's queue, bytes.
pub(super) fn weight(change: &Change) -> usize {
    const ROW: usize = 256;
    match change {
        Change::Put(put) => ROW + put.body.get().len(),
        Change::Delete(_) => ROW,
    }
}

/// The key of the index over UIDs: short, so that the index is small; rows compare the text.
pub(super) fn uid_key(uid: &str) -> i64 {
    // Truncation is the intent.
    #[allow(clippy::cast_possible_truncation)]
    let key = checksum64(&[uid.as_bytes()]) as i32;
    i64::from(key)
}

/// A kind and the number it has in this file.
#[derive(Clone, Debug)]
pub(super) struct Interned {
    pub(super) id: i64,
    pub(super) resource: Arc<Resource>,
    /// Checksum of the kind, part of the checksum of each row.
    pub(super) checksum: i64,
    group: Arc<str>,
    kind: Arc<str>,
}

/// All kinds in this file: few, so they are kept in memory and searched one by one.
#[derive(Clone, Debug, Default)]
pub(super) struct Resources(Vec<Interned>);

/// The checksum of a kind.
fn resource_checksum(resource: &Resource) -> i64 {
    let namespaced = [u8::from(resource.scope == Scope::Namespaced)];
    let Resource { group, version, kind, plural, .. } = resource;
    let text = [group, version, kind, plural].map(String::as_bytes);
    checksum64(&[text[0], text[1], text[2], text[3], &namespaced])
}

impl Resources {
    /// Reads the kinds.
    pub(super) fn load(conn: &Connection) -> Result<Self, StoreError> {
        let mut statement = conn.prepare_cached(FROM_TABLE)?;
        let mut rows = statement.query([])?;
        let mut list = Vec::new();
        while let Some(row) = rows.next()? {
            let (interned, checksum) = Interned::read(row)?;
            if interned.checksum != checksum {
                return Err(StoreError::corrupt(format!("kind {} in table resources", interned.id)));
            }
            list.push(interned);
        }
        Ok(Self(list))
    }

    /// Reads what can be read of the kinds, from their table and from its copy in table `meta`: without
    /// its kind no object could be saved.
    pub(super) fn salvage(conn: &Connection) -> Self {
        let mut list: Vec<Interned> = Vec::new();
        for sql in [FROM_TABLE, FROM_META] {
            let Ok(mut statement) = conn.prepare(sql) else { continue };
            let Ok(mut rows) = statement.query([]) else { continue };
            while let Ok(Some(row)) = rows.next() {
                let sound =
                    Interned::read(row).ok().filter(|(interned, checksum)| interned.checksum == *checksum);
                list.extend(
                    sound.map(|(interned, _)| interned).filter(|new| list.iter().all(|old| old.id != new.id)),
                );
            }
        }
        Self(list)
    }

    pub(super) fn by_id(&self, id: i64) -> Option<&Interned> {
        self.0.iter().find(|interned| interned.id == id)
    }

    pub(super) fn find(&self, resource: &Resource) -> Option<&Interned> {
        self.0.iter().find(|interned| *interned.resource == *resource)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Interned> {
        self.0.iter()
    }

    /// The number of a kind, given to it now if it is new.
    pub(super) fn intern(
        &mut self,
        conn: &Connection,
        resource: &Arc<Resource>,
    ) -> Result<Interned, StoreError> {
        if let Some(interned) = self.find(resource) {
            return Ok(interned.clone());
        }
        let checksum = resource_checksum(resource);
        conn.prepare_cached(
            "INSERT INTO resources (\"group\", version, kind, plural, namespaced, checksum)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute((
            &resource.group,
            &resource.version,
            &resource.kind,
            &resource.plural,
            resource.scope == Scope::Namespaced,
            checksum,
        ))?;
        let interned = Interned::new(conn.last_insert_rowid(), Arc::clone(resource));
        conn.prepare_cached(COPY_TO_META)?.execute([interned.id])?;
        self.0.push(interned.clone());
        Ok(interned)
    }
}

const FROM_TABLE: &str = "SELECT id, \"group\", version, kind, plural, namespaced, checksum FROM resources";
/// Each kind stands in table `meta` once more, on another page.
const COPY_TO_META: &str = "INSERT OR REPLACE INTO meta (key, value)
    SELECT 'kind/' || id, json_array(id, \"group\", version, kind, plural, namespaced, checksum)
    FROM resources WHERE id = ?1";
const FROM_META: &str = "SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5,
           value ->> 6
    FROM meta WHERE key GLOB 'kind/*'";

impl Interned {
    /// Reads a row of [`FROM_TABLE`] or [`FROM_META`], and the checksum that came with it.
    fn read(row: &Row<'_>) -> Result<(Self, i64), StoreError> {
        let scope = if row.get::<_, i64>(5)? == 1 { Scope::Namespaced } else { Scope::Cluster };
        let resource = Resource {
            group: row.get(1)?,
            version: row.get(2)?,
            kind: row.get(3)?,
            plural: row.get(4)?,
            scope,
        };
        Ok((Self::new(row.get(0)?, Arc::new(resource)), row.get(6)?))
    }

    fn new(id: i64, resource: Arc<Resource>) -> Self {
        let checksum = resource_checksum(&resource);
        let (group, kind) = (resource.group.as_str().into(), resource.kind.as_str().into());
        Self { id, resource, checksum, group, kind }
    }

    fn key(&self, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey {
            group: Arc::clone(&self.group),
            kind: Arc::clone(&self.kind),
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

/// All columns of a row of `objects`, borrowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectRow<'a> {
    pub(super) id: i64,
    pub(super) uid: &'a str,
    pub(super) resource_id: i64,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) version: &'a str,
    pub(super) revision: i64,
    pub(super) checksum: i64,
    pub(super) body: &'a str,
}

/// The columns that [`ObjectRow::read`] wants, in its order.
pub(super) const OBJECT_COLUMNS: &str =
    "id, uid, resource_id, namespace, name, version, revision, checksum, body";

impl<'a> ObjectRow<'a> {
    /// Takes the columns of a row. Text that is not UTF-8 is damage of this row alone, hence `None`.
    pub(super) fn read(row: &'a Row<'_>) -> Result<Option<Self>, StoreError> {
        let text =
            |index: usize| -> Result<Option<&'a str>, StoreError> { Ok(row.get_ref(index)?.as_str().ok()) };
        let number = |index: usize| row.get_ref(index).map(|value| value.as_i64().ok());
        let (Some(uid), Some(namespace), Some(name)) = (text(1)?, text(3)?, text(4)?) else {
            return Ok(None);
        };
        let (Some(version), Some(body)) = (text(5)?, text(8)?) else { return Ok(None) };
        let (Some(resource_id), Some(revision), Some(checksum)) = (number(2)?, number(6)?, number(7)?) else {
            return Ok(None);
        };
        Ok(Some(Self {
            id: row.get(0)?,
            uid,
            resource_id,
            namespace,
            name,
            version,
            revision,
            checksum,
            body,
        }))
    }

    /// What its body is bound to.
    pub(super) fn binding(&self) -> Binding<'a> {
        Binding { uid: self.uid, version: self.version, namespace: self.namespace, name: self.name }
    }

    /// Whether the row is as it was written.
    pub(super) fn is_sound(&self, resources: &Resources) -> bool {
        resources.by_id(self.resource_id).is_some_and(|kind| self.expected_checksum(kind) == self.checksum)
    }

    /// The checksum over everything that makes the row what it is.
    pub(super) fn expected_checksum(&self, kind: &Interned) -> i64 {
        checksum64(&[
            &kind.checksum.to_le_bytes(),
            self.namespace.as_bytes(),
            self.name.as_bytes(),
            self.uid.as_bytes(),
            self.version.as_bytes(),
            &self.revision.to_le_bytes(),
            self.body.as_bytes(),
        ])
    }
}

/// How a row is found again.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowRef {
    id: i64,
    resource_id: i64,
}

/// The rows of an open transaction.
pub(super) struct Tables<'a> {
    conn: &'a Connection,
    resources: &'a mut Resources,
    noted: Vec<Noted>,
    recorder: &'a mut Recorder,
    seals: &'a Seals,
    /// What is added to revisions to make versions.
    base: u64,
}

impl<'a> Tables<'a> {
    pub(super) fn new(
        conn: &'a Connection,
        resources: &'a mut Resources,
        recorder: &'a mut Recorder,
        seals: &'a Seals,
        base: u64,
    ) -> Self {
        Self { conn, resources, noted: Vec::new(), recorder, seals, base }
    }

    /// What was changed.
    pub(super) fn into_noted(self) -> Vec<Noted> {
        self.noted
    }

    /// The object in a row, for those who watch. One that is damaged was not shown to them: they must list
    /// again.
    fn before(&mut self, row: Option<RowRef>) -> Result<Option<Stored>, StoreError> {
        let Some(row) = row.filter(|_| self.recorder.is_on()) else { return Ok(None) };
        let before = read::by_id(self.conn, self.resources, self.seals, self.base, row.id)?;
        if before.is_none() {
            self.recorder.forget();
        }
        Ok(before)
    }

    fn held(&self, row: &Row<'_>) -> Result<Held<RowRef>, StoreError> {
        let (id, resource_id) = (row.get(0)?, row.get(2)?);
        let text = |index: usize| row.get_ref(index)?.as_str().map_err(rusqlite::Error::from);
        let kind = self.resources.by_id(resource_id).ok_or_else(|| {
            StoreError::corrupt(format!(
                "object {id} is of kind {resource_id}, which is not in table resources"
            ))
        })?;
        Ok(Held {
            row: RowRef { id, resource_id },
            uid: text(1)?.into(),
            version: ResourceVersion::from(text(5)?),
            key: kind.key(text(3)?, text(4)?),
        })
    }
}

const HELD_BY_UID: &str = "SELECT id, uid, resource_id, namespace, name, version FROM objects
   WHERE uid_key = ?1 AND uid = ?2";
const HELD_BY_NAME: &str = "SELECT id, uid, resource_id, namespace, name, version FROM objects
   WHERE resource_id = ?1 AND namespace = ?2 AND name = ?3";

impl Rows for Tables<'_> {
    type Row = RowRef;
    type Error = StoreError;

    fn by_uid(&mut self, uid: &str) -> Result<Option<Held<RowRef>>, StoreError> {
        let mut statement = self.conn.prepare_cached(HELD_BY_UID)?;
        let mut rows = statement.query((uid_key(uid), uid))?;
        rows.next()?.map(|row| self.held(row)).transpose()
    }

    fn by_name(&mut self, key: &ObjectKey) -> Result<Option<Held<RowRef>>, StoreError> {
        // The same object may have been received under another version of its group.
        for kind in self.resources.iter().filter(|kind| kind.group == key.group && kind.kind == key.kind) {
            let mut statement = self.conn.prepare_cached(HELD_BY_NAME)?;
            let mut rows = statement.query((kind.id, &*key.namespace, &*key.name))?;
            if let Some(row) = rows.next()? {
                return self.held(row).map(Some);
            }
        }
        Ok(None)
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
        let sealed = self.seals.seal(&row, &kind.resource)?;
        // The checksum is over what stands in the row, so that damage is found without a key.
        row.body = sealed.as_deref().unwrap_or(row.body);
        row.checksum = row.expected_checksum(&kind);
        let what = match replaced {
            Some(held) => {
                update(self.conn, &row, held)?;
                What::Put { object_id: held.id, in_place: row.resource_id == held.resource_id }
            }
            None => What::Put { object_id: insert(self.conn, &row)?, in_place: false },
        };
        self.noted.push(Noted { revision, what });
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
        let what = What::Removed { uid, resource_id: row.resource_id, key, version };
        self.noted.push(Noted { revision, what });
        Ok(())
    }
}

/// Inserts a row and says its id; its `id` is ignored.
pub(super) fn insert(conn: &Connection, row: &ObjectRow<'_>) -> Result<i64, StoreError> {
    conn.prepare_cached(
        "INSERT INTO objects
           (uid, uid_key, resource_id, namespace, name, version, revision, checksum, body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute((
        row.uid,
        uid_key(row.uid),
        row.resource_id,
        row.namespace,
        row.name,
        row.version,
        row.revision,
        row.checksum,
        row.body,
    ))?;
    Ok(conn.last_insert_rowid())
}

/// Writes another text for the same body: nothing else of the row changes, and no version.
pub(super) fn rewrite(conn: &Connection, row: &ObjectRow<'_>) -> Result<(), StoreError> {
    conn.prepare_cached("UPDATE objects SET checksum = ?2, body = ?3 WHERE id = ?1")?.execute((
        row.id,
        row.checksum,
        row.body,
    ))?;
    Ok(())
}

/// Updates a row in place. A column that an index has is only named if it changes: naming it alone would
/// rewrite the index.
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
