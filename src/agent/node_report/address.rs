//! Determines this machine's address from the kernel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Documentation addresses (RFC 5737, RFC 3849), which are routed by the default route.
pub(in crate::agent) const DEFAULT_ROUTE_PROBES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

/// Any port: nothing is sent.
const PORT: u16 = 9;
/// Flags in `if_inet6` that make an address unreliable: temporary, duplicate, deprecated,
/// tentative.
const UNRELIABLE: u8 = 0x01 | 0x08 | 0x20 | 0x40;

/// Returns the kernel's source address for a destination. Connecting a datagram socket selects the
/// route and sends nothing.
pub(in crate::agent) fn source(to: IpAddr) -> Option<IpAddr> {
    let any = if to.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((to, PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Returns whether others can reach a machine at this address.
#[allow(clippy::trivially_copy_pass_by_ref)] // As a filter.
pub(super) fn is_usable(address: &IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(is_link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// Returns the lowest usable address of this machine in `/proc/net/fib_trie`: the line after a
/// leaf's address has its type.
pub(super) fn in_fib_trie(text: &str) -> Option<IpAddr> {
    let mut leaf = None;
    let mut found = None::<IpAddr>;
    for line in text.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" {
            let address = leaf.map(IpAddr::V4).filter(is_usable);
            found = address.into_iter().chain(found).min();
        }
    }
    found
}

/// Returns the lowest usable address in `/proc/net/if_inet6`: address, index, prefix, scope, flags,
/// interface.
pub(super) fn in_if_inet6(text: &str) -> Option<IpAddr> {
    let address = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let address = u128::from_str_radix(fields.next()?, 16).ok()?;
        let flags = u8::from_str_radix(fields.nth(3)?.get(..2)?, 16).ok()?;
        (flags & UNRELIABLE == 0).then(|| IpAddr::from(Ipv6Addr::from_bits(address)))
    };
    text.lines().filter_map(address).filter(is_usable).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRIE: &str = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
     +-- 10.1.7.0/24 2 0 2
        |-- 10.1.7.0
           /24 link UNICAST
        |-- 10.1.7.42
           /32 host LOCAL
        |-- 10.1.7.255
           /32 link BROADCAST
     +-- 172.17.0.0/16 2 0 2
        |-- 172.17.0.1
           /32 host LOCAL
     |-- 169.254.3.3
        /32 host LOCAL
Local:
     |-- 10.1.7.42
        /32 host LOCAL
";

    #[test]
    fn interface_addresses_exclude_loopback_broadcast_link_local() {
        assert_eq!(in_fib_trie(TRIE), Some([10, 1, 7, 42].into()));
        assert_eq!(in_fib_trie("     |-- 127.0.0.1\n        /32 host LOCAL\n"), None);
        assert_eq!(in_fib_trie("/32 host LOCAL\n|-- x\n/32 host LOCAL"), None);
    }

    #[test]
    fn temporary_addresses_are_not_reported() {
        let text = "\
00000000000000000000000000000001 01 80 10 80       lo
fe8000000000000002005efffe000001 02 40 20 80     eth0
20010db8000000000000000000000003 02 40 00 01     eth0
20010db8000000000000000000000004 02 40 00 a0     eth0
20010db8000000000000000000000005 02 40 00 c0     eth0
20010db8000000000000000000000007 02 40 00 00     eth0
20010db8000000000000000000000006 02 40 00 80     eth0
";
        assert_eq!(in_if_inet6(text), Some("2001:db8::6".parse().unwrap()));
        assert_eq!(in_if_inet6("20010db8 02\nzz 02 40 00 80 eth0\n"), None);
    }

    #[test]
    fn the_source_address_for_loopback_is_loopback() {
        assert_eq!(source(Ipv4Addr::LOCALHOST.into()), Some(Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn usable_addresses_are_reachable_by_others() {
        for good in ["10.0.0.1", "192.168.1.2", "100.64.0.1", "2001:db8::1", "fd00::2"] {
            assert!(is_usable(&good.parse().unwrap()), "{good}");
        }
        for bad in [
            "127.0.0.1",
            "0.0.0.0",
            "169.254.1.1",
            "255.255.255.255",
            "224.0.0.1",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!is_usable(&bad.parse().unwrap()), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn parsers_never_panic(text in "[|/ \\-0-9a-f.\n LOCALhost]{0,200}") {
            in_fib_trie(&text);
            in_if_inet6(&text);
        }
    }
}
