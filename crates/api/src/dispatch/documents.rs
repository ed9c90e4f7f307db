//! Responses that are not objects: health, metrics, discovery, OpenAPI.

use std::sync::{Arc, Mutex, PoisonError};

use hyper::Response;
use hyper::body::Bytes;
use hyper::header::{ETAG, HeaderValue, VARY};
use serde_json::Value;
use tokio::sync::mpsc;

use super::Head;
use crate::discovery::{self, Form, Root};
use crate::extension::Extension;
use crate::kind::Kind;
use crate::media::Accepted;
use crate::metrics::{ApiMetrics, MetricsWriter};
use crate::openapi::{self, Document, V2Form, V3Index};
use crate::request::{Discovery, HealthRequest, OpenApi};
use crate::response::{self, ResponseBody};
use crate::storage::Storage;
use edgesync_object::Status;
use edgesync_object::status::Result;

/// Paths outside of any group, in the list of all paths.
const OWN_PATHS: &[&str] =
    &["/edgesync/v1/", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"];
/// Parts of a document generated ahead of the client.
const PARTS_AHEAD: usize = 1;

/// Answers `/healthz`, `/livez` and `/readyz`.
pub(super) fn health(
    request: &HealthRequest,
    checks: &[(&'static str, Result<()>)],
) -> Result<Response<ResponseBody>> {
    // A process that answers is alive, whatever its store reports.
    let checks = if request.endpoint == "readyz" { checks } else { &[] };
    let answer = match &request.check {
        Some(check) => crate::health::single(check, checks).ok_or_else(Status::no_such_path)?,
        None => crate::health::answer(request.endpoint, checks, &request.query),
    };
    Ok(response::text(answer.code, "text/plain; charset=utf-8", answer.body))
}

/// Renders `/metrics`: the API's own and the extension's.
pub(super) async fn metrics(metrics: &ApiMetrics, extension: &impl Extension) -> Response<ResponseBody> {
    let mut out = String::new();
    let mut writer = MetricsWriter::new(&mut out);
    metrics.write(&mut writer);
    extension.metrics(&mut writer).await;
    response::text(200, MetricsWriter::CONTENT_TYPE, out)
}

pub(super) fn version() -> Value {
    crate::health::version()
}

/// Answers a discovery path.
pub(super) fn discovery(
    kinds: &[Arc<Kind>],
    what: &Discovery,
    head: &Head<'_>,
) -> Result<Response<ResponseBody>> {
    let found = match what {
        Discovery::Root => Some(discovery::root_paths(kinds, OWN_PATHS)),
        Discovery::Core => return aggregated(kinds, Root::Core, head),
        Discovery::Groups => return aggregated(kinds, Root::Named, head),
        Discovery::Group(group) => discovery::group(kinds, group),
        Discovery::Version { group, version } => discovery::resource_list(kinds, group, version),
    };
    let value = found.ok_or_else(Status::no_such_path)?;
    let format = Accepted::read(head.accept, false)?.format;
    Ok(tagged(format.media_type(), format.render_value(&value)?, head))
}

/// Answers `/api` and `/apis`; new clients request them with all groups below.
fn aggregated(kinds: &[Arc<Kind>], root: Root, head: &Head<'_>) -> Result<Response<ResponseBody>> {
    let form = Form::accepted(head.accept);
    let value = discovery::aggregated(kinds, root, form);
    let mut response = match form.content_type() {
        Some(content_type) => tagged(content_type, value.to_string(), head),
        None => {
            let format = Accepted::read(head.accept, false)?.format;
            tagged(format.media_type(), format.render_value(&value)?, head)
        }
    };
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

/// Responds with a text and its entity tag; 304 if the client has it already.
fn tagged(content_type: &'static str, text: String, head: &Head<'_>) -> Response<ResponseBody> {
    let tag = discovery::etag(&text);
    let response = if client_has(head, &tag) {
        response::not_modified()
    } else {
        response::text(200, content_type, text)
    };
    with_tag(response, &tag)
}

fn with_tag(mut response: Response<ResponseBody>, tag: &str) -> Response<ResponseBody> {
    if let Ok(tag) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

fn client_has(head: &Head<'_>, tag: &str) -> bool {
    head.if_none_match.is_some_and(|tags| discovery::matches_etag(tags, tag))
}

/// The index of the OpenAPI documents, cached until the kinds change.
#[derive(Debug, Default)]
pub(crate) struct Schemas(Mutex<Option<(u64, Arc<V3Index>)>>);

impl Schemas {
    fn index(&self, storage: &impl Storage) -> Arc<V3Index> {
        let version = storage.kinds_version();
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some((of, index)) if *of == version => Arc::clone(index),
            _ => {
                let index = Arc::new(V3Index::of(&storage.kinds()));
                *cached = Some((version, Arc::clone(&index)));
                index
            }
        }
    }
}

/// Answers an OpenAPI path.
pub(super) fn openapi(
    storage: &impl Storage,
    schemas: &Schemas,
    what: &OpenApi,
    head: &Head<'_>,
) -> Result<Response<ResponseBody>> {
    let json = "application/json";
    if *what != OpenApi::V2 && !openapi::v3_accepts(head.accept) {
        return Err(Status::not_acceptable(&[json]));
    }
    // Documents are large and not cached, but their tags are: a client that has a document costs
    // next to nothing.
    let (tag, document) = match what {
        OpenApi::V2 => {
            let form = V2Form::accepted(head.accept).ok_or_else(|| Status::not_acceptable(&[json]))?;
            if form == V2Form::Protobuf {
                let body = ResponseBody::Whole(Some(Bytes::from(openapi::v2_protobuf())));
                return Ok(response::stream(form.content_type(), body));
            }
            // The v2 document contains nothing beyond the v3 documents, and the index has their
            // digests.
            let tag = discovery::etag(schemas.index(storage).text());
            let document = (!client_has(head, &tag)).then(|| openapi::v2_document(&storage.kinds()));
            (tag, document)
        }
        OpenApi::V3Index => return Ok(tagged(json, schemas.index(storage).text().to_owned(), head)),
        OpenApi::V3 { group, version } => {
            let index = schemas.index(storage);
            let digest = index.digest(group, version).ok_or_else(Status::no_such_path)?;
            let tag = format!("\"{digest}\"");
            let document = if client_has(head, &tag) {
                None
            } else {
                let document = openapi::v3_document(&storage.kinds(), group, version);
                Some(document.ok_or_else(Status::no_such_path)?)
            };
            (tag, document)
        }
    };
    let response = document.map_or_else(response::not_modified, |document| in_parts(json, document));
    Ok(with_tag(response, &tag))
}

/// Streams a document, generating each part as the client reads.
fn in_parts(content_type: &'static str, document: Document) -> Response<ResponseBody> {
    let (sender, parts) = mpsc::channel(PARTS_AHEAD);
    tokio::spawn(async move {
        for part in document {
            if sender.send(Ok(Bytes::from(part))).await.is_err() {
                return;
            }
        }
    });
    response::stream(content_type, ResponseBody::Parts(parts))
}
