//! The cloud's half of the protocol as a state machine, one per node; see [`CloudMachine`].
//!
//! The machine is level-based: it compares the desired objects ([`DesiredState`]) with the recorded
//! ones (the *ledger*) and sends the difference. The ledger changes only after its ObjectSync
//! records are stored.
//!
//! The machine keeps no entry per object. Each input lends the desired state. The ledger is open
//! only while the node is connected, and holds differences only. A node in sync therefore costs the
//! same however many objects it holds.
//!
//! With several replicas ([`Records::Proven`]) nothing is recorded beyond a session, and a replica
//! may know less than another one has sent to the node; `view` restricts it in that case.

mod connect;
mod deliveries;
mod desired;
#[cfg(test)]
mod fuzz;
mod guard;
mod ingest;
mod ledger;
mod metered;
mod output;
mod pacing;
mod parts;
mod patching;
mod queue;
mod quota;
mod reconcile;
mod record;
mod reports;
mod send;
mod sender;
mod terms;
#[cfg(test)]
pub(super) mod testing;
mod types;
mod view;
mod witness;

use std::sync::Arc;
use std::time::Duration;

use edgesync_object::ResourceVersion;

use super::change::{ObjectRef, Uid};
use super::digest::{Epoch, Tally};
#[cfg(any(test, feature = "simulation"))]
use super::fault;
use super::frame::{Confirm, Down, Up};
use super::timing::{Now, earlier};
use super::upload::{IngestCursor, Lane, Refused, Upload};
pub use desired::{Desired, DesiredState};
pub use ledger::{LedgerFacts, Records};
pub use types::{
    CloudConfig, CloudCounters, CloudEffect, CloudNotice, CloudPhase, Issued, LoadRequest, Loaded,
    ObjectState, Reached, Record, RecordBatch, Refusal,
};
pub use witness::Witnesses;

use connect::Connecting;
use deliveries::Deliveries;
use guard::Guard;
use ingest::Ingest;
use ledger::Ledger;
use metered::Metered;
use output::Output;
use pacing::ConnectionPacer;
use queue::Queue;
use record::Recorder;
use sender::Sender;
use terms::LeaseSession;
use view::View;

/// The limits that the node stated in the Hello of the current session.
#[derive(Clone, Copy, Debug)]
struct PeerLimits {
    max_frame: usize,
    max_object: usize,
    /// Whether the node applies patches.
    patches: bool,
}

#[derive(Debug)]
enum Phase {
    Offline,
    Connecting(Box<Connecting>),
    Live { session: String, limits: PeerLimits },
}

impl Phase {
    fn session(&self) -> Option<&str> {
        match self {
            Self::Offline => None,
            Self::Connecting(connecting) => Some(&connecting.hello.session),
            Self::Live { session, .. } => Some(session),
        }
    }

    fn live(&self) -> Option<(&str, PeerLimits)> {
        match self {
            Self::Live { session, limits } => Some((session, *limits)),
            Self::Offline | Self::Connecting(_) => None,
        }
    }
}

/// Inputs that the owner of the machine sets and the machine only reads.
#[derive(Debug)]
struct Settings {
    config: Arc<CloudConfig>,
    incarnation: Arc<str>,
    issued: Arc<Issued>,
    /// Whether the cloud has a Node object.
    is_registered: bool,
}

