//! The WebSocket client against a scripted CloudCore and a bad network.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use edgesync_kubeedge::link as kubeedge;
use edgesync_kubeedge::link::KubeEdgeOptions;
use edgesync_transport::link::{Cause, LinkEvent, LinkHandle, Publish, PublishError};
use support::links::{PATIENCE, cause, connected, message, next};
use support::timing::scaled;
use support::websocket::{
    BINARY, CLOSE, CONTINUATION, PING, PONG, Peer, TEXT, encoded, header, listen, options,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc::Receiver;

/// The captured request of a stock edgecore.
const CAPTURED: &str = "GET /e632aba927ea4ac2b575ec1603d56f10/edgea/events HTTP/1.1\r\n\
    Host: 127.0.0.1:11000\r\n\
    User-Agent: Go-http-client/1.1\r\n\
    Connection: Upgrade\r\n\
    Connectionuse: msg\r\n\
    Node_id: edgea\r\n\
    Project_id: e632aba927ea4ac2b575ec1603d56f10\r\n\
    Sec-WebSocket-Key: 4M88IhUS7dmDlNih3v7gng==\r\n\
    Sec-WebSocket-Version: 13\r\n\
    Upgrade: websocket\r\n\r\n";

/// Returns a link with these options, connected to a peer.
async fn joined(
    change: impl FnOnce(&mut KubeEdgeOptions),
) -> (LinkHandle, Receiver<LinkEvent>, Peer, TcpListener) {
    let (listener, address) = listen().await;
    let mut options = options(address);
    change(&mut options);
    let (link, mut events) = edgesync_kubeedge::link::spawn(options);
    let peer = Peer::accept(&listener).await;
    connected(&mut events).await;
    (link, events, peer, listener)
}

fn text(payload: &[u8]) -> (String, Vec<u8>) {
    (kubeedge::TEXT.to_owned(), payload.to_vec())
}

#[tokio::test]
async fn upgrade_request_equals_the_captured_one() {
    let (listener, address) = listen().await;
    let (_link, _events) = edgesync_kubeedge::link::spawn(options(address));
    let (_peer, request) = Peer::asked(&listener).await;
    assert_eq!(request.lines().next(), CAPTURED.lines().next());
    let names = |request: &str| -> BTreeSet<String> {
        let lines = request.lines().filter_map(|line| line.split_once(": "));
        lines.map(|(name, _)| name.to_ascii_lowercase()).collect()
    };
    assert_eq!(names(&request), names(CAPTURED), "no header more, none less");
    let own = ["host", "user-agent", "sec-websocket-key"];
    for name in names(CAPTURED).iter().filter(|name| !own.contains(&name.as_str())) {
        assert_eq!(header(&request, name), header(CAPTURED, name), "{name}");
    }
    assert_eq!(header(&request, "host"), Some(address.to_string().as_str()));
    assert_eq!(header(&request, "user-agent"), Some(concat!("edgesync/", env!("CARGO_PKG_VERSION"))));
}

#[tokio::test]
async fn fragmented_large_message_arrives_whole() {
    let (_link, mut events, mut peer, _listener) = joined(|_| {}).await;
    // Two bytes per character: some fragments end within a character.
    let large = "é".repeat(5 << 19).into_bytes();
    peer.fragmented(&large, 4081).await;
    peer.frame(BINARY, b"small").await;
    assert!(message(&mut events).await == text(&large));
    assert_eq!(message(&mut events).await, text(b"small"));
}

#[tokio::test]
async fn message_above_the_limit_closes_with_both_sizes() {
    let (_link, mut events, mut peer, listener) = joined(|options| options.max_message = 10_000).await;
    peer.fragmented(&[b'a'; 10_000], 4082).await;
    assert_eq!(message(&mut events).await.1.len(), 10_000);
    for part in [TEXT, CONTINUATION, CONTINUATION] {
        peer.raw(&encoded(false, part, &[b'a'; 4000])).await;
    }
    let detail = "message of at least 12000 bytes exceeds the limit of 10000".to_owned();
    assert_eq!(cause(&mut events).await, Cause::PacketTooLarge { detail });

    let mut peer = Peer::accept(&listener).await;
    connected(&mut events).await;
    // Refused by the length in its header, before any payload.
    peer.raw(&encoded(true, TEXT, &[0; 70_000])[..10]).await;
    let detail = "message of at least 70000 bytes exceeds the limit of 10000".to_owned();
    assert_eq!(cause(&mut events).await, Cause::PacketTooLarge { detail });
}

#[tokio::test]
async fn truncated_message_is_not_delivered() {
    let (_link, mut events, mut peer, listener) = joined(|_| {}).await;
    peer.raw(&encoded(false, TEXT, b"first half")).await;
    let second = encoded(true, CONTINUATION, b"second half");
    peer.raw(&second[..second.len() - 3]).await;
    drop(peer);
    assert!(matches!(cause(&mut events).await, Cause::Closed | Cause::Network { .. }));
    let mut peer = Peer::accept(&listener).await;
    connected(&mut events).await;
    peer.frame(TEXT, b"whole").await;
    assert_eq!(message(&mut events).await, text(b"whole"));
}

#[tokio::test]
async fn message_arriving_byte_by_byte_keeps_the_connection() {
    let keepalive = scaled(Duration::from_millis(100));
    let (_link, mut events, mut peer, _listener) = joined(|options| options.keepalive = keepalive).await;
    let ping = peer.pinged().await;
    peer.frame(PONG, &ping).await;
    let mut pace = tokio::time::interval(keepalive / 5);
    let slow = encoded(true, TEXT, &[b's'; 30]);
    for byte in slow {
        pace.tick().await;
        peer.raw(&[byte]).await;
    }
    assert_eq!(message(&mut events).await, text(&[b's'; 30]));
}

#[tokio::test]
async fn silent_peer_is_dead_after_two_keepalives() {
    let keepalive = scaled(Duration::from_millis(200));
    let (link, mut events, mut peer, listener) = joined(|options| options.keepalive = keepalive).await;
    let ping = peer.pinged().await;
    let last = Instant::now();
    peer.frame(PONG, &ping).await;
    assert_eq!(cause(&mut events).await, Cause::KeepAlive { silent: 2 * keepalive });
    assert!(last.elapsed() >= 2 * keepalive, "{:?}", last.elapsed());
    assert!(link.traffic().round_trip.is_some());

    // The peer is known to answer pings, so the same limit applies to the next connection.
    let mute = Peer::accept(&listener).await;
    connected(&mut events).await;
    assert_eq!(cause(&mut events).await, Cause::KeepAlive { silent: 2 * keepalive });
    drop((mute, peer));
}

#[tokio::test]
async fn server_that_answers_no_pings_stays_connected() {
    let (_link, mut events, mut peer, _listener) =
        joined(|options| options.keepalive = scaled(Duration::from_millis(100))).await;
    for _ in 0..6 {
        peer.pinged().await;
    }
    peer.frame(TEXT, b"still here").await;
    assert_eq!(message(&mut events).await, text(b"still here"));
}

#[tokio::test]
async fn peer_that_stops_reading_times_out_but_is_read_until_then() {
    let keepalive = scaled(Duration::from_millis(300));
    let (link, mut events, mut peer, _listener) = joined(|options| options.keepalive = keepalive).await;
    // More than the buffers of a loopback connection hold.
    link.try_publish(kubeedge::TEXT, vec![b'x'; 31 << 20], false).unwrap();
    peer.frame(TEXT, b"heard").await;
    assert_eq!(message(&mut events).await, text(b"heard"));
    assert_eq!(cause(&mut events).await, Cause::KeepAlive { silent: 2 * keepalive });
    assert_eq!(link.traffic().discarded, 1);
}

#[tokio::test]
async fn stalled_consumer_loses_the_connection() {
    let (link, mut events, mut peer, _listener) = joined(|options| {
        options.keepalive = scaled(Duration::from_millis(100));
        options.events = 1;
    })
    .await;
    for _ in 0..3 {
        peer.frame(TEXT, b"m").await;
    }
    // The consumer has not taken the first message, and the second waits for the queue: it is lost
    // with the connection.
    while peer.next().await.is_some() {}
    assert_eq!(message(&mut events).await, text(b"m"));
    assert!(matches!(cause(&mut events).await, Cause::ConsumerStalled { .. }));
    assert_eq!(link.traffic().stalled, 1);
}

#[tokio::test]
async fn repeatedly_closed_connections_count_as_a_takeover() {
    let (_link, mut events, mut peer, listener) = joined(|_| {}).await;
    for _ in 0..2 {
        drop(peer);
        assert!(matches!(cause(&mut events).await, Cause::Closed | Cause::Network { .. }));
        peer = Peer::accept(&listener).await;
        connected(&mut events).await;
    }
    drop(peer);
    match next(&mut events).await {
        LinkEvent::Disconnected { cause, retry_in } => {
            assert_eq!(cause, Cause::TakenOver { client_id: "edgea".to_owned() });
            assert!(retry_in >= Duration::from_secs(300), "{retry_in:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn repeated_server_restarts_do_not_count_as_a_takeover() {
    let (_link, mut events, mut peer, listener) = joined(|_| {}).await;
    for _ in 0..4 {
        drop(peer);
        assert!(matches!(cause(&mut events).await, Cause::Closed | Cause::Network { .. }));
        let (mut starting, _) = Peer::asked(&listener).await;
        starting.raw(b"HTTP/1.1 503 Service Unavailable\r\n\r\n").await;
        assert!(matches!(cause(&mut events).await, Cause::Upgrade { .. }));
        peer = Peer::accept(&listener).await;
        connected(&mut events).await;
    }
}

#[tokio::test]
async fn refused_upgrade_reports_status_and_advice() {
    let (listener, address) = listen().await;
    let (_link, mut events) = edgesync_kubeedge::link::spawn(options(address));
    let answers = [
        ("HTTP/1.1 400 Bad Request\r\n\r\nno", "400 Bad Request ('no'): ", "proxy"),
        ("HTTP/1.1 401 Unauthorized\r\n\r\n", "401 Unauthorized: ", "certificate"),
        ("HTTP/1.1 403 Forbidden\r\n\r\n", "403 Forbidden: ", "certificate"),
        ("HTTP/1.1 404 Not Found\r\n\r\n404: Page Not Found", "('404: Page Not Found'): ", "10002"),
        ("HTTP/1.1 200 OK\r\n\r\n", "200 OK: ", "port"),
        ("HTTP/1.0 400 Bad Request\r\n\r\n", "old HTTP", "TLS"),
        ("SSH-2.0-OpenSSH_9.9\r\n", "does not speak HTTP", "10000"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            "Accept",
            "",
        ),
    ];
    for (answer, says, advises) in answers {
        let (mut peer, _) = Peer::asked(&listener).await;
        peer.raw(answer.as_bytes()).await;
        match cause(&mut events).await {
            Cause::Upgrade { peer, reason } => {
                assert_eq!(peer, address.to_string());
                assert!(reason.contains(says) && reason.contains(advises), "{answer}: {reason}");
            }
            other => panic!("{answer}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn pings_and_pongs_of_both_sides_are_handled() {
    let (link, mut events, mut peer, _listener) = joined(|_| {}).await;
    let own = peer.pinged().await;
    peer.frame(PONG, &own).await;
    link.try_publish(kubeedge::PING, b"7".to_vec(), false).unwrap();
    assert_eq!(peer.pinged().await, b"7");
    peer.frame(PONG, b"7").await;
    // The link consumes the pong that answers its ping.
    assert_eq!(message(&mut events).await, (kubeedge::PONG.to_owned(), b"7".to_vec()));
    peer.frame(PING, b"theirs").await;
    let answer = peer.next().await.unwrap();
    assert_eq!((answer.kind, answer.payload), (PONG, b"theirs".to_vec()));
}

#[tokio::test]
async fn unsendable_messages_are_returned() {
    let (link, mut events, _peer, _listener) = joined(|options| options.max_message = 2000).await;
    let room = link.max_payload(kubeedge::TEXT);
    assert!((1900..=2000).contains(&room), "{room}");
    let large = link.try_publish(kubeedge::TEXT, vec![b'a'; 2001], false);
    assert!(matches!(large, Err(PublishError::TooLarge { .. })));
    for (topic, length, refused) in [("other", 1, 0x90), (kubeedge::PING, 126, 0x95)] {
        link.try_publish(topic, vec![b'a'; length], false).unwrap();
        match next(&mut events).await {
            LinkEvent::Rejected { topic: of, code, .. } => assert_eq!((of.as_str(), code), (topic, refused)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(link.traffic().rejected, 2);
}

#[tokio::test]
async fn close_frame_is_answered_and_its_reason_reported() {
    let (_link, mut events, mut peer, _listener) = joined(|_| {}).await;
    peer.frame(CLOSE, &[&1002_u16.to_be_bytes()[..], b"bad\nframe"].concat()).await;
    let answer = peer.message().await.unwrap();
    assert_eq!((answer.kind, &answer.payload[..2]), (CLOSE, &1002_u16.to_be_bytes()[..]));
    drop(peer);
    assert_eq!(cause(&mut events).await, Cause::Parted { reason: "1002 badframe".to_owned() });
}

#[tokio::test]
async fn given_up_connection_is_closed_and_reopened() {
    let (link, mut events, mut peer, listener) = joined(|_| {}).await;
    link.give_up();
    let close = peer.message().await.unwrap();
    assert_eq!((close.kind, close.payload), (CLOSE, 1000_u16.to_be_bytes().to_vec()));
    peer.frame(CLOSE, &1000_u16.to_be_bytes()).await;
    assert_eq!(cause(&mut events).await, Cause::Unanswered);
    let _peer = Peer::accept(&listener).await;
    connected(&mut events).await;
}

#[tokio::test]
async fn shutdown_sends_the_queue_and_reports_its_arrival() {
    for answered in [true, false] {
        let (link, _events, mut peer, _listener) = joined(|_| {}).await;
        let large = vec![b'l'; 3 << 20];
        link.try_publish(kubeedge::TEXT, large.clone(), false).unwrap();
        for number in 0..100_u8 {
            link.try_publish(kubeedge::TEXT, vec![b'0' + number % 10], false).unwrap();
        }
        let last = Publish { topic: kubeedge::TEXT.to_owned(), payload: b"bye".to_vec(), retain: false };
        let limit = if answered { PATIENCE } else { scaled(Duration::from_millis(500)) };
        let ended = tokio::spawn(async move { link.shutdown(vec![last], limit).await });
        assert!(peer.message().await.unwrap().payload == large);
        for number in 0..100_u8 {
            assert_eq!(peer.message().await.unwrap().payload, [b'0' + number % 10]);
        }
        assert_eq!(peer.message().await.unwrap().payload, b"bye");
        assert_eq!(peer.message().await.unwrap().kind, CLOSE);
        if answered {
            peer.frame(CLOSE, &1000_u16.to_be_bytes()).await;
        }
        assert_eq!(ended.await.unwrap(), answered);
    }
}

#[tokio::test]
async fn traffic_is_counted() {
    let (link, mut events, mut peer, listener) = joined(|_| {}).await;
    assert_eq!(link.try_publish(kubeedge::TEXT, b"out".to_vec(), false), Ok(()));
    assert_eq!(peer.message().await.unwrap().payload, b"out");
    peer.frame(TEXT, &[b'i'; 1000]).await;
    message(&mut events).await;
    let traffic = link.traffic();
    assert_eq!((traffic.messages_in, traffic.messages_out, traffic.connected), (1, 1, 1));
    // Upgrade, ping and message; response, pong and message.
    assert!((300..500).contains(&traffic.bytes_out), "{traffic:?}");
    assert!((1000 + 129..1000 + 200).contains(&traffic.bytes_in), "{traffic:?}");
    drop((peer, listener));
    let lost = cause(&mut events).await;
    let refused = cause(&mut events).await;
    assert!(matches!(refused, Cause::Refused { .. }), "{refused}");
    assert_eq!(link.try_publish(kubeedge::TEXT, Vec::new(), false), Err(PublishError::NotConnected));
    let endings = link.endings();
    assert_eq!((endings.lost[lost.index()], endings.failed[lost.index()]), (1, 0));
    assert!(endings.failed[refused.index()] >= 1);
}

mod tls {
    use edgesync_transport::tls::{Client, Server};

    use super::support::authority::Authority;
    use super::*;

    /// Returns the cause of the first failure with this client and this server.
    async fn refused(client: Client, server: Server) -> Cause {
        let (listener, address) = listen().await;
        let (_link, mut events) =
            edgesync_kubeedge::link::spawn(KubeEdgeOptions { tls: Some(client), ..options(address) });
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            server.accept(stream).await.is_err()
        });
        let cause = cause(&mut events).await;
        assert!(serving.await.unwrap(), "{cause}");
        cause
    }

    #[tokio::test]
    async fn mutual_tls_carries_large_messages_both_ways() {
        let authority = Authority::new();
        let (listener, address) = listen().await;
        let tls = Some(authority.client(&authority.node("edgea")));
        let (link, mut events) = edgesync_kubeedge::link::spawn(KubeEdgeOptions { tls, ..options(address) });
        let (stream, certificate) =
            authority.server().accept(listener.accept().await.unwrap().0).await.unwrap();
        assert_eq!(certificate.unwrap().node(), Some("edgea"));
        let mut peer = Peer::over(stream);
        let request = peer.request().await;
        peer.upgrade(&request).await;
        connected(&mut events).await;
        let large = vec![b'l'; 2 << 20];
        link.try_publish(kubeedge::TEXT, large.clone(), false).unwrap();
        assert!(peer.message().await.unwrap().payload == large);
        peer.fragmented(&large, 4082).await;
        assert!(message(&mut events).await == text(&large));
        drop(peer);
        assert!(matches!(cause(&mut events).await, Cause::Closed | Cause::Network { .. }));
    }

    #[tokio::test]
    async fn refused_certificate_is_the_reported_cause() {
        let (authority, other) = (Authority::new(), Authority::new());
        for client in [authority.client(&other.node("edgea")), authority.anonymous()] {
            match refused(client, authority.server()).await {
                Cause::Tls { kind, message, .. } => assert_eq!(kind, "refused", "{message}"),
                cause => panic!("{cause:?}"),
            }
        }
        match refused(other.client(&other.node("edgea")), authority.server()).await {
            Cause::Tls { kind, .. } => assert_eq!(kind, "other-authority"),
            cause => panic!("{cause:?}"),
        }
    }
}
