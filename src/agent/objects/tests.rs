//! Tests of the storage over a real store: a client that lists and then watches has the result of a
//! new list.

mod events;
mod log;
mod status;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicUsize;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::*;
use crate::store::EdgeOptions;
use edgesync_api::{ChangeType, PageQuery, RowFilter, Snapshot};
use edgesync_object::kinds as known;
use edgesync_object::random::split_mix_64;
use edgesync_protocol::change::{Change, Delete, Put};
use edgesync_protocol::node::merge_report;

const LONG: Duration = Duration::from_secs(3600);

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        split_mix_64(&mut self.0) % limit
    }
}

fn resource(word: &str) -> Arc<Resource> {
    Arc::new(known::by_word(word).unwrap().resource())
}

fn deployments(version: &str) -> Arc<Resource> {
    Arc::new(Resource { version: version.into(), ..(*resource("deployments")).clone() })
}

/// The kinds that clients watch.
fn followed() -> Vec<Arc<Resource>> {
    let words = ["cm", "pv", "objectsyncs", "clusterobjectsyncs", "leases", "events.events.k8s.io"];
    words.map(resource).into_iter().chain(["v1", "v1beta1"].map(deployments)).collect()
}

async fn open_storage(path: &Path, bytes: usize, keep: Duration) -> EdgeObjects {
    open_storage_with(path, EdgeOptions::default(), bytes, keep).await
}

async fn open_storage_with(path: &Path, options: EdgeOptions, bytes: usize, keep: Duration) -> EdgeObjects {
    let options = EdgeOptions { check_pause: Duration::ZERO, ..options };
    // The lock of a store that was just dropped may persist a moment longer.
    let opened = async {
        loop {
            match EdgeStore::open(path, options.clone()) {
                Err(StoreError::InUse { .. }) => tokio::task::yield_now().await,
                other => break other.unwrap(),
            }
        }
    };
    let opened = tokio::time::timeout(Duration::from_secs(600), opened).await;
    let store = opened.expect("the dropped store releases its lock");
    let kinds = Arc::new(KindRegistry::default());
    let node = NodeName::parse("gw-1").unwrap();
    EdgeObjects::keeping(store, kinds, &node, bytes, Arc::new(clocked), shared_node("gw-1"), keep)
}

/// The time of the test's clock.
fn clocked() -> MonotonicTime {
    MonotonicTime { boot: 7, since_boot: 5000 }
}

fn put(resource: Arc<Resource>, uid: u64, name: u64, version: u64) -> Change {
    let namespace = if resource.scope == Scope::Cluster { String::new() } else { format!("ns-{}", name % 3) };
    let mut metadata = json!({"name": format!("o-{name}"), "uid": format!("u-{uid}"), "resourceVersion": version.to_string()});
    if !namespace.is_empty() {
        metadata["namespace"] = json!(namespace);
    }
    let body = json!({"apiVersion": resource.api_version(), "kind": resource.kind, "metadata": metadata,
        "data": {"text": "x".repeat(uid as usize % 7 * 30)}});
    Change::Put(Put {
        uid: format!("u-{uid}").as_str().into(),
        version: version.into(),
        supersedes: None,
        resource,
        namespace: namespace.as_str().into(),
        name: format!("o-{name}").as_str().into(),
        body: RawValue::from_string(body.to_string()).unwrap(),
    })
}

fn delete(uid: u64) -> Change {
    Change::Delete(Delete { uid: format!("u-{uid}").as_str().into(), key: resource("cm").key("ns-0", "any") })
}

fn lease(name: &str, text: &str) -> Object {
    let value = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "lab", "uid": "u"}, "spec": {"holderIdentity": text}});
    serde_json::from_value(value).unwrap()
}

type Held = BTreeMap<(String, String), Stored>;

