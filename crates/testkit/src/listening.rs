//! A program that listens on a port: started, awaited, and killed by its process id on drop.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::timing::{PATIENCE, is_within};

/// Polling interval of the port.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A running program, with the directory of its files.
pub(crate) struct Listening {
    address: SocketAddr,
    child: Child,
    _directory: TempDir,
}

impl Listening {
    /// Starts a program, and waits until it listens on `address`. Without it the test fails, with
    /// the package to install.
    pub(crate) fn start(program: &str, arguments: &[&str], address: SocketAddr, directory: TempDir) -> Self {
        let spawned = Command::new(program)
            .args(arguments)
            // Debian installs such programs outside of users' PATH.
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
        let mut listening = Self { address, child, _directory: directory };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = listening.child.try_wait().unwrap();
            assert!(ended.is_none(), "{program} has ended: {ended:?}");
            assert!(is_within(begun.elapsed(), PATIENCE), "{program} does not listen on {address}");
            std::thread::park_timeout(POLL_INTERVAL);
        }
        listening
    }

    /// Returns the address that it listens on.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates a directory that a program with its own user may enter.
pub(crate) fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

pub(crate) fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}
