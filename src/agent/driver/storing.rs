//! The loop's pending store operations, and the store's health as last observed.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use super::parts::{Keeps, PartsRead};
use super::reading::Page;
use crate::agent::apply::Outcome;
use crate::agent::files::AffectedRules;
use crate::agent::objects;
use crate::store::{Health, Reset, Writing};
use edgesync_store::StoreError;

/// Time after the start at which memory is released, unless a burst of commits comes first.
const SETTLE_TIME: Duration = Duration::from_secs(10);

pub(super) type Applied = Result<Outcome, StoreError>;

/// Operations of the store in flight, each with its request, in the order of the requests, which
/// is the order of the results.
pub(super) struct InFlight<R, T>(VecDeque<(R, JoinHandle<T>)>);

/// Commits with their tokens, and the rules for files that their changes may affect.
pub(super) type Commits = InFlight<(u64, AffectedRules), Applied>;

/// Pending operations and observed health of the store.
pub(super) struct Storing {
    pub(super) commits: Commits,
    /// The page that is read for the machine.
    pub(super) reading: Option<JoinHandle<Page>>,
    /// The pieces of a message in parts that are being kept.
    pub(super) keeps: Keeps,
    /// The read of what is kept of such a message.
    pub(super) reading_parts: Option<JoinHandle<PartsRead>>,
    /// When to release the memory of a burst: a quiet period after the last commit or connection.
    release_at: Option<Instant>,
    writing: Writing,
    resets_seen: u64,
}

impl<R, T> Default for InFlight<R, T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<R, T> InFlight<R, T> {
    pub(super) fn push(&mut self, request: R, task: JoinHandle<T>) {
        self.0.push_back((request, task));
    }

    /// Waits for the oldest operation's result; pends forever without one.
    pub(super) async fn front(&mut self) -> Result<T, JoinError> {
        match self.0.front_mut() {
            Some((_, task)) => task.await,
            None => std::future::pending().await,
        }
    }

    /// Removes the oldest operation. Returns its request.
    pub(super) fn pop(&mut self) -> Option<R> {
        self.0.pop_front().map(|(request, _)| request)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Commits {
    /// Marks all rules for files as affected: the commits in flight were matched against the old
    /// rules.
    pub(super) fn affect_all_rules(&mut self) {
        self.0.iter_mut().for_each(|((_, rules), _)| *rules = AffectedRules::ALL);
    }
}

impl Storing {
    pub(super) fn new() -> Self {
        Self {
            commits: Commits::default(),
            reading: None,
            keeps: Keeps::default(),
            reading_parts: None,
            // Covers the memory that the start allocated.
            release_at: Some(Instant::now() + SETTLE_TIME),
            writing: Writing::Works,
            resets_seen: 0,
        }
    }

    /// Removes the oldest commit. Returns its token and the rules for files that it may affect.
    pub(super) fn end_commit(&mut self) -> Option<(u64, AffectedRules)> {
        let commit = self.commits.pop()?;
        self.release_later();
        Some(commit)
    }

    /// Schedules the release of memory for a quiet period from now.
    pub(super) fn release_later(&mut self) {
        self.release_at = Some(Instant::now() + objects::QUIET_TIME);
    }

    /// Returns whether memory should be released now; true once per burst.
    pub(super) fn is_release_due(&mut self) -> bool {
        self.release_at.take_if(|at| *at <= Instant::now()).is_some()
    }

    /// Records whether the store accepts changes. Returns the previous state.
    pub(super) fn observe_writing(&mut self, writing: &Writing) -> Writing {
        std::mem::replace(&mut self.writing, writing.clone())
    }

    /// Returns how many replacements of the database the loop has observed.
    pub(super) fn resets_seen(&self) -> u64 {
        self.resets_seen
    }

    /// Returns whether the database was replaced since the last observation.
    pub(super) fn has_new_reset(&self, health: &Health) -> bool {
        health.reset.as_ref().is_some_and(|reset| reset.number > self.resets_seen)
    }

    /// Records a replacement of the database; `None` if there was none since the last observation.
    pub(super) fn observe_reset<'a>(&mut self, health: &'a Health) -> Option<&'a Reset> {
        let reset = health.reset.as_ref().filter(|reset| reset.number > self.resets_seen)?;
        self.resets_seen = reset.number;
        Some(reset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_protocol::digest::Epoch;

    fn health(resets: u64) -> Health {
        let reset = Reset {
            number: resets,
            cause: "lost".to_owned(),
            epoch: Epoch::default(),
            kept: 0,
            lost: 0,
            set_aside: None,
        };
        Health { writing: Writing::Works, reset: (resets > 0).then_some(reset) }
    }

    #[tokio::test]
    async fn each_reset_is_observed_once() {
        let mut storing = Storing::new();
        assert!(!storing.has_new_reset(&health(0)));
        assert!(storing.has_new_reset(&health(1)));
        assert!(storing.observe_reset(&health(1)).is_some());
        assert!(!storing.has_new_reset(&health(1)));
        assert!(storing.observe_reset(&health(1)).is_none());
        assert!(storing.observe_reset(&health(3)).is_some());
        assert_eq!(storing.resets_seen(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_released_once_after_the_last_commit() {
        let mut storing = Storing::new();
        tokio::time::advance(SETTLE_TIME).await;
        assert!(storing.is_release_due());
        assert!(!storing.is_release_due());
        let task = tokio::spawn(async { Err(StoreError::Closed) });
        storing.commits.push((7, AffectedRules::default()), task);
        storing.commits.affect_all_rules();
        assert!(storing.commits.front().await.is_ok_and(|applied| applied.is_err()));
        let (token, rules) = storing.end_commit().unwrap();
        assert_eq!((token, format!("{rules:?}")), (7, format!("{:?}", AffectedRules::ALL)));
        assert!(storing.end_commit().is_none());
        assert!(!storing.is_release_due());
        tokio::time::advance(objects::QUIET_TIME).await;
        assert!(storing.is_release_due());
    }
}
