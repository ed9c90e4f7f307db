//! Real HTTP proxies for a test: tinyproxy and squid with a user name and a password. Own
//! directory, own port, killed by their process id on drop.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::mosquitto::free_address;
use crate::timing::{PATIENCE, is_within};

/// User name that the proxies accept.
pub const USER: &str = "me";
/// Password that the proxies accept.
pub const PASSWORD: &str = "secret";
/// Polling interval of the port.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A running proxy.
pub struct HttpProxy {
    address: SocketAddr,
    child: Child,
    _directory: TempDir,
}

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
        Self::start("tinyproxy", &["-d", "-c", shown(&path)], address, directory)
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
        Self::start("squid", &["-N", "-f", shown(&config)], address, directory)
    }

    fn start(program: &str, arguments: &[&str], address: SocketAddr, directory: TempDir) -> Self {
        let spawned = Command::new(program)
            .args(arguments)
            // Debian installs squid outside of users' PATH.
            .env("PATH", format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap_or_default()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                panic!("{program} is needed for this test and not installed: apt-get install {program}")
            }
            Err(error) => panic!("cannot start {program}: {error}"),
        };
        let mut proxy = Self { address, child, _directory: directory };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = proxy.child.try_wait().unwrap();
            assert!(ended.is_none(), "{program} has ended: {ended:?}");
            assert!(is_within(begun.elapsed(), PATIENCE), "{program} does not listen on {address}");
            std::thread::park_timeout(POLL_INTERVAL);
        }
        proxy
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates a directory that the user of a proxy may enter.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}
