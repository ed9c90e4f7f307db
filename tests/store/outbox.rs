//! The outbox: order, coalescing, limits, confirmations, crashes and damage.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod damage;

use crate::store::support;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Instant;

use edgesync::store::{
    EdgeStore, LocalKind, LocalRefusal, LocalWrite, MAX_UPLOAD_BYTES, MonotonicTime, OutboxLimits, OutboxPut,
    OutboxState, OutboxWrite, TIME_CORRECTED, event_key,
};
use edgesync_protocol::upload::{Lane, Lanes};
use edgesync_testkit::timing::{PATIENCE, assert_within};
use support::*;

use Lane::{Bulk, Events, Status};

fn limited(path: &Path, rows: u64, bytes: u64) -> EdgeStore {
    let mut options = quiet();
    options.outbox = OutboxLimits { rows, bytes };
    EdgeStore::open(path, options).unwrap()
}

async fn put(store: &EdgeStore, lane: Lane, key: &str, text: &str) {
    store.post(vec![upload(lane, key, text)]).await.unwrap();
}

fn state(store: &EdgeStore) -> OutboxState {
    store.outbox().borrow().clone()
}

fn lanes(status: u64, events: u64, bulk: u64) -> Lanes {
    Lanes { status, events, bulk }
}

async fn numbers(store: &EdgeStore, lane: Lane) -> Vec<u64> {
    waiting(store, lane).await.into_iter().map(|(seq, _)| seq).collect()
}

#[tokio::test]
async fn outbox_keeps_order_and_the_newest_item_of_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    for (key, text) in [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1")] {
        put(&store, Events, key, text).await;
    }
    put(&store, Status, "a", "other lane").await;
    let content = |key, text| format!(r#"{{"node":{{"key":"{key}","text":"{text}"}}}}"#);
    let expected = [(2, content("b", "1")), (3, content("a", "2")), (4, content("c", "1"))];
    assert_eq!(waiting(&store, Events).await, expected);
    assert_eq!(store.outbox_item(Events, "a".into()).await.unwrap(), Some(content("a", "2")));
    assert_eq!(store.outbox_item(Status, "a".into()).await.unwrap(), Some(content("a", "other lane")));
    assert_eq!(store.outbox_item(Bulk, "a".into()).await.unwrap(), None);
    let state = state(&store);
    assert_eq!((state.marks.last, state.marks.rows), (lanes(1, 4, 0), lanes(1, 3, 0)));
    assert_eq!((state.marks.confirmed, state.dropped), (Lanes::default(), Lanes::default()));
    assert_eq!(state.bytes.events, expected.iter().map(|(_, text)| text.len() as u64).sum::<u64>());
    assert_eq!(state.marks.id.len(), 16);
    // A page ends at its limit of items or bytes, but has at least one item.
    let page = async |after, limit, bytes| {
        let page = store.outbox_page(Events, after, limit, bytes).await.unwrap();
        page.into_iter().map(|item| item.seq).collect::<Vec<_>>()
    };
    assert_eq!(page(0, 2, 1000).await, [2, 3]);
    assert_eq!(page(2, 9, 1).await, [3]);
    assert_eq!(page(2, 9, 2 * content("a", "2").len()).await, [3, 4]);
    assert_eq!(page(0, 0, 0).await, [2]);
    assert!(page(4, 9, 1000).await.is_empty());
    assert!(page(u64::MAX, 9, 1000).await.is_empty());
}

#[tokio::test]
async fn confirmed_items_are_hidden_and_deleted_with_the_next_commit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    for number in 0..5 {
        put(&store, Events, &number.to_string(), "x").await;
    }
    let commits = store.stats().await.unwrap().writer.commits;
    store.settle_outbox(Events, 3);
    store.settle_outbox(Events, 2);
    assert_eq!(numbers(&store, Events).await, [4, 5]);
    assert_eq!(store.outbox_item(Events, "1".into()).await.unwrap(), None);
    let marks = state(&store).marks;
    assert_eq!((marks.confirmed.events, marks.rows.events, marks.last.events), (3, 2, 5));
    assert_eq!(store.stats().await.unwrap().writer.commits, commits, "nothing is written for it");
    // After a crash they are pending again: the cloud recognizes them.
    let copy = dir.path().join("copy.db");
    copy_database(&path, &copy);
    let crashed = open(&copy);
    assert_eq!(numbers(&crashed, Events).await, [1, 2, 3, 4, 5]);
    assert_eq!(state(&crashed).marks.confirmed.events, 0);
    crashed.close().await;
    store.apply(batch(0..1, 1)).await.unwrap();
    assert_eq!(count(&path), 2, "they went along");
    // Confirmations beyond the last assigned number are capped.
    store.settle_outbox(Events, 1000);
    assert_eq!(state(&store).marks.confirmed.events, 5);
    put(&store, Events, "a", "x").await;
    assert_eq!(numbers(&store, Events).await, [6]);
    assert_eq!(state(&store).dropped, Lanes::default());
}

