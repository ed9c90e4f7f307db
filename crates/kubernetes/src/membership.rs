//! Conformance tests of both membership stores: SQLite, and a cluster served by the embedded API
//! over HTTP.

use std::sync::Arc;

use jiff::Timestamp;

use crate::node_name;
use edgesync_cloud_store::CloudOptions;
use edgesync_cloud_store::CloudStore;
use edgesync_enrollment::membership::{
    CertificateRecord, Changed, Changes, EnrollmentRefusal, MAX_CERTIFICATES_PER_NODE, MembershipStore,
    OperatorRecord, RevocationChange, Revocations, TokenRecord,
};
use edgesync_object::{Labels, NodeName, Status};

mod cluster;
mod keys;
mod replicas;
pub(super) mod served;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn token(id: &str, node: Option<&str>, uses: u32) -> TokenRecord {
    TokenRecord {
        id: id.into(),
        node: node.map(node_name),
        created: at(100),
        expires: at(1000),
        uses,
        used: 0,
        revoked: None,
        labels: Labels::new(),
    }
}

/// A certificate valid from 100 to 500.
fn certificate(serial: &str, node: &str) -> CertificateRecord {
    CertificateRecord {
        serial: serial.into(),
        node: node_name(node),
        not_before: at(100),
        not_after: at(500),
    }
}

async fn spend(
    members: &MembershipStore,
    id: &str,
    serial: &str,
    node: &str,
) -> Result<(), EnrollmentRefusal> {
    members.spend_token(id, certificate(serial, node), at(200)).await.unwrap()
}

