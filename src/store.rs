//! The edge's store: the objects held, what the cloud has not confirmed yet, and proof of both.
//!
//! Rows, revision, count and digest change in one transaction, by the rules of [`edgesync_protocol::replica`].
//! Losses never stop the store: a damaged or missing file is replaced by what can be saved of it, under a
//! new epoch, and [`Health`] tells. `docs/decisions/0004-store-layout.md` has the reasons of the layout.

mod check;
mod files;
pub mod inspect;
mod journal;
mod local;
mod new_file;
mod notes;
mod observer;
mod outbox;
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
mod upstream;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use edgesync_object::{Resource, ResourceVersion};
use edgesync_protocol::change::{Change, Uid};
use edgesync_protocol::compression;
use edgesync_protocol::digest::{BucketSet, Buckets, Epoch};
use edgesync_protocol::replica::{Applied, Totals};
use edgesync_store::StoreError;
use edgesync_store::engine::EngineOptions;
use edgesync_store::reader::{Generation, ReaderLimits, Readers};
use edgesync_store::writer::{Writer, WriterLimits, WriterStats};

pub use check::CheckReport;
pub(crate) use local::MAX_LOCAL_BYTES;
pub use local::{
    EVENT_SECONDS, LocalOutcome, LocalRefusal, LocalWrite, MAX_EVENTS, MAX_EVENTS_BYTES, MAX_LEASES,
};
pub use observer::{LocalTransition, Observer, Part, Told, Transition, Versions};
pub use outbox::{
    Clocked, MAX_UPLOAD_BYTES, OutboxLimits, OutboxPut, OutboxState, Posting, TIME_CORRECTED, effect_key,
    event_key, status_key,
};
pub use rotation::{Rotated, SealFacts};
pub(crate) use shared::MAX_SNAPSHOTS;
pub use snapshot::{EdgeSnapshot, RecordRow, Scan, ScanRow};
pub use types::{LocalKind, LocalObject};

/// The largest page cache of a reading connection, KiB.
const READER_CACHE_KIB: u32 = 128;

/// How the store is opened.
#[derive(Clone, Debug)]
pub struct EdgeOptions {
    /// Connections, cache and limits of the file.
    pub engine: EngineOptions,
    /// The writer's queue. Its `wal_bytes` is taken from `engine`.
    pub writer: WriterLimits,
    /// Threads and queue of readers.
    pub readers: ReaderLimits,
    /// How long a confirmation waits for a commit to go along with before it gets one of its own.
    pub flush_after: Duration,
    /// How often all rows are read, checked and counted; the first time is right after opening.
    pub check_every: Duration,
    /// A pause after every 256 rows of a check, so that it does not take the device from others.
    pub check_pause: Duration,
    /// What may wait in the outbox.
    pub outbox: OutboxLimits,
    /// What is sealed and where the keys are; nothing is if absent.
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

/// What the store says of itself: the content of a Hello.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Facts {
    /// Epoch, revision, count and digest of the last commit.
    pub totals: Totals,
    /// The largest revision the cloud is known to have recorded.
    pub confirmed: u64,
    /// The incarnation of the cloud that was last spoken to.
    pub incarnation: Option<String>,
}

/// A batch of changes, committed.
#[derive(Debug)]
pub struct Commit {
    /// The revision before the batch. The batch's own are `before + 1 ..= totals.revision`.
    pub before: u64,
    /// The totals after the batch.
    pub totals: Totals,
    /// What is held now, to be reported, and what could not be applied.
    pub applied: Applied,
}

/// Whether the store takes changes, and what it has lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether changes are taken.
    pub writing: Writing,
    /// The last loss since the store was opened, or while it was opened.
    pub reset: Option<Reset>,
}

/// Whether changes are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Writing {
    /// The last commit went through.
    #[default]
    Works,
    /// The last commit found no room.
    Full,
    /// The last commit failed.
    Fails {
        /// What SQLite or the system says.
        reason: String,
    },
}

/// A loss: there is a new epoch, the cloud must be told with a Hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Counts the losses since the store was opened, from one.
    pub number: u64,
    /// What has happened.
    pub cause: String,
    /// The new epoch.
    pub epoch: Epoch,
    /// Objects that are held after it.
    pub kept: u64,
    /// Objects that are known to be lost; more may be, unseen.
    pub lost: u64,
    /// Where the file has been put, if it was replaced.
    pub set_aside: Option<PathBuf>,
}

/// What an entry or object is, apart from its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    /// Group, version, kind, plural and scope.
    pub resource: Arc<Resource>,
    /// Namespace, empty for cluster-scoped kinds.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// What is held of one UID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The revision of its last change.
    pub revision: u64,
    /// The UID.
    pub uid: Uid,
    /// The version held; none if the object is held no more.
    pub version: Option<ResourceVersion>,
    /// What it is, or was.
    pub object: ObjectRef,
}

