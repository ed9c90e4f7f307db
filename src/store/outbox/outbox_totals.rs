//! In-memory totals of table `outbox`: rows and bytes of each lane, and the numbers in use. They
//! make the cost of a put independent of the outbox's size.

use rusqlite::Connection;

use super::row::{self, Found, MAX_NUMBER, OutboxRow};
use super::times;
use super::{EVENT_PREFIX, MAX_UPLOAD_BYTES, MonotonicTime, OutboxLimits, OutboxPut};
use crate::store::metadata;
use crate::store::rows::Resources;
use crate::store::seals::Seals;
use edgesync_protocol::edge::OutboxMarks;
use edgesync_protocol::upload::{Lane, Lanes};
use edgesync_store::StoreError;

/// Key in table `meta` of the outbox's id.
const ID_KEY: &str = "outbox_id";
/// Key in table `meta` of the last numbers, for when no row has them.
const LAST_KEY: &str = "outbox_last";

/// Numbers skipped where the used ones are not known.
const LEAP: u64 = 1 << 20;
/// Confirmed rows removed per transaction: bounds the pages in memory.
const CLEAR_BATCH: u32 = 512;
/// Rows that one put may drop. Only reduced limits require more than a few.
const DROP_BATCH: u32 = 1024;
/// Bytes of rows whose times are corrected in one transaction.
const CORRECTION_BYTES: usize = 128 << 10;

/// Identity of a file's outbox, and its last numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Numbering {
    id: String,
    last: Lanes,
}

/// The part that a rollback restores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Counts {
    rows: Lanes,
    bytes: Lanes,
    dropped: Lanes,
    /// Last numbers in table `meta`.
    written: Lanes,
    /// Numbers up to which all rows have been removed.
    cleared: Lanes,
}

fn add(lanes: &mut Lanes, lane: Lane, number: u64) {
    lanes.set(lane, lanes.get(lane).saturating_add(number));
}

fn subtract(lanes: &mut Lanes, lane: Lane, number: u64) {
    lanes.set(lane, lanes.get(lane).saturating_sub(number));
}

fn sum(lanes: &Lanes, of: &[Lane]) -> u64 {
    of.iter().fold(0, |sum, lane| sum.saturating_add(lanes.get(*lane)))
}

/// Parameters of a write: limits, and the confirmed numbers.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Rules {
    pub(in crate::store) limits: OutboxLimits,
    pub(in crate::store) settled: Lanes,
}

/// The in-memory totals of the table.
#[derive(Debug, Default)]
pub(in crate::store) struct Outbox {
    /// Its `last` never decreases while the store is open, whatever is rolled back.
    numbering: Numbering,
    counts: Counts,
    committed: Counts,
    committed_id: String,
}

impl Outbox {
    /// Reads the table, drops damaged rows, and creates the outbox of a file without one. Returns
    /// the numbers that are certainly confirmed: all before the first row.
    pub(in crate::store) fn open(conn: &Connection) -> Result<(Self, Lanes), StoreError> {
        let (census, damaged) = row::census(conn)?;
        // The index reveals rows that a damaged page of the table hides.
        let all_seen = sum(&census.rows, &Lane::ALL) + damaged.len() as u64 == row::indexed(conn)?;
        let is_whole = all_seen && damaged.is_empty();
        let (numbering, is_known) = match read_numbering(conn) {
            (Some(id), Some(written)) => (Numbering { id, last: later(written, census.last) }, true),
            (id, written) => (new_numbering(id, later(written.unwrap_or_default(), census.last)), false),
        };
        let mut outbox = Self { numbering, ..Self::default() };
        if !(is_whole && is_known) {
            let tx = conn.unchecked_transaction()?;
            if !is_whole {
                // A damaged or hidden row may have had the last number.
                outbox.numbering.last = leap(outbox.numbering.last);
            }
            for id in damaged {
                outbox.drop_damaged_row(&tx, id)?;
            }
            outbox.write_numbering(&tx)?;
            tx.commit()?;
        }
        let last = outbox.numbering.last;
        let counts = &mut outbox.counts;
        (counts.rows, counts.bytes) = (census.rows, census.bytes);
        counts.written = read_numbering(conn).1.unwrap_or_default();
        let mut confirmed = last;
        for lane in Lane::ALL {
            if census.rows.get(lane) > 0 {
                confirmed.set(lane, census.first.get(lane).saturating_sub(1));
            }
        }
        outbox.commit();
        Ok((outbox, confirmed))
    }

