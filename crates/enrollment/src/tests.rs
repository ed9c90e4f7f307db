//! Joining, renewing and revoking, without a network. Submodules test the service over TLS and the
//! brokers.

use super::authority::Authority;
use super::tokens::TokenClaims;
use super::*;
use crate::membership::{CertificateRecord, OperatorRecord};
use edgesync_api::{Kubeconfig, Operators as _, Role};
use edgesync_cloud_store::{CloudOptions, CloudStore};
use edgesync_object::Labels;
use edgesync_transport::tls::{Certificate, Key};
use proptest::prelude::*;

mod broker_config;
mod service;

const HOUR: Duration = Duration::from_secs(3600);
const GRACE: Duration = days(2);

/// A cloud side in its own directory.
pub(super) struct Fixture {
    pub(super) service: EnrollmentService,
    pub(super) dir: tempfile::TempDir,
    store: CloudStore,
}

fn options(dir: &tempfile::TempDir) -> EnrollmentOptions {
    EnrollmentOptions {
        directory: dir.path().join("pki"),
        names: vec!["cloud.example".into()],
        broker: "mqtts://:8883".into(),
        brokers: Vec::new(),
        prefix: "edgesync/v1".into(),
        lifetime: HOUR,
        grace: GRACE,
        external: false,
        role: EnrollmentRole::Whole,
    }
}

async fn open(dir: tempfile::TempDir, options: EnrollmentOptions) -> Fixture {
    let store = CloudStore::open(&dir.path().join("cloud.db"), &CloudOptions::default()).unwrap();
    Fixture { service: EnrollmentService::open(options, store.clone()).await.unwrap(), dir, store }
}

pub(super) async fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir);
    open(dir, options).await
}

impl Fixture {
    /// Restarts the cloud side with other options.
    async fn reopen(self, change: impl FnOnce(&mut EnrollmentOptions)) -> Self {
        self.store.close().await;
        drop(self.service);
        let mut options = options(&self.dir);
        change(&mut options);
        open(self.dir, options).await
    }

    /// Creates a token and returns its JWT.
    pub(super) async fn token(&self, node: Option<&str>, uses: u32) -> String {
        let node = node.map(node_name);
        let made = self.service.enrollment().create_token(node.as_ref(), HOUR, uses, Labels::new()).await;
        made.unwrap().token.split_once('.').unwrap().1.to_owned()
    }

    /// Joins with a new token.
    pub(super) async fn joined(&self, node: &str) -> Identity {
        let key = Key::generate().unwrap();
        let bearer = self.token(Some(node), 1).await;
        let request = key.node_request(node).unwrap();
        let certificate = self.service.join(&bearer, &node_name(node), &request).await.unwrap();
        Identity::new("the answer", vec![certificate], key).unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("pki").join(name)
    }
}

pub(super) fn request(node: &str) -> Vec<u8> {
    Key::generate().unwrap().node_request(node).unwrap()
}

/// Returns the code of a refusal, whose message must contain these words.
fn refused(result: Result<Certificate>, words: &str) -> u16 {
    let status = result.unwrap_err();
    assert!(status.message.contains(words), "{}", status.message);
    status.code
}

#[tokio::test]
async fn a_token_joins_a_node_and_names_its_ca() {
    let fixture = fixture().await;
    let new = fixture
        .service
        .enrollment()
        .create_token(Some(&node_name("edge-1")), HOUR, 1, Labels::new())
        .await
        .unwrap();
    let (fingerprint, jwt) = new.token.split_once('.').unwrap();
    assert_eq!(fingerprint, fixture.service.trust().0[0].fingerprint());
    let certificate = fixture.service.join(jwt, &node_name("edge-1"), &request("edge-1")).await.unwrap();
    assert_eq!(certificate.node(), Some("edge-1"));
    let listed = fixture.service.enrollment().tokens().await.unwrap();
    assert_eq!(listed, [TokenRecord { used: 1, ..new.record }]);
    let store = &fixture.service.shared.membership;
    assert_eq!(store.revoke_certificates(&node_name("edge-1"), now()).await.unwrap(), 1);
    assert_eq!(store.revocations().await.unwrap().serials[0].0, certificate.serial());
}

