//! Traffic of the link: its counts, which survive restarts, and the daily budget.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::agent::events::EventReason;
use crate::agent::node_report;
use crate::agent::traffic::{Budget, BudgetState, Meter};
use crate::store::EdgeStore;
use edgesync_admin::agent::TrafficToday;
use edgesync_protocol::node::Condition;
use edgesync_transport::link::Traffic;

/// Interval at which the store receives the counts; it writes them with its next flush.
const PERSIST_INTERVAL: Duration = Duration::from_secs(60);
/// Metadata key of the counts.
const METADATA_KEY: &str = "traffic";

/// Counts of the link's bytes and the daily budget; persisted every [`PERSIST_INTERVAL`].
pub(in crate::agent) struct MeteredTraffic {
    pub(in crate::agent::driver) meter: Meter,
    budget: Budget,
    persist_at: Instant,
}

impl MeteredTraffic {
    /// Restores the counts of earlier runs. Unreadable metadata counts as absent.
    pub(super) async fn restore(store: &EdgeStore, daily_budget: Option<u64>) -> Self {
        let counts = store.note(METADATA_KEY).await.unwrap_or_default();
        let meter = Meter::new(counts.as_deref(), Timestamp::now());
        let budget = Budget::new(daily_budget, meter.today());
        Self { meter, budget, persist_at: Instant::now() + PERSIST_INTERVAL }
    }

    /// Adds the bytes of the link. Returns the state of the budget if it has changed.
    pub(super) fn count(&mut self, link: &Traffic) -> Option<BudgetState> {
        self.meter.link(link, Timestamp::now());
        self.budget.update(self.meter.today())
    }

    /// Sets another budget. Returns its state if it has changed.
    pub(super) fn set_budget(&mut self, bytes: Option<u64>) -> Option<BudgetState> {
        self.budget.set_limit(bytes)
    }

    /// Returns the daily budget, in bytes.
    pub(in crate::agent::driver) fn budget(&self) -> Option<u64> {
        self.budget.limit()
    }

    pub(super) fn is_spent(&self) -> bool {
        self.budget.is_spent()
    }

    pub(super) fn persist_if_due(&mut self, now: Instant, store: &EdgeStore) {
        if now >= self.persist_at {
            self.persist_at = now + PERSIST_INTERVAL;
            self.persist(store);
        }
    }

    pub(super) fn persist(&self, store: &EdgeStore) {
        store.keep_note(METADATA_KEY, self.meter.keep());
    }

    /// Logs a change of the budget, and returns its Event.
    pub(super) fn event(&self, state: BudgetState) -> (EventReason, String) {
        let (used, limit) = (self.budget.used(), self.budget.limit().unwrap_or(0));
        tracing::warn!(used_bytes = used, limit_bytes = limit, ?state, "daily traffic budget");
        match state {
            BudgetState::Spent => {
                let till = "Leases and Events of programs are throttled until 00:00 UTC";
                let note = format!("daily budget spent, {used} of {limit} bytes used; {till}");
                (EventReason::TrafficBudgetSpent, note)
            }
            BudgetState::Within => {
                (EventReason::TrafficBudgetRenewed, "new daily budget; queued Events are sent".to_owned())
            }
        }
    }

    /// Returns the Node's condition.
    pub(super) fn condition(&self) -> Condition {
        node_report::traffic_condition(self.budget.is_spent(), self.budget.used(), self.budget.limit())
    }

    /// Returns the section of the status; `edgesync traffic` shows more.
    pub(in crate::agent::driver) fn show(&self) -> TrafficToday {
        TrafficToday {
            bytes_today: self.meter.today(),
            daily_budget: self.budget.limit(),
            budget_spent: self.budget.is_spent(),
        }
    }
}
