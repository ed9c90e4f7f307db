//! Responses: the body type of the server, statuses and objects as responses, and lists that are
//! written page by page.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Map, json};
use tokio::sync::mpsc;

use super::listing::ListWriter;
use super::media::Format;
use super::objects::{ListOptions, ListPage, Objects, PAGE_ITEMS};
use super::request::Options;
use crate::object::status::Result;
use crate::object::{Resource, Status};

/// Once this many bytes are gathered, a part of a list is written.
const CHUNK_BYTES: usize = 64 << 10;

/// The body of a response.
pub(super) enum ResponseBody {
    /// All of it at once.
    Whole(Option<Bytes>),
    /// Parts as they are made. A list that fails half-way ends with an error, which cuts the
    /// connection: the client sees that it has not got all.
    Parts(mpsc::Receiver<Result<Bytes>>),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Parts(parts) => parts.poll_recv(cx).map(|part| part.map(|part| part.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Parts(_) => SizeHint::new(),
        }
    }
}

/// A response with a text.
pub(super) fn text(code: u16, media_type: &'static str, body: String) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Whole(Some(Bytes::from(body))));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// A status as a response, with the headers its reason asks for.
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

/// An object as a response.
pub(super) fn object(code: u16, format: Format, json: String) -> Result<Response<ResponseBody>> {
    Ok(text(code, format.media_type(), format.render(json)?))
}

/// A list as a response. Its first page is read before anything is answered, so that whatever is wrong
/// with the request is a proper status; the other pages are read as the client takes them.
pub(super) async fn list<O: Objects>(
    objects: &Arc<O>,
    resource: Arc<Resource>,
    namespace: Option<String>,
    options: Options,
    format: Format,
) -> Result<Response<ResponseBody>> {
    let mut lister = Lister {
        objects: Arc::clone(objects),
        resource,
        namespace,
        left: options.limit,
        options: ListOptions {
            labels: options.labels,
            fields: options.fields,
            limit: 0,
            continue_token: options.continue_token,
        },
    };
    let first = lister.page().await?;
    let kind = format!("{}List", lister.resource.kind);
    let mut writer = ListWriter::new(format, &lister.resource.api_version(), &kind);
    let version = first.resource_version.clone();
    if lister.is_last(&first) {
        let mut body = writer.items(&first.items)?;
        body.push_str(&writer.end(metadata(&version, &first))?);
        return Ok(text(200, format.media_type(), body));
    }
    // One part waits while the next one is made: a list costs two pages, however long it is.
    let (sender, parts) = mpsc::channel(1);
    tokio::spawn(async move {
        if let Err(status) = stream(&mut lister, &mut writer, first, &version, &sender).await {
            let _ = sender.send(Err(status)).await;
        }
    });
    let mut response = Response::new(ResponseBody::Parts(parts));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    Ok(response)
}

/// Writes all pages. A client that has gone ends it early, which is no error.
async fn stream<O: Objects>(
    lister: &mut Lister<O>,
    writer: &mut ListWriter,
    first: ListPage,
    version: &str,
    sender: &mpsc::Sender<Result<Bytes>>,
) -> Result<()> {
    let mut page = first;
    loop {
        let mut items = page.items.as_slice();
        while !items.is_empty() {
            let (chunk, rest) = items.split_at(chunk_len(items));
            if sender.send(Ok(Bytes::from(writer.items(chunk)?))).await.is_err() {
                return Ok(());
            }
            items = rest;
        }
        if lister.is_last(&page) {
            let _ = sender.send(Ok(Bytes::from(writer.end(metadata(version, &page))?))).await;
            return Ok(());
        }
        page = lister.page().await?;
    }
}

/// The metadata of a list: the version is that of its first page, so that who watches from there misses
/// nothing.
fn metadata(version: &str, last: &ListPage) -> Map<String, serde_json::Value> {
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".into(), json!(version));
    if let Some(token) = &last.continue_token {
        metadata.insert("continue".into(), json!(token));
        if let Some(remaining) = last.remaining {
            metadata.insert("remainingItemCount".into(), json!(remaining));
        }
    }
    metadata
}

/// How many items make up a part of a reasonable size: at least one.
fn chunk_len(items: &[String]) -> usize {
    let mut bytes = 0;
    let enough = |item: &String| {
        bytes += item.len();
        bytes >= CHUNK_BYTES
    };
    items.iter().position(enough).map_or(items.len(), |last| last + 1)
}

/// Reads a list page by page, up to the limit of the client.
struct Lister<O> {
    objects: Arc<O>,
    resource: Arc<Resource>,
    namespace: Option<String>,
    options: ListOptions,
    /// Items still wanted; `None` for all.
    left: Option<u64>,
}

impl<O: Objects> Lister<O> {
    /// Reads the next page and moves on behind it.
    async fn page(&mut self) -> Result<ListPage> {
        let wanted = self.left.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
        self.options.limit = wanted.clamp(1, PAGE_ITEMS);
        let page = self.objects.list(&self.resource, self.namespace.as_deref(), &self.options).await?;
        self.left = self.left.map(|left| left.saturating_sub(page.items.len() as u64));
        self.options.continue_token = page.continue_token.clone().unwrap_or_default();
        Ok(page)
    }

    /// Whether nothing follows this page, or the client wants no more.
    fn is_last(&self, page: &ListPage) -> bool {
        page.continue_token.is_none() || self.left == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_list_have_a_reasonable_size() {
        let items = |sizes: &[usize]| -> Vec<String> { sizes.iter().map(|size| "x".repeat(*size)).collect() };
        assert_eq!(chunk_len(&items(&[1, 2, 3])), 3);
        assert_eq!(chunk_len(&items(&[1, CHUNK_BYTES, 3])), 2);
        assert_eq!(chunk_len(&items(&[CHUNK_BYTES * 9])), 1);
    }
}
