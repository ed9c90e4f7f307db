//! Connections: every setting that durability, memory and wear depend on, in one place.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::backup::Backup;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::StoreError;
use super::durable::{self, with_suffix};
use super::mark;
use super::migrate::{Migration, made_with, migrate};

/// The size of a database page, bytes: what flash and file systems write at once.
pub const PAGE_BYTES: u64 = 4096;

/// How a database is opened.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The page cache of each connection, KiB.
    pub cache_kib: u32,
    /// The size that the write-ahead log may reach before it is copied into the database, bytes. A
    /// larger log wears the flash less (a page that changed often is copied once) and takes longer
    /// to read after a crash.
    pub wal_bytes: u64,
    /// The largest size of the database with its log, bytes; no limit but the disk's if absent.
    pub max_bytes: Option<u64>,
    /// How long a connection waits for a lock that another one holds.
    pub busy_timeout: Duration,
    /// The SQLite VFS to use, registered by the program; the default one if absent. Tests put a VFS
    /// here that loses power.
    pub vfs: Option<String>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            cache_kib: 512,
            wal_bytes: 4 << 20,
            max_bytes: None,
            busy_timeout: Duration::from_secs(5),
            vfs: None,
        }
    }
}

/// The write-ahead log is begun anew at so many times the size at which it is copied, whoever still reads from it.
pub const LOG_FACTOR: u64 = 4;
/// What the log may take, in the same unit: a transaction comes on top.
const LOG_SHARE: u64 = LOG_FACTOR + 1;

impl EngineOptions {
    /// The same with a log that takes a quarter of the largest size at most.
    #[must_use]
    pub fn with_room_for_log(mut self) -> Self {
        let longest = self.max_bytes.map_or(u64::MAX, |bytes| bytes / 4 / LOG_SHARE);
        self.wal_bytes = self.wal_bytes.min(longest);
        self
    }

    /// The largest size of the database without its log, bytes.
    #[must_use]
    pub fn max_file_bytes(&self) -> Option<u64> {
        self.max_bytes.map(|bytes| bytes.saturating_sub(self.wal_bytes.saturating_mul(LOG_SHARE)))
    }
}

/// Which database a file is: its mark and its schema.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// `PRAGMA application_id`: a file with another one is not touched.
    pub application_id: i32,
    /// The migrations, in order.
    pub migrations: &'static [Migration],
}

/// Opens the one connection that writes, and brings the schema up to date.
///
/// # Errors
/// See [`StoreError`]; [`StoreError::Foreign`], [`StoreError::Unreleased`] and [`StoreError::Newer`] before the file is changed.
pub fn open_writer(path: &Path, kind: Kind, options: &EngineOptions) -> Result<Connection, StoreError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if options.vfs.is_none() {
        make_private(path);
    }
    let mut conn = open(path, flags, options)?;
    let found: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if found != kind.application_id {
        claim(&conn, path, kind, found)?;
    }
    conn.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0))?;
    conn.pragma_update(None, "synchronous", "full")?;
    // Checkpoints are made by the writer thread, between commits.
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update_and_check(None, "journal_size_limit", integer(options.wal_bytes), |row| {
        row.get::<_, i64>(0)
    })?;
    set_max_bytes(&conn, options.max_file_bytes())?;
    migrate(&mut conn, path, kind.migrations)?;
    // A page written to the log before its transaction is complete is written twice: a transaction, which
    // the bounded queue keeps small, stays in memory. A migration may rewrite the whole file, and does not.
    conn.pragma_update(None, "cache_spill", false)?;
    Ok(conn)
}

/// Makes the file so that only its owner reads it: Secrets are in it. SQLite gives the log the same mode.
fn make_private(path: &Path) {
    // Where it cannot be made SQLite says why; where it exists its mode is somebody's decision.
    let _ = durable::create(path);
}

/// Opens a connection that only reads.
///
/// # Errors
/// See [`StoreError`].
pub fn open_reader(path: &Path, options: &EngineOptions) -> Result<Connection, StoreError> {
    // Not opened read-only: a reader of a write-ahead log writes into the shared index of it.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = open(path, flags, options)?;
    conn.pragma_update(None, "query_only", true)?;
    // The log is the writer's to tidy up, also if a reader is the last to go.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    Ok(conn)
}

/// Opens a file that nobody writes and that has no log, without making or locking any file beside it.
///
/// # Errors
/// See [`StoreError`].
pub(crate) fn open_unchanging(path: &Path) -> Result<Connection, StoreError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let address = PathBuf::from(format!("{}?immutable=1", file_address(&std::path::absolute(path)?)));
    open(&address, flags, &EngineOptions::default())
}

/// A path as SQLite reads addresses: bytes that mean something in them are written in hexadecimal.
fn file_address(path: &Path) -> String {
    use std::fmt::Write as _;
    use std::os::unix::ffi::OsStrExt as _;
    let mut out = String::from("file://");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                out.push(char::from(*byte));
            }
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

