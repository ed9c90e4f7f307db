//! The edge's half of the protocol as a state machine.
//!
//! Inputs are methods that take the time; outputs are pulled: [`EdgeMachine::poll_effect`] for work on the
//! store, [`EdgeMachine::poll_frame`] for frames, [`EdgeMachine::deadline`] for the next call of
//! [`EdgeMachine::tick`]. The machine holds totals, never rows: its memory does not grow with what is stored.
//!
//! A connection goes `Down → Settling → Greeting → Live`. In `Settling` commits of the last connection
//! are still under way; Hello waits for them, so that its totals are the truth.

mod applying;
mod lease;
mod outbox;
mod pages;
mod types;
mod wait;

use std::collections::VecDeque;
use std::time::Duration;

use super::frame::{Confirm, Hello, HelloRequest, Received, Report, Up, Welcome};
use super::parts::Assembler;
use super::replica::Totals;
use super::timing::{Now, backoff, earlier};
use super::upload::Lease;
use super::wait::Wait;
pub use types::{
    ChangesPage, Commit, EdgeConfig, EdgeCounters, EdgeEffect, EdgeNotice, EdgePhase, Entry, InventoryPage,
    OutboxMarks,
};

use applying::Commits;
use lease::Renewal;
use outbox::Outbox;
use pages::Pages;
use wait::{Line, Repeat};

#[derive(Debug)]
enum Phase {
    Down,
    Settling,
    /// Waiting for the time at which Hello may be said.
    Pausing {
        until: Now,
        attempt: u32,
        /// The session that the cloud refused: it may take that back.
        refused: Option<String>,
    },
    Greeting {
        session: String,
        said: Now,
        wait: Wait,
        attempt: u32,
    },
    Live {
        session: String,
        pending: u64,
        held: u64,
    },
}

/// The edge's half of the protocol.
#[derive(Debug)]
pub struct EdgeMachine {
    config: EdgeConfig,
    totals: Totals,
    confirmed: u64,
    incarnation: Option<String>,
    phase: Phase,
    commits: Commits,
    pages: Pages,
    parts: Assembler,
    effects: VecDeque<EdgeEffect>,
    frames: VecDeque<Up>,
    repeat: Repeat,
    outbox: Outbox,
    renewal: Renewal,
    line: Line,
    counters: EdgeCounters,
}

impl EdgeMachine {
    /// A machine without a link, over a store with these totals.
    #[must_use]
    pub fn new(config: EdgeConfig, totals: Totals, confirmed: u64, incarnation: Option<String>) -> Self {
        let parts = Assembler::new(config.max_object as usize);
        Self {
            config,
            totals,
            confirmed: confirmed.min(totals.revision),
            incarnation,
            phase: Phase::Down,
            commits: Commits::default(),
            pages: Pages::default(),
            parts,
            effects: VecDeque::new(),
            frames: VecDeque::new(),
            repeat: Repeat::default(),
            outbox: Outbox::default(),
            renewal: Renewal::default(),
            line: Line::new(u32::MAX),
            counters: EdgeCounters::default(),
        }
    }

    /// The link is up and takes frames of up to `link_limit` bytes. `random` seeds the session id.
    pub fn connected(&mut self, now: Now, link_limit: usize, random: u64) {
        self.line = Line::new(u32::try_from(link_limit).unwrap_or(u32::MAX));
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
        self.pages.clear();
        self.repeat.clear();
        self.forget_outbox_session();
        self.renewal = Renewal::default();
        self.effects.retain(|effect| {
            !matches!(
                effect,
                EdgeEffect::ReadChanges { .. }
                    | EdgeEffect::ReadBuckets
                    | EdgeEffect::ReadInventory { .. }
                    | EdgeEffect::RenewLease
            )
        });
    }

