//! Ingest of uploads: applies the items of nodes' outboxes to the cluster.
//!
//! # Idempotence
//! No transaction covers an effect and its sequence number. The numbers are kept in memory
//! ([`IngestProgress`]) and start at those that the node calls confirmed, so a replica that takes
//! over a node may repeat unconfirmed effects of its predecessor. That is harmless, because each
//! effect states the desired result, not a delta: the Node's report, a status, what is in effect
//! and an Event replace what exists, and unchanged objects are not written. Repeated in order, the
//! items of a lane end in the same state. Until then a reader may observe an older state again.
//!
//! # Fencing
//! A replica with a dead connection to a node may still process an upload that the node has sent
//! again, with newer ones, to another replica. It must not overwrite newer state. The order of
//! [`super::syncs`] ensures that: a replica that starts to serve a node claims its Lease first
//! ([`super::leases::Leases::claim`]). Each effect reads the object, then checks who serves the
//! node, then writes with the version that it has read. If the check precedes the claim, the read
//! precedes all writes of the successor, so the write conflicts. If the check follows the claim,
//! the batch fails. A conflict fails the batch too, whatever its cause, and the node sends it again
//! to the replica that serves it then; only [`in_effect`] retries, with another read and check. The
//! creation of an Event replaces nothing and needs no check. A batch ends with the session of its
//! node ([`super::serving::Serving::in_session`]): the node may return to this replica.
//!
//! # Authority
//! The fleet passes items about objects that are placed on the node, and no others. An object that
//! no longer exists when it is read here is answered as one that is not placed on the node.
//!
//! # Events
//! Events are written in the form of the core group, where the API server accepts those of all
//! recorders, and as many of a node as its [`EventLog`] permits: the oldest are deleted first.
//!
//! # No loss
//! A temporary failure (no answer, throttling, a conflict) fails the batch after the items before
//! it, which are not repeated here. A permanent one refuses the item with the cluster's message.

mod event_log;
mod in_effect;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::events::make_legacy;
use super::leases::{Leases, Served};
use super::nodes::{NodeError, Nodes};
use super::requests::Requests;
use crate::cluster::{Failure, Precondition};
use edgesync_cloud_store::{event_names, event_of_node, is_event_of, keep_event_metadata};
use edgesync_fleet::event_tokens;
pub(super) use edgesync_fleet::source::{
    Effect, NodeChange, Result, SourceError, UploadBatch, UploadOutcome,
};
use edgesync_object::event::event_to_core;
use edgesync_object::{NodeName, Object, ObjectKey, Resource, kinds};
use edgesync_protocol::node::NodeReport;
use edgesync_protocol::replicas::IngestProgress;
use edgesync_protocol::upload::{RefusedReason, not_placed};
use event_log::{EventLog, LoggedEvent};
pub(super) use in_effect::EffectRecords;

/// Maximum length of a refusal's message, in bytes.
const MAX_REFUSAL: usize = 256;

/// Applies uploads. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Uploads {
    requests: Requests,
    leases: Leases,
    nodes: Nodes,
    event: Arc<Resource>,
    /// Set if every object has an ObjectSync, whose labels then show what is in effect.
    effect_records: Option<EffectRecords>,
    states: Arc<Mutex<HashMap<NodeName, IngestState>>>,
    event_log: Arc<Mutex<EventLog>>,
}

/// Ingest state of a node.
#[derive(Debug, Default)]
struct IngestState {
    progress: IngestProgress,
    /// Number of Events evicted since the last outcome.
    events_dropped: u64,
}

/// Reason why an item was not applied.
#[derive(Debug)]
enum NotApplied {
    /// Permanent: the item is refused, and later items are applied.
    Refused(RefusedReason, String),
    /// Temporary: later items wait.
    Failed(SourceError),
}

impl From<Failure> for NotApplied {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Invalid(why) => Self::Refused(RefusedReason::Invalid, why),
            Failure::Forbidden(why) => Self::Refused(RefusedReason::Other, why),
            failure => Self::Failed(failure.into()),
        }
    }
}

impl From<SourceError> for NotApplied {
    fn from(error: SourceError) -> Self {
        Self::Failed(error)
    }
}

impl NotApplied {
    fn not_placed(object: &ObjectKey) -> Self {
        let (reason, message) = not_placed(object);
        Self::Refused(reason, message)
    }
}

impl From<NodeError> for NotApplied {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::Failed(error) => Self::Failed(error),
            NodeError::Refused(why) => Self::Refused(RefusedReason::Invalid, why),
            error @ NodeError::Foreign(_) => Self::Refused(RefusedReason::Other, error.to_string()),
        }
    }
}

/// The status of an object in an upload item.
struct StatusItem<'a> {
    resource: &'a Resource,
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    status: &'a Value,
}

