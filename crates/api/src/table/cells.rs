//! Cells computed by a function, kind by kind. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::fields::{
    NONE, UNKNOWN, UNSET, at, condition, few, first_text, int, int_at, is_deleted, is_true, list, or, str_at,
    text, texts, typed,
};
use edgesync_object::time;
use edgesync_object::{objectsync, split_api_version};

/// Prefix of labels that name a node's role.
const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
/// Maximum number of metrics of an autoscaler shown.
const METRICS: usize = 2;

/// Returns the readiness of a node, and whether it accepts Pods.
pub(super) fn node_status(node: &Value) -> String {
    let ready = match condition(node, "Ready") {
        "" => "Unknown",
        "True" => "Ready",
        _ => "NotReady",
    };
    let unschedulable = if is_true(node, "spec.unschedulable") { ",SchedulingDisabled" } else { "" };
    format!("{ready}{unschedulable}")
}

/// Returns the roles in the labels of a node.
pub(super) fn node_roles(node: &Value) -> String {
    let labels = at(node, "metadata.labels").and_then(Value::as_object).into_iter().flatten();
    let roles = labels.filter_map(|(key, value)| match key.strip_prefix(ROLE_PREFIX) {
        Some(role) => Some(role),
        None => value.as_str().filter(|_| key == "kubernetes.io/role"),
    });
    let roles: BTreeSet<&str> = roles.filter(|role| !role.is_empty()).collect();
    or(Vec::from_iter(roles).join(","), NONE)
}

pub(super) fn node_internal_ip(node: &Value) -> String {
    node_address(node, "InternalIP")
}

pub(super) fn node_external_ip(node: &Value) -> String {
    node_address(node, "ExternalIP")
}

fn node_address(node: &Value, kind: &str) -> String {
    let address = typed(node, "status.addresses", kind).map(|address| text(address, "address"));
    or(address.unwrap_or_default(), NONE)
}

/// Returns the phase of a volume or a claim.
pub(super) fn volume_phase(volume: &Value) -> String {
    if is_deleted(volume) { "Terminating".to_owned() } else { text(volume, "status.phase") }
}

/// Returns the access modes of a volume, abbreviated.
pub(super) fn volume_modes(volume: &Value) -> String {
    access_modes(volume, "spec.accessModes")
}

/// Returns the access modes granted to a claim, abbreviated.
pub(super) fn claim_modes(claim: &Value) -> String {
    access_modes(claim, "status.accessModes")
}

fn access_modes(object: &Value, path: &str) -> String {
    let short = |mode: &String| match mode.as_str() {
        "ReadWriteOnce" => Some("RWO"),
        "ReadOnlyMany" => Some("ROX"),
        "ReadWriteMany" => Some("RWX"),
        "ReadWriteOncePod" => Some("RWOP"),
        _ => None,
    };
    texts(object, path, "").iter().filter_map(short).collect::<Vec<_>>().join(",")
}

/// Returns the claim bound to a volume.
pub(super) fn volume_claim(volume: &Value) -> String {
    match at(volume, "spec.claimRef") {
        Some(claim @ Value::Object(_)) => format!("{}/{}", text(claim, "namespace"), text(claim, "name")),
        _ => String::new(),
    }
}

/// Returns the external addresses of a service.
pub(super) fn service_external_ip(service: &Value) -> String {
    let own = texts(service, "spec.externalIPs", "");
    match str_at(service, "spec.type") {
        "" | "ClusterIP" | "NodePort" => or(own.join(","), NONE),
        "LoadBalancer" => {
            let mut all = balancers(service);
            all.extend(own);
            or(all.join(","), "<pending>")
        }
        "ExternalName" => text(service, "spec.externalName"),
        _ => UNKNOWN.to_owned(),
    }
}

/// Returns the addresses assigned by a load balancer, sorted.
fn balancers(object: &Value) -> Vec<String> {
    let ingress = list(object, "status.loadBalancer.ingress").iter();
    let addresses = ingress.map(|point| first_text(point, &["ip", "hostname"], ""));
    addresses.filter(|address| !address.is_empty()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the ports of a service, with its node ports.
pub(super) fn service_ports(service: &Value) -> String {
    let ports = list(service, "spec.ports").iter().map(|port| {
        let (own, protocol) = (int(port, "port"), first_text(port, &["protocol"], "TCP"));
        match int(port, "nodePort") {
            node_port if node_port > 0 => format!("{own}:{node_port}/{protocol}"),
            _ => format!("{own}/{protocol}"),
        }
    });
    or(ports.collect::<Vec<_>>().join(","), NONE)
}

/// Returns the endpoints of a service.
pub(super) fn endpoints(endpoints: &Value) -> String {
    let mut all = Vec::new();
    for subset in list(endpoints, "subsets") {
        let addresses = texts(subset, "addresses", "ip");
        let ports = list(subset, "ports");
        if ports.is_empty() {
            all.extend_from_slice(&addresses);
        }
        for port in ports {
            let number = int(port, "port");
            all.extend(addresses.iter().map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{number}"),
                false => format!("{ip}:{number}"),
            }));
        }
    }
    few(&all, NONE)
}

