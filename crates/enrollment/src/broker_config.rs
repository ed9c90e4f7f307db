//! Generates the files with which an external broker identifies nodes by their certificates:
//! configuration, access rules, CA, certificate, key, revocation list. For `edgesync-cloud
//! broker-config`.

mod emqx;
mod mosquitto;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::{EnrollmentService, days, now};
use edgesync_object::name::check_subdomain;
use edgesync_object::status::{Result, Status};

/// Lifetime of the broker's certificate, which is renewed by hand.
const LIFETIME: Duration = days(825);
/// Maximum size of a client's queue, in bytes.
const QUEUED_BYTES: u32 = 64 << 20;
/// Maximum number of unacknowledged publishes to a client: the maximum of `link.inflight`.
const INFLIGHT: u16 = 64;
/// Maximum keepalive, in seconds: the maximum of `link.keepalive`.
const KEEPALIVE_SECONDS: u16 = 1200;
/// Maximum number of connections: the largest supported fleet.
const CONNECTIONS: u32 = 20_000;

/// The brokers that files can be generated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// Eclipse Mosquitto 2.0 or newer.
    Mosquitto,
    /// EMQX 5, not run in the project's tests.
    Emqx,
}

/// Input of the generated files.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// The broker to generate files for.
    pub flavor: Flavor,
    /// Installation directory on the broker's machine, such as `/etc/mosquitto/edgesync`.
    pub directory: String,
    /// Host names and addresses by which nodes reach the broker.
    pub names: Vec<String>,
    /// The port of the broker's listener.
    pub port: u16,
    /// Prefix of all topics: `link.prefix`.
    pub prefix: String,
    /// Maximum size of an MQTT packet, in bytes.
    pub max_packet: u32,
}

/// Generates the files, by name. The comments of the main configuration say how to install them.
///
/// # Errors
/// A name, the directory, the prefix or the port is invalid; this process has no keys; signing
/// fails.
pub fn files(service: &EnrollmentService, config: &BrokerConfig) -> Result<BTreeMap<String, String>> {
    check(config)?;
    let authority = &service.shared.keys()?.authority;
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
        ("revoked.crl".to_owned(), service.revocation_list()?),
    ]);
    Ok(files)
}

/// Rejects values that could change the meaning of a generated file.
fn check(config: &BrokerConfig) -> Result<()> {
    let problem = |message: String| Err(Status::bad_request(message));
    if config.names.is_empty() {
        return problem("host name of the broker unknown; hint: --name NAME with the name that nodes use, or enrollment.names in the \
             configuration"
                .into());
    }
    for name in &config.names {
        if name.parse::<IpAddr>().is_err()
            && let Err(problem) = check_subdomain(name)
        {
            return Err(Status::bad_request(format!("--name: host name of the broker {problem}")));
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
        return problem("topic prefix must not contain any of \" \\ % $ + #".into());
    }
    if config.port == 0 {
        return problem("port must be 1 to 65535".into());
    }
    Ok(())
}