    fn settle(&mut self, now: Now, random: u64, attempt: u32) {
        if self.commits.is_empty() {
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
        let time = backoff(self.config.hello_timeout * 2, self.config.retry_max * 2, attempt, random);
        self.phase = Phase::Greeting { session, said: now, wait: self.wait(now, time), attempt };
        self.replay();
    }

    fn max_frame(&self) -> u32 {
        self.config.max_frame.min(self.line.max_frame())
    }

    /// Limits and delays that may change while the machine runs; the node's name may not.
    pub fn set_config(&mut self, config: EdgeConfig) {
        self.parts = Assembler::new(config.max_object as usize);
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
            Received::UploadConfirm(confirm) => self.upload_confirmed(now, confirm),
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
        let Welcome { session, pending, held, confirmed, register, .. } = welcome;
        self.phase = Phase::Live { session, pending, held };
        self.advance(confirmed);
        self.repeat.stop();
        self.arm_repeat(now);
        self.notice(EdgeNotice::Welcomed { pending, held, round_trip });
        if register {
            self.notice(EdgeNotice::Register);
        }
        self.request_lease(now, random);
        self.probe(now);
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
                self.repeat.answered(news);
            }
            // A long replay before the Welcome.
            Phase::Greeting { session, .. } if *session == confirm.session => self.greeting_goes_on(now),
            _ => return self.foreign(now),
        }
        if self.advance(confirm.revision) {
            self.repeat.clear();
        } else if self.confirmed >= self.totals.revision {
            self.repeat.stop();
        }
        self.arm_repeat(now);
    }

    fn arm_repeat(&mut self, now: Now) {
        // Before the Welcome it is the Hello that is said again.
        let Phase::Live { pending, .. } = self.phase else { return };
        if self.confirmed >= self.totals.revision && pending == 0 {
            self.repeat.stop();
        } else if !self.repeat.is_armed() {
            self.repeat.arm(self.wait(now, self.repeat.patience(&self.config)), 0);
        }
    }

    fn report(&mut self, mut report: Report) {
        let (Phase::Live { session, .. } | Phase::Greeting { session, .. }) = &self.phase else { return };
        report.session.clone_from(session);
        self.frames.push_back(Up::Report(report));
    }

    fn hello_requested(&mut self, now: Now, request: HelloRequest, random: u64) {
        let known = match &self.phase {
            Phase::Pausing { refused, .. } => refused.as_deref(),
            _ => self.session(),
        };
        if known != Some(&request.session) {
            return;
        }
        let HelloRequest { reason, retry_after_seconds, removed, session } = request;
        if removed {
            self.notice(EdgeNotice::Removed { reason: reason.clone() });
        }
        self.notice(EdgeNotice::HelloRequested { reason, retry_after_seconds });
        self.forget_connection();
        if retry_after_seconds == 0 {
            self.settle(now, random, 0);
        } else {
            let wait = Duration::from_secs(retry_after_seconds.min(3600));
            let spread = backoff(wait, wait, 0, random);
            let until = now + wait / 2 + spread;
            self.phase = Phase::Pausing { until, attempt: 0, refused: Some(session) };
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
            let until = now + self.config.retry_max;
            self.phase = Phase::Pausing { until, attempt: 0, refused: None };
        }
    }

    /// The time of [`EdgeMachine::deadline`] has come.
    pub fn tick(&mut self, now: Now, random: u64) {
        self.wait_for_the_link(now);
        self.tick_outbox(now, random);
        if self.lease_deadline().is_some_and(|due| due <= now) {
            self.request_lease(now, random);
        }
        match &self.phase {
            Phase::Pausing { until, attempt, .. } if *until <= now => {
                let attempt = *attempt;
                self.settle(now, random, attempt);
            }
            Phase::Greeting { wait, attempt, .. } if wait.until <= now => {
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
        let Some(attempts) = self.repeat.overdue(now) else { return };
        self.counters.repeated_reports += 1;
        if attempts >= self.config.report_attempts {
            self.notice(EdgeNotice::CloudSilent { attempts });
            self.forget_connection();
            return self.settle(now, random, 0);
        }
        if self.confirmed < self.totals.revision {
            self.replay();
        } else {
            // Announced objects do not come: an empty report asks where things stand.
            let at = self.totals.revision;
            self.report(Report { from: at, to: at, ..Report::default() });
        }
        let time = backoff(self.config.report_timeout * 2, self.config.retry_max, attempts, random);
        self.repeat.arm(self.wait(now, time), attempts);
    }

    /// When [`EdgeMachine::tick`] wants to be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Now> {
        let phase = match &self.phase {
            Phase::Pausing { until, .. } => Some(*until),
            Phase::Greeting { wait, .. } => Some(wait.until),
            Phase::Down | Phase::Settling | Phase::Live { .. } => None,
        };
        let upstream = earlier(self.outbox_deadline(), self.lease_deadline());
        earlier(earlier(phase, self.repeat.deadline()), upstream)
    }

    /// The next piece of work for the store. Pages are read only when the frames before them have left.
    pub fn poll_effect(&mut self) -> Option<EdgeEffect> {
        if let Some(effect) = self.effects.pop_front() {
            return Some(effect);
        }
        if !self.frames.is_empty() {
            return None;
        }
        self.pages.next_read().or_else(|| self.next_outbox_effect())
    }

    /// The next frame for the link. To be called only when the link has room for it.
    pub fn poll_frame(&mut self, now: Now) -> Option<Up> {
        let frame = self.frames.pop_front().or_else(|| self.next_lease()).or_else(|| self.next_upload())?;
        self.handed(now);
        Some(frame)
    }

    fn next_lease(&mut self) -> Option<Up> {
        let lease = self.renewal.next_frame()?;
        self.counters.leases += 1;
        Some(Up::Lease(lease))
    }

    /// Asks the owner of the clock for a renewal of the Lease.
    fn request_lease(&mut self, now: Now, random: u64) {
        self.renewal.request(now, random);
        self.effects.push_back(EdgeEffect::RenewLease);
    }

    fn lease_deadline(&self) -> Option<Now> {
        self.renewal.deadline(&self.config, self.is_frugal())
    }

    /// The Lease is renewed with these times of the clock (Unix, microseconds); the answer to
    /// [`EdgeEffect::RenewLease`]. `random` spreads the next renewal.
    pub fn renew(&mut self, now: Now, acquired: i64, renewed: i64, random: u64) {
        let Phase::Live { session, .. } = &self.phase else { return };
        let lease = Lease { session: session.clone(), seconds: 0, acquired, renewed };
        self.renewal.renew(&self.config, self.is_frugal(), lease);
        self.renewal.request(now, random);
    }

    /// Whether a frame is waiting.
    #[must_use]
    pub fn has_frame(&self) -> bool {
        !self.frames.is_empty() || self.renewal.has_frame() || self.has_upload()
    }

    /// Whether another frame may be taken from the link: too many commits are not under way.
    #[must_use]
    pub fn wants_frame(&self) -> bool {
        self.commits.len() < self.config.max_applying
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
            && self.commits.is_empty()
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
        if matches!(self.phase, Phase::Live { .. }) && !self.repeat.is_armed() {
            self.repeat.arm(self.wait(now, self.config.report_timeout), 0);
        }
    }

    fn notice(&mut self, notice: EdgeNotice) {
        self.effects.push_back(EdgeEffect::Notice(notice));
    }
}
