//! The edge's half of the protocol as a state machine; see [`EdgeMachine`].
//!
//! A connection runs through the phases `Down → Settling → Greeting → Live`. In `Settling` commits
//! of the last connection are still in flight; Hello waits for them, so that its totals are exact.

mod applying;
mod lease;
mod metered;
mod outbox;
mod pages;
mod receiving;
mod types;
mod wait;

use std::collections::VecDeque;
use std::time::Duration;

use super::apply::Totals;
#[cfg(any(test, feature = "simulation"))]
use super::fault;
use super::frame::{Confirm, Hello, HelloRequest, MAX_METERED_FRAME, Received, Report, Up, Welcome};
use super::renewal::{CheckIn, Feature, Lease, MAX_STAY, Stay};
use super::timing::{Now, backoff, earlier};
use super::wait::Wait;
pub use types::{
    ChangesPage, Commit, EdgeConfig, EdgeCounters, EdgeEffect, EdgeNotice, EdgePhase, Entry, InventoryPage,
    OutboxMarks,
};

use applying::Commits;
use lease::Renewal;
use metered::Metered;
use outbox::Outbox;
use pages::Pages;
use receiving::Receiving;
use wait::{Line, Repeat};

#[derive(Debug)]
enum Phase {
    Down,
    Settling,
    /// Waiting for the time of the next Hello.
    Pausing {
        until: Now,
        attempt: u32,
        /// The session that the cloud refused; a later request may lift the refusal.
        refused: Option<String>,
    },
    Greeting {
        session: String,
        sent_at: Now,
        wait: Wait,
        attempt: u32,
    },
    Live {
        session: String,
        pending: u64,
        held: u64,
    },
}

/// What the cloud side has said about absences in this session.
#[derive(Debug, Default)]
struct Absences {
    /// Whether it understands planned absences; `None` before its first Welcome.
    are_understood: Option<bool>,
    /// The end of the time for which it asks the node to stay.
    stay_until: Option<Now>,
}

/// The edge's half of the protocol: a pure state machine over totals, never rows. Its memory does
/// not grow with the number of stored objects.
///
/// # Order of calls
///
/// 1. [`new`](Self::new) with the totals of the store, once per process;
///    [`outbox_changed`](Self::outbox_changed) before the first item enters the outbox, and
///    [`restore_parts`](Self::restore_parts) to continue a message in parts of an earlier run.
/// 2. [`connected`](Self::connected) when the link is up, [`disconnected`](Self::disconnected) when
///    it is down.
/// 3. After every input, pull the outputs: [`poll_effect`](Self::poll_effect) until it returns
///    `None`, [`poll_frame`](Self::poll_frame) while the link has capacity, and
///    [`deadline`](Self::deadline) for the next [`tick`](Self::tick).
///
/// # Methods
///
/// - The link: [`connected`](Self::connected), [`received`](Self::received),
///   [`link_progress`](Self::link_progress), [`disconnected`](Self::disconnected),
///   [`cloud_returned`](Self::cloud_returned), [`cloud_gone`](Self::cloud_gone).
///   [`wants_frame`](Self::wants_frame) is the back-pressure: leave frames to the link while it
///   returns `false`.
/// - The clock: [`deadline`](Self::deadline), [`tick`](Self::tick), [`renew`](Self::renew),
///   [`set_acquired`](Self::set_acquired), [`announce_absence`](Self::announce_absence).
/// - A metered link: [`set_metered`](Self::set_metered), [`waiting`](Self::waiting),
///   [`hold_outbox`](Self::hold_outbox).
/// - Answers of the store: [`applied`](Self::applied), [`part_kept`](Self::part_kept),
///   [`parts_lost`](Self::parts_lost), [`parts_read`](Self::parts_read),
///   [`changes_read`](Self::changes_read), [`changes_compacted`](Self::changes_compacted),
///   [`buckets_read`](Self::buckets_read), [`inventory_read`](Self::inventory_read),
///   [`read_failed`](Self::read_failed), [`outbox_read`](Self::outbox_read),
///   [`outbox_failed`](Self::outbox_failed), [`store_reset`](Self::store_reset). Answer every
///   [`EdgeEffect`] that demands it, in any order.
/// - The state: [`phase`](Self::phase), [`in_sync`](Self::in_sync), [`announced`](Self::announced),
///   [`totals`](Self::totals), [`counters`](Self::counters).
///
/// # Limits
///
/// [`wants_frame`](Self::wants_frame) limits the commits in flight to `EdgeConfig::max_applying`.
/// One page and one upload frame are in flight at a time. One message in parts is received at a
/// time, of at most `EdgeConfig::max_object` bytes and its envelope; memory holds 128 KiB of it, or
/// `EdgeConfig::max_frame` if that is less.
///
/// ```
/// use std::time::Duration;
///
/// use edgesync_protocol::edge::{EdgeConfig, EdgeMachine, EdgePhase};
/// use edgesync_protocol::frame::Up;
/// use edgesync_protocol::apply::Totals;
///
/// let config = EdgeConfig {
///     node: "station-17".into(),
///     agent: "1.4.0".into(),
///     max_frame: 256 << 10,
///     max_object: 8 << 20,
///     hello_timeout: Duration::from_secs(10),
///     report_timeout: Duration::from_secs(10),
///     retry_max: Duration::from_secs(60),
///     report_attempts: 4,
///     max_applying: 8,
///     lease_interval: Duration::from_secs(10),
///     lease_duration: Duration::from_secs(40),
///     patches: true,
/// };
/// let mut edge = EdgeMachine::new(config, Totals::default(), 0, None);
/// let now = Duration::ZERO;
/// edge.connected(now, 256 << 10, 0x5eed);
/// assert!(matches!(edge.poll_frame(now), Some(Up::Hello(_))));
/// assert_eq!(edge.phase(), EdgePhase::Greeting);
/// assert!(edge.deadline().is_some(), "the Hello is repeated after a timeout");
/// ```
#[derive(Debug)]
pub struct EdgeMachine {
    config: EdgeConfig,
    totals: Totals,
    confirmed: u64,
    incarnation: Option<String>,
    phase: Phase,
    commits: Commits,
    pages: Pages,
    receiving: Receiving,
    effects: VecDeque<EdgeEffect>,
    frames: VecDeque<Up>,
    repeat: Repeat,
    outbox: Outbox,
    renewal: Renewal,
    /// When this run of the agent acquired the Lease, in Unix microseconds, if it is known.
    acquired: Option<i64>,
    absences: Absences,
    metered: Metered,
    line: Line,
    counters: EdgeCounters,
}

