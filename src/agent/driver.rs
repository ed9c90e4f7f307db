//! The agent's loop, sole owner of the sync machine. It waits for the first of all event sources,
//! passes the event to the machine, and performs the machine's effects.

mod absences;
mod connection;
mod notices;
mod parts;
mod peer_log;
mod reading;
mod reporting;
mod service_status;
mod show;
mod statistics;
mod storing;
mod uplink;
mod verify;
mod wire;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use crate::store::{EdgeStore, Health, Reset, Writing};
use edgesync_admin::agent::{Traffic, VerifiedCloud};
use edgesync_api::Role;
use edgesync_config::edge::Config;
use edgesync_files::Rule;
use edgesync_kubeedge::Moment;
use edgesync_object::NodeName;
use edgesync_protocol::change::RejectReason;
use edgesync_protocol::edge::{EdgeConfig, EdgeEffect, EdgeMachine, EdgePhase};
use edgesync_protocol::timing::{Now, earlier};
use edgesync_runtime::Service;
use edgesync_runtime::random;
use edgesync_runtime::systemd::{self, Request, Signals, Watchdog};
use edgesync_store::StoreError;
use edgesync_transport::admission::LinePermit;
use edgesync_transport::link::{LinkEvent, LinkHandle};

use super::apply::{self, Outcome};
use super::check_ins::CheckIns;
use super::edge_config;
use super::events::{EventReason, Regarding};
use super::files::{self, Files};
use super::identity::{IdentityChange, NodeIdentity};
use super::kinds::KindRegistry;
use super::objects;
use super::status::Query;
use peer_log::PeerLog;
pub(super) use reporting::{Reporting, event_limits, outbox_limits};
use service_status::ServiceStatus;
use statistics::Statistics;
use storing::{Applied, Storing};
use uplink::Uplink;
use verify::Verifier;
pub(super) use wire::Wire;

/// Interval of the checks of clock, traffic and device.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for draining the outbox at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Link events handled before other events get a turn.
const BURST: usize = 16;

/// The configuration that the loop itself reads.
struct Settings {
    node: NodeName,
    /// The addresses of the broker or of CloudCore, in the order of the link.
    peers: Vec<String>,
    max_frame: usize,
    max_object: usize,
    /// Minimum size in bytes of a frame that is compressed.
    compress_above: usize,
    rules: Vec<Rule>,
}

impl Settings {
    fn new(config: &Config, node: NodeName) -> Self {
        Self {
            node,
            peers: config.peers().iter().map(ToString::to_string).collect(),
            max_frame: config.link.max_frame,
            max_object: config.sync.max_object,
            compress_above: config.sync.compress_above.unwrap_or(usize::MAX),
            rules: config.files.rules.clone(),
        }
    }

    /// Returns the address at a position of the link.
    fn peer(&self, position: usize) -> &str {
        self.peers.get(position).map_or("", String::as_str)
    }

    /// Applies the settings that a reload may change.
    fn reload(&mut self, config: &Config) {
        self.max_object = config.sync.max_object;
        self.compress_above = config.sync.compress_above.unwrap_or(usize::MAX);
        self.rules.clone_from(&config.files.rules);
    }
}

/// The loop's clock, as an offset from its start.
struct Timeline {
    origin: Instant,
    started: Timestamp,
    next_check: Instant,
}

impl Timeline {
    fn new() -> Self {
        let origin = Instant::now();
        Self { origin, started: Timestamp::now(), next_check: origin }
    }

    /// Returns whether the checks of clock, traffic and device are due, and schedules the next.
    fn is_check_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.next_check <= now;
        if is_due {
            self.next_check = now + CHECK_INTERVAL;
        }
        is_due
    }
}

/// The loop: owns the machine, and the parts that serve it. A part keeps its own state; its methods
/// return what the machine or another part has to learn.
pub(super) struct Driver {
    settings: Settings,
    timeline: Timeline,
    machine: EdgeMachine,
    store: EdgeStore,
    storing: Storing,
    kinds: Arc<KindRegistry>,
    uplink: Uplink,
    /// Limits the log lines that the other side causes.
    peer_log: PeerLog,
    reporting: Reporting,
    files: Files,
    /// Key and certificates; `None` until the node has joined.
    identity: Option<NodeIdentity>,
    verifier: Verifier,
    statistics: Statistics,
    service_status: ServiceStatus,
    check_ins: CheckIns,
    /// Whether the log has said that the cloud side knows no planned absences.
    has_warned_of_absence: bool,
}