/// Counts the rows of the outbox in the file.
fn count(path: &Path) -> i64 {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.query_row("SELECT count(*) FROM outbox", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn outbox_numbers_continue_across_restarts_and_crashes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let mut store = open(&path);
    let id = state(&store).marks.id;
    let mut last = 0;
    for round in 0..12 {
        for number in 0..round % 3 + 1 {
            put(&store, Status, &format!("{round}-{number}"), "x").await;
            last += 1;
        }
        let crashes = round % 2 == 0;
        if round % 4 < 3 {
            store.settle_outbox(Status, last);
            if crashes {
                store.apply(batch(0..1, round + 1)).await.unwrap();
            }
        }
        let copy = dir.path().join(format!("copy-{round}.db"));
        if crashes {
            copy_database(&path, &copy);
        }
        store.close().await;
        store = open(&path);
        assert_eq!((state(&store).marks.last.status, state(&store).marks.id), (last, id.clone()));
        if crashes {
            let crashed = open(&copy);
            assert_eq!(state(&crashed).marks.last.status, last, "round {round}");
            let confirmed = if round % 4 < 3 { last } else { last - round % 3 - 1 };
            assert_eq!(state(&crashed).marks.confirmed.status, confirmed, "round {round}");
            crashed.close().await;
        }
    }
    let other = open(&dir.path().join("other.db"));
    assert_ne!(state(&other).marks.id, id);
}

#[tokio::test]
async fn oldest_item_of_the_least_important_lane_is_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let store = limited(&dir.path().join("edge.db"), 6, 1 << 20);
    for number in 0..3 {
        for lane in Lane::ALL {
            put(&store, lane, &number.to_string(), "x").await;
        }
    }
    // Nine items in turns: the last Status and Event evicted those of less important lanes.
    assert_eq!(state(&store).marks.rows, lanes(3, 3, 0));
    assert_eq!(state(&store).dropped, lanes(0, 0, 3));
    put(&store, Bulk, "late", "x").await;
    assert_eq!((state(&store).marks.rows, state(&store).dropped), (lanes(3, 3, 0), lanes(0, 0, 4)));
    put(&store, Events, "late", "x").await;
    assert_eq!(numbers(&store, Events).await, [2, 3, 4]);
    // An item that replaces one with the same key evicts no other.
    put(&store, Events, "late", "y").await;
    assert_eq!((numbers(&store, Events).await, state(&store).dropped), (vec![2, 3, 5], lanes(0, 1, 4)));
    for number in 3..9 {
        put(&store, Status, &number.to_string(), "x").await;
    }
    assert_eq!((state(&store).marks.rows, state(&store).dropped), (lanes(6, 0, 0), lanes(3, 4, 4)));
    assert_eq!(numbers(&store, Status).await, [4, 5, 6, 7, 8, 9]);
    // Confirmed items are evicted first and do not count as dropped.
    store.settle_outbox(Status, 6);
    put(&store, Bulk, "b", "x").await;
    assert_eq!((state(&store).marks.rows, state(&store).dropped), (lanes(3, 0, 1), lanes(3, 4, 4)));
}

#[tokio::test]
async fn item_that_cannot_fit_drops_only_itself() {
    let dir = tempfile::tempdir().unwrap();
    let store = limited(&dir.path().join("edge.db"), 100, 4000);
    put(&store, Status, "s", &"x".repeat(2000)).await;
    put(&store, Bulk, "b", &"x".repeat(1000)).await;
    put(&store, Bulk, "big", &"x".repeat(2500)).await;
    put(&store, Events, "big", &"x".repeat(2500)).await;
    assert_eq!((state(&store).marks.rows, state(&store).dropped), (lanes(1, 0, 1), lanes(0, 1, 1)));
    // The item that it would replace stays.
    put(&store, Bulk, "b", &"y".repeat(2500)).await;
    assert!(store.outbox_item(Bulk, "b".into()).await.unwrap().unwrap().contains("xxx"));
    // Neither oversized items nor invalid JSON can ever be sent.
    put(&store, Status, "s2", &"x".repeat(MAX_UPLOAD_BYTES)).await;
    let put = OutboxPut { lane: Status, key: "k".into(), at: MonotonicTime::default(), content: "{".into() };
    store.post(vec![OutboxWrite::Upload(put)]).await.unwrap();
    assert_eq!((state(&store).marks.rows, state(&store).dropped), (lanes(1, 0, 1), lanes(2, 1, 2)));
    let bytes = state(&store).bytes;
    assert!(bytes.status > 2000 && bytes.bulk > 1000 && bytes.status + bytes.bulk <= 4000, "{bytes:?}");
}

