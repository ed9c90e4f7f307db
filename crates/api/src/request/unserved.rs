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
        "no kubelet runs containers here, so there are no logs; hint: read the logs of the programs on the device",
    ),
    ("", "pods", "exec", "no kubelet runs containers here; hint: use a shell on the device"),
    ("", "pods", "attach", "no kubelet runs containers here; hint: use a shell on the device"),
    ("", "pods", "portforward", "no kubelet runs containers here; hint: use a tunnel to the device"),
    ("", "pods", "proxy", "no kubelet runs containers here; hint: connect to the device"),
    ("", "services", "proxy", "the server has no route to the device; hint: connect to it directly"),
    (
        "",
        "nodes",
        "proxy",
        "no kubelet runs on the device; hint: connect to the device, or use 'edgesync status' there",
    ),
    ("", "pods", "ephemeralcontainers", "no kubelet runs containers here; hint: use a shell on the device"),
    ("", "pods", "eviction", "Pods are not evicted here; hint: delete them"),
    ("", "pods", "binding", "no scheduler runs here; hint: place Pods with rules of placement"),
    (
        "",
        "serviceaccounts",
        "token",
        "tokens of ServiceAccounts are not issued; hint: use a client certificate of an operator",
    ),
    (
        "certificates.k8s.io",
        "certificatesigningrequests",
        "approval",
        "certificate requests are not signed here; hint: edgesync-cloud issues certificates of operators and nodes",
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
