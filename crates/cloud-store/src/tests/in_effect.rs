//! Objects in effect on nodes: recorded once, shown by records, deleted with their subject.

use super::records::put;
use super::*;
use edgesync_object::ResourceVersion;
use edgesync_object::objectsync::{EFFECT_STATE_LABEL, EFFECT_WAIT_ANNOTATION, IN_EFFECT_LABEL};
use edgesync_protocol::cloud::Record;
use edgesync_protocol::digest::{Digest, Tally};
use edgesync_protocol::upload::{EffectContent, EffectState, Lane, RefusedReason};

const NODE: &str = "edge-1";

fn effect(uid: &str, version: Option<u64>, wanted: u64, state: EffectState) -> EffectContent {
    let (uid, Record { object, .. }) = put(uid, wanted);
    let is_fine = state == EffectState::InEffect;
    EffectContent {
        uid,
        object: ObjectRef::clone(&object),
        version: version.map(ResourceVersion::from),
        wanted: wanted.into(),
        state,
        rule: "web".into(),
        message: if is_fine { String::new() } else { "check: exit code 1".into() },
        since: 1_795_000_000_000_000,
    }
}

fn good(uid: &str, version: u64) -> EffectContent {
    effect(uid, Some(version), version, EffectState::InEffect)
}

fn bad(uid: &str, version: u64, wanted: u64) -> EffectContent {
    effect(uid, Some(version), wanted, EffectState::NotInEffect)
}

fn gone(uid: &str) -> EffectContent {
    effect(uid, None, 0, EffectState::Gone)
}

/// Returns an upload of a node with the database file 7.
fn batch(items: &[(u64, EffectContent)]) -> UploadBatch {
    batch_of(7, true, items)
}

fn batch_of(epoch: u128, known: bool, items: &[(u64, EffectContent)]) -> UploadBatch {
    let items = items.iter().map(|(seq, effect)| {
        let effect = Box::new(effect.clone());
        UploadEffect { seq: *seq, effect: Ok(Effect::InEffect { effect, epoch: Epoch(epoch), known }) }
    });
    let (node, outbox) = (node_name(NODE), format!("outbox-{epoch}"));
    UploadBatch { node, outbox, lane: Lane::Status, confirmed: 0, items: items.collect() }
}

async fn take(store: &CloudStore, batch: UploadBatch) -> Vec<(u64, RefusedReason)> {
    let refused = store.take(batch).await.unwrap().refused;
    refused.into_iter().map(|refused| (refused.seq, refused.reason)).collect()
}

fn held(epoch: u128, puts: &[(&str, u64)]) -> RecordBatch {
    let put = puts.iter().map(|(uid, version)| put(uid, *version)).collect();
    RecordBatch { epoch: Epoch(epoch), put, ..RecordBatch::default() }
}

async fn record(store: &CloudStore, batch: RecordBatch) {
    store.record(&node_name(NODE), None, batch).await.unwrap();
}

/// Returns the stored effects: UID, version in effect, state.
async fn known(store: &CloudStore) -> Vec<String> {
    let known = store.in_effect(&node_name(NODE)).await.unwrap();
    let version = |one: &InEffect| one.version.as_ref().map_or("-".to_owned(), ToString::to_string);
    known.iter().map(|one| format!("{} {} {}", one.uid, version(one), one.state.name())).collect()
}

/// Returns the effects shown by records, by UID: version in effect, state.
async fn shown(store: &CloudStore) -> Vec<String> {
    let records = all(store, "objectsyncs").await;
    let labels = |record: &Stored| {
        let labels = object(record).labels();
        let of = |label: &str| labels.get(label).cloned().unwrap_or("-".into());
        let uid = record.name.rsplit('.').next().unwrap_or_default().to_owned();
        format!("{uid} {} {}", of(IN_EFFECT_LABEL), of(EFFECT_STATE_LABEL))
    };
    records.iter().map(labels).collect()
}

#[tokio::test]
async fn the_newest_word_counts_once_and_its_record_shows_it() {
    let Fixture { store, .. } = &fixture();
    record(store, held(7, &[("u1", 41), ("u2", 5)])).await;
    assert_eq!(take(store, batch(&[(1, good("u1", 41)), (2, bad("u1", 41, 42))])).await, []);
    assert_eq!(known(store).await, ["u1 41 NotInEffect"]);
    assert_eq!(shown(store).await, ["u1 41 NotInEffect", "u2 - -"]);
    let [one] = &store.in_effect(&node_name(NODE)).await.unwrap()[..] else { panic!() };
    assert_eq!((one.wanted.as_str(), &*one.rule, &*one.message), ("42", "web", "check: exit code 1"));
    // Retransmissions of the same frame and of an older one change nothing, not even a version.
    let version = store.version();
    take(store, batch(&[(1, good("u1", 41)), (2, bad("u1", 41, 42))])).await;
    assert_eq!((store.version(), known(store).await), (version, vec!["u1 41 NotInEffect".to_owned()]));
    // The record keeps its labels when the version held changes, and that is one change as before.
    record(store, held(7, &[("u1", 43)])).await;
    assert_eq!(
        (store.version(), shown(store).await.remove(0)),
        (version + 1, "u1 41 NotInEffect".to_owned())
    );
    take(store, batch(&[(3, good("u1", 43))])).await;
    assert_eq!(shown(store).await, ["u1 43 InEffect", "u2 - -"]);
    let selected =
        "SELECT count(*) FROM objects WHERE labels ->> '$.\"edgesync.io/effect-state\"' = 'InEffect'";
    let count =
        store.readers.run(move |conn| Ok::<i64, CloudError>(conn.query_row(selected, [], |row| row.get(0))?));
    assert_eq!(count.await.unwrap(), 1, "clients select by it");
}

