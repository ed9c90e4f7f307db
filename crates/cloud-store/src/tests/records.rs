//! Records: written in batches, read as ordinary objects.

use super::*;
use edgesync_protocol::cloud::Record;
use edgesync_protocol::digest::{Digest, Tally};

pub(super) fn put(uid: &str, version: u64) -> (Uid, Record) {
    let object = ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "lab".into(),
        name: format!("name-{uid}").into(),
    };
    (uid.into(), Record { version: version.into(), object: Arc::new(object) })
}

/// Returns a record of the same object in another namespace.
fn moved(uid: &str, version: u64, namespace: &str) -> (Uid, Record) {
    let (uid, Record { version, object }) = put(uid, version);
    let object = ObjectRef { namespace: namespace.into(), ..ObjectRef::clone(&object) };
    (uid, Record { version, object: Arc::new(object) })
}

fn batch(puts: &[(Uid, Record)], remove: &[&str]) -> RecordBatch {
    RecordBatch {
        epoch: Epoch(7),
        confirmed: 3,
        accepted: Some("i".into()),
        put: puts.to_vec(),
        remove: remove.iter().map(|uid| (*uid).into()).collect(),
        ..RecordBatch::default()
    }
}

async fn held(store: &CloudStore, node: &str) -> Vec<String> {
    let records = store.records(&node_name(node)).await.unwrap();
    let mut held: Vec<_> = records.iter().map(|(uid, record)| format!("{uid}@{}", record.version)).collect();
    held.sort();
    held
}

#[tokio::test]
async fn records_are_real_objects() {
    let Fixture { store, .. } = &fixture();
    store.record(&node_name("edge.1"), None, batch(&[put("u1", 5), moved("u2", 9, "")], &[])).await.unwrap();
    let [record] = &all(store, "objectsyncs").await[..] else { panic!() };
    assert_eq!((&*record.namespace, &*record.name), ("lab", "edge.1.u1"));
    let object = object(record);
    assert_eq!(object.validate(&kind("objectsyncs")), Ok(()));
    assert_eq!(object.resource_version(), record.version.to_string());
    let sync = ObjectSync::parse(&record.body).unwrap();
    assert_eq!((&*sync.spec.object_name, &*sync.status.object_resource_version), ("name-u1", "5"));
    assert_eq!(all(store, "clusterobjectsyncs").await[0].name, "edge.1.u2");
    assert_eq!(store.get(kind("objectsyncs").key("lab", "edge.1.u1")).await.unwrap(), *record);
}

#[tokio::test]
async fn existing_record_keeps_its_identity_and_changes_its_status() {
    let Fixture { store, .. } = &fixture();
    store.record(&node_name("n"), None, batch(&[put("u1", 5)], &[])).await.unwrap();
    let before = object(&all(store, "objectsyncs").await[0]);
    let start = store.version();
    let recorded = store.record(&node_name("n"), None, batch(&[put("u1", 6)], &[])).await.unwrap();
    assert_eq!(recorded, Recorded { changed: 1, ..Recorded::default() });
    let after = object(&all(store, "objectsyncs").await[0]);
    assert_eq!((after.uid(), after.creation_timestamp()), (before.uid(), before.creation_timestamp()));
    assert_eq!(after.fields()["status"]["objectResourceVersion"], "6");
    let again = store.record(&node_name("n"), None, batch(&[put("u1", 6)], &[])).await.unwrap();
    assert_eq!((again.unchanged, store.version()), (1, start + 1));
    let [event] = &history(store, start).await.unwrap()[..] else { panic!() };
    assert_eq!(event.kind, ChangeKind::Modified);
    assert_eq!(event.previous.as_ref().map(|text| Object::parse(text).unwrap()), Some(before));
}

#[tokio::test]
async fn labels_that_someone_put_on_a_record_stay() {
    let Fixture { store, .. } = &fixture();
    store.record(&node_name("n"), None, batch(&[put("u1", 5)], &[])).await.unwrap();
    let [stored] = &all(store, "objectsyncs").await[..] else { panic!() };
    let mut labelled = object(stored);
    labelled.set_metadata("labels", json!({"site": "x"}));
    store.update(&kind("objectsyncs"), labelled, stored.version).await.unwrap();
    store.record(&node_name("n"), None, batch(&[put("u1", 6)], &[])).await.unwrap();
    assert_eq!(object(&all(store, "objectsyncs").await[0]).labels().len(), 1);
}

#[tokio::test]
async fn a_record_is_removed_by_uid_alone_and_only_at_its_node() {
    let Fixture { store, .. } = &fixture();
    for node in ["a", "b"] {
        store.record(&node_name(node), None, batch(&[put("u1", 1), put("u2", 2)], &[])).await.unwrap();
    }
    let recorded = store.record(&node_name("a"), None, batch(&[], &["u1", "u1", "unknown"])).await.unwrap();
    assert_eq!(recorded, Recorded { removed: 1, ..Recorded::default() });
    assert_eq!(held(store, "a").await, ["u2@2"]);
    assert_eq!(held(store, "b").await, ["u1@1", "u2@2"]);
}

