//! The database file of the write connection: its options, its lock, and whether it still has its
//! path.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use edgesync_store::StoreError;
use edgesync_store::engine::{EngineOptions, WalState};
use edgesync_store::wal::{self, LogId};

use crate::store::files::Identity;

/// Interval of the checks whether the file still has its path.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The open database file.
#[derive(Debug)]
pub(super) struct DatabaseFile {
    pub(super) path: PathBuf,
    pub(super) engine: EngineOptions,
    identity: Identity,
    checked_at: Instant,
    /// Whether the file had lost its path at the last check and could not be replaced.
    misplaced: bool,
    /// The log that was copied into the database completely: the next write may restart it.
    copied_log: Option<LogId>,
    /// The log of the running group of writes, once a job has asked for it.
    group_log: Option<Option<LogId>>,
    /// Excludes other processes; released after the connection.
    _lock: File,
}

impl DatabaseFile {
    /// Reads the identity of the file that was opened at this path under this lock.
    pub(super) fn new(path: &Path, engine: EngineOptions, lock: File) -> Result<Self, StoreError> {
        Ok(Self {
            path: path.to_owned(),
            engine,
            identity: Identity::of(path)?,
            checked_at: Instant::now(),
            misplaced: false,
            copied_log: None,
            group_log: None,
            _lock: lock,
        })
    }

    /// Accepts the file that is now at the path: the connection was reopened.
    pub(super) fn reopened(&mut self) -> Result<(), StoreError> {
        self.identity = Identity::of(&self.path)?;
        Ok(())
    }

    /// Returns the log that the next write appends to; `None` without a log, or if the write may
    /// restart it.
    pub(super) fn log(&self) -> Option<LogId> {
        // An unreadable log only costs a page of the journal.
        wal::log_id(&self.path).ok().flatten().filter(|log| self.copied_log != Some(*log))
    }

    /// Starts a group of writes.
    pub(super) fn begin_group(&mut self) {
        self.group_log = None;
    }

    /// As [`Self::log`], within the transaction of a group. It is read once: until the commit,
    /// no other writer can restart the log.
    pub(super) fn group_log(&mut self) -> Option<LogId> {
        let log = self.group_log.unwrap_or_else(|| self.log());
        self.group_log = Some(log);
        log
    }

    /// Records the result of a checkpoint.
    pub(super) fn checkpointed(&mut self, state: WalState) {
        let is_copied = state.pages == state.copied;
        self.copied_log = wal::log_id(&self.path).ok().flatten().filter(|_| is_copied);
    }

    /// Returns whether the path has to be checked before the next group of writes. A file known to
    /// be gone must not accept writes that would be reported as held.
    pub(super) fn is_check_due(&self) -> bool {
        self.misplaced || self.checked_at.elapsed() >= CHECK_INTERVAL
    }

    /// Returns how the file at the path differs from the open one; `None` if it is in place. A path
    /// that cannot be read proves nothing about the file.
    pub(super) fn check(&mut self) -> Option<&'static str> {
        self.checked_at = Instant::now();
        self.identity.compare(Identity::of(&self.path).ok()?)
    }

    /// Records whether the file has its path after a check. Returns whether it has it back.
    pub(super) fn set_in_place(&mut self, in_place: bool) -> bool {
        std::mem::replace(&mut self.misplaced, !in_place) && in_place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_store::engine::wal_path;

    #[test]
    fn the_log_is_read_once_for_a_group_of_writes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("edgesync.db");
        std::fs::write(&path, "a").unwrap();
        let begin_log = |salts: i64| {
            let mut header = [0; 32];
            header[8..12].copy_from_slice(&4096_u32.to_be_bytes());
            header[16..24].copy_from_slice(&salts.to_be_bytes());
            std::fs::write(wal_path(&path), header).unwrap();
        };
        let lock = File::open(&path).unwrap();
        let mut file = DatabaseFile::new(&path, EngineOptions::default(), lock).unwrap();
        file.begin_group();
        assert_eq!(file.group_log(), None);
        begin_log(1);
        assert_eq!((file.group_log(), file.log()), (None, Some(LogId::from_number(1))));
        file.begin_group();
        assert_eq!(file.group_log(), Some(LogId::from_number(1)));
        begin_log(2);
        assert_eq!(file.group_log(), Some(LogId::from_number(1)));
        file.begin_group();
        assert_eq!(file.group_log(), Some(LogId::from_number(2)));
    }

    #[test]
    fn a_replaced_file_is_found_and_checked_until_it_is_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("edgesync.db");
        std::fs::write(&path, "a").unwrap();
        let lock = File::open(&path).unwrap();
        let mut file = DatabaseFile::new(&path, EngineOptions::default(), lock).unwrap();
        assert_eq!((file.check(), file.is_check_due()), (None, false));

        std::fs::rename(&path, directory.path().join("aside")).unwrap();
        assert_eq!(file.check(), Some("database file deleted"));
        assert!(!file.set_in_place(false));
        assert!(file.is_check_due(), "before each group of writes");
        std::fs::write(&path, "b").unwrap();
        assert_eq!(file.check(), Some("database file replaced"));

        file.reopened().unwrap();
        assert_eq!(file.check(), None);
        assert!(file.set_in_place(true) && !file.set_in_place(true));
        assert!(!file.is_check_due());
    }
}
