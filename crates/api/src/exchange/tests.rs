use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf};

use super::*;

const LIMITS: ExchangeLimits = ExchangeLimits { body_bytes: 1000, patience: Duration::from_secs(30) };

fn request(method: &str, body: &[u8]) -> HttpRequest {
    HttpRequest {
        method: method.to_owned(),
        path: "/edge.crt?x=1".to_owned(),
        headers: vec![("nodename".to_owned(), "n-1".to_owned())],
        body: body.to_vec(),
    }
}

/// Replies with the request that it received.
async fn echo(request: HttpRequest) -> HttpResponse {
    let name = request.header("nodename").unwrap_or("nobody");
    let told = format!("{} {} {name} {}", request.method, request.path, request.body.len());
    HttpResponse { code: 201, headers: vec![("x-told".to_owned(), told)], body: request.body }
}

/// A server that answers one connection with [`echo`].
fn served() -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(4096);
    tokio::spawn(serve_connection(theirs, LIMITS, Arc::new(echo)));
    ours
}

/// A peer that answers any request with these bytes.
fn answering(bytes: Vec<u8>) -> DuplexStream {
    let (ours, mut theirs) = tokio::io::duplex(4096);
    tokio::spawn(async move {
        let mut asked = [0; 4096];
        let _ = theirs.read(&mut asked).await;
        let _ = theirs.write_all(&bytes).await;
    });
    ours
}

/// Sends bytes and reads until the end.
async fn raw(mut stream: DuplexStream, bytes: &[u8]) -> String {
    stream.write_all(bytes).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn requests_and_responses_arrive_whole() {
    for method in ["GET", "POST"] {
        let body = vec![7; 1000];
        let response = exchange(served(), "cloud:10002", request(method, &body), 1000).await.unwrap();
        assert_eq!((response.code, response.body), (201, body));
        let told =
            response.headers.iter().find(|(name, _)| name == "x-told").map(|(_, value)| value.as_str());
        assert_eq!(told, Some(format!("{method} /edge.crt?x=1 n-1 1000").as_str()));
    }
}

#[tokio::test]
async fn bodies_beyond_the_limit_are_refused_on_both_sides() {
    let response = exchange(served(), "h", request("POST", &[7; 1001]), 1000).await.unwrap();
    assert_eq!(response.code, 413);
    assert_eq!(response.body, b"the body is longer than 1000 bytes\n");
    let chunked = "POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n";
    let bytes = format!("{chunked}3e9\r\n{}\r\n0\r\n\r\n", "x".repeat(1001));
    assert!(raw(served(), bytes.as_bytes()).await.starts_with("HTTP/1.1 413"));
    let error = exchange(served(), "h", request("POST", &[7; 900]), 899).await.unwrap_err();
    assert_eq!(error.to_string(), "the response is longer than 899 bytes");
    // A body of unknown length.
    let endless = [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &[b'x'; 2000]].concat();
    let error = exchange(answering(endless), "h", request("GET", b""), 1000).await.unwrap_err();
    assert_eq!(error.to_string(), "the response is longer than 1000 bytes");
}

#[tokio::test]
async fn heads_beyond_the_limit_are_refused_on_both_sides() {
    let many = "x: y\r\n".repeat(MAX_HEADERS + 1);
    let answer = raw(served(), format!("GET / HTTP/1.1\r\nhost: h\r\n{many}\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let answer = format!("HTTP/1.1 200 OK\r\n{many}\r\n").into_bytes();
    exchange(answering(answer), "h", request("GET", b""), 1000).await.unwrap_err();
}

#[tokio::test]
async fn invalid_http_is_an_error() {
    for bytes in [b"".as_slice(), b"\x15\x03\x01\0\x02\x02\x46", b"HTTP/1.1 999999 x\r\n\r\n", b"\0"] {
        exchange(answering(bytes.to_vec()), "h", request("GET", b""), 1000).await.unwrap_err();
    }
    let cut = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort".to_vec();
    exchange(answering(cut), "h", request("GET", b""), 1000).await.unwrap_err();
    let odd = HttpRequest { method: "GET".into(), path: "not a path".into(), ..HttpRequest::default() };
    exchange(served(), "h", odd, 1000).await.unwrap_err();
    let odd = HttpRequest { headers: vec![("a b".into(), "\n".into())], ..request("GET", b"") };
    exchange(served(), "h", odd, 1000).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn slow_client_is_cut() {
    for bytes in [
        b"".as_slice(),
        b"GET / HTTP/1.1\r\nhost:",
        b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 10\r\n\r\nshort",
    ] {
        let started = tokio::time::Instant::now();
        let _ = raw(served(), bytes).await;
        assert_eq!(started.elapsed().as_secs(), LIMITS.patience.as_secs());
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_does_not_read_is_cut() {
    let (mut ours, theirs) = tokio::io::duplex(16);
    let large =
        |_: HttpRequest| async { HttpResponse { code: 200, headers: Vec::new(), body: vec![7; 100_000] } };
    let serving = tokio::spawn(serve_connection(theirs, LIMITS, Arc::new(large)));
    ours.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
    serving.await.unwrap();
}

#[tokio::test]
async fn invalid_reply_becomes_a_server_error() {
    let (ours, theirs) = tokio::io::duplex(4096);
    let broken = |_: HttpRequest| async { HttpResponse { code: 7, ..HttpResponse::default() } };
    tokio::spawn(serve_connection(theirs, LIMITS, Arc::new(broken)));
    assert_eq!(exchange(ours, "h", request("GET", b""), 10).await.unwrap().code, 500);
}

/// A stream that accepts writes and fails on reads.
struct Failing;

impl AsyncRead for Failing {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::Error::other("the alert")))
    }
}

impl AsyncWrite for Failing {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn stream_failure_is_the_source_of_the_error() {
    let error = exchange(Failing, "h", request("GET", b""), 10).await.unwrap_err();
    let mut found: Option<&(dyn std::error::Error + 'static)> = Some(&*error);
    while let Some(error) = found {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            assert_eq!(io.to_string(), "the alert");
            return;
        }
        found = error.source();
    }
    panic!("{error:?}");
}
