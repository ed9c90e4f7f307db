//! Reconciles desired and recorded state: computes each needed action and whether it is allowed
//! now.

use std::sync::Arc;

use crate::change::{ObjectRef, Uid};
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::timing::Now;
use edgesync_object::Relation;
use edgesync_object::urgency::Urgency;

use super::desired::{Desired, DesiredState};
use super::guard::Verdict;
use super::queue::{Action, Entry};
use super::{CloudEffect, CloudMachine, CloudNotice, Reached};

/// Replaces the accepted incarnation of a node that has claimed a rollback of the store: none is
/// accepted.
const DOUBTED: &str = "doubted";

impl CloudMachine {
    /// Handles a change of the desired object of a UID; `before` is the previous one.
    pub fn desire(&mut self, now: Now, uid: &Uid, before: Option<&Desired>, desired: &impl DesiredState) {
        self.view.note_change(uid, before);
        self.ledger.note_change(uid, before.map(Desired::record), desired);
        let latest = desired.get(uid);
        self.deliveries.note_change(uid, before, latest.as_ref());
        if latest.is_some() {
            self.guard.release(uid);
        } else if self.is_live() {
            self.ledger.note_leftover(uid, desired);
        }
        self.reconsider(now, uid, desired);
    }

    /// Stops tracking single changes of the desired state, when they exceed memory: work in flight
    /// ends, then the records are read and compared again.
    pub fn fall_behind(&mut self) {
        if self.is_live() && self.ledger.is_open() {
            self.ledger.fall_behind();
            self.queue.clear();
        }
    }

    /// Closes a ledger that is behind, once it is idle, and requests its records.
    pub(super) fn read_again(&mut self) {
        if !self.ledger.is_behind() || !self.is_live() || !self.recorder.is_idle() {
            return;
        }
        // Messages that wait for a credit may stay for days.
        let waits = self.sender.len() == self.sender.unsent() && self.without_credit() > 0;
        if self.sender.len() == 0 || waits {
            if waits || self.view.is_shared() {
                return self.restart_session();
            }
            self.ledger.close();
            self.request_records();
        }
    }

    /// Returns the action that a UID needs.
    pub(super) fn needed(&self, uid: &Uid, desired: &impl DesiredState) -> Option<Action> {
        match (desired.get(uid), self.ledger.get(uid, desired)) {
            (Some(latest), Some(record)) => {
                let target = self.deliveries.target(uid, &latest.version);
                (target.relation(&record.version) != Relation::Equal).then_some(Action::Put)
            }
            (Some(_), None) => Some(Action::Put),
            (None, Some(record)) => {
                let is_unread = desired.is_unread(&record.object);
                #[cfg(any(test, feature = "simulation"))]
                let is_unread = is_unread && !planted(Fault::UnreadIsGone);
                (!self.guard.holds(uid) && !is_unread).then_some(Action::Delete)
            }
            (None, None) => None,
        }
    }

    /// Queues a UID or removes it from the queue, by its current state.
    pub(super) fn reconsider(&mut self, now: Now, uid: &Uid, desired: &impl DesiredState) {
        self.schedule(now, uid, desired);
        if self.metered.is_metered() {
            self.release_replaced(now, uid, desired);
        }
    }

    fn schedule(&mut self, now: Now, uid: &Uid, desired: &impl DesiredState) {
        if !self.is_live() || self.ledger.is_behind() || self.sender.is_busy_with(uid) {
            return;
        }
        let needed = self.needed(uid, desired);
        if needed != Some(Action::Put) {
            self.sender.transfer.forget_partial(uid);
        }
        let Some(action) = needed else {
            self.queue.remove(uid);
            return self.deliveries.forget(uid);
        };
        if self.deliveries.is_delayed(uid, now) {
            return self.queue.remove(uid);
        }
        if !self.view.permits(uid, &self.ledger, desired) || self.is_behind_partial(uid, desired) {
            self.deliveries.suspend(uid);
            self.request_catch_up();
            return self.queue.remove(uid);
        }
        let Some(object) = self.object(uid, desired) else { return };
        let lane = self.lane(uid, action, desired);
        // Removals are small, and have no urgency of their own but that of a replacement.
        let latest = desired.get(uid).filter(|_| action == Action::Put);
        let replacing = || self.queue.urgency_named(&object.key()).filter(|_| !self.metered.is_metered());
        let (urgency, size) = match latest {
            Some(latest) => (latest.urgency, latest.size),
            None => (replacing().unwrap_or_default(), 0),
        };
        if action == Action::Put
            && let Err(reason) = self.metered.admits(urgency, size)
        {
            self.queue.hold(uid, reason, object.clone());
            return self.delay_replaced(&object, uid, desired);
        }
        if action == Action::Delete
            && let Some(replacement) = self.replacement(uid, &object)
        {
            return self.queue.delay(uid, object, replacement);
        }
        let size = if self.metered.is_metered() { size } else { 0 };
        self.queue.insert(uid, Entry { object: object.clone(), action, lane, urgency, size });
        if action == Action::Put && (self.metered.is_metered() || urgency != Urgency::Normal) {
            self.delay_replaced(&object, uid, desired);
        }
    }

