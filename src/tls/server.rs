//! The side that is connected to: the cloud side's MQTT endpoint, join service and API.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use super::{Certificate, Clock, Identity, TlsError, Trust};

/// Takes TLS connections. A cheap handle: clones share identity, rule and session tickets.
#[derive(Clone, Debug)]
pub struct Server {
    shared: std::sync::Arc<Shared>,
}

#[derive(Debug)]
struct Shared {}

/// A connection.
pub type ServerStream<S> = tokio_rustls::server::TlsStream<S>;

/// Which clients are let in.
#[derive(Clone, Debug)]
pub struct ClientRule {
    /// The authorities of clients.
    pub trust: Trust,
    /// Revocation lists (DER). A list whose time is over still counts.
    pub revoked: Vec<Vec<u8>>,
    /// Whether a client without a certificate is refused. One with a wrong certificate always is.
    pub required: bool,
    /// A client certificate that expired no longer ago than this is taken: for renewals only.
    pub expired_grace: Duration,
}

impl Server {
    /// A server that shows `identity`.
    ///
    /// # Errors
    /// Identity, authorities or lists cannot be used.
    pub fn new(identity: &Identity, clients: &ClientRule, clock: Clock) -> Result<Self, TlsError> {
        todo!()
    }

    /// New connections see this. Sessions from before are not resumed, so nobody revoked comes in by one.
    ///
    /// # Errors
    /// As above; then nothing has changed.
    pub fn replace(&self, identity: &Identity, clients: &ClientRule) -> Result<(), TlsError> {
        todo!()
    }

    /// Makes the handshake. Gives the client's certificate, which has been verified, if it has shown one. A resumed
    /// session counts only while the certificate that it began with is valid.
    ///
    /// # Errors
    /// The network's or TLS's; who it was and why is for the log.
    pub async fn accept<S>(&self, stream: S) -> std::io::Result<(ServerStream<S>, Option<Certificate>)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        todo!()
    }

    /// The certificate shown.
    #[must_use]
    pub fn shows(&self) -> Certificate {
        todo!()
    }
}
