//! `NO_PROXY`: the peers that are reached without a proxy. Pure.
//!
//! Its meaning is that of Go, and so of Kubernetes and its tools: `*` is every peer; an IP address
//! or a block such as `10.0.0.0/8` matches addresses, not names that resolve to them; `example.com`
//! matches that name and those below it, `.example.com` only those below it; a port after an entry
//! limits it to that port.

use std::net::IpAddr;

/// Maximum number of entries; further ones are ignored.
const MAX_ENTRIES: usize = 1024;

/// The peers that are reached without a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exceptions(Vec<Exception>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Exception {
    peers: Peers,
    /// The only port that it concerns.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Peers {
    All,
    /// Addresses with the same first bits.
    Block(IpAddr, u32),
    /// A name, in lower case, and those below it.
    Domain(String),
    /// The names below a name.
    Below(String),
}

impl Exceptions {
    /// Parses entries separated by commas or spaces. Those that mean nothing match nothing.
    pub(crate) fn parse(text: &str) -> Self {
        let entries = text.split([',', ' ', '\t']).map(str::trim).filter(|entry| !entry.is_empty());
        Self(entries.take(MAX_ENTRIES).filter_map(Exception::parse).collect())
    }

    /// Returns whether a peer is reached without a proxy. This machine always is.
    pub(crate) fn has(&self, host: &str, port: u16) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        let host = host.to_ascii_lowercase();
        let address = host.parse::<IpAddr>().ok();
        if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
            return true;
        }
        self.0.iter().any(|entry| {
            entry.port.is_none_or(|only| only == port)
                && match (&entry.peers, address) {
                    (Peers::All, _) => true,
                    (Peers::Block(base, bits), Some(address)) => is_within(address, *base, *bits),
                    (Peers::Domain(name), None) => host == *name || is_below(&host, name),
                    (Peers::Below(name), None) => is_below(&host, name),
                    _ => false,
                }
        })
    }
}

impl Exception {
    fn parse(entry: &str) -> Option<Self> {
        if entry == "*" {
            return Some(Self { peers: Peers::All, port: None });
        }
        if let Some((base, bits)) = entry.split_once('/') {
            let base: IpAddr = base.parse().ok()?;
            let bits = bits.parse().ok().filter(|bits| *bits <= if base.is_ipv4() { 32 } else { 128 })?;
            return Some(Self { peers: Peers::Block(base, bits), port: None });
        }
        let (host, port) = match entry.parse::<IpAddr>() {
            // Without brackets it has no port.
            Ok(_) => (entry, None),
            Err(_) => super::split_port(entry.strip_prefix("*.").unwrap_or(entry))?,
        };
        if let Ok(address) = host.parse::<IpAddr>() {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            return Some(Self { peers: Peers::Block(address, bits), port });
        }
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let peers = match host.strip_prefix('.') {
            Some(name) => Peers::Below(name.to_owned()),
            None if entry.starts_with("*.") => Peers::Below(host),
            None => Peers::Domain(host),
        };
        Some(Self { peers, port })
    }
}

fn is_below(host: &str, name: &str) -> bool {
    host.strip_suffix(name).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

/// Returns whether the first `bits` of two addresses of one family are equal.
fn is_within(address: IpAddr, base: IpAddr, bits: u32) -> bool {
    match (address.to_canonical(), base.to_canonical()) {
        (IpAddr::V4(address), IpAddr::V4(base)) => {
            let differ = u32::from(address) ^ u32::from(base);
            bits.min(32) == 0 || differ >> (32 - bits.min(32)) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(base)) => {
            let differ = u128::from(address) ^ u128::from(base);
            bits.min(128) == 0 || differ >> (128 - bits.min(128)) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(exceptions: &str, host: &str) -> bool {
        Exceptions::parse(exceptions).has(host, 443)
    }

    #[test]
    fn this_machine_needs_no_exception() {
        for host in ["localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "::1", "[::1]"] {
            assert!(has("", host), "{host}");
        }
        assert!(!has("", "example.com") && !has("", "10.0.0.1"));
    }

    #[test]
    fn names_match_themselves_and_those_below() {
        for host in ["example.com", "Example.COM", "a.example.com", "b.a.example.com."] {
            assert!(has("x.org, example.com", host), "{host}");
        }
        for host in ["notexample.com", "example.com.org", "com"] {
            assert!(!has("example.com", host), "{host}");
        }
    }

    #[test]
    fn leading_dot_excludes_the_name_itself() {
        for entry in [".example.com", "*.example.com"] {
            assert!(has(entry, "a.example.com"), "{entry}");
            assert!(!has(entry, "example.com"), "{entry}");
        }
    }

    #[test]
    fn addresses_and_blocks_match_addresses_only() {
        assert!(has("10.0.0.0/8", "10.200.3.4") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("192.0.2.7", "192.0.2.7") && !has("192.0.2.7", "192.0.2.8"));
        assert!(has("2001:db8::/32", "2001:db8:1::5") && !has("2001:db8::/32", "2001:db9::"));
        assert!(has("::ffff:10.0.0.1", "10.0.0.1") && !has("::ffff:10.0.0.1", "10.0.0.2"));
        assert!(has("0.0.0.0/0", "8.8.8.8") && !has("0.0.0.0/0", "2001:db8::1"));
        assert!(!has("10.0.0.0/8", "ten.example"));
        assert!(!has("10.0.0.0/33,10.0.0.0/x,/8", "10.0.0.1"));
    }

    #[test]
    fn star_matches_everything() {
        assert!(has("a, *", "example.com") && has("*", "10.0.0.1"));
    }

    #[test]
    fn port_limits_an_entry() {
        let exceptions = Exceptions::parse("example.com:8883,[2001:db8::1]:443,10.0.0.1:1");
        assert!(exceptions.has("example.com", 8883) && !exceptions.has("example.com", 443));
        assert!(exceptions.has("2001:db8::1", 443) && !exceptions.has("2001:db8::1", 444));
        assert!(exceptions.has("10.0.0.1", 1) && !exceptions.has("10.0.0.1", 2));
    }
}
