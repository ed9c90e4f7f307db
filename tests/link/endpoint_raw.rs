//! The embedded endpoint with clients that send malformed packets, too much, or nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use edgesync_broker::{BrokerOptions, DisconnectReason};
use edgesync_transport::link::Link;
use edgesync_transport::link::PublishError;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    ConnAck, Connect, ConnectReturnCode, DisconnectReasonCode, Filter, LastWill, Packet, PingReq,
    PubAckReason, Subscribe, SubscribeReasonCode, UnsubAckReason, Unsubscribe,
};
use support::fleet::{
    PATIENCE, bind, disconnect_reason, link_connected, link_message, message, node_name, node_options,
};
use support::log::log;
use support::scripted_broker::Peer;
use support::timing::{assert_within, is_within, within};
use tokio::task::{spawn_blocking, yield_now};
use tracing::Level;

/// Runs a raw client in its own thread, beside the endpoint.
async fn raw<T: Send + 'static>(
    address: SocketAddr,
    talk: impl FnOnce(&mut Peer) -> T + Send + 'static,
) -> T {
    spawn_blocking(move || talk(&mut Peer::dial(address))).await.unwrap()
}

fn connect_packet(client_id: &str, keep_alive: u16) -> Packet {
    let connect =
        Connect { keep_alive, client_id: client_id.to_owned(), clean_start: true, properties: None };
    Packet::Connect(connect, None, None)
}

fn join(peer: &mut Peer, client_id: &str, keep_alive: u16) -> ConnAck {
    peer.send(&connect_packet(client_id, keep_alive));
    match peer.expect() {
        Packet::ConnAck(connack) => connack,
        other => panic!("{other:?} instead of CONNACK"),
    }
}

fn disconnected(peer: &mut Peer) -> DisconnectReasonCode {
    loop {
        match peer.expect() {
            Packet::Disconnect(disconnect) => return disconnect.reason_code,
            Packet::Publish(_) | Packet::PubAck(_) => {}
            other => panic!("{other:?} instead of DISCONNECT"),
        }
    }
}

fn subscribe(peer: &mut Peer, filters: &[&str]) -> Vec<SubscribeReasonCode> {
    let filters = filters.iter().map(|filter| Filter::new(*filter, QoS::AtLeastOnce));
    peer.send(&Packet::Subscribe(Subscribe { pkid: 7, filters: filters.collect(), properties: None }));
    match peer.expect() {
        Packet::SubAck(suback) if suback.pkid == 7 => suback.return_codes,
        other => panic!("{other:?} instead of SUBACK"),
    }
}

const UP: &str = "edgesync/v1/nodes/n-1/up";

#[tokio::test]
async fn other_mqtt_versions_are_refused_in_their_own_format() {
    let (broker, _fleet) = bind(BrokerOptions::default()).await;
    let answers: [(&'static [u8], &'static [u8]); 5] = [
        (b"\x10\x0d\0\x04MQTT\x04\x02\0\x14\0\x01a", b"\x20\x02\0\x01"),
        (b"\x10\x0f\0\x06MQIsdp\x03\x02\0\x14\0\x01a", b"\x20\x02\0\x01"),
        // A packet other than CONNECT first, and a protocol other than MQTT.
        (b"\xc0\0", b""),
        (b"GET / HTTP/1.1\r\n\r\n", b""),
        (b"\x30\x03\0\x01a", b""),
    ];
    for (bytes, expected) in answers {
        let answer = raw(broker.address(), move |peer| {
            peer.send_bytes(bytes);
            peer.read_to_end()
        });
        assert_eq!(answer.await, expected, "{bytes:?}");
    }
    let code = raw(broker.address(), |peer| {
        peer.send_bytes(b"\x10\x0e\0\x04MQTT\x06\x02\0\x14\0\0\x01a");
        peer.expect()
    });
    let Packet::ConnAck(connack) = code.await else { panic!() };
    assert_eq!(connack.code, ConnectReturnCode::UnsupportedProtocolVersion);
    assert_eq!(broker.traffic().refused, 6);
    assert_eq!(broker.traffic().malformed, 6);
    assert_eq!(broker.traffic().connected, 0);
}

