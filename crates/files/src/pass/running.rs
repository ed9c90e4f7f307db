//! Transactions of a pass: all changes at once, in parts after a failure, and the record of what is
//! in effect afterwards.

use super::super::fault::{Fault, planted};
use super::super::record::{Change, Held, Intent, State};
use super::super::steps::{execute, keep_unfinished};
use super::super::transaction::{Ended, Step, Transaction};
use super::super::{Effects, Failure};
use super::{MAX_TRANSACTIONS, Pass, Purpose, Task};

impl<H: Effects> Pass<'_, H> {
    /// Applies or checks all changes in one transaction; if that fails, in parts, so that one
    /// change does not block others. Returns whether the transaction is unfinished: then nothing
    /// else may begin.
    pub(super) fn run(&mut self, mut tasks: Vec<Task>, mut purpose: Purpose) -> bool {
        // A window may have closed since the pass, or a part of the change, began.
        if let Purpose::Apply(urgent) = purpose
            && let Some(closed) = self.effects.closed(urgent)
        {
            *(if urgent { &mut self.closed_to_urgent } else { &mut self.closed }) = Some(closed);
            purpose = Purpose::Check;
        }
        if purpose == Purpose::Check {
            tasks = self.postpone_unchecked(tasks);
            if tasks.is_empty() {
                return false;
            }
        }
        self.runs += 1;
        let ended = self.run_once(&mut tasks, purpose);
        let Some(failure) = &ended.failure else {
            if purpose == Purpose::Check {
                tasks.iter().for_each(|task| self.postpone(task));
            }
            return ended.unfinished;
        };
        self.record.output.clone_from(&failure.message);
        let is_stuck = |(change, _): &Task| self.record.stuck.contains_key(&change.place.path());
        let (stuck, mut tasks): (Vec<Task>, Vec<Task>) = tasks.into_iter().partition(is_stuck);
        for (change, _) in &stuck {
            let path = change.place.path();
            match self.places.get(&path).cloned() {
                Some((_, numbers)) => self.block(&path, &numbers, &failure.message),
                None => self.keep_unremoved(change, false, &failure.message),
            }
        }
        let is_smaller = tasks.len() > 1 || !stuck.is_empty();
        if ended.divisible && !ended.unfinished && is_smaller && self.runs < MAX_TRANSACTIONS {
            let rest = tasks.split_off(tasks.len() / 2);
            let mut parts = [tasks, rest].into_iter().filter(|part| !part.is_empty());
            return parts.any(|part| self.run(part, purpose));
        }
        for (change, _) in &tasks {
            let path = change.place.path();
            let Some((_, numbers)) = self.places.get(&path).cloned() else {
                self.keep_unremoved(change, !ended.unfinished, &failure.message);
                let members = change.old.as_ref().map(|held| held.members.clone()).unwrap_or_default();
                self.wait_for(&path, members);
                continue;
            };
            self.wait(&path, &numbers);
            for number in numbers {
                let version = if ended.unfinished { None } else { self.held_version(&path, number) };
                self.state(number, State::NotInEffect, version, &failure.message, ended.rolled_back);
            }
        }
        ended.unfinished
    }

    fn run_once(&mut self, tasks: &mut [Task], purpose: Purpose) -> Ended {
        let (number, check_only) = (self.record.done + 1, purpose == Purpose::Check);
        let changes: Vec<Change> = tasks.iter().map(|(change, _)| change.clone()).collect();
        let intent = Intent { run: number, changes, check_only };
        let (has_check, has_reload) = (!self.rule.check.is_empty(), self.rule.reloads());
        let writes = intent.changes.iter().any(|change| change.new.is_some());
        let mut transaction = match purpose {
            Purpose::Check => Transaction::checking(tasks.len()),
            Purpose::Apply(_) => {
                Transaction::new(tasks.len(), has_check && writes, has_reload, self.record.owes_reload)
            }
        };
        while let Some(step) = transaction.step() {
            let result = match step {
                Step::Commit => self.commit(number, tasks),
                Step::Keep => keep_unfinished(self.effects, self.record, &intent, &transaction),
                Step::Stage(at) => match tasks.get(at) {
                    Some((change, desired)) if change.new.is_some() => self.effects.stage(change, desired),
                    _ => Ok(()),
                },
                _ => execute(self.effects, &intent, step, transaction.succeeded()),
            };
            self.record.reloads += u64::from(step == Step::Reload && result.is_ok());
            transaction.completed(result);
        }
        let ended = transaction.ended();
        if !check_only {
            self.record.owes_reload = ended.owes_reload;
        }
        self.dirty |= ended.failure.is_some();
        self.record.rollbacks += u64::from(ended.rolled_back);
        ended
    }

    /// Records the new state as in effect.
    fn commit(&mut self, number: u64, tasks: &[Task]) -> Result<(), Failure> {
        let (before, seq) = (self.record.clone(), *self.seq);
        // An intent that reappears after a power cut must not match a later transaction.
        if !tasks.is_empty() {
            self.record.done = number;
        }
        self.record.owes_reload = false;
        for (change, desired) in tasks {
            let path = change.place.path();
            self.record.pending.remove(&path);
            match &change.new {
                None => {
                    self.record.places.remove(&path);
                }
                Some(files) => {
                    let is_kept = self.rule.may_wait()
                        && self.effects.is_memory(&change.place, change.shape)
                        && !planted(Fault::NothingKept);
                    let held = Held {
                        place: change.place.clone(),
                        shape: change.shape,
                        stamp: change.stamp,
                        made: change.makes,
                        parents: change.parents,
                        files: files.clone(),
                        sizes: desired.files.values().map(|content| content.len() as u64).collect(),
                        bytes: desired.bytes(),
                        members: desired.members.clone(),
                        rule: self.text,
                        kept: is_kept.then_some(change.stamp),
                        lost: false,
                    };
                    if is_kept
                        && let Err(failure) =
                            self.effects.keep(&held, Some(&desired.files), desired.is_secret)
                    {
                        *self.record = before;
                        *self.seq = seq;
                        return Err(failure);
                    }
                    self.record.places.insert(path.clone(), held);
                    let numbers =
                        self.places.get(&path).map(|(_, numbers)| numbers.clone()).unwrap_or_default();
                    self.in_effect(&path, &numbers);
                }
            }
        }
        self.mark_deleted();
        self.settle();
        let committed = self.effects.commit(self.record);
        match &committed {
            Ok(()) => self.dirty = false,
            Err(_) => {
                *self.record = before;
                *self.seq = seq;
            }
        }
        committed
    }

    /// Reloads the program alone, because it may not have read the current files.
    pub(super) fn reload_only(&mut self) {
        let ended = self.run_once(&mut [], Purpose::Apply(false));
        match ended.failure {
            Some(failure) => {
                self.record.output = failure.message;
                self.wait("", &[]);
            }
            None => {
                self.record.waits.remove("");
                self.dirty = true;
            }
        }
    }
}
