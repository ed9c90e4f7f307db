//! Tests specific to a cluster: races between replicas, objects written by others, API server
//! outages.

use std::time::Duration;

use serde_json::json;

use super::served::{NAMESPACE, Served};
use super::*;
use edgesync_api::Storage as _;
use edgesync_object::{Object, kinds};
use edgesync_testkit::timing::within;

/// Upper limit of each wait.
const PATIENCE: Duration = Duration::from_secs(30);

async fn next(changes: &mut Changes) -> Changed {
    tokio::time::timeout(PATIENCE, changes.next()).await.expect("no change was observed")
}

async fn two(served: &Served) -> (MembershipStore, MembershipStore) {
    let (one, other) = (served.members().await, served.members().await);
    one.follow().await.unwrap();
    other.follow().await.unwrap();
    (one, other)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counted_use_of_a_crashed_replica_is_spent() {
    let served = Served::start().await;
    let (one, other) = two(&served).await;
    one.put_token(token("t", None, 1)).await.unwrap();
    one.count_use("t", &node_name("a"), at(200)).await.unwrap().unwrap();
    // The enrollment stops here. The device retries at the other replica.
    let asked = other.spend_token("t", certificate("1", "a"), at(200)).await.unwrap();
    assert_eq!(asked, Err(EnrollmentRefusal::UsedUp));
    assert_eq!(other.revoke_certificates(&node_name("a"), at(300)).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_revoked_during_its_join_is_refused() {
    let served = Served::start().await;
    let (one, other) = two(&served).await;
    // The other replica revokes before the certificate is recorded; the second name has none to
    // revoke.
    for (id, node, serial, has_one) in [("t1", "a", "1", true), ("t2", "b", "2", false)] {
        if has_one {
            one.put_token(token("first", Some(node), 1)).await.unwrap();
            one.spend_token("first", certificate("f", node), at(200)).await.unwrap().unwrap();
        }
        one.put_token(token(id, Some(node), 1)).await.unwrap();
        let counted = one.count_use(id, &node_name(node), at(200)).await.unwrap().unwrap();
        assert_eq!(other.revoke_certificates(&node_name(node), at(250)).await.unwrap(), usize::from(has_one));
        let joined = one.record_use(&counted, &certificate(serial, node), at(260)).await.unwrap();
        assert_eq!(joined, Err(EnrollmentRefusal::RevokedToken));
        let revoked = one.revocations().await.unwrap();
        assert!(revoked.nodes.contains(&node_name(node)), "{revoked:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_with_a_deleted_secret_admits_no_node() {
    let served = Served::start().await;
    let (one, _) = two(&served).await;
    one.put_token(token("t", None, 9)).await.unwrap();
    let counted = one.count_use("t", &node_name("a"), at(200)).await.unwrap().unwrap();
    let secrets = kinds::by_word("secrets").unwrap().resource();
    let deleted =
        one.cluster().unwrap().0.delete(&secrets, (NAMESPACE, "edgesync-token.t"), Default::default()).await;
    assert!(deleted.unwrap());
    let joined = one.record_use(&counted, &certificate("1", "a"), at(200)).await.unwrap();
    assert_eq!(joined, Err(EnrollmentRefusal::UnknownToken));
    assert_eq!(one.revocations().await.unwrap().nodes, ["a"]);
    let later = one.spend_token("t", certificate("2", "b"), at(200)).await.unwrap();
    assert_eq!(later, Err(EnrollmentRefusal::UnknownToken));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_an_existing_cluster_node_is_taken() {
    let served = Served::start().await;
    let (one, _) = two(&served).await;
    one.put_token(token("t", None, 9)).await.unwrap();
    let nodes = Arc::new(kinds::by_word("nodes").unwrap().resource());
    for (name, status) in
        [("worker-1", json!({"nodeInfo": {"kubeletVersion": "v1.30.1"}})), ("ahead", json!({}))]
    {
        let node: Object = serde_json::from_value(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}),
        )
        .unwrap();
        served.objects.create(&nodes, node).await.unwrap();
    }
    let joined = async |name| one.spend_token("t", certificate("1", name), at(200)).await.unwrap();
    assert_eq!(joined("worker-1").await, Err(EnrollmentRefusal::NameTaken(node_name("worker-1"))));
    assert!(one.knows_name(&node_name("worker-1")).await.unwrap());
    // A membership object applied in advance, with its labels, is used by the device that joins.
    assert_eq!(joined("ahead").await, Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_names_join_and_stay_distinct() {
    let served = Served::start().await;
    let (one, other) = two(&served).await;
    one.put_token(token("t", None, 9)).await.unwrap();
    let names = ["a", "b"].map(|end| format!("{}.{end}", "n".repeat(251)));
    for (serial, node) in ["1", "2"].iter().zip(&names) {
        one.spend_token("t", certificate(serial, node), at(200)).await.unwrap().unwrap();
    }
    assert_eq!(other.revoke_certificates(&node_name(&names[1]), at(300)).await.unwrap(), 1);
    assert_eq!(other.revocations().await.unwrap().nodes, [node_name(&names[1])]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_observes_changes_of_another_one() {
    let served = Served::start().await;
    let (one, other) = two(&served).await;
    let (mut own, mut told) = (one.changes(), other.changes());
    let changed = |own, revocation| Changed::Member { node: node_name("a"), own, revocation };
    let labels = Labels::from([("site".to_owned(), "north".to_owned())]);
    one.put_token(TokenRecord { labels: labels.clone(), ..token("t", Some("a"), 9) }).await.unwrap();
    spend(&one, "t", "1", "a").await.unwrap();
    assert!(matches!(next(&mut own).await, Changed::Member { node, .. } if &*node == "a"));
    assert_eq!(next(&mut told).await, changed(false, RevocationChange::None));
    assert_eq!(*other.membership(&node_name("a")).unwrap().labels, labels);
    one.revoke_certificates(&node_name("a"), at(300)).await.unwrap();
    assert_eq!(next(&mut told).await, changed(false, RevocationChange::More));
    one.remove_node(&node_name("a"), None, at(300)).await.unwrap();
    assert_eq!(next(&mut told).await, changed(false, RevocationChange::None));
    assert!(other.membership(&node_name("a")).unwrap().removed.is_some());
    let operator = OperatorRecord {
        serial: "7".into(),
        name: "ada".into(),
        role: "admin".into(),
        created: at(100),
        expires: at(1000),
        revoked: None,
    };
    one.put_operator(operator).await.unwrap();
    assert_eq!(next(&mut told).await, Changed::Operators);
}

/// Write access to ConfigMaps used to be enough to become an administrator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn config_maps_make_neither_operators_nor_members() {
    let served = Served::start().await;
    let (one, _) = two(&served).await;
    let operator = json!({
        "serial": "7", "name": "eve", "role": "admin", "created": at(100), "expires": at(1000), "revoked": null,
    });
    let member = json!({
        "node": "a", "used": true, "labels": {"site": "north"},
        "certificates": [{"serial": "8", "notBefore": at(100), "notAfter": at(500)}],
    });
    let maps = kinds::by_word("configmaps").unwrap().resource();
    for (kind, id, record) in [("operator", "7", operator), ("member", "a", member)] {
        let (data, label) = (format!("{kind}.json"), "edgesync.io/pairing");
        let map: Object = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": format!("edgesync-{kind}.{id}"), "namespace": NAMESPACE, "labels": {label: kind}},
            "data": {data: record.to_string()},
        }))
        .unwrap();
        one.cluster().unwrap().0.create(&maps, &map).await.unwrap();
    }
    assert_eq!(one.operators().await.unwrap(), []);
    assert_eq!(one.member_labels(&node_name("a")).await.unwrap(), None);
    let renewed = one.renew_certificate("8", certificate("9", "a"), at(200)).await.unwrap();
    assert_eq!(renewed, Err(EnrollmentRefusal::Revoked));
    // A replica that starts later does not read them either.
    let later = served.members().await;
    later.follow().await.unwrap();
    assert_eq!((later.members().await.unwrap(), later.membership(&node_name("a"))), (Vec::new(), None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_object_is_named_and_does_not_block_others() {
    let served = Served::start().await;
    let (one, other) = two(&served).await;
    one.put_token(token("t", None, 9)).await.unwrap();
    one.put_token(token("damaged", None, 9)).await.unwrap();
    for (serial, node) in [("1", "a"), ("2", "b")] {
        one.spend_token("t", certificate(serial, node), at(200)).await.unwrap().unwrap();
        one.revoke_certificates(&node_name(node), at(300)).await.unwrap();
    }
    let mut told = other.changes();
    let damage = async |name: &str| {
        let resource = kinds::by_word("secrets").unwrap().resource();
        let patch = json!({ "data": null });
        one.cluster()
            .unwrap()
            .0
            .merge(&resource, (NAMESPACE, name), Default::default(), patch)
            .await
            .unwrap();
    };
    damage("edgesync-member.a").await;
    damage("edgesync-token.damaged").await;
    let error = one.revoke_certificates(&node_name("a"), at(400)).await.unwrap_err().to_string();
    assert!(error.contains("edgesync-member.a") && error.contains("restore it, or delete it"), "{error}");
    assert_eq!(one.tokens().await.unwrap().len(), 1);
    one.note_refused(&node_name("b"), at(400)).await.unwrap();
    while !matches!(next(&mut told).await, Changed::Member { node, .. } if &*node == "b") {}
    // A replica that knows of the revocation keeps it.
    assert_eq!(other.revocations().await.unwrap().nodes, ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revocations_survive_an_outage_and_missed_ones_follow() {
    let mut served = Served::start().await;
    let (one, other) = two(&served).await;
    one.put_token(token("t", None, 9)).await.unwrap();
    for (serial, node) in [("1", "a"), ("2", "b")] {
        one.spend_token("t", certificate(serial, node), at(200)).await.unwrap().unwrap();
    }
    one.revoke_certificates(&node_name("a"), at(300)).await.unwrap();
    let mut told = other.changes();
    let mut is_current = other.is_current();
    while other.revocations().await.unwrap().nodes.is_empty() {
        next(&mut told).await;
    }
    served.stop().await;
    tokio::time::timeout(PATIENCE, is_current.wait_for(|is_current| !is_current)).await.unwrap().unwrap();
    assert!(one.revoke_certificates(&node_name("b"), at(300)).await.is_err());
    assert_eq!(other.revocations().await.unwrap().nodes, ["a"]);
    served.run().await;
    one.revoke_certificates(&node_name("b"), at(300)).await.unwrap();
    while other.revocations().await.unwrap().nodes.len() < 2 {
        next(&mut told).await;
    }
    tokio::time::timeout(PATIENCE, is_current.wait_for(|is_current| *is_current)).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_a_watch_reads_the_cluster() {
    let served = Served::start().await;
    let (one, asked) = (served.members().await, served.members().await);
    one.put_token(token("t", None, 9)).await.unwrap();
    one.spend_token("t", certificate("1", "a"), at(200)).await.unwrap().unwrap();
    one.revoke_certificates(&node_name("a"), at(300)).await.unwrap();
    one.remove_node(&node_name("b"), None, at(300)).await.unwrap();
    assert_eq!(asked.revocations().await.unwrap().nodes, ["a"]);
    assert_eq!(asked.removed().await.unwrap(), [(node_name("b"), at(300))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_watch_is_detected_within_two_seconds() {
    let served = Served::start().await;
    let one = served.members().await;
    let (cluster, way) = served.way().await;
    let other = MembershipStore::of_cluster(Arc::new(cluster), NAMESPACE);
    other.follow().await.unwrap();
    one.put_token(token("t", None, 9)).await.unwrap();
    for (serial, node) in [("1", "a"), ("2", "b")] {
        one.spend_token("t", certificate(serial, node), at(200)).await.unwrap().unwrap();
    }
    let mut told = other.changes();
    // Holds without an earlier mark too.
    for node in ["a", "b"] {
        way.freeze();
        one.revoke_certificates(&node_name(node), at(300)).await.unwrap();
        let heard = async {
            while !other.revocations().await.unwrap().nodes.iter().any(|revoked| *revoked == node) {
                told.next().await;
            }
        };
        within("the revocation is known", Duration::from_secs(2), heard).await;
    }
}
