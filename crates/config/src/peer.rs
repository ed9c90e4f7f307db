//! Address of a node's cloud, independent of the link type.

use std::fmt;

use super::edge::Config;
use super::{BrokerUrl, CloudCoreUrl, LinkType, host};

/// Peer of the link: a broker or a CloudCore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer<'c> {
    /// Host name or address, without brackets.
    pub host: &'c str,
    /// TCP port of the peer.
    pub port: u16,
    /// Whether the connection uses TLS.
    pub tls: bool,
    /// Configuration key of the address.
    pub key: &'static str,
    scheme: &'static str,
}

impl Config {
    /// Returns the address of the cloud, the first one if there are several.
    #[must_use]
    pub fn peer(&self) -> Peer<'_> {
        match (self.link_type, &self.kubeedge.url) {
            (LinkType::KubeEdge, Some(url)) => Peer::of_cloud_core(url),
            _ => Peer::of_broker(self.link.broker.first()),
        }
    }

    /// Returns the addresses of the cloud, in the order in which the link tries them.
    #[must_use]
    pub fn peers(&self) -> Vec<Peer<'_>> {
        match (self.link_type, &self.kubeedge.url) {
            (LinkType::KubeEdge, Some(url)) => vec![Peer::of_cloud_core(url)],
            _ => self.link.broker.iter().map(Peer::of_broker).collect(),
        }
    }
}

impl<'c> Peer<'c> {
    fn of_cloud_core(url: &'c CloudCoreUrl) -> Self {
        let scheme = if url.tls { "wss" } else { "ws" };
        Self { host: &url.host, port: url.port, tls: url.tls, key: "kubeedge.url", scheme }
    }

    fn of_broker(broker: &'c BrokerUrl) -> Self {
        let scheme = broker.scheme();
        Self { host: &broker.host, port: broker.port, tls: broker.tls, key: "link.broker", scheme }
    }
}

impl Peer<'_> {
    /// Returns whether the connection carries a WebSocket.
    #[must_use]
    pub fn is_websocket(&self) -> bool {
        self.scheme.starts_with("ws")
    }

    /// Returns whether the peer is on this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        host::is_local(self.host)
    }
}

impl fmt::Display for Peer<'_> {
    /// Formats the address as in the configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, host::join(self.host, self.port))
    }
}
