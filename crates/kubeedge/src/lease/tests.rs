//! Queries and writes of the Lease against the captured messages, and the handling of each answer.

use super::*;
use crate::testing::{answer, captured, error, one, outbound, pass_to, routes, sent, text};
use proptest::prelude::*;

const OWNER: &str = "baf436a4-a076-49bf-b4a2-69aad1bee693";

fn lease(renewed: &str) -> Lease {
    let renewed: Timestamp = renewed.parse().unwrap();
    Lease { session: "s".into(), seconds: 40, acquired: 0, renewed: renewed.as_microsecond(), check_in: None }
}

fn marker_of(revision: u64) -> Marker {
    Marker { epoch: Epoch(0xab), revision }
}

/// A keeper with its outbound.
struct Test {
    keeper: LeaseKeeper,
    outbound: Outbound,
}

impl Test {
    fn new() -> Self {
        Self { keeper: LeaseKeeper::default(), outbound: outbound() }
    }

    /// Returns a keeper that knows that there is no Lease.
    fn without_lease() -> Self {
        let mut test = Self::new();
        test.keeper.query(&mut test.outbound);
        let asked = one(&mut test.outbound);
        assert_eq!(test.hear(&asked, &missing()), Some(LeaseAnswer::Missing));
        test
    }

    /// Returns a keeper that has written the captured Lease.
    fn with_lease() -> Self {
        let mut test = Self::without_lease();
        test.renew("2026-11-21T01:42:41.534606Z", Some(OWNER), None);
        let written = one(&mut test.outbound);
        let content = captured("samples/s2c-lease-insert-response.json")["content"].clone();
        assert_eq!(test.hear(&written, &content), Some(LeaseAnswer::Renewed { marker: None }));
        test
    }

    fn renew(&mut self, renewed: &str, owner: Option<&str>, marker: Option<Marker>) {
        let owner = owner.map(str::to_owned);
        self.keeper.renew(&mut self.outbound, lease(renewed), owner, marker);
    }

    fn hear(&mut self, message: &Value, content: &Value) -> Option<LeaseAnswer> {
        let text = answer(message, content);
        let incoming = message::decode(text.as_bytes()).unwrap();
        self.keeper.answered(&mut self.outbound, &incoming)
    }

    /// Advances time to the deadline.
    fn tick(&mut self) {
        let deadline = self.keeper.deadline().expect("something is to be done");
        let now = deadline.max(self.outbound.at.now);
        pass_to(&mut self.outbound, now);
        self.keeper.tick(&mut self.outbound);
    }

    fn routes(&mut self) -> Vec<String> {
        routes(&sent(&mut self.outbound))
    }
}

fn missing() -> Value {
    let mut content = error(404, "NotFound");
    content["Object"] = Value::Null;
    content
}

fn found(version: &str, metadata: &Value) -> Value {
    let mut all =
        json!({"name": "edgea", "namespace": "kube-node-lease", "uid": "u", "resourceVersion": version});
    all.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    json!({"Object": {"metadata": all, "spec": {}}, "Err": null})
}

const QUERY: &str = "query kube-node-lease/lease/edgea";
const INSERT: &str = "insert kube-node-lease/lease/edgea";
const UPDATE: &str = "update kube-node-lease/lease/edgea";

#[test]
fn question_and_insert_are_those_of_an_edgecore() {
    let mut test = Test::new();
    test.keeper.query(&mut test.outbound);
    let (asked, capture) = (one(&mut test.outbound), captured("samples/c2s-query-lease.json"));
    assert_eq!((&asked["route"], &asked["content"]), (&capture["route"], &capture["content"]));
    assert!(!test.keeper.is_known());
    assert_eq!(test.hear(&asked, &missing()), Some(LeaseAnswer::Missing));
    assert!(test.keeper.is_known());
    test.renew("2026-11-21T01:42:41.534606Z", Some(OWNER), None);
    let (written, capture) = (one(&mut test.outbound), captured("samples/c2s-lease-insert.json"));
    assert_eq!((&written["route"], &written["content"]), (&capture["route"], &capture["content"]));
}

