//! Defaults that depend on other fields, as in Kubernetes. Pure.

use serde_json::{Map, Value, json};

use super::{map, text};

type Fields = Map<String, Value>;

/// Default session affinity of a Service, in seconds.
const AFFINITY_SECONDS: u32 = 10_800;

/// Returns the object in a field, created if absent; `None` if it is something else.
pub(super) fn object_in<'a>(
    fields: &'a mut Map<String, Value>,
    name: &str,
) -> Option<&'a mut Map<String, Value>> {
    let value = fields.entry(name).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

/// Sets a field that is absent or an empty string.
pub(super) fn default(fields: &mut Map<String, Value>, name: &str, value: &str) {
    if matches!(fields.get(name), None | Some(Value::Null)) || fields.get(name).is_some_and(|v| v == "") {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Completes the Pod spec of any kind that has one.
pub(super) fn complete_pods(group: &str, kind: &str, fields: &mut Fields) {
    let path: &[&str] = match (group, kind) {
        ("", "Pod") => &["spec"],
        ("", "PodTemplate") => &["template", "spec"],
        ("", "ReplicationController")
        | ("apps", "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet")
        | ("batch", "Job") => &["spec", "template", "spec"],
        ("batch", "CronJob") => &["spec", "jobTemplate", "spec", "template", "spec"],
        _ => return,
    };
    let mut spec = fields;
    for name in path {
        let Some(Value::Object(inner)) = spec.get_mut(*name) else { return };
        spec = inner;
    }
    for name in ["containers", "initContainers", "ephemeralContainers"] {
        for container in objects(spec, name) {
            let image = text(container, "image").to_owned();
            if !image.is_empty() {
                default(container, "imagePullPolicy", pull_policy(&image));
            }
        }
    }
    // A negative grace period is read as the shortest one.
    if let Some(period) = spec.get_mut("terminationGracePeriodSeconds")
        && period.as_i64().is_some_and(|seconds| seconds < 0)
    {
        *period = 1.into();
    }
    for volume in objects(spec, "volumes") {
        if volume.keys().all(|name| name == "name") {
            volume.insert("emptyDir".to_owned(), json!({}));
        }
    }
}

/// An image without a tag, or with `latest`, may change.
fn pull_policy(image: &str) -> &'static str {
    let name = image.rsplit('/').next().unwrap_or_default();
    let mutable_tag = !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    if mutable_tag { "Always" } else { "IfNotPresent" }
}

/// Defaults requests of a new Pod to its limits, and sets its QoS class.
pub(super) fn complete_new_pod(pod: &mut Fields) {
    if let Some(Value::Object(spec)) = pod.get_mut("spec") {
        for name in ["containers", "initContainers"] {
            for container in objects(spec, name) {
                let Some(Value::Object(resources)) = container.get_mut("resources") else { continue };
                let limits = map(resources, "limits").clone();
                if limits.is_empty() {
                    continue;
                }
                let Some(requests) = object_in(resources, "requests") else { continue };
                for (name, limit) in limits {
                    requests.entry(name).or_insert(limit);
                }
            }
        }
    }
    let class = class_of(map(pod, "spec"));
    if let Some(status) = object_in(pod, "status") {
        default(status, "qosClass", class);
    }
}

/// Returns the QoS class, which decides on eviction under resource pressure.
fn class_of(spec: &Fields) -> &'static str {
    let containers = || {
        let lists =
            ["containers", "initContainers"].into_iter().filter_map(|name| spec.get(name)?.as_array());
        lists.flatten().filter_map(Value::as_object).map(|container| map(container, "resources"))
    };
    let has_resources = |resources: &Fields| {
        let names = ["limits", "requests"].into_iter().flat_map(|part| map(resources, part).keys());
        names.into_iter().any(|name| name == "cpu" || name == "memory")
    };
    let guaranteed = |resources: &Fields| {
        let (limits, requests) = (map(resources, "limits"), map(resources, "requests"));
        ["cpu", "memory"]
            .iter()
            .all(|name| limits.contains_key(*name) && limits.get(*name) == requests.get(*name))
    };
    if !containers().any(has_resources) {
        "BestEffort"
    } else if containers().all(guaranteed) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Defaults `targetPort` to the port, and the timeout of session affinity.
pub(super) fn complete_service(service: &mut Fields) {
    let Some(Value::Object(spec)) = service.get_mut("spec") else { return };
    for port in objects(spec, "ports") {
        if let (None, Some(number)) = (port.get("targetPort"), port.get("port").cloned()) {
            port.insert("targetPort".to_owned(), number);
        }
    }
    if text(spec, "sessionAffinity") == "ClientIP" {
        let config =
            object_in(spec, "sessionAffinityConfig").and_then(|config| object_in(config, "clientIP"));
        if let Some(config) = config {
            config.entry("timeoutSeconds").or_insert_with(|| AFFINITY_SECONDS.into());
        }
    } else {
        spec.remove("sessionAffinityConfig");
    }
}

/// Defaults the policy types: ingress, and egress if the policy has egress rules.
pub(super) fn complete_network_policy(policy: &mut Fields) {
    let Some(Value::Object(spec)) = policy.get_mut("spec") else { return };
    if !spec.contains_key("policyTypes") {
        let types: &[&str] = if spec.contains_key("egress") { &["Ingress", "Egress"] } else { &["Ingress"] };
        spec.insert("policyTypes".to_owned(), json!(types));
    }
}

/// Defaults a Job to one Pod and one completion.
pub(super) fn complete_job(job: &mut Fields) {
    let Some(Value::Object(spec)) = job.get_mut("spec") else { return };
    if !spec.contains_key("parallelism") {
        spec.entry("completions").or_insert_with(|| 1.into());
    }
    spec.entry("parallelism").or_insert_with(|| 1.into());
}

/// Defaults the selector and labels of a ReplicationController to those of its template.
pub(super) fn complete_controller(controller: &mut Fields) {
    let labels = map(map(map(map(controller, "spec"), "template"), "metadata"), "labels").clone();
    if labels.is_empty() {
        return;
    }
    for (part, field) in [("spec", "selector"), ("metadata", "labels")] {
        if let Some(Value::Object(part)) = controller.get_mut(part) {
            part.entry(field).or_insert_with(|| labels.clone().into());
        }
    }
}

/// Defaults the limits and requests of a container to its maximum and minimum.
pub(super) fn complete_limit_range(range: &mut Fields) {
    let Some(Value::Object(spec)) = range.get_mut("spec") else { return };
    for item in objects(spec, "limits").filter(|item| text(item, "type") == "Container") {
        for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
            let amounts = map(item, from).clone();
            if amounts.is_empty() {
                continue;
            }
            let Some(filled) = object_in(item, to) else { continue };
            for (name, amount) in amounts {
                filled.entry(name).or_insert(amount);
            }
        }
    }
}

/// Iterates over the items of a list that are objects.
fn objects<'a>(fields: &'a mut Fields, name: &str) -> impl Iterator<Item = &'a mut Fields> {
    fields.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}
