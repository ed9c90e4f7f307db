//! State shared by the tasks of a replica.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::server::{Change, Key, Object};
use crate::change::Uid;
use crate::cloud::Record;
use crate::digest::Epoch;
use crate::replicas::{IngestProgress, LeaseFence, RecordQueue, StoredRecord};
use crate::timing::Now;
use crate::upload::{IngestCursor, Lane, Refused};
use edgesync_object::{NodeName, ObjectKey, ResourceVersion};

/// The first and the longest delay of the writer of ObjectSyncs after a failure.
const WRITER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Many more records than the nodes have.
const MAX_RECORDS: usize = 1000;

/// An ObjectSync as its writer remembers it.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) version: u64,
    pub(super) held: u64,
}

impl StoredRecord for Known {
    fn matches(&self, record: &Record) -> bool {
        number(&record.version) == self.held
    }

    fn is_outdated(&self, _: Option<Epoch>) -> bool {
        false
    }
}

/// Returns the number in a version.
pub(super) fn number(version: &ResourceVersion) -> u64 {
    version.as_str().parse().unwrap()
}

/// The session of a node.
pub(super) struct Session {
    pub(super) serial: u64,
    pub(super) is_claimed: bool,
    buffered: Option<BTreeMap<Uid, Record>>,
}

/// The target and value of an uploaded item.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) seq: u64,
    pub(super) made: u64,
    pub(super) key: Key,
    /// The version that is in effect, for a record that does not exist yet.
    pub(super) held: u64,
    /// The object that the item is about.
    pub(super) object: Option<ObjectKey>,
    pub(super) is_placed: bool,
}

/// Items of one lane.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) outbox: String,
    pub(super) lane: Lane,
    pub(super) confirmed: u64,
    pub(super) items: Vec<Item>,
}

/// A result for the machines of a replica.
pub(super) enum Output {
    Ingested {
        node: usize,
        token: u64,
        result: Option<(IngestCursor, Vec<Refused>)>,
    },
    /// The end of a claim.
    Claimed(usize),
    /// The end of a renewal; `false` if it has to be repeated.
    Renewed {
        node: usize,
        renewal: u64,
        is_done: bool,
    },
    Listed(Vec<Object>),
    Changed(Vec<Change>),
    /// All questions up to this one are answered by the list before; the newest version.
    CaughtUp(u64, u64),
}

/// Delays the writer of ObjectSyncs, as the type of the same name in `syncs.rs`.
#[derive(Default)]
pub(super) struct Backoff {
    until: Option<Now>,
    resume: Option<Now>,
    pub(super) failures: u32,
}

impl Backoff {
    pub(super) fn is_over(&self, now: Now) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    pub(super) fn take_resume(&mut self, now: Now) -> bool {
        self.resume.take_if(|resume| *resume <= now).is_some()
    }

    pub(super) fn next(&self, now: Now) -> Option<Now> {
        if self.is_over(now) { self.resume } else { self.until }
    }

    pub(super) fn failed(&mut self, now: Now) {
        if self.is_over(now) {
            self.until = Some(now + delay(WRITER, self.failures));
            self.failures += 1;
        }
        self.resume = self.until;
    }
}

/// Returns the delay after so many failures.
pub(super) fn delay((first, longest): (Duration, Duration), failures: u32) -> Duration {
    first.saturating_mul(1 << failures.min(10)).min(longest)
}

/// The state of a replica.
pub(super) struct State {
    pub(super) replica: String,
    pub(super) fences: Vec<LeaseFence<u64, u64>>,
    pub(super) progress: Vec<IngestProgress>,
    pub(super) sessions: Vec<Option<Session>>,
    pub(super) queue: RecordQueue<Known>,
    /// Times at which the Leases of the nodes provably named this replica.
    pub(super) proven: Vec<Now>,
    pub(super) backoff: Backoff,
    pub(super) outputs: Vec<Output>,
    /// The last question to the informer, and the last one answered.
    pub(super) requested: u64,
    pub(super) answered: u64,
    serials: u64,
    pub(super) names: Rc<[NodeName]>,
}

impl State {
    pub(super) fn new(replica: String, names: &Rc<[NodeName]>) -> Self {
        let count = names.len();
        Self {
            replica,
            fences: (0..count).map(|_| LeaseFence::default()).collect(),
            progress: (0..count).map(|_| IngestProgress::default()).collect(),
            sessions: (0..count).map(|_| None).collect(),
            queue: RecordQueue::new(MAX_RECORDS),
            proven: vec![Now::ZERO; count],
            backoff: Backoff::default(),
            outputs: Vec::new(),
            requested: 0,
            answered: 0,
            serials: 0,
            names: Rc::clone(names),
        }
    }

    /// Begins the session of a node. Its Lease has to be claimed next.
    pub(super) fn begin(&mut self, node: usize) -> u64 {
        self.serials += 1;
        self.queue.begin(&self.names[node]);
        let session = Session { serial: self.serials, is_claimed: false, buffered: None };
        self.sessions[node] = Some(session);
        self.serials
    }

    /// Returns whether the Lease of a node is claimed.
    pub(super) fn is_claimed(&self, node: usize) -> bool {
        self.sessions[node].as_ref().is_some_and(|session| session.is_claimed)
    }

    /// Returns the number of the session of a node; 0 without one.
    pub(super) fn serial(&self, node: usize) -> u64 {
        self.sessions[node].as_ref().map_or(0, |session| session.serial)
    }

    /// Ends the session of a node. Its queued ObjectSyncs are still written.
    pub(super) fn end(&mut self, node: usize) {
        if self.sessions[node].take().is_some() {
            self.queue.forget_when_written(&self.names[node]);
        }
        self.progress[node] = IngestProgress::default();
        self.fences[node] = LeaseFence::default();
    }

    /// Sets all ObjectSyncs of a node.
    pub(super) fn replace(&mut self, node: usize, all: Vec<(Uid, Record)>) {
        match &mut self.sessions[node] {
            Some(session) if session.is_claimed => self.queue.replace(&self.names[node], all),
            Some(session) => session.buffered = Some(all.into_iter().collect()),
            None => {}
        }
    }

    /// Changes some ObjectSyncs of a node.
    pub(super) fn change(&mut self, node: usize, put: Vec<(Uid, Record)>, remove: Vec<Uid>) {
        let Some(session) = &mut self.sessions[node] else { return };
        if session.is_claimed {
            self.queue.change(&self.names[node], put, remove);
        } else if let Some(buffered) = &mut session.buffered {
            remove.iter().for_each(|uid| drop(buffered.remove(uid)));
            buffered.extend(put);
        }
    }

    /// Ends the claim of a session.
    pub(super) fn claimed(&mut self, node: usize, serial: u64) {
        let Some(session) = self.sessions[node].as_mut().filter(|session| session.serial == serial) else {
            return;
        };
        session.is_claimed = true;
        if let Some(all) = session.buffered.take() {
            self.queue.replace(&self.names[node], all.into_iter().collect());
        }
    }

    pub(super) fn index(&self, node: &NodeName) -> usize {
        self.names.iter().position(|name| name == node).unwrap()
    }
}
