//! The certificate of this machine's services, `server.pem`, and the revocation list.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;

use super::authority::Authority;
use super::{Enrollment, RevocationList, after, days, files, now};
use edgesync_store::durable;
use edgesync_transport::tls::{Certificate, Identity};

/// Lifetime of the services' certificate.
pub(super) const LIFETIME: Duration = days(397);
/// Remaining lifetime at which the certificate is renewed.
const RENEWAL: Duration = days(130);
const FILE: &str = "server.pem";

/// Returns the configured names and the local ones, without duplicates.
pub(super) fn all_names(configured: &[String]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let own = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    for name in configured.iter().chain(&own).map(|name| normalize_name(name)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Normalizes an address to one spelling.
fn normalize_name(name: &str) -> String {
    name.parse::<IpAddr>().map_or_else(|_| name.to_owned(), |address| address.to_string())
}

/// Whether the services' certificate is due for renewal.
fn is_due(identity: &Identity, now: Timestamp) -> bool {
    after(now, RENEWAL) >= identity.certificate().not_after()
}

/// Returns the stored certificate if this CA signed it for these names and it is not due for
/// renewal; issues one otherwise.
pub(super) fn load_or_issue(
    authority: &Authority,
    directory: &Path,
    names: &[String],
    now: Timestamp,
) -> anyhow::Result<Identity> {
    let path = directory.join(FILE);
    let kept = files::read_secret(&path)?.and_then(|pem| {
        let what = path.display().to_string();
        let identity = Identity::from_pem(&what, std::str::from_utf8(&pem).ok()?);
        identity.inspect_err(|error| tracing::warn!("{error}: replacing it")).ok()
    });
    // The file carries the CA to record which one signed.
    let is_kept = |kept: &Identity| {
        kept.chain().get(1).is_some_and(|signer| is_current(authority, signer, kept, names, now))
    };
    match kept.filter(is_kept) {
        Some(kept) => {
            let chain = vec![kept.certificate().clone()];
            Ok(Identity::new("server certificate", chain, kept.key().clone())?)
        }
        None => issue(authority, directory, names, now),
    }
}

/// Whether this CA signed the certificate, for these names, and it is not due for renewal.
pub(super) fn is_current(
    authority: &Authority,
    signer: &Certificate,
    identity: &Identity,
    names: &[String],
    now: Timestamp,
) -> bool {
    let found: BTreeSet<String> =
        identity.certificate().names().iter().map(|name| normalize_name(name)).collect();
    signer == authority.certificate()
        && found == names.iter().cloned().collect()
        && !needs_renewal(authority, identity, now)
}

/// Whether a certificate is due for renewal and the CA lets a new one live longer.
pub(super) fn needs_renewal(authority: &Authority, identity: &Identity, now: Timestamp) -> bool {
    is_due(identity, now) && identity.certificate().not_after() < authority.certificate().not_after()
}

pub(super) fn issue(
    authority: &Authority,
    directory: &Path,
    names: &[String],
    now: Timestamp,
) -> anyhow::Result<Identity> {
    let identity = authority.server(names, now, LIFETIME)?;
    let pem = format!("{}{}", identity.to_pem(), authority.certificate().to_pem());
    durable::write(&directory.join(FILE), pem.as_bytes(), 0o600)?;
    log_issued(names, &identity);
    Ok(identity)
}

pub(super) fn log_issued(names: &[String], identity: &Identity) {
    tracing::info!(names = names.join(", "), until = %identity.certificate().not_after(), "server certificate issued");
}

/// Builds the list of the current revocations. Its number is the time in milliseconds, so that it
/// grows across restarts.
pub(super) async fn build_list(
    enrollment: &Enrollment,
    external: bool,
    number: &mut u64,
) -> anyhow::Result<RevocationList> {
    let revocations = enrollment.membership.revocations().await?;
    let now = now();
    let milliseconds = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default();
    *number = milliseconds.max(*number + 1);
    let der = match enrollment.keys() {
        Ok(keys) => Some(keys.authority.revocation_list(*number, &revocations.serials, now)?),
        Err(_) => None,
    };
    let serials = Arc::new(revocations.serials.into_iter().map(|(serial, _)| serial).collect());
    let doubtful = revocations.doubtful.into_iter().filter(|_| external);
    let nodes = revocations.nodes.into_iter().chain(doubtful).collect();
    Ok(RevocationList { der, serials, created: now, nodes })
}

pub(super) fn list_pem(der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN X509 CRL-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem + "-----END X509 CRL-----\n"
}
