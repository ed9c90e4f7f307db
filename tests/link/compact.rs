//! The compact exchange between a link and the embedded endpoint, and the pause of a link.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use edgesync_broker::{BrokerOptions, Channel, DisconnectReason, Downlink};
use edgesync_testkit as support;
use edgesync_transport::link::compact::{self, CompactTopics};
use edgesync_transport::link::{Cause, Link, LinkEvent, LinkOptions, Topics};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    Connect, ConnectProperties, DisconnectReasonCode, Packet, PubAckReason, Publish, PublishProperties,
};
use support::authority::Authority;
use support::fleet::{
    PATIENCE, bind, disconnect_reason, link_event, link_message, message, node_connected, node_name,
    node_options,
};
use support::mosquitto::Mosquitto;
use support::scripted_broker::{Peer, ScriptedBroker};
use tokio::task::spawn_blocking;

const UP: &str = "edgesync/v1/nodes/n-1/up";
const DOWN: &str = "edgesync/v1/nodes/n-1/down";

fn compact_options(address: SocketAddr) -> LinkOptions {
    let mut options = node_options(address, "n-1");
    options.compact = Some(CompactTopics::new(&Topics::default(), "n-1"));
    options
}

/// Waits for a connection; returns whether it is compact.
async fn connected(events: &mut tokio::sync::mpsc::Receiver<LinkEvent>) -> bool {
    loop {
        match link_event(events).await {
            LinkEvent::Connected { is_compact, .. } => return is_compact,
            LinkEvent::Disconnected { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn compact_exchange_carries_messages_without_topics() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    let downlink = Downlink::Embedded(broker.clone());
    downlink.set_cloud(b"online".to_vec());
    let (node, mut events) = Link::spawn(compact_options(broker.address()));
    assert!(connected(&mut events).await);
    node_connected(&mut fleet).await;
    // Neither presence nor the retained message: the first message is that of the node.
    for text in ["hello", "report"] {
        node.try_publish(UP, text.into(), false).unwrap();
        assert_eq!(message(&mut fleet).await, ("n-1".to_owned(), Channel::Up, text.into()));
    }
    downlink.try_publish(&node_name("n-1"), b"welcome".to_vec()).unwrap();
    assert_eq!(link_message(&mut events).await, (DOWN.to_owned(), b"welcome".to_vec()));
    downlink.set_cloud(b"changed".to_vec());
    assert_eq!(link_message(&mut events).await, ("edgesync/v1/cloud".to_owned(), b"changed".to_vec()));
    assert!(node.shutdown(Vec::new(), PATIENCE).await);
    assert_eq!(disconnect_reason(&mut fleet).await, DisconnectReason::ByClient);
}

/// A renewal of the Lease has 10 bytes of payload. TLS adds 22 bytes to each of both packets: 68
/// bytes in both directions, within the budget of 100.
#[tokio::test]
async fn renewal_takes_20_bytes_and_its_acknowledgement_4() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    let (node, mut events) = Link::spawn(compact_options(broker.address()));
    assert!(connected(&mut events).await);
    node_connected(&mut fleet).await;
    node.try_publish(UP, b"first".to_vec(), false).unwrap();
    message(&mut fleet).await;
    let acknowledged = async |count: u64| {
        while node.traffic().messages_out < count || node.backlog().unacknowledged > 0 {
            tokio::task::yield_now().await;
        }
    };
    node.try_publish(UP, b"\"4295632f\"".to_vec(), false).unwrap();
    message(&mut fleet).await;
    acknowledged(2).await;
    let before = node.traffic();
    node.try_publish(UP, b"\"4295632f\"".to_vec(), false).unwrap();
    message(&mut fleet).await;
    acknowledged(3).await;
    let after = node.traffic();
    assert_eq!((after.bytes_out - before.bytes_out, after.bytes_in - before.bytes_in), (20, 4));
}

/// Frames of the sizes of a node in sync with 10,000 objects: a Hello with the terms of its Lease,
/// and a Welcome with features.
#[tokio::test]
async fn reconnect_over_tls_takes_at_most_1500_bytes() {
    const HELLO: usize = 287;
    const WELCOME: usize = 101;
    let authority = Authority::new();
    let tls = BrokerOptions { tls: Some(authority.server()), ..BrokerOptions::default() };
    let (broker, mut fleet) = bind(tls).await;
    let mut options = compact_options(broker.address());
    options.secure(authority.client(&authority.node("n-1")));
    let (node, mut events) = Link::spawn(options);
    let (mut all, mut before) = (Vec::new(), 0);
    for _ in 0..3 {
        assert!(connected(&mut events).await);
        node_connected(&mut fleet).await;
        node.try_publish(UP, vec![b'h'; HELLO], false).unwrap();
        message(&mut fleet).await;
        broker.try_publish(&node_name("n-1"), vec![b'w'; WELCOME]).unwrap();
        link_message(&mut events).await;
        while broker.backlog(&node_name("n-1")).is_some_and(|backlog| backlog.unacknowledged > 0) {
            tokio::task::yield_now().await;
        }
        let traffic = node.traffic();
        all.push(traffic.bytes_in + traffic.bytes_out - before);
        before = traffic.bytes_in + traffic.bytes_out;
        node.give_up();
    }
    assert!(all[1..].iter().all(|bytes| *bytes <= 1500), "{all:?}");
}

#[tokio::test]
async fn reconnect_to_the_endpoint_sends_no_will_and_another_broker_gets_one() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    let (node, mut events) = Link::spawn(compact_options(broker.address()));
    assert!(connected(&mut events).await);
    node_connected(&mut fleet).await;
    let first = node.traffic().bytes_out;
    node.give_up();
    assert!(connected(&mut events).await);
    let second = node.traffic().bytes_out - first;
    assert!(second + 50 < first, "{second} after {first}: the will and its topic are left out");
}

#[tokio::test]
async fn other_broker_ignores_the_offer() {
    let mosquitto = Mosquitto::start();
    let (node, mut events) = Link::spawn(compact_options(mosquitto.address()));
    assert!(!connected(&mut events).await);
    let (watching, mut seen) = {
        let mut options = LinkOptions::new("127.0.0.1", mosquitto.address().port(), "cloud");
        options.subscriptions = vec![UP.to_owned()];
        Link::spawn(options)
    };
    assert!(!connected(&mut seen).await);
    // The second message has the alias only, if mosquitto permits one.
    for text in ["one", "two", "three"] {
        node.try_publish(UP, text.into(), false).unwrap();
        assert_eq!(link_message(&mut seen).await, (UP.to_owned(), text.as_bytes().to_vec()));
    }
    drop(watching);
}

/// Speaks the compact exchange by hand, with an alias and a topic that it has no right to.
#[tokio::test]
async fn compact_client_reaches_its_own_topics_only() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    for (topic, alias, expected) in [
        ("", compact::DOWN, DisconnectReasonCode::TopicAliasInvalid),
        ("", 7, DisconnectReasonCode::TopicAliasInvalid),
        ("edgesync/v1/nodes/n-2/up", compact::UP, DisconnectReasonCode::TopicAliasInvalid),
    ] {
        let address = broker.address();
        let code = spawn_blocking(move || {
            let mut peer = Peer::dial(address);
            let properties =
                ConnectProperties { user_properties: vec![compact::property()], ..ConnectProperties::new() };
            let connect = Connect {
                keep_alive: 30,
                client_id: "n-1".to_owned(),
                clean_start: true,
                properties: Some(properties),
            };
            peer.send(&Packet::Connect(connect, None, None));
            assert!(matches!(peer.expect(), Packet::ConnAck(_)));
            let properties = PublishProperties { topic_alias: Some(alias), ..PublishProperties::default() };
            peer.send(&Packet::Publish(Publish::new(topic, QoS::AtMostOnce, "x", Some(properties))));
            match peer.expect() {
                Packet::Disconnect(disconnect) => disconnect.reason_code,
                other => panic!("{other:?}"),
            }
        })
        .await
        .unwrap();
        assert_eq!(code, expected, "{topic} {alias}");
        assert!(matches!(disconnect_reason(&mut fleet).await, DisconnectReason::Protocol(_)));
    }
}

