//! Roll-outs: their statuses, and the bodies of their revisions.
//!
//! A rule that is an object has the status of its roll-out in its own status; the one of a
//! configured rule is in a table. Bodies are written in batches, so that a large revision does not
//! hold up other writes; a revision is visible when all of them are stored.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};
use serde_json::{Map, Value};

use super::objects::{Tx, find, parse, resource_id};
use super::{CloudError, CloudStore, MAX_BODIES};
use edgesync_object::{Object, ObjectKey};
use edgesync_protocol::body::Body;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Loaded;
use edgesync_rollout::{Digest, Set, Status};
use edgesync_store::StoreError;

/// Field of a rule's status with its roll-out.
const FIELD: &str = "rollout";
/// Approximate size of a write beside its text in the queue and in the transaction.
const WRITE_BYTES: usize = 4096;
/// Size of bodies above which a transaction ends.
const BATCH_BYTES: usize = 1 << 20;
/// Number of bodies above which a transaction ends.
const BATCH_BODIES: usize = 256;

/// Identity of a rule with a roll-out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuleKey {
    /// The UID of a Placement or ClusterPlacement.
    Object(Uid),
    /// The name of a configured rule.
    Configured(Arc<str>),
}

/// Identity of a revision's bodies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RevisionKey {
    /// The rule of the revision.
    pub rule: RuleKey,
    /// Number of the revision. Two leaders may prepare different sets under one number.
    pub number: u64,
    /// Digest of its set.
    pub digest: Digest,
}

/// A write of the status of a roll-out, by compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutWrite {
    /// The rule.
    pub rule: RuleKey,
    /// For a rule that is an object: its key, and the `metadata.generation` that was read. The spec
    /// must be unchanged: a changed one may have other waves. Other parts of the status may have
    /// changed.
    pub object: Option<(ObjectKey, u64)>,
    /// [`Status::sequence`] of the stored status; 0 if none is stored, or if it is lost.
    pub expected: u64,
    /// The next status as JSON text; `None` deletes it. The revisions of a configured rule are
    /// deleted with it: nothing sweeps them without a roll-out.
    pub status: Option<String>,
}

/// The roll-outs of all rules: decides which stored revisions can be deleted.
#[derive(Clone, Debug, Default)]
pub struct Sweep(pub HashMap<RuleKey, Status>);

/// Reason why a revision cannot be stored, for example because its bodies are not those of its set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("store {revision}: {problem}")]
pub struct RevisionError {
    /// The revision.
    pub revision: Box<RevisionKey>,
    /// The problem.
    pub problem: String,
}

impl fmt::Display for RuleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(uid) => write!(f, "uid/{uid}"),
            Self::Configured(name) => write!(f, "name/{name}"),
        }
    }
}

impl FromStr for RuleKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.split_once('/') {
            Some(("uid", uid)) => Ok(Self::Object(uid.into())),
            Some(("name", name)) => Ok(Self::Configured(name.into())),
            _ => Err("a rule must be uid/UID or name/NAME"),
        }
    }
}

impl fmt::Display for RevisionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "revision {} of rule {}", self.number, self.rule)
    }
}

impl RevisionKey {
    /// Returns an error about the bodies of this revision.
    #[must_use]
    pub fn error(&self, problem: String) -> RevisionError {
        RevisionError { revision: self.clone().into(), problem }
    }

    /// Checks bodies before they are stored: one for each object of the set, in its version.
    /// Returns them in the order of the set.
    ///
    /// # Errors
    /// A body is missing or another one, or the set has another digest.
    pub fn check(&self, set: &Set, bodies: Vec<Loaded>) -> Result<Vec<Loaded>, RevisionError> {
        if set.digest() != self.digest {
            return Err(self.error(format!("the set has the digest {}", set.digest())));
        }
        let mut given: HashMap<Uid, Loaded> =
            bodies.into_iter().map(|loaded| (loaded.uid.clone(), loaded)).collect();
        let mut bodies = Vec::with_capacity(set.entries().len());
        for (uid, entry) in set.entries() {
            let Some(loaded) = given.remove(uid) else {
                return Err(self.error(format!("no body of object '{uid}'")));
            };
            if loaded.version != entry.version || !entry.is_body(loaded.body.as_str()) {
                let problem = format!("the body of object '{uid}' is not that of version {}", entry.version);
                return Err(self.error(problem));
            }
            bodies.push(loaded);
        }
        match given.into_keys().next() {
            Some(uid) => Err(self.error(format!("the set has no object '{uid}'"))),
            None => Ok(bodies),
        }
    }
}

