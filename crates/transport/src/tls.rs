//! Certificates, keys and TLS for both sides: rustls with ring, TLS 1.2 and 1.3.
//!
//! One CA, that of the cloud side, issues all certificates; a joining device knows its fingerprint
//! from the token. A node's certificate has the common name `<node>`, which is also the user name
//! that a broker sees (`use_identity_as_username`), and the organization [`NODES`]; [`Subject`] has
//! the others. No other common name is a valid node name, so no node can get another party's
//! certificate.
//!
//! May depend on [`edgesync_object`] (names). Only this module names `rustls`, `tokio_rustls`,
//! `rcgen` and `yasna`.
//!
//! # Clocks
//! A device without a battery starts in 1970. Such a clock must not keep it from its cloud, and
//! cannot show whether a certificate has expired: [`clock`] has the rule.

pub mod certificate;
mod client;
pub mod clock;
mod hello;
pub mod identity;
mod local;
mod server;
mod sessions;

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
use rustls::{RootCertStore, SupportedProtocolVersion};

pub use certificate::{Certificate, Subject};
pub use client::{Client, ClientStream, FirstBytes, HandshakeError, Inner};
pub use clock::Clock;
pub(crate) use hello::{Hello, Offer};
pub use identity::{Identity, Key};
pub use local::Local;
pub use server::{ClientRule, Presented, Server, ServerStream};

/// Organization of nodes, as in Kubernetes and KubeEdge.
pub const NODES: &str = "system:nodes";
/// Organization of operators with the role `admin`, as in Kubernetes; their records alone decide
/// what they may do.
pub const OPERATORS: &str = "system:masters";
/// Prefix of an operator's common name. A colon is in no node name.
pub const OPERATOR_PREFIX: &str = "edgesync:operator:";
/// Common name of the cloud side towards an external broker. A colon is in no node name.
pub const CLOUD: &str = "edgesync:cloud";

/// Error about a certificate or a key. Never contains key material.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The text is not a certificate.
    #[error("parse certificate from {what}: {problem}")]
    NoCertificate {
        /// Source of the text, such as a file name or "the answer of the join service".
        what: String,
        /// Problem of the certificate.
        problem: String,
    },
    /// Not a private key of a supported kind (PKCS#8; P-256, P-384, Ed25519, RSA).
    #[error("parse private key from {what}: {problem}")]
    NoKey {
        /// Source of the text, such as a file name.
        what: String,
        /// Problem of the text; never contains the key.
        problem: String,
    },
    /// The key does not belong to the certificate.
    #[error("private key in {what} does not match its certificate")]
    OtherKey {
        /// Name of the file.
        what: String,
    },
    /// A host name or address that cannot be in a certificate.
    #[error("'{0}' is neither a host name nor an IP address")]
    Name(String),
    /// Error of the TLS library.
    #[error("{0}")]
    Library(String),
}

/// The trusted CA certificates of peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust(pub Arc<[Certificate]>);

impl Trust {
    /// Creates the set from CA certificates.
    #[must_use]
    pub fn new(roots: Vec<Certificate>) -> Self {
        Self(roots.into())
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.0.iter() {
            let added = roots.add(certificate.der().to_vec().into());
            let name = &certificate.subject().common_name;
            added.map_err(|error| TlsError::Library(format!("load CA certificate '{name}': {error}")))?;
        }
        Ok(roots)
    }
}

static VERSIONS: &[&SupportedProtocolVersion] = rustls::ALL_VERSIONS;

/// Returns ring, regardless of the process's default provider.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    Arc::clone(&PROVIDER)
}

/// Methods that the traits of both verifiers require beyond the chain: signatures are checked as
/// rustls does.
macro_rules! verify_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = &provider().signature_verification_algorithms;
            rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = &provider().signature_verification_algorithms;
            rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            provider().signature_verification_algorithms.supported_schemes()
        }
    };
}
use verify_signatures;

fn library(error: impl std::fmt::Display) -> TlsError {
    TlsError::Library(error.to_string())
}

#[cfg(test)]
mod tests;