#[tokio::test]
async fn a_record_that_comes_later_shows_earlier_reports() {
    let Fixture { store, .. } = &fixture();
    take(store, batch(&[(1, good("u1", 41))])).await;
    assert_eq!((known(store).await.len(), shown(store).await.len()), (1, 0));
    record(store, held(7, &[("u1", 41)])).await;
    assert_eq!(shown(store).await, ["u1 41 InEffect"]);
    let [stored] = &all(store, "objectsyncs").await[..] else { panic!() };
    assert_eq!(object(stored).validate(&kind("objectsyncs")), Ok(()));
}

#[tokio::test]
async fn of_what_a_node_neither_holds_nor_is_to_hold_it_says_nothing() {
    let Fixture { store, .. } = &fixture();
    record(store, held(7, &[("u1", 41)])).await;
    let elsewhere = batch_of(7, false, &[(1, good("u1", 41)), (2, good("u2", 1)), (3, gone("u3"))]);
    assert_eq!(take(store, elsewhere).await, [(2, RefusedReason::NotPlaced)]);
    assert_eq!(known(store).await, ["u1 41 InEffect"], "it still holds the first one");
}

#[tokio::test]
async fn effect_is_forgotten_with_object_rules_and_node() {
    let Fixture { store, .. } = &fixture();
    let all = [("u1", 1), ("u2", 2), ("u3", 3), ("u4", 4)];
    record(store, held(7, &all)).await;
    let effects: Vec<_> = (1..).zip(all.iter().map(|(uid, version)| good(uid, *version))).collect();
    take(store, batch(&effects)).await;
    // No rule concerns the object any more.
    take(store, batch(&[(5, gone("u1"))])).await;
    assert_eq!(shown(store).await[0], "u1 - -");
    // The node no longer holds the object.
    record(store, RecordBatch { remove: vec!["u2".into()], ..held(7, &[]) }).await;
    assert_eq!(known(store).await, ["u3 3 InEffect", "u4 4 InEffect"]);
    // The node reports everything it holds: at first a part, then the whole.
    let part = RecordBatch { reset: true, ..held(7, &[("u1", 1)]) };
    record(store, part).await;
    assert_eq!(known(store).await, ["u3 3 InEffect", "u4 4 InEffect"], "the rest may follow");
    record(store, held(7, &[("u3", 3), ("u4", 4)])).await;
    assert_eq!(shown(store).await, ["u1 - -", "u3 3 InEffect", "u4 4 InEffect"]);
    let tally = Some(Tally { count: 2, digest: Digest::default() });
    record(store, RecordBatch { reset: true, tally, ..held(7, &[("u1", 1), ("u3", 3)]) }).await;
    assert_eq!(known(store).await, ["u3 3 InEffect"]);
    remove_node(store, NODE).await.unwrap();
    assert!(known(store).await.is_empty());
}

#[tokio::test]
async fn effects_of_a_lost_database_file_do_not_count() {
    for effects_come_first in [false, true] {
        let Fixture { store, .. } = &fixture();
        record(store, held(7, &[("u1", 1), ("u2", 2)])).await;
        take(store, batch(&[(1, good("u1", 1)), (2, good("u2", 2))])).await;
        let effects_again = batch_of(8, true, &[(1, good("u2", 2))]);
        let reported = RecordBatch { reset: true, ..held(8, &[("u2", 2), ("u1", 1)]) };
        if effects_come_first {
            take(store, effects_again).await;
            record(store, reported).await;
        } else {
            record(store, reported).await;
            take(store, effects_again).await;
        }
        assert_eq!(known(store).await, ["u2 2 InEffect"], "{effects_come_first}");
        assert_eq!(shown(store).await, ["u1 - -", "u2 2 InEffect"], "{effects_come_first}");
        let effects = &store.effects_by_node().await.unwrap()[NODE];
        assert_eq!(effects.counts(), EffectCounts { in_effect: 1, ..EffectCounts::default() });
    }
}

#[tokio::test]
async fn a_crash_keeps_effect_and_number_together() {
    let fixture = fixture();
    record(&fixture.store, held(7, &[("u1", 1)])).await;
    let before = fixture.after_crash();
    take(&fixture.store, batch(&[(1, good("u1", 1))])).await;
    let after = fixture.after_crash();
    for (crashed, versions) in [(before, 1), (after, 0)] {
        let start = crashed.store.version();
        take(&crashed.store, batch(&[(1, good("u1", 1))])).await;
        assert_eq!(known(&crashed.store).await, ["u1 1 InEffect"]);
        assert_eq!(crashed.store.version(), start + versions);
    }
}

