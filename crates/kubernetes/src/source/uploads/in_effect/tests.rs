//! Tests of effect reports, written to a cluster.

use crate::node_name;
use serde_json::{Value, json};

use super::*;
use crate::source::testing::{MAX_EVENTS, RECORDS, Replica, Rig, at, renewal};
pub(super) use edgesync_fleet::source::{Effect, UploadBatch, UploadEffect};
use edgesync_object::ObjectRef;
use edgesync_object::objectsync::{EFFECT_STATE_LABEL, IN_EFFECT_LABEL};
use edgesync_protocol::upload::Lane;

fn effect(version: Option<u64>, wanted: u64, state: EffectState) -> EffectContent {
    EffectContent {
        uid: "u-1".into(),
        object: ObjectRef {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: "shop".into(),
            name: "one".into(),
        },
        version: version.map(Into::into),
        wanted: wanted.into(),
        state,
        rule: "web".into(),
        message: String::new(),
        since: 1,
    }
}

fn batch(confirmed: u64, items: &[(u64, bool, EffectContent)]) -> UploadBatch {
    let items = items.iter().map(|(seq, known, effect)| {
        let (effect, epoch) = (Box::new(effect.clone()), Epoch(7));
        UploadEffect { seq: *seq, effect: Ok(Effect::InEffect { effect, epoch, known: *known }) }
    });
    let (node, outbox) = (node_name("edge-1"), "o".to_owned());
    UploadBatch { node, outbox, lane: Lane::Status, confirmed, items: items.collect() }
}

async fn take(replica: &Replica, batch: UploadBatch) -> Vec<RefusedReason> {
    let outcome = replica.uploads.ingest(batch).await.unwrap();
    outcome.refused.into_iter().map(|refused| refused.reason).collect()
}

async fn record(rig: &Rig) -> Option<Object> {
    rig.get(RECORDS, "ObjectSync", "shop", "edge-1.u-1").await
}

/// Returns the version in effect, the state, and the version held, as shown by the record.
async fn shown(rig: &Rig) -> [Value; 3] {
    let Some(record) = record(rig).await else { return [Value::Null, Value::Null, Value::Null] };
    let label = |label| record.labels().get(label).map_or(Value::Null, |value| json!(value));
    [label(IN_EFFECT_LABEL), label(EFFECT_STATE_LABEL), at(&record, "/status/objectResourceVersion").clone()]
}

async fn write(replica: &Replica) {
    tokio::select! {
        () = replica.syncs.run() => {}
        () = replica.syncs.settled() => {}
    }
}

fn held(version: u64) -> Vec<(edgesync_protocol::change::Uid, Record)> {
    let effect = effect(None, version, EffectState::InEffect);
    vec![(effect.uid, Record { version: version.into(), object: effect.object.into() })]
}

async fn start() -> (Rig, Replica) {
    let rig = Rig::start().await;
    rig.define_records().await;
    rig.create_node("edge-1").await;
    let replica = rig.replica("a");
    replica.leases.renew(vec![renewal("edge-1", 1)]).await.unwrap();
    (rig, replica)
}

#[tokio::test]
async fn effect_labels_survive_a_change_of_the_held_version() {
    let (rig, a) = start().await;
    a.syncs.replace(&node_name("edge-1"), held(41));
    write(&a).await;
    assert_eq!(take(&a, batch(0, &[(1, true, effect(Some(41), 41, EffectState::InEffect))])).await, []);
    assert_eq!(shown(&rig).await, [json!("41"), json!("InEffect"), json!("41")]);
    // The writer of records knows the labels written beside it and does not read them again.
    a.syncs.change(&node_name("edge-1"), held(42), Vec::new());
    write(&a).await;
    assert_eq!(shown(&rig).await, [json!("41"), json!("InEffect"), json!("42")]);
    let bad = effect(Some(41), 42, EffectState::NotInEffect);
    take(&a, batch(1, &[(2, true, bad.clone())])).await;
    assert_eq!(shown(&rig).await, [json!("41"), json!("NotInEffect"), json!("42")]);
    let before = record(&rig).await;
    // Another replica receives the same items.
    let b = rig.replica("b");
    b.leases.claim(&node_name("edge-1")).await.unwrap();
    take(&b, batch(1, &[(2, true, bad)])).await;
    assert_eq!(record(&rig).await, before, "what is there is not written again");
    take(&b, batch(2, &[(3, true, effect(None, 42, EffectState::Gone))])).await;
    assert_eq!(shown(&rig).await, [Value::Null, Value::Null, json!("42")]);
    assert_eq!(record(&rig).await.unwrap().labels()["edgesync.io/node"], "edge-1");
}

