//! State of running and stopped watches. Pure, apart from the task of a watch.

use std::sync::Arc;

use super::holdings::WatchId;
use super::plan::{Cause, Origin, Problem, Spot, Watch};
use super::watching::Task;
use edgesync_object::Resource;
use edgesync_placement::Unread;

/// Consecutive failures after which nothing waits for a watch.
const PATIENCE: u32 = 3;

/// A running watch.
pub(super) struct Running {
    pub(super) id: WatchId,
    pub(super) run: u64,
    pub(super) watch: Watch,
    pub(super) state: State,
    /// Set when this run has completed its list.
    pub(super) is_listed: bool,
    pub(super) _task: Task,
}

/// State of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No failure is known.
    Well,
    /// Forbidden, with the server's message.
    Refused(String),
    /// Number of consecutive failures, with the last cause.
    Broken(u32, String),
}

/// A stopped watch.
pub(super) struct Left {
    pub(super) id: WatchId,
    pub(super) resource: Arc<Resource>,
}

impl State {
    /// Counts another failure.
    pub(super) fn broken(&self, why: String) -> Self {
        match self {
            Self::Broken(times, _) => Self::Broken(times.saturating_add(1), why),
            Self::Well | Self::Refused(_) => Self::Broken(1, why),
        }
    }

    /// Returns the cause if nothing can be expected of the watch for now.
    fn cause(&self) -> Option<Cause> {
        match self {
            Self::Refused(why) => Some(Cause::Refused(why.clone())),
            Self::Broken(PATIENCE.., why) => Some(Cause::Broken(why.clone())),
            Self::Well | Self::Broken(..) => None,
        }
    }

    /// Returns whether nothing waits for the watch, although it is retried.
    pub(super) fn is_given_up(&self) -> bool {
        matches!(self, Self::Broken(PATIENCE.., _))
    }

    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

impl Running {
    /// Returns whether the watch is listed, or need not be waited for. The watches of the fleet
    /// itself are always waited for.
    pub(super) fn is_answered(&self) -> bool {
        match self.state {
            State::Refused(_) | State::Broken(PATIENCE.., _) => !self.watch.origins.contains(&Origin::Fleet),
            State::Well | State::Broken(..) => self.is_listed,
        }
    }

    /// Returns the problems of its originators and the unread objects, if any.
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
        assert_eq!(state.cause().unwrap().to_string(), "not readable: conversion");
        assert_eq!(State::Refused("no".to_owned()).cause(), Some(Cause::Refused("no".to_owned())));
        assert_eq!(State::Refused("no".to_owned()).broken("cut".to_owned()).cause(), None);
    }
}
