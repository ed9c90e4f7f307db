//! Contract of the storage, one call at a time.

use crate::node_name;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::storage::name_of;
use super::super::*;
use edgesync_api::{Batch, ChangeType, Cursor, Page, PageQuery, Snapshot, Storage, Stored};
use edgesync_cloud_store::{CloudOptions, HistoryBound, HistoryLimits};
use edgesync_object::{Object, Selector, kinds};
use edgesync_protocol::cloud::{Record, RecordBatch};
use edgesync_store::engine::LOG_FACTOR;
use edgesync_store::snapshots::SnapshotLimits;
use serde_json::{Value, json};

pub(super) struct Fixture {
    pub(super) objects: CloudObjects,
    path: std::path::PathBuf,
    dir: tempfile::TempDir,
}

impl Fixture {
    pub(super) async fn new(options: &CloudOptions, ring: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cloud.db");
        let store = CloudStore::open(&path, options).unwrap();
        Self { objects: CloudObjects::with_ring(store, ring).await.unwrap(), path, dir }
    }

    pub(super) async fn plain() -> Self {
        Self::new(&CloudOptions::default(), RING_BYTES).await
    }

    pub(super) async fn reopen(self, options: &CloudOptions, ring: usize) -> Self {
        let Self { objects, path, dir } = self;
        objects.store.close().await;
        let store = CloudStore::open(&path, options).unwrap();
        Self { objects: CloudObjects::with_ring(store, ring).await.unwrap(), path, dir }
    }
}

pub(super) fn resource(word: &str) -> Arc<Resource> {
    Arc::new(kinds::by_word(word).unwrap().resource())
}

pub(super) fn config_map(namespace: &str, name: &str, data: &Value) -> Object {
    let value = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace}, "data": {"k": data}});
    serde_json::from_value(value).unwrap()
}

async fn create(objects: &CloudObjects, name: &str) -> Stored {
    Storage::create(objects, &resource("cm"), config_map("lab", name, &json!("0"))).await.unwrap()
}

/// Returns the stored object with other data.
fn changed(stored: &Stored, data: &Value) -> Object {
    let mut object = Object::parse(&stored.json).unwrap();
    object.fields_mut().insert("data".into(), json!({ "k": data }));
    object
}

async fn update(objects: &CloudObjects, stored: &Stored, data: &str) -> Stored {
    objects.update(&resource("cm"), changed(stored, &json!(data)), stored.version).await.unwrap()
}

pub(super) async fn pages(snapshot: &mut CloudList, query: PageQuery) -> Vec<Stored> {
    let mut items = Vec::new();
    let mut after = query.after.clone();
    loop {
        let page = snapshot.page(PageQuery { after, ..query.clone() }).await.unwrap();
        items.extend(page.items);
        after = page.next;
        if after.is_none() {
            return items;
        }
    }
}

fn query(limit: usize) -> PageQuery {
    PageQuery { limit, ..PageQuery::default() }
}

#[tokio::test]
async fn fields_set_by_the_api_are_kept() {
    let Fixture { objects, .. } = &Fixture::plain().await;
    let mut object = config_map("lab", "a", &json!("v"));
    for (field, value) in [
        ("uid", json!("2f9f1b6e-0000-4000-8000-000000000001")),
        ("creationTimestamp", json!("2026-01-02T03:04:05Z")),
        ("generation", json!(3)),
        ("deletionTimestamp", json!("2026-01-02T03:04:06Z")),
    ] {
        object.set_metadata(field, value);
    }
    let stored = Storage::create(objects, &resource("cm"), object.clone()).await.unwrap();
    object.set_metadata("resourceVersion", stored.version.to_string());
    assert_eq!(Object::parse(&stored.json).unwrap(), object);
    assert_eq!(Storage::get(objects, &resource("cm"), "lab", "a").await.unwrap(), Some(stored.clone()));
    object.set_metadata("generation", 9);
    let updated = objects.update(&resource("cm"), object.clone(), stored.version).await.unwrap();
    object.set_metadata("resourceVersion", updated.version.to_string());
    assert_eq!(Object::parse(&updated.json).unwrap(), object);
}

