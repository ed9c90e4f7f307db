//! The link and the embedded endpoint over TLS: accepted certificates, identities, expiry, and the
//! errors of both sides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use edgesync_broker::{BindError, Broker, BrokerOptions, Channel, DisconnectReason, FleetEvent, FleetEvents};
use edgesync_transport::link::{Cause, Link, LinkEvent, LinkHandle, LinkOptions};
use edgesync_transport::tls::{Client, Clock, Server, Subject};
use support::authority::{Authority, HOUR};
use support::fleet::{
    PATIENCE, bind, disconnect_reason, link_connected, link_event, link_message, message, next,
    node_connected, node_name, node_options,
};
use support::log::log;
use support::timing::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver};
use tracing::Level;

const UP: &str = "edgesync/v1/nodes/n-1/up";

async fn endpoint(tls: Server) -> (Broker, FleetEvents) {
    bind(BrokerOptions { tls: Some(tls), ..BrokerOptions::default() }).await
}

fn options(address: SocketAddr, node: &'static str, tls: Client) -> LinkOptions {
    let mut options = node_options(address, node);
    options.secure(tls);
    options
}

/// Returns the cause of the next disconnection.
async fn cause(events: &mut Receiver<LinkEvent>) -> Cause {
    match link_event(events).await {
        LinkEvent::Disconnected { cause, .. } => cause,
        other => panic!("{other:?} instead of Disconnected"),
    }
}

/// Returns the cause of the first failure with these options.
async fn first_cause(options: LinkOptions) -> Cause {
    let (_link, mut events) = Link::spawn(options);
    cause(&mut events).await
}

fn kind(cause: &Cause) -> &'static str {
    match cause {
        Cause::Tls { kind, .. } => kind,
        other => panic!("{other:?} instead of Tls"),
    }
}

async fn connect(options: LinkOptions) -> (LinkHandle, Receiver<LinkEvent>) {
    let (link, mut events) = Link::spawn(options);
    link_connected(&mut events).await;
    (link, events)
}

#[tokio::test]
async fn messages_pass_over_tls_and_its_bytes_are_counted() {
    let authority = Authority::new();
    let (broker, mut fleet) = endpoint(authority.server()).await;
    let tls = authority.client(&authority.node("n-1"));
    let (node, mut events) = connect(options(broker.address(), "n-1", tls)).await;
    let large = vec![7; 500_000];
    node.try_publish(UP, large.clone(), false).unwrap();
    let received = loop {
        let (name, channel, payload) = message(&mut fleet).await;
        if channel == Channel::Up {
            break (name, payload);
        }
    };
    assert_eq!(received, ("n-1".to_owned(), large.clone()));
    broker.try_publish(&node_name("n-1"), large.clone()).unwrap();
    assert_eq!(link_message(&mut events).await, ("edgesync/v1/nodes/n-1/down".to_owned(), large));
    for bytes in [node.traffic().bytes_in, broker.traffic().bytes_in] {
        // A record of 16 KiB has an overhead of 22 bytes; the handshake takes about 2 KiB.
        assert!((500_600..520_000).contains(&bytes), "{bytes}");
    }
    assert!(node.shutdown(Vec::new(), PATIENCE).await);
    assert_eq!(disconnect_reason(&mut fleet).await, DisconnectReason::ByClient);
}

#[tokio::test]
async fn bad_certificates_are_refused_and_reported_by_both_sides() {
    let (authority, other) = (Authority::new(), Authority::new());
    let revoked = authority.node("n-1");
    let rule = authority.rule(&[&revoked]);
    let server = Server::new(&authority.server_identity(), &rule, Clock::system([])).unwrap();
    let (broker, _fleet) = endpoint(server).await;
    let bad = [
        authority.client(&other.node("n-1")),
        authority.client(&authority.node_until("n-1", -2 * HOUR, -HOUR)),
        authority.client(&authority.node_until("n-1", HOUR, 2 * HOUR)),
        authority.client(&revoked),
        authority.anonymous(),
    ];
    for (number, tls) in bad.into_iter().enumerate() {
        let cause = first_cause(options(broker.address(), "n-1", tls)).await;
        assert_eq!(kind(&cause), "refused", "{number}: {cause}");
        assert!(broker.traffic().tls > number as u64, "{number}");
    }
    assert_eq!((broker.traffic().connected, broker.traffic().identity), (0, 0));
    let good = authority.client(&authority.node("n-1"));
    connect(options(broker.address(), "n-1", good)).await;
}

