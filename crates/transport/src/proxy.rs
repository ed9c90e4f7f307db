//! Proxies of a network: which connections use one, and HTTP CONNECT through it.
//!
//! A proxy is not trusted. It sees names and ports of the peers, and bytes of TLS; its answers are
//! bounded in size, and their caller bounds the time.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

mod exceptions;

use crate::response_head::{self, HeadError, ResponseHead};
use exceptions::Exceptions;

/// Port of a proxy whose address has none, as curl's.
const DEFAULT_PORT: u16 = 1080;
/// Variables with the address of a proxy, in their order. Every connection of these programs is one
/// that HTTP clients tunnel, as those of https.
const PROXY_VARIABLES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
/// Variables with the exceptions.
const EXCEPTION_VARIABLES: [&str; 2] = ["NO_PROXY", "no_proxy"];
/// Requirement for an address.
const URL: &str = "the address of an HTTP proxy such as \"http://proxy.example:3128\"";

/// An HTTP proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    host: String,
    port: u16,
    username: Option<String>,
    password: Option<String>,
}

/// Which connections use a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyRules {
    proxy: Option<Proxy>,
    exceptions: Exceptions,
}

/// Reason why a proxy opens no tunnel.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The proxy cannot be reached.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// The proxy wants a user name and a password, and none are configured (407).
    #[error(
        "requires a user name and a password (HTTP status {status}{schemes}); hint: set link.proxy to http://USER@HOST:PORT, and link.proxy_password_file"
    )]
    AuthenticationRequired {
        /// The status code.
        status: u16,
        /// The offered schemes, if `Basic` is not one of them.
        schemes: String,
    },
    /// The proxy refuses the configured user name and password (407, or 401 of tinyproxy).
    #[error(
        "refused user '{username}' (HTTP status {status}{schemes}); hint: check the name in link.proxy, and link.proxy_password_file"
    )]
    AuthenticationRefused {
        /// The status code.
        status: u16,
        /// The configured user name.
        username: String,
        /// The offered schemes, if `Basic` is not one of them.
        schemes: String,
    },
    /// The proxy does not allow this peer or its port (403).
    #[error(
        "does not allow {target} (HTTP status 403 {reason}); hint: have host and port allowed there, many proxies allow port 443 only"
    )]
    Forbidden {
        /// Host and port of the peer.
        target: String,
        /// Reason phrase of the proxy.
        reason: String,
    },
    /// The proxy cannot reach the peer (502 to 504, or 500 of tinyproxy and squid).
    #[error(
        "cannot reach {target} (HTTP status {status} {reason}); hint: check name and port of the peer, and the proxy's own network"
    )]
    PeerUnreachable {
        /// Host and port of the peer.
        target: String,
        /// The status code.
        status: u16,
        /// Reason phrase of the proxy.
        reason: String,
    },
    /// Another answer.
    #[error(
        "answered CONNECT with HTTP status {status} {reason}; hint: check that a proxy for CONNECT listens there"
    )]
    Status {
        /// The status code.
        status: u16,
        /// Reason phrase of the proxy.
        reason: String,
    },
    /// The answer is no HTTP, or too large.
    #[error("does not answer CONNECT: {0}; hint: check that an HTTP proxy listens there")]
    NotHttp(String),
    /// The proxy accepts and sends data of its own, such as a page.
    #[error(
        "accepts CONNECT and answers itself: a captive portal, or a server that is no proxy; hint: check link.proxy"
    )]
    NoTunnel,
}

impl Proxy {
    /// Parses `http://[USER[:PASSWORD]@]HOST[:PORT]`; user name and password may have
    /// percent-encoded characters.
    ///
    /// # Errors
    /// The address is invalid, with the requirement. It is not quoted: it may have a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refused = |why: &str| format!("must be {URL}{why}");
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some((scheme, _)) => {
                return Err(refused(&format!(", not of '{}'", response_head::shown(scheme.as_bytes()))));
            }
            // As curl and Go read the variables.
            None => text,
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, address) = match authority.rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, authority),
        };
        let (host, port) = split_port(address).ok_or_else(|| refused(""))?;
        let (username, password) = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
            None => (None, None),
            Some((name, password)) => {
                let decode = |text| decode(text).ok_or_else(|| refused(", with percent-encoded UTF-8"));
                let password = decode(password)?;
                (Some(decode(name)?), (!password.is_empty()).then_some(password))
            }
        };
        let port = port.unwrap_or(DEFAULT_PORT);
        Ok(Self { host: host.to_owned(), port, username, password })
    }

    /// Creates the proxy at a host, without brackets, with the user name for it.
    #[must_use]
    pub fn new(host: &str, port: u16, username: Option<&str>) -> Self {
        Self { host: host.to_owned(), port, username: username.map(str::to_owned), password: None }
    }

    /// Sets the password.
    #[must_use]
    pub fn with_password(self, password: String) -> Self {
        Self { password: Some(password), ..self }
    }

    /// Returns host name or address, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the TCP port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address as a URL with user name and password, for a library that takes one.
    #[must_use]
    pub fn secret_url(&self) -> String {
        let user = self.username.as_deref().map(|name| {
            let password = self.password.as_deref().unwrap_or_default();
            format!("{}:{}@", encode(name), encode(password))
        });
        format!("http://{}{}", user.unwrap_or_default(), authority(&self.host, self.port))
    }

    /// Returns the value of `Proxy-Authorization` (RFC 7617), if the proxy has a user name.
    fn authorization(&self) -> Option<String> {
        let name = self.username.as_deref()?;
        let password = self.password.as_deref().unwrap_or_default();
        Some(format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
    }

    /// Returns the request for a tunnel.
    fn request(&self, target: &str) -> String {
        let authorization = self.authorization();
        let authorization = authorization.map(|value| format!("Proxy-Authorization: {value}\r\n"));
        format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{}\r\n", authorization.unwrap_or_default())
    }

    /// Checks the response to a request for a tunnel. `is_silent` is whether nothing followed it: a
    /// server behind a tunnel waits for the client.
    fn check(&self, head: &ResponseHead, target: &str, is_silent: bool) -> Result<(), ProxyError> {
        let (target, reason) = (target.to_owned(), head.reason.clone());
        match head.status {
            200..=299 if is_silent => Ok(()),
            200..=299 => Err(ProxyError::NoTunnel),
            status @ (401 | 407) => {
                let schemes = schemes(head);
                Err(match &self.username {
                    None => ProxyError::AuthenticationRequired { status, schemes },
                    Some(name) => {
                        ProxyError::AuthenticationRefused { status, username: name.clone(), schemes }
                    }
                })
            }
            403 => Err(ProxyError::Forbidden { target, reason }),
            status @ (500 | 502..=504) => Err(ProxyError::PeerUnreachable { target, status, reason }),
            status => Err(ProxyError::Status { status, reason }),
        }
    }

    /// Opens a tunnel to a peer over a connection to this proxy. One request per connection: a
    /// refusal is not answered with another attempt.
    ///
    /// # Errors
    /// See [`ProxyError`]. The caller bounds the time.
    pub(crate) async fn tunnel<S>(&self, stream: &mut S, host: &str, port: u16) -> Result<(), ProxyError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let target = authority(host, port);
        let lost = |error: std::io::Error| ProxyError::Unreachable(format!("connection lost: {error}"));
        stream.write_all(self.request(&target).as_bytes()).await.map_err(lost)?;
        stream.flush().await.map_err(lost)?;
        let (head, rest) = response_head::read(stream).await.map_err(|error| match error {
            HeadError::Io(error) => lost(error),
            other => ProxyError::NotHttp(other.to_string()),
        })?;
        self.check(&head, &target, rest.is_empty())
    }
}

