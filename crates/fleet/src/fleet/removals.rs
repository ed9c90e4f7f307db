//! State of removed nodes: the stage of each removal or readmission.
//!
//! A removed node has no machine. The reply to each of its Hellos says that it was removed and sets
//! a long retry delay; other frames of it are dropped. Requests of the node in flight at the store
//! end before the deletion: a record or a Node written after it would stay.
//!
//! The deletion at the store removes the Node that the node has by then, whoever has created it.
//! Its changes may arrive after the answer, and so may those of earlier Nodes. So after the
//! deletion the source has to catch up: a Node that exists then was created later, and readmits
//! the node. A readmission waits for that too, because the deletion of an earlier Node would
//! remove the node again.
//!
//! A removal that another process has not completed yet is completed here, too: until then a Node
//! that is seen may be an earlier one. The time of a removal identifies it. A readmission names the
//! removal that it ends, because the node may have returned, and been removed again, since it was
//! decided.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use edgesync_admin::cloud::{NodeInfo, RemovedNode, state};
use jiff::Timestamp;

use super::nodes::after;
use crate::admin::Answer;
use crate::source::{self, Admission, Removal, RemovalCause, SourceError};
use edgesync_object::time::rfc3339;
use edgesync_object::{NodeName, Status};
use edgesync_protocol::change::Uid;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};
use edgesync_protocol::frame::{HelloRequest, Up};
use edgesync_protocol::timing::Now;

/// Retry delay of a removed node, in seconds.
const RETRY_AFTER: u64 = 3600;
/// Delay before a failed removal or admission is retried.
const RETRY: Duration = Duration::from_secs(5);

/// Removed nodes, with retries and queues.
#[derive(Debug, Default)]
pub(super) struct Removals {
    nodes: BTreeMap<NodeName, Removed>,
    /// Index of the nodes in [`Stage::Draining`].
    draining: BTreeSet<NodeName>,
    /// Times at which failures are retried.
    retries: BTreeSet<(Now, NodeName)>,
    /// Questions to the source, each with the node that waits for its answer.
    questions: VecDeque<(u64, NodeName)>,
    /// Number of their frames dropped.
    dropped: u64,
}

#[derive(Debug)]
struct Removed {
    since: Timestamp,
    /// The recorded removal that was completed, if any is recorded.
    recorded: Option<Timestamp>,
    stage: Stage,
    /// Session of its last Hello.
    session: Option<String>,
    connection: Option<String>,
    /// Number of reads and writes in flight for it at the store.
    busy: u32,
    /// UID of its Node if that is known and its deletion is not.
    node: Option<Uid>,
    /// The question that is not answered yet.
    question: Option<Question>,
    /// Set if another process has readmitted it during the removal here.
    may_have_returned: bool,
    cause: RemovalCause,
    answers: Vec<Answer>,
}

/// A question to the source about a removed node: which changes are from before its removal.
#[derive(Debug)]
struct Question {
    number: u64,
    /// Set if a readmission waits for the answer.
    is_admission_due: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for requests in flight.
    Draining,
    /// The store is deleting it.
    Deleting,
    /// The deletion failed and is retried.
    Failed,
    /// The store has recorded the removal.
    Gone,
    /// The store is admitting it.
    Admitting,
    /// The admission failed and is retried.
    NotAdmitted,
}

impl Removals {
    /// Starts with the recorded removals. Those in `removing` are not complete:
    /// [`Removals::begin_deletion`] follows.
    pub(super) fn new(
        removed: impl IntoIterator<Item = (NodeName, Timestamp)>,
        removing: impl IntoIterator<Item = NodeName>,
    ) -> Self {
        let gone = |(name, since)| {
            let removed = Removed::new(since, RemovalCause::Recorded);
            (name, Removed { stage: Stage::Gone, recorded: Some(since), ..removed })
        };
        let mut removals = Self { nodes: removed.into_iter().map(gone).collect(), ..Self::default() };
        for name in removing {
            #[cfg(test)]
            if planted(Fault::UnfinishedRemovalIsGone) {
                continue;
            }
            removals.restart(&name);
        }
        removals
    }

