//! A private key with its certificate: generated on the device, kept in one file so that both
//! change at once.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use yasna::models::ObjectIdentifier;

use super::certificate;
use super::{Certificate, NODES, TlsError, library};

/// A private key in PKCS#8. Never shown, and wiped on drop as far as the allocator allows.
#[derive(Clone)]
pub struct Key {
    der: Arc<Secret>,
}

/// Bytes that are overwritten on drop.
struct Secret(Vec<u8>);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Keeps the compiler from removing the write.
        std::hint::black_box(&self.0);
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Generates a P-256 key.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate() -> Result<Self, TlsError> {
        let key = KeyPair::generate().map_err(library)?;
        Ok(Self::of(key.serialize_der()))
    }

    /// Parses the first private key of a PEM text (`PRIVATE KEY`, `EC PRIVATE KEY`, `RSA PRIVATE
    /// KEY`).
    ///
    /// # Errors
    /// [`TlsError::NoKey`].
    pub fn from_pem(what: &str, text: &str) -> Result<Self, TlsError> {
        let no_key = |problem: &str| TlsError::NoKey { what: what.to_owned(), problem: problem.to_owned() };
        let der = PrivateKeyDer::from_pem_slice(text.as_bytes())
            .map_err(|error| no_key(why_no_key(&error, text)))?;
        let candidates = match &der {
            PrivateKeyDer::Pkcs8(der) => vec![der.secret_pkcs8_der().to_vec()],
            PrivateKeyDer::Pkcs1(der) => vec![pkcs8(RSA, None, der.secret_pkcs1_der())],
            PrivateKeyDer::Sec1(der) => {
                [P256, P384].map(|curve| pkcs8(EC, Some(curve), der.secret_sec1_der())).into()
            }
            _ => Vec::new(),
        };
        let keys = candidates.into_iter().map(Self::of);
        let usable = |key: &Self| key.signing().is_ok();
        keys.into_iter().find(usable).ok_or_else(|| {
            no_key(
                "damaged or unsupported key; supported are P-256, P-384, Ed25519, RSA of 2048 bits or more",
            )
        })
    }

    /// Encodes the key as PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        certificate::pem("PRIVATE KEY", self.der())
    }

    /// Creates a request for a node's certificate (PKCS#10, DER) in KubeEdge's form: `C=CN,
    /// O=system:nodes, L=Hangzhou, ST=Zhejiang, CN=system:node:<node>`.
    ///
    /// # Errors
    /// The key cannot sign requests.
    pub fn node_request(&self, node: &str) -> Result<Vec<u8>, TlsError> {
        let key = KeyPair::try_from(&PrivatePkcs8KeyDer::from(self.der())).map_err(library)?;
        let mut subject = DistinguishedName::new();
        let country = "CN".try_into().map_err(library)?;
        subject.push(DnType::CountryName, DnValue::PrintableString(country));
        subject.push(DnType::OrganizationName, NODES);
        subject.push(DnType::LocalityName, "Hangzhou");
        subject.push(DnType::StateOrProvinceName, "Zhejiang");
        subject.push(DnType::CommonName, format!("{}{node}", certificate::NODE_PREFIX));
        let mut request = CertificateParams::default();
        request.distinguished_name = subject;
        let request = request.serialize_request(&key).map_err(library)?;
        Ok(request.der().to_vec())
    }

    /// Returns the PKCS#8 DER, for rustls and rcgen.
    pub(crate) fn der(&self) -> &[u8] {
        &self.der.0
    }

    fn of(der: Vec<u8>) -> Self {
        Self { der: Arc::new(Secret(der)) }
    }

    /// Returns the key in rustls's form.
    pub(super) fn signing(&self) -> Result<Arc<dyn SigningKey>, TlsError> {
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.der()));
        rustls::crypto::ring::sign::any_supported_type(&der).map_err(library)
    }
}

/// Object identifiers of keys (RFC 5480, RFC 8017).
const RSA: &[u64] = &[1, 2, 840, 113_549, 1, 1, 1];
const EC: &[u64] = &[1, 2, 840, 10045, 2, 1];
const P256: &[u64] = &[1, 2, 840, 10045, 3, 1, 7];
const P384: &[u64] = &[1, 3, 132, 0, 34];

/// Converts the older forms (PKCS#1, SEC1) into PKCS#8 (RFC 5208), the one form that is kept.
fn pkcs8(algorithm: &[u64], curve: Option<&[u64]>, key: &[u8]) -> Vec<u8> {
    yasna::construct_der(|writer| {
        writer.write_sequence(|fields| {
            fields.next().write_u8(0);
            fields.next().write_sequence(|fields| {
                fields.next().write_oid(&ObjectIdentifier::from_slice(algorithm));
                match curve {
                    Some(curve) => fields.next().write_oid(&ObjectIdentifier::from_slice(curve)),
                    None => fields.next().write_null(),
                }
            });
            fields.next().write_bytes(key);
        });
    })
}

