//! Columns of the built-in kinds as data, those of `kubectl get`. Pure.

use super::columns::Cell::{
    Age, Computed, Count, Created, DefaultName, Flag, Int, Join, Pairs, Ready, Selector, Text, Timed,
};
use super::columns::{Column, NAME, column, wide};
use super::fields::{NONE, UNKNOWN, UNSET};
use super::{cells, pod};

const AGE: Column = column("Age", "Time since the creation.", Age(&["metadata.creationTimestamp"], UNKNOWN));
const CREATED_AT: Column =
    column("Created At", "Time of the creation.", Text(&["metadata.creationTimestamp"], ""));
const CONTAINERS: &str = "Names of the containers.";
const IMAGES: &str = "Images of the containers.";
const PODS: &str = "Selector of its pods.";

/// Columns of workloads with a Pod template.
const NAMES: Column = wide("Containers", CONTAINERS, Join("spec.template.spec.containers", "name"));
const IMAGE: Column = wide("Images", IMAGES, Join("spec.template.spec.containers", "image"));
const PODS_OF: Column = wide("Selector", PODS, Selector("spec.selector"));

/// The columns of kinds without specific ones.
pub(super) static DEFAULT: [Column; 2] = [NAME, column("Age", "Time since the creation.", Created)];

/// Returns the columns of a kind.
pub(super) fn columns(group: &str, kind: &str) -> &'static [Column] {
    match (group, kind) {
        ("", "ConfigMap") => &CONFIG_MAP,
        ("", "Endpoints") => &ENDPOINTS,
        ("" | "events.k8s.io", "Event") => &EVENT,
        ("", "Namespace") => &NAMESPACE,
        ("", "Node") => &NODE,
        ("", "PersistentVolume") => &PERSISTENT_VOLUME,
        ("", "PersistentVolumeClaim") => &PERSISTENT_VOLUME_CLAIM,
        ("", "Pod") => &POD,
        ("", "PodTemplate") => &POD_TEMPLATE,
        ("", "ReplicationController") => &REPLICATION_CONTROLLER,
        ("", "Secret") => &SECRET,
        ("", "Service") => &SERVICE,
        ("", "ServiceAccount") => &SERVICE_ACCOUNT,
        (
            "admissionregistration.k8s.io",
            "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration",
        ) => &WEBHOOKS,
        ("apiextensions.k8s.io", "CustomResourceDefinition")
        | ("rbac.authorization.k8s.io", "ClusterRole" | "Role") => &CREATED,
        ("apps", "ControllerRevision") => &CONTROLLER_REVISION,
        ("apps", "DaemonSet") => &DAEMON_SET,
        ("apps", "Deployment") => &DEPLOYMENT,
        ("apps", "ReplicaSet") => &REPLICA_SET,
        ("apps", "StatefulSet") => &STATEFUL_SET,
        ("autoscaling", "HorizontalPodAutoscaler") => &AUTOSCALER,
        ("batch", "CronJob") => &CRON_JOB,
        ("batch", "Job") => &JOB,
        ("coordination.k8s.io", "Lease") => &LEASE,
        ("discovery.k8s.io", "EndpointSlice") => &ENDPOINT_SLICE,
        ("networking.k8s.io", "Ingress") => &INGRESS,
        ("networking.k8s.io", "IngressClass") => &INGRESS_CLASS,
        ("networking.k8s.io", "NetworkPolicy") => &NETWORK_POLICY,
        ("node.k8s.io", "RuntimeClass") => &RUNTIME_CLASS,
        ("policy", "PodDisruptionBudget") => &DISRUPTION_BUDGET,
        ("rbac.authorization.k8s.io", "ClusterRoleBinding" | "RoleBinding") => &ROLE_BINDING,
        ("reliablesyncs.kubeedge.io", "ClusterObjectSync" | "ObjectSync") => &OBJECT_SYNC,
        ("scheduling.k8s.io", "PriorityClass") => &PRIORITY_CLASS,
        ("storage.k8s.io", "StorageClass") => &STORAGE_CLASS,
        ("storage.k8s.io", "VolumeAttachment") => &VOLUME_ATTACHMENT,
        _ => &DEFAULT,
    }
}

