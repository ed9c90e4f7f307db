//! Incarnation of the cluster, shared by all replicas: its id and the evidence of its end, in a
//! ConfigMap.
//!
//! A cluster restored from a backup reassigns resource versions that nodes know already, to other
//! contents. It is therefore a new incarnation with a new id, and so is a different cluster
//! (another UID of the namespace `kube-system`). The ConfigMap is changed only by compare-and-swap,
//! so all replicas converge on the same id.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::requests::Requests;
use crate::cluster::{Cluster, Failure};
use edgesync_fleet::source::{Result, SourceError};
use edgesync_object::{Object, Resource, ResourceVersion, kinds};

/// The name of the ConfigMap.
const NAME: &str = "edgesync-cloud";
/// The namespace whose UID identifies the cluster.
const SYSTEM: &str = "kube-system";
/// Minimum interval between writes of the newest observed version.
const WRITE_INTERVAL: Duration = Duration::from_secs(60);
/// Attempts of a compare-and-swap.
const ATTEMPTS: usize = 8;

/// The incarnation, as known by this replica. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Incarnation {
    requests: Requests,
    namespace: Arc<str>,
    map: Arc<Resource>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    record: IncarnationRecord,
    /// The newest version observed by this replica in this incarnation.
    newest: ResourceVersion,
    /// The newest version of the ConfigMap itself.
    mark: ResourceVersion,
    /// Time of the last attempt to record the newest version.
    written: Instant,
}

/// Content of the ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IncarnationRecord {
    id: Arc<str>,
    cluster: String,
    revision: ResourceVersion,
}

impl IncarnationRecord {
    fn new(cluster: &str, revision: ResourceVersion) -> Self {
        let id = format!("{:016x}", uuid::Uuid::new_v4().as_u64_pair().0).into();
        Self { id, cluster: cluster.to_owned(), revision }
    }

    fn of(map: &Object) -> Option<Self> {
        let text = |name: &str| map.fields().get("data")?.get(name)?.as_str();
        let id = text("incarnation").filter(|id| !id.is_empty())?.into();
        let revision = ResourceVersion::new(text("revision").unwrap_or_default());
        Some(Self { id, cluster: text("cluster").unwrap_or_default().to_owned(), revision })
    }

    fn data(&self) -> Value {
        json!({"incarnation": &*self.id, "cluster": self.cluster, "revision": self.revision.as_str()})
    }
}

