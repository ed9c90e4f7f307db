//! What mirrors table `outbox`: how many rows and bytes each lane has, and the numbers that were given. With it a
//! put costs the same however much waits.

use rusqlite::Connection;

use super::row::{self, Found, MAX_NUMBER, OutboxRow};
use super::times;
use super::{Clocked, EVENT_PREFIX, MAX_UPLOAD_BYTES, OutboxLimits, OutboxPut};
use crate::store::notes;
use crate::store::rows::Resources;
use crate::store::seals::Seals;
use edgesync_protocol::edge::OutboxMarks;
use edgesync_protocol::upload::{Lane, Lanes};
use edgesync_store::StoreError;

/// The key in table `meta` of the outbox's id.
const ID_KEY: &str = "outbox_id";
/// The key in table `meta` of the last numbers, where no row has them.
const LAST_KEY: &str = "outbox_last";

/// Numbers left out where it is not known which ones were given.
const LEAP: u64 = 1 << 20;
/// Confirmed rows that go with one transaction: bounds the pages that it holds in memory.
const CLEARED_AT_ONCE: u32 = 512;
/// Rows that one put may drop. Only smaller limits make more than a few go.
const DROPPED_AT_ONCE: u32 = 1024;
/// Bytes of rows whose times are corrected in one transaction.
const CORRECTED_BYTES: usize = 128 << 10;

/// Which outbox a file has, and how far its numbers have been given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Numbering {
    id: String,
    last: Lanes,
}

/// What is undone with a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Counts {
    rows: Lanes,
    bytes: Lanes,
    dropped: Lanes,
    /// The last numbers in table `meta`.
    noted: Lanes,
    /// All rows up to here have been removed.
    cleared: Lanes,
}

fn add(lanes: &mut Lanes, lane: Lane, number: u64) {
    lanes.set(lane, lanes.get(lane).saturating_add(number));
}

fn take(lanes: &mut Lanes, lane: Lane, number: u64) {
    lanes.set(lane, lanes.get(lane).saturating_sub(number));
}

fn sum(lanes: &Lanes, of: &[Lane]) -> u64 {
    of.iter().fold(0, |sum, lane| sum.saturating_add(lanes.get(*lane)))
}

/// What holds for a write: limits, and what the cloud has confirmed.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Rules {
    pub(in crate::store) limits: OutboxLimits,
    pub(in crate::store) settled: Lanes,
}

/// The mirror of the table.
#[derive(Debug, Default)]
pub(in crate::store) struct Outbox {
    /// Its `last` never goes back while the store is open, whatever is rolled back.
    numbering: Numbering,
    counts: Counts,
    committed: Counts,
    committed_id: String,
}

