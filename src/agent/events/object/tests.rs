use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::agent::events::correlate::Occurrence;
use edgesync_object::name::check_subdomain;

const ID: u128 = 0x0123_4567_89ab_4def_8123_4567_89ab_cdef;

fn stamp(second: i64) -> Stamp {
    let wall = Timestamp::from_second(1_800_000_000 + second).unwrap();
    Stamp { wall, at: MonotonicTime { boot: 7, since_boot: second.unsigned_abs() * 1000 } }
}

fn state(reason: EventReason, regarding: Regarding, note: &str) -> EventState {
    EventState::new(ID, Occurrence { reason, regarding, note: Arc::from(note), stamp: stamp(10) })
}

fn object(namespace: &str) -> Regarding {
    let (api_version, kind, name) = ("apps/v1".into(), "Deployment".into(), "pump".into());
    Regarding::Object(ObjectRef { api_version, kind, namespace: namespace.into(), name }, "u-1".into())
}

fn shown(state: &EventState) -> (Record, Value) {
    let record = record(state, &Names::new(&node_name("press-1")), &Corrections::default());
    let body = serde_json::from_str(&record.body).unwrap();
    (record, body)
}

#[test]
fn an_event_about_the_node_is_in_the_default_namespace() {
    let (record, body) = shown(&state(EventReason::StoreFull, Regarding::Node, "no \"room\"\n"));
    let expected = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": "press-1.8123456789abcdef",
            "namespace": "default",
            "uid": "01234567-89ab-4def-8123-456789abcdef",
            "creationTimestamp": "2027-01-15T08:00:10Z",
        },
        "eventTime": "2027-01-15T08:00:10.000000Z",
        "reportingController": "edgesync.io/agent",
        "reportingInstance": "press-1",
        "action": "Write",
        "reason": "StoreFull",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "press-1", "uid": "press-1"},
        "note": "no \"room\"\n",
        "type": "Warning",
    });
    assert_eq!(body, expected);
    assert_eq!(record.lane, Lane::Events);
    assert_eq!(record.key, "event/default/press-1.8123456789abcdef");
    assert_eq!(record.at, MonotonicTime { boot: 7, since_boot: 10_000 });
}

#[test]
fn an_event_about_an_object_is_in_its_namespace() {
    let (record, body) = shown(&state(EventReason::ObjectRejected, object("shop"), "n"));
    let about = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": "pump", "uid": "u-1"
    });
    assert_eq!((record.namespace.as_str(), &body["regarding"]), ("shop", &about));
    assert_eq!(record.key, "event/shop/press-1.8123456789abcdef");
    let (record, body) = shown(&state(EventReason::ObjectRejected, object(""), "n"));
    assert_eq!(record.namespace, "default");
    assert!(body["regarding"].get("namespace").is_none());
}

#[test]
fn a_series_keeps_the_first_note_and_annotates_the_last_one() {
    let mut state = state(EventReason::LimitHit, Regarding::Node, "first");
    state.add("second".into(), stamp(20));
    state.suppressed = 3;
    let (_, body) = shown(&state);
    assert_eq!(body["series"], json!({"count": 2, "lastObservedTime": "2027-01-15T08:00:20.000000Z"}));
    assert_eq!(body["note"], "first");
    let annotations = json!({LATEST_NOTE: "second", SUPPRESSED: "3"});
    assert_eq!(&body["metadata"]["annotations"], &annotations);
    state.add("first".into(), stamp(30));
    state.suppressed = 0;
    let (_, body) = shown(&state);
    assert!(body["metadata"].get("annotations").is_none(), "the last note is the first one: {body}");
    state.count = u32::MAX;
    assert_eq!(shown(&state).1["series"]["count"], i32::MAX);
}

#[test]
fn the_overflow_event_precedes_others_and_is_pending_once() {
    let (first, _) = shown(&state(EventReason::OutboxOverflow, Regarding::Node, "n"));
    let (second, _) =
        shown(&EventState { id: 5, ..state(EventReason::OutboxOverflow, Regarding::Node, "n") });
    assert_eq!((first.lane, second.lane), (Lane::Status, Lane::Status));
    assert_eq!(first.key, second.key);
    assert_ne!(first.name, second.name);
}

#[test]
fn long_node_names_are_shortened_and_stay_distinct() {
    let long = |last: &str| format!("{}.{last}", vec!["n".repeat(50); 5].join(".").split_at(240).0);
    let names = |node: &str| {
        let names = Names::new(&node_name(node));
        (names.event(ID), names.instance)
    };
    let ((one, instance), (two, _)) = (names(&long("one")), names(&long("two")));
    assert_eq!((check_subdomain(&one), check_subdomain(&two)), (Ok(()), Ok(())));
    assert_ne!(one, two);
    assert_eq!(instance.chars().count(), 128);
    assert_eq!(names("press-1").1, "press-1");
}

