//! The link to a stock KubeEdge CloudCore: WebSocket client, message codec, and a pure bridge that acts as the cloud side towards
//! the edge machine. It does not know the agent or its store. Read [`Bridge`] first;
//! `docs/decisions/0013-kubeedge.md` says why it is a bridge.
//!
//! [`EdgeMachine`](edgesync_protocol::edge::EdgeMachine) does with CloudCore exactly what it does with `edgesync-cloud`: it
//! sends Hello, applies `Objects` in one transaction each, reports after the commit, renews the Lease, empties the outbox.
//! The bridge answers the machine's frames and speaks KubeEdge's protocol to CloudCore. So version gate, UID rules, group
//! commit and outbox exist once, for both links.
//!
//! | machine | bridge | CloudCore |
//! |---|---|---|
//! | Hello | asks for the node's Lease, answers Welcome after CloudCore's first message | `query` |
//! | Objects | one for each message, with a receipt | `insert`, `update`, `patch`, `delete`, `response` |
//! | Report with that receipt, after the commit | acknowledges the message | `response` "OK" |
//! | Lease | writes the Lease object, with the [`Marker`] of the database in an annotation | `insert`, `update` |
//! | Upload | registers the Node, patches its status, writes Events | `insert`, `patch` |
//!
//! CloudCore never asks what the edge holds. The bridge makes up for it with relists: if the marker in the Lease is not that
//! of the database (which was lost, or is an older copy), everything that can be queried is queried again; otherwise it is
//! queried at a low rate, and what CloudCore never pushes in any case.
//!
//! Like the machines the bridge is pure: time ([`Moment`]) and randomness are arguments, effects are polled.

mod application;
#[cfg(test)]
mod captures;
mod delivery;
mod ending;
mod lease;
pub mod link;
mod message;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod names;
mod object;
mod outbound;
mod output;
mod queries;
mod round;
#[cfg(test)]
mod simulation;
mod status;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod types;
mod upload;

use edgesync_protocol::change::{Change, Uid};
use edgesync_protocol::frame::{Confirm, Hello, Received, Report, Up, Welcome};
use edgesync_protocol::replica::Totals;
use edgesync_protocol::timing::Now;

pub(crate) use lease::Marker;
pub use names::{AskedKind, FetchRule, Name, WatchRule, references};
pub use types::{
    BridgeConfig, BridgeCounters, BridgeEffect, BridgeNotice, BridgeStatus, DynamicController, HeldEntry,
    HeldPage, Moment, RoundReason, Sent,
};

use delivery::Delivery;
use ending::Endings;
use lease::{LeaseKeeper, LeaseNews};
use message::{Incoming, Operation};
use outbound::Outbound;
use queries::Queries;
use round::Rounds;
use upload::Uploads;

/// Messages that wait for the Welcome; CloudCore has one unacknowledged message at a time and what was asked for.
const MAX_EARLY: usize = 16;

/// How much more or less is pending when that is told.
const NEWS: u64 = 100;

/// Hellos without a message of CloudCore in between that make a connection worthless.
const SILENT_HELLOS: u32 = 3;

/// Where the session stands.
#[derive(Debug)]
enum Phase {
    /// No WebSocket.
    Down,
    /// The WebSocket is up, the machine has not said Hello.
    Up,
    /// The machine has said Hello; CloudCore is asked for the Lease.
    Greeting { hello: Box<Hello>, until: Now },
    /// The machine was welcomed.
    Live,
}

/// See the module.
#[derive(Debug)]
pub struct Bridge {
    outbound: Outbound,
    phase: Phase,
    /// What came before the Welcome, as text.
    early: Vec<Vec<u8>>,
    /// When the next keepalive is due.
    keepalive_at: Option<Now>,
    delivery: Delivery,
    lease: LeaseKeeper,
    uploads: Uploads,
    asking: Queries,
    rounds: Rounds,
    endings: Endings,
    /// The totals of the machine when it said something last.
    totals: Totals,
    /// Those of its Hello.
    greeted: Totals,
    /// What was told the machine as still to come.
    pending: u64,
    /// The revision that was confirmed to the machine.
    told: u64,
    /// Hellos of the machine since CloudCore has said anything.
    hellos: u32,
}

