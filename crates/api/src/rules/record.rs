//! Namespaces, Leases and ObjectSyncs. Pure.

use serde_json::{Map, Value};

use super::causes::{Causes, Path};
use super::{map, text};
use edgesync_object::Object;
use edgesync_object::name::{check_label, check_label_key};
use edgesync_object::objectsync::split_sync_name;

/// Finalizer of a Namespace that the server removes once it is empty.
pub(super) const NAMESPACE_FINALIZER: &str = "kubernetes";
/// Names of finalizers without a domain.
const STANDARD_FINALIZERS: [&str; 3] = [NAMESPACE_FINALIZER, "orphan", "foregroundDeletion"];

pub(super) fn check_namespace(object: &Object, causes: &mut Causes) {
    causes.name(&Path::new("metadata.name"), object.name(), check_label(object.name()));
    for (number, finalizer) in finalizers(object.fields()).iter().enumerate() {
        let (at, name) = (finalizer_path(number), finalizer.as_str().unwrap_or_default());
        if !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
            causes.invalid(&at, name, "must be a name with a domain, such as 'example.com/name'");
        } else {
            causes.name(&at, name, check_label_key(name));
        }
    }
}

/// Checks that a Namespace keeps the finalizer of the server until it is being deleted: without it
/// a deletion would not wait for its contents.
pub(super) fn check_namespace_finalizer(
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    causes: &mut Causes,
) {
    let holds = |fields| finalizers(fields).iter().any(|name| name == NAMESPACE_FINALIZER);
    let terminates = map(old, "metadata").contains_key("deletionTimestamp");
    if holds(old) && !holds(new) && !terminates {
        let message = format!("must contain '{NAMESPACE_FINALIZER}' until the namespace is deleted");
        causes.forbidden(&Path::new("spec").field("finalizers"), &message);
    }
}

fn finalizers(namespace: &Map<String, Value>) -> &[Value] {
    map(namespace, "spec").get("finalizers").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn finalizer_path(number: usize) -> Path {
    Path::new("spec").item("finalizers", number)
}

pub(super) fn check_lease(spec: &Map<String, Value>, causes: &mut Causes) {
    let at = Path::new("spec");
    if let Some(seconds) = spec.get("leaseDurationSeconds").and_then(Value::as_i64)
        && seconds <= 0
    {
        causes.invalid(&at.field("leaseDurationSeconds"), &seconds.to_string(), "must be greater than 0");
    }
    causes.not_negative(&at, spec, "leaseTransitions");
    let strategy = text(spec, "strategy");
    if !text(spec, "preferredHolder").is_empty() && strategy.is_empty() {
        causes.required(&at.field("strategy"), "must be there when `preferredHolder` is");
    }
    if !strategy.is_empty()
        && let Err(problem) = check_label_key(strategy)
    {
        causes.invalid(&at.field("strategy"), strategy, &problem);
    }
}

pub(super) fn check_sync(object: &Object, causes: &mut Causes) {
    if split_sync_name(object.name()).is_none() {
        let must = "must be '<node>.<uid>': the name of the node, a dot, and the uid of the object";
        causes.invalid(&Path::new("metadata.name"), object.name(), must);
    }
    let spec = map(object.fields(), "spec");
    for field in ["objectAPIVersion", "objectKind", "objectName"] {
        if text(spec, field).is_empty() {
            causes.required(&Path::new("spec").field(field), "must name the object that the record is about");
        }
    }
}
