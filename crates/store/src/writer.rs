//! Group commit: a thread owns the write connection and groups jobs into transactions.
//!
//! Jobs that arrive during a commit share the next transaction, and with it the cost of a durable
//! commit. In a group, each job runs within a savepoint, so its failure is its own. A failure of
//! the database fails the whole group; if the database is full, the jobs are retried one by one, so
//! that smaller ones succeed. Invariant: a job is answered only after COMMIT has returned.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::StoreError;
use super::engine::{self, Checkpoint, LOG_FACTOR, PAGE_BYTES, WalState};

/// The limits of the writer's queue.
#[derive(Clone, Copy, Debug)]
pub struct WriterLimits {
    /// Jobs in the queue or running; further callers wait for a permit.
    pub jobs: usize,
    /// Bytes of jobs in the queue or running. A larger job takes all of it.
    pub bytes: usize,
    /// Bytes of jobs in one transaction: bounds the pages that a transaction holds in memory.
    pub group_bytes: usize,
    /// The size of the write-ahead log that triggers a checkpoint, in bytes.
    pub wal_bytes: u64,
}

impl Default for WriterLimits {
    fn default() -> Self {
        Self { jobs: 1024, bytes: 4 << 20, group_bytes: 1 << 20, wal_bytes: 4 << 20 }
    }
}

/// Callbacks of the database's owner: state beside the connection and decisions about its health.
/// Runs in the writer's thread.
pub trait WriterHooks: Send + 'static {
    /// Called before each group, outside of a transaction. May replace the connection.
    ///
    /// # Errors
    /// Fails the group.
    fn before_group(&mut self, _conn: &mut Connection) -> Result<(), StoreError> {
        Ok(())
    }

    /// Called within the transaction, after the jobs and before the commit.
    ///
    /// # Errors
    /// Fails the group.
    fn before_commit(&mut self, _conn: &Connection) -> Result<(), StoreError> {
        Ok(())
    }

    /// Called after a commit has returned, before the jobs are answered.
    fn committed(&mut self, _conn: &Connection) {}

    /// Called after a rollback of one job or of the whole group: state that mirrors the database
    /// has to be read again.
    fn rolled_back(&mut self, _conn: &Connection) {}

    /// Called after a failure of the database, outside of a transaction. May replace the
    /// connection.
    fn failed(&mut self, _conn: &mut Connection, _error: &StoreError) {}

    /// Called after a checkpoint has copied pages, outside of a transaction. If it copied all pages
    /// and no reader needs them, the next write restarts the log.
    fn checkpointed(&mut self, _conn: &mut Connection, _state: WalState) {}

    /// Called when the write-ahead log far exceeds its limit: long readers have to release it.
    fn log_too_long(&mut self) {}

    /// Called when no job has arrived for a while, outside of a transaction. Returns the time until
    /// the next call without a job. May replace the connection.
    fn idle(&mut self, _conn: &mut Connection) -> Duration {
        Duration::from_secs(60)
    }

    /// Called once, before the connection is closed.
    fn closing(&mut self, _conn: &mut Connection) {}
}

/// The error of a job: its own, or the store's.
pub trait JobError: From<StoreError> + Send + 'static {
    /// Returns the failure of the store, if it is one.
    fn store(&self) -> Option<&StoreError>;
}

impl JobError for StoreError {
    fn store(&self) -> Option<&StoreError> {
        Some(self)
    }
}

/// The bounds of [`WriterStats::commit_times`], in milliseconds.
pub const COMMIT_BOUNDS_MS: [u64; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

/// Counters of the writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterStats {
    /// Transactions committed since start.
    pub commits: u64,
    /// The time spent in COMMIT in nanoseconds.
    pub commit_ns: u64,
    /// Transactions by the duration of COMMIT: one bucket per bound of [`COMMIT_BOUNDS_MS`], and a
    /// last one for longer ones.
    pub commit_times: [u64; COMMIT_BOUNDS_MS.len() + 1],
    /// Calls of fsync: one per transaction with changes, two per checkpoint that copied pages.
    pub syncs: u64,
    /// Jobs answered after a commit.
    pub jobs: u64,
    /// Rows inserted, updated or deleted.
    pub rows: u64,
    /// Transactions rolled back since start.
    pub failures: u64,
    /// Checkpoints that copied pages.
    pub checkpoints: u64,
}

