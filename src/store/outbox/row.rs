//! The rows of table `outbox`: their ids, lookup and checksums.
//!
//! Items about an object of a sealed kind, its status and its effect, are sealed like the object.
//! They are bound to lane, key and time, but not to the number, so that renumbering needs no key.

use std::borrow::Cow;

use rusqlite::{Connection, OptionalExtension as _, Row};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::{EFFECT_PREFIX, MonotonicTime, OutboxPut, STATUS_PREFIX};
use crate::store::rows::Resources;
use crate::store::seals::{BATCH_BYTES, BATCH_ROWS, SealAction, Seals};
use edgesync_protocol::upload::{Content, Lane, Lanes, UploadItem};
use edgesync_store::StoreError;
use edgesync_store::checksum::checksum64;
use edgesync_store::engine::integer;
use edgesync_store::seal::{Binding, UnsealError};

/// Maximum number of a lane; the bits above it in a row's id are the lane.
pub(super) const MAX_NUMBER: u64 = (1 << 56) - 1;
/// Maximum number of damaged rows that one read returns; the next read returns more.
const MAX_DAMAGED: usize = 256;
/// Rows between two pauses of a check.
const BATCH: u64 = 256;
/// Placeholder for a namespace in the binding of sealed items: not a valid namespace.
const NAMESPACE_PLACEHOLDER: &str = "/outbox";

/// The columns of a row, in the order of reading.
pub(in crate::store) const COLUMNS: &str = "id, hash, boot, made, checksum, key, body";

/// Returns the id of a row; numbers are capped at [`MAX_NUMBER`].
pub(super) fn id_of(lane: Lane, number: u64) -> i64 {
    (lane as i64) << 56 | integer(number.min(MAX_NUMBER))
}

/// Returns the lane and the number of an id.
pub(super) fn lane_and_number(id: i64) -> Option<(Lane, u64)> {
    let lane = Lane::ALL.get(usize::try_from(id >> 56).ok()?)?;
    let number = id.cast_unsigned() & MAX_NUMBER;
    (number > 0).then_some((*lane, number))
}

/// Returns the hash of a key for the index: short, to keep the index small.
fn hash_of(lane: Lane, key: &str) -> i64 {
    // Truncation is the intent.
    #[allow(clippy::cast_possible_truncation)]
    let hash = checksum64(&[lane.name().as_bytes(), key.as_bytes()]) as i32;
    i64::from(hash)
}

/// A row, borrowed from the statement.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutboxRow<'a> {
    pub(super) lane: Lane,
    pub(super) number: u64,
    pub(super) at: MonotonicTime,
    pub(super) key: &'a str,
    pub(super) body: &'a str,
}

impl<'a> OutboxRow<'a> {
    /// Reads a row; `Err` with its id if the row is damaged.
    fn read(row: &'a Row<'_>) -> Result<Result<Self, i64>, StoreError> {
        let id: i64 = row.get(0)?;
        let number = |index: usize| row.get_ref(index).map(|value| value.as_i64().ok());
        let text = |index: usize| row.get_ref(index).map(|value| value.as_str().ok());
        let (hash, boot, made, checksum) = (number(1)?, number(2)?, number(3)?, number(4)?);
        let (key, body) = (text(5)?, text(6)?);
        let read = || {
            let (lane, number) = lane_and_number(id)?;
            let at = MonotonicTime { boot: boot?.cast_unsigned(), since_boot: made?.cast_unsigned() };
            let read = Self { lane, number, at, key: key?, body: body? };
            ((hash, checksum) == (Some(read.hash()), Some(read.checksum()))).then_some(read)
        };
        Ok(read().ok_or(id))
    }

    fn hash(&self) -> i64 {
        hash_of(self.lane, self.key)
    }

    fn checksum(&self) -> i64 {
        checksum64(&[
            &id_of(self.lane, self.number).to_le_bytes(),
            &self.at.boot.to_le_bytes(),
            &self.at.since_boot.to_le_bytes(),
            self.key.as_bytes(),
            self.body.as_bytes(),
        ])
    }

