//! TLS under the API of the cloud side: the handshake, and whom the certificate of a client makes its bearer.

use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::auth::Peer;
use edgesync_transport::admission::LogThrottle;
use edgesync_transport::tls::{Server, ServerStream};

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest a connection lasts whatever its certificate says: a timer further ahead has no use.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// A connection after its handshake.
pub(super) struct Secured {
    pub(super) stream: ServerStream<TcpStream>,
    pub(super) peer: Peer,
    /// How long the client's certificate is good.
    pub(super) lasts: Duration,
}

/// Makes the handshake. `None` if there is none; the log says why, of some in a while.
pub(super) async fn accept(
    stream: TcpStream,
    from: SocketAddr,
    tls: &Server,
    refusals: &LogThrottle,
) -> Option<Secured> {
    let failed = |why: &dyn std::fmt::Display| {
        if let Some(left_out) = refusals.line() {
            tracing::info!(peer = %from, %why, left_out, "no TLS with a client of the API");
        }
    };
    let (stream, certificate) = match timeout(HANDSHAKE_TIMEOUT, Box::pin(tls.accept(stream))).await {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => {
            failed(&error);
            return None;
        }
        Err(_) => {
            failed(&format_args!("no handshake within {HANDSHAKE_TIMEOUT:?}"));
            return None;
        }
    };
    let Some(certificate) = certificate else {
        return Some(Secured { stream, peer: Peer::Tls(from), lasts: LONGEST });
    };
    tracing::debug!(peer = %from, name = ?certificate.subject().common_name, "a client of the API showed a certificate");
    let lasts = Duration::try_from(certificate.ends().duration_since(Timestamp::now()));
    // Who comes within a grace after the end of its certificate has nothing to ask here.
    let lasts = lasts.unwrap_or_default().min(LONGEST);
    let peer = Peer::Certificate { serial: certificate.serial().into(), from };
    Some(Secured { stream, peer, lasts })
}
