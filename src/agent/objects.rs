//! The node's objects for the API: synced objects; ObjectSync records, which are derived from the
//! rows; and local Leases and Events.
//!
//! Synced objects and records share a sequence of versions, local objects have their own. The
//! status of a synced object is writable: it goes into the outbox, and the object keeps its version
//! until the cloud sends another.

mod list;
mod named;
mod record;
mod ring;
mod statuses;
mod synthesized_objects;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::store as edge;
use crate::store::{
    EdgeStore, LocalKind, LocalObject, LocalOutcome, LocalRefusal, LocalWrite, MAX_LEASES, MAX_LOCAL_BYTES,
    MAX_SNAPSHOTS, MonotonicTime, OutboxPut, OutboxWrite, Writing,
};
use edgesync_api::{Batch, Kind, Storage, Stored};
use edgesync_object::status::{Reason, Result};
use edgesync_object::{NodeName, Object, Resource, Scope, Status, objectsync, with_resource_version};
use edgesync_protocol::change::Uid;
use edgesync_protocol::compression;
use edgesync_protocol::upload::Lane;
use edgesync_store::StoreError;

use super::kinds::{self, KindRegistry, SynthesizedKind};
use list::{EdgeList, RowList};
use statuses::Statuses;
use synthesized_objects::Synthesized;
pub(super) use synthesized_objects::{SharedNode, shared_node};
use watch::Watches;

/// Seconds after which a client may retry while the database is unavailable.
const RETRY_SECONDS: u32 = 5;
/// Time for which changes are kept in memory after the last list or watch.
const INTEREST: Duration = Duration::from_secs(5 * 60);
/// Interval at which unused memory is released.
const TIDY_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum time for which a list waits for commits in flight.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Time after the last commit of a burst at which memory is released.
pub(super) const QUIET_TIME: Duration = Duration::from_secs(2);

/// Releases the memory that a burst has left.
pub(super) async fn release_memory(store: &EdgeStore) {
    // The store's health shows its failures.
    let _ = store.release_memory().await;
    compression::release();
    edgesync_runtime::memory::release();
}

/// Returns the monotonic time.
pub(super) type ReadClock = Arc<dyn Fn() -> MonotonicTime + Send + Sync>;

/// The objects of the edge's store: synced ones read-only except for their status, local ones
/// read-write.
pub(super) struct EdgeObjects {
    store: EdgeStore,
    clock: ReadClock,
    statuses: Arc<Statuses>,
    kinds: Arc<KindRegistry>,
    node: NodeName,
    watches: Arc<Watches>,
    synthesized: [Synthesized; 2],
    shared_node: SharedNode,
    /// Whether there was a list since memory was last released.
    listed: AtomicBool,
}

/// The source of a kind's objects.
#[derive(Clone, Debug)]
enum ObjectSource {
    /// Received from the cloud.
    Synced,
    /// Records about received objects.
    Records(Scope),
    /// Created on this node.
    Local(LocalKind),
    /// Synthesized by the agent.
    Synthesized(SynthesizedKind),
}

impl ObjectSource {
    fn of(resource: &Resource) -> Self {
        if objectsync::is_sync_record(resource) {
            return Self::Records(resource.scope);
        }
        match (kinds::local_kind(resource), SynthesizedKind::of(resource)) {
            (Some(kind), _) => Self::Local(kind),
            (None, Some(kind)) => Self::Synthesized(kind),
            (None, None) => Self::Synced,
        }
    }
}

/// A synced object from the store.
struct Synced {
    uid: Uid,
    /// As stored, under this store's version.
    object: Stored,
    /// The status pending in the outbox.
    waiting: Option<String>,
}

fn unavailable(error: &StoreError) -> Status {
    match error {
        StoreError::Full(_) => Status::unavailable("store full: no new objects are stored", RETRY_SECONDS),
        StoreError::Replaced => {
            Status::expired("the database was replaced during the list: restart the list")
        }
        StoreError::GivenUp => Status::expired(error.to_string()),
        StoreError::Closed => Status::unavailable("the agent is stopping", RETRY_SECONDS),
        _ => Status::unavailable(format!("store unavailable: {error}"), RETRY_SECONDS),
    }
}

/// Returns a synced object as clients see it, under this store's version.
fn shown(stored: edge::Stored) -> Stored {
    Stored {
        json: with_resource_version(&stored.body, stored.own_version),
        namespace: stored.object.namespace,
        name: stored.object.name,
        version: stored.own_version,
    }
}

fn shown_local(object: LocalObject) -> Stored {
    let LocalObject { namespace, name, version, body, .. } = object;
    Stored { namespace, name, version, json: body }
}

impl EdgeObjects {
    /// `watch_bytes` limits the memory for changes that watches read.
    pub(super) fn new(
        store: EdgeStore,
        kinds: Arc<KindRegistry>,
        node: &NodeName,
        watch_bytes: usize,
        clock: ReadClock,
        shared_node: SharedNode,
    ) -> Self {
        Self::keeping(store, kinds, node, watch_bytes, clock, shared_node, INTEREST)
    }

