//! OpenAPI documents: fields and operations of each kind, for `kubectl explain`, for clients that
//! compute patches, and for clients that check for field validation. Pure.
//!
//! Documents are generated on request, in parts of one kind each. Only their digests are cached,
//! and the memory of one does not grow with the number of kinds.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::kind::Kind;

mod names;
mod operations;
mod parameters;
mod schemas;
mod v2;
mod v3;

pub(super) use v2::{V2Form, document as v2_document, protobuf as v2_protobuf};
pub(super) use v3::{Index as V3Index, accepts as v3_accepts, document as v3_document};

/// The OpenAPI version of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
}

impl Dialect {
    /// Returns a reference to a schema of the same document.
    fn schema(self, name: &str) -> Value {
        let section = match self {
            Self::V2 => "definitions",
            Self::V3 => "components/schemas",
        };
        json!({ "$ref": format!("#/{section}/{name}") })
    }

    /// Returns a reference to a parameter of the same document.
    fn parameter(self, name: &str) -> Value {
        let section = match self {
            Self::V2 => "parameters",
            Self::V3 => "components/parameters",
        };
        json!({ "$ref": format!("#/{section}/{name}") })
    }
}

/// A document in parts, which form one JSON text in order.
pub(super) struct Document {
    dialect: Dialect,
    /// The kinds, with distinct schema names.
    kinds: Vec<Arc<Kind>>,
    /// The text before the first path of a kind, between paths and schemas, and at the end. The
    /// frame has other members before the first path and schema, so that those of kinds begin with
    /// a comma.
    frame: [String; 3],
    /// Parts returned so far.
    taken: usize,
}

impl Document {
    fn new(dialect: Dialect, mut kinds: Vec<Arc<Kind>>, frame: [String; 3]) -> Self {
        // A repeated name would become a duplicate member.
        let mut names = BTreeSet::new();
        kinds.retain(|kind| {
            let resource = &kind.resource;
            let both = [names::schema(kind), names::list(kind)];
            let section = format!("{}/{}", resource.api_version(), resource.plural);
            let new = both[0] != both[1] && !both.iter().any(|name| names.contains(name));
            let new = new && names.insert(section);
            if new {
                names.extend(both);
            }
            new
        });
        Self { dialect, kinds, frame, taken: 0 }
    }

    #[cfg(test)]
    fn text(self) -> String {
        self.collect()
    }
}

impl Iterator for Document {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let position = self.taken;
        self.taken += 1;
        // Order: frame, paths of each kind, frame, schemas of each kind, frame.
        let round = self.kinds.len() + 1;
        match (position / round, position % round) {
            (frame, 0) => self.frame.get_mut(frame).map(std::mem::take),
            (0, kind) => self.kinds.get(kind - 1).map(|kind| members(&operations::paths(kind, self.dialect))),
            (1, kind) => self.kinds.get(kind - 1).map(|kind| members(&schemas::of_kind(kind, self.dialect))),
            _ => None,
        }
    }
}

/// Formats the members of an object, with a comma before each.
fn members(object: &Map<String, Value>) -> String {
    let mut text = String::new();
    for (name, value) in object {
        text.push_str(&format!(",{}:{value}", Value::from(name.as_str())));
    }
    text
}

/// Returns whether a kind accepts strategic merge patches: built-in kinds with known merge keys.
/// Custom definitions have none.
pub(super) fn takes_strategic_patches(kind: &Kind) -> bool {
    !kind.custom && kind.schema.is_some()
}

/// Returns the info of every document.
fn info() -> Value {
    json!({ "title": "edgesync", "version": env!("CARGO_PKG_VERSION") })
}

#[cfg(test)]
mod tests;
