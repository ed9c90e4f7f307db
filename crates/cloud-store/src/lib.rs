//! SQLite store of the embedded cloud side: objects of any kind with versions and history, the
//! ledger of what each node reported, and the [`Document`]s of enrollment. It depends neither on
//! HTTP nor on connections nor on the fleet's loop. Read [`CloudStore`] first, then [`Feed`].
//!
//! # Guarantees
//! - Every change gets the next `resourceVersion` of one counter and an entry in the history, in
//!   the transaction of the change. Callers are answered after the commit.
//! - No version is issued twice, even if the file is replaced by an older copy (`versions`).
//! - A [`Feed`] yields every committed change of an object that can be placed, in order and once. A
//!   [`CommitListener`] receives every change of every kind, with the previous state. Exceptions:
//!   renewals of node Leases ([`CloudStore::renew_leases`]) and documents get versions, but no
//!   notification.
//! - A [`CloudSnapshot`] shows one commit for as long as it is open.
//! - A damaged file is never refilled silently, because its content exists nowhere else. Opening it
//!   fails; [`CloudOptions::set_aside_corrupt`] allows a fresh start beside it. Damage found later
//!   fails the read that meets it; [`CloudStore::look_through`] reads everything, and
//!   [`CloudStore::damage`] returns the first damage found.
//! - One process at a time: the file `<database>.lock` is locked while the database is open.

mod change;
mod check;
mod commit_listener;
mod documents;
mod error;
mod expiry;
mod feed;
mod fleet;
mod gone;
mod history;
mod in_effect;
pub mod inspect;
mod leases;
mod namespaces;
mod nodes;
mod objects;
mod open;
mod read;
mod rollouts;
mod rules;
mod snapshot;
mod state;
mod stored;
mod summaries;
mod upload;
mod versions;

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;

use edgesync_object::{
    NodeName, Object, ObjectKey, OmittedFields, Resource, ResourceVersion, SERVER_METADATA, kinds,
};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{Issued, Loaded, Record, RecordBatch};
use edgesync_store::StoreError;
use edgesync_store::reader::Readers;
use edgesync_store::snapshots::Snapshots;
use edgesync_store::writer::{Writer, WriterStats};
use objects::Tx;
use state::CloudState;

pub use change::{ChangeKind, FeedChange};
pub use check::CheckReport;
pub use commit_listener::{CommitListener, KindName, WatchChange};
pub use documents::{Document, NodeEffect};
pub use error::{CloudError, OpenError};
pub use feed::{Feed, FeedItem};
pub use fleet::{NodeChange, Registered};
pub use history::{HistoryBound, HistoryLimits};
pub use in_effect::{EffectCounts, InEffect, NodeEffects, effect_labels, effect_wait, key_of};
pub use leases::{LeaseRenewal, NEXT_CHECK_IN};
pub use nodes::{NodeFacts, Recorded};
pub use open::CloudOptions;
pub use read::{Cursor, HistoryPage, HistoryQuery, MAX_BODIES};
pub use rollouts::{
    RevisionError, RevisionKey, RolloutWrite, RuleKey, Sweep, keep_rollout, rollout_sequence, with_rollout,
};
pub use rules::RuleStatus;
pub use snapshot::{CloudSnapshot, Listed, Scan};
pub use stored::Stored;
pub use summaries::summary;
pub use upload::{
    Effect, UploadBatch, UploadEffect, UploadOutcome, event_names, event_of_node, is_event_of,
    keep_event_metadata,
};

/// Limit of the kinds whose descriptions are shared between objects.
const MAX_SHARED_KINDS: usize = 4096;

/// Handle of the store, cheap to clone. The threads end with [`CloudStore::close`] or the last
/// handle.
#[derive(Clone, Debug)]
pub struct CloudStore {
    writer: Writer<CloudState>,
    readers: Readers,
    snapshots: Snapshots,
    shared: Arc<Shared>,
}

struct Shared {
    feed: broadcast::WeakSender<FeedChange>,
    observer: Arc<OnceLock<Arc<dyn CommitListener>>>,
    last_version: Arc<AtomicU64>,
    issued: Mutex<Arc<Issued>>,
    incarnation: Mutex<Arc<str>>,
    kinds: Mutex<HashSet<Arc<Resource>>>,
    max_object_bytes: usize,
    events_per_node: usize,
    damage: check::Damage,
    clock: fn() -> jiff::Timestamp,
    running: fn() -> Duration,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("last_version", &self.last_version).finish_non_exhaustive()
    }
}

