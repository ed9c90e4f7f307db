//! What is to be stored, worked out from what was sent and what is there: metadata that only the server
//! gives, the part that is written, defaults, rules, ownership of fields. No store, no waiting.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::owners;
use super::propagation::Propagation;
use super::{Old, Write};
use crate::apply::{self, Manager};
use crate::kind::{Kind, Writable};
use crate::request::FieldValidation;
use crate::storage::Storage;
use crate::{convert, rules};
use edgesync_object::event::is_event;
use edgesync_object::status::{Cause, Result};
use edgesync_object::time::rfc3339;
use edgesync_object::{Object, Problems, Resource, SERVER_METADATA, Status};
use edgesync_schema as schema;

/// The longest part of a generated name that is the client's: with five random characters it is still a
/// DNS label.
const MAX_PREFIX: usize = 58;
/// The most fields that one warning or refusal names.
const MAX_UNKNOWN: usize = 16;

/// Which part of an object is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything but the status, where that is a part of its own.
    #[default]
    Object,
    /// The status alone.
    Status,
}

impl Part {
    /// Whether a field is judged when this part is written. Who writes the status does not answer for the rest, which
    /// may have been accepted by another version of the rules.
    fn is_about(self, field: &str) -> bool {
        let parts = ["status", "metadata.labels", "metadata.annotations"];
        self == Self::Object || parts.into_iter().any(|part| is_within(field, part))
    }

    /// What of the metadata goes with the status, as in Kubernetes: of a custom kind nothing, of a Deployment no labels.
    fn metadata(kind: &Kind) -> &'static [&'static str] {
        match &*kind.resource.kind {
            _ if kind.custom => &[],
            "Deployment" => &["annotations"],
            _ => &["annotations", "labels"],
        }
    }
}

/// Whether a field is this part or within it, both as paths.
fn is_within(field: &str, part: &str) -> bool {
    let rest = field.strip_prefix(part);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// An object that is about to be stored, in the form in which it is kept.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) object: Object,
    /// What a generated name begins with; empty if the object has a name.
    pub(super) prefix: String,
    pub(super) warnings: Vec<String>,
    /// Whether it differs from what is there.
    pub(super) changed: bool,
}

