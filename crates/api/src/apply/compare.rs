//! The changes of a write, as sets of fields. Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fieldset::{Element, FieldSet};
use super::shape::{Form, field_schema, identify, is_void, item_schema};
use edgesync_schema::Schema;

/// The difference between two values, as disjoint sets.
#[derive(Debug, Default)]
pub(super) struct Diff {
    /// Fields that were removed.
    pub(super) removed: FieldSet,
    /// Fields with a different value.
    pub(super) changed: FieldSet,
    /// Fields that were added.
    pub(super) added: FieldSet,
}

/// Compares two objects. The order of items that are owned separately is ignored.
pub(super) fn compare(old: &Map<String, Value>, new: &Map<String, Value>, schema: Option<&Schema>) -> Diff {
    let mut diff = Diff::default();
    diff.maps(Some(old), Some(new), schema);
    diff
}

impl Diff {
    /// Returns the fields that were added or changed.
    pub(super) fn written(&self) -> FieldSet {
        let mut written = self.changed.clone();
        written.add(self.added.clone());
        written
    }

    /// Retains only the fields at or below a name.
    pub(super) fn keep_only(&mut self, name: &str) {
        for set in [&mut self.removed, &mut self.changed, &mut self.added] {
            set.keep_only(name);
        }
    }

    fn of(old: Option<&Value>, new: Option<&Value>, schema: Option<&Schema>) -> Self {
        let mut diff = Self::default();
        if old == new {
            return diff;
        }
        match (Form::of(old, schema), Form::of(new, schema)) {
            _ if is_void(old) && is_void(new) => diff.whole(old, new),
            (Form::Map, Form::Map | Form::Nothing) | (Form::Nothing, Form::Map) => {
                diff.maps(old.and_then(Value::as_object), new.and_then(Value::as_object), schema);
                diff.ends(old, new);
            }
            (Form::List, Form::List | Form::Nothing) | (Form::Nothing, Form::List) => {
                diff.lists(old.and_then(Value::as_array), new.and_then(Value::as_array), schema);
                diff.ends(old, new);
            }
            // A value was replaced by one of another form: everything within was removed or added.
            (before, after) => {
                if matches!(before, Form::Map | Form::List) {
                    diff.removed.add(Self::of(old, None, schema).removed);
                }
                if matches!(after, Form::Map | Form::List) {
                    diff.added.add(Self::of(None, new, schema).added);
                }
                diff.removed.subtract(&FieldSet::only_self());
                diff.added.subtract(&FieldSet::only_self());
                diff.whole(old, new);
            }
        }
        diff
    }

    /// Records that the value differs as a whole.
    fn whole(&mut self, old: Option<&Value>, new: Option<&Value>) {
        match (old, new) {
            (None, _) => self.added.add_self(),
            (_, None) => self.removed.add_self(),
            _ => self.changed.add_self(),
        }
    }

    /// Records an object or list that was added or removed, beside its contents.
    fn ends(&mut self, old: Option<&Value>, new: Option<&Value>) {
        if old.is_none() || new.is_none() {
            self.whole(old, new);
        }
    }

    fn attach(&mut self, element: Element, below: Self) {
        self.removed.attach(element.clone(), below.removed);
        self.changed.attach(element.clone(), below.changed);
        self.added.attach(element, below.added);
    }

    fn maps(
        &mut self,
        old: Option<&Map<String, Value>>,
        new: Option<&Map<String, Value>>,
        schema: Option<&Schema>,
    ) {
        for (name, value) in old.into_iter().flatten() {
            let other = new.and_then(|new| new.get(name));
            if other != Some(value) {
                self.attach(Element::field(name), Self::of(Some(value), other, field_schema(schema, name)));
            }
        }
        for (name, value) in new.into_iter().flatten() {
            if !old.is_some_and(|old| old.contains_key(name)) {
                self.attach(Element::field(name), Self::of(None, Some(value), field_schema(schema, name)));
            }
        }
    }

    /// Items without an identity are ignored: they cannot be owned.
    fn lists(&mut self, old: Option<&Vec<Value>>, new: Option<&Vec<Value>>, schema: Option<&Schema>) {
        let mut items: BTreeMap<Element, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for item in old.into_iter().flatten() {
            if let Some(element) = identify(item, schema) {
                items.entry(element).or_default().0.push(item);
            }
        }
        for item in new.into_iter().flatten() {
            if let Some(element) = identify(item, schema) {
                items.entry(element).or_default().1.push(item);
            }
        }
        for (element, (old, new)) in items {
            self.attach(element, Self::items(&old, &new, item_schema(schema)));
        }
    }