/// Lists from the first page to the last.
async fn list(storage: &EdgeObjects, resource: &Arc<Resource>, limit: usize) -> (Held, u64) {
    let mut snapshot = storage.snapshot(resource).await.unwrap();
    let mut held = Held::new();
    let mut after = None;
    loop {
        let page = snapshot.page(PageQuery { after, limit, ..PageQuery::default() }).await.unwrap();
        assert!(page.items.len() <= limit);
        for item in page.items {
            let value: Value = serde_json::from_str(&item.json).unwrap();
            assert_eq!(value["metadata"]["resourceVersion"], item.version.to_string());
            assert!(item.version <= snapshot.version());
            let twice = held.insert((item.namespace.clone(), item.name.clone()), item);
            assert_eq!(twice, None);
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(snapshot.count(None).await.unwrap(), held.len() as u64);
    (held, snapshot.version())
}

/// A client that lists and then watches.
struct Client {
    resource: Arc<Resource>,
    held: Held,
    version: u64,
    relists: usize,
}

impl Client {
    async fn catch_up(&mut self, storage: &EdgeObjects, limit: usize) {
        while self.version != storage.version(&self.resource) {
            match storage.changes(&self.resource, self.version).await {
                Ok(batch) => self.apply(&batch),
                Err(status) => {
                    assert_eq!(status.code, 410, "{status}");
                    (self.held, self.version) = list(storage, &self.resource, limit).await;
                    self.relists += 1;
                }
            }
        }
        let (fresh, version) = list(storage, &self.resource, limit).await;
        assert_eq!(self.held, fresh, "{}", self.resource.kind);
        assert_eq!(self.version, version);
    }

    /// Each change matches the client's state.
    fn apply(&mut self, batch: &Batch) {
        for change in &batch.changes {
            let object = change.object.clone();
            assert!(object.version > self.version && object.version <= batch.version);
            self.version = object.version;
            let value: Value = serde_json::from_str(&object.json).unwrap();
            assert_eq!(value["metadata"]["resourceVersion"], object.version.to_string());
            let key = (object.namespace.clone(), object.name.clone());
            let before = match change.kind {
                ChangeType::Deleted => self.held.remove(&key),
                ChangeType::Added | ChangeType::Modified => self.held.insert(key, object),
            };
            assert_eq!(change.previous, before.map(|before| before.json), "{:?}", change.kind);
            assert_eq!(change.kind == ChangeType::Added, change.previous.is_none());
        }
        self.version = batch.version;
    }
}

async fn write_local(storage: &EdgeObjects, random: &mut Random, round: u64) {
    let word = if random.below(2) == 0 { "leases" } else { "events.events.k8s.io" };
    let (resource, name) = (resource(word), format!("l-{}", random.below(6)));
    let object = lease(&name, &format!("round {round}"));
    let version = match storage.get(&resource, "lab", &name).await.unwrap() {
        None => storage.create(&resource, object).await.unwrap().version,
        Some(held) if random.below(3) == 0 => {
            let gone = storage.remove(&resource, &held).await.unwrap();
            assert!(gone.json.contains("holderIdentity"), "as it was last");
            gone.version
        }
        Some(held) => storage.update(&resource, object, held.version).await.unwrap().version,
    };
    assert_eq!(version, storage.version(&resource));
}

async fn change(storage: &EdgeObjects, random: &mut Random, round: u64) {
    let kinds = [resource("cm"), resource("cm"), resource("pv"), deployments("v1"), deployments("v1beta1")];
    let changes = (0..=random.below(8)).map(|_| {
        let number = random.below(30);
        // The same name under another UID is another object; the kind may change its version.
        let uid = number + 100 * random.below(2);
        let group = usize::try_from(number % 4).unwrap();
        let kind = if group == 3 { 3 + random.below(2) as usize } else { group };
        match random.below(4) {
            0 => delete(uid),
            _ => put(kinds[kind].clone(), uid, number, round),
        }
    });
    let commit = storage.store.apply(changes.collect()).await.unwrap();
    assert!(commit.applied.rejected.len() < 8);
}

/// Disturbs the file; mostly does nothing.
async fn disturb(
    storage: EdgeObjects,
    path: &Path,
    random: &mut Random,
    bytes: usize,
    keep: Duration,
) -> EdgeObjects {
    match random.below(25) {
        0 => {
            storage.store.close().await;
            drop(storage);
            open_storage(path, bytes, keep).await
        }
        1 => {
            // The totals are wrong: the check gives the store a new epoch.
            let before = storage.store.versions();
            storage.store.set_incarnation(Some("x".into())).await.unwrap();
            let vandal = rusqlite::Connection::open(path).unwrap();
            vandal
                .execute_batch("UPDATE journal SET totals = zeroblob(24) WHERE totals IS NOT NULL")
                .unwrap();
            vandal.execute_batch("UPDATE objects SET totals = NULL").unwrap();
            drop(vandal);
            // It may be damage to the one and a wrong count to the other.
            let _ = storage.store.check().await;
            let _ = storage.store.check().await;
            assert!(storage.store.versions().objects >= before.objects);
            storage
        }
        _ => storage,
    }
}

async fn run(seed: u64, bytes: usize, keep: Duration) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let mut storage = open_storage(&path, bytes, keep).await;
    let mut random = Random(seed);
    let client = |resource| Client { resource, held: Held::new(), version: 0, relists: 0 };
    let mut clients: Vec<Client> = followed().into_iter().map(client).collect();
    for round in 1..=80 {
        match random.below(3) {
            0 => write_local(&storage, &mut random, round).await,
            _ => change(&storage, &mut random, round).await,
        }
        storage = disturb(storage, &path, &mut random, bytes, keep).await;
        for client in &mut clients {
            if random.below(3) == 0 {
                client.catch_up(&storage, 1 + random.below(7) as usize).await;
            }
        }
    }
    for client in &mut clients {
        client.catch_up(&storage, 500).await;
    }
    clients.iter().map(|client| client.relists).sum()
}

#[tokio::test]
async fn a_watch_converges_to_the_result_of_a_new_list() {
    for seed in 1..=6 {
        let relists = run(seed * 0x9e37_79b9, 1 << 20, LONG).await;
        println!("seed {seed}: {relists} lists");
    }
}

#[tokio::test]
async fn a_small_watch_cache_needs_more_lists_and_converges() {
    let small = run(77, 4 << 10, LONG).await;
    let none = run(77, 1 << 20, Duration::ZERO).await;
    assert!(small > followed().len() && none > followed().len(), "{small} {none}");
}

#[tokio::test]
async fn versions_survive_a_restart_and_a_watch_continues() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let (cm, leases) = (resource("cm"), resource("leases"));
    let first = open_storage(&path, 1 << 20, LONG).await;
    first.store.apply(vec![put(cm.clone(), 1, 1, 5), put(cm.clone(), 2, 2, 5), delete(2)]).await.unwrap();
    let made = first.create(&leases, lease("a", "1")).await.unwrap();
    let gone = first.remove(&leases, &made).await.unwrap();
    assert_eq!(gone.version, made.version + 1);
    let versions = first.store.versions();
    let held = first.get(&cm, "ns-1", "o-1").await.unwrap().unwrap();
    assert!(held.json.contains(&format!("\"resourceVersion\":\"{}\"", held.version)), "{}", held.json);
    first.store.close().await;
    drop(first);

    let second = open_storage(&path, 1 << 20, LONG).await;
    assert_eq!(second.store.versions(), versions);
    assert_eq!(second.get(&cm, "ns-1", "o-1").await.unwrap(), Some(held));
    for (resource, version) in [(&cm, versions.objects), (&leases, versions.local)] {
        assert_eq!(second.changes(resource, version - 1).await.unwrap_err().code, 410);
    }
    let (objects, made) = tokio::join!(second.changes(&leases, versions.local), async {
        second.create(&leases, lease("b", "1")).await.unwrap()
    });
    assert_eq!(objects.unwrap().changes[0].object, made);
}