impl Bridge {
    /// A bridge without a connection.
    #[must_use]
    pub fn new(config: BridgeConfig) -> Self {
        Self {
            outbound: Outbound::new(config),
            phase: Phase::Down,
            early: Vec::new(),
            keepalive_at: None,
            delivery: Delivery::default(),
            lease: LeaseKeeper::default(),
            uploads: Uploads::default(),
            asking: Queries::default(),
            rounds: Rounds::default(),
            endings: Endings::default(),
            totals: Totals::default(),
            greeted: Totals::default(),
            pending: 0,
            told: 0,
            hellos: 0,
        }
    }

    /// What is wanted of the time before: a name that a held Pod references, or a rule without `*` asks for, and the object
    /// that is held under it. To be told of all of them before the first connection: what is wanted and not known to be so
    /// is not kept when a watch pushes it, and not asked for again when it is deleted.
    pub fn remember(&mut self, name: &Name, held: Option<&Uid>) {
        self.asking.remember(name);
        match held {
            Some(uid) => self.asking.is_held(name, uid),
            None => self.asking.miss(name),
        }
    }

    /// Whether a name was told of already.
    #[must_use]
    pub fn knows(&self, name: &Name) -> bool {
        self.asking.knows(name)
    }

    /// What [`BridgeEffect::Remember`] has kept in the database last. To be told before the first connection.
    pub fn recall(&mut self, text: &str) {
        self.rounds.recall(text);
    }

    /// A Pod that is held: if it is to end, CloudCore is told so. To be told before the first connection.
    pub fn remember_pod(&mut self, uid: &Uid, namespace: &str, name: &str, body: &str) {
        self.endings.remember(&self.outbound.config, uid, namespace, name, body);
    }

    /// Rules, limits and times that may change while it runs; the node's name may not. New rules are asked for at once.
    pub fn set_config(&mut self, at: Moment, config: BridgeConfig) {
        self.outbound.at = at;
        let before = std::mem::replace(&mut self.outbound.config, config);
        let now = &self.outbound.config;
        let rules_changed = before.fetch != now.fetch || before.watch != now.watch;
        if rules_changed && matches!(self.phase, Phase::Live) {
            self.begin_round(RoundReason::Rules);
        } else if rules_changed {
            self.rounds.demand(RoundReason::Rules);
        }
        self.go_on();
    }

    /// The WebSocket is up. `random` seeds the ids of messages.
    pub fn connected(&mut self, at: Moment, random: u64) {
        self.disconnected();
        self.outbound.begin(at, random);
        self.phase = Phase::Up;
        self.keepalive(at.now);
    }

    /// The WebSocket is down: what was under way for it is forgotten. CloudCore sends again what was not acknowledged,
    /// the machine what was not confirmed.
    pub fn disconnected(&mut self) {
        self.phase = Phase::Down;
        self.early.clear();
        self.keepalive_at = None;
        self.pending = 0;
        self.hellos = 0;
        self.outbound.end();
        self.delivery.forget();
        self.lease.forget();
        self.uploads.forget();
        self.asking.forget();
        self.rounds.pause();
        self.endings.forget();
    }

    fn keepalive(&mut self, now: Now) {
        self.outbound.send(&message::keepalive());
        self.keepalive_at = Some(now + self.outbound.config.keepalive);
    }

    /// Everything that can be asked for is asked for again, as if the database had been lost: an operator wants to know.
    pub fn verify(&mut self) {
        self.rounds.demand(RoundReason::Asked);
    }

