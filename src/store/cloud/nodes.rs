//! What the cloud knows of each node: its state, and its ObjectSync records as ordinary objects.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row};
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
use crate::sync::digest::Epoch;

/// What a node has reported, to be recorded as one.
#[derive(Clone, Debug, Default)]
pub struct RecordBatch {
    /// The epoch of the node's store.
    pub epoch: Epoch,
    /// The revision of the node's store up to which its reports are complete with this batch.
    pub confirmed: u64,
    /// The incarnation of this cloud that the records belong to.
    pub incarnation: String,
    /// The version of the agent; the one known is kept if absent.
    pub agent_version: Option<String>,
    /// Objects that the node holds.
    pub put: Vec<RecordPut>,
    /// UIDs of objects that it does not hold. Applied before `put`.
    pub remove: Vec<Uid>,
    /// Whether `put` is all that the node holds: every other record of it is removed.
    pub reset: bool,
}

/// An object that a node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPut {
    /// The object.
    pub object: ObjectRef,
    /// Its UID.
    pub uid: Uid,
    /// The version held.
    pub version: ResourceVersion,
}

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

/// What is known of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// The node's name.
    pub name: String,
    /// The epoch of its store.
    pub epoch: Epoch,
    /// The revision of its store up to which records are complete.
    pub confirmed: u64,
    /// The incarnation of this cloud that its records belong to.
    pub incarnation: String,
    /// The version of its agent, if it has told.
    pub agent_version: Option<String>,
    /// When something of it was recorded last.
    pub last_seen: jiff::Timestamp,
}

/// What is known of a node, and everything it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecords {
    /// The node.
    pub state: NodeState,
    /// What it holds.
    pub records: Vec<RecordPut>,
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
    pub(super) fn record(&mut self, node: &str, batch: &RecordBatch) -> Result<Recorded, CloudError> {
        let (now, recorded) = (rfc3339(self.now), Recorded::default());
        let mut so_far = Batch { node, now, namespaced: None, cluster: None, recorded };
        let removals: HashSet<&Uid> = batch.remove.iter().collect();
        for uid in removals {
            so_far.recorded.removed += usize::from(self.remove_record(node, uid)?);
        }
        for put in &batch.put {
            match sync_name(node, &put.uid) {
                Ok(name) => self.put_record(&mut so_far, &name, put)?,
                Err(problem) => so_far.recorded.refused.push((put.uid.clone(), problem)),
            }
        }
        if batch.reset {
            let held: HashSet<&str> = batch.put.iter().map(|put| &*put.uid).collect();
            for uid in self.recorded_uids(node)? {
                if !held.contains(uid.as_str()) {
                    so_far.recorded.removed += usize::from(self.remove_record(node, &uid)?);
                }
            }
        }
        self.save_node(node, batch)?;
        Ok(so_far.recorded)
    }

    fn put_record(&mut self, batch: &mut Batch<'_>, name: &str, put: &RecordPut) -> Result<(), CloudError> {
        let recorded = &mut batch.recorded;
        if let Some(row) = self.find_record(batch.node, &put.uid)? {
            let record = parse_record(&row.stored)?;
            if record.is_about(&put.object) {
                if record.status.object_resource_version == put.version.as_str() {
                    recorded.unchanged += 1;
                    return Ok(());
                }
                recorded.changed += 1;
                return self.change_record(row, put);
            }
            // The UID has turned up under another name: the record moves.
            self.remove(&row)?;
            recorded.removed += 1;
        }
        recorded.added += 1;
        self.add_record(batch, name, put)
    }

    fn change_record(&mut self, row: ObjectRow, put: &RecordPut) -> Result<(), CloudError> {
        let version = self.state.next_version();
        let (body, held) = with_version_held(&row.stored, &put.version, version)?;
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

    fn add_record(&mut self, batch: &mut Batch<'_>, name: &str, put: &RecordPut) -> Result<(), CloudError> {
        let resource_id = self.sync_kind(&put.object, batch)?;
        let version = self.state.next_version();
        let uid = uuid::Uuid::new_v4().to_string();
        let mut record = ObjectSync::new(name, &put.object, put.version.as_str());
        record.metadata.uid = uid.as_str().into();
        record.metadata.creation_timestamp = batch.now.as_str().into();
        record.metadata.resource_version = version.to_string().into();
        let stored = Stored {
            uid: uid.as_str().into(),
            version,
            namespace: put.object.namespace.to_string(),
            name: name.to_owned(),
            body: write_record(&record)?,
        };
        let extra = RowExtra { sync: Some((batch.node, &put.uid)), ..RowExtra::default() };
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

    fn save_node(&self, node: &str, batch: &RecordBatch) -> Result<(), CloudError> {
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
                &batch.incarnation,
                &batch.agent_version,
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

const NODE_COLUMNS: &str = "name, epoch, confirmed, incarnation, agent_version, last_seen";

fn read_node(row: &Row<'_>) -> Result<NodeState, CloudError> {
    let name: String = row.get(0)?;
    let damaged = |what| StoreError::corrupt(format!("the {what} of node '{name}' is damaged"));
    let epoch = row.get::<_, String>(1)?.parse().map_err(|_| damaged("epoch"))?;
    let last_seen = row.get::<_, String>(5)?.parse().map_err(|_| damaged("last_seen"))?;
    let (confirmed, incarnation, agent_version) = (row.get(2)?, row.get(3)?, row.get(4)?);
    Ok(NodeState { epoch, confirmed, incarnation, agent_version, last_seen, name })
}

pub(super) fn nodes(conn: &Connection) -> Result<Vec<NodeState>, CloudError> {
    let mut statement = conn.prepare_cached(&format!("SELECT {NODE_COLUMNS} FROM nodes ORDER BY name"))?;
    let mut rows = statement.query([])?;
    let mut nodes = Vec::new();
    while let Some(row) = rows.next()? {
        nodes.push(read_node(row)?);
    }
    Ok(nodes)
}

pub(super) fn load_node(conn: &Connection, node: &str) -> Result<Option<NodeRecords>, CloudError> {
    let sql = format!("SELECT {NODE_COLUMNS} FROM nodes WHERE name = ?1");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query([node])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let state = read_node(row)?;
    let mut statement = conn.prepare_cached("SELECT sync_uid, body FROM objects WHERE sync_node = ?1")?;
    let mut rows = statement.query([node])?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        let uid: Arc<str> = row.get(0)?;
        let body: String = row.get(1)?;
        let record = ObjectSync::parse(&body).map_err(|error| damaged(&format!("{node}.{uid}"), &error))?;
        let version = ResourceVersion::new(&*record.status.object_resource_version);
        records.push(RecordPut { object: record.object(), uid, version });
    }
    Ok(Some(NodeRecords { state, records }))
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