impl Driver {
    pub(super) fn new(
        (config, node): (&Config, NodeName),
        store: EdgeStore,
        kinds: Arc<KindRegistry>,
        link: LinkHandle,
        wire: Wire,
        (reporting, files): (Reporting, Files),
        identity: Option<NodeIdentity>,
    ) -> Self {
        let facts = store.facts();
        let mut machine =
            EdgeMachine::new(edge_config(config), facts.totals, facts.confirmed, facts.incarnation);
        machine.set_acquired(reporting.acquired());
        let check_ins = CheckIns::new(config.link.connect, &node, config.link.connect_timeout);
        Self {
            settings: Settings::new(config, node),
            timeline: Timeline::new(),
            machine,
            store,
            storing: Storing::new(),
            kinds,
            uplink: Uplink::new(link, wire),
            peer_log: PeerLog::default(),
            reporting,
            files,
            identity,
            verifier: Verifier::default(),
            statistics: Statistics::default(),
            service_status: ServiceStatus::new(),
            check_ins,
            has_warned_of_absence: false,
        }
    }

    /// Returns the configuration of the machine for the current link.
    fn machine_config(&self) -> EdgeConfig {
        let mut config = edge_config(self.reporting.config());
        if let Some(least) =
            self.reporting.metered.lease_interval().filter(|least| *least > config.lease_interval)
        {
            let (duration, interval) =
                (config.lease_duration.as_secs_f64(), config.lease_interval.as_secs_f64());
            config.lease_duration = least.mul_f64((duration / interval).max(1.0));
            config.lease_interval = least;
        }
        config
    }

    fn now(&self) -> Now {
        self.timeline.origin.elapsed()
    }

    /// Returns the current time by both clocks.
    fn moment(&self) -> Moment {
        Moment { now: self.now(), wall: Timestamp::now().as_millisecond() }
    }

    /// Runs until a signal stops the process.
    pub(super) async fn run(
        &mut self,
        service: &mut Service<Config>,
        signals: &mut Signals,
        mut link_events: mpsc::Receiver<LinkEvent>,
        mut queries: mpsc::Receiver<Query>,
    ) {
        let mut health = self.store.health();
        let watchdog = Watchdog::start();
        let before = health.borrow_and_update().clone();
        if let Some(reset) = self.storing.observe_reset(&before) {
            self.reporting.emit_reset(reset);
        }
        self.begin_reporting();
        self.machine.restore_parts();
        if before.writing != Writing::Works {
            self.health_changed(&before);
        }
        let mut end: Option<Instant> = None;
        loop {
            watchdog.turned();
            self.drain();
            self.leave_if_spent();
            if end.is_some_and(|end| end <= Instant::now() || !self.has_unsent_items()) {
                break;
            }
            let deadline = self.deadline().map(|at| self.timeline.origin + at);
            // The watchdog requires turns of the loop even without events.
            // Events do not put off the checks.
            let idle = (Instant::now() + Duration::from_secs(1)).min(self.timeline.next_check);
            let wake = deadline.map_or(idle, |at| at.min(idle)).min(end.unwrap_or(idle));
            tokio::select! {
                request = signals.next() => match request {
                    Request::Stop if end.is_some() => break,
                    Request::Stop => {
                        systemd::stopping("draining");
                        tracing::info!("stopping: draining");
                        self.reporting.events.end_run().await;
                        self.outbox_changed();
                        end = Some(Instant::now() + DRAIN_TIMEOUT);
                    }
                    Request::Reload => self.reload(service),
                },
                event = link_events.recv(), if self.uplink.wants_event(&self.machine) => match event {
                    Some(event) => self.receive_burst(event, &mut link_events),
                    None => break,
                },
                result = self.storing.commits.front() => self.applied(result),
                kept = self.storing.keeps.front() => self.part_kept(kept),
                parts = finished(&mut self.storing.reading_parts) => self.parts_read(parts),
                page = finished(&mut self.storing.reading) => self.page_read(page),
                page = held_page(&mut self.uplink.wire) => self.held_read(page),
                page = finished(&mut self.reporting.outbox.page) => self.outbox_read(page),
                stored = finished(&mut self.reporting.metered.reserving) => self.bytes_reserved(stored),
                result = finished(&mut self.reporting.outbox.renumbering) => self.renumbered(result),
                stats = finished(&mut self.reporting.node.sizing) => {
                    self.reporting.node.sized(&stats);
                    self.report_node(false);
                }
                Ok(()) = self.reporting.outbox.state.changed() => self.outbox_changed(),
                _ = self.uplink.link.ready(), if self.uplink.connection.is_waiting() => {}
                Ok(()) = health.changed() => {
                    let health = health.borrow_and_update().clone();
                    self.health_changed(&health);
                }
                Some(query) = queries.recv() => self.answer(query),
                () = self.files.changed() => self.report_node(false),
                Some(change) = identity_change(&mut self.identity) => self.emit_identity(change),
                () = tokio::time::sleep_until(wake) => self.tick(),
            }
        }
        self.end_transfer().await;
    }

