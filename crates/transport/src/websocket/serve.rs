//! The accepting side of the upgrade: reads the request, checks it and answers.
//!
//! The client may be a stranger. The head is bounded in bytes and header fields, the caller
//! bounds the time, and a web page of another site gets no WebSocket, whatever certificate its
//! browser presents.

use std::collections::BTreeMap;
use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::upgrade::{self, RequestError};
use super::{Role, SUBPROTOCOL, WebSocket};
use crate::response_head::{MAX_FIELDS, MAX_HEAD, shown};

/// Reason why a client gets no WebSocket.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The connection ended before the end of the head.
    #[error("connection closed before the end of the request")]
    Closed,
    /// The head has more bytes or fields than a request of a WebSocket can have.
    #[error("head of the request exceeds {MAX_HEAD} bytes or {MAX_FIELDS} fields")]
    TooLarge,
    /// The bytes are not an HTTP/1.1 request.
    #[error("not an HTTP request: '{0}'")]
    NotHttp(String),
    /// Another method than GET.
    #[error("method GET expected")]
    Method,
    /// The request is of a web page of another site.
    #[error("the Origin header names another site than the Host header")]
    Origin,
    /// The request is no upgrade to MQTT over WebSocket.
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl ServeError {
    /// Returns the status of the answer, with further header fields; `None` if the client
    /// cannot read it.
    fn status(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Io(_) | Self::Closed => None,
            Self::TooLarge => Some(("431 Request Header Fields Too Large", "")),
            Self::NotHttp(_) => Some(("400 Bad Request", "")),
            Self::Method => Some(("405 Method Not Allowed", "Allow: GET\r\n")),
            Self::Origin => Some(("403 Forbidden", "")),
            Self::Request(RequestError::NotUpgrade | RequestError::Version) => {
                let fields = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";
                Some(("426 Upgrade Required", fields))
            }
            Self::Request(_) => Some(("400 Bad Request", "")),
        }
    }
}

/// Reads the request of a WebSocket that carries MQTT, whose path has been checked, and answers
/// it.
///
/// # Errors
/// The connection fails, or the request is refused: then the client got the reason.
pub async fn serve<S>(mut stream: S) -> Result<WebSocket<S>, ServeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match accept(&mut stream).await {
        Ok(rest) => Ok(WebSocket::new(stream, Role::Server, rest)),
        Err(error) => {
            if let Some((status, fields)) = error.status() {
                let text = error.to_string();
                let answer = format!(
                    "HTTP/1.1 {status}\r\n{fields}Content-Type: text/plain; charset=utf-8\r\n\
                     Content-Length: {}\r\nConnection: close\r\n\r\n{text}\n",
                    text.len() + 1
                );
                // The client may be gone.
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
            Err(error)
        }
    }
}

/// Reads and accepts a request; returns the bytes that followed its head.
async fn accept<S>(stream: &mut S) -> Result<BytesMut, ServeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut received = BytesMut::new();
    let (fields, length) = loop {
        if let Some(parsed) = parse(&received)? {
            break parsed;
        }
        received.reserve(1024);
        if stream.read_buf(&mut received).await? == 0 {
            return Err(ServeError::Closed);
        }
    };
    let field = |name: &str| fields.get(name).map(String::as_str);
    if let Some(origin) = field("origin") {
        let site = origin.strip_prefix("https://");
        if site.is_none() || site != field("host") {
            return Err(ServeError::Origin);
        }
    }
    let key = upgrade::accept(field)?;
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {key}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.flush().await?;
    Ok(received.split_off(length))
}

/// Header fields of a request, by their names in lower case; several of one name joined by a
/// comma.
type Fields = BTreeMap<String, String>;

