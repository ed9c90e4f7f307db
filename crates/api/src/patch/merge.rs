//! JSON merge patch (RFC 7386). Pure.

use serde_json::{Map, Value};

/// Sets the fields of the patch, removes those that are null in it, and keeps all others. Values
/// other than objects, also lists, are replaced whole.
#[must_use]
pub(crate) fn merge(mut document: Value, patch: &Value) -> Value {
    merge_into(&mut document, patch);
    document
}

fn merge_into(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else if let Some(field) = fields.get_mut(name) {
            merge_into(field, change);
        } else {
            let mut field = Value::Null;
            merge_into(&mut field, change);
            fields.insert(name.clone(), field);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn cases_of_the_rfc_hold() {
        let cases = [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"a": "foo"}), json!("bar"), json!("bar")),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ];
        for (document, patch, expected) in cases {
            assert_eq!(merge(document.clone(), &patch), expected, "{document} with {patch}");
        }
    }

    /// Values without null in objects: results of a merge patch.
    pub(in crate::patch) fn documents() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            any::<bool>().prop_map(Value::from),
            (0..4_i64).prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from),
        ];
        let value = scalar.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        });
        prop::collection::btree_map("[a-d]", value, 0..4)
            .prop_map(|fields| Value::Object(fields.into_iter().collect()))
    }

    /// Returns the patch that turns one value into the other.
    fn difference(from: &Value, to: &Value) -> Value {
        let (Value::Object(from), Value::Object(to)) = (from, to) else { return to.clone() };
        let mut changes = Map::new();
        for name in from.keys().filter(|name| !to.contains_key(*name)) {
            changes.insert(name.clone(), Value::Null);
        }
        for (name, value) in to {
            match from.get(name) {
                Some(old) if old == value => {}
                Some(old) => drop(changes.insert(name.clone(), difference(old, value))),
                None => drop(changes.insert(name.clone(), value.clone())),
            }
        }
        Value::Object(changes)
    }

    proptest! {
        #[test]
        fn difference_of_two_documents_patches_one_to_the_other(from in documents(), to in documents()) {
            let patch = difference(&from, &to);
            prop_assert_eq!(merge(from, &patch), to);
        }

        #[test]
        fn merge_patch_is_idempotent(document in documents(), patch in documents()) {
            let once = merge(document, &patch);
            prop_assert_eq!(merge(once.clone(), &patch), once);
        }
    }
}
