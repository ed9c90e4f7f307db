//! Conditions by the rules of the API conventions, and node reports merged into Nodes that
//! operators have edited.

use super::*;
use edgesync_object::node_labels::{MAX_NODE_LABELS, NODE_LABELS_ANNOTATION};
use proptest::prelude::*;
use serde_json::json;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_795_000_000 + seconds).unwrap()
}

fn condition(kind: &str, status: ConditionStatus, reason: &str) -> Condition {
    Condition { condition: kind.to_owned(), status, reason: reason.to_owned(), ..Condition::default() }
}

fn report(value: Value) -> NodeReport {
    serde_json::from_value(value).unwrap()
}

fn node(value: Value) -> Object {
    serde_json::from_value(value).unwrap()
}

fn labels(node: &Object) -> Vec<String> {
    node.labels().iter().map(|(key, value)| format!("{key}={value}")).collect()
}

#[test]
fn the_transition_time_moves_only_when_the_status_does() {
    let mut list = Vec::new();
    set_condition(&mut list, &condition(READY, ConditionStatus::True, "Renewed"), at(0));
    let first = json!({"type": "Ready", "status": "True", "reason": "Renewed",
        "lastTransitionTime": rfc3339(at(0))});
    assert_eq!(list, std::slice::from_ref(&first));
    let other_words =
        Condition { message: "since long".into(), ..condition(READY, ConditionStatus::True, "StillRenewed") };
    set_condition(&mut list, &other_words, at(50));
    assert_eq!(list[0]["lastTransitionTime"], first["lastTransitionTime"]);
    assert_eq!((&list[0]["reason"], &list[0]["message"]), (&json!("StillRenewed"), &json!("since long")));
    set_condition(&mut list, &condition(READY, ConditionStatus::Unknown, "LeaseExpired"), at(90));
    assert_eq!(list[0]["lastTransitionTime"], rfc3339(at(90)));
    assert_eq!((list[0]["status"].as_str(), list[0].get("message")), (Some("Unknown"), None));
}

#[test]
fn a_heartbeat_changes_only_with_the_content() {
    let mut node = new_node("n");
    let heard = |node: &Object| node.fields()["status"]["conditions"][0]["lastHeartbeatTime"].clone();
    let ready = condition(READY, ConditionStatus::True, "Renewed");
    set_node_condition(&mut node, &ready, at(0));
    assert_eq!(heard(&node), rfc3339(at(0)));
    // Unchanged content creates no new version.
    let before = node.to_json();
    set_node_condition(&mut node, &ready, at(50));
    assert_eq!(node.to_json(), before);
    set_node_condition(&mut node, &Condition { message: "since long".into(), ..ready.clone() }, at(60));
    assert_eq!(heard(&node), rfc3339(at(60)));
    // A condition without a heartbeat time, as older versions wrote it.
    let old = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Renewed",
        "lastTransitionTime": rfc3339(at(7))}]}});
    let mut node = serde_json::from_value::<Object>(old).unwrap();
    set_node_condition(&mut node, &ready, at(90));
    assert_eq!(heard(&node), rfc3339(at(7)));
}

#[test]
fn a_transition_time_is_clamped_to_the_possible_range() {
    let with_time =
        |status, time| Condition { last_transition_time: Some(time), ..condition("X", status, "Because") };
    for (given, expected) in [(at(30), at(30)), (at(-500), at(10)), (at(9_999), at(100))] {
        let mut list = Vec::new();
        set_condition(&mut list, &with_time(ConditionStatus::True, at(10)), at(20));
        set_condition(&mut list, &with_time(ConditionStatus::False, given), at(100));
        assert_eq!(list[0]["lastTransitionTime"], rfc3339(expected), "{given}");
    }
}

#[test]
fn a_condition_list_keeps_order_types_and_foreign_fields() {
    let mut list = vec![
        json!({"type": "A", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
            "lastHeartbeatTime": "2026-01-02T00:00:00Z"}),
        json!({"type": "B", "status": "True"}),
        json!({"type": "A", "status": "False"}),
        json!("odd"),
    ];
    set_condition(&mut list, &condition("A", ConditionStatus::True, "R"), at(0));
    assert_eq!(list.len(), 3);
    assert_eq!(list[0]["lastTransitionTime"], "2026-01-01T00:00:00Z");
    assert_eq!(list[0]["lastHeartbeatTime"], "2026-01-02T00:00:00Z");
    set_condition(&mut list, &condition("B", ConditionStatus::True, "R"), at(0));
    assert_eq!(list[1]["lastTransitionTime"], rfc3339(at(0)), "one without a time gets one");
}

