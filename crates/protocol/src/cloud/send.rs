//! Loads queued objects, packs them into frames, and resends those whose reports are missing.

use std::collections::HashMap;
use std::sync::Arc;

use crate::body::Body;
use crate::change::Uid;
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::frame::{Down, ObjectsText, Patches};
use crate::message::Outgoing;
use crate::patch::Patch;
use crate::timing::{Now, backoff};
use edgesync_object::{Resource, ResourceVersion, Scope, pluralize, split_api_version};

use super::desired::{Desired, DesiredState};
use super::parts::{PartNeed, Progress, Unfinished};
use super::queue::{Action, Lane};
use super::sender::{Departed, FRAME_OVERHEAD, Form, Ready};
use super::{CloudEffect, CloudMachine, LoadRequest, Loaded, PeerLimits, Phase, Record};

impl CloudMachine {
    /// Returns the lane of an object, by the size known before it is loaded.
    pub(super) fn lane(&self, uid: &Uid, action: Action, desired: &impl DesiredState) -> Lane {
        let max_frame = match &self.phase {
            Phase::Live { limits, .. } => limits.max_frame,
            _ => self.settings.config.max_frame as usize,
        };
        if size(uid, action, desired) + FRAME_OVERHEAD > max_frame { Lane::Large } else { Lane::Small }
    }

    /// Takes the next objects off the queue and requests their bodies: small ones up to one frame,
    /// large ones singly.
    pub(super) fn next_load(&mut self, desired: &impl DesiredState) -> Option<CloudEffect> {
        let Phase::Live { limits, .. } = self.phase else { return None };
        self.take_up_begun(desired);
        self.load(Lane::Small, limits.max_frame, desired).or_else(|| self.load(Lane::Large, 0, desired))
    }

    /// Takes up the message in parts that the last session has begun, if the node holds a part of
    /// it and it is worth completing.
    fn take_up_begun(&mut self, desired: &impl DesiredState) {
        if self.sender.is_preparing(Lane::Large) {
            return;
        }
        let Some(begun) = self.sender.transfer.begun() else { return };
        if !self.queue.is_queued(&begun.uid) || self.is_outranked(&begun.uid, desired) {
            return;
        }
        let latest = desired.get(&begun.uid).filter(|_| self.is_useful(&begun, desired));
        match latest.filter(|latest| begun.is_continued(Some(latest))) {
            Some(latest) => {
                self.queue.remove(&begun.uid);
                self.metered.take_large(latest.urgency, true);
                self.sender.prepare(&begun.uid, latest.object);
                self.sender.take_up_begun();
            }
            None => drop(self.sender.transfer.take_begun()),
        }
    }

    /// Returns the next object of a lane. Of the large ones, first the one that the node holds a
    /// part of: another one would replace that part. If this replica has to catch up before it may
    /// send that object, the others wait. `taken` are the number and the bytes of the messages that
    /// share its frame.
    fn next_queued(
        &self,
        lane: Lane,
        taken: (usize, usize),
        desired: &impl DesiredState,
    ) -> Option<(Uid, Action)> {
        if self.metered.is_metered() && lane == Lane::Small {
            return self.next_small(taken.0, taken.1);
        }
        if lane == Lane::Large
            && let Some((uid, _)) = self.sender.transfer.partial()
            && !self.is_outranked(uid, desired)
        {
            if let Some(action) = self.queue.in_lane(uid, lane) {
                return Some((uid.clone(), action));
            }
            if self.view.is_awaited() {
                return None;
            }
        }
        self.queue.first(lane)
    }

