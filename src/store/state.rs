//! The state beside the write connection: totals, kinds, confirmations, and the decisions about the
//! health of the file. Runs in the writer's thread.

mod cache;
mod deferral;
mod file;
mod jobs;
mod opening;
mod sealing;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use tokio::sync::watch;

use super::commit_listener::{Recorder, Versions};
use super::files::{self, Aside};
use super::journal::{self, Mark, Recent, Written};
use super::local::Local;
use super::metadata::{MetadataWriter, Occasion, Pending};
use super::new_file::{self, Floor, KIND, Recount, recount};
use super::outbox::{Outbox, OutboxShared};
use super::rows::Resources;
use super::salvage::{self, Salvaged};
use super::seals::{self, Seals};
use super::shared::{self, Shared};
use super::tables::Tables;
use super::{Commit, EdgeOptions, Health, Reset, Writing};
use cache::PageCache;
use deferral::{Additions, FlushTimer};
use edgesync_protocol::apply::{self, Applied, Totals};
use edgesync_protocol::change::Change;
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::upload::Lanes;
use edgesync_store::StoreError;
use edgesync_store::engine::{self, Checkpoint, EngineOptions, PAGE_BYTES, WalState, open_writer};
use edgesync_store::reader::Generation;
use edgesync_store::wal::LogId;
use edgesync_store::writer::WriterHooks;
use file::DatabaseFile;
use opening::{Opened, open_sealed};

/// Space beyond the limit of the database that deletes may use: a tombstone is written before the
/// object's own space is free.
const RESERVE_BYTES: u64 = 64 * PAGE_BYTES;

/// Interval at which expired Events are dropped without other writes: each time costs a commit.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// The state beside the connection.
#[derive(Debug)]
pub(super) struct State {
    file: DatabaseFile,
    cache: PageCache,
    shared: Arc<Shared>,
    generation: Generation,
    stored: Stored,
    /// Whether the in-memory state may differ from the database: then the next group rereads it
    /// first.
    stale: bool,
    /// A loss to announce once its transaction is committed.
    pending: Option<(String, Salvaged)>,
    flush_timer: FlushTimer,
    /// The changes of the running group.
    recorder: Recorder,
    /// Versions after the last commit.
    published: Versions,
    /// When expired Events were last dropped.
    expired_at: Instant,
    /// Writes frequently changing metadata.
    metadata_writer: MetadataWriter,
    additions: Additions,
    seals: Seals,
}

/// The in-memory copy of the database's state.
#[derive(Debug)]
struct Stored {
    totals: Totals,
    written: Written,
    incarnation: Option<String>,
    resources: Resources,
    /// Revisions plus this base are versions.
    base: u64,
    local: Local,
    outbox: Outbox,
}

