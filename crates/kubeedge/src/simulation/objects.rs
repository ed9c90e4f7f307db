//! The objects of the simulated cluster.

use serde_json::{Value, json};

pub(super) const NODE: &str = "edge";
pub(super) const NAMESPACE: &str = "lab";

/// Returns a Pod on the node that references some of the ConfigMaps and Secrets, each in another
/// way.
pub(super) fn pod(name: &str, generation: u64, configs: [u64; 3], secret: u64, size: usize) -> Value {
    let [volume, env, from] = configs.map(|n| format!("config-{n}"));
    let secret = format!("secret-{secret}");
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"generation": generation.to_string()}},
        "spec": {
            "nodeName": NODE,
            "volumes": [{"name": "v", "configMap": {"name": volume}}],
            "imagePullSecrets": [{"name": secret}],
            "containers": [{"name": "c", "image": "registry.invalid/web:1", "args": ["x".repeat(size)],
                "env": [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": env, "key": "k"}}}],
                "envFrom": [{"configMapRef": {"name": from}}]}],
        },
    })
}

pub(super) fn config(kind: &str, name: &str, generation: u64, size: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {"generation": generation.to_string(), "x": "x".repeat(size)},
    })
}

pub(super) fn widget(name: &str, generation: u64, size: usize) -> Value {
    json!({
        "apiVersion": "lab.io/v1", "kind": "Widget",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"generation": generation, "x": "x".repeat(size)},
    })
}

/// Returns an Event as the node creates it.
pub(super) fn event(number: u64) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": format!("{NODE}.{number:016x}"), "namespace": "default"},
        "eventTime": "2026-11-21T01:42:31.000000Z",
        "reportingController": "edgesync.io/agent", "reportingInstance": NODE,
        "action": "Sync", "reason": "Tested", "type": "Normal", "note": format!("event {number}"),
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    })
}

/// Returns a node report.
pub(super) fn report(number: u64) -> Value {
    json!({
        "labels": {"kubernetes.io/hostname": NODE},
        "status": {"nodeInfo": {"architecture": "amd64", "bootID": number.to_string()}},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": "ready"}],
    })
}
