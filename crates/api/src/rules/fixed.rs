//! Immutable fields. Pure.

use serde_json::{Map, Value};

use super::causes::{Causes, Path};
use super::{items, map, record, text};
use edgesync_object::Resource;

/// The condition under which a field is immutable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Immutable {
    Always,
    /// Immutable once it has a value.
    OnceSet,
}
use Immutable::{Always, OnceSet};

/// Returns the immutable fields of a kind, as dotted paths.
fn fields_of(group: &str, kind: &str) -> &'static [(&'static str, Immutable)] {
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

/// Checks that immutable fields are unchanged.
pub(super) fn check(
    kind: &Resource,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    causes: &mut Causes,
) {
    for (path, immutable) in fields_of(&kind.group, &kind.kind) {
        let (before, after) = (at(old, path), at(new, path));
        if before != after && (*immutable == Always || before.is_some()) {
            causes.immutable(&Path::new(path), after);
        }
    }
    let (old_spec, new_spec) = (map(old, "spec"), map(new, "spec"));
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "ConfigMap" | "Secret") => check_sealed(old, new, causes),
        ("", "Namespace") => record::check_namespace_finalizer(old, new, causes),
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

/// Returns the value at a dotted path. Empty counts as absent, since clients write both.
fn at<'a>(fields: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut segments = path.split('.');
    let first = fields.get(segments.next()?)?;
    segments.try_fold(first, |value, step| value.get(step)).filter(|value| !is_empty(value))
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

/// Checks a ConfigMap or Secret with `immutable: true`. Values are not shown: they may be secret.
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

/// Mutable fields of a StatefulSet's spec; the selector is checked separately.
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

/// Checks that only `mutable` fields of the spec changed.
fn check_only(mutable: &[&str], old: &Map<String, Value>, new: &Map<String, Value>, causes: &mut Causes) {
    let mut names: Vec<&String> =
        old.keys().chain(new.keys()).filter(|name| !mutable.contains(&name.as_str())).collect();
    names.sort();
    names.dedup();
    for name in names {
        if at(old, name) != at(new, name) {
            causes.immutable(&Path::new("spec").field(name), new.get(name));
        }
    }
}

/// A claim may be bound, and may request more.
fn check_claim(old: &Map<String, Value>, new: &Map<String, Value>, causes: &mut Causes) {
    let unbound = text(old, "volumeName").is_empty();
    let mutable: &[&str] = if unbound {
        &["resources", "volumeAttributesClassName", "volumeName"]
    } else {
        &["resources", "volumeAttributesClassName"]
    };
    check_only(mutable, old, new, causes);
}

/// The template of a Job may change until it starts.
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

/// A Pod may change images, gain tolerations, get a shorter deadline, and be bound to a node.
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
    let mut mutable =
        vec!["containers", "initContainers", "tolerations", "schedulingGates", "activeDeadlineSeconds"];
    let period = old.get("terminationGracePeriodSeconds").and_then(Value::as_i64);
    if period.is_some_and(|seconds| seconds < 0) {
        // It is 1 by now.
        mutable.push("terminationGracePeriodSeconds");
    }
    if text(old, "nodeName").is_empty() {
        mutable.push("nodeName");
    }
    if !list(old, "schedulingGates").is_empty() {
        mutable.extend(["nodeSelector", "affinity"]);
    }
    check_only(&mutable, old, new, causes);
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
