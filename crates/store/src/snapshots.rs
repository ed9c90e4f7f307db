//! Long-lived snapshots for paged lists: a bounded pool of connections, each with its own read
//! transaction.
//!
//! The write-ahead log cannot restart while an older snapshot is open. Holders therefore bound
//! their time, and all snapshots are ended when the log has grown too long nevertheless.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::StoreError;
use super::engine::{EngineOptions, open_reader};
use super::reader::{Generation, Readers};
use super::writer::JobError;

/// The page cache of each connection in KiB: lists read each page once.
const CACHE_KIB: u32 = 512;

/// The limits of the snapshot pool.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotLimits {
    /// Snapshots open at a time, each with a connection.
    pub open: usize,
    /// Idle connections kept for later snapshots.
    pub idle: usize,
}

impl Default for SnapshotLimits {
    fn default() -> Self {
        Self { open: 64, idle: 4 }
    }
}

/// The threads that read snapshots.
#[derive(Clone, Debug)]
pub enum Threads {
    /// The threads of the reader pool.
    Readers(Readers),
    /// The blocking threads of the runtime, beside the reader pool.
    Blocking,
}

/// A handle to the snapshot pool, cheap to clone.
#[derive(Clone, Debug)]
pub struct Snapshots {
    threads: Threads,
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    path: PathBuf,
    options: EngineOptions,
    limits: SnapshotLimits,
    generation: Generation,
    permits: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Open>,
    open: Vec<Weak<ReadTransaction>>,
    closed: bool,
}

/// A connection and the generation of its file.
#[derive(Debug)]
struct Open {
    conn: Connection,
    generation: u64,
}

/// A connection within its transaction; `None` after it was ended or the store closed.
#[derive(Debug)]
struct ReadTransaction {
    open: Mutex<Option<Open>>,
    given_up: AtomicBool,
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

/// One commit, readable until this value is dropped.
#[derive(Debug)]
pub struct Snapshot {
    transaction: Arc<ReadTransaction>,
    threads: Threads,
}

impl Snapshots {
    /// Creates the pool of a database file; `generation` counts its replacements.
    #[must_use]
    pub fn new(
        path: &Path,
        options: &EngineOptions,
        limits: SnapshotLimits,
        generation: Generation,
        threads: Threads,
    ) -> Self {
        let pool = Pool {
            path: path.to_owned(),
            options: EngineOptions { cache_kib: options.cache_kib.min(CACHE_KIB), ..options.clone() },
            limits,
            generation,
            permits: Arc::new(Semaphore::new(limits.open.max(1))),
            state: Mutex::default(),
        };
        Self { threads, pool: Arc::new(pool) }
    }

    /// Returns the number of replacements of the file.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.pool.generation.get()
    }

    /// Opens a snapshot of the newest commit and runs a first read in it.
    ///
    /// # Errors
    /// [`StoreError::TooManySnapshots`], the read's own error, or the store's.
    pub async fn open<T: Send + 'static, E: JobError>(
        &self,
        first: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<(Snapshot, T), E> {
        let Ok(permit) = Arc::clone(&self.pool.permits).try_acquire_owned() else {
            return Err(self.pool.refusal().into());
        };
        let pool = Arc::clone(&self.pool);
        let (transaction, first) = self
            .threads
            .run(move || {
                let open = pool.connection()?;
                // Takes effect with the first statement.
                open.conn.execute_batch("BEGIN").map_err(StoreError::from)?;
                let first = first(&open.conn)?;
                Ok::<_, E>((pool.register(open, permit)?, first))
            })
            .await?;
        Ok((Snapshot { transaction, threads: self.threads.clone() }, first))
    }

    /// Closes the idle connections.
    pub fn release(&self) {
        let idle = std::mem::take(&mut self.pool.state().idle);
        drop(idle);
    }

    /// Ends all snapshots, those being read after the read: later reads fail with
    /// [`StoreError::GivenUp`]. Returns their number.
    pub fn end_all(&self) -> usize {
        let open = std::mem::take(&mut self.pool.state().open);
        let transactions: Vec<_> = open.iter().filter_map(Weak::upgrade).collect();
        for transaction in &transactions {
            transaction.given_up.store(true, Ordering::Release);
            transaction.end();
        }
        transactions.len()
    }

    /// Ends all snapshots and refuses further ones; those being read end after the read.
    pub fn close(&self) {
        self.pool.permits.close();
        let mut state = self.pool.state();
        state.closed = true;
        state.idle.clear();
        let open = std::mem::take(&mut state.open);
        drop(state);
        open.iter().filter_map(Weak::upgrade).for_each(|transaction| transaction.end());
    }
}

