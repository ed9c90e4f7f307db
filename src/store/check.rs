//! Background check of all rows: detects damage and drift before a read depends on them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rusqlite::{Connection, InterruptHandle};
use tokio::sync::oneshot;

use super::EdgeOptions;
use super::journal::{self, Recent};
use super::local;
use super::outbox;
use super::rows::{OBJECT_COLUMNS, ObjectRow, Resources};
use super::seals::Seals;
use super::state::State;
use edgesync_protocol::digest::{Digest, Epoch};
use edgesync_store::StoreError;
use edgesync_store::engine::{EngineOptions, open_reader, wal_path};
use edgesync_store::writer::Writer;

/// Result of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    pub rows: u64,
    /// Objects removed because of a wrong checksum or a lost key.
    pub removed: u64,
    /// Leases and Events of this node removed for the same reason.
    pub local_removed: u64,
    /// Outbox items removed for the same reason.
    pub outbox_removed: u64,
    /// Whether the result required a new epoch.
    pub renewed: bool,
}

type Reply = oneshot::Sender<Result<CheckReport, StoreError>>;

/// A handle of the checking thread. The thread ends with it.
pub(super) struct Checker {
    requests: Mutex<Option<mpsc::Sender<Reply>>>,
    reading: Reading,
}

/// Interrupts the checking connection, while there is one.
type Reading = Arc<Mutex<Option<InterruptHandle>>>;

struct Thread {
    path: PathBuf,
    engine: EngineOptions,
    every: Duration,
    pause: Duration,
    writer: Writer<State>,
    recent: Arc<Recent>,
    seals: Seals,
    requests: mpsc::Receiver<Reply>,
    reading: Reading,
}

/// Page cache of the checking connection, KiB: it reads everything once, in order.
const CACHE_KIB: u32 = 128;
/// Rows between two pauses.
const BATCH: u64 = 256;
/// Interval at which a pause checks the log's size.
const LOG_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of damaged rows that are removed individually; with more the file is rebuilt.
const MAX_DAMAGED: usize = 4096;

/// Result of one pass, in one snapshot.
struct ScanResult {
    epoch: Epoch,
    rows: u64,
    damaged: Vec<i64>,
    local_damaged: Vec<i64>,
    outbox_damaged: Vec<i64>,
    adds_up: bool,
    /// The structural damage of the file.
    structure: Option<String>,
}

impl std::fmt::Debug for Checker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checker").finish_non_exhaustive()
    }
}

impl Checker {
    pub(super) fn start(
        path: &Path,
        options: &EdgeOptions,
        writer: Writer<State>,
        recent: Arc<Recent>,
        seals: Seals,
    ) -> Result<Self, StoreError> {
        let (sender, requests) = mpsc::channel();
        let reading = Reading::default();
        let thread = Thread {
            path: path.to_owned(),
            engine: EngineOptions { cache_kib: CACHE_KIB, ..options.engine.clone() },
            every: options.check_every,
            pause: options.check_pause,
            writer,
            recent,
            seals,
            requests,
            reading: Arc::clone(&reading),
        };
        std::thread::Builder::new().name("store-check".to_owned()).spawn(move || thread.run())?;
        Ok(Self { requests: Mutex::new(Some(sender)), reading })
    }

    pub(super) async fn check(&self) -> Result<CheckReport, StoreError> {
        let (reply, answer) = oneshot::channel();
        let sender = self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A thread that has ended drops the reply.
        let _ = sender.map(|sender| sender.send(reply));
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Interrupts the running check, and ends the thread.
    pub(super) fn stop(&self) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reading) = &*self.reading.lock().unwrap_or_else(PoisonError::into_inner) {
            reading.interrupt();
        }
    }
}