impl State {
    /// Opens the file, or a new one with its readable rows.
    pub(super) fn open(
        path: &Path,
        options: &EdgeOptions,
        generation: Generation,
    ) -> Result<(Connection, Self), StoreError> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let lock = engine::lock(path)?;
        for left_over in [files::fresh_path(path), files::mended_path(path)] {
            files::remove(&left_over)?;
        }
        let seals = Seals::open(options.seal.as_ref())?;
        let mut reset = None;
        let recent = Arc::new(Recent::default());
        let opened = match open_sealed(path, &options.engine, &recent, &seals) {
            Ok(opened) => opened,
            // A flipped bit in the schema makes a table or a column unknown.
            Err(
                error @ (StoreError::Corrupt(_)
                | StoreError::Unreleased { .. }
                | StoreError::MigrationChanged { .. }
                | StoreError::Internal(_)),
            ) => {
                let cause = describe(&error);
                let salvaged =
                    salvage::rebuild(path, &options.engine, None, &Floor::default(), Aside::Corrupt)?;
                let opened = open_sealed(path, &options.engine, &recent, &seals)?;
                reset = Some((cause, salvaged));
                opened
            }
            Err(error @ StoreError::Newer { .. }) => {
                let cause = describe(&error);
                let salvaged =
                    salvage::rebuild(path, &options.engine, None, &Floor::default(), Aside::Newer)?;
                let file = salvaged.set_aside.as_ref().map(|file| file.display().to_string());
                tracing::error!(
                    cause,
                    file,
                    "database of a newer edgesync set aside; salvaging readable rows into a new one, the cloud resends the rest"
                );
                let opened = open_sealed(path, &options.engine, &recent, &seals)?;
                reset = Some((cause, salvaged));
                opened
            }
            Err(error) => return Err(error),
        };
        let Opened { mut conn, mut stored, settled, lost, sealed } = opened;
        let reset = salvage::with_lost(reset, lost, stored.totals.count);
        let mut reset = reset.map(|(cause, salvaged)| announce(1, cause, salvaged, &stored.totals));
        if sealed {
            conn = opening::clean(conn, path, &options.engine, &seals, &mut stored, &recent)?;
            if let Some(reset) = &mut reset {
                reset.set_aside.take_if(|file| !file.exists());
            }
        }
        let outbox = OutboxShared::new(&stored.outbox, settled, options.outbox);
        let shared = Shared {
            confirmed: AtomicU64::new(stored.written.confirmed),
            totals: watch::Sender::new(stored.totals),
            incarnation: watch::Sender::new(stored.incarnation.clone()),
            health: watch::Sender::new(Health { writing: Writing::Works, reset }),
            recent,
            observer: OnceLock::new(),
            versions: Mutex::new(stored.versions()),
            events_dropped: AtomicU64::new(0),
            outbox,
            snapshots: shared::snapshots(path, &options.engine, generation.clone()),
            metadata: Pending::default(),
        };
        let published = stored.versions();
        let state = Self {
            file: DatabaseFile::new(path, options.engine.clone(), lock)?,
            cache: PageCache::new(options.engine.cache_kib),
            shared: Arc::new(shared),
            generation,
            stored,
            stale: false,
            pending: None,
            flush_timer: FlushTimer::new(options.flush_after),
            recorder: Recorder::default(),
            published,
            expired_at: Instant::now(),
            metadata_writer: MetadataWriter::new(),
            additions: Additions::default(),
            seals,
        };
        Ok((conn, state))
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub(super) fn seals(&self) -> Seals {
        self.seals.clone()
    }

    pub(super) fn resources(&self) -> &Resources {
        &self.stored.resources
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.stored.totals.epoch
    }

    /// Checks that the file's metadata is readable.
    pub(super) fn check_metadata(&self, conn: &Connection) -> Result<(), StoreError> {
        Stored::load(conn, &self.shared.recent).map(|_| ())
    }

    /// Opens another connection to the file.
    pub(super) fn open_reader(&self) -> Result<Connection, StoreError> {
        engine::open_reader(&self.file.path, &self.file.engine)
    }

    /// Makes the readers reopen the file.
    pub(super) fn reopen_readers(&self) {
        self.generation.advance();
    }

    /// Runs the job of [`super::EdgeStore::apply`].
    pub(super) fn apply(&mut self, conn: &Connection, changes: &[Change]) -> Result<Commit, StoreError> {
        let deletes_only = changes.iter().all(|change| matches!(change, Change::Delete(_)));
        let Some(limit) = self.file.engine.max_file_bytes().filter(|_| deletes_only) else {
            return self.apply_within(conn, changes);
        };
        engine::set_max_bytes(conn, Some(limit.saturating_add(RESERVE_BYTES)))?;
        let result = self.apply_within(conn, changes);
        engine::set_max_bytes(conn, Some(limit))?;
        result
    }

    fn apply_within(&mut self, conn: &Connection, changes: &[Change]) -> Result<Commit, StoreError> {
        self.cache.prepare(conn, changes.len())?;
        let before = self.stored.totals.revision;
        let mut totals = self.stored.totals;
        let mut applied = Applied::default();
        let Stored { resources, base, .. } = &mut self.stored;
        let mut tables = Tables::new(conn, resources, &mut self.recorder, &self.seals, *base);
        for change in changes {
            apply::apply(&mut tables, &mut totals, change, &mut applied)?;
        }
        let entries = tables.into_entries();
        let confirmed = self.shared.confirmed.load(Ordering::Acquire).min(before);
        let mark = Mark { confirmed, log: self.file.group_log() };
        journal::record(conn, &self.shared.recent, &mut self.stored.written, &entries, &totals, mark)?;
        self.stored.totals = totals;
        Ok(Commit { before, totals, applied })
    }

