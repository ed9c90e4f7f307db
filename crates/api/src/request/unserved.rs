//! Parts of objects that clusters serve and that are not served here: what is said to who asks for them. Pure.

use super::Refusal;
use edgesync_object::Status;
use edgesync_object::status::Reason;

/// Groups of kinds, kinds, their parts, and why they are not served.
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

/// The refusal for a part that is not served; none if it is not known either.
pub(super) fn refusal(group: &str, plural: &str, subresource: &str) -> Option<Refusal> {
    let (.., why) =
        UNSERVED.iter().find(|(of, kind, part, _)| (*of, *kind, *part) == (group, plural, subresource))?;
    let message = format!("{plural}/{subresource} is not served: {why}");
    Some(Refusal { status: Status::new(Reason::MethodNotAllowed, message), allow: "" })
}
