//! Writes the node's outbox to CloudCore, one frame at a time: registers and patches the Node,
//! writes Events, patches the status of Pods and custom resources.
//!
//! A frame is confirmed to the machine when all its items are settled: by CloudCore's answer, or,
//! for Events, which have none, by the pong to a ping sent after them. A disconnect therefore loses
//! nothing; items in flight are sent again and have no second effect.

mod item;

use std::collections::BTreeMap;

use super::message::{self, Incoming};
use super::outbound::Outbound;
use edgesync_protocol::change::Put;
use edgesync_protocol::frame::{Received, Upload, UploadConfirm};
use edgesync_protocol::timing::{Now, backoff, earlier};
use edgesync_protocol::upload::{Lanes, Refused};
use item::node::{self, NodeConditions};
use item::{Item, Next, State};

/// The message backlog at which the link has no capacity: nothing is repeated then.
const BACKLOG: usize = 16;

/// A frame in flight.
#[derive(Debug)]
struct InFlight {
    upload: Upload,
    /// One entry for each item of the frame.
    items: Vec<Item>,
    until: Now,
    attempts: u32,
}

/// The frame in flight and the known state of the Node.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    in_flight: Option<InFlight>,
    node_uid: Option<String>,
    /// The last answered version of the Node, and its time.
    pub(super) node: Option<(String, i64)>,
    /// The conditions of the last received Node.
    conditions: NodeConditions,
    /// The time to report the Node as ready, outside of a frame: during the absence of the node the
    /// cluster has changed the condition, and does not restore it.
    ready_due: Option<Now>,
    ready_sent: Option<Now>,
}

impl Uploads {
    pub(super) fn forget(&mut self) {
        self.in_flight = None;
        self.ready_due = None;
    }

    /// Returns the UID of the Node, once known.
    pub(super) fn node_uid(&self) -> Option<&str> {
        self.node_uid.as_deref()
    }

    pub(super) fn set_node_uid(&mut self, uid: Option<String>) {
        self.node_uid = uid;
    }

    /// Handles an object: the Node of this node yields its UID, and is reported as ready if it is
    /// not. A repeated report waits for one answer timeout, in case another client insists on the
    /// contrary.
    pub(super) fn node_received(&mut self, outbound: &mut Outbound, put: &Put) {
        if put.resource.kind != "Node" || !put.resource.group.is_empty() || *put.name != *outbound.config.node
        {
            return;
        }
        self.node_uid = Some(put.uid.to_string());
        self.conditions = NodeConditions::read(put.body.get());
        let again = self.ready_sent.map_or(outbound.at.now, |sent| sent + outbound.config.answer_timeout);
        self.ready_due = (!self.conditions.is_ready()).then(|| again.max(outbound.at.now));
        self.report_ready(outbound);
    }

    fn report_ready(&mut self, outbound: &mut Outbound) {
        let now = outbound.at.now;
        if self.ready_due.take_if(|due| *due <= now).is_some() {
            let content = message::quoted(&node::ready_patch(
                &outbound.config.node,
                &self.conditions,
                outbound.at.wall,
            ));
            outbound.send(&message::write(
                "node",
                "patch",
                node::patch_resource(&outbound.config.node),
                content,
            ));
            self.ready_sent = Some(now);
        }
    }

    /// Handles a frame of the outbox. It replaces a frame in flight, but keeps the results of equal
    /// items. Without items it is a probe for the confirmed numbers: CloudCore has none, so the
    /// machine's are confirmed.
    pub(super) fn upload(&mut self, outbound: &mut Outbound, upload: Upload) {
        if outbound.session.as_ref() != Some(&upload.session) {
            return;
        }
        let before = self.in_flight.take().filter(|in_flight| {
            (&in_flight.upload.outbox, in_flight.upload.lane) == (&upload.outbox, upload.lane)
        });
        if upload.items.is_empty() {
            return confirm(outbound, &upload, upload.confirmed, Vec::new());
        }
        let attempts = before.as_ref().map_or(0, |in_flight| in_flight.attempts);
        let mut known: BTreeMap<u64, _> = before
            .into_iter()
            .flat_map(|in_flight| in_flight.upload.items.into_iter().zip(in_flight.items))
            .map(|(raw, item)| (raw.seq, (raw.content, item)))
            .collect();
        let is_repeated = !known.is_empty();
        let registered = self.node_uid.is_some();
        let items = upload.items.iter().map(|raw| match known.remove(&raw.seq) {
            Some((content, item)) if content.get() == raw.content.get() => item,
            _ => Item::read(
                raw.content.get(),
                &outbound.config,
                outbound.at.wall,
                &self.conditions,
                registered,
            ),
        });
        let items = items.collect();
        let until = outbound.at.now + outbound.config.answer_timeout;
        let mut in_flight = InFlight { upload, items, until, attempts };
        if !is_repeated || outbound.messages.len() <= BACKLOG {
            in_flight.send(outbound, |item| !item.is_settled());
        }
        self.in_flight = Some(in_flight);
        self.settle(outbound);
    }

