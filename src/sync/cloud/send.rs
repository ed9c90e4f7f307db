//! What is on its way to one node: loading, framing, the window, and sending again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::object::{ObjectKey, Relation, Resource, ResourceVersion, Scope, pluralize, split_api_version};
use crate::sync::change::{ObjectRef, Uid};
use crate::sync::frame::{Down, Part};
use crate::sync::message::Outgoing;
use crate::sync::timing::Now;

use super::desired::DesiredState;
use super::ledger::{Ledger, Record};
use super::queue::Action;
use super::{CloudEffect, CloudMachine, Desired, Loaded, PeerLimits, Phase, outgoing};

/// Room in a frame for what stands around the messages.
const FRAME_OVERHEAD: usize = 512;

/// An object that was sent and not reported yet.
#[derive(Debug)]
struct InFlight {
    sequence: u64,
    version: ResourceVersion,
    object: Arc<ObjectRef>,
    action: Action,
    bytes: usize,
    sent_at: Now,
    attempts: u32,
    /// Reported; the record of it is being stored.
    answered: bool,
}

/// A message ready for a frame.
#[derive(Debug)]
struct Ready {
    out: Outgoing,
    object: Arc<ObjectRef>,
    json: Box<RawValue>,
}

/// A message on its way in parts.
#[derive(Debug)]
struct Parts {
    ready: Ready,
    offset: usize,
}

/// Objects whose bodies are being loaded.
#[derive(Debug)]
struct Loading {
    token: u64,
    /// In the order in which they are to be sent.
    objects: Vec<(Uid, Action)>,
}

/// What is on its way to one node.
#[derive(Debug, Default)]
pub(super) struct Sender {
    in_flight: HashMap<Uid, InFlight>,
    window_bytes: usize,
    next_sequence: u64,
    /// Asked of the store.
    loading: Option<Loading>,
    next_load: u64,
    ready: VecDeque<Ready>,
    large: VecDeque<Ready>,
    parts: Option<Parts>,
    parts_next: bool,
    /// UIDs in `loading`, `ready`, `large` and `parts`.
    preparing: HashMap<Uid, Arc<ObjectRef>>,
}

impl Sender {
    pub(super) fn clear(&mut self) {
        let (next_sequence, next_load) = (self.next_sequence, self.next_load);
        *self = Self { next_sequence, next_load, ..Self::default() };
    }

    pub(super) fn is_busy_with(&self, uid: &Uid) -> bool {
        self.preparing.contains_key(uid) || self.in_flight.contains_key(uid)
    }

    pub(super) fn object(&self, uid: &Uid) -> Option<Arc<ObjectRef>> {
        let sent = self.in_flight.get(uid).map(|sent| &sent.object);
        sent.or_else(|| self.preparing.get(uid)).cloned()
    }

    pub(super) fn len(&self) -> usize {
        self.preparing.len() + self.in_flight.len()
    }

