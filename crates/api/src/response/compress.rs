//! Response compression (gzip, RFC 1952) above a minimum length.

use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::Response;
use hyper::body::{Body, Bytes, Frame};
use hyper::header::{CONTENT_ENCODING, HeaderValue, VARY};

use crate::response::ResponseBody;
use edgesync_object::Status;
use edgesync_object::status::Result;

/// The shortest compressed response, in bytes, as in Kubernetes.
const MIN_BYTES: u64 = 128 << 10;
/// The fastest level: throughput matters more than the last percent.
const LEVEL: u32 = 1;

/// A body compressed while it is sent.
pub(crate) struct Gzip {
    inner: ResponseBody,
    /// `None` once the end has been written.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

/// Compresses a long response. Watches are never compressed: each line must arrive at once.
pub(crate) fn compressed(response: Response<ResponseBody>) -> Response<ResponseBody> {
    let long = match response.body() {
        ResponseBody::Whole(_) => response.body().size_hint().lower() >= MIN_BYTES,
        ResponseBody::Parts(_) => true,
        ResponseBody::Lines(_) | ResponseBody::Gzip(_) => false,
    };
    if !long {
        return response;
    }
    let encoder = Some(GzEncoder::new(Vec::new(), Compression::new(LEVEL)));
    let mut response = response.map(|inner| ResponseBody::Gzip(Box::new(Gzip { inner, encoder })));
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    response
}

impl Gzip {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        loop {
            let Some(encoder) = &mut self.encoder else { return Poll::Ready(None) };
            let part = ready!(Pin::new(&mut self.inner).poll_frame(cx));
            match part.map(|part| part.map(Frame::into_data)) {
                Some(Ok(Ok(bytes))) => {
                    encoder.write_all(&bytes).map_err(Status::internal)?;
                    let out = std::mem::take(encoder.get_mut());
                    if !out.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(out.into()))));
                    }
                }
                Some(Ok(Err(_))) => {}
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None => {
                    let Some(encoder) = self.encoder.take() else { return Poll::Ready(None) };
                    let out = encoder.finish().map_err(Status::internal)?;
                    return Poll::Ready(Some(Ok(Frame::data(out.into()))));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    use http_body_util::BodyExt;
    use tokio::sync::mpsc;

    async fn read(response: Response<ResponseBody>) -> String {
        let gzip = response.headers().get(CONTENT_ENCODING).is_some();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        if !gzip {
            return String::from_utf8(bytes.to_vec()).unwrap();
        }
        let mut text = String::new();
        flate2::read::GzDecoder::new(&*bytes).read_to_string(&mut text).unwrap();
        text
    }

    #[tokio::test]
    async fn long_and_partial_responses_decompress_whole() {
        let long = "abc".repeat(100_000);
        let response = compressed(Response::new(ResponseBody::Whole(Some(long.clone().into()))));
        assert!(response.headers().contains_key(CONTENT_ENCODING));
        assert_eq!(read(response).await, long);
        let (sender, parts) = mpsc::channel(3);
        for part in ["a", "", "b"] {
            sender.try_send(Ok(part.into())).unwrap();
        }
        drop(sender);
        assert_eq!(read(compressed(Response::new(ResponseBody::Parts(parts)))).await, "ab");
    }

    #[tokio::test]
    async fn short_responses_and_watches_are_not_compressed() {
        let response = compressed(Response::new(ResponseBody::Whole(Some("abc".into()))));
        assert!(!response.headers().contains_key(CONTENT_ENCODING));
        assert_eq!(read(response).await, "abc");
        let (_, lines) = mpsc::channel(1);
        let response = compressed(Response::new(ResponseBody::Lines(lines)));
        assert!(!response.headers().contains_key(CONTENT_ENCODING));
    }

    #[tokio::test]
    async fn truncated_list_is_truncated_compressed_too() {
        let (sender, parts) = mpsc::channel(2);
        sender.try_send(Ok("a".into())).unwrap();
        sender.try_send(Err(Status::internal("broken"))).unwrap();
        drop(sender);
        assert!(compressed(Response::new(ResponseBody::Parts(parts))).into_body().collect().await.is_err());
    }
}
