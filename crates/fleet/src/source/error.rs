//! Why a source could not do what it was asked for.

use edgesync_cloud_store::CloudError;
use edgesync_enrollment::membership::MembershipError;
use edgesync_enrollment::object_store::Failure;
use edgesync_store::StoreError;

/// See the module.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SourceError {
    /// The database of this process.
    #[error(transparent)]
    Store(#[from] CloudError),
    /// The cluster refused a request, or does not serve.
    #[error(transparent)]
    Cluster(#[from] Failure),
    /// The members of the fleet, in the database or in the cluster.
    #[error(transparent)]
    Members(#[from] MembershipError),
    /// The disposable copy of the cluster's objects.
    #[error(transparent)]
    Cache(#[from] StoreError),
    /// The cluster cannot be followed.
    #[error("{0}")]
    Unread(String),
    /// Others changed an object between each read and write.
    #[error("the {kind} '{name}' is changed by others all the time")]
    Contended {
        /// The kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// An object is missing that a request needs.
    #[error("there is no {kind} '{name}'")]
    Missing {
        /// The kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The object that the replicas share is not as they write it.
    #[error("the {kind} '{name}' is gone or damaged: it is made anew when a replica starts")]
    Damaged {
        /// The kind of the object.
        kind: &'static str,
        /// Its namespace and name.
        name: String,
    },
    /// A Node is not changed: it is another program's, or the cluster never accepts it.
    #[error("{why}")]
    NodeRefused {
        /// The node.
        node: String,
        /// The reason.
        why: String,
    },
    /// Another replica serves the node.
    #[error("the node '{node}' is served by another replica now: {replica}")]
    ServedElsewhere {
        /// The node.
        node: String,
        /// The replica.
        replica: String,
    },
    /// The node is not connected to this replica.
    #[error("the node '{node}' is not connected here any more")]
    NotServed {
        /// The node.
        node: String,
    },
    /// A namespace could not be looked up.
    #[error("the namespace '{namespace}' could not be looked up: {message}")]
    Namespace {
        /// The namespace.
        namespace: String,
        /// The message of the API.
        message: String,
    },
}

impl SourceError {
    /// Whether the source may do it later without help. A cluster comes back; nobody repairs a
    /// database by itself.
    #[must_use]
    pub(crate) fn is_retryable(&self) -> bool {
        !matches!(self, Self::Store(_) | Self::Members(MembershipError::Store(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_comes_back_and_a_database_does_not() {
        assert!(SourceError::from(Failure::Unserved("no route".into())).is_retryable());
        assert!(SourceError::Contended { kind: "Node", name: "edge-1".into() }.is_retryable());
        assert!(
            !SourceError::from(CloudError::from(StoreError::TooManySnapshots { limit: 1 })).is_retryable()
        );
    }
}
