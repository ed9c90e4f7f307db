//! Ingests uploads of nodes: applies the items of their outboxes. Concurrently, so that they share
//! commits.
//!
//! An upload that cannot be ingested now gets no answer, and the node resends it: if it does not
//! fit into the queue, which is bounded for thousands of nodes that reconnect at once; if its
//! Events exceed the node's rate; or if this replica may not know yet what another one has placed
//! on the node. A refusal is final, so nothing is refused for these reasons.

use std::collections::{HashMap, VecDeque};

use super::node::Node;
use super::nodes::NodeId;
use super::reconciler::Reconciler;
use super::requests::{Requests, Response};
use crate::source::{Effect, Source, UploadOutcome};
use crate::uploads::{self, References, Targets};
use edgesync_object::NodeName;
use edgesync_protocol::digest::Epoch;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};
use edgesync_protocol::node::Condition;
use edgesync_protocol::upload::{EffectContent, IngestCursor, Lane, Refused, Upload};

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
    targets: Targets,
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
    in_effect: Vec<(u64, Option<EffectContent>)>,
    /// Epoch of the database file that the upload came from.
    epoch: Epoch,
}

impl Intake {
    fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes <= MAX_TAKE_BYTES
    }

    fn enqueue(&mut self, upload: QueuedUpload) {
        self.bytes += upload.bytes;
        self.waiting.push_back(upload);
    }

    /// Returns the next upload unless [`MAX_TAKES`] are running. [`Intake::ended`] follows.
    fn next(&mut self) -> Option<QueuedUpload> {
        if self.running >= MAX_TAKES {
            return None;
        }
        let waiting = self.waiting.pop_front()?;
        self.running += 1;
        self.under_way.insert(waiting.node.clone(), waiting.bytes);
        Some(waiting)
    }

    /// Ends a node's upload after success or failure, so that the next one may start.
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
    /// Queues the upload of a node, if it can be ingested now.
    pub(super) fn take<S: Source>(
        &mut self,
        reconciler: &mut Reconciler,
        requests: &Requests<S>,
        id: NodeId,
        (token, upload): (u64, Upload),
    ) {
        let Some(name) = reconciler.nodes.name(id) else { return };
        let bytes = size(&upload);
        let admitted = match self.has_room(bytes) {
            true => admit(reconciler, id, &upload),
            false => Err("ingest queue full"),
        };
        let targets = match admitted {
            Ok(targets) => targets,
            Err(why) => {
                tracing::debug!(
                    node = name.as_str(),
                    bytes,
                    why,
                    "upload not ingested until the node resends it"
                );
                let now = reconciler.now();
                if let Some(node) = reconciler.node(id) {
                    node.machine.taken(now, token, None);
                }
                return;
            }
        };
        reconciler.nodes.request_begun(id);
        let epoch = reconciler.nodes.get(id).map(|node| node.machine.epoch()).unwrap_or_default();
        self.enqueue(QueuedUpload { node: name, token, upload, targets, epoch, bytes });
        self.start_next(requests);
    }

    /// Ingests queued uploads up to [`MAX_TAKES`] at a time.
    fn start_next<S: Source>(&mut self, requests: &Requests<S>) {
        while let Some(queued) = self.next() {
            requests.ask(|source| async move {
                let QueuedUpload { node, token, upload, targets, epoch, .. } = queued;
                let stored = store(&source, (&node, epoch), &upload, &targets).await;
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
            let epoch = node.machine.epoch();
            #[cfg(test)]
            let epoch = if planted(Fault::LateEffects) { stored.epoch } else { epoch };
            // The node may have lost its database meanwhile, with what was in effect.
            for (seq, effect) in stored.in_effect.iter().filter(|_| stored.epoch == epoch) {
                node.reported.effects.ingest(&stored.taken.outbox, *seq, epoch, effect.as_ref());
            }
            log_refused(node, &stored.refused);
        }
        let events_dropped = stored.as_ref().map_or(0, |stored| stored.events_dropped);
        let report = stored.as_ref().and_then(|stored| stored.report.as_deref());
        if let Some(conditions) = report.filter(|_| nodes.contains(name)) {
            nodes.lifecycle.reported(now, name, conditions);
        }
        if let Some(id) = reconciler.nodes.id(name)
            && let Some(node) = reconciler.node(id)
        {
            node.machine.taken(now, token, stored.map(|stored| (stored.taken, stored.refused)));
            reconciler.nodes.touch(id);
        }
        self.ended(name);
        self.start_next(requests);
        events_dropped
    }
}

/// Logs refused items, as far as the rate limit of the node's log lines permits.
fn log_refused(node: &Node, refused: &[Refused]) {
    for Refused { seq, reason, message } in refused.iter().take(LINES) {
        if node.session.may_log() {
            let of = refused.len();
            tracing::warn!(node = node.name.as_str(), seq, ?reason, why = message, of, "outbox item refused");
        }
    }
}

/// Looks up the references of an upload, and charges its Events to the node. An error is the reason
/// why the upload has to wait.
fn admit(reconciler: &mut Reconciler, id: NodeId, upload: &Upload) -> Result<Targets, &'static str> {
    let (now, references) = (reconciler.now(), References::of(upload));
    let Reconciler { nodes, desired, settings, work, .. } = reconciler;
    let Some(node) = nodes.get_mut(id) else { return Err("node removed") };
    let (rate, tokens) = (settings.events, references.event_tokens());
    let is_within_rate = tokens == 0 || node.events.has_token(now, rate);
    // Statuses do not wait for Events.
    if !is_within_rate && upload.lane != Lane::Status {
        if node.session.may_log() {
            tracing::warn!(node = node.name.as_str(), "Events exceed the rate of a node, ingested later");
        }
        return Err("Events exceed the rate of a node");
    }
    let on_node = desired.on(&node.name, work);
    let held = |uid: &str| node.machine.recorded_object(uid, &on_node);
    let mut targets = references.resolve(&node.name, &desired.placement.on(&node.name), held);
    work.objects(targets.examined());
    if targets.has_unplaced() && !node.machine.may_refuse() {
        return Err("this replica catches up first");
    }
    match is_within_rate {
        true => node.events.take(now, tokens, rate),
        false => targets.refuse_events(),
    }
    Ok(targets)
}

