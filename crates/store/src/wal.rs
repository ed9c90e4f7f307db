//! Reads a write-ahead log as a file: its identity, and the rows on its pages.
//!
//! The layout is that of <https://www.sqlite.org/fileformat2.html>: a header, then frames of a page
//! each. All of them carry two salts, which change whenever SQLite overwrites the log from its
//! start. Everything read here is a hint for queries, which decide.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

use super::engine::{PAGE_BYTES, wal_path};

/// Bytes of the header of a log.
const HEADER: usize = 32;
/// Bytes of the header of a frame; its page follows.
const FRAME_HEADER: usize = 24;
/// Bytes of a page.
#[allow(clippy::cast_possible_truncation, reason = "a page has 4096 bytes")]
const PAGE: usize = PAGE_BYTES as usize;
/// Bytes of the header of a leaf page; the offsets of its cells follow.
const LEAF_HEADER: usize = 8;
/// The type of a leaf page of a table.
const LEAF_OF_TABLE: u8 = 0x0d;
/// Bytes that are read at once.
const BUFFER: usize = 64 << 10;

/// The identity of a log between two restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogId(i64);

impl LogId {
    /// Returns the identity with this number.
    #[must_use]
    pub fn from_number(number: i64) -> Self {
        Self(number)
    }

    /// Returns the identity as a number.
    #[must_use]
    pub fn number(self) -> i64 {
        self.0
    }

    /// Reads the salts at an offset; `None` beyond the end.
    fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let salts = bytes.get(at..)?.first_chunk()?;
        Some(Self(i64::from_be_bytes(*salts)))
    }
}

/// Returns the identity of a database's log; `None` if the log is missing, empty, or has pages of
/// another size.
///
/// # Errors
/// The system's.
pub fn log_id(database: &Path) -> io::Result<Option<LogId>> {
    Ok(open(database)?.map(|(_, log)| log))
}

/// Returns the ids of all rows on leaf pages of tables in a database's log, in order; `None` if the
/// database has another log.
///
/// Every row that was inserted or updated since the restart of the log is among them, whatever its
/// table. So are rows beside them, earlier rows of a page, and rows of a commit that never
/// completed. A frame has at most a few hundred rows.
///
/// # Errors
/// The system's.
pub fn rows_in_log(database: &Path, log: LogId) -> io::Result<Option<Vec<i64>>> {
    let Some((file, found)) = open(database)? else { return Ok(None) };
    if found != log {
        return Ok(None);
    }
    let mut file = BufReader::with_capacity(BUFFER, file);
    let mut frame = [0; FRAME_HEADER + PAGE];
    let mut rows = Vec::new();
    // Frames of an earlier log follow after the last one.
    while read_whole(&mut file, &mut frame)? && LogId::read(&frame, 8) == Some(log) {
        add_rows(&frame, &mut rows);
    }
    // A restart overwrites the header first, then the frames.
    if log_id(database)? != Some(log) {
        return Ok(None);
    }
    rows.sort_unstable();
    rows.dedup();
    Ok(Some(rows))
}

