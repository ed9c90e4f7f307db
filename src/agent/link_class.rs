//! Decides whether the link is metered: by the configuration, by the interface of the route to the
//! cloud, and by NetworkManager. Nothing is sent for it, so the class is known before a connection.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::node_report::{DEFAULT_ROUTE_PROBES, source};
use edgesync_config::Metered;

/// Time limit for the answer of NetworkManager.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which its program is checked for its end.
const POLL: Duration = Duration::from_millis(20);
/// Maximum bytes read from a file of `/proc`.
const MAX_TABLE: usize = 1 << 20;

/// The class of a link, and what decided it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkClass {
    pub(super) is_metered: bool,
    pub(super) because: String,
}

/// Decides the class. `manager` is whether NetworkManager calls the connection metered, if it says.
pub(super) fn classify(
    mode: Metered,
    interface: Option<&str>,
    patterns: &[String],
    manager: Option<bool>,
) -> LinkClass {
    let class = |is_metered, because: &str| LinkClass { is_metered, because: because.to_owned() };
    match (mode, interface) {
        (Metered::On, _) => class(true, "traffic.metered is \"on\""),
        (Metered::Off, _) => class(false, "traffic.metered is \"off\""),
        (Metered::Auto, Some(name)) if patterns.iter().any(|pattern| is_match(pattern, name)) => {
            class(true, &format!("interface {name}"))
        }
        (Metered::Auto, _) if manager == Some(true) => class(true, "NetworkManager"),
        (Metered::Auto, Some(name)) => class(false, &format!("interface {name}")),
        (Metered::Auto, None) if manager == Some(false) => class(false, "NetworkManager"),
        // Which link it will be is unknown, and a budget must hold on each.
        (Metered::Auto, None) => class(true, "no route"),
    }
}

fn is_match(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |begin| name.starts_with(begin))
}

/// Returns the interface of the route to a host: that of the default route if it is a name.
pub(super) fn interface_to(host: &str) -> Option<String> {
    let towards = host.parse().ok().into_iter().chain(DEFAULT_ROUTE_PROBES);
    towards.into_iter().find_map(|address: IpAddr| match address.to_canonical() {
        IpAddr::V4(address) => in_route(&table("/proc/net/route")?, address),
        IpAddr::V6(address) => match source(IpAddr::V6(address))? {
            IpAddr::V6(own) => in_if_inet6(&table("/proc/net/if_inet6")?, own),
            IpAddr::V4(_) => None,
        },
    })
}

fn table(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().filter(|text| text.len() <= MAX_TABLE)
}

/// Returns the interface of the longest, then cheapest route to an address in `/proc/net/route`:
/// interface, destination, gateway, flags, two counts, metric, mask; numbers are hexadecimal, those
/// of addresses in the order of bytes of the machine.
fn in_route(text: &str, to: Ipv4Addr) -> Option<String> {
    const UP: u32 = 1;
    const REJECT: u32 = 0x200;
    let to = u32::from_ne_bytes(to.octets());
    let routes = text.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
        let (destination, flags, mask) = (number(1)?, number(3)?, number(7)?);
        let metric: u32 = fields.get(6)?.parse().ok()?;
        let is_it = flags & (UP | REJECT) == UP && to & mask == destination;
        is_it.then(|| (mask.count_ones(), std::cmp::Reverse(metric), fields[0]))
    });
    routes.max_by_key(|(length, metric, _)| (*length, *metric)).map(|(.., name)| name.to_owned())
}

/// Returns the interface of an own address in `/proc/net/if_inet6`: address, index, prefix, scope,
/// flags, interface.
fn in_if_inet6(text: &str, own: Ipv6Addr) -> Option<String> {
    text.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let address = u128::from_str_radix(fields.next()?, 16).ok()?;
        (address == own.to_bits()).then(|| fields.nth(4).map(str::to_owned))?
    })
}

