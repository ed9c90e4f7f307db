//! Why there is no TLS connection, in words for an operator: what rustls says, and the certificate it was about.

use std::io;

use jiff::Timestamp;
use rustls::{AlertDescription, CertificateError};

use super::Certificate;

/// The most names of a certificate that are told.
const NAMES: usize = 16;

/// Why there is no connection, in words for an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer's certificate is not from a CA that is believed.
    #[error("{host} has a certificate of another authority than the one this node joined")]
    OtherAuthority {
        /// The host asked for.
        host: String,
    },
    /// The peer's certificate is for other names.
    #[error("{host} has a certificate for {}, not for '{host}'", names.join(", "))]
    OtherName {
        /// The host asked for.
        host: String,
        /// The names it has.
        names: Vec<String>,
    },
    /// The peer's certificate has expired, or is not valid yet, by this clock.
    #[error("the certificate of {host} is valid from {from} until {until}, and the clock here shows {now}: {}", if now < from || now > until { "set the clock, or renew that certificate" } else { "check both" })]
    OutsideItsTime {
        /// The host asked for.
        host: String,
        /// From when it is valid.
        from: Timestamp,
        /// Until when.
        until: Timestamp,
        /// What the clock shows.
        now: Timestamp,
    },
    /// The peer did not accept the certificate shown to it.
    #[error("{host} refuses the certificate of this node: {reason}")]
    Refused {
        /// The host.
        host: String,
        /// The alert: "expired", "revoked", "unknown authority", …
        reason: String,
    },
    /// The peer does not speak TLS.
    #[error("{host} does not speak TLS there: {problem}")]
    NotTls {
        /// The host.
        host: String,
        /// What came instead.
        problem: String,
    },
    /// The network failed.
    #[error("the TLS handshake with {host} failed: {problem}")]
    Network {
        /// The host.
        host: String,
        /// What the system says.
        problem: String,
    },
}

impl HandshakeError {
    /// What an error of a TLS stream means, if it comes from TLS: an alert of the peer.
    #[must_use]
    pub fn of_io(host: &str, error: &io::Error) -> Option<Self> {
        let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        Some(Self::of_tls(host, error))
    }

    /// One word for metrics and status: `other-authority`, `other-name`, `time`, `refused`, `not-tls`, `network`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::OtherAuthority { .. } => "other-authority",
            Self::OtherName { .. } => "other-name",
            Self::OutsideItsTime { .. } => "time",
            Self::Refused { .. } => "refused",
            Self::NotTls { .. } => "not-tls",
            Self::Network { .. } => "network",
        }
    }

    /// What an error of the handshake means. `rejected` is the peer's certificate, if it was not taken.
    pub(super) fn of_handshake(
        host: &str,
        error: &io::Error,
        rejected: Option<&Certificate>,
        now: Timestamp,
    ) -> Self {
        let host = host.to_owned();
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match (inner, rejected) {
            (Some(rustls::Error::InvalidCertificate(why)), Some(certificate)) => {
                Self::of_rejected(host, why, certificate, now)
            }
            (Some(error), _) => Self::of_tls(&host, error),
            (None, _) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let problem = "the connection was closed; perhaps TLS is not spoken on that port".to_owned();
                Self::Network { host, problem }
            }
            (None, _) => Self::Network { host, problem: error.to_string() },
        }
    }

    fn of_rejected(host: String, why: &CertificateError, certificate: &Certificate, now: Timestamp) -> Self {
        match why {
            // With a wrong signature it is another authority of the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::OtherAuthority { host },
            // A self-signed one is its own authority; webpki has no other word for it.
            CertificateError::Other(other) if other.to_string() == "CaUsedAsEndEntity" => {
                Self::OtherAuthority { host }
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::OtherName { host, names: names(certificate) }
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                let (from, until) = (certificate.not_before(), certificate.not_after());
                Self::OutsideItsTime { host, from, until, now }
            }
            other => Self::Network { host, problem: format!("its certificate cannot be used: {other}") },
        }
    }

    fn of_tls(host: &str, error: &rustls::Error) -> Self {
        let host = host.to_owned();
        match error {
            rustls::Error::AlertReceived(alert) => match refusal(*alert) {
                Some(reason) => Self::Refused { host, reason: reason.to_owned() },
                None => Self::Network { host, problem: format!("it ended the connection: {alert:?}") },
            },
            rustls::Error::InvalidMessage(_) => {
                Self::NotTls { host, problem: "it answers with something else".to_owned() }
            }
            _ => Self::Network { host, problem: error.to_string() },
        }
    }
}

/// The names of a certificate, fit to be shown.
fn names(certificate: &Certificate) -> Vec<String> {
    if certificate.names().is_empty() {
        return vec!["no host name or address".to_owned()];
    }
    certificate.names().iter().take(NAMES).map(|name| name.escape_debug().to_string()).collect()
}

/// What an alert says of the certificate that this side has shown, if it is about that.
fn refusal(alert: AlertDescription) -> Option<&'static str> {
    Some(match alert {
        AlertDescription::CertificateExpired => "expired",
        AlertDescription::CertificateRevoked => "revoked",
        AlertDescription::UnknownCA => "unknown authority",
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => "none was shown",
        AlertDescription::BadCertificate => "bad certificate",
        AlertDescription::UnsupportedCertificate => "not one for clients",
        AlertDescription::CertificateUnknown => "not acceptable",
        AlertDescription::AccessDenied => "access denied",
        AlertDescription::DecryptError => "its signature is wrong",
        _ => return None,
    })
}
