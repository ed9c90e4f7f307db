//! The status of Pods and of custom resources.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::*;

#[test]
fn the_status_of_a_pod_is_patched_as_an_edgecore_does() {
    let capture = captured("samples/c2s-podpatch.json");
    let patch: Value = serde_json::from_str(text(&capture["content"])).unwrap();
    let mut item = status("v1", "Pod", patch["status"].clone());
    item["status"]["uid"] = patch["metadata"]["uid"].clone();
    let mut test = Test::new();
    let message = test.upload(&[(5, item)]).remove(0);
    assert_eq!(message["route"], capture["route"]);
    assert_eq!(serde_json::from_str::<Value>(text(&message["content"])).unwrap(), patch);
    let response = captured("samples/s2c-podpatch-response.json")["content"].clone();
    assert!(test.hear(&message, &response).is_empty());
    assert_eq!(test.settled(5), []);
    assert_eq!(test.uploads.node_uid(), None, "that was no Node");
}

#[test]
fn refusals_name_the_fate_of_the_object() {
    for (code, reason) in [
        (404, RefusedReason::Gone),
        (409, RefusedReason::Recreated),
        (422, RefusedReason::Invalid),
        (403, RefusedReason::Other),
    ] {
        let mut test = Test::new();
        let pod = test.upload(&[(5, status("v1", "Pod", json!({})))]).remove(0);
        test.hear(&pod, &error(code, "Some"));
        let confirm = test.confirmed().unwrap();
        assert_eq!((confirm.refused[0].reason, confirm.refused[0].message.as_str()), (reason, "it is Some"));

        let custom = test.upload(&[(5, status("lab.io/v1", "Widget", json!({})))]).remove(0);
        let content = json!({"Status": "Rejected", "Error": error(code, "Some")["Err"]});
        test.hear(&custom, &content);
        assert_eq!(test.settled(5), [(5, reason)], "{code}");
    }
}

#[test]
fn a_busy_server_is_retried() {
    let mut test = Test::new();
    let mut message = test.upload(&[(5, status("lab.io/v1", "Widget", json!({})))]).remove(0);
    for _ in 0..6 {
        let content = json!({"Status": "Rejected", "Error": error(503, "ServiceUnavailable")["Err"]});
        assert!(test.hear(&message, &content).is_empty());
        test.open();
        message = test.tick().remove(0);
    }
}

#[test]
fn kinds_without_a_status_of_their_own_are_refused_at_once() {
    let mut test = Test::new();
    let items: Vec<_> =
        (5..).zip(["ConfigMap", "Secret", "Node"].map(|kind| status("v1", kind, json!({})))).collect();
    assert!(test.upload(&items).is_empty());
    assert_eq!(test.settled(7), [5, 6, 7].map(|seq| (seq, RefusedReason::Other)));
}

#[test]
fn a_custom_resource_status_uses_the_dynamic_controller() {
    let mut test = Test::new();
    let message = test.upload(&[(5, status("lab.io/v1", "Policy", json!({"phase": "On"})))]).remove(0);
    assert_eq!(message["route"], captured("samples/c2s-application-list.json")["route"]);
    let content = &message["content"];
    assert_eq!((&content["Key"], &content["Verb"]), (&json!("/lab.io/v1/policies/lab/web"), &json!("patch")));
    let decode =
        |value: &Value| serde_json::from_slice::<Value>(&BASE64.decode(text(value)).unwrap()).unwrap();
    let option = decode(&content["Option"]);
    assert_eq!((&option["Name"], &option["Subresources"]), (&json!("web"), &json!(["status"])));
    assert_eq!(decode(&option["Data"]), json!({"metadata": {"uid": "u"}, "status": {"phase": "On"}}));
    assert!(test.hear(&message, &json!({"Status": "Approved", "RespBody": BASE64.encode("{}")})).is_empty());
    assert_eq!(test.settled(5), []);
}

#[test]
fn keys_encode_cluster_scope_and_the_core_group() {
    let mut test = Test::new();
    let mut item = status("v1", "PersistentVolume", json!({}));
    item["status"]["object"]["namespace"] = json!("");
    let message = test.upload(&[(5, item)]).remove(0);
    assert_eq!(message["content"]["Key"], "/core/v1/persistentvolumes/null/web");
}

#[test]
fn a_silent_dynamic_controller_fails_after_three_attempts() {
    for noise in [None, Some(json!({"Status": "InProcessing"}))] {
        let mut test = Test::registered();
        let mut messages = test.upload(&[(5, status("lab.io/v1", "Widget", json!({}))), (6, report())]);
        for attempt in 1..=3 {
            assert_eq!(routes(&messages)[0], "null null", "attempt {attempt}");
            if let Some(noise) = &noise {
                test.hear(&messages[0], noise);
            }
            messages = test.tick();
        }
        assert_eq!(routes(&messages), ["patch null/nodepatch/edgea"], "the others go on");
        test.open();
        test.hear(&messages[0], &ok("n"));
        let confirm = test.confirmed().unwrap();
        assert_eq!((confirm.refused[0].seq, confirm.refused[0].reason), (5, RefusedReason::Other));
        assert!(confirm.refused[0].message.contains("dynamic controller"), "{}", confirm.refused[0].message);
    }
}
