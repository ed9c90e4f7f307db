//! The MQTT v5 client: opaque bytes over one connection that reconnects with backoff.
//!
//! The agent uses it, and the cloud side with an external broker. Its guarantees are few on
//! purpose: QoS 1, clean start, no session, nothing kept from one connection to the next. The
//! layers above confirm end to end what must not be lost; they get an event for every connection
//! and every loss.
//!
//! `edgesync-kubeedge` has the other client, a WebSocket to a CloudCore, over the same [`task`],
//! [`handle`] and [`queue`].
//!
//! One task owns the connection and blocks on nothing else. Publishes go through a queue bounded in
//! messages and bytes ([`LinkHandle::try_publish`] reports when it is full). While the receiver of
//! [`LinkEvent`] is slow the task stops reading, so that TCP slows the broker down.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

mod cause;
pub mod compact;
pub mod counted;
pub mod counters;
pub mod handle;
mod mqtt;
mod order;
pub mod presence;
pub mod queue;
pub mod retry;
pub mod stream;
pub mod task;
pub mod topic;

pub use cause::Cause;
pub use counters::add;
pub use counters::{Counters, Endings, Traffic};
pub use handle::packet_size;
pub use handle::{Backlog, LinkHandle, PublishError};
pub use retry::RetryOptions;
pub use topic::{Topic, Topics};

pub use mqtt::wire;

use crate::dial::Dialer;
use crate::proxy::authority;
use compact::CompactTopics;
use queue::Limits;
use stream::{Carries, Target};
use tokio::sync::mpsc;
use uuid::Uuid;

/// The largest number of unacknowledged publishes: rumqttc keeps a table of this size per
/// connection.
pub(crate) const MAX_INFLIGHT: u16 = 64;
/// The longest payload of a will, in bytes: its length field has two bytes.
pub(crate) const MAX_WILL: usize = 65_535;
/// The longest topic sent, in bytes.
pub(crate) const MAX_TOPIC: usize = 1024;

/// Identifies one connection attempt; part of the presence messages.
pub type ConnectionId = Uuid;

/// A message to publish with QoS 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    /// The topic, without wildcards.
    pub topic: String,
    /// Payload, opaque to the link.
    pub payload: Vec<u8>,
    /// Whether the broker keeps it for later subscribers.
    pub retain: bool,
}

/// Will and greetings of a client, created for each connection attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionIntro {
    /// Published by the broker when the connection ends without a DISCONNECT. At most 65,535 bytes.
    pub will: Option<Publish>,
    /// Published right after the subscriptions are granted, before anything else.
    pub greetings: Vec<Publish>,
}

/// Creates the session intro of an attempt.
pub type Introduce = Arc<dyn Fn(ConnectionId) -> SessionIntro + Send + Sync>;

/// One of the addresses at which a link finds its broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Whether the connection uses TLS, that of [`LinkOptions::tls`].
    pub tls: bool,
    /// Whether MQTT is carried in a WebSocket.
    pub websocket: bool,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.websocket, self.tls) {
            (false, false) => "mqtt",
            (false, true) => "mqtts",
            (true, false) => "ws",
            (true, true) => "wss",
        };
        write!(f, "{scheme}://{}", authority(&self.host, self.port))
    }
}

/// Options of a link. Values outside their range are clamped.
#[derive(Clone)]
pub struct LinkOptions {
    /// The addresses of the broker, at least one; the one that worked last is tried first.
    pub endpoints: Vec<Endpoint>,
    /// Opens the connections.
    pub dialer: Dialer,
    /// The MQTT client id; one client of a broker has it at a time.
    pub client_id: String,
    /// User name, if the broker requires one.
    pub username: Option<String>,
    /// Password, if the broker requires one.
    pub password: Option<String>,
    /// TLS client for the endpoints that use it. New connections use a replaced identity.
    pub tls: Option<crate::tls::Client>,
    /// Limit for the silence of the peer, at least 2 s. The client sends a packet at least every
    /// half of it. Each received byte counts as a sign of life, so a slow packet may take longer.
    pub keepalive: Duration,
    /// The limit for name resolution, TCP, TLS, CONNACK and SUBACK together.
    pub connect_timeout: Duration,
    /// The largest packet accepted from the broker, in bytes, at least 1,024; also a limit for sent
    /// packets.
    pub max_packet: u32,
    /// Publishes without a PUBACK at a time, 1 to 64; the broker's limit counts if smaller.
    pub inflight: u16,
    /// Topic filters; each must be granted before [`LinkEvent::Connected`].
    pub subscriptions: Vec<String>,
    /// Presence topic: retained, and written by this client only. The link subscribes to it, and
    /// passes no message of it on, to detect another client with the same id, which mosquitto does
    /// not report.
    pub own_topic: Option<String>,
    /// Topics of the compact exchange that is offered to the embedded endpoint; none is offered
    /// without them. The alias of `up` is also used with other brokers that permit it.
    pub compact: Option<CompactTopics>,
    /// Makes will and greetings.
    pub introduce: Introduce,
    /// Backoff between attempts; a connection of [`RetryOptions::good_after`] resets it.
    pub retry: RetryOptions,
    /// Maximum number of queued messages, at least 1.
    pub queue: usize,
    /// Maximum size of the queued messages in bytes.
    pub queue_bytes: usize,
    /// Maximum number of queued events, at least 1.
    pub events: usize,
}