    /// Restarts the removal of a removed node. An admission that was due belongs to the earlier
    /// one.
    fn restart(&mut self, name: &NodeName) {
        if let Some(removed) = self.nodes.get_mut(name) {
            removed.question = None;
            removed.answer(&Err(being_removed(name)));
            (removed.stage, removed.cause) = (Stage::Draining, RemovalCause::Recorded);
            self.draining.insert(name.clone());
        }
    }

    pub(super) fn has(&self, name: &NodeName) -> bool {
        self.nodes.contains_key(name)
    }

    pub(super) fn dropped_frames(&self) -> u64 {
        self.dropped
    }

    /// Records a new or lost connection. Returns whether the node is a removed one.
    pub(super) fn connected(&mut self, name: &NodeName, connection: Option<&str>) -> bool {
        let Some(removed) = self.nodes.get_mut(name) else { return false };
        removed.connection = connection.map(str::to_owned);
        true
    }

    pub(super) fn connection(&self, name: &NodeName) -> Option<&str> {
        self.nodes.get(name)?.connection.as_deref()
    }

    /// Records the loss of all connections.
    pub(super) fn disconnected(&mut self) {
        for removed in self.nodes.values_mut() {
            removed.connection = None;
        }
    }

    /// Returns the first removed node after this name.
    pub(super) fn next(&self, at: Option<&NodeName>) -> Option<(&NodeName, NodeInfo)> {
        let (name, removed) = self.nodes.range::<NodeName, _>(after(at)).next()?;
        Some((name, removed.show(name)))
    }

    pub(super) fn show_one(&self, name: &NodeName) -> Option<NodeInfo> {
        self.nodes.get(name).map(|removed| removed.show(name))
    }

    // --- removal

    /// Adds a node that is being removed.
    pub(super) fn insert(&mut self, name: &NodeName, last: LastState) {
        let LastState { cause, answer, node, busy, session, connection } = last;
        let mut removed =
            Removed { node, busy, session, connection, ..Removed::new(Timestamp::now(), cause) };
        removed.answers.extend(answer);
        self.nodes.insert(name.clone(), removed);
        self.draining.insert(name.clone());
    }

    /// Answers an operator's removal of a node that is removed already, once that is done. Returns
    /// the answer if the node is not removed.
    pub(super) fn remove_again(&mut self, name: &NodeName, answer: Answer) -> Option<Answer> {
        let Some(removed) = self.nodes.get_mut(name) else { return Some(answer) };
        match removed.stage {
            Stage::Draining | Stage::Deleting => {
                removed.cause = RemovalCause::Requested;
                removed.answers.push(answer);
            }
            // The requester may have disconnected.
            _ => drop(answer.send(Ok(false))),
        }
        None
    }

    /// Handles a recorded removal of a removed node. Returns whether it is another one than that
    /// which was completed here: the node has returned in between, and this replica has not
    /// observed it. [`Removals::begin_deletion`] follows.
    pub(super) fn removed_again(&mut self, name: &NodeName, removal: Timestamp) -> bool {
        let is_other = self
            .nodes
            .get(name)
            .is_some_and(|removed| removed.stage == Stage::Gone && removed.recorded != Some(removal));
        if is_other {
            self.restart(name);
        }
        is_other
    }

    /// Returns the nodes that may have requests in flight at the store.
    pub(super) fn draining(&self) -> Vec<NodeName> {
        self.draining.iter().cloned().collect()
    }

    /// Counts the end of a request for a node.
    pub(super) fn ended(&mut self, name: &NodeName) {
        if let Some(removed) = self.nodes.get_mut(name) {
            removed.busy = removed.busy.saturating_sub(1);
        }
    }

