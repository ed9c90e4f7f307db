//! The store of the objects that enrollment keeps where several replicas share them: a Kubernetes cluster.

use std::fmt;
use std::pin::Pin;

use serde_json::Value;

use edgesync_object::{Object, ObjectKey, Resource};

/// Why an object was not read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The object is another one than the writer knew, or exists where one was to be created. The caller reads it again and
    /// applies its change to what it finds.
    #[error("{0} was changed meanwhile")]
    Conflict(ObjectKey),
    /// There is no such object, or no such kind.
    #[error("there is no {0}")]
    NotFound(ObjectKey),
    /// The caller lacks the right, in the words of the store.
    #[error("{0}")]
    Forbidden(String),
    /// The store never accepts the object as it is, in its words.
    #[error("{0}")]
    Invalid(String),
    /// The store does not serve now; the caller retries later. Whether the object was written is unknown.
    #[error("{0}")]
    Unserved(String),
}

/// What must be true of an object that is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Precondition<'a> {
    /// It still has this UID.
    pub uid: Option<&'a str>,
    /// It still has this `resourceVersion`.
    pub version: Option<&'a str>,
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// A list begins; what it does not have up to [`News::Complete`] is gone.
    Begun,
    /// An object of the list.
    Listed(Object),
    /// The list is complete.
    Complete,
    /// An object was created or changed.
    Set(Object),
    /// An object was deleted; its last state.
    Gone(Object),
    /// The watch failed for this reason; it restarts by itself.
    Failed(String),
}

/// A boxed future, so that the traits here can be used as objects.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Objects that several processes read, write and watch.
///
/// Reads come from the quorum; writes name the version that they replace, so that of several writers one wins.
/// Each method fails with what [`Failure`] names.
pub trait ObjectStore: fmt::Debug + Send + Sync + 'static {
    /// Reads an object; `None` if there is none.
    fn get<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        name: &'a str,
    ) -> Pending<'a, Result<Option<Object>, Failure>>;

    /// Reads all objects of a kind with these labels, in one namespace or in all.
    fn list<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: Option<&'a str>,
        selector: &'a str,
    ) -> Pending<'a, Result<Vec<Object>, Failure>>;

    /// Creates an object.
    fn create<'a>(
        &'a self,
        resource: &'a Resource,
        object: &'a Object,
    ) -> Pending<'a, Result<Object, Failure>>;

    /// Replaces the version that the object names.
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

    /// Watches a kind in a namespace, beginning with a list.
    fn follow(&self, resource: &Resource, namespace: &str, selector: &str) -> Box<dyn Follow>;
}

/// A watch.
pub trait Follow: Send {
    /// Waits for the next event. Can be cancelled without loss.
    fn next(&mut self) -> Pending<'_, News>;
}