#[tokio::test]
async fn a_reset_leaves_exactly_what_was_put() {
    let Fixture { store, .. } = &fixture();
    store
        .record(&node_name("a"), None, batch(&[put("u1", 1), put("u2", 2), put("u3", 3)], &[]))
        .await
        .unwrap();
    store.record(&node_name("ab"), None, batch(&[put("u1", 1)], &[])).await.unwrap();
    let reset = RecordBatch { reset: true, ..batch(&[put("u2", 4), put("u4", 5)], &[]) };
    let recorded = store.record(&node_name("a"), None, reset).await.unwrap();
    assert_eq!((recorded.added, recorded.changed, recorded.removed), (1, 1, 2));
    assert_eq!(held(store, "a").await, ["u2@4", "u4@5"]);
    assert_eq!(held(store, "ab").await, ["u1@1"]);
}

#[tokio::test]
async fn a_uid_under_another_name_moves_its_record() {
    let Fixture { store, .. } = &fixture();
    store.record(&node_name("a"), None, batch(&[put("u1", 1)], &[])).await.unwrap();
    let moved = moved("u1", 2, "other");
    let recorded =
        store.record(&node_name("a"), None, batch(std::slice::from_ref(&moved), &[])).await.unwrap();
    assert_eq!((recorded.added, recorded.removed), (1, 1));
    assert_eq!(store.records(&node_name("a")).await.unwrap(), [moved]);
}

#[tokio::test]
async fn invalid_reports_are_named_and_delay_no_others() {
    let Fixture { store, .. } = &fixture();
    let recorded =
        store.record(&node_name("a"), None, batch(&[put("a.b", 1), put("u", 2)], &[])).await.unwrap();
    assert_eq!((recorded.added, recorded.refused.len(), &*recorded.refused[0].0), (1, 1, "a.b"));
}

#[tokio::test]
async fn the_state_of_a_node_survives_a_restart_and_ends_with_it() {
    let fixture = fixture();
    assert_eq!(fixture.store.nodes().await.unwrap(), []);
    fixture.store.record(&node_name("a"), Some("0.1.0".into()), batch(&[put("u1", 1)], &[])).await.unwrap();
    let tally = Tally { count: 1, digest: Digest(5) };
    let epochs = vec![(Epoch(6), 40), (Epoch(7), 9)];
    let later = RecordBatch { confirmed: 9, tally: Some(tally), epochs: epochs.clone(), ..batch(&[], &[]) };
    fixture.store.record(&node_name("a"), None, later).await.unwrap();
    let fixture = fixture.reopen().await;
    let store = &fixture.store;
    let [(name, node)] = &store.nodes().await.unwrap()[..] else { panic!() };
    let ledger = &node.ledger;
    assert_eq!((ledger.epoch, ledger.confirmed, ledger.accepted.as_deref()), (Some(Epoch(7)), 9, Some("i")));
    assert_eq!((name.as_str(), ledger.tally, &ledger.epochs), ("a", Some(tally), &epochs));
    assert_eq!(node.agent_version.as_deref(), Some("0.1.0"));
    assert!(jiff::Timestamp::now().duration_since(node.last_seen).as_secs() < 60);
    assert!(remove_node(store, "a").await.unwrap());
    assert!(!remove_node(store, "a").await.unwrap());
    assert_eq!((store.nodes().await.unwrap(), all(store, "objectsyncs").await.len()), (Vec::new(), 0));
}

#[tokio::test]
async fn record_changed_beside_the_fleet_makes_its_tally_unknown() {
    let Fixture { store, .. } = &fixture();
    let tally = Some(Tally { count: 1, digest: Digest(5) });
    let known = async || {
        let nodes = store.nodes().await.unwrap();
        nodes.into_iter().map(|(_, node)| node.ledger.tally).collect::<Vec<_>>()
    };
    let records = kind("objectsyncs");
    let reported = async |version| {
        for node in ["a", "b"] {
            let batch = RecordBatch { tally, ..batch(&[put("u1", version)], &[]) };
            store.record(&node_name(node), None, batch).await.unwrap();
        }
        assert_eq!(known().await, [tally, tally]);
    };
    reported(1).await;
    let record = store.get(records.key("lab", "a.u1")).await.unwrap();
    let mut changed = object(&record);
    changed.set_metadata("annotations", json!({"note": "by hand"}));
    store.update(&records, changed, record.version).await.unwrap();
    assert_eq!(known().await, [None, tally]);
    reported(2).await;
    store.delete(&records, "lab", "b.u1", None).await.unwrap();
    assert_eq!(known().await, [tally, None]);
}

