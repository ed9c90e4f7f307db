//! Opens TCP connections: directly or through a proxy, by names that resolve or, where they do not,
//! by the address that worked last.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

mod last_good;

use crate::connect::{REFUSED, describe};
use crate::proxy::{Proxy, ProxyError, ProxyRules, authority};
pub use last_good::LastGood;

/// Maximum number of addresses tried per name.
const MAX_ADDRESSES: usize = 8;
/// Share of the time that a name lookup has if an earlier address is known.
const LOOKUP_SHARE: u32 = 3;

/// Reason why no connection was opened.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name has no address.
    #[error("resolve host name '{host}': {message}")]
    Dns {
        /// Host name.
        host: String,
        /// Message of the resolver.
        message: String,
    },
    /// The host answers, but nothing listens there.
    #[error("connect to {peer}: {REFUSED}")]
    Refused {
        /// Host and port.
        peer: String,
    },
    /// No answer in time.
    #[error("connect to {peer}: timed out after {after:?}")]
    TimedOut {
        /// Host and port.
        peer: String,
        /// Limit for one address.
        after: Duration,
    },
    /// TCP failed, as the system reports.
    #[error("connect to {peer}: {message}")]
    Network {
        /// Host and port.
        peer: String,
        /// Message of the system.
        message: String,
    },
    /// The proxy opens no tunnel.
    #[error("proxy {proxy} {problem}")]
    Proxy {
        /// Address of the proxy.
        proxy: String,
        /// Its answer, or why it has none.
        problem: ProxyError,
    },
}

/// Opens a connection whose first message carries the acknowledgement that completes the handshake:
/// this side speaks first in all protocols.
async fn connected(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Without the option it is a packet of its own.
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(&socket).set_tcp_quickack(false);
    socket.connect(address).await
}

/// Name and address of a connection that is being made.
type Dialed = Option<(String, IpAddr)>;

/// Opens connections of a link or of calls, by the rules of the network. Its user makes one
/// connection at a time, and confirms it with [`Dialer::worked`]; another user of the same
/// addresses has a dialer of its own with a clone of [`LastGood`].
#[derive(Clone, Debug, Default)]
pub struct Dialer {
    rules: ProxyRules,
    last_good: LastGood,
    dialed: Arc<Mutex<Dialed>>,
}

impl Dialer {
    /// Creates a dialer with the rules for proxies, and the addresses that worked earlier.
    #[must_use]
    pub fn new(rules: ProxyRules, last_good: LastGood) -> Self {
        Self { rules, last_good, dialed: Arc::default() }
    }

    /// Returns the proxy for connections to a peer.
    #[must_use]
    pub fn proxy_for(&self, host: &str, port: u16) -> Option<&Proxy> {
        self.rules.proxy_for(host, port)
    }

    /// Returns the addresses that worked.
    pub(crate) fn last_good(&self) -> &LastGood {
        &self.last_good
    }

    /// Records that the latest connection has succeeded, TLS and protocol included; to which peer,
    /// if the link has several. The address is used where its name does not resolve.
    pub fn worked(&self, peer: Option<&str>) {
        let dialed = self.dialed.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.last_good.worked(dialed, peer);
    }

    /// Records the address to which a connection is being made. Addresses in place of names need no
    /// record.
    fn dialed(&self, host: &str, address: IpAddr) {
        let dialed = host.parse::<IpAddr>().is_err().then(|| (host.to_owned(), address));
        *self.dialed.lock().unwrap_or_else(PoisonError::into_inner) = dialed;
    }

    /// Opens a connection to a peer, through its proxy if it has one. Name lookup, TCP and tunnel
    /// together take at most `within`.
    ///
    /// # Errors
    /// See [`DialError`].
    pub async fn open(&self, host: &str, port: u16, within: Duration) -> Result<TcpStream, DialError> {
        let opened = async {
            let mut stream = self.connect(host, port, within).await?;
            self.tunnel(&mut stream, host, port).await?;
            Ok(stream)
        };
        let late = || Err(DialError::TimedOut { peer: authority(host, port), after: within });
        timeout(within, opened).await.unwrap_or_else(|_| late())
    }

    /// Connects to a peer, or to its proxy. Each address gets an equal share of `within`.
    pub(crate) async fn connect(
        &self,
        host: &str,
        port: u16,
        within: Duration,
    ) -> Result<TcpStream, DialError> {
        match self.proxy_for(host, port) {
            None => self.tcp(host, port, within).await,
            Some(proxy) => self.tcp(proxy.host(), proxy.port(), within).await.map_err(|error| {
                let problem = ProxyError::Unreachable(error.to_string());
                DialError::Proxy { proxy: proxy.to_string(), problem }
            }),
        }
    }

    /// Opens the tunnel to the peer on a connection to its proxy; does nothing without a proxy.
    pub(crate) async fn tunnel<S>(&self, stream: &mut S, host: &str, port: u16) -> Result<(), DialError>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        let Some(proxy) = self.proxy_for(host, port) else { return Ok(()) };
        let opened = proxy.tunnel(stream, host, port).await;
        opened.map_err(|problem| DialError::Proxy { proxy: proxy.to_string(), problem })
    }

    async fn tcp(&self, host: &str, port: u16, within: Duration) -> Result<TcpStream, DialError> {
        let peer = authority(host, port);
        let addresses = self.resolve(host, port, within).await?;
        let share = within / u32::try_from(addresses.len().max(1)).unwrap_or(1);
        let mut last = DialError::Dns { host: host.to_owned(), message: "no address found".to_owned() };
        for address in addresses {
            last = match timeout(share, connected(address)).await {
                Ok(Ok(stream)) => {
                    self.dialed(host, address.ip());
                    return Ok(stream);
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    DialError::Refused { peer: peer.clone() }
                }
                Ok(Err(error)) => DialError::Network { peer: peer.clone(), message: describe(&error) },
                Err(_) => DialError::TimedOut { peer: peer.clone(), after: share },
            };
        }
        Err(last)
    }

    /// Resolves a name; if it does not resolve, returns the address that worked last.
    async fn resolve(&self, host: &str, port: u16, within: Duration) -> Result<Vec<SocketAddr>, DialError> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let known = self.last_good.address(host);
        let limit = if known.is_some() { within / LOOKUP_SHARE } else { within };
        let message = match timeout(limit, tokio::net::lookup_host((host, port))).await {
            Ok(Ok(found)) => {
                let addresses: Vec<SocketAddr> = found.take(MAX_ADDRESSES).collect();
                if !addresses.is_empty() {
                    return Ok(addresses);
                }
                "no address found".to_owned()
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no response of the name server within {limit:?}"),
        };
        match known {
            Some(address) => {
                tracing::warn!(host, %address, "name does not resolve, using its last good address: {message}");
                Ok(vec![SocketAddr::new(address, port)])
            }
            None => Err(DialError::Dns { host: host.to_owned(), message }),
        }
    }
}

#[cfg(test)]
mod tests;
