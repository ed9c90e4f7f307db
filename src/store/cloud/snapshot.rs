//! Lists: pages of one kind, all from the same commit.

use rusqlite::{Connection, Row};

use super::read::{Cursor, MAX_PAGE_BYTES, version};
use super::{CloudError, KindName, objects};
use crate::store::snapshots::{Snapshot, Snapshots};

/// One commit of the store, readable until this is dropped.
#[derive(Debug)]
pub struct CloudSnapshot {
    snapshot: Snapshot,
    version: u64,
}

/// Which objects are to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// The kind.
    pub of: KindName,
    /// Only this namespace; all if absent.
    pub namespace: Option<String>,
    /// At most so many objects are kept. Reading ends after [`MAX_PAGE_BYTES`] of objects, kept or not.
    pub limit: usize,
    /// Where the reading before ended.
    pub after: Option<Cursor>,
}

/// An object of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Its version.
    pub version: u64,
    /// The object as JSON text.
    pub body: String,
}

impl CloudSnapshot {
    pub(super) async fn open(snapshots: &Snapshots) -> Result<Self, CloudError> {
        let (snapshot, version) = snapshots.open(version).await?;
        Ok(Self { snapshot, version })
    }

    /// The version that it shows.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Reads objects in the order of namespace and name. `keep` is called with each of them on the reading thread
    /// and makes of it what is returned, or nothing. Also tells where to go on, if there are more rows.
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

    /// How many objects of a kind there are.
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

fn read<T>(
    conn: &Connection,
    scan: &Scan,
    mut keep: impl FnMut(Listed) -> Option<T>,
) -> Result<(Vec<T>, Option<Cursor>), CloudError> {
    let mut kept = Vec::new();
    let Some(id) = objects::resource_id(conn, &scan.of.group, &scan.of.kind)? else {
        return Ok((kept, None));
    };
    let (namespace, name) = match (&scan.namespace, &scan.after) {
        (Some(namespace), after) => (namespace.as_str(), after.as_ref().map_or("", |after| &after.name)),
        (None, Some(after)) => (after.namespace.as_str(), after.name.as_str()),
        (None, None) => ("", ""),
    };
    // Two statements, so that each walks the index from where the page before ended.
    let sql = match scan.namespace {
        Some(_) => {
            "SELECT namespace, name, version, body FROM objects
             WHERE resource_id = ?1 AND namespace = ?2 AND name > ?3 ORDER BY name"
        }
        None => {
            "SELECT namespace, name, version, body FROM objects
             WHERE resource_id = ?1 AND (namespace, name) > (?2, ?3) ORDER BY namespace, name"
        }
    };
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query((id, namespace, name))?;
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let listed = listed(row)?;
        bytes += listed.body.len();
        let full = |kept: &Vec<T>| kept.len() >= scan.limit || bytes >= MAX_PAGE_BYTES;
        // The place is only needed if this is the last one: remembered before the object is given away.
        let place = (kept.len() + 1 >= scan.limit || bytes >= MAX_PAGE_BYTES)
            .then(|| Cursor { namespace: listed.namespace.clone(), name: listed.name.clone() });
        kept.extend(keep(listed));
        if full(&kept) {
            let more = rows.next()?.is_some();
            return Ok((kept, place.filter(|_| more)));
        }
    }
    Ok((kept, None))
}

fn listed(row: &Row<'_>) -> rusqlite::Result<Listed> {
    Ok(Listed { namespace: row.get(0)?, name: row.get(1)?, version: row.get(2)?, body: row.get(3)? })
}