impl LinkOptions {
    /// Returns the options for one endpoint without TLS, with the defaults: 20 s keepalive, 10 s to
    /// connect, packets of 1 MiB, 64 in flight, 256 messages and 4 MiB queued, 256 events.
    #[must_use]
    pub fn new(host: &str, port: u16, client_id: &str) -> Self {
        Self {
            endpoints: vec![Endpoint { host: host.to_owned(), port, tls: false, websocket: false }],
            dialer: Dialer::default(),
            client_id: client_id.to_owned(),
            username: None,
            password: None,
            tls: None,
            keepalive: Duration::from_secs(20),
            connect_timeout: Duration::from_secs(10),
            max_packet: 1 << 20,
            inflight: MAX_INFLIGHT,
            subscriptions: Vec::new(),
            own_topic: None,
            compact: None,
            introduce: Arc::new(|_| SessionIntro::default()),
            retry: RetryOptions::default(),
            queue: 256,
            queue_bytes: 4 << 20,
            events: 256,
        }
    }

    /// Uses TLS for all endpoints.
    pub fn secure(&mut self, tls: crate::tls::Client) {
        self.tls = Some(tls);
        for endpoint in &mut self.endpoints {
            endpoint.tls = true;
        }
    }

    fn in_range(mut self) -> Self {
        self.keepalive = self.keepalive.clamp(Duration::from_secs(2), Duration::from_secs(7200));
        self.max_packet = self.max_packet.clamp(1024, 268_435_455);
        self.inflight = self.inflight.clamp(1, MAX_INFLIGHT);
        self.queue = self.queue.max(1);
        self.events = self.events.max(1);
        self
    }

    /// Returns the endpoint at a position; an empty one if there is none.
    fn endpoint(&self, position: usize) -> &Endpoint {
        const NONE: &Endpoint = &Endpoint { host: String::new(), port: 0, tls: false, websocket: false };
        self.endpoints.get(position).unwrap_or(NONE)
    }

    /// Returns the position of the endpoint that worked last.
    fn preferred(&self) -> usize {
        self.dialer.last_good().position(self.endpoints.iter().map(Endpoint::to_string))
    }

    fn target(&self, position: usize) -> Target<'_> {
        let endpoint = self.endpoint(position);
        Target {
            host: &endpoint.host,
            port: endpoint.port,
            tls: self.tls.as_ref().filter(|_| endpoint.tls),
            carries: if endpoint.websocket { Carries::MqttOverWebSocket } else { Carries::Mqtt },
            is_one_of_several: self.endpoints.len() > 1,
            within: self.connect_timeout,
            dialer: &self.dialer,
        }
    }
}

impl fmt::Debug for LinkOptions {
    /// Omits the password, which must not get into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkOptions")
            .field("endpoints", &self.endpoints)
            .field("dialer", &self.dialer)
            .field("client_id", &self.client_id)
            .field("username", &self.username)
            .field("keepalive", &self.keepalive)
            .field("max_packet", &self.max_packet)
            .field("subscriptions", &self.subscriptions)
            .finish_non_exhaustive()
    }
}

/// Events of a link, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The broker accepted the client and granted every subscription; the greetings are being sent.
    Connected {
        /// Id of this connection.
        connection: ConnectionId,
        /// The largest packet both sides take, in bytes, header and topic included.
        max_packet: u32,
        /// Whether the exchange is [compact]: the broker is the endpoint of the cloud side, and the
        /// greetings were not needed.
        is_compact: bool,
    },
    /// A message for one of the subscriptions. It was acknowledged when this event was queued.
    Message {
        /// Topic of the message.
        topic: String,
        /// Payload of the message.
        payload: Vec<u8>,
        /// Whether it is the retained message of its topic.
        retain: bool,
    },
    /// The broker rejected a message.
    Rejected {
        /// Topic of the rejected message.
        topic: String,
        /// The MQTT reason code.
        code: u8,
        /// Meaning of the reason code.
        reason: String,
    },
    /// There is no connection: an attempt failed, or the connection ended. Queued messages are
    /// discarded.
    Disconnected {
        /// Cause of the failure or loss.
        cause: Cause,
        /// Time until the next attempt.
        retry_in: Duration,
    },
}

/// Starts a link; it tries until it is shut down or the receiver is dropped.
pub struct Link;

impl Link {
    /// Starts the task, on the current tokio runtime, that owns the connection.
    #[must_use]
    pub fn spawn(options: LinkOptions) -> (LinkHandle, mpsc::Receiver<LinkEvent>) {
        let options = options.in_range();
        let (events, receiver) = mpsc::channel(options.events);
        let limits = Limits { messages: options.queue, bytes: options.queue_bytes };
        let (handle, shared, commands) = handle::new(limits, options.max_packet);
        let retry = options.retry;
        tokio::spawn(task::run(mqtt::Mqtt::new(options), retry, shared, commands, events));
        (handle, receiver)
    }
}
