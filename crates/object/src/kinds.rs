//! Built-in kinds, which need no definition: those of Kubernetes and of the ObjectSync family, and
//! their names in commands.
//!
//! Other kinds work too: [`guess`] derives their resource from the name.

use super::resource::{Resource, Scope, split_api_version};

/// A built-in kind with its names.
#[derive(Debug, PartialEq, Eq)]
pub struct KnownKind {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// API version within the group.
    pub version: &'static str,
    /// Kind in CamelCase, such as `ConfigMap`.
    pub kind: &'static str,
    /// Lower-case plural of the path.
    pub plural: &'static str,
    /// Lower-case singular for commands.
    pub singular: &'static str,
    /// Short names, as `kubectl` knows them.
    pub short: &'static [&'static str],
    /// Whether objects of the kind have a namespace.
    pub scope: Scope,
}

/// One row of the table. `N` is namespaced, `C` is cluster-scoped.
macro_rules! kinds {
    ($($group:literal $version:literal $kind:literal $plural:literal $singular:literal $scope:ident [$($short:literal),*];)*) => {
        &[$(KnownKind {
            group: $group,
            version: $version,
            kind: $kind,
            plural: $plural,
            singular: $singular,
            short: &[$($short),*],
            scope: kinds!(@scope $scope),
        }),*]
    };
    (@scope N) => { Scope::Namespaced };
    (@scope C) => { Scope::Cluster };
}

/// Every known kind, in the order of discovery: the groups of Kubernetes by the priority that they
/// have there, then others by name; the kinds of a group by plural. Where two share a plural
/// (`events`), the first one is meant by the bare word.
#[rustfmt::skip]
pub static KINDS: &[KnownKind] = kinds! {
    "" "v1" "Binding" "bindings" "binding" N [];
    "" "v1" "ComponentStatus" "componentstatuses" "componentstatus" C ["cs"];
    "" "v1" "ConfigMap" "configmaps" "configmap" N ["cm"];
    "" "v1" "Endpoints" "endpoints" "endpoints" N ["ep"];
    "" "v1" "Event" "events" "event" N ["ev"];
    "" "v1" "LimitRange" "limitranges" "limitrange" N ["limits"];
    "" "v1" "Namespace" "namespaces" "namespace" C ["ns"];
    "" "v1" "Node" "nodes" "node" C ["no"];
    "" "v1" "PersistentVolumeClaim" "persistentvolumeclaims" "persistentvolumeclaim" N ["pvc"];
    "" "v1" "PersistentVolume" "persistentvolumes" "persistentvolume" C ["pv"];
    "" "v1" "Pod" "pods" "pod" N ["po"];
    "" "v1" "PodTemplate" "podtemplates" "podtemplate" N [];
    "" "v1" "ReplicationController" "replicationcontrollers" "replicationcontroller" N ["rc"];
    "" "v1" "ResourceQuota" "resourcequotas" "resourcequota" N ["quota"];
    "" "v1" "Secret" "secrets" "secret" N [];
    "" "v1" "ServiceAccount" "serviceaccounts" "serviceaccount" N ["sa"];
    "" "v1" "Service" "services" "service" N ["svc"];
    "apiregistration.k8s.io" "v1" "APIService" "apiservices" "apiservice" C [];
    "apps" "v1" "ControllerRevision" "controllerrevisions" "controllerrevision" N [];
    "apps" "v1" "DaemonSet" "daemonsets" "daemonset" N ["ds"];
    "apps" "v1" "Deployment" "deployments" "deployment" N ["deploy"];
    "apps" "v1" "ReplicaSet" "replicasets" "replicaset" N ["rs"];
    "apps" "v1" "StatefulSet" "statefulsets" "statefulset" N ["sts"];
    "events.k8s.io" "v1" "Event" "events" "event" N ["ev"];
    "autoscaling" "v2" "HorizontalPodAutoscaler" "horizontalpodautoscalers" "horizontalpodautoscaler" N ["hpa"];
    "autoscaling" "v1" "HorizontalPodAutoscaler" "horizontalpodautoscalers" "horizontalpodautoscaler" N ["hpa"];
    "batch" "v1" "CronJob" "cronjobs" "cronjob" N ["cj"];
    "batch" "v1" "Job" "jobs" "job" N [];
    "certificates.k8s.io" "v1" "CertificateSigningRequest" "certificatesigningrequests" "certificatesigningrequest" C ["csr"];
    "networking.k8s.io" "v1" "IngressClass" "ingressclasses" "ingressclass" C [];
    "networking.k8s.io" "v1" "Ingress" "ingresses" "ingress" N ["ing"];
    "networking.k8s.io" "v1" "IPAddress" "ipaddresses" "ipaddress" C ["ip"];
    "networking.k8s.io" "v1" "NetworkPolicy" "networkpolicies" "networkpolicy" N ["netpol"];
    "networking.k8s.io" "v1" "ServiceCIDR" "servicecidrs" "servicecidr" C [];
    "policy" "v1" "PodDisruptionBudget" "poddisruptionbudgets" "poddisruptionbudget" N ["pdb"];
    "rbac.authorization.k8s.io" "v1" "ClusterRoleBinding" "clusterrolebindings" "clusterrolebinding" C [];
    "rbac.authorization.k8s.io" "v1" "ClusterRole" "clusterroles" "clusterrole" C [];
    "rbac.authorization.k8s.io" "v1" "RoleBinding" "rolebindings" "rolebinding" N [];
    "rbac.authorization.k8s.io" "v1" "Role" "roles" "role" N [];
    "storage.k8s.io" "v1" "CSIDriver" "csidrivers" "csidriver" C [];
    "storage.k8s.io" "v1" "CSINode" "csinodes" "csinode" C [];
    "storage.k8s.io" "v1" "CSIStorageCapacity" "csistoragecapacities" "csistoragecapacity" N [];
    "storage.k8s.io" "v1" "StorageClass" "storageclasses" "storageclass" C ["sc"];
    "storage.k8s.io" "v1" "VolumeAttachment" "volumeattachments" "volumeattachment" C [];
    "storage.k8s.io" "v1" "VolumeAttributesClass" "volumeattributesclasses" "volumeattributesclass" C ["vac"];
    "admissionregistration.k8s.io" "v1" "MutatingWebhookConfiguration" "mutatingwebhookconfigurations" "mutatingwebhookconfiguration" C [];
    "admissionregistration.k8s.io" "v1" "ValidatingAdmissionPolicy" "validatingadmissionpolicies" "validatingadmissionpolicy" C [];
    "admissionregistration.k8s.io" "v1" "ValidatingAdmissionPolicyBinding" "validatingadmissionpolicybindings" "validatingadmissionpolicybinding" C [];
    "admissionregistration.k8s.io" "v1" "ValidatingWebhookConfiguration" "validatingwebhookconfigurations" "validatingwebhookconfiguration" C [];
    "apiextensions.k8s.io" "v1" "CustomResourceDefinition" "customresourcedefinitions" "customresourcedefinition" C ["crd", "crds"];
    "scheduling.k8s.io" "v1" "PriorityClass" "priorityclasses" "priorityclass" C ["pc"];
    "coordination.k8s.io" "v1" "Lease" "leases" "lease" N [];
    "node.k8s.io" "v1" "RuntimeClass" "runtimeclasses" "runtimeclass" C [];
    "discovery.k8s.io" "v1" "EndpointSlice" "endpointslices" "endpointslice" N [];
    "apps.kubeedge.io" "v1alpha1" "EdgeApplication" "edgeapplications" "edgeapplication" N ["eapp"];
    "apps.kubeedge.io" "v1alpha1" "NodeGroup" "nodegroups" "nodegroup" C ["ng"];
    "devices.kubeedge.io" "v1beta1" "DeviceModel" "devicemodels" "devicemodel" N [];
    "devices.kubeedge.io" "v1beta1" "Device" "devices" "device" N [];
    "reliablesyncs.kubeedge.io" "v1alpha1" "ClusterObjectSync" "clusterobjectsyncs" "clusterobjectsync" C [];
    "reliablesyncs.kubeedge.io" "v1alpha1" "ObjectSync" "objectsyncs" "objectsync" N [];
    "rules.kubeedge.io" "v1" "RuleEndpoint" "ruleendpoints" "ruleendpoint" N [];
    "rules.kubeedge.io" "v1" "Rule" "rules" "rule" N [];
};

