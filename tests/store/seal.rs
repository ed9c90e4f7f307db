//! Sealed bodies in the edge store: files on disk, lost keys, key rotation.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod status;

use crate::store::support;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use edgesync::store::{CommitListener, CommittedChanges, EdgeOptions, EdgeStore, Part, Scan, ScanRow};
use edgesync_object::{Resource, Scope};
use edgesync_protocol::change::{Change, Delete, Put};
use edgesync_protocol::upload::Lane;
use edgesync_store::StoreError;
use edgesync_store::seal::{KeySource, SealOptions};
use rusqlite::ffi;
use serde_json::value::RawValue;
use support::vfs::{Op, Random, after_power_cut, register, write_image};
use support::*;

/// Plain text that no file may contain.
const MARKER: &str = "correct-horse-battery-staple";
const DIRECTORY: &str = "EDGESYNC_TEST_SEAL_DIRECTORY";

fn secrets() -> Arc<Resource> {
    Arc::new(Resource {
        group: String::new(),
        version: "v1".into(),
        kind: "Secret".into(),
        plural: "secrets".into(),
        scope: Scope::Namespaced,
    })
}

fn secret_name(number: u64) -> String {
    format!("credentials-{number:06}")
}

/// A Secret with a body of about `bytes` bytes, filled with the marker.
fn secret_sized(number: u64, version: u64, bytes: usize) -> Change {
    let (uid, name) = (uid(1_000_000 + number), secret_name(number));
    let text = format!("{MARKER}-{number}-{version};").repeat(bytes / 40 + 1);
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"Secret","metadata":{{"name":"{name}","namespace":"plant","uid":"{uid}","resourceVersion":"{version}"}},"stringData":{{"text":"{text}"}}}}"#
    );
    Change::Put(Put {
        uid,
        version: version.into(),
        supersedes: None,
        resource: secrets(),
        namespace: "plant".into(),
        name: name.into(),
        body: RawValue::from_string(body).unwrap(),
    })
}

fn secret(number: u64, version: u64) -> Change {
    secret_sized(number, version, 300)
}

fn delete_secret(number: u64) -> Change {
    Change::Delete(Delete { uid: uid(1_000_000 + number), key: secrets().key("plant", &secret_name(number)) })
}

fn secret_batch(numbers: impl IntoIterator<Item = u64>, version: u64) -> Vec<Change> {
    numbers.into_iter().map(|number| secret(number, version)).collect()
}

fn key_file(directory: &Path) -> PathBuf {
    directory.join("seal.key")
}

fn database(directory: &Path) -> PathBuf {
    directory.join("edge.db")
}

fn sealing(directory: &Path, kinds: &[&str]) -> EdgeOptions {
    let keys = KeySource { file: key_file(directory), ..KeySource::default() };
    let kinds = kinds.iter().map(|&kind| kind.to_owned()).collect();
    let mut options = EdgeOptions { seal: Some(SealOptions { kinds, keys }), ..quiet() };
    options.engine.wal_bytes = 64 << 10;
    options
}

fn open_sealed(directory: &Path) -> EdgeStore {
    EdgeStore::open(&database(directory), sealing(directory, &[])).unwrap()
}

/// Returns the files that contain a text.
fn files_with(directory: &Path, text: &str) -> Vec<PathBuf> {
    let has = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).filter(has).collect()
}

fn assert_unreadable(directory: &Path, when: &str) {
    assert_eq!(files_with(directory, MARKER), Vec::<PathBuf>::new(), "{when}");
}

/// Returns the bodies of all Secrets by name.
async fn bodies(store: &EdgeStore) -> BTreeMap<String, String> {
    let snapshot = store.snapshot().await.unwrap().unwrap();
    let scan = Scan::Objects { resource: secrets(), namespace: None, name: None, after: None };
    let read = snapshot.scan(scan, BTreeMap::new(), |found, row| {
        let ScanRow::Object(object, _) = row else { unreachable!() };
        found.insert(object.object.name, object.body);
        ControlFlow::Continue(())
    });
    read.await.unwrap()
}