#[test]
fn a_report_makes_a_node_of_a_name() {
    let mut made = new_node("edge-1");
    let said = report(json!({"labels": {"kubernetes.io/os": "linux"},
        "status": {"nodeInfo": {"architecture": "arm64"}, "capacity": {"cpu": "4"}},
        "conditions": [{"type": STORE_HEALTHY, "status": "True", "reason": "Writable"}]}));
    assert_eq!(said.check(), Ok(()));
    merge_report(&mut made, &said, at(0));
    assert_eq!((made.api_version(), made.kind(), made.name()), ("v1", "Node", "edge-1"));
    assert_eq!(labels(&made), ["kubernetes.io/os=linux"]);
    assert_eq!(made.fields()["status"]["nodeInfo"]["architecture"], "arm64");
    assert_eq!(made.fields()["status"]["conditions"][0]["type"], STORE_HEALTHY);
    assert_eq!(made.fields()["spec"], json!({}));
    let before = made.clone();
    merge_report(&mut made, &said, at(60));
    assert_eq!(made, before, "the same report again changes nothing");
}

#[test]
fn labels_follow_the_report_and_those_of_operators_stay() {
    let mut node = node(json!({"metadata": {"name": "n", "labels": {"site": "hamburg", "rack": "7"}}}));
    merge_report(&mut node, &report(json!({"labels": {"a": "1", "b": "2", "rack": "9"}})), at(0));
    assert_eq!(labels(&node), ["a=1", "b=2", "rack=7", "site=hamburg"]);
    assert_eq!(node.annotations()[NODE_LABELS_ANNOTATION], "a=1,b=2");
    // An operator gives one of them another value.
    node.set_metadata("labels", json!({"a": "1", "b": "mine", "rack": "7", "site": "hamburg"}));
    merge_report(&mut node, &report(json!({"labels": {"b": "3", "c": ""}})), at(0));
    assert_eq!(labels(&node), ["b=mine", "c=", "rack=7", "site=hamburg"]);
    merge_report(&mut node, &NodeReport::default(), at(0));
    assert_eq!(labels(&node), ["b=mine", "rack=7", "site=hamburg"]);
    assert_eq!(node.annotations()[NODE_LABELS_ANNOTATION], "");
}

#[test]
fn forbidden_labels_are_dropped_and_others_set() {
    let mut node = new_node("n");
    let said = report(json!({"labels": {
        "node-restriction.kubernetes.io/secrets": "yes",
        "x.node-restriction.kubernetes.io/secrets": "yes",
        "my-node-restriction.example.com/fine": "yes",
        "not a key": "x", "key": "not a value!", "node-role.kubernetes.io/edge": ""}}));
    merge_report(&mut node, &said, at(0));
    assert_eq!(labels(&node), ["my-node-restriction.example.com/fine=yes", "node-role.kubernetes.io/edge="]);
    let many = (0..1000).map(|n| (format!("l{n}"), String::new())).collect();
    merge_report(&mut node, &NodeReport { labels: many, ..NodeReport::default() }, at(0));
    assert_eq!(node.labels().len(), MAX_NODE_LABELS);
}

#[test]
fn the_reported_status_is_replaced_and_the_rest_kept() {
    let mut node = node(json!({"metadata": {"name": "n"}, "status": {
        "addresses": [{"type": "Hostname", "address": "old"}], "capacity": {"cpu": "1", "gpu": "1"},
        "volumesInUse": ["v"], "conditions": [{"type": "Ready", "status": "True", "reason": "Renewed"}]}}));
    let said = json!({"status": {"capacity": {"cpu": "2"}, "conditions": [{"type": "Ready", "status": "False"}]},
        "conditions": [{"type": "Ready", "status": "False", "reason": "Lies"}]});
    merge_report(&mut node, &report(said), at(0));
    let expected = json!({"capacity": {"cpu": "2"}, "volumesInUse": ["v"],
        "conditions": [{"type": "Ready", "status": "True", "reason": "Renewed"}]});
    assert_eq!(node.fields()["status"], expected);
}

