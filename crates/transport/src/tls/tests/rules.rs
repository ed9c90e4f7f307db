//! Verification of clients and servers, and its error messages.

use super::*;

fn cloud(authority: &Authority, rule: &ClientRule) -> Server {
    Server::new(&authority.server(), rule, clock()).unwrap()
}

fn client(authority: &Authority, identity: &Identity) -> Client {
    Client::new(&authority.trust, Some(identity), clock()).unwrap()
}

/// Returns the client's error and the server's log message when the client presents `identity`.
async fn refusal(rule: &ClientRule, authority: &Authority, identity: &Identity) -> (String, String) {
    let (error, log) = refused(&client(authority, identity), &cloud(authority, rule)).await;
    assert_eq!(error.label(), "refused", "{error}");
    let HandshakeError::Refused { host, reason } = error else { panic!("another error") };
    assert_eq!(host, HOST);
    (reason, log)
}

/// Returns why a client does not trust a server's certificate.
async fn disbelief(trust: &Trust, identity: &Identity, clock: Clock) -> HandshakeError {
    let client = Client::new(trust, None, clock).unwrap();
    let rule = ClientRule {
        trust: Trust::new(Vec::new()),
        revoked: Arc::default(),
        required: false,
        expired_grace: Duration::ZERO,
    };
    let server = Server::new(identity, &rule, clock).unwrap();
    let (near, far) = meet(&client, &server).await;
    assert!(far.is_err(), "the server must hear of it");
    near.map(drop).unwrap_err()
}

#[tokio::test]
async fn server_sees_the_name_of_the_node() {
    let authority = Authority::new("Fleet");
    let server = cloud(&authority, &authority.demanded());
    assert_eq!(talk(&client(&authority, &authority.node()), &server).await.0.as_deref(), Some("node-a"));
}

#[tokio::test]
async fn missing_certificate_is_refused_where_required() {
    let authority = Authority::new("Fleet");
    let nobody = Client::new(&authority.trust, None, clock()).unwrap();
    let (error, log) = refused(&nobody, &cloud(&authority, &authority.demanded())).await;
    assert_eq!(
        error.to_string(),
        "certificate of this node refused by cloud.example: no certificate presented",
        "log: {log}"
    );
    let optional = ClientRule { required: false, ..authority.demanded() };
    assert_eq!(talk(&nobody, &cloud(&authority, &optional)).await.0, None);
}

#[tokio::test]
async fn foreign_certificate_is_refused_even_if_optional() {
    let authority = Authority::new("Fleet");
    for name in ["Elsewhere", "Fleet"] {
        let foreign = Authority::new(name).node();
        for required in [true, false] {
            let rule = ClientRule { required, ..authority.demanded() };
            let (reason, log) = refusal(&rule, &authority, &foreign).await;
            assert_eq!(reason, "unknown authority", "{name}");
            assert!(log.contains("'node-a' (serial 1234)"), "{log}");
        }
    }
}

#[tokio::test]
async fn server_without_authorities_sees_no_client() {
    let authority = Authority::new("Fleet");
    let rule = ClientRule { trust: Trust::new(Vec::new()), required: false, ..authority.demanded() };
    assert_eq!(talk(&client(&authority, &authority.node()), &cloud(&authority, &rule)).await.0, None);
}

#[tokio::test]
async fn server_certificate_is_no_client_certificate() {
    let authority = Authority::new("Fleet");
    let (reason, _) = refusal(&authority.demanded(), &authority, &authority.server()).await;
    assert_eq!(reason, "not a client certificate");
}

#[tokio::test]
async fn expired_certificate_is_accepted_within_the_grace() {
    let authority = Authority::new("Fleet");
    let until = today() - SignedDuration::from_hours(10);
    let expired = authority.identity(Wish { from: until - YEAR, until, ..Wish::default() });
    let grace =
        |hours: u64| ClientRule { expired_grace: Duration::from_secs(hours * 3600), ..authority.demanded() };
    for hours in [0, 9] {
        let (reason, log) = refusal(&grace(hours), &authority, &expired).await;
        assert_eq!(reason, "expired");
        assert!(log.contains("'node-a'") && log.contains("expired"), "{log}");
    }
    for hours in [10, 24 * 365 * 100, u64::MAX / 3600] {
        let server = cloud(&authority, &grace(hours));
        assert_eq!(talk(&client(&authority, &expired), &server).await.0.as_deref(), Some("node-a"));
    }
}

#[tokio::test]
async fn grace_excludes_foreign_and_revoked_certificates() {
    let authority = Authority::new("Fleet");
    let until = today() - SignedDuration::from_hours(10);
    let wish = || Wish { from: until - YEAR, until, ..Wish::default() };
    let grace =
        ClientRule { expired_grace: Duration::from_secs(100 * 3600), ..authority.revoking(&["1234"]) };
    assert_eq!(refusal(&grace, &authority, &authority.identity(wish())).await.0, "revoked");
    let foreign = Authority::new("Elsewhere").identity(wish());
    assert_eq!(refusal(&grace, &authority, &foreign).await.0, "unknown authority");
}

