//! The connecting side of TLS: trusts a CA, presents a certificate, resumes sessions. The identity
//! can be replaced in operation.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::CertificateError;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::{Certificate, Clock, Identity, TlsError, Trust, clock, library, provider, verify_signatures};

mod error;
mod first_bytes;

pub use error::HandshakeError;
pub use first_bytes::FirstBytes;

/// Number of servers whose sessions are kept: the broker under its names, and the join service.
const SESSIONS: usize = 4;

/// Makes TLS connections. A cheap handle: clones share identity and sessions.
///
/// After [`Client::replace`] new connections present the new identity. The previous one is kept
/// until a connection with the new one has succeeded ([`Client::worked`]); when one is refused
/// ([`Client::refused`]) the two alternate.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    rotation: Mutex<Rotation>,
}

/// Credentials of the next connection, and of the one after a refusal.
struct Rotation {
    next: Arc<Credentials>,
    other: Other,
}

/// The alternative to the next identity.
enum Other {
    /// None: the next identity has succeeded, or is the first.
    None,
    /// The previous identity, which has succeeded.
    Older(Arc<Credentials>),
    /// The newer identity, which was refused.
    Newer(Arc<Credentials>),
}

/// Trust and identity of a connection, with the sessions started under them.
struct Credentials {
    config: Arc<ClientConfig>,
    verifier: Arc<Verifier>,
    certificate: Option<Certificate>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared(..)")
    }
}

/// A TLS connection of a client.
pub type ClientStream<S> = tokio_rustls::client::TlsStream<FirstBytes<S>>;

/// The protocol inside TLS, by which a port with several services chooses one (ALPN). Servers
/// without ALPN ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inner {
    /// MQTT.
    Mqtt,
    /// HTTP/1.1, of calls and of the upgrade to a WebSocket.
    Http,
}

impl Inner {
    /// Returns the name registered with IANA.
    fn alpn(self) -> &'static [u8] {
        match self {
            Self::Mqtt => b"mqtt",
            Self::Http => b"http/1.1",
        }
    }
}

impl Client {
    /// Creates a client that trusts `trust` and presents `identity`, if any.
    ///
    /// # Errors
    /// The identity cannot be used.
    pub fn new(trust: &Trust, identity: Option<&Identity>, clock: Clock) -> Result<Self, TlsError> {
        let next = Credentials::new(Some(trust), identity, clock)?;
        Ok(Self::starting_with(next, clock))
    }

    /// Creates a client that accepts any certificate: for the one request whose answer is verified
    /// against the token (`GET /ca.crt`). Checks no name, no time, no authority.
    ///
    /// # Errors
    /// The library's.
    pub fn unverified() -> Result<Self, TlsError> {
        let clock = Clock::system([]);
        Ok(Self::starting_with(Credentials::new(None, None, clock)?, clock))
    }

