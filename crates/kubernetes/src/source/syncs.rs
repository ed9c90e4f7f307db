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
//!    writes each record with the version that it has read or written last.
//!
//! If the check precedes the other replica's claim, so does the read, and therefore it precedes all
//! writes of the other replica: these writes conflict, and step 2 repeats. If the check follows the
//! claim, the replica drops its state of the node. A write that precedes those of the successor is
//! replaced by them.
//!
//! # Bounds
//! The number of queued records is limited. When a node's records do not fit, the node becomes
//! *due*: its queued records are dropped, and [`Syncs::due`] requests all of them once half of the
//! queue is free. For each record of a node served here, about 100 bytes are kept.

mod queue;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::Instant;

use super::leases::{Leases, Served};
use super::mark;
use super::records::{Known, KnownRecords, Records, Unwritten};
use super::requests::Requests;
use crate::cluster::Failure;
use edgesync_fleet::source::SourceError;
use edgesync_object::{NodeName, Resource, kinds};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Record;
use edgesync_protocol::digest::Epoch;
use queue::{End, Job, Queue, Turn};

/// Nodes written concurrently.
const AT_A_TIME: usize = 8;
/// Nodes per list request, because the API server scans the records of all nodes.
const LISTED: usize = 64;
/// Initial pause after the API server is unavailable; doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Retry delay for a node without a Node.
const NO_NODE: Duration = Duration::from_secs(5);

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
    pub queue: Mutex<Queue>,
    /// Incremented to wake waiters.
    woken: watch::Sender<u64>,
}

/// Result of a writer task.
enum Finished {
    Written(Job, End, Option<String>),
    Listed(Vec<(Turn, Result<Option<KnownRecords>, SourceError>)>),
}

