//! A real haproxy between node and broker, that passes TLS on by name or ends it; and the bytes on
//! the line of each way to a broker.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use std::net::SocketAddr;

use edgesync_broker::{Broker, BrokerOptions, FleetEvents, SharedSource};
use edgesync_transport::dial::{Dialer, LastGood};
use edgesync_transport::link::{Cause, Endpoint, Link, LinkEvent, LinkHandle, LinkOptions};
use edgesync_transport::proxy::{Proxy, ProxyRules};
use edgesync_transport::shared::{Routes, Service, SharedListener, SharedOptions};
use edgesync_transport::tls::{ClientRule, Clock, Server};
use support::authority::{Authority, HOUR};
use support::fleet::{bind, link_connected, link_event, message_up, node_options};
use support::haproxy::Haproxy;
use support::http_proxy::{HttpProxy, PASSWORD, USER};
use support::proxy::{Proxy as Line, Way};
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;

const UP: &str = "edgesync/v1/nodes/n-1/up";
/// Names of the broker. The first one resolves nowhere, the second one for squid only.
const NAMES: [&str; 2] = ["broker.invalid", "broker.example"];
/// Messages that measure a way, and their size in bytes.
const MESSAGES: usize = 20;
const SIZE: usize = 10_000;

/// Returns the options of node `n-1` for a broker by a name that leads to `address`.
fn options(authority: &Authority, name: &str, address: SocketAddr) -> LinkOptions {
    let mut options = node_options(address, "n-1");
    options.endpoints =
        vec![Endpoint { host: name.to_owned(), port: address.port(), tls: false, websocket: false }];
    options.secure(authority.client(&authority.node("n-1")));
    let stored = format!(r#"{{"peer":"","addresses":{{"{name}":"{}"}}}}"#, address.ip());
    options.dialer = Dialer::new(ProxyRules::default(), LastGood::new(Some(&stored), drop));
    options
}

async fn connect(options: LinkOptions) -> (LinkHandle, Receiver<LinkEvent>) {
    let (link, mut events) = Link::spawn(options);
    link_connected(&mut events).await;
    (link, events)
}

/// Returns the cause of the first failure with these options.
async fn first_cause(options: LinkOptions) -> Cause {
    let (_link, mut events) = Link::spawn(options);
    match link_event(&mut events).await {
        LinkEvent::Disconnected { cause, .. } => cause,
        other => panic!("{other:?} instead of Disconnected"),
    }
}

/// Sends messages through the link, and returns when the endpoint has them.
async fn exchange(link: &LinkHandle, fleet: &mut FleetEvents) {
    for _ in 0..MESSAGES {
        link.try_publish(UP, vec![7; SIZE], false).unwrap();
    }
    for _ in 0..MESSAGES {
        assert_eq!(message_up(fleet).await.len(), SIZE);
    }
}

/// Returns the TLS of the broker, which requires the certificate of a node or only asks for it.
fn server(authority: &Authority, required: bool) -> Server {
    let identity = authority.server_for(&NAMES, -HOUR, HOUR);
    let rule = ClientRule { required, ..authority.rule(&[]) };
    Server::new(&identity, &rule, Clock::system([])).unwrap()
}

async fn endpoint(authority: &Authority) -> (Broker, FleetEvents) {
    bind(BrokerOptions { tls: Some(server(authority, true)), ..BrokerOptions::default() }).await
}

/// An endpoint at a port that other services could share.
struct Shared {
    address: SocketAddr,
    broker: Broker,
    fleet: FleetEvents,
    _tasks: JoinSet<()>,
}

async fn shared(authority: &Authority) -> Shared {
    let strict = server(authority, true);
    let mut listener = SharedListener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.address();
    let source = SharedSource { inlet: listener.inlet(Service::Mqtt), tls: strict.clone() };
    let (broker, fleet) = Broker::open(None, Some(source), BrokerOptions::default()).await.unwrap();
    let routes = Routes { services: vec![Service::Mqtt], ..Routes::default() };
    let (api, open) = (strict.clone(), server(authority, false));
    let mut tasks = JoinSet::new();
    tasks.spawn(listener.serve(SharedOptions { routes, mqtt: strict, api, open }));
    Shared { address, broker, fleet, _tasks: tasks }
}

#[tokio::test]
async fn haproxy_passes_the_link_on_by_the_name_of_the_broker() {
    let authority = Authority::new();
    let (broker, mut fleet) = endpoint(&authority).await;
    let proxy = Haproxy::by_name(&[(NAMES[0], broker.address())]);
    let (link, _events) = connect(options(&authority, NAMES[0], proxy.address())).await;
    exchange(&link, &mut fleet).await;
    let cause = first_cause(options(&authority, "other.invalid", proxy.address())).await;
    assert!(matches!(cause, Cause::Network { .. }), "no backend has this name: {cause}");
}

#[tokio::test]
async fn haproxy_that_ends_tls_is_refused_by_its_issuer() {
    let (authority, inspecting) = (Authority::new(), Authority::new());
    let (broker, _fleet) = endpoint(&authority).await;
    let identity = inspecting.server_for(&NAMES, -HOUR, HOUR);
    let proxy = Haproxy::terminating(&identity, broker.address());
    let cause = first_cause(options(&authority, NAMES[0], proxy.address())).await;
    assert!(matches!(cause, Cause::Tls { kind: "other-authority", .. }), "{cause}");
    let expected = "is signed by another CA than the one this node joined: issuer 'test authority'";
    assert!(cause.to_string().contains(expected), "{cause}");
    assert_eq!(broker.traffic().connected, 0);
}

/// The certificate of the node ends at the proxy, also if the node accepts that of the proxy.
#[tokio::test]
async fn haproxy_with_a_certificate_of_the_cloud_lets_no_node_in() {
    let authority = Authority::new();
    let identity = authority.server_for(&NAMES, -HOUR, HOUR);
    let (broker, _fleet) = endpoint(&authority).await;
    let proxy = Haproxy::terminating(&identity, broker.address());
    let cause = first_cause(options(&authority, NAMES[0], proxy.address())).await;
    assert!(matches!(cause, Cause::Closed | Cause::Network { .. }), "{cause}");
    assert_eq!(broker.traffic().connected, 0);

    let shared = shared(&authority).await;
    let proxy = Haproxy::terminating(&identity, shared.address);
    let cause = first_cause(options(&authority, NAMES[0], proxy.address())).await;
    assert!(matches!(cause, Cause::NotAuthorized { .. }), "{cause}");
    assert!(cause.to_string().contains("node certificate (O=system:nodes) required"), "{cause}");
    assert_eq!(shared.broker.traffic().connected, 0);
}

/// Returns the bytes in both directions between the node and `next`, TLS and tunnel included.
async fn bytes_of(
    next: SocketAddr,
    fleet: &mut FleetEvents,
    options: impl FnOnce(SocketAddr) -> LinkOptions,
) -> u64 {
    let line = Line::start(next);
    let (link, _events) = connect(options(line.address())).await;
    exchange(&link, fleet).await;
    let bytes = line.passed(Way::Up) + line.passed(Way::Down);
    assert!(bytes > (MESSAGES * SIZE) as u64, "{bytes} bytes");
    bytes
}

#[tokio::test]
async fn each_way_costs_at_most_three_percent_more_than_direct() {
    let authority = Authority::new();
    let (broker, mut fleet) = endpoint(&authority).await;
    let mut shared = shared(&authority).await;
    let by_name = |line| options(&authority, NAMES[0], line);
    let direct = bytes_of(broker.address(), &mut fleet, by_name).await;
    let haproxy = Haproxy::by_name(&[(NAMES[0], broker.address())]);
    let squid = HttpProxy::squid(broker.address().port(), broker.address().ip());
    let through_squid = |line: SocketAddr| {
        let mut options = options(&authority, NAMES[1], broker.address());
        let proxy = Proxy::new(&line.ip().to_string(), line.port(), Some(USER));
        let rules = ProxyRules::new(proxy.with_password(PASSWORD.to_owned()), "");
        options.dialer = Dialer::new(rules, LastGood::default());
        options
    };
    let over_websocket = |line| {
        let mut options = options(&authority, NAMES[0], line);
        options.endpoints[0].websocket = true;
        options
    };
    for (way, bytes) in [
        ("a proxy that passes TLS on", bytes_of(haproxy.address(), &mut fleet, by_name).await),
        ("CONNECT with a password", bytes_of(squid.address(), &mut fleet, through_squid).await),
        ("one port", bytes_of(shared.address, &mut shared.fleet, by_name).await),
        ("a WebSocket", bytes_of(shared.address, &mut shared.fleet, over_websocket).await),
    ] {
        assert!(bytes * 100 <= direct * 103, "{way}: {bytes} bytes, {direct} directly");
    }
}
