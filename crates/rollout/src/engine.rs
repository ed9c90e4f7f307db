//! The transitions of a roll-out: opens waves, begins, undoes and drops revisions.
//!
//! [`step`] is a function of its arguments. The caller writes the next status by compare and swap,
//! and acts on the rest of the [`Step`] only after that: if the write is refused, it reads the
//! status again and repeats the step. If the outcome of the write is unknown, it does the same.

mod commands;
mod stack;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::conditions::{Judged, conditions, judged};
use super::fault::{Fault, planted};
use super::observed::{Observed, later};
use super::revision::{Selection, Set};
use super::spec::{OnChange, OnFailure, Rollout};
use super::status::{Outcome, PauseReason, Status};
use super::verdict::Verdict;

pub use commands::{Command, Refusal};

/// The sets of the revisions on the stack, by number; without those whose bodies are lost.
pub type Sets = BTreeMap<u64, Arc<Set>>;

/// The reason for a step.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Time has passed, or something was observed.
    Observe,
    /// A command of an operator.
    Command(&'a Command),
    /// A snapshot whose bodies are stored.
    Snapshot(&'a Snapshot),
}

/// A set whose bodies are stored, as the next revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The request that it answers.
    pub wanted: Wanted,
    /// The set: [`super::revision::Rejections::plan`] with the versions that were read.
    pub set: Arc<Set>,
    /// The selection of the rule when the versions were read.
    pub selection: Selection,
}

/// A request for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Number that its bodies are stored under, together with the digest of the set.
    pub number: u64,
    /// Number of the newest revision that it follows; `None` for the first revision.
    pub over: Option<u64>,
}

/// A transition, for an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// The first revision is the stable one.
    Initialized {
        /// Its number.
        revision: u64,
    },
    /// A revision has begun with the first wave.
    Begun {
        /// Its number.
        revision: u64,
    },
    /// A wave was opened.
    WaveOpened {
        /// Number of the revision.
        revision: u64,
        /// Number of the wave, from 1.
        wave: usize,
        /// The operator who has promoted it; empty if it was good.
        by: String,
    },
    /// A revision is the stable one.
    Completed {
        /// Its number.
        revision: u64,
        /// The operator who has promoted it; empty if it was good.
        by: String,
    },
    /// The roll-out was paused.
    Paused {
        /// The reason.
        reason: PauseReason,
        /// The operator; empty if it has paused itself.
        by: String,
    },
    /// The roll-out was resumed.
    Resumed {
        /// The operator.
        by: String,
    },
    /// A revision has ended.
    Ended {
        /// Its number.
        revision: u64,
        /// How it has ended.
        outcome: Outcome,
        /// The operator; empty if it was none.
        by: String,
    },
    /// The waves were changed; each revision is open for the unchanged ones at most.
    WavesChanged {
        /// Number of the first waves that are unchanged.
        unchanged: usize,
    },
}

/// Result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The status to write, on the condition that [`Status::sequence`] is that of the given one;
    /// `None` if nothing has changed.
    pub next: Option<Status>,
    /// A snapshot to make. It needs no write before.
    pub snapshot: Option<Wanted>,
    /// The transitions to report after the write.
    pub happened: Vec<Happened>,
    /// Why the command or snapshot was refused.
    pub refused: Option<Refusal>,
    /// When to step again, if nothing is observed before.
    pub wake: Option<Timestamp>,
}

/// A step in progress.
struct Engine<'a> {
    now: Timestamp,
    rollout: &'a Rollout,
    observed: &'a Observed,
    sets: &'a Sets,
    status: Status,
    snapshot: Option<Wanted>,
    happened: Vec<Happened>,
    wake: Option<Timestamp>,
}

/// Computes the next status of a roll-out. A rule without a status has the default one.
///
/// The counts of `observed` are used only if they are of the newest revision as it is open in
/// `status`. Call it with [`Input::Observe`] again after each write.
#[must_use]
pub fn step(
    now: Timestamp,
    rollout: &Rollout,
    status: &Status,
    observed: &Observed,
    sets: &Sets,
    input: Input<'_>,
) -> Step {
    let mut engine = Engine {
        now,
        rollout,
        observed,
        sets,
        status: status.clone(),
        snapshot: None,
        happened: Vec::new(),
        wake: None,
    };
    // Before the waves: a lost revision overtakes no other.
    engine.drop_lost();
    // Observations and commands refer to the waves before: a write that adopts others
    // moves nothing, except for a pause.
    let is_adopted = engine.adopt_waves();
    let refused = match input {
        Input::Observe if is_adopted => None,
        Input::Observe => {
            engine.observe();
            None
        }
        Input::Command(command @ Command::Pause { .. }) => engine.command(command).err(),
        Input::Command(_) | Input::Snapshot(_) if is_adopted => Some(Refusal::Outdated),
        Input::Command(command) => engine.command(command).err(),
        Input::Snapshot(snapshot) => engine.begin(snapshot).err(),
    };
    engine.finish(status, refused)
}

