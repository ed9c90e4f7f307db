//! Connections on their way from a shared listener to a service.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};

use super::line::{Bytes, Line};
use crate::admission::Origin;
use crate::link::stream::Stream;
use crate::tls::Presented;

/// Maximum number of connections of a service between the listener and the service's own queue.
pub(super) const QUEUE: usize = 256;

/// A connection after its handshake, for one service. Its client has sent something.
pub struct Arrival {
    /// The stream inside TLS, from the client's first byte on.
    pub stream: Box<dyn Stream>,
    /// Address of the client.
    pub peer: SocketAddr,
    /// Certificates that the client presented. The service has not verified them by its own rule
    /// yet: [`Server::admit`](crate::tls::Server::admit).
    pub presented: Presented,
    /// Whether the stream begins with the request of a WebSocket.
    pub web_socket: bool,
    pub(super) line: Arc<Line>,
}

impl Arrival {
    /// Counts the bytes of the connection, also the earlier ones, for a service.
    pub fn count_for(&self, service: &Arc<Bytes>) {
        self.line.count_for(service);
    }

    /// Returns the origin that limits count by.
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin::of(self.peer.ip())
    }
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrival").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// The connections of one service.
#[derive(Debug)]
pub struct Inlet {
    address: SocketAddr,
    arrivals: Mutex<mpsc::Receiver<Arrival>>,
}

impl Inlet {
    pub(super) fn new(address: SocketAddr, arrivals: mpsc::Receiver<Arrival>) -> Self {
        Self { address, arrivals: Mutex::new(arrivals) }
    }

    /// Returns the address of the listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the next connection. Never returns once the listener has ended. Safe to cancel.
    pub async fn next(&self) -> Arrival {
        match self.arrivals.lock().await.recv().await {
            Some(arrival) => arrival,
            None => std::future::pending().await,
        }
    }
}
