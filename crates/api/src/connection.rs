//! One HTTP/1 client connection: requests with whole bodies, response bodies within a limit.
//! [`Client`](super::Client) keeps it open; [`exchange`](super::exchange::exchange) opens one per
//! request.

use std::future::Future;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// An error of the connection, boxed for the callers. A failure of the stream keeps its
/// `std::io::Error` as a source.
pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Sends requests over an open connection, one after the other.
pub(super) type Sender = SendRequest<Full<Bytes>>;

/// Starts HTTP on a stream. The returned future drives the connection until either side closes it.
/// Requests that fail with it get its error.
pub(super) async fn open<S>(
    stream: S,
    limits: &Builder,
) -> hyper::Result<(Sender, impl Future<Output = ()> + Send + 'static)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = limits.handshake(TokioIo::new(stream)).await?;
    let driver = async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "HTTP connection ended");
        }
    };
    Ok((sender, driver))
}

/// Reads a body; `None` if it is longer than `most` bytes.
pub(super) async fn collect(body: Incoming, most: usize) -> Result<Option<Bytes>, Failure> {
    if body.size_hint().lower() > most as u64 {
        return Ok(None);
    }
    match Limited::new(body, most).collect().await {
        Ok(whole) => Ok(Some(whole.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Ok(None),
        Err(error) => Err(error),
    }
}
