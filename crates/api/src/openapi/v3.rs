//! `/openapi/v3`: an index, and one document per group and version. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Dialect, Document, info, operations, parameters, schemas};
use crate::accept::choose;
use crate::discovery::{Digest, groups};
use crate::kind::Kind;

/// Returns whether an `Accept` header allows JSON.
pub(crate) fn accepts(accept: Option<&str>) -> bool {
    let known = |media_type: &str, _: &[(&str, &str)]| {
        matches!(media_type, "application/json" | "application/*" | "*/*").then_some(())
    };
    accept.is_none_or(|accept| accept.trim().is_empty() || choose(accept, known).is_some())
}

/// Returns the document of a group and version; `None` if it is not served.
pub(crate) fn document(kinds: &[Arc<Kind>], group: &str, version: &str) -> Option<Document> {
    let groups = groups(kinds);
    let found = groups.iter().find(|candidate| candidate.name == group)?;
    let found = found.versions.iter().find(|candidate| candidate.name == version)?;
    Some(of(&found.kinds, group, version))
}

/// Index of the documents, with a digest each. Building it generates all documents; it stays valid
/// until the kinds change.
#[derive(Debug)]
pub(crate) struct Index {
    text: String,
    /// By path of the group and version.
    digests: HashMap<String, String>,
}

impl Index {
    pub(crate) fn of(kinds: &[Arc<Kind>]) -> Self {
        let (mut paths, mut digests) = (Map::new(), HashMap::new());
        for group in groups(kinds) {
            for version in &group.versions {
                let path = operations::root(group.name, version.name);
                let hash = digest(of(&version.kinds, group.name, version.name));
                let url = json!({ "serverRelativeURL": format!("/openapi/v3{path}?hash={hash}") });
                paths.insert(path.trim_start_matches('/').to_owned(), url);
                digests.insert(path, hash);
            }
        }
        Self { text: json!({ "paths": paths }).to_string(), digests }
    }

    /// Returns the index as JSON.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the digest of a group and version's document.
    pub(crate) fn digest(&self, group: &str, version: &str) -> Option<&str> {
        self.digests.get(&operations::root(group, version)).map(String::as_str)
    }
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
