//! A pool of reader threads, each with its own connection; every read runs in a snapshot.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use super::StoreError;
use super::engine::{EngineOptions, open_reader};
use super::writer::JobError;

type Job = Box<dyn FnOnce(Result<&Connection, StoreError>) -> Option<StoreError> + Send>;

/// The callback for a read that finds the database damaged.
pub type OnCorrupt = Box<dyn Fn(&StoreError) + Send + Sync>;

/// The limits of the reader pool.
#[derive(Clone, Copy, Debug)]
pub struct ReaderLimits {
    /// Threads, each with a connection and its page cache.
    pub threads: usize,
    /// Reads in the queue or running; further callers wait for a permit.
    pub queue: usize,
}

/// A handle to the reader pool, cheap to clone. The threads end with the last handle.
///
/// # Order of calls
///
/// 1. [`start`](Self::start) after [`engine::open_writer`](crate::engine::open_writer) has created
///    the file.
/// 2. [`run`](Self::run) for each read. All statements of one read see the same commit; a later
///    read sees later commits.
/// 3. [`Generation::advance`] after the file was replaced: every thread reopens it before its next
///    read.
/// 4. [`close`](Self::close) refuses later reads; running ones complete.
///
/// # Limits
///
/// [`ReaderLimits::threads`] reads run at a time and [`ReaderLimits::queue`] are queued or running;
/// further callers wait without blocking a thread. A long read delays checkpoints of the
/// write-ahead log; use [`Snapshots`](crate::snapshots::Snapshots) to page through a list.
///
/// ```
/// use edgesync_store::StoreError;
/// use edgesync_store::engine::{EngineOptions, Kind, open_writer};
/// use edgesync_store::reader::{Generation, ReaderLimits, Readers};
/// use rusqlite::Connection;
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("example.db");
/// let options = EngineOptions::default();
/// let conn = open_writer(&path, Kind { application_id: 1, migrations: &[] }, &options)?;
/// conn.execute_batch("CREATE TABLE t (x INTEGER); INSERT INTO t VALUES (1), (2)")?;
///
/// let limits = ReaderLimits { threads: 2, queue: 16 };
/// let on_corrupt = Box::new(|error: &StoreError| eprintln!("{error}"));
/// let readers = Readers::start(&path, &options, limits, &Generation::default(), on_corrupt)?;
/// let sum = readers
///     .run(|conn: &Connection| -> Result<i64, StoreError> {
///         Ok(conn.query_row("SELECT sum(x) FROM t", [], |row| row.get(0))?)
///     })
///     .await?;
/// assert_eq!(sum, 3);
/// readers.close();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Readers {
    sender: mpsc::Sender<Job>,
    permits: Arc<Semaphore>,
}

/// A counter of replacements of the database file, shared by its readers.
#[derive(Clone, Debug, Default)]
pub struct Generation(Arc<AtomicU64>);

impl Generation {
    /// Makes every reader reopen the file before its next read.
    pub fn advance(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of replacements so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for Readers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Readers").field("free", &self.permits.available_permits()).finish_non_exhaustive()
    }
}

struct Thread {
    path: PathBuf,
    options: EngineOptions,
    jobs: Arc<Mutex<mpsc::Receiver<Job>>>,
    generation: Generation,
    on_corrupt: Arc<OnCorrupt>,
}

impl Readers {
    /// Starts the reader threads.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if no thread can be started.
    pub fn start(
        path: &Path,
        options: &EngineOptions,
        limits: ReaderLimits,
        generation: &Generation,
        on_corrupt: OnCorrupt,
    ) -> Result<Self, StoreError> {
        let (sender, receiver) = mpsc::channel();
        let jobs = Arc::new(Mutex::new(receiver));
        let on_corrupt = Arc::new(on_corrupt);
        for _ in 0..limits.threads.max(1) {
            let thread = Thread {
                path: path.to_owned(),
                options: options.clone(),
                jobs: Arc::clone(&jobs),
                generation: generation.clone(),
                on_corrupt: Arc::clone(&on_corrupt),
            };
            std::thread::Builder::new().name("store-read".to_owned()).spawn(move || thread.run())?;
        }
        Ok(Self { sender, permits: Arc::new(Semaphore::new(limits.queue.max(1))) })
    }

