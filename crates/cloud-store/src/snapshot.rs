//! Lists: pages of one kind, all from the same commit.

use rusqlite::{Connection, Row, ToSql};

use super::read::{Cursor, MAX_PAGE_BYTES, version};
use super::{CloudError, KindName, objects};
use edgesync_object::Selector;
use edgesync_store::snapshots::{Snapshot, Snapshots};

/// Approximate cost of reading a row of the index, in bytes of objects.
const INDEX_ROW_BYTES: usize = 128;

/// One commit of the store, readable until drop.
#[derive(Debug)]
pub struct CloudSnapshot {
    snapshot: Snapshot,
    version: u64,
}

/// Selection and bounds of a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// The kind to read.
    pub of: KindName,
    /// Only this namespace; all namespaces if absent.
    pub namespace: Option<String>,
    /// Only objects of this name.
    pub name: Option<String>,
    /// Only objects with these labels; ignored if a name is given.
    pub labels: Selector,
    /// Limit of the objects kept. A read also ends after [`MAX_PAGE_BYTES`] of objects, kept or
    /// not.
    pub limit: usize,
    /// End of the previous page.
    pub after: Option<Cursor>,
}

/// An object of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
    pub version: u64,
    /// The object as JSON text.
    pub body: String,
}

impl CloudSnapshot {
    pub(super) async fn open(snapshots: &Snapshots) -> Result<Self, CloudError> {
        let (snapshot, version) = snapshots.open(version).await?;
        Ok(Self { snapshot, version })
    }

    /// Returns the version of the snapshot.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Reads objects ordered by namespace and name. Calls `keep` with each object on the reading
    /// thread, and collects the values that it returns. Also returns the cursor for the next page,
    /// if there are more rows.
    ///
    /// # Errors
    /// The store's.
    pub async fn scan<T: Send + 'static>(
        &self,
        scan: Scan,
        keep: impl FnMut(Listed) -> Option<T> + Send + 'static,
    ) -> Result<(Vec<T>, Option<Cursor>), CloudError> {
        self.snapshot.read(move |conn| read(conn, &scan, keep)).await
    }

    /// Returns the number of objects of a kind.
    ///
    /// # Errors
    /// The store's.
    pub async fn count(&self, of: KindName, namespace: Option<String>) -> Result<u64, CloudError> {
        self.snapshot
            .read(move |conn| {
                let Some(id) = objects::resource_id(conn, &of.group, &of.kind)? else { return Ok(0) };
                let sql = match namespace {
                    Some(_) => "SELECT count(*) FROM objects WHERE resource_id = ?1 AND namespace = ?2",
                    None => "SELECT count(*) FROM objects WHERE resource_id = ?1 AND ?2 IS NULL",
                };
                Ok(conn.prepare_cached(sql)?.query_row((id, &namespace), |row| row.get(0))?)
            })
            .await
    }
}

/// A page while it is read: its scan, and the objects kept so far.
struct Page<'a, T, K> {
    scan: &'a Scan,
    keep: K,
    kept: Vec<T>,
    bytes: usize,
    /// The last row, once it may be the last of the page.
    place: Option<Cursor>,
}

impl<T, K: FnMut(Listed) -> Option<T>> Page<'_, T, K> {
    fn is_full(&self) -> bool {
        self.kept.len() >= self.scan.limit || self.bytes >= MAX_PAGE_BYTES
    }

    /// Adds an object. Returns whether the page has room for more.
    fn take(&mut self, listed: Listed) -> bool {
        self.bytes += listed.body.len();
        // Only the last object of a page needs the cursor. It is set before the object moves away.
        let last = self.kept.len() + 1 >= self.scan.limit || self.bytes >= MAX_PAGE_BYTES;
        self.place = last.then(|| Cursor { namespace: listed.namespace.clone(), name: listed.name.clone() });
        self.kept.extend((self.keep)(listed));
        !self.is_full()
    }

    /// Returns the page, with its cursor if there are more rows.
    fn end(self, more: bool) -> (Vec<T>, Option<Cursor>) {
        (self.kept, self.place.filter(|_| more))
    }
}

fn read<T>(
    conn: &Connection,
    scan: &Scan,
    keep: impl FnMut(Listed) -> Option<T>,
) -> Result<(Vec<T>, Option<Cursor>), CloudError> {
    let page = Page { scan, keep, kept: Vec::new(), bytes: 0, place: None };
    let Some(id) = objects::resource_id(conn, &scan.of.group, &scan.of.kind)? else {
        return Ok(page.end(false));
    };
    let (namespace, name) = match (&scan.namespace, &scan.after) {
        (Some(namespace), after) => (namespace.as_str(), after.as_ref().map_or("", |after| &after.name)),
        (None, Some(after)) => (after.namespace.as_str(), after.name.as_str()),
        (None, None) => ("", ""),
    };
    let from: [&dyn ToSql; 4] = [&id, &namespace, &name, &scan.name];
    let from = if scan.name.is_some() { &from[..] } else { &from[..3] };
    if scan.name.is_none() && !scan.labels.is_empty() {
        return by_labels(conn, page, from);
    }
    let mut statement = conn.prepare_cached(sql(scan))?;
    let mut rows = statement.query(from)?;
    let mut page = page;
    while let Some(row) = rows.next()? {
        if !page.take(listed(row)?) {
            let more = rows.next()?.is_some();
            return Ok(page.end(more));
        }
    }
    Ok(page.end(false))
}

