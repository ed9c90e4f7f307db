//! Leases: real objects, renewed without notification.

use super::*;
use jiff::Timestamp;

pub(super) fn renewal(node: &str, second: i64) -> LeaseRenewal {
    let at = |second| Timestamp::from_second(1_795_000_000 + second).unwrap();
    LeaseRenewal {
        node: node_name(node),
        seconds: 40,
        acquired: at(0),
        renewed: at(second),
        transitions: 0,
        next: None,
    }
}

pub(super) async fn lease(store: &CloudStore, node: &str) -> Result<Stored, CloudError> {
    store.get(kind("leases").key("kube-node-lease", node)).await
}

async fn observed() -> (Fixture, Arc<ObservedCommits>) {
    let fixture = fixture();
    let told = Arc::new(ObservedCommits::default());
    fixture.store.observe(Arc::clone(&told) as Arc<_>).await.unwrap();
    (fixture, told)
}

#[tokio::test]
async fn a_lease_is_an_object_as_kubernetes_has_it() {
    let Fixture { store, .. } = &fixture();
    let change = NodeChange { node: node_name("edge-1"), report: None, conditions: Vec::new() };
    store.change_nodes(vec![change]).await.unwrap();
    store.renew_leases(vec![renewal("edge-1", 7)]).await.unwrap();
    let stored = lease(store, "edge-1").await.unwrap();
    let node = store.get(kind("nodes").key("", "edge-1")).await.unwrap();
    let lease = object(&stored);
    assert_eq!(lease.validate(&kind("leases")), Ok(()));
    assert_eq!(
        lease.fields()["spec"],
        json!({"acquireTime": "2026-11-18T11:06:40.000000Z", "holderIdentity": "edge-1", "leaseDurationSeconds": 40,
            "leaseTransitions": 0, "renewTime": "2026-11-18T11:06:47.000000Z"})
    );
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "edge-1", "uid": &*node.uid}]);
    assert_eq!(lease.metadata().unwrap()["ownerReferences"], owner);
    assert_eq!(
        store
            .history(HistoryQuery { limit: 9, bytes: 1 << 20, after: node.version, of: name_of("leases") })
            .await
            .unwrap()
            .changes[0]
            .body,
        stored.body
    );
}

#[tokio::test]
async fn a_renewal_is_seen_by_reads_and_by_nobody_who_watches() {
    let (Fixture { store, .. }, told) = &observed().await;
    store.renew_leases(vec![renewal("a", 0), renewal("b", 0)]).await.unwrap();
    let before = object(&lease(store, "a").await.unwrap());
    let made = told.changes();
    assert_eq!(made, [(ChangeKind::Added, "a".to_owned()), (ChangeKind::Added, "b".to_owned())]);
    let start = store.version();
    store.renew_leases(vec![renewal("b", 10), renewal("a", 10)]).await.unwrap();
    assert_eq!(told.changes(), made);
    assert_eq!(history(store, start).await.unwrap(), []);
    // A reader that waits for the version of its read must not wait for ever.
    assert_eq!((told.version(), store.version()), (start + 2, start + 2));
    let mut after = object(&lease(store, "a").await.unwrap());
    assert_eq!(after.fields()["spec"]["renewTime"], "2026-11-18T11:06:50.000000Z");
    let listed = all(store, "leases").await;
    let versions: HashSet<u64> = listed.iter().map(|item| item.version).collect();
    assert_eq!(versions, HashSet::from([start + 1, start + 2]));
    for item in &listed {
        assert_eq!(object(item).resource_version(), item.version.to_string());
        assert_eq!(object(item).to_json(), item.body, "keys stay sorted");
    }
    // Only the time and the version have changed.
    after.fields_mut().insert("spec".into(), before.fields()["spec"].clone());
    after.set_metadata("resourceVersion", before.resource_version());
    assert_eq!(after, before);
}

#[tokio::test]
async fn a_write_based_on_what_was_before_a_renewal_conflicts() {
    let Fixture { store, .. } = &fixture();
    store.renew_leases(vec![renewal("a", 0)]).await.unwrap();
    let read = lease(store, "a").await.unwrap();
    store.renew_leases(vec![renewal("a", 10)]).await.unwrap();
    let mut labelled = object(&read);
    labelled.set_metadata("labels", json!({"x": "y"}));
    let late = store.update(&kind("leases"), labelled.clone(), read.version).await;
    assert!(matches!(late, Err(CloudError::Conflict { .. })), "{late:?}");
    let now = lease(store, "a").await.unwrap();
    let start = store.version();
    store.update(&kind("leases"), labelled, now.version).await.unwrap();
    let [change] = &history(store, start).await.unwrap()[..] else { panic!() };
    assert_eq!(change.previous.as_ref(), Some(&now.body), "the change tells of the Lease as it was last");
    store.renew_leases(vec![renewal("a", 20)]).await.unwrap();
    assert_eq!(object(&lease(store, "a").await.unwrap()).labels().len(), 1);
}