#[test]
fn an_update_is_that_of_an_edgecore_but_for_the_managed_fields() {
    let mut test = Test::with_lease();
    assert_eq!(test.keeper.answered, Some(("371".into(), test.outbound.at.wall)));
    test.renew("2026-11-21T01:42:51.924261Z", Some(OWNER), None);
    let (written, mut capture) = (one(&mut test.outbound), captured("samples/c2s-lease-update.json"));
    capture["content"]["metadata"].as_object_mut().unwrap().remove("managedFields").unwrap();
    assert_eq!((&written["route"], &written["content"]), (&capture["route"], &capture["content"]));
}

#[test]
fn the_marker_is_written_beside_foreign_annotations() {
    let mut test = Test::new();
    test.keeper.query(&mut test.outbound);
    let asked = one(&mut test.outbound);
    let before = json!({"annotations": {"other": "x", ANNOTATION: marker_of(6).to_string()}, "labels": {"l": "1"},
        "managedFields": [1], "ownerReferences": [{"kind": "Lab", "uid": "l"}, {"kind": "Node", "uid": OWNER}]});
    let news = test.hear(&asked, &found("5", &before));
    assert_eq!(news, Some(LeaseAnswer::Found { marker: Some(marker_of(6)), owner: Some(OWNER.into()) }));
    test.renew("2026-11-21T01:42:51Z", None, Some(marker_of(7)));
    let written = one(&mut test.outbound)["content"]["metadata"].take();
    assert_eq!(written["annotations"], json!({"other": "x", ANNOTATION: marker_of(7).to_string()}));
    assert_eq!((&written["labels"], &written["resourceVersion"]), (&json!({"l": "1"}), &json!("5")));
    assert_eq!(written["ownerReferences"], before["ownerReferences"]);
    assert_eq!(written.get("managedFields"), None);
}

#[test]
fn a_renewal_without_a_marker_keeps_the_annotation() {
    let mut test = Test::new();
    test.keeper.query(&mut test.outbound);
    let asked = one(&mut test.outbound);
    let before = json!({"annotations": {ANNOTATION: "odd"}, "ownerReferences": [{"kind": "Lab"}, {"kind": "Node", "uid": "old"}]});
    let news = test.hear(&asked, &found("5", &before));
    assert_eq!(news, Some(LeaseAnswer::Found { marker: None, owner: Some("old".into()) }));
    test.renew("2026-11-21T01:42:51Z", Some("new"), None);
    let written = one(&mut test.outbound)["content"]["metadata"].take();
    assert_eq!(written["annotations"], before["annotations"]);
    let node = json!({"apiVersion": "v1", "kind": "Node", "name": "edgea", "uid": "new"});
    assert_eq!(written["ownerReferences"], json!([{"kind": "Lab"}, node]));
}

#[test]
fn a_lease_is_made_once_the_node_is_known() {
    let mut test = Test::without_lease();
    test.renew("2026-11-21T01:42:41Z", None, None);
    assert!(test.routes().is_empty() && test.keeper.deadline().is_none());
    test.renew("2026-11-21T01:42:51Z", Some(OWNER), None);
    let written = one(&mut test.outbound);
    assert_eq!(written["content"]["spec"]["renewTime"], "2026-11-21T01:42:51.000000Z");
}

#[test]
fn one_write_is_under_way_and_the_latest_renewal_follows() {
    let mut test = Test::with_lease();
    for second in 51..54 {
        test.renew(&format!("2026-11-21T01:42:{second}Z"), Some(OWNER), None);
    }
    let first = one(&mut test.outbound);
    assert_eq!(first["content"]["spec"]["renewTime"], "2026-11-21T01:42:51.000000Z");
    assert_eq!(test.hear(&first, &found("400", &json!({}))), Some(LeaseAnswer::Renewed { marker: None }));
    let next = one(&mut test.outbound);
    assert_eq!(next["content"]["spec"]["renewTime"], "2026-11-21T01:42:53.000000Z");
    assert_eq!(next["content"]["metadata"]["resourceVersion"], "400");
    assert_eq!(test.hear(&next, &found("401", &json!({}))), Some(LeaseAnswer::Renewed { marker: None }));
    assert!(test.routes().is_empty() && test.keeper.deadline().is_none());
}

