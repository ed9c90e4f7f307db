//! The edge's half of the protocol as a state machine.
//!
//! Inputs are methods that take the time; outputs are pulled: [`EdgeMachine::poll_effect`] for work on the
//! store, [`EdgeMachine::poll_frame`] for frames, [`EdgeMachine::deadline`] for the next call of
//! [`EdgeMachine::tick`]. The machine holds totals, never rows: its memory does not grow with what is stored.
//!
//! A connection goes `Down → Settling → Greeting → Live`. In `Settling` commits of the last connection
//! are still under way; Hello waits for them, so that its totals are the truth.

use std::collections::VecDeque;
use std::time::Duration;

use super::change::{Change, ObjectRef, RejectReason, Rejected, Uid};
use super::digest::{BucketSet, Buckets};
use super::frame::{
    Confirm, Hello, HelloRequest, Inventory, InventoryRequest, Item, Objects, Part, Received, Report, Up,
    Welcome,
};
use super::message::{Interner, Message};
use super::parts::{Assembled, Assembler};
use super::replica::{Applied, Totals};
use super::timing::{Now, backoff, earlier};
use crate::object::ResourceVersion;

/// The limits and delays of the edge.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    /// The name of the node.
    pub node: String,
    /// The version of the agent.
    pub agent: String,
    /// The largest frame accepted, in bytes, decoded.
    pub max_frame: u32,
    /// The largest object accepted, in bytes of JSON.
    pub max_object: u32,
    /// How long a Hello waits for its Welcome before it is said again; doubles up to `retry_max`.
    pub hello_timeout: Duration,
    /// How long reported changes wait for their Confirm before they are reported again; doubles up to `retry_max`.
    pub report_timeout: Duration,
    /// The longest delay between two attempts.
    pub retry_max: Duration,
    /// The largest number of unanswered reports before a new Hello is said.
    pub report_attempts: u32,
    /// The number of frames that may wait for their commit; more are left to the link.
    pub max_applying: usize,
}

/// Work for the store. Each is answered by the method of the same name in past tense.
#[derive(Debug)]
pub enum EdgeEffect {
    /// Apply the changes in one transaction; answer with [`EdgeMachine::applied`].
    Apply {
        /// Comes back with the answer.
        token: u64,
        /// The changes, in order.
        changes: Vec<Change>,
    },
    /// Read changes after a revision; answer with [`EdgeMachine::changes_read`].
    ReadChanges {
        /// The revision before the first change wanted.
        after: u64,
        /// The largest number of entries.
        limit: usize,
    },
    /// Compute the bucket digests; answer with [`EdgeMachine::buckets_read`].
    ReadBuckets,
    /// Read what is held in some buckets; answer with [`EdgeMachine::inventory_read`].
    ReadInventory {
        /// The buckets.
        buckets: BucketSet,
        /// Where the last page ended; zero for the first one.
        cursor: u64,
        /// The largest number of entries.
        limit: usize,
    },
    /// The cloud has recorded everything up to this revision: the store may forget its tombstones.
    Confirm(u64),
    /// Remember the incarnation of the cloud.
    SetIncarnation(String),
    /// Something that an operator may want to know.
    Notice(EdgeNotice),
}

/// Something that an operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EdgeNotice {
    /// The cloud has welcomed the node.
    Welcomed {
        /// Objects that will be sent or removed.
        pending: u64,
        /// Removals held back by the cloud.
        held: u64,
        /// Hello to Welcome.
        round_trip: Duration,
    },
    /// The cloud is of another incarnation than before: its store was restored or lost.
    IncarnationChanged {
        /// The one known before.
        from: String,
        /// The one of now.
        to: String,
    },
    /// The cloud asked for the inventory: its records differed.
    Repairing,
    /// The link is up but the cloud does not answer.
    CloudSilent {
        /// How many times the node has tried.
        attempts: u32,
    },
    /// The cloud asked to wait or to say Hello again.
    HelloRequested {
        /// Its reason.
        reason: String,
        /// Seconds to wait.
        retry_after_seconds: u64,
    },
    /// An object was rejected.
    Rejected(Rejected),
}

/// One entry of a page read from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The UID.
    pub uid: Uid,
    /// The version held, none for a tombstone.
    pub version: Option<ResourceVersion>,
    /// Which object it is.
    pub object: ObjectRef,
}

