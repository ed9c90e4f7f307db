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
/// Maximum bytes shown of an administrative request's body.
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
        self.log(verb.as_str(), &resource, &object, code);
    }

    /// Logs a request below `/edgesync/v1/`.
    pub(super) fn administered(&self, method: &str, path: &str, body: &Value, code: u16) {
        let mut body = if body.is_null() { String::new() } else { body.to_string() };
        body.truncate(body.floor_char_boundary(MAX_SHOWN));
        self.log(method, path, &body, code);
    }

    fn log(&self, verb: &str, what: &str, which: &str, code: u16) {
        let Self { caller, peer } = self;
        let (role, from) = (caller.role, peer.describe());
        tracing::info!(target: AUDIT, who = ?caller.name, %role, from, ?verb, ?what, ?which, code, "audit");
    }
}
