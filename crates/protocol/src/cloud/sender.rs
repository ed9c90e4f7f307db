//! The delivery pipeline to one node: objects being loaded, messages ready for a frame, and objects
//! in flight.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::change::{ObjectRef, Uid};
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::message::{MessageText, Outgoing};
use crate::patch::Patch;
use edgesync_object::{ObjectKey, Relation, ResourceVersion};

use super::desired::DesiredState;
use super::ledger::Ledger;
use super::parts::Transfers;
use super::patching::Patching;
use super::queue::{Action, Lane, Lanes};
use super::types::Record;

/// The most objects that are reported and not recorded, as a multiple of the window.
const MAX_RECORDING: usize = 4;

/// Frame bytes around the messages.
pub(super) const FRAME_OVERHEAD: usize = 512;

/// An object sent and not reported yet.
#[derive(Debug)]
struct InFlight {
    /// The last frame that carried it.
    frame: u64,
    /// The first frame that carried it.
    first: u64,
    version: ResourceVersion,
    object: Arc<ObjectRef>,
    action: Action,
    lane: Lane,
    bytes: usize,
    /// The base version, if it was sent as a patch.
    base: Option<ResourceVersion>,
    /// Whether it is reported and its record is being stored.
    answered: bool,
}

/// A message ready for a frame.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) out: Outgoing,
    object: Arc<ObjectRef>,
    /// The text of the message. Empty if a patch fits a frame, which is not text.
    pub(super) text: MessageText,
    /// The patch that is sent instead of the whole object. If it fits a frame, the body is dropped:
    /// many patches of large objects may wait for a slow link.
    pub(super) patch: Option<Arc<Patch>>,
}

impl Ready {
    /// Returns the bytes that the message needs in a frame.
    pub(super) fn len(&self) -> usize {
        match &self.patch {
            Some(patch) if self.text.is_empty() => patch.encoded_len(),
            _ => self.text.len(),
        }
    }

    pub(super) fn action(&self) -> Action {
        if self.out.body.is_some() || self.patch.is_some() { Action::Put } else { Action::Delete }
    }

    /// Returns the identity of the message, for the time after it has left.
    pub(super) fn departed(&self) -> Departed {
        Departed {
            uid: self.out.uid.clone(),
            version: self.out.version.clone(),
            object: self.object.clone(),
            action: self.action(),
            patch: self.patch.clone(),
        }
    }
}

/// The form of messages that share a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Whole objects and removals.
    Whole,
    /// Patches.
    Patch,
}

/// The identity of a message that has left.
#[derive(Debug)]
pub(super) struct Departed {
    pub(super) uid: Uid,
    pub(super) version: ResourceVersion,
    object: Arc<ObjectRef>,
    pub(super) action: Action,
    pub(super) patch: Option<Arc<Patch>>,
}

/// Objects whose bodies are being loaded.
#[derive(Debug)]
struct Loading {
    token: u64,
    lane: Lane,
    /// The objects in the order of sending.
    objects: Vec<(Uid, Action)>,
}

/// The delivery pipeline to one node.
#[derive(Debug, Default)]
pub(super) struct Sender {
    in_flight: HashMap<Uid, InFlight>,
    /// The number of objects in flight that the node has reported and the store has not recorded.
    recording: usize,
    /// The bytes sent and not reported, per lane.
    window: Lanes<usize>,
    /// The loads at the store, one per lane.
    loading: Vec<Loading>,
    next_load: u64,
    ready: VecDeque<Ready>,
    large: VecDeque<Ready>,
    pub(super) transfer: Transfers,
    parts_next: bool,
    /// The patches that fit a frame: they travel in frames of their own.
    pub(super) patching: Patching,
    /// The UIDs in `loading`, `ready`, `patching` and `large`, and of the message being sent in
    /// parts.
    preparing: HashMap<Uid, Arc<ObjectRef>>,
}

impl Sender {
    /// Ends the session. Only a message in parts is remembered.
    pub(super) fn end_session(&mut self) {
        self.transfer.end_session();
        let (next_load, transfer) = (self.next_load, std::mem::take(&mut self.transfer));
        *self = Self { next_load, transfer, ..Self::default() };
    }

    pub(super) fn is_busy_with(&self, uid: &Uid) -> bool {
        self.preparing.contains_key(uid) || self.in_flight.contains_key(uid)
    }