    /// Runs the job of [`super::EdgeStore::set_incarnation`].
    pub(super) fn set_incarnation(
        &mut self,
        conn: &Connection,
        incarnation: Option<&str>,
    ) -> Result<(), StoreError> {
        if self.stored.incarnation.as_deref() == incarnation {
            return Ok(());
        }
        match incarnation {
            Some(text) => journal::set_meta(conn, "incarnation", text)?,
            None => {
                conn.execute("DELETE FROM meta WHERE key = 'incarnation'", [])?;
            }
        }
        self.stored.incarnation = incarnation.map(str::to_owned);
        Ok(())
    }

    /// Removes the given rows that are really damaged or cannot be opened, and recounts. If
    /// anything was wrong the file gets a new epoch: the cloud then compares inventories and
    /// resends what is missing. Returns how many rows were removed, and whether the epoch is new.
    pub(super) fn repair(&mut self, conn: &Connection, suspects: &[i64]) -> Result<(u64, bool), StoreError> {
        let (mut lost, mut sealed) = (0, 0);
        for id in suspects {
            let Some(damage) = self.damage(conn, *id)? else { continue };
            conn.execute("DELETE FROM objects WHERE id = ?1", [id])?;
            lost += 1;
            sealed += u64::from(damage == sealing::Damage::Sealed);
        }
        let totals = self.stored.totals;
        let Recount { count, digest, .. } = recount(conn, totals.epoch)?;
        if lost == 0 && (count, digest) == (totals.count, totals.digest) {
            return Ok((0, false));
        }
        let cause = match lost {
            0 => "count or digest did not match the rows".to_owned(),
            lost if lost == sealed => seals::cause_of_loss(sealed),
            _ if sealed > 0 => format!("damaged rows; {}", seals::cause_of_loss(sealed)),
            _ => "damaged rows".to_owned(),
        };
        self.stored.renew(conn, Timestamp::now())?;
        self.recorder.forget();
        self.pending = Some((cause, Salvaged { kept: count, lost, set_aside: None }));
        Ok((lost, true))
    }

    fn announce_loss(&mut self, cause: String, salvaged: Salvaged) {
        let number = self.shared.health.borrow().reset.as_ref().map_or(1, |reset| reset.number + 1);
        let reset = announce(number, cause, salvaged, &self.stored.totals);
        // Earlier confirmations belonged to the old epoch.
        self.shared.confirmed.fetch_max(self.stored.written.confirmed, Ordering::AcqRel);
        self.recorder.forget();
        self.publish();
        self.shared.health.send_modify(|health| health.reset = Some(reset));
    }

    fn publish(&mut self) {
        self.notify_listener();
        let Stored { totals, incarnation, .. } = &self.stored;
        let changed = |old: &mut Totals| std::mem::replace(old, *totals) != *totals;
        self.shared.totals.send_if_modified(changed);
        self.shared.incarnation.send_if_modified(|old| {
            let differs = old != incarnation;
            if differs {
                old.clone_from(incarnation);
            }
            differs
        });
    }

    /// Notifies the listener of the commit.
    fn notify_listener(&mut self) {
        let versions = self.stored.versions();
        let before = std::mem::replace(&mut self.published, versions);
        let commit = self.recorder.finish(before, versions);
        if before == versions {
            return;
        }
        self.shared.set_versions(versions);
        if let Some(observer) = self.shared.observer.get() {
            observer.committed(commit);
        }
    }

    /// Starts to record changes, if the listener wants them.
    fn start_recording(&mut self) {
        let room = self.shared.observer.get().map_or(0, |observer| observer.appetite());
        self.recorder.begin(room);
    }

