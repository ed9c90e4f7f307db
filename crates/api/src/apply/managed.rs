//! Entries of `metadata.managedFields`: parsing, merging and writing. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::compare::Diff;
use super::fieldset::FieldSet;
use super::{Manager, Operation};
use crate::cost_meter;
use edgesync_object::Object;

/// Maximum number of entries of updates kept separate; the oldest beyond are merged.
pub(super) const MAX_UPDATERS: usize = 10;
/// Manager of the merged entries.
const ANCIENT: &str = "ancient-changes";

/// The record of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Managed(Vec<Entry>);

/// The fields that one manager owns by one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) manager: String,
    pub(super) operation: Operation,
    pub(super) api_version: String,
    /// Empty for the object itself.
    pub(super) subresource: String,
    /// RFC 3339 in UTC, whole seconds; empty if unknown.
    pub(super) time: String,
    pub(super) fields: FieldSet,
}

impl Entry {
    /// Creates an entry without fields.
    fn of(manager: &Manager<'_>, operation: Operation) -> Self {
        Self {
            manager: manager.name.to_owned(),
            operation,
            api_version: manager.api_version.to_owned(),
            subresource: manager.subresource.to_owned(),
            time: manager.now.to_owned(),
            fields: FieldSet::default(),
        }
    }

    /// Returns the identity of an entry. An apply has the same identity in all versions.
    fn id(&self) -> (Operation, String, String, String) {
        let version = if self.operation == Operation::Apply { "" } else { &self.api_version };
        (self.operation, self.manager.clone(), self.subresource.clone(), version.to_owned())
    }

