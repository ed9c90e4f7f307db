//! Small HTTP exchanges beside the Kubernetes API, both sides of them: one request over a stream (joining), and a server for
//! requests whose bodies are read and answered whole (the join service).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

/// One request.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// `GET`, `POST`, …
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, also with `GET`.
    pub body: Vec<u8>,
}

/// Its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status code.
    pub code: u16,
    /// Header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Question {
    /// A header field; `name` in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Sends a request over a connection of its own and reads the answer, whose body may have so many bytes.
///
/// # Errors
/// The connection's, or what is wrong with the answer. A failure of the stream keeps its `std::io::Error` as a source.
pub async fn exchange<S>(
    stream: S,
    host: &str,
    question: Question,
    most: usize,
) -> Result<Reply, Box<dyn std::error::Error + Send + Sync>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    todo!()
}

/// What small servers keep to.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeLimits {
    /// The longest body of a request, in bytes.
    pub body_bytes: usize,
    /// How long a connection may take for a request and its answer.
    pub patience: Duration,
}

/// Serves one connection: each request is read whole, within the limits, and answered by `answer`. Returns when it ends.
pub async fn serve_connection<S, F, R>(stream: S, limits: ExchangeLimits, answer: Arc<F>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Question) -> R + Send + Sync + 'static,
    R: Future<Output = Reply> + Send,
{
    todo!()
}