#[tokio::test]
async fn header_token_and_request_must_name_the_same_node() {
    let fixture = fixture().await;
    let service = &fixture.service;
    let (free, bound) = (fixture.token(None, 9).await, fixture.token(Some("a"), 9).await);
    let join = |bearer: &str, node: &'static str, request: Vec<u8>| {
        let (service, bearer) = (service.clone(), bearer.to_owned());
        async move { service.join(&bearer, &node_name(node), &request).await }
    };
    assert_eq!(refused(join(&bound, "b", request("b")).await, "token bound to node 'a'"), 403);
    assert_eq!(refused(join(&bound, "a", request("b")).await, "CN=system:node:a"), 403);
    assert_eq!(refused(join(&free, "a", request("b")).await, "CN=system:node:a"), 403);
    assert_eq!(refused(join(&free, "a", b"nonsense".to_vec()).await, "PKCS#10"), 422);
    for name in ["a", "b"].map(node_name) {
        assert_eq!(service.shared.membership.revoke_certificates(&name, now()).await.unwrap(), 0, "{name}");
    }
}

#[test]
fn a_request_must_have_a_valid_node_name() {
    assert_eq!(parse_node("edge-1").unwrap(), "edge-1");
    for name in ["A b", tls::CLOUD, ""] {
        let status = parse_node(name).unwrap_err();
        assert_eq!(status.code, 422, "{name}");
        assert!(status.message.starts_with("node name must be a DNS-1123 subdomain"), "{status}");
    }
}

#[tokio::test]
async fn refused_tokens_say_what_to_do() {
    let fixture = fixture().await;
    let service = &fixture.service;
    let csr = request("a");
    let other = self::fixture().await.token(None, 1).await;
    assert_eq!(
        refused(service.join(&other, &node_name("a"), &csr).await, "not issued by this cloud side"),
        401
    );
    let revoked = service.enrollment().create_token(None, HOUR, 1, Labels::new()).await.unwrap();
    assert!(service.enrollment().revoke_token(&revoked.record.id).await.unwrap());
    assert!(!service.enrollment().revoke_token(&revoked.record.id).await.unwrap());
    let jwt = revoked.token.split_once('.').unwrap().1;
    assert_eq!(
        refused(service.join(jwt, &node_name("a"), &csr).await, "revoked; hint: create a new one"),
        401
    );
    let unknown = service.enrollment().revoke_token("none").await.unwrap_err();
    assert_eq!(unknown.code, 404);
    assert_eq!(unknown.message, "token 'none' not found; hint: 'edgesync-cloud token list'");
    let once = fixture.token(None, 1).await;
    service.join(&once, &node_name("a"), &csr).await.unwrap();
    assert_eq!(refused(service.join(&once, &node_name("b"), &request("b")).await, "token used up"), 401);
    let expired = TokenClaims { id: "x".into(), node: None, expires: now() };
    let expired = service.shared.keys().unwrap().tokens.sign(&expired);
    assert_eq!(refused(service.join(&expired, &node_name("b"), &request("b")).await, "token expired"), 401);
    let unknown = TokenClaims { id: "x".into(), node: None, expires: after(now(), HOUR) };
    let unknown = service.shared.keys().unwrap().tokens.sign(&unknown);
    assert_eq!(refused(service.join(&unknown, &node_name("b"), &request("b")).await, "token unknown"), 401);
}

#[tokio::test]
async fn a_taken_name_needs_a_token_bound_to_it() {
    let fixture = fixture().await;
    let service = &fixture.service;
    fixture.joined("a").await;
    let free = fixture.token(None, 9).await;
    let words = "token create --node a'; to free the name for any token, 'edgesync-cloud node forget a'";
    assert_eq!(refused(service.join(&free, &node_name("a"), &request("a")).await, words), 409);
    fixture.joined("a").await;
    assert_eq!(service.revoke_node(&node_name("a")).await.unwrap(), 2);
    assert_eq!(refused(service.join(&free, &node_name("a"), &request("a")).await, words), 409);
    assert!(service.forget_node(&node_name("a")).await.unwrap());
    service.join(&free, &node_name("a"), &request("a")).await.unwrap();
}