#[tokio::test]
async fn update_requires_version_and_uid() {
    let Fixture { objects, .. } = &Fixture::plain().await;
    let cm = resource("cm");
    let first = create(objects, "a").await;
    let second = update(objects, &first, "1").await;
    assert!(second.version > first.version);
    let code = |result: Result<Stored>| result.unwrap_err().code;
    assert_eq!(code(objects.update(&cm, changed(&second, &json!("2")), first.version).await), 409);
    let mut other = changed(&second, &json!("2"));
    other.set_metadata("uid", "other");
    assert_eq!(code(objects.update(&cm, other, second.version).await), 409);
    assert_eq!(code(objects.update(&cm, config_map("lab", "b", &json!("2")), 1).await), 404);
    assert_eq!(code(Storage::create(objects, &cm, config_map("lab", "a", &json!("2"))).await), 409);
    assert_eq!(code(objects.remove(&cm, &first).await), 409);
    assert_eq!(code(objects.remove(&cm, &Stored { name: "b".into(), ..second.clone() }).await), 404);
    let removed = objects.remove(&cm, &second).await.unwrap();
    assert!(removed.version > second.version);
    let mut last = Object::parse(&second.json).unwrap();
    last.set_metadata("resourceVersion", removed.version.to_string());
    assert_eq!(Object::parse(&removed.json).unwrap(), last);
}

#[tokio::test]
async fn equal_object_is_no_change() {
    let Fixture { objects, .. } = &Fixture::plain().await;
    let stored = create(objects, "a").await;
    let mut same = Object::parse(&stored.json).unwrap();
    same.remove_metadata("resourceVersion");
    assert_eq!(objects.update(&resource("cm"), same, stored.version).await.unwrap(), stored);
    assert_eq!(Storage::version(objects, &resource("cm")), stored.version);
}

#[tokio::test]
async fn too_large_object_is_refused_on_create_and_update() {
    let options = CloudOptions { max_object_bytes: 1000, ..CloudOptions::default() };
    let Fixture { objects, .. } = &Fixture::new(&options, RING_BYTES).await;
    let stored = create(objects, "a").await;
    let grown = changed(&stored, &json!("x".repeat(1000)));
    assert_eq!(objects.update(&resource("cm"), grown, stored.version).await.unwrap_err().code, 413);
}

fn seen(batch: &Batch) -> Vec<(ChangeType, String, Option<String>)> {
    batch
        .changes
        .iter()
        .map(|change| (change.kind, change.object.json.clone(), change.previous.clone()))
        .collect()
}

#[tokio::test]
async fn changes_have_the_previous_object_from_memory_and_history() {
    let fixture = Fixture::plain().await;
    let cm = resource("cm");
    let start = Storage::version(&fixture.objects, &cm);
    assert!(fixture.objects.watches.after(&name_of(&cm), start).is_none());
    let added = create(&fixture.objects, "a").await;
    let modified = update(&fixture.objects, &added, "1").await;
    let removed = fixture.objects.remove(&cm, &modified).await.unwrap();
    let expected = [
        (ChangeType::Added, added.json.clone(), None),
        (ChangeType::Modified, modified.json.clone(), Some(added.json.clone())),
        (ChangeType::Deleted, removed.json.clone(), None),
    ];
    assert!(fixture.objects.watches.after(&name_of(&cm), start).is_some());
    let from_memory = fixture.objects.changes(&cm, start).await.unwrap();
    assert_eq!((&seen(&from_memory)[..], from_memory.version), (&expected[..], removed.version));
    assert!(seen(&fixture.objects.changes(&resource("secrets"), start).await.unwrap()).is_empty());
    let fixture = fixture.reopen(&CloudOptions::default(), RING_BYTES).await;
    let from_history = fixture.objects.changes(&cm, start).await.unwrap();
    assert_eq!(seen(&from_history), expected);
    assert_eq!(from_history.version, Storage::version(&fixture.objects, &cm));
    let later = fixture.objects.changes(&cm, added.version).await.unwrap();
    assert_eq!(seen(&later), expected[1..]);
}

fn report(version: u64) -> RecordBatch {
    let object = edgesync_object::ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "lab".into(),
        name: "a".into(),
    };
    let put = vec![("u1".into(), Record { version: version.into(), object: Arc::new(object) })];
    RecordBatch { put, ..RecordBatch::default() }
}

