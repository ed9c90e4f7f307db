//! Handles events of nodes and the broker: connections, presence, frames.

use jiff::Timestamp;

use super::Fleet;
use crate::source::{Replication as _, Source};
use edgesync_broker::{Channel, DisconnectReason, FleetEvent};
use edgesync_object::time::rounded;
use edgesync_object::{Budget, NodeName};
use edgesync_protocol::frame::{FrameError, MAX_WORD, Up, other_protocol};
use edgesync_transport::link::presence::Presence;

impl<S: Source> Fleet<S> {
    pub(super) fn event(&mut self, event: FleetEvent) {
        self.dispatch(event);
        self.release();
    }

    /// Releases nodes whose connection has ended: drops their loads of bodies, records interrupted
    /// transfers, and announces that this replica no longer serves them.
    pub(super) fn release(&mut self) {
        for name in self.reconciler.take_left() {
            if let Some(id) = self.reconciler.nodes.id(&name) {
                self.bodies.forget(id);
                self.patches.forget(id);
                if self.reconciler.nodes.get(id).is_some_and(|node| node.machine.has_begun()) {
                    self.interrupted.add(self.reconciler.now(), id);
                }
            }
            if let Some(replication) = self.requests.replication() {
                replication.set_served(&name, false);
            }
        }
    }

    fn dispatch(&mut self, event: FleetEvent) {
        self.reconciler.work.frame(0);
        match event {
            FleetEvent::Open { .. } => self.sender.opened(),
            FleetEvent::Closed { cause, retry_in } => {
                tracing::warn!(%cause, retry_in = %rounded(retry_in), "broker connection closed or refused");
                self.sender.closed();
                self.reconciler.broadcasts.closed();
                self.removals.disconnected();
            }
            FleetEvent::NodeConnected { node, connection, .. } => {
                if self.enrollment.is_revoked(&node) {
                    return self.cut(&node);
                }
                if self.removals.connected(&node, Some(&connection.to_string())) {
                    return;
                }
                self.meet(&node);
                self.disconnected(&node);
                if let Some(node) = self.reconciler.nodes.named_mut(&node) {
                    node.session.connected(connection.to_string());
                }
            }
            FleetEvent::NodeDisconnected { node, connection, why } => {
                tracing::debug!(node = node.as_str(), %why, "disconnected");
                if self.connection(&node) == Some(connection.to_string().as_str()) {
                    if why == DisconnectReason::ByClient {
                        self.left(&node);
                    }
                    self.disconnected(&node);
                }
            }
            FleetEvent::Message { node, channel: Channel::Presence, payload } => {
                self.presence(&node, &payload);
            }
            FleetEvent::Message { node, channel: Channel::Up, payload } => self.frame(&node, &payload),
        }
    }

    /// Returns the current connection of a node, removed or not.
    fn connection(&self, name: &NodeName) -> Option<&str> {
        let of_node = self.reconciler.nodes.named(name).and_then(|node| node.session.connection());
        of_node.or_else(|| self.removals.connection(name))
    }

    /// Handles the orderly end of a connection. A renewal that arrived before it may still wait in
    /// the machine of the node.
    fn left(&mut self, name: &NodeName) {
        let now = self.reconciler.now();
        self.reconciler.nodes.lifecycle.left(now, Timestamp::now(), name);
    }

    fn disconnected(&mut self, name: &NodeName) {
        self.removals.connected(name, None);
        self.reconciler.disconnected(name);
    }

    /// Disconnects a revoked node, including a connection that it has opened during the revocation.
    pub(super) fn cut(&mut self, name: &NodeName) {
        self.sender.disconnect(name);
        self.disconnected(name);
        self.release();
    }