#[tokio::test]
async fn compact_effects_equal_the_stored_rows() {
    let Fixture { store, .. } = &fixture();
    record(store, held(7, &[("u1", 1), ("u2", 2), ("u3", 3)])).await;
    let effects = [
        (1, good("u1", 1)),
        (2, bad("u2", 1, 2)),
        (3, effect("u3", None, 3, EffectState::Conflict)),
        (4, good("u4", 4)),
        (5, gone("u4")),
    ];
    take(store, batch(&effects)).await;
    let mut applied = NodeEffects::default();
    for (seq, effect) in &effects {
        applied.ingest("o", *seq, Epoch(7), Some(effect));
        applied.ingest("o", *seq, Epoch(7), Some(&bad("u1", 8, 9)));
    }
    // Refused at first, then retransmitted.
    applied.ingest("o", 6, Epoch(7), None);
    applied.ingest("o", 6, Epoch(7), Some(&good("u5", 5)));
    let read = store.effects_by_node().await.unwrap().remove(NODE).unwrap();
    let counts = EffectCounts { in_effect: 1, not_in_effect: 1, conflicts: 1, waiting: 0 };
    for mut effects in [applied, read] {
        let has = |effects: &NodeEffects, uid: &str, version: &str| effects.has(key_of(uid), key_of(version));
        assert_eq!(effects.counts(), counts);
        assert_eq!((has(&effects, "u1", "1"), has(&effects, "u1", "2")), (Some(true), Some(false)));
        assert_eq!((has(&effects, "u2", "2"), has(&effects, "u2", "1")), (Some(false), Some(false)));
        assert_eq!((has(&effects, "u3", "3"), has(&effects, "u4", "4")), (Some(false), None));
        let why = |effects: &NodeEffects| {
            ["u1", "u2", "u3", "u4"].map(|uid| effects.message(key_of(uid)).is_some())
        };
        assert_eq!(effects.message(key_of("u2")), Some("check: exit code 1"));
        assert_eq!(why(&effects), [false, true, true, false]);
        effects.follow(Epoch(7));
        effects.keep(["u1", "u3"].into_iter());
        assert_eq!(why(&effects), [false, false, true, false]);
        effects.forget("u3");
        effects.forget("u3");
        assert_eq!(why(&effects), [false; 4]);
        assert_eq!(effects.counts(), EffectCounts { in_effect: 1, ..EffectCounts::default() });
        effects.follow(Epoch(8));
        assert_eq!((effects.counts().objects(), has(&effects, "u1", "1")), (0, None));
    }
}

#[test]
fn kept_messages_are_few_and_short() {
    let mut effects = NodeEffects::default();
    let mut seq = 0;
    let mut report = |effects: &mut NodeEffects, uid: &str, state, message: &str| {
        seq += 1;
        let content = EffectContent { message: message.into(), ..effect(uid, None, 1, state) };
        effects.ingest("o", seq, Epoch(7), Some(&content));
        effects.message(key_of(uid)).map(str::to_owned)
    };
    let mut bad = |uid: &str, message: &str| {
        report(&mut effects, uid, EffectState::NotInEffect, message).unwrap_or_default()
    };
    assert_eq!(bad("u1", " nginx: unknown\n\x1b[1mdirective\n"), "nginx: unknown  [1mdirective");
    let long = bad("u2", &"\u{e9}".repeat(500));
    assert_eq!((long.chars().count(), long.ends_with('…')), (121, true));
    for uid in ["u1", "u3", "u4", "u5"] {
        bad(uid, uid);
    }
    assert_eq!(effects.message(key_of("u2")), None, "the oldest of five");
    assert_eq!(effects.message(key_of("u5")), Some("u5"));
    effects.ingest("o", 9, Epoch(7), Some(&effect("u5", Some(1), 2, EffectState::Waiting)));
    assert_eq!(effects.message(key_of("u5")), None, "nothing is wrong with it");
}

#[tokio::test]
async fn record_shows_what_its_object_waits_for() {
    let Fixture { store, .. } = &fixture();
    let shown = async || {
        let annotations = object(&all(store, "objectsyncs").await[0]).annotations();
        annotations.get(EFFECT_WAIT_ANNOTATION).cloned()
    };
    let waiting = || effect("u1", Some(1), 2, EffectState::Waiting);
    take(store, batch(&[(1, waiting())])).await;
    record(store, held(7, &[("u1", 1)])).await;
    assert_eq!(shown().await.as_deref(), Some("check: exit code 1"), "reported before its record");
    take(store, batch(&[(2, bad("u1", 1, 2))])).await;
    assert_eq!(shown().await, None);
    take(store, batch(&[(3, waiting())])).await;
    assert_eq!(shown().await.as_deref(), Some("check: exit code 1"));
}

#[test]
fn version_that_is_no_label_value_is_left_out() {
    let labels = effect_labels(Some(&"9".repeat(64)), EffectState::NotInEffect);
    assert_eq!(labels, BTreeMap::from([(EFFECT_STATE_LABEL, "NotInEffect".to_owned())]));
}
