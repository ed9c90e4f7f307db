//! Columns as data, and the values of their cells. Pure.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::fields::{NONE, at, first_text, int_at, list, or, str_at, text, texts};
use super::path::JsonPath;
use crate::kind::PrinterColumn;
use edgesync_object::time;

/// Annotation of the default storage class.
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// A column of a built-in kind.
#[derive(Debug)]
pub(super) struct Column {
    name: &'static str,
    description: &'static str,
    cell: Cell,
    /// Whether the column is shown with `-o wide` only.
    wide: bool,
}

/// The source of a cell. Paths are those of [`super::fields`].
#[derive(Debug)]
pub(super) enum Cell {
    /// The name of the object.
    Name,
    /// The name, marked if the object is the default of its kind.
    DefaultName,
    /// The age of the object, in a column of type `date`.
    Created,
    /// The first string at these paths, or a default.
    Text(&'static [&'static str], &'static str),
    /// The first number at these paths that is not 0, or a default.
    Int(&'static [&'static str], i64),
    /// A boolean with its default.
    Flag(&'static str, bool),
    /// The total length of several lists or maps.
    Count(&'static [&'static str]),
    /// The age of the first time at these paths, or a default text.
    Age(&'static [&'static str], &'static str),
    /// A field of each item of a list, joined.
    Join(&'static str, &'static str),
    /// `key=value` of each entry of a map.
    Pairs(&'static str),
    /// A label selector in command-line syntax.
    Selector(&'static str),
    /// `ready/desired`; desired defaults to one.
    Ready(&'static str, &'static str),
    /// The result of a function.
    Computed(fn(&Value) -> String),
    /// The result of a function of object and time.
    Timed(fn(&Value, Timestamp) -> String),
}

/// Returns a column that is always shown.
pub(super) const fn column(name: &'static str, description: &'static str, cell: Cell) -> Column {
    Column { name, description, cell, wide: false }
}

/// Returns a column shown with `-o wide` only.
pub(super) const fn wide(name: &'static str, description: &'static str, cell: Cell) -> Column {
    Column { name, description, cell, wide: true }
}

pub(super) const NAME: Column = column("Name", "Name of the object.", Cell::Name);

impl Column {
    /// Returns the definition of the column.
    pub(super) fn definition(&self) -> Value {
        let (kind, format) = match self.cell {
            Cell::Name | Cell::DefaultName => ("string", "name"),
            Cell::Created => ("date", ""),
            Cell::Int(..) | Cell::Count(_) => ("integer", ""),
            Cell::Flag(..) => ("boolean", ""),
            _ => ("string", ""),
        };
        definition(self.name, kind, format, self.description, i32::from(self.wide))
    }

    /// Returns the cell of an object.
    pub(super) fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let name = || str_at(object, "metadata.name");
        let shown = match &self.cell {
            Cell::Name => name().to_owned(),
            Cell::DefaultName => {
                let annotations = at(object, "metadata.annotations");
                let mark = annotations.and_then(|all| all.get(DEFAULT_CLASS)).and_then(Value::as_str);
                if mark == Some("true") { format!("{} (default)", name()) } else { name().to_owned() }
            }
            Cell::Created => time::since(now, str_at(object, "metadata.creationTimestamp")),
            Cell::Text(paths, otherwise) => first_text(object, paths, otherwise),
            Cell::Int(paths, otherwise) => {
                let mut numbers = paths.iter().filter_map(|path| int_at(object, path));
                return numbers.find(|number| *number != 0).unwrap_or(*otherwise).into();
            }
            Cell::Flag(path, otherwise) => {
                return at(object, path).and_then(Value::as_bool).unwrap_or(*otherwise).into();
            }
            Cell::Count(paths) => return paths.iter().map(|path| count(object, path)).sum::<usize>().into(),
            Cell::Age(paths, otherwise) => match first_text(object, paths, "") {
                time if time.is_empty() => (*otherwise).to_owned(),
                time => time::since(now, &time),
            },
            Cell::Join(path, field) => texts(object, path, field).join(","),
            Cell::Pairs(path) => or(pairs(at(object, path)), NONE),
            Cell::Selector(path) => selector(object, path),
            Cell::Ready(ready, desired) => {
                let count = |path, otherwise| int_at(object, path).unwrap_or(otherwise);
                format!("{}/{}", count(ready, 0), count(desired, 1))
            }
            Cell::Computed(compute) => compute(object),
            Cell::Timed(compute) => compute(object, now),
        };
        Value::String(shown)
    }
}

