//! The cloud's half of the protocol as a state machine, one per node.
//!
//! Level-based: it compares what the node is to hold ([`DesiredState`]) with what it is recorded to hold (the
//! *ledger*), and sends the difference. The ledger is changed only after its ObjectSync records are stored.
//!
//! Neither is kept here for each object. The desired state is lent with each input; the ledger is open only while the
//! node is connected, and then has only what differs. So a node in sync costs the same however much it holds.
//!
//! Where several cloud sides serve the same nodes ([`Records::Proven`]), nothing is recorded beyond a session, and a machine
//! may know less than the node was told elsewhere: `view` says what it does then.
//!
//! Inputs are methods that take the time; outputs are pulled: [`CloudMachine::poll_effect`],
//! [`CloudMachine::poll_frame`], [`CloudMachine::deadline`].

mod connect;
mod desired;
mod ledger;
mod pace;
mod queue;
mod quota;
mod record;
mod send;
#[cfg(test)]
pub(super) mod testing;
mod types;
mod upload;
mod view;
mod witness;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use edgesync_object::{ObjectKey, Relation, ResourceVersion};

use super::change::{ObjectRef, Uid};
use super::digest::{Epoch, Tally};
#[cfg(any(test, feature = "simulation"))]
use super::fault;
use super::frame::{Confirm, Down};
use super::message::{Body, Outgoing};
use super::timing::{Now, earlier};
pub use desired::{Desired, DesiredState};
pub use ledger::{LedgerFacts, Records};
pub use types::{
    CloudConfig, CloudCounters, CloudEffect, CloudNotice, CloudPhase, Issued, Loaded, Record, RecordBatch,
    Refusal, Stands,
};
pub use witness::Witnesses;

use connect::Connecting;
use ledger::Ledger;
use pace::PaceOf;
use queue::{Action, Queue};
use record::Recorder;
use send::Sender;
use upload::Taker;
use view::View;

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
    /// What was sent of it in this session: the frame that it went with first, and the version.
    sent: Option<(u64, ResourceVersion)>,
}

impl Trouble {
    /// Whether it may be the object's fault: then it goes alone.
    fn is_suspect(&self) -> bool {
        self.attempts > 1 || self.refusal.is_some()
    }
}

/// In the place of the incarnation under which a node's removals were found plausible: none was, since the node has said
/// that the store went back.
const DOUBTED: &str = "doubted";

