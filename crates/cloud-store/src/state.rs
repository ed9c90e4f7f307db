//! State of the writer's thread beside the connection: the version counter, the lengths of the
//! history, and the changes to publish after the commit.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::broadcast;

use super::CloudError;
use super::change::{ChangeKind, FeedChange};
use super::commit_listener::{CommitListener, KindName, WatchChange};
use super::gone::Gone;
use super::history::{HistoryLimits, Partition};
use super::stored::Stored;
use super::versions::{Counters, micros};
use edgesync_placement::{Summary, concerns};
use edgesync_store::StoreError;
use edgesync_store::engine::{self, Checkpoint};
use edgesync_store::snapshots::Snapshots;
use edgesync_store::writer::WriterHooks;

/// Limit of the bytes of changes that one transaction buffers for the observer. Beyond it the
/// observer receives only the version.
const MAX_UNPUBLISHED_BYTES: usize = 32 << 20;

/// State of the writer's thread.
pub(super) struct CloudState {
    /// Counters including the open transaction.
    now: Counters,
    committed: Counters,
    pending: Vec<FeedChange>,
    feed: broadcast::Sender<FeedChange>,
    /// Cell in which the observer is registered.
    observers: Arc<OnceLock<Arc<dyn CommitListener>>>,
    observer: Option<Arc<dyn CommitListener>>,
    unpublished: Vec<WatchChange>,
    unpublished_bytes: usize,
    /// Kinds used in the open transaction, by id.
    kinds: HashMap<i64, Known>,
    /// The last committed version, shared with all handles.
    last_version: Arc<AtomicU64>,
    limits: HistoryLimits,
    /// The namespaces deleted last.
    pub(super) gone: Gone,
    /// Open snapshots, which can prevent a restart of the log.
    snapshots: Option<Snapshots>,
    /// Exclusive lock on the database, held as long as the connection.
    _lock: File,
}

/// Partition of a kind; and its name, if the observer wants its changes.
type Known = (Partition, Option<Arc<KindName>>);

/// Position in a transaction to which a failed job is rolled back.
pub(super) struct Mark {
    counters: Counters,
    pending: usize,
    unpublished: usize,
}

/// A change to enter into the history.
pub(super) struct Event {
    pub(super) kind: ChangeKind,
    pub(super) resource_id: i64,
    /// The object after the change; for a deletion, its last state with the version of the
    /// deletion.
    pub(super) object: Stored,
    pub(super) before: Before,
}

/// State of an object before a change.
pub(super) enum Before {
    /// The object did not exist.
    Nothing,
    /// The same except for the version: for deletions.
    Same { version: u64 },
    /// A full previous state.
    Whole { version: u64, body: String },
    /// A previous state that differs only in the version held and in its own version: for records.
    Record { version: u64, body: String, held: String },
}

impl Before {
    /// Returns the columns `previous_version` and `previous` of the history.
    fn columns(&self) -> (Option<u64>, Option<&str>) {
        match self {
            Self::Nothing => (None, None),
            Self::Same { version } => (Some(*version), None),
            Self::Whole { version, body } => (Some(*version), Some(body)),
            Self::Record { version, held, .. } => (Some(*version), Some(held)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Nothing | Self::Same { .. } => 0,
            Self::Whole { body, .. } | Self::Record { body, .. } => body.len(),
        }
    }

    fn into_body(self) -> Option<String> {
        match self {
            Self::Nothing | Self::Same { .. } => None,
            Self::Whole { body, .. } | Self::Record { body, .. } => Some(body),
        }
    }
}

impl CloudState {
    pub(super) fn new(
        counters: Counters,
        feed: broadcast::Sender<FeedChange>,
        observers: Arc<OnceLock<Arc<dyn CommitListener>>>,
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
            observers,
            observer: None,
            unpublished: Vec::new(),
            unpublished_bytes: 0,
            kinds: HashMap::new(),
            last_version,
            limits,
            gone: Gone::default(),
            snapshots: None,
            _lock: lock,
        }
    }

    /// Sets the snapshots to abort when the log is too long.
    pub(super) fn set_snapshots(&mut self, snapshots: Snapshots) {
        self.snapshots = Some(snapshots);
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { counters: self.now, pending: self.pending.len(), unpublished: self.unpublished.len() }
    }

    /// Rolls back the state of a failed job to the mark.
    pub(super) fn reset(&mut self, mark: &Mark) {
        self.now = mark.counters;
        self.pending.truncate(mark.pending);
        self.unpublished.truncate(mark.unpublished);
    }

    /// Returns the next version. Part of the transaction: versions of a failed job were never
    /// visible, and are reused.
    pub(super) fn next_version(&mut self) -> u64 {
        self.now.last += 1;
        self.now.last
    }

    /// Returns whether the wall clock has jumped ahead of the boot-time clock since the last call.
    pub(super) fn has_jumped(&mut self, now: jiff::Timestamp, running: Duration) -> bool {
        self.now.lead.has_jumped(micros(now), running)
    }

