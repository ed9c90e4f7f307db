//! What is on its way to one node: loading, framing, the window, and [sending again](again).

mod again;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::change::{ObjectRef, Uid};
use crate::frame::{Down, ObjectsText, Part};
use crate::message::{MessageText, Outgoing};
use crate::timing::Now;
use edgesync_object::{ObjectKey, Relation, Resource, ResourceVersion, Scope, pluralize, split_api_version};

use super::desired::DesiredState;
use super::ledger::Ledger;
use super::queue::{Action, Lane, Lanes};
use super::{CloudEffect, CloudMachine, Loaded, PeerLimits, Phase, Record, Trouble, outgoing};

/// Room in a frame for what stands around the messages.
const FRAME_OVERHEAD: usize = 512;
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
struct Ready {
    out: Outgoing,
    object: Arc<ObjectRef>,
    text: MessageText,
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

    /// Whether messages are being made, or wait for the link: then no more are made.
    fn is_preparing(&self, lane: Lane) -> bool {
        let waits = match lane {
            Lane::Small => !self.ready.is_empty(),
            Lane::Large => !self.large.is_empty() || self.parts.is_some(),
        };
        waits || self.loading.iter().any(|loading| loading.lane == lane)
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

    /// Whether nothing is waited for.
    fn is_at_rest(&self) -> bool {
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

impl CloudMachine {
    /// How an object travels, as far as its size is known before it is loaded.
    pub(super) fn lane(&self, uid: &Uid, action: Action, desired: &impl DesiredState) -> Lane {
        let max_frame = match &self.phase {
            Phase::Live { limits, .. } => limits.max_frame,
            _ => self.config.max_frame as usize,
        };
        if size(uid, action, desired) + FRAME_OVERHEAD > max_frame { Lane::Large } else { Lane::Small }
    }

    /// Takes the next objects off the queue and says which bodies are needed: of small ones as many as a frame takes, of
    /// large ones one.
    pub(super) fn next_load(&mut self, desired: &impl DesiredState) -> Option<CloudEffect> {
        let Phase::Live { limits, .. } = self.phase else { return None };
        self.load(Lane::Small, limits.max_frame, desired).or_else(|| self.load(Lane::Large, 0, desired))
    }

    fn load(&mut self, lane: Lane, most: usize, desired: &impl DesiredState) -> Option<CloudEffect> {
        if self.sender.is_preparing(lane) {
            return None;
        }
        let room = self.config.window_bytes.saturating_sub(*self.sender.window.of(lane));
        let is_idle = *self.sender.window.of(lane) == 0;
        let (mut puts, mut taken, mut bytes) = (Vec::new(), Vec::new(), 0);
        while taken.len() < self.config.frame_objects && self.sender.len() < self.config.window_objects {
            let Some((uid, action)) = self.queue.first(lane) else { break };
            let size = size(&uid, action, desired);
            // Whatever its size, one may be under way alone.
            let is_first = taken.is_empty();
            if (bytes + size > room && !(is_first && is_idle)) || (bytes + size > most && !is_first) {
                break;
            }
            self.queue.remove(&uid);
            let Some(object) = self.object(&uid, desired) else { continue };
            if action == Action::Put
                && let Some(latest) = desired.get(&uid)
            {
                bytes += size;
                puts.push((uid.clone(), latest.version));
            }
            self.sender.preparing.insert(uid.clone(), object);
            taken.push((uid, action));
        }
        if puts.is_empty() {
            self.prepare(self.last_heard, taken, Vec::new(), desired);
            return None;
        }
        let token = self.sender.next_load;
        self.sender.next_load += 1;
        self.sender.loading.push(Loading { token, lane, objects: taken });
        Some(CloudEffect::Load { token, objects: puts })
    }

    /// The bodies of a [`CloudEffect::Load`] were loaded. One that is missing is tried again later, unless it is no
    /// longer desired.
    pub fn loaded(&mut self, now: Now, token: u64, bodies: Vec<Loaded>, desired: &impl DesiredState) {
        #[cfg(any(test, feature = "simulation"))]
        let token = match self.sender.loading.first() {
            Some(loading) if crate::fault::planted(crate::fault::Fault::StaleLoad) => loading.token,
            _ => token,
        };
        let loading = &mut self.sender.loading;
        if let Some(index) = loading.iter().position(|loading| loading.token == token) {
            let objects = loading.swap_remove(index).objects;
            self.prepare(now, objects, bodies, desired);
        }
    }

    /// Makes messages of objects that were taken off the queue.
    fn prepare(
        &mut self,
        now: Now,
        objects: Vec<(Uid, Action)>,
        bodies: Vec<Loaded>,
        desired: &impl DesiredState,
    ) {
        let Phase::Live { limits, .. } = self.phase else { return };
        let mut bodies: HashMap<Uid, Loaded> =
            bodies.into_iter().map(|loaded| (loaded.uid.clone(), loaded)).collect();
        for (uid, action) in objects {
            #[cfg(any(test, feature = "simulation"))]
            if crate::fault::planted(crate::fault::Fault::DeleteAndResend)
                && action == Action::Put
                && let Some(out) = self.removal(&uid, desired)
                && let (Some(object), Ok(text)) = (self.object(&uid, desired), out.to_text())
            {
                self.sender.ready.push_back(Ready { out, object, text });
            }
            let out = match (action, bodies.remove(&uid)) {
                (Action::Delete, _) => self.removal(&uid, desired),
                (Action::Put, Some(loaded)) => self.put(loaded, desired),
                (Action::Put, None) => None,
            };
            let object = self.sender.preparing.get(&uid).cloned();
            let ready = out
                .and_then(|out| Some((out.to_text().ok()?, out)))
                .zip(object)
                .map(|((text, out), object)| Ready { out, object, text });
            match ready {
                Some(ready) if ready.text.len() + FRAME_OVERHEAD > limits.max_frame => {
                    self.sender.large.push_back(ready);
                }
                Some(ready) => self.sender.ready.push_back(ready),
                None => {
                    self.sender.preparing.remove(&uid);
                    if self.needed(&uid, desired).is_some() {
                        let trouble = self.trouble.entry(uid.clone()).or_default();
                        trouble.retry_at = now + self.config.resend_min;
                    }
                }
            }
        }
    }

    fn put(&mut self, loaded: Loaded, desired: &impl DesiredState) -> Option<Outgoing> {
        let Loaded { uid, version, body } = loaded;
        let latest = desired.get(&uid)?;
        if latest.version.is_older_than(&version) {
            self.ahead.insert(uid.clone(), version.clone());
            // What went wrong with another version says nothing of this one.
            self.trouble.remove(&uid);
        }
        let mut out = outgoing(&uid, version, &latest, body);
        let replaced = match self.ledger.get(&uid, desired) {
            Some(record) => Some(record.version),
            None => self.replaced_under(&desired_key(&out), desired),
        };
        out.supersedes = replaced.filter(|replaced| out.version.is_older_than(replaced));
        Some(out)
    }

    fn removal(&self, uid: &Uid, desired: &impl DesiredState) -> Option<Outgoing> {
        let record = self.ledger.get(uid, desired)?;
        let object = &record.object;
        let (group, version) = split_api_version(&object.api_version);
        let scope = if object.namespace.is_empty() { Scope::Cluster } else { Scope::Namespaced };
        Some(Outgoing {
            uid: uid.clone(),
            version: record.version.clone(),
            supersedes: None,
            resource: Arc::new(Resource {
                group: group.into(),
                version: version.into(),
                kind: object.kind.to_string(),
                plural: pluralize(&object.kind),
                scope,
            }),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            body: None,
        })
    }

    /// The next frame with objects, or with a part of a large one: they take turns.
    pub(super) fn next_objects(&mut self, now: Now, desired: &impl DesiredState) -> Option<Down> {
        let Phase::Live { session, limits } = &self.phase else { return None };
        let (session, limits) = (session.clone(), *limits);
        let parts_next = std::mem::replace(&mut self.sender.parts_next, false);
        if parts_next && let Some(part) = self.next_part(now, &session, limits, desired) {
            return Some(part);
        }
        self.sender.parts_next = true;
        let (receipt, messages) = (self.pace.next_frame(), self.next_messages(now, limits, desired));
        if messages.is_empty() {
            return self.next_part(now, &session, limits, desired);
        }
        let bytes = messages.iter().map(MessageText::len).sum();
        self.pace.sent(now, &self.config, bytes);
        Some(Down::Objects(ObjectsText { session, receipt, messages }))
    }

    fn next_messages(
        &mut self,
        now: Now,
        limits: PeerLimits,
        desired: &impl DesiredState,
    ) -> Vec<MessageText> {
        let mut messages = Vec::new();
        let mut bytes = FRAME_OVERHEAD;
        while let Some(ready) = self.sender.ready.front() {
            let uid = ready.out.uid.clone();
            if self.is_obsolete(&ready.out, desired) {
                self.sender.ready.pop_front();
                self.drop_prepared(now, &uid, desired);
                continue;
            }
            let Some(room) = self.pace.room(&self.config, 0) else { break };
            let alone = self.trouble.get(&uid).is_some_and(Trouble::is_suspect);
            let length = bytes + ready.text.len() + 1;
            let full = messages.len() >= self.config.frame_objects
                || length > limits.max_frame
                || (!messages.is_empty() && (alone || length > room));
            if full {
                break;
            }
            let Some(ready) = self.sender.ready.pop_front() else { break };
            bytes = length;
            self.launch(&ready, Lane::Small, ready.text.len());
            messages.push(ready.text);
            if alone {
                break;
            }
        }
        messages
    }

    /// Whether sending the message would be a waste: the wish has changed since it was prepared.
    fn is_obsolete(&self, out: &Outgoing, desired: &impl DesiredState) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        if crate::fault::planted(crate::fault::Fault::DeleteAndResend) {
            return false;
        }
        match out.body {
            Some(_) => desired.get(&out.uid).is_none(),
            None => desired.get(&out.uid).is_some() || self.ledger.get(&out.uid, desired).is_none(),
        }
    }

    fn drop_prepared(&mut self, now: Now, uid: &Uid, desired: &impl DesiredState) {
        self.sender.preparing.remove(uid);
        self.reconsider(now, uid, desired);
    }

    /// Books a message as sent with the next frame.
    fn launch(&mut self, ready: &Ready, lane: Lane, bytes: usize) {
        let Ready { out, object, .. } = ready;
        let action = if out.body.is_some() { Action::Put } else { Action::Delete };
        match action {
            Action::Put => self.counters.sent += 1,
            Action::Delete => self.counters.removals_sent += 1,
        }
        let frame = self.pace.next_frame();
        let before = self.trouble.get(&out.uid).and_then(|trouble| trouble.sent.as_ref());
        let first = before.filter(|(_, version)| *version == out.version).map_or(frame, |(first, _)| *first);
        let sender = &mut self.sender;
        *sender.window.of_mut(lane) += bytes;
        sender.preparing.remove(&out.uid);
        let sent = InFlight {
            frame,
            first,
            version: out.version.clone(),
            object: object.clone(),
            action,
            lane,
            bytes,
            answered: false,
        };
        sender.in_flight.insert(out.uid.clone(), sent);
    }

    fn next_part(
        &mut self,
        now: Now,
        session: &str,
        limits: PeerLimits,
        desired: &impl DesiredState,
    ) -> Option<Down> {
        if self.sender.loading.iter().any(|loading| loading.lane == Lane::Small) {
            // They are there in a moment, and may have less far to go.
            return None;
        }
        // A node that does not say which frame it answers tells no sooner than after a frame's length.
        let more = if self.pace.names_frames { 0 } else { 2 * limits.max_frame };
        let window = self.pace.room(&self.config, more)?;
        if self.sender.parts.is_none() {
            let ready = self.sender.large.pop_front()?;
            if self.is_obsolete(&ready.out, desired) {
                self.drop_prepared(now, &ready.out.uid, desired);
                return None;
            }
            let parts = Parts { ready, offset: 0, arrived: 0, sent: VecDeque::new() };
            self.sender.parts = Some(Box::new(parts));
        }
        let Parts { ready, offset, arrived, mut sent } = *self.sender.parts.take()?;
        let announce_only =
            ready.out.body.as_ref().is_some_and(|body| body.as_str().len() > limits.max_object);
        // As a JSON string a piece of JSON text grows at most twofold.
        let room = ((limits.max_frame - FRAME_OVERHEAD) / 2).min(window.max(MIN_PART));
        let data = if announce_only { String::new() } else { ready.text.cut(offset, room) };
        let (end, total) = (offset + data.len(), ready.text.len());
        let part = Part {
            session: session.to_owned(),
            receipt: self.pace.next_frame(),
            uid: ready.out.uid.clone(),
            resource_version: ready.out.version.clone(),
            offset: offset as u64,
            total: total as u64,
            data,
            object: announce_only.then(|| Box::new(ready.out.object_ref())),
        };
        if announce_only || end == total {
            self.launch(&ready, Lane::Large, end);
        } else {
            sent.push_back((part.receipt, end));
            self.sender.parts = Some(Box::new(Parts { ready, offset: end, arrived, sent }));
        }
        self.pace.sent(now, &self.config, part.data.len());
        Some(Down::Part(part))
    }
}

/// The size of a message, about.
fn size(uid: &Uid, action: Action, desired: &impl DesiredState) -> usize {
    if action == Action::Put { desired.get(uid).map_or(0, |latest| latest.size) } else { 0 }
}

fn desired_key(out: &Outgoing) -> ObjectKey {
    out.resource.key(&out.namespace, &out.name)
}

#[cfg(test)]
mod tests;
