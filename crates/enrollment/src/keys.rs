//! The keys of a fleet in a cluster: Secrets in [a namespace of their own](super::ca_namespace).
//! The first process that signs creates them, all others read them.
//!
//! They are read by name, and never listed or watched: no right of RBAC excludes single objects of
//! a list, and nothing that places objects may have a right to these.
//!
//! The Secret with the token key records the CA that it belongs to. A CA that was replaced, or lost
//! and recreated, is detected before nodes that trust another one are refused.

use std::path::Path;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;

use super::authority::{self, Authority};
use super::membership::objects::{secret, secret_object};
use super::tokens::{self, TokenKey};
use super::{ca_namespace, files, now};
use crate::object_store::{Failure, ObjectStore};
use edgesync_object::{Object, Resource, kinds};
use edgesync_transport::tls::Certificate;

/// Name of the Secret with the CA, of the type for TLS.
pub(super) const CA: &str = "edgesync-ca";
const TLS_TYPE: &str = "kubernetes.io/tls";
pub(super) const CERTIFICATE: &str = "tls.crt";
pub(super) const KEY: &str = "tls.key";
/// Name of the Secret with the key that signs tokens.
pub(super) const TOKENS: &str = "edgesync-token-key";
const TOKENS_TYPE: &str = "edgesync.io/token-key";
const TOKEN_KEY: &str = "key";
/// Annotation of the token key's Secret: the fingerprint of the CA that it belongs to.
const CA_ANNOTATION: &str = "edgesync.io/ca";

/// The Secrets in the namespace of the keys.
pub(super) struct SecretStore<'a> {
    cluster: &'a dyn ObjectStore,
    namespace: String,
    resource: Resource,
}

/// Opens the CA and the token key of a fleet, and creates those that are missing.
///
/// `ca.crt` and `ca.key` in the directory are the operator's own CA: the Secret is created from
/// them, and an existing Secret must hold the same CA.
///
/// # Errors
/// The cluster fails; the CA is invalid, or not the one that nodes trust. The message says what to
/// do.
pub(super) async fn open(
    cluster: &dyn ObjectStore,
    namespace: &str,
    directory: &Path,
) -> Result<(Authority, TokenKey)> {
    let (path, now) = (directory.to_owned(), now());
    let own = tokio::task::spawn_blocking(move || OperatorCa::read(&path, now)).await??;
    let secrets = SecretStore::new(cluster, namespace);
    // The CA is created before the token key. In this order a key without a CA means that the CA
    // was lost, and not that another replica has created both meanwhile.
    let key = secrets.get(TOKENS).await?;
    let ca = match secrets.get(CA).await? {
        Some(ca) => ca,
        None => secrets.make_ca(own.as_ref(), key.as_ref()).await?,
    };
    let authority = secrets.authority(&ca)?;
    if let Some(own) = own {
        own.check(&secrets, &authority)?;
    }
    let key = match key {
        Some(key) => key,
        None => secrets.make_token_key(&authority).await?,
    };
    let tokens = secrets.token_key(&key, &authority)?;
    Ok((authority, tokens))
}

/// Opens the CA and the token key of a fleet without creating them.
///
/// # Errors
/// As for [`open`]; the Secrets do not exist.
pub(super) async fn read(cluster: &dyn ObjectStore, namespace: &str) -> Result<(Authority, TokenKey)> {
    let secrets = SecretStore::new(cluster, namespace);
    let (Some(key), Some(ca)) = (secrets.get(TOKENS).await?, secrets.get(CA).await?) else {
        bail!(
            "no CA of edgesync in namespace '{}' of {cluster:?}: wrong namespace or cluster, or no replica of edgesync-cloud \
             has started yet",
            secrets.namespace
        );
    };
    let authority = secrets.authority(&ca)?;
    let tokens = secrets.token_key(&key, &authority)?;
    Ok((authority, tokens))
}

impl<'a> SecretStore<'a> {
    /// The Secrets of the fleet whose members are in this namespace.
    pub(super) fn new(cluster: &'a dyn ObjectStore, namespace: &str) -> Self {
        Self { cluster, namespace: ca_namespace(namespace), resource: kinds::guess("v1", "Secret", true) }
    }

    pub(super) async fn get(&self, name: &str) -> Result<Option<Object>> {
        let got = self.cluster.get(&self.resource, &self.namespace, name).await;
        got.with_context(|| format!("read {}", self.describe(name)))
    }

    /// Creates a Secret. If another replica was faster, returns that one's.
    async fn make(&self, name: &str, secret: &Object) -> Result<Object> {
        match self.create(name, secret).await? {
            Some(made) => Ok(made),
            None => match self.get(name).await? {
                Some(made) => Ok(made),
                None => bail!("{} was deleted right after its creation", self.describe(name)),
            },
        }
    }