    /// Handles presence, the only sign of connections at an external broker.
    fn presence(&mut self, name: &NodeName, payload: &[u8]) {
        if self.sender.is_embedded() || self.rejects_revoked(name) {
            return;
        }
        let Ok(presence) = serde_json::from_slice::<Presence>(payload) else {
            if self.may_log(name) {
                tracing::warn!(node = name.as_str(), "invalid presence message");
            }
            return;
        };
        if presence.online {
            if self.removals.connected(name, Some(&presence.connection)) {
                return;
            }
            if let Some(id) = self.meet(name)
                && let Some(node) = self.reconciler.nodes.get_mut(id)
            {
                node.session.connected(presence.connection);
            }
            return;
        }
        // The will of a replaced connection says nothing about the new one.
        if presence.connection.is_empty() || self.connection(name) == Some(&presence.connection) {
            if self.may_log(name) {
                tracing::info!(node = name.as_str(), "disconnected");
            }
            if presence.planned {
                self.left(name);
            }
            self.disconnected(name);
        }
    }

    /// Returns whether messages of a node are dropped because it is revoked. An external broker may
    /// not have the newest revocation list, and does not disconnect clients.
    fn rejects_revoked(&mut self, name: &NodeName) -> bool {
        let is_revoked = self.enrollment.is_revoked(name);
        if is_revoked {
            self.counts.bad_frame("revoked");
        }
        is_revoked
    }

    fn frame(&mut self, name: &NodeName, payload: &[u8]) {
        self.counts.decoded = payload.len();
        self.counts.received += payload.len() as u64;
        if self.rejects_revoked(name) {
            return;
        }
        let now = self.reconciler.now();
        if self.reconciler.nodes.named(name).is_some_and(|node| node.session.is_refused(now)) {
            self.counts.bad_frame("quota");
            return;
        }
        let mut budget = Budget::of(self.reconciler.settings.max_frame);
        let frame = Up::decode(payload, &mut budget);
        self.counts.decoded = budget.spent().max(payload.len());
        let frame = match frame {
            Ok(Up::Hello(hello)) if *name != *hello.node => {
                self.counts.bad_frame("node");
                if self.may_log(name) {
                    let claimed = hello.node.chars().take(64).collect::<String>();
                    tracing::warn!(node = name.as_str(), claimed, "Hello names another node");
                }
                return;
            }
            Ok(frame) => frame,
            Err(error) => return self.handle_invalid_frame(name, payload.len(), error),
        };
        if matches!(frame, Up::Hello(_)) {
            self.check_removal(name);
        }
        if self.removals.has(name) {
            return self.frame_of_removed(name, &frame);
        }
        self.reconciler.work.frame(self.counts.decoded);
        let Some(id) = self.meet(name) else { return };
        let registered = self.reconciler.nodes.has_report(name);
        let Some(node) = self.reconciler.nodes.get_mut(id) else { return };
        node.session.count_received(payload.len());
        match &frame {
            Up::Hello(hello) => {
                node.reported.agent = Some(hello.agent.chars().take(64).collect());
                node.session.begin(hello.session.clone());
                node.machine.set_registered(registered);
            }
            Up::Report(_) => node.reported.last_report = Some(Timestamp::now()),
            Up::Inventory(_) | Up::Lease(_) | Up::Renew(_) | Up::Upload(_) | Up::Credit(_) => {}
        }
        self.reconciler.with_machine(id, |machine, desired| machine.received(now, frame, desired));
    }

    /// Returns whether the rate limit permits another log line for a message of this node.
    pub(super) fn may_log(&self, name: &NodeName) -> bool {
        self.reconciler.nodes.named(name).is_none_or(|node| node.session.may_log())
    }

    /// Counts a frame that cannot be decoded, and answers a Hello of another protocol version.
    fn handle_invalid_frame(&mut self, name: &NodeName, bytes: usize, error: FrameError) {
        let count = self.counts.bad_frame(error.label());
        if error.is_of_another_version() && count > 1 {
            tracing::debug!(node = name.as_str(), bytes, %error, "frame of another protocol version");
        } else if self.may_log(name) {
            tracing::warn!(node = name.as_str(), bytes, %error, "invalid frame");
        }
        if let FrameError::Protocol { found, hello: Some(session) } = error {
            let session = session.chars().take(MAX_WORD).collect();
            let compress_above = self.reconciler.settings.compress_above;
            self.sender.request_hello(compress_above, name, other_protocol(session, found));
        }
    }
}
