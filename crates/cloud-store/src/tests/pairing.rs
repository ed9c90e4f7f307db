//! Tokens and certificates.

use super::*;
use crate::pairing::{CertificateRecord, MAX_CERTIFICATES_PER_NODE, PairingRefusal, TokenRecord};
use edgesync_object::Labels;
use edgesync_object::node_labels::NodeLabels;
use jiff::Timestamp;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn token(id: &str, node: Option<&str>, uses: u32) -> TokenRecord {
    let node = node.map(str::to_owned);
    let (created, expires, labels) = (at(100), at(1000), Labels::new());
    TokenRecord { id: id.into(), node, created, expires, uses, used: 0, revoked: None, labels }
}

/// A certificate that is good from 100 to 500.
fn certificate(serial: &str, node: &str) -> CertificateRecord {
    CertificateRecord {
        serial: serial.into(),
        node: node.into(),
        not_before: at(100),
        not_after: at(500),
        revoked: None,
    }
}

async fn spend(store: &CloudStore, id: &str, serial: &str, node: &str) -> Result<(), PairingRefusal> {
    store.spend_token(id, certificate(serial, node), at(200)).await.unwrap()
}

#[tokio::test]
async fn a_token_is_counted_with_the_certificate_and_both_survive() {
    let fixture = fixture();
    fixture.store.put_token(token("t", None, 2)).await.unwrap();
    spend(&fixture.store, "t", "1", "a").await.unwrap();
    spend(&fixture.store, "t", "2", "b").await.unwrap();
    assert_eq!(spend(&fixture.store, "t", "3", "c").await, Err(PairingRefusal::UsedUp));
    let crashed = fixture.after_crash();
    assert_eq!(crashed.store.tokens().await.unwrap(), [TokenRecord { used: 2, ..token("t", None, 2) }]);
    for (serial, node) in [("1", "a"), ("2", "b")] {
        assert_eq!(crashed.store.revoke_certificates(node, at(300)).await.unwrap(), 1);
        assert!(crashed.store.revocations().await.unwrap().serials.contains(&(serial.to_owned(), at(300))));
    }
}

#[tokio::test]
async fn of_many_at_once_a_token_lets_in_as_many_as_it_may() {
    let fixture = fixture();
    fixture.store.put_token(token("t", None, 3)).await.unwrap();
    let tries = (0..20).map(|number| {
        let store = fixture.store.clone();
        tokio::spawn(async move { spend(&store, "t", &format!("{number:x}"), &format!("n{number}")).await })
    });
    let mut let_in = 0;
    for one in tries.collect::<Vec<_>>() {
        match one.await.unwrap() {
            Ok(()) => let_in += 1,
            Err(refusal) => assert_eq!(refusal, PairingRefusal::UsedUp),
        }
    }
    assert_eq!(let_in, 3);
    assert_eq!(fixture.store.tokens().await.unwrap()[0].used, 3);
    let mut recorded = 0;
    for number in 0..20 {
        recorded += fixture.store.revoke_certificates(&format!("n{number}"), at(300)).await.unwrap();
    }
    assert_eq!(recorded, 3);
}

#[tokio::test]
async fn a_token_is_for_its_node_and_an_unbound_one_for_free_names() {
    let fixture = fixture();
    let store = &fixture.store;
    store.put_token(token("free", None, 9)).await.unwrap();
    store.put_token(token("bound", Some("a"), 9)).await.unwrap();
    assert_eq!(spend(store, "none", "0", "a").await, Err(PairingRefusal::UnknownToken));
    assert_eq!(spend(store, "bound", "0", "b").await, Err(PairingRefusal::OtherNode("a".into())));
    spend(store, "free", "1", "a").await.unwrap();
    assert_eq!(spend(store, "free", "2", "a").await, Err(PairingRefusal::NameTaken("a".into())));
    spend(store, "bound", "2", "a").await.unwrap();
    let used: Vec<_> = store.tokens().await.unwrap().into_iter().map(|token| token.used).collect();
    assert_eq!(used, [1, 1], "a refusal is no use");
}

