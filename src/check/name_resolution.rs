//! Checks that the names of the broker, or of CloudCore, resolve to addresses. Through a proxy it
//! is the name of the proxy: that resolves the others.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::timeout;

use super::{Check, CheckFn, Examined, Finding, combine};

pub(super) const CHECK: Check = Check {
    id: "name-resolution",
    title: "Name resolution",
    needs: &["configuration"],
    limit: Duration::from_secs(8),
    examine: CheckFn::Wire(|examined| Box::pin(examine(examined))),
};

/// Maximum number of addresses, as many as the link tries.
const MAX_ADDRESSES: usize = 8;
/// Time limit of all lookups together.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(6);

async fn examine(examined: &Examined) -> Finding {
    let config = examined.config();
    let dialer = match examined.dialer() {
        Ok(dialer) => dialer,
        Err(finding) => return finding,
    };
    // Names with ports, and the key that has them.
    let mut names: Vec<(String, u16, &str)> = Vec::new();
    for peer in config.peers() {
        let name = match dialer.proxy_for(peer.host, peer.port) {
            Some(proxy) => (proxy.host().to_owned(), proxy.port(), "link.proxy"),
            None => (peer.host.to_owned(), peer.port, peer.key),
        };
        if !names.iter().any(|(host, ..)| *host == name.0) {
            names.push(name);
        }
    }
    let share = LOOKUP_TIMEOUT / u32::try_from(names.len().max(1)).unwrap_or(1);
    let mut findings = Vec::new();
    for (host, port, key) in &names {
        findings.push(resolve(host, *port, key, share).await);
    }
    combine(findings)
}

async fn resolve(host: &str, port: u16, key: &str, within: Duration) -> Finding {
    if host.parse::<IpAddr>().is_ok() {
        return Finding::ok(format!("{host} is an IP address"));
    }
    let next_step = format!("check {key}, and that this device has a name server (/etc/resolv.conf)");
    let found: Vec<String> = match timeout(within, tokio::net::lookup_host((host, port))).await {
        Ok(Ok(found)) => found.take(MAX_ADDRESSES).map(|address| address.ip().to_string()).collect(),
        Ok(Err(error)) => return Finding::failed(format!("resolve '{host}': {error}"), next_step),
        Err(_) => {
            let message = format!("resolve '{host}': no response of the name server within {within:?}");
            return Finding::failed(message, next_step);
        }
    };
    match found.is_empty() {
        true => Finding::failed(format!("resolve '{host}': no address"), format!("correct {key}")),
        false => Finding::ok(format!("{host} is {}", found.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, ok, warned};

    #[tokio::test]
    async fn addresses_are_shown_and_unknown_names_fail() {
        let testbed = Testbed::new("[link]\nbroker = \"mqtt://127.0.0.1:1\"\n");
        ok(examine(&testbed.examined()).await, "127.0.0.1 is an IP address");
        testbed.configure("[link]\nbroker = \"mqtt://nobody.invalid\"\n");
        failed(examine(&testbed.examined()).await, "resolve 'nobody.invalid'", "resolv.conf");
        testbed.configure("[link]\nbroker = [\"mqtt://nobody.invalid\", \"mqtt://127.0.0.1\"]\n");
        warned(examine(&testbed.examined()).await, "resolve 'nobody.invalid'", "link.broker");
    }

    #[tokio::test]
    async fn proxy_resolves_the_name_of_the_broker() {
        let link = "[link]\nbroker = \"mqtt://nobody.invalid\"\nproxy = \"http://192.0.2.1:3128\"\n";
        ok(examine(&Testbed::new(link).examined()).await, "192.0.2.1 is an IP address");
        let link = "[link]\nbroker = \"mqtt://192.0.2.2\"\nproxy = \"http://nobody.invalid:3128\"\n";
        failed(examine(&Testbed::new(link).examined()).await, "resolve 'nobody.invalid'", "link.proxy");
    }
}