impl Incarnation {
    /// Reads the incarnation. Begins the first one, or a new one if the cluster is a different one
    /// or older than recorded.
    ///
    /// # Errors
    /// The API server is unavailable, or the namespace of the replicas is missing.
    pub(super) async fn open(requests: Requests, namespace: &str) -> Result<Self> {
        let map = Arc::new(kinds::guess("v1", "ConfigMap", true));
        for _ in 0..ATTEMPTS {
            let cluster = cluster_uid(&requests).await?;
            let found = requests.get(&map, namespace, NAME).await?;
            // Read after the ConfigMap: only a restored cluster can be older than its record.
            let reached = requests.reached().await?;
            let known = found.as_ref().and_then(IncarnationRecord::of);
            let record = match known {
                Some(record) if record.cluster == cluster && !reached.is_older_than(&record.revision) => {
                    Ok(record)
                }
                _ => {
                    let record = IncarnationRecord::new(&cluster, reached.clone());
                    write(&requests, &map, namespace, found, &record).await.map(|()| record)
                }
            };
            match record {
                Ok(record) => {
                    let written = Instant::now();
                    let mark = 0.into();
                    let state = Arc::new(Mutex::new(State { record, newest: reached, mark, written }));
                    return Ok(Self { requests, namespace: namespace.into(), map, state });
                }
                Err(Failure::Conflict(_)) => {}
                Err(Failure::NotFound(_)) => {
                    return Err(SourceError::Missing { kind: "namespace", name: namespace.to_owned() });
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(contended())
    }

    /// Returns the id of the current incarnation; a restored cluster gets another one.
    pub(super) fn id(&self) -> Arc<str> {
        self.state().record.id.clone()
    }

    /// Returns the newest version known to be assigned in this incarnation, by any replica. A
    /// cluster that has not reached it was restored from a backup.
    #[cfg(test)]
    pub(super) fn newest(&self) -> ResourceVersion {
        let state = self.state();
        newer(&state.newest, &state.record.revision).clone()
    }

    /// Records a version that the cluster has assigned.
    pub(super) fn observe(&self, version: &ResourceVersion) {
        let mut state = self.state();
        if state.newest.is_older_than(version) {
            state.newest = version.clone();
        }
    }

    /// Reads the ConfigMap and returns whether the incarnation has changed. Periodically records
    /// the newest observed version. Call it before relying on the incarnation, and every few
    /// seconds.
    ///
    /// # Errors
    /// The ConfigMap could not be read or written.
    pub(super) async fn refresh(&self) -> Result<bool> {
        for _ in 0..ATTEMPTS {
            let found = self.requests.get(&self.map, &self.namespace, NAME).await?;
            if let Some(map) = &found {
                self.is_rolled_back(map);
            }
            let Some(mut record) = found.as_ref().and_then(IncarnationRecord::of) else {
                let name = format!("{}/{NAME}", self.namespace);
                return Err(SourceError::Damaged { kind: "ConfigMap", name });
            };
            if self.adopt(&record) {
                return Ok(true);
            }
            let newest = {
                let mut state = self.state();
                if state.written.elapsed() < WRITE_INTERVAL {
                    return Ok(false);
                }
                state.written = Instant::now();
                state.newest.clone()
            };
            if !record.revision.is_older_than(&newest) {
                return Ok(false);
            }
            record.revision = newest;
            match write(&self.requests, &self.map, &self.namespace, found, &record).await {
                Ok(()) => return Ok(self.adopt(&record)),
                // Another replica has recorded a version, or begun an incarnation.
                Err(Failure::Conflict(_)) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(contended())
    }

    /// Returns whether the cluster's state does not belong to this incarnation: the ConfigMap names
    /// another one, is older than when last read, or is missing. This detects a restored cluster
    /// even if its versions continue above all earlier ones.
    ///
    /// # Errors
    /// The ConfigMap could not be read.
    pub(super) async fn is_replaced(&self, known: &str) -> Result<bool> {
        let found = self.requests.get(&self.map, &self.namespace, NAME).await?;
        let Some(map) = found else { return Ok(true) };
        Ok(self.is_rolled_back(&map) || IncarnationRecord::of(&map).is_none_or(|record| *record.id != *known))
    }

    /// Records the version of the ConfigMap. Returns whether it is older than one read before.
    fn is_rolled_back(&self, map: &Object) -> bool {
        let version = ResourceVersion::new(map.resource_version());
        let mut state = self.state();
        if version.is_older_than(&state.mark) {
            return true;
        }
        state.mark = version;
        false
    }

    /// Begins a new incarnation like [`Self::begin_new`], unless the current one already
    /// differs from `known`.
    ///
    /// # Errors
    /// Those of [`Self::begin_new`].
    pub(super) async fn begin_new_unless_changed(
        &self,
        known: &str,
        reached: &ResourceVersion,
    ) -> Result<Arc<str>> {
        let now = self.id();
        if *now == *known { self.begin_new(reached).await } else { Ok(now) }
    }

    /// Begins a new incarnation with this newest version, unless another replica has begun one.
    /// Returns its id.
    ///
    /// # Errors
    /// The ConfigMap could not be written. The incarnation stays the same.
    pub(super) async fn begin_new(&self, reached: &ResourceVersion) -> Result<Arc<str>> {
        let before = self.id();
        for _ in 0..ATTEMPTS {
            let cluster = cluster_uid(&self.requests).await?;
            let found = self.requests.get(&self.map, &self.namespace, NAME).await?;
            if let Some(record) = found.as_ref().and_then(IncarnationRecord::of)
                && record.id != before
                && record.cluster == cluster
            {
                self.adopt(&record);
                return Ok(record.id);
            }
            let record = IncarnationRecord::new(&cluster, reached.clone());
            match write(&self.requests, &self.map, &self.namespace, found, &record).await {
                Ok(()) => {
                    self.adopt(&record);
                    return Ok(record.id);
                }
                Err(Failure::Conflict(_) | Failure::NotFound(_)) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(contended())
    }

    /// Adopts the content of the ConfigMap. Returns whether the incarnation has changed.
    fn adopt(&self, record: &IncarnationRecord) -> bool {
        let mut state = self.state();
        let is_replaced = state.record.id != record.id;
        if is_replaced {
            // Earlier observations belong to the previous incarnation.
            (state.newest, state.mark) = (record.revision.clone(), 0.into());
            state.written = Instant::now();
        }
        state.record = record.clone();
        is_replaced
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the incarnation recorded in this namespace; `None` if no replica has ever run there.
///
/// # Errors
/// Those of the cluster.
pub(crate) async fn recorded(cluster: &Cluster, namespace: &str) -> Result<Option<Arc<str>>, Failure> {
    let map = kinds::guess("v1", "ConfigMap", true);
    let found = cluster.get(&map, namespace, NAME).await?;
    Ok(found.as_ref().and_then(IncarnationRecord::of).map(|record| record.id))
}

#[cfg(test)]
fn newer<'a>(one: &'a ResourceVersion, other: &'a ResourceVersion) -> &'a ResourceVersion {
    if one.is_older_than(other) { other } else { one }
}

fn contended() -> SourceError {
    SourceError::Contended { kind: "ConfigMap", name: NAME.to_owned() }
}

/// Returns the UID that identifies the cluster.
async fn cluster_uid(requests: &Requests) -> Result<String> {
    let found = requests.get(&kinds::guess("v1", "Namespace", false), "", SYSTEM).await?;
    let uid = found.map(|namespace| namespace.uid().to_owned());
    uid.ok_or_else(|| SourceError::Missing { kind: "namespace", name: SYSTEM.to_owned() })
}

/// Creates the ConfigMap, or replaces the one that was read (compare-and-swap).
async fn write(
    requests: &Requests,
    map: &Resource,
    namespace: &str,
    found: Option<Object>,
    record: &IncarnationRecord,
) -> Result<(), Failure> {
    let Some(mut object) = found else {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": namespace}, "data": record.data(),
        });
        let Value::Object(fields) = object else { return Ok(()) };
        return requests.create(map, &Object::from(fields)).await.map(drop);
    };
    object.fields_mut().insert("data".to_owned(), record.data());
    requests.replace(map, &object).await.map(drop)
}

#[cfg(test)]
mod tests;