/// Changes read from the store's journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangesPage {
    /// The revision asked for.
    pub from: u64,
    /// The revision that the page reaches; equal to the newest one when nothing is left.
    pub to: u64,
    /// One entry per object, in order of revision; superseded changes are left out.
    pub entries: Vec<Entry>,
}

/// Rows read from the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InventoryPage {
    /// The rows of the wanted buckets.
    pub entries: Vec<Entry>,
    /// Where the next page begins, none after the last.
    pub next: Option<u64>,
}

/// The answer to [`EdgeEffect::Apply`].
#[derive(Debug)]
pub struct Commit {
    /// The revision before the first change of the batch.
    pub before: u64,
    /// The totals after the last change of the batch.
    pub totals: Totals,
    /// What the batch came to.
    pub applied: Applied,
}

/// What the status shows of the connection to the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgePhase {
    /// No link.
    Down,
    /// The link is up, commits of the last connection are awaited.
    Settling,
    /// Hello was said, the cloud has not answered.
    Greeting,
    /// Welcomed.
    Live,
}

/// Numbers for the status and the metrics. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeCounters {
    /// Hellos said.
    pub hellos: u64,
    /// Objects stored or removed.
    pub applied: u64,
    /// Objects rejected.
    pub rejected: u64,
    /// Frames ignored because they were of another session.
    pub foreign_session: u64,
    /// Times that reports were repeated because no Confirm came.
    pub repeated_reports: u64,
}

#[derive(Debug)]
enum Phase {
    Down,
    Settling,
    /// Waiting for the time at which Hello may be said.
    Pausing {
        until: Now,
        attempt: u32,
    },
    Greeting {
        session: String,
        said: Now,
        until: Now,
        attempt: u32,
    },
    Live {
        session: String,
        pending: u64,
        held: u64,
    },
}

#[derive(Debug)]
struct Applying {
    token: u64,
    session: String,
    /// UID and version of the puts, to reject them all when the commit fails.
    versions: Vec<(Uid, ResourceVersion)>,
    rejected: Vec<Rejected>,
}

/// A page-wise answer that is under way.
#[derive(Debug)]
enum Reading {
    Nothing,
    Changes,
    Buckets { theirs: Buckets },
    Inventory { buckets: BucketSet, page: u32 },
}

/// The edge's half of the protocol.
#[derive(Debug)]
pub struct EdgeMachine {
    config: EdgeConfig,
    totals: Totals,
    confirmed: u64,
    incarnation: Option<String>,
    phase: Phase,
    applying: VecDeque<Applying>,
    next_token: u64,
    reading: Reading,
    /// The next page to ask the store for, once the frames before it have left.
    next_read: Option<EdgeEffect>,
    parts: Assembler,
    effects: VecDeque<EdgeEffect>,
    frames: VecDeque<Up>,
    /// When unconfirmed changes are reported again, and how often that has happened in a row.
    repeat: Option<(Now, u32)>,
    /// Confirms in a row that brought no news.
    stalled: u32,
    /// The largest frame that the link takes.
    link_limit: u32,
    counters: EdgeCounters,
}

impl EdgeMachine {
    /// A machine without a link, over a store with these totals.
    #[must_use]
    pub fn new(config: EdgeConfig, totals: Totals, confirmed: u64, incarnation: Option<String>) -> Self {
        let parts = Assembler::new(config.max_object as usize, config.max_frame as usize);
        Self {
            config,
            totals,
            confirmed: confirmed.min(totals.revision),
            incarnation,
            phase: Phase::Down,
            applying: VecDeque::new(),
            next_token: 0,
            reading: Reading::Nothing,
            next_read: None,
            parts,
            effects: VecDeque::new(),
            frames: VecDeque::new(),
            repeat: None,
            stalled: 0,
            link_limit: u32::MAX,
            counters: EdgeCounters::default(),
        }
    }

    /// The link is up and takes frames of up to `link_limit` bytes. `random` seeds the session id.
    pub fn connected(&mut self, now: Now, link_limit: usize, random: u64) {
        self.link_limit = u32::try_from(link_limit).unwrap_or(u32::MAX);
        self.reconnect(now, random);
    }

