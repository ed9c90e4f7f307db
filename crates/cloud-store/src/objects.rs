//! Create, update and delete within a transaction. Assigns versions, and uids and times where they
//! are missing; enforces preconditions.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row};

use super::CloudError;
use super::change::ChangeKind;
use super::state::{Before, CloudState, Event};
use super::stored::Stored;
use edgesync_object::event::is_event;
use edgesync_object::objectsync::{is_sync_record, split_sync_name};
use edgesync_object::time::rfc3339;
use edgesync_object::{Object, ObjectKey, ObjectSync, Problems, Resource, ResourceVersion, Scope};
use edgesync_placement::Summary;
use edgesync_store::StoreError;

/// A job in the writer's transaction, with the state in memory that it updates.
pub(super) struct Tx<'a> {
    pub(super) conn: &'a Connection,
    pub(super) state: &'a mut CloudState,
    pub(super) now: jiff::Timestamp,
}

/// A row of `objects`.
pub(super) struct ObjectRow {
    pub(super) id: i64,
    pub(super) resource_id: i64,
    pub(super) stored: Stored,
}

/// Columns of a new row beside its object.
#[derive(Clone, Copy, Default)]
pub(super) struct RowExtra<'a> {
    /// The row id; the next free one if absent.
    pub(super) id: Option<i64>,
    /// For a record: the node in its name, and the UID of the recorded object.
    pub(super) sync: Option<(&'a str, &'a str)>,
    /// For an Event: the time of the last change, Unix time in milliseconds.
    pub(super) changed: Option<i64>,
    /// The labels as JSON text.
    pub(super) labels: Option<&'a str>,
}

/// Columns in the order that [`ObjectRow::read`] expects.
pub(super) const COLUMNS: &str = "id, resource_id, uid, version, namespace, name, body";

impl ObjectRow {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            resource_id: row.get(1)?,
            stored: Stored {
                uid: row.get(2)?,
                version: row.get(3)?,
                namespace: row.get(4)?,
                name: row.get(5)?,
                body: row.get(6)?,
            },
        })
    }
}

/// Returns the id of a kind, if it was ever registered.
pub(super) fn resource_id(conn: &Connection, group: &str, kind: &str) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached(r#"SELECT id FROM resources WHERE "group" = ?1 AND kind = ?2"#)?
        .query_row((group, kind), |row| row.get(0))
        .optional()
}

/// Returns the row under a name.
pub(super) fn find(
    conn: &Connection,
    resource_id: i64,
    namespace: &str,
    name: &str,
) -> rusqlite::Result<Option<ObjectRow>> {
    const SQL: &str = "SELECT id, resource_id, uid, version, namespace, name, body FROM objects
        WHERE resource_id = ?1 AND namespace = ?2 AND name = ?3";
    conn.prepare_cached(SQL)?.query_row((resource_id, namespace, name), ObjectRow::read).optional()
}

/// Parses the text of a stored object. The text was valid JSON when it was written.
pub(super) fn parse(stored: &Stored) -> Result<Object, StoreError> {
    serde_json::from_str(&stored.body)
        .map_err(|error| StoreError::corrupt(format!("object with uid '{}' is damaged: {error}", stored.uid)))
}