impl KnownKind {
    /// Returns the kind as an owned resource.
    #[must_use]
    pub fn resource(&self) -> Resource {
        Resource {
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            kind: self.kind.to_owned(),
            plural: self.plural.to_owned(),
            scope: self.scope,
        }
    }

    /// Returns whether the status is a subresource, written under `/status` only, according to the
    /// API reference.
    #[must_use]
    pub fn has_status(&self) -> bool {
        match self.group {
            "" => matches!(
                self.kind,
                "Namespace"
                    | "Node"
                    | "PersistentVolume"
                    | "PersistentVolumeClaim"
                    | "Pod"
                    | "ReplicationController"
                    | "ResourceQuota"
                    | "Service"
            ),
            "apps" => self.kind != "ControllerRevision",
            "networking.k8s.io" => matches!(self.kind, "Ingress" | "ServiceCIDR"),
            "storage.k8s.io" => self.kind == "VolumeAttachment",
            "admissionregistration.k8s.io" => self.kind == "ValidatingAdmissionPolicy",
            "devices.kubeedge.io" => self.kind == "Device",
            "rules.kubeedge.io" => self.kind == "Rule",
            "batch"
            | "autoscaling"
            | "policy"
            | "apiextensions.k8s.io"
            | "apiregistration.k8s.io"
            | "certificates.k8s.io"
            | "apps.kubeedge.io"
            | super::objectsync::GROUP => true,
            _ => false,
        }
    }

    /// Returns whether `word` names this kind: as plural, singular, short name or kind, in any
    /// case.
    fn is_named(&self, word: &str) -> bool {
        [self.plural, self.singular, self.kind].iter().any(|name| name.eq_ignore_ascii_case(word))
            || self.short.iter().any(|name| name.eq_ignore_ascii_case(word))
    }
}

