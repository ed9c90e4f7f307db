//! Leases and Events that local programs create: versions, limits and damage.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::store::support;
use std::fs;
use std::path::Path;
use std::time::Duration;

use edgesync::store::{
    EVENT_SECONDS, EdgeStore, LocalKind, LocalRefusal, LocalWrite, MAX_EVENTS, MAX_EVENTS_BYTES, MAX_LEASES,
    MonotonicTime, Scan,
};
use edgesync_store::StoreError;
use edgesync_testkit::timing::{PATIENCE, within};
use support::*;

use LocalKind::{Event, Lease};

async fn create(store: &EdgeStore, kind: LocalKind, name: &str, text: &str) -> u64 {
    let outcome = store
        .write_local(LocalWrite::Create(local(kind, name, text)), MonotonicTime::default())
        .await
        .unwrap();
    outcome.unwrap().version
}

#[tokio::test]
async fn local_versions_grow_across_restarts_and_crashes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    let mut last = store.versions().local;
    for round in 0..30 {
        let name = format!("lease-{}", round % 4);
        let lease = write_local(&store, local(Lease, &name, &round.to_string())).await.unwrap();
        assert_eq!(lease.version, last + 1);
        assert!(lease.body.contains(&format!(r#""resourceVersion":"{}""#, lease.version)), "{}", lease.body);
        last = lease.version;
        if round % 5 == 0 {
            let gone = store
                .write_local(LocalWrite::Remove(lease, last), MonotonicTime::default())
                .await
                .unwrap()
                .unwrap();
            last = gone.version;
        }
        // The current files are those that a crash would leave.
        let copy = dir.path().join(format!("copy-{round}.db"));
        for suffix in ["", "-wal"] {
            fs::copy(format!("{}{suffix}", path.display()), format!("{}{suffix}", copy.display())).unwrap();
        }
        let crashed = open(&copy);
        assert_eq!(crashed.versions(), store.versions());
        assert_eq!(all_local(&crashed, Lease).await, all_local(&store, Lease).await);
        crashed.close().await;
    }
    assert_eq!((store.facts().totals.revision, store.facts().totals.count), (0, 0), "nothing to be synced");
    let (versions, held) = (store.versions(), all_local(&store, Lease).await);
    store.close().await;
    let store = open(&path);
    assert_eq!((store.versions(), all_local(&store, Lease).await), (versions, held));
}

#[tokio::test]
async fn local_writes_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    let refused =
        async |write| store.write_local(write, MonotonicTime::default()).await.unwrap().unwrap_err();
    let version = create(&store, Lease, "a", "1").await;
    assert_eq!(refused(LocalWrite::Create(local(Lease, "a", "2"))).await, LocalRefusal::Exists);
    assert_eq!(
        refused(LocalWrite::Update(local(Lease, "a", "2"), version - 1)).await,
        LocalRefusal::Modified
    );
    assert_eq!(refused(LocalWrite::Update(local(Event, "a", "2"), version)).await, LocalRefusal::Missing);
    assert_eq!(refused(LocalWrite::Remove(local(Lease, "a", ""), version + 1)).await, LocalRefusal::Modified);
    assert_eq!(
        refused(LocalWrite::Create(local(Lease, "b", &"x".repeat(65_536)))).await,
        LocalRefusal::TooLarge
    );
    for number in 1..MAX_LEASES {
        create(&store, Lease, &number.to_string(), "1").await;
    }
    assert_eq!(refused(LocalWrite::Create(local(Lease, "b", "1"))).await, LocalRefusal::TooMany);
    // Existing Leases can still be updated, and a removal makes room for another one.
    let held = write_local(&store, local(Lease, "a", "2")).await.unwrap();
    store
        .write_local(LocalWrite::Remove(held.clone(), held.version), MonotonicTime::default())
        .await
        .unwrap()
        .unwrap();
    create(&store, Lease, "b", "1").await;
    assert_eq!(all_local(&store, Lease).await.len(), MAX_LEASES);
}

#[tokio::test]
async fn least_recently_changed_events_are_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    for number in 0..MAX_EVENTS {
        create(&store, Event, &format!("e-{number}"), "short").await;
    }
    assert_eq!(store.stats().await.unwrap().events_dropped, 0);
    write_local(&store, local(Event, "e-0", "seen again")).await.unwrap();
    create(&store, Event, "one-more", "short").await;
    let held = all_local(&store, Event).await;
    assert_eq!((held.len(), store.stats().await.unwrap().events_dropped), (MAX_EVENTS, 1));
    assert!(held.contains_key("e-0") && !held.contains_key("e-1"));
    // Few Events, but large ones.
    for number in 0..40 {
        create(&store, Event, &format!("large-{number}"), &"x".repeat(60_000)).await;
    }
    let held = all_local(&store, Event).await;
    let bytes: usize = held.values().map(|event| event.body.len()).sum();
    assert!(bytes <= MAX_EVENTS_BYTES && held.len() == MAX_EVENTS_BYTES / 60_200, "{bytes} {}", held.len());
    assert!(held.contains_key("large-39"));
}

