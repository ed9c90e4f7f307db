//! Batches changes of the ObjectSync records: gathers them while the last batch is being stored.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::change::Uid;
use crate::timing::{Now, backoff};

use super::desired::DesiredState;
use super::ledger::Ledger;
use super::quota::UnknownObjects;
use super::types::{Record, RecordBatch};

/// The delay after a failed batch; doubles up to a minute.
const STORE_RETRY: Duration = Duration::from_millis(500);
const STORE_RETRY_MAX: Duration = Duration::from_secs(60);

/// The most record changes in one transaction, because all nodes wait for it.
const MAX_BATCH: usize = 1024;

/// The changes gathered for the next batch.
#[derive(Debug, Default)]
struct Pending {
    put: HashMap<Uid, Record>,
    remove: HashSet<Uid>,
    reset: bool,
    dirty: bool,
}

/// Gathers record changes, with one batch at the store at a time.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    pending: Pending,
    /// The newest revision of the node covered once everything gathered is stored.
    reached: u64,
    /// The newest revision covered once the batch at the store is stored.
    covered: u64,
    /// The unknown objects gathered or being stored.
    pub(super) unknown: UnknownObjects,
    accepted: Option<Arc<str>>,
    storing: Option<RecordBatch>,
    next_token: u64,
    retry: Option<(Now, u32)>,
    now: Now,
    /// Whether a Confirm is owed even if nothing was stored.
    confirm_owed: bool,
}

/// The next step of the recorder.
#[derive(Debug)]
pub(super) enum Step {
    /// Wait for the store's answer or a retry.
    Wait,
    /// Pass this batch to the store.
    Store(RecordBatch),
    /// Nothing is left to store.
    Settled,
}

impl Recorder {
    /// Starts from a Hello: the revision in it is the base of later reports.
    pub(super) fn rebase(&mut self, reached: u64, accepted: Option<Arc<str>>) {
        (self.reached, self.covered) = (reached, reached);
        self.accepted = accepted;
        self.replace_pending(Pending { dirty: true, ..Pending::default() });
        self.confirm_owed = false;
    }

    /// Forgets the batch at the store too: the session is over and its records are not kept.
    pub(super) fn forget(&mut self) {
        (self.storing, self.retry) = (None, None);
        self.give_up();
    }

    pub(super) fn reset(&mut self) {
        self.replace_pending(Pending { reset: true, dirty: true, ..Pending::default() });
    }

    /// Drops everything gathered and not yet at the store: the node will report it again.
    pub(super) fn give_up(&mut self) {
        self.replace_pending(Pending::default());
        self.confirm_owed = false;
    }

    fn replace_pending(&mut self, pending: Pending) {
        self.pending = pending;
        self.unknown.keep(self.storing.iter().flat_map(|batch| batch.put.iter().map(|(uid, _)| uid)));
    }

    /// Takes as many changes as fit into one transaction; the rest stays.
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

    /// Covers the changes `from < revision ≤ to`. After a gap nothing advances: the node reports
    /// again.
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

    /// Returns the time of the last tick or answer of the store.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn last_woken(&self) -> Now {
        self.now
    }

    pub(super) fn tick(&mut self, now: Now) {
        self.now = now;
    }

    /// Records that the node is owed a Confirm.
    pub(super) fn owe_confirm(&mut self) {
        self.confirm_owed = true;
    }

    /// Returns whether a Confirm was owed, and clears the flag.
    pub(super) fn take_owed_confirm(&mut self) -> bool {
        std::mem::take(&mut self.confirm_owed)
    }

    pub(super) fn is_storing(&self) -> bool {
        self.storing.is_some()
    }

    /// Returns the failed batch once its retry is due.
    pub(super) fn retry(&mut self) -> Option<RecordBatch> {
        let retry = self.retry.as_mut().filter(|(at, _)| *at <= self.now)?;
        let batch = self.storing.clone()?;
        retry.0 = Now::MAX;
        Some(batch)
    }

    /// Decides on the gathered changes. Must not be called while a batch is being stored.
    pub(super) fn next_step(&mut self, ledger: &Ledger, desired: &impl DesiredState) -> Step {
        if ledger.is_behind() && !ledger.is_open() {
            // Reports that arrive meanwhile wait for the records.
            return Step::Wait;
        }
        if !self.pending.dirty || self.is_superfluous(ledger, desired) {
            self.replace_pending(Pending::default());
            return Step::Settled;
        }
        Step::Store(self.begin_batch(ledger, desired))
    }

    fn begin_batch(&mut self, ledger: &Ledger, desired: &impl DesiredState) -> RecordBatch {
        let Pending { put, remove, reset, .. } = self.next_part();
        let token = self.next_token;
        self.next_token += 1;
        // A decision of an operator about a disconnected node changes none of its records.
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

    /// Returns whether everything gathered is stored already.
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

    /// Handles the store's answer. Returns the batch if it was stored; otherwise it is retried
    /// after a delay with jitter from `random`.
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
