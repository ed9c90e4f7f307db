//! The outbox of the node, one frame of it at a time: the Node is registered and patched, Events are written, the status
//! of Pods and custom resources is patched. A frame is confirmed to the machine when all its items are: by CloudCore's
//! answer where there is one, by the pong to a ping sent after them where there is none (Events). So nothing is lost at a
//! disconnect; what was under way is sent again, and changes nothing the second time.

mod item;

use std::collections::BTreeMap;

use super::message::{self, Incoming};
use super::outbound::Outbound;
use edgesync_protocol::change::Put;
use edgesync_protocol::frame::{Received, Upload, UploadConfirm};
use edgesync_protocol::timing::{Now, backoff, earlier};
use edgesync_protocol::upload::{Lanes, Refused};
use item::node::{self, Seen};
use item::{Item, Next, State};

/// With so many messages waiting the link has no room: nothing is sent again.
const BACKLOG: usize = 16;

/// A frame under way.
#[derive(Debug)]
struct Flight {
    upload: Upload,
    /// One for each item of the frame.
    items: Vec<Item>,
    until: Now,
    attempts: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    flight: Option<Flight>,
    node_uid: Option<String>,
    /// The version of the Node that an answer told last, and when.
    pub(super) node: Option<(String, i64)>,
    /// The Node as it was seen last.
    seen: Seen,
    /// When the Node is told to be ready, outside of a frame: while the node was away the cluster has set it to
    /// something else, and nobody takes that back.
    ready_due: Option<Now>,
    ready_sent: Option<Now>,
}

impl Uploads {
    pub(super) fn forget(&mut self) {
        self.flight = None;
        self.ready_due = None;
    }

    /// The UID of the Node, once known.
    pub(super) fn node_uid(&self) -> Option<&str> {
        self.node_uid.as_deref()
    }

    pub(super) fn set_node_uid(&mut self, uid: Option<String>) {
        self.node_uid = uid;
    }

    /// An object passes by: if it is the Node of this node, its UID is noted, and if it is not ready, it is told that it
    /// is. Often only if somebody else insists on the contrary: then once in the time that an answer may take.
    pub(super) fn seen(&mut self, outbound: &mut Outbound, put: &Put) {
        if put.resource.kind != "Node" || !put.resource.group.is_empty() || *put.name != *outbound.config.node
        {
            return;
        }
        self.node_uid = Some(put.uid.to_string());
        self.seen = Seen::read(put.body.get());
        let again = self.ready_sent.map_or(outbound.at.now, |sent| sent + outbound.config.answer_timeout);
        self.ready_due = (!self.seen.is_ready()).then(|| again.max(outbound.at.now));
        self.tell_ready(outbound);
    }

    fn tell_ready(&mut self, outbound: &mut Outbound) {
        let now = outbound.at.now;
        if self.ready_due.take_if(|due| *due <= now).is_some() {
            let content =
                message::quoted(&node::ready_patch(&outbound.config.node, &self.seen, outbound.at.wall));
            outbound.send(&message::write(
                "node",
                "patch",
                node::patch_resource(&outbound.config.node),
                content,
            ));
            self.ready_sent = Some(now);
        }
    }

    /// A frame of the outbox; one that is under way is given up for it, but for what its items have come to if they are
    /// the same. Without items it asks where the lanes stand: CloudCore has no numbers, so they stand where the machine
    /// says.
    pub(super) fn upload(&mut self, outbound: &mut Outbound, upload: Upload) {
        if outbound.session.as_ref() != Some(&upload.session) {
            return;
        }
        let before = self
            .flight
            .take()
            .filter(|flight| (&flight.upload.outbox, flight.upload.lane) == (&upload.outbox, upload.lane));
        if upload.items.is_empty() {
            return confirm(outbound, &upload, upload.confirmed, Vec::new());
        }
        let attempts = before.as_ref().map_or(0, |flight| flight.attempts);
        let mut known: BTreeMap<u64, _> = before
            .into_iter()
            .flat_map(|flight| flight.upload.items.into_iter().zip(flight.items))
            .map(|(raw, item)| (raw.seq, (raw.content, item)))
            .collect();
        let is_repeated = !known.is_empty();
        let registered = self.node_uid.is_some();
        let items = upload.items.iter().map(|raw| match known.remove(&raw.seq) {
            Some((content, item)) if content.get() == raw.content.get() => item,
            _ => Item::read(raw.content.get(), &outbound.config, outbound.at.wall, &self.seen, registered),
        });
        let items = items.collect();
        let until = outbound.at.now + outbound.config.answer_timeout;
        let mut flight = Flight { upload, items, until, attempts };
        if !is_repeated || outbound.messages.len() <= BACKLOG {
            flight.send(outbound, |item| !item.is_settled());
        }
        self.flight = Some(flight);
        self.settle(outbound);
    }