/// Reads a new object.
pub(super) fn create<K: Storage>(write: &Write<'_, K>, mut sent: Object) -> Result<Draft> {
    if !sent.resource_version().is_empty() {
        return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let prefix = match sent.metadata().and_then(|metadata| metadata.get("generateName")) {
        Some(Value::String(prefix)) if sent.name().is_empty() => prefix.clone(),
        _ => String::new(),
    };
    strip_given(&mut sent);
    if write.kind.status_subresource {
        sent.fields_mut().remove("status");
    }
    let warnings = decode(write, &mut sent)?;
    add_defaults(write, &mut sent);
    Ok(Draft { object: convert::stored(write.kind, sent), prefix, warnings, changed: true })
}

/// Completes a new object that has its name, and checks it.
pub(super) fn finish_create<K: Storage>(write: &Write<'_, K>, draft: &mut Draft) -> Result<()> {
    let object = &mut draft.object;
    give_birth(write, object);
    rules::complete(&write.home.resource, None, object);
    check(write, None, object)?;
    let facts = Facts::of(write);
    // A status that is a part of its own is the server's here: who creates the object does not own it.
    let status = if write.home.status_subresource { object.fields_mut().remove("status") } else { None };
    apply::record_update(None, object, write.home.schema.as_deref(), &facts.manager(write));
    if let Some(status) = status {
        object.fields_mut().insert("status".to_owned(), status);
    }
    draft.warnings.extend(write.storage.admit(write.home, None, object)?);
    Ok(())
}

/// What a new object gets from the server.
fn give_birth<K: Storage>(write: &Write<'_, K>, object: &mut Object) {
    object.set_metadata("uid", Uuid::new_v4().to_string());
    object.set_metadata("creationTimestamp", timestamp(write));
    if counts_generations(&write.home.resource) {
        object.set_metadata("generation", 1);
    }
}

/// Whether changes of what is wanted are counted: nothing is wanted of an Event.
fn counts_generations(resource: &Resource) -> bool {
    !is_event(resource)
}

/// Works out what becomes of an object that is replaced, as a whole or in a part.
pub(super) fn update<K: Storage>(write: &Write<'_, K>, old: &Old, mut sent: Object) -> Result<Draft> {
    check_preconditions(write, old, &sent)?;
    let mut warnings = decode(write, &mut sent)?;
    add_defaults(write, &mut sent);
    let mut object = select_part(write, old, convert::stored(write.kind, sent));
    keep_given(&mut object, &old.object);
    rules::complete(&write.home.resource, Some(&old.object), &mut object);
    let schema = write.home.schema.as_deref();
    if let Some(schema) = schema {
        schema::keep_empty(schema, old.object.fields(), object.fields_mut());
    }
    check(write, Some(&old.object), &object)?;
    count_generation(&write.home.resource, &mut object, &old.object);
    let facts = Facts::of(write);
    apply::record_update(Some(&old.object), &mut object, schema, &facts.manager(write));
    warnings.extend(write.storage.admit(write.home, Some(&old.object), &mut object)?);
    let changed = object != old.object;
    Ok(Draft { object, prefix: String::new(), warnings, changed })
}

/// Works out what becomes of an object to which a configuration is applied by the server.
pub(super) fn apply<K: Storage>(
    write: &Write<'_, K>,
    old: Option<&Old>,
    mut applied: Object,
) -> Result<Draft> {
    if let Some(old) = old {
        check_preconditions(write, old, &applied)?;
    }
    strip_given(&mut applied);
    let mut warnings = decode(write, &mut applied)?;
    let mut applied = convert::stored(write.kind, applied);
    match write.part {
        Part::Status => {
            applied
                .fields_mut()
                .retain(|field, _| matches!(&**field, "apiVersion" | "kind" | "metadata" | "status"));
        }
        Part::Object if write.home.status_subresource => drop(applied.fields_mut().remove("status")),
        Part::Object => {}
    }
    let facts = Facts::of(write);
    let live = old.map(|old| &old.object);
    let schema = write.home.schema.as_deref();
    let force = write.options.force || live.is_some_and(|live| is_unrecorded(write.home, live));
    let mut object = apply::apply(live, &applied, schema, &facts.manager(write), force)?;
    if let (Part::Object, Some(old)) = (write.part, old) {
        // Whoever owns it by the record: a status that is a part of its own does not go with the rest.
        object = select_part(write, old, object);
    }
    if let Some(schema) = schema {
        schema::apply_defaults(schema, object.fields_mut());
    }
    match old {
        Some(old) => keep_given(&mut object, &old.object),
        None => give_birth(write, &mut object),
    }
    rules::complete(&write.home.resource, live, &mut object);
    if let (Some(schema), Some(live)) = (schema, live) {
        schema::keep_empty(schema, live.fields(), object.fields_mut());
    }
    check(write, live, &object)?;
    if let Some(old) = live {
        count_generation(&write.home.resource, &mut object, old);
    }
    warnings.extend(write.storage.admit(write.home, live, &mut object)?);
    let changed = match live {
        Some(live) => {
            apply::keep_times(live, &mut object);
            object != *live
        }
        None => true,
    };
    Ok(Draft { object, prefix: String::new(), warnings, changed })
}

/// Whether nobody knows who owns what of an object, because it came from elsewhere without the record: then nobody
/// stands in the way either.
fn is_unrecorded(kind: &Kind, live: &Object) -> bool {
    let recorded = live.metadata().is_some_and(|metadata| metadata.contains_key("managedFields"));
    kind.writable == Writable::Status && !recorded
}

/// A name that begins with a prefix: five characters without vowels, so that no words come out.
pub(super) fn generated_name(prefix: &str) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let end =
        prefix.char_indices().map(|(at, _)| at).chain([prefix.len()]).take_while(|at| *at <= MAX_PREFIX);
    let mut name = prefix.get(..end.last().unwrap_or_default()).unwrap_or_default().to_owned();
    let letters = Uuid::new_v4().into_bytes();
    let letter =
        |byte: &u8| LETTERS.get(usize::from(*byte) % LETTERS.len()).map(|letter| char::from(*letter));
    name.extend(letters.iter().take(5).filter_map(letter));
    name
}

/// Whether a PUT of an object that does not exist creates it, as clients of these kinds rely on.
pub(super) fn creates_on_update(resource: &Resource) -> bool {
    matches!(
        (&*resource.group, &*resource.kind),
        ("coordination.k8s.io", "Lease") | ("events.k8s.io", "Event") | ("", "Endpoints" | "LimitRange")
    )
}

/// Whether an object that is being deleted has nothing left that holds it.
pub(super) fn is_finished(object: &Object) -> bool {
    object.deletion_timestamp().is_some() && !object.is_held()
}