fn definition(name: &str, kind: &str, format: &str, description: &str, priority: i32) -> Value {
    json!({ "name": name, "type": kind, "format": format, "description": description, "priority": priority })
}

fn count(object: &Value, path: &str) -> usize {
    match at(object, path) {
        Some(Value::Object(entries)) => entries.len(),
        Some(Value::Array(items)) => items.len(),
        _ => 0,
    }
}

fn pairs(map: Option<&Value>) -> String {
    let entries = map.and_then(Value::as_object).into_iter().flatten();
    let pairs: Vec<String> =
        entries.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    pairs.join(",")
}

/// Formats a label selector in command-line syntax, in the order of its keys.
fn selector(object: &Value, path: &str) -> String {
    let Some(selector) = at(object, path) else { return NONE.to_owned() };
    let mut terms: Vec<(String, String)> = Vec::new();
    for (key, value) in at(selector, "matchLabels").and_then(Value::as_object).into_iter().flatten() {
        terms.push((key.clone(), format!("{key}={}", value.as_str().unwrap_or_default())));
    }
    for expression in list(selector, "matchExpressions") {
        let key = text(expression, "key");
        let values = || {
            let mut values = texts(expression, "values", "");
            values.sort_unstable();
            values.join(",")
        };
        let term = match str_at(expression, "operator") {
            "In" => format!("{key} in ({})", values()),
            "NotIn" => format!("{key} notin ({})", values()),
            "Exists" => key.clone(),
            "DoesNotExist" => format!("!{key}"),
            _ => continue,
        };
        terms.push((key, term));
    }
    terms.sort_unstable();
    let terms: Vec<String> = terms.into_iter().map(|(_, term)| term).collect();
    or(terms.join(","), NONE)
}

/// Returns the definition of a column of a CustomResourceDefinition.
pub(super) fn custom_definition(column: &PrinterColumn) -> Value {
    definition(&column.name, &column.kind, &column.format, &column.description, column.priority)
}

/// Returns the cell of a custom column: `null`, shown empty, if the path finds no value of its
/// type.
pub(super) fn custom_cell(
    column: &PrinterColumn,
    path: Option<&JsonPath>,
    object: &Value,
    now: Timestamp,
) -> Value {
    let found = path.map(|path| path.find(object)).unwrap_or_default();
    if let [one] = found.as_slice() {
        return custom_value(&column.kind, one, now);
    }
    let texts: Vec<String> = found
        .into_iter()
        .filter_map(|value| match custom_value(&column.kind, value, now) {
            Value::Null => None,
            Value::String(text) => Some(text),
            other => Some(other.to_string()),
        })
        .collect();
    if texts.is_empty() { Value::Null } else { Value::String(texts.join(",")) }
}

fn custom_value(kind: &str, value: &Value, now: Timestamp) -> Value {
    match (kind, value) {
        (_, Value::Null) => Value::Null,
        ("integer", Value::Number(number)) => match number.as_f64() {
            Some(float) if number.is_f64() => Value::from(float as i64),
            _ => value.clone(),
        },
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(time)) => Value::from(time::since(now, time)),
        ("integer" | "number" | "boolean" | "date", _) => Value::Null,
        (_, Value::String(_)) => value.clone(),
        (_, other) => Value::String(other.to_string()),
    }
}