#[tokio::test]
async fn certificate_not_yet_valid_is_refused() {
    let authority = Authority::new("Fleet");
    let from = today() + SignedDuration::from_hours(24);
    let early = authority.identity(Wish { from, ..Wish::default() });
    assert_eq!(refusal(&authority.demanded(), &authority, &early).await.0, "expired");
}

#[tokio::test]
async fn revoked_certificate_is_refused_and_others_are_not() {
    let authority = Authority::new("Fleet");
    let rule = authority.revoking(&["1", "1234"]);
    let (reason, log) = refusal(&rule, &authority, &authority.node()).await;
    assert_eq!(reason, "revoked");
    assert!(log.contains("'node-a'"), "{log}");
    let other = authority.identity(Wish { serial: 0x77, common_name: "node-b", ..Wish::default() });
    let server = cloud(&authority, &rule);
    assert_eq!(talk(&client(&authority, &other), &server).await.0.as_deref(), Some("node-b"));
}

#[tokio::test]
async fn invalid_rule_is_an_error() {
    let authority = Authority::new("Fleet");
    let new = |rule: &ClientRule| Server::new(&authority.server(), rule, clock()).map(drop);
    let nobody = ClientRule { trust: Trust::new(Vec::new()), ..authority.demanded() };
    assert!(matches!(new(&nobody), Err(TlsError::Library(_))));
    assert!(
        Client::new(&Trust::new(Vec::new()), None, clock()).is_err(),
        "who believes nobody connects to nobody"
    );
}

#[tokio::test]
async fn error_truncates_and_escapes_the_subject() {
    let authority = Authority::new("Fleet");
    let name = format!("a\u{1b}[31m\n{}", "x".repeat(200));
    let stranger = Authority::new("Elsewhere").identity(Wish { common_name: &name, ..Wish::default() });
    let (_, log) = refusal(&authority.demanded(), &authority, &stranger).await;
    assert!(!log.contains(char::is_control) && log.len() < 250, "{log:?}");
}

#[tokio::test]
async fn server_of_another_authority_is_not_trusted() {
    let authority = Authority::new("Fleet");
    for name in ["Elsewhere", "Fleet"] {
        let error = disbelief(&authority.trust, &Authority::new(name).server(), clock()).await;
        let issuer = format!("issuer '{name}'");
        assert_eq!(error, HandshakeError::OtherAuthority { host: HOST.to_owned(), issuer }, "{name}");
        assert_eq!(error.label(), "other-authority");
    }
}

#[tokio::test]
async fn server_of_another_name_is_not_trusted() {
    let authority = Authority::new("Fleet");
    let other = authority.identity(Wish { names: &["a.example", "2001:db8::1"], ..Wish::server() });
    let error = disbelief(&authority.trust, &other, clock()).await;
    assert_eq!(
        error.to_string(),
        "certificate of cloud.example is valid for a.example, 2001:db8::1, not for 'cloud.example'"
    );
    assert_eq!(error.label(), "other-name");
    let nameless = authority.identity(Wish { names: &[], ..Wish::server() });
    let error = disbelief(&authority.trust, &nameless, clock()).await;
    assert_eq!(
        error.to_string(),
        "certificate of cloud.example is valid for no host name or address, not for 'cloud.example'"
    );
}

#[tokio::test]
async fn ip_address_is_a_valid_name() {
    let authority = Authority::new("Fleet");
    let names: &[&str] = &["192.0.2.1", "2001:db8::1"];
    let identity = authority.identity(Wish { names, ..Wish::server() });
    let rule = ClientRule { required: false, ..authority.demanded() };
    let server = Server::new(&identity, &rule, clock()).unwrap();
    let client = client(&authority, &authority.node());
    for host in ["192.0.2.1", "2001:db8::1", "[2001:db8::1]"] {
        let (near, far) = meet_at(host, &client, &server).await;
        assert!(near.is_ok() && far.is_ok(), "{host}");
    }
    let (near, _) = meet_at("192.0.2.2", &client, &server).await;
    assert_eq!(near.map(drop).unwrap_err().label(), "other-name");
}