impl Engine<'_> {
    /// Opens, fails or soaks, then looks for changes.
    fn observe(&mut self) {
        if self.status.progressing().is_some() {
            self.advance();
        }
        self.want_snapshot();
    }

    fn judged(&self) -> Judged {
        judged(self.rollout, &self.status, self.observed)
    }

    /// Moves the newest revision by what its nodes have answered.
    fn advance(&mut self) {
        let Judged { last, failed } = self.judged();
        if failed.is_some() {
            self.set_good_since(None);
            return self.fail();
        }
        let is_paused = self.status.paused.is_some() && !planted(Fault::PauseIgnored);
        let Some(top) = self.status.progressing() else { return };
        if top.open == 0 {
            if !is_paused {
                self.open_next("");
            }
            return;
        }
        match last {
            None => {}
            Some(Verdict::Good) => {
                // A clock that was set back must not shorten the soak.
                let since = top.good_since.filter(|since| *since <= self.now).unwrap_or(self.now);
                self.set_good_since(Some(since));
                let soak = if planted(Fault::SoakIgnored) { Duration::ZERO } else { self.rollout.soak };
                let ends = later(since, soak);
                if ends > self.now {
                    self.wake_at(ends);
                } else if !is_paused {
                    self.open_next("");
                }
            }
            Some(_) => self.set_good_since(None),
        }
    }

    fn set_good_since(&mut self, since: Option<Timestamp>) {
        if since.is_none() && planted(Fault::SoakNotReset) {
            return;
        }
        if let Some(top) = self.status.revisions.last_mut() {
            top.good_since = since;
        }
    }

    /// Reacts to failures beyond the limit. A pause stays one: nothing moves by itself meanwhile.
    fn fail(&mut self) {
        if self.status.paused.is_some() {
            return;
        }
        let rolled_back = self.rollout.on_failure == OnFailure::RollBack && self.undo("", false).is_ok();
        if !rolled_back {
            self.pause(PauseReason::FailuresExceeded, "");
        }
    }

    /// Requests a snapshot if the objects have changed and settled, and a revision could begin.
    fn want_snapshot(&mut self) {
        let planned = &self.observed.planned;
        let differs = planned.digest.is_some() && planned.digest != self.status.top().map(|top| top.digest);
        if !differs || self.may_begin().is_err() {
            return;
        }
        let settled = planned.settled_at(self.rollout.settle);
        if settled > self.now {
            self.wake_at(settled);
        } else {
            self.snapshot = Some(self.wanted());
        }
    }

    fn wanted(&self) -> Wanted {
        // Numbers begin with 1.
        Wanted { number: self.status.next_number.max(1), over: self.status.top().map(|top| top.number) }
    }

    /// Returns whether a revision could begin now.
    fn may_begin(&self) -> Result<(), Refusal> {
        let is_queued = self.rollout.on_change == OnChange::Queue && self.status.progressing().is_some();
        if self.observed.too_large.is_some() {
            Err(Refusal::TooLarge)
        } else if self.status.is_paused_by_hand() && !self.status.revisions.is_empty() {
            Err(Refusal::Paused)
        } else if (is_queued && !planted(Fault::QueueIgnored)) || !self.status.has_room() {
            Err(Refusal::Queued)
        } else {
            Ok(())
        }
    }

    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    fn finish(mut self, before: &Status, refused: Option<Refusal>) -> Step {
        let judged = self.judged();
        self.status.conditions =
            Some(conditions(self.now, self.rollout, &self.status, self.observed, &judged));
        let is_changed = self.status != *before;
        if is_changed && !planted(Fault::SequenceKept) {
            self.status.sequence = before.sequence.saturating_add(1);
        }
        Step {
            next: is_changed.then_some(self.status),
            snapshot: self.snapshot,
            happened: self.happened,
            refused,
            wake: self.wake,
        }
    }
}

#[cfg(test)]
mod tests;
