//! The files around the database: the lock, copies set aside, and the check whether the open file
//! still has its path.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use edgesync_store::StoreError;
use edgesync_store::durable::with_suffix;
pub(super) use edgesync_store::engine::remove;
use edgesync_store::engine::{self, wal_path};

/// Files of each sort that are kept aside.
const KEPT_ASIDE: usize = 2;

/// Reason why a file is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aside {
    /// Damaged; kept for inspection.
    Corrupt,
    /// Written by a newer program.
    Newer,
}

impl Aside {
    const ALL: [Self; 2] = [Self::Corrupt, Self::Newer];

    /// Returns the suffix of the database's name, which precedes the time.
    fn suffix(self) -> &'static str {
        match self {
            Self::Corrupt => ".corrupt-",
            Self::Newer => ".newer-",
        }
    }
}

/// The inodes at the paths of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    database: Option<(u64, u64)>,
    wal: Option<(u64, u64)>,
}

impl Identity {
    /// Reads the inodes. A path that cannot be read is an error unless the file is missing: it
    /// proves nothing.
    pub(super) fn of(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { database: inode(path)?, wal: inode(&wal_path(path))? })
    }

    /// Returns how the files differ from those that were open as `self`; `None` if they are in
    /// place.
    pub(super) fn compare(self, now: Self) -> Option<&'static str> {
        match (self.database == now.database, self.wal == now.wal) {
            (true, true) => None,
            (false, _) if now.database.is_none() => Some("database file deleted"),
            (false, _) => Some("database file replaced"),
            (true, false) if now.wal.is_none() => Some("write-ahead log deleted"),
            (true, false) => Some("write-ahead log replaced"),
        }
    }
}

fn inode(path: &Path) -> Result<Option<(u64, u64)>, StoreError> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some((metadata.dev(), metadata.ino()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the path of a new file before it replaces a damaged one.
pub(super) fn fresh_path(path: &Path) -> PathBuf {
    with_suffix(path, ".fresh")
}

/// Returns the path of a damaged file's repaired copy.
pub(super) fn mended_path(path: &Path) -> PathBuf {
    with_suffix(path, ".mended")
}

/// Replaces the database by the fresh file, which is complete and closed, and sets the old one
/// aside. Returns its new path; `None` if there was no old file.
pub(super) fn replace(path: &Path, why: Aside) -> Result<Option<PathBuf>, StoreError> {
    let aside = free_name(path, why);
    let existed = engine::replace(&fresh_path(path), path, &aside)?;
    prune(path, why, KEPT_ASIDE - 1, Some(&aside));
    Ok(existed.then_some(aside))
}

/// Returns an unused name: `<name>.corrupt-20261121T040000.123456Z`.
fn free_name(path: &Path, why: Aside) -> PathBuf {
    let time = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S.%6fZ").to_string();
    let name = with_suffix(path, &format!("{}{time}", why.suffix()));
    // A clock that stops or is set back must not cost a file.
    let numbered = (2u32..).map(|number| with_suffix(&name, &format!("-{number}")));
    let free = |candidate: &PathBuf| !candidate.exists() && !wal_path(candidate).exists();
    std::iter::once(name.clone()).chain(numbered).take(1000).find(free).unwrap_or(name)
}

/// Removes all files that were set aside.
pub(super) fn remove_all_aside(path: &Path) {
    Aside::ALL.into_iter().for_each(|why| prune(path, why, 0, None));
}

/// Removes the oldest files of a sort that were set aside, except `keep` of them and `newest`.
pub(super) fn prune(path: &Path, why: Aside, keep: usize, newest: Option<&Path>) {
    let mut aside = set_aside(path, why);
    aside.retain(|file| Some(file.as_path()) != newest);
    let surplus = aside.len().saturating_sub(keep);
    for old in aside.drain(..surplus) {
        if let Err(error) = remove(&old) {
            tracing::warn!(file = %old.display(), %error, "database set aside earlier not removed");
        }
    }
}

/// Returns the files of a sort that were set aside, oldest first.
pub(super) fn set_aside(path: &Path, why: Aside) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return Vec::new() };
    let prefix = format!("{}{}", name.to_string_lossy(), why.suffix());
    let is_aside = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&prefix) && !name.ends_with("-wal") && !name.ends_with("-shm")
    };
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .map(|entries| entries.flatten().map(|entry| entry.path()).filter(is_aside).collect())
        .unwrap_or_default();
    files.sort();
    files
}

/// Closes the connection to a file that has lost its path: without a checkpoint, which would be
/// useless, and without removing a log, whose path may belong to another database by now.
pub(super) fn close_detached(conn: Connection) {
    // Supported versions never fail here; SQLite also detects that the file has moved.
    let _ = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    drop(conn);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_damaged_files_are_kept_with_their_logs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        for round in 0..4 {
            fs::write(&path, format!("old {round}")).unwrap();
            fs::write(wal_path(&path), format!("log {round}")).unwrap();
            fs::write(fresh_path(&path), "new").unwrap();
            replace(&path, Aside::Corrupt).unwrap().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            assert!(!wal_path(&path).exists());
        }
        let kept = set_aside(&path, Aside::Corrupt);
        let texts: Vec<String> = kept.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        assert_eq!(texts, ["old 2", "old 3"]);
        assert_eq!(fs::read_to_string(wal_path(&kept[0])).unwrap(), "log 2");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5);
        // Files of another sort do not evict them.
        fs::write(fresh_path(&path), "newest").unwrap();
        replace(&path, Aside::Newer).unwrap().unwrap();
        assert_eq!((set_aside(&path, Aside::Corrupt), set_aside(&path, Aside::Newer).len()), (kept, 1));
        remove_all_aside(&path);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_file_is_distinguished_from_a_replaced_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        fs::write(&path, "a").unwrap();
        fs::write(wal_path(&path), "w").unwrap();
        let before = Identity::of(&path).unwrap();
        assert_eq!(before.compare(Identity::of(&path).unwrap()), None);
        fs::remove_file(wal_path(&path)).unwrap();
        assert_eq!(before.compare(Identity::of(&path).unwrap()), Some("write-ahead log deleted"));
        // The old file keeps its inode until the new one exists.
        fs::write(fresh_path(&path), "b").unwrap();
        fs::rename(fresh_path(&path), &path).unwrap();
        let now = Identity::of(&path).unwrap();
        assert_eq!(before.compare(now), Some("database file replaced"));
    }
}
