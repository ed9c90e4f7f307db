//! The edge's store: the held objects, the changes that the cloud has not confirmed, and digests of
//! both.
//!
//! Rows, revision, count and digest change in one transaction, by the rules of
//! [`edgesync_protocol::apply`]. Losses never stop the store: a damaged or missing file is
//! replaced by its readable rows under a new epoch, and [`Health`] reports it.
//! `docs/decisions/0004-store-layout.md` explains the layout.

mod check;
mod commit_listener;
mod files;
pub mod inspect;
mod journal;
mod local;
mod metadata;
mod new_file;
mod outbox;
mod outbox_access;
mod parts;
mod read;
mod rotation;
mod rows;
mod salvage;
mod seals;
mod serving;
mod shared;
mod snapshot;
mod state;
mod tables;
mod types;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use edgesync_object::{Resource, ResourceVersion};
use edgesync_protocol::apply::{Applied, Totals};
use edgesync_protocol::change::{Change, Uid};
use edgesync_protocol::compression;
use edgesync_protocol::digest::{BucketSet, Buckets, Epoch};
use edgesync_store::StoreError;
use edgesync_store::engine::EngineOptions;
use edgesync_store::reader::{Generation, ReaderLimits, Readers};
use edgesync_store::writer::{Writer, WriterLimits, WriterStats};

pub use check::CheckReport;
pub use commit_listener::{CommitListener, CommittedChanges, LocalTransition, Part, Transition, Versions};
pub(crate) use local::MAX_LOCAL_BYTES;
pub use local::{
    EVENT_SECONDS, LocalOutcome, LocalRefusal, LocalWrite, MAX_EVENTS, MAX_EVENTS_BYTES, MAX_LEASES,
};
pub use outbox::{
    MAX_UPLOAD_BYTES, MonotonicTime, OutboxLimits, OutboxPut, OutboxState, OutboxWrite, TIME_CORRECTED,
    effect_key, event_key, status_key,
};
pub use parts::AppliedMessage;
pub use rotation::{Rotated, SealFacts};
pub(crate) use shared::MAX_SNAPSHOTS;
pub use snapshot::{EdgeSnapshot, RecordRow, Scan, ScanRow};
pub use types::{LocalKind, LocalObject};

/// Maximum page cache of a reading connection, KiB.
const READER_CACHE_KIB: u32 = 128;

/// Options for opening the store.
#[derive(Clone, Debug)]
pub struct EdgeOptions {
    /// Connections, cache and limits of the file.
    pub engine: EngineOptions,
    /// Limits of the writer's queue. `engine` overrides its `wal_bytes`.
    pub writer: WriterLimits,
    /// Threads and queue of the readers.
    pub readers: ReaderLimits,
    /// Time for which a confirmation waits for another commit before it gets its own.
    pub flush_after: Duration,
    /// Interval of the checks of all rows; the first one starts right after opening.
    pub check_every: Duration,
    /// Pause after each 256 rows of a check, which leaves the device to other programs.
    pub check_pause: Duration,
    /// Limits of the outbox.
    pub outbox: OutboxLimits,
    /// Sealed kinds and the location of the keys; `None` seals nothing.
    pub seal: Option<edgesync_store::seal::SealOptions>,
}

impl Default for EdgeOptions {
    fn default() -> Self {
        Self {
            engine: EngineOptions::default(),
            writer: WriterLimits::default(),
            readers: ReaderLimits { threads: 1, queue: 64 },
            flush_after: Duration::from_secs(30),
            check_every: Duration::from_secs(6 * 3600),
            check_pause: Duration::from_millis(5),
            outbox: OutboxLimits::default(),
            seal: None,
        }
    }
}

/// State of the store: the content of a Hello.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Facts {
    /// Epoch, revision, count and digest of the last commit.
    pub totals: Totals,
    /// Last revision that the cloud is known to have recorded.
    pub confirmed: u64,
    /// Incarnation of the last connected cloud.
    pub incarnation: Option<String>,
}