#[test]
fn failed_rules_are_not_in_effect() {
    let objects = Some(FilesCounts::default());
    let summary = FilesSummary { rules: 2, objects, failed: 1, ..FilesSummary::default() };
    let condition = summary.condition().unwrap();
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "RuleFailed"));
    let expected = "0 of 0 objects in effect, 0 not, 0 in conflict; rules: 2, 1 failed; hint: 'edgesync files' on the node";
    assert_eq!(condition.message, expected);
    assert_eq!(FilesSummary::read(&condition.message), Some((0, 0)));
}

/// The condition was "True" with "0 of 0 objects in effect" while the first rule ran.
#[test]
fn files_condition_is_unknown_until_the_helper_reports() {
    let started = FilesSummary { rules: 2, ..FilesSummary::default() };
    let condition = started.condition().unwrap();
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::Unknown, "NoReport"));
    assert_eq!(condition.message, "states of objects unknown; rules: 2");
    assert_eq!(FilesSummary::read(&condition.message), None);
    let failed = FilesSummary { failed: 1, ..started }.condition().unwrap();
    assert_eq!((failed.status, failed.reason.as_str()), (ConditionStatus::False, "RuleFailed"));
    let expected = "states of objects unknown; rules: 2, 1 failed; hint: 'edgesync files' on the node";
    assert_eq!(failed.message, expected);
    // A rule that selects nothing is reported, too.
    let objects = Some(FilesCounts::default());
    let blocked = Some(FilesFailure::HelperUnreachable);
    let empty = FilesSummary { objects, blocked, ..started }.condition().unwrap();
    assert!(empty.message.starts_with("0 of 0 objects in effect"), "{}", empty.message);
}

#[test]
fn the_files_condition_names_an_unreachable_helper() {
    let blocked = Some(FilesFailure::HelperUnreachable);
    let fresh = FilesSummary { rules: 1, blocked, ..FilesSummary::default() }.condition().unwrap();
    assert_eq!((fresh.status, fresh.reason.as_str()), (ConditionStatus::False, "HelperUnreachable"));
    let expected =
        "states of objects unknown; rules: 1; helper unreachable; hint: 'edgesync check' on the node";
    assert_eq!(fresh.message, expected);
    assert_eq!(FilesSummary::read(&fresh.message), None);
    // Files of an earlier answer stay in effect without the helper.
    let objects = Some(FilesCounts { in_effect: 3, ..FilesCounts::default() });
    let later = FilesSummary { rules: 1, objects, blocked, ..FilesSummary::default() };
    let message = later.condition().unwrap().message;
    assert!(message.starts_with("3 of 3 objects") && message.contains("helper unreachable"), "{message}");
    let failed = FilesSummary { blocked: Some(FilesFailure::RequestFailed), ..later };
    let failed = failed.condition().unwrap();
    assert_eq!(failed.reason, "RuleFailed");
    assert!(failed.message.ends_with("; hint: 'edgesync files' on the node"), "{}", failed.message);
}

#[test]
fn the_files_condition_has_counts_and_needs_rules() {
    let with_waiting = |in_effect, not_in_effect, conflicts, waiting| {
        let objects = Some(FilesCounts { in_effect, not_in_effect, conflicts, waiting });
        FilesSummary { rules: 2, objects, ..FilesSummary::default() }.condition().unwrap()
    };
    let summary = |in_effect, not_in_effect, conflicts| with_waiting(in_effect, not_in_effect, conflicts, 0);
    let said = |condition: Condition| (condition.status, condition.reason);
    assert_eq!(said(summary(3, 0, 0)), (ConditionStatus::True, "InEffect".to_owned()));
    assert_eq!(said(summary(0, 0, 0)), (ConditionStatus::True, "InEffect".to_owned()));
    assert_eq!(said(summary(3, 0, 1)), (ConditionStatus::False, "Conflict".to_owned()));
    assert_eq!(said(summary(3, 2, 1)), (ConditionStatus::False, "NotInEffect".to_owned()));
    assert_eq!(summary(3, 2, 1).message, "3 of 6 objects in effect, 2 not, 1 in conflict; rules: 2");
    assert_eq!(FilesSummary::read(&summary(3, 2, 1).message), Some((3, 3)));
    assert_eq!(FilesSummary::read("9 of 3 objects"), None);
    assert_eq!(said(with_waiting(3, 0, 0, 2)), (ConditionStatus::False, "Waiting".to_owned()));
    assert_eq!(said(with_waiting(3, 1, 0, 2)), (ConditionStatus::False, "NotInEffect".to_owned()));
    let waits = with_waiting(3, 0, 0, 2).message;
    assert_eq!(waits, "3 of 5 objects in effect, 0 not, 0 in conflict, 2 waiting; rules: 2");
    assert_eq!(FilesSummary::read(&waits), Some((3, 2)));
    assert_eq!(FilesSummary::default().condition(), None);

    let mut node = node(json!({"metadata": {"name": "n"}, "status": {"conditions": [
        {"type": "Ready", "status": "True", "reason": "Renewed"},
        {"type": "edgesync.io/Other", "status": "True", "reason": "Kept"}]}}));
    let report = |conditions| NodeReport { conditions, ..NodeReport::default() };
    let before = node.clone();
    merge_report(&mut node, &report(vec![summary(1, 0, 0)]), at(0));
    assert_eq!(node.fields()["status"]["conditions"][2]["type"], FILES_IN_EFFECT);
    merge_report(&mut node, &report(vec![summary(0, 1, 0)]), at(9));
    assert_eq!(node.fields()["status"]["conditions"][2]["lastTransitionTime"], rfc3339(at(9)));
    merge_report(&mut node, &report(Vec::new()), at(10));
    assert_eq!(node.fields()["status"], before.fields()["status"], "the rules are gone, all else stays");
}

