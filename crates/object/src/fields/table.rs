//! Selectable fields of each kind, beyond name and namespace. Pure.

/// A field that field selectors of a kind may name.
pub(super) struct Selectable {
    /// Name in selectors, which is also the first of `places`.
    label: &'static str,
    /// Paths in an object; the first one with a value counts.
    pub(super) places: &'static [&'static str],
    /// Value where the field is absent.
    pub(super) absent: &'static str,
}

macro_rules! fields {
    ($($label:literal $(or $place:literal)* $(else $absent:literal)?;)*) => {
        &[$(Selectable { label: $label, places: &[$label, $($place),*], absent: concat!($($absent)?) }),*]
    };
}

static POD: &[Selectable] = fields! {
    "spec.nodeName";
    "spec.restartPolicy";
    "spec.schedulerName";
    "spec.serviceAccountName";
    "spec.hostNetwork" else "false";
    "status.phase";
    "status.podIP";
    "status.nominatedNodeName";
};

/// Fields of both forms of an Event, each found in objects of both forms.
static EVENT: &[Selectable] = fields! {
    "involvedObject.kind" or "regarding.kind";
    "involvedObject.namespace" or "regarding.namespace";
    "involvedObject.name" or "regarding.name";
    "involvedObject.uid" or "regarding.uid";
    "involvedObject.apiVersion" or "regarding.apiVersion";
    "involvedObject.resourceVersion" or "regarding.resourceVersion";
    "involvedObject.fieldPath" or "regarding.fieldPath";
    "reportingComponent" or "reportingController";
    "regarding.kind" or "involvedObject.kind";
    "regarding.namespace" or "involvedObject.namespace";
    "regarding.name" or "involvedObject.name";
    "regarding.uid" or "involvedObject.uid";
    "regarding.apiVersion" or "involvedObject.apiVersion";
    "regarding.resourceVersion" or "involvedObject.resourceVersion";
    "regarding.fieldPath" or "involvedObject.fieldPath";
    "reportingController" or "reportingComponent";
    "reason";
    "type";
};

/// Source component of an Event: newer Events have it as the controller only.
static EVENT_SOURCE: Selectable = Selectable {
    label: "source",
    places: &["source.component", "deprecatedSource.component", "reportingComponent", "reportingController"],
    absent: "",
};

static NODE: &[Selectable] = fields! { "spec.unschedulable" else "false"; };
static SECRET: &[Selectable] = fields! { "type"; };
static NAMESPACE: &[Selectable] = fields! { "status.phase"; };
static REPLICAS: &[Selectable] = fields! { "status.replicas" else "0"; };
static SERVICE: &[Selectable] = fields! { "spec.clusterIP"; "spec.type"; };
static SIGNING_REQUEST: &[Selectable] = fields! { "spec.signerName"; };
static JOB: &[Selectable] =
    &[Selectable { label: "status.successful", places: &["status.succeeded"], absent: "0" }];

fn of(group: &str, kind: &str) -> &'static [Selectable] {
    match (group, kind) {
        ("", "Pod") => POD,
        ("" | "events.k8s.io", "Event") => EVENT,
        ("", "Node") => NODE,
        ("", "Secret") => SECRET,
        ("", "Namespace") => NAMESPACE,
        ("", "Service") => SERVICE,
        ("", "ReplicationController") | ("apps", "ReplicaSet") => REPLICAS,
        ("batch", "Job") => JOB,
        ("certificates.k8s.io", "CertificateSigningRequest") => SIGNING_REQUEST,
        _ => &[],
    }
}

/// Finds a selectable field by label, in any version of the kind.
pub(super) fn find(group: &str, kind: &str, label: &str) -> Option<&'static Selectable> {
    let source = matches!((group, kind, label), ("" | "events.k8s.io", "Event", "source"));
    if source { Some(&EVENT_SOURCE) } else { of(group, kind).iter().find(|field| field.label == label) }
}

/// Returns whether objects of this kind can be selected by a field.
pub(super) fn is_served(group: &str, kind: &str, label: &str) -> bool {
    let core = label.starts_with("involvedObject.") || matches!(label, "reportingComponent" | "source");
    let new = label.starts_with("regarding.") || label == "reportingController";
    let other_form = kind == "Event" && if group.is_empty() { new } else { core };
    !other_form && find(group, kind, label).is_some()
}