/// Asks NetworkManager whether the primary connection is metered; `None` if it does not say. Blocks
/// for two seconds at most.
pub(super) fn ask_network_manager() -> Option<bool> {
    let mut asked = Command::new("busctl")
        .args(["--system", "--timeout=2", "get-property", "org.freedesktop.NetworkManager"])
        .args(["/org/freedesktop/NetworkManager", "org.freedesktop.NetworkManager", "Metered"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let end = Instant::now() + ASK_TIMEOUT;
    while asked.try_wait().ok()?.is_none() {
        if Instant::now() >= end {
            // It may have ended meanwhile.
            let _ = asked.kill();
            let _ = asked.wait();
            return None;
        }
        #[allow(clippy::disallowed_methods, reason = "a thread of its own waits for the end of a program")]
        std::thread::sleep(POLL);
    }
    let answer = asked.wait_with_output().ok()?;
    is_metered(&String::from_utf8_lossy(&answer.stdout))
}

/// Parses the property `Metered`, as in `u 1`: yes, no, and the guesses of both.
fn is_metered(answer: &str) -> Option<bool> {
    match answer.trim() {
        "u 1" | "u 3" => Some(true),
        "u 2" | "u 4" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_comes_before_interface_and_manager() {
        let patterns = ["wwan*".to_owned(), "ppp0".to_owned()];
        let is_metered = |mode, interface, manager| classify(mode, interface, &patterns, manager).is_metered;
        assert!(is_metered(Metered::On, Some("eth0"), Some(false)));
        assert!(!is_metered(Metered::Off, Some("wwan0"), Some(true)));
        assert!(is_metered(Metered::Auto, Some("wwan0"), Some(false)));
        assert!(!is_metered(Metered::Auto, Some("ppp01"), None));
        assert!(is_metered(Metered::Auto, Some("wlan0"), Some(true)));
        assert!(is_metered(Metered::Auto, None, Some(true)));
        assert!(!is_metered(Metered::Auto, None, Some(false)));
        assert!(is_metered(Metered::Auto, None, None));
        assert_eq!(classify(Metered::Auto, Some("wwan0"), &patterns, None).because, "interface wwan0");
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn longest_then_cheapest_route_counts() {
        let text = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                    wwan0\t00000000\t0100000A\t0003\t0\t0\t700\t00000000\t0\t0\t0\n\
                    eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
                    eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n\
                    tun0\t0002000A\t00000000\t0001\t0\t0\t50\t00FFFFFF\t0\t0\t0\n\
                    bad line\n";
        let to = |address: [u8; 4]| in_route(text, address.into());
        assert_eq!(to([192, 0, 2, 1]).as_deref(), Some("eth0"));
        assert_eq!(to([10, 0, 2, 7]).as_deref(), Some("tun0"));
        assert_eq!(in_route("", [192, 0, 2, 1].into()), None);
        let down = "Iface\n wwan0 00000000 0 0002 0 0 700 00000000";
        assert_eq!(in_route(down, [192, 0, 2, 1].into()), None);
    }

    #[test]
    fn interface_of_an_own_address_is_found() {
        let text = "20010db8000000000000000000000001 02 40 00 80   wwan0\n\
                    00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(in_if_inet6(text, "2001:db8::1".parse().unwrap()).as_deref(), Some("wwan0"));
        assert_eq!(in_if_inet6(text, "::1".parse().unwrap()).as_deref(), Some("lo"));
        assert_eq!(in_if_inet6(text, "::2".parse().unwrap()), None);
    }

    #[test]
    fn guesses_of_network_manager_count() {
        for (answer, expected) in [
            ("u 1\n", Some(true)),
            ("u 3\n", Some(true)),
            ("u 2\n", Some(false)),
            ("u 4\n", Some(false)),
            ("u 0\n", None),
            ("", None),
            ("s \"u 1\"", None),
        ] {
            assert_eq!(is_metered(answer), expected, "{answer}");
        }
    }
}