#[tokio::test]
async fn expired_events_are_removed_with_the_next_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    create(&store, Event, "old", "1").await;
    create(&store, Event, "young", "1").await;
    store.close().await;
    age(&path, "old", EVENT_SECONDS + 10);
    let store = open(&path);
    assert_eq!(all_local(&store, Event).await.len(), 2);
    let version = store.versions().local;
    create(&store, Event, "new", "1").await;
    assert_eq!(store.versions().local, version + 2, "the removal has a version of its own");
    let held = all_local(&store, Event).await;
    assert_eq!(held.keys().collect::<Vec<_>>(), ["new", "young"]);
    assert_eq!(store.stats().await.unwrap().events_dropped, 0, "it was its time");
}

/// Sets the last change of an Event to this many seconds ago.
fn age(path: &Path, name: &str, seconds: i64) {
    let conn = rusqlite::Connection::open(path).unwrap();
    let sql = "SELECT namespace, version, changed, body FROM local_objects WHERE name = ?1";
    let read = |row: &rusqlite::Row<'_>| {
        Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?, row.get::<_, String>(3)?))
    };
    let (namespace, version, changed, body) = conn.query_row(sql, [name], read).unwrap();
    let changed = changed - seconds;
    let checksum = edgesync_store::checksum::checksum64(&[
        &2i64.to_le_bytes(),
        namespace.as_bytes(),
        name.as_bytes(),
        &version.to_le_bytes(),
        &changed.to_le_bytes(),
        body.as_bytes(),
    ]);
    let sql = "UPDATE local_objects SET changed = ?2, checksum = ?3 WHERE name = ?1";
    assert_eq!(conn.execute(sql, (name, changed, checksum)).unwrap(), 1);
}

#[tokio::test]
async fn waiting_local_writes_share_commits_with_synced_changes() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    let tasks: Vec<_> = (0..200u64)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move {
                match number % 2 {
                    0 => create(&store, Event, &format!("e-{number}"), "1").await,
                    _ => store.apply(vec![put(number, 1)]).await.unwrap().totals.revision,
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(store.stats().await.unwrap().writer.commits < 200);
    assert_eq!(all_local(&store, Event).await.len(), 100);
    assert_eq!(assert_consistent(&store).await.len(), 100);
}

/// Damages the text of a row behind the store's back.
fn vandalise(path: &Path, name: &str) {
    let conn = rusqlite::Connection::open(path).unwrap();
    let sql = "UPDATE local_objects SET body = replace(body, 'note', 'nota') WHERE name = ?1";
    assert_eq!(conn.execute(sql, [name]).unwrap(), 1);
}

#[tokio::test]
async fn damaged_local_rows_are_dropped_by_every_reader() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    store.check().await.unwrap();
    store.apply(batch(0..20, 1)).await.unwrap();
    for name in ["read", "listed", "checked", "written", "opened", "sound"] {
        create(&store, Lease, name, "1").await;
    }
    let (epoch, version) = (store.facts().totals.epoch, store.versions().local);
    vandalise(&path, "read");
    assert_eq!(store.local(Lease, "lab".into(), "read".into()).await.unwrap(), None);
    vandalise(&path, "listed");
    assert_eq!(all_local(&store, Lease).await.len(), 4);
    vandalise(&path, "checked");
    let report = store.check().await.unwrap();
    assert!(report.local_removed <= 3 && report.local_removed >= 1 && !report.renewed, "{report:?}");
    vandalise(&path, "written");
    create(&store, Lease, "written", "2").await;
    assert!(store.versions().local > version + 4);
    vandalise(&path, "opened");
    store.close().await;
    let store = open(&path);
    assert_eq!(all_local(&store, Lease).await.keys().collect::<Vec<_>>(), ["sound", "written"]);
    assert_eq!((store.facts().totals.epoch, store.health().borrow().reset.clone()), (epoch, None));
    assert_eq!(store.check().await.unwrap().local_removed, 0);
}

#[tokio::test]
async fn replaced_file_keeps_local_objects_and_ends_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    store.apply(batch(0..20, 1)).await.unwrap();
    create(&store, Lease, "a", "1").await;
    create(&store, Event, "b", "1").await;
    let before = store.versions();
    let snapshot = store.snapshot().await.unwrap().unwrap();
    fs::remove_file(&path).unwrap();
    let noticed = async {
        let mut health = store.health();
        health.wait_for(|health| health.reset.is_some()).await.map(|_| ()).unwrap();
    };
    // The store checks its files at intervals and with commits.
    let poked = async {
        loop {
            store.apply(vec![put(1, 2)]).await.ok();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let noticed = async {
        tokio::select! { () = noticed => {} () = poked => {} }
    };
    within("the missing file is noticed", PATIENCE, noticed).await;
    let after = store.versions();
    assert!(after.objects > before.objects && after.local > before.local, "{before:?} {after:?}");
    assert_eq!(all_local(&store, Lease).await.len() + all_local(&store, Event).await.len(), 2);
    let scan = Scan::Objects { resource: config_maps(), namespace: None, name: None, after: None };
    assert!(matches!(snapshot.count(scan).await, Err(StoreError::Replaced)));
}

#[tokio::test]
async fn snapshot_shows_no_object_newer_than_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    let known = create(&store, Lease, "a", "1").await;
    // A commit of another connection is one that the store has not published.
    let conn = rusqlite::Connection::open(&path).unwrap();
    assert_eq!(conn.execute("UPDATE local_objects SET version = ?1", [known + 1]).unwrap(), 1);
    let snapshot = store.snapshot().await.unwrap().unwrap();
    assert_eq!(snapshot.versions().local, known + 1);
    // A watch from there is not one from the future.
    assert_eq!(store.versions(), snapshot.versions());
}
