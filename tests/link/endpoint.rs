//! The embedded endpoint with the link and with mosquitto's clients. The behavior that the cloud
//! side relies on is also tested through an external mosquitto.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use edgesync_broker::{
    Broker, BrokerOptions, Channel, DisconnectReason, Downlink, External, FleetEvent, FleetEvents, external,
};
use edgesync_transport::link::{
    Cause, Link, LinkEvent, LinkHandle, LinkOptions, Publish, PublishError, Topics,
};
use support::fleet::{
    PATIENCE, bind, disconnect_reason, link_connected, link_event, link_message, message, next,
    node_connected, node_name, node_options,
};
use support::mosquitto::{self, Mosquitto};
use support::proxy::{Mode, Proxy};
use support::timing::{assert_within, is_within};
use tokio::task::spawn_blocking;

const UP: &str = "edgesync/v1/nodes/n-1/up";

/// Returns both transports to nodes, with the address that nodes connect to.
async fn both_ways() -> Vec<(Downlink, FleetEvents, SocketAddr, Option<Mosquitto>)> {
    let (broker, events) = bind(BrokerOptions::default()).await;
    let address = broker.address();
    let embedded = (Downlink::Embedded(broker), events, address, None);

    let mosquitto = Mosquitto::start();
    let address = mosquitto.address();
    let options = LinkOptions::new(&address.ip().to_string(), address.port(), "cloud");
    let (downlink, mut events) = external(options, &Topics::default());
    assert!(matches!(next(&mut events).await, FleetEvent::Open { .. }));
    vec![embedded, (downlink, events, address, Some(mosquitto))]
}