    /// Drops expired Events, if the check is due.
    fn expire_if_due(&mut self, conn: &Connection) -> Result<(), StoreError> {
        let now = Timestamp::now().as_second();
        if self.expired_at.elapsed() < EXPIRE_INTERVAL || self.stale || !self.stored.local.has_expired(now) {
            return Ok(());
        }
        self.expired_at = Instant::now();
        self.start_recording();
        let tx = conn.unchecked_transaction()?;
        // Until the commit returns, the in-memory state may be ahead of the file.
        self.stale = true;
        self.stored.local.expire(&tx, &mut self.recorder, now)?;
        tx.commit()?;
        self.stale = false;
        self.notify_listener();
        Ok(())
    }

    fn set_writing(&self, writing: Writing) {
        self.shared.health.send_if_modified(|health| {
            let differs = health.writing != writing;
            if differs {
                health.writing = writing;
            }
            differs
        });
    }

    /// Replaces the file by its readable rows, through the connection that is still open.
    fn recover(&mut self, conn: &mut Connection, cause: String) -> Result<(), StoreError> {
        let floor = Floor {
            revision: self.stored.totals.revision,
            count: self.stored.totals.count,
            incarnation: self.stored.incarnation.clone(),
            sealed: seals::recorded_kinds(conn).ok().flatten(),
            resources: self.stored.resources.clone(),
            versions: self.published,
            numbering: Some(self.stored.outbox.numbering()),
        };
        let DatabaseFile { path, engine, .. } = &self.file;
        let salvaged = salvage::rebuild(path, engine, Some(conn), &floor, Aside::Corrupt)?;
        let opened = open_sealed(path, engine, &self.shared.recent, &self.seals)?;
        let Opened { conn: fresh, mut stored, settled, lost, .. } = opened;
        let with_lost = salvage::with_lost(Some((cause, salvaged)), lost, stored.totals.count);
        files::close_detached(std::mem::replace(conn, fresh));
        stored.outbox.inherit(&self.stored.outbox);
        self.shared.outbox.settle_all(settled);
        self.stored = stored;
        self.shared.outbox.publish(&self.stored.outbox);
        self.stale = false;
        self.cache.reopened();
        self.file.reopened()?;
        self.generation.advance();
        if let Some((cause, salvaged)) = with_lost {
            self.announce_loss(cause, salvaged);
        }
        Ok(())
    }

    /// Checks whether the file still has its path; replaces it if not.
    fn check_path(&mut self, conn: &mut Connection) -> Result<(), StoreError> {
        let result = self.file.check().map_or(Ok(()), |cause| self.recover(conn, cause.to_owned()));
        let is_back = self.file.set_in_place(result.is_ok());
        match &result {
            Ok(()) if is_back => self.set_writing(Writing::Works),
            Ok(()) => {}
            Err(error) => self.set_writing(Writing::Fails { reason: describe(error) }),
        }
        result
    }

    /// Rereads the database's state after a rollback.
    fn reload(&mut self, conn: &Connection) -> Result<(), StoreError> {
        let stored = Stored::load(conn, &self.shared.recent)?;
        let outbox = std::mem::replace(&mut self.stored, stored).outbox;
        self.stored.outbox = outbox;
        let local = std::mem::take(&mut self.stored.local);
        self.stored.local = local.at_least(self.published.local);
        self.shared.recent.cut(self.stored.totals.revision);
        self.recorder.cut(self.stored.versions());
        self.stale = false;
        Ok(())
    }

    /// Brings the journal and its confirmed revision up to date. `log` is the one in which later
    /// changes in place are permitted.
    fn flush(&mut self, conn: &Connection, log: Option<LogId>) -> Result<(), StoreError> {
        if self.stale {
            self.reload(conn)?;
        }
        let confirmed = self.shared.facts().confirmed.max(self.stored.written.confirmed);
        let Stored { totals, written, .. } = &self.stored;
        let is_marked = log.is_some() || written.log.is_none();
        if confirmed == written.confirmed && written.revision == totals.revision && is_marked {
            return Ok(());
        }
        let tx = conn.unchecked_transaction()?;
        let mark = Mark { confirmed, log };
        let written = journal::flush(&tx, &self.shared.recent, *written, totals, mark)?;
        tx.commit()?;
        self.stored.written = written;
        Ok(())
    }

