//! A key with its certificate: made on the device, kept in one file so that both change at once.

use super::{Certificate, TlsError};

/// A private key: PKCS#8. Not shown, and wiped when dropped as far as the allocator allows.
#[derive(Clone)]
pub struct Key {
    der: std::sync::Arc<Secret>,
}

/// Bytes that are overwritten when they are dropped.
struct Secret(Vec<u8>);

impl Drop for Secret {
    fn drop(&mut self) {
        todo!("overwrite with std::hint::black_box, no unsafe")
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Makes a P-256 key.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate() -> Result<Self, TlsError> {
        todo!()
    }

    /// Reads the first private key of a PEM text (`PRIVATE KEY`, `EC PRIVATE KEY`, `RSA PRIVATE KEY`).
    ///
    /// # Errors
    /// [`TlsError::NoKey`].
    pub fn from_pem(what: &str, text: &str) -> Result<Self, TlsError> {
        todo!()
    }

    /// As PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        todo!()
    }

    /// A request for a node's certificate (PKCS#10, DER) as KubeEdge's: `C=CN, O=system:nodes, L=Hangzhou,
    /// ST=Zhejiang, CN=system:node:<node>`.
    ///
    /// # Errors
    /// The key cannot sign requests.
    pub fn node_request(&self, node: &str) -> Result<Vec<u8>, TlsError> {
        todo!()
    }

    /// The PKCS#8 DER, for rustls and rcgen.
    pub(super) fn der(&self) -> &[u8] {
        &self.der.0
    }
}

/// A key and the chain of its certificate, the leaf first.
#[derive(Clone, Debug)]
pub struct Identity {
    chain: Vec<Certificate>,
    key: Key,
}

impl Identity {
    /// Puts a key and its certificates together.
    ///
    /// # Errors
    /// [`TlsError::OtherKey`] if they do not belong together, [`TlsError::NoCertificate`] without any.
    pub fn new(what: &str, chain: Vec<Certificate>, key: Key) -> Result<Self, TlsError> {
        todo!()
    }

    /// Reads a PEM text with certificates and one key, in any order; the leaf is the certificate of the key.
    ///
    /// # Errors
    /// As above and [`TlsError::NoKey`].
    pub fn from_pem(what: &str, text: &str) -> Result<Self, TlsError> {
        todo!()
    }

    /// As PEM: certificates, then the key.
    #[must_use]
    pub fn to_pem(&self) -> String {
        todo!()
    }

    /// The certificate.
    #[must_use]
    pub fn certificate(&self) -> &Certificate {
        // `new` refuses an empty chain.
        &self.chain[0]
    }

    /// The certificate and those between it and the CA.
    #[must_use]
    pub fn chain(&self) -> &[Certificate] {
        &self.chain
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }
}
