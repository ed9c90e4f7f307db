//! Relays connections of devices to the signer without reading them: TLS ends there.
//!
//! Devices keep one address for joining, renewing and syncing, that of the replicas, and the signer
//! needs no address outside of the cluster.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::service::{MAX_PER_ADDRESS, accept_all, listen};
use edgesync_transport::admission::{LinePermit, LogThrottle, Permit, Tcp};

/// Time limit of connecting to the signer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The relay of a replica, bound to the address of its join service.
pub struct JoinRelay {
    listener: TcpListener,
    address: SocketAddr,
    signer: Arc<(String, u16)>,
}

impl JoinRelay {
    /// Binds the listener. `signer` is host and port of the signer's join service.
    ///
    /// # Errors
    /// The address is in use.
    pub async fn bind(address: SocketAddr, signer: (String, u16)) -> anyhow::Result<Self> {
        let (listener, address) = listen(address).await?;
        Ok(Self { listener, address, signer: Arc::new(signer) })
    }

    /// The bound address, with the port that the system chose for port 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Relays until it is dropped, within the limits of the join service.
    pub async fn serve(self) {
        let Self { listener, signer, .. } = self;
        let failures = Arc::new(LogThrottle::new());
        let accept = || Tcp::accept(&listener);
        accept_all(accept, MAX_PER_ADDRESS, move |Tcp(device, peer), permit| {
            relay(device, peer, permit, Arc::clone(&signer), Arc::clone(&failures))
        })
        .await;
    }
}

async fn relay(
    mut device: TcpStream,
    peer: SocketAddr,
    permit: Arc<Permit>,
    signer: Arc<(String, u16)>,
    failures: Arc<LogThrottle>,
) {
    permit.progressed();
    let (host, port) = &*signer;
    let connected = match timeout(CONNECT_TIMEOUT, TcpStream::connect((host.as_str(), *port))).await {
        Ok(connected) => connected,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    };
    let mut upstream = match connected {
        Ok(upstream) => upstream,
        Err(error) => {
            if let Some(LinePermit { suppressed }) = failures.permit_line() {
                tracing::warn!(%peer, host, port, suppressed, "connect to the signer: {error}: connection of a device closed");
            }
            return;
        }
    };
    if let Err(error) = copy_bidirectional(&mut device, &mut upstream).await {
        tracing::debug!(%peer, %error, "relayed connection to the join service ended");
    }
}