#[tokio::test]
async fn record_before_a_report_keeps_fields_of_others() {
    let fixture = Fixture::plain().await;
    let syncs = resource("objectsyncs");
    let store = fixture.objects.store().clone();
    let get = async |objects: &CloudObjects| {
        Storage::get(objects, &syncs, "lab", "edge.u1").await.unwrap().unwrap()
    };
    let start = store.version();
    assert!(fixture.objects.watches.after(&name_of(&syncs), start).is_none());
    store.record(&node_name("edge"), None, report(99)).await.unwrap();
    let first = get(&fixture.objects).await;
    store.record(&node_name("edge"), None, report(100)).await.unwrap();
    let second = get(&fixture.objects).await;
    let mut owned = Object::parse(&second.json).unwrap();
    owned.set_metadata("finalizers", json!(["lab.io/keep"]));
    owned.set_metadata("managedFields", json!([{"manager": "kubectl"}]));
    let third = fixture.objects.update(&syncs, owned, second.version).await.unwrap();
    store.record(&node_name("edge"), None, report(101)).await.unwrap();
    let fourth = get(&fixture.objects).await;
    let last = Object::parse(&fourth.json).unwrap();
    assert!(
        ["finalizers", "managedFields"].iter().all(|field| last.metadata().unwrap().contains_key(*field))
    );
    assert_eq!(last.fields()["status"]["objectResourceVersion"], "101");
    let expected = [
        (ChangeType::Modified, second.json.clone(), Some(first.json.clone())),
        (ChangeType::Modified, third.json.clone(), Some(second.json.clone())),
        (ChangeType::Modified, fourth.json.clone(), Some(third.json.clone())),
    ];
    assert_eq!(seen(&fixture.objects.changes(&syncs, first.version).await.unwrap()), expected);
    let fixture = fixture.reopen(&CloudOptions::default(), RING_BYTES).await;
    assert_eq!(seen(&fixture.objects.changes(&syncs, first.version).await.unwrap()), expected);
}

#[tokio::test]
async fn future_version_waits_and_closed_store_is_unavailable() {
    let Fixture { objects, .. } = &Fixture::plain().await;
    let cm = resource("cm");
    let now = Storage::version(objects, &cm);
    let (waited, second) = tokio::join!(objects.changes(&cm, now + 1), async {
        create(objects, "a").await;
        create(objects, "b").await
    });
    assert_eq!(waited.unwrap().version, second.version);
    let (waited, ()) = tokio::join!(objects.changes(&cm, second.version), objects.store().close());
    assert_eq!(waited.unwrap_err().code, 503);
    assert_eq!(objects.checks()[0].1.as_ref().unwrap_err().code, 503);
    assert_eq!(objects.snapshot(&cm).await.unwrap_err().code, 503);
}

#[tokio::test]
async fn version_of_another_store_is_expired() {
    let options = CloudOptions::default();
    let fixture = Fixture::plain().await;
    let cm = resource("cm");
    let old = create(&fixture.objects, "a").await.version;
    let fixture = fixture.reopen(&options, RING_BYTES).await;
    let opened = Storage::version(&fixture.objects, &cm);
    let new = create(&fixture.objects, "b").await.version;
    for good in [old, opened] {
        assert_eq!(fixture.objects.changes(&cm, good).await.unwrap().version, new, "{good}");
    }
    for (bad, oldest) in [(old + 1, opened), (opened - 1, opened)] {
        let status = fixture.objects.changes(&cm, bad).await.unwrap_err();
        assert_eq!(
            (status.code, status.message),
            (410, format!("too old resource version: {bad} ({oldest})"))
        );
    }
}