#[tokio::test]
async fn nodes_connect_with_clocks_past_2038() {
    const YEARS: i64 = 20 * 365 * 24 * HOUR;
    fn in_2041() -> jiff::Timestamp {
        "2041-06-01T00:00:00Z".parse().unwrap()
    }
    let authority = Authority::new();
    let identity = authority.server_for(&["127.0.0.1"], -HOUR, YEARS);
    let server = Server::new(&identity, &authority.rule(&[]), Clock::of(in_2041, [])).unwrap();
    let (broker, mut fleet) = endpoint(server).await;
    let client = |until| {
        let node = authority.node_until("n-1", -HOUR, until);
        Client::new(&authority.trust(), Some(&node), Clock::of(in_2041, [])).unwrap()
    };
    let cause = first_cause(options(broker.address(), "n-1", client(HOUR))).await;
    assert_eq!(kind(&cause), "refused", "{cause}");
    let (_node, _events) = connect(options(broker.address(), "n-1", client(YEARS))).await;
    assert_eq!(node_connected(&mut fleet).await.0, "n-1");
}

#[tokio::test]
async fn node_accepts_only_valid_certificates_of_its_server() {
    let (authority, other) = (Authority::new(), Authority::new());
    for (identity, expected) in [
        (other.server_identity(), "other-authority"),
        (authority.server_for(&["cloud.example"], -HOUR, HOUR), "other-name"),
        (authority.server_for(&["127.0.0.1"], -2 * HOUR, -HOUR), "time"),
    ] {
        let server = Server::new(&identity, &authority.rule(&[]), Clock::system([])).unwrap();
        let (broker, _fleet) = endpoint(server).await;
        let tls = authority.client(&authority.node("n-1"));
        let cause = first_cause(options(broker.address(), "n-1", tls)).await;
        assert_eq!(kind(&cause), expected, "{cause}");
    }
}

#[tokio::test]
async fn certificate_alone_identifies_the_node() {
    let authority = Authority::new();
    let (broker, mut fleet) = endpoint(authority.server()).await;
    let node = authority.client(&authority.node("n-1"));
    let with = |client_id: &str, user: Option<&str>| LinkOptions {
        client_id: client_id.to_owned(),
        username: user.map(str::to_owned),
        password: user.map(|_| "x".to_owned()),
        ..options(broker.address(), "n-1", node.clone())
    };
    let cause = first_cause(with("n-2", None)).await;
    assert!(matches!(&cause, Cause::Rejected { code: 0x85, reason } if reason.contains("'n-1'")), "{cause}");
    let cause = first_cause(with("n-1", Some("n-2"))).await;
    assert!(matches!(cause, Cause::NotAuthorized { code: 0x87, .. }), "{cause}");
    let operator = authority.client(&authority.operator(HOUR));
    let cause = first_cause(options(broker.address(), "admin", operator)).await;
    assert!(
        matches!(&cause, Cause::NotAuthorized { reason, .. } if reason.contains("system:nodes")),
        "{cause}"
    );
    let odd = Subject { common_name: "Not A Node".into(), organization: "system:nodes".into() };
    let odd = authority.client(&authority.issue(&odd, &[], -HOUR, HOUR));
    let cause = first_cause(options(broker.address(), "n-1", odd)).await;
    assert!(matches!(cause, Cause::NotAuthorized { .. }), "{cause}");
    assert!(broker.traffic().identity >= 4, "{:?}", broker.traffic());
    assert_eq!(broker.traffic().connected, 0);
    let (_link, _events) = connect(with("", Some("n-1"))).await;
    assert_eq!(node_connected(&mut fleet).await.0, "n-1");
}

#[tokio::test]
async fn topics_of_other_nodes_are_refused_to_an_enrolled_node() {
    let authority = Authority::new();
    let (broker, _fleet) = endpoint(authority.server()).await;
    let tls = authority.client(&authority.node("n-1"));
    for filter in ["edgesync/v1/nodes/n-2/down", "edgesync/v1/nodes/+/up", "#"] {
        let asked = options(broker.address(), "n-1", tls.clone());
        let cause = first_cause(LinkOptions { subscriptions: vec![filter.to_owned()], ..asked }).await;
        assert!(matches!(cause, Cause::SubscriptionRefused { code: 0x87, .. }), "{cause}");
    }
    let before = broker.traffic().unauthorized;
    assert!(before >= 3, "{before}");
    let (link, mut events) = connect(options(broker.address(), "n-1", tls)).await;
    for topic in ["edgesync/v1/nodes/n-2/up", "edgesync/v1/nodes/n-1/down", "edgesync/v1/cloud"] {
        link.try_publish(topic, b"forged".to_vec(), false).unwrap();
        let refused = loop {
            if let LinkEvent::Rejected { topic, code, .. } = link_event(&mut events).await {
                break (topic, code);
            }
        };
        assert_eq!(refused, (topic.to_owned(), 0x87));
    }
    assert_eq!(broker.traffic().unauthorized, before + 3);
}

