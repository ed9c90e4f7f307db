//! Small HTTP exchanges beside the Kubernetes API: a client that sends one request over a stream
//! (join), and a server whose requests and answers are read whole (join service).

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

/// Maximum length of the head of a request or a response, in bytes: several times one with a token.
const HEAD_BYTES: usize = 16 << 10;
/// Maximum number of header fields.
const MAX_HEADERS: usize = 64;

/// A request with its whole body.
#[derive(Clone, Debug, Default)]
pub struct HttpRequest {
    /// HTTP method, such as `GET`.
    pub method: String,
    /// Request path, with its query.
    pub path: String,
    /// Header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, sent with any method.
    pub body: Vec<u8>,
}

/// A response with its whole body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpResponse {
    /// HTTP status code of the response.
    pub code: u16,
    /// Header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, read whole.
    pub body: Vec<u8>,
}

impl HttpRequest {
    /// Returns the value of a header field; `name` in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl HttpResponse {
    fn text(code: StatusCode, message: &str) -> Self {
        let headers = vec![("content-type".to_owned(), "text/plain; charset=utf-8".to_owned())];
        Self { code: code.as_u16(), headers, body: format!("{message}\n").into_bytes() }
    }
}

/// Sends a request over its own connection and reads the response, whose body is at most `most`
/// bytes long.
///
/// # Errors
/// An error of the connection, or an invalid response. A failure of the stream keeps its
/// `std::io::Error` as a source.
pub async fn exchange<S>(
    stream: S,
    host: &str,
    request: HttpRequest,
    most: usize,
) -> Result<HttpResponse, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = Request::builder().method(request.method.as_str()).uri(request.path.as_str());
    builder = builder.header(HOST, host).header(CONNECTION, "close");
    for (name, value) in &request.headers {
        builder = builder.header(name, value);
    }
    let request = builder.body(Full::new(Bytes::from(request.body)))?;
    let mut limits = client::Builder::new();
    limits.max_buf_size(HEAD_BYTES).max_headers(MAX_HEADERS);
    let (mut sender, driver) = open(stream, &limits).await?;
    // Aborted on drop: cancelling the exchange ends the connection.
    let mut connection = JoinSet::new();
    connection.spawn(driver);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body =
        collect(body, most).await?.ok_or_else(|| format!("the response is longer than {most} bytes"))?;
    Ok(HttpResponse { code: head.status.as_u16(), headers: header_pairs(&head.headers), body: body.into() })
}

/// Returns the header fields whose values are text.
fn header_pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    headers.iter().filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?))).collect()
}

/// Limits of a small server.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeLimits {
    /// Maximum length of the body of a request, in bytes.
    pub body_bytes: usize,
    /// Time limit of a connection, for its request and its response; then it is cut.
    pub patience: Duration,
}

/// Serves one connection with one request, which is read whole within the limits and answered by
/// `answer`. Returns when the connection ends.
pub async fn serve_connection<S, F, R>(stream: S, limits: ExchangeLimits, answer: Arc<F>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(HttpRequest) -> R + Send + Sync + 'static,
    R: Future<Output = HttpResponse> + Send,
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
        Ok(Err(error)) => tracing::debug!(%error, "connection ended early"),
        Err(_) => tracing::debug!(after = ?limits.patience, "slow connection closed"),
    }
}

async fn respond<F, R>(
    request: Request<Incoming>,
    limits: ExchangeLimits,
    answer: &F,
) -> Response<Full<Bytes>>
where
    F: Fn(HttpRequest) -> R,
    R: Future<Output = HttpResponse>,
{
    let (head, body) = request.into_parts();
    let answered = match collect(body, limits.body_bytes).await {
        Ok(Some(body)) => {
            let path = head.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
            let headers = header_pairs(&head.headers);
            answer(HttpRequest { method: head.method.to_string(), path, headers, body: body.into() }).await
        }
        Ok(None) => {
            let message = format!("the body is longer than {} bytes", limits.body_bytes);
            HttpResponse::text(StatusCode::PAYLOAD_TOO_LARGE, &message)
        }
        Err(error) => HttpResponse::text(StatusCode::BAD_REQUEST, &format!("read the body: {error}")),
    };
    let mut response = Response::builder().status(answered.code);
    for (name, value) in &answered.headers {
        response = response.header(name, value);
    }
    response.body(Full::new(Bytes::from(answered.body))).unwrap_or_else(|error| {
        tracing::error!(%error, "invalid HTTP response");
        let mut broken = Response::new(Full::default());
        *broken.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        broken
    })
}

#[cfg(test)]
mod tests;