#[test]
fn a_conflict_requeries_at_once_and_then_after_a_delay() {
    let mut test = Test::with_lease();
    test.renew("2026-11-21T01:42:51Z", Some(OWNER), None);
    let written = one(&mut test.outbound);
    assert_eq!(test.hear(&written, &error(409, "Conflict")), None);
    let asked = one(&mut test.outbound);
    assert_eq!(routes(std::slice::from_ref(&asked)), [QUERY]);
    // CloudCore's cache still lags.
    assert_eq!(test.hear(&asked, &found("371", &json!({}))), None, "that is no news");
    let again = one(&mut test.outbound);
    assert_eq!(again["content"]["spec"], written["content"]["spec"]);
    assert_eq!(test.hear(&again, &error(409, "Conflict")), None);
    assert!(test.routes().is_empty(), "not without a delay");
    test.renew("2026-11-21T01:43:01Z", Some(OWNER), None);
    assert!(test.routes().is_empty(), "a renewal does not shorten it");
    test.tick();
    let asked = one(&mut test.outbound);
    assert_eq!(test.hear(&asked, &found("380", &json!({}))), None);
    let last = one(&mut test.outbound);
    assert_eq!(last["content"]["metadata"]["resourceVersion"], "380");
    assert_eq!(last["content"]["spec"]["renewTime"], "2026-11-21T01:43:01.000000Z");
    assert_eq!(test.hear(&last, &found("381", &json!({}))), Some(LeaseAnswer::Renewed { marker: None }));
    assert_eq!(test.keeper.deadline(), None);
}

#[test]
fn a_lease_that_is_there_already_is_updated() {
    let mut test = Test::without_lease();
    test.renew("2026-11-21T01:42:51Z", Some(OWNER), None);
    let written = one(&mut test.outbound);
    assert_eq!(test.hear(&written, &error(409, "AlreadyExists")), None);
    let asked = one(&mut test.outbound);
    assert_eq!(test.hear(&asked, &found("9", &json!({}))), None);
    assert_eq!(test.routes(), [UPDATE]);
}

#[test]
fn a_lease_with_contradicting_answers_is_created_later() {
    let mut test = Test::without_lease();
    test.renew("2026-11-21T01:42:51Z", Some(OWNER), None);
    let written = one(&mut test.outbound);
    test.hear(&written, &error(409, "AlreadyExists"));
    let asked = one(&mut test.outbound);
    assert_eq!(test.hear(&asked, &missing()), None);
    assert!(test.routes().is_empty());
    test.tick();
    assert_eq!(test.routes(), [INSERT]);
}

#[test]
fn a_deleted_lease_is_reported_and_queried_on_renewal() {
    let mut test = Test::with_lease();
    test.renew("2026-11-21T01:42:51Z", Some(OWNER), None);
    let written = one(&mut test.outbound);
    assert_eq!(test.hear(&written, &error(404, "NotFound")), Some(LeaseAnswer::Gone));
    assert!(!test.keeper.is_known() && test.routes().is_empty());
    test.renew("2026-11-21T01:43:01Z", Some(OWNER), None);
    let asked = one(&mut test.outbound);
    assert_eq!(test.hear(&asked, &missing()), Some(LeaseAnswer::Missing));
    assert_eq!(test.routes(), [INSERT]);
}

#[test]
fn unanswered_queries_back_off_and_ignore_late_answers() {
    let mut test = Test::new();
    test.keeper.query(&mut test.outbound);
    let first = one(&mut test.outbound);
    let mut waits = Vec::new();
    for _ in 0..6 {
        let before = test.outbound.at.now;
        test.tick();
        waits.push((test.outbound.at.now - before).as_secs());
        assert_eq!(test.routes(), [QUERY]);
    }
    assert_eq!(waits[0], 10);
    assert!(waits[1] >= 10 && waits[5] >= 30 && waits.iter().all(|wait| *wait <= 60), "{waits:?}");
    assert_eq!(test.hear(&first, &missing()), None);
    assert!(!test.keeper.is_known());
}

#[test]
fn a_cloudcore_that_never_says_anything_is_left_once() {
    for (received, effects) in [(0, 1), (1, 0)] {
        let mut test = Test::new();
        test.keeper.query(&mut test.outbound);
        test.outbound.counters.received = received;
        for _ in 0..8 {
            test.tick();
        }
        let count =
            test.outbound.effects.iter().filter(|effect| matches!(effect, BridgeEffect::Reconnect)).count();
        assert_eq!(count, effects, "{received} received");
    }
}

