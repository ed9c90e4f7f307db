//! Request lines as text: percent-encoding, the segments of a path, the pairs of a query. Pure.

use crate::object::Status;

/// The most pairs in a query.
const MAX_QUERY_PAIRS: usize = 64;

/// Splits a path at its slashes and decodes each segment. Slashes at the end are ignored.
pub(super) fn split_path(path: &str) -> Result<Vec<String>, Status> {
    let trimmed = path.strip_prefix('/').unwrap_or(path).trim_end_matches('/');
    if trimmed.is_empty() {
        return Ok(Vec::new());
    }
    trimmed.split('/').map(segment).collect()
}

/// Decodes a segment. What could leave its place in the path once it is decoded is refused.
fn segment(encoded: &str) -> Result<String, Status> {
    let decoded = decode(encoded, false)?;
    let leaves = decoded.is_empty() || decoded == "." || decoded == ".." || decoded.contains(['/', '%']);
    if leaves || decoded.chars().any(char::is_control) {
        let shown: String = encoded.chars().take(64).collect();
        return Err(Status::bad_request(format!("invalid path segment {shown:?}")));
    }
    Ok(decoded)
}

pub(super) fn parse_query(query: &str) -> Result<Vec<(String, String)>, Status> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    if pairs.clone().count() > MAX_QUERY_PAIRS {
        return Err(Status::bad_request(format!("the query has more than {MAX_QUERY_PAIRS} parameters")));
    }
    let decoded = pairs.map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decode(key, true)?, decode(value, true)?))
    });
    decoded.collect()
}

/// Undoes percent-encoding; in a query a plus sign is a space.
fn decode(encoded: &str, plus_is_space: bool) -> Result<String, Status> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => match (rest.next().and_then(hex), rest.next().and_then(hex)) {
                (Some(high), Some(low)) => bytes.push(high << 4 | low),
                _ => return Err(Status::bad_request("invalid percent-encoding in the request URI")),
            },
            b'+' if plus_is_space => bytes.push(b' '),
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).map_err(|_| Status::bad_request("the request URI is not UTF-8"))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// Encodes text as one segment of a path or one value of a query.
#[must_use]
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