#[tokio::test]
async fn pages_of_a_snapshot_show_one_commit() {
    let Fixture { objects, .. } = &Fixture::plain().await;
    let cm = resource("cm");
    let mut expected = Vec::new();
    for n in 0..30 {
        expected.push(create(objects, &format!("o{n:02}")).await);
    }
    let mut snapshot = objects.snapshot(&cm).await.unwrap();
    let Page { items: mut listed, next } = snapshot.page(query(7)).await.unwrap();
    for (n, old) in expected.iter().enumerate() {
        match n % 3 {
            0 => drop(objects.remove(&cm, old).await.unwrap()),
            1 => drop(update(objects, old, "new").await),
            _ => drop(create(objects, &format!("{}-more", old.name)).await),
        }
    }
    listed.extend(pages(&mut snapshot, PageQuery { after: next, ..query(7) }).await);
    assert_eq!(listed, expected);
    assert_eq!(snapshot.version(), expected.last().unwrap().version);
    assert_eq!((snapshot.count(None).await, snapshot.count(Some("lab")).await), (Ok(30), Ok(30)));
    assert_eq!(snapshot.count(Some("other")).await, Ok(0));
    let after = objects.changes(&cm, snapshot.version()).await.unwrap();
    assert_eq!(after.changes.len(), 30);
    let mut fresh = objects.snapshot(&cm).await.unwrap();
    assert_eq!((fresh.count(None).await, fresh.version()), (Ok(30), after.version));
}

#[tokio::test]
async fn pages_are_ordered_by_name_and_filtered_during_the_read() {
    let Fixture { objects, .. } = &Fixture::plain().await;
    let cm = resource("cm");
    for (namespace, name) in [("b", "1"), ("a", "2"), ("a", "1"), ("a", "3"), ("c", "1")] {
        Storage::create(objects, &cm, config_map(namespace, name, &json!(name))).await.unwrap();
    }
    let mut snapshot = objects.snapshot(&cm).await.unwrap();
    let names = |items: &[Stored]| {
        items.iter().map(|item| format!("{}/{}", item.namespace, item.name)).collect::<Vec<_>>().join(" ")
    };
    for limit in [1, 2, 5, 500] {
        assert_eq!(names(&pages(&mut snapshot, query(limit)).await), "a/1 a/2 a/3 b/1 c/1", "{limit}");
        let one = PageQuery { namespace: Some("a".into()), ..query(limit) };
        assert_eq!(names(&pages(&mut snapshot, one).await), "a/1 a/2 a/3", "{limit}");
        let ones = PageQuery { filter: Some(Arc::new(|item| item.name == "1")), ..query(limit) };
        assert_eq!(names(&pages(&mut snapshot, ones).await), "a/1 b/1 c/1", "{limit}");
    }
    assert_eq!(snapshot.page(query(5)).await.unwrap().next, None);
    let odd = PageQuery { after: Some(Cursor("%".into())), ..query(5) };
    assert_eq!(snapshot.page(odd).await.unwrap_err().code, 400);
    let mut none = objects.snapshot(&resource("secrets")).await.unwrap();
    assert_eq!((none.page(query(5)).await, none.count(None).await), (Ok(Page::default()), Ok(0)));
}

/// Returns a query with a counter of the objects read for it.
fn counted(query: PageQuery) -> (PageQuery, Arc<AtomicUsize>) {
    let read = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&read);
    let filter = move |_: &Stored| {
        counter.fetch_add(1, Ordering::Relaxed);
        true
    };
    (PageQuery { filter: Some(Arc::new(filter)), ..query }, read)
}

#[tokio::test]
async fn single_object_is_listed_without_reading_others() {
    let Fixture { objects, .. } = &Fixture::plain().await;
    let cm = resource("cm");
    for number in 0..60 {
        let namespace = format!("ns-{}", number % 3);
        let object = config_map(&namespace, &format!("o-{}", number / 3), &json!(number));
        Storage::create(objects, &cm, object).await.unwrap();
    }
    let mut snapshot = objects.snapshot(&cm).await.unwrap();
    for (namespace, name, limit, found) in [
        (Some("ns-1"), "o-7", 500, "ns-1/o-7"),
        (Some("ns-9"), "o-7", 500, ""),
        (None, "o-7", 500, "ns-0/o-7 ns-1/o-7 ns-2/o-7"),
        (None, "o-7", 1, "ns-0/o-7 ns-1/o-7 ns-2/o-7"),
        (None, "none", 500, ""),
    ] {
        let query =
            PageQuery { namespace: namespace.map(str::to_owned), name: Some(name.into()), ..query(limit) };
        let (query, read) = counted(query);
        let items = pages(&mut snapshot, query).await;
        let names: Vec<_> = items.iter().map(|item| format!("{}/{}", item.namespace, item.name)).collect();
        assert_eq!(names.join(" "), found, "{namespace:?} {name} {limit}");
        assert_eq!(read.load(Ordering::Relaxed), items.len(), "{namespace:?} {name} {limit}");
    }
}