impl Syncs {
    /// Creates a queue of at most `limit` records.
    pub(super) fn new(requests: &Requests, records: Records, leases: &Leases, limit: usize) -> Self {
        let requests = requests.in_background();
        let leases = leases.in_background();
        let node = kinds::guess("v1", "Node", false);
        let queue = Mutex::new(Queue::new(limit));
        let woken = watch::channel(0).0;
        Self { shared: Arc::new(Shared { records, requests, leases, node, queue, woken }) }
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
    pub(super) fn follow(&self, node: &NodeName, epoch: Epoch) {
        self.queue().follow(node, epoch);
    }

    /// Records that another writer in this process has written a record.
    pub(super) fn noted(&self, node: &NodeName, uid: &Uid, known: Known) {
        self.queue().noted(node, uid, known);
    }

    /// Drops a node and its queued records.
    pub(super) fn forget(&self, node: &NodeName) {
        self.queue().forget(node);
        self.wake();
    }

    /// Drops a disconnected node after its queued records are written.
    pub(super) fn leave(&self, node: &NodeName) {
        self.queue().leave(node);
        self.wake();
    }

    /// Waits for a node whose records must be set by [`Syncs::replace`]; until then changes of it
    /// are ignored. Cancel-safe.
    pub(super) async fn due(&self) -> NodeName {
        let mut woken = self.shared.woken.subscribe();
        loop {
            woken.borrow_and_update();
            if let Some(node) = self.queue().ask() {
                return node;
            }
            // The sender lives as long as `self`.
            let _ = woken.changed().await;
        }
    }

    /// Waits until everything that can be written is written.
    pub(super) async fn settled(&self) {
        let mut woken = self.shared.woken.subscribe();
        while !self.queue().is_settled() {
            let _ = woken.changed().await;
        }
    }

    /// Returns the number of queued records.
    pub(super) fn waiting(&self) -> usize {
        self.queue().len()
    }

    /// Runs the writer until it is dropped. Called once.
    pub(super) async fn run(&self) {
        let mut woken = self.shared.woken.subscribe();
        let mut tasks: FuturesUnordered<BoxFuture<'_, Finished>> = FuturesUnordered::new();
        let (mut is_listing, mut pause) = (false, Pause::default());
        loop {
            woken.borrow_and_update();
            if pause.is_over() {
                if pause.take_resume() {
                    self.queue().resume();
                }
                while tasks.len() < AT_A_TIME
                    && let Some(job) = self.take()
                {
                    tasks.push(Box::pin(self.write(job)));
                }
                let turns = if is_listing { Vec::new() } else { self.queue().take_unlisted(LISTED) };
                if !turns.is_empty() {
                    is_listing = true;
                    tasks.push(Box::pin(self.list(turns)));
                }
            }
            let until = pause.next();
            tokio::select! {
                Some(finished) = tasks.next(), if !tasks.is_empty() => {
                    is_listing &= !matches!(finished, Finished::Listed(_));
                    self.finish(finished, &mut pause);
                    self.wake();
                }
                _ = woken.changed() => {}
                () = sleep_until(until), if until.is_some() => {}
            }
        }
    }

    fn take(&self) -> Option<Job> {
        self.queue().take()
    }

    fn finish(&self, finished: Finished, pause: &mut Pause) {
        let mut queue = self.queue();
        match finished {
            Finished::Written(job, end, failed) => {
                let node = job.node.clone();
                queue.finish(job, end);
                match (failed, end) {
                    (Some(why), _) => pause.failed(&node, &why),
                    (None, End::Later) => pause.try_later(NO_NODE),
                    (None, _) => pause.succeeded(),
                }
            }
            Finished::Listed(listed) => {
                for (turn, known) in listed {
                    match known {
                        Ok(Some(known)) => queue.listed(&turn, known),
                        Ok(None) => queue.fence(&turn.node),
                        Err(error) => {
                            pause.failed(&turn.node, &error.to_string());
                            queue.not_listed(turn);
                        }
                    }
                }
            }
        }
    }

    /// Reads the records of nodes, then checks who serves them. The order matters, see "Fencing".
    async fn list(&self, turns: Vec<Turn>) -> Finished {
        let names: Vec<NodeName> = turns.iter().map(|turn| turn.node.clone()).collect();
        let mut found = match self.shared.records.list(&names).await {
            Ok(found) => found,
            Err(error) => {
                return Finished::Listed(turns.into_iter().map(|turn| (turn, Err(error.clone()))).collect());
            }
        };
        let mut listed = Vec::new();
        for turn in turns {
            let known = found.remove(&turn.node).unwrap_or_default();
            let known = match self.shared.leases.served(&turn.node).await {
                Ok(Served::Here) => Ok(Some(known)),
                Ok(Served::By(replica)) => {
                    tracing::info!(
                        node = &*turn.node,
                        replica,
                        "node served by another replica: ObjectSyncs not written"
                    );
                    Ok(None)
                }
                Err(error) => Err(error),
            };
            listed.push((turn, known));
        }
        Finished::Listed(listed)
    }

    async fn write(&self, mut job: Job) -> Finished {
        match self.write_all(&mut job).await {
            Ok(end) => Finished::Written(job, end, None),
            Err(failure) => Finished::Written(job, End::Later, Some(failure.to_string())),
        }
    }

    async fn write_all(&self, job: &mut Job) -> Result<End, Failure> {
        let uids: Vec<Uid> = job.wanted.keys().cloned().collect();
        for uid in uids {
            let Some(wanted) = job.wanted.get(&uid) else { continue };
            if let (Some(_), Some(known)) = (wanted, job.known.get(&uid))
                && known.is_outdated(job.epoch)
            {
                match self.shared.records.hide_effect(&job.node, &uid, known).await {
                    Ok(known) => drop(job.known.insert(uid.clone(), known)),
                    Err(Unwritten::Refused(why)) => {
                        tracing::warn!(node = &*job.node, uid = &*uid, why, "ObjectSync not written");
                    }
                    Err(Unwritten::Changed) => return Ok(End::Changed),
                    Err(Unwritten::Failed(failure)) => return Err(failure),
                }
            }
            let known = job.known.get(&uid);
            let written = match (wanted, known) {
                (Some(record), known) => {
                    let owner = match &job.owner {
                        Some(owner) => owner.clone(),
                        None => match self.owner(&job.node).await? {
                            Owner::Is(uid) => uid,
                            Owner::Missing => return Ok(End::Later),
                            Owner::Foreign => return Ok(End::Nothing),
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
                Err(Unwritten::Changed) => return Ok(End::Changed),
                Err(Unwritten::Failed(failure)) => return Err(failure),
            }
            job.wanted.remove(&uid);
        }
        Ok(End::Again)
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
        self.shared.woken.send_modify(|count| *count += 1);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The Node that owns records.
pub(super) enum Owner {
    /// The Node's UID.
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
struct Pause {
    /// Nothing is written before this time.
    until: Option<Instant>,
    /// Time at which nodes with failed writes are retried.
    resume: Option<Instant>,
    failures: u32,
}

impl Pause {
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
            let time = PAUSE.saturating_mul(1 << self.failures.min(5)).min(PAUSE_MAX);
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
