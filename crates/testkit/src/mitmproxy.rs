//! A real mitmproxy: a proxy that inspects TLS. It presents certificates of its own CA, and opens
//! TLS to the server without any.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use edgesync_transport::tls::{Certificate, Trust};

use crate::kubectl::cache;
use crate::listening::{Listening, directory, shown};
use crate::mosquitto::free_address;

/// Common name of its CA, by which it is named as the issuer.
pub const ISSUER: &str = "mitmproxy";

/// A running mitmproxy.
pub struct Mitmproxy {
    listening: Listening,
    ca: PathBuf,
}

/// Returns the path of the program that `tests/run` has installed; `None`, with a notice, if it
/// could not.
pub fn program() -> Option<PathBuf> {
    let configured = std::env::var_os("EDGESYNC_TEST_MITMDUMP").map(PathBuf::from);
    let path = configured.unwrap_or_else(|| cache().join("mitmproxy/bin/mitmdump"));
    if path.exists() {
        return Some(path);
    }
    eprintln!(
        "notice: {} is not installed, so this test has shown nothing about a proxy that inspects TLS; tests/run puts it \
         there, with Python 3.10 or newer and a package index",
        path.display()
    );
    None
}

/// Returns the arguments of a proxy for CONNECT at an address, with its CA in a directory. Any
/// certificate of the server is good enough for it.
pub fn arguments(address: SocketAddr, directory: &Path) -> Vec<String> {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let confdir = format!("confdir={}", shown(directory));
    let all =
        ["--listen-host", &host, "--listen-port", &port, "--set", &confdir, "--set", "ssl_insecure=true"];
    all.map(str::to_owned).to_vec()
}

/// Returns the certificate of the CA in a directory, once the proxy listens.
pub fn ca_file(directory: &Path) -> PathBuf {
    directory.join("mitmproxy-ca-cert.pem")
}

impl Mitmproxy {
    /// Starts one for CONNECT. It resolves names as this machine does.
    pub fn connect() -> Option<Self> {
        Self::start(&[])
    }

    /// Starts one that stands in front of a TLS port, as a network puts it in without being asked.
    pub fn transparent(server: SocketAddr) -> Option<Self> {
        Self::start(&["--mode", &format!("reverse:tls://{server}")])
    }

    fn start(mode: &[&str]) -> Option<Self> {
        let program = program()?;
        let (directory, address) = (directory(), free_address());
        let all = arguments(address, directory.path());
        let all: Vec<&str> = all.iter().map(String::as_str).chain(mode.iter().copied()).collect();
        let ca = ca_file(directory.path());
        Some(Self { listening: Listening::start(shown(&program), &all, address, directory), ca })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// Returns its CA, as one who trusts it on purpose would configure it.
    pub fn trust(&self) -> Trust {
        let pem = fs::read_to_string(&self.ca).unwrap();
        Trust::new(Certificate::all_from_pem("the CA of mitmproxy", &pem).unwrap())
    }
}