impl Uploads {
    /// Creates the ingest of a replica. `max_events` is the limit of a node's Events in the
    /// cluster.
    pub(super) fn new(
        requests: Requests,
        leases: Leases,
        nodes: Nodes,
        effect_records: Option<EffectRecords>,
        max_events: usize,
    ) -> Self {
        let event = Arc::new(kinds::guess("v1", "Event", true));
        let event_log = EventLog::new(u32::try_from(max_events).unwrap_or(u32::MAX));
        let event_log = Arc::new(Mutex::new(event_log));
        Self { requests, leases, nodes, event, effect_records, states: Arc::default(), event_log }
    }

    /// Applies items in order. A refused item does not affect others.
    ///
    /// # Errors
    /// A temporary failure of an item. The items before it are applied and counted.
    pub(super) async fn ingest(&self, batch: UploadBatch) -> Result<UploadOutcome> {
        self.states().entry(batch.node.clone()).or_default().progress.begin(
            &batch.outbox,
            batch.lane,
            batch.confirmed,
        );
        for item in &batch.items {
            if self.is_done(&batch, item.seq) {
                continue;
            }
            let refusal = match &item.effect {
                Err(known) => Some(known.clone()),
                Ok(effect) => match self.apply(&batch.node, effect).await {
                    Ok(()) => None,
                    Err(NotApplied::Refused(reason, message)) => Some((reason, message)),
                    Err(NotApplied::Failed(error)) => return Err(error),
                },
            };
            self.record(&batch, item.seq, refusal);
        }
        let mut states = self.states();
        let IngestState { progress, events_dropped } = states.entry(batch.node).or_default();
        let (taken, refused) = progress.finish(batch.lane, batch.confirmed);
        Ok(UploadOutcome { taken, refused, events_dropped: std::mem::take(events_dropped) })
    }

    /// Forgets Events that were last written more than `ttl` ago.
    pub(super) fn expire_events(&self, ttl: Duration) {
        self.event_log().expire(ttl);
    }

    /// Drops the ingest state of a disconnected node.
    pub(super) fn forget(&self, node: &NodeName) {
        self.states().remove(node);
    }

    fn is_done(&self, batch: &UploadBatch, seq: u64) -> bool {
        let states = self.states();
        let state = states.get(&batch.node);
        state.is_some_and(|state| state.progress.is_done(&batch.outbox, batch.lane, seq))
    }

    fn record(&self, batch: &UploadBatch, seq: u64, mut refusal: Option<(RefusedReason, String)>) {
        if let Some((_, message)) = &mut refusal {
            message.truncate(message.floor_char_boundary(MAX_REFUSAL));
        }
        let mut states = self.states();
        let state = states.entry(batch.node.clone()).or_default();
        state.progress.record(&batch.outbox, (batch.lane, seq), refusal);
    }

    async fn apply(&self, node: &NodeName, effect: &Effect) -> Result<(), NotApplied> {
        match effect {
            Effect::Node(report) => {
                let report = Some(NodeReport::clone(report));
                let change = NodeChange { node: node.clone(), report, conditions: Vec::new() };
                Ok(self.nodes.report(&change).await?)
            }
            Effect::Status { resource, namespace, name, uid, status } => {
                self.apply_status(node, &StatusItem { resource, namespace, name, uid, status }).await
            }
            Effect::InEffect { effect, epoch, known } => {
                self.apply_in_effect(node, *epoch, effect, *known).await
            }
            Effect::Event(event) => self.apply_event(node, event).await,
        }
    }

