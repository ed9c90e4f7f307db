//! The link to a CloudCore through real proxies: those that pass TLS on, end it, or inspect it; and
//! the bytes on the line of each way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use std::net::SocketAddr;
use std::time::Duration;

use edgesync_kubeedge::link::{self as kubeedge, KubeEdgeOptions};
use edgesync_transport::dial::{Dialer, LastGood};
use edgesync_transport::link::{Cause, LinkEvent};
use edgesync_transport::proxy::{Proxy, ProxyRules};
use edgesync_transport::tls::{Certificate, Client, Clock, Identity, Server, Trust};
use support::authority::{Authority, HOUR};
use support::cloudcore::{Options, Scripted};
use support::fleet::{link_connected, link_event};
use support::haproxy::Haproxy;
use support::http_proxy::{HttpProxy, PASSWORD, USER};
use support::mitmproxy::{self, Mitmproxy};
use support::proxy::{Proxy as Line, Way};
use support::timing::scaled;
use support::websocket::{self, Peer, TEXT};
use tokio::net::TcpListener;

/// Name of the CloudCore, which resolves nowhere.
const NAME: &str = "core.example";
/// Another name of it for the squid, which resolves it.
const SQUID_NAME: &str = "broker.example";
const NODE: &str = "edgea";
/// Messages in each direction that measure a way, and their size in bytes.
const MESSAGES: usize = 10;
const SIZE: usize = 10_000;

/// Returns the dialer that finds the CloudCore at an address.
fn at(address: SocketAddr) -> Dialer {
    let stored = format!(r#"{{"peer":"","addresses":{{"{NAME}":"{}"}}}}"#, address.ip());
    Dialer::new(ProxyRules::default(), LastGood::new(Some(&stored), drop))
}

/// Returns the dialer that goes through a proxy.
fn through(proxy: SocketAddr, login: Option<(&str, &str)>) -> Dialer {
    let proxy = Proxy::new(&proxy.ip().to_string(), proxy.port(), login.map(|(user, _)| user));
    let proxy = match login {
        Some((_, password)) => proxy.with_password(password.to_owned()),
        None => proxy,
    };
    Dialer::new(ProxyRules::new(proxy, ""), LastGood::default())
}

/// Returns the options of a link to a host that `dialer` finds.
fn options(host: &str, port: u16, tls: Client, dialer: Dialer) -> KubeEdgeOptions {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    KubeEdgeOptions { host: host.to_owned(), tls: Some(tls), dialer, ..websocket::options(address) }
}

/// Returns TLS of a joined node, which trusts CloudCore's CA, or another one.
fn node(core: &Scripted, trust: Option<Trust>) -> Client {
    let ca = Certificate::from_der("the CA", &core.ca()).unwrap();
    let identity = Identity::from_pem("the node", &core.identity(NODE)).unwrap();
    let trust = trust.unwrap_or_else(|| Trust::new(vec![ca]));
    Client::new(&trust, Some(&identity), Clock::system([])).unwrap()
}

/// Returns the cause of the first failure with these options.
async fn first_cause(options: KubeEdgeOptions) -> Cause {
    let (_link, mut events) = kubeedge::spawn(options);
    match link_event(&mut events).await {
        LinkEvent::Disconnected { cause, .. } => cause,
        other => panic!("{other:?} instead of Disconnected"),
    }
}

/// Asserts that the link is refused with this issuer, and that CloudCore has no session.
async fn is_refused_by_issuer(core: &Scripted, options: KubeEdgeOptions, issuer: &str) {
    let cause = first_cause(options).await;
    assert!(matches!(cause, Cause::Tls { kind: "other-authority", .. }), "{cause}");
    let expected = format!("is signed by another CA than the one this node joined: issuer '{issuer}'");
    assert!(cause.to_string().contains(&expected), "{cause}");
    assert!(!core.is_connected(NODE));
}

#[tokio::test]
async fn haproxy_passes_the_link_to_a_cloud_core_on_by_its_name() {
    let core = Scripted::start(Options::default());
    let proxy = Haproxy::by_name(&[(NAME, core.address())]);
    let (address, port) = (proxy.address(), proxy.address().port());
    let (_link, mut events) = kubeedge::spawn(options(NAME, port, node(&core, None), at(address)));
    link_connected(&mut events).await;
    core.until("the session is open", |core| core.connection_of(NODE).is_some()).await;
    // An address has no name in the handshake, so no backend has it.
    let host = address.ip().to_string();
    let cause = first_cause(options(&host, port, node(&core, None), Dialer::default())).await;
    assert!(matches!(cause, Cause::Network { .. }), "{cause}");
}

#[tokio::test]
async fn link_to_a_cloud_core_passes_a_proxy_without_a_password() {
    let core = Scripted::start(Options::default());
    let port = core.address().port();
    let proxy = HttpProxy::open_tinyproxy(port);
    let dialer = through(proxy.address(), None);
    let (_link, mut events) = kubeedge::spawn(options("0.0.0.0", port, node(&core, None), dialer));
    link_connected(&mut events).await;
    core.until("the session is open", |core| core.connection_of(NODE).is_some()).await;
}

#[tokio::test]
async fn proxy_that_ends_tls_of_a_cloud_core_is_refused_by_its_issuer() {
    let core = Scripted::start(Options::default());
    let identity = Authority::new().server_for(&[NAME], -HOUR, HOUR);
    let proxy = Haproxy::terminating(&identity, core.address());
    let options = options(NAME, proxy.address().port(), node(&core, None), at(proxy.address()));
    is_refused_by_issuer(&core, options, "test authority").await;
}

/// The certificate of the node ends at the proxy, and CloudCore requires one.
#[tokio::test]
async fn proxy_with_a_certificate_of_a_cloud_core_lets_no_node_in() {
    let core = Scripted::start(Options::default());
    let identity = Identity::from_pem("a service", &core.service_identity()).unwrap();
    let proxy = Haproxy::terminating(&identity, core.address());
    let cause =
        first_cause(options(NAME, proxy.address().port(), node(&core, None), at(proxy.address()))).await;
    assert!(matches!(cause, Cause::Closed | Cause::Network { .. }), "{cause}");
    assert!(!core.is_connected(NODE));
}

#[tokio::test]
async fn inspecting_proxy_before_a_cloud_core_is_refused_by_its_issuer() {
    let core = Scripted::start(Options::default());
    let port = core.address().port();
    let Some(proxy) = Mitmproxy::connect() else { return };
    let dialer = || through(proxy.address(), None);
    let refused = options("0.0.0.0", port, node(&core, None), dialer());
    is_refused_by_issuer(&core, refused, mitmproxy::ISSUER).await;
    // With its CA configured on purpose, the proxy has no certificate of the node to present.
    // It may keep the connection open that CloudCore has refused.
    let connect_timeout = scaled(Duration::from_secs(5));
    let trusting = options("0.0.0.0", port, node(&core, Some(proxy.trust())), dialer());
    let cause = first_cause(KubeEdgeOptions { connect_timeout, ..trusting }).await;
    assert!(!matches!(cause, Cause::Tls { .. }), "{cause}");
    assert!(!core.is_connected(NODE));
}

/// Accepts one connection after the other with TLS, and answers each message with itself.
async fn echo(authority: &Authority) -> SocketAddr {
    let identity = authority.server_for(&[NAME, SQUID_NAME], -HOUR, HOUR);
    let server = Server::new(&identity, &authority.rule(&[]), Clock::system([])).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok((stream, _)) = server.accept(stream).await else { continue };
            let mut peer = Peer::over(stream);
            let request = peer.request().await;
            peer.upgrade(&request).await;
            while let Some(message) = peer.message().await {
                if message.kind != TEXT {
                    break;
                }
                peer.frame(TEXT, &message.payload).await;
            }
        }
    });
    address
}