    /// Returns when machine or bridge need [`Driver::tick`].
    fn deadline(&self) -> Option<Now> {
        let bridge = self.uplink.wire.cloud_core().and_then(|cloud_core| cloud_core.bridge.deadline());
        earlier(self.machine.deadline(), bridge)
    }

    fn tick(&mut self) {
        if self.timeline.is_check_due() {
            self.run_checks();
            self.follow_plan();
        }
        let now = self.now();
        self.uplink.update_progress(&mut self.machine, now);
        if self.machine.deadline().is_some_and(|at| at <= now) {
            self.machine.tick(now, random());
        }
        if self.storing.is_release_due() {
            let store = self.store.clone();
            tokio::spawn(async move { objects::release_memory(&store).await });
        }
        let at = self.moment();
        if let Some(cloud_core) = self.uplink.wire.cloud_core_mut()
            && cloud_core.bridge.deadline().is_some_and(|due| due <= at.now)
        {
            cloud_core.bridge.tick(at);
        }
    }

    fn receive_burst(&mut self, first: LinkEvent, link_events: &mut mpsc::Receiver<LinkEvent>) {
        self.link_event(first);
        for _ in 1..BURST {
            if !self.uplink.wants_event(&self.machine) {
                return;
            }
            let Ok(event) = link_events.try_recv() else { return };
            self.link_event(event);
        }
    }

    fn applied(&mut self, result: Result<Applied, JoinError>) {
        let Some((token, rules)) = self.storing.end_commit() else { return };
        self.files.due(&rules);
        let result = match result {
            Ok(Ok(Outcome::Committed(commit))) => {
                self.record_patched(&commit.applied.patched);
                Ok(commit)
            }
            Ok(Ok(Outcome::Assembled(commit, change))) => {
                let changes = change.as_slice();
                self.record_changes(changes);
                self.files.due(&files::affected_rules(&self.settings.rules, changes));
                self.record_patched(&commit.applied.patched);
                Ok(commit)
            }
            Ok(Ok(Outcome::Lost)) => {
                if let Some(LinePermit { suppressed }) = self.peer_log.objects.permit_line() {
                    tracing::warn!(
                        suppressed,
                        "kept parts of an object damaged or gone, receiving it from its start"
                    );
                }
                return self.machine.parts_lost(self.now(), token, random());
            }
            Ok(Err(error)) => {
                if let Some(LinePermit { suppressed }) = self.peer_log.objects.permit_line() {
                    tracing::warn!(%error, suppressed, "changes not stored");
                }
                Err((reject_reason(&error), error.to_string()))
            }
            Err(error) => Err((RejectReason::StoreUnavailable, error.to_string())),
        };
        self.machine.applied(self.now(), token, result, random());
    }

    /// Passes the result of the oldest piece of a message in parts to the machine.
    fn part_kept(&mut self, result: Result<parts::Kept, JoinError>) {
        if let Some((message, answer)) = self.storing.keeps.end(result, &self.peer_log) {
            self.machine.part_kept(&message, answer);
        }
    }

    /// Passes what is kept of a message in parts to the machine.
    fn parts_read(&mut self, read: Result<parts::PartsRead, JoinError>) {
        self.storing.reading_parts = None;
        let kept = parts::continued(read, self.uplink.wire.cloud_core().is_none());
        self.machine.parts_read(self.now(), kept, random());
    }

    fn page_read(&mut self, page: Result<reading::Page, JoinError>) {
        self.storing.reading = None;
        reading::deliver(page, self.now(), &mut self.machine, &self.store, &self.peer_log);
    }

