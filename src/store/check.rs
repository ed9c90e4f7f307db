//! Reading, checking and counting all rows in the background: damage and drift are found before someone
//! depends on them.

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

/// What a check has seen and done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Rows read.
    pub rows: u64,
    /// Rows removed because their checksum did not hold, or because they were sealed with a key that is lost.
    pub removed: u64,
    /// Leases and Events of this node removed for the same reason.
    pub local_removed: u64,
    /// Items of the outbox removed for the same reason.
    pub outbox_removed: u64,
    /// Whether the store has a new epoch because of what was found.
    pub renewed: bool,
}

type Reply = oneshot::Sender<Result<CheckReport, StoreError>>;

/// A handle of the thread that checks. The thread ends with it.
pub(super) struct Checker {
    requests: Mutex<Option<mpsc::Sender<Reply>>>,
    reading: Reading,
}

/// Ends what the checking connection runs, while there is one.
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

/// The page cache of the checking connection, KiB: it reads everything once, in order.
const CACHE_KIB: u32 = 128;
/// Rows between two pauses.
const BATCH: u64 = 256;
/// How often a pause looks at the log.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// More damaged rows than this are not picked out one by one: the file is rebuilt.
const MAX_DAMAGED: usize = 4096;

/// What one pass has seen, in one snapshot.
struct Seen {
    epoch: Epoch,
    rows: u64,
    damaged: Vec<i64>,
    local_damaged: Vec<i64>,
    outbox_damaged: Vec<i64>,
    adds_up: bool,
    /// What is wrong with the structure of the file.
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

    /// Ends the check that runs, and the thread.
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
                tracing::warn!(%error, "the check of the store failed");
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

    /// One pass; none if the store is closed meanwhile.
    fn pass(&self, waiting: &mut Vec<Reply>) -> Option<Result<CheckReport, StoreError>> {
        // Those who ask later than this get a pass of their own.
        let mut later = Vec::new();
        let seen = open_reader(&self.path, &self.engine).and_then(|conn| {
            let interrupt = Some(conn.get_interrupt_handle());
            *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = interrupt;
            scan(&conn, &self.recent, &self.seals, || self.rest(&mut later))
        });
        let result = match seen {
            Ok(None) | Err(StoreError::Closed) => return None,
            Ok(Some(seen)) => self.judge(seen),
            Err(error @ StoreError::Corrupt(_)) => self.post(confirm_damage).and(Err(error)),
            Err(error) => Err(error),
        };
        for reply in waiting.drain(..) {
            let _ = reply.send(result.clone());
        }
        waiting.append(&mut later);
        Some(result)
    }

    /// Pauses, but no longer than somebody asks for a check or the log has grown: the snapshot of this thread keeps it from
    /// being begun anew. Says whether to go on.
    fn rest(&self, later: &mut Vec<Reply>) -> bool {
        let until = Instant::now() + self.pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.requests.recv_timeout(left.min(LOOK_EVERY)) {
                Ok(reply) => {
                    later.push(reply);
                    return true;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return false,
                Err(mpsc::RecvTimeoutError::Timeout) if left <= LOOK_EVERY || self.log_is_long() => {
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

    fn judge(&self, seen: Seen) -> Result<CheckReport, StoreError> {
        let Seen { epoch, rows, damaged, local_damaged, outbox_damaged, adds_up, structure } = seen;
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

/// Reads all rows in one snapshot; `pause` is called between batches and says whether to go on.
fn scan(
    conn: &Connection,
    recent: &Recent,
    seals: &Seals,
    mut pause: impl FnMut() -> bool,
) -> Result<Option<Seen>, StoreError> {
    let tx = conn.unchecked_transaction()?;
    let (totals, _) = journal::totals(&tx, recent)?;
    let resources = Resources::load(&tx)?;
    let (mut rows_seen, mut digest, mut damaged) = (0, Digest::default(), Vec::new());
    let mut statement = tx.prepare(&format!("SELECT {OBJECT_COLUMNS} FROM objects ORDER BY id"))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        rows_seen += 1;
        match ObjectRow::read(row)? {
            // The file is sound all the same. Those beyond the limit are left to the next check.
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
    // What follows has a snapshot of its own, so that the log can be begun anew in between.
    tx.finish()?;
    let Some(structure) = check_structure(conn, pause)? else { return Ok(None) };
    let structure = (structure != "ok").then_some(structure);
    let epoch = totals.epoch;
    Ok(Some(Seen { epoch, rows: rows_seen, damaged, local_damaged, outbox_damaged, adds_up, structure }))
}

/// What SQLite says of the structure of the file.
///
/// It is one statement for all, since one for a table would leave out the list of free pages, and nearly everything
/// is in one table. It reads in a snapshot: writers and other readers go on, and what they write meanwhile stays in the
/// log. Only who closes the store has to wait for readers, and interrupts it ([`Checker::stop`]).
fn check_structure(conn: &Connection, mut pause: impl FnMut() -> bool) -> Result<Option<String>, StoreError> {
    // As long as one statement runs, an interrupt is not forgotten that comes between two others.
    let mut running = conn.prepare("VALUES (1), (2)")?;
    let mut running = running.query([])?;
    running.next()?;
    if !pause() {
        return Ok(None);
    }
    Ok(Some(conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?))
}

/// A job for the writer: looks whether the file is damaged as another connection believes. If so it
/// fails, and with that the file is replaced.
///
/// The writer's own connection may have sound pages in its cache that are damaged in the file: a new one looks.
pub(super) fn confirm_damage(conn: &Connection, state: &mut State) -> Result<(), StoreError> {
    let fresh = state.open_reader()?;
    let verdict: String = fresh.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Err(StoreError::corrupt(verdict));
    }
    state.look_through(conn)?;
    state.reopen_readers();
    Ok(())
}