    /// Calls `run` with the binding of a sealed body.
    fn bound<T>(&self, run: impl FnOnce(Binding<'_>) -> T) -> T {
        let time = format!("{} {}", self.at.boot, self.at.since_boot);
        run(Binding {
            uid: self.key,
            version: &time,
            namespace: NAMESPACE_PLACEHOLDER,
            name: self.lane.name(),
        })
    }

    /// Returns whether a plain item must be sealed: it concerns an object of a covered kind. A
    /// program that rejects an object may quote it.
    fn is_covered(&self, seals: &Seals, resources: &Resources) -> bool {
        if !self.key.starts_with(STATUS_PREFIX) && !self.key.starts_with(EFFECT_PREFIX) {
            return false;
        }
        let object = match serde_json::from_str(self.body) {
            Ok(Content::Status(status)) => status.object,
            Ok(Content::Effect(effect)) => effect.object,
            _ => return false,
        };
        seals.covers_object(resources, &object.key())
    }

    fn action(&self, seals: &Seals, resources: &Resources) -> Result<SealAction, StoreError> {
        self.bound(|binding| seals.action(binding, self.body, || self.is_covered(seals, resources)))
    }

    fn is_lost(&self, seals: &Seals) -> bool {
        self.bound(|binding| seals.is_lost(binding, self.body))
    }

    /// Returns the opened content.
    fn content(&self, seals: &Seals) -> Result<Cow<'a, str>, UnsealError> {
        self.bound(|binding| seals.open_body(binding, self.body))
    }

    /// Returns the item to send; `None` if its content cannot be opened or parsed.
    fn item(&self, seals: &Seals) -> Option<UploadItem> {
        let content = RawValue::from_string(self.content(seals).ok()?.into_owned()).ok()?;
        Some(UploadItem { seq: self.number, content })
    }

    /// Writes the row; an existing one stays.
    pub(super) fn insert(&self, conn: &Connection) -> Result<(), StoreError> {
        conn.prepare_cached(
            "INSERT OR IGNORE INTO outbox (id, hash, boot, made, checksum, key, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute((
            id_of(self.lane, self.number),
            self.hash(),
            self.at.boot.cast_signed(),
            self.at.since_boot.cast_signed(),
            self.checksum(),
            self.key,
            self.body,
        ))?;
        Ok(())
    }
}

/// Visits the rows of a lane after a number and up to another one, in order, until `visit` returns
/// false. A damaged row is passed as its id.
fn each(
    conn: &Connection,
    lane: Lane,
    (after, upto): (u64, u64),
    mut visit: impl FnMut(Result<OutboxRow<'_>, i64>) -> bool,
) -> Result<(), StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM outbox WHERE id > ?1 AND id <= ?2 ORDER BY id");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query((id_of(lane, after), id_of(lane, upto)))?;
    let mut before = id_of(lane, after);
    while let Some(row) = rows.next()? {
        // A damaged tree returns rows out of order, which would make paging endless. The next check
        // detects the damage.
        let id = row.get(0)?;
        if id <= before || !visit(OutboxRow::read(row)?) {
            break;
        }
        before = id;
    }
    Ok(())
}

/// Returns a page of a lane, and its damaged rows. See [`super::super::EdgeStore::outbox_page`].
pub(in crate::store) fn page(
    conn: &Connection,
    seals: &Seals,
    lane: Lane,
    after: u64,
    limit: usize,
    bytes: usize,
) -> Result<(Vec<UploadItem>, Vec<i64>), StoreError> {
    let (mut items, mut damaged, mut taken): (Vec<UploadItem>, _, usize) = (Vec::new(), Vec::new(), 0);
    each(conn, lane, (after, MAX_NUMBER), |row| {
        match row.and_then(|row| row.item(seals).ok_or(id_of(row.lane, row.number))) {
            Ok(item) => {
                taken = taken.saturating_add(item.content.get().len());
                if !items.is_empty() && taken > bytes {
                    return false;
                }
                items.push(item);
            }
            Err(id) => damaged.push(id),
        }
        items.len() < limit.max(1) && damaged.len() < MAX_DAMAGED
    })?;
    Ok((items, damaged))
}

/// Number and content of a row; the row's id if it is damaged.
type Item = Result<(u64, String), i64>;

/// Reads the item of a key.
pub(in crate::store) fn item(
    conn: &Connection,
    seals: &Seals,
    lane: Lane,
    key: &str,
) -> Result<Option<Item>, StoreError> {
    let Some(found) = find(conn, lane, key)? else { return Ok(None) };
    let mut read = None;
    each(conn, lane, (found.number.saturating_sub(1), found.number), |row| {
        read = Some(row.and_then(|row| match row.content(seals) {
            Ok(content) => Ok((row.number, content.into_owned())),
            Err(_) => Err(id_of(row.lane, row.number)),
        }));
        false
    })?;
    Ok(read)
}

/// Number and size of a row, for the totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) number: u64,
    pub(super) bytes: u64,
}

impl Found {
    /// Reads the columns id and length.
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let id: i64 = row.get(0)?;
        Ok(Self { number: id.cast_unsigned() & MAX_NUMBER, bytes: row.get::<_, i64>(1)?.unsigned_abs() })
    }
}