    fn reconnect(&mut self, now: Now, random: u64) {
        self.forget_connection();
        self.phase = Phase::Settling;
        self.settle(now, random, 0);
    }

    /// The link is down: what was under way for it is forgotten, commits go on.
    pub fn disconnected(&mut self) {
        self.forget_connection();
        self.phase = Phase::Down;
    }

    /// The store was replaced (salvaged or recomputed): the node introduces itself anew, once the
    /// commits under way are answered.
    pub fn store_reset(&mut self, now: Now, totals: Totals, confirmed: u64, random: u64) {
        self.totals = totals;
        self.confirmed = confirmed.min(totals.revision);
        if !matches!(self.phase, Phase::Down) {
            self.reconnect(now, random);
        }
    }

    fn forget_connection(&mut self) {
        self.frames.clear();
        self.parts.clear();
        self.reading = Reading::Nothing;
        self.next_read = None;
        self.repeat = None;
        self.stalled = 0;
        self.effects.retain(|effect| {
            !matches!(
                effect,
                EdgeEffect::ReadChanges { .. } | EdgeEffect::ReadBuckets | EdgeEffect::ReadInventory { .. }
            )
        });
    }

    fn settle(&mut self, now: Now, random: u64, attempt: u32) {
        if self.applying.is_empty() {
            self.hello(now, random, attempt);
        } else {
            self.phase = Phase::Settling;
        }
    }

    fn hello(&mut self, now: Now, random: u64, attempt: u32) {
        let session = format!("{:08x}", random >> 32);
        let confirmed = (self.confirmed != self.totals.revision).then_some(self.confirmed);
        self.frames.push_back(Up::Hello(Hello {
            node: self.config.node.clone(),
            agent: self.config.agent.clone(),
            session: session.clone(),
            epoch: self.totals.epoch,
            revision: self.totals.revision,
            confirmed,
            count: self.totals.count,
            digest: self.totals.digest,
            incarnation: self.incarnation.clone(),
            max_frame: self.max_frame(),
            max_object: self.config.max_object,
        }));
        self.counters.hellos += 1;
        let wait = backoff(self.config.hello_timeout * 2, self.config.retry_max * 2, attempt, random);
        self.phase = Phase::Greeting { session, said: now, until: now + wait, attempt };
        self.replay();
    }

    /// Reports again everything that the cloud has not confirmed.
    fn replay(&mut self) {
        if self.confirmed < self.totals.revision && matches!(self.reading, Reading::Nothing) {
            self.reading = Reading::Changes;
            self.next_read = Some(self.read_changes(self.confirmed));
        }
    }

    fn read_changes(&self, after: u64) -> EdgeEffect {
        EdgeEffect::ReadChanges { after, limit: self.page_limit() }
    }

    fn max_frame(&self) -> u32 {
        self.config.max_frame.min(self.link_limit)
    }

    /// How many full items are sure to fit into a frame: an item has at most about 900 bytes.
    fn page_limit(&self) -> usize {
        (self.max_frame() as usize / 1024).clamp(4, 512)
    }

    /// Limits and delays that may change while the machine runs; the node's name may not.
    pub fn set_config(&mut self, config: EdgeConfig) {
        self.parts = Assembler::new(config.max_object as usize, config.max_frame as usize);
        self.config = config;
    }

    /// A frame has arrived.
    pub fn received(&mut self, now: Now, frame: Received, random: u64) {
        match frame {
            Received::Welcome(welcome) => self.welcomed(now, welcome, random),
            Received::Objects(objects) => {
                self.objects(now, objects);
            }
            Received::Part(part) => {
                self.part(now, part);
            }
            Received::Confirm(confirm) => self.confirmed(now, &confirm),
            Received::InventoryRequest(request) => self.inventory_requested(now, request),
            Received::HelloRequest(request) => self.hello_requested(now, request, random),
        }
    }

