//! What the cloud knows of each node: its state, and its ObjectSync records as ordinary objects.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};
use serde_json::{Value, json};

use super::CloudError;
use super::feed::ChangeKind;
use super::objects::{ObjectRow, RowExtra, Tx, parse};
use super::state::Before;
use super::stored::Stored;
use crate::object::objectsync::sync_name;
use crate::object::time::rfc3339;
use crate::object::{ObjectRef, ObjectSync, ResourceVersion, kinds};
use crate::store::StoreError;
use crate::sync::change::Uid;
use crate::sync::cloud::{LedgerState, Record, RecordBatch};

/// What a batch came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Records made.
    pub added: usize,
    /// Records changed.
    pub changed: usize,
    /// Records that said the same already.
    pub unchanged: usize,
    /// Records removed.
    pub removed: usize,
    /// Reports that cannot be recorded, with the reason: the others are.
    pub refused: Vec<(Uid, String)>,
}

/// What is known of a node that has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecords {
    /// What it holds.
    pub ledger: LedgerState,
    /// The version of its agent, if it has told.
    pub agent_version: Option<String>,
    /// When something of it was recorded last.
    pub last_seen: jiff::Timestamp,
}

/// What holds for all records of a batch.
struct Batch<'a> {
    node: &'a str,
    now: String,
    /// The ids of ObjectSync and ClusterObjectSync, once they were looked up.
    namespaced: Option<i64>,
    cluster: Option<i64>,
    recorded: Recorded,
}

