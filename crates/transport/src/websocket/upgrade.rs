//! The upgrade from HTTP/1.1 to a WebSocket that carries MQTT: request, answer, and their checks.
//! Pure.

use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::{PATH, SUBPROTOCOL};
use crate::response_head::ResponseHead;

/// Version of RFC 6455.
const VERSION: &str = "13";

/// Reason why a request is not an upgrade to MQTT over WebSocket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The header fields do not request a WebSocket; the answer is 426.
    #[error("request of a WebSocket expected: 'Upgrade: websocket' and 'Connection: Upgrade'")]
    NotUpgrade,
    /// Another version of the protocol; the answer is 426 with `Sec-WebSocket-Version: 13`.
    #[error("WebSocket version 13 expected")]
    Version,
    /// No usable key; the answer is 400.
    #[error("Sec-WebSocket-Key is missing or invalid")]
    Key,
    /// The client does not offer the subprotocol `mqtt`; the answer is 400.
    #[error("WebSocket subprotocol '{SUBPROTOCOL}' expected")]
    Subprotocol,
}

/// Reason why a response does not accept the upgrade.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResponseError {
    /// A status other than 101.
    #[error("HTTP status {status} {reason}: {hint}")]
    Status {
        /// The status code.
        status: u16,
        /// The reason phrase.
        reason: String,
        /// Meaning and remedy.
        hint: &'static str,
    },
    /// Status 101 without the fields of an upgrade to a WebSocket.
    #[error(
        "invalid response: field '{0}' is missing or wrong; hint: a proxy changed it, or another server answers"
    )]
    Field(&'static str),
    /// The server chose no subprotocol, or one that was not offered.
    #[error(
        "WebSocket subprotocol '{SUBPROTOCOL}' not accepted, server chose '{0}'; hint: check port and path, this is not MQTT's WebSocket"
    )]
    Subprotocol(String),
}

/// Checks the request of a client whose path is [`PATH`] and whose method is GET. `header` returns
/// the value of a header field by its name in lower case, several fields of one name joined by `,`.
/// Returns the value of `Sec-WebSocket-Accept` for the answer, which has the status 101 and the
/// fields `Connection: Upgrade`, `Upgrade: websocket` and `Sec-WebSocket-Protocol: mqtt` too.
///
/// # Errors
/// The request is no upgrade to MQTT over WebSocket.
pub fn accept<'h>(header: impl Fn(&str) -> Option<&'h str>) -> Result<String, RequestError> {
    let names = |field: &str, token: &str| header(field).is_some_and(|value| has_token(value, token));
    if !names("upgrade", "websocket") || !names("connection", "upgrade") {
        return Err(RequestError::NotUpgrade);
    }
    if header("sec-websocket-version").map(str::trim) != Some(VERSION) {
        return Err(RequestError::Version);
    }
    if !names("sec-websocket-protocol", SUBPROTOCOL) {
        return Err(RequestError::Subprotocol);
    }
    // 16 bytes in base64; nothing else of the key matters.
    match header("sec-websocket-key").map(str::trim) {
        Some(key) if key.len() == 24 && key.is_ascii() => Ok(derive_accept_key(key.as_bytes())),
        _ => Err(RequestError::Key),
    }
}