#[tokio::test]
async fn a_single_use_token_admits_one_of_two_concurrent_devices() {
    let fixture = fixture().await;
    let bearer = fixture.token(None, 1).await;
    let (one, other) = (request("a"), request("b"));
    let (a, b) = (node_name("a"), node_name("b"));
    let (one, other) =
        tokio::join!(fixture.service.join(&bearer, &a, &one), fixture.service.join(&bearer, &b, &other));
    assert_eq!(usize::from(one.is_ok()) + usize::from(other.is_ok()), 1);
    let store = &fixture.service.shared.membership;
    let revoked = async |name| store.revoke_certificates(&node_name(name), now()).await.unwrap();
    assert_eq!(revoked("a").await + revoked("b").await, 1);
}

#[tokio::test]
async fn a_certificate_renews_only_its_own_name_and_only_if_recorded() {
    let fixture = fixture().await;
    let service = &fixture.service;
    let a = fixture.joined("a").await;
    let renewed = service.renew(a.certificate(), &node_name("a"), &request("a")).await.unwrap();
    assert_ne!(renewed.serial(), a.certificate().serial());
    let shown = a.certificate();
    assert_eq!(refused(service.renew(shown, &node_name("b"), &request("b")).await, "of another node"), 403);
    assert_eq!(refused(service.renew(shown, &node_name("a"), &request("b")).await, "CN=system:node:a"), 403);
    let operator = service.new_operator("a", Role::Admin, HOUR).await.unwrap();
    assert_eq!(
        refused(
            service.renew(operator.certificate(), &node_name("a"), &request("a")).await,
            "of another node"
        ),
        403
    );
    // Signed by this CA and recorded nowhere: the database was lost.
    let (_, csr) = Authority::read_request(&request("c")).unwrap();
    let unknown = service.shared.keys().unwrap().authority.sign(&csr, &node_name("c"), now(), HOUR).unwrap();
    assert_eq!(
        refused(service.renew(&unknown, &node_name("c"), &request("c")).await, "revoked or unknown"),
        403
    );
    service.revoke_node(&node_name("a")).await.unwrap();
    assert_eq!(
        refused(service.renew(&renewed, &node_name("a"), &request("a")).await, "certificate revoked"),
        403
    );
}

#[tokio::test]
async fn an_expired_certificate_is_renewed_within_the_grace() {
    let fixture = fixture().await;
    let service = &fixture.service;
    for (age, good) in [(GRACE, true), (GRACE + 2 * HOUR, false)] {
        let (_, csr) = Authority::read_request(&request("a")).unwrap();
        let past = before(now(), age);
        let ended = service
            .shared
            .keys()
            .unwrap()
            .authority
            .sign(&csr, &node_name("a"), past, Duration::from_secs(60))
            .unwrap();
        let bound = service
            .enrollment()
            .create_token(Some(&node_name("a")), HOUR, 1, Labels::new())
            .await
            .unwrap()
            .record
            .id;
        let recorded = CertificateRecord {
            serial: ended.serial().into(),
            node: node_name("a"),
            not_before: ended.not_before(),
            not_after: ended.not_after(),
        };
        service.shared.membership.spend_token(&bound, recorded, past).await.unwrap().unwrap();
        let renewed = service.renew(&ended, &node_name("a"), &request("a")).await;
        if good {
            renewed.unwrap();
        } else {
            assert_eq!(refused(renewed, "join again with a new token"), 403);
            service.reconfigure(HOUR, GRACE + 3 * HOUR);
            service.renew(&ended, &node_name("a"), &request("a")).await.unwrap();
        }
    }
}

#[tokio::test]
async fn revoked_node_is_ignored_across_restarts_until_it_rejoins() {
    let fixture = fixture().await;
    fixture.joined("a").await;
    fixture.joined("b").await;
    let empty = fixture.service.revocation_list().unwrap();
    assert_eq!(fixture.service.revoke_node(&node_name("a")).await.unwrap(), 1);
    assert!(fixture.service.is_revoked(&node_name("a")) && !fixture.service.is_revoked(&node_name("b")));
    let list = fixture.service.revocation_list().unwrap();
    assert_ne!(list, empty);
    assert_eq!(std::fs::read_to_string(fixture.file("revoked.crl")).unwrap(), list);
    let fixture = fixture.reopen(|_| {}).await;
    assert!(fixture.service.is_revoked(&node_name("a")) && !fixture.service.is_revoked(&node_name("b")));
    fixture.joined("a").await;
    assert!(!fixture.service.is_revoked(&node_name("a")));
}

