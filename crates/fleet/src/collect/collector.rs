//! The collector task: follows all kinds, examines changed objects, and acts.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::graph::{Action, Graph, Identity, Owner, ParsedObject, Presence, Uid};
use super::namespaces::Terminating;
use super::remove;
use edgesync_api::{Batch, ChangeType, Namespaces, PAGE_ROWS, PageQuery, Snapshot, Storage, Stored};
use edgesync_object::objectsync::is_sync_record;
use edgesync_object::status::{Reason, Result};
use edgesync_object::{Resource, Scope, Status};

/// Minimum interval between two rounds over all kinds; bounds the cost under many writes.
const ROUND: Duration = Duration::from_millis(20);
/// Maximum wait when nothing is due.
const IDLE: Duration = Duration::from_secs(3600);
/// Initial and maximum delay of a retry.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// Maximum number of objects examined per round.
const STEP: usize = 256;

/// Absent owners found since the last log line.
#[derive(Default)]
struct AbsentOwners {
    owners: usize,
    /// One of them, with an object that references it.
    example: String,
}

impl AbsentOwners {
    fn add(&mut self, owner: &Owner, dependent: &Identity) {
        self.owners += 1;
        let Identity { resource, namespace, name, .. } = dependent;
        let Owner { kind, name: owner, uid, .. } = owner;
        self.example = format!("{} '{namespace}/{name}' of {kind} '{owner}' {uid}", resource.kind);
    }

    /// Logs all of them in one line: many objects may lose their owners together.
    fn log(&mut self) {
        let Self { owners, example } = std::mem::take(self);
        if owners > 0 {
            tracing::warn!(owners, example, "objects reference owners that do not exist in their scope");
        }
    }
}

/// A followed kind, with the version reached.
struct Followed {
    resource: Arc<Resource>,
    version: u64,
}

