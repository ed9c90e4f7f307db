//! Merges an applied configuration into an object, and prunes fields that the manager no longer
//! applies. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::fieldset::{Element, FieldSet};
use super::shape::{Form, field_schema, identify, is_named, is_void, item_schema};
use edgesync_schema::{ListType, Schema, Type};

/// Merges a configuration into an object: values of the configuration win, all others stay.
pub(super) fn merge(live: &Value, applied: &Value, schema: Option<&Schema>) -> Value {
    match (Form::of(Some(live), schema), Form::of(Some(applied), schema)) {
        (Form::Map | Form::List, Form::Nothing) if !is_void(Some(live)) => live.clone(),
        (Form::Map, Form::Map) => match (live, applied) {
            (Value::Object(live), Value::Object(applied)) => Value::Object(merge_maps(live, applied, schema)),
            _ => applied.clone(),
        },
        (Form::List, Form::List) => match (live, applied) {
            (Value::Array(live), Value::Array(applied)) => Value::Array(merge_lists(live, applied, schema)),
            _ => applied.clone(),
        },
        _ => applied.clone(),
    }
}

fn merge_maps(
    live: &Map<String, Value>,
    applied: &Map<String, Value>,
    schema: Option<&Schema>,
) -> Map<String, Value> {
    let mut merged = live.clone();
    for (name, value) in applied {
        let value = match live.get(name) {
            Some(live) => merge(live, value, field_schema(schema, name)),
            None => value.clone(),
        };
        merged.insert(name.clone(), value);
    }
    merged
}

/// Merges two lists. Common items take the order of the configuration, items of the object alone
/// stay between them, and new ones follow their predecessor in the configuration.
fn merge_lists(live: &[Value], applied: &[Value], schema: Option<&Schema>) -> Vec<Value> {
    let live_ids: Vec<Option<Element>> = live.iter().map(|item| identify(item, schema)).collect();
    let mut partners: BTreeMap<&Element, (usize, &Value)> = BTreeMap::new();
    for (id, item) in live_ids.iter().zip(live) {
        if let Some(id) = id {
            let partner = partners.entry(id).or_insert((0, item));
            partner.0 += 1;
        }
    }
    let mut shared = BTreeMap::new();
    let mut ordered = Vec::with_capacity(applied.len());
    for (index, item) in applied.iter().enumerate() {
        let id = identify(item, schema);
        match id.as_ref().and_then(|id| partners.get(id)) {
            Some((1, partner)) => ordered.push(merge(partner, item, item_schema(schema))),
            _ => ordered.push(item.clone()),
        }
        if let Some(id) = id.filter(|id| partners.contains_key(id)) {
            shared.insert(id, index);
        }
    }
    let mut shared_indices: Vec<usize> = shared.values().copied().collect();
    shared_indices.sort_unstable();
    let mut shared_indices = shared_indices.into_iter().peekable();
    let mut ordered = ordered.into_iter().enumerate().peekable();
    let mut merged = Vec::with_capacity(live.len() + applied.len());
    for (id, item) in live_ids.iter().zip(live) {
        match id.as_ref().and_then(|id| shared.get(id)) {
            None => merged.push(item.clone()),
            Some(index) if shared_indices.peek() == Some(index) => {
                shared_indices.next();
                while let Some((_, item)) = ordered.next_if(|(at, _)| at <= index) {
                    merged.push(item);
                }
            }
            Some(_) => {}
        }
    }
    merged.extend(ordered.map(|(_, item)| item));
    merged
}

/// Prunes a merged object: removes the fields of `last`, those that the manager applied before,
/// that have no owner left. `keep` holds the fields of all managers, this one's by its new
/// configuration.
///
/// Map entries and list items are removed with their contents. A named field stays while something
/// within it is owned.
pub(super) fn prune(value: &mut Value, schema: Option<&Schema>, last: &FieldSet, keep: &FieldSet) {
    match (Form::of(Some(value), schema), value) {
        (Form::Map, Value::Object(map)) => map.retain(|name, value| {
            let element = Element::field(name);
            let (last, keep) = (last.at(&element), keep.at(&element));
            let released = if is_named(schema, name) { keep.is_empty() } else { !keep.has_self() };
            let gone = last.has_self() && released;
            !gone && prune_within(value, field_schema(schema, name), last, keep)
        }),
        (Form::List, Value::Array(list)) => list.retain_mut(|item| {
            let Some(element) = identify(item, schema) else { return true };
            let (last, keep) = (last.at(&element), keep.at(&element));
            if last.has_self() && !keep.has_self() {
                return false;
            }
            let keys = keys_of(item, schema);
            let stays = prune_within(item, item_schema(schema), last, keep);
            if let Value::Object(item) = item {
                item.extend(keys);
            }
            stays
        }),
        _ => {}
    }
}

