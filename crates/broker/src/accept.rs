//! Listens, and starts a task per connection. The handle the cloud side holds.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client;
use super::counters::{BrokerCounters, BrokerTraffic};
use super::hub::{Hub, MOVES, Quiet};
use super::inflow::{FleetEvents, inflow};
use super::registry::{Eviction, Moved, Origin, Outbound, Registry};
use super::{BrokerOptions, FleetEvent, is_loopback};
use edgesync_object::NodeName;
use edgesync_transport::gate::{self, Gate, GateLimits, Seldom};
use edgesync_transport::link::queue::{Limits, Refused};
use edgesync_transport::link::{Backlog, PublishError, add, packet_size};

/// Connections that may wait for a place in the door, and as many that have said nothing: a fleet that comes all at once.
/// Each costs a socket.
const WAITING: usize = 16 << 10;
/// How long to wait after the system refused to accept: usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How far apart two good-byes are at shutdown, if they are spread.
const APART: Duration = Duration::from_millis(1);
/// How long connections may take to end after the last of them.
const SHUTDOWN: Duration = Duration::from_secs(3);

/// The endpoint cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Whoever reaches the address could speak as any node.
    #[error(
        "cannot listen for nodes on {address} without TLS: others than this machine reach it, and only certificates \
         tell nodes apart; leave broker.tls at \"auto\", or listen on 127.0.0.1"
    )]
    NotLoopback {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The system refuses the address.
    #[error("cannot listen for nodes on {address}")]
    System {
        /// The address asked for.
        address: SocketAddr,
        /// Why.
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
        let options = options.in_range();
        if options.tls.is_none() && !is_loopback(&address) {
            return Err(BindError::NotLoopback { address });
        }
        let failed = |source| BindError::System { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        let (inflow, receiver) = inflow(options.events, options.max_packet as usize);
        let limits = Limits { messages: options.queue, bytes: options.queue_bytes };
        let hub = Arc::new(Hub {
            registry: Registry::new(limits, options.max_retained, options.max_retained_bytes),
            moved: Moved::default(),
            counters: BrokerCounters::default(),
            gate: Gate::new(GateLimits { places: options.max_strangers, for_one: options.max_strangers / 4 }),
            places: Arc::new(Semaphore::new(options.max_connections)),
            quiet: Quiet::default(),
            moves: Seldom::of(MOVES),
            closing: watch::channel(false).0,
            inflow,
            options,
        });
        // The channel is new and has room for at least one event.
        let _ = hub.inflow.try_tell(FleetEvent::Open { max_packet: hub.options.max_packet });
        tokio::spawn(accept(Arc::clone(&hub), listener));
        Ok((Self { hub, address: local }, receiver))
    }

    #[cfg(test)]
    pub(super) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Queues a message for a node's `down` topic.
    ///
    /// # Errors
    /// The node is not connected or has not subscribed, its queue is full, or the packet is larger than it
    /// takes.
    pub fn try_publish(&self, node: &NodeName, payload: Vec<u8>) -> Result<(), PublishError> {
        let seat = self.hub.registry.seat(node).filter(|seat| seat.listens.load(Ordering::Acquire));
        let Some(seat) = seat else { return Err(PublishError::NotConnected) };
        let size = packet_size(&seat.down, &payload);
        let limit = seat.max_packet as usize;
        if size > limit {
            return Err(PublishError::TooLarge { size, limit });
        }
        let topic = Arc::clone(&seat.down);
        let outbound =
            Outbound { topic, payload: Bytes::from(payload), origin: Origin::Cloud { retain: false } };
        seat.queue.push(outbound, size).map_err(|refused| match refused {
            Refused::Full => {
                add(&self.hub.counters.queue_full, 1);
                PublishError::Full
            }
            Refused::Closed => PublishError::NotConnected,
        })
    }

    /// Waits for room in a node's queue.
    ///
    /// # Errors
    /// [`PublishError::NotConnected`] when the node is not connected or goes meanwhile.
    pub async fn ready(&self, node: &NodeName) -> Result<(), PublishError> {
        let Some(seat) = self.hub.registry.seat(node) else { return Err(PublishError::NotConnected) };
        seat.queue.ready().await.map_err(|_| PublishError::NotConnected)
    }

    /// Messages to a node's `down` topic that are under way on its connection; `None` if it is not connected.
    #[must_use]
    pub fn backlog(&self, node: &NodeName) -> Option<Backlog> {
        self.hub.registry.seat(node).map(|seat| seat.backlog())
    }

    /// Waits until [`Broker::backlog`] has become smaller for some nodes, and names them. Can be cancelled without loss; one
    /// caller at a time.
    pub async fn moved(&self) -> Vec<NodeName> {
        self.hub.moved.next().await
    }

    /// Replaces the message retained on `cloud` and sends it to all who subscribed; a node that is slow
    /// gets the newest one only. An empty payload removes it.
    pub fn set_cloud(&self, payload: Vec<u8>) {
        self.hub.registry.set_cloud((!payload.is_empty()).then(|| Bytes::from(payload)));
    }

    /// Cuts a node's connection, if it has one; its certificate was revoked, and [`edgesync_transport::tls::Server::replace`] has
    /// been told so before. Connections whose handshake is under way are told to come again. Returns whether the node
    /// was connected.
    pub fn disconnect(&self, node: &NodeName) -> bool {
        self.hub.registry.cut(node)
    }

    /// What is retained on a node's `presence`.
    #[must_use]
    pub fn presence(&self, node: &NodeName) -> Option<Vec<u8>> {
        self.hub.registry.presence(node).map(|payload| payload.to_vec())
    }

    /// What the endpoint did so far.
    #[must_use]
    pub fn traffic(&self) -> BrokerTraffic {
        BrokerTraffic { open: self.hub.registry.occupied(), ..self.hub.counters.counts() }
    }

    /// Stops listening and says good-bye to all connections, one after another ([`BrokerOptions::farewells`]); returns when
    /// they are gone, at the latest three seconds after the last good-bye.
    pub async fn shutdown(&self) {
        self.hub.closing.send_replace(true);
        let all = u32::try_from(self.hub.options.max_connections).unwrap_or(u32::MAX);
        let patience = self.hub.options.farewells + SHUTDOWN;
        let _ = timeout(patience, self.hub.places.acquire_many(all)).await;
    }
}

async fn accept(hub: Arc<Hub>, listener: TcpListener) {
    let limits = gate::QueueLimits { most: WAITING, silence: hub.options.connect_timeout };
    let mut queue = gate::Queue::new(Arc::clone(&hub.gate), limits);
    let next = || async {
        loop {
            let (origin, tcp) = gate::Tcp::accept(&listener).await?;
            add(&hub.counters.accepted, 1);
            if hub.places.available_permits() > 0 {
                return Ok::<_, io::Error>((origin, tcp));
            }
            too_many(&hub, tcp.1);
        }
    };
    loop {
        tokio::select! {
            admitted = queue.next(&next) => match admitted {
                Ok((gate::Tcp(stream, peer), guest)) => admit(&hub, stream, peer, guest),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            () = hub.closed() => break,
            () = hub.inflow.closed() => break,
        }
    }
    hub.closing.send_replace(true);
    drop(queue);
    drop(listener);
    let (seats, start) = (hub.registry.seats(), Instant::now());
    let count = u32::try_from(seats.len()).unwrap_or(u32::MAX).max(1);
    let apart = APART.min(hub.options.farewells / count);
    for (before, seat) in (0..).zip(seats) {
        sleep_until(start + apart * before).await;
        seat.evict(Eviction::ShuttingDown);
    }
}

/// Lets a connection stand in the door, where it has to say which node it is.
fn admit(hub: &Arc<Hub>, stream: TcpStream, peer: SocketAddr, guest: Option<gate::Guest>) {
    let Some(guest) = guest else { return too_many(hub, peer) };
    let hub = Arc::clone(hub);
    tokio::spawn(async move { client::serve(&hub, stream, peer, guest).await });
}

/// A connection is closed without a word.
fn too_many(hub: &Hub, peer: SocketAddr) {
    add(&hub.counters.over_limit, 1);
    if let Some(left_out) = hub.quiet.full.line() {
        let limit = hub.options.max_connections;
        tracing::warn!(%peer, left_out, limit, "too many connections: closed");
    }
}