static CREATED: [Column; 2] = [NAME, CREATED_AT];

static CONFIG_MAP: [Column; 3] =
    [NAME, column("Data", "Number of entries.", Count(&["data", "binaryData"])), AGE];

static SECRET: [Column; 4] = [
    NAME,
    column("Type", "Type of the secret.", Text(&["type"], "")),
    column("Data", "Number of entries.", Count(&["data"])),
    AGE,
];

static NAMESPACE: [Column; 3] =
    [NAME, column("Status", "Phase of the object.", Text(&["status.phase"], "")), AGE];

static SERVICE_ACCOUNT: [Column; 3] =
    [NAME, column("Secrets", "Number of secrets.", Count(&["secrets"])), AGE];

static POD: [Column; 9] = [
    NAME,
    column("Ready", "Containers that are ready, of all.", Computed(pod::ready)),
    column("Status", "Phase of the pod, or the reason why it is not running.", Computed(pod::status)),
    column("Restarts", "Restarts of its containers, and the last one.", Timed(pod::restarts)),
    AGE,
    wide("IP", "Address of the pod.", Text(&["status.podIPs.0.ip", "status.podIP"], NONE)),
    wide("Node", "Node of the pod.", Text(&["spec.nodeName"], NONE)),
    wide(
        "Nominated Node",
        "Node on which pods are preempted for it.",
        Text(&["status.nominatedNodeName"], NONE),
    ),
    wide("Readiness Gates", "Further conditions that are true, of all.", Computed(pod::readiness_gates)),
];

static POD_TEMPLATE: [Column; 4] = [
    NAME,
    column("Containers", CONTAINERS, Join("template.spec.containers", "name")),
    column("Images", IMAGES, Join("template.spec.containers", "image")),
    column("Pod Labels", "Labels of its pods.", Pairs("template.metadata.labels")),
];

static NODE: [Column; 10] = [
    NAME,
    column("Status", "Whether the node is ready and schedulable.", Computed(cells::node_status)),
    column("Roles", "Its roles, from its labels.", Computed(cells::node_roles)),
    AGE,
    column("Version", "Version of its agent.", Text(&["status.nodeInfo.kubeletVersion"], "")),
    wide("Internal-IP", "Address within the cluster.", Computed(cells::node_internal_ip)),
    wide("External-IP", "External address.", Computed(cells::node_external_ip)),
    wide("OS-Image", "Its operating system.", Text(&["status.nodeInfo.osImage"], UNKNOWN)),
    wide("Kernel-Version", "Its kernel.", Text(&["status.nodeInfo.kernelVersion"], UNKNOWN)),
    wide(
        "Container-Runtime",
        "Container runtime of the node.",
        Text(&["status.nodeInfo.containerRuntimeVersion"], UNKNOWN),
    ),
];

static SERVICE: [Column; 7] = [
    NAME,
    column("Type", "Type of the service.", Text(&["spec.type"], "ClusterIP")),
    column("Cluster-IP", "Address within the cluster.", Text(&["spec.clusterIPs.0", "spec.clusterIP"], NONE)),
    column("External-IP", "External addresses.", Computed(cells::service_external_ip)),
    column("Port(s)", "Its ports, with those on the nodes.", Computed(cells::service_ports)),
    AGE,
    wide("Selector", PODS, Pairs("spec.selector")),
];

static ENDPOINTS: [Column; 3] =
    [NAME, column("Endpoints", "Addresses of the endpoints.", Computed(cells::endpoints)), AGE];

static ENDPOINT_SLICE: [Column; 5] = [
    NAME,
    column("AddressType", "Kind of its addresses.", Text(&["addressType"], "")),
    column("Ports", "Ports of all its endpoints.", Computed(cells::slice_ports)),
    column("Endpoints", "Addresses of its endpoints.", Computed(cells::slice_endpoints)),
    AGE,
];

