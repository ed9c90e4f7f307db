//! `edgesync-cloud broker-config`: everything an external broker needs so that nodes are told apart by their
//! certificates: its configuration, access rules, CA, certificate, key, revocation list.

mod emqx;
mod mosquitto;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::{EnrollmentService, days, now};
use edgesync_object::name::check_subdomain;
use edgesync_object::status::{Result, Status};

/// How long the broker's certificate is good: it is renewed by hand.
const LIFETIME: Duration = days(825);
/// What may wait for one client, in bytes.
const QUEUED_BYTES: u32 = 64 << 20;
/// Publishes to a client that may be unacknowledged: as many as `link.inflight` may be.
const INFLIGHT: u16 = 64;
/// The longest keepalive, in seconds: as long as `link.keepalive` may be.
const KEEPALIVE_SECONDS: u16 = 1200;
/// The most connections: those of the largest fleet this is made for.
const CONNECTIONS: u32 = 20_000;

/// For which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// Eclipse Mosquitto 2.0 or newer.
    Mosquitto,
    /// EMQX 5.
    Emqx,
}

/// What the files are made from.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// For which broker.
    pub flavor: Flavor,
    /// Where the files will be, as the broker sees it: `/etc/mosquitto/edgesync`.
    pub directory: String,
    /// Host names and addresses that nodes use for the broker.
    pub names: Vec<String>,
    /// The port that it listens on.
    pub port: u16,
    /// The topics' prefix.
    pub prefix: String,
    /// The largest packet, in bytes.
    pub max_packet: u32,
}

/// The files by name: the configuration first to be looked at, with comments on how to install them all.
///
/// # Errors
/// Names that cannot be in a certificate; the library's.
pub fn files(service: &EnrollmentService, config: &BrokerConfig) -> Result<BTreeMap<String, String>> {
    check(config)?;
    let authority = &service.shared.authority;
    let identity = authority
        .server(&config.names, now(), LIFETIME)
        .map_err(|error| Status::internal(format!("{error:#}")))?;
    let ends = identity.certificate().not_after();
    let mut files = match config.flavor {
        Flavor::Mosquitto => mosquitto::files(config, ends),
        Flavor::Emqx => emqx::files(config, ends),
    };
    files.extend([
        ("ca.crt".to_owned(), authority.chain_pem()),
        ("server.crt".to_owned(), identity.certificate().to_pem()),
        ("server.key".to_owned(), identity.key().to_pem()),
        ("revoked.crl".to_owned(), service.revocation_list()),
    ]);
    Ok(files)
}

/// What goes into files in other languages must not be able to mean anything there.
fn check(config: &BrokerConfig) -> Result<()> {
    let problem = |message: String| Err(Status::bad_request(message));
    if config.names.is_empty() {
        return problem("no host name or address of the broker is known: give --name NAME as nodes know it, or set pairing.names in the \
             configuration"
                .into());
    }
    for name in &config.names {
        if name.parse::<IpAddr>().is_err()
            && let Err(problem) = check_subdomain(name)
        {
            return Err(Status::bad_request(format!("--name: the host name of the broker {problem}")));
        }
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    if !config.directory.starts_with('/') || !config.directory.chars().all(plain) {
        return problem(
            "--installed (or --output) must be an absolute path of letters, digits, '/', '.', '_' and '-' only".into(),
        );
    }
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '%' | '$' | '+' | '#');
    if config.prefix.is_empty() || !config.prefix.chars().all(plain) {
        return problem("the topics' prefix must not have any of \" \\ % $ + # in it".into());
    }
    if config.port == 0 {
        return problem("the port must be 1 to 65535".into());
    }
    Ok(())
}
