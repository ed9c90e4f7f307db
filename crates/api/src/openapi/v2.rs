//! `/openapi/v2`: one document for all kinds, for clients older than OpenAPI v3. Pure.
//!
//! Go clients request it in Protocol Buffers only. Today's kubectl does so in three cases: to check
//! a manifest of kind `List`, to check one of a read-only kind, and for `explain
//! --output=plaintext-openapiv2`. A 406 would abort the first two before anything is sent. They get
//! an empty document, which leaves all field checks to the server.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Dialect, Document, info, operations, parameters, schemas};
use crate::accept::choose;
use crate::discovery::groups;
use crate::kind::Kind;

/// The format of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum V2Form {
    /// The complete document as JSON.
    Json,
    /// Protocol Buffers: a document without paths and definitions.
    Protobuf,
}

impl V2Form {
    /// Negotiates the format by an `Accept` header; `None` if neither is accepted.
    pub(crate) fn accepted(accept: Option<&str>) -> Option<Self> {
        let offer = |media_type: &str, _: &[(&str, &str)]| match media_type {
            "application/json" | "application/*" | "*/*" => Some(Self::Json),
            "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
            | "application/com.github.proto-openapi.spec.v2.v1.0+protobuf" => Some(Self::Protobuf),
            _ => None,
        };
        match accept.map(str::trim).filter(|accept| !accept.is_empty()) {
            Some(accept) => choose(accept, offer),
            None => Some(Self::Json),
        }
    }

    /// Returns the content type of the format.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            // Without the @ of the requested name, which a content type must not contain.
            Self::Protobuf => "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
        }
    }
}

/// Builds the document of all kinds, in JSON.
pub(crate) fn document(kinds: &[Arc<Kind>]) -> Document {
    let mut paths = Map::new();
    for group in groups(kinds) {
        for version in &group.versions {
            let resources = json!({
                "get": { "responses": { "200": { "description": "The resources of the group and version." } } },
            });
            paths.insert(format!("{}/", operations::root(group.name, version.name)), resources);
        }
    }
    paths.insert("/version/".into(), json!({ "get": { "responses": { "200": { "description": "OK" } } } }));
    let head = json!({
        "info": info(),
        "parameters": parameters::definitions(Dialect::V2),
        "security": [{ "BearerToken": [] }],
        "securityDefinitions": { "BearerToken": { "type": "apiKey", "name": "authorization", "in": "header" } },
        "swagger": "2.0",
    });
    let open = |value: Value| {
        let mut text = value.to_string();
        text.pop();
        text
    };
    let head = format!("{},\"paths\":{}", open(head), open(Value::Object(paths)));
    let shared = open(Value::Object(schemas::shared(Dialect::V2)));
    let middle = format!("}},\"definitions\":{shared}");
    Document::new(Dialect::V2, kinds.to_vec(), [head, middle, "}}\n".into()])
}

/// Builds the empty document in Protocol Buffers: its version, and an info with title and version.
pub(crate) fn protobuf() -> Vec<u8> {
    let info = [field(1, b"edgesync"), field(2, env!("CARGO_PKG_VERSION").as_bytes())].concat();
    [field(1, b"2.0"), field(2, &info)].concat()
}

/// Encodes a field with a short string or message: tag, length, content.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    // A length below 128 is one byte; nothing here is longer.
    let content = content.get(..content.len().min(127)).unwrap_or_default();
    let mut bytes = vec![number << 3 | 2, content.len() as u8];
    bytes.extend_from_slice(content);
    bytes
}
