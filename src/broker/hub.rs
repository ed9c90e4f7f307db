//! What the tasks of one endpoint share.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use super::BrokerOptions;
use super::counters::BrokerCounters;
use super::inflow::Inflow;
use super::registry::{Moved, Registry};

/// See the module.
pub(super) struct Hub {
    pub(super) options: BrokerOptions,
    pub(super) registry: Registry,
    pub(super) moved: Moved,
    pub(super) counters: BrokerCounters,
    pub(super) inflow: Inflow,
    /// One permit per connection.
    pub(super) places: Arc<Semaphore>,
    pub(super) closing: watch::Sender<bool>,
}

impl Hub {
    /// Whether the endpoint shuts down.
    pub(super) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Returns once the endpoint shuts down.
    pub(super) async fn closed(&self) {
        // The sender lives in the hub we hold: it cannot go away.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }
}
