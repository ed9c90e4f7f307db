//! A client that lists and then follows the changes converges to a fresh list, under concurrent
//! writes, lag, and restarts of the store.

use std::collections::BTreeMap;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::super::storage::name_of;
use super::super::*;
use super::keep::{Fixture, config_map, pages, resource};
use edgesync_api::{ChangeType, PageQuery, Snapshot, Storage, Stored};
use edgesync_cloud_store::{CloudOptions, HistoryBound, HistoryLimits};
use edgesync_object::{Object, ObjectRef};
use edgesync_protocol::cloud::{Record, RecordBatch};
use serde_json::json;

/// Linear congruential generator: equal seeds give equal runs.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn options() -> CloudOptions {
    let few = HistoryBound { changes: 200, bytes: 1 << 20 };
    let history = HistoryLimits { objects: few, fleet: few };
    CloudOptions { history, ..CloudOptions::default() }
}

/// Ring size: about two dozen changes.
const RING: usize = 24 << 10;

/// Creates, updates and removes at random; concurrent writers may cause conflicts.
async fn write(objects: Arc<CloudObjects>, mut dice: Dice, count: usize) {
    let cm = resource("cm");
    for n in 0..count {
        let (namespace, name) = (["a", "b"][dice.below(2) as usize], format!("o{}", dice.below(8)));
        let object = config_map(namespace, &name, &json!(format!("{n}-{}", dice.below(1000))));
        let result = match Storage::get(&*objects, &cm, namespace, &name).await.unwrap() {
            None => Storage::create(&*objects, &cm, object).await,
            Some(old) if dice.below(4) == 0 => objects.remove(&cm, &old).await,
            Some(old) => {
                let mut new = Object::parse(&old.json).unwrap();
                new.fields_mut().insert("data".into(), object.fields()["data"].clone());
                objects.update(&cm, new, old.version).await
            }
        };
        if let Err(status) = result {
            assert!(matches!(status.code, 404 | 409), "{status:?}");
        }
    }
}

/// Writes reports of a node as records.
async fn report(objects: Arc<CloudObjects>, mut dice: Dice, count: usize) {
    for _ in 0..count {
        let object = Arc::new(ObjectRef {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: "a".into(),
            name: "o".into(),
        });
        let uids: Vec<u64> = (0..3).map(|_| dice.below(10)).collect();
        let mut put = |uid: u64| {
            let record = Record { version: (90 + dice.below(20)).into(), object: Arc::clone(&object) };
            (format!("u{uid}").into(), record)
        };
        let mut batch =
            RecordBatch { put: uids.into_iter().map(&mut put).collect(), ..RecordBatch::default() };
        batch.remove = vec![format!("u{}", dice.below(10)).into()];
        objects.store().record(&crate::node_name("edge"), None, batch).await.unwrap();
    }
}

/// Number of batches of a client by their source.
#[derive(Clone, Copy, Debug, Default)]
struct Ways {
    ring: usize,
    history: usize,
    expired: usize,
}

/// A client that lists and watches one kind.
struct Client {
    resource: Arc<Resource>,
    held: BTreeMap<(String, String), Stored>,
    version: u64,
    /// Number of versions behind the store before it continues.
    lag: u64,
    ways: Ways,
}

impl Client {
    fn new(word: &str, lag: u64) -> Self {
        Self { resource: resource(word), held: BTreeMap::new(), version: 0, lag, ways: Ways::default() }
    }

    async fn list(&mut self, objects: &CloudObjects) {
        let mut snapshot = objects.snapshot(&self.resource).await.unwrap();
        let items = pages(&mut snapshot, PageQuery { limit: 3, ..PageQuery::default() }).await;
        self.version = snapshot.version();
        assert_eq!(snapshot.count(None).await.unwrap(), items.len() as u64);
        self.held =
            items.into_iter().map(|item| ((item.namespace.clone(), item.name.clone()), item)).collect();
    }

