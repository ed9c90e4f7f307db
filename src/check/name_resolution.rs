//! Checks that the name of the broker, or of CloudCore, resolves to an address.

use std::net::IpAddr;

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding};

pub(super) const CHECK: Check = Check {
    id: "name-resolution",
    title: "Name resolution",
    needs: &["configuration"],
    limit: DEFAULT_TIMEOUT,
    examine: CheckFn::Wire(|examined| Box::pin(examine(examined))),
};

/// Maximum number of addresses, as many as the link tries.
const MAX_ADDRESSES: usize = 8;

async fn examine(examined: &mut Examined) -> Finding {
    let config = examined.config();
    let peer = config.peer();
    let found = tokio::net::lookup_host((peer.host, peer.port)).await;
    examined.addresses = match found {
        Ok(found) => found.take(MAX_ADDRESSES).collect(),
        Err(error) => {
            let next_step =
                format!("check {}, and that this device has a name server (/etc/resolv.conf)", peer.key);
            return Finding::failed(format!("resolve '{}': {error}", peer.host), next_step);
        }
    };
    if peer.host.parse::<IpAddr>().is_ok() {
        return Finding::ok(format!("{} is an IP address", peer.host));
    }
    let shown: Vec<String> = examined.addresses.iter().map(|address| address.ip().to_string()).collect();
    match shown.is_empty() {
        true => {
            Finding::failed(format!("resolve '{}': no address", peer.host), format!("correct {}", peer.key))
        }
        false => Finding::ok(format!("{} is {}", peer.host, shown.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, ok};

    #[tokio::test]
    async fn addresses_are_kept_and_unknown_names_fail() {
        let testbed = Testbed::new("[link]\nbroker = \"mqtt://127.0.0.1:1\"\n");
        let mut examined = testbed.examined();
        ok(examine(&mut examined).await, "127.0.0.1 is an IP address");
        assert_eq!(examined.addresses.len(), 1);
        testbed.configure("[link]\nbroker = \"mqtt://nobody.invalid\"\n");
        failed(examine(&mut testbed.examined()).await, "resolve 'nobody.invalid'", "resolv.conf");
    }
}
