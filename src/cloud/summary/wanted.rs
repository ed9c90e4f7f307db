//! What pages ask the fleet for.

use serde_json::Value;
use tokio::sync::oneshot;

use crate::object::Resource;
use crate::placement::Placement;
use crate::sync::change::Uid;

/// What is rolled out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cloud) enum RolloutOf {
    /// An object, by its UID.
    Object(Uid),
    /// What a rule selects that is an object, by its UID.
    Rule(Uid),
    /// What a rule of the configuration selects: the first one is 0.
    Configured(usize),
}

/// Who is to be told; nothing if there is no such object or rule.
pub(in crate::cloud) type RolloutAnswer = oneshot::Sender<Option<Value>>;

/// Which objects somebody looks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cloud) struct Wanted {
    /// The kind, in any spelling; empty for all.
    pub(in crate::cloud) kind: String,
    /// The namespace; empty for all.
    pub(in crate::cloud) namespace: String,
    /// What the name has in it; empty for all.
    pub(in crate::cloud) name: String,
    /// It is the whole name.
    pub(in crate::cloud) exact: bool,
    /// Secrets are told of.
    pub(in crate::cloud) secrets: bool,
}

impl Wanted {
    /// Whether an object is one of them.
    pub(in crate::cloud) fn fits(&self, resource: &Resource, namespace: &str, name: &str) -> bool {
        let kind = self.kind.is_empty()
            || self.kind.eq_ignore_ascii_case(&resource.kind)
            || self.kind.eq_ignore_ascii_case(&resource.plural);
        let name = match self.exact {
            true => name == self.name,
            false => name.contains(&self.name),
        };
        kind && name
            && (self.namespace.is_empty() || self.namespace == namespace)
            && (self.secrets || !Placement::is_secret(resource))
    }
}
