//! Online check of the whole database, in pieces with a read each, so that no snapshot stays open
//! for the whole check. Pieces see writes made since the start.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rusqlite::Connection;
use tokio::time::Instant;

use super::history::PARTITIONS;
use super::rollouts::check_bodies;
use super::{CloudError, CloudStore};
use edgesync_object::Head;
use edgesync_store::StoreError;

/// Maximum number of rows of one piece, between two pauses.
const PIECE_ROWS: i64 = 512;
/// The same of bodies of revisions, which are read completely.
const PIECE_BODIES: i64 = 32;
/// Minimum pause between two pieces; otherwise as long as the last piece took.
const PAUSE: Duration = Duration::from_millis(1);

/// Numbers of rows checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    pub objects: u64,
    /// Changes of the history checked.
    pub changes: u64,
}

/// Position of a check.
#[derive(Clone, Debug)]
enum Place {
    /// Before a table that is small enough for one piece.
    Table(usize),
    /// After a row of `objects`.
    Rows(i64),
    /// After an entry of the index by name.
    Names(i64, String, String),
    /// After a change of the history, in the partition of this index.
    Changes(usize, i64),
    /// After a body of a revision.
    Bodies(i64),
    End,
}

/// Tables that stay small.
const TABLES: [&str; 11] = [
    "meta",
    "openings",
    "partitions",
    "resources",
    "nodes",
    "node_outboxes",
    "effects",
    "documents",
    "rollouts",
    "revisions",
    "revision_objects",
];

impl CloudStore {
    /// Reads everything once: verifies that rows are as written, and that the indexes find them.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for damage, which [`CloudStore::damage`] returns from then on; or
    /// the store's.
    pub async fn look_through(&self) -> Result<CheckReport, CloudError> {
        let mut report = CheckReport::default();
        let mut place = Place::Table(0);
        loop {
            let began = Instant::now();
            let from = place.clone();
            let read = self.readers.run(move |conn| piece(conn, &from, report)).await;
            (place, report) = read.inspect_err(|error| {
                if let CloudError::Store(error) = error {
                    self.shared.damage.note(error);
                }
            })?;
            if matches!(place, Place::End) {
                return Ok(report);
            }
            tokio::time::sleep(began.elapsed().max(PAUSE)).await;
        }
    }

    /// Returns a description of the first damage found since startup.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.shared.damage.0.get().map(String::as_str)
    }
}

/// Reads everything that a database has, in the snapshot of one transaction.
///
/// # Errors
/// [`StoreError::Corrupt`] for damage.
pub(super) fn read_all(conn: &Connection) -> Result<CheckReport, CloudError> {
    let (mut place, mut report) = (Place::Table(0), CheckReport::default());
    while !matches!(place, Place::End) {
        (place, report) = piece(conn, &place, report)?;
    }
    Ok(report)
}

/// Description of the first damage found.
#[derive(Clone, Debug, Default)]
pub(super) struct Damage(Arc<OnceLock<String>>);

impl Damage {
    pub(super) fn note(&self, error: &StoreError) {
        let StoreError::Corrupt(what) = error else { return };
        tracing::error!(%what, "database damaged; hint: restore a backup with 'edgesync-cloud restore FILE'");
        // Only the first damage is kept.
        let _ = self.0.set(what.to_string());
    }
}

/// Checks one piece of a database. Returns the start of the next one.
fn piece(conn: &Connection, from: &Place, report: CheckReport) -> Result<(Place, CheckReport), CloudError> {
    let CheckReport { mut objects, mut changes } = report;
    let next = match from {
        Place::Table(number) => match TABLES.get(*number) {
            Some(table) => {
                quick_check(conn, table)?;
                Place::Table(number + 1)
            }
            None => Place::Rows(i64::MIN),
        },
        Place::Rows(after) => match rows(conn, *after, &mut objects)? {
            Some(last) => Place::Rows(last),
            None => Place::Names(i64::MIN, String::new(), String::new()),
        },
        Place::Names(kind, namespace, name) => names(conn, *kind, namespace, name)?,
        Place::Changes(partition, after) => {
            let Some(table) = PARTITIONS.get(*partition).map(|partition| partition.table()) else {
                return Ok((Place::Bodies(i64::MIN), report));
            };
            // Reading a text decodes it completely.
            let mut statement = conn.prepare_cached(&format!(
                "SELECT version, type, object, previous FROM {table} WHERE version > ?1 ORDER BY version LIMIT ?2"
            ))?;
            let mut found = statement.query((after, PIECE_ROWS))?;
            let mut last = None;
            while let Some(row) = found.next()? {
                row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?;
                row.get_ref(3)?.as_str_or_null().map_err(rusqlite::Error::from)?;
                last = Some(row.get(0)?);
                changes += 1;
            }
            last.map_or(Place::Changes(partition + 1, i64::MIN), |last| Place::Changes(*partition, last))
        }
        Place::Bodies(after) => match check_bodies(conn, *after, PIECE_BODIES)? {
            Some(last) => Place::Bodies(last),
            None => Place::End,
        },
        Place::End => Place::End,
    };
    Ok((next, CheckReport { objects, changes }))
}

