//! Connections on loopback, directly and through scripted proxies.

use std::time::Instant;

use super::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const WITHIN: Duration = Duration::from_secs(30);

/// Reads the head of a request.
async fn request(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Starts a proxy that answers `answer` to each request, and then echoes. Returns its address.
async fn scripted(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let request = request(&mut stream).await;
                assert!(request.starts_with("CONNECT broker.example:8883 HTTP/1.1\r\n"), "{request}");
                stream.write_all(answer.as_bytes()).await.unwrap();
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    address
}

fn through(proxy: SocketAddr) -> Dialer {
    let proxy = Proxy::new(&proxy.ip().to_string(), proxy.port(), None);
    Dialer::new(ProxyRules::new(proxy, ""), LastGood::default())
}

#[tokio::test]
async fn tunnel_carries_bytes_and_its_peer_is_not_resolved() {
    // The name does not exist: only the proxy would resolve it.
    let dialer = through(scripted("HTTP/1.1 200 Connection established\r\n\r\n").await);
    let mut stream = dialer.open("broker.example", 8883, WITHIN).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut echoed = [0; 5];
    stream.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"hello");
}

#[tokio::test]
async fn refusing_proxy_is_named_with_its_answer() {
    let proxy = scripted("HTTP/1.1 403 Forbidden\r\n\r\n").await;
    let error = through(proxy).open("broker.example", 8883, WITHIN).await.unwrap_err().to_string();
    let expected = format!("proxy http://{proxy} does not allow broker.example:8883");
    assert!(error.starts_with(&expected), "{error}");
}

#[tokio::test]
async fn closed_port_of_the_proxy_is_named() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = through(closed).open("broker.example", 8883, WITHIN).await.unwrap_err().to_string();
    assert_eq!(error, format!("proxy http://{closed} unreachable: connect to {closed}: connection refused"));
}

#[tokio::test(start_paused = true)]
async fn proxy_that_drips_ends_at_the_time_limit() {
    let (mut stream, mut peer) = tokio::io::duplex(1024);
    let dripping = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if peer.write_all(b"H").await.is_err() {
                return;
            }
        }
    });
    let dialer = through("192.0.2.1:3128".parse().unwrap());
    // Not even "HTTP" comes: the first byte that cannot be the head of a response ends it.
    let error =
        timeout(WITHIN, dialer.tunnel(&mut stream, "broker.example", 8883)).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("not an HTTP response"), "{error}");
    drop(stream);
    dripping.await.unwrap();
}

#[tokio::test]
async fn silent_proxy_ends_at_the_time_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let begun = Instant::now();
    let error = through(address).open("broker.example", 8883, Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, DialError::TimedOut { .. }), "{error}");
    assert!(begun.elapsed() >= Duration::from_millis(50));
}

#[tokio::test]
async fn last_good_address_replaces_a_name_that_does_not_resolve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let stored = r#"{"peer":"","addresses":{"broker.invalid":"127.0.0.1"}}"#;
    let dialer = Dialer::new(ProxyRules::default(), LastGood::new(Some(stored), drop));
    dialer.open("broker.invalid", port, WITHIN).await.unwrap();
    let error = dialer.open("other.invalid", port, WITHIN).await.unwrap_err();
    assert!(matches!(error, DialError::Dns { .. }), "{error}");
}

/// The link and the renewal of the certificate connect at the same time, each with its dialer.
#[tokio::test]
async fn success_is_recorded_for_the_connection_of_its_own_dialer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // The names do not resolve; the addresses are those of an earlier run.
    let addresses = r#"{"link.invalid":"127.0.0.1","join.invalid":"127.0.0.1"}"#;
    let stored: Arc<Mutex<Vec<String>>> = Arc::default();
    let keep = Arc::clone(&stored);
    let last_good = LastGood::new(Some(&format!(r#"{{"peer":"","addresses":{addresses}}}"#)), move |text| {
        keep.lock().unwrap().push(text);
    });
    let link = Dialer::new(ProxyRules::default(), last_good.clone());
    let renewal = Dialer::new(ProxyRules::default(), last_good.clone());
    link.open("link.invalid", port, WITHIN).await.unwrap();
    renewal.open("join.invalid", port, WITHIN).await.unwrap();
    link.worked(Some("mqtts://link.invalid:8883"));
    assert!(renewal.dialed.lock().unwrap().is_some(), "taken by the link");
    renewal.worked(None);
    let texts = stored.lock().unwrap().clone();
    assert_eq!(texts.len(), 1, "the renewal has no new address and no peer: {texts:?}");
    assert!(texts[0].contains("mqtts://link.invalid:8883"), "{texts:?}");
    // An address in place of a name needs no record.
    renewal.open("127.0.0.1", port, WITHIN).await.unwrap();
    assert!(renewal.dialed.lock().unwrap().is_none());
}

/// Sends the head of a response, one byte a second, without an end.
#[tokio::test(start_paused = true)]
async fn valid_head_that_drips_ends_at_the_time_limit() {
    let (mut stream, mut peer) = tokio::io::duplex(1024);
    let dripping = tokio::spawn(async move {
        for byte in b"HTTP/1.1 200 OK\r\nVia: ".iter().chain(std::iter::repeat(&b'x')) {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if peer.write_all(&[*byte]).await.is_err() {
                return;
            }
        }
    });
    let dialer = through("192.0.2.1:3128".parse().unwrap());
    let waiting = timeout(WITHIN, dialer.tunnel(&mut stream, "broker.example", 8883)).await;
    assert!(waiting.is_err(), "{waiting:?}");
    drop(stream);
    dripping.await.unwrap();
}
