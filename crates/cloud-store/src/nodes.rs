//! Ledger of each node: its state, and its ObjectSync records as ordinary objects.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};
use serde_json::{Value, json};

use super::change::ChangeKind;
use super::in_effect::ShownEffect;
use super::objects::{ObjectRow, RowExtra, Tx, parse};
use super::state::Before;
use super::stored::Stored;
use super::{CloudError, node_of_row};
use edgesync_object::objectsync::{EFFECT_WAIT_ANNOTATION, sync_name};
use edgesync_object::time::rfc3339;
use edgesync_object::{NodeName, ObjectRef, ObjectSync, ResourceVersion, kinds};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{LedgerFacts, Record, RecordBatch};
use edgesync_protocol::digest::{Epoch, Tally};
use edgesync_store::{StoreError, random};

/// Result of a batch of reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    pub added: usize,
    pub changed: usize,
    /// Records that were equal already.
    pub unchanged: usize,
    pub removed: usize,
    /// Reports that cannot be recorded, with the reason. The others are recorded.
    pub refused: Vec<(Uid, String)>,
}

/// Facts about a node that has reported, beside its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Facts that decide whether the records are trusted.
    pub ledger: LedgerFacts,
    /// Version of its agent, if reported.
    pub agent_version: Option<String>,
    /// Time of its last recorded report.
    pub last_seen: jiff::Timestamp,
}

/// State shared by all records of a batch.
struct Batch<'a> {
    node: &'a NodeName,
    now: String,
    /// Ids of ObjectSync and ClusterObjectSync, after the first lookup.
    namespaced: Option<i64>,
    cluster: Option<i64>,
    uids: NewUids,
    recorded: Recorded,
}

/// UIDs for new records: version 4, drawn from the system several at a time.
struct NewUids {
    random: [u8; Self::DRAWN * 16],
    /// Number of UIDs left in `random`.
    left: usize,
}

impl NewUids {
    /// UIDs per call of the system.
    const DRAWN: usize = 64;

    fn new() -> Self {
        Self { random: [0; Self::DRAWN * 16], left: 0 }
    }

    fn next(&mut self) -> Result<String, StoreError> {
        if self.left == 0 {
            self.random = random::bytes().map_err(|error| StoreError::internal(error.to_string()))?;
            self.left = Self::DRAWN;
        }
        self.left -= 1;
        let (drawn, _) = self.random.as_chunks();
        let bytes = drawn.get(self.left).copied();
        let bytes = bytes.ok_or_else(|| StoreError::internal("no random bytes left".to_owned()))?;
        Ok(uuid::Builder::from_random_bytes(bytes).into_uuid().to_string())
    }
}

