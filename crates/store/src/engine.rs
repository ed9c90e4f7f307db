//! SQLite connections, with every setting that durability, memory and flash wear depend on.

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

/// The size of a database page in bytes: the unit that flash and file systems write at once.
pub const PAGE_BYTES: u64 = 4096;

/// The options of a database connection.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The page cache of each connection in KiB.
    pub cache_kib: u32,
    /// The size of the write-ahead log that triggers a checkpoint, in bytes. A larger log wears the
    /// flash less (a page that changed often is copied once) and takes longer to read after a
    /// crash.
    pub wal_bytes: u64,
    /// The largest size of the database with its log in bytes; `None` means the disk's limit.
    pub max_bytes: Option<u64>,
    /// The timeout for a lock that another connection holds.
    pub busy_timeout: Duration,
    /// The SQLite VFS, registered by the program; `None` means the default one. Tests use a VFS
    /// that loses power.
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

/// The multiple of the checkpoint size at which the write-ahead log is restarted despite readers.
pub const LOG_FACTOR: u64 = 4;
/// The largest log in the same unit, plus one transaction.
const LOG_SHARE: u64 = LOG_FACTOR + 1;

impl EngineOptions {
    /// Returns the options with a log of at most a quarter of the largest size.
    #[must_use]
    pub fn with_room_for_log(mut self) -> Self {
        let longest = self.max_bytes.map_or(u64::MAX, |bytes| bytes / 4 / LOG_SHARE);
        self.wal_bytes = self.wal_bytes.min(longest);
        self
    }

    /// Returns the largest size of the database without its log in bytes.
    #[must_use]
    pub fn max_file_bytes(&self) -> Option<u64> {
        self.max_bytes.map(|bytes| bytes.saturating_sub(self.wal_bytes.saturating_mul(LOG_SHARE)))
    }
}

/// The identity of a database: its mark and its schema.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// `PRAGMA application_id`: a file with another one is not touched.
    pub application_id: i32,
    /// The migrations, in order.
    pub migrations: &'static [Migration],
}

/// Opens the one write connection and migrates the schema.
///
/// # Errors
/// See [`StoreError`]. [`StoreError::Foreign`], [`StoreError::Unreleased`] and
/// [`StoreError::Newer`] are returned before the file is changed.
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
    // The writer thread runs checkpoints between commits.
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update_and_check(None, "journal_size_limit", integer(options.wal_bytes), |row| {
        row.get::<_, i64>(0)
    })?;
    set_max_bytes(&conn, options.max_file_bytes())?;
    migrate(&mut conn, path, kind.migrations)?;
    // A page spilled to the log before its commit is written twice. A transaction stays in memory,
    // because the bounded queue keeps it small. A migration may rewrite the whole file, so it runs
    // before this.
    conn.pragma_update(None, "cache_spill", false)?;
    Ok(conn)
}

/// Creates the file readable by its owner only, because it contains Secrets. SQLite gives the log
/// the same mode.
fn make_private(path: &Path) {
    // SQLite reports why the file cannot be created. The mode of an existing file is left to the
    // operator.
    let _ = durable::create(path);
}

/// Opens a connection that only reads.
///
/// # Errors
/// See [`StoreError`].
pub fn open_reader(path: &Path, options: &EngineOptions) -> Result<Connection, StoreError> {
    // Not opened read-only: a reader of a write-ahead log writes into its shared index.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = open(path, flags, options)?;
    conn.pragma_update(None, "query_only", true)?;
    // Only the writer checkpoints the log, even if a reader closes last.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    Ok(conn)
}

/// Opens a file without a log and without writers, without creating or locking any file beside it.
///
/// # Errors
/// See [`StoreError`].
pub(crate) fn open_unchanging(path: &Path) -> Result<Connection, StoreError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let address = PathBuf::from(format!("{}?immutable=1", file_address(&std::path::absolute(path)?)));
    open(&address, flags, &EngineOptions::default())
}

/// Encodes a path as a SQLite URI.
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
    // Must precede the first page; has no effect on an existing file.
    conn.pragma_update(None, "page_size", integer(PAGE_BYTES))?;
    conn.pragma_update_and_check(None, "mmap_size", 0, |_| Ok(()))?;
    conn.pragma_update(None, "temp_store", "memory")?;
    conn.pragma_update(None, "foreign_keys", true)?;
    set_cache_kib(&conn, options.cache_kib)?;
    Ok(conn)
}

/// Sets the page cache of a connection. Pages beyond it are freed.
///
/// # Errors
/// See [`StoreError`].
pub fn set_cache_kib(conn: &Connection, cache_kib: u32) -> Result<(), StoreError> {
    // Negative numbers are KiB, positive ones pages.
    Ok(conn.pragma_update(None, "cache_size", -i64::from(cache_kib))?)
}

