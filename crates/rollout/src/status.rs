//! The persisted state of a roll-out: `status.rollout` of a Placement or ClusterPlacement.

use edgesync_object::Labels;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fault::{Fault, planted};
use super::revision::{Digest, Rejections};
use super::waves::Waves;

/// Limit of the revisions on the stack, the stable one included.
pub(crate) const MAX_REVISIONS: usize = 4;
/// Limit of the recorded revisions that have ended.
pub(crate) const MAX_HISTORY: usize = 10;

/// Number of the waves that a new revision is open for.
pub(crate) const FIRST_OPEN: usize = 1;

/// State of a roll-out. Each transition is one write of it, by compare and swap on
/// [`Status::sequence`]; who has written nothing else with it follows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Number of writes: the precondition of the next one.
    pub sequence: u64,
    /// The stack: first the stable revision, last the newest. Above the stable one, each is open
    /// for fewer waves than the one below. Empty before the first revision.
    pub revisions: Vec<Revision>,
    /// Number of the next revision.
    pub next_number: u64,
    /// Why nothing opens by itself; `None` if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
    /// Versions that were undone.
    #[serde(skip_serializing_if = "is_empty")]
    pub rejected: Rejections,
    /// Digests of the waves that `open` counts.
    pub waves: Vec<Digest>,
    /// Number of revisions in a row that were replaced before they had opened a second wave.
    #[serde(skip_serializing_if = "is_zero")]
    pub replaced_in_a_row: u32,
    /// Conditions, without counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Conditions>,
    /// The last revisions that have ended, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Ended>,
}

/// The conditions of a rule with a roll-out. They have no current counts, so that they change
/// seldom; [`messages`](super::conditions::messages) has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Conditions {
    /// Whether a revision is on its way by itself.
    pub progressing: Condition,
    /// Whether the roll-out is paused.
    pub paused: Condition,
    /// Whether something is wrong.
    pub degraded: Condition,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Whether it is true.
    pub status: bool,
    /// The reason.
    pub reason: Reason,
    /// Time of the last change of `status`.
    pub since: Timestamp,
    /// Counts and the first failure when failures exceeded their limit; only with that reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Reasons of conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// No revision exists yet.
    Initializing,
    /// The first revision is what was placed when the roll-out began: nothing was opened.
    Initialized,
    /// All nodes have the stable revision.
    Complete,
    /// The newest revision was undone.
    Undone,
    /// The nodes of the last open wave have not answered yet.
    Opening,
    /// The last open wave is good, and has to stay so.
    Soaking,
    /// The last open wave has no node.
    WaveEmpty,
    /// Too few nodes of the last open wave have succeeded.
    NoAnswers,
    /// An open wave has more failures than it may.
    FailuresExceeded,
    /// All waves were changed.
    WavesChanged,
    /// An operator has paused the roll-out.
    Paused,
    /// It is not paused.
    NotPaused,
    /// Nothing is wrong.
    AsExpected,
    /// The objects exceed the limits of a roll-out.
    TooLarge,
    /// Bodies of the next revision cannot be stored.
    NotStored,
    /// Bodies of a revision cannot be read.
    BodiesLost,
    /// Changes come faster than waves open.
    Starved,
    /// Changes wait, because of `Queue` or because the stack is full.
    Queued,
    /// An older rule decides about some of the objects.
    Overlaps,
}

/// A revision on the stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    /// Number, unique within the rule unless its status was lost.
    pub number: u64,
    /// Digest of the set. Together with the number it names the stored bodies.
    pub digest: Digest,
    /// Number of waves that it is open for; the stable revision is for all nodes.
    pub open: usize,
    /// Number of waves that were accepted by hand; they are not judged.
    #[serde(default, skip_serializing_if = "is_zero_size")]
    pub promoted: usize,
    /// Time of its begin.
    pub started_at: Timestamp,
    /// Time when its last wave was opened.
    pub opened_at: Timestamp,
    /// Since when its last open wave has been good; only of the newest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good_since: Option<Timestamp>,
    /// Number of an undone revision whose nodes apply this one outside of their windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides_windows_of: Option<u64>,
}

