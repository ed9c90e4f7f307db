//! Chooses the service of a connection by ALPN, SNI and its first bytes. Pure.
//!
//! ALPN decides between MQTT and HTTP; a client without ALPN, such as an older agent, shows it
//! with its first byte. The host name (SNI) can reserve a connection for one service. The path of
//! the first HTTP request chooses among the rest.

use std::fmt::Write as _;

use crate::tls::Offer;
use crate::websocket;

/// ALPN name of MQTT, as registered with IANA.
pub(super) const MQTT: &str = "mqtt";
/// ALPN name of HTTP/1.1.
pub(super) const HTTP: &str = "http/1.1";

/// The longest request line that is read to choose a service, in bytes.
const MAX_LINE: usize = 8 << 10;
/// The first byte of a CONNECT. No HTTP request begins with it.
const CONNECT: u8 = 0x10;
/// The beginning of HTTP/2 without ALPN.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2";
/// Maximum number of a client's protocols in a message, and characters of each.
const SHOWN: usize = 5;
const SHOWN_CHARACTERS: usize = 32;

/// A service behind a shared listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// MQTT, also over WebSocket.
    Mqtt,
    /// Joining, and renewal of certificates.
    Join,
    /// The API, and the page.
    Api,
}

impl std::fmt::Display for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Mqtt => "mqtt",
            Self::Join => "join",
            Self::Api => "api",
        })
    }
}

/// The services of a listener, and how they are distinguished.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// The services that are served.
    pub services: Vec<Service>,
    /// Host names that are for one service only. All other names are for all services.
    pub names: Vec<(String, Service)>,
    /// Paths of the join service, without query. All others but [`websocket::PATH`] are the
    /// API's.
    pub join_paths: &'static [&'static str],
}

/// The outcome of a ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Protocol of the first bytes.
    pub(super) speaks: Speaks,
    /// The only service under the name of the client's choice.
    pub(super) only: Option<Service>,
}

/// Protocol inside TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    /// MQTT, by ALPN or by name.
    Mqtt,
    /// HTTP/1.1, by ALPN or by name.
    Http,
    /// The first byte decides: the client sent no ALPN.
    Either,
}

/// A service, and whether its protocol is inside a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    /// The service.
    pub(super) service: Service,
    /// Whether the first bytes are the request of a WebSocket.
    pub(super) web_socket: bool,
}

/// Reason why no service takes a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoRoute {
    /// ALPN names no protocol of this listener.
    #[error("no common protocol: the client offers {0} (ALPN), this port speaks mqtt and http/1.1")]
    Protocols(String),
    /// The service is off here, or has another name.
    #[error("{service} is not served {place}")]
    NotServed {
        /// The service.
        service: Service,
        /// The listener, or the name that is reserved for another service.
        place: String,
    },
    /// The first byte begins neither protocol.
    #[error("first byte {0:#04x} begins neither an MQTT CONNECT nor an HTTP request")]
    Unknown(u8),
    /// HTTP/2 is not served.
    #[error("HTTP/2 is not served, HTTP/1.1 is")]
    Http2,
    /// The request line is too long, or none.
    #[error("{0}")]
    Line(&'static str),
}

impl NoRoute {
    /// Returns the HTTP status for a client that has sent an HTTP request.
    pub(super) fn http_status(&self) -> Option<&'static str> {
        match self {
            Self::Protocols(_) | Self::Unknown(_) => None,
            Self::NotServed { .. } => Some("404 Not Found"),
            Self::Http2 => Some("505 HTTP Version Not Supported"),
            Self::Line(_) => Some("400 Bad Request"),
        }
    }
}

impl Routes {
    /// Returns whether a service is served.
    fn serves(&self, service: Service) -> bool {
        self.services.contains(&service)
    }

