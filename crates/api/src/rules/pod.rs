//! Pods and Pod templates: containers, ports, volumes. Pure.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::causes::{Causes, Path};
use super::service::{PROTOCOLS, check_port_name};
use super::{items, length, map, text, volume};
use edgesync_object::name::{Problem, check_label, check_label_key, check_label_value, check_subdomain};

/// Maximum length of a sysctl name.
const MAX_SYSCTL: usize = 253;
/// Restart policies of Pods.
pub(super) const ANY_RESTART: &[&str] = &["Always", "OnFailure", "Never"];
/// Restart policies of Pods that run permanently.
pub(super) const ALWAYS: &[&str] = &["Always"];
/// Restart policies of Pods that run to completion.
pub(super) const UNTIL_DONE: &[&str] = &["OnFailure", "Never"];

/// Checks a Pod template.
pub(super) fn check_template(
    template: &Map<String, Value>,
    at: &Path,
    restart: &[&str],
    causes: &mut Causes,
) {
    check_template_with(template, at, restart, &[], causes);
}

/// Checks a Pod template whose Pods get further volumes, `claimed`, on creation.
pub(super) fn check_template_with(
    template: &Map<String, Value>,
    at: &Path,
    restart: &[&str],
    claimed: &[&str],
    causes: &mut Causes,
) {
    for (key, value) in map(map(template, "metadata"), "labels") {
        let at = at.field("metadata").key("labels", key);
        causes.name(&at, key, check_label_key(key));
        causes.name(
            &at,
            value.as_str().unwrap_or_default(),
            check_label_value(value.as_str().unwrap_or_default()),
        );
    }
    let (spec, at) = (map(template, "spec"), at.field("spec"));
    check_basics(spec, &at, restart, causes);
    check_containers(spec, &at, claimed, causes);
}

/// Checks a Pod spec.
pub(super) fn check(spec: &Map<String, Value>, at: &Path, restart: &[&str], causes: &mut Causes) {
    check_basics(spec, at, restart, causes);
    check_containers(spec, at, &[], causes);
}

fn check_basics(spec: &Map<String, Value>, at: &Path, restart: &[&str], causes: &mut Causes) {
    if length(spec, "containers") == 0 {
        causes.required(&at.field("containers"), "must contain at least one container");
    }
    causes.choice(at, spec, "restartPolicy", restart);
    causes.choice(at, spec, "dnsPolicy", &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]);
    causes.range(at, spec, "activeDeadlineSeconds", 1..=i64::from(i32::MAX));
    for field in ["nodeName", "serviceAccountName"] {
        let name = text(spec, field);
        if !name.is_empty() {
            causes.name(&at.field(field), name, check_subdomain(name));
        }
    }
    let mut seen = HashSet::new();
    for (number, sysctl) in items(map(spec, "securityContext"), "sysctls") {
        let at = at.field("securityContext").item("sysctls", number).field("name");
        causes.unique_name(&at, text(sysctl, "name"), &mut seen, check_sysctl);
    }
    let hostname = text(spec, "hostname");
    if !hostname.is_empty() {
        causes.name(&at.field("hostname"), hostname, check_label(hostname));
    }
}

/// Checks a sysctl name: words of lower-case letters, digits, dashes and underscores, joined by
/// dots or slashes.
fn check_sysctl(name: &str) -> Result<(), Problem> {
    let known = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let word = |word: &str| {
        let bytes = word.as_bytes();
        [bytes.first(), bytes.last()].iter().all(|end| end.is_some_and(|end| known(*end)))
            && bytes.iter().all(|letter| known(*letter) || b"-_".contains(letter))
    };
    if name.len() <= MAX_SYSCTL && name.split(['.', '/']).all(word) {
        return Ok(());
    }
    Err(format!(
        "must have at most {MAX_SYSCTL} characters and match regex \
         ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
    ))
}

/// Names of the volumes of a Pod.
struct Volumes<'a> {
    all: HashSet<&'a str>,
    /// Those of type `emptyDir`, or possibly so.
    empty_dirs: HashSet<&'a str>,
}

