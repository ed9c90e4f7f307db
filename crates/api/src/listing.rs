//! Incremental encoding of object lists. Pure.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::kind::Kind;
use super::media::Format;
use super::table::{PARTIAL, TABLE, View};
use edgesync_object::status::Result;
use edgesync_object::{Status, yaml};

/// Writes a list in parts: head, items, metadata. The metadata comes last because the `continue`
/// token is known last.
pub struct ListWriter {
    format: Format,
    view: View,
    now: Timestamp,
    /// The fields before the items; `None` once written.
    head: Option<Vec<(&'static str, Value)>>,
    has_items: bool,
}

impl ListWriter {
    /// Creates a writer of a list of whole objects.
    #[must_use]
    pub fn new(format: Format, api_version: &str, kind: &str) -> Self {
        let head = vec![("apiVersion", json!(api_version)), ("kind", json!(kind))];
        Self { format, view: View::Whole, now: Timestamp::UNIX_EPOCH, head: Some(head), has_items: false }
    }

    /// Creates a writer for a client's view: whole objects, a table with its column definitions, or
    /// metadata. Ages are relative to `now`.
    pub(super) fn of(format: Format, kind: &Kind, view: View, now: Timestamp) -> Self {
        let mut writer = match &view {
            View::Whole => Self::new(format, &kind.resource.api_version(), &kind.list_kind),
            View::Metadata(api_version) => Self::new(format, api_version, &format!("{PARTIAL}List")),
            View::Table(table) => Self::new(format, table.api_version, TABLE),
        };
        if let (View::Table(table), Some(head)) = (&view, &mut writer.head) {
            head.push(("columnDefinitions", table.definitions()));
        }
        Self { view, now, ..writer }
    }

    /// Encodes items, given as JSON texts, after those written before.
    ///
    /// # Errors
    /// 500 if an item is not JSON.
    pub fn items(&mut self, items: &[String]) -> Result<String> {
        let mut out = self.head()?;
        for item in items {
            if self.format == Format::Json {
                out.push_str(if self.has_items { "," } else { "" });
                match self.view {
                    View::Whole => out.push_str(item),
                    _ => out.push_str(&self.item(item)?.to_string()),
                }
            } else {
                let text = self.format.render_value(&self.item(item)?)?;
                match self.format {
                    Format::Yaml => {
                        out.push_str(if self.has_items { "" } else { "\n" });
                        indent(&mut out, &text, "- ", "  ");
                    }
                    _ => {
                        out.push_str(if self.has_items { ",\n" } else { "\n" });
                        indent(&mut out, text.trim_end(), "    ", "    ");
                    }
                }
            }
            self.has_items = true;
        }
        Ok(out)
    }

    /// Encodes the beginning up to the items, unless already written.
    fn head(&mut self) -> Result<String> {
        let Some(fields) = self.head.take() else { return Ok(String::new()) };
        let items = if matches!(self.view, View::Table(_)) { "rows" } else { "items" };
        let mut out = String::from(match self.format {
            Format::Json => "{",
            Format::PrettyJson => "{\n",
            Format::Yaml => "",
        });
        for (name, value) in fields {
            match self.format {
                Format::Json => out.push_str(&format!("\"{name}\":{value},")),
                Format::PrettyJson => {
                    indent(&mut out, &format!("\"{name}\": {value:#},\n"), "  ", "  ");
                }
                Format::Yaml => {
                    out.push_str(&yaml::write(&json!({ name: value })).map_err(Status::internal)?);
                }
            }
        }
        out.push_str(&match self.format {
            Format::Json => format!("\"{items}\":["),
            Format::PrettyJson => format!("  \"{items}\": ["),
            Format::Yaml => format!("{items}:"),
        });
        Ok(out)
    }

    fn item(&self, json: &str) -> Result<Value> {
        let object = serde_json::from_str(json).map_err(Status::internal)?;
        Ok(self.view.item(object, self.now))
    }

