//! Gathers changes of the ObjectSync records while the last batch is being stored, then has them stored in one go.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::change::Uid;
use crate::timing::{Now, backoff};

use super::desired::DesiredState;
use super::ledger::Ledger;
use super::quota::Unknown;
use super::types::{Record, RecordBatch};

/// The delay after a batch that could not be stored; doubles up to a minute.
const STORE_RETRY: Duration = Duration::from_millis(500);
const STORE_RETRY_MAX: Duration = Duration::from_secs(60);

/// The most changes of records in one transaction: all nodes wait for it.
const MAX_BATCH: usize = 1024;

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

/// What the recorder wants done next.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing until the store answers, or a retry is due.
    Wait,
    /// Store this batch.
    Store(RecordBatch),
    /// Nothing is left to store.
    Settled,
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

    /// Notes that the node is owed a Confirm.
    pub(super) fn owe_confirm(&mut self) {
        self.confirm_owed = true;
    }

    /// Returns whether a Confirm was owed, and is no longer.
    pub(super) fn pay_confirm(&mut self) -> bool {
        std::mem::take(&mut self.confirm_owed)
    }

    pub(super) fn is_storing(&self) -> bool {
        self.storing.is_some()
    }

    /// Returns the batch that could not be stored, once its retry is due.
    pub(super) fn retry(&mut self) -> Option<RecordBatch> {
        let retry = self.retry.as_mut().filter(|(at, _)| *at <= self.now)?;
        let batch = self.storing.clone()?;
        retry.0 = Now::MAX;
        Some(batch)
    }

    /// Decides what to do with what was gathered. Not to be called while a batch is being stored.
    pub(super) fn next_step(&mut self, ledger: &Ledger, desired: &impl DesiredState) -> Step {
        if ledger.is_behind() && !ledger.is_open() {
            // Reports that came meanwhile wait for the records.
            return Step::Wait;
        }
        if !self.pending.dirty || self.is_superfluous(ledger, desired) {
            self.gather_anew(Pending::default());
            return Step::Settled;
        }
        Step::Store(self.begin_batch(ledger, desired))
    }

    fn begin_batch(&mut self, ledger: &Ledger, desired: &impl DesiredState) -> RecordBatch {
        let Pending { put, remove, reset, .. } = self.next_part();
        let token = self.next_token;
        self.next_token += 1;
        // What an operator says about a node that is not connected changes nothing of its records.
        let (confirmed, tally) = match ledger.is_open() {
            true if ledger.is_behind() => (self.covered, None),
            true => (self.covered, Some(ledger.tally_after(reset, &put, &remove, desired))),
            false => (ledger.facts().confirmed, ledger.facts().tally),
        };
        let batch = RecordBatch {
            token,
            epoch: ledger.epoch(),
            confirmed,
            accepted: self.accepted.clone(),
            tally,
            epochs: ledger.facts().epochs_with(ledger.epoch(), confirmed),
            reset,
            put: put.into_iter().collect(),
            remove: remove.into_iter().collect(),
        };
        self.storing = Some(batch.clone());
        batch
    }

    /// Returns whether what was gathered says only what is stored already.
    fn is_superfluous(&self, ledger: &Ledger, desired: &impl DesiredState) -> bool {
        let Pending { put, remove, reset, .. } = &self.pending;
        let facts = ledger.facts();
        if !ledger.is_open() {
            return facts.epoch.is_none() || facts.accepted == self.accepted;
        }
        let recorded = |uid: &Uid| ledger.get(uid, desired);
        !reset
            && !ledger.is_behind()
            && facts.epoch == Some(ledger.epoch())
            && facts.tally == Some(ledger.tally())
            && facts.confirmed == self.reached
            && facts.accepted == self.accepted
            && remove.iter().all(|uid| recorded(uid).is_none())
            && put.iter().all(|(uid, new)| recorded(uid).is_some_and(|record| record.version == new.version))
    }

    /// Takes the store's answer. Returns the batch if it was stored; otherwise it is tried again, after a wait spread by
    /// `random`.
    pub(super) fn answered(
        &mut self,
        now: Now,
        token: u64,
        stored: bool,
        random: u64,
    ) -> Option<RecordBatch> {
        self.now = now;
        let batch = self.storing.take_if(|batch| batch.token == token)?;
        if !stored {
            let attempt = self.retry.map_or(0, |(_, attempt)| attempt + 1);
            let wait = backoff(STORE_RETRY, STORE_RETRY_MAX, attempt, random);
            self.retry = Some((now + wait, attempt));
            self.storing = Some(batch);
            return None;
        }
        self.retry = None;
        self.unknown.settle(batch.put.iter().map(|(uid, _)| uid).chain(&batch.remove));
        Some(batch)
    }
}