/// The cloud's half of the protocol for one node: a pure state machine.
///
/// # Order of calls
///
/// 1. [`new`](Self::new) once per node, connected or not.
/// 2. [`received`](Self::received) for each frame; the first one of a connection is a Hello.
///    [`disconnected`](Self::disconnected) when the link is down.
/// 3. [`desire`](Self::desire) after each change of the [`DesiredState`]. Every `desired` argument
///    is the state after all changes passed to `desire`.
/// 4. After every input, pull the outputs: [`poll_effect`](Self::poll_effect) until it returns
///    `None`, [`poll_frame`](Self::poll_frame) while the link has capacity, and
///    [`deadline`](Self::deadline) for the next [`tick`](Self::tick).
///
/// # Methods
///
/// - The link: [`received`](Self::received), [`link_progress`](Self::link_progress),
///   [`disconnected`](Self::disconnected).
/// - Memory: [`has_begun`](Self::has_begun), [`forget_begun`](Self::forget_begun).
/// - The Lease: [`request_terms`](Self::request_terms), [`set_stay`](Self::set_stay).
/// - The desired state: [`desire`](Self::desire), [`fall_behind`](Self::fall_behind),
///   [`reads_more`](Self::reads_more).
/// - Answers of the store: [`opened`](Self::opened), [`loaded`](Self::loaded),
///   [`recorded`](Self::recorded), [`taken`](Self::taken), [`caught_up`](Self::caught_up);
///   [`may_refuse`](Self::may_refuse) before an answer that refuses items of an upload. The tokens
///   match answers to requests: a late answer to a load of an earlier session is ignored.
/// - The operator: [`confirm_deletions`](Self::confirm_deletions), [`held`](Self::held),
///   [`refused`](Self::refused).
/// - The state: [`phase`](Self::phase), [`in_sync`](Self::in_sync), [`pending`](Self::pending),
///   [`waiting`](Self::waiting), [`stands_with`](Self::stands_with), [`counters`](Self::counters).
///
/// # Limits
///
/// `CloudConfig` bounds the objects and bytes in flight. One batch of records, one upload and one
/// load per lane are at the store at a time. Memory grows with [`differences`](Self::differences),
/// refusals and objects in flight, never with the objects that node and desired state share. The
/// text of one message in parts outlives the connection, until
/// [`forget_begun`](Self::forget_begun).
///
/// ```
/// use std::sync::Arc;
/// # use std::time::Duration;
///
/// use edgesync_object::ResourceVersion;
/// use edgesync_protocol::cloud::{
///     CloudConfig, CloudEffect, CloudMachine, CloudPhase, Desired, DesiredState, Issued,
///     LedgerFacts, Records,
/// };
/// use edgesync_protocol::digest::{Digest, Epoch};
/// use edgesync_protocol::frame::{DEFAULT_MAX_FRAME, DEFAULT_MAX_OBJECT, Down, Hello, Up};
/// use edgesync_protocol::timing::Now;
///
/// /// No object is placed on the node.
/// struct Nothing;
///
/// impl DesiredState for Nothing {
///     fn get(&self, _uid: &str) -> Option<Desired> {
///         None
///     }
///     fn iter(&self) -> impl Iterator<Item = (&str, ResourceVersion)> {
///         std::iter::empty()
///     }
/// }
///
/// # let config = CloudConfig {
/// #     window_objects: 1024,
/// #     window_bytes: 1 << 20,
/// #     frame_objects: 128,
/// #     max_frame: 256 << 10,
/// #     resend_min: Duration::from_secs(5),
/// #     resend_max: Duration::from_secs(300),
/// #     reject_retry_min: Duration::from_secs(300),
/// #     reject_retry_max: Duration::from_secs(3600),
/// #     answer_timeout: Duration::from_secs(10),
/// #     mass_delete_share: 0.1,
/// #     mass_delete_min: 10,
/// #     max_unknown: 20_000,
/// # };
/// let records = Records::Stored(LedgerFacts::default());
/// let issued = Arc::new(Issued::default());
/// let mut cloud = CloudMachine::new(config.into(), "inc-1".into(), issued, records);
/// let now = Now::ZERO;
/// let hello = Hello {
///     session: "5f3a0c11".into(),
///     epoch: Epoch(7),
///     count: 0,
///     digest: Digest::default(),
/// #     node: "station-17".into(),
/// #     agent: "1.4.0".into(),
/// #     revision: 0,
/// #     confirmed: None,
/// #     incarnation: None,
/// #     max_frame: DEFAULT_MAX_FRAME,
/// #     max_object: DEFAULT_MAX_OBJECT,
/// #     partial: None,
/// #     patches: false,
/// #     lease: None,
/// #     metered: None,
///     // …
/// };
/// cloud.received(now, Up::Hello(hello), &Nothing);
/// while let Some(effect) = cloud.poll_effect(&Nothing) {
///     match effect {
///         CloudEffect::ReadRecords => cloud.opened(now, Some(Vec::new()), &Nothing),
///         CloudEffect::Record(batch) => cloud.recorded(now, batch.token, true, 0, &Nothing),
///         _ => {}
///     }
/// }
/// assert_eq!(cloud.phase(), CloudPhase::Live);
/// assert!(matches!(cloud.poll_frame(now, &Nothing), Some(Down::Welcome(_))));
/// ```
#[derive(Debug)]
pub struct CloudMachine {
    settings: Settings,
    ledger: Ledger,
    view: View,
    guard: Guard,
    phase: Phase,
    queue: Queue,
    sender: Sender,
    deliveries: Deliveries,
    pacer: ConnectionPacer,
    recorder: Recorder,
    ingest: Ingest,
    output: Output,
    lease: LeaseSession,
    metered: Metered,
    /// The arrival time of the node's last Hello, report or page.
    last_received: Now,
    counters: CloudCounters,
}