#[tokio::test]
async fn label_selectors_read_only_matching_objects() {
    let Fixture { objects, .. } = &Fixture::plain().await;
    let cm = resource("cm");
    for number in 0..40 {
        let mut object = config_map(&format!("ns-{}", number % 2), &format!("o-{number:02}"), &json!(number));
        if number % 4 > 0 {
            object.set_metadata("labels", json!({"app": format!("a{}", number % 10), "odd": "y"}));
        }
        let stored = Storage::create(objects, &cm, object).await.unwrap();
        if number == 33 {
            let mut moved = Object::parse(&stored.json).unwrap();
            moved.set_metadata("labels", json!({"app": "a9"}));
            objects.update(&cm, moved, stored.version).await.unwrap();
        }
        if number == 13 {
            objects.remove(&cm, &stored).await.unwrap();
        }
    }
    let mut snapshot = objects.snapshot(&cm).await.unwrap();
    for (labels, namespace, found) in [
        ("app=a3", None, "03 23"),
        ("app in (a3,a9)", None, "03 09 19 23 29 33 39"),
        ("app in (a3,a9),odd", Some("ns-1"), "03 09 19 23 29 39"),
        ("app=a3", Some("ns-0"), ""),
        ("app=none", None, ""),
        ("!app,odd!=y", None, "00 04 08 12 16 20 24 28 32 36"),
    ] {
        let labels: Selector = labels.parse().unwrap();
        for limit in [1, 3, 500] {
            let namespace = namespace.map(str::to_owned);
            let (query, read) = counted(PageQuery { namespace, labels: labels.clone(), ..query(limit) });
            let items = pages(&mut snapshot, query).await;
            let mut names: Vec<_> = items.iter().map(|item| item.name.trim_start_matches("o-")).collect();
            names.sort_unstable();
            assert_eq!(names.join(" "), found, "{labels} {limit}");
            assert_eq!(read.load(Ordering::Relaxed), items.len(), "{labels} {limit}");
        }
    }
}

#[tokio::test]
async fn excess_concurrent_lists_get_retry_after() {
    let snapshots = SnapshotLimits { open: 1, idle: 1 };
    let options = CloudOptions { snapshots, ..CloudOptions::default() };
    let Fixture { objects, .. } = &Fixture::new(&options, RING_BYTES).await;
    let cm = resource("cm");
    let open = objects.snapshot(&cm).await.unwrap();
    let status = objects.snapshot(&cm).await.unwrap_err();
    assert_eq!((status.code, status.details.unwrap().retry_after_seconds), (429, 1));
    drop(open);
    objects.snapshot(&cm).await.unwrap();
}

#[tokio::test]
async fn overlapping_lists_keep_the_log_within_its_bound() {
    const LOG: u64 = 256 << 10;
    let mut options = CloudOptions::default();
    options.engine.wal_bytes = LOG;
    let Fixture { objects, path, .. } = &Fixture::new(&options, RING_BYTES).await;
    let cm = resource("cm");
    let wal = edgesync_store::engine::wal_path(path);
    let mut open = std::collections::VecDeque::new();
    let (mut longest, mut given_up, mut whole) = (0, 0, 0);
    for round in 0..400 {
        let object = config_map("lab", &format!("o{round:03}"), &json!("x".repeat(10_000)));
        Storage::create(objects, &cm, object).await.unwrap();
        longest = longest.max(std::fs::metadata(&wal).unwrap().len());
        // Each list begins before the previous one has ended.
        let mut list = objects.snapshot(&cm).await.unwrap();
        match list.page(query(2)).await {
            Ok(first) => open.push_back((list, first)),
            Err(status) => assert_eq!(status.code, 410, "{status}"),
        }
        if open.len() > 3 {
            let (mut list, first) = open.pop_front().unwrap();
            match list.page(PageQuery { after: first.next, ..query(500) }).await {
                Ok(page) => whole += usize::from(page.next.is_none()),
                Err(status) => {
                    assert_eq!(status.code, 410, "{status}");
                    given_up += 1;
                }
            }
        }
    }
    // Allows for one more transaction, and for writes during the wait for a read that has just
    // begun.
    assert!(longest < (LOG_FACTOR + 2) * LOG, "{longest}");
    assert!(given_up > 0 && whole > 300, "{given_up} were given up, {whole} were not");
}