    fn welcomed(&mut self, now: Now, welcome: Welcome, random: u64) {
        if self.is_live(&welcome.session) {
            // A cloud that has forgotten the session was shown a late copy of its Hello, which no longer
            // says what is held.
            self.forget_connection();
            return self.settle(now, random, 0);
        }
        let Phase::Greeting { session, said, .. } = &self.phase else { return self.foreign(now) };
        if *session != welcome.session {
            return self.foreign(now);
        }
        let round_trip = now.saturating_sub(*said);
        if let Some(to) = welcome.incarnation {
            if let Some(from) = self.incarnation.replace(to.clone()) {
                self.notice(EdgeNotice::IncarnationChanged { from, to: to.clone() });
            }
            self.effects.push_back(EdgeEffect::SetIncarnation(to));
        }
        let Welcome { session, pending, held, confirmed, .. } = welcome;
        self.phase = Phase::Live { session, pending, held };
        self.advance(confirmed);
        self.repeat = None;
        self.arm_repeat(now);
        self.notice(EdgeNotice::Welcomed { pending, held, round_trip });
    }

    fn advance(&mut self, confirmed: u64) -> bool {
        let confirmed = confirmed.min(self.totals.revision);
        if confirmed <= self.confirmed {
            return false;
        }
        self.confirmed = confirmed;
        self.effects.push_back(EdgeEffect::Confirm(confirmed));
        true
    }

    fn confirmed(&mut self, now: Now, confirm: &Confirm) {
        match &mut self.phase {
            Phase::Live { session, pending, held } if *session == confirm.session => {
                let news = (*pending, *held) != (confirm.pending, confirm.held);
                (*pending, *held) = (confirm.pending, confirm.held);
                self.stalled = if news { 0 } else { self.stalled.saturating_add(1) };
            }
            // A long replay before the Welcome: the cloud is at work.
            Phase::Greeting { session, .. } if *session == confirm.session => self.link_progress(now),
            _ => return self.foreign(now),
        }
        if self.advance(confirm.revision) {
            self.stalled = 0;
            self.repeat = None;
        } else if self.confirmed >= self.totals.revision {
            self.repeat = None;
        }
        self.arm_repeat(now);
    }

    fn arm_repeat(&mut self, now: Now) {
        let waiting = matches!(self.phase, Phase::Live { pending, .. } if pending > 0);
        if self.confirmed >= self.totals.revision && !waiting {
            self.repeat = None;
        } else if self.repeat.is_none() {
            // The cloud answers but nothing comes of it: ask less and less often.
            let wait = self.config.report_timeout.saturating_mul(1 << self.stalled.min(10));
            self.repeat = Some((now + wait.min(self.config.retry_max), 0));
        }
    }

    fn objects(&mut self, now: Now, objects: Objects) {
        if !self.is_live(&objects.session) {
            return self.foreign(now);
        }
        self.link_progress(now);
        self.apply(objects.changes, objects.rejected);
    }

    fn part(&mut self, now: Now, part: Part) {
        if !self.is_live(&part.session) {
            return self.foreign(now);
        }
        self.link_progress(now);
        let uid = part.uid.clone();
        match self.parts.take(part) {
            Assembled::Waiting { progress: false } => {}
            Assembled::Waiting { progress: true } => {
                let at = self.totals.revision;
                self.report(Report { from: at, to: at, receiving: Some(uid), ..Report::default() });
            }
            Assembled::Rejected(rejected) => self.apply(Vec::new(), vec![rejected]),
            Assembled::Message(text) => {
                let change = serde_json::from_str::<Message<'_>>(&text)
                    .map_err(|error| Rejected {
                        uid: "".into(),
                        resource_version: "".into(),
                        reason: RejectReason::Invalid,
                        message: format!("must be the JSON of a message: {error}"),
                    })
                    .and_then(|message| {
                        message.to_change(&mut Interner::default(), self.config.max_object as usize)
                    });
                match change {
                    Ok(change) => self.apply(vec![change], Vec::new()),
                    Err(rejected) => self.apply(Vec::new(), vec![rejected]),
                }
            }
        }
    }

    fn apply(&mut self, changes: Vec<Change>, rejected: Vec<Rejected>) {
        let Phase::Live { session, .. } = &self.phase else { return };
        let versions = changes
            .iter()
            .map(|change| match change {
                Change::Put(put) => (put.uid.clone(), put.version.clone()),
                Change::Delete(delete) => (delete.uid.clone(), ResourceVersion::new("")),
            })
            .collect();
        let token = self.next_token;
        self.next_token += 1;
        #[cfg(test)]
        let early = super::fault::planted(super::fault::Fault::AckBeforeCommit)
            .then(|| super::fault::observe_early(&changes));
        self.applying.push_back(Applying { token, session: session.clone(), versions, rejected });
        self.effects.push_back(EdgeEffect::Apply { token, changes });
        #[cfg(test)]
        if let Some(applied) = early {
            self.report_applied(self.totals.revision, self.totals.revision, applied);
        }
    }