/// Counts the rows per sealing key; unsealed rows count under zero.
fn keys_of_rows(directory: &Path) -> BTreeMap<u32, u64> {
    let conn = rusqlite::Connection::open(database(directory)).unwrap();
    let sql = "SELECT body FROM objects JOIN resources r ON r.id = resource_id WHERE kind = 'Secret'";
    let mut statement = conn.prepare(sql).unwrap();
    let mut keys = BTreeMap::new();
    for body in statement.query_map([], |row| row.get::<_, String>(0)).unwrap() {
        let body = body.unwrap();
        let number = body.strip_prefix("sealed:1:").and_then(|rest| rest.split(':').next()?.parse().ok());
        *keys.entry(number.unwrap_or(0)).or_default() += 1;
    }
    keys
}

fn keys_in_file(directory: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(key_file(directory)).unwrap();
    let number = |line: &str| line.strip_prefix("key ")?.split(' ').next()?.parse().ok();
    text.lines().filter_map(number).collect()
}

/// Records the commits that the store reports.
#[derive(Default)]
struct Notes(Mutex<Vec<CommittedChanges>>);

impl CommitListener for Notes {
    fn appetite(&self) -> usize {
        1 << 20
    }
    fn committed(&self, told: CommittedChanges) {
        self.0.lock().unwrap().push(told);
    }
    fn closed(&self) {}
}

impl std::fmt::Debug for Notes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notes")
    }
}

#[tokio::test]
async fn sealed_bodies_are_in_no_file_and_open_on_every_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_sealed(dir.path());
    let notes = Arc::new(Notes::default());
    store.observe(notes.clone());
    store.apply(secret_batch(0..300, 1)).await.unwrap();
    store.apply(batch(0..50, 1)).await.unwrap();
    assert_unreadable(dir.path(), "after writes");
    for number in 0..100 {
        store.apply(vec![secret_sized(number, 2, 100 + number as usize * 40)]).await.unwrap();
    }
    store.apply(vec![secret_sized(400, 1, 60_000)]).await.unwrap();
    assert_unreadable(dir.path(), "after updates");
    store.apply((100..200).map(delete_secret).collect()).await.unwrap();
    assert!(store.stats().await.unwrap().writer.checkpoints > 2);
    assert_unreadable(dir.path(), "after deletes");

    let is_of =
        |body: &str, number: u64, version: u64| body.contains(&format!("{MARKER}-{number}-{version};"));
    let stored = store.get(secrets(), "plant".into(), secret_name(7)).await.unwrap().unwrap();
    assert!(is_of(&stored.body, 7, 2), "{}", stored.body);
    assert!(is_of(&store.by_uid(uid(1_000_250)).await.unwrap().unwrap().body, 250, 1));
    let list = store.list(secrets(), None, None, 1000).await.unwrap();
    assert_eq!(list.items.len(), 201);
    assert!(list.items.iter().all(|item| item.body.starts_with('{') && item.body.contains(MARKER)));
    let all = bodies(&store).await;
    assert_eq!(all.len(), 201);
    assert!(is_of(&all[&secret_name(400)], 400, 1));
    let facts = store.seal_facts().await.unwrap().unwrap();
    assert_eq!((facts.objects, facts.keys.keys), (201, 1));
    // Observers receive the plain bodies of both versions.
    let told = notes
        .0
        .lock()
        .unwrap()
        .iter()
        .rev()
        .take(102)
        .filter_map(|told| match &told.objects {
            Part::Changed(changes) => {
                changes.first().map(|change| (change.before.clone(), change.after.clone()))
            }
            _ => None,
        })
        .collect::<Vec<_>>();
    let sides = told.iter().flat_map(|(before, after)| [before, after]).flatten();
    assert!(told.len() > 100 && sides.into_iter().all(|side| side.body.starts_with('{')));

    store.close().await;
    assert_unreadable(dir.path(), "after the end");
    let store = open_sealed(dir.path());
    assert_eq!(store.health().borrow().reset, None);
    assert_eq!(bodies(&store).await, all);
    assert!(!store.check().await.unwrap().renewed);
    assert_consistent(&store).await;
    store.close().await;
}

