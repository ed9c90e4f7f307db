//! Tests of the CA and of the token key, which all replicas share.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use super::replicas::{Replica, SOON, open, options};
use super::served::{CA_NAMESPACE, NAMESPACE, Served};
use super::*;
use crate::cluster::Precondition;
use crate::via_cluster::ViaCluster;
use edgesync_admin::{NodeAction, Route};
use edgesync_enrollment::{Enrollment, EnrollmentOptions, EnrollmentRole, EnrollmentService};
use edgesync_object::{Object, kinds};
use edgesync_testkit::timing::within;
use edgesync_transport::tls::{self, Identity, Key};

async fn delete(served: &Served, name: &str) {
    let secrets = kinds::by_word("secrets").unwrap().resource();
    let cluster = served.cluster().await;
    assert!(cluster.delete(&secrets, (CA_NAMESPACE, name), Precondition::default()).await.unwrap());
}

/// Returns the error with which a replica refuses to start.
async fn refused(served: &Served, name: &str) -> String {
    let error = EnrollmentService::open(options(served, name), served.members().await).await.unwrap_err();
    format!("{error:#}")
}

fn fingerprint(service: &EnrollmentService) -> String {
    service.trust().0[0].fingerprint()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_start_together_share_the_ca_and_token_key() {
    let served = Served::start().await;
    let (one, two, three) = tokio::join!(open(&served, "1"), open(&served, "2"), open(&served, "3"));
    let trusted = fingerprint(&one.service);
    assert_eq!([fingerprint(&two.service), fingerprint(&three.service)], [trusted.clone(), trusted]);
    let hour = std::time::Duration::from_secs(3600);
    let token = one.service.enrollment().create_token(None, hour, 9, Labels::new()).await.unwrap().token;
    let (_, bearer) = token.split_once('.').unwrap();
    for (replica, node) in [(&two, "a"), (&three, "b")] {
        let request = Key::generate().unwrap().node_request(node).unwrap();
        let certificate = replica.service.join(bearer, &node_name(node), &request).await.unwrap();
        assert_eq!(certificate.node(), Some(node));
    }
    // A replica's directory contains no key.
    let mut names: Vec<_> = std::fs::read_dir(options(&served, "1").directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["revoked.crl", "server.pem"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operators_ca_becomes_the_clusters_and_another_is_refused() {
    let served = Served::start().await;
    let (own, other) = (options(&served, "own").directory, options(&served, "other").directory);
    for directory in [&own, &other] {
        let (certificate, key) = edgesync_enrollment::authority::make(edgesync_enrollment::now()).unwrap();
        std::fs::create_dir_all(directory).unwrap();
        std::fs::write(directory.join("ca.crt"), certificate).unwrap();
        std::fs::write(directory.join("ca.key"), key).unwrap();
    }
    let replica = open(&served, "own").await;
    let plain = open(&served, "plain").await;
    assert_eq!(fingerprint(&replica.service), fingerprint(&plain.service));
    let advice = "kubectl -n edgesync-ca delete secret edgesync-ca edgesync-token-key";
    let error = refused(&served, "other").await;
    assert!(
        error.starts_with("conflicting CAs: Secret edgesync-ca/edgesync-ca") && error.contains(advice),
        "{error}"
    );
    // Without its key, the certificate still identifies the CA.
    for (directory, good) in [(&own, true), (&other, false)] {
        std::fs::remove_file(directory.join("ca.key")).unwrap();
        let name = directory.file_name().unwrap().to_str().unwrap();
        let opened = EnrollmentService::open(options(&served, name), served.members().await).await;
        assert_eq!(opened.is_ok(), good, "{name}");
    }
    delete(&served, "edgesync-ca").await;
    delete(&served, "edgesync-token-key").await;
    let error = refused(&served, "own").await;
    assert!(error.contains("ca.crt without ca.key"), "{error}");
}

/// `kubectl create secret tls` creates it, or cert-manager, with one entry more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_from_before_the_first_start_is_the_ca() {
    let served = Served::start().await;
    let (certificate, key) = edgesync_enrollment::authority::make(edgesync_enrollment::now()).unwrap();
    let own = Identity::from_pem("the operator's CA", &format!("{certificate}\n{key}")).unwrap();
    let [certificate, key] = [certificate, key].map(|text| BASE64_STANDARD.encode(text));
    let secret: Object = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "edgesync-ca", "namespace": CA_NAMESPACE},
        "data": {"tls.crt": certificate, "tls.key": key, "ca.crt": certificate},
    }))
    .unwrap();
    let secrets = kinds::by_word("secrets").unwrap().resource();
    let created = served.cluster().await.create(&secrets, &secret).await.unwrap();

    let (one, two) = (open(&served, "1").await, open(&served, "2").await);
    let expected = own.certificate().fingerprint();
    assert_eq!([fingerprint(&one.service), fingerprint(&two.service)], [expected.clone(), expected]);
    let kept = served.cluster().await.get(&secrets, CA_NAMESPACE, "edgesync-ca").await.unwrap();
    assert_eq!(kept, Some(created));

    let hour = std::time::Duration::from_secs(3600);
    let token = one.service.enrollment().create_token(None, hour, 1, Labels::new()).await.unwrap().token;
    let (_, bearer) = token.split_once('.').unwrap();
    let request = Key::generate().unwrap().node_request("a").unwrap();
    let issued = two.service.join(bearer, &node_name("a"), &request).await.unwrap();
    assert_eq!(issued.node(), Some("a"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_or_replaced_ca_stops_the_start_of_a_replica() {
    let served = Served::start().await;
    let first = fingerprint(&open(&served, "1").await.service);
    let secrets = kinds::by_word("secrets").unwrap().resource();
    let kept = served.cluster().await.get(&secrets, CA_NAMESPACE, "edgesync-ca").await.unwrap().unwrap();

    delete(&served, "edgesync-ca").await;
    let error = refused(&served, "1").await;
    assert!(error.contains(&first) && error.contains("restore it from a backup"), "{error}");

    let elsewhere = Served::start().await;
    open(&elsewhere, "1").await;
    let mut other =
        elsewhere.cluster().await.get(&secrets, CA_NAMESPACE, "edgesync-ca").await.unwrap().unwrap();
    other.remove_metadata("uid");
    other.remove_metadata("resourceVersion");
    served.cluster().await.create(&secrets, &other).await.unwrap();
    let error = refused(&served, "1").await;
    assert!(
        error.contains(&format!("belong to the CA {first}")) && error.contains("switch to this one"),
        "{error}"
    );

    delete(&served, "edgesync-ca").await;
    let mut kept = kept;
    kept.remove_metadata("uid");
    kept.remove_metadata("resourceVersion");
    served.cluster().await.create(&secrets, &kept).await.unwrap();
    assert_eq!(fingerprint(&open(&served, "1").await.service), first);

    let broken = json!({ "data": { "key": "c2hvcnQ=" } });
    let at = (CA_NAMESPACE, "edgesync-token-key");
    served.cluster().await.merge(&secrets, at, Precondition::default(), broken).await.unwrap();
    let error = refused(&served, "1").await;
    assert!(error.contains("edgesync-ca/edgesync-token-key has 5 bytes"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_operator_creates_no_keys() {
    let served = Served::start().await;
    let error =
        Enrollment::connect(Arc::new(served.cluster().await), NAMESPACE).await.unwrap_err().to_string();
    assert!(error.contains("no CA of edgesync in namespace 'edgesync-ca'"), "{error}");
    open(&served, "1").await;
    Enrollment::connect(Arc::new(served.cluster().await), NAMESPACE).await.unwrap();
    let error = Enrollment::connect(Arc::new(served.cluster().await), "other").await.unwrap_err().to_string();
    assert!(error.contains("wrong namespace or cluster"), "{error}");
}

/// Opens a process with a part of the enrollment, which follows changes of others.
async fn part(served: &Served, name: &str, role: EnrollmentRole) -> Result<Replica, String> {
    let options = EnrollmentOptions { role, ..options(served, name) };
    let opened = EnrollmentService::open(options, served.members().await).await;
    opened.map(Replica::of).map_err(|error| format!("{error:#}"))
}

/// Returns whether a server accepts this client.
async fn accepts(server: &tls::Server, trust: &tls::Trust, identity: &Identity) -> bool {
    let client = tls::Client::new(trust, Some(identity), tls::Clock::system([])).unwrap();
    let (near, far) = tokio::io::duplex(64 << 10);
    let (connected, accepted) = tokio::join!(client.connect("localhost", near), server.accept(far));
    drop(connected);
    accepted.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_a_signer_has_no_keys_and_refuses_the_revoked() {
    let served = Served::start().await;
    let early = part(&served, "replica", EnrollmentRole::Replica).await.err().unwrap();
    assert!(
        early.starts_with("Secret edgesync-ca/edgesync-server not found: the signer creates it"),
        "{early}"
    );
    let signer = part(&served, "signer", EnrollmentRole::Signer).await.unwrap();
    let second = part(&served, "second", EnrollmentRole::Signer).await.unwrap();
    let replica = part(&served, "replica", EnrollmentRole::Replica).await.unwrap();
    assert_eq!(fingerprint(&replica.service), fingerprint(&signer.service));
    let shown = signer.service.endpoint_tls().shows();
    assert_eq!(
        [second.service.endpoint_tls().shows(), replica.service.endpoint_tls().shows()],
        [shown.clone(), shown]
    );
    assert!(!options(&served, "replica").directory.exists(), "a replica stores no key");

    let hour = std::time::Duration::from_secs(3600);
    let refused = replica.service.enrollment().create_token(None, hour, 1, Labels::new()).await.unwrap_err();
    assert!(refused.code == 409 && refused.message.contains("deploy/edgesync-signer"), "{refused}");
    let refused = replica.service.new_operator("ada", edgesync_api::Role::Admin, hour).await.unwrap_err();
    assert_eq!(refused.code, 409);
    assert!(replica.service.cloud_identity().is_err() && replica.service.revocation_list().is_err());

    let token = signer.service.enrollment().create_token(None, hour, 1, Labels::new()).await.unwrap().token;
    let key = Key::generate().unwrap();
    let bearer = token.split_once('.').unwrap().1;
    let certificate =
        signer.service.join(bearer, &node_name("a"), &key.node_request("a").unwrap()).await.unwrap();
    let identity = Identity::new("the answer", vec![certificate], key).unwrap();
    let (endpoint, trust) = (replica.service.endpoint_tls(), replica.service.trust());
    assert!(accepts(&endpoint, &trust, &identity).await);
    signer.service.revoke_node(&node_name("a")).await.unwrap();
    let cut = within("the replica cuts the node", SOON, replica.service.nodes_to_disconnect()).await;
    assert_eq!(cut, ["a"]);
    assert!(!accepts(&endpoint, &trust, &identity).await);
}

/// A person with rights to the records only can run these commands: they used to read the key of
/// the CA.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_read_and_changed_without_the_keys() {
    let served = Served::start().await;
    let replica = open(&served, "1").await;
    let hour = std::time::Duration::from_secs(3600);
    let token = replica
        .service
        .enrollment()
        .create_token(Some(&node_name("a")), hour, 2, Labels::new())
        .await
        .unwrap();
    let (_, bearer) = token.token.split_once('.').unwrap();
    let request = Key::generate().unwrap().node_request("a").unwrap();
    replica.service.join(bearer, &node_name("a"), &request).await.unwrap();
    replica.service.new_operator("ada", edgesync_api::Role::View, hour).await.unwrap();
    // A command that reads the keys fails.
    delete(&served, "edgesync-ca").await;
    delete(&served, "edgesync-token-key").await;
    let commands = ViaCluster::new(served.cluster().await, NAMESPACE);
    for (route, body) in [
        (Route::Tokens, json!(null)),
        (Route::Operators, json!(null)),
        (Route::RevokeToken(&token.record.id), json!(null)),
        (Route::RevokeOperators("ada"), json!(null)),
        (Route::ChangeNode("a", NodeAction::Revoke), json!(null)),
        (Route::ChangeNode("a", NodeAction::Admit), json!({"brokerUpdated": true})),
        (Route::ChangeNode("a", NodeAction::Forget), json!(null)),
    ] {
        let asked = format!("{route:?}");
        commands.call(route, &body).await.unwrap_or_else(|status| panic!("{asked}: {status}"));
    }
    let tokens = commands.call(Route::Tokens, &json!(null)).await.unwrap();
    assert_eq!(tokens["items"][0]["state"], "revoked", "{tokens}");
    for route in [Route::CreateToken, Route::CreateOperator] {
        let body = json!({"user": "eve", "role": "view", "lifetimeSeconds": 3600});
        let refused = commands.call(route, &body).await.unwrap_err();
        assert!(refused.message.contains("no CA of edgesync in namespace 'edgesync-ca'"), "{refused}");
    }
    // An empty list of a namespace without a fleet is a mistake of the caller.
    let elsewhere = ViaCluster::new(served.cluster().await, "other");
    for route in [Route::Tokens, Route::Operators] {
        let refused = elsewhere.call(route, &json!(null)).await.unwrap_err();
        assert!(refused.message.contains("has run in namespace 'other'"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_certificate_is_replaced_when_names_or_ca_change() {
    let served = Served::start().await;
    let shown = |part: &Replica| part.service.endpoint_tls().shows();
    let first = shown(&part(&served, "signer", EnrollmentRole::Signer).await.unwrap());
    let kept = shown(&part(&served, "signer", EnrollmentRole::Signer).await.unwrap());
    assert_eq!(kept, first);
    let other = EnrollmentOptions {
        names: vec!["other.example".into()],
        role: EnrollmentRole::Signer,
        ..options(&served, "signer")
    };
    let service = EnrollmentService::open(other, served.members().await).await.unwrap();
    let renamed = service.endpoint_tls().shows();
    assert!(renamed.names().contains(&"other.example".to_owned()), "{:?}", renamed.names());
    let replica = part(&served, "replica", EnrollmentRole::Replica).await.unwrap();
    assert_eq!(shown(&replica), renamed);
    for name in ["edgesync-ca", "edgesync-token-key"] {
        delete(&served, name).await;
    }
    let fresh = part(&served, "signer", EnrollmentRole::Signer).await.unwrap();
    assert_ne!(fingerprint(&fresh.service), fingerprint(&replica.service));
    let after = part(&served, "later", EnrollmentRole::Replica).await.unwrap();
    assert_eq!(fingerprint(&after.service), fingerprint(&fresh.service));
}
