//! NetworkPolicy validation. Pure.

use serde_json::{Map, Value};

use super::causes::{Causes, Path};
use super::items;

/// Checks the ports of a NetworkPolicy: a range has two numbers in ascending order.
pub(super) fn check_policy(spec: &Map<String, Value>, causes: &mut Causes) {
    for field in ["ingress", "egress"] {
        for (number, rule) in items(spec, field) {
            for (port_index, port) in items(rule, "ports") {
                let at = Path::new("spec").item(field, number).item("ports", port_index);
                check_port(port, &at, causes);
            }
        }
    }
}

fn check_port(port: &Map<String, Value>, at: &Path, causes: &mut Causes) {
    causes.range(at, port, "endPort", 1..=65_535);
    let Some(end) = port.get("endPort").and_then(Value::as_i64) else { return };
    match port.get("port").filter(|port| !port.is_null()) {
        None => causes.required(&at.field("port"), "must be specified when `endPort` is specified"),
        Some(Value::Number(first)) if first.as_i64().is_some_and(|first| end < first) => {
            causes.invalid(&at.field("endPort"), &end.to_string(), "must be greater than or equal to `port`");
        }
        Some(Value::Number(_)) => {}
        Some(named) => {
            let shown = named.as_str().unwrap_or_default();
            causes.invalid(&at.field("endPort"), shown, "may not be specified when `port` is a name");
        }
    }
}
