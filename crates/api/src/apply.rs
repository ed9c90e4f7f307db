//! Server-side apply and field ownership: records in `metadata.managedFields` which manager owns
//! which fields, and merges applied configurations by ownership. Pure: depends on `object` only,
//! the time is an argument.
//!
//! # Layout
//! - `fieldset`: sets of fields and their text;
//! - `shape`: the parts of a value that can be owned, by its schema;
//! - `compare`, `merge`: the changes of a write; applying and pruning;
//! - `managed`: the entries of an object; `conflict`: the refusal; `last_applied`: kubectl's
//!   annotation.
//!
//! Objects are bounded in size and depth by the caller. `managedFields` may come from a client and
//! are parsed defensively.

mod compare;
mod conflict;
mod fieldset;
mod last_applied;
mod managed;
mod merge;
mod shape;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use self::compare::compare;
use self::fieldset::FieldSet;
use self::managed::{Entry, Managed};
use super::field_path::FieldPath;
use edgesync_object::status::{Cause, Result};
use edgesync_object::{Object, Status, split_api_version};
use edgesync_schema::Schema;

/// Owner of the fields of an object without a record.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Metadata of the server: without an owner, and not changed by a configuration.
const SYSTEM_METADATA: &[&str] = &[
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// The author of a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manager<'a> {
    /// The field manager; an empty one is recorded as `unknown`.
    pub(super) name: &'a str,
    /// Group and version in which the object is written.
    pub(super) api_version: &'a str,
    /// `status`, or empty for the object itself.
    pub(super) subresource: &'a str,
    /// Time of the write: RFC 3339, UTC, whole seconds.
    pub(super) now: &'a str,
}

/// The way a field came to be owned, in the order of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    /// An apply: the manager owns the fields of its last configuration.
    Apply,
    /// Any other write: the manager owns the fields that it changed.
    Update,
}

impl<'a> Manager<'a> {
    /// Names an empty manager.
    fn named(self) -> Self {
        let name: &'a str = if self.name.is_empty() { "unknown" } else { self.name };
        Self { name, ..self }
    }
}

/// Updates `metadata.managedFields` of an object before it is stored. The manager gains the fields
/// that the write added or changed, and other managers lose them; removed fields lose all owners.
///
/// Called for every create (`old` is `None`), update and patch other than an apply, with the object
/// as it will be stored. The record is based on the `managedFields` that the client sent in `new`
/// if they are valid. An empty list (or one empty entry) resets the record; absent or invalid ones,
/// and those sent to a subresource, are replaced by those of `old`. An existing object without a
/// record gets one with its first apply.
pub(super) fn record_update(
    old: Option<&Object>,
    new: &mut Object,
    schema: Option<&Schema>,
    manager: &Manager<'_>,
) {
    let manager = manager.named();
    let sent = new.remove_metadata("managedFields");
    let mut managed = starting_point(old, sent.as_ref(), &manager);
    if old.is_some() && managed.is_empty() {
        return;
    }
    let mut diff = compare(old.map_or(&Map::new(), Object::fields), new.fields(), schema);
    if manager.subresource == "status" {
        diff.keep_only("status");
    }
    let mut own = managed.take(&manager, Operation::Update);
    let before = own.fields.clone();
    managed.remove_fields(&diff);
    own.fields.subtract(&diff.removed);
    let mut written = diff.written();
    written.subtract(&unowned());
    if !written.is_empty() || own.fields != before {
        manager.now.clone_into(&mut own.time);
    }
    own.fields.add(written);
    managed.insert(own);
    managed.limit_updaters();
    managed.write(new);
}

/// Returns the record that an update is based on.
fn starting_point(old: Option<&Object>, sent: Option<&Value>, manager: &Manager<'_>) -> Managed {
    let kept = || old.map(Managed::of).unwrap_or_default();
    if !manager.subresource.is_empty() {
        return kept();
    }
    if let Some(Value::Array(entries)) = sent {
        let is_blank = |entry: &Value| entry.as_object().is_some_and(Map::is_empty);
        if entries.len() < 2 && entries.iter().all(is_blank) {
            return Managed::default();
        }
    }
    match Managed::parse(sent) {
        Some(managed) if !managed.is_empty() => managed,
        _ => kept(),
    }
}

/// Returns the fields without an owner: identity and the server's metadata.
fn unowned() -> FieldSet {
    let mut set = FieldSet::of_names(&[
        &["apiVersion"],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
    ]);
    for field in SYSTEM_METADATA {
        set.add(FieldSet::of_names(&[&["metadata", field]]));
    }
    set
}