#[derive(Debug, Default)]
struct Counters {
    commits: AtomicU64,
    commit_ns: AtomicU64,
    commit_times: [AtomicU64; COMMIT_BOUNDS_MS.len() + 1],
    syncs: AtomicU64,
    jobs: AtomicU64,
    rows: AtomicU64,
    failures: AtomicU64,
    checkpoints: AtomicU64,
}

impl Counters {
    fn committed_in(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.commit_ns.fetch_add(nanos, Ordering::Relaxed);
        let bucket = COMMIT_BOUNDS_MS.partition_point(|bound| bound.saturating_mul(1_000_000) < nanos);
        if let Some(counter) = self.commit_times.get(bucket) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A job with its type erased.
trait AnyJob<S>: Send {
    /// Runs within the open transaction. Returns `Err` only if the transaction has to roll back.
    fn run(&mut self, conn: &Connection, hooks: &mut S) -> Result<JobEnd, StoreError>;
    /// Answers the caller: the result of the last run, or the failure of the group.
    fn answer(self: Box<Self>, group: Result<(), StoreError>);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum JobEnd {
    Done,
    /// The job failed on its own: undo its changes.
    Undo,
}

struct TypedJob<S, T, E, F> {
    job: F,
    result: Option<Result<T, E>>,
    reply: oneshot::Sender<Result<T, E>>,
    hooks: PhantomData<fn(&mut S)>,
}

impl<S, T, E, F> AnyJob<S> for TypedJob<S, T, E, F>
where
    T: Send,
    E: JobError,
    F: FnMut(&Connection, &mut S) -> Result<T, E> + Send,
{
    fn run(&mut self, conn: &Connection, hooks: &mut S) -> Result<JobEnd, StoreError> {
        match (self.job)(conn, hooks) {
            Ok(value) => {
                self.result = Some(Ok(value));
                Ok(JobEnd::Done)
            }
            Err(error) => match error.store().filter(|error| error.ends_transaction()) {
                Some(fatal) => Err(fatal.clone()),
                None => {
                    self.result = Some(Err(error));
                    Ok(JobEnd::Undo)
                }
            },
        }
    }

    fn answer(self: Box<Self>, group: Result<(), StoreError>) {
        let result = match (group, self.result) {
            (Ok(()), Some(result)) => result,
            (Ok(()), None) => Err(StoreError::Closed.into()),
            (Err(error), _) => Err(error.into()),
        };
        // The caller may have been dropped; the job is done nevertheless.
        let _ = self.reply.send(result);
    }
}

struct Queued<S> {
    job: Box<dyn AnyJob<S>>,
    bytes: usize,
    /// The permits of the queue; `None` for the store's own jobs.
    permits: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
}

enum Command<S> {
    Job(Queued<S>),
    /// Work between two transactions.
    Between(Box<dyn FnOnce(&Connection) + Send>),
    Close,
}

/// A handle to the writer thread, cheap to clone.
///
/// # Order of calls
///
/// 1. [`start`](Self::start) with the connection of
///    [`engine::open_writer`](crate::engine::open_writer) and the owner's [`WriterHooks`].
/// 2. [`run`](Self::run) for each job of a caller, [`post`](Self::post) for maintenance jobs of the
///    store itself, [`run_between`](Self::run_between) for work that changes no row.
/// 3. [`close`](Self::close) completes the queue, closes the connection and joins the thread. Later
///    jobs fail with [`StoreError::Closed`].
///
/// # Guarantees
///
/// A job answered with `Ok` is committed and flushed. A job answered with `Err` has left nothing in
/// the database. A job whose caller was dropped after queueing may be committed.
///
/// # Limits
///
/// [`WriterLimits`] bounds the queue in jobs and bytes; callers beyond it wait without blocking a
/// thread. `group_bytes` bounds one transaction.
///
/// ```
/// use edgesync_store::StoreError;
/// use edgesync_store::engine::{EngineOptions, Kind, open_writer};
/// use edgesync_store::writer::{Writer, WriterHooks, WriterLimits};
/// use rusqlite::Connection;
///
/// struct NoHooks;
/// impl WriterHooks for NoHooks {}
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("example.db");
/// let kind = Kind { application_id: 1, migrations: &[] };
/// let conn = open_writer(&path, kind, &EngineOptions::default())?;
/// conn.execute_batch("CREATE TABLE t (x INTEGER)")?;
///
/// let writer = Writer::start("store-write", conn, NoHooks, WriterLimits::default())?;
/// let rows = writer
///     .run(64, |conn: &Connection, _: &mut NoHooks| -> Result<usize, StoreError> {
///         Ok(conn.execute("INSERT INTO t VALUES (1)", [])?)
///     })
///     .await?;
/// assert_eq!((rows, writer.stats().commits), (1, 1));
/// writer.close().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Writer<S> {
    sender: mpsc::Sender<Command<S>>,
    shared: Arc<Shared>,
}

struct Shared {
    jobs: Arc<Semaphore>,
    /// Counted in units of [`BYTES_UNIT`].
    bytes: Arc<Semaphore>,
    limits: WriterLimits,
    pub counters: Counters,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Closed by the thread at its end, so that `close` can wait without blocking.
    ended: tokio::sync::watch::Receiver<()>,
}

/// The unit of the byte semaphore, which counts in 32 bits.
const BYTES_UNIT: usize = 256;

impl<S> Clone for Writer<S> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<S> std::fmt::Debug for Writer<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("limits", &self.shared.limits).finish_non_exhaustive()
    }
}