    /// Returns whether two entries have the same identity.
    fn is_same(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// Merges another entry of the same identity.
    fn merge(&mut self, other: Self) {
        self.fields.add(other.fields);
        self.time = std::mem::take(&mut self.time).max(other.time);
    }

    fn order(&self) -> (Operation, &str, &str, &str, &str) {
        (self.operation, &self.time, &self.manager, &self.api_version, &self.subresource)
    }

    fn parse(value: &Value) -> Option<Self> {
        let entry = value.as_object()?;
        let text = |name: &str| match entry.get(name) {
            None | Some(Value::Null) => Some(""),
            Some(value) => value.as_str(),
        };
        let operation = match text("operation")? {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        let (api_version, time) = (text("apiVersion")?, text("time")?);
        if api_version.is_empty() || text("fieldsType")? != "FieldsV1" {
            return None;
        }
        let fields = match entry.get("fieldsV1") {
            None | Some(Value::Null) => FieldSet::default(),
            Some(fields) => FieldSet::from_fields(fields.as_object()?).ok()?,
        };
        Some(Self {
            manager: text("manager")?.to_owned(),
            operation,
            api_version: api_version.to_owned(),
            subresource: text("subresource")?.to_owned(),
            time: if time.is_empty() { String::new() } else { in_seconds(time)? },
            fields,
        })
    }

    fn to_value(&self) -> Value {
        let operation = match self.operation {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        };
        let texts = [
            ("apiVersion", self.api_version.as_str()),
            ("fieldsType", "FieldsV1"),
            ("manager", &self.manager),
            ("operation", operation),
            ("subresource", &self.subresource),
            ("time", &self.time),
        ];
        let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
        let mut entry: Map<String, Value> =
            texts.map(|(name, text)| (name.to_owned(), Value::String(text.to_owned()))).collect();
        entry.insert("fieldsV1".to_owned(), Value::Object(self.fields.to_fields()));
        Value::Object(entry)
    }
}

/// Normalises a time to RFC 3339 in UTC without fractions: such texts compare as times.
fn in_seconds(time: &str) -> Option<String> {
    let time: Timestamp = time.parse().ok()?;
    Some(Timestamp::from_second(time.as_second()).ok()?.to_string())
}

impl Managed {
    /// Parses `managedFields`; `None` if any part is invalid. Absent ones are empty.
    pub(super) fn parse(value: Option<&Value>) -> Option<Self> {
        match value {
            None | Some(Value::Null) => Some(Self::default()),
            Some(Value::Array(entries)) => {
                let entries: Option<Vec<Entry>> = entries.iter().map(Entry::parse).collect();
                Some(Self::merge_entries(entries?))
            }
            Some(_) => None,
        }
    }

    /// Merges entries of the same identity.
    fn merge_entries(entries: Vec<Entry>) -> Self {
        let mut indices: BTreeMap<(Operation, String, String, String), usize> = BTreeMap::new();
        let mut merged: Vec<Entry> = Vec::with_capacity(entries.len());
        for entry in entries {
            cost_meter::count(1);
            let index = *indices.entry(entry.id()).or_insert(merged.len());
            match merged.get_mut(index) {
                Some(other) => other.merge(entry),
                None => merged.push(entry),
            }
        }
        Self(merged)
    }

    /// Reads the record of an object; empty if it is invalid.
    pub(super) fn of(object: &Object) -> Self {
        let fields = object.metadata().and_then(|metadata| metadata.get("managedFields"));
        Self::parse(fields).unwrap_or_default()
    }

    /// Writes the sorted entries into an object. Without entries the field is removed.
    pub(super) fn write(mut self, object: &mut Object) {
        self.0.retain(|entry| !entry.fields.is_empty());
        self.0.sort_by(|a, b| a.order().cmp(&b.order()));
        if self.0.is_empty() {
            object.strip_managed_fields();
        } else {
            let entries: Vec<Value> = self.0.iter().map(Entry::to_value).collect();
            object.set_metadata("managedFields", entries);
        }
    }

    /// Returns whether there are no entries.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether both records differ at most in their times.
    pub(super) fn is_same_but_for_times(&self, other: &Self) -> bool {
        let without_times = |managed: &Self| {
            let mut entries = managed.0.clone();
            entries.iter_mut().for_each(|entry| entry.time.clear());
            entries.sort_by(|a, b| a.order().cmp(&b.order()));
            entries
        };
        self.0.len() == other.0.len() && without_times(self) == without_times(other)
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// Removes and returns the entry of a manager, or creates one.
    pub(super) fn take(&mut self, manager: &Manager<'_>, operation: Operation) -> Entry {
        let new = Entry::of(manager, operation);
        match self.0.iter().position(|entry| entry.is_same(&new)) {
            Some(index) => Entry { api_version: new.api_version, ..self.0.swap_remove(index) },
            None => new,
        }
    }

    /// Adds an entry, merging it into one of the same identity.
    pub(super) fn insert(&mut self, entry: Entry) {
        match self.0.iter_mut().find(|other| other.is_same(&entry)) {
            Some(other) => other.merge(entry),
            None => self.0.push(entry),
        }
    }

    /// Returns the fields of all entries.
    pub(super) fn union(&self) -> FieldSet {
        let mut union = FieldSet::default();
        for entry in &self.0 {
            union.add(entry.fields.clone());
        }
        union
    }

    /// Removes changed and removed fields from all entries.
    pub(super) fn remove_fields(&mut self, diff: &Diff) {
        for entry in &mut self.0 {
            for set in [&diff.removed, &diff.changed, &diff.added] {
                entry.fields.subtract(set);
            }
        }
    }

    /// Merges the oldest updates, per version, until at most [`MAX_UPDATERS`] remain.
    pub(super) fn limit_updaters(&mut self) {
        self.0.retain(|entry| !entry.fields.is_empty());
        self.0.sort_by(|a, b| a.order().cmp(&b.order()));
        let first = self.0.partition_point(|entry| entry.operation == Operation::Apply);
        let mut excess = self.0.len().saturating_sub(first + MAX_UPDATERS);
        if excess == 0 {
            return;
        }
        let mut kept: Vec<Entry> = Vec::new();
        let mut oldest: BTreeMap<String, usize> = BTreeMap::new();
        for entry in self.0.split_off(first) {
            cost_meter::count(1);
            let oldest_entry = oldest.get(&entry.api_version).filter(|_| excess > 0);
            match oldest_entry.and_then(|index| kept.get_mut(*index)) {
                Some(oldest_entry) => {
                    ANCIENT.clone_into(&mut oldest_entry.manager);
                    oldest_entry.subresource.clear();
                    oldest_entry.time = entry.time;
                    oldest_entry.fields.add(entry.fields);
                    excess -= 1;
                }
                None => {
                    oldest.entry(entry.api_version.clone()).or_insert(kept.len());
                    kept.push(entry);
                }
            }
        }
        self.0.extend(Self::merge_entries(kept).0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn update(name: &str, version: &str, time: &str) -> Entry {
        let mut fields = FieldSet::default();
        fields.attach(super::super::fieldset::Element::field(name), FieldSet::only_self());
        Entry {
            manager: name.into(),
            operation: Operation::Update,
            api_version: version.into(),
            subresource: String::new(),
            time: time.into(),
            fields,
        }
    }

    #[test]
    fn entries_round_trip_in_order() {
        let entry = |manager: &str, operation: &str, time: &str| {
            json!({"apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}}},
                "manager": manager, "operation": operation, "time": time})
        };
        let sent = json!([
            entry("b", "Update", "2026-01-02T00:00:00Z"),
            entry("c", "Update", "2026-01-02T01:00:00+02:00"),
            entry("a", "Update", "2026-01-02T00:00:00.5Z"),
            entry("z", "Apply", "2026-01-03T00:00:00Z"),
        ]);
        let mut object = Object::default();
        Managed::parse(Some(&sent)).unwrap().write(&mut object);
        let written = object.metadata().unwrap()["managedFields"].clone();
        let expected = json!([
            entry("z", "Apply", "2026-01-03T00:00:00Z"),
            entry("c", "Update", "2026-01-01T23:00:00Z"),
            entry("a", "Update", "2026-01-02T00:00:00Z"),
            entry("b", "Update", "2026-01-02T00:00:00Z"),
        ]);
        assert_eq!(written, expected);
        assert_eq!(Managed::of(&object).entries().len(), 4);
    }

    #[test]
    fn invalid_entry_invalidates_the_whole_record() {
        let good = json!({"apiVersion": "v1", "fieldsType": "FieldsV1", "operation": "Update"});
        assert!(Managed::parse(Some(&json!([good]))).is_some());
        for (field, value) in [
            ("apiVersion", json!("")),
            ("fieldsType", json!("FieldsV2")),
            ("fieldsType", json!(null)),
            ("fieldsV1", json!([])),
            ("fieldsV1", json!({"nonsense": {}})),
            ("operation", json!("Patch")),
            ("manager", json!(7)),
            ("subresource", json!({})),
            ("time", json!("yesterday")),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            assert_eq!(Managed::parse(Some(&json!([good, bad]))), None, "{bad}");
        }
        for odd in [json!("x"), json!({}), json!([7])] {
            assert_eq!(Managed::parse(Some(&odd)), None);
        }
    }

    #[test]
    fn parsing_and_merging_a_record_is_linear() {
        let sent = |length: usize| {
            let entry = |number: usize| {
                json!({"apiVersion": format!("v{number}"), "fieldsType": "FieldsV1", "manager": format!("m{number}"),
                    "operation": if number.is_multiple_of(2) { "Apply" } else { "Update" },
                    "fieldsV1": {"f:data": {format!("f:{number}"): {}}}})
            };
            Value::Array((0..length).map(entry).collect())
        };
        let changed = |length: usize| {
            let data: Map<String, Value> = (0..length).map(|number| (number.to_string(), json!(1))).collect();
            Map::from_iter([("data".to_owned(), Value::Object(data))])
        };
        let input = |length| (sent(length), changed(length));
        cost_meter::assert_linear("entries", input, |(sent, changed)| {
            let mut managed = Managed::parse(Some(&sent)).unwrap();
            managed.remove_fields(&super::super::compare::compare(&Map::new(), &changed, None));
            managed.limit_updaters();
        });
        cost_meter::assert_linear("updates", input, |(sent, _)| {
            Managed::parse(Some(&sent)).unwrap().limit_updaters();
        });
    }

    #[test]
    fn oldest_updates_merge_into_one_per_version() {
        let mut managed = Managed::default();
        for number in 10..22 {
            let version = if number == 10 { "old/v1" } else { "v1" };
            managed.insert(update(&format!("m{number}"), version, &format!("2026-01-01T00:00:{number}Z")));
        }
        managed.insert(Entry { operation: Operation::Apply, ..update("x", "v1", "2026-01-01T00:00:00Z") });
        let before = managed.union();
        managed.limit_updaters();
        assert_eq!(managed.union(), before);
        let updates: Vec<&Entry> =
            managed.entries().iter().filter(|entry| entry.operation == Operation::Update).collect();
        assert_eq!(updates.len(), MAX_UPDATERS);
        let ancient: Vec<&&Entry> = updates.iter().filter(|entry| entry.manager == ANCIENT).collect();
        assert_eq!(ancient.len(), 1);
        assert_eq!((ancient[0].fields.len(), ancient[0].time.as_str()), (3, "2026-01-01T00:00:13Z"));
        assert!(updates.iter().any(|entry| entry.manager == "m10"));
        let again = managed.clone();
        managed.limit_updaters();
        assert_eq!(managed, again);
    }
}
