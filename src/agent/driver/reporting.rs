//! The outbound half of the loop: Lease, outbox, Node report, Events and traffic. Decisions belong
//! to the machine, [`Clock`], [`Budget`] and [`node_report`]; this module performs them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Driver;
use crate::agent::clock::{Clock, ClockChange};
use crate::agent::events::{EventLimits, EventReason, Events, Regarding};
use crate::agent::identity::NodeIdentity;
use crate::agent::node_report;
use crate::agent::objects::SharedNode;
use crate::agent::traffic::{Budget, BudgetState, Meter};
use crate::store::{
    EdgeStats, EdgeStore, Health, OutboxLimits, OutboxPut, OutboxState, Posting, Reset, Writing,
};
use edgesync_admin::agent::{LaneStatus, TrafficToday};
use edgesync_config::edge::Config;
use edgesync_object::time::rfc3339;
use edgesync_protocol::edge::{EdgeEffect, OutboxMarks};
use edgesync_protocol::node::{Condition, ConditionStatus, DISK_PRESSURE, merge_report};
use edgesync_protocol::upload::{Content, Lane, Lanes, RefusedReason, UploadItem};
use edgesync_runtime::random;
use edgesync_store::StoreError;

/// Interval of the device checks: disk, addresses, Node report.
const DEVICE_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Interval at which the store receives the traffic counts; it writes them with its next flush.
const PERSIST_INTERVAL: Duration = Duration::from_secs(60);
/// Time for which Events wait for the device's clock to be set.
const CLOCK_TIMEOUT: Duration = Duration::from_secs(120);
/// Metadata key of the traffic counts.
pub(in crate::agent) const TRAFFIC_KEY: &str = "traffic";
/// Metadata key of the hash of the last Node report.
const NODE_KEY: &str = "node";

type Page = Result<Vec<UploadItem>, StoreError>;

/// State of the outbound half.
pub(in crate::agent) struct Reporting {
    config: Config,
    pub(super) events: Events,
    clock: Clock,
    pub(super) meter: Meter,
    budget: Budget,
    pub(super) outbox: watch::Receiver<OutboxState>,
    /// State of the outbox when the store was opened, before this run added anything.
    initial_marks: OutboxMarks,
    /// The page of the outbox that is being read.
    pub(super) page: Option<JoinHandle<Page>>,
    /// The renumbering of the outbox in progress.
    pub(super) renumbering: Option<JoinHandle<Result<(), StoreError>>>,
    /// The pending query for the store's size.
    pub(super) sizing: Option<JoinHandle<Result<EdgeStats, StoreError>>>,
    /// Bytes in use within the database.
    used_bytes: u64,
    /// When this run of the agent acquired the Lease, in Unix microseconds.
    acquired: i64,
    /// Hash of the last Node report; `None` if it could not be stored.
    reported: Arc<Mutex<Option<u64>>>,
    /// The Node that the local API serves.
    shared_node: SharedNode,
    pub(super) conditions: Vec<Condition>,
    next_check: Instant,
    persist_at: Instant,
    started: Instant,
    /// Dropped items at the last check.
    dropped: Lanes,
    /// Frames that found the link's queue full, and connections dropped for stalled reads, at the
    /// last check.
    limits: (u64, u64),
    /// Since when the link is up without an answer of the cloud.
    pub(super) silent_since: Option<Instant>,
    /// Whether an Event has reported the silence.
    pub(super) silence_reported: bool,
}

