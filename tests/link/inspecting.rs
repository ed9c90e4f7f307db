//! A real mitmproxy between node and broker: refused by its issuer, and what it means to trust it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use std::net::SocketAddr;
use std::time::Duration;

use edgesync_broker::BrokerOptions;
use edgesync_transport::dial::{Dialer, LastGood};
use edgesync_transport::link::{Cause, Endpoint, Link, LinkEvent, LinkOptions};
use edgesync_transport::proxy::{Proxy, ProxyRules};
use edgesync_transport::tls::{Client, Clock, Server};
use support::authority::{Authority, HOUR};
use support::fleet::{bind, link_connected, link_event, node_options};
use support::mitmproxy::{ISSUER, Mitmproxy};
use support::mosquitto::{Mosquitto, free_address};
use support::timing::{PATIENCE, scaled};

/// Name of the broker. Its address is known from an earlier connection.
const NAME: &str = "broker.example";
/// The address that a proxy takes for its own machine, which a node never reaches through a proxy.
const HERE: &str = "0.0.0.0";

/// Users of mosquitto: `n-1` with the password `secret`.
const USERS: &str = "n-1:$7$101$dLZ+tRe8O+bUbXgi$k9k8x7UbB9FU8L0D0jRpqXfLvlN9IvvRb3+AoVfsKtMRNQjoelXQcBgJXhdyjmUXLxkZdC49HdlWreJNGRg6bQ==\n";

/// Returns the options of node `n-1` for a broker by a name that leads to `address`.
fn by_name(address: SocketAddr, tls: Client) -> LinkOptions {
    let mut options = node_options(address, "n-1");
    options.endpoints =
        vec![Endpoint { host: NAME.to_owned(), port: address.port(), tls: false, websocket: false }];
    options.secure(tls);
    // The first certificate of the proxy takes a while on a busy machine.
    options.connect_timeout = PATIENCE;
    let stored = format!(r#"{{"peer":"","addresses":{{"{NAME}":"{}"}}}}"#, address.ip());
    options.dialer = Dialer::new(ProxyRules::default(), LastGood::new(Some(&stored), drop));
    options
}

/// Returns the options of node `n-1` for a broker of this machine through a proxy.
fn through(proxy: &Mitmproxy, port: u16, tls: Client) -> LinkOptions {
    let mut options = node_options(proxy.address(), "n-1");
    options.endpoints = vec![Endpoint { host: HERE.to_owned(), port, tls: false, websocket: false }];
    options.secure(tls);
    options.connect_timeout = PATIENCE;
    let proxy = Proxy::new(&proxy.address().ip().to_string(), proxy.address().port(), None);
    options.dialer = Dialer::new(ProxyRules::new(proxy, ""), LastGood::default());
    options
}

async fn first_cause(options: LinkOptions) -> Cause {
    let (_link, mut events) = Link::spawn(options);
    match link_event(&mut events).await {
        LinkEvent::Disconnected { cause, .. } => cause,
        other => panic!("{other:?} instead of Disconnected"),
    }
}

fn assert_names_the_issuer(cause: &Cause) {
    assert!(matches!(cause, Cause::Tls { kind: "other-authority", .. }), "{cause}");
    let expected = format!("is signed by another CA than the one this node joined: issuer '{ISSUER}'");
    assert!(cause.to_string().contains(&expected), "{cause}");
}

/// A proxy that a device names, and one that the network puts in its way.
#[tokio::test]
async fn mitmproxy_is_refused_and_gains_nothing_by_trust() {
    let authority = Authority::new();
    let identity = authority.server_for(&[NAME, HERE], -HOUR, HOUR);
    let server = Server::new(&identity, &authority.rule(&[]), Clock::system([])).unwrap();
    let (broker, _fleet) = bind(BrokerOptions { tls: Some(server), ..BrokerOptions::default() }).await;
    let (Some(named), Some(unasked)) = (Mitmproxy::connect(), Mitmproxy::transparent(broker.address()))
    else {
        return;
    };
    let node = authority.node("n-1");
    let port = broker.address().port();
    for options in
        [through(&named, port, authority.client(&node)), by_name(unasked.address(), authority.client(&node))]
    {
        assert_names_the_issuer(&first_cause(options).await);
    }
    // Trusted on purpose, it still has no certificate of the node to present.
    let trusting = |proxy: &Mitmproxy| Client::new(&proxy.trust(), Some(&node), Clock::system([])).unwrap();
    for mut options in
        [through(&named, port, trusting(&named)), by_name(unasked.address(), trusting(&unasked))]
    {
        // It may keep the connection open that the broker has refused.
        options.connect_timeout = scaled(Duration::from_secs(5));
        let cause = first_cause(options).await;
        let is_expected =
            matches!(cause, Cause::Closed | Cause::Network { .. } | Cause::ConnectTimeout { .. });
        assert!(is_expected, "{cause}");
    }
    assert_eq!(broker.traffic().connected, 0);
}

/// Where nodes have passwords instead of certificates, a trusted proxy passes the link, and reads
/// it.
#[tokio::test]
async fn trusted_mitmproxy_passes_a_link_with_a_password() {
    let Some(proxy) = Mitmproxy::connect() else { return };
    let (authority, port) = (Authority::new(), free_address().port());
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    // The certificate and its key are in one file.
    let server = file("server.pem", &authority.server_for(&[HERE], -HOUR, HOUR).to_pem());
    let config = format!(
        "listener {port} 127.0.0.1\ncertfile {server}\nkeyfile {server}\nallow_anonymous false\npassword_file {}\n\
         persistence false\nlog_dest stderr\n",
        file("users", USERS)
    );
    let config = file("mosquitto.conf", &config);
    let _mosquitto = Mosquitto::start_from(([127, 0, 0, 1], port).into(), config.as_ref());
    let tls = || Client::new(&proxy.trust(), None, Clock::system([])).unwrap();
    let options = |password: &str| {
        let mut options = through(&proxy, port, tls());
        options.username = Some("n-1".to_owned());
        options.password = Some(password.to_owned());
        options.own_topic = None;
        options.subscriptions = vec!["t/echo".to_owned()];
        options
    };
    let cause = first_cause(options("wrong")).await;
    assert!(matches!(cause, Cause::NotAuthorized { .. }), "{cause}");
    let (link, mut events) = Link::spawn(options("secret"));
    link_connected(&mut events).await;
    link.try_publish("t/echo", b"read on the way".to_vec(), false).unwrap();
    let LinkEvent::Message { payload, .. } = link_event(&mut events).await else { panic!("no message") };
    assert_eq!(payload, b"read on the way");
}