impl EdgeMachine {
    /// Creates a machine without a link, over a store with these totals.
    #[must_use]
    pub fn new(config: EdgeConfig, totals: Totals, confirmed: u64, incarnation: Option<String>) -> Self {
        Self {
            config,
            totals,
            confirmed: confirmed.min(totals.revision),
            incarnation,
            phase: Phase::Down,
            commits: Commits::default(),
            pages: Pages::default(),
            receiving: Receiving::default(),
            effects: VecDeque::new(),
            frames: VecDeque::new(),
            repeat: Repeat::default(),
            outbox: Outbox::default(),
            renewal: Renewal::default(),
            acquired: None,
            absences: Absences::default(),
            metered: Metered::default(),
            line: Line::new(u32::MAX),
            counters: EdgeCounters::default(),
        }
    }

    /// Starts a connection: the link accepts frames of up to `link_limit` bytes. `random` seeds the
    /// session id.
    pub fn connected(&mut self, now: Now, link_limit: usize, random: u64) {
        self.line = Line::new(u32::try_from(link_limit).unwrap_or(u32::MAX));
        self.reconnect(now, random);
    }

    fn reconnect(&mut self, now: Now, random: u64) {
        self.forget_connection();
        self.phase = Phase::Settling;
        self.settle(now, random, 0);
    }

    /// Ends the connection. Everything in flight for it is dropped; commits continue, and a message
    /// in parts goes on with the next connection.
    pub fn disconnected(&mut self) {
        self.forget_connection();
        self.phase = Phase::Down;
    }

    /// Restarts the session over a replaced store (salvaged or recomputed), after the commits in
    /// flight are answered.
    pub fn store_reset(&mut self, now: Now, totals: Totals, confirmed: u64, random: u64) {
        self.totals = totals;
        let confirmed = confirmed.min(totals.revision);
        #[cfg(any(test, feature = "simulation"))]
        let confirmed = match fault::planted(fault::Fault::ResetKeepsConfirmed) {
            true => self.confirmed,
            false => confirmed,
        };
        self.confirmed = confirmed;
        // The new file has nothing of it, or keeps it under a digest of the old epoch.
        self.drop_parts();
        if !matches!(self.phase, Phase::Down) {
            self.reconnect(now, random);
        }
    }

