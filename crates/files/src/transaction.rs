//! In what order a change is carried out, and how it is taken back: a state machine. [`Run::step`] is what to do now,
//! [`Run::did`] tells what came of it.
//!
//! Whatever step a power cut comes in, [`Run::recovering`] leads to the files of before, or, if everything had been noted as
//! done, to the new ones.

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Note all changes.
    Intend,
    /// Write the files of a change beside those that are there.
    Stage(usize),
    /// Have all candidates checked.
    Check,
    /// Put the files of a change in their place.
    Swap(usize),
    /// Have the program read its files.
    Reload,
    /// Put the old files of a change back.
    Restore(usize),
    /// Have the program read the files that were put back.
    ReloadOld,
    /// Note what is in effect.
    Commit,
    /// Remove what a change has left.
    Discard(usize),
    /// Forget the changes.
    Forget,
}

/// Why something was not done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// What the system or the program said.
    pub message: String,
    /// Whether it took too long: then fewer changes at once will not help.
    pub slow: bool,
}

impl Failure {
    /// A failure with these words.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), slow: false }
    }
}

/// How a run has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Why the new files are not in effect; none if they are.
    pub failure: Option<Failure>,
    /// Whether the new files were there, and the old ones were put back.
    pub rolled_back: bool,
    /// Whether fewer changes at once may do better.
    pub divisible: bool,
    /// Whether the program may not have read the files that are there.
    pub owes_reload: bool,
    /// Whether something could not be put back or removed: it stays noted.
    pub unfinished: bool,
}

/// Some changes on their way.
#[derive(Clone, Debug)]
pub struct Run {
    count: usize,
    has_check: bool,
    has_reload: bool,
    /// Whether the program has to read the files that are there, even if nothing changes.
    owed: bool,
    step: Option<Step>,
    ended: Ended,
}

impl Run {
    /// A run of so many changes.
    #[must_use]
    pub fn new(count: usize, has_check: bool, has_reload: bool, owed: bool) -> Self {
        let ended = Ended { owes_reload: owed && has_reload, ..Ended::default() };
        let mut run = Self { count, has_check, has_reload, owed: owed && has_reload, step: None, ended };
        run.step = if count > 0 { Some(Step::Intend) } else { run.owed.then_some(Step::Reload) };
        run
    }

    /// What follows an end in the middle of a run, of which it was noted or not that it went well.
    #[must_use]
    pub(crate) fn recovering(count: usize, has_reload: bool, committed: bool) -> Self {
        let mut run = Self::new(count, false, has_reload, false);
        if committed {
            run.step = run.discard(0);
        } else {
            run.ended.failure = Some(Failure::default());
            run.owed = has_reload;
            run.ended.owes_reload = has_reload;
            run.step = run.back(count);
        }
        run
    }

    /// What is to be done now; nothing at the end.
    #[must_use]
    pub fn step(&self) -> Option<Step> {
        self.step
    }

    /// How it has ended.
    #[must_use]
    pub fn ended(self) -> Ended {
        self.ended
    }

    /// Whether the new files stay.
    #[must_use]
    pub(crate) fn went_well(&self) -> bool {
        self.ended.failure.is_none()
    }

    /// The step was done, or was not.
    pub(crate) fn did(&mut self, result: Result<(), Failure>) {
        let Some(step) = self.step else { return };
        self.step = match (step, result) {
            (Step::Intend, Ok(())) => Some(Step::Stage(0)),
            (Step::Intend, Err(failure)) => {
                self.failed(failure, false);
                None
            }
            (Step::Stage(at), Ok(())) if at + 1 < self.count => Some(Step::Stage(at + 1)),
            (Step::Stage(_), Ok(())) if self.has_check => Some(Step::Check),
            (Step::Stage(_) | Step::Check, Ok(())) => Some(Step::Swap(0)),
            (Step::Stage(_), Err(failure)) => {
                self.ended.divisible = true;
                self.failed(failure, true);
                self.reload_old()
            }
            (Step::Check, Err(failure)) => {
                self.ended.divisible = !failure.slow;
                self.failed(failure, true);
                self.reload_old()
            }
            (Step::Swap(at), Ok(())) if at + 1 < self.count => Some(Step::Swap(at + 1)),
            (Step::Swap(_), Ok(())) if self.has_reload => Some(Step::Reload),
            (Step::Swap(_), Ok(())) => Some(Step::Commit),
            (Step::Swap(at), Err(failure)) => {
                self.ended.divisible = true;
                self.failed(failure, true);
                self.back(at + 1)
            }
            (Step::Reload, Ok(())) => {
                self.ended.owes_reload = false;
                Some(Step::Commit)
            }
            (Step::Reload, Err(failure)) => {
                self.ended.divisible = !failure.slow;
                self.failed(failure, false);
                self.owed = true;
                self.ended.owes_reload = true;
                self.ended.rolled_back = self.count > 0;
                // Without a change there is nothing to put back: the program does not take what it had.
                if self.count > 0 { self.back(self.count) } else { None }
            }
            (Step::Restore(at), result) => {
                self.ended.unfinished |= result.is_err();
                self.back(at)
            }
            (Step::ReloadOld, Ok(())) => {
                self.ended.owes_reload = false;
                self.discard(0)
            }
            (Step::ReloadOld, Err(_)) => {
                // It is not the change that the program does not take.
                self.ended.divisible = false;
                self.discard(0)
            }
            (Step::Commit, Ok(())) if self.count == 0 => None,
            (Step::Commit, Ok(())) => self.discard(0),
            (Step::Commit, Err(failure)) => {
                self.failed(failure, false);
                self.owed |= self.has_reload;
                self.ended.owes_reload = self.owed;
                self.ended.rolled_back = self.count > 0;
                if self.count > 0 { self.back(self.count) } else { None }
            }
            (Step::Discard(at), result) => {
                self.ended.unfinished |= result.is_err();
                // Each is tried: one that cannot be removed keeps no other.
                if at + 1 < self.count { Some(Step::Discard(at + 1)) } else { self.forget() }
            }
            (Step::Forget, result) => {
                self.ended.unfinished |= result.is_err();
                None
            }
        };
    }

