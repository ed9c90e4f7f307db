//! Namespaces, Leases and ObjectSyncs. Pure.

use serde_json::{Map, Value};

use super::causes::{Causes, Path};
use super::{map, text};
use edgesync_object::Object;
use edgesync_object::name::check_label;
use edgesync_object::objectsync::split_sync_name;

pub(super) fn check_namespace(object: &Object, causes: &mut Causes) {
    causes.name(&Path::new("metadata.name"), object.name(), check_label(object.name()));
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
        && let Err(problem) = edgesync_object::name::check_label_key(strategy)
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
