//! Ingests uploads of nodes: applies items of their outboxes, writes Leases and conditions in
//! batches, and expires Events.
//!
//! At most one write of each kind is in flight. Uploads are ingested concurrently, so that they
//! share commits. The queue of uploads is bounded, for thousands of nodes that reconnect at once: a
//! node resends an upload that does not fit.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::Fleet;
use super::nodes::NodeId;
use super::requests::Inbox;
use crate::source::{Effect, LeaseRenewal, Replication as _, Result, Source, UploadOutcome};
use crate::uploads::{self, Place};
use edgesync_object::NodeName;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::RecordBatch;
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::node::Condition;
use edgesync_protocol::timing::Now;
use edgesync_protocol::upload::{EffectContent, Refused, Taken, Upload};

/// Maximum number of uploads ingested concurrently.
const MAX_TAKES: usize = 32;
/// Maximum bytes of uploads that are queued or being ingested.
const MAX_TAKE_BYTES: usize = 64 << 20;
/// Approximate overhead of an item beside its text, in bytes.
const ITEM_BYTES: usize = 64;
/// Maximum number of log lines for the items of one frame.
const LINES: usize = 3;
/// Interval between two passes for expired Events.
const EXPIRE_EVERY: Duration = Duration::from_secs(30);
/// Maximum number of Events deleted in one transaction.
const EXPIRE_BATCH: usize = 500;
/// Maximum wait at shutdown for a write of Leases in flight.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Queue of uploads, and the number being ingested.
#[derive(Debug, Default)]
pub(super) struct Intake {
    waiting: VecDeque<Waiting>,
    running: usize,
    bytes: usize,
    /// Bytes of the upload being ingested, by node.
    under_way: HashMap<NodeName, usize>,
}

#[derive(Debug)]
struct Waiting {
    node: NodeName,
    token: u64,
    upload: Upload,
    places: HashMap<Uid, Place>,
    /// Epoch of the node's database file.
    epoch: Epoch,
    bytes: usize,
}

/// Outcome of an ingested upload.
#[derive(Debug)]
pub(super) struct Stored {
    taken: Taken,
    refused: Vec<Refused>,
    events_dropped: u64,
    /// Conditions of the node's report, if the upload had one that was accepted.
    report: Option<Vec<Condition>>,
    /// Effects in files, by the sequence number of their item; `None` for refused items.
    in_effect: Vec<(u64, Epoch, Option<EffectContent>)>,
}

/// Deletes Events after their time to live, in batches.
#[derive(Debug)]
pub(super) struct EventExpiry {
    pub(super) ttl: Duration,
    next: Now,
    under_way: bool,
}

impl EventExpiry {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { ttl, next: Now::ZERO, under_way: false }
    }

    /// Begins the next batch if it is due. [`EventExpiry::ended`] follows.
    fn begin(&mut self, now: Now) -> bool {
        let is_due = !self.under_way && now >= self.next;
        self.under_way |= is_due;
        is_due
    }

    /// Schedules the next batch after one has succeeded or failed.
    fn ended(&mut self, now: Now, expired: &Result<u64>) {
        self.under_way = false;
        let full = matches!(expired, Ok(count) if *count >= EXPIRE_BATCH as u64);
        // A full batch leaves more behind: the next one is due at once, after the requests already
        // queued at the database.
        self.next = if full { now } else { now + EXPIRE_EVERY };
    }
}

impl Intake {
    fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes <= MAX_TAKE_BYTES
    }

    fn wait(&mut self, waiting: Waiting) {
        self.bytes += waiting.bytes;
        self.waiting.push_back(waiting);
    }

    /// Returns the next upload if a slot for it is free. [`Intake::ended`] follows.
    fn next(&mut self) -> Option<Waiting> {
        if self.running >= MAX_TAKES {
            return None;
        }
        let waiting = self.waiting.pop_front()?;
        self.running += 1;
        self.under_way.insert(waiting.node.clone(), waiting.bytes);
        Some(waiting)
    }

    /// Releases the slot of a node's upload after success or failure.
    fn ended(&mut self, node: &NodeName) {
        self.running -= 1;
        self.bytes -= self.under_way.remove(node).unwrap_or_default();
    }

    /// Drops the queued uploads of a node. Returns their number.
    pub(super) fn forget(&mut self, node: &NodeName) -> u32 {
        let (gone, rest): (VecDeque<_>, _) =
            std::mem::take(&mut self.waiting).into_iter().partition(|waiting| waiting.node == *node);
        self.waiting = rest;
        self.bytes -= gone.iter().map(|waiting| waiting.bytes).sum::<usize>();
        u32::try_from(gone.len()).unwrap_or(u32::MAX)
    }
}