/// Returns the ports of an EndpointSlice.
pub(super) fn slice_ports(slice: &Value) -> String {
    let ports = list(slice, "ports").iter().map(|port| first_text(port, &["port", "name"], "*"));
    few(&ports.collect::<Vec<_>>(), UNSET)
}

/// Returns the addresses of an EndpointSlice.
pub(super) fn slice_endpoints(slice: &Value) -> String {
    let addresses = list(slice, "endpoints").iter().flat_map(|endpoint| texts(endpoint, "addresses", ""));
    few(&addresses.collect::<Vec<_>>(), UNSET)
}

pub(super) fn ingress_hosts(ingress: &Value) -> String {
    let mut hosts = texts(ingress, "spec.rules", "host");
    hosts.retain(|host| !host.is_empty());
    few(&hosts, "*")
}

pub(super) fn ingress_address(ingress: &Value) -> String {
    balancers(ingress).join(",")
}

pub(super) fn ingress_ports(ingress: &Value) -> String {
    if list(ingress, "spec.tls").is_empty() { "80" } else { "80, 443" }.to_owned()
}

/// Returns the parameters of an ingress class.
pub(super) fn class_parameters(class: &Value) -> String {
    let Some(parameters @ Value::Object(_)) = at(class, "spec.parameters") else { return NONE.to_owned() };
    let group = text(parameters, "apiGroup");
    let dot = if group.is_empty() { "" } else { "." };
    format!("{}{dot}{group}/{}", text(parameters, "kind"), text(parameters, "name"))
}

pub(super) fn job_status(job: &Value) -> String {
    let is = |kind: &str| condition(job, kind) == "True";
    match () {
        () if is("Complete") => "Complete",
        () if is("Failed") => "Failed",
        () if is_deleted(job) => "Terminating",
        () if is("Suspended") => "Suspended",
        () if is("FailureTarget") => "FailureTarget",
        () => "Running",
    }
    .to_owned()
}

/// Returns succeeded and desired completions of a job.
pub(super) fn job_completions(job: &Value) -> String {
    let done = int(job, "status.succeeded");
    match (int_at(job, "spec.completions"), int(job, "spec.parallelism")) {
        (Some(desired), _) => format!("{done}/{desired}"),
        (None, at_once) if at_once > 1 => format!("{done}/1 of {at_once}"),
        _ => format!("{done}/1"),
    }
}

/// Returns how long a job took, or has been running.
pub(super) fn job_duration(job: &Value, now: Timestamp) -> String {
    let time = |path| str_at(job, path).parse::<Timestamp>().ok();
    time("status.startTime")
        .map_or_else(String::new, |start| time::between(start, time("status.completionTime").unwrap_or(now)))
}

/// Returns whether a cron job is suspended.
pub(super) fn cron_suspended(job: &Value) -> String {
    match at(job, "spec.suspend") {
        Some(Value::Bool(true)) => "True",
        Some(Value::Bool(false)) => "False",
        _ => UNSET,
    }
    .to_owned()
}

/// Returns the target of an autoscaler.
pub(super) fn scaler_reference(scaler: &Value) -> String {
    format!("{}/{}", text(scaler, "spec.scaleTargetRef.kind"), text(scaler, "spec.scaleTargetRef.name"))
}

