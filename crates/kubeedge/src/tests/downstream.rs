//! From a message to its acknowledgement, with every message that CloudCore is known to send.

use serde_json::{Value, json};

use super::rig::{Rig, config, object, pod};
use edgesync_protocol::change::RejectReason;
use edgesync_protocol::edge::EdgeNotice;

fn settled() -> Rig {
    Rig::settled(config(&[], &[]), |_| {})
}

fn rejections(rig: &Rig) -> Vec<RejectReason> {
    let reason = |notice: &EdgeNotice| match notice {
        EdgeNotice::Rejected(rejected) => Some(rejected.reason),
        _ => None,
    };
    rig.edge_notices.iter().filter_map(reason).collect()
}

#[test]
fn a_message_is_acknowledged_after_its_commit_and_not_before() {
    let mut rig = settled();
    rig.holds_commits = true;
    let id = rig.push_object("insert", &object("Pod", "lab/web", "u1", 7));
    assert_eq!((rig.acknowledged(&id), rig.store.rows.len()), (0, 0));
    assert_eq!(rig.bridge.status().unacknowledged, 1);
    rig.commit_all();
    assert_eq!((rig.acknowledged(&id), rig.store.rows.len()), (1, 1));
}

#[test]
fn a_commit_of_the_session_before_acknowledges_nothing() {
    let mut rig = settled();
    rig.holds_commits = true;
    let id = rig.push_object("insert", &object("Pod", "lab/web", "u1", 7));
    rig.disconnect();
    rig.connect();
    rig.commit_all();
    rig.pass(30);
    assert_eq!((rig.acknowledged(&id), rig.store.rows.len()), (0, 1));
}

#[test]
fn a_resend_is_applied_once_and_acknowledged_each_time() {
    let mut rig = settled();
    rig.holds_commits = true;
    let pod = object("Pod", "lab/web", "u1", 7);
    let route = json!({"source": "edgecontroller", "group": "resource", "operation": "insert", "resource": "lab/pod/web"});
    let id = "11111111-2222-4333-8444-555555555555";
    let text = json!({"header": {"msg_id": id, "timestamp": 1, "resourceversion": "7"}, "route": route, "content": pod});
    rig.hear(&text.to_string());
    rig.hear(&text.to_string());
    assert_eq!((rig.acknowledged(id), rig.bridge.counters().repeated), (0, 1));
    rig.commit_all();
    assert_eq!(rig.acknowledged(id), 1);
    rig.hear(&text.to_string());
    rig.commit_all();
    assert_eq!((rig.acknowledged(id), rig.store.totals.revision), (2, 1));
}

#[test]
fn a_late_delete_spares_the_new_object_of_the_same_name() {
    let mut rig = settled();
    rig.push_object("insert", &object("Pod", "lab/web", "old", 7));
    rig.push_object("update", &object("Pod", "lab/web", "new", 9));
    let gone = json!({"metadata": {"name": "web", "namespace": "lab", "uid": "old"}});
    let id = rig.push("edgecontroller", "delete", "lab/pod/web", &gone);
    assert_eq!((rig.store.shown(), rig.acknowledged(&id)), (vec!["Pod lab/web new 9".to_owned()], 1));
}

#[test]
fn a_delete_needs_neither_kind_nor_version() {
    let mut rig = settled();
    rig.push_object("insert", &object("Pod", "lab/web", "u1", 7));
    let gone = json!({"metadata": {"name": "web", "namespace": "lab", "uid": "u1"}});
    let id = rig.push("edgecontroller", "delete", "lab/pod/web", &gone);
    assert_eq!((rig.store.rows.len(), rig.acknowledged(&id)), (0, 1));
}

#[test]
fn a_delete_without_an_object_is_acknowledged_and_ignored() {
    let mut rig = settled();
    rig.push_object("insert", &object("Pod", "lab/web", "u1", 7));
    let contents = [
        json!({"metadata": {"name": "web", "namespace": "lab", "uid": ""}}),
        json!({"metadata": {"name": "web", "namespace": "lab"}}),
        Value::Null,
    ];
    for gone in &contents {
        let id = rig.push("edgecontroller", "delete", "lab/pod/web", gone);
        assert_eq!((rig.store.rows.len(), rig.acknowledged(&id)), (1, 1), "{gone}");
    }
    assert_eq!(rig.bridge.counters().unclear, 3);
}