    /// Begins the deletion of a node at the store if no request for it is in flight. Returns its
    /// cause; [`Removals::removed`] follows.
    pub(super) fn begin_deletion(&mut self, name: &NodeName, is_writing: bool) -> Option<RemovalCause> {
        let removed = self.nodes.get_mut(name)?;
        let is_busy = removed.busy > 0 || is_writing;
        #[cfg(test)]
        let is_busy = is_busy && !planted(Fault::RemovalUnawaited);
        if removed.stage != Stage::Draining || is_busy {
            return None;
        }
        removed.stage = Stage::Deleting;
        self.draining.remove(name);
        Some(removed.cause.clone())
    }

    /// Handles the result of a deletion. Returns the next step.
    pub(super) fn removed(&mut self, now: Now, name: &NodeName, result: source::Result<Removal>) -> Next {
        let Some(removed) = self.nodes.get_mut(name) else { return Next::Nothing };
        match result {
            Ok(Removal::Removed(recorded)) => {
                tracing::info!(node = name.as_str(), "removed from the fleet");
                (removed.stage, removed.recorded) = (Stage::Gone, recorded);
                removed.since = recorded.unwrap_or(removed.since);
                removed.answer(&Ok(true));
                Next::CatchUp
            }
            Ok(Removal::Returned) if removed.cause == RemovalCause::Requested => {
                // An operator has requested it after it had begun.
                removed.stage = Stage::Draining;
                self.draining.insert(name.clone());
                Next::Delete
            }
            Ok(Removal::Returned) => {
                tracing::info!(
                    node = name.as_str(),
                    "removed from the fleet by another replica before, and readmitted or forgotten since"
                );
                Next::Return
            }
            Err(error) => {
                tracing::error!(node = name.as_str(), %error, "removing the node failed");
                removed.stage = Stage::Failed;
                removed.answer(&Err(failed(&error)));
                self.retries.insert((now + RETRY, name.clone()));
                Next::Nothing
            }
        }
    }

    /// Records a question to the source about the Node of a removed node.
    pub(super) fn asked(&mut self, name: &NodeName, question: u64) {
        if let Some(removed) = self.nodes.get_mut(name) {
            removed.question = Some(Question { number: question, is_admission_due: false });
            self.questions.push_back((question, name.clone()));
        }
    }

    /// Handles the answer to all questions up to this one, a node per call. Returns the next node
    /// to admit: its Node has proved to be new, or its readmission was due.
    pub(super) fn next_caught_up(&mut self, question: u64) -> Option<NodeName> {
        while let Some((asked, name)) = self.questions.pop_front_if(|(asked, _)| *asked <= question) {
            let Some(removed) = self.nodes.get_mut(&name) else { continue };
            let answered = removed.question.take_if(|question| question.number == asked);
            let Some(Question { is_admission_due, .. }) = answered else { continue };
            if is_admission_due {
                return Some(name);
            }
            if removed.node.is_some() {
                tracing::info!(node = name.as_str(), "Node was created, readmitting the node");
                return Some(name);
            }
        }
        None
    }

    /// Returns the next failed request that is due.
    pub(super) fn next_retry(&mut self, now: Now) -> Option<Retry> {
        self.retries.first().filter(|(at, _)| *at <= now)?;
        let (_, name) = self.retries.pop_first()?;
        Some(match self.nodes.get_mut(&name).map(|removed| &mut removed.stage) {
            Some(stage @ Stage::Failed) => {
                *stage = Stage::Draining;
                self.draining.insert(name.clone());
                Retry::Remove(name)
            }
            Some(Stage::NotAdmitted) => Retry::Admit(name),
            _ => Retry::Nothing,
        })
    }

    /// Handles a frame of a removed node. `is_removed`: whether the store still records a removal.
    pub(super) fn received(&mut self, name: &NodeName, frame: &Up, is_removed: bool) -> Reply {
        let Some(removed) = self.nodes.get_mut(name) else { return Reply::Nothing };
        let Up::Hello(hello) = frame else {
            self.dropped += 1;
            return Reply::Nothing;
        };
        removed.session = Some(hello.session.clone());
        if removed.stage == Stage::Gone && !is_removed { Reply::Admit } else { Reply::Refuse }
    }