#[test]
fn an_invalid_report_is_distinguished_from_an_incomplete_one() {
    for (said, field) in [
        (json!({"status": {"capacity": {"cpu": "many"}}}), "status.capacity"),
        (json!({"status": {"nodeInfo": "arm"}}), "status.nodeInfo"),
        (json!({"status": {"addresses": [{"type": 1, "address": "x"}]}}), "status.addresses[0].type"),
        (
            json!({"conditions": [{"type": "a b", "status": "True", "reason": "X"}]}),
            "status.conditions[0].type",
        ),
        (
            json!({"conditions": [{"type": "A", "status": "True", "reason": "two words"}]}),
            "status.conditions[0].reason",
        ),
        (
            json!({"conditions": [{"type": "A", "status": "True", "reason": ""}]}),
            "status.conditions[0].reason",
        ),
    ] {
        let problems = report(said.clone()).check().unwrap_err();
        assert!(problems.0.iter().any(|problem| problem.field.starts_with(field)), "{said}: {problems}");
    }
    let partial = json!({"status": {"nodeInfo": {"kernelVersion": "6.1"}, "capacity": {"memory": "512Mi"}}});
    assert_eq!(report(partial).check(), Ok(()));
    let long = "k".repeat(5_000);
    let text = report(json!({"status": {"capacity": {long: "bad"}}})).check().unwrap_err().to_string();
    assert!(text.len() < 1_000, "{}", text.len());
}

#[test]
fn a_status_of_a_later_version_is_read_as_unknown() {
    let said = report(json!({"conditions": [{"type": "A", "status": "Maybe", "reason": "X"}]}));
    assert_eq!(said.conditions[0].status, ConditionStatus::Unknown);
}

proptest! {
    #[test]
    fn no_report_or_object_panics(
        name in ".{0,20}", key in ".{0,30}", value in ".{0,30}", annotation in ".{0,40}", seconds in -10_000i64..10_000,
    ) {
        let mut odd = node(json!({"metadata": {"labels": {&key: &value}, "annotations": {NODE_LABELS_ANNOTATION: annotation}},
            "status": [&value]}));
        let said = report(json!({"labels": {&key: &name}, "status": {&key: &value},
            "conditions": [{"type": key, "status": name, "reason": value}]}));
        let _ = said.check();
        merge_report(&mut odd, &said, at(seconds));
        let after = odd.clone();
        merge_report(&mut odd, &said, at(seconds));
        prop_assert_eq!(odd, after);
    }
}

/// The text of a node that reports no rules any more stayed on its Node.
#[test]
fn file_rules_are_those_of_the_last_report() {
    let mut node = new_node("edge-1");
    node.set_annotation("of/others", Some("kept"));
    let text = |node: &Object| node.annotations().remove(FILE_RULES_ANNOTATION);
    let long = "x".repeat(MAX_FILE_RULES + 1);
    for (reported, expected) in
        [(Some("[{}]"), Some("[{}]")), (Some(&*long), None), (Some("[]"), Some("[]")), (None, None)]
    {
        let report = NodeReport { file_rules: reported.map(str::to_owned), ..NodeReport::default() };
        merge_report(&mut node, &report, at(0));
        assert_eq!(text(&node).as_deref(), expected);
    }
    assert_eq!(node.annotations()["of/others"], "kept");
}
