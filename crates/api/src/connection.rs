//! One connection of an HTTP/1 client: requests with whole bodies, answers whose bodies have a limit. For
//! [`Client`](super::Client), which keeps it open, and for [`exchange`](super::exchange::exchange), which has one for each
//! request.

use std::future::Future;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// What goes wrong on the way, as the callers hand it on. A failure of the stream keeps its `std::io::Error` as a source.
pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Sends requests over an open connection, one after the other.
pub(super) type Sender = SendRequest<Full<Bytes>>;

/// Starts HTTP on a stream. The future moves the bytes until either side closes the stream: the connection ends with it.
/// Requests that it fails get its error.
pub(super) async fn open<S>(
    stream: S,
    limits: &Builder,
) -> hyper::Result<(Sender, impl Future<Output = ()> + Send + 'static)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = limits.handshake(TokioIo::new(stream)).await?;
    let moving = async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the HTTP connection ended");
        }
    };
    Ok((sender, moving))
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