    /// Performs the handshake over a stream, without ALPN. With TLS 1.3 a peer refuses a client's
    /// certificate only afterwards: the first read then fails, see [`HandshakeError::of_io`].
    ///
    /// # Errors
    /// See [`HandshakeError`].
    pub async fn connect<S>(&self, host: &str, stream: S) -> Result<ClientStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.handshake(host, stream, Vec::new()).await
    }

    /// As [`Client::connect`], with the protocol that will be spoken.
    ///
    /// # Errors
    /// See [`HandshakeError`].
    pub async fn connect_for<S>(
        &self,
        inner: Inner,
        host: &str,
        stream: S,
    ) -> Result<ClientStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.handshake(host, stream, vec![inner.alpn().to_vec()]).await
    }

    async fn handshake<S>(
        &self,
        host: &str,
        stream: S,
        protocols: Vec<Vec<u8>>,
    ) -> Result<ClientStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let credentials = Arc::clone(&self.rotation().next);
        let unbracketed = host.trim_start_matches('[').trim_end_matches(']');
        let Ok(name) = ServerName::try_from(unbracketed.to_owned()) else {
            let problem = TlsError::Name(host.to_owned()).to_string();
            return Err(HandshakeError::Network { host: host.to_owned(), problem });
        };
        let connector = TlsConnector::from(Arc::clone(&credentials.config));
        let connecting = connector.with_alpn(protocols).connect(name.clone(), FirstBytes::new(stream));
        connecting.into_fallible().await.map_err(|(error, stream)| {
            if stream.are_http() {
                return HandshakeError::Http { host: host.to_owned() };
            }
            let rejected = credentials.verifier.take_rejected(&name);
            HandshakeError::of_handshake(host, &error, rejected.as_ref(), self.shared.clock.now())
        })
    }

    /// Replaces trust and identity for new connections; existing ones continue. Sessions are not
    /// resumed across it.
    ///
    /// # Errors
    /// The identity cannot be used; then nothing changes.
    pub fn replace(&self, trust: &Trust, identity: Option<&Identity>) -> Result<(), TlsError> {
        let newer = Credentials::new(Some(trust), identity, self.shared.clock)?;
        let mut rotation = self.rotation();
        let before = std::mem::replace(&mut rotation.next, newer);
        // An identity that never succeeded is no fallback.
        if !matches!(rotation.other, Other::Older(_)) {
            rotation.other = Other::Older(before);
        }
        Ok(())
    }

    /// Records that the peer accepted the last connection: the previous identity is dropped.
    pub fn worked(&self) {
        let mut rotation = self.rotation();
        // If the older one succeeds, the newer one may still be needed: the older one expires
        // first.
        if matches!(rotation.other, Other::Older(_)) {
            rotation.other = Other::None;
        }
    }

    /// Records that the peer refused the last connection: the next one presents the other identity,
    /// if there is one.
    pub fn refused(&self) {
        let mut rotation = self.rotation();
        let before = Arc::clone(&rotation.next);
        match std::mem::replace(&mut rotation.other, Other::None) {
            Other::None => {}
            Other::Older(older) => *rotation = Rotation { next: older, other: Other::Newer(before) },
            Other::Newer(newer) => *rotation = Rotation { next: newer, other: Other::Older(before) },
        }
    }

    /// Returns the certificate that the next connection presents.
    #[must_use]
    pub fn shows(&self) -> Option<Certificate> {
        self.rotation().next.certificate.clone()
    }

    fn starting_with(next: Arc<Credentials>, clock: Clock) -> Self {
        let rotation = Mutex::new(Rotation { next, other: Other::None });
        Self { shared: Arc::new(Shared { clock, rotation }) }
    }

    fn rotation(&self) -> std::sync::MutexGuard<'_, Rotation> {
        self.shared.rotation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Credentials {
    /// Creates credentials; without `trust` any server is accepted.
    fn new(trust: Option<&Trust>, identity: Option<&Identity>, clock: Clock) -> Result<Arc<Self>, TlsError> {
        let provider = provider();
        let chain = trust.map(|trust| {
            let roots = Arc::new(trust.roots()?);
            WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build().map_err(library)
        });
        let verifier = Arc::new(Verifier { chain: chain.transpose()?, clock, rejected: Mutex::default() });
        let config = ClientConfig::builder_with_details(provider, Arc::new(clock))
            .with_protocol_versions(super::VERSIONS)
            .map_err(library)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<dyn ServerCertVerifier>);
        let mut config = match identity {
            Some(identity) => {
                config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified()?)))
            }
            None => config.with_no_client_auth(),
        };
        config.resumption = match trust {
            Some(_) => Resumption::in_memory_sessions(SESSIONS),
            None => Resumption::disabled(),
        };
        let certificate = identity.map(|identity| identity.certificate().clone());
        Ok(Arc::new(Self { config: Arc::new(config), verifier, certificate }))
    }
}

/// Verifies servers: as rustls does, at the time that [`clock`] returns.
#[derive(Debug)]
struct Verifier {
    /// None accepts any certificate.
    chain: Option<Arc<WebPkiServerVerifier>>,
    clock: Clock,
    /// The last rejected certificate, for the error message: rustls does not return it.
    rejected: Mutex<Option<(ServerName<'static>, Certificate)>>,
}

impl Verifier {
    fn take_rejected(&self, host: &ServerName<'static>) -> Option<Certificate> {
        let mut rejected = self.rejected.lock().unwrap_or_else(PoisonError::into_inner);
        rejected.take_if(|(name, _)| name == host).map(|(_, certificate)| certificate)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        let certificate =
            Certificate::from_der("the server", end_entity).map_err(|_| CertificateError::BadEncoding)?;
        let now = clock::unix(self.clock.checking(certificate.not_before()));
        chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now).inspect_err(
            |_| {
                let mut rejected = self.rejected.lock().unwrap_or_else(PoisonError::into_inner);
                *rejected = Some((server_name.to_owned(), certificate));
            },
        )
    }

    verify_signatures!();
}
