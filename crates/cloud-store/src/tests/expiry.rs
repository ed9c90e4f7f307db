//! Expiry of Events that have not changed for a while.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::*;

const TTL: Duration = Duration::from_secs(3600);

/// Declares the clock of one test, in seconds.
macro_rules! clock {
    ($now:ident, $options:ident) => {
        static $now: AtomicI64 = AtomicI64::new(1_795_000_000);
        let $options = CloudOptions {
            clock: || jiff::Timestamp::from_second($now.load(Ordering::Relaxed)).unwrap(),
            ..CloudOptions::default()
        };
    };
}

fn event(name: &str) -> Object {
    let value = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "type": "Normal", "reason": "Started",
        "metadata": {"name": name, "namespace": "lab"}});
    serde_json::from_value(value).unwrap()
}

async fn add(store: &CloudStore, name: &str) -> Stored {
    store.create(&kind("events.events.k8s.io"), event(name)).await.unwrap()
}

async fn names(store: &CloudStore) -> Vec<String> {
    all(store, "events.events.k8s.io").await.into_iter().map(|item| item.name).collect()
}

#[tokio::test]
async fn an_event_lives_until_nobody_has_changed_it_for_a_while() {
    clock!(NOW, options);
    let Fixture { store, .. } = &fixture_with(&options);
    create(store, "stays").await;
    let first = add(store, "changed").await;
    add(store, "old").await;
    NOW.fetch_add(3000, Ordering::Relaxed);
    let mut series = object(&first);
    series.fields_mut().insert("series".into(), json!({"count": 2}));
    store.update(&kind("events.events.k8s.io"), series, first.version).await.unwrap();
    NOW.fetch_add(600, Ordering::Relaxed);
    assert_eq!(store.expire_events(TTL, 100).await.unwrap(), 0, "an hour is not more than an hour");
    NOW.fetch_add(1, Ordering::Relaxed);
    let start = store.version();
    assert_eq!(store.expire_events(TTL, 100).await.unwrap(), 1);
    assert_eq!(names(store).await, ["changed"]);
    let [gone] = &history(store, start).await.unwrap()[..] else { panic!() };
    assert_eq!((gone.kind, &*gone.name, gone.version), (ChangeKind::Deleted, "old", start + 1));
    NOW.fetch_add(3000, Ordering::Relaxed);
    assert_eq!(store.expire_events(TTL, 100).await.unwrap(), 1);
    NOW.fetch_add(1 << 30, Ordering::Relaxed);
    assert_eq!(store.expire_events(TTL, 100).await.unwrap(), 0);
    assert!(store.get(kind("cm").key("lab", "stays")).await.is_ok());
}

#[tokio::test]
async fn the_oldest_go_first_and_no_more_than_are_asked_for() {
    clock!(NOW, options);
    let Fixture { store, .. } = &fixture_with(&options);
    for name in ["c", "a", "d", "b"] {
        add(store, name).await;
        NOW.fetch_add(10, Ordering::Relaxed);
    }
    NOW.fetch_add(7200, Ordering::Relaxed);
    assert_eq!(store.expire_events(TTL, 2).await.unwrap(), 2);
    assert_eq!(names(store).await, ["b", "d"]);
    assert_eq!(store.expire_events(TTL, 0).await.unwrap(), 0);
    assert_eq!(store.expire_events(Duration::MAX, 100).await.unwrap(), 0);
    assert_eq!(store.expire_events(Duration::ZERO, 100).await.unwrap(), 2);
}

#[tokio::test]
async fn who_watches_events_sees_them_go() {
    clock!(NOW, options);
    let Fixture { store, .. } = &fixture_with(&options);
    let told = Arc::new(ObservedCommits::default());
    store.observe(Arc::clone(&told) as Arc<_>).await.unwrap();
    add(store, "e").await;
    NOW.fetch_add(7200, Ordering::Relaxed);
    store.expire_events(TTL, 100).await.unwrap();
    assert_eq!(told.changes(), [(ChangeKind::Added, "e".to_owned()), (ChangeKind::Deleted, "e".to_owned())]);
}

#[tokio::test]
async fn oldest_events_are_found_by_an_index_of_events_only() {
    let fixture = fixture();
    create(&fixture.store, "a").await;
    add(&fixture.store, "e").await;
    fixture.store.close().await;
    let conn = rusqlite::Connection::open(&fixture.path).unwrap();
    let plan: String = conn
        .query_row(
            "EXPLAIN QUERY PLAN SELECT id, body FROM objects
             WHERE changed IS NOT NULL AND changed < 5 ORDER BY changed LIMIT 9",
            [],
            |row| row.get(3),
        )
        .unwrap();
    assert!(plan.starts_with("SEARCH objects USING INDEX objects_by_change ("), "{plan}");
    let set: Vec<String> = conn
        .prepare("SELECT name FROM objects WHERE changed IS NOT NULL")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<rusqlite::Result<_>>()
        .unwrap();
    assert_eq!(set, ["e"]);
}
