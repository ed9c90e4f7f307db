//! In-memory storage for tests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use edgesync_api::{Batch, Change, ChangeType, Cursor, Kind, Page, PageQuery, Snapshot, Storage, Stored};
use edgesync_object::status::{Reason, Result};
use edgesync_object::{Object, Resource, Status, kinds};

type Key = (String, String, String, String);

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<Key, Stored>,
    log: Vec<(String, String, Arc<Change>)>,
}

/// Objects in memory, with the built-in kinds and custom ones.
pub(super) struct Memory {
    state: Mutex<State>,
    progress: watch::Sender<u64>,
    kinds: RwLock<Vec<Arc<Kind>>>,
    kinds_version: AtomicU64,
    /// Number of next writes that fail because the store is unavailable.
    pub(super) failures: AtomicU64,
    /// Number of next updates and removals that find another version than they expect.
    pub(super) conflicts: AtomicU64,
}

pub(super) fn kind(word: &str) -> Arc<Resource> {
    Arc::new(kinds::by_word(word).unwrap().resource())
}

pub(super) fn object(value: Value) -> Object {
    serde_json::from_value(value).unwrap()
}

fn key(resource: &Resource, namespace: &str, name: &str) -> Key {
    (resource.group.clone(), resource.kind.clone(), namespace.to_owned(), name.to_owned())
}

/// Counts down. Returns whether it was not yet zero.
fn is_next(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
}

impl Memory {
    pub(super) fn new() -> Arc<Self> {
        let built_in =
            kinds::KINDS.iter().map(|known| Arc::new(Kind::without_schema(Arc::new(known.resource()))));
        Arc::new(Self {
            state: Mutex::default(),
            progress: watch::Sender::new(0),
            kinds: RwLock::new(built_in.collect()),
            kinds_version: AtomicU64::new(1),
            failures: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
        })
    }

    pub(super) fn set_custom(&self, custom: Vec<Arc<Kind>>) {
        let mut kinds = self.kinds.write().unwrap();
        kinds.retain(|kind| !kind.custom);
        kinds.extend(custom);
        self.kinds_version.fetch_add(1, Ordering::SeqCst);
    }

    /// Gives a built-in kind a schema.
    pub(super) fn describe(&self, word: &str) {
        let resource = kind(word);
        let mut kinds = self.kinds.write().unwrap();
        for kind in kinds.iter_mut().filter(|kind| kind.resource == resource) {
            let described = Kind { schema: Some(Arc::default()), ..Kind::clone(kind) };
            *kind = Arc::new(described);
        }
    }

    /// Creates an object of the kind that kubectl calls `word`.
    pub(super) async fn put(&self, word: &str, value: Value) -> Stored {
        self.create(&kind(word), object(value)).await.unwrap()
    }

    pub(super) async fn find(&self, word: &str, namespace: &str, name: &str) -> Option<Object> {
        let stored = self.get(&kind(word), namespace, name).await.unwrap();
        stored.map(|stored| Object::parse(&stored.json).unwrap())
    }

    pub(super) async fn edit(&self, word: &str, namespace: &str, name: &str, edit: impl Fn(&mut Object)) {
        let stored = self.get(&kind(word), namespace, name).await.unwrap().unwrap();
        let mut object = Object::parse(&stored.json).unwrap();
        edit(&mut object);
        self.update(&kind(word), object, stored.version).await.unwrap();
    }

    /// Returns the kinds and names of all objects.
    pub(super) fn names(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state.objects.keys().map(|(_, kind, _, name)| format!("{kind} {name}")).collect()
    }

    /// Waits until the objects satisfy a condition.
    pub(super) async fn until(&self, what: &str, condition: impl Fn(&[String]) -> bool) {
        let mut progress = self.progress.subscribe();
        let waited = tokio::time::timeout(Duration::from_secs(3600), async {
            while !condition(&self.names()) {
                progress.changed().await.unwrap();
            }
        });
        if waited.await.is_err() {
            panic!("{what} did not come: {:?}", self.names());
        }
    }

    fn fail(&self) -> Result<()> {
        if is_next(&self.failures) { Err(Status::unavailable("the disk is full", 1)) } else { Ok(()) }
    }

