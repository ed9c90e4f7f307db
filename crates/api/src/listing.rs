//! Lists of objects as text that is written piece by piece. Pure.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::kind::Kind;
use super::media::Format;
use super::table::{PARTIAL, TABLE, View};
use edgesync_object::status::Result;
use edgesync_object::{Status, yaml};

/// Writes the parts of a list of objects: its head, its items, its metadata. The metadata comes last because
/// the token that continues the list is known last.
pub struct ListWriter {
    format: Format,
    view: View,
    now: Timestamp,
    /// The fields before the items; `None` once they are written.
    head: Option<Vec<(&'static str, Value)>>,
    any: bool,
}

impl ListWriter {
    /// A writer of a list of this kind.
    #[must_use]
    pub fn new(format: Format, api_version: &str, kind: &str) -> Self {
        let head = vec![("apiVersion", json!(api_version)), ("kind", json!(kind))];
        Self { format, view: View::Whole, now: Timestamp::UNIX_EPOCH, head: Some(head), any: false }
    }

    /// A writer of a list of objects of a kind as a client wants to see them: a list, a table with its
    /// column definitions or a list of metadata. Ages are those at `now`.
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

    /// Writes items, given as JSON text, after those written before.
    ///
    /// # Errors
    /// 500 if an item is not JSON.
    pub fn items(&mut self, items: &[String]) -> Result<String> {
        let mut out = self.head()?;
        for item in items {
            if self.format == Format::Json {
                out.push_str(if self.any { "," } else { "" });
                match self.view {
                    View::Whole => out.push_str(item),
                    _ => out.push_str(&self.item(item)?.to_string()),
                }
            } else {
                let text = self.format.render_value(&self.item(item)?)?;
                match self.format {
                    Format::Yaml => {
                        out.push_str(if self.any { "" } else { "\n" });
                        indent(&mut out, &text, "- ", "  ");
                    }
                    _ => {
                        out.push_str(if self.any { ",\n" } else { "\n" });
                        indent(&mut out, text.trim_end(), "    ", "    ");
                    }
                }
            }
            self.any = true;
        }
        Ok(out)
    }

    /// Writes the beginning, up to the items, unless it is written.
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

    /// Writes the end: the metadata of the list.
    ///
    /// # Errors
    /// 500 if it cannot be written.
    pub fn end(&mut self, metadata: Map<String, Value>) -> Result<String> {
        let mut out = self.head()?;
        match self.format {
            Format::Json => out.push_str(&format!("],\"metadata\":{}}}\n", Value::Object(metadata))),
            Format::PrettyJson => {
                out.push_str(if self.any { "\n  ],\n" } else { "],\n" });
                let metadata = format!("\"metadata\": {:#}", Value::Object(metadata));
                indent(&mut out, &metadata, "  ", "  ");
                out.push_str("\n}\n");
            }
            Format::Yaml => {
                out.push_str(if self.any { "" } else { " []\n" });
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

    /// Writes the lists as a client wants to see them, in each format, and compares them with what
    /// `expected` says of their items.
    fn check(view: &View, expected: impl Fn(Vec<Value>) -> Value) {
        let kind = Kind::bare(kinds::by_word("configmaps").unwrap().resource().into());
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
    fn a_list_in_parts_is_one_document_in_every_format() {
        check(
            &View::Whole,
            |items| json!({"apiVersion": "v1", "kind": "ConfigMapList", "items": items, "metadata": metadata()}),
        );
    }

    #[test]
    fn a_list_of_metadata_has_a_kind_of_its_own() {
        check(&View::Metadata(META_V1), |items| {
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "items": items,
                "metadata": metadata()})
        });
    }

    #[test]
    fn a_table_has_its_definitions_before_the_rows() {
        let kind = Kind::bare(kinds::by_word("configmaps").unwrap().resource().into());
        for include in [Include::Nothing, Include::Metadata, Include::Object] {
            let table = TableView::new(&kind, include, META_V1);
            check(&View::Table(table.clone()), |rows| {
                json!({"apiVersion": "meta.k8s.io/v1", "kind": "Table", "rows": rows,
                    "columnDefinitions": table.definitions(), "metadata": metadata()})
            });
        }
    }

    #[test]
    fn an_item_that_is_not_json_is_an_error_where_it_must_be_read() {
        for format in [Format::PrettyJson, Format::Yaml] {
            let mut writer = ListWriter::new(format, "v1", "List");
            assert_eq!(writer.items(&["{".to_owned()]).unwrap_err().code, 500);
        }
    }
}