/// Changes in the order of their revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// What was asked for: everything after this revision.
    pub from: u64,
    /// The page reaches up to this revision.
    pub to: u64,
    /// The last change of each row; rows that changed again later come later.
    pub entries: Vec<Entry>,
    /// Whether there are changes after `to`.
    pub more: bool,
}

/// A page of an inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// The totals of the commit that the page shows.
    pub totals: Totals,
    /// What is held, in no order that means anything.
    pub entries: Vec<Entry>,
    /// Where the next page starts; none after the last one.
    pub next: Option<InventoryCursor>,
}

/// Where a page of an inventory starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InventoryCursor(i64);

impl InventoryCursor {
    /// The cursor that [`InventoryCursor::number`] gave, or none for zero: the start.
    #[must_use]
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        i64::try_from(number).ok().filter(|number| *number > 0).map(Self)
    }

    /// The cursor as a number above zero.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0.unsigned_abs()
    }
}

/// An object with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// UID.
    pub uid: Uid,
    /// The version held from the cloud.
    pub version: ResourceVersion,
    /// The revision of the last change of this object in this store.
    pub revision: u64,
    /// The version that this store gives it: the base of the epoch and the revision.
    pub own_version: u64,
    /// What it is.
    pub object: ObjectRef,
    /// The object as JSON text, as it was received.
    pub body: String,
}

/// Where a page of a list starts: after this namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListCursor {
    /// Namespace of the last object of the page before.
    pub namespace: String,
    /// Name of the last object of the page before.
    pub name: String,
}

/// A page of a list, by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// The revision of the commit that the page shows.
    pub revision: u64,
    /// The objects.
    pub items: Vec<Stored>,
    /// Where the next page starts; none after the last one.
    pub next: Option<ListCursor>,
}

/// Sizes and counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeStats {
    /// The database file, bytes.
    pub database_bytes: u64,
    /// The write-ahead log, bytes.
    pub wal_bytes: u64,
    /// Space within the database file that is free for reuse, bytes.
    pub free_bytes: u64,
    /// Events that had to make room for others before their time, since the store was opened.
    pub events_dropped: u64,
    /// What the writer has done.
    pub writer: WriterStats,
}

/// A handle of the edge's store, cheap to clone. The store closes with its last handle; [`EdgeStore::close`]
/// waits for that.
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
    /// Held while the keys are rotated.
    rotating: tokio::sync::Mutex<()>,
    max_file_bytes: Option<u64>,
}

