//! Where the cloud of a node is reached, whatever the link.

use std::fmt;

use super::edge::Config;
use super::{LinkType, host};

/// The other end of the link: a broker, or a CloudCore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer<'c> {
    /// Host name or address, without brackets.
    pub host: &'c str,
    /// TCP port.
    pub port: u16,
    /// Whether the connection is made over TLS.
    pub tls: bool,
    /// The key of the configuration that says so.
    pub key: &'static str,
    scheme: &'static str,
}

impl Config {
    /// Where the cloud is reached.
    #[must_use]
    pub fn peer(&self) -> Peer<'_> {
        match (self.link_type, &self.kubeedge.url) {
            (LinkType::KubeEdge, Some(url)) => Peer {
                host: &url.host,
                port: url.port,
                tls: url.tls,
                key: "kubeedge.url",
                scheme: if url.tls { "wss" } else { "ws" },
            },
            _ => {
                let broker = &self.link.broker;
                let scheme = if broker.tls { "mqtts" } else { "mqtt" };
                Peer { host: &broker.host, port: broker.port, tls: broker.tls, key: "link.broker", scheme }
            }
        }
    }
}

impl Peer<'_> {
    /// Whether it is on this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        host::is_local(self.host)
    }
}

impl fmt::Display for Peer<'_> {
    /// The address, as the configuration has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, host::join(self.host, self.port))
    }
}