    /// A frame of the edge machine. `totals` are those of the machine now.
    pub fn up(&mut self, at: Moment, frame: Up, totals: Totals) {
        self.outbound.at = at;
        self.totals = totals;
        self.rounds.set_rows(totals.count);
        match frame {
            Up::Hello(hello) => self.hello(hello),
            Up::Report(report) => self.reported(&report),
            Up::Lease(lease) => {
                // While a round is under way a lost database must not look like a whole one.
                let marker = self.rounds.proves().then(|| Marker::of(&totals));
                let owner = self.uploads.node_uid().map(str::to_owned);
                self.lease.renew(&mut self.outbound, lease, owner, marker);
            }
            Up::Upload(upload) => {
                self.uploads.upload(&mut self.outbound, upload);
            }
            // Nobody asks for it here.
            Up::Inventory(_) => {}
        }
        self.go_on();
    }

    fn hello(&mut self, hello: Hello) {
        if matches!(self.phase, Phase::Down) {
            return;
        }
        self.hellos += 1;
        self.greeted = self.totals;
        if self.hellos >= SILENT_HELLOS {
            self.hellos = 0;
            self.outbound.effects.push_back(BridgeEffect::Reconnect);
        }
        self.delivery.forget();
        self.uploads.forget();
        self.asking.forget();
        self.rounds.pause();
        self.outbound.session = None;
        self.outbound.frames.clear();
        let until = self.outbound.at.now + self.outbound.config.answer_timeout;
        let is_first = matches!(self.phase, Phase::Up);
        self.phase = Phase::Greeting { hello: Box::new(hello), until };
        let is_proven = is_first && self.rounds.proves();
        match is_proven.then(|| self.lease.resume(&self.outbound, &self.greeted)).flatten() {
            Some(news) => self.lease_news(&news),
            None => self.lease.ask(&mut self.outbound),
        }
    }

    /// Welcomes the machine, and takes what came before. Whether the Node is to be registered, and whether the database
    /// is the one of before, is known with the Lease only; a CloudCore that sends, but does not answer that, must do.
    fn welcome(&mut self, lease: Option<&LeaseNews>) {
        let Phase::Greeting { hello, .. } = &self.phase else { return };
        let hello = (**hello).clone();
        self.told = hello.revision;
        self.outbound.session = Some(hello.session.clone());
        let register = matches!(lease, Some(LeaseNews::Missing));
        self.pending = 1;
        self.outbound.frames.push_back(Received::Welcome(Welcome {
            session: hello.session,
            incarnation: None,
            confirmed: hello.revision,
            pending: self.pending,
            held: 0,
            register,
        }));
        self.phase = Phase::Live;
        for text in std::mem::take(&mut self.early) {
            self.take(&text);
        }
    }

    /// What the Lease says decides what is asked for: see [`Marker`].
    fn lease_news(&mut self, news: &LeaseNews) {
        let was_greeting = matches!(self.phase, Phase::Greeting { .. });
        if matches!(news, LeaseNews::Missing | LeaseNews::Gone) {
            // A Lease goes with its Node: what is made next has an owner that is known to be there.
            self.uploads.set_node_uid(None);
        }
        self.welcome(Some(news));
        let reason = match news {
            LeaseNews::Found { marker, owner } => {
                self.uploads.set_node_uid(owner.clone());
                match marker {
                    Some(marker) if marker.is_held_by(&self.greeted) => RoundReason::Reconnect,
                    marker if self.rounds.is_settled(marker.as_ref()) => RoundReason::Reconnect,
                    Some(_) => RoundReason::Lost,
                    None => RoundReason::First,
                }
            }
            LeaseNews::Missing if was_greeting => {
                self.rounds.is_settled(None);
                RoundReason::First
            }
            // Node and Lease are gone while the session is up: a new Hello asks, and registers.
            LeaseNews::Missing | LeaseNews::Gone => {
                self.outbound.ask_for_hello("the Lease of the node is gone");
                return;
            }
            LeaseNews::Renewed { marker } => {
                if marker.as_ref().is_some_and(|marker| marker.is_held_by(&self.totals)) {
                    self.rounds.is_marked(&mut self.outbound);
                }
                return;
            }
        };
        self.begin_round(reason);
    }

    fn begin_round(&mut self, reason: RoundReason) {
        self.rounds.begin(&mut self.outbound, &mut self.asking, reason);
    }

