//! Networks of IP addresses in CIDR notation.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A network such as `10.20.0.0/16` or `2001:db8::/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// Number of leading bits that all addresses share.
    prefix: u8,
}

impl Network {
    /// Returns whether an address is in the network. One that is mapped into IPv6 counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let rest = 32 - u32::from(self.prefix);
                (network.to_bits() ^ address.to_bits()).checked_shr(rest).unwrap_or_default() == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let rest = 128 - u32::from(self.prefix);
                (network.to_bits() ^ address.to_bits()).checked_shr(rest).unwrap_or_default() == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (address, prefix) = text.split_once('/')?;
            let (address, prefix): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
            let longest = if address.is_ipv4() { 32 } else { 128 };
            (prefix <= longest).then_some(Self { address, prefix })
        };
        parse().ok_or_else(|| format!("{text:?} is no network such as \"10.20.0.0/16\" or \"2001:db8::/32\""))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn network_contains_the_addresses_with_its_prefix() {
        for (text, inside, outside) in [
            ("10.20.0.0/16", "10.20.255.1", "10.21.0.0"),
            ("10.20.3.4/32", "10.20.3.4", "10.20.3.5"),
            ("0.0.0.0/0", "255.1.2.3", "::1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"),
            ("::/0", "fe80::1", "10.0.0.1"),
            ("10.20.0.0/16", "::ffff:10.20.0.1", "::ffff:10.21.0.1"),
        ] {
            assert!(network(text).contains(inside.parse().unwrap()), "{inside} in {text}");
            assert!(!network(text).contains(outside.parse().unwrap()), "{outside} in {text}");
            assert_eq!(network(text).to_string(), text);
        }
    }

    #[test]
    fn text_that_is_no_network_is_refused() {
        for text in ["", "10.20.0.0", "10.20.0.0/33", "10.20.0/16", "::/129", "10.0.0.0/-1", "a/8"] {
            assert!(text.parse::<Network>().unwrap_err().contains("is no network such as"), "{text}");
        }
    }
}
