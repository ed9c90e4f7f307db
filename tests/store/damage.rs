//! Damage: whatever happens to the file, the store rebuilds from what is readable, under a new
//! epoch.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::store::support;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use edgesync::store::{EdgeStore, Facts, Reset};
use edgesync_protocol::change::Change;
use edgesync_store::StoreError;
use edgesync_testkit::timing::{PATIENCE, within};
use support::*;

const OBJECTS: u64 = 400;
const PAGE: u64 = 4096;

/// A closed database of 400 objects, 350 of them confirmed.
async fn closed(path: &Path) -> Facts {
    let store = open(path);
    store.apply(batch(0..OBJECTS, 5)).await.unwrap();
    store.set_incarnation(Some("cloud-1".into())).await.unwrap();
    store.confirm(350);
    let facts = store.facts();
    store.close().await;
    facts
}

fn set_aside(dir: &Path) -> Vec<PathBuf> {
    let is_aside = |path: &PathBuf| {
        path.to_string_lossy().contains(".corrupt-") && !path.to_string_lossy().ends_with("-wal")
    };
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(is_aside).collect()
}

/// Waits for the reset of this number.
async fn reset(store: &EdgeStore, number: u64) -> Reset {
    let mut health = store.health();
    let seen = health.wait_for(|health| health.reset.as_ref().is_some_and(|reset| reset.number >= number));
    within("a reset is announced", PATIENCE, seen).await.unwrap().reset.clone().unwrap()
}

/// Asserts that the store is consistent after a reset and accepts writes.
async fn assert_goes_on(store: &EdgeStore, before: &Facts, kept: std::ops::RangeInclusive<u64>) -> Reset {
    let reset = reset(store, 1).await;
    let facts = store.facts();
    assert_ne!(facts.totals.epoch, before.totals.epoch);
    assert_eq!(reset.epoch, facts.totals.epoch);
    assert!(kept.contains(&facts.totals.count), "{reset:?}");
    assert_eq!(facts.confirmed, facts.totals.revision, "nothing of the old epoch is reported");
    assert_consistent(store).await;
    // The cloud resends everything: existing objects are kept, the others stored.
    store.apply(batch(0..OBJECTS, 5)).await.unwrap();
    assert_eq!(assert_consistent(store).await.len() as u64, OBJECTS);
    let last = store.apply(vec![put(3, 6)]).await.unwrap();
    assert_eq!(store.changes(last.before, 10).await.unwrap().entries.len(), 1);
    reset
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

fn flip(path: &Path, offset: u64, bit: u8) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ (1 << bit)], offset).unwrap();
}

/// Returns the offset of a text in a file.
fn find(path: &Path, text: &str) -> u64 {
    let bytes = fs::read(path).unwrap();
    let at = bytes.windows(text.len()).position(|window| window == text.as_bytes());
    at.unwrap_or_else(|| panic!("'{text}' is not in the file")) as u64
}

/// Returns the start of an object's body, which locates its row in the file.
fn body_of(number: u64) -> String {
    let Change::Put(put) = put(number, 5) else { unreachable!() };
    put.body.get()[..100].to_owned()
}

#[tokio::test]
async fn files_that_are_no_database_are_set_aside() {
    for content in [b"this is not a database, it is a text".repeat(300), vec![0; 20_000], vec![0xff; 4096]] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.db");
        fs::write(&path, &content).unwrap();
        let store = open(&path);
        let reset = assert_goes_on(&store, &Facts::default(), 0..=0).await;
        assert_eq!(fs::read(reset.set_aside.unwrap()).unwrap(), content);
    }
}

#[tokio::test]
async fn truncated_file_keeps_its_readable_objects() {
    for share in [9, 6, 3] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.db");
        let before = closed(&path).await;
        let length = fs::metadata(&path).unwrap().len();
        File::options().write(true).open(&path).unwrap().set_len(length * share / 10 / PAGE * PAGE).unwrap();
        let store = open(&path);
        // SQLite notices this at once or only when the check reads the missing pages.
        let _ = store.check().await;
        let reset = assert_goes_on(&store, &before, 1..=OBJECTS - 1).await;
        assert_eq!(reset.kept + reset.lost, OBJECTS);
        assert_eq!(store.facts().incarnation, before.incarnation);
        assert!(store.facts().totals.revision > before.totals.revision);
    }
}