    /// Goes on with the round as far as it can, and tells the machine what is to be expected.
    fn go_on(&mut self) {
        if matches!(self.phase, Phase::Live) {
            self.endings.tick(&mut self.outbound);
            let was_unmarked = self.rounds.is_unmarked();
            self.rounds.advance(&mut self.outbound, &mut self.delivery, &mut self.asking);
            if self.rounds.is_unmarked() && !was_unmarked {
                let owner = self.uploads.node_uid().map(str::to_owned);
                self.lease.mark(&mut self.outbound, owner, Marker::of(&self.totals));
            }
        }
        self.tell_pending();
    }

    /// A message has arrived. Whatever is wrong with it is counted, and never stops the session.
    pub fn heard(&mut self, at: Moment, text: &[u8]) {
        self.outbound.at = at;
        match self.phase {
            Phase::Down => return,
            Phase::Up => self.keep_early(text),
            Phase::Greeting { .. } => {
                if !self.take_lease(text) {
                    self.keep_early(text);
                }
            }
            Phase::Live => self.take(text),
        }
        self.hellos = 0;
        self.go_on();
    }

    fn keep_early(&mut self, text: &[u8]) {
        // What is dropped was not acknowledged, and comes again.
        if self.early.len() < MAX_EARLY {
            self.early.push(text.to_vec());
        }
    }

    /// Whether it was the answer to the question for the Lease.
    fn take_lease(&mut self, text: &[u8]) -> bool {
        let Ok(incoming) = message::decode(text) else { return false };
        let Some(news) = self.lease.answered(&mut self.outbound, &incoming) else {
            return false;
        };
        self.outbound.counters.received += 1;
        self.lease_news(&news);
        true
    }

    fn take(&mut self, text: &[u8]) {
        let incoming = match message::decode(text) {
            Ok(incoming) => incoming,
            Err(problem) => {
                self.outbound.counters.bad += 1;
                self.outbound.notice(BridgeNotice::BadMessage { problem });
                return;
            }
        };
        self.outbound.counters.received += 1;
        if let Some(news) = self.lease.answered(&mut self.outbound, &incoming) {
            return self.lease_news(&news);
        }
        match incoming.operation {
            Operation::Insert | Operation::Update | Operation::Patch | Operation::Delete => {
                self.object(&incoming, false);
            }
            Operation::Response => self.response(&incoming),
            Operation::ApplicationResponse => {
                if self.uploads.answered(&mut self.outbound, &incoming) {
                    return;
                }
                let asking = &mut self.asking;
                self.rounds.answered(&mut self.outbound, &mut self.delivery, asking, &incoming);
            }
            Operation::Error => self.outbound.counters.errors += 1,
            // It may hold up the queue of CloudCore, and there is nothing to be done with it.
            Operation::Other => {
                self.outbound.counters.ignored += 1;
                self.delivery.acknowledge(&mut self.outbound, &incoming);
            }
        }
    }

    /// An answer: to something of the outbox, to a question, or a late one that nobody waits for any more.
    fn response(&mut self, incoming: &Incoming<'_>) {
        if self.uploads.answered(&mut self.outbound, incoming) {
            if message::wants_acknowledgement(incoming) {
                self.delivery.acknowledge(&mut self.outbound, incoming);
            }
            return;
        }
        self.endings.answered(incoming);
        let was_asked = self.asking.answered(&mut self.outbound, &mut self.delivery, incoming);
        if incoming.is_object() {
            self.object(incoming, was_asked);
            if let Some(change) = self.asking.take_replaced() {
                self.delivery.apply(&mut self.outbound, vec![change], Vec::new());
            }
        } else if message::wants_acknowledgement(incoming) {
            self.delivery.acknowledge(&mut self.outbound, incoming);
        }
    }

