//! Items of node outboxes take effect exactly once, across loss, retransmission and restore.

use super::*;
use edgesync_protocol::node::NodeReport;
use edgesync_protocol::upload::{IngestCursor, Lane, Lanes, Refused, RefusedReason};

fn batch(outbox: &str, lane: Lane, items: Vec<(u64, Effect)>) -> UploadBatch {
    let items = items.into_iter().map(|(seq, effect)| UploadEffect { seq, effect: Ok(effect) }).collect();
    UploadBatch { node: node_name("edge-1"), outbox: outbox.into(), lane, confirmed: 0, items }
}

fn event_named(name: &str, note: &str) -> Effect {
    let value = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "type": "Normal", "reason": "Started",
        "metadata": {"name": name, "namespace": "lab", "uid": "made-up", "resourceVersion": "7",
            "creationTimestamp": "1970-01-01T00:00:00Z", "finalizers": ["x.io/stay"], "labels": {"a": "b"}},
        "note": note});
    Effect::Event(Box::new(serde_json::from_value(value).unwrap()))
}

fn status_of(stored: &Stored, status: Value) -> Effect {
    Effect::Status {
        resource: kind("pods"),
        namespace: stored.namespace.clone(),
        name: stored.name.clone(),
        uid: Arc::clone(&stored.uid),
        status,
    }
}

async fn pod(store: &CloudStore, name: &str) -> Stored {
    let value = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "edge-1"},
        "metadata": {"name": name, "namespace": "lab", "managedFields": [{"manager": "kubectl"}]}});
    store.create(&kind("pods"), serde_json::from_value(value).unwrap()).await.unwrap()
}

async fn take(store: &CloudStore, batch: UploadBatch) -> (Lanes, Vec<(u64, RefusedReason)>) {
    let UploadOutcome { taken, refused, .. } = store.take(batch).await.unwrap();
    (taken.last, refused.into_iter().map(|Refused { seq, reason, .. }| (seq, reason)).collect())
}

async fn event(store: &CloudStore, name: &str) -> Result<Stored, CloudError> {
    store.get(kind("events.events.k8s.io").key("lab", name)).await
}

async fn notes(store: &CloudStore) -> Vec<String> {
    all(store, "events.events.k8s.io")
        .await
        .iter()
        .map(|item| format!("{}={}", item.name, object(item).fields()["note"].as_str().unwrap()))
        .collect()
}

fn lanes(status: u64, events: u64, bulk: u64) -> Lanes {
    Lanes { status, events, bulk }
}

#[tokio::test]
async fn an_item_takes_effect_once_however_often_it_is_sent() {
    let fixture = fixture();
    let both = || batch("o", Lane::Events, vec![(1, event_named("a", "x")), (4, event_named("b", "x"))]);
    assert_eq!(take(&fixture.store, both()).await, (lanes(0, 4, 0), vec![]));
    let version = fixture.store.version();
    // An operator deletes the Event meanwhile: a retransmitted item must not restore it.
    fixture.store.delete(&kind("events.events.k8s.io"), "lab", "a", None).await.unwrap();
    assert_eq!(take(&fixture.store, both()).await, (lanes(0, 4, 0), vec![]));
    assert_eq!((notes(&fixture.store).await, fixture.store.version()), (vec!["b=x".to_owned()], version + 1));
    let fixture = fixture.reopen().await;
    let version = fixture.store.version();
    assert_eq!(take(&fixture.store, both()).await, (lanes(0, 4, 0), vec![]));
    assert_eq!(fixture.store.version(), version);
    let later = batch("o", Lane::Events, vec![(4, event_named("b", "y")), (5, event_named("c", "x"))]);
    assert_eq!(take(&fixture.store, later).await.0, lanes(0, 5, 0));
    assert_eq!(notes(&fixture.store).await, ["b=x", "c=x"]);
}

