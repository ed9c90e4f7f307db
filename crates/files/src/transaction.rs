//! Transaction of file changes as a state machine: the order of its steps and of their rollback.
//! [`Transaction::step`] returns the next step, [`Transaction::completed`] takes its result.
//!
//! After a power cut at any step, [`Transaction::recovering`] restores the old files, or completes
//! the new ones if the transaction was committed. A change that cannot be rolled back is kept in
//! the record: it blocks its own place, not the rule.

use super::fault::{Fault, planted};

/// A step of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Record all changes durably before the first of them.
    Intend,
    /// Write the files of a change beside the existing ones.
    Stage(usize),
    /// Check all candidates with the program of the rule.
    Check,
    /// Replace the files of a change.
    Swap(usize),
    /// Make the program reload its files.
    Reload,
    /// Roll back the files of a change.
    Restore(usize),
    /// Make the program reload the files that were rolled back.
    ReloadOld,
    /// Record the new state as in effect.
    Commit,
    /// Record the changes that could not be rolled back, and whether a reload is owed.
    Keep,
    /// Remove the leftovers of a change.
    Discard(usize),
    /// Remove the record of the changes.
    Forget,
}

/// Reason why a step failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// Message of the system or the program.
    pub message: String,
    /// Whether it timed out: then a smaller transaction will not help.
    pub slow: bool,
}

impl Failure {
    /// Creates a failure with a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), slow: false }
    }
}

/// Outcome of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Reason why the new files are not in effect; none if they are.
    pub failure: Option<Failure>,
    /// Whether the new files were in place and the old ones were restored.
    pub rolled_back: bool,
    /// Whether smaller transactions may succeed.
    pub divisible: bool,
    /// Whether the program may not have read the current files.
    pub owes_reload: bool,
    /// Whether the intent stays recorded, because the record could not be written.
    pub unfinished: bool,
}

/// Changes that are applied all or none.
#[derive(Clone, Debug)]
pub struct Transaction {
    count: usize,
    has_check: bool,
    has_reload: bool,
    /// Whether the program must reload the current files even without changes.
    owes_reload: bool,
    /// Whether the changes are only checked.
    check_only: bool,
    /// Whether the program may be made to reload after a rollback.
    may_reload: bool,
    step: Option<Step>,
    /// Changes whose rollback failed, with the reasons.
    unrestored: Vec<(usize, Failure)>,
    ended: Ended,
}

impl Transaction {
    /// Creates a transaction of `count` changes.
    #[must_use]
    pub fn new(count: usize, has_check: bool, has_reload: bool, owes_reload: bool) -> Self {
        let ended = Ended { owes_reload: owes_reload && has_reload, ..Ended::default() };
        let owes_reload = ended.owes_reload;
        let (step, unrestored, check_only, may_reload) = (None, Vec::new(), false, true);
        let mut transaction = Self {
            count,
            has_check,
            has_reload,
            owes_reload,
            check_only,
            may_reload,
            step,
            unrestored,
            ended,
        };
        transaction.step =
            if count > 0 { Some(Step::Intend) } else { transaction.owes_reload.then_some(Step::Reload) };
        transaction
    }

    /// Creates a check of `count` changes, at least one, that replaces no file.
    #[must_use]
    pub(crate) fn checking(count: usize) -> Self {
        Self { check_only: true, ..Self::new(count, true, false, false) }
    }

    /// Creates the recovery from a crash within such a check.
    #[must_use]
    pub(crate) fn abandoning(count: usize) -> Self {
        let mut transaction = Self::checking(count);
        transaction.step = transaction.discard(0);
        transaction
    }

    /// Creates the recovery from a crash within a transaction, committed or not. Unless
    /// `may_reload`, the reload after a rollback is left owed.
    #[must_use]
    pub(crate) fn recovering(count: usize, has_reload: bool, committed: bool, may_reload: bool) -> Self {
        let mut transaction = Self { may_reload, ..Self::new(count, false, has_reload, false) };
        if committed {
            transaction.step = transaction.discard(0);
        } else {
            transaction.ended.failure = Some(Failure::default());
            transaction.owes_reload = has_reload;
            transaction.ended.owes_reload = has_reload;
            transaction.step = transaction.roll_back(count);
        }
        transaction
    }