    /// Handles an answer to an item. `AlreadyExists` of the Node leads to a patch, `NotFound` of a
    /// patch to the registration; any other refusal is final.
    pub(super) fn answered(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>) -> bool {
        let (Some(in_flight), Some(parent)) = (&mut self.in_flight, incoming.parent) else { return false };
        let Some(item) = in_flight.items.iter_mut().find(|item| item.waits_for(parent)) else { return false };
        let (next, identity) = item.answered(incoming);
        if let Some(identity) = identity {
            self.node_uid = Some(identity.uid);
            self.node = Some((identity.version, outbound.at.wall));
        }
        match next {
            Next::Settled(refusal) => item.state = State::Settled(refusal),
            Next::Later => item.state = State::Ready,
            Next::Now => {
                item.send(outbound);
                in_flight.until = in_flight.until.max(outbound.at.now + outbound.config.answer_timeout);
            }
        }
        self.settle(outbound);
        true
    }

    /// Handles a pong: everything sent before this ping was read.
    pub(super) fn pong(&mut self, outbound: &mut Outbound, number: u64) {
        let Some(in_flight) = &mut self.in_flight else { return };
        for item in &mut in_flight.items {
            item.was_read(number);
        }
        in_flight.send(outbound, Item::is_next_of_event);
        self.settle(outbound);
    }

    /// Repeats unanswered items with backoff.
    pub(super) fn tick(&mut self, outbound: &mut Outbound) {
        self.report_ready(outbound);
        let now = outbound.at.now;
        let Some(in_flight) = self.in_flight.as_mut().filter(|in_flight| in_flight.until <= now) else {
            return;
        };
        if outbound.messages.len() > BACKLOG {
            in_flight.until = now + outbound.config.answer_timeout;
            return;
        }
        for item in &mut in_flight.items {
            item.give_up_if_silent();
        }
        in_flight.send(outbound, |item| !item.is_settled());
        let min = outbound.config.answer_timeout.saturating_mul(2);
        in_flight.until =
            now + backoff(min, outbound.config.retry_max.max(min), in_flight.attempts, outbound.draw());
        in_flight.attempts = in_flight.attempts.saturating_add(1);
        self.settle(outbound);
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        earlier(self.in_flight.as_ref().map(|in_flight| in_flight.until), self.ready_due)
    }

    /// Confirms the frame once all its items are settled.
    fn settle(&mut self, outbound: &mut Outbound) {
        let is_done = |in_flight: &mut InFlight| in_flight.items.iter().all(Item::is_settled);
        let Some(InFlight { upload, items, .. }) = self.in_flight.take_if(is_done) else { return };
        let last = upload.items.last().map_or(upload.confirmed, |item| item.seq);
        let refused = upload.items.iter().zip(items).filter_map(|(raw, item)| item.refused(raw.seq));
        confirm(outbound, &upload, last, refused.collect());
    }
}

impl InFlight {
    /// Sends the chosen items, and one ping after those without an answer.
    fn send(&mut self, outbound: &mut Outbound, choose: impl Fn(&Item) -> bool) {
        let mut needs_pong = false;
        for item in self.items.iter_mut().filter(|item| choose(item)) {
            item.send(outbound);
            needs_pong |= !item.is_answered();
        }
        if needs_pong {
            let number = outbound.ping();
            // Items sent earlier wait for the first ping after them.
            for item in self.items.iter_mut().filter(|item| item.is_next_of_event()) {
                item.state = State::Pong(number);
            }
        }
    }
}

/// Confirms a lane. Unmentioned lanes keep their numbers.
fn confirm(outbound: &mut Outbound, upload: &Upload, number: u64, refused: Vec<Refused>) {
    let mut last = Lanes::default();
    last.set(upload.lane, number);
    let (session, outbox) = (upload.session.clone(), upload.outbox.clone());
    outbound.frames.push_back(Received::UploadConfirm(UploadConfirm { session, outbox, last, refused }));
}

#[cfg(test)]
mod tests;
