//! Lists of objects as text that is written piece by piece. Pure.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::kind::Kind;
use super::media::Format;
use super::table::{META_API_VERSION, PARTIAL, TABLE, View};
use crate::object::status::Result;
use crate::object::{Status, yaml};

/// Writes the parts of a list of objects: its head, its items, its metadata. The metadata comes last because
/// the token that continues the list is known last.
pub struct ListWriter {
    format: Format,
    view: View,
    now: Timestamp,
    head: Option<String>,
    any: bool,
}

impl ListWriter {
    /// A writer of a list of this kind.
    #[must_use]
    pub fn new(format: Format, api_version: &str, kind: &str) -> Self {
        let head = [("apiVersion", json!(api_version)), ("kind", json!(kind))];
        let head = head_of(format, &head, "items");
        Self { format, view: View::Whole, now: Timestamp::UNIX_EPOCH, head: Some(head), any: false }
    }

    /// A writer of a list of objects of a kind as a client wants to see them: a list, a table with its
    /// column definitions or a list of metadata. Ages are those at `now`.
    pub(super) fn of(format: Format, kind: &Kind, view: View, now: Timestamp) -> Self {
        match &view {
            View::Whole => Self::new(format, &kind.resource.api_version(), &kind.list_kind),
            View::Metadata => {
                Self { view, now, ..Self::new(format, META_API_VERSION, &format!("{PARTIAL}List")) }
            }
            View::Table(table) => {
                let definitions = table.definitions();
                let head =
                    [("apiVersion", json!(META_API_VERSION)), ("kind", json!(TABLE)), ("columnDefinitions", definitions)];
                let head = head_of(format, &head, "rows");
                Self { format, view, now, head: Some(head), any: false }
            }
        }
    }

    /// Writes items, given as JSON text, after those written before.
    ///
    /// # Errors
    /// 500 if an item is not JSON.
    pub fn items(&mut self, items: &[String]) -> Result<String> {
        let mut out = self.head.take().unwrap_or_default();
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

    fn item(&self, json: &str) -> Result<Value> {
        let object = serde_json::from_str(json).map_err(Status::internal)?;
        Ok(self.view.item(object, self.now))
    }

    /// Writes the end: the metadata of the list.
    ///
    /// # Errors
    /// 500 if it cannot be written.
    pub fn end(&mut self, metadata: Map<String, Value>) -> Result<String> {
        let mut out = self.head.take().unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: Format, pages: &[&[&str]]) -> Value {
        let mut writer = ListWriter::new(format, "apps/v1", "DeploymentList");
        let mut out = String::new();
        for page in pages {
            let items: Vec<String> = page.iter().map(ToString::to_string).collect();
            out.push_str(&writer.items(&items).unwrap());
        }
        let metadata = json!({"resourceVersion": "7", "continue": "t:1"});
        out.push_str(&writer.end(metadata.as_object().cloned().unwrap()).unwrap());
        match format {
            Format::Yaml => yaml::parse(&out).unwrap_or_else(|error| panic!("{error}: {out}")),
            _ => serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}")),
        }
    }

    #[test]
    fn a_list_in_parts_is_one_document_in_every_format() {
        let script =
            r##"{"data":{"run":"#!/bin/sh\n\n  echo a: b\n","empty":"","k":"  x\ny"},"a":[[1],{}]}"##;
        for pages in [vec![], vec![&[][..]], vec![&[script, "{}"][..], &[r#"{"a":1}"#][..]]] {
            let items: Vec<&str> = pages.concat();
            let items: Vec<Value> = items.iter().map(|item| serde_json::from_str(item).unwrap()).collect();
            let expected = json!({
                "apiVersion": "apps/v1",
                "kind": "DeploymentList",
                "items": items,
                "metadata": {"resourceVersion": "7", "continue": "t:1"},
            });
            for format in [Format::Json, Format::PrettyJson, Format::Yaml] {
                assert_eq!(written(format, &pages), expected, "{format:?} {pages:?}");
            }
        }
    }
}
