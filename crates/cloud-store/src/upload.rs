//! Ingests items of node outboxes exactly once: effect and sequence number are stored in one
//! transaction, by the rule of [`edgesync_protocol::upload::IngestCursor`].

use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::OptionalExtension;
use serde_json::{Value, json};

use super::objects::{ObjectRow, Tx, find, parse, resource_id, version_of};
use super::{CloudError, CloudStore, NodeChange, SERVER_METADATA, Shared, node_key};
use edgesync_object::name::MAX_SUBDOMAIN;
use edgesync_object::{NodeName, Object, ObjectKey, Problems, Resource, Scope};
use edgesync_protocol::change::Uid;
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::node::NodeReport;
use edgesync_protocol::upload::{
    EffectContent, IngestCursor, Lane, Lanes, Refused, RefusedReason, not_placed,
};
use edgesync_store::StoreError;
use edgesync_store::checksum::checksum64;
use edgesync_store::writer::WriterHooks;

/// Validated items of one lane of a node.
#[derive(Clone, Debug)]
pub struct UploadBatch {
    pub node: NodeName,
    /// Id of its outbox.
    pub outbox: String,
    /// The lane of all items.
    pub lane: Lane,
    /// Highest sequence number that the node knows to be confirmed.
    pub confirmed: u64,
    /// The items, in order.
    pub items: Vec<UploadEffect>,
}

/// One item of an outbox.
#[derive(Clone, Debug)]
pub struct UploadEffect {
    pub seq: u64,
    /// The effect to apply, or the reason for a refusal that is known without reading the store.
    pub effect: Result<Effect, (RefusedReason, String)>,
}

/// Effect of an item.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Merges the node's report about itself into its Node.
    Node(Box<NodeReport>),
    /// Replaces the status of an object that is placed on the node, if it still exists with this
    /// UID. Other fields stay.
    Status {
        /// The kind of the object, as placed.
        resource: Resource,
        /// Namespace, empty for cluster scope.
        namespace: String,
        name: String,
        uid: Uid,
        /// The value of the field `status`.
        status: Value,
    },
    /// Records which version of an object is in effect on the node, in place of the previous
    /// record.
    InEffect {
        effect: Box<EffectContent>,
        /// Epoch of the node's database file. A new epoch invalidates earlier reports.
        epoch: Epoch,
        /// Whether the object is placed on the node, or the node is known to hold it. If not, the
        /// store accepts the effect only of an object that it has recorded as held.
        known: bool,
    },
    /// Creates an Event (`events.k8s.io/v1`), or replaces the one that the node has created under
    /// that name. If the name belongs to an Event of another origin, the node's name is appended.
    Event(Box<Object>),
}

/// Result of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadOutcome {
    /// Sequence numbers after the batch.
    pub taken: IngestCursor,
    /// Refusals among the new items.
    pub refused: Vec<Refused>,
    /// Events of the node that were deleted to make room for its newer ones.
    pub events_dropped: u64,
}

/// Annotation that names the node which created an Event: only that node replaces it.
const EVENT_NODE_ANNOTATION: &str = "edgesync.io/node";
/// Limit of a refusal's message, in bytes.
const MAX_REFUSAL: usize = 256;
/// Metadata that a node cannot set, beside the metadata that no client sets.
const CLOUD_METADATA: [&str; 4] = ["finalizers", "generateName", "managedFields", "ownerReferences"];

impl UploadBatch {
    /// Returns the namespaces of the batch's Events. The store does not enforce namespace rules:
    /// before [`CloudStore::take`], the caller ensures that these namespaces exist and are not
    /// being deleted, and refuses Events for namespaces in which nothing can be created.
    #[must_use]
    pub fn event_namespaces(&self) -> BTreeSet<&str> {
        let events = self.items.iter().filter_map(|item| match &item.effect {
            Ok(Effect::Event(event)) => Some(event.namespace()),
            _ => None,
        });
        events.collect()
    }

    /// Returns the approximate size in the queue and in the transaction.
    fn bytes(&self) -> usize {
        let of = |item: &UploadEffect| match &item.effect {
            Ok(Effect::Event(event)) => event.to_json().len(),
            Ok(Effect::Status { status, .. }) => status.to_string().len(),
            Ok(Effect::Node(_)) => 4096,
            Ok(Effect::InEffect { .. }) => 2048,
            Err(_) => 0,
        };
        self.items.iter().map(|item| of(item) + 512).sum()
    }
}

