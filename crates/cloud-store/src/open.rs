//! Opening of the cloud's database: the lock, the jump of the version counter, the threads.

use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rusqlite::Connection;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::broadcast;

use super::check::Damage;
use super::history::HistoryLimits;
use super::state::CloudState;
use super::{CloudStore, OpenError, Shared, versions};
use edgesync_store::StoreError;
use edgesync_store::durable::with_suffix;
use edgesync_store::engine::{self, EngineOptions, Kind};
use edgesync_store::mark;
use edgesync_store::migrate::CLOUD;
use edgesync_store::reader::{Generation, ReaderLimits, Readers};
use edgesync_store::snapshots::{SnapshotLimits, Snapshots, Threads};
use edgesync_store::writer::{Writer, WriterLimits};

/// Application id and migrations of a cloud database.
pub(super) const KIND: Kind = Kind { application_id: mark::CLOUD, migrations: CLOUD };

/// Options for opening the cloud's store.
#[derive(Clone, Debug)]
pub struct CloudOptions {
    /// Options of the SQLite engine.
    pub engine: EngineOptions,
    /// Limits of the writer's queue.
    pub writer: WriterLimits,
    /// Bounds of the history.
    pub history: HistoryLimits,
    /// Changes that a slow receiver of the feed may lag behind before it must relist.
    pub feed_changes: usize,
    /// Limits of the readers.
    pub readers: ReaderLimits,
    /// Limits of the snapshots for lists.
    pub snapshots: SnapshotLimits,
    /// Limit of an object's size, in bytes of JSON text.
    pub max_object_bytes: usize,
    /// Limit of the Events kept per node; the oldest are deleted first.
    pub events_per_node: usize,
    /// Whether to rename a damaged database to `<database>.corrupt-<time>` and create an empty one.
    /// All objects get new UIDs then, and the incarnation changes, so nodes delete nothing
    /// unconfirmed.
    pub set_aside_corrupt: bool,
    /// Wall clock, for timestamps and versions; compared with `running` to detect jumps.
    pub clock: fn() -> jiff::Timestamp,
    /// Clock since boot, which includes suspend.
    pub running: fn() -> Duration,
}

/// Returns the time since boot, suspend included.
fn since_boot() -> Duration {
    clock_gettime(ClockId::Boottime).try_into().unwrap_or_default()
}

impl Default for CloudOptions {
    fn default() -> Self {
        Self {
            engine: EngineOptions { cache_kib: 16 << 10, wal_bytes: 16 << 20, ..EngineOptions::default() },
            writer: WriterLimits { jobs: 4096, bytes: 64 << 20, group_bytes: 4 << 20, wal_bytes: 16 << 20 },
            history: HistoryLimits::default(),
            feed_changes: 8192,
            readers: ReaderLimits { threads: 2, queue: 256 },
            snapshots: SnapshotLimits::default(),
            max_object_bytes: 32 << 20,
            events_per_node: 1000,
            set_aside_corrupt: false,
            clock: jiff::Timestamp::now,
            running: since_boot,
        }
    }
}

/// Returns 64 bits, 60 of them random, as 16 hexadecimal digits. Every Hello carries the
/// incarnation, so it is short.
pub(super) fn random_id() -> String {
    format!("{:016x}", uuid::Uuid::new_v4().as_u64_pair().0)
}

pub(super) fn open(path: &Path, options: &CloudOptions) -> Result<CloudStore, OpenError> {
    let failed = |source| match source {
        StoreError::InUse { .. } | StoreError::Foreign { .. } | StoreError::MigrationChanged { .. } => {
            OpenError::Named(source)
        }
        StoreError::Newer { path, found, known } => OpenError::Newer { path, found, known },
        StoreError::Unreleased { path } => OpenError::Unreleased { path },
        source => OpenError::Store { path: path.to_owned(), source },
    };
    let lock = engine::lock(path).map_err(failed)?;
    let (conn, opened) = match prepare(path, options) {
        Err(StoreError::Corrupt(_)) if options.set_aside_corrupt => {
            set_aside(path, (options.clock)()).map_err(failed)?;
            prepare(path, options).map_err(failed)?
        }
        Err(StoreError::Corrupt(source)) => {
            return Err(OpenError::Corrupt { path: path.to_owned(), source });
        }
        other => other.map_err(failed)?,
    };
    start(path, options, conn, opened, lock).map_err(failed)
}

fn prepare(path: &Path, options: &CloudOptions) -> Result<(Connection, versions::Opened), StoreError> {
    let mut conn = engine::open_writer(path, KIND, &options.engine)?;
    let opened = versions::open(&mut conn, (options.clock)(), &random_id())?;
    Ok((conn, opened))
}

/// Renames a damaged database together with its `-wal` and `-shm` files.
fn set_aside(path: &Path, now: jiff::Timestamp) -> Result<(), StoreError> {
    let suffix = format!(".corrupt-{}", now.strftime("%Y%m%dT%H%M%SZ"));
    for part in ["", "-wal", "-shm"] {
        let from = with_suffix(path, part);
        if from.exists() {
            std::fs::rename(&from, with_suffix(path, &format!("{suffix}{part}")))?;
        }
    }
    tracing::error!(database = %path.display(), set_aside = %with_suffix(path, &suffix).display(),
        "damaged database set aside, starting with an empty one");
    Ok(())
}

fn start(
    path: &Path,
    options: &CloudOptions,
    conn: Connection,
    opened: versions::Opened,
    lock: File,
) -> Result<CloudStore, StoreError> {
    let (feed, _) = broadcast::channel(options.feed_changes.max(1));
    let last_version = Arc::new(AtomicU64::new(0));
    let observer = Arc::new(OnceLock::new());
    let damage = Damage::default();
    let shared = Shared {
        // The state holds the only strong sender: the feed ends when the writer does.
        feed: feed.downgrade(),
        observer: Arc::clone(&observer),
        last_version: Arc::clone(&last_version),
        issued: Mutex::new(Arc::new(opened.issued)),
        incarnation: Mutex::new(opened.incarnation.into()),
        kinds: Mutex::new(HashSet::new()),
        max_object_bytes: options.max_object_bytes,
        events_per_node: options.events_per_node,
        damage: damage.clone(),
        clock: options.clock,
        running: options.running,
    };
    let on_corrupt = Box::new(move |error: &StoreError| damage.note(error));
    let generation = Generation::default();
    let readers = Readers::start(path, &options.engine, options.readers, &generation, on_corrupt)?;
    let threads = Threads::Readers(readers.clone());
    let snapshots = Snapshots::new(path, &options.engine, options.snapshots, generation, threads);
    let mut state = CloudState::new(opened.counters, feed, observer, last_version, options.history, lock);
    state.set_snapshots(snapshots.clone());
    let limits = WriterLimits { wal_bytes: options.engine.wal_bytes, ..options.writer };
    let writer = Writer::start("cloud-write", conn, state, limits)?;
    Ok(CloudStore { writer, readers, snapshots, shared: Arc::new(shared) })
}
