//! Answers of nodes to the newest revision, judged per node and counted per wave and group.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use edgesync_object::NodeName;
use jiff::{SignedDuration, Timestamp};

use super::fault::{Fault, planted};
use super::revision::Digest;
use super::spec::Rollout;
use super::status::Revision;

/// Limit of the failures of a wave that are shown.
pub(crate) const MAX_FAILURES_SHOWN: usize = 5;
/// A selection that does not rest is taken after this many times the settle time.
const SETTLE_AT_MOST: u32 = 10;

/// Report of a node about the revision that is assigned to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It does not hold the whole revision, or still holds an object that was removed.
    Incomplete,
    /// It holds the revision, and cannot report what is in effect: an older program, or no helper.
    HeldOnly,
    /// It holds the revision, and an object that a file rule concerns is not in effect yet.
    NotYetInEffect,
    /// An object waits since this time: for a window or a hold, or to come over a metered link.
    Waiting(Timestamp),
    /// It holds the revision, and each object that a file rule concerns is in effect.
    InEffect,
    /// An object was refused, or could not be applied; with a message.
    Failed(String),
}

/// The connection of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Connected since this time.
    Connected(Timestamp),
    /// Not connected.
    Disconnected {
        /// Time of its last message; the minimum if there was none.
        last_heard: Timestamp,
        /// End of its planned absence.
        expected: Option<Timestamp>,
    },
}

/// Facts about a node whose wave the newest revision is open for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// When the revision was assigned to it; `None` if that is still to be done.
    pub assigned_at: Option<Timestamp>,
    /// When it was connected first since then.
    pub first_connected: Option<Timestamp>,
    /// When it last ceased to wait ([`Answer::Waiting`]): its time to answer begins again.
    pub waited_until: Option<Timestamp>,
    /// Its answer.
    pub answer: Answer,
    /// Its connection.
    pub link: Link,
}

/// State of a node in its wave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// The revision is held and in effect.
    Good,
    /// The revision is held; a success if the wave says so.
    HeldOnly,
    /// A failure, with a message.
    Failed(String),
    /// A failure: connected and without an answer for longer than `healthyWithin`.
    Silent,
    /// Waited for.
    Pending,
    /// Waits for a window, a hold or a metered link; waited for.
    Waiting,
    /// Waits for a window, a hold or a metered link for longer than `waiting.after`; not waited
    /// for.
    Excused,
    /// Away for longer than `offline.after`; not waited for.
    Away,
}

/// State of a node, and when it changes by the clock alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classified {
    /// The state.
    pub state: NodeState,
    /// When to classify the node again.
    pub until: Option<Timestamp>,
}

/// A node that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedNode {
    /// Name of the node.
    pub node: NodeName,
    /// Its failure.
    pub message: String,
}

/// Counts of a group of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Nodes that have answered, failures included.
    pub answered: usize,
    /// Nodes that have failed.
    pub failed: usize,
    /// Nodes that are waited for.
    pub awaited: usize,
}

/// Counts of a wave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaveCounts {
    /// All nodes of the wave.
    pub nodes: usize,
    /// [`NodeState::Good`].
    pub good: usize,
    /// [`NodeState::HeldOnly`].
    pub held_only: usize,
    /// [`NodeState::Failed`].
    pub failed: usize,
    /// [`NodeState::Silent`].
    pub silent: usize,
    /// [`NodeState::Pending`].
    pub pending: usize,
    /// [`NodeState::Waiting`].
    pub waiting: usize,
    /// [`NodeState::Excused`].
    pub excused: usize,
    /// [`NodeState::Away`].
    pub away: usize,
    /// The same by the value of the label that `groupBy` names, with the nodes that lack it under
    /// `None`; one group without `groupBy`.
    pub groups: BTreeMap<Option<String>, Group>,
    /// The first failures by name, at most [`MAX_FAILURES_SHOWN`].
    pub failures: Vec<FailedNode>,
}

/// The objects that the rule selects now, without bodies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// Digest of [`super::revision::Rejections::plan`]; `None` if there is none.
    pub digest: Option<Digest>,
    /// When it began to differ from the newest revision.
    pub differs_since: Timestamp,
    /// When it changed last.
    pub changed_at: Timestamp,
}

/// Objects of a rule beyond the limit of a roll-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// Number of objects.
    pub objects: usize,
    /// Their limit.
    pub max_objects: usize,
    /// Length of their bodies.
    pub bytes: u64,
    /// Its limit.
    pub max_bytes: u64,
}

/// Observations of a roll-out by the cloud side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Number of the revision that the counts are of.
    pub revision: u64,
    /// Number of the waves that it was open for when they were counted
    /// ([`super::status::Assignment::counted`]).
    pub open: usize,
    /// Counts of each wave in order; of waves that are not open, the number of nodes.
    pub waves: Vec<WaveCounts>,
    /// The content of a new revision.
    pub planned: Planned,
    /// The limits, if the rule's objects exceed them.
    pub too_large: Option<TooLarge>,
    /// Why the bodies of the next revision could not be stored, if the last attempt has failed.
    pub unstored: Option<String>,
    /// Older rules that decide about objects of this one on some nodes.
    pub overlaps: Vec<String>,
    /// Revisions whose bodies cannot be read any more.
    pub lost: BTreeSet<u64>,
}

