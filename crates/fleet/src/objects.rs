//! The cloud's store as the object storage of the API: maps requests to the store, and its errors
//! to statuses.

mod kinds;
mod storage;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use edgesync_api::{Kind, Namespaces};
use edgesync_cloud_store::{CloudError, CloudStore, Cursor};
use edgesync_object::status::{Cause, Result};
use edgesync_object::{Resource, Status};
use edgesync_runtime::chain;
use edgesync_store::StoreError;
use kinds::Kinds;
use watch::{RING_BYTES, Watches};

pub use storage::CloudList;

/// Retry-After while the database is unavailable, in seconds.
const RETRY_SECONDS: u32 = 5;
/// Retry-After while too many lists are open, in seconds.
const SNAPSHOT_RETRY_SECONDS: u32 = 1;

/// API storage over a [`CloudStore`].
pub struct CloudObjects {
    store: CloudStore,
    kinds: Kinds,
    watches: Arc<Watches>,
    namespaces: Arc<Namespaces>,
}

impl std::fmt::Debug for CloudObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CloudObjects").field("store", &self.store).finish_non_exhaustive()
    }
}

impl CloudObjects {
    /// Loads the stored kinds and registers for commits. A store permits one instance.
    ///
    /// Those of the store.
    pub async fn new(store: CloudStore) -> Result<Self, CloudError> {
        Self::with_ring(store, RING_BYTES).await
    }

    /// Like [`CloudObjects::new`], with another size of the watch cache, in bytes.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn with_ring(store: CloudStore, bytes: usize) -> Result<Self, CloudError> {
        let watches = Arc::new(Watches::new(bytes));
        store.observe(Arc::clone(&watches) as Arc<_>).await?;
        let kinds = Kinds::new(store.resources().await?);
        Ok(Self { store, kinds, watches, namespaces: Arc::default() })
    }

    /// Returns the cache of existing namespaces.
    pub(super) fn namespaces(&self) -> &Arc<Namespaces> {
        &self.namespaces
    }

    /// Returns the underlying store.
    #[must_use]
    pub fn store(&self) -> &CloudStore {
        &self.store
    }

    /// Replaces the kinds of CustomResourceDefinitions with all served versions, those of a group
    /// together. They permanently replace a learnt kind, which was served only because the store
    /// has objects of it.
    pub fn set_custom(&self, kinds: &[Arc<Kind>]) {
        self.kinds.set_custom(kinds);
    }
}

/// Maps an error of the store to the status of the API.
fn status(resource: &Resource, name: &str, error: &CloudError) -> Status {
    match error {
        CloudError::AlreadyExists { .. } => Status::already_exists(resource, name),
        CloudError::NotFound { .. } => Status::not_found(resource, name),
        CloudError::Conflict { .. } | CloudError::NamespaceLeft { .. } => Status::modified(resource, name),
        CloudError::NotEmpty { inside, .. } => {
            Status::conflict(resource, name, &format!("namespace still contains {inside}"))
        }
        CloudError::OtherUid { given, current, .. } => {
            let why =
                format!("Precondition failed: UID in precondition: {given}, UID in object meta: {current}");
            Status::conflict(resource, name, &why)
        }
        CloudError::Invalid { problems, .. } => {
            let causes = problems.0.iter().map(|problem| Cause {
                reason: "FieldValueInvalid".to_owned(),
                message: problem.message.clone(),
                field: problem.field.clone(),
            });
            Status::invalid(&resource.group, &resource.kind, name, causes.collect())
        }
        CloudError::TooLarge { limit, .. } => Status::too_large(*limit),
        CloudError::Expired { after, oldest } => {
            Status::expired(format!("too old resource version: {after} ({oldest})"))
        }
        CloudError::Revision(error) => Status::internal(error.to_string()),
        CloudError::Store(failure @ StoreError::GivenUp) => Status::expired(chain(failure)),
        CloudError::Store(failure @ StoreError::TooManySnapshots { .. }) => {
            Status::too_many_requests(chain(failure), SNAPSHOT_RETRY_SECONDS)
        }
        CloudError::Store(
            failure @ (StoreError::Full(_) | StoreError::Unavailable(_) | StoreError::Closed),
        ) => {
            tracing::warn!(error = chain(failure), "API request failed, database unavailable");
            Status::unavailable(chain(failure), RETRY_SECONDS)
        }
        CloudError::Store(failure) => {
            tracing::error!(error = chain(failure), "API request failed in the database");
            Status::internal(chain(failure))
        }
    }
}

/// Contents of a `continue` token.
#[derive(Serialize, Deserialize)]
struct Token {
    namespace: String,
    name: String,
}

fn write_token(cursor: &Cursor) -> String {
    let token = Token { namespace: cursor.namespace.clone(), name: cursor.name.clone() };
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
}

fn read_token(token: &str) -> Result<Option<Cursor>> {
    if token.is_empty() {
        return Ok(None);
    }
    let bytes = URL_SAFE_NO_PAD.decode(token).ok();
    let token = bytes.and_then(|bytes| serde_json::from_slice::<Token>(&bytes).ok());
    match token {
        Some(Token { namespace, name }) => Ok(Some(Cursor { namespace, name })),
        None => Err(Status::bad_request("continue token was not issued by this server")),
    }
}
