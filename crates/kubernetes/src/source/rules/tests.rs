use std::sync::Arc;

use serde_json::json;

use super::super::testing::{Rig, at};
use super::*;

#[tokio::test]
async fn the_status_of_a_rule_is_written_if_the_uid_matches() {
    let rig = Rig::start().await;
    let placement = |name: &str| {
        json!({
            "apiVersion": API_VERSION, "kind": "Placement", "metadata": {"name": name, "namespace": "default"},
            "spec": {"objects": {"kinds": ["cm"]}, "nodes": {}},
        })
    };
    let made = rig.create(placement("maps")).await;
    let rules = Rules::new(&rig.requests());
    let key = kinds::guess(API_VERSION, "Placement", true).key("default", "maps");
    let rule = |uid: &str, objects: u64| RuleStatus {
        key: key.clone(),
        uid: Arc::from(uid),
        status: json!({"observedGeneration": 1, "objects": objects, "nodes": 1}),
    };
    let get = async || rig.get(API_VERSION, "Placement", "default", "maps").await.unwrap();
    rules.set_status(rule(made.uid(), 3)).await.unwrap();
    let after = get().await;
    assert_eq!((at(&after, "/status/objects"), at(&after, "/spec")), (&json!(3), at(&made, "/spec")));
    rules.set_status(rule(made.uid(), 3)).await.unwrap();
    assert_eq!(
        get().await.resource_version(),
        after.resource_version(),
        "what it says already is not written"
    );
    rules.set_status(rule("another", 4)).await.unwrap();
    assert_eq!(get().await, after);
    rig.delete(&after).await;
    rules.set_status(rule(made.uid(), 5)).await.unwrap();
}