impl Reporting {
    /// Restores what the store persisted in an earlier run.
    pub(in crate::agent) async fn new(
        config: &Config,
        store: &EdgeStore,
        clock: Clock,
        events: Events,
        shared_node: SharedNode,
    ) -> Self {
        // Unreadable metadata counts as absent.
        let traffic = store.note(TRAFFIC_KEY).await.unwrap_or_default();
        let reported = store.note(NODE_KEY).await.unwrap_or_default();
        let now = Instant::now();
        let meter = Meter::new(traffic.as_deref(), Timestamp::now());
        Self {
            config: config.clone(),
            shared_node,
            events,
            clock,
            budget: Budget::new(config.traffic.daily_budget, meter.today()),
            meter,
            outbox: store.outbox(),
            initial_marks: store.outbox().borrow().marks.clone(),
            page: None,
            renumbering: None,
            sizing: None,
            used_bytes: 0,
            acquired: Timestamp::now().as_microsecond(),
            reported: Arc::new(Mutex::new(reported.and_then(|reported| reported.parse().ok()))),
            conditions: Vec::new(),
            next_check: now,
            persist_at: now + PERSIST_INTERVAL,
            started: now,
            dropped: Lanes::default(),
            limits: (0, 0),
            silent_since: None,
            silence_reported: false,
        }
    }

    /// Returns the traffic section of the status; `edgesync traffic` shows more.
    pub(super) fn show_traffic(&self) -> TrafficToday {
        TrafficToday {
            bytes_today: self.meter.today(),
            daily_budget: self.budget.limit(),
            budget_spent: self.budget.is_spent(),
        }
    }

    /// Returns the Node's conditions for the status.
    pub(super) fn show_conditions(&self) -> Vec<edgesync_admin::agent::Condition> {
        let shown = |condition: &Condition| edgesync_admin::agent::Condition {
            kind: condition.condition.clone(),
            status: format!("{:?}", condition.status),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            last_transition_time: condition.last_transition_time.map(rfc3339),
        };
        self.conditions.iter().map(shown).collect()
    }

    /// Returns the daily budget, in bytes.
    pub(super) fn budget(&self) -> Option<u64> {
        self.budget.limit()
    }

    /// Returns whether Events may be sent: their times are right, or the wait for the clock is
    /// over.
    fn times_are_settled(&self) -> bool {
        self.clock.is_known() || self.started.elapsed() >= CLOCK_TIMEOUT
    }

    /// Returns the outbox as the machine sees it: without Events while they wait for the clock.
    fn marks(&self) -> OutboxMarks {
        let mut marks = self.outbox.borrow().marks.clone();
        if !self.times_are_settled() {
            (marks.rows.events, marks.rows.bulk) = (0, 0);
        }
        marks
    }
}

impl Driver {
    /// Passes the initial state of outbox and budget to the machine.
    pub(super) fn begin_reporting(&mut self) {
        let now = self.now();
        self.machine.set_frugal(now, self.reporting.budget.is_spent());
        self.machine.outbox_changed(now, &self.reporting.initial_marks);
        self.outbox_changed();
    }

    /// Persists the traffic counts at the end.
    pub(super) fn end_reporting(&mut self) {
        self.reporting.meter.link(&self.link.traffic(), Timestamp::now());
        self.store.keep_note(TRAFFIC_KEY, self.reporting.meter.keep());
    }

    /// Runs the checks that are due; called about once a second.
    pub(super) fn run_checks(&mut self) {
        let now = Instant::now();
        self.check_clock();
        let traffic = self.link.traffic();
        self.reporting.meter.link(&traffic, Timestamp::now());
        self.check_budget();
        self.check_limits(traffic.stalled);
        if now >= self.reporting.persist_at {
            self.reporting.persist_at = now + PERSIST_INTERVAL;
            self.store.keep_note(TRAFFIC_KEY, self.reporting.meter.keep());
        }
        if now >= self.reporting.next_check {
            self.reporting.next_check = now + DEVICE_CHECK_INTERVAL;
            let store = self.store.clone();
            self.reporting.sizing = Some(tokio::spawn(async move { store.stats().await }));
        }
    }

    /// Receives the size of the store, and checks the rest of the device.
    pub(super) fn sized(&mut self, stats: &Result<Result<EdgeStats, StoreError>, tokio::task::JoinError>) {
        self.reporting.sizing = None;
        if let Ok(Ok(stats)) = stats {
            self.reporting.used_bytes = stats.database_bytes.saturating_sub(stats.free_bytes);
        }
        self.report_node(false);
    }

