//! Reports become ObjectSync records: gathered while the last batch is being stored, then stored in one go.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::change::{Rejected, Uid};
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::frame::{Item, Report};
use crate::message::clip;
use crate::timing::{Now, backoff};
use edgesync_object::ResourceVersion;

use super::desired::DesiredState;
use super::ledger::LedgerFacts;
use super::queue::Action;
use super::quota::{Room, Unknown};
use super::{CloudEffect, CloudMachine, CloudNotice, Phase, Record, RecordBatch, Refusal};

/// The delay after a batch that could not be stored; doubles up to a minute.
const STORE_RETRY: Duration = Duration::from_millis(500);
const STORE_RETRY_MAX: Duration = Duration::from_secs(60);

/// The most changes of records in one transaction: all nodes wait for it.
const MAX_BATCH: usize = 1024;

/// The longest reason for a rejection that is kept, in bytes: it is kept for each object.
const MAX_REASON: usize = 256;

/// What is waiting for the next batch.
#[derive(Debug, Default)]
struct Pending {
    put: HashMap<Uid, Record>,
    remove: HashSet<Uid>,
    reset: bool,
    dirty: bool,
}

/// Gathers changes of the records, one batch under way at a time.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    pending: Pending,
    /// The newest change of the node that is covered once everything gathered is stored.
    reached: u64,
    /// The same once what is being stored is.
    covered: u64,
    /// What was gathered, or is being stored, of objects that nobody knows of.
    pub(super) unknown: Unknown,
    accepted: Option<Arc<str>>,
    storing: Option<RecordBatch>,
    next_token: u64,
    retry: Option<(Now, u32)>,
    now: Now,
    /// A Confirm is owed even if nothing was to be stored.
    confirm_owed: bool,
}

impl Recorder {
    /// Starts from what a Hello says: the node's own word is the base that reports build on.
    pub(super) fn rebase(&mut self, reached: u64, accepted: Option<Arc<str>>) {
        (self.reached, self.covered) = (reached, reached);
        self.accepted = accepted;
        self.gather_anew(Pending { dirty: true, ..Pending::default() });
        self.confirm_owed = false;
    }

    /// Forgets what is being stored too: a session is over whose records nobody keeps.
    pub(super) fn forget(&mut self) {
        (self.storing, self.retry) = (None, None);
        self.give_up();
    }

    pub(super) fn reset(&mut self) {
        self.gather_anew(Pending { reset: true, dirty: true, ..Pending::default() });
    }

    /// Forgets what was gathered and is not being stored: the node will say it again.
    pub(super) fn give_up(&mut self) {
        self.gather_anew(Pending::default());
        self.confirm_owed = false;
    }

    fn gather_anew(&mut self, pending: Pending) {
        self.pending = pending;
        self.unknown.keep(self.storing.iter().flat_map(|batch| batch.put.iter().map(|(uid, _)| uid)));
    }

    /// Takes as much of what was gathered as goes into one transaction; the rest stays.
    fn next_part(&mut self) -> Pending {
        let Pending { put, remove, reset, .. } = &mut self.pending;
        if put.len() + remove.len() <= MAX_BATCH {
            self.covered = self.reached;
            return std::mem::take(&mut self.pending);
        }
        let removals: Vec<Uid> = remove.iter().take(MAX_BATCH).cloned().collect();
        let puts: Vec<Uid> = put.keys().take(MAX_BATCH - removals.len()).cloned().collect();
        Pending {
            put: puts.iter().filter_map(|uid| put.remove_entry(uid)).collect(),
            remove: removals.iter().filter_map(|uid| remove.take(uid)).collect(),
            reset: std::mem::take(reset),
            dirty: true,
        }
    }

    pub(super) fn accept(&mut self, incarnation: &Arc<str>) {
        if self.accepted.as_ref() != Some(incarnation) {
            self.accepted = Some(incarnation.clone());
            self.pending.dirty = true;
        }
    }

    pub(super) fn put(&mut self, uid: Uid, record: Record) {
        self.pending.remove.remove(&uid);
        self.pending.put.insert(uid, record);
        self.pending.dirty = true;
    }

