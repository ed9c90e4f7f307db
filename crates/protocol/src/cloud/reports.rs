//! Turns reports of the node into ObjectSync records and acknowledgements.

use std::sync::Arc;

use crate::change::{Rejected, Uid};
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::frame::{Item, Report};
use crate::message::clip;
use crate::timing::Now;
use edgesync_object::ResourceVersion;

use super::desired::DesiredState;
use super::ledger::LedgerFacts;
use super::queue::Action;
use super::quota::{Allowance, KnownObjects};
use super::record::Step;
use super::{CloudEffect, CloudMachine, CloudNotice, Phase, Record, RecordBatch, Refusal};

/// The longest stored rejection message, in bytes: one is kept per object.
const MAX_REASON: usize = 256;

impl CloudMachine {
    /// Handles a report of the current session.
    pub(super) fn take_report(&mut self, now: Now, report: Report, desired: &impl DesiredState) {
        self.counters.reports += 1;
        self.last_received = now;
        self.recorder.owe_confirm();
        if report.to < self.recorder.reached() {
            // Later reports cover the same changes: this one may be outdated.
            return self.flush_records(desired);
        }
        let mut newest = None;
        for item in &report.objects {
            newest = newest.max(self.sender.answered(&item.uid, Some(&item.resource_version)));
        }
        for uid in &report.removed {
            newest = newest.max(self.sender.answered(uid, None));
        }
        let (mut is_complete, mut room) = (true, Allowance::default());
        for item in report.objects {
            self.counters.reported += 1;
            if !self.admits(&item.uid, &mut room, desired) {
                return self.refuse_excess();
            }
            is_complete &= self.take_item(item, desired);
        }
        for uid in report.removed {
            if !self.recorder.unknown.may_be_recorded(&uid, &self.known(desired)) {
                continue;
            }
            if !self.admits(&uid, &mut room, desired) {
                return self.refuse_excess();
            }
            self.recorder.remove(uid);
        }
        if is_complete {
            self.recorder.reach(report.from, report.to);
        }
        for rejected in report.rejected {
            self.take_rejected(now, rejected, desired);
        }
        for unpatched in report.unpatched {
            self.take_unpatched(now, unpatched, desired);
        }
        if let Some(uid) = &report.receiving {
            self.receiving(now, uid, report.received, report.receipt, desired);
        }
        self.take_receipt(now, report.receipt, report.receiving.is_some(), newest, desired);
        self.flush_records(desired);
    }

    pub(super) fn known<'a, D: DesiredState>(&'a self, desired: &'a D) -> KnownObjects<'a, D> {
        let max_unknown = self.settings.config.max_unknown;
        KnownObjects { desired, ledger: &self.ledger, sender: &self.sender, max_unknown }
    }

    /// Returns whether an object that the node names may be recorded.
    pub(super) fn admits(&mut self, uid: &Uid, room: &mut Allowance, desired: &impl DesiredState) -> bool {
        let max_unknown = self.settings.config.max_unknown;
        let known = KnownObjects { desired, ledger: &self.ledger, sender: &self.sender, max_unknown };
        self.recorder.unknown.admit(uid, room, &known)
    }

    /// Handles the acknowledgement in a report.
    ///
    /// The node applies frames in order, so an unreported object of an acknowledged or earlier
    /// frame is lost. Without a receipt, the acknowledged frame follows from the reported objects.
    /// A part is acknowledged on arrival: earlier frames may still be in commit.
    fn take_receipt(
        &mut self,
        now: Now,
        receipt: u64,
        is_part: bool,
        newest: Option<u64>,
        desired: &impl DesiredState,
    ) {
        let (answered, lost) = match newest {
            _ if receipt > 0 && receipt < self.pacer.next_frame() => (receipt, receipt + 1),
            Some(newest) => (newest, newest),
            // A report without objects does not prove progress on sent frames.
            None => return,
        };
        self.pacer.on_ack(now, &self.settings.config, answered);
        if is_part {
            return;
        }
        let lost = self.sender.unanswered_before(lost);
        self.send_again(now, lost, desired);
    }

    /// Records one item. Returns false if its object is no longer known: the report then counts as
    /// a gap, and the node reports again with names.
    pub(super) fn take_item(&mut self, item: Item, desired: &impl DesiredState) -> bool {
        let Item { uid, resource_version, object } = item;
        if self.settings.issued.is_lost(&resource_version) {
            self.store_went_back(&resource_version);
        }
        let Some(object) = object.map(Arc::new).or_else(|| self.object(&uid, desired)) else { return false };
        self.recorder.put(uid, Record { version: resource_version, object });
        true
    }

