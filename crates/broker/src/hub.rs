//! State shared by the tasks of one endpoint.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use super::BrokerOptions;
use super::counters::BrokerCounters;
use super::inflow::Inflow;
use super::registry::{Registry, ShrunkBacklogs};
use edgesync_transport::admission::{ConnectionLimiter, LogThrottle};
use edgesync_transport::shared::Bytes;

/// Maximum number of log lines about connecting and disconnecting nodes in ten seconds.
pub(super) const SESSION_LINES: u32 = 200;

/// State shared by the tasks of one endpoint.
pub(super) struct Hub {
    pub(super) options: BrokerOptions,
    pub(super) registry: Registry,
    pub(super) shrunk_backlogs: ShrunkBacklogs,
    pub(super) counters: BrokerCounters,
    /// Bytes of the connections of a shared listener; `counters` has those of the endpoint's own.
    pub(super) shared_bytes: Arc<Bytes>,
    pub(super) inflow: Inflow,
    /// Limits connections whose node is not known yet.
    pub(super) limiter: Arc<ConnectionLimiter>,
    /// One permit per connected node.
    pub(super) node_permits: Arc<Semaphore>,
    pub(super) throttles: Throttles,
    /// Throttle for lines about nodes that connect, disconnect or replace a connection.
    pub(super) session_lines: LogThrottle,
    pub(super) closing: watch::Sender<bool>,
}

/// Throttles for log lines that unauthenticated peers or any node can cause.
#[derive(Debug, Default)]
pub(super) struct Throttles {
    pub(super) full: LogThrottle,
    pub(super) refused: LogThrottle,
    pub(super) impostor: LogThrottle,
    pub(super) topic: LogThrottle,
    pub(super) filter: LogThrottle,
    pub(super) large: LogThrottle,
    pub(super) presence: LogThrottle,
}

impl Hub {
    /// Returns whether the endpoint shuts down.
    pub(super) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Returns when the endpoint shuts down.
    pub(super) async fn closed(&self) {
        // Cannot fail: the hub holds the sender.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }
}