impl Threads {
    async fn run<T: Send + 'static, E: JobError>(
        &self,
        read: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        match self {
            Self::Readers(readers) => readers.lend(read).await,
            Self::Blocking => {
                let read = tokio::task::spawn_blocking(read).await;
                read.unwrap_or_else(|error| Err(StoreError::internal(error.to_string()).into()))
            }
        }
    }
}

impl ReadTransaction {
    /// Releases the connection, unless it is being read from.
    fn end(&self) {
        if let Ok(mut open) = self.open.try_lock() {
            *open = None;
        }
    }

    fn is_over(&self) -> bool {
        self.given_up.load(Ordering::Acquire) || self.pool.state().closed
    }
}

impl Snapshot {
    /// Reads from the snapshot. Dropping the future does not end the snapshot.
    ///
    /// # Errors
    /// [`StoreError::GivenUp`], [`StoreError::Replaced`] if the snapshot's file has been replaced,
    /// the read's own error, or the store's.
    pub async fn read<T: Send + 'static, E: JobError>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let transaction = Arc::clone(&self.transaction);
        self.threads
            .run(move || {
                let mut held = transaction.open.lock().unwrap_or_else(PoisonError::into_inner);
                let given_up = transaction.given_up.load(Ordering::Acquire);
                let over = if given_up { StoreError::GivenUp } else { StoreError::Closed };
                let open = held.as_ref().ok_or(over)?;
                if open.generation != transaction.pool.generation.get() {
                    return Err(StoreError::Replaced.into());
                }
                let result = read(&open.conn);
                if transaction.is_over() {
                    *held = None;
                }
                result
            })
            .await
    }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refusal(&self) -> StoreError {
        if self.permits.is_closed() {
            return StoreError::Closed;
        }
        StoreError::TooManySnapshots { limit: self.limits.open }
    }

    fn connection(&self) -> Result<Open, StoreError> {
        let generation = self.generation.get();
        let idle = self.state().idle.pop().filter(|open| open.generation == generation);
        match idle {
            Some(open) => Ok(open),
            None => Ok(Open { conn: open_reader(&self.path, &self.options)?, generation }),
        }
    }

    /// Registers a connection, so that [`Snapshots::end_all`] and [`Snapshots::close`] can end it.
    fn register(
        self: &Arc<Self>,
        open: Open,
        permit: OwnedSemaphorePermit,
    ) -> Result<Arc<ReadTransaction>, StoreError> {
        let mut state = self.state();
        if state.closed {
            return Err(StoreError::Closed);
        }
        let (open, given_up) = (Mutex::new(Some(open)), AtomicBool::new(false));
        let transaction =
            Arc::new(ReadTransaction { open, given_up, pool: Arc::clone(self), _permit: permit });
        state.open.retain(|transaction| transaction.strong_count() > 0);
        state.open.push(Arc::downgrade(&transaction));
        Ok(transaction)
    }
}