#[tokio::test]
async fn connack_announces_the_endpoints_capabilities() {
    let options =
        BrokerOptions { max_packet: 5000, max_keepalive: Duration::from_secs(30), ..Default::default() };
    let (broker, _fleet) = bind(options).await;
    let connack = raw(broker.address(), |peer| join(peer, "", 0)).await;
    assert_eq!(connack.code, ConnectReturnCode::Success);
    let properties = connack.properties.unwrap();
    assert_eq!(properties.max_qos, Some(1));
    assert_eq!(properties.max_packet_size, Some(5000));
    assert_eq!(properties.server_keep_alive, Some(30));
    assert_eq!(properties.shared_subscription_available, Some(0));
    assert!(properties.assigned_client_identifier.is_some());
    let refused = raw(broker.address(), |peer| join(peer, "Not A Node", 5)).await;
    assert_eq!(refused.code, ConnectReturnCode::ClientIdentifierNotValid);
    assert!(refused.properties.unwrap().reason_string.unwrap().contains("DNS-1123"));
}

#[tokio::test]
async fn subscriptions_are_answered_per_filter_and_can_be_removed() {
    let (broker, _fleet) = bind(BrokerOptions::default()).await;
    let address = broker.address();
    let codes = raw(address, |peer| {
        join(peer, "n-1", 30);
        let down = "edgesync/v1/nodes/n-1/down";
        let codes = subscribe(peer, &[down, "edgesync/v1/nodes/n-2/down", "#", "a#", "$share/g/x"]);
        let filters = vec![down.to_owned(), down.to_owned()];
        peer.send(&Packet::Unsubscribe(Unsubscribe { pkid: 9, filters, properties: None }));
        let Packet::UnsubAck(unsuback) = peer.expect() else { panic!() };
        (codes, unsuback.pkid, unsuback.reasons)
    });
    use SubscribeReasonCode as Code;
    let (codes, id, reasons) = codes.await;
    let expected = [
        Code::Success(QoS::AtLeastOnce),
        Code::NotAuthorized,
        Code::NotAuthorized,
        Code::TopicFilterInvalid,
        Code::SharedSubscriptionsNotSupported,
    ];
    assert_eq!(codes, expected);
    assert_eq!(id, 9);
    assert_eq!(reasons, [UnsubAckReason::Success, UnsubAckReason::NoSubscriptionExisted]);
}

#[tokio::test]
async fn log_lines_about_a_misbehaving_node_are_rate_limited() {
    let (_logging, mut lines) = log(Level::INFO);
    let started = Instant::now();
    let (broker, _fleet) = bind(BrokerOptions::default()).await;
    let address = broker.address();
    raw(address, |peer| {
        join(peer, "n-1", 30);
        for _ in 0..10 {
            let codes = subscribe(peer, &["edgesync/v1/nodes/n-2/down\nINFO forged"; 100]);
            assert_eq!(codes, [SubscribeReasonCode::NotAuthorized; 100]);
        }
    })
    .await;
    for _ in 0..400 {
        raw(address, |peer| join(peer, "n-1", 30)).await;
    }
    drop(broker);
    let mut written = Vec::new();
    while let Ok(line) = lines.try_recv() {
        written.push(line);
    }
    // The next line of the same kind reports the number of suppressed lines.
    let times = 1 + started.elapsed().as_secs() as usize / 10;
    let of = |text: &str| written.iter().filter(|line| line.contains(text)).count();
    assert!((1..=times).contains(&of("foreign filter refused")), "{}", of("foreign filter refused"));
    let moves = of("node connected") + of("node disconnected") + of("taken over by a newer connection");
    assert!((100..=200 * times).contains(&moves), "{moves}");
    assert!(written.iter().all(|line| !line.starts_with("INFO forged")), "a line is forged");
}

#[tokio::test]
async fn messages_are_accepted_echoed_or_refused_by_topic() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    let codes = raw(broker.address(), |peer| {
        join(peer, "n-1", 30);
        subscribe(peer, &["edgesync/v1/nodes/n-1/#"]);
        let mut codes = Vec::new();
        for topic in [UP, "edgesync/v1/nodes/n-2/up", "edgesync/v1/cloud", "edgesync/v1/nodes/n-1/down"] {
            peer.publish(topic, b"x", 5);
            let Packet::PubAck(puback) = peer.expect() else { panic!("no PUBACK for {topic}") };
            assert_eq!(puback.pkid, 5);
            codes.push(puback.reason);
            if topic == UP {
                let Packet::Publish(echo) = peer.expect() else { panic!("no echo") };
                assert_eq!((&echo.topic[..], &echo.payload[..]), (UP.as_bytes(), &b"x"[..]));
                peer.acknowledge(echo.pkid, PubAckReason::Success);
            }
        }
        codes
    });
    use PubAckReason as Reason;
    let refused = Reason::NotAuthorized;
    assert_eq!(codes.await, [Reason::Success, refused, refused, refused]);
    assert_eq!(message(&mut fleet).await.2, b"x");
    assert_eq!(broker.traffic().unauthorized, 3);
}