impl CloudStore {
    /// Opens or creates the database. Blocks: call it at startup, outside of async tasks.
    ///
    /// # Errors
    /// [`OpenError::Corrupt`] for a damaged file; [`StoreError::InUse`] as [`OpenError::Named`] if
    /// another process has it open; other failures as [`OpenError`] classifies them.
    pub fn open(path: &Path, options: &CloudOptions) -> Result<Self, OpenError> {
        open::open(path, options)
    }

    /// Stores a new object with a new version. Sets uid, creation time and generation where they
    /// are missing.
    ///
    /// # Errors
    /// [`CloudError::AlreadyExists`], [`CloudError::Invalid`], [`CloudError::TooLarge`],
    /// [`CloudError::NamespaceLeft`], or the store's.
    pub async fn create(&self, resource: &Resource, object: Object) -> Result<Stored, CloudError> {
        let (resource, bytes) = self.check(resource, &object)?;
        self.write(bytes, move |tx| tx.create_within(&resource, object.clone())).await
    }

    /// Replaces the object of the same namespace and name by compare-and-swap: its version must be
    /// `expected` and its uid the same. The new object gets the next version. An equal object
    /// changes nothing, not even the version.
    ///
    /// # Errors
    /// [`CloudError::NotFound`], [`CloudError::Conflict`], [`CloudError::OtherUid`],
    /// [`CloudError::TooLarge`], [`CloudError::Invalid`] for a malformed ObjectSync record, or the
    /// store's.
    pub async fn update(
        &self,
        resource: &Resource,
        object: Object,
        expected: u64,
    ) -> Result<Stored, CloudError> {
        let bytes = self.check_size(resource, &object)?;
        let resource = self.share(resource);
        self.write(bytes, move |tx| tx.update(&resource, object.clone(), expected)).await
    }

    /// Deletes an object, if it has the version `expected` (if given), and returns its last state
    /// with the version of the deletion. Does not wait for finalizers.
    ///
    /// # Errors
    /// [`CloudError::NotFound`], [`CloudError::Conflict`], [`CloudError::NotEmpty`], or the
    /// store's.
    pub async fn delete(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        expected: Option<u64>,
    ) -> Result<Stored, CloudError> {
        let resource = self.share(resource);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.write(256, move |tx| tx.delete(&resource, &namespace, &name, expected)).await
    }

    /// Reads an object.
    ///
    /// # Errors
    /// [`CloudError::NotFound`], or the store's.
    pub async fn get(&self, key: ObjectKey) -> Result<Stored, CloudError> {
        self.readers
            .run(move |conn| {
                let row = match objects::resource_id(conn, &key.group, &key.kind)? {
                    Some(id) => objects::find(conn, id, &key.namespace, &key.name)?,
                    None => None,
                };
                row.map(|row| row.stored).ok_or(CloudError::NotFound { key })
            })
            .await
    }

    /// Returns the kinds that have objects.
    ///
    /// # Errors
    /// The store's.
    pub async fn resources(&self) -> Result<Vec<Resource>, CloudError> {
        self.readers.run(read::resources).await
    }

    /// Reads objects by UID, at most [`MAX_BODIES`], to send them to nodes. Unknown UIDs are left
    /// out.
    ///
    /// # Errors
    /// The store's.
    pub async fn bodies(&self, uids: Vec<Uid>, left_out: OmittedFields) -> Result<Vec<Loaded>, CloudError> {
        self.readers.run(move |conn| read::bodies(conn, &uids, left_out)).await
    }

    /// Reads earlier versions of objects from the history, as [`CloudStore::bodies`] returned them.
    /// Those that the history does not have any more are left out.
    ///
    /// # Errors
    /// The store's.
    pub async fn bases(
        &self,
        wanted: Vec<(Uid, ResourceVersion)>,
        left_out: OmittedFields,
    ) -> Result<Vec<(Uid, ResourceVersion, String)>, CloudError> {
        self.readers.run(move |conn| read::bases(conn, wanted, left_out)).await
    }

