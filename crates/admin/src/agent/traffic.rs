//! Bytes and messages between the node and the cloud.

use serde::{Deserialize, Serialize};

use crate::answer::Answer;

/// A direction, seen from the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// To the cloud.
    Up,
    /// From the cloud.
    Down,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Up, Self::Down];

    /// The name, as in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// The traffic of the link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// The date of `today`, in UTC.
    pub day: String,
    pub today: TrafficSpan,
    pub total: TrafficSince,
}

impl Answer for Traffic {
    const NAME: &'static str = "the agent's traffic";
}

/// Traffic since a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficSince {
    pub since: String,
    #[serde(flatten)]
    pub span: TrafficSpan,
}

/// Traffic of a span of time. Rows without a message are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficSpan {
    /// Bytes of TCP to the cloud.
    pub bytes_up: u64,
    /// Bytes of TCP from the cloud.
    pub bytes_down: u64,
    /// What of both is in no frame: MQTT's own bytes, acknowledgements and pings.
    pub transport_bytes: u64,
    pub frames: Vec<FrameTraffic>,
    pub kinds: Vec<KindTraffic>,
}

/// Frames of one type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameTraffic {
    pub direction: Direction,
    #[serde(rename = "type")]
    pub frame: String,
    pub messages: u64,
    pub bytes: u64,
}

/// Objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindTraffic {
    pub direction: Direction,
    /// `ConfigMap`, `Deployment.apps`.
    pub kind: String,
    pub objects: u64,
    /// Bytes of JSON.
    pub bytes: u64,
}
