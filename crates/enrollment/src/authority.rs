//! The CA: created at the first start, or the operator's own. Signs certificates and the revocation
//! list (RFC 5280). Its files are its only state.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertificateSigningRequestParams,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    PublicKeyData, RevokedCertParams, SanType, SerialNumber,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer as _;

use super::request::{self, RequestError};
use super::{after, before, files};
use edgesync_object::encoding::hex;
use edgesync_object::{NodeName, name};
use edgesync_store::durable::{self, with_suffix};
use edgesync_store::random;
use edgesync_transport::tls::{Certificate, Identity, Key, NODES, Subject};

/// Lifetime of a CA created here.
const CA_LIFETIME: Duration = Duration::from_secs(20 * 365 * 24 * 3600);
/// Maximum time by which validity starts before now, because clocks differ.
const BACKDATED: Duration = Duration::from_secs(3600);
/// Time until the next update that the revocation list announces.
const LIST_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Remaining lifetime of the CA at which a warning is logged.
const EXPIRY_WARNING: Duration = Duration::from_secs(365 * 24 * 3600);

/// The CA with its key.
pub(super) struct Authority {
    certificate: Certificate,
    parents: Vec<Certificate>,
    issuer: Issuer<'static, KeyPair>,
    key_id: KeyIdMethod,
}

/// A certificate request with a valid signature.
#[derive(Debug)]
pub(super) struct Request {
    key: rcgen::PublicKey,
}

impl Authority {
    /// Reads `ca.crt` and `ca.key` from a directory, or creates both (P-256, twenty years, mode
    /// 0600). `ca.crt` may also contain the CAs that sign this one.
    ///
    /// # Errors
    /// A file fails; one exists without the other; the certificate is not a CA; the key belongs to
    /// another one. The message says what to do.
    pub(super) fn open(directory: &Path, now: Timestamp) -> Result<Self> {
        let (certificate, key) = (directory.join("ca.crt"), directory.join("ca.key"));
        complete_or_discard(&certificate, &key)?;
        let found = (files::read(&certificate)?, files::read_secret(&key)?);
        let (there, missing) = match found {
            (Some(certificates), Some(secret)) => {
                let what = format!("{} with {}", certificate.display(), key.display());
                return Self::load(&what, &certificates, &secret, now);
            }
            (None, None) => {
                create(&certificate, &key, now)?;
                return Self::open(directory, now);
            }
            (Some(_), None) => (certificate, key),
            (None, Some(_)) => (key, certificate),
        };
        bail!(
            "{} exists without {}; hint: restore the missing file, or, if no node has joined yet, remove the other to create a new CA",
            there.display(),
            missing.display()
        );
    }

