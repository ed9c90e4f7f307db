//! RBAC: roles and bindings. Pure.

use serde_json::{Map, Value};

use super::causes::{Causes, Path};
use super::{items, length, map, text};
use edgesync_object::name::{check_label, check_path_segment, check_subdomain};
use edgesync_object::{Resource, Scope};

/// The API group of roles.
pub(super) const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) fn check_role(kind: &Resource, fields: &Map<String, Value>, causes: &mut Causes) {
    for (number, rule) in items(fields, "rules") {
        let at = Path::new("").item("rules", number);
        if length(rule, "verbs") == 0 {
            causes.required(&at.field("verbs"), "must contain at least one value");
        }
        if length(rule, "nonResourceURLs") > 0 {
            if kind.scope == Scope::Namespaced {
                let message = "must be absent: a namespaced rule cannot apply to paths";
                causes.forbidden(&at.field("nonResourceURLs"), message);
            }
            if ["apiGroups", "resources", "resourceNames"].iter().any(|field| length(rule, field) > 0) {
                let message = "must be absent: a rule applies either to resources or to paths";
                causes.forbidden(&at.field("nonResourceURLs"), message);
            }
            continue;
        }
        for field in ["apiGroups", "resources"] {
            if length(rule, field) == 0 {
                causes.required(&at.field(field), "must contain at least one value");
            }
        }
    }
}

pub(super) fn check_binding(kind: &Resource, fields: &Map<String, Value>, causes: &mut Causes) {
    let role = map(fields, "roleRef");
    let at = Path::new("roleRef");
    causes.choice(&at, role, "apiGroup", &[GROUP]);
    let kinds: &[&str] =
        if kind.scope == Scope::Cluster { &["ClusterRole"] } else { &["Role", "ClusterRole"] };
    causes.choice(&at, role, "kind", kinds);
    let name = text(role, "name");
    if name.is_empty() {
        causes.required(&at.field("name"), "must name the role");
    } else {
        causes.name(&at.field("name"), name, check_path_segment(name));
    }
    for (number, subject) in items(fields, "subjects") {
        check_subject(kind, &Path::new("").item("subjects", number), subject, causes);
    }
}

fn check_subject(kind: &Resource, at: &Path, subject: &Map<String, Value>, causes: &mut Causes) {
    causes.choice(at, subject, "kind", &["ServiceAccount", "User", "Group"]);
    let name = text(subject, "name");
    if name.is_empty() {
        causes.required(&at.field("name"), "must not be empty");
    }
    if text(subject, "kind") != "ServiceAccount" {
        causes.choice(at, subject, "apiGroup", &[GROUP]);
        return;
    }
    causes.choice(at, subject, "apiGroup", &[""]);
    if !name.is_empty() {
        causes.name(&at.field("name"), name, check_subdomain(name));
    }
    let namespace = text(subject, "namespace");
    if !namespace.is_empty() {
        causes.name(&at.field("namespace"), namespace, check_label(namespace));
    } else if kind.scope == Scope::Cluster {
        causes.required(&at.field("namespace"), "must name the namespace of the ServiceAccount");
    }
}
