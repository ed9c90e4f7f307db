//! Databases of processes that do not run (or are stopped with SIGSTOP), read through copies, so
//! that reading changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde_json::Value;
use tempfile::TempDir;

/// A copy of a database with its write-ahead log.
pub struct Snapshot {
    directory: TempDir,
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

impl Snapshot {
    /// Copies a database at rest.
    pub fn of(database: &Path) -> Self {
        let snapshot = Self { directory: tempfile::tempdir().unwrap() };
        for suffix in ["", "-wal"] {
            match fs::copy(beside(database, suffix), beside(&snapshot.path(), suffix)) {
                Err(error) if error.kind() == ErrorKind::NotFound && suffix == "-wal" => {}
                copied => drop(copied.unwrap()),
            }
        }
        snapshot
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("copy.db")
    }

    /// Replaces a database by the copy.
    pub fn restore(&self, database: &Path) {
        Self::remove(database);
        for suffix in ["", "-wal"] {
            let copy = beside(&self.path(), suffix);
            if copy.exists() {
                fs::copy(copy, beside(database, suffix)).unwrap();
            }
        }
    }

    pub fn open(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    /// Removes a database with its log.
    pub fn remove(database: &Path) {
        for suffix in ["", "-wal", "-shm"] {
            match fs::remove_file(beside(database, suffix)) {
                Err(error) if error.kind() != ErrorKind::NotFound => panic!("{error}"),
                _ => {}
            }
        }
    }
}

/// Returns UIDs and versions in an edge's database.
pub fn edge_rows(database: &Path) -> BTreeMap<String, String> {
    let snapshot = Snapshot::of(database);
    let conn = snapshot.open();
    let mut statement = conn.prepare("SELECT uid, version FROM objects").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

/// Returns UIDs and versions in the ObjectSync records of a node, from a cloud's database: the last
/// reported ones.
pub fn recorded(database: &Path, node: &str) -> BTreeMap<String, String> {
    let snapshot = Snapshot::of(database);
    let conn = snapshot.open();
    let mut statement = conn.prepare("SELECT sync_uid, body FROM objects WHERE sync_node = ?").unwrap();
    let rows = statement.query_map([node], |row| Ok((row.get(0)?, row.get::<_, String>(1)?))).unwrap();
    let version = |body: String| {
        let record: Value = serde_json::from_str(&body).unwrap();
        record["status"]["objectResourceVersion"].as_str().unwrap().to_owned()
    };
    rows.map(Result::unwrap).map(|(uid, body)| (uid, version(body))).collect()
}
