//! Responses: the server's body type, and builders for statuses, texts and headers.

pub(super) mod compress;

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;

use super::media::Format;
use edgesync_object::Status;
use edgesync_object::status::Result;

/// Maximum number of warnings of a response.
const MAX_WARNINGS: usize = 16;
/// Maximum length of a warning, in characters.
const MAX_WARNING: usize = 256;

/// The body of a response.
pub(super) enum ResponseBody {
    /// A body sent at once.
    Whole(Option<Bytes>),
    /// Parts as they are generated. A list that fails half-way ends with an error, which cuts the
    /// connection, so that the client notices the truncation.
    Parts(mpsc::Receiver<Result<Bytes>>),
    /// Lines of a watch.
    Lines(mpsc::Receiver<Result<Bytes>>),
    /// A compressed body of another variant.
    Gzip(Box<compress::Gzip>),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Parts(parts) | Self::Lines(parts) => {
                parts.poll_recv(cx).map(|part| part.map(|part| part.map(Frame::data)))
            }
            Self::Gzip(gzip) => gzip.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            _ => SizeHint::new(),
        }
    }
}

/// Builds a response with a text.
pub(super) fn text(code: u16, media_type: &'static str, body: String) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Whole(Some(Bytes::from(body))));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// Builds a response with a status, with `Allow` and `Retry-After` where they apply.
pub(super) fn status(status: &Status, allow: &str, format: Format) -> Response<ResponseBody> {
    let value = serde_json::to_value(status).unwrap_or_default();
    let body = format.render_value(&value).unwrap_or_default();
    let mut response = text(status.code, format.media_type(), body);
    if status.code == 405
        && let Ok(allow) = HeaderValue::from_str(allow)
    {
        response.headers_mut().insert(ALLOW, allow);
    }
    match status.details.as_ref().map(|details| details.retry_after_seconds) {
        Some(seconds) if seconds > 0 => {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        _ => {}
    }
    response
}

/// Builds a response whose body is generated while it is sent.
pub(super) fn stream(media_type: &'static str, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// Builds a response from JSON that the extension has ready.
pub(super) fn ready(ready: super::extension::Prebuilt) -> Response<ResponseBody> {
    use super::extension::Prebuilt;
    let body = match ready {
        Prebuilt::Whole(bytes) => ResponseBody::Whole(Some(bytes)),
        Prebuilt::Lines(lines) => ResponseBody::Lines(lines),
    };
    stream(Format::Json.media_type(), body)
}

/// Adds warnings as headers (RFC 9111 section 5.5, with the code of Kubernetes).
pub(super) fn warn(response: &mut Response<ResponseBody>, warnings: &[String]) {
    for warning in warnings.iter().take(MAX_WARNINGS) {
        let text: String = warning.chars().filter(|c| !c.is_control()).take(MAX_WARNING).collect();
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
}

/// Builds a response without a body that lists the methods of a path.
pub(super) fn methods(allow: &'static str) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Whole(None));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

/// Builds a 401 that requests credentials.
pub(super) fn unauthorized(refusal: &Status) -> Response<ResponseBody> {
    let mut response = status(refusal, "", Format::Json);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Builds a 304 for a client that has the current version.
pub(super) fn not_modified() -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Whole(None));
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response
}
