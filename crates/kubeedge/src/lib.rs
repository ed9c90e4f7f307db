//! The link to a stock KubeEdge CloudCore: WebSocket client, message codec, and [`Bridge`], which
//! acts as the cloud side towards the edge machine.
//!
//! The crate knows neither the agent nor its store. Read [`Bridge`] first;
//! `docs/decisions/0013-kubeedge.md` gives the reasons for a bridge.
//!
//! [`EdgeMachine`](edgesync_protocol::edge::EdgeMachine) behaves with CloudCore exactly as with
//! `edgesync-cloud`: it sends Hello, applies `Objects` in one transaction each, reports after the
//! commit, renews the Lease, empties the outbox. The bridge answers the machine's frames and speaks
//! KubeEdge's protocol to CloudCore. Version check, UID rules, group commit and outbox therefore
//! exist once, for both links.
//!
//! | machine | bridge | CloudCore |
//! |---|---|---|
//! | Hello | queries the node's Lease, answers Welcome after CloudCore's first message | `query` |
//! | Objects | one for each message, with a receipt | `insert`, `update`, `patch`, `delete`, `response` |
//! | Report with that receipt, after the commit | acknowledges the message | `response` "OK" |
//! | Lease | writes the Lease object, with the [`Marker`] of the database in an annotation | `insert`, `update` |
//! | Upload | registers the Node, patches its status, writes Events | `insert`, `patch` |
//!
//! CloudCore never requests the objects that the edge holds. The bridge compensates with relists.
//! If the marker in the Lease differs from the database's (which was lost, or is an older copy),
//! everything that can be queried is queried again; otherwise it is queried at a low rate. Objects
//! that CloudCore never pushes are queried in any case.
//!
//! Like the machines the bridge is pure: time ([`Moment`]) and randomness are arguments, effects
//! are polled.

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

use edgesync_object::NodeName;
use edgesync_protocol::apply::Totals;
use edgesync_protocol::change::{Change, Uid};
use edgesync_protocol::frame::{Confirm, Hello, Received, Report, Up, Welcome};
use edgesync_protocol::timing::Now;

pub(crate) use lease::Marker;
pub use names::{FetchRule, Name, QueriedKind, WatchRule, references};
pub use types::{
    BridgeConfig, BridgeCounters, BridgeEffect, BridgeNotice, BridgeStatus, DynamicController, HeldEntry,
    HeldPage, Moment, RoundReason, Sent,
};

use delivery::Delivery;
use ending::TerminatingPods;
use lease::{LeaseAnswer, LeaseKeeper};
use message::{Incoming, Operation};
use outbound::Outbound;
use queries::Queries;
use round::Rounds;
use upload::Uploads;

/// The most messages buffered before the Welcome; CloudCore has one unacknowledged message at a
/// time, and answers to queries.
const MAX_EARLY: usize = 16;

/// The change of the pending count that is announced to the machine.
const ANNOUNCE_STEP: u64 = 100;

/// The number of Hellos without a message of CloudCore that make a connection useless.
const SILENT_HELLOS: u32 = 3;

/// The phase of the session.
#[derive(Debug)]
enum Phase {
    /// The WebSocket is down.
    Down,
    /// The WebSocket is up, the machine has not sent Hello.
    Up,
    /// The machine has sent Hello; the query for the Lease is in flight.
    Greeting { hello: Box<Hello>, until: Now },
    /// The machine has received its Welcome.
    Live,
}

/// The cloud side of the edge machine over a CloudCore: a pure state machine between [`Up`] frames
/// and KubeEdge messages.
#[derive(Debug)]
pub struct Bridge {
    outbound: Outbound,
    phase: Phase,
    /// Messages received before the Welcome, as text.
    early: Vec<Vec<u8>>,
    /// The time of the next keepalive.
    keepalive_at: Option<Now>,
    delivery: Delivery,
    lease: LeaseKeeper,
    uploads: Uploads,
    queries: Queries,
    rounds: Rounds,
    endings: TerminatingPods,
    /// The machine's totals at its last frame.
    totals: Totals,
    /// The machine's totals at its Hello.
    hello_totals: Totals,
    /// The pending count last announced to the machine.
    pending: u64,
    /// The revision confirmed to the machine.
    confirmed_revision: u64,
    /// Hellos of the machine since CloudCore's last message.
    hellos: u32,
}

