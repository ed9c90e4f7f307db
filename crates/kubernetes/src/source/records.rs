//! Reads, writes and deletes edgesync's ObjectSyncs and ClusterObjectSyncs in the cluster.
//!
//! A KubeEdge in the same cluster has records with names of the same form. Ours have the label
//! [`RECORD_NODE`]; records without it are never modified.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::mark::{self, EFFECT_EPOCH, RECORD_NODE};
use super::requests::Requests;
use crate::cluster::{Failure, Precondition};
use edgesync_fleet::source::Result;
use edgesync_object::objectsync::{
    API_VERSION, CLUSTER_OBJECT_SYNC, EFFECT_STATE_LABEL, IN_EFFECT_LABEL, OBJECT_SYNC, split_sync_name,
    sync_name,
};
use edgesync_object::{NodeName, Object, ObjectRef, Resource, kinds};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Record;
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::replicas::StoredRecord;
use edgesync_store::checksum::checksum64;

/// Labels of a record that show what is in effect.
pub(super) const EFFECT_LABELS: [&str; 3] = [IN_EFFECT_LABEL, EFFECT_STATE_LABEL, EFFECT_EPOCH];

/// Reads and writes records. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Records {
    requests: Requests,
    namespaced: Arc<Resource>,
    cluster: Arc<Resource>,
    namespace: Arc<Resource>,
}

/// Compact state of a record in the cluster; there may be a million.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownRecord {
    namespace: Arc<str>,
    /// The record's own version.
    version: Box<str>,
    /// Checksums of the referenced object and of its version in the status.
    object_sum: i64,
    version_sum: i64,
    /// Checksum of the label [`EFFECT_EPOCH`], if present.
    epoch_sum: Option<i64>,
}

/// The known records of a node.
pub(super) type KnownRecords = HashMap<Uid, KnownRecord>;

/// Reason why a record was not written.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// It differs from its known state.
    Changed,
    /// Permanent, with a message.
    Refused(String),
    /// Temporary: a later attempt may succeed.
    Failed(Failure),
}

impl From<Failure> for Unwritten {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Conflict(_) => Self::Changed,
            Failure::Invalid(why) => Self::Refused(why),
            failure => Self::Failed(failure),
        }
    }
}

fn object_sum(object: &ObjectRef) -> i64 {
    checksum64(&[object.api_version.as_bytes(), object.kind.as_bytes(), object.name.as_bytes()])
}

fn text_sum(text: &str) -> i64 {
    checksum64(&[text.as_bytes()])
}

impl StoredRecord for KnownRecord {
    fn matches(&self, record: &Record) -> bool {
        self.references(record) && self.version_sum == text_sum(record.version.as_str())
    }

    fn is_outdated(&self, epoch: Option<Epoch>) -> bool {
        epoch.zip(self.epoch_sum).is_some_and(|(epoch, sum)| text_sum(&mark::epoch_value(epoch)) != sum)
    }
}

impl KnownRecord {
    fn references(&self, record: &Record) -> bool {
        *self.namespace == *record.object.namespace && self.object_sum == object_sum(&record.object)
    }

    pub(super) fn of(object: &Object) -> Self {
        let text = |field: &str, name: &str| {
            object
                .fields()
                .get(field)
                .and_then(|fields| fields.get(name))
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let spec = ["objectAPIVersion", "objectKind", "objectName"].map(|name| text("spec", name).as_bytes());
        Self {
            namespace: object.namespace().into(),
            version: object.resource_version().into(),
            object_sum: checksum64(&spec),
            version_sum: text_sum(text("status", "objectResourceVersion")),
            epoch_sum: object.labels().get(EFFECT_EPOCH).map(|epoch| text_sum(epoch)),
        }
    }
}

impl Records {
    /// Creates a writer with background priority.
    pub(super) fn new(requests: &Requests) -> Self {
        Self::of(requests, API_VERSION)
    }

    /// Like [`Self::new`], for kinds of another group.
    pub(super) fn of(requests: &Requests, api_version: &str) -> Self {
        Self {
            requests: requests.in_background(),
            namespaced: Arc::new(kinds::guess(api_version, OBJECT_SYNC, true)),
            cluster: Arc::new(kinds::guess(api_version, CLUSTER_OBJECT_SYNC, false)),
            namespace: Arc::new(kinds::guess("v1", "Namespace", false)),
        }
    }

