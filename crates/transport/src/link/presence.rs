//! The retained messages by which nodes and cloud see each other come and go.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::link::{Introduce, Introduction, Publish, Topics};

/// What a node retains on its `presence` topic. Its will is the same with `online: false`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// The MQTT connection: the will of an old one does not put out the new one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub connection: String,
    /// Whether the node is there.
    pub online: bool,
}

/// What the cloud retains on the `cloud` topic. Its will is `online: false`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudPresence {
    /// New with each start of the cloud, and with each of its connections to an external broker: nodes
    /// that see it change say Hello again.
    pub boot: String,
    /// Whether the cloud is there.
    pub online: bool,
}

impl Presence {
    /// The length of the greeting in bytes.
    pub const ONLINE_BYTES: usize = r#"{"connection":"01234567","online":true}"#.len();

    /// Greeting and will of a node, for each connection anew.
    pub fn introduce(topics: Topics, node: String) -> Introduce {
        Arc::new(move |connection| {
            let id = connection.simple().to_string();
            let publish = |online| Publish {
                topic: topics.presence(&node),
                payload: Presence { connection: id[..8].to_owned(), online }.to_json(),
                retain: true,
            };
            Introduction { will: Some(publish(false)), greetings: vec![publish(true)] }
        })
    }

    /// What a node that stops leaves behind.
    pub fn farewell(topics: &Topics, node: &str) -> Publish {
        let payload = Presence { connection: String::new(), online: false }.to_json();
        Publish { topic: topics.presence(node), payload, retain: true }
    }

    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl CloudPresence {
    /// The message as JSON.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fenced blocks of one kind in the description of the protocol.
    fn examples(kind: &str) -> Vec<&'static str> {
        let document = include_str!("../../../../docs/protocol.md");
        let opening = format!("```json {kind}\n");
        document.split(opening.as_str()).skip(1).filter_map(|block| block.split("\n```").next()).collect()
    }

    #[test]
    fn the_documented_messages_are_the_ones_that_are_written() {
        let (node, cloud) = (examples("presence"), examples("cloud"));
        assert_eq!((node.len(), cloud.len()), (3, 2));
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
