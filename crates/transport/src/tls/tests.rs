//! Real handshakes over in-memory pipes, with certificates generated here.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SerialNumber,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;

mod hot;
mod openssl;
mod readers;
mod rules;
mod versions;

const HOST: &str = "cloud.example";
const YEAR: SignedDuration = SignedDuration::from_hours(24 * 365);

/// Converts a time for rcgen, whose time type is of an unnamed crate.
macro_rules! date {
    ($time:expr) => {
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs($time.as_second().try_into().unwrap())
    };
}

thread_local! {
    /// Each test has its own thread, and so its own clock.
    static NOW: Cell<Timestamp> = const { Cell::new(Timestamp::UNIX_EPOCH) };
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Returns the time at which all certificates are issued.
fn today() -> Timestamp {
    at("2027-06-01T00:00:00Z")
}

fn set_clock(now: Timestamp) {
    NOW.set(now);
}

fn shown() -> Timestamp {
    NOW.get()
}

fn in_1970() -> Timestamp {
    at("1970-01-01T00:02:00Z")
}

/// Returns a clock at [`today`] until [`set_clock`].
fn clock() -> Clock {
    set_clock(today());
    Clock::of(shown, [])
}

/// Returns a clock that starts in 1970.
fn clock_of_1970() -> Clock {
    Clock::of(in_1970, [])
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    trust: Trust,
}

/// Deviations of a certificate from one valid for a year from [`today`].
struct Wish<'a> {
    common_name: &'a str,
    organization: &'a str,
    names: &'a [&'a str],
    usage: ExtendedKeyUsagePurpose,
    from: Timestamp,
    until: Timestamp,
    serial: u64,
}

impl Default for Wish<'_> {
    fn default() -> Self {
        Self {
            common_name: "node-a",
            organization: NODES,
            names: &[],
            usage: ExtendedKeyUsagePurpose::ClientAuth,
            from: today() - SignedDuration::from_hours(1),
            until: today() + YEAR,
            serial: 0x1234,
        }
    }
}

impl Wish<'_> {
    fn server() -> Self {
        Self {
            common_name: HOST,
            organization: "",
            names: &[HOST, "192.0.2.1"],
            usage: ExtendedKeyUsagePurpose::ServerAuth,
            ..Self::default()
        }
    }
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = params(name, "", &[], today() - YEAR * 2, today() + YEAR * 20);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap();
        let certificate = Certificate::from_der(name, der.der()).unwrap();
        Self { issuer: Issuer::new(params, key), trust: Trust::new(vec![certificate]) }
    }

    fn identity(&self, wish: Wish<'_>) -> Identity {
        let key = Key::generate().unwrap();
        let mut params = params(wish.common_name, wish.organization, wish.names, wish.from, wish.until);
        params.extended_key_usages = vec![wish.usage];
        params.serial_number = Some(SerialNumber::from(wish.serial));
        let pair = KeyPair::try_from(&PrivatePkcs8KeyDer::from(key.der())).unwrap();
        let der = params.signed_by(&pair, &self.issuer).unwrap();
        let certificate = Certificate::from_der(wish.common_name, der.der()).unwrap();
        Identity::new(wish.common_name, vec![certificate], key).unwrap()
    }

    fn node(&self) -> Identity {
        self.identity(Wish::default())
    }

    fn server(&self) -> Identity {
        self.identity(Wish::server())
    }

    /// Returns a rule that requires certificates of nodes.
    fn demanded(&self) -> ClientRule {
        ClientRule {
            trust: self.trust.clone(),
            revoked: Arc::default(),
            required: true,
            expired_grace: Duration::ZERO,
        }
    }

    /// Returns the same rule with revoked serial numbers.
    fn revoking(&self, serials: &[&str]) -> ClientRule {
        let revoked = serials.iter().map(|serial| (*serial).to_owned()).collect();
        ClientRule { revoked: Arc::new(revoked), ..self.demanded() }
    }
}

fn params(
    name: &str,
    organization: &str,
    names: &[&str],
    from: Timestamp,
    until: Timestamp,
) -> CertificateParams {
    let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    if !organization.is_empty() {
        params.distinguished_name.push(DnType::OrganizationName, organization);
    }
    params.not_before = date!(from);
    params.not_after = date!(until);
    params
}

type Accepted = io::Result<(ServerStream<DuplexStream>, Option<Certificate>)>;
type Connected = Result<ClientStream<DuplexStream>, HandshakeError>;

/// Runs both sides of one handshake.
async fn meet_at(host: &str, client: &Client, server: &Server) -> (Connected, Accepted) {
    let (near, far) = duplex(64 << 10);
    tokio::join!(client.connect(host, near), server.accept(far))
}

async fn meet(client: &Client, server: &Server) -> (Connected, Accepted) {
    meet_at(HOST, client, server).await
}

/// Runs a handshake that must succeed, then sends a byte in each direction so that the client gets
/// its tickets. Returns the node that the server saw, and whether a session was resumed.
async fn talk(client: &Client, server: &Server) -> (Option<String>, bool) {
    let (near, far) = meet(client, server).await;
    let (mut near, (mut far, shown)) = (near.unwrap(), far.unwrap());
    far.write_all(b"?").await.unwrap();
    far.flush().await.unwrap();
    assert_eq!(near.read_u8().await.unwrap(), b'?');
    near.write_all(b"!").await.unwrap();
    near.flush().await.unwrap();
    assert_eq!(far.read_u8().await.unwrap(), b'!');
    let resumed = near.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
    (shown.and_then(|certificate| certificate.node().map(str::to_owned)), resumed)
}

/// Runs a handshake that the server must refuse. Returns the client's error, with TLS 1.3 from its
/// first read, and the server's error.
async fn refused(client: &Client, server: &Server) -> (HandshakeError, String) {
    let (near, far) = meet(client, server).await;
    let log = far.map(|(_, shown)| shown).unwrap_err().to_string();
    let error = match near {
        Err(error) => error,
        Ok(mut near) => {
            let error = near.read_u8().await.unwrap_err();
            HandshakeError::of_io(HOST, &error).unwrap_or_else(|| panic!("{error}"))
        }
    };
    (error, log)
}