    /// Returns the next step; none at the end.
    #[must_use]
    pub fn step(&self) -> Option<Step> {
        self.step
    }

    /// Returns the outcome; final once [`Transaction::step`] returns none.
    #[must_use]
    pub fn ended(self) -> Ended {
        self.ended
    }

    /// Returns whether the new files stay: those that were only checked do not.
    #[must_use]
    pub(crate) fn succeeded(&self) -> bool {
        !self.check_only && self.ended.failure.is_none()
    }

    /// Returns whether a reload is owed at the current step, for [`Step::Keep`].
    #[must_use]
    pub(crate) fn owes_reload(&self) -> bool {
        self.ended.owes_reload
    }

    /// Returns the changes whose rollback failed, for [`Step::Keep`].
    #[must_use]
    pub(crate) fn unrestored(&self) -> &[(usize, Failure)] {
        &self.unrestored
    }

    /// Takes the result of the current step.
    pub(crate) fn completed(&mut self, result: Result<(), Failure>) {
        let Some(step) = self.step else { return };
        self.step = match (step, result) {
            (Step::Intend, Ok(())) => Some(Step::Stage(0)),
            (Step::Intend, Err(failure)) => {
                self.failed(failure);
                None
            }
            (Step::Stage(at), Ok(())) if at + 1 < self.count => Some(Step::Stage(at + 1)),
            (Step::Stage(_), Ok(())) if self.has_check => Some(Step::Check),
            (Step::Check, Ok(())) if self.check_only => self.discard(0),
            (Step::Stage(_) | Step::Check, Ok(())) => Some(Step::Swap(0)),
            (Step::Stage(_), Err(failure)) => {
                self.ended.divisible = true;
                self.failed(failure);
                self.reload_old()
            }
            (Step::Check, Err(failure)) => {
                self.ended.divisible = !failure.slow;
                self.failed(failure);
                self.reload_old()
            }
            (Step::Swap(at), Ok(())) if at + 1 < self.count => Some(Step::Swap(at + 1)),
            (Step::Swap(_), Ok(())) if self.has_reload => Some(Step::Reload),
            (Step::Swap(_), Ok(())) => Some(Step::Commit),
            (Step::Swap(at), Err(failure)) => {
                self.ended.divisible = true;
                self.failed(failure);
                self.roll_back(at + 1)
            }
            (Step::Reload, Ok(())) => {
                self.ended.owes_reload = false;
                Some(Step::Commit)
            }
            (Step::Reload, Err(failure)) => {
                self.ended.divisible = !failure.slow;
                self.failed(failure);
                self.owes_reload = true;
                self.ended.owes_reload = true;
                self.ended.rolled_back = self.count > 0;
                // Without a change there is nothing to roll back: the program rejects its current
                // files.
                if self.count > 0 { self.roll_back(self.count) } else { None }
            }
            (Step::Restore(at), result) => {
                self.unrestored.extend(result.err().map(|failure| (at, failure)));
                self.roll_back(at)
            }
            (Step::ReloadOld, Ok(())) => {
                self.ended.owes_reload = false;
                self.discard(0)
            }
            (Step::ReloadOld, Err(_)) => {
                // The program rejects the old files, too: the change is not the cause.
                self.ended.divisible = false;
                self.discard(0)
            }
            (Step::Commit, Ok(())) if self.count == 0 => None,
            (Step::Commit, Ok(())) => self.discard(0),
            (Step::Commit, Err(failure)) => {
                self.failed(failure);
                self.owes_reload |= self.has_reload;
                self.ended.owes_reload = self.owes_reload;
                self.ended.rolled_back = self.count > 0;
                if self.count > 0 { self.roll_back(self.count) } else { None }
            }
            // Files that cannot be removed stay beside the others, and block nothing.
            (Step::Discard(at), _) => self.discard(at + 1),
            (Step::Keep, Ok(())) => self.forget(),
            (Step::Keep, Err(_)) => {
                self.ended.unfinished = true;
                None
            }
            (Step::Forget, result) => {
                self.ended.unfinished |= result.is_err();
                None
            }
        };
    }