#[tokio::test]
async fn store_has_one_observer() {
    let Fixture { objects, .. } = &Fixture::plain().await;
    assert!(CloudObjects::new(objects.store().clone()).await.is_err());
}

/// Creates an object of a kind written by the fleet and its programs, not by users.
fn of_the_fleet(word: &str, number: usize) -> (Arc<Resource>, Object) {
    let resource = resource(word);
    let namespace = if word == "nodes" { json!(null) } else { json!("lab") };
    let value = json!({"apiVersion": resource.api_version(), "kind": resource.kind,
        "metadata": {"name": format!("n{number}"), "namespace": namespace}});
    (resource, serde_json::from_value(value).unwrap())
}

#[tokio::test]
async fn rollout_to_ten_thousand_nodes_expires_no_watch() {
    let Fixture { objects, .. } = &Fixture::plain().await;
    let first = create(objects, "a").await;
    let about = Arc::new(edgesync_object::ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "lab".into(),
        name: "a".into(),
    });
    for node in 0..50 {
        let put =
            |uid: u32| (format!("u{uid}").into(), Record { version: 1.into(), object: Arc::clone(&about) });
        let batch = RecordBatch { put: (0..250).map(put).collect(), ..RecordBatch::default() };
        objects.store.record(&node_name(&format!("n{node}")), None, batch).await.unwrap();
    }
    let second = update(objects, &first, "1").await;
    let changes = |word: &str, after| {
        let resource = resource(word);
        async move { objects.changes(&resource, after).await }
    };
    let seen = changes("cm", first.version).await.unwrap();
    assert_eq!(seen.changes.iter().map(|change| change.object.version).collect::<Vec<_>>(), [second.version]);
    assert_eq!(changes("objectsyncs", first.version).await.unwrap_err().code, 410);
}

#[tokio::test]
async fn fleet_and_user_writes_have_separate_history_bounds() {
    let few = HistoryBound { changes: 16, bytes: 1 << 20 };
    let history = HistoryLimits { objects: few, fleet: few };
    let options = CloudOptions { history, ..CloudOptions::default() };
    let fixture = Fixture::new(&options, 0).await;
    let words = ["cm", "nodes", "leases", "events.events.k8s.io"];
    let start = create(&fixture.objects, "first").await.version;
    for (number, word) in words.iter().enumerate().skip(1) {
        let (resource, object) = of_the_fleet(word, number);
        Storage::create(&fixture.objects, &resource, object).await.unwrap();
    }
    for flooded in words {
        let objects = &fixture.objects;
        let before = objects.store.version();
        for number in 100..140 {
            let (resource, mut object) = of_the_fleet(flooded, number);
            object.set_metadata("name", format!("{}-{number}", resource.plural));
            Storage::create(objects, &resource, object).await.unwrap();
        }
        for word in words {
            let follows = objects.changes(&resource(word), before).await.map(|batch| batch.changes.len());
            let expected = if word == flooded { Err(410) } else { Ok(0) };
            assert_eq!(follows.map_err(|status| status.code), expected, "{word} after many {flooded}");
        }
    }
    let fixture = fixture.reopen(&options, 0).await;
    for word in words {
        assert_eq!(fixture.objects.changes(&resource(word), start).await.unwrap_err().code, 410, "{word}");
        let before = fixture.objects.store.version();
        let (resource, object) = of_the_fleet(word, 7);
        let new = Storage::create(&fixture.objects, &resource, object).await.unwrap();
        let seen = fixture.objects.changes(&resource, before).await.unwrap().changes;
        assert_eq!(seen.iter().map(|change| change.object.version).collect::<Vec<_>>(), [new.version]);
    }
}

/// Marks a Namespace as terminating, as the API does.
async fn terminate(objects: &CloudObjects, name: &str) -> Stored {
    let namespaces = resource("ns");
    let stored = Storage::get(objects, &namespaces, "", name).await.unwrap().unwrap();
    let mut object = Object::parse(&stored.json).unwrap();
    object.set_metadata("deletionTimestamp", "2026-01-02T03:04:06Z");
    objects.update(&namespaces, object, stored.version).await.unwrap()
}