/// Applies a configuration: returns the object to store after `applied` has been merged into `live`
/// (`None` for a new object), with `managedFields`.
///
/// Afterwards the manager owns exactly the fields of the configuration. Fields that it applied
/// before, no longer applies, and shares with no other manager are removed. Fields that others own
/// with a different value are conflicts, unless `force` takes them over; with the same value
/// ownership is shared. If nothing changes, the result equals `live`.
///
/// Server metadata in the configuration (`uid`, `resourceVersion`, …) are ignored; the caller
/// checks them against `live`. With the subresource `status` only the status is applied. If the
/// status is a subresource, the caller removes it from other configurations.
///
/// # Errors
/// 400 if the configuration has `managedFields` or another version or kind, 422 if items of its
/// lists are ambiguous, 409 with the conflicts.
pub(super) fn apply(
    live: Option<&Object>,
    applied: &Object,
    schema: Option<&Schema>,
    manager: &Manager<'_>,
    force: bool,
) -> Result<Object> {
    let manager = &manager.named();
    let configuration = prepare(live, applied, schema, manager)?;
    let mut without_record = live.cloned().unwrap_or_default();
    without_record.strip_managed_fields();
    let mut managed = recorded(live, &without_record, schema, manager);
    let own = managed.take(manager, Operation::Apply);
    let unowned = unowned();
    let mut fields = shape::fields_of(&configuration, schema);
    fields.subtract(&unowned);
    // A client's record may claim fields that cannot be owned.
    let mut last_applied_fields = own.fields.clone();
    last_applied_fields.subtract(&unowned);

    let without_record = Value::Object(without_record.into_fields());
    let mut merged = merge::merge(&without_record, &configuration, schema);
    let mut keep = managed.union();
    keep.add(fields.clone());
    merge::prune(&mut merged, schema, &last_applied_fields, &keep);

    let (Value::Object(before), Value::Object(after)) = (without_record, merged) else {
        return Err(Status::bad_request("the body must be one JSON object"));
    };
    let diff = compare(&before, &after, schema);
    if !force {
        let conflicts = conflicts(&managed, &diff.written(), live, schema, manager);
        if !conflicts.is_empty() {
            return Err(conflict::refuse(&conflicts));
        }
    }
    managed.remove_fields(&diff);
    let changed = before != after || fields != own.fields;
    let time = if changed { manager.now.to_owned() } else { own.time.clone() };
    managed.insert(Entry { fields, time, ..own });

    let mut result = Object::from(after);
    if manager.name == last_applied::KUBECTL {
        last_applied::refresh(&mut result, applied);
    }
    managed.write(&mut result);
    Ok(result)
}

/// Restores the record of `live` in an object that differs from it only in the record's times. A
/// configuration may become equal to the live object only once it was completed (`stringData` of a
/// Secret).
pub(super) fn keep_times(live: &Object, object: &mut Object) {
    if !Managed::of(live).is_same_but_for_times(&Managed::of(object)) {
        return;
    }
    let mut kept = object.clone();
    Managed::of(live).write(&mut kept);
    if kept == *live {
        *object = kept;
    }
}

/// Checks a configuration and removes the parts that are not applied.
fn prepare(
    live: Option<&Object>,
    applied: &Object,
    schema: Option<&Schema>,
    manager: &Manager<'_>,
) -> Result<Value> {
    let managed = applied.metadata().and_then(|metadata| metadata.get("managedFields"));
    if managed.is_some_and(|managed| !managed.is_null()) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    if applied.api_version() != manager.api_version {
        return Err(Status::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {}, expected: {}",
            applied.api_version(),
            manager.api_version
        )));
    }
    if live.is_some_and(|live| live.kind() != applied.kind()) {
        let (version, kind) = (applied.api_version(), applied.kind());
        return Err(Status::bad_request(format!("invalid object type: {version}, Kind={kind}")));
    }
    let mut configuration = applied.clone();
    for field in SYSTEM_METADATA {
        configuration.remove_metadata(field);
    }
    if manager.subresource == "status" {
        let counts = |name: &str| matches!(name, "apiVersion" | "kind" | "status");
        configuration.fields_mut().retain(|name, _| counts(name));
    }
    let mut configuration = Value::Object(configuration.into_fields());
    merge::drop_nulls(&mut configuration, schema);
    let mut causes: Vec<Cause> = Vec::new();
    shape::check_items(&configuration, schema, &FieldPath::Root, &mut causes);
    if causes.is_empty() {
        Ok(configuration)
    } else {
        let (group, _) = split_api_version(applied.api_version());
        Err(Status::invalid(group, applied.kind(), applied.name(), causes))
    }
}

/// Returns the record of an object. Without one, all fields belong to [`BEFORE_FIRST_APPLY`].
fn recorded(
    live: Option<&Object>,
    without_record: &Object,
    schema: Option<&Schema>,
    manager: &Manager<'_>,
) -> Managed {
    let mut managed = live.map(Managed::of).unwrap_or_default();
    if managed.is_empty() {
        let before = Manager { name: BEFORE_FIRST_APPLY, subresource: "", ..*manager };
        let mut entry = managed.take(&before, Operation::Update);
        entry.fields = compare(&Map::new(), without_record.fields(), schema).added;
        entry.fields.subtract(&unowned());
        managed.insert(entry);
    }
    managed
}

/// Returns the fields about to be written that other managers own. `kubectl` migrating from
/// client-side to server-side apply may change the fields that it applied last.
fn conflicts<'m>(
    managed: &'m Managed,
    written: &FieldSet,
    live: Option<&Object>,
    schema: Option<&Schema>,
    manager: &Manager<'_>,
) -> Vec<(&'m Entry, FieldSet)> {
    let owned = managed.entries().iter().map(|entry| (entry, entry.fields.intersection(written)));
    let mut conflicts: Vec<(&Entry, FieldSet)> = owned.filter(|(_, fields)| !fields.is_empty()).collect();
    if let Some(live) = live.filter(|_| !conflicts.is_empty() && manager.name == last_applied::KUBECTL) {
        let own = last_applied::unchanged_fields(live, schema);
        for (_, fields) in &mut conflicts {
            fields.subtract(&own);
        }
        conflicts.retain(|(_, fields)| !fields.is_empty());
    }
    conflicts.sort_by(|(a, _), (b, _)| a.manager.cmp(&b.manager));
    conflicts
}