    /// Returns the last version issued.
    pub(super) fn last(&self) -> u64 {
        self.now.last
    }

    /// Continues from a later version. Part of the transaction.
    pub(super) fn jump(&mut self, base: u64) {
        self.now.last = base;
    }

    /// Enters a change into the history, and buffers it for the observer.
    pub(super) fn enter(&mut self, conn: &Connection, event: Event) -> Result<(), CloudError> {
        let (partition, wanted) = self.known(conn, event.resource_id)?;
        let change = (event.kind, event.resource_id, &event.object);
        self.now.history.enter(conn, partition, change, event.before.columns())?;
        let Some(of) = wanted else { return Ok(()) };
        let Event { kind, object, before, .. } = event;
        self.unpublished_bytes += object.body.len() + before.len();
        if self.unpublished_bytes > MAX_UNPUBLISHED_BYTES {
            self.unpublished.clear();
            return Ok(());
        }
        let Stored { version, namespace, name, body, .. } = object;
        let previous = before.into_body();
        self.unpublished.push(WatchChange { kind, of, version, namespace, name, body, previous });
        Ok(())
    }

    /// Returns the history partition of a kind; and its name, if the observer wants its changes.
    fn known(&mut self, conn: &Connection, resource_id: i64) -> rusqlite::Result<Known> {
        if let Some(known) = self.kinds.get(&resource_id) {
            return Ok(known.clone());
        }
        let name = conn
            .prepare_cached(r#"SELECT "group", kind FROM resources WHERE id = ?1"#)?
            .query_row([resource_id], |row| Ok(KindName { group: row.get(0)?, kind: row.get(1)? }))?;
        let partition = Partition::of(&name);
        let wanted = self.observer.as_ref().is_some_and(|observer| observer.wants(&name));
        let known = (partition, wanted.then(|| Arc::new(name)));
        self.kinds.insert(resource_id, known.clone());
        Ok(known)
    }

    /// Notifies the observer of the commit.
    fn tell(&mut self) {
        let changes = std::mem::take(&mut self.unpublished);
        let too_many = std::mem::take(&mut self.unpublished_bytes) > MAX_UNPUBLISHED_BYTES;
        match &self.observer {
            Some(observer) if too_many => observer.begin(self.now.last),
            Some(observer) if self.now.last != self.committed.last => {
                observer.committed(changes, self.now.last);
            }
            _ => {}
        }
    }

    /// Queues a change for the feed, to be sent after the commit.
    pub(super) fn publish(&mut self, kind: ChangeKind, version: u64, object: Summary) {
        if concerns(&object.resource) {
            self.pending.push(FeedChange { kind, version, object: Arc::new(object) });
        }
    }
}

impl WriterHooks for CloudState {
    fn before_group(&mut self, _conn: &mut Connection) -> Result<(), StoreError> {
        if self.observer.is_none()
            && let Some(observer) = self.observers.get()
        {
            observer.begin(self.committed.last);
            self.observer = Some(Arc::clone(observer));
        }
        if let Some(observer) = &self.observer {
            observer.attend(self.committed.last);
        }
        self.kinds.clear();
        Ok(())
    }

    fn before_commit(&mut self, conn: &Connection) -> Result<(), StoreError> {
        self.now.history.trim(conn, &self.limits)?;
        if self.now != self.committed {
            conn.prepare_cached("UPDATE meta SET last_version = ?1 WHERE id = 1")?
                .execute([self.now.last])?;
        }
        Ok(())
    }

    fn committed(&mut self, _conn: &Connection) {
        // The observer goes first: once the version is public, clients can ask for later changes.
        self.tell();
        self.committed = self.now;
        self.last_version.store(self.now.last, Ordering::Release);
        for change in self.pending.drain(..) {
            // Fails without receivers.
            let _ = self.feed.send(change);
        }
    }

    fn rolled_back(&mut self, conn: &Connection) {
        // The id of a kind registered by the undone job may be reused for another kind.
        self.kinds.clear();
        // Inside a transaction only one job was undone, which has already reset its own part.
        if conn.is_autocommit() {
            self.now = self.committed;
            self.pending.clear();
            self.unpublished.clear();
            self.unpublished_bytes = 0;
        }
    }

    fn log_too_long(&mut self) {
        let lists = self.snapshots.as_ref().map_or(0, Snapshots::end_all);
        if lists > 0 {
            tracing::info!(lists, "write-ahead log too large: open lists closed");
        }
    }

    fn closing(&mut self, conn: &mut Connection) {
        // A closed store is one file, so that a plain copy is complete without the log.
        if let Err(error) = engine::checkpoint(conn, Checkpoint::Truncate) {
            tracing::warn!(%error, "checkpoint at close failed");
        }
    }
}

impl Drop for CloudState {
    fn drop(&mut self) {
        if let Some(observer) = self.observers.get() {
            observer.closed();
        }
    }
}