impl<S: WriterHooks> Writer<S> {
    /// Starts the thread that owns the connection.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if no thread can be started.
    pub fn start(name: &str, conn: Connection, hooks: S, limits: WriterLimits) -> Result<Self, StoreError> {
        let (sender, receiver) = mpsc::channel();
        let (alive, ended) = tokio::sync::watch::channel(());
        let shared = Arc::new(Shared {
            jobs: Arc::new(Semaphore::new(limits.jobs.max(1))),
            bytes: Arc::new(Semaphore::new(units(limits.bytes) as usize)),
            limits,
            counters: Counters::default(),
            thread: Mutex::new(None),
            ended,
        });
        let owner = Owner {
            conn,
            hooks,
            receiver,
            shared: Arc::clone(&shared),
            deferred: None,
            log: LogEstimate::new(),
            restart_from: 0,
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            owner.run();
            drop(alive);
        })?;
        *shared.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(Self { sender, shared })
    }

    /// Runs a job in the next transaction and answers after its commit. `bytes` is the memory that
    /// the job holds. Waits for a permit of the queue; dropping the future after that does not undo
    /// the job.
    ///
    /// A job may run more than once (after its group found the database full), each time from the
    /// same state of the database. It must not begin or end transactions.
    ///
    /// # Errors
    /// The job's own error, or the store's: nothing of the job is in the database then.
    pub async fn run<T, E, F>(&self, bytes: usize, job: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: JobError,
        F: FnMut(&Connection, &mut S) -> Result<T, E> + Send + 'static,
    {
        let permit = Arc::clone(&self.shared.jobs).acquire_owned().await;
        let needed = units(bytes).min(units(self.shared.limits.bytes));
        let bytes_permit = Arc::clone(&self.shared.bytes).acquire_many_owned(needed).await;
        let (Ok(permit), Ok(bytes_permit)) = (permit, bytes_permit) else {
            return Err(StoreError::Closed.into());
        };
        let answer = self.send(bytes, Some((permit, bytes_permit)), job);
        answer.await.unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    /// Queues a maintenance job of the store itself, beyond the limits of the queue. The receiver
    /// fails if the writer is closed.
    pub fn post<T, E, F>(&self, job: F) -> oneshot::Receiver<Result<T, E>>
    where
        T: Send + 'static,
        E: JobError,
        F: FnMut(&Connection, &mut S) -> Result<T, E> + Send + 'static,
    {
        self.send(0, None, job)
    }

    /// Runs something between two transactions, and answers when it is done. It must change no row.
    /// A job that changes none would still commit, and the commit write what may wait.
    ///
    /// # Errors
    /// Its own error, or [`StoreError::Closed`].
    pub async fn run_between<F>(&self, work: F) -> Result<(), StoreError>
    where
        F: FnOnce(&Connection) -> Result<(), StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let work = move |conn: &Connection| {
            // The caller may have been dropped.
            let _ = reply.send(work(conn));
        };
        let _ = self.sender.send(Command::Between(Box::new(work)));
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    fn send<T, E, F>(
        &self,
        bytes: usize,
        permits: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
        job: F,
    ) -> oneshot::Receiver<Result<T, E>>
    where
        T: Send + 'static,
        E: JobError,
        F: FnMut(&Connection, &mut S) -> Result<T, E> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(TypedJob { job, result: None, reply, hooks: PhantomData });
        // An ended writer drops the job, and with it the sender of the answer.
        let _ = self.sender.send(Command::Job(Queued { job, bytes, permits }));
        answer
    }

    /// Returns the counters since start.
    #[must_use]
    pub fn stats(&self) -> WriterStats {
        let counters = &self.shared.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WriterStats {
            commits: get(&counters.commits),
            commit_ns: get(&counters.commit_ns),
            commit_times: std::array::from_fn(|index| get(&counters.commit_times[index])),
            syncs: get(&counters.syncs),
            jobs: get(&counters.jobs),
            rows: get(&counters.rows),
            failures: get(&counters.failures),
            checkpoints: get(&counters.checkpoints),
        }
    }

    /// Completes the queue, closes the connection and joins the thread. Later jobs are refused.
    pub async fn close(&self) {
        self.shared.jobs.close();
        self.shared.bytes.close();
        // Fails if the thread has ended already.
        let _ = self.sender.send(Command::Close);
        let mut ended = self.shared.ended.clone();
        // The sender is dropped, never used.
        while ended.changed().await.is_ok() {}
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread has dropped its last value: this does not block.
            let _ = thread.join();
        }
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_UNIT)).unwrap_or(u32::MAX).clamp(1, u32::MAX >> 4)
}

