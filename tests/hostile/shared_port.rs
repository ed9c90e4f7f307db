//! Attacks of strangers and of a node on an address that all services share.

use std::collections::VecDeque;
use std::net::SocketAddr;

use edgesync_testkit::alpn::{self, Connection, Offer};
use edgesync_testkit::site::fleet::{Fleet, in_sync, stored};
use edgesync_testkit::site::{Cloud, PATIENCE, Site, config_map, same_on_both_sides};
use edgesync_testkit::timing::within;
use edgesync_transport::tls::{Identity, Trust};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Half-open connections at a time. They take as many descriptors here and in the cloud side.
const HALF_OPEN: usize = 10_000;
/// Connections with half a request for the join service: more than it has permits.
const HALF_REQUESTS: usize = 400;
/// Maximum growth of the cloud side for one hostile node, in KiB.
const GROWTH: u64 = 32 << 10;
/// The beginning of a TLS record with a ClientHello.
const HALF_HELLO: &[u8] = &[0x16, 3, 1, 2, 0, 1, 0];

/// Starts a cloud side whose services have one address only.
async fn fleet(site: &Site) -> Fleet {
    let address = Site::address();
    let mut cloud = Cloud::start_with(site, |settings| {
        settings.text("listen.address", address);
        settings.text("broker.listen", "off").text("api.listen", "off").text("enrollment.listen", "off");
    })
    .await;
    cloud.mqtt = address;
    Fleet { cloud, joining: address }
}