fn check_containers(spec: &Map<String, Value>, at: &Path, claimed: &[&str], causes: &mut Causes) {
    let mut volumes = HashSet::new();
    let mut empty_dirs = HashSet::new();
    for (number, volume) in items(spec, "volumes") {
        let at = at.item("volumes", number);
        causes.unique_name(&at.field("name"), text(volume, "name"), &mut volumes, check_label);
        volume::check(volume, &at, causes);
        if volume::is_empty_dir(volume) {
            empty_dirs.insert(text(volume, "name"));
        }
    }
    volumes.extend(claimed);
    // An API server checks the volume of a claim with the Pod, not with the template.
    empty_dirs.extend(claimed);
    let volumes = Volumes { all: volumes, empty_dirs };
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool).unwrap_or_default();
    let mut names = HashSet::new();
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        for (number, container) in items(spec, field) {
            let at = at.item(field, number);
            causes.unique_name(&at.field("name"), text(container, "name"), &mut names, check_label);
            check_container(container, &at, host_network, causes);
            check_variables(container, &at, &volumes, causes);
            check_mounts(container, &at, &volumes, causes);
        }
    }
}

fn check_container(container: &Map<String, Value>, at: &Path, host_network: bool, causes: &mut Causes) {
    let image = text(container, "image");
    if image.is_empty() {
        causes.required(&at.field("image"), "must name the image");
    } else if image.trim() != image {
        causes.invalid(&at.field("image"), image, "must not start or end with a space");
    }
    causes.choice(at, container, "imagePullPolicy", &["Always", "IfNotPresent", "Never"]);
    let mut names = HashSet::new();
    for (number, port) in items(container, "ports") {
        let at = at.item("ports", number);
        if !text(port, "name").is_empty() {
            causes.unique_name(&at.field("name"), text(port, "name"), &mut names, check_port_name);
        }
        causes.range(&at, port, "containerPort", 1..=65535);
        causes.choice(&at, port, "protocol", PROTOCOLS);
        let host = port.get("hostPort").and_then(Value::as_i64).unwrap_or_default();
        if host != 0 {
            causes.range(&at, port, "hostPort", 1..=65535);
            if host_network && port.get("containerPort").and_then(Value::as_i64) != Some(host) {
                let must = "must be equal to `containerPort` when `hostNetwork` is true";
                causes.invalid(&at.field("hostPort"), &host.to_string(), must);
            }
        }
    }
}

fn check_variables(container: &Map<String, Value>, at: &Path, volumes: &Volumes<'_>, causes: &mut Causes) {
    for (number, variable) in items(container, "env") {
        let name = text(variable, "name");
        let at = at.item("env", number);
        if name.is_empty() {
            causes.required(&at.field("name"), "must not be empty");
        } else if name.contains('=') || !name.bytes().all(|b| (b' '..=b'~').contains(&b)) {
            causes.invalid(&at.field("name"), name, "must be printable ASCII characters other than '='");
        }
        if let Some(Value::Object(file)) = map(variable, "valueFrom").get("fileKeyRef") {
            let at = at.field("valueFrom").field("fileKeyRef");
            check_volume(file, "volumeName", &at, volumes, causes);
            let name = text(file, "volumeName");
            if volumes.all.contains(name) && !volumes.empty_dirs.contains(name) {
                causes.invalid(&at.field("volumeName"), name, "must be a volume of type emptyDir");
            }
        }
    }
}

fn check_mounts(container: &Map<String, Value>, at: &Path, volumes: &Volumes<'_>, causes: &mut Causes) {
    let mut paths = HashSet::new();
    for (number, mount) in items(container, "volumeMounts") {
        let at = at.item("volumeMounts", number);
        check_volume(mount, "name", &at, volumes, causes);
        let path = text(mount, "mountPath");
        if path.is_empty() {
            causes.required(&at.field("mountPath"), "must not be empty");
        } else if !paths.insert(path) {
            causes.invalid(&at.field("mountPath"), path, "must be unique");
        }
    }
}

/// Checks that a field names a volume of the Pod.
fn check_volume(
    fields: &Map<String, Value>,
    field: &str,
    at: &Path,
    volumes: &Volumes<'_>,
    causes: &mut Causes,
) {
    let name = text(fields, field);
    if name.is_empty() {
        causes.required(&at.field(field), "must name a volume");
    } else if !volumes.all.contains(name) {
        let shown: String = name.chars().take(64).collect();
        causes.add(edgesync_object::status::Cause {
            reason: "FieldValueNotFound".to_owned(),
            message: format!("Not found: {shown:?}"),
            field: at.field(field).to_string(),
        });
    }
}
