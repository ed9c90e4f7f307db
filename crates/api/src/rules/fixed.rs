//! Fields that stay as they were when the object was created. Pure.

use serde_json::{Map, Value};

use super::causes::{Causes, Path};
use super::{items, map, text};
use edgesync_object::Resource;

/// When a field stays as it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// From when it has a value.
    OnceSet,
}
use When::{Always, OnceSet};

/// Fields of a kind, as dotted paths.
fn fields_of(group: &str, kind: &str) -> &'static [(&'static str, When)] {
    match (group, kind) {
        ("", "Secret") => &[("type", Always)],
        ("", "Node") => {
            &[("spec.podCIDR", OnceSet), ("spec.podCIDRs", OnceSet), ("spec.providerID", OnceSet)]
        }
        ("", "PersistentVolume") => &[("spec.volumeMode", Always), ("spec.nodeAffinity", OnceSet)],
        ("", "ResourceQuota") => &[("spec.scopes", Always), ("spec.scopeSelector", Always)],
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet") => &[("spec.selector", Always)],
        ("apps", "ControllerRevision") => &[("data", Always)],
        ("batch", "Job") => &[("spec.selector", OnceSet), ("spec.completionMode", Always)],
        ("discovery.k8s.io", "EndpointSlice") => &[("addressType", Always)],
        ("networking.k8s.io", "IngressClass") => &[("spec.controller", Always)],
        ("node.k8s.io", "RuntimeClass") => &[("handler", Always)],
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => &[("roleRef", Always)],
        ("scheduling.k8s.io", "PriorityClass") => &[("value", Always), ("preemptionPolicy", Always)],
        ("storage.k8s.io", "StorageClass") => &[
            ("provisioner", Always),
            ("parameters", Always),
            ("reclaimPolicy", Always),
            ("volumeBindingMode", Always),
        ],
        ("storage.k8s.io", "VolumeAttachment") => &[("spec", Always)],
        ("storage.k8s.io", "VolumeAttributesClass") => &[("driverName", Always), ("parameters", Always)],
        ("certificates.k8s.io", "CertificateSigningRequest") => &[("spec", Always)],
        _ => &[],
    }
}

/// Checks that what must stay is as it was.
pub(super) fn check(
    kind: &Resource,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    causes: &mut Causes,
) {
    for (path, when) in fields_of(&kind.group, &kind.kind) {
        let (before, after) = (at(old, path), at(new, path));
        if before != after && (*when == Always || before.is_some()) {
            causes.immutable(&Path::new(path), after);
        }
    }
    let (old_spec, new_spec) = (map(old, "spec"), map(new, "spec"));
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "ConfigMap" | "Secret") => check_sealed(old, new, causes),
        ("", "Service") => check_address(old_spec, new_spec, causes),
        ("", "Pod") => check_pod(old_spec, new_spec, causes),
        ("", "PersistentVolumeClaim") => check_claim(old_spec, new_spec, causes),
        ("", "PersistentVolume") => check_only(
            &[
                "capacity",
                "accessModes",
                "claimRef",
                "persistentVolumeReclaimPolicy",
                "storageClassName",
                "mountOptions",
                "volumeAttributesClassName",
                "volumeMode",
                "nodeAffinity",
            ],
            old_spec,
            new_spec,
            causes,
        ),
        ("apps", "StatefulSet") => check_only(STATEFUL, old_spec, new_spec, causes),
        ("batch", "Job") => check_job(old, new, causes),
        _ => {}
    }
}

/// The value under a dotted path. What is empty counts as absent, for clients write both.
fn at<'a>(fields: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut steps = path.split('.');
    let first = fields.get(steps.next()?)?;
    steps.try_fold(first, |value, step| value.get(step)).filter(|value| !is_empty(value))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn is_true(fields: &Map<String, Value>, name: &str) -> bool {
    fields.get(name).and_then(Value::as_bool).unwrap_or_default()
}

/// A ConfigMap or Secret with `immutable: true`. The values are not shown: they may be secret.
fn check_sealed(old: &Map<String, Value>, new: &Map<String, Value>, causes: &mut Causes) {
    if !is_true(old, "immutable") {
        return;
    }
    let message = "field is immutable when `immutable` is set";
    if !is_true(new, "immutable") {
        causes.forbidden(&Path::new("immutable"), message);
    }
    for field in ["data", "binaryData"] {
        if at(old, field) != at(new, field) {
            causes.forbidden(&Path::new(field), message);
        }
    }
}

