//! The verdict about a wave: whether it is good, and what is missing.

use super::fault::{Fault, planted};
use super::observed::{Group, WaveCounts};
use super::spec::Rollout;

/// Verdict about an open wave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Enough nodes have succeeded, few enough have failed, and none is waited for.
    Good,
    /// Nodes are waited for.
    Awaiting,
    /// The wave has no node, and does not allow that.
    Empty,
    /// All nodes that are waited for have answered, and too few have succeeded.
    TooFew {
        /// Nodes that have succeeded.
        successes: usize,
        /// Their minimum.
        required: usize,
    },
    /// More nodes have failed than may.
    FailuresExceeded(Exceeded),
}

/// A group with too many failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// Value of the label that `groupBy` names; `None` without it.
    pub group: Option<String>,
    /// Its counts.
    pub counts: Group,
}

impl Rollout {
    /// Judges the wave with this index by its counts. `was_good` is whether it was good already:
    /// then nodes that are waited for, as those that have joined since, do not count against it.
    ///
    /// Failures exceed their limit as soon as they would if all nodes that are waited for
    /// succeeded: the order of answers decides nothing.
    #[must_use]
    pub fn judge(&self, index: usize, counts: &WaveCounts, was_good: bool) -> Verdict {
        let wave = self.waves.as_slice().get(index);
        if let Some(exceeded) = self.exceeded(counts).filter(|_| !planted(Fault::FailuresIgnored)) {
            return Verdict::FailuresExceeded(exceeded);
        }
        if counts.nodes == 0 {
            // Nothing opens after the last wave, so it may be empty.
            let may_be_empty = index + 1 >= self.waves.count()
                || wave.is_some_and(|wave| wave.allow_empty)
                || planted(Fault::EmptyIsGood);
            return if may_be_empty { Verdict::Good } else { Verdict::Empty };
        }
        if counts.pending + counts.waiting > 0 && !was_good && !planted(Fault::PendingIgnored) {
            return Verdict::Awaiting;
        }
        let counts_held = wave.is_some_and(|wave| wave.held_only) || planted(Fault::HeldOnlyIsGood);
        let successes = counts.good + if counts_held { counts.held_only } else { 0 };
        let share = (counts.nodes * usize::from(self.min_success.percent)).div_ceil(100);
        let required = share.max(usize::try_from(self.min_success.at_least).unwrap_or(usize::MAX));
        if successes < required && !planted(Fault::MinSuccessIgnored) {
            return Verdict::TooFew { successes, required };
        }
        Verdict::Good
    }

    fn exceeded(&self, counts: &WaveCounts) -> Option<Exceeded> {
        let exceeds = |group: &Group| {
            group.failed * 100 > usize::from(self.max_failures.percent) * (group.answered + group.awaited)
        };
        if planted(Fault::GroupsIgnored) {
            let mut all = Group::default();
            for group in counts.groups.values() {
                all.answered += group.answered;
                all.failed += group.failed;
                all.awaited += group.awaited;
            }
            return exceeds(&all).then_some(Exceeded { group: None, counts: all });
        }
        let mut groups = counts.groups.iter();
        let (group, counts) = groups.find(|(_, counts)| exceeds(counts))?;
        Some(Exceeded { group: group.clone(), counts: *counts })
    }
}

#[cfg(test)]
mod tests;
