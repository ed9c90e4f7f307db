//! Handshake, silence, and invalid messages.

use serde_json::json;

use super::rig::{Rig, config, object};
use crate::{BridgeNotice, DynamicController};
use edgesync_protocol::edge::EdgePhase;

#[test]
fn a_hello_queries_the_lease_and_its_answer_welcomes() {
    let mut rig = Rig::new(config(&[], &[]));
    rig.cloud.answers = false;
    rig.connect();
    assert_eq!(rig.machine.phase(), EdgePhase::Greeting);
    let asked = rig.sent.iter().any(|sent| {
        sent["route"]["operation"] == "query" && sent["route"]["resource"] == "kube-node-lease/lease/edge-1"
    });
    assert!(asked, "{:?}", rig.sent);
    rig.cloud.answers = true;
    rig.pass(60);
    assert_eq!(rig.machine.phase(), EdgePhase::Live);
    assert!(rig.machine.in_sync());
}

#[test]
fn a_missing_lease_is_created_as_soon_as_its_owner_is_known() {
    let mut rig = Rig::new(config(&[], &[]));
    rig.cloud.lease = None;
    rig.connect();
    rig.pass(1);
    assert_eq!(rig.cloud.lease, None, "without an owner it would outlive its Node");
    let metadata = json!({"name": "edge-1", "uid": "u1", "resourceVersion": "7"});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
    rig.push("edgecontroller", "insert", "null/node/edge-1", &node);
    let lease = rig.cloud.lease.clone().unwrap();
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "u1");
}

#[test]
fn messages_before_the_welcome_are_handled_after_it() {
    let mut rig = Rig::new(config(&[], &[]));
    rig.cloud.answers = false;
    rig.connect();
    let id = rig.push_object("insert", &object("Pod", "lab/web", "u1", 7));
    assert_eq!((rig.store.rows.len(), rig.acknowledged(&id)), (0, 0));
    rig.cloud.answers = true;
    rig.pass(60);
    assert_eq!((rig.store.shown(), rig.acknowledged(&id)), (vec!["Pod lab/web u1 7".to_owned()], 1));
}

#[test]
fn a_cloudcore_silent_to_three_hellos_gets_a_new_connection() {
    let mut rig = Rig::new(config(&[], &[]));
    rig.cloud.answers = false;
    rig.connect();
    rig.pass(10);
    assert_eq!(rig.reconnects, 0);
    rig.pass(110);
    assert!(rig.reconnects > 0);
}

#[test]
fn an_unreadable_message_is_reported_and_changes_nothing() {
    let mut rig = Rig::settled(config(&[], &[]), |_| {});
    for text in ["no json", "{}", r#"{"header":{},"route":{}}"#, "null", "[]"] {
        rig.hear(text);
    }
    assert_eq!(rig.bridge.counters().bad, 5);
    assert!(rig.notices.iter().all(|notice| matches!(notice, BridgeNotice::BadMessage { .. })));
    let id = rig.push_object("insert", &object("Pod", "lab/web", "u1", 7));
    assert_eq!(rig.acknowledged(&id), 1);
}

#[test]
fn a_message_about_nothing_that_is_kept_is_acknowledged() {
    let mut rig = Rig::settled(config(&[], &[]), |_| {});
    let content = json!({"action": "Upgrade"});
    let id = rig.push("taskmanager", "Upgrade", "operations.kubeedge.io/v1alpha2/x/y", &content);
    assert_eq!((rig.acknowledged(&id), rig.bridge.counters().ignored), (1, 1));
}

#[test]
fn a_silent_dynamic_controller_is_reported_once() {
    let mut rig = Rig::new(config(&[], &["lab.io/v1/widgets"]));
    rig.connect();
    rig.pass(60);
    let silent = |rig: &Rig| {
        rig.notices.iter().filter(|notice| **notice == BridgeNotice::DynamicControllerSilent).count()
    };
    assert_eq!((silent(&rig), rig.bridge.status().dynamic_controller), (1, DynamicController::Silent));
    assert_eq!(rig.applications(), ["list /lab.io/v1/widgets/null/null"; 2]);
    rig.disconnect();
    rig.cloud.has_dynamic_controller = true;
    rig.connect();
    rig.pass(1);
    assert_eq!((silent(&rig), rig.bridge.status().dynamic_controller), (1, DynamicController::On));
}