    /// Applies one batch, or lists again.
    async fn step(&mut self, objects: &CloudObjects) {
        let ring =
            |client: &Self| objects.watches.after(&name_of(&client.resource), client.version).is_some();
        let (before, old_version) = (ring(self), self.version);
        let batch = match objects.changes(&self.resource, self.version).await {
            Ok(batch) => batch,
            Err(status) => {
                assert_eq!(status.code, 410, "{status:?}");
                self.ways.expired += 1;
                return self.list(objects).await;
            }
        };
        // Changes only leave the ring, so this one was still there during the read.
        self.ways.ring += usize::from(ring(self));
        self.ways.history += usize::from(!before);
        for change in &batch.changes {
            assert!(change.object.version > self.version, "{change:?}");
            self.version = change.object.version;
            let key = (change.object.namespace.clone(), change.object.name.clone());
            let old = match change.kind {
                ChangeType::Deleted => self.held.remove(&key),
                _ => self.held.insert(key, change.object.clone()),
            };
            assert_eq!(old.is_none(), change.kind == ChangeType::Added, "{change:?}");
            if change.kind == ChangeType::Modified {
                assert_eq!(old.map(|old| old.json), change.previous);
            }
        }
        assert!(batch.version >= self.version && batch.version > old_version);
        self.version = batch.version;
    }

    /// Follows until the writers are done and no change is left.
    async fn follow(mut self, objects: Arc<CloudObjects>, mut done: watch::Receiver<bool>) -> Self {
        if self.version == 0 {
            self.list(&objects).await;
        }
        loop {
            let finished = tokio::select! {
                waited = objects.watches.ring.wait(self.version + self.lag) => waited.is_err(),
                waited = done.wait_for(|done| *done) => waited.is_ok(),
            };
            if finished {
                break;
            }
            self.step(&objects).await;
        }
        while self.version < objects.store().version() {
            self.step(&objects).await;
        }
        self
    }

    async fn check(&self, objects: &CloudObjects) {
        let mut fresh = Self::new(&self.resource.plural, 0);
        fresh.list(objects).await;
        assert_eq!(self.held, fresh.held);
    }
}

async fn storm(objects: &Arc<CloudObjects>, seed: u64, count: usize) {
    let mut writers = JoinSet::new();
    for task in 0..3 {
        writers.spawn(write(Arc::clone(objects), Dice(seed * 31 + task), count));
    }
    writers.spawn(report(Arc::clone(objects), Dice(seed), count / 4));
    writers.join_all().await;
}

/// Clients with different lags follow while others write; then the store is closed with unread
/// changes, and reopened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replayed_changes_equal_a_fresh_list() {
    let mut fixture = Fixture::new(&options(), RING).await;
    let kinds = ["cm", "objectsyncs"];
    let mut clients: Vec<_> =
        kinds.iter().flat_map(|word| [0, 60, 400].map(|lag| Client::new(word, lag))).collect();
    for round in 0..4 {
        let Fixture { objects, .. } = &fixture;
        let objects = Arc::new(CloudObjects {
            store: objects.store.clone(),
            kinds: Kinds::new(Vec::new()),
            watches: Arc::clone(&objects.watches),
            namespaces: Arc::default(),
        });
        let (finish, done) = watch::channel(false);
        let mut following = JoinSet::new();
        for client in clients {
            following.spawn(client.follow(Arc::clone(&objects), done.clone()));
        }
        storm(&objects, round, 200).await;
        finish.send(true).unwrap();
        clients = following.join_all().await;
        for client in &clients {
            client.check(&objects).await;
        }
        storm(&objects, round + 100, 20).await;
        fixture = fixture.reopen(&options(), RING).await;
    }
    let ways = clients.iter().map(|client| client.ways).fold(Ways::default(), |sum, ways| Ways {
        ring: sum.ring + ways.ring,
        history: sum.history + ways.history,
        expired: sum.expired + ways.expired,
    });
    assert!(ways.ring > 0 && ways.history > 0 && ways.expired > 0, "{ways:?}");
}