    /// Loads a CA and its key from PEM.
    ///
    /// # Errors
    /// As for [`Self::open`]; `what` names the origin.
    pub(super) fn load(what: &str, certificates: &[u8], key: &[u8], now: Timestamp) -> Result<Self> {
        let text = |bytes| std::str::from_utf8(bytes).with_context(|| format!("parse {what}: not PEM"));
        let pem = format!("{}\n{}", text(certificates)?, text(key)?);
        let identity = Identity::from_pem(what, &pem)?;
        let certificate = identity.certificate().clone();
        let parents = identity.chain().get(1..).unwrap_or_default().to_vec();
        let (_, parsed) = X509Certificate::from_der(certificate.der())?;
        if !parsed.is_ca() {
            bail!("{what}: the certificate of the key is not a CA (basicConstraints CA:TRUE)");
        }
        if now >= certificate.not_after() {
            let end = certificate.not_after();
            bail!("{what}: CA expired {end}; hint: replace it and let every node join again");
        }
        if after(now, EXPIRY_WARNING) >= certificate.not_after() {
            tracing::warn!("{what}: CA expires {}", certificate.not_after());
        }
        let pair = KeyPair::from_pem(&identity.key().to_pem()).map_err(|error| {
            anyhow::anyhow!(
                "{what}: key not supported ({error}), only P-256, P-384, Ed25519 and RSA in PKCS#8; hint: openssl pkcs8 \
                 -topk8 -nocrypt -in OLD -out ca.key"
            )
        })?;
        let issuer = Issuer::from_ca_cert_der(&certificate.der().into(), pair)?;
        let usages = issuer.key_usages();
        let lacks = |usage| !usages.is_empty() && !usages.contains(&usage);
        if lacks(KeyUsagePurpose::KeyCertSign) || lacks(KeyUsagePurpose::CrlSign) {
            bail!("{what}: CA must have the key usages keyCertSign and cRLSign");
        }
        let key_id = parsed.iter_extensions().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(KeyIdMethod::PreSpecified(id.0.to_vec())),
            _ => None,
        });
        let key_id = key_id.unwrap_or(KeyIdMethod::Sha256);
        let authority = Self { certificate: certificate.clone(), parents, issuer, key_id };
        authority.check_name(what, parsed.subject().as_raw(), now)?;
        Ok(authority)
    }

    /// Checks that issued certificates repeat the CA's name byte for byte, which verifiers compare.
    fn check_name(&self, what: &str, subject: &[u8], now: Timestamp) -> Result<()> {
        let trial = self.client(&Subject::default(), now, BACKDATED)?;
        let (_, parsed) = X509Certificate::from_der(trial.certificate().der())?;
        if parsed.issuer().as_raw() != subject {
            bail!("{what}: subject of the CA has an attribute twice, such as two organizational units");
        }
        Ok(())
    }

    pub(super) fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The CA's certificate and the CAs that sign it, in PEM.
    pub(super) fn chain_pem(&self) -> String {
        std::iter::once(&self.certificate).chain(&self.parents).map(Certificate::to_pem).collect()
    }

    /// Parses a request (PKCS#10, DER) and verifies its signature. Returns the subject, and the
    /// request for [`Self::sign`].
    ///
    /// # Errors
    /// See [`RequestError`].
    pub(super) fn read_request(der: &[u8]) -> Result<(Subject, Request), RequestError> {
        // Runs first: the library does not handle a subject without attributes.
        let parts = request::read(der)?;
        let request =
            CertificateSigningRequestParams::from_der(&der.into()).map_err(RequestError::Unsupported)?;
        // The library derives the key's algorithm from the signature's.
        if request.public_key.subject_public_key_info() != parts.key {
            return Err(RequestError::Key);
        }
        Ok((parts.subject, Request { key: request.public_key }))
    }

    /// Issues a client certificate for a node and the key of its request: common name `<node>`,
    /// organization [`edgesync_transport::tls::NODES`], valid from up to an hour ago because clocks
    /// differ.
    ///
    /// # Errors
    /// Signing fails.
    pub(super) fn sign(
        &self,
        request: &Request,
        node: &NodeName,
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<Certificate> {
        let subject = Subject { common_name: node.to_string(), organization: NODES.to_owned() };
        let mut params = self.client_params(&subject, now, lifetime)?;
        params.subject_alt_names = vec![SanType::DnsName(node.as_str().try_into()?)];
        self.issue(&params, &request.key)
    }

    /// Generates a key and issues a server certificate for these names.
    ///
    /// # Errors
    /// A name is invalid; signing fails.
    pub(super) fn server(&self, names: &[String], now: Timestamp, lifetime: Duration) -> Result<Identity> {
        let common_name = names.first().cloned().unwrap_or_default();
        let mut params = self.params(&Subject { common_name, ..Subject::default() }, now, lifetime)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for name in names {
            params.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => {
                    let wrong = |problem| anyhow::anyhow!("host name {problem}");
                    name::check_subdomain(name).map_err(wrong)?;
                    SanType::DnsName(name.as_str().try_into()?)
                }
            });
        }
        self.issue_with_key(&params)
    }

    /// Generates a key and issues a client certificate with this subject.
    ///
    /// # Errors
    /// Signing fails.
    pub(super) fn client(&self, subject: &Subject, now: Timestamp, lifetime: Duration) -> Result<Identity> {
        self.issue_with_key(&self.client_params(subject, now, lifetime)?)
    }

    fn client_params(
        &self,
        subject: &Subject,
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<CertificateParams> {
        let mut params = self.params(subject, now, lifetime)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Ok(params)
    }

    /// The parameters that all certificates share. None outlives the CA.
    fn params(&self, subject: &Subject, now: Timestamp, lifetime: Duration) -> Result<CertificateParams> {
        let end = self.certificate.not_after();
        if now >= end {
            bail!("CA expired {end}; hint: replace it and let every node join again");
        }
        // Renewal depends on the lifetime: most of a short one must lie ahead.
        let backdated = BACKDATED.min(lifetime / 10);
        let mut params = base_params(subject, before(now, backdated), after(now, lifetime).min(end))?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }

    fn issue(&self, params: &CertificateParams, key: &impl PublicKeyData) -> Result<Certificate> {
        let signed = params.signed_by(key, &self.issuer)?;
        Ok(Certificate::from_der("the certificate just signed", signed.der())?)
    }

    fn issue_with_key(&self, params: &CertificateParams) -> Result<Identity> {
        let key = Key::generate()?;
        let certificate = self.issue(params, &KeyPair::from_pem(&key.to_pem())?)?;
        Ok(Identity::new("the certificate just signed", vec![certificate], key)?)
    }

    /// Signs the revocation list (DER) with these serial numbers and times.
    ///
    /// Its next update is in ten years: a broker that enforces it must not refuse all nodes while
    /// the cloud side is down.
    ///
    /// # Errors
    /// Signing fails.
    pub(super) fn revocation_list(
        &self,
        number: u64,
        revoked: &[(String, Timestamp)],
        now: Timestamp,
    ) -> Result<Vec<u8>> {
        let list = |(serial, at): &(String, Timestamp)| {
            let serial_number = SerialNumber::from_slice(&serial_bytes(serial)?);
            let revocation_time = rcgen::date_time_ymd(1970, 1, 1) + since_1970(*at);
            Some(RevokedCertParams {
                serial_number,
                revocation_time,
                reason_code: None,
                invalidity_date: None,
            })
        };
        let params = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(1970, 1, 1) + since_1970(before(now, BACKDATED)),
            next_update: rcgen::date_time_ymd(1970, 1, 1) + since_1970(after(now, LIST_LIFETIME)),
            crl_number: number.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().filter_map(list).collect(),
            key_identifier_method: self.key_id.clone(),
        };
        Ok(params.signed_by(&self.issuer)?.der().to_vec())
    }
}