#[tokio::test]
async fn effects_and_numbers_are_found_together_after_a_crash() {
    let fixture = fixture();
    create(&fixture.store, "something").await;
    let one = || batch("o", Lane::Bulk, vec![(1, event_named("a", "x"))]);
    let before = fixture.after_crash();
    take(&fixture.store, one()).await;
    let after = fixture.after_crash();
    for (crashed, versions) in [(before, 1), (after, 0)] {
        let start = crashed.store.version();
        assert_eq!(take(&crashed.store, one()).await.0, lanes(0, 0, 1));
        assert_eq!(notes(&crashed.store).await, ["a=x"]);
        assert_eq!(crashed.store.version(), start + versions);
    }
}

#[tokio::test]
async fn lanes_and_nodes_are_counted_apart_and_can_be_probed() {
    let Fixture { store, .. } = &fixture();
    let version = store.version();
    assert_eq!(take(store, batch("o", Lane::Status, vec![])).await.0, lanes(0, 0, 0));
    take(store, batch("o", Lane::Events, vec![(7, event_named("a", "x"))])).await;
    take(store, batch("o", Lane::Bulk, vec![(3, event_named("b", "x"))])).await;
    assert_eq!(take(store, batch("o", Lane::Status, vec![])).await.0, lanes(0, 7, 3));
    let other = UploadBatch {
        node: node_name("edge-2"),
        ..batch("o", Lane::Events, vec![(1, event_named("c", "x"))])
    };
    assert_eq!(take(store, other).await.0, lanes(0, 1, 0));
    assert_eq!(store.version(), version + 3);
}

#[tokio::test]
async fn numbers_of_another_outbox_mean_nothing() {
    let Fixture { store, .. } = &fixture();
    take(store, batch("one", Lane::Events, vec![(900, event_named("a", "x"))])).await;
    let UploadOutcome { taken, .. } =
        store.take(batch("two", Lane::Bulk, vec![(1, event_named("b", "x"))])).await.unwrap();
    assert_eq!(taken, IngestCursor { outbox: "two".into(), last: lanes(0, 0, 1) });
    take(store, batch("two", Lane::Events, vec![(1, event_named("c", "x"))])).await;
    assert_eq!(notes(store).await, ["a=x", "b=x", "c=x"]);
}

#[tokio::test]
async fn older_copy_of_the_store_repeats_no_confirmed_item() {
    let fixture = fixture();
    take(&fixture.store, batch("o", Lane::Events, vec![(1, event_named("a", "x"))])).await;
    let copy = fixture.after_crash();
    take(&fixture.store, batch("o", Lane::Events, vec![(2, event_named("b", "x"))])).await;
    // The answer to 3 is lost; then the store is replaced by the copy, which has not received 2.
    take(&fixture.store, batch("o", Lane::Events, vec![(3, event_named("c", "x"))])).await;
    let again = UploadBatch { confirmed: 2, ..batch("o", Lane::Events, vec![(3, event_named("c", "x"))]) };
    assert_eq!(take(&copy.store, again).await.0, lanes(0, 3, 0));
    assert_eq!(notes(&copy.store).await, ["a=x", "c=x"]);
}

#[tokio::test]
async fn numbers_beyond_those_with_a_sign_are_kept() {
    let fixture = fixture();
    take(&fixture.store, batch("o", Lane::Events, vec![(u64::MAX - 1, event_named("a", "x"))])).await;
    let fixture = fixture.reopen().await;
    assert_eq!(take(&fixture.store, batch("o", Lane::Events, vec![])).await.0, lanes(0, u64::MAX - 1, 0));
}