    /// The object is no longer under way.
    pub(super) fn done(&mut self, uid: &Uid) {
        if let Some(sent) = self.in_flight.remove(uid) {
            self.window_bytes -= sent.bytes;
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

    /// Notes that a UID was reported: the node holds this version of it, or nothing.
    pub(super) fn answered(&mut self, uid: &Uid, version: Option<&ResourceVersion>) -> Option<u64> {
        let sent = self.in_flight.get_mut(uid)?;
        sent.answered |= sent.is_settled(version);
        sent.answered.then_some(sent.sequence)
    }

    pub(super) fn sent_at(&self, uid: &Uid) -> Option<Now> {
        self.in_flight.get(uid).filter(|sent| sent.attempts == 0).map(|sent| sent.sent_at)
    }

    /// When the next unreported object is to be sent again.
    pub(super) fn next_overdue(&self, last_heard: Now, after: Duration) -> Option<Now> {
        self.in_flight
            .values()
            .filter(|sent| !sent.answered)
            .map(|sent| sent.overdue_at(last_heard, after))
            .min()
    }
}

impl InFlight {
    fn overdue_at(&self, last_heard: Now, after: Duration) -> Now {
        let factor = 1u32 << self.attempts.min(10);
        self.sent_at.max(last_heard) + after.saturating_mul(factor)
    }

    fn is_settled(&self, held: Option<&ResourceVersion>) -> bool {
        match (self.action, held) {
            (Action::Delete, held) => held.is_none(),
            (Action::Put, Some(held)) => held.relation(&self.version) != Relation::Older,
            (Action::Put, None) => false,
        }
    }
}

impl CloudMachine {
    /// Takes the next objects off the queue and says which bodies are needed.
    pub(super) fn next_load(&mut self, desired: &impl DesiredState) -> Option<CloudEffect> {
        if !matches!(self.phase, Phase::Live { .. })
            || self.sender.loading.is_some()
            || self.sender.ready.len() >= self.config.frame_objects
        {
            return None;
        }
        let mut bytes =
            self.sender.window_bytes + self.sender.ready.iter().map(|r| r.json.get().len()).sum::<usize>();
        let (mut puts, mut taken) = (Vec::new(), Vec::new());
        while taken.len() < self.config.frame_objects
            && self.sender.len() < self.config.window_objects
            && bytes < self.config.window_bytes
        {
            let Some((uid, action)) = self.queue.pop() else { break };
            let Some(object) = self.object(&uid, desired) else { continue };
            if action == Action::Put
                && let Some(Desired { version, size, .. }) = desired.get(&uid)
            {
                // A large object travels beside the window.
                bytes += if size > self.config.max_frame as usize { 0 } else { size };
                puts.push((uid.clone(), version.clone()));
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
        self.sender.loading = Some(Loading { token, objects: taken });
        Some(CloudEffect::Load { token, objects: puts })
    }

    /// The bodies of a [`CloudEffect::Load`] were loaded. One that is missing is tried again later, unless it is no
    /// longer desired.
    pub fn loaded(&mut self, now: Now, token: u64, bodies: Vec<Loaded>, desired: &impl DesiredState) {
        if let Some(loading) = self.sender.loading.take_if(|loading| loading.token == token) {
            self.prepare(now, loading.objects, bodies, desired);
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
            let out = match (action, bodies.remove(&uid)) {
                (Action::Delete, _) => self.removal(&uid, desired),
                (Action::Put, Some(loaded)) => self.put(loaded, desired),
                (Action::Put, None) => None,
            };
            let object = self.sender.preparing.get(&uid).cloned();
            let ready = out
                .and_then(|out| Some((out.to_json().ok()?, out)))
                .zip(object)
                .map(|((json, out), object)| Ready { out, object, json });
            match ready {
                Some(ready) if ready.json.get().len() + FRAME_OVERHEAD > limits.max_frame => {
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
        let messages = self.next_messages(now, limits, desired);
        if messages.is_empty() {
            return self.next_part(now, &session, limits, desired);
        }
        Some(Down::Objects { session, messages })
    }

    fn next_messages(
        &mut self,
        now: Now,
        limits: PeerLimits,
        desired: &impl DesiredState,
    ) -> Vec<Box<RawValue>> {
        let mut messages = Vec::new();
        let mut bytes = FRAME_OVERHEAD;
        while let Some(ready) = self.sender.ready.front() {
            let uid = ready.out.uid.clone();
            if self.is_obsolete(&ready.out, desired) {
                self.sender.ready.pop_front();
                self.drop_prepared(now, &uid, desired);
                continue;
            }
            let alone = self.trouble.contains_key(&uid);
            let full = messages.len() >= self.config.frame_objects
                || bytes + ready.json.get().len() + 1 > limits.max_frame
                || (alone && !messages.is_empty());
            if full {
                break;
            }
            let Some(ready) = self.sender.ready.pop_front() else { break };
            bytes += ready.json.get().len() + 1;
            let json = self.launch(now, ready, true);
            messages.push(json);
            if alone {
                break;
            }
        }
        messages
    }

    /// Whether sending the message would be a waste: the wish has changed since it was prepared.
    fn is_obsolete(&self, out: &Outgoing, desired: &impl DesiredState) -> bool {
        match out.body {
            Some(_) => desired.get(&out.uid).is_none(),
            None => desired.get(&out.uid).is_some() || self.ledger.get(&out.uid, desired).is_none(),
        }
    }

    fn drop_prepared(&mut self, now: Now, uid: &Uid, desired: &impl DesiredState) {
        self.sender.preparing.remove(uid);
        self.reconsider(now, uid, desired);
    }

    /// Books a message as sent.
    fn launch(&mut self, now: Now, ready: Ready, in_window: bool) -> Box<RawValue> {
        let Ready { out, object, json } = ready;
        let attempts = self.trouble.get(&out.uid).map_or(0, |trouble| trouble.attempts);
        let action = if out.body.is_some() { Action::Put } else { Action::Delete };
        match action {
            Action::Put => self.counters.sent += 1,
            Action::Delete => self.counters.removals_sent += 1,
        }
        let bytes = if in_window { json.get().len() } else { 0 };
        let sender = &mut self.sender;
        sender.window_bytes += bytes;
        sender.preparing.remove(&out.uid);
        let sequence = sender.next_sequence;
        sender.next_sequence += 1;
        let sent = InFlight {
            sequence,
            version: out.version,
            object,
            action,
            bytes,
            sent_at: now,
            attempts,
            answered: false,
        };
        sender.in_flight.insert(out.uid, sent);
        json
    }

    fn next_part(
        &mut self,
        now: Now,
        session: &str,
        limits: PeerLimits,
        desired: &impl DesiredState,
    ) -> Option<Down> {
        if self.sender.parts.is_none() {
            let ready = self.sender.large.pop_front()?;
            if self.is_obsolete(&ready.out, desired) {
                self.drop_prepared(now, &ready.out.uid, desired);
                return None;
            }
            self.sender.parts = Some(Parts { ready, offset: 0 });
        }
        let Parts { ready, offset } = self.sender.parts.take()?;
        let body = ready.out.body.as_ref().map_or(0, |body| body.len());
        let announce_only = body > limits.max_object;
        // As a JSON string a piece of JSON text grows at most twofold.
        let room = (limits.max_frame - FRAME_OVERHEAD) / 2;
        let json = ready.json.get();
        let end = json.floor_char_boundary((offset + room).min(json.len()));
        let data = if announce_only { "" } else { &json[offset..end] };
        let part = Part {
            session: session.to_owned(),
            uid: ready.out.uid.clone(),
            resource_version: ready.out.version.clone(),
            offset: offset as u64,
            total: json.len() as u64,
            data: data.to_owned(),
        };
        if announce_only || end == json.len() {
            self.launch(now, ready, false);
        } else {
            self.sender.parts = Some(Parts { ready, offset: end });
        }
        Some(Down::Part(part))
    }

    /// How long to wait for the report of an object.
    pub(super) fn resend_after(&self) -> Duration {
        let measured = self.round_trip.map_or(Duration::ZERO, |round_trip| round_trip * 4);
        measured.clamp(self.config.resend_min, self.config.resend_max)
    }

    pub(super) fn resend_overdue(&mut self, now: Now, desired: &impl DesiredState) {
        let after = self.resend_after();
        let last_heard = self.last_heard;
        let overdue = |sent: &InFlight| !sent.answered && sent.overdue_at(last_heard, after) <= now;
        self.resend(now, overdue, desired);
    }

    /// The node applies in order: what was sent before a reported object and is not reported is lost.
    pub(super) fn resend_overtaken(
        &mut self,
        now: Now,
        newest: Option<u64>,
        named: &HashSet<Uid>,
        desired: &impl DesiredState,
    ) {
        let Some(newest) = newest else { return };
        let overtaken: HashSet<u64> = self
            .sender
            .in_flight
            .iter()
            .filter(|(uid, sent)| !sent.answered && sent.sequence < newest && !named.contains(*uid))
            .map(|(_, sent)| sent.sequence)
            .collect();
        if !overtaken.is_empty() {
            self.resend(now, |sent| overtaken.contains(&sent.sequence), desired);
        }
    }

    fn resend(&mut self, now: Now, lost: impl Fn(&InFlight) -> bool, desired: &impl DesiredState) {
        let uids: Vec<Uid> =
            self.sender.in_flight.iter().filter(|(_, sent)| lost(sent)).map(|(uid, _)| uid.clone()).collect();
        for uid in uids {
            self.sender.done(&uid);
            self.counters.resent += 1;
            let trouble = self.trouble.entry(uid.clone()).or_default();
            trouble.attempts = trouble.attempts.saturating_add(1);
            trouble.retry_at = now;
            self.reconsider(now, &uid, desired);
        }
    }
}

fn desired_key(out: &Outgoing) -> ObjectKey {
    out.resource.key(&out.namespace, &out.name)
}

#[cfg(test)]
mod tests;
