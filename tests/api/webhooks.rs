//! Webhook configurations are stored as objects, and never called.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_api::Limits;
use edgesync_testkit::serving::{Running, config_map, send};
use serde_json::json;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JSON: &str = "Content-Type: application/json\r\n";

/// Nothing listens at the URL: a server that called it would refuse the object.
#[tokio::test]
async fn admission_webhooks_are_not_called() {
    let running = Running::cloud(Limits::cloud()).await;
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "refuses-all"},
        "webhooks": [{
            "name": "all.example.com", "failurePolicy": "Fail", "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["*"]}]
        }]
    });
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let created = send(&running.unix, "POST", path, JSON, &webhook.to_string()).await;
    assert_eq!(created.code, 201, "{created:?}");
    let accepted = send(&running.unix, "POST", MAPS, JSON, &config_map("a", "1")).await;
    assert_eq!(accepted.code, 201, "{accepted:?}");
}
