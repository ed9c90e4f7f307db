//! Objects that CloudCore sends only on request.

use serde_json::json;

use super::rig::{Rig, config, object, pod};

#[test]
fn references_of_a_pod_are_queried_and_stored() {
    let mut rig = Rig::settled(config(&[], &[]), |cloud| {
        cloud.objects.push(object("ConfigMap", "lab/conf", "c1", 50));
    });
    rig.push_object("insert", &pod("lab/web", "p1", 60, &["conf"]));
    assert_eq!(rig.queried(), ["lab/configmap/conf"]);
    assert_eq!(rig.store.shown(), ["ConfigMap lab/conf c1 50", "Pod lab/web p1 60"]);
    rig.push_object("update", &pod("lab/web", "p1", 61, &["conf"]));
    assert_eq!(rig.queried().len(), 1, "it is held");
}

#[test]
fn an_answer_with_an_object_is_acknowledged_after_its_commit() {
    let mut rig = Rig::settled(config(&[], &[]), |cloud| {
        cloud.objects.push(object("ConfigMap", "lab/conf", "c1", 50));
    });
    let before = rig.bridge.counters().acknowledged;
    rig.push_object("insert", &pod("lab/web", "p1", 60, &["conf"]));
    assert_eq!(rig.bridge.counters().acknowledged, before + 2);
}

#[test]
fn missing_objects_are_shown_and_queried_again() {
    let mut rig = Rig::settled(config(&["lab/configmap/later"], &[]), |_| {});
    assert_eq!(rig.bridge.status().missing, ["lab/configmap/later"]);
    assert!(rig.machine.in_sync());
    rig.cloud.write(object("ConfigMap", "lab/later", "c1", 0));
    rig.pass(120);
    let version = rig.cloud.objects[0]["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(rig.store.shown(), [format!("ConfigMap lab/later c1 {version}")]);
    assert_eq!(rig.bridge.status().missing_count, 0);
    let asked = rig.queried().len();
    rig.pass(1800);
    assert_eq!(rig.queried().len(), asked);
}

#[test]
fn missing_objects_are_queried_with_backoff() {
    let mut rig = Rig::settled(config(&["lab/configmap/never"], &[]), |_| {});
    rig.pass(3000);
    assert!((8..=20).contains(&rig.queried().len()), "{:?}", rig.queried());
}

#[test]
fn a_deleted_desired_object_is_queried_at_once() {
    let mut rig = Rig::settled(config(&["lab/configmap/conf"], &[]), |cloud| {
        cloud.objects.push(object("ConfigMap", "lab/conf", "old", 50));
    });
    assert_eq!(rig.store.shown(), ["ConfigMap lab/conf old 50"]);
    let new = rig.cloud.write(object("ConfigMap", "lab/conf", "new", 0));
    let version = new["metadata"]["resourceVersion"].as_str().unwrap();
    let gone = json!({"metadata": {"name": "conf", "namespace": "lab", "uid": "old"}});
    rig.push("edgecontroller", "delete", "lab/configmap/conf", &gone);
    assert_eq!(rig.queried(), ["lab/configmap/conf"]);
    assert_eq!(rig.store.shown(), [format!("ConfigMap lab/conf new {version}")]);
    rig.push("edgecontroller", "delete", "lab/configmap/conf", &gone);
    assert_eq!((rig.queried().len(), rig.store.rows.len()), (1, 1), "the delete of another object");
}

#[test]
fn a_question_is_put_three_times_and_then_given_up_for_a_while() {
    let mut rig = Rig::settled(config(&[], &[]), |cloud| {
        cloud.objects.push(object("ConfigMap", "lab/conf", "c1", 50));
    });
    rig.cloud.answers_queries = false;
    rig.push_object("insert", &pod("lab/web", "p1", 60, &["conf"]));
    // The first time takes longer: the Pod was acknowledged meanwhile, so other messages may
    // precede the answer.
    rig.pass(41);
    assert_eq!((rig.queried().len(), rig.bridge.counters().unanswered), (3, 1));
    assert_eq!(rig.bridge.status().missing_count, 1);
    rig.cloud.answers_queries = true;
    rig.pass(60);
    assert_eq!((rig.queried().len(), rig.store.rows.len()), (4, 2));
}

#[test]
fn an_answer_is_waited_for_while_cloudcore_sends_other_things() {
    let mut rig = Rig::settled(config(&[], &[]), |_| {});
    rig.cloud.answers_queries = false;
    rig.push_object("insert", &pod("lab/web", "p1", 60, &["conf"]));
    for n in 0..40 {
        rig.pass(5);
        rig.push_object("update", &object("Secret", "lab/busy", "s1", 100 + n));
    }
    assert_eq!((rig.queried(), rig.machine.in_sync()), (vec!["lab/configmap/conf"], false));
}

#[test]
fn no_more_questions_are_under_way_than_the_window_holds() {
    let mut rig = Rig::settled(config(&[], &[]), |_| {});
    rig.cloud.answers_queries = false;
    let names: Vec<_> = (0..100).map(|n| format!("conf-{n}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    rig.push_object("insert", &pod("lab/web", "p1", 60, &names));
    assert_eq!(rig.queried().len(), super::super::queries::WINDOW);
}

#[test]
fn pushed_objects_are_stored_only_if_a_rule_matches() {
    let mut rig = Rig::settled(config(&["lab/configmap/app-*"], &[]), |_| {});
    for (name, is_stored) in [("app-1", true), ("other", false)] {
        let map = object("ConfigMap", &format!("lab/{name}"), name, 50);
        let resource = format!("lab/configmap/{name}");
        let id = rig.push("dynamiccontroller", "insert", &resource, &map);
        assert_eq!(rig.acknowledged(&id), 1);
        assert_eq!(rig.store.rows.contains_key(name), is_stored);
    }
    assert_eq!(rig.bridge.counters().unwanted, 1);
}

#[test]
fn an_unreferenced_name_is_dropped_by_the_next_walk() {
    let mut rig = Rig::settled(config(&[], &[]), |_| {});
    rig.push_object("insert", &pod("lab/web", "p1", 60, &["conf"]));
    rig.pass(60);
    assert_eq!(rig.bridge.status().missing, ["lab/configmap/conf"]);
    let gone = json!({"metadata": {"name": "web", "namespace": "lab", "uid": "p1"}});
    rig.push("edgecontroller", "delete", "lab/pod/web", &gone);
    assert_eq!(rig.bridge.status().missing_count, 1);
    rig.bridge.verify();
    rig.pass(120);
    assert_eq!(rig.bridge.status().missing_count, 0);
}
