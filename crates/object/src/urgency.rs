//! The annotation by which a change of an object asks to take effect outside of windows.

use serde_json::{Value, json};

/// The annotation. Only the value [`OVERRIDE_WINDOW`] has a meaning.
pub const URGENCY_ANNOTATION: &str = "edgesync.io/urgency";
/// Value for a change that takes effect outside of the windows of file rules that permit it.
pub const OVERRIDE_WINDOW: &str = "override-window";

/// Returns the JSON text of an object with the annotation set to [`OVERRIDE_WINDOW`].
///
/// # Errors
/// The text is not that of an object.
pub fn override_windows(text: &str) -> serde_json::Result<String> {
    let mut object: Value = serde_json::from_str(text)?;
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(metadata) = metadata {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if annotations.is_null() {
            *annotations = json!({});
        }
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(URGENCY_ANNOTATION.to_owned(), OVERRIDE_WINDOW.into());
        }
    }
    serde_json::to_string(&object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotation_is_added_and_nothing_else_changes() {
        let is = |before: Value, after: Value| {
            let text = override_windows(&before.to_string()).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), after);
        };
        let urgent = json!({"edgesync.io/urgency": "override-window"});
        is(
            json!({"metadata": {"name": "a"}, "data": {}}),
            json!({"metadata": {"name": "a", "annotations": urgent}, "data": {}}),
        );
        is(json!({"metadata": {"annotations": null}}), json!({"metadata": {"annotations": urgent}}));
        is(
            json!({"metadata": {"annotations": {"a": "b", "edgesync.io/urgency": "none"}}}),
            json!({"metadata": {"annotations": {"a": "b", "edgesync.io/urgency": "override-window"}}}),
        );
        is(json!({"data": 1}), json!({"data": 1}));
        assert!(override_windows("{").is_err());
    }
}