#[tokio::test]
async fn cloud_and_node_exchange_messages_over_both_transports() {
    for (downlink, mut fleet, address, _broker) in both_ways().await {
        downlink.set_cloud(b"cloud online".to_vec());
        let (node, mut events) = Link::spawn(node_options(address, "n-1"));
        let connection = link_connected(&mut events).await;
        let online = format!("online {connection}").into_bytes();
        assert_eq!(message(&mut fleet).await, ("n-1".to_owned(), Channel::Presence, online));
        let cloud = "edgesync/v1/cloud".to_owned();
        assert_eq!(link_message(&mut events).await, (cloud.clone(), b"cloud online".to_vec()));

        node.try_publish(UP, b"hello".to_vec(), false).unwrap();
        assert_eq!(message(&mut fleet).await, ("n-1".to_owned(), Channel::Up, b"hello".to_vec()));
        let large = vec![7; 500_000];
        downlink.try_publish(&node_name("n-1"), large.clone()).unwrap();
        assert_eq!(link_message(&mut events).await, ("edgesync/v1/nodes/n-1/down".to_owned(), large));
        let too_large = downlink.try_publish(&node_name("n-1"), vec![7; 2 << 20]);
        assert!(matches!(too_large, Err(PublishError::TooLarge { .. })), "{too_large:?}");
        downlink.set_cloud(b"cloud changed".to_vec());
        assert_eq!(link_message(&mut events).await, (cloud, b"cloud changed".to_vec()));

        let farewell = Publish {
            topic: "edgesync/v1/nodes/n-1/presence".to_owned(),
            payload: b"bye".to_vec(),
            retain: true,
        };
        assert!(node.shutdown(vec![farewell], PATIENCE).await);
        assert_eq!(message(&mut fleet).await, ("n-1".to_owned(), Channel::Presence, b"bye".to_vec()));
        downlink.shutdown(b"cloud offline".to_vec(), PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bursts_over_both_transports_lose_no_message() {
    for (downlink, mut fleet, address, _broker) in both_ways().await {
        let (node, mut events) = Link::spawn(node_options(address, "n-1"));
        link_connected(&mut events).await;
        let down = async {
            for number in 0..BURST {
                loop {
                    match downlink.try_publish(&node_name("n-1"), number.to_be_bytes().to_vec()) {
                        Ok(()) => break,
                        Err(PublishError::Full) => downlink.ready(&node_name("n-1")).await.unwrap(),
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        };
        let received_down = async {
            for number in 0..BURST {
                assert_eq!(link_message(&mut events).await.1, number.to_be_bytes());
            }
        };
        let received_up = async {
            let mut expected = 0_u32;
            while expected < BURST {
                let (_, channel, payload) = message(&mut fleet).await;
                if channel == Channel::Up {
                    assert_eq!(payload, expected.to_be_bytes());
                    expected += 1;
                }
            }
        };
        tokio::join!(down, send_up(&node), received_down, received_up);
        assert_eq!(node.traffic().connected, 1);
        assert_eq!(node.traffic().rejected, 0);
    }
}

const BURST: u32 = 5000;

async fn send_up(node: &LinkHandle) {
    for number in 0..BURST {
        loop {
            match node.try_publish(UP, number.to_be_bytes().to_vec(), false) {
                Ok(()) => break,
                Err(PublishError::Full) => node.ready().await.unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[tokio::test]
async fn external_broker_restart_renews_the_cloud_presence() {
    let mut broker = Mosquitto::start();
    let address = broker.address();
    let mut options = LinkOptions::new(&address.ip().to_string(), address.port(), "cloud");
    options.retry.first = Duration::from_millis(20);
    let (downlink, mut fleet) = external(options, &Topics::default());
    assert!(matches!(next(&mut fleet).await, FleetEvent::Open { .. }));
    downlink.set_cloud(b"I am".to_vec());
    broker.restart();
    assert!(matches!(next(&mut fleet).await, FleetEvent::Closed { .. }));
    while !matches!(next(&mut fleet).await, FleetEvent::Open { .. }) {}
    let Downlink::External(external) = &downlink else { panic!() };
    wait_acknowledged(external).await;
    let (_node, mut events) = Link::spawn(node_options(address, "n-1"));
    link_connected(&mut events).await;
    assert_eq!(link_message(&mut events).await.1, b"I am");
}

/// Waits until the broker has acknowledged everything.
async fn wait_acknowledged(external: &External) {
    let link = external.link();
    let started = Instant::now();
    while link.traffic().messages_out == 0 || link.traffic().unacknowledged > 0 {
        assert!(is_within(started.elapsed(), PATIENCE), "the broker acknowledges nothing");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn endpoint_can_be_shut_down_and_bound_again() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    let address = broker.address();
    let (_node, mut events) = Link::spawn(node_options(address, "n-1"));
    link_connected(&mut events).await;
    node_connected(&mut fleet).await;
    broker.shutdown().await;
    drop(fleet);
    let LinkEvent::Disconnected { cause, .. } = link_event(&mut events).await else { panic!() };
    assert_eq!(cause.label(), "unavailable", "{cause}");
    let (_broker, mut fleet) = Broker::bind(address, BrokerOptions::default()).await.unwrap();
    link_connected(&mut events).await;
    assert!(matches!(next(&mut fleet).await, FleetEvent::Open { .. }));
    assert_eq!(node_connected(&mut fleet).await.0, "n-1");
}

#[tokio::test]
async fn shutdown_spreads_disconnects_and_accepts_no_new_nodes() {
    const NODES: u32 = 50;
    let farewells = Duration::from_secs(1);
    let (broker, _fleet) = bind(BrokerOptions { farewells, ..BrokerOptions::default() }).await;
    let address = broker.address();
    let mut nodes = Vec::new();
    for n in 0..NODES {
        let (node, mut events) = Link::spawn(node_options(address, &format!("n-{n}")));
        link_connected(&mut events).await;
        nodes.push((node, events));
    }
    let begun = Instant::now();
    let shutdown = tokio::spawn({
        let broker = broker.clone();
        async move { broker.shutdown().await }
    });
    let mut ends = Vec::new();
    for (_, events) in &mut nodes {
        let LinkEvent::Disconnected { cause, .. } = link_event(events).await else { panic!() };
        assert_eq!(cause.label(), "unavailable", "{cause}");
        ends.push(begun.elapsed());
    }
    let last = ends.iter().max().unwrap();
    assert!(*last >= Duration::from_millis(1) * (NODES - 1), "all at once: {ends:?}");
    shutdown.await.unwrap();
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn older_of_two_links_with_one_name_backs_off_for_minutes() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    let (_one, mut one) = Link::spawn(node_options(broker.address(), "n-1"));
    let first_id = link_connected(&mut one).await;
    let (_, first) = node_connected(&mut fleet).await;
    message(&mut fleet).await;
    let (_two, mut two) = Link::spawn(node_options(broker.address(), "n-1"));
    let second_id = link_connected(&mut two).await;
    let LinkEvent::Disconnected { cause, retry_in } = link_event(&mut one).await else { panic!() };
    assert_eq!(cause, Cause::TakenOver { client_id: "n-1".to_owned() });
    assert!(retry_in >= Duration::from_secs(300));
    // The end of the old one, its will included, comes before the start of the new one.
    let (_, _, will) = message(&mut fleet).await;
    assert_eq!(will, format!("offline {first_id}").into_bytes());
    let gone = next(&mut fleet).await;
    let FleetEvent::NodeDisconnected { connection, why: DisconnectReason::TakenOver, .. } = gone else {
        panic!("{gone:?}")
    };
    assert_eq!(connection, first);
    assert!(node_connected(&mut fleet).await.1 > first);
    let (_, _, online) = message(&mut fleet).await;
    assert_eq!(online, format!("online {second_id}").into_bytes());
    assert_eq!(broker.presence(&node_name("n-1")), Some(online));
    assert_eq!((broker.traffic().taken_over, broker.traffic().open), (1, 1));
}

#[tokio::test]
async fn lost_connection_publishes_the_will_and_a_farewell_does_not() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    let proxy = Proxy::start(broker.address());
    let (node, mut events) = Link::spawn(node_options(proxy.address(), "n-1"));
    let first = link_connected(&mut events).await;
    message(&mut fleet).await;
    proxy.cut();
    let (_, channel, payload) = message(&mut fleet).await;
    assert_eq!((channel, payload), (Channel::Presence, format!("offline {first}").into_bytes()));
    assert!(matches!(disconnect_reason(&mut fleet).await, DisconnectReason::Lost(_)));
    link_connected(&mut events).await;
    message(&mut fleet).await;
    assert!(node.shutdown(Vec::new(), PATIENCE).await);
    let gone = next(&mut fleet).await;
    assert!(matches!(gone, FleetEvent::NodeDisconnected { why: DisconnectReason::ByClient, .. }), "{gone:?}");
}

// Real clients.

#[tokio::test]
async fn mosquitto_clients_can_connect_publish_and_subscribe() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    let address = broker.address();
    broker.set_cloud(b"cloud online".to_vec());
    let run = |program: &'static str, arguments: &'static [&'static str]| {
        spawn_blocking(move || mosquitto::client(program, address, arguments))
    };
    let own = &["-i", "n-1", "-t", UP, "-q", "1", "-m", "hello"];
    let (code, _, errors) = run("mosquitto_pub", own).await.unwrap();
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(message(&mut fleet).await, ("n-1".to_owned(), Channel::Up, b"hello".to_vec()));

    let presence = &["-u", "n-1", "-t", "edgesync/v1/nodes/n-1/presence", "-r", "-q", "1", "-m", "here"];
    let (code, _, errors) = run("mosquitto_pub", presence).await.unwrap();
    assert_eq!(code, Some(0), "{errors}");
    let retained =
        &["-i", "n-1", "-t", "edgesync/v1/nodes/n-1/#", "-t", "edgesync/v1/cloud", "-C", "2", "-W", "10"];
    let (code, output, errors) = run("mosquitto_sub", retained).await.unwrap();
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let mut lines: Vec<&str> = output.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["cloud online", "here"]);

    let other = &["-i", "n-1", "-t", "edgesync/v1/nodes/n-2/up", "-q", "1", "-m", "x"];
    let (_, _, errors) = run("mosquitto_pub", other).await.unwrap();
    assert!(errors.contains("Not authorized"), "{errors}");
    let (_, _, errors) = run("mosquitto_sub", &["-i", "n-1", "-t", "#", "-W", "5"]).await.unwrap();
    assert!(errors.contains("Not authorized") || errors.contains("denied"), "{errors}");
    assert_eq!(broker.traffic().unauthorized, 2);
    assert_eq!(broker.traffic().malformed, 0);
}

#[tokio::test]
async fn mosquitto_sub_receives_messages_of_the_cloud_to_its_node() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    let arguments = ["-d", "-i", "n-1", "-q", "1", "-t", "edgesync/v1/nodes/n-1/down", "-C", "2", "-W", "10"];
    let mut child = mosquitto::client_command("mosquitto_sub", broker.address(), &arguments).spawn().unwrap();
    node_connected(&mut fleet).await;
    let deadline = Instant::now() + PATIENCE;
    while broker.try_publish(&node_name("n-1"), b"first".to_vec()).is_err() {
        assert!(Instant::now() < deadline, "it never subscribed");
        tokio::task::yield_now().await;
    }
    broker.try_publish(&node_name("n-1"), b"second".to_vec()).unwrap();
    let output = child.stdout.take().unwrap();
    let lines = spawn_blocking(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        let lines: Vec<String> = lines.filter(|line| line == "first" || line == "second").collect();
        child.wait().unwrap();
        lines
    });
    assert_eq!(lines.await.unwrap(), ["first", "second"]);
    assert_eq!(disconnect_reason(&mut fleet).await, DisconnectReason::ByClient);
}

#[tokio::test]
async fn slow_cloud_throttles_nodes_and_loses_no_acknowledged_message() {
    let (broker, mut fleet) = bind(BrokerOptions { events: 2, ..Default::default() }).await;
    let (node, mut events) = Link::spawn(node_options(broker.address(), "n-1"));
    // Room for two events: the connection and the presence. The endpoint reads nothing else until
    // the cloud takes one.
    link_connected(&mut events).await;
    for number in 0..100_u8 {
        node.try_publish(UP, vec![number], false).unwrap();
    }
    let started = Instant::now();
    while node.traffic().messages_out < 65 && is_within(started.elapsed(), PATIENCE) {
        tokio::task::yield_now().await;
    }
    assert_eq!(node.traffic().unacknowledged, 64, "acknowledged before it was handed over");
    assert_eq!(node_connected(&mut fleet).await.0, "n-1");
    assert_eq!(message(&mut fleet).await.1, Channel::Presence);
    for number in 0..100_u8 {
        assert_eq!(message(&mut fleet).await.2, [number]);
    }
    assert!(node.shutdown(Vec::new(), PATIENCE).await);
    assert_eq!(node.traffic().connected, 1);
}

#[tokio::test]
async fn half_open_connection_is_replaced_by_the_next_one_at_once() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    let proxy = Proxy::start(broker.address());
    let (_old, mut events) = Link::spawn(node_options(proxy.address(), "n-1"));
    link_connected(&mut events).await;
    message(&mut fleet).await;
    proxy.set(Mode::Stall);
    let started = Instant::now();
    let (_new, mut events) = Link::spawn(node_options(broker.address(), "n-1"));
    link_connected(&mut events).await;
    assert_within(started.elapsed(), Duration::from_secs(2));
}
