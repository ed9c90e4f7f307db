//! The Node report: conditions, their transition times, and the upload when the report changes.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use super::Reporting;
use crate::agent::clock::Clock;
use crate::agent::events::{EventReason, Events, Regarding};
use crate::agent::node_report;
use crate::agent::objects::SharedNode;
use crate::store::{EdgeStats, EdgeStore, OutboxPut, OutboxWrite};
use edgesync_config::edge::Config;
use edgesync_object::time::rfc3339;
use edgesync_protocol::node::{Condition, ConditionStatus, DISK_PRESSURE, NodeReport, merge_report};
use edgesync_protocol::upload::{Content, Lane};
use edgesync_store::StoreError;

/// Interval of the device checks: disk, addresses, Node report.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Metadata key of the hash of the last report.
const METADATA_KEY: &str = "node";

/// State of the Node report.
pub(in crate::agent) struct NodeReporter {
    /// The Node that the local API serves.
    shared_node: SharedNode,
    conditions: Vec<Condition>,
    /// Hash of the last queued report; `None` if it could not be stored.
    queued: Arc<Mutex<Option<u64>>>,
    next_check: Instant,
    /// The pending query for the store's size.
    pub(in crate::agent::driver) sizing: Option<JoinHandle<Result<EdgeStats, StoreError>>>,
    /// Bytes in use within the database.
    used_bytes: u64,
}

impl NodeReporter {
    /// Restores the hash of the last report. Unreadable metadata counts as absent.
    pub(super) async fn restore(store: &EdgeStore, shared_node: SharedNode) -> Self {
        let queued = store.note(METADATA_KEY).await.unwrap_or_default();
        Self {
            shared_node,
            conditions: Vec::new(),
            queued: Arc::new(Mutex::new(queued.and_then(|hash| hash.parse().ok()))),
            next_check: Instant::now(),
            sizing: None,
            used_bytes: 0,
        }
    }

    /// Begins a check of the device if one is due.
    pub(super) fn check_if_due(&mut self, now: Instant, store: &EdgeStore) {
        if now >= self.next_check {
            self.next_check = now + CHECK_INTERVAL;
            let store = store.clone();
            self.sizing = Some(tokio::spawn(async move { store.stats().await }));
        }
    }

    /// Schedules a check of the device: a new link may use another address.
    pub(in crate::agent::driver) fn schedule_check(&mut self) {
        self.next_check = Instant::now();
    }

    /// Receives the size of the store.
    pub(in crate::agent::driver) fn sized(
        &mut self,
        stats: &Result<Result<EdgeStats, StoreError>, JoinError>,
    ) {
        self.sizing = None;
        if let Ok(Ok(stats)) = stats {
            self.used_bytes = stats.database_bytes.saturating_sub(stats.free_bytes);
        }
    }

    fn find(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.condition == kind)
    }

    fn disk_condition(&self, config: &Config, store: &EdgeStore) -> Condition {
        let max_bytes = store.max_file_bytes().unwrap_or(config.store.max_size);
        node_report::disk_condition(&config.store.path, self.used_bytes, max_bytes, self.find(DISK_PRESSURE))
    }

    /// Replaces the conditions, with the times of their transitions.
    fn set_conditions(&mut self, mut conditions: Vec<Condition>, events: &Events) {
        for condition in &mut conditions {
            condition.last_transition_time = match self.find(&condition.condition) {
                Some(known) if known.status == condition.status => known.last_transition_time,
                // Unknown at the start: the cloud uses the time at which it receives the report.
                None => None,
                Some(_) => Some(Timestamp::now()),
            };
        }
        emit_disk(events, self.find(DISK_PRESSURE), &conditions);
        self.conditions = conditions;
    }

    /// Builds the report, and updates the Node that the local API serves.
    fn publish(&self, config: &Config) -> NodeReport {
        let report = node_report::report(config, self.conditions.clone());
        let mut node = self.shared_node.lock().unwrap_or_else(PoisonError::into_inner);
        merge_report(&mut node, &report, Timestamp::now());
        report
    }

    /// Queues a report for the cloud if it differs from the last one or is requested.
    fn queue(&self, report: &NodeReport, requested: bool, store: EdgeStore, clock: &Clock) {
        let Ok(text) = serde_json::value::to_raw_value(report) else { return };
        let mut hasher = DefaultHasher::new();
        text.get().hash(&mut hasher);
        let hash = hasher.finish();
        if !requested && *lock(&self.queued) == Some(hash) {
            return;
        }
        let Ok(content) = serde_json::to_string(&Content::Node(&text)) else { return };
        *lock(&self.queued) = Some(hash);
        let put = OutboxPut { lane: Lane::Status, key: "node".into(), at: clock.clocked(), content };
        let queued = Arc::clone(&self.queued);
        tokio::spawn(async move {
            let postings =
                vec![OutboxWrite::Upload(put), OutboxWrite::Metadata(METADATA_KEY, hash.to_string())];
            if let Err(error) = store.post(postings).await {
                tracing::warn!(%error, "node report not queued");
                // The next check retries it.
                *lock(&queued) = None;
            }
        });
    }

    /// Returns the conditions for the status.
    pub(in crate::agent::driver) fn show(&self) -> Vec<edgesync_admin::agent::Condition> {
        let shown = |condition: &Condition| edgesync_admin::agent::Condition {
            kind: condition.condition.clone(),
            status: format!("{:?}", condition.status),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            last_transition_time: condition.last_transition_time.map(rfc3339),
        };
        self.conditions.iter().map(shown).collect()
    }
}

impl Reporting {
    /// Checks the device, and updates the Node that the local API serves. `others` are the
    /// conditions of parts that report for themselves: certificate and files.
    pub(super) fn update_node(
        &mut self,
        store: &EdgeStore,
        others: impl IntoIterator<Item = Condition>,
    ) -> NodeReport {
        let health = store.health().borrow().clone();
        let mut conditions = vec![
            node_report::store_condition(&health),
            self.node.disk_condition(&self.config, store),
            self.metered.condition().unwrap_or_else(|| self.traffic.condition()),
        ];
        conditions.extend(others);
        self.node.set_conditions(conditions, &self.events);
        self.node.publish(&self.config)
    }

    /// Queues a report for the cloud if it differs from the last one or is requested.
    pub(super) fn queue_node(&self, report: &NodeReport, requested: bool, store: EdgeStore) {
        self.node.queue(report, requested, store, &self.clock);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Emits an Event when disk pressure begins or ends.
fn emit_disk(events: &Events, before: Option<&Condition>, now: &[Condition]) {
    let Some(disk) = now.iter().find(|condition| condition.condition == DISK_PRESSURE) else { return };
    let was = before.map_or(ConditionStatus::False, |condition| condition.status);
    let why = match (was, disk.status) {
        (ConditionStatus::False, ConditionStatus::True) => EventReason::DiskPressure,
        (ConditionStatus::True, ConditionStatus::False) => EventReason::DiskPressureOver,
        _ => return,
    };
    events.emit(why, Regarding::Node, disk.message.clone());
}