/// Opens [`HALF_OPEN`] connections, every second one with half a ClientHello, and replaces the
/// oldest for as long as it runs.
fn hold_half_open(address: SocketAddr, many: oneshot::Sender<()>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let (mut held, mut many) = (VecDeque::new(), Some(many));
        for number in 0_u64.. {
            // The cloud side may close it at once.
            if let Ok(mut stream) = TcpStream::connect(address).await {
                if number % 2 == 0 {
                    let _ = stream.write_all(HALF_HELLO).await;
                }
                held.push_back(stream);
            }
            if held.len() >= HALF_OPEN {
                held.pop_front();
                many.take().map(|many| many.send(()));
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_on_one_port_stop_no_join() {
    let site = Site::new();
    let fleet = fleet(&site).await;
    let mut good = fleet.device(&site, "edge-good").await;
    good.run_as_configured().await;
    in_sync(&good).await;
    let (many, came) = oneshot::channel();
    let attack = hold_half_open(fleet.joining, many);
    within("the half-open connections are there", PATIENCE, came).await.unwrap();
    let mut new = fleet.device(&site, "edge-new").await;
    new.run_as_configured().await;
    in_sync(&new).await;
    fleet.cloud.apply([config_map(1)]).await;
    for agent in [&good, &new] {
        same_on_both_sides(&fleet.cloud, agent).await;
    }
    assert!(!attack.is_finished());
    assert_eq!(fleet.cloud.counters("edge-good").await.hellos, 1, "the good node has noticed");
    attack.abort();
}

/// Opens a connection with these protocols and sends the first bytes inside TLS.
async fn begun(address: SocketAddr, trust: &Trust, offer: Offer<'_>, bytes: &[u8]) -> Option<Connection> {
    let mut stream = alpn::connect(address, trust, offer).await.ok()?;
    stream.write_all(bytes).await.ok()?;
    stream.flush().await.ok()?;
    Some(stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_one_service_leaves_the_others_of_its_port() {
    let site = Site::new();
    let fleet = fleet(&site).await;
    let mut good = fleet.device(&site, "edge-good").await;
    let trust = Trust::new(stored(&good).ca);
    let name = fleet.joining.ip().to_string();
    let offer = Offer { name: &name, protocols: &["http/1.1"], identity: None };
    let mut held = Vec::new();
    for _ in 0..HALF_REQUESTS {
        held.push(begun(fleet.joining, &trust, offer, b"GET /ca.crt HTTP/1.1\r\n").await);
    }
    good.run_as_configured().await;
    in_sync(&good).await;
    let mut new = fleet.device(&site, "edge-new").await;
    new.run_as_configured().await;
    in_sync(&new).await;
    assert!(held.iter().any(Option::is_some));
}

/// A request for a WebSocket with these header fields.
fn upgrade(fields: &str) -> Vec<u8> {
    let request = "GET /mqtt HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    format!("{request}{fields}\r\n").into_bytes()
}

/// Sends a request and then frames, repeatedly until the connection ends; returns all answers.
async fn provoke(stream: &mut Connection, request: &[u8], frames: &[u8], times: usize) -> Vec<u8> {
    let mut answers = Vec::new();
    let _ = stream.write_all(request).await;
    for _ in 0..times {
        if stream.write_all(frames).await.is_err() {
            break;
        }
    }
    let _ = stream.flush().await;
    // The end of the stream, or a reset because of unread data.
    let _ = within("the connection ends", PATIENCE, stream.read_to_end(&mut answers)).await;
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_web_socket_clients_end_their_connection_only() {
    const MQTT: &str = "Sec-WebSocket-Protocol: mqtt\r\n";
    let site = Site::new();
    let fleet = fleet(&site).await;
    let mut good = fleet.device(&site, "edge-good").await;
    good.run_as_configured().await;
    in_sync(&good).await;
    let stolen = stored(&fleet.device(&site, "edge-bad").await);
    let (trust, identity): (Trust, Identity) = (Trust::new(stolen.ca), stolen.identity);
    let name = fleet.joining.ip().to_string();
    let offer = Offer { name: &name, protocols: &["http/1.1"], identity: Some(&identity) };
    let before = fleet.cloud.process.resident();
    let many_fields = format!("{MQTT}{}", "A: b\r\n".repeat(1000));
    let long_field = format!("{MQTT}A: {}\r\n", "b".repeat(64 << 10));
    let huge = [0x82, 0xff, 0x3f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0x10];
    let cases: [(&str, &[u8], usize, &[u8]); 9] = [
        // Each frame is a masked ping without payload.
        (MQTT, &[0x89, 0x80, 0, 0, 0, 0], 100_000, b"HTTP/1.1 101 "),
        (MQTT, &[0x82, 0x02, 0x10, 0x00], 1, b"HTTP/1.1 101 "),
        (MQTT, &[0x81, 0x82, 0, 0, 0, 0, 0x10, 0x00], 1, b"HTTP/1.1 101 "),
        (MQTT, &huge, 1, b"HTTP/1.1 101 "),
        (MQTT, &[0xc2, 0x81, 0, 0, 0, 0, 0x10], 1, b"HTTP/1.1 101 "),
        ("Sec-WebSocket-Protocol: mqttv3.1\r\n", &[], 0, b"HTTP/1.1 400 "),
        ("Sec-WebSocket-Protocol: mqtt\r\nOrigin: https://evil.example\r\n", &[], 0, b"HTTP/1.1 403 "),
        (&many_fields, &[], 0, b"HTTP/1.1 431 "),
        (&long_field, &[], 0, b"HTTP/1.1 431 "),
    ];
    for (fields, frames, times, expected) in cases {
        let mut stream = alpn::connect(fleet.joining, &trust, offer).await.unwrap();
        let answers = provoke(&mut stream, &upgrade(fields), frames, times).await;
        let shown = String::from_utf8_lossy(&answers);
        // A reset may discard an answer.
        assert!(answers.is_empty() || answers.starts_with(expected), "{expected:?}: {shown}");
    }
    fleet.cloud.process.logged("WebSocket frames in sequence without data", 0).await;
    let grown = fleet.cloud.process.resident_peak().saturating_sub(before);
    assert!(grown < GROWTH, "the cloud side has grown by {grown} KiB");
    fleet.cloud.apply([config_map(1)]).await;
    same_on_both_sides(&fleet.cloud, &good).await;
    assert_eq!(fleet.cloud.counters("edge-good").await.hellos, 1, "the good node has noticed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_get_nothing_but_joining_on_the_shared_port() {
    let site = Site::new();
    let fleet = fleet(&site).await;
    let trust = Trust::new(stored(&fleet.device(&site, "edge-1").await).ca);
    let name = fleet.joining.ip().to_string();
    for protocols in [&["http/1.1"] as &[&str], &[]] {
        let offer = Offer { name: &name, protocols, identity: None };
        for path in ["/", "/page/", "/version", "/metrics", "/api/v1/secrets", "/edge.crt"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
            let mut stream = begun(fleet.joining, &trust, offer, request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let _ = within("the answer", PATIENCE, stream.read_to_end(&mut answer)).await;
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with("HTTP/1.1 401 "), "{path}: {answer}");
        }
    }
}
