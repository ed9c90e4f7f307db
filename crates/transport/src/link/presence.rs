//! Presence: retained messages by which nodes and cloud announce connection and loss.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::link::{Introduce, Publish, SessionIntro, Topics};

/// Retained message on a node's `presence` topic. Its will is the same with `online: false`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// Id of the MQTT connection: a late will of an older connection does not override the newer
    /// one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub connection: String,
    /// Whether the node is connected.
    pub online: bool,
    /// Whether the node has disconnected as its last Lease announced.
    #[serde(default, skip_serializing_if = "is_false")]
    pub planned: bool,
}

// serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !*value
}

/// Retained message on the `cloud` topic. Its will has `online: false`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudPresence {
    /// Changes with each start of the cloud side, and with each of its connections to an external
    /// broker: nodes that observe a change send Hello again.
    pub boot: String,
    /// Whether the cloud side is connected.
    pub online: bool,
}

impl Presence {
    /// Length of the greeting in bytes.
    pub const ONLINE_BYTES: usize = r#"{"connection":"01234567","online":true}"#.len();

    /// Returns the factory of a node's greeting and will, called for each connection.
    pub fn introduce(topics: Topics, node: String) -> Introduce {
        Arc::new(move |connection| {
            let id = connection.simple().to_string();
            let publish = |online| Publish {
                topic: topics.presence(&node),
                payload: Presence { connection: id[..8].to_owned(), online, planned: false }.to_json(),
                retain: true,
            };
            SessionIntro { will: Some(publish(false)), greetings: vec![publish(true)] }
        })
    }

    /// Returns the message that a stopping node leaves retained.
    pub fn farewell(topics: &Topics, node: &str) -> Publish {
        Self::absent(topics, node, false)
    }

    /// Returns the message that a node leaves retained while it is absent as planned.
    pub fn absence(topics: &Topics, node: &str) -> Publish {
        Self::absent(topics, node, true)
    }

    fn absent(topics: &Topics, node: &str, planned: bool) -> Publish {
        let payload = Presence { connection: String::new(), online: false, planned }.to_json();
        Publish { topic: topics.presence(node), payload, retain: true }
    }

    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl CloudPresence {
    /// Encodes the message as JSON.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the fenced blocks of one kind in the description of the protocol.
    fn examples(kind: &str) -> Vec<&'static str> {
        let document = include_str!("../../../../docs/protocol.md");
        let opening = format!("```json {kind}\n");
        document.split(opening.as_str()).skip(1).filter_map(|block| block.split("\n```").next()).collect()
    }

    #[test]
    fn presence_messages_match_the_documentation() {
        let (node, cloud) = (examples("presence"), examples("cloud"));
        assert_eq!((node.len(), cloud.len()), (4, 2));
        for example in node {
            let presence: Presence = serde_json::from_str(example).unwrap();
            assert_eq!(presence.to_json(), example.as_bytes());
        }
        for example in cloud {
            let presence: CloudPresence = serde_json::from_str(example).unwrap();
            assert_eq!(presence.to_json(), example.as_bytes());
        }
    }
}