/// Returns current and target metrics of an autoscaler.
pub(super) fn scaler_targets(scaler: &Value) -> String {
    let percent = |value: &Value, path: &str, otherwise: &str| {
        int_at(value, path).map_or_else(|| otherwise.to_owned(), |number| format!("{number}%"))
    };
    if let Some(target) = int_at(scaler, "spec.targetCPUUtilizationPercentage") {
        return format!(
            "cpu: {}/{target}%",
            percent(scaler, "status.currentCPUUtilizationPercentage", UNKNOWN)
        );
    }
    let metrics = list(scaler, "spec.metrics");
    let shown = metrics.iter().take(METRICS).enumerate().map(|(number, metric)| {
        let (source, of_resource, note) = match str_at(metric, "type") {
            "External" => ("external", false, " (avg)"),
            "Object" => ("object", false, " (avg)"),
            "Pods" => ("pods", false, ""),
            "Resource" => ("resource", true, ""),
            "ContainerResource" => ("containerResource", true, ""),
            _ => return "<unknown type>".to_owned(),
        };
        let metric = metric.get(source).unwrap_or(&Value::Null);
        let current = format!("status.currentMetrics.{number}.{source}.current");
        let current = at(scaler, &current).unwrap_or(&Value::Null);
        let name = if of_resource { format!("{}: ", text(metric, "name")) } else { String::new() };
        let average = text(metric, "target.averageValue");
        if !average.is_empty() {
            format!("{name}{}/{average}{note}", first_text(current, &["averageValue"], UNKNOWN))
        } else if of_resource {
            let target = percent(metric, "target.averageUtilization", "<auto>");
            format!("{name}{}/{target}", percent(current, "averageUtilization", UNKNOWN))
        } else {
            format!("{}/{}", first_text(current, &["value"], UNKNOWN), text(metric, "target.value"))
        }
    });
    let shown = or(shown.collect::<Vec<_>>().join(", "), NONE);
    match metrics.len().saturating_sub(METRICS) {
        0 => shown,
        more => format!("{shown} + {more} more..."),
    }
}

pub(super) fn binding_role(binding: &Value) -> String {
    format!("{}/{}", text(binding, "roleRef.kind"), text(binding, "roleRef.name"))
}

pub(super) fn binding_users(binding: &Value) -> String {
    subjects(binding, "User")
}

pub(super) fn binding_groups(binding: &Value) -> String {
    subjects(binding, "Group")
}

/// Returns the service accounts of a binding.
pub(super) fn binding_accounts(binding: &Value) -> String {
    subjects(binding, "ServiceAccount")
}

fn subjects(binding: &Value, kind: &str) -> String {
    let desired = list(binding, "subjects").iter().filter(|subject| str_at(subject, "kind") == kind);
    let names = desired.map(|subject| match text(subject, "namespace") {
        namespace if kind == "ServiceAccount" => format!("{namespace}/{}", text(subject, "name")),
        _ => text(subject, "name"),
    });
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the owner of a revision.
pub(super) fn controller(revision: &Value) -> String {
    let owners = list(revision, "metadata.ownerReferences");
    let Some(owner) = owners.iter().find(|owner| is_true(owner, "controller")) else {
        return NONE.to_owned();
    };
    let (group, _) = split_api_version(str_at(owner, "apiVersion"));
    let dot = if group.is_empty() { "" } else { "." };
    format!("{}{dot}{group}/{}", text(owner, "kind").to_ascii_lowercase(), text(owner, "name"))
}

/// Returns the validity of a lease after a renewal.
pub(super) fn lease_duration(lease: &Value) -> String {
    int_at(lease, "spec.leaseDurationSeconds").map_or_else(|| UNSET.to_owned(), time::duration)
}

/// Returns the object of an event.
pub(super) fn event_object(event: &Value) -> String {
    let kind = first_text(event, &["involvedObject.kind", "regarding.kind"], "").to_ascii_lowercase();
    match first_text(event, &["involvedObject.name", "regarding.name"], "") {
        name if name.is_empty() => kind,
        name => format!("{kind}/{name}"),
    }
}

/// Returns the reporter of an event.
pub(super) fn event_source(event: &Value) -> String {
    let reporter =
        ["source.component", "deprecatedSource.component", "reportingController", "reportingComponent"];
    let reporter = first_text(event, &reporter, "");
    match first_text(event, &["source.host", "deprecatedSource.host", "reportingInstance"], "") {
        host if host.is_empty() => reporter,
        host => format!("{reporter}, {host}"),
    }
}

/// Returns the node of an ObjectSync.
pub(super) fn sync_node(sync: &Value) -> String {
    let name = objectsync::split_sync_name(str_at(sync, "metadata.name"));
    name.map_or(UNKNOWN, |(node, _)| node).to_owned()
}

/// Returns the UID of the object of an ObjectSync.
pub(super) fn sync_uid(sync: &Value) -> String {
    let name = objectsync::split_sync_name(str_at(sync, "metadata.name"));
    name.map_or(UNKNOWN, |(_, uid)| uid).to_owned()
}

/// Returns the object of an ObjectSync as `kind/namespace/name`.
pub(super) fn sync_object(sync: &Value) -> String {
    let kind = text(sync, "spec.objectKind").to_ascii_lowercase();
    let parts = [kind, text(sync, "metadata.namespace"), text(sync, "spec.objectName")];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    or(parts.join("/"), NONE)
}
