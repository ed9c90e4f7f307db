//! Detects rows that cannot be opened, and reseals rows.

use rusqlite::Connection;

use super::{State, Stored};
use crate::store::rows::{OBJECT_COLUMNS, ObjectRow};
use crate::store::seals::{BATCH_ROWS, BatchResult, reseal_row};
use edgesync_store::StoreError;

/// Damage of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Damage {
    /// Its checksum is wrong.
    Row,
    /// Its body cannot be opened.
    Sealed,
}

impl State {
    /// Checks a row that was reported as damaged.
    pub(in crate::store) fn damage(&self, conn: &Connection, id: i64) -> Result<Option<Damage>, StoreError> {
        let sql = format!("SELECT {OBJECT_COLUMNS} FROM objects WHERE id = ?1");
        let mut statement = conn.prepare(&sql)?;
        let mut rows = statement.query([id])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        Ok(match ObjectRow::read(row)?.filter(|row| row.is_sound(self.resources())) {
            None => Some(Damage::Row),
            Some(row) => self.seals().is_lost(row.binding(), row.body).then_some(Damage::Sealed),
        })
    }

    /// Reseals a batch of rows after an id that are not sealed with the newest key. Returns the
    /// last row checked, `None` at the end, and how many were sealed.
    pub(in crate::store) fn reseal(
        &self,
        conn: &Connection,
        after: i64,
    ) -> Result<(Option<i64>, u64), StoreError> {
        let sql =
            format!("SELECT {OBJECT_COLUMNS} FROM objects WHERE id > ?1 ORDER BY id LIMIT {BATCH_ROWS}");
        let (mut batch, mut last) = (BatchResult::default(), None);
        let mut statement = conn.prepare_cached(&sql)?;
        let mut rows = statement.query([after])?;
        while !batch.is_enough()
            && let Some(row) = rows.next()?
        {
            last = Some(row.get(0)?);
            reseal_row(conn, &self.seals(), self.resources(), row, &mut batch)?;
        }
        Ok((last, batch.resealed))
    }

    /// Does the same for outbox items after a number. Returns where to continue, `None` at the end.
    pub(in crate::store) fn reseal_outbox(
        &mut self,
        conn: &Connection,
        after: u64,
    ) -> Result<Option<u64>, StoreError> {
        self.with_rollback(|state| {
            let Stored { outbox, resources, .. } = &mut state.stored;
            outbox.reseal(conn, &state.seals, resources, after)
        })
    }
}
