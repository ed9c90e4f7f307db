//! The outbound half of the loop: Lease, outbox, Node report, Events and traffic. Decisions belong
//! to the machine, [`Clock`], the budget and [`node_report`](crate::agent::node_report); this
//! module performs them.

mod metered;
mod node;
mod outbox;
mod silence;
mod traffic;

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::{Driver, random};
use crate::agent::clock::{Clock, ClockChange};
use crate::agent::events::{EventLimits, EventReason, Events, Regarding};
use crate::agent::identity::NodeIdentity;
use crate::agent::node_report;
use crate::agent::objects::SharedNode;
use crate::agent::traffic::BudgetState;
use crate::store::{EdgeStore, Health, OutboxLimits, Reset, Writing};
use edgesync_config::edge::Config;
use edgesync_protocol::edge::OutboxMarks;
use edgesync_store::StoreError;
use metered::MeteredState;
use node::NodeReporter;
use outbox::OutboxReader;
pub(super) use outbox::{Page, Renumbered, Renumbering};
use silence::Silence;
use traffic::MeteredTraffic;

/// Time for which Events wait for the device's clock to be set.
const CLOCK_TIMEOUT: Duration = Duration::from_secs(120);

/// State of the outbound half.
pub(in crate::agent) struct Reporting {
    config: Config,
    pub(super) events: Events,
    clock: Clock,
    started: Instant,
    /// When this run of the agent acquired the Lease, in Unix microseconds.
    acquired: i64,
    pub(super) traffic: MeteredTraffic,
    pub(in crate::agent) metered: MeteredState,
    pub(super) outbox: OutboxReader,
    pub(super) node: NodeReporter,
    pub(super) silence: Silence,
    /// Frames that found the link's queue full, and connections dropped for stalled reads, at the
    /// last check.
    limits: (u64, u64),
}

impl Reporting {
    /// Restores what the store persisted in an earlier run.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub(in crate::agent) async fn new(
        config: &Config,
        store: &EdgeStore,
        clock: Clock,
        events: Events,
        shared_node: SharedNode,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            config: config.clone(),
            events,
            clock,
            started: Instant::now(),
            acquired: Timestamp::now().as_microsecond(),
            traffic: MeteredTraffic::restore(store, config.traffic.daily_budget).await,
            metered: MeteredState::restore(store, config).await?,
            outbox: OutboxReader::new(store),
            node: NodeReporter::restore(store, shared_node).await,
            silence: Silence::default(),
            limits: (0, 0),
        })
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns when this run of the agent acquired the Lease, in Unix microseconds.
    pub(super) fn acquired(&self) -> i64 {
        self.acquired
    }

    /// Returns whether Events may be sent: their times are right, or the wait for the clock is
    /// over.
    fn times_are_settled(&self) -> bool {
        self.clock.is_known() || self.started.elapsed() >= CLOCK_TIMEOUT
    }

    /// Returns the outbox as the machine sees it.
    fn marks(&self) -> OutboxMarks {
        self.outbox.marks(self.times_are_settled())
    }

    /// Reports a jump of the clock. Returns whether Events may be sent that could not before, or
    /// the reverse.
    fn check_clock(&mut self) -> bool {
        let settled = self.times_are_settled();
        if let Some(ClockChange::Jumped { at, by, doubtful, became_known }) = self.clock.detect_jump() {
            let seconds = by as f64 / 1000.0;
            tracing::warn!(seconds, became_known, "clock set");
            let more = if became_known { ", and is plausible for the first time" } else { "" };
            let note = format!("clock set by {seconds:+.1} s{more}");
            self.events.emit(EventReason::ClockJumped, Regarding::Node, note);
            // Times of a clock that could be right stay as they are: the correction may be the
            // wrong one.
            if doubtful {
                self.events.clock_set(at, by);
            }
        }
        settled != self.times_are_settled()
    }

    /// Reports limits hit since the last check: frames that found the link's queue full, and
    /// connections dropped for stalled reads.
    fn check_limits(&mut self, queue_full: u64, stalled: u64) {
        let before = std::mem::replace(&mut self.limits, (queue_full, stalled));
        let emit = |what: &str, now: u64, before: u64| {
            if now > before {
                let note = format!("{what}, {now} times since the agent started");
                self.events.emit(EventReason::LimitHit, Regarding::Node, note);
            }
        };
        emit("frames waited, queue of the link full", queue_full, before.0);
        emit("connection dropped, received messages not processed in time", stalled, before.1);
    }

    /// Reports that the database was replaced.
    pub(super) fn emit_reset(&self, reset: &Reset) {
        let Reset { cause, kept, lost, .. } = reset;
        let note = format!(
            "{cause}: {kept} objects kept, {lost} known to be lost; the cloud resends missing objects"
        );
        self.events.emit(EventReason::StoreSalvaged, Regarding::Node, note);
    }

    /// Reports whether the store accepts changes. Returns `false` if it did and does.
    pub(super) fn emit_health(&self, before: &Writing, health: &Health) -> bool {
        let (why, note) = match (&health.writing, before) {
            (Writing::Works, Writing::Works) => return false,
            (Writing::Works, _) => (EventReason::StoreRecovered, "database writable again".to_owned()),
            (Writing::Full, _) => {
                (EventReason::StoreFull, "database or its disk is full: no new objects are stored".to_owned())
            }
            (Writing::Fails { reason }, _) => {
                (EventReason::StoreFailing, format!("database not writable: {reason}"))
            }
        };
        self.events.emit(why, Regarding::Node, note);
        true
    }
}

