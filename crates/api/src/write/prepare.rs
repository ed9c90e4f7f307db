//! Computes the object to store from the request and the current object: server metadata, the
//! written part, defaults, rules, field ownership. Pure: no store, no waiting.

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

/// Maximum length of a prefix of a generated name: with five random characters it is still a DNS
/// label.
const MAX_PREFIX: usize = 58;
/// Maximum number of fields listed in one warning or refusal.
const MAX_UNKNOWN: usize = 16;

/// The part of an object that is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything but the status, where it is a subresource.
    #[default]
    Object,
    /// Only the status of the object.
    Status,
    /// As [`Part::Object`], and the finalizers in the spec of a Namespace.
    Finalizers,
}

impl Part {
    /// Returns whether a cause in a field counts for this part. A status write is not refused for
    /// other fields, which another version of the rules may have accepted.
    fn concerns(self, field: &str) -> bool {
        let parts = ["status", "metadata.labels", "metadata.annotations"];
        self != Self::Status || parts.into_iter().any(|part| is_within(field, part))
    }

    /// Returns the metadata written along with the status, as in Kubernetes: none for custom kinds,
    /// no labels for a Deployment.
    fn metadata(kind: &Kind) -> &'static [&'static str] {
        match &*kind.resource.kind {
            _ if kind.custom => &[],
            "Deployment" => &["annotations"],
            _ => &["annotations", "labels"],
        }
    }
}

/// Returns whether a field is `part` or within it, both as paths.
fn is_within(field: &str, part: &str) -> bool {
    let rest = field.strip_prefix(part);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// An object about to be stored, in its storage version.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) object: Object,
    /// Prefix of a generated name; empty if the object has a name.
    pub(super) prefix: String,
    pub(super) warnings: Vec<String>,
    /// Whether the object differs from the current one.
    pub(super) changed: bool,
}

