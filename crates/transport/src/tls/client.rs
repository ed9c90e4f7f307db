//! The side that connects: believes a CA, shows a certificate, resumes sessions. What it shows can be replaced while
//! it is used.

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

pub use error::HandshakeError;

/// Servers whose sessions are kept: the broker under its names, and the join service.
const SESSIONS: usize = 4;

/// Makes TLS connections. A cheap handle: clones share identity and resumption.
///
/// After [`Client::replace`] new connections show the new identity. The one before is kept until a connection with the
/// new one has worked ([`Client::worked`]); when one is refused ([`Client::refused`]) the two are tried in turn.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    turn: Mutex<Turn>,
}

/// What the next connection shows, and what the one after a refusal shows.
struct Turn {
    next: Arc<Appearance>,
    other: Other,
}

/// The other identity, beside the one that is next.
enum Other {
    /// There is none: the one that is next has worked, or is the first.
    None,
    /// The one that worked before the next one came.
    Older(Arc<Appearance>),
    /// The newer one, which has been refused.
    Newer(Arc<Appearance>),
}

/// Whom a connection believes and what it shows; with the sessions that were begun so.
struct Appearance {
    config: Arc<ClientConfig>,
    verifier: Arc<Verifier>,
    certificate: Option<Certificate>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared(..)")
    }
}

/// A connection.
pub type ClientStream<S> = tokio_rustls::client::TlsStream<S>;

impl Client {
    /// A client that believes `trust` and shows `identity`, if any.
    ///
    /// # Errors
    /// The identity cannot be used.
    pub fn new(trust: &Trust, identity: Option<&Identity>, clock: Clock) -> Result<Self, TlsError> {
        let next = Appearance::new(Some(trust), identity, clock)?;
        Ok(Self::starting_with(next, clock))
    }

    /// A client that believes nobody in particular and takes the certificate of whoever answers: for the one request
    /// whose answer is checked against the token (`GET /ca.crt`). No name, no time, no authority is checked.
    ///
    /// # Errors
    /// The library's.
    pub fn unverified() -> Result<Self, TlsError> {
        let clock = Clock::system([]);
        Ok(Self::starting_with(Appearance::new(None, None, clock)?, clock))
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
        let appearance = Arc::clone(&self.turn().next);
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let Ok(name) = ServerName::try_from(bare.to_owned()) else {
            let problem = TlsError::Name(host.to_owned()).to_string();
            return Err(HandshakeError::Network { host: host.to_owned(), problem });
        };
        let connector = TlsConnector::from(Arc::clone(&appearance.config));
        let connected = connector.connect(name.clone(), stream).await;
        connected.map_err(|error| {
            let rejected = appearance.verifier.take_rejected(&name);
            HandshakeError::of_handshake(host, &error, rejected.as_ref(), self.shared.clock.now())
        })
    }

    /// New connections believe and show this; those that exist go on as they are. Sessions are not resumed across it.
    ///
    /// # Errors
    /// The identity cannot be used; then nothing has changed.
    pub fn replace(&self, trust: &Trust, identity: Option<&Identity>) -> Result<(), TlsError> {
        let newer = Appearance::new(Some(trust), identity, self.shared.clock)?;
        let mut turn = self.turn();
        let before = std::mem::replace(&mut turn.next, newer);
        // One that has never worked is no way back.
        if !matches!(turn.other, Other::Older(_)) {
            turn.other = Other::Older(before);
        }
        Ok(())
    }

    /// The peer has taken the last connection: what was shown before is forgotten.
    pub fn worked(&self) {
        let mut turn = self.turn();
        // When it is the older one that works, the newer one may still be needed: the older one expires first.
        if matches!(turn.other, Other::Older(_)) {
            turn.other = Other::None;
        }
    }

    /// The peer has refused the last connection: the next one shows the other identity, if there is one.
    pub fn refused(&self) {
        let mut turn = self.turn();
        let before = Arc::clone(&turn.next);
        match std::mem::replace(&mut turn.other, Other::None) {
            Other::None => {}
            Other::Older(older) => *turn = Turn { next: older, other: Other::Newer(before) },
            Other::Newer(newer) => *turn = Turn { next: newer, other: Other::Older(before) },
        }
    }

    /// The certificate that the next connection shows.
    #[must_use]
    pub fn shows(&self) -> Option<Certificate> {
        self.turn().next.certificate.clone()
    }

    fn starting_with(next: Arc<Appearance>, clock: Clock) -> Self {
        let turn = Mutex::new(Turn { next, other: Other::None });
        Self { shared: Arc::new(Shared { clock, turn }) }
    }

    fn turn(&self) -> std::sync::MutexGuard<'_, Turn> {
        self.shared.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Appearance {
    /// Without `trust` whoever answers is taken.
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

/// Verifies servers: as rustls does, at the time that [`clock`] says.
#[derive(Debug)]
struct Verifier {
    /// None takes any certificate.
    chain: Option<Arc<WebPkiServerVerifier>>,
    clock: Clock,
    /// The last one that was not taken, for the words of the error: rustls does not hand it out.
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
