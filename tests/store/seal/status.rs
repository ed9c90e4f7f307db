//! The pending status of an object of a sealed kind: unreadable on disk, opened by every read,
//! sealed again with a new key, and dropped with a lost one.

use edgesync::store::{MonotonicTime, OutboxPut, OutboxWrite, effect_key, status_key};
use edgesync_object::ObjectRef;
use edgesync_protocol::upload::{EffectContent, EffectState, MAX_EFFECT_MESSAGE};
use edgesync_store::checksum::checksum64;
use edgesync_store::seal::Keyring;

use super::*;

/// A status that contains the marker.
fn status_of(kind: &str, number: u64, text: &str) -> OutboxWrite {
    let (uid, name) = (uid(1_000_000 + number), secret_name(number));
    let content = format!(
        r#"{{"status":{{"uid":"{uid}","object":{{"apiVersion":"v1","kind":"{kind}","namespace":"plant","name":"{name}"}},"status":{{"text":"{MARKER}-{text}"}}}}}}"#
    );
    let at = MonotonicTime { boot: 1, since_boot: number };
    OutboxWrite::Upload(OutboxPut { lane: Lane::Status, key: status_key(&uid), at, content })
}

pub(super) fn status(number: u64, text: &str) -> OutboxWrite {
    status_of("Secret", number, text)
}

/// Returns the pending items of the status lane: numbers, and the text after the marker.
async fn texts(store: &EdgeStore) -> Vec<(u64, String)> {
    let text =
        |content: &str| content.split_once(&format!("{MARKER}-"))?.1.split('"').next().map(str::to_owned);
    let items = waiting(store, Lane::Status).await;
    items.into_iter().map(|(seq, content)| (seq, text(&content).unwrap_or(content))).collect()
}

fn with(kinds: &[&str], directory: &Path) -> EdgeStore {
    EdgeStore::open(&database(directory), sealing(directory, kinds)).unwrap()
}

/// Returns the key number of each row of the outbox; zero for unsealed rows.
fn keys_of_items(directory: &Path) -> Vec<u32> {
    let conn = rusqlite::Connection::open(database(directory)).unwrap();
    let mut statement = conn.prepare("SELECT body FROM outbox ORDER BY id").unwrap();
    let bodies = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let number = |body: String| body.strip_prefix("sealed:1:")?.split(':').next()?.parse().ok();
    bodies.map(|body| number(body.unwrap()).unwrap_or(0)).collect()
}

/// Copies a sealed body into the row of another key, with a checksum that is valid there.
fn copy_body(directory: &Path, from: &str, to: &str) {
    let conn = rusqlite::Connection::open(database(directory)).unwrap();
    let of = "SELECT body FROM outbox WHERE key = ?1";
    let body: String = conn.query_row(of, [from], |row| row.get(0)).unwrap();
    let of = "SELECT id, boot, made FROM outbox WHERE key = ?1";
    let place = |row: &rusqlite::Row<'_>| Ok([row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?]);
    let [id, boot, made] = conn.query_row(of, [to], place).unwrap();
    let [number, boot, made] = [id, boot, made].map(i64::to_le_bytes);
    let checksum = checksum64(&[&number, &boot, &made, to.as_bytes(), body.as_bytes()]);
    let sql = "UPDATE outbox SET body = ?2, checksum = ?3 WHERE id = ?1";
    assert_eq!(conn.execute(sql, (id, body, checksum)).unwrap(), 1);
}

fn pairs(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected.iter().map(|(seq, text)| (*seq, (*text).to_owned())).collect()
}