    /// Runs a read in a snapshot: all its statements see the same commit.
    ///
    /// # Errors
    /// The read's own error, or the store's.
    pub async fn run<T: Send + 'static, E: JobError>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        self.submit(move |conn| conn.map_err(E::from).and_then(|conn| snapshot(conn, read))).await
    }

    /// Runs a read on one of the threads without its connection, for callers that keep their own.
    ///
    /// # Errors
    /// The read's own error, or the store's.
    pub(crate) async fn lend<T: Send + 'static, E: JobError>(
        &self,
        read: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        self.submit(move |_| read()).await
    }

    async fn submit<T: Send + 'static, E: JobError>(
        &self,
        work: impl FnOnce(Result<&Connection, StoreError>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let Ok(_permit) = self.permits.acquire().await else {
            return Err(StoreError::Closed.into());
        };
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |conn| {
            let result = work(conn);
            let corrupt = match result.as_ref().err().and_then(JobError::store) {
                Some(error @ StoreError::Corrupt(_)) => Some(error.clone()),
                _ => None,
            };
            // The caller may have been dropped.
            let _ = reply.send(result);
            corrupt
        });
        if self.sender.send(job).is_err() {
            return Err(StoreError::Closed.into());
        }
        answer.await.unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    /// Refuses later reads and those that wait for a permit; queued ones complete.
    pub fn close(&self) {
        self.permits.close();
    }
}

/// Runs a read in a transaction, which pins the snapshot, and ends it.
fn snapshot<T, E: JobError>(
    conn: &Connection,
    read: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<T, E> {
    let tx = conn.unchecked_transaction().map_err(StoreError::from)?;
    let result = read(&tx);
    // Nothing was written: the rollback only releases the snapshot.
    tx.rollback().map_err(StoreError::from)?;
    result
}

impl Thread {
    fn run(self) {
        let mut open: Option<(u64, Connection)> = None;
        loop {
            // One thread waits with the lock held, the others wait for the lock.
            let job = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(job) = job else { return };
            let corrupt = match self.connection(&mut open) {
                Ok(conn) => job(Ok(conn)),
                Err(error) => job(Err(error)),
            };
            if let Some(error) = corrupt {
                (self.on_corrupt)(&error);
            }
        }
    }

    /// Returns a connection to the file of the current generation.
    fn connection<'a>(&self, open: &'a mut Option<(u64, Connection)>) -> Result<&'a Connection, StoreError> {
        let generation = self.generation.get();
        if open.as_ref().is_some_and(|(opened, _)| *opened != generation) {
            *open = None;
        }
        match open {
            Some((_, conn)) => Ok(conn),
            None => {
                let conn = open_reader(&self.path, &self.options)?;
                Ok(&open.insert((generation, conn)).1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Kind, open_writer};

    #[tokio::test]
    async fn a_read_sees_one_snapshot_and_later_reads_the_newer_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.db");
        let options = EngineOptions::default();
        let writer = open_writer(&path, Kind { application_id: 1, migrations: &[] }, &options).unwrap();
        writer.execute_batch("CREATE TABLE t (x INTEGER); INSERT INTO t VALUES (1)").unwrap();
        let limits = ReaderLimits { threads: 2, queue: 4 };
        let readers =
            Readers::start(&path, &options, limits, &Generation::default(), Box::new(|_| ())).unwrap();
        let count = |conn: &Connection| -> Result<i64, StoreError> {
            Ok(conn.query_row("SELECT count(*) FROM t", [], |row| row.get(0))?)
        };
        let within: (i64, i64) = readers
            .run(move |conn| -> Result<_, StoreError> {
                let before = count(conn)?;
                writer.execute_batch("INSERT INTO t VALUES (2)")?;
                Ok((before, count(conn)?))
            })
            .await
            .unwrap();
        assert_eq!(within, (1, 1));
        assert_eq!(readers.run(count).await.unwrap(), 2);
        readers.close();
        assert!(matches!(readers.run(count).await, Err(StoreError::Closed)));
    }

    #[tokio::test]
    async fn read_of_a_damaged_database_is_reported_and_other_failures_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.db");
        let options = EngineOptions::default();
        open_writer(&path, Kind { application_id: 1, migrations: &[] }, &options).unwrap();
        let limits = ReaderLimits { threads: 1, queue: 4 };
        let (sender, reported) = mpsc::channel();
        let report = Box::new(move |error: &StoreError| sender.send(error.clone()).unwrap());
        let readers = Readers::start(&path, &options, limits, &Generation::default(), report).unwrap();
        for error in [StoreError::Closed, StoreError::corrupt("page 7")] {
            let failed = error.clone();
            let result: Result<(), StoreError> = readers.run(move |_| Err(failed)).await;
            assert_eq!(result.unwrap_err().to_string(), error.to_string());
        }
        // The only thread reports after it has answered, and before it takes the next read.
        readers.run(|_| Ok::<_, StoreError>(())).await.unwrap();
        let reported: Vec<StoreError> = reported.try_iter().collect();
        assert!(matches!(&reported[..], [StoreError::Corrupt(_)]), "{reported:?}");
    }
}
