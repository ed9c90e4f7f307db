//! The messages for the items of a frame against the captures, and the confirmation of the frame.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::*;
use crate::testing::{answer, captured, error, outbound, pass_to, routes, sent, text};
use edgesync_object::kinds;
use edgesync_protocol::upload::{Lane, RefusedReason, UploadItem};

mod events;
mod node;
mod statuses;

/// The uploads with their outbound.
struct Test {
    uploads: Uploads,
    outbound: Outbound,
}

fn frame(items: &[(u64, Value)]) -> Upload {
    let raw = |value: &Value| RawValue::from_string(value.to_string()).unwrap();
    Upload {
        session: "s".into(),
        outbox: "o".into(),
        lane: Lane::Status,
        confirmed: 4,
        items: items.iter().map(|(seq, value)| UploadItem { seq: *seq, content: raw(value) }).collect(),
    }
}

impl Test {
    fn new() -> Self {
        Self { uploads: Uploads::default(), outbound: outbound() }
    }

    /// Returns a test with a known Node.
    fn registered() -> Self {
        let mut test = Self::new();
        test.uploads.set_node_uid(Some("n".into()));
        test
    }

    /// Handles a frame and returns the sent messages.
    fn upload(&mut self, items: &[(u64, Value)]) -> Vec<Value> {
        self.uploads.upload(&mut self.outbound, frame(items));
        sent(&mut self.outbound)
    }

    /// Handles an answer and returns the messages sent in response.
    fn hear(&mut self, message: &Value, content: &Value) -> Vec<Value> {
        let text = answer(message, content);
        let incoming = message::decode(text.as_bytes()).unwrap();
        assert!(self.uploads.answered(&mut self.outbound, &incoming), "{text}");
        sent(&mut self.outbound)
    }

    fn pong(&mut self, number: u64) -> Vec<Value> {
        self.uploads.pong(&mut self.outbound, number);
        sent(&mut self.outbound)
    }

    /// Advances time to the deadline.
    fn tick(&mut self) -> Vec<Value> {
        let deadline = self.uploads.deadline().expect("something is to be done");
        let now = deadline.max(self.outbound.at.now);
        pass_to(&mut self.outbound, now);
        self.uploads.tick(&mut self.outbound);
        sent(&mut self.outbound)
    }

    fn confirmed(&mut self) -> Option<UploadConfirm> {
        match self.outbound.frames.pop_front()? {
            Received::UploadConfirm(confirm) => Some(confirm),
            other => panic!("{other:?}"),
        }
    }

    /// Asserts that the frame is confirmed up to this number and returns the refused items.
    #[track_caller]
    fn settled(&mut self, number: u64) -> Vec<(u64, RefusedReason)> {
        let confirm = self.confirmed().expect("it is confirmed");
        assert_eq!((confirm.session.as_str(), confirm.outbox.as_str()), ("s", "o"));
        assert_eq!(confirm.last, Lanes { status: number, events: 0, bulk: 0 });
        assert!(self.confirmed().is_none() && self.uploads.deadline().is_none());
        confirm.refused.iter().map(|refused| (refused.seq, refused.reason)).collect()
    }

    #[track_caller]
    fn open(&mut self) {
        assert!(self.confirmed().is_none());
    }
}

fn ok(uid: &str) -> Value {
    json!({"Object": {"metadata": {"uid": uid, "resourceVersion": "9"}}, "Err": null})
}

fn event(name: &str) -> Value {
    json!({"event": {"apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": name, "namespace": "lab", "uid": "e", "resourceVersion": "3"},
        "eventTime": "2026-11-21T01:42:31.500000Z", "reportingController": "edgesync.io/agent",
        "reportingInstance": "edgea", "action": "Starting", "reason": "Started", "note": "It has started.",
        "regarding": {"kind": "Pod", "namespace": "lab", "name": "web"}, "type": "Normal"}})
}

fn status(api_version: &str, kind: &str, status: impl Into<Value>) -> Value {
    let object = json!({"apiVersion": api_version, "kind": kind, "namespace": "lab", "name": "web"});
    json!({"status": {"uid": "u", "object": object, "status": status.into()}})
}

fn report() -> Value {
    json!({"node": {"labels": {"kubernetes.io/os": "linux"}, "status": {"capacity": {"pods": "0"}}}})
}

