//! Replacement of identities and rules in operation, and sessions.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use super::*;

fn both(authority: &Authority) -> (Client, Server) {
    let server = Server::new(&authority.server(), &authority.demanded(), clock()).unwrap();
    (Client::new(&authority.trust, Some(&authority.node()), clock()).unwrap(), server)
}

/// Polls a future once; returns whether it is pending.
async fn begins(mut future: Pin<&mut impl Future>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

fn node(name: &'static str, serial: u64) -> Wish<'static> {
    Wish { common_name: name, serial, ..Wish::default() }
}

fn shows(client: &Client) -> Option<String> {
    client.shows().map(|certificate| certificate.subject().common_name.clone())
}

#[tokio::test]
async fn resumed_session_keeps_its_client() {
    let (client, server) = both(&Authority::new("Fleet"));
    assert_eq!(talk(&client, &server).await, (Some("node-a".to_owned()), false));
    for _ in 0..3 {
        assert_eq!(talk(&client.clone(), &server.clone()).await, (Some("node-a".to_owned()), true));
    }
}

/// A node that checks in once a day, or once in some days, makes no full handshake each time.
#[tokio::test]
async fn session_is_resumed_for_a_week() {
    let (client, server) = both(&Authority::new("Fleet"));
    assert!(!talk(&client, &server).await.1);
    let week = SignedDuration::from_hours(7 * 24);
    let mut now = today();
    for _ in 0..2 {
        now += week;
        set_clock(now);
        assert!(talk(&client, &server).await.1, "each use begins another week");
    }
    set_clock(now + week + SignedDuration::from_secs(1));
    assert_eq!(talk(&client, &server).await, (Some("node-a".to_owned()), false));
}

#[tokio::test]
async fn session_ends_with_its_original_certificate() {
    let authority = Authority::new("Fleet");
    let (_, server) = both(&authority);
    let until = today() + SignedDuration::from_mins(10);
    let short = authority.identity(Wish { until, ..Wish::default() });
    let client = Client::new(&authority.trust, Some(&short), clock()).unwrap();
    assert!(!talk(&client, &server).await.1);
    set_clock(until);
    assert!(talk(&client, &server).await.1);
    set_clock(until + SignedDuration::from_secs(1));
    let (_, far) = meet(&client, &server).await;
    let log = far.map(drop).unwrap_err().to_string();
    assert!(log.contains("'node-a'") && log.contains("expired"), "{log}");
}

#[tokio::test]
async fn new_rule_ends_all_sessions() {
    let authority = Authority::new("Fleet");
    let (client, server) = both(&authority);
    assert!(!talk(&client, &server).await.1);
    assert!(talk(&client, &server).await.1);
    server.replace(&authority.server(), &authority.demanded()).unwrap();
    assert_eq!(talk(&client, &server).await, (Some("node-a".to_owned()), false));
    assert!(talk(&client, &server).await.1);

    let rule = authority.revoking(&["1234"]);
    server.replace(&authority.server(), &rule).unwrap();
    let (error, _) = refused(&client, &server).await;
    assert_eq!(error.to_string(), "certificate of this node refused by cloud.example: revoked");
}

#[tokio::test]
async fn handshake_begun_before_a_revocation_is_refused() {
    let authority = Authority::new("Fleet");
    let rule = authority.revoking(&["1234"]);
    for resumed in [false, true] {
        let (client, server) = both(&authority);
        if resumed {
            talk(&client, &server).await;
        }
        let (near, far) = duplex(64 << 10);
        let mut accept = pin!(server.accept(far));
        assert!(begins(accept.as_mut()).await);
        server.replace(&authority.server(), &rule).unwrap();
        let (_, accepted) = tokio::join!(client.connect(HOST, near), accept);
        let log = accepted.map(drop).unwrap_err().to_string();
        assert!(log.contains("'node-a'") && log.contains("Revoked"), "{log}");
    }
}

#[tokio::test]
async fn handshake_begun_before_a_harmless_change_continues() {
    let authority = Authority::new("Fleet");
    let (client, server) = both(&authority);
    let (near, far) = duplex(64 << 10);
    let mut accept = pin!(server.accept(far));
    assert!(begins(accept.as_mut()).await);
    server.replace(&authority.server(), &authority.demanded()).unwrap();
    let (_, accepted) = tokio::join!(client.connect(HOST, near), accept);
    assert_eq!(accepted.unwrap().1.unwrap().node(), Some("node-a"));
}

#[tokio::test]
async fn server_presents_its_latest_identity() {
    let authority = Authority::new("Fleet");
    let (client, server) = both(&authority);
    let newer = authority.identity(Wish { serial: 0x99, ..Wish::server() });
    assert_ne!(server.shows().serial(), "99");
    server.replace(&newer, &authority.demanded()).unwrap();
    assert_eq!(server.shows(), *newer.certificate());
    let (near, _far) = meet(&client, &server).await;
    let near = near.unwrap();
    let seen = near.get_ref().1.peer_certificates().unwrap();
    assert_eq!(seen[0].as_ref(), newer.certificate().der());
}

#[tokio::test]
async fn invalid_replacement_changes_nothing() {
    let authority = Authority::new("Fleet");
    let (client, server) = both(&authority);
    let nobody = ClientRule { trust: Trust::new(Vec::new()), ..authority.demanded() };
    assert!(server.replace(&authority.server(), &nobody).is_err());
    assert!(client.replace(&Trust::new(Vec::new()), None).is_err());
    assert_eq!(shows(&client).as_deref(), Some("node-a"));
    assert_eq!(talk(&client, &server).await.0.as_deref(), Some("node-a"));
}

#[tokio::test]
async fn new_connections_present_the_new_identity() {
    let authority = Authority::new("Fleet");
    let (client, server) = both(&authority);
    let (near, far) = meet(&client, &server).await;
    let (mut near, (mut far, _)) = (near.unwrap(), far.unwrap());
    talk(&client, &server).await;

    client.replace(&authority.trust, Some(&authority.identity(node("node-b", 2)))).unwrap();
    assert_eq!(shows(&client.clone()).as_deref(), Some("node-b"), "clones share it");
    assert_eq!(talk(&client, &server).await, (Some("node-b".to_owned()), false));
    assert_eq!(talk(&client, &server).await, (Some("node-b".to_owned()), true));

    near.write_all(b"still here").await.unwrap();
    near.flush().await.unwrap();
    let mut said = [0; 10];
    far.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"still here");
}

#[tokio::test]
async fn identities_alternate_after_a_refusal() {
    let authority = Authority::new("Fleet");
    let (client, server) = both(&authority);
    talk(&client, &server).await;
    let foreign = Authority::new("Elsewhere").identity(node("node-new", 2));
    client.replace(&authority.trust, Some(&foreign)).unwrap();
    assert_eq!(refused(&client, &server).await.0.label(), "refused");

    client.refused();
    assert_eq!(shows(&client).as_deref(), Some("node-a"));
    assert_eq!(talk(&client, &server).await.0.as_deref(), Some("node-a"));
    client.worked();
    assert_eq!(shows(&client).as_deref(), Some("node-a"), "what works stays");
    client.refused();
    assert_eq!(
        shows(&client).as_deref(),
        Some("node-new"),
        "the new one is not forgotten: the old one expires first"
    );
    client.refused();
    assert_eq!(shows(&client).as_deref(), Some("node-a"));
}

#[tokio::test]
async fn accepted_identity_has_no_fallback() {
    let authority = Authority::new("Fleet");
    let (client, server) = both(&authority);
    client.refused();
    assert_eq!(shows(&client).as_deref(), Some("node-a"), "there is no other yet");
    client.replace(&authority.trust, Some(&authority.identity(node("node-b", 2)))).unwrap();
    talk(&client, &server).await;
    client.worked();
    client.refused();
    assert_eq!(shows(&client).as_deref(), Some("node-b"));
}

#[tokio::test]
async fn fallback_is_the_last_accepted_identity() {
    let authority = Authority::new("Fleet");
    let (client, _) = both(&authority);
    let replace = |name, serial| {
        client.replace(&authority.trust, Some(&authority.identity(node(name, serial)))).unwrap();
    };
    client.worked();
    replace("node-b", 2);
    replace("node-c", 3);
    assert_eq!(shows(&client).as_deref(), Some("node-c"));
    client.refused();
    assert_eq!(shows(&client).as_deref(), Some("node-a"), "node-b has never worked");
    replace("node-d", 4);
    client.refused();
    assert_eq!(shows(&client).as_deref(), Some("node-a"), "it was in use when node-d came");
}

#[test]
fn debug_output_contains_no_secret() {
    let authority = Authority::new("Fleet");
    let (client, server) = both(&authority);
    let identity = authority.node();
    let shown = format!("{client:?} {server:?} {:?}", identity.key());
    assert_eq!(shown, "Client { shared: Shared(..) } Server { shared: Shared(..) } Key(..)");
    assert!(format!("{identity:?}").contains("key: Key(..)"));
}
