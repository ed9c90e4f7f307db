//! The ways to a broker: several addresses, dead name servers, WebSockets, real proxies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use edgesync_broker::{Broker, BrokerOptions, FleetEvents};
use edgesync_transport::dial::{Dialer, LastGood};
use edgesync_transport::link::{Cause, Endpoint, Link, LinkEvent, LinkHandle, LinkOptions};
use edgesync_transport::proxy::{Proxy, ProxyRules};
use edgesync_transport::tls::{Clock, Server};
use edgesync_transport::websocket::{self, Role, WebSocket};
use support::authority::{Authority, HOUR};
use support::fleet::{bind, link_connected, link_event, message_up, node_options};
use support::http_proxy::{HttpProxy, PASSWORD, USER};
use support::mosquitto::{Mosquitto, free_address};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::Receiver;

/// Makes the response to an upgrade from the value of `Sec-WebSocket-Accept`.
type Answer = fn(&str) -> String;

const UP: &str = "edgesync/v1/nodes/n-1/up";

fn endpoint(host: &str, port: u16) -> Endpoint {
    Endpoint { host: host.to_owned(), port, tls: false, websocket: false }
}

fn at(address: SocketAddr) -> Endpoint {
    endpoint(&address.ip().to_string(), address.port())
}

/// Returns the options of node `n-1` with these addresses.
fn options(endpoints: Vec<Endpoint>) -> LinkOptions {
    let mut options = node_options(([127, 0, 0, 1], 1).into(), "n-1");
    options.endpoints = endpoints;
    options
}

async fn closed() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
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

/// Sends a message through the link, and returns when the endpoint has it.
async fn exchange(link: &LinkHandle, fleet: &mut FleetEvents) {
    // Longer than a frame of a WebSocket.
    link.try_publish(UP, vec![7; 50_000], false).unwrap();
    assert_eq!(message_up(fleet).await, vec![7; 50_000]);
}

#[tokio::test]
async fn dead_first_broker_is_followed_by_the_next_one() {
    let (broker, mut fleet) = bind(BrokerOptions::default()).await;
    let (link, _events) = connect(options(vec![at(closed().await), at(broker.address())])).await;
    assert_eq!(link.position(), 1);
    exchange(&link, &mut fleet).await;
    let endings = link.endings();
    assert_eq!(endings.failed.iter().sum::<u64>(), 1, "one attempt at the dead one");
}

#[tokio::test]
async fn broker_that_worked_last_is_tried_first() {
    let (first, _first_fleet) = bind(BrokerOptions::default()).await;
    let (second, _second_fleet) = bind(BrokerOptions::default()).await;
    let stored: Arc<Mutex<Vec<String>>> = Arc::default();
    let keep = Arc::clone(&stored);
    let both = || vec![at(first.address()), at(second.address())];
    let mut options = options(both());
    let last = format!(r#"{{"peer":"mqtt://{}","addresses":{{}}}}"#, second.address());
    options.dialer = Dialer::new(
        ProxyRules::default(),
        LastGood::new(Some(&last), move |text| keep.lock().unwrap().push(text)),
    );
    let (link, mut events) = connect(options).await;
    assert_eq!(link.position(), 1);
    assert!(stored.lock().unwrap().is_empty(), "nothing has changed");
    second.shutdown().await;
    loop {
        if let LinkEvent::Connected { .. } = link_event(&mut events).await {
            break;
        }
    }
    assert_eq!(link.position(), 0);
    assert!(stored.lock().unwrap()[0].contains(&first.address().to_string()));
}

#[tokio::test]
async fn last_good_address_reaches_the_broker_without_a_name_server() {
    let authority = Authority::new();
    let identity = authority.server_for(&["broker.invalid"], -HOUR, HOUR);
    let server = Server::new(&identity, &authority.rule(&[]), Clock::system([])).unwrap();
    let (broker, mut fleet) = bind(BrokerOptions { tls: Some(server), ..BrokerOptions::default() }).await;
    let with = |stored: Option<&str>| {
        let mut options = options(vec![endpoint("broker.invalid", broker.address().port())]);
        options.secure(authority.client(&authority.node("n-1")));
        options.dialer = Dialer::new(ProxyRules::default(), LastGood::new(stored, drop));
        options
    };
    let cause = first_cause(with(None)).await;
    assert!(matches!(cause, Cause::Dns { .. }), "{cause}");
    let stored = r#"{"peer":"","addresses":{"broker.invalid":"127.0.0.1"}}"#;
    let (link, _events) = connect(with(Some(stored))).await;
    exchange(&link, &mut fleet).await;
}

#[tokio::test]
async fn stored_address_of_another_host_is_refused_by_its_name() {
    let authority = Authority::new();
    let (broker, _fleet) =
        bind(BrokerOptions { tls: Some(authority.server()), ..BrokerOptions::default() }).await;
    let mut options = options(vec![endpoint("broker.invalid", broker.address().port())]);
    options.secure(authority.client(&authority.node("n-1")));
    let stored = r#"{"peer":"","addresses":{"broker.invalid":"127.0.0.1"}}"#;
    options.dialer = Dialer::new(ProxyRules::default(), LastGood::new(Some(stored), drop));
    let cause = first_cause(options).await;
    assert!(matches!(cause, Cause::Tls { kind: "other-name", .. }), "{cause}");
}

/// Starts a TLS server that makes the upgrade to a WebSocket and forwards its stream to a broker.
async fn websocket_front(server: Server, broker: SocketAddr, answer: Answer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let server = server.clone();
            tokio::spawn(async move {
                let Ok((mut stream, _)) = server.accept(stream).await else { return };
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                assert!(head.starts_with("GET /mqtt HTTP/1.1\r\n"), "{head}");
                let accepted = websocket::accept(|name| {
                    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
                    fields.find_map(|(field, value)| field.eq_ignore_ascii_case(name).then_some(value))
                });
                stream.write_all(answer(&accepted.unwrap()).as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
                let mut socket = WebSocket::new(stream, Role::Server, Default::default());
                let mut tcp = TcpStream::connect(broker).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut socket, &mut tcp).await;
            });
        }
    });
    address
}

