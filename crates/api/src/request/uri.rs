//! Request lines as text: percent-encoding, path segments, query pairs. Pure.

use percent_encoding::percent_decode_str;

use edgesync_object::Status;

/// Maximum number of pairs in a query.
const MAX_QUERY_PAIRS: usize = 64;

/// Splits a path at its slashes and decodes each segment. A trailing slash is ignored for reads;
/// for writes it stands for an empty object name.
///
/// # Errors
/// 404 for an empty segment, 400 for one that cannot be a name.
pub(super) fn split_path(method: &str, path: &str) -> Result<Vec<String>, Status> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let reads = matches!(method, "GET" | "HEAD" | "OPTIONS");
    let path = path.strip_suffix('/').filter(|rest| reads && !rest.is_empty()).unwrap_or(path);
    if path.is_empty() {
        return Ok(Vec::new());
    }
    path.split('/').map(segment).collect()
}

/// Decodes a segment. Refuses one that could escape its position in the path once decoded.
fn segment(encoded: &str) -> Result<String, Status> {
    let decoded = decode(encoded)?;
    if decoded.is_empty() {
        return Err(Status::no_such_path());
    }
    let escapes = decoded == "." || decoded == ".." || decoded.contains(['/', '%']);
    if escapes || decoded.chars().any(char::is_control) {
        let shown: String = decoded.chars().take(64).collect();
        return Err(Status::bad_request(format!(
            "invalid name {shown:?}: must not be '.' or '..', nor contain '/', '%' or control characters"
        )));
    }
    Ok(decoded)
}

pub(super) fn parse_query(query: &str) -> Result<Vec<(String, String)>, Status> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    if pairs.clone().count() > MAX_QUERY_PAIRS {
        return Err(Status::bad_request(format!("the query has more than {MAX_QUERY_PAIRS} parameters")));
    }
    let decoded = pairs.map(|pair| {
        // A plus sign in a query is a space.
        let pair = pair.replace('+', " ");
        let (key, value) = pair.split_once('=').unwrap_or((&pair, ""));
        Ok((decode(key)?, decode(value)?))
    });
    decoded.collect()
}

/// Undoes percent-encoding. Invalid escapes are an error, not literal text.
fn decode(encoded: &str) -> Result<String, Status> {
    let is_escape = |after: &str| {
        after.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !encoded.split('%').skip(1).all(is_escape) {
        return Err(Status::bad_request("invalid percent-encoding in the request URI"));
    }
    let decoded = percent_decode_str(encoded).decode_utf8();
    decoded.map(Into::into).map_err(|_| Status::bad_request("the request URI is not UTF-8"))
}