    /// Lists all records of some nodes, with one list per kind, because the API server scans all
    /// records for each.
    ///
    /// # Errors
    /// They could not be read.
    pub(super) async fn list(&self, nodes: &[NodeName]) -> Result<HashMap<NodeName, KnownRecords>> {
        let mut found: HashMap<NodeName, KnownRecords> =
            nodes.iter().map(|node| (node.clone(), KnownRecords::new())).collect();
        for (_, object) in self.find(nodes).await? {
            let Some((node, uid)) = split_sync_name(object.name()) else { continue };
            if let Some(records) = found.get_mut(node) {
                records.insert(uid.into(), KnownRecord::of(&object));
            }
        }
        Ok(found)
    }

    /// Deletes all records of a node. Returns whether any existed.
    ///
    /// # Errors
    /// A record could not be deleted.
    pub(super) async fn remove_all(&self, node: &NodeName) -> Result<bool> {
        let mut any = false;
        for (resource, object) in self.find([node]).await? {
            if split_sync_name(object.name()).is_some_and(|(of, _)| *node == *of) {
                let key = (object.namespace(), object.name());
                let same = Precondition { uid: Some(object.uid()), version: None };
                any |= self.requests.delete(resource, key, same).await?;
            }
        }
        Ok(any)
    }

    async fn find<'n>(
        &self,
        nodes: impl IntoIterator<Item = &'n NodeName>,
    ) -> Result<Vec<(&Arc<Resource>, Object)>> {
        let values: Vec<String> = nodes.into_iter().map(|node| mark::node_value(node)).collect();
        let selector = format!("{RECORD_NODE} in ({})", values.join(","));
        let mut found = Vec::new();
        for resource in [&self.namespaced, &self.cluster] {
            match self.requests.list(resource, None, &selector).await {
                Ok(objects) => found.extend(objects.into_iter().map(|object| (resource, object))),
                // A cluster without these kinds has no records.
                Err(Failure::NotFound(_)) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(found)
    }

    /// Creates a record owned by the Node with this UID, or updates the known one. Returns its new
    /// state.
    pub(super) async fn put(
        &self,
        (node, owner): (&NodeName, &str),
        uid: &Uid,
        record: &Record,
        known: Option<&KnownRecord>,
    ) -> Result<KnownRecord, Unwritten> {
        let name = sync_name(node, uid).map_err(Unwritten::Refused)?;
        let resource = self.kind(&record.object.namespace);
        let mut object = object(resource, (node, owner), &name, record);
        let status = object.fields().get("status").cloned();
        let mut stored = match known {
            // An object never changes its namespace, so the known record is about another one.
            Some(known) if *known.namespace != *record.object.namespace => {
                self.remove(node, uid, known).await?;
                self.create(resource, &object).await?
            }
            Some(known) => {
                object.set_metadata("resourceVersion", &*known.version);
                if known.references(record) {
                    object.clone()
                } else {
                    self.keep_effect(resource, &mut object).await?;
                    self.requests.replace(resource, &object).await.map_err(gone_is_changed)?
                }
            }
            None => self.create(resource, &object).await?,
        };
        if known.is_some_and(|known| known.references(record))
            || stored.fields().get("status") != status.as_ref()
        {
            object.set_metadata("resourceVersion", stored.resource_version());
            stored = match self.requests.replace_status(resource, &object).await {
                // The kind is defined without the status subresource.
                Err(Failure::NotFound(_)) => self.requests.replace(resource, &object).await,
                replaced => replaced,
            }
            .map_err(gone_is_changed)?;
        }
        Ok(KnownRecord::of(&stored))
    }

    /// Removes the effect labels of a record.
    pub(super) async fn hide_effect(
        &self,
        node: &NodeName,
        uid: &Uid,
        known: &KnownRecord,
    ) -> Result<KnownRecord, Unwritten> {
        let name = sync_name(node, uid).map_err(Unwritten::Refused)?;
        let resource = self.kind(&known.namespace);
        let found = self.requests.get(resource, &known.namespace, &name).await?;
        // The version check excludes concurrent writes.
        let Some(mut object) = found.filter(|found| found.resource_version() == &*known.version) else {
            return Err(Unwritten::Changed);
        };
        let mut labels = object.labels();
        labels.retain(|key, _| !EFFECT_LABELS.contains(&key.as_str()));
        object.set_metadata("labels", json!(labels));
        Ok(KnownRecord::of(&self.requests.replace(resource, &object).await.map_err(gone_is_changed)?))
    }

    /// Copies the effect labels into a record that replaces the stored one.
    async fn keep_effect(&self, resource: &Resource, object: &mut Object) -> Result<(), Failure> {
        let old = self.requests.get(resource, object.namespace(), object.name()).await?;
        let mut labels = object.labels();
        let effect = |key: &str| EFFECT_LABELS.contains(&key);
        labels.extend(old.into_iter().flat_map(|old| old.labels()).filter(|(key, _)| effect(key)));
        object.set_metadata("labels", json!(labels));
        Ok(())
    }

    async fn create(&self, resource: &Resource, object: &Object) -> Result<Object, Unwritten> {
        match self.requests.create(resource, object).await {
            Err(Failure::Conflict(key)) => {
                let found = self.requests.get(resource, object.namespace(), object.name()).await?;
                match found {
                    Some(found) if found.labels().get(RECORD_NODE) != object.labels().get(RECORD_NODE) => {
                        Err(Unwritten::Refused(format!(
                            "{key} exists without label {RECORD_NODE} of the node"
                        )))
                    }
                    _ => Err(Unwritten::Changed),
                }
            }
            // Nothing can be created in a terminating namespace, and its records are deleted with
            // it.
            Err(Failure::Forbidden(why)) if why.contains("being terminated") => Err(Unwritten::Refused(why)),
            Err(Failure::NotFound(key)) if self.has_no_namespace(object).await? => {
                Err(Unwritten::Refused(format!("namespace '{}' not found", key.namespace)))
            }
            created => Ok(created?),
        }
    }

    async fn has_no_namespace(&self, object: &Object) -> Result<bool, Failure> {
        let namespace = object.namespace();
        Ok(!namespace.is_empty() && self.requests.get(&self.namespace, "", namespace).await?.is_none())
    }

    /// Deletes a record if its version matches.
    pub(super) async fn remove(
        &self,
        node: &NodeName,
        uid: &Uid,
        known: &KnownRecord,
    ) -> Result<(), Unwritten> {
        let name = sync_name(node, uid).map_err(Unwritten::Refused)?;
        let same = Precondition { uid: None, version: Some(&known.version) };
        let resource = self.kind(&known.namespace);
        self.requests.delete(resource, (&known.namespace, &name), same).await?;
        Ok(())
    }

    /// Returns the record kind for a namespace, or for cluster-scoped objects if it is empty.
    pub(super) fn kind(&self, namespace: &str) -> &Resource {
        if namespace.is_empty() { &self.cluster } else { &self.namespaced }
    }
}

fn gone_is_changed(failure: Failure) -> Unwritten {
    match failure {
        Failure::NotFound(_) => Unwritten::Changed,
        failure => failure.into(),
    }
}

fn object(resource: &Resource, (node, owner): (&NodeName, &str), name: &str, record: &Record) -> Object {
    let referenced = &record.object;
    let mut metadata = json!({
        "name": name,
        "labels": {RECORD_NODE: mark::node_value(node)},
        "ownerReferences": [mark::owner(node, owner)],
    });
    if !referenced.namespace.is_empty() {
        metadata["namespace"] = json!(referenced.namespace);
    }
    let fields = [
        ("apiVersion", json!(resource.api_version())),
        ("kind", json!(resource.kind)),
        ("metadata", metadata),
        (
            "spec",
            json!({
                "objectAPIVersion": referenced.api_version,
                "objectKind": referenced.kind,
                "objectName": referenced.name,
            }),
        ),
        ("status", json!({"objectResourceVersion": record.version.as_str()})),
    ];
    Object::from(
        fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect::<serde_json::Map<_, _>>(),
    )
}
