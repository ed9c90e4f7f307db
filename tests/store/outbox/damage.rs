//! The outbox under damage, full disks and failing disks.

use super::support::vfs::{Random, register};
use edgesync_store::StoreError;
use edgesync_testkit::timing::within;

use super::*;

/// Damages the text of a row behind the store's back.
fn vandalise(path: &Path, key: &str) {
    let conn = rusqlite::Connection::open(path).unwrap();
    let sql = "UPDATE outbox SET body = replace(body, 'text', 'texT') WHERE key = ?1";
    assert_eq!(conn.execute(sql, [key]).unwrap(), 1);
}

#[tokio::test]
async fn damaged_items_are_dropped_and_counted_by_every_reader() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    store.check().await.unwrap();
    for key in ["read", "asked", "checked", "opened", "sound"] {
        put(&store, Events, key, "x").await;
    }
    let epoch = store.facts().totals.epoch;
    let mut outbox = store.outbox();
    vandalise(&path, "read");
    assert_eq!(numbers(&store, Events).await, [2, 3, 4, 5]);
    outbox.wait_for(|state| state.dropped.events == 1).await.unwrap();
    vandalise(&path, "asked");
    assert_eq!(store.outbox_item(Events, "asked".into()).await.unwrap(), None);
    outbox.wait_for(|state| state.dropped.events == 2).await.unwrap();
    vandalise(&path, "checked");
    assert_eq!(store.check().await.unwrap().outbox_removed, 1);
    let state_now = state(&store);
    assert_eq!((state_now.marks.rows.events, state_now.dropped), (2, lanes(0, 3, 0)));
    vandalise(&path, "opened");
    store.close().await;
    let store = open(&path);
    assert_eq!(numbers(&store, Events).await, [5]);
    assert_eq!((state(&store).dropped, store.health().borrow().reset.clone()), (lanes(0, 1, 0), None));
    assert_eq!(store.facts().totals.epoch, epoch, "the objects are not concerned");
    // The damaged item may have had the last number.
    put(&store, Events, "new", "x").await;
    assert!(numbers(&store, Events).await[1] > 1_000_000);
    assert_eq!(store.check().await.unwrap().outbox_removed, 0);
}

#[tokio::test]
async fn unreadable_outbox_numbers_are_not_reused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    for (key, keeps_id) in [("outbox_last", true), ("outbox_id", false)] {
        let store = open(&path);
        put(&store, Bulk, key, "x").await;
        put(&store, Status, key, "x").await;
        let before = state(&store).marks;
        store.settle_outbox(Status, before.last.status);
        store.close().await;
        let conn = rusqlite::Connection::open(&path).unwrap();
        let sql = "UPDATE meta SET value = replace(value, ' ', ' 1') WHERE key = ?1";
        assert_eq!(conn.execute(sql, [key]).unwrap(), 1);
        drop(conn);
        let store = open(&path);
        let after = state(&store).marks;
        assert_eq!((after.id == before.id, after.rows.bulk), (keeps_id, before.rows.bulk), "{key}");
        assert!(after.last.status >= before.last.status && after.last.bulk >= before.last.bulk, "{key}");
        assert!(!keeps_id || after.last.status > 1_000_000, "{key}: {after:?}");
        store.close().await;
        let store = open(&path);
        assert_eq!(state(&store).marks, after, "{key}");
        store.close().await;
    }
}

#[tokio::test]
async fn readable_items_of_a_damaged_file_keep_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    store.apply(batch(0..50, 1)).await.unwrap();
    store.post((0..600).map(|n| upload(Events, &format!("k{n}"), &"x".repeat(200))).collect()).await.unwrap();
    store.post(vec![OutboxWrite::Metadata("run", "clean".into())]).await.unwrap();
    let before = state(&store).marks;
    store.close().await;
    // A page in the middle of the outbox.
    let bytes = fs::read(&path).unwrap();
    let needle = br#""key":"k300""#;
    let at = bytes.windows(needle.len()).position(|window| window == needle).unwrap();
    let mut bytes = bytes;
    bytes[at / 4096 * 4096..][..4096].fill(0);
    fs::write(&path, &bytes).unwrap();
    let store = open(&path);
    if store.health().borrow().reset.is_none() {
        let _ = store.check().await;
        let mut health = store.health();
        health.wait_for(|health| health.reset.is_some()).await.unwrap();
    }
    let after = state(&store).marks;
    assert_eq!(after.id, before.id);
    assert!(after.rows.events < 600 && after.rows.events > 560, "{after:?}");
    assert!(after.last.events >= before.last.events);
    let numbers = numbers(&store, Events).await;
    assert_eq!((numbers[0], *numbers.last().unwrap()), (1, 600));
    assert_eq!(store.note("run").await.unwrap().as_deref(), Some("clean"));
    assert_eq!(assert_consistent(&store).await.len(), 50);
    put(&store, Events, "new", "x").await;
    assert!(store.outbox_page(Events, 600, 10, 1000).await.unwrap()[0].seq > 600);
}