impl Tx<'_> {
    /// Applies a batch of reports.
    pub(super) fn record(
        &mut self,
        node: &NodeName,
        agent_version: Option<&str>,
        batch: &RecordBatch,
    ) -> Result<Recorded, CloudError> {
        let (now, recorded) = (rfc3339(self.now), Recorded::default());
        let uids = NewUids::new();
        let mut so_far = Batch { node, now, namespaced: None, cluster: None, uids, recorded };
        let removals: HashSet<&Uid> = batch.remove.iter().collect();
        for uid in removals {
            so_far.recorded.removed += usize::from(self.remove_record(node, uid)?);
            self.forget_in_effect(node, uid)?;
        }
        if batch.is_whole() || self.has_other_epoch(node, batch.epoch)? {
            let held = batch.put.iter().map(|(uid, _)| &**uid);
            let held: Option<HashSet<&str>> = batch.is_whole().then(|| held.collect());
            self.forget_effects(node, batch.epoch, held.as_ref())?;
        }
        for (uid, held) in &batch.put {
            match sync_name(node.as_str(), uid) {
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
            // The UID appeared under another name: the record moves.
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
        let own_uid = batch.uids.next()?;
        let mut record = ObjectSync::new(name, &held.object, held.version.as_str());
        record.metadata.uid = own_uid.as_str().into();
        record.metadata.creation_timestamp = batch.now.as_str().into();
        record.metadata.resource_version = version.to_string().into();
        let ShownEffect { labels, wait } = self.shown_effect(batch.node, uid)?.unwrap_or_default();
        let wait = wait.map(|wait| (EFFECT_WAIT_ANNOTATION.into(), wait.into()));
        record.metadata.annotations.extend(wait);
        record.metadata.labels = labels.iter().map(|(key, value)| ((*key).into(), value.into())).collect();
        let labels = (!labels.is_empty()).then(|| json!(labels).to_string());
        let stored = Stored {
            uid: own_uid.as_str().into(),
            version,
            namespace: held.object.namespace.to_string(),
            name: name.to_owned(),
            body: write_record(&record)?,
        };
        let extra = RowExtra {
            sync: Some((batch.node.as_str(), uid)),
            labels: labels.as_deref(),
            ..RowExtra::default()
        };
        self.insert(resource_id, "v1alpha1", &stored, extra)?;
        self.enter(ChangeKind::Added, resource_id, stored, Before::Nothing)
    }

    /// Returns the id of ObjectSync or ClusterObjectSync, looked up once per batch.
    fn sync_kind(&self, object: &ObjectRef, batch: &mut Batch<'_>) -> Result<i64, CloudError> {
        let (known, word) = if object.is_cluster_scoped() {
            (&mut batch.cluster, "clusterobjectsyncs")
        } else {
            (&mut batch.namespaced, "objectsyncs")
        };
        if let Some(id) = known {
            return Ok(*id);
        }
        let resource = kinds::by_word(word)
            .map(kinds::KnownKind::resource)
            .ok_or_else(|| StoreError::internal(format!("kind '{word}' is not in the table of kinds")))?;
        let id = self.register(&resource, &resource.key("", ""))?;
        Ok(*known.insert(id))
    }

    pub(super) fn find_record(&self, node: &NodeName, uid: &str) -> rusqlite::Result<Option<ObjectRow>> {
        const SQL: &str = "SELECT id, resource_id, uid, version, namespace, name, body FROM objects
            WHERE sync_node = ?1 AND sync_uid = ?2";
        self.conn.prepare_cached(SQL)?.query_row((node.as_str(), uid), ObjectRow::read).optional()
    }

    fn remove_record(&mut self, node: &NodeName, uid: &str) -> Result<bool, CloudError> {
        let Some(row) = self.find_record(node, uid)? else { return Ok(false) };
        self.remove(&row)?;
        Ok(true)
    }

    /// Returns whether the last recorded epoch of a node is another one.
    fn has_other_epoch(&self, node: &NodeName, epoch: Epoch) -> rusqlite::Result<bool> {
        let mut find = self.conn.prepare_cached("SELECT 1 FROM nodes WHERE name = ?1 AND epoch <> ?2")?;
        find.exists((node.as_str(), epoch.to_string()))
    }

    fn recorded_uids(&self, node: &NodeName) -> rusqlite::Result<Vec<String>> {
        let mut statement = self.conn.prepare_cached("SELECT sync_uid FROM objects WHERE sync_node = ?1")?;
        statement.query_map([node.as_str()], |row| row.get(0))?.collect()
    }

    fn save_node(
        &self,
        node: &NodeName,
        agent_version: Option<&str>,
        batch: &RecordBatch,
    ) -> Result<(), CloudError> {
        let epochs =
            serde_json::to_string(&batch.epochs).map_err(|error| StoreError::internal(error.to_string()))?;
        self.conn
            .prepare_cached(
                "INSERT INTO nodes
                   (name, epoch, confirmed, incarnation, agent_version, last_seen, held_count, held_digest, epochs)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
                 ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, confirmed = excluded.confirmed,
                   incarnation = excluded.incarnation, last_seen = excluded.last_seen,
                   held_count = excluded.held_count, held_digest = excluded.held_digest, epochs = excluded.epochs,
                   agent_version = coalesce(excluded.agent_version, agent_version)",
            )?
            .execute((
                node.as_str(),
                batch.epoch.to_string(),
                // SQLite's integers are signed; no store counts that far.
                i64::try_from(batch.confirmed).unwrap_or(i64::MAX),
                batch.accepted.as_deref().unwrap_or_default(),
                agent_version,
                self.now.to_string(),
                batch.tally.map(|tally| tally.count),
                batch.tally.map(|tally| tally.digest.to_string()),
                epochs,
            ))?;
        Ok(())
    }

    /// Discards the tally of a node's records, because a client other than the fleet changes one.
    pub(super) fn forget_tally(&self, node: &str) -> rusqlite::Result<()> {
        const SQL: &str = "UPDATE nodes SET held_count = NULL, held_digest = NULL WHERE name = ?1";
        self.conn.prepare_cached(SQL)?.execute([node]).map(drop)
    }

    /// Deletes a node's ledger and all its records. Returns whether anything existed.
    pub(super) fn delete_node(&mut self, node: &NodeName) -> Result<bool, CloudError> {
        let uids = self.recorded_uids(node)?;
        for uid in &uids {
            self.remove_record(node, uid)?;
        }
        self.drop_effects(node)?;
        let rows = self.conn.prepare_cached("DELETE FROM nodes WHERE name = ?1")?.execute([node.as_str()])?;
        Ok(rows > 0 || !uids.is_empty())
    }
}

/// Returns the nodes that have reported, ordered by name.
pub(super) fn nodes(conn: &Connection) -> Result<Vec<(NodeName, NodeFacts)>, CloudError> {
    let mut statement = conn.prepare_cached(
        "SELECT name, epoch, confirmed, incarnation, agent_version, last_seen, held_count, held_digest,
           epochs
         FROM nodes ORDER BY name",
    )?;
    let mut rows = statement.query([])?;
    let (mut nodes, mut incarnations) = (Vec::new(), HashSet::<Arc<str>>::new());
    while let Some(row) = rows.next()? {
        let Some(name) = node_of_row(row.get_ref(0)?.as_str().unwrap_or_default()) else { continue };
        let damaged = |what| StoreError::corrupt(format!("{what} of node '{name}' is damaged"));
        let epoch = Some(row.get::<_, String>(1)?.parse().map_err(|_| damaged("epoch"))?);
        let last_seen = row.get::<_, String>(5)?.parse().map_err(|_| damaged("last_seen"))?;
        let incarnation: Arc<str> = row.get(3)?;
        // Most nodes share one incarnation.
        let accepted = incarnations.get(&incarnation).cloned().unwrap_or_else(|| {
            incarnations.insert(Arc::clone(&incarnation));
            incarnation
        });
        let digest = row.get::<_, Option<String>>(7)?.map(|digest| digest.parse()).transpose();
        let digest = digest.map_err(|_| damaged("held_digest"))?;
        let tally = row.get::<_, Option<u64>>(6)?.zip(digest).map(|(count, digest)| Tally { count, digest });
        let accepted = Some(accepted).filter(|accepted| !accepted.is_empty());
        let epochs = row.get_ref(8)?.as_str().ok().and_then(|json| serde_json::from_str(json).ok());
        let epochs = epochs.ok_or_else(|| damaged("epochs"))?;
        let ledger = LedgerFacts { epoch, confirmed: row.get(2)?, accepted, tally, epochs };
        nodes.push((name.clone(), NodeFacts { ledger, agent_version: row.get(4)?, last_seen }));
    }
    Ok(nodes)
}

/// Returns the objects that a node is recorded to hold.
pub(super) fn records(conn: &Connection, node: &NodeName) -> Result<Vec<(Uid, Record)>, CloudError> {
    let mut statement = conn.prepare_cached("SELECT sync_uid, body FROM objects WHERE sync_node = ?1")?;
    let mut rows = statement.query([node.as_str()])?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        let uid: Uid = row.get(0)?;
        let body = row.get_ref(1)?.as_str().unwrap_or_default();
        let record = ObjectSync::parse(body).map_err(|error| damaged(&format!("{node}.{uid}"), &error))?;
        let version = ResourceVersion::new(&*record.status.object_resource_version);
        records.push((uid, Record { version, object: Arc::new(record.object()) }));
    }
    Ok(records)
}