/// Returns the statement of a scan. Each walks the index from the end of the previous page.
fn sql(scan: &Scan) -> &'static str {
    match (&scan.name, &scan.namespace, scan.labels.is_empty()) {
        (Some(_), Some(_), _) => {
            "SELECT namespace, name, version, body FROM objects
             WHERE resource_id = ?1 AND namespace = ?2 AND name = ?4 AND name > ?3"
        }
        // Skips from one namespace to the next, without the names between them.
        (Some(_), None, _) => {
            "WITH RECURSIVE spaces (namespace) AS (
               SELECT min(namespace) FROM objects WHERE resource_id = ?1 AND namespace >= ?2
               UNION ALL
               SELECT (SELECT min(o.namespace) FROM objects o
                       WHERE o.resource_id = ?1 AND o.namespace > spaces.namespace)
               FROM spaces WHERE spaces.namespace IS NOT NULL)
             SELECT o.namespace, o.name, o.version, o.body FROM spaces CROSS JOIN objects o
             WHERE o.resource_id = ?1 AND o.namespace = spaces.namespace AND o.name = ?4
               AND (o.namespace, o.name) > (?2, ?3)"
        }
        (None, Some(_), true) => {
            "SELECT namespace, name, version, body FROM objects
             WHERE resource_id = ?1 AND namespace = ?2 AND name > ?3 ORDER BY name"
        }
        (None, None, true) => {
            "SELECT namespace, name, version, body FROM objects
             WHERE resource_id = ?1 AND (namespace, name) > (?2, ?3) ORDER BY namespace, name"
        }
        (None, Some(_), false) => {
            "SELECT namespace, name, labels, id FROM objects
             WHERE resource_id = ?1 AND namespace = ?2 AND name > ?3 ORDER BY name"
        }
        (None, None, false) => {
            "SELECT namespace, name, labels, id FROM objects
             WHERE resource_id = ?1 AND (namespace, name) > (?2, ?3) ORDER BY namespace, name"
        }
    }
}

/// Reads a page of objects selected by labels. Of other objects it reads only the index.
fn by_labels<T>(
    conn: &Connection,
    mut page: Page<'_, T, impl FnMut(Listed) -> Option<T>>,
    from: &[&dyn ToSql],
) -> Result<(Vec<T>, Option<Cursor>), CloudError> {
    let mut statement = conn.prepare_cached(sql(page.scan))?;
    let mut object = conn.prepare_cached("SELECT version, body FROM objects WHERE id = ?1")?;
    let mut rows = statement.query(from)?;
    while let Some(row) = rows.next()? {
        let labels = row.get_ref(2)?.as_str_or_null().map_err(rusqlite::Error::from)?.unwrap_or("{}");
        let selected = page.scan.labels.matches_labels(labels);
        page.bytes += labels.len() + INDEX_ROW_BYTES;
        if !selected && !page.is_full() {
            continue;
        }
        let (namespace, name) = (row.get(0)?, row.get(1)?);
        let room = if selected {
            let (version, body) =
                object.query_row([row.get::<_, i64>(3)?], |row| Ok((row.get(0)?, row.get(1)?)))?;
            page.take(Listed { namespace, name, version, body })
        } else {
            page.place = Some(Cursor { namespace, name });
            false
        };
        if !room {
            let more = rows.next()?.is_some();
            return Ok(page.end(more));
        }
    }
    Ok(page.end(false))
}

fn listed(row: &Row<'_>) -> rusqlite::Result<Listed> {
    Ok(Listed { namespace: row.get(0)?, name: row.get(1)?, version: row.get(2)?, body: row.get(3)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_store::migrate::CLOUD;

    /// Returns SQLite's query plan of the scan.
    fn plan(scan: &Scan) -> String {
        let conn = Connection::open_in_memory().unwrap();
        for migration in CLOUD {
            conn.execute_batch(migration.sql).unwrap();
        }
        let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {}", sql(scan))).unwrap();
        let unbound: Vec<Option<i64>> = vec![None; statement.parameter_count()];
        let rows = statement.query_map(rusqlite::params_from_iter(unbound), |row| row.get::<_, String>(3));
        rows.unwrap().map(Result::unwrap).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_scan_walks_the_index_by_name_and_sorts_nothing() {
        let (name, space) = (Some("a".to_owned()), Some("n".to_owned()));
        for (name, namespace, labels, wanted) in [
            (&None, &None, "", "INDEX objects_by_name (resource_id=? AND (namespace,name)>(?,?))"),
            (&None, &space, "", "INDEX objects_by_name (resource_id=? AND namespace=? AND name>?)"),
            (&name, &None, "", "INDEX objects_by_name (resource_id=? AND namespace=? AND name=?)"),
            (&name, &space, "x", "INDEX objects_by_name (resource_id=? AND namespace=? AND name=?)"),
            (&None, &None, "x", "COVERING INDEX objects_by_name (resource_id=? AND (namespace,name)>(?,?))"),
            (
                &None,
                &space,
                "!x",
                "COVERING INDEX objects_by_name (resource_id=? AND namespace=? AND name>?)",
            ),
        ] {
            let (name, namespace) = (name.clone(), namespace.clone());
            let scan = Scan { name, namespace, labels: labels.parse().unwrap(), limit: 1, ..Scan::default() };
            let plan = plan(&scan);
            assert!(plan.contains(wanted), "{scan:?}\n{plan}");
            assert!(!plan.contains("TEMP B-TREE") && !plan.contains("SCAN objects"), "{scan:?}\n{plan}");
        }
    }
}
