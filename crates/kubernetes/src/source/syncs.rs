//! Write-behind of ObjectSyncs and ClusterObjectSyncs, which show the versions that nodes confirm.
//!
//! Nothing depends on them. They are therefore written with background priority, and only the
//! newest state per node and object. After a crash of a replica they lag until its nodes are served
//! again: then [`Syncs::replace`] sets all of them.
//!
//! # Fencing
//! Two replicas may consider themselves the server of a node. The one with the dead connection has
//! outdated state, possibly a long queue of it. This order keeps it from writing that:
//! 1. a replica that starts to serve a node claims its Lease ([`super::leases::Leases::claim`])
//!    before it writes anything;
//! 2. a replica reads the records of a node, then checks the Lease, and only if it serves the node
//!    writes each record with the version that it has read or written last;
//! 3. before each write it checks the Lease again, unless it has written it lately
//!    ([`super::leases::Leases::served_lately`]).
//!
//! If the check precedes the other replica's claim, so does the read, and therefore it precedes all
//! writes of the other replica: these writes conflict, and step 2 repeats. If the check follows the
//! claim, the replica drops its state of the node. A write that precedes those of the successor is
//! replaced by them.
//!
//! One case is left. A write that was on its way during the claim may reach a record that the
//! successor has read and does not write, since it equals the one desired there or does not exist.
//! The record is then wrong until the node's next change of that object, or its next session.
//!
//! # Bounds
//! The number of queued records is limited. When a node's records do not fit, the node becomes
//! *due*: its queued records are dropped, and [`Syncs::due`] requests all of them once half of the
//! queue is free. For each record of a node served here, about 100 bytes are kept.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::Instant;

use super::leases::{Leases, Served};
use super::mark;
use super::records::{KnownRecord, KnownRecords, Records, Unwritten};
use super::requests::Requests;
use crate::cluster::Failure;
use edgesync_fleet::source::SourceError;
use edgesync_object::{NodeName, Resource, kinds};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Record;
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::replicas::{self, Outcome, QueueEntry, RecordQueue, StoredRecord as _};

/// Maximum number of nodes whose records are written at a time.
const CONCURRENCY: usize = 8;
/// Nodes per list request, because the API server scans the records of all nodes.
const NODES_PER_LIST: usize = 64;
/// Initial backoff after the API server is unavailable; doubles up to [`MAX_BACKOFF`].
const BACKOFF: Duration = Duration::from_secs(1);
/// Maximum of the backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Retry delay for a node without a Node.
const MISSING_NODE_DELAY: Duration = Duration::from_secs(5);

/// Records of a node being written.
type Job = replicas::Job<KnownRecord>;

/// Queue and writer of ObjectSyncs. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Syncs {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    records: Records,
    requests: Requests,
    leases: Leases,
    node: Resource,
    pub queue: Mutex<RecordQueue<KnownRecord>>,
    /// Incremented to wake waiters.
    wakeups: watch::Sender<u64>,
}

/// Result of a writer task.
enum Finished {
    Written(Job, Outcome, Option<String>),
    Listed(Vec<(QueueEntry, Result<Option<KnownRecords>, SourceError>)>),
}

impl Syncs {
    /// Creates a queue of at most `limit` records.
    pub(super) fn new(requests: &Requests, records: Records, leases: &Leases, limit: usize) -> Self {
        let requests = requests.in_background();
        let leases = leases.in_background();
        let node = kinds::guess("v1", "Node", false);
        let queue = Mutex::new(RecordQueue::new(limit));
        let wakeups = watch::channel(0).0;
        Self { shared: Arc::new(Shared { records, requests, leases, node, queue, wakeups }) }
    }

    /// Begins a session of a node: drops the records queued in earlier ones.
    pub(super) fn begin(&self, node: &NodeName) {
        self.queue().begin(node);
        self.wake();
    }

    /// Sets all desired records of a node; others are deleted. Called once the node is served here
    /// ([`Leases::claim`]), and when [`Syncs::due`] requests it.
    pub(super) fn replace(&self, node: &NodeName, all: Vec<(Uid, Record)>) {
        self.queue().replace(node, all);
        self.wake();
    }

    /// Changes some desired records of a node.
    pub(super) fn change(&self, node: &NodeName, put: Vec<(Uid, Record)>, remove: Vec<Uid>) {
        self.queue().change(node, put, remove);
        self.wake();
    }

    /// Sets the epoch of a node's database. The next writes of records remove effect labels with
    /// another epoch. Called before [`Syncs::replace`].
    pub(super) fn set_epoch(&self, node: &NodeName, epoch: Epoch) {
        self.queue().set_epoch(node, epoch);
    }

    /// Records that another writer in this process has written a record.
    pub(super) fn record_write(&self, node: &NodeName, uid: &Uid, known: KnownRecord) {
        self.queue().record_write(node, uid, known);
    }