/// Returns the bytes in both directions between the node and `next`, TLS and tunnel included.
async fn bytes_of(next: SocketAddr, options: impl FnOnce(SocketAddr) -> KubeEdgeOptions) -> u64 {
    let line = Line::start(next);
    let (link, mut events) = kubeedge::spawn(options(line.address()));
    link_connected(&mut events).await;
    for _ in 0..MESSAGES {
        link.try_publish(kubeedge::TEXT, vec![b'7'; SIZE], false).unwrap();
        let LinkEvent::Message { payload, .. } = link_event(&mut events).await else { panic!("no message") };
        assert_eq!(payload.len(), SIZE);
    }
    let bytes = line.passed(Way::Up) + line.passed(Way::Down);
    assert!(bytes > (2 * MESSAGES * SIZE) as u64, "{bytes} bytes");
    bytes
}

#[tokio::test]
async fn each_way_to_a_cloud_core_costs_at_most_three_percent_more() {
    let authority = Authority::new();
    let core = echo(&authority).await;
    let client = || authority.client(&authority.node(NODE));
    let by_name = |line: SocketAddr| options(NAME, line.port(), client(), at(line));
    let direct = bytes_of(core, by_name).await;
    let haproxy = Haproxy::by_name(&[(NAME, core)]);
    let squid = HttpProxy::squid(core.port(), core.ip());
    let login = Some((USER, PASSWORD));
    let through_squid = |line| options(SQUID_NAME, core.port(), client(), through(line, login));
    for (way, bytes) in [
        ("a proxy that passes TLS on", bytes_of(haproxy.address(), by_name).await),
        ("CONNECT with a password", bytes_of(squid.address(), through_squid).await),
    ] {
        assert!(bytes * 100 <= direct * 103, "{way}: {bytes} bytes, {direct} directly");
    }
}
