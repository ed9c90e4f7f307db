//! Heads of HTTP/1 responses: of a proxy to CONNECT, and of a server to the upgrade to a WebSocket.
//!
//! The peer is not authenticated yet. A head is bounded in bytes and header fields; its caller
//! bounds the time.

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Maximum size of a head, in bytes.
pub(crate) const MAX_HEAD: usize = 16 * 1024;
/// Maximum number of header fields in a head.
pub(crate) const MAX_FIELDS: usize = 64;
/// Maximum number of characters shown of what a peer sent.
const SHOWN: usize = 120;

/// Status line and header fields of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResponseHead {
    /// Status code, such as 200.
    pub(crate) status: u16,
    /// Reason phrase, safe to log.
    pub(crate) reason: String,
    fields: Vec<(String, String)>,
}

/// Reason why a peer's bytes are not the head of a response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HeadError {
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The connection ended before the end of the head.
    #[error("connection closed before the end of the HTTP response")]
    Closed,
    /// The peer speaks TLS on this port.
    #[error("TLS alert received instead of an HTTP response")]
    SpeaksTls,
    /// The bytes are not an HTTP/1 response.
    #[error("not an HTTP response: '{shown}' ({problem})")]
    NotHttp {
        /// The first characters received.
        shown: String,
        /// Description of the violation.
        problem: String,
    },
    /// The head exceeds [`MAX_HEAD`] or [`MAX_FIELDS`].
    #[error("head of the HTTP response exceeds {MAX_HEAD} bytes or {MAX_FIELDS} fields")]
    TooLarge,
}

impl ResponseHead {
    /// Returns the value of the first field of that name, in any case of letters.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the values of all fields of that name, in their order.
    pub(crate) fn fields(&self, name: &str) -> impl Iterator<Item = &str> {
        let matching = self.fields.iter().filter(move |(key, _)| key.eq_ignore_ascii_case(name));
        matching.map(|(_, value)| value.as_str())
    }
}

/// Parses the head of a response, and returns it with its length in bytes; `None` if it is
/// incomplete.
///
/// # Errors
/// The bytes are not the beginning of a response, or of one that is too large.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(ResponseHead, usize)>, HeadError> {
    // A TLS server refuses plain text with an alert (RFC 8446 section 5.1).
    if bytes.starts_with(&[21, 3]) {
        return Err(HeadError::SpeaksTls);
    }
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(HeadError::TooLarge);
        }
        Err(error) => {
            let problem = error.to_string();
            return Err(HeadError::NotHttp { shown: shown(bytes), problem });
        }
    };
    if length > MAX_HEAD {
        return Err(HeadError::TooLarge);
    }
    let fields = response
        .headers
        .iter()
        .map(|field| (field.name.to_owned(), String::from_utf8_lossy(field.value).trim().to_owned()));
    let head = ResponseHead {
        status: response.code.unwrap_or_default(),
        reason: shown(response.reason.unwrap_or_default().as_bytes()),
        fields: fields.collect(),
    };
    Ok(Some((head, length)))
}

/// Reads a head; returns it with the bytes that followed it.
///
/// # Errors
/// See [`HeadError`].
pub(crate) async fn read<S>(stream: &mut S) -> Result<(ResponseHead, BytesMut), HeadError>
where
    S: AsyncRead + Unpin,
{
    let mut received = BytesMut::new();
    loop {
        received.reserve(1024);
        if stream.read_buf(&mut received).await? == 0 {
            return Err(HeadError::Closed);
        }
        if let Some((head, length)) = parse(&received)? {
            let rest = received.split_off(length);
            return Ok((head, rest));
        }
    }
}

/// Returns the beginning of a peer's bytes, safe to log.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let start = bytes.get(..4 * SHOWN).unwrap_or(bytes);
    String::from_utf8_lossy(start).chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> ResponseHead {
        let (head, length) = parse(text.as_bytes()).unwrap().unwrap();
        assert_eq!(length, text.len());
        head
    }

    #[test]
    fn status_and_fields_are_read() {
        let head = head("HTTP/1.0 407 Proxy Authentication Required\r\nproxy-authenticate: Basic\r\n\r\n");
        assert_eq!((head.status, head.reason.as_str()), (407, "Proxy Authentication Required"));
        assert_eq!(head.field("Proxy-Authenticate"), Some("Basic"));
        assert_eq!(head.field("Server"), None);
    }

    #[test]
    fn head_is_incomplete_until_its_empty_line() {
        let text = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n";
        for end in 0..text.len() {
            assert!(parse(&text[..end]).unwrap().is_none(), "{end}");
        }
        assert!(parse(text).unwrap().is_some());
    }

    #[test]
    fn endless_head_is_refused_at_its_limits() {
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "a".repeat(MAX_HEAD));
        assert!(matches!(parse(long.as_bytes()), Err(HeadError::TooLarge)));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(MAX_FIELDS + 1));
        assert!(matches!(parse(many.as_bytes()), Err(HeadError::TooLarge)));
    }

    #[test]
    fn other_protocols_are_named() {
        assert!(matches!(parse(&[21, 3, 3, 0, 2, 2, 40]), Err(HeadError::SpeaksTls)));
        let error = parse(b"<html>\x07hello").unwrap_err();
        assert!(error.to_string().contains("'<html>hello'"), "{error}");
    }

    #[tokio::test]
    async fn bytes_after_the_head_are_kept() {
        let mut stream: &[u8] = b"HTTP/1.1 101 x\r\n\r\nrest";
        let (head, rest) = read(&mut stream).await.unwrap();
        assert_eq!((head.status, &rest[..]), (101, &b"rest"[..]));
        let mut stream: &[u8] = b"HTTP/1.1 101 x\r\n";
        assert!(matches!(read(&mut stream).await, Err(HeadError::Closed)));
    }
}