    fn failed(&mut self, failure: Failure) {
        self.ended.failure.get_or_insert(failure);
    }

    /// Rolls back swapped changes, the last one first.
    fn roll_back(&self, upto: usize) -> Option<Step> {
        if upto > 0 { Some(Step::Restore(upto - 1)) } else { self.reload_old() }
    }

    fn reload_old(&self) -> Option<Step> {
        if self.owes_reload && self.may_reload { Some(Step::ReloadOld) } else { self.discard(0) }
    }

    /// Returns the removal of the next leftovers from `at` on. A failed rollback still needs its
    /// old files.
    fn discard(&self, at: usize) -> Option<Step> {
        let is_stuck = |at: &usize| self.unrestored.iter().any(|(stuck, _)| stuck == at);
        // A reload that is owed would be lost in a crash, with the record of the changes.
        let owes_reload = self.ended.owes_reload && !planted(Fault::OwedReloadLost);
        let is_recorded = self.unrestored.is_empty() && !owes_reload;
        match (at..self.count).find(|at| !is_stuck(at)) {
            Some(next) => Some(Step::Discard(next)),
            None if is_recorded => self.forget(),
            None => Some(Step::Keep),
        }
    }

    fn forget(&self) -> Option<Step> {
        (self.count > 0).then_some(Step::Forget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Returns the steps of a transaction in which `failing` fail.
    fn steps(mut transaction: Transaction, failing: &[Step]) -> (Vec<Step>, Ended) {
        let mut steps = Vec::new();
        while let Some(step) = transaction.step() {
            steps.push(step);
            transaction.completed(if failing.contains(&step) { Err(Failure::new("no")) } else { Ok(()) });
            assert!(steps.len() < 100, "{steps:?}");
        }
        (steps, transaction.ended())
    }

    #[test]
    fn commit_precedes_the_removal_of_old_files() {
        use Step::{Check, Commit, Discard, Forget, Intend, Reload, Stage, Swap};
        let (found, ended) = steps(Transaction::new(2, true, true, false), &[]);
        let all = [
            Intend,
            Stage(0),
            Stage(1),
            Check,
            Swap(0),
            Swap(1),
            Reload,
            Commit,
            Discard(0),
            Discard(1),
            Forget,
        ];
        assert_eq!((found.as_slice(), ended), (&all[..], Ended::default()));
        let (found, _) = steps(Transaction::new(1, false, false, false), &[]);
        assert_eq!(found, [Intend, Stage(0), Swap(0), Commit, Discard(0), Forget]);
    }

    #[test]
    fn failed_check_changes_nothing() {
        use Step::{Check, Discard, Forget, Intend, Stage};
        let (found, ended) = steps(Transaction::new(1, true, true, false), &[Check]);
        assert_eq!(found, [Intend, Stage(0), Check, Discard(0), Forget]);
        assert!(ended.divisible && !ended.rolled_back && !ended.owes_reload);
    }

    #[test]
    fn failed_reload_is_rolled_back() {
        use Step::{Discard, Forget, Intend, Reload, ReloadOld, Restore, Stage, Swap};
        let transaction = Transaction::new(2, false, true, false);
        let (found, ended) = steps(transaction.clone(), &[Reload]);
        let all = [
            Intend,
            Stage(0),
            Stage(1),
            Swap(0),
            Swap(1),
            Reload,
            Restore(1),
            Restore(0),
            ReloadOld,
            Discard(0),
            Discard(1),
            Forget,
        ];
        assert_eq!(found, all);
        assert!(ended.rolled_back && ended.divisible && !ended.owes_reload);
        let (_, ended) = steps(transaction, &[Reload, ReloadOld]);
        assert!(!ended.divisible && ended.owes_reload, "{ended:?}");
    }

    #[test]
    fn failed_rollback_is_kept_and_blocks_no_other() {
        use Step::{Discard, Forget, Keep, Reload, ReloadOld, Restore};
        let transaction = Transaction::new(3, false, true, false);
        let (found, ended) = steps(transaction.clone(), &[Reload, Restore(1)]);
        let rest = [Restore(2), Restore(1), Restore(0), ReloadOld, Discard(0), Discard(2), Keep, Forget];
        assert_eq!(found[found.len() - rest.len()..], rest);
        assert!(!ended.unfinished && ended.divisible, "{ended:?}");
        let (found, ended) = steps(transaction, &[Reload, Restore(1), Keep]);
        assert!(ended.unfinished && !found.contains(&Forget), "{found:?}");
    }

    #[test]
    fn failed_removal_of_leftovers_blocks_nothing() {
        use Step::{Discard, Forget};
        let (found, ended) = steps(Transaction::new(2, false, true, false), &[Discard(0)]);
        assert_eq!(found[found.len() - 3..], [Discard(0), Discard(1), Forget]);
        assert_eq!(ended, Ended::default());
    }

    #[test]
    fn failed_write_allows_smaller_transactions() {
        use Step::{Stage, Swap};
        for step in [Stage(1), Swap(1)] {
            assert!(steps(Transaction::new(2, true, true, false), &[step]).1.divisible, "{step:?}");
        }
    }

    #[test]
    fn owed_reload_runs_without_changes() {
        let (found, ended) = steps(Transaction::new(0, true, true, true), &[]);
        assert_eq!((found, ended.owes_reload), (vec![Step::Reload, Step::Commit], false));
        assert_eq!(steps(Transaction::new(0, true, true, false), &[]).0, []);
        let (found, _) = steps(Transaction::new(1, true, true, true), &[Step::Check]);
        assert!(found.contains(&Step::ReloadOld), "{found:?}");
    }

    #[test]
    fn reload_stays_owed_until_the_program_has_read_its_files() {
        let transaction = Transaction::new(1, true, true, true);
        assert!(steps(transaction.clone(), &[Step::Intend]).1.owes_reload);
        for step in [Step::Stage(0), Step::Check, Step::Swap(0)] {
            assert!(!steps(transaction.clone(), &[step]).1.owes_reload, "{step:?}");
            assert!(steps(transaction.clone(), &[step, Step::ReloadOld]).1.owes_reload, "{step:?}");
        }
    }

    proptest! {
        #[test]
        fn old_files_are_removed_only_after_the_commit(
            count in 1usize..4, check: bool, reload: bool, owes_reload: bool, failing in proptest::collection::vec(0usize..20, 0..4)
        ) {
            let mut transaction = Transaction::new(count, check, reload, owes_reload);
            let (mut committed, mut forgotten, mut number) = (false, false, 0);
            let (mut swapped, mut kept) = (BTreeSet::new(), false);
            while let Some(step) = transaction.step() {
                prop_assert!(!forgotten);
                let fails = failing.contains(&number);
                match step {
                    Step::Commit => committed = !fails,
                    Step::Swap(at) => {
                        swapped.insert(at);
                    }
                    Step::Restore(at) if !fails => {
                        swapped.remove(&at);
                    }
                    Step::Discard(at) => {
                        let is_time = if transaction.succeeded() { committed } else { !swapped.contains(&at) };
                        prop_assert!(is_time);
                    }
                    Step::Keep => kept = !fails,
                    Step::Forget => {
                        forgotten = true;
                        prop_assert!(transaction.succeeded() || kept || swapped.is_empty());
                    }
                    _ => {}
                }
                transaction.completed(if fails { Err(Failure::new("no")) } else { Ok(()) });
                number += 1;
            }
            let succeeded = transaction.succeeded();
            let ended = transaction.ended();
            prop_assert!(forgotten || ended.unfinished || number == 1);
            prop_assert!(!succeeded || committed);
        }
    }
}