    fn load(&mut self, lane: Lane, most: usize, desired: &impl DesiredState) -> Option<CloudEffect> {
        // On a metered link, messages that the credit does not suffice for hold up no smaller ones.
        let left = self.metered.left().filter(|_| lane == Lane::Small);
        let is_held_up = left.is_some_and(|left| !self.sender.is_loading(lane) && !self.sender.fits(left));
        if self.sender.is_preparing(lane) && !is_held_up {
            return None;
        }
        let (_, limits) = self.phase.live()?;
        let config = &self.settings.config;
        let (max_objects, max_window) = (config.frame_objects, config.window_objects);
        let room = config.window_bytes.saturating_sub(self.sender.window(lane));
        let is_idle = self.sender.window(lane) == 0;
        let (mut puts, mut taken, mut bytes) = (Vec::new(), Vec::new(), 0);
        while taken.len() < max_objects && self.sender.has_room(max_window) {
            let Some((uid, action)) = self.next_queued(lane, (taken.len(), bytes), desired) else { break };
            let size = size(&uid, action, desired);
            // One object may be in flight alone, whatever its size.
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
                if lane == Lane::Large {
                    self.metered.take_large(latest.urgency, is_first);
                }
                let base = self.base_of(&uid, &latest, limits, desired);
                puts.push(LoadRequest { uid: uid.clone(), version: latest.version, base });
            }
            self.sender.prepare(&uid, object);
            taken.push((uid, action));
        }
        if puts.is_empty() {
            self.prepare(self.last_received, taken, Vec::new(), desired);
            return None;
        }
        let token = self.sender.begin_load(lane, taken);
        Some(CloudEffect::Load { token, objects: puts })
    }

    /// Handles the bodies of a [`CloudEffect::Load`]. A missing one is retried later, unless it is
    /// no longer desired.
    pub fn loaded(&mut self, now: Now, token: u64, bodies: Vec<Loaded>, desired: &impl DesiredState) {
        if let Some(objects) = self.sender.end_load(token) {
            self.prepare(now, objects, bodies, desired);
        }
    }

    /// Builds the messages of objects taken off the queue.
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
            if planted(Fault::DeleteAndResend)
                && action == Action::Put
                && let Some(out) = self.removal(&uid, desired)
                && let Some(object) = self.object(&uid, desired)
            {
                self.sender.make_ready_too(out, object);
            }
            let (out, patch) = match (action, bodies.remove(&uid)) {
                (Action::Delete, _) => (self.removal(&uid, desired), None),
                (Action::Put, Some(loaded)) => self.put(loaded, limits, desired),
                (Action::Put, None) => (None, None),
            };
            let is_first = !self.sender.is_preparing(Lane::Large);
            let lane = self.sender.make_ready(&uid, out, patch, limits.max_frame);
            // Its text may be larger than estimated.
            if lane == Some(Lane::Large)
                && let Some(latest) = desired.get(&uid)
            {
                self.metered.take_large(latest.urgency, is_first);
            }
            if lane.is_none() {
                if self.needed(&uid, desired).is_some() {
                    self.deliveries.delay(&uid, now + self.settings.config.resend_min);
                }
                self.drop_prepared(now, &uid, desired);
            }
        }
    }

    /// Returns the message with an object, and the patch that is sent instead of it.
    fn put(
        &mut self,
        loaded: Loaded,
        limits: PeerLimits,
        desired: &impl DesiredState,
    ) -> (Option<Outgoing>, Option<Arc<Patch>>) {
        let Some(latest) = desired.get(&loaded.uid) else { return (None, None) };
        // The desired version has changed since the body was requested.
        if latest.is_exact && latest.version != loaded.version {
            return (None, None);
        }
        let patch = self.usable_patch(&loaded, &latest, limits, desired);
        let Loaded { uid, version, body, .. } = loaded;
        if latest.version.is_older_than(&version) {
            self.deliveries.send_ahead(&uid, &version);
        }
        let held = self.ledger.get(&uid, desired).map(|record| record.version);
        // The node has reported it meanwhile, or the source has gone back to it, and the change of
        // the desired state follows.
        let is_held = held.as_ref() == Some(&version);
        #[cfg(any(test, feature = "simulation"))]
        let is_held = is_held && !planted(Fault::HeldVersionSent);
        if is_held {
            return (None, None);
        }
        let mut out = outgoing(&uid, version, &latest, body);
        let replaced = match held {
            Some(held) => Some(held),
            None => self.ledger.replaced_under(&latest.object.key(), desired),
        };
        out.supersedes = replaced.filter(|replaced| out.version.is_older_than(replaced));
        (Some(out), patch)
    }

    fn removal(&self, uid: &Uid, desired: &impl DesiredState) -> Option<Outgoing> {
        self.ledger.get(uid, desired).map(|record| removal(uid, &record))
    }

    /// Returns the next frame with objects or with a part of a large one, in turn.
    pub(super) fn next_objects(&mut self, now: Now, desired: &impl DesiredState) -> Option<Down> {
        let Phase::Live { session, limits } = &self.phase else { return None };
        let (session, limits) = (session.clone(), *limits);
        // On a metered link, parts follow all messages that are ready.
        if self.sender.take_turn(false)
            && !self.metered.is_metered()
            && let Some(part) = self.next_part(now, &session, limits, desired)
        {
            return Some(part);
        }
        self.sender.take_turn(true);
        let receipt = self.pacer.next_frame();
        let patches = self.next_messages(now, Form::Patch, limits, desired);
        if !patches.is_empty() {
            self.sent(now, patches.iter().map(Ready::len).sum(), patches.len());
            let patches = patches.into_iter().filter_map(|ready| ready.patch).collect();
            return Some(Down::Patches(Patches { session, receipt, patches }));
        }
        let messages = self.next_messages(now, Form::Whole, limits, desired);
        if messages.is_empty() {
            return self.next_part(now, &session, limits, desired);
        }
        self.sent(now, messages.iter().map(Ready::len).sum(), messages.len());
        let messages = messages.into_iter().map(|ready| ready.text).collect();
        Some(Down::Objects(ObjectsText { session, receipt, messages }))
    }

    /// Counts the next frame, with this number of messages of `bytes` bytes, as sent.
    fn sent(&mut self, now: Now, bytes: usize, messages: usize) {
        self.metered.on_sent(self.pacer.next_frame(), FRAME_OVERHEAD + bytes + messages);
        self.pacer.on_sent(now, &self.settings.config, bytes);
    }

    fn next_messages(
        &mut self,
        now: Now,
        form: Form,
        limits: PeerLimits,
        desired: &impl DesiredState,
    ) -> Vec<Ready> {
        if let Some(left) = self.metered.left() {
            self.drop_obsolete(now, desired);
            self.sender.bring_forward(left);
        }
        let mut messages: Vec<Ready> = Vec::new();
        let mut bytes = FRAME_OVERHEAD;
        while let Some(ready) = self.sender.first_ready(form) {
            let uid = ready.out.uid.clone();
            if self.is_obsolete(ready, desired) {
                self.sender.take_ready(form);
                self.drop_prepared(now, &uid, desired);
                continue;
            }
            let Some(capacity) = self.pacer.capacity(&self.settings.config) else { break };
            let alone = self.deliveries.is_suspect(&uid);
            let length = bytes + ready.len() + 1;
            let full = messages.len() >= self.settings.config.frame_objects
                || length > limits.max_frame
                || self.metered.left().is_some_and(|left| length > left)
                || (!messages.is_empty() && (alone || length > capacity));
            if full {
                break;
            }
            let Some(ready) = self.sender.take_ready(form) else { break };
            bytes = length;
            self.mark_sent(ready.departed(), Lane::Small, ready.len());
            messages.push(ready);
            if alone {
                break;
            }
        }
        messages
    }

    /// Returns whether the message is obsolete: the desired state has changed since it was
    /// prepared.
    fn is_obsolete(&self, ready: &Ready, desired: &impl DesiredState) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::DeleteAndResend) {
            return false;
        }
        let uid = &ready.out.uid;
        match ready.action() {
            Action::Put => {
                desired.get(uid).is_none_or(|latest| latest.is_exact && latest.version != ready.out.version)
            }
            Action::Delete => desired.get(uid).is_some() || self.ledger.get(uid, desired).is_none(),
        }
    }

    /// Drops the obsolete messages among those that are ready: they may wait for a credit.
    fn drop_obsolete(&mut self, now: Now, desired: &impl DesiredState) {
        let obsolete = self.sender.ready().filter(|ready| self.is_obsolete(ready, desired));
        let obsolete: Vec<Uid> = obsolete.map(|ready| ready.out.uid.clone()).collect();
        for uid in &obsolete {
            self.sender.remove_ready(uid);
            self.drop_prepared(now, uid, desired);
        }
    }

    fn drop_prepared(&mut self, now: Now, uid: &Uid, desired: &impl DesiredState) {
        self.sender.drop_prepared(uid);
        self.reconsider(now, uid, desired);
    }

    /// Records a message as sent with the next frame.
    fn mark_sent(&mut self, sent: Departed, lane: Lane, bytes: usize) {
        match sent.action {
            Action::Put => self.counters.sent += 1,
            Action::Delete => self.counters.removals_sent += 1,
        }
        if let Some(patch) = &sent.patch {
            self.counters.patches_sent += 1;
            self.counters.patch_bytes_saved += patch.saved();
        }
        let frame = self.pacer.next_frame();
        let first = self.deliveries.first_frame(&sent.uid, &sent.version);
        self.sender.mark_sent(sent, lane, bytes, frame, first.unwrap_or(frame));
    }

    fn next_part(
        &mut self,
        now: Now,
        session: &str,
        limits: PeerLimits,
        desired: &impl DesiredState,
    ) -> Option<Down> {
        if self.sender.is_loading(Lane::Small) {
            // Small objects arrive soon and may be faster to send.
            return None;
        }
        let mut capacity = self.pacer.capacity(&self.settings.config)?;
        self.drop_outrun(now, desired);
        if self.sender.next_large().is_some_and(|ready| self.is_obsolete(ready, desired)) {
            if let Some(ready) = self.sender.take_large() {
                self.drop_prepared(now, &ready.out.uid, desired);
            }
            return None;
        }
        if let Some(left) = self.metered.left() {
            capacity = capacity.min(PartNeed::most(left)?);
        }
        if let Some(ready) = self.sender.take_large() {
            self.sender.transfer.begin(ready, self.ledger.epoch());
        }
        let (part, whole) = self.sender.transfer.cut(session, limits, self.pacer.next_frame(), capacity)?;
        if let Some((sent, bytes)) = whole {
            self.mark_sent(sent, Lane::Large, bytes);
        }
        if self.metered.is_metered() {
            self.metered.on_sent(part.receipt, FRAME_OVERHEAD + PartNeed::written(&part.data));
        }
        self.pacer.on_sent(now, &self.settings.config, part.data.len());
        Some(Down::Part(part))
    }

    /// Stops sending a message in parts that is not worth completing any more.
    fn drop_outrun(&mut self, now: Now, desired: &impl DesiredState) {
        let Some(sending) = self.sender.transfer.sending() else { return };
        let latest = desired.get(&sending.uid).filter(|_| self.is_useful(&sending, desired));
        if !sending.is_continued(latest.as_ref()) {
            self.sender.transfer.abort(&sending.uid);
            self.drop_prepared(now, &sending.uid, desired);
        }
    }

    /// Returns whether the node does not hold what a message would bring, as after a late report,
    /// and still holds the base of a patch.
    fn is_useful(&self, message: &Unfinished, desired: &impl DesiredState) -> bool {
        let held = self.ledger.get(&message.uid, desired).map(|record| record.version);
        held.as_ref() != Some(&message.version) && (message.base.is_none() || message.base == held)
    }

    /// Handles the node's progress on a large object; `receipt` is the acknowledged frame.
    pub(super) fn receiving(
        &mut self,
        now: Now,
        uid: &Uid,
        received: Option<u64>,
        receipt: u64,
        desired: &impl DesiredState,
    ) {
        match self.sender.transfer.received(uid, received, receipt) {
            Progress::Continues => {}
            Progress::Resumed => self.counters.resent += 1,
            Progress::Lost => self.send_again(now, vec![uid.clone()], desired),
        }
    }

    /// Resends after a timeout: one message, whose report reveals the fate of the others. A new
    /// message serves as well.
    pub(super) fn resend_overdue(&mut self, now: Now, desired: &impl DesiredState) {
        if self.sender.is_idle() {
            return self.pacer.on_idle();
        }
        if !self.pacer.has_timed_out(now, &self.settings.config) {
            return;
        }
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::NeverAgain) {
            return;
        }
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::LineUnknown) {
            let all = self.sender.unanswered_before(u64::MAX);
            return self.send_again(now, all, desired);
        }
        if self.ledger.is_behind() {
            // The records have to be read again first, and that waits for all objects in flight.
            for uid in self.sender.unanswered_before(u64::MAX) {
                self.schedule_resend(now, now, &uid, desired);
            }
            self.pacer.forget_in_flight();
        }
        let has_failed_twice = self.pacer.timeouts() > 1;
        let has_more = self.sender.has_ready();
        if self.sender.transfer.is_sending() {
            // Without an answer about the missing part, all unacknowledged parts are sent again.
            if has_failed_twice {
                self.sender.transfer.restart();
                self.counters.resent += 1;
            }
        } else if (!has_more || has_failed_twice)
            && let Some(oldest) = self.sender.unanswered_before(u64::MAX).first()
        {
            self.schedule_resend(now, now, oldest, desired);
        }
        self.pacer.probe();
    }

    /// Resends lost objects: at once the first time, then with growing delays.
    pub(super) fn send_again(&mut self, now: Now, lost: Vec<Uid>, desired: &impl DesiredState) {
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::NeverAgain) {
            return;
        }
        let (min, max) = (self.settings.config.resend_min, self.settings.config.resend_max);
        for uid in lost {
            let attempts = self.deliveries.attempts(&uid);
            let wait = attempts.checked_sub(1).map(|attempt| backoff(min, max, attempt, u64::MAX));
            self.schedule_resend(now, now + wait.unwrap_or_default(), &uid, desired);
        }
    }

    /// Schedules the resending of an object in flight.
    fn schedule_resend(&mut self, now: Now, at: Now, uid: &Uid, desired: &impl DesiredState) {
        self.counters.resent += 1;
        self.deliveries.lose(uid, self.sender.first_sent(uid), at);
        self.sender.transfer.lose(uid);
        self.sender.done(uid);
        self.reconsider(now, uid, desired);
    }
}

/// Returns the approximate size of a message.
fn size(uid: &Uid, action: Action, desired: &impl DesiredState) -> usize {
    if action == Action::Put { desired.get(uid).map_or(0, |latest| latest.size) } else { 0 }
}

/// Returns the source of a message with an object.
fn outgoing(uid: &Uid, version: ResourceVersion, desired: &Desired, body: Body) -> Outgoing {
    Outgoing {
        uid: uid.clone(),
        version,
        supersedes: None,
        resource: desired.resource.clone(),
        namespace: desired.object.namespace.clone(),
        name: desired.object.name.clone(),
        body: Some(body),
    }
}

/// Returns the source of a removal message.
fn removal(uid: &Uid, record: &Record) -> Outgoing {
    let object = &record.object;
    let (group, version) = split_api_version(&object.api_version);
    let scope = if object.namespace.is_empty() { Scope::Cluster } else { Scope::Namespaced };
    Outgoing {
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
    }
}

#[cfg(test)]
mod tests;
