//! Periodic writes to the store: Leases and conditions in batches, and the expiry of Events. At
//! most one write of each kind is in flight.

use std::time::Duration;

use super::numbers::Counts;
use super::reconciler::Reconciler;
use super::requests::{Requests, Response};
use crate::source::{LeaseRenewal, Replication as _, Result, Source};
use edgesync_protocol::timing::Now;

/// Interval between two passes for expired Events.
const EXPIRE_EVERY: Duration = Duration::from_secs(30);
/// Maximum number of Events deleted in one transaction.
const EXPIRE_BATCH: usize = 500;
/// Maximum wait at shutdown for a write of Leases in flight.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Deletes Events after their time to live, in batches.
#[derive(Debug)]
pub(super) struct EventExpiry {
    pub(super) ttl: Duration,
    next: Now,
    in_flight: bool,
}

impl EventExpiry {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { ttl, next: Now::ZERO, in_flight: false }
    }

    /// Begins the next batch if it is due. [`EventExpiry::ended`] follows.
    fn begin(&mut self, now: Now) -> bool {
        let is_due = !self.in_flight && now >= self.next;
        self.in_flight |= is_due;
        is_due
    }

    /// Handles the result of a batch, and schedules the next one.
    pub(super) fn ended(&mut self, now: Now, counts: &mut Counts, expired: &Result<u64>) {
        self.in_flight = false;
        match expired {
            Ok(count) => counts.events_expired += count,
            Err(error) => tracing::error!(%error, "deleting expired Events failed"),
        }
        let full = matches!(expired, Ok(count) if *count >= EXPIRE_BATCH as u64);
        // A full batch leaves more behind: the next one is due at once, after the requests already
        // queued at the database.
        self.next = if full { now } else { now + EXPIRE_EVERY };
    }
}

/// Begins the writes that are due.
pub(super) fn begin<S: Source>(
    reconciler: &mut Reconciler,
    requests: &Requests<S>,
    expiry: &mut EventExpiry,
) {
    let now = reconciler.now();
    let leases = reconciler.nodes.lifecycle.leases_due(now);
    if !leases.is_empty() {
        let leases = with_nodes(reconciler, leases);
        if leases.is_empty() {
            reconciler.nodes.lifecycle.leases_written(now, true);
        } else {
            requests.ask(|source| async move {
                let count = leases.len() as u64;
                Response::LeasesWritten(source.renew_leases(leases).await.map(|()| count))
            });
        }
    }
    let changes = reconciler.nodes.lifecycle.changes_due(now);
    if !changes.is_empty() {
        requests.ask(|source| async move { Response::NodesChanged(source.change_nodes(changes).await) });
    }
    if expiry.begin(now) {
        let ttl = expiry.ttl;
        requests.ask(|source| async move {
            Response::EventsExpired(source.expire_events(ttl, EXPIRE_BATCH).await)
        });
    }
}

/// Keeps the Leases of nodes that have a Node. A Lease without a Node means that the Node was
/// deleted.
fn with_nodes(reconciler: &Reconciler, mut leases: Vec<LeaseRenewal>) -> Vec<LeaseRenewal> {
    leases.retain(|lease| reconciler.nodes.has_object(&lease.node));
    leases
}

/// Handles the result of a write of Leases.
pub(super) fn leases_written(reconciler: &mut Reconciler, counts: &mut Counts, written: &Result<u64>) {
    match written {
        Ok(count) => counts.leases_written += count,
        Err(error) => tracing::error!(%error, "writing Leases failed"),
    }
    let now = reconciler.now();
    reconciler.nodes.lifecycle.leases_written(now, written.is_ok());
}

/// Handles the result of a write of conditions.
pub(super) fn conditions_written(reconciler: &mut Reconciler, written: &Result<()>) {
    if let Err(error) = written {
        tracing::error!(%error, "writing conditions of Nodes failed");
    }
    let now = reconciler.now();
    reconciler.nodes.lifecycle.changes_written(now, written.is_ok());
}

/// Writes the last renewals before the process ends: the next start derives from them which nodes
/// were alive.
pub(super) async fn finish<S: Source>(
    reconciler: &mut Reconciler,
    requests: &mut Requests<S>,
    counts: &mut Counts,
) {
    let until = tokio::time::Instant::now() + LAST_WRITE;
    while reconciler.nodes.lifecycle.is_writing_leases() {
        match tokio::time::timeout_at(until, requests.next()).await {
            Ok(Some(Response::LeasesWritten(written))) => leases_written(reconciler, counts, &written),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
    let leases = reconciler.nodes.lifecycle.leases_left();
    let leases = with_nodes(reconciler, leases);
    let source = requests.source();
    if let Err(error) = source.renew_leases(leases).await {
        tracing::error!(%error, "writing the last Leases failed");
    }
    if let Some(replication) = source.replication() {
        replication.finish().await;
    }
}
