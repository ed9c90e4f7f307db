//! Address of an API: TCP with or without TLS, or the path of a Unix socket.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

/// An API address: `127.0.0.1:8080`, `http://localhost:8080`, `https://cloud.example:10551`,
/// `unix:/run/x.sock`, or a path with a slash, such as `/run/x.sock` or `other/x.sock`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP; with port 0 the system chooses one when listening.
    Tcp(SocketAddr),
    /// TLS with certificates on both sides.
    Tls {
        /// Host name or IP address without brackets; the server's certificate must be valid for it.
        host: String,
        /// TCP port, not 0.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// Error of a text that is no [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no address: expected the path of a socket such as /run/edgesync/edgesync.sock, IP:PORT such as 127.0.0.1:8080, or https://HOST:PORT"
)]
pub struct AddressError(pub String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let invalid = || AddressError(text.chars().take(128).collect());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.contains('/') { Ok(Self::Unix(path.into())) } else { Err(invalid()) };
        }
        // A slash at the end may follow a port, and other schemes are refused below.
        let has_slash = text.trim_end_matches('/').contains('/');
        if text.starts_with('/') || has_slash && !text.contains("://") {
            return Ok(Self::Unix(text.into()));
        }
        if let Some(authority) = text.strip_prefix("https://") {
            let (host, port) = host_and_port(authority.trim_end_matches('/')).ok_or_else(invalid)?;
            return Ok(Self::Tls { host, port });
        }
        let host_and_port = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        if let Some(port) = host_and_port.strip_prefix("localhost:") {
            let port = port.parse().map_err(|_| invalid())?;
            return Ok(Self::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)));
        }
        host_and_port.parse().map(Self::Tcp).map_err(|_| invalid())
    }
}

/// Parses `HOST:PORT`, with an IPv6 address in brackets.
fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => host.parse::<Ipv6Addr>().ok().map(|_| host)?,
        None => host,
    };
    let named = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    let is_host = (1..=253).contains(&host.len()) && host.bytes().all(named);
    let is_host = is_host || host.parse::<Ipv6Addr>().is_ok() && text.starts_with('[');
    let port = port.parse().ok().filter(|port| *port > 0 && is_host)?;
    Some((host.to_owned(), port))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Tls { host, port } if host.contains(':') => write!(f, "https://[{host}]:{port}"),
            Self::Tls { host, port } => write!(f, "https://{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_in_every_form_and_format_in_one() {
        for (text, shown) in [
            ("/run/a.sock", "unix:/run/a.sock"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
            ("unix:///run/a.sock", "unix:/run/a.sock"),
            ("./a.sock", "unix:./a.sock"),
            ("other/a.sock", "unix:other/a.sock"),
            ("unix:other/a.sock", "unix:other/a.sock"),
            ("127.0.0.1:80/", "http://127.0.0.1:80"),
            ("127.0.0.1:80", "http://127.0.0.1:80"),
            ("http://[::1]:80/", "http://[::1]:80"),
            ("localhost:0", "http://127.0.0.1:0"),
            ("https://cloud.example:10551/", "https://cloud.example:10551"),
            ("https://127.0.0.1:1", "https://127.0.0.1:1"),
            ("https://[::1]:10551", "https://[::1]:10551"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(shown.parse(), Ok(address));
        }
        for bad in [
            "",
            "80",
            "80/",
            "ftp://example.com/a",
            "example.com:80",
            "unix:a",
            "127.0.0.1",
            "localhost:x",
            "https://",
            "https://cloud.example",
            "https://cloud.example:0",
            "https://:1",
            "https://::1:1",
            "https://[x]:1",
            "https://user@cloud:1",
            "https://cloud:1/path",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
