//! TLS handshake of the cloud's API: accepts a connection and reads the client's certificate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::auth::Peer;
use edgesync_transport::admission::{LinePermit, LogThrottle};
use edgesync_transport::tls::{Server, ServerStream};

/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum age of a connection, whatever its certificate says.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// A connection after its handshake.
pub(super) struct Secured {
    pub(super) stream: ServerStream<TcpStream>,
    pub(super) peer: Peer,
    /// Remaining validity of the client's certificate.
    pub(super) valid_for: Duration,
}

/// Performs the handshake. `None` if it fails; the reason is logged, rate-limited.
pub(super) async fn accept(
    stream: TcpStream,
    from: SocketAddr,
    tls: &Server,
    log_throttle: &LogThrottle,
) -> Option<Secured> {
    let failed = |error: &dyn std::fmt::Display| {
        if let Some(LinePermit { suppressed }) = log_throttle.permit_line() {
            tracing::info!(peer = %from, %error, suppressed, "TLS handshake with an API client failed");
        }
    };
    let (stream, certificate) = match timeout(HANDSHAKE_TIMEOUT, Box::pin(tls.accept(stream))).await {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => {
            failed(&error);
            return None;
        }
        Err(_) => {
            failed(&format_args!("timed out after {HANDSHAKE_TIMEOUT:?}"));
            return None;
        }
    };
    let Some(certificate) = certificate else {
        return Some(Secured { stream, peer: Peer::Tls(from), valid_for: MAX_CONNECTION_AGE });
    };
    tracing::debug!(peer = %from, name = ?certificate.subject().common_name, "API client presented a certificate");
    let valid_for = Duration::try_from(certificate.ends().duration_since(Timestamp::now()));
    // A certificate in its grace period after expiry gives no access here.
    let valid_for = valid_for.unwrap_or_default().min(MAX_CONNECTION_AGE);
    let peer = Peer::Certificate { certificate: Arc::new(certificate), from };
    Some(Secured { stream, peer, valid_for })
}