    fn outbox_read(&mut self, page: Result<reporting::Page, JoinError>) {
        let now = self.now();
        match self.reporting.outbox.end_read(page, &self.peer_log) {
            Some(items) => self.machine.outbox_read(now, items),
            None => self.machine.outbox_failed(now),
        }
    }

    fn renumbered(&mut self, result: Result<reporting::Renumbered, JoinError>) {
        if !self.reporting.outbox.end_renumbering(result, &self.peer_log) {
            self.machine.outbox_failed(self.now());
        }
    }

    fn held_read(&mut self, page: Result<wire::HeldRead, JoinError>) {
        let at = self.moment();
        if let Some(cloud_core) = self.uplink.wire.cloud_core_mut() {
            cloud_core.held_read(at, page, &self.peer_log);
        }
    }

    fn health_changed(&mut self, health: &Health) {
        let before = self.storing.observe_writing(&health.writing);
        if self.reporting.emit_health(&before, health) {
            self.report_node(false);
        }
        if let Some(LinePermit { suppressed }) = self.peer_log.store.permit_line() {
            match &health.writing {
                Writing::Works => tracing::info!(suppressed, "store writable"),
                Writing::Full => tracing::error!(suppressed, "store full: no new objects are stored"),
                Writing::Fails { reason } => tracing::error!(reason, suppressed, "store not writable"),
            }
        }
        if let Some(reset) = self.storing.observe_reset(health) {
            self.database_replaced(reset);
        }
    }

    fn database_replaced(&mut self, reset: &Reset) {
        tracing::error!(
            cause = reset.cause,
            kept = reset.kept,
            lost = reset.lost,
            set_aside = ?reset.set_aside,
            "database replaced: readable rows salvaged, the cloud resends the rest"
        );
        self.reporting.emit_reset(reset);
        self.files.due(&files::AffectedRules::ALL);
        self.files.report_again();
        let facts = self.store.facts();
        self.machine.store_reset(self.now(), facts.totals, facts.confirmed, random());
    }

    fn reload(&mut self, service: &mut Service<Config>) {
        systemd::reloading();
        if let Err(errors) = service.reload() {
            let note = format!("reload rejected, configuration unchanged: {errors}");
            self.reporting.events.emit(EventReason::ConfigurationRejected, Regarding::Node, note);
        }
        let config = service.config();
        self.settings.reload(config);
        self.check_ins.set_plan(config.link.connect);
        let at = self.moment();
        if let Some(cloud_core) = self.uplink.wire.cloud_core_mut() {
            let node = cloud_core.bridge.node().clone();
            cloud_core.bridge.set_config(at, wire::bridge_config(config, &node));
        }
        self.files.reload(config);
        self.storing.commits.affect_all_rules();
        self.reload_reporting(config);
        self.reload_metered(config);
        if let Some(identity) = &self.identity {
            identity.reread();
        }
        systemd::ready(self.service_status.line());
    }

    /// Performs all effects of the machine that can be performed now.
    fn drain(&mut self) {
        self.follow_link();
        loop {
            while let Some(effect) = self.machine.poll_effect() {
                self.perform(effect);
            }
            if !self.move_one() {
                break;
            }
        }
        let (revision, confirmed) = (self.machine.totals().revision, self.machine.confirmed_revision());
        self.statistics.ages.changes(self.now(), revision, confirmed);
        self.verifier.poll(&self.machine, &self.uplink);
        self.update_service_status();
    }