#[tokio::test]
async fn versions_of_a_lost_epoch_are_never_reused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let first = open_storage(&path, 1 << 20, LONG).await;
    let leases = resource("leases");
    first.store.apply((1..50).map(|n| put(resource("cm"), n, n, 5)).collect()).await.unwrap();
    first.create(&leases, lease("a", "1")).await.unwrap();
    let before = first.store.versions();
    first.store.close().await;
    drop(first);
    // Header and schema are gone: readable rows move to another file.
    use std::os::unix::fs::FileExt as _;
    std::fs::File::options().write(true).open(&path).unwrap().write_all_at(&[0; 100], 0).unwrap();
    let second = open_storage(&path, 1 << 20, LONG).await;
    let after = second.store.versions();
    assert!(second.store.health().borrow().reset.is_some());
    assert!(after.objects > before.objects && after.local > before.local, "{before:?} {after:?}");
    assert!(second.get(&leases, "lab", "a").await.unwrap().is_some(), "local objects are saved too");
    let held = second.get(&resource("cm"), "ns-1", "o-1").await.unwrap().unwrap();
    assert!(held.version > before.objects);
    assert_eq!(second.changes(&leases, before.local).await.unwrap_err().code, 410);
}

#[tokio::test]
async fn writes_compare_and_swap_and_synced_kinds_refuse_them() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open_storage(&dir.path().join("edge.db"), 1 << 20, LONG).await;
    let leases = resource("leases");
    let code = |result: Result<Stored>| result.unwrap_err().code;
    let made = storage.create(&leases, lease("a", "1")).await.unwrap();
    assert_eq!(code(storage.create(&leases, lease("a", "2")).await), 409);
    assert_eq!(code(storage.update(&leases, lease("a", "2"), made.version + 1).await), 409);
    assert_eq!(code(storage.update(&leases, lease("b", "2"), made.version).await), 404);
    let next = storage.update(&leases, lease("a", "2"), made.version).await.unwrap();
    assert_eq!(storage.get(&leases, "lab", "a").await.unwrap(), Some(next.clone()));
    assert_eq!(code(storage.remove(&leases, &made).await), 409);
    storage.remove(&leases, &next).await.unwrap();
    assert_eq!(code(storage.remove(&leases, &next).await), 404);
    assert_eq!(code(storage.create(&leases, lease("big", &"x".repeat(70_000))).await), 413);
    let refused = storage.create(&resource("cm"), lease("a", "1")).await.unwrap_err();
    assert!(refused.code == 403 && refused.message.contains("on the cloud side"), "{refused}");
    for number in 0..MAX_LEASES {
        storage.create(&leases, lease(&format!("l-{number}"), "1")).await.unwrap();
    }
    let refused = storage.create(&leases, lease("one-more", "1")).await.unwrap_err();
    assert!(refused.code == 403 && refused.message.contains("at most 256 Leases"), "{refused}");
}