/// An upper estimate of the pages in the log: its state is read only when it may be long enough.
#[derive(Debug)]
struct LogEstimate {
    pages: u64,
}

impl LogEstimate {
    /// Pages of a transaction beside those of its rows and bytes: inner pages, totals.
    const TRANSACTION: u64 = 16;
    /// Pages of a row: leaves of the table and its indexes, with their splits.
    const ROW: u64 = 12;

    /// The log may have any length at the start.
    fn new() -> Self {
        Self { pages: u64::MAX }
    }

    /// Adds a transaction that changed so many rows, with so many bytes in them.
    fn wrote(&mut self, rows: u64, bytes: usize) {
        let of_bytes = (bytes as u64 / PAGE_BYTES).saturating_mul(2);
        let of_rows = rows.saturating_mul(Self::ROW);
        self.pages =
            self.pages.saturating_add(Self::TRANSACTION).saturating_add(of_rows).saturating_add(of_bytes);
    }

    /// Sets the number of pages that was read.
    fn read(&mut self, pages: u64) {
        self.pages = pages;
    }

    /// Returns whether the log may have so many bytes.
    fn may_reach(&self, bytes: u64) -> bool {
        self.pages.saturating_mul(PAGE_BYTES) >= bytes
    }
}

/// The state of the writer thread.
struct Owner<S> {
    conn: Connection,
    hooks: S,
    receiver: mpsc::Receiver<Command<S>>,
    shared: Arc<Shared>,
    /// A job that did not fit into the last group.
    deferred: Option<Command<S>>,
    log: LogEstimate,
    /// The log size from which the next restart of the log is attempted.
    restart_from: u64,
}

