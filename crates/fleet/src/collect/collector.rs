//! The task: follows all kinds, examines what has changed, and acts.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::graph::{Action, Graph, Owner, Place, Presence, Seen, Uid};
use super::namespaces::Terminating;
use super::remove;
use edgesync_api::{Batch, ChangeType, Namespaces, PAGE_ROWS, PageQuery, Snapshot, Storage, Stored};
use edgesync_object::objectsync::is_sync_record;
use edgesync_object::status::{Reason, Result};
use edgesync_object::{Resource, Scope, Status};

/// The shortest time from one look at all kinds to the next: what following costs while much is
/// written.
const ROUND: Duration = Duration::from_millis(20);
/// How long the task waits when nothing is due.
const IDLE: Duration = Duration::from_secs(3600);
/// How soon what failed is tried again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// The most objects that are examined between two looks at the changes.
const STEP: usize = 256;

/// Owners that were found to be gone, until it is told.
#[derive(Default)]
struct Gone {
    owners: usize,
    /// One of them, with an object that names it.
    example: String,
}

impl Gone {
    fn add(&mut self, owner: &Owner, dependent: &Place) {
        self.owners += 1;
        let Place { resource, namespace, name, .. } = dependent;
        let Owner { kind, name: owner, uid, .. } = owner;
        self.example = format!("{} '{namespace}/{name}' of {kind} '{owner}' {uid}", resource.kind);
    }

    /// Tells of all at once: many objects may have lost their owners together.
    fn tell(&mut self) {
        let Self { owners, example } = std::mem::take(self);
        if owners > 0 {
            tracing::warn!(owners, example, "objects have owners that do not exist where the objects are");
        }
    }
}

/// A kind that is followed, up to a version.
struct Followed {
    resource: Arc<Resource>,
    version: u64,
}

/// See the module.
pub(crate) struct Collector<K> {
    storage: Arc<K>,
    namespaces: Arc<Namespaces>,
    namespace: Arc<Resource>,
    graph: Graph,
    gone: Gone,
    followed: Vec<Followed>,
    kinds_version: Option<u64>,
    terminating: Terminating,
    /// What failed, by the time when it is tried again.
    failed: BTreeSet<(Instant, Uid)>,
    /// The last pause of what failed.
    pauses: HashMap<Uid, Duration>,
}

impl<K: Storage> Collector<K> {
    pub(crate) fn new(storage: Arc<K>, namespaces: Arc<Namespaces>) -> Self {
        let namespace = Arc::clone(namespaces.resource());
        Self {
            storage,
            namespaces,
            namespace,
            graph: Graph::default(),
            gone: Gone::default(),
            followed: Vec::new(),
            kinds_version: None,
            terminating: Terminating::default(),
            failed: BTreeSet::new(),
            pauses: HashMap::new(),
        }
    }

