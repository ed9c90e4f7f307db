//! Real HTTP proxies for a test: tinyproxy and squid with a user name and a password. Own
//! directory, own port, killed by their process id on drop.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;

use crate::listening::{Listening, directory, shown};
use crate::mosquitto::free_address;

/// User name that the proxies accept.
pub const USER: &str = "me";
/// Password that the proxies accept.
pub const PASSWORD: &str = "secret";

/// A running proxy.
pub struct HttpProxy(Listening);

impl HttpProxy {
    /// Starts a tinyproxy that allows CONNECT to one port. It resolves names as this machine does.
    pub fn tinyproxy(allowed: u16) -> Self {
        let (directory, address) = (directory(), free_address());
        let config = format!(
            "Port {}\nListen {}\nTimeout 600\nMaxClients 20\nAllow 127.0.0.0/8\nConnectPort {allowed}\n\
             BasicAuth {USER} {PASSWORD}\n",
            address.port(),
            address.ip()
        );
        let path = directory.path().join("tinyproxy.conf");
        fs::write(&path, config).unwrap();
        Self(Listening::start("tinyproxy", &["-d", "-c", shown(&path)], address, directory))
    }

    /// Starts a squid that allows CONNECT to one port, and resolves `broker.example` to an address.
    pub fn squid(allowed: u16, broker: std::net::IpAddr) -> Self {
        let (directory, address) = (directory(), free_address());
        let file = |name: &str, text: &str, mode: u32| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            // squid runs as its own user.
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let hosts = file("hosts", &format!("{broker} broker.example\n"), 0o644);
        let users = format!(
            "#!/bin/sh\nwhile read -r user password; do\n    if [ \"$user $password\" = \"{USER} {PASSWORD}\" ]; then\n        \
             echo OK\n    else\n        echo ERR\n    fi\ndone\n"
        );
        let users = file("users", &users, 0o755);
        let config = format!(
            "http_port {address}\nhosts_file {}\npid_filename none\naccess_log none\ncache_log /dev/null\n\
             cache_store_log none\ncache deny all\ncache_mem 1 MB\nnetdb_filename none\ncoredump_dir none\n\
             pinger_enable off\nshutdown_lifetime 0 seconds\nauth_param basic program {}\n\
             auth_param basic children 1\nacl allowed port {allowed}\nacl known proxy_auth REQUIRED\n\
             http_access deny !allowed\nhttp_access allow known\nhttp_access deny all\n",
            hosts.display(),
            users.display()
        );
        let config = file("squid.conf", &config, 0o644);
        Self(Listening::start("squid", &["-N", "-f", shown(&config)], address, directory))
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}