    /// The store has committed a batch, or could not.
    pub fn applied(
        &mut self,
        now: Now,
        token: u64,
        result: Result<Commit, (RejectReason, String)>,
        random: u64,
    ) {
        let Some(at) = self.applying.iter().position(|applying| applying.token == token) else {
            return;
        };
        let Some(applying) = self.applying.remove(at) else { return };
        let mut rejected = applying.rejected;
        let (from, mut applied) = match result {
            Ok(commit) => {
                // One of another epoch is from before or after a reset that is told separately.
                if commit.totals.epoch == self.totals.epoch {
                    self.totals = commit.totals;
                }
                self.counters.applied += commit.totals.revision.saturating_sub(commit.before);
                (commit.before, commit.applied)
            }
            Err((reason, message)) => {
                let refuse = |(uid, resource_version)| Rejected {
                    uid,
                    resource_version,
                    reason,
                    message: message.clone(),
                };
                rejected.extend(applying.versions.into_iter().map(refuse));
                (self.totals.revision, Applied::default())
            }
        };
        applied.rejected.extend(rejected);
        self.counters.rejected += applied.rejected.len() as u64;
        for rejected in &applied.rejected {
            self.effects.push_back(EdgeEffect::Notice(EdgeNotice::Rejected(rejected.clone())));
        }
        if self.is_live(&applying.session) {
            self.report_applied(from, self.totals.revision, applied);
            self.arm_repeat(now);
        } else if matches!(self.phase, Phase::Settling) {
            self.settle(now, random, 0);
        }
    }

    fn report_applied(&mut self, from: u64, to: u64, applied: Applied) {
        let (objects, removed) = split(applied.observed, |observed| (observed.uid, observed.version, None));
        self.report(Report { from, to, objects, removed, rejected: applied.rejected, ..Report::default() });
    }

    fn report(&mut self, mut report: Report) {
        let (Phase::Live { session, .. } | Phase::Greeting { session, .. }) = &self.phase else { return };
        report.session.clone_from(session);
        self.frames.push_back(Up::Report(report));
    }

    /// A page of changes was read.
    pub fn changes_read(&mut self, now: Now, page: ChangesPage) {
        if !matches!(self.reading, Reading::Changes) {
            return;
        }
        let ChangesPage { from, to, entries } = page;
        let (objects, removed) = split(entries, |entry| (entry.uid, entry.version, Some(entry.object)));
        self.report(Report { from, to, objects, removed, ..Report::default() });
        if to < self.totals.revision && to > from {
            self.next_read = Some(self.read_changes(to));
        } else {
            self.reading = Reading::Nothing;
        }
        if matches!(self.phase, Phase::Live { .. }) {
            self.arm_repeat(now);
        }
    }

    fn inventory_requested(&mut self, now: Now, request: InventoryRequest) {
        match &self.phase {
            Phase::Greeting { session, .. } if *session == request.session => self.link_progress(now),
            _ => return self.foreign(now),
        }
        self.reading = Reading::Buckets { theirs: request.buckets };
        self.next_read = Some(EdgeEffect::ReadBuckets);
        self.notice(EdgeNotice::Repairing);
    }

    /// The bucket digests were computed.
    pub fn buckets_read(&mut self, ours: &Buckets) {
        let Reading::Buckets { theirs } = &self.reading else { return };
        let buckets = ours.differing(theirs);
        self.reading = Reading::Inventory { buckets, page: 0 };
        self.next_read = Some(EdgeEffect::ReadInventory { buckets, cursor: 0, limit: self.page_limit() });
    }