    /// Delays the removal of the object that this one replaces, on a metered link until it has
    /// arrived, else to its own turn.
    fn delay_replaced(&mut self, object: &ObjectRef, uid: &Uid, desired: &impl DesiredState) {
        let Some(replaced) = self.ledger.leftover(&object.key()).cloned() else { return };
        if !self.queue.is_queued(&replaced) || desired.get(&replaced).is_some() {
            return;
        }
        match self.queue.urgency_named(&object.key()) {
            Some(urgency) if !self.metered.is_metered() => self.queue.set_urgency(&replaced, urgency),
            _ => self.queue.delay(&replaced, Arc::new(object.clone()), uid.clone()),
        }
    }

    /// Returns whether an item of an upload may be refused because its object is not placed on the
    /// node; the session has to be live. If not, another replica may have sent the object, and this
    /// one may not have received it yet: it catches up, and the node sends the upload again.
    pub fn may_refuse(&mut self) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::RefuseWhileBehind) {
            return true;
        }
        self.request_catch_up();
        self.view.is_current()
    }

    fn request_catch_up(&mut self) {
        if let Some(token) = self.view.request() {
            self.output.effect(CloudEffect::CatchUp { token });
        }
    }

    /// Returns whether another replica has begun to send a newer version than this one knows.
    fn is_behind_partial(&self, uid: &Uid, desired: &impl DesiredState) -> bool {
        let Some((_, version)) = self.sender.transfer.partial().filter(|(held, _)| *held == uid) else {
            return false;
        };
        let is_older = |latest: Desired| latest.version.is_older_than(version);
        !self.view.is_current() && desired.get(uid).is_some_and(is_older)
    }

    pub(super) fn object(&self, uid: &Uid, desired: &impl DesiredState) -> Option<Arc<ObjectRef>> {
        desired
            .get(uid)
            .map(|desired| desired.object)
            .or_else(|| self.ledger.get(uid, desired).map(|record| record.object))
            .or_else(|| self.sender.object(uid))
    }

    /// Queues the whole difference between desired and recorded state.
    pub(super) fn reconsider_all(&mut self, now: Now, desired: &impl DesiredState) {
        self.queue.clear();
        let mut uids: Vec<Uid> = self.ledger.differences().map(|(uid, _)| uid.clone()).collect();
        // The node may hold a part of an object that is no longer desired.
        uids.extend(self.sender.transfer.partial().map(|(uid, _)| uid.clone()));
        for uid in &uids {
            self.reconsider(now, uid, desired);
        }
    }

    /// Handles a claim of the node that the store was rolled back. It is the claim of one node, so
    /// it affects only its own removals, even across a restart of the cloud.
    pub(super) fn suspect_rollback(&mut self) {
        self.guard.suspect(true);
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::DoubtForgotten) {
            return;
        }
        self.recorder.accept(&DOUBTED.into());
    }

    /// Lets the guard decide on the removals that the records demand. `incarnation` is
    /// the one in the Hello.
    pub(super) fn check_removals(&mut self, incarnation: Option<&str>, desired: &impl DesiredState) {
        match self.guard.check(&self.settings, &self.ledger, incarnation, desired) {
            Verdict::Plausible => self.recorder.accept(&self.settings.incarnation),
            Verdict::Held(count) => self.output.notice(CloudNotice::DeletionsHeld { count }),
        }
    }

    /// Sends the removals that the guard holds back, and returns their number.
    pub fn confirm_deletions(&mut self, now: Now, desired: &impl DesiredState) -> u64 {
        let (held, count) = self.guard.confirm();
        self.recorder.accept(&self.settings.incarnation);
        for uid in &held {
            self.reconsider(now, uid, desired);
        }
        self.flush_records(desired);
        count
    }

    /// Handles objects that have become readable: copies of them kept on the node may be removed
    /// now.
    pub fn reads_more(&mut self, now: Now, desired: &impl DesiredState) {
        if !self.ledger.is_behind() {
            self.deliveries.resume(now);
            self.reconsider_all(now, desired);
        }
    }

    /// Handles the answer to [`CloudEffect::CatchUp`]: the lent desired state is at least as new as
    /// the store was when the effect was polled.
    ///
    /// `reached` is the newest version that the store is known to have issued; nothing lent or
    /// loaded is newer. A held version beyond it was issued by a store that is lost.
    pub fn caught_up(&mut self, now: Now, token: u64, reached: &Reached, desired: &impl DesiredState) {
        let Some(incarnation) = self.view.catch_up(token) else { return };
        if self.ledger.differences().filter_map(|(_, record)| record).any(|record| reached.is_before(record))
        {
            self.suspect_rollback();
            self.output.report_loss();
        }
        self.check_removals(incarnation.as_deref(), desired);
        self.deliveries.resume(now);
        self.reconsider_all(now, desired);
        self.owe_confirm();
        self.flush_records(desired);
    }
}