    /// Creates a Secret; `None` if it exists.
    async fn create(&self, name: &str, secret: &Object) -> Result<Option<Object>> {
        let created = match self.cluster.create(&self.resource, secret).await {
            Err(Failure::Conflict(_)) => return Ok(None),
            Err(Failure::NotFound(_)) => Err(anyhow::anyhow!(
                "namespace '{namespace}' not found; hint: kubectl create namespace {namespace}",
                namespace = self.namespace
            )),
            created => created.map_err(anyhow::Error::from),
        };
        let created = created.with_context(|| format!("create {}", self.describe(name)))?;
        tracing::info!(name, "Secret created");
        Ok(Some(created))
    }

    /// Creates a Secret of the type for TLS, or replaces the one that was read. Returns whether no
    /// other process was faster.
    pub(super) async fn put_tls(
        &self,
        name: &str,
        replaces: Option<Object>,
        data: &[(&str, &[u8])],
    ) -> Result<bool> {
        let fresh = secret_object((&self.namespace, name), TLS_TYPE, data);
        let Some(mut object) = replaces else { return Ok(self.create(name, &fresh).await?.is_some()) };
        if let Some(data) = fresh.fields().get("data") {
            object.fields_mut().insert("data".to_owned(), data.clone());
        }
        match self.cluster.replace(&self.resource, &object).await {
            // A deleted Secret has changed, too.
            Err(Failure::Conflict(_) | Failure::NotFound(_)) => Ok(false),
            replaced => {
                replaced.with_context(|| format!("replace {}", self.describe(name)))?;
                Ok(true)
            }
        }
    }

    async fn make_ca(&self, own: Option<&OperatorCa>, key: Option<&Object>) -> Result<Object> {
        let trusted = key.and_then(|key| key.annotations().remove(CA_ANNOTATION));
        let (certificate, secret) = match (own, trusted) {
            (Some(OperatorCa { key: Some(secret), fingerprint, certificate }), trusted)
                if trusted.as_ref().is_none_or(|trusted| trusted == fingerprint) =>
            {
                (certificate.clone(), secret.clone())
            }
            (_, Some(trusted)) => bail!(
                "{} not found, but nodes trust the CA with the fingerprint {trusted}; hint: restore it from a backup: kubectl \
                 -n {namespace} create secret tls {CA} --cert=ca.crt --key=ca.key; or, if no node has joined yet, create a \
                 new CA: kubectl -n {namespace} delete secret {TOKENS}",
                self.describe(CA),
                namespace = self.namespace,
            ),
            (Some(own), None) if own.key.is_none() => bail!(
                "{} not found, and enrollment.directory has ca.crt without ca.key; hint: add ca.key, or remove ca.crt to create \
                 a new CA",
                self.describe(CA)
            ),
            _ => {
                let (certificate, secret) = authority::make(now())?;
                (certificate.into_bytes(), secret.into_bytes())
            }
        };
        let data = [(CERTIFICATE, &*certificate), (KEY, &*secret)];
        self.make(CA, &secret_object((&self.namespace, CA), TLS_TYPE, &data)).await
    }

    async fn make_token_key(&self, authority: &Authority) -> Result<Object> {
        let data = tokens::new_secret()?;
        let mut key = secret_object((&self.namespace, TOKENS), TOKENS_TYPE, &[(TOKEN_KEY, &data)]);
        let annotations = serde_json::json!({ CA_ANNOTATION: authority.certificate().fingerprint() });
        key.set_metadata("annotations", annotations);
        self.make(TOKENS, &key).await
    }

    fn authority(&self, ca: &Object) -> Result<Authority> {
        let what = self.describe(CA);
        let part = |key| secret(ca, key).map_err(|why| anyhow::anyhow!("{what}: {why}"));
        Authority::load(&what, &part(CERTIFICATE)?, &part(KEY)?, now())
    }

    fn token_key(&self, key: &Object, authority: &Authority) -> Result<TokenKey> {
        let what = self.describe(TOKENS);
        let is = authority.certificate().fingerprint();
        let of = key.annotations().remove(CA_ANNOTATION);
        if let Some(of) = of.filter(|of| *of != is) {
            bail!(
                "{} has the CA with the fingerprint {is}, but nodes and tokens of this fleet belong to the CA {of}; hint: \
                 restore that CA; or, to switch to this one, kubectl -n {namespace} delete secret {TOKENS}: each node then \
                 joins again with a new token",
                self.describe(CA),
                namespace = self.namespace,
            );
        }
        let secret = secret(key, TOKEN_KEY).map_err(|why| anyhow::anyhow!("{what}: {why}"))?;
        TokenKey::load(&what, &secret)
    }

    pub(super) fn describe(&self, name: &str) -> String {
        format!("Secret {}/{name}", self.namespace)
    }
}

/// The operator's own CA, from files. Without a key it only identifies the expected CA.
struct OperatorCa {
    certificate: Vec<u8>,
    key: Option<Vec<u8>>,
    fingerprint: String,
}

