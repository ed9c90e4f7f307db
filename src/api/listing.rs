//! Lists of objects as text that is written piece by piece. Pure.

use serde_json::{Map, Value, json};

use super::media::Format;
use crate::object::status::Result;
use crate::object::{Status, yaml};

/// Writes the parts of a list of objects: its head, its items, its metadata. The metadata comes last because
/// the token that continues the list is known last.
pub struct ListWriter {
    format: Format,
    head: Option<String>,
    any: bool,
}

impl ListWriter {
    /// A writer of a list of this kind.
    #[must_use]
    pub fn new(format: Format, api_version: &str, kind: &str) -> Self {
        let head = match format {
            Format::Yaml => format!("apiVersion: {api_version}\nkind: {kind}\n"),
            Format::PrettyJson => {
                format!("{{\n  \"apiVersion\": \"{api_version}\",\n  \"kind\": \"{kind}\",\n  \"items\": [")
            }
            Format::Json => format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","items":["#),
        };
        Self { format, head: Some(head), any: false }
    }

    /// Writes items, given as JSON text, after those written before.
    ///
    /// # Errors
    /// 500 if an item is not JSON.
    pub fn items(&mut self, items: &[String]) -> Result<String> {
        let mut out = self.head.take().unwrap_or_default();
        for item in items {
            match self.format {
                Format::Json => {
                    out.push_str(if self.any { "," } else { "" });
                    out.push_str(item);
                }
                Format::PrettyJson => {
                    out.push_str(if self.any { ",\n" } else { "\n" });
                    indent(&mut out, &Format::PrettyJson.render(item.clone())?, "    ", "    ");
                    out.truncate(out.trim_end().len());
                }
                Format::Yaml => {
                    out.push_str(if self.any { "" } else { "items:\n" });
                    indent(&mut out, &Format::Yaml.render(item.clone())?, "- ", "  ");
                }
            }
            self.any = true;
        }
        Ok(out)
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
                out.push_str(if self.any { "" } else { "items: []\n" });
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
