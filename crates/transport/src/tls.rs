//! Certificates, keys and TLS for both sides: rustls with ring, TLS 1.2 and 1.3.
//!
//! One CA, that of the cloud side, vouches for everybody; whoever joins knows its fingerprint from the token. A node's
//! certificate has the common name `<node>`, which is also the user name that a broker sees
//! (`use_identity_as_username`), and the organization [`NODES`]; [`Subject`] has the others. No other common name is a
//! valid node name, so no node can get the certificate of somebody else.
//!
//! May depend on [`edgesync_object`] (names). Only this module names `rustls`, `tokio_rustls`, `rcgen` and `yasna`.
//!
//! # Clocks
//! A device without a battery starts in 1970. Such a clock must not keep it from its cloud, and cannot tell whether a
//! certificate has expired: [`clock`] has the rule.

pub mod certificate;
mod client;
pub mod clock;
pub mod identity;
mod local;
mod server;
mod sessions;

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
use rustls::{RootCertStore, SupportedProtocolVersion};

pub use certificate::{Certificate, Subject};
pub use client::{Client, ClientStream, HandshakeError};
pub use clock::Clock;
pub use identity::{Identity, Key};
pub use local::Local;
pub use server::{ClientRule, Server, ServerStream};

/// The organization of nodes, as in Kubernetes and KubeEdge.
pub const NODES: &str = "system:nodes";
/// The organization of operators with the role `admin`, as in Kubernetes; what it opens is decided by their records alone.
pub const OPERATORS: &str = "system:masters";
/// Before the name of an operator in the common name of their certificate. A colon is in no node name.
pub const OPERATOR_PREFIX: &str = "edgesync:operator:";
/// The common name of the cloud side towards an external broker. A colon is in no node name.
pub const CLOUD: &str = "edgesync:cloud";

/// What is wrong with a certificate, a key, or what is made of them. Never holds key material.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// Text or bytes that are no certificate.
    #[error("{what} is no certificate: {problem}")]
    NoCertificate {
        /// Which one: a file name, "the answer of the join service".
        what: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Text or bytes that are no private key of a kind that is supported (PKCS#8; P-256, P-384, Ed25519, RSA).
    #[error("{what} has no private key that can be used: {problem}")]
    NoKey {
        /// Which one.
        what: String,
        /// What is wrong with it, without the key.
        problem: String,
    },
    /// The key is not the one that the certificate is for.
    #[error("the private key in {what} is not the one of its certificate")]
    OtherKey {
        /// Which file.
        what: String,
    },
    /// A host name or address that cannot be in a certificate.
    #[error("'{0}' is neither a host name nor an IP address")]
    Name(String),
    /// The library refuses.
    #[error("{0}")]
    Library(String),
}

/// The certificates that are believed: CAs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust(pub Arc<[Certificate]>);

impl Trust {
    /// Believes these.
    #[must_use]
    pub fn new(roots: Vec<Certificate>) -> Self {
        Self(roots.into())
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.0.iter() {
            let added = roots.add(certificate.der().to_vec().into());
            let name = &certificate.subject().common_name;
            added.map_err(|error| {
                TlsError::Library(format!("the authority '{name}' cannot be used: {error}"))
            })?;
        }
        Ok(roots)
    }
}

/// TLS 1.2 and 1.3.
static VERSIONS: &[&SupportedProtocolVersion] = rustls::ALL_VERSIONS;

/// ring, whatever the process has as its default.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    Arc::clone(&PROVIDER)
}

/// What the traits of both verifiers ask for beyond the chain: signatures are checked as rustls does.
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
