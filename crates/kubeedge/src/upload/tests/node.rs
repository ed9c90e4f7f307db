//! The Node: registration, patches, and readiness after an absence.

use super::*;
use crate::testing::WALL;
use edgesync_protocol::change::Put;

/// Returns the report of a node on the machine of the captured EdgeCore.
fn captured_report() -> Value {
    let capture = captured("samples/c2s-node-insert.json");
    let node = &capture["content"];
    let label = |key: &str| (key.to_owned(), node["metadata"]["labels"][key].clone());
    let keys =
        ["kubernetes.io/arch", "kubernetes.io/hostname", "kubernetes.io/os", "node-role.kubernetes.io/edge"];
    let labels: serde_json::Map<_, _> = keys.into_iter().map(label).collect();
    let mut status = node["status"].clone();
    for field in ["conditions", "daemonEndpoints"] {
        status.as_object_mut().unwrap().remove(field).unwrap();
    }
    let conditions = json!([{"type": "edgesync.io/StoreHealthy", "status": "True", "reason": "Writable",
        "lastTransitionTime": "2026-11-20T00:00:00Z"}]);
    json!({"node": {"labels": labels, "status": status, "conditions": conditions}})
}

#[test]
fn a_registration_equals_edgecores_except_kubelet_fields() {
    let mut test = Test::new();
    let messages = test.upload(&[(5, captured_report())]);
    let capture = captured("samples/c2s-node-insert.json");
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0]["route"], capture["route"]);
    let mut content = messages[0]["content"].clone();
    let now = "2026-11-21T01:42:31Z";
    let expected = json!([
        {"type": "edgesync.io/StoreHealthy", "status": "True", "reason": "Writable", "lastHeartbeatTime": now,
            "lastTransitionTime": "2026-11-20T00:00:00Z"},
        {"type": "Ready", "status": "True", "reason": "AgentReady", "lastHeartbeatTime": now, "lastTransitionTime": now,
            "message": "edgesync stores objects; it runs no Pods"},
    ]);
    assert_eq!(content["status"]["conditions"].take(), expected);
    assert_eq!(
        content["spec"].take(),
        json!({"taints": [{"key": "edgesync.io/no-pods", "effect": "NoSchedule"}]})
    );
    let noted = "kubernetes.io/arch=amd64,kubernetes.io/hostname=edgea,kubernetes.io/os=linux,node-role.kubernetes.io/edge=";
    assert_eq!(content["metadata"]["annotations"].take(), json!({"edgesync.io/node-labels": noted}));
    let mut same = capture["content"].clone();
    for part in ["/status/conditions", "/spec", "/metadata/annotations"] {
        *same.pointer_mut(part).unwrap() = Value::Null;
    }
    same["status"].as_object_mut().unwrap().remove("daemonEndpoints");
    assert_eq!(content, same);
}

#[test]
fn a_node_patch_equals_edgecores_form_and_the_registration() {
    let (mut new, mut known) = (Test::new(), Test::registered());
    let insert = new.upload(&[(5, captured_report())]).remove(0)["content"].take();
    let message = known.upload(&[(5, captured_report())]).remove(0);
    let capture = captured("samples/c2s-nodepatch.json");
    assert_eq!(message["route"], capture["route"]);
    let patch = |message: &Value| serde_json::from_str::<Value>(text(&message["content"])).unwrap();
    let (mut patch, capture) = (patch(&message), patch(&capture));
    let kinds = |patch: &Value| {
        let kind = |condition: &Value| json!({"type": condition["type"]});
        patch["status"]["conditions"].as_array().unwrap().iter().map(kind).collect::<Vec<_>>()
    };
    assert_eq!(capture["status"]["$setElementOrder/conditions"], Value::from(kinds(&capture)));
    assert_eq!(patch["status"]["$setElementOrder/conditions"].take(), Value::from(kinds(&patch)));
    let replace = patch["status"]["addresses"].as_array_mut().unwrap().pop();
    assert_eq!(replace, Some(json!({"$patch": "replace"})));
    patch["status"].as_object_mut().unwrap().remove("$setElementOrder/conditions");
    assert_eq!(patch["status"], insert["status"]);
    assert_eq!(patch["metadata"]["labels"], insert["metadata"]["labels"]);
    assert_eq!(patch.get("spec"), None);
}