#[tokio::test]
async fn a_revocation_completes_when_its_caller_is_cancelled() {
    let fixture = fixture().await;
    let service = &fixture.service;
    fixture.joined("a").await;
    let node = node_name("a");
    {
        let mut asking = std::pin::pin!(service.revoke_node(&node));
        assert!(
            std::future::poll_fn(|context| std::task::Poll::Ready(
                asking.as_mut().poll(context).is_pending()
            ))
            .await
        );
    }
    assert_eq!(service.nodes_to_disconnect().await, ["a"]);
    assert!(service.is_revoked(&node_name("a")));
    // The second publication waits for the first.
    service.publish().await.unwrap();
    assert_eq!(std::fs::read_to_string(fixture.file(LIST_FILE)).unwrap(), service.revocation_list().unwrap());
}

/// Across a restart too: the new process publishes from the store.
#[tokio::test]
async fn a_revocation_that_fails_to_publish_is_in_force_and_retried() {
    let fixture = fixture().await;
    fixture.joined("a").await;
    let list = fixture.file(LIST_FILE);
    let before = fixture.service.revocation_list().unwrap();
    std::fs::remove_file(&list).unwrap();
    std::fs::create_dir(&list).unwrap();
    let error = fixture.service.revoke_node(&node_name("a")).await.unwrap_err();
    assert!(error.message.contains("write revocation list for brokers"), "{error:?}");
    assert!(
        fixture.service.is_revoked(&node_name("a")) && fixture.service.revocation_list().unwrap() != before
    );
    assert_eq!(fixture.service.nodes_to_disconnect().await[0], "a");
    assert!(fixture.service.republish().await.is_err());
    let fixture = fixture.reopen(|_| {}).await;
    assert!(fixture.service.is_revoked(&node_name("a")) && fixture.service.republish().await.is_err());
    std::fs::remove_dir(&list).unwrap();
    assert!(fixture.service.republish().await.unwrap());
    assert!(!fixture.service.republish().await.unwrap());
    assert_eq!(std::fs::read_to_string(&list).unwrap(), fixture.service.revocation_list().unwrap());
}

/// Behind an external broker the cloud side cannot distinguish the two certificates.
#[tokio::test]
async fn a_rejoined_node_is_ignored_until_the_broker_is_updated() {
    let fixture = fixture().await.reopen(|options| options.external = true).await;
    let service = &fixture.service;
    fixture.joined("a").await;
    service.revoke_node(&node_name("a")).await.unwrap();
    fixture.joined("a").await;
    assert!(service.is_revoked(&node_name("a")), "it cannot be distinguished from the revoked one");
    assert_eq!(service.broker_updated(&node_name("a")).await.unwrap(), 1);
    assert!(!service.is_revoked(&node_name("a")));
    service.revoke_node(&node_name("a")).await.unwrap();
    assert_eq!(service.broker_updated(&node_name("a")).await.unwrap(), 1);
    assert!(service.is_revoked(&node_name("a")), "it has no good certificate");
}

#[tokio::test]
async fn tokens_have_limits() {
    let fixture = fixture().await;
    let create =
        async |ttl, uses| fixture.service.enrollment().create_token(None, ttl, uses, Labels::new()).await;
    assert!(create(Duration::from_secs(60), 1).await.is_ok());
    assert!(create(days(3653), 1_000_000).await.is_ok());
    for (ttl, uses) in [(Duration::from_secs(59), 1), (days(3654), 1), (HOUR, 0), (HOUR, 1_000_001)] {
        assert_eq!(create(ttl, uses).await.err().unwrap().code, 400, "{ttl:?} {uses}");
    }
    let short = create(Duration::from_secs(59), 1).await.err().unwrap();
    assert_eq!(short.message, "ttl 59s: must be 1 minute to 10 years");
    let cloud = fixture.service.cloud_identity().unwrap();
    assert_eq!(
        (cloud.certificate().subject().common_name.as_str(), cloud.certificate().node()),
        (tls::CLOUD, None)
    );
}