#[tokio::test]
async fn uploaded_status_replaces_only_the_status_and_is_synced() {
    let Fixture { store, .. } = &fixture();
    let stored = pod(store, "p").await;
    let (_, mut feed) = follow(store).await;
    take(store, batch("o", Lane::Status, vec![(1, status_of(&stored, json!({"phase": "Running"})))])).await;
    let after = store.get(kind("pods").key("lab", "p")).await.unwrap();
    let mut expected = object(&stored);
    expected.fields_mut().insert("status".into(), json!({"phase": "Running"}));
    expected.set_metadata("resourceVersion", after.version.to_string());
    assert_eq!(object(&after), expected);
    assert_eq!(next_change(&mut feed).await, (ChangeKind::Modified, "p".to_owned(), after.version));
    take(store, batch("o", Lane::Status, vec![(2, status_of(&stored, json!({"phase": "Running"})))])).await;
    assert_eq!(store.version(), after.version, "an equal status costs no version");
    take(store, batch("o", Lane::Status, vec![(3, status_of(&stored, Value::Null))])).await;
    assert!(!object(&store.get(kind("pods").key("lab", "p")).await.unwrap()).fields().contains_key("status"));
}

#[tokio::test]
async fn feed_has_the_stored_version_of_the_kind() {
    let Fixture { store, .. } = &fixture();
    let stored = pod(store, "p").await;
    let (_, mut feed) = follow(store).await;
    let Effect::Status { resource, namespace, name, uid, status } = status_of(&stored, json!({"phase": "x"}))
    else {
        panic!()
    };
    let resource = Resource { version: "v2".into(), plural: "podlings".into(), ..resource };
    let old = Effect::Status { resource, namespace, name, uid, status };
    assert_eq!(take(store, batch("o", Lane::Status, vec![(1, old)])).await.1, []);
    let FeedItem::Change(change) = feed.next().await else { panic!() };
    assert_eq!(*change.object.resource, kind("pods"));
}

#[tokio::test]
async fn invalid_items_are_refused_with_reasons_others_take_effect() {
    let options = CloudOptions { max_object_bytes: 2000, ..CloudOptions::default() };
    let Fixture { store, .. } = &fixture_with(&options);
    let stored = pod(store, "p").await;
    let phase = || json!({"phase": "Running"});
    let mut odd = event_named("a", "x");
    if let Effect::Event(event) = &mut odd {
        event.set_metadata("namespace", "Not A Namespace");
    }
    let report: NodeReport = serde_json::from_value(json!({"status": {"nodeInfo": 7}})).unwrap();
    let unknown = Effect::Status {
        resource: kinds::guess("lab.io/v1", "Widget", true),
        namespace: "lab".into(),
        name: "w".into(),
        uid: "u".into(),
        status: phase(),
    };
    let mut all = batch(
        "o",
        Lane::Status,
        vec![
            (1, status_of(&Stored { name: "gone".into(), ..stored.clone() }, phase())),
            (2, status_of(&Stored { uid: "other".into(), ..stored.clone() }, phase())),
            (3, odd),
            (4, status_of(&stored, json!("Running"))),
            (5, status_of(&stored, json!({"message": "x".repeat(3000)}))),
            (6, Effect::Node(Box::new(report))),
            (7, unknown),
            (9, status_of(&stored, phase())),
            (10, event_named("large", &"x".repeat(3000))),
        ],
    );
    let known = (RefusedReason::NotPlaced, "é".repeat(1000));
    all.items.insert(7, UploadEffect { seq: 8, effect: Err(known) });
    let UploadOutcome { taken, refused, .. } = store.take(all.clone()).await.unwrap();
    use RefusedReason::{Invalid, NotPlaced};
    let reasons: Vec<_> = refused.iter().map(|refused| (refused.seq, refused.reason)).collect();
    assert_eq!(
        reasons,
        [
            (1, NotPlaced),
            (2, NotPlaced),
            (3, Invalid),
            (4, Invalid),
            (5, Invalid),
            (6, Invalid),
            (7, NotPlaced),
            (8, NotPlaced),
            (10, Invalid),
        ]
    );
    let message = |index: usize| refused[index].message.clone();
    let words = |name: &str, kind: &str| format!("{kind} 'lab/{name}' is not placed on this node");
    assert_eq!(message(0), words("gone", "Pod"), "it does not exist");
    assert_eq!(message(1), words("p", "Pod"), "it exists under another UID");
    assert_eq!(message(6), words("w", "Widget"), "its kind does not exist");
    assert!(refused.iter().all(|refused| !refused.message.is_empty() && refused.message.len() <= 256));
    assert_eq!(taken.last, lanes(10, 0, 0));
    let after = object(&store.get(kind("pods").key("lab", "p")).await.unwrap());
    assert_eq!(after.fields()["status"], phase());
    assert!(notes(store).await.is_empty());
    assert_eq!(store.take(all).await.unwrap().refused, [], "what was refused once is not tried again");
}

