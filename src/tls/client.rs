//! The side that connects: believes a CA, shows a certificate, resumes sessions. What it shows can be replaced while
//! it is used.

use tokio::io::{AsyncRead, AsyncWrite};

use super::{Certificate, Clock, Identity, TlsError, Trust};

/// Makes TLS connections. A cheap handle: clones share identity and resumption.
///
/// After [`Client::replace`] new connections show the new identity. The one before is kept until a connection with the
/// new one has worked ([`Client::worked`]); when one is refused ([`Client::refused`]) the two are tried in turn.
#[derive(Clone, Debug)]
pub struct Client {
    shared: std::sync::Arc<Shared>,
}

#[derive(Debug)]
struct Shared {}

/// A connection.
pub type ClientStream<S> = tokio_rustls::client::TlsStream<S>;

/// Why there is no connection, in words for an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer's certificate is not from a CA that is believed.
    #[error("{host} has a certificate of another authority than the one this node joined")]
    OtherAuthority {
        /// The host asked for.
        host: String,
    },
    /// The peer's certificate is for other names.
    #[error("{host} has a certificate for {}, not for '{host}'", names.join(", "))]
    OtherName {
        /// The host asked for.
        host: String,
        /// The names it has.
        names: Vec<String>,
    },
    /// The peer's certificate has expired, or is not valid yet, by this clock.
    #[error("the certificate of {host} is valid from {from} until {until}, and the clock here shows {now}: {}", if now < from || now > until { "set the clock, or renew that certificate" } else { "check both" })]
    OutsideItsTime {
        /// The host asked for.
        host: String,
        /// From when it is valid.
        from: jiff::Timestamp,
        /// Until when.
        until: jiff::Timestamp,
        /// What the clock shows.
        now: jiff::Timestamp,
    },
    /// The peer did not accept the certificate shown to it.
    #[error("{host} refuses the certificate of this node: {reason}")]
    Refused {
        /// The host.
        host: String,
        /// The alert: "expired", "revoked", "unknown authority", …
        reason: String,
    },
    /// The peer does not speak TLS.
    #[error("{host} does not speak TLS there: {problem}")]
    NotTls {
        /// The host.
        host: String,
        /// What came instead.
        problem: String,
    },
    /// The network failed.
    #[error("the TLS handshake with {host} failed: {problem}")]
    Network {
        /// The host.
        host: String,
        /// What the system says.
        problem: String,
    },
}

impl Client {
    /// A client that believes `trust` and shows `identity`, if any.
    ///
    /// # Errors
    /// The identity cannot be used.
    pub fn new(trust: &Trust, identity: Option<&Identity>, clock: Clock) -> Result<Self, TlsError> {
        todo!()
    }

    /// A client that believes nobody in particular and takes the certificate of whoever answers: for the one request
    /// whose answer is checked against the token (`GET /ca.crt`). No name, no time, no authority is checked.
    ///
    /// # Errors
    /// The library's.
    pub fn unverified() -> Result<Self, TlsError> {
        todo!()
    }

    /// Makes the handshake over a stream. With TLS 1.3 a peer refuses a client's certificate only afterwards: the
    /// first read then fails, see [`HandshakeError::of_io`].
    ///
    /// # Errors
    /// See [`HandshakeError`].
    pub async fn connect<S>(&self, host: &str, stream: S) -> Result<ClientStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        todo!()
    }

    /// New connections believe and show this; those that exist go on as they are. Sessions are not resumed across it.
    ///
    /// # Errors
    /// The identity cannot be used; then nothing has changed.
    pub fn replace(&self, trust: &Trust, identity: Option<&Identity>) -> Result<(), TlsError> {
        todo!()
    }

    /// The peer has taken the last connection: what was shown before is forgotten.
    pub fn worked(&self) {
        todo!()
    }

    /// The peer has refused the last connection: the next one shows the other identity, if there is one.
    pub fn refused(&self) {
        todo!()
    }

    /// The certificate that the next connection shows.
    #[must_use]
    pub fn shows(&self) -> Option<Certificate> {
        todo!()
    }
}

impl HandshakeError {
    /// What an error of a TLS stream means, if it comes from TLS: an alert of the peer.
    #[must_use]
    pub fn of_io(host: &str, error: &std::io::Error) -> Option<Self> {
        todo!()
    }

    /// One word for metrics and status: `other-authority`, `other-name`, `time`, `refused`, `not-tls`, `network`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        todo!()
    }
}