impl Sweep {
    /// Returns whether the bodies of a stored revision can be deleted. Rules that are not known are
    /// gone.
    #[must_use]
    pub fn is_garbage(&self, key: &RevisionKey) -> bool {
        self.0.get(&key.rule).is_none_or(|status| status.is_garbage(key.number, key.digest))
    }

    /// Returns whether a rule is known.
    #[must_use]
    pub fn has(&self, rule: &RuleKey) -> bool {
        self.0.contains_key(rule)
    }
}

/// Returns the sequence of the roll-out in an object's status.
#[must_use]
pub fn rollout_sequence(rule: &Object) -> u64 {
    Status::sequence_of(rule.fields().get("status").and_then(|status| status.get(FIELD)))
}

/// Returns an object's status with another roll-out, or without one.
#[must_use]
pub fn with_rollout(rule: &Object, rollout: Option<Value>) -> Value {
    let mut fields = match rule.fields().get("status") {
        Some(Value::Object(fields)) => fields.clone(),
        _ => Map::new(),
    };
    fields.remove(FIELD);
    fields.extend(rollout.map(|rollout| (FIELD.to_owned(), rollout)));
    Value::Object(fields)
}

/// Returns a status with the roll-out of the object's stored status, which has writes of its own.
#[must_use]
pub fn keep_rollout(rule: &Object, status: &Value) -> Value {
    let mut status = status.clone();
    if let Value::Object(fields) = &mut status {
        fields.remove(FIELD);
        let rollout = rule.fields().get("status").and_then(|status| status.get(FIELD));
        fields.extend(rollout.map(|rollout| (FIELD.to_owned(), rollout.clone())));
    }
    status
}

/// A body in the order of its set, with its digest.
type Content = (Uid, Arc<str>, Body);

impl CloudStore {
    /// Returns the roll-outs of configured rules as JSON text, by the name of the rule.
    ///
    /// # Errors
    /// The store's.
    pub async fn rollout_statuses(&self) -> Result<Vec<(String, String)>, CloudError> {
        self.readers
            .run(|conn| {
                let mut select = conn.prepare_cached("SELECT rule, status FROM rollouts ORDER BY rule")?;
                let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
                Ok(rows.collect::<Result<_, _>>()?)
            })
            .await
    }

    /// Replaces the status of a roll-out, and nothing else, if the rule and the sequence are as
    /// expected. Returns whether they were.
    ///
    /// # Errors
    /// The store's.
    pub async fn write_rollout(&self, write: RolloutWrite) -> Result<bool, CloudError> {
        let RolloutWrite { rule, object, expected, status: text } = write;
        let status: Option<Value> =
            text.as_deref().map(serde_json::from_str).transpose().map_err(|error| {
                StoreError::internal(format!("write the roll-out of rule {rule}: no JSON: {error}"))
            })?;
        let shared = Arc::clone(&self.shared);
        self.write(text.as_deref().map_or(0, str::len) + WRITE_BYTES, move |tx| {
            let (uid, key, generation) = match (&rule, &object) {
                (RuleKey::Configured(name), _) => return tx.write_rollout(name, expected, text.as_deref()),
                (RuleKey::Object(_), None) => return Ok(false),
                (RuleKey::Object(uid), Some((key, generation))) => (uid, key, *generation),
            };
            let Some(kind) = resource_id(tx.conn, &key.group, &key.kind)? else { return Ok(false) };
            let row = find(tx.conn, kind, &key.namespace, &key.name)?;
            let Some(row) = row.filter(|row| row.stored.uid == *uid) else { return Ok(false) };
            let object = parse(&row.stored)?;
            if object.generation() != generation || rollout_sequence(&object) != expected {
                return Ok(false);
            }
            let status = with_rollout(&object, status.clone());
            tx.set_status(kind, row, key.clone(), &status, &shared)?;
            Ok(true)
        })
        .await
    }

    /// Stores the bodies of a revision. Does nothing if they are stored.
    ///
    /// # Errors
    /// [`CloudError::Revision`] if they are not those of the set, or the store's.
    pub async fn store_revision(
        &self,
        key: RevisionKey,
        set: &Set,
        bodies: Vec<Loaded>,
    ) -> Result<(), CloudError> {
        let bodies = key.check(set, bodies)?;
        let digests = set.entries().values().map(|entry| entry.digest.clone());
        let contents: Vec<Content> = bodies
            .into_iter()
            .zip(digests)
            .map(|(loaded, digest)| (loaded.uid, digest, loaded.body))
            .collect();
        let count = contents.len();
        let objects = serde_json::to_string(set)
            .map_err(|error| StoreError::internal(format!("write the objects of {key}: {error}")))?;
        let key = Arc::new(key);
        let begun = Arc::clone(&key);
        let bytes = objects.len() + WRITE_BYTES;
        let Some(id) = self.write(bytes, move |tx| tx.begin_revision(&begun, &objects)).await? else {
            return Ok(());
        };
        for batch in batches(contents) {
            let key = Arc::clone(&key);
            let bytes = batch.iter().map(|(.., body)| body.as_str().len() + 128).sum();
            self.write(bytes, move |tx| tx.add_bodies(&key, id, &batch)).await?;
        }
        self.write(WRITE_BYTES, move |tx| tx.complete_revision(&key, id, count)).await
    }

