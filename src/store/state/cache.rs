//! The page cache of the write connection: larger while objects arrive in bulk, because the index
//! of random UIDs does not fit otherwise, and each insert would read and evict pages.

use rusqlite::Connection;

use edgesync_store::StoreError;
use edgesync_store::engine;

/// Changes in a batch that make it a bulk load.
const BULK_CHANGES: usize = 32;
/// The multiple of the configured cache during a bulk load.
const BULK_FACTOR: u32 = 4;

/// The cache of a connection.
#[derive(Debug)]
pub(super) struct PageCache {
    configured_kib: u32,
    is_large: bool,
}

impl PageCache {
    /// The state of a connection that was opened with so much cache.
    pub(super) fn new(configured_kib: u32) -> Self {
        Self { configured_kib, is_large: false }
    }

    /// Prepares for a batch of so many changes.
    pub(super) fn prepare(&mut self, conn: &Connection, changes: usize) -> Result<(), StoreError> {
        if changes >= BULK_CHANGES && !self.is_large {
            engine::set_cache_kib(conn, self.configured_kib.saturating_mul(BULK_FACTOR))?;
            self.is_large = true;
        }
        Ok(())
    }

    /// Frees the additional pages once no batch follows.
    pub(super) fn shrink(&mut self, conn: &Connection) -> Result<(), StoreError> {
        if std::mem::take(&mut self.is_large) {
            engine::set_cache_kib(conn, self.configured_kib)?;
        }
        Ok(())
    }

    /// Starts over with a new connection.
    pub(super) fn reopened(&mut self) {
        self.is_large = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kib(conn: &Connection) -> i64 {
        conn.pragma_query_value(None, "cache_size", |row| row.get(0)).unwrap()
    }

    #[test]
    fn cache_is_larger_for_bulk_batches_only() {
        let conn = Connection::open_in_memory().unwrap();
        engine::set_cache_kib(&conn, 512).unwrap();
        let mut cache = PageCache::new(512);
        cache.prepare(&conn, BULK_CHANGES - 1).unwrap();
        assert_eq!(kib(&conn), -512);
        cache.prepare(&conn, BULK_CHANGES).unwrap();
        assert_eq!(kib(&conn), -2048);
        cache.prepare(&conn, 1).unwrap();
        assert_eq!(kib(&conn), -2048, "it stays until no batch follows");
        cache.shrink(&conn).unwrap();
        assert_eq!(kib(&conn), -512);
        cache.prepare(&conn, BULK_CHANGES).unwrap();
        cache.reopened();
        let fresh = Connection::open_in_memory().unwrap();
        cache.prepare(&fresh, BULK_CHANGES).unwrap();
        assert_eq!(kib(&fresh), -2048);
    }
}
