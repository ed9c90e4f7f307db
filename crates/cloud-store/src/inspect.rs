//! Inspection, backup and restore of a cloud database. Inspection and backup also work while the
//! cloud side runs.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rusqlite::Connection;

use super::CloudError;
use super::check::{CheckReport, read_all};
use super::open::KIND;
use edgesync_store::StoreError;
use edgesync_store::durable::with_suffix;
use edgesync_store::engine::{self, open_as_it_is};
use edgesync_store::mark;
use edgesync_store::migrate::newest;

/// Reads everything in one snapshot, and verifies the rows and the structure of the file.
///
/// # Errors
/// [`StoreError::Corrupt`] for damage; the database of another program or of a newer version; the
/// system's.
pub fn inspect(path: &Path) -> Result<CheckReport, CloudError> {
    let conn = open(path)?;
    let tx = conn.unchecked_transaction().map_err(StoreError::from)?;
    let report = read_all(&tx)?;
    let verdict: String =
        tx.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(StoreError::from)?;
    if verdict == "ok" { Ok(report) } else { Err(StoreError::corrupt(verdict).into()) }
}

/// Copies one snapshot of the database into a new file, readable by its owner only; flushes and
/// inspects the copy.
///
/// # Errors
/// See [`inspect`]; an existing file is not touched. A failed copy is removed.
pub fn backup(path: &Path, to: &Path) -> Result<CheckReport, CloudError> {
    let source = open(path)?;
    engine::copy(&source, to, inspect)
}

/// Replaces the database by a copy, which is inspected first and stays. The previous database is
/// set aside; returns its new path, if there was one.
///
/// # Errors
/// See [`inspect`]; [`StoreError::InUse`] while the cloud side runs.
pub fn restore(from: &Path, path: &Path) -> Result<(CheckReport, Option<PathBuf>), CloudError> {
    let report = inspect(from)?;
    // Keeps other processes from opening the database meanwhile.
    let _lock = engine::lock(path)?;
    let fresh = with_suffix(path, ".restoring");
    engine::remove(&fresh)?;
    backup(from, &fresh)?;
    let aside = with_suffix(path, &Timestamp::now().strftime(".replaced-%Y%m%dT%H%M%S.%6fZ").to_string());
    let existed = engine::replace(&fresh, path, &aside)?;
    Ok((report, existed.then_some(aside)))
}

/// Returns the names of all Secrets, which callers redact.
///
/// # Errors
/// See [`inspect`].
pub fn secret_names(path: &Path) -> Result<Vec<String>, CloudError> {
    let names = || -> Result<Vec<String>, StoreError> {
        let conn = open(path)?;
        let mut select = conn.prepare(
            "SELECT DISTINCT objects.name FROM objects JOIN resources ON resources.id = resource_id WHERE kind = 'Secret'",
        )?;
        let names = select.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        Ok(names)
    };
    Ok(names()?)
}

/// Opens a cloud database of this schema version.
fn open(path: &Path) -> Result<Connection, StoreError> {
    let conn = open_as_it_is(path)?;
    let found: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if found != KIND.application_id {
        return Err(mark::mismatch(path, KIND.application_id, found));
    }
    let found = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let known = newest(KIND.migrations);
    match found {
        0 => Err(StoreError::corrupt("the schema was never created")),
        found if found > known => Err(StoreError::Newer { path: path.to_owned(), found, known }),
        _ => Ok(conn),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use std::fs;

    use super::*;
    use crate::{CloudOptions, CloudStore};
    use edgesync_object::{Object, kinds};

    async fn with_objects(path: &Path, names: &[&str]) {
        let store = CloudStore::open(path, &CloudOptions::default()).unwrap();
        let kind = std::sync::Arc::new(kinds::by_word("cm").unwrap().resource());
        for name in names {
            let object: Object = serde_json::from_value(json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "lab", "name": name}}))
            .unwrap();
            store.create(&kind, object).await.unwrap();
        }
        store.close().await;
    }

    #[tokio::test]
    async fn a_copy_is_made_while_it_is_used_and_put_back_when_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("cloud.db"), dir.path().join("copy.db"));
        with_objects(&path, &["a", "b"]).await;
        let before = inspect(&path).unwrap();
        let running = CloudStore::open(&path, &CloudOptions::default()).unwrap();
        assert_eq!(backup(&path, &copy).unwrap().objects, before.objects);
        assert!(backup(&path, &copy).is_err(), "a file that exists is not touched");
        assert!(matches!(restore(&copy, &path), Err(CloudError::Store(StoreError::InUse { .. }))));
        running.close().await;

        with_objects(&path, &["c"]).await;
        let (report, aside) = restore(&copy, &path).unwrap();
        assert_eq!(report.objects, before.objects);
        assert_eq!(inspect(&aside.unwrap()).unwrap().objects, before.objects + 1);
        assert_eq!(inspect(&path).unwrap().objects, before.objects);
        // The cloud side opens the restored database.
        with_objects(&path, &["d"]).await;

        // A damaged copy replaces nothing.
        let bytes = fs::read(&copy).unwrap();
        fs::write(&copy, &bytes[..bytes.len() / 2]).unwrap();
        assert!(restore(&copy, &path).is_err() && inspect(&copy).is_err());
        assert_eq!(inspect(&path).unwrap().objects, before.objects + 1);
    }

    /// Undoes the last migration, so that the file is as the version before has left it.
    #[tokio::test]
    async fn a_copy_without_a_table_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("cloud.db"), dir.path().join("copy.db"));
        with_objects(&path, &["a"]).await;
        backup(&path, &copy).unwrap();
        Connection::open(&copy).unwrap().execute_batch("DROP TABLE documents").unwrap();
        assert!(inspect(&copy).is_err());
        assert!(restore(&copy, &path).is_err());
    }
}