static INGRESS: [Column; 6] = [
    NAME,
    column("Class", "Class of the ingress.", Text(&["spec.ingressClassName"], NONE)),
    column("Hosts", "Hosts of the ingress.", Computed(cells::ingress_hosts)),
    column("Address", "Addresses of the ingress.", Computed(cells::ingress_address)),
    column("Ports", "Ports that it opens.", Computed(cells::ingress_ports)),
    AGE,
];

static INGRESS_CLASS: [Column; 4] = [
    NAME,
    column("Controller", "Controller of ingresses of the class.", Text(&["spec.controller"], "")),
    column("Parameters", "Object with further settings.", Computed(cells::class_parameters)),
    AGE,
];

static NETWORK_POLICY: [Column; 3] =
    [NAME, column("Pod-Selector", "Selector of its pods.", Selector("spec.podSelector")), AGE];

static PERSISTENT_VOLUME: [Column; 11] = [
    NAME,
    column("Capacity", "Its size.", Text(&["spec.capacity.storage"], "")),
    column("Access Modes", "Ways in which it can be mounted.", Computed(cells::volume_modes)),
    column(
        "Reclaim Policy",
        "Treatment after the deletion of its claim.",
        Text(&["spec.persistentVolumeReclaimPolicy"], ""),
    ),
    column("Status", "Phase of the object.", Computed(cells::volume_phase)),
    column("Claim", "Claim that is bound to it.", Computed(cells::volume_claim)),
    column("StorageClass", "Class of its storage.", Text(&["spec.storageClassName"], "")),
    column(
        "VolumeAttributesClass",
        "Class of its attributes.",
        Text(&["spec.volumeAttributesClassName"], UNSET),
    ),
    column("Reason", "Reason of the phase.", Text(&["status.reason"], "")),
    AGE,
    wide("VolumeMode", "File system or block device.", Text(&["spec.volumeMode"], UNSET)),
];

static PERSISTENT_VOLUME_CLAIM: [Column; 9] = [
    NAME,
    column("Status", "Phase of the object.", Computed(cells::volume_phase)),
    column("Volume", "Volume that is bound to it.", Text(&["spec.volumeName"], "")),
    column("Capacity", "Size of its volume.", Text(&["status.capacity.storage"], "")),
    column("Access Modes", "Ways in which the volume can be mounted.", Computed(cells::claim_modes)),
    column("StorageClass", "Class of its storage.", Text(&["spec.storageClassName"], "")),
    column(
        "VolumeAttributesClass",
        "Class of its attributes.",
        Text(&["spec.volumeAttributesClassName"], UNSET),
    ),
    AGE,
    wide("VolumeMode", "File system or block device.", Text(&["spec.volumeMode"], UNSET)),
];

static DEPLOYMENT: [Column; 8] = [
    NAME,
    column("Ready", "Pods that are ready, of all.", Ready("status.readyReplicas", "spec.replicas")),
    column("Up-to-date", "Pods of the newest template.", Int(&["status.updatedReplicas"], 0)),
    column("Available", "Pods that have been ready for long enough.", Int(&["status.availableReplicas"], 0)),
    AGE,
    NAMES,
    IMAGE,
    PODS_OF,
];

static STATEFUL_SET: [Column; 5] = [
    NAME,
    column("Ready", "Pods that are ready, of all.", Ready("status.readyReplicas", "spec.replicas")),
    AGE,
    NAMES,
    IMAGE,
];

/// Columns of two kinds that differ in their selector.
const fn replicas(selector: Column) -> [Column; 8] {
    [
        NAME,
        column("Desired", "Desired number of pods.", Int(&["spec.replicas"], 0)),
        column("Current", "Current number of pods.", Int(&["status.replicas"], 0)),
        column("Ready", "Pods that are ready.", Int(&["status.readyReplicas"], 0)),
        AGE,
        NAMES,
        IMAGE,
        selector,
    ]
}

static REPLICA_SET: [Column; 8] = replicas(PODS_OF);
static REPLICATION_CONTROLLER: [Column; 8] = replicas(wide("Selector", PODS, Pairs("spec.selector")));

