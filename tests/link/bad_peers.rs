//! Proxies and WebSocket servers that misbehave: each is named in one sentence, costs little
//! memory, and is backed off from.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use edgesync_kubeedge::link as kubeedge;
use edgesync_transport::dial::{Dialer, LastGood};
use edgesync_transport::link::{Endpoint, Link, LinkEvent, LinkHandle, LinkOptions};
use edgesync_transport::proxy::{Proxy, ProxyRules};
use edgesync_transport::websocket;
use support::authority::Authority;
use support::fleet::{link_connected, link_event, node_options};
use support::timing::scaled;
use support::websocket::{TEXT, encoded, header};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::Receiver;

/// Failures of a link that are looked at.
const FAILURES: usize = 4;
/// Maximum number of bytes that a link may take from a peer in one attempt.
const MAX_TAKEN: u64 = 80 << 10;
/// Maximum pause between attempts, that of [`node_options`].
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// Behaviour after the first request of a connection.
#[derive(Clone, Copy)]
enum Answer {
    /// Sends this, and then nothing.
    Once(&'static [u8]),
    /// Sends the first, and the second as soon as more bytes arrive.
    Twice(&'static [u8], &'static [u8]),
    /// Sends the first, and then the second without end.
    Endless(&'static [u8], &'static [u8]),
    /// Sends the first, and then a byte at a time without end.
    Drip(&'static [u8]),
}

/// A peer that misbehaves.
struct BadPeer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl BadPeer {
    /// Starts one. With `upgrade` it accepts a WebSocket first, with these header fields.
    async fn start(upgrade: Option<&'static str>, answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, requests) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (accepted, asked) = (Arc::clone(&connections), Arc::clone(&requests));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::SeqCst);
                let asked = Arc::clone(&asked);
                // Ends with the connection.
                tokio::spawn(async move { converse(stream, upgrade, answer, &asked).await });
            }
        });
        Self { address, connections, requests }
    }

    /// Returns the options of a link through this peer as the proxy.
    fn as_proxy(&self) -> LinkOptions {
        let mut options = node_options(self.address, "n-1");
        options.endpoints = vec![endpoint("broker.example", 8883, false)];
        let authority = Authority::new();
        options.secure(authority.client(&authority.node("n-1")));
        let proxy = Proxy::new(&self.address.ip().to_string(), self.address.port(), None);
        options.dialer = Dialer::new(ProxyRules::new(proxy, ""), LastGood::default());
        options
    }

    /// Returns the options of a link to this peer as a broker's WebSocket.
    fn as_broker(&self) -> LinkOptions {
        let mut options = node_options(self.address, "n-1");
        options.endpoints = vec![endpoint(&self.address.ip().to_string(), self.address.port(), true)];
        options
    }

    /// Asserts that a link fails with these words, again and again, with one request per connection
    /// and pauses in between; and that it reads little.
    async fn is_named(&self, (link, mut events): (LinkHandle, Receiver<LinkEvent>), words: &str) {
        let mut failures = 0;
        while failures < FAILURES {
            let LinkEvent::Disconnected { cause, retry_in } = link_event(&mut events).await else { continue };
            assert!(cause.to_string().contains(words), "{words}: {cause}");
            assert!(retry_in <= MAX_PAUSE, "{retry_in:?}");
            failures += 1;
        }
        let taken = link.traffic().bytes_in;
        drop(link);
        let attempts = self.connections.load(Ordering::SeqCst);
        assert!((FAILURES..=FAILURES + 1).contains(&attempts), "{words}: {attempts} connections");
        let requests = self.requests.lock().unwrap().len();
        assert!(requests <= attempts, "{words}: {requests} requests over {attempts} connections");
        assert!(taken <= MAX_TAKEN * attempts as u64, "{words}: {taken} bytes taken");
    }
}

fn endpoint(host: &str, port: u16, websocket: bool) -> Endpoint {
    Endpoint { host: host.to_owned(), port, tls: false, websocket }
}

