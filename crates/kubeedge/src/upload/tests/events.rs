//! Events: the form of the core group, and pongs in place of answers.

use super::*;

#[test]
fn an_event_is_written_in_the_form_of_the_core_group() {
    let mut test = Test::new();
    let messages = test.upload(&[(5, event("a"))]);
    assert_eq!(routes(&messages), ["insert lab/event/a", "ping 1"]);
    assert_eq!(
        (&messages[0]["route"]["source"], &messages[0]["route"]["group"]),
        (&json!("edged"), &json!("meta"))
    );
    let at = "2026-11-21T01:42:31Z";
    let expected = json!({"apiVersion": "v1", "kind": "Event",
        "metadata": {"name": "a", "namespace": "lab", "creationTimestamp": null},
        "eventTime": "2026-11-21T01:42:31.500000Z", "reportingComponent": "edgesync.io/agent",
        "reportingInstance": "edgea", "action": "Starting", "reason": "Started", "message": "It has started.",
        "involvedObject": {"kind": "Pod", "namespace": "lab", "name": "web"}, "type": "Normal",
        "firstTimestamp": at, "lastTimestamp": at, "count": 1,
        "source": {"component": "edgesync.io/agent", "host": "edgea"}});
    assert_eq!(messages[0]["content"], expected);
}

#[test]
fn fields_of_a_core_event_stay() {
    let mut test = Test::new();
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "a"}, "note": "m",
        "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z", "deprecatedLastTimestamp": "2026-01-02T00:00:00Z",
        "deprecatedCount": 1, "deprecatedSource": {"component": "mine"}});
    let messages = test.upload(&[(5, json!({"event": event}))]);
    assert_eq!(routes(&messages), ["insert default/event/a", "ping 1"]);
    let content = &messages[0]["content"];
    assert_eq!(
        (&content["firstTimestamp"], &content["source"]),
        (&json!("2026-01-01T00:00:00Z"), &json!({"component": "mine"}))
    );
    assert_eq!((&content["lastTimestamp"], &content["count"]), (&json!("2026-01-02T00:00:00Z"), &json!(1)));
}

#[test]
fn events_are_confirmed_by_the_pong_behind_them_or_a_later_one() {
    let mut test = Test::new();
    test.outbound.ping();
    assert_eq!(
        routes(&test.upload(&[(5, event("a")), (6, event("b"))])),
        ["ping 1", "insert lab/event/a", "insert lab/event/b", "ping 2"]
    );
    assert!(test.pong(1).is_empty());
    test.open();
    assert!(test.pong(3).is_empty());
    assert_eq!(test.settled(6), []);
}

#[test]
fn items_sent_earlier_need_no_second_pong() {
    let mut test = Test::new();
    test.upload(&[(5, event("a"))]);
    assert_eq!(routes(&test.tick()), ["insert lab/event/a", "ping 2"]);
    assert!(test.pong(1).is_empty());
    assert_eq!(test.settled(5), []);
}

#[test]
fn a_repeated_event_is_inserted_and_then_patched() {
    let mut item = event("a");
    item["event"]["series"] = json!({"count": 3, "lastObservedTime": "2026-11-21T01:43:00.250000Z"});
    item["event"]["metadata"]["annotations"] = json!({"edgesync.io/latest-note": "n"});
    let mut test = Test::new();
    let first = test.upload(&[(5, item), (6, event("b"))]);
    assert_eq!(routes(&first), ["insert lab/event/a", "insert lab/event/b", "ping 1"]);
    assert_eq!(
        (&first[0]["content"]["count"], &first[0]["content"]["lastTimestamp"]),
        (&json!(3), &json!("2026-11-21T01:43:00Z"))
    );
    let second = test.pong(1);
    assert_eq!(routes(&second), ["patch lab/event/a", "ping 2"]);
    assert_eq!(second[0]["content"]["event"], first[0]["content"]);
    let patch: Value = serde_json::from_str(text(&second[0]["content"]["patchData"])).unwrap();
    let expected = json!({"count": 3, "lastTimestamp": "2026-11-21T01:43:00Z", "message": "It has started.",
        "series": {"count": 3, "lastObservedTime": "2026-11-21T01:43:00.250000Z"},
        "metadata": {"annotations": {"edgesync.io/latest-note": "n"}}});
    assert_eq!(patch, expected);
    test.open();
    assert_eq!(routes(&test.tick()), ["patch lab/event/a", "ping 3"], "what was read is not inserted again");
    assert!(test.pong(2).is_empty());
    assert_eq!(test.settled(6), []);
}
