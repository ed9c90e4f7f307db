//! Expiry of Events: by age, and by a limit per node.

use std::time::Duration;

use super::objects::{COLUMNS, ObjectRow, Tx};
use super::read::MAX_PAGE_BYTES;
use super::{CloudError, CloudStore};
use edgesync_object::NodeName;
use edgesync_store::engine::integer;

/// Limit of the Events that one transaction evicts: more than an upload contains.
const MAX_ROOM: usize = 500;

impl CloudStore {
    /// Deletes Events unchanged for longer than `ttl`, the oldest first, at most `limit` (and about
    /// [`super::MAX_PAGE_BYTES`]) in one transaction. Returns their number; callers repeat until it
    /// is 0.
    ///
    /// Deletes as a client does, but without waiting for finalizers.
    ///
    /// # Errors
    /// The store's.
    pub async fn expire_events(&self, ttl: Duration, limit: usize) -> Result<u64, CloudError> {
        let ttl = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        self.write(256, move |tx| tx.expire_events(ttl, limit)).await
    }
}

impl Tx<'_> {
    fn expire_events(&mut self, ttl_ms: i64, limit: usize) -> Result<u64, CloudError> {
        let before = self.now.as_millisecond().saturating_sub(ttl_ms);
        let rows = self.unchanged_since(before, limit)?;
        for row in &rows {
            self.remove(row)?;
        }
        Ok(rows.len() as u64)
    }

    /// Deletes the Events created by a node beyond the `limit` most recently changed ones, at most
    /// [`MAX_ROOM`]. Returns their number.
    pub(super) fn make_room(&mut self, node: &NodeName, limit: usize) -> Result<u64, CloudError> {
        let sql = format!(
            r#"SELECT {COLUMNS} FROM objects INDEXED BY objects_by_maker
               WHERE changed IS NOT NULL AND body ->> '$.metadata.annotations."edgesync.io/node"' = ?1
               ORDER BY changed DESC, id DESC LIMIT {MAX_ROOM} OFFSET ?2"#
        );
        let rows: Vec<ObjectRow> = self
            .conn
            .prepare_cached(&sql)?
            .query_map((node.as_str(), integer(limit as u64)), ObjectRow::read)?
            .collect::<Result<_, _>>()?;
        for row in &rows {
            self.remove(row)?;
        }
        Ok(rows.len() as u64)
    }

    fn unchanged_since(&self, time_ms: i64, limit: usize) -> rusqlite::Result<Vec<ObjectRow>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM objects WHERE changed IS NOT NULL AND changed < ?1 ORDER BY changed LIMIT ?2"
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        let mut rows = statement.query((time_ms, integer(limit as u64)))?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        while let Some(row) = rows.next()?
            && bytes < MAX_PAGE_BYTES
        {
            let row = ObjectRow::read(row)?;
            bytes += row.stored.body.len();
            found.push(row);
        }
        Ok(found)
    }
}