#[tokio::test]
async fn protocol_violations_are_answered_with_a_reason_and_counted() {
    use DisconnectReasonCode as Code;
    let options = BrokerOptions { max_packet: 2000, ..Default::default() };
    let (broker, mut fleet) = bind(options).await;
    let cases: [(&'static [u8], Code); 7] = [
        (b"\x34\x07\0\x01a\0\x01\0x", Code::QoSNotSupported),
        (b"\x30\xff\xff\x7f", Code::PacketTooLarge),
        (b"\x10\x0e\0\x04MQTT\x05\x02\0\x14\0\0\x01a", Code::ProtocolError),
        (b"\x40\x02\0\x09", Code::ProtocolError),
        (b"\x80\x02\0\x01", Code::MalformedPacket),
        (b"\xf0\x02\0\0", Code::MalformedPacket),
        (b"\x30\x08\0\x01a\x03\x23\0\x01x", Code::TopicAliasInvalid),
    ];
    for (bytes, expected) in cases {
        let code = raw(broker.address(), move |peer| {
            join(peer, "n-1", 30);
            peer.send_bytes(bytes);
            disconnected(peer)
        });
        assert_eq!(code.await, expected, "{bytes:x?}");
        disconnect_reason(&mut fleet).await;
    }
    assert_eq!(broker.traffic().malformed, 7);
}

#[tokio::test]
async fn random_bytes_end_only_their_own_connection() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    let address = broker.address();
    let (node, mut events) = Link::spawn(node_options(address, "witness"));
    link_connected(&mut events).await;
    let drain = tokio::spawn(async move { while fleet.recv().await.is_some() {} });
    spawn_blocking(move || {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..200_usize {
            let mut peer = Peer::dial(address);
            if round % 2 == 0 {
                join(&mut peer, "fuzz", 30);
            }
            let bytes: Vec<u8> = (0..round)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as u8
                })
                .collect();
            peer.send_bytes(&bytes);
        }
    })
    .await
    .unwrap();
    node.try_publish("edgesync/v1/nodes/witness/up", b"alive".to_vec(), false).unwrap();
    assert!(node.shutdown(Vec::new(), PATIENCE).await);
    assert_eq!(node.traffic().connected, 1);
    drain.abort();
}

#[tokio::test]
async fn silent_clients_time_out_before_and_after_connect() {
    let options = BrokerOptions { connect_timeout: Duration::from_millis(200), ..Default::default() };
    let (broker, mut fleet) = bind(options).await;
    let address = broker.address();
    let slow = raw(address, |peer| {
        peer.send_bytes(b"\x10\x0e\0\x04MQ");
        peer.read_to_end()
    });
    assert_eq!(slow.await, b"");
    assert_eq!(broker.traffic().refused, 1);
    let (code, elapsed) = raw(address, |peer| {
        let connack = join(peer, "n-1", 1);
        assert_eq!(connack.properties.unwrap().server_keep_alive, None);
        let started = Instant::now();
        (disconnected(peer), started.elapsed())
    })
    .await;
    assert_eq!(code, DisconnectReasonCode::KeepAliveTimeout);
    assert!(elapsed >= Duration::from_millis(1400), "{elapsed:?}");
    assert!(matches!(disconnect_reason(&mut fleet).await, DisconnectReason::Silent(_)));
    assert_eq!(broker.traffic().silent, 1);
}

#[tokio::test]
async fn pings_are_answered_and_keep_the_connection() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    raw(broker.address(), |peer| {
        join(peer, "n-1", 30);
        peer.send(&Packet::PingReq(PingReq));
        assert!(matches!(peer.expect(), Packet::PingResp(_)));
        peer.send_bytes(&[0xe0, 0]);
        assert!(peer.read().is_none());
    })
    .await;
    assert_eq!(disconnect_reason(&mut fleet).await, DisconnectReason::ByClient);
}

