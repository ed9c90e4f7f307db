//! The broker's name has an address.

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
    let broker = patient.config().link.broker;
    let found = tokio::net::lookup_host((broker.host.as_str(), broker.port)).await;
    patient.addresses = match found {
        Ok(found) => found.take(MOST).collect(),
        Err(error) => {
            let next =
                "see that link.broker is right and that this device has a name server (/etc/resolv.conf)";
            return Finding::failed(format!("'{}' has no address: {error}", broker.host), next);
        }
    };
    if broker.host.parse::<IpAddr>().is_ok() {
        return Finding::ok(format!("{} is an address", broker.host));
    }
    let shown: Vec<String> = patient.addresses.iter().map(|address| address.ip().to_string()).collect();
    match shown.is_empty() {
        true => Finding::failed(format!("'{}' has no address", broker.host), "correct link.broker"),
        false => Finding::ok(format!("{} is {}", broker.host, shown.join(", "))),
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