    /// Returns the set of a stored revision; `None` if it is missing or damaged.
    ///
    /// # Errors
    /// The store's.
    pub async fn revision(&self, key: RevisionKey) -> Result<Option<Set>, CloudError> {
        self.readers.run(move |conn| Ok(find_revision(conn, &key)?.map(|(_, set)| set))).await
    }

    /// Reads bodies of a stored revision, at most [`MAX_BODIES`]. Leaves out lost ones,
    /// and objects that the revision does not have.
    ///
    /// # Errors
    /// The store's.
    pub async fn revision_bodies(&self, key: RevisionKey, uids: Vec<Uid>) -> Result<Vec<Loaded>, CloudError> {
        self.readers.run(move |conn| revision_bodies(conn, &key, uids)).await
    }

    /// Deletes the revisions that are garbage, with the bodies that no other revision has, and the
    /// roll-outs of configured rules that are gone.
    ///
    /// # Errors
    /// The store's.
    pub async fn sweep_revisions(&self, sweep: Sweep) -> Result<(), CloudError> {
        let (revisions, names) = self
            .readers
            .run(|conn| -> Result<_, CloudError> { Ok((revisions(conn)?, rollout_names(conn)?)) })
            .await?;
        // A status is never without its bodies.
        for name in names.into_iter().filter(|name| !sweep.has(&RuleKey::Configured(name.as_str().into()))) {
            self.write(WRITE_BYTES, move |tx| {
                tx.conn.prepare_cached("DELETE FROM rollouts WHERE rule = ?1")?.execute([&name])?;
                Ok(())
            })
            .await?;
        }
        for key in revisions.into_iter().filter(|key| sweep.is_garbage(key)) {
            self.write(WRITE_BYTES, move |tx| tx.delete_revision(&key)).await?;
        }
        Ok(())
    }
}

