//! Paths of the agent and the cloud beside Kubernetes' own, under `/edgesync/v1/`, and their metrics.

use std::future::Future;

use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::auth::Role;
use super::metrics::MetricsWriter;
use edgesync_object::Status;
use edgesync_object::status::Result;

/// Paths that are not Kubernetes', under `/edgesync/v1/`.
pub trait Extension: Send + Sync + 'static {
    /// Answers a request with JSON. An `Err` with 404 is right for a path that is not known.
    ///
    /// # Errors
    /// Any status; it becomes the response.
    fn call(&self, call: ExtensionCall) -> impl Future<Output = Result<Value>> + Send;

    /// Answers a request with JSON that is there already, the same bytes for everybody, or that comes line by line until
    /// `stopping` turns true. `None` for what [`Extension::call`] answers.
    ///
    /// # Errors
    /// Any status; it becomes the response.
    fn ready(
        &self,
        call: &ExtensionCall,
        stopping: watch::Receiver<bool>,
    ) -> impl Future<Output = Result<Option<Ready>>> + Send {
        let _ = (call, stopping);
        std::future::ready(Ok(None))
    }

    /// A file of the page for browsers, by its path below `/page/`.
    fn file(&self, path: &str) -> Option<PageFile> {
        let _ = path;
        None
    }

    /// Adds to what `/metrics` says. It is asked for when somebody looks, so what it takes to know costs nothing
    /// otherwise.
    fn metrics(&self, out: &mut MetricsWriter<'_>) -> impl Future<Output = ()> + Send {
        let _ = out;
        std::future::ready(())
    }
}

/// JSON that nobody has to make for a request.
#[derive(Debug)]
pub enum Ready {
    /// All of it.
    Whole(Bytes),
    /// Lines as they come.
    Lines(mpsc::Receiver<Result<Bytes>>),
}

/// A file of the page for browsers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFile {
    /// What it is.
    pub media_type: &'static str,
    /// Its content.
    pub body: &'static [u8],
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

impl ExtensionCall {
    /// A parameter of the query; empty if it is not there.
    #[must_use]
    pub fn parameter(&self, name: &str) -> &str {
        self.query.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }
}

/// No further paths.
impl Extension for () {
    async fn call(&self, _: ExtensionCall) -> Result<Value> {
        Err(Status::no_such_path())
    }
}
