//! The ObjectSyncs and ClusterObjectSyncs of a cluster, written behind what nodes confirm.
//!
//! Nothing rests on them: they show what nodes hold. So they are written in the background of the
//! rate, of each node and object the newest alone, and a replica that dies leaves them behind what
//! nodes hold until its nodes are served again: then [`Syncs::replace`] tells all.
//!
//! # Whose word counts
//! Two replicas may take themselves for the one that serves a node. The one whose connection is
//! dead has old news, and its queue may be long. What keeps it from writing them is this order:
//! 1. whoever begins to serve a node writes that into its Lease ([`super::leases::Leases::claim`])
//!    before it writes anything;
//! 2. a replica reads the records of a node, then looks at the Lease, and only if the node is its
//!    own writes them, each over the version that it has read or written last.
//!
//! If it looked before the other one's claim, it has also read before that, and so before anything
//! that the other one has written: its writes conflict with those, and then it begins anew at 2. If
//! it looked after the claim, it drops all that it has of the node. What it writes over nobody's
//! write is older than what comes next, and is replaced by that.
//!
//! # Bounds
//! So many records wait at most. What does not fit makes its node *due*: all that waits of it is
//! dropped, and [`Syncs::due`] asks for all of it once half of the queue is free. Of the nodes that
//! are served here, some 100 bytes are kept for each record.

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

/// Nodes whose records are written at a time.
const AT_A_TIME: usize = 8;
/// Nodes whose records are read at a time: a list goes through the records of all nodes.
const LISTED: usize = 64;
/// How long nothing is written after the cluster did not serve: twice as long each time, up to
/// [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_secs(1);
/// See [`PAUSE`].
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long a node waits whose Node has not been made yet.
const NO_NODE: Duration = Duration::from_secs(5);

/// See the module. Cheap to clone.
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
    /// Counts what may be news for whoever waits.
    woken: watch::Sender<u64>,
}

/// What one of the tasks of the writer has come to.
enum Finished {
    Written(Job, End, Option<String>),
    Listed(Vec<(Turn, Result<Option<KnownRecords>, SourceError>)>),
}

impl Syncs {
    /// At most `limit` records wait.
    pub(super) fn new(requests: &Requests, records: Records, leases: &Leases, limit: usize) -> Self {
        let requests = requests.in_background();
        let leases = leases.in_background();
        let node = kinds::guess("v1", "Node", false);
        let queue = Mutex::new(Queue::new(limit));
        let woken = watch::channel(0).0;
        Self { shared: Arc::new(Shared { records, requests, leases, node, queue, woken }) }
    }

    /// These are all records that a node is to have; whatever else there is of it goes. To be
    /// called once the node is served here ([`Leases::claim`]), and when [`Syncs::due`] asks for
    /// it.
    pub(super) fn replace(&self, node: &NodeName, all: Vec<(Uid, Record)>) {
        self.queue().replace(node, all);
        self.wake();
    }

    /// Records of a node have changed.
    pub(super) fn change(&self, node: &NodeName, put: Vec<(Uid, Record)>, remove: Vec<Uid>) {
        self.queue().change(node, put, remove);
        self.wake();
    }

    /// A node has this database file: what records show by the word of another one goes with what
    /// is written next of them. To be told before [`Syncs::replace`].
    pub(super) fn follow(&self, node: &NodeName, epoch: Epoch) {
        self.queue().follow(node, epoch);
    }

    /// Somebody else here has written a record of a node: it is as it is known now.
    pub(super) fn noted(&self, node: &NodeName, uid: &Uid, known: Known) {
        self.queue().noted(node, uid, known);
    }

    /// Forgets a node: nothing more is written of it.
    pub(super) fn forget(&self, node: &NodeName) {
        self.queue().forget(node);
        self.wake();
    }

    /// Forgets a node once what is left of it is written: it is not connected here any more.
    pub(super) fn leave(&self, node: &NodeName) {
        self.queue().leave(node);
        self.wake();
    }

    /// Waits for a node of which all is to be told anew, by [`Syncs::replace`]: until then changes
    /// of it mean nothing. Can be cancelled without loss.
    pub(super) async fn due(&self) -> NodeName {
        let mut woken = self.shared.woken.subscribe();
        loop {
            woken.borrow_and_update();
            if let Some(node) = self.queue().ask() {
                return node;
            }
            // The sender lives as long as this does.
            let _ = woken.changed().await;
        }
    }

    /// Waits until all is written that can be.
    pub(super) async fn settled(&self) {
        let mut woken = self.shared.woken.subscribe();
        while !self.queue().is_settled() {
            let _ = woken.changed().await;
        }
    }

    /// How many records are to be written.
    pub(super) fn waiting(&self) -> usize {
        self.queue().len()
    }

    /// Writes, until it is dropped. To be run once.
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

    /// Reads the records of nodes, and then who serves these: nothing is known of those of others.
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
                        "another replica writes the ObjectSyncs of a node"
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
                        tracing::warn!(node = &*job.node, uid = &*uid, why, "an ObjectSync is not written");
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
                    tracing::warn!(node = &*job.node, uid = &*uid, why, "an ObjectSync is not written");
                }
                Err(Unwritten::Changed) => return Ok(End::Changed),
                Err(Unwritten::Failed(failure)) => return Err(failure),
            }
            job.wanted.remove(&uid);
        }
        Ok(End::Again)
    }

    /// The Node that the records of a node belong to.
    pub(super) async fn owner(&self, node: &NodeName) -> Result<Owner, Failure> {
        Ok(match self.shared.requests.get(&self.shared.node, "", node).await? {
            Some(found) if mark::is_marked(&found) => Owner::Is(found.uid().into()),
            Some(_) => {
                tracing::warn!(
                    node = node.as_str(),
                    "no ObjectSyncs are written of a node: its Node was made by somebody else"
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

/// The Node that records belong to.
pub(super) enum Owner {
    /// It has this UID.
    Is(Arc<str>),
    /// It has not been made yet.
    Missing,
    /// It is somebody else's.
    Foreign,
}

async fn sleep_until(time: Option<Instant>) {
    if let Some(time) = time {
        tokio::time::sleep_until(time).await;
    }
}

/// When to go on.
#[derive(Debug, Default)]
struct Pause {
    /// Nothing is written before.
    until: Option<Instant>,
    /// When those nodes are tried again that could not be written.
    resume: Option<Instant>,
    failures: u32,
}

impl Pause {
    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }

    /// Whether nodes are to be tried again now.
    fn take_resume(&mut self) -> bool {
        self.resume.take_if(|resume| *resume <= Instant::now()).is_some()
    }

    /// When there is something to do again.
    fn next(&self) -> Option<Instant> {
        if self.is_over() { self.resume } else { self.until }
    }

    fn try_later(&mut self, time: Duration) {
        let at = Instant::now() + time;
        self.resume = Some(self.resume.map_or(at, |before| before.min(at)));
    }

    fn failed(&mut self, node: &NodeName, why: &str) {
        // Those that were under way together fail together.
        if self.is_over() {
            let time = PAUSE.saturating_mul(1 << self.failures.min(5)).min(PAUSE_MAX);
            tracing::warn!(
                node = node.as_str(),
                why,
                ?time,
                "ObjectSyncs cannot be written: they are tried again"
            );
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
