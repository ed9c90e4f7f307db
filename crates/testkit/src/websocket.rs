//! A scripted WebSocket server, byte for byte.

use std::net::SocketAddr;
use std::time::Duration;

use edgesync_kubeedge::link::KubeEdgeOptions;
use edgesync_transport::dial::Dialer;
use edgesync_transport::link::RetryOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::timing::{PATIENCE, within};

pub const CONTINUATION: u8 = 0;
pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;

/// Options that retry at once; the keepalive is long unless a test shortens it.
pub fn options(address: SocketAddr) -> KubeEdgeOptions {
    KubeEdgeOptions {
        host: address.ip().to_string(),
        port: address.port(),
        project: "e632aba927ea4ac2b575ec1603d56f10".to_owned(),
        node: "edgea".to_owned(),
        tls: None,
        dialer: Dialer::default(),
        keepalive: Duration::from_secs(600),
        connect_timeout: PATIENCE,
        max_message: 32 << 20,
        retry: RetryOptions {
            first: Duration::from_millis(10),
            most: Duration::from_millis(50),
            ..RetryOptions::default()
        },
        queue: 256,
        queue_bytes: 64 << 20,
        events: 256,
    }
}

pub async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn within_patience<T>(what: &str, future: impl Future<Output = T>) -> T {
    within(what, PATIENCE, future).await
}

/// A received frame, unmasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub last: bool,
    pub kind: u8,
    pub payload: Vec<u8>,
}

/// One end of a connection, closed on drop.
pub struct Peer<S = TcpStream> {
    pub stream: S,
    /// Whether pings are answered while frames are read.
    pub answers: bool,
}

impl Peer {
    /// Accepts the next connection and upgrades it.
    pub async fn accept(listener: &TcpListener) -> Self {
        let (mut peer, request) = Self::asked(listener).await;
        peer.upgrade(&request).await;
        peer
    }

    /// Accepts the next connection and returns its request.
    pub async fn asked(listener: &TcpListener) -> (Self, String) {
        let (stream, _) = within_patience("accept", listener.accept()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut peer = Self::over(stream);
        let request = peer.request().await;
        (peer, request)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    pub fn over(stream: S) -> Self {
        Self { stream, answers: true }
    }

    pub async fn request(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(within_patience("request", self.stream.read_u8()).await.unwrap());
        }
        String::from_utf8(head).unwrap()
    }

    /// Answers as CloudCore does.
    pub async fn upgrade(&mut self, request: &str) {
        let key = header(request, "sec-websocket-key").expect("a key");
        let accept = derive_accept_key(key.as_bytes());
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        self.raw(answer.as_bytes()).await;
    }

    pub async fn raw(&mut self, bytes: &[u8]) {
        within_patience("write", self.stream.write_all(bytes)).await.unwrap();
        within_patience("flush", self.stream.flush()).await.unwrap();
    }

    pub async fn frame(&mut self, kind: u8, payload: &[u8]) {
        self.raw(&encoded(true, kind, payload)).await;
    }

    /// Sends a message in fragments of `size` bytes.
    pub async fn fragmented(&mut self, text: &[u8], size: usize) {
        let parts = text.len().div_ceil(size);
        for (number, part) in text.chunks(size).enumerate() {
            let kind = if number == 0 { TEXT } else { CONTINUATION };
            self.raw(&encoded(number + 1 == parts, kind, part)).await;
        }
    }

    /// Returns the next frame; none when the other side has closed.
    pub async fn next(&mut self) -> Option<Frame> {
        within_patience("a frame", self.read_frame()).await
    }

    /// Returns the next complete message, pong or close; answers pings if enabled.
    pub async fn message(&mut self) -> Option<Frame> {
        let mut whole: Option<Frame> = None;
        loop {
            let frame = self.next().await?;
            match frame.kind {
                PING if self.answers => self.frame(PONG, &frame.payload).await,
                PING => {}
                CONTINUATION => {
                    let message = whole.as_mut().expect("a beginning");
                    message.payload.extend_from_slice(&frame.payload);
                    message.last = frame.last;
                }
                PONG | CLOSE => return Some(frame),
                _ => assert_eq!(whole.replace(frame), None, "a message in a message"),
            }
            if let Some(message) = whole.take_if(|message| message.last) {
                return Some(message);
            }
        }
    }

    /// Returns the payload of the next ping.
    pub async fn pinged(&mut self) -> Vec<u8> {
        let frame = self.next().await.expect("a ping");
        assert_eq!(frame.kind, PING);
        frame.payload
    }

    async fn read_frame(&mut self) -> Option<Frame> {
        let first = self.stream.read_u8().await.ok()?;
        let second = self.stream.read_u8().await.ok()?;
        assert_eq!(first & 0x70, 0, "no extension was agreed on");
        assert_eq!(second & 0x80, 0x80, "a client masks");
        let length = match second & 0x7f {
            126 => u64::from(self.stream.read_u16().await.ok()?),
            127 => self.stream.read_u64().await.ok()?,
            short => u64::from(short),
        };
        let mut mask = [0; 4];
        self.stream.read_exact(&mut mask).await.ok()?;
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut payload).await.ok()?;
        for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
            *byte ^= mask;
        }
        Some(Frame { last: first & 0x80 != 0, kind: first & 0x0f, payload })
    }
}

/// Encodes a frame of a server.
pub fn encoded(last: bool, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind | if last { 0x80 } else { 0 }];
    match payload.len() {
        short @ 0..=125 => bytes.push(u8::try_from(short).unwrap()),
        middle @ 126..=65_535 => {
            bytes.push(126);
            bytes.extend(u16::try_from(middle).unwrap().to_be_bytes());
        }
        long => {
            bytes.push(127);
            bytes.extend((long as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns a header of a request.
pub fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = request.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}
