//! The cloud's half of the protocol as a state machine, one per node.
//!
//! Level-based: it compares what the node is to hold (*desired*) with what it is recorded to hold (the
//! *ledger*), and sends the difference. The ledger is changed only after its ObjectSync records are stored.
//!
//! Inputs are methods that take the time; outputs are pulled: [`CloudMachine::poll_effect`],
//! [`CloudMachine::poll_frame`], [`CloudMachine::deadline`].

mod connect;
mod ledger;
mod queue;
mod record;
mod send;
mod types;
mod upload;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::object::{ObjectKey, Relation, ResourceVersion};

use super::change::{ObjectRef, Uid};
use super::frame::{Confirm, Down};
use super::message::Outgoing;
use super::timing::{Now, earlier};
pub use ledger::{LedgerState, Record};
pub use types::{
    CloudConfig, CloudCounters, CloudEffect, CloudNotice, CloudPhase, Desired, Issued, Loaded, RecordBatch,
    Refusal,
};

use connect::Connecting;
use ledger::Ledger;
use queue::{Action, Queue};
use record::Recorder;
use send::Sender;
use upload::Taker;

/// The limits that the node of the current session told.
#[derive(Clone, Copy, Debug)]
struct PeerLimits {
    max_frame: usize,
    max_object: usize,
}

#[derive(Debug)]
enum Phase {
    Offline,
    Connecting(Box<Connecting>),
    Live { session: String, limits: PeerLimits },
}

/// An object with which something went wrong.
#[derive(Debug, Default)]
struct Trouble {
    attempts: u32,
    /// Not before this time.
    retry_at: Now,
    refusal: Option<Refusal>,
}

/// The cloud's half of the protocol, for one node.
#[derive(Debug)]
pub struct CloudMachine {
    config: Arc<CloudConfig>,
    incarnation: String,
    issued: Arc<Issued>,
    ledger: Ledger,
    desired: HashMap<Uid, Desired>,
    phase: Phase,
    queue: Queue,
    sender: Sender,
    recorder: Recorder,
    trouble: HashMap<Uid, Trouble>,
    /// Removals held back by the mass-delete guard.
    held: HashSet<Uid>,
    /// By name, what the node holds and should not: a new object of that name replaces it.
    leftovers: HashMap<ObjectKey, Uid>,
    /// Set when this node's Hello or reports proved that the store went back.
    suspect: bool,
    /// The numbers of pending and held-back objects that the node was last told.
    told: (u64, u64),
    effects: VecDeque<CloudEffect>,
    frames: VecDeque<Down>,
    last_heard: Now,
    round_trip: Option<Duration>,
    taker: Taker,
    /// Whether the cloud knows of the Node.
    registered: bool,
    counters: CloudCounters,
}

impl CloudMachine {
    /// A machine for a node that is not connected.
    #[must_use]
    pub fn new(
        config: Arc<CloudConfig>,
        incarnation: String,
        issued: Arc<Issued>,
        state: LedgerState,
    ) -> Self {
        Self {
            config,
            incarnation,
            issued,
            ledger: Ledger::new(state),
            desired: HashMap::new(),
            phase: Phase::Offline,
            queue: Queue::default(),
            sender: Sender::default(),
            recorder: Recorder::default(),
            trouble: HashMap::new(),
            held: HashSet::new(),
            leftovers: HashMap::new(),
            suspect: false,
            told: (0, 0),
            effects: VecDeque::new(),
            frames: VecDeque::new(),
            last_heard: Now::ZERO,
            round_trip: None,
            taker: Taker::default(),
            registered: true,
            counters: CloudCounters::default(),
        }
    }

    /// The node is to hold this version of an object, or the object no more.
    pub fn desire(&mut self, now: Now, uid: &Uid, desired: Option<Desired>) {
        match desired {
            Some(mut desired) => {
                self.held.remove(uid);
                if let Some(known) = self.desired.get(uid) {
                    // A body may have been loaded that is newer than this news.
                    if desired.version.is_older_than(&known.version) {
                        desired.version = known.version.clone();
                    }
                    if desired.version != known.version {
                        self.trouble.remove(uid);
                    }
                }
                self.desired.insert(uid.clone(), desired);
            }
            None => {
                self.desired.remove(uid);
                self.trouble.remove(uid);
                if let Some(record) = self.ledger.get(uid) {
                    self.leftovers.insert(record.object.key(), uid.clone());
                }
            }
        }
        self.reconsider(now, uid);
    }