    /// Chooses by the ClientHello. Of several protocols that the client offers, its first one
    /// that is served counts.
    ///
    /// # Errors
    /// It offers no protocol that is served, or the service under its name is not.
    pub(super) fn by_hello(&self, offer: &Offer) -> Result<Choice, NoRoute> {
        let name = offer.server_name.as_deref();
        let only = name.and_then(|name| self.names.iter().find(|(reserved, _)| reserved == name));
        let only = only.map(|(_, service)| *service);
        let speaks = match &offer.protocols {
            Some(protocols) => protocols
                .iter()
                .find_map(|protocol| match protocol.as_slice() {
                    protocol if protocol == MQTT.as_bytes() => Some(Speaks::Mqtt),
                    protocol if protocol == HTTP.as_bytes() => Some(Speaks::Http),
                    _ => None,
                })
                .ok_or_else(|| NoRoute::Protocols(shown(protocols)))?,
            None => match only {
                Some(Service::Join | Service::Api) => Speaks::Http,
                // A WebSocket without ALPN is possible under a name of MQTT too.
                Some(Service::Mqtt) | None => Speaks::Either,
            },
        };
        let choice = Choice { speaks, only };
        if speaks == Speaks::Mqtt {
            self.check(Service::Mqtt, choice)?;
        }
        Ok(choice)
    }

    /// Chooses by the bytes received so far inside TLS; `None` if more are needed.
    ///
    /// # Errors
    /// They begin neither protocol, or the request of a service that is not served.
    pub(super) fn by_first_bytes(
        &self,
        choice: Choice,
        bytes: &[u8],
    ) -> Result<Option<Destination>, NoRoute> {
        let mqtt = Destination { service: Service::Mqtt, web_socket: false };
        let Some(first) = bytes.first() else {
            return Ok((choice.speaks == Speaks::Mqtt).then_some(mqtt));
        };
        match (choice.speaks, *first) {
            (Speaks::Mqtt, _) => return Ok(Some(mqtt)),
            (Speaks::Either, CONNECT) => return self.check(Service::Mqtt, choice).map(|()| Some(mqtt)),
            (_, first) if first.is_ascii_uppercase() => {}
            (_, first) => return Err(NoRoute::Unknown(first)),
        }
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            return match bytes.len() >= MAX_LINE {
                true => Err(NoRoute::Line("the request line is longer than 8192 bytes")),
                false => Ok(None),
            };
        };
        let line = &bytes[..end];
        if line.starts_with(HTTP2_PREFACE) {
            return Err(NoRoute::Http2);
        }
        let path = path_of(line).ok_or(NoRoute::Line("the first line is no HTTP/1.1 request"))?;
        let destination = match path {
            websocket::PATH => Destination { service: Service::Mqtt, web_socket: true },
            path if self.join_paths.contains(&path) => {
                Destination { service: Service::Join, web_socket: false }
            }
            _ => Destination { service: Service::Api, web_socket: false },
        };
        self.check(destination.service, choice)?;
        Ok(Some(destination))
    }

    fn check(&self, service: Service, choice: Choice) -> Result<(), NoRoute> {
        if !self.serves(service) {
            return Err(NoRoute::NotServed { service, place: "on this address".to_owned() });
        }
        match choice.only {
            Some(only) if only != service => Err(NoRoute::NotServed {
                service,
                place: format!("under this host name, which is for {only}"),
            }),
            _ => Ok(()),
        }
    }
}

/// Returns the path of a request line, without its query, also of a target in absolute form (RFC
/// 9112, section 3.2.2).
fn path_of(line: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(line).ok()?.trim_end_matches('\r');
    let mut words = line.split(' ');
    let (_, target, version) = (words.next()?, words.next()?, words.next()?);
    if words.next().is_some() || !version.starts_with("HTTP/1.") {
        return None;
    }
    let target = match target.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => rest.find('/').map_or("/", |at| &rest[at..]),
        _ => target,
    };
    target.split(['?', '#']).next()
}

/// Returns a client's protocols for a message, shortened and escaped.
fn shown(protocols: &[Vec<u8>]) -> String {
    let mut text = String::new();
    for protocol in protocols.iter().take(SHOWN) {
        let protocol: String = String::from_utf8_lossy(protocol).chars().take(SHOWN_CHARACTERS).collect();
        let separator = if text.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{separator}{}", protocol.escape_debug());
    }
    if protocols.len() > SHOWN {
        text.push_str(", …");
    }
    text
}

#[cfg(test)]
mod tests;
