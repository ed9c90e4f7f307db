//! OpenAPI: what the fields and operations of each kind are, for `kubectl explain`, for clients that compute
//! patches, and for those that want to know whether the server checks fields. Documents from a list
//! of kinds. Pure.
//!
//! Documents are made when they are asked for, and come in parts of one kind each: only their digests are kept, and what
//! one costs in memory does not grow with the number of kinds.

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

/// Which of the two languages a document is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    /// Swagger 2.0.
    V2,
    /// OpenAPI 3.0.
    V3,
}

impl Dialect {
    /// A reference to a schema of the same document.
    fn schema(self, name: &str) -> Value {
        let place = match self {
            Self::V2 => "definitions",
            Self::V3 => "components/schemas",
        };
        json!({ "$ref": format!("#/{place}/{name}") })
    }

    /// A reference to a parameter of the same document.
    fn parameter(self, name: &str) -> Value {
        let place = match self {
            Self::V2 => "parameters",
            Self::V3 => "components/parameters",
        };
        json!({ "$ref": format!("#/{place}/{name}") })
    }
}

/// A document in parts, which make one JSON text when they are put together in order.
pub(super) struct Document {
    dialect: Dialect,
    /// The kinds, each with its own names for schemas.
    kinds: Vec<Arc<Kind>>,
    /// The text up to the first path of a kind, from there to the first schema of a kind, and to the end.
    /// There are other members before the first path and schema, so that those of kinds begin with a comma.
    frame: [String; 3],
    /// How many parts have been taken.
    taken: usize,
}

impl Document {
    fn new(dialect: Dialect, mut kinds: Vec<Arc<Kind>>, frame: [String; 3]) -> Self {
        // A name that is taken twice would be a member that is there twice.
        let mut names = BTreeSet::new();
        kinds.retain(|kind| {
            let resource = &kind.resource;
            let both = [names::schema(kind), names::list(kind)];
            let place = format!("{}/{}", resource.api_version(), resource.plural);
            let new = both[0] != both[1] && !both.iter().any(|name| names.contains(name));
            let new = new && names.insert(place);
            if new {
                names.extend(both);
            }
            new
        });
        Self { dialect, kinds, frame, taken: 0 }
    }

    /// The whole text.
    #[cfg(test)]
    fn text(self) -> String {
        self.collect()
    }
}

impl Iterator for Document {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let at = self.taken;
        self.taken += 1;
        // Frame, paths of each kind, frame, schemas of each kind, frame.
        let round = self.kinds.len() + 1;
        match (at / round, at % round) {
            (turn, 0) => self.frame.get_mut(turn).map(std::mem::take),
            (0, kind) => self.kinds.get(kind - 1).map(|kind| members(&operations::paths(kind, self.dialect))),
            (1, kind) => self.kinds.get(kind - 1).map(|kind| members(&schemas::of_kind(kind, self.dialect))),
            _ => None,
        }
    }
}

/// The members of an object as text, with a comma before each.
fn members(object: &Map<String, Value>) -> String {
    let mut text = String::new();
    for (name, value) in object {
        text.push_str(&format!(",{}:{value}", Value::from(name.as_str())));
    }
    text
}

/// Whether clients may send strategic merge patches: for kinds that are built in, and whose lists are known
/// how to merge. The definitions of others do not say how.
pub(super) fn takes_strategic_patches(kind: &Kind) -> bool {
    !kind.custom && kind.schema.is_some()
}

/// What every document says of itself.
fn info() -> Value {
    json!({ "title": "edgesync", "version": env!("CARGO_PKG_VERSION") })
}

#[cfg(test)]
mod tests;
