//! The interface to a store that several replicas share: the objects of a Kubernetes cluster.

use std::fmt;
use std::pin::Pin;

use serde_json::Value;

use edgesync_object::{Object, ObjectKey, Resource};

/// Reason why an object could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The object has another version than the write names, or exists already. The caller reads it
    /// again and reapplies its change.
    #[error("{0} was changed concurrently")]
    Conflict(ObjectKey),
    /// The object or its kind does not exist.
    #[error("{0} not found")]
    NotFound(ObjectKey),
    /// The caller lacks the right. Message of the store.
    #[error("{0}")]
    Forbidden(String),
    /// The store rejects the object for good. Message of the store.
    #[error("{0}")]
    Invalid(String),
    /// The store is unavailable; the caller retries. Whether the object was written is unknown.
    #[error("{0}")]
    Unserved(String),
}

/// Conditions on the object that a write changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Precondition<'a> {
    /// The UID that the object must have.
    pub uid: Option<&'a str>,
    /// The `resourceVersion` that the object must have.
    pub version: Option<&'a str>,
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent {
    /// A list starts. Objects that it does not report before [`WatchEvent::Complete`] are deleted.
    ListStarted,
    /// An object of the list.
    Listed(Object),
    /// The list is complete.
    Complete,
    /// An object was created or changed.
    Updated(Object),
    /// An object was deleted; its last state.
    Deleted(Object),
    /// The watch failed for this reason; it restarts by itself.
    Failed(String),
}

/// A boxed future: keeps the traits here object-safe.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Objects that several processes read, write and watch.
///
/// Reads are quorum reads. Writes name the version that they replace: of concurrent writers one
/// wins. Every method fails with a [`Failure`].
pub trait ObjectStore: fmt::Debug + Send + Sync + 'static {
    /// Reads an object; `None` if there is none.
    fn get<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        name: &'a str,
    ) -> Pending<'a, Result<Option<Object>, Failure>>;

    /// Lists the objects of a kind with these labels, in one namespace or in all.
    fn list<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: Option<&'a str>,
        selector: &'a str,
    ) -> Pending<'a, Result<Vec<Object>, Failure>>;

    /// Creates an object; [`Failure::Conflict`] if it exists.
    fn create<'a>(
        &'a self,
        resource: &'a Resource,
        object: &'a Object,
    ) -> Pending<'a, Result<Object, Failure>>;

    /// Replaces the version that the object carries.
    fn replace<'a>(
        &'a self,
        resource: &'a Resource,
        object: &'a Object,
    ) -> Pending<'a, Result<Object, Failure>>;

    /// Applies a JSON merge patch (RFC 7396).
    fn merge<'a>(
        &'a self,
        resource: &'a Resource,
        key: (&'a str, &'a str),
        precondition: Precondition<'a>,
        patch: Value,
    ) -> Pending<'a, Result<Object, Failure>>;

    /// Deletes an object; `false` if there was none.
    fn delete<'a>(
        &'a self,
        resource: &'a Resource,
        key: (&'a str, &'a str),
        precondition: Precondition<'a>,
    ) -> Pending<'a, Result<bool, Failure>>;

    /// Watches a kind in a namespace. The watch starts with a list.
    fn follow(&self, resource: &Resource, namespace: &str, selector: &str) -> Box<dyn Follow>;
}

/// A watch that restarts by itself after a failure.
pub trait Follow: Send {
    /// Waits for the next event. Cancel-safe.
    fn next(&mut self) -> Pending<'_, WatchEvent>;
}
