//! What lives beside the write connection: the counter of versions, the history's length, and the
//! changes that are published once they are committed.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::broadcast;

use super::CloudError;
use super::change::{ChangeKind, FeedChange};
use super::gone::Gone;
use super::history::{HistoryLimits, Partition};
use super::observer::{KindName, Observer, WatchChange};
use super::stored::Stored;
use super::versions::{Counters, micros};
use edgesync_placement::{Summary, concerns};
use edgesync_store::StoreError;
use edgesync_store::engine::{self, Checkpoint};
use edgesync_store::snapshots::Snapshots;
use edgesync_store::writer::WriterHooks;

/// The most bytes of changes that one transaction keeps for the observer; of a larger one it is
/// told the version only.
const MAX_UNTOLD_BYTES: usize = 32 << 20;

/// The state of the writer's thread.
pub(super) struct CloudState {
    /// Including what the open transaction has done.
    now: Counters,
    committed: Counters,
    pending: Vec<FeedChange>,
    feed: broadcast::Sender<FeedChange>,
    /// Where the observer is found once there is one.
    observers: Arc<OnceLock<Arc<dyn Observer>>>,
    observer: Option<Arc<dyn Observer>>,
    untold: Vec<WatchChange>,
    untold_bytes: usize,
    /// Kinds that the open transaction has met, by their number.
    kinds: HashMap<i64, Known>,
    /// The last committed version, for everyone.
    last_version: Arc<AtomicU64>,
    limits: HistoryLimits,
    /// The namespaces that went last.
    pub(super) gone: Gone,
    /// What may keep the log from beginning anew.
    snapshots: Option<Snapshots>,
    /// The exclusive lock on the database, held as long as the connection.
    _lock: File,
}

/// The partition of a kind, and its name as far as the observer wants its changes.
type Known = (Partition, Option<Arc<KindName>>);

/// How far a job has come: what a failed job is taken back to.
pub(super) struct Mark {
    counters: Counters,
    pending: usize,
    untold: usize,
}

/// A change to be entered into the history.
pub(super) struct Event {
    pub(super) kind: ChangeKind,
    pub(super) resource_id: i64,
    /// After the change; a deleted one as it was last, with the version of the deletion.
    pub(super) object: Stored,
    pub(super) before: Before,
}

/// What an object was before a change.
pub(super) enum Before {
    /// It was not.
    Nothing,
    /// What it is in the change, but for the version: for deletions.
    Same { version: u64 },
    /// This.
    Whole { version: u64, body: String },
    /// This, which differs in the version held and its own version only: for records.
    Record { version: u64, body: String, held: String },
}

impl Before {
    /// The columns `previous_version` and `previous` of the history.
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
        observers: Arc<OnceLock<Arc<dyn Observer>>>,
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
            untold: Vec::new(),
            untold_bytes: 0,
            kinds: HashMap::new(),
            last_version,
            limits,
            gone: Gone::default(),
            snapshots: None,
            _lock: lock,
        }
    }

    /// Sets the snapshots that are given up when the log is too long.
    pub(super) fn set_snapshots(&mut self, snapshots: Snapshots) {
        self.snapshots = Some(snapshots);
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { counters: self.now, pending: self.pending.len(), untold: self.untold.len() }
    }

    /// Takes back what a failed job has done since the mark.
    pub(super) fn reset(&mut self, mark: &Mark) {
        self.now = mark.counters;
        self.pending.truncate(mark.pending);
        self.untold.truncate(mark.untold);
    }

    /// The next version. Part of the transaction: a failed job gives its versions back unseen.
    pub(super) fn next_version(&mut self) -> u64 {
        self.now.last += 1;
        self.now.last
    }

    /// Whether the clock has jumped ahead of the one that runs with the machine since this was
    /// asked before.
    pub(super) fn has_jumped(&mut self, now: jiff::Timestamp, running: Duration) -> bool {
        self.now.lead.has_jumped(micros(now), running)
    }

    /// The last version given.
    pub(super) fn last(&self) -> u64 {
        self.now.last
    }

    /// Goes on from a later version. Part of the transaction too.
    pub(super) fn jump(&mut self, base: u64) {
        self.now.last = base;
    }

    /// Enters a change into the history.
    pub(super) fn enter(&mut self, conn: &Connection, event: Event) -> Result<(), CloudError> {
        let (partition, wanted) = self.known(conn, event.resource_id)?;
        let change = (event.kind, event.resource_id, &event.object);
        self.now.history.enter(conn, partition, change, event.before.columns())?;
        let Some(of) = wanted else { return Ok(()) };
        let Event { kind, object, before, .. } = event;
        self.untold_bytes += object.body.len() + before.len();
        if self.untold_bytes > MAX_UNTOLD_BYTES {
            self.untold.clear();
            return Ok(());
        }
        let Stored { version, namespace, name, body, .. } = object;
        let previous = before.into_body();
        self.untold.push(WatchChange { kind, of, version, namespace, name, body, previous });
        Ok(())
    }

    /// Where changes of a kind go: its partition of the history, and its name if the observer wants
    /// them.
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

    /// Tells the observer what has been committed.
    fn tell(&mut self) {
        let changes = std::mem::take(&mut self.untold);
        let too_many = std::mem::take(&mut self.untold_bytes) > MAX_UNTOLD_BYTES;
        match &self.observer {
            Some(observer) if too_many => observer.begin(self.now.last),
            Some(observer) if self.now.last != self.committed.last => {
                observer.committed(changes, self.now.last);
            }
            _ => {}
        }
    }

    /// Publishes a change after the commit.
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
        // Before anyone can ask for changes after the new version.
        self.tell();
        self.committed = self.now;
        self.last_version.store(self.now.last, Ordering::Release);
        for change in self.pending.drain(..) {
            // Fails if nobody listens.
            let _ = self.feed.send(change);
        }
    }

    fn rolled_back(&mut self, conn: &Connection) {
        // A kind that was entered by what is undone may leave its number to another one.
        self.kinds.clear();
        // Within a transaction a single job was undone, which has reset its own part already.
        if conn.is_autocommit() {
            self.now = self.committed;
            self.pending.clear();
            self.untold.clear();
            self.untold_bytes = 0;
        }
    }

    fn log_too_long(&mut self) {
        let lists = self.snapshots.as_ref().map_or(0, Snapshots::give_up);
        if lists > 0 {
            tracing::info!(
                lists,
                "the log of the database is too long: open lists have to be asked for anew"
            );
        }
    }

    fn closing(&mut self, conn: &mut Connection) {
        // A closed store is one file: whoever copies it need not know of the log.
        if let Err(error) = engine::checkpoint(conn, Checkpoint::Truncate) {
            tracing::warn!(%error, "the log could not be copied into the database while closing it");
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