    /// Schedules a check of the device: a new link may use another address.
    pub(super) fn schedule_device_check(&mut self) {
        self.reporting.next_check = Instant::now();
    }

    fn check_clock(&mut self) {
        let settled = self.reporting.times_are_settled();
        if let Some(ClockChange::Jumped { at, by, doubtful, became_known }) =
            self.reporting.clock.detect_jump()
        {
            let seconds = by as f64 / 1000.0;
            tracing::warn!(seconds, became_known, "clock set");
            let more = if became_known { ", and is plausible for the first time" } else { "" };
            let note = format!("clock set by {seconds:+.1} s{more}");
            self.reporting.events.emit(EventReason::ClockJumped, Regarding::Node, note);
            // Times of a clock that could be right stay as they are: the correction may be the
            // wrong one.
            if doubtful {
                self.reporting.events.clock_set(at, by);
            }
        }
        if settled != self.reporting.times_are_settled() {
            self.outbox_changed();
        }
    }

    fn check_limits(&mut self, stalled: u64) {
        let hit = (self.statistics.limits.link_queue, stalled);
        let before = std::mem::replace(&mut self.reporting.limits, hit);
        let emit = |what: &str, now: u64, before: u64| {
            if now > before {
                let note = format!("{what}, {now} times since the agent started");
                self.reporting.events.emit(EventReason::LimitHit, Regarding::Node, note);
            }
        };
        emit("frames waited, queue of the link full", hit.0, before.0);
        emit("connection dropped, received messages not processed in time", hit.1, before.1);
    }

    fn check_budget(&mut self) {
        let used = self.reporting.meter.today();
        let change = self.reporting.budget.update(used);
        self.budget_changed(change);
    }

    fn budget_changed(&mut self, change: Option<BudgetState>) {
        let Some(state) = change else { return };
        let (used, limit) = (self.reporting.budget.used(), self.reporting.budget.limit().unwrap_or(0));
        tracing::warn!(used, limit, ?state, "daily traffic budget");
        self.machine.set_frugal(self.now(), state == BudgetState::Spent);
        let (why, note) = match state {
            BudgetState::Spent => {
                let till = "Leases and Events of programs are throttled until 00:00 UTC";
                (
                    EventReason::TrafficBudgetSpent,
                    format!("daily budget spent, {used} of {limit} bytes used; {till}"),
                )
            }
            BudgetState::Within => {
                (EventReason::TrafficBudgetRenewed, "new daily budget; queued Events are sent".to_owned())
            }
        };
        self.reporting.events.emit(why, Regarding::Node, note);
        self.report_node(false);
    }

    /// Checks the device, and queues a Node report if it differs from the last one or the cloud
    /// requests it. Without a link no report is queued, because the addresses depend on the link.
    pub(super) fn report_node(&mut self, requested: bool) {
        let reporting = &mut self.reporting;
        let health = self.store.health().borrow().clone();
        let store = &reporting.config.store;
        let before = |kind: &str| reporting.conditions.iter().find(|condition| condition.condition == kind);
        let disk = node_report::disk_condition(
            &store.path,
            reporting.used_bytes,
            self.store.max_file_bytes().unwrap_or(store.max_size),
            before(DISK_PRESSURE),
        );
        let budget = node_report::traffic_condition(
            reporting.budget.is_spent(),
            reporting.budget.used(),
            reporting.budget.limit(),
        );
        let mut conditions = vec![node_report::store_condition(&health), disk, budget];
        if let Some(identity) = self.identity.as_ref().map(NodeIdentity::state) {
            let until = identity.certificate.not_after();
            conditions.push(node_report::certificate_condition(identity.validity, until));
        }
        conditions.extend(self.files.view().summary.condition());
        for condition in &mut conditions {
            let known = reporting.conditions.iter().find(|known| known.condition == condition.condition);
            condition.last_transition_time = match known {
                Some(known) if known.status == condition.status => known.last_transition_time,
                // Unknown at the start: the cloud uses the time at which it receives the report.
                None => None,
                Some(_) => Some(Timestamp::now()),
            };
        }
        emit_disk(&reporting.events, &reporting.conditions, &conditions);
        reporting.conditions.clone_from(&conditions);
        let report = node_report::report(&reporting.config, conditions);
        merge_report(&mut lock(&reporting.shared_node), &report, Timestamp::now());
        if !self.connection.link.connected && !requested {
            return;
        }
        let Ok(text) = serde_json::value::to_raw_value(&report) else { return };
        let mut hasher = DefaultHasher::new();
        text.get().hash(&mut hasher);
        let hash = hasher.finish();
        if !requested && *lock(&reporting.reported) == Some(hash) {
            return;
        }
        let Ok(content) = serde_json::to_string(&Content::Node(&text)) else { return };
        *lock(&reporting.reported) = Some(hash);
        let at = reporting.clock.clocked();
        let put = OutboxPut { lane: Lane::Status, key: "node".into(), at, content };
        let (store, reported) = (self.store.clone(), Arc::clone(&reporting.reported));
        tokio::spawn(async move {
            let postings = vec![Posting::Upload(put), Posting::Note(NODE_KEY, hash.to_string())];
            if let Err(error) = store.post(postings).await {
                tracing::warn!(%error, "node report not queued");
                // The next check retries it.
                *lock(&reported) = None;
            }
        });
    }

