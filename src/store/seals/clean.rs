//! Removes plain text that an earlier configuration with fewer sealed kinds has left in a file: in
//! free pages, in the gaps of pages, in the log, and in damaged files that were set aside.
//!
//! The rows are copied into a fresh file, which replaces the old one. That needs no memory except a
//! page cache and, unlike an in-place vacuum, no temporary file elsewhere. Table `meta` records the
//! kinds for which it was done; after a power cut before that, the next opening repeats it.

use std::fs::{self, File};
use std::path::Path;

use rusqlite::Connection;

use super::Seals;
use crate::store::{files, journal};
use edgesync_store::StoreError;
use edgesync_store::durable::{self, with_suffix};
use edgesync_store::engine::{self, Checkpoint, wal_path};

/// Key in table `meta` of the kinds without plain text in the file.
const SEALED_KEY: &str = "sealed";

/// Returns the recorded kinds without plain text in the file.
pub(in crate::store) fn recorded_kinds(conn: &Connection) -> Result<Option<String>, StoreError> {
    journal::meta(conn, SEALED_KEY)
}

/// Records that the file has no plain text of these kinds.
pub(in crate::store) fn record_kinds(conn: &Connection, kinds: &str) -> Result<(), StoreError> {
    journal::set_meta(conn, SEALED_KEY, kinds)
}

/// Returns the value to record for a store with these options: each kind, and its status, which is
/// sealed too; Secrets have none.
pub(super) fn required(seals: &Seals) -> Option<String> {
    let kinds = &seals.0.as_ref()?.options.kinds;
    let with_status = kinds
        .iter()
        .filter(|kind| *kind != "secrets")
        .flat_map(|kind| [kind.clone(), format!("{kind}/status")]);
    let mut words: Vec<String> = with_status.chain(["secrets".to_owned()]).collect();
    words.sort_unstable();
    words.dedup();
    Some(words.join(" "))
}

/// Returns whether plain text may remain: a kind was not sealed before.
fn is_due(recorded_kinds: Option<&str>, required: &str) -> bool {
    let recorded_kinds: Vec<&str> = recorded_kinds.unwrap_or_default().split(' ').collect();
    required.split(' ').any(|kind| !recorded_kinds.contains(&kind))
}

/// Returns whether a file may contain plain text although all rows are sealed as required. `is_new`
/// means that it never held anything.
pub(in crate::store) fn needs_cleaning(
    conn: &Connection,
    seals: &Seals,
    is_new: bool,
) -> Result<bool, StoreError> {
    let Some(required) = required(seals) else { return Ok(false) };
    let found = recorded_kinds(conn)?;
    if found.as_deref() == Some(&required) {
        return Ok(false);
    }
    if !is_new && is_due(found.as_deref(), &required) {
        return Ok(true);
    }
    record_kinds(conn, &required)?;
    Ok(false)
}

/// Removes plain text from a file. Its journal must be up to date, because the log is removed.
/// Returns the connection, or one to the file that has replaced it.
pub(in crate::store) fn clean(
    conn: Connection,
    path: &Path,
    seals: &Seals,
    open: impl FnOnce() -> Result<Connection, StoreError>,
) -> Result<Connection, StoreError> {
    if let Err(error) = copy(&conn, path) {
        // Not fatal; the next opening retries it.
        tracing::warn!(%error, "plain text of sealed objects may remain in free pages of the database");
        files::remove(&files::fresh_path(path))?;
        return Ok(conn);
    }
    files::remove_all_aside(path);
    files::close_detached(conn);
    replace_database(path)?;
    let conn = open()?;
    if let Some(required) = required(seals) {
        record_kinds(&conn, &required)?;
    }
    tracing::info!("database rewritten without plain text of sealed objects");
    Ok(conn)
}

/// Copies the rows into a fresh file, durably, and empties the log.
fn copy(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let fresh = files::fresh_path(path);
    files::remove(&fresh)?;
    let target = fresh.to_str().ok_or_else(|| StoreError::internal("path of the database is not UTF-8"))?;
    conn.execute("VACUUM INTO ?1", [target])?;
    let file = File::open(&fresh)?;
    file.set_permissions(fs::metadata(path)?.permissions())?;
    file.sync_all()?;
    // Everything must be in the database before the log is removed, in case of a power cut between.
    let state = engine::checkpoint(conn, Checkpoint::Truncate)?;
    if state.pages > 0 {
        return Err(StoreError::internal("write-ahead log in use"));
    }
    Ok(())
}

/// Moves the fresh file to the database's path. The log is empty, so both files are complete
/// without it.
fn replace_database(path: &Path) -> Result<(), StoreError> {
    for gone in [wal_path(path), with_suffix(path, "-shm")] {
        durable::remove(&gone)?;
    }
    Ok(durable::rename(&files::fresh_path(path), path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_cleaned_when_a_new_kind_is_sealed() {
        assert!(is_due(None, "secrets"));
        assert!(is_due(Some("secrets"), "secrets widgets.example.com"));
        assert!(!is_due(Some("secrets widgets.example.com"), "secrets"));
        assert!(!is_due(Some("secrets"), "secrets"));
        assert!(is_due(Some(""), "secrets"));
    }
}
