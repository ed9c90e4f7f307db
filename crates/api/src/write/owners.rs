//! Duplicate owner references. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use edgesync_object::Object;

/// Maximum number of owners listed in a warning.
const MAX_NAMED: usize = 16;

/// Removes duplicate owner references and returns a warning that lists them.
pub(super) fn remove_duplicates(object: &mut Object) -> Option<String> {
    let metadata = object.fields_mut().get_mut("metadata")?;
    let Some(Value::Array(owners)) = metadata.get_mut("ownerReferences") else { return None };
    // A set keeps the cost linear in the number of owners.
    let (mut seen, mut duplicates) = (BTreeSet::new(), Vec::new());
    owners.retain(|owner| {
        let new = seen.insert(owner.to_string());
        if !new && duplicates.len() < MAX_NAMED {
            duplicates.push(owner.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned());
        }
        new
    });
    let warning = || {
        format!(".metadata.ownerReferences contains duplicate entries, removed: {}", duplicates.join(", "))
    };
    (!duplicates.is_empty()).then(warning)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deduplicated(owners: &Value) -> (Value, Option<String>) {
        let mut object: Object =
            serde_json::from_value(json!({"metadata": {"name": "a", "ownerReferences": owners}})).unwrap();
        let warning = remove_duplicates(&mut object);
        (object.fields()["metadata"]["ownerReferences"].clone(), warning)
    }

    #[test]
    fn only_identical_references_are_removed() {
        let owner = |uid: &str, controller: bool| json!({"name": "x", "uid": uid, "controller": controller});
        let kept = json!([owner("1", false), owner("2", false), owner("1", true)]);
        assert_eq!(deduplicated(&kept), (kept.clone(), None));
        let given = json!([
            owner("1", false),
            owner("2", false),
            owner("1", false),
            owner("1", true),
            owner("2", false)
        ]);
        let (left, warning) = deduplicated(&given);
        assert_eq!(left, kept);
        assert!(warning.is_some_and(|warning| warning.ends_with(": 1, 2")));
        for odd in [json!(null), json!({}), json!([1, "x", 1])] {
            deduplicated(&odd);
        }
    }
}