    /// Creates the outbox of a new file; its rows, if any, exist already.
    pub(in crate::store) fn start(
        conn: &Connection,
        numbering: Option<&Numbering>,
    ) -> Result<(), StoreError> {
        let (census, _) = row::census(conn)?;
        let numbering = match numbering {
            Some(known) => Numbering { id: known.id.clone(), last: later(known.last, census.last) },
            None => new_numbering(None, census.last),
        };
        Self { numbering, ..Self::default() }.write_numbering(conn)
    }

    /// Returns the numbering of a damaged file, as far as it is readable.
    pub(in crate::store) fn salvaged(source: &Connection) -> Option<Numbering> {
        let (id, written) = read_numbering(source);
        id.map(|id| Numbering { id, last: leap(written.unwrap_or_default()) })
    }

    /// Copies the readable rows into another file, within its transaction, which is committed and
    /// restarted at times.
    pub(in crate::store) fn salvage(source: &Connection, fresh: &Connection) -> Result<(), StoreError> {
        row::salvage(source, fresh)
    }

    pub(in crate::store) fn numbering(&self) -> Numbering {
        self.numbering.clone()
    }

    /// Continues the totals of a file that this one has replaced: lost rows count as dropped.
    pub(in crate::store) fn inherit(&mut self, before: &Self) {
        for lane in Lane::ALL {
            let lost = before.committed.rows.get(lane).saturating_sub(self.counts.rows.get(lane));
            add(&mut self.counts.dropped, lane, before.committed.dropped.get(lane).saturating_add(lost));
        }
        if self.numbering.id == before.numbering.id {
            self.numbering.last = later(self.numbering.last, before.numbering.last);
        }
        self.commit();
    }

    pub(in crate::store) fn counts(&self) -> Counts {
        self.counts
    }

    /// Restores the counts of before.
    pub(in crate::store) fn restore(&mut self, counts: Counts) {
        self.counts = counts;
    }

    /// Reverts the totals after a rollback.
    pub(in crate::store) fn revert(&mut self) {
        self.counts = self.committed;
        self.numbering.id.clone_from(&self.committed_id);
    }

    /// Accepts the totals after a commit.
    pub(in crate::store) fn commit(&mut self) {
        self.committed = self.counts;
        self.committed_id.clone_from(&self.numbering.id);
    }

    pub(in crate::store) fn marks(&self) -> OutboxMarks {
        OutboxMarks {
            id: self.numbering.id.clone(),
            last: self.numbering.last,
            confirmed: Lanes::default(),
            rows: self.counts.rows,
        }
    }

    pub(in crate::store) fn bytes(&self) -> Lanes {
        self.counts.bytes
    }

    pub(in crate::store) fn dropped(&self) -> Lanes {
        self.counts.dropped
    }

    fn uncount(&mut self, lane: Lane, row: Found) {
        subtract(&mut self.counts.rows, lane, 1);
        subtract(&mut self.counts.bytes, lane, row.bytes);
    }