#[test]
fn an_unanswered_write_is_repeated_with_the_latest_time() {
    let mut test = Test::with_lease();
    test.renew("2026-11-21T01:42:51Z", Some(OWNER), None);
    test.tick();
    let all = sent(&mut test.outbound);
    assert_eq!(routes(&all), [UPDATE, UPDATE]);
    assert_eq!(all[0]["content"], all[1]["content"]);
    test.renew("2026-11-21T01:43:01Z", Some(OWNER), None);
    test.tick();
    assert_eq!(one(&mut test.outbound)["content"]["spec"]["renewTime"], "2026-11-21T01:43:01.000000Z");
}

#[test]
fn an_empty_answer_is_a_failure_and_is_requeried() {
    let nothing = json!({"Object": null, "Err": null});
    for content in
        [nothing, json!("not a lease"), Value::Null, json!({"Object": {"metadata": 1}, "Err": null})]
    {
        let mut test = Test::new();
        test.keeper.query(&mut test.outbound);
        let asked = one(&mut test.outbound);
        assert_eq!(test.hear(&asked, &content), None, "{content}");
        assert!(test.routes().is_empty());
        test.tick();
        assert_eq!(test.routes(), [QUERY]);

        let mut test = Test::with_lease();
        test.renew("2026-11-21T01:42:51Z", Some(OWNER), None);
        let written = one(&mut test.outbound);
        assert_eq!(test.hear(&written, &content), None, "{content}");
        test.tick();
        let asked = one(&mut test.outbound);
        assert_eq!(test.hear(&asked, &found("500", &json!({}))), None);
        assert_eq!(test.routes(), [UPDATE], "the renewal is not lost");
    }
}

#[test]
fn a_new_session_queries_whatever_was_in_flight() {
    let mut test = Test::with_lease();
    test.renew("2026-11-21T01:42:51Z", Some(OWNER), None);
    let written = one(&mut test.outbound);
    test.keeper.query(&mut test.outbound);
    let asked = one(&mut test.outbound);
    assert_eq!(test.hear(&written, &found("372", &json!({}))), None, "not what is waited for");
    assert!(matches!(test.hear(&asked, &found("372", &json!({}))), Some(LeaseAnswer::Found { .. })));
    test.keeper.forget();
    assert!(!test.keeper.is_known() && test.keeper.deadline().is_none());
    assert_eq!(test.keeper.answered.as_ref().map(|(version, _)| version.as_str()), Some("372"));
}

/// Returns a keeper whose last session has ended with this marker in the Lease.
fn parted(marker: &Marker) -> Test {
    let mut test = Test::without_lease();
    test.renew("2026-11-21T01:42:41Z", Some(OWNER), Some(marker.clone()));
    let written = one(&mut test.outbound);
    let answered = json!({"annotations": {ANNOTATION: marker.to_string()},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "edgea", "uid": OWNER}]});
    test.hear(&written, &found("400", &answered));
    test.keeper.forget();
    test
}

fn totals_of(marker: &Marker) -> Totals {
    Totals { epoch: marker.epoch, revision: marker.revision + 1, ..Totals::default() }
}

#[test]
fn a_recent_lease_is_assumed_and_renewed_when_due() {
    let marker = marker_of(5);
    let mut test = parted(&marker);
    pass_to(&mut test.outbound, Duration::from_secs(4));
    let news = test.keeper.resume(&test.outbound, &totals_of(&marker));
    assert_eq!(news, Some(LeaseAnswer::Found { marker: Some(marker), owner: Some(OWNER.to_owned()) }));
    test.renew("2026-11-21T01:42:45Z", Some(OWNER), Some(marker_of(6)));
    assert_eq!(test.keeper.deadline(), Some(Duration::from_secs(10)));
    assert!(sent(&mut test.outbound).is_empty());
    test.tick();
    let written = one(&mut test.outbound);
    assert_eq!(text(&written["route"]["operation"]), "update");
    assert_eq!(text(&written["content"]["metadata"]["resourceVersion"]), "400");
}

