//! What the API needs from whoever keeps the objects. Depends on `object` only: the agent and the
//! cloud implement it over their stores.

use std::future::Future;
use std::sync::Arc;

use serde_json::Value;

use crate::object::status::Result;
use crate::object::{FieldSelector, Object, Resource, Selector, Status};

/// The most items that one call of [`Objects::list`] is asked for: what a list of any length costs
/// in memory.
pub const PAGE_ITEMS: usize = 500;

/// The keeper of objects behind the API.
///
/// Objects leave as JSON text, complete with `apiVersion`, `kind` and `metadata`, and are passed on
/// as they are. Everything that refuses a request says so with a [`Status`], which becomes the
/// response. The writing verbs are refused unless they are implemented: the edge shows what it
/// holds.
pub trait Objects: Send + Sync + 'static {
    /// The resource served under this path, if it is known.
    fn resource(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>>;

    /// All resources known, for clients that look one up by its kind.
    fn resources(&self) -> Vec<Arc<Resource>>;

    /// Whether requests can be answered now; an error is what `/readyz` shows.
    ///
    /// # Errors
    /// Says what is missing.
    fn ready(&self) -> Result<()> {
        Ok(())
    }

    /// Whether objects of a known kind may be created, replaced and deleted here. Where not, the API
    /// answers 405 before it reads a body.
    fn writable(&self, resource: &Resource) -> bool {
        let _ = resource;
        false
    }

    /// Says whether a kind that is not known may become so with its first object, which is created right
    /// after this: the kind comes from the body, the plural from the path, the scope from whether the path
    /// names a namespace. The kind counts as known once an object of it has been stored.
    ///
    /// # Errors
    /// 404 where no kinds are learnt; 409 if the kind is already known under another plural or scope.
    fn learn(&self, resource: Resource) -> impl Future<Output = Result<Arc<Resource>>> + Send {
        let _ = resource;
        async { Err(Status::no_such_path()) }
    }

    /// One object; `namespace` is empty for cluster-scoped kinds. A missing one is `None`.
    ///
    /// # Errors
    /// 500 or 503 when the store cannot be read.
    fn get(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<Option<String>>> + Send;

    /// One page of the objects of a kind in a stable order, of all namespaces if `namespace` is
    /// `None`.
    ///
    /// # Errors
    /// 400 for a token that cannot be read, 410 for a token that is too old.
    fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> impl Future<Output = Result<ListPage>> + Send;

    /// Stores a new object. `apiVersion`, `kind` and the namespace already agree with the path; name
    /// and everything else is the keeper's to check.
    ///
    /// # Errors
    /// 409 if the name is taken, 422 for an object that is not valid.
    fn create(&self, resource: &Resource, object: Object) -> impl Future<Output = Result<String>> + Send {
        let _ = object;
        let refusal = Status::method_not_allowed(resource, "create");
        async { Err(refusal) }
    }

    /// Replaces an existing object. Name and namespace already agree with the path; a
    /// `metadata.resourceVersion` or `metadata.uid` in the body is a precondition.
    ///
    /// # Errors
    /// 404 if there is none, 409 if a precondition does not hold, 422 for an object that is not valid.
    fn replace(&self, resource: &Resource, object: Object) -> impl Future<Output = Result<String>> + Send {
        let _ = object;
        let refusal = Status::method_not_allowed(resource, "update");
        async { Err(refusal) }
    }

    /// Deletes an object and returns what it was.
    ///
    /// # Errors
    /// 404 if there is none, 409 if a precondition does not hold.
    fn delete(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        preconditions: &Preconditions,
    ) -> impl Future<Output = Result<String>> + Send {
        let _ = (namespace, name, preconditions);
        let refusal = Status::method_not_allowed(resource, "delete");
        async { Err(refusal) }
    }
}

/// Which objects a list shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Only objects with such labels.
    pub labels: Selector,
    /// Only objects with such names and namespaces.
    pub fields: FieldSelector,
    /// At most this many items; the API never asks for more than [`PAGE_ITEMS`] or for 0.
    pub limit: usize,
    /// Where the page before ended; empty at the start.
    pub continue_token: String,
}

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The objects as JSON text.
    pub items: Vec<String>,
    /// The version of the store that the list shows.
    pub resource_version: String,
    /// Where the next page starts; `None` after the last one.
    pub continue_token: Option<String>,
    /// How many items follow, if that is known without counting.
    pub remaining: Option<u64>,
}

/// What must hold for a delete to happen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// The object must have this UID.
    pub uid: Option<String>,
    /// The object must have this version.
    pub resource_version: Option<String>,
}

/// Paths that are not Kubernetes', under `/edgesync/v1/`.
pub trait Extension: Send + Sync + 'static {
    /// Answers a request with JSON. An `Err` with 404 is right for a path that is not known.
    ///
    /// # Errors
    /// Any status; it becomes the response.
    fn call(&self, call: ExtensionCall) -> impl Future<Output = Result<Value>> + Send;
}

/// A request under `/edgesync/v1/`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtensionCall {
    /// HTTP method in capitals.
    pub method: String,
    /// The path after `/edgesync/v1/`, decoded, without slashes at its ends.
    pub path: String,
    /// The decoded query in its order.
    pub query: Vec<(String, String)>,
    /// The body, `Null` if there is none.
    pub body: Value,
}

/// No further paths.
impl Extension for () {
    async fn call(&self, _: ExtensionCall) -> Result<Value> {
        Err(Status::no_such_path())
    }
}