#[tokio::test]
async fn revoked_node_is_disconnected_and_others_stay() {
    let authority = Authority::new();
    let server = authority.server();
    let (broker, mut fleet) = endpoint(server.clone()).await;
    let revoked = authority.node("n-1");
    let (_one, mut one) = connect(options(broker.address(), "n-1", authority.client(&revoked))).await;
    let two = authority.client(&authority.node("n-2"));
    let (two, _events) = connect(options(broker.address(), "n-2", two)).await;

    let rule = authority.rule(&[&revoked]);
    server.replace(&authority.server_identity(), &rule).unwrap();
    assert!(broker.disconnect(&node_name("n-1")));
    assert!(!broker.disconnect(&node_name("n-3")));
    assert_eq!(disconnect_reason(&mut fleet).await, DisconnectReason::Revoked);
    let why = loop {
        if let LinkEvent::Disconnected { cause, .. } = link_event(&mut one).await {
            break cause;
        }
    };
    assert!(matches!(why, Cause::NotAuthorized { code: 0x87, .. }), "{why}");
    // A TLS session from before the revocation is not resumed either.
    assert_eq!(kind(&cause(&mut one).await), "refused");
    assert_eq!((broker.traffic().revoked, two.traffic().disconnected), (1, 0));
    two.try_publish("edgesync/v1/nodes/n-2/up", b"here".to_vec(), false).unwrap();
    while message(&mut fleet).await.2 != b"here" {}
}

#[tokio::test]
async fn connection_ends_when_its_certificate_expires() {
    let authority = Authority::new();
    let (broker, mut fleet) = endpoint(authority.server()).await;
    let started = Instant::now();
    let tls = authority.client(&authority.node_until("n-1", -HOUR, 3));
    let (_link, mut events) = connect(options(broker.address(), "n-1", tls)).await;
    assert_eq!(disconnect_reason(&mut fleet).await, DisconnectReason::Expired);
    assert!(started.elapsed() > Duration::from_secs(1), "{:?}", started.elapsed());
    let why = loop {
        if let LinkEvent::Disconnected { cause, .. } = link_event(&mut events).await {
            break cause;
        }
    };
    assert!(matches!(why, Cause::NotAuthorized { .. }), "{why}");
    // A resumed session is refused after its handshake, where no alert can be sent. The next
    // attempt is a full handshake, and the client receives the alert.
    let why = loop {
        match cause(&mut events).await {
            Cause::Closed | Cause::Network { .. } => {}
            why => break why,
        }
    };
    assert_eq!(kind(&why), "refused", "{why}");
    assert_eq!((broker.traffic().expired, broker.traffic().connected), (1, 1));
}

#[tokio::test]
async fn refused_identity_falls_back_to_the_previous_one() {
    let authority = Authority::new();
    let (broker, mut fleet) = endpoint(authority.server()).await;
    let tls = authority.client(&authority.node("n-1"));
    let (link, mut events) = connect(options(broker.address(), "n-1", tls.clone())).await;
    tls.replace(&authority.trust(), Some(&Authority::new().node("n-1"))).unwrap();
    link.give_up();
    let mut refused = 0;
    loop {
        match link_event(&mut events).await {
            LinkEvent::Disconnected { cause: Cause::Tls { kind, .. }, .. } => {
                assert_eq!(kind, "refused");
                refused += 1;
            }
            LinkEvent::Connected { .. } => break,
            _ => {}
        }
    }
    assert_eq!(refused, 1);
    assert_eq!(node_connected(&mut fleet).await.0, "n-1");
}