    pub(super) fn remove(&mut self, uid: Uid) {
        self.pending.put.remove(&uid);
        self.pending.remove.insert(uid);
        self.pending.dirty = true;
    }

    /// Changes `from < revision ≤ to` are covered. After a gap nothing advances: the node reports again.
    pub(super) fn reach(&mut self, from: u64, to: u64) {
        if from <= self.reached && to > self.reached {
            self.reached = to;
            self.pending.dirty = true;
        }
    }

    pub(super) fn set_reached(&mut self, to: u64) {
        self.reached = to;
        self.pending.dirty = true;
    }

    pub(super) fn reached(&self) -> u64 {
        self.reached
    }

    pub(super) fn is_idle(&self) -> bool {
        self.storing.is_none() && !self.pending.dirty
    }

    pub(super) fn retry_at(&self) -> Option<Now> {
        self.retry.map(|(at, _)| at)
    }

    /// When the clock woke it last, or its store answered.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn looked_at(&self) -> Now {
        self.now
    }

    pub(super) fn tick(&mut self, now: Now) {
        self.now = now;
    }
}

impl CloudMachine {
    /// Takes a report of the current session.
    pub(super) fn take_report(&mut self, now: Now, report: Report, desired: &impl DesiredState) {
        self.counters.reports += 1;
        self.last_heard = now;
        self.recorder.confirm_owed = true;
        if report.to < self.recorder.reached {
            // Everything it covers was covered since: what it says of its objects may be outdated.
            return self.flush_records(desired);
        }
        let mut newest = None;
        for item in &report.objects {
            newest = newest.max(self.sender.answered(&item.uid, Some(&item.resource_version)));
        }
        for uid in &report.removed {
            newest = newest.max(self.sender.answered(uid, None));
        }
        let (mut named, mut room) = (true, Room::default());
        for item in report.objects {
            self.counters.reported += 1;
            if !self.admits(&item.uid, &mut room, desired) {
                return self.refuse_excess();
            }
            named &= self.take_item(item, desired);
        }
        for uid in report.removed {
            if !self.may_be_recorded(&uid, desired) {
                continue;
            }
            if !self.admits(&uid, &mut room, desired) {
                return self.refuse_excess();
            }
            self.recorder.remove(uid);
        }
        if named {
            self.recorder.reach(report.from, report.to);
        }
        for rejected in report.rejected {
            self.take_rejected(now, rejected, desired);
        }
        if let Some(uid) = &report.receiving {
            self.receiving(now, uid, report.received, report.receipt);
        }
        self.take_receipt(now, report.receipt, report.receiving.is_some(), newest, desired);
        self.flush_records(desired);
    }

    /// The node applies in order: what went with a frame that it has answered, or before it, and is not reported is lost.
    /// If it does not say which frame it answers, that follows from what it reports. A part is answered when it arrives:
    /// what came before it may still be applied.
    fn take_receipt(
        &mut self,
        now: Now,
        receipt: u64,
        is_part: bool,
        newest: Option<u64>,
        desired: &impl DesiredState,
    ) {
        let (answered, lost) = match newest {
            _ if receipt > 0 && receipt < self.pace.next_frame() => {
                self.pace.names_frames = true;
                (receipt, receipt + 1)
            }
            Some(newest) => (newest, newest),
            // A mere question is no sign that what was sent is being worked on.
            None => return,
        };
        self.pace.answered(now, &self.config, answered);
        if is_part {
            return;
        }
        let lost = self.sender.unanswered_before(lost);
        self.send_again(now, lost, desired);
    }

    /// Takes one item. False if nobody knows any more which object it is: the report then counts as a gap,
    /// after which the node reports again, with names.
    pub(super) fn take_item(&mut self, item: Item, desired: &impl DesiredState) -> bool {
        let Item { uid, resource_version, object } = item;
        if self.issued.is_lost(&resource_version) {
            self.store_went_back(&resource_version);
        }
        let Some(object) = object.map(Arc::new).or_else(|| self.object(&uid, desired)) else { return false };
        self.recorder.put(uid, Record { version: resource_version, object });
        true
    }

