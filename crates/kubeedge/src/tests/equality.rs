//! The held objects equal CloudCore's after any loss.

use serde_json::json;

use super::rig::{Cloud, Rig, config, object, pod};
use super::store::Store;
use crate::{BridgeNotice, RoundReason};

fn widgets(cloud: &mut Cloud, count: u64) {
    cloud.has_dynamic_controller = true;
    for n in 0..count {
        cloud.version += 1;
        let version = cloud.version;
        cloud.objects.push(object("Widget", &format!("lab/w{n}"), &format!("w{n}"), version));
    }
}

#[test]
fn a_lost_database_is_refilled_by_lists() {
    let rules = config(&["lab/configmap/app-*"], &["lab.io/v1/widgets"]);
    let mut rig = Rig::settled(rules.clone(), |cloud| {
        widgets(cloud, 1000);
        cloud.objects.push(object("ConfigMap", "lab/app-1", "a1", 50));
        cloud.objects.push(object("ConfigMap", "lab/other", "o1", 51));
        cloud.objects.push(pod("lab/web", "p1", 60, &["conf"]));
        cloud.objects.push(object("ConfigMap", "lab/conf", "c1", 52));
    });
    assert_eq!(rig.store.rows.len(), 1003, "what is pushed only after a question came by itself");
    let before = rig.store.shown();
    rig.disconnect();
    rig.restart(rules, Store::new(2));
    rig.connect();
    rig.pass(1);
    assert_eq!(rig.store.shown(), before);
    assert_eq!(rig.verified(), Some((RoundReason::Lost, 1003)));
    assert!(rig.notices.contains(&BridgeNotice::Refilling(RoundReason::Lost)));
    assert!(rig.machine.in_sync());
}

