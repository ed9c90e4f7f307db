//! Real HTTP proxies for a test: tinyproxy and squid, with a user name and a password or without.
//! Own directory, own port, killed by their process id on drop.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::listening::{Listening, directory, shown};
use crate::mosquitto::free_address;

/// User name that the proxies accept.
pub const USER: &str = "me";
/// Password that the proxies accept.
pub const PASSWORD: &str = "secret";

/// A running proxy.
pub struct HttpProxy(Listening);

/// Whether a proxy requires [`USER`] and [`PASSWORD`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Login {
    Required,
    None,
}

/// Returns the configuration of a tinyproxy that allows CONNECT to one port. It resolves names as
/// its machine does.
pub fn tinyproxy(address: SocketAddr, allowed: u16, login: Login) -> String {
    let login = match login {
        Login::Required => format!("BasicAuth {USER} {PASSWORD}\n"),
        Login::None => String::new(),
    };
    format!(
        "Port {}\nListen {}\nTimeout 600\nMaxClients 20\nAllow 127.0.0.0/8\nAllow 192.0.2.0/24\n\
         ConnectPort {allowed}\n{login}",
        address.port(),
        address.ip()
    )
}

/// Writes the configuration of a squid with a password that allows CONNECT to one port, and
/// resolves `broker.example` and `cloud.example` to an address. Returns its path.
pub fn squid(directory: &Path, address: SocketAddr, allowed: u16, broker: IpAddr) -> PathBuf {
    let file = |name: &str, text: &str, mode: u32| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        // squid runs as its own user.
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let hosts = file("hosts", &format!("{broker} broker.example cloud.example\n"), 0o644);
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
    file("squid.conf", &config, 0o644)
}

impl HttpProxy {
    /// Starts a [`tinyproxy`] with a password.
    pub fn tinyproxy(allowed: u16) -> Self {
        Self::start_tinyproxy(allowed, Login::Required)
    }

    /// Starts a [`tinyproxy`] without a password.
    pub fn open_tinyproxy(allowed: u16) -> Self {
        Self::start_tinyproxy(allowed, Login::None)
    }

    fn start_tinyproxy(allowed: u16, login: Login) -> Self {
        let (directory, address) = (directory(), free_address());
        let path = directory.path().join("tinyproxy.conf");
        fs::write(&path, tinyproxy(address, allowed, login)).unwrap();
        Self(Listening::start("tinyproxy", &["-d", "-c", shown(&path)], address, directory))
    }

    /// Starts a [`squid`].
    pub fn squid(allowed: u16, broker: IpAddr) -> Self {
        let (directory, address) = (directory(), free_address());
        let config = squid(directory.path(), address, allowed, broker);
        Self(Listening::start("squid", &["-N", "-f", shown(&config)], address, directory))
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}
