//! The certificate of the services of all replicas, where one process signs and others serve nodes:
//! a Secret beside the keys, which the signer writes and replicas read by name.

use anyhow::{Context, Result, bail};
use jiff::Timestamp;

use super::authority::Authority;
use super::keys::{CERTIFICATE, KEY, SecretStore};
use super::membership::objects::secret;
use super::served_certificates::{self, LIFETIME};
use crate::object_store::ObjectStore;
use edgesync_object::Object;
use edgesync_transport::tls::{Certificate, Identity};

/// Name of the Secret, of the type for TLS.
const SECRET: &str = "edgesync-server";
/// Key of the CA's certificate, which replicas have from nowhere else.
const CA_CERTIFICATE: &str = "ca.crt";
/// Attempts of a write that conflicts with other signers.
const MAX_ATTEMPTS: u32 = 8;

/// Reads the certificate of the CA and that of the services, with its key.
///
/// # Errors
/// The cluster fails; the Secret does not exist yet or is damaged.
pub(super) async fn read(cluster: &dyn ObjectStore, namespace: &str) -> Result<(Certificate, Identity)> {
    let secrets = SecretStore::new(cluster, namespace);
    let what = secrets.describe(SECRET);
    match secrets.get(SECRET).await? {
        Some(found) => parse(&what, &found),
        None => bail!(
            "{what} not found: the signer creates it; hint: kubectl -n {namespace} rollout status deployment/edgesync-signer"
        ),
    }
}

/// Returns the certificate of the services, and issues it unless the Secret has one of this CA for
/// these names that is not due for renewal.
///
/// # Errors
/// The cluster or signing fails.
pub(super) async fn issue(
    cluster: &dyn ObjectStore,
    namespace: &str,
    authority: &Authority,
    names: &[String],
    now: Timestamp,
) -> Result<Identity> {
    let secrets = SecretStore::new(cluster, namespace);
    let what = secrets.describe(SECRET);
    for _ in 0..MAX_ATTEMPTS {
        let found = secrets.get(SECRET).await?;
        if let Some(kept) = found.as_ref().and_then(|found| kept(&what, found, authority, names, now)) {
            return Ok(kept);
        }
        let fresh = authority.server(names, now, LIFETIME)?;
        let parts = [
            (CA_CERTIFICATE, authority.certificate().to_pem()),
            (CERTIFICATE, fresh.certificate().to_pem()),
            (KEY, fresh.key().to_pem()),
        ];
        let data: Vec<(&str, &[u8])> = parts.iter().map(|(key, pem)| (*key, pem.as_bytes())).collect();
        if secrets.put_tls(SECRET, found, &data).await? {
            served_certificates::log_issued(names, &fresh);
            return Ok(fresh);
        }
    }
    bail!("write {what}: too many conflicting writes; try again")
}

/// Returns the identity in the Secret if it can be kept.
fn kept(
    what: &str,
    found: &Object,
    authority: &Authority,
    names: &[String],
    now: Timestamp,
) -> Option<Identity> {
    let parsed = parse(what, found).inspect_err(|error| tracing::warn!("{error:#}: replacing it"));
    let (ca, identity) = parsed.ok()?;
    served_certificates::is_current(authority, &ca, &identity, names, now).then_some(identity)
}

fn parse(what: &str, object: &Object) -> Result<(Certificate, Identity)> {
    let part = |key: &str| -> Result<String> {
        let bytes = secret(object, key).map_err(|why| anyhow::anyhow!("read {what}: {why}"))?;
        String::from_utf8(bytes).with_context(|| format!("parse {what}: '{key}' is not PEM"))
    };
    let ca = Certificate::all_from_pem(what, &part(CA_CERTIFICATE)?)?;
    let ca = ca.into_iter().next().with_context(|| format!("parse {what}: no certificate"))?;
    let identity = Identity::from_pem(what, &format!("{}{}", part(CERTIFICATE)?, part(KEY)?))?;
    Ok((ca, identity))
}
