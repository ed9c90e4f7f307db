//! IP addresses, CIDRs and URLs.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Parses an IP address. IPv4-mapped IPv6 and zones are refused, as in Kubernetes.
pub(super) fn ip(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    let mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    (!mapped).then_some(address)
}

/// Parses a CIDR; the length has no leading zero, host bits may be set.
pub(super) fn cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let address = ip(address)?;
    let plain = !bits.starts_with('+') && (bits == "0" || !bits.starts_with('0'));
    let bits: u8 = bits.parse().ok().filter(|_| plain)?;
    (bits <= width(address)).then_some((address, bits))
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Returns the first address of a CIDR.
pub(super) fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or_default();
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or_default();
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
}

/// Returns whether a CIDR contains an address.
pub(super) fn contains((network, bits): (IpAddr, u8), address: IpAddr) -> bool {
    network.is_ipv4() == address.is_ipv4() && masked(address, bits) == masked(network, bits)
}

/// Evaluates a predicate of an address, such as `isLoopback`.
pub(super) fn is(address: IpAddr, what: &str) -> bool {
    let (local, local_group) = match address {
        IpAddr::V4(address) => (address.is_link_local(), matches!(address.octets(), [224, 0, 0, _])),
        IpAddr::V6(address) => {
            let first = address.segments()[0];
            (first & 0xffc0 == 0xfe80, first & 0xff0f == 0xff02)
        }
    };
    match what {
        "isUnspecified" => address.is_unspecified(),
        "isLoopback" => address.is_loopback(),
        "isLinkLocalMulticast" => local_group,
        "isLinkLocalUnicast" => local,
        _ => {
            let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
            let special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
            !special && !local && !broadcast
        }
    }
}

/// An absolute URL or an absolute path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Url {
    pub(super) scheme: String,
    pub(super) host: String,
    pub(super) path: String,
    /// Decoded query parameters in order; a name may occur more than once.
    pub(super) query: Vec<(String, String)>,
}

impl Url {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let plain = |letter: char| !letter.is_control() && letter != ' ';
        if text.is_empty() || !text.chars().all(plain) || !well_encoded(text) {
            return None;
        }
        let (scheme, rest) = match text.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => (scheme.to_ascii_lowercase(), rest),
            _ if text.starts_with('/') => (String::new(), text),
            _ => return None,
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, path) = match rest.strip_prefix("//") {
            Some(rest) => {
                let end = rest.find('/').unwrap_or(rest.len());
                let (authority, path) = rest.split_at_checked(end)?;
                (authority.rsplit_once('@').map_or(authority, |(_, host)| host), path)
            }
            None if rest.starts_with('/') || !scheme.is_empty() => ("", rest),
            None => return None,
        };
        if !is_host(host) {
            return None;
        }
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let query = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        });
        Some(Self { scheme, host: host.to_owned(), path: path.to_owned(), query: query.collect() })
    }

    /// Bytes that a comparison reads.
    pub(super) fn weight(&self) -> usize {
        let query: usize = self.query.iter().map(|(name, value)| 64 + name.len() + value.len()).sum();
        self.scheme.len() + self.host.len() + self.path.len() + query
    }

    /// Returns the host without port and brackets.
    pub(super) fn hostname(&self) -> &str {
        match self.host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => self.host.rsplit_once(':').map_or(&self.host, |(host, _)| host),
        }
    }

    pub(super) fn port(&self) -> &str {
        let after = self.host.rsplit_once(']').map_or(&*self.host, |(_, rest)| rest);
        after.rsplit_once(':').map_or("", |(_, port)| port)
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && text.bytes().all(|letter| letter.is_ascii_alphanumeric() || b"+-.".contains(&letter))
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let Some((address, rest)) = rest.split_once(']') else { return false };
            if address.parse::<Ipv6Addr>().is_err() {
                return false;
            }
            ("", if rest.is_empty() { Some("") } else { rest.strip_prefix(':') })
        }
        None => host.split_once(':').map_or((host, Some("")), |(name, port)| (name, Some(port))),
    };
    let port_fits = port.is_some_and(|port| port.bytes().all(|letter| letter.is_ascii_digit()));
    port_fits && !name.contains(['<', '>', '"', '\\', '^', '`', '{', '|', '}', '#', '[', ']'])
}

/// Returns whether every percent sign is followed by two hexadecimal digits.
fn well_encoded(text: &str) -> bool {
    text.split('%').skip(1).all(|part| {
        let digits = part.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digit =
                    |byte: Option<u8>| char::from(byte.unwrap_or(b'0')).to_digit(16).unwrap_or_default();
                let code = digit(rest.next()) * 16 + digit(rest.next());
                bytes.push(code as u8);
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        let url = Url::parse("HTTPS://user:pw@example.com:80/a%20b/?x=1&y=%2f&x=2").unwrap();
        assert_eq!((url.scheme.as_str(), url.host.as_str()), ("https", "example.com:80"));
        assert_eq!((url.hostname(), url.port(), url.path.as_str()), ("example.com", "80", "/a%20b/"));
        assert_eq!(url.query[1], ("y".to_owned(), "/".to_owned()));
        let six = Url::parse("https://[::1]:8080/x").unwrap();
        assert_eq!((six.hostname(), six.port()), ("::1", "8080"));
        assert!(Url::parse("/path").is_some_and(|url| url.scheme.is_empty()));
        for text in
            ["", "example.com", "../a", "https://a b/", "https://[::1/", "https://a:b/", "https://a/%2"]
        {
            assert_eq!(Url::parse(text), None, "{text}");
        }
    }

    #[test]
    fn networks_contain_addresses_of_their_family() {
        let network = cidr("10.1.0.0/16").unwrap();
        assert!(contains(network, ip("10.1.2.3").unwrap()) && !contains(network, ip("10.2.0.0").unwrap()));
        assert!(!contains(network, ip("::1").unwrap()));
        assert_eq!(masked(ip("10.1.2.3").unwrap(), 0), ip("0.0.0.0").unwrap());
        for text in ["10.0.0.0", "10.0.0.0/33", "10.0.0.0/08", "::ffff:1.2.3.4/96", "x/1"] {
            assert_eq!(cidr(text), None, "{text}");
        }
    }
}