impl Tx<'_> {
    /// Records a batch.
    pub(super) fn record(
        &mut self,
        node: &str,
        agent_version: Option<&str>,
        batch: &RecordBatch,
    ) -> Result<Recorded, CloudError> {
        let (now, recorded) = (rfc3339(self.now), Recorded::default());
        let mut so_far = Batch { node, now, namespaced: None, cluster: None, recorded };
        let removals: HashSet<&Uid> = batch.remove.iter().collect();
        for uid in removals {
            so_far.recorded.removed += usize::from(self.remove_record(node, uid)?);
        }
        for (uid, held) in &batch.put {
            match sync_name(node, uid) {
                Ok(name) => self.put_record(&mut so_far, &name, uid, held)?,
                Err(problem) => so_far.recorded.refused.push((uid.clone(), problem)),
            }
        }
        if batch.reset {
            let held: HashSet<&str> = batch.put.iter().map(|(uid, _)| &**uid).collect();
            for uid in self.recorded_uids(node)? {
                if !held.contains(uid.as_str()) {
                    so_far.recorded.removed += usize::from(self.remove_record(node, &uid)?);
                }
            }
        }
        self.save_node(node, agent_version, batch)?;
        Ok(so_far.recorded)
    }

    fn put_record(
        &mut self,
        batch: &mut Batch<'_>,
        name: &str,
        uid: &Uid,
        held: &Record,
    ) -> Result<(), CloudError> {
        let recorded = &mut batch.recorded;
        if let Some(row) = self.find_record(batch.node, uid)? {
            let record = parse_record(&row.stored)?;
            if record.is_about(&held.object) {
                if record.status.object_resource_version == held.version.as_str() {
                    recorded.unchanged += 1;
                    return Ok(());
                }
                recorded.changed += 1;
                return self.change_record(row, &held.version);
            }
            // The UID has turned up under another name: the record moves.
            self.remove(&row)?;
            recorded.removed += 1;
        }
        recorded.added += 1;
        self.add_record(batch, name, uid, held)
    }

    fn change_record(&mut self, row: ObjectRow, held: &ResourceVersion) -> Result<(), CloudError> {
        let version = self.state.next_version();
        let (body, held) = with_version_held(&row.stored, held, version)?;
        let ObjectRow { id, resource_id, stored: old } = row;
        let stored = Stored { version, body, ..old };
        self.conn.prepare_cached("UPDATE objects SET version = ?2, body = ?3 WHERE id = ?1")?.execute((
            id,
            version,
            &stored.body,
        ))?;
        let before = match held {
            Some(held) => Before::Record { version: old.version, body: old.body, held },
            None => Before::Whole { version: old.version, body: old.body },
        };
        self.enter(ChangeKind::Modified, resource_id, stored, before)
    }

    fn add_record(
        &mut self,
        batch: &mut Batch<'_>,
        name: &str,
        uid: &Uid,
        held: &Record,
    ) -> Result<(), CloudError> {
        let resource_id = self.sync_kind(&held.object, batch)?;
        let version = self.state.next_version();
        let own_uid = uuid::Uuid::new_v4().to_string();
        let mut record = ObjectSync::new(name, &held.object, held.version.as_str());
        record.metadata.uid = own_uid.as_str().into();
        record.metadata.creation_timestamp = batch.now.as_str().into();
        record.metadata.resource_version = version.to_string().into();
        let stored = Stored {
            uid: own_uid.as_str().into(),
            version,
            namespace: held.object.namespace.to_string(),
            name: name.to_owned(),
            body: write_record(&record)?,
        };
        let extra = RowExtra { sync: Some((batch.node, uid)), ..RowExtra::default() };
        self.insert(resource_id, "v1alpha1", &stored, extra)?;
        self.enter(ChangeKind::Added, resource_id, stored, Before::Nothing)
    }

    /// The id of ObjectSync or ClusterObjectSync, looked up once a batch.
    fn sync_kind(&self, object: &ObjectRef, batch: &mut Batch<'_>) -> Result<i64, CloudError> {
        let (slot, word) = if object.is_cluster_scoped() {
            (&mut batch.cluster, "clusterobjectsyncs")
        } else {
            (&mut batch.namespaced, "objectsyncs")
        };
        if let Some(id) = slot {
            return Ok(*id);
        }
        let resource = kinds::by_word(word)
            .map(kinds::KnownKind::resource)
            .ok_or_else(|| StoreError::internal(format!("the kind '{word}' is not in the table of kinds")))?;
        let id = self.register(&resource, &resource.key("", ""))?;
        Ok(*slot.insert(id))
    }

    fn find_record(&self, node: &str, uid: &str) -> rusqlite::Result<Option<ObjectRow>> {
        const SQL: &str = "SELECT id, resource_id, uid, version, namespace, name, body FROM objects
            WHERE sync_node = ?1 AND sync_uid = ?2";
        self.conn.prepare_cached(SQL)?.query_row((node, uid), ObjectRow::read).optional()
    }

    fn remove_record(&mut self, node: &str, uid: &str) -> Result<bool, CloudError> {
        let Some(row) = self.find_record(node, uid)? else { return Ok(false) };
        self.remove(&row)?;
        Ok(true)
    }

    fn recorded_uids(&self, node: &str) -> rusqlite::Result<Vec<String>> {
        let mut statement = self.conn.prepare_cached("SELECT sync_uid FROM objects WHERE sync_node = ?1")?;
        statement.query_map([node], |row| row.get(0))?.collect()
    }

    fn save_node(
        &self,
        node: &str,
        agent_version: Option<&str>,
        batch: &RecordBatch,
    ) -> Result<(), CloudError> {
        self.conn
            .prepare_cached(
                "INSERT INTO nodes (name, epoch, confirmed, incarnation, agent_version, last_seen)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, confirmed = excluded.confirmed,
                   incarnation = excluded.incarnation, last_seen = excluded.last_seen,
                   agent_version = coalesce(excluded.agent_version, agent_version)",
            )?
            .execute((
                node,
                batch.epoch.to_string(),
                // SQLite's integers are signed: no store counts that far.
                i64::try_from(batch.confirmed).unwrap_or(i64::MAX),
                batch.accepted.as_deref().unwrap_or_default(),
                agent_version,
                self.now.to_string(),
            ))?;
        Ok(())
    }

    /// Forgets a node and all its records.
    pub(super) fn delete_node(&mut self, node: &str) -> Result<bool, CloudError> {
        let uids = self.recorded_uids(node)?;
        for uid in &uids {
            self.remove_record(node, uid)?;
        }
        let rows = self.conn.prepare_cached("DELETE FROM nodes WHERE name = ?1")?.execute([node])?;
        Ok(rows > 0 || !uids.is_empty())
    }
}