    pub(super) fn outbox_changed(&mut self) {
        let marks = self.reporting.marks();
        let now = self.now();
        self.statistics.ages.outbox(now, &marks);
        self.machine.outbox_changed(now, &marks);
        let dropped = self.reporting.outbox.borrow_and_update().dropped;
        let before = std::mem::replace(&mut self.reporting.dropped, dropped);
        let lost = |lane| dropped.get(lane).saturating_sub(before.get(lane));
        let all: u64 = Lane::ALL.into_iter().map(lost).sum();
        if all > 0 {
            let lanes: Vec<String> =
                Lane::ALL.into_iter().map(|lane| format!("{} {}", dropped.get(lane), lane.name())).collect();
            let note = format!(
                "outbox full or items unreadable: {} dropped since the agent started",
                lanes.join(", ")
            );
            self.reporting.events.emit(EventReason::OutboxOverflow, Regarding::Node, note);
        }
    }

    pub(super) fn outbox_read(&mut self, page: Result<Page, tokio::task::JoinError>) {
        self.reporting.page = None;
        let now = self.now();
        match page {
            Ok(Ok(items)) => self.machine.outbox_read(now, items),
            Ok(Err(error)) => {
                tracing::warn!(%error, "read of the outbox failed");
                self.machine.outbox_failed(now);
            }
            Err(error) => {
                tracing::error!(%error, "read of the outbox ended early");
                self.machine.outbox_failed(now);
            }
        }
    }

