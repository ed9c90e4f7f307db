//! The CA: made at the first start, or the operator's own. Signs certificates and the revocation list (RFC 5280). No
//! state but its files.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;

use crate::tls::{Certificate, Identity, Subject};

/// The CA with its key.
pub(super) struct Authority {}

impl Authority {
    /// Reads `ca.crt` and `ca.key` of a directory, or makes both (P-256, twenty years, mode 0600). One without the
    /// other is an error that says what to do.
    ///
    /// # Errors
    /// Files; a certificate that is no CA; a key that is not its own.
    pub(super) fn open(directory: &Path) -> anyhow::Result<Self> {
        todo!()
    }

    /// Its certificate.
    pub(super) fn certificate(&self) -> &Certificate {
        todo!()
    }

    /// Reads a request (PKCS#10, DER), whose signature proves the key. Gives the subject and what [`Self::sign`] wants.
    ///
    /// # Errors
    /// What is wrong with it, in words for whoever sent it.
    pub(super) fn read_request(der: &[u8]) -> Result<(Subject, Request), String> {
        todo!()
    }

    /// A certificate for a node and the key of its request: common name `<node>`, organization
    /// [`crate::tls::NODES`], for clients only, valid from an hour ago (clocks differ).
    ///
    /// # Errors
    /// The library's.
    pub(super) fn sign(
        &self,
        request: &Request,
        node: &str,
        now: Timestamp,
        lifetime: Duration,
    ) -> anyhow::Result<Certificate> {
        todo!()
    }

    /// A new key with a certificate for servers under these names.
    ///
    /// # Errors
    /// A name that cannot be in a certificate; the library's.
    pub(super) fn server(
        &self,
        names: &[String],
        now: Timestamp,
        lifetime: Duration,
    ) -> anyhow::Result<Identity> {
        todo!()
    }

    /// A new key with a certificate for a client with this subject.
    ///
    /// # Errors
    /// The library's.
    pub(super) fn client(
        &self,
        subject: &Subject,
        now: Timestamp,
        lifetime: Duration,
    ) -> anyhow::Result<Identity> {
        todo!()
    }

    /// The revocation list (DER) with these serial numbers and times. It says that the next one comes in ten years: a
    /// broker that checks that must not shut everybody out when the cloud side is away.
    ///
    /// # Errors
    /// The library's.
    pub(super) fn revocation_list(
        &self,
        number: u64,
        revoked: &[(String, Timestamp)],
        now: Timestamp,
    ) -> anyhow::Result<Vec<u8>> {
        todo!()
    }
}

/// A request whose signature was right.
pub(super) struct Request {}
