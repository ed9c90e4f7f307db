//! A real haproxy in front of a TLS port: passes TLS on by the name in the ClientHello, or ends it.

use std::fs;
use std::net::SocketAddr;

use edgesync_transport::tls::Identity;

use crate::listening::{Listening, directory, shown};
use crate::mosquitto::free_address;

const DEFAULTS: &str = "global\n    maxconn 100\ndefaults\n    mode tcp\n    timeout connect 60s\n    \
                        timeout client 600s\n    timeout server 600s\n";

/// A running haproxy.
pub struct Haproxy(Listening);

impl Haproxy {
    /// Starts one that passes connections with these names (SNI) on to their servers, and closes
    /// all others.
    pub fn by_name(servers: &[(&str, SocketAddr)]) -> Self {
        let address = free_address();
        let mut config = format!(
            "{DEFAULTS}frontend names\n    bind {address}\n    tcp-request inspect-delay 60s\n    \
             tcp-request content accept if {{ req.ssl_hello_type 1 }}\n"
        );
        for (number, (name, _)) in servers.iter().enumerate() {
            config.push_str(&format!("    use_backend server{number} if {{ req.ssl_sni -i {name} }}\n"));
        }
        for (number, (_, server)) in servers.iter().enumerate() {
            config.push_str(&format!("backend server{number}\n    server one {server}\n"));
        }
        Self::start(&config, address, None)
    }

    /// Starts one that ends TLS with a certificate of its own, and opens TLS to a server without
    /// any.
    pub fn terminating(identity: &Identity, server: SocketAddr) -> Self {
        let address = free_address();
        let config = format!(
            "{DEFAULTS}frontend ends\n    bind {address} ssl crt @CERTIFICATE@\n    default_backend server\n\
             backend server\n    server one {server} ssl verify none\n"
        );
        Self::start(&config, address, Some(identity))
    }

    fn start(config: &str, address: SocketAddr, identity: Option<&Identity>) -> Self {
        let directory = directory();
        let certificate = directory.path().join("proxy.pem");
        if let Some(identity) = identity {
            fs::write(&certificate, identity.to_pem()).unwrap();
        }
        let path = directory.path().join("haproxy.cfg");
        fs::write(&path, config.replace("@CERTIFICATE@", shown(&certificate))).unwrap();
        Self(Listening::start("haproxy", &["-db", "-f", shown(&path)], address, directory))
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}