static DAEMON_SET: [Column; 11] = [
    NAME,
    column("Desired", "Desired number of nodes with a pod.", Int(&["status.desiredNumberScheduled"], 0)),
    column("Current", "Current number of nodes with a pod.", Int(&["status.currentNumberScheduled"], 0)),
    column("Ready", "Nodes with a pod that is ready.", Int(&["status.numberReady"], 0)),
    column(
        "Up-to-date",
        "Nodes with a pod of the newest template.",
        Int(&["status.updatedNumberScheduled"], 0),
    ),
    column("Available", "Nodes with a pod ready for long enough.", Int(&["status.numberAvailable"], 0)),
    column("Node Selector", "Selector of its nodes.", Pairs("spec.template.spec.nodeSelector")),
    AGE,
    NAMES,
    IMAGE,
    PODS_OF,
];

static CONTROLLER_REVISION: [Column; 4] = [
    NAME,
    column("Controller", "Controller that owns the revision.", Computed(cells::controller)),
    column("Revision", "Number of the revision.", Int(&["revision"], 0)),
    AGE,
];

static JOB: [Column; 8] = [
    NAME,
    column("Status", "Status of the job.", Computed(cells::job_status)),
    column("Completions", "Pods that have succeeded, of all.", Computed(cells::job_completions)),
    column("Duration", "Duration of the job.", Timed(cells::job_duration)),
    AGE,
    NAMES,
    IMAGE,
    PODS_OF,
];

static CRON_JOB: [Column; 10] = [
    NAME,
    column("Schedule", "Schedule in cron format.", Text(&["spec.schedule"], "")),
    column("Timezone", "Time zone of the schedule.", Text(&["spec.timeZone"], NONE)),
    column("Suspend", "Whether it is suspended.", Computed(cells::cron_suspended)),
    column("Active", "Running jobs.", Count(&["status.active"])),
    column("Last Schedule", "Time since the last schedule.", Age(&["status.lastScheduleTime"], NONE)),
    AGE,
    wide("Containers", CONTAINERS, Join("spec.jobTemplate.spec.template.spec.containers", "name")),
    wide("Images", IMAGES, Join("spec.jobTemplate.spec.template.spec.containers", "image")),
    wide("Selector", PODS, Selector("spec.jobTemplate.spec.selector")),
];

static AUTOSCALER: [Column; 7] = [
    NAME,
    column("Reference", "Object that is scaled.", Computed(cells::scaler_reference)),
    column("Targets", "Current and target values of the metrics.", Computed(cells::scaler_targets)),
    column("MinPods", "Minimum number of pods.", Text(&["spec.minReplicas"], UNSET)),
    column("MaxPods", "Maximum number of pods.", Int(&["spec.maxReplicas"], 0)),
    column("Replicas", "Current number of pods.", Int(&["status.currentReplicas"], 0)),
    AGE,
];

static DISRUPTION_BUDGET: [Column; 5] = [
    NAME,
    column("Min Available", "Minimum number of available pods.", Text(&["spec.minAvailable"], "N/A")),
    column("Max Unavailable", "Maximum number of unavailable pods.", Text(&["spec.maxUnavailable"], "N/A")),
    column(
        "Allowed Disruptions",
        "Pods that may currently be disrupted.",
        Int(&["status.disruptionsAllowed"], 0),
    ),
    AGE,
];

static ROLE_BINDING: [Column; 6] = [
    NAME,
    column("Role", "Role that is granted.", Computed(cells::binding_role)),
    AGE,
    wide("Users", "Users that are bound to the role.", Computed(cells::binding_users)),
    wide("Groups", "Groups that are bound to the role.", Computed(cells::binding_groups)),
    wide(
        "ServiceAccounts",
        "Service accounts that are bound to the role.",
        Computed(cells::binding_accounts),
    ),
];