#[tokio::test]
async fn a_name_that_was_used_is_free_again_only_when_it_is_forgotten() {
    let fixture = fixture();
    let store = &fixture.store;
    store.put_token(token("t", None, 9)).await.unwrap();
    store.put_token(token("bound", Some("a"), 9)).await.unwrap();
    spend(store, "t", "1", "a").await.unwrap();
    let taken = |name: &str| Err(PairingRefusal::NameTaken(name.into()));
    // Revoked, lapsed, forgotten with all of its certificates, removed, taken in again.
    store.revoke_certificates("a", at(300)).await.unwrap();
    assert_eq!(spend(store, "t", "2", "a").await, taken("a"));
    let late = store.spend_token("t", certificate("2", "a"), at(900)).await.unwrap();
    assert_eq!(late, taken("a"));
    store.prune_pairing(at(600)).await.unwrap();
    assert_eq!(spend(store, "t", "2", "a").await, taken("a"));
    store.remove_node("a").await.unwrap();
    store.admit_node("a").await.unwrap();
    assert_eq!(spend(store, "t", "2", "a").await, taken("a"));
    // Also of those that have never had a certificate.
    store.record(&node_name("reported"), None, RecordBatch::default()).await.unwrap();
    store.remove_node("removed").await.unwrap();
    for name in ["reported", "removed"] {
        assert_eq!(spend(store, "t", "2", name).await, taken(name));
    }
    assert!(store.forget_name("a", at(300)).await.unwrap());
    assert!(!store.forget_name("a", at(300)).await.unwrap());
    spend(store, "t", "2", "a").await.unwrap();
    // What is good of a name that is forgotten is revoked with it.
    assert!(store.forget_name("a", at(300)).await.unwrap());
    assert_eq!(store.revocations().await.unwrap().nodes, ["a"]);
}

#[tokio::test]
async fn a_revoked_certificate_is_doubtful_at_a_broker_until_it_is_known_to_be_refused() {
    let fixture = fixture();
    let store = &fixture.store;
    store.put_token(token("t", None, 9)).await.unwrap();
    store.put_token(token("bound", Some("a"), 9)).await.unwrap();
    spend(store, "t", "1", "a").await.unwrap();
    spend(store, "t", "2", "b").await.unwrap();
    store.revoke_certificates("a", at(300)).await.unwrap();
    store.put_token(token("next", Some("a"), 9)).await.unwrap();
    spend(store, "next", "3", "a").await.unwrap();
    let revoked = store.revocations().await.unwrap();
    assert_eq!((&revoked.nodes[..], &revoked.doubtful[..]), (&[][..], &["a".to_owned()][..]));
    assert_eq!(store.note_refused("a", at(400)).await.unwrap(), 1);
    assert_eq!(store.revocations().await.unwrap().doubtful, [""; 0]);
    store.revoke_certificates("a", at(500)).await.unwrap();
    assert_eq!(store.revocations().await.unwrap().doubtful, ["a"]);
}

#[tokio::test]
async fn revoking_a_node_revokes_its_certificates_and_tokens_until_it_joins_anew() {
    let fixture = fixture();
    let store = &fixture.store;
    store.put_token(token("old", Some("a"), 9)).await.unwrap();
    store.put_token(token("other", None, 9)).await.unwrap();
    spend(store, "old", "1", "a").await.unwrap();
    spend(store, "old", "2", "a").await.unwrap();
    spend(store, "other", "3", "b").await.unwrap();
    assert_eq!(store.revoke_certificates("a", at(300)).await.unwrap(), 2);
    assert_eq!(store.revoke_certificates("a", at(400)).await.unwrap(), 0);
    let revoked = store.revocations().await.unwrap();
    assert_eq!(revoked.serials, [("1".to_owned(), at(300)), ("2".to_owned(), at(300))]);
    assert_eq!(revoked.nodes, ["a"]);
    assert_eq!(spend(store, "old", "4", "a").await, Err(PairingRefusal::RevokedToken));
    store.put_token(token("next", Some("a"), 9)).await.unwrap();
    spend(store, "next", "4", "a").await.unwrap();
    let revoked = store.revocations().await.unwrap();
    assert_eq!((revoked.serials.len(), revoked.nodes.len()), (2, 0));
}

#[tokio::test]
async fn only_a_known_certificate_of_the_node_is_renewed() {
    let fixture = fixture();
    let store = &fixture.store;
    store.put_token(token("t", None, 9)).await.unwrap();
    spend(store, "t", "1", "a").await.unwrap();
    let renew = |shown, serial, node| store.renew_certificate(shown, certificate(serial, node), at(200));
    assert_eq!(renew("1", "2", "a").await.unwrap(), Ok(()));
    assert_eq!(renew("9", "3", "a").await.unwrap(), Err(PairingRefusal::Revoked));
    assert_eq!(renew("1", "3", "b").await.unwrap(), Err(PairingRefusal::Revoked));
    assert_eq!(store.revoke_certificates("a", at(300)).await.unwrap(), 2);
    assert_eq!(renew("2", "3", "a").await.unwrap(), Err(PairingRefusal::Revoked));
    assert_eq!(store.revoke_certificates("a", at(300)).await.unwrap(), 0);
}