fn check_address(old: &Map<String, Value>, new: &Map<String, Value>, causes: &mut Causes) {
    if [old, new].iter().any(|spec| text(spec, "type") == "ExternalName") {
        return;
    }
    let before = text(old, "clusterIP");
    if !before.is_empty() && before != text(new, "clusterIP") {
        causes.immutable(&Path::new("spec.clusterIP"), new.get("clusterIP"));
    }
}

/// Fields of a StatefulSet's spec that may change; the selector is checked on its own.
const STATEFUL: &[&str] = &[
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
    "selector",
];

/// Only some fields of the spec may change.
fn check_only(free: &[&str], old: &Map<String, Value>, new: &Map<String, Value>, causes: &mut Causes) {
    let mut names: Vec<&String> =
        old.keys().chain(new.keys()).filter(|name| !free.contains(&name.as_str())).collect();
    names.sort();
    names.dedup();
    for name in names {
        if at(old, name) != at(new, name) {
            causes.immutable(&Path::new("spec").field(name), new.get(name));
        }
    }
}

/// A claim gets its volume and may ask for more.
fn check_claim(old: &Map<String, Value>, new: &Map<String, Value>, causes: &mut Causes) {
    let unbound = text(old, "volumeName").is_empty();
    let free: &[&str] = if unbound {
        &["resources", "volumeAttributesClassName", "volumeName"]
    } else {
        &["resources", "volumeAttributesClassName"]
    };
    check_only(free, old, new, causes);
}

/// The template of a Job may change as long as it has not started.
fn check_job(old: &Map<String, Value>, new: &Map<String, Value>, causes: &mut Causes) {
    let (old_spec, new_spec) = (map(old, "spec"), map(new, "spec"));
    let started = !is_true(old_spec, "suspend") || !text(map(old, "status"), "startTime").is_empty();
    if started && at(old_spec, "template") != at(new_spec, "template") {
        causes.immutable(&Path::new("spec.template"), new_spec.get("template"));
    }
    let indexed = text(old_spec, "completionMode") == "Indexed";
    if !indexed && at(old_spec, "completions") != at(new_spec, "completions") {
        causes.immutable(&Path::new("spec.completions"), new_spec.get("completions"));
    }
}

/// Of a Pod, images may change, tolerations may be added, its life may be shortened, and it may get a node.
fn check_pod(old: &Map<String, Value>, new: &Map<String, Value>, causes: &mut Causes) {
    let spec = Path::new("spec");
    for field in ["containers", "initContainers"] {
        let same = || {
            let names = |spec| items(spec, field).map(|(_, c)| without_image(c)).collect::<Vec<_>>();
            names(old) == names(new)
        };
        if at(old, field) != at(new, field) && !same() {
            causes.forbidden(&spec.field(field), "only `image` may be changed");
        }
    }
    for (field, may) in [("tolerations", "be added to"), ("schedulingGates", "be taken from")] {
        let (before, after) = (list(old, field), list(new, field));
        let (part, whole) = if field == "tolerations" { (before, after) } else { (after, before) };
        if !super::has_all(whole, part) {
            causes.forbidden(&spec.field(field), &format!("may only {may}"));
        }
    }
    check_deadline(old, new, causes);
    let mut free =
        vec!["containers", "initContainers", "tolerations", "schedulingGates", "activeDeadlineSeconds"];
    free.push("terminationGracePeriodSeconds");
    if text(old, "nodeName").is_empty() {
        free.push("nodeName");
    }
    if !list(old, "schedulingGates").is_empty() {
        free.extend(["nodeSelector", "affinity"]);
    }
    check_only(&free, old, new, causes);
}

fn check_deadline(old: &Map<String, Value>, new: &Map<String, Value>, causes: &mut Causes) {
    let seconds = |spec: &Map<String, Value>| spec.get("activeDeadlineSeconds").and_then(Value::as_i64);
    let allowed = match (seconds(old), seconds(new)) {
        (None, _) => true,
        (Some(before), Some(after)) => after <= before,
        (Some(_), None) => false,
    };
    if !allowed {
        let message = "may only become less";
        causes.forbidden(&Path::new("spec.activeDeadlineSeconds"), message);
    }
}

fn without_image(container: &Map<String, Value>) -> Map<String, Value> {
    let mut container = container.clone();
    container.remove("image");
    container
}

fn list<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a [Value] {
    fields.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
