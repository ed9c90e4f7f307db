//! Responses: the body type of the server, statuses and objects as responses, and lists that are
//! written page by page.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::media::Format;
use super::objects::{ListOptions, ListPage, Objects, PAGE_ITEMS};
use super::request::Options;
use crate::object::status::Result;
use crate::object::{Resource, Status, yaml};

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
            label_selector: options.label_selector,
            field_selector: options.field_selector,
            limit: 0,
            continue_token: options.continue_token,
        },
    };
    let first = lister.page().await?;
    let mut writer = ListWriter::new(&lister.resource, format, &first.resource_version);
    if lister.is_last(&first) {
        let mut body = writer.items(&first.items)?;
        body.push_str(&writer.end(&first)?);
        return Ok(text(200, format.media_type(), body));
    }
    // One part waits while the next one is made: a list costs two pages, however long it is.
    let (sender, parts) = mpsc::channel(1);
    tokio::spawn(async move {
        if let Err(status) = stream(&mut lister, &mut writer, first, &sender).await {
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
            let _ = sender.send(Ok(Bytes::from(writer.end(&page)?))).await;
            return Ok(());
        }
        page = lister.page().await?;
    }
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

/// Writes the parts of a list: its head, its items, its metadata. The metadata comes last because
/// the token that continues the list is known last.
struct ListWriter {
    format: Format,
    head: Option<String>,
    any: bool,
    resource_version: String,
}

impl ListWriter {
    fn new(resource: &Resource, format: Format, resource_version: &str) -> Self {
        let (kind, api_version) = (format!("{}List", resource.kind), resource.api_version());
        let head = match format {
            Format::Yaml => format!("apiVersion: {api_version}\nkind: {kind}\n"),
            Format::PrettyJson => {
                format!("{{\n  \"apiVersion\": \"{api_version}\",\n  \"kind\": \"{kind}\",\n  \"items\": [")
            }
            Format::Json => format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","items":["#),
        };
        Self { format, head: Some(head), any: false, resource_version: resource_version.to_owned() }
    }

    fn items(&mut self, items: &[String]) -> Result<String> {
        let mut out = self.head.take().unwrap_or_default();
        for item in items {
            match self.format {
                Format::Json => {
                    out.push_str(if self.any { "," } else { "" });
                    out.push_str(item);
                }
                Format::PrettyJson => {
                    out.push_str(if self.any { ",\n" } else { "\n" });
                    indent(&mut out, &Format::PrettyJson.render(item.clone())?, "    ", "    ");
                    out.truncate(out.trim_end().len());
                }
                Format::Yaml => {
                    out.push_str(if self.any { "" } else { "items:\n" });
                    indent(&mut out, &Format::Yaml.render(item.clone())?, "- ", "  ");
                }
            }
            self.any = true;
        }
        Ok(out)
    }

    fn end(&mut self, last: &ListPage) -> Result<String> {
        let mut metadata = Map::new();
        metadata.insert("resourceVersion".into(), json!(self.resource_version));
        if let Some(token) = &last.continue_token {
            metadata.insert("continue".into(), json!(token));
            if let Some(remaining) = last.remaining {
                metadata.insert("remainingItemCount".into(), json!(remaining));
            }
        }
        let mut out = self.head.take().unwrap_or_default();
        match self.format {
            Format::Json => out.push_str(&format!("],\"metadata\":{}}}\n", Value::Object(metadata))),
            Format::PrettyJson => {
                out.push_str(if self.any { "\n  ],\n" } else { "],\n" });
                let metadata = format!("\"metadata\": {:#}", Value::Object(metadata));
                indent(&mut out, &metadata, "  ", "  ");
                out.push_str("\n}\n");
            }
            Format::Yaml => {
                out.push_str(if self.any { "" } else { "items: []\n" });
                out.push_str(&yaml::write(&json!({ "metadata": metadata })).map_err(Status::internal)?);
            }
        }
        Ok(out)
    }
}

/// Appends lines with an indent; empty lines stay empty.
fn indent(out: &mut String, lines: &str, first: &str, others: &str) {
    for (number, line) in lines.split_inclusive('\n').enumerate() {
        if line != "\n" {
            out.push_str(if number == 0 { first } else { others });
        }
        out.push_str(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Scope;

    fn written(format: Format, pages: &[&[&str]]) -> Value {
        let resource = Resource {
            group: "apps".into(),
            version: "v1".into(),
            kind: "Deployment".into(),
            plural: "deployments".into(),
            scope: Scope::Namespaced,
        };
        let mut writer = ListWriter::new(&resource, format, "7");
        let mut out = String::new();
        for page in pages {
            let items: Vec<String> = page.iter().map(ToString::to_string).collect();
            out.push_str(&writer.items(&items).unwrap());
        }
        let last = ListPage { continue_token: Some("t:1".into()), remaining: Some(3), ..ListPage::default() };
        out.push_str(&writer.end(&last).unwrap());
        match format {
            Format::Yaml => yaml::parse(&out).unwrap_or_else(|error| panic!("{error}: {out}")),
            _ => serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}")),
        }
    }

    #[test]
    fn a_list_in_parts_is_one_document_in_every_format() {
        let script =
            r##"{"data":{"run":"#!/bin/sh\n\n  echo a: b\n","empty":"","k":"  x\ny"},"a":[[1],{}]}"##;
        for pages in [vec![], vec![&[][..]], vec![&[script, "{}"][..], &[r#"{"a":1}"#][..]]] {
            let items: Vec<&str> = pages.concat();
            let items: Vec<Value> = items.iter().map(|item| serde_json::from_str(item).unwrap()).collect();
            let expected = json!({
                "apiVersion": "apps/v1",
                "kind": "DeploymentList",
                "items": items,
                "metadata": {"resourceVersion": "7", "continue": "t:1", "remainingItemCount": 3},
            });
            for format in [Format::Json, Format::PrettyJson, Format::Yaml] {
                assert_eq!(written(format, &pages), expected, "{format:?} {pages:?}");
            }
        }
    }

    #[test]
    fn parts_of_a_list_have_a_reasonable_size() {
        let items = |sizes: &[usize]| -> Vec<String> { sizes.iter().map(|size| "x".repeat(*size)).collect() };
        assert_eq!(chunk_len(&items(&[1, 2, 3])), 3);
        assert_eq!(chunk_len(&items(&[1, CHUNK_BYTES, 3])), 2);
        assert_eq!(chunk_len(&items(&[CHUNK_BYTES * 9])), 1);
    }
}
