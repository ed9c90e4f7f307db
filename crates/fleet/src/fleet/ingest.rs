//! Ingests uploads of nodes: applies the items of their outboxes. Concurrently, so that they share
//! commits. The queue is bounded, for thousands of nodes that reconnect at once: a node resends an
//! upload that does not fit.

use std::collections::{HashMap, VecDeque};

use super::nodes::NodeId;
use super::reconciler::Reconciler;
use super::requests::{Requests, Response};
use crate::source::{Effect, Source, UploadOutcome};
use crate::uploads::{self, NodePlacement};
use edgesync_object::NodeName;
use edgesync_protocol::change::Uid;
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::node::Condition;
use edgesync_protocol::upload::{EffectContent, IngestCursor, Refused, Upload};

/// Maximum number of uploads ingested concurrently.
const MAX_TAKES: usize = 32;
/// Maximum bytes of uploads that are queued or being ingested.
const MAX_TAKE_BYTES: usize = 64 << 20;
/// Approximate overhead of an item beside its text, in bytes.
const ITEM_BYTES: usize = 64;
/// Maximum number of log lines for the items of one frame.
const LINES: usize = 3;

/// Queue of uploads, and the number being ingested.
#[derive(Debug, Default)]
pub(super) struct Intake {
    waiting: VecDeque<QueuedUpload>,
    running: usize,
    bytes: usize,
    /// Bytes of the upload being ingested, by node.
    under_way: HashMap<NodeName, usize>,
}

#[derive(Debug)]
struct QueuedUpload {
    node: NodeName,
    token: u64,
    upload: Upload,
    placements: HashMap<Uid, NodePlacement>,
    /// Epoch of the node's database file.
    epoch: Epoch,
    bytes: usize,
}

/// Outcome of an ingested upload.
#[derive(Debug)]
pub(super) struct Stored {
    taken: IngestCursor,
    refused: Vec<Refused>,
    events_dropped: u64,
    /// Conditions of the node's report, if the upload had one that was accepted.
    report: Option<Vec<Condition>>,
    /// Effects in files, by the sequence number of their item; `None` for refused items.
    in_effect: Vec<(u64, Epoch, Option<EffectContent>)>,
}

impl Intake {
    fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes <= MAX_TAKE_BYTES
    }

    fn enqueue(&mut self, upload: QueuedUpload) {
        self.bytes += upload.bytes;
        self.waiting.push_back(upload);
    }

    /// Returns the next upload if a slot for it is free. [`Intake::ended`] follows.
    fn next(&mut self) -> Option<QueuedUpload> {
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

// --- uploads

impl Intake {
    /// Queues the upload of a node, or rejects it if the queue is full.
    pub(super) fn take<S: Source>(
        &mut self,
        reconciler: &mut Reconciler,
        requests: &Requests<S>,
        id: NodeId,
        (token, upload): (u64, Upload),
    ) {
        let Some(name) = reconciler.nodes.name(id) else { return };
        let bytes = size(&upload);
        if !self.has_room(bytes) {
            tracing::debug!(
                node = name.as_str(),
                bytes,
                "ingest queue full, upload dropped until the node resends it"
            );
            let now = reconciler.now();
            if let Some(node) = reconciler.node(id) {
                node.machine.taken(now, token, None);
            }
            return;
        }
        let on_node = reconciler.desired.placement.on(&name);
        let placements = uploads::placements(&upload, |uid| {
            on_node.get(uid).map_or(NodePlacement::NotPlaced, NodePlacement::Placed)
        });
        reconciler.nodes.request_begun(id);
        let epoch = reconciler.nodes.get(id).map(|node| node.machine.epoch()).unwrap_or_default();
        self.enqueue(QueuedUpload { node: name, token, upload, placements, epoch, bytes });
        self.start_next(requests);
    }

    /// Ingests queued uploads while slots are free.
    fn start_next<S: Source>(&mut self, requests: &Requests<S>) {
        while let Some(queued) = self.next() {
            requests.ask(|source| async move {
                let QueuedUpload { node, token, upload, placements, epoch, .. } = queued;
                let stored = store(&source, (&node, epoch), &upload, &placements).await;
                Response::Ingested(node, token, stored)
            });
        }
    }

    /// Applies the outcome of an upload, `None` if it could not be ingested, and starts the next
    /// ones. Returns the number of Events evicted by it.
    pub(super) fn taken<S: Source>(
        &mut self,
        reconciler: &mut Reconciler,
        requests: &Requests<S>,
        name: &NodeName,
        (token, stored): (u64, Option<Stored>),
    ) -> u64 {
        let now = reconciler.now();
        let nodes = &mut reconciler.nodes;
        if let Some((node, stored)) = nodes.named_mut(name).zip(stored.as_ref()) {
            for (seq, epoch, effect) in &stored.in_effect {
                node.reported.standing.take(&stored.taken.outbox, *seq, *epoch, effect.as_ref());
            }
        }
        let events_dropped = stored.as_ref().map_or(0, |stored| stored.events_dropped);
        let report = stored.as_ref().and_then(|stored| stored.report.as_deref());
        if let Some(conditions) = report.filter(|_| nodes.contains(name)) {
            nodes.lifecycle.reported(now, name, conditions);
            nodes.set_registered(name, true);
        }
        let is_registered = report.is_some();
        if let Some(id) = reconciler.nodes.id(name)
            && let Some(node) = reconciler.node(id)
        {
            if is_registered {
                node.machine.set_registered(true);
            }
            node.machine.taken(now, token, stored.map(|stored| (stored.taken, stored.refused)));
            reconciler.nodes.touch(id);
        }
        self.ended(name);
        self.start_next(requests);
        events_dropped
    }
}

/// Ingests an upload; returns `None` if the source cannot do so now.
async fn store(
    source: &impl Source,
    (node, epoch): (&NodeName, Epoch),
    upload: &Upload,
    placements: &HashMap<Uid, NodePlacement>,
) -> Option<Stored> {
    let batch = uploads::prepare((node, epoch), upload, placements, |resource| source.schema(resource));
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
