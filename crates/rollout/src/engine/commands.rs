//! Commands of operators, and why a command or a snapshot is refused.

use std::fmt;

use super::{Engine, Happened};
use crate::fault::{Fault, planted};
use crate::status::PauseReason;

/// A command of an operator. Commands name what the operator has seen, so that a repeated one
/// changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Pauses the roll-out: nothing opens, begins or rolls back by itself.
    Pause {
        /// The operator.
        by: String,
    },
    /// Ends a pause. After failures beyond the limit the roll-out pauses again if they still are.
    Resume {
        /// The operator.
        by: String,
        /// The reason of the pause.
        reason: PauseReason,
    },
    /// Accepts the open waves of the newest revision as they are, and opens the next one; if all
    /// are open, the revision becomes stable. Ends a pause because of failures.
    Promote {
        /// The operator.
        by: String,
        /// Number of the newest revision.
        revision: u64,
        /// Number of waves that it is open for.
        open: usize,
    },
    /// Takes the newest revision off the stack, and rejects the versions that it has changed.
    Undo {
        /// The operator.
        by: String,
        /// Number of the newest revision.
        revision: u64,
        /// Whether nodes apply the revision below outside of their windows.
        override_windows: bool,
    },
}

/// Why a command or a snapshot was refused; nothing has changed because of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The roll-out is paused already.
    AlreadyPaused,
    /// The roll-out is not paused.
    NotPaused,
    /// No revision is rolled out.
    NothingProgresses,
    /// The newest revision is another one, or is open for another number of waves.
    Outdated,
    /// Only the stable revision is left, whose predecessor was not kept.
    NothingBelow,
    /// A set that is needed is not known, because its bodies are lost.
    BodiesLost,
    /// The objects exceed the limits of a roll-out.
    TooLarge,
    /// An operator has paused the roll-out.
    Paused,
    /// The revision has to wait for the end of another one.
    Queued,
    /// The set is that of the newest revision.
    Unchanged,
    /// The set has a version that was undone, or an older one than the newest revision.
    OldVersion,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlreadyPaused => "the roll-out is paused already",
            Self::NotPaused => "the roll-out is not paused",
            Self::NothingProgresses => "the stable revision is the newest one, no roll-out is in progress",
            Self::Outdated => "the roll-out has moved since; look at its status and repeat the command",
            Self::NothingBelow => {
                "the stable revision is the only one; apply the former version of its objects instead"
            }
            Self::BodiesLost => "bodies of the newest revision or of the one below are lost",
            Self::TooLarge => "the objects of the rule exceed the limits of a roll-out",
            Self::Paused => "an operator has paused the roll-out",
            Self::Queued => "another revision has to end first",
            Self::Unchanged => "the objects are those of the newest revision",
            Self::OldVersion => {
                "an object is in a version that was undone or is older than the newest revision"
            }
        })
    }
}

impl std::error::Error for Refusal {}

impl Engine<'_> {
    pub(super) fn command(&mut self, command: &Command) -> Result<(), Refusal> {
        match command {
            Command::Pause { .. } if self.status.is_paused_by_hand() => Err(Refusal::AlreadyPaused),
            Command::Pause { by } => {
                self.pause(PauseReason::Command, by);
                Ok(())
            }
            Command::Resume { by, reason } => self.resume(by, *reason),
            Command::Promote { by, revision, open } => {
                let top = self.status.progressing().ok_or(Refusal::NothingProgresses)?;
                let is_seen = (top.number, top.open) == (*revision, *open);
                if !is_seen && !planted(Fault::PromoteAgain) {
                    return Err(Refusal::Outdated);
                }
                self.promote(by);
                Ok(())
            }
            Command::Undo { by, revision, override_windows } => {
                let top = self.status.top().ok_or(Refusal::NothingBelow)?;
                if top.number != *revision {
                    return Err(Refusal::Outdated);
                }
                self.undo(by, *override_windows)
            }
        }
    }

    fn resume(&mut self, by: &str, seen: PauseReason) -> Result<(), Refusal> {
        let pause = self.status.paused.as_ref().ok_or(Refusal::NotPaused)?;
        if pause.reason != seen {
            return Err(Refusal::Outdated);
        }
        self.status.paused = None;
        // After failures the wave proves itself again.
        if seen == PauseReason::FailuresExceeded
            && let Some(top) = self.status.revisions.last_mut()
        {
            top.good_since = None;
        }
        self.happened.push(Happened::Resumed { by: by.to_owned() });
        // The waves were changed during a pause by hand: that is resumed on its own.
        let is_closed = self.status.progressing().is_some_and(|top| top.open == 0);
        if is_closed && seen == PauseReason::Command {
            self.pause(PauseReason::WavesChanged, "");
        }
        Ok(())
    }

    fn promote(&mut self, by: &str) {
        if !self.status.is_paused_by_hand() {
            self.status.paused = None;
        }
        if let Some(top) = self.status.revisions.last_mut() {
            top.promoted = top.open;
        }
        self.open_next(by);
    }
}