/// A recorded serial number used to be enough: that of a node's certificate made its device an
/// administrator.
#[tokio::test]
async fn a_record_makes_no_operator_of_another_certificate() {
    let fixture = fixture().await;
    let service = &fixture.service;
    let node = fixture.joined("a").await;
    let viewer = service.new_operator("bob", Role::View, HOUR).await.unwrap();
    for (identity, name) in [(&node, "a"), (&node, "eve"), (&viewer, "bob"), (&viewer, "eve")] {
        let serial = identity.certificate().serial().to_owned();
        let forged = OperatorRecord {
            serial: serial.clone(),
            name: name.into(),
            role: "admin".into(),
            created: now(),
            expires: after(now(), HOUR),
            revoked: None,
        };
        // As someone who writes records, and has no key, would forge them.
        let table = operators::Table::new(&[forged]);
        assert_eq!(table.find(identity.certificate()), None, "{name} {serial}");
    }
    let role = |record: &str| {
        let real = OperatorRecord {
            serial: viewer.certificate().serial().into(),
            name: "bob".into(),
            role: record.into(),
            created: now(),
            expires: after(now(), HOUR),
            revoked: None,
        };
        let table = operators::Table::new(&[real]);
        table.find(viewer.certificate()).map(|caller| caller.role)
    };
    assert_eq!((role("view"), role("edit"), role("admin")), (Some(Role::View), None, None));
}

#[tokio::test]
async fn operators_are_recorded_and_revoked_one_by_one() {
    let fixture = fixture().await;
    let service = &fixture.service;
    for (name, role, lifetime) in [
        ("Me", Role::Edit, HOUR),
        ("me", Role::Local, HOUR),
        ("me", Role::Edit, Duration::ZERO),
        ("me", Role::Edit, days(3654)),
    ] {
        assert_eq!(service.new_operator(name, role, lifetime).await.unwrap_err().code, 400, "{name} {role}");
    }
    let ada = service.new_operator("ada", Role::Admin, HOUR).await.unwrap();
    let [first, second] = [
        service.new_operator("bob", Role::View, HOUR).await.unwrap(),
        service.new_operator("bob", Role::Edit, HOUR).await.unwrap(),
    ];
    let serial = |identity: &Identity| identity.certificate().serial().to_owned();
    assert_eq!(ada.certificate().subject().organization, tls::OPERATORS);
    // Brokers must not mistake an operator for a node.
    assert_eq!(ada.certificate().subject().common_name, "edgesync:operator:ada");
    let role = |service: &EnrollmentService, identity: &Identity| {
        service.operators().find(identity.certificate()).map(|it| it.role)
    };
    let roles = |service: &EnrollmentService| [&ada, &first, &second].map(|one| role(service, one));
    assert_eq!(roles(service), [Some(Role::Admin), Some(Role::View), Some(Role::Edit)]);
    let revoked = service.operators().revoked();
    assert_eq!(service.revoke_operators(&serial(&first)).await.unwrap(), 1);
    assert!(revoked.has_changed().unwrap());
    assert_eq!(roles(service), [Some(Role::Admin), None, Some(Role::Edit)]);
    assert_eq!(service.revoke_operators("bob").await.unwrap(), 1);
    for unknown in ["bob", "eve", ""] {
        let refused = service.revoke_operators(unknown).await.unwrap_err();
        assert_eq!(refused.code, 404, "{unknown}");
        assert!(refused.message.ends_with("; hint: 'edgesync-cloud operator list'"), "{refused:?}");
    }
    let fixture = fixture.reopen(|_| {}).await;
    assert_eq!(roles(&fixture.service), [Some(Role::Admin), None, None]);
    let records = fixture.service.enrollment().operator_records().await.unwrap();
    assert_eq!(records.iter().filter(|record| record.revoked.is_some()).count(), 2);
    assert_eq!(records.iter().map(|record| &*record.name).filter(|name| *name == "bob").count(), 2);
}

#[tokio::test]
async fn the_local_kubeconfig_is_replaced_when_it_is_not_valid() {
    let fixture = fixture().await;
    let path = fixture.file("kubeconfig");
    let write = async |server: &str| {
        fixture.service.write_kubeconfig(&path, server).await.unwrap();
        Kubeconfig::read("the file", &std::fs::read_to_string(&path).unwrap()).unwrap()
    };
    let first = write("https://127.0.0.1:1").await;
    assert_eq!(fixture.service.operators().find(first.identity.certificate()).unwrap().role, Role::Admin);
    let same = |config: &Kubeconfig| config.identity.certificate() == first.identity.certificate();
    assert!(same(&write("https://127.0.0.1:1").await));
    let moved = write("https://127.0.0.1:2").await;
    assert!(same(&moved) && moved.server == "https://127.0.0.1:2");
    // A kubeconfig that is revoked, broken or not recorded is replaced.
    fixture.service.revoke_operators("local").await.unwrap();
    let second = write("https://127.0.0.1:2").await;
    assert!(!same(&second));
    std::fs::write(&path, "nonsense").unwrap();
    assert_ne!(write("https://127.0.0.1:2").await.identity.certificate(), second.identity.certificate());
    assert_eq!(fixture.service.enrollment().operator_records().await.unwrap().len(), 3);
}

