//! Server-side completion of single kinds on write, beyond field defaults. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::access;
use super::defaults::{self, default, object_in};
use super::record::NAMESPACE_FINALIZER;
use super::{map, text};
use edgesync_object::{Object, Resource};

/// Label with the name of a Namespace, used to select namespaces.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Completes an object that is created (`old` is `None`) or changed. Name and other metadata must
/// be set. Idempotent.
pub(crate) fn complete(kind: &Resource, old: Option<&Object>, object: &mut Object) {
    defaults::complete_pods(&kind.group, &kind.kind, object.fields_mut());
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Secret") => complete_secret(object.fields_mut()),
        ("", "Namespace") => complete_namespace(old, object),
        ("", "Service") => {
            complete_service(old, object.fields_mut());
            defaults::complete_service(object.fields_mut());
        }
        ("", "Pod") if old.is_none() => {
            set_phase(object.fields_mut(), "Pending");
            defaults::complete_new_pod(object.fields_mut());
        }
        ("", "PersistentVolume" | "PersistentVolumeClaim") if old.is_none() => {
            set_phase(object.fields_mut(), "Pending");
        }
        ("", "ReplicationController") => defaults::complete_controller(object.fields_mut()),
        ("", "LimitRange") => defaults::complete_limit_range(object.fields_mut()),
        ("batch", "Job") => defaults::complete_job(object.fields_mut()),
        ("networking.k8s.io", "NetworkPolicy") => defaults::complete_network_policy(object.fields_mut()),
        (access::GROUP, "RoleBinding" | "ClusterRoleBinding") => complete_binding(object.fields_mut()),
        _ => {}
    }
}

fn set_phase(fields: &mut Map<String, Value>, phase: &str) {
    if let Some(status) = object_in(fields, "status") {
        default(status, "phase", phase);
    }
}

/// Moves `stringData` to `data`: it is write-only. Values of a wrong type are left in place; the
/// schema refuses them.
fn complete_secret(secret: &mut Map<String, Value>) {
    default(secret, "type", "Opaque");
    let string_data = match secret.get("stringData") {
        None => return,
        Some(Value::Object(string_data)) if string_data.values().all(Value::is_string) => string_data.clone(),
        Some(Value::Null) => Map::new(),
        Some(_) => return,
    };
    if !string_data.is_empty() {
        let Some(data) = object_in(secret, "data") else { return };
        for (key, text) in &string_data {
            data.insert(key.clone(), STANDARD.encode(text.as_str().unwrap_or_default()).into());
        }
    }
    secret.remove("stringData");
}

/// Labels a Namespace with its name, and keeps its finalizer until it is empty.
fn complete_namespace(old: Option<&Object>, object: &mut Object) {
    let mut labels = map(object.fields(), "metadata").get("labels").cloned().unwrap_or(Value::Null);
    if labels.is_null() {
        labels = json!({});
    }
    if let Value::Object(labels) = &mut labels {
        labels.insert(NAME_LABEL.to_owned(), object.name().into());
    }
    object.set_metadata("labels", labels);
    let finalizers = match old {
        None => Some(json!([NAMESPACE_FINALIZER])),
        Some(old) => namespace_finalizers(old),
    };
    set_namespace_finalizers(object, finalizers);
    if old.is_none() {
        set_phase(object.fields_mut(), "Active");
    }
}

/// Returns the finalizers in the spec of a Namespace; `None` if there are none.
pub(crate) fn namespace_finalizers(namespace: &Object) -> Option<Value> {
    map(namespace.fields(), "spec").get("finalizers").cloned()
}

/// Sets the finalizers in the spec of a Namespace.
pub(crate) fn set_namespace_finalizers(namespace: &mut Object, finalizers: Option<Value>) {
    let Some(spec) = object_in(namespace.fields_mut(), "spec") else { return };
    match finalizers {
        Some(finalizers) => drop(spec.insert("finalizers".to_owned(), finalizers)),
        None => drop(spec.remove("finalizers")),
    }
}

/// Keeps the address of a Service when an update omits it.
fn complete_service(old: Option<&Object>, service: &mut Map<String, Value>) {
    let Some(old) = old.map(|old| map(old.fields(), "spec")) else { return };
    let Some(Value::Object(spec)) = service.get_mut("spec") else { return };
    let external = |spec: &Map<String, Value>| text(spec, "type") == "ExternalName";
    if external(old) || external(spec) {
        return;
    }
    let (address, addresses) = (old.get("clusterIP"), old.get("clusterIPs"));
    if let Some(address) = address.and_then(Value::as_str).filter(|address| !address.is_empty())
        && text(spec, "clusterIP").is_empty()
    {
        spec.insert("clusterIP".to_owned(), address.into());
        if let Some(addresses) = addresses
            && !spec.contains_key("clusterIPs")
        {
            spec.insert("clusterIPs".to_owned(), addresses.clone());
        }
    }
}

/// Adds the API group that clients omit.
fn complete_binding(binding: &mut Map<String, Value>) {
    if let Some(Value::Object(role)) = binding.get_mut("roleRef") {
        default(role, "apiGroup", access::GROUP);
    }
    for subject in binding.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Value::Object(subject) = subject
            && matches!(text(subject, "kind"), "User" | "Group")
        {
            default(subject, "apiGroup", access::GROUP);
        }
    }
}