    /// The node says that it has a version that this store gave in a life that is lost. The incarnation of now may be there
    /// for that already: no copy of a node's database makes another one necessary.
    fn store_went_back(&mut self, version: &ResourceVersion) {
        self.doubt();
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::ClaimsAreNews) {
            return self.effects.push_back(CloudEffect::StoreWentBack);
        }
        if self.issued.is_news(version) {
            self.tell_that_the_store_went_back();
        }
    }

    /// Once in an incarnation.
    pub(super) fn tell_that_the_store_went_back(&mut self) {
        if !std::mem::replace(&mut self.has_told, true) {
            self.effects.push_back(CloudEffect::StoreWentBack);
        }
    }

    fn take_rejected(&mut self, now: Now, rejected: Rejected, desired: &impl DesiredState) {
        self.counters.rejected += 1;
        let Rejected { uid, resource_version: version, reason, message, .. } = rejected;
        let sent = self.sender.sent(&uid).map(|(action, version)| (action, version.clone()));
        if sent.as_ref().is_some_and(|(_, sent)| !version.as_str().is_empty() && *sent != version) {
            // It says nothing of the version that is under way.
            return;
        }
        self.sender.done(&uid);
        let (action, version) = sent.unwrap_or((Action::Put, version));
        let latest = desired.get(&uid).map(|desired| desired.version);
        let wanted = self.ahead.get(&uid).or(latest.as_ref());
        let is_wanted = match self.needed(&uid, desired) {
            Some(Action::Put) => action == Action::Put && wanted == Some(&version),
            Some(Action::Delete) => action == Action::Delete,
            None => false,
        };
        if !is_wanted {
            self.trouble.remove(&uid);
            return self.reconsider(now, &uid, desired);
        }
        self.queue.remove(&uid);
        let message = clip(&message, MAX_REASON).to_owned();
        let trouble = self.trouble.entry(uid.clone()).or_default();
        let refusal = Refusal { version, reason, message: message.clone() };
        let news = trouble.refusal.as_ref() != Some(&refusal);
        trouble.refusal = Some(refusal);
        let (min, max) = (self.config.reject_retry_min, self.config.reject_retry_max);
        // Spread by a hash of the UID would be random enough, but one node's retries need no spread.
        trouble.retry_at = now + backoff(min, max, trouble.attempts, u64::MAX);
        trouble.attempts = trouble.attempts.saturating_add(1);
        if news {
            let object = self.object(&uid, desired);
            self.notice(CloudNotice::Rejected { uid, object, reason, message });
        }
    }

    /// Hands the next batch to the store if none is under way, or pays an owed Confirm.
    pub(super) fn flush_records(&mut self, desired: &impl DesiredState) {
        if self.recorder.storing.is_some() {
            if let Some((at, _)) = self.recorder.retry
                && at <= self.recorder.now
                && let Some(batch) = self.recorder.storing.clone()
            {
                self.recorder.retry = self.recorder.retry.map(|(_, n)| (Now::MAX, n));
                self.effects.push_back(CloudEffect::Record(batch));
            }
            return;
        }
        if self.is_opening() {
            return self.request_records();
        }
        if self.behind && !self.ledger.is_open() {
            // What is reported meanwhile waits for the records.
            return;
        }
        if !self.recorder.pending.dirty || self.is_superfluous(desired) {
            self.recorder.gather_anew(Pending::default());
            let uids: Vec<Uid> = self.sender.settled(&self.ledger, desired);
            self.release(self.last_heard, &uids, desired);
            if std::mem::take(&mut self.recorder.confirm_owed) {
                self.confirm();
            }
            self.advance_connecting(desired);
            return;
        }
        let Pending { put, remove, reset, .. } = self.recorder.next_part();
        let token = self.recorder.next_token;
        self.recorder.next_token += 1;
        // What an operator says about a node that is not connected changes nothing of its records.
        let (confirmed, tally) = match self.ledger.is_open() {
            true if self.behind => (self.recorder.covered, None),
            true => (self.recorder.covered, Some(self.ledger.tally_after(reset, &put, &remove, desired))),
            false => (self.ledger.facts().confirmed, self.ledger.facts().tally),
        };
        let batch = RecordBatch {
            token,
            epoch: self.ledger.epoch(),
            confirmed,
            accepted: self.recorder.accepted.clone(),
            tally,
            epochs: self.ledger.facts().epochs_with(self.ledger.epoch(), confirmed),
            reset,
            put: put.into_iter().collect(),
            remove: remove.into_iter().collect(),
        };
        self.recorder.storing = Some(batch.clone());
        self.effects.push_back(CloudEffect::Record(batch));
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::RecordBeforeStored) {
            self.recorded(self.recorder.now, token, true, 0, desired);
        }
    }

    /// Whether what was gathered says only what is stored already.
    fn is_superfluous(&self, desired: &impl DesiredState) -> bool {
        let Pending { put, remove, reset, .. } = &self.recorder.pending;
        let facts = self.ledger.facts();
        if !self.ledger.is_open() {
            return facts.epoch.is_none() || facts.accepted == self.recorder.accepted;
        }
        let recorded = |uid: &Uid| self.ledger.get(uid, desired);
        !reset
            && !self.behind
            && facts.epoch == Some(self.ledger.epoch())
            && facts.tally == Some(self.ledger.tally())
            && facts.confirmed == self.recorder.reached
            && facts.accepted == self.recorder.accepted
            && remove.iter().all(|uid| recorded(uid).is_none())
            && put.iter().all(|(uid, new)| recorded(uid).is_some_and(|record| record.version == new.version))
    }

    /// The store has committed a batch, or could not.
    pub fn recorded(&mut self, now: Now, token: u64, stored: bool, random: u64, desired: &impl DesiredState) {
        self.recorder.now = now;
        let Some(batch) = self.recorder.storing.take_if(|batch| batch.token == token) else { return };
        if !stored {
            let attempt = self.recorder.retry.map_or(0, |(_, attempt)| attempt + 1);
            let wait = backoff(STORE_RETRY, STORE_RETRY_MAX, attempt, random);
            self.recorder.retry = Some((now + wait, attempt));
            self.recorder.storing = Some(batch);
            return;
        }
        self.recorder.retry = None;
        let RecordBatch { epoch, confirmed, accepted, tally, epochs, reset, put, remove, .. } = batch;
        self.recorder.unknown.settle(put.iter().map(|(uid, _)| uid).chain(&remove));
        let mut uids = Vec::with_capacity(put.len() + remove.len());
        for uid in &remove {
            if let Some(record) = self.ledger.get(uid, desired) {
                self.leftovers.remove(&record.object.key());
            }
            self.release_held(uid);
        }
        uids.extend(put.iter().map(|(uid, _)| uid.clone()));
        uids.extend(remove.iter().cloned());
        let facts = LedgerFacts { epoch: Some(epoch), confirmed, accepted, tally, epochs };
        self.ledger.store(facts, reset, put, remove, desired);
        self.release(now, &uids, desired);
        if std::mem::take(&mut self.recorder.confirm_owed) || !uids.is_empty() {
            self.confirm();
        }
        self.flush_records(desired);
        self.close_ledger();
    }

    /// These UIDs have an answer: what was sent of them is no longer under way.
    fn release(&mut self, now: Now, uids: &[Uid], desired: &impl DesiredState) {
        for uid in uids {
            let record = self.ledger.get(uid, desired);
            self.sender.settle(uid, record.as_ref());
            self.reconsider(now, uid, desired);
        }
    }

    /// Whether a phase waits for everything that was gathered to be stored.
    pub(super) fn advance_connecting(&mut self, desired: &impl DesiredState) {
        if matches!(self.phase, Phase::Connecting(_)) && self.recorder.is_idle() {
            self.compare(desired);
        }
    }
}