/// A pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// The operator; empty if the roll-out has paused itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Time of the pause.
    pub at: Timestamp,
    /// Its reason.
    pub reason: PauseReason,
}

/// Reason of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PauseReason {
    /// An operator has paused it. New revisions do not begin either.
    Command,
    /// A wave has more failures than it may.
    FailuresExceeded,
    /// All waves were changed, so the newest revision is open for none.
    WavesChanged,
}

/// A revision that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// Number of the revision.
    pub number: u64,
    /// Digest of its set.
    pub digest: Digest,
    /// Number of waves that it was open for.
    pub open: usize,
    /// Time of its begin.
    pub started_at: Timestamp,
    /// Time of its end.
    pub ended_at: Timestamp,
    /// How it has ended.
    pub outcome: Outcome,
    /// The operator who has ended it; empty if it was none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
}

/// How a revision has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It was stable, until a newer one was.
    Superseded,
    /// A newer one was open for as many waves, or became stable.
    Replaced,
    /// An operator has undone it.
    Undone,
    /// It was undone because of failures.
    RolledBack,
    /// Its bodies were lost.
    Lost,
}

/// Which node has which revision: computed from the status, the waves and the labels alone.
#[derive(Clone, Copy, Debug)]
pub struct Assignment<'a> {
    status: &'a Status,
    waves: &'a Waves,
    unchanged: usize,
}

impl<'a> Assignment<'a> {
    /// Returns the revision of a node, by its name and the labels that others have assigned to it.
    #[must_use]
    pub fn of(&self, node: &str, assigned: &Labels) -> Option<&'a Revision> {
        self.revision_for(self.waves.wave_of(node, assigned))
    }

    /// Returns the revision that is rolled out, and the number of waves that it is open for: what
    /// [`super::Observed`] counts.
    #[must_use]
    pub fn counted(&self) -> Option<(&'a Revision, usize)> {
        let top = self.status.progressing()?;
        Some((top, top.open.min(self.unchanged)))
    }

    /// Returns the revision that a node of a wave has: the newest that is open for the wave, or the
    /// stable one. A node that is in no wave has the stable one. `None` before the first revision:
    /// then the node has what it would have without a roll-out.
    #[must_use]
    pub(crate) fn revision_for(&self, wave: Option<usize>) -> Option<&'a Revision> {
        let is_open =
            |revision: &&Revision| wave.is_some_and(|wave| wave < revision.open.min(self.unchanged));
        self.status.above_stable().rev().find(is_open).or_else(|| self.status.stable())
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_zero_size(number: &usize) -> bool {
    *number == 0
}

fn is_empty(rejected: &Rejections) -> bool {
    rejected.as_slice().is_empty()
}