fn switching(accepted: &str) -> String {
    format!("{}Sec-WebSocket-Protocol: mqtt\r\n\r\n", upgraded(accepted))
}

fn upgraded(accepted: &str) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accepted}\r\n"
    )
}

fn without_subprotocol(accepted: &str) -> String {
    format!("{}\r\n", upgraded(accepted))
}

fn not_found(_accepted: &str) -> String {
    "HTTP/1.1 404 Not Found\r\n\r\n".to_owned()
}

fn for_another_key(_accepted: &str) -> String {
    switching("c3RvbGVu")
}

fn no_http(_accepted: &str) -> String {
    "MQTT/5 hello\r\n\r\n".to_owned()
}

fn over_websocket(authority: &Authority, address: SocketAddr) -> LinkOptions {
    let mut options = options(vec![Endpoint { websocket: true, ..at(address) }]);
    options.secure(authority.client(&authority.node("n-1")));
    options
}

#[tokio::test]
async fn mqtt_over_websocket_carries_messages_both_ways() {
    let authority = Authority::new();
    let (broker, mut fleet): (Broker, _) = bind(BrokerOptions::default()).await;
    let front = websocket_front(authority.server(), broker.address(), switching).await;
    let (link, _events) = connect(over_websocket(&authority, front)).await;
    exchange(&link, &mut fleet).await;
    assert!(link.shutdown(Vec::new(), support::links::PATIENCE).await);
}

#[tokio::test]
async fn server_without_the_subprotocol_is_refused() {
    let authority = Authority::new();
    let (broker, _fleet) = bind(BrokerOptions::default()).await;
    for (answer, part) in [
        (without_subprotocol as Answer, "subprotocol 'mqtt' not accepted"),
        (not_found as Answer, "no MQTT at /mqtt"),
        (for_another_key as Answer, "Sec-WebSocket-Accept"),
        (no_http as Answer, "not an HTTP response"),
    ] {
        let front = websocket_front(authority.server(), broker.address(), answer).await;
        let cause = first_cause(over_websocket(&authority, front)).await;
        assert!(matches!(&cause, Cause::Upgrade { .. }), "{cause}");
        assert!(cause.to_string().contains(part), "{cause}");
    }
}

