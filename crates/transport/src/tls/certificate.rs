//! Certificates (RFC 5280): fields parsed with a DER reader, and PEM (RFC 7468). Verification is
//! left to rustls.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::TlsError;
use edgesync_object::encoding::hex;
use edgesync_object::name;

mod reader;

/// Prefix of a node's common name in a request in KubeEdge's form.
pub(super) const NODE_PREFIX: &str = "system:node:";

/// A certificate and its parsed fields. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    der: std::sync::Arc<[u8]>,
    subject: Subject,
    issuer: Subject,
    not_before: Timestamp,
    not_after: Timestamp,
    serial: String,
    names: Vec<String>,
}

/// Subject of a certificate or of a request for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Common name; empty if there is none.
    pub common_name: String,
    /// First organization; empty if there is none.
    pub organization: String,
}

impl Certificate {
    /// Parses a certificate in DER. `what` names it in errors.
    ///
    /// # Errors
    /// [`TlsError::NoCertificate`].
    pub fn from_der(what: &str, der: &[u8]) -> Result<Self, TlsError> {
        reader::read(der).map_err(|problem| no_certificate(what, problem))
    }

    /// Parses all certificates of a PEM text; other sections are skipped.
    ///
    /// # Errors
    /// [`TlsError::NoCertificate`] if there is none, or one that cannot be read.
    pub fn all_from_pem(what: &str, text: &str) -> Result<Vec<Self>, TlsError> {
        // The reader's own message could contain a line of a key in the same text.
        let broken = |_| no_certificate(what, "damaged PEM: END line or part of the text missing");
        let mut found = Vec::new();
        for der in CertificateDer::pem_slice_iter(text.as_bytes()) {
            found.push(Self::from_der(what, &der.map_err(broken)?)?);
        }
        if found.is_empty() {
            return Err(no_certificate(what, "no PEM section '-----BEGIN CERTIFICATE-----'"));
        }
        Ok(found)
    }

    /// Encodes the certificate as PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        pem("CERTIFICATE", &self.der)
    }

    /// Returns the certificate's DER.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Returns the subject: common name and organization.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Returns the issuer: common name and organization. Only its signature proves it.
    pub(crate) fn issuer(&self) -> &Subject {
        &self.issuer
    }

    /// Returns the node's name if common name and organization are those of a node.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.subject.node()
    }

    /// Returns the start of the validity.
    #[must_use]
    pub fn not_before(&self) -> Timestamp {
        self.not_before
    }

    /// Returns the end of the validity.
    #[must_use]
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// Returns the first moment at which the certificate is invalid: the second of `not_after` is
    /// still valid (RFC 5280, section 4.1.2.5).
    #[must_use]
    pub fn ends(&self) -> Timestamp {
        self.not_after.checked_add(std::time::Duration::from_secs(1)).unwrap_or(Timestamp::MAX)
    }

    /// Returns the serial number in lower-case hexadecimal without leading zeros, "0" for zero.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Returns host names and IP addresses (subjectAltName).
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the SHA-256 of the DER in lower-case hexadecimal: 64 characters.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        sha256_hex(&self.der)
    }
}

/// Returns the SHA-256 in lower-case hexadecimal.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

/// Encodes a PEM section with lines of 64 characters.
pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    // 48 bytes encode to 64 characters.
    for line in der.chunks(48) {
        STANDARD.encode_string(line, &mut text);
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

fn no_certificate(what: &str, problem: impl Into<String>) -> TlsError {
    TlsError::NoCertificate { what: what.to_owned(), problem: problem.into() }
}

impl Subject {
    /// Returns the node's name: a valid node name as common name, with the organization
    /// [`super::NODES`].
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.as_node(&self.common_name)
    }

    /// Returns the node's name of a request in KubeEdge's form, or of a CloudCore's certificate:
    /// `system:node:<node>` or `<node>` as common name, with the organization [`super::NODES`]. Not
    /// for authenticating nodes.
    #[must_use]
    pub fn requested_node(&self) -> Option<&str> {
        self.as_node(self.common_name.strip_prefix(NODE_PREFIX).unwrap_or(&self.common_name))
    }

    fn as_node<'a>(&self, name: &'a str) -> Option<&'a str> {
        (self.organization == super::NODES && name::check_subdomain(name).is_ok()).then_some(name)
    }
}