/// The result of a committed batch.
#[derive(Debug)]
pub struct Commit {
    /// Revision before the batch. The batch's own are `before + 1 ..= totals.revision`.
    pub before: u64,
    /// Totals after the batch.
    pub totals: Totals,
    /// Held versions to report, and rejected changes.
    pub applied: Applied,
}

/// Whether the store accepts changes, and its last loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether changes are accepted.
    pub writing: Writing,
    /// The last loss during or after opening.
    pub reset: Option<Reset>,
}

/// Whether changes are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Writing {
    /// The last commit succeeded.
    #[default]
    Works,
    /// The last commit found the database or its disk full.
    Full,
    /// The last commit failed.
    Fails {
        /// The error of SQLite or the system.
        reason: String,
    },
}

/// A loss. There is a new epoch, so the cloud needs a Hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Number of the loss since the store was opened, from one.
    pub number: u64,
    /// The cause as text, for log, Event and status.
    pub cause: String,
    pub epoch: Epoch,
    /// Objects held after the loss.
    pub kept: u64,
    /// Objects known to be lost; others may be lost undetected.
    pub lost: u64,
    /// Path of the replaced file; `None` if the file was not replaced.
    pub set_aside: Option<PathBuf>,
}

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    /// Group, version, kind, plural and scope.
    pub resource: Arc<Resource>,
    /// Namespace, empty for cluster-scoped kinds.
    pub namespace: String,
    pub name: String,
}

/// The state of one UID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Revision of its last change.
    pub revision: u64,
    pub uid: Uid,
    /// The held version; `None` if the object was deleted.
    pub version: Option<ResourceVersion>,
    /// Identity of the object.
    pub object: ObjectRef,
}

/// Changes in the order of their revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The requested start: all changes after this revision.
    pub from: u64,
    /// Last revision that the page covers.
    pub to: u64,
    /// The last change of each row; a row changed again later appears later.
    pub entries: Vec<Entry>,
    /// Whether changes follow after `to`.
    pub more: bool,
}

/// A page of an inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// Totals of the commit that the page shows.
    pub totals: Totals,
    /// Held objects, in no particular order.
    pub entries: Vec<Entry>,
    /// Start of the next page; `None` after the last one.
    pub next: Option<InventoryCursor>,
}

/// Start of a page of an inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InventoryCursor(i64);

impl InventoryCursor {
    /// Converts a number of [`InventoryCursor::number`] back; `None` for zero, the start.
    #[must_use]
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        i64::try_from(number).ok().filter(|number| *number > 0).map(Self)
    }

    /// Returns the cursor as a number above zero.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0.unsigned_abs()
    }
}

/// An object with its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub uid: Uid,
    /// The object's `resourceVersion` in the cloud.
    pub version: ResourceVersion,
    /// Revision of its last change in this store.
    pub revision: u64,
    /// This store's version of it: the base of the epoch plus the revision.
    pub own_version: u64,
    /// Identity of the object.
    pub object: ObjectRef,
    /// The object as JSON text, as received.
    pub body: String,
}

/// Start of a page of a list: after this namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListCursor {
    /// Namespace of the last object of the previous page.
    pub namespace: String,
    /// Name of the last object of the previous page.
    pub name: String,
}

/// A page of a list, sorted by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Revision of the commit that the page shows.
    pub revision: u64,
    pub items: Vec<Stored>,
    /// Start of the next page; `None` after the last one.
    pub next: Option<ListCursor>,
}

/// Sizes and counters of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeStats {
    /// Bytes of the database file.
    pub database_bytes: u64,
    /// Bytes of the write-ahead log.
    pub wal_bytes: u64,
    /// Bytes within the database file that are free for reuse.
    pub free_bytes: u64,
    /// Events dropped for newer ones before they expired, since the store was opened.
    pub events_dropped: u64,
    /// Counters of the writer.
    pub writer: WriterStats,
}