    /// Appends an item to its lane and removes the pending one of its key. `sealed` replaces its
    /// content.
    pub(in crate::store) fn put(
        &mut self,
        conn: &Connection,
        rules: Rules,
        put: &OutboxPut,
        sealed: Option<&str>,
    ) -> Result<(), StoreError> {
        let lane = put.lane;
        let readable = put.content.len() <= MAX_UPLOAD_BYTES
            && serde_json::from_str::<serde::de::IgnoredAny>(&put.content).is_ok();
        if !readable {
            tracing::warn!(key = put.key, bytes = put.content.len(), "outbox item cannot be sent, dropped");
        }
        let body = sealed.unwrap_or(&put.content);
        let bytes = body.len() as u64;
        if readable && !self.can_fit(rules.limits, lane, bytes) {
            self.clear(conn, rules.settled)?;
        }
        if !readable || !self.can_fit(rules.limits, lane, bytes) {
            add(&mut self.counts.dropped, lane, 1);
            return Ok(());
        }
        if let Some(old) = row::find(conn, lane, &put.key)? {
            row::remove(conn, row::id_of(lane, old.number))?;
            self.uncount(lane, old);
        }
        self.append(conn, put, body)?;
        self.trim(conn, rules, DROP_BATCH)
    }

    /// Numbers never approach their limit: [`Outbox::renumber`] and [`leap`] ensure it.
    fn append(&mut self, conn: &Connection, put: &OutboxPut, body: &str) -> Result<(), StoreError> {
        let lane = put.lane;
        let number = self.numbering.last.get(lane) + 1;
        OutboxRow { lane, number, at: put.at, key: &put.key, body }.insert(conn)?;
        self.numbering.last.set(lane, number);
        add(&mut self.counts.rows, lane, 1);
        add(&mut self.counts.bytes, lane, body.len() as u64);
        Ok(())
    }

    /// Returns whether an item fits once all items of equal or less importance are dropped.
    fn can_fit(&self, limits: OutboxLimits, lane: Lane, bytes: u64) -> bool {
        let more_important = Lane::ALL.get(..lane.index()).unwrap_or_default();
        sum(&self.counts.rows, more_important) < limits.rows
            && sum(&self.counts.bytes, more_important).saturating_add(bytes) <= limits.bytes
    }

    fn is_over(&self, limits: OutboxLimits) -> bool {
        sum(&self.counts.rows, &Lane::ALL) > limits.rows || sum(&self.counts.bytes, &Lane::ALL) > limits.bytes
    }

    /// Drops the oldest rows of the least important lane until the limits are met; confirmed rows
    /// first.
    pub(in crate::store) fn trim(
        &mut self,
        conn: &Connection,
        rules: Rules,
        most: u32,
    ) -> Result<(), StoreError> {
        if self.is_over(rules.limits) {
            self.clear(conn, rules.settled)?;
        }
        for _ in 0..most {
            if !self.is_over(rules.limits) {
                break;
            }
            let last_with_rows = |lane: &Lane| self.counts.rows.get(*lane) > 0;
            let Some(lane) = Lane::ALL.into_iter().rev().find(last_with_rows) else { break };
            let mut gone = None;
            row::remove_oldest(conn, lane, MAX_NUMBER, 1, |row| gone = Some(row))?;
            match gone {
                Some(row) => {
                    self.uncount(lane, row);
                    let waited = row.number > rules.settled.get(lane);
                    add(&mut self.counts.dropped, lane, u64::from(waited));
                }
                // Rows were removed without the store.
                None => self.recount(conn)?,
            }
        }
        Ok(())
    }

    /// Returns whether there may be confirmed rows.
    pub(in crate::store) fn has_confirmed(&self, settled: Lanes) -> bool {
        let has = |lane| self.counts.rows.get(lane) > 0 && settled.get(lane) > self.counts.cleared.get(lane);
        Lane::ALL.into_iter().any(has)
    }

    /// Removes confirmed rows, a limited number at a time.
    pub(in crate::store) fn clear(&mut self, conn: &Connection, settled: Lanes) -> Result<(), StoreError> {
        if !self.has_confirmed(settled) {
            return Ok(());
        }
        for lane in Lane::ALL {
            let upto = settled.get(lane);
            if upto <= self.counts.cleared.get(lane) {
                continue;
            }
            let mut removed = 0;
            row::remove_oldest(conn, lane, upto, CLEAR_BATCH, |row| {
                removed += 1;
                self.uncount(lane, row);
            })?;
            if removed < CLEAR_BATCH {
                self.counts.cleared.set(lane, upto);
            }
        }
        Ok(())
    }

