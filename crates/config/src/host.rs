//! Hosts and ports in service addresses.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use super::binding::quote;

/// Default port of the join service, as KubeEdge's.
const JOIN_PORT: u16 = 10_002;
const JOIN_URL: &str = "an address such as \"https://cloud.example:10002\"";

/// Address of the join service: `https://HOST:PORT`; the default port is 10002.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinUrl {
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port of the service.
    pub port: u16,
}

impl FromStr for JoinUrl {
    type Err = String;

    /// Parses an address; the error states the requirement.
    fn from_str(text: &str) -> Result<Self, String> {
        let refused = |why: &str| format!("must be {JOIN_URL}, not {}{why}", quote(text));
        let rest = text.strip_prefix("https://").ok_or_else(|| refused(""))?;
        let (host, port) = split(rest.strip_suffix('/').unwrap_or(rest)).map_err(refused)?;
        Ok(Self { host, port: port.unwrap_or(JOIN_PORT) })
    }
}

impl fmt::Display for JoinUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", join(&self.host, self.port))
    }
}

/// Parses `host`, `host:port`, `[address]` or `[address]:port`.
///
/// # Errors
/// The text has another form; the error is the end of a sentence.
pub fn split(text: &str) -> Result<(String, Option<u16>), &'static str> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) if host.parse::<Ipv6Addr>().is_ok() => match rest {
            "" => (host, None),
            rest => (host, Some(rest.strip_prefix(':').ok_or("")?)),
        },
        Some(_) => return Err(""),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let host_ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b':');
    if host.is_empty() || host.len() > 253 || !host.bytes().all(host_ok) {
        return Err("");
    }
    match port.map(str::parse) {
        None => Ok((host.to_owned(), None)),
        Some(Ok(port)) if port > 0 => Ok((host.to_owned(), Some(port))),
        Some(_) => Err(": only a port from 1 to 65535 may follow the host"),
    }
}

/// Formats host and port, the inverse of [`split`].
#[must_use]
pub fn join(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Returns whether a host is this machine.
pub(super) fn is_local(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Returns the host name in lower case, as node names require; empty if the system has none.
#[must_use]
pub fn host_name() -> String {
    lower_case(&std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default())
}

fn lower_case(line: &str) -> String {
    line.trim().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_in_lower_case() {
        for (line, name) in [("Gateway-7\n", "gateway-7"), ("DESKTOP.Lab\n", "desktop.lab"), ("\n", "")] {
            assert_eq!(lower_case(line), name);
        }
    }

    #[test]
    fn join_services_are_parsed_with_and_without_port() {
        for (text, shown) in [
            ("https://cloud.example", "https://cloud.example:10002"),
            ("https://cloud.example/", "https://cloud.example:10002"),
            ("https://192.0.2.1:444", "https://192.0.2.1:444"),
            ("https://[::1]", "https://[::1]:10002"),
            ("https://[::1]:1", "https://[::1]:1"),
        ] {
            let url: JoinUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(shown.parse(), Ok(url));
        }
        for bad in [
            "",
            "cloud.example:10002",
            "http://a",
            "https://",
            "https://a:0",
            "https://a:x",
            "https://a b",
            "https://[::1",
        ] {
            let problem = bad.parse::<JoinUrl>().unwrap_err();
            assert!(problem.starts_with("must be an address such as"), "{bad}: {problem}");
        }
    }
}
