//! Bodies of revisions, in Secrets of the replicas' namespace, which are never placed.
//!
//! The index is written after all parts, and deleted before them: a revision with an index is
//! complete, unless Secrets were deleted by others.
//!
//! Each pack is read once: thousands of nodes may need it at the same time.

mod cache;
mod pack;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::requests::Requests;
use super::rules::API_VERSION;
use crate::cluster::{Failure, Precondition};
use cache::Cache;
use edgesync_fleet::source::{MAX_BODIES, Result, RevisionKey, RuleKey, SourceError, Sweep};
use edgesync_object::{Object, Resource, kinds};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Loaded;
use edgesync_rollout::revision::Entry;
use edgesync_rollout::{Set, Status};
use pack::{Index, Pack, Packed, index_name, is_index, length_of, pack, rule_value};

/// Label of the Secrets with a hash of the rule.
const LABEL: &str = "edgesync.io/revision-of";
/// Annotations of the Secrets with the key of the revision.
const RULE: &str = "edgesync.io/rule";
const NUMBER: &str = "edgesync.io/revision";
const DIGEST: &str = "edgesync.io/revision-digest";
/// Type of the Secrets.
const TYPE: &str = "edgesync.io/revision";
/// Key of the data.
const DATA: &str = "revision";
/// Attempts to create an index beside another replica.
const ATTEMPTS: usize = 3;
/// Minimum age of Secrets of a rule that is not known, before they are deleted: this replica may
/// have observed the rule late, and another one may be the leader.
const UNKNOWN_RULE_GRACE: Duration = Duration::from_secs(60 * 60);

/// Reads and writes the bodies of revisions. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Revisions {
    requests: Requests,
    namespace: Arc<str>,
    secrets: Arc<Resource>,
    cache: Arc<Mutex<Cache>>,
}

/// The Secret with an index, as found.
enum Found {
    Missing,
    /// It cannot be read.
    Damaged(Box<Object>),
    Index(Arc<Index>),
}

/// Reason why the bodies of a pack are not read.
enum Unread {
    /// A Secret is missing or damaged.
    Lost,
    Failed(SourceError),
}

impl From<SourceError> for Unread {
    fn from(error: SourceError) -> Self {
        Self::Failed(error)
    }
}

/// Returns the roll-outs in the statuses of all rules as they are stored.
async fn stored_statuses(requests: &Requests) -> Result<HashMap<RuleKey, Option<Status>>> {
    let mut statuses = HashMap::new();
    for (kind, is_namespaced) in [("ClusterPlacement", false), ("Placement", true)] {
        let resource = kinds::guess(API_VERSION, kind, is_namespaced);
        for rule in requests.list(&resource, None, "").await? {
            let rollout = rule.fields().get("status").and_then(|status| status.get("rollout"));
            let rollout = rollout.filter(|rollout| !rollout.is_null());
            let status = rollout.map(|rollout| Status::read(Some(rollout)).unwrap_or_default());
            statuses.insert(RuleKey::Object(rule.uid().into()), status);
        }
    }
    Ok(statuses)
}

impl Revisions {
    pub(super) fn new(requests: &Requests, namespace: &str) -> Self {
        Self {
            requests: requests.clone(),
            namespace: namespace.into(),
            secrets: Arc::new(kinds::guess("v1", "Secret", true)),
            cache: Arc::default(),
        }
    }

