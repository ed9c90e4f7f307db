//! What lives beside the write connection: the counter of versions, the history's length, and the changes
//! that are published once they are committed.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;
use tokio::sync::broadcast;

use super::CloudError;
use super::feed::{ChangeKind, FeedChange};
use super::versions::Counters;
use crate::object::Summary;
use crate::store::StoreError;
use crate::store::engine::{self, Checkpoint};
use crate::store::writer::Steward;

/// The bounds of the history. It is cut when it exceeds one of them by an eighth.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// Changes.
    pub events: u64,
    /// Bytes of objects in the changes.
    pub bytes: u64,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self { events: 8192, bytes: 64 << 20 }
    }
}

impl HistoryLimits {
    fn allow(&self, counters: &Counters, slack: bool) -> bool {
        let limit = |limit: u64| if slack { limit.saturating_add(limit / 8) } else { limit };
        counters.events <= limit(self.events) && counters.event_bytes <= limit(self.bytes)
    }
}

/// The state of the writer's thread.
pub(super) struct CloudSteward {
    /// Including what the open transaction has done.
    now: Counters,
    committed: Counters,
    pending: Vec<FeedChange>,
    feed: broadcast::Sender<FeedChange>,
    /// The last committed version, for everyone.
    last_version: Arc<AtomicU64>,
    limits: HistoryLimits,
    /// The exclusive lock on the database, held as long as the connection.
    _lock: File,
}

/// How far a job has come: what a failed job is taken back to.
pub(super) struct Mark {
    counters: Counters,
    pending: usize,
}

/// A change to be entered into the history.
pub(super) struct Event<'a> {
    pub(super) kind: ChangeKind,
    pub(super) version: u64,
    pub(super) resource_id: i64,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) body: &'a str,
}

impl CloudSteward {
    pub(super) fn new(
        counters: Counters,
        feed: broadcast::Sender<FeedChange>,
        last_version: Arc<AtomicU64>,
        limits: HistoryLimits,
        lock: File,
    ) -> Self {
        last_version.store(counters.last, Ordering::Release);
        Self {
            now: counters,
            committed: counters,
            pending: Vec::new(),
            feed,
            last_version,
            limits,
            _lock: lock,
        }
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { counters: self.now, pending: self.pending.len() }
    }

    /// Takes back what a failed job has done since the mark.
    pub(super) fn reset(&mut self, mark: &Mark) {
        self.now = mark.counters;
        self.pending.truncate(mark.pending);
    }

    /// The next version. Part of the transaction: a failed job gives its versions back unseen.
    pub(super) fn next_version(&mut self) -> u64 {
        self.now.last += 1;
        self.now.last
    }

    /// Enters a change into the history.
    pub(super) fn enter(&mut self, conn: &Connection, event: &Event<'_>) -> Result<(), CloudError> {
        conn.prepare_cached(
            "INSERT INTO events (version, type, resource_id, namespace, name, object)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute((
            event.version,
            event.kind.code(),
            event.resource_id,
            event.namespace,
            event.name,
            event.body,
        ))?;
        self.now.events += 1;
        self.now.event_bytes += event.body.len() as u64;
        Ok(())
    }

    /// Publishes a change after the commit.
    pub(super) fn publish(&mut self, kind: ChangeKind, version: u64, object: Summary) {
        if object.is_node() || Summary::is_placeable(&object.resource) {
            self.pending.push(FeedChange { kind, version, object: Arc::new(object) });
        }
    }

    /// Cuts the history to its limits.
    fn trim(&mut self, conn: &Connection) -> Result<(), StoreError> {
        if self.limits.allow(&self.now, true) {
            return Ok(());
        }
        let mut oldest =
            conn.prepare_cached("SELECT version, octet_length(object) FROM events ORDER BY version")?;
        let mut rows = oldest.query([])?;
        while !self.limits.allow(&self.now, false) {
            let Some(row) = rows.next()? else { break };
            self.now.history_start = row.get(0)?;
            self.now.events = self.now.events.saturating_sub(1);
            self.now.event_bytes = self.now.event_bytes.saturating_sub(row.get(1)?);
        }
        drop(rows);
        conn.prepare_cached("DELETE FROM events WHERE version <= ?1")?.execute([self.now.history_start])?;
        Ok(())
    }
}

impl Steward for CloudSteward {
    fn before_commit(&mut self, conn: &Connection) -> Result<(), StoreError> {
        self.trim(conn)?;
        if self.now != self.committed {
            conn.prepare_cached("UPDATE meta SET last_version = ?1, history_start = ?2 WHERE id = 1")?
                .execute((self.now.last, self.now.history_start))?;
        }
        Ok(())
    }

    fn committed(&mut self, _conn: &Connection) {
        self.committed = self.now;
        self.last_version.store(self.now.last, Ordering::Release);
        for change in self.pending.drain(..) {
            // Fails if nobody listens.
            let _ = self.feed.send(change);
        }
    }

    fn rolled_back(&mut self, conn: &Connection) {
        // Within a transaction a single job was undone, which has reset its own part already.
        if conn.is_autocommit() {
            self.now = self.committed;
            self.pending.clear();
        }
    }

    fn closing(&mut self, conn: &mut Connection) {
        // A closed store is one file: whoever copies it need not know of the log.
        if let Err(error) = engine::checkpoint(conn, Checkpoint::Truncate) {
            tracing::warn!(%error, "the log could not be copied into the database while closing it");
        }
    }
}