    /// A page of the inventory was read.
    pub fn inventory_read(&mut self, now: Now, read: InventoryPage) {
        let Reading::Inventory { buckets, page } = self.reading else { return };
        let Phase::Greeting { session, .. } = &self.phase else { return };
        let session = session.clone();
        self.link_progress(now);
        let (objects, _) = split(read.entries, |entry| (entry.uid, entry.version, Some(entry.object)));
        self.frames.push_back(Up::Inventory(Inventory {
            session,
            page,
            buckets,
            more: read.next.is_some(),
            objects,
        }));
        match read.next {
            Some(cursor) => {
                self.reading = Reading::Inventory { buckets, page: page.saturating_add(1) };
                self.next_read =
                    Some(EdgeEffect::ReadInventory { buckets, cursor, limit: self.page_limit() });
            }
            None => self.reading = Reading::Nothing,
        }
    }

    /// A read could not be answered. It is given up; what it was for is tried again when its answer is
    /// overdue.
    pub fn read_failed(&mut self, now: Now) {
        self.reading = Reading::Nothing;
        self.next_read = None;
        self.arm_repeat(now);
    }

    fn hello_requested(&mut self, now: Now, request: HelloRequest, random: u64) {
        if self.session() != Some(&request.session) {
            return;
        }
        let HelloRequest { reason, retry_after_seconds, .. } = request;
        self.notice(EdgeNotice::HelloRequested { reason, retry_after_seconds });
        self.forget_connection();
        if retry_after_seconds == 0 {
            self.settle(now, random, 0);
        } else {
            let wait = Duration::from_secs(retry_after_seconds.min(3600));
            let spread = backoff(wait, wait, 0, random);
            self.phase = Phase::Pausing { until: now + wait / 2 + spread, attempt: 0 };
        }
    }

    /// Something sent was taken by the other end of the link: on a slow link an answer may still be
    /// long in coming, so the wait for it starts anew.
    pub fn link_progress(&mut self, now: Now) {
        match &mut self.phase {
            Phase::Greeting { until, .. } => *until = (*until).max(now + self.config.hello_timeout),
            Phase::Live { .. } => {
                if let Some((at, _)) = &mut self.repeat {
                    *at = (*at).max(now + self.config.report_timeout);
                }
            }
            Phase::Down | Phase::Settling | Phase::Pausing { .. } => {}
        }
    }

    /// The cloud announced itself as back (its retained topic flipped): say Hello again.
    pub fn cloud_returned(&mut self, now: Now, random: u64) {
        if !matches!(self.phase, Phase::Down | Phase::Settling) {
            self.forget_connection();
            self.settle(now, random, 0);
        }
    }

    /// The cloud announced that it is gone: nothing can be in sync until it returns.
    pub fn cloud_gone(&mut self, now: Now) {
        if !matches!(self.phase, Phase::Down | Phase::Settling) {
            self.forget_connection();
            self.phase = Phase::Pausing { until: now + self.config.retry_max, attempt: 0 };
        }
    }

    /// The time of [`EdgeMachine::deadline`] has come.
    pub fn tick(&mut self, now: Now, random: u64) {
        match &self.phase {
            Phase::Pausing { until, attempt } if *until <= now => {
                let attempt = *attempt;
                self.settle(now, random, attempt);
            }
            Phase::Greeting { until, attempt, .. } if *until <= now => {
                let attempts = attempt.saturating_add(1);
                self.notice(EdgeNotice::CloudSilent { attempts });
                self.forget_connection();
                self.settle(now, random, attempts);
            }
            Phase::Live { .. } => self.repeat_reports(now, random),
            _ => {}
        }
    }

    fn repeat_reports(&mut self, now: Now, random: u64) {
        let Some((at, attempt)) = self.repeat else { return };
        if at > now {
            return;
        }
        let attempts = attempt + 1;
        self.counters.repeated_reports += 1;
        if attempts >= self.config.report_attempts {
            self.notice(EdgeNotice::CloudSilent { attempts });
            self.forget_connection();
            return self.settle(now, random, 0);
        }
        let wait = backoff(self.config.report_timeout * 2, self.config.retry_max, attempts, random);
        self.repeat = Some((now + wait, attempts));
        if self.confirmed < self.totals.revision {
            self.replay();
        } else {
            // Announced objects do not come: an empty report asks where things stand.
            let at = self.totals.revision;
            self.report(Report { from: at, to: at, ..Report::default() });
        }
    }