impl Tx<'_> {
    fn write_rollout(&self, name: &str, expected: u64, status: Option<&str>) -> Result<bool, CloudError> {
        let stored: Option<String> = self
            .conn
            .prepare_cached("SELECT status FROM rollouts WHERE rule = ?1")?
            .query_row([name], |row| row.get(0))
            .optional()?;
        let stored: Option<Value> = stored.and_then(|text| serde_json::from_str(&text).ok());
        if Status::sequence_of(stored.as_ref()) != expected {
            return Ok(false);
        }
        match status {
            Some(status) => self
                .conn
                .prepare_cached(
                    "INSERT INTO rollouts (rule, status) VALUES (?1, ?2)
                     ON CONFLICT DO UPDATE SET status = excluded.status",
                )?
                .execute((name, status))?,
            None => {
                self.delete_revisions(&RuleKey::Configured(name.into()))?;
                self.conn.prepare_cached("DELETE FROM rollouts WHERE rule = ?1")?.execute([name])?
            }
        };
        Ok(true)
    }

    /// Creates the row of a revision, or continues one whose bodies are not complete. Returns its
    /// id; `None` if all of its bodies are stored.
    fn begin_revision(&self, key: &RevisionKey, objects: &str) -> Result<Option<i64>, CloudError> {
        let sql = "SELECT id, complete, objects = ?4 FROM revisions
            WHERE rule = ?1 AND number = ?2 AND digest = ?3";
        let (rule, digest) = (key.rule.to_string(), key.digest.to_string());
        let found: Option<(i64, bool, bool)> = self
            .conn
            .prepare_cached(sql)?
            .query_row((&rule, key.number, &digest, objects), |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .optional()?;
        match found {
            Some((_, true, _)) => return Ok(None),
            Some((id, false, true)) => return Ok(Some(id)),
            Some((_, false, false)) => self.delete_revision(key)?,
            None => {}
        }
        self.conn
            .prepare_cached(
                "INSERT INTO revisions (rule, number, digest, objects, complete) VALUES (?1, ?2, ?3, ?4, 0)",
            )?
            .execute((rule, key.number, digest, objects))?;
        Ok(Some(self.conn.last_insert_rowid()))
    }

    /// Stores bodies of a revision that is not complete.
    fn add_bodies(&self, key: &RevisionKey, id: i64, batch: &[Content]) -> Result<(), CloudError> {
        if !self
            .conn
            .prepare_cached("SELECT 1 FROM revisions WHERE id = ?1 AND NOT complete")?
            .exists([id])?
        {
            return Err(interrupted(key));
        }
        for (uid, digest, body) in batch {
            let known: Option<(i64, bool)> = self
                .conn
                .prepare_cached("SELECT id, body = ?2 FROM revision_bodies WHERE digest = ?1")?
                .query_row((digest, body.as_str()), |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let body = match known {
                Some((body, true)) => body,
                Some((_, false)) => {
                    let problem = format!("another body has the digest {digest} of object '{uid}'");
                    return Err(key.error(problem).into());
                }
                None => {
                    self.conn
                        .prepare_cached("INSERT INTO revision_bodies (digest, body) VALUES (?1, ?2)")?
                        .execute((digest, body.as_str()))?;
                    self.conn.last_insert_rowid()
                }
            };
            self.conn
                .prepare_cached(
                    "INSERT INTO revision_objects (revision, uid, body) VALUES (?1, ?2, ?3)
                     ON CONFLICT DO UPDATE SET body = excluded.body",
                )?
                .execute((id, uid, body))?;
        }
        Ok(())
    }

    fn complete_revision(&self, key: &RevisionKey, id: i64, count: usize) -> Result<(), CloudError> {
        let stored: u64 = self
            .conn
            .prepare_cached("SELECT count(*) FROM revision_objects WHERE revision = ?1")?
            .query_row([id], |row| row.get(0))?;
        let completed =
            self.conn.prepare_cached("UPDATE revisions SET complete = 1 WHERE id = ?1")?.execute([id])?;
        if completed == 1 && stored == count as u64 { Ok(()) } else { Err(interrupted(key)) }
    }

    /// Deletes a revision, if it is stored, and the bodies that no other one has.
    fn delete_revision(&self, key: &RevisionKey) -> Result<(), CloudError> {
        let found: Option<i64> = self
            .conn
            .prepare_cached("SELECT id FROM revisions WHERE rule = ?1 AND number = ?2 AND digest = ?3")?
            .query_row((key.rule.to_string(), key.number, key.digest.to_string()), |row| row.get(0))
            .optional()?;
        found.map_or(Ok(()), |id| self.delete_row(id))
    }

    /// Deletes all revisions of a rule.
    fn delete_revisions(&self, rule: &RuleKey) -> Result<(), CloudError> {
        let ids: Vec<i64> = self
            .conn
            .prepare_cached("SELECT id FROM revisions WHERE rule = ?1")?
            .query_map([rule.to_string()], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        ids.into_iter().try_for_each(|id| self.delete_row(id))
    }

    /// Deletes the revision with this id, and the bodies that no other one has.
    fn delete_row(&self, id: i64) -> Result<(), CloudError> {
        let bodies: BTreeSet<i64> = self
            .conn
            .prepare_cached("SELECT body FROM revision_objects WHERE revision = ?1")?
            .query_map([id], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        self.conn.prepare_cached("DELETE FROM revision_objects WHERE revision = ?1")?.execute([id])?;
        self.conn.prepare_cached("DELETE FROM revisions WHERE id = ?1")?.execute([id])?;
        let mut delete = self.conn.prepare_cached(
            "DELETE FROM revision_bodies
             WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM revision_objects WHERE body = ?1)",
        )?;
        for body in bodies {
            delete.execute([body])?;
        }
        Ok(())
    }
}

/// Splits bodies into those of one transaction each.
fn batches(contents: Vec<Content>) -> Vec<Vec<Content>> {
    let mut batches: Vec<Vec<Content>> = Vec::new();
    let mut bytes = 0;
    for content in contents {
        let size = content.2.as_str().len();
        match batches.last_mut() {
            Some(last) if bytes + size <= BATCH_BYTES && last.len() < BATCH_BODIES => last.push(content),
            _ => {
                batches.push(vec![content]);
                bytes = 0;
            }
        }
        bytes += size;
    }
    batches
}

fn interrupted(key: &RevisionKey) -> CloudError {
    key.error("it was deleted while it was stored".to_owned()).into()
}

/// Returns the id and the set of a complete revision; `None` if it is missing or damaged.
fn find_revision(conn: &Connection, key: &RevisionKey) -> Result<Option<(i64, Set)>, CloudError> {
    let sql = "SELECT id, objects FROM revisions
        WHERE rule = ?1 AND number = ?2 AND digest = ?3 AND complete";
    let found: Option<(i64, String)> = conn
        .prepare_cached(sql)?
        .query_row((key.rule.to_string(), key.number, key.digest.to_string()), |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    let Some((id, text)) = found else { return Ok(None) };
    match serde_json::from_str::<Set>(&text) {
        Ok(set) if set.digest() == key.digest => Ok(Some((id, set))),
        Ok(_) => {
            tracing::error!(%key, "set of a revision is damaged: it has another digest");
            Ok(None)
        }
        Err(error) => {
            tracing::error!(%key, %error, "set of a revision is damaged");
            Ok(None)
        }
    }
}

fn revision_bodies(conn: &Connection, key: &RevisionKey, uids: Vec<Uid>) -> Result<Vec<Loaded>, CloudError> {
    let Some((id, set)) = find_revision(conn, key)? else { return Ok(Vec::new()) };
    let mut select = conn.prepare_cached(
        "SELECT b.body FROM revision_objects o JOIN revision_bodies b ON b.id = o.body
         WHERE o.revision = ?1 AND o.uid = ?2",
    )?;
    let mut bodies = Vec::with_capacity(uids.len().min(MAX_BODIES));
    for uid in uids.into_iter().take(MAX_BODIES) {
        let Some(entry) = set.entries().get(&uid) else { continue };
        let body: Option<String> = select.query_row((id, &uid), |row| row.get(0)).optional()?;
        let body = body.filter(|body| entry.is_body(body)).and_then(|body| Body::new(body).ok());
        let Some(body) = body else {
            tracing::error!(%key, object = &*uid, "body of a revision is missing or damaged");
            continue;
        };
        bodies.push(Loaded { version: entry.version.clone(), uid, body, patch: None });
    }
    Ok(bodies)
}

/// Returns the keys of all revisions, those that are not complete included.
fn revisions(conn: &Connection) -> Result<Vec<RevisionKey>, CloudError> {
    let mut select = conn.prepare_cached("SELECT rule, number, digest FROM revisions ORDER BY id")?;
    let rows = select.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, u64>(1)?, row.get::<_, String>(2)?))
    })?;
    let mut keys = Vec::new();
    for row in rows {
        let (rule, number, digest) = row?;
        let damaged = |what: &str| StoreError::corrupt(format!("revision {number} of rule '{rule}': {what}"));
        keys.push(RevisionKey {
            rule: rule.parse().map_err(damaged)?,
            number,
            digest: digest.parse().map_err(damaged)?,
        });
    }
    Ok(keys)
}