/// The time of the write as metadata has it: RFC 3339 in UTC with whole seconds.
pub(super) fn timestamp<K: Storage>(write: &Write<'_, K>) -> String {
    rfc3339(write.now)
}

/// The texts of a [`Manager`].
struct Facts {
    api_version: String,
    now: String,
}

impl Facts {
    fn of<K: Storage>(write: &Write<'_, K>) -> Self {
        Self { api_version: write.home.resource.api_version(), now: timestamp(write) }
    }

    fn manager<'a, K: Storage>(&'a self, write: &Write<'a, K>) -> Manager<'a> {
        Manager {
            name: write.manager,
            api_version: &self.api_version,
            subresource: if write.part == Part::Status { "status" } else { "" },
            now: &self.now,
        }
    }
}

/// Drops fields that the kind does not have, and refuses values of a wrong type. What was dropped, and what stands twice,
/// is refused or told as the client wants it; in a built-in kind a field that does not exist stands nowhere twice. An owner
/// that is named twice is told to everybody.
fn decode<K: Storage>(write: &Write<'_, K>, sent: &mut Object) -> Result<Vec<String>> {
    let resource = &write.kind.resource;
    let cannot = |why: String| {
        let (version, kind) = (resource.api_version(), &resource.kind);
        Status::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    };
    let mut unknown = Vec::new();
    if let Some(schema) = write.kind.schema.as_deref() {
        // First, since nothing under a name of a map of texts is an empty text, and no wrong type.
        unknown = schema::prune(schema, sent.fields_mut());
        if !write.kind.custom {
            let wrong = schema::wrong_types(schema, sent.fields());
            if !wrong.is_empty() {
                let wrong: Vec<String> = wrong.iter().take(MAX_UNKNOWN).map(ToString::to_string).collect();
                return Err(cannot(wrong.join(", ")));
            }
        }
    }
    let exists = |path: &str| write.kind.custom || !unknown.iter().any(|of| is_within(path, of));
    let mut odd = Vec::new();
    for path in write.twice {
        if exists(path) {
            odd.push(format!("duplicate field {path:?}"));
        }
    }
    for path in unknown.iter().take(MAX_UNKNOWN) {
        odd.push(format!("unknown field {path:?}"));
    }
    match write.options.field_validation {
        FieldValidation::Strict if !odd.is_empty() => {
            return Err(cannot(format!("strict decoding error: {}", odd.join(", "))));
        }
        FieldValidation::Ignore => odd.clear(),
        _ => {}
    }
    odd.extend(owners::name_once(sent));
    Ok(odd)
}

fn add_defaults<K: Storage>(write: &Write<'_, K>, object: &mut Object) {
    if let Some(schema) = write.kind.schema.as_deref() {
        schema::apply_defaults(schema, object.fields_mut());
    }
}

/// A version or UID in what was sent must be that of what is there.
fn check_preconditions<K: Storage>(write: &Write<'_, K>, old: &Old, sent: &Object) -> Result<()> {
    let resource = &write.kind.resource;
    if !sent.uid().is_empty() && sent.uid() != old.object.uid() {
        let why = format!(
            "Precondition failed: UID in precondition: {}, UID in object meta: {}",
            sent.uid(),
            old.object.uid()
        );
        return Err(Status::conflict(resource, old.object.name(), &why));
    }
    let version = sent.resource_version();
    if !version.is_empty() && version != old.object.resource_version() {
        return Err(Status::modified(resource, old.object.name()));
    }
    Ok(())
}

/// What was sent for the part that is written, and what is there for the rest.
fn select_part<K: Storage>(write: &Write<'_, K>, old: &Old, mut sent: Object) -> Object {
    let (mut object, status) = match write.part {
        Part::Object if !write.home.status_subresource => return sent,
        Part::Object => {
            sent.fields_mut().remove("status");
            (sent, old.object.fields().get("status").cloned())
        }
        Part::Status => {
            let status = sent.fields_mut().remove("status");
            let managed = sent.remove_metadata("managedFields");
            let mut object = old.object.clone();
            if let Some(managed) = managed {
                object.set_metadata("managedFields", managed);
            }
            for field in Part::metadata(write.home) {
                match sent.remove_metadata(field) {
                    Some(value) => object.set_metadata(field, value),
                    None => drop(object.remove_metadata(field)),
                }
            }
            (object, status)
        }
    };
    match status {
        Some(status) => drop(object.fields_mut().insert("status".to_owned(), status)),
        None => drop(object.fields_mut().remove("status")),
    }
    object
}