#[tokio::test]
async fn mosquitto_is_reached_over_its_websocket() {
    let authority = Authority::new();
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let ca = file("ca.crt", &authority.to_pem());
    // The certificate and its key are in one file.
    let server = file("server.pem", &authority.server_identity().to_pem());
    let port = free_address().port();
    // A listener of WebSockets takes an interface only, and listens on its first address.
    let config = format!(
        "bind_interface lo\nlistener {port}\nprotocol websockets\ncafile {ca}\ncertfile {server}\nkeyfile {server}\n\
         require_certificate true\nallow_anonymous true\npersistence false\nlog_dest stderr\n"
    );
    let config = file("websocket.conf", &config);
    let _mosquitto = Mosquitto::start_from(([127, 0, 0, 1], port).into(), config.as_ref());
    let mut options = over_websocket(&authority, ([127, 0, 0, 1], port).into());
    options.own_topic = None;
    options.subscriptions = vec!["t/echo".to_owned()];
    let (link, mut events) = connect(options).await;
    link.try_publish("t/echo", vec![7; 50_000], false).unwrap();
    let LinkEvent::Message { payload, .. } = link_event(&mut events).await else { panic!("no message") };
    assert_eq!(payload, vec![7; 50_000]);
}

/// Returns the options for a broker behind a proxy with this password.
fn through(
    proxy: &HttpProxy,
    broker: Endpoint,
    authority: &Authority,
    password: Option<&str>,
) -> LinkOptions {
    let mut options = options(vec![broker]);
    options.secure(authority.client(&authority.node("n-1")));
    let address = proxy.address();
    let mut proxy = Proxy::new(&address.ip().to_string(), address.port(), password.map(|_| USER));
    if let Some(password) = password {
        proxy = proxy.with_password(password.to_owned());
    }
    options.dialer = Dialer::new(ProxyRules::new(proxy, ""), LastGood::default());
    options
}

/// Starts an endpoint with a certificate for the names by which the proxies reach it.
async fn endpoint_behind_a_proxy(authority: &Authority) -> (Broker, FleetEvents) {
    let identity = authority.server_for(&["broker.example", "0.0.0.0"], -HOUR, HOUR);
    let server = Server::new(&identity, &authority.rule(&[]), Clock::system([])).unwrap();
    bind(BrokerOptions { tls: Some(server), ..BrokerOptions::default() }).await
}

/// Checks a proxy: the right password, a wrong one, none, and a port that is not allowed.
async fn check_proxy(
    proxy: &HttpProxy,
    host: &str,
    broker: &Broker,
    fleet: &mut FleetEvents,
    authority: &Authority,
) {
    let there = || endpoint(host, broker.address().port());
    let (link, _events) = connect(through(proxy, there(), authority, Some(PASSWORD))).await;
    exchange(&link, fleet).await;
    drop(link);
    for (endpoint, password, part) in [
        (there(), Some("wrong"), "refused user 'me'"),
        (there(), None, "requires a user name and a password (HTTP status 407)"),
        (endpoint(host, 1), Some(PASSWORD), "does not allow"),
    ] {
        let cause = first_cause(through(proxy, endpoint, authority, password)).await;
        let Cause::Proxy { proxy: named, problem } = &cause else { panic!("{cause} instead of Proxy") };
        assert_eq!(*named, format!("http://{}", proxy.address()));
        assert!(problem.contains(part), "{problem}");
    }
}

#[tokio::test]
async fn link_passes_tinyproxy_with_a_password() {
    let authority = Authority::new();
    let (broker, mut fleet) = endpoint_behind_a_proxy(&authority).await;
    let proxy = HttpProxy::tinyproxy(broker.address().port());
    // This machine is never reached through a proxy, and tinyproxy has no names of its own: the
    // kernel takes this address for the machine itself.
    check_proxy(&proxy, "0.0.0.0", &broker, &mut fleet, &authority).await;
}

#[tokio::test]
async fn link_to_a_cloud_core_passes_tinyproxy() {
    let (listener, address) = support::websocket::listen().await;
    let proxy = HttpProxy::tinyproxy(address.port());
    let (host, port) = (proxy.address().ip().to_string(), proxy.address().port());
    let rules = ProxyRules::new(Proxy::new(&host, port, Some(USER)).with_password(PASSWORD.to_owned()), "");
    let mut options = support::websocket::options(address);
    options.host = "0.0.0.0".to_owned();
    options.dialer = Dialer::new(rules, LastGood::default());
    let (_link, mut events) = edgesync_kubeedge::link::spawn(options);
    let _peer = support::websocket::Peer::accept(&listener).await;
    link_connected(&mut events).await;
}

#[tokio::test]
async fn link_passes_squid_which_resolves_the_name() {
    let authority = Authority::new();
    let (broker, mut fleet) = endpoint_behind_a_proxy(&authority).await;
    let proxy = HttpProxy::squid(broker.address().port(), broker.address().ip());
    check_proxy(&proxy, "broker.example", &broker, &mut fleet, &authority).await;
}