/// Reads the head of a request; `None` at the end of the connection.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

/// Misbehaves on one connection until the client ends it. Records every further request, too.
async fn converse(mut stream: TcpStream, upgrade: Option<&str>, answer: Answer, asked: &Mutex<Vec<String>>) {
    let Some(request) = head(&mut stream).await else { return };
    asked.lock().unwrap().push(request.clone());
    if let Some(fields) = upgrade {
        let key = header(&request, "sec-websocket-key").unwrap();
        let accepted = websocket::accept(|name| match name {
            // CloudCore's clients offer no subprotocol.
            "sec-websocket-protocol" => Some("mqtt"),
            "sec-websocket-key" => Some(key),
            other => header(&request, other),
        });
        let response = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n{fields}\r\n",
            accepted.unwrap()
        );
        if stream.write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
    let (mut reader, mut writer) = stream.into_split();
    let (Answer::Once(first) | Answer::Twice(first, _) | Answer::Endless(first, _) | Answer::Drip(first)) =
        answer;
    if writer.write_all(first).await.is_err() {
        return;
    }
    match answer {
        Answer::Once(_) => {}
        Answer::Twice(_, second) => {
            if reader.read_u8().await.is_err() || writer.write_all(second).await.is_err() {
                return;
            }
        }
        Answer::Endless(_, piece) => {
            let many = piece.repeat(1000);
            while writer.write_all(&many).await.is_ok() {}
            return;
        }
        Answer::Drip(_) => {
            let mut pace = tokio::time::interval(Duration::from_millis(10));
            while writer.write_all(b"x").await.is_ok() {
                pace.tick().await;
            }
            return;
        }
    }
    while let Some(another) = head(&mut reader).await {
        asked.lock().unwrap().push(another);
    }
}

#[tokio::test]
async fn misbehaving_proxy_is_named_and_asked_once_per_attempt() {
    const PAGE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>Welcome</html>";
    const LOGIN: &[u8] =
        b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\
                           Content-Length: 0\r\n\r\n";
    const TUNNEL: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
    const REJECTED: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\r\n<html>";
    for (answer, words) in [
        (Answer::Once(b"<html><body>Log in</body></html>"), "not an HTTP response"),
        (Answer::Once(PAGE), "captive portal"),
        // 200 to everything, also to TLS.
        (Answer::Twice(TUNNEL, REJECTED), "answers with HTTP where TLS is expected"),
        (Answer::Once(LOGIN), "requires a user name and a password (HTTP status 407)"),
        (Answer::Endless(b"HTTP/1.1 200 OK\r\n", b"X-Header: y\r\n"), "exceeds"),
        (Answer::Endless(b"HTTP/1.1 200 OK\r\nX-Header: ", b"y"), "exceeds"),
    ] {
        let proxy = BadPeer::start(None, answer).await;
        proxy.is_named(Link::spawn(proxy.as_proxy()), words).await;
    }
}

#[tokio::test]
async fn peer_that_drips_ends_at_the_time_limit() {
    let drip = Answer::Drip(b"HTTP/1.1 200 OK\r\nVia: ");
    let proxy = BadPeer::start(None, drip).await;
    let broker = BadPeer::start(None, drip).await;
    for (peer, mut options) in [(&proxy, proxy.as_proxy()), (&broker, broker.as_broker())] {
        options.connect_timeout = scaled(Duration::from_millis(300));
        peer.is_named(Link::spawn(options), "timed out after").await;
    }
}