    /// Requests the records of nodes that another replica served and this one serves again.
    pub(super) fn regain<'n>(&self, nodes: impl Iterator<Item = &'n NodeName>) {
        let mut queue = self.queue();
        nodes.for_each(|node| queue.regain(node));
        drop(queue);
        self.wake();
    }

    /// Drops a node and its queued records.
    pub(super) fn forget(&self, node: &NodeName) {
        self.queue().forget(node);
        self.wake();
    }

    /// Drops a disconnected node after its queued records are written.
    pub(super) fn forget_when_written(&self, node: &NodeName) {
        self.queue().forget_when_written(node);
        self.wake();
    }

    /// Waits for a node whose records must be set by [`Syncs::replace`]; until then changes of it
    /// are ignored. Cancel-safe.
    pub(super) async fn due(&self) -> NodeName {
        let mut wakeups = self.shared.wakeups.subscribe();
        loop {
            wakeups.borrow_and_update();
            if let Some(node) = self.queue().take_due() {
                return node;
            }
            // The sender lives as long as `self`.
            let _ = wakeups.changed().await;
        }
    }

    /// Waits until everything that can be written is written.
    pub(super) async fn settled(&self) {
        let mut wakeups = self.shared.wakeups.subscribe();
        while !self.queue().is_settled() {
            let _ = wakeups.changed().await;
        }
    }

    /// Returns the number of queued records.
    pub(super) fn queued(&self) -> usize {
        self.queue().queued()
    }

    /// Runs the writer until it is dropped. Called once.
    pub(super) async fn run(&self) {
        let mut wakeups = self.shared.wakeups.subscribe();
        let mut tasks: FuturesUnordered<BoxFuture<'_, Finished>> = FuturesUnordered::new();
        let (mut is_listing, mut backoff) = (false, Backoff::default());
        loop {
            wakeups.borrow_and_update();
            if backoff.is_over() {
                if backoff.take_resume() {
                    self.queue().resume();
                }
                while tasks.len() < CONCURRENCY
                    && let Some(job) = self.take()
                {
                    tasks.push(Box::pin(self.write(job)));
                }
                let entries_to_list =
                    if is_listing { Vec::new() } else { self.queue().take_unlisted(NODES_PER_LIST) };
                if !entries_to_list.is_empty() {
                    is_listing = true;
                    tasks.push(Box::pin(self.list(entries_to_list)));
                }
            }
            let until = backoff.next();
            tokio::select! {
                Some(finished) = tasks.next(), if !tasks.is_empty() => {
                    is_listing &= !matches!(finished, Finished::Listed(_));
                    self.finish(finished, &mut backoff);
                    self.wake();
                }
                _ = wakeups.changed() => {}
                () = sleep_until(until), if until.is_some() => {}
            }
        }
    }

    fn take(&self) -> Option<Job> {
        self.queue().take()
    }

    fn finish(&self, finished: Finished, backoff: &mut Backoff) {
        let mut queue = self.queue();
        match finished {
            Finished::Written(job, outcome, failed) => {
                let node = job.node.clone();
                queue.finish(job, outcome);
                match (failed, outcome) {
                    (Some(why), _) => backoff.failed(&node, &why),
                    (None, Outcome::Later) => backoff.try_later(MISSING_NODE_DELAY),
                    (None, _) => backoff.succeeded(),
                }
            }
            Finished::Listed(listed) => {
                for (entry, known) in listed {
                    match known {
                        Ok(Some(known)) => queue.listed(&entry, known),
                        Ok(None) => queue.not_served(&entry),
                        Err(error) => {
                            backoff.failed(&entry.node, &error.to_string());
                            queue.not_listed(entry);
                        }
                    }
                }
            }
        }
    }

    /// Reads the records of nodes, then checks who serves them. The order matters, see "Fencing".
    async fn list(&self, entries_to_list: Vec<QueueEntry>) -> Finished {
        let names: Vec<NodeName> = entries_to_list.iter().map(|entry| entry.node.clone()).collect();
        let mut found = match self.shared.records.list(&names).await {
            Ok(found) => found,
            Err(error) => {
                return Finished::Listed(
                    entries_to_list.into_iter().map(|entry| (entry, Err(error.clone()))).collect(),
                );
            }
        };
        let mut listed = Vec::new();
        for entry in entries_to_list {
            let known = found.remove(&entry.node).unwrap_or_default();
            let known = match self.shared.leases.served(&entry.node).await {
                Ok(Served::Here) => Ok(Some(known)),
                Ok(Served::By(replica)) => {
                    tracing::info!(
                        node = &*entry.node,
                        replica,
                        "node served by another replica: ObjectSyncs not written"
                    );
                    Ok(None)
                }
                Err(error) => Err(error),
            };
            listed.push((entry, known));
        }
        Finished::Listed(listed)
    }

    async fn write(&self, mut job: Job) -> Finished {
        match self.write_all(&mut job).await {
            Ok(outcome) => Finished::Written(job, outcome, None),
            Err(error) => Finished::Written(job, Outcome::Failed, Some(error.to_string())),
        }
    }

    async fn write_all(&self, job: &mut Job) -> Result<Outcome, SourceError> {
        let uids: Vec<Uid> = job.desired.keys().cloned().collect();
        for uid in uids {
            if !self.queue().is_current(job) {
                return Ok(Outcome::Continue);
            }
            if let Served::By(replica) = self.shared.leases.served_lately(&job.node).await? {
                tracing::info!(
                    node = &*job.node,
                    replica,
                    "node served by another replica: ObjectSyncs not written"
                );
                return Ok(Outcome::Fenced);
            }
            let Some(desired) = job.desired.get(&uid) else { continue };
            if let (Some(_), Some(known)) = (desired, job.known.get(&uid))
                && known.is_outdated(job.epoch)
            {
                match self.shared.records.hide_effect(&job.node, &uid, known).await {
                    Ok(known) => drop(job.known.insert(uid.clone(), known)),
                    Err(Unwritten::Refused(why)) => {
                        tracing::warn!(node = &*job.node, uid = &*uid, why, "ObjectSync not written");
                    }
                    Err(Unwritten::Changed) => return Ok(Outcome::Changed),
                    Err(Unwritten::Failed(failure)) => return Err(failure.into()),
                }
            }
            let known = job.known.get(&uid);
            let written = match (desired, known) {
                (Some(record), known) => {
                    let owner = match &job.owner {
                        Some(owner) => owner.clone(),
                        None => match self.owner(&job.node).await? {
                            Owner::Is(uid) => uid,
                            Owner::Missing => return Ok(Outcome::Later),
                            Owner::Foreign => return Ok(Outcome::Foreign),
                        },
                    };
                    job.owner = Some(owner.clone());
                    let records = &self.shared.records;
                    records.put((&job.node, &owner), &uid, record, known).await.map(Some)
                }
                (None, Some(known)) => {
                    self.shared.records.remove(&job.node, &uid, known).await.map(|()| None)
                }
                (None, None) => Ok(None),
            };
            match written {
                Ok(Some(known)) => drop(job.known.insert(uid.clone(), known)),
                Ok(None) => drop(job.known.remove(&uid)),
                Err(Unwritten::Refused(why)) => {
                    tracing::warn!(node = &*job.node, uid = &*uid, why, "ObjectSync not written");
                }
                Err(Unwritten::Changed) => return Ok(Outcome::Changed),
                Err(Unwritten::Failed(failure)) => return Err(failure.into()),
            }
            job.desired.remove(&uid);
        }
        Ok(Outcome::Continue)
    }

    /// Returns the Node that owns the records of a node.
    pub(super) async fn owner(&self, node: &NodeName) -> Result<Owner, Failure> {
        Ok(match self.shared.requests.get(&self.shared.node, "", node).await? {
            Some(found) if mark::is_marked(&found) => Owner::Is(found.uid().into()),
            Some(_) => {
                tracing::warn!(
                    node = node.as_str(),
                    "Node without label edgesync.io/edge: ObjectSyncs not written"
                );
                Owner::Foreign
            }
            None => Owner::Missing,
        })
    }

    fn wake(&self) {
        self.shared.wakeups.send_modify(|count| *count += 1);
    }

    fn queue(&self) -> MutexGuard<'_, RecordQueue<KnownRecord>> {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The Node that owns records.
