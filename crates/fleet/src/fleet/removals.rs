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

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use edgesync_admin::cloud::{NodeInfo, RemovedNode, state};
use jiff::Timestamp;

use super::nodes::after;
use crate::admin::Answer;
use crate::source::{self, Removal, RemovalCause, SourceError};
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
    pub(super) fn new(removed: impl IntoIterator<Item = (NodeName, Timestamp)>) -> Self {
        let gone = |(name, since)| {
            (name, Removed { stage: Stage::Gone, ..Removed::new(since, RemovalCause::Recorded) })
        };
        Self { nodes: removed.into_iter().map(gone).collect(), ..Self::default() }
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
            Ok(Removal::Removed) => {
                tracing::info!(node = name.as_str(), "removed from the fleet");
                removed.stage = Stage::Gone;
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

    /// Handles a frame of a removed node. `is_removed` returns whether the store still records the
    /// removal.
    pub(super) fn received(
        &mut self,
        name: &NodeName,
        frame: &Up,
        is_removed: impl FnOnce() -> bool,
    ) -> Reply {
        let Some(removed) = self.nodes.get_mut(name) else { return Reply::Nothing };
        let Up::Hello(hello) = frame else {
            self.dropped += 1;
            return Reply::Nothing;
        };
        removed.session = Some(hello.session.clone());
        if removed.stage == Stage::Gone && !is_removed() { Reply::Admit } else { Reply::Refuse }
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
                let busy = format!("node '{name}' is being removed");
                // The requester may have disconnected.
                let _ = answer.send(Err(Status::unavailable(busy, 1)));
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
    /// Returns whether it has begun; [`Removals::admitted`] follows.
    pub(super) fn begin_admission(&mut self, name: &NodeName) -> bool {
        let Some(removed) = self.nodes.get_mut(name) else { return false };
        let question = removed.question.as_mut();
        #[cfg(test)]
        let question = question.filter(|_| !planted(Fault::ReadmissionUnawaited));
        if let Some(question) = question {
            question.is_admission_due = true;
            return false;
        }
        removed.stage = Stage::Admitting;
        true
    }

    /// Handles the result of an admission. Returns the connection of the admitted node.
    /// `is_removed` returns whether another process has removed it again: then the removal begins
    /// here, see [`Removals::begin_deletion`].
    pub(super) fn admitted(
        &mut self,
        now: Now,
        name: &NodeName,
        result: source::Result<bool>,
        is_removed: impl FnOnce() -> bool,
    ) -> Option<Admitted> {
        let removed = self.nodes.get_mut(name)?;
        if let Err(error) = result {
            tracing::error!(node = name.as_str(), %error, "readmitting the node failed");
            removed.answer(&Err(failed(&error)));
            removed.stage = Stage::NotAdmitted;
            self.retries.insert((now + RETRY, name.clone()));
            return None;
        }
        removed.answer(&Ok(true));
        if is_removed() {
            (removed.stage, removed.cause) = (Stage::Draining, RemovalCause::Recorded);
            self.draining.insert(name.clone());
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

fn failed(error: &SourceError) -> Status {
    Status::unavailable(format!("store: {error}"), 5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_name;

    fn last_state(node: Option<&str>) -> LastState {
        LastState { node: node.map(Uid::from), ..LastState::new(RemovalCause::Requested) }
    }

    /// Removes a node at the store, and asks the source to catch up. `during` is a Node that is
    /// seen during the deletion.
    fn removed(node: Option<&str>, during: Option<&str>) -> (Removals, NodeName) {
        let (mut removals, name) = (Removals::default(), node_name("edge-1"));
        removals.insert(&name, last_state(node));
        assert_eq!(removals.begin_deletion(&name, false), Some(RemovalCause::Requested));
        if let Some(uid) = during {
            assert!(!removals.node_changed(&name, &uid.into()), "its deletion may be on its way");
        }
        assert_eq!(removals.removed(Now::ZERO, &name, Ok(Removal::Removed)), Next::CatchUp);
        removals.asked(&name, 1);
        (removals, name)
    }

    #[test]
    fn node_that_the_removal_has_deleted_readmits_nobody() {
        for (node, during) in [(Some("old"), None), (None, Some("old")), (Some("older"), Some("old"))] {
            let (mut removals, name) = removed(node, during);
            assert!(!removals.node_changed(&name, &"old".into()), "the source has been asked");
            assert_eq!(removals.with_node().collect::<Vec<_>>(), [&name]);
            removals.node_deleted(&name);
            assert_eq!(removals.next_caught_up(1), None);
            assert!(removals.node_changed(&name, &"old".into()), "a store may create it with its old UID");
            removals.asked(&name, 2);
            assert_eq!(removals.next_caught_up(1), None);
            assert_eq!(removals.next_caught_up(3), Some(name));
            assert_eq!(removals.next_caught_up(3), None);
        }
    }

    #[test]
    fn node_created_after_the_deletion_readmits_its_node() {
        for (node, during) in [(None, None), (Some("old"), None), (Some("old"), Some("new"))] {
            let (mut removals, name) = removed(node, during);
            // Its predecessor may have been deleted while changes were lost.
            assert!(!removals.node_changed(&name, &"new".into()));
            assert_eq!(removals.next_caught_up(1), Some(name.clone()));
            assert!(removals.begin_admission(&name));
            assert!(removals.admitted(Now::ZERO, &name, Ok(true), || false).is_some());
            assert!(!removals.has(&name));
        }
    }

    #[test]
    fn readmission_waits_for_changes_from_before_the_removal() {
        let (mut removals, name) = removed(Some("old"), None);
        assert!(!removals.begin_admission(&name));
        assert!(!removals.begin_admission(&name));
        assert_eq!(removals.next_caught_up(0), None);
        removals.node_deleted(&name);
        assert_eq!(removals.next_caught_up(1), Some(name.clone()));
        assert!(removals.begin_admission(&name));
    }

    #[test]
    fn answer_for_an_earlier_removal_admits_nobody() {
        let (mut removals, name) = removed(None, None);
        removals.returned(&name).unwrap();
        removals.insert(&name, last_state(Some("old")));
        removals.begin_deletion(&name, false).unwrap();
        assert_eq!(removals.removed(Now::ZERO, &name, Ok(Removal::Removed)), Next::CatchUp);
        removals.asked(&name, 2);
        assert_eq!(removals.next_caught_up(1), None);
        assert_eq!(removals.next_caught_up(2), Some(name));
    }

    #[test]
    fn node_seen_between_attempts_to_delete_it_readmits_nobody() {
        let (mut removals, name) = (Removals::default(), node_name("edge-1"));
        removals.insert(&name, last_state(None));
        removals.begin_deletion(&name, false).unwrap();
        let failed = Err(SourceError::Unread("gone".into()));
        assert_eq!(removals.removed(Now::ZERO, &name, failed), Next::Nothing);
        assert!(!removals.node_changed(&name, &"old".into()));
        let now = Now::ZERO + RETRY;
        assert_eq!(removals.next_retry(now), Some(Retry::Remove(name.clone())));
        removals.begin_deletion(&name, false).unwrap();
        assert_eq!(removals.removed(now, &name, Ok(Removal::Removed)), Next::CatchUp);
        removals.asked(&name, 1);
        removals.node_deleted(&name);
        assert_eq!(removals.next_caught_up(1), None, "the second attempt has deleted it");
    }

    #[test]
    fn late_removal_of_a_returned_node_ends_unless_requested() {
        let (mut removals, name) = (Removals::default(), node_name("edge-1"));
        for is_requested in [false, true] {
            removals.insert(&name, LastState::new(RemovalCause::NodeDeleted(None)));
            removals.begin_deletion(&name, false).unwrap();
            if is_requested {
                assert!(removals.remove_again(&name, tokio::sync::oneshot::channel().0).is_none());
            }
            let next = removals.removed(Now::ZERO, &name, Ok(Removal::Returned));
            assert_eq!(next, if is_requested { Next::Delete } else { Next::Return });
            if is_requested {
                assert_eq!(removals.begin_deletion(&name, false), Some(RemovalCause::Requested));
            }
            assert!(removals.returned(&name).is_some());
        }
    }

    #[test]
    fn admission_elsewhere_during_a_removal_is_remembered() {
        let (mut removals, name) = (Removals::default(), node_name("edge-1"));
        assert!(!removals.admitted_elsewhere(&name), "it is not removed");
        removals.insert(&name, LastState::new(RemovalCause::Recorded));
        assert!(!removals.admitted_elsewhere(&name));
        removals.begin_deletion(&name, false).unwrap();
        removals.removed(Now::ZERO, &name, Ok(Removal::Removed));
        assert!(removals.take_may_have_returned(&name) && !removals.take_may_have_returned(&name));
        assert!(removals.admitted_elsewhere(&name));
    }

    #[test]
    fn node_removed_again_during_its_admission_stays_removed() {
        let mut removals = Removals::new([(node_name("edge-1"), Timestamp::UNIX_EPOCH)]);
        let name = node_name("edge-1");
        assert!(removals.begin_admission(&name));
        assert!(removals.admitted(Now::ZERO, &name, Ok(true), || true).is_none());
        assert_eq!(removals.begin_deletion(&name, false), Some(RemovalCause::Recorded));
    }
}