#[test]
fn a_lease_written_by_another_client_is_reported() {
    let marker = marker_of(5);
    let mut test = parted(&marker);
    assert!(test.keeper.resume(&test.outbound, &totals_of(&marker)).is_some());
    test.renew("2026-11-21T01:42:51Z", Some(OWNER), None);
    test.tick();
    let written = one(&mut test.outbound);
    assert_eq!(test.hear(&written, &error(409, "Conflict")), None);
    let asked = one(&mut test.outbound);
    let other = Marker { epoch: Epoch(0xcd), revision: 9 };
    let found = found("401", &json!({"annotations": {ANNOTATION: other.to_string()}}));
    assert_eq!(test.hear(&asked, &found), Some(LeaseAnswer::Found { marker: Some(other), owner: None }));
}

#[test]
fn a_lease_of_long_ago_or_of_another_database_is_not_believed() {
    let marker = marker_of(5);
    let mut test = parted(&marker);
    pass_to(&mut test.outbound, RESUME_WINDOW);
    assert_eq!(test.keeper.resume(&test.outbound, &totals_of(&marker)), None);
    for totals in [totals_of(&marker_of(3)), Totals { epoch: Epoch(1), revision: 9, ..Totals::default() }] {
        let mut test = parted(&marker);
        assert_eq!(test.keeper.resume(&test.outbound, &totals), None);
    }
}

#[test]
fn the_marker_is_written_with_the_last_renewal_at_once() {
    let mut test = Test::with_lease();
    let marker = marker_of(7);
    test.keeper.mark(&mut test.outbound, Some(OWNER.to_owned()), marker.clone());
    let written = one(&mut test.outbound);
    assert_eq!(text(&written["content"]["metadata"]["annotations"][ANNOTATION]), marker.to_string());
    assert_eq!(written["content"]["spec"]["leaseDurationSeconds"], 40);
}

#[test]
fn a_marker_is_read_as_it_is_written() {
    let marker = Marker { epoch: Epoch(u128::MAX - 1), revision: u64::MAX };
    assert_eq!(Marker::parse(&marker.to_string()), Some(marker));
    let epoch = Epoch(1).to_string();
    for odd in ["", ".", "1.1", &epoch, &format!("{epoch}."), &format!("{epoch}.+1"), &format!("{epoch}.1.1")]
    {
        assert_eq!(Marker::parse(odd), None, "{odd}");
    }
}

proptest! {
    /// No answer causes a panic or a standstill.
    #[test]
    fn no_answers_make_it_panic_or_stop(steps in prop::collection::vec((0u8..12, 0u8..4), 1..60)) {
        let mut test = Test::new();
        test.keeper.query(&mut test.outbound);
        let mut asked = Vec::new();
        for (answer, act) in steps {
            asked.extend(sent(&mut test.outbound));
            let content = match answer {
                0 => missing(),
                1 => found("7", &json!({"annotations": 1, "ownerReferences": {"kind": []}})),
                2 => found("8", &json!({"ownerReferences": [1, {"kind": "Node"}], "annotations": {ANNOTATION: 3}})),
                3 => error(409, "Conflict"),
                4 => error(422, "Invalid"),
                5 => error(500, "InternalError"),
                6 => json!({"Object": [], "Err": {}}),
                7 => json!("text"),
                8 => Value::Null,
                9 => json!({"Object": {"metadata": {"resourceVersion": 5}}, "Err": null}),
                10 => error(404, "NotFound"),
                _ => json!([1, {}]),
            };
            match (act, asked.last().cloned()) {
                (0, Some(message)) => { test.hear(&message, &content); }
                (1, _) => test.renew("2026-11-21T01:42:51Z", Some(OWNER), Some(marker_of(1))),
                (2, _) if test.keeper.deadline().is_some() => test.tick(),
                _ => test.renew("2026-11-21T01:42:51Z", None, None),
            }
            prop_assert!(test.keeper.deadline().is_some() || test.keeper.in_flight.is_none());
        }
        // CloudCore recovers: within some queries the Lease is written.
        test.renew("2026-11-21T01:42:52Z", Some(OWNER), None);
        let mut renewed = false;
        for _ in 0..8 {
            if renewed { break; }
            let Some(message) = sent(&mut test.outbound).pop().or_else(|| asked.pop()) else { test.tick(); continue };
            renewed = test.hear(&message, &found("9", &json!({}))) == Some(LeaseAnswer::Renewed { marker: None })
                && text(&message["content"]["spec"]["renewTime"]).contains("52.");
            if !renewed && test.outbound.messages.is_empty() && test.keeper.deadline().is_some() { test.tick(); }
        }
        prop_assert!(renewed);
    }
}