    /// Returns changes after a version, in order.
    ///
    /// # Errors
    /// [`CloudError::Expired`] if the history does not reach back that far, or if the version
    /// belongs to a timeline that this store has replaced; or the store's.
    pub async fn history(&self, query: HistoryQuery) -> Result<HistoryPage, CloudError> {
        if let Some(oldest) = self.issued().end_of(query.after) {
            return Err(CloudError::Expired { after: query.after, oldest });
        }
        self.readers.run(move |conn| read::history(conn, &query)).await
    }

    /// Opens a snapshot of the newest commit. An open snapshot prevents a restart of the
    /// write-ahead log, so drop it soon.
    ///
    /// # Errors
    /// [`StoreError::TooManySnapshots`], or the store's.
    pub async fn snapshot(&self) -> Result<CloudSnapshot, CloudError> {
        let snapshot = CloudSnapshot::open(&self.snapshots).await?;
        // The writer may not have published this commit yet. A watch from here must not count as
        // one from a version of another store.
        self.shared.last_version.fetch_max(snapshot.version(), Ordering::AcqRel);
        Ok(snapshot)
    }

    /// Registers the observer of all later changes. There can be one.
    ///
    /// # Errors
    /// [`StoreError::Internal`] if one is registered already, or the store's.
    pub async fn observe(&self, observer: Arc<dyn CommitListener>) -> Result<(), CloudError> {
        self.shared
            .observer
            .set(observer)
            .map_err(|_| StoreError::internal("store already has an observer"))?;
        // The writer finds the observer before its next group.
        self.write(64, |_| Ok(())).await
    }

    /// Returns a feed of every object that can be placed, every Node, and all their changes.
    #[must_use]
    pub fn follow(&self) -> Feed {
        Feed::new(self.clone())
    }

    /// Records a batch of a node's reports in one transaction. Without an `agent_version` the
    /// recorded one stays.
    ///
    /// # Errors
    /// The store's. Reports that cannot be recorded are in [`Recorded::refused`].
    pub async fn record(
        &self,
        node: &NodeName,
        agent_version: Option<String>,
        batch: RecordBatch,
    ) -> Result<Recorded, CloudError> {
        let node = node.clone();
        // Approximate size of a record in the queue and in the transaction.
        let bytes = (batch.put.len() + batch.remove.len()).saturating_mul(512);
        self.write(bytes, move |tx| tx.record(&node, agent_version.as_deref(), &batch)).await
    }

    /// Returns the objects that a node is recorded to hold; empty if it has never reported.
    ///
    /// # Errors
    /// The store's.
    pub async fn records(&self, node: &NodeName) -> Result<Vec<(Uid, Record)>, CloudError> {
        let node = node.clone();
        self.readers.run(move |conn| nodes::records(conn, &node)).await
    }

    /// Returns all nodes that have ever reported, ordered by name.
    ///
    /// # Errors
    /// The store's.
    pub async fn nodes(&self) -> Result<Vec<(NodeName, NodeFacts)>, CloudError> {
        self.readers.run(nodes::nodes).await
    }