#[test]
fn a_created_node_yields_its_uid() {
    let mut test = Test::new();
    let messages = test.upload(&[(5, report())]);
    let response = captured("samples/s2c-node-insert-response.json")["content"].clone();
    assert!(test.hear(&messages[0], &response).is_empty());
    assert_eq!(test.settled(5), []);
    assert_eq!(test.uploads.node_uid(), Some("baf436a4-a076-49bf-b4a2-69aad1bee693"));
    assert_eq!(test.uploads.node, Some(("365".into(), WALL)));
}

#[test]
fn a_node_that_is_there_already_is_patched() {
    let mut test = Test::new();
    let messages = test.upload(&[(5, report())]);
    let exists =
        captured("edgecore-metaserver-session/00010-s2c-response-null_node_edgea.json")["content"].clone();
    let next = test.hear(&messages[0], &exists);
    assert_eq!(routes(&next), ["patch null/nodepatch/edgea"]);
    test.open();
    let patched = captured("samples/s2c-nodepatch-response.json")["content"].clone();
    assert!(test.hear(&next[0], &patched).is_empty());
    assert_eq!(test.settled(5), []);
    assert_eq!(test.uploads.node.as_ref().map(|(version, _)| version.as_str()), Some("372"));
}

#[test]
fn a_node_that_was_made_without_all_of_its_labels_is_patched() {
    let mut test = Test::new();
    let messages = test.upload(&[(5, report())]);
    let half = json!({"Object": {"metadata": {"creationTimestamp": null}}, "Err": null});
    assert_eq!(routes(&test.hear(&messages[0], &half)), ["patch null/nodepatch/edgea"]);
}

#[test]
fn a_deleted_node_is_registered_again() {
    let mut test = Test::registered();
    let messages = test.upload(&[(5, report())]);
    assert_eq!(routes(&messages), ["patch null/nodepatch/edgea"]);
    let next = test.hear(&messages[0], &error(404, "NotFound"));
    assert_eq!(routes(&next), ["insert null/node/edgea"]);
    assert!(test.hear(&next[0], &ok("new")).is_empty());
    assert_eq!((test.settled(5), test.uploads.node_uid()), (vec![], Some("new")));
}

#[test]
fn a_node_that_is_there_and_is_not_waits_between_attempts() {
    let mut test = Test::new();
    let mut messages = test.upload(&[(5, report())]);
    for _ in 0..2 {
        let is_insert = routes(&messages)[0].starts_with("insert");
        messages = test.hear(&messages[0], &error(if is_insert { 409 } else { 404 }, "X"));
        assert_eq!(messages.len(), 1);
    }
    for _ in 0..5 {
        let is_insert = routes(&messages)[0].starts_with("insert");
        assert!(test.hear(&messages[0], &error(if is_insert { 409 } else { 404 }, "X")).is_empty());
        messages = test.tick();
        assert_eq!(routes(&messages)[0].starts_with("insert"), !is_insert);
    }
}

#[test]
fn a_refused_report_is_final_and_an_unreachable_server_is_not() {
    for (content, reason) in [
        (error(403, "Forbidden"), RefusedReason::Other),
        (error(422, "Invalid"), RefusedReason::Invalid),
        (json!("unmarshal error"), RefusedReason::Invalid),
    ] {
        let mut test = Test::new();
        let messages = test.upload(&[(5, report())]);
        assert!(test.hear(&messages[0], &content).is_empty());
        assert_eq!(test.settled(5), [(5, reason)], "{content}");
    }
    for content in
        [error(500, "InternalError"), error(429, "TooManyRequests"), json!({"Object": {}, "Err": {}})]
    {
        let mut test = Test::new();
        let mut messages = test.upload(&[(5, report())]);
        for _ in 0..5 {
            assert!(test.hear(&messages[0], &content).is_empty());
            test.open();
            messages = test.tick();
            assert_eq!(routes(&messages), ["insert null/node/edgea"]);
        }
    }
}