impl CloudStore {
    /// Ingests items in order, each exactly once. Items that cannot be applied are refused without
    /// affecting others.
    ///
    /// # Errors
    /// [`CloudError::NotFound`] if the node was removed from the fleet, or the store's. Then no
    /// item has taken effect, and the sequence numbers are unchanged.
    pub async fn take(&self, batch: UploadBatch) -> Result<UploadOutcome, CloudError> {
        let shared = Arc::clone(&self.shared);
        self.write(batch.bytes(), move |tx| tx.take(&batch, &shared)).await
    }
}

/// Reason for which an item does not take effect now.
enum Failure {
    /// Permanent: the item is refused.
    Refused(RefusedReason, String),
    /// The store failed: the whole batch fails.
    Store(StoreError),
}

impl Failure {
    fn not_placed(object: &ObjectKey) -> Self {
        let (reason, message) = not_placed(object);
        Self::Refused(reason, message)
    }
}

impl From<CloudError> for Failure {
    fn from(error: CloudError) -> Self {
        let reason = match &error {
            CloudError::Store(error) => return Self::Store(error.clone()),
            CloudError::Invalid { .. } | CloudError::TooLarge { .. } => RefusedReason::Invalid,
            _ => RefusedReason::Other,
        };
        Self::Refused(reason, error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

impl Tx<'_> {
    fn take(&mut self, batch: &UploadBatch, shared: &Shared) -> Result<UploadOutcome, CloudError> {
        if self.was_removed(&batch.node)? {
            return Err(CloudError::NotFound { key: node_key(&batch.node) });
        }
        let before = self.taken(&batch.node)?;
        let mut taken = before.clone();
        taken.begin(&batch.outbox, batch.lane, batch.confirmed);
        let (mut refused, mut has_new_events) = (Vec::new(), false);
        for item in &batch.items {
            if !taken.accept(batch.lane, item.seq) {
                continue;
            }
            has_new_events |= matches!(&item.effect, Ok(Effect::Event(_)));
            let refusal = match &item.effect {
                Ok(effect) => self.attempt(&batch.node, effect, shared)?,
                Err(known) => Some(known.clone()),
            };
            if let Some((reason, mut message)) = refusal {
                message.truncate(message.floor_char_boundary(MAX_REFUSAL));
                refused.push(Refused { seq: item.seq, reason, message });
            }
        }
        if taken != before {
            self.save_taken(&batch.node, &taken)?;
        }
        let events_dropped =
            if has_new_events { self.make_room(&batch.node, shared.events_per_node)? } else { 0 };
        Ok(UploadOutcome { taken, refused, events_dropped })
    }

    /// Applies an effect in a savepoint: a refused one leaves no effects. Returns the refusal.
    fn attempt(
        &mut self,
        node: &NodeName,
        effect: &Effect,
        shared: &Shared,
    ) -> Result<Option<(RefusedReason, String)>, CloudError> {
        let mark = self.state.mark();
        self.conn.prepare_cached("SAVEPOINT effect")?.execute([])?;
        let refusal = match self.apply(node, effect, shared) {
            Ok(()) => None,
            Err(Failure::Store(error)) => return Err(error.into()),
            Err(Failure::Refused(reason, message)) => {
                self.conn.prepare_cached("ROLLBACK TO effect")?.execute([])?;
                self.state.reset(&mark);
                self.state.rolled_back(self.conn);
                Some((reason, message))
            }
        };
        self.conn.prepare_cached("RELEASE effect")?.execute([])?;
        Ok(refusal)
    }

    fn apply(&mut self, node: &NodeName, effect: &Effect, shared: &Shared) -> Result<(), Failure> {
        match effect {
            Effect::Node(report) => {
                report.check().map_err(|problems| {
                    Failure::Refused(RefusedReason::Invalid, format!("node report: {problems}"))
                })?;
                let report = Some(NodeReport::clone(report));
                let change = NodeChange { node: node.clone(), report, conditions: Vec::new() };
                Ok(self.change_node(&shared.kind("nodes")?, &change)?)
            }
            Effect::Status { resource, namespace, name, uid, status } => {
                self.apply_status(resource, resource.key(namespace, name), uid, status, shared)
            }
            Effect::InEffect { effect, epoch, known } => {
                match self.put_in_effect(node, *epoch, effect, *known)? {
                    true => Ok(()),
                    false => Err(Failure::not_placed(&effect.object.key())),
                }
            }
            Effect::Event(event) => self.apply_event(node, event, shared),
        }
    }

    /// Replaces only the status of an object. One that was deleted or replaced since the caller
    /// found it placed on the node is not placed there any more.
    fn apply_status(
        &mut self,
        resource: &Resource,
        key: ObjectKey,
        uid: &str,
        status: &Value,
        shared: &Shared,
    ) -> Result<(), Failure> {
        let kind = resource_id(self.conn, &resource.group, &resource.kind)?;
        let row = match kind {
            Some(kind) => find(self.conn, kind, &key.namespace, &key.name)?,
            None => None,
        };
        let row = row.filter(|row| *row.stored.uid == *uid);
        let Some((kind, row)) = kind.zip(row) else { return Err(Failure::not_placed(&key)) };
        if !matches!(status, Value::Null | Value::Object(_)) {
            let problems = Problems::one("status", "must be an object");
            return Err(CloudError::Invalid { key, problems }.into());
        }
        Ok(self.set_status(kind, row, key, status, shared)?)
    }

    /// Sets or removes the status of a row's object. An equal status costs no version.
    pub(super) fn set_status(
        &mut self,
        kind: i64,
        row: ObjectRow,
        key: ObjectKey,
        status: &Value,
        shared: &Shared,
    ) -> Result<(), CloudError> {
        let mut object = parse(&row.stored)?;
        match status {
            Value::Null => drop(object.fields_mut().remove("status")),
            status => drop(object.fields_mut().insert("status".to_owned(), status.clone())),
        }
        let text = object.to_json();
        // Both have sorted keys, so equal objects have equal texts.
        if text == row.stored.body {
            return Ok(());
        }
        check_size(key, &text, shared)?;
        // Uses the API version that the object is stored in, not the one that the node has seen.
        let version = version_of(&object).to_owned();
        let resource = shared.share(&self.stored_kind(kind, version)?);
        self.change(&resource, row, object)?;
        Ok(())
    }

    /// Returns the registered kind, in the given API version.
    fn stored_kind(&self, id: i64, version: String) -> rusqlite::Result<Resource> {
        self.conn
            .prepare_cached(r#"SELECT "group", kind, plural, namespaced FROM resources WHERE id = ?1"#)?
            .query_row([id], |row| {
                let scope = if row.get(3)? { Scope::Namespaced } else { Scope::Cluster };
                Ok(Resource { group: row.get(0)?, version, kind: row.get(1)?, plural: row.get(2)?, scope })
            })
    }

    /// Creates the Event, or replaces the one that this node has created.
    fn apply_event(&mut self, node: &NodeName, event: &Object, shared: &Shared) -> Result<(), Failure> {
        let resource = shared.kind("events.events.k8s.io")?;
        let mut event = event_of_node(event, node);
        let key = resource.key(event.namespace(), event.name());
        if let Err(problems) = event.validate(&resource) {
            return Err(CloudError::Invalid { key, problems }.into());
        }
        let (name, old) = self.place_of_event(&resource, node, &key)?;
        event.set_metadata("name", name);
        let Some((row, old)) = old else {
            check_size(key, &event.to_json(), shared)?;
            self.create(&resource, event)?;
            return Ok(());
        };
        keep_event_metadata(&mut event, &old);
        let text = event.to_json();
        if text != row.stored.body {
            check_size(key, &text, shared)?;
            self.change(&resource, row, event)?;
        }
        Ok(())
    }

    /// Returns the name under which a node's Event is stored, and the Event stored there. An Event
    /// that the node created under an alternative name, because its own was in use then, keeps that
    /// name.
    fn place_of_event(
        &self,
        resource: &Resource,
        node: &NodeName,
        key: &ObjectKey,
    ) -> Result<(String, Option<(ObjectRow, Object)>), Failure> {
        let names = event_names(&key.name, node);
        let mut free = None;
        let kind = resource_id(self.conn, &resource.group, &resource.kind)?;
        for name in names {
            let row = match kind {
                Some(kind) => find(self.conn, kind, &key.namespace, &name)?,
                None => None,
            };
            let Some(row) = row else {
                free = free.or(Some(name));
                continue;
            };
            let object = parse(&row.stored)?;
            if is_event_of(&object, node) {
                return Ok((name, Some((row, object))));
            }
        }
        let taken = || CloudError::AlreadyExists { key: key.clone() };
        Ok((free.ok_or_else(taken)?, None))
    }

    fn taken(&self, node: &NodeName) -> rusqlite::Result<IngestCursor> {
        let found = self
            .conn
            .prepare_cached("SELECT outbox, status, events, bulk FROM node_outboxes WHERE node = ?1")?
            .query_row([node.as_str()], |row| {
                let number = |index| row.get(index).map(i64::cast_unsigned);
                let last = Lanes { status: number(1)?, events: number(2)?, bulk: number(3)? };
                Ok(IngestCursor { outbox: row.get(0)?, last })
            })
            .optional()?;
        Ok(found.unwrap_or_default())
    }

    fn save_taken(&self, node: &NodeName, taken: &IngestCursor) -> rusqlite::Result<()> {
        let Lanes { status, events, bulk } = taken.last;
        self.conn
            .prepare_cached(
                "INSERT INTO node_outboxes (node, outbox, status, events, bulk) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (node) DO UPDATE SET outbox = excluded.outbox, status = excluded.status,
                   events = excluded.events, bulk = excluded.bulk",
            )?
            // Stored bit by bit: a number beyond the signed range must not become a smaller one.
            .execute((
                node.as_str(),
                &taken.outbox,
                status.cast_signed(),
                events.cast_signed(),
                bulk.cast_signed(),
            ))?;
        Ok(())
    }
}

fn check_size(key: ObjectKey, text: &str, shared: &Shared) -> Result<(), CloudError> {
    let (size, limit) = (text.len(), shared.max_object_bytes);
    if size > limit { Err(CloudError::TooLarge { key, size, limit }) } else { Ok(()) }
}

/// Returns a node's Event as it is stored: marked with the node, without metadata that a node
/// cannot set.
#[must_use]
pub fn event_of_node(event: &Object, node: &NodeName) -> Object {
    let mut event = event.clone();
    for field in SERVER_METADATA.iter().chain(&CLOUD_METADATA) {
        event.remove_metadata(field);
    }
    let mut annotations = event.annotations();
    annotations.insert(EVENT_NODE_ANNOTATION.to_owned(), node.to_string());
    event.set_metadata("annotations", json!(annotations));
    event
}

/// Returns whether a stored Event was created by this node.
#[must_use]
pub fn is_event_of(event: &Object, node: &NodeName) -> bool {
    event.annotations().get(EVENT_NODE_ANNOTATION).is_some_and(|made_by| *node == **made_by)
}

/// Copies the metadata that a node cannot set from the stored Event that this one replaces.
pub fn keep_event_metadata(event: &mut Object, old: &Object) {
    for field in SERVER_METADATA.iter().chain(&CLOUD_METADATA) {
        if let Some(value) = old.metadata().and_then(|metadata| metadata.get(*field)) {
            event.set_metadata(field, value.clone());
        }
    }
}

/// Returns the candidate names of a node's Event, in the order of trial: its own name; with the
/// node's name appended; with a checksum of both, if those are too long or in use.
#[must_use]
pub fn event_names(name: &str, node: &NodeName) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    let long = format!("{name}.{node}");
    if long.len() <= MAX_SUBDOMAIN {
        names.push(long);
    }
    let sum = format!("{:016x}", checksum64(&[name.as_bytes(), node.as_bytes()]));
    let room = MAX_SUBDOMAIN - sum.len() - 1;
    let start = name.get(..name.floor_char_boundary(room)).unwrap_or_default();
    let start = start.trim_end_matches(['.', '-']);
    names.push(format!("{start}.{sum}"));
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::name::check_subdomain;

    #[test]
    fn every_name_of_an_event_is_one_however_long_its_parts_are() {
        let [short, other, node] = ["n", "m", &"n".repeat(200)].map(|node| NodeName::parse(node).unwrap());
        assert_eq!(event_names("a", &short)[..2], ["a".to_owned(), "a.n".to_owned()]);
        let long = format!("{}-{}", "x".repeat(235), "y".repeat(17));
        for (name, node, count) in [("a", &short, 3), (&long, &short, 2), ("a", &node, 3), (&long, &node, 2)]
        {
            let names = event_names(name, node);
            assert_eq!(names.len(), count);
            for name in names {
                assert_eq!(check_subdomain(&name), Ok(()));
            }
        }
        assert_ne!(event_names(&long, &short)[1], event_names(&long, &other)[1]);
    }

    #[test]
    fn a_failure_of_the_store_is_no_refusal() {
        let failed = Failure::from(CloudError::Store(StoreError::internal("x")));
        assert!(matches!(failed, Failure::Store(_)));
        let taken =
            Failure::from(CloudError::AlreadyExists { key: node_key(&NodeName::parse("n").unwrap()) });
        assert!(matches!(taken, Failure::Refused(RefusedReason::Other, _)));
    }
}