fn damaged(name: &str, error: &serde_json::Error) -> StoreError {
    StoreError::corrupt(format!("record '{name}' is damaged: {error}"))
}

fn parse_record(stored: &Stored) -> Result<ObjectSync<'_>, StoreError> {
    ObjectSync::parse(&stored.body).map_err(|error| damaged(&stored.name, &error))
}

fn write_record(record: &ObjectSync<'_>) -> Result<String, StoreError> {
    // Approximate size of a record; avoids growing the buffer.
    let mut text = Vec::with_capacity(512);
    record.write_json(&mut text).map_err(|error| StoreError::internal(error.to_string()))?;
    String::from_utf8(text).map_err(|error| StoreError::internal(error.to_string()))
}

/// Returns the text of a record with another version held. Also returns the previous version held,
/// if the record has only the fields of [`ObjectSync`]: then nothing else differs.
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
    // A text with a leading brace would be read as the whole object.
    if Some(body.len()) == expected && !old.starts_with('{') {
        return Ok((body, Some(old.into_owned())));
    }
    // Finalizers, managed fields and other additions stay.
    let mut object = parse(stored)?;
    object.set_metadata("resourceVersion", own);
    let status = json!({ "objectResourceVersion": held.as_str() });
    match object.fields_mut().get_mut("status") {
        Some(Value::Object(fields)) => fields.extend(status.as_object().cloned().unwrap_or_default()),
        _ => drop(object.fields_mut().insert("status".to_owned(), status)),
    }
    Ok((object.to_json(), None))
}

/// Reconstructs a record as it was before its version held changed.
pub(super) fn record_before(body: &str, version: u64, held: &str) -> Result<String, StoreError> {
    let damaged = |error| StoreError::corrupt(format!("record in the history is damaged: {error}"));
    let mut record = ObjectSync::parse(body).map_err(damaged)?;
    record.status.object_resource_version = held.into();
    record.metadata.resource_version = version.to_string().into();
    write_record(&record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_of_records_are_distinct_and_of_version_4() {
        let mut uids = NewUids::new();
        let all: Vec<String> = (0..3 * NewUids::DRAWN).map(|_| uids.next().unwrap()).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        for uid in all {
            assert_eq!(uuid::Uuid::parse_str(&uid).unwrap().get_version_num(), 4, "{uid}");
        }
        assert_eq!(uids.left, 0, "one call of the system for {} UIDs", NewUids::DRAWN);
    }
}