    fn forget_connection(&mut self) {
        self.frames.clear();
        self.suspend_parts();
        self.pages.clear();
        self.repeat.clear();
        self.forget_outbox_session();
        self.renewal = Renewal::default();
        self.absences.stay_until = None;
        self.metered.end_session();
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
        if self.commits.is_empty() && self.receiving.is_known() {
            self.hello(now, random, attempt);
        } else {
            self.phase = Phase::Settling;
        }
    }

    fn hello(&mut self, now: Now, random: u64, attempt: u32) {
        let session = format!("{:08x}", random >> 32);
        let confirmed = (self.confirmed != self.totals.revision).then_some(self.confirmed);
        let is_frugal = self.is_frugal();
        let lease = self.renewal.offer(&self.config, is_frugal, self.acquired);
        let metered = self.metered.offer();
        let has_credit = metered.is_some_and(|link| link.credit.is_some());
        let max_frame = self.max_frame().min(if has_credit { MAX_METERED_FRAME } else { u32::MAX });
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
            max_frame,
            max_object: self.config.max_object,
            partial: self.receiving.partial(),
            patches: self.config.patches,
            lease,
            metered,
        }));
        self.counters.hellos += 1;
        let time = backoff(self.config.hello_timeout * 2, self.config.retry_max * 2, attempt, random);
        self.phase = Phase::Greeting { session, sent_at: now, wait: self.wait(now, time), attempt };
        self.replay();
    }

    fn max_frame(&self) -> u32 {
        self.config.max_frame.min(self.line.max_frame())
    }

    /// Replaces limits and delays at run time. The node's name must stay.
    pub fn set_config(&mut self, config: EdgeConfig) {
        self.config = config;
    }

    /// Handles a frame from the cloud.
    pub fn received(&mut self, now: Now, frame: Received, random: u64) {
        match frame {
            Received::Welcome(welcome) => self.welcomed(now, welcome, random),
            Received::Objects(objects) => {
                self.objects(now, objects);
            }
            Received::Patches(patches) => self.patches(now, patches),
            Received::Part(part) => {
                self.part(now, part);
            }
            Received::Confirm(confirm) => self.confirmed(now, &confirm),
            Received::InventoryRequest(request) => self.inventory_requested(now, request),
            Received::HelloRequest(request) => self.hello_requested(now, request, random),
            Received::UploadConfirm(confirm) => self.upload_confirmed(now, confirm),
            Received::Stay(stay) => self.asked_to_stay(now, &stay),
        }
    }

    fn welcomed(&mut self, now: Now, welcome: Welcome, random: u64) {
        if self.is_live(&welcome.session) {
            // The cloud has lost the session and answered a late copy of its Hello, which no longer
            // matches the held objects.
            self.forget_connection();
            return self.settle(now, random, 0);
        }
        let Phase::Greeting { session, sent_at, .. } = &self.phase else { return self.foreign(now) };
        if *session != welcome.session {
            return self.foreign(now);
        }
        let round_trip = now.saturating_sub(*sent_at);
        if let Some(to) = welcome.incarnation {
            if let Some(from) = self.incarnation.replace(to.clone()) {
                self.notice(EdgeNotice::IncarnationChanged { from, to: to.clone() });
            }
            self.effects.push_back(EdgeEffect::SetIncarnation(to));
        }
        let Welcome { session, pending, held, confirmed, register, features, waiting, .. } = welcome;
        self.phase = Phase::Live { session, pending, held };
        self.metered.welcomed(features.contains(&Feature::Metered), waiting);
        if pending == 0 && waiting.is_none() {
            self.drop_parts();
        }
        self.advance(confirmed);
        self.repeat.stop();
        self.arm_repeat(now);
        self.notice(EdgeNotice::Welcomed { pending, held, round_trip });
        if register {
            self.notice(EdgeNotice::Register);
        }
        self.absences.are_understood = Some(features.contains(&Feature::CheckIn));
        match self.renewal.welcomed(&features) {
            true => self.renewal.request(now, random),
            false => self.request_lease(now, random),
        }
        self.probe(now);
    }

    fn asked_to_stay(&mut self, now: Now, stay: &Stay) {
        if !self.is_live(&stay.session) {
            return self.foreign(now);
        }
        let until = now + Duration::from_secs(stay.seconds.min(MAX_STAY));
        self.absences.stay_until = (until > now).then_some(until);
    }

    fn advance(&mut self, confirmed: u64) -> bool {
        let confirmed = confirmed.min(self.totals.revision);
        if confirmed <= self.confirmed {
            return false;
        }
        self.confirmed = confirmed;
        self.effects.push_back(EdgeEffect::Confirm(confirmed));
        self.skip_confirmed();
        true
    }

    fn confirmed(&mut self, now: Now, confirm: &Confirm) {
        match &mut self.phase {
            Phase::Live { session, pending, held } if *session == confirm.session => {
                let has_progress = (*pending, *held) != (confirm.pending, confirm.held);
                (*pending, *held) = (confirm.pending, confirm.held);
                self.repeat.answered(has_progress);
                self.metered.confirmed(confirm.waiting, confirm.receipt);
            }
            // A Confirm during a long replay before the Welcome.
            Phase::Greeting { session, .. } if *session == confirm.session => self.extend_greeting(now),
            _ => return self.foreign(now),
        }
        if matches!(self.phase, Phase::Live { pending: 0, .. }) && self.metered.waiting.is_none() {
            // Nothing is to come: what has arrived of a message is not continued.
            self.drop_parts();
        }
        if self.advance(confirm.revision) {
            self.repeat.clear();
        } else if self.confirmed >= self.totals.revision {
            self.repeat.stop();
        }
        self.arm_repeat(now);
    }

    fn arm_repeat(&mut self, now: Now) {
        // Before the Welcome the Hello is repeated instead.
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

    /// Restarts the session: the cloud announced its return (its retained topic flipped).
    pub fn cloud_returned(&mut self, now: Now, random: u64) {
        if !matches!(self.phase, Phase::Down | Phase::Settling) {
            self.forget_connection();
            self.settle(now, random, 0);
        }
    }

    /// Ends the session: the cloud announced that it is offline. The node is not in sync until the
    /// cloud returns.
    pub fn cloud_gone(&mut self, now: Now) {
        if !matches!(self.phase, Phase::Down | Phase::Settling) {
            self.forget_connection();
            let until = now + self.config.retry_max;
            self.phase = Phase::Pausing { until, attempt: 0, refused: None };
        }
    }

    /// Handles expired timers. Call it at [`EdgeMachine::deadline`].
    pub fn tick(&mut self, now: Now, random: u64) {
        self.extend_unsent_waits(now);
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
            // The announced objects are overdue: an empty report asks for the state.
            let at = self.totals.revision;
            self.report(Report { from: at, to: at, ..Report::default() });
        }
        let time = backoff(self.config.report_timeout * 2, self.config.retry_max, attempts, random);
        self.repeat.arm(self.wait(now, time), attempts);
    }

    /// Returns the time of the next [`EdgeMachine::tick`].
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

    /// Returns the next piece of work for the store. Pages are read only after the frames before
    /// them have left.
    pub fn poll_effect(&mut self) -> Option<EdgeEffect> {
        if let Some(effect) = self.effects.pop_front() {
            return Some(effect);
        }
        if !self.frames.is_empty() {
            return None;
        }
        self.pages.next_read().or_else(|| self.next_outbox_effect())
    }

    /// Returns the next frame for the link. Call it only while the link has capacity.
    pub fn poll_frame(&mut self, now: Now) -> Option<Up> {
        let frame = self.frames.pop_front().or_else(|| self.next_lease()).or_else(|| self.next_upload())?;
        self.frame_handed_over(now);
        Some(frame)
    }

    fn next_lease(&mut self) -> Option<Up> {
        let frame = self.renewal.next_frame()?;
        self.counters.leases += 1;
        Some(frame)
    }

    /// Sets when this run of the agent acquired the Lease, in Unix microseconds: later Hellos state
    /// the terms of the Lease.
    pub fn set_acquired(&mut self, acquired: i64) {
        self.acquired = Some(acquired);
    }

    /// Announces an absence with a Lease, before the node disconnects as planned. Returns `false`
    /// without a session. Answer [`EdgeEffect::RenewLease`]; the Lease has left once
    /// [`EdgeMachine::has_frame`] is false.
    pub fn announce_absence(&mut self, now: Now, check_in: CheckIn, random: u64) -> bool {
        let is_live = matches!(self.phase, Phase::Live { .. });
        if is_live {
            self.renewal.announce(check_in);
            self.request_lease(now, random);
        }
        is_live
    }

    /// Returns whether the cloud side understands planned absences; `None` before its first
    /// Welcome.
    #[must_use]
    pub fn absences_are_understood(&self) -> Option<bool> {
        self.absences.are_understood
    }

    /// Returns the end of the time for which the cloud side asks the node to stay.
    #[must_use]
    pub fn stay_until(&self) -> Option<Now> {
        self.absences.stay_until
    }

    /// Requests a renewal of the Lease from the owner of the clock.
    fn request_lease(&mut self, now: Now, random: u64) {
        self.renewal.request(now, random);
        self.effects.push_back(EdgeEffect::RenewLease);
    }

    fn lease_deadline(&self) -> Option<Now> {
        self.renewal.deadline(&self.config, self.is_frugal())
    }

    /// Answers [`EdgeEffect::RenewLease`] with the times of the clock (Unix, microseconds).
    /// `random` spreads the next renewal.
    pub fn renew(&mut self, now: Now, acquired: i64, renewed: i64, random: u64) {
        let Phase::Live { session, .. } = &self.phase else { return };
        let lease = Lease { session: session.clone(), seconds: 0, acquired, renewed, check_in: None };
        self.renewal.renew(&self.config, self.is_frugal(), lease);
        self.renewal.request(now, random);
    }

    /// Returns whether a frame is ready.
    #[must_use]
    pub fn has_frame(&self) -> bool {
        !self.frames.is_empty() || self.renewal.has_frame() || self.has_upload()
    }

    /// Returns whether the machine accepts another frame: fewer than `max_applying` commits, pieces
    /// of a message in parts included, are in flight.
    #[must_use]
    pub fn wants_frame(&self) -> bool {
        self.commits.len() + self.receiving.keeping() < self.config.max_applying
    }

    /// Returns the phase of the connection.
    #[must_use]
    pub fn phase(&self) -> EdgePhase {
        match self.phase {
            Phase::Down => EdgePhase::Down,
            Phase::Settling => EdgePhase::Settling,
            Phase::Pausing { .. } | Phase::Greeting { .. } => EdgePhase::Greeting,
            Phase::Live { .. } => EdgePhase::Live,
        }
    }

    /// Returns the session id after the Hello.
    #[must_use]
    pub fn session(&self) -> Option<&str> {
        match &self.phase {
            Phase::Greeting { session, .. } | Phase::Live { session, .. } => Some(session),
            Phase::Down | Phase::Settling | Phase::Pausing { .. } => None,
        }
    }

    /// Returns whether the cloud has nothing left to send and has confirmed everything reported.
    #[must_use]
    pub fn in_sync(&self) -> bool {
        self.is_settled() && self.nothing_waits()
    }

    /// Returns whether the cloud has nothing left that it may send over this link, and has
    /// confirmed everything reported.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Live { pending: 0, .. })
            && self.commits.is_empty()
            && self.confirmed >= self.totals.revision
    }

    /// Returns the number of objects that the cloud has announced and of removals that it holds
    /// back.
    #[must_use]
    pub fn announced(&self) -> (u64, u64) {
        match self.phase {
            Phase::Live { pending, held, .. } => (pending, held),
            _ => (0, 0),
        }
    }

    /// Returns the totals after the last answered commit.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns the newest revision that the cloud has confirmed.
    #[must_use]
    pub fn confirmed_revision(&self) -> u64 {
        self.confirmed
    }

    /// Returns the incarnation of the cloud, if known.
    #[must_use]
    pub fn incarnation(&self) -> Option<&str> {
        self.incarnation.as_deref()
    }

    /// Returns the counters for status and metrics.
    #[must_use]
    pub fn counters(&self) -> EdgeCounters {
        self.counters
    }

    fn is_live(&self, session: &str) -> bool {
        matches!(&self.phase, Phase::Live { session: own, .. } if own == session)
    }

    /// Handles a frame of another session: a late one, or the cloud believes in an ended session.
    /// In the latter case a report under the current session makes the cloud request a Hello.
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