impl OperatorCa {
    fn read(directory: &Path, now: Timestamp) -> Result<Option<Self>> {
        files::open_directory(directory)?;
        let (certificate, key) = (directory.join("ca.crt"), directory.join("ca.key"));
        let what = format!("{} with {}", certificate.display(), key.display());
        let (Some(pem), key) = (files::read(&certificate)?, files::read_secret(&key)?) else {
            return Ok(None);
        };
        let fingerprint = match &key {
            Some(key) => Authority::load(&what, &pem, key, now)?.certificate().fingerprint(),
            None => first(&what, &pem)?,
        };
        Ok(Some(Self { certificate: pem, key, fingerprint }))
    }

    fn check(&self, secrets: &SecretStore<'_>, authority: &Authority) -> Result<()> {
        let is = authority.certificate().fingerprint();
        if self.fingerprint != is {
            bail!(
                "conflicting CAs: {} has the fingerprint {is}, ca.crt in enrollment.directory has {}; hint: to keep the CA of the \
                 Secret, which joined nodes trust, remove ca.crt and ca.key from the directory; to switch to the CA of the \
                 files, kubectl -n {namespace} delete secret {CA} {TOKENS}: each node then joins again with a new token",
                secrets.describe(CA),
                self.fingerprint,
                namespace = secrets.namespace,
            );
        }
        Ok(())
    }
}

/// Returns the fingerprint of the first certificate.
fn first(what: &str, pem: &[u8]) -> Result<String> {
    let pem = std::str::from_utf8(pem).with_context(|| format!("parse {what}: not PEM"))?;
    let certificates = Certificate::all_from_pem(what, pem)?;
    let first = certificates.first().with_context(|| format!("parse {what}: no certificate"))?;
    Ok(first.fingerprint())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_store::{Follow, Pending, Precondition};
    use std::collections::BTreeMap;
    use std::mem::take;
    use std::sync::Mutex;

    /// Secrets by name, and those that another replica creates right after the next read.
    #[derive(Debug, Default)]
    struct Secrets {
        held: Mutex<BTreeMap<String, Object>>,
        appearing: Mutex<BTreeMap<String, Object>>,
    }

    impl ObjectStore for Secrets {
        fn get<'a>(
            &'a self,
            _: &'a Resource,
            _: &'a str,
            name: &'a str,
        ) -> Pending<'a, Result<Option<Object>, Failure>> {
            let mut held = self.held.lock().unwrap();
            let found = held.get(name).cloned();
            held.extend(take(&mut *self.appearing.lock().unwrap()));
            Box::pin(async { Ok(found) })
        }

        fn create<'a>(
            &'a self,
            resource: &'a Resource,
            object: &'a Object,
        ) -> Pending<'a, Result<Object, Failure>> {
            let mut held = self.held.lock().unwrap();
            let created = match held.contains_key(object.name()) {
                true => Err(Failure::Conflict(resource.key("edgesync-ca", object.name()))),
                false => Ok(object.clone()),
            };
            assert_eq!(object.namespace(), "edgesync-ca");
            held.entry(object.name().to_owned()).or_insert_with(|| object.clone());
            Box::pin(async { created })
        }

        fn list<'a>(
            &'a self,
            _: &'a Resource,
            _: Option<&'a str>,
            _: &'a str,
        ) -> Pending<'a, Result<Vec<Object>, Failure>> {
            unreachable!("keys are read by name")
        }

        fn replace<'a>(&'a self, _: &'a Resource, _: &'a Object) -> Pending<'a, Result<Object, Failure>> {
            unreachable!("keys do not change")
        }

        fn merge<'a>(
            &'a self,
            _: &'a Resource,
            _: (&'a str, &'a str),
            _: Precondition<'a>,
            _: serde_json::Value,
        ) -> Pending<'a, Result<Object, Failure>> {
            unreachable!("keys do not change")
        }

        fn delete<'a>(
            &'a self,
            _: &'a Resource,
            _: (&'a str, &'a str),
            _: Precondition<'a>,
        ) -> Pending<'a, Result<bool, Failure>> {
            unreachable!("keys stay")
        }

        fn follow(&self, _: &Resource, _: &str, _: &str) -> Box<dyn Follow> {
            unreachable!("keys are not watched")
        }
    }

    #[tokio::test]
    async fn keys_that_appear_between_two_reads_are_those_of_the_fleet() {
        let directory = tempfile::tempdir().unwrap();
        let first = Secrets::default();
        let (created, _) = open(&first, "edgesync", directory.path()).await.unwrap();
        let late = Secrets { appearing: first.held, ..Secrets::default() };
        let (found, _) = open(&late, "edgesync", directory.path()).await.unwrap();
        assert_eq!(found.certificate().fingerprint(), created.certificate().fingerprint());
    }
}