#[tokio::test]
async fn misbehaving_web_socket_of_a_broker_is_named() {
    const MQTT: Option<&str> = Some("Sec-WebSocket-Protocol: mqtt\r\n");
    const HUGE: &[u8] = &[0x82, 127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x20];
    for (upgrade, answer, words) in [
        (Some("Sec-WebSocket-Protocol: mqttv3.1\r\n"), Answer::Once(b""), "server chose 'mqttv3.1'"),
        (None, Answer::Once(b"HTTP/1.1 200 OK\r\n\r\n<html>"), "HTTP status 200"),
        (None, Answer::Once(b"<html><body>Log in</body></html>"), "not an HTTP response"),
        (None, Answer::Endless(b"HTTP/1.1 101 x\r\n", b"X-Header: y\r\n"), "exceeds"),
        (MQTT, Answer::Once(&[0x82, 0x81, 0, 0, 0, 0, 0x20]), "masked WebSocket frame of a server"),
        (MQTT, Answer::Once(&[0x81, 0x01, b'a']), "requires binary messages"),
        (MQTT, Answer::Once(HUGE), "exceeds the limit"),
        (MQTT, Answer::Endless(b"", &[0x89, 0x00]), "WebSocket frames in sequence without data"),
    ] {
        let broker = BadPeer::start(upgrade, answer).await;
        broker.is_named(Link::spawn(broker.as_broker()), words).await;
    }
}

#[tokio::test]
async fn misbehaving_web_socket_of_a_cloud_core_is_named() {
    const HUGE: &[u8] = &[0x81, 127, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, b'a'];
    for (upgrade, answer, words) in [
        (Some("Sec-WebSocket-Protocol: mqtt\r\n"), Answer::Once(b""), "invalid response"),
        (None, Answer::Once(b"HTTP/1.1 200 OK\r\n\r\n<html>"), "not a WebSocket"),
        (None, Answer::Once(b"<html><body>Log in</body></html>\r\n\r\n"), "does not speak HTTP"),
        (None, Answer::Endless(b"HTTP/1.1 101 x\r\n", b"X-Header: y\r\n"), "response head is too large"),
        (None, Answer::Endless(b"HTTP/1.1 101 x\r\nX-Header: ", b"y"), "response head is too large"),
        (Some(""), Answer::Once(&[0x81, 0x81, 0, 0, 0, 0, b'a']), "masked"),
        (Some(""), Answer::Once(HUGE), "exceeds the limit"),
    ] {
        let core = BadPeer::start(upgrade, answer).await;
        core.is_named(kubeedge::spawn(support::websocket::options(core.address)), words).await;
    }
}

/// CloudCore's link has its own limit for silence, and pings break none. They cost no memory.
#[tokio::test]
async fn endless_pings_of_a_cloud_core_delay_no_message() {
    const PINGS: usize = 20_000;
    let (listener, address) = support::websocket::listen().await;
    let (link, mut events) = kubeedge::spawn(support::websocket::options(address));
    let mut peer = support::websocket::Peer::accept(&listener).await;
    link_connected(&mut events).await;
    let mut bytes = encoded(true, support::websocket::PING, b"are you there").repeat(PINGS);
    bytes.extend(encoded(true, TEXT, b"after them"));
    let (mut reader, mut writer) = peer.stream.split();
    let (written, answers) =
        tokio::join!(writer.write_all(&bytes), answered(&mut reader, &mut events, b"after them"));
    written.unwrap();
    assert!(answers <= PINGS * 20, "{answers} bytes of pongs");
    assert_eq!(link.traffic().messages_in, 1);
}

/// Reads what the client sends until it has received a message; returns its bytes.
async fn answered(
    reader: &mut (impl AsyncRead + Unpin),
    events: &mut Receiver<LinkEvent>,
    expected: &[u8],
) -> usize {
    let (mut taken, mut buffer) = (0, vec![0; 64 << 10]);
    loop {
        tokio::select! {
            read = reader.read(&mut buffer) => taken += read.unwrap(),
            event = link_event(events) => match event {
                LinkEvent::Message { payload, .. } => {
                    assert_eq!(payload, expected);
                    return taken;
                }
                other => panic!("{other:?} instead of a message"),
            },
        }
    }
}