    fn perform(&mut self, effect: EdgeEffect) {
        let store = self.store.clone();
        match effect {
            EdgeEffect::Apply { token, changes } => {
                // Spawned, so that the writer queues it at once and includes it in the next group
                // commit.
                let rules = files::affected_rules(&self.settings.rules, &changes);
                self.record_changes(&changes);
                let task = async move { Ok(Outcome::Committed(apply::apply(store, changes).await?)) };
                self.storing.commits.push((token, rules), tokio::spawn(task));
            }
            EdgeEffect::ApplyParts { token, message, rest, max_object } => {
                let task = apply::apply_parts(store, message, rest, max_object);
                self.storing.commits.push((token, files::AffectedRules::default()), tokio::spawn(task));
            }
            EdgeEffect::KeepPart { message, text } => self.storing.keeps.begin(store, message, text),
            EdgeEffect::DropParts => {
                tokio::spawn(async move {
                    if let Err(error) = store.drop_parts().await {
                        tracing::warn!(%error, "parts of an object not dropped");
                    }
                });
            }
            EdgeEffect::ReadParts => {
                let read = async move { store.kept_parts().await };
                self.storing.reading_parts = Some(tokio::spawn(read));
            }
            effect @ (EdgeEffect::ReadChanges { .. }
            | EdgeEffect::ReadBuckets
            | EdgeEffect::ReadInventory { .. }) => self.storing.reading = reading::read(store, &effect),
            EdgeEffect::Confirm(revision) => {
                self.statistics.last_report = Some(Timestamp::now());
                store.confirm(revision);
            }
            EdgeEffect::SetIncarnation(incarnation) => {
                self.files.report_again();
                tokio::spawn(async move {
                    if let Err(error) = store.set_incarnation(Some(incarnation)).await {
                        tracing::warn!(%error, "incarnation of the cloud not stored");
                    }
                });
            }
            EdgeEffect::ReadOutbox { lane, after, limit, bytes } => {
                self.reporting.outbox.begin_read(store, lane, after, limit, bytes);
            }
            EdgeEffect::SettleOutbox { lane, upto } => store.settle_outbox(lane, upto),
            EdgeEffect::RenumberOutbox { lane, sent, above } => {
                self.reporting.outbox.begin_renumbering(
                    store,
                    reporting::Renumbering { lane, sent, above },
                    &self.peer_log,
                );
            }
            EdgeEffect::RenewLease => self.renew_lease(),
            EdgeEffect::Notice(notice) => self.notice(notice),
        }
    }

    /// Has the machine send a Hello, for a comparison of the cloud's records with what is held.
    /// Requests that arrive meanwhile share its answer.
    fn verify(&mut self, answer: oneshot::Sender<VerifiedCloud>) {
        let Some(answer) = self.verifier.join(answer) else { return };
        // A reset found just before is reported with this Hello.
        let health = self.store.health().borrow().clone();
        if self.storing.has_new_reset(&health) {
            self.health_changed(&health);
        }
        if let Some(cloud_core) = self.uplink.wire.cloud_core_mut() {
            cloud_core.bridge.verify();
        }
        self.verifier.begin(answer, &self.machine, &self.uplink.wire);
        // As when the cloud returns. Hello waits for commits in flight, as always.
        self.machine.cloud_returned(self.now(), random());
    }

    /// Ends the session, and keeps what has arrived of a message in parts.
    async fn end_transfer(&mut self) {
        self.machine.disconnected();
        while let Some(effect) = self.machine.poll_effect() {
            if let EdgeEffect::KeepPart { message, text } = effect {
                self.storing.keeps.begin(self.store.clone(), message, text);
            }
        }
        while !self.storing.keeps.is_empty() {
            let result = self.storing.keeps.front().await;
            self.part_kept(result);
        }
    }

    /// Returns whether the outbox should still drain before shutdown.
    fn has_unsent_items(&self) -> bool {
        self.machine.phase() == EdgePhase::Live && !self.outbox_is_settled()
    }

    fn answer(&mut self, query: Query) {
        match query {
            Query::Status(view, role, answer) => {
                let _ = answer.send(self.status(&view, role == Role::Admin));
            }
            Query::Numbers(answer) => {
                let _ = answer.send(Box::new(self.numbers()));
            }
            Query::Traffic(answer) => {
                let metered = self.show_metered();
                let _ = answer.send(Traffic { metered, ..self.reporting.traffic.meter.show() });
            }
            Query::Verify(answer) => self.verify(answer),
            Query::Sync(answer) => self.sync_now(answer),
        }
    }
}

/// Returns the reason of a rejection for a failure of the store.
fn reject_reason(error: &StoreError) -> RejectReason {
    match error {
        StoreError::Full { .. } => RejectReason::StoreFull,
        _ => RejectReason::StoreUnavailable,
    }
}

/// Waits for the page of held objects that the bridge requested; pends forever without one.
async fn held_page(wire: &mut Wire) -> <JoinHandle<wire::HeldRead> as Future>::Output {
    match wire.cloud_core_mut() {
        Some(cloud_core) => finished(&mut cloud_core.reading).await,
        None => std::future::pending().await,
    }
}

/// Waits for a change of the certificate; pends forever without an identity.
async fn identity_change(identity: &mut Option<NodeIdentity>) -> Option<IdentityChange> {
    match identity {
        Some(identity) => identity.changes.recv().await,
        None => std::future::pending().await,
    }
}

/// Waits for a task; pends forever without one.
async fn finished<T>(reading: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match reading {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}
