//! The accepting side of TLS: the cloud side's MQTT endpoint, join service and API.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ResolvesServerCert, ServerConfig, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{CertificateError, DistinguishedName, HandshakeKind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use super::hello::Hello;
use super::sessions::Sessions;
use super::{Certificate, Clock, Identity, TlsError, Trust, clock, library, provider, verify_signatures};

/// Limit for each part of a refused client's subject in messages, in characters.
const SHOWN: usize = 64;

/// Accepts TLS connections. A cheap handle: clones share identity, rule and sessions.
#[derive(Clone, Debug)]
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    terms: Mutex<Arc<Terms>>,
}

/// Identity, rule and sessions of new connections. A replacement has its own sessions, so none is
/// resumed under it.
struct Terms {
    certificate: Certificate,
    key: Arc<dyn ResolvesServerCert>,
    clients: Arc<Clients>,
    sessions: Arc<Sessions>,
}

/// Verification of client certificates.
#[derive(Debug)]
struct Clients {
    /// None if no certificate is requested.
    chain: Option<Arc<dyn ClientCertVerifier>>,
    revoked: Arc<HashSet<String>>,
    expired_grace: Duration,
    clock: Clock,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared(..)")
    }
}

/// A handshake in progress, and the terms under which it began.
struct Begun {
    terms: Arc<Terms>,
    verifier: Arc<Verifier>,
    config: Arc<ServerConfig>,
}

/// The certificates that a client presented, the leaf first, verified by the rule of one server.
/// It may have presented none, where that rule permits it.
pub struct Presented {
    chain: Vec<CertificateDer<'static>>,
    under: Arc<Terms>,
}

impl Presented {
    fn certificate(&self) -> io::Result<Option<Certificate>> {
        let certificate = self.chain.first().map(|der| Certificate::from_der("the client", der));
        certificate.transpose().map_err(io::Error::other)
    }
}

impl std::fmt::Debug for Presented {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Presented").field("certificates", &self.chain.len()).finish_non_exhaustive()
    }
}

/// A TLS connection of a server.
pub type ServerStream<S> = tokio_rustls::server::TlsStream<S>;

/// Rule for client certificates.
#[derive(Clone, Debug)]
pub struct ClientRule {
    /// Trusted authorities of clients. Without any, and unless one is required, no certificate is
    /// requested.
    pub trust: Trust,
    /// Serial numbers of revoked certificates, as [`Certificate::serial`] returns them.
    pub revoked: Arc<HashSet<String>>,
    /// Whether a client without a certificate is refused. An invalid certificate always is.
    pub required: bool,
    /// Accepts a client certificate that expired no longer ago than this: for renewals only.
    pub expired_grace: Duration,
}

impl Server {
    /// Creates a server that presents `identity`.
    ///
    /// # Errors
    /// Identity or authorities cannot be used.
    pub fn new(identity: &Identity, clients: &ClientRule, clock: Clock) -> Result<Self, TlsError> {
        let terms = Mutex::new(Terms::new(identity, clients, clock)?);
        Ok(Self { shared: Arc::new(Shared { clock, terms }) })
    }

    /// Replaces identity and rule for new connections. Earlier sessions are not resumed, so
    /// revocation applies at once.
    ///
    /// # Errors
    /// As [`Server::new`]; then nothing changes.
    pub fn replace(&self, identity: &Identity, clients: &ClientRule) -> Result<(), TlsError> {
        let terms = Terms::new(identity, clients, self.shared.clock)?;
        *self.lock() = terms;
        Ok(())
    }