/// A handle of the edge's store, cheap to clone. The store closes with its last handle;
/// [`EdgeStore::close`] waits for that.
#[derive(Clone, Debug)]
pub struct EdgeStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    writer: Writer<state::State>,
    readers: Readers,
    shared: Arc<shared::Shared>,
    checker: check::Checker,
    seals: seals::Seals,
    /// Held during a rotation of the keys.
    rotating: tokio::sync::Mutex<()>,
    max_file_bytes: Option<u64>,
}

impl EdgeStore {
    /// Opens or creates the database. Sets aside a damaged file as `<name>.corrupt-<time>`, and one
    /// that a newer program has written as `<name>.newer-<time>`; readable rows move to a new file:
    /// see [`Health::reset`]. Objects sealed with a lost key count as a loss, too. Seals every row
    /// that must be sealed.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if another process has opened it, [`StoreError::Foreign`] if it
    /// belongs to another program, [`StoreError::Full`] or [`StoreError::Unavailable`] if the
    /// system refuses access to it or to the file with the keys.
    pub fn open(path: &Path, options: EdgeOptions) -> Result<Self, StoreError> {
        let mut options = options;
        options.engine = options.engine.with_room_for_log();
        options.writer.wal_bytes = options.engine.wal_bytes;
        let generation = Generation::default();
        let (conn, state) = state::State::open(path, &options, generation.clone())?;
        let (shared, seals) = (state.shared(), state.seals());
        let writer = Writer::start("store-write", conn, state, options.writer)?;
        let suspect = writer.clone();
        let on_corrupt = Box::new(move |error: &StoreError| {
            tracing::warn!(%error, "damage found by a read");
            drop(suspect.post(check::confirm_damage));
        });
        // Readers scan rows once, in order: a large cache would only keep memory.
        let cache_kib = options.engine.cache_kib.min(READER_CACHE_KIB);
        let engine = EngineOptions { cache_kib, ..options.engine.clone() };
        let readers = Readers::start(path, &engine, options.readers, &generation, on_corrupt)?;
        let recent = Arc::clone(&shared.recent);
        let checker = check::Checker::start(path, &options, writer.clone(), recent, seals.clone())?;
        let path = path.to_owned();
        let rotating = tokio::sync::Mutex::default();
        let max_file_bytes = options.engine.max_file_bytes();
        let inner = Inner { path, writer, readers, shared, checker, seals, rotating, max_file_bytes };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the state of the last commit.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.inner.shared.facts()
    }

    /// Returns the maximum size of the database without its log, in bytes.
    #[must_use]
    pub fn max_file_bytes(&self) -> Option<u64> {
        self.inner.max_file_bytes
    }