#[tokio::test]
async fn the_served_certificate_is_kept_until_names_or_ca_change() {
    let fixture = fixture().await;
    let first = fixture.service.server_identity();
    let names: HashSet<_> = first.certificate().names().iter().cloned().collect();
    assert_eq!(names, ["cloud.example", "localhost", "127.0.0.1", "::1"].map(String::from).into());
    assert_eq!(first.chain().len(), 1);
    let fixture = fixture.reopen(|_| {}).await;
    assert_eq!(fixture.service.server_identity().certificate(), first.certificate());
    let fixture = fixture.reopen(|options| options.names.push("0:0:0:0:0:0:0:2".into())).await;
    let second = fixture.service.server_identity();
    assert!(second.certificate().names().contains(&"::2".to_owned()));
    let fixture = fixture.reopen(|options| options.names.push("::2".into())).await;
    assert_eq!(fixture.service.server_identity().certificate(), second.certificate());
    std::fs::write(fixture.file("server.pem"), "broken").unwrap();
    let fixture = fixture.reopen(|_| {}).await;
    let third = fixture.service.server_identity();
    for name in ["ca.crt", "ca.key"] {
        std::fs::remove_file(fixture.file(name)).unwrap();
    }
    let fixture = fixture.reopen(|_| {}).await;
    assert_ne!(fixture.service.server_identity().certificate(), third.certificate());
}

#[tokio::test]
async fn all_files_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = fixture().await;
    fixture.joined("a").await;
    fixture.service.revoke_node(&node_name("a")).await.unwrap();
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(fixture.file("")), 0o700);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(fixture.file("")).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(mode(entry.path()), 0o600, "{:?}", entry.path());
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["ca.crt", "ca.key", "revoked.crl", "server.pem", "token.key"]);
}

#[tokio::test]
async fn upkeep_renews_certificates_and_prunes_records() {
    let fixture = fixture().await;
    let service = &fixture.service;
    fixture.joined("a").await;
    service.revoke_node(&node_name("a")).await.unwrap();
    let (first, list) = (service.server_identity(), service.revocation_list().unwrap());
    service.upkeep(after(now(), days(200))).await.unwrap();
    service.renew_identity(after(now(), days(200))).await.unwrap();
    assert_eq!(service.server_identity().certificate(), first.certificate());
    assert_ne!(service.revocation_list().unwrap(), list, "a month has passed");
    assert!(!service.is_revoked(&node_name("a")), "its certificates have ended long ago");
    assert_eq!(service.shared.membership.tokens().await.unwrap(), []);
    service.renew_identity(after(now(), days(300))).await.unwrap();
    let second = service.server_identity();
    assert_ne!(second.certificate(), first.certificate());
    assert_eq!(service.joining_tls().shows(), *second.certificate());
    assert_eq!(service.endpoint_tls().shows(), *second.certificate());
    let kept = std::fs::read_to_string(fixture.file("server.pem")).unwrap();
    assert!(kept.starts_with(&second.certificate().to_pem()), "{kept}");
}

#[test]
fn any_bearer_and_request_are_refused_and_nothing_panics() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (fixture, bearer) = runtime.block_on(async {
        let fixture = fixture().await;
        let bearer = fixture.token(None, 9).await;
        (fixture, bearer)
    });
    let bytes = proptest::collection::vec(any::<u8>(), 0..300);
    proptest!(|(text in ".{0,80}", node in "[a-z]{1,8}", other in ".{0,12}", body in bytes)| {
        let _ = parse_node(&other);
        let node = node_name(&node);
        for bearer in [&text, &bearer] {
            prop_assert!(runtime.block_on(fixture.service.join(bearer, &node, &body)).is_err());
        }
    });
    runtime.block_on(fixture.store.close());
}
