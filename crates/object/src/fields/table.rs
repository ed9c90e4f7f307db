//! By which fields the objects of each kind can be selected, beyond name and namespace. Pure.

/// A field by which objects can be selected.
pub(super) struct Selectable {
    /// Its name in selectors.
    label: &'static str,
    /// Where it stands in an object; the first place that holds something counts.
    pub(super) places: &'static [&'static str],
    /// What it is where it is absent.
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

/// The fields of both forms of an Event, each found in objects of both forms.
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

/// The component that an Event comes from: new Events name it only as the controller.
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

/// The field of this label, in any version of the kind.
pub(super) fn find(group: &str, kind: &str, label: &str) -> Option<&'static Selectable> {
    let source = matches!((group, kind, label), ("" | "events.k8s.io", "Event", "source"));
    if source { Some(&EVENT_SOURCE) } else { of(group, kind).iter().find(|field| field.label == label) }
}

/// Whether objects of this kind can be selected by a field.
pub(super) fn is_served(group: &str, kind: &str, label: &str) -> bool {
    let core = label.starts_with("involvedObject.") || matches!(label, "reportingComponent" | "source");
    let new = label.starts_with("regarding.") || label == "reportingController";
    let other_form = kind == "Event" && if group.is_empty() { new } else { core };
    !other_form && find(group, kind, label).is_some()
}
