//! Getting rid of plain text that a configuration with other kinds to seal has left in a file: in free
//! pages, in the gaps of pages, in the log, and in damaged files that were set aside.
//!
//! The rows are copied into a fresh file, which takes the place of the old one. That needs no memory but a page cache
//! and, unlike a file that is vacuumed in place, no temporary file elsewhere. Table `meta` tells for which kinds it has
//! been done; a power cut before that makes the next opening do it again.

use std::fs::{self, File};
use std::path::Path;

use rusqlite::Connection;

use super::Seals;
use crate::store::{files, journal};
use edgesync_store::StoreError;
use edgesync_store::durable::{self, with_suffix};
use edgesync_store::engine::{self, Checkpoint, wal_path};

/// The key in table `meta` of the kinds of which no plain text is in the file.
const SEALED_KEY: &str = "sealed";

/// The kinds of which no plain text is in the file, if that has been noted.
pub(in crate::store) fn noted(conn: &Connection) -> Result<Option<String>, StoreError> {
    journal::meta(conn, SEALED_KEY)
}

/// Notes that no plain text of these kinds is in the file.
pub(in crate::store) fn note(conn: &Connection, kinds: &str) -> Result<(), StoreError> {
    journal::set_meta(conn, SEALED_KEY, kinds)
}

/// What is to be noted for a store with these options: each kind, and that its status is sealed too, which Secrets have
/// none of.
fn wanted(seals: &Seals) -> Option<String> {
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

/// Whether plain text may be left: some kind was not sealed before.
fn is_due(noted: Option<&str>, wanted: &str) -> bool {
    let noted: Vec<&str> = noted.unwrap_or_default().split(' ').collect();
    wanted.split(' ').any(|kind| !noted.contains(&kind))
}

/// Whether a file, of which all rows are sealed that are to be, may have plain text left. `is_new` says that it never
/// held anything.
pub(in crate::store) fn needs_cleaning(
    conn: &Connection,
    seals: &Seals,
    is_new: bool,
) -> Result<bool, StoreError> {
    let Some(wanted) = wanted(seals) else { return Ok(false) };
    let found = noted(conn)?;
    if found.as_deref() == Some(&wanted) {
        return Ok(false);
    }
    if !is_new && is_due(found.as_deref(), &wanted) {
        return Ok(true);
    }
    note(conn, &wanted)?;
    Ok(false)
}

/// Makes such a file free of plain text. Its journal must be up to date, because the log goes. Gives the connection
/// back, or one to the file that has taken its place.
pub(in crate::store) fn clean(
    conn: Connection,
    path: &Path,
    seals: &Seals,
    open: impl FnOnce() -> Result<Connection, StoreError>,
) -> Result<Connection, StoreError> {
    if let Err(error) = copy(&conn, path) {
        // Everything works without; the next opening tries again.
        tracing::warn!(%error, "plain text of objects that are sealed now may be left in free pages of the database");
        files::remove(&files::fresh_path(path))?;
        return Ok(conn);
    }
    files::remove_all_aside(path);
    files::let_go(conn);
    take_place(path)?;
    let conn = open()?;
    if let Some(wanted) = wanted(seals) {
        note(&conn, &wanted)?;
    }
    tracing::info!("the database has been written anew, without plain text of objects that are sealed");
    Ok(conn)
}

/// Copies the rows into a fresh file, durably, and empties the log.
fn copy(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let fresh = files::fresh_path(path);
    files::remove(&fresh)?;
    let target =
        fresh.to_str().ok_or_else(|| StoreError::internal("the path of the database is not UTF-8"))?;
    conn.execute("VACUUM INTO ?1", [target])?;
    let file = File::open(&fresh)?;
    file.set_permissions(fs::metadata(path)?.permissions())?;
    file.sync_all()?;
    // Before the log goes everything is in the database, in case of a power cut between.
    let state = engine::checkpoint(conn, Checkpoint::Truncate)?;
    if state.pages > 0 {
        return Err(StoreError::internal("the write-ahead log is in use"));
    }
    Ok(())
}

/// Puts the fresh file in its place. The log is empty, so either file does without it.
fn take_place(path: &Path) -> Result<(), StoreError> {
    for gone in [wal_path(path), with_suffix(path, "-shm")] {
        durable::remove(&gone)?;
    }
    Ok(durable::rename(&files::fresh_path(path), path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_cleaned_when_a_kind_is_new_among_the_sealed_ones() {
        assert!(is_due(None, "secrets"));
        assert!(is_due(Some("secrets"), "secrets widgets.example.com"));
        assert!(!is_due(Some("secrets widgets.example.com"), "secrets"));
        assert!(!is_due(Some("secrets"), "secrets"));
        assert!(is_due(Some(""), "secrets"));
    }
}
