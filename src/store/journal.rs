//! The totals and the order of changes: in the journal, and for small updates in the rows
//! themselves.
//!
//! A transaction that only updates a few rows in place does not write the journal: its last row has
//! the totals and each row its revision, so that one page is written instead of two. [`Recent`]
//! keeps these rows in memory until the next transaction that writes the journal anyway, at the
//! latest after [`MAX_UNWRITTEN`] changes, after a checkpoint, and when the store closes.
//!
//! The newest row of the journal names the write-ahead log that such rows may be in, or none: this
//! is the mark of a clean file. Changes in place are permitted only while the database has that
//! log. After a crash the pages in the log therefore name all rows that may be newer than the
//! journal. If the log is missing or was restarted, as by another program that opened the file, a
//! scan of all rows finds them.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, Row};

use edgesync_object::{ObjectKey, ResourceVersion};
use edgesync_protocol::apply::Totals;
use edgesync_protocol::change::Uid;
use edgesync_protocol::digest::{Digest, Epoch};
use edgesync_store::StoreError;
use edgesync_store::checksum::checksum64;
use edgesync_store::engine::integer;
use edgesync_store::wal::{self, LogId};

/// Maximum number of changes that only their rows record: bounds the memory, and the size of the
/// next journal write.
const MAX_UNWRITTEN: usize = 128;
/// Maximum number of such changes in a transaction: with more, the page of the journal hardly
/// matters.
const MAX_IN_PLACE: usize = 4;
/// Changes kept in memory: more than [`MAX_UNWRITTEN`], so that readers in a snapshot from before
/// the last journal write still find theirs.
const RECENT_CAPACITY: usize = 1024;

/// The last in-place changes: hints, which are valid only if the rows confirm them.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<VecDeque<(u64, i64)>>);

impl Recent {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, i64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, revision: u64, object_id: i64) {
        let mut ring = self.lock();
        if ring.len() == RECENT_CAPACITY {
            ring.pop_front();
        }
        ring.push_back((revision, object_id));
    }

    /// Returns the revisions after the given one and their rows, in order.
    pub(super) fn after(&self, revision: u64) -> Vec<(u64, i64)> {
        self.lock().iter().filter(|(of, _)| *of > revision).copied().collect()
    }

    /// Removes what was rolled back: everything after the committed revision.
    pub(super) fn cut(&self, revision: u64) {
        self.lock().retain(|(of, _)| *of <= revision);
    }
}

/// Extent of the written journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// Revision of its newest row.
    pub(super) revision: u64,
    /// Confirmed revision in it, where the journal starts.
    pub(super) confirmed: u64,
    /// The log that may have rows newer than the journal; `None` if no row is newer.
    pub(super) log: Option<LogId>,
}

/// Confirmed revision and log that a write of the journal records beside changes and totals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) confirmed: u64,
    /// The log in which later changes in place are permitted.
    pub(super) log: Option<LogId>,
}

/// Kind of a change, for the journal.
#[derive(Debug)]
pub(super) enum JournalChange {
    /// An object was written to this row.
    Put {
        object_id: i64,
        /// Whether the row existed and no index changed.
        in_place: bool,
    },
    Removed {
        uid: Uid,
        resource_id: i64,
        key: ObjectKey,
        version: ResourceVersion,
    },
}

/// A change that the journal must record.
#[derive(Debug)]
pub(super) struct JournalEntry {
    pub(super) revision: u64,
    pub(super) change: JournalChange,
}

/// Records the changes of a batch and the totals after it.
pub(super) fn record(
    conn: &Connection,
    recent: &Recent,
    written: &mut Written,
    entries: &[JournalEntry],
    totals: &Totals,
    mark: Mark,
) -> Result<(), StoreError> {
    let Some(last) = entries.last() else { return Ok(()) };
    let unwritten = recent.after(written.revision);
    let in_place: Option<Vec<(u64, i64)>> = entries.iter().map(JournalEntry::in_place).collect();
    let fits = entries.len() <= MAX_IN_PLACE && unwritten.len() + entries.len() <= MAX_UNWRITTEN;
    let may_stay = fits && mark.log.is_some() && written.log == mark.log;
    let (Some(in_place), Some((_, row))) = (in_place.filter(|_| may_stay), last.in_place()) else {
        write_unwritten(conn, &unwritten, mark.confirmed)?;
        write(conn, entries)?;
        *written = write_totals(conn, totals, mark)?;
        return Ok(());
    };
    conn.prepare_cached("UPDATE objects SET totals = ?2 WHERE id = ?1")?
        .execute((row, encode_totals(totals).as_slice()))?;
    for (revision, object_id) in in_place {
        recent.push(revision, object_id);
    }
    Ok(())
}