    fn flush_if_due(&mut self, conn: &Connection) -> Duration {
        let nothing_confirmed = self.shared.facts().confirmed <= self.stored.written.confirmed;
        let has_unwritten = !nothing_confirmed || self.has_confirmed_uploads();
        let remaining = self.flush_timer.remaining(has_unwritten);
        if !remaining.is_zero() {
            return remaining;
        }
        let log = self.file.log();
        let done = self.flush(conn, log).and_then(|()| self.flush_deferred(conn, Occasion::Quiet));
        if let Err(error) = done {
            // Only a repeated report depends on it.
            tracing::warn!(%error, "confirmed revision not written");
        }
        self.flush_timer.restart()
    }
}

impl WriterHooks for State {
    fn checkpointed(&mut self, conn: &mut Connection, state: WalState) {
        self.file.checkpointed(state);
        let Stored { totals, written, .. } = &self.stored;
        if written.revision == totals.revision {
            return;
        }
        // The next log must not begin with rows that the journal lacks: a start after a crash would
        // not find them in it.
        if let Err(error) = self.flush(conn, None) {
            tracing::warn!(%error, "journal not written after a checkpoint");
        }
    }

    fn log_too_long(&mut self) {
        let lists = self.shared.snapshots.end_all();
        if lists > 0 {
            tracing::info!(lists, "write-ahead log too large: open lists closed");
        }
    }

    fn before_group(&mut self, conn: &mut Connection) -> Result<(), StoreError> {
        if self.file.is_check_due() {
            self.check_path(conn)?;
        }
        if self.stale {
            self.reload(conn)?;
        }
        self.file.begin_group();
        self.start_recording();
        Ok(())
    }

    fn before_commit(&mut self, conn: &Connection) -> Result<(), StoreError> {
        self.add_deferred(conn)
    }

    fn committed(&mut self, _conn: &Connection) {
        self.commit_deferred();
        match self.pending.take() {
            Some((cause, salvaged)) => self.announce_loss(cause, salvaged),
            None => self.publish(),
        }
        self.set_writing(Writing::Works);
    }

    fn rolled_back(&mut self, conn: &Connection) {
        self.pending = None;
        // The rollback of a single job has restored its own counts.
        if conn.is_autocommit() {
            self.stored.outbox.revert();
            self.metadata_writer.rolled_back();
        }
        if let Err(error) = self.reload(conn) {
            tracing::error!(%error, "state not read after a rollback");
            self.stale = true;
        }
    }

    fn failed(&mut self, conn: &mut Connection, error: &StoreError) {
        self.additions.rolled_back();
        match error {
            StoreError::Full(_) => self.set_writing(Writing::Full),
            StoreError::Corrupt(_) => {
                let cause = describe(error);
                if let Err(error) = self.recover(conn, cause) {
                    self.set_writing(Writing::Fails { reason: describe(&error) });
                }
            }
            _ => self.set_writing(Writing::Fails { reason: describe(error) }),
        }
    }

    fn idle(&mut self, conn: &mut Connection) -> Duration {
        // The health shows a failure, and the next call retries.
        let _ = self.check_path(conn);
        if let Err(error) = self.expire_if_due(conn) {
            tracing::warn!(%error, "old Events not dropped");
        }
        if let Err(error) = self.cache.shrink(conn) {
            tracing::warn!(%error, "page cache not shrunk");
        }
        let patience = self.flush_if_due(conn);
        if !self.stale
            && self.metadata_writer.is_due(&self.shared.metadata, Occasion::Quiet)
            && let Err(error) = self.flush_deferred(conn, Occasion::Quiet)
        {
            tracing::warn!(%error, "metadata not written");
        }
        patience
    }

    fn closing(&mut self, conn: &mut Connection) {
        if let Some(observer) = self.shared.observer.get() {
            observer.closed();
        }
        let flushed = self.flush(conn, None).and_then(|()| self.flush_deferred(conn, Occasion::End));
        let done = flushed.and_then(|()| {
            engine::checkpoint(conn, Checkpoint::Truncate)?;
            conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
            Ok(())
        });
        if let Err(error) = done {
            // The log keeps everything that was committed.
            tracing::warn!(%error, "last checkpoint failed");
        }
    }
}

