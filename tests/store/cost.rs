//! Compares the store with a bare SQLite loop over the same rows, batches and durability. Ignored
//! by default: `cargo test -p edgesync-tests --test parts store::cost -- --ignored --nocapture
//! --test-threads 1`.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::store::support;
use std::path::Path;
use std::time::Instant;

use edgesync::store::EdgeStore;
use edgesync_protocol::change::{Change, Put};
use support::*;

const OBJECTS: u64 = 20_000;
const BATCH: u64 = 256;
const BODY_BYTES: usize = 1024;
const UPDATES: u64 = 5_000;

/// Returns the bytes that this process has caused to be written to disk.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap();
    line.parse().unwrap()
}

/// Maps steps to all objects in scattered order.
fn scattered(step: u64) -> u64 {
    step.wrapping_mul(7919) % OBJECTS
}

fn bare_loop(path: &Path, batches: &[Vec<Put>]) -> f64 {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.execute_batch(
        "PRAGMA journal_mode = wal; PRAGMA synchronous = full;
         CREATE TABLE t (id INTEGER PRIMARY KEY, uid TEXT UNIQUE, version TEXT, name TEXT, body TEXT) STRICT",
    )
    .unwrap();
    let start = Instant::now();
    for batch in batches {
        let tx = conn.unchecked_transaction().unwrap();
        let mut insert =
            tx.prepare_cached("INSERT INTO t (uid, version, name, body) VALUES (?1, ?2, ?3, ?4)").unwrap();
        for put in batch {
            insert.execute((&*put.uid, put.version.as_str(), &*put.name, put.body.get())).unwrap();
        }
        drop(insert);
        tx.commit().unwrap();
    }
    start.elapsed().as_secs_f64()
}

fn bare_updates(path: &Path) -> f64 {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.execute_batch("PRAGMA synchronous = full").unwrap();
    let body = put_sized(1, 2, BODY_BYTES);
    let start = Instant::now();
    for step in 0..UPDATES {
        let id = i64::try_from(scattered(step) + 1).unwrap();
        conn.prepare_cached("UPDATE t SET version = '2', body = ?2 WHERE id = ?1")
            .unwrap()
            .execute((id, body.body.get()))
            .unwrap();
    }
    start.elapsed().as_secs_f64()
}

fn batches() -> Vec<Vec<Put>> {
    let numbers: Vec<u64> = (0..OBJECTS).collect();
    let batch = |numbers: &[u64]| numbers.iter().map(|&n| put_sized(n, 1, BODY_BYTES)).collect();
    numbers.chunks(BATCH as usize).map(batch).collect()
}

#[tokio::test]
#[ignore = "a measurement"]
async fn store_ingest_and_updates_beside_a_bare_sqlite_loop() {
    let dir = tempfile::tempdir_in(edgesync_testkit::programs::scratch()).unwrap();
    let before = written();
    let bare = bare_loop(&dir.path().join("bare.db"), &batches());
    let bare_bytes = written() - before;
    let before = written();
    let bare_single = bare_updates(&dir.path().join("bare.db"));
    let bare_single_bytes = written() - before;

    let store = EdgeStore::open(&dir.path().join("edge.db"), quiet()).unwrap();
    let batches = batches();
    let before = written();
    let start = Instant::now();
    for batch in batches {
        let commit = store.apply(batch.into_iter().map(Change::Put).collect()).await.unwrap();
        store.confirm(commit.totals.revision);
    }
    let bulk = start.elapsed().as_secs_f64();
    let bulk_bytes = written() - before;
    let stats = store.stats().await.unwrap();
    let before = written();
    let start = Instant::now();
    for step in 0..UPDATES {
        let change = Change::Put(put_sized(scattered(step), step + 2, BODY_BYTES));
        let commit = store.apply(vec![change]).await.unwrap();
        store.confirm(commit.totals.revision);
    }
    let single = start.elapsed().as_secs_f64();
    let single_bytes = written() - before;
    let crashed = dir.path().join("crashed.db");
    for suffix in ["", "-wal"] {
        let file = |name: &Path| format!("{}{suffix}", name.display());
        std::fs::copy(file(&dir.path().join("edge.db")), file(&crashed)).unwrap();
    }
    let start = Instant::now();
    let after_crash = open(&crashed);
    let open_crashed = start.elapsed();
    after_crash.close().await;
    store.close().await;
    let start = Instant::now();
    open(&dir.path().join("edge.db")).close().await;
    println!("open:   {open_crashed:?} after a crash, {:?} and closed again in order", start.elapsed());
    let per = |bytes: u64, objects: u64| bytes as f64 / 1024.0 / objects as f64;
    println!(
        "bulk:   {:.0} objects/s, {:.0} % of the bare loop ({:.0}/s)",
        OBJECTS as f64 / bulk,
        100.0 * bare / bulk,
        OBJECTS as f64 / bare
    );
    println!(
        "        {:.2} KiB written per object (bare {:.2}); {stats:?}",
        per(bulk_bytes, OBJECTS),
        per(bare_bytes, OBJECTS)
    );
    println!(
        "single: {:.0} updates/s, {:.0} % of the bare loop ({:.0}/s)",
        UPDATES as f64 / single,
        100.0 * bare_single / single,
        UPDATES as f64 / bare_single
    );
    println!(
        "        {:.2} KiB written per update (bare {:.2})",
        per(single_bytes, UPDATES),
        per(bare_single_bytes, UPDATES)
    );
}