#[tokio::test]
async fn unsealed_database_is_sealed_and_cleaned_when_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = database(dir.path());
    let store = open(&path);
    store.apply(secret_batch(0..400, 1)).await.unwrap();
    store.apply(batch(0..50, 1)).await.unwrap();
    store.apply(vec![secret_sized(500, 1, 50_000)]).await.unwrap();
    // Frees some pages, and leaves one change as the only content of its row.
    store.apply((200..300).map(delete_secret).chain([delete_secret(500)]).collect()).await.unwrap();
    store.apply(vec![secret(5, 2)]).await.unwrap();
    store.set_incarnation(Some("cloud-1".into())).await.unwrap();
    let (facts, all, held) = (store.facts(), bodies(&store).await, held(&store).await);
    store.close().await;
    let aside = dir.path().join("edge.db.corrupt-20260101T000000.000000Z");
    std::fs::write(&aside, format!("an old database with {MARKER}")).unwrap();
    assert_eq!(files_with(dir.path(), MARKER).len(), 2, "the test looks in the right place");

    let store = open_sealed(dir.path());
    assert_unreadable(dir.path(), "right after opening");
    assert_eq!(store.facts(), facts);
    assert_eq!(store.health().borrow().reset, None);
    assert_eq!(bodies(&store).await, all);
    assert_eq!(support::held(&store).await, held);
    assert!(!store.check().await.unwrap().renewed);
    store.apply(vec![secret(6, 2), put(7, 2)]).await.unwrap();
    let generation = keys_of_rows(dir.path());
    assert_eq!(generation.into_values().collect::<Vec<_>>(), [300]);
    store.close().await;
    assert_unreadable(dir.path(), "after the end");
    use std::os::unix::fs::MetadataExt as _;
    let inode = || std::fs::metadata(&path).unwrap().ino();
    let before = inode();
    open_sealed(dir.path()).close().await;
    assert_eq!(inode(), before, "it is not written anew again");
}

#[tokio::test]
async fn unsealed_database_after_a_crash_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let plain = tempfile::tempdir().unwrap();
    let store = open(&database(plain.path()));
    store.apply(secret_batch(0..100, 1)).await.unwrap();
    for version in 2..12 {
        store.apply(vec![secret(version, version)]).await.unwrap();
    }
    copy_database(&database(plain.path()), &database(dir.path()));
    let (totals, all) = (store.facts().totals, bodies(&store).await);
    store.close().await;
    let store = open_sealed(dir.path());
    assert_eq!((store.facts().totals, bodies(&store).await), (totals, all));
    assert_eq!(store.changes(100, 100).await.unwrap().entries.len(), 10);
    assert_unreadable(dir.path(), "after opening");
    assert!(!store.check().await.unwrap().renewed);
    store.close().await;
}

#[tokio::test]
async fn added_kinds_are_sealed_and_removed_kinds_stay_readable() {
    let dir = tempfile::tempdir().unwrap();
    let open_with =
        |kinds: &[&str]| EdgeStore::open(&database(dir.path()), sealing(dir.path(), kinds)).unwrap();
    let text = "abcdefghij0123456789abcdefghij";
    let store = open_with(&[]);
    store.apply(batch(0..20, 1)).await.unwrap();
    let body = store.by_uid(uid(3)).await.unwrap().unwrap().body;
    store.close().await;
    assert!(!files_with(dir.path(), text).is_empty());
    let store = open_with(&["configmaps"]);
    assert_eq!(files_with(dir.path(), text), Vec::<PathBuf>::new());
    assert_eq!(store.by_uid(uid(3)).await.unwrap().unwrap().body, body);
    assert_eq!(store.seal_facts().await.unwrap().unwrap().objects, 20);
    store.close().await;
    let store = open_with(&[]);
    assert_eq!(files_with(dir.path(), text), Vec::<PathBuf>::new());
    assert_eq!(store.by_uid(uid(3)).await.unwrap().unwrap().body, body);
    store.rotate_seal().await.unwrap();
    store.close().await;
    let store = open_with(&[]);
    assert_eq!(store.by_uid(uid(3)).await.unwrap().unwrap().body, body, "they are sealed anew as well");
    store.close().await;
    // A check finds it, because opening does not read this kind.
    std::fs::remove_file(key_file(dir.path())).unwrap();
    let store = open_with(&[]);
    let found = store.by_uid(uid(3)).await.unwrap();
    assert_eq!(found, None);
    store.check().await.unwrap();
    let reset = store.health().borrow().reset.clone().unwrap();
    assert!(reset.cause.ends_with("sealed with a lost key"), "{}", reset.cause);
    assert_eq!((store.facts().totals.count, held(&store).await.len()), (0, 0));
    store.close().await;
}

