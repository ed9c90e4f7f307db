//! The MQTT v5 endpoint that is embedded in the cloud side, so that a fleet needs no broker. It does not know the sync
//! protocol: payloads are opaque, and a client may publish only to its own `up` and `presence` topics and receives only its
//! own subtree and `cloud`. Read [`Broker`] first; `docs/decisions/0001-embedded-endpoint.md` says why it exists.
//!
//! Any MQTT v5 client can connect, with QoS 0 or 1.
//!
//! # Limits
//! One task per connection, with a read buffer up to the packet limit and a queue bounded in messages and bytes. A client
//! that does not read, acknowledge or send keepalives is disconnected; none delays another. While the receiver of
//! [`FleetEvents`] is slow, or a client exceeds its rate, its socket is not read and its publishes are not acknowledged.

use std::net::SocketAddr;
use std::time::Duration;

mod accept;
mod access;
mod client;
mod counters;
mod downlink;
mod handshake;
mod hub;
mod inflow;
mod registry;
mod wire;

pub use accept::{BindError, Broker};
pub use counters::BrokerTraffic;
pub use downlink::{Downlink, External, external};
pub use inflow::FleetEvents;
#[cfg(any(test, feature = "testing"))]
pub use inflow::{TestEvents, test_events};

use edgesync_object::NodeName;
use edgesync_transport::link::Cause;
use edgesync_transport::link::topic::Topics;

/// What the endpoint keeps to.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// The topics it serves.
    pub topics: Topics,
    /// TLS with client certificates; none for plain TCP, on loopback only. With it the certificate's node is the node,
    /// whatever the client says, and a user name or client id that names another one is refused.
    pub tls: Option<edgesync_transport::tls::Server>,
    /// Nodes that are connected at a time.
    pub max_connections: usize,
    /// Connections at a time that have not said which node they are; one address has a quarter of them.
    pub max_strangers: usize,
    /// The largest packet in either direction, in bytes, 1,024 or more; a client may ask for less.
    pub max_packet: u32,
    /// Messages that wait for one node.
    pub queue: usize,
    /// Bytes that wait for one node.
    pub queue_bytes: usize,
    /// Messages sent to a node and not acknowledged; a client may ask for less.
    pub inflight: u16,
    /// The longest time a client may be silent, in whole seconds: it replaces a keep-alive of 0 or a larger
    /// one. MQTT adds half of it.
    pub max_keepalive: Duration,
    /// Who reads fewer bytes a second is taken for one who does not read.
    pub slowest: u32,
    /// How long a new connection may take until its CONNECT is complete, the handshake of TLS included.
    pub connect_timeout: Duration,
    /// The longest payload kept per retained topic, in bytes.
    pub max_retained_bytes: usize,
    /// Nodes whose presence is kept.
    pub max_retained: usize,
    /// Events that wait to be taken.
    pub events: usize,
    /// Over how long the good-byes of a shutdown are spread at most, so that nodes do not all come to somebody else in one
    /// moment: a millisecond for each node.
    pub farewells: Duration,
}

impl Default for BrokerOptions {
    /// 20,000 connections, packets of 1 MiB, 256 messages and 4 MiB queued per node.
    fn default() -> Self {
        Self {
            topics: Topics::default(),
            tls: None,
            max_connections: 20_000,
            max_strangers: 1024,
            max_packet: 1 << 20,
            queue: 256,
            queue_bytes: 4 << 20,
            inflight: 64,
            max_keepalive: Duration::from_secs(60),
            slowest: 1024,
            connect_timeout: Duration::from_secs(10),
            max_retained_bytes: 4096,
            max_retained: 50_000,
            events: 1024,
            farewells: Duration::ZERO,
        }
    }
}

impl BrokerOptions {
    fn in_range(mut self) -> Self {
        self.max_packet = self.max_packet.clamp(1024, 268_435_455);
        self.max_connections = self.max_connections.clamp(1, 1 << 20);
        self.max_strangers = self.max_strangers.max(1);
        self.queue = self.queue.max(1);
        self.inflight = self.inflight.max(1);
        self.slowest = self.slowest.max(1);
        self.max_keepalive = Duration::from_secs(self.max_keepalive.as_secs().clamp(1, 65_535));
        self.events = self.events.max(1);
        self
    }
}

/// Whether only this machine can reach the address. Without certificates the endpoint must not listen on
/// any other.
#[must_use]
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Which of a node's topics a message came on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// `up`: the protocol.
    Up,
    /// `presence`: online or offline.
    Presence,
}

/// What happens between the cloud and its nodes, whatever carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetEvent {
    /// Nodes can be reached: once at the start for the endpoint, on every connection of an external
    /// broker. After it, what was sent before must be taken for lost.
    Open {
        /// The largest packet our side of the way takes, in bytes.
        max_packet: u32,
    },
    /// No node can be reached: the connection to the external broker is lost.
    Closed {
        /// Why.
        cause: Cause,
        /// When it is tried again.
        retry_in: Duration,
    },
    /// A node has connected. Only the endpoint sees this; with an external broker there is only presence.
    NodeConnected {
        /// Its name.
        node: NodeName,
        /// Counts the endpoint's connections.
        connection: u64,
        /// The largest packet the node takes, in bytes.
        max_packet: u32,
    },
    /// A node has sent something.
    Message {
        /// The node that sent it; the endpoint, or the broker's access rules, vouch for that.
        node: NodeName,
        /// On which of its topics.
        channel: Channel,
        /// The bytes.
        payload: Vec<u8>,
    },
    /// A node's connection has ended. Comes before the `NodeConnected` of the one that replaces it.
    NodeDisconnected {
        /// Its name.
        node: NodeName,
        /// The number from `NodeConnected`.
        connection: u64,
        /// Why.
        why: Departure,
    },
}

/// Why a node's connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Departure {
    /// It said good-bye.
    #[error("it disconnected")]
    Farewell,
    /// TCP ended without a DISCONNECT.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// Nothing came for one and a half of its keep-alive.
    #[error("nothing was heard for {0:?}")]
    Silent(Duration),
    /// It did not read, or did not acknowledge, what was sent to it.
    #[error("it took nothing for {0:?}")]
    NotReading(Duration),
    /// A newer connection has the same name.
    #[error("a newer connection of the same node took over")]
    TakenOver,
    /// It broke the protocol.
    #[error("it broke the protocol: {0}")]
    Protocol(String),
    /// It exceeded a limit.
    #[error("it exceeded a limit: {0}")]
    Limit(String),
    /// Its certificate has ended.
    #[error("its certificate has expired")]
    Expired,
    /// Its certificate was revoked, see [`Broker::disconnect`].
    #[error("its certificate was revoked")]
    Revoked,
    /// The endpoint is shutting down.
    #[error("the endpoint is shutting down")]
    ShuttingDown,
}