    fn failed(&mut self, failure: Failure, unless_owed: bool) {
        self.ended.failure.get_or_insert(failure);
        self.ended.owes_reload |= unless_owed && self.owed;
    }

    /// Puts back what was swapped, the last one first.
    fn back(&self, upto: usize) -> Option<Step> {
        if upto > 0 { Some(Step::Restore(upto - 1)) } else { self.reload_old() }
    }

    fn reload_old(&self) -> Option<Step> {
        if self.owed { Some(Step::ReloadOld) } else { self.discard(0) }
    }

    fn discard(&self, at: usize) -> Option<Step> {
        // What could not be put back is still needed.
        if at < self.count && !self.ended.unfinished { Some(Step::Discard(at)) } else { self.forget() }
    }

    fn forget(&self) -> Option<Step> {
        (self.count > 0 && !self.ended.unfinished).then_some(Step::Forget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The steps of a run in which these fail.
    fn steps(mut run: Run, failing: &[Step]) -> (Vec<Step>, Ended) {
        let mut steps = Vec::new();
        while let Some(step) = run.step() {
            steps.push(step);
            run.did(if failing.contains(&step) { Err(Failure::new("no")) } else { Ok(()) });
            assert!(steps.len() < 100, "{steps:?}");
        }
        (steps, run.ended())
    }

    #[test]
    fn what_goes_well_is_noted_before_the_old_files_go() {
        use Step::{Check, Commit, Discard, Forget, Intend, Reload, Stage, Swap};
        let (found, ended) = steps(Run::new(2, true, true, false), &[]);
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
        let (found, _) = steps(Run::new(1, false, false, false), &[]);
        assert_eq!(found, [Intend, Stage(0), Swap(0), Commit, Discard(0), Forget]);
    }

    #[test]
    fn a_check_that_fails_changes_nothing() {
        use Step::{Check, Discard, Forget, Intend, Stage};
        let (found, ended) = steps(Run::new(1, true, true, false), &[Check]);
        assert_eq!(found, [Intend, Stage(0), Check, Discard(0), Forget]);
        assert!(ended.divisible && !ended.rolled_back && !ended.owes_reload);
    }

    #[test]
    fn a_reload_that_fails_is_taken_back() {
        use Step::{Discard, Forget, Intend, Reload, ReloadOld, Restore, Stage, Swap};
        let run = Run::new(2, false, true, false);
        let (found, ended) = steps(run.clone(), &[Reload]);
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
        let (_, ended) = steps(run.clone(), &[Reload, ReloadOld]);
        assert!(!ended.divisible && ended.owes_reload, "{ended:?}");
        let (found, ended) = steps(run, &[Reload, Restore(0)]);
        assert!(ended.unfinished && !found.contains(&Discard(0)), "{found:?}");
    }

    #[test]
    fn one_that_cannot_be_written_may_be_tried_apart_from_the_others() {
        use Step::{Stage, Swap};
        for step in [Stage(1), Swap(1)] {
            assert!(steps(Run::new(2, true, true, false), &[step]).1.divisible, "{step:?}");
        }
    }

    #[test]
    fn a_program_that_has_not_read_its_files_does_so() {
        let (found, ended) = steps(Run::new(0, true, true, true), &[]);
        assert_eq!((found, ended.owes_reload), (vec![Step::Reload, Step::Commit], false));
        assert_eq!(steps(Run::new(0, true, true, false), &[]).0, []);
        let (found, _) = steps(Run::new(1, true, true, true), &[Step::Check]);
        assert!(found.contains(&Step::ReloadOld), "{found:?}");
    }

    proptest! {
        #[test]
        fn old_files_are_gone_only_after_the_new_ones_were_noted(
            count in 1usize..4, check: bool, reload: bool, owed: bool, failing in proptest::collection::vec(0usize..20, 0..4)
        ) {
            let mut run = Run::new(count, check, reload, owed);
            let (mut noted, mut forgotten, mut number, mut swapped) = (false, false, 0, 0);
            while let Some(step) = run.step() {
                prop_assert!(!forgotten);
                let fails = failing.contains(&number);
                match step {
                    Step::Commit => noted = !fails,
                    Step::Swap(_) => swapped += 1,
                    Step::Restore(_) => swapped -= 1,
                    Step::Discard(_) => {
                        let is_time = if run.went_well() { noted } else { swapped == 0 };
                        prop_assert!(is_time);
                    }
                    Step::Forget => forgotten = true,
                    _ => {}
                }
                run.did(if fails { Err(Failure::new("no")) } else { Ok(()) });
                number += 1;
            }
            let went_well = run.went_well();
            let ended = run.ended();
            prop_assert!(forgotten || ended.unfinished || number == 1);
            prop_assert!(!went_well || noted);
        }
    }
}
