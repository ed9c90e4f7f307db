//! Ownership of fields: who wrote what (`metadata.managedFields`), kept with every write, and the merge by
//! ownership that is called server-side apply. Pure: depends on `object` only, the time is an argument.
//!
//! # Layout
//! - `fieldset`: sets of fields and their text;
//! - `shape`: what in a value can be owned by itself, by its schema;
//! - `compare`, `merge`: what a write changed; applying and taking out;
//! - `managed`: the entries of an object; `conflict`: the refusal; `last_applied`: kubectl's annotation.
//!
//! Objects are bounded in size and depth before they come here; whatever is in `managedFields` is read
//! with care, because clients can send it.

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
use super::trail::Trail;
use edgesync_object::status::{Cause, Result};
use edgesync_object::{Object, Status, split_api_version};
use edgesync_schema::Schema;

/// The manager of fields that were there before anybody was recorded.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Metadata that belong to the server. Nobody owns them, and a configuration cannot change them.
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

/// Who writes, how and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manager<'a> {
    /// The field manager; `unknown` if it is empty.
    pub(super) name: &'a str,
    /// Group and version in which the object is written.
    pub(super) api_version: &'a str,
    /// `status`, or empty for the object itself.
    pub(super) subresource: &'a str,
    /// The time in RFC 3339, UTC, in whole seconds.
    pub(super) now: &'a str,
}

/// How fields came to be owned. In the order of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    /// By an apply: the manager owns what its last configuration had.
    Apply,
    /// By any other write: the manager owns what it changed.
    Update,
}

impl<'a> Manager<'a> {
    /// A manager always has a name.
    fn named(self) -> Self {
        let name: &'a str = if self.name.is_empty() { "unknown" } else { self.name };
        Self { name, ..self }
    }
}

/// Brings `metadata.managedFields` of an object that is about to be stored up to date: what the write added or
/// changed belongs to the manager, and to others no more; what it removed belongs to nobody.
///
/// Called for every create (`old` is `None`), update and patch other than an apply, with the object as it will be
/// stored. `managedFields` in `new` are taken as the client sent them: valid ones are where the record goes on
/// from, an empty list (or one empty entry) starts anew, and absent or invalid ones count as those of `old`. Those
/// sent with a subresource do not count. An existing object without any record gets none until somebody
/// applies to it.
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
    managed.lose(&diff);
    own.fields.subtract(&diff.removed);
    let mut written = diff.written();
    written.subtract(&unowned());
    if !written.is_empty() || own.fields != before {
        manager.now.clone_into(&mut own.time);
    }
    own.fields.add(written);
    managed.insert(own);
    managed.cap();
    managed.write(new);
}

/// The record from which an update goes on.
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

/// Fields that nobody owns: those that identify the object, and the server's.
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

/// Server-side apply: the object as it is to be stored after `applied` has been merged into `live`
/// (`None` for a new one), with `managedFields`.
///
/// The manager then owns exactly the fields of the configuration. What it owned by applying before, no longer
/// applies, and nobody else owns, is removed. Fields that others own with another value are conflicts, unless `force`
/// takes them over; with the same value they are owned together. If nothing changes, the result equals `live`.
///
/// Metadata of the server in the configuration (`uid`, `resourceVersion`, …) are passed over: whether they fit
/// `live` is for the caller to check. With the subresource `status` only the status counts; the caller
/// takes it out of other configurations if it is a subresource.
///
/// # Errors
/// 400 if the configuration has `managedFields` or is of another version or kind, 422 if items of its lists
/// cannot be told apart, 409 with the conflicts.
pub(super) fn apply(
    live: Option<&Object>,
    applied: &Object,
    schema: Option<&Schema>,
    manager: &Manager<'_>,
    force: bool,
) -> Result<Object> {
    let manager = &manager.named();
    let configuration = accept(live, applied, schema, manager)?;
    let mut bare = live.cloned().unwrap_or_default();
    bare.strip_managed_fields();
    let mut managed = recorded(live, &bare, schema, manager);
    let own = managed.take(manager, Operation::Apply);
    let unowned = unowned();
    let mut fields = shape::fields_of(&configuration, schema);
    fields.subtract(&unowned);
    // A record that a client has sent may lay claim to what nobody owns.
    let mut last = own.fields.clone();
    last.subtract(&unowned);

    let bare = Value::Object(bare.into_fields());
    let mut merged = merge::merge(&bare, &configuration, schema);
    let mut keep = managed.union();
    keep.add(fields.clone());
    merge::prune(&mut merged, schema, &last, &keep);

    let (Value::Object(before), Value::Object(after)) = (bare, merged) else {
        return Err(Status::bad_request("the body must be one JSON object"));
    };
    let diff = compare(&before, &after, schema);
    if !force {
        let conflicts = conflicts(&managed, &diff.written(), live, schema, manager);
        if !conflicts.is_empty() {
            return Err(conflict::refuse(&conflicts));
        }
    }
    managed.lose(&diff);
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

/// Gives an object that is about to be stored the record of `live` if the times in the record are all that differs:
/// what was applied may have become the same as before only when it was completed (`stringData` of a Secret).
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

/// The configuration as it is merged: without what does not count in it.
fn accept(
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
    shape::check_items(&configuration, schema, &Trail::Root, &mut causes);
    if causes.is_empty() {
        Ok(configuration)
    } else {
        let (group, _) = split_api_version(applied.api_version());
        Err(Status::invalid(group, applied.kind(), applied.name(), causes))
    }
}

/// What is recorded of the object. If that is nothing, all its fields are somebody's nevertheless.
fn recorded(live: Option<&Object>, bare: &Object, schema: Option<&Schema>, manager: &Manager<'_>) -> Managed {
    let mut managed = live.map(Managed::of).unwrap_or_default();
    if managed.is_empty() {
        let before = Manager { name: BEFORE_FIRST_APPLY, subresource: "", ..*manager };
        let mut entry = managed.take(&before, Operation::Update);
        entry.fields = compare(&Map::new(), bare.fields(), schema).added;
        entry.fields.subtract(&unowned());
        managed.insert(entry);
    }
    managed
}

/// What others own of the fields that are about to be written. When `kubectl` goes over from applying by itself
/// to applying on the server, it may change what it applied last.
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