/// The cloud's half of the protocol, for one node.
#[derive(Debug)]
pub struct CloudMachine {
    config: Arc<CloudConfig>,
    incarnation: Arc<str>,
    issued: Arc<Issued>,
    ledger: Ledger,
    view: View,
    /// A request for the records is under way.
    reading: bool,
    /// Not every change of the desired state was noted: the records are to be read again before anything more is sent.
    behind: bool,
    /// What was sent in a version that is newer than what is desired: news of it is on the way.
    ahead: HashMap<Uid, ResourceVersion>,
    phase: Phase,
    queue: Queue,
    sender: Sender,
    recorder: Recorder,
    trouble: HashMap<Uid, Trouble>,
    /// Removals held back by the mass-delete guard.
    held: HashSet<Uid>,
    /// How many there are, or were when the node was last connected.
    held_count: u64,
    /// By name, what the node holds and should not: a new object of that name replaces it.
    leftovers: HashMap<ObjectKey, Uid>,
    /// Set when this node's Hello or reports said that the store went back.
    suspect: bool,
    /// The numbers of pending and held-back objects that the node was last told.
    told: (u64, u64),
    effects: VecDeque<CloudEffect>,
    frames: VecDeque<Down>,
    last_heard: Now,
    pace: PaceOf,
    /// Whether the fleet was told, in this incarnation, that the store went back.
    has_told: bool,
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
        incarnation: Arc<str>,
        issued: Arc<Issued>,
        records: Records,
    ) -> Self {
        let view = View::new(&records);
        let facts = match records {
            Records::Stored(facts) => facts,
            Records::Proven => LedgerFacts::default(),
        };
        Self {
            config,
            incarnation,
            issued,
            ledger: Ledger::new(facts),
            view,
            reading: false,
            behind: false,
            ahead: HashMap::new(),
            phase: Phase::Offline,
            queue: Queue::default(),
            sender: Sender::default(),
            recorder: Recorder::default(),
            trouble: HashMap::new(),
            held: HashSet::new(),
            held_count: 0,
            leftovers: HashMap::new(),
            suspect: false,
            told: (0, 0),
            effects: VecDeque::new(),
            frames: VecDeque::new(),
            last_heard: Now::ZERO,
            pace: PaceOf::default(),
            has_told: false,
            taker: Taker::default(),
            registered: true,
            counters: CloudCounters::default(),
        }
    }

    /// What the node is to hold of a UID has changed: until now it was `before`.
    pub fn desire(&mut self, now: Now, uid: &Uid, before: Option<&Desired>, desired: &impl DesiredState) {
        self.view.note_change(uid, before);
        if !self.behind {
            self.ledger.note_change(uid, before.map(Desired::record), desired);
        }
        match desired.get(uid) {
            Some(latest) => {
                self.release_held(uid);
                if self.ahead.get(uid).is_some_and(|version| !latest.version.is_older_than(version)) {
                    self.ahead.remove(uid);
                }
                if before.is_none_or(|before| before.version != latest.version)
                    && !self.ahead.contains_key(uid)
                {
                    self.trouble.remove(uid);
                }
            }
            None => {
                self.ahead.remove(uid);
                self.trouble.remove(uid);
                if self.is_live()
                    && let Some(record) = self.ledger.get(uid, desired)
                {
                    self.leftovers.insert(record.object.key(), uid.clone());
                }
            }
        }
        self.reconsider(now, uid, desired);
    }

    /// From now on changes of the desired state are not noted one by one, because there is no room for that: what is
    /// under way ends, then the records are read and compared again.
    pub fn fall_behind(&mut self) {
        if self.is_live() && self.ledger.is_open() {
            self.behind = true;
            self.queue.clear();
        }
    }

    /// Gives the ledger up that is behind, once nothing needs it any more.
    fn read_again(&mut self) {
        if self.behind && self.is_live() && self.sender.len() == 0 && self.recorder.is_idle() {
            if self.view.is_shared() {
                return self.prove_again();
            }
            self.ledger.close();
            self.request_records();
        }
    }

    fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live { .. })
    }

    /// The node says that the store went back. That is its own word, so it concerns its own removals, over a restart of
    /// the cloud too.
    fn doubt(&mut self) {
        self.suspect = true;
        #[cfg(any(test, feature = "simulation"))]
        if fault::planted(fault::Fault::DoubtForgotten) {
            return;
        }
        self.recorder.accept(&DOUBTED.into());
    }

    fn release_held(&mut self, uid: &Uid) {
        if self.held.remove(uid) {
            self.held_count = self.held.len() as u64;
        }
    }

    /// What is to be done about a UID, if anything.
    fn needed(&self, uid: &Uid, desired: &impl DesiredState) -> Option<Action> {
        match (desired.get(uid), self.ledger.get(uid, desired)) {
            (Some(latest), Some(record)) => {
                let latest = self.ahead.get(uid).unwrap_or(&latest.version);
                (latest.relation(&record.version) != Relation::Equal).then_some(Action::Put)
            }
            (Some(_), None) => Some(Action::Put),
            (None, Some(record)) => {
                let is_unread = desired.is_unread(&record.object);
                #[cfg(any(test, feature = "simulation"))]
                let is_unread = is_unread && !fault::planted(fault::Fault::UnreadIsGone);
                let stays = self.held.contains(uid) || is_unread;
                (!stays).then_some(Action::Delete)
            }
            (None, None) => None,
        }
    }

    /// Queues a UID, or takes it out of the queue, as is right now.
    fn reconsider(&mut self, now: Now, uid: &Uid, desired: &impl DesiredState) {
        if !self.is_live() || self.behind || self.sender.is_busy_with(uid) {
            return;
        }
        let Some(action) = self.needed(uid, desired) else {
            self.queue.remove(uid);
            self.trouble.remove(uid);
            return;
        };
        if self.trouble.get(uid).is_some_and(|trouble| trouble.retry_at > now) {
            self.queue.remove(uid);
            return;
        }
        if !self.may_act(uid, desired) {
            return self.queue.remove(uid);
        }
        if let Some(object) = self.object(uid, desired) {
            let lane = self.lane(uid, action, desired);
            self.queue.insert(uid, &object, action, lane);
        }
    }

    fn object(&self, uid: &Uid, desired: &impl DesiredState) -> Option<Arc<ObjectRef>> {
        desired
            .get(uid)
            .map(|desired| desired.object)
            .or_else(|| self.ledger.get(uid, desired).map(|record| record.object))
            .or_else(|| self.sender.object(uid))
    }

    /// Queues the whole difference between desired and recorded.
    fn reconsider_all(&mut self, now: Now, desired: &impl DesiredState) {
        self.queue.clear();
        let different: Vec<Uid> = self.ledger.differences().map(|(uid, _)| uid.clone()).collect();
        for uid in &different {
            self.reconsider(now, uid, desired);
        }
    }

    /// The version recorded under the same name for a UID that is no longer desired: what a new
    /// object of that name replaces on the node.
    fn replaced_under(&self, key: &ObjectKey, desired: &impl DesiredState) -> Option<ResourceVersion> {
        let uid = self.leftovers.get(key)?;
        if desired.get(uid).is_some() {
            return None;
        }
        self.ledger.get(uid, desired).map(|record| record.version)
    }

    /// Notes under which names the node holds objects that are no longer desired.
    fn note_leftovers(&mut self, desired: &impl DesiredState) {
        let undesired = self.ledger.differences().filter(|(uid, _)| desired.get(uid).is_none());
        self.leftovers =
            undesired.filter_map(|(uid, record)| Some((record?.object.key(), uid.clone()))).collect();
    }

    /// Removals that the guard holds back go out. Tells how many.
    pub fn confirm_deletions(&mut self, now: Now, desired: &impl DesiredState) -> u64 {
        let held = std::mem::take(&mut self.held);
        let count = std::mem::take(&mut self.held_count);
        self.suspect = false;
        self.recorder.accept(&self.incarnation);
        for uid in &held {
            self.reconsider(now, uid, desired);
        }
        self.flush_records(desired);
        count
    }

    /// Objects can be read that could not before: what the node was left of them may have to go now.
    pub fn reads_more(&mut self, now: Now, desired: &impl DesiredState) {
        if !self.behind {
            self.resume(now);
            self.reconsider_all(now, desired);
        }
    }

    /// Limits and delays that may change while the machine runs.
    pub fn set_config(&mut self, config: Arc<CloudConfig>) {
        self.config = config;
    }

    /// The cloud's store has begun a new incarnation.
    pub fn set_incarnation(&mut self, incarnation: Arc<str>, issued: Arc<Issued>) {
        self.incarnation = incarnation;
        self.issued = issued;
        self.has_told = false;
        self.effects.retain(|effect| !matches!(effect, CloudEffect::StoreWentBack));
    }

    /// The link to the node is gone.
    pub fn disconnected(&mut self) {
        self.end_session();
        self.pace.end_connection();
    }

    /// How far the link to the node is: of the frames that it was given on this connection, so many have not left for
    /// the network, and so many, those included, have not been acknowledged by the node. To be told, if it can be known,
    /// before [`CloudMachine::tick`]: what has not left is not sent again.
    pub fn link_progress(&mut self, now: Now, unsent: u64, unacknowledged: u64) {
        self.pace.link_progress(now, &self.config, unsent, unacknowledged);
    }

    fn end_session(&mut self) {
        self.pace.end_session();
        self.view.end_session();
        self.phase = Phase::Offline;
        self.queue.clear();
        self.sender.clear();
        self.taker.forget_session();
        self.frames.clear();
        self.held = HashSet::new();
        self.leftovers = HashMap::new();
        self.effects.retain(|effect| !matches!(effect, CloudEffect::Load { .. }));
        if self.view.is_shared() {
            self.recorder.forget();
        }
        self.close_ledger();
    }

    /// Nobody needs the ledger of a node that is not connected, once what was gathered for it is stored.
    fn close_ledger(&mut self) {
        #[cfg(any(test, feature = "simulation"))]
        if fault::planted(fault::Fault::LedgerUnproven) && self.view.is_shared() {
            return;
        }
        if matches!(self.phase, Phase::Offline) && self.recorder.is_idle() {
            self.ledger.close();
            self.behind = false;
        }
    }

    /// The time of [`CloudMachine::deadline`] has come.
    pub fn tick(&mut self, now: Now, desired: &impl DesiredState) {
        self.recorder.tick(now);
        self.flush_records(desired);
        match &self.phase {
            Phase::Offline => {}
            Phase::Connecting(connecting) if connecting.until <= now => self.answer_overdue(now, desired),
            Phase::Connecting(_) => {}
            Phase::Live { .. } => {
                self.resend_overdue(now, desired);
                let due: Vec<Uid> = self
                    .trouble
                    .iter()
                    .filter(|(_, trouble)| trouble.retry_at <= now)
                    .map(|(uid, _)| uid.clone())
                    .collect();
                for uid in &due {
                    self.reconsider(now, uid, desired);
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
                // Nothing more is sent before the records are read again.
                let waiting = self.trouble.iter().filter(|(uid, _)| !self.behind && !self.is_under_way(uid));
                let retry = waiting.map(|(_, trouble)| trouble.retry_at).min();
                earlier(retry, self.pace.deadline())
            }
        };
        #[cfg(any(test, feature = "simulation"))]
        if fault::planted(fault::Fault::Restless) && self.is_live() {
            return earlier(phase, Some(self.recorder.looked_at() + Duration::from_millis(20)));
        }
        earlier(phase, self.recorder.retry_at())
    }

    fn is_under_way(&self, uid: &Uid) -> bool {
        self.sender.is_busy_with(uid) || self.queue.contains(uid)
    }

    /// The next piece of work for store and fleet.
    pub fn poll_effect(&mut self, desired: &impl DesiredState) -> Option<CloudEffect> {
        self.read_again();
        if let Some(effect) = self.effects.pop_front() {
            return Some(effect);
        }
        self.next_load(desired)
    }

    /// The next frame for the node. To be called only when its link has room for one.
    pub fn poll_frame(&mut self, now: Now, desired: &impl DesiredState) -> Option<Down> {
        let frame = self.next_frame(now, desired)?;
        self.pace.hand();
        Some(frame)
    }

    fn next_frame(&mut self, now: Now, desired: &impl DesiredState) -> Option<Down> {
        if let Some(frame) = self.frames.pop_front() {
            return Some(frame);
        }
        if let Some(frame) = self.next_objects(now, desired) {
            return Some(frame);
        }
        // The node was told of objects that have become pointless to send: it learns that it is in sync.
        let outdated = self.told != (self.pending(), self.held_count);
        if outdated && self.pending() == 0 && self.is_live() {
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
        let (pending, held) = (self.pending(), self.held_count);
        self.told = (pending, held);
        let revision = self.ledger.facts().confirmed;
        #[cfg(any(test, feature = "simulation"))]
        let revision = match fault::planted(fault::Fault::ConfirmUnstored) {
            true => self.recorder.reached(),
            false => revision,
        };
        // Confirms are cumulative: one that has not left yet is overtaken.
        self.frames.retain(|frame| !matches!(frame, Down::Confirm(_)));
        self.frames.push_back(Down::Confirm(Confirm { session, revision, pending, held }));
    }

    /// Objects to be sent or removed, rejected ones not counted. At least one while the records are to be read again, or
    /// while something waits until this replica has caught up.
    #[must_use]
    pub fn pending(&self) -> u64 {
        let waits = self.behind || self.view.is_awaited();
        (self.queue.len() + self.sender.len()) as u64 + u64::from(waits)
    }

    /// How the node stands with an object that it is to hold; nothing while that is not known.
    #[must_use]
    pub fn stands_with(&self, uid: &str) -> Option<Stands<'_>> {
        let difference = self.ledger.difference(uid).filter(|_| !self.behind)?;
        let refusal = self.trouble.get(uid).and_then(|trouble| trouble.refusal.as_ref());
        Some(Stands { other: difference, refusal })
    }

    /// Objects that the node does not hold as it is to; nothing while that is not known.
    #[must_use]
    pub fn differing(&self) -> Option<impl Iterator<Item = &Uid>> {
        let is_known = self.ledger.is_open() && !self.behind;
        is_known.then(|| self.ledger.differences().map(|(uid, _)| uid))
    }

    /// What the node holds, as far as it is recorded or proven: nothing if it is not connected.
    pub fn held_by_node<'a>(&'a self, desired: &'a impl DesiredState) -> impl Iterator<Item = (Uid, Record)> {
        self.ledger.records(desired)
    }

    /// The same of those objects alone that it is not to hold, or in another version.
    pub fn outdated_on_node(&self) -> impl Iterator<Item = (&Uid, &Record)> {
        self.ledger.differences().filter_map(|(uid, record)| Some((uid, record?)))
    }

    /// What the node holds, as far as it is proven.
    #[cfg(test)]
    pub(super) fn recorded_versions<'a>(
        &'a self,
        desired: &'a impl DesiredState,
    ) -> impl Iterator<Item = (&'a str, ResourceVersion)> {
        self.ledger.versions(desired)
    }

    /// Objects on their way to the node or being prepared for it.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> usize {
        self.sender.len()
    }

    /// What is kept for the node in memory that grows with anything.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        let named = self.ahead.len() + self.trouble.len() + self.held.len() + self.leftovers.len();
        let queued = self.queue.len() + self.sender.len() + self.effects.len() + self.frames.len();
        self.ledger.different() + named + queued
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
        self.is_live()
            && self.pending() == 0
            && self.recorder.is_idle()
            && self.held_count == 0
            && self.trouble.is_empty()
    }

    /// The version of an object that the node holds, as far as it is recorded.
    #[must_use]
    pub fn recorded_version(&self, uid: &Uid, desired: &impl DesiredState) -> Option<ResourceVersion> {
        self.ledger.get(uid, desired).map(|record| record.version)
    }

    /// Removals held back by the mass-delete guard, while the node is connected.
    pub fn held<'a>(
        &'a self,
        desired: &'a impl DesiredState,
    ) -> impl Iterator<Item = (&'a Uid, Option<Arc<ObjectRef>>)> {
        self.held.iter().map(|uid| (uid, self.ledger.get(uid, desired).map(|record| record.object)))
    }

    /// How many removals are held back, or were when the node was last connected.
    #[must_use]
    pub fn held_count(&self) -> u64 {
        self.held_count
    }

    /// Objects that the node refuses.
    pub fn refused(&self) -> impl Iterator<Item = (&Uid, &Refusal)> {
        self.trouble.iter().filter_map(|(uid, trouble)| Some((uid, trouble.refusal.as_ref()?)))
    }

    /// The database file of the node, as far as it is known: with a session that of now.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.ledger.epoch()
    }

    /// Count and digest of the records.
    #[must_use]
    pub fn recorded_tally(&self) -> Tally {
        self.ledger.tally()
    }

    /// Objects of which other versions are recorded than desired: what the memory for the node grows with.
    #[must_use]
    pub fn differences(&self) -> usize {
        self.ledger.different()
    }

    /// The newest change of the node that is recorded.
    #[must_use]
    pub fn confirmed(&self) -> u64 {
        self.ledger.facts().confirmed
    }

    /// The time from sending to report, smoothed.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.pace.smoothed()
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
fn outgoing(uid: &Uid, version: ResourceVersion, desired: &Desired, body: Body) -> Outgoing {
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
