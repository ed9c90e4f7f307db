//! Defaults that depend on other fields, as Kubernetes' own kinds have them. Pure.

use serde_json::{Map, Value, json};

use super::{map, text};

type Fields = Map<String, Value>;

/// Seconds for which a Service remembers a client.
const AFFINITY_SECONDS: u32 = 10_800;

/// The object in a field, which is made if it is absent; `None` if it is something else.
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

/// Sets a field that is absent or an empty text.
pub(super) fn default(fields: &mut Map<String, Value>, name: &str, value: &str) {
    if matches!(fields.get(name), None | Some(Value::Null)) || fields.get(name).is_some_and(|v| v == "") {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Fills in the spec of Pods, wherever a kind has one.
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
    for volume in objects(spec, "volumes") {
        if volume.keys().all(|name| name == "name") {
            volume.insert("emptyDir".to_owned(), json!({}));
        }
    }
}

/// An image without a tag, or with `latest`, may become another one.
fn pull_policy(image: &str) -> &'static str {
    let name = image.rsplit('/').next().unwrap_or_default();
    let moving = !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    if moving { "Always" } else { "IfNotPresent" }
}

/// A new Pod asks for what it is limited to, and has its class.
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

/// The class by which a Pod is kept or thrown out when a node runs short.
fn class_of(spec: &Fields) -> &'static str {
    let containers = || {
        let lists =
            ["containers", "initContainers"].into_iter().filter_map(|name| spec.get(name)?.as_array());
        lists.flatten().filter_map(Value::as_object).map(|container| map(container, "resources"))
    };
    let asks = |resources: &Fields| {
        let names = ["limits", "requests"].into_iter().flat_map(|part| map(resources, part).keys());
        names.into_iter().any(|name| name == "cpu" || name == "memory")
    };
    let guaranteed = |resources: &Fields| {
        let (limits, requests) = (map(resources, "limits"), map(resources, "requests"));
        ["cpu", "memory"]
            .iter()
            .all(|name| limits.contains_key(*name) && limits.get(*name) == requests.get(*name))
    };
    if !containers().any(asks) {
        "BestEffort"
    } else if containers().all(guaranteed) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// A port of a Service leads to the same port of the Pods; who remembers clients does so for some hours.
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

/// A policy is about what comes in, and about what goes out if it says something of that.
pub(super) fn complete_network_policy(policy: &mut Fields) {
    let Some(Value::Object(spec)) = policy.get_mut("spec") else { return };
    if !spec.contains_key("policyTypes") {
        let types: &[&str] = if spec.contains_key("egress") { &["Ingress", "Egress"] } else { &["Ingress"] };
        spec.insert("policyTypes".to_owned(), json!(types));
    }
}

/// A Job that says nothing of it runs one Pod once.
pub(super) fn complete_job(job: &mut Fields) {
    let Some(Value::Object(spec)) = job.get_mut("spec") else { return };
    if !spec.contains_key("parallelism") {
        spec.entry("completions").or_insert_with(|| 1.into());
    }
    spec.entry("parallelism").or_insert_with(|| 1.into());
}

/// A ReplicationController selects the Pods that it makes, and has their labels.
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

/// What a container may have at most is what it has if it says nothing.
pub(super) fn complete_limit_range(range: &mut Fields) {
    let Some(Value::Object(spec)) = range.get_mut("spec") else { return };
    for item in objects(spec, "limits").filter(|item| text(item, "type") == "Container") {
        for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
            let given = map(item, from).clone();
            if given.is_empty() {
                continue;
            }
            let Some(filled) = object_in(item, to) else { continue };
            for (name, amount) in given {
                filled.entry(name).or_insert(amount);
            }
        }
    }
}

/// The items of a list that are objects.
fn objects<'a>(fields: &'a mut Fields, name: &str) -> impl Iterator<Item = &'a mut Fields> {
    fields.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}