/// Creates a CA.
///
/// Both files are written under temporary names. The certificate gets its final name last, so that
/// [`complete_or_discard`] can recover from a power failure at any step.
fn create(certificate: &Path, key: &Path, now: Timestamp) -> Result<()> {
    let (signed, secret) = make(now)?;
    durable::write(&with_suffix(key, NEW_SUFFIX), secret.as_bytes(), 0o600)?;
    durable::write(&with_suffix(certificate, NEW_SUFFIX), signed.as_bytes(), 0o600)?;
    complete_or_discard(certificate, key)?;
    tracing::info!(certificate = %certificate.display(), "CA created");
    Ok(())
}

/// Generates a CA and its key, in PEM.
///
/// # Errors
/// Signing fails.
pub fn make(now: Timestamp) -> Result<(String, String)> {
    // A random name: certificates of one CA never appear to be of another.
    let common_name = format!("edgesync CA {}", hex(&random::bytes::<4>()?));
    let subject = Subject { common_name, ..Subject::default() };
    let mut params = base_params(&subject, before(now, BACKDATED), after(now, CA_LIFETIME))?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let secret = Key::generate()?.to_pem();
    let signed = params.self_signed(&KeyPair::from_pem(&secret)?)?;
    Ok((signed.pem(), secret))
}

/// Suffix of the files of an incomplete CA.
const NEW_SUFFIX: &str = ".new";

/// Completes an interrupted creation of a CA, or removes its leftovers.
fn complete_or_discard(certificate: &Path, key: &Path) -> Result<()> {
    let (new_certificate, new_key) = (with_suffix(certificate, NEW_SUFFIX), with_suffix(key, NEW_SUFFIX));
    if files::read(certificate)?.is_some() || files::read(&new_certificate)?.is_none() {
        durable::remove(&new_certificate)?;
        return Ok(durable::remove(&new_key)?);
    }
    if files::read(&new_key)?.is_some() {
        durable::rename(&new_key, key)?;
    }
    Ok(durable::rename(&new_certificate, certificate)?)
}

/// Parameters with subject, validity and a serial number of 128 random bits.
fn base_params(subject: &Subject, from: Timestamp, until: Timestamp) -> Result<CertificateParams> {
    let mut name = DistinguishedName::new();
    for (kind, text) in
        [(DnType::OrganizationName, &subject.organization), (DnType::CommonName, &subject.common_name)]
    {
        if !text.is_empty() {
            name.push(kind, text.as_str());
        }
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params.serial_number = Some(SerialNumber::from_slice(&random::bytes::<16>()?));
    params.not_before = rcgen::date_time_ymd(1970, 1, 1) + since_1970(from);
    params.not_after = rcgen::date_time_ymd(1970, 1, 1) + since_1970(until);
    Ok(params)
}

fn since_1970(time: Timestamp) -> Duration {
    Duration::from_secs(u64::try_from(time.as_second()).unwrap_or_default())
}

/// Parses a serial number in hexadecimal.
fn serial_bytes(serial: &str) -> Option<Vec<u8>> {
    let even = if serial.len().is_multiple_of(2) { serial.to_owned() } else { format!("0{serial}") };
    let digits = even.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests;
