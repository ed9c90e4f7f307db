//! Establishes one connection: name resolution, TCP, TLS, and the upgrade from HTTP to the
//! WebSocket.

use std::sync::Arc;

use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};
use tokio_tungstenite::tungstenite::handshake::client::{Request, generate_key};
use tokio_tungstenite::tungstenite::http::{self, Response};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::KubeEdgeOptions;
use edgesync_transport::link::Cause;
use edgesync_transport::link::handle::Shared;
use edgesync_transport::link::stream::{Stream, Target};

/// The size of the read buffer.
const CHUNK: usize = 8 * 1024;
/// The most characters shown of an answer.
const SHOWN: usize = 200;

/// The fragment size of messages: no more than one fragment waits for the socket.
pub(super) const FRAGMENT: usize = 16 * 1024;
/// The most bytes of small messages that are written together.
pub(super) const AHEAD: usize = 4 * 1024;

/// A connection after the upgrade.
pub(super) type WebSocket = WebSocketStream<Box<dyn Stream>>;

/// Connects within the timeout of the options.
pub(super) async fn establish(options: &KubeEdgeOptions, shared: &Arc<Shared>) -> Result<WebSocket, Cause> {
    let target = options.target();
    let upgrade = async {
        let request =
            request(options).map_err(|error| upgrade_failed(&target, format!("build request: {error}")))?;
        let stream = target.open(shared).await?;
        let upgraded = client_async_with_config(request, stream, Some(config(options))).await;
        upgraded.map(|(socket, _)| socket).map_err(|error| of_upgrade(&target, error))
    };
    target.attempt(upgrade).await
}

fn config(options: &KubeEdgeOptions) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(CHUNK)
        .write_buffer_size(AHEAD)
        .max_write_buffer_size(AHEAD + 2 * FRAGMENT)
        .max_message_size(Some(options.max_message))
        .max_frame_size(Some(options.max_message))
}

fn request(options: &KubeEdgeOptions) -> Result<Request, http::Error> {
    let KubeEdgeOptions { host, port, project, node, .. } = options;
    let authority = if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    Request::builder()
        .uri(format!("ws://{authority}/{project}/{node}/events"))
        .header("Host", authority)
        .header("User-Agent", concat!("edgesync/", env!("CARGO_PKG_VERSION")))
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", generate_key())
        .header("ConnectionUse", "msg")
        .header("node_id", node)
        .header("project_id", project)
        .body(())
}

fn upgrade_failed(target: &Target<'_>, reason: String) -> Cause {
    Cause::Upgrade { peer: target.peer(), reason }
}

/// Returns the cause of a failed upgrade.
fn of_upgrade(target: &Target<'_>, error: Error) -> Cause {
    let reason = match error {
        Error::Http(response) => refusal(&response),
        Error::Protocol(ProtocolError::HandshakeIncomplete) => return Cause::Closed,
        Error::Protocol(ProtocolError::WrongHttpVersion) => {
            "response in an old HTTP version; hint: a proxy, or a port with TLS?".to_owned()
        }
        Error::Protocol(ProtocolError::HttparseError(error)) => {
            format!("peer does not speak HTTP ({error}); hint: check the port, CloudCore's is 10000")
        }
        Error::Protocol(error) => format!("invalid response: {error}"),
        Error::Capacity(CapacityError::TooManyHeaders) | Error::AttackAttempt => {
            "response head is too large; hint: check the port, CloudCore's is 10000".to_owned()
        }
        other => return of_socket(target, other),
    };
    upgrade_failed(target, reason)
}

/// Describes an answer that is not an upgrade, and suggests a check.
fn refusal(response: &Response<Option<Vec<u8>>>) -> String {
    let status = response.status();
    let check = match status.as_u16() {
        200..=299 => "not a WebSocket; hint: check the port, CloudCore's is 10000",
        300..=399 => "redirects are not followed; hint: check host and port",
        400 => "request rejected; hint: a proxy changed it, or another server listens there",
        401 | 403 => {
            "node not authorized; hint: check the certificate of the node and CloudCore's authorization"
        }
        404 | 405 => {
            "not CloudCore's WebSocket; hint: use its port (10000), not that of the join service (10002)"
        }
        500..=599 => "CloudCore or a proxy in front of it failed; hint: see its log",
        _ => "unexpected status; hint: check host and port",
    };
    let body = response.body().as_deref().unwrap_or_default();
    let shown: String =
        String::from_utf8_lossy(body).chars().filter(|c| !c.is_control()).take(SHOWN).collect();
    let shown = if shown.is_empty() { shown } else { format!(" ('{shown}')") };
    format!("HTTP status {status}{shown}: {check}")
}

/// Converts an error of the WebSocket into a cause.
pub(super) fn of_socket(target: &Target<'_>, error: Error) -> Cause {
    match error {
        // CloudCore sends a TLS close_notify when it closes a connection. A broken line does not.
        Error::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            Cause::Network { peer: target.peer(), message: "connection lost without close_notify".to_owned() }
        }
        Error::Io(error) => target.failed(&error),
        Error::ConnectionClosed
        | Error::AlreadyClosed
        | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Cause::Closed,
        Error::Capacity(CapacityError::MessageTooLong { size, max_size }) => Cause::PacketTooLarge {
            detail: format!("message of at least {size} bytes exceeds the limit of {max_size}"),
        },
        other => Cause::Protocol { detail: other.to_string().to_lowercase() },
    }
}