    /// What is to be done about a UID, if anything.
    fn needed(&self, uid: &Uid) -> Option<Action> {
        match (self.desired.get(uid), self.ledger.get(uid)) {
            (Some(desired), Some(record)) => {
                (desired.version.relation(&record.version) != Relation::Equal).then_some(Action::Put)
            }
            (Some(_), None) => Some(Action::Put),
            (None, Some(_)) => (!self.held.contains(uid)).then_some(Action::Delete),
            (None, None) => None,
        }
    }

    /// Queues a UID, or takes it out of the queue, as is right now.
    fn reconsider(&mut self, now: Now, uid: &Uid) {
        if !matches!(self.phase, Phase::Live { .. }) || self.sender.is_busy_with(uid) {
            return;
        }
        let Some(action) = self.needed(uid) else {
            self.queue.remove(uid);
            self.trouble.remove(uid);
            return;
        };
        if self.trouble.get(uid).is_some_and(|trouble| trouble.retry_at > now) {
            self.queue.remove(uid);
            return;
        }
        if let Some(object) = self.object(uid) {
            self.queue.insert(uid, &object, action);
        }
    }

    fn object(&self, uid: &Uid) -> Option<Arc<ObjectRef>> {
        self.desired
            .get(uid)
            .map(|desired| desired.object.clone())
            .or_else(|| self.ledger.get(uid).map(|record| record.object.clone()))
            .or_else(|| self.sender.object(uid))
    }

    /// Queues the whole difference between desired and recorded.
    fn reconsider_all(&mut self, now: Now) {
        self.queue.clear();
        let recorded = self.ledger.iter().map(|(uid, _)| uid);
        let all: HashSet<Uid> = recorded.chain(self.desired.keys()).cloned().collect();
        for uid in &all {
            self.reconsider(now, uid);
        }
    }

    /// The version recorded under the same name for a UID that is no longer desired: what a new
    /// object of that name replaces on the node.
    fn replaced_under(&self, key: &ObjectKey) -> Option<ResourceVersion> {
        let uid = self.leftovers.get(key)?;
        if self.desired.contains_key(uid) {
            return None;
        }
        self.ledger.get(uid).map(|record| record.version.clone())
    }

    /// Notes under which names the node holds objects that are no longer desired.
    fn note_leftovers(&mut self) {
        let undesired = self.ledger.iter().filter(|(uid, _)| !self.desired.contains_key(*uid));
        self.leftovers = undesired.map(|(uid, record)| (record.object.key(), uid.clone())).collect();
    }

    /// Removals that the guard holds back go out.
    pub fn confirm_deletions(&mut self, now: Now) {
        let held = std::mem::take(&mut self.held);
        self.suspect = false;
        self.recorder.accept(&self.incarnation);
        for uid in &held {
            self.reconsider(now, uid);
        }
        self.flush_records();
    }

    /// Limits and delays that may change while the machine runs.
    pub fn set_config(&mut self, config: Arc<CloudConfig>) {
        self.config = config;
    }

    /// The cloud's store has begun a new incarnation.
    pub fn set_incarnation(&mut self, incarnation: String, issued: Arc<Issued>) {
        self.incarnation = incarnation;
        self.issued = issued;
    }

    /// The link to the node is gone.
    pub fn disconnected(&mut self) {
        self.phase = Phase::Offline;
        self.queue.clear();
        self.sender.clear();
        self.taker.forget_session();
        self.frames.clear();
        self.effects.retain(|effect| !matches!(effect, CloudEffect::Load(_)));
    }

    /// The time of [`CloudMachine::deadline`] has come.
    pub fn tick(&mut self, now: Now) {
        self.recorder.tick(now);
        self.flush_records();
        match &self.phase {
            Phase::Offline => {}
            Phase::Connecting(connecting) if connecting.until <= now => self.answer_overdue(now),
            Phase::Connecting(_) => {}
            Phase::Live { .. } => {
                self.resend_overdue(now);
                let due: Vec<Uid> = self
                    .trouble
                    .iter()
                    .filter(|(_, trouble)| trouble.retry_at <= now)
                    .map(|(uid, _)| uid.clone())
                    .collect();
                for uid in &due {
                    self.reconsider(now, uid);
                }
            }
        }
    }

