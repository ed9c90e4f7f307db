//! The compact exchange with the embedded endpoint: fewer bytes for each connection and message.
//!
//! A client offers it by a user property of its CONNECT, and the endpoint accepts it by the same
//! property of the CONNACK. Other brokers ignore the offer, and everything is as MQTT defines it.
//! Then, on this connection:
//!
//! - `down` and `cloud` count as subscribed with QoS 1, without SUBSCRIBE and SUBACK. The message
//!   retained on `cloud` is sent only when it changes: the endpoint is a part of the cloud side.
//! - `up`, `down` and `cloud` have the topic aliases 1, 2 and 3 from the start.
//! - The first message of the client has QoS 0: the answer to it is its acknowledgement.
//! - The client neither publishes nor reads its presence, which the endpoint knows. After one
//!   compact connection to an address it sends no will there either.

use super::topic::Topics;

/// Alias of `up`, also with brokers that permit aliases.
pub const UP: u16 = 1;
/// Alias of `down`.
pub const DOWN: u16 = 2;
/// Alias of `cloud`.
pub const CLOUD: u16 = 3;
/// Name and value of the user property.
const PROPERTY: (&str, &str) = ("edgesync", "1");

/// The topics of a compact exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactTopics {
    /// From the client to the endpoint.
    pub up: String,
    down: String,
    cloud: String,
}

impl CompactTopics {
    /// Returns the topics of a node.
    #[must_use]
    pub fn new(topics: &Topics, node: &str) -> Self {
        Self { up: topics.up(node), down: topics.down(node), cloud: topics.cloud() }
    }

    /// Returns the topic with an alias.
    pub(super) fn topic(&self, alias: u16) -> Option<&str> {
        match alias {
            UP => Some(&self.up),
            DOWN => Some(&self.down),
            CLOUD => Some(&self.cloud),
            _ => None,
        }
    }
}

/// Returns the user property that offers or accepts the exchange.
#[must_use]
pub fn property() -> (String, String) {
    (PROPERTY.0.to_owned(), PROPERTY.1.to_owned())
}

/// Returns whether user properties offer or accept the exchange.
#[must_use]
pub fn is_in(properties: &[(String, String)]) -> bool {
    properties.iter().any(|(name, value)| (name.as_str(), value.as_str()) == PROPERTY)
}