#[tokio::test]
async fn a_missing_record_is_created_for_known_objects_only() {
    let (rig, a) = start().await;
    let good = effect(Some(41), 41, EffectState::InEffect);
    assert_eq!(take(&a, batch(0, &[(1, false, good.clone())])).await, [RefusedReason::NotPlaced]);
    assert_eq!(take(&a, batch(1, &[(2, false, effect(None, 41, EffectState::Gone))])).await, []);
    assert_eq!(record(&rig).await, None);
    take(&a, batch(2, &[(3, true, good)])).await;
    assert_eq!(shown(&rig).await, [json!("41"), json!("InEffect"), json!("41")]);
    // The writer of records finds it.
    let before = record(&rig).await;
    a.syncs.replace(&node_name("edge-1"), held(41));
    write(&a).await;
    assert_eq!(record(&rig).await, before);
    // It is deleted with its object.
    a.syncs.change(&node_name("edge-1"), Vec::new(), vec!["u-1".into()]);
    write(&a).await;
    assert_eq!(record(&rig).await, None);
}

#[tokio::test]
async fn a_fenced_replica_labels_no_record_and_foreign_records_stay() {
    let (rig, a) = start().await;
    let good = || effect(Some(41), 41, EffectState::InEffect);
    take(&a, batch(0, &[(1, true, good())])).await;
    let b = rig.replica("b");
    b.leases.claim(&node_name("edge-1")).await.unwrap();
    let newer = effect(Some(42), 42, EffectState::InEffect);
    take(&b, batch(2, &[(3, true, newer)])).await;
    let late = batch(1, &[(2, true, effect(Some(41), 42, EffectState::NotInEffect))]);
    let error = a.uploads.ingest(late).await.unwrap_err().to_string();
    assert!(error.contains("now served by replica b"), "{error}");
    assert_eq!(shown(&rig).await, [json!("42"), json!("InEffect"), json!("41")]);

    let foreign = json!({"apiVersion": RECORDS, "kind": "ObjectSync",
        "metadata": {"name": "edge-1.u-2", "namespace": "shop"},
        "spec": {"objectAPIVersion": "v1", "objectKind": "ConfigMap", "objectName": "two"}});
    let foreign = rig.create(foreign).await;
    let about_it = EffectContent { uid: "u-2".into(), ..good() };
    assert_eq!(take(&b, batch(3, &[(4, true, about_it)])).await, [RefusedReason::Other]);
    let after = rig.get(RECORDS, "ObjectSync", "shop", "edge-1.u-2").await.unwrap();
    assert_eq!(after.resource_version(), foreign.resource_version());
}

#[tokio::test]
async fn effect_reports_are_accepted_without_object_syncs() {
    let (rig, a) = start().await;
    let uploads = Uploads::new(rig.requests(), a.leases.clone(), a.nodes.clone(), None, MAX_EVENTS);
    let good = effect(Some(41), 41, EffectState::InEffect);
    let outcome = uploads.ingest(batch(0, &[(1, true, good.clone()), (2, false, good)])).await.unwrap();
    let reasons: Vec<_> = outcome.refused.iter().map(|refused| (refused.seq, refused.reason)).collect();
    assert_eq!((outcome.taken.last.status, reasons), (2, vec![(2, RefusedReason::NotPlaced)]));
    assert_eq!(record(&rig).await, None);
}

#[tokio::test]
async fn labels_of_a_lost_database_are_removed_with_the_new_epoch() {
    let (rig, a) = start().await;
    take(&a, batch(0, &[(1, true, effect(Some(41), 41, EffectState::InEffect))])).await;
    a.syncs.set_epoch(&node_name("edge-1"), Epoch(7));
    a.syncs.replace(&node_name("edge-1"), held(41));
    write(&a).await;
    assert_eq!(shown(&rig).await, [json!("41"), json!("InEffect"), json!("41")]);

    // Another replica serves the node with a new database file that holds the same objects.
    let b = rig.replica("b");
    b.leases.claim(&node_name("edge-1")).await.unwrap();
    b.syncs.set_epoch(&node_name("edge-1"), Epoch(8));
    b.syncs.replace(&node_name("edge-1"), held(41));
    write(&b).await;
    assert_eq!(shown(&rig).await, [Value::Null, Value::Null, json!("41")]);
    // A new report of the node is shown and kept.
    let again = UploadBatch { outbox: "another".into(), ..batch(0, &[]) };
    let said = Effect::InEffect {
        effect: Box::new(effect(Some(41), 41, EffectState::InEffect)),
        epoch: Epoch(8),
        known: true,
    };
    take(&b, UploadBatch { items: vec![UploadEffect { seq: 1, effect: Ok(said) }], ..again }).await;
    b.syncs.change(&node_name("edge-1"), held(42), Vec::new());
    write(&b).await;
    assert_eq!(shown(&rig).await, [json!("41"), json!("InEffect"), json!("42")]);
}
