//! States of running and stopped watches. Pure, apart from the task of a watch.

use std::sync::Arc;

use super::object_index::WatchId;
use super::plan::{Cause, Origin, Problem, Watch, WatchScope};
use super::watch_run::Task;
use edgesync_object::Resource;
use edgesync_placement::Unread;

/// Consecutive failures after which nothing waits for a watch.
const MAX_FAILURES: u32 = 3;

pub(super) struct RunningWatch {
    pub(super) id: WatchId,
    pub(super) run: u64,
    pub(super) watch: Watch,
    pub(super) state: WatchState,
    /// Set when this run has completed its list.
    pub(super) is_listed: bool,
    pub(super) _task: Task,
}

/// State of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WatchState {
    /// No failure is known.
    Healthy,
    /// Forbidden, with the server's message.
    Refused(String),
    /// Number of consecutive failures, with the last cause.
    Failing(u32, String),
}

/// A stopped watch whose objects are still known; others may not cover them yet.
pub(super) struct StoppedWatch {
    pub(super) id: WatchId,
    pub(super) resource: Arc<Resource>,
}

impl WatchState {
    /// Returns the state after one more failure in a row.
    pub(super) fn after_failure(&self, why: String) -> Self {
        match self {
            Self::Failing(times, _) => Self::Failing(times.saturating_add(1), why),
            Self::Healthy | Self::Refused(_) => Self::Failing(1, why),
        }
    }

    /// Returns the cause if nothing can be expected of the watch for now.
    fn cause(&self) -> Option<Cause> {
        match self {
            Self::Refused(why) => Some(Cause::Refused(why.clone())),
            Self::Failing(MAX_FAILURES.., why) => Some(Cause::Broken(why.clone())),
            Self::Healthy | Self::Failing(..) => None,
        }
    }

    /// Returns whether nothing waits for the watch, although it is retried.
    pub(super) fn is_given_up(&self) -> bool {
        matches!(self, Self::Failing(MAX_FAILURES.., _))
    }

    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

impl RunningWatch {
    /// Returns whether the watch is listed, or need not be waited for. The watches of the fleet
    /// itself are always waited for.
    pub(super) fn is_synced(&self) -> bool {
        match self.state {
            WatchState::Refused(_) | WatchState::Failing(MAX_FAILURES.., _) => {
                !self.watch.origins.contains(&Origin::Fleet)
            }
            WatchState::Healthy | WatchState::Failing(..) => self.is_listed,
        }
    }

    /// Returns the problems of its originators and the unread objects, if any.
    pub(super) fn problems(&self, scope: &WatchScope) -> Option<(Vec<Problem>, Unread)> {
        let cause = self.state.cause()?;
        let problem = |origin: &Origin| Problem {
            origin: origin.clone(),
            kind: scope.to_string(),
            cause: cause.clone(),
        };
        let problems = self.watch.origins.iter().map(problem).collect();
        Some((problems, scope.namespaces.unread(&self.watch.resource)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_given_up_after_repeated_failures() {
        let mut state = WatchState::Healthy;
        for times in 1..MAX_FAILURES {
            state = state.after_failure("timeout".to_owned());
            assert_eq!((state.cause(), &state), (None, &WatchState::Failing(times, "timeout".to_owned())));
        }
        let state = state.after_failure("conversion".to_owned());
        assert_eq!(state.cause().unwrap().to_string(), "not readable: conversion");
        assert_eq!(WatchState::Refused("no".to_owned()).cause(), Some(Cause::Refused("no".to_owned())));
        assert_eq!(WatchState::Refused("no".to_owned()).after_failure("cut".to_owned()).cause(), None);
    }
}