impl Outbox {
    /// Reads the table, drops damaged rows, and makes an outbox in a file that has none. Says what has been
    /// confirmed for sure: all that is before the first row.
    pub(in crate::store) fn open(conn: &Connection) -> Result<(Self, Lanes), StoreError> {
        let (census, damaged) = row::census(conn)?;
        // The index tells of rows that a damaged page of the table hides.
        let all_seen = sum(&census.rows, &Lane::ALL) + damaged.len() as u64 == row::indexed(conn)?;
        let is_whole = all_seen && damaged.is_empty();
        let (numbering, is_known) = match read_numbering(conn) {
            (Some(id), Some(noted)) => (Numbering { id, last: later(noted, census.last) }, true),
            (id, noted) => (number_anew(id, later(noted.unwrap_or_default(), census.last)), false),
        };
        let mut outbox = Self { numbering, ..Self::default() };
        if !(is_whole && is_known) {
            let tx = conn.unchecked_transaction()?;
            if !is_whole {
                // A row that is damaged or hidden may have had the last number.
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
        counts.noted = read_numbering(conn).1.unwrap_or_default();
        let mut confirmed = last;
        for lane in Lane::ALL {
            if census.rows.get(lane) > 0 {
                confirmed.set(lane, census.first.get(lane).saturating_sub(1));
            }
        }
        outbox.commit();
        Ok((outbox, confirmed))
    }

    /// Makes the outbox of a new file; its rows, if there are any, are in it already.
    pub(in crate::store) fn start(
        conn: &Connection,
        numbering: Option<&Numbering>,
    ) -> Result<(), StoreError> {
        let (census, _) = row::census(conn)?;
        let numbering = match numbering {
            Some(known) => Numbering { id: known.id.clone(), last: later(known.last, census.last) },
            None => number_anew(None, census.last),
        };
        Self { numbering, ..Self::default() }.write_numbering(conn)
    }

    /// The numbering that a file with damage had, as far as it can be read.
    pub(in crate::store) fn salvaged(source: &Connection) -> Option<Numbering> {
        let (id, noted) = read_numbering(source);
        id.map(|id| Numbering { id, last: leap(noted.unwrap_or_default()) })
    }

    /// Copies the rows that can be read into another file, within its transaction, which is begun anew at times.
    pub(in crate::store) fn salvage(source: &Connection, fresh: &Connection) -> Result<(), StoreError> {
        row::salvage(source, fresh)
    }

    pub(in crate::store) fn numbering(&self) -> Numbering {
        self.numbering.clone()
    }

    /// Takes over from the mirror of a file that was replaced by this one: what is lost counts as dropped.
    pub(in crate::store) fn succeed(&mut self, before: &Self) {
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

    /// Undoes what was counted since.
    pub(in crate::store) fn restore(&mut self, counts: Counts) {
        self.counts = counts;
    }

    /// The transaction was rolled back.
    pub(in crate::store) fn revert(&mut self) {
        self.counts = self.committed;
        self.numbering.id.clone_from(&self.committed_id);
    }

    /// The transaction was committed.
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
        take(&mut self.counts.rows, lane, 1);
        take(&mut self.counts.bytes, lane, row.bytes);
    }

    /// Puts an item at the end of its lane, in the place of the one under its key: its content, or what it is sealed as.
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
            tracing::warn!(key = put.key, bytes = put.content.len(), "an item cannot be sent and is dropped");
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
        self.trim(conn, rules, DROPPED_AT_ONCE)
    }

    /// Numbers never come near their end: [`Outbox::renumber`] and [`leap`] see to it.
    fn append(&mut self, conn: &Connection, put: &OutboxPut, body: &str) -> Result<(), StoreError> {
        let lane = put.lane;
        let number = self.numbering.last.get(lane) + 1;
        OutboxRow { lane, number, at: put.at, key: &put.key, body }.insert(conn)?;
        self.numbering.last.set(lane, number);
        add(&mut self.counts.rows, lane, 1);
        add(&mut self.counts.bytes, lane, body.len() as u64);
        Ok(())
    }

    /// Whether there is room for an item if everything goes that is of no more importance.
    fn can_fit(&self, limits: OutboxLimits, lane: Lane, bytes: u64) -> bool {
        let more_important = Lane::ALL.get(..lane.index()).unwrap_or_default();
        sum(&self.counts.rows, more_important) < limits.rows
            && sum(&self.counts.bytes, more_important).saturating_add(bytes) <= limits.bytes
    }

    fn is_over(&self, limits: OutboxLimits) -> bool {
        sum(&self.counts.rows, &Lane::ALL) > limits.rows || sum(&self.counts.bytes, &Lane::ALL) > limits.bytes
    }

    /// Drops the oldest rows of the least important lane until the limits hold; first those that are confirmed.
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
                // Somebody has removed rows behind the store's back.
                None => self.count_anew(conn)?,
            }
        }
        Ok(())
    }

    /// Whether there may be rows that are confirmed.
    pub(in crate::store) fn has_confirmed(&self, settled: Lanes) -> bool {
        let has = |lane| self.counts.rows.get(lane) > 0 && settled.get(lane) > self.counts.cleared.get(lane);
        Lane::ALL.into_iter().any(has)
    }

    /// Removes rows that are confirmed, not too many at a time.
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
            row::remove_oldest(conn, lane, upto, CLEARED_AT_ONCE, |row| {
                removed += 1;
                self.uncount(lane, row);
            })?;
            if removed < CLEARED_AT_ONCE {
                self.counts.cleared.set(lane, upto);
            }
        }
        Ok(())
    }

    /// Writes the last numbers if no row has them any more. To be called before each commit.
    pub(in crate::store) fn note_last(&mut self, conn: &Connection) -> Result<(), StoreError> {
        let last = self.numbering.last;
        let bare = |lane| self.counts.rows.get(lane) == 0 && self.counts.noted.get(lane) < last.get(lane);
        if Lane::ALL.into_iter().any(bare) {
            self.write_last(conn)?;
        }
        Ok(())
    }

    fn write_last(&mut self, conn: &Connection) -> Result<(), StoreError> {
        let Lanes { status, events, bulk } = self.numbering.last;
        notes::set_checked(conn, LAST_KEY, &format!("{status} {events} {bulk}"))?;
        self.counts.noted = self.numbering.last;
        Ok(())
    }

    fn write_numbering(&mut self, conn: &Connection) -> Result<(), StoreError> {
        notes::set_checked(conn, ID_KEY, &self.numbering.id)?;
        self.write_last(conn)
    }

    /// See [`super::super::EdgeStore::renumber_outbox`].
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
            // Nobody has given so many numbers. In another outbox those that are left mean something again.
            tracing::warn!(above, "the outbox begins anew: its numbers are used up");
            let id = std::mem::replace(&mut self.numbering.id, new_id());
            return self.write_numbering(conn).inspect_err(|_| self.numbering.id = id);
        }
        row::shift(conn, lane, sent, last, base - sent)?;
        self.numbering.last.set(lane, base + (last - sent));
        self.write_last(conn)
    }

    /// Corrects the times in the Events that wait in a lane between two numbers, as far as one transaction goes:
    /// they are put anew, since what was there may be on its way. Gives each one's key to `corrected`; says
    /// where to go on, none at the end.
    pub(in crate::store) fn correct_times(
        &mut self,
        conn: &Connection,
        rules: Rules,
        (lane, after, upto): (Lane, u64, u64),
        (before, forward_ms): (Clocked, i64),
        mut corrected: impl FnMut(&str) -> Result<(), StoreError>,
    ) -> Result<Option<u64>, StoreError> {
        let range = (after, upto);
        let found = row::made_before(conn, lane, range, EVENT_PREFIX, before, CORRECTED_BYTES)?;
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

    /// Seals all that is to be sealed, in transactions of its own, as [`Outbox::reseal`] does.
    pub(in crate::store) fn settle_seals(
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

    /// Seals what is to be sealed after a number of the lane of status, or with another key: some rows of it. Those that
    /// cannot be opened any more are dropped. Says where to go on, none at the end.
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

    /// Drops those of the rows that are really damaged or cannot be opened, and counts what is left; says how many they
    /// were.
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
            self.count_anew(conn)?;
            self.write_last(conn)?;
        }
        Ok(dropped)
    }

    fn drop_damaged_row(&mut self, conn: &Connection, id: i64) -> Result<(), StoreError> {
        tracing::warn!(row = id, "a damaged item of the outbox is dropped");
        row::remove(conn, id)?;
        // An id of no lane is damaged itself.
        let lane = row::place(id).map_or(Lane::Bulk, |(lane, _)| lane);
        add(&mut self.counts.dropped, lane, 1);
        Ok(())
    }

    fn count_anew(&mut self, conn: &Connection) -> Result<(), StoreError> {
        let (census, _) = row::census(conn)?;
        (self.counts.rows, self.counts.bytes) = (census.rows, census.bytes);
        Ok(())
    }
}

/// What the file says of its outbox: id and last numbers, each as far as it is as it was written.
fn read_numbering(conn: &Connection) -> (Option<String>, Option<Lanes>) {
    let read = |key| notes::checked(conn, key).ok().flatten();
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

/// The numbering where one of its parts is not known. Numbers of another outbox mean nothing: without the id it
/// is another one, and goes on from the rows it has; without the numbers it goes on far above them.
fn number_anew(id: Option<String>, last: Lanes) -> Numbering {
    match id {
        Some(id) => Numbering { id, last: leap(last) },
        None => Numbering { id: new_id(), last },
    }
}

/// Numbers that are above all that were given after these: they count far more slowly than microseconds pass.
fn leap(last: Lanes) -> Lanes {
    let now = u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or(0).min(MAX_NUMBER / 4);
    let mut leapt = Lanes::default();
    for lane in Lane::ALL {
        leapt.set(lane, last.get(lane).saturating_add(LEAP).max(now));
    }
    leapt
}
