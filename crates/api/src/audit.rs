//! The audit log: who has administered what, and who has written Secrets. It is part of the program's log, under a target
//! of its own that no log level silences, so that the journal keeps and bounds it with everything else.
//!
//! An entry is written when the answer is known, whatever it is, and before it is sent. Text of clients is quoted; bodies
//! of objects are never shown.

use serde_json::Value;

use super::auth::{self, Caller, Peer};
use super::kind::Kind;
use super::request::{ResourcePath, Verb};
use edgesync_object::objectsync::is_placement;

/// The target of its entries.
pub const AUDIT: &str = "edgesync::audit";
/// What is shown of what an administrative request asks for, in bytes.
const MAX_SHOWN: usize = 512;

/// Who acts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Actor<'a> {
    pub(super) caller: &'a Caller,
    pub(super) peer: &'a Peer,
}

/// Whether a request on objects is written down: it changes what is no namespace's, a Secret, or what is placed where.
pub(super) fn concerns(verb: Verb, kind: &Kind) -> bool {
    let places = is_placement(&kind.resource);
    verb.writes() && (kind.secret || places || auth::changes_the_cluster(verb, kind))
}

impl Actor<'_> {
    /// Somebody has asked for objects to be changed; `made` is the name of a new one.
    pub(super) fn wrote(&self, verb: Verb, kind: &Kind, path: &ResourcePath, made: Option<&str>, code: u16) {
        let part = path.subresource.as_deref().map_or_else(String::new, |part| format!("/{part}"));
        let resource = format!("{}{part}", kind.resource.plural);
        let object = match (path.namespace.as_deref(), path.name.as_deref().or(made).unwrap_or("*")) {
            (Some(namespace), name) => format!("{namespace}/{name}"),
            (None, name) => name.to_owned(),
        };
        self.tell(verb.as_str(), &resource, &object, code);
    }

    /// Somebody has asked for something below `/edgesync/v1/`.
    pub(super) fn administered(&self, method: &str, path: &str, asked: &Value, code: u16) {
        let mut asked = if asked.is_null() { String::new() } else { asked.to_string() };
        asked.truncate(asked.floor_char_boundary(MAX_SHOWN));
        self.tell(method, path, &asked, code);
    }

    fn tell(&self, verb: &str, what: &str, which: &str, code: u16) {
        let Self { caller, peer } = self;
        let (role, from) = (caller.role, peer.place());
        tracing::info!(target: AUDIT, who = ?caller.name, %role, from, ?verb, ?what, ?which, code, "audit");
    }
}
