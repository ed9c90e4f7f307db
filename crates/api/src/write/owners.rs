//! Owners that are named twice. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use edgesync_object::Object;

/// The most owners that a warning names.
const MAX_NAMED: usize = 16;

/// Leaves out references to owners that equal an earlier one, and says which they were.
pub(super) fn name_once(object: &mut Object) -> Option<String> {
    let metadata = object.fields_mut().get_mut("metadata")?;
    let Some(Value::Array(owners)) = metadata.get_mut("ownerReferences") else { return None };
    // A set, so that many owners do not cost the square of their number.
    let (mut seen, mut twice) = (BTreeSet::new(), Vec::new());
    owners.retain(|owner| {
        let new = seen.insert(owner.to_string());
        if !new && twice.len() < MAX_NAMED {
            twice.push(owner.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned());
        }
        new
    });
    let told = || {
        format!(".metadata.ownerReferences contains duplicate entries, now left out: {}", twice.join(", "))
    };
    (!twice.is_empty()).then(told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn named_once(owners: &Value) -> (Value, Option<String>) {
        let mut object: Object =
            serde_json::from_value(json!({"metadata": {"name": "a", "ownerReferences": owners}})).unwrap();
        let told = name_once(&mut object);
        (object.fields()["metadata"]["ownerReferences"].clone(), told)
    }

    #[test]
    fn only_what_is_the_same_in_every_field_is_left_out() {
        let owner = |uid: &str, controller: bool| json!({"name": "x", "uid": uid, "controller": controller});
        let kept = json!([owner("1", false), owner("2", false), owner("1", true)]);
        assert_eq!(named_once(&kept), (kept.clone(), None));
        let given = json!([
            owner("1", false),
            owner("2", false),
            owner("1", false),
            owner("1", true),
            owner("2", false)
        ]);
        let (left, told) = named_once(&given);
        assert_eq!(left, kept);
        assert!(told.is_some_and(|told| told.ends_with(": 1, 2")));
        for odd in [json!(null), json!({}), json!([1, "x", 1])] {
            named_once(&odd);
        }
    }
}
