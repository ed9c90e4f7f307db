//! Lists: rows of one commit, sorted by name or in the order of the table, across all pages.

use std::ops::ControlFlow;
use std::sync::Arc;

use rusqlite::{Connection, Statement};

use super::commit_listener::Versions;
use super::local::{self, LocalRow};
use super::rows::{OBJECT_COLUMNS, Resources, uid_key};
use super::seals::Seals;
use super::types::{LocalKind, LocalObject};
use super::{EdgeStore, Entry, InventoryCursor, ListCursor, Stored, check, journal, outbox, read};
use edgesync_object::Resource;
use edgesync_protocol::change::Uid;
use edgesync_store::StoreError;
use edgesync_store::snapshots::Snapshot;

/// Selection, order and start of a read.
#[derive(Clone, Debug)]
pub enum Scan {
    /// Synced objects of a kind, sorted by namespace and name.
    Objects {
        resource: Arc<Resource>,
        /// Namespace to scan; `None` for all.
        namespace: Option<String>,
        /// Only objects of this name.
        name: Option<String>,
        /// Start after this object.
        after: Option<ListCursor>,
    },
    /// All synced objects without their bodies, in the order of their rows.
    Records {
        /// Cluster-scoped objects, or namespaced ones.
        cluster: bool,
        /// Namespace to scan; `None` for all.
        namespace: Option<String>,
        /// Only the object of this UID.
        uid: Option<Uid>,
        /// Start after this row.
        after: Option<InventoryCursor>,
    },
    /// Local objects, sorted by namespace and name.
    Local {
        kind: LocalKind,
        /// Namespace to scan; `None` for all.
        namespace: Option<String>,
        /// Only objects of this name.
        name: Option<String>,
        /// Start after this object.
        after: Option<ListCursor>,
    },
}

/// A row of a scan.
#[derive(Clone, Debug)]
pub enum ScanRow {
    /// Of [`Scan::Objects`], with the content of the pending status in the outbox, if there is one.
    Object(Stored, Option<String>),
    /// Of [`Scan::Records`], without the body.
    Record(RecordRow),
    /// Of [`Scan::Local`], with the body.
    Local(LocalObject),
}

/// A synced object without its body.
#[derive(Clone, Debug)]
pub struct RecordRow {
    /// Its position in the scan.
    pub cursor: InventoryCursor,
    /// This store's version of it.
    pub own_version: u64,
    /// Its identity, and the held version.
    pub entry: Entry,
}

/// An open snapshot. Dropping it releases it.
#[derive(Debug)]
pub struct EdgeSnapshot {
    snapshot: Snapshot,
    store: EdgeStore,
    versions: Versions,
}

impl EdgeStore {
    /// Opens a snapshot; `None` if [`super::MAX_SNAPSHOTS`] are open.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub async fn snapshot(&self) -> Result<Option<EdgeSnapshot>, StoreError> {
        let store = self.clone();
        let opened = self.inner.shared.snapshots.open(move |conn| {
            let (totals, _) = journal::totals(conn, &store.recent())?;
            let objects = journal::base(conn)?.saturating_add(totals.revision);
            let versions = Versions { objects, local: local::version(conn)? };
            // The writer may not have published this commit yet. A watch from here must not count
            // as one from a version of another store.
            store.inner.shared.raise_versions(versions);
            Ok::<_, StoreError>(versions)
        });
        match opened.await {
            Ok((snapshot, versions)) => Ok(Some(EdgeSnapshot { snapshot, store: self.clone(), versions })),
            Err(StoreError::TooManySnapshots { .. }) => Ok(None),
            Err(error) => {
                self.suspect(&error);
                Err(error)
            }
        }
    }

    /// Makes the writer verify damage that a read has found.
    fn suspect(&self, error: &StoreError) {
        if matches!(error, StoreError::Corrupt(_)) {
            tracing::warn!(%error, "damage found by a read");
            drop(self.inner.writer.post(check::confirm_damage));
        }
    }
}

impl EdgeSnapshot {
    /// Returns the versions that it shows: no object in it is newer, and the store's own versions
    /// are not older.
    #[must_use]
    pub fn versions(&self) -> Versions {
        self.versions
    }