    /// Performs the handshake. Returns the client's verified certificate, if it presented one. A
    /// session is resumed only while its original certificate is valid.
    ///
    /// # Errors
    /// Errors of the network or of TLS; the message names the refused client and the reason, for
    /// the log.
    pub async fn accept<S>(&self, stream: S) -> io::Result<(ServerStream<S>, Option<Certificate>)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let begun = self.begin(&[])?;
        let accepted = TlsAcceptor::from(Arc::clone(&begun.config)).accept(stream).await;
        let (stream, presented) = self.end(&begun, accepted)?;
        let certificate = presented.certificate()?;
        Ok((stream, certificate))
    }

    /// Completes the handshake of a connection whose ClientHello has been read, with the first of
    /// `protocols` that the client offers, if it offers any (ALPN). Returns what the client
    /// presented, verified by the rule of this server; another server verifies it with
    /// [`Server::admit`].
    ///
    /// # Errors
    /// As [`Server::accept`]; and the client offers other protocols only: it gets the alert
    /// `no_application_protocol`.
    pub(crate) async fn complete<S>(
        &self,
        hello: Hello<S>,
        protocols: &[&str],
    ) -> io::Result<(ServerStream<S>, Presented)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let begun = self.begin(protocols)?;
        let accepted = hello.start.into_stream(Arc::clone(&begun.config)).await;
        self.end(&begun, accepted)
    }

    /// Verifies by the present rule of this server what a client presented to another one, or to
    /// this one under an earlier rule. Returns the client's certificate, if it presented one.
    ///
    /// # Errors
    /// The rule refuses the certificate, or requires one.
    pub fn admit(&self, presented: &Presented) -> io::Result<Option<Certificate>> {
        let now = self.terms();
        if !Arc::ptr_eq(&now, &presented.under) {
            let shown = &presented.chain;
            now.clients.admit(shown).map_err(|error| refusal(shown.first(), &error))?;
        }
        presented.certificate()
    }

    fn begin(&self, protocols: &[&str]) -> io::Result<Begun> {
        let terms = self.terms();
        let verifier = Arc::new(Verifier { clients: Arc::clone(&terms.clients), refused: Mutex::default() });
        let mut config = terms.config(Arc::clone(&verifier), self.shared.clock)?;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Ok(Begun { terms, verifier, config: Arc::new(config) })
    }

    /// Checks the outcome of a handshake.
    fn end<S>(
        &self,
        begun: &Begun,
        accepted: io::Result<ServerStream<S>>,
    ) -> io::Result<(ServerStream<S>, Presented)> {
        let stream = accepted.map_err(|error| begun.verifier.explain(error))?;
        let connection = stream.get_ref().1;
        let shown = connection.peer_certificates().unwrap_or_default();
        let now = self.terms();
        // Resumed sessions, and handshakes begun before a change of the rule, have not been checked
        // by this rule.
        if connection.handshake_kind() == Some(HandshakeKind::Resumed) || !Arc::ptr_eq(&begun.terms, &now) {
            now.clients.admit(shown).map_err(|error| {
                // With the same session the client would return, and never get the reason.
                self.forget_sessions(&now);
                refusal(shown.first(), &error)
            })?;
        }
        let chain = shown.iter().map(|der| der.clone().into_owned()).collect();
        Ok((stream, Presented { chain, under: now }))
    }

    /// Drops all sessions, unless the rule has been replaced since, which dropped them.
    fn forget_sessions(&self, seen: &Arc<Terms>) {
        let mut terms = self.lock();
        if Arc::ptr_eq(&terms, seen) {
            *terms = Arc::new(Terms {
                certificate: seen.certificate.clone(),
                key: Arc::clone(&seen.key),
                clients: Arc::clone(&seen.clients),
                sessions: Arc::default(),
            });
        }
    }

    /// Returns the certificate that new connections present.
    #[must_use]
    pub fn shows(&self) -> Certificate {
        self.terms().certificate.clone()
    }

    fn terms(&self) -> Arc<Terms> {
        Arc::clone(&self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Arc<Terms>> {
        self.shared.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Terms {
    fn new(identity: &Identity, rule: &ClientRule, clock: Clock) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(Self {
            certificate: identity.certificate().clone(),
            key: Arc::new(SingleCertAndKey::from(identity.certified()?)),
            clients: Arc::new(Clients::new(rule, clock)?),
            sessions: Arc::default(),
        }))
    }

    /// Builds the configuration of one connection. Its own verifier remembers the refused
    /// certificate.
    fn config(&self, verifier: Arc<Verifier>, clock: Clock) -> io::Result<ServerConfig> {
        let mut config = ServerConfig::builder_with_details(provider(), Arc::new(clock))
            .with_protocol_versions(super::VERSIONS)
            .map_err(io::Error::other)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&self.key));
        config.session_storage = Arc::clone(&self.sessions) as _;
        config.ticketer = Arc::clone(&self.sessions) as _;
        config.send_tls13_tickets = 1;
        Ok(config)
    }
}