    /// Watches whether the store accepts changes, and its losses.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Health> {
        self.inner.shared.watch_health()
    }

    /// Applies changes by the rules of [`edgesync_protocol::apply`] in one transaction, and
    /// returns after its commit.
    ///
    /// # Errors
    /// Fails if the store does; then it holds no change of the batch. Changes that the rules reject
    /// are no error, but listed in [`Commit::applied`].
    pub async fn apply(&self, changes: Vec<Change>) -> Result<Commit, StoreError> {
        let whole = 0..changes.len();
        self.apply_range(Arc::new(changes), whole).await
    }

    /// Applies a range of the changes like [`EdgeStore::apply`]: for a retry with fewer of them.
    ///
    /// # Errors
    /// See [`EdgeStore::apply`].
    pub(crate) async fn apply_range(
        &self,
        changes: Arc<Vec<Change>>,
        range: std::ops::Range<usize>,
    ) -> Result<Commit, StoreError> {
        let bytes = changes.get(range.clone()).unwrap_or_default().iter().map(tables::weight).sum();
        self.inner
            .writer
            .run(bytes, move |conn, state| state.apply(conn, changes.get(range.clone()).unwrap_or_default()))
            .await
    }

    /// Records that the cloud has confirmed everything up to `revision`. Written with the next
    /// commit or after a while: a loss costs only a repeated report.
    pub fn confirm(&self, revision: u64) {
        self.inner.shared.confirm(revision);
    }

    /// Records the incarnation of the cloud.
    ///
    /// # Errors
    /// Fails if the store cannot be written.
    pub async fn set_incarnation(&self, incarnation: Option<String>) -> Result<(), StoreError> {
        self.inner
            .writer
            .run(256, move |conn, state| state.set_incarnation(conn, incarnation.as_deref()))
            .await
    }

    /// Returns up to `limit` changes after a revision, in order; omits changes of a row that
    /// changed again later.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] if the journal starts later: it drops confirmed changes.
    pub async fn changes(&self, after: u64, limit: usize) -> Result<Changes, StoreError> {
        let recent = self.recent();
        self.inner.readers.run(move |conn| read::changes(conn, &recent, after, limit)).await
    }

    /// Returns the digests of all buckets, and the totals of the same commit.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub async fn buckets(&self) -> Result<(Totals, Buckets), StoreError> {
        let recent = self.recent();
        self.inner.readers.run(move |conn| read::buckets(conn, &recent)).await
    }

    /// Returns up to `limit` held objects in some buckets. Pages differ in their commits if changes
    /// are applied meanwhile; [`EdgeStore::changes`] has those changes.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub async fn inventory(
        &self,
        buckets: BucketSet,
        after: Option<InventoryCursor>,
        limit: usize,
    ) -> Result<Inventory, StoreError> {
        let recent = self.recent();
        self.inner.readers.run(move |conn| read::inventory(conn, &recent, buckets, after, limit)).await
    }

    /// Returns the object of a name.
    ///
    /// # Errors
    /// Fails if the store cannot be read. A damaged row counts as missing, and is removed.
    pub async fn get(
        &self,
        resource: Arc<Resource>,
        namespace: String,
        name: String,
    ) -> Result<Option<Stored>, StoreError> {
        let seals = self.inner.seals.clone();
        let read = move |conn: &_| read::by_name(conn, &seals, &resource, &namespace, &name);
        let (stored, damaged) = self.inner.readers.run(read).await?;
        self.report_damage(damaged);
        Ok(stored)
    }

    /// Returns the object of a UID.
    ///
    /// # Errors
    /// Fails if the store cannot be read. A damaged row counts as missing, and is removed.
    pub async fn by_uid(&self, uid: Uid) -> Result<Option<Stored>, StoreError> {
        Ok(self.read_by_uid(uid).await?.0)
    }

    /// Like [`EdgeStore::by_uid`], but distinguishes a damaged row from a missing one.
    ///
    /// # Errors
    /// Fails if the store cannot be read; [`StoreError::Corrupt`] for a damaged row, which is
    /// removed.
    pub async fn sound_by_uid(&self, uid: Uid) -> Result<Option<Stored>, StoreError> {
        match self.read_by_uid(uid).await? {
            (stored, false) => Ok(stored),
            (_, true) => Err(StoreError::corrupt("damaged object row")),
        }
    }

    /// Returns the object, and whether its row is damaged.
    async fn read_by_uid(&self, uid: Uid) -> Result<(Option<Stored>, bool), StoreError> {
        let seals = self.inner.seals.clone();
        let read = move |conn: &_| read::by_uid(conn, &seals, &uid);
        let (stored, damaged) = self.inner.readers.run(read).await?;
        let is_damaged = !damaged.is_empty();
        self.report_damage(damaged);
        Ok((stored, is_damaged))
    }

    /// Returns objects of one kind, in one namespace or all, sorted by namespace and name: up to
    /// `limit` objects and 1 MiB.
    ///
    /// # Errors
    /// Fails if the store cannot be read. Omits damaged rows, which are removed.
    pub async fn list(
        &self,
        resource: Arc<Resource>,
        namespace: Option<String>,
        after: Option<ListCursor>,
        limit: usize,
    ) -> Result<List, StoreError> {
        let (recent, seals) = (self.recent(), self.inner.seals.clone());
        let read = move |conn: &_| {
            read::list(conn, &recent, &seals, &resource, namespace.as_deref(), after.as_ref(), limit)
        };
        let (list, damaged) = self.inner.readers.run(read).await?;
        self.report_damage(damaged);
        Ok(list)
    }

    /// Returns the kinds of held objects. The cost does not depend on the number of objects.
    ///
    /// # Errors
    /// Fails if the store cannot be read. Damage is repaired first.
    pub(crate) async fn held_kinds(&self) -> Result<Vec<Arc<Resource>>, StoreError> {
        self.read_repaired(read::held_kinds).await
    }

    /// Runs a read, and repeats it after the repair of damage that it finds: for reads that the
    /// start of the agent depends on.
    async fn read_repaired<T: Send + 'static>(
        &self,
        read: impl Fn(&rusqlite::Connection) -> Result<T, StoreError> + Copy + Send + 'static,
    ) -> Result<T, StoreError> {
        match self.inner.readers.run(read).await {
            Err(StoreError::Corrupt(_)) => {
                // The second read shows whether it has helped.
                drop(self.check().await);
                self.inner.readers.run(read).await
            }
            other => other,
        }
    }

    /// Returns the kinds of held objects, with the count of each: reads the index.
    ///
    /// # Errors
    /// Fails if the store cannot be read. Damage is repaired first.
    pub async fn kinds(&self) -> Result<Vec<(Arc<Resource>, u64)>, StoreError> {
        self.read_repaired(read::kinds).await
    }

    /// Releases page caches and prepared statements of the connections: for quiet times on small
    /// devices. Writes nothing.
    ///
    /// # Errors
    /// Fails if the store is closed.
    pub async fn release_memory(&self) -> Result<(), StoreError> {
        const SHRINK: &str = "PRAGMA shrink_memory";
        let shrink = |conn: &rusqlite::Connection| {
            compression::release();
            conn.flush_prepared_statement_cache();
            Ok::<(), StoreError>(conn.execute_batch(SHRINK)?)
        };
        self.inner.shared.snapshots.release();
        self.inner.readers.run(shrink).await?;
        self.inner.writer.run_between(shrink).await
    }

    /// Returns sizes and counters.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub async fn stats(&self) -> Result<EdgeStats, StoreError> {
        let free_bytes = self.inner.readers.run(read::free_bytes).await?;
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        Ok(EdgeStats {
            database_bytes: size(&self.inner.path),
            wal_bytes: size(&edgesync_store::engine::wal_path(&self.inner.path)),
            free_bytes,
            events_dropped: self.inner.shared.events_dropped.load(Ordering::Relaxed),
            writer: self.inner.writer.stats(),
        })
    }

    /// Checks and counts all rows now, and repairs what is wrong. Returns what it was.
    ///
    /// # Errors
    /// Fails if the store cannot be read or repaired.
    pub async fn check(&self) -> Result<CheckReport, StoreError> {
        self.inner.checker.check().await
    }

    /// Writes pending state and closes the database.
    pub async fn close(&self) {
        self.inner.checker.stop();
        self.inner.readers.close();
        self.inner.shared.snapshots.release();
        self.inner.writer.close().await;
    }

    fn recent(&self) -> Arc<journal::Recent> {
        Arc::clone(&self.inner.shared.recent)
    }

    fn report_damage(&self, damaged: Vec<i64>) {
        if !damaged.is_empty() {
            drop(self.inner.writer.post(move |conn, state| state.repair(conn, &damaged)));
        }
    }
}