    /// Returns the refusal for a removed node that has sent a Hello.
    pub(super) fn refusal(&self, name: &NodeName) -> Option<HelloRequest> {
        let removed = self.nodes.get(name)?;
        let (session, reason) = (removed.session.clone()?, removed.reason(name));
        Some(HelloRequest { session, reason, retry_after_seconds: RETRY_AFTER, removed: true })
    }

    // --- readmission

    /// Handles an operator's admission. Returns whether the caller must begin it; `Err` returns the
    /// answer if the node is not removed.
    pub(super) fn admit_again(&mut self, name: &NodeName, answer: Answer) -> Result<bool, Answer> {
        let Some(removed) = self.nodes.get_mut(name) else { return Err(answer) };
        match removed.stage {
            Stage::Draining | Stage::Deleting | Stage::Failed => {
                // The requester may have disconnected.
                let _ = answer.send(Err(being_removed(name)));
                Ok(false)
            }
            Stage::Admitting => {
                removed.answers.push(answer);
                Ok(false)
            }
            Stage::Gone | Stage::NotAdmitted => {
                removed.answers.push(answer);
                Ok(true)
            }
        }
    }

    /// Handles a Node of a removed node. Returns whether to ask the source to catch up, which
    /// tells whether the Node is new.
    pub(super) fn node_changed(&mut self, name: &NodeName, uid: &Uid) -> bool {
        let Some(removed) = self.nodes.get_mut(name) else { return false };
        removed.node = Some(uid.clone());
        removed.stage == Stage::Gone && removed.question.is_none()
    }

    /// Handles the deletion of the Node of a removed node.
    pub(super) fn node_deleted(&mut self, name: &NodeName) {
        if let Some(removed) = self.nodes.get_mut(name) {
            removed.node = None;
        }
    }

    /// Returns the removed nodes whose Nodes are known.
    pub(super) fn with_node(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.iter().filter(|(_, removed)| removed.node.is_some()).map(|(name, _)| name)
    }

    /// Returns whether an admission by another replica or an operator is new here. One that
    /// arrives before the removal has ended here is checked then, see
    /// [`Removals::take_may_have_returned`].
    pub(super) fn admitted_elsewhere(&mut self, name: &NodeName) -> bool {
        let Some(removed) = self.nodes.get_mut(name) else { return false };
        match removed.stage {
            Stage::Draining | Stage::Deleting | Stage::Failed => removed.may_have_returned = true,
            Stage::Gone => {
                tracing::info!(node = name.as_str(), "admitted by another replica, readmitting the node");
                return true;
            }
            Stage::Admitting | Stage::NotAdmitted => {}
        }
        false
    }

    /// Returns whether another process has readmitted the node during its removal here, and
    /// clears that.
    pub(super) fn take_may_have_returned(&mut self, name: &NodeName) -> bool {
        self.nodes.get_mut(name).is_some_and(|removed| std::mem::take(&mut removed.may_have_returned))
    }

    /// Begins the admission of a node, unless it has to wait until the source has caught up.
    /// Returns the request if it has begun; [`Removals::admitted`] follows.
    pub(super) fn begin_admission(&mut self, name: &NodeName) -> Option<AdmissionRequest> {
        let removed = self.nodes.get_mut(name)?;
        let question = removed.question.as_mut();
        #[cfg(test)]
        let question = question.filter(|_| !planted(Fault::ReadmissionUnawaited));
        if let Some(question) = question {
            question.is_admission_due = true;
            return None;
        }
        removed.stage = Stage::Admitting;
        Some(AdmissionRequest { removal: removed.recorded })
    }