    /// When [`EdgeMachine::tick`] wants to be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Now> {
        let phase = match &self.phase {
            Phase::Pausing { until, .. } | Phase::Greeting { until, .. } => Some(*until),
            Phase::Down | Phase::Settling | Phase::Live { .. } => None,
        };
        earlier(phase, self.repeat.map(|(at, _)| at))
    }

    /// The next piece of work for the store. Pages are read only when the frames before them have left.
    pub fn poll_effect(&mut self) -> Option<EdgeEffect> {
        if let Some(effect) = self.effects.pop_front() {
            return Some(effect);
        }
        if self.frames.is_empty() { self.next_read.take() } else { None }
    }

    /// The next frame for the link. To be called only when the link has room for it.
    pub fn poll_frame(&mut self) -> Option<Up> {
        self.frames.pop_front()
    }

    /// Whether a frame is waiting.
    #[must_use]
    pub fn has_frame(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Whether another frame may be taken from the link: too many commits are not under way.
    #[must_use]
    pub fn wants_frame(&self) -> bool {
        self.applying.len() < self.config.max_applying
    }

    /// Where the connection stands.
    #[must_use]
    pub fn phase(&self) -> EdgePhase {
        match self.phase {
            Phase::Down => EdgePhase::Down,
            Phase::Settling => EdgePhase::Settling,
            Phase::Pausing { .. } | Phase::Greeting { .. } => EdgePhase::Greeting,
            Phase::Live { .. } => EdgePhase::Live,
        }
    }

    /// The session, once Hello was said.
    #[must_use]
    pub fn session(&self) -> Option<&str> {
        match &self.phase {
            Phase::Greeting { session, .. } | Phase::Live { session, .. } => Some(session),
            Phase::Down | Phase::Settling | Phase::Pausing { .. } => None,
        }
    }

    /// Whether the cloud has said that nothing is to be sent and everything reported is confirmed.
    #[must_use]
    pub fn in_sync(&self) -> bool {
        matches!(self.phase, Phase::Live { pending: 0, .. })
            && self.applying.is_empty()
            && self.confirmed >= self.totals.revision
    }

    /// Objects that the cloud said are still to come, and removals that it holds back.
    #[must_use]
    pub fn announced(&self) -> (u64, u64) {
        match self.phase {
            Phase::Live { pending, held, .. } => (pending, held),
            _ => (0, 0),
        }
    }

    /// The totals after the last commit that was told.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The newest change that the cloud has confirmed.
    #[must_use]
    pub fn confirmed_revision(&self) -> u64 {
        self.confirmed
    }

    /// The incarnation of the cloud, once known.
    #[must_use]
    pub fn incarnation(&self) -> Option<&str> {
        self.incarnation.as_deref()
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> EdgeCounters {
        self.counters
    }

    fn is_live(&self, session: &str) -> bool {
        matches!(&self.phase, Phase::Live { session: own, .. } if own == session)
    }

    /// A frame of another session: a late one, or the cloud believes in a session that is over. In the
    /// latter case a question under the own session makes it ask for a Hello.
    fn foreign(&mut self, now: Now) {
        self.counters.foreign_session += 1;
        if matches!(self.phase, Phase::Live { .. }) && self.repeat.is_none() {
            self.repeat = Some((now + self.config.report_timeout, 0));
        }
    }

    fn notice(&mut self, notice: EdgeNotice) {
        self.effects.push_back(EdgeEffect::Notice(notice));
    }
}

/// Divides observations into held and removed ones. The last one of a UID counts.
fn split<T>(
    observed: Vec<T>,
    parts: impl Fn(T) -> (Uid, Option<ResourceVersion>, Option<ObjectRef>),
) -> (Vec<Item>, Vec<Uid>) {
    let (mut objects, mut removed) = (Vec::with_capacity(observed.len()), Vec::new());
    let mut seen = std::collections::HashSet::new();
    for observed in observed.into_iter().rev() {
        let (uid, version, object) = parts(observed);
        if !seen.insert(uid.clone()) {
            continue;
        }
        match version {
            Some(resource_version) => objects.push(Item { uid, resource_version, object }),
            None => removed.push(uid),
        }
    }
    objects.reverse();
    removed.reverse();
    (objects, removed)
}