/// The nodes that have reported, in the order of their names.
pub(super) fn nodes(conn: &Connection) -> Result<Vec<String>, CloudError> {
    let mut statement = conn.prepare_cached("SELECT name FROM nodes ORDER BY name")?;
    Ok(statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn load_node(conn: &Connection, node: &str) -> Result<Option<NodeRecords>, CloudError> {
    let mut statement = conn.prepare_cached(
        "SELECT epoch, confirmed, incarnation, agent_version, last_seen FROM nodes WHERE name = ?1",
    )?;
    let mut rows = statement.query([node])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let damaged_row = |what| StoreError::corrupt(format!("the {what} of node '{node}' is damaged"));
    let epoch = row.get::<_, String>(0)?.parse().map_err(|_| damaged_row("epoch"))?;
    let last_seen = row.get::<_, String>(4)?.parse().map_err(|_| damaged_row("last_seen"))?;
    let (confirmed, incarnation, agent_version) = (row.get(1)?, row.get::<_, String>(2)?, row.get(3)?);
    let mut statement = conn.prepare_cached("SELECT sync_uid, body FROM objects WHERE sync_node = ?1")?;
    let mut rows = statement.query([node])?;
    let mut records = HashMap::new();
    while let Some(row) = rows.next()? {
        let uid: Uid = row.get(0)?;
        let body: String = row.get(1)?;
        let record = ObjectSync::parse(&body).map_err(|error| damaged(&format!("{node}.{uid}"), &error))?;
        let version = ResourceVersion::new(&*record.status.object_resource_version);
        records.insert(uid, Record { version, object: Arc::new(record.object()) });
    }
    let accepted = Some(incarnation).filter(|incarnation| !incarnation.is_empty());
    let ledger = LedgerState { epoch: Some(epoch), confirmed, accepted, records };
    Ok(Some(NodeRecords { ledger, agent_version, last_seen }))
}

fn damaged(name: &str, error: &serde_json::Error) -> StoreError {
    StoreError::corrupt(format!("the record '{name}' is damaged: {error}"))
}

fn parse_record(stored: &Stored) -> Result<ObjectSync<'_>, StoreError> {
    ObjectSync::parse(&stored.body).map_err(|error| damaged(&stored.name, &error))
}

fn write_record(record: &ObjectSync<'_>) -> Result<String, StoreError> {
    // About what a record takes; spares the growing of the buffer.
    let mut text = Vec::with_capacity(512);
    record.write_json(&mut text).map_err(|error| StoreError::internal(error.to_string()))?;
    String::from_utf8(text).map_err(|error| StoreError::internal(error.to_string()))
}

/// The text of a record that tells of another version. Also the version that it told of, if the record has no
/// fields but those of [`ObjectSync`]: then nothing else differs.
fn with_version_held(
    stored: &Stored,
    held: &ResourceVersion,
    version: u64,
) -> Result<(String, Option<String>), StoreError> {
    let mut record = parse_record(stored)?;
    let own = version.to_string();
    let old = std::mem::replace(&mut record.status.object_resource_version, held.as_str().into());
    let lengths = stored.body.len() + held.as_str().len() + own.len();
    let expected = lengths.checked_sub(old.len() + record.metadata.resource_version.len());
    record.metadata.resource_version = own.as_str().into();
    let body = write_record(&record)?;
    // A text that begins like an object would be taken for the whole one.
    if Some(body.len()) == expected && !old.starts_with('{') {
        return Ok((body, Some(old.into_owned())));
    }
    // Finalizers, managed fields and whatever else someone has put there stay.
    let mut object = parse(stored)?;
    object.set_metadata("resourceVersion", own);
    let status = json!({ "objectResourceVersion": held.as_str() });
    match object.fields_mut().get_mut("status") {
        Some(Value::Object(fields)) => fields.extend(status.as_object().cloned().unwrap_or_default()),
        _ => drop(object.fields_mut().insert("status".to_owned(), status)),
    }
    Ok((object.to_json(), None))
}

/// A record as it was before it told of another version.
pub(super) fn record_before(body: &str, version: u64, held: &str) -> Result<String, StoreError> {
    let damaged = |error| StoreError::corrupt(format!("a record in the history is damaged: {error}"));
    let mut record = ObjectSync::parse(body).map_err(damaged)?;
    record.status.object_resource_version = held.into();
    record.metadata.resource_version = version.to_string().into();
    write_record(&record)
}