fn strip_given(object: &mut Object) {
    for field in SERVER_METADATA {
        object.remove_metadata(field);
    }
}

fn keep_given(object: &mut Object, old: &Object) {
    for field in SERVER_METADATA {
        match old.metadata().and_then(|metadata| metadata.get(field)) {
            Some(value) => object.set_metadata(field, value.clone()),
            None => drop(object.remove_metadata(field)),
        }
    }
}

/// Checks an object that is about to be stored: metadata, schema, rules of its kind.
fn check<K: Storage>(write: &Write<'_, K>, old: Option<&Object>, object: &Object) -> Result<()> {
    check_both(write.kind, write.home, write.part, old, object)
}

/// Checks an object in the form in which it is kept, and one of a custom kind in the version in which it was sent as well:
/// each version has rules of its own. An Event is checked in the form in which it was sent alone.
fn check_both(kind: &Kind, home: &Kind, part: Part, old: Option<&Object>, object: &Object) -> Result<()> {
    if kind.resource.group == home.resource.group {
        check_as(home, part, old, object)?;
        let done = !kind.custom || kind.resource.version == home.resource.version;
        if done {
            return Ok(());
        }
    }
    let shown =
        |object: &Object| convert::todays(kind, convert::served(kind, object.clone()), schema::MAX_DEFAULTS);
    check_as(kind, part, old.map(shown).as_ref(), &shown(object))
}

fn check_as(kind: &Kind, part: Part, old: Option<&Object>, object: &Object) -> Result<()> {
    let resource = &kind.resource;
    let mut causes = match object.validate(resource) {
        Ok(()) => Vec::new(),
        Err(problems) => causes(problems),
    };
    if let Some(schema) = kind.schema.as_deref() {
        causes.extend(schema::validate_change(schema, old.map(Object::fields), object.fields()));
    }
    // A status may be taken away: it is held against its own schema alone.
    let no_status = part == Part::Status && !object.fields().contains_key("status");
    causes.retain(|cause| part.is_about(&cause.field) && !(no_status && cause.field == "status"));
    if let Some(schema) = kind.schema.as_deref().filter(|schema| schema.ruled) {
        check_own_rules(kind, schema, old, object, &mut causes);
    }
    if causes.is_empty() {
        causes = match old {
            None => rules::check_create(resource, object),
            Some(old) => rules::check_update(resource, old, object),
        };
        causes.extend(old.and_then(|old| new_finalizers(old, object)));
        causes.retain(|cause| part.is_about(&cause.field));
    }
    if causes.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&resource.group, &resource.kind, object.name(), causes))
}

/// The rules that the schema of a custom kind has. They are about values of the right type alone, and whatever they are,
/// an object that is being deleted can go.
fn check_own_rules(
    kind: &Kind,
    schema: &schema::Schema,
    old: Option<&Object>,
    object: &Object,
    causes: &mut Vec<Cause>,
) {
    const BLOCKING: [&str; 5] = [
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    ];
    if causes.iter().any(|cause| BLOCKING.contains(&&*cause.reason)) {
        let message = "some validation rules were not checked because the object was invalid; correct the existing errors \
                       to complete validation";
        causes.push(Cause {
            reason: "FieldValueInvalid".to_owned(),
            message: format!("Invalid value: null: {message}"),
            field: "<nil>".to_owned(),
        });
        return;
    }
    // What is there, and the part of it that stays, may have been stored under another schema.
    let old = old.map(|old| convert::todays(kind, old.clone(), schema::MAX_DEFAULTS));
    let object = convert::todays(kind, object.clone(), schema::MAX_DEFAULTS);
    let goes = |old: &Object| old.deletion_timestamp().is_some() && said(old).eq(said(&object));
    if !old.as_ref().is_some_and(goes) {
        causes.extend(schema::check_rules(schema, old.map(Object::into_fields), object.into_fields()));
    }
}

/// Everything that an object says but its metadata.
fn said(object: &Object) -> impl Iterator<Item = (&String, &Value)> {
    object.fields().iter().filter(|(field, _)| !matches!(field.as_str(), "apiVersion" | "metadata"))
}

fn causes(problems: Problems) -> Vec<Cause> {
    let cause = |problem: edgesync_object::FieldProblem| Cause {
        reason: "FieldValueInvalid".to_owned(),
        message: format!("Invalid value: {}", problem.message),
        field: problem.field,
    };
    problems.0.into_iter().map(cause).collect()
}

