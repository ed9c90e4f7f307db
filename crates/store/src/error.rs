//! The errors of a database, classified by the caller's options.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::ErrorCode;

use super::durable::FileError;
use super::mark;
use super::seal::SealError;

/// The underlying error, shared: one failed commit answers every job of its group.
pub type Cause = Arc<dyn Error + Send + Sync>;

/// A failure of the store.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The database or its disk is full. Reads continue, and so do smaller writes.
    #[error("database or its disk full")]
    Full(#[source] Cause),
    /// Reading or writing fails temporarily: an I/O error or a read-only file.
    #[error("database unavailable")]
    Unavailable(#[source] Cause),
    /// The content of the file is damaged, or the file was removed.
    #[error("database damaged")]
    Corrupt(#[source] Cause),
    /// The file was written by a newer program.
    #[error(
        "database '{}' has schema version {found}, this program supports versions up to {known}",
        path.display()
    )]
    Newer {
        /// The path of the database file.
        path: PathBuf,
        /// The schema version in the file.
        found: u32,
        /// The newest schema version of this program.
        known: u32,
    },
    /// The file is the database of another program.
    #[error("'{}' is {}", path.display(), mark::describe(*found))]
    Foreign {
        /// The path of the database file.
        path: PathBuf,
        /// The application id in the file.
        found: i32,
    },
    /// The file was written by a program from before the first release.
    #[error("database '{}' has a format from before the first release of edgesync, which no version reads", path.display())]
    Unreleased {
        /// The path of the database file.
        path: PathBuf,
    },
    /// An applied migration of the file differs from the program's one of the same number.
    #[error("database '{}': migration {version} differs from that of this program", path.display())]
    MigrationChanged {
        /// The path of the database file.
        path: PathBuf,
        /// The number of the migration.
        version: u32,
    },
    /// Another process has the database open.
    #[error("database '{}' is in use by another process", path.display())]
    InUse {
        /// The path of the database file.
        path: PathBuf,
    },
    /// The journal of changes does not reach back that far.
    #[error("changes after revision {after} compacted, the journal starts after revision {oldest}")]
    Compacted {
        /// The revision that the request named.
        after: u64,
        /// The oldest available revision.
        oldest: u64,
    },
    /// The limit of open snapshots is reached.
    #[error("too many open snapshots, at most {limit}")]
    TooManySnapshots {
        /// The largest number of open snapshots.
        limit: usize,
    },
    /// The snapshot was ended so that the write-ahead log could restart.
    #[error("snapshot closed, write-ahead log too large")]
    GivenUp,
    /// The database file was replaced during a long read.
    #[error("database file replaced during the read")]
    Replaced,
    /// The store has been closed.
    #[error("store closed")]
    Closed,
    /// A bug or a limit of the program, independent of the file.
    #[error("store failed")]
    Internal(#[source] Cause),
}

impl StoreError {
    /// Returns the error for damage that this program, not SQLite, has found.
    #[must_use]
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::Corrupt(text(message))
    }

    /// Returns the error for a failure that only a text describes.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::Internal(text(message))
    }

    /// Returns whether the failure concerns the whole database, so that its transaction has to roll
    /// back; all others concern one job.
    #[must_use]
    pub fn ends_transaction(&self) -> bool {
        matches!(self, Self::Full(_) | Self::Unavailable(_) | Self::Corrupt(_))
    }
}