    fn commit(&self, resource: &Resource, what: ChangeType, mut object: Object) -> Result<Stored> {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        object.set_metadata("resourceVersion", state.version.to_string());
        let stored = Stored {
            namespace: object.namespace().to_owned(),
            name: object.name().to_owned(),
            version: state.version,
            json: object.to_json(),
        };
        let key = key(resource, &stored.namespace, &stored.name);
        let previous = match what {
            ChangeType::Deleted => state.objects.remove(&key),
            ChangeType::Added | ChangeType::Modified => state.objects.insert(key, stored.clone()),
        };
        let change = Change {
            kind: what,
            object: stored.clone(),
            previous: previous.map(|previous| previous.json),
            line: OnceLock::new(),
        };
        state.log.push((resource.group.clone(), resource.kind.clone(), Arc::new(change)));
        self.progress.send_replace(state.version);
        Ok(stored)
    }

    fn expect(&self, resource: &Resource, namespace: &str, name: &str, expected: u64) -> Result<Stored> {
        self.fail()?;
        if is_next(&self.conflicts) {
            return Err(Status::modified(resource, name));
        }
        let state = self.state.lock().unwrap();
        match state.objects.get(&key(resource, namespace, name)) {
            None => Err(Status::not_found(resource, name)),
            Some(stored) if stored.version != expected => Err(Status::modified(resource, name)),
            Some(stored) => Ok(stored.clone()),
        }
    }
}

pub(super) struct List(u64, Vec<Stored>);

impl Snapshot for List {
    fn version(&self) -> u64 {
        self.0
    }

    async fn page(&mut self, query: PageQuery) -> Result<Page> {
        let start: usize = query.after.map_or(0, |cursor| cursor.0.parse().unwrap());
        let end = (start + query.limit.min(3)).min(self.1.len());
        let fits = |stored: &&Stored| {
            query.namespace.as_ref().is_none_or(|namespace| *namespace == stored.namespace)
                && query.filter.as_ref().is_none_or(|filter| filter(stored))
        };
        let items = self.1[start..end].iter().filter(fits).cloned().collect();
        Ok(Page { items, next: (end < self.1.len()).then(|| Cursor(end.to_string())) })
    }

    async fn count(&mut self, _: Option<&str>) -> Result<u64> {
        Ok(self.1.len() as u64)
    }
}

impl Storage for Memory {
    type Snapshot = List;

    fn kind(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        let fits = |resource: &Resource| {
            (&*resource.group, &*resource.version, &*resource.plural) == (group, version, plural)
        };
        self.kinds().into_iter().find(|kind| fits(&kind.resource))
    }

    fn kinds(&self) -> Vec<Arc<Kind>> {
        self.kinds.read().unwrap().clone()
    }

    fn kinds_version(&self) -> u64 {
        self.kinds_version.load(Ordering::SeqCst)
    }

    fn checks(&self) -> Vec<(&'static str, Result<()>)> {
        Vec::new()
    }

    fn version(&self, _: &Resource) -> u64 {
        self.state.lock().unwrap().version
    }

    async fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Option<Stored>> {
        Ok(self.state.lock().unwrap().objects.get(&key(resource, namespace, name)).cloned())
    }

    async fn snapshot(&self, resource: &Arc<Resource>) -> Result<List> {
        let state = self.state.lock().unwrap();
        let of_kind = |(key, _): &(&Key, &Stored)| key.0 == resource.group && key.1 == resource.kind;
        let objects = state.objects.iter().filter(of_kind).map(|(_, stored)| stored.clone());
        Ok(List(state.version, objects.collect()))
    }

    async fn changes(&self, resource: &Arc<Resource>, after: u64) -> Result<Batch> {
        let mut progress = self.progress.subscribe();
        progress.wait_for(|version| *version > after).await.map_err(Status::internal)?;
        let state = self.state.lock().unwrap();
        let condition = |entry: &&(String, String, Arc<Change>)| {
            entry.0 == resource.group && entry.1 == resource.kind && entry.2.object.version > after
        };
        let changes = state.log.iter().filter(condition).map(|(_, _, change)| Arc::clone(change)).collect();
        Ok(Batch { changes, version: state.version })
    }

    async fn create(&self, resource: &Arc<Resource>, object: Object) -> Result<Stored> {
        self.fail()?;
        if self.get(resource, object.namespace(), object.name()).await?.is_some() {
            return Err(Status::new(Reason::AlreadyExists, "taken"));
        }
        self.commit(resource, ChangeType::Added, object)
    }

    async fn update(&self, resource: &Arc<Resource>, object: Object, expected: u64) -> Result<Stored> {
        self.expect(resource, object.namespace(), object.name(), expected)?;
        self.commit(resource, ChangeType::Modified, object)
    }

    async fn remove(&self, resource: &Arc<Resource>, old: &Stored) -> Result<Stored> {
        let stored = self.expect(resource, &old.namespace, &old.name, old.version)?;
        self.commit(resource, ChangeType::Deleted, Object::parse(&stored.json).map_err(Status::internal)?)
    }
}
