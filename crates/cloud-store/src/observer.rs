//! Who is told of every committed change of every kind, with the state before it: what watches are
//! made of.

use std::sync::Arc;

use super::change::ChangeKind;

/// A kind by name, whatever its version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KindName {
    /// API group, empty for the core group.
    pub group: String,
    /// Kind in CamelCase.
    pub kind: String,
}

/// A committed change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchChange {
    /// What happened.
    pub kind: ChangeKind,
    /// The kind of the object.
    pub of: Arc<KindName>,
    /// The version of the change.
    pub version: u64,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The object after the change as JSON text; a deleted one as it was last, with the version of
    /// the change.
    pub body: String,
    /// A modified object as it was before.
    pub previous: Option<String>,
}

/// Is told of every commit in order, and of the changes in it that it wants, on the writer's
/// thread: each method must be quick and must not wait.
pub trait Observer: Send + Sync {
    /// Every change after this version will be told if it is wanted, none before.
    fn begin(&self, version: u64);

    /// A transaction is about to begin; `version` is the newest one committed. From here to the
    /// next call it is settled what is wanted.
    fn attend(&self, version: u64);

    /// Whether changes of a kind are to be told: who wants few spares the writer much.
    fn wants(&self, of: &KindName) -> bool;

    /// These changes have been committed, in this order; `version` is the newest one now. No
    /// request has been answered with a version that has not been told.
    fn committed(&self, changes: Vec<WatchChange>, version: u64);

    /// The store has been closed.
    fn closed(&self);
}