    pub(super) fn renumbered(&mut self, result: Result<Result<(), StoreError>, tokio::task::JoinError>) {
        self.reporting.renumbering = None;
        let error = match result {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::error!(error, "renumbering the outbox failed");
        self.machine.outbox_failed(self.now());
    }

    /// Performs an effect that concerns the outbox or the Lease.
    pub(super) fn perform_outbox(&mut self, effect: &EdgeEffect) {
        let store = self.store.clone();
        match *effect {
            EdgeEffect::ReadOutbox { lane, after, limit, bytes } => {
                self.reporting.page =
                    Some(tokio::spawn(async move { store.outbox_page(lane, after, limit, bytes).await }));
            }
            EdgeEffect::SettleOutbox { lane, upto } => store.settle_outbox(lane, upto),
            EdgeEffect::RenumberOutbox { lane, sent, above } => {
                tracing::warn!(
                    lane = lane.name(),
                    sent,
                    above,
                    "database is an older copy: renumbering the outbox"
                );
                self.reporting.renumbering =
                    Some(tokio::spawn(async move { store.renumber_outbox(lane, sent, above).await }));
            }
            EdgeEffect::RenewLease => {
                let renewed = Timestamp::now().as_microsecond();
                self.machine.renew(self.now(), self.reporting.acquired, renewed, random());
            }
            _ => {}
        }
    }

    /// Reports an item of the outbox that the cloud refused.
    pub(super) fn upload_refused(&self, content: &str, reason: RefusedReason, message: &str) {
        let status = match serde_json::from_str(content) {
            Ok(Content::Status(status)) => Some(status),
            _ => None,
        };
        let is_sealed = status.as_ref().is_some_and(|status| self.kinds.is_sealed(&status.object.key()));
        // The message may quote the refused object, and log and Events have more readers than the
        // object.
        let why = match is_sealed {
            true => format!("{reason:?} (message omitted: sealed kind)"),
            false => message.to_owned(),
        };
        // The content stays out of the log: it may be long or confidential.
        tracing::warn!(?reason, why = &*why, "upload refused by the cloud");
        let Some(status) = status else { return };
        let note = format!("status refused by the cloud: {why}");
        let regarding = Regarding::Object(status.object, status.uid);
        self.reporting.events.emit(EventReason::StatusRefused, regarding, note);
    }

    pub(super) fn emit_reset(&self, reset: &Reset) {
        let Reset { cause, kept, lost, .. } = reset;
        let note = format!(
            "{cause}: {kept} objects kept, {lost} known to be lost; the cloud resends missing objects"
        );
        self.reporting.events.emit(EventReason::StoreSalvaged, Regarding::Node, note);
    }

    pub(super) fn emit_health(&mut self, before: &Writing, health: &Health) {
        let why = match (&health.writing, before) {
            (Writing::Works, Writing::Works) => return,
            (Writing::Works, _) => (EventReason::StoreRecovered, "database writable again".to_owned()),
            (Writing::Full, _) => {
                (EventReason::StoreFull, "database or its disk is full: no new objects are stored".to_owned())
            }
            (Writing::Fails { reason }, _) => {
                (EventReason::StoreFailing, format!("database not writable: {reason}"))
            }
        };
        self.reporting.events.emit(why.0, Regarding::Node, why.1);
        self.report_node(false);
    }

    pub(super) fn reload_reporting(&mut self, config: &Config) {
        let reporting = &mut self.reporting;
        reporting.config = config.clone();
        reporting.events.set_limits(event_limits(config));
        let change = reporting.budget.set_limit(config.traffic.daily_budget);
        self.store.set_outbox_limits(outbox_limits(config));
        self.budget_changed(change);
    }

    /// Returns the status of the outbox's lanes.
    pub(super) fn show_outbox(&self) -> BTreeMap<String, LaneStatus> {
        let state = self.reporting.outbox.borrow();
        let shown = |lane: Lane| LaneStatus {
            waiting: state.marks.rows.get(lane),
            bytes: state.bytes.get(lane),
            dropped: state.dropped.get(lane),
        };
        Lane::ALL.into_iter().map(|lane| (lane.name().to_owned(), shown(lane))).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Emits an Event when disk pressure begins or ends.
fn emit_disk(events: &Events, before: &[Condition], now: &[Condition]) {
    let find = |all: &[Condition]| all.iter().find(|condition| condition.condition == DISK_PRESSURE).cloned();
    let Some(disk) = find(now) else { return };
    let was = find(before).map_or(ConditionStatus::False, |condition| condition.status);
    let why = match (was, disk.status) {
        (ConditionStatus::False, ConditionStatus::True) => EventReason::DiskPressure,
        (ConditionStatus::True, ConditionStatus::False) => EventReason::DiskPressureOver,
        _ => return,
    };
    events.emit(why, Regarding::Node, disk.message);
}

/// Returns the configured limits of Events.
pub(in crate::agent) fn event_limits(config: &Config) -> EventLimits {
    EventLimits { burst: config.events.burst, refill: config.events.refill }
}

/// Returns the configured limits of the outbox.
pub(in crate::agent) fn outbox_limits(config: &Config) -> OutboxLimits {
    OutboxLimits { rows: config.outbox.max_items, bytes: config.outbox.max_size }
}