    /// Writes the last numbers if no row has them. Call it before each commit.
    pub(in crate::store) fn write_last_if_bare(&mut self, conn: &Connection) -> Result<(), StoreError> {
        let last = self.numbering.last;
        let bare = |lane| self.counts.rows.get(lane) == 0 && self.counts.written.get(lane) < last.get(lane);
        if Lane::ALL.into_iter().any(bare) {
            self.write_last(conn)?;
        }
        Ok(())
    }

    fn write_last(&mut self, conn: &Connection) -> Result<(), StoreError> {
        let Lanes { status, events, bulk } = self.numbering.last;
        metadata::set_checked(conn, LAST_KEY, &format!("{status} {events} {bulk}"))?;
        self.counts.written = self.numbering.last;
        Ok(())
    }

    fn write_numbering(&mut self, conn: &Connection) -> Result<(), StoreError> {
        metadata::set_checked(conn, ID_KEY, &self.numbering.id)?;
        self.write_last(conn)
    }

    /// Numbers the items after `sent` from above `above`; past [`MAX_NUMBER`] / 2, changes the id.
    pub(in crate::store) fn renumber(
        &mut self,
        conn: &Connection,
        lane: Lane,
        sent: u64,
        above: u64,
    ) -> Result<(), StoreError> {
        let last = self.numbering.last.get(lane);
        let (sent, base) = (sent.min(last), above.max(last));
        if base.saturating_add(last - sent) > MAX_NUMBER / 2 {
            // No outbox uses so many numbers. Under a new id the remaining ones are valid again.
            tracing::warn!(above, "new outbox: numbers exhausted");
            let id = std::mem::replace(&mut self.numbering.id, new_id());
            return self.write_numbering(conn).inspect_err(|_| self.numbering.id = id);
        }
        row::shift(conn, lane, sent, last, base - sent)?;
        self.numbering.last.set(lane, base + (last - sent));
        self.write_last(conn)
    }

    /// Corrects the times in the pending Events of a lane between two numbers, up to the limit of
    /// one transaction. Corrected items get new numbers, because the old ones may be in flight.
    /// Calls `corrected` with each key; returns where to continue, `None` at the end.
    pub(in crate::store) fn correct_times(
        &mut self,
        conn: &Connection,
        rules: Rules,
        (lane, after, upto): (Lane, u64, u64),
        (before, forward_ms): (MonotonicTime, i64),
        mut corrected: impl FnMut(&str) -> Result<(), StoreError>,
    ) -> Result<Option<u64>, StoreError> {
        let range = (after, upto);
        let found = row::written_before(conn, lane, range, EVENT_PREFIX, before, CORRECTION_BYTES)?;
        let now = jiff::Timestamp::now();
        for (_, put) in &found {
            let Some(content) = times::shift_content(&put.content, forward_ms, now) else { continue };
            if content.len() <= MAX_UPLOAD_BYTES {
                self.put(conn, rules, &OutboxPut { content, ..put.clone() }, None)?;
                corrected(&put.key)?;
            }
        }
        Ok(found.last().map(|(number, _)| *number))
    }

    /// Seals all items that require it, in separate transactions, like [`Outbox::reseal`].
    pub(in crate::store) fn seal_all(
        &mut self,
        conn: &Connection,
        seals: &Seals,
        resources: &Resources,
    ) -> Result<(), StoreError> {
        let mut after = Some(0);
        while let Some(from) = after {
            let tx = conn.unchecked_transaction()?;
            let sealed = self.reseal(&tx, seals, resources, from);
            let committed = sealed.and_then(|next| Ok(tx.commit().map(|()| next)?));
            after = committed.inspect_err(|_| self.revert())?;
            self.commit();
        }
        Ok(())
    }