/// Returns a time later by a duration; the last one if there is none.
pub(crate) fn later(time: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

impl NodeFacts {
    /// Judges the node. Facts that it has reported count although it is away; only what is missing
    /// is excused.
    #[must_use]
    pub fn classify(&self, now: Timestamp, rollout: &Rollout) -> Classified {
        let settled = |state| Classified { state, until: None };
        let Some(assigned_at) = self.assigned_at else { return settled(NodeState::Pending) };
        let begun_at = self.waited_until.map_or(assigned_at, |waited| waited.max(assigned_at));
        let (state, excused, term) = match &self.answer {
            Answer::InEffect => return settled(NodeState::Good),
            Answer::HeldOnly => return settled(NodeState::HeldOnly),
            Answer::Failed(message) => return settled(NodeState::Failed(message.clone())),
            Answer::Waiting(_) if planted(Fault::WaitingFails) => {
                return settled(NodeState::Failed("waiting".into()));
            }
            Answer::Waiting(since) => {
                (NodeState::Waiting, NodeState::Excused, Some(later(*since, rollout.waiting_after)))
            }
            Answer::Incomplete | Answer::NotYetInEffect => (NodeState::Pending, NodeState::Silent, None),
        };
        let (away_at, term) = match self.link {
            Link::Connected(since) => {
                let silent_at = later(since.max(begun_at), rollout.healthy_within);
                (None, term.or_else(|| (!planted(Fault::SilentIsPending)).then_some(silent_at)))
            }
            Link::Disconnected { last_heard, expected } => {
                let from = expected.map_or(last_heard, |expected| expected.max(last_heard));
                let away_at = later(from, rollout.offline_after);
                (Some(away_at).filter(|_| !planted(Fault::AwayBlocks)), term)
            }
        };
        // A node that comes and goes is neither silent nor away; the wait for it has to end too.
        let enough = later(term_start(self.first_connected, begun_at), rollout.healthy_within);
        let enough = later(enough, rollout.offline_after);
        let is_waiting = matches!(state, NodeState::Waiting);
        let gone = self.first_connected.is_some() && !is_waiting && !planted(Fault::FlappingBlocks);
        let away_at = match away_at {
            Some(at) if gone => Some(at.min(enough)),
            None if gone => Some(enough),
            at => at,
        };
        if term.is_some_and(|at| at <= now) {
            settled(excused)
        } else if away_at.is_some_and(|at| at <= now) {
            Classified { state: NodeState::Away, until: term }
        } else {
            Classified { state, until: term.into_iter().chain(away_at).min() }
        }
    }
}

fn term_start(first_connected: Option<Timestamp>, begun_at: Timestamp) -> Timestamp {
    first_connected.map_or(begun_at, |first| first.max(begun_at))
}

impl WaveCounts {
    /// Counts a node. `group` is the value of the label that `groupBy` names, if it is assigned.
    pub fn add(&mut self, node: &NodeName, group: Option<&str>, state: &NodeState) {
        self.nodes += 1;
        let counts = self.groups.entry(group.map(str::to_owned)).or_default();
        let failure = match state {
            NodeState::Good => {
                self.good += 1;
                counts.answered += 1;
                None
            }
            NodeState::HeldOnly => {
                self.held_only += 1;
                counts.answered += 1;
                None
            }
            NodeState::Failed(message) => {
                self.failed += 1;
                Some(message.clone())
            }
            NodeState::Silent => {
                self.silent += 1;
                Some("connected, and no answer within healthyWithin".to_owned())
            }
            NodeState::Pending => {
                self.pending += 1;
                counts.awaited += 1;
                None
            }
            NodeState::Waiting => {
                self.waiting += 1;
                counts.awaited += 1;
                None
            }
            NodeState::Excused => {
                self.excused += 1;
                None
            }
            NodeState::Away => {
                self.away += 1;
                None
            }
        };
        if let Some(message) = failure {
            counts.answered += 1;
            counts.failed += 1;
            let at = self.failures.partition_point(|failed| failed.node < *node);
            self.failures.insert(at, FailedNode { node: node.clone(), message });
            self.failures.truncate(MAX_FAILURES_SHOWN);
        }
    }

    /// Counts a node of a wave that is not open.
    pub fn add_unopened(&mut self) {
        self.nodes += 1;
    }
}

impl Observed {
    /// Returns whether the counts are of this revision, as it is open now.
    pub(crate) fn is_of(&self, revision: &Revision) -> bool {
        let is_same = (self.revision, self.open) == (revision.number, revision.open);
        is_same || planted(Fault::CountsOfAnyRevision)
    }
}

impl Planned {
    /// Follows the selection: call it whenever the plan may have changed. `top` is the digest of
    /// the newest revision.
    pub fn follow(&mut self, now: Timestamp, digest: Option<Digest>, top: Option<Digest>) {
        if self.digest != digest {
            if self.digest.is_none() || self.digest == top {
                self.differs_since = now;
            }
            self.digest = digest;
            self.changed_at = now;
        }
    }

    /// Returns when the selection counts as settled: it has rested for `settle`, or differs for ten
    /// times as long.
    #[must_use]
    pub(crate) fn settled_at(&self, settle: Duration) -> Timestamp {
        later(self.changed_at, settle).min(later(self.differs_since, settle * SETTLE_AT_MOST))
    }
}

#[cfg(test)]
mod tests;
