//! The annotation that says how urgent an object is: in which order nodes receive it, and whether
//! it takes effect outside of windows.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The annotation. Its values are `high`, `normal`, `low`, and [`OVERRIDE_WINDOW`].
pub const URGENCY_ANNOTATION: &str = "edgesync.io/urgency";
/// Value for an object of high urgency whose changes take effect outside of the windows of
/// file rules that permit it.
pub const OVERRIDE_WINDOW: &str = "override-window";

/// The urgency of an object: nodes receive more urgent objects first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Urgency {
    /// After all others.
    Low,
    /// The urgency of objects without the annotation, or with another value.
    #[default]
    Normal,
    /// Before all others. Stands for the words of later versions, too.
    #[serde(other)]
    High,
}

impl Urgency {
    /// All values, the most urgent first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// Returns the urgency that the value of [`URGENCY_ANNOTATION`] means.
    #[must_use]
    pub fn of_annotation(value: Option<&str>) -> Self {
        match value {
            Some("high" | OVERRIDE_WINDOW) => Self::High,
            Some("low") => Self::Low,
            _ => Self::Normal,
        }
    }

    /// Returns the word of the annotation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }
}

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
    fn unknown_values_are_normal_and_unknown_words_of_frames_high() {
        for urgency in Urgency::ALL {
            assert_eq!(Urgency::of_annotation(Some(urgency.as_str())), urgency);
            assert_eq!(serde_json::to_value(urgency).unwrap(), urgency.as_str());
        }
        assert!(Urgency::ALL.is_sorted_by(|one, other| one > other));
        assert_eq!(Urgency::of_annotation(Some(OVERRIDE_WINDOW)), Urgency::High);
        for value in [None, Some("none"), Some("HIGH"), Some("")] {
            assert_eq!(Urgency::of_annotation(value), Urgency::Normal, "{value:?}");
        }
        assert_eq!(serde_json::from_str::<Urgency>("\"critical\"").unwrap(), Urgency::High);
    }

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
