//! The link between node and cloud: a TCP proxy that counts bytes and can be cut. Depends on tokio
//! only.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Buffer size per direction, in bytes.
const BUFFER: usize = 64 << 10;

/// TCP payload that passed the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Transferred {
    /// Bytes from the cloud to the node.
    pub(super) down: u64,
    /// Bytes from the node to the cloud.
    pub(super) up: u64,
}

#[derive(Default)]
struct Shared {
    down: AtomicU64,
    up: AtomicU64,
    connected: Mutex<Option<Instant>>,
}

/// A running link. Dropping it closes all connections.
pub(super) struct Link {
    address: SocketAddr,
    is_up: watch::Sender<bool>,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Link {
    /// Listens on a free loopback port and forwards connections to `cloud`.
    ///
    /// # Errors
    /// No port is free.
    pub(super) async fn open(cloud: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (is_up, state) = watch::channel(true);
        let shared = Arc::new(Shared::default());
        let accepting = tokio::spawn(accept(listener, cloud, state, shared.clone()));
        Ok(Self { address, is_up, shared, accepting })
    }

    /// Returns the address that the node connects to.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes every connection, and new ones once accepted.
    pub(super) fn cut(&self) {
        *self.shared.connected.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.is_up.send_replace(false);
    }

    /// Ends an outage: forwards connections again.
    pub(super) fn restore(&self) {
        self.is_up.send_replace(true);
    }

    /// Returns the bytes that passed so far.
    pub(super) fn transferred(&self) -> Transferred {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Transferred { down: read(&self.shared.down), up: read(&self.shared.up) }
    }

    /// Returns the time of the node's last connection since the link was cut.
    pub(super) fn connected_at(&self) -> Option<Instant> {
        *self.shared.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.cut();
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, cloud: SocketAddr, state: watch::Receiver<bool>, shared: Arc<Shared>) {
    while let Ok((node, _)) = listener.accept().await {
        if !*state.borrow() {
            continue;
        }
        *shared.connected.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        let (mut state, shared) = (state.clone(), shared.clone());
        tokio::spawn(async move {
            tokio::select! {
                // Broken connections are expected here; either side notices by itself.
                _ = forward(node, cloud, &shared) => {}
                _ = state.wait_for(|up| !up) => {}
            }
        });
    }
}

async fn forward(node: TcpStream, cloud: SocketAddr, shared: &Shared) -> io::Result<()> {
    let cloud = TcpStream::connect(cloud).await?;
    node.set_nodelay(true)?;
    cloud.set_nodelay(true)?;
    let (from_node, to_node) = node.into_split();
    let (from_cloud, to_cloud) = cloud.into_split();
    // The end of one direction ends the connection: MQTT has no half-closed state.
    tokio::select! {
        ended = copy(from_node, to_cloud, &shared.up) => ended,
        ended = copy(from_cloud, to_node, &shared.down) => ended,
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    counter: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer).await? {
            0 => return Ok(()),
            count => {
                to.write_all(&buffer[..count]).await?;
                counter.fetch_add(count as u64, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn exchange(node: &mut TcpStream, cloud: &mut TcpStream, text: &[u8]) {
        let mut buffer = vec![0; text.len()];
        node.write_all(text).await.unwrap();
        cloud.read_exact(&mut buffer).await.unwrap();
        assert_eq!(buffer, text);
    }

    #[tokio::test]
    async fn bytes_are_counted_and_a_cut_closes_both_sides() {
        let cloud = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let link = Link::open(cloud.local_addr().unwrap()).await.unwrap();
        let mut node = TcpStream::connect(link.address()).await.unwrap();
        let (mut served, _) = cloud.accept().await.unwrap();
        exchange(&mut node, &mut served, b"hello").await;
        exchange(&mut served, &mut node, b"ok").await;
        assert!(link.connected_at().is_some());

        link.cut();
        assert_eq!(served.read(&mut [0; 8]).await.unwrap_or(0), 0);
        assert_eq!(node.read(&mut [0; 8]).await.unwrap_or(0), 0);
        assert_eq!(link.transferred(), Transferred { down: 2, up: 5 });
        let mut refused = TcpStream::connect(link.address()).await.unwrap();
        assert_eq!(refused.read(&mut [0; 8]).await.unwrap_or(0), 0);
        assert_eq!(link.connected_at(), None);

        link.restore();
        let mut node = TcpStream::connect(link.address()).await.unwrap();
        let (mut served, _) = cloud.accept().await.unwrap();
        exchange(&mut node, &mut served, b"again").await;
    }
}
