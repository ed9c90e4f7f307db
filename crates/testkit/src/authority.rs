//! A certificate authority for tests: issues certificates of nodes, operators and servers.

use std::sync::Arc;
use std::time::Duration;

use edgesync_transport::tls::{
    Certificate, Client, ClientRule, Clock, Identity, NODES, OPERATORS, Server, Subject, Trust,
};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SerialNumber, date_time_ymd,
};

/// One hour in seconds.
pub const HOUR: i64 = 3600;

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
}

/// Returns the Unix time `seconds` from now.
fn from_now(seconds: i64) -> Duration {
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap();
    Duration::from_secs(now.checked_add_signed(seconds).unwrap())
}

pub fn subject(common_name: &str, organization: &str) -> Subject {
    Subject { common_name: common_name.into(), organization: organization.into() }
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let certificate = Certificate::all_from_pem("the authority", &pem).unwrap().remove(0);
        Self { issuer: Issuer::new(params, key), certificate }
    }

    pub fn trust(&self) -> Trust {
        Trust::new(vec![self.certificate.clone()])
    }

    /// Returns the certificate as PEM.
    pub fn to_pem(&self) -> String {
        self.certificate.to_pem()
    }

    /// Issues an identity with a validity relative to now, in seconds.
    pub fn issue(&self, subject: &Subject, names: &[&str], from: i64, until: i64) -> Identity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, subject.organization.as_str());
        params.distinguished_name.push(DnType::CommonName, subject.common_name.as_str());
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = date_time_ymd(1970, 1, 1) + from_now(from);
        params.not_after = date_time_ymd(1970, 1, 1) + from_now(until);
        let mut serial = *uuid::Uuid::new_v4().as_bytes();
        serial[0] = 0x41;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity::from_pem("a test", &format!("{}{}", certificate.pem(), key.serialize_pem())).unwrap()
    }

    pub fn node(&self, name: &str) -> Identity {
        self.issue(&subject(name, NODES), &[], -HOUR, HOUR)
    }

    pub fn node_until(&self, name: &str, from: i64, until: i64) -> Identity {
        self.issue(&subject(name, NODES), &[], from, until)
    }

    pub fn operator(&self, until: i64) -> Identity {
        self.issue(&subject("admin", OPERATORS), &[], -HOUR, until)
    }

    pub fn server_identity(&self) -> Identity {
        self.issue(&subject("cloud", ""), &["127.0.0.1", "localhost"], -HOUR, HOUR)
    }

    pub fn server_for(&self, names: &[&str], from: i64, until: i64) -> Identity {
        self.issue(&subject("cloud", ""), names, from, until)
    }

    /// Returns a rule that requires valid certificates of this authority, except revoked ones.
    pub fn rule(&self, revoked: &[&Identity]) -> ClientRule {
        let serial = |identity: &&Identity| identity.certificate().serial().to_owned();
        let revoked = Arc::new(revoked.iter().map(serial).collect());
        ClientRule { trust: self.trust(), revoked, required: true, expired_grace: Duration::ZERO }
    }

    pub fn server(&self) -> Server {
        Server::new(&self.server_identity(), &self.rule(&[]), Clock::system([])).unwrap()
    }

    /// Creates a client that trusts this authority and presents an identity.
    pub fn client(&self, identity: &Identity) -> Client {
        Client::new(&self.trust(), Some(identity), Clock::system([])).unwrap()
    }

    /// Creates a client that trusts this authority and presents no certificate.
    pub fn anonymous(&self) -> Client {
        Client::new(&self.trust(), None, Clock::system([])).unwrap()
    }
}