impl fmt::Display for Proxy {
    /// Formats the address without user name and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", authority(&self.host, self.port))
    }
}

impl fmt::Debug for Proxy {
    /// Omits the password, which must not get into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

impl ProxyRules {
    /// Uses `proxy` for all peers but those in `no_proxy`, which has the form of the variable
    /// `NO_PROXY`.
    #[must_use]
    pub fn new(proxy: Proxy, no_proxy: &str) -> Self {
        Self { proxy: Some(proxy), exceptions: Exceptions::parse(no_proxy) }
    }

    /// Reads the usual variables: `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, in capitals or not.
    ///
    /// # Errors
    /// A proxy's address is invalid; names the variable.
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let first = |names: &[&'static str]| {
            names.iter().find_map(|name| Some((*name, variable(name).filter(|value| !value.is_empty())?)))
        };
        let Some((name, address)) = first(&PROXY_VARIABLES) else { return Ok(Self::default()) };
        let proxy = Proxy::parse(&address).map_err(|problem| format!("variable {name} {problem}"))?;
        Ok(Self::new(proxy, &Self::exceptions_of(&variable)))
    }

    /// Returns the value of `NO_PROXY`, in capitals or not; empty without one.
    pub fn exceptions_of(variable: impl Fn(&str) -> Option<String>) -> String {
        EXCEPTION_VARIABLES.iter().find_map(|name| variable(name)).unwrap_or_default()
    }

    /// Sets the password of the proxy, if there is one.
    #[must_use]
    pub fn with_password(self, password: String) -> Self {
        Self { proxy: self.proxy.map(|proxy| proxy.with_password(password)), ..self }
    }

    /// Returns the proxy for connections to a peer; `None` for a direct one. `host` has no
    /// brackets. This machine is always reached directly.
    #[must_use]
    pub fn proxy_for(&self, host: &str, port: u16) -> Option<&Proxy> {
        self.proxy.as_ref().filter(|_| !self.exceptions.has(host, port))
    }
}

/// Formats host and port, with the brackets of an IPv6 address.
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Parses `host`, `host:port`, `[address]` or `[address]:port`; the host has no brackets.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_host = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b':');
    if host.is_empty() || host.len() > 253 || !host.bytes().all(is_host) {
        return None;
    }
    match port {
        None | Some("") => Some((host, None)),
        Some(port) => port.parse().ok().filter(|port| *port > 0).map(|port| (host, Some(port))),
    }
}

/// Decodes percent-encoded text; `None` if it is not UTF-8.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let hex = |byte: &u8| char::from(*byte).to_digit(16);
        match (first, tail) {
            (b'%', [high, low, ..]) if hex(high).is_some() && hex(low).is_some() => {
                let value = hex(high).unwrap_or(0) * 16 + hex(low).unwrap_or(0);
                bytes.push(u8::try_from(value).unwrap_or_default());
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// Encodes text for the user part of a URL.
fn encode(text: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
    text.bytes().map(|b| if is_plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Returns the end of a message: the schemes of a 407, if `Basic` is not one of them.
fn schemes(head: &ResponseHead) -> String {
    let offered = head.fields("proxy-authenticate").map(|field| field.split(' ').next().unwrap_or_default());
    let offered: Vec<&str> = offered.filter(|scheme| !scheme.is_empty()).collect();
    if offered.is_empty() || offered.iter().any(|scheme| scheme.eq_ignore_ascii_case("basic")) {
        return String::new();
    }
    let shown = response_head::shown(offered.join(", ").as_bytes());
    format!(", it offers {shown}, and only Basic is supported")
}

#[cfg(test)]
mod tests;
