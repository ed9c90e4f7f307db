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
use crate::agent::clock::{Clock, ClockNews};
use crate::agent::events::{EventLimits, Events, Regarding, Why};
use crate::agent::identity::Membership;
use crate::agent::node_report;
use crate::agent::objects::OwnNode;
use crate::agent::traffic::{Budget, BudgetState, Meter};
use crate::store::{
    EdgeStats, EdgeStore, Health, OutboxLimits, OutboxPut, OutboxState, Posting, Reset, Writing,
};
use edgesync_admin::agent::{LaneStatus, TrafficToday};
use edgesync_config::edge::Config;
use edgesync_protocol::edge::{EdgeEffect, OutboxMarks};
use edgesync_protocol::node::{Condition, ConditionStatus, DISK_PRESSURE, merge_report};
use edgesync_protocol::upload::{Content, Lane, Lanes, RefusedReason, UploadItem};
use edgesync_runtime::random;
use edgesync_store::StoreError;

/// Interval of the device checks: disk, addresses, Node report.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Interval at which the store receives the traffic counts; it writes them with its next flush.
const KEEP_EVERY: Duration = Duration::from_secs(60);
/// Time for which Events wait for the device's clock to be set.
const CLOCK_PATIENCE: Duration = Duration::from_secs(120);
/// Metadata key of the traffic counts.
pub(in crate::agent) const TRAFFIC_NOTE: &str = "traffic";
/// Metadata key of the hash of the last Node report.
const NODE_NOTE: &str = "node";

type Page = Result<Vec<UploadItem>, StoreError>;

/// State of the outbound half.
pub(in crate::agent) struct Upstream {
    config: Config,
    pub(super) events: Events,
    clock: Clock,
    pub(super) meter: Meter,
    budget: Budget,
    pub(super) outbox: watch::Receiver<OutboxState>,
    /// State of the outbox when the store was opened, before this run added anything.
    opened: OutboxMarks,
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
    told: Arc<Mutex<Option<u64>>>,
    /// The Node that the local API serves.
    own_node: OwnNode,
    pub(super) conditions: Vec<Condition>,
    look_at: Instant,
    keep_at: Instant,
    started: Instant,
    /// Dropped items at the last check.
    dropped: Lanes,
    /// Frames that found the link's queue full, and connections dropped for stalled reads, at the
    /// last check.
    limits: (u64, u64),
    /// Since when the link is up without an answer of the cloud.
    pub(super) silent: Option<Instant>,
    /// Whether an Event has reported the silence.
    pub(super) silence_told: bool,
}