    /// Seals a batch of items of the status lane after a number, if they require it or have an old
    /// key. Drops those that cannot be opened. Returns where to continue, `None` at the end.
    pub(in crate::store) fn reseal(
        &mut self,
        conn: &Connection,
        seals: &Seals,
        resources: &Resources,
        after: u64,
    ) -> Result<Option<u64>, StoreError> {
        let (lane, mut lost) = (Lane::Status, 0);
        let next = row::reseal(conn, seals, resources, (lane, after), |row, bytes| {
            self.uncount(lane, row);
            match bytes {
                Some(bytes) => {
                    add(&mut self.counts.rows, lane, 1);
                    add(&mut self.counts.bytes, lane, bytes);
                }
                None => lost += 1,
            }
        })?;
        if lost > 0 {
            add(&mut self.counts.dropped, lane, lost);
            self.write_last(conn)?;
        }
        Ok(next)
    }

    /// Drops the given rows that are really damaged or cannot be opened, and recounts. Returns how
    /// many they were.
    pub(in crate::store) fn drop_damaged(
        &mut self,
        conn: &Connection,
        seals: &Seals,
        ids: &[i64],
    ) -> Result<u64, StoreError> {
        let mut dropped = 0;
        for id in ids {
            if row::is_damaged(conn, seals, *id)? {
                self.drop_damaged_row(conn, *id)?;
                dropped += 1;
            }
        }
        if dropped > 0 {
            self.recount(conn)?;
            self.write_last(conn)?;
        }
        Ok(dropped)
    }

    fn drop_damaged_row(&mut self, conn: &Connection, id: i64) -> Result<(), StoreError> {
        tracing::warn!(row = id, "damaged outbox item dropped");
        row::remove(conn, id)?;
        // An id without a lane is damaged itself.
        let lane = row::lane_and_number(id).map_or(Lane::Bulk, |(lane, _)| lane);
        add(&mut self.counts.dropped, lane, 1);
        Ok(())
    }

    fn recount(&mut self, conn: &Connection) -> Result<(), StoreError> {
        let (census, _) = row::census(conn)?;
        (self.counts.rows, self.counts.bytes) = (census.rows, census.bytes);
        Ok(())
    }
}

/// Reads id and last numbers of a file's outbox, each if its checksum is correct.
fn read_numbering(conn: &Connection) -> (Option<String>, Option<Lanes>) {
    let read = |key| metadata::checked(conn, key).ok().flatten();
    let last = read(LAST_KEY).and_then(|text| {
        let mut numbers = text.split(' ').map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Lanes { status: next()?, events: next()?, bulk: next()? })
    });
    (read(ID_KEY), last)
}

fn later(one: Lanes, other: Lanes) -> Lanes {
    let mut later = one;
    for lane in Lane::ALL {
        later.set(lane, one.get(lane).max(other.get(lane)));
    }
    later
}

fn new_id() -> String {
    let random = uuid::Uuid::new_v4().as_u128();
    format!("{:016x}", (random >> 64) as u64 ^ random as u64)
}

/// Returns a numbering where a part is unknown. Without the id it is a new outbox, which continues
/// from its rows; without the numbers it continues far above them.
fn new_numbering(id: Option<String>, last: Lanes) -> Numbering {
    match id {
        Some(id) => Numbering { id, last: leap(last) },
        None => Numbering { id: new_id(), last },
    }
}

/// Returns numbers above all that were used after these: they grow far more slowly than
/// microseconds pass.
fn leap(last: Lanes) -> Lanes {
    let now = u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or(0).min(MAX_NUMBER / 4);
    let mut leapt = Lanes::default();
    for lane in Lane::ALL {
        leapt.set(lane, last.get(lane).saturating_add(LEAP).max(now));
    }
    leapt
}