impl Tx<'_> {
    /// Stores a new, validated object.
    pub(super) fn create(&mut self, resource: &Arc<Resource>, object: Object) -> Result<Stored, CloudError> {
        self.create_at(None, resource, object)
    }

    /// Stores a new, validated object under a row id.
    pub(super) fn create_at(
        &mut self,
        id: Option<i64>,
        resource: &Arc<Resource>,
        mut object: Object,
    ) -> Result<Stored, CloudError> {
        let key = resource.key(object.namespace(), object.name());
        let resource_id = self.register(resource, &key)?;
        let sync = sync_columns(resource, &object, &key)?;
        let mut taken = find(self.conn, resource_id, object.namespace(), object.name())?.is_some();
        if let Some((node, uid)) = &sync {
            // At most one record per node and UID, in any namespace.
            taken |= self.sync_exists(node, uid)?;
            self.forget_tally(node)?;
        }
        if taken {
            return Err(CloudError::AlreadyExists { key });
        }
        if object.uid().is_empty() {
            object.set_metadata("uid", uuid::Uuid::new_v4().to_string());
        }
        if object.creation_timestamp().is_empty() {
            object.set_metadata("creationTimestamp", rfc3339(self.now));
        }
        // Events have no desired state, so they have no generation.
        if object.generation() == 0 && !is_event(resource) {
            object.set_metadata("generation", 1);
        }
        let version = self.state.next_version();
        object.set_metadata("resourceVersion", version.to_string());
        let stored = stored(&object, version);
        let sync = sync.as_ref().map(|(node, uid)| (node.as_str(), uid.as_str()));
        let labels = labels(&object);
        let extra = RowExtra { id, sync, changed: self.changed(resource), labels: labels.as_deref() };
        self.insert(resource_id, version_of(&object), &stored, extra)?;
        self.enter(ChangeKind::Added, resource_id, stored.clone(), Before::Nothing)?;
        self.publish(ChangeKind::Added, &object, resource, &stored);
        Ok(stored)
    }

    /// Replaces the object of the same name, if that has the version `expected`.
    pub(super) fn update(
        &mut self,
        resource: &Arc<Resource>,
        mut object: Object,
        expected: u64,
    ) -> Result<Stored, CloudError> {
        let (row, key) = self.existing(resource, object.namespace(), object.name(), Some(expected))?;
        if object.uid() != &*row.stored.uid {
            let (given, current) = (object.uid().to_owned(), row.stored.uid.to_string());
            return Err(CloudError::OtherUid { key, given, current });
        }
        if let Some((node, _)) = sync_columns(resource, &object, &key)? {
            self.forget_tally(&node)?;
        }
        object.set_metadata("resourceVersion", expected.to_string());
        // Both have sorted keys, so equal objects have equal texts.
        if object.to_json() == row.stored.body {
            return Ok(row.stored);
        }
        self.change(resource, row, object)
    }

    /// Writes new content into a row.
    pub(super) fn change(
        &mut self,
        resource: &Arc<Resource>,
        row: ObjectRow,
        mut object: Object,
    ) -> Result<Stored, CloudError> {
        let version = self.state.next_version();
        object.set_metadata("resourceVersion", version.to_string());
        let stored = stored(&object, version);
        self.conn
            .prepare_cached("UPDATE objects SET api_version = ?2, version = ?3, body = ?4 WHERE id = ?1")?
            .execute((row.id, version_of(&object), stored.version, &stored.body))?;
        // Separate statement, so that only changed labels touch the index. The page is cached.
        self.conn
            .prepare_cached("UPDATE objects SET labels = ?2 WHERE id = ?1 AND labels IS NOT ?2")?
            .execute((row.id, labels(&object)))?;
        if let Some(changed) = self.changed(resource) {
            self.conn
                .prepare_cached("UPDATE objects SET changed = ?2 WHERE id = ?1")?
                .execute((row.id, changed))?;
        }
        let before = Before::Whole { version: row.stored.version, body: row.stored.body };
        self.enter(ChangeKind::Modified, row.resource_id, stored.clone(), before)?;
        self.publish(ChangeKind::Modified, &object, resource, &stored);
        Ok(stored)
    }

    /// Deletes the object under a name, if it has the version `expected` (if given). Returns its
    /// last state with the version of the deletion.
    pub(super) fn delete(
        &mut self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        expected: Option<u64>,
    ) -> Result<Stored, CloudError> {
        let (row, _) = self.existing(resource, namespace, name, expected)?;
        self.check_leaving(resource, name)?;
        if is_sync_record(resource)
            && let Some((node, _)) = split_sync_name(name)
        {
            self.forget_tally(node)?;
        }
        let (stored, object) = self.remove(&row)?;
        self.publish(ChangeKind::Deleted, &object, resource, &stored);
        Ok(stored)
    }

    /// Removes a row and enters the deletion into the history.
    pub(super) fn remove(&mut self, row: &ObjectRow) -> Result<(Stored, Object), CloudError> {
        let mut object = parse(&row.stored)?;
        let version = self.state.next_version();
        object.set_metadata("resourceVersion", version.to_string());
        let stored = stored(&object, version);
        self.conn.prepare_cached("DELETE FROM objects WHERE id = ?1")?.execute([row.id])?;
        let before = Before::Same { version: row.stored.version };
        self.enter(ChangeKind::Deleted, row.resource_id, stored.clone(), before)?;
        Ok((stored, object))
    }

    /// Returns the row under a name, if it has the version `expected` (if given).
    fn existing(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        expected: Option<u64>,
    ) -> Result<(ObjectRow, ObjectKey), CloudError> {
        let key = resource.key(namespace, name);
        let row = match resource_id(self.conn, &resource.group, &resource.kind)? {
            Some(resource_id) => find(self.conn, resource_id, namespace, name)?,
            None => None,
        };
        match row {
            None => Err(CloudError::NotFound { key }),
            Some(row) => match expected.filter(|given| *given != row.stored.version) {
                Some(given) => Err(CloudError::Conflict { key, given, current: row.stored.version }),
                None => Ok((row, key)),
            },
        }
    }

    /// Returns the id of a kind, and registers a new kind. While objects of a kind exist, its
    /// plural and scope are fixed. After that, another kind can use its names, for example when a
    /// definition is deleted and recreated.
    pub(super) fn register(&self, resource: &Resource, key: &ObjectKey) -> Result<i64, CloudError> {
        let namespaced = resource.scope == Scope::Namespaced;
        let mut statement = self.conn.prepare_cached(
            r#"SELECT id, kind, plural, namespaced FROM resources
               WHERE "group" = ?1 AND (kind = ?2 OR plural = ?3)"#,
        )?;
        let found = statement.query_map((&resource.group, &resource.kind, &resource.plural), |row| {
            Ok((row.get(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?, row.get::<_, bool>(3)?))
        })?;
        for (id, kind, plural, stored) in found.collect::<rusqlite::Result<Vec<_>>>()? {
            if kind == resource.kind && plural == resource.plural && stored == namespaced {
                return Ok(id);
            }
            if !self.retire(id)? {
                let scope = if stored { "with" } else { "without" };
                let message = format!(
                    "must agree with the kind '{kind}', which is served as '{plural}' {scope} namespaces"
                );
                return Err(CloudError::Invalid {
                    key: key.clone(),
                    problems: Problems::one("kind", message),
                });
            }
        }
        self.conn
            .prepare_cached(
                r#"INSERT INTO resources ("group", version, kind, plural, namespaced)
                   VALUES (?1, ?2, ?3, ?4, ?5)"#,
            )?
            .execute((&resource.group, &resource.version, &resource.kind, &resource.plural, namespaced))?;
        Ok(self.conn.last_insert_rowid())
    }

    /// Releases the names of a kind without objects; returns whether it had none. The history still
    /// refers to the kind, so its row stays, under names that no kind can have.
    fn retire(&self, id: i64) -> rusqlite::Result<bool> {
        const SQL: &str = "UPDATE resources SET kind = kind || ' ' || id, plural = plural || ' ' || id
            WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM objects WHERE resource_id = ?1)";
        Ok(self.conn.prepare_cached(SQL)?.execute([id])? == 1)
    }

    pub(super) fn insert(
        &self,
        resource_id: i64,
        api_version: &str,
        stored: &Stored,
        extra: RowExtra<'_>,
    ) -> Result<(), CloudError> {
        let (sync_node, sync_uid) = extra.sync.unzip();
        self.conn
            .prepare_cached(
                "INSERT INTO objects
                   (id, resource_id, api_version, namespace, name, uid, version, sync_node, sync_uid, body, changed,
                    labels)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
            )?
            .execute((
                extra.id,
                resource_id,
                api_version,
                &stored.namespace,
                &stored.name,
                &stored.uid,
                stored.version,
                sync_node,
                sync_uid,
                &stored.body,
                extra.changed,
                extra.labels,
            ))?;
        Ok(())
    }

    /// Returns the value of the `changed` column for an object that is changed now.
    fn changed(&self, resource: &Resource) -> Option<i64> {
        is_event(resource).then(|| self.now.as_millisecond())
    }

    pub(super) fn enter(
        &mut self,
        kind: ChangeKind,
        resource_id: i64,
        object: Stored,
        before: Before,
    ) -> Result<(), CloudError> {
        self.state.enter(self.conn, Event { kind, resource_id, object, before })
    }

    fn publish(&mut self, kind: ChangeKind, object: &Object, resource: &Arc<Resource>, stored: &Stored) {
        let version = ResourceVersion::from(stored.version);
        let summary = Summary::of(object, Arc::clone(resource), version).with_size(stored.body.len());
        self.state.publish(kind, stored.version, summary);
    }

    fn sync_exists(&self, node: &str, uid: &str) -> rusqlite::Result<bool> {
        self.conn
            .prepare_cached("SELECT 1 FROM objects WHERE sync_node = ?1 AND sync_uid = ?2")?
            .exists((node, uid))
    }
}