    /// Handles a version that this store issued before a rollback. The current incarnation may
    /// already account for it: no copy of a node's database demands another one.
    fn store_went_back(&mut self, version: &ResourceVersion) {
        self.suspect_rollback();
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::ClaimsAreNews) {
            return self.output.effect(CloudEffect::RollbackClaimed);
        }
        if self.settings.issued.is_news(version) {
            self.output.report_loss();
        }
    }

    fn take_rejected(&mut self, now: Now, rejected: Rejected, desired: &impl DesiredState) {
        self.counters.rejected += 1;
        let Rejected { uid, resource_version: version, reason, message, .. } = rejected;
        let sent = self.sender.sent(&uid).map(|(action, version)| (action, version.clone()));
        if sent.as_ref().is_some_and(|(_, sent)| !version.as_str().is_empty() && *sent != version) {
            // The rejection concerns another version than the one in flight.
            return;
        }
        if sent.is_none() && self.sender.transfer.is_about(&uid, &version) {
            // The node cannot keep it.
            self.sender.transfer.abort(&uid);
            self.sender.drop_prepared(&uid);
        }
        self.sender.done(&uid);
        let (action, version) = sent.unwrap_or((Action::Put, version));
        if !self.is_still_needed(&uid, action, &version, desired) {
            self.deliveries.forget(&uid);
            return self.reconsider(now, &uid, desired);
        }
        self.queue.remove(&uid);
        // The node has dropped what it held, and nothing is pending until the retry.
        self.sender.transfer.forget_partial(&uid);
        let message = clip(&message, MAX_REASON).to_owned();
        let refusal = Refusal { version, reason, message: message.clone() };
        let config = &self.settings.config;
        let delays = (config.reject_retry_min, config.reject_retry_max);
        self.release_replaced(now, &uid, desired);
        if self.deliveries.refuse(now, &uid, refusal, delays) {
            let object = self.object(&uid, desired);
            self.output.notice(CloudNotice::Rejected { uid, object, reason, message });
        }
    }

    /// Returns whether the action on an object is still needed in this version.
    fn is_still_needed(
        &self,
        uid: &Uid,
        action: Action,
        version: &ResourceVersion,
        desired: &impl DesiredState,
    ) -> bool {
        let is_needed = self.needed(uid, desired) == Some(action);
        let is_target = || {
            let latest = desired.get(uid);
            latest.is_some_and(|latest| self.deliveries.target(uid, &latest.version) == version)
        };
        is_needed && (action == Action::Delete || is_target())
    }

    /// Passes the next batch to the store if it is idle, or sends an owed Confirm.
    pub(super) fn flush_records(&mut self, desired: &impl DesiredState) {
        if self.recorder.is_storing() {
            if let Some(batch) = self.recorder.retry() {
                self.output.effect(CloudEffect::Record(batch));
            }
            return;
        }
        if self.is_opening() {
            return self.request_records();
        }
        match self.recorder.next_step(&self.ledger, desired) {
            Step::Wait => {}
            Step::Settled => {
                let uids = self.sender.settled(&self.ledger, desired);
                self.release(self.last_received, &uids, desired);
                if self.recorder.take_owed_confirm() {
                    self.owe_confirm();
                }
                self.advance_connecting(desired);
            }
            Step::Store(batch) => {
                #[cfg(any(test, feature = "simulation"))]
                let token = batch.token;
                self.output.effect(CloudEffect::Record(batch));
                #[cfg(any(test, feature = "simulation"))]
                if planted(Fault::RecordBeforeStored) {
                    self.recorded(self.recorder.last_woken(), token, true, 0, desired);
                }
            }
        }
    }

    /// Handles the store's answer to a batch.
    pub fn recorded(&mut self, now: Now, token: u64, stored: bool, random: u64, desired: &impl DesiredState) {
        let Some(batch) = self.recorder.answered(now, token, stored, random) else { return };
        let RecordBatch { epoch, confirmed, accepted, tally, epochs, reset, put, remove, .. } = batch;
        remove.iter().for_each(|uid| self.guard.release(uid));
        let uids: Vec<Uid> = put.iter().map(|(uid, _)| uid).chain(&remove).cloned().collect();
        let facts = LedgerFacts { epoch: Some(epoch), confirmed, accepted, tally, epochs };
        self.ledger.store(facts, reset, put, remove, desired);
        self.release(now, &uids, desired);
        if self.recorder.take_owed_confirm() || !uids.is_empty() {
            self.owe_confirm();
        }
        self.flush_records(desired);
        self.close_ledger();
    }

    /// Ends the flight of objects that have been answered.
    fn release(&mut self, now: Now, uids: &[Uid], desired: &impl DesiredState) {
        for uid in uids {
            let record = self.ledger.get(uid, desired);
            self.sender.settle(uid, record.as_ref());
            self.reconsider(now, uid, desired);
        }
    }

    /// Continues the handshake once everything gathered is stored.
    pub(super) fn advance_connecting(&mut self, desired: &impl DesiredState) {
        if matches!(self.phase, Phase::Connecting(_)) && self.recorder.is_idle() {
            self.compare(desired);
        }
    }
}
