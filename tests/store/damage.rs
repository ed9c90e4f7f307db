//! Damage: whatever happens to the file, the store goes on with what can be saved, under a new epoch.

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
use support::*;

const OBJECTS: u64 = 400;
const PAGE: u64 = 4096;

/// A closed database of 400 objects, of which 350 are confirmed.
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

/// Waits for the loss of this number.
async fn reset(store: &EdgeStore, number: u64) -> Reset {
    let mut health = store.health();
    let seen = health.wait_for(|health| health.reset.as_ref().is_some_and(|reset| reset.number >= number));
    let seen = tokio::time::timeout(Duration::from_secs(30), seen).await.expect("no reset is announced");
    seen.unwrap().reset.clone().unwrap()
}

/// Asserts that the store is as it should be after a loss, and goes on.
async fn assert_goes_on(store: &EdgeStore, before: &Facts, kept: std::ops::RangeInclusive<u64>) -> Reset {
    let reset = reset(store, 1).await;
    let facts = store.facts();
    assert_ne!(facts.totals.epoch, before.totals.epoch);
    assert_eq!(reset.epoch, facts.totals.epoch);
    assert!(kept.contains(&facts.totals.count), "{reset:?}");
    assert_eq!(facts.confirmed, facts.totals.revision, "nothing of the old epoch is reported");
    assert_consistent(store).await;
    // The cloud fills it again: what is there is kept, the rest stored.
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

/// Where a text stands in a file.
fn find(path: &Path, text: &str) -> u64 {
    let bytes = fs::read(path).unwrap();
    let at = bytes.windows(text.len()).position(|window| window == text.as_bytes());
    at.unwrap_or_else(|| panic!("'{text}' is not in the file")) as u64
}

/// How the body of an object begins: where it stands in the file, there is its row.
fn body_of(number: u64) -> String {
    let Change::Put(put) = put(number, 5) else { unreachable!() };
    put.body.get()[..100].to_owned()
}

#[tokio::test]
async fn a_file_that_is_no_database_is_set_aside() {
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
async fn a_truncated_file_gives_what_is_left() {
    for share in [9, 6, 3] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.db");
        let before = closed(&path).await;
        let length = fs::metadata(&path).unwrap().len();
        File::options().write(true).open(&path).unwrap().set_len(length * share / 10 / PAGE * PAGE).unwrap();
        let store = open(&path);
        // Whether SQLite notices at once or only when the check gets there.
        let _ = store.check().await;
        let reset = assert_goes_on(&store, &before, 1..=OBJECTS - 1).await;
        assert_eq!(reset.kept + reset.lost, OBJECTS);
        assert_eq!(store.facts().incarnation, before.incarnation);
        assert!(store.facts().totals.revision > before.totals.revision);
    }
}

#[tokio::test]
async fn zeroed_pages_cost_no_more_than_they_held() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let before = closed(&path).await;
    // A leaf of the table of objects: about eight objects.
    let page = find(&path, &body_of(200)) / PAGE;
    overwrite(&path, page * PAGE, &[0; PAGE as usize]);
    let store = open(&path);
    let _ = store.check().await;
    assert_goes_on(&store, &before, OBJECTS - 16..=OBJECTS - 1).await;
    assert_eq!(set_aside(dir.path()).len(), 1);
}

