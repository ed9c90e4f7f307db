//! The membership in the database of this process: crashes, and its Nodes. `edgesync-kubernetes`
//! tests the rules that hold in a cluster too.

use super::*;
use crate::node_name;
use edgesync_cloud_store::{CloudOptions, NodeChange};
use edgesync_object::node_labels::NodeLabels;
use edgesync_object::{Object, kinds};
use edgesync_store::durable::with_suffix;
use serde_json::json;

/// A store in its own directory.
struct Fixture {
    members: MembershipStore,
    store: CloudStore,
    dir: tempfile::TempDir,
}

fn open(dir: tempfile::TempDir) -> Fixture {
    let store = CloudStore::open(&dir.path().join("cloud.db"), &CloudOptions::default()).unwrap();
    Fixture { members: store.clone().into(), store, dir }
}

fn fixture() -> Fixture {
    open(tempfile::tempdir().unwrap())
}

impl Fixture {
    /// Opens a copy of the files as a crash at this moment would leave them.
    fn after_crash(&self) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for part in ["", "-wal"] {
            let [from, to] = [&self.dir, &dir].map(|dir| with_suffix(&dir.path().join("cloud.db"), part));
            std::fs::copy(from, to).unwrap();
        }
        open(dir)
    }

    async fn node(&self, name: &str) -> NodeLabels {
        let node = kinds::by_word("nodes").unwrap().resource().key("", name);
        let node: Object = serde_json::from_str(&self.store.get(node).await.unwrap().body).unwrap();
        NodeLabels::of(&node)
    }

    async fn spend(&self, id: &str, serial: &str, node: &str) -> Result<(), EnrollmentRefusal> {
        self.members.spend_token(id, certificate(serial, node), at(200)).await.unwrap()
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn token(id: &str, node: Option<&str>, uses: u32) -> TokenRecord {
    let node = node.map(node_name);
    let (created, expires, labels) = (at(100), at(1000), Labels::new());
    TokenRecord { id: id.into(), node, created, expires, uses, used: 0, revoked: None, labels }
}

/// A certificate that is valid from 100 to 500.
fn certificate(serial: &str, node: &str) -> CertificateRecord {
    let (not_before, not_after) = (at(100), at(500));
    CertificateRecord { serial: serial.into(), node: node_name(node), not_before, not_after }
}

#[tokio::test]
async fn a_counted_use_and_its_certificate_survive_a_crash() {
    let fixture = fixture();
    fixture.members.put_token(token("t", None, 2)).await.unwrap();
    fixture.spend("t", "1", "a").await.unwrap();
    fixture.spend("t", "2", "b").await.unwrap();
    assert_eq!(fixture.spend("t", "3", "c").await, Err(EnrollmentRefusal::UsedUp));
    let Fixture { members, .. } = &fixture.after_crash();
    assert_eq!(members.tokens().await.unwrap(), [TokenRecord { used: 2, ..token("t", None, 2) }]);
    for (serial, node) in [("1", "a"), ("2", "b")] {
        assert_eq!(members.revoke_certificates(&node_name(node), at(300)).await.unwrap(), 1);
        assert!(members.revocations().await.unwrap().serials.contains(&(serial.to_owned(), at(300))));
    }
}

#[tokio::test]
async fn a_counted_use_is_spent_after_a_crash_and_admits_no_node() {
    let fixture = fixture();
    fixture.members.put_token(token("t", None, 1)).await.unwrap();
    fixture.members.count_use("t", &node_name("a"), at(200)).await.unwrap().unwrap();
    let crashed = fixture.after_crash();
    assert_eq!(crashed.spend("t", "1", "a").await, Err(EnrollmentRefusal::UsedUp));
    assert_eq!(crashed.members.members().await.unwrap(), []);
}

#[tokio::test]
async fn a_name_under_which_a_node_has_reported_is_taken() {
    let fixture = fixture();
    fixture.members.put_token(token("t", None, 9)).await.unwrap();
    fixture.store.record(&node_name("reported"), None, Default::default()).await.unwrap();
    let taken = Err(EnrollmentRefusal::NameTaken(node_name("reported")));
    assert_eq!(fixture.spend("t", "2", "reported").await, taken);
    assert!(fixture.members.knows_name(&node_name("reported")).await.unwrap());
}

#[tokio::test]
async fn labels_of_a_token_stay_on_the_node_that_joined_with_it() {
    let fixture = fixture();
    let Fixture { members, store, .. } = &fixture;
    let labels = |site: &str| Labels::from([("site".to_owned(), site.to_owned())]);
    for (id, site) in [("t", "north"), ("next", "west")] {
        members.put_token(TokenRecord { labels: labels(site), ..token(id, Some("a"), 1) }).await.unwrap();
    }
    let says = || {
        let labels = json!({"labels": {"site": "south", "rack": "7", "kubernetes.io/hostname": "b"}});
        let report = Some(serde_json::from_value(labels).unwrap());
        vec![NodeChange { node: node_name("a"), report, conditions: Vec::new() }]
    };
    let known = |site: &str| {
        let mut given = labels(site);
        given.insert("kubernetes.io/hostname".to_owned(), "a".to_owned());
        NodeLabels { assigned: given, reported: Labels::from([("rack".to_owned(), "7".to_owned())]) }
    };
    // The node joins before its Node exists, and reports other labels.
    fixture.spend("t", "1", "a").await.unwrap();
    store.change_nodes(says()).await.unwrap();
    assert_eq!(fixture.node("a").await, known("north"));
    // The Node is removed, and admitted again.
    members.remove_node(&node_name("a"), None, at(300)).await.unwrap();
    members.admit_node(&node_name("a")).await.unwrap();
    store.change_nodes(says()).await.unwrap();
    let fixture = fixture.after_crash();
    assert_eq!(fixture.node("a").await, known("north"));
    // The node joins again.
    fixture.spend("next", "2", "a").await.unwrap();
    fixture.store.change_nodes(says()).await.unwrap();
    assert_eq!(fixture.node("a").await, known("west"));
}

#[tokio::test]
async fn a_node_is_removed_with_all_its_data_or_not_at_all() {
    let fixture = fixture();
    fixture.store.record(&node_name("a"), None, Default::default()).await.unwrap();
    let removal = fixture.members.remove_node(&node_name("a"), None, at(300)).await.unwrap();
    assert_eq!(removal, at(300));
    assert_eq!(fixture.members.unfinished_removals().await.unwrap(), [] as [NodeName; 0]);
    let crashed = fixture.after_crash();
    assert_eq!(crashed.store.nodes().await.unwrap(), []);
    assert_eq!(crashed.store.registered().await.unwrap().removed, [(node_name("a"), at(300))]);
}

#[tokio::test]
async fn the_list_of_removed_nodes_is_bounded() {
    let Fixture { members, .. } = &fixture();
    for (name, second) in [("new", 9), ("old-1", 1), ("old-2", 2), ("old-3", 1), ("old-4", 2)] {
        members.remove_node(&node_name(name), None, at(second)).await.unwrap();
    }
    members.prune_removed(members.removed().await.unwrap(), 4).await.unwrap();
    let removed = members.removed().await.unwrap();
    // Of the nodes with the oldest removal, the last by name is dropped.
    assert_eq!(
        removed.iter().map(|(name, _)| &**name).collect::<Vec<_>>(),
        ["new", "old-1", "old-2", "old-4"]
    );
    assert!(members.knows_name(&node_name("old-3")).await.unwrap(), "its name is not free again");
}

#[tokio::test]
async fn a_row_with_the_document_of_another_name_is_damage() {
    let Fixture { members, store, .. } = &fixture();
    let other = documents::write(&Member { used: true, ..Member::new(&node_name("b")) });
    let other = edgesync_cloud_store::Document { id: "a".into(), ..other };
    store.put_document(other, NodeEffect::None).await.unwrap();
    let seen = members.members().await.unwrap_err();
    let changed = members.revoke_certificates(&node_name("a"), at(1)).await.unwrap_err();
    for error in [seen, changed] {
        let MembershipError::Store(CloudError::Store(StoreError::Corrupt(why))) = error else {
            panic!("{error}")
        };
        assert!(why.to_string().contains("member 'a'"), "{why}");
    }
}