/// Finds the row of a key.
pub(super) fn find(conn: &Connection, lane: Lane, key: &str) -> Result<Option<Found>, StoreError> {
    let sql = "SELECT id, octet_length(body) FROM outbox
               WHERE hash = ?1 AND key = ?2 AND id > ?3 AND id <= ?4";
    let range = (hash_of(lane, key), key, id_of(lane, 0), id_of(lane, MAX_NUMBER));
    Ok(conn.prepare_cached(sql)?.query_row(range, Found::read).optional()?)
}

pub(super) fn remove(conn: &Connection, id: i64) -> Result<(), StoreError> {
    conn.prepare_cached("DELETE FROM outbox WHERE id = ?1")?.execute([id])?;
    Ok(())
}

/// Removes up to `most` of the oldest rows of a lane up to a number; calls `gone` with each.
pub(super) fn remove_oldest(
    conn: &Connection,
    lane: Lane,
    upto: u64,
    most: u32,
    mut gone: impl FnMut(Found),
) -> Result<(), StoreError> {
    let mut statement = conn.prepare_cached(
        "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT ?3)
         RETURNING id, octet_length(body)",
    )?;
    for found in statement.query_map((id_of(lane, 0), id_of(lane, upto), most), Found::read)? {
        gone(found?);
    }
    Ok(())
}

/// Returns the sealed body of an item; `None` if it stays plain.
pub(in crate::store) fn seal(
    seals: &Seals,
    resources: &Resources,
    put: &OutboxPut,
) -> Result<Option<String>, StoreError> {
    let row = OutboxRow { lane: put.lane, number: 0, at: put.at, key: &put.key, body: &put.content };
    row.bound(|binding| seals.seal(binding, row.body, || row.is_covered(seals, resources)))
}

/// Checks some rows of a lane after a number: seals those that require it or have an old key, and
/// removes those that cannot be opened. Calls `done` with each, and its new size. Returns the last
/// row checked, `None` at the end.
pub(super) fn reseal(
    conn: &Connection,
    seals: &Seals,
    resources: &Resources,
    (lane, after): (Lane, u64),
    mut done: impl FnMut(Found, Option<u64>),
) -> Result<Option<u64>, StoreError> {
    let (mut last, mut rows, mut bytes, mut changes) = (None, 0, 0, Vec::new());
    each(conn, lane, (after, MAX_NUMBER), |row| {
        rows += 1;
        // The next check finds a damaged row.
        let Ok(row) = row else { return true };
        bytes += row.body.len();
        last = Some(row.number);
        let change = match row.action(seals, resources) {
            Ok(SealAction::Nothing) => return rows < BATCH_ROWS && bytes < BATCH_BYTES,
            Ok(SealAction::Lost) => Ok(None),
            Ok(SealAction::Reseal(body)) => {
                let checksum = OutboxRow { body: &body, ..row }.checksum();
                Ok(Some((checksum, body)))
            }
            Err(error) => Err(error),
        };
        changes.push((Found { number: row.number, bytes: row.body.len() as u64 }, change));
        rows < BATCH_ROWS && bytes < BATCH_BYTES
    })?;
    let mut update = conn.prepare_cached("UPDATE outbox SET checksum = ?2, body = ?3 WHERE id = ?1")?;
    for (found, change) in changes {
        let id = id_of(lane, found.number);
        let Some((checksum, body)) = change? else {
            tracing::warn!(row = id, "outbox item sealed with a lost key dropped");
            remove(conn, id)?;
            done(found, None);
            continue;
        };
        update.execute((id, checksum, &body))?;
        done(found, Some(body.len() as u64));
    }
    Ok(last)
}

/// Adds `by` to the numbers of a lane's rows after a number. The new numbers must be unused.
pub(super) fn shift(conn: &Connection, lane: Lane, after: u64, upto: u64, by: u64) -> Result<(), StoreError> {
    let mut update = conn.prepare_cached("UPDATE outbox SET id = ?2, checksum = ?3 WHERE id = ?1")?;
    let mut after = after;
    while after < upto {
        let mut moves = Vec::with_capacity(256);
        each(conn, lane, (after, upto), |row| {
            // The next check finds a damaged row, whatever its id.
            if let Ok(row) = row {
                let moved = OutboxRow { number: row.number.saturating_add(by), ..row };
                moves.push((row.number, id_of(lane, moved.number), moved.checksum()));
            }
            moves.len() < moves.capacity()
        })?;
        let Some((last, ..)) = moves.last().copied() else { break };
        after = last;
        for (number, id, checksum) in moves {
            update.execute((id_of(lane, number), id, checksum))?;
        }
    }
    Ok(())
}

