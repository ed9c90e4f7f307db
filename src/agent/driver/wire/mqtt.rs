//! The MQTT link: frames of the sync protocol on the node's topics, and the presence of the cloud.

use super::{PendingMessage, Step, trace_frame};
use crate::agent::driver::Settings;
use crate::agent::driver::connection::{CloudChange, Connection};
use crate::agent::driver::peer_log::PeerLog;
use edgesync_object::Budget;
use edgesync_protocol::edge::EdgeMachine;
use edgesync_protocol::frame::{FrameError, PROTOCOL, Received};
use edgesync_protocol::timing::Now;
use edgesync_transport::admission::LinePermit;
use edgesync_transport::link::Topics;
use edgesync_transport::link::presence::CloudPresence;

/// Records the presence of the cloud. An invalid one changes nothing.
pub(super) fn presence_received(
    payload: &[u8],
    connection: &mut Connection,
    peer_log: &PeerLog,
) -> CloudChange {
    let presence = match serde_json::from_slice::<CloudPresence>(payload) {
        Ok(presence) => presence,
        Err(error) => {
            if let Some(LinePermit { suppressed }) = peer_log.presence.permit_line() {
                tracing::warn!(%error, suppressed, "invalid presence of the cloud side");
            }
            return CloudChange::Unchanged;
        }
    };
    let change = connection.observe_cloud(presence);
    match change {
        CloudChange::Unchanged => {}
        CloudChange::Offline => {
            if let Some(LinePermit { suppressed }) = peer_log.presence.permit_line() {
                tracing::warn!(suppressed, "cloud side offline");
            }
        }
        CloudChange::Returned => {
            if let Some(LinePermit { suppressed }) = peer_log.presence.permit_line() {
                tracing::info!(suppressed, "cloud side online");
            }
        }
    }
    change
}

/// Decodes a frame within the configured limits.
///
/// # Errors
/// Fails if the frame is invalid or of another protocol version.
pub(super) fn decode(payload: &[u8], settings: &Settings) -> Result<Received, FrameError> {
    Received::decode(payload, &mut Budget::of(settings.max_frame), settings.max_object)
}

/// Logs a frame of so many bytes that cannot be decoded; `count` is the number of frames with the
/// same error. Returns why the cloud side refuses this node if the frame shows it.
pub(super) fn unreadable(bytes: usize, error: &FrameError, count: u64, peer_log: &PeerLog) -> Option<String> {
    if error.is_of_another_version() && count > 1 {
        tracing::debug!(bytes, %error, "frame of another protocol version");
    } else if let Some(LinePermit { suppressed }) = peer_log.frames.permit_line() {
        tracing::warn!(bytes, %error, suppressed, "invalid frame");
    }
    let FrameError::Protocol { found, .. } = error else { return None };
    let behind = if *found > PROTOCOL { "agent" } else { "cloud side" };
    Some(format!("the cloud side speaks protocol {found}, this agent {PROTOCOL}; hint: update the {behind}"))
}

/// Takes one frame from the machine, encoded for the node's topic.
pub(super) fn step(topics: &Topics, machine: &mut EdgeMachine, now: Now, settings: &Settings) -> Step {
    if !machine.has_frame() {
        return Step::Idle;
    }
    let Some(frame) = machine.poll_frame(now) else { return Step::Idle };
    match frame.encode(settings.compress_above) {
        Ok(bytes) => {
            trace_frame(&frame, bytes.len());
            Step::Publish(PendingMessage { name: frame.name(), topic: topics.up(&settings.node), bytes })
        }
        Err(error) => {
            tracing::error!(frame = frame.name(), %error, "frame not encoded");
            Step::Done
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_presence_changes_nothing() {
        let (mut connection, peer_log) = (Connection::default(), PeerLog::default());
        let mut receive = |payload: &str| presence_received(payload.as_bytes(), &mut connection, &peer_log);
        assert_eq!(receive(r#"{"boot":"a","online":true}"#), CloudChange::Unchanged);
        assert_eq!(receive(r#"{"boot":"b"}"#), CloudChange::Unchanged);
        assert_eq!(receive(r#"{"boot":"a","online":true}"#), CloudChange::Unchanged);
        assert_eq!(receive(r#"{"boot":"b","online":true}"#), CloudChange::Returned);
        assert_eq!(receive(r#"{"boot":"b","online":false}"#), CloudChange::Offline);
    }
}
