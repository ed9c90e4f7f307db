//! The endpoint's handle, and the task that accepts connections.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client;
use super::counters::{BrokerCounters, BrokerTraffic};
use super::hub::{Hub, SESSION_LINES, Throttles};
use super::inflow::{FleetEvents, inflow};
use super::registry::{Eviction, Origin, Outbound, Registry, ShrunkBacklogs};
use super::stream::Incoming;
use super::{BrokerOptions, FleetEvent, is_loopback};
use edgesync_object::NodeName;
use edgesync_transport::accepted;
use edgesync_transport::admission::{
    self, ConnectionLimiter, ConnectionLimits, LinePermit, LogThrottle, Visitor,
};
use edgesync_transport::link::queue::{Limits, Refused};
use edgesync_transport::link::{Backlog, PublishError, add, packet_size};
use edgesync_transport::shared::{Arrival, Inlet};
use edgesync_transport::tls;

/// Maximum number of connections that wait for a permit, and the same of silent ones: a whole fleet
/// may connect at once. Each costs a socket.
const WAITING: usize = 16 << 10;
/// Delay after a failed accept, which usually means that file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval between two DISCONNECTs of a spread shutdown.
const APART: Duration = Duration::from_millis(1);
/// Time limit for connections to end after the last DISCONNECT.
const SHUTDOWN: Duration = Duration::from_secs(3);

/// The connections of an endpoint beside those of its own address.
#[derive(Debug)]
pub struct SharedSource {
    /// Connections of a shared listener.
    pub inlet: Inlet,
    /// TLS whose rule their clients must satisfy: a certificate is required.
    pub tls: tls::Server,
}

/// Reason why the endpoint cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Neither an address nor a shared listener.
    #[error("listen for nodes: no address; hint: set broker.listen, or listen.address")]
    Nowhere,
    /// Any peer that reaches the address could claim to be any node.
    #[error(
        "listen for nodes on {address}: TLS is required beyond the loopback address; hint: set broker.tls to \"auto\", \
         or listen on 127.0.0.1"
    )]
    NotLoopback {
        /// Address that was requested.
        address: SocketAddr,
    },
    /// The system refuses the address.
    #[error("listen for nodes on {address}")]
    System {
        /// Address that was requested.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
}

/// An MQTT v5 endpoint for nodes; cheap to clone. It runs until [`Broker::shutdown`], or until the
/// receiver of its events is dropped.
#[derive(Clone)]
pub struct Broker {
    hub: Arc<Hub>,
    address: SocketAddr,
}

impl Broker {
    /// Listens on `address` (port 0 for any) and serves from tasks on the current tokio runtime.
    ///
    /// # Errors
    /// The address cannot be bound, or it is not loopback and there is no TLS.
    pub async fn bind(address: SocketAddr, options: BrokerOptions) -> Result<(Self, FleetEvents), BindError> {
        Self::open(Some(address), None, options).await
    }

    /// The same on an own address, for the connections of a shared listener, or both.
    ///
    /// # Errors
    /// As [`Broker::bind`]; and there is neither.
    pub async fn open(
        address: Option<SocketAddr>,
        shared: Option<SharedSource>,
        options: BrokerOptions,
    ) -> Result<(Self, FleetEvents), BindError> {
        let options = options.in_range();
        let listener = match address {
            Some(address) if options.tls.is_none() && !is_loopback(&address) => {
                return Err(BindError::NotLoopback { address });
            }
            Some(address) => {
                let failed = |source| BindError::System { address, source };
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                accepted::tune_listener(&listener);
                let local = listener.local_addr().map_err(failed)?;
                Some((listener, local))
            }
            None => None,
        };
        let own = listener.as_ref().map(|(_, local)| *local);
        let local = own.or_else(|| shared.as_ref().map(|shared| shared.inlet.address()));
        let local = local.ok_or(BindError::Nowhere)?;
        let sources = Sources { listener: listener.map(|(listener, _)| listener), shared };
        let (inflow, receiver) = inflow(options.events, options.max_packet as usize);
        let limits = Limits { messages: options.queue, bytes: options.queue_bytes };
        let hub = Arc::new(Hub {
            registry: Registry::new(limits, options.max_retained, options.max_retained_bytes),
            shrunk_backlogs: ShrunkBacklogs::default(),
            counters: BrokerCounters::default(),
            shared_bytes: Arc::default(),
            limiter: ConnectionLimiter::new(ConnectionLimits {
                total: options.max_unauthenticated,
                per_origin: options.max_unauthenticated / 4,
            }),
            node_permits: Arc::new(Semaphore::new(options.max_connections)),
            throttles: Throttles::default(),
            session_lines: LogThrottle::of(SESSION_LINES),
            closing: watch::channel(false).0,
            inflow,
            options,
        });
        // The channel is new and has space for at least one event.
        let _ = hub.inflow.try_send_uncounted(FleetEvent::Open { max_packet: hub.options.max_packet });
        tokio::spawn(accept(Arc::clone(&hub), sources));
        Ok((Self { hub, address: local }, receiver))
    }