impl Thread {
    fn run(self) {
        let mut waiting = Vec::new();
        loop {
            let Some(result) = self.pass(&mut waiting) else { return };
            if let Err(error) = &result {
                tracing::warn!(%error, "store check failed");
            }
            for reply in waiting.drain(..) {
                let _ = Reply::send(reply, result.clone());
            }
            match self.requests.recv_timeout(self.every) {
                Ok(reply) => waiting.push(reply),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Runs one pass; `None` if the store closes meanwhile.
    fn pass(&self, waiting: &mut Vec<Reply>) -> Option<Result<CheckReport, StoreError>> {
        // Requests from here on get a pass of their own.
        let mut later = Vec::new();
        let scanned = open_reader(&self.path, &self.engine).and_then(|conn| {
            let interrupt = Some(conn.get_interrupt_handle());
            *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = interrupt;
            scan(&conn, &self.recent, &self.seals, || self.wait_pause(&mut later))
        });
        let result = match scanned {
            Ok(None) | Err(StoreError::Closed) => return None,
            Ok(Some(scanned)) => self.handle_result(scanned),
            Err(error @ StoreError::Corrupt(_)) => self.post(confirm_damage).and(Err(error)),
            Err(error) => Err(error),
        };
        for reply in waiting.drain(..) {
            let _ = reply.send(result.clone());
        }
        waiting.append(&mut later);
        Some(result)
    }

    /// Pauses; cut short by a request for a check or by a long log, whose restart the snapshot of
    /// this thread prevents. Returns whether to continue.
    fn wait_pause(&self, later: &mut Vec<Reply>) -> bool {
        let until = Instant::now() + self.pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.requests.recv_timeout(left.min(LOG_CHECK_INTERVAL)) {
                Ok(reply) => {
                    later.push(reply);
                    return true;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return false,
                Err(mpsc::RecvTimeoutError::Timeout) if left <= LOG_CHECK_INTERVAL || self.log_is_long() => {
                    return true;
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn log_is_long(&self) -> bool {
        let bytes = std::fs::metadata(wal_path(&self.path)).map_or(0, |log| log.len());
        bytes > self.engine.wal_bytes.saturating_mul(2)
    }

    fn handle_result(&self, scanned: ScanResult) -> Result<CheckReport, StoreError> {
        let ScanResult { epoch, rows, damaged, local_damaged, outbox_damaged, adds_up, structure } = scanned;
        if let Some(text) = structure {
            let error = StoreError::corrupt(text);
            let posted = error.clone();
            self.post(move |_, state| if state.epoch() == epoch { Err(posted.clone()) } else { Ok(()) })?;
            return Err(error);
        }
        let local_removed = local_damaged.len() as u64;
        if local_removed > 0 {
            self.post(move |conn, state| state.repair_local(conn, &local_damaged))?;
        }
        let mut outbox_removed = 0;
        if !outbox_damaged.is_empty() {
            outbox_removed = self.post(move |conn, state| state.repair_outbox(conn, &outbox_damaged))?;
        }
        let report = CheckReport { rows, local_removed, outbox_removed, ..CheckReport::default() };
        if damaged.is_empty() && adds_up {
            return Ok(report);
        }
        let (removed, renewed) = self.post(move |conn, state| state.repair(conn, &damaged))?;
        Ok(CheckReport { removed, renewed, ..report })
    }

    fn post<T: Send + 'static>(
        &self,
        job: impl FnMut(&Connection, &mut State) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.writer.post(job).blocking_recv().unwrap_or(Err(StoreError::Closed))
    }
}

/// Reads all rows in one snapshot; calls `pause` between batches, which returns whether to
/// continue.
fn scan(
    conn: &Connection,
    recent: &Recent,
    seals: &Seals,
    mut pause: impl FnMut() -> bool,
) -> Result<Option<ScanResult>, StoreError> {
    let tx = conn.unchecked_transaction()?;
    let (totals, _) = journal::totals(&tx, recent)?;
    let resources = Resources::load(&tx)?;
    let (mut rows_seen, mut digest, mut damaged) = (0, Digest::default(), Vec::new());
    let mut statement = tx.prepare(&format!("SELECT {OBJECT_COLUMNS} FROM objects ORDER BY id"))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        rows_seen += 1;
        match ObjectRow::read(row)? {
            // The file itself is sound. Rows beyond the limit wait for the next check.
            Some(row) if row.is_sound(&resources) && seals.is_lost(row.binding(), row.body) => {
                if damaged.len() < MAX_DAMAGED {
                    damaged.push(row.id);
                }
            }
            Some(row) if row.is_sound(&resources) => digest.add(totals.epoch, row.uid, &row.version.into()),
            _ if damaged.len() < MAX_DAMAGED => damaged.push(row.get(0)?),
            _ => return Err(StoreError::corrupt(format!("more than {MAX_DAMAGED} damaged rows"))),
        }
        if rows_seen % BATCH == 0 && !pause() {
            return Ok(None);
        }
    }
    let adds_up = (rows_seen, digest) == (totals.count, totals.digest);
    let local_damaged = local::damaged(&tx)?;
    let Some(outbox_damaged) = outbox::damaged(&tx, seals, &mut pause)? else { return Ok(None) };
    drop(rows);
    drop(statement);
    // The next statement has its own snapshot, so that the log can restart in between.
    tx.finish()?;
    let Some(structure) = check_structure(conn, pause)? else { return Ok(None) };
    let structure = (structure != "ok").then_some(structure);
    let epoch = totals.epoch;
    Ok(Some(ScanResult {
        epoch,
        rows: rows_seen,
        damaged,
        local_damaged,
        outbox_damaged,
        adds_up,
        structure,
    }))
}

/// Returns SQLite's verdict on the structure of the file.
///
/// One statement covers all tables: a statement per table would omit the list of free pages, and
/// one table has nearly all rows. It reads in a snapshot: writers and other readers continue, and
/// their writes stay in the log meanwhile. Closing the store waits for readers, and interrupts this
/// one ([`Checker::stop`]).
fn check_structure(conn: &Connection, mut pause: impl FnMut() -> bool) -> Result<Option<String>, StoreError> {
    // SQLite keeps an interrupt between two statements only while another statement runs.
    let mut running = conn.prepare("VALUES (1), (2)")?;
    let mut running = running.query([])?;
    running.next()?;
    if !pause() {
        return Ok(None);
    }
    Ok(Some(conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?))
}

/// A job for the writer: checks whether the file is damaged, as another connection reports. If so
/// it fails, which makes the store replace the file.
///
/// It opens a new connection, because the writer's own may cache sound copies of pages that are
/// damaged in the file.
pub(super) fn confirm_damage(conn: &Connection, state: &mut State) -> Result<(), StoreError> {
    let fresh = state.open_reader()?;
    let verdict: String = fresh.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Err(StoreError::corrupt(verdict));
    }
    state.check_metadata(conn)?;
    state.reopen_readers();
    Ok(())
}
