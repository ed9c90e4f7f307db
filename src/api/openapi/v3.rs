//! `/openapi/v3`: an index, and one document for each group and version. Pure.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Dialect, Document, info, operations, parameters, schemas};
use crate::api::accept::choose;
use crate::api::discovery::{Digest, groups};
use crate::api::kind::Kind;

/// Whether a client takes the documents, by its `Accept` header: they are JSON.
pub(in crate::api) fn accepts(accept: Option<&str>) -> bool {
    let known = |media_type: &str, _: &[(&str, &str)]| {
        matches!(media_type, "application/json" | "application/*" | "*/*").then_some(())
    };
    accept.is_none_or(|accept| accept.trim().is_empty() || choose(accept, known).is_some())
}

/// The document of a group and version, if there is one, with the digest that the index has for it.
pub(in crate::api) fn document(
    kinds: &[Arc<Kind>],
    group: &str,
    version: &str,
) -> Option<(Document, String)> {
    let groups = groups(kinds);
    let found = groups.iter().find(|candidate| candidate.name == group)?;
    let found = found.versions.iter().find(|candidate| candidate.name == version)?;
    let make = || of(&found.kinds, group, version);
    Some((make(), digest(make())))
}

/// The index: where the document of each group and version is. It goes through all documents to know their
/// digests, so the server keeps it until the kinds change.
pub(in crate::api) fn index(kinds: &[Arc<Kind>]) -> Value {
    let mut paths = Map::new();
    for group in groups(kinds) {
        for version in &group.versions {
            let path = version.path(group.name);
            let hash = digest(of(&version.kinds, group.name, version.name));
            let url = json!({ "serverRelativeURL": format!("/openapi/v3{path}?hash={hash}") });
            paths.insert(path.trim_start_matches('/').to_owned(), url);
        }
    }
    json!({ "paths": paths })
}

fn digest(document: Document) -> String {
    let mut digest = Digest::default();
    document.for_each(|part| digest.add(&part));
    digest.hex()
}

fn of(kinds: &[&Arc<Kind>], group: &str, version: &str) -> Document {
    let root = format!("{}/", operations::root(group, version));
    let resources = json!({
        "get": { "responses": { "200": { "description": "The resources of the group and version." } } },
    });
    let head = format!(
        "{{\"openapi\":\"3.0.0\",\"info\":{},\"security\":[{{\"BearerToken\":[]}}],\"paths\":{{{}:{resources}",
        info(),
        Value::from(root)
    );
    let shared = Value::Object(schemas::shared(Dialect::V3)).to_string();
    let middle = format!(
        "}},\"components\":{{\"parameters\":{},\"securitySchemes\":{},\"schemas\":{}",
        Value::Object(parameters::definitions(Dialect::V3)),
        json!({ "BearerToken": { "type": "http", "scheme": "bearer" } }),
        shared.strip_suffix('}').unwrap_or_default()
    );
    let kinds = kinds.iter().map(|kind| Arc::clone(kind)).collect();
    Document::new(Dialect::V3, kinds, [head, middle, "}}}\n".into()])
}
