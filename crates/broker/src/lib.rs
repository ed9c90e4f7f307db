//! The MQTT v5 endpoint embedded in the cloud side, so that a fleet needs no broker. It is
//! independent of the sync protocol: payloads are opaque. A client may publish only to its own `up`
//! and `presence` topics, and receives only its own subtree and `cloud`. Read [`Broker`] first;
//! `docs/decisions/0001-embedded-endpoint.md` gives the reasons.
//!
//! Any MQTT v5 client can connect, with QoS 0 or 1.
//!
//! # Limits
//! One task per connection, with a read buffer up to the packet limit and a queue bounded in
//! messages and bytes. A client that does not read, acknowledge or send keepalives is disconnected;
//! none delays another. While the receiver of [`FleetEvents`] is slow, or a client exceeds its
//! rate, its socket is not read and its publishes are not acknowledged.

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
mod node_queues;
mod registry;
mod stream;

pub use accept::{BindError, Broker, SharedSource};
pub use counters::BrokerTraffic;
pub use downlink::{Downlink, External, external};
pub use inflow::FleetEvents;
#[cfg(any(test, feature = "testing"))]
pub use inflow::{TestEvents, test_events};

use edgesync_object::NodeName;
use edgesync_transport::link::Cause;
use edgesync_transport::link::topic::Topics;

/// Options of the endpoint. Values outside their range are clamped.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// The topics to serve.
    pub topics: Topics,
    /// TLS with client certificates; none for plain TCP, on loopback only. With TLS the certificate
    /// alone names the node, and a user name or client id that names another one is refused.
    pub tls: Option<edgesync_transport::tls::Server>,
    /// Maximum number of connected nodes.
    pub max_connections: usize,
    /// Maximum number of connections that are not identified yet; one address gets a quarter of
    /// them.
    pub max_unauthenticated: usize,
    /// The largest packet in either direction, in bytes, 1,024 or more; a client may require less.
    pub max_packet: u32,
    /// Maximum number of messages queued for one node.
    pub queue: usize,
    /// Maximum size of the messages queued for one node, in bytes.
    pub queue_bytes: usize,
    /// Messages to a node in flight; a client may require less.
    pub inflight: u16,
    /// The longest silence of a client, in whole seconds: it replaces a keep-alive of 0 or a larger
    /// one. MQTT adds half of it.
    pub max_keepalive: Duration,
    /// Slowest read rate in bytes per second: a slower client is disconnected as not reading.
    pub slowest: u32,
    /// Time limit for a new connection until its CONNECT is complete, the TLS handshake included.
    pub connect_timeout: Duration,
    /// The longest payload kept per retained topic, in bytes.
    pub max_retained_bytes: usize,
    /// Maximum number of nodes whose presence is retained.
    pub max_retained: usize,
    /// Maximum number of queued events.
    pub events: usize,
    /// Longest time over which a shutdown spreads its DISCONNECTs, a millisecond per node, so that
    /// nodes do not all reconnect elsewhere at once.
    pub farewells: Duration,
}

impl Default for BrokerOptions {
    /// 20,000 connections, packets of 1 MiB, 256 messages and 4 MiB queued per node.
    fn default() -> Self {
        Self {
            topics: Topics::default(),
            tls: None,
            max_connections: 20_000,
            max_unauthenticated: 1024,
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
        self.max_unauthenticated = self.max_unauthenticated.max(1);
        self.queue = self.queue.max(1);
        self.inflight = self.inflight.max(1);
        self.slowest = self.slowest.max(1);
        self.max_keepalive = Duration::from_secs(self.max_keepalive.as_secs().clamp(1, 65_535));
        self.events = self.events.max(1);
        self
    }
}

/// Returns whether only this machine can reach the address. Without certificates the endpoint must
/// not listen on any other.
#[must_use]
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// The topic of a node that a message was published to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// `up`: frames of the sync protocol.
    Up,
    /// `presence`: online or offline.
    Presence,
}

/// Events between the cloud and its nodes, independent of the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetEvent {
    /// Nodes can be reached: once at the start for the endpoint, on every connection of an external
    /// broker. Messages sent before are lost.
    Open {
        /// The largest packet that this side accepts, in bytes.
        max_packet: u32,
    },
    /// No node can be reached: the connection to the external broker is lost.
    Closed {
        /// Cause of the failure or loss.
        cause: Cause,
        /// Time until the next attempt.
        retry_in: Duration,
    },
    /// A node has connected. Reported by the endpoint only; with an external broker there is only
    /// presence.
    NodeConnected {
        /// Name of the node.
        node: NodeName,
        /// Number of the connection, counted since the endpoint's start.
        connection: u64,
        /// The largest packet that the node accepts, in bytes.
        max_packet: u32,
    },
    /// A node has published a message.
    Message {
        /// The sender, authenticated by the endpoint or by the broker's access rules.
        node: NodeName,
        /// Topic of the message.
        channel: Channel,
        /// Payload of the message.
        payload: Vec<u8>,
    },
    /// A node's connection has ended. Precedes the `NodeConnected` of the connection that replaces
    /// it.
    NodeDisconnected {
        /// Name of the node.
        node: NodeName,
        /// Number of the connection, as in `NodeConnected`.
        connection: u64,
        /// Reason for the end.
        why: DisconnectReason,
    },
}

/// Reason why a node's connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DisconnectReason {
    /// The node sent a DISCONNECT without an error.
    #[error("disconnected by the client")]
    ByClient,
    /// TCP ended without a DISCONNECT.
    #[error("connection lost: {0}")]
    Lost(String),
    /// Nothing was received for one and a half of its keep-alive.
    #[error("keepalive timeout: nothing received for {0:?}")]
    Silent(Duration),
    /// The node did not read, or did not acknowledge, messages in time.
    #[error("client did not read or acknowledge for {0:?}")]
    NotReading(Duration),
    /// A newer connection has the same node name.
    #[error("session taken over by a newer connection")]
    TakenOver,
    /// The node violated MQTT v5.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The node exceeded a limit.
    #[error("limit exceeded: {0}")]
    Limit(String),
    /// The node's certificate has expired.
    #[error("certificate expired")]
    Expired,
    /// The node's certificate was revoked, see [`Broker::disconnect`].
    #[error("certificate revoked")]
    Revoked,
    /// The endpoint is shutting down.
    #[error("endpoint shutting down")]
    ShuttingDown,
}