    #[cfg(test)]
    pub(super) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Returns the address that the endpoint listens on: its own, else that of the shared
    /// listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Queues a message for a node's `down` topic.
    ///
    /// # Errors
    /// The node is not connected or has not subscribed, its queue is full, or the packet exceeds
    /// its limit.
    pub fn try_publish(&self, node: &NodeName, payload: Vec<u8>) -> Result<(), PublishError> {
        let session =
            self.hub.registry.session(node).filter(|session| session.listens.load(Ordering::Acquire));
        let Some(session) = session else { return Err(PublishError::NotConnected) };
        let size = packet_size(&session.down, &payload);
        let limit = session.max_packet as usize;
        if size > limit {
            return Err(PublishError::TooLarge { size, limit });
        }
        let topic = Arc::clone(&session.down);
        let outbound =
            Outbound { topic, payload: Bytes::from(payload), origin: Origin::Cloud { retain: false } };
        session.queue.push(outbound, size).map_err(|refused| match refused {
            Refused::Full => {
                add(&self.hub.counters.queue_full, 1);
                PublishError::Full
            }
            Refused::Closed => PublishError::NotConnected,
        })
    }

    /// Waits until a node's queue has space.
    ///
    /// # Errors
    /// [`PublishError::NotConnected`] if the node is not connected, or disconnects meanwhile.
    pub async fn ready(&self, node: &NodeName) -> Result<(), PublishError> {
        let Some(session) = self.hub.registry.session(node) else { return Err(PublishError::NotConnected) };
        session.queue.ready().await.map_err(|_| PublishError::NotConnected)
    }

    /// Returns the messages to a node's `down` topic that are not completed; `None` if it is not
    /// connected.
    #[must_use]
    pub fn backlog(&self, node: &NodeName) -> Option<Backlog> {
        self.hub.registry.session(node).map(|session| session.backlog())
    }

    /// Waits until [`Broker::backlog`] has become smaller for some nodes, and returns their names.
    /// Safe to cancel; for one caller.
    pub async fn backlog_shrunk(&self) -> Vec<NodeName> {
        self.hub.shrunk_backlogs.next().await
    }

    /// Replaces the message retained on `cloud` and sends it to all subscribers; a slow node gets
    /// the newest one only. An empty payload removes it.
    pub fn set_cloud(&self, payload: Vec<u8>) {
        self.hub.registry.set_cloud((!payload.is_empty()).then(|| Bytes::from(payload)));
    }

    /// Disconnects a node whose certificate was revoked;
    /// [`edgesync_transport::tls::Server::replace`] must have been called before. Handshakes in
    /// progress are refused with a request to reconnect. Returns whether the node was connected.
    pub fn disconnect(&self, node: &NodeName) -> bool {
        self.hub.registry.revoke(node)
    }

    /// Returns the payload retained on a node's `presence`.
    #[must_use]
    pub fn presence(&self, node: &NodeName) -> Option<Vec<u8>> {
        self.hub.registry.presence(node).map(|payload| payload.to_vec())
    }

    /// Returns the endpoint's counters.
    #[must_use]
    pub fn traffic(&self) -> BrokerTraffic {
        let counts = self.hub.counters.counts();
        let shared = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        BrokerTraffic {
            open: self.hub.registry.count(),
            bytes_in: counts.bytes_in + shared(&self.hub.shared_bytes.received),
            bytes_out: counts.bytes_out + shared(&self.hub.shared_bytes.sent),
            ..counts
        }
    }