#[tokio::test]
async fn refusal_leaves_no_version_history_or_notification() {
    let Fixture { store, .. } = &fixture();
    let told = Arc::new(ObservedCommits::default());
    store.observe(Arc::clone(&told) as Arc<_>).await.unwrap();
    let stored = pod(store, "p").await;
    let gone = status_of(&Stored { name: "gone".into(), ..stored.clone() }, json!({}));
    let items = vec![(1, event_named("a", "x")), (2, gone), (3, event_named("b", "x"))];
    take(store, batch("o", Lane::Bulk, items)).await;
    let names: Vec<String> = told.changes().into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["p", "a", "b"]);
    assert_eq!((store.version(), told.version()), (stored.version + 2, stored.version + 2));
    assert_eq!(history(store, stored.version).await.unwrap().len(), 2);
}

#[tokio::test]
async fn an_event_gets_the_identity_that_the_cloud_gives_and_keeps_it() {
    let Fixture { store, .. } = &fixture();
    take(store, batch("o", Lane::Events, vec![(1, event_named("a", "x"))])).await;
    let first = object(&event(store, "a").await.unwrap());
    assert!(uuid::Uuid::parse_str(first.uid()).is_ok());
    assert!(first.creation_timestamp() > "2026" && !first.is_held());
    assert_eq!(first.annotations()["edgesync.io/node"], "edge-1");
    assert_eq!(first.labels().len(), 1);
    let version = store.version();
    take(store, batch("o", Lane::Events, vec![(2, event_named("a", "x"))])).await;
    assert_eq!(store.version(), version, "an equal Event costs no version");
    take(store, batch("o", Lane::Events, vec![(3, event_named("a", "y"))])).await;
    let second = object(&event(store, "a").await.unwrap());
    assert_eq!((second.uid(), second.creation_timestamp()), (first.uid(), first.creation_timestamp()));
    assert_eq!((second.fields()["note"].as_str(), store.version()), (Some("y"), version + 1));
}

#[tokio::test]
async fn event_beside_one_of_another_author_keeps_its_own_name() {
    let Fixture { store, .. } = &fixture();
    let events = kind("events.events.k8s.io");
    let Effect::Event(theirs) = event_named("a", "theirs") else { panic!() };
    let mut named = (*theirs).clone();
    named.set_metadata("name", "a.edge-1");
    store.create(&events, *theirs).await.unwrap();
    take(store, batch("o", Lane::Events, vec![(1, event_named("a", "ours"))])).await;
    assert_eq!(notes(store).await, ["a=theirs", "a.edge-1=ours"]);
    // The name is free again: the existing Event keeps its alternative name.
    store.delete(&events, "lab", "a", None).await.unwrap();
    take(store, batch("o", Lane::Events, vec![(2, event_named("a", "more"))])).await;
    assert_eq!(notes(store).await, ["a.edge-1=more"]);
    let other = UploadBatch {
        node: node_name("edge-2"),
        ..batch("o", Lane::Events, vec![(1, event_named("a", "theirs"))])
    };
    take(store, other).await;
    assert_eq!(notes(store).await, ["a=theirs", "a.edge-1=more"]);
    // Both names belong to others.
    store.delete(&events, "lab", "a.edge-1", None).await.unwrap();
    store.create(&events, named).await.unwrap();
    for (seq, note) in [(3, "ours"), (4, "ours again")] {
        assert_eq!(take(store, batch("o", Lane::Events, vec![(seq, event_named("a", note))])).await.1, []);
    }
    let all = notes(store).await;
    assert_eq!(all.len(), 3);
    assert!(all.iter().any(|event| event.ends_with("=ours again")), "{all:?}");
}