    pub(super) fn object(&self, uid: &Uid) -> Option<Arc<ObjectRef>> {
        let sent = self.in_flight.get(uid).map(|sent| &sent.object);
        sent.or_else(|| self.preparing.get(uid)).cloned()
    }

    /// Returns the object of this name whose message is being prepared or in flight.
    pub(super) fn put_named(&self, key: &ObjectKey) -> Option<&Uid> {
        let is_put = |sent: &InFlight| sent.action == Action::Put && sent.object.key() == *key;
        let sent = self.in_flight.iter().find(|(_, sent)| is_put(sent)).map(|(uid, _)| uid);
        let prepared = || self.preparing.iter().find(|(_, object)| object.key() == *key).map(|(uid, _)| uid);
        sent.or_else(prepared)
    }

    /// Returns whether messages are in preparation or ready in a lane: no more are prepared then.
    pub(super) fn is_preparing(&self, lane: Lane) -> bool {
        let waits = match lane {
            Lane::Small => !self.ready.is_empty() || self.patching.first().is_some(),
            Lane::Large => !self.large.is_empty() || self.transfer.is_sending(),
        };
        waits || self.is_loading(lane)
    }

    pub(super) fn is_loading(&self, lane: Lane) -> bool {
        self.loading.iter().any(|loading| loading.lane == lane)
    }

    /// Returns the bytes sent and not reported in a lane.
    pub(super) fn window(&self, lane: Lane) -> usize {
        *self.window.of(lane)
    }

    /// Takes over an object from the queue to prepare its message.
    pub(super) fn prepare(&mut self, uid: &Uid, object: Arc<ObjectRef>) {
        self.preparing.insert(uid.clone(), object);
    }

    /// Aborts the preparation of an object.
    pub(super) fn drop_prepared(&mut self, uid: &Uid) {
        self.preparing.remove(uid);
    }

    /// Begins to load the bodies of objects, in the order of sending. Returns the token of the
    /// load.
    pub(super) fn begin_load(&mut self, lane: Lane, objects: Vec<(Uid, Action)>) -> u64 {
        let token = self.next_load;
        self.next_load += 1;
        self.loading.push(Loading { token, lane, objects });
        token
    }

    /// Ends a load. Returns its objects; `None` if it belongs to an earlier session.
    pub(super) fn end_load(&mut self, token: u64) -> Option<Vec<(Uid, Action)>> {
        #[cfg(any(test, feature = "simulation"))]
        let token = match self.loading.first() {
            Some(loading) if planted(Fault::StaleLoad) => loading.token,
            _ => token,
        };
        let at = self.loading.iter().position(|loading| loading.token == token)?;
        Some(self.loading.swap_remove(at).objects)
    }

    /// Completes the message of an object in preparation. Returns its lane; `None` if there is no
    /// message, or it cannot be encoded.
    pub(super) fn make_ready(
        &mut self,
        uid: &Uid,
        out: Option<Outgoing>,
        patch: Option<Arc<Patch>>,
        max_frame: usize,
    ) -> Option<Lane> {
        let object = self.preparing.get(uid).cloned();
        let (out, object) = out.zip(object)?;
        let most = max_frame - FRAME_OVERHEAD;
        if patch.as_ref().is_some_and(|patch| patch.encoded_len() <= most) {
            let out = Outgoing { body: None, ..out };
            self.patching.push(Ready { out, object, text: MessageText::empty(), patch });
            return Some(Lane::Small);
        }
        let text = match &patch {
            Some(patch) => patch.to_text().map(MessageText::of_body)?,
            None => out.to_text().ok()?,
        };
        let is_large = text.len() > most || patch.is_some();
        let ready = Ready { out, object, text, patch };
        if is_large {
            self.large.push_back(ready);
            return Some(Lane::Large);
        }
        self.ready.push_back(ready);
        Some(Lane::Small)
    }

    /// Inserts a message before the one of the same object, for [`Fault::DeleteAndResend`].
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn make_ready_too(&mut self, out: Outgoing, object: Arc<ObjectRef>) {
        if let Ok(text) = out.to_text() {
            self.ready.push_back(Ready { out, object, text, patch: None });
        }
    }

    /// Returns whether a message that is ready fits into so many bytes of a frame.
    pub(super) fn fits(&self, left: usize) -> bool {
        let fits = |ready: &Ready| FRAME_OVERHEAD + ready.len() < left;
        self.ready.iter().any(fits) || self.patching.first().is_some_and(fits)
    }