impl Bridge {
    /// Creates a bridge without a connection.
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
            queries: Queries::default(),
            rounds: Rounds::default(),
            endings: TerminatingPods::default(),
            totals: Totals::default(),
            hello_totals: Totals::default(),
            pending: 0,
            confirmed_revision: 0,
            hellos: 0,
        }
    }

    /// Returns the name of the node.
    #[must_use]
    pub fn node(&self) -> &NodeName {
        &self.outbound.config.node
    }

    /// Restores a desired name from an earlier run: one that a held Pod references or a rule
    /// without `*` names, and the object held under it.
    ///
    /// Call it for all of them before the first connection. A name not known as desired is dropped
    /// when a watch pushes it, and is not queried again when it is deleted.
    pub fn restore_name(&mut self, name: &Name, held: Option<&Uid>) {
        self.queries.mark_desired(name);
        match held {
            Some(uid) => self.queries.is_held(name, uid),
            None => self.queries.miss(name),
        }
    }

    /// Returns whether a name has been restored already.
    #[must_use]
    pub fn has_restored(&self, name: &Name) -> bool {
        self.queries.knows(name)
    }

    /// Restores the last text of [`BridgeEffect::SaveState`]. Call it before the first connection.
    pub fn restore_state(&mut self, text: &str) {
        self.rounds.restore_state(text);
    }

    /// Restores a held Pod: a terminating one is reported to CloudCore. Call it before the first
    /// connection.
    pub fn restore_pod(&mut self, uid: &Uid, namespace: &str, name: &str, body: &str) {
        self.endings.restore(&self.outbound.config, uid, namespace, name, body);
    }

    /// Replaces rules, limits and times at run time; the node's name must stay. New rules are
    /// queried at once.
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
        self.advance();
    }

    /// Starts a connection: the WebSocket is up. `random` seeds the ids of messages.
    pub fn connected(&mut self, at: Moment, random: u64) {
        self.disconnected();
        self.outbound.begin(at, random);
        self.phase = Phase::Up;
        self.keepalive(at.now);
    }

    /// Ends the connection and drops everything in flight. CloudCore resends unacknowledged
    /// messages, the machine unconfirmed changes.
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
        self.queries.forget();
        self.rounds.pause();
        self.endings.forget();
    }

    fn keepalive(&mut self, now: Now) {
        self.outbound.send(&message::keepalive());
        self.keepalive_at = Some(now + self.outbound.config.keepalive);
    }

    /// Starts a full relist, as after a loss of the database, on an operator's request.
    pub fn verify(&mut self) {
        self.rounds.demand(RoundReason::Asked);
    }

    /// Handles a frame of the edge machine. `totals` are the machine's current ones.
    pub fn up(&mut self, at: Moment, frame: Up, totals: Totals) {
        self.outbound.at = at;
        self.totals = totals;
        self.rounds.set_rows(totals.count);
        match frame {
            Up::Hello(hello) => self.hello(hello),
            Up::Report(report) => self.reported(&report),
            Up::Lease(lease) => {
                // During an urgent round a lost database must not look complete.
                let marker = self.rounds.proves().then(|| Marker::of(&totals));
                let owner = self.uploads.node_uid().map(str::to_owned);
                self.lease.renew(&mut self.outbound, lease, owner, marker);
            }
            Up::Upload(upload) => {
                self.uploads.upload(&mut self.outbound, upload);
            }
            // The bridge never requests an inventory, nor does it offer short renewals.
            Up::Inventory(_) | Up::Renew(_) | Up::Credit(_) => {}
        }
        self.advance();
    }

    fn hello(&mut self, hello: Hello) {
        if matches!(self.phase, Phase::Down) {
            return;
        }
        self.hellos += 1;
        self.hello_totals = self.totals;
        if self.hellos >= SILENT_HELLOS {
            self.hellos = 0;
            self.outbound.effects.push_back(BridgeEffect::Reconnect);
        }
        self.delivery.forget();
        self.uploads.forget();
        self.queries.forget();
        self.rounds.pause();
        self.outbound.session = None;
        self.outbound.frames.clear();
        let until = self.outbound.at.now + self.outbound.config.answer_timeout;
        let is_first = matches!(self.phase, Phase::Up);
        self.phase = Phase::Greeting { hello: Box::new(hello), until };
        let is_proven = is_first && self.rounds.proves();
        match is_proven.then(|| self.lease.resume(&self.outbound, &self.hello_totals)).flatten() {
            Some(news) => self.lease_answered(&news),
            None => self.lease.query(&mut self.outbound),
        }
    }

    /// Welcomes the machine and handles the messages buffered before. The Lease shows whether to
    /// register the Node and whether the database is the previous one; without an answer for it,
    /// any message of CloudCore suffices.
    fn welcome(&mut self, lease: Option<&LeaseAnswer>) {
        let Phase::Greeting { hello, .. } = &self.phase else { return };
        let hello = (**hello).clone();
        self.confirmed_revision = hello.revision;
        self.outbound.session = Some(hello.session.clone());
        let register = matches!(lease, Some(LeaseAnswer::Missing));
        self.pending = 1;
        self.outbound.frames.push_back(Received::Welcome(Welcome {
            session: hello.session,
            incarnation: None,
            confirmed: hello.revision,
            pending: self.pending,
            held: 0,
            register,
            features: Vec::new(),
            waiting: Default::default(),
        }));
        self.phase = Phase::Live;
        for text in std::mem::take(&mut self.early) {
            self.take(&text);
        }
    }

    /// Begins the round that the Lease demands: see [`Marker`].
    fn lease_answered(&mut self, news: &LeaseAnswer) {
        let was_greeting = matches!(self.phase, Phase::Greeting { .. });
        if matches!(news, LeaseAnswer::Missing | LeaseAnswer::Gone) {
            // A Lease is deleted with its Node: the next Lease needs an owner that is known to
            // exist.
            self.uploads.set_node_uid(None);
        }
        self.welcome(Some(news));
        let reason = match news {
            LeaseAnswer::Found { marker, owner } => {
                self.uploads.set_node_uid(owner.clone());
                match marker {
                    Some(marker) if marker.is_held_by(&self.hello_totals) => RoundReason::Reconnect,
                    marker if self.rounds.marker_found(marker.as_ref()) => RoundReason::Reconnect,
                    Some(_) => RoundReason::Lost,
                    None => RoundReason::First,
                }
            }
            LeaseAnswer::Missing if was_greeting => {
                self.rounds.marker_found(None);
                RoundReason::First
            }
            // Node and Lease were deleted during the session: a new Hello queries and registers.
            LeaseAnswer::Missing | LeaseAnswer::Gone => {
                self.outbound.request_hello("Lease of the node deleted");
                return;
            }
            LeaseAnswer::Renewed { marker } => {
                if marker.as_ref().is_some_and(|marker| marker.is_held_by(&self.totals)) {
                    self.rounds.marker_written(&mut self.outbound);
                }
                return;
            }
        };
        self.begin_round(reason);
    }

    fn begin_round(&mut self, reason: RoundReason) {
        self.rounds.begin(&mut self.outbound, &mut self.queries, reason);
    }

    /// Advances the round as far as possible and announces the pending count to the machine.
    fn advance(&mut self) {
        if matches!(self.phase, Phase::Live) {
            self.endings.tick(&mut self.outbound);
            if let Some(uid) = self.uploads.node_uid() {
                self.lease.set_owner(&mut self.outbound, uid);
            }
            let was_unmarked = self.rounds.is_unmarked();
            self.rounds.advance(&mut self.outbound, &mut self.delivery, &mut self.queries);
            if self.rounds.is_unmarked() && !was_unmarked {
                let owner = self.uploads.node_uid().map(str::to_owned);
                self.lease.mark(&mut self.outbound, owner, Marker::of(&self.totals));
            }
        }
        self.announce_pending();
    }

    /// Handles a message of CloudCore. An invalid one is counted and never ends the session.
    pub fn message_received(&mut self, at: Moment, text: &[u8]) {
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
        self.advance();
    }

    fn keep_early(&mut self, text: &[u8]) {
        // A dropped message was not acknowledged and is sent again.
        if self.early.len() < MAX_EARLY {
            self.early.push(text.to_vec());
        }
    }

    /// Returns whether the message was the answer to the query for the Lease.
    fn take_lease(&mut self, text: &[u8]) -> bool {
        let Ok(incoming) = message::decode(text) else { return false };
        let Some(news) = self.lease.answered(&mut self.outbound, &incoming) else {
            return false;
        };
        self.outbound.counters.received += 1;
        self.lease_answered(&news);
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
            return self.lease_answered(&news);
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
                let queries = &mut self.queries;
                self.rounds.answered(&mut self.outbound, &mut self.delivery, queries, &incoming);
            }
            Operation::Error => self.outbound.counters.errors += 1,
            // An unreadable message may block the queue of CloudCore, and there is nothing to
            // store.
            Operation::Other => {
                self.outbound.counters.ignored += 1;
                self.delivery.acknowledge(&mut self.outbound, &incoming);
            }
        }
    }

    /// Handles an answer: to an outbox item, to a query, or a late one that nothing awaits.
    fn response(&mut self, incoming: &Incoming<'_>) {
        if self.uploads.answered(&mut self.outbound, incoming) {
            if message::wants_acknowledgement(incoming) {
                self.delivery.acknowledge(&mut self.outbound, incoming);
            }
            return;
        }
        self.endings.answered(incoming);
        let was_asked = self.queries.answered(&mut self.outbound, &mut self.delivery, incoming);
        if incoming.is_object() {
            self.object(incoming, was_asked);
            if let Some(change) = self.queries.take_replaced() {
                self.delivery.apply(&mut self.outbound, vec![change], Vec::new());
            }
        } else if message::wants_acknowledgement(incoming) {
            self.delivery.acknowledge(&mut self.outbound, incoming);
        }
    }

    /// Passes a message about an object to the machine; it is acknowledged when the machine reports
    /// its commit.
    fn object(&mut self, incoming: &Incoming<'_>, was_asked: bool) {
        let Some(about) = object::read(incoming, &self.outbound.config, &mut self.delivery.kinds) else {
            self.outbound.counters.ignored += 1;
            return self.delivery.acknowledge(&mut self.outbound, incoming);
        };
        match about {
            object::About::Change(change) => {
                if !self.queries.accepts(&self.outbound.config, &incoming.source, &change) {
                    self.outbound.counters.unwanted += 1;
                    return self.delivery.acknowledge(&mut self.outbound, incoming);
                }
                self.rounds.changed(&change);
                match &change {
                    Change::Put(put) => {
                        self.uploads.node_received(&mut self.outbound, put);
                        self.endings.seen(&self.outbound.config, put);
                        self.queries.stored(&mut self.outbound, put, |_, _| false);
                    }
                    // A CloudCore sends whole objects.
                    Change::Patch(_) => {}
                    Change::Delete(delete) => {
                        self.endings.gone(&delete.uid);
                        self.queries.deleted(&mut self.outbound, incoming, &delete.uid);
                    }
                }
                self.delivery.begin(&mut self.outbound, incoming, change, was_asked);
            }
            object::About::Rejected(rejected) => self.delivery.reject(&mut self.outbound, incoming, rejected),
            // The object is ambiguous: it is queried instead, and nothing is removed.
            object::About::Unclear => {
                self.outbound.counters.unclear += 1;
                self.queries.unclear(&mut self.outbound, incoming);
                self.delivery.acknowledge(&mut self.outbound, incoming);
            }
        }
    }

    /// Handles a report of the machine: acknowledges the messages, and confirms the changes to the
    /// machine at once, because no other component records them.
    fn reported(&mut self, report: &Report) {
        if self.outbound.session.as_deref() != Some(&report.session) {
            return;
        }
        let changes = self.delivery.reported(&mut self.outbound, report);
        self.rounds.applied(&mut self.outbound, changes);
        self.confirmed_revision = self.confirmed_revision.max(report.to);
        self.pending = self.count_pending();
        let session = report.session.clone();
        let confirm =
            Confirm { session, revision: report.to, pending: self.pending, held: 0, ..Confirm::default() };
        self.outbound.frames.push_back(Received::Confirm(confirm));
    }

    /// Returns the known number of outstanding objects: zero means in sync.
    fn count_pending(&self) -> u64 {
        let greeting = u64::from(!self.lease.is_known());
        greeting + self.rounds.pending(&self.queries) + self.delivery.pending()
    }

    fn announce_pending(&mut self) {
        let Some(session) = self.outbound.session.clone() else { return };
        let pending = self.count_pending();
        // An announcement per object would double the frames; the machine needs the end and an
        // estimate.
        if pending == self.pending
            || (pending > 0 && self.pending > 0 && pending.abs_diff(self.pending) < ANNOUNCE_STEP)
        {
            return;
        }
        self.pending = pending;
        let confirm =
            Confirm { session, revision: self.confirmed_revision, pending, held: 0, ..Confirm::default() };
        self.outbound.frames.push_back(Received::Confirm(confirm));
    }

    /// Handles a pong: CloudCore has read everything sent before this ping.
    pub fn pong(&mut self, at: Moment, number: u64) {
        self.outbound.at = at;
        self.uploads.pong(&mut self.outbound, number);
    }

    /// Handles the answer to [`BridgeEffect::ReadHeld`].
    pub fn held_read(&mut self, at: Moment, page: HeldPage) {
        self.outbound.at = at;
        self.rounds.held_read(page);
        self.advance();
    }

    /// Handles a failed read of the rows; the round continues later.
    pub fn read_failed(&mut self, at: Moment) {
        self.outbound.at = at;
        self.rounds.read_failed(&self.outbound);
    }

    /// Handles expired timers. Call it at [`Bridge::deadline`].
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
        self.queries.tick(&mut self.outbound);
        if matches!(self.phase, Phase::Live) {
            self.rounds.tick(&mut self.outbound, &mut self.queries);
        }
        self.advance();
    }
}