impl Clients {
    fn new(rule: &ClientRule, clock: Clock) -> Result<Self, TlsError> {
        let chain = if rule.required || !rule.trust.0.is_empty() { Some(chain(rule)?) } else { None };
        Ok(Self { chain, revoked: Arc::clone(&rule.revoked), expired_grace: rule.expired_grace, clock })
    }

    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<ClientCertVerified, rustls::Error> {
        let chain = self.chain.as_ref().ok_or(CertificateError::UnknownIssuer)?;
        let certificate =
            Certificate::from_der("the client", end_entity).map_err(|_| CertificateError::BadEncoding)?;
        let now = self.clock.checking(certificate.not_before());
        let grace = SignedDuration::try_from(self.expired_grace).unwrap_or(SignedDuration::MAX);
        let end = certificate.not_after();
        let at = if now > end && now.duration_since(end) <= grace { end } else { now };
        let verified = chain.verify_client_cert(end_entity, intermediates, clock::unix(at)).map_err(
            |error| match error {
                // A wrong signature means another authority of the same name; the alert for the
                // client says so.
                rustls::Error::InvalidCertificate(CertificateError::BadSignature) => {
                    rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)
                }
                error => error,
            },
        )?;
        if self.revoked.contains(certificate.serial()) {
            return Err(CertificateError::Revoked.into());
        }
        Ok(verified)
    }

    /// Checks the certificates that a client presented.
    fn admit(&self, shown: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        match shown.split_first() {
            Some((end_entity, intermediates)) => self.verify(end_entity, intermediates).map(drop),
            None if self.chain.as_ref().is_some_and(|chain| chain.client_auth_mandatory()) => {
                Err(rustls::Error::NoCertificatesPresented)
            }
            None => Ok(()),
        }
    }
}

fn chain(rule: &ClientRule) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = Arc::new(rule.trust.roots()?);
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
    if !rule.required {
        builder = builder.allow_unauthenticated();
    }
    builder.build().map_err(library)
}

/// Verifies the client of one connection: as rustls does, at the time that [`Clients`] selects.
#[derive(Debug)]
struct Verifier {
    clients: Arc<Clients>,
    /// The refused certificate, for the error message: rustls does not return it.
    refused: Mutex<Option<CertificateDer<'static>>>,
}

impl Verifier {
    /// Adds the refused client to the error, if that failed the handshake.
    fn explain(&self, error: io::Error) -> io::Error {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
        match refused {
            Some(der) => refusal(Some(&der), &error),
            None => error,
        }
    }
}

/// Returns the error for a refused certificate. The subject is the client's own text, so it is
/// truncated and escaped.
fn refusal(shown: Option<&CertificateDer<'_>>, why: &impl std::fmt::Display) -> io::Error {
    let certificate = shown.and_then(|der| Certificate::from_der("the client", der).ok());
    let text = match certificate {
        Some(certificate) => {
            let name = certificate.subject().common_name.chars().take(SHOWN).collect::<String>();
            let serial = certificate.serial().chars().take(SHOWN).collect::<String>();
            format!("certificate of '{}' (serial {serial}): {why}", name.escape_debug())
        }
        None => why.to_string(),
    };
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

impl ClientCertVerifier for Verifier {
    fn offer_client_auth(&self) -> bool {
        self.clients.chain.is_some()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.clients.chain.as_ref().is_some_and(|chain| chain.client_auth_mandatory())
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.clients.chain.as_ref().map_or(&[], |chain| chain.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.clients.verify(end_entity, intermediates).inspect_err(|_| {
            let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            *refused = Some(end_entity.clone().into_owned());
        })
    }

    verify_signatures!();
}
