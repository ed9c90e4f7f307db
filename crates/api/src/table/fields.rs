//! Reading fields of objects that may be anything: what is not there, or not of its type, is empty.
//! Pure.
//!
//! Paths are field names and indices with dots between them, such as `status.podIPs.0.ip`.

use serde_json::Value;

/// What stands for a value that is not there.
pub(super) const NONE: &str = "<none>";
/// What stands for a value that nobody has reported.
pub(super) const UNKNOWN: &str = "<unknown>";
/// What stands for a setting that was not made.
pub(super) const UNSET: &str = "<unset>";
/// The most items that a cell lists before it only counts them.
const FEW: usize = 3;

/// The value at a path.
pub(super) fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, field| match value {
        Value::Object(fields) => fields.get(field),
        Value::Array(items) => field.parse::<usize>().ok().and_then(|index| items.get(index)),
        _ => None,
    })
}

/// The text at a path; empty if there is none.
pub(super) fn str_at<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// The text, number or truth value at a path as trimmed text; empty if there is none.
pub(super) fn text(value: &Value, path: &str) -> String {
    match at(value, path) {
        Some(Value::String(text)) => text.trim().to_owned(),
        Some(plain @ (Value::Number(_) | Value::Bool(_))) => plain.to_string(),
        _ => String::new(),
    }
}

/// The first text at one of several paths that is not empty, or else another one.
pub(super) fn first_text(value: &Value, paths: &[&str], otherwise: &str) -> String {
    let mut texts = paths.iter().map(|path| text(value, path));
    texts.find(|text| !text.is_empty()).unwrap_or_else(|| otherwise.to_owned())
}

/// A text, or another one if it is empty.
pub(super) fn or(text: String, otherwise: &str) -> String {
    if text.is_empty() { otherwise.to_owned() } else { text }
}

/// The whole number at a path; what is larger or smaller than fits is the nearest that does.
pub(super) fn int_at(value: &Value, path: &str) -> Option<i64> {
    let number = at(value, path)?;
    number.as_i64().or_else(|| number.as_f64().map(|number| number as i64))
}

/// The whole number at a path, 0 if there is none.
pub(super) fn int(value: &Value, path: &str) -> i64 {
    int_at(value, path).unwrap_or_default()
}

/// Whether there is `true` at a path.
pub(super) fn is_true(value: &Value, path: &str) -> bool {
    at(value, path) == Some(&Value::Bool(true))
}

/// The items of the list at a path.
pub(super) fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The texts of a field of each item of the list at a path; of the items themselves if the field is empty.
pub(super) fn texts(value: &Value, path: &str, field: &str) -> Vec<String> {
    let item_text = |item: &Value| match (field, item) {
        ("", Value::String(text)) => text.clone(),
        ("", _) => String::new(),
        _ => text(item, field),
    };
    list(value, path).iter().map(item_text).collect()
}

/// The item of the list at a path whose `type` is this.
pub(super) fn typed<'a>(value: &'a Value, path: &str, kind: &str) -> Option<&'a Value> {
    list(value, path).iter().find(|item| str_at(item, "type") == kind)
}

/// The status of a condition; empty if there is no such condition.
pub(super) fn condition<'a>(value: &'a Value, kind: &str) -> &'a str {
    typed(value, "status.conditions", kind).map_or("", |condition| str_at(condition, "status"))
}

/// Whether the object is being deleted.
pub(super) fn is_deleted(value: &Value) -> bool {
    !str_at(value, "metadata.deletionTimestamp").is_empty()
}

/// The first items, and how many more there are.
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