fn quick_check(conn: &Connection, table: &str) -> Result<(), StoreError> {
    let found: String = conn.query_row(&format!("PRAGMA quick_check('{table}')"), [], |row| row.get(0))?;
    if found == "ok" { Ok(()) } else { Err(StoreError::corrupt(format!("table {table}: {found}"))) }
}

/// Checks rows: the text must agree with the columns, and the indexes must lead to the row. Returns
/// the id of the last row, if any.
fn rows(conn: &Connection, after: i64, count: &mut u64) -> Result<Option<i64>, CloudError> {
    let mut statement = conn.prepare_cached(
        "SELECT id, namespace, name, uid, version, body,
                (SELECT n.id FROM objects n INDEXED BY objects_by_name
                 WHERE n.resource_id = o.resource_id AND n.namespace = o.namespace AND n.name = o.name),
                CASE WHEN sync_node IS NULL
                  THEN (SELECT u.id FROM objects u INDEXED BY objects_by_uid
                        WHERE u.uid = o.uid AND u.sync_node IS NULL)
                  ELSE (SELECT s.id FROM objects s INDEXED BY objects_by_sync
                        WHERE s.sync_node = o.sync_node AND s.sync_uid = o.sync_uid AND s.sync_node IS NOT NULL) END
         FROM objects o NOT INDEXED WHERE id > ?1 ORDER BY id LIMIT ?2",
    )?;
    let mut found = statement.query((after, PIECE_ROWS))?;
    let mut last = None;
    while let Some(row) = found.next()? {
        let id: i64 = row.get(0)?;
        let text = |index| row.get_ref(index).and_then(|value| Ok(value.as_str()?));
        let same = serde_json::from_str::<Head<'_>>(text(5)?).is_ok_and(|head| {
            let version = row.get::<_, u64>(4).map(|version| version.to_string());
            let written = (&*head.metadata.namespace, &*head.metadata.name, &*head.metadata.uid);
            (text(1).as_deref(), text(2).as_deref(), text(3).as_deref())
                == (Ok(written.0), Ok(written.1), Ok(written.2))
                && version.as_deref() == Ok(&*head.metadata.resource_version)
        });
        let indexed = [row.get::<_, Option<i64>>(6)?, row.get(7)?] == [Some(id); 2];
        if !same || !indexed || last.is_some_and(|last| last >= id) {
            let (namespace, name) = (text(1)?, text(2)?);
            let what = if same { "differs from its index entries" } else { "differs from its columns" };
            let problem = format!("object '{namespace}/{name}' in row {id} {what}");
            return Err(StoreError::corrupt(problem).into());
        }
        last = Some(id);
        *count += 1;
    }
    Ok(last)
}

/// Reads entries of the index by name together with their rows: SQLite reports entries without a
/// row.
fn names(conn: &Connection, kind: i64, namespace: &str, name: &str) -> Result<Place, CloudError> {
    let mut statement = conn.prepare_cached(
        "SELECT resource_id, namespace, name, version FROM objects INDEXED BY objects_by_name
         WHERE (resource_id, namespace, name) > (?1, ?2, ?3) ORDER BY resource_id, namespace, name LIMIT ?4",
    )?;
    let mut found = statement.query((kind, namespace, name, PIECE_ROWS))?;
    let mut last = Place::Changes(0, i64::MIN);
    while let Some(row) = found.next()? {
        row.get::<_, u64>(3)?;
        last = Place::Names(row.get(0)?, row.get(1)?, row.get(2)?);
    }
    Ok(last)
}