    /// A message about an object goes to the machine; it is acknowledged when the machine reports its commit.
    fn object(&mut self, incoming: &Incoming<'_>, was_asked: bool) {
        let Some(about) = object::read(incoming, &self.outbound.config, &mut self.delivery.kinds) else {
            self.outbound.counters.ignored += 1;
            return self.delivery.acknowledge(&mut self.outbound, incoming);
        };
        match about {
            object::About::Change(change) => {
                if !self.asking.wants(&self.outbound.config, &incoming.source, &change) {
                    self.outbound.counters.unwanted += 1;
                    return self.delivery.acknowledge(&mut self.outbound, incoming);
                }
                self.rounds.changed(&change);
                match &change {
                    Change::Put(put) => {
                        self.uploads.seen(&mut self.outbound, put);
                        self.endings.seen(&self.outbound.config, put);
                        self.asking.stored(&mut self.outbound, put, |_, _| false);
                    }
                    Change::Delete(delete) => {
                        self.endings.gone(&delete.uid);
                        self.asking.deleted(&mut self.outbound, incoming, &delete.uid);
                    }
                }
                self.delivery.begin(&mut self.outbound, incoming, change, was_asked);
            }
            object::About::Rejected(rejected) => self.delivery.reject(&mut self.outbound, incoming, rejected),
            // Which object is meant nobody can say: it is asked for instead, and nothing is removed.
            object::About::Unclear => {
                self.outbound.counters.unclear += 1;
                self.asking.unclear(&mut self.outbound, incoming);
                self.delivery.acknowledge(&mut self.outbound, incoming);
            }
        }
    }

    /// The machine reports a commit: what it holds is acknowledged, and confirmed to the machine at once, because nobody
    /// else records it.
    fn reported(&mut self, report: &Report) {
        if self.outbound.session.as_deref() != Some(&report.session) {
            return;
        }
        let changes = self.delivery.reported(&mut self.outbound, report);
        self.rounds.applied(&mut self.outbound, changes);
        self.told = self.told.max(report.to);
        self.pending = self.count_pending();
        let session = report.session.clone();
        let confirm = Confirm { session, revision: report.to, pending: self.pending, held: 0 };
        self.outbound.frames.push_back(Received::Confirm(confirm));
    }

    /// What is still to come, as far as it is known: the machine is in sync when it is nothing.
    fn count_pending(&self) -> u64 {
        let greeting = u64::from(!self.lease.is_known());
        greeting + self.rounds.pending(&self.asking) + self.delivery.pending()
    }

    fn tell_pending(&mut self) {
        let Some(session) = self.outbound.session.clone() else { return };
        let pending = self.count_pending();
        // One for each object would double the frames; the machine wants to know when it is over, and about how far it is.
        if pending == self.pending
            || (pending > 0 && self.pending > 0 && pending.abs_diff(self.pending) < NEWS)
        {
            return;
        }
        self.pending = pending;
        let confirm = Confirm { session, revision: self.told, pending, held: 0 };
        self.outbound.frames.push_back(Received::Confirm(confirm));
    }

    /// CloudCore has read everything that was sent before this ping.
    pub fn pong(&mut self, at: Moment, number: u64) {
        self.outbound.at = at;
        self.uploads.pong(&mut self.outbound, number);
    }

    /// The answer to [`BridgeEffect::ReadHeld`].
    pub fn held_read(&mut self, at: Moment, page: HeldPage) {
        self.outbound.at = at;
        self.rounds.held_read(page);
        self.go_on();
    }

    /// The rows could not be read; the round goes on later.
    pub fn read_failed(&mut self, at: Moment) {
        self.outbound.at = at;
        self.rounds.read_failed(&self.outbound);
    }

    /// The time of [`Bridge::deadline`] has come.
    pub fn tick(&mut self, at: Moment) {
        self.outbound.at = at;
        if self.keepalive_at.is_some_and(|due| due <= at.now) {
            self.keepalive(at.now);
        }
        if matches!(self.phase, Phase::Greeting { until, .. } if until <= at.now) && !self.early.is_empty() {
            self.welcome(None);
        }
        self.lease.tick(&mut self.outbound);
        self.uploads.tick(&mut self.outbound);
        self.asking.tick(&mut self.outbound);
        if matches!(self.phase, Phase::Live) {
            self.rounds.tick(&mut self.outbound, &mut self.asking);
        }
        self.go_on();
    }
}
