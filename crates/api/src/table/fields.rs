//! Field access on arbitrary objects: a missing value, or one of another type, is empty. Pure.
//!
//! Paths are field names and indices joined by dots, such as `status.podIPs.0.ip`.

use serde_json::Value;

/// Placeholder of a missing value.
pub(super) const NONE: &str = "<none>";
/// Placeholder of a value that was not reported.
pub(super) const UNKNOWN: &str = "<unknown>";
/// Placeholder of an unset setting.
pub(super) const UNSET: &str = "<unset>";
/// Maximum number of items listed in a cell before the rest is counted.
const FEW: usize = 3;

/// Returns the value at a path.
pub(super) fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, field| match value {
        Value::Object(fields) => fields.get(field),
        Value::Array(items) => field.parse::<usize>().ok().and_then(|index| items.get(index)),
        _ => None,
    })
}

/// Returns the string at a path; empty if there is none.
pub(super) fn str_at<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the string, number or boolean at a path as trimmed text; empty if there is none.
pub(super) fn text(value: &Value, path: &str) -> String {
    match at(value, path) {
        Some(Value::String(text)) => text.trim().to_owned(),
        Some(plain @ (Value::Number(_) | Value::Bool(_))) => plain.to_string(),
        _ => String::new(),
    }
}

/// Returns the first non-empty text at these paths, or a default.
pub(super) fn first_text(value: &Value, paths: &[&str], otherwise: &str) -> String {
    let mut texts = paths.iter().map(|path| text(value, path));
    texts.find(|text| !text.is_empty()).unwrap_or_else(|| otherwise.to_owned())
}

/// Returns a text, or a default if it is empty.
pub(super) fn or(text: String, otherwise: &str) -> String {
    if text.is_empty() { otherwise.to_owned() } else { text }
}

/// Returns the whole number at a path, clamped to the range of the type.
pub(super) fn int_at(value: &Value, path: &str) -> Option<i64> {
    let number = at(value, path)?;
    number.as_i64().or_else(|| number.as_f64().map(|number| number as i64))
}

/// Returns the whole number at a path, 0 if there is none.
pub(super) fn int(value: &Value, path: &str) -> i64 {
    int_at(value, path).unwrap_or_default()
}

/// Returns whether `true` is at a path.
pub(super) fn is_true(value: &Value, path: &str) -> bool {
    at(value, path) == Some(&Value::Bool(true))
}

/// Returns the items of the list at a path.
pub(super) fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the texts of a field of each list item at a path; of the items themselves if the field
/// is empty.
pub(super) fn texts(value: &Value, path: &str, field: &str) -> Vec<String> {
    let item_text = |item: &Value| match (field, item) {
        ("", Value::String(text)) => text.clone(),
        ("", _) => String::new(),
        _ => text(item, field),
    };
    list(value, path).iter().map(item_text).collect()
}

/// Returns the first item with this `type` in the list at a path.
pub(super) fn typed<'a>(value: &'a Value, path: &str, kind: &str) -> Option<&'a Value> {
    list(value, path).iter().find(|item| str_at(item, "type") == kind)
}

/// Returns the status of a condition; empty if it is absent.
pub(super) fn condition<'a>(value: &'a Value, kind: &str) -> &'a str {
    typed(value, "status.conditions", kind).map_or("", |condition| str_at(condition, "status"))
}

/// Returns whether the object is being deleted.
pub(super) fn is_deleted(value: &Value) -> bool {
    !str_at(value, "metadata.deletionTimestamp").is_empty()
}

/// Joins the first items, and counts the rest.
pub(super) fn few(items: &[String], empty: &str) -> String {
    match items.len() {
        0 => empty.to_owned(),
        1..=FEW => items.join(","),
        count => format!(
            "{} + {} more...",
            items.iter().take(FEW).cloned().collect::<Vec<_>>().join(","),
            count - FEW
        ),
    }
}
