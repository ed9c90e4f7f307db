//! Audit log of administrative requests and writes of Secrets. It is part of the program's log
//! under its own target, which no log level silences; the journal stores and bounds it with the
//! rest.
//!
//! An entry is written when the result is known, whatever it is, and before the response is sent.
//! Client text is quoted; object bodies are never logged.

use serde_json::Value;

use super::auth::{self, Caller, Peer};
use super::kind::Kind;
use super::request::{ResourcePath, Verb};
use edgesync_object::objectsync::is_placement;

/// Log target of the entries.
pub const AUDIT: &str = "edgesync::audit";
/// Maximum bytes shown of one value of an administrative request.
const MAX_SHOWN: usize = 512;

/// The author of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Actor<'a> {
    pub(super) caller: &'a Caller,
    pub(super) peer: &'a Peer,
}

/// Returns whether a request on objects is audited: writes of cluster-scoped objects, Secrets and
/// placement.
pub(super) fn concerns(verb: Verb, kind: &Kind) -> bool {
    let is_placement_rule = is_placement(&kind.resource);
    verb.writes() && (kind.secret || is_placement_rule || auth::changes_the_cluster(verb, kind))
}

impl Actor<'_> {
    /// Logs a write of an object; `created` is the name of a new one.
    pub(super) fn wrote(
        &self,
        verb: Verb,
        kind: &Kind,
        path: &ResourcePath,
        created: Option<&str>,
        code: u16,
    ) {
        let part = path.subresource.as_deref().map_or_else(String::new, |part| format!("/{part}"));
        let resource = format!("{}{part}", kind.resource.plural);
        let object = match (path.namespace.as_deref(), path.name.as_deref().or(created).unwrap_or("*")) {
            (Some(namespace), name) => format!("{namespace}/{name}"),
            (None, name) => name.to_owned(),
        };
        let (role, source, user) = (self.caller.role, self.peer.describe(), &*self.caller.name);
        tracing::info!(
            target: AUDIT, user, %role, source, verb = verb.as_str(), resource, object, code, "audit"
        );
    }

    /// Logs a request below `/edgesync/v1/` with the fields of its body.
    pub(super) fn administered(&self, method: &str, path: &str, body: &Value, code: u16) {
        let (role, source, user) = (self.caller.role, self.peer.describe(), &*self.caller.name);
        let text = |field: &str| body.get(field).and_then(show);
        let number = |field: &str| body.get(field).and_then(Value::as_u64);
        let broker_updated = body.get("brokerUpdated").and_then(Value::as_bool);
        tracing::info!(
            target: AUDIT, user, %role, source, verb = verb_of(method), path, code,
            node = text("node"),
            labels = text("labels"),
            uses = number("uses"),
            ttl_seconds = number("ttlSeconds"),
            operator = text("user"),
            operator_role = text("role"),
            lifetime_seconds = number("lifetimeSeconds"),
            broker_updated,
            broker = text("broker"),
            directory = text("directory"),
            names = text("names"),
            port = number("port"),
            "audit"
        );
    }
}

/// Returns the verb of a method below `/edgesync/v1/`, as Kubernetes names it.
fn verb_of(method: &str) -> &'static str {
    let verb = match method {
        "POST" => Verb::Create,
        "PUT" => Verb::Update,
        "PATCH" => Verb::Patch,
        "DELETE" => Verb::Delete,
        _ => Verb::Get,
    };
    verb.as_str()
}

/// Formats a value of a request's body: lists as `a,b`, maps as `key=value,…`; `None` if there is
/// none.
fn show(value: &Value) -> Option<String> {
    let scalar = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut shown = match value {
        Value::Null => return None,
        Value::Array(items) => items.iter().map(scalar).collect::<Vec<_>>().join(","),
        Value::Object(map) => {
            map.iter().map(|(key, value)| format!("{key}={}", scalar(value))).collect::<Vec<_>>().join(",")
        }
        value => scalar(value),
    };
    shown.truncate(shown.floor_char_boundary(MAX_SHOWN));
    Some(shown).filter(|shown| !shown.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn verbs_of_administrative_requests_are_those_of_kubernetes() {
        let verbs = ["POST", "PUT", "PATCH", "DELETE", "GET"].map(verb_of);
        assert_eq!(verbs, ["create", "update", "patch", "delete", "get"]);
    }

    #[test]
    fn request_values_are_plain_text_of_limited_length() {
        for (value, expected) in [
            (json!(null), None),
            (json!({}), None),
            (json!("edge-1"), Some("edge-1")),
            (json!(["a", "b"]), Some("a,b")),
            (json!({"rack": "7", "site": "north"}), Some("rack=7,site=north")),
            (json!(7), Some("7")),
        ] {
            assert_eq!(show(&value).as_deref(), expected, "{value}");
        }
        assert_eq!(show(&json!("ä".repeat(1000))).unwrap().len(), MAX_SHOWN);
    }
}