    /// Takes an answer if it is one to an item. `AlreadyExists` of the Node leads to a patch, `NotFound` of a patch to the
    /// registration; what else is refused is refused for good.
    pub(super) fn answered(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>) -> bool {
        let (Some(flight), Some(parent)) = (&mut self.flight, incoming.parent) else { return false };
        let Some(item) = flight.items.iter_mut().find(|item| item.waits_for(parent)) else { return false };
        let (next, identity) = item.answered(incoming);
        if let Some(identity) = identity {
            self.node_uid = Some(identity.uid);
            self.node = Some((identity.version, outbound.at.wall));
        }
        match next {
            Next::Settled(refusal) => item.state = State::Settled(refusal),
            Next::Later => item.state = State::Turn,
            Next::Now => {
                item.send(outbound);
                flight.until = flight.until.max(outbound.at.now + outbound.config.answer_timeout);
            }
        }
        self.settle(outbound);
        true
    }

    /// Everything sent before this ping was read.
    pub(super) fn pong(&mut self, outbound: &mut Outbound, number: u64) {
        let Some(flight) = &mut self.flight else { return };
        for item in &mut flight.items {
            item.was_read(number);
        }
        flight.send(outbound, Item::is_next_of_event);
        self.settle(outbound);
    }

    /// Sends again what was not answered.
    pub(super) fn tick(&mut self, outbound: &mut Outbound) {
        self.tell_ready(outbound);
        let now = outbound.at.now;
        let Some(flight) = self.flight.as_mut().filter(|flight| flight.until <= now) else { return };
        if outbound.messages.len() > BACKLOG {
            flight.until = now + outbound.config.answer_timeout;
            return;
        }
        for item in &mut flight.items {
            item.give_up_if_silent();
        }
        flight.send(outbound, |item| !item.is_settled());
        let min = outbound.config.answer_timeout.saturating_mul(2);
        flight.until =
            now + backoff(min, outbound.config.retry_max.max(min), flight.attempts, outbound.draw());
        flight.attempts = flight.attempts.saturating_add(1);
        self.settle(outbound);
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        earlier(self.flight.as_ref().map(|flight| flight.until), self.ready_due)
    }

    /// Confirms the frame if nothing of it is open.
    fn settle(&mut self, outbound: &mut Outbound) {
        let is_done = |flight: &mut Flight| flight.items.iter().all(Item::is_settled);
        let Some(Flight { upload, items, .. }) = self.flight.take_if(is_done) else { return };
        let last = upload.items.last().map_or(upload.confirmed, |item| item.seq);
        let refused = upload.items.iter().zip(items).filter_map(|(raw, item)| item.refused(raw.seq));
        confirm(outbound, &upload, last, refused.collect());
    }
}

impl Flight {
    /// Sends the items that are chosen, and one ping behind those that nothing else answers.
    fn send(&mut self, outbound: &mut Outbound, choose: impl Fn(&Item) -> bool) {
        let mut wants_pong = false;
        for item in self.items.iter_mut().filter(|item| choose(item)) {
            item.send(outbound);
            wants_pong |= !item.is_answered();
        }
        if wants_pong {
            let number = outbound.ping();
            // What has been sent before waits for the first ping behind it.
            for item in self.items.iter_mut().filter(|item| item.is_next_of_event()) {
                item.state = State::Pong(number);
            }
        }
    }
}

/// Lanes that are not spoken of stay where they are.
fn confirm(outbound: &mut Outbound, upload: &Upload, number: u64, refused: Vec<Refused>) {
    let mut last = Lanes::default();
    last.set(upload.lane, number);
    let (session, outbox) = (upload.session.clone(), upload.outbox.clone());
    outbound.frames.push_back(Received::UploadConfirm(UploadConfirm { session, outbox, last, refused }));
}

#[cfg(test)]
mod tests;