#[tokio::test]
async fn a_filter_sees_every_row_and_the_last_page_is_exact() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open_storage(&dir.path().join("edge.db"), 1 << 20, LONG).await;
    storage.store.apply((0..40).map(|n| put(resource("cm"), n, n, 5)).collect()).await.unwrap();
    for word in ["cm", "objectsyncs"] {
        let resource = resource(word);
        let mut snapshot = storage.snapshot(&resource).await.unwrap();
        let filter: edgesync_api::RowFilter =
            Arc::new(|item| item.json.contains("o-7\"") || item.name == "gw-1.u-7");
        let query = PageQuery { limit: 5, filter: Some(filter), ..PageQuery::default() };
        let page = snapshot.page(query).await.unwrap();
        assert_eq!((page.items.len(), page.next), (1, None), "{word}");
        let query = PageQuery { limit: 40, ..PageQuery::default() };
        assert_eq!(snapshot.page(query).await.unwrap().next, None, "{word}");
        let query = PageQuery { limit: 39, ..PageQuery::default() };
        assert!(snapshot.page(query).await.unwrap().next.is_some(), "{word}");
        let query = PageQuery { namespace: Some("ns-1".into()), limit: 500, ..PageQuery::default() };
        assert_eq!(
            snapshot.page(query).await.unwrap().items.len() as u64,
            snapshot.count(Some("ns-1")).await.unwrap()
        );
        let query =
            PageQuery { after: Some(edgesync_api::Cursor("?".into())), limit: 1, ..PageQuery::default() };
        assert_eq!(snapshot.page(query).await.unwrap_err().code, 400, "{word}");
    }
}