    /// Compares items with the same identity: normally at most one on each side. Several together
    /// count as one value.
    fn items(old: &[&Value], new: &[&Value], schema: Option<&Schema>) -> Self {
        let single = |items: &[&'_ Value]| items.len() < 2;
        if single(old) && single(new) {
            return Self::of(old.first().copied(), new.first().copied(), schema);
        }
        let mut diff = Self::default();
        if single(old) {
            diff.removed = Self::of(old.first().copied(), None, schema).removed;
            diff.removed.subtract(&FieldSet::only_self());
            diff.added.add_self();
        } else if single(new) {
            diff.added = Self::of(None, new.first().copied(), schema).added;
            diff.added.subtract(&FieldSet::only_self());
            if new.is_empty() { diff.removed.add_self() } else { diff.changed.add_self() }
        } else if old != new {
            diff.changed.add_self();
        }
        diff
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_schema::{ListType, Type};
    use serde_json::json;
    use std::sync::Arc;

    fn paths(old: &Value, new: &Value, schema: Option<&Schema>) -> [Vec<String>; 3] {
        let diff = compare(old.as_object().unwrap(), new.as_object().unwrap(), schema);
        [&diff.removed, &diff.changed, &diff.added].map(|set| set.paths(100))
    }

    fn with_list(list: ListType) -> Schema {
        let list = Schema { kind: Type::Array, list, ..Schema::default() };
        Schema { kind: Type::Object, properties: [("l".into(), Arc::new(list))].into(), ..Schema::default() }
    }

    #[test]
    fn added_removed_and_changed_fields_are_distinguished() {
        let old = json!({"same": 1, "gone": {"x": 1}, "other": 1, "list": [1]});
        let new = json!({"same": 1, "new": {"y": {}}, "other": 2, "list": [2]});
        let [removed, changed, added] = paths(&old, &new, None);
        assert_eq!(removed, [".gone", ".gone.x"]);
        assert_eq!(changed, [".list", ".other"]);
        assert_eq!(added, [".new", ".new.y"]);
    }

    #[test]
    fn value_that_becomes_an_object_is_changed_and_adds_fields() {
        let [removed, changed, added] = paths(&json!({"a": 1}), &json!({"a": {"b": 1}}), None);
        assert_eq!((removed.len(), changed, added), (0, vec![".a".to_owned()], vec![".a.b".to_owned()]));
        let [removed, changed, added] = paths(&json!({"a": {"b": 1}}), &json!({"a": [1]}), None);
        assert_eq!((removed, changed, added.len()), (vec![".a.b".to_owned()], vec![".a".to_owned()], 0));
    }

    #[test]
    fn absent_and_empty_objects_differ_as_values() {
        let [_, changed, _] = paths(&json!({"a": null}), &json!({"a": {}}), None);
        assert_eq!(changed, [".a"]);
        let [removed, _, _] = paths(&json!({"a": {}}), &json!({}), None);
        assert_eq!(removed, [".a"]);
    }

    #[test]
    fn set_items_compare_by_value_regardless_of_order() {
        let schema = with_list(ListType::Set);
        let [removed, changed, added] =
            paths(&json!({"l": [1, 2, 3]}), &json!({"l": [3, 4, 1]}), Some(&schema));
        assert_eq!(removed, [".l[=2]"]);
        assert_eq!((changed.len(), added), (0, vec![".l[=4]".to_owned()]));
    }

    #[test]
    fn items_with_the_same_key_are_one_value() {
        let schema = with_list(ListType::Map(vec!["k".into()]));
        let one = json!({"l": [{"k": 1, "a": 1}]});
        let two = json!({"l": [{"k": 1, "a": 1}, {"k": 1, "a": 2}]});
        let three = json!({"l": [{"k": 1, "a": 1}, {"k": 1, "a": 3}, "odd"]});
        let [removed, changed, added] = paths(&one, &two, Some(&schema));
        assert_eq!(removed, [".l[k=1].a", ".l[k=1].k"]);
        assert_eq!((changed.len(), added), (0, vec![".l[k=1]".to_owned()]));
        assert_eq!(paths(&two, &three, Some(&schema))[1], [".l[k=1]"]);
        let [removed, changed, added] = paths(&two, &one, Some(&schema));
        assert_eq!((removed.len(), changed), (0, vec![".l[k=1]".to_owned()]));
        assert_eq!(added, [".l[k=1].a", ".l[k=1].k"]);
        assert_eq!(paths(&two, &json!({"l": []}), Some(&schema))[0], [".l[k=1]"]);
    }
}
