use crate::node_name;
use serde_json::json;

use super::super::testing::{Rig, at, pass, renewal};
use super::*;
use edgesync_object::node_labels::has_reported;
use edgesync_protocol::node::ConditionStatus;

const SILENT: Duration = Duration::from_secs(40);

fn statuses(node: &Object) -> Vec<(String, String)> {
    let text = |condition: &Value, name: &str| condition[name].as_str().unwrap_or_default().to_owned();
    let conditions = at(node, "/status/conditions").as_array().cloned().unwrap_or_default();
    let mut all: Vec<_> = conditions.iter().map(|one| (text(one, "type"), text(one, "status"))).collect();
    all.sort();
    all
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, status)| ((*name).to_owned(), (*status).to_owned())).collect()
}

async fn prepare(rig: &Rig) -> (LeaseExpiryCheck, Leases) {
    let replica = rig.replica("a");
    for name in ["edge-1", "edge-2"].map(node_name) {
        rig.create_node(&name).await;
        let edited = replica.nodes.edit(&name, |node| {
            for condition in [READY, "edgesync.io/DiskPressure", "Other"] {
                let (condition, status) = (condition.to_owned(), ConditionStatus::True);
                let condition = Condition { condition, status, reason: "R".into(), ..Condition::default() };
                set_node_condition(node, &condition, Timestamp::now());
            }
        });
        assert!(edited.await.unwrap());
    }
    replica.leases.renew(vec![renewal("edge-1", 1), renewal("edge-2", 1)]).await.unwrap();
    (LeaseExpiryCheck::new(&rig.requests(), &replica.leases, replica.nodes), replica.leases)
}

#[tokio::test]
async fn a_node_with_an_expired_lease_becomes_unknown() {
    let rig = Rig::start().await;
    let (mut check, leases) = prepare(&rig).await;
    assert_eq!(check.run().await.unwrap(), 0, "whatever times the Leases have");
    pass(SILENT - Duration::from_secs(5)).await;
    leases.renew(vec![renewal("edge-2", 2)]).await.unwrap();
    assert_eq!(check.run().await.unwrap(), 0);
    pass(Duration::from_secs(5)).await;
    assert_eq!(check.run().await.unwrap(), 1);
    let lost = rig.node("edge-1").await.unwrap();
    let expected = [
        ("Other", "True"),
        ("Ready", "Unknown"),
        ("edgesync.io/CloudReachable", "Unknown"),
        ("edgesync.io/DiskPressure", "Unknown"),
        ("edgesync.io/InSync", "Unknown"),
    ];
    assert_eq!(statuses(&lost), pairs(&expected));
    assert_eq!(statuses(&rig.node("edge-2").await.unwrap())[1], ("Ready".into(), "True".into()));
    assert!(!has_reported(&lost));
    pass(Duration::from_secs(5)).await;
    assert_eq!(check.run().await.unwrap(), 0, "it is marked once");
    // Both nodes renew and expire.
    leases.renew(vec![renewal("edge-1", 50), renewal("edge-2", 50)]).await.unwrap();
    assert_eq!(check.run().await.unwrap(), 0);
    pass(SILENT).await;
    assert_eq!(check.run().await.unwrap(), 2);
}

#[tokio::test]
async fn a_live_controller_manager_sets_ready_itself() {
    let rig = Rig::start().await;
    let (mut check, _) = prepare(&rig).await;
    let manager = rig
        .create(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": MANAGER.1, "namespace": MANAGER.0},
            "spec": {"holderIdentity": "m", "leaseDurationSeconds": 15},
        }))
        .await;
    assert_eq!(check.run().await.unwrap(), 0);
    pass(SILENT).await;
    rig.patch(&manager, json!({"spec": {"leaseTransitions": 2}})).await;
    assert_eq!(check.run().await.unwrap(), 2);
    let lost = statuses(&rig.node("edge-1").await.unwrap());
    assert!(lost.contains(&("Ready".into(), "True".into())), "{lost:?}");
    assert!(lost.contains(&("edgesync.io/DiskPressure".into(), "Unknown".into())), "{lost:?}");

    // The controller manager has died since.
    check.unchanged.marked.clear();
    pass(SILENT).await;
    assert_eq!(check.run().await.unwrap(), 2);
    let lost = statuses(&rig.node("edge-1").await.unwrap());
    assert!(lost.contains(&("Ready".into(), "Unknown".into())), "{lost:?}");
}

/// The replica that served the node has the exact time, the Lease the second.
#[test]
fn event_of_a_missed_check_in_has_the_name_that_the_serving_replica_gives_it() {
    let [exact, stored] = ["2026-11-21T10:00:00.25Z", "2026-11-21T10:00:00Z"].map(|due| due.parse().unwrap());
    let name = |due: Timestamp| missed_event(&node_name("edge-1"), due, due).name().to_owned();
    assert_eq!(name(stored), format!("edge-1.{:x}", stored.as_second()));
    assert_eq!(name(exact), name(stored));
}