#[tokio::test]
async fn objects_with_a_lost_key_are_dropped_and_others_kept() {
    for damage in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let store = open_sealed(dir.path());
        store.apply(secret_batch(0..30, 1)).await.unwrap();
        store.apply(batch(0..50, 1)).await.unwrap();
        store.set_incarnation(Some("cloud-1".into())).await.unwrap();
        let before = store.facts();
        store.close().await;
        if damage {
            std::fs::write(key_file(dir.path()), "nonsense").unwrap();
        } else {
            std::fs::remove_file(key_file(dir.path())).unwrap();
        }
        let store = open_sealed(dir.path());
        let reset = store.health().borrow().reset.clone().unwrap();
        assert_eq!(reset.cause, "30 objects were sealed with a lost key");
        assert_eq!((reset.number, reset.kept, reset.lost, &reset.set_aside), (1, 50, 30, &None));
        let after = store.facts();
        assert_ne!(after.totals.epoch, before.totals.epoch);
        assert_eq!(reset.epoch, after.totals.epoch);
        assert!(after.totals.revision > before.totals.revision);
        assert_eq!(after.incarnation.as_deref(), Some("cloud-1"));
        assert_eq!(assert_consistent(&store).await.len(), 50);
        assert_eq!(dir.path().join("seal.key.lost").exists(), damage);
        // The cloud sends them again in the same versions.
        store.apply(secret_batch(0..30, 1)).await.unwrap();
        assert_eq!(bodies(&store).await.len(), 30);
        store.close().await;
        let store = open_sealed(dir.path());
        assert_eq!(store.health().borrow().reset, None);
        assert_eq!((bodies(&store).await.len(), assert_consistent(&store).await.len()), (30, 80));
        store.close().await;
        assert_unreadable(dir.path(), "at the end");
    }
}

#[tokio::test]
async fn sealed_objects_without_keys_are_neither_read_nor_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_sealed(dir.path());
    store.apply(secret_batch(0..10, 1)).await.unwrap();
    store.close().await;
    let store = open(&database(dir.path()));
    assert_eq!(store.by_uid(uid(1_000_003)).await.unwrap(), None);
    assert!(!store.check().await.unwrap().renewed);
    assert_eq!(store.seal_facts().await.unwrap(), None);
    assert!(matches!(store.rotate_seal().await, Err(StoreError::Internal(_))));
    store.close().await;
    let store = open_sealed(dir.path());
    assert_eq!(bodies(&store).await.len(), 10);
    store.close().await;
}

