//! The WebSocket to a CloudCore of KubeEdge: opaque text over one connection that is made again whenever it is lost.
//!
//! It promises as little as the MQTT client and is used the same way: what is published with the topic [`TEXT`] goes out
//! as a TEXT message, with [`PING`] as a ping; messages that arrive are handed on under [`TEXT`], pongs under [`PONG`].
//! Only this module and those below it name `tokio-tungstenite`.

use std::time::Duration;

use tokio::sync::mpsc;

use super::{Link, LinkEvent, LinkHandle, RetryOptions};

/// The topic of messages in both directions.
pub const TEXT: &str = "text";
/// The topic of pings; the payload, at most 125 bytes, comes back in the pong.
pub const PING: &str = "ping";
/// The topic of pongs.
pub const PONG: &str = "pong";

/// How to connect and what to keep to. Values outside their range are brought into it.
#[derive(Clone)]
pub struct KubeEdgeOptions {
    /// Host name or address of CloudCore.
    pub host: String,
    /// The port of its WebSocket.
    pub port: u16,
    /// The project in the path; CloudCore's default is `e632aba927ea4ac2b575ec1603d56f10`.
    pub project: String,
    /// The name of the node, in path and header.
    pub node: String,
    /// TLS, with the certificate of the node; none for plain TCP, which CloudCore never takes: for tests.
    pub tls: Option<crate::tls::Client>,
    /// How often a ping is sent. A peer that has answered one before and of which nothing is heard for two of these is
    /// dead.
    pub keepalive: Duration,
    /// The limit for name resolution, TCP, TLS and the upgrade together.
    pub connect_timeout: Duration,
    /// The largest message taken, in bytes, however it is fragmented.
    pub max_message: usize,
    /// How long to wait between attempts.
    pub retry: RetryOptions,
    /// Messages that wait to be sent, at least 1.
    pub queue: usize,
    /// Bytes that wait to be sent.
    pub queue_bytes: usize,
    /// Events that wait to be taken, at least 1.
    pub events: usize,
}

impl Link {
    /// Starts the task, on the current tokio runtime, that owns the connection to a CloudCore.
    #[must_use]
    pub fn spawn_kubeedge(options: KubeEdgeOptions) -> (LinkHandle, mpsc::Receiver<LinkEvent>) {
        let _ = options;
        todo!()
    }
}