    /// Replaces the status of an object, and nothing else, if the UID matches.
    async fn apply_status(&self, node: &NodeName, item: &StatusItem<'_>) -> Result<(), NotApplied> {
        let key = item.key();
        let mut object = self.find_target(item).await?;
        let status = match item.status {
            Value::Null => None,
            status @ Value::Object(_) => Some(status),
            _ => {
                return Err(NotApplied::Refused(
                    RefusedReason::Invalid,
                    format!("{key}: status: must be an object"),
                ));
            }
        };
        // Servers show an empty status for some kinds without one.
        let is_some = |status: &&Value| status.as_object().is_none_or(|fields| !fields.is_empty());
        if object.fields().get("status").filter(is_some) == status.filter(is_some) {
            return Ok(());
        }
        self.check_served(node).await?;
        match status {
            Some(status) => drop(object.fields_mut().insert("status".to_owned(), status.clone())),
            None => drop(object.fields_mut().remove("status")),
        }
        match self.requests.replace_status(item.resource, &object).await {
            Ok(_) => Ok(()),
            // Either the object was deleted, or its kind has no status subresource and the status
            // is an ordinary field.
            Err(Failure::NotFound(_)) => {
                self.find_target(item).await?;
                let replaced = self.requests.replace(item.resource, &object).await?;
                if status.is_some() && !replaced.fields().contains_key("status") {
                    let why = format!("kind {} has no status", item.resource.kind);
                    return Err(NotApplied::Refused(RefusedReason::Invalid, why));
                }
                Ok(())
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Returns the current object that a status refers to.
    async fn find_target(&self, item: &StatusItem<'_>) -> Result<Object, NotApplied> {
        let found = self.requests.get(item.resource, item.namespace, item.name).await?;
        let found = found.filter(|object| object.uid() == item.uid);
        found.ok_or_else(|| NotApplied::not_placed(&item.key()))
    }

    /// Creates an Event, or replaces the one that this node created under the name. If another
    /// writer owns the name, the node's name is appended.
    async fn apply_event(&self, node: &NodeName, event: &Object) -> Result<(), NotApplied> {
        let mut event = event_of_node(event, node);
        event_to_core(&mut event);
        let tokens = event_tokens(event.to_json().len());
        let put = self.put_event(node, event.clone(), tokens).await;
        if matches!(put, Err(NotApplied::Refused(RefusedReason::Invalid, _)))
            && make_legacy(&mut event, Some(node))
        {
            return self.put_event(node, event, tokens).await;
        }
        put
    }

    async fn put_event(&self, node: &NodeName, mut event: Object, tokens: u32) -> Result<(), NotApplied> {
        let key = self.event.key(event.namespace(), event.name());
        let names = event_names(&key.name, node);
        if !names.iter().any(|name| self.event_log().has(node, &key.namespace, name)) {
            self.make_room(node, tokens).await?;
        }
        for name in names {
            event.set_metadata("name", name.as_str());
            match self.requests.create(&self.event, &event).await {
                Ok(created) => {
                    self.event_log().written(node, &created, tokens);
                    return Ok(());
                }
                Err(Failure::Conflict(_)) => {}
                // The namespace does not exist, and nodes create none.
                Err(Failure::NotFound(_)) => {
                    let why = format!("namespace '{}' of {key} not found", key.namespace);
                    return Err(NotApplied::Refused(RefusedReason::Invalid, why));
                }
                Err(failure) => return Err(failure.into()),
            }
            let Some(old) = self.requests.get(&self.event, &key.namespace, &name).await? else {
                return Err(NotApplied::Failed(SourceError::Missing {
                    kind: "Event",
                    name: key.to_string(),
                }));
            };
            if is_event_of(&old, node) {
                self.replace_event(node, &old, event).await?;
                self.event_log().written(node, &old, tokens);
                // It may have grown.
                return self.make_room(node, 0).await;
            }
        }
        Err(NotApplied::Refused(RefusedReason::Other, format!("create {key}: all possible names are taken")))
    }

    /// Deletes the oldest Events of a node until so many tokens are free. If one cannot be deleted,
    /// no other is created.
    async fn make_room(&self, node: &NodeName, tokens: u32) -> Result<(), NotApplied> {
        while let Some(oldest) = self.oldest_event(node, tokens) {
            let key = (&*oldest.namespace, &*oldest.name);
            let same = Precondition { uid: Some(&oldest.uid), version: None };
            match self.requests.delete(&self.event, key, same).await {
                Ok(true) => self.count_dropped(node),
                // Another writer has deleted it, and may have used its name again.
                Ok(false) | Err(Failure::Conflict(_)) => {}
                Err(failure) => return Err(failure.into()),
            }
            // Not before: the session may have ended meanwhile, and this batch with it.
            self.event_log().deleted(node, &oldest);
        }
        Ok(())
    }

    fn oldest_event(&self, node: &NodeName, tokens: u32) -> Option<LoggedEvent> {
        self.event_log().oldest(node, tokens)
    }

    fn count_dropped(&self, node: &NodeName) {
        self.states().entry(node.clone()).or_default().events_dropped += 1;
    }

    async fn replace_event(
        &self,
        node: &NodeName,
        old: &Object,
        mut event: Object,
    ) -> Result<(), NotApplied> {
        keep_event_metadata(&mut event, old);
        if contains_fields(old.fields().get("metadata"), event.fields().get("metadata"))
            && event.fields().iter().all(|(name, value)| contains_fields(old.fields().get(name), Some(value)))
        {
            return Ok(());
        }
        self.check_served(node).await?;
        self.requests.replace(&self.event, &event).await?;
        Ok(())
    }

    /// Checks that this replica serves the node; see "Fencing" in the module.
    async fn check_served(&self, node: &NodeName) -> Result<(), NotApplied> {
        match self.leases.served(node).await? {
            Served::Here => Ok(()),
            Served::By(replica) => {
                Err(NotApplied::Failed(SourceError::ServedElsewhere { node: node.to_string(), replica }))
            }
        }
    }

    fn states(&self) -> MutexGuard<'_, HashMap<NodeName, IngestState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn event_log(&self) -> MutexGuard<'_, EventLog> {
        self.event_log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StatusItem<'_> {
    fn key(&self) -> ObjectKey {
        self.resource.key(self.namespace, self.name)
    }
}

/// Returns whether `value` contains all fields of `desired`; servers add defaults.
fn contains_fields(value: Option<&Value>, desired: Option<&Value>) -> bool {
    match (value, desired) {
        (Some(Value::Object(fields)), Some(Value::Object(desired))) => {
            desired.iter().all(|(name, desired)| contains_fields(fields.get(name), Some(desired)))
        }
        (value, desired) => value == desired,
    }
}

#[cfg(test)]
mod tests;