impl<S: WriterHooks> Owner<S> {
    fn run(mut self) {
        let mut idle_timeout = self.idle();
        loop {
            let command = match self.deferred.take() {
                Some(command) => Ok(command),
                None => self.receiver.recv_timeout(idle_timeout),
            };
            match command {
                Ok(Command::Job(first)) => {
                    let group = self.gather(first);
                    self.commit_group(group);
                    self.checkpoint_from(self.shared.limits.wal_bytes);
                    // Idle work is due once no job arrives for a moment.
                    idle_timeout = idle_timeout.min(IDLE_AFTER);
                }
                Ok(Command::Between(work)) => work(&self.conn),
                Err(RecvTimeoutError::Timeout) => {
                    // An idle moment suits a checkpoint, but copying a short log often wears the
                    // flash.
                    self.checkpoint_from(self.shared.limits.wal_bytes / 2);
                    idle_timeout = self.idle();
                }
                Ok(Command::Close) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.hooks.closing(&mut self.conn);
    }

    fn idle(&mut self) -> Duration {
        self.count_sync(WriterHooks::idle)
    }

    /// Runs a callback that may write its own transaction, and counts its sync.
    fn count_sync<T>(&mut self, run: impl FnOnce(&mut S, &mut Connection) -> T) -> T {
        let before = self.conn.total_changes();
        let result = run(&mut self.hooks, &mut self.conn);
        let rows = self.conn.total_changes().saturating_sub(before);
        self.log.wrote(rows, 0);
        self.shared.counters.syncs.fetch_add(u64::from(rows > 0), Ordering::Relaxed);
        result
    }

    /// Adds the jobs that have arrived meanwhile to the group of `first`, up to the byte limit.
    fn gather(&mut self, first: Queued<S>) -> Vec<Queued<S>> {
        let mut bytes = first.bytes;
        let mut group = vec![first];
        while let Ok(command) = self.receiver.try_recv() {
            match command {
                Command::Job(next) if bytes + next.bytes <= self.shared.limits.group_bytes => {
                    bytes += next.bytes;
                    group.push(next);
                }
                other => {
                    self.deferred = Some(other);
                    break;
                }
            }
        }
        group
    }

    fn commit_group(&mut self, mut group: Vec<Queued<S>>) {
        match self.attempt(&mut group) {
            Ok(()) => answer(group, &Ok(())),
            Err(StoreError::Full(_)) if group.len() > 1 => {
                // Copying the log into the database frees its pages for small jobs.
                let _ = engine::checkpoint(&self.conn, Checkpoint::Passive);
                for job in group {
                    let mut alone = vec![job];
                    let result = self.attempt(&mut alone);
                    answer(alone, &result);
                }
            }
            Err(error) => answer(group, &Err(error)),
        }
    }

    /// Runs the jobs in one transaction and commits it.
    fn attempt(&mut self, group: &mut [Queued<S>]) -> Result<(), StoreError> {
        if let Err(error) = self.hooks.before_group(&mut self.conn) {
            self.shared.counters.failures.fetch_add(1, Ordering::Relaxed);
            self.hooks.failed(&mut self.conn, &error);
            return Err(error);
        }
        let rows_before = self.conn.total_changes();
        let result = self.transact(group);
        let counters = &self.shared.counters;
        match &result {
            Ok(()) => {
                counters.commits.fetch_add(1, Ordering::Relaxed);
                counters.jobs.fetch_add(group.len() as u64, Ordering::Relaxed);
                let rows = self.conn.total_changes().saturating_sub(rows_before);
                counters.rows.fetch_add(rows, Ordering::Relaxed);
                counters.syncs.fetch_add(u64::from(rows > 0), Ordering::Relaxed);
                self.log.wrote(rows, group.iter().map(|queued| queued.bytes).sum());
                self.hooks.committed(&self.conn);
            }
            Err(error) => {
                counters.failures.fetch_add(1, Ordering::Relaxed);
                // SQLite rolls back on its own after some errors.
                if !self.conn.is_autocommit()
                    && let Err(rollback) = self.conn.execute_batch("ROLLBACK")
                {
                    tracing::error!(error = %rollback, "rollback failed");
                }
                self.hooks.rolled_back(&self.conn);
                self.hooks.failed(&mut self.conn, error);
            }
        }
        result
    }

    fn transact(&mut self, group: &mut [Queued<S>]) -> Result<(), StoreError> {
        let Self { conn, hooks, shared, .. } = self;
        execute(conn, "BEGIN IMMEDIATE")?;
        if let [alone] = group {
            // No other job's changes have to survive its failure: pages need not be kept for a
            // savepoint.
            if alone.job.run(conn, hooks)? == JobEnd::Undo {
                execute(conn, "ROLLBACK")?;
                hooks.rolled_back(conn);
                return Ok(());
            }
        } else {
            for queued in group {
                execute(conn, "SAVEPOINT job")?;
                if queued.job.run(conn, hooks)? == JobEnd::Undo {
                    execute(conn, "ROLLBACK TO job")?;
                    hooks.rolled_back(conn);
                }
                execute(conn, "RELEASE job")?;
            }
        }
        hooks.before_commit(conn)?;
        let start = Instant::now();
        let result = execute(conn, "COMMIT");
        shared.counters.committed_in(start.elapsed());
        result
    }

    /// Restarts the log if permanent readers let it far exceed its limit.
    fn restart_log(&mut self, wal_bytes: u64) {
        let limit = self.shared.limits.wal_bytes;
        if wal_bytes < self.restart_from.max(LOG_FACTOR.saturating_mul(limit)) {
            return;
        }
        self.hooks.log_too_long();
        let copied = engine::checkpoint(&self.conn, Checkpoint::Passive);
        // These readers began before the copy was complete; later ones read from the database
        // alone.
        self.hooks.log_too_long();
        let begun = copied.and_then(|_| engine::truncate_within(&self.conn, LOG_RELEASE_TIMEOUT));
        // A slow reader must not delay every commit.
        self.restart_from = if matches!(begun, Ok(true)) { 0 } else { wal_bytes.saturating_add(limit / 4) };
    }

    /// Runs a checkpoint if the log has reached `wal_bytes`.
    fn checkpoint_from(&mut self, wal_bytes: u64) {
        if !self.log.may_reach(wal_bytes) {
            return;
        }
        let Ok(state) = engine::checkpoint(&self.conn, Checkpoint::Look) else { return };
        self.log.read(state.pages);
        if state.pages.saturating_mul(PAGE_BYTES) < wal_bytes || state.pages == state.copied {
            return;
        }
        match engine::checkpoint(&self.conn, Checkpoint::Passive) {
            Ok(state) => {
                self.shared.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
                self.shared.counters.syncs.fetch_add(2, Ordering::Relaxed);
                self.count_sync(|hooks, conn| hooks.checkpointed(conn, state));
                self.restart_log(state.pages.saturating_mul(PAGE_BYTES));
            }
            Err(error) => {
                // Nothing is lost and the log keeps growing: the next commit tries again.
                tracing::warn!(%error, "checkpoint failed");
                self.hooks.failed(&mut self.conn, &error);
            }
        }
    }
}

/// The timeout for readers to release the log.
const LOG_RELEASE_TIMEOUT: Duration = Duration::from_millis(250);

/// The delay between the last job and idle work.
const IDLE_AFTER: Duration = Duration::from_millis(200);

fn answer<S>(group: Vec<Queued<S>>, result: &Result<(), StoreError>) {
    for Queued { job, permits, .. } in group {
        // Released first, so that an answered caller finds a free permit.
        drop(permits);
        job.answer(result.clone());
    }
}

fn execute(conn: &Connection, sql: &str) -> Result<(), StoreError> {
    conn.prepare_cached(sql)?.execute([])?;
    Ok(())
}

#[cfg(test)]
mod tests;
