//! Authority of CloudCore: certificates, and tokens signed with its key.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use edgesync_object::encoding::hex;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use ring::hmac;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName as TlsName, RootCertStore, SignatureScheme};
use tokio_rustls::TlsAcceptor;

pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    key: Vec<u8>,
    certificate: CertificateDer<'static>,
}

/// Names in the certificates of its services: those of this machine, and names for tests of
/// networks.
const NAMES: [&str; 5] = ["127.0.0.1", "localhost", "0.0.0.0", "core.example", "join.example"];

/// Accepts any client certificate: it is verified later.
#[derive(Debug)]
struct AnyClient(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[TlsName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Returns Unix time in seconds.
fn seconds_now() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second()).unwrap()
}

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "KubeEdge");
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        let der = key.serialize_der();
        Self { issuer: Issuer::new(params, key), key: der, certificate }
    }

    pub(super) fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Verifies that clients have a certificate of this authority.
    fn clients(&self) -> Arc<dyn ClientCertVerifier> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build().unwrap()
    }

    /// Issues certificate and key of a service.
    fn service(&self) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::new(NAMES.map(str::to_owned).to_vec()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "kubeedge.io");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Issues certificate and key of a service in PEM.
    pub(super) fn service_pem(&self) -> String {
        let (certificate, key) = self.service();
        format!("{}{}", certificate.pem(), key.serialize_pem())
    }

    fn acceptor(&self, clients: Arc<dyn ClientCertVerifier>) -> TlsAcceptor {
        let (certificate, key) = self.service();
        let certificate = certificate.der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![certificate], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    pub(super) fn sessions(&self) -> TlsAcceptor {
        self.acceptor(self.clients())
    }

    pub(super) fn joins(&self) -> TlsAcceptor {
        self.acceptor(Arc::new(AnyClient(self.clients())))
    }

    /// Verifies that a certificate is of this authority and valid now.
    pub(super) fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), String> {
        let result = self.clients().verify_client_cert(certificate, &[], UnixTime::now());
        result.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Creates a token `<SHA-256 of the certificate>.<JWT>`.
    pub(super) fn token(&self, life: Duration) -> String {
        let now = seconds_now();
        // A token without lifetime expired a minute ago, because clocks may differ by a second.
        let ends = if life.is_zero() { now - 60 } else { now + life.as_secs() };
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let head = encode(r#"{"alg":"HS256","typ":"JWT"}"#);
        let signed = format!("{head}.{}", encode(&format!(r#"{{"exp":{ends}}}"#)));
        let tag = hmac::sign(&self.secret(), signed.as_bytes());
        let hash = ring::digest::digest(&ring::digest::SHA256, &self.certificate);
        format!("{}.{signed}.{}", hex(hash.as_ref()), URL_SAFE_NO_PAD.encode(tag))
    }

    fn secret(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.key)
    }

    /// Verifies signature and expiry of a JWT.
    pub(super) fn check_jwt(&self, jwt: &str) -> Result<(), &'static str> {
        let malformed = "token is malformed: token contains an invalid number of segments";
        let (signed, tag) = jwt.rsplit_once('.').ok_or(malformed)?;
        let (_, claims) = signed.split_once('.').ok_or(malformed)?;
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| malformed);
        hmac::verify(&self.secret(), signed.as_bytes(), &decode(tag)?)
            .map_err(|_| "token signature is invalid: signature is invalid")?;
        let claims: serde_json::Value = serde_json::from_slice(&decode(claims)?).map_err(|_| malformed)?;
        let now = seconds_now();
        if claims["exp"].as_u64().is_none_or(|ends| ends <= now) {
            return Err("token has invalid claims: token is expired");
        }
        Ok(())
    }

    /// Issues a certificate for any request, without checks.
    pub(super) fn sign(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        let request = CertificateSigningRequestDer::from(request.to_vec());
        let mut request =
            CertificateSigningRequestParams::from_der(&request).map_err(|error| error.to_string())?;
        let requested = request.params.distinguished_name.clone();
        request.params.distinguished_name = DistinguishedName::new();
        for part in [DnType::OrganizationName, DnType::CommonName] {
            if let Some(value) = requested.get(&part) {
                request.params.distinguished_name.push(part, value.clone());
            }
        }
        request.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = request.signed_by(&self.issuer).map_err(|error| error.to_string())?;
        Ok(certificate.der().to_vec())
    }

    /// Issues certificate and key of a node in PEM.
    pub(super) fn node(&self, node: &str) -> String {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        format!("{}{}", certificate.pem(), key.serialize_pem())
    }
}