#[tokio::test]
async fn the_last_renewal_of_a_node_in_a_batch_counts() {
    let Fixture { store, .. } = &fixture();
    let batch = vec![renewal("a", 0), renewal("a", 10), LeaseRenewal { transitions: 2, ..renewal("a", 20) }];
    let start = store.version();
    store.renew_leases(batch).await.unwrap();
    assert_eq!(store.version(), start + 1);
    let known = store.registered().await.unwrap().leases;
    assert_eq!(known, [LeaseRenewal { transitions: 2, ..renewal("a", 20) }]);
    store.renew_leases(Vec::new()).await.unwrap();
    assert_eq!(store.version(), start + 1);
}

#[tokio::test]
async fn next_check_in_is_stored_until_the_node_returns() {
    let Fixture { store, .. } = &fixture();
    store.renew_leases(vec![renewal("a", 0)]).await.unwrap();
    let away = LeaseRenewal { seconds: 23_700, next: Some(renewal("a", 21_600).renewed), ..renewal("a", 10) };
    store.renew_leases(vec![away.clone()]).await.unwrap();
    assert_eq!(store.registered().await.unwrap().leases, [away]);
    let read = object(&lease(store, "a").await.unwrap());
    assert_eq!(read.annotations()["edgesync.io/next-check-in"], "2026-11-18T17:06:40Z");
    assert_eq!(read.fields()["spec"]["leaseDurationSeconds"], 23_700);
    store.renew_leases(vec![renewal("a", 20)]).await.unwrap();
    assert_eq!(store.registered().await.unwrap().leases, [renewal("a", 20)]);
    assert_eq!(object(&lease(store, "a").await.unwrap()).annotations().len(), 0);
}

#[tokio::test]
async fn a_lease_finds_its_node_when_that_comes_later() {
    let (Fixture { store, .. }, told) = &observed().await;
    store.renew_leases(vec![renewal("a", 0)]).await.unwrap();
    store.renew_leases(vec![renewal("a", 10)]).await.unwrap();
    store
        .change_nodes(vec![NodeChange { node: node_name("a"), report: None, conditions: Vec::new() }])
        .await
        .unwrap();
    let node = store.get(kind("nodes").key("", "a")).await.unwrap();
    for second in [20, 30] {
        store.renew_leases(vec![renewal("a", second)]).await.unwrap();
    }
    let lease = object(&lease(store, "a").await.unwrap());
    assert_eq!(lease.fields()["metadata"]["ownerReferences"][0]["uid"], *node.uid);
    assert_eq!(lease.fields()["spec"]["renewTime"], "2026-11-18T11:07:10.000000Z");
    // The Lease is created, then the Node; then the Node becomes its owner.
    let kinds: Vec<_> = told.changes().iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [ChangeKind::Added, ChangeKind::Added, ChangeKind::Modified]);
}

#[tokio::test]
async fn what_somebody_has_made_of_a_lease_is_renewed_all_the_same() {
    let Fixture { store, .. } = &fixture();
    let bare = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "a", "namespace": "kube-node-lease"}});
    store.create(&kind("leases"), serde_json::from_value(bare).unwrap()).await.unwrap();
    assert_eq!(store.registered().await.unwrap().leases, []);
    store.renew_leases(vec![renewal("a", 10)]).await.unwrap();
    assert_eq!(store.registered().await.unwrap().leases, [renewal("a", 10)]);
    let stored = lease(store, "a").await.unwrap();
    assert_eq!(object(&stored).to_json(), stored.body);
}

#[tokio::test]
async fn leases_have_contiguous_rows_below_all_others() {
    let fixture = fixture();
    create(&fixture.store, "first").await;
    for n in 0..3 {
        fixture.store.renew_leases(vec![renewal(&format!("n{n}"), 0)]).await.unwrap();
        create(&fixture.store, &format!("c{n}")).await;
    }
    fixture.store.close().await;
    let conn = rusqlite::Connection::open(&fixture.path).unwrap();
    let ids: Vec<(i64, String)> = conn
        .prepare("SELECT id, name FROM objects ORDER BY id")
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .collect::<rusqlite::Result<_>>()
        .unwrap();
    let names: Vec<&str> = ids.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["n0", "n1", "n2", "first", "c0", "c1", "c2"]);
    assert!(ids[..3].iter().all(|(id, _)| *id < 0) && ids[3..].iter().all(|(id, _)| *id > 0));
}

#[tokio::test]
async fn renewals_survive_a_crash_and_a_restart() {
    let fixture = fixture();
    fixture.store.renew_leases(vec![renewal("a", 0)]).await.unwrap();
    fixture.store.renew_leases(vec![renewal("a", 10)]).await.unwrap();
    let crashed = fixture.after_crash();
    assert_eq!(crashed.store.registered().await.unwrap().leases, [renewal("a", 10)]);
    let before = lease(&fixture.store, "a").await.unwrap().version;
    let fixture = fixture.reopen().await;
    fixture.store.renew_leases(vec![renewal("a", 20)]).await.unwrap();
    assert!(lease(&fixture.store, "a").await.unwrap().version > before);
}