#[tokio::test]
async fn sealed_status_is_in_no_file_and_opens_on_every_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_sealed(dir.path());
    store.apply(secret_batch(0..3, 1)).await.unwrap();
    store.post(vec![status(0, "first"), status(1, "other")]).await.unwrap();
    store.post(vec![status(0, "second"), upload(Lane::Status, "node", "plain")]).await.unwrap();
    assert_unreadable(dir.path(), "after writes");
    let expected = pairs(&[(2, "other"), (3, "second"), (4, r#"{"node":{"key":"node","text":"plain"}}"#)]);
    assert_eq!(texts(&store).await, expected);
    let item = store.outbox_item(Lane::Status, status_key(&uid(1_000_001))).await.unwrap().unwrap();
    assert!(item.starts_with('{') && item.contains("-other"), "{item}");
    // Readers of objects get the pending status with them.
    let scan = Scan::Objects { resource: secrets(), namespace: None, name: None, after: None };
    let snapshot = store.snapshot().await.unwrap().unwrap();
    let shown = snapshot.scan(scan, Vec::new(), |shown, row| {
        let ScanRow::Object(_, waiting) = row else { unreachable!() };
        shown.push(waiting.is_some_and(|content| content.contains(MARKER)));
        ControlFlow::Continue(())
    });
    assert_eq!(shown.await.unwrap(), [true, true, false]);
    drop(snapshot);
    // The seal does not bind the sequence number, which changes when a file proves to be an older
    // copy.
    store.renumber_outbox(Lane::Status, 2, 1000).await.unwrap();
    assert_eq!(texts(&store).await[1], (1001, "second".to_owned()));
    let copy = tempfile::tempdir().unwrap();
    copy_database(&database(dir.path()), &database(copy.path()));
    std::fs::copy(key_file(dir.path()), key_file(copy.path())).unwrap();
    let crashed = open_sealed(copy.path());
    assert_eq!(texts(&crashed).await, texts(&store).await);
    crashed.close().await;
    store.settle_outbox(Lane::Status, 1001);
    store.close().await;
    assert_unreadable(dir.path(), "after the end");
    let store = open_sealed(dir.path());
    assert_eq!(texts(&store).await.len(), 1);
    assert_eq!(store.check().await.unwrap().outbox_removed, 0);
    store.close().await;
}

#[tokio::test]
async fn effects_are_pending_once_per_object_and_sealed_with_it() {
    let effect = |number: u64, version: u64, message: String| EffectContent {
        uid: uid(1_000_000 + number),
        object: ObjectRef {
            api_version: "v1".into(),
            kind: "Secret".into(),
            namespace: "plant".into(),
            name: secret_name(number).into(),
        },
        version: None,
        wanted: version.into(),
        state: EffectState::NotInEffect,
        rule: "web".into(),
        message,
        since: 1,
    };
    let put = |effect| OutboxPut::effect(MonotonicTime::default(), effect);
    let quoting = |number, version, text: &str| {
        // A program may quote a value that it refuses.
        OutboxWrite::Upload(put(effect(number, version, format!("{MARKER}-{text}"))).unwrap())
    };
    let dir = tempfile::tempdir().unwrap();
    let store = open_sealed(dir.path());
    store.apply(secret_batch(0..3, 1)).await.unwrap();
    store.post(vec![quoting(0, 1, "first"), quoting(1, 1, "other"), status(0, "status")]).await.unwrap();
    store.post(vec![quoting(0, 2, "second")]).await.unwrap();
    assert_unreadable(dir.path(), "after writes");
    assert_eq!(texts(&store).await, pairs(&[(2, "other"), (3, "status"), (4, "second")]));
    let item = store.outbox_item(Lane::Status, effect_key(&uid(1_000_000))).await.unwrap().unwrap();
    assert!(item.contains(r#""wanted":"2""#), "{item}");
    assert_eq!(put(effect(0, 1, "x".repeat(MAX_EFFECT_MESSAGE + 1))), None);
    store.close().await;
}

#[tokio::test]
async fn pending_items_are_resealed_before_the_old_key_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_sealed(dir.path());
    store.apply(secret_batch(0..2, 1)).await.unwrap();
    store.post((0..600).map(|number| status(number, "x")).collect()).await.unwrap();
    let before = texts(&store).await;
    let early = store.snapshot().await.unwrap().unwrap();
    assert_eq!(store.rotate_seal().await.unwrap().objects, 2);
    assert_eq!(keys_of_items(dir.path()), vec![keys_in_file(dir.path())[0]; 600]);
    assert_eq!(texts(&store).await, before);
    let scan = Scan::Objects { resource: secrets(), namespace: None, name: None, after: None };
    let shown = early.scan(scan, 0, |shown, row| {
        *shown += usize::from(matches!(row, ScanRow::Object(_, Some(_))));
        ControlFlow::Continue(())
    });
    assert_eq!(shown.await.unwrap(), 2, "in a snapshot from before too");
    drop(early);
    let bytes = store.outbox().borrow().bytes.status;
    store.close().await;
    // A rotation that was interrupted after it created its key.
    let keys = KeySource { file: key_file(dir.path()), ..KeySource::default() };
    Keyring::open(&keys).unwrap().0.add_key().unwrap();
    assert_eq!(keys_in_file(dir.path()).len(), 2);
    let store = open_sealed(dir.path());
    assert_eq!(keys_in_file(dir.path()).len(), 1);
    assert_eq!(keys_of_items(dir.path()), vec![keys_in_file(dir.path())[0]; 600]);
    assert_eq!(texts(&store).await, before);
    let state = store.outbox().borrow().clone();
    let length = |key: u32| key.to_string().len() as u64;
    assert!(state.bytes.status.abs_diff(bytes) <= 600 * length(u32::MAX), "{state:?}");
    assert_eq!((state.marks.rows.status, state.dropped.status), (600, 0));
    store.close().await;
}

#[tokio::test]
async fn items_with_a_lost_key_are_dropped_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_sealed(dir.path());
    store.post((0..300).map(|number| status(number, "x")).collect()).await.unwrap();
    store.post(vec![upload(Lane::Status, "node", "plain"), status(300, "last")]).await.unwrap();
    let before = store.outbox().borrow().clone();
    store.close().await;
    // Without keys the store does not know which items are lost, so it drops none.
    let store = open(&database(dir.path()));
    store.check().await.unwrap();
    assert_eq!(store.outbox_item(Lane::Status, status_key(&uid(1_000_000))).await.unwrap(), None);
    store.close().await;
    let store = open_sealed(dir.path());
    assert_eq!(texts(&store).await.len(), 302);
    store.close().await;

    std::fs::remove_file(key_file(dir.path())).unwrap();
    let store = open_sealed(dir.path());
    let after = store.outbox().borrow().clone();
    assert_eq!((after.marks.rows.status, after.dropped.status), (1, 301));
    assert_eq!((&after.marks.id, after.marks.last), (&before.marks.id, before.marks.last));
    assert_eq!(store.health().borrow().reset, None, "no object is concerned");
    store.post(vec![status(7, "anew")]).await.unwrap();
    let node = r#"{"node":{"key":"node","text":"plain"}}"#;
    assert_eq!(texts(&store).await, pairs(&[(301, node), (303, "anew")]), "no number is given twice");
    store.close().await;
    let store = open_sealed(dir.path());
    let state = store.outbox().borrow().clone();
    assert_eq!((state.marks.rows.status, state.dropped.status), (2, 0));
    store.close().await;
}

#[tokio::test]
async fn status_moved_to_another_row_is_dropped_by_every_reader() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_sealed(dir.path());
    store.check().await.unwrap();
    let mut outbox = store.outbox();
    let [moved, sound] = [0, 1].map(|number| status_key(&uid(1_000_000 + number)));
    for (dropped, finder) in (1..).zip(["page", "item", "check"]) {
        store.post(vec![status(0, "x"), status(1, "sound")]).await.unwrap();
        copy_body(dir.path(), &sound, &moved);
        match finder {
            "page" => assert_eq!(texts(&store).await.len(), 1),
            "item" => assert_eq!(store.outbox_item(Lane::Status, moved.clone()).await.unwrap(), None),
            _ => assert_eq!(store.check().await.unwrap().outbox_removed, 1),
        }
        outbox.wait_for(|state| state.dropped.status == dropped).await.unwrap();
        assert_eq!(texts(&store).await.len(), 1, "{finder}");
    }
    store.close().await;
}

#[tokio::test]
async fn status_of_added_kinds_is_sealed_and_of_removed_ones_readable() {
    let dir = tempfile::tempdir().unwrap();
    let config_map = |text| status_of("ConfigMap", 0, text);
    let store = with(&["secrets"], dir.path());
    store.apply(batch(0..2, 1)).await.unwrap();
    store.post(vec![config_map("before")]).await.unwrap();
    assert_eq!(keys_of_items(dir.path()), [0], "of a kind that is not sealed");
    store.close().await;
    let aside = dir.path().join("edge.db.corrupt-20260101T000000.000000Z");
    std::fs::write(&aside, format!("an old database with {MARKER}")).unwrap();
    let store = with(&["configmaps"], dir.path());
    assert_unreadable(dir.path(), "sealed and cleaned at once");
    assert_eq!(texts(&store).await, pairs(&[(1, "before")]));
    store.post(vec![config_map("after")]).await.unwrap();
    assert_unreadable(dir.path(), "after a write");
    store.close().await;
    let store = with(&[], dir.path());
    store.rotate_seal().await.unwrap();
    assert_eq!(texts(&store).await, pairs(&[(2, "after")]));
    assert_eq!(keys_of_items(dir.path()), keys_in_file(dir.path()));
    store.close().await;
}

#[tokio::test]
async fn plain_status_of_an_older_version_is_sealed_and_cleaned() {
    let dir = tempfile::tempdir().unwrap();
    let kinds = ["configmaps"];
    let store = with(&kinds, dir.path());
    store.apply(batch(0..2, 1)).await.unwrap();
    store.close().await;
    // That version sealed only the bodies of objects, and recorded that.
    let store = open(&database(dir.path()));
    let numbers = 0..200;
    store.post(numbers.clone().map(|number| status_of("ConfigMap", number, "x")).collect()).await.unwrap();
    store.settle_outbox(Lane::Status, 150);
    store.close().await;
    let conn = rusqlite::Connection::open(database(dir.path())).unwrap();
    conn.execute("UPDATE meta SET value = 'configmaps secrets' WHERE key = 'sealed'", []).unwrap();
    drop(conn);
    assert_eq!(files_with(dir.path(), MARKER).len(), 1, "the test looks in the right place");
    let store = with(&kinds, dir.path());
    assert_unreadable(dir.path(), "free pages too");
    assert_eq!(texts(&store).await.len(), 50);
    store.close().await;
    use std::os::unix::fs::MetadataExt as _;
    let inode = || std::fs::metadata(database(dir.path())).unwrap().ino();
    let before = inode();
    with(&kinds, dir.path()).close().await;
    assert_eq!(inode(), before, "it is not written anew again");
}

#[tokio::test]
async fn salvaged_database_keeps_pending_items_sealed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_sealed(dir.path());
    store.apply(secret_batch(0..100, 1)).await.unwrap();
    store.post((0..100).map(|number| status(number, "x")).collect()).await.unwrap();
    let before = texts(&store).await;
    std::fs::remove_file(database(dir.path())).unwrap();
    let mut health = store.health();
    health.wait_for(|health| health.reset.is_some()).await.unwrap();
    assert_eq!(texts(&store).await, before);
    assert_eq!(store.outbox().borrow().dropped.status, 0);
    assert_unreadable(dir.path(), "after the file was written anew");
    store.close().await;
}