#[tokio::test]
async fn zeroed_pages_lose_only_their_own_objects() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let before = closed(&path).await;
    // A leaf page of the objects table: about eight objects.
    let page = find(&path, &body_of(200)) / PAGE;
    overwrite(&path, page * PAGE, &[0; PAGE as usize]);
    let store = open(&path);
    let _ = store.check().await;
    assert_goes_on(&store, &before, OBJECTS - 16..=OBJECTS - 1).await;
    assert_eq!(set_aside(dir.path()).len(), 1);
}

#[tokio::test]
async fn damaged_index_and_kind_pages_lose_no_objects() {
    // Root pages, in the order in which the migration creates them: kinds, index by UID, index by
    // name.
    for page in [2, 5, 6] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.db");
        let before = closed(&path).await;
        overwrite(&path, page * PAGE, &[0; PAGE as usize]);
        let store = open(&path);
        let _ = store.check().await;
        assert_goes_on(&store, &before, OBJECTS..=OBJECTS).await;
    }
}

/// The start of the agent reads the kinds before the first check has ended: with a damaged page it
/// ended with an error.
#[tokio::test]
async fn kinds_are_read_after_the_repair_of_their_pages() {
    for page in [2, 5, 6] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.db");
        closed(&path).await;
        overwrite(&path, page * PAGE, &[0xff; PAGE as usize]);
        let kinds = open(&path).kinds().await.unwrap();
        assert_eq!(kinds.iter().map(|(_, count)| count).sum::<u64>(), OBJECTS, "page {page}: {kinds:?}");
    }
}

#[tokio::test]
async fn flipped_bit_in_an_object_loses_only_that_object() {
    for (what, offset) in [("the body", 150), ("the checksum or its neighbour", -2), ("the uid", 40)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.db");
        let before = closed(&path).await;
        let body = find(&path, &body_of(200));
        flip(&path, body.checked_add_signed(offset).unwrap(), 3);
        let store = open(&path);
        let report = store.check().await.unwrap();
        let reset = reset(&store, 1).await;
        assert_eq!((store.facts().totals.count, reset.lost), (OBJECTS - 1, 1), "{what}: {report:?}");
        assert!(store.by_uid(uid(200)).await.unwrap().is_none(), "{what}");
        assert_goes_on(&store, &before, OBJECTS - 1..=OBJECTS - 1).await;
        assert!(store.check().await.is_ok_and(|report| !report.renewed && report.rows == OBJECTS), "{what}");
    }
}

#[tokio::test]
async fn reads_refuse_damaged_objects_and_remove_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    closed(&path).await;
    flip(&path, find(&path, &body_of(200)) + 220, 0);
    let store = open(&path);
    // A damaged row is an error, not a missing object.
    let found = store.sound_by_uid(uid(200)).await;
    assert!(matches!(found, Err(StoreError::Corrupt(_))), "{found:?}");
    let mut items = Vec::new();
    let mut cursor = None;
    loop {
        let page = store.list(config_maps(), None, cursor, 50).await.unwrap();
        items.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(items.len() as u64, OBJECTS - 1);
    reset(&store, 1).await;
    assert_eq!(assert_consistent(&store).await.len() as u64, OBJECTS - 1);
}

#[tokio::test]
async fn flipped_bits_never_stop_the_store_or_change_an_object() {
    let dir = tempfile::tempdir().unwrap();
    let pristine = dir.path().join("pristine.db");
    closed(&pristine).await;
    let length = fs::metadata(&pristine).unwrap().len();
    let mut worst = 0;
    for round in 0..60u64 {
        let path = dir.path().join(format!("{round}.db"));
        fs::copy(&pristine, &path).unwrap();
        // The first rounds flip bits of the header, where each byte counts.
        let offset = if round < 20 { round * 5 } else { round.wrapping_mul(0x9e37_79b9_7f4a_7c15) % length };
        flip(&path, offset, (round % 8) as u8);
        let store = open(&path);
        let _ = store.check().await;
        let count = assert_consistent(&store).await.len() as u64;
        worst = worst.max(OBJECTS - count);
        // Some flips hit unused space; every returned object equals the stored one.
        for number in 0..OBJECTS {
            if let Some(stored) = store.by_uid(uid(number)).await.unwrap() {
                let Change::Put(sent) = put(number, 5) else { unreachable!() };
                assert_eq!(stored.body, sent.body.get(), "offset {offset}");
            }
        }
        store.apply(batch(0..OBJECTS, 5)).await.ok();
        store.apply(batch(0..OBJECTS, 5)).await.unwrap();
        assert_eq!(assert_consistent(&store).await.len() as u64, OBJECTS, "offset {offset}");
        store.close().await;
    }
    // A flip may hit one leaf or inner page, but never the only root.
    assert!(worst <= 16, "a flip has cost {worst} objects");
}