/// Returns rows of a lane with this prefix of their keys, from before a time of the same boot, and
/// their numbers: up to so many bytes, but at least one row.
pub(super) fn written_before(
    conn: &Connection,
    lane: Lane,
    (after, upto): (u64, u64),
    prefix: &str,
    before: MonotonicTime,
    bytes: usize,
) -> Result<Vec<(u64, OutboxPut)>, StoreError> {
    let (mut found, mut taken): (Vec<(u64, OutboxPut)>, usize) = (Vec::new(), 0);
    each(conn, lane, (after, upto), |row| {
        let Ok(row) = row else { return true };
        let earlier = row.at.boot == before.boot && row.at.since_boot < before.since_boot;
        if earlier && row.key.starts_with(prefix) {
            taken = taken.saturating_add(row.body.len() + 256);
            let OutboxRow { key, body, at, .. } = row;
            found.push((row.number, OutboxPut { lane, key: key.to_owned(), at, content: body.to_owned() }));
        }
        taken < bytes
    })?;
    Ok(found)
}

/// Totals of the table.
#[derive(Debug, Default)]
pub(super) struct Census {
    pub(super) rows: Lanes,
    pub(super) bytes: Lanes,
    pub(super) first: Lanes,
    pub(super) last: Lanes,
}

impl Census {
    fn count(&mut self, row: &OutboxRow<'_>) {
        let lane = row.lane;
        if self.rows.get(lane) == 0 {
            self.first.set(lane, row.number);
        }
        self.rows.set(lane, self.rows.get(lane) + 1);
        self.bytes.set(lane, self.bytes.get(lane) + row.body.len() as u64);
        self.last.set(lane, row.number);
    }
}

/// Reads all rows. Returns their totals and the ids of damaged ones.
pub(super) fn census(conn: &Connection) -> Result<(Census, Vec<i64>), StoreError> {
    let (mut census, mut damaged) = (Census::default(), Vec::new());
    let mut statement = conn.prepare(&format!("SELECT {COLUMNS} FROM outbox ORDER BY id"))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        match OutboxRow::read(row)? {
            Ok(row) => census.count(&row),
            Err(id) => damaged.push(id),
        }
    }
    Ok((census, damaged))
}

/// Returns the number of rows in the index.
pub(super) fn indexed(conn: &Connection) -> Result<u64, StoreError> {
    let sql = "SELECT count(*) FROM outbox INDEXED BY outbox_by_key";
    Ok(conn.query_row(sql, [], |row| row.get::<_, i64>(0))?.unsigned_abs())
}

/// Returns the ids of rows that are damaged or cannot be opened, for a check; calls `pause` between
/// batches, which returns whether to continue.
pub(in crate::store) fn damaged(
    conn: &Connection,
    seals: &Seals,
    mut pause: impl FnMut() -> bool,
) -> Result<Option<Vec<i64>>, StoreError> {
    let (mut scanned, mut damaged) = (0u64, Vec::new());
    let mut statement = conn.prepare(&format!("SELECT {COLUMNS} FROM outbox ORDER BY id"))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        scanned += 1;
        match OutboxRow::read(row)? {
            Ok(row) if row.is_lost(seals) => damaged.push(id_of(row.lane, row.number)),
            Ok(_) => {}
            Err(id) => damaged.push(id),
        }
        if scanned.is_multiple_of(BATCH) && !pause() {
            return Ok(None);
        }
    }
    Ok(Some(damaged))
}

/// Returns whether a row exists and cannot be sent as it was written.
pub(super) fn is_damaged(conn: &Connection, seals: &Seals, id: i64) -> Result<bool, StoreError> {
    let mut statement = conn.prepare_cached(&format!("SELECT {COLUMNS} FROM outbox WHERE id = ?1"))?;
    let mut rows = statement.query([id])?;
    let Some(row) = rows.next()? else { return Ok(false) };
    let Ok(row) = OutboxRow::read(row)? else { return Ok(true) };
    Ok(match row.content(seals) {
        Ok(content) => serde_json::from_str::<IgnoredAny>(&content).is_err(),
        Err(_) => row.is_lost(seals),
    })
}

/// Copies the readable rows into another file, from both ends up to the damage. Only failures of
/// the other file are errors. Commits and restarts its transaction at times.
pub(super) fn salvage(source: &Connection, fresh: &Connection) -> Result<(), StoreError> {
    let mut copied = 0u64;
    for order in ["ASC", "DESC"] {
        let Ok(mut statement) = source.prepare(&format!("SELECT {COLUMNS} FROM outbox ORDER BY id {order}"))
        else {
            return Ok(());
        };
        let Ok(mut rows) = statement.query([]) else { return Ok(()) };
        loop {
            match rows.next() {
                Ok(Some(row)) => {
                    let Ok(Ok(row)) = OutboxRow::read(row) else { continue };
                    row.insert(fresh)?;
                    copied += 1;
                    if copied.is_multiple_of(BATCH) {
                        fresh.execute_batch("COMMIT; BEGIN")?;
                    }
                }
                Ok(None) => return Ok(()),
                Err(_) => break,
            }
        }
    }
    Ok(())
}
