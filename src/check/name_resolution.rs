//! The name of the broker, or of CloudCore, has an address.

use std::net::IpAddr;

use super::{Check, Finding, Look, ONE, Patient};

pub(super) const CHECK: Check = Check {
    id: "name-resolution",
    title: "Name resolution",
    needs: &["configuration"],
    limit: ONE,
    look: Look::Wire(|mut patient| {
        Box::pin(async move {
            let finding = look(&mut patient).await;
            (patient, finding)
        })
    }),
};

/// Addresses that are kept, as many as the link tries.
const MOST: usize = 8;

async fn look(patient: &mut Patient) -> Finding {
    let config = patient.config();
    let peer = config.peer();
    let found = tokio::net::lookup_host((peer.host, peer.port)).await;
    patient.addresses = match found {
        Ok(found) => found.take(MOST).collect(),
        Err(error) => {
            let next = format!(
                "see that {} is right and that this device has a name server (/etc/resolv.conf)",
                peer.key
            );
            return Finding::failed(format!("'{}' has no address: {error}", peer.host), next);
        }
    };
    if peer.host.parse::<IpAddr>().is_ok() {
        return Finding::ok(format!("{} is an address", peer.host));
    }
    let shown: Vec<String> = patient.addresses.iter().map(|address| address.ip().to_string()).collect();
    match shown.is_empty() {
        true => Finding::failed(format!("'{}' has no address", peer.host), format!("correct {}", peer.key)),
        false => Finding::ok(format!("{} is {}", peer.host, shown.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Bed, failed, ok};

    #[tokio::test]
    async fn addresses_are_kept_and_names_that_nobody_has_fail() {
        let bed = Bed::new("[link]\nbroker = \"mqtt://127.0.0.1:1\"\n");
        let mut patient = bed.patient();
        ok(look(&mut patient).await, "127.0.0.1 is an address");
        assert_eq!(patient.addresses.len(), 1);
        bed.configure("[link]\nbroker = \"mqtt://nobody.invalid\"\n");
        failed(look(&mut bed.patient()).await, "'nobody.invalid' has no address", "resolv.conf");
    }
}