#[tokio::test]
async fn totals_that_mismatch_the_rows_start_a_new_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let before = closed(&path).await;
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch("DELETE FROM objects WHERE name = 'settings-000200'").unwrap();
    drop(conn);
    let store = open(&path);
    let report = store.check().await;
    assert!(report.is_ok());
    let reset = assert_goes_on(&store, &before, OBJECTS - 1..=OBJECTS - 1).await;
    assert_eq!((reset.kept, reset.lost, reset.set_aside), (OBJECTS - 1, 0, None));
}

#[tokio::test]
async fn totals_sealed_for_another_epoch_are_never_reported() {
    for damage in [
        "UPDATE meta SET value = '00000000000000000000000000000001' WHERE key = 'epoch'",
        "UPDATE journal SET totals = zeroblob(32) WHERE totals IS NOT NULL",
        "UPDATE journal SET revision = revision + 1 WHERE totals IS NOT NULL",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.db");
        let before = closed(&path).await;
        let conn = rusqlite::Connection::open(&path).unwrap();
        conn.execute_batch(damage).unwrap();
        drop(conn);
        // At once: a Hello would name them before a check has read all rows.
        let store = open(&path);
        assert!(store.health().borrow().reset.is_some(), "{damage}");
        let reset = assert_goes_on(&store, &before, OBJECTS..=OBJECTS).await;
        assert_eq!((reset.kept, reset.lost), (OBJECTS, 0), "{damage}");
        store.close().await;
    }
}

#[tokio::test]
async fn deleted_database_or_log_is_noticed_and_rewritten() {
    for suffix in ["", "-wal"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.db");
        let store = open(&path);
        store.apply(batch(0..OBJECTS, 5)).await.unwrap();
        let before = store.facts();
        fs::remove_file(dir.path().join(format!("edge.db{suffix}"))).unwrap();
        // The store checks its files at most once a second, with a commit.
        let noticed = async {
            for number in 0.. {
                let gone = store.facts().totals.epoch != before.totals.epoch;
                if gone {
                    break;
                }
                store.apply(vec![put(3, 6 + number)]).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        within("the missing file is noticed", PATIENCE, noticed).await;
        let reset = reset(&store, 1).await;
        assert_eq!((reset.kept, reset.lost), (OBJECTS, 0), "{reset:?}");
        assert_consistent(&store).await;
        let after = store.facts();
        assert!(after.totals.revision > before.totals.revision);
        store.close().await;
        // The file at the original path was rewritten.
        let store = open(&path);
        assert_eq!(store.facts(), after);
        assert_eq!(assert_consistent(&store).await.len() as u64, OBJECTS);
    }
}

#[tokio::test]
async fn damage_at_runtime_replaces_the_file_and_readers_follow() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let before = closed(&path).await;
    let store = open(&path);
    store.check().await.unwrap();
    // The writer has read all objects, so its cache holds their undamaged pages.
    store.apply(batch(0..OBJECTS, 5)).await.unwrap();
    let page = find(&path, &body_of(300)) / PAGE;
    overwrite(&path, page * PAGE, &[0x55; PAGE as usize]);
    let result = store.check().await;
    assert!(matches!(result, Err(StoreError::Corrupt(_))), "{result:?}");
    assert_goes_on(&store, &before, OBJECTS - 16..=OBJECTS).await;
    assert!(store.by_uid(uid(0)).await.unwrap().is_some());
}

#[tokio::test]
async fn damaged_files_are_kept_up_to_two() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    for round in 0..4 {
        fs::write(&path, format!("garbage of round {round}, long enough to be looked at")).unwrap();
        open(&path).close().await;
    }
    assert_eq!(set_aside(dir.path()).len(), 2);
}

#[tokio::test]
async fn slow_check_does_not_let_the_log_grow_without_bound() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    store.apply(batch(0..1000, 1)).await.unwrap();
    store.close().await;
    let mut options = quiet();
    options.check_pause = Duration::from_secs(3600);
    options.engine.wal_bytes = 128 << 10;
    let store = EdgeStore::open(&path, options).unwrap();
    let wal = async || store.stats().await.unwrap().wal_bytes;
    let mut version = 2;
    while wal().await <= 256 << 10 {
        store.apply(batch(0..100, version)).await.unwrap();
        version += 1;
    }
    // The log now forces the check to hurry: once the check ends, the log restarts and is
    // truncated.
    while wal().await > 256 << 10 {
        assert!(version < 3000, "the log has {} bytes", wal().await);
        store.apply(batch(0..2, version)).await.unwrap();
        version += 1;
    }
}