impl JournalEntry {
    fn in_place(&self) -> Option<(u64, i64)> {
        match self.change {
            JournalChange::Put { object_id, in_place: true } => Some((self.revision, object_id)),
            _ => None,
        }
    }
}

fn write(conn: &Connection, entries: &[JournalEntry]) -> Result<(), StoreError> {
    let mut put = conn.prepare_cached("INSERT INTO journal (revision, object_id) VALUES (?1, ?2)")?;
    let mut removed = conn.prepare_cached(
        "INSERT INTO journal (revision, uid, resource_id, namespace, name, version)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    for JournalEntry { revision, change } in entries {
        let revision = integer(*revision);
        match change {
            JournalChange::Put { object_id, .. } => put.execute((revision, object_id))?,
            JournalChange::Removed { uid, resource_id, key, version } => {
                let (namespace, name) = (&*key.namespace, &*key.name);
                removed.execute((revision, &**uid, resource_id, namespace, name, version.as_str()))?
            }
        };
    }
    Ok(())
}

/// Writes the unconfirmed changes that only their rows record, if the rows still have them.
fn write_unwritten(conn: &Connection, unwritten: &[(u64, i64)], confirmed: u64) -> Result<(), StoreError> {
    let mut insert = conn.prepare_cached(
        "INSERT INTO journal (revision, object_id) SELECT revision, id FROM objects WHERE id = ?2 AND revision = ?1",
    )?;
    for (revision, object_id) in unwritten.iter().filter(|(revision, _)| *revision > confirmed) {
        insert.execute((integer(*revision), object_id))?;
    }
    Ok(())
}

/// Writes the totals to the row of the newest revision, and drops the rows up to the confirmed one.
fn write_totals(conn: &Connection, totals: &Totals, mark: Mark) -> Result<Written, StoreError> {
    let Mark { confirmed, log } = mark;
    let revision = integer(totals.revision);
    conn.prepare_cached(
        "INSERT INTO journal (revision, totals, confirmed, log) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT DO UPDATE SET totals = ?2, confirmed = ?3, log = ?4",
    )?
    .execute((
        revision,
        encode_totals(totals).as_slice(),
        integer(confirmed),
        log.map(LogId::number),
    ))?;
    conn.prepare_cached("DELETE FROM journal WHERE revision <= ?1 AND revision < ?2")?
        .execute((integer(confirmed), revision))?;
    Ok(Written { revision: totals.revision, confirmed, log })
}

/// Brings the journal up to date.
pub(super) fn flush(
    conn: &Connection,
    recent: &Recent,
    written: Written,
    totals: &Totals,
    mark: Mark,
) -> Result<Written, StoreError> {
    write_unwritten(conn, &recent.after(written.revision), mark.confirmed)?;
    write_totals(conn, totals, mark)
}

/// Restarts the journal: no change before this revision is available.
pub(super) fn restart(conn: &Connection, totals: &Totals) -> Result<Written, StoreError> {
    conn.execute("DELETE FROM journal", [])?;
    write_totals(conn, totals, Mark { confirmed: totals.revision, log: None })
}

/// Returns the totals as of this commit, and the extent of the written journal.
pub(super) fn totals(conn: &Connection, recent: &Recent) -> Result<(Totals, Written), StoreError> {
    let epoch = meta(conn, "epoch")?.ok_or_else(|| StoreError::corrupt("no epoch in table meta"))?;
    let epoch = epoch.parse().map_err(|error| StoreError::corrupt(format!("epoch {error}")))?;
    let (journaled, written) = newest(conn, epoch)?;
    // The snapshot exists by now: a newer hint is not valid in it.
    let mut row = conn.prepare_cached("SELECT totals FROM objects WHERE id = ?1 AND revision = ?2")?;
    for (revision, id) in recent.after(written.revision).into_iter().rev() {
        let sealed =
            row.query_row((id, integer(revision)), |row| row.get::<_, Option<Vec<u8>>>(0)).optional()?;
        if let Some(sealed) = sealed {
            // The newest change was the last of its transaction: it has the totals, or is damaged.
            let totals = sealed.and_then(|sealed| decode_totals(epoch, revision, &sealed));
            let missing = || StoreError::corrupt(format!("no totals in row {id} of revision {revision}"));
            return Ok((totals.ok_or_else(missing)?, written));
        }
    }
    Ok((journaled, written))
}

