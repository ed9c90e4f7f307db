//! Small HTTP exchanges beside the Kubernetes API, both sides of them: one request over a stream (joining), and a server for
//! requests whose bodies are read and answered whole (the join service).

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1 as client;
use hyper::header::{CONNECTION, HOST, HeaderMap, HeaderValue};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::{Failure, collect, open};

/// The longest head of a request or an answer, in bytes: one with a token fits several times.
const HEAD_BYTES: usize = 16 << 10;
/// The most header fields.
const MAX_HEADERS: usize = 64;

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

impl Reply {
    fn text(code: StatusCode, message: &str) -> Self {
        let headers = vec![("content-type".to_owned(), "text/plain; charset=utf-8".to_owned())];
        Self { code: code.as_u16(), headers, body: format!("{message}\n").into_bytes() }
    }
}

/// Sends a request over a connection of its own and reads the answer, whose body may have so many bytes.
///
/// # Errors
/// The connection's, or what is wrong with the answer. A failure of the stream keeps its `std::io::Error` as a source.
pub async fn exchange<S>(stream: S, host: &str, question: Question, most: usize) -> Result<Reply, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut request = Request::builder().method(question.method.as_str()).uri(question.path.as_str());
    request = request.header(HOST, host).header(CONNECTION, "close");
    for (name, value) in &question.headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::from(question.body)))?;
    let mut limits = client::Builder::new();
    limits.max_buf_size(HEAD_BYTES).max_headers(MAX_HEADERS);
    let (mut sender, moving) = open(stream, &limits).await?;
    // Aborted when it is dropped: whoever stops waiting ends the connection.
    let mut connection = JoinSet::new();
    connection.spawn(moving);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = collect(body, most).await?.ok_or_else(|| format!("the answer is longer than {most} bytes"))?;
    Ok(Reply { code: head.status.as_u16(), headers: texts(&head.headers), body: body.into() })
}

/// Header fields that are text.
fn texts(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    headers.iter().filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?))).collect()
}

/// What small servers keep to.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeLimits {
    /// The longest body of a request, in bytes.
    pub body_bytes: usize,
    /// How long a connection may take for a request and its answer; then it is cut.
    pub patience: Duration,
}

/// Serves one connection: its request is read whole, within the limits, and answered by `answer`; a connection has one
/// request. Returns when it ends.
pub async fn serve_connection<S, F, R>(stream: S, limits: ExchangeLimits, answer: Arc<F>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Question) -> R + Send + Sync + 'static,
    R: Future<Output = Reply> + Send,
{
    let service = service_fn(move |request| {
        let answer = Arc::clone(&answer);
        async move { Ok::<_, Infallible>(respond(request, limits, &*answer).await) }
    });
    let connection = server::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.patience)
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(limits.patience, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection ended early"),
        Err(_) => tracing::debug!(after = ?limits.patience, "a slow connection was cut"),
    }
}

async fn respond<F, R>(
    request: Request<Incoming>,
    limits: ExchangeLimits,
    answer: &F,
) -> Response<Full<Bytes>>
where
    F: Fn(Question) -> R,
    R: Future<Output = Reply>,
{
    let (head, body) = request.into_parts();
    let reply = match collect(body, limits.body_bytes).await {
        Ok(Some(body)) => {
            let path = head.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
            let headers = texts(&head.headers);
            answer(Question { method: head.method.to_string(), path, headers, body: body.into() }).await
        }
        Ok(None) => {
            let message = format!("the body is longer than {} bytes", limits.body_bytes);
            Reply::text(StatusCode::PAYLOAD_TOO_LARGE, &message)
        }
        Err(error) => Reply::text(StatusCode::BAD_REQUEST, &format!("the body could not be read: {error}")),
    };
    let mut response = Response::builder().status(reply.code);
    for (name, value) in &reply.headers {
        response = response.header(name, value);
    }
    response.body(Full::new(Bytes::from(reply.body))).unwrap_or_else(|error| {
        tracing::error!(%error, "an answer that HTTP cannot carry");
        let mut broken = Response::new(Full::default());
        *broken.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        broken
    })
}

#[cfg(test)]
mod tests;