fn open(path: &Path, flags: OpenFlags, options: &EngineOptions) -> Result<Connection, StoreError> {
    let conn = match &options.vfs {
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs.as_str())?,
        None => Connection::open_with_flags(path, flags)?,
    };
    conn.busy_timeout(options.busy_timeout)?;
    conn.set_prepared_statement_cache_capacity(48);
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    // Must come before the first page is written; without effect on an existing file.
    conn.pragma_update(None, "page_size", integer(PAGE_BYTES))?;
    conn.pragma_update_and_check(None, "mmap_size", 0, |_| Ok(()))?;
    conn.pragma_update(None, "temp_store", "memory")?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "cache_size", -i64::from(options.cache_kib))?;
    Ok(conn)
}

/// Marks an empty file as ours; a file with other content is left alone.
fn claim(conn: &Connection, path: &Path, kind: Kind, found: i32) -> Result<(), StoreError> {
    let mismatch = mark::mismatch(path, kind.application_id, found);
    if matches!(mismatch, StoreError::Unreleased { .. }) {
        return Err(mismatch);
    }
    if made_with(conn, kind.migrations)? {
        return Err(StoreError::corrupt(format!("application id {found:#x} is not the one written")));
    }
    let tables: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if found != 0 || tables != 0 {
        return Err(mismatch);
    }
    conn.pragma_update(None, "application_id", kind.application_id)?;
    Ok(())
}

/// Limits the size of the database without its log; SQLite never cuts below what is in use.
///
/// # Errors
/// See [`StoreError`].
pub fn set_max_bytes(conn: &Connection, max_bytes: Option<u64>) -> Result<(), StoreError> {
    // SQLite's own maximum of pages, also the value that means "no limit".
    let pages = max_bytes.map_or(0xffff_fffe, |bytes| (bytes / PAGE_BYTES).max(1));
    conn.pragma_update_and_check(None, "max_page_count", integer(pages), |_| Ok(()))?;
    Ok(())
}

/// How far a checkpoint goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// Copies nothing, only tells the state.
    Look,
    /// Copies what no reader needs, waits for nobody.
    Passive,
    /// Waits for readers, copies everything and cuts the log to zero.
    Truncate,
}

/// The write-ahead log, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalState {
    /// Pages in the log.
    pub pages: u64,
    /// Pages of it that are in the database too.
    pub copied: u64,
}

/// Runs a checkpoint.
///
/// # Errors
/// See [`StoreError`]. Nothing is lost by a failed checkpoint: the log keeps what it has.
pub fn checkpoint(conn: &Connection, how: Checkpoint) -> Result<WalState, StoreError> {
    let sql = match how {
        Checkpoint::Look => "PRAGMA wal_checkpoint(NOOP)",
        Checkpoint::Passive => "PRAGMA wal_checkpoint(PASSIVE)",
        Checkpoint::Truncate => "PRAGMA wal_checkpoint(TRUNCATE)",
    };
    let (pages, copied): (i64, i64) =
        conn.prepare_cached(sql)?.query_row([], |row| Ok((row.get(1)?, row.get(2)?)))?;
    // -1 if the log could not be looked at.
    Ok(WalState { pages: u64::try_from(pages).unwrap_or(0), copied: u64::try_from(copied).unwrap_or(0) })
}

/// Copies the log and cuts it to zero, if those who read let go of it within some time. Tells whether they did.
///
/// # Errors
/// See [`StoreError`].
pub(crate) fn truncate_within(conn: &Connection, patience: Duration) -> Result<bool, StoreError> {
    let before: u64 = conn.pragma_query_value(None, "busy_timeout", |row| row.get(0))?;
    conn.busy_timeout(patience)?;
    let state = checkpoint(conn, Checkpoint::Truncate);
    conn.busy_timeout(Duration::from_millis(before))?;
    Ok(state?.pages == 0)
}

/// The write-ahead log of a database file.
#[must_use]
pub fn wal_path(path: &Path) -> PathBuf {
    with_suffix(path, "-wal")
}

