//! Replays the captured sessions to the bridge as CloudCore would: the acknowledgements equal
//! EdgeCore's, and the objects held at the end equal those that CloudCore sent.

use serde_json::{Value, json};

use super::rig::{Rig, config};
use crate::BridgeConfig;
use crate::captures::session;
use edgesync_object::NodeName;

/// Returns a rig whose CloudCore sends only the replayed messages.
fn quiet(node: &str, watch: &[&str]) -> Rig {
    let node = NodeName::parse(node).unwrap();
    let mut rig = Rig::new(BridgeConfig { node, max_object: 1 << 20, ..config(&[], watch) });
    rig.cloud.answers = false;
    rig.connect();
    rig
}

/// Returns the last message sent about this resource, which an answer answers.
fn last_about(rig: &Rig, resource: &Value) -> Option<Value> {
    let is_question = |sent: &&Value| sent["route"]["operation"] != "response";
    rig.sent.iter().rev().filter(is_question).find(|sent| sent["route"]["resource"] == *resource).cloned()
}

/// Replays a session; returns the number of acknowledged messages.
fn play(rig: &mut Rig, messages: &[(bool, Value)]) -> usize {
    let mut acknowledged = 0;
    let expected = |id: &Value| {
        let answers =
            |(is_ours, message): &&(bool, Value)| *is_ours && message["header"]["parent_msg_id"] == *id;
        messages.iter().find(answers).map(|(_, message)| message.clone())
    };
    for (_, captured) in messages.iter().filter(|(is_ours, _)| !is_ours) {
        let mut message = captured.clone();
        if !captured["header"]["parent_msg_id"].is_null() {
            // It answers a query of this rig, if there was one; otherwise it is a late one.
            if let Some(asked) = last_about(rig, &captured["route"]["resource"]) {
                message["header"]["parent_msg_id"] = asked["header"]["msg_id"].clone();
            }
        }
        let before = rig.sent.len();
        rig.hear(&format!("{message}\n"));
        let id = &captured["header"]["msg_id"];
        let ours = rig.sent[before..].iter().find(|sent| sent["header"]["parent_msg_id"] == *id);
        let resource = captured["route"]["resource"].as_str().unwrap();
        let is_spared = resource.contains("/lease/")
            || (resource.contains("/node/") && captured["route"]["operation"] == "response");
        match (expected(id), ours) {
            (Some(mut theirs), Some(ours)) => {
                for field in ["msg_id", "timestamp"] {
                    theirs["header"][field] = ours["header"][field].clone();
                }
                assert_eq!(*ours, theirs, "{resource}");
                acknowledged += 1;
            }
            (Some(_), None) => assert!(is_spared, "not acknowledged: {captured}"),
            (None, Some(ours)) => panic!("CloudCore does not wait for {ours}"),
            (None, None) => {}
        }
        rig.pass(1);
    }
    acknowledged
}

#[test]
fn a_pod_session_is_acknowledged_like_edgecore() {
    let mut rig = quiet("edgea", &[]);
    let messages = session("edgecore-edged-session");
    let acknowledged = play(&mut rig, &messages);
    assert_eq!(acknowledged, 15);
    // Pod, ConfigMap and Secret were created and deleted; the Node is held in its last version.
    assert_eq!(rig.store.shown(), ["Node /edgea baf436a4-a076-49bf-b4a2-69aad1bee693 372"]);
}

#[test]
fn a_custom_resource_session_is_acknowledged_like_edgecore() {
    let mut rig = quiet("edgea", &["lab.io/v1/widgets"]);
    let messages = session("edgecore-metaserver-session");
    play(&mut rig, &messages);
    let kinds: Vec<_> =
        rig.store.shown().iter().map(|shown| shown[..shown.find(' ').unwrap()].to_owned()).collect();
    assert_eq!(kinds, ["Node", "Widget", "Widget"]);
}

#[test]
fn every_acknowledgement_of_a_small_client_is_sent_here_too() {
    let mut rig = quiet("edge1", &[]);
    // That client never queried a Lease: there is no answer to it.
    rig.hear(&json!({
        "header": {"msg_id": "00000000-0000-4000-8000-00000000ffff", "timestamp": 1,
            "parent_msg_id": last_about(&rig, &json!("kube-node-lease/lease/edge1")).unwrap()["header"]["msg_id"]},
        "route": {"source": "edgecontroller", "group": "resource", "operation": "response",
            "resource": "kube-node-lease/lease/edge1"},
        "content": {"Object": null, "Err": {"ErrStatus": {"reason": "NotFound", "code": 404}}},
    }).to_string());
    let messages = session("py-first-session");
    assert_eq!(play(&mut rig, &messages), 13);
    let shown = rig.store.shown();
    let held: Vec<_> =
        shown.iter().map(|shown| shown.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        held,
        ["ConfigMap lab/cm-0", "ConfigMap lab/cm-1", "Node /edge1", "Secret lab/cm-s0", "Secret lab/cm-s1"]
    );
}