    /// Stops listening and sends DISCONNECT to all connections, one after another
    /// ([`BrokerOptions::farewells`]). Returns when they have ended, at most three seconds after
    /// the last DISCONNECT.
    pub async fn shutdown(&self) {
        self.hub.closing.send_replace(true);
        let all = u32::try_from(self.hub.options.max_connections).unwrap_or(u32::MAX);
        let limit = self.hub.options.farewells + SHUTDOWN;
        let _ = timeout(limit, self.hub.node_permits.acquire_many(all)).await;
    }
}

/// Sources of connections, of which there is at least one.
struct Sources {
    listener: Option<TcpListener>,
    shared: Option<SharedSource>,
}

/// A connection that may wait for a permit.
enum Waiting {
    Own(admission::Tcp),
    Shared(Box<Arrival>, tls::Server),
}

impl Visitor for Waiting {
    fn readable(&self) -> impl Future<Output = ()> + Send {
        // The client of a shared listener has sent something already.
        let own = match self {
            Self::Own(tcp) => Some(tcp),
            Self::Shared(..) => None,
        };
        async move {
            if let Some(tcp) = own {
                tcp.readable().await;
            }
        }
    }
}

impl Waiting {
    fn peer(&self) -> SocketAddr {
        match self {
            Self::Own(admission::Tcp(_, peer)) => *peer,
            Self::Shared(arrival, _) => arrival.peer,
        }
    }

    fn into_incoming(self) -> Incoming {
        match self {
            Self::Own(admission::Tcp(stream, _)) => Incoming::Tcp(stream),
            Self::Shared(arrival, tls) => Incoming::Shared(arrival, tls),
        }
    }
}

impl Sources {
    /// Returns the next connection. Safe to cancel.
    async fn next(&self) -> io::Result<(admission::Origin, Waiting)> {
        let own = async {
            match &self.listener {
                Some(listener) => admission::Tcp::accept(listener).await,
                None => pending().await,
            }
        };
        let shared = async {
            match &self.shared {
                Some(shared) => (shared.inlet.next().await, shared.tls.clone()),
                None => pending().await,
            }
        };
        tokio::select! {
            accepted = own => accepted.map(|(origin, tcp)| (origin, Waiting::Own(tcp))),
            (arrival, tls) = shared => Ok((arrival.origin(), Waiting::Shared(Box::new(arrival), tls))),
        }
    }
}

async fn accept(hub: Arc<Hub>, sources: Sources) {
    let limits = admission::QueueLimits { most: WAITING, silence: hub.options.connect_timeout };
    let mut queue = admission::Queue::new(Arc::clone(&hub.limiter), limits);
    let next = || async {
        loop {
            let (origin, waiting) = sources.next().await?;
            add(&hub.counters.accepted, 1);
            if hub.node_permits.available_permits() > 0 {
                return Ok::<_, io::Error>((origin, waiting));
            }
            too_many(&hub, waiting.peer());
        }
    };
    loop {
        tokio::select! {
            admitted = queue.next(&next) => match admitted {
                Ok((waiting, permit)) => admit(&hub, waiting, permit),
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            () = hub.closed() => break,
            () = hub.inflow.closed() => break,
        }
    }
    hub.closing.send_replace(true);
    drop(queue);
    drop(sources);
    let (sessions, start) = (hub.registry.sessions(), Instant::now());
    let count = u32::try_from(sessions.len()).unwrap_or(u32::MAX).max(1);
    let apart = APART.min(hub.options.farewells / count);
    for (before, session) in (0..).zip(sessions) {
        sleep_until(start + apart * before).await;
        session.evict(Eviction::ShuttingDown);
    }
}

/// Starts to serve a connection that has a permit.
fn admit(hub: &Arc<Hub>, waiting: Waiting, permit: Option<admission::Permit>) {
    let peer = waiting.peer();
    let Some(permit) = permit else { return too_many(hub, peer) };
    let hub = Arc::clone(hub);
    tokio::spawn(async move { client::serve(&hub, waiting.into_incoming(), peer, permit).await });
}

/// Closes a connection without an answer.
fn too_many(hub: &Hub, peer: SocketAddr) {
    add(&hub.counters.over_limit, 1);
    if let Some(LinePermit { suppressed }) = hub.throttles.full.permit_line() {
        let max_connections = hub.options.max_connections;
        tracing::warn!(%peer, suppressed, max_connections, "connection limit reached, connection closed");
    }
}