/// Finds the kind of an object by its `apiVersion` and `kind`.
#[must_use]
pub fn by_kind(api_version: &str, kind: &str) -> Option<&'static KnownKind> {
    let (group, version) = split_api_version(api_version);
    KINDS.iter().find(|known| known.kind == kind && known.group == group && known.version == version)
}

/// Finds the kind served under a path.
#[must_use]
pub fn by_plural(group: &str, version: &str, plural: &str) -> Option<&'static KnownKind> {
    KINDS.iter().find(|known| known.plural == plural && known.group == group && known.version == version)
}

/// Finds the kind for a word of a user: `cm`, `configmap`, `ConfigMap`, `deployments.apps`,
/// `deployments.v1.apps`.
#[must_use]
pub fn by_word(word: &str) -> Option<&'static KnownKind> {
    let Some((name, rest)) = word.split_once('.') else {
        return KINDS.iter().find(|known| known.is_named(word));
    };
    let named = || KINDS.iter().filter(|known| known.is_named(name));
    named().find(|known| known.group.eq_ignore_ascii_case(rest)).or_else(|| {
        let (version, group) = rest.split_once('.').unwrap_or((rest, ""));
        named().find(|known| known.version == version && known.group.eq_ignore_ascii_case(group))
    })
}

/// Returns the resource of an object: the built-in one, or one derived from the kind's name. An
/// unknown kind counts as namespaced if the object has a namespace.
#[must_use]
pub fn guess(api_version: &str, kind: &str, has_namespace: bool) -> Resource {
    if let Some(known) = by_kind(api_version, kind) {
        return known.resource();
    }
    let (group, version) = split_api_version(api_version);
    Resource {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind.to_owned(),
        plural: pluralize(kind),
        scope: if has_namespace { Scope::Namespaced } else { Scope::Cluster },
    }
}

/// Returns the lower-case plural of a kind, by the rules of Kubernetes' generators.
#[must_use]
pub fn pluralize(kind: &str) -> String {
    let mut word = kind.to_ascii_lowercase();
    let bytes = word.as_bytes();
    let before_last = bytes.len().checked_sub(2).and_then(|at| bytes.get(at));
    match (before_last, bytes.last()) {
        (_, None) => {}
        (_, Some(b's' | b'x' | b'z')) | (Some(b'c' | b's'), Some(b'h')) => word.push_str("es"),
        (Some(letter), Some(b'y')) if !matches!(letter, b'a' | b'e' | b'i' | b'o' | b'u') => {
            word.pop();
            word.push_str("ies");
        }
        _ => word.push('s'),
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_all_names() {
        for known in KINDS {
            let api_version = known.resource().api_version();
            assert_eq!(by_kind(&api_version, known.kind), Some(known));
            assert_eq!(by_plural(known.group, known.version, known.plural), Some(known));
            if !known.group.is_empty() {
                let full = format!("{}.{}.{}", known.plural, known.version, known.group);
                assert_eq!(by_word(&full), Some(known), "{full}");
            }
        }
    }

    #[test]
    fn singular_is_the_kind_in_lower_case() {
        for known in KINDS {
            assert_eq!(known.singular, known.kind.to_ascii_lowercase());
            if known.kind != "Endpoints" {
                assert_eq!(pluralize(known.kind), known.plural);
            }
        }
    }

    #[test]
    fn words_of_users_find_the_kind() {
        for word in ["cm", "configmap", "configmaps", "ConfigMap", "CM"] {
            assert_eq!(by_word(word).map(|k| k.kind), Some("ConfigMap"), "{word}");
        }
        for word in ["deploy", "deployments.apps", "deploy.apps", "deployments.v1.apps"] {
            assert_eq!(by_word(word).map(|k| k.kind), Some("Deployment"), "{word}");
        }
        assert_eq!(by_word("events").map(|k| k.group), Some(""));
        assert_eq!(by_word("events.events.k8s.io").map(|k| k.group), Some("events.k8s.io"));
        assert_eq!(by_word("pods.v1").map(|k| k.kind), Some("Pod"));
        for word in ["", ".", "widgets", "pods.apps", "pods.v2", "cm.apps"] {
            assert_eq!(by_word(word), None, "{word}");
        }
    }

    #[test]
    fn unknown_kinds_are_derived_from_their_name() {
        for (kind, plural) in [
            ("Widget", "widgets"),
            ("Policy", "policies"),
            ("Gateway", "gateways"),
            ("Class", "classes"),
            ("Box", "boxes"),
            ("Mesh", "meshes"),
            ("Graph", "graphs"),
            ("Y", "ys"),
            ("", ""),
        ] {
            assert_eq!(pluralize(kind), plural);
        }
        let widget = guess("lab.io/v1", "Widget", true);
        assert_eq!((&*widget.group, &*widget.plural, widget.scope), ("lab.io", "widgets", Scope::Namespaced));
        assert_eq!(guess("v1", "Node", true).scope, Scope::Cluster);
    }
}
