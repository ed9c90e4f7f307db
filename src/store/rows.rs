//! The rows of the table of objects, and their kinds.

use std::sync::Arc;

use rusqlite::{Connection, Row, Statement};

use edgesync_object::{ObjectKey, Resource, Scope};
use edgesync_store::StoreError;
use edgesync_store::checksum::checksum64;
use edgesync_store::seal::Binding;

/// Returns the hash of a UID for the index: short, to keep the index small; lookups compare the
/// text, too.
pub(super) fn uid_key(uid: &str) -> i64 {
    // Truncation is the intent.
    #[allow(clippy::cast_possible_truncation)]
    let key = checksum64(&[uid.as_bytes()]) as i32;
    i64::from(key)
}

/// A kind and its number in this file.
#[derive(Clone, Debug)]
pub(super) struct Interned {
    pub(super) id: i64,
    pub(super) resource: Arc<Resource>,
    /// Checksum of the kind, included in the checksum of each row.
    pub(super) checksum: i64,
    pub(super) group: Arc<str>,
    pub(super) kind: Arc<str>,
}

/// All kinds in this file: few, so they are kept in memory and searched linearly.
#[derive(Clone, Debug, Default)]
pub(super) struct Resources(Vec<Interned>);

/// Returns the checksum of a kind.
fn resource_checksum(resource: &Resource) -> i64 {
    let namespaced = [u8::from(resource.scope == Scope::Namespaced)];
    let Resource { group, version, kind, plural, .. } = resource;
    let text = [group, version, kind, plural].map(String::as_bytes);
    checksum64(&[text[0], text[1], text[2], text[3], &namespaced])
}

impl Resources {
    pub(super) fn load(conn: &Connection) -> Result<Self, StoreError> {
        let mut statement = conn.prepare_cached(FROM_TABLE)?;
        let mut rows = statement.query([])?;
        let mut list = Vec::new();
        while let Some(row) = rows.next()? {
            let (interned, checksum) = Interned::read(row)?;
            if !interned.is_sound(checksum) {
                return Err(StoreError::corrupt(format!("kind {} in table resources", interned.id)));
            }
            list.push(interned);
        }
        Ok(Self(list))
    }

    /// Reads the readable kinds, from their table and from its copy in table `meta`: without its
    /// kind no object could be salvaged.
    pub(super) fn salvage(conn: &Connection) -> Self {
        let mut list: Vec<Interned> = Vec::new();
        for sql in [FROM_TABLE, FROM_META] {
            let Ok(mut statement) = conn.prepare(sql) else { continue };
            let Ok(mut rows) = statement.query([]) else { continue };
            while let Ok(Some(row)) = rows.next() {
                let sound =
                    Interned::read(row).ok().filter(|(interned, checksum)| interned.is_sound(*checksum));
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

    /// Returns the number of a kind; assigns one to a new kind.
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
/// Copies each kind to table `meta`, which is on another page.
const COPY_TO_META: &str = "INSERT OR REPLACE INTO meta (key, value)
    SELECT 'kind/' || id, json_array(id, \"group\", version, kind, plural, namespaced, checksum)
    FROM resources WHERE id = ?1";
const FROM_META: &str = "SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5,
           value ->> 6
    FROM meta WHERE key GLOB 'kind/*'";

impl Interned {
    /// Reads a row of [`FROM_TABLE`] or [`FROM_META`], and its stored checksum.
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

    /// Returns whether the kind matches the stored checksum.
    fn is_sound(&self, checksum: i64) -> bool {
        self.checksum == checksum
    }

    pub(super) fn key(&self, namespace: &str, name: &str) -> ObjectKey {
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

/// The columns of [`ObjectRow::read`], in its order.
pub(super) const OBJECT_COLUMNS: &str =
    "id, uid, resource_id, namespace, name, version, revision, checksum, body";

impl<'a> ObjectRow<'a> {
    /// Reads a row. Text that is not UTF-8 is damage of this row alone, hence `None`.
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

    /// Returns the binding of its sealed body.
    pub(super) fn binding(&self) -> Binding<'a> {
        Binding { uid: self.uid, version: self.version, namespace: self.namespace, name: self.name }
    }

    /// Returns whether the checksum is correct.
    pub(super) fn is_sound(&self, resources: &Resources) -> bool {
        resources.by_id(self.resource_id).is_some_and(|kind| self.expected_checksum(kind) == self.checksum)
    }

    /// Computes the checksum over the kind and all columns.
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

/// The statement of [`insert_with`].
pub(super) const INSERT: &str = "INSERT INTO objects
       (uid, uid_key, resource_id, namespace, name, version, revision, checksum, body)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

/// Inserts a row and returns its id; ignores its `id`.
pub(super) fn insert(conn: &Connection, row: &ObjectRow<'_>) -> Result<i64, StoreError> {
    let mut statement = conn.prepare_cached(INSERT)?;
    insert_with(&mut statement, row)?;
    Ok(conn.last_insert_rowid())
}

/// As [`insert`], with the prepared statement [`INSERT`].
pub(super) fn insert_with(insert: &mut Statement<'_>, row: &ObjectRow<'_>) -> Result<(), StoreError> {
    insert.execute((
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
    Ok(())
}

/// Replaces the text of the same body: no other column and no version changes.
pub(super) fn rewrite(conn: &Connection, row: &ObjectRow<'_>) -> Result<(), StoreError> {
    conn.prepare_cached("UPDATE objects SET checksum = ?2, body = ?3 WHERE id = ?1")?.execute((
        row.id,
        row.checksum,
        row.body,
    ))?;
    Ok(())
}