fn node(name: &str, ready: &str) -> Put {
    let conditions = json!([{"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-20T00:00:00Z"},
        {"type": "PIDPressure", "status": "Unknown"}]);
    let body = json!({"kind": "Node", "status": {"conditions": conditions}}).to_string();
    Put {
        uid: "seen".into(),
        version: serde_json::from_value(json!("7")).unwrap(),
        supersedes: None,
        resource: Arc::new(kinds::guess("v1", "Node", false)),
        namespace: "".into(),
        name: name.into(),
        body: RawValue::from_string(body).unwrap(),
    }
}

impl Test {
    fn see(&mut self, node: &Put) -> Vec<Value> {
        self.uploads.node_received(&mut self.outbound, node);
        sent(&mut self.outbound)
    }
}

#[test]
fn a_received_node_yields_its_uid_and_another_one_does_not() {
    let mut test = Test::new();
    assert!(test.see(&node("other", "Unknown")).is_empty());
    assert_eq!(test.uploads.node_uid(), None);
    assert!(test.see(&node("edgea", "True")).is_empty());
    assert_eq!(test.uploads.node_uid(), Some("seen"));
}

#[test]
fn an_unready_node_is_patched_ready_at_a_limited_rate() {
    let mut test = Test::new();
    let message = test.see(&node("edgea", "Unknown")).remove(0);
    assert_eq!(routes(std::slice::from_ref(&message)), ["patch null/nodepatch/edgea"]);
    let patch: Value = serde_json::from_str(text(&message["content"])).unwrap();
    let (now, kinds) = ("2026-11-21T01:42:31Z", json!([{"type": "Ready"}]));
    let ready = json!({"type": "Ready", "status": "True", "reason": "AgentReady", "lastHeartbeatTime": now,
        "lastTransitionTime": now, "message": "edgesync stores objects; it runs no Pods"});
    assert_eq!(patch, json!({"status": {"$setElementOrder/conditions": kinds, "conditions": [ready]}}));
    assert!(test.see(&node("edgea", "Unknown")).is_empty());
    assert_eq!(test.uploads.deadline(), Some(Duration::from_secs(10)));
    assert!(test.see(&node("edgea", "True")).is_empty());
    assert_eq!(test.uploads.deadline(), None, "it is ready now");
    test.see(&node("edgea", "False"));
    assert_eq!(routes(&test.tick()), ["patch null/nodepatch/edgea"]);
    assert_eq!(test.uploads.deadline(), None);
}

#[test]
fn a_missing_transition_time_is_taken_from_the_node() {
    let mut test = Test::new();
    let mut seen = node("edgea", "True");
    let conditions = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T00:00:00Z"},
        {"type": "A", "status": "True", "lastTransitionTime": "2026-11-19T00:00:00Z"},
        {"type": "B", "status": "True", "lastTransitionTime": "2026-11-18T00:00:00Z"}]);
    seen.body = RawValue::from_string(json!({"status": {"conditions": conditions}}).to_string()).unwrap();
    test.see(&seen);
    let told = json!([{"type": "A", "status": "True", "reason": "X"}, {"type": "B", "status": "False", "reason": "X"}]);
    let message = test.upload(&[(5, json!({"node": {"conditions": told}}))]).remove(0);
    let patch: Value = serde_json::from_str(text(&message["content"])).unwrap();
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    let since: Vec<_> =
        conditions.iter().map(|item| (text(&item["type"]), text(&item["lastTransitionTime"]))).collect();
    let expected =
        [("Ready", "2026-11-20T00:00:00Z"), ("A", "2026-11-19T00:00:00Z"), ("B", "2026-11-21T01:42:31Z")];
    assert_eq!(since, expected);
}
