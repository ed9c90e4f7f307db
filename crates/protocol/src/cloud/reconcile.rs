//! Desired against recorded: what the node needs, and when it may have it.

use std::sync::Arc;

use crate::change::{ObjectRef, Uid};
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::timing::Now;
use edgesync_object::{Relation, ResourceVersion};

use super::desired::{Desired, DesiredState};
use super::guard::Verdict;
use super::queue::Action;
use super::{CloudEffect, CloudMachine, CloudNotice, Record};

/// Stands in for the incarnation under which a node's removals were found plausible, once the node has said that the store
/// went back: there is none.
const DOUBTED: &str = "doubted";

impl CloudMachine {
    /// What the node is to hold of a UID has changed: until now it was `before`.
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

    /// From now on changes of the desired state are not noted one by one, because there is no room for that: what is
    /// under way ends, then the records are read and compared again.
    pub fn fall_behind(&mut self) {
        if self.is_live() && self.ledger.is_open() {
            self.ledger.fall_behind();
            self.queue.clear();
        }
    }

    /// Gives the ledger up that is behind, once nothing needs it any more.
    pub(super) fn read_again(&mut self) {
        let is_idle = self.sender.len() == 0 && self.recorder.is_idle();
        if self.ledger.is_behind() && self.is_live() && is_idle {
            if self.view.is_shared() {
                return self.prove_again();
            }
            self.ledger.close();
            self.request_records();
        }
    }

    /// Returns what has to be done about a UID, if anything.
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

    /// Queues a UID, or takes it out of the queue, as is right now.
    pub(super) fn reconsider(&mut self, now: Now, uid: &Uid, desired: &impl DesiredState) {
        if !self.is_live() || self.ledger.is_behind() || self.sender.is_busy_with(uid) {
            return;
        }
        let Some(action) = self.needed(uid, desired) else {
            self.queue.remove(uid);
            return self.deliveries.forget(uid);
        };
        if self.deliveries.is_delayed(uid, now) {
            return self.queue.remove(uid);
        }
        if !self.view.permits(uid, &self.ledger, desired) {
            self.deliveries.suspend(uid);
            if let Some(token) = self.view.ask() {
                self.output.effect(CloudEffect::CatchUp { token });
            }
            return self.queue.remove(uid);
        }
        if let Some(object) = self.object(uid, desired) {
            let lane = self.lane(uid, action, desired);
            self.queue.insert(uid, &object, action, lane);
        }
    }

    pub(super) fn object(&self, uid: &Uid, desired: &impl DesiredState) -> Option<Arc<ObjectRef>> {
        desired
            .get(uid)
            .map(|desired| desired.object)
            .or_else(|| self.ledger.get(uid, desired).map(|record| record.object))
            .or_else(|| self.sender.object(uid))
    }

    /// Queues the whole difference between desired and recorded.
    pub(super) fn reconsider_all(&mut self, now: Now, desired: &impl DesiredState) {
        self.queue.clear();
        let different: Vec<Uid> = self.ledger.differences().map(|(uid, _)| uid.clone()).collect();
        for uid in &different {
            self.reconsider(now, uid, desired);
        }
    }

    /// The node says that the store went back. That is its own word, so it concerns its own removals, over a restart of
    /// the cloud too.
    pub(super) fn doubt(&mut self) {
        self.guard.suspect(true);
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::DoubtForgotten) {
            return;
        }
        self.recorder.accept(&DOUBTED.into());
    }

    /// Has the guard judge the removals that the records call for. `named` is the incarnation that the node knows.
    pub(super) fn judge_removals(&mut self, named: Option<&str>, desired: &impl DesiredState) {
        match self.guard.judge(&self.settings, &self.ledger, named, desired) {
            Verdict::Plausible => self.recorder.accept(&self.settings.incarnation),
            Verdict::Held(count) => self.output.notice(CloudNotice::DeletionsHeld { count }),
        }
    }

    /// Removals that the guard holds back go out. Tells how many.
    pub fn confirm_deletions(&mut self, now: Now, desired: &impl DesiredState) -> u64 {
        let (held, count) = self.guard.confirm();
        self.recorder.accept(&self.settings.incarnation);
        for uid in &held {
            self.reconsider(now, uid, desired);
        }
        self.flush_records(desired);
        count
    }

    /// Objects can be read that could not before: what the node was left of them may have to go now.
    pub fn reads_more(&mut self, now: Now, desired: &impl DesiredState) {
        if !self.ledger.is_behind() {
            self.deliveries.resume(now);
            self.reconsider_all(now, desired);
        }
    }

    /// What is lent as desired is by now at least as new as the store was when [`CloudEffect::CatchUp`] was polled.
    /// `reached` is the newest version that the store is known to have given by now: nothing that was lent or loaded is
    /// newer. What the node holds beyond it was given in a life of the store that is lost.
    pub fn caught_up(
        &mut self,
        now: Now,
        token: u64,
        reached: &ResourceVersion,
        desired: &impl DesiredState,
    ) {
        let Some(named) = self.view.catch_up(token) else { return };
        let is_lost = |record: &Record| reached.is_older_than(&record.version);
        if self.ledger.differences().filter_map(|(_, record)| record).any(is_lost) {
            self.doubt();
            self.output.report_loss();
        }
        self.judge_removals(named.as_deref(), desired);
        self.deliveries.resume(now);
        self.reconsider_all(now, desired);
        self.confirm();
        self.flush_records(desired);
    }
}