impl Stored {
    /// Reads everything except the outbox, whose cost depends on its rows.
    fn load(conn: &Connection, recent: &Recent) -> Result<Self, StoreError> {
        let (totals, written) = journal::totals(conn, recent)?;
        let incarnation = journal::meta(conn, "incarnation")?;
        let resources = Resources::load(conn)?;
        let (base, local) = (journal::base(conn)?, Local::load(conn)?);
        Ok(Self { totals, written, incarnation, resources, base, local, outbox: Outbox::default() })
    }

    fn versions(&self) -> Versions {
        Versions { objects: self.base + self.totals.revision, local: self.local.version() }
    }

    /// Gives the file a new epoch, after a loss.
    fn renew(&mut self, conn: &Connection, now: Timestamp) -> Result<(), StoreError> {
        (self.totals, self.written) = new_file::renew(conn, self.totals.revision)?;
        self.base = journal::choose_base(conn, self.base.saturating_add(self.totals.revision), now)?;
        Ok(())
    }
}

/// Opens the database and reads its state, and the confirmed numbers of the outbox; a new file gets
/// its first epoch.
fn open_sound(
    path: &Path,
    options: &EngineOptions,
    recent: &Recent,
) -> Result<(Connection, Stored, Lanes), StoreError> {
    recent.cut(0);
    let conn = open_file(path, options)?;
    let tx = conn.unchecked_transaction()?;
    if is_empty(&tx)? {
        new_file::start(&tx, &Floor::default())?;
    }
    journal::find_unwritten(&tx, path, recent)?;
    tx.commit()?;
    if !journal::has_base(&conn)? {
        // Damage to this one row costs a jump of the versions, and no object.
        journal::choose_base(&conn, 0, Timestamp::now())?;
    }
    Local::prepare(&conn)?;
    let (outbox, settled) = Outbox::open(&conn)?;
    let stored = Stored { outbox, ..Stored::load(&conn, recent)? };
    Ok((conn, stored, settled))
}

fn open_file(path: &Path, options: &EngineOptions) -> Result<Connection, StoreError> {
    let conn = open_writer(path, KIND, options)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Replaced sealed text is overwritten where that costs no additional page.
    conn.pragma_update_and_check(None, "secure_delete", "fast", |_| Ok(()))?;
    Ok(conn)
}

fn is_empty(conn: &Connection) -> Result<bool, StoreError> {
    let sql = "SELECT NOT EXISTS (SELECT 1 FROM journal) AND NOT EXISTS (SELECT 1 FROM meta)
                  AND NOT EXISTS (SELECT 1 FROM objects)";
    Ok(conn.query_row(sql, [], |row| row.get(0))?)
}

fn announce(number: u64, cause: String, salvaged: Salvaged, totals: &Totals) -> Reset {
    let Salvaged { kept, lost, set_aside } = salvaged;
    let (epoch, file) = (totals.epoch, set_aside.as_ref().map(|file| file.display().to_string()));
    tracing::error!(%cause, kept, lost, %epoch, file, "new epoch of the database");
    Reset { number, cause, epoch, kept, lost, set_aside }
}

/// Returns an error with its causes, in one line.
fn describe(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that watches compares versions: after a repair, none may come again.
    #[test]
    fn versions_grow_over_a_repair_with_a_clock_behind() {
        let conn = Connection::open_in_memory().unwrap();
        KIND.migrations.iter().for_each(|migration| conn.execute_batch(migration.sql).unwrap());
        Local::prepare(&conn).unwrap();
        let versions = Versions { objects: 1 << 60, local: 0 };
        new_file::start(&conn, &Floor { revision: 20, versions, ..Floor::default() }).unwrap();
        let mut stored = Stored::load(&conn, &Recent::default()).unwrap();
        assert!(stored.versions().objects > versions.objects, "the clock is behind them");
        for _ in 0..3 {
            let before = stored.versions().objects;
            stored.renew(&conn, Timestamp::UNIX_EPOCH).unwrap();
            assert!(stored.versions().objects > before);
        }
        assert_eq!(Stored::load(&conn, &Recent::default()).unwrap().versions(), stored.versions());
    }
}
