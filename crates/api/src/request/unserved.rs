//! Subresources that clusters serve and this API does not, with the reason for the client. Pure.

use super::Refusal;
use edgesync_object::Status;
use edgesync_object::status::Reason;

/// Group, plural, subresource, and why it is not served.
const UNSERVED: &[(&str, &str, &str, &str)] = &[
    (
        "",
        "pods",
        "log",
        "nothing behind this API runs containers, so there are no logs: ask the programs on the device",
    ),
    ("", "pods", "exec", "nothing behind this API runs containers: use a shell on the device"),
    ("", "pods", "attach", "nothing behind this API runs containers: use a shell on the device"),
    ("", "pods", "portforward", "nothing behind this API runs containers: use a tunnel to the device"),
    ("", "pods", "proxy", "nothing behind this API runs containers: connect to the device"),
    ("", "services", "proxy", "no network leads from here to the device: connect to it"),
    ("", "nodes", "proxy", "no kubelet runs on the device: connect to it, or use 'edgesync status' there"),
    ("", "pods", "ephemeralcontainers", "nothing behind this API runs containers: use a shell on the device"),
    ("", "pods", "eviction", "nothing here evicts Pods: delete them"),
    ("", "pods", "binding", "nothing here schedules Pods: rules of placement say what goes to which node"),
    (
        "",
        "namespaces",
        "finalize",
        "a namespace goes by itself when it is empty: take the finalizers off what is left in it",
    ),
    (
        "",
        "serviceaccounts",
        "token",
        "no tokens of ServiceAccounts are handed out: use a certificate of an operator",
    ),
    (
        "certificates.k8s.io",
        "certificatesigningrequests",
        "approval",
        "nothing here signs certificates: operators and nodes get theirs with edgesync-cloud",
    ),
];

/// Returns the refusal of an unserved subresource; `None` if it is unknown.
pub(super) fn refusal(group: &str, plural: &str, subresource: &str) -> Option<Refusal> {
    let (.., reason) = UNSERVED
        .iter()
        .find(|(api_group, kind, name, _)| (*api_group, *kind, *name) == (group, plural, subresource))?;
    let message = format!("{plural}/{subresource} is not served: {reason}");
    Some(Refusal { status: Status::new(Reason::MethodNotAllowed, message), allow: "" })
}
