//! Extension paths of the agent and the cloud, under `/edgesync/v1/`, and their metrics.

use std::future::Future;

use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::auth::Caller;
use super::metrics::MetricsWriter;
use edgesync_object::Status;
use edgesync_object::status::Result;

/// Handler of the paths under `/edgesync/v1/`.
pub trait Extension: Send + Sync + 'static {
    /// Answers a request with JSON; 404 for an unknown path.
    ///
    /// # Errors
    /// Any status; it becomes the response.
    fn call(&self, call: ExtensionCall) -> impl Future<Output = Result<Value>> + Send;

    /// Answers a request with shared prebuilt JSON, or with lines until `stopping` becomes true.
    /// `None` for requests that [`Extension::call`] answers.
    ///
    /// # Errors
    /// Any status; it becomes the response.
    fn ready(
        &self,
        call: &ExtensionCall,
        stopping: watch::Receiver<bool>,
    ) -> impl Future<Output = Result<Option<Prebuilt>>> + Send {
        let _ = (call, stopping);
        std::future::ready(Ok(None))
    }

    /// Returns a file of the page, by its path below `/page/`.
    fn file(&self, path: &str) -> Option<PageFile> {
        let _ = path;
        None
    }

    /// Adds metrics to `/metrics`. Called per scrape, so that computing them costs nothing
    /// otherwise.
    fn metrics(&self, out: &mut MetricsWriter<'_>) -> impl Future<Output = ()> + Send {
        let _ = out;
        std::future::ready(())
    }
}

/// JSON that exists before the request.
#[derive(Debug)]
pub enum Prebuilt {
    /// A body sent at once.
    Whole(Bytes),
    /// Lines as they become available.
    Lines(mpsc::Receiver<Result<Bytes>>),
}

/// A file of the page for browsers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFile {
    /// Media type of the body.
    pub media_type: &'static str,
    /// Content of the file.
    pub body: &'static [u8],
}

/// A request under `/edgesync/v1/`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtensionCall {
    /// HTTP method in capitals.
    pub method: String,
    /// The path after `/edgesync/v1/`, decoded, without slashes at its ends.
    pub path: String,
    /// Decoded query parameters, in order.
    pub query: Vec<(String, String)>,
    /// The parsed body; `Null` if it is empty.
    pub body: Value,
    /// The authenticated sender of the request.
    pub caller: Caller,
}

impl ExtensionCall {
    /// Returns a query parameter; empty if it is absent.
    #[must_use]
    pub fn parameter(&self, name: &str) -> &str {
        self.query.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }
}

/// Serves no extension paths.
impl Extension for () {
    async fn call(&self, _: ExtensionCall) -> Result<Value> {
        Err(Status::no_such_path())
    }
}