#[test]
fn a_frame_without_items_is_confirmed_where_the_machine_says() {
    let mut test = Test::new();
    assert!(test.upload(&[]).is_empty());
    assert_eq!(test.settled(4), []);
}

#[test]
fn a_frame_is_confirmed_once_when_all_of_it_is_settled() {
    let mut test = Test::registered();
    let items =
        [(5, report()), (7, event("a")), (8, json!({"secret": 1})), (9, status("v1", "Pod", json!({})))];
    let messages = test.upload(&items);
    let expected = ["patch null/nodepatch/edgea", "insert lab/event/a", "patch lab/podpatch/web", "ping 1"];
    assert_eq!(routes(&messages), expected);
    test.open();
    assert!(test.hear(&messages[2], &ok("u")).is_empty());
    assert!(test.pong(1).is_empty());
    test.open();
    assert!(test.hear(&messages[0], &ok("n")).is_empty());
    assert_eq!(test.settled(9), [(8, RefusedReason::Invalid)]);
    assert!(test.pong(1).is_empty());
    test.open();
}

#[test]
fn unreadable_items_are_refused_at_once() {
    let mut test = Test::new();
    let items = [
        json!({"node": {"labels": 1}}),
        json!({"node": {"status": {"capacity": {"cpu": "many"}}}}),
        json!({"event": {"kind": "Event"}}),
        json!({"event": {"apiVersion": "v1", "kind": "Event", "metadata": {}}}),
        json!({"event": {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "a/b"}}}),
        status("v1", "Pod", json!("Running")),
        status("a/b/c", "Widget", json!({})),
        status("lab.io/v1", "Wid/get", json!({})),
        json!(7),
    ];
    let numbered: Vec<_> = (5..).zip(items.clone()).collect();
    assert!(test.upload(&numbered).is_empty());
    let expected: Vec<_> = (5..14).map(|seq| (seq, RefusedReason::Invalid)).collect();
    assert_eq!(test.settled(13), expected);
}

#[test]
fn a_frame_of_another_session_is_not_taken() {
    let mut test = Test::new();
    let upload = Upload { session: "t".into(), ..frame(&[(5, report())]) };
    test.uploads.upload(&mut test.outbound, upload);
    assert!(sent(&mut test.outbound).is_empty() && test.uploads.deadline().is_none());
    test.open();
}

