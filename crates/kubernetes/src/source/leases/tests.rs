use crate::node_name;
use serde_json::json;

use super::super::testing::{Rig, at, renewal};
use super::*;

#[tokio::test]
async fn a_lease_is_owned_by_its_node_and_has_a_kubelets_fields() {
    let rig = Rig::start().await;
    let node = rig.create_node("edge-1").await;
    let leases = rig.replica("a").leases;
    leases.renew(vec![renewal("edge-1", 1), renewal("edge-1", 2), renewal("nobody", 1)]).await.unwrap();
    let lease = rig.lease("edge-1").await.unwrap();
    assert_eq!(
        at(&lease, "/spec"),
        &json!({
            "acquireTime": "2026-09-21T14:13:20.000000Z", "holderIdentity": "edge-1", "leaseDurationSeconds": 40,
            "leaseTransitions": 1, "renewTime": "2026-09-21T14:13:22.000000Z",
        })
    );
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "edge-1", "uid": node.uid()}]);
    assert_eq!(at(&lease, "/metadata/ownerReferences"), &owner);
    assert_eq!(rig.lease("nobody").await, None, "it has no Node");

    rig.patch(&lease, json!({"metadata": {"annotations": {"team": "b"}}})).await;
    leases.renew(vec![renewal("edge-1", 9)]).await.unwrap();
    let lease = rig.lease("edge-1").await.unwrap();
    assert_eq!(at(&lease, "/spec/renewTime"), "2026-09-21T14:13:29.000000Z");
    let annotations = json!({"edgesync.io/served-by": "a", "team": "b"});
    assert_eq!(at(&lease, "/metadata/annotations"), &annotations);
    let found = leases.list().await.unwrap();
    assert_eq!(found, [StoredLease { uid: lease.uid().into(), renewal: renewal("edge-1", 9) }]);
}

#[tokio::test]
async fn the_lease_of_a_kubelet_is_never_changed() {
    let rig = Rig::start().await;
    let leases = rig.replica("a").leases;
    let kubelets = async || {
        rig.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker"}})).await;
        rig.create(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "worker", "namespace": NAMESPACE},
            "spec": {"holderIdentity": "worker", "leaseDurationSeconds": 40},
        }))
        .await
    };
    let lease = kubelets().await;
    leases.renew(vec![renewal("worker", 1)]).await.unwrap();
    leases.claim(&node_name("worker")).await.unwrap();
    assert!(!leases.remove(&node_name("worker")).await.unwrap());
    assert_eq!(rig.lease("worker").await, Some(lease.clone()));

    // Another device had the name before.
    rig.delete(&lease).await;
    rig.delete(&rig.node("worker").await.unwrap()).await;
    rig.create_node("worker").await;
    leases.renew(vec![renewal("worker", 2)]).await.unwrap();
    rig.delete(&rig.lease("worker").await.unwrap()).await;
    rig.delete(&rig.node("worker").await.unwrap()).await;
    let lease = kubelets().await;
    leases.renew(vec![renewal("worker", 3)]).await.unwrap();
    assert_eq!(rig.lease("worker").await, Some(lease), "the one that is known is another one");
}

#[tokio::test]
async fn a_rejected_renewal_does_not_block_others() {
    let rig = Rig::start().await;
    let names: Vec<String> = (0..40).map(|n| format!("edge-{n}")).collect();
    for name in &names {
        rig.create_node(name).await;
    }
    let mut renewals: Vec<LeaseRenewal> = names.iter().map(|name| renewal(name, 1)).collect();
    // The cluster rejects that.
    renewals[0].seconds = 0;
    let leases = rig.replica("a").leases;
    let error = leases.renew(renewals).await.unwrap_err().to_string();
    assert!(error.contains("leaseDurationSeconds"), "{error}");
    assert_eq!(leases.list().await.unwrap().len(), 39);
}

#[tokio::test]
async fn a_deleted_lease_is_created_again() {
    let rig = Rig::start().await;
    rig.create_node("edge-1").await;
    let leases = rig.replica("a").leases;
    leases.renew(vec![renewal("edge-1", 1)]).await.unwrap();
    let first = rig.lease("edge-1").await.unwrap();
    rig.delete(&first).await;
    leases.renew(vec![renewal("edge-1", 2)]).await.unwrap();
    let second = rig.lease("edge-1").await.unwrap();
    assert_ne!(first.uid(), second.uid());
    assert_eq!(at(&second, "/spec/renewTime"), "2026-09-21T14:13:22.000000Z");
}