/// Returns why a text has no usable key. The reader's own message could contain a part of the key.
fn why_no_key(error: &pem::Error, text: &str) -> &'static str {
    match error {
        pem::Error::NoItemsFound if text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") => {
            "encrypted with a password; hint: decrypt it with 'openssl pkey'"
        }
        pem::Error::NoItemsFound => "no PEM section '-----BEGIN PRIVATE KEY-----'",
        _ => "damaged PEM: END line or part of the text missing",
    }
}

/// A key and its certificate chain, the leaf first.
#[derive(Clone, Debug)]
pub struct Identity {
    chain: Vec<Certificate>,
    key: Key,
}

impl Identity {
    /// Combines a key and its certificates.
    ///
    /// # Errors
    /// [`TlsError::OtherKey`] if they do not belong together, [`TlsError::NoCertificate`] without
    /// any.
    pub fn new(what: &str, chain: Vec<Certificate>, key: Key) -> Result<Self, TlsError> {
        let Some(leaf) = chain.first() else {
            let problem = "no certificate found".to_owned();
            return Err(TlsError::NoCertificate { what: what.to_owned(), problem });
        };
        if !belong(leaf, &key)? {
            return Err(TlsError::OtherKey { what: what.to_owned() });
        }
        Ok(Self { chain, key })
    }

    /// Parses a PEM text with certificates and one key, in any order; the leaf is the certificate
    /// of the key.
    ///
    /// # Errors
    /// As [`Identity::new`], and [`TlsError::NoKey`].
    pub fn from_pem(what: &str, text: &str) -> Result<Self, TlsError> {
        let mut chain = Certificate::all_from_pem(what, text)?;
        let key = Key::from_pem(what, text)?;
        for index in 0..chain.len() {
            if belong(&chain[index], &key)? {
                chain[..=index].rotate_right(1);
                return Ok(Self { chain, key });
            }
        }
        Err(TlsError::OtherKey { what: what.to_owned() })
    }

    /// Generates an identity for a server used only by programs on this machine, at this address
    /// among others: its certificate, and that of a separate authority, whose key is dropped at
    /// once. They never expire: no clock is trusted here.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn local(address: IpAddr) -> Result<Self, TlsError> {
        let named = |names: Vec<String>, name: &str| {
            let mut params = CertificateParams::new(names).map_err(library)?;
            params.not_before = rcgen::date_time_ymd(1970, 1, 1);
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, name);
            Ok::<_, TlsError>(params)
        };
        let mut authority = named(Vec::new(), "edgesync: authority of this device's API")?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let signer = KeyPair::generate().map_err(library)?;
        let root = authority.self_signed(&signer).map_err(library)?;
        let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
        names.extend(Some(address.to_string()).filter(|address| !names.contains(address)));
        let mut server = named(names, "edgesync: this device's API")?;
        server.is_ca = IsCa::ExplicitNoCa;
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        server.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(library)?;
        let leaf = server.signed_by(&key, &Issuer::new(authority, signer)).map_err(library)?;
        let what = "the generated certificate";
        let chain = vec![Certificate::from_der(what, leaf.der())?, Certificate::from_der(what, root.der())?];
        Self::new(what, chain, Key::of(key.serialize_der()))
    }

    /// Encodes the identity as PEM: certificates, then the key.
    #[must_use]
    pub fn to_pem(&self) -> String {
        let certificates = self.chain.iter().map(Certificate::to_pem);
        certificates.chain([self.key.to_pem()]).collect()
    }

    /// Returns the leaf certificate.
    #[must_use]
    pub fn certificate(&self) -> &Certificate {
        // `new` refuses an empty chain.
        &self.chain[0]
    }

    /// Returns the leaf and the intermediate certificates.
    #[must_use]
    pub fn chain(&self) -> &[Certificate] {
        &self.chain
    }

    /// Returns the private key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns chain and key in rustls's form.
    pub(super) fn certified(&self) -> Result<CertifiedKey, TlsError> {
        let chain = self.chain.iter().map(|certificate| certificate.der().to_vec().into()).collect();
        Ok(CertifiedKey::new(chain, self.key.signing()?))
    }
}

/// Returns whether a certificate belongs to a key.
fn belong(certificate: &Certificate, key: &Key) -> Result<bool, TlsError> {
    let der = certificate.der().to_vec().into();
    Ok(CertifiedKey::new(vec![der], key.signing()?).keys_match().is_ok())
}
