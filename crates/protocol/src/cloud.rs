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
mod deliveries;
mod desired;
mod guard;
mod ingest;
mod ledger;
mod output;
mod pacing;
mod queue;
mod quota;
mod reconcile;
mod record;
mod reports;
mod send;
mod sender;
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
use super::upload::{Lane, Lease, Refused, Taken, Upload};
pub use desired::{Desired, DesiredState};
pub use ledger::{LedgerFacts, Records};
pub use types::{
    CloudConfig, CloudCounters, CloudEffect, CloudNotice, CloudPhase, Issued, Loaded, Record, RecordBatch,
    Refusal, Stands,
};
pub use witness::Witnesses;

use connect::Connecting;
use deliveries::Deliveries;
use guard::Guard;
use ingest::Ingest;
use ledger::Ledger;
use output::Output;
use pacing::ConnectionPacer;
use queue::Queue;
use record::Recorder;
use sender::Sender;
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

/// What the owner of the machine sets, and the machine only reads.
#[derive(Debug)]
struct Settings {
    config: Arc<CloudConfig>,
    incarnation: Arc<str>,
    issued: Arc<Issued>,
    /// Whether the cloud knows of the Node.
    is_registered: bool,
}

/// The cloud's half of the protocol, for one node.
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
    /// When the node's last Hello, report or page arrived.
    last_heard: Now,
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
            last_heard: Now::ZERO,
            counters: CloudCounters::default(),
        }
    }

    /// Limits and delays that may change while the machine runs.
    pub fn set_config(&mut self, config: Arc<CloudConfig>) {
        self.settings.config = config;
    }

    /// The cloud's store has begun a new incarnation.
    pub fn set_incarnation(&mut self, incarnation: Arc<str>, issued: Arc<Issued>) {
        (self.settings.incarnation, self.settings.issued) = (incarnation, issued);
        self.output.begin_incarnation();
    }

    /// Whether the cloud knows of the Node; if not, the next Welcome asks for it.
    pub fn set_registered(&mut self, registered: bool) {
        self.settings.is_registered = registered;
    }

    /// A frame of the node has arrived.
    pub fn received(&mut self, now: Now, frame: Up, desired: &impl DesiredState) {
        match frame {
            Up::Hello(hello) => self.hello(now, hello, desired),
            Up::Report(report) => self.report(now, report, desired),
            Up::Inventory(inventory) => self.inventory(now, inventory, desired),
            Up::Lease(lease) => self.lease(lease),
            Up::Upload(upload) => self.upload(upload),
        }
    }

    /// The link to the node is gone.
    pub fn disconnected(&mut self) {
        self.end_session();
        self.pacer.end_connection();
    }

    /// How far the link to the node is: of the frames that it was given on this connection, so many have not left for
    /// the network, and so many, those included, have not been acknowledged by the node. To be told, if it can be known,
    /// before [`CloudMachine::tick`]: what has not left is not sent again.
    pub fn link_progress(&mut self, now: Now, unsent: u64, unacknowledged: u64) {
        self.pacer.link_progress(now, &self.settings.config, unsent, unacknowledged);
    }

    fn lease(&mut self, lease: Lease) {
        // It says that the node lives, not that objects arrive: it does not put off sending them again.
        if self.phase.session() == Some(&lease.session) {
            self.counters.leases += 1;
            self.output.renew(lease);
        } else {
            self.refuse_unknown(lease.session);
        }
    }

    fn upload(&mut self, upload: Upload) {
        let is_own = self.phase.session() == Some(&upload.session);
        let limits = match self.phase.live() {
            Some((_, limits)) if is_own => limits,
            // The node repeats it when it is welcome.
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

    /// The effects of an upload are stored: the numbers after it, and what was refused of it; or they could
    /// not be, then nothing is confirmed and the node sends it again.
    pub fn taken(&mut self, _now: Now, token: u64, result: Option<(Taken, Vec<Refused>)>) {
        let confirm = self.ingest.finish(token, result, self.phase.live(), &mut self.counters);
        if let Some(confirm) = confirm {
            self.output.confirm_upload(confirm);
        }
    }

    fn end_session(&mut self) {
        self.pacer.end_session();
        self.view.end_session();
        self.phase = Phase::Offline;
        self.queue.clear();
        self.sender.clear();
        self.ingest.end_session();
        self.output.end_session();
        self.guard.end_session();
        self.ledger.forget_leftovers();
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
            self.ledger.catch_up();
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
                let due = self.deliveries.due(now);
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
                let retry =
                    self.deliveries.deadline(|uid| !self.ledger.is_behind() && !self.is_under_way(uid));
                earlier(retry, self.pacer.deadline())
            }
        };
        #[cfg(any(test, feature = "simulation"))]
        if fault::planted(fault::Fault::Restless) && self.is_live() {
            return earlier(phase, Some(self.recorder.looked_at() + Duration::from_millis(20)));
        }
        earlier(phase, self.recorder.retry_at())
    }

    fn is_live(&self) -> bool {
        self.phase.live().is_some()
    }

    fn is_under_way(&self, uid: &Uid) -> bool {
        self.sender.is_busy_with(uid) || self.queue.contains(uid)
    }

    /// The next piece of work for store and fleet.
    pub fn poll_effect(&mut self, desired: &impl DesiredState) -> Option<CloudEffect> {
        self.read_again();
        if let Some(effect) = self.output.next_effect() {
            return Some(effect);
        }
        self.next_load(desired)
    }

    /// The next frame for the node. To be called only when its link has room for one.
    pub fn poll_frame(&mut self, now: Now, desired: &impl DesiredState) -> Option<Down> {
        let frame = self.next_frame(now, desired)?;
        self.pacer.hand_over();
        Some(frame)
    }

    fn next_frame(&mut self, now: Now, desired: &impl DesiredState) -> Option<Down> {
        if let Some(frame) = self.output.next_frame() {
            return Some(frame);
        }
        if let Some(frame) = self.next_objects(now, desired) {
            return Some(frame);
        }
        // The node was told of objects that have become pointless to send: it learns that it is in sync.
        let pending = self.pending();
        if pending == 0 && self.is_live() && !self.output.has_announced(pending, self.guard.count()) {
            self.confirm();
        }
        self.output.next_frame()
    }

    fn confirm(&mut self) {
        let Some(session) = self.phase.session().map(str::to_owned) else { return };
        let (pending, held) = (self.pending(), self.guard.count());
        let revision = self.ledger.facts().confirmed;
        #[cfg(any(test, feature = "simulation"))]
        let revision = match fault::planted(fault::Fault::ConfirmUnstored) {
            true => self.recorder.reached(),
            false => revision,
        };
        self.output.confirm(Confirm { session, revision, pending, held });
    }

    /// Objects to be sent or removed, rejected ones not counted. At least one while the records are to be read again, or
    /// while something waits until this replica has caught up.
    #[must_use]
    pub fn pending(&self) -> u64 {
        let waits = self.ledger.is_behind() || self.view.is_awaited();
        (self.queue.len() + self.sender.len()) as u64 + u64::from(waits)
    }

    /// How the node stands with an object that it is to hold; nothing while that is not known.
    #[must_use]
    pub fn stands_with(&self, uid: &str) -> Option<Stands<'_>> {
        let difference = self.ledger.difference(uid).filter(|_| !self.ledger.is_behind())?;
        Some(Stands { other: difference, refusal: self.deliveries.refusal(uid) })
    }

    /// Objects that the node does not hold as it is to; nothing while that is not known.
    #[must_use]
    pub fn differing(&self) -> Option<impl Iterator<Item = &Uid>> {
        (!self.ledger.is_blind()).then(|| self.ledger.differences().map(|(uid, _)| uid))
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
        let named = self.ledger.len() + self.deliveries.len() + self.guard.len();
        named + self.queue.len() + self.sender.len() + self.output.len()
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
            && self.guard.count() == 0
            && self.deliveries.is_clean()
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
        self.guard.held().map(|uid| (uid, self.ledger.get(uid, desired).map(|record| record.object)))
    }

    /// How many removals are held back, or were when the node was last connected.
    #[must_use]
    pub fn held_count(&self) -> u64 {
        self.guard.count()
    }

    /// Objects that the node refuses.
    pub fn refused(&self) -> impl Iterator<Item = (&Uid, &Refusal)> {
        self.deliveries.refused()
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
        self.pacer.smoothed_rtt()
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> CloudCounters {
        self.counters
    }
}
