//! Service validation. Pure.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::causes::{Causes, Path};
use super::{items, length, map, text};
use edgesync_object::Object;
use edgesync_object::name::{Problem, check_label, check_subdomain};

/// The protocols of ports.
pub(super) const PROTOCOLS: &[&str] = &["TCP", "UDP", "SCTP"];
/// Maximum length of the name of a container port, in bytes.
const MAX_PORT_NAME: usize = 15;

pub(super) fn check(object: &Object, causes: &mut Causes) {
    let name = object.name();
    let is_label = check_label(name).and_then(|()| {
        let letter = name.starts_with(|c: char| c.is_ascii_lowercase());
        if letter { Ok(()) } else { Err("must start with a lower-case letter".to_owned()) }
    });
    causes.name(&Path::new("metadata.name"), name, is_label);
    let spec = map(object.fields(), "spec");
    let at = Path::new("spec");
    causes.choice(&at, spec, "type", &["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]);
    causes.choice(&at, spec, "sessionAffinity", &["None", "ClientIP"]);
    let kind = text(spec, "type");
    if kind == "ExternalName" {
        let external = text(spec, "externalName").trim_end_matches('.');
        if external.is_empty() {
            causes.required(&at.field("externalName"), "must be there when `type` is 'ExternalName'");
        } else {
            causes.name(&at.field("externalName"), external, check_subdomain(external));
        }
    } else if length(spec, "ports") == 0 && text(spec, "clusterIP") != "None" {
        causes.required(&at.field("ports"), "must contain at least one port unless `clusterIP` is 'None'");
    }
    check_ports(&at, spec, kind, causes);
}

fn check_ports(at: &Path, spec: &Map<String, Value>, kind: &str, causes: &mut Causes) {
    let several = length(spec, "ports") > 1;
    let (mut names, mut numbers) = (HashSet::new(), HashSet::new());
    for (number, port) in items(spec, "ports") {
        let at = at.item("ports", number);
        if several || port.contains_key("name") {
            causes.unique_name(&at.field("name"), text(port, "name"), &mut names, check_label);
        }
        causes.range(&at, port, "port", 1..=65535);
        causes.choice(&at, port, "protocol", PROTOCOLS);
        check_port_reference(&at, port, "targetPort", causes);
        let protocol = if text(port, "protocol").is_empty() { "TCP" } else { text(port, "protocol") };
        let value = port.get("port").and_then(Value::as_i64).unwrap_or_default();
        if !numbers.insert((protocol, value)) {
            causes.duplicate(&at, &format!("{protocol}/{value}"));
        }
        let node_port = port.get("nodePort").and_then(Value::as_i64).unwrap_or_default();
        if node_port != 0 {
            causes.range(&at, port, "nodePort", 1..=65535);
            if !matches!(kind, "NodePort" | "LoadBalancer") {
                let message = "must be absent unless `type` is 'NodePort' or 'LoadBalancer'";
                causes.forbidden(&at.field("nodePort"), message);
            }
        }
    }
}

/// Checks a reference to a container port, by number or by name.
pub(super) fn check_port_reference(at: &Path, fields: &Map<String, Value>, name: &str, causes: &mut Causes) {
    match fields.get(name) {
        Some(Value::String(port)) => causes.name(&at.field(name), port, check_port_name(port)),
        _ => causes.range(at, fields, name, 1..=65535),
    }
}

/// Checks the name of a container port.
pub(super) fn check_port_name(name: &str) -> Result<(), Problem> {
    let letter = name.bytes().any(|b| b.is_ascii_lowercase());
    if check_label(name).is_ok() && name.len() <= MAX_PORT_NAME && !name.contains("--") && letter {
        return Ok(());
    }
    Err(format!(
        "must be at most {MAX_PORT_NAME} lower-case letters, digits or single '-', with at least one letter, starting \
         and ending with a letter or digit"
    ))
}
