//! Listeners of every committed change of every kind, with the previous state. The watch cache is
//! built on it.

use std::sync::Arc;

use super::change::ChangeKind;

/// Kind by name, in any version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KindName {
    /// API group, empty for the core group.
    pub group: String,
    /// Kind in CamelCase, such as `ConfigMap`.
    pub kind: String,
}

/// A committed change, as watches need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchChange {
    /// The type of the change.
    pub kind: ChangeKind,
    /// The kind of the object.
    pub of: Arc<KindName>,
    /// Version of the change.
    pub version: u64,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
    /// The object after the change as JSON text; for a deletion, its last state with the version of
    /// the change.
    pub body: String,
    /// State of a modified object before the change.
    pub previous: Option<String>,
}

/// Receives every commit in order, with those of its changes that the observer wants. Runs on the
/// writer's thread: each method must return quickly and must not block.
pub trait CommitListener: Send + Sync {
    /// Starts the sequence: every wanted change after this version follows, none before it.
    fn begin(&self, version: u64);

    /// Announces a transaction; `version` is the newest one committed. The set of wanted kinds must
    /// not change from this call to the next one.
    fn attend(&self, version: u64);

    /// Returns whether changes of a kind are wanted. Unwanted kinds save the writer work.
    fn wants(&self, of: &KindName) -> bool;

    /// Delivers committed changes in order; `version` is now the newest one. Called before any
    /// request is answered with that version.
    fn committed(&self, changes: Vec<WatchChange>, version: u64);

    /// Called when the store is closed.
    fn closed(&self);
}
