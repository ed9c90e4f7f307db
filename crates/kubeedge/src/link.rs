//! The WebSocket to a CloudCore of KubeEdge: opaque text over one connection that is made again whenever it is lost.
//!
//! It promises as little as the MQTT client and is used the same way: what is published with the topic [`TEXT`] goes out
//! as a TEXT message, with [`PING`] as a ping; messages that arrive are handed on under [`TEXT`], pongs under [`PONG`].
//! Only this module and those below it name `tokio-tungstenite`.
//!
//! Nothing is acknowledged here: a shutdown is told that everything arrived when the peer answered the close frame
//! behind it, and otherwise only the layer above knows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

mod connect;
mod evictions;
mod session;
mod socket;

use connect::WebSocket;
use edgesync_transport::link::handle::{self, Shared};
use edgesync_transport::link::queue::Limits;
use edgesync_transport::link::stream::Target;
use edgesync_transport::link::task::{self, End, Protocol, Task};
use edgesync_transport::link::{Cause, ConnectionId, LinkEvent, LinkHandle, RetryOptions};
use evictions::Evictions;

/// The topic of messages in both directions. Those sent must be UTF-8.
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
    pub tls: Option<edgesync_transport::tls::Client>,
    /// How often a ping is sent, at least every 100 ms. A peer that has answered one before and of which nothing is
    /// heard for two of these is dead.
    pub keepalive: Duration,
    /// The limit for name resolution, TCP, TLS and the upgrade together.
    pub connect_timeout: Duration,
    /// The largest message taken, in bytes, however it is fragmented; at least 1,024. Also a limit for what is sent.
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

impl KubeEdgeOptions {
    fn in_range(mut self) -> Self {
        self.keepalive = self.keepalive.clamp(Duration::from_millis(100), Duration::from_secs(7200));
        self.max_message = self.max_message.clamp(1024, 1 << 30);
        self.queue = self.queue.max(1);
        self.events = self.events.max(1);
        self
    }

    fn target(&self) -> Target<'_> {
        Target { host: &self.host, port: self.port, tls: self.tls.as_ref(), within: self.connect_timeout }
    }

    fn max_packet(&self) -> u32 {
        u32::try_from(self.max_message).unwrap_or(u32::MAX)
    }
}

/// Starts the task, on the current tokio runtime, that owns the connection to a CloudCore.
#[must_use]
pub fn spawn(options: KubeEdgeOptions) -> (LinkHandle, mpsc::Receiver<LinkEvent>) {
    let options = options.in_range();
    let (events, receiver) = mpsc::channel(options.events);
    let limits = Limits { messages: options.queue, bytes: options.queue_bytes };
    let (handle, shared, commands) = handle::new(limits, options.max_packet());
    let retry = options.retry;
    tokio::spawn(task::run(KubeEdge::new(options), retry, shared, commands, events));
    (handle, receiver)
}

/// What is kept from one connection to the next.
struct KubeEdge {
    options: KubeEdgeOptions,
    /// Whether the peer has ever answered a ping; if so, silence means that it is dead.
    answers: bool,
    evictions: Evictions,
}

impl KubeEdge {
    fn new(options: KubeEdgeOptions) -> Self {
        Self { options, answers: false, evictions: Evictions::default() }
    }
}

impl Protocol for KubeEdge {
    type Made = WebSocket;

    fn target(&self) -> Target<'_> {
        self.options.target()
    }

    async fn establish(
        &mut self,
        _connection: ConnectionId,
        shared: &Arc<Shared>,
    ) -> Result<Self::Made, Cause> {
        connect::establish(&self.options, shared).await
    }

    fn max_packet(&self, _made: &Self::Made) -> u32 {
        self.options.max_packet()
    }

    async fn run(task: &mut Task<Self>, made: Self::Made, first: LinkEvent) -> End {
        session::Session::new(task, made, first).run().await
    }

    fn explain(&mut self, cause: Cause, was_connected: bool) -> Cause {
        match cause {
            // The way CloudCore throws out the older of two sessions of one node.
            Cause::Closed if was_connected => {
                if self.evictions.closed(Instant::now()) {
                    return Cause::TakenOver { client_id: self.options.node.clone() };
                }
            }
            _ => self.evictions.otherwise(),
        }
        cause
    }
}