#[tokio::test]
async fn smaller_outbox_limits_apply_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    store.post((0..3000).map(|n| upload(Bulk, &n.to_string(), "x")).collect()).await.unwrap();
    put(&store, Status, "s", "x").await;
    store.set_outbox_limits(OutboxLimits { rows: 11, bytes: 1 << 20 });
    let mut outbox = store.outbox();
    outbox.wait_for(|state| state.marks.rows == lanes(1, 0, 10)).await.unwrap();
    assert_eq!(numbers(&store, Bulk).await, (2991..=3000).collect::<Vec<_>>());
    assert_eq!(state(&store).dropped, lanes(0, 0, 2990));
}

/// Returns the bytes that this process has caused to be written to disk.
fn written() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
    line.parse().unwrap()
}

#[tokio::test]
async fn events_of_a_day_at_the_limits_stay_cheap_and_bounded() {
    let dir = tempfile::tempdir_in(edgesync_testkit::programs::scratch()).unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    let text = "x".repeat(400);
    let (start, before) = (Instant::now(), written());
    for batch in 0..400u64 {
        let put = |n: u64| upload(Bulk, &format!("event/default/pump.{:x}", batch * 250 + n), &text);
        store.post((0..250).map(put).collect()).await.unwrap();
    }
    let (time, bytes) = (start.elapsed(), written() - before);
    let OutboxState { marks, dropped, .. } = state(&store);
    assert_eq!((marks.last.bulk, marks.rows.bulk, dropped.bulk), (100_000, 10_000, 90_000));
    let size = fs::metadata(&path).unwrap().len();
    println!(
        "100,000 puts in {time:?}, {:.2} KiB written for each; {size} bytes",
        bytes as f64 / 102_400_000.0
    );
    assert!(bytes / 100_000 < 4 << 10, "{bytes} bytes written");
    assert!(size < 16 << 20, "{size} bytes of database");
    // Scanning all pending items for each post would take minutes.
    assert_within(time, PATIENCE);
    let rows = store.stats().await.unwrap().writer.rows;
    assert!(rows < 200_000, "{rows} rows written");
    let numbers = numbers(&store, Bulk).await;
    assert_eq!((numbers.len(), numbers[0], numbers[9999]), (10_000, 90_001, 100_000));
    store.close().await;
    let start = Instant::now();
    let store = open(&path);
    println!("opened with 10,000 items in {:?}", start.elapsed());
    assert_eq!(state(&store).marks.rows.bulk, 10_000);
}