impl EdgeStore {
    /// Opens the database, or makes one. A file that is damaged is set aside as
    /// `<name>.corrupt-<time>`, one that a newer program has written as `<name>.newer-<time>`; what can be read of it goes
    /// into a new file: see [`Health::reset`]. Objects that were sealed with a key that is lost are a loss of the same kind. What is to be sealed and is not yet is sealed now.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if another process has it, [`StoreError::Foreign`] if it is not ours to touch, [`StoreError::Full`] or [`StoreError::Unavailable`] if the system
    /// refuses, also if it refuses the file with the keys.
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
            tracing::warn!(%error, "a read found damage");
            drop(suspect.post(check::confirm_damage));
        });
        // Readers go through rows once, in order: a large cache would only stay filled.
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

    /// What the store says of itself, as of the last commit.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.inner.shared.facts()
    }

    /// The largest size of the database without its log, bytes.
    #[must_use]
    pub fn max_file_bytes(&self) -> Option<u64> {
        self.inner.max_file_bytes
    }

    /// Told when the store begins or ceases to take changes, and of each loss.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Health> {
        self.inner.shared.watch_health()
    }

    /// Applies changes by the rules of [`edgesync_protocol::replica`], all in one commit, and answers after it.
    ///
    /// # Errors
    /// The store's; then nothing of the batch is in the database. Changes that the rules refuse are in
    /// [`Commit::applied`], not errors.
    pub async fn apply(&self, changes: Vec<Change>) -> Result<Commit, StoreError> {
        let whole = 0..changes.len();
        self.apply_range(Arc::new(changes), whole).await
    }

    /// Applies some of the changes, as [`EdgeStore::apply`] does: for a second try with fewer of them.
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

    /// Notes that the cloud has recorded everything up to `revision`. Written along with the next commit,
    /// or after a while: losing it costs a repeated report, nothing more.
    pub fn confirm(&self, revision: u64) {
        self.inner.shared.confirm(revision);
    }

    /// Notes the incarnation of the cloud.
    ///
    /// # Errors
    /// The store's.
    pub async fn set_incarnation(&self, incarnation: Option<String>) -> Result<(), StoreError> {
        self.inner
            .writer
            .run(256, move |conn, state| state.set_incarnation(conn, incarnation.as_deref()))
            .await
    }

    /// Up to `limit` changes after a revision, in order; changes of a row that changed again later are
    /// left out.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] if the journal does not reach back that far: confirmed changes are
    /// dropped from it.
    pub async fn changes(&self, after: u64, limit: usize) -> Result<Changes, StoreError> {
        let recent = self.recent();
        self.inner.readers.run(move |conn| read::changes(conn, &recent, after, limit)).await
    }

    /// The digests of all buckets, and the totals of the same commit.
    ///
    /// # Errors
    /// The store's.
    pub async fn buckets(&self) -> Result<(Totals, Buckets), StoreError> {
        let recent = self.recent();
        self.inner.readers.run(move |conn| read::buckets(conn, &recent)).await
    }

    /// Up to `limit` entries of what is held in some buckets. Pages are of different commits if changes
    /// are applied meanwhile; those changes are in [`EdgeStore::changes`].
    ///
    /// # Errors
    /// The store's.
    pub async fn inventory(
        &self,
        buckets: BucketSet,
        after: Option<InventoryCursor>,
        limit: usize,
    ) -> Result<Inventory, StoreError> {
        let recent = self.recent();
        self.inner.readers.run(move |conn| read::inventory(conn, &recent, buckets, after, limit)).await
    }

    /// The object of this name.
    ///
    /// # Errors
    /// The store's. An object whose row turns out damaged is not found, and is removed.
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

    /// The object of this UID.
    ///
    /// # Errors
    /// The store's. An object whose row turns out damaged is not found, and is removed.
    pub async fn by_uid(&self, uid: Uid) -> Result<Option<Stored>, StoreError> {
        Ok(self.read_by_uid(uid).await?.0)
    }

    /// The same, for who must tell what is not there from what cannot be read.
    ///
    /// # Errors
    /// The store's. [`StoreError::Corrupt`] for an object whose row turns out damaged, which is removed.
    pub async fn sound_by_uid(&self, uid: Uid) -> Result<Option<Stored>, StoreError> {
        match self.read_by_uid(uid).await? {
            (stored, false) => Ok(stored),
            (_, true) => Err(StoreError::corrupt("the row of an object is damaged")),
        }
    }

    /// The object, and whether its row is damaged.
    async fn read_by_uid(&self, uid: Uid) -> Result<(Option<Stored>, bool), StoreError> {
        let seals = self.inner.seals.clone();
        let read = move |conn: &_| read::by_uid(conn, &seals, &uid);
        let (stored, damaged) = self.inner.readers.run(read).await?;
        let is_damaged = !damaged.is_empty();
        self.report_damage(damaged);
        Ok((stored, is_damaged))
    }

    /// Objects of one kind, of one namespace or of all, by namespace and name: up to `limit` of them and
    /// up to 1 MiB.
    ///
    /// # Errors
    /// The store's. Objects whose rows turn out damaged are left out, and are removed.
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

    /// The kinds of which objects are held. Takes no longer with more objects.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn held_kinds(&self) -> Result<Vec<Arc<Resource>>, StoreError> {
        self.inner.readers.run(read::held_kinds).await
    }

    /// The kinds of which objects are held, and how many of each: reads the index.
    ///
    /// # Errors
    /// The store's.
    pub async fn kinds(&self) -> Result<Vec<(Arc<Resource>, u64)>, StoreError> {
        self.inner.readers.run(read::kinds).await
    }

    /// Gives the page caches of the connections and their prepared statements back to the allocator: for quiet times on small
    /// devices.
    ///
    /// # Errors
    /// The store's.
    pub async fn release_memory(&self) -> Result<(), StoreError> {
        const SHRINK: &str = "PRAGMA shrink_memory";
        let shrink = |conn: &rusqlite::Connection| {
            compression::release();
            conn.flush_prepared_statement_cache();
            Ok::<(), StoreError>(conn.execute_batch(SHRINK)?)
        };
        self.inner.shared.snapshots.release();
        self.inner.readers.run(shrink).await?;
        self.inner.writer.run(0, move |conn, _| shrink(conn)).await
    }

    /// Sizes and counters.
    ///
    /// # Errors
    /// The store's.
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

    /// Reads, checks and counts all rows now, repairs what is wrong and says what it was.
    ///
    /// # Errors
    /// The store's.
    pub async fn check(&self) -> Result<CheckReport, StoreError> {
        self.inner.checker.check().await
    }

    /// Writes what is still to be written and closes the database.
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