/// Returns whether the value stays. It does not if pruning emptied it and it has no owner itself.
fn prune_within(value: &mut Value, schema: Option<&Schema>, last: &FieldSet, keep: &FieldSet) -> bool {
    if !last.has_below() || is_void(Some(value)) {
        return true;
    }
    prune(value, schema, last, keep);
    !is_void(Some(value)) || keep.has_self()
}

/// Returns the fields that identify an item; an item always keeps them.
fn keys_of(item: &Value, schema: Option<&Schema>) -> Vec<(String, Value)> {
    match schema.map(|schema| &schema.list) {
        Some(ListType::Map(keys)) => {
            let field = |key: &Arc<str>| Some((key.to_string(), item.get(&**key)?.clone()));
            keys.iter().filter_map(field).collect()
        }
        _ => Vec::new(),
    }
}

/// Removes `null` fields where the schema is not nullable: they mean absence.
pub(super) fn drop_nulls(value: &mut Value, schema: Option<&Schema>) {
    match (Form::of(Some(value), schema), value) {
        (Form::Map, Value::Object(map)) => map.retain(|name, value| {
            let schema = field_schema(schema, name);
            drop_nulls(value, schema);
            !value.is_null() || schema.is_none_or(|schema| schema.nullable || schema.kind == Type::Any)
        }),
        (Form::List, Value::Array(list)) => {
            for item in list {
                drop_nulls(item, item_schema(schema));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn list(list: ListType) -> Schema {
        Schema { kind: Type::Array, list, ..Schema::default() }
    }

    #[test]
    fn set_items_follow_the_configuration_and_others_stay() {
        let schema = list(ListType::Set);
        let cases = [
            (json!([1, 2, 3]), json!([4]), json!([1, 2, 3, 4])),
            (json!([1, 2, 3]), json!([3, 1]), json!([2, 3, 1])),
            (json!([1, 2, 3]), json!([1, 9, 3]), json!([1, 2, 9, 3])),
            (json!([]), json!([2, 1]), json!([2, 1])),
            (json!([1, 2]), json!([2, 3, 1]), json!([2, 3, 1])),
            (json!([1, 1, 2]), json!([1]), json!([1, 2])),
            (json!([1, null, [2]]), json!([5]), json!([1, null, [2], 5])),
        ];
        for (live, applied, merged) in cases {
            assert_eq!(merge(&live, &applied, Some(&schema)), merged, "{live} {applied}");
        }
    }

    #[test]
    fn map_items_are_merged_by_their_keys() {
        let schema = list(ListType::Map(vec!["k".into()]));
        let live = json!([{"k": "a", "x": 1}, {"k": "b", "x": 2}]);
        let applied = json!([{"k": "b", "y": 3}, {"k": "c"}]);
        let merged = json!([{"k": "a", "x": 1}, {"k": "b", "x": 2, "y": 3}, {"k": "c"}]);
        assert_eq!(merge(&live, &applied, Some(&schema)), merged);
    }

    #[test]
    fn null_keeps_objects_and_replaces_values() {
        let live = json!({"map": {"a": 1}, "value": 1, "empty": {}});
        let applied = json!({"map": null, "value": null, "empty": null});
        assert_eq!(merge(&live, &applied, None), json!({"map": {"a": 1}, "value": null, "empty": null}));
    }

    #[test]
    fn item_keeps_its_key_fields() {
        let schema = list(ListType::Map(vec!["k".into()]));
        let mut value = json!([{"k": "a", "x": 1, "y": 2}]);
        let set = |fields: Value| FieldSet::from_fields(fields.as_object().unwrap()).unwrap();
        let last = set(json!({"k:{\"k\":\"a\"}": {".": {}, "f:k": {}, "f:x": {}}}));
        let keep = set(json!({"k:{\"k\":\"a\"}": {".": {}, "f:y": {}}}));
        prune(&mut value, Some(&schema), &last, &keep);
        assert_eq!(value, json!([{"k": "a", "y": 2}]));
    }
}
