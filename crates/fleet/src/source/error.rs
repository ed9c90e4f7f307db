//! Errors of a source.

use edgesync_cloud_store::{CloudError, RevisionError, RevisionKey};
use edgesync_enrollment::membership::MembershipError;
use edgesync_enrollment::object_store::Failure;
use edgesync_store::StoreError;

/// Failure of a request to the source.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SourceError {
    /// Failure of this process's database.
    #[error(transparent)]
    Store(#[from] CloudError),
    /// The cluster refused a request, or is unreachable.
    #[error(transparent)]
    Cluster(#[from] Failure),
    /// Failure of the membership store, in the database or in the cluster.
    #[error(transparent)]
    Members(#[from] MembershipError),
    /// Failure of the disposable cache of the cluster's objects.
    #[error(transparent)]
    Cache(#[from] StoreError),
    /// The cluster cannot be watched.
    #[error("{0}")]
    Unread(String),
    /// Every compare-and-swap failed because of concurrent writers.
    #[error("update {kind} '{name}': too many conflicting writes")]
    Contended {
        /// The kind of the object.
        kind: &'static str,
        name: String,
    },
    /// A required object is missing.
    #[error("{kind} '{name}' not found")]
    Missing {
        /// The kind of the object.
        kind: &'static str,
        name: String,
    },
    /// The object shared by the replicas is missing or not in their format.
    #[error("{kind} '{name}' is missing or damaged: replicas recreate it when they start")]
    Damaged {
        /// The kind of the object.
        kind: &'static str,
        /// Its namespace and name.
        name: String,
    },
    /// A Node cannot be changed: another program owns it, or the cluster rejects it permanently.
    #[error("{why}")]
    NodeRefused {
        /// Name of the node.
        node: String,
        /// Reason; the whole message of this error.
        why: String,
    },
    /// Another replica serves the node.
    #[error("node '{node}' is now served by replica {replica}")]
    ServedElsewhere {
        /// Name of the node.
        node: String,
        /// Id of the replica that serves it.
        replica: String,
    },
    /// The node is not connected to this replica.
    #[error("node '{node}' is no longer connected to this replica")]
    NotServed {
        /// Name of the node.
        node: String,
    },
    /// A revision cannot be stored.
    #[error(transparent)]
    Revision(#[from] RevisionError),
    /// A revision has more bytes than the store accepts, whenever it is stored.
    #[error(
        "store {revision}: its {objects} objects have {size} bytes compressed, the limit is {limit}; hint: divide the rule"
    )]
    RevisionTooLarge {
        /// The revision.
        revision: Box<RevisionKey>,
        /// Number of its objects.
        objects: usize,
        /// Bytes that the store would have to keep.
        size: usize,
        /// Limit of these bytes.
        limit: usize,
    },
    /// A namespace could not be looked up.
    #[error("look up namespace '{namespace}': {message}")]
    Namespace {
        namespace: String,
        /// The message of the API.
        message: String,
    },
}

impl SourceError {
    /// Returns whether a retry may succeed without intervention: a cluster recovers, a database
    /// does not repair itself.
    #[must_use]
    pub(crate) fn is_retryable(&self) -> bool {
        !matches!(self, Self::Store(_) | Self::Members(MembershipError::Store(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_errors_are_retryable_and_database_errors_are_not() {
        assert!(SourceError::from(Failure::Unserved("no route".into())).is_retryable());
        assert!(SourceError::Contended { kind: "Node", name: "edge-1".into() }.is_retryable());
        assert!(
            !SourceError::from(CloudError::from(StoreError::TooManySnapshots { limit: 1 })).is_retryable()
        );
    }
}