    /// Follows and acts. Never ends; is dropped to stop, at any time.
    pub(crate) async fn run(mut self) {
        let mut pause = RETRY.0;
        loop {
            let started = Instant::now();
            match self.round().await {
                Ok(()) => pause = RETRY.0,
                Err(status) => {
                    tracing::warn!(%status, "the objects cannot be followed; dependents and namespaces wait");
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY.1);
                    continue;
                }
            }
            sleep_until(started + ROUND).await;
            self.idle().await;
        }
    }

    /// Waits until there is something to do.
    async fn idle(&self) {
        if self.graph.waiting() > 0 {
            return;
        }
        let due = [self.failed.first().map(|(due, _)| *due), self.terminating.due()];
        let wake = due.into_iter().flatten().min().unwrap_or_else(|| Instant::now() + IDLE);
        let Some(first) = self.followed.iter().min_by_key(|followed| followed.version) else { return };
        tokio::select! {
            // What it returns is asked for again in the next round.
            _ = self.storage.changes(&first.resource, first.version) => {}
            () = sleep_until(wake) => {}
        }
    }

    /// Looks at all kinds once and does part of what follows from it.
    async fn round(&mut self) -> Result<()> {
        self.follow_kinds().await?;
        for place in 0..self.followed.len() {
            self.follow(place).await?;
        }
        let now = Instant::now();
        while self.failed.first().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, uid)) = self.failed.pop_first() {
                self.graph.enqueue(&uid);
            }
        }
        self.examine().await;
        let kinds: Vec<_> = self.followed.iter().map(|followed| Arc::clone(&followed.resource)).collect();
        self.terminating.work(&self.storage, &self.namespace, &kinds).await;
        Ok(())
    }

    /// Begins to follow kinds that are new and gives up those that are gone.
    async fn follow_kinds(&mut self) -> Result<()> {
        let version = self.storage.kinds_version();
        if self.kinds_version == Some(version) {
            return Ok(());
        }
        let mut wanted: Vec<Arc<Resource>> =
            self.storage.kinds().iter().map(|k| Arc::clone(&k.stored_as)).collect();
        wanted.retain(|resource| !is_sync_record(resource));
        wanted.sort();
        wanted.dedup_by(|a, b| is_same(a, b));
        self.followed.retain(|followed| wanted.iter().any(|resource| is_same(resource, &followed.resource)));
        for resource in wanted {
            if !self.followed.iter().any(|followed| is_same(&resource, &followed.resource)) {
                let version = self.load(&resource).await?;
                self.followed.push(Followed { resource, version });
            }
        }
        // Owners of a kind that was not served can be found now.
        self.graph.doubt();
        self.kinds_version = Some(version);
        Ok(())
    }

    /// Reads all objects of a kind that matter here. Returns the version that they are of.
    async fn load(&mut self, resource: &Arc<Resource>) -> Result<u64> {
        let mut snapshot = self.storage.snapshot(resource).await?;
        let namespace = is_same(resource, &self.namespace);
        let matters = |stored: &Stored| {
            stored.json.contains("\"ownerReferences\"") || stored.json.contains("\"deletionTimestamp\"")
        };
        let filter = Arc::new(move |stored: &Stored| namespace || matters(stored));
        let mut query = PageQuery { limit: PAGE_ROWS, filter: Some(filter), ..PageQuery::default() };
        let mut seen = HashSet::new();
        loop {
            let page = snapshot.page(query.clone()).await?;
            for stored in &page.items {
                seen.extend(self.observe(resource, stored));
            }
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        self.graph.keep_only(resource, &seen);
        Ok(snapshot.version())
    }

    /// Takes in the next changes of a kind.
    async fn follow(&mut self, place: usize) -> Result<()> {
        let Some(Followed { resource, version }) = self.followed.get(place) else { return Ok(()) };
        let resource = Arc::clone(resource);
        if self.storage.version(&resource) <= *version {
            return Ok(());
        }
        let version = match self.storage.changes(&resource, *version).await {
            Ok(batch) => self.take_in(&resource, &batch),
            Err(status) if status.is(&Reason::Expired) => self.load(&resource).await?,
            Err(status) => return Err(status),
        };
        if let Some(followed) = self.followed.get_mut(place) {
            followed.version = version;
        }
        Ok(())
    }

    fn take_in(&mut self, resource: &Arc<Resource>, batch: &Batch) -> u64 {
        for change in &batch.changes {
            if change.kind != ChangeType::Deleted {
                self.observe(resource, &change.object);
                continue;
            }
            if is_same(resource, &self.namespace) {
                self.terminating.set(&change.object.name, false);
                self.namespaces.forget(&change.object.name);
            }
            if let Ok(seen) = serde_json::from_str::<Seen<'_>>(&change.object.json) {
                self.graph.forget(&seen.metadata.uid);
            }
        }
        batch.version
    }

    fn observe(&mut self, resource: &Arc<Resource>, stored: &Stored) -> Option<Uid> {
        let seen = serde_json::from_str::<Seen<'_>>(&stored.json);
        let Ok(Seen { metadata }) = seen else {
            tracing::debug!(kind = resource.kind, name = stored.name, "an object without usable metadata");
            return None;
        };
        if is_same(resource, &self.namespace) {
            let terminating = metadata.deletion_timestamp.is_some();
            if terminating {
                self.namespaces.forget(&stored.name);
            }
            self.terminating.set(&stored.name, terminating);
        }
        let uid: Uid = metadata.uid.as_ref().into();
        let place = Place {
            resource: Arc::clone(resource),
            namespace: stored.namespace.as_str().into(),
            name: stored.name.as_str().into(),
            version: stored.version,
        };
        self.graph.observe(place, metadata);
        Some(uid)
    }

    /// Examines objects and acts on them, many at the same time. Those that have changed after the
    /// version up to which every kind has been looked at wait for the next round: not all of their
    /// dependents may be known.
    async fn examine(&mut self) {
        let caught_up = self.followed.iter().map(|followed| followed.version).min().unwrap_or_default();
        let mut tasks = JoinSet::new();
        let mut early = Vec::new();
        for _ in 0..self.graph.waiting().min(STEP) {
            let Some(uid) = self.graph.next() else { break };
            let Some(place) = self.graph.place(&uid).cloned() else {
                self.pauses.remove(&uid);
                continue;
            };
            if place.version > caught_up {
                early.push(uid);
                continue;
            }
            match self.decide(&uid, &place).await {
                Ok(None) => {
                    self.pauses.remove(&uid);
                }
                Ok(Some(action)) => {
                    if tasks.len() >= remove::AT_ONCE {
                        let done = tasks.join_next().await;
                        self.acted(done);
                    }
                    let storage = Arc::clone(&self.storage);
                    tasks.spawn(async move {
                        let outcome = act(&*storage, &uid, &place, action).await;
                        (uid, outcome)
                    });
                }
                Err(status) => self.acted(Some(Ok((uid, Err(status))))),
            }
        }
        self.gone.tell();
        while let Some(done) = tasks.join_next().await {
            self.acted(Some(done));
        }
        for uid in early {
            self.graph.enqueue(&uid);
        }
    }

    /// Takes in how an action ended. Who failed is tried again later; who has changed comes as a
    /// change.
    fn acted(&mut self, done: Option<Result<(Uid, Result<()>), tokio::task::JoinError>>) {
        let Some(Ok((uid, outcome))) = done else { return };
        match outcome {
            Ok(()) => {
                self.pauses.remove(&uid);
            }
            Err(status) => {
                let pause = self.pauses.get(&uid).map_or(RETRY.0, |pause| (*pause * 2).min(RETRY.1));
                tracing::debug!(%uid, %status, "an object is tried again");
                self.failed.insert((Instant::now() + pause, uid.clone()));
                self.pauses.insert(uid, pause);
            }
        }
    }

    /// What is to be done with an object: looks up owners of which nothing is known.
    async fn decide(&mut self, uid: &Uid, place: &Place) -> Result<Option<Action>> {
        let mut owners = Vec::new();
        for (owner, known) in self.graph.owners(uid) {
            let presence = match known {
                Some(presence) => presence,
                None => {
                    let presence = self.look_up(&owner, place).await?;
                    if presence == Presence::Absent {
                        self.gone.add(&owner, place);
                    }
                    self.graph.learn(owner.clone(), &place.namespace, presence);
                    presence
                }
            };
            owners.push((owner, presence));
        }
        Ok(self.graph.plan(uid, &owners))
    }

    /// Whether an owner is where a reference says. One in another namespace is not.
    async fn look_up(&self, owner: &Owner, dependent: &Place) -> Result<Presence> {
        let kinds = self.storage.kinds();
        let named = |kind: &Resource| kind.group == owner.group() && *kind.kind == *owner.kind;
        let Some(kind) = kinds.iter().find(|kind| named(&kind.resource)) else {
            tracing::debug!(kind = %owner.kind, "an owner is of a kind that is not served");
            return Ok(Presence::Unresolvable);
        };
        let namespace = match (kind.resource.scope, &*dependent.namespace) {
            (Scope::Cluster, _) => "",
            (Scope::Namespaced, "") => {
                tracing::warn!(
                    kind = dependent.resource.kind,
                    name = %dependent.name,
                    "an object of the cluster has an owner in a namespace, and is never collected"
                );
                return Ok(Presence::Unresolvable);
            }
            (Scope::Namespaced, namespace) => namespace,
        };
        let found = self.storage.get(&kind.stored_as, namespace, &owner.name).await?;
        let same = |stored: &Stored| {
            serde_json::from_str::<Seen<'_>>(&stored.json).is_ok_and(|seen| seen.metadata.uid == *owner.uid)
        };
        Ok(if found.as_ref().is_some_and(same) { Presence::Present } else { Presence::Absent })
    }
}

