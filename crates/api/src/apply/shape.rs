//! Ownership by schema: which objects and lists are atomic, and what identifies the items of the
//! others. Pure; depends on schemas.
//!
//! Without a schema objects are owned per field and lists as a whole.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::fieldset::{Element, FieldSet};
use crate::field_path::FieldPath;
use edgesync_object::status::{Cause, MAX_CAUSES};
use edgesync_schema::{ListType, Schema, Type};

/// The granularity of ownership of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Absent or `null`: compatible with every form.
    Nothing,
    /// Owned as one value.
    Leaf,
    /// Owned field by field.
    Map,
    /// Owned per item; requires a schema.
    List,
}

impl Form {
    /// Returns the form of a value under a schema.
    pub(super) fn of(value: Option<&Value>, schema: Option<&Schema>) -> Self {
        match (value, schema) {
            (None | Some(Value::Null), _) => Self::Nothing,
            (Some(Value::Object(_)), None) => Self::Map,
            (Some(Value::Object(_)), Some(schema))
                if matches!(schema.kind, Type::Any | Type::Object) && !schema.atomic_map =>
            {
                Self::Map
            }
            (Some(Value::Array(_)), Some(schema))
                if schema.kind == Type::Array && schema.list != ListType::Atomic =>
            {
                Self::List
            }
            _ => Self::Leaf,
        }
    }
}

/// Returns the schema of a field.
pub(super) fn field_schema<'a>(schema: Option<&'a Schema>, name: &str) -> Option<&'a Schema> {
    schema.and_then(|schema| schema.field(name)).map(Arc::as_ref)
}

/// Returns whether the schema declares a field by name; map entries are not declared.
pub(super) fn is_named(schema: Option<&Schema>, name: &str) -> bool {
    schema.is_some_and(|schema| schema.properties.contains_key(name))
}

/// Returns the schema of list items.
pub(super) fn item_schema(schema: Option<&Schema>) -> Option<&Schema> {
    schema.and_then(|schema| schema.items.as_deref())
}

/// Returns the identity of an item in a list of [`Form::List`]; `None` if it has none.
pub(super) fn identify(item: &Value, schema: Option<&Schema>) -> Option<Element> {
    let schema = schema?;
    match (&schema.list, item) {
        (ListType::Atomic, _) => None,
        (ListType::Set, item) => is_scalar(item).then(|| Element::value(item.clone())),
        (ListType::Map(keys), Value::Object(item)) => {
            let items = schema.items.as_deref();
            let mut found = Map::new();
            for key in keys {
                let default = || field_schema(items, key).and_then(|field| field.default.as_ref());
                match item.get(&**key).filter(|value| !value.is_null()).or_else(default) {
                    Some(value) if is_scalar(value) => found.insert(key.to_string(), value.clone()),
                    Some(_) => return None,
                    None => continue,
                };
            }
            (!found.is_empty()).then(|| Element::keys(found))
        }
        (ListType::Map(_), _) => None,
    }
}

fn is_scalar(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Array(_) | Value::Object(_))
}

/// Returns whether a value contains nothing that could be owned.
pub(super) fn is_void(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    }
}

/// Returns the fields that a configuration owns. Objects and items are members themselves if they
/// are map entries or list items, or empty.
pub(super) fn fields_of(value: &Value, schema: Option<&Schema>) -> FieldSet {
    let mut set = FieldSet::default();
    match (Form::of(Some(value), schema), value) {
        (Form::Map, Value::Object(map)) => {
            for (name, value) in map {
                let mut field = fields_of(value, field_schema(schema, name));
                let empty = value.as_object().is_some_and(Map::is_empty);
                if empty || !is_named(schema, name) {
                    field.add_self();
                }
                set.attach(Element::field(name), field);
            }
        }
        (Form::List, Value::Array(list)) => {
            for item in list {
                if let Some(element) = identify(item, schema) {
                    let mut fields = fields_of(item, item_schema(schema));
                    fields.add_self();
                    set.attach(element, fields);
                }
            }
        }
        _ => set.add_self(),
    }
    set
}

/// Reports ambiguous list items of a configuration, at most [`MAX_CAUSES`].
pub(super) fn check_items(
    value: &Value,
    schema: Option<&Schema>,
    path: &FieldPath<'_>,
    causes: &mut Vec<Cause>,
) {
    match (Form::of(Some(value), schema), value) {
        (Form::Map, Value::Object(map)) => {
            for (name, value) in map.iter().filter(|(_, value)| !is_void(Some(value)) && !is_scalar(value)) {
                check_items(value, field_schema(schema, name), &FieldPath::Field(path, name), causes);
            }
        }
        (Form::List, Value::Array(list)) => {
            let mut seen = FieldSet::default();
            for (index, item) in list.iter().enumerate() {
                match identify(item, schema) {
                    None => causes.push(unidentified(&FieldPath::Item(path, index), schema)),
                    Some(element) if seen.at(&element).has_self() => {
                        causes.push(duplicate(path, &element));
                    }
                    Some(element) => {
                        check_items(item, item_schema(schema), &FieldPath::Element(path, &element), causes);
                        seen.attach(element, FieldSet::only_self());
                    }
                }
                if causes.len() >= MAX_CAUSES {
                    return;
                }
            }
        }
        _ => {}
    }
}

fn duplicate(path: &FieldPath<'_>, element: &Element) -> Cause {
    Cause {
        reason: "FieldValueDuplicate".to_owned(),
        message: format!("Duplicate value: there must be one item {element} only"),
        field: path.to_string(),
    }
}

fn unidentified(path: &FieldPath<'_>, schema: Option<&Schema>) -> Cause {
    let message = match schema.map(|schema| &schema.list) {
        Some(ListType::Map(keys)) => {
            let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
            format!("must be an object with {}, the merge key of the list", keys.join(", "))
        }
        _ => "must be a string, a number or a boolean, as in all sets".to_owned(),
    };
    Cause::required(&path.to_string(), &message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost_meter;
    use serde_json::json;

    #[test]
    fn checking_items_is_linear() {
        let items = Schema { kind: Type::Array, list: ListType::Map(vec!["k".into()]), ..Schema::default() };
        let schema = Schema { kind: Type::Object, additional: Some(Arc::new(items)), ..Schema::default() };
        let check = |value: Value, schema: Option<&Schema>| {
            let mut causes = Vec::new();
            check_items(&value, schema, &FieldPath::Root, &mut causes);
            assert!(causes.is_empty(), "{causes:?}");
        };
        let list = |length: usize| {
            let items: Vec<Value> = (0..length).map(|number| json!({"k": number, "x": {}})).collect();
            json!({"f".repeat(length): items})
        };
        cost_meter::assert_linear("items", list, |value| check(value, Some(&schema)));
        let map = |length: usize| {
            let fields: Map<String, Value> =
                (0..length).map(|n| (n.to_string(), json!({"x": {"y": 1}}))).collect();
            json!({"f".repeat(length): fields})
        };
        cost_meter::assert_linear("fields", map, |value| check(value, None));
        let mut causes = Vec::new();
        check_items(
            &json!({"f".repeat(100_000): [1, {"k": 1}, {"k": 1}]}),
            Some(&schema),
            &FieldPath::Root,
            &mut causes,
        );
        assert!(
            causes.len() == 2 && causes.iter().all(|cause| cause.field.len() < 1000),
            "a path is shown in part"
        );
    }
}
