//! Watches the changes of other replicas in the cluster.
//!
//! A stalled watch is detected by a probe. Each revocation also changes one small object, the mark,
//! which is read several times a second. A watch that has not delivered the newest mark is
//! restarted: its connection is dead, which would be noticed much later.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::documents::Record;
use super::member::Member;
use super::objects::{self, ClusterDocuments};
use super::table::Table;
use super::{Changed, MembershipError, MembershipStore, OperatorRecord, Result, warn_damaged};
use crate::object_store::{Failure, Follow, Precondition, WatchEvent};
use edgesync_object::{Object, ResourceVersion};

/// Name of the mark, a Secret, and the value of its label.
const MARK: &str = "edgesync-revoked";
const MARK_LABEL: &str = "mark";
/// Interval between two reads of the mark, and the time limit of one.
const PROBE_INTERVAL: Duration = Duration::from_millis(300);
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of consecutive failures after which the cluster counts as unavailable.
const MAX_PROBE_FAILURES: u32 = 3;
/// Time without a failure after which the watch counts as current again.
const RECOVERY_TIME: Duration = Duration::from_secs(2);
/// Time without an event after which an incomplete list is restarted.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// Capacity of the channel of changes. A receiver that lags further behind gets [`Changed::All`].
const CHANGE_BUFFER: usize = 1024;

/// The state that the watch task maintains.
pub(super) struct Cache {
    table: Mutex<Table>,
    pub(super) changes: broadcast::Sender<Changed>,
    /// Whether the table is as new as the cluster.
    is_current: watch::Sender<bool>,
}

/// A task that is aborted with its handle.
pub(super) struct WatchTask(JoinHandle<()>);

impl Drop for WatchTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl MembershipStore {
    /// Starts to follow the changes of other processes, until the last handle is dropped. Returns
    /// once the first list is complete. Does nothing for a database, which no other process
    /// changes.
    ///
    /// # Errors
    /// The list could not be read.
    pub async fn follow(&self) -> Result<()> {
        let Some(documents) = &self.shared.cluster else { return Ok(()) };
        let mut follower = Follower::new(documents, &self.shared.cache);
        while !follower.is_listed {
            let event = follower.watch.next().await;
            if let WatchEvent::Failed(why) = event {
                return Err(MembershipError::Unfollowed { namespace: documents.namespace.clone(), why });
            }
            follower.observe(&event);
        }
        follower.cache.is_current.send_replace(true);
        let task = WatchTask(tokio::spawn(follower.run(probe_mark(documents))));
        *self.watch_task() = Some(task);
        Ok(())
    }

    pub(super) fn is_followed(&self) -> bool {
        self.watch_task().is_some()
    }

    fn watch_task(&self) -> MutexGuard<'_, Option<WatchTask>> {
        self.shared.watch_task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the known revocations are as new as the cluster. While they are not, the last known
    /// ones stay in force.
    #[must_use]
    pub fn is_current(&self) -> watch::Receiver<bool> {
        self.shared.cache.is_current.subscribe()
    }

    /// Changes the mark after a revocation. The revocation is durable already: a failure only
    /// delays the other replicas.
    pub(super) async fn mark(&self) {
        let Some(documents) = &self.shared.cluster else { return };
        let ClusterDocuments { cluster, namespace, secrets, .. } = &**documents;
        let data = json!({ "changed": BASE64_STANDARD.encode(uuid::Uuid::new_v4().as_bytes()) });
        let patch = json!({ "data": data });
        let marked = match cluster.merge(secrets, (namespace, MARK), Precondition::default(), patch).await {
            Err(Failure::NotFound(_)) => {
                let mut mark = objects::object(MARK, namespace);
                mark.set_metadata("labels", json!({ objects::LABEL: MARK_LABEL }));
                mark.fields_mut().insert("type".to_owned(), objects::secret_type(MARK_LABEL).into());
                mark.fields_mut().insert("data".to_owned(), data);
                cluster.create(secrets, &mark).await
            }
            marked => marked,
        };
        match marked {
            // A conflict means that another process has just created the mark: followers observe
            // that one.
            Ok(_) | Err(Failure::Conflict(_)) => {}
            Err(error) => {
                tracing::warn!(%error, "revocation mark not updated: other replicas may apply the revocation late");
            }
        }
    }
}

/// Selects what is watched: everything but tokens.
fn followed() -> String {
    format!("{} in ({MARK_LABEL},{},{})", objects::LABEL, Member::KIND, OperatorRecord::KIND)
}

/// Reason why the mark could not be read.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error(transparent)]
    Failed(Failure),
    #[error("timed out")]
    TimedOut,
}

/// The version of the mark.
type Probe = std::result::Result<ResourceVersion, ProbeError>;

/// Reads the mark periodically, in its own task because a read may take long.
fn probe_mark(documents: &Arc<ClusterDocuments>) -> (mpsc::Receiver<Probe>, JoinSet<()>) {
    let documents = Arc::clone(documents);
    let (sender, receiver) = mpsc::channel(1);
    let mut probing = JoinSet::new();
    probing.spawn(async move {
        loop {
            sleep(PROBE_INTERVAL).await;
            let ClusterDocuments { cluster, namespace, secrets, .. } = &*documents;
            let probe = match timeout(PROBE_TIMEOUT, cluster.get(secrets, namespace, MARK)).await {
                Ok(Ok(mark)) => Ok(mark.map_or_else(|| 0.into(), |mark| mark.resource_version().into())),
                Ok(Err(failure)) => Err(ProbeError::Failed(failure)),
                Err(_) => Err(ProbeError::TimedOut),
            };
            if sender.send(probe).await.is_err() {
                return;
            }
        }
    });
    (receiver, probing)
}

