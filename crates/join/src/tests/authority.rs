//! A CA that issues any certificate that a test requests.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair,
};

use edgesync_transport::tls::{Certificate, Identity, Key, NODES};

/// Start of the CA's validity.
pub(crate) const MADE: &str = "2026-11-01T00:00:00Z";

/// A CA for tests.
pub(crate) struct Authority {
    pub(crate) ca: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

/// Parses a time in the text of a test.
pub(crate) fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn params(names: &[&str], from: Timestamp, until: Timestamp) -> CertificateParams {
    let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mut params = CertificateParams::new(names).unwrap();
    let date = |time: Timestamp| {
        let seconds = u64::try_from(time.as_second()).unwrap();
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    params.not_before = date(from);
    params.not_after = date(until);
    params
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = params(&[], time(MADE), time("2046-11-01T00:00:00Z"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let ca = Certificate::from_der("the CA", certificate.der()).unwrap();
        Self { ca, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, mut params: CertificateParams, common_name: &str, organization: &str) -> Identity {
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.distinguished_name.push(DnType::OrganizationName, organization);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let certificate = Certificate::from_der("a certificate", certificate.der()).unwrap();
        let key = Key::from_pem("a key", &key.serialize_pem()).unwrap();
        Identity::new("an identity", vec![certificate], key).unwrap()
    }

    /// Issues an identity for a server.
    pub(crate) fn server(&self, names: &[&str], from: Timestamp, until: Timestamp) -> Identity {
        let mut params = params(names, from, until);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(params, "server", "test")
    }

    /// Issues an identity for a node.
    pub(crate) fn node(&self, name: &str, from: Timestamp, until: Timestamp) -> Identity {
        let mut params = params(&[], from, until);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params, name, NODES)
    }

    /// Returns the certificate (DER) for a request (DER).
    pub(crate) fn sign(&self, request: &[u8], name: &str, from: Timestamp, until: Timestamp) -> Vec<u8> {
        let request = CertificateSigningRequestParams::from_der(&request.to_vec().into()).unwrap();
        let mut params = params(&[], from, until);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, NODES);
        params.signed_by(&request.public_key, &self.issuer).unwrap().der().to_vec()
    }
}