/// Returns the version part of an object's `apiVersion`.
pub(super) fn version_of(object: &Object) -> &str {
    edgesync_object::split_api_version(object.api_version()).1
}

/// Returns the labels as the index stores them; `None` if there are none.
fn labels(object: &Object) -> Option<String> {
    let labels = object.metadata()?.get("labels")?.as_object().filter(|labels| !labels.is_empty())?;
    serde_json::to_string(labels).ok()
}

fn stored(object: &Object, version: u64) -> Stored {
    Stored {
        uid: object.uid().into(),
        version,
        namespace: object.namespace().to_owned(),
        name: object.name().to_owned(),
        body: object.to_json(),
    }
}

/// Returns node and UID of a record written by a client. Its name and fields must be those of a
/// record.
fn sync_columns(
    resource: &Resource,
    object: &Object,
    key: &ObjectKey,
) -> Result<Option<(String, String)>, CloudError> {
    if !is_sync_record(resource) {
        return Ok(None);
    }
    let invalid = |field: &str, message: String| CloudError::Invalid {
        key: key.clone(),
        problems: Problems::one(field, message),
    };
    let text = object.to_json();
    let record = ObjectSync::parse(&text)
        .map_err(|error| invalid("spec", format!("must have the fields of an {}: {error}", resource.kind)))?;
    let (node, uid) = record
        .node_and_uid()
        .ok_or_else(|| invalid("metadata.name", "must be '<node name>.<uid of the object>'".to_owned()))?;
    Ok(Some((node.to_owned(), uid.to_owned())))
}