impl Status {
    /// Reads `status.rollout`. What cannot be read, or has a stack that no roll-out has, is a lost
    /// status: the default, with an error that says why. An absent status is the default.
    ///
    /// # Errors
    /// The status is lost, with the reason.
    pub fn read(value: Option<&Value>) -> Result<Self, String> {
        let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(Self::default()) };
        if !value.is_object() {
            return Err("the status of a roll-out must be an object".to_owned());
        }
        let status: Self =
            serde::Deserialize::deserialize(value).map_err(|error: serde_json::Error| error.to_string())?;
        status.check()?;
        Ok(status)
    }

    /// Returns the sequence of a stored status, which the next write names as its precondition: 0
    /// of an absent or lost one.
    #[must_use]
    pub fn sequence_of(value: Option<&Value>) -> u64 {
        Self::read(value).map_or(0, |status| status.sequence)
    }

    /// Returns the status as JSON.
    #[must_use]
    pub fn to_value(&self) -> Value {
        // Cannot fail: all keys are strings.
        serde_json::to_value(self).unwrap_or_default()
    }

    fn check(&self) -> Result<(), String> {
        if self.revisions.len() > MAX_REVISIONS {
            return Err(format!("a stack of {} revisions exceeds {MAX_REVISIONS}", self.revisions.len()));
        }
        let pairs = self.revisions.iter().zip(self.revisions.iter().skip(1));
        for (index, (below, above)) in pairs.enumerate() {
            if below.number >= above.number {
                return Err(format!("revision {} is above revision {}", above.number, below.number));
            }
            if index > 0 && below.open <= above.open {
                return Err(format!("revision {} is open for too many waves", above.number));
            }
        }
        let top = self.top().map_or(0, |top| top.number);
        let open = self.above_stable().map(|above| above.open).max().unwrap_or(0);
        if self.next_number <= top && !self.revisions.is_empty() {
            return Err(format!("the next number {} was used already", self.next_number));
        }
        if open > self.waves.len() {
            return Err(format!("a revision is open for {open} of {} waves", self.waves.len()));
        }
        Ok(())
    }

    /// Returns the stable revision, which nodes get that no newer one is open for.
    #[must_use]
    pub(crate) fn stable(&self) -> Option<&Revision> {
        self.revisions.first()
    }

    /// Returns the newest revision, which is the stable one if it is alone.
    #[must_use]
    pub fn top(&self) -> Option<&Revision> {
        self.revisions.last()
    }

    /// Returns the newest revision while it is rolled out: not yet the stable one.
    #[must_use]
    pub fn progressing(&self) -> Option<&Revision> {
        self.top().filter(|_| self.revisions.len() > 1)
    }

    /// Returns the revisions above the stable one.
    fn above_stable(&self) -> impl DoubleEndedIterator<Item = &Revision> {
        self.revisions.iter().skip(1)
    }

    /// Returns the number of the first waves that are as in the status.
    pub(crate) fn unchanged_waves(&self, waves: &[Digest]) -> usize {
        if planted(Fault::WavesUnadopted) {
            return usize::MAX;
        }
        self.waves.iter().zip(waves).take_while(|(old, new)| old == new).count()
    }

    /// Returns which node has which revision, by the waves of the rule. Waves that were changed
    /// since the last write of the status are not open.
    #[must_use]
    pub fn assignment<'a>(&'a self, waves: &'a Waves) -> Assignment<'a> {
        Assignment { status: self, waves, unchanged: self.unchanged_waves(&waves.digests()) }
    }

    /// Returns whether a new revision fits on the stack, after those that it overtakes.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let kept = self.above_stable().filter(|revision| revision.open > FIRST_OPEN).count();
        kept + 2 <= MAX_REVISIONS || planted(Fault::StackUnbounded)
    }

    /// Returns whether an operator has paused the roll-out.
    #[must_use]
    pub(crate) fn is_paused_by_hand(&self) -> bool {
        self.paused.as_ref().is_some_and(|pause| pause.reason == PauseReason::Command)
    }

    /// Returns whether stored bodies of a revision can be deleted. Those of numbers that were not
    /// used yet belong to a snapshot that is about to begin.
    #[must_use]
    pub fn is_garbage(&self, number: u64, digest: Digest) -> bool {
        if planted(Fault::SweepsNothing) {
            return false;
        }
        let is_used = self.revisions.iter().any(|it| (it.number, it.digest) == (number, digest));
        !is_used && (number < self.next_number || planted(Fault::SweepsTooMuch))
    }

    /// Records the end of a revision.
    pub(crate) fn record(&mut self, revision: &Revision, at: Timestamp, outcome: Outcome, by: &str) {
        let Revision { number, digest, open, started_at, .. } = *revision;
        self.history.push(Ended {
            number,
            digest,
            open,
            started_at,
            ended_at: at,
            outcome,
            by: by.to_owned(),
        });
        let excess = self.history.len().saturating_sub(MAX_HISTORY);
        self.history.drain(..excess);
    }
}

#[cfg(test)]
mod tests;