/// A count as SQLite stores it: signed. Revisions and sizes never come near the limit.
#[must_use]
pub fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Whether a process has the database open as its own.
///
/// # Errors
/// The lock cannot be looked at.
pub fn is_in_use(path: &Path) -> Result<bool, StoreError> {
    // Opened for reading, so that nothing is made; the shared lock is let go of at once.
    let file = match File::open(with_suffix(path, ".lock")) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Opens a database in the way that leaves the least behind: without a log and a user nothing is made at all.
///
/// # Errors
/// The system's and the database's.
pub fn open_as_it_is(path: &Path) -> Result<Connection, StoreError> {
    std::fs::metadata(path)?;
    if is_in_use(path)? || wal_path(path).exists() {
        return open_reader(path, &EngineOptions::default());
    }
    open_unchanging(path)
}

/// Copies a database as of one moment into a new file for its owner only, flushes the copy, and has it looked through. A file
/// that exists is not touched; what was written of a copy is removed if anything fails.
///
/// # Errors
/// The system's and the database's; those of `inspect`.
pub fn copy<T, E: From<StoreError>>(
    source: &Connection,
    to: &Path,
    inspect: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    let file = durable::create(to).map_err(StoreError::from)?;
    let copied = copy_pages(source, to, &file).map_err(E::from).and_then(|()| inspect(to));
    if copied.is_err() {
        // The failure of the copy counts.
        let _ = remove(to);
    }
    copied
}

fn copy_pages(source: &Connection, to: &Path, file: &File) -> Result<(), StoreError> {
    let mut copy =
        Connection::open_with_flags(to, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    copy.pragma_update_and_check(None, "journal_mode", "off", |_| Ok(()))?;
    copy.pragma_update(None, "synchronous", "off")?;
    // All pages in one step: a step is one snapshot, and holds up nobody who writes.
    Backup::new(source, &mut copy)?.run_to_completion(i32::MAX, Duration::from_millis(50), None)?;
    copy.close().map_err(|(_, error)| error)?;
    file.sync_all()?;
    durable::sync_directory(to)?;
    Ok(())
}

/// Removes a database and what belongs to it, as far as it is there.
pub fn remove(path: &Path) -> Result<(), StoreError> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        durable::remove(&with_suffix(path, suffix))?;
    }
    Ok(())
}

/// Puts a fresh database, complete and closed, in the place of another one, which gets the name `aside`, with its log. Whether
/// there was another one.
///
/// A crash at any point leaves either of them in place, each without the other's log: a log replayed into another database would
/// ruin it.
///
/// # Errors
/// The system's.
pub fn replace(fresh: &Path, path: &Path, aside: &Path) -> Result<bool, StoreError> {
    let missing_is_fine = |result: io::Result<()>| match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    };
    File::open(fresh)?.sync_all()?;
    let existed = match fs::hard_link(path, aside) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        // A file system without links.
        Err(_) => fs::rename(path, aside).map(|()| true)?,
    };
    missing_is_fine(fs::rename(wal_path(path), wal_path(aside)))?;
    missing_is_fine(fs::remove_file(with_suffix(path, "-shm")))?;
    durable::sync_directory(path)?;
    durable::rename(fresh, path)?;
    Ok(existed)
}

/// Takes the lock that keeps other processes out of a database for as long as the file lives, or until the process ends.
/// The database's own locks would not: they are held only during a transaction.
///
/// # Errors
/// [`StoreError::InUse`], or the system's.
pub fn lock(path: &Path) -> Result<File, StoreError> {
    let file = File::options().create(true).truncate(false).write(true).open(with_suffix(path, ".lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { application_id: 77, migrations: &[] };

    fn pragma(conn: &Connection, name: &str) -> String {
        conn.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0))
            .map(|value| format!("{value:?}"))
            .unwrap()
    }

    #[test]
    fn a_writer_is_opened_with_everything_durability_needs() {
        let dir = tempfile::tempdir().unwrap();
        let conn = open_writer(&dir.path().join("x.db"), KIND, &EngineOptions::default()).unwrap();
        assert_eq!(pragma(&conn, "journal_mode"), "Text(\"wal\")");
        assert_eq!(pragma(&conn, "synchronous"), "Integer(2)");
        assert_eq!(pragma(&conn, "mmap_size"), "Integer(0)");
        assert_eq!(pragma(&conn, "wal_autocheckpoint"), "Integer(0)");
        assert_eq!(pragma(&conn, "page_size"), "Integer(4096)");
        assert_eq!(pragma(&conn, "cache_size"), "Integer(-512)");
        assert_eq!(pragma(&conn, "application_id"), "Integer(77)");
    }

    #[test]
    fn a_second_lock_says_that_the_database_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        let first = lock(&path).unwrap();
        assert!(matches!(lock(&path), Err(StoreError::InUse { .. })));
        drop(first);
        lock(&path).unwrap();
    }

    #[test]
    fn a_reader_cannot_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        let options = EngineOptions::default();
        let _writer = open_writer(&path, KIND, &options).unwrap();
        let reader = open_reader(&path, &options).unwrap();
        assert!(reader.execute_batch("CREATE TABLE t (x)").is_err());
    }

    #[test]
    fn a_closed_database_is_read_without_a_file_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ä ?#%.db");
        drop(open_writer(&path, KIND, &EngineOptions::default()).unwrap());
        let conn = open_unchanging(&path).unwrap();
        assert_eq!(pragma(&conn, "application_id"), "Integer(77)");
        assert!(conn.execute_batch("CREATE TABLE t (x)").is_err());
        drop(conn);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_database_of_another_program_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
        let before = std::fs::read(&path).unwrap();
        let error = open_writer(&path, KIND, &EngineOptions::default()).unwrap_err();
        assert!(matches!(error, StoreError::Foreign { found: 0, .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}
