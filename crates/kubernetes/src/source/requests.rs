//! Rate-limited requests of a replica to its cluster.

use std::fmt;

use serde_json::Value;

use crate::cluster::{Cluster, Failure, Precondition, Priority, RateLimiter, Usage};
use edgesync_object::{Object, Resource, ResourceVersion};

/// A cluster behind a rate limiter. Cheap to clone.
///
/// Reads count like writes, because they cost the API server as much. A list counts once,
/// regardless of its pages. Methods named as those of [`Cluster`] wait for a token and call them.
#[derive(Clone)]
pub(super) struct Requests {
    cluster: Cluster,
    limiter: RateLimiter,
    priority: Priority,
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.cluster)
    }
}

impl Requests {
    /// Creates requests with [`Priority::Urgent`].
    pub(super) fn new(cluster: Cluster, limiter: RateLimiter) -> Self {
        Self { cluster, limiter, priority: Priority::Urgent }
    }

    /// Returns requests that share the limiter with background priority.
    pub(super) fn in_background(&self) -> Self {
        Self { priority: Priority::Background, ..self.clone() }
    }

    async fn cluster(&self) -> &Cluster {
        self.limiter.wait(self.priority).await;
        &self.cluster
    }

    /// Returns the usage of the limiter.
    pub(super) fn used(&self) -> Usage {
        self.limiter.used()
    }

    pub(super) async fn reached(&self) -> Result<ResourceVersion, Failure> {
        self.cluster().await.reached().await.map_err(|error| Failure::Unserved(error.to_string()))
    }

    pub(super) async fn get(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Object>, Failure> {
        self.cluster().await.get(resource, namespace, name).await
    }

    pub(super) async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        selector: &str,
    ) -> Result<Vec<Object>, Failure> {
        self.cluster().await.list(resource, namespace, selector).await
    }

    pub(super) async fn list_metadata(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
    ) -> Result<Vec<Object>, Failure> {
        self.cluster().await.list_metadata(resource, namespace, selector).await
    }

    pub(super) async fn create(&self, resource: &Resource, object: &Object) -> Result<Object, Failure> {
        self.cluster().await.create(resource, object).await
    }

    pub(super) async fn replace(&self, resource: &Resource, object: &Object) -> Result<Object, Failure> {
        self.cluster().await.replace(resource, object).await
    }

    pub(super) async fn replace_status(
        &self,
        resource: &Resource,
        object: &Object,
    ) -> Result<Object, Failure> {
        self.cluster().await.replace_status(resource, object).await
    }

    pub(super) async fn merge(
        &self,
        resource: &Resource,
        key: (&str, &str),
        precondition: Precondition<'_>,
        patch: Value,
    ) -> Result<Object, Failure> {
        self.cluster().await.merge(resource, key, precondition, patch).await
    }

    pub(super) async fn delete(
        &self,
        resource: &Resource,
        key: (&str, &str),
        precondition: Precondition<'_>,
    ) -> Result<bool, Failure> {
        self.cluster().await.delete(resource, key, precondition).await
    }
}