    /// When [`CloudMachine::tick`] wants to be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Now> {
        let phase = match &self.phase {
            Phase::Offline => None,
            Phase::Connecting(connecting) => Some(connecting.until),
            Phase::Live { .. } => {
                let waiting = self.trouble.iter().filter(|(uid, _)| !self.is_under_way(uid));
                let retry = waiting.map(|(_, trouble)| trouble.retry_at).min();
                earlier(retry, self.sender.next_overdue(self.last_heard, self.resend_after()))
            }
        };
        earlier(phase, self.recorder.retry_at())
    }

    fn is_under_way(&self, uid: &Uid) -> bool {
        self.sender.is_busy_with(uid) || self.queue.contains(uid)
    }

    /// The next piece of work for store and fleet.
    pub fn poll_effect(&mut self) -> Option<CloudEffect> {
        if let Some(effect) = self.effects.pop_front() {
            return Some(effect);
        }
        self.next_load().map(CloudEffect::Load)
    }

    /// The next frame for the node. To be called only when its link has room for one.
    pub fn poll_frame(&mut self, now: Now) -> Option<Down> {
        if let Some(frame) = self.frames.pop_front() {
            return Some(frame);
        }
        if let Some(frame) = self.next_objects(now) {
            return Some(frame);
        }
        // The node was told of objects that have become pointless to send: it learns that it is in sync.
        let outdated = self.told != (self.pending(), self.held.len() as u64);
        if outdated && self.pending() == 0 && matches!(self.phase, Phase::Live { .. }) {
            self.confirm();
        }
        self.frames.pop_front()
    }

    fn confirm(&mut self) {
        let session = match &self.phase {
            Phase::Live { session, .. } => session.clone(),
            Phase::Connecting(connecting) => connecting.hello.session.clone(),
            Phase::Offline => return,
        };
        let (pending, held) = (self.pending(), self.held.len() as u64);
        self.told = (pending, held);
        let revision = self.ledger.confirmed();
        // Confirms are cumulative: one that has not left yet is overtaken.
        self.frames.retain(|frame| !matches!(frame, Down::Confirm(_)));
        self.frames.push_back(Down::Confirm(Confirm { session, revision, pending, held }));
    }

    /// Objects to be sent or removed, rejected ones not counted.
    #[must_use]
    pub fn pending(&self) -> u64 {
        (self.queue.len() + self.sender.len()) as u64
    }

    /// Objects on their way to the node or being prepared for it.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> usize {
        self.sender.len()
    }

    /// Where the node stands.
    #[must_use]
    pub fn phase(&self) -> CloudPhase {
        match &self.phase {
            Phase::Offline => CloudPhase::Offline,
            Phase::Connecting(connecting) => connecting.phase(),
            Phase::Live { .. } => CloudPhase::Live,
        }
    }

    /// Whether the node is connected, holds what it is to hold, and nothing is held back or rejected.
    #[must_use]
    pub fn in_sync(&self) -> bool {
        matches!(self.phase, Phase::Live { .. })
            && self.pending() == 0
            && self.recorder.is_idle()
            && self.held.is_empty()
            && self.trouble.is_empty()
    }

    /// Removals held back by the mass-delete guard.
    pub fn held(&self) -> impl Iterator<Item = (&Uid, Option<&ObjectRef>)> {
        self.held.iter().map(|uid| (uid, self.ledger.get(uid).map(|record| &*record.object)))
    }

    /// Objects that the node refuses.
    pub fn refused(&self) -> impl Iterator<Item = (&Uid, &Refusal)> {
        self.trouble.iter().filter_map(|(uid, trouble)| Some((uid, trouble.refusal.as_ref()?)))
    }

    /// The records as stored.
    pub fn records(&self) -> impl Iterator<Item = (&Uid, &Record)> {
        self.ledger.iter()
    }

    /// What the node is to hold.
    pub fn desired(&self) -> impl Iterator<Item = (&Uid, &Desired)> {
        self.desired.iter()
    }

    /// The newest change of the node that is recorded.
    #[must_use]
    pub fn confirmed(&self) -> u64 {
        self.ledger.confirmed()
    }

    /// The time from sending to report, smoothed.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> CloudCounters {
        self.counters
    }

    fn notice(&mut self, notice: CloudNotice) {
        self.effects.push_back(CloudEffect::Notice(notice));
    }
}

/// What a message to the node is written from.
fn outgoing(uid: &Uid, version: ResourceVersion, desired: &Desired, body: Arc<str>) -> Outgoing {
    Outgoing {
        uid: uid.clone(),
        version,
        supersedes: None,
        resource: desired.resource.clone(),
        namespace: desired.object.namespace.clone(),
        name: desired.object.name.clone(),
        body: Some(body),
    }
}
