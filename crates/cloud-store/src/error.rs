//! Errors of requests to the cloud's store, and of opening it.

use std::path::PathBuf;

use super::rollouts::RevisionError;
use edgesync_object::{ObjectKey, Problems};
use edgesync_store::writer::JobError;
use edgesync_store::{Cause, StoreError};

/// Reason for which a request was refused or failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CloudError {
    /// The name is in use by another object.
    #[error("{key} already exists")]
    AlreadyExists {
        /// The name in use.
        key: ObjectKey,
    },
    /// No object has this key, or the node was removed from the fleet.
    #[error("{key} not found")]
    NotFound {
        /// Key of the requested object.
        key: ObjectKey,
    },
    /// The object has changed since the client read it.
    #[error("{key} has been modified: resourceVersion is {current}, the request has {given}")]
    Conflict {
        key: ObjectKey,
        /// The version in the request.
        given: u64,
        /// The version of the object.
        current: u64,
    },
    /// The object of this name has another UID than the request.
    #[error("{key} has the uid '{current}', the request has uid '{given}'")]
    OtherUid {
        key: ObjectKey,
        /// The UID in the request.
        given: String,
        /// The UID of the object.
        current: String,
    },
    /// The object fails validation.
    #[error("{key} is invalid: {problems}")]
    Invalid {
        key: ObjectKey,
        /// Validation errors by field.
        problems: Problems,
    },
    /// The object exceeds the size limit.
    #[error("{key} has {size} bytes, which must be less than or equal to {limit}")]
    TooLarge {
        key: ObjectKey,
        /// Size as JSON text, in bytes.
        size: usize,
        /// Maximum size in bytes: [`super::CloudOptions::max_object_bytes`].
        limit: usize,
    },
    /// The namespace is being deleted, or was. The caller must check the namespace again.
    #[error("namespace '{namespace}' is being deleted or was deleted")]
    NamespaceLeft {
        /// Name of the namespace.
        namespace: String,
    },
    /// The namespace is not empty.
    #[error("{key} is not empty: it contains {inside}")]
    NotEmpty {
        key: ObjectKey,
        /// Plural of one kind with objects in it.
        inside: String,
    },
    /// The history does not reach back that far: the client must relist.
    #[error("changes after resourceVersion {after} requested, the history starts after {oldest}")]
    Expired {
        after: u64,
        /// The oldest version that the history can continue from.
        oldest: u64,
    },
    /// A revision cannot be stored.
    #[error(transparent)]
    Revision(#[from] RevisionError),
    /// The database failed, or the store is closed ([`StoreError::Closed`]).
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl JobError for CloudError {
    fn store(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl From<rusqlite::Error> for CloudError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Reason for which the cloud's store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file is damaged. It is never refilled silently, because its content exists nowhere else.
    #[error(
        "open database '{}': file damaged; hint: restore a backup with 'edgesync-cloud restore', or else move the file away and \
         apply all manifests before nodes connect", path.display()
    )]
    Corrupt {
        path: PathBuf,
        #[source]
        source: Cause,
    },
    /// The file predates the first release: nothing in it can be migrated.
    #[error(
        "open database '{}': format from before the first release of edgesync-cloud, which no version reads; hint: move the file \
         away, start edgesync-cloud, apply all manifests again and let the nodes join again with new tokens", path.display()
    )]
    Unreleased {
        /// Path of the database file.
        path: PathBuf,
    },
    /// The file was written by a newer program, whose tables this one does not know.
    #[error(
        "open database '{}': schema version {found} of a newer edgesync-cloud, this one supports versions up to {known}; hint: install \
         the newer version again, or restore a backup from before the upgrade with 'edgesync-cloud restore FILE'", path.display()
    )]
    Newer {
        /// Path of the database file.
        path: PathBuf,
        /// The schema version in the file.
        found: u32,
        /// The newest schema version of this program.
        known: u32,
    },
    /// The file is in use by another process, or belongs to another program. The error names the
    /// file already.
    #[error(transparent)]
    Named(StoreError),
    /// Any other failure, with the path that the error lacks.
    #[error("open database '{}'", path.display())]
    Store {
        path: PathBuf,
        #[source]
        source: StoreError,
    },
}