    /// Handles the result of an admission. Returns the connection of the admitted node.
    /// `is_removed`: whether another process is known to have removed it again. Then, or if the
    /// store says so, the removal begins here, see [`Removals::begin_deletion`].
    pub(super) fn admitted(
        &mut self,
        now: Now,
        name: &NodeName,
        result: source::Result<Admission>,
        is_removed: bool,
    ) -> Option<Admitted> {
        let removed = self.nodes.get_mut(name)?;
        let admission = match result {
            Ok(admission) => admission,
            Err(error) => {
                tracing::error!(node = name.as_str(), %error, "readmitting the node failed");
                removed.answer(&Err(failed(&error)));
                removed.stage = Stage::NotAdmitted;
                self.retries.insert((now + RETRY, name.clone()));
                return None;
            }
        };
        removed.answer(&match admission {
            Admission::Admitted => Ok(true),
            Admission::RemovedAgain => Err(being_removed(name)),
        });
        if is_removed || admission == Admission::RemovedAgain {
            tracing::warn!(node = name.as_str(), "removed again by another process, removing the node");
            self.restart(name);
            return None;
        }
        tracing::info!(node = name.as_str(), "readmitted to the fleet");
        self.returned(name)
    }

    /// Ends the removal of a node. Returns its connection.
    pub(super) fn returned(&mut self, name: &NodeName) -> Option<Admitted> {
        let Removed { connection, session, .. } = self.nodes.remove(name)?;
        let request = session.map(|session| {
            let reason = "node readmitted to the fleet".to_owned();
            HelloRequest { session, reason, retry_after_seconds: 0, removed: false }
        });
        Some(Admitted { connection, request })
    }
}

/// Last state of a node that is being removed.
#[derive(Debug)]
pub(super) struct LastState {
    pub(super) cause: RemovalCause,
    /// Answer to the operator who requested it.
    pub(super) answer: Option<Answer>,
    /// UID of its Node, if it is known.
    pub(super) node: Option<Uid>,
    /// Number of reads and writes in flight for it at the store.
    pub(super) busy: u32,
    pub(super) session: Option<String>,
    pub(super) connection: Option<String>,
}

impl LastState {
    pub(super) fn new(cause: RemovalCause) -> Self {
        Self { cause, answer: None, node: None, busy: 0, session: None, connection: None }
    }
}

/// The next step after a removal at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Nothing,
    /// Ask the source to catch up, see [`Removals::asked`].
    CatchUp,
    /// Delete it again.
    Delete,
    /// End the removal: the node has returned.
    Return,
}

/// Reaction to a frame of a removed node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Nothing,
    /// Refuse it, see [`Removals::refusal`].
    Refuse,
    /// Admit the node: the store no longer records its removal.
    Admit,
}

/// A failed request to the store that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    Nothing,
    Remove(NodeName),
    Admit(NodeName),
}

/// A readmission to record at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AdmissionRequest {
    /// The recorded removal that it ends, if one is known.
    pub(super) removal: Option<Timestamp>,
}

/// A readmitted node, with its connection if there is one.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) connection: Option<String>,
    /// Request for a Hello, if it has sent one before.
    pub(super) request: Option<HelloRequest>,
}

impl Removed {
    fn new(since: Timestamp, cause: RemovalCause) -> Self {
        Self {
            since,
            recorded: None,
            stage: Stage::Draining,
            session: None,
            connection: None,
            busy: 0,
            node: None,
            question: None,
            may_have_returned: false,
            cause,
            answers: Vec::new(),
        }
    }

    fn show(&self, name: &NodeName) -> NodeInfo {
        NodeInfo::Removed(RemovedNode {
            name: name.to_string(),
            state: state::REMOVED.to_owned(),
            removed: rfc3339(self.since),
            connected: Some(self.connection.is_some()),
            objects_not_in_effect: None,
        })
    }

    fn reason(&self, name: &NodeName) -> String {
        format!(
            "node '{name}' was removed from the fleet at {}; hint: to readmit it, run 'edgesync-cloud node admit {name}'",
            rfc3339(self.since)
        )
    }

    fn answer(&mut self, result: &Result<bool, Status>) {
        for answer in self.answers.drain(..) {
            // The requester may have disconnected.
            let _ = answer.send(result.clone());
        }
    }
}

fn being_removed(name: &NodeName) -> Status {
    Status::unavailable(format!("node '{name}' is being removed"), 1)
}

fn failed(error: &SourceError) -> Status {
    Status::unavailable(format!("store: {error}"), 5)
}

#[cfg(test)]
mod tests;
