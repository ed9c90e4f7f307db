//! What is on its way to one node: objects being loaded, messages ready for a frame, and what is in flight.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::change::{ObjectRef, Uid};
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::frame::Part;
use crate::message::{MessageText, Outgoing};
use edgesync_object::{Relation, ResourceVersion};

use super::PeerLimits;
use super::desired::DesiredState;
use super::ledger::Ledger;
use super::queue::{Action, Lane, Lanes};
use super::types::Record;

/// Room in a frame for what stands around the messages.
pub(super) const FRAME_OVERHEAD: usize = 512;
/// The least that is sent of a large object at a time, in bytes.
const MIN_PART: usize = 4096;

/// An object that was sent and not reported yet.
#[derive(Debug)]
struct InFlight {
    /// The frame that it went with.
    frame: u64,
    /// The frame that it went with first.
    first: u64,
    version: ResourceVersion,
    object: Arc<ObjectRef>,
    action: Action,
    lane: Lane,
    bytes: usize,
    /// Reported; the record of it is being stored.
    answered: bool,
}

/// A message ready for a frame.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) out: Outgoing,
    object: Arc<ObjectRef>,
    pub(super) text: MessageText,
}

impl Ready {
    pub(super) fn action(&self) -> Action {
        if self.out.body.is_some() { Action::Put } else { Action::Delete }
    }
}

/// A message on its way in parts.
#[derive(Debug)]
struct Parts {
    ready: Ready,
    offset: usize,
    /// So much of it the node has.
    arrived: usize,
    /// The frames that parts went with and that are not answered, each with the end of its part.
    sent: VecDeque<(u64, usize)>,
}

impl Parts {
    fn begin_again_at(&mut self, offset: usize) {
        (self.offset, self.arrived) = (offset, offset);
        self.sent.clear();
    }
}

/// Objects whose bodies are being loaded.
#[derive(Debug)]
struct Loading {
    token: u64,
    lane: Lane,
    /// In the order in which they are to be sent.
    objects: Vec<(Uid, Action)>,
}

/// What is on its way to one node.
#[derive(Debug, Default)]
pub(super) struct Sender {
    in_flight: HashMap<Uid, InFlight>,
    /// Bytes in flight.
    window: Lanes<usize>,
    /// Asked of the store, one for each lane.
    loading: Vec<Loading>,
    next_load: u64,
    ready: VecDeque<Ready>,
    large: VecDeque<Ready>,
    parts: Option<Box<Parts>>,
    parts_next: bool,
    /// UIDs in `loading`, `ready`, `large` and `parts`.
    preparing: HashMap<Uid, Arc<ObjectRef>>,
}

impl Sender {
    pub(super) fn clear(&mut self) {
        let next_load = self.next_load;
        *self = Self { next_load, ..Self::default() };
    }

    pub(super) fn is_busy_with(&self, uid: &Uid) -> bool {
        self.preparing.contains_key(uid) || self.in_flight.contains_key(uid)
    }

    pub(super) fn object(&self, uid: &Uid) -> Option<Arc<ObjectRef>> {
        let sent = self.in_flight.get(uid).map(|sent| &sent.object);
        sent.or_else(|| self.preparing.get(uid)).cloned()
    }

    /// Returns whether messages are being made, or wait for the link: then no more are made.
    pub(super) fn is_preparing(&self, lane: Lane) -> bool {
        let waits = match lane {
            Lane::Small => !self.ready.is_empty(),
            Lane::Large => !self.large.is_empty() || self.parts.is_some(),
        };
        waits || self.is_loading(lane)
    }

    pub(super) fn is_loading(&self, lane: Lane) -> bool {
        self.loading.iter().any(|loading| loading.lane == lane)
    }

    /// Returns the bytes in flight.
    pub(super) fn window(&self, lane: Lane) -> usize {
        *self.window.of(lane)
    }

    /// Takes an object off the queue's hands: its message is being made.
    pub(super) fn prepare(&mut self, uid: &Uid, object: Arc<ObjectRef>) {
        self.preparing.insert(uid.clone(), object);
    }

    /// Gives up making the message of an object.
    pub(super) fn drop_prepared(&mut self, uid: &Uid) {
        self.preparing.remove(uid);
    }

    /// Begins to load the bodies of objects, in the order in which they are to be sent. Returns the token of the load.
    pub(super) fn begin_load(&mut self, lane: Lane, objects: Vec<(Uid, Action)>) -> u64 {
        let token = self.next_load;
        self.next_load += 1;
        self.loading.push(Loading { token, lane, objects });
        token
    }

