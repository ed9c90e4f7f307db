//! Failures of the client's TLS handshake, worded for operators: rustls's error and the certificate
//! concerned.

use std::io;

use jiff::Timestamp;
use rustls::{AlertDescription, CertificateError};

use super::Certificate;

/// Maximum number of a certificate's names in a message.
const NAMES: usize = 16;
/// Maximum number of characters shown of an issuer's name.
const SHOWN: usize = 64;

/// Reason for a failed handshake, worded for operators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer's certificate is not from a trusted CA.
    #[error("certificate of {host} is signed by another CA than the one this node joined: {issuer}")]
    OtherAuthority {
        /// Requested host name or address.
        host: String,
        /// Issuer of the certificate: that of a proxy that inspects TLS, if there is one.
        issuer: String,
    },
    /// The peer's certificate is for other names.
    #[error("certificate of {host} is valid for {}, not for '{host}'", names.join(", "))]
    OtherName {
        /// Requested host name or address.
        host: String,
        /// Names in the certificate.
        names: Vec<String>,
    },
    /// The peer's certificate is expired or not yet valid by this clock.
    #[error("certificate of {host} is valid from {from} until {until}, local clock shows {now}; hint: {}", if now < from || now > until { "set the clock, or renew that certificate" } else { "check both" })]
    OutsideItsTime {
        /// Requested host name or address.
        host: String,
        /// Start of the certificate's validity.
        from: Timestamp,
        /// End of the certificate's validity.
        until: Timestamp,
        /// Time of this clock.
        now: Timestamp,
    },
    /// The peer refused this side's certificate.
    #[error("certificate of this node refused by {host}: {reason}")]
    Refused {
        /// Requested host name or address.
        host: String,
        /// Meaning of the alert: "expired", "revoked", "unknown authority", …
        reason: String,
    },
    /// The peer does not speak TLS.
    #[error("{host} does not speak TLS on this port: {problem}")]
    NotTls {
        /// Requested host name or address.
        host: String,
        /// Description of the peer's answer.
        problem: String,
    },
    /// The peer answered the handshake with an HTTP response.
    #[error(
        "{host} answers with HTTP where TLS is expected: a captive portal or a proxy, or the port of another service"
    )]
    Http {
        /// Requested host name or address.
        host: String,
    },
    /// The network failed, or TLS for another reason.
    #[error("TLS handshake with {host} failed: {problem}")]
    Network {
        /// Requested host name or address.
        host: String,
        /// Error of the system or of TLS.
        problem: String,
    },
}

impl HandshakeError {
    /// Converts an error of a TLS stream, if it comes from TLS: an alert of the peer.
    #[must_use]
    pub fn of_io(host: &str, error: &io::Error) -> Option<Self> {
        let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        Some(Self::of_tls(host, error))
    }

    /// Returns one word for metrics and status: `other-authority`, `other-name`, `time`, `refused`,
    /// `not-tls`, `network`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::OtherAuthority { .. } => "other-authority",
            Self::OtherName { .. } => "other-name",
            Self::OutsideItsTime { .. } => "time",
            Self::Refused { .. } => "refused",
            Self::NotTls { .. } | Self::Http { .. } => "not-tls",
            Self::Network { .. } => "network",
        }
    }

    /// Converts an error of the handshake. `rejected` is the peer's certificate, if it was
    /// rejected.
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
                let problem = "connection closed; hint: the port may not speak TLS".to_owned();
                Self::Network { host, problem }
            }
            (None, _) => Self::Network { host, problem: error.to_string() },
        }
    }

    fn of_rejected(host: String, why: &CertificateError, certificate: &Certificate, now: Timestamp) -> Self {
        match why {
            // A wrong signature means another authority of the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Self::OtherAuthority { host, issuer: issuer(certificate) }
            }
            // A self-signed certificate is its own authority; webpki has no other error for it.
            CertificateError::Other(other) if other.to_string() == "CaUsedAsEndEntity" => {
                Self::OtherAuthority { host, issuer: issuer(certificate) }
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
            other => Self::Network { host, problem: format!("invalid certificate: {other}") },
        }
    }

    fn of_tls(host: &str, error: &rustls::Error) -> Self {
        let host = host.to_owned();
        match error {
            rustls::Error::AlertReceived(alert) => match refusal(*alert) {
                Some(reason) => Self::Refused { host, reason: reason.to_owned() },
                None => Self::Network { host, problem: format!("alert received: {alert:?}") },
            },
            rustls::Error::InvalidMessage(_) => {
                Self::NotTls { host, problem: "invalid TLS record".to_owned() }
            }
            _ => Self::Network { host, problem: error.to_string() },
        }
    }
}

/// Returns the names of a certificate, escaped for display.
fn names(certificate: &Certificate) -> Vec<String> {
    if certificate.names().is_empty() {
        return vec!["no host name or address".to_owned()];
    }
    certificate.names().iter().take(NAMES).map(|name| name.escape_debug().to_string()).collect()
}

/// Returns the name of a certificate's issuer, escaped for display.
fn issuer(certificate: &Certificate) -> String {
    let issuer = certificate.issuer();
    let names = [&issuer.common_name, &issuer.organization]
        .map(|name| name.chars().take(SHOWN).collect::<String>().escape_debug().to_string());
    match names.each_ref().map(String::as_str) {
        ["", ""] => "issuer without a name".to_owned(),
        [common_name, ""] => format!("issuer '{common_name}'"),
        ["", organization] => format!("issuer '{organization}'"),
        [common_name, organization] => format!("issuer '{common_name}' of '{organization}'"),
    }
}

/// Returns the meaning of an alert about this side's certificate, if it is one.
fn refusal(alert: AlertDescription) -> Option<&'static str> {
    Some(match alert {
        AlertDescription::CertificateExpired => "expired",
        AlertDescription::CertificateRevoked => "revoked",
        AlertDescription::UnknownCA => "unknown authority",
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => "no certificate presented",
        AlertDescription::BadCertificate => "bad certificate",
        AlertDescription::UnsupportedCertificate => "not a client certificate",
        AlertDescription::CertificateUnknown => "not acceptable",
        AlertDescription::AccessDenied => "access denied",
        AlertDescription::DecryptError => "invalid signature",
        _ => return None,
    })
}
