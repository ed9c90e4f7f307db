//! What a request to the cloud's store can meet with.

use std::path::PathBuf;

use edgesync_object::{ObjectKey, Problems};
use edgesync_store::writer::JobError;
use edgesync_store::{Cause, StoreError};

/// Why a request was refused or failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CloudError {
    /// Another object has this name.
    #[error("{key} already exists")]
    AlreadyExists {
        /// The name that is taken.
        key: ObjectKey,
    },
    /// There is no such object.
    #[error("{key} not found")]
    NotFound {
        /// What was asked for.
        key: ObjectKey,
    },
    /// The object has changed since the client read it.
    #[error("{key} has been changed: its resourceVersion is {current}, the request was made for {given}")]
    Conflict {
        /// The object.
        key: ObjectKey,
        /// The version in the request.
        given: u64,
        /// The version of the object.
        current: u64,
    },
    /// The object under this name is another one than the client means.
    #[error("{key} has the uid '{current}', the request was made for uid '{given}'")]
    OtherUid {
        /// The object.
        key: ObjectKey,
        /// The UID in the request.
        given: String,
        /// The UID of the object.
        current: String,
    },
    /// The object is not as it must be.
    #[error("{key} is invalid: {problems}")]
    Invalid {
        /// The object.
        key: ObjectKey,
        /// What is wrong with it.
        problems: Problems,
    },
    /// The object is larger than the store takes.
    #[error("{key} has {size} bytes, which must be less than or equal to {limit}")]
    TooLarge {
        /// The object.
        key: ObjectKey,
        /// Its size as JSON text, bytes.
        size: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// The namespace is being deleted, or was: it is to be looked at again.
    #[error("the namespace '{namespace}' is being deleted, or was")]
    NamespaceLeft {
        /// The namespace.
        namespace: String,
    },
    /// The namespace has something in it.
    #[error("{key} has {inside} in it")]
    NotEmpty {
        /// The namespace.
        key: ObjectKey,
        /// The plural of a kind of what is in it.
        inside: String,
    },
    /// The history does not reach back that far: list anew.
    #[error("changes after resourceVersion {after} are asked for, the history starts after {oldest}")]
    Expired {
        /// What was asked for.
        after: u64,
        /// The oldest version that can be asked for.
        oldest: u64,
    },
    /// The database failed.
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

/// Why the cloud's store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file is damaged. It is never refilled in silence: what it held exists nowhere else.
    #[error(
        "the database '{}' is damaged: restore a backup with 'edgesync-cloud restore'; if there is none, move the file away and \
         apply all manifests before nodes connect", path.display()
    )]
    Corrupt {
        /// The database file.
        path: PathBuf,
        /// What was found.
        #[source]
        source: Cause,
    },
    /// The file is from before the first release: nothing in it can be taken over.
    #[error(
        "the database '{}' is from before the first release of edgesync-cloud, in a format that no version reads: move the file \
         away, start edgesync-cloud, apply all manifests again and let the nodes join again with new tokens", path.display()
    )]
    Unreleased {
        /// The database file.
        path: PathBuf,
    },
    /// Another process has it, or another program has made it. The error names the file already.
    #[error(transparent)]
    Named(StoreError),
    /// Anything else.
    #[error("cannot open the database '{}'", path.display())]
    Store {
        /// The database file.
        path: PathBuf,
        /// What happened.
        #[source]
        source: StoreError,
    },
}
