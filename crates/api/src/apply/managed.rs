//! `metadata.managedFields`: who owns which fields, read and written. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::compare::Diff;
use super::fieldset::FieldSet;
use super::{Manager, Operation};
use crate::steps;
use edgesync_object::Object;

/// The most entries of updates that are kept apart; older ones are put together.
pub(super) const MAX_UPDATERS: usize = 10;
/// The manager in whose name older updates are put together.
const ANCIENT: &str = "ancient-changes";

/// All entries of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Managed(Vec<Entry>);

/// What one manager owns by one way of writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) manager: String,
    pub(super) operation: Operation,
    pub(super) api_version: String,
    /// Empty for the object itself.
    pub(super) subresource: String,
    /// RFC 3339 in UTC, in seconds; empty if unknown.
    pub(super) time: String,
    pub(super) fields: FieldSet,
}

impl Entry {
    /// An entry of a manager that owns nothing yet.
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

    /// What is the same for all entries of a manager. Who applies is the same in all versions.
    fn id(&self) -> (Operation, String, String, String) {
        let version = if self.operation == Operation::Apply { "" } else { &self.api_version };
        (self.operation, self.manager.clone(), self.subresource.clone(), version.to_owned())
    }

    /// Whether two entries are of the same manager.
    fn is_same(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// Takes in another entry of the same manager.
    fn join(&mut self, other: Self) {
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

/// A time of RFC 3339 in UTC and without fractions, so that times can be compared as texts.
fn in_seconds(time: &str) -> Option<String> {
    let time: Timestamp = time.parse().ok()?;
    Some(Timestamp::from_second(time.as_second()).ok()?.to_string())
}

impl Managed {
    /// Reads `managedFields`; `None` if any part of them is not as it must be. Absent ones are empty.
    pub(super) fn parse(value: Option<&Value>) -> Option<Self> {
        match value {
            None | Some(Value::Null) => Some(Self::default()),
            Some(Value::Array(entries)) => {
                let entries: Option<Vec<Entry>> = entries.iter().map(Entry::parse).collect();
                Some(Self::gather(entries?))
            }
            Some(_) => None,
        }
    }

    /// Entries of which those of the same manager become one.
    fn gather(entries: Vec<Entry>) -> Self {
        let mut places: BTreeMap<(Operation, String, String, String), usize> = BTreeMap::new();
        let mut gathered: Vec<Entry> = Vec::with_capacity(entries.len());
        for entry in entries {
            steps::count(1);
            let place = *places.entry(entry.id()).or_insert(gathered.len());
            match gathered.get_mut(place) {
                Some(other) => other.join(entry),
                None => gathered.push(entry),
            }
        }
        Self(gathered)
    }

    /// What an object says; nothing if that cannot be read.
    pub(super) fn of(object: &Object) -> Self {
        let fields = object.metadata().and_then(|metadata| metadata.get("managedFields"));
        Self::parse(fields).unwrap_or_default()
    }

    /// Writes the entries into an object, in order. No entries are no field.
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

    /// Whether nothing is owned.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether both say the same of who owns what.
    pub(super) fn is_same_but_for_times(&self, other: &Self) -> bool {
        let without_times = |managed: &Self| {
            let mut entries = managed.0.clone();
            entries.iter_mut().for_each(|entry| entry.time.clear());
            entries.sort_by(|a, b| a.order().cmp(&b.order()));
            entries
        };
        self.0.len() == other.0.len() && without_times(self) == without_times(other)
    }

    /// All entries.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// Takes out the entry of a manager, or makes a new one.
    pub(super) fn take(&mut self, manager: &Manager<'_>, operation: Operation) -> Entry {
        let new = Entry::of(manager, operation);
        match self.0.iter().position(|entry| entry.is_same(&new)) {
            Some(index) => Entry { api_version: new.api_version, ..self.0.swap_remove(index) },
            None => new,
        }
    }

    /// Adds an entry. Two of the same manager become one.
    pub(super) fn insert(&mut self, entry: Entry) {
        match self.0.iter_mut().find(|other| other.is_same(&entry)) {
            Some(other) => other.join(entry),
            None => self.0.push(entry),
        }
    }

    /// What all entries own together.
    pub(super) fn union(&self) -> FieldSet {
        let mut union = FieldSet::default();
        for entry in &self.0 {
            union.add(entry.fields.clone());
        }
        union
    }

    /// Takes from all entries what somebody else has changed or removed.
    pub(super) fn lose(&mut self, diff: &Diff) {
        for entry in &mut self.0 {
            for set in [&diff.removed, &diff.changed, &diff.added] {
                entry.fields.subtract(set);
            }
        }
    }

    /// Puts the oldest updates together, those of one version each, until there are at most [`MAX_UPDATERS`].
    pub(super) fn cap(&mut self) {
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
            steps::count(1);
            let older = oldest.get(&entry.api_version).filter(|_| excess > 0);
            match older.and_then(|place| kept.get_mut(*place)) {
                Some(older) => {
                    ANCIENT.clone_into(&mut older.manager);
                    older.subresource.clear();
                    older.time = entry.time;
                    older.fields.add(entry.fields);
                    excess -= 1;
                }
                None => {
                    oldest.entry(entry.api_version.clone()).or_insert(kept.len());
                    kept.push(entry);
                }
            }
        }
        self.0.extend(Self::gather(kept).0);
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
    fn entries_are_read_and_written_in_order() {
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
    fn entries_that_cannot_be_read_spoil_all() {
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
    fn a_record_that_a_client_sends_costs_steps_linear_in_its_length() {
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
        steps::assert_linear("entries", input, |(sent, changed)| {
            let mut managed = Managed::parse(Some(&sent)).unwrap();
            managed.lose(&super::super::compare::compare(&Map::new(), &changed, None));
            managed.cap();
        });
        steps::assert_linear("updates", input, |(sent, _)| Managed::parse(Some(&sent)).unwrap().cap());
    }

    #[test]
    fn the_oldest_updates_become_one_per_version() {
        let mut managed = Managed::default();
        for number in 10..22 {
            let version = if number == 10 { "old/v1" } else { "v1" };
            managed.insert(update(&format!("m{number}"), version, &format!("2026-01-01T00:00:{number}Z")));
        }
        managed.insert(Entry { operation: Operation::Apply, ..update("x", "v1", "2026-01-01T00:00:00Z") });
        let before = managed.union();
        managed.cap();
        assert_eq!(managed.union(), before);
        let updates: Vec<&Entry> =
            managed.entries().iter().filter(|entry| entry.operation == Operation::Update).collect();
        assert_eq!(updates.len(), MAX_UPDATERS);
        let ancient: Vec<&&Entry> = updates.iter().filter(|entry| entry.manager == ANCIENT).collect();
        assert_eq!(ancient.len(), 1);
        assert_eq!((ancient[0].fields.len(), ancient[0].time.as_str()), (3, "2026-01-01T00:00:13Z"));
        assert!(updates.iter().any(|entry| entry.manager == "m10"));
        let again = managed.clone();
        managed.cap();
        assert_eq!(managed, again);
    }
}