#[tokio::test]
async fn one_object_is_listed_without_reading_others() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open_storage(&dir.path().join("edge.db"), 1 << 20, LONG).await;
    let nodes = (100..140).map(|n| put(resource("pv"), n, n, 5));
    storage.store.apply((0..40).map(|n| put(resource("cm"), n, n, 5)).chain(nodes).collect()).await.unwrap();
    let leases = resource("leases");
    for number in 0..40 {
        storage.create(&leases, lease(&format!("o-{number}"), "1")).await.unwrap();
    }
    for (word, namespace, name, found) in [
        ("cm", Some("ns-1"), "o-7", 1),
        ("cm", Some("ns-2"), "o-7", 0),
        ("cm", None, "o-7", 1),
        ("cm", None, "none", 0),
        ("pv", None, "o-107", 1),
        ("leases", Some("lab"), "o-7", 1),
        ("leases", None, "o-7", 1),
        ("objectsyncs", Some("ns-1"), "gw-1.u-7", 1),
        ("objectsyncs", None, "gw-1.u-7", 1),
        ("objectsyncs", None, "gw-2.u-7", 0),
        ("objectsyncs", None, "odd", 0),
        ("clusterobjectsyncs", None, "gw-1.u-107", 1),
    ] {
        let read = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&read);
        let filter: edgesync_api::RowFilter = Arc::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            true
        });
        let query = PageQuery {
            namespace: namespace.map(str::to_owned),
            name: Some(name.into()),
            limit: 500,
            filter: Some(filter),
            ..PageQuery::default()
        };
        let page = storage.snapshot(&resource(word)).await.unwrap().page(query).await.unwrap();
        assert_eq!((page.items.len(), page.next), (found, None), "{word} {namespace:?} {name}");
        assert!(page.items.iter().all(|item| item.name == name), "{word} {name}");
        assert_eq!(read.load(Ordering::Relaxed), found, "{word} {namespace:?} {name}");
    }
}

#[tokio::test]
async fn a_list_shows_one_commit_however_long_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open_storage(&dir.path().join("edge.db"), 1 << 20, LONG).await;
    let cm = resource("cm");
    storage.store.apply((0..10).map(|n| put(cm.clone(), n, n, 5)).collect()).await.unwrap();
    let mut snapshot = storage.snapshot(&cm).await.unwrap();
    let first = snapshot.page(PageQuery { limit: 4, ..PageQuery::default() }).await.unwrap();
    storage.store.apply((0..20).map(|n| put(cm.clone(), n, n, 6)).collect()).await.unwrap();
    let rest =
        snapshot.page(PageQuery { after: first.next, limit: 500, ..PageQuery::default() }).await.unwrap();
    assert_eq!(rest.items.len(), 6);
    assert!(rest.items.iter().all(|item| item.version <= snapshot.version()));
    // Few at a time.
    let mut open = Vec::new();
    let refused = loop {
        match storage.snapshot(&cm).await {
            Ok(another) => open.push(another),
            Err(refused) => break refused,
        }
    };
    assert_eq!((open.len() + 1, refused.code), (MAX_SNAPSHOTS, 429));
    drop(open);
    assert_eq!(storage.snapshot(&cm).await.unwrap().version(), storage.version(&cm));
}