    /// Passes rows to `visit` until it breaks or the rows end. Returns its state. Damaged rows are
    /// omitted, and removed.
    ///
    /// # Errors
    /// [`StoreError::Replaced`] if the file was replaced since the snapshot was opened,
    /// [`StoreError::GivenUp`] if the snapshot was closed because it prevented a restart of the
    /// log; otherwise the store's.
    pub async fn scan<S: Send + 'static>(
        &self,
        scan: Scan,
        mut state: S,
        visit: fn(&mut S, ScanRow) -> ControlFlow<()>,
    ) -> Result<S, StoreError> {
        let local = matches!(scan, Scan::Local { .. });
        let settled = self.store.inner.shared.outbox.settled_status();
        let seals = self.store.inner.seals.clone();
        let (state, damaged) = self
            .read(move |conn| {
                let damaged = run(conn, &scan, &seals, settled, &mut |row| visit(&mut state, row))?;
                Ok((state, damaged))
            })
            .await?;
        if local {
            self.store.report_local_damage(damaged);
        } else {
            self.store.report_damage(damaged);
        }
        Ok(state)
    }

    /// Returns how many rows a full scan would visit, damaged ones included.
    ///
    /// # Errors
    /// As for [`EdgeSnapshot::scan`].
    pub async fn count(&self, scan: Scan) -> Result<u64, StoreError> {
        self.read(move |conn| count(conn, &scan)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.snapshot.read(read).await.inspect_err(|error| self.store.suspect(error))
    }
}

fn from(namespace: Option<&String>, after: Option<&ListCursor>) -> (String, String) {
    let (in_namespace, name) = after.map(|after| (&after.namespace, &after.name)).unzip();
    (namespace.or(in_namespace).cloned().unwrap_or_default(), name.cloned().unwrap_or_default())
}

/// Runs a scan. Returns the ids of damaged rows. `settled` is the last confirmed number of the
/// status lane, if a status is pending.
fn run(
    conn: &Connection,
    scan: &Scan,
    seals: &Seals,
    settled: Option<u64>,
    visit: &mut dyn FnMut(ScanRow) -> ControlFlow<()>,
) -> Result<Vec<i64>, StoreError> {
    let resources = Resources::load(conn)?;
    let base = journal::base(conn)?;
    match scan {
        Scan::Objects { resource, namespace, name, after } => {
            let Some(kind) = resources.find(resource) else { return Ok(Vec::new()) };
            let mut statement =
                conn.prepare_cached(&by_name("objects", namespace.is_some(), name.is_some()))?;
            let (from_namespace, from_name) = from(namespace.as_ref(), after.as_ref());
            let mut rows = statement.query((kind.id, from_namespace, from_name, name))?;
            let mut damaged = Vec::new();
            while let Some(row) = rows.next()? {
                match read::stored(row, &resources, seals, base)? {
                    Ok(stored) => {
                        let waiting = match settled {
                            Some(settled) => outbox::waiting_status(conn, seals, &stored.uid, settled)?,
                            None => None,
                        };
                        if visit(ScanRow::Object(stored, waiting)).is_break() {
                            break;
                        }
                    }
                    Err(id) => damaged.push(id),
                }
            }
            Ok(damaged)
        }
        Scan::Records { cluster, namespace, uid, after } => {
            let in_scope = |of: &str| {
                of.is_empty() == *cluster && namespace.as_ref().is_none_or(|namespace| namespace == of)
            };
            records(conn, &resources, base, uid.as_ref(), *after, &in_scope, visit)?;
            Ok(Vec::new())
        }
        Scan::Local { kind, namespace, name, after } => {
            let sql = by_name("local_objects", namespace.is_some(), name.is_some());
            let mut statement = conn.prepare_cached(&sql)?;
            let (from_namespace, from_name) = from(namespace.as_ref(), after.as_ref());
            let mut rows = statement.query((kind.code(), from_namespace, from_name, name))?;
            let mut damaged = Vec::new();
            while let Some(row) = rows.next()? {
                match LocalRow::read(row)? {
                    Ok(row) if visit(ScanRow::Local(row.object())).is_break() => break,
                    Ok(_) => {}
                    Err(id) => damaged.push(id),
                }
            }
            Ok(damaged)
        }
    }
}

/// Returns the statement for rows of one kind (?1) after a position (?2, ?3): of all namespaces or
/// of that one, of all names or of one (?4).
fn by_name(table: &str, one_namespace: bool, one_name: bool) -> String {
    let (columns, kind) = match table {
        "objects" => (OBJECT_COLUMNS, "resource_id"),
        _ => (local::COLUMNS, "kind"),
    };
    let name = if one_name { "name = ?4" } else { "?4 IS NULL" };
    match (one_namespace, one_name) {
        (true, _) => format!(
            "SELECT {columns} FROM {table}
             WHERE {kind} = ?1 AND namespace = ?2 AND name > ?3 AND {name} ORDER BY name"
        ),
        (false, false) => format!(
            "SELECT {columns} FROM {table}
             WHERE {kind} = ?1 AND (namespace, name) > (?2, ?3) AND {name} ORDER BY namespace, name"
        ),
        // From one namespace to the next, skipping the names between them.
        (false, true) => format!(
            "WITH RECURSIVE spaces (space) AS (
               SELECT min(namespace) FROM {table} WHERE {kind} = ?1 AND namespace >= ?2
               UNION ALL
               SELECT (SELECT min(namespace) FROM {table} WHERE {kind} = ?1 AND namespace > space)
               FROM spaces WHERE space IS NOT NULL)
             SELECT {columns} FROM spaces CROSS JOIN {table}
             WHERE {kind} = ?1 AND namespace = space AND {name} AND (namespace, name) > (?2, ?3)"
        ),
    }
}