fn rollout_names(conn: &Connection) -> Result<Vec<String>, CloudError> {
    let mut select = conn.prepare_cached("SELECT rule FROM rollouts")?;
    let names = select.query_map([], |row| row.get(0))?;
    Ok(names.collect::<Result<_, _>>()?)
}

/// Verifies stored bodies after a row, at most `limit`. Returns the id of the last one, if any.
pub(super) fn check_bodies(conn: &Connection, after: i64, limit: i64) -> Result<Option<i64>, CloudError> {
    let mut statement = conn
        .prepare_cached("SELECT id, digest, body FROM revision_bodies WHERE id > ?1 ORDER BY id LIMIT ?2")?;
    let mut found = statement.query((after, limit))?;
    let mut last = None;
    while let Some(row) = found.next()? {
        let id: i64 = row.get(0)?;
        let text = |index| row.get_ref(index).and_then(|value| Ok(value.as_str()?));
        if Digest::of(text(2)?.as_bytes()).to_string() != text(1)? {
            return Err(StoreError::corrupt(format!(
                "body of a revision in row {id} differs from its digest"
            ))
            .into());
        }
        last = Some(id);
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_split_by_number_and_size() {
        let lengths = |sizes: &[usize]| -> Vec<usize> {
            let content = |size: &usize| {
                let body = Body::new(format!("\"{}\"", "x".repeat(size - 2))).unwrap();
                (Uid::from("u"), Arc::from("1"), body)
            };
            batches(sizes.iter().map(content).collect()).iter().map(Vec::len).collect()
        };
        assert_eq!(lengths(&[]), [0; 0]);
        assert_eq!(lengths(&[10; BATCH_BODIES * 2 + 1]), [BATCH_BODIES, BATCH_BODIES, 1]);
        let half = BATCH_BYTES / 2;
        assert_eq!(lengths(&[half, half, half, half, 10]), [2, 2, 1]);
        assert_eq!(lengths(&[BATCH_BYTES * 3, half + 1, half, 10]), [1, 1, 2]);
    }
}