/// Parses the head of a GET, and returns its fields and its length in bytes; `None` if it is
/// incomplete.
fn parse(bytes: &[u8]) -> Result<Option<(Fields, usize)>, ServeError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length <= MAX_HEAD => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(ServeError::TooLarge),
        Err(_) => return Err(ServeError::NotHttp(shown(bytes))),
    };
    if request.method != Some("GET") {
        return Err(ServeError::Method);
    }
    let mut fields = Fields::new();
    for header in &*request.headers {
        let value = String::from_utf8_lossy(header.value);
        fields
            .entry(header.name.to_ascii_lowercase())
            .and_modify(|joined| {
                joined.push(',');
                joined.push_str(value.trim());
            })
            .or_insert_with(|| value.trim().to_owned());
    }
    Ok(Some((fields, length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    const GOOD: &str = "GET /mqtt HTTP/1.1\r\nHost: cloud.example\r\nUpgrade: websocket\r\n\
                        Connection: keep-alive\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    const MQTT: &str = "Sec-WebSocket-Protocol: mqtt\r\n";

    /// Returns the answer to a request, and whether it got a WebSocket.
    async fn answer(request: &str) -> (String, Result<(), ServeError>) {
        let (mut client, server) = duplex(64 << 10);
        client.write_all(request.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let served = serve(server).await.map(drop);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        (answer, served)
    }

    #[tokio::test]
    async fn good_request_is_accepted_and_later_bytes_are_kept() {
        let (mut client, server) = duplex(64 << 10);
        // A masked binary frame follows the head at once.
        let mut request = format!("{GOOD}{MQTT}\r\n").into_bytes();
        request.extend([0x82, 0x82, 0, 0, 0, 0, b'h', b'i']);
        client.write_all(&request).await.unwrap();
        let mut socket = serve(server).await.unwrap();
        let mut bytes = [0; 2];
        socket.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"hi");
        let mut head = vec![0; 300];
        let count = client.read(&mut head).await.unwrap();
        let head = String::from_utf8_lossy(&head[..count]).into_owned();
        assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        assert!(head.contains("Sec-WebSocket-Protocol: mqtt\r\n"), "{head}");
    }

    #[tokio::test]
    async fn refused_requests_get_their_status_and_the_reason() {
        for (request, status, text) in [
            (format!("{GOOD}\r\n"), "400", "subprotocol 'mqtt' expected"),
            (format!("{GOOD}Sec-WebSocket-Protocol: mqttv3.1\r\n\r\n"), "400", "subprotocol"),
            (format!("{GOOD}{MQTT}Origin: https://evil.example\r\n\r\n"), "403", "another site"),
            (format!("{GOOD}{MQTT}Origin: null\r\n\r\n"), "403", "another site"),
            (format!("{GOOD}{MQTT}Origin: null\r\n\r\n").replace("Host", "H"), "403", "another site"),
            ("GET /mqtt HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "426", "Upgrade: websocket"),
            (format!("{GOOD}{MQTT}\r\n").replacen("GET", "POST", 1), "405", "GET expected"),
            (format!("{GOOD}{MQTT}\r\n").replace(": 13", ": 8"), "426", "version 13"),
            ("GET /mqtt HTTP/1.1\r\nno field\r\n\r\n".to_owned(), "400", "not an HTTP request"),
            (format!("{GOOD}{}\r\n", "A: b\r\n".repeat(MAX_FIELDS)), "431", "exceeds"),
            (format!("{GOOD}A: {}", "b".repeat(MAX_HEAD)), "431", "exceeds"),
        ] {
            let (answer, served) = answer(&request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(text), "{answer}");
            assert!(served.is_err(), "{answer}");
        }
    }

    #[tokio::test]
    async fn page_of_the_same_site_gets_a_web_socket() {
        let (answer, served) = answer(&format!("{GOOD}{MQTT}Origin: https://cloud.example\r\n\r\n")).await;
        assert!(served.is_ok(), "{answer}");
    }

    #[tokio::test]
    async fn incomplete_request_gets_no_answer() {
        let (answer, served) = answer(GOOD).await;
        assert!(answer.is_empty() && matches!(served, Err(ServeError::Closed)), "{answer}");
    }
}
