//! Views of objects for clients that request another kind: tables as printed by `kubectl get`, and
//! metadata only. Pure; the time is an argument.

mod cells;
mod columns;
mod fields;
mod kinds;
mod path;
mod pod;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::kind::{Kind, PrinterColumn};
use columns::Column;
use edgesync_object::Status;
use edgesync_object::status::Result;
use path::JsonPath;

/// Default group and version of tables and of metadata.
pub(super) const META_V1: &str = "meta.k8s.io/v1";
/// The older group and version.
pub(super) const META_V1BETA1: &str = "meta.k8s.io/v1beta1";
pub(super) const TABLE: &str = "Table";
/// The kind of an object reduced to its metadata.
pub(super) const PARTIAL: &str = "PartialObjectMetadata";

/// The part of an object in a table row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Include {
    Nothing,
    #[default]
    Metadata,
    Object,
}

impl Include {
    /// Parses the query parameter `includeObject`; absent or empty means metadata.
    ///
    /// # Errors
    /// 400 for any other value.
    pub(super) fn from_query(value: Option<&str>) -> Result<Self> {
        match value.unwrap_or_default() {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::Nothing),
            "Object" => Ok(Self::Object),
            other => Err(Status::bad_request(format!(
                "`includeObject` must be 'None', 'Metadata' or 'Object', not '{other}'"
            ))),
        }
    }
}

/// The view of objects for a client.
#[derive(Clone, Debug, Default)]
pub(super) enum View {
    #[default]
    Whole,
    /// Metadata (`as=PartialObjectMetadata`) in this group and version.
    Metadata(&'static str),
    /// Rows of a table (`as=Table`).
    Table(TableView),
}

impl View {
    /// Converts a single object, of a response or a watch event. `first` is whether nothing was
    /// sent before: only the first table of a watch has column definitions. Bookmarks are objects
    /// too; in a table they are the metadata of its one row.
    pub(super) fn object(&self, object: Value, first: bool, now: Timestamp) -> Value {
        match self {
            Self::Whole => object,
            Self::Metadata(api_version) => partial(object, api_version),
            Self::Table(view) => view.table(object, first, now),
        }
    }

    /// Converts an item of a list.
    pub(super) fn item(&self, object: Value, now: Timestamp) -> Value {
        match self {
            Self::Table(view) => view.row(object, now),
            _ => self.object(object, false, now),
        }
    }
}

/// Reduces an object to a `PartialObjectMetadata`.
pub(super) fn partial(mut object: Value, api_version: &str) -> Value {
    let metadata = object.get_mut("metadata").map(Value::take).filter(Value::is_object);
    json!({
        "apiVersion": api_version,
        "kind": PARTIAL,
        "metadata": metadata.unwrap_or_else(|| Value::Object(Map::new())),
    })
}

/// The table of a kind: its columns, and the object part of its rows.
#[derive(Clone, Debug)]
pub(super) struct TableView {
    columns: Columns,
    include: Include,
    /// Group and version of the table.
    pub(super) api_version: &'static str,
}

#[derive(Clone, Debug)]
enum Columns {
    /// Columns of a built-in kind.
    Known(&'static [Column]),
    /// Columns of a CustomResourceDefinition, after the name. An unsupported path finds nothing.
    Custom(Vec<(PrinterColumn, Option<JsonPath>)>),
}

impl TableView {
    /// Creates the table of a kind: the columns of its definition if any, else the built-in ones,
    /// else name and age.
    pub(super) fn new(kind: &Kind, include: Include, api_version: &'static str) -> Self {
        let columns = if !kind.columns.is_empty() {
            let compiled = kind.columns.iter().map(|own| (own.clone(), JsonPath::parse(&own.json_path)));
            Columns::Custom(compiled.collect())
        } else if kind.custom {
            Columns::Known(&kinds::DEFAULT)
        } else {
            Columns::Known(kinds::columns(&kind.resource.group, &kind.resource.kind))
        };
        Self { columns, include, api_version }
    }

    /// Returns the column definitions.
    pub(super) fn definitions(&self) -> Value {
        match &self.columns {
            Columns::Known(columns) => columns.iter().map(Column::definition).collect(),
            Columns::Custom(columns) => {
                let own = columns.iter().map(|(column, _)| columns::custom_definition(column));
                std::iter::once(columns::NAME.definition()).chain(own).collect()
            }
        }
    }

    /// Builds the row of an object: a cell per column, and the included part of the object.
    pub(super) fn row(&self, object: Value, now: Timestamp) -> Value {
        let cells: Vec<Value> = match &self.columns {
            Columns::Known(columns) => columns.iter().map(|column| column.cell(&object, now)).collect(),
            Columns::Custom(columns) => {
                let own = columns
                    .iter()
                    .map(|(column, path)| columns::custom_cell(column, path.as_ref(), &object, now));
                std::iter::once(columns::NAME.cell(&object, now)).chain(own).collect()
            }
        };
        let object = match self.include {
            Include::Nothing => Value::Null,
            Include::Metadata => partial(object, self.api_version),
            Include::Object => object,
        };
        json!({ "cells": cells, "object": object })
    }

    /// Builds a table of one object with the object's version; without definitions if they were
    /// sent before.
    pub(super) fn table(&self, object: Value, definitions: bool, now: Timestamp) -> Value {
        let version = fields::str_at(&object, "metadata.resourceVersion").to_owned();
        json!({
            "apiVersion": self.api_version,
            "kind": TABLE,
            "metadata": { "resourceVersion": version },
            "columnDefinitions": if definitions { self.definitions() } else { Value::Null },
            "rows": [self.row(object, now)],
        })
    }
}

#[cfg(test)]
mod tests;
