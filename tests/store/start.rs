//! Starts after a kill: the changes that only their rows record are found, whatever became of the
//! write-ahead log, and without reading all rows.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::store::support;
use std::path::{Path, PathBuf};
use std::time::Duration;

use edgesync::store::{Changes, EdgeOptions, EdgeStore, inspect};
use edgesync_protocol::apply::Totals;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use support::vfs::register;
use support::*;

/// A directory for the database, and one for its copy under the same name.
struct Directories(tempfile::TempDir);

impl Directories {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("copy")).unwrap();
        Self(dir)
    }

    fn database(&self) -> PathBuf {
        self.0.path().join("edge.db")
    }

    fn copy(&self) -> PathBuf {
        self.0.path().join("copy/edge.db")
    }
}

/// Returns the content that a report needs.
async fn content(store: &EdgeStore) -> (Totals, Changes) {
    let facts = store.facts();
    (facts.totals, store.changes(facts.confirmed, 10_000).await.unwrap())
}

/// Writes objects, and changes recorded in their rows only.
async fn fill(store: &EdgeStore) {
    store.apply(batch(0..200, 1)).await.unwrap();
    store.confirm(150);
    store.apply(vec![put(300, 1), delete(7)]).await.unwrap();
    for number in 20..40 {
        store.apply(vec![put(number, 2), put(number + 100, 2)]).await.unwrap();
    }
}

/// Returns the number of rows that are newer than the journal. The files are copied first, because
/// closing them copies and removes the log.
fn unwritten(path: &Path) -> i64 {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("look.db");
    copy_database(path, &copy);
    let sql = "SELECT count(*) FROM objects WHERE revision > (SELECT max(revision) FROM journal)";
    Connection::open(&copy).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Opens a copy and compares it with the content of the database that it was made of.
async fn assert_copy_equals(copy: &Path, expected: &(Totals, Changes)) {
    let store = open(copy);
    assert_eq!(content(&store).await, *expected);
    assert_eq!(store.health().borrow().reset, None);
    assert_consistent(&store).await;
    assert!(!store.check().await.unwrap().renewed);
    store.apply(vec![put(1, 9)]).await.unwrap();
    let before = content(&store).await;
    store.close().await;
    let store = open(copy);
    assert_eq!(content(&store).await, before, "in order");
    store.close().await;
}

#[tokio::test]
async fn look_with_sqlite3_after_a_kill_loses_nothing() {
    let dirs = Directories::new();
    let store = open(&dirs.database());
    fill(&store).await;
    copy_database(&dirs.database(), &dirs.copy());
    assert!(unwritten(&dirs.copy()) > 10);
    let expected = content(&store).await;
    store.close().await;
    let look = Connection::open(dirs.copy()).unwrap();
    let rows: i64 = look.query_row("SELECT count(*) FROM objects", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 200);
    look.close().unwrap();
    assert!(!dirs.0.path().join("copy/edge.db-wal").exists(), "the last to close removes the log");
    assert_copy_equals(&dirs.copy(), &expected).await;
}

#[tokio::test]
async fn write_by_another_program_after_a_kill_loses_nothing() {
    let dirs = Directories::new();
    let store = open(&dirs.database());
    fill(&store).await;
    copy_database(&dirs.database(), &dirs.copy());
    let expected = content(&store).await;
    store.close().await;
    // Another log: it has the write of that program and nothing else.
    let other = Connection::open(dirs.copy()).unwrap();
    other.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    other.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
    other.execute("INSERT INTO meta VALUES ('seen', 'yes')", []).unwrap();
    other.close().unwrap();
    assert_copy_equals(&dirs.copy(), &expected).await;
}

#[tokio::test]
async fn checkpoint_by_another_program_loses_nothing_in_a_kill() {
    let dirs = Directories::new();
    let store = open(&dirs.database());
    fill(&store).await;
    let other = Connection::open(dirs.database()).unwrap();
    for round in 0..3 {
        other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        for number in 0..=round {
            store.apply(vec![put(50 + number, 3 + round)]).await.unwrap();
            // A reader of the last copy may still have that file open.
            let next = Directories::new();
            copy_database(&dirs.database(), &next.copy());
            assert_copy_equals(&next.copy(), &content(&store).await).await;
        }
    }
    drop(other);
    store.close().await;
}

#[tokio::test]
async fn backup_of_a_running_store_opens_with_its_totals() {
    let dirs = Directories::new();
    let store = open(&dirs.database());
    fill(&store).await;
    assert!(inspect::backup(&dirs.database(), &dirs.copy()).unwrap().is_sound());
    assert_copy_equals(&dirs.copy(), &content(&store).await).await;
    store.close().await;
}

#[tokio::test]
async fn start_after_a_kill_reads_rows_of_the_log_only() {
    let dirs = Directories::new();
    let mut options = quiet();
    // Small, so that most rows are in the database and not in the log.
    options.engine.wal_bytes = 256 << 10;
    let store = EdgeStore::open(&dirs.database(), options).unwrap();
    for first in (0..6000).step_by(500) {
        store.apply(batch(first..first + 500, 1)).await.unwrap();
    }
    let mut found = 0;
    for step in 0..150 {
        store.apply(vec![put(step * 37, 2)]).await.unwrap();
        if step % 50 == 30 {
            // A checkpoint may follow the answer.
            store.settle().await;
            // A reader of the last copy may still have that file open.
            let next = Directories::new();
            copy_database(&dirs.database(), &next.copy());
            found += unwritten(&next.copy());
            let expected = content(&store).await;
            let pages = usize::try_from(std::fs::metadata(next.copy()).unwrap().len() / 4096).unwrap();
            let name = format!("start-{step}");
            let disk = register(&name);
            let mut options = EdgeOptions { check_pause: Duration::from_secs(3600), ..quiet() };
            options.engine.vfs = Some(name);
            let killed = EdgeStore::open(&next.copy(), options).unwrap();
            // The check has read its first batch of rows at most.
            let reads = disk.reads("edge.db");
            assert!(reads < pages / 3, "{reads} reads of {pages} pages");
            assert_eq!(content(&killed).await, expected);
            killed.close().await;
        }
    }
    assert!(found > 0, "some changes are only in their rows");
    store.close().await;
}

#[tokio::test]
async fn journal_is_up_to_date_after_each_checkpoint() {
    let dirs = Directories::new();
    let mut options = quiet();
    options.engine.wal_bytes = 64 << 10;
    let store = EdgeStore::open(&dirs.database(), options).unwrap();
    store.apply(batch(0..200, 1)).await.unwrap();
    let other = Connection::open(dirs.database()).unwrap();
    let newest = || {
        let sql = "SELECT max(revision) FROM journal";
        other.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap().unsigned_abs()
    };
    store.settle().await;
    let mut checkpoints = store.stats().await.unwrap().writer.checkpoints;
    let (mut followed, mut in_place) = (0, 0);
    for step in 0..300 {
        store.apply(vec![put(step % 200, 2 + step)]).await.unwrap();
        // The checkpoint follows the answer.
        store.settle().await;
        let (done, revision) =
            (store.stats().await.unwrap().writer.checkpoints, store.facts().totals.revision);
        if std::mem::replace(&mut checkpoints, done) < done {
            assert_eq!(newest(), revision, "after checkpoint {done}");
            followed += 1;
        }
        in_place += u32::from(newest() < revision);
    }
    assert!(followed > 5, "{followed} checkpoints");
    assert!(in_place > 150, "{in_place} of 300 changes are only in their rows");
    drop(other);
    store.close().await;
}