    fn keeping(
        store: EdgeStore,
        kinds: Arc<KindRegistry>,
        node: &NodeName,
        watch_bytes: usize,
        clock: ReadClock,
        shared_node: SharedNode,
        keep: Duration,
    ) -> Self {
        let node = node.clone();
        let watches = Arc::new(Watches::new(node.clone(), watch_bytes, keep, store.versions()));
        store.observe(watches.clone());
        // A commit in between was not observed.
        watches.catch_up(store.versions());
        let statuses = Arc::new(Statuses::new(store.outbox()));
        let synthesized = ["Node", "Namespace"].map(Synthesized::new);
        let listed = AtomicBool::new(false);
        Self { store, clock, statuses, kinds, node, watches, synthesized, shared_node, listed }
    }

    /// Opens a list of rows.
    async fn rows(&self, source: ObjectSource, resource: &Arc<Resource>) -> Result<EdgeList> {
        match self.store.snapshot().await.map_err(|error| unavailable(&error))? {
            Some(snapshot) => {
                let (node, statuses) = (self.node.clone(), self.statuses.clone());
                Ok(EdgeList::Rows(RowList::new(snapshot, source, resource.clone(), node, statuses)))
            }
            None => {
                let message = format!("too many lists at the same time, at most {MAX_SNAPSHOTS}");
                Err(Status::too_many_requests(message, 1))
            }
        }
    }

    /// Releases memory periodically, until it is dropped: that of lists, and changes without recent
    /// readers.
    pub(super) async fn release_periodically(&self) {
        loop {
            tokio::time::sleep(TIDY_INTERVAL).await;
            self.statuses.tidy(Instant::now());
            let tidied = self.watches.tidy();
            if self.listed.swap(false, Ordering::Relaxed) || tidied {
                release_memory(&self.store).await;
            }
        }
    }

    async fn record(&self, scope: Scope, namespace: &str, name: &str) -> Result<Option<Stored>> {
        let Some((node, uid)) = objectsync::split_sync_name(name) else { return Ok(None) };
        if *node != *self.node {
            return Ok(None);
        }
        let stored = self.store.by_uid(uid.into()).await.map_err(|error| unavailable(&error))?;
        let matches_scope = |stored: &edge::Stored| {
            stored.object.namespace == namespace && namespace.is_empty() == (scope == Scope::Cluster)
        };
        Ok(stored
            .filter(matches_scope)
            .and_then(|stored| record::of_stored(&self.node, &stored, stored.own_version)))
    }

    async fn synced(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Option<Synced>> {
        let found = self.store.get(Arc::new(resource.clone()), namespace.to_owned(), name.to_owned()).await;
        let Some(stored) = found.map_err(|error| unavailable(&error))? else { return Ok(None) };
        let uid = stored.uid.clone();
        let waiting = if self.statuses.may_wait() {
            let waiting = self.store.outbox_item(Lane::Status, edge::status_key(&uid)).await;
            waiting.map_err(|error| unavailable(&error))?
        } else {
            None
        };
        Ok(Some(Synced { uid, object: shown(stored), waiting }))
    }

    /// Returns a synced object with its last locally written status.
    fn show(&self, synced: &Synced) -> Stored {
        let Synced { uid, object, waiting } = synced;
        self.statuses.show(uid, object.clone(), waiting.as_deref(), Instant::now())
    }

    /// Writes the status of a synced object to the outbox. It was computed from `old`: fails with a
    /// conflict if the object or its status has changed since.
    async fn write_status(&self, resource: &Resource, object: &Object, old: &Stored) -> Result<Stored> {
        let _lock = self.statuses.lock(object.uid()).await;
        let synced = self.synced(resource, &old.namespace, &old.name).await?;
        let mut synced = synced.ok_or_else(|| Status::not_found(resource, &old.name))?;
        if self.show(&synced) != *old {
            return Err(Status::modified(resource, &old.name));
        }
        let change = statuses::Change::new(object, old)?;
        if change.is_changed {
            let content = change.content(resource, &synced.uid, old)?;
            let (lane, key, at) = (Lane::Status, edge::status_key(&synced.uid), (self.clock)());
            self.statuses.forget(&synced.uid);
            let put = OutboxPut { lane, key, at, content: content.clone() };
            self.store.post(vec![OutboxWrite::Upload(put)]).await.map_err(|error| unavailable(&error))?;
            synced.waiting = Some(content);
        }
        if change.is_changed || change.managers.is_some() {
            self.statuses.note(&synced.uid, old.version, change);
        }
        Ok(self.show(&synced))
    }

    async fn write(&self, resource: &Resource, name: &str, write: LocalWrite) -> Result<Stored> {
        let outcome: LocalOutcome =
            self.store.write_local(write, (self.clock)()).await.map_err(|error| unavailable(&error))?;
        outcome.map(shown_local).map_err(|refusal| match refusal {
            LocalRefusal::Exists => Status::already_exists(resource, name),
            LocalRefusal::Missing => Status::not_found(resource, name),
            LocalRefusal::Modified => Status::modified(resource, name),
            LocalRefusal::TooLarge => Status::too_large(MAX_LOCAL_BYTES),
            LocalRefusal::TooMany => {
                let why = format!("at most {MAX_LEASES} Leases on this node; hint: delete an unused one");
                Status::forbidden(resource, name, &why)
            }
        })
    }

    /// Converts an object for the store.
    fn local(&self, resource: &Resource, object: &Object) -> Result<LocalObject> {
        let kind = local_kind(resource, object.name())?;
        Ok(LocalObject {
            kind,
            namespace: object.namespace().to_owned(),
            name: object.name().to_owned(),
            version: 0,
            body: object.to_json(),
        })
    }
}

fn local_kind(resource: &Resource, name: &str) -> Result<LocalKind> {
    kinds::local_kind(resource)
        .ok_or_else(|| Status::forbidden(resource, name, kinds::read_only_hint(resource)))
}

impl Storage for EdgeObjects {
    type Snapshot = EdgeList;