#[tokio::test]
async fn a_node_that_renews_without_end_is_stopped() {
    let fixture = fixture();
    let store = &fixture.store;
    store.put_token(token("t", None, 9)).await.unwrap();
    spend(store, "t", "first", "a").await.unwrap();
    let renew = |number: u32, now| {
        store.renew_certificate("first", certificate(&format!("{number:x}"), "a"), at(now))
    };
    for number in 1..MAX_CERTIFICATES_PER_NODE {
        assert_eq!(renew(number, 200).await.unwrap(), Ok(()));
    }
    assert_eq!(renew(999, 200).await.unwrap(), Err(PairingRefusal::TooMany));
    assert_eq!(renew(999, 500).await.unwrap(), Ok(()), "those have ended");
}

#[tokio::test]
async fn a_token_can_be_revoked_and_tells_whether_it_was_of_use() {
    let fixture = fixture();
    let store = &fixture.store;
    for (id, uses) in [("t", 1), ("used", 1), ("late", 1)] {
        store.put_token(token(id, None, uses)).await.unwrap();
    }
    spend(store, "used", "1", "a").await.unwrap();
    assert_eq!(store.revoke_token("t", at(300)).await.unwrap(), Some(true));
    assert_eq!(store.revoke_token("t", at(301)).await.unwrap(), Some(false));
    assert_eq!(store.revoke_token("used", at(300)).await.unwrap(), Some(false));
    assert_eq!(store.revoke_token("late", at(1000)).await.unwrap(), Some(false));
    assert_eq!(store.revoke_token("none", at(300)).await.unwrap(), None);
    assert_eq!(spend(store, "t", "2", "b").await, Err(PairingRefusal::RevokedToken));
}

#[tokio::test]
async fn what_ended_long_ago_is_forgotten() {
    let fixture = fixture();
    let store = &fixture.store;
    store.put_token(token("t", None, 9)).await.unwrap();
    spend(store, "t", "1", "a").await.unwrap();
    store.revoke_certificates("a", at(300)).await.unwrap();
    assert_eq!(store.prune_pairing(at(500)).await.unwrap(), 0);
    assert_eq!(store.prune_pairing(at(501)).await.unwrap(), 1);
    assert_eq!(store.revocations().await.unwrap().nodes, Vec::<String>::new());
    assert_eq!(store.prune_pairing(at(1001)).await.unwrap(), 1);
    assert_eq!(store.tokens().await.unwrap(), []);
}

#[tokio::test]
async fn labels_of_a_token_are_given_to_the_node_that_joins_with_it_and_stay() {
    let fixture = fixture();
    let store = &fixture.store;
    let labels = |site: &str| Labels::from([("site".to_owned(), site.to_owned())]);
    for (id, site) in [("t", "north"), ("next", "west")] {
        store.put_token(TokenRecord { labels: labels(site), ..token(id, Some("a"), 1) }).await.unwrap();
    }
    let says = || NodeChange {
        node: node_name("a"),
        report: Some(
            serde_json::from_value(json!({"labels": {"site": "south", "rack": "7",
            "kubernetes.io/hostname": "b"}}))
            .unwrap(),
        ),
        conditions: Vec::new(),
    };
    let shown = async |store: &CloudStore| {
        let stored = store.get(kind("nodes").key("", "a")).await.unwrap();
        NodeLabels::of(&object(&stored))
    };
    let known = |site: &str| {
        let mut given = labels(site);
        given.insert("kubernetes.io/hostname".to_owned(), "a".to_owned());
        NodeLabels { given, claimed: Labels::from([("rack".to_owned(), "7".to_owned())]) }
    };
    // It joins before there is a Node, and says something else.
    spend(store, "t", "1", "a").await.unwrap();
    store.change_nodes(vec![says()]).await.unwrap();
    assert_eq!(shown(store).await, known("north"));
    // The Node is removed and comes back.
    store.remove_node("a").await.unwrap();
    store.admit_node("a").await.unwrap();
    store.change_nodes(vec![says()]).await.unwrap();
    let fixture = fixture.reopen().await;
    assert_eq!(shown(&fixture.store).await, known("north"));
    // It joins anew.
    spend(&fixture.store, "next", "2", "a").await.unwrap();
    fixture.store.change_nodes(vec![says()]).await.unwrap();
    assert_eq!(shown(&fixture.store).await, known("west"));
}