/// Returns the totals in the newest row of the journal, and its extent.
fn newest(conn: &Connection, epoch: Epoch) -> Result<(Totals, Written), StoreError> {
    let sql = "SELECT revision, totals, confirmed, log FROM journal ORDER BY revision DESC LIMIT 1";
    let read = |row: &Row<'_>| {
        let (revision, confirmed): (i64, Option<i64>) = (row.get(0)?, row.get(2)?);
        Ok((revision, row.get::<_, Option<Vec<u8>>>(1)?, confirmed, row.get::<_, Option<i64>>(3)?))
    };
    let row = conn.prepare_cached(sql)?.query_row([], read).optional()?;
    let (revision, sealed, confirmed, log) =
        row.ok_or_else(|| StoreError::corrupt("the journal has no totals"))?;
    let damaged = || StoreError::corrupt(format!("totals of revision {revision} in the journal"));
    let whole = |value: i64| u64::try_from(value).map_err(|_| damaged());
    let revision = whole(revision)?;
    let totals = sealed.and_then(|sealed| decode_totals(epoch, revision, &sealed));
    let confirmed = whole(confirmed.ok_or_else(damaged)?)?;
    let written = Written { revision, confirmed, log: log.map(LogId::from_number) };
    Ok((totals.ok_or_else(damaged)?, written))
}

/// Finds the changes that only their rows record, after a crash. The caller's transaction makes it
/// one snapshot.
pub(super) fn find_unwritten(conn: &Connection, path: &Path, recent: &Recent) -> Result<(), StoreError> {
    let sql = "SELECT revision, log FROM journal ORDER BY revision DESC LIMIT 1";
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?));
    let Some((newest, Some(log))) = conn.query_row(sql, [], read).optional()? else { return Ok(()) };
    let mut found = match wal::rows_in_log(path, LogId::from_number(log))? {
        Some(ids) => newer_of(conn, newest, &ids)?,
        None => newer_of_all(conn, newest)?,
    };
    found.sort_unstable();
    for (revision, id) in found {
        recent.push(revision.unsigned_abs(), id);
    }
    Ok(())
}

/// Returns the revisions and ids of the given rows that are newer than a revision.
fn newer_of(conn: &Connection, newest: i64, ids: &[i64]) -> Result<Vec<(i64, i64)>, StoreError> {
    let mut statement = conn.prepare("SELECT revision, id FROM objects WHERE id = ?1 AND revision > ?2")?;
    let mut found = Vec::new();
    for id in ids {
        let mut rows = statement.query([*id, newest])?;
        if let Some(row) = rows.next()? {
            found.push((row.get(0)?, row.get(1)?));
        }
    }
    Ok(found)
}