#[tokio::test]
async fn a_damaged_page_of_an_index_or_of_the_kinds_costs_nothing() {
    // Root pages, in the order in which the migration makes them: kinds, index by UID, index by name.
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

#[tokio::test]
async fn a_flipped_bit_in_an_object_costs_that_object() {
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
async fn a_read_never_returns_a_damaged_object_and_has_it_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    closed(&path).await;
    flip(&path, find(&path, &body_of(200)) + 220, 0);
    let store = open(&path);
    // Who takes what is missing for gone is told that it is not.
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
async fn a_flipped_bit_anywhere_never_stops_the_store_or_shows_a_wrong_object() {
    let dir = tempfile::tempdir().unwrap();
    let pristine = dir.path().join("pristine.db");
    closed(&pristine).await;
    let length = fs::metadata(&pristine).unwrap().len();
    let mut worst = 0;
    for round in 0..60u64 {
        let path = dir.path().join(format!("{round}.db"));
        fs::copy(&pristine, &path).unwrap();
        // The first rounds go through the header, where each byte counts.
        let offset = if round < 20 { round * 5 } else { round.wrapping_mul(0x9e37_79b9_7f4a_7c15) % length };
        flip(&path, offset, (round % 8) as u8);
        let store = open(&path);
        let _ = store.check().await;
        let count = assert_consistent(&store).await.len() as u64;
        worst = worst.max(OBJECTS - count);
        // Some flips are in space that nothing uses; whatever is shown is as it was stored.
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
    // One of them may hit the inner page of the tree, none the one page that everything hangs on.
    assert!(worst <= 16, "a flip has cost {worst} objects");
}

#[tokio::test]
async fn totals_that_do_not_match_the_rows_give_a_new_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let before = closed(&path).await;
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch("UPDATE journal SET count = count + 1 WHERE count IS NOT NULL").unwrap();
    drop(conn);
    let store = open(&path);
    let report = store.check().await;
    assert!(report.is_ok());
    let reset = assert_goes_on(&store, &before, OBJECTS..=OBJECTS).await;
    assert_eq!((reset.kept, reset.lost, reset.set_aside), (OBJECTS, 0, None));
}

#[tokio::test]
async fn a_deleted_file_or_log_is_noticed_and_written_anew_with_everything() {
    for suffix in ["", "-wal"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.db");
        let store = open(&path);
        store.apply(batch(0..OBJECTS, 5)).await.unwrap();
        let before = store.facts();
        fs::remove_file(dir.path().join(format!("edge.db{suffix}"))).unwrap();
        // It is looked at most once a second, and again with each commit after that.
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
        tokio::time::timeout(Duration::from_secs(30), noticed).await.expect("it is not noticed");
        let reset = reset(&store, 1).await;
        assert_eq!((reset.kept, reset.lost), (OBJECTS, 0), "{reset:?}");
        assert_consistent(&store).await;
        let after = store.facts();
        assert!(after.totals.revision > before.totals.revision);
        store.close().await;
        // It is the file in place that was written.
        let store = open(&path);
        assert_eq!(store.facts(), after);
        assert_eq!(assert_consistent(&store).await.len() as u64, OBJECTS);
    }
}

#[tokio::test]
async fn damage_while_running_replaces_the_file_and_readers_follow() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let before = closed(&path).await;
    let store = open(&path);
    store.check().await.unwrap();
    // The writer has looked at all of them, and has their pages in its cache as they were.
    store.apply(batch(0..OBJECTS, 5)).await.unwrap();
    let page = find(&path, &body_of(300)) / PAGE;
    overwrite(&path, page * PAGE, &[0x55; PAGE as usize]);
    let result = store.check().await;
    assert!(matches!(result, Err(StoreError::Corrupt(_))), "{result:?}");
    assert_goes_on(&store, &before, OBJECTS - 16..=OBJECTS).await;
    assert!(store.by_uid(uid(0)).await.unwrap().is_some());
}

#[tokio::test]
async fn at_most_two_damaged_files_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    for round in 0..4 {
        fs::write(&path, format!("garbage of round {round}, long enough to be looked at")).unwrap();
        open(&path).close().await;
    }
    assert_eq!(set_aside(dir.path()).len(), 2);
}

#[tokio::test]
async fn a_check_that_takes_its_time_does_not_let_the_log_grow_without_bound() {
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
    // The check hurries now: once it is done the log is begun anew, and cut.
    while wal().await > 256 << 10 {
        assert!(version < 3000, "the log has {} bytes", wal().await);
        store.apply(batch(0..2, version)).await.unwrap();
        version += 1;
    }
}