    /// Ends a load. Returns its objects, none if it is of an earlier session.
    pub(super) fn end_load(&mut self, token: u64) -> Option<Vec<(Uid, Action)>> {
        #[cfg(any(test, feature = "simulation"))]
        let token = match self.loading.first() {
            Some(loading) if planted(Fault::StaleLoad) => loading.token,
            _ => token,
        };
        let at = self.loading.iter().position(|loading| loading.token == token)?;
        Some(self.loading.swap_remove(at).objects)
    }

    /// Makes the message of an object that is being prepared ready. Returns false if there is none, or it cannot be written.
    pub(super) fn make_ready(&mut self, uid: &Uid, out: Option<Outgoing>, max_frame: usize) -> bool {
        let object = self.preparing.get(uid).cloned();
        let Some((out, object)) = out.zip(object) else { return false };
        let Ok(text) = out.to_text() else { return false };
        let ready = Ready { out, object, text };
        match ready.text.len() + FRAME_OVERHEAD > max_frame {
            true => self.large.push_back(ready),
            false => self.ready.push_back(ready),
        }
        true
    }

    /// Puts a message in front of that of the same object, as [`Fault::DeleteAndResend`] demands.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn make_ready_too(&mut self, out: Outgoing, object: Arc<ObjectRef>) {
        if let Ok(text) = out.to_text() {
            self.ready.push_back(Ready { out, object, text });
        }
    }

    /// Returns the next message that fits a frame.
    pub(super) fn first_ready(&self) -> Option<&Ready> {
        self.ready.front()
    }

    pub(super) fn take_ready(&mut self) -> Option<Ready> {
        self.ready.pop_front()
    }

    /// Returns whether a message waits for the link that has not begun to leave.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.large.is_empty()
    }

    /// Returns the next message that leaves in parts, unless one is leaving already.
    pub(super) fn take_large(&mut self) -> Option<Ready> {
        self.large.pop_front_if(|_| self.parts.is_none())
    }

    /// Begins to send a message in parts.
    pub(super) fn begin_parts(&mut self, ready: Ready) {
        self.parts = Some(Box::new(Parts { ready, offset: 0, arrived: 0, sent: VecDeque::new() }));
    }

    /// Returns whether a message is leaving in parts.
    pub(super) fn has_parts(&self) -> bool {
        self.parts.is_some()
    }

    /// Returns whether it is the turn of a part: they take turns with frames of objects.
    pub(super) fn take_turn(&mut self, is_next: bool) -> bool {
        std::mem::replace(&mut self.parts_next, is_next)
    }

    /// Cuts the next part off the message that is leaving, for the frame of this number; after the last part the message and
    /// its length too.
    pub(super) fn cut_part(
        &mut self,
        session: &str,
        limits: PeerLimits,
        receipt: u64,
        capacity: usize,
    ) -> Option<(Part, Option<(Ready, usize)>)> {
        let Parts { ready, offset, arrived, mut sent } = *self.parts.take()?;
        let announce_only =
            ready.out.body.as_ref().is_some_and(|body| body.as_str().len() > limits.max_object);
        // As a JSON string a piece of JSON text grows at most twofold.
        let room = ((limits.max_frame - FRAME_OVERHEAD) / 2).min(capacity.max(MIN_PART));
        let data = if announce_only { String::new() } else { ready.text.cut(offset, room) };
        let (end, total) = (offset + data.len(), ready.text.len());
        let part = Part {
            session: session.to_owned(),
            receipt,
            uid: ready.out.uid.clone(),
            resource_version: ready.out.version.clone(),
            offset: offset as u64,
            total: total as u64,
            data,
            object: announce_only.then(|| Box::new(ready.out.object_ref())),
        };
        if announce_only || end == total {
            return Some((part, Some((ready, end))));
        }
        sent.push_back((receipt, end));
        self.parts = Some(Box::new(Parts { ready, offset: end, arrived, sent }));
        Some((part, None))
    }

    /// Takes note of how much of the message that is leaving the node has, as its answer to a frame. Returns true if a part
    /// is missing: sending begins again there.
    pub(super) fn part_received(&mut self, uid: &Uid, received: Option<u64>, receipt: u64) -> bool {
        let parts = self.parts.as_mut().filter(|parts| parts.ready.out.uid == *uid);
        let (Some(parts), Some(received)) = (parts, received.and_then(|it| usize::try_from(it).ok())) else {
            return false;
        };
        let Some(at) = parts.sent.iter().position(|(frame, _)| *frame == receipt) else { return false };
        let Some((_, end)) = parts.sent.drain(..=at).next_back() else { return false };
        if received >= end {
            parts.arrived = end;
            return false;
        }
        // The parts after the missing one were dropped.
        let is_cut = parts.ready.text.is_char_boundary(received);
        if is_cut {
            parts.begin_again_at(received);
        }
        is_cut
    }

    /// Sends again all of the message that is leaving that the node has not said to have.
    pub(super) fn restart_parts(&mut self) {
        if let Some(parts) = &mut self.parts {
            parts.begin_again_at(parts.arrived);
        }
    }

    /// Books a message as sent with a frame. `first` is the first frame that carried it.
    pub(super) fn launch(&mut self, ready: &Ready, lane: Lane, bytes: usize, frame: u64, first: u64) {
        let Ready { out, object, .. } = ready;
        *self.window.of_mut(lane) += bytes;
        self.preparing.remove(&out.uid);
        let sent = InFlight {
            frame,
            first,
            version: out.version.clone(),
            object: object.clone(),
            action: ready.action(),
            lane,
            bytes,
            answered: false,
        };
        self.in_flight.insert(out.uid.clone(), sent);
    }

    pub(super) fn len(&self) -> usize {
        self.preparing.len() + self.in_flight.len()
    }

    /// The object is no longer under way.
    pub(super) fn done(&mut self, uid: &Uid) {
        if let Some(sent) = self.in_flight.remove(uid) {
            *self.window.of_mut(sent.lane) -= sent.bytes;
        }
    }

    /// UIDs under way for which the ledger already says what was to be achieved.
    pub(super) fn settled(&self, ledger: &Ledger, desired: &impl DesiredState) -> Vec<Uid> {
        let is_settled = |uid: &Uid, sent: &InFlight| {
            sent.is_settled(ledger.get(uid, desired).as_ref().map(|record| &record.version))
        };
        self.in_flight
            .iter()
            .filter(|(uid, sent)| is_settled(uid, sent))
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    /// The record of a UID was stored: if it is what was to be achieved, the object is no longer under
    /// way; if it is older, the report of it is still awaited.
    pub(super) fn settle(&mut self, uid: &Uid, record: Option<&Record>) {
        let Some(sent) = self.in_flight.get_mut(uid) else { return };
        sent.answered = false;
        if sent.is_settled(record.map(|record| &record.version)) {
            self.done(uid);
        }
    }

    /// Notes that a UID was reported: the node holds this version of it, or nothing. If that is what was to be achieved:
    /// the frame that it went with first.
    pub(super) fn answered(&mut self, uid: &Uid, version: Option<&ResourceVersion>) -> Option<u64> {
        let sent = self.in_flight.get_mut(uid)?;
        sent.answered |= sent.is_settled(version);
        sent.answered.then_some(sent.first)
    }

    /// What is to be done about a UID that is under way, and the version that was sent.
    pub(super) fn sent(&self, uid: &Uid) -> Option<(Action, &ResourceVersion)> {
        self.in_flight.get(uid).map(|sent| (sent.action, &sent.version))
    }

    /// What went with frames before this one and was not reported.
    pub(super) fn unanswered_before(&self, frame: u64) -> Vec<Uid> {
        let lost = |(uid, sent): (&Uid, &InFlight)| {
            (!sent.answered && sent.frame < frame).then(|| (sent.frame, uid.clone()))
        };
        let mut lost: Vec<_> = self.in_flight.iter().filter_map(lost).collect();
        lost.sort_unstable();
        lost.into_iter().map(|(_, uid)| uid).collect()
    }

    /// Returns the first frame that carried an object in flight, and its version.
    pub(super) fn first_sent(&self, uid: &Uid) -> Option<(u64, ResourceVersion)> {
        self.in_flight.get(uid).map(|sent| (sent.first, sent.version.clone()))
    }

    /// Whether nothing is waited for.
    pub(super) fn is_at_rest(&self) -> bool {
        self.in_flight.is_empty() && self.preparing.is_empty()
    }
}

impl InFlight {
    fn is_settled(&self, held: Option<&ResourceVersion>) -> bool {
        match (self.action, held) {
            (Action::Delete, held) => held.is_none(),
            (Action::Put, Some(held)) => held.relation(&self.version) != Relation::Older,
            (Action::Put, None) => false,
        }
    }
}