/// Returns the request for an upgrade at `authority`, a host with its port.
pub(super) fn request(authority: &str, key: &str) -> String {
    format!(
        "GET {PATH} HTTP/1.1\r\n\
         Host: {authority}\r\n\
         User-Agent: edgesync/{version}\r\n\
         Connection: Upgrade\r\n\
         Upgrade: websocket\r\n\
         Sec-WebSocket-Version: {VERSION}\r\n\
         Sec-WebSocket-Key: {key}\r\n\
         Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n",
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// Checks the response to [`request`] with that key.
pub(super) fn check(head: &ResponseHead, key: &str) -> Result<(), ResponseError> {
    if head.status != 101 {
        let (status, reason) = (head.status, head.reason.clone());
        return Err(ResponseError::Status { status, reason, hint: hint(status) });
    }
    let names = |field: &str, token: &str| head.fields(field).any(|value| has_token(value, token));
    if !names("upgrade", "websocket") {
        return Err(ResponseError::Field("Upgrade"));
    }
    if !names("connection", "upgrade") {
        return Err(ResponseError::Field("Connection"));
    }
    if head.field("sec-websocket-accept") != Some(derive_accept_key(key.as_bytes()).as_str()) {
        return Err(ResponseError::Field("Sec-WebSocket-Accept"));
    }
    if head.field("sec-websocket-extensions").is_some() {
        return Err(ResponseError::Field("Sec-WebSocket-Extensions"));
    }
    match head.field("sec-websocket-protocol") {
        Some(SUBPROTOCOL) => Ok(()),
        other => {
            let chosen: String =
                other.unwrap_or_default().chars().filter(|c| !c.is_control()).take(64).collect();
            Err(ResponseError::Subprotocol(chosen))
        }
    }
}

/// Returns what a status other than 101 means, and a check.
fn hint(status: u16) -> &'static str {
    match status {
        200..=299 => "not a WebSocket; hint: check host and port, the path is /mqtt",
        300..=399 => "redirects are not followed; hint: check host and port, or a captive portal answers",
        401 | 403 => "refused; hint: check the certificate of the node, and a proxy in front of the broker",
        404 | 405 => "no MQTT at /mqtt; hint: check host and port",
        426 => "no WebSocket requested, as the server sees it; hint: a proxy removed the upgrade",
        500..=599 => "the broker or a proxy in front of it failed; hint: see its log",
        _ => "unexpected status; hint: check host and port",
    }
}

/// Returns whether a list of tokens has one, in any case of letters.
fn has_token(list: &str, token: &str) -> bool {
    list.split(',').any(|part| part.trim().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response_head;

    // The example of RFC 6455 section 1.3.
    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
    const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

    fn response(status: &str, fields: &[(&str, &str)]) -> ResponseHead {
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let text = format!("HTTP/1.1 {status}\r\n{fields}\r\n");
        response_head::parse(text.as_bytes()).unwrap().unwrap().0
    }

    const GOOD: [(&str, &str); 4] = [
        ("Upgrade", "WebSocket"),
        ("Connection", "keep-alive, Upgrade"),
        ("Sec-WebSocket-Accept", ACCEPT),
        ("Sec-WebSocket-Protocol", "mqtt"),
    ];

    #[test]
    fn accepting_response_passes() {
        assert_eq!(check(&response("101 Switching Protocols", &GOOD), KEY), Ok(()));
    }

    #[test]
    fn response_without_a_field_is_refused_by_its_name() {
        for (at, (name, _)) in GOOD.iter().enumerate() {
            let mut fields = GOOD.to_vec();
            fields.remove(at);
            let error = check(&response("101 x", &fields), KEY).unwrap_err();
            assert!(error.to_string().contains(name) || *name == "Sec-WebSocket-Protocol", "{error}");
        }
    }

    #[test]
    fn wrong_subprotocol_is_named() {
        let mut fields = GOOD.to_vec();
        fields[3].1 = "chat";
        let error = check(&response("101 x", &fields), KEY).unwrap_err();
        assert_eq!(error, ResponseError::Subprotocol("chat".into()));
    }

    #[test]
    fn other_status_is_explained() {
        for (status, part) in [
            ("200 OK", "not a WebSocket"),
            ("302 Found", "captive portal"),
            ("404 Not Found", "no MQTT at /mqtt"),
            ("502 Bad Gateway", "failed"),
        ] {
            let error = check(&response(status, &[]), KEY).unwrap_err().to_string();
            assert!(error.contains(status) && error.contains(part), "{error}");
        }
    }

    #[test]
    fn own_request_is_accepted() {
        let request = request("broker.example:443", KEY);
        let header = |name: &str| {
            request
                .lines()
                .filter_map(|line| line.split_once(": "))
                .find_map(|(field, value)| field.eq_ignore_ascii_case(name).then_some(value))
        };
        assert_eq!(accept(header), Ok(ACCEPT.to_owned()));
        assert!(request.starts_with("GET /mqtt HTTP/1.1\r\nHost: broker.example:443\r\n"));
        assert!(request.ends_with("\r\n\r\n"));
    }

    #[test]
    fn request_that_is_no_upgrade_is_refused_with_its_problem() {
        let good = [
            ("upgrade", "websocket"),
            ("connection", "Upgrade"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-protocol", "chat, mqtt"),
            ("sec-websocket-key", KEY),
        ];
        let with = |changed: &str, value: Option<&'static str>| {
            accept(|name| match good.iter().find(|(field, _)| *field == name) {
                Some(_) if name == changed => value,
                Some((_, value)) => Some(*value),
                None => None,
            })
        };
        assert_eq!(with("", None), Ok(ACCEPT.to_owned()));
        assert_eq!(with("upgrade", None), Err(RequestError::NotUpgrade));
        assert_eq!(with("connection", Some("close")), Err(RequestError::NotUpgrade));
        assert_eq!(with("sec-websocket-version", Some("8")), Err(RequestError::Version));
        assert_eq!(with("sec-websocket-protocol", Some("mqttv3.1")), Err(RequestError::Subprotocol));
        assert_eq!(with("sec-websocket-key", Some("short")), Err(RequestError::Key));
    }
}