    fn kind(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        self.kinds.kind(group, version, plural)
    }

    fn kinds(&self) -> Vec<Arc<Kind>> {
        self.kinds.served()
    }

    fn kinds_version(&self) -> u64 {
        self.kinds.version()
    }

    fn checks(&self) -> Vec<(&'static str, Result<()>)> {
        let store = match &self.store.health().borrow().writing {
            // Held objects can be read, and deletes continue.
            Writing::Works | Writing::Full => Ok(()),
            Writing::Fails { reason } => {
                Err(Status::unavailable(format!("store not writable: {reason}"), RETRY_SECONDS))
            }
        };
        vec![("store", store)]
    }

    fn version(&self, resource: &Resource) -> u64 {
        let versions = self.store.versions();
        match ObjectSource::of(resource) {
            ObjectSource::Synced | ObjectSource::Records(_) => versions.objects,
            ObjectSource::Local(_) => versions.local,
            source @ ObjectSource::Synthesized(_) => self.watches.of(&source).version(),
        }
    }

    async fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Option<Stored>> {
        match ObjectSource::of(resource) {
            ObjectSource::Records(scope) => self.record(scope, namespace, name).await,
            ObjectSource::Local(kind) => {
                let found = self.store.local(kind, namespace.to_owned(), name.to_owned()).await;
                Ok(found.map_err(|error| unavailable(&error))?.map(shown_local))
            }
            ObjectSource::Synced => {
                let synced = self.synced(resource, namespace, name).await?;
                Ok(synced.map(|synced| self.show(&synced)))
            }
            ObjectSource::Synthesized(kind) => Ok(self.synthesized(kind).await?.get(name)),
        }
    }

    async fn snapshot(&self, resource: &Arc<Resource>) -> Result<EdgeList> {
        let source = ObjectSource::of(resource);
        self.listed.store(true, Ordering::Relaxed);
        if let ObjectSource::Synthesized(kind) = source {
            return Ok(EdgeList::Synthesized(self.synthesized(kind).await?));
        }
        if self.watches.of(&source).record_interest() {
            // Commits in flight are not recorded: a list before them could not continue as a watch.
            let _ = tokio::time::timeout(COMMIT_TIMEOUT, self.store.settle()).await;
        }
        self.rows(source, resource).await
    }

    async fn changes(&self, resource: &Arc<Resource>, after: u64) -> Result<Batch> {
        let source = ObjectSource::of(resource);
        if let ObjectSource::Synthesized(kind) = source {
            self.synthesized_changed(kind, after).await?;
        }
        self.watches.of(&source).changes(resource, after).await
    }

    async fn create(&self, resource: &Arc<Resource>, object: Object) -> Result<Stored> {
        let local = self.local(resource, &object)?;
        self.write(resource, object.name(), LocalWrite::Create(local)).await
    }

    async fn update(&self, resource: &Arc<Resource>, object: Object, expected: u64) -> Result<Stored> {
        let local = self.local(resource, &object)?;
        self.write(resource, object.name(), LocalWrite::Update(local, expected)).await
    }

    async fn update_status(&self, resource: &Arc<Resource>, object: Object, old: &Stored) -> Result<Stored> {
        match ObjectSource::of(resource) {
            ObjectSource::Synced => self.write_status(resource, &object, old).await,
            _ => self.update(resource, object, old.version).await,
        }
    }

    async fn remove(&self, resource: &Arc<Resource>, old: &Stored) -> Result<Stored> {
        let kind = local_kind(resource, &old.name)?;
        let (namespace, name) = (old.namespace.clone(), old.name.clone());
        let object = LocalObject { kind, namespace, name, version: 0, body: String::new() };
        self.write(resource, &old.name, LocalWrite::Remove(object, old.version)).await
    }
}

/// Returns status 410: the changes after a version are no longer in memory.
fn expired(after: u64) -> Status {
    Status::new(Reason::Expired, format!("too old resource version: {after}"))
}

#[cfg(test)]
mod tests;