#[tokio::test]
async fn tls_mismatch_is_reported_on_each_side() {
    let authority = Authority::new();
    let (secure, _fleet) = endpoint(authority.server()).await;
    let cause = first_cause(node_options(secure.address(), "n-1")).await;
    assert!(matches!(&cause, Cause::Protocol { detail } if detail.contains("mqtts://")), "{cause}");
    let (plain, _fleet) = bind(BrokerOptions::default()).await;
    let tls = authority.client(&authority.node("n-1"));
    // A broker without TLS closes the connection because it sees no CONNECT; a plain response would
    // identify it.
    let cause = first_cause(options(plain.address(), "n-1", tls.clone())).await;
    assert!(matches!(cause, Cause::Tls { .. } | Cause::Network { .. } | Cause::Closed), "{cause}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    assert_eq!(kind(&first_cause(options(address, "n-1", tls)).await), "not-tls");
}

#[tokio::test]
async fn garbage_and_silent_clients_are_closed_without_delays() {
    let authority = Authority::new();
    let limits = BrokerOptions {
        tls: Some(authority.server()),
        connect_timeout: Duration::from_secs(1),
        ..BrokerOptions::default()
    };
    let (broker, mut fleet) = bind(limits).await;
    let mut silent = TcpStream::connect(broker.address()).await.unwrap();
    let mut slow = TcpStream::connect(broker.address()).await.unwrap();
    // The start of a TLS handshake that never continues.
    slow.write_all(&[22, 3, 1, 2, 0, 1, 0]).await.unwrap();
    let mut garbage = TcpStream::connect(broker.address()).await.unwrap();
    garbage.write_all(&[0xff; 300]).await.unwrap();
    let tls = authority.client(&authority.node("n-1"));
    let (_link, _events) = connect(options(broker.address(), "n-1", tls.clone())).await;
    assert_eq!(node_connected(&mut fleet).await.0, "n-1");
    for stream in [&mut silent, &mut slow, &mut garbage] {
        let mut rest = Vec::new();
        // The end of the stream, or a reset because of unread data; at most an alert precedes it.
        let _ = within("it is closed", PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(rest.len() <= 7, "{rest:?}");
    }
    assert!(broker.traffic().tls >= 1);
    let silence = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let asked = options(silence.local_addr().unwrap(), "n-1", tls);
    let cause = first_cause(LinkOptions { connect_timeout: Duration::from_millis(300), ..asked }).await;
    assert!(matches!(cause, Cause::ConnectTimeout { .. }), "{cause}");
}

/// Returns the next log line about a connection.
async fn of_a_peer(lines: &mut UnboundedReceiver<String>) -> String {
    loop {
        let line = within("a line is logged", PATIENCE, lines.recv()).await.unwrap();
        if line.contains("peer=") {
            return line;
        }
    }
}

#[tokio::test]
async fn port_probes_are_not_counted_as_refused() {
    let (_logging, mut lines) = log(Level::DEBUG);
    let authority = Authority::new();
    let (broker, _fleet) = endpoint(authority.server()).await;
    let connect = || TcpStream::connect(broker.address());
    let node = authority.client(&authority.node("n-1"));
    drop(connect().await.unwrap());
    let abrupt = node.connect("localhost", connect().await.unwrap()).await.unwrap();
    drop(abrupt);
    let mut polite = node.connect("localhost", connect().await.unwrap()).await.unwrap();
    polite.shutdown().await.unwrap();
    for _ in 0..3 {
        let line = of_a_peer(&mut lines).await;
        assert!(line.contains("DEBUG") && line.contains("closed without data"), "{line}");
    }
    assert_eq!((broker.traffic().refused, broker.traffic().tls), (0, 0));
    // A client that stops in the middle of a packet is refused, with an error of this program.
    let mut half = node.connect("localhost", connect().await.unwrap()).await.unwrap();
    half.write_all(b"\x10\x0e\0").await.unwrap();
    half.shutdown().await.unwrap();
    let line = of_a_peer(&mut lines).await;
    assert!(line.contains("INFO") && line.contains("closed during CONNECT"), "{line}");
    assert_eq!(broker.traffic().refused, 1);
}

#[tokio::test]
async fn endpoint_requires_tls_beyond_loopback() {
    let everywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let Err(refused) = Broker::bind(everywhere, BrokerOptions::default()).await else { panic!("it listens") };
    assert!(matches!(refused, BindError::NotLoopback { .. }), "{refused}");
    assert!(refused.to_string().contains("broker.tls"), "{refused}");
    let authority = Authority::new();
    let tls = Some(authority.server());
    let (broker, mut fleet) =
        Broker::bind(everywhere, BrokerOptions { tls, ..BrokerOptions::default() }).await.unwrap();
    assert!(matches!(next(&mut fleet).await, FleetEvent::Open { .. }));
    let address = SocketAddr::from(([127, 0, 0, 1], broker.address().port()));
    connect(options(address, "n-1", authority.client(&authority.node("n-1")))).await;
}