impl Upstream {
    /// Restores what the store persisted in an earlier run.
    pub(in crate::agent) async fn new(
        config: &Config,
        store: &EdgeStore,
        clock: Clock,
        events: Events,
        own_node: OwnNode,
    ) -> Self {
        // Unreadable metadata counts as absent.
        let traffic = store.note(TRAFFIC_NOTE).await.unwrap_or_default();
        let told = store.note(NODE_NOTE).await.unwrap_or_default();
        let now = Instant::now();
        let meter = Meter::new(traffic.as_deref(), Timestamp::now());
        Self {
            config: config.clone(),
            own_node,
            events,
            clock,
            budget: Budget::new(config.traffic.daily_budget, meter.today()),
            meter,
            outbox: store.outbox(),
            opened: store.outbox().borrow().marks.clone(),
            page: None,
            renumbering: None,
            sizing: None,
            used_bytes: 0,
            acquired: Timestamp::now().as_microsecond(),
            told: Arc::new(Mutex::new(told.and_then(|told| told.parse().ok()))),
            conditions: Vec::new(),
            look_at: now,
            keep_at: now + KEEP_EVERY,
            started: now,
            dropped: Lanes::default(),
            limits: (0, 0),
            silent: None,
            silence_told: false,
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
            last_transition_time: condition.last_transition_time.map(|at| at.to_string()),
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
        self.clock.is_known() || self.started.elapsed() >= CLOCK_PATIENCE
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
    pub(super) fn begin_upstream(&mut self) {
        let now = self.now();
        self.machine.set_frugal(now, self.upstream.budget.is_spent());
        self.machine.outbox_changed(now, &self.upstream.opened);
        self.outbox_changed();
    }

    /// Persists the traffic counts at the end.
    pub(super) fn end_upstream(&mut self) {
        self.upstream.meter.link(&self.link.traffic(), Timestamp::now());
        self.store.keep_note(TRAFFIC_NOTE, self.upstream.meter.keep());
    }

    /// Runs the checks that are due; called about once a second.
    pub(super) fn look_around(&mut self) {
        let now = Instant::now();
        self.look_at_clock();
        let traffic = self.link.traffic();
        self.upstream.meter.link(&traffic, Timestamp::now());
        self.look_at_budget();
        self.look_at_limits(traffic.stalled);
        if now >= self.upstream.keep_at {
            self.upstream.keep_at = now + KEEP_EVERY;
            self.store.keep_note(TRAFFIC_NOTE, self.upstream.meter.keep());
        }
        if now >= self.upstream.look_at {
            self.upstream.look_at = now + LOOK_EVERY;
            let store = self.store.clone();
            self.upstream.sizing = Some(tokio::spawn(async move { store.stats().await }));
        }
    }

    /// Receives the size of the store, and checks the rest of the device.
    pub(super) fn sized(&mut self, stats: &Result<Result<EdgeStats, StoreError>, tokio::task::JoinError>) {
        self.upstream.sizing = None;
        if let Ok(Ok(stats)) = stats {
            self.upstream.used_bytes = stats.database_bytes.saturating_sub(stats.free_bytes);
        }
        self.tell_of_node(false);
    }

    /// Schedules a check of the device: a new link may use another address.
    pub(super) fn look_soon(&mut self) {
        self.upstream.look_at = Instant::now();
    }

    fn look_at_clock(&mut self) {
        let settled = self.upstream.times_are_settled();
        if let Some(ClockNews::Jumped { at, by, doubtful, became_known }) = self.upstream.clock.look() {
            let seconds = by as f64 / 1000.0;
            tracing::warn!(seconds, became_known, "the clock was set");
            let more = if became_known { ", and can be right now: it could not before" } else { "" };
            let note = format!("the clock was set by {seconds:+.1} s{more}");
            self.upstream.events.emit(Why::ClockJumped, Regarding::Node, note);
            // Times of a clock that could be right stay as they are: the correction may be the
            // wrong one.
            if doubtful {
                self.upstream.events.clock_set(at, by);
            }
        }
        if settled != self.upstream.times_are_settled() {
            self.outbox_changed();
        }
    }

    fn look_at_limits(&mut self, stalled: u64) {
        let hit = (self.statistics.limits.link_queue, stalled);
        let before = std::mem::replace(&mut self.upstream.limits, hit);
        let tell = |what: &str, now: u64, before: u64| {
            if now > before {
                let note = format!("{what}, {now} times since the agent started");
                self.upstream.events.emit(Why::LimitHit, Regarding::Node, note);
            }
        };
        tell("frames had to wait because the link's queue was full", hit.0, before.0);
        tell("the connection was dropped because what was received was not taken in time", hit.1, before.1);
    }

    fn look_at_budget(&mut self) {
        let used = self.upstream.meter.today();
        let change = self.upstream.budget.update(used);
        self.budget_changed(change);
    }

    fn budget_changed(&mut self, change: Option<BudgetState>) {
        let Some(state) = change else { return };
        let (used, limit) = (self.upstream.budget.used(), self.upstream.budget.limit().unwrap_or(0));
        tracing::warn!(used, limit, ?state, "the daily budget of bytes");
        self.machine.set_frugal(self.now(), state == BudgetState::Spent);
        let (why, note) = match state {
            BudgetState::Spent => {
                let till = "only what matters is sent until 00:00 UTC";
                (Why::TrafficBudgetSpent, format!("{used} bytes of {limit} for today are spent: {till}"))
            }
            BudgetState::Within => {
                (Why::TrafficBudgetRenewed, "what waited for a new budget goes on".to_owned())
            }
        };
        self.upstream.events.emit(why, Regarding::Node, note);
        self.tell_of_node(false);
    }

    /// Checks the device, and queues a Node report if it differs from the last one or the cloud
    /// requests it. Without a link no report is queued, because the addresses depend on the link.
    pub(super) fn tell_of_node(&mut self, asked: bool) {
        let upstream = &mut self.upstream;
        let health = self.store.health().borrow().clone();
        let store = &upstream.config.store;
        let before = |kind: &str| upstream.conditions.iter().find(|condition| condition.condition == kind);
        let disk = node_report::disk_condition(
            &store.path,
            upstream.used_bytes,
            self.store.max_file_bytes().unwrap_or(store.max_size),
            before(DISK_PRESSURE),
        );
        let budget = node_report::traffic_condition(
            upstream.budget.is_spent(),
            upstream.budget.used(),
            upstream.budget.limit(),
        );
        let mut conditions = vec![node_report::store_condition(&health), disk, budget];
        if let Some(identity) = self.identity.as_ref().map(Membership::state) {
            let until = identity.certificate.not_after();
            conditions.push(node_report::certificate_condition(identity.validity, until));
        }
        conditions.extend(self.files.view().summary.condition());
        for condition in &mut conditions {
            let known = upstream.conditions.iter().find(|known| known.condition == condition.condition);
            condition.last_transition_time = match known {
                Some(known) if known.status == condition.status => known.last_transition_time,
                // Unknown at the start: the cloud uses the time at which it receives the report.
                None => None,
                Some(_) => Some(Timestamp::now()),
            };
        }
        tell_disk(&upstream.events, &upstream.conditions, &conditions);
        upstream.conditions.clone_from(&conditions);
        let report = node_report::report(&upstream.config, conditions);
        merge_report(&mut lock(&upstream.own_node), &report, Timestamp::now());
        if !self.connection.link.connected && !asked {
            return;
        }
        let Ok(text) = serde_json::value::to_raw_value(&report) else { return };
        let mut hasher = DefaultHasher::new();
        text.get().hash(&mut hasher);
        let hash = hasher.finish();
        if !asked && *lock(&upstream.told) == Some(hash) {
            return;
        }
        let Ok(content) = serde_json::to_string(&Content::Node(&text)) else { return };
        *lock(&upstream.told) = Some(hash);
        let at = upstream.clock.clocked();
        let put = OutboxPut { lane: Lane::Status, key: "node".into(), at, content };
        let (store, told) = (self.store.clone(), Arc::clone(&upstream.told));
        tokio::spawn(async move {
            let postings = vec![Posting::Upload(put), Posting::Note(NODE_NOTE, hash.to_string())];
            if let Err(error) = store.post(postings).await {
                tracing::warn!(%error, "what the node tells of itself could not be kept");
                // The next check retries it.
                *lock(&told) = None;
            }
        });
    }

    pub(super) fn outbox_changed(&mut self) {
        let marks = self.upstream.marks();
        let now = self.now();
        self.statistics.ages.outbox(now, &marks);
        self.machine.outbox_changed(now, &marks);
        let dropped = self.upstream.outbox.borrow_and_update().dropped;
        let before = std::mem::replace(&mut self.upstream.dropped, dropped);
        let lost = |lane| dropped.get(lane).saturating_sub(before.get(lane));
        let all: u64 = Lane::ALL.into_iter().map(lost).sum();
        if all > 0 {
            let lanes: Vec<String> =
                Lane::ALL.into_iter().map(|lane| format!("{} {}", dropped.get(lane), lane.name())).collect();
            let note = format!(
                "no room in the outbox, or unreadable: {} were dropped since the agent started",
                lanes.join(", ")
            );
            self.upstream.events.emit(Why::OutboxOverflow, Regarding::Node, note);
        }
    }

    pub(super) fn outbox_read(&mut self, page: Result<Page, tokio::task::JoinError>) {
        self.upstream.page = None;
        let now = self.now();
        match page {
            Ok(Ok(items)) => self.machine.outbox_read(now, items),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the outbox cannot be read");
                self.machine.outbox_failed(now);
            }
            Err(error) => {
                tracing::error!(%error, "a read of the outbox ended early");
                self.machine.outbox_failed(now);
            }
        }
    }

    pub(super) fn renumbered(&mut self, result: Result<Result<(), StoreError>, tokio::task::JoinError>) {
        self.upstream.renumbering = None;
        let error = match result {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::error!(error, "the outbox could not be numbered anew");
        self.machine.outbox_failed(self.now());
    }

    /// Performs an effect that concerns the outbox or the Lease.
    pub(super) fn perform_upstream(&mut self, effect: &EdgeEffect) {
        let store = self.store.clone();
        match *effect {
            EdgeEffect::ReadOutbox { lane, after, limit, bytes } => {
                self.upstream.page =
                    Some(tokio::spawn(async move { store.outbox_page(lane, after, limit, bytes).await }));
            }
            EdgeEffect::SettleOutbox { lane, upto } => store.settle_outbox(lane, upto),
            EdgeEffect::RenumberOutbox { lane, sent, above } => {
                tracing::warn!(
                    lane = lane.name(),
                    sent,
                    above,
                    "the database is an older copy: its outbox is numbered anew"
                );
                self.upstream.renumbering =
                    Some(tokio::spawn(async move { store.renumber_outbox(lane, sent, above).await }));
            }
            EdgeEffect::RenewLease => {
                let renewed = Timestamp::now().as_microsecond();
                self.machine.renew(self.now(), self.upstream.acquired, renewed, random());
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
            true => format!("{reason:?} (its kind is sealed, so what the cloud says of it is not kept)"),
            false => message.to_owned(),
        };
        // The content stays out of the log: it may be long or confidential.
        tracing::warn!(?reason, why = &*why, "the cloud refused what was sent to it");
        let Some(status) = status else { return };
        let note = format!("the cloud refused the status: {why}");
        let regarding = Regarding::Object(status.object, status.uid);
        self.upstream.events.emit(Why::StatusRefused, regarding, note);
    }

    pub(super) fn tell_reset(&self, reset: &Reset) {
        let Reset { cause, kept, lost, .. } = reset;
        let note = format!(
            "{cause}: {kept} objects are kept, {lost} are known to be lost; the cloud sends what is missing"
        );
        self.upstream.events.emit(Why::StoreSalvaged, Regarding::Node, note);
    }

    pub(super) fn tell_health(&mut self, before: &Writing, health: &Health) {
        let why = match (&health.writing, before) {
            (Writing::Works, Writing::Works) => return,
            (Writing::Works, _) => (Why::StoreRecovered, "the database takes changes again".to_owned()),
            (Writing::Full, _) => (
                Why::StoreFull,
                "the database or its disk is full: nothing new is kept until there is room".to_owned(),
            ),
            (Writing::Fails { reason }, _) => {
                (Why::StoreFailing, format!("the database cannot be written: {reason}"))
            }
        };
        self.upstream.events.emit(why.0, Regarding::Node, why.1);
        self.tell_of_node(false);
    }

    pub(super) fn reload_upstream(&mut self, config: &Config) {
        let upstream = &mut self.upstream;
        upstream.config = config.clone();
        upstream.events.set_limits(event_limits(config));
        let change = upstream.budget.set_limit(config.traffic.daily_budget);
        self.store.set_outbox_limits(outbox_limits(config));
        self.budget_changed(change);
    }

    /// Returns the status of the outbox's lanes.
    pub(super) fn show_upstream(&self) -> BTreeMap<String, LaneStatus> {
        let state = self.upstream.outbox.borrow();
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
fn tell_disk(events: &Events, before: &[Condition], now: &[Condition]) {
    let find = |all: &[Condition]| all.iter().find(|condition| condition.condition == DISK_PRESSURE).cloned();
    let Some(disk) = find(now) else { return };
    let was = find(before).map_or(ConditionStatus::False, |condition| condition.status);
    let why = match (was, disk.status) {
        (ConditionStatus::False, ConditionStatus::True) => Why::DiskPressure,
        (ConditionStatus::True, ConditionStatus::False) => Why::DiskPressureOver,
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