#[tokio::test]
async fn disconnect_with_will_publishes_the_will() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    raw(broker.address(), |peer| {
        let will = LastWill::new("edgesync/v1/nodes/n-1/presence", "will", QoS::AtLeastOnce, true, None);
        let Packet::Connect(connect, _, _) = connect_packet("n-1", 30) else { unreachable!() };
        peer.send(&Packet::Connect(connect, Some(will), None));
        peer.expect();
        peer.send_bytes(&[0xe0, 1, 4]);
        assert!(peer.read().is_none());
    })
    .await;
    assert_eq!(message(&mut fleet).await.2, b"will");
    assert_eq!(broker.presence(&node_name("n-1")), Some(b"will".to_vec()));
}

/// The endpoint accepts connections beyond the limit of unauthenticated ones: those that the system
/// drops from its queue retry only after seconds.
#[tokio::test]
async fn connections_beyond_the_unauthenticated_limit_wait_in_turn() {
    let options = BrokerOptions { max_unauthenticated: 4, ..Default::default() };
    let (broker, _fleet) = bind(options).await;
    let address = broker.address();
    let silent: Vec<_> = (0..4).map(|_| Peer::dial(address)).collect();
    let mut waiting: Vec<_> = (0..50).map(|_| Peer::dial(address)).collect();
    for (n, peer) in waiting.iter_mut().enumerate() {
        peer.send(&connect_packet(&format!("n-{n}"), 30));
    }
    within("all are accepted while those without a permit wait", PATIENCE, async {
        while broker.traffic().accepted < 54 {
            yield_now().await;
        }
    })
    .await;
    drop(silent);
    let admitted = spawn_blocking(move || {
        waiting.iter_mut().map(Peer::expect).filter(|packet| matches!(packet, Packet::ConnAck(_))).count()
    });
    assert_eq!(admitted.await.unwrap(), 50);
    assert_eq!((broker.traffic().refused, broker.traffic().over_limit), (0, 0));
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_at_once() {
    let options = BrokerOptions { max_connections: 2, ..Default::default() };
    let (broker, mut fleet) = bind(options).await;
    let address = broker.address();
    let peers = spawn_blocking(move || {
        let mut peers = [Peer::dial(address), Peer::dial(address)];
        join(&mut peers[0], "n-1", 30);
        join(&mut peers[1], "n-2", 30);
        assert_eq!(Peer::dial(address).read_to_end(), b"");
        peers
    });
    let peers = peers.await.unwrap();
    assert_eq!(broker.traffic().over_limit, 1);
    drop(peers);
    disconnect_reason(&mut fleet).await;
    disconnect_reason(&mut fleet).await;
    // The permit is released when the task ends, a moment after its last event.
    let (_node, mut events) = Link::spawn(node_options(address, "n-3"));
    link_connected(&mut events).await;
}

#[tokio::test]
async fn client_that_does_not_read_is_disconnected_without_delays() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    let address = broker.address();
    let down = "edgesync/v1/nodes/n-1/down";
    let stalled = spawn_blocking(move || {
        let mut peer = Peer::dial(address);
        join(&mut peer, "n-1", 1);
        subscribe(&mut peer, &[down]);
        peer
    });
    let stalled = stalled.await.unwrap();
    let (_witness, mut events) = Link::spawn(node_options(address, "witness"));
    link_connected(&mut events).await;
    let started = Instant::now();
    let mut queued = 0_usize;
    let mut full = false;
    while !full && is_within(started.elapsed(), PATIENCE) {
        match broker.try_publish(&node_name("n-1"), vec![0; 200_000]) {
            Ok(()) => queued += 200_000,
            Err(PublishError::Full) => full = true,
            Err(error) => panic!("{error}"),
        }
        tokio::task::yield_now().await;
    }
    assert!(full, "{queued} bytes were queued without an end");
    assert_eq!(broker.traffic().queue_full, 1);
    broker.try_publish(&node_name("witness"), b"at once".to_vec()).unwrap();
    let asked = Instant::now();
    assert_eq!(link_message(&mut events).await.1, b"at once");
    assert_within(asked.elapsed(), Duration::from_secs(2));
    let why = disconnect_reason(&mut fleet).await;
    assert!(matches!(why, DisconnectReason::NotReading(_) | DisconnectReason::Silent(_)), "{why}");
    assert_eq!(broker.try_publish(&node_name("n-1"), vec![0]), Err(PublishError::NotConnected));
    drop(stalled);
}