#[test]
fn a_terminating_pod_is_reported_until_cloudcore_knows() {
    let mut rig = settled();
    let mut ending = pod("lab/web", "u1", 8, &[]);
    ending["metadata"]["deletionTimestamp"] = "2026-11-21T01:44:24Z".into();
    rig.push_object("insert", &pod("lab/web", "u1", 7, &[]));
    rig.push_object("update", &ending);
    let said = |rig: &Rig| {
        let is_it = |sent: &&Value| sent["route"]["operation"] == "delete";
        rig.sent.iter().filter(is_it).cloned().collect::<Vec<_>>()
    };
    let first = said(&rig);
    assert_eq!(first.len(), 1);
    assert_eq!(first[0]["route"]["resource"], "lab/pod/web");
    assert_eq!(first[0]["content"], json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "u1"}}));
    rig.pass(40);
    assert_eq!(said(&rig).len(), 2, "nobody has answered");
    let answer = json!({
        "header": {"msg_id": "00000000-0000-4000-8000-0000000000ff", "timestamp": 1,
            "parent_msg_id": said(&rig)[1]["header"]["msg_id"]},
        "route": {"source": "edgecontroller", "group": "resource", "operation": "response", "resource": "lab/pod/web"},
        "content": "OK",
    });
    rig.hear(&answer.to_string());
    rig.pass(300);
    assert_eq!(said(&rig).len(), 2);
    // This node is not responsible for Pods of another one.
    ending["metadata"]["uid"] = "u2".into();
    ending["spec"]["nodeName"] = "other".into();
    rig.push_object("update", &ending);
    assert_eq!(said(&rig).len(), 2);
}

#[test]
fn invalid_objects_are_acknowledged_and_shown_as_rejected() {
    let mut large = object("Pod", "lab/large", "u1", 7);
    large["spec"] = json!({"x": "x".repeat(20 << 10)});
    let mut unversioned = object("Pod", "lab/unversioned", "u2", 7);
    unversioned["metadata"]["resourceVersion"] = Value::Null;
    let mut nameless = object("Pod", "lab/nameless", "u3", 7);
    nameless["metadata"]["name"] = "other".into();
    for (reason, resource, content) in [
        (RejectReason::TooLarge, "lab/pod/large", large),
        (RejectReason::Invalid, "lab/pod/unversioned", unversioned),
        (RejectReason::Invalid, "lab/pod/nameless", nameless),
        (RejectReason::Invalid, "lab/pod/web", Value::Null),
    ] {
        let mut rig = settled();
        let id = rig.push("edgecontroller", "insert", resource, &content);
        assert_eq!((rig.acknowledged(&id), rig.store.rows.len()), (1, 0), "{resource}");
        assert_eq!(rejections(&rig), [reason], "{resource}");
        assert_eq!(rig.bridge.counters().rejected, 1, "{resource}");
    }
}

#[test]
fn a_full_store_withholds_the_acknowledgement_until_a_resend() {
    let mut rig = settled();
    let pod = object("Pod", "lab/web", "u1", 7);
    for reason in [RejectReason::StoreFull, RejectReason::StoreUnavailable] {
        rig.store.broken = Some(reason);
        let id = rig.push_object("insert", &pod);
        assert_eq!(rig.acknowledged(&id), 0, "{reason:?}");
    }
    assert_eq!(rig.bridge.counters().withheld, 2);
    rig.store.broken = None;
    let id = rig.push_object("insert", &pod);
    assert_eq!((rig.acknowledged(&id), rig.store.rows.len()), (1, 1));
}

#[test]
fn an_object_of_an_unknown_source_is_stored() {
    let mut rig = settled();
    let id = rig.push("somebody", "insert", "lab/pod/web", &object("Pod", "lab/web", "u1", 7));
    assert_eq!((rig.acknowledged(&id), rig.store.rows.len()), (1, 1));
}

#[test]
fn a_version_that_is_no_number_replaces_and_is_replaced() {
    let mut rig = settled();
    rig.push_object("insert", &object("Pod", "lab/web", "u1", 7));
    let mut odd = object("Pod", "lab/web", "u1", 7);
    odd["metadata"]["resourceVersion"] = "abc".into();
    let id = rig.push_object("update", &odd);
    assert_eq!((rig.store.shown(), rig.acknowledged(&id)), (vec!["Pod lab/web u1 abc".to_owned()], 1));
    rig.push_object("update", &object("Pod", "lab/web", "u1", 8));
    assert_eq!(rig.store.shown(), ["Pod lab/web u1 8"]);
}

#[test]
fn an_older_version_is_acknowledged_and_not_stored() {
    let mut rig = settled();
    rig.push_object("insert", &object("Pod", "lab/web", "u1", 7));
    let id = rig.push_object("update", &object("Pod", "lab/web", "u1", 6));
    assert_eq!((rig.store.shown(), rig.acknowledged(&id)), (vec!["Pod lab/web u1 7".to_owned()], 1));
}

#[test]
fn a_cluster_scoped_object_comes_in_the_namespace_null() {
    let mut rig = settled();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "edge-1", "uid": "n", "resourceVersion": "7"}});
    let id = rig.push("edgecontroller", "update", "null/node/edge-1", &node);
    assert_eq!((rig.store.shown(), rig.acknowledged(&id)), (vec!["Node /edge-1 n 7".to_owned()], 1));
    let id = rig.push(
        "edgecontroller",
        "delete",
        "null/node/edge-1",
        &json!({"metadata": {"name": "edge-1", "uid": "n"}}),
    );
    assert_eq!((rig.store.rows.len(), rig.acknowledged(&id)), (0, 1));
}
