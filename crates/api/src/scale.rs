//! The `/scale` subresource: a view of an object with a writable replica count. Pure.

use serde_json::{Map, Value, json};

use super::kind::{Kind, ScalePaths};
use edgesync_object::status::{Cause, Result};
use edgesync_object::{Object, Status};

/// Returns the Scale of an object.
pub(super) fn of(paths: &ScalePaths, object: &Object) -> Value {
    let fields = object.fields();
    let number = |path: &str| at(fields, path).and_then(Value::as_i64).unwrap_or_default();
    let mut status = json!({ "replicas": number(&paths.status) });
    let selector =
        paths.selector.as_deref().and_then(|path| at(fields, path)).map(selector).unwrap_or_default();
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    let metadata: Map<String, Value> = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), object.metadata()?.get(name)?.clone())))
        .collect();
    json!({
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": metadata,
        "spec": { "replicas": number(&paths.replicas) },
        "status": status,
    })
}

/// Converts a Scale to a merge patch of its object.
///
/// # Errors
/// 400 for a body that is no Scale, 422 for an invalid count.
pub(super) fn change(kind: &Kind, paths: &ScalePaths, name: &str, scale: &Value) -> Result<Value> {
    if scale.get("kind").is_some_and(|kind| kind != "Scale") {
        return Err(Status::bad_request("the body is not a Scale of autoscaling/v1"));
    }
    let replicas = match scale.pointer("/spec/replicas") {
        None | Some(Value::Null) => 0,
        Some(value) => value.as_i64().unwrap_or(-1),
    };
    if i32::try_from(replicas).is_err() || replicas < 0 {
        let cause =
            Cause::invalid("spec.replicas", &replicas.to_string(), "must be greater than or equal to 0");
        return Err(Status::invalid("autoscaling", "Scale", name, vec![cause]));
    }
    let mut patch =
        segments(&paths.replicas).rev().fold(json!(replicas), |inner, segment| json!({ segment: inner }));
    if let Some(Value::String(version)) = scale.pointer("/metadata/resourceVersion")
        && !version.is_empty()
    {
        patch["metadata"] = json!({ "resourceVersion": version });
    }
    patch["apiVersion"] = kind.resource.api_version().into();
    Ok(patch)
}

fn segments(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('.').filter(|segment| !segment.is_empty())
}

fn at<'a>(fields: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut segments = segments(path);
    let first = fields.get(segments.next()?)?;
    segments.try_fold(first, |value, segment| value.get(segment))
}

/// Formats a selector: a map of labels, a structured one, or a string.
fn selector(value: &Value) -> String {
    let Value::Object(fields) = value else { return value.as_str().unwrap_or_default().to_owned() };
    let structured = fields.contains_key("matchLabels") || fields.contains_key("matchExpressions");
    let labels = if structured { fields.get("matchLabels").and_then(Value::as_object) } else { Some(fields) };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let equal = labels.into_iter().flatten().map(|(key, value)| format!("{key}={}", text(value)));
    let mut parts: Vec<String> = equal.collect();
    let expressions = fields.get("matchExpressions").and_then(Value::as_array).filter(|_| structured);
    for expression in expressions.into_iter().flatten() {
        let key = expression.get("key").map(text).unwrap_or_default();
        let values = expression.get("values").and_then(Value::as_array);
        let values: Vec<String> = values.into_iter().flatten().map(text).collect();
        parts.push(match expression.get("operator").and_then(Value::as_str) {
            Some("In") => format!("{key} in ({})", values.join(",")),
            Some("NotIn") => format!("{key} notin ({})", values.join(",")),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key,
        });
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selector_is_one_text() {
        let text = |value: Value| selector(&value);
        assert_eq!(text(json!("a=b")), "a=b");
        assert_eq!(text(json!({"a": "b", "c": "d"})), "a=b,c=d");
        let expressions = json!([{"key": "a", "operator": "In", "values": ["b", "c"]},
            {"key": "d", "operator": "NotIn", "values": ["e"]}, {"key": "f", "operator": "Exists"},
            {"key": "g", "operator": "DoesNotExist"}]);
        let structured = json!({"matchLabels": {"x": "y"}, "matchExpressions": expressions});
        assert_eq!(text(structured), "x=y,a in (b,c),d notin (e),f,!g");
        assert_eq!(text(json!({})), "");
    }
}
