//! How objects are shown to clients that ask for another kind than the object's own: tables as
//! `kubectl get` prints them, and metadata alone. Pure; the time comes in as an argument.

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

/// The group and version of tables and of metadata alone, unless a client asks for the older one.
pub(super) const META_V1: &str = "meta.k8s.io/v1";
/// The older version of the same.
pub(super) const META_V1BETA1: &str = "meta.k8s.io/v1beta1";
/// The kind of a table.
pub(super) const TABLE: &str = "Table";
/// The kind of an object of which there is only the metadata.
pub(super) const PARTIAL: &str = "PartialObjectMetadata";

/// What a row of a table carries of its object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Include {
    /// Nothing.
    Nothing,
    /// The metadata.
    #[default]
    Metadata,
    /// All of it.
    Object,
}

impl Include {
    /// Reads the query parameter `includeObject`; absent or empty means the metadata.
    ///
    /// # Errors
    /// 400 for another value.
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

/// What a client gets of objects.
#[derive(Clone, Debug, Default)]
pub(super) enum View {
    /// The objects themselves.
    #[default]
    Whole,
    /// Their metadata (`as=PartialObjectMetadata`), in this group and version.
    Metadata(&'static str),
    /// Rows of a table (`as=Table`).
    Table(TableView),
}

impl View {
    /// A single object, in a response or an event of a watch. `first` says whether nothing was sent before:
    /// of the tables in a watch only the first one has column definitions. Bookmarks are objects too: in
    /// a table, they are the metadata of its one row.
    pub(super) fn object(&self, object: Value, first: bool, now: Timestamp) -> Value {
        match self {
            Self::Whole => object,
            Self::Metadata(api_version) => partial(object, api_version),
            Self::Table(view) => view.table(object, first, now),
        }
    }

    /// An item of a list.
    pub(super) fn item(&self, object: Value, now: Timestamp) -> Value {
        match self {
            Self::Table(view) => view.row(object, now),
            _ => self.object(object, false, now),
        }
    }
}

/// The metadata of an object alone, as a `PartialObjectMetadata`.
pub(super) fn partial(mut object: Value, api_version: &str) -> Value {
    let metadata = object.get_mut("metadata").map(Value::take).filter(Value::is_object);
    json!({
        "apiVersion": api_version,
        "kind": PARTIAL,
        "metadata": metadata.unwrap_or_else(|| Value::Object(Map::new())),
    })
}

/// The table of a kind: its columns, and what its rows carry.
#[derive(Clone, Debug)]
pub(super) struct TableView {
    columns: Columns,
    include: Include,
    /// The group and version in which it is given.
    pub(super) api_version: &'static str,
}

#[derive(Clone, Debug)]
enum Columns {
    /// Of a kind that is known here.
    Known(&'static [Column]),
    /// Of a CustomResourceDefinition, after the name. A path that cannot be read finds nothing.
    Custom(Vec<(PrinterColumn, Option<JsonPath>)>),
}

impl TableView {
    /// The table of a kind: the columns of its definition if it has some, else those known for the
    /// kind, else name and age.
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

    /// The column definitions.
    pub(super) fn definitions(&self) -> Value {
        match &self.columns {
            Columns::Known(columns) => columns.iter().map(Column::definition).collect(),
            Columns::Custom(columns) => {
                let own = columns.iter().map(|(column, _)| columns::custom_definition(column));
                std::iter::once(columns::NAME.definition()).chain(own).collect()
            }
        }
    }

    /// The row of an object: as many cells as there are definitions, and what it carries of the object.
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

    /// A whole table of one object with the version of the object; without definitions if they were
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
