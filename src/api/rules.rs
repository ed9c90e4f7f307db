//! What the API checks of an object beyond the schema of its kind, and what it fills in. Pure; depends on `object`.
//!
//! The order of a write: decode, default and prune by the schema, [`complete`], validate by the schema, then
//! [`check_create`] or [`check_update`]. Objects come in the version that the request names: an Event of the core
//! group is checked in that form. Fields of a wrong type are taken for absent, because the schema refuses them.
//!
//! An update that changes nothing but metadata and status is not held against the rules of its kind: what was
//! accepted once can always be labelled, finalized and deleted.

#[cfg(feature = "cloud")]
mod access;
#[cfg_attr(
    not(feature = "cloud"),
    allow(dead_code, reason = "the kinds that are written on the edge need less")
)]
mod causes;
#[cfg(feature = "cloud")]
mod complete;
#[cfg(feature = "cloud")]
mod config;
#[cfg(feature = "cloud")]
mod cron;
#[cfg(feature = "cloud")]
mod defaults;
mod event;
#[cfg(feature = "cloud")]
mod fixed;
#[cfg(feature = "cloud")]
mod network;
#[cfg(feature = "cloud")]
mod pod;
#[cfg_attr(
    not(feature = "cloud"),
    allow(dead_code, reason = "the kinds that are written on the edge need less")
)]
mod record;
#[cfg(feature = "cloud")]
mod service;
#[cfg(feature = "cloud")]
mod volume;
#[cfg(feature = "cloud")]
mod workload;

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::object::event::is_event;
use crate::object::status::Cause;
use crate::object::{Object, Resource};
use causes::Causes;
#[cfg(feature = "cloud")]
use causes::Path;

pub(super) use crate::object::event::{event_to_core, event_to_storage};
#[cfg(feature = "cloud")]
pub(super) use complete::complete;

/// On the edge only Leases and Events are written: nothing is to be filled in, and the rules of other kinds are
/// left out of the program.
#[cfg(not(feature = "cloud"))]
pub(super) fn complete(_: &Resource, _: Option<&Object>, _: &mut Object) {}

/// What is wrong with a new object; nothing if it may be created. At most 64 causes are given.
pub(super) fn check_create(kind: &Resource, object: &Object) -> Vec<Cause> {
    let mut causes = Causes::default();
    check(kind, object, &mut causes);
    if is_event(kind) {
        event::check(kind, object, event::Write::Create, &mut causes);
    }
    causes.into()
}

/// What is wrong with a changed object; nothing if it may replace the old one. At most 64 causes are given.
pub(super) fn check_update(kind: &Resource, old: &Object, new: &Object) -> Vec<Cause> {
    let mut causes = Causes::default();
    if same_content(old, new) {
        return Vec::new();
    }
    check(kind, new, &mut causes);
    if is_event(kind) {
        event::check(kind, new, event::Write::Update(old), &mut causes);
    }
    #[cfg(feature = "cloud")]
    fixed::check(kind, old.fields(), new.fields(), &mut causes);
    causes.into()
}

/// Whether two objects differ at most in metadata and status.
fn same_content(old: &Object, new: &Object) -> bool {
    fn content(object: &Object) -> impl Iterator<Item = (&String, &Value)> {
        object.fields().iter().filter(|(field, _)| !matches!(field.as_str(), "metadata" | "status"))
    }
    content(old).eq(content(new))
}

/// The rules of a kind that do not depend on what was before.
fn check(kind: &Resource, object: &Object, causes: &mut Causes) {
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("coordination.k8s.io", "Lease") => record::check_lease(map(object.fields(), "spec"), causes),
        #[cfg(feature = "cloud")]
        _ => check_in_cloud(kind, object, causes),
        #[cfg(not(feature = "cloud"))]
        _ => {}
    }
}

/// The rules of the kinds that are written in the cloud alone.
#[cfg(feature = "cloud")]
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

/// Whether all of some items are among others.
pub(super) fn has_all(whole: &[Value], part: &[Value]) -> bool {
    let text = |item: &Value| {
        super::steps::count(1);
        item.to_string()
    };
    let whole: HashSet<String> = whole.iter().map(text).collect();
    part.iter().all(|item| whole.contains(&text(item)))
}

/// A field that is an object; empty if it is absent or something else.
fn map<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a Map<String, Value> {
    static EMPTY: std::sync::OnceLock<Map<String, Value>> = std::sync::OnceLock::new();
    fields.get(name).and_then(Value::as_object).unwrap_or_else(|| EMPTY.get_or_init(Map::new))
}

/// A field that is a text; empty if it is absent or something else.
fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a str {
    fields.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The items of a list that are objects, with their numbers.
#[cfg(feature = "cloud")]
fn items<'a>(
    fields: &'a Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = (usize, &'a Map<String, Value>)> + use<'a> {
    let list = fields.get(name).and_then(Value::as_array).into_iter().flatten().enumerate();
    list.filter_map(|(number, item)| Some((number, item.as_object()?)))
}

/// How many items a list has; 0 if it is absent.
#[cfg(feature = "cloud")]
fn length(fields: &Map<String, Value>, name: &str) -> usize {
    fields.get(name).and_then(Value::as_array).map_or(0, Vec::len)
}

#[cfg(test)]
mod tests;
