//! TLS of the cloud's API: accepts a connection and reads the client's certificate; refuses
//! clients of a shared listener whose certificate does not satisfy the API's rule.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::auth::Peer;
use super::exchange::{ExchangeLimits, HttpRequest, HttpResponse, serve_connection};
use edgesync_object::Status;
use edgesync_object::status::Reason;
use edgesync_transport::admission::{LinePermit, LogThrottle};
use edgesync_transport::link::stream::Stream;
use edgesync_transport::tls::{Certificate, Server};

/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum age of a connection, whatever its certificate says.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Limits of a refused request.
const REFUSED: ExchangeLimits = ExchangeLimits { body_bytes: 64 << 10, patience: Duration::from_secs(5) };

/// A connection after its handshake.
pub(super) struct Secured {
    pub(super) stream: Box<dyn Stream>,
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
    Some(Secured::new(Box::new(stream), from, certificate))
}

impl Secured {
    /// Returns a connection whose client presented this certificate, verified by the API's rule.
    pub(super) fn new(stream: Box<dyn Stream>, from: SocketAddr, certificate: Option<Certificate>) -> Self {
        let Some(certificate) = certificate else {
            return Self { stream, peer: Peer::Tls(from), valid_for: MAX_CONNECTION_AGE };
        };
        tracing::debug!(peer = %from, name = ?certificate.subject().common_name, "API client presented a certificate");
        let valid_for = Duration::try_from(certificate.ends().duration_since(Timestamp::now()));
        // A certificate in its grace period after expiry gives no access here.
        let valid_for = valid_for.unwrap_or_default().min(MAX_CONNECTION_AGE);
        let peer = Peer::Certificate { certificate: Arc::new(certificate), from };
        Self { stream, peer, valid_for }
    }
}

/// Answers one request of a client without a valid certificate, whatever it asks for.
pub(super) async fn refuse(stream: Box<dyn Stream>, why: &std::io::Error) {
    let message = format!(
        "client certificate of an operator required: {why}; hint: 'edgesync-cloud kubeconfig' issues one"
    );
    let status = Status::new(Reason::Unauthorized, message);
    let body = serde_json::to_vec(&status).unwrap_or_default();
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    let refusal = HttpResponse { code: 401, headers, body };
    let answer = move |_: HttpRequest| std::future::ready(refusal.clone());
    serve_connection(stream, REFUSED, Arc::new(answer)).await;
}