/// The watch task with its state.
struct Follower {
    cache: Arc<Cache>,
    watch: Box<dyn Follow>,
    /// Starts a new watch.
    start_watch: Box<dyn Fn() -> Box<dyn Follow> + Send>,
    /// Whether a list is complete.
    is_listed: bool,
    last_event: Instant,
    last_failure: Option<Instant>,
    /// The last mark that the watch has delivered; 0 if there is none.
    observed_mark: ResourceVersion,
    /// A mark that a probe has read and the watch has not delivered. It may be older than the
    /// delivered one: the cluster was restored from a copy, after which a watch can stay silent for
    /// long.
    missed_mark: Option<ResourceVersion>,
    /// Number of consecutive failed probes.
    failures: u32,
}

impl Follower {
    fn new(documents: &Arc<ClusterDocuments>, cache: &Arc<Cache>) -> Self {
        let documents = Arc::clone(documents);
        let start_watch =
            Box::new(move || documents.cluster.follow(&documents.secrets, &documents.namespace, &followed()));
        Self {
            cache: Arc::clone(cache),
            watch: start_watch(),
            start_watch,
            is_listed: false,
            last_event: Instant::now(),
            last_failure: None,
            observed_mark: 0.into(),
            missed_mark: None,
            failures: 0,
        }
    }

    async fn run(mut self, (mut probes, _probing): (mpsc::Receiver<Probe>, JoinSet<()>)) {
        loop {
            tokio::select! {
                event = self.watch.next() => self.observe(&event),
                Some(probe) = probes.recv() => self.check(probe),
            }
        }
    }

    /// Handles an event of the watch.
    fn observe(&mut self, event: &WatchEvent) {
        self.last_event = Instant::now();
        match event {
            WatchEvent::ListStarted => (self.is_listed, self.observed_mark) = (false, 0.into()),
            WatchEvent::Complete => self.is_listed = true,
            WatchEvent::Listed(object) | WatchEvent::Updated(object) if object.name() == MARK => {
                self.observed_mark = object.resource_version().into();
            }
            WatchEvent::Deleted(object) if object.name() == MARK => self.observed_mark = 0.into(),
            WatchEvent::Failed(why) => {
                self.last_failure = Some(Instant::now());
                self.mark_stale(why);
            }
            WatchEvent::Listed(_) | WatchEvent::Updated(_) | WatchEvent::Deleted(_) => {}
        }
        self.cache.apply_event(event);
    }

    /// Compares the mark that a probe has read with the delivered one.
    fn check(&mut self, probe: Probe) {
        let mark = match probe {
            Ok(mark) => mark,
            Err(why) => {
                self.failures = self.failures.saturating_add(1);
                if self.failures >= MAX_PROBE_FAILURES {
                    self.mark_stale(&why);
                }
                return;
            }
        };
        self.failures = 0;
        if !self.is_listed {
            if self.last_event.elapsed() > LIST_TIMEOUT {
                self.restart();
            }
        } else if self.observed_mark == mark {
            self.missed_mark = None;
            if self.last_failure.is_none_or(|last_failure| last_failure.elapsed() > RECOVERY_TIME)
                && !self.cache.is_current.send_replace(true)
            {
                tracing::info!("revocation watch recovered");
            }
        } else if self.missed_mark.as_ref() == Some(&mark) {
            tracing::debug!("revocation watch missed an event, restarting");
            self.restart();
        } else {
            // The event may be under way: the next probe decides.
            self.missed_mark = Some(mark);
        }
    }

    fn restart(&mut self) {
        self.watch = (self.start_watch)();
        (self.is_listed, self.last_event, self.missed_mark) = (false, Instant::now(), None);
    }

    /// Reports that revocations of other replicas cannot be observed.
    fn mark_stale(&self, why: &impl fmt::Display) {
        if self.cache.is_current.send_replace(false) {
            tracing::warn!("revocation watch failed, cached revocations stay in force: {why}");
        }
    }
}

impl Default for Cache {
    fn default() -> Self {
        let (table, is_current) = Default::default();
        Self { table, changes: broadcast::Sender::new(CHANGE_BUFFER), is_current }
    }
}

impl Cache {
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self, changed: impl IntoIterator<Item = Changed>) {
        for changed in changed {
            // Fails without a receiver, which is fine.
            let _ = self.changes.send(changed);
        }
    }

    fn apply_event(&self, event: &WatchEvent) {
        let changed = match event {
            WatchEvent::ListStarted => {
                self.table().start_list();
                return;
            }
            WatchEvent::Complete => {
                let mut changed = self.table().finish_list();
                // The table does not hold operators: they may have changed.
                changed.push(Changed::Operators);
                return self.notify(changed);
            }
            WatchEvent::Failed(_) => return,
            WatchEvent::Listed(object) => {
                self.put(object, |table, member| table.list(member, &object.resource_version().into()))
            }
            WatchEvent::Updated(object) => {
                self.put(object, |table, member| table.set(member, &object.resource_version().into()))
            }
            WatchEvent::Deleted(object) => self
                .put(object, |table, member| table.deleted(&member.node, &object.resource_version().into())),
        };
        self.notify(changed);
    }

    /// Applies an object of an event. A damaged one changes nothing: the known state of its name
    /// stays.
    fn put(
        &self,
        object: &Object,
        put: impl FnOnce(&mut Table, &Member) -> Option<Changed>,
    ) -> Option<Changed> {
        if objects::is_of(object, OperatorRecord::KIND) {
            return Some(Changed::Operators);
        }
        if !objects::is_of(object, Member::KIND) {
            return None;
        }
        match objects::record(object) {
            Ok(member) => put(&mut self.table(), &member),
            Err(why) => {
                warn_damaged(object.name(), &why);
                self.table().keep_unreadable(object.name());
                None
            }
        }
    }
}