    /// Returns the last version issued and committed.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.shared.last_version.load(Ordering::Acquire)
    }

    /// Returns the versions that this store has issued, as far as they are distinguishable from
    /// those of a store that it replaced.
    #[must_use]
    pub fn issued(&self) -> Arc<Issued> {
        Arc::clone(&self.shared.issued())
    }

    /// Returns the random id of this timeline: created with the file, changed by
    /// [`CloudStore::new_incarnation`].
    #[must_use]
    pub fn incarnation(&self) -> Arc<str> {
        Arc::clone(&self.shared.incarnation.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives the store a new incarnation: for a file that turns out to be an older copy, or a
    /// process that continues in a copy of its machine. Versions jump ahead as on opening, so that
    /// versions issued by the other copy count as lost ([`CloudStore::issued`]) and are not issued
    /// again.
    ///
    /// # Errors
    /// The store's.
    pub async fn new_incarnation(&self) -> Result<Arc<str>, CloudError> {
        let shared = Arc::clone(&self.shared);
        self.write(64, move |tx| Ok(shared.begin_anew(tx)?)).await?;
        Ok(self.incarnation())
    }

    /// Returns the statistics of the writer.
    #[must_use]
    pub fn stats(&self) -> WriterStats {
        self.writer.stats()
    }

    /// Finishes queued jobs, closes the database and releases the lock.
    pub async fn close(&self) {
        self.readers.close();
        self.snapshots.close();
        self.writer.close().await;
    }

    /// Runs a job in the next transaction. A failed job leaves no effects.
    async fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        mut job: impl FnMut(&mut Tx<'_>) -> Result<T, CloudError> + Send + 'static,
    ) -> Result<T, CloudError> {
        let shared = Arc::clone(&self.shared);
        self.writer
            .run(bytes, move |conn, state: &mut CloudState| {
                let mark = state.mark();
                let mut tx = Tx { conn, state, now: (shared.clock)() };
                let result = match tx.state.has_jumped(tx.now, (shared.running)()) {
                    true => shared.wake_up(&mut tx).and_then(|()| job(&mut tx)),
                    false => job(&mut tx),
                };
                if result.is_err() {
                    state.reset(&mark);
                }
                result
            })
            .await
    }

    /// Checks an object before it is queued. Returns its cost in the queue, in bytes.
    fn check(&self, resource: &Resource, object: &Object) -> Result<(Arc<Resource>, usize), CloudError> {
        let key = || resource.key(object.namespace(), object.name());
        if let Err(problems) = object.validate(resource) {
            return Err(CloudError::Invalid { key: key(), problems });
        }
        let size = self.check_size(resource, object)?;
        Ok((self.share(resource), size))
    }

    fn check_size(&self, resource: &Resource, object: &Object) -> Result<usize, CloudError> {
        let size = object.to_json().len();
        let limit = self.shared.max_object_bytes;
        if size > limit {
            let key = resource.key(object.namespace(), object.name());
            return Err(CloudError::TooLarge { key, size, limit });
        }
        Ok(size)
    }

    fn share(&self, resource: &Resource) -> Arc<Resource> {
        self.shared.share(resource)
    }
}

impl Shared {
    /// Handles a jump of the clock: the machine was suspended, and a copy of it may have continued
    /// elsewhere.
    fn wake_up(&self, tx: &mut Tx<'_>) -> Result<(), CloudError> {
        tracing::warn!("clock jumped ahead: starting a new incarnation, this may be a copy of the machine");
        Ok(self.begin_anew(tx)?)
    }

    /// Jumps ahead and starts a new incarnation. If the transaction fails, the next jump reaches at
    /// least as far: no version is issued that counts as lost here.
    fn begin_anew(&self, tx: &mut Tx<'_>) -> rusqlite::Result<()> {
        let fresh: Arc<str> = open::random_id().into();
        let base = versions::begin_anew(tx.conn, tx.state.last(), tx.now, &fresh)?;
        tx.state.jump(base);
        *self.issued() = Arc::new(versions::issued(tx.conn)?);
        *self.incarnation.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    fn issued(&self) -> MutexGuard<'_, Arc<Issued>> {
        self.issued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the shared description of a kind, so that its objects do not each own a copy.
    fn share(&self, resource: &Resource) -> Arc<Resource> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = kinds.get(resource) {
            return Arc::clone(shared);
        }
        let shared = Arc::new(resource.clone());
        if kinds.len() < MAX_SHARED_KINDS {
            kinds.insert(Arc::clone(&shared));
        }
        shared
    }

    /// Looks up a kind by any of its names (plural, short name).
    fn kind(&self, word: &str) -> Result<Arc<Resource>, StoreError> {
        let known = kinds::by_word(word)
            .ok_or_else(|| StoreError::internal(format!("kind '{word}' is not in the table of kinds")))?;
        Ok(self.share(&known.resource()))
    }
}

fn node_key(node: &NodeName) -> ObjectKey {
    ObjectKey { group: "".into(), kind: "Node".into(), namespace: "".into(), name: node.as_str().into() }
}

/// Parses the node name of a row. Invalid names are logged and left out: no node can have such a
/// name.
fn node_of_row(name: &str) -> Option<NodeName> {
    let parsed = NodeName::parse(name);
    parsed.inspect_err(|problem| tracing::warn!(problem, "row with an invalid node name ignored")).ok()
}

#[cfg(test)]
mod tests;