/// Marks an empty file as ours; a file with other content is not touched.
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

/// Limits the size of the database without its log. SQLite never cuts below the pages in use.
///
/// # Errors
/// See [`StoreError`].
pub fn set_max_bytes(conn: &Connection, max_bytes: Option<u64>) -> Result<(), StoreError> {
    // SQLite's own maximum of pages, which also means "no limit".
    let pages = max_bytes.map_or(0xffff_fffe, |bytes| (bytes / PAGE_BYTES).max(1));
    conn.pragma_update_and_check(None, "max_page_count", integer(pages), |_| Ok(()))?;
    Ok(())
}

/// The mode of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// Copies nothing and only reports the state.
    Look,
    /// Copies the pages that no reader needs, without waiting.
    Passive,
    /// Waits for readers, copies everything and truncates the log.
    Truncate,
}

/// The size of the write-ahead log in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalState {
    /// The pages in the log.
    pub pages: u64,
    /// The pages of the log that are in the database too.
    pub copied: u64,
}

/// Runs a checkpoint.
///
/// # Errors
/// See [`StoreError`]. A failed checkpoint loses nothing: the log keeps its pages.
pub fn checkpoint(conn: &Connection, how: Checkpoint) -> Result<WalState, StoreError> {
    let sql = match how {
        Checkpoint::Look => "PRAGMA wal_checkpoint(NOOP)",
        Checkpoint::Passive => "PRAGMA wal_checkpoint(PASSIVE)",
        Checkpoint::Truncate => "PRAGMA wal_checkpoint(TRUNCATE)",
    };
    let (pages, copied): (i64, i64) =
        conn.prepare_cached(sql)?.query_row([], |row| Ok((row.get(1)?, row.get(2)?)))?;
    // The value is -1 if the log could not be read.
    Ok(WalState { pages: u64::try_from(pages).unwrap_or(0), copied: u64::try_from(copied).unwrap_or(0) })
}

/// Copies and truncates the log if its readers release it within `patience`. Returns whether it is
/// empty.
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

/// Returns the path of a database's write-ahead log.
#[must_use]
pub fn wal_path(path: &Path) -> PathBuf {
    with_suffix(path, "-wal")
}

/// Returns a count as the signed integer that SQLite stores. Revisions and sizes never reach the
/// limit.
#[must_use]
pub fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Returns whether another process holds the lock of the database.
///
/// # Errors
/// The lock cannot be checked.
pub fn is_in_use(path: &Path) -> Result<bool, StoreError> {
    // Opening for reading creates no file; the shared lock is released at once.
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

/// Opens a database for inspection with the least side effects: without a log and a user no file is
/// created.
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

/// Copies a consistent snapshot of a database into a new file readable by its owner only, flushes
/// the copy and passes it to `inspect`.
///
/// An existing file is not touched. A partial copy is removed on failure.
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
        // The failure of the copy matters more.
        let _ = remove(to);
    }
    copied
}

fn copy_pages(source: &Connection, to: &Path, file: &File) -> Result<(), StoreError> {
    let mut copy =
        Connection::open_with_flags(to, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    copy.pragma_update_and_check(None, "journal_mode", "off", |_| Ok(()))?;
    copy.pragma_update(None, "synchronous", "off")?;
    // All pages in one step: one step is one snapshot and blocks no writer.
    Backup::new(source, &mut copy)?.run_to_completion(i32::MAX, Duration::from_millis(50), None)?;
    copy.close().map_err(|(_, error)| error)?;
    file.sync_all()?;
    durable::sync_directory(to)?;
    Ok(())
}

/// Removes a database with its log and index files, if they exist.
pub fn remove(path: &Path) -> Result<(), StoreError> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        durable::remove(&with_suffix(path, suffix))?;
    }
    Ok(())
}

/// Replaces a database by a fresh one, complete and closed. The old one is renamed to `aside` with
/// its log. Returns whether there was an old one.
///
/// Invariant: a crash at any point leaves one of both in place without the other's log, because a
/// log replayed into another database would corrupt it.
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
        // The file system has no hard links.
        Err(_) => fs::rename(path, aside).map(|()| true)?,
    };
    missing_is_fine(fs::rename(wal_path(path), wal_path(aside)))?;
    missing_is_fine(fs::remove_file(with_suffix(path, "-shm")))?;
    durable::sync_directory(path)?;
    durable::rename(fresh, path)?;
    Ok(existed)
}

/// Locks a database against other processes until the file is dropped or the process ends. SQLite's
/// own locks do not: they are held only during a transaction.
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