#[tokio::test]
async fn start_reads_sealed_rows_only_for_another_key_or_kind() {
    let dir = tempfile::tempdir().unwrap();
    let start = |name: &str, kinds: &[&str]| {
        let disk = register(name);
        let mut options = sealing(dir.path(), kinds);
        options.engine.vfs = Some(name.to_owned());
        options.check_pause = Duration::from_secs(3600);
        let store = EdgeStore::open(&database(dir.path()), options).unwrap();
        // The check has read its first batch of rows at most.
        (store, disk.reads("edge.db"))
    };
    let (store, _) = start("seals-1", &[]);
    for first in (0..4000).step_by(500) {
        store.apply(secret_batch(first..first + 500, 1)).await.unwrap();
    }
    store.close().await;
    let pages = usize::try_from(std::fs::metadata(database(dir.path())).unwrap().len() / 4096).unwrap();
    let (store, reads) = start("seals-2", &[]);
    assert!(reads < pages / 3, "{reads} reads of {pages} pages");
    store.rotate_seal().await.unwrap();
    store.close().await;
    let (store, reads) = start("seals-3", &[]);
    assert!(reads > pages / 2, "another key: {reads} reads of {pages} pages");
    store.close().await;
    let (store, reads) = start("seals-4", &[]);
    assert!(reads < pages / 3, "{reads} reads of {pages} pages");
    store.close().await;
    // Without keys rows stay plain: the next start with keys seals them.
    let store = open(&database(dir.path()));
    store.apply(vec![secret(9000, 1)]).await.unwrap();
    store.close().await;
    assert_eq!(keys_of_rows(dir.path()).get(&0), Some(&1));
    let (store, _) = start("seals-5", &[]);
    assert_eq!(keys_of_rows(dir.path()).get(&0), None);
    store.close().await;
}

#[tokio::test]
async fn unreadable_key_file_is_an_error_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_sealed(dir.path());
    store.apply(secret_batch(0..10, 1)).await.unwrap();
    store.close().await;
    let aside = dir.path().join("aside");
    std::fs::rename(key_file(dir.path()), &aside).unwrap();
    std::fs::create_dir(key_file(dir.path())).unwrap();
    let error = EdgeStore::open(&database(dir.path()), sealing(dir.path(), &[])).unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    std::fs::remove_dir(key_file(dir.path())).unwrap();
    std::fs::rename(aside, key_file(dir.path())).unwrap();
    let store = open_sealed(dir.path());
    assert_eq!((bodies(&store).await.len(), store.health().borrow().reset.clone()), (10, None));
    store.close().await;
}

#[tokio::test]
async fn salvaged_database_keeps_sealed_objects() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_sealed(dir.path());
    store.apply(secret_batch(0..200, 1)).await.unwrap();
    store.close().await;
    let length = std::fs::metadata(database(dir.path())).unwrap().len();
    std::fs::File::options().write(true).open(database(dir.path())).unwrap().set_len(length / 2).unwrap();
    let store = open_sealed(dir.path());
    store.check().await.ok();
    let reset = store.health().borrow().reset.clone().unwrap();
    assert!(!reset.cause.contains("lost key"), "{reset:?}");
    let kept = bodies(&store).await;
    assert!(kept.len() > 20 && kept.values().all(|body| body.contains(MARKER)), "{}", kept.len());
    assert_unreadable(dir.path(), "also in what was set aside");
    store.close().await;
}

#[tokio::test]
async fn key_rotation_disturbs_neither_writers_nor_readers() {
    let dir = tempfile::tempdir().unwrap();
    // The log must hold all writes during the snapshot, or the snapshot is dropped.
    let mut options = sealing(dir.path(), &[]);
    options.engine.wal_bytes = 64 << 20;
    let store = EdgeStore::open(&database(dir.path()), options).unwrap();
    store.apply(secret_batch(0..1500, 1)).await.unwrap();
    let old = keys_in_file(dir.path());
    // A snapshot from before the rotation, read during and after it.
    let early = store.snapshot().await.unwrap().unwrap();
    let notes = Arc::new(Notes::default());
    store.observe(notes.clone());
    let before = store.facts();
    let rotation = tokio::spawn({
        let store = store.clone();
        async move {
            for _ in 0..3 {
                store.rotate_seal().await.unwrap();
            }
        }
    });
    let (mut version, mut reads) = (1, 0);
    while !rotation.is_finished() {
        version += 1;
        store.apply(vec![secret(version % 40, version)]).await.unwrap();
        let number = version % 1500;
        let read = store.get(secrets(), "plant".into(), secret_name(number)).await.unwrap();
        assert!(read.unwrap().body.contains(MARKER), "number {number}");
        reads += 1;
    }
    rotation.await.unwrap();
    assert!(reads > 3, "{reads} reads");
    let after = store.facts();
    assert_eq!(after.totals.revision - before.totals.revision, version - 1, "only what was written counts");
    assert_eq!(notes.0.lock().unwrap().len() as u64, version - 1, "and only of that anybody was told");
    assert_eq!(store.health().borrow().reset, None);
    assert_eq!(bodies(&store).await.len(), 1500);
    let scan = Scan::Objects { resource: secrets(), namespace: None, name: None, after: None };
    let count = early.count(scan).await.unwrap();
    assert_eq!(count, 1500);
    drop(early);
    let keys = keys_in_file(dir.path());
    assert_eq!(keys.len(), 1);
    assert_ne!(keys, old);
    store.close().await;
    assert_eq!(keys_of_rows(dir.path()), BTreeMap::from([(keys[0], 1500)]));
    let store = open_sealed(dir.path());
    assert_eq!(bodies(&store).await.len(), 1500);
    assert!(!store.check().await.unwrap().renewed);
    store.close().await;
}