/// Collector over a storage; see the module.
pub(crate) struct Collector<K> {
    storage: Arc<K>,
    namespaces: Arc<Namespaces>,
    namespace: Arc<Resource>,
    graph: Graph,
    absent: AbsentOwners,
    followed: Vec<Followed>,
    kinds_version: Option<u64>,
    terminating: Terminating,
    /// Failed objects, by the time of their retry.
    failed: BTreeSet<(Instant, Uid)>,
    /// Last retry delay of failed objects.
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
            absent: AbsentOwners::default(),
            followed: Vec::new(),
            kinds_version: None,
            terminating: Terminating::default(),
            failed: BTreeSet::new(),
            pauses: HashMap::new(),
        }
    }

    /// Runs forever. Can be dropped at any time to stop it.
    pub(crate) async fn run(mut self) {
        let mut pause = RETRY.0;
        loop {
            let started = Instant::now();
            match self.round().await {
                Ok(()) => pause = RETRY.0,
                Err(status) => {
                    tracing::warn!(%status, "watching objects failed, garbage collection waits");
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY.1);
                    continue;
                }
            }
            sleep_until(started + ROUND).await;
            self.idle().await;
        }
    }

    /// Waits until there is work.
    async fn idle(&self) {
        if self.graph.waiting() > 0 {
            return;
        }
        let due = [self.failed.first().map(|(due, _)| *due), self.terminating.due()];
        let wake = due.into_iter().flatten().min().unwrap_or_else(|| Instant::now() + IDLE);
        let Some(first) = self.followed.iter().min_by_key(|followed| followed.version) else { return };
        tokio::select! {
            // The next round requests the changes again.
            _ = self.storage.changes(&first.resource, first.version) => {}
            () = sleep_until(wake) => {}
        }
    }

    /// Follows all kinds once and does a part of the resulting work.
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

    /// Starts to follow new kinds and drops deleted ones.
    async fn follow_kinds(&mut self) -> Result<()> {
        let version = self.storage.kinds_version();
        if self.kinds_version == Some(version) {
            return Ok(());
        }
        let mut served: Vec<Arc<Resource>> =
            self.storage.kinds().iter().map(|k| Arc::clone(&k.stored_as)).collect();
        served.retain(|resource| !is_sync_record(resource));
        served.sort();
        served.dedup_by(|a, b| is_same(a, b));
        self.followed.retain(|followed| served.iter().any(|resource| is_same(resource, &followed.resource)));
        for resource in served {
            if !self.followed.iter().any(|followed| is_same(&resource, &followed.resource)) {
                let version = self.load(&resource).await?;
                self.followed.push(Followed { resource, version });
            }
        }
        // Owners of a kind that was not served before can be found now.
        self.graph.doubt();
        self.kinds_version = Some(version);
        Ok(())
    }

    /// Lists the relevant objects of a kind. Returns the version of the list.
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

    /// Applies the next changes of a kind.
    async fn follow(&mut self, place: usize) -> Result<()> {
        let Some(Followed { resource, version }) = self.followed.get(place) else { return Ok(()) };
        let resource = Arc::clone(resource);
        if self.storage.version(&resource) <= *version {
            return Ok(());
        }
        let version = match self.storage.changes(&resource, *version).await {
            Ok(batch) => self.apply(&resource, &batch),
            Err(status) if status.is(&Reason::Expired) => self.load(&resource).await?,
            Err(status) => return Err(status),
        };
        if let Some(followed) = self.followed.get_mut(place) {
            followed.version = version;
        }
        Ok(())
    }

    fn apply(&mut self, resource: &Arc<Resource>, batch: &Batch) -> u64 {
        for change in &batch.changes {
            if change.kind != ChangeType::Deleted {
                self.observe(resource, &change.object);
                continue;
            }
            if is_same(resource, &self.namespace) {
                self.terminating.set(&change.object.name, false);
                self.namespaces.forget(&change.object.name);
            }
            if let Ok(seen) = serde_json::from_str::<ParsedObject<'_>>(&change.object.json) {
                self.graph.forget(&seen.metadata.uid);
            }
        }
        batch.version
    }

    fn observe(&mut self, resource: &Arc<Resource>, stored: &Stored) -> Option<Uid> {
        let seen = serde_json::from_str::<ParsedObject<'_>>(&stored.json);
        let Ok(ParsedObject { metadata }) = seen else {
            tracing::debug!(kind = resource.kind, name = stored.name, "object without usable metadata");
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
        let place = Identity {
            resource: Arc::clone(resource),
            namespace: stored.namespace.as_str().into(),
            name: stored.name.as_str().into(),
            version: stored.version,
        };
        self.graph.observe(place, metadata);
        Some(uid)
    }

    /// Examines objects and acts on them, many concurrently. Objects newer than the version reached
    /// by every kind wait for the next round: some of their dependents may be unknown.
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
        self.absent.log();
        while let Some(done) = tasks.join_next().await {
            self.acted(Some(done));
        }
        for uid in early {
            self.graph.enqueue(&uid);
        }
    }

    /// Handles the result of an action. A failure is retried later; a changed object arrives as a
    /// change.
    fn acted(&mut self, done: Option<Result<(Uid, Result<()>), tokio::task::JoinError>>) {
        let Some(Ok((uid, outcome))) = done else { return };
        match outcome {
            Ok(()) => {
                self.pauses.remove(&uid);
            }
            Err(status) => {
                let pause = self.pauses.get(&uid).map_or(RETRY.0, |pause| (*pause * 2).min(RETRY.1));
                tracing::debug!(%uid, %status, "retrying an object");
                self.failed.insert((Instant::now() + pause, uid.clone()));
                self.pauses.insert(uid, pause);
            }
        }
    }

    /// Plans the action for an object, after looking up unknown owners.
    async fn decide(&mut self, uid: &Uid, place: &Identity) -> Result<Option<Action>> {
        let mut owners = Vec::new();
        for (owner, known) in self.graph.owners(uid) {
            let presence = match known {
                Some(presence) => presence,
                None => {
                    let presence = self.look_up(&owner, place).await?;
                    if presence == Presence::Absent {
                        self.absent.add(&owner, place);
                    }
                    self.graph.learn(owner.clone(), &place.namespace, presence);
                    presence
                }
            };
            owners.push((owner, presence));
        }
        Ok(self.graph.plan(uid, &owners))
    }

    /// Looks up an owner where its reference points. An owner in another namespace counts as
    /// absent.
    async fn look_up(&self, owner: &Owner, dependent: &Identity) -> Result<Presence> {
        let kinds = self.storage.kinds();
        let named = |kind: &Resource| kind.group == owner.group() && *kind.kind == *owner.kind;
        let Some(kind) = kinds.iter().find(|kind| named(&kind.resource)) else {
            tracing::debug!(kind = %owner.kind, "owner of a kind that is not served");
            return Ok(Presence::Unresolvable);
        };
        let namespace = match (kind.resource.scope, &*dependent.namespace) {
            (Scope::Cluster, _) => "",
            (Scope::Namespaced, "") => {
                tracing::warn!(
                    kind = dependent.resource.kind,
                    name = %dependent.name,
                    "cluster-scoped object with a namespaced owner is never collected"
                );
                return Ok(Presence::Unresolvable);
            }
            (Scope::Namespaced, namespace) => namespace,
        };
        let found = self.storage.get(&kind.stored_as, namespace, &owner.name).await?;
        let same = |stored: &Stored| {
            serde_json::from_str::<ParsedObject<'_>>(&stored.json)
                .is_ok_and(|seen| seen.metadata.uid == *owner.uid)
        };
        Ok(if found.as_ref().is_some_and(same) { Presence::Present } else { Presence::Absent })
    }
}

/// Returns whether two resources denote the same objects.
fn is_same(a: &Resource, b: &Resource) -> bool {
    a.group == b.group && a.kind == b.kind
}

/// Performs an action, unless the object has changed since it was observed: then the change arrives
/// later.
async fn act<K: Storage>(storage: &K, uid: &Uid, place: &Identity, action: Action) -> Result<()> {
    let Identity { resource, namespace, name, version } = place;
    let Some(stored) = storage.get(resource, namespace, name).await? else { return Ok(()) };
    let object = remove::parse(&stored)?;
    if stored.version != *version || object.uid() != &**uid {
        return Ok(());
    }
    tracing::debug!(kind = resource.kind, %namespace, %name, ?action, "collecting object");
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

/// Returns whether an error means that the object has changed or was deleted concurrently.
fn is_outdated(status: &Status) -> bool {
    status.is(&Reason::Conflict) || status.is(&Reason::NotFound)
}
