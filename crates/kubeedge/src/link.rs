//! The WebSocket link to CloudCore: opaque text over one connection that reconnects after every
//! loss.
//!
//! It has the interface and guarantees of the MQTT client: a publish to the topic [`TEXT`] is sent
//! as a TEXT message, one to [`PING`] as a ping; received messages arrive under [`TEXT`], pongs
//! under [`PONG`]. Only this module and its submodules use `tokio-tungstenite`.
//!
//! The link acknowledges nothing. A shutdown counts as delivered when the peer has answered the
//! close frame; otherwise only the layer above knows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

mod connect;
mod evictions;
mod session;
mod socket;

use connect::WebSocket;
use edgesync_transport::dial::Dialer;
use edgesync_transport::link::handle::{self, Shared};
use edgesync_transport::link::queue::Limits;
use edgesync_transport::link::stream::{Carries, Target};
use edgesync_transport::link::task::{self, End, Protocol, Task};
use edgesync_transport::link::{Cause, ConnectionId, LinkEvent, LinkHandle, RetryOptions};
use evictions::Evictions;

/// The topic of messages in both directions. Sent ones must be UTF-8.
pub const TEXT: &str = "text";
/// The topic of pings; the pong returns the payload of at most 125 bytes.
pub const PING: &str = "ping";
/// The topic of received pongs.
pub const PONG: &str = "pong";

/// The address of CloudCore and the limits of the link. Values outside their range are clamped.
#[derive(Clone)]
pub struct KubeEdgeOptions {
    /// The host name or address of CloudCore.
    pub host: String,
    /// The port of CloudCore's WebSocket.
    pub port: u16,
    /// The project in the path; CloudCore's default is `e632aba927ea4ac2b575ec1603d56f10`.
    pub project: String,
    /// The name of the node, used in path and header.
    pub node: String,
    /// TLS with the certificate of the node. `None` means plain TCP, for tests: CloudCore never
    /// accepts it.
    pub tls: Option<edgesync_transport::tls::Client>,
    /// The ping interval, at least 100 ms. A peer that has answered a ping before counts as dead
    /// after two silent intervals.
    pub keepalive: Duration,
    /// Opens the connections.
    pub dialer: Dialer,
    /// The timeout of name resolution, TCP, TLS and the upgrade together.
    pub connect_timeout: Duration,
    /// The largest received message in bytes, however it is fragmented; at least 1,024. Also limits
    /// sent messages.
    pub max_message: usize,
    /// The delays between connection attempts.
    pub retry: RetryOptions,
    /// The most queued messages, at least 1.
    pub queue: usize,
    /// The most queued bytes.
    pub queue_bytes: usize,
    /// The most events that wait for the owner, at least 1.
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
        Target {
            host: &self.host,
            port: self.port,
            tls: self.tls.as_ref(),
            carries: Carries::Http,
            is_one_of_several: false,
            within: self.connect_timeout,
            dialer: &self.dialer,
        }
    }

    fn max_packet(&self) -> u32 {
        u32::try_from(self.max_message).unwrap_or(u32::MAX)
    }
}

/// Starts the task that owns the connection to a CloudCore, on the current tokio runtime.
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

/// The state that outlives a connection.
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
            // CloudCore closes the older of two sessions of one node like this.
            Cause::Closed if was_connected => {
                if self.evictions.closed(Instant::now()) {
                    return Cause::TakenOver { client_id: self.options.node.clone() };
                }
            }
            _ => self.evictions.reset(),
        }
        cause
    }
}