impl Drop for ReadTransaction {
    fn drop(&mut self) {
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // Nothing was written: the rollback only releases the snapshot.
        let Some(open) = open.filter(|open| open.conn.execute_batch("ROLLBACK").is_ok()) else { return };
        let mut state = self.pool.state();
        if !state.closed && state.idle.len() < self.pool.limits.idle {
            state.idle.push(open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Checkpoint, Kind, checkpoint, open_writer};
    use crate::reader::ReaderLimits;

    struct Fixture {
        writer: Connection,
        snapshots: Snapshots,
        _dir: tempfile::TempDir,
    }

    fn fixture(limits: SnapshotLimits) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let options = EngineOptions::default();
        let writer = open_writer(&path, Kind { application_id: 1, migrations: &[] }, &options).unwrap();
        writer.execute_batch("CREATE TABLE t (x INTEGER); INSERT INTO t VALUES (1)").unwrap();
        let threads = ReaderLimits { threads: 2, queue: 4 };
        let generation = Generation::default();
        let readers = Readers::start(&path, &options, threads, &generation, Box::new(|_| ())).unwrap();
        let threads = Threads::Readers(readers);
        Fixture { writer, snapshots: Snapshots::new(&path, &options, limits, generation, threads), _dir: dir }
    }

    fn count(conn: &Connection) -> Result<i64, StoreError> {
        Ok(conn.query_row("SELECT count(*) FROM t", [], |row| row.get(0))?)
    }

    #[tokio::test]
    async fn a_snapshot_shows_one_commit_while_others_show_newer_ones() {
        let Fixture { writer, snapshots, .. } = &fixture(SnapshotLimits::default());
        let (old, first) = snapshots.open(count).await.unwrap();
        writer.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        let (new, second) = snapshots.open(count).await.unwrap();
        writer.execute_batch("INSERT INTO t VALUES (3)").unwrap();
        assert_eq!((first, second), (1, 2));
        assert_eq!((old.read(count).await.unwrap(), new.read(count).await.unwrap()), (1, 2));
    }

    #[tokio::test]
    async fn snapshot_of_a_replaced_file_is_over() {
        let Fixture { snapshots, .. } = &fixture(SnapshotLimits::default());
        let (old, _) = snapshots.open(count).await.unwrap();
        assert_eq!(snapshots.generation(), 0);
        snapshots.pool.generation.advance();
        assert_eq!(snapshots.generation(), 1);
        assert!(matches!(old.read(count).await, Err(StoreError::Replaced)));
        assert_eq!(snapshots.open(count).await.unwrap().1, 1);
    }

    #[tokio::test]
    async fn a_reused_connection_sees_new_commits() {
        let Fixture { writer, snapshots, .. } = &fixture(SnapshotLimits { open: 4, idle: 1 });
        let (first, _) = snapshots.open(count).await.unwrap();
        let (second, _) = snapshots.open(count).await.unwrap();
        drop((first, second));
        assert_eq!(snapshots.pool.state().idle.len(), 1);
        writer.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        let (_third, seen) = snapshots.open(count).await.unwrap();
        assert_eq!((seen, snapshots.pool.state().idle.len()), (2, 0));
    }

    #[tokio::test]
    async fn the_number_of_snapshots_is_bounded() {
        let Fixture { snapshots, .. } = &fixture(SnapshotLimits { open: 2, idle: 4 });
        let (first, _) = snapshots.open(count).await.unwrap();
        let (_second, _) = snapshots.open(count).await.unwrap();
        let refused = snapshots.open(count).await;
        assert!(matches!(refused, Err(StoreError::TooManySnapshots { limit: 2 })), "{refused:?}");
        drop(first);
        snapshots.open(count).await.unwrap();
    }

    #[tokio::test]
    async fn a_first_read_that_fails_leaves_nothing_open() {
        let Fixture { snapshots, .. } = &fixture(SnapshotLimits { open: 1, idle: 1 });
        let failing = |_: &Connection| -> Result<(), StoreError> { Err(StoreError::internal("no")) };
        assert!(matches!(snapshots.open(failing).await, Err(StoreError::Internal(_))));
        snapshots.open(count).await.unwrap();
    }

    #[tokio::test]
    async fn closing_ends_open_snapshots() {
        let Fixture { snapshots, .. } = &fixture(SnapshotLimits::default());
        let (open, _) = snapshots.open(count).await.unwrap();
        snapshots.close();
        assert!(matches!(open.read(count).await, Err(StoreError::Closed)));
        assert!(matches!(snapshots.open(count).await, Err(StoreError::Closed)));
    }

    #[tokio::test]
    async fn ended_snapshots_fail_and_free_the_checkpoint() {
        let Fixture { writer, snapshots, .. } = &fixture(SnapshotLimits { open: 2, idle: 1 });
        writer.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        let (old, _) = snapshots.open(count).await.unwrap();
        writer.execute_batch("INSERT INTO t VALUES (3)").unwrap();
        writer.busy_timeout(std::time::Duration::ZERO).unwrap();
        let log = || checkpoint(writer, Checkpoint::Truncate).unwrap().pages;
        assert!(log() > 0, "the snapshot is in the way");
        assert_eq!(snapshots.end_all(), 1);
        assert_eq!((log(), snapshots.end_all()), (0, 0));
        assert!(matches!(old.read(count).await, Err(StoreError::GivenUp)));
        let (_new, seen) = snapshots.open(count).await.unwrap();
        assert_eq!(seen, 3);
    }

    #[tokio::test]
    async fn a_snapshot_of_a_file_that_was_replaced_is_of_no_more_use() {
        let Fixture { snapshots, .. } = &fixture(SnapshotLimits { open: 2, idle: 1 });
        let (old, _) = snapshots.open(count).await.unwrap();
        snapshots.pool.generation.advance();
        assert!(matches!(old.read(count).await, Err(StoreError::Replaced)));
        drop(old);
        let (new, _) = snapshots.open(count).await.unwrap();
        assert_eq!(new.read(count).await.unwrap(), 1);
    }
}
