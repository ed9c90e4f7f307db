//! A real haproxy in front of a TLS port: passes TLS on by the name in the ClientHello, or ends it.

use std::fmt::Display;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use edgesync_transport::tls::Identity;
use tempfile::TempDir;

use crate::listening::{Listening, directory, shown};
use crate::mosquitto::free_address;

const DEFAULTS: &str = "global\n    maxconn 100\ndefaults\n    mode tcp\n    timeout connect 60s\n    \
                        timeout client 600s\n    timeout server 600s\n";

/// A running haproxy.
pub struct Haproxy(Listening);

/// Returns the configuration of one that passes connections with these names (SNI) on to their
/// servers, and closes all others.
///
/// Servers are addresses, or `unix@` and the path of a socket.
pub fn by_name(address: &str, servers: &[(&str, impl Display)]) -> String {
    let mut config = format!(
        "{DEFAULTS}frontend names\n    bind {address}\n    tcp-request inspect-delay 60s\n    \
         tcp-request content accept if {{ req.ssl_hello_type 1 }}\n"
    );
    for (number, (name, _)) in servers.iter().enumerate() {
        config += &format!("    use_backend server{number} if {{ req.ssl_sni -i {name} }}\n");
    }
    for (number, (_, server)) in servers.iter().enumerate() {
        config += &format!("backend server{number}\n    server one {server}\n");
    }
    config
}

/// Returns the configuration of one that ends TLS with the certificate in a file, and opens TLS to
/// a server without any.
pub fn terminating(address: &str, certificate: &Path, server: SocketAddr) -> String {
    format!(
        "{DEFAULTS}frontend ends\n    bind {address} ssl crt {}\n    default_backend server\n\
         backend server\n    server one {server} ssl verify none\n",
        shown(certificate)
    )
}

impl Haproxy {
    /// Starts one with [`by_name`].
    pub fn by_name(servers: &[(&str, SocketAddr)]) -> Self {
        let address = free_address();
        Self::start(&by_name(&address.to_string(), servers), address, directory())
    }

    /// Starts one with [`terminating`].
    pub fn terminating(identity: &Identity, server: SocketAddr) -> Self {
        let (directory, address) = (directory(), free_address());
        let certificate = directory.path().join("proxy.pem");
        fs::write(&certificate, identity.to_pem()).unwrap();
        Self::start(&terminating(&address.to_string(), &certificate, server), address, directory)
    }

    fn start(config: &str, address: SocketAddr, directory: TempDir) -> Self {
        let path = directory.path().join("haproxy.cfg");
        fs::write(&path, config).unwrap();
        Self(Listening::start("haproxy", &["-db", "-f", shown(&path)], address, directory))
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}