impl Driver {
    /// Passes the initial state of outbox and budget to the machine.
    pub(super) fn begin_reporting(&mut self) {
        let now = self.now();
        self.machine.set_frugal(now, self.reporting.traffic.is_spent());
        self.machine.outbox_changed(now, &self.reporting.outbox.initial);
        self.outbox_changed();
        self.link_class_changed();
    }

    /// Persists the traffic counts, after the end of the link.
    pub(in crate::agent) fn end_reporting(&mut self) {
        self.reporting.traffic.count(&self.uplink.link.traffic());
        self.reporting.traffic.persist(&self.store);
        self.count_link();
        self.reporting.metered.persist(&self.store);
    }

    /// Runs the checks that are due; called about once a second.
    pub(super) fn run_checks(&mut self) {
        let now = Instant::now();
        if self.reporting.check_clock() {
            self.outbox_changed();
        }
        let link = self.uplink.link.traffic();
        let change = self.reporting.traffic.count(&link);
        self.budget_changed(change);
        self.reporting.check_limits(self.statistics.limits.link_queue, link.stalled);
        self.reporting.traffic.persist_if_due(now, &self.store);
        self.reporting.node.check_if_due(now, &self.store);
        self.check_link();
    }

    /// Passes the state of the outbox to the machine.
    pub(super) fn outbox_changed(&mut self) {
        let (now, marks) = (self.now(), self.reporting.marks());
        self.statistics.ages.outbox(now, &marks);
        self.machine.outbox_changed(now, &marks);
        if let Some(note) = self.reporting.outbox.dropped_note() {
            self.reporting.events.emit(EventReason::OutboxOverflow, Regarding::Node, note);
        }
    }

    /// Passes the time of the Lease to the machine.
    pub(super) fn renew_lease(&mut self) {
        let renewed = Timestamp::now().as_microsecond();
        self.machine.renew(self.now(), self.reporting.acquired, renewed, random());
    }

    fn budget_changed(&mut self, change: Option<BudgetState>) {
        let Some(state) = change else { return };
        let (why, note) = self.reporting.traffic.event(state);
        self.machine.set_frugal(self.now(), state == BudgetState::Spent);
        self.reporting.events.emit(why, Regarding::Node, note);
        self.report_node(false);
    }

    /// Checks the device, and queues a Node report if it differs from the last one or the cloud
    /// requests it. Without a link no report is queued, because the addresses depend on the link.
    pub(super) fn report_node(&mut self, requested: bool) {
        let certificate = self.identity.as_ref().map(NodeIdentity::state).map(|identity| {
            let until = identity.certificate.not_after();
            node_report::certificate_condition(identity.validity, until)
        });
        let files = self.files.view().summary.condition();
        let report = self.reporting.update_node(&self.store, certificate.into_iter().chain(files));
        if self.uplink.is_connected() || requested {
            self.reporting.queue_node(&report, requested, self.store.clone());
        }
    }

    pub(super) fn reload_reporting(&mut self, config: &Config) {
        let reporting = &mut self.reporting;
        reporting.config = config.clone();
        reporting.events.set_limits(event_limits(config));
        let change = reporting.traffic.set_budget(config.traffic.daily_budget);
        self.store.set_outbox_limits(outbox_limits(config));
        self.budget_changed(change);
    }
}

/// Returns the configured limits of Events.
pub(in crate::agent) fn event_limits(config: &Config) -> EventLimits {
    EventLimits { burst: config.events.burst, refill: config.events.refill }
}

/// Returns the configured limits of the outbox.
pub(in crate::agent) fn outbox_limits(config: &Config) -> OutboxLimits {
    OutboxLimits { rows: config.outbox.max_items, bytes: config.outbox.max_size }
}