    /// Stores the bodies of a revision. One that is stored stays as it is.
    ///
    /// # Errors
    /// The bodies are not those of the set, or too large
    /// ([`SourceError::RevisionTooLarge`]); or the cluster's.
    pub(super) async fn store(&self, key: RevisionKey, set: Arc<Set>, bodies: Vec<Loaded>) -> Result<()> {
        let packing = {
            let key = key.clone();
            move || {
                let bodies = key.check(&set, bodies)?;
                pack(&key, set, &bodies)
            }
        };
        let packed = tokio::task::spawn_blocking(packing).await;
        let Packed { parts, index } =
            packed.map_err(|error| key.error(format!("compress the bodies: {error}")))??;
        for (name, bytes) in parts {
            let part = self.secret(&name, &key, &bytes);
            match self.requests.create(&self.secrets, &part).await {
                // Its name has the digest of its content.
                Ok(_) | Err(Failure::Conflict(_)) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        let name = index_name(&key);
        let index = self.secret(&name, &key, &index);
        for _ in 0..ATTEMPTS {
            match self.requests.create(&self.secrets, &index).await {
                Ok(_) => return Ok(()),
                Err(Failure::Conflict(_)) => {}
                Err(failure) => return Err(failure.into()),
            }
            match self.find(&key).await? {
                Found::Index(_) => return Ok(()),
                Found::Missing => {}
                Found::Damaged(object) => self.delete(&object).await?,
            }
        }
        Err(SourceError::Contended { kind: "Secret", name })
    }

    /// Returns the set of a stored revision; `None` if one of its Secrets is missing or damaged.
    ///
    /// Looks for the Secrets by name. Only when [`Self::bodies`] has missed bodies of the revision,
    /// their content is read, until all of it is there again.
    ///
    /// # Errors
    /// The cluster's.
    pub(super) async fn set(&self, key: &RevisionKey) -> Result<Option<Arc<Set>>> {
        let Found::Index(index) = self.find(key).await? else { return Ok(None) };
        let selector = format!("{LABEL}={}", rule_value(&key.rule));
        let secrets = self.requests.list_metadata(&self.secrets, &self.namespace, &selector).await?;
        let stored: HashSet<&str> = secrets.iter().map(Object::name).collect();
        let parts = index.packs().into_iter().flat_map(|(pack, _)| pack.names(key));
        // The index may be known from an earlier read.
        let missing =
            std::iter::once(index_name(key)).chain(parts).find(|name| !stored.contains(name.as_str()));
        if let Some(secret) = &missing {
            tracing::error!(%key, secret, "bodies of a revision are lost: Secret not found");
            return Ok(None);
        }
        if self.cache().is_damaged(key) {
            let background = self.in_background();
            for (pack, entries) in index.packs() {
                if background.unpack(key, pack, &entries).await?.is_none() {
                    return Ok(None);
                }
            }
            self.cache().set_complete(key);
        }
        Ok(Some(index.set.clone()))
    }

    /// Returns bodies of a stored revision. Leaves out lost ones; the next [`Self::set`] then looks
    /// for the loss.
    ///
    /// # Errors
    /// The cluster's.
    pub(super) async fn bodies(&self, key: &RevisionKey, uids: Vec<Uid>) -> Result<Vec<Loaded>> {
        let Found::Index(index) = self.find(key).await? else { return Ok(Vec::new()) };
        let mut wanted: HashSet<Uid> = uids.into_iter().take(MAX_BODIES).collect();
        wanted.retain(|uid| index.set.version(uid).is_some());
        let mut bodies = Vec::with_capacity(wanted.len());
        for (pack, entries) in index.packs() {
            if !entries.iter().any(|(uid, _)| wanted.contains(*uid)) {
                continue;
            }
            let unpacked = self.unpack(key, pack, &entries).await?;
            let unpacked = unpacked.as_deref().unwrap_or_default().iter();
            bodies.extend(unpacked.filter(|loaded| wanted.contains(&loaded.uid)).cloned());
        }
        if bodies.len() < wanted.len() {
            self.cache().set_damaged(key);
        }
        Ok(bodies)
    }

    /// Deletes the Secrets of revisions that are garbage, also by the statuses that are stored now:
    /// another replica may lead by then, and an older copy of the cluster may have been restored.
    ///
    /// # Errors
    /// The cluster's.
    pub(super) async fn sweep(&self, sweep: &Sweep, now: Timestamp) -> Result<()> {
        self.cache().retain(|key| !sweep.is_garbage(key));
        let background = self.in_background();
        let mut secrets = background.requests.list_metadata(&self.secrets, &self.namespace, LABEL).await?;
        secrets.retain(|secret| {
            key_of(secret).is_some_and(|key| {
                sweep.is_garbage(&key) && (sweep.has(&key.rule) || is_older(secret, now, UNKNOWN_RULE_GRACE))
            })
        });
        if !secrets.is_empty() {
            let stored = stored_statuses(&background.requests).await?;
            secrets.retain(|secret| {
                key_of(secret).is_some_and(|key| match stored.get(&key.rule) {
                    Some(Some(status)) => status.is_garbage(key.number, key.digest),
                    // Its first revision may be about to begin.
                    Some(None) => !sweep.has(&key.rule),
                    None => true,
                })
            });
        }
        // The parts are not read without an index.
        secrets.sort_by_key(|secret| !is_index(secret.name()));
        for secret in &secrets {
            background.delete(secret).await?;
        }
        Ok(())
    }

    async fn find(&self, key: &RevisionKey) -> Result<Found> {
        if let Some(index) = self.cache().index(key) {
            return Ok(Found::Index(index));
        }
        let found = self.requests.get(&self.secrets, &self.namespace, &index_name(key)).await?;
        let Some(object) = found else { return Ok(Found::Missing) };
        match data_of(&object).and_then(|bytes| Index::read(&bytes, key)) {
            Ok(index) => {
                let index = Arc::new(index);
                self.cache().insert_index(key, Arc::clone(&index));
                Ok(Found::Index(index))
            }
            Err(problem) => {
                tracing::error!(%key, secret = object.name(), problem, "index of a revision is damaged");
                Ok(Found::Damaged(Box::new(object)))
            }
        }
    }

    /// Returns the bodies of a pack, which callers at the same time read once; `None` if they are
    /// lost.
    async fn unpack(
        &self,
        key: &RevisionKey,
        pack: &Pack,
        entries: &[(&Uid, &Entry)],
    ) -> Result<Option<Arc<[Loaded]>>> {
        let unpacked = self.cache().unpacked(key, pack.digest(), length_of(entries));
        let read = async || {
            let bytes = self.read(key, pack).await?;
            pack.unpack(&bytes, entries).map(Arc::from).map_err(|problem| {
                tracing::error!(%key, problem, "bodies of a revision are damaged");
                Unread::Lost
            })
        };
        match unpacked.get_or_try_init(read).await {
            Ok(bodies) => Ok(Some(Arc::clone(bodies))),
            Err(Unread::Lost) => Ok(None),
            Err(Unread::Failed(error)) => Err(error),
        }
    }

    /// Reads the bytes of a pack.
    async fn read(&self, key: &RevisionKey, pack: &Pack) -> Result<Vec<u8>, Unread> {
        let mut bytes = Vec::new();
        for name in pack.names(key) {
            let found = self.requests.get(&self.secrets, &self.namespace, &name).await;
            let found = found.map_err(SourceError::from)?;
            match found.ok_or_else(|| "Secret not found".to_owned()).and_then(|object| data_of(&object)) {
                Ok(part) => bytes.extend(part),
                Err(problem) => {
                    tracing::error!(%key, secret = name, problem, "bodies of a revision are lost");
                    return Err(Unread::Lost);
                }
            }
        }
        Ok(bytes)
    }

    async fn delete(&self, secret: &Object) -> Result<()> {
        let precondition = Precondition { uid: Some(secret.uid()), version: None };
        let key = (&*self.namespace, secret.name());
        match self.requests.delete(&self.secrets, key, precondition).await {
            // Another one has the name by now.
            Ok(_) | Err(Failure::Conflict(_)) => Ok(()),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Builds a Secret of a revision.
    fn secret(&self, name: &str, key: &RevisionKey, bytes: &[u8]) -> Object {
        let mut object = Object::default();
        object.set_metadata("name", name);
        object.set_metadata("namespace", &*self.namespace);
        object.set_metadata("labels", json!({LABEL: rule_value(&key.rule)}));
        let annotations = json!({
            RULE: key.rule.to_string(), NUMBER: key.number.to_string(), DIGEST: key.digest.to_string(),
        });
        object.set_metadata("annotations", annotations);
        let fields = [
            ("apiVersion", json!("v1")),
            ("kind", json!("Secret")),
            ("type", json!(TYPE)),
            ("immutable", json!(true)),
            ("data", json!({DATA: BASE64_STANDARD.encode(bytes)})),
        ];
        object.fields_mut().extend(fields.map(|(name, value)| (name.to_owned(), value)));
        object
    }

    /// Returns the same with background priority.
    fn in_background(&self) -> Self {
        Self { requests: self.requests.in_background(), ..self.clone() }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the key of the revision that a Secret belongs to.
fn key_of(secret: &Object) -> Option<RevisionKey> {
    let annotations = secret.annotations();
    Some(RevisionKey {
        rule: annotations.get(RULE)?.parse().ok()?,
        number: annotations.get(NUMBER)?.parse().ok()?,
        digest: annotations.get(DIGEST)?.parse().ok()?,
    })
}

/// Returns the bytes in a Secret.
fn data_of(secret: &Object) -> Result<Vec<u8>, String> {
    let data = secret.fields().get("data").and_then(|data| data.get(DATA)).and_then(Value::as_str);
    let data = data.ok_or_else(|| format!("the key '{DATA}' is missing"))?;
    BASE64_STANDARD.decode(data).map_err(|error| error.to_string())
}

/// Returns whether an object is older than this age.
fn is_older(object: &Object, now: Timestamp, age: Duration) -> bool {
    let age = SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX);
    object.creation_timestamp().parse::<Timestamp>().is_ok_and(|created| now.duration_since(created) > age)
}

#[cfg(test)]
mod tests;