    /// Encodes the end: the metadata of the list.
    ///
    /// # Errors
    /// 500 if the metadata cannot be encoded.
    pub fn end(&mut self, metadata: Map<String, Value>) -> Result<String> {
        let mut out = self.head()?;
        match self.format {
            Format::Json => out.push_str(&format!("],\"metadata\":{}}}\n", Value::Object(metadata))),
            Format::PrettyJson => {
                out.push_str(if self.has_items { "\n  ],\n" } else { "],\n" });
                let metadata = format!("\"metadata\": {:#}", Value::Object(metadata));
                indent(&mut out, &metadata, "  ", "  ");
                out.push_str("\n}\n");
            }
            Format::Yaml => {
                out.push_str(if self.has_items { "" } else { " []\n" });
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
    use crate::table::{Include, META_V1, TableView};
    use edgesync_object::kinds;

    const FORMATS: &[Format] = &[Format::Json, Format::PrettyJson, Format::Yaml];

    const SCRIPT: &str = concat!(
        r##"{"data":{"run":"#!/bin/sh\n\n  echo a: b\n","empty":"","k":"  x\ny"},"a":[[1],{}],"##,
        r#""metadata":{"name":"s","creationTimestamp":"2024-01-01T00:00:00Z"}}"#
    );

    /// Lists in parts: none, an empty one, several.
    fn pages() -> [Vec<&'static [&'static str]>; 3] {
        [vec![], vec![&[]], vec![&[SCRIPT, "{}"], &[r#"{"metadata":{"name":"n"}}"#]]]
    }

    fn metadata() -> Value {
        json!({"resourceVersion": "7", "continue": "t:1", "remainingItemCount": 2})
    }

    fn written(format: Format, mut writer: ListWriter, pages: &[&[&str]]) -> Value {
        let mut out = String::new();
        for page in pages {
            let items: Vec<String> = page.iter().map(ToString::to_string).collect();
            out.push_str(&writer.items(&items).unwrap());
        }
        out.push_str(&writer.end(metadata().as_object().cloned().unwrap()).unwrap());
        match format {
            Format::Yaml => yaml::parse(&out).unwrap_or_else(|error| panic!("{error}: {out}")),
            _ => serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}")),
        }
    }

    /// Writes the lists in a view and every format, and compares them with the items that
    /// `expected` returns.
    fn check(view: &View, expected: impl Fn(Vec<Value>) -> Value) {
        let kind = Kind::without_schema(kinds::by_word("configmaps").unwrap().resource().into());
        let now = "2024-01-02T00:00:00Z".parse().unwrap();
        for pages in pages() {
            let item = |item: &&str| view.item(serde_json::from_str(item).unwrap(), now);
            let expected = expected(pages.concat().iter().map(item).collect());
            for &format in FORMATS {
                let writer = ListWriter::of(format, &kind, view.clone(), now);
                assert_eq!(written(format, writer, &pages), expected, "{format:?} {pages:?}");
            }
        }
    }

    #[test]
    fn list_in_parts_is_one_document_in_every_format() {
        check(
            &View::Whole,
            |items| json!({"apiVersion": "v1", "kind": "ConfigMapList", "items": items, "metadata": metadata()}),
        );
    }

    #[test]
    fn metadata_list_has_its_own_kind() {
        check(&View::Metadata(META_V1), |items| {
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "items": items,
                "metadata": metadata()})
        });
    }

    #[test]
    fn table_has_its_definitions_before_the_rows() {
        let kind = Kind::without_schema(kinds::by_word("configmaps").unwrap().resource().into());
        for include in [Include::Nothing, Include::Metadata, Include::Object] {
            let table = TableView::new(&kind, include, META_V1);
            check(&View::Table(table.clone()), |rows| {
                json!({"apiVersion": "meta.k8s.io/v1", "kind": "Table", "rows": rows,
                    "columnDefinitions": table.definitions(), "metadata": metadata()})
            });
        }
    }

    #[test]
    fn invalid_item_is_an_error_where_it_is_parsed() {
        for format in [Format::PrettyJson, Format::Yaml] {
            let mut writer = ListWriter::new(format, "v1", "List");
            assert_eq!(writer.items(&["{".to_owned()]).unwrap_err().code, 500);
        }
    }
}