/// Returns the revisions and ids of all rows that are newer than a revision.
fn newer_of_all(conn: &Connection, newest: i64) -> Result<Vec<(i64, i64)>, StoreError> {
    tracing::info!("write-ahead log replaced since the last run: reading all rows");
    let mut statement = conn.prepare("SELECT revision, id FROM objects WHERE revision > ?1")?;
    let rows = statement.query_map([newest], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Reads a text of table `meta`.
pub(super) fn meta(conn: &Connection, key: &str) -> Result<Option<String>, StoreError> {
    let mut statement = conn.prepare_cached("SELECT value FROM meta WHERE key = ?1")?;
    Ok(statement.query_row([key], |row| row.get(0)).optional()?)
}

/// Writes a text of table `meta`.
pub(super) fn set_meta(conn: &Connection, key: &str, value: &str) -> Result<(), StoreError> {
    conn.execute(
        "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value",
        (key, value),
    )?;
    Ok(())
}

/// Writes a number to table `meta`, with a checksum.
pub(super) fn set_number(conn: &Connection, key: &str, number: u64) -> Result<(), StoreError> {
    conn.prepare_cached(
        "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value",
    )?
    .execute((key, checked(key, number)))?;
    Ok(())
}

/// Reads a number of [`set_number`]; `None` if it is missing or its checksum is wrong.
pub(super) fn number(conn: &Connection, key: &str) -> Result<Option<u64>, StoreError> {
    let Some(text) = meta(conn, key)? else { return Ok(None) };
    let number = text.split(' ').next().and_then(|number| number.parse().ok());
    Ok(number.filter(|number| checked(key, *number) == text))
}

fn checked(key: &str, number: u64) -> String {
    format!("{number} {:016x}", checksum64(&[key.as_bytes(), &number.to_le_bytes()]))
}

/// Key in table `meta` of the base: revisions plus the base are the versions that clients see.
const BASE_KEY: &str = "api_base";

/// Returns the base of this epoch.
pub(super) fn base(conn: &Connection) -> Result<u64, StoreError> {
    number(conn, BASE_KEY)?.ok_or_else(|| StoreError::corrupt("invalid api_base in table meta"))
}

/// Returns whether the file has a sound base.
pub(super) fn has_base(conn: &Connection) -> Result<bool, StoreError> {
    Ok(number(conn, BASE_KEY)?.is_some())
}

/// Chooses the base of a new epoch: all its versions are above `floor`, and, with a correct clock,
/// above those of other files.
pub(super) fn choose_base(conn: &Connection, floor: u64, now: jiff::Timestamp) -> Result<u64, StoreError> {
    let now = u64::try_from(now.as_microsecond()).unwrap_or(0);
    let base = now.max(floor);
    set_number(conn, BASE_KEY, base)?;
    Ok(base)
}

/// Encodes the totals for a row: count, digest, and a checksum over both, the epoch and the
/// revision.
fn encode_totals(totals: &Totals) -> [u8; 32] {
    let Totals { epoch: Epoch(epoch), revision, count, digest: Digest(digest) } = totals;
    let (count, digest) = (count.to_le_bytes(), digest.to_le_bytes());
    let check = checksum64(&[&epoch.to_le_bytes(), &revision.to_le_bytes(), &count, &digest]).to_le_bytes();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&count);
    bytes[8..24].copy_from_slice(&digest);
    bytes[24..].copy_from_slice(&check);
    bytes
}

fn decode_totals(epoch: Epoch, revision: u64, bytes: &[u8]) -> Option<Totals> {
    let (count, rest) = bytes.split_first_chunk::<8>()?;
    let (digest, _) = rest.split_first_chunk::<16>()?;
    let digest = Digest(u128::from_le_bytes(*digest));
    let totals = Totals { epoch, revision, count: u64::from_le_bytes(*count), digest };
    (encode_totals(&totals) == bytes).then_some(totals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::new_file::KIND;
    use jiff::Timestamp;

    #[test]
    fn sealed_totals_are_valid_for_their_epoch_and_revision_only() {
        let totals = Totals { epoch: Epoch(1), revision: 7, count: 3, digest: Digest(u128::MAX - 5) };
        let bytes = encode_totals(&totals);
        assert_eq!(decode_totals(Epoch(1), 7, &bytes), Some(totals));
        assert_eq!(decode_totals(Epoch(1), 8, &bytes), None);
        assert_eq!(decode_totals(Epoch(2), 7, &bytes), None, "a row of an earlier epoch");
        for bit in 0..256 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_totals(Epoch(1), 7, &flipped), None, "bit {bit}");
        }
        assert_eq!(decode_totals(Epoch(1), 7, &bytes[..31]), None);
    }

    #[test]
    fn a_base_is_not_below_its_floor_with_a_clock_behind() {
        let conn = Connection::open_in_memory().unwrap();
        KIND.migrations.iter().for_each(|migration| conn.execute_batch(migration.sql).unwrap());
        let at = |micros| Timestamp::from_microsecond(micros).unwrap();
        for (now, chosen) in [(4_000, 5_000), (5_000, 5_000), (6_000, 6_000), (-1, 5_000)] {
            assert_eq!(choose_base(&conn, 5_000, at(now)).unwrap(), chosen, "at {now}");
            assert_eq!(base(&conn).unwrap(), chosen);
        }
    }

    #[test]
    fn recent_changes_are_bounded_and_rolled_back() {
        let recent = Recent::default();
        for revision in 1..=2000 {
            recent.push(revision, 1);
        }
        assert_eq!(recent.after(0).len(), RECENT_CAPACITY);
        recent.cut(1990);
        assert_eq!(recent.after(1988), [(1989, 1), (1990, 1)]);
    }
}