pub(super) enum Owner {
    /// The Node exists, with this UID.
    Is(Arc<str>),
    /// The Node does not exist yet.
    Missing,
    /// The Node belongs to others.
    Foreign,
}

async fn sleep_until(time: Option<Instant>) {
    if let Some(time) = time {
        tokio::time::sleep_until(time).await;
    }
}

/// Backoff of the writer.
#[derive(Debug, Default)]
struct Backoff {
    /// Nothing is written before this time.
    until: Option<Instant>,
    /// Time at which nodes with failed writes are retried.
    resume: Option<Instant>,
    failures: u32,
}

impl Backoff {
    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }

    /// Returns whether the retry is due.
    fn take_resume(&mut self) -> bool {
        self.resume.take_if(|resume| *resume <= Instant::now()).is_some()
    }

    /// Returns when the writer must wake up.
    fn next(&self) -> Option<Instant> {
        if self.is_over() { self.resume } else { self.until }
    }

    fn try_later(&mut self, time: Duration) {
        let at = Instant::now() + time;
        self.resume = Some(self.resume.map_or(at, |before| before.min(at)));
    }

    fn failed(&mut self, node: &NodeName, why: &str) {
        // Concurrent writes fail together and count once.
        if self.is_over() {
            let time = BACKOFF.saturating_mul(1 << self.failures.min(5)).min(MAX_BACKOFF);
            tracing::warn!(node = node.as_str(), why, ?time, "writing ObjectSyncs failed, retrying");
            self.failures += 1;
            self.until = Some(Instant::now() + time);
        }
        self.resume = self.until;
    }

    fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests;
