//! The MQTT link: frames of the sync protocol on the node's topics, and the presence of the cloud.

use super::{PendingMessage, Wire, trace_frame};
use crate::agent::driver::Driver;
use crate::agent::driver::connection::CloudChange;
use crate::agent::traffic::Direction;
use edgesync_object::Budget;
use edgesync_protocol::frame::{FrameError, PROTOCOL, Received};
use edgesync_runtime::random;
use edgesync_transport::admission::LinePermit;
use edgesync_transport::link::presence::CloudPresence;
use edgesync_transport::link::{Backlog, Topic};

impl Driver {
    /// Processes a message by its topic.
    pub(in crate::agent::driver) fn receive_topic(&mut self, topic: &str, payload: &[u8]) {
        let Wire::Mqtt(topics) = &self.wire else { return };
        match topics.parse(topic) {
            Some(Topic::Cloud) => {
                tracing::debug!(topic = "cloud", bytes = payload.len(), "received");
                self.reporting.traffic.meter.frame(Direction::Down, "Presence", payload.len());
                self.presence_received(payload);
            }
            Some(Topic::Down(node)) if node == self.settings.node => {
                tracing::debug!(topic = "down", bytes = payload.len(), "received");
                self.frame(payload);
            }
            _ => tracing::debug!(topic, "message on an unknown topic"),
        }
    }

    fn presence_received(&mut self, payload: &[u8]) {
        let presence = match serde_json::from_slice::<CloudPresence>(payload) {
            Ok(presence) => presence,
            Err(error) => {
                if let Some(LinePermit { suppressed }) = self.peer_log.presence.permit_line() {
                    tracing::warn!(%error, suppressed, "invalid presence of the cloud side");
                }
                return;
            }
        };
        match self.connection.observe_cloud(presence) {
            CloudChange::Unchanged => {}
            CloudChange::Offline => {
                if let Some(LinePermit { suppressed }) = self.peer_log.presence.permit_line() {
                    tracing::warn!(suppressed, "cloud side offline");
                }
                self.machine.cloud_gone(self.now());
            }
            CloudChange::Returned => {
                if let Some(LinePermit { suppressed }) = self.peer_log.presence.permit_line() {
                    tracing::info!(suppressed, "cloud side online");
                }
                self.machine.cloud_returned(self.now(), random());
            }
        }
    }

    fn frame(&mut self, payload: &[u8]) {
        match Received::decode(payload, &mut Budget::of(self.settings.max_frame), self.settings.max_object) {
            Ok(frame) => {
                self.reporting.traffic.meter.frame(Direction::Down, frame.name(), payload.len());
                self.machine.received(self.now(), frame, random());
            }
            Err(error) => self.unreadable(payload.len(), &error),
        }
    }

    /// Counts and reports a frame that cannot be decoded.
    fn unreadable(&mut self, bytes: usize, error: &FrameError) {
        let count = self.statistics.count_bad_frame(error.label());
        if error.is_of_another_version() && count > 1 {
            tracing::debug!(bytes, %error, "frame of another protocol version");
        } else if let Some(LinePermit { suppressed }) = self.peer_log.frames.permit_line() {
            tracing::warn!(bytes, %error, suppressed, "invalid frame");
        }
        if let FrameError::Protocol { found, .. } = error {
            let behind = if *found > PROTOCOL { "agent" } else { "cloud side" };
            self.connection.refusal = Some(format!(
                "the cloud side speaks protocol {found}, this agent {PROTOCOL}: update the {behind}"
            ));
        }
    }

    /// Sends one frame if there is one. Returns whether the link accepted it.
    pub(in crate::agent::driver) fn send_frame(&mut self) -> bool {
        let Wire::Mqtt(topics) = &self.wire else { return false };
        if !self.machine.has_frame() {
            return false;
        }
        let topic = topics.up(&self.settings.node);
        let Some(frame) = self.machine.poll_frame(self.now()) else { return false };
        match frame.encode(self.settings.compress_above) {
            Ok(bytes) => {
                trace_frame(&frame, bytes.len());
                self.publish(PendingMessage { name: frame.name(), topic, bytes })
            }
            Err(error) => {
                tracing::error!(frame = frame.name(), %error, "frame not encoded");
                true
            }
        }
    }

    /// Passes the link's backlog to the machine. A waiting message counts as one more frame.
    pub(in crate::agent::driver) fn update_progress(&mut self) {
        if !matches!(self.wire, Wire::Mqtt(_)) {
            return;
        }
        let Backlog { unsent, unacknowledged } = self.link.backlog();
        let waiting = u64::from(self.connection.is_waiting());
        self.machine.link_progress(self.now(), unsent + waiting, unacknowledged + waiting);
    }
}