#[tokio::test]
async fn no_object_enters_a_namespace_during_its_deletion() {
    let Fixture { objects, dir, .. } = Fixture::plain().await;
    let objects = &Arc::new(objects);
    let (maps, namespaces) = (resource("cm"), resource("ns"));
    let ensure = async |name: &str| objects.ensure_namespace(&maps, "lab", name, false).await;
    // A create admitted before the namespace is marked arrives after that.
    ensure("late").await.unwrap();
    let marked = terminate(objects, "lab").await;
    let late = Storage::create(&**objects, &maps, config_map("lab", "late", &json!("0"))).await.unwrap_err();
    assert_eq!((late.code, late.reason), (409, Some(edgesync_object::status::Reason::Conflict)));
    let refused = ensure("late").await.unwrap_err();
    let cause = refused.details.as_ref().map(|details| details.causes[0].reason.as_str());
    assert_eq!((refused.code, cause), (403, Some("NamespaceTerminating")), "{refused}");
    objects.remove(&namespaces, &marked).await.unwrap();
    // Through the API, a create that relies on a stale cache entry recreates the namespace.
    ensure("later").await.unwrap();
    objects.remove(&namespaces, &terminate(objects, "lab").await).await.unwrap();
    let address = edgesync_api::Address::Unix(dir.path().join("api.sock"));
    let listener = edgesync_api::Listener::bind(&address).await.unwrap();
    let (access, limits) =
        (edgesync_api::Access::tokens(Vec::new(), edgesync_api::own_uid()), edgesync_api::Limits::cloud());
    let server = edgesync_api::Server::new(Arc::clone(objects), (), access, limits);
    let serving = tokio::spawn(async move { server.serve(listener, std::future::pending()).await });
    let later = serde_json::to_value(config_map("lab", "later", &json!("0"))).unwrap();
    let path = "/api/v1/namespaces/lab/configmaps";
    edgesync_api::Client::new(address).post::<Value>(path, &later).await.unwrap();
    serving.abort();
    let recreated = Storage::get(&**objects, &namespaces, "", "lab").await.unwrap().unwrap();
    assert!(recreated.version > marked.version);
    // A removal fails if the namespace is no longer empty.
    let marked = terminate(objects, "lab").await;
    let full = objects.remove(&namespaces, &marked).await.unwrap_err();
    assert_eq!((full.code, full.message.contains("configmaps")), (409, true), "{full}");
    assert!(Storage::get(&**objects, &namespaces, "", "lab").await.unwrap().is_some());
    let map = Storage::get(&**objects, &maps, "lab", "later").await.unwrap().unwrap();
    objects.remove(&maps, &map).await.unwrap();
    // Records do not keep a namespace: they are deleted when their nodes report.
    let about = edgesync_object::ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "lab".into(),
        name: "later".into(),
    };
    let record = Record { version: 1.into(), object: Arc::new(about) };
    let batch = RecordBatch { put: [("u1".into(), record)].into(), ..RecordBatch::default() };
    objects.store.record(&node_name("n1"), None, batch).await.unwrap();
    objects.remove(&namespaces, &marked).await.unwrap();
}

#[tokio::test]
async fn rule_with_an_invalid_rollout_is_refused() {
    let fixture = Fixture::plain().await;
    let kind = fixture.objects.kind("edgesync.io", "v1alpha1", "placements").unwrap();
    let admit = |rollout: Value| {
        let rule = json!({
            "apiVersion": "edgesync.io/v1alpha1", "kind": "Placement", "metadata": {"name": "web", "namespace": "lab"},
            "spec": {"objects": {"kinds": ["cm"]}, "nodes": {}, "rollout": rollout},
        });
        fixture.objects.admit(&kind, None, &mut serde_json::from_value(rule).unwrap())
    };
    admit(Value::Null).unwrap();
    admit(json!({"waves": [{"percent": 10}, {}]})).unwrap();
    let refused = admit(json!({"waves": [{}, {"percent": 10}]})).unwrap_err();
    assert_eq!(refused.code, 422);
    let causes = refused.details.unwrap().causes;
    assert_eq!(causes[0].field, "spec.rollout.waves[1]");
    assert!(causes[0].message.contains("selects no node"), "{causes:?}");
}