/// An object that is being deleted takes no further finalizers.
fn new_finalizers(old: &Object, object: &Object) -> Option<Cause> {
    old.deletion_timestamp()?;
    let list = |object: &Object| -> Vec<Value> {
        let list = object.metadata().and_then(|metadata| metadata.get("finalizers"));
        list.and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let added = !rules::has_all(&list(old), &list(object));
    let message = "no new finalizers can be added if the object is being deleted";
    added.then(|| Cause::forbidden("metadata.finalizers", message))
}

/// Counts a change of what is desired: of everything but metadata and status.
fn count_generation(resource: &Resource, object: &mut Object, old: &Object) {
    if !counts_generations(resource) {
        return;
    }
    let changed = desired(object).ne(desired(old));
    object.set_metadata("generation", old.generation() + u64::from(changed));
}

fn desired(object: &Object) -> impl Iterator<Item = (&String, &Value)> {
    let described = |field: &&String| !matches!(field.as_str(), "apiVersion" | "metadata" | "status");
    object.fields().iter().filter(move |(field, _)| described(field))
}

/// Marks an object as being deleted. What is said of its dependents takes the place of what was said before.
pub(super) fn mark_deleted<K: Storage>(
    write: &Write<'_, K>,
    old: &Object,
    policy: Option<Propagation>,
) -> Object {
    let mut object = old.clone();
    if object.deletion_timestamp().is_none() {
        object.set_metadata("deletionTimestamp", timestamp(write));
        object.set_metadata("deletionGracePeriodSeconds", 0);
        if counts_generations(&write.home.resource) {
            object.set_metadata("generation", old.generation() + 1);
        }
    }
    if let Some(policy) = policy {
        let mut list = match object.remove_metadata("finalizers") {
            Some(Value::Array(list)) => list,
            _ => Vec::new(),
        };
        let waits = [Propagation::Foreground, Propagation::Orphan].map(Propagation::finalizer);
        list.retain(|held| held.as_str().is_none() || !waits.contains(&held.as_str()));
        list.extend(policy.finalizer().map(Value::from));
        if !list.is_empty() {
            object.set_metadata("finalizers", list);
        }
    }
    let resource = &write.home.resource;
    if resource.group.is_empty() && resource.kind == "Namespace" {
        let status = object.fields_mut().entry("status").or_insert_with(|| Value::Object(Map::new()));
        if let Some(status) = status.as_object_mut() {
            status.insert("phase".to_owned(), json!("Terminating"));
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_generated_name_begins_with_its_prefix_and_stays_a_label(prefix in "\\PC{0,80}") {
            let name = generated_name(&prefix);
            prop_assert!(name.len() <= 63);
            prop_assert!(prefix.starts_with(name.get(..name.len() - 5).unwrap()));
        }
    }

    #[allow(clippy::needless_pass_by_value, reason = "values are written where they are handed over")]
    mod custom {
        use std::sync::Arc;

        use super::*;
        use edgesync_object::Scope;

        /// A version of a kind with these fields.
        fn kind(version: &str, fields: Value) -> Kind {
            let mut kind = Kind::bare(Arc::new(Resource {
                group: "lab.io".to_owned(),
                version: version.to_owned(),
                kind: "Lab".to_owned(),
                plural: "labs".to_owned(),
                scope: Scope::Cluster,
            }));
            let schema = json!({"type": "object", "properties": fields});
            kind.schema = Some(Arc::new(schema::read(&schema, "schema").unwrap()));
            kind.custom = true;
            kind
        }

        fn object(metadata: Value, fields: Value) -> Object {
            let mut object = json!({"apiVersion": "lab.io/v1", "kind": "Lab", "metadata": {"name": "a"}});
            object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
            object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            serde_json::from_value(object).unwrap()
        }

        fn told(result: Result<()>) -> String {
            result.err().map(|status| status.to_string()).unwrap_or_default()
        }

        #[test]
        fn what_was_before_has_the_defaults_of_today_and_nothing_that_is_unknown() {
            let stays = json!([{"rule": "self == oldSelf", "message": "stays"}]);
            let class = json!({"type": "string", "default": "a", "x-kubernetes-validations": stays});
            let spec =
                json!({"type": "object", "x-kubernetes-validations": stays, "properties": {"class": class}});
            let kind = kind("v1", json!({"spec": spec, "status": {"type": "object"}}));
            let with = |spec: Value| object(json!({}), json!({"spec": spec}));
            // Stored when there was no class, but a shape.
            let old = with(json!({"shape": "round"}));
            let check = |part, new: &Object| told(check_both(&kind, &kind, part, Some(&old), new));
            assert_eq!(check(Part::Object, &with(json!({"class": "a"}))), "");
            let refused = check(Part::Object, &with(json!({"class": "b"})));
            assert!(refused.contains("spec.class: Invalid value: \"string\": stays"), "{refused}");
            // Who writes the status leaves the rest as it is stored.
            assert_eq!(check(Part::Status, &old), "");
        }

        #[test]
        fn what_is_sent_in_another_version_is_held_against_its_rules_as_well() {
            let size = |rule: &str, name: &str| {
                let limit = json!([{"rule": rule, "message": name}]);
                json!({"size": {"type": "integer", "x-kubernetes-validations": limit}})
            };
            let (home, other) = (kind("v1", size("self < 10", "v1")), kind("v2", size("self > 3", "v2")));
            let check = |kind: &Kind, size: u8| {
                let object = object(json!({}), json!({"size": size}));
                told(check_both(kind, &home, Part::Object, None, &object))
            };
            assert_eq!(check(&other, 5), "");
            assert_eq!(check(&home, 1), "");
            assert!(
                check(&other, 1).contains("size: Invalid value: \"integer\": v2"),
                "{}",
                check(&other, 1)
            );
            assert!(
                check(&other, 11).contains("size: Invalid value: \"integer\": v1"),
                "{}",
                check(&other, 11)
            );
        }

        #[test]
        fn what_a_status_must_have_is_asked_of_a_status_alone() {
            let status =
                json!({"type": "object", "required": ["phase"], "properties": {"phase": {"type": "string"}}});
            let spec =
                json!({"type": "object", "required": ["size"], "properties": {"size": {"type": "integer"}}});
            let with = |required: Value| {
                let schema = json!({"type": "object", "required": required,
                    "properties": {"spec": spec, "status": status}});
                let schema = Some(Arc::new(schema::read(&schema, "schema").unwrap()));
                Kind { schema, status_subresource: true, ..kind("v1", json!({})) }
            };
            let check = |kind: &Kind, part, old: Option<&Object>, new: Value| {
                told(check_both(kind, kind, part, old, &object(json!({}), new)))
            };
            // A status that comes with a new object is left out before.
            let (optional, must) = (with(json!([])), with(json!(["status"])));
            assert_eq!(check(&optional, Part::Object, None, json!({"spec": {"size": 1}})), "");
            let refused = check(&must, Part::Object, None, json!({"spec": {"size": 1}}));
            assert!(refused.contains("status: Required value"), "{refused}");
            // Who writes the status does not answer for the rest.
            let old = object(json!({}), json!({"spec": {}}));
            assert_eq!(
                check(&must, Part::Status, Some(&old), json!({"spec": {}, "status": {"phase": "x"}})),
                ""
            );
            assert_eq!(check(&must, Part::Status, Some(&old), json!({"spec": {}})), "");
            let refused = check(&optional, Part::Status, Some(&old), json!({"spec": {}, "status": {}}));
            assert!(
                refused.contains("status.phase: Required value") && !refused.contains("spec"),
                "{refused}"
            );
        }

        #[test]
        fn only_the_metadata_of_what_is_being_deleted_changes_without_rules() {
            let size = json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self < 10"}]});
            let status = json!({"type": "object", "properties": {"size": size}});
            let spec = json!({"type": "object", "x-kubernetes-validations": [{"rule": "false"}],
                "properties": {"name": {"type": "string", "default": "x"}}});
            let kind = kind("v1", json!({"spec": spec, "status": status}));
            let going = |finalizers: Value, spec: Value, size: u8| {
                let metadata = json!({"deletionTimestamp": "2024-01-01T00:00:00Z", "finalizers": finalizers});
                object(metadata, json!({"spec": spec, "status": {"size": size}}))
            };
            let old = going(json!(["lab.io/a"]), json!({}), 20);
            let check = |part, new: &Object| told(check_both(&kind, &kind, part, Some(&old), new));
            // Who sends back what was shown sends the default with it.
            assert_eq!(check(Part::Object, &going(json!([]), json!({"name": "x"}), 20)), "");
            assert!(check(Part::Object, &going(json!([]), json!({"name": "y"}), 20)).contains("spec: "));
            for part in [Part::Object, Part::Status] {
                let refused = check(part, &going(json!(["lab.io/a"]), json!({}), 21));
                assert!(refused.contains("status.size: "), "{refused}");
            }
        }
    }
}
