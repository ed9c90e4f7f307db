//! Traffic between the node and the cloud, in bytes and messages.

use serde::{Deserialize, Serialize};

use super::MeteredStatus;
use crate::answer::Answer;

/// A direction, as seen from the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    Up,
    Down,
}

impl Direction {
    /// Both directions, up first.
    pub const ALL: [Self; 2] = [Self::Up, Self::Down];

    /// Returns the name used in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Date of `today`, in UTC.
    pub day: String,
    pub today: TrafficSpan,
    pub total: TrafficSince,
    /// Limits for metered links; absent if none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metered: Option<MeteredStatus>,
}

impl Answer for Traffic {
    const NAME: &'static str = "agent traffic";
}

/// Traffic since a point in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficSince {
    pub since: String,
    #[serde(flatten)]
    pub span: TrafficSpan,
}

/// Traffic over a period. Rows without messages are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficSpan {
    /// TCP bytes to the cloud.
    pub bytes_up: u64,
    /// TCP bytes from the cloud.
    pub bytes_down: u64,
    /// TCP bytes outside of frames: MQTT headers, acknowledgements and pings.
    pub transport_bytes: u64,
    pub frames: Vec<FrameTraffic>,
    pub kinds: Vec<KindTraffic>,
}

/// Traffic of one frame type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameTraffic {
    pub direction: Direction,
    #[serde(rename = "type")]
    pub frame: String,
    pub messages: u64,
    pub bytes: u64,
}

/// Traffic of one kind of object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindTraffic {
    pub direction: Direction,
    /// Kind with its group: `ConfigMap`, `Deployment.apps`.
    pub kind: String,
    pub objects: u64,
    /// Length of their JSON in bytes, without the framing.
    pub bytes: u64,
}
