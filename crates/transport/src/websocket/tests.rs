//! Both sides of a WebSocket over a pipe, and peers that violate the protocol.

use super::*;
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};

fn pair(size: usize) -> (WebSocket<DuplexStream>, WebSocket<DuplexStream>) {
    let (client, server) = duplex(size);
    let client = WebSocket::new(client, Role::Client, BytesMut::new());
    (client, WebSocket::new(server, Role::Server, BytesMut::new()))
}

/// A client, and the raw stream of its peer.
fn client(size: usize) -> (WebSocket<DuplexStream>, DuplexStream) {
    let (client, peer) = duplex(size);
    (WebSocket::new(client, Role::Client, BytesMut::new()), peer)
}

/// Reads a client's frame from the wire; returns its type and its payload.
async fn frame(peer: &mut DuplexStream) -> (u8, Vec<u8>) {
    let mut head = [0; 6];
    peer.read_exact(&mut head).await.unwrap();
    assert!(head[1] & 0x80 != 0, "unmasked");
    let mut payload = vec![0; usize::from(head[1] & 0x7f)];
    peer.read_exact(&mut payload).await.unwrap();
    for (at, byte) in payload.iter_mut().enumerate() {
        *byte ^= head[2 + at % 4];
    }
    (head[0], payload)
}

#[tokio::test]
async fn streams_of_both_sides_arrive_whole() {
    // The pipe is smaller than a frame, so that frames are written and read in parts.
    let (mut client, mut server) = pair(1000);
    let sent: Vec<u8> = (0..100_000_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    let (expected, back) = (sent.clone(), sent.clone());
    let serving = tokio::spawn(async move {
        let mut received = vec![0; expected.len()];
        server.read_exact(&mut received).await.unwrap();
        assert_eq!(received, expected);
        server.write_all(&received).await.unwrap();
        server.shutdown().await.unwrap();
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
    });
    client.write_all(&sent).await.unwrap();
    client.flush().await.unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, back);
    // The answer to the close frame.
    client.shutdown().await.unwrap();
    serving.await.unwrap();
}

#[tokio::test]
async fn ping_is_answered_while_the_client_reads() {
    let (mut client, mut peer) = client(1000);
    peer.write_all(&[0x89, 0x02, b'h', b'i', 0x82, 0x01, b'a']).await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'a');
    assert_eq!(frame(&mut peer).await, (0x8a, b"hi".to_vec()));
}

#[tokio::test]
async fn pings_to_a_client_that_cannot_write_use_no_memory() {
    let (mut client, mut peer) = client(64);
    let writing = tokio::spawn(async move {
        for _ in 0..200 {
            peer.write_all(&[0x89, 0x01, 7]).await.unwrap();
        }
        peer.write_all(&[0x82, 0x01, b'a']).await.unwrap();
        peer
    });
    assert_eq!(client.read_u8().await.unwrap(), b'a');
    assert!(client.out.len() <= 14, "{} bytes of answers", client.out.len());
    drop(writing.await.unwrap());
}

#[tokio::test]
async fn violation_ends_the_connection_with_its_name() {
    for (bytes, problem) in [
        (&[0x82, 0x81, 0, 0, 0, 0, 0][..], "masked WebSocket frame of a server"),
        (&[0x81, 0x01, b'a'][..], "requires binary messages"),
        (&[0x82, 127, 0x7f, 0, 0, 0, 0, 0, 0, 0][..], "exceeds the limit"),
    ] {
        let (mut client, mut peer) = client(1000);
        peer.write_all(bytes).await.unwrap();
        let error = client.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains(problem), "{error}");
        assert_eq!(frame(&mut peer).await, (0x88, VIOLATION.to_be_bytes().to_vec()));
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn close_frame_ends_the_stream_and_names_a_complaint() {
    let (mut quiet, mut peer) = client(1000);
    peer.write_all(&[0x88, 0x02, 3, 232]).await.unwrap();
    assert_eq!(quiet.read(&mut [0; 1]).await.unwrap(), 0);
    assert_eq!(frame(&mut peer).await, (0x88, NORMAL.to_be_bytes().to_vec()));

    let (mut refused, mut peer) = client(1000);
    peer.write_all(&[0x88, 0x04, 3, 240, b'n', b'o']).await.unwrap();
    let error = refused.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(error.to_string(), "WebSocket closed by the peer: 1008 no");
}

#[tokio::test]
async fn end_within_a_frame_is_an_error() {
    let (mut client, mut peer) = client(1000);
    peer.write_all(&[0x82, 0x05, b'a']).await.unwrap();
    drop(peer);
    assert_eq!(client.read_u8().await.unwrap(), b'a');
    assert_eq!(client.read_u8().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn upgrade_is_requested_and_checked() {
    let (stream, mut peer) = duplex(4096);
    let serving = tokio::spawn(async move {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(peer.read_u8().await.unwrap());
        }
        let request = String::from_utf8(request).unwrap();
        let header = |name: &str| {
            let mut fields = request.lines().filter_map(|line| line.split_once(": "));
            fields.find_map(|(field, value)| field.eq_ignore_ascii_case(name).then_some(value))
        };
        let accepted = accept(header).unwrap();
        let response = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {accepted}\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
        );
        // The first frame comes with the head.
        let mut bytes = response.into_bytes();
        bytes.extend_from_slice(&[0x82, 0x01, b'a']);
        peer.write_all(&bytes).await.unwrap();
        peer
    });
    let mut client = connect(stream, "broker.example:443").await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'a');
    drop(serving.await.unwrap());
}

#[tokio::test]
async fn refused_upgrade_has_the_status_of_the_server() {
    let (stream, mut peer) = duplex(4096);
    peer.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    let error = connect(stream, "broker.example:443").await.unwrap_err();
    assert!(error.to_string().starts_with("HTTP status 404 Not Found: no MQTT at /mqtt"), "{error}");
}