#[tokio::test]
async fn deleted_file_loses_no_pending_items() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    store.post((0..300).map(|n| upload(Bulk, &n.to_string(), "x")).collect()).await.unwrap();
    store.keep_note("traffic", "many".into());
    store.settle_outbox(Bulk, 100);
    let before = state(&store).marks;
    fs::remove_file(&path).unwrap();
    let mut health = store.health();
    let noticed = health.wait_for(|health| health.reset.is_some());
    within("the missing file is noticed", PATIENCE, noticed).await.unwrap();
    assert_eq!(state(&store).marks, before, "also no number was left out");
    assert_eq!(numbers(&store, Bulk).await, (101..=300).collect::<Vec<_>>());
    assert_eq!(state(&store).dropped, Lanes::default());
    put(&store, Bulk, "new", "x").await;
    assert_eq!(state(&store).marks.last.bulk, 301);
    store.close().await;
    let store = open(&path);
    assert_eq!(numbers(&store, Bulk).await, (101..=301).collect::<Vec<_>>());
    assert_eq!(store.note("traffic").await.unwrap().as_deref(), Some("many"));
}

#[tokio::test]
async fn flipped_bits_never_show_an_item_that_was_not_posted() {
    let dir = tempfile::tempdir().unwrap();
    let pristine = dir.path().join("pristine.db");
    let store = open(&pristine);
    for lane in Lane::ALL {
        store.post((0..40).map(|n| upload(lane, &format!("k{n}"), "x")).collect()).await.unwrap();
    }
    let mut put: BTreeMap<Lane, Vec<(u64, String)>> = BTreeMap::new();
    for lane in Lane::ALL {
        put.insert(lane, waiting(&store, lane).await);
    }
    store.close().await;
    let length = fs::metadata(&pristine).unwrap().len();
    let mut random = Random(7);
    let mut worst = 0;
    for round in 0..120u64 {
        let path = dir.path().join(format!("{round}.db"));
        let mut bytes = fs::read(&pristine).unwrap();
        let offset = random.below(length);
        bytes[usize::try_from(offset).unwrap()] ^= 1 << (round % 8);
        fs::write(&path, &bytes).unwrap();
        let store = open(&path);
        let _ = store.check().await;
        let mut shown = 0;
        for lane in Lane::ALL {
            let items = waiting(&store, lane).await;
            assert!(items.iter().all(|item| put[&lane].contains(item)), "offset {offset}");
            assert!(state(&store).marks.last.get(lane) >= 40, "offset {offset}");
            shown += items.len();
        }
        worst = worst.max(120 - shown);
        self::put(&store, Status, "new", "x").await;
        let new = store.outbox_page(Status, 40, 10, 1000).await.unwrap();
        assert_eq!(new.len(), 1, "offset {offset}: a number was given again");
        store.close().await;
    }
    println!("a flip has cost {worst} items at most");
}

#[tokio::test]
async fn full_database_refuses_items_and_accepts_deletes() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = quiet();
    options.engine.max_bytes = Some(400 << 10);
    let store = EdgeStore::open(&dir.path().join("edge.db"), options).unwrap();
    store.apply(batch(0..50, 1)).await.unwrap();
    let mut kept = 0;
    let error = loop {
        match store.post(vec![upload(Bulk, &kept.to_string(), &"x".repeat(8000))]).await {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Full(_)), "{error}");
    assert_eq!((state(&store).marks.rows.bulk, state(&store).dropped), (kept, Lanes::default()));
    assert_eq!(numbers(&store, Bulk).await.len() as u64, kept);
    store.apply(vec![delete(0)]).await.unwrap();
    // Confirmed items free space.
    store.settle_outbox(Bulk, state(&store).marks.last.bulk);
    store.apply(vec![delete(1)]).await.unwrap();
    store.apply(batch(100..150, 1)).await.unwrap();
    put(&store, Bulk, "new", "x").await;
    assert_eq!(state(&store).marks.rows.bulk, 1);
    assert_consistent(&store).await;
}

#[tokio::test]
async fn failing_disk_rolls_back_the_counters() {
    let disk = register("outbox-failing");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let mut options = quiet();
    options.engine.vfs = Some("outbox-failing".into());
    options.outbox = OutboxLimits { rows: 5, bytes: 1 << 20 };
    let store = EdgeStore::open(&path, options).unwrap();
    for number in 0..5 {
        put(&store, Bulk, &number.to_string(), "x").await;
    }
    store.settle_outbox(Bulk, 2);
    disk.fail_with(Some(rusqlite::ffi::SQLITE_FULL));
    for _ in 0..3 {
        let puts = (10..20).map(|n| upload(Events, &n.to_string(), "x")).collect();
        assert!(matches!(store.post(puts).await, Err(StoreError::Full(_))));
        assert_eq!((state(&store).marks.rows, state(&store).dropped), (lanes(0, 0, 3), Lanes::default()));
    }
    disk.fail_with(None);
    put(&store, Events, "new", "x").await;
    assert_eq!((state(&store).marks.rows, state(&store).dropped), (lanes(0, 1, 3), Lanes::default()));
    let given = state(&store).marks.last;
    assert_eq!(numbers(&store, Events).await, [given.events]);
    store.close().await;
    let store = open(&path);
    assert_eq!((numbers(&store, Bulk).await, state(&store).marks.last), (vec![3, 4, 5], given));
}