#[tokio::test]
async fn a_record_has_its_own_version_and_uid() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open_storage(&dir.path().join("edge.db"), 1 << 20, LONG).await;
    storage.store.apply(vec![put(resource("cm"), 1, 1, 55), put(resource("pv"), 2, 2, 66)]).await.unwrap();
    let record = storage.get(&resource("objectsyncs"), "ns-1", "gw-1.u-1").await.unwrap().unwrap();
    let value: Value = serde_json::from_str(&record.json).unwrap();
    assert_eq!(value["status"]["objectResourceVersion"], "55");
    assert_eq!(value["metadata"]["resourceVersion"], record.version.to_string());
    assert_eq!(value["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert!(storage.get(&resource("clusterobjectsyncs"), "", "gw-1.u-2").await.unwrap().is_some());
    for (word, namespace, name) in [
        ("objectsyncs", "ns-2", "gw-1.u-1"),
        ("objectsyncs", "", "gw-1.u-2"),
        ("clusterobjectsyncs", "ns-1", "gw-1.u-1"),
        ("objectsyncs", "ns-1", "gw-2.u-1"),
        ("objectsyncs", "ns-1", "nonsense"),
    ] {
        assert_eq!(storage.get(&resource(word), namespace, name).await.unwrap(), None, "{word} {name}");
    }
}

#[tokio::test]
async fn closing_the_store_ends_pending_watches() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open_storage(&dir.path().join("edge.db"), 1 << 20, LONG).await;
    let cm = resource("cm");
    let version = storage.version(&cm);
    let (batch, ()) = tokio::join!(storage.changes(&cm, version), storage.store.close());
    assert_eq!(batch.unwrap_err().code, 503);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_during_commits_can_continue_as_a_watch() {
    let dir = tempfile::tempdir().unwrap();
    let cm = resource("cm");
    for round in 0..10 {
        let storage = open_storage(&dir.path().join(format!("{round}.db")), 1 << 20, LONG).await;
        let (store, kind) = (storage.store.clone(), cm.clone());
        let writing = tokio::spawn(async move {
            for version in 1..60 {
                store.apply(vec![put(kind.clone(), 1, 1, version)]).await.unwrap();
            }
        });
        let mut follower = Client { resource: cm.clone(), held: Held::new(), version: 0, relists: 0 };
        (follower.held, follower.version) = list(&storage, &cm, 500).await;
        writing.await.unwrap();
        follower.catch_up(&storage, 500).await;
        assert_eq!(follower.relists, 0, "round {round}");
        storage.store.close().await;
    }
}

#[tokio::test]
async fn the_watch_cache_is_empty_without_clients() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open_storage(&dir.path().join("edge.db"), 1 << 20, LONG).await;
    use crate::store::CommitListener as _;
    let cm = resource("cm");
    let before = storage.version(&cm);
    storage.store.apply(vec![put(cm.clone(), 1, 1, 5)]).await.unwrap();
    assert_eq!(storage.watches.appetite(), 0);
    assert_eq!(storage.changes(&cm, before).await.unwrap_err().code, 410);
    assert!(storage.watches.appetite() > 0);
    let before = storage.version(&cm);
    storage.store.apply(vec![put(cm.clone(), 1, 1, 6)]).await.unwrap();
    assert_eq!(storage.changes(&cm, before).await.unwrap().changes.len(), 1);
}

async fn names(storage: &EdgeObjects, word: &str) -> (Vec<String>, u64) {
    let mut list = storage.snapshot(&resource(word)).await.unwrap();
    let query = |after| PageQuery { limit: 2, after, ..PageQuery::default() };
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = list.page(query(after)).await.unwrap();
        names.extend(page.items.into_iter().map(|item| item.name));
        after = page.next;
        if after.is_none() {
            return (names, list.version());
        }
    }
}