/// Ingests an upload; returns `None` if the source cannot do so now.
async fn store(
    source: &impl Source,
    (node, epoch): (&NodeName, Epoch),
    upload: &Upload,
    targets: &Targets,
) -> Option<Stored> {
    let batch = uploads::prepare((node, epoch), upload, targets, |resource| source.schema(resource));
    let report = batch.items.iter().rev().find_map(|item| match &item.effect {
        Ok(Effect::Node(report)) => Some((item.seq, report.conditions.clone())),
        _ => None,
    });
    let in_effect = batch.items.iter().filter_map(|item| match &item.effect {
        Ok(Effect::InEffect { effect, .. }) => Some((item.seq, Some(EffectContent::clone(effect)))),
        _ => None,
    });
    let mut in_effect: Vec<_> = in_effect.collect();
    match source.ingest(batch).await {
        Ok(UploadOutcome { taken, refused, events_dropped }) => {
            let report = report.filter(|(seq, _)| refused.iter().all(|refused| refused.seq != *seq));
            let report = report.map(|(_, conditions)| conditions);
            for (seq, effect) in &mut in_effect {
                effect.take_if(|_| refused.iter().any(|refused| refused.seq == *seq));
            }
            Some(Stored { taken, refused, events_dropped, report, in_effect, epoch })
        }
        Err(error) => {
            tracing::error!(node = node.as_str(), %error, "storing outbox items failed");
            None
        }
    }
}
