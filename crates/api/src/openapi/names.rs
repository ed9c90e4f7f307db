//! Names of schemas and operations, those of Kubernetes where it has the kind. Pure.

use crate::kind::Kind;

/// Package of the metadata types.
pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// Returns the schema name of a kind, such as `io.k8s.api.core.v1.Pod`.
pub(super) fn schema(kind: &Kind) -> String {
    format!("{}.{}", prefix(kind), kind.resource.kind)
}

/// Returns the schema name of a kind's list.
pub(super) fn list(kind: &Kind) -> String {
    format!("{}.{}", prefix(kind), kind.list_kind)
}

/// Returns the name of a schema shared by all kinds.
pub(super) fn meta(name: &str) -> String {
    format!("{META}.{name}")
}

fn prefix(kind: &Kind) -> String {
    let (group, version) = (kind.resource.group.as_str(), kind.resource.version.as_str());
    let package = match group {
        _ if kind.custom => None,
        "" => Some("io.k8s.api.core"),
        "apiextensions.k8s.io" => Some("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions"),
        "apiregistration.k8s.io" => Some("io.k8s.kube-aggregator.pkg.apis.apiregistration"),
        _ => None,
    };
    if let Some(package) = package {
        return format!("{package}.{version}");
    }
    let first = group.split('.').next().unwrap_or_default();
    if !kind.custom && (group == first || group.ends_with(".k8s.io")) {
        return format!("io.k8s.api.{first}.{version}");
    }
    let reversed: Vec<&str> = group.rsplit('.').collect();
    format!("{}.{version}", reversed.join("."))
}

/// Returns the operation ID, unique over all documents, such as `listCoreV1NamespacedPod`.
pub(super) fn operation(action: &str, kind: &Kind, namespaced: bool, suffix: &str) -> String {
    let resource = &kind.resource;
    let group = if resource.group.is_empty() { "core" } else { resource.group.trim_end_matches(".k8s.io") };
    let group: String = group.split(['.', '-']).map(capital).collect();
    let scope = if namespaced { "Namespaced" } else { "" };
    format!("{action}{group}{}{scope}{}{suffix}", capital(&resource.version), resource.kind)
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::{Resource, Scope};
    use std::sync::Arc;

    fn kind(group: &str, version: &str, kind: &str, custom: bool) -> Kind {
        let (group, version, kind) = (group.to_owned(), version.to_owned(), kind.to_owned());
        let plural = edgesync_object::pluralize(&kind);
        let resource = Resource { group, version, kind, plural, scope: Scope::Namespaced };
        Kind { custom, ..Kind::without_schema(Arc::new(resource)) }
    }

    #[test]
    fn built_in_kinds_have_the_names_of_kubernetes() {
        let name = |group, name| schema(&kind(group, "v1", name, false));
        assert_eq!(name("", "Pod"), "io.k8s.api.core.v1.Pod");
        assert_eq!(name("apps", "Deployment"), "io.k8s.api.apps.v1.Deployment");
        assert_eq!(name("rbac.authorization.k8s.io", "Role"), "io.k8s.api.rbac.v1.Role");
        assert_eq!(name("coordination.k8s.io", "Lease"), "io.k8s.api.coordination.v1.Lease");
        assert_eq!(
            name("apiextensions.k8s.io", "CustomResourceDefinition"),
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition"
        );
    }

    #[test]
    fn custom_kinds_have_their_group_reversed() {
        let sync = kind("reliablesyncs.kubeedge.io", "v1alpha1", "ObjectSync", false);
        assert_eq!(schema(&sync), "io.kubeedge.reliablesyncs.v1alpha1.ObjectSync");
        assert_eq!(list(&sync), "io.kubeedge.reliablesyncs.v1alpha1.ObjectSyncList");
        let custom = kind("gateway.networking.k8s.io", "v1", "Gateway", true);
        assert_eq!(schema(&custom), "io.k8s.networking.gateway.v1.Gateway");
    }

    #[test]
    fn operations_are_named_by_action_and_kind() {
        let pod = kind("", "v1", "Pod", false);
        assert_eq!(operation("patch", &pod, true, "Status"), "patchCoreV1NamespacedPodStatus");
        let role = kind("rbac.authorization.k8s.io", "v1", "Role", false);
        let all = operation("list", &role, false, "ForAllNamespaces");
        assert_eq!(all, "listRbacAuthorizationV1RoleForAllNamespaces");
    }
}