impl CloudMachine {
    /// Creates a machine for a node that is not connected.
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
            settings: Settings { config, incarnation, issued, is_registered: true },
            ledger: Ledger::new(facts),
            view,
            guard: Guard::default(),
            phase: Phase::Offline,
            queue: Queue::default(),
            sender: Sender::default(),
            deliveries: Deliveries::default(),
            pacer: ConnectionPacer::default(),
            recorder: Recorder::default(),
            ingest: Ingest::default(),
            output: Output::default(),
            lease: LeaseSession::default(),
            metered: Metered::default(),
            last_received: Now::ZERO,
            counters: CloudCounters::default(),
        }
    }

    /// Replaces limits and delays at run time.
    pub fn set_config(&mut self, config: Arc<CloudConfig>) {
        self.settings.config = config;
    }

    /// Sets the incarnation that the cloud's store has begun.
    pub fn set_incarnation(&mut self, incarnation: Arc<str>, issued: Arc<Issued>) {
        (self.settings.incarnation, self.settings.issued) = (incarnation, issued);
        self.output.begin_incarnation();
    }

    /// Sets whether the cloud has a Node object; without one, the next Welcome requests a node
    /// report.
    pub fn set_registered(&mut self, registered: bool) {
        self.settings.is_registered = registered;
    }

    /// Handles a frame from the node.
    pub fn received(&mut self, now: Now, frame: Up, desired: &impl DesiredState) {
        match frame {
            Up::Hello(hello) => self.hello(now, hello, desired),
            Up::Report(report) => self.report(now, report, desired),
            Up::Inventory(inventory) => self.inventory(now, inventory, desired),
            Up::Lease(lease) => self.lease(lease),
            Up::Upload(upload) => self.upload(upload),
            Up::Renew(renew) => self.renew(renew),
            Up::Credit(credit) => self.credit(credit),
        }
    }

    /// Ends the connection to the node.
    pub fn disconnected(&mut self) {
        self.end_session();
        self.pacer.end_connection();
    }

    /// Updates the backlog of the link: of the frames given to it on this connection, `unsent` have
    /// not left for the network, and `unacknowledged`, including the unsent ones, lack the
    /// acknowledgement of the node.
    ///
    /// Call it before [`CloudMachine::tick`], if the backlog is known: frames that have not left
    /// are not sent again.
    pub fn link_progress(&mut self, now: Now, unsent: u64, unacknowledged: u64) {
        self.pacer.link_progress(now, &self.settings.config, unsent, unacknowledged);
    }

    fn upload(&mut self, upload: Upload) {
        let is_own = self.phase.session() == Some(&upload.session);
        let limits = match self.phase.live() {
            Some((_, limits)) if is_own => limits,
            // The node repeats the upload after the Welcome.
            _ if is_own => return,
            _ => return self.refuse_unknown(upload.session),
        };
        if self.ingest.is_busy() || !upload.is_sane() {
            return;
        }
        if upload.lane != Lane::Other {
            let effect = self.ingest.begin(upload, &mut self.counters);
            effect.into_iter().for_each(|effect| self.output.effect(effect));
        } else if !self.output.has_upload_confirm() {
            self.output.confirm_upload(ingest::refuse_lane(upload, limits));
        }
    }

    /// Handles the store's answer to an upload: the resulting numbers and the refused items. `None`
    /// means "not now": nothing is confirmed and the node sends the upload again.
    pub fn taken(&mut self, _now: Now, token: u64, result: Option<(IngestCursor, Vec<Refused>)>) {
        let confirm = self.ingest.finish(token, result, self.phase.live(), &mut self.counters);
        if let Some(confirm) = confirm {
            self.output.confirm_upload(confirm);
        }
    }

    fn end_session(&mut self) {
        self.end_metered();
        self.lease = LeaseSession::default();
        self.pacer.end_session();
        self.view.end_session();
        self.phase = Phase::Offline;
        self.queue.clear();
        self.sender.end_session();
        self.ingest.end_session();
        self.output.end_session();
        self.guard.end_session();
        self.ledger.forget_leftovers();
        if self.view.is_shared() {
            self.recorder.forget();
        }
        self.close_ledger();
    }

    /// Closes the ledger of a disconnected node once everything pending is stored.
    fn close_ledger(&mut self) {
        #[cfg(any(test, feature = "simulation"))]
        if fault::planted(fault::Fault::LedgerUnproven) && self.view.is_shared() {
            return;
        }
        if matches!(self.phase, Phase::Offline) && self.recorder.is_idle() {
            self.ledger.close();
            self.ledger.catch_up();
        }
    }

    /// Handles expired timers. Call it at [`CloudMachine::deadline`].
    pub fn tick(&mut self, now: Now, desired: &impl DesiredState) {
        self.recorder.tick(now);
        self.flush_records(desired);
        self.confirm_if_due(now);
        match &self.phase {
            Phase::Offline => {}
            Phase::Connecting(connecting) if connecting.until <= now => self.answer_overdue(now, desired),
            Phase::Connecting(_) => {}
            Phase::Live { .. } => {
                self.resend_overdue(now, desired);
                let due = self.deliveries.due(now);
                for uid in &due {
                    self.reconsider(now, uid, desired);
                }
            }
        }
    }

    /// Returns the time of the next [`CloudMachine::tick`].
    #[must_use]
    pub fn deadline(&self) -> Option<Now> {
        let phase = match &self.phase {
            Phase::Offline => None,
            Phase::Connecting(connecting) => Some(connecting.until),
            Phase::Live { .. } => {
                // Sending is suspended until the records are read again.
                let retry =
                    self.deliveries.deadline(|uid| !self.ledger.is_behind() && !self.is_scheduled(uid));
                earlier(retry, self.pacer.deadline())
            }
        };
        #[cfg(any(test, feature = "simulation"))]
        if fault::planted(fault::Fault::Restless) && self.is_live() {
            return earlier(phase, Some(self.recorder.last_woken() + Duration::from_millis(20)));
        }
        let confirm = earlier(self.output.confirm_at(), self.waiting_at());
        earlier(earlier(phase, self.recorder.retry_at()), confirm)
    }

    fn is_live(&self) -> bool {
        self.phase.live().is_some()
    }

    fn is_scheduled(&self, uid: &Uid) -> bool {
        self.sender.is_busy_with(uid) || self.queue.contains(uid)
    }

    /// Returns the next piece of work for store and fleet.
    pub fn poll_effect(&mut self, desired: &impl DesiredState) -> Option<CloudEffect> {
        self.read_again();
        if let Some(effect) = self.output.next_effect() {
            return Some(effect);
        }
        self.next_load(desired)
    }

    /// Returns the next frame for the node. Call it only while the link has capacity.
    pub fn poll_frame(&mut self, now: Now, desired: &impl DesiredState) -> Option<Down> {
        let frame = self.next_frame(now, desired)?;
        self.pacer.hand_over();
        Some(frame)
    }

    fn next_frame(&mut self, now: Now, desired: &impl DesiredState) -> Option<Down> {
        self.confirm_if_due(now);
        if let Some(frame) = self.output.next_frame() {
            return Some(frame);
        }
        if let Some(frame) = self.next_objects(now, desired) {
            return Some(frame);
        }
        // The node knows of announced objects that are obsolete now: a Confirm reports that it is
        // in sync.
        if self.is_live() {
            let (pending, (waiting, receipt)) = (self.pending(), self.waiting_now());
            let is_known = self.output.has_announced(pending, self.guard.count());
            let is_news = self.metered.is_news(waiting, receipt);
            // Without a credit nothing more is sent: the node has to know.
            if pending == 0 && (!is_known || is_news) || waiting.credit > 0 && is_news {
                self.confirm(now);
            }
        }
        self.output.next_frame()
    }

    /// Requests a Confirm for the node of the session, if there is one.
    fn owe_confirm(&mut self) {
        if self.phase.session().is_some() {
            self.output.request_confirm();
        }
    }

    /// Queues the Confirm that is requested, unless the last one was sent a moment ago, or that is
    /// due to a metered link.
    fn confirm_if_due(&mut self, now: Now) {
        if earlier(self.output.confirm_at(), self.waiting_at()).is_some_and(|at| at <= now) {
            self.confirm(now);
        }
    }

    fn confirm(&mut self, now: Now) {
        let Some(session) = self.phase.session().map(str::to_owned) else { return };
        let (pending, held) = (self.pending(), self.guard.count());
        let (waiting, receipt) = self.waiting_now();
        self.metered.on_confirm(now, waiting, receipt);
        let revision = self.ledger.facts().confirmed;
        #[cfg(any(test, feature = "simulation"))]
        let revision = match fault::planted(fault::Fault::ConfirmUnstored) {
            true => self.recorder.reached(),
            false => revision,
        };
        self.output.confirm(now, Confirm { session, revision, pending, held, waiting, receipt });
    }

    /// Returns the number of objects to send or remove, without rejected ones and those that
    /// [wait for the link](Self::waiting). At least one while the records have to be read again, or
    /// while this replica has to catch up first.
    #[must_use]
    pub fn pending(&self) -> u64 {
        let waits = self.ledger.is_behind() || self.view.is_awaited();
        // The node drops what it holds of a message once nothing is pending.
        let continues = self.sender.transfer.partial().is_some_and(|(uid, _)| !self.is_scheduled(uid));
        let unsent = (self.queue.len() + self.sender.len()) as u64 - self.without_credit();
        unsent + u64::from(waits) + u64::from(continues)
    }

    /// Returns whether the machine keeps the text of a message in parts although the node is not
    /// connected, to complete it later.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        matches!(self.phase, Phase::Offline) && self.sender.transfer.has_begun()
    }

    /// Frees the text of a message in parts that the last session has begun. If its object has
    /// changed since, the newest version is sent from its start.
    pub fn forget_begun(&mut self) {
        drop(self.sender.transfer.take_begun());
    }

    /// Returns the state of one desired object on the node; `None` while it is unknown.
    #[must_use]
    pub fn stands_with(&self, uid: &str) -> Option<ObjectState<'_>> {
        let difference = self.ledger.difference(uid).filter(|_| !self.ledger.is_behind())?;
        Some(ObjectState { other: difference, refusal: self.deliveries.refusal(uid) })
    }

    /// Returns the objects that differ between node and desired state; `None` while they are
    /// unknown.
    #[must_use]
    pub fn differing(&self) -> Option<impl Iterator<Item = &Uid>> {
        (!self.ledger.is_blind()).then(|| self.ledger.differences().map(|(uid, _)| uid))
    }

    /// Returns the objects that the node holds, as recorded or proven; empty if it is not
    /// connected.
    pub fn held_by_node<'a>(&'a self, desired: &'a impl DesiredState) -> impl Iterator<Item = (Uid, Record)> {
        self.ledger.records(desired)
    }

    /// Returns the held objects that are not desired, or desired in another version.
    pub fn outdated_on_node(&self) -> impl Iterator<Item = (&Uid, &Record)> {
        self.ledger.differences().filter_map(|(uid, record)| Some((uid, record?)))
    }

    /// Returns the UIDs and versions that the node provably holds.
    #[cfg(test)]
    pub(super) fn recorded_versions<'a>(
        &'a self,
        desired: &'a impl DesiredState,
    ) -> impl Iterator<Item = (&'a str, ResourceVersion)> {
        self.ledger.versions(desired)
    }

    /// Returns the number of objects in flight or in preparation.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.sender.len()
    }

    /// Returns the number of entries in memory that grows.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        let named = self.ledger.len() + self.deliveries.len() + self.guard.len();
        named + self.queue.len() + self.sender.len() + self.output.len()
    }

    /// Returns the phase of the node.
    #[must_use]
    pub fn phase(&self) -> CloudPhase {
        match &self.phase {
            Phase::Offline => CloudPhase::Offline,
            Phase::Connecting(connecting) => connecting.phase(),
            Phase::Live { .. } => CloudPhase::Live,
        }
    }

    /// Returns whether the node is connected and holds all desired objects, without held back or
    /// rejected ones, and none waits for the link.
    #[must_use]
    pub fn in_sync(&self) -> bool {
        self.is_settled() && self.waiting().is_none()
    }

    /// Returns whether the node is connected and holds all desired objects that may come over its
    /// link.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_live()
            && self.pending() == 0
            && self.recorder.is_idle()
            && self.guard.count() == 0
            && self.deliveries.is_clean(|uid| self.waits_for_link(uid))
    }

    /// Returns the recorded version of an object on the node.
    #[must_use]
    pub fn recorded_version(&self, uid: &Uid, desired: &impl DesiredState) -> Option<ResourceVersion> {
        self.ledger.get(uid, desired).map(|record| record.version)
    }

    /// Returns the object recorded as held by the node, desired or not; `None` while the records
    /// are unknown.
    #[must_use]
    pub fn recorded_object(&self, uid: &str, desired: &impl DesiredState) -> Option<Arc<ObjectRef>> {
        self.ledger.get(uid, desired).map(|record| record.object)
    }

    /// Returns the removals held back by the mass-delete guard, while the node is connected.
    pub fn held<'a>(
        &'a self,
        desired: &'a impl DesiredState,
    ) -> impl Iterator<Item = (&'a Uid, Option<Arc<ObjectRef>>)> {
        self.guard.held().map(|uid| (uid, self.ledger.get(uid, desired).map(|record| record.object)))
    }

    /// Returns the number of removals held back now, or at the end of the last connection.
    #[must_use]
    pub fn held_count(&self) -> u64 {
        self.guard.count()
    }

    /// Returns the objects that the node refuses.
    pub fn refused(&self) -> impl Iterator<Item = (&Uid, &Refusal)> {
        self.deliveries.refused()
    }

    /// Returns the database file of the node: the current one during a session, else the last
    /// recorded one.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.ledger.epoch()
    }

    /// Returns count and digest of the records.
    #[must_use]
    pub fn recorded_tally(&self) -> Tally {
        self.ledger.tally()
    }

    /// Returns the number of objects whose recorded version differs from the desired one: the size
    /// of the machine.
    #[must_use]
    pub fn differences(&self) -> usize {
        self.ledger.different()
    }

    /// Returns the newest recorded revision of the node.
    #[must_use]
    pub fn confirmed(&self) -> u64 {
        self.ledger.facts().confirmed
    }

    /// Returns the smoothed time from sending to report.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.pacer.smoothed_rtt()
    }

    /// Returns the counters for status and metrics.
    #[must_use]
    pub fn counters(&self) -> CloudCounters {
        self.counters
    }
}