#[tokio::test]
async fn server_outside_its_validity_is_not_trusted() {
    let authority = Authority::new("Fleet");
    let (from, until) = (today() - YEAR, today() - SignedDuration::from_secs(1));
    let expired = authority.identity(Wish { from, until, ..Wish::server() });
    let error = disbelief(&authority.trust, &expired, clock()).await;
    assert_eq!(error, HandshakeError::OutsideItsTime { host: HOST.to_owned(), from, until, now: today() });
    assert_eq!(error.label(), "time");
    assert!(error.to_string().ends_with("set the clock, or renew that certificate"), "{error}");

    let from = today() + SignedDuration::from_secs(1);
    let early = authority.identity(Wish { from, ..Wish::server() });
    assert_eq!(disbelief(&authority.trust, &early, clock()).await.label(), "time");

    let far_ahead = || at("2055-01-01T00:00:00Z");
    let ahead = Clock::of(far_ahead, []);
    let error = disbelief(&authority.trust, &authority.server(), ahead).await;
    let HandshakeError::OutsideItsTime { now, .. } = error else { panic!("another error") };
    assert_eq!(now, far_ahead());
}

#[tokio::test]
async fn clock_of_1970_does_not_prevent_connections() {
    let authority = Authority::new("Fleet");
    let server = Server::new(&authority.server(), &authority.demanded(), clock_of_1970()).unwrap();
    let client = Client::new(&authority.trust, Some(&authority.node()), clock_of_1970()).unwrap();
    assert_eq!(talk(&client, &server).await, (Some("node-a".to_owned()), false));
    assert_eq!(talk(&client, &server).await, (Some("node-a".to_owned()), true));
}

#[tokio::test]
async fn clock_of_1970_refuses_certificates_older_than_the_build() {
    let authority = Authority::new("Fleet");
    let (from, until) = (at("2026-01-01T00:00:00Z"), at("2026-09-01T00:00:00Z"));
    let old = authority.identity(Wish { from, until, ..Wish::server() });
    let error = disbelief(&authority.trust, &old, clock_of_1970()).await;
    assert_eq!(error, HandshakeError::OutsideItsTime { host: HOST.to_owned(), from, until, now: in_1970() });
    assert!(error.to_string().contains("set the clock"), "{error}");
}

#[tokio::test]
async fn clock_of_1970_refuses_other_authorities_and_names() {
    let authority = Authority::new("Fleet");
    let foreign = Authority::new("Elsewhere").server();
    assert_eq!(disbelief(&authority.trust, &foreign, clock_of_1970()).await.label(), "other-authority");
    let other = authority.identity(Wish { names: &["a.example"], ..Wish::server() });
    assert_eq!(disbelief(&authority.trust, &other, clock_of_1970()).await.label(), "other-name");
}

#[tokio::test]
async fn unverified_client_accepts_any_server() {
    let authority = Authority::new("Fleet");
    let (from, until) = (today() - YEAR, today() - YEAR / 2);
    let anybody = authority.identity(Wish { from, until, names: &["a.example"], ..Wish::server() });
    let rule = ClientRule { required: false, ..authority.demanded() };
    let server = Server::new(&anybody, &rule, clock()).unwrap();
    let client = Client::unverified().unwrap();
    assert_eq!(talk(&client, &server).await, (None, false));
    assert_eq!(talk(&client, &server).await, (None, false), "nothing is kept of such a connection");
}

/// Returns a client's error for a peer that answers with these bytes and closes.
async fn answered(answer: &[u8]) -> HandshakeError {
    let authority = Authority::new("Fleet");
    let client = client(&authority, &authority.node());
    let (near, mut far) = duplex(64 << 10);
    let peer = async {
        far.write_all(answer).await.unwrap();
        far.shutdown().await.unwrap();
        let mut hello = Vec::new();
        far.read_to_end(&mut hello).await.unwrap();
        assert!(!hello.is_empty());
    };
    let connect = async { client.connect(HOST, near).await.map(drop).unwrap_err() };
    tokio::join!(connect, peer).0
}

#[tokio::test]
async fn peer_without_tls_differs_from_a_lost_one() {
    let error = answered(b"SSH-2.0-OpenSSH_9.2\r\n").await;
    assert_eq!(error.label(), "not-tls", "{error}");
    assert_eq!(error.to_string(), "cloud.example does not speak TLS on this port: invalid TLS record");
    let error = answered(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").await;
    assert_eq!(error.label(), "not-tls", "{error}");
    assert!(
        error.to_string().starts_with("cloud.example answers with HTTP where TLS is expected"),
        "{error}"
    );
    let error = answered(b"").await;
    assert_eq!(error.label(), "network", "{error}");
    assert!(error.to_string().contains("the port may not speak TLS"), "{error}");
}

#[tokio::test]
async fn host_that_no_certificate_can_name_is_an_error() {
    let authority = Authority::new("Fleet");
    let (near, _far) = duplex(1024);
    let error = client(&authority, &authority.node()).connect("a b", near).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("'a b' is neither a host name nor an IP address"), "{error}");
}

#[test]
fn other_io_errors_are_not_converted() {
    assert_eq!(HandshakeError::of_io(HOST, &io::Error::from(io::ErrorKind::ConnectionReset)), None);
    assert_eq!(HandshakeError::of_io(HOST, &io::Error::other("something")), None);
}