#[tokio::test]
async fn namespaces_follow_the_held_objects() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open_storage(&directory.path().join("db"), 1 << 20, LONG).await;
    let of = resource("ns");
    assert_eq!(names(&storage, "ns").await.0, [""; 0]);
    storage.store.apply((0..3).map(|n| put(resource("cm"), n, n, 5)).collect()).await.unwrap();
    let (found, version) = names(&storage, "ns").await;
    assert_eq!(found, ["ns-0", "ns-1", "ns-2"]);
    assert_eq!(names(&storage, "ns").await.1, version, "nothing is new");
    let shown = storage.get(&of, "", "ns-1").await.unwrap().unwrap();
    let json: Value = serde_json::from_str(&shown.json).unwrap();
    assert_eq!(json["status"]["phase"], "Active");
    assert_eq!(json["metadata"]["resourceVersion"], shown.version.to_string());
    assert!(storage.get(&of, "", "ns-9").await.unwrap().is_none());

    // A namespace from the cloud replaces the synthesized one; its deletion removes the namespace.
    let sent = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns-2", "uid": "u-9", "resourceVersion": "6",
        "labels": {"site": "north"}}});
    let sent = Change::Put(Put {
        uid: "u-9".into(),
        version: "6".into(),
        supersedes: None,
        resource: of.clone(),
        namespace: "".into(),
        name: "ns-2".into(),
        body: RawValue::from_string(sent.to_string()).unwrap(),
    });
    let followed = async { storage.changes(&of, version).await.unwrap() };
    let changed = async {
        storage.store.apply(vec![sent, delete(0)]).await.unwrap();
    };
    let (batch, ()) = tokio::join!(followed, changed);
    let watched: Vec<_> = batch.changes.iter().map(|change| (change.kind, &*change.object.name)).collect();
    assert_eq!(watched, [(ChangeType::Modified, "ns-2"), (ChangeType::Deleted, "ns-0")]);
    assert!(batch.changes[0].object.json.contains("north"));
    assert_eq!(names(&storage, "ns").await, (vec!["ns-1".to_owned(), "ns-2".to_owned()], batch.version));
    let mut list = storage.snapshot(&of).await.unwrap();
    let filter: RowFilter = Arc::new(|item: &Stored| item.json.contains("north"));
    for query in [
        PageQuery { limit: 9, name: Some("ns-2".to_owned()), ..PageQuery::default() },
        PageQuery { limit: 9, filter: Some(filter), ..PageQuery::default() },
    ] {
        let page = list.page(query).await.unwrap();
        assert_eq!(page.items.iter().map(|item| &*item.name).collect::<Vec<_>>(), ["ns-2"]);
    }

    // The first object brings it back, a second one is no change.
    storage.store.apply(vec![put(resource("cm"), 7, 0, 6)]).await.unwrap();
    let batch = storage.changes(&of, batch.version).await.unwrap();
    let watched: Vec<_> = batch.changes.iter().map(|change| (change.kind, &*change.object.name)).collect();
    assert_eq!(watched, [(ChangeType::Added, "ns-0")]);
    assert!(batch.changes[0].object.version <= storage.store.versions().objects);
    storage.store.apply(vec![put(resource("cm"), 8, 3, 6)]).await.unwrap();
    assert_eq!(names(&storage, "ns").await.1, batch.version);

    // A version of an earlier run requires a new list.
    let known = names(&storage, "ns").await;
    let path = directory.path().join("db");
    storage.store.apply(vec![delete(1)]).await.unwrap();
    drop(storage);
    let storage = open_storage(&path, 1 << 20, LONG).await;
    assert_eq!(storage.changes(&of, known.1).await.unwrap_err().code, 410);
    assert_eq!(names(&storage, "ns").await.0, ["ns-0", "ns-2"]);
}

#[tokio::test]
async fn the_node_object_is_the_last_report() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open_storage(&directory.path().join("db"), 1 << 20, LONG).await;
    let (found, version) = names(&storage, "nodes").await;
    assert_eq!(found, ["gw-1"]);
    let report = json!({"labels": {"a": "b"}, "status": {"capacity": {"cpu": "2"}},
        "conditions": [{"type": "DiskPressure", "status": "False", "reason": "Room"}]});
    let report = serde_json::from_value(report).unwrap();
    merge_report(&mut storage.shared_node.lock().unwrap(), &report, "2026-01-01T00:00:00Z".parse().unwrap());
    let batch = storage.changes(&resource("nodes"), version).await.unwrap();
    let node: Value = serde_json::from_str(&batch.changes[0].object.json).unwrap();
    assert_eq!(
        (&node["metadata"]["labels"]["a"], &node["status"]["capacity"]["cpu"]),
        (&json!("b"), &json!("2"))
    );
    let conditions = node["status"]["conditions"].as_array().unwrap();
    let types: Vec<_> = conditions.iter().map(|condition| &condition["type"]).collect();
    assert_eq!(types, ["Ready", "DiskPressure"]);
    assert!(conditions.iter().all(|condition| condition["lastHeartbeatTime"].is_string()));
}
