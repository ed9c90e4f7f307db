//! The calls of the join service, those of KubeEdge (`GET /ca.crt`, `GET /edge.crt` with a body) and the one beyond
//! them (`GET /edgesync/v1/join`). Each is one connection; answers have limits.

use std::time::Duration;

use super::Membership;
use super::token::Token;
use crate::config::JoinUrl;
use crate::tls::{Certificate, Client, HandshakeError, Trust};

/// How long one call may take.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a call has no answer; each says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The name has no address, nothing listens, the network fails or it takes too long.
    #[error("{url} does not answer: {problem}")]
    Unreachable {
        /// The service.
        url: JoinUrl,
        /// What the system says.
        problem: String,
    },
    /// TLS fails.
    #[error(transparent)]
    Tls(#[from] HandshakeError),
    /// The CA that answers is not the one of the token.
    #[error(
        "{url} belongs to another cloud than the token: its CA is {found}, the token is for {expected}; take the token from the cloud that runs there, and if it does, somebody stands between"
    )]
    OtherCa {
        /// The service.
        url: JoinUrl,
        /// Fingerprint of the CA that was sent.
        found: String,
        /// Fingerprint in the token.
        expected: String,
    },
    /// The service refuses (4xx), in its own words.
    #[error("the cloud refuses: {message}")]
    Refused {
        /// HTTP status code.
        code: u16,
        /// What it says; control characters are left out.
        message: String,
    },
    /// The service fails (5xx) or answers with something else.
    #[error("{url} answers {code} and something unexpected: {problem}")]
    Unexpected {
        /// The service.
        url: JoinUrl,
        /// HTTP status code.
        code: u16,
        /// What.
        problem: String,
    },
}

/// Gets the CA and checks it against the token. The connection itself verifies nothing, the fingerprint does.
///
/// # Errors
/// See [`CallError`].
pub async fn fetch_ca(url: &JoinUrl, token: &Token) -> Result<Certificate, CallError> {
    todo!()
}

/// How a node says who asks for a certificate.
#[derive(Clone, Copy, Debug)]
pub enum Credential<'a> {
    /// With a token.
    Token(&'a Token),
    /// With the certificate that `tls` shows, for its renewal; it may have expired.
    Certificate,
}

/// Asks for a certificate with a request (PKCS#10, DER): `GET /edge.crt` with a body and the header `NodeName`.
/// Gives the certificate as it was issued; whether it is from the CA, for this node and this key is checked here.
///
/// # Errors
/// See [`CallError`].
pub async fn fetch_certificate(
    url: &JoinUrl,
    tls: &Client,
    trust: &Trust,
    node: &str,
    request: &[u8],
    credential: Credential<'_>,
) -> Result<Certificate, CallError> {
    todo!()
}

/// Asks for the rest, with the certificate that `tls` shows. None if the service does not know the call: a CloudCore.
///
/// # Errors
/// See [`CallError`].
pub async fn fetch_membership(url: &JoinUrl, tls: &Client) -> Result<Option<Membership>, CallError> {
    todo!()
}
