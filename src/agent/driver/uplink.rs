//! Link, wire and connection state towards the cloud.

use super::connection::Connection;
use super::wire::{PendingMessage, Wire};
use crate::agent::metrics::LimitsHit;
use crate::agent::traffic::{Direction, Meter};
use edgesync_protocol::edge::EdgeMachine;
use edgesync_protocol::timing::Now;
use edgesync_transport::link::{Backlog, LinkHandle, PublishError};

/// Carries messages between machine and cloud.
pub(super) struct Uplink {
    pub(super) link: LinkHandle,
    pub(super) wire: Wire,
    pub(super) connection: Connection,
}

impl Uplink {
    pub(super) fn new(link: LinkHandle, wire: Wire) -> Self {
        Self { link, wire, connection: Connection::default() }
    }

    /// Returns whether the link is up.
    pub(super) fn is_connected(&self) -> bool {
        self.connection.link.connected
    }

    /// Returns whether the link's next event may be received: the results of the last ones are
    /// processed.
    pub(super) fn wants_event(&self, machine: &EdgeMachine) -> bool {
        machine.wants_frame() && self.wire.cloud_core().is_none_or(|core| !core.bridge.has_frame())
    }

    /// Publishes a message, or holds it while the link's queue is full. Returns whether the next
    /// one may follow.
    pub(super) fn publish(
        &mut self,
        message: PendingMessage,
        meter: &mut Meter,
        limits: &mut LimitsHit,
    ) -> bool {
        let PendingMessage { name, topic, bytes } = message;
        let length = bytes.len();
        match self.link.try_publish(&topic, bytes.clone(), false) {
            Ok(()) => {
                meter.frame(Direction::Up, name, length);
                true
            }
            Err(PublishError::Full) => {
                limits.link_queue += 1;
                self.connection.hold(PendingMessage { name, topic, bytes });
                false
            }
            Err(PublishError::NotConnected) => false,
            Err(error) => {
                tracing::error!(%error, name, "message not published");
                true
            }
        }
    }

    /// Passes the link's backlog to the machine. A waiting message counts as one more frame. The
    /// bridge accepts frames at once, so with a CloudCore there is no backlog.
    pub(super) fn update_progress(&self, machine: &mut EdgeMachine, now: Now) {
        if !matches!(self.wire, Wire::Mqtt(_)) {
            return;
        }
        let Backlog { unsent, unacknowledged } = self.link.backlog();
        let waiting = u64::from(self.connection.is_waiting());
        machine.link_progress(now, unsent + waiting, unacknowledged + waiting);
    }
}
