//! What a certificate says of itself (RFC 5280), read with a DER reader; verification is rustls's. And PEM (RFC 7468).

use jiff::Timestamp;

use super::TlsError;

/// A certificate and what it says. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    der: std::sync::Arc<[u8]>,
    subject: Subject,
    not_before: Timestamp,
    not_after: Timestamp,
    serial: String,
    names: Vec<String>,
}

/// Whom a certificate is for, or who asks for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The common name; empty if there is none.
    pub common_name: String,
    /// The first organization; empty if there is none.
    pub organization: String,
}

impl Certificate {
    /// Reads a certificate in DER. `what` names it in errors.
    ///
    /// # Errors
    /// [`TlsError::NoCertificate`].
    pub fn from_der(what: &str, der: &[u8]) -> Result<Self, TlsError> {
        todo!()
    }

    /// Reads all certificates of a PEM text; other sections are skipped.
    ///
    /// # Errors
    /// [`TlsError::NoCertificate`] if there is none, or one that cannot be read.
    pub fn all_from_pem(what: &str, text: &str) -> Result<Vec<Self>, TlsError> {
        todo!()
    }

    /// As PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        todo!()
    }

    /// The DER.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Whom it is for.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The name of the node it is for: common name and organization are those of a node.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        todo!()
    }

    /// From when it is valid.
    #[must_use]
    pub fn not_before(&self) -> Timestamp {
        self.not_before
    }

    /// Until when it is valid.
    #[must_use]
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// The serial number, lower-case hexadecimal without leading zeros but for a last one.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// The host names and IP addresses it is for (subjectAltName).
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// SHA-256 of the DER, lower-case hexadecimal: 64 characters.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        todo!()
    }
}

/// SHA-256, lower-case hexadecimal.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    todo!()
}

impl Subject {
    /// The name of the node: a valid node name as common name, and [`super::NODES`].
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        todo!()
    }

    /// The name of the node that a request for a certificate in KubeEdge's manner names: `system:node:<node>` or
    /// `<node>` as common name, and [`super::NODES`].
    #[must_use]
    pub fn requested_node(&self) -> Option<&str> {
        todo!()
    }
}
