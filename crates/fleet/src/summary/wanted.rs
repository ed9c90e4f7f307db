//! What pages ask the fleet for.

use edgesync_admin::cloud::Rollout;
use tokio::sync::oneshot;

use edgesync_object::Resource;
use edgesync_placement::Placement;
use edgesync_protocol::change::Uid;

/// What is rolled out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutOf {
    /// An object, by its UID.
    Object(Uid),
    /// What a rule selects that is an object, by its UID.
    Rule(Uid),
    /// What a rule of the configuration selects: the first one is 0.
    Configured(usize),
}

/// Receives the roll-out; `None` if there is no such object or rule.
pub(crate) type RolloutAnswer = oneshot::Sender<Option<Rollout>>;

/// Which objects somebody looks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The kind, in any spelling; empty for all.
    pub(crate) kind: String,
    /// The namespace; empty for all.
    pub(crate) namespace: String,
    /// What the name has in it; empty for all.
    pub(crate) name: String,
    /// It is the whole name.
    pub(crate) exact: bool,
    /// Secrets are told of.
    pub(crate) secrets: bool,
}

impl Wanted {
    /// Whether an object is one of them.
    pub(crate) fn fits(&self, resource: &Resource, namespace: &str, name: &str) -> bool {
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