/// Runs a test against each store.
async fn with_each<F: Future<Output = ()>>(holds: impl Fn(MembershipStore) -> F) {
    let directory = tempfile::tempdir().unwrap();
    let store = CloudStore::open(&directory.path().join("cloud.db"), &CloudOptions::default()).unwrap();
    holds(store.clone().into()).await;
    store.close().await;
    {
        let served = served::Served::start().await;
        let members = served.members().await;
        members.follow().await.unwrap();
        holds(members).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_counted_with_the_certificate() {
    with_each(async |members: MembershipStore| {
        members.put_token(token("t", None, 2)).await.unwrap();
        members.put_token(TokenRecord { created: at(150), ..token("late", None, 1) }).await.unwrap();
        spend(&members, "t", "1", "a").await.unwrap();
        spend(&members, "t", "2", "b").await.unwrap();
        assert_eq!(spend(&members, "t", "3", "c").await, Err(EnrollmentRefusal::UsedUp));
        assert_eq!(spend(&members, "none", "3", "c").await, Err(EnrollmentRefusal::UnknownToken));
        let tokens = members.tokens().await.unwrap();
        let late = TokenRecord { created: at(150), ..token("late", None, 1) };
        assert_eq!(tokens, [late, TokenRecord { used: 2, ..token("t", None, 2) }]);
        for (serial, node) in [("1", "a"), ("2", "b")] {
            assert_eq!(members.revoke_certificates(&node_name(node), at(300)).await.unwrap(), 1);
            let revoked = members.revocations().await.unwrap().serials;
            assert!(revoked.contains(&(serial.to_owned(), at(300))), "{revoked:?}");
        }
        assert_eq!(members.revoke_certificates(&node_name("c"), at(300)).await.unwrap(), 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_joins_never_exceed_the_uses_of_a_token() {
    with_each(async |members: MembershipStore| {
        members.put_token(token("t", None, 3)).await.unwrap();
        let tries = (0..20).map(|number| {
            let members = members.clone();
            tokio::spawn(
                async move { spend(&members, "t", &format!("{number:x}"), &format!("n{number}")).await },
            )
        });
        let mut let_in = 0;
        for one in tries.collect::<Vec<_>>() {
            match one.await.unwrap() {
                Ok(()) => let_in += 1,
                Err(refusal) => assert_eq!(refusal, EnrollmentRefusal::UsedUp),
            }
        }
        assert_eq!((let_in, members.tokens().await.unwrap()[0].used), (3, 3));
        let mut recorded = 0;
        for number in 0..20 {
            recorded +=
                members.revoke_certificates(&node_name(&format!("n{number}")), at(300)).await.unwrap();
        }
        assert_eq!(recorded, 3);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_concurrent_joins_gets_the_name() {
    with_each(async |members: MembershipStore| {
        let tries = (0..8).map(|number| {
            let members = members.clone();
            tokio::spawn(async move {
                let id = format!("t{number}");
                members.put_token(token(&id, None, 1)).await.unwrap();
                spend(&members, &id, &format!("{number:x}"), "a").await
            })
        });
        let mut let_in = 0;
        for one in tries.collect::<Vec<_>>() {
            match one.await.unwrap() {
                Ok(()) => let_in += 1,
                Err(refusal) => assert_eq!(refusal, EnrollmentRefusal::NameTaken(node_name("a"))),
            }
        }
        let used: u32 = members.tokens().await.unwrap().iter().map(|token| token.used).sum();
        assert_eq!((let_in, used), (1, 1));
        assert_eq!(members.revoke_certificates(&node_name("a"), at(300)).await.unwrap(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_for_its_node_and_an_unbound_one_for_free_names() {
    with_each(async |members: MembershipStore| {
        members.put_token(token("free", None, 9)).await.unwrap();
        members.put_token(token("bound", Some("a"), 9)).await.unwrap();
        assert!(members.knows_name(&node_name("a")).await.unwrap(), "there is a token for it");
        assert!(!members.knows_name(&node_name("b")).await.unwrap());
        assert_eq!(
            spend(&members, "bound", "0", "b").await,
            Err(EnrollmentRefusal::OtherNode(node_name("a")))
        );
        spend(&members, "free", "1", "a").await.unwrap();
        assert_eq!(
            spend(&members, "free", "2", "a").await,
            Err(EnrollmentRefusal::NameTaken(node_name("a")))
        );
        spend(&members, "bound", "2", "a").await.unwrap();
        let used: Vec<_> = members.tokens().await.unwrap().iter().map(|token| token.used).collect();
        assert_eq!(used, [1, 1], "a refusal is no use");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_used_name_is_free_only_after_it_is_forgotten() {
    with_each(async |members: MembershipStore| {
        members.put_token(token("t", None, 9)).await.unwrap();
        members.put_token(token("bound", Some("a"), 9)).await.unwrap();
        spend(&members, "t", "1", "a").await.unwrap();
        let taken = |name: &str| Err(EnrollmentRefusal::NameTaken(node_name(name)));
        // Revoked, expired, forgotten with all certificates, removed, admitted again.
        members.revoke_certificates(&node_name("a"), at(300)).await.unwrap();
        assert_eq!(spend(&members, "t", "2", "a").await, taken("a"));
        let late = members.spend_token("t", certificate("2", "a"), at(900)).await.unwrap();
        assert_eq!(late, taken("a"));
        members.prune_expired(at(600)).await.unwrap();
        assert_eq!(spend(&members, "t", "2", "a").await, taken("a"));
        members.remove_node(&node_name("a"), None, at(300)).await.unwrap();
        assert!(members.admit_node(&node_name("a")).await.unwrap());
        assert_eq!(spend(&members, "t", "2", "a").await, taken("a"));
        // The name never had a certificate.
        members.remove_node(&node_name("removed"), None, at(300)).await.unwrap();
        assert_eq!(spend(&members, "t", "2", "removed").await, taken("removed"));
        assert!(members.forget_name(&node_name("a"), at(300)).await.unwrap());
        assert!(!members.forget_name(&node_name("a"), at(300)).await.unwrap());
        spend(&members, "t", "2", "a").await.unwrap();
        // Forgetting a name revokes its valid certificates.
        assert!(members.forget_name(&node_name("a"), at(300)).await.unwrap());
        assert_eq!(members.revocations().await.unwrap().nodes, ["a"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_certificate_is_doubtful_until_a_broker_refuses_it() {
    with_each(async |members: MembershipStore| {
        members.put_token(token("t", None, 9)).await.unwrap();
        spend(&members, "t", "1", "a").await.unwrap();
        spend(&members, "t", "2", "b").await.unwrap();
        members.revoke_certificates(&node_name("a"), at(300)).await.unwrap();
        members.put_token(token("next", Some("a"), 9)).await.unwrap();
        spend(&members, "next", "3", "a").await.unwrap();
        let revoked = members.revocations().await.unwrap();
        assert_eq!((&revoked.nodes[..], &revoked.doubtful[..]), (&[][..], &[node_name("a")][..]));
        assert_eq!(members.note_refused(&node_name("a"), at(400)).await.unwrap(), 1);
        assert_eq!(members.revocations().await.unwrap().doubtful, [""; 0]);
        members.revoke_certificates(&node_name("a"), at(500)).await.unwrap();
        assert_eq!(members.revocations().await.unwrap().doubtful, ["a"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revocation_of_a_node_covers_its_certificates_and_tokens() {
    with_each(async |members: MembershipStore| {
        members.put_token(token("old", Some("a"), 9)).await.unwrap();
        members.put_token(token("other", None, 9)).await.unwrap();
        spend(&members, "old", "1", "a").await.unwrap();
        spend(&members, "old", "2", "a").await.unwrap();
        spend(&members, "other", "3", "b").await.unwrap();
        assert_eq!(members.revoke_certificates(&node_name("a"), at(300)).await.unwrap(), 2);
        assert_eq!(members.revoke_certificates(&node_name("a"), at(400)).await.unwrap(), 0);
        let revoked = members.revocations().await.unwrap();
        assert_eq!(revoked.serials, [("1".to_owned(), at(300)), ("2".to_owned(), at(300))]);
        assert_eq!(revoked.nodes, ["a"]);
        assert_eq!(spend(&members, "old", "4", "a").await, Err(EnrollmentRefusal::RevokedToken));
        members.put_token(token("next", Some("a"), 9)).await.unwrap();
        spend(&members, "next", "4", "a").await.unwrap();
        let revoked = members.revocations().await.unwrap();
        assert_eq!((revoked.serials.len(), revoked.nodes.len()), (2, 0));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_needs_a_recorded_certificate_and_has_a_limit() {
    with_each(async |members: MembershipStore| {
        members.put_token(token("t", None, 9)).await.unwrap();
        spend(&members, "t", "f1", "a").await.unwrap();
        let renew = async |shown: &str, serial: &str, node: &str, now| {
            members.renew_certificate(shown, certificate(serial, node), at(now)).await.unwrap()
        };
        assert_eq!(renew("f1", "f2", "a", 200).await, Ok(()));
        assert_eq!(renew("9", "f3", "a", 200).await, Err(EnrollmentRefusal::Revoked));
        assert_eq!(renew("f1", "f3", "b", 200).await, Err(EnrollmentRefusal::Revoked));
        for number in 2..MAX_CERTIFICATES_PER_NODE {
            assert_eq!(renew("f1", &format!("{number:x}"), "a", 200).await, Ok(()));
        }
        assert_eq!(renew("f1", "999", "a", 200).await, Err(EnrollmentRefusal::TooMany));
        members.put_token(token("bound", Some("a"), 1)).await.unwrap();
        assert_eq!(spend(&members, "bound", "998", "a").await, Err(EnrollmentRefusal::TooMany));
        assert_eq!(renew("f1", "999", "a", 500).await, Ok(()), "those have ended");
        let given = usize::try_from(MAX_CERTIFICATES_PER_NODE).unwrap() + 1;
        assert_eq!(members.revoke_certificates(&node_name("a"), at(600)).await.unwrap(), given);
        assert_eq!(renew("f2", "997", "a", 200).await, Err(EnrollmentRefusal::Revoked));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revocation_of_a_token_returns_whether_it_was_usable() {
    with_each(async |members: MembershipStore| {
        for (id, uses) in [("t", 1), ("used", 1), ("late", 1)] {
            members.put_token(token(id, None, uses)).await.unwrap();
        }
        spend(&members, "used", "1", "a").await.unwrap();
        assert_eq!(members.revoke_token("t", at(300)).await.unwrap(), Some(true));
        assert_eq!(members.revoke_token("t", at(301)).await.unwrap(), Some(false));
        assert_eq!(members.revoke_token("used", at(300)).await.unwrap(), Some(false));
        assert_eq!(members.revoke_token("late", at(1000)).await.unwrap(), Some(false));
        assert_eq!(members.revoke_token("none", at(300)).await.unwrap(), None);
        assert_eq!(spend(&members, "t", "2", "b").await, Err(EnrollmentRefusal::RevokedToken));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_tokens_and_certificates_are_pruned() {
    with_each(async |members: MembershipStore| {
        members.put_token(token("t", None, 9)).await.unwrap();
        spend(&members, "t", "1", "a").await.unwrap();
        members.revoke_certificates(&node_name("a"), at(300)).await.unwrap();
        assert_eq!(members.prune_expired(at(500)).await.unwrap(), 0);
        assert_eq!(members.prune_expired(at(501)).await.unwrap(), 1);
        assert_eq!(members.revocations().await.unwrap(), Revocations::default());
        assert_eq!(members.prune_expired(at(1001)).await.unwrap(), 1);
        assert_eq!(members.tokens().await.unwrap(), []);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_node_keeps_its_labels_until_it_is_admitted() {
    with_each(async |members: MembershipStore| {
        let labels = |site: &str| Labels::from([("site".to_owned(), site.to_owned())]);
        for (id, site) in [("t", "north"), ("next", "west")] {
            let record = TokenRecord { labels: labels(site), ..token(id, Some("a"), 1) };
            members.put_token(record).await.unwrap();
        }
        assert_eq!(members.member_labels(&node_name("a")).await.unwrap(), None);
        spend(&members, "t", "1", "a").await.unwrap();
        assert_eq!(members.member_labels(&node_name("a")).await.unwrap(), Some(labels("north")));
        members.remove_node(&node_name("a"), None, at(300)).await.unwrap();
        let removed = members.removed().await.unwrap();
        assert_eq!(removed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a"]);
        members.remove_node(&node_name("a"), None, at(300)).await.unwrap();
        assert_eq!(members.removed().await.unwrap(), removed, "a second removal changes nothing");
        assert!(members.admit_node(&node_name("a")).await.unwrap());
        assert!(!members.admit_node(&node_name("a")).await.unwrap());
        assert_eq!(members.removed().await.unwrap(), []);
        assert_eq!(members.member_labels(&node_name("a")).await.unwrap(), Some(labels("north")));
        spend(&members, "next", "2", "a").await.unwrap();
        assert_eq!(members.member_labels(&node_name("a")).await.unwrap(), Some(labels("west")));
        members.forget_name(&node_name("a"), at(300)).await.unwrap();
        assert_eq!(members.member_labels(&node_name("a")).await.unwrap(), None);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_are_recorded_and_revoked_by_serial_number_or_name() {
    with_each(async |members: MembershipStore| {
        let operator = |serial: &str, name: &str, created| OperatorRecord {
            serial: serial.into(),
            name: name.into(),
            role: "admin".into(),
            created: at(created),
            expires: at(1000),
            revoked: None,
        };
        for one in [operator("1", "ada", 100), operator("2", "bob", 101), operator("3", "bob", 102)] {
            assert!(members.put_operator(one).await.unwrap());
        }
        assert_eq!(members.revoke_operators("2", at(300)).await.unwrap(), 1);
        assert_eq!(members.revoke_operators("bob", at(301)).await.unwrap(), 1);
        assert_eq!(members.revoke_operators("eve", at(302)).await.unwrap(), 0);
        let listed = members.operators().await.unwrap();
        let shown: Vec<_> = listed.iter().map(|one| (one.serial.as_str(), one.revoked)).collect();
        assert_eq!(shown, [("3", Some(at(301))), ("2", Some(at(300))), ("1", None)]);
        assert_eq!(members.prune_expired(at(1001)).await.unwrap(), 3);
        assert_eq!(members.operators().await.unwrap(), []);
    })
    .await;
}