#[tokio::test]
async fn the_last_claim_or_renewal_decides_who_serves_a_node() {
    let rig = Rig::start().await;
    rig.create_node("edge-1").await;
    let (a, b) = (rig.replica("a").leases, rig.replica("b").leases);
    assert_eq!(b.served(&node_name("edge-1")).await.unwrap(), Served::Here, "there is no Lease yet");
    a.renew(vec![renewal("edge-1", 10)]).await.unwrap();
    assert_eq!(a.served(&node_name("edge-1")).await.unwrap(), Served::Here);
    assert_eq!(b.served(&node_name("edge-1")).await.unwrap(), Served::By("a".into()));

    b.claim(&node_name("edge-1")).await.unwrap();
    assert_eq!(b.served(&node_name("edge-1")).await.unwrap(), Served::Here);
    assert_eq!(
        a.served(&node_name("edge-1")).await.unwrap(),
        Served::By("b".into()),
        "before the first renewal has come"
    );
    b.renew(vec![renewal("edge-1", 30)]).await.unwrap();
    assert_eq!(a.served(&node_name("edge-1")).await.unwrap(), Served::By("b".into()));

    // A delayed renewal of the previous replica arrives.
    a.renew(vec![renewal("edge-1", 20)]).await.unwrap();
    assert_eq!(b.served(&node_name("edge-1")).await.unwrap(), Served::Here, "it is dropped");
    let lease = rig.lease("edge-1").await.unwrap();
    assert_eq!(at(&lease, "/spec/renewTime"), "2026-09-21T14:13:50.000000Z");
    a.renew(vec![renewal("edge-1", 40)]).await.unwrap();
    assert_eq!(
        b.served(&node_name("edge-1")).await.unwrap(),
        Served::Here,
        "it may have waited for the one before"
    );
    a.renew(vec![renewal("edge-1", 50)]).await.unwrap();
    assert_eq!(
        b.served(&node_name("edge-1")).await.unwrap(),
        Served::By("a".into()),
        "the node has come back to it"
    );
}

/// Without a Lease, another replica with an old session could write for the node until the first
/// renewal.
#[tokio::test]
async fn the_first_claim_of_a_node_creates_its_lease() {
    let rig = Rig::start().await;
    let owner = rig.create_node("edge-1").await;
    let (a, b, node) = (rig.replica("a").leases, rig.replica("b").leases, node_name("edge-1"));
    a.claim(&node).await.unwrap();
    assert_eq!(a.served(&node).await.unwrap(), Served::Here);
    assert_eq!(b.served(&node).await.unwrap(), Served::By("a".into()));
    let lease = rig.lease("edge-1").await.unwrap();
    assert!(mark::is_marked(&lease), "it is deleted with the node: {lease:?}");
    assert_eq!(at(&lease, "/metadata/ownerReferences/0/uid"), owner.uid());
    assert_eq!(at(&lease, "/spec/holderIdentity"), "edge-1");
    assert_eq!(at(&lease, "/spec/renewTime"), "1970-01-01T00:00:00.000000Z", "any renewal is later");

    b.claim(&node).await.unwrap();
    assert_eq!(a.served(&node).await.unwrap(), Served::By("b".into()));
    b.renew(vec![renewal("edge-1", 1)]).await.unwrap();
    let renewed = rig.lease("edge-1").await.unwrap();
    assert_eq!(renewed.uid(), lease.uid());
    assert_eq!(at(&renewed, "/spec/renewTime"), "2026-09-21T14:13:21.000000Z");
    a.claim(&node_name("nobody")).await.unwrap();
    assert_eq!(rig.lease("nobody").await, None, "it has no Node");
}

#[tokio::test]
async fn a_node_clock_set_back_does_not_open_the_fence() {
    let rig = Rig::start().await;
    rig.create_node("edge-1").await;
    let (a, b) = (rig.replica("a").leases, rig.replica("b").leases);
    a.renew(vec![renewal("edge-1", 3000)]).await.unwrap();
    b.claim(&node_name("edge-1")).await.unwrap();
    // The node moved to another replica and set its clock back.
    b.renew(vec![renewal("edge-1", 1)]).await.unwrap();
    assert_eq!(a.served(&node_name("edge-1")).await.unwrap(), Served::By("b".into()));
    a.renew(vec![renewal("edge-1", 3010)]).await.unwrap();
    assert_eq!(a.served(&node_name("edge-1")).await.unwrap(), Served::By("b".into()));
    assert_eq!(b.served(&node_name("edge-1")).await.unwrap(), Served::Here);
}

/// The caller sends all renewals of a batch again if one of them failed.
#[tokio::test]
async fn a_repeated_renewal_does_not_open_the_fence() {
    let rig = Rig::start().await;
    rig.create_node("edge-1").await;
    let (a, b) = (rig.replica("a").leases, rig.replica("b").leases);
    a.renew(vec![renewal("edge-1", 10)]).await.unwrap();
    b.claim(&node_name("edge-1")).await.unwrap();
    for _ in 0..3 {
        a.renew(vec![renewal("edge-1", 20)]).await.unwrap();
        assert_eq!(b.served(&node_name("edge-1")).await.unwrap(), Served::Here);
    }
    a.renew(vec![renewal("edge-1", 30)]).await.unwrap();
    assert_eq!(b.served(&node_name("edge-1")).await.unwrap(), Served::Here);
    a.renew(vec![renewal("edge-1", 40)]).await.unwrap();
    assert_eq!(b.served(&node_name("edge-1")).await.unwrap(), Served::By("a".into()));
}