#[test]
fn a_lost_database_is_refilled_by_queries_alone() {
    let names: Vec<_> = (0..200).map(|n| format!("lab/configmap/c{n}")).collect();
    let rules = config(&names.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let mut rig = Rig::settled(rules.clone(), |cloud| {
        for n in 0..200 {
            cloud.objects.push(object("ConfigMap", &format!("lab/c{n}"), &format!("c{n}"), 50 + n));
        }
    });
    let before = rig.store.shown();
    assert_eq!(before.len(), 200);
    rig.disconnect();
    rig.restart(rules, Store::new(2));
    rig.connect();
    rig.pass(60);
    assert_eq!(rig.store.shown(), before);
    assert_eq!(rig.verified(), Some((RoundReason::Lost, 200)));
}

#[test]
fn a_rolled_back_database_is_found_by_the_marker() {
    let rules = config(&[], &["lab.io/v1/widgets"]);
    let mut rig = Rig::settled(rules.clone(), |cloud| widgets(cloud, 10));
    let backup = rig.store.clone();
    let changed = rig.cloud.write(object("Widget", "lab/w3", "w3", 0));
    rig.push("dynamiccontroller", "update", "lab/widget/w3", &changed);
    rig.cloud.remove("lab/widget/w4");
    rig.push("dynamiccontroller", "delete", "lab/widget/w4", &object("Widget", "lab/w4", "w4", 900));
    rig.pass(30);
    let before = rig.store.shown();
    rig.disconnect();
    rig.restart(rules, backup);
    rig.connect();
    rig.pass(1);
    assert_eq!(rig.store.shown(), before);
    assert_eq!(rig.verified(), Some((RoundReason::Lost, 2)));
}

#[test]
fn the_marker_is_withheld_until_the_urgent_round_is_complete() {
    let rules = config(&["lab/configmap/conf"], &[]);
    let mut rig = Rig::new(rules);
    rig.cloud.objects.push(object("ConfigMap", "lab/conf", "c1", 50));
    rig.cloud.answers_queries = false;
    rig.connect();
    rig.pass(25);
    assert!(rig.cloud.version > 100, "the Lease was renewed");
    assert_eq!(rig.marker(), None);
    assert!(!rig.machine.in_sync());
    // The Lease now claims that the database is complete. It is not.
    let totals = rig.store.totals;
    rig.cloud.lease.as_mut().unwrap()["metadata"]["annotations"] =
        json!({"edgesync.io/store": format!("{}.{}", totals.epoch, totals.revision)});
    rig.disconnect();
    rig.cloud.answers_queries = true;
    rig.connect();
    assert_eq!(rig.bridge.status().round.map(|(reason, _)| reason), Some(RoundReason::First));
    rig.pass(60);
    assert_eq!(rig.verified().map(|(reason, _)| reason), Some(RoundReason::First));
    let totals = rig.store.totals;
    assert_eq!(rig.marker(), Some(&*format!("{}.{}", totals.epoch, totals.revision)));
}

#[test]
fn objects_missing_in_a_complete_list_are_removed_unless_newer() {
    let mut rig = Rig::settled(config(&[], &["lab.io/v1/widgets"]), |cloud| widgets(cloud, 3));
    rig.cloud.remove("lab/widget/w1");
    let newer = object("Widget", "lab/new", "new", 5000);
    rig.push("dynamiccontroller", "insert", "lab/widget/new", &newer);
    rig.push_object("insert", &pod("other/pod", "p9", 40, &[]));
    rig.bridge.verify();
    rig.pass(1);
    let version = |uid: &str| rig.store.rows[uid].version.to_string();
    let expected = [
        format!("Widget lab/new new {}", version("new")),
        format!("Widget lab/w0 w0 {}", version("w0")),
        format!("Widget lab/w2 w2 {}", version("w2")),
    ];
    assert_eq!(rig.store.shown(), expected);
    assert_eq!(rig.verified(), Some((RoundReason::Asked, 2)));
}

#[test]
fn config_maps_deleted_or_recreated_offline_are_corrected() {
    let rules = config(&["lab/configmap/gone", "lab/configmap/anew"], &[]);
    let mut rig = Rig::settled(rules.clone(), |cloud| {
        cloud.objects.push(object("ConfigMap", "lab/gone", "g1", 50));
        cloud.objects.push(object("ConfigMap", "lab/anew", "a1", 51));
    });
    rig.disconnect();
    rig.cloud.remove("lab/configmap/gone");
    rig.cloud.write(object("ConfigMap", "lab/anew", "a2", 0));
    let expected = [format!("ConfigMap lab/anew a2 {}", rig.cloud.version)];
    rig.connect();
    rig.pass(20);
    assert_eq!((rig.queried(), rig.store.rows.len()), (vec![], 2), "nothing gives a reason to ask");
    // CloudCore finds deleted objects by its records and sends deletes for them.
    for (name, uid) in [("gone", "g1"), ("anew", "a1")] {
        let gone = json!({"metadata": {"name": name, "namespace": "lab", "uid": uid}});
        rig.push("edgecontroller", "delete", &format!("lab/configmap/{name}"), &gone);
    }
    rig.pass(20);
    assert_eq!(rig.store.shown(), expected);

    // Otherwise the next comparison finds them. It is scheduled from the last one, whatever
    // restarted since.
    rig.disconnect();
    rig.cloud.write(object("ConfigMap", "lab/anew", "a3", 0));
    rig.cloud.write(object("ConfigMap", "lab/gone", "g2", 0));
    let store = rig.store.clone();
    rig.restart(rules.clone(), store);
    rig.connect();
    rig.pass(1);
    assert!(rig.store.shown()[1].contains(" g2 "), "what is missing is asked for: {:?}", rig.store.shown());
    rig.pass(1800);
    let store = rig.store.clone();
    rig.disconnect();
    rig.restart(rules, store);
    rig.connect();
    rig.pass(2000);
    let shown = rig.store.shown();
    assert!(shown[0].contains(" a3 ") && shown.len() == 2, "{shown:?}");
}

#[test]
fn one_answer_that_there_is_none_is_not_believed() {
    let mut rig = Rig::settled(config(&["lab/configmap/gone"], &[]), |cloud| {
        cloud.objects.push(object("ConfigMap", "lab/gone", "g1", 50));
    });
    rig.cloud.remove("lab/configmap/gone");
    rig.bridge.verify();
    rig.pass(25);
    assert_eq!(rig.store.rows.len(), 1, "a CloudCore that has just started knows nothing");
    rig.pass(40);
    assert_eq!(rig.store.rows.len(), 0);
}

#[test]
fn a_watch_follows_only_an_approved_list_of_its_key() {
    let mut rig = Rig::new(config(&[], &["lab.io/v1/widgets", "no.io/v1/things"]));
    widgets(&mut rig.cloud, 1);
    rig.cloud.denied.insert("/no.io/v1/things/null/null".to_owned());
    rig.connect();
    let expected = [
        "list /lab.io/v1/widgets/null/null",
        "watch /lab.io/v1/widgets/null/null",
        "list /no.io/v1/things/null/null",
        "list /core/v1/pods/null/null",
    ];
    let mut applications = rig.applications();
    applications.sort();
    let mut sorted = expected;
    sorted.sort_unstable();
    assert_eq!(applications, sorted);
    let denied = |notice: &&BridgeNotice| matches!(notice, BridgeNotice::Denied { what, .. } if what == "no.io/v1/things");
    assert_eq!(rig.notices.iter().filter(denied).count(), 1);
    // The Lease has the marker with its next renewal.
    rig.pass(20);
    rig.disconnect();
    rig.sent.clear();
    rig.connect();
    let expected = [
        "list /lab.io/v1/widgets/null/null",
        "watch /lab.io/v1/widgets/null/null",
        "list /no.io/v1/things/null/null",
    ];
    let mut applications = rig.applications();
    applications.sort();
    let mut sorted = expected;
    sorted.sort_unstable();
    assert_eq!(applications, sorted);
    let option = |key: &str| {
        let is_it = |sent: &&serde_json::Value| {
            sent["content"]["Verb"] == "list" && sent["content"]["Key"].as_str().unwrap().contains(key)
        };
        rig.sent.iter().find(is_it).unwrap()["content"]["Option"].as_str().unwrap()
    };
    assert_eq!(option("widgets"), "eyJsaW1pdCI6MX0=", "one item shows that it is safe to watch them");
    assert_eq!(option("things"), "eyJsaW1pdCI6MTAwfQ==", "a rule that was not carried out is listed in full");
}

#[test]
fn listeners_of_a_former_configuration_are_given_up_once() {
    let mut rig = Rig::settled(config(&[], &["lab.io/v1/widgets"]), |cloud| widgets(cloud, 1));
    let confirmed_revision = |rig: &Rig| -> Vec<usize> {
        let confirmed_revision = rig.sent.iter().filter(|sent| sent["route"]["resource"] == "watchapp/sync");
        confirmed_revision.map(|sent| sent["content"].as_object().unwrap().len()).collect()
    };
    rig.disconnect();
    rig.connect();
    rig.pass(60);
    assert_eq!(confirmed_revision(&rig), [0_usize; 0], "it was told in the first session");
    let at = crate::Moment { now: rig.now, wall: 1 };
    rig.bridge.set_config(at, config(&[], &[]));
    rig.pass(60);
    assert_eq!(confirmed_revision(&rig), [0]);
}

#[test]
fn a_new_rule_whose_list_fails_is_not_done() {
    let mut rig = Rig::settled(config(&[], &["lab.io/v1/widgets"]), |cloud| widgets(cloud, 300));
    rig.cloud.objects.push(object("ConfigMap", "lab/app-1", "a1", 50));
    rig.cloud.largest_page = 0;
    rig.cloud.has_dynamic_controller = false;
    let at = crate::Moment { now: rig.now, wall: 1 };
    rig.bridge.set_config(at, config(&["lab/configmap/app-*"], &["lab.io/v1/widgets"]));
    rig.run();
    for _ in 0..5 {
        assert!(!rig.machine.in_sync());
        rig.pass(10);
    }
    assert!(!rig.store.rows.contains_key("a1"));
    (rig.cloud.has_dynamic_controller, rig.cloud.largest_page) = (true, usize::MAX);
    rig.sent.clear();
    rig.pass(60);
    assert!(rig.machine.in_sync() && rig.store.rows.contains_key("a1"));
    let listed = rig.applications();
    assert!(
        listed.iter().all(|sent| !sent.contains("widgets")),
        "what has been carried out is not listed: {listed:?}"
    );
}

#[test]
fn names_beyond_the_limits_are_queried_eventually() {
    let mut rig = Rig::settled(config(&[], &[]), |_| {});
    rig.cloud.answers_queries = false;
    for number in 0..20 {
        let mut pod = pod(&format!("lab/web{number}"), &format!("p{number}"), 60, &[]);
        let secrets: Vec<_> = (0..500).map(|n| json!({"name": format!("s{number}-{n}")})).collect();
        pod["spec"]["imagePullSecrets"] = json!(secrets);
        rig.push_object("insert", &pod);
    }
    rig.cloud.answers_queries = true;
    assert!(!rig.machine.in_sync());
    rig.pass(120);
    // None of them exists: nothing is held, all are missing, and only some of them are queried
    // again.
    assert_eq!(rig.bridge.status().missing_count, 10_000);
    assert!(rig.machine.in_sync());
}

#[test]
fn a_list_expired_between_pages_restarts() {
    let mut rig = Rig::new(config(&[], &["lab.io/v1/widgets"]));
    widgets(&mut rig.cloud, 30);
    rig.cloud.largest_page = 10;
    rig.holds_commits = true;
    rig.connect();
    assert_eq!(rig.applications().len(), 2, "the next page waits for the commit");
    rig.cloud.denied.insert("/lab.io/v1/widgets/null/null".to_owned());
    rig.commit();
    rig.bridge.tick(crate::Moment { now: rig.now, wall: 1 });
    rig.holds_commits = false;
    rig.cloud.denied.clear();
    rig.run();
    rig.pass(60);
    assert_eq!(rig.store.rows.len(), 30);
}

#[test]
fn undesired_names_are_compared_slowly_despite_reconnects() {
    let mut rig = Rig::settled(config(&[], &[]), |cloud| {
        for n in 0..500 {
            cloud.objects.push(object("ConfigMap", &format!("lab/c{n}"), &format!("c{n}"), 50));
        }
    });
    for map in rig.cloud.objects.clone() {
        rig.push_object("update", &map);
    }
    rig.pass(60);
    for _ in 0..10 {
        rig.disconnect();
        rig.connect();
        assert!(rig.machine.in_sync());
    }
    assert_eq!(rig.queried().len(), 0);
    // It begins when it is due, and is interrupted now and then.
    rig.pass(3700);
    for _ in 0..10 {
        rig.disconnect();
        rig.connect();
        rig.pass(300);
    }
    let mut queried = rig.queried();
    queried.sort_unstable();
    queried.dedup();
    assert_eq!(queried.len(), 500, "all are compared within the interval");
    let asked = rig.queried().len();
    assert!(asked <= 500 + 10 * 64, "what was under way at each interruption is asked for again: {asked}");
}

#[test]
fn a_routine_round_finds_objects_never_pushed() {
    let mut rig = Rig::settled(config(&[], &["lab.io/v1/widgets"]), |cloud| widgets(cloud, 5));
    rig.cloud.write(object("Widget", "lab/w1", "w1", 0));
    rig.cloud.remove("lab/widget/w2");
    rig.pass(3700);
    assert_eq!(rig.verified(), Some((RoundReason::Routine, 2)));
    assert!(!rig.store.rows.contains_key("w2"));
    assert_eq!(
        rig.store.rows["w1"].version.as_str(),
        rig.cloud.objects.last().unwrap()["metadata"]["resourceVersion"]
    );
}