#[test]
fn unanswered_items_are_resent_with_backoff() {
    let mut test = Test::registered();
    let first = test.upload(&[(5, report()), (6, status("v1", "Pod", json!({}))), (7, event("a"))]);
    assert!(test.hear(&first[0], &ok("n")).is_empty());
    let mut waits = Vec::new();
    for number in 2..8 {
        let before = test.outbound.at.now;
        let again = test.tick();
        waits.push((test.outbound.at.now - before).as_secs());
        let ping = format!("ping {number}");
        assert_eq!(routes(&again), ["patch lab/podpatch/web", "insert lab/event/a", &ping]);
        assert_eq!(again[0]["content"], first[1]["content"]);
        test.open();
    }
    assert!(waits[0] == 10 && waits[1] >= 10 && waits[5] >= 30, "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= 60), "{waits:?}");
}

#[test]
fn a_full_link_delays_repetitions() {
    let mut test = Test::registered();
    test.upload(&[(5, report())]);
    for _ in 0..=BACKLOG {
        test.outbound.ping();
    }
    assert_eq!(test.tick().len(), BACKLOG + 1);
    assert_eq!(routes(&test.tick()), ["patch null/nodepatch/edgea"]);
}

#[test]
fn a_repeated_frame_resends_only_open_items() {
    let mut test = Test::registered();
    let items =
        [(5, report()), (6, status("v1", "ConfigMap", json!({}))), (7, status("v1", "Pod", json!({})))];
    let first = test.upload(&items);
    assert!(test.hear(&first[0], &ok("n")).is_empty());
    let again = test.upload(&items);
    assert_eq!(routes(&again), ["patch lab/podpatch/web"]);
    let late = answer(&first[1], &ok("u"));
    let incoming = message::decode(late.as_bytes()).unwrap();
    assert!(!test.uploads.answered(&mut test.outbound, &incoming), "the later message counts");
    assert!(test.hear(&again[0], &ok("u")).is_empty());
    assert_eq!(test.settled(7), [(6, RefusedReason::Other)]);
}

#[test]
fn another_frame_takes_the_place_of_the_one_under_way() {
    let mut test = Test::registered();
    let first = test.upload(&[(5, status("v1", "Pod", json!({"phase": "Pending"})))]);
    let other = test.upload(&[(5, status("v1", "Pod", json!({"phase": "Running"})))]);
    assert_ne!(first[0]["content"], other[0]["content"]);
    assert!(test.hear(&other[0], &ok("u")).is_empty());
    assert_eq!(test.settled(5), []);
    test.upload(&[(6, status("v1", "Pod", json!({})))]);
    assert!(test.upload(&[]).is_empty());
    assert_eq!(test.settled(4), []);
}

#[test]
fn a_disconnect_drops_everything_except_the_node() {
    let mut test = Test::registered();
    let messages = test.upload(&[(5, report()), (6, event("a"))]);
    test.uploads.forget();
    let late = answer(&messages[0], &ok("other"));
    let incoming = message::decode(late.as_bytes()).unwrap();
    assert!(!test.uploads.answered(&mut test.outbound, &incoming));
    assert!(test.pong(1).is_empty() && test.uploads.deadline().is_none());
    test.open();
    assert_eq!(test.uploads.node_uid(), Some("n"));
}

fn any_content() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        ok("u"),
        ok(""),
        error(404, "NotFound"),
        error(409, "Conflict"),
        error(422, "Invalid"),
        error(500, "X"),
        error(403, "Forbidden"),
        json!({"Object": null, "Err": null}),
        json!({"Object": 1, "Err": {}}),
        Value::Null,
        json!("bad"),
        json!([]),
        json!({"Status": "Approved", "RespBody": null}),
        json!({"Status": "Rejected"}),
        json!({"Status": "Rejected", "Error": {"ErrStatus": {"code": 409}}}),
        json!({"Status": "Approved", "RespBody": "?"}),
    ])
}

proptest! {
    /// No answer causes a panic or an early confirm, and once answers are good again the frame is
    /// confirmed once.
    #[test]
    fn no_answers_make_it_panic_or_confirm_too_early(
        steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>(), any_content()), 0..40),
    ) {
        let mut test = Test::new();
        let mut repeated = event("b");
        repeated["event"]["series"] = json!({"count": 3, "lastObservedTime": "2026-11-21T01:43:00.000000Z"});
        let items = [(5, report()), (6, event("a")), (7, repeated), (8, status("v1", "Pod", json!({}))),
            (9, status("lab.io/v1", "Widget", json!({})))];
        let mut messages = test.upload(&items);
        for (act, which, content) in steps {
            let open = test.uploads.in_flight.is_some();
            prop_assert_eq!(open, test.outbound.frames.is_empty());
            if !open { break; }
            let chosen = which.get(&messages).clone();
            match (act, chosen["ping"].as_u64()) {
                (0, _) => messages.extend(test.tick()),
                (1, _) => messages.extend(test.upload(&items)),
                (_, Some(number)) => messages.extend(test.pong(number)),
                (_, None) => {
                    let text = answer(&chosen, &content);
                    let incoming = message::decode(text.as_bytes()).unwrap();
                    test.uploads.answered(&mut test.outbound, &incoming);
                    messages.extend(sent(&mut test.outbound));
                }
            }
        }
        for _ in 0..8 {
            if test.uploads.in_flight.is_none() { break; }
            let mut answered = test.tick();
            while let Some(message) = (!answered.is_empty()).then(|| answered.remove(0)) {
                if let Some(number) = message["ping"].as_u64() {
                    answered.extend(test.pong(number));
                    continue;
                }
                let is_application = message["route"]["source"] == "metaserver";
                let good = if is_application { json!({"Status": "Approved", "RespBody": null}) } else { ok("u") };
                let text = answer(&message, &good);
                let incoming = message::decode(text.as_bytes()).unwrap();
                test.uploads.answered(&mut test.outbound, &incoming);
                answered.extend(sent(&mut test.outbound));
            }
        }
        let confirm = test.confirmed().expect("it is confirmed in the end");
        prop_assert_eq!(confirm.last.status, 9);
        prop_assert!(test.confirmed().is_none());
    }
}