    /// Puts the first message that fits into so many bytes of a frame before those that do not.
    pub(super) fn bring_forward(&mut self, left: usize) {
        let fits = |ready: &Ready| FRAME_OVERHEAD + ready.len() < left;
        if let Some(at) = self.ready.iter().position(fits).filter(|at| *at > 0)
            && let Some(ready) = self.ready.remove(at)
        {
            self.ready.push_front(ready);
        }
    }

    /// Returns the next message of a form that fits a frame.
    pub(super) fn first_ready(&self, form: Form) -> Option<&Ready> {
        match form {
            Form::Whole => self.ready.front(),
            Form::Patch => self.patching.first(),
        }
    }

    pub(super) fn take_ready(&mut self, form: Form) -> Option<Ready> {
        match form {
            Form::Whole => self.ready.pop_front(),
            Form::Patch => self.patching.pop(),
        }
    }

    /// Returns whether a message waits for the link that has not begun to leave.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty() || self.patching.first().is_some() || !self.large.is_empty()
    }

    /// Returns the whole messages that are ready and fit a frame.
    pub(super) fn ready(&self) -> impl Iterator<Item = &Ready> {
        self.ready.iter()
    }

    /// Removes the whole message about an object.
    pub(super) fn remove_ready(&mut self, uid: &Uid) {
        self.ready.retain(|ready| ready.out.uid != *uid);
    }

    /// Returns the next large message, unless another one is being sent in parts.
    pub(super) fn next_large(&self) -> Option<&Ready> {
        self.large.front().filter(|_| !self.transfer.is_sending())
    }

    /// Returns the next large message, unless another one is being sent in parts.
    pub(super) fn take_large(&mut self) -> Option<Ready> {
        self.large.pop_front_if(|_| !self.transfer.is_sending())
    }

    /// Takes up the message that the last session has begun, prepared by
    /// [`prepare`](Self::prepare).
    pub(super) fn take_up_begun(&mut self) {
        self.large.extend(self.transfer.take_begun());
    }

    /// Returns whether it is the turn of a part: parts alternate with frames of objects.
    pub(super) fn take_turn(&mut self, is_next: bool) -> bool {
        std::mem::replace(&mut self.parts_next, is_next)
    }

    /// Records a message as sent with a frame. `first` is the first frame that carried it.
    pub(super) fn mark_sent(&mut self, sent: Departed, lane: Lane, bytes: usize, frame: u64, first: u64) {
        let Departed { uid, version, object, action, patch } = sent;
        let base = patch.map(|patch| patch.base().clone());
        *self.window.of_mut(lane) += bytes;
        self.preparing.remove(&uid);
        let sent = InFlight { frame, first, version, object, action, lane, bytes, base, answered: false };
        self.in_flight.insert(uid, sent);
    }

    /// Returns whether a message is being prepared, or sent in parts.
    pub(super) fn is_unsent(&self, uid: &Uid) -> bool {
        self.preparing.contains_key(uid)
    }

    /// Returns the number of objects that are being prepared, and of the message being sent in
    /// parts.
    pub(super) fn unsent(&self) -> usize {
        self.preparing.len()
    }

    /// Returns the number of objects that are being prepared, in flight, or being recorded.
    pub(super) fn len(&self) -> usize {
        self.preparing.len() + self.in_flight.len()
    }

    /// Returns whether another object may be prepared: fewer than `window` are unreported, and
    /// memory for those that wait for their records is bounded, too.
    pub(super) fn has_room(&self, window: usize) -> bool {
        self.len() - self.recording < window && self.recording < window.saturating_mul(MAX_RECORDING)
    }

    /// Ends the flight of an object.
    pub(super) fn done(&mut self, uid: &Uid) {
        self.transfer.end(uid);
        self.set_answered(uid, false);
        if let Some(sent) = self.in_flight.remove(uid) {
            *self.window.of_mut(sent.lane) -= sent.bytes;
        }
    }

    /// Records whether the node has reported an object in flight. A report frees its place in the
    /// window: the next object need not wait for the record.
    fn set_answered(&mut self, uid: &Uid, answered: bool) {
        let Some(sent) = self.in_flight.get_mut(uid).filter(|sent| sent.answered != answered) else { return };
        sent.answered = answered;
        let window = self.window.of_mut(sent.lane);
        if answered {
            *window -= sent.bytes;
            self.recording += 1;
        } else {
            *window += sent.bytes;
            self.recording -= 1;
        }
    }

    /// Returns the UIDs in flight whose target the ledger already records.
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

    /// Handles a stored record of a UID: if it meets the target, the object is no longer in flight;
    /// if it is older, its report is still awaited.
    pub(super) fn settle(&mut self, uid: &Uid, record: Option<&Record>) {
        let Some(sent) = self.in_flight.get(uid) else { return };
        let is_settled = sent.is_settled(record.map(|record| &record.version));
        self.set_answered(uid, false);
        if is_settled {
            self.done(uid);
        }
    }

    /// Handles a report of a UID: the node holds this version, or nothing. Returns the first frame
    /// that carried the object if the report meets its target.
    ///
    /// The newest report counts: what it contradicts is no answer, and the object is sent again. A
    /// broker that repeats an older frame undoes the change of a later one.
    pub(super) fn answered(&mut self, uid: &Uid, version: Option<&ResourceVersion>) -> Option<u64> {
        let sent = self.in_flight.get(uid)?;
        let (first, is_settled) = (sent.first, sent.is_settled(version));
        #[cfg(any(test, feature = "simulation"))]
        let is_settled = is_settled || (sent.answered && planted(Fault::AnsweredForGood));
        self.set_answered(uid, is_settled);
        is_settled.then_some(first)
    }

    /// Returns the action on a UID in flight, and the sent version.
    pub(super) fn sent(&self, uid: &Uid) -> Option<(Action, &ResourceVersion)> {
        self.in_flight.get(uid).map(|sent| (sent.action, &sent.version))
    }

    /// Returns whether a patch against this base is in flight.
    pub(super) fn is_patched_from(&self, uid: &Uid, base: &ResourceVersion) -> bool {
        self.in_flight.get(uid).is_some_and(|sent| sent.base.as_ref() == Some(base))
    }

    /// Returns the unreported objects of frames before this one.
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

    /// Returns whether nothing is in flight or in preparation.
    pub(super) fn is_idle(&self) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: usize = 3;
    const BYTES: usize = 100;

    fn object() -> Arc<ObjectRef> {
        let text = |text: &str| text.into();
        let (api_version, kind) = (text("v1"), text("ConfigMap"));
        Arc::new(ObjectRef { api_version, kind, namespace: text("default"), name: text("a") })
    }

    /// Sends as many objects as the window permits.
    fn fill(sender: &mut Sender) -> Vec<Uid> {
        let mut sent = Vec::new();
        while sender.has_room(WINDOW) {
            let uid: Uid = format!("uid-{}", sender.len()).into();
            let (object, action) = (object(), Action::Put);
            let departed = Departed { uid: uid.clone(), version: 2.into(), object, action, patch: None };
            sender.mark_sent(departed, Lane::Small, BYTES, 1, 1);
            sent.push(uid);
        }
        sent
    }

    #[test]
    fn reports_free_the_window_and_records_the_memory() {
        let mut sender = Sender::default();
        for round in 1..=MAX_RECORDING {
            let sent = fill(&mut sender);
            assert_eq!((sent.len(), sender.window(Lane::Small)), (WINDOW, WINDOW * BYTES));
            for uid in &sent {
                assert_eq!(sender.answered(uid, Some(&1.into())), None, "an older version");
                assert_eq!(sender.answered(uid, Some(&2.into())), Some(1));
                assert_eq!(sender.answered(uid, Some(&2.into())), Some(1), "a repeated report");
            }
            assert_eq!((sender.window(Lane::Small), sender.len()), (0, round * WINDOW));
        }
        assert!(!sender.has_room(WINDOW), "none is recorded");
        let record = |version: u64| Record { version: version.into(), object: object() };
        sender.settle(&"uid-0".into(), Some(&record(1)));
        assert_eq!((sender.window(Lane::Small), sender.recording), (BYTES, WINDOW * MAX_RECORDING - 1));
        assert!(sender.has_room(WINDOW), "its report is awaited again");
        sender.settle(&"uid-1".into(), Some(&record(2)));
        sender.done(&"uid-0".into());
        assert_eq!((sender.window(Lane::Small), sender.len()), (0, WINDOW * MAX_RECORDING - 2));
        assert_eq!(sender.recording, sender.len());
    }
}