fn size(upload: &Upload) -> usize {
    upload.items.iter().map(|item| item.content.get().len() + ITEM_BYTES).sum::<usize>() + ITEM_BYTES
}

// --- outboxes

impl<S: Source> Fleet<S> {
    /// Queues the upload of a node, or rejects it if the queue is full.
    pub(super) fn take(&mut self, id: NodeId, token: u64, upload: Upload) {
        let Some(name) = self.reconciler.nodes.name(id) else { return };
        let bytes = size(&upload);
        if !self.intake.has_room(bytes) {
            tracing::debug!(
                node = name.as_str(),
                bytes,
                "ingest queue full, upload dropped until the node resends it"
            );
            let now = self.reconciler.now();
            if let Some(node) = self.reconciler.node(id) {
                node.machine.taken(now, token, None);
            }
            return;
        }
        let on_node = self.reconciler.desired.placement.on(&name);
        let places = uploads::places(&upload, |uid| on_node.get(uid).map_or(Place::Elsewhere, Place::Here));
        self.begun(id);
        let epoch = self.reconciler.nodes.get(id).map(|node| node.machine.epoch()).unwrap_or_default();
        self.intake.wait(Waiting { node: name, token, upload, places, epoch, bytes });
        self.take_next();
    }

    fn take_next(&mut self) {
        while let Some(waiting) = self.intake.next() {
            self.requests.ask(|source| async move {
                let Waiting { node, token, upload, places, epoch, .. } = waiting;
                let stored = store(&source, (&node, epoch), &upload, &places).await;
                Inbox::Taken(node, token, stored)
            });
        }
    }

    /// Applies the outcome of an upload; `None` if it could not be ingested.
    pub(super) fn taken(&mut self, name: &NodeName, token: u64, stored: Option<Stored>) {
        let now = self.reconciler.now();
        let nodes = &mut self.reconciler.nodes;
        if let Some((node, stored)) = nodes.named_mut(name).zip(stored.as_ref()) {
            for (seq, epoch, effect) in &stored.in_effect {
                node.reported.standing.take(&stored.taken.outbox, *seq, *epoch, effect.as_ref());
            }
        }
        self.intake.ended(name);
        self.counts.events_dropped += stored.as_ref().map_or(0, |stored| stored.events_dropped);
        let report = stored.as_ref().and_then(|stored| stored.report.as_deref());
        if let Some(conditions) = report.filter(|_| nodes.contains(name)) {
            nodes.lifecycle.reported(now, name, conditions);
            nodes.set_registered(name, true);
        }
        let is_registered = report.is_some();
        if let Some(id) = self.reconciler.nodes.id(name)
            && let Some(node) = self.reconciler.node(id)
        {
            if is_registered {
                node.machine.set_registered(true);
            }
            node.machine.taken(now, token, stored.map(|stored| (stored.taken, stored.refused)));
            self.reconciler.nodes.touch(id);
        }
        self.ended(name);
        self.take_next();
    }

    /// Updates the reported effects before records of a node are stored. Objects that it no longer
    /// holds, and effects reported by another database file of it, are not in effect there.
    pub(super) fn recording(&mut self, id: NodeId, batch: &RecordBatch) {
        let Some(node) = self.reconciler.nodes.get_mut(id) else { return };
        let standing = &mut node.reported.standing;
        standing.follow(batch.epoch);
        batch.remove.iter().for_each(|uid| standing.forget(uid));
        if batch.is_whole() {
            standing.keep(batch.put.iter().map(|(uid, _)| &**uid));
        }
    }
}