/// Opens a log behind its header.
fn open(database: &Path) -> io::Result<Option<(File, LogId)>> {
    let mut file = match File::open(wal_path(database)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut header = [0; HEADER];
    if !read_whole(&mut file, &mut header)? || number(&header, 8, 4) != Some(PAGE) {
        return Ok(None);
    }
    Ok(LogId::read(&header, 16).map(|log| (file, log)))
}

/// Fills the buffer. Returns whether there were enough bytes.
fn read_whole(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Adds the ids of the rows on the page of a frame.
fn add_rows(frame: &[u8], rows: &mut Vec<i64>) {
    // The first page, that of the schema, begins with the header of the file instead.
    let Some(page) = frame.get(FRAME_HEADER..).filter(|page| page.first() == Some(&LEAF_OF_TABLE)) else {
        return;
    };
    let cells = number(page, 3, 2).unwrap_or(0);
    // A torn page ends early.
    rows.extend((0..cells).map_while(|cell| {
        let at = number(page, LEAF_HEADER + 2 * cell, 2)?;
        let (_size, rest) = varint(page.get(at..)?)?;
        Some(varint(rest)?.0)
    }));
}

/// Reads a big-endian number; `None` beyond the end.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(length)?)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// Reads a number of variable length: seven bits in each of up to eight bytes, and eight in the
/// ninth. Returns it with the bytes behind it.
fn varint(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let mut value = 0u64;
    for at in 0..8 {
        let byte = *bytes.get(at)?;
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value.cast_signed(), bytes.get(at + 1..)?));
        }
    }
    let value = value << 8 | u64::from(*bytes.get(8)?);
    Some((value.cast_signed(), bytes.get(9..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Checkpoint, EngineOptions, Kind, checkpoint, open_writer};
    use rusqlite::Connection;

    fn database(dir: &Path) -> Connection {
        let kind = Kind { application_id: 1, migrations: &[] };
        let conn = open_writer(&dir.join("x.db"), kind, &EngineOptions::default()).unwrap();
        conn.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, body TEXT) STRICT").unwrap();
        conn
    }

    fn insert(conn: &Connection, id: i64, bytes: usize) {
        conn.execute("INSERT OR REPLACE INTO t VALUES (?1, ?2)", (id, "x".repeat(bytes))).unwrap();
    }

    #[test]
    fn rows_written_since_the_restart_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let (conn, path) = (database(dir.path()), dir.path().join("x.db"));
        conn.execute_batch("BEGIN").unwrap();
        (0..500).for_each(|id| insert(&conn, id, 300));
        conn.execute_batch("COMMIT").unwrap();
        let first = log_id(&path).unwrap().unwrap();
        checkpoint(&conn, Checkpoint::Passive).unwrap();
        assert_eq!(log_id(&path).unwrap(), Some(first), "the next write restarts it");
        let changed = [3, 127, 128, 400, 1 << 20, i64::MAX, i64::MIN, -1];
        for (size, id) in (0..).zip(changed) {
            insert(&conn, id, 100 + size * 3000);
        }
        let second = log_id(&path).unwrap().unwrap();
        assert_ne!(first, second);
        let rows = rows_in_log(&path, second).unwrap().unwrap();
        assert!(changed.iter().all(|id| rows.contains(id)), "{rows:?}");
        assert!(rows.is_sorted() && rows.len() < 400, "only pages of the log: {rows:?}");
        assert_eq!(rows_in_log(&path, first).unwrap(), None);
        assert_eq!(LogId::from_number(second.number()), second);
    }

    #[test]
    fn a_missing_empty_or_truncated_log_has_no_identity() {
        let dir = tempfile::tempdir().unwrap();
        let (conn, path) = (database(dir.path()), dir.path().join("x.db"));
        insert(&conn, 1, 100);
        assert!(log_id(&path).unwrap().is_some());
        checkpoint(&conn, Checkpoint::Truncate).unwrap();
        assert_eq!(log_id(&path).unwrap(), None);
        conn.close().unwrap();
        assert_eq!(log_id(&path).unwrap(), None);
        std::fs::write(wal_path(&path), [0; 40]).unwrap();
        assert_eq!(log_id(&path).unwrap(), None);
    }

    #[test]
    fn torn_frames_and_pages_end_the_search_without_a_panic() {
        let dir = tempfile::tempdir().unwrap();
        let (conn, path) = (database(dir.path()), dir.path().join("x.db"));
        insert(&conn, 7, 100);
        let log = log_id(&path).unwrap().unwrap();
        let whole = std::fs::read(wal_path(&path)).unwrap();
        let copy = dir.path().join("y.db");
        for length in (0..whole.len()).step_by(101) {
            std::fs::write(wal_path(&copy), &whole[..length]).unwrap();
            let rows = rows_in_log(&copy, log).unwrap();
            assert_eq!(rows.is_some(), length >= HEADER, "{length} bytes");
        }
        for seed in 0..500usize {
            let mut torn = whole.clone();
            for step in 1..40 {
                let at = HEADER + seed.wrapping_mul(7919 * step).wrapping_add(step) % (torn.len() - HEADER);
                torn[at] = torn[at].wrapping_mul(31).wrapping_add(u8::try_from(seed % 251).unwrap());
            }
            std::fs::write(wal_path(&copy), &torn).unwrap();
            assert!(rows_in_log(&copy, log).unwrap().is_some());
        }
    }

    #[test]
    fn numbers_of_every_length_are_read() {
        let numbers: [(&[u8], i64); 5] = [
            (&[0x05], 5),
            (&[0x81, 0x00], 128),
            (&[0xff, 0x7f], 16383),
            (&[0x81, 0x80, 0x00], 16384),
            (&[0xff; 9], -1),
        ];
        for (bytes, value) in numbers {
            assert_eq!(varint(bytes), Some((value, &[][..])), "{bytes:x?}");
            assert_eq!(varint(&bytes[..bytes.len() - 1]), None, "{bytes:x?}");
        }
    }
}