#[tokio::test]
async fn snapshot_from_before_a_rotation_stays_readable() {
    let dir = tempfile::tempdir().unwrap();
    // With the default log size the store keeps the snapshot; with a small one it would drop it.
    let mut options = sealing(dir.path(), &[]);
    options.engine.wal_bytes = EdgeOptions::default().engine.wal_bytes;
    let store = EdgeStore::open(&database(dir.path()), options).unwrap();
    store.apply(secret_batch(0..300, 1)).await.unwrap();
    let early = store.snapshot().await.unwrap().unwrap();
    let rotated = store.rotate_seal().await.unwrap();
    assert_eq!((rotated.objects, rotated.keys.keys), (300, 1));
    let scan = Scan::Objects { resource: secrets(), namespace: None, name: None, after: None };
    let seen = early.scan(scan, 0, |seen, row| {
        let ScanRow::Object(object, _) = row else { unreachable!() };
        *seen += usize::from(object.body.contains(MARKER));
        ControlFlow::Continue(())
    });
    assert_eq!(seen.await.unwrap(), 300);
    store.close().await;
}

#[tokio::test]
async fn power_cut_at_any_moment_of_a_rotation_loses_nothing() {
    let disk = register("rotation");
    let dir = tempfile::tempdir().unwrap();
    let mut options = sealing(dir.path(), &[]);
    options.engine.vfs = Some("rotation".into());
    let store = EdgeStore::open(&database(dir.path()), options).unwrap();
    store.apply(secret_batch(0..600, 1)).await.unwrap();
    store.post((0..300).map(|number| status::status(number, "x")).collect()).await.unwrap();
    let items = waiting(&store, Lane::Status).await;
    let old = keys_in_file(dir.path());
    // The new key exists but nothing can be sealed with it, as after a power cut at that moment.
    disk.fail_with(Some(ffi::SQLITE_IOERR_WRITE));
    assert!(store.rotate_seal().await.is_err());
    disk.fail_with(None);
    let both = std::fs::read(key_file(dir.path())).unwrap();
    let numbers = keys_in_file(dir.path());
    assert_eq!((numbers.len(), numbers[0]), (2, old[0]));
    let start = disk.position();
    let rotated = store.rotate_seal().await.unwrap();
    assert_eq!((rotated.objects, rotated.keys.keys), (600, 1));
    assert_eq!(
        keys_in_file(dir.path()),
        numbers[1..],
        "the interrupted one is finished, no third key is made"
    );
    let end = disk.position();
    let (totals, all) = (store.facts().totals, bodies(&store).await);
    let only_new = std::fs::read(key_file(dir.path())).unwrap();
    store.close().await;
    let ops = disk.ops();
    assert!(ops[start..end].iter().filter(|op| matches!(op, Op::Sync { .. })).count() > 2);
    let step = ((end - start) / 25).max(1);
    let cuts =
        (start..end).step_by(step).map(|position| (position, &both)).chain([(end, &both), (end, &only_new)]);
    for (position, keys) in cuts {
        let image = after_power_cut(&ops, position, true, &mut Random(position as u64));
        let dir = tempfile::tempdir().unwrap();
        write_image(dir.path(), &image);
        std::fs::write(key_file(dir.path()), keys).unwrap();
        let store = open_sealed(dir.path());
        assert_eq!(store.health().borrow().reset, None, "cut after {position}");
        assert_eq!(store.facts().totals, totals, "cut after {position}");
        assert!(bodies(&store).await == all, "cut after {position}");
        assert!(waiting(&store, Lane::Status).await == items, "cut after {position}");
        assert_eq!(keys_in_file(dir.path()), numbers[1..], "finished by opening, cut after {position}");
        store.close().await;
        assert_eq!(keys_of_rows(dir.path()), BTreeMap::from([(numbers[1], 600)]), "cut after {position}");
    }
}