#[test]
fn invalid_object_references_are_replaced_by_the_node() {
    assert_eq!(validated(object("shop")), object("shop"));
    for namespace in ["Shop", "a/b", &"n".repeat(64)] {
        assert_eq!(validated(object(namespace)), Regarding::Node, "{namespace}");
    }
    let Regarding::Object(pump, _) = object("") else { panic!("no object") };
    assert_eq!(
        validated(Regarding::Object(pump.clone(), "".into())),
        Regarding::Object(pump.clone(), "".into())
    );
    assert_eq!(validated(Regarding::Object(pump.clone(), "a b".into())), Regarding::Node);
    let nameless = ObjectRef { name: "".into(), ..pump };
    assert_eq!(validated(Regarding::Object(nameless, "u".into())), Regarding::Node);
}

#[test]
fn times_before_a_correction_are_corrected_and_annotated() {
    let hour = 3_600_000;
    let right = |second: i64| {
        let wall = stamp(second).wall.checked_add(SignedDuration::from_hours(1)).unwrap();
        Stamp { wall, ..stamp(second) }
    };
    let before = MonotonicTime { boot: 7, since_boot: 15_000 };
    let mut corrections = Corrections::default();
    corrections.add(ClockSet { before, forward_ms: hour, now: right(15) });
    let mut state = state(EventReason::LimitHit, Regarding::Node, "n");
    state.add("n".into(), right(20));
    let names = Names::new(&node_name("press-1"));
    let body: Value = serde_json::from_str(&record(&state, &names, &corrections).body).unwrap();
    assert_eq!(body["eventTime"], "2027-01-15T09:00:10.000000Z");
    assert_eq!(body["metadata"]["creationTimestamp"], "2027-01-15T09:00:10Z");
    assert_eq!(body["series"]["lastObservedTime"], "2027-01-15T09:00:20.000000Z");
    assert_eq!(body["metadata"]["annotations"], json!({TIME_CORRECTED: "+3600s"}));
    assert_eq!(corrections.corrected(right(14)), (right(14).wall, 0), "set, and not yet noticed");
    let elsewhere = MonotonicTime { boot: 8, since_boot: 10_000 };
    let other = Stamp { at: elsewhere, ..stamp(10) };
    assert_eq!(corrections.corrected(other), (other.wall, 0), "another boot has another clock");
    corrections.add(ClockSet {
        before: MonotonicTime { boot: 7, since_boot: 60_000 },
        forward_ms: -1000,
        now: Stamp { wall: right(59).wall, at: MonotonicTime { boot: 7, since_boot: 60_000 } },
    });
    assert_eq!(corrections.corrected(stamp(10)), (right(9).wall, hour - 1000), "set twice");
}

fn any_regarding() -> impl Strategy<Value = Regarding> {
    let word = "[a-z0-9./ -]{0,12}|[a-z]{60,70}|.{0,4}";
    prop_oneof![
        Just(Regarding::Node),
        (word, "[A-Z][a-z]{1,10}", "[a-z0-9-]{0,10}", word, "[a-z0-9.-]{0,40}").prop_map(
            |(api_version, kind, namespace, name, uid)| {
                let (api_version, kind) = (api_version.into(), kind.into());
                let (namespace, name) = (namespace.into(), name.into());
                Regarding::Object(ObjectRef { api_version, kind, namespace, name }, uid.into())
            }
        ),
    ]
}

proptest! {
    #[test]
    fn a_note_is_truncated_at_a_character_and_marked(note in ".{0,2000}") {
        let truncate = truncate(note.clone());
        prop_assert!(truncate.len() <= MAX_NOTE);
        if note.len() <= MAX_NOTE {
            prop_assert_eq!(truncate, note);
        } else {
            prop_assert!(truncate.len() > MAX_NOTE - 8);
            prop_assert!(note.starts_with(truncate.strip_suffix('…').unwrap()));
        }
    }

    #[test]
    fn built_events_satisfy_the_rules_of_the_api(
        reason in prop::sample::select(EventReason::ALL.to_vec()),
        regarding in any_regarding(),
        notes in prop::collection::vec(".{0,1100}", 1..4),
        labels in 1_usize..5,
        label in 1_usize..64,
        id: u128,
        suppressed: u32,
    ) {
        let node = vec!["n".repeat(label); labels].join(".");
        prop_assume!(node.len() <= MAX_SUBDOMAIN);
        let mut state = state(reason, validated(regarding), &truncate(notes[0].clone()));
        state.id = id;
        state.suppressed = suppressed;
        let first = object_of(&state, &node);
        let kind = edgesync_object::kinds::guess("events.k8s.io/v1", "Event", true);
        prop_assert_eq!(first.validate(&kind), Ok(()));
        prop_assert_eq!(edgesync_api::broken_rules(&kind, None, &first), vec![]);
        for note in &notes[1..] {
            state.add(truncate(note.clone()).into(), stamp(20));
        }
        let last = object_of(&state, &node);
        prop_assert_eq!(last.validate(&kind), Ok(()));
        prop_assert_eq!(edgesync_api::broken_rules(&kind, Some(&first), &last), vec![]);
        prop_assert_eq!(edgesync_api::broken_rules(&kind, None, &last), vec![]);
    }
}

fn node_name(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

fn object_of(state: &EventState, node: &str) -> edgesync_object::Object {
    let record = record(state, &Names::new(&node_name(node)), &Corrections::default());
    let object = edgesync_object::Object::parse(&record.body).unwrap();
    assert_eq!((object.namespace(), object.name()), (record.namespace.as_str(), record.name.as_str()));
    object
}
