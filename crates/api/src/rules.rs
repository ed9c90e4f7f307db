//! Validation and defaults of built-in kinds beyond their schema. Pure; depends on `object`.
//!
//! Order of a write: decode, default and prune by the schema, [`complete`], validate by the schema,
//! then [`check_create`] or [`check_update`]. Objects are checked in the version of the request: a
//! core-group Event in that form. Fields of a wrong type count as absent; the schema refuses them.
//!
//! An update of metadata and status only is not checked against the rules of the kind: an object
//! accepted once can always be labelled, finalized and deleted.

mod access;
mod causes;
mod complete;
mod config;
mod cron;
mod defaults;
mod event;
mod fixed;
mod network;
mod pod;
mod record;
mod service;
mod volume;
mod workload;

use std::collections::HashSet;

use serde_json::{Map, Value};

use causes::Causes;
use causes::Path;
use edgesync_object::event::is_event;
use edgesync_object::status::Cause;
use edgesync_object::{Object, Resource, map_field as map, text_field as text};

pub(super) use complete::{complete, namespace_finalizers, set_namespace_finalizers};
pub(super) use edgesync_object::event::{event_to_core, event_to_storage};

/// Checks a new object; returns at most 64 causes, none if it may be created.
pub(super) fn check_create(kind: &Resource, object: &Object) -> Vec<Cause> {
    let mut causes = Causes::default();
    check(kind, object, &mut causes);
    if is_event(kind) {
        event::check(kind, object, event::Write::Create, &mut causes);
    }
    causes.into()
}

/// Checks a changed object; returns at most 64 causes, none if it may replace the old one.
pub(super) fn check_update(kind: &Resource, old: &Object, new: &Object) -> Vec<Cause> {
    let mut causes = Causes::default();
    if same_content(old, new) {
        return Vec::new();
    }
    check(kind, new, &mut causes);
    if is_event(kind) {
        event::check(kind, new, event::Write::Update(old), &mut causes);
    }
    fixed::check(kind, old.fields(), new.fields(), &mut causes);
    causes.into()
}

/// Returns whether two objects differ at most in metadata and status.
fn same_content(old: &Object, new: &Object) -> bool {
    fn content(object: &Object) -> impl Iterator<Item = (&String, &Value)> {
        object.fields().iter().filter(|(field, _)| !matches!(field.as_str(), "metadata" | "status"))
    }
    content(old).eq(content(new))
}

/// Applies the rules of a kind that do not depend on the old object.
fn check(kind: &Resource, object: &Object, causes: &mut Causes) {
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("coordination.k8s.io", "Lease") => record::check_lease(map(object.fields(), "spec"), causes),
        _ => check_in_cloud(kind, object, causes),
    }
}

/// Applies the rules of kinds that are writable in the cloud only.
fn check_in_cloud(kind: &Resource, object: &Object, causes: &mut Causes) {
    let fields = object.fields();
    let spec = map(fields, "spec");
    let at = Path::new("spec");
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "ConfigMap") => config::check_config_map(fields, causes),
        ("", "Secret") => config::check_secret(object, causes),
        ("", "Namespace") => record::check_namespace(object, causes),
        ("", "Service") => service::check(object, causes),
        ("", "Pod") => pod::check(spec, &at, pod::ANY_RESTART, causes),
        ("", "PodTemplate") => {
            pod::check_template(map(fields, "template"), &Path::new("template"), pod::ANY_RESTART, causes);
        }
        ("", "ReplicationController") => workload::check_controller(spec, causes),
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet") => workload::check(spec, causes),
        ("networking.k8s.io", "NetworkPolicy") => network::check_policy(spec, causes),
        ("batch", "Job") => workload::check_job(spec, &at, causes),
        ("batch", "CronJob") => workload::check_cron_job(object, causes),
        ("autoscaling", "HorizontalPodAutoscaler") => workload::check_autoscaler(spec, causes),
        ("policy", "PodDisruptionBudget") => workload::check_budget(spec, causes),
        ("reliablesyncs.kubeedge.io", "ObjectSync" | "ClusterObjectSync") => {
            record::check_sync(object, causes);
        }
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => access::check_role(kind, fields, causes),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            access::check_binding(kind, fields, causes);
        }
        _ => {}
    }
}

/// Returns whether `whole` contains all items of `part`.
pub(super) fn has_all(whole: &[Value], part: &[Value]) -> bool {
    let text = |item: &Value| {
        super::cost_meter::count(1);
        item.to_string()
    };
    let whole: HashSet<String> = whole.iter().map(text).collect();
    part.iter().all(|item| whole.contains(&text(item)))
}

/// Iterates over the items of a list that are objects, with their indices.
fn items<'a>(
    fields: &'a Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = (usize, &'a Map<String, Value>)> + use<'a> {
    let list = fields.get(name).and_then(Value::as_array).into_iter().flatten().enumerate();
    list.filter_map(|(number, item)| Some((number, item.as_object()?)))
}

/// Returns the length of a list; 0 if it is absent.
fn length(fields: &Map<String, Value>, name: &str) -> usize {
    fields.get(name).and_then(Value::as_array).map_or(0, Vec::len)
}

#[cfg(test)]
mod tests;