/// Prepares a new object.
pub(super) fn create<K: Storage>(write: &Write<'_, K>, mut sent: Object) -> Result<Draft> {
    if !sent.resource_version().is_empty() {
        return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let prefix = match sent.metadata().and_then(|metadata| metadata.get("generateName")) {
        Some(Value::String(prefix)) if sent.name().is_empty() => prefix.clone(),
        _ => String::new(),
    };
    strip_server_metadata(&mut sent);
    if write.kind.status_subresource {
        sent.fields_mut().remove("status");
    }
    let warnings = decode(write, &mut sent)?;
    add_defaults(write, &mut sent);
    Ok(Draft { object: convert::stored(write.kind, sent), prefix, warnings, changed: true })
}

/// Completes and validates a new object once it has a name.
pub(super) fn finish_create<K: Storage>(write: &Write<'_, K>, draft: &mut Draft) -> Result<()> {
    let object = &mut draft.object;
    set_server_metadata(write, object);
    rules::complete(&write.stored_kind.resource, None, object);
    check(write, None, object)?;
    let manager_texts = ManagerTexts::of(write);
    // A status subresource is set by the server here: the creator does not own it.
    let status =
        if write.stored_kind.status_subresource { object.fields_mut().remove("status") } else { None };
    apply::record_update(None, object, write.stored_kind.schema.as_deref(), &manager_texts.manager(write));
    if let Some(status) = status {
        object.fields_mut().insert("status".to_owned(), status);
    }
    draft.warnings.extend(write.storage.admit(write.stored_kind, None, object)?);
    Ok(())
}

/// Sets the server metadata of a new object.
fn set_server_metadata<K: Storage>(write: &Write<'_, K>, object: &mut Object) {
    object.set_metadata("uid", Uuid::new_v4().to_string());
    object.set_metadata("creationTimestamp", timestamp(write));
    if counts_generations(&write.stored_kind.resource) {
        object.set_metadata("generation", 1);
    }
}

/// Returns whether the kind counts generations; Events have no desired state.
fn counts_generations(resource: &Resource) -> bool {
    !is_event(resource)
}

/// Prepares the replacement of an object, whole or in part.
pub(super) fn update<K: Storage>(write: &Write<'_, K>, old: &Old, mut sent: Object) -> Result<Draft> {
    check_preconditions(write, old, &sent)?;
    let mut warnings = decode(write, &mut sent)?;
    add_defaults(write, &mut sent);
    let mut object = select_part(write, old, convert::stored(write.kind, sent));
    keep_server_metadata(&mut object, &old.object);
    let resource = &write.stored_kind.resource;
    match write.part {
        Part::Finalizers => {
            let finalizers = rules::namespace_finalizers(&object);
            rules::complete(resource, Some(&old.object), &mut object);
            rules::set_namespace_finalizers(&mut object, finalizers);
        }
        Part::Object | Part::Status => rules::complete(resource, Some(&old.object), &mut object),
    }
    let schema = write.stored_kind.schema.as_deref();
    if let Some(schema) = schema {
        schema::keep_empty(schema, old.object.fields(), object.fields_mut());
    }
    check(write, Some(&old.object), &object)?;
    count_generation(&write.stored_kind.resource, &mut object, &old.object);
    let manager_texts = ManagerTexts::of(write);
    apply::record_update(Some(&old.object), &mut object, schema, &manager_texts.manager(write));
    warnings.extend(write.storage.admit(write.stored_kind, Some(&old.object), &mut object)?);
    let changed = object != old.object;
    Ok(Draft { object, prefix: String::new(), warnings, changed })
}

/// Prepares a server-side apply.
pub(super) fn apply<K: Storage>(
    write: &Write<'_, K>,
    old: Option<&Old>,
    mut applied: Object,
) -> Result<Draft> {
    if let Some(old) = old {
        check_preconditions(write, old, &applied)?;
    }
    strip_server_metadata(&mut applied);
    let mut warnings = decode(write, &mut applied)?;
    let mut applied = convert::stored(write.kind, applied);
    match write.part {
        Part::Status => {
            applied
                .fields_mut()
                .retain(|field, _| matches!(&**field, "apiVersion" | "kind" | "metadata" | "status"));
        }
        Part::Object | Part::Finalizers if write.stored_kind.status_subresource => {
            applied.fields_mut().remove("status");
        }
        Part::Object | Part::Finalizers => {}
    }
    let manager_texts = ManagerTexts::of(write);
    let live = old.map(|old| &old.object);
    let schema = write.stored_kind.schema.as_deref();
    let force = write.options.force || live.is_some_and(|live| is_unrecorded(write.stored_kind, live));
    let mut object = apply::apply(live, &applied, schema, &manager_texts.manager(write), force)?;
    if let (Part::Object, Some(old)) = (write.part, old) {
        // Independent of the record of ownership: a status subresource is not applied with the
        // object.
        object = select_part(write, old, object);
    }
    if let Some(schema) = schema {
        schema::apply_defaults(schema, object.fields_mut());
    }
    match old {
        Some(old) => keep_server_metadata(&mut object, &old.object),
        None => set_server_metadata(write, &mut object),
    }
    rules::complete(&write.stored_kind.resource, live, &mut object);
    if let (Some(schema), Some(live)) = (schema, live) {
        schema::keep_empty(schema, live.fields(), object.fields_mut());
    }
    check(write, live, &object)?;
    if let Some(old) = live {
        count_generation(&write.stored_kind.resource, &mut object, old);
    }
    warnings.extend(write.storage.admit(write.stored_kind, live, &mut object)?);
    let changed = match live {
        Some(live) => {
            apply::keep_times(live, &mut object);
            object != *live
        }
        None => true,
    };
    Ok(Draft { object, prefix: String::new(), warnings, changed })
}

/// Returns whether an object came from another source without a record of ownership: then nothing
/// conflicts.
fn is_unrecorded(kind: &Kind, live: &Object) -> bool {
    let recorded = live.metadata().is_some_and(|metadata| metadata.contains_key("managedFields"));
    kind.writable == Writable::Status && !recorded
}

/// Generates a name: the prefix and five characters without vowels, to avoid words.
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

/// Returns whether a PUT creates a missing object, as clients of these kinds expect.
pub(super) fn creates_on_update(resource: &Resource) -> bool {
    matches!(
        (&*resource.group, &*resource.kind),
        ("coordination.k8s.io", "Lease") | ("events.k8s.io", "Event") | ("", "Endpoints" | "LimitRange")
    )
}

/// Returns whether an object being deleted has no finalizers left.
pub(super) fn is_finished(object: &Object) -> bool {
    object.deletion_timestamp().is_some() && !object.is_held()
}

/// Formats the time of the write as metadata: RFC 3339 in UTC, whole seconds.
pub(super) fn timestamp<K: Storage>(write: &Write<'_, K>) -> String {
    rfc3339(write.now)
}

/// Owned texts of a [`Manager`].
struct ManagerTexts {
    api_version: String,
    now: String,
}

impl ManagerTexts {
    fn of<K: Storage>(write: &Write<'_, K>) -> Self {
        Self { api_version: write.stored_kind.resource.api_version(), now: timestamp(write) }
    }

    fn manager<'a, K: Storage>(&'a self, write: &Write<'a, K>) -> Manager<'a> {
        Manager {
            name: write.manager,
            api_version: &self.api_version,
            subresource: match write.part {
                Part::Object => "",
                Part::Status => "status",
                Part::Finalizers => "finalize",
            },
            now: &self.now,
        }
    }
}

/// Drops unknown fields and refuses values of a wrong type. Dropped and duplicate fields are
/// refused or returned as warnings, by the client's field validation; a duplicate inside an unknown
/// field of a built-in kind is not reported. Duplicate owners are always a warning.
fn decode<K: Storage>(write: &Write<'_, K>, sent: &mut Object) -> Result<Vec<String>> {
    let resource = &write.kind.resource;
    let cannot = |why: String| {
        let (version, kind) = (resource.api_version(), &resource.kind);
        Status::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    };
    let mut unknown = Vec::new();
    if let Some(schema) = write.kind.schema.as_deref() {
        // Pruning first: it turns null in a map of strings into an empty string, which has the
        // right type.
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
    let mut warnings = Vec::new();
    for path in write.duplicate_fields {
        if exists(path) {
            warnings.push(format!("duplicate field {path:?}"));
        }
    }
    for path in unknown.iter().take(MAX_UNKNOWN) {
        warnings.push(format!("unknown field {path:?}"));
    }
    match write.options.field_validation {
        FieldValidation::Strict if !warnings.is_empty() => {
            return Err(cannot(format!("strict decoding error: {}", warnings.join(", "))));
        }
        FieldValidation::Ignore => warnings.clear(),
        _ => {}
    }
    warnings.extend(owners::remove_duplicates(sent));
    Ok(warnings)
}

fn add_defaults<K: Storage>(write: &Write<'_, K>, object: &mut Object) {
    if let Some(schema) = write.kind.schema.as_deref() {
        schema::apply_defaults(schema, object.fields_mut());
    }
}

/// Checks that a version or UID in the request is the current one.
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

/// Combines the written part of the request with the rest of the current object.
fn select_part<K: Storage>(write: &Write<'_, K>, old: &Old, mut sent: Object) -> Object {
    let (mut object, status) = match write.part {
        Part::Object | Part::Finalizers if !write.stored_kind.status_subresource => return sent,
        Part::Object | Part::Finalizers => {
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
            for field in Part::metadata(write.stored_kind) {
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

fn strip_server_metadata(object: &mut Object) {
    for field in SERVER_METADATA {
        object.remove_metadata(field);
    }
}

fn keep_server_metadata(object: &mut Object, old: &Object) {
    for field in SERVER_METADATA {
        match old.metadata().and_then(|metadata| metadata.get(field)) {
            Some(value) => object.set_metadata(field, value.clone()),
            None => drop(object.remove_metadata(field)),
        }
    }
}

/// Validates an object about to be stored: metadata, schema, rules of its kind.
fn check<K: Storage>(write: &Write<'_, K>, old: Option<&Object>, object: &Object) -> Result<()> {
    check_both(write.kind, write.stored_kind, write.part, old, object)
}

/// Validates an object in its storage version, and a custom one also in the version of the request:
/// each version has its own rules. An Event is validated in the version of the request only.
fn check_both(
    kind: &Kind,
    stored_kind: &Kind,
    part: Part,
    old: Option<&Object>,
    object: &Object,
) -> Result<()> {
    if kind.resource.group == stored_kind.resource.group {
        check_as(stored_kind, part, old, object)?;
        let done = !kind.custom || kind.resource.version == stored_kind.resource.version;
        if done {
            return Ok(());
        }
    }
    let converted = |object: &Object| {
        convert::to_current_schema(kind, convert::served(kind, object.clone()), schema::MAX_DEFAULTS)
    };
    check_as(kind, part, old.map(converted).as_ref(), &converted(object))
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
    // A removed status is validated against its own schema only.
    let no_status = part == Part::Status && !object.fields().contains_key("status");
    causes.retain(|cause| part.concerns(&cause.field) && !(no_status && cause.field == "status"));
    if let Some(schema) = kind.schema.as_deref().filter(|schema| schema.ruled) {
        check_own_rules(kind, schema, old, object, &mut causes);
    }
    if causes.is_empty() {
        causes = match old {
            None => rules::check_create(resource, object),
            Some(old) => rules::check_update(resource, old, object),
        };
        causes.extend(old.and_then(|old| check_finalizers(old, object)));
        causes.retain(|cause| part.concerns(&cause.field));
    }
    if causes.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&resource.group, &resource.kind, object.name(), causes))
}

/// Checks the validation rules of a custom kind's schema. They apply to values of the right type
/// only, and never block the deletion of an object.
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
    // Both may have been stored under another schema in part.
    let old = old.map(|old| convert::to_current_schema(kind, old.clone(), schema::MAX_DEFAULTS));
    let object = convert::to_current_schema(kind, object.clone(), schema::MAX_DEFAULTS);
    let is_finishing = |old: &Object| old.deletion_timestamp().is_some() && content(old).eq(content(&object));
    if !old.as_ref().is_some_and(is_finishing) {
        causes.extend(schema::check_rules(schema, old.map(Object::into_fields), object.into_fields()));
    }
}

/// Returns all fields but the metadata.
fn content(object: &Object) -> impl Iterator<Item = (&String, &Value)> {
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

/// Refuses new finalizers on an object being deleted.
fn check_finalizers(old: &Object, object: &Object) -> Option<Cause> {
    old.deletion_timestamp()?;
    let list = |object: &Object| -> Vec<Value> {
        let list = object.metadata().and_then(|metadata| metadata.get("finalizers"));
        list.and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let added = !rules::has_all(&list(old), &list(object));
    let message = "no new finalizers can be added if the object is being deleted";
    added.then(|| Cause::forbidden("metadata.finalizers", message))
}

/// Increments the generation if the desired state changed: anything but metadata and status.
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

/// Marks an object as being deleted. A propagation policy replaces an earlier one.
pub(super) fn mark_deleted<K: Storage>(
    write: &Write<'_, K>,
    old: &Object,
    policy: Option<Propagation>,
) -> Object {
    let mut object = old.clone();
    if object.deletion_timestamp().is_none() {
        object.set_metadata("deletionTimestamp", timestamp(write));
        object.set_metadata("deletionGracePeriodSeconds", 0);
        if counts_generations(&write.stored_kind.resource) {
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
    let resource = &write.stored_kind.resource;
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
        fn generated_name_has_its_prefix_and_is_a_label(prefix in "\\PC{0,80}") {
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
            let mut kind = Kind::without_schema(Arc::new(Resource {
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

        fn causes_of(result: Result<()>) -> String {
            result.err().map(|status| status.to_string()).unwrap_or_default()
        }

        #[test]
        fn old_object_is_compared_by_the_current_schema() {
            let stays = json!([{"rule": "self == oldSelf", "message": "stays"}]);
            let class = json!({"type": "string", "default": "a", "x-kubernetes-validations": stays});
            let spec =
                json!({"type": "object", "x-kubernetes-validations": stays, "properties": {"class": class}});
            let kind = kind("v1", json!({"spec": spec, "status": {"type": "object"}}));
            let with = |spec: Value| object(json!({}), json!({"spec": spec}));
            // Stored when the schema had no class but a shape.
            let old = with(json!({"shape": "round"}));
            let check = |part, new: &Object| causes_of(check_both(&kind, &kind, part, Some(&old), new));
            assert_eq!(check(Part::Object, &with(json!({"class": "a"}))), "");
            let refused = check(Part::Object, &with(json!({"class": "b"})));
            assert!(refused.contains("spec.class: Invalid value: \"string\": stays"), "{refused}");
            // A status write leaves the rest as stored.
            assert_eq!(check(Part::Status, &old), "");
        }

        #[test]
        fn object_is_checked_by_the_rules_of_its_sent_version() {
            let size = |rule: &str, name: &str| {
                let limit = json!([{"rule": rule, "message": name}]);
                json!({"size": {"type": "integer", "x-kubernetes-validations": limit}})
            };
            let (stored_kind, other) =
                (kind("v1", size("self < 10", "v1")), kind("v2", size("self > 3", "v2")));
            let check = |kind: &Kind, size: u8| {
                let object = object(json!({}), json!({"size": size}));
                causes_of(check_both(kind, &stored_kind, Part::Object, None, &object))
            };
            assert_eq!(check(&other, 5), "");
            assert_eq!(check(&stored_kind, 1), "");
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
        fn required_status_fields_apply_to_status_writes_only() {
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
                causes_of(check_both(kind, kind, part, old, &object(json!({}), new)))
            };
            // A status sent with a new object is dropped before.
            let (optional, must) = (with(json!([])), with(json!(["status"])));
            assert_eq!(check(&optional, Part::Object, None, json!({"spec": {"size": 1}})), "");
            let refused = check(&must, Part::Object, None, json!({"spec": {"size": 1}}));
            assert!(refused.contains("status: Required value"), "{refused}");
            // A status write is not checked for the rest.
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
        fn rules_are_skipped_only_for_metadata_during_deletion() {
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
            let check = |part, new: &Object| causes_of(check_both(&kind, &kind, part, Some(&old), new));
            // A client that sends back the object it read sends the default with it.
            assert_eq!(check(Part::Object, &going(json!([]), json!({"name": "x"}), 20)), "");
            assert!(check(Part::Object, &going(json!([]), json!({"name": "y"}), 20)).contains("spec: "));
            for part in [Part::Object, Part::Status] {
                let refused = check(part, &going(json!(["lab.io/a"]), json!({}), 21));
                assert!(refused.contains("status.size: "), "{refused}");
            }
        }
    }
}