#[tokio::test]
async fn record_created_through_the_api_counts_unless_malformed() {
    let Fixture { store, .. } = &fixture();
    store.record(&node_name("a"), None, batch(&[], &[])).await.unwrap();
    let record = |name: &str, spec: Value| -> Object {
        serde_json::from_value(
            json!({"apiVersion": "reliablesyncs.kubeedge.io/v1alpha1", "kind": "ObjectSync",
            "metadata": {"name": name, "namespace": "lab"}, "spec": spec,
            "status": {"objectResourceVersion": "4"}}),
        )
        .unwrap()
    };
    let spec = json!({"objectAPIVersion": "v1", "objectKind": "ConfigMap", "objectName": "name-u1"});
    let kind = kind("objectsyncs");
    store.create(&kind, record("a.u1", spec.clone())).await.unwrap();
    assert_eq!(held(store, "a").await, ["u1@4"]);
    assert_eq!(store.record(&node_name("a"), None, batch(&[put("u1", 5)], &[])).await.unwrap().changed, 1);
    let mut elsewhere = record("a.u1", spec.clone());
    elsewhere.set_metadata("namespace", "other");
    let taken = store.create(&kind, elsewhere).await;
    assert!(matches!(taken, Err(CloudError::AlreadyExists { .. })), "{taken:?}");
    for (name, spec) in [("nodots", spec), ("a.u2", json!({"objectName": 7}))] {
        let refused = store.create(&kind, record(name, spec)).await;
        assert!(matches!(refused, Err(CloudError::Invalid { .. })), "{refused:?}");
    }
}

/// Keeps the newest changes, as a watch cache does.
#[derive(Default)]
struct Newest(Mutex<std::collections::VecDeque<WatchChange>>);

impl CommitListener for Newest {
    fn begin(&self, _: u64) {}

    fn attend(&self, _: u64) {}

    fn wants(&self, of: &KindName) -> bool {
        of.kind != "Secret"
    }

    fn committed(&self, changes: Vec<WatchChange>, _: u64) {
        let mut newest = self.0.lock().unwrap();
        newest.extend(changes);
        let old = newest.len().saturating_sub(8192);
        newest.drain(..old);
    }

    fn closed(&self) {}
}

#[tokio::test]
async fn listener_receives_its_kinds_and_no_refused_write() {
    let Fixture { store, .. } = &fixture();
    create(store, "before").await;
    let newest = Arc::new(Newest::default());
    store.observe(Arc::clone(&newest) as Arc<dyn CommitListener>).await.unwrap();
    let created = create(store, "a").await;
    store.create(&kind("cm"), config_map("a", &json!({}))).await.unwrap_err();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "lab"}});
    store.create(&kind("secrets"), serde_json::from_value(secret).unwrap()).await.unwrap();
    store.record(&node_name("n"), None, batch(&[put("u1", 5)], &[])).await.unwrap();
    store.record(&node_name("n"), None, batch(&[put("u1", 6)], &[])).await.unwrap();
    let told = newest.0.lock().unwrap();
    let kinds: Vec<_> = told.iter().map(|change| (&*change.of.kind, change.kind)).collect();
    let (added, modified) = (ChangeKind::Added, ChangeKind::Modified);
    assert_eq!(kinds, [("ConfigMap", added), (OBJECT_SYNC, added), (OBJECT_SYNC, modified)]);
    assert_eq!((told[0].version, &told[0].body), (created.version, &created.body));
    assert_eq!(told[2].previous.as_ref(), Some(&told[1].body));
}

/// Prints rates; run with `--ignored --nocapture`. The figures are informative; no test asserts on
/// time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, not a test"]
async fn measure_creates_and_records() {
    let Fixture { store, .. } = &fixture();
    if std::env::var_os("OBSERVED").is_some() {
        store.observe(Arc::new(Newest::default())).await.unwrap();
    }
    let data = "x".repeat(700);
    let start = std::time::Instant::now();
    for round in 0..20 {
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..1000 {
            let (store, data) = (store.clone(), data.clone());
            let name = format!("o{round}-{n}");
            tasks.spawn(
                async move { store.create(&kind("cm"), config_map(&name, &json!({"k": data}))).await },
            );
        }
        for result in tasks.join_all().await {
            result.unwrap();
        }
    }
    let rate = |count: f64, since: std::time::Instant| (count / since.elapsed().as_secs_f64()).round();
    println!("creates/s: {}", rate(20_000.0, start));
    for (round, what) in ["new", "changed", "unchanged"].into_iter().enumerate() {
        let version = if what == "unchanged" { 1 } else { round as u64 };
        let start = std::time::Instant::now();
        for chunk in 0..80 {
            let puts: Vec<_> = (0..250).map(|n| put(&format!("{:032x}", chunk * 250 + n), version)).collect();
            store.record(&node_name("edge-1"), None, batch(&puts, &[])).await.unwrap();
        }
        println!("{what} records/s in batches of 250: {}", rate(20_000.0, start));
    }
    let start = std::time::Instant::now();
    assert_eq!(store.records(&node_name("edge-1")).await.unwrap().len(), 20_000);
    println!("records of 20,000: {:?}", start.elapsed());
    let start = std::time::Instant::now();
    assert_eq!(follow(store).await.0.len(), 20_000);
    println!("follow with 20,000: {:?}", start.elapsed());
}
