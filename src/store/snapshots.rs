//! Snapshots that stay open between reads, for lists in several pages: a bounded number of connections, each with a
//! read transaction of its own. They are read on the threads of the [`Readers`].
//!
//! The write-ahead log cannot begin anew while an older snapshot is open: whoever holds one bounds for how long.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::StoreError;
use super::engine::{EngineOptions, open_reader};
use super::reader::Readers;
use super::writer::JobError;

/// The page cache of each connection, KiB: lists read each page once.
const CACHE_KIB: u32 = 512;

/// The limits of the snapshots.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotLimits {
    /// Snapshots open at a time, each with a connection.
    pub open: usize,
    /// Connections that are kept for the next snapshot.
    pub idle: usize,
}

impl Default for SnapshotLimits {
    fn default() -> Self {
        Self { open: 64, idle: 4 }
    }
}

/// Opens snapshots. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Snapshots {
    readers: Readers,
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    path: PathBuf,
    options: EngineOptions,
    limits: SnapshotLimits,
    places: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Connection>,
    open: Vec<Weak<Slot>>,
    closed: bool,
}

/// A connection within its transaction; `None` after the store has been closed.
#[derive(Debug)]
struct Slot {
    conn: Mutex<Option<Connection>>,
    pool: Arc<Pool>,
    _place: OwnedSemaphorePermit,
}

/// One commit, readable until this is dropped.
#[derive(Debug)]
pub struct Snapshot {
    slot: Arc<Slot>,
    readers: Readers,
}

impl Snapshots {
    /// Snapshots of a database file, read on the threads of `readers`.
    #[must_use]
    pub fn new(path: &Path, options: &EngineOptions, limits: SnapshotLimits, readers: Readers) -> Self {
        let pool = Pool {
            path: path.to_owned(),
            options: EngineOptions { cache_kib: options.cache_kib.min(CACHE_KIB), ..options.clone() },
            limits,
            places: Arc::new(Semaphore::new(limits.open.max(1))),
            state: Mutex::default(),
        };
        Self { readers, pool: Arc::new(pool) }
    }

    /// Opens a snapshot of the newest commit and makes a first read in it.
    ///
    /// # Errors
    /// [`StoreError::TooManySnapshots`], the read's own error, or the store's.
    pub async fn open<T: Send + 'static, E: JobError>(
        &self,
        first: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<(Snapshot, T), E> {
        let Ok(place) = Arc::clone(&self.pool.places).try_acquire_owned() else {
            return Err(self.pool.refusal().into());
        };
        let pool = Arc::clone(&self.pool);
        let (slot, first) = self
            .readers
            .lend(move || {
                let conn = pool.connection()?;
                // Takes effect with the first statement.
                conn.execute_batch("BEGIN").map_err(StoreError::from)?;
                let first = first(&conn)?;
                Ok::<_, E>((pool.enlist(conn, place)?, first))
            })
            .await?;
        Ok((Snapshot { slot, readers: self.readers.clone() }, first))
    }

    /// Ends all snapshots that are not being read and refuses further ones; those being read end with the read.
    pub fn close(&self) {
        self.pool.places.close();
        let mut state = self.pool.state();
        state.closed = true;
        state.idle.clear();
        let open = std::mem::take(&mut state.open);
        drop(state);
        for slot in open.iter().filter_map(Weak::upgrade) {
            if let Ok(mut conn) = slot.conn.try_lock() {
                *conn = None;
            }
        }
    }
}

impl Snapshot {
    /// Reads from the snapshot. Dropping the future does not end the snapshot.
    ///
    /// # Errors
    /// The read's own error, or the store's.
    pub async fn read<T: Send + 'static, E: JobError>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let slot = Arc::clone(&self.slot);
        self.readers
            .lend(move || {
                let mut conn = slot.conn.lock().unwrap_or_else(PoisonError::into_inner);
                let result = read(conn.as_ref().ok_or(StoreError::Closed)?);
                if slot.pool.state().closed {
                    *conn = None;
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
        if self.places.is_closed() {
            return StoreError::Closed;
        }
        StoreError::TooManySnapshots { limit: self.limits.open }
    }

    fn connection(&self) -> Result<Connection, StoreError> {
        let idle = self.state().idle.pop();
        idle.map_or_else(|| open_reader(&self.path, &self.options), Ok)
    }

    /// Makes a connection known to [`Snapshots::close`].
    fn enlist(
        self: &Arc<Self>,
        conn: Connection,
        place: OwnedSemaphorePermit,
    ) -> Result<Arc<Slot>, StoreError> {
        let mut state = self.state();
        if state.closed {
            return Err(StoreError::Closed);
        }
        let slot = Arc::new(Slot { conn: Mutex::new(Some(conn)), pool: Arc::clone(self), _place: place });
        state.open.retain(|slot| slot.strong_count() > 0);
        state.open.push(Arc::downgrade(&slot));
        Ok(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let conn = self.conn.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // Nothing was written: rolling back only lets go of the snapshot.
        let Some(conn) = conn.filter(|conn| conn.execute_batch("ROLLBACK").is_ok()) else { return };
        let mut state = self.pool.state();
        if !state.closed && state.idle.len() < self.pool.limits.idle {
            state.idle.push(conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::engine::{Kind, open_writer};
    use crate::store::reader::{Generation, ReaderLimits};

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
        let readers =
            Readers::start(&path, &options, threads, &Generation::default(), Box::new(|_| ())).unwrap();
        Fixture { writer, snapshots: Snapshots::new(&path, &options, limits, readers), _dir: dir }
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
    async fn a_connection_is_used_again_and_sees_what_is_new() {
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
    async fn the_number_of_snapshots_is_bounded_and_a_dropped_one_makes_room() {
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
    async fn closing_ends_what_is_open() {
        let Fixture { snapshots, .. } = &fixture(SnapshotLimits::default());
        let (open, _) = snapshots.open(count).await.unwrap();
        snapshots.close();
        assert!(matches!(open.read(count).await, Err(StoreError::Closed)));
        assert!(matches!(snapshots.open(count).await, Err(StoreError::Closed)));
    }
}