#[tokio::test]
async fn postings_share_commits_with_objects() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    let before = store.stats().await.unwrap().writer;
    let tasks: Vec<_> = (0..300u64)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move {
                match number % 2 {
                    0 => store.post(vec![upload(Events, &number.to_string(), "x")]).await.unwrap(),
                    _ => drop(store.apply(vec![support::put(number, 1)]).await.unwrap()),
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let after = store.stats().await.unwrap().writer;
    assert_eq!(after.jobs - before.jobs, 300);
    assert!(after.commits - before.commits < 150, "{after:?}");
    assert_eq!(after.commit_times.iter().sum::<u64>(), after.commits);
    assert_eq!(numbers(&store, Events).await.len(), 150);
    assert_eq!(assert_consistent(&store).await.len(), 150);
}

#[tokio::test]
async fn postings_of_one_call_are_committed_atomically() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    let event = local(LocalKind::Event, "started", "1");
    let postings = || {
        vec![
            OutboxWrite::Event {
                lane: Events,
                key: event_key(&event.namespace, &event.name),
                at: MonotonicTime::default(),
                object: event.clone(),
            },
            upload(Status, "node", "1"),
            OutboxWrite::Metadata("run", "clean".into()),
        ]
    };
    store.post(postings()).await.unwrap();
    // The second time the Event is replaced, everything else is written.
    store.post(postings()).await.unwrap();
    let copy = dir.path().join("copy.db");
    copy_database(&path, &copy);
    for store in [store, open(&copy)] {
        assert_eq!(all_local(&store, LocalKind::Event).await.len(), 1);
        assert_eq!(state(&store).marks.rows, lanes(1, 1, 0));
        let item = store.outbox_item(Events, "event/lab/started".into()).await.unwrap();
        assert_eq!(item, Some(format!(r#"{{"event":{}}}"#, event.body)));
        assert_eq!(store.note("run").await.unwrap().as_deref(), Some("clean"));
        store.close().await;
    }
}

#[tokio::test]
async fn local_events_enter_the_outbox_and_leases_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    let write =
        async |write| store.write_local(write, MonotonicTime { boot: 1, since_boot: 2 }).await.unwrap();
    let event = |text| local(LocalKind::Event, "e", text);
    let held = write(LocalWrite::Create(event("1"))).await.unwrap();
    write(LocalWrite::Put(local(LocalKind::Lease, "l", "1"))).await.unwrap();
    let item = async || store.outbox_item(Bulk, "event/lab/e".into()).await.unwrap().unwrap_or_default();
    assert_eq!(item().await, format!(r#"{{"event":{}}}"#, event("1").body));
    let held = write(LocalWrite::Update(event("2"), held.version)).await.unwrap();
    assert!(item().await.contains(r#""note":"2""#));
    assert_eq!(write(LocalWrite::Create(event("3"))).await, Err(LocalRefusal::Exists));
    assert_eq!(write(LocalWrite::Update(event("3"), 1)).await, Err(LocalRefusal::Modified));
    assert!(item().await.contains(r#""note":"2""#), "what is refused is not sent");
    let held = write(LocalWrite::Put(event("4"))).await.unwrap_or(held);
    assert!(item().await.contains(r#""note":"4""#));
    write(LocalWrite::Remove(held.clone(), held.version)).await.unwrap();
    assert!(item().await.contains(r#""note":"4""#), "it has happened");
    assert_eq!(state(&store).marks.rows, lanes(0, 0, 1));
    let mut managed = event("5");
    managed.body = managed.body.replacen('{', r#"{"metadata":{"managedFields":[{"a":1}],"name":"e"},"#, 1);
    managed.body = managed.body.replace(r#""metadata":{"name":"e","namespace":"lab"},"#, "");
    write(LocalWrite::Put(managed)).await.unwrap();
    assert_eq!(item().await, r#"{"event":{"metadata":{"name":"e"},"note":"5"}}"#);
}

#[tokio::test]
async fn unsent_items_of_an_older_copy_are_renumbered() {
    let dir = tempfile::tempdir().unwrap();
    let (path, old) = (dir.path().join("edge.db"), dir.path().join("old.db"));
    let store = open(&path);
    for number in 0..10 {
        put(&store, Events, &number.to_string(), "x").await;
    }
    copy_database(&path, &old);
    let id = state(&store).marks.id;
    store.close().await;
    let store = open(&old);
    assert_eq!((state(&store).marks.id, state(&store).marks.last.events), (id.clone(), 10));
    store.post((10..700).map(|n| upload(Events, &n.to_string(), "x")).collect()).await.unwrap();
    put(&store, Bulk, "b", "x").await;
    // The cloud knows numbers up to 5000: 11 to 700 have never been sent.
    store.renumber_outbox(Events, 10, 5000).await.unwrap();
    let expected: Vec<u64> = (1..=10).chain(5001..=5690).collect();
    assert_eq!(numbers(&store, Events).await, expected);
    assert_eq!((numbers(&store, Bulk).await, state(&store).marks.last), (vec![1], lanes(0, 5690, 1)));
    let texts = waiting(&store, Events).await;
    assert!(texts[10].1.contains(r#""key":"10""#) && texts[699].1.contains(r#""key":"699""#));
    assert!(store.outbox_item(Events, "500".into()).await.unwrap().is_some());
    assert_eq!(store.check().await.unwrap().outbox_removed, 0);
    // An empty lane, and one whose items have all been sent.
    store.settle_outbox(Events, 5690);
    store.renumber_outbox(Events, 5690, 9000).await.unwrap();
    store.renumber_outbox(Status, 0, 70).await.unwrap();
    store.close().await;
    let store = open(&old);
    assert_eq!((state(&store).marks.last, state(&store).marks.id), (lanes(70, 9000, 1), id.clone()));
    // Numbers below those already assigned are not reused.
    put(&store, Bulk, "c", "x").await;
    store.renumber_outbox(Bulk, 1, 1).await.unwrap();
    assert_eq!(numbers(&store, Bulk).await, [1, 3]);
    // Numbers that no outbox can have assigned start a new outbox.
    store.renumber_outbox(Bulk, 1, u64::MAX).await.unwrap();
    assert_ne!(state(&store).marks.id, id);
    assert_eq!(numbers(&store, Bulk).await, [1, 3]);
    put(&store, Bulk, "d", "x").await;
    assert_eq!(numbers(&store, Bulk).await, [1, 3, 4]);
}

#[tokio::test]
async fn event_times_from_before_the_clock_was_set_are_corrected() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    let event = |number: u64| {
        let mut event = local(LocalKind::Event, &format!("e-{number:03}"), &"x".repeat(1000));
        let times = r#"{"eventTime":"1970-01-01T00:00:10.000000Z","series":{"count":2,"lastObservedTime":"1970-01-01T00:00:20.000000Z"},"#;
        event.body = event.body.replacen('{', times, 1);
        event
    };
    let clocked = |since_boot| MonotonicTime { boot: 7, since_boot };
    for number in 0..400 {
        store.write_local(LocalWrite::Create(event(number)), clocked(number)).await.unwrap().unwrap();
    }
    let object = event(999);
    let key = event_key(&object.namespace, &object.name);
    store.post(vec![OutboxWrite::Event { lane: Events, key, at: clocked(5), object }]).await.unwrap();
    let other_boot = MonotonicTime { boot: 6, since_boot: 0 };
    store.write_local(LocalWrite::Create(event(500)), other_boot).await.unwrap().unwrap();
    put(&store, Status, "node", "1970-01-01T00:00:10.000000Z").await;
    let forward = 86_400_000 * 365;
    assert_eq!(store.correct_times(clocked(350), forward).await.unwrap(), 351);
    let mut corrected = BTreeSet::new();
    let (bulk, events) = (waiting(&store, Bulk).await, waiting(&store, Events).await);
    for (_, item) in bulk.iter().chain(&events) {
        if item.contains(TIME_CORRECTED) {
            assert!(item.contains(r#""edgesync.io/time-corrected":"+31536000s""#), "{item}");
            assert!(item.contains("1971-01-01T00:00:10.000000Z") && !item.contains("1970"), "{item}");
            let name = item.split("\"name\":\"").nth(1).unwrap();
            corrected.insert(name[..5].to_owned());
        }
    }
    let expected: BTreeSet<String> = (0..350).chain([999]).map(|number| format!("e-{number:03}")).collect();
    assert_eq!(corrected, expected);
    assert_eq!((bulk.len(), events.len(), state(&store).dropped), (401, 1, Lanes::default()));
    assert_eq!(events[0].0, 2, "what was on its way is sent again");
    // The Events on the node are corrected too.
    let held = all_local(&store, LocalKind::Event).await;
    let times: BTreeMap<bool, usize> = held.values().fold(BTreeMap::new(), |mut counts, event| {
        *counts.entry(event.body.contains("1971-01-01T00:00:20.000000Z")).or_default() += 1;
        counts
    });
    assert_eq!(times, BTreeMap::from([(true, 351), (false, 51)]));
    assert_eq!(store.correct_times(clocked(0), forward).await.unwrap(), 0);
}

#[tokio::test]
async fn notes_are_kept_on_close_and_dropped_when_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    assert_eq!(store.note("traffic").await.unwrap(), None);
    let before = store.stats().await.unwrap().writer;
    for count in 0..100 {
        store.keep_note("traffic", count.to_string());
    }
    store.keep_note("long", "x".repeat(1 << 20));
    store.apply(batch(0..1, 1)).await.unwrap();
    assert_eq!(store.note("traffic").await.unwrap().as_deref(), Some("99"));
    assert_eq!(store.note("long").await.unwrap(), None);
    assert_eq!(store.stats().await.unwrap().writer.commits - before.commits, 1);
    store.close().await;
    let store = open(&path);
    assert_eq!(store.note("traffic").await.unwrap().as_deref(), Some("99"));
    store.close().await;
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch("UPDATE meta SET value = value || '9' WHERE key = 'note/traffic'").unwrap();
    drop(conn);
    assert_eq!(open(&path).note("traffic").await.unwrap(), None);
}
