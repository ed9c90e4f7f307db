//! Admits the addresses that a device reports for its Node.
//!
//! The API server and load balancers connect to the addresses of Nodes, so a device must not choose
//! them freely: the host name is that of the Node, and IP addresses are of configured networks.

use edgesync_fleet::config::Network;
use edgesync_object::Object;
use serde_json::{Value, json};

/// Removes the addresses of a Node that its device may not have.
pub(super) fn admit_addresses(node: &mut Object, networks: &[Network]) {
    let name = node.name().to_owned();
    let Some(addresses) = node.fields_mut().get_mut("status").and_then(|status| status.get_mut("addresses"))
    else {
        return;
    };
    let reported = addresses.as_array().cloned().unwrap_or_default();
    *addresses = reported.iter().filter_map(|address| admitted(&name, address, networks)).collect();
}

fn admitted(node: &str, address: &Value, networks: &[Network]) -> Option<Value> {
    match address["type"].as_str()? {
        "Hostname" => Some(json!({"type": "Hostname", "address": node})),
        "InternalIP" | "ExternalIP" => {
            let ip = address["address"].as_str()?.parse().ok()?;
            networks.iter().any(|network| network.contains(ip)).then(|| address.clone())
        }
        // DNS names, which would have to be resolved to be checked.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(reported: &Value, networks: &[&str]) -> Value {
        let networks: Vec<Network> = networks.iter().map(|network| network.parse().unwrap()).collect();
        let node = json!({"metadata": {"name": "edge-1"}, "status": {"addresses": reported}});
        let mut node: Object = serde_json::from_value(node).unwrap();
        admit_addresses(&mut node, &networks);
        node.fields()["status"]["addresses"].clone()
    }

    /// A device used to name any machine as its own.
    #[test]
    fn node_has_its_name_and_addresses_of_configured_networks() {
        let reported = json!([
            {"type": "Hostname", "address": "etcd.internal"},
            {"type": "InternalIP", "address": "10.0.0.1"},
            {"type": "ExternalIP", "address": "10.20.0.7"},
            {"type": "InternalDNS", "address": "vault.internal"},
            {"type": "Other", "address": "x"},
            {"address": "10.20.0.8"}, "10.20.0.9",
        ]);
        let name = json!({"type": "Hostname", "address": "edge-1"});
        assert_eq!(addresses(&reported, &[]), json!([name]));
        let external = json!({"type": "ExternalIP", "address": "10.20.0.7"});
        assert_eq!(addresses(&reported, &["10.20.0.0/16"]), json!([name, external]));
        assert_eq!(addresses(&json!("10.20.0.7"), &["0.0.0.0/0"]), json!([]));
    }
}