fn records(
    conn: &Connection,
    resources: &Resources,
    base: u64,
    uid: Option<&Uid>,
    after: Option<InventoryCursor>,
    in_scope: &dyn Fn(&str) -> bool,
    visit: &mut dyn FnMut(ScanRow) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    let mut statement: Statement<'_> = conn.prepare(match uid {
        None => {
            "SELECT id, uid, resource_id, namespace, name, version, revision FROM objects
             WHERE id > ?1 AND ?2 IS NULL AND ?3 IS NULL ORDER BY id"
        }
        Some(_) => {
            "SELECT id, uid, resource_id, namespace, name, version, revision FROM objects
             WHERE id > ?1 AND uid_key = ?2 AND uid = ?3"
        }
    })?;
    let after = after.map_or(i64::MIN, |InventoryCursor(id)| id);
    let mut rows = statement.query((after, uid.map(|uid| uid_key(uid)), uid))?;
    while let Some(row) = rows.next()? {
        let namespace = read::text(row, 3)?;
        if !in_scope(namespace) {
            continue;
        }
        let revision = read::unsigned(row.get(6)?);
        let entry = Entry {
            revision,
            uid: read::text(row, 1)?.into(),
            version: Some(read::text(row, 5)?.into()),
            object: read::object_ref(resources, row.get(2)?, namespace, read::text(row, 4)?)?,
        };
        let cursor = InventoryCursor(row.get(0)?);
        let row = RecordRow { cursor, own_version: base.saturating_add(revision), entry };
        if visit(ScanRow::Record(row)).is_break() {
            break;
        }
    }
    Ok(())
}

fn count(conn: &Connection, scan: &Scan) -> Result<u64, StoreError> {
    let number = |sql: &str, params: &dyn Fn(&mut Statement<'_>) -> rusqlite::Result<i64>| {
        let mut statement = conn.prepare(sql)?;
        Ok::<u64, StoreError>(read::unsigned(params(&mut statement)?))
    };
    let one = |row: &rusqlite::Row<'_>| row.get(0);
    match scan {
        Scan::Objects { resource, namespace, .. } => {
            let Some(id) = Resources::load(conn)?.find(resource).map(|kind| kind.id) else { return Ok(0) };
            let sql =
                "SELECT count(*) FROM objects WHERE resource_id = ?1 AND (?2 IS NULL OR namespace = ?2)";
            number(sql, &|statement| statement.query_row((id, namespace), one))
        }
        Scan::Records { cluster, namespace, .. } => {
            let sql =
                "SELECT count(*) FROM objects WHERE (namespace = '') = ?1 AND (?2 IS NULL OR namespace = ?2)";
            number(sql, &|statement| statement.query_row((cluster, namespace), one))
        }
        Scan::Local { kind, namespace, .. } => {
            let sql = "SELECT count(*) FROM local_objects WHERE kind = ?1 AND (?2 IS NULL OR namespace = ?2)";
            number(sql, &|statement| statement.query_row((kind.code(), namespace), one))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_store::migrate::EDGE;

    #[test]
    fn every_list_uses_the_name_index_without_sorting() {
        let conn = Connection::open_in_memory().unwrap();
        for migration in EDGE {
            conn.execute_batch(migration.sql).unwrap();
        }
        for table in ["objects", "local_objects"] {
            for (namespace, name, wanted) in [
                (false, false, "=? AND (namespace,name)>(?,?))"),
                (true, false, "=? AND namespace=? AND name>?)"),
                (false, true, "=? AND namespace=? AND name=?)"),
                (true, true, "=? AND namespace=? AND name=?)"),
            ] {
                let sql = format!("EXPLAIN QUERY PLAN {}", by_name(table, namespace, name));
                let mut statement = conn.prepare(&sql).unwrap();
                let unbound: Vec<Option<i64>> = vec![None; statement.parameter_count()];
                let rows = statement.query_map(rusqlite::params_from_iter(unbound), |row| row.get(3));
                let plan: Vec<String> = rows.unwrap().map(Result::unwrap).collect();
                let plan = plan.join("\n");
                assert!(plan.contains(wanted) && !plan.contains("TEMP B-TREE"), "{sql}\n{plan}");
            }
        }
    }
}
