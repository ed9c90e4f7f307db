//! Paths of the agent and the cloud beside Kubernetes' own, under `/edgesync/v1/`, and their metrics.

use std::future::Future;

use serde_json::Value;

use super::auth::Role;
use super::metrics::MetricsWriter;
use crate::object::Status;
use crate::object::status::Result;

/// Paths that are not Kubernetes', under `/edgesync/v1/`.
pub trait Extension: Send + Sync + 'static {
    /// Answers a request with JSON. An `Err` with 404 is right for a path that is not known.
    ///
    /// # Errors
    /// Any status; it becomes the response.
    fn call(&self, call: ExtensionCall) -> impl Future<Output = Result<Value>> + Send;

    /// Adds to what `/metrics` says. It is asked for when somebody looks, so what it takes to know costs nothing
    /// otherwise.
    fn metrics(&self, out: &mut MetricsWriter<'_>) -> impl Future<Output = ()> + Send {
        let _ = out;
        std::future::ready(())
    }
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
    /// What who asks may do.
    pub role: Role,
}

/// No further paths.
impl Extension for () {
    async fn call(&self, _: ExtensionCall) -> Result<Value> {
        Err(Status::no_such_path())
    }
}