#[tokio::test]
async fn paused_link_sends_what_is_queued_and_connects_when_resumed() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    let (node, mut events) = Link::spawn(compact_options(broker.address()));
    for round in 0..2_u8 {
        connected(&mut events).await;
        node_connected(&mut fleet).await;
        node.try_publish(UP, vec![round], false).unwrap();
        assert!(node.pause(Vec::new(), PATIENCE));
        assert_eq!(message(&mut fleet).await.2, vec![round]);
        assert_eq!(disconnect_reason(&mut fleet).await, DisconnectReason::ByClient);
        let paused = link_event(&mut events).await;
        assert_eq!(paused, LinkEvent::Disconnected { cause: Cause::Paused, retry_in: Duration::ZERO });
        assert_eq!(node.traffic().connected, u64::from(round) + 1, "no attempt is made");
        assert!(node.resume());
    }
    connected(&mut events).await;
    assert!(node.pause(Vec::new(), PATIENCE));
    // A shutdown during the pause ends the link.
    node.shutdown(Vec::new(), PATIENCE).await;
    while let Some(event) = events.recv().await {
        assert!(!matches!(event, LinkEvent::Connected { .. }), "{event:?}");
    }
}

/// The broker acknowledges the last message only after the link was resumed.
#[tokio::test]
async fn resume_during_the_farewell_of_a_pause_is_not_lost() {
    let (resumed, is_resumed) = channel();
    let is_resumed = Mutex::new(is_resumed);
    let broker = ScriptedBroker::start(move |number, mut peer| {
        peer.accept_and_grant();
        if number == 0 {
            let last = peer.read_publish();
            is_resumed.lock().unwrap().recv().unwrap();
            peer.acknowledge(last.pkid, PubAckReason::Success);
        }
        peer.acknowledge_and_drop();
    });
    let mut options = LinkOptions::new("127.0.0.1", broker.address().port(), "n-1");
    options.subscriptions = vec![DOWN.to_owned()];
    let (node, mut events) = Link::spawn(options);
    assert!(!connected(&mut events).await);
    node.try_publish(UP, b"last".to_vec(), false).unwrap();
    assert!(node.pause(Vec::new(), PATIENCE) && node.resume());
    resumed.send(()).unwrap();
    let paused = link_event(&mut events).await;
    assert_eq!(paused, LinkEvent::Disconnected { cause: Cause::Paused, retry_in: Duration::ZERO });
    assert!(!connected(&mut events).await);
}
