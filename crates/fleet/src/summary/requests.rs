//! Requests of pages to the fleet.

use edgesync_admin::cloud::Rollout;
use tokio::sync::oneshot;

use edgesync_object::Resource;
use edgesync_placement::Placement;
use edgesync_protocol::change::Uid;

/// Subject of a roll-out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutOf {
    /// An object, by its UID.
    Object(Uid),
    /// The selection of a rule that is an object, by its UID.
    Rule(Uid),
    /// The selection of a rule of the configuration, by its index from 0.
    Configured(usize),
}

/// Receives the roll-out; `None` if there is no such object or rule.
pub(crate) type RolloutAnswer = oneshot::Sender<Option<Rollout>>;

/// Filter for objects; all conditions must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectFilter {
    /// Kind or plural, in any case; empty for all.
    pub(crate) kind: String,
    /// The namespace; empty for all.
    pub(crate) namespace: String,
    /// Substring of the name; empty for all.
    pub(crate) name: String,
    /// Whether `name` must match exactly.
    pub(crate) exact: bool,
    /// Whether Secrets are included.
    pub(crate) secrets: bool,
}

impl ObjectFilter {
    /// Returns whether an object matches.
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
