//! The MQTT v5 client: opaque bytes over one connection that reconnects with backoff.
//!
//! The agent uses it, and the cloud side with an external broker. Its guarantees are few on purpose: QoS 1, clean start, no
//! session, nothing kept from one connection to the next. Whatever must not be lost is confirmed end to end by the layers
//! above, which get an event for every connection and every loss.
//!
//! `edgesync-kubeedge` has the other client, a WebSocket to a CloudCore, over the same [`task`], [`handle`] and [`queue`].
//!
//! One task owns the connection and waits for nothing else. Publishes go through a queue that is bounded in messages and
//! bytes ([`LinkHandle::try_publish`] says when it is full); while the receiver of [`LinkEvent`] is slow the task stops
//! reading, so that TCP slows the broker down.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

mod cause;
pub mod counted;
pub mod counters;
pub mod handle;
mod mqtt;
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

use queue::Limits;
use stream::Target;
use tokio::sync::mpsc;
use uuid::Uuid;

/// The largest number of unacknowledged publishes: rumqttc keeps a table of this size per connection.
pub(crate) const MAX_INFLIGHT: u16 = 64;
/// The longest payload of a will, in bytes: its length field has two bytes.
pub(crate) const MAX_WILL: usize = 65_535;
/// The longest topic sent, in bytes.
pub(crate) const MAX_TOPIC: usize = 1024;

/// Names one connection attempt; it goes into the presence messages.
pub type ConnectionId = Uuid;

/// A message to publish with QoS 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    /// The topic, without wildcards.
    pub topic: String,
    /// The bytes.
    pub payload: Vec<u8>,
    /// Whether the broker keeps it for later subscribers.
    pub retain: bool,
}

/// What a client says when it connects, made anew for each attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Introduction {
    /// What the broker publishes when the connection ends without a farewell. At most 65,535 bytes.
    pub will: Option<Publish>,
    /// Published right after the subscriptions stand, before anything else.
    pub greetings: Vec<Publish>,
}

/// Makes the introduction for an attempt.
pub type Introduce = Arc<dyn Fn(ConnectionId) -> Introduction + Send + Sync>;

/// How to connect and what to keep to. Values outside their range are brought into it.
#[derive(Clone)]
pub struct LinkOptions {
    /// Host name or address of the broker.
    pub host: String,
    /// Its TCP port.
    pub port: u16,
    /// The MQTT client id; one client of a broker has it at a time.
    pub client_id: String,
    /// The user name, if the broker asks for one.
    pub username: Option<String>,
    /// The password, if the broker asks for one.
    pub password: Option<String>,
    /// TLS; none for plain TCP. Follows a new identity by itself.
    pub tls: Option<crate::tls::Client>,
    /// A dead peer is noticed within this time, at least 2 s. The client is heard of by the broker at least
    /// every half of it. While a packet arrives every byte counts as a sign of life, so it may take longer.
    pub keepalive: Duration,
    /// The limit for name resolution, TCP, TLS, CONNACK and SUBACK together.
    pub connect_timeout: Duration,
    /// The largest packet taken from the broker, in bytes, at least 1,024; also a limit for what is sent.
    pub max_packet: u32,
    /// Publishes without a PUBACK at a time, 1 to 64; the broker's limit counts if smaller.
    pub inflight: u16,
    /// Topic filters; each must be granted before [`LinkEvent::Connected`].
    pub subscriptions: Vec<String>,
    /// A retained topic that only this client writes: its presence. The link listens to it (and keeps what
    /// it hears to itself) to find out that another client uses the same id, which mosquitto does not tell.
    pub own_topic: Option<String>,
    /// Makes will and greetings.
    pub introduce: Introduce,
    /// How long to wait between attempts.
    pub retry: RetryOptions,
    /// Messages that wait to be sent, at least 1.
    pub queue: usize,
    /// Bytes that wait to be sent.
    pub queue_bytes: usize,
    /// Events that wait to be taken, at least 1.
    pub events: usize,
}

impl LinkOptions {
    /// The defaults: 20 s keepalive, 10 s to connect, packets of 1 MiB, 64 in flight, 256 messages and
    /// 4 MiB queued, 256 events.
    #[must_use]
    pub fn new(host: &str, port: u16, client_id: &str) -> Self {
        Self {
            host: host.to_owned(),
            port,
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
            introduce: Arc::new(|_| Introduction::default()),
            retry: RetryOptions::default(),
            queue: 256,
            queue_bytes: 4 << 20,
            events: 256,
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

    fn target(&self) -> Target<'_> {
        Target { host: &self.host, port: self.port, tls: self.tls.as_ref(), within: self.connect_timeout }
    }
}

impl fmt::Debug for LinkOptions {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkOptions")
            .field("peer", &self.target().peer())
            .field("client_id", &self.client_id)
            .field("username", &self.username)
            .field("keepalive", &self.keepalive)
            .field("max_packet", &self.max_packet)
            .field("subscriptions", &self.subscriptions)
            .finish_non_exhaustive()
    }
}

/// What happens on a link, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The broker let the client in and granted every subscription; the greetings are on their way.
    Connected {
        /// Names this connection.
        connection: ConnectionId,
        /// The largest packet both sides take, in bytes, header and topic included.
        max_packet: u32,
    },
    /// A message for one of the subscriptions. It was acknowledged when this event was queued.
    Message {
        /// Its topic.
        topic: String,
        /// Its bytes.
        payload: Vec<u8>,
        /// Whether it is the retained one of its topic.
        retain: bool,
    },
    /// The broker did not take a message.
    NotTaken {
        /// Where it was meant to go.
        topic: String,
        /// The MQTT reason code.
        code: u8,
        /// Its meaning.
        reason: String,
    },
    /// There is no connection: an attempt failed, or the connection ended. What was queued is gone.
    Disconnected {
        /// Why.
        cause: Cause,
        /// When the next attempt starts.
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