#[tokio::test]
async fn the_node_of_a_report_is_registered_by_it() {
    let Fixture { store, .. } = &fixture();
    let report: NodeReport = serde_json::from_value(json!({"labels": {"a": "b"}})).unwrap();
    take(store, batch("o", Lane::Status, vec![(1, Effect::Node(Box::new(report)))])).await;
    assert_eq!(store.registered().await.unwrap().nodes, ["edge-1"]);
}

#[tokio::test]
async fn uploads_of_a_removed_node_have_no_effect() {
    let Fixture { store, .. } = &fixture();
    take(store, batch("o", Lane::Events, vec![(5, event_named("a", "x"))])).await;
    assert!(remove_node(store, "edge-1").await.unwrap());
    let late = store.take(batch("o", Lane::Events, vec![(6, event_named("b", "x"))])).await;
    assert!(matches!(late, Err(CloudError::NotFound { .. })), "{late:?}");
    admit_node(store, "edge-1").await.unwrap();
    assert_eq!(take(store, batch("o", Lane::Events, vec![])).await.0, lanes(0, 0, 0));
    assert_eq!(notes(store).await, ["a=x"]);
}

#[tokio::test]
async fn a_batch_names_the_namespaces_that_its_events_need() {
    let mut batch = batch("o", Lane::Bulk, vec![(1, event_named("a", "x")), (2, event_named("b", "x"))]);
    let refused = (RefusedReason::Invalid, String::new());
    batch.items.push(UploadEffect { seq: 3, effect: Err(refused) });
    assert_eq!(batch.event_namespaces().into_iter().collect::<Vec<_>>(), ["lab"]);
}

#[tokio::test]
async fn a_node_has_only_so_many_events_and_the_oldest_make_room() {
    let fixture = fixture_with(&CloudOptions { events_per_node: 3, ..CloudOptions::default() });
    let store = &fixture.store;
    let start = store.version();
    let Effect::Event(operators) = event_named("operators", "stays") else { panic!() };
    store.create(&kind("events.events.k8s.io"), *operators).await.unwrap();
    let other = UploadBatch {
        node: node_name("edge-2"),
        ..batch("o", Lane::Events, vec![(1, event_named("other", "stays"))])
    };
    take(store, other).await;
    let items = |from: u64, names: &[&str]| {
        let items =
            (from..).zip(names).map(|(seq, name)| (seq, event_named(name, &seq.to_string()))).collect();
        batch("o", Lane::Bulk, items)
    };
    take(store, items(1, &["a", "b", "c"])).await;
    // A continued Event is not a new one.
    assert_eq!(store.take(items(4, &["c", "b"])).await.unwrap().events_dropped, 0);
    let outcome = store.take(items(6, &["d", "e"])).await.unwrap();
    assert_eq!((outcome.refused, outcome.events_dropped, outcome.taken.last), (vec![], 2, lanes(0, 0, 7)));
    assert_eq!(notes(store).await, ["c=4", "d=6", "e=7", "operators=stays", "other=stays"]);
    let history = history(store, start).await.unwrap();
    assert_eq!(history.iter().filter(|change| change.kind == ChangeKind::Deleted).count(), 2);
    // A node that was offline for long sends the backlog of its outbox, frame after frame.
    for seq in 8..200 {
        take(store, items(seq, &[&format!("f{seq}")])).await;
    }
    assert_eq!(notes(store).await[..3], ["f197=197", "f198=198", "f199=199"]);
}
