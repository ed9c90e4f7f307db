//! `/openapi/v2`: one document for everything, for clients that are older than OpenAPI v3. Pure.
//!
//! Clients written in Go ask for it in Protocol Buffers only, and today's kubectl does so in three cases: to
//! check a manifest of kind `List`, to check one of a kind that cannot be changed here, and for
//! `explain --output=plaintext-openapiv2`. With 406 the first two would end with an error before
//! anything is sent. They get a document that describes nothing, which means to them: no fields are
//! known, leave the checks to the server.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Dialect, Document, info, operations, parameters, schemas};
use crate::accept::choose;
use crate::discovery::groups;
use crate::kind::Kind;

/// The form of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum V2Form {
    /// JSON: all of it.
    Json,
    /// Protocol Buffers: a document without paths and definitions.
    Protobuf,
}

impl V2Form {
    /// The form that a client prefers, from its `Accept` header; `None` if it takes neither.
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

    /// The content type of the form.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            // Without the @ of the name that is asked for: it is not allowed in a content type.
            Self::Protobuf => "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
        }
    }
}

/// The document of all kinds, in JSON.
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

/// The document that describes nothing, in Protocol Buffers: its version, and a title and version of its own.
pub(crate) fn protobuf() -> Vec<u8> {
    let info = [field(1, b"edgesync"), field(2, env!("CARGO_PKG_VERSION").as_bytes())].concat();
    [field(1, b"2.0"), field(2, &info)].concat()
}

/// A field with a short text or message: its number and wire type, its length, its content.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    // A length below 128 is one byte; nothing here is longer.
    let content = content.get(..content.len().min(127)).unwrap_or_default();
    let mut bytes = vec![number << 3 | 2, content.len() as u8];
    bytes.extend_from_slice(content);
    bytes
}
