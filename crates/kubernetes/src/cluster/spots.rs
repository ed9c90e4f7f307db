//! Spots that are watched or were, and how each of them is. Pure, but for the task of a watch.

use std::sync::Arc;

use super::holdings::WatchId;
use super::plan::{Cause, Origin, Problem, Spot, Watch};
use super::watching::Task;
use edgesync_object::Resource;
use edgesync_placement::Unread;

/// A watch that could not go on so many times, one after another, keeps nobody waiting.
const PATIENCE: u32 = 3;

/// A spot that is watched.
pub(super) struct Running {
    pub(super) id: WatchId,
    pub(super) run: u64,
    pub(super) watch: Watch,
    pub(super) state: State,
    /// It has listed all that it has in this run.
    pub(super) is_listed: bool,
    pub(super) _task: Task,
}

/// How a watch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing else is known.
    Well,
    /// The cluster does not give it; in its words.
    Refused(String),
    /// It could not go on so many times, one after another; and why it could not the last time.
    Broken(u32, String),
}

/// A spot that was watched.
pub(super) struct Left {
    pub(super) id: WatchId,
    pub(super) resource: Arc<Resource>,
}

impl State {
    /// It could not go on once more.
    pub(super) fn broken(&self, why: String) -> Self {
        match self {
            Self::Broken(times, _) => Self::Broken(times.saturating_add(1), why),
            Self::Well | Self::Refused(_) => Self::Broken(1, why),
        }
    }

    /// Why nothing is to be expected of it for now.
    fn cause(&self) -> Option<Cause> {
        match self {
            Self::Refused(why) => Some(Cause::Refused(why.clone())),
            Self::Broken(PATIENCE.., why) => Some(Cause::Broken(why.clone())),
            Self::Well | Self::Broken(..) => None,
        }
    }

    /// It is tried again, and nobody waits for it.
    pub(super) fn is_given_up(&self) -> bool {
        matches!(self, Self::Broken(PATIENCE.., _))
    }

    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

impl Running {
    /// Whether it has told what there is, or others need not wait for it. Nothing is right without
    /// what the fleet itself is.
    pub(super) fn is_answered(&self) -> bool {
        match self.state {
            State::Refused(_) | State::Broken(PATIENCE.., _) => !self.watch.origins.contains(&Origin::Fleet),
            State::Well | State::Broken(..) => self.is_listed,
        }
    }

    /// Who does not get it, and what that is.
    pub(super) fn trouble(&self, spot: &Spot) -> Option<(Vec<Problem>, Unread)> {
        let cause = self.state.cause()?;
        let problem = |origin: &Origin| Problem {
            origin: origin.clone(),
            kind: spot.to_string(),
            cause: cause.clone(),
        };
        let problems = self.watch.origins.iter().map(problem).collect();
        Some((problems, spot.place.unread(&self.watch.resource)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_breaks_again_and_again_keeps_nobody_waiting_and_one_that_breaks_once_does() {
        let mut state = State::Well;
        for times in 1..PATIENCE {
            state = state.broken("timeout".to_owned());
            assert_eq!((state.cause(), &state), (None, &State::Broken(times, "timeout".to_owned())));
        }
        let state = state.broken("conversion".to_owned());
        assert_eq!(state.cause().unwrap().to_string(), "it cannot be read now: conversion");
        assert_eq!(State::Refused("no".to_owned()).cause(), Some(Cause::Refused("no".to_owned())));
        assert_eq!(State::Refused("no".to_owned()).broken("cut".to_owned()).cause(), None);
    }
}