fn text(message: impl Into<String>) -> Cause {
    Arc::from(Box::<dyn Error + Send + Sync>::from(message.into()))
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        let class = match &error {
            rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
                // Closing the store interrupts running reads.
                ErrorCode::OperationInterrupted => return Self::Closed,
                ErrorCode::DiskFull => Self::Full,
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Self::Corrupt,
                ErrorCode::SystemIoFailure
                    if failure.extended_code == rusqlite::ffi::SQLITE_IOERR_CORRUPTFS =>
                {
                    Self::Corrupt
                }
                ErrorCode::SystemIoFailure
                | ErrorCode::ReadOnly
                | ErrorCode::CannotOpen
                | ErrorCode::PermissionDenied
                | ErrorCode::DatabaseBusy
                | ErrorCode::OutOfMemory
                | ErrorCode::FileLockingProtocolFailed => Self::Unavailable,
                _ => Self::Internal,
            },
            // A column without the type of its STRICT table: the page was altered.
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::Utf8Error(..)
            | rusqlite::Error::InvalidColumnType(..) => Self::Corrupt,
            _ => Self::Internal,
        };
        match error {
            // The cause would repeat the same text with a meaningless number.
            rusqlite::Error::SqliteFailure(failure, Some(words))
                if failure.extended_code < 256 || failure.code == ErrorCode::CannotOpen =>
            {
                class(text(words))
            }
            error => class(Arc::new(error)),
        }
    }
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        of_kind(error.kind())(Arc::new(error))
    }
}

impl From<FileError> for StoreError {
    fn from(error: FileError) -> Self {
        of_kind(error.cause.kind())(Arc::new(error))
    }
}

fn of_kind(kind: io::ErrorKind) -> fn(Cause) -> StoreError {
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full,
        _ => StoreError::Unavailable,
    }
}

impl From<SealError> for StoreError {
    fn from(error: SealError) -> Self {
        match error {
            SealError::Io(error) => error.into(),
            SealError::NoCredential { .. } | SealError::NoRandomness => Self::Unavailable(Arc::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classify(code: i32) -> StoreError {
        rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None).into()
    }

    #[test]
    fn codes_are_classified_by_the_callers_options() {
        use rusqlite::ffi;
        assert!(matches!(classify(ffi::SQLITE_FULL), StoreError::Full(_)));
        assert!(matches!(classify(ffi::SQLITE_IOERR_WRITE), StoreError::Unavailable(_)));
        assert!(matches!(classify(ffi::SQLITE_READONLY), StoreError::Unavailable(_)));
        assert!(matches!(classify(ffi::SQLITE_CORRUPT), StoreError::Corrupt(_)));
        assert!(matches!(classify(ffi::SQLITE_CORRUPT_INDEX), StoreError::Corrupt(_)));
        assert!(matches!(classify(ffi::SQLITE_IOERR_CORRUPTFS), StoreError::Corrupt(_)));
        assert!(matches!(classify(ffi::SQLITE_NOTADB), StoreError::Corrupt(_)));
        assert!(matches!(classify(ffi::SQLITE_CONSTRAINT_UNIQUE), StoreError::Internal(_)));
    }

    #[test]
    fn a_full_disk_below_the_database_is_full_too() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        assert!(matches!(StoreError::from(full()), StoreError::Full(_)));
        let beside = FileError::tried("write", "keys".as_ref())(full());
        assert!(matches!(StoreError::from(beside), StoreError::Full(_)));
    }

    #[test]
    fn an_unopenable_file_is_named_once_without_library_text() {
        let directory = tempfile::tempdir().unwrap();
        let error = rusqlite::Connection::open(directory.path()).unwrap_err();
        let error = StoreError::from(error);
        assert_eq!(error.to_string(), "database unavailable");
        let cause = error.source().unwrap();
        assert!(cause.to_string().starts_with("unable to open database file: "), "{cause}");
        assert!(cause.source().is_none(), "{cause:?}");
        let file = directory.path().join("text");
        std::fs::write(&file, "no database, but a text that is long enough to look like one. ".repeat(9))
            .unwrap();
        let read = rusqlite::Connection::open(&file).unwrap().execute_batch("SELECT * FROM sqlite_schema");
        let damaged = StoreError::from(read.unwrap_err());
        let cause = damaged.source().unwrap();
        assert!(matches!(damaged, StoreError::Corrupt(_)) && cause.source().is_none(), "{damaged:?}");
    }
}
