//! What the tasks of one endpoint share.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use super::BrokerOptions;
use super::counters::BrokerCounters;
use super::inflow::Inflow;
use super::registry::{Moved, Registry};
use edgesync_transport::gate::{Gate, Seldom};

/// How many lines of the log in ten seconds tell who has come and who has gone.
pub(super) const MOVES: u32 = 200;

/// See the module.
pub(super) struct Hub {
    pub(super) options: BrokerOptions,
    pub(super) registry: Registry,
    pub(super) moved: Moved,
    pub(super) counters: BrokerCounters,
    pub(super) inflow: Inflow,
    /// Who connects, until it is known which node it is.
    pub(super) gate: Arc<Gate>,
    /// One permit per node.
    pub(super) places: Arc<Semaphore>,
    pub(super) quiet: Quiet,
    /// Lines of the log about nodes that come, go, or take the place of one that is there.
    pub(super) moves: Seldom,
    pub(super) closing: watch::Sender<bool>,
}

/// Lines of the log that anybody can cause.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    pub(super) full: Seldom,
    pub(super) refused: Seldom,
    pub(super) impostor: Seldom,
    pub(super) topic: Seldom,
    pub(super) filter: Seldom,
    pub(super) large: Seldom,
    pub(super) presence: Seldom,
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
