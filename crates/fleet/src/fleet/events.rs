//! Events from nodes and the broker: connections, presence, frames.

use jiff::Timestamp;

use super::Fleet;
use crate::source::Source;
use edgesync_broker::{Channel, FleetEvent};
use edgesync_object::Budget;
use edgesync_protocol::frame::{FrameError, MAX_WORD, Up, other_protocol};
use edgesync_transport::link::presence::Presence;

impl<S: Source> Fleet<S> {
    /// Takes an event.
    pub(super) fn event(&mut self, event: FleetEvent) {
        self.take_event(event);
        self.release();
    }

    fn take_event(&mut self, event: FleetEvent) {
        self.reconciler.work.frame(0);
        match event {
            FleetEvent::Open { .. } => self.sender.opened(),
            FleetEvent::Closed { cause, retry_in } => {
                tracing::warn!(%cause, ?retry_in, "no connection to the broker");
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
                if let Some(node) = self.reconciler.nodes.get_mut(&node) {
                    node.connection = Some(connection.to_string());
                }
            }
            FleetEvent::NodeDisconnected { node, connection, why } => {
                tracing::debug!(node, %why, "disconnected");
                if self.connection(&node) == Some(connection.to_string().as_str()) {
                    self.disconnected(&node);
                }
            }
            FleetEvent::Message { node, channel: Channel::Presence, payload } => {
                self.presence(&node, &payload);
            }
            FleetEvent::Message { node, channel: Channel::Up, payload } => self.frame(&node, &payload),
        }
    }

    /// The connection in use of a node, removed or not.
    fn connection(&self, name: &str) -> Option<&str> {
        let of_node = self.reconciler.nodes.get(name).and_then(|node| node.connection.as_deref());
        of_node.or_else(|| self.removals.connection(name))
    }

    fn disconnected(&mut self, name: &str) {
        self.removals.connected(name, None);
        self.reconciler.disconnected(name);
    }

    /// A node that was shut out loses its connection, also one that it has made while that was under way.
    pub(super) fn cut(&mut self, name: &str) {
        self.sender.disconnect(name);
        self.disconnected(name);
        self.release();
    }

    /// With an external broker presence is all that tells of connections.
    fn presence(&mut self, name: &str, payload: &[u8]) {
        if self.sender.is_embedded() || self.is_shut_out(name) {
            return;
        }
        let Ok(presence) = serde_json::from_slice::<Presence>(payload) else {
            if self.may_log(name) {
                tracing::warn!(node = name, "a presence that cannot be read");
            }
            return;
        };
        if presence.online {
            if self.removals.connected(name, Some(&presence.connection)) {
                return;
            }
            self.meet(name);
            if let Some(node) = self.reconciler.nodes.get_mut(name) {
                node.connection = Some(presence.connection);
            }
            return;
        }
        // The will of a connection that was replaced says nothing about the new one.
        if presence.connection.is_empty() || self.connection(name) == Some(&presence.connection) {
            if self.may_log(name) {
                tracing::info!(node = name, "disconnected");
            }
            self.disconnected(name);
        }
    }

    /// Whether what comes in a name does not count. An external broker may not know the newest revocation list, and cuts
    /// nobody who is connected.
    fn is_shut_out(&mut self, name: &str) -> bool {
        let is_revoked = self.enrollment.is_revoked(name);
        if is_revoked {
            self.counts.bad_frame("revoked");
        }
        is_revoked
    }

    fn frame(&mut self, name: &str, payload: &[u8]) {
        self.counts.decoded = payload.len();
        self.counts.received += payload.len() as u64;
        if self.is_shut_out(name) {
            return;
        }
        let now = self.reconciler.now();
        if self.reconciler.nodes.get(name).is_some_and(|node| node.refused_until > now) {
            self.counts.bad_frame("quota");
            return;
        }
        let mut budget = Budget::of(self.reconciler.settings.max_frame);
        let frame = Up::decode(payload, &mut budget);
        self.counts.decoded = budget.spent().max(payload.len());
        let frame = match frame {
            Ok(Up::Hello(hello)) if hello.node != name => {
                self.counts.bad_frame("node");
                if self.may_log(name) {
                    let claimed = hello.node.chars().take(64).collect::<String>();
                    tracing::warn!(node = name, claimed, "a Hello in another node's name");
                }
                return;
            }
            Ok(frame) => frame,
            Err(error) => return self.unreadable(name, payload.len(), error),
        };
        if self.removals.has(name) {
            return self.frame_of_removed(name, &frame);
        }
        self.reconciler.work.frame(self.counts.decoded);
        self.meet(name);
        let registered = self.reconciler.nodes.has_report(name);
        let Some(node) = self.reconciler.nodes.get_mut(name) else { return };
        node.received += payload.len() as u64;
        match &frame {
            Up::Hello(hello) => {
                node.agent = Some(hello.agent.chars().take(64).collect());
                node.session = Some(hello.session.clone());
                node.machine.set_registered(registered);
            }
            Up::Report(_) => node.last_report = Some(Timestamp::now()),
            Up::Inventory(_) | Up::Lease(_) | Up::Upload(_) => {}
        }
        self.reconciler.with_machine(name, |machine, desired| machine.received(now, frame, desired));
    }

    /// Whether what a node has said may cause another line in the log.
    pub(super) fn may_log(&self, name: &str) -> bool {
        self.reconciler.nodes.get(name).is_none_or(|node| node.quiet.line().is_some())
    }

    /// A frame that is no frame, or one of another version.
    fn unreadable(&mut self, name: &str, bytes: usize, error: FrameError) {
        let count = self.counts.bad_frame(error.label());
        if error.is_of_another_version() && count > 1 {
            tracing::debug!(node = name, bytes, %error, "a frame of another version");
        } else if self.may_log(name) {
            tracing::warn!(node = name, bytes, %error, "a frame that cannot be read");
        }
        if let FrameError::Protocol { found, hello: Some(session) } = error {
            let session = session.chars().take(MAX_WORD).collect();
            let compress_above = self.reconciler.settings.compress_above;
            self.sender.request_hello(compress_above, name, other_protocol(session, found));
        }
    }
}