/// Runs as a child process of the other test: writes Secrets until killed and reports each write.
#[tokio::test]
#[ignore = "a part of the other test"]
async fn sealer_that_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let store = open_sealed(Path::new(&directory));
    let mut random = Random(store.facts().totals.revision);
    loop {
        let version = store.facts().totals.revision + 1;
        let number = random.below(60);
        let changes = match random.below(5) {
            0 => vec![delete_secret(number)],
            1 => secret_batch(number..number + 20, version),
            2 => vec![secret_sized(number, version, 9000)],
            _ => vec![secret(number, version)],
        };
        if random.below(8) == 0 {
            store.rotate_seal().await.unwrap();
        }
        store.apply(changes).await.unwrap();
        store.post(vec![status::status(number, "x")]).await.unwrap();
        let mut out = std::io::stdout().lock();
        writeln!(out, "written").unwrap();
        out.flush().unwrap();
    }
}

#[tokio::test]
async fn killed_process_leaves_no_plain_text_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(44);
    for round in 0..12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "store::seal::sealer_that_is_killed", "--nocapture"])
            .env(DIRECTORY, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let lines = 1 + random.below(40) as usize;
        let said = output.filter(|line| line == "written").take(lines).count();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(said, lines, "round {round}: the process ended by itself");
        assert_unreadable(dir.path(), "after the kill");
        let store = open_sealed(dir.path());
        assert_eq!(store.health().borrow().reset, None, "round {round}");
        let all = bodies(&store).await;
        assert!(all.values().all(|body| body.contains(MARKER)), "round {round}");
        assert_eq!(all.len(), assert_consistent(&store).await.len(), "round {round}");
        assert_eq!(store.seal_facts().await.unwrap().unwrap().keys.keys, 1, "round {round}");
        assert_eq!(store.outbox().borrow().dropped.status, 0, "round {round}");
        let items = waiting(&store, Lane::Status).await;
        assert!(items.iter().all(|(_, content)| content.contains(MARKER)), "round {round}");
        store.close().await;
        assert_unreadable(dir.path(), "after a restart");
    }
}

/// Prints the cost of sealing: `cargo test --release -p edgesync-tests --test parts
/// store::seal::cost -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "a measurement"]
async fn cost_of_sealing() {
    for bytes in [300, 1000, 10_000] {
        for sealed in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let store = if sealed { open_sealed(dir.path()) } else { open(&database(dir.path())) };
            let start = Instant::now();
            for batch in 0..20 {
                let numbers = batch * 100..(batch + 1) * 100;
                store.apply(numbers.map(|number| secret_sized(number, 1, bytes)).collect()).await.unwrap();
            }
            let put = start.elapsed() / 2000;
            let start = Instant::now();
            let count = bodies(&store).await.len() as u32;
            let read = start.elapsed() / count;
            let mut rotation = Duration::ZERO;
            if sealed {
                let start = Instant::now();
                store.rotate_seal().await.unwrap();
                rotation = start.elapsed();
            }
            store.close().await;
            let size = std::fs::metadata(database(dir.path())).unwrap().len() / 2000;
            println!(
                "{bytes} bytes, sealed {sealed}: {size} bytes in the file, {put:?} a put, {read:?} a read, rotation of 2000 {rotation:?}"
            );
        }
    }
}