/// Whether two resources are of the same objects.
fn is_same(a: &Resource, b: &Resource) -> bool {
    a.group == b.group && a.kind == b.kind
}

/// Does what is planned, unless the object is no longer as it was seen: then the change is on its
/// way here.
async fn act<K: Storage>(storage: &K, uid: &Uid, place: &Place, action: Action) -> Result<()> {
    let Place { resource, namespace, name, version } = place;
    let Some(stored) = storage.get(resource, namespace, name).await? else { return Ok(()) };
    let object = remove::parse(&stored)?;
    if stored.version != *version || object.uid() != &**uid {
        return Ok(());
    }
    tracing::debug!(kind = resource.kind, %namespace, %name, ?action, "collecting");
    let done = match action {
        Action::Delete { foreground } => remove::delete(storage, resource, &stored, foreground).await,
        Action::Release(finalizer) => remove::release(storage, resource, (namespace, name), finalizer).await,
        Action::Strip(owners) => {
            let mut object = object;
            let list = object.metadata().and_then(|metadata| metadata.get("ownerReferences"));
            let leaving: HashSet<&str> = owners.iter().map(|owner| &**owner).collect();
            let leaves = |owner: &Value| {
                leaving.contains(owner.get("uid").and_then(Value::as_str).unwrap_or_default())
            };
            let kept = list.and_then(Value::as_array).into_iter().flatten().filter(|owner| !leaves(owner));
            let kept: Vec<Value> = kept.cloned().collect();
            if kept.is_empty() {
                object.remove_metadata("ownerReferences");
            } else {
                object.set_metadata("ownerReferences", kept);
            }
            remove::put(storage, resource, &stored, object).await
        }
    };
    match done {
        Err(status) if is_outdated(&status) => Ok(()),
        done => done,
    }
}

/// Whether the object has changed or gone meanwhile.
fn is_outdated(status: &Status) -> bool {
    status.is(&Reason::Conflict) || status.is(&Reason::NotFound)
}