/// Ingests an upload; returns `None` if the source cannot do so now.
async fn store(
    source: &impl Source,
    (node, epoch): (&NodeName, Epoch),
    upload: &Upload,
    places: &HashMap<Uid, Place>,
) -> Option<Stored> {
    let batch = uploads::prepare((node, epoch), upload, places, |resource| source.schema(resource));
    let report = batch.items.iter().rev().find_map(|item| match &item.effect {
        Ok(Effect::Node(report)) => Some((item.seq, report.conditions.clone())),
        _ => None,
    });
    let in_effect = batch.items.iter().filter_map(|item| match &item.effect {
        Ok(Effect::InEffect { effect, epoch, .. }) => {
            Some((item.seq, *epoch, Some(EffectContent::clone(effect))))
        }
        _ => None,
    });
    let mut in_effect: Vec<_> = in_effect.collect();
    match source.ingest(batch).await {
        Ok(UploadOutcome { taken, refused, events_dropped }) => {
            for Refused { seq, reason, message } in refused.iter().take(LINES) {
                let of = refused.len();
                tracing::warn!(node = node.as_str(), seq, ?reason, why = message, of, "outbox item refused");
            }
            let report = report.filter(|(seq, _)| refused.iter().all(|refused| refused.seq != *seq));
            let report = report.map(|(_, conditions)| conditions);
            for (seq, _, effect) in &mut in_effect {
                effect.take_if(|_| refused.iter().any(|refused| refused.seq == *seq));
            }
            Some(Stored { taken, refused, events_dropped, report, in_effect })
        }
        Err(error) => {
            tracing::error!(node = node.as_str(), %error, "storing outbox items failed");
            None
        }
    }
}

// --- Leases, conditions, Events

impl<S: Source> Fleet<S> {
    /// Begins the writes that are due.
    pub(super) fn write_due(&mut self) {
        let now = self.reconciler.now();
        let leases = self.reconciler.nodes.lifecycle.leases_due(now);
        if !leases.is_empty() {
            let leases = self.of_nodes(leases);
            if leases.is_empty() {
                self.reconciler.nodes.lifecycle.leases_written(now, true);
            } else {
                self.requests.ask(|source| async move {
                    let count = leases.len() as u64;
                    Inbox::LeasesWritten(source.renew_leases(leases).await.map(|()| count))
                });
            }
        }
        let changes = self.reconciler.nodes.lifecycle.changes_due(now);
        if !changes.is_empty() {
            self.requests
                .ask(|source| async move { Inbox::NodesChanged(source.change_nodes(changes).await) });
        }
        if self.expiry.begin(now) {
            let ttl = self.expiry.ttl;
            self.requests.ask(|source| async move {
                Inbox::EventsExpired(source.expire_events(ttl, EXPIRE_BATCH).await)
            });
        }
        self.retry_removals(now);
        self.tell_differences(now);
    }

    /// Keeps the Leases of nodes that have a Node. A Lease without a Node means that the Node was
    /// deleted.
    fn of_nodes(&self, mut leases: Vec<LeaseRenewal>) -> Vec<LeaseRenewal> {
        leases.retain(|lease| self.reconciler.nodes.has_object(&lease.node));
        leases
    }

    pub(super) fn leases_written(&mut self, written: &Result<u64>) {
        match written {
            Ok(count) => self.counts.leases_written += count,
            Err(error) => tracing::error!(%error, "writing Leases failed"),
        }
        let now = self.reconciler.now();
        self.reconciler.nodes.lifecycle.leases_written(now, written.is_ok());
        self.go_on_removing();
    }

    pub(super) fn nodes_changed(&mut self, changed: &Result<()>) {
        if let Err(error) = changed {
            tracing::error!(%error, "writing conditions of Nodes failed");
        }
        let now = self.reconciler.now();
        self.reconciler.nodes.lifecycle.changes_written(now, changed.is_ok());
        self.go_on_removing();
    }

    pub(super) fn events_expired(&mut self, expired: &Result<u64>) {
        match expired {
            Ok(count) => self.counts.events_expired += count,
            Err(error) => tracing::error!(%error, "deleting expired Events failed"),
        }
        self.expiry.ended(self.reconciler.now(), expired);
    }

    /// Writes the last renewals before the process ends: the next start derives from them which
    /// nodes were alive.
    pub async fn finish(&mut self) {
        let until = tokio::time::Instant::now() + LAST_WRITE;
        while self.reconciler.nodes.lifecycle.is_writing_leases() {
            match tokio::time::timeout_at(until, self.requests.next()).await {
                Ok(Some(Inbox::LeasesWritten(written))) => self.leases_written(&written),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        let leases = self.reconciler.nodes.lifecycle.leases_left();
        let leases = self.of_nodes(leases);
        let source = self.requests.source();
        if let Err(error) = source.renew_leases(leases).await {
            tracing::error!(%error, "writing the last Leases failed");
        }
        if let Some(replication) = source.replication() {
            replication.finish().await;
        }
    }
}
