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

#[tokio::test]
async fn roll_out_is_written_if_the_spec_and_the_sequence_are_those_that_were_read() {
    let rig = Rig::start().await;
    let made = rig
        .create(json!({
            "apiVersion": API_VERSION, "kind": "ClusterPlacement", "metadata": {"name": "maps"},
            "spec": {"objects": {"kinds": ["cm"]}, "nodes": {}},
        }))
        .await;
    let rules = Rules::new(&rig.requests());
    let key = kinds::guess(API_VERSION, "ClusterPlacement", false).key("", "maps");
    let write = async |uid: &str, generation: u64, expected: u64| {
        let status = Some(json!({"sequence": expected + 1, "nextNumber": 7}).to_string());
        let (rule, object) = (RuleKey::Object(Arc::from(uid)), Some((key.clone(), generation)));
        rules.write_rollout(RolloutWrite { rule, object, expected, status }).await.unwrap()
    };
    let get = async || rig.get(API_VERSION, "ClusterPlacement", "", "maps").await.unwrap();
    assert!(!write("another", 1, 0).await);
    assert!(!write(made.uid(), 2, 0).await);
    assert!(!write(made.uid(), 1, 3).await);
    assert!(write(made.uid(), 1, 0).await);
    assert!(!write(made.uid(), 1, 0).await, "it is written already");
    // The other fields of the status have writes of their own.
    let status = json!({"observedGeneration": 1, "objects": 3, "nodes": 1});
    rules.set_status(RuleStatus { key: key.clone(), uid: Arc::from(made.uid()), status }).await.unwrap();
    let after = get().await;
    assert_eq!(
        (at(&after, "/status/objects"), at(&after, "/status/rollout/sequence")),
        (&json!(3), &json!(1))
    );
    // The schema keeps all fields.
    assert_eq!(at(&after, "/status/rollout/nextNumber"), &json!(7));
    assert!(write(made.uid(), 1, 1).await);
    assert_eq!(at(&get().await, "/status/objects"), &json!(3));
    // A changed spec may have other waves.
    rig.patch(&get().await, json!({"spec": {"objects": {"kinds": ["cm", "secrets"]}}})).await;
    assert!(!write(made.uid(), 1, 2).await);
    assert!(write(made.uid(), 2, 2).await);
    let (rule, object) = (RuleKey::Object(Arc::from(made.uid())), Some((key.clone(), 2)));
    let delete = RolloutWrite { rule, object, expected: 3, status: None };
    assert!(rules.write_rollout(delete).await.unwrap());
    let after = get().await;
    assert_eq!((at(&after, "/status/objects"), at(&after, "/status/rollout")), (&json!(3), &Value::Null));
    let rule = RuleKey::Configured("maps".into());
    let configured = RolloutWrite { rule, object: None, expected: 0, status: None };
    let refused = rules.write_rollout(configured).await;
    assert!(matches!(refused, Err(SourceError::Missing { .. })), "{refused:?}");
}