static STORAGE_CLASS: [Column; 6] = [
    column("Name", "Name of the object.", DefaultName),
    column("Provisioner", "Provisioner of the volumes.", Text(&["provisioner"], "")),
    column(
        "ReclaimPolicy",
        "Treatment of volumes after the deletion of their claims.",
        Text(&["reclaimPolicy"], "Delete"),
    ),
    column(
        "VolumeBindingMode",
        "Time at which volumes are bound and provisioned.",
        Text(&["volumeBindingMode"], "Immediate"),
    ),
    column("AllowVolumeExpansion", "Whether volumes can be expanded.", Flag("allowVolumeExpansion", false)),
    AGE,
];

static VOLUME_ATTACHMENT: [Column; 6] = [
    NAME,
    column("Attacher", "Driver that attaches the volume.", Text(&["spec.attacher"], "")),
    column("PV", "The volume.", Text(&["spec.source.persistentVolumeName"], "")),
    column("Node", "Node to which the volume is attached.", Text(&["spec.nodeName"], "")),
    column("Attached", "Whether it is attached.", Flag("status.attached", false)),
    AGE,
];

static PRIORITY_CLASS: [Column; 5] = [
    NAME,
    column("Value", "The priority.", Int(&["value"], 0)),
    column(
        "Global-Default",
        "Whether it is the default of pods without a class.",
        Flag("globalDefault", false),
    ),
    AGE,
    wide(
        "PreemptionPolicy",
        "Whether pods of lower priority are preempted.",
        Text(&["preemptionPolicy"], ""),
    ),
];

static RUNTIME_CLASS: [Column; 3] =
    [NAME, column("Handler", "Handler of the container runtime.", Text(&["handler"], "")), AGE];

static WEBHOOKS: [Column; 3] = [NAME, column("Webhooks", "Number of webhooks.", Count(&["webhooks"])), AGE];

static LEASE: [Column; 6] = [
    NAME,
    column("Holder", "Holder of the lease.", Text(&["spec.holderIdentity"], "")),
    AGE,
    wide("Renewed", "Time since the last renewal.", Age(&["spec.renewTime"], UNKNOWN)),
    wide("Duration", "Duration for which it is valid after a renewal.", Computed(cells::lease_duration)),
    wide("Transitions", "Number of changes of the holder.", Int(&["spec.leaseTransitions"], 0)),
];

/// Columns of both kinds of Events: each path exists in one of them.
static EVENT: [Column; 10] = [
    column(
        "Last Seen",
        "Time since the last occurrence.",
        Age(
            &[
                "series.lastObservedTime",
                "lastTimestamp",
                "deprecatedLastTimestamp",
                "firstTimestamp",
                "deprecatedFirstTimestamp",
                "eventTime",
            ],
            UNKNOWN,
        ),
    ),
    column("Type", "Normal or Warning.", Text(&["type"], "")),
    column("Reason", "Machine-readable reason.", Text(&["reason"], "")),
    column("Object", "Object that the event is about.", Computed(cells::event_object)),
    wide("Subobject", "Part of the object.", Text(&["involvedObject.fieldPath", "regarding.fieldPath"], "")),
    wide("Source", "Component that reported the event.", Computed(cells::event_source)),
    column("Message", "Human-readable description.", Text(&["message", "note"], "")),
    wide(
        "First Seen",
        "Time since the first occurrence.",
        Age(&["firstTimestamp", "deprecatedFirstTimestamp", "eventTime"], UNKNOWN),
    ),
    wide("Count", "Number of occurrences.", Int(&["series.count", "count", "deprecatedCount"], 1)),
    wide("Name", "Name of the object.", super::columns::Cell::Name),
];

static OBJECT_SYNC: [Column; 7] = [
    NAME,
    column("Node", "Node that holds the object.", Computed(cells::sync_node)),
    column("Object", "The object: kind, namespace, name.", Computed(cells::sync_object)),
    column(
        "Held Version",
        "Version that the node has persisted.",
        Text(&["status.objectResourceVersion"], NONE),
    ),
    AGE,
    wide("UID", "UID of the object.", Computed(cells::sync_uid)),
    wide("API Version", "Group and version of the object.", Text(&["spec.objectAPIVersion"], NONE)),
];
