//! State of removed nodes: the stage of each removal or readmission.
//!
//! A removed node has no machine. The reply to each of its Hellos says that it was removed and sets
//! a long retry delay; other frames of it are dropped. Requests of the node in flight at the store
//! end before the deletion: a record or a Node written after it would stay.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use edgesync_admin::cloud::{NodeInfo, RemovedNode, state};
use jiff::Timestamp;

use super::nodes::after;
use crate::admin::Answer;
use crate::source::{self, SourceError};
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
    /// UID of its Node if that is known and its deletion is not: its changes are from before the
    /// removal.
    node: Option<Uid>,
    /// Set if its Node was created during the deletion: it is readmitted afterwards.
    readmit: bool,
    /// Whether an operator requested the removal; otherwise its Node was deleted.
    by_operator: bool,
    answers: Vec<Answer>,
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
        let gone = |(name, since)| (name, Removed { stage: Stage::Gone, ..Removed::new(since) });
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
        let LastState { answer, node, busy, session, connection } = last;
        let mut removed = Removed { node, busy, session, connection, ..Removed::new(Timestamp::now()) };
        removed.by_operator = answer.is_some();
        removed.answers.extend(answer);
        self.nodes.insert(name.clone(), removed);
        self.draining.insert(name.clone());
    }

    /// Answers an operator's removal of a node that is removed already, once that is done. Returns
    /// the answer if the node is not removed.
    pub(super) fn remove_again(&mut self, name: &NodeName, answer: Answer) -> Option<Answer> {
        let Some(removed) = self.nodes.get_mut(name) else { return Some(answer) };
        match removed.stage {
            Stage::Draining | Stage::Deleting => removed.answers.push(answer),
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

    /// Begins the deletion of a node at the store if no request for it is in flight. Returns
    /// whether an operator requested it; [`Removals::removed`] follows.
    pub(super) fn begin_deletion(&mut self, name: &NodeName, is_writing: bool) -> Option<bool> {
        let removed = self.nodes.get_mut(name)?;
        let is_busy = removed.busy > 0 || is_writing;
        #[cfg(test)]
        let is_busy = is_busy && !planted(Fault::RemovalUnawaited);
        if removed.stage != Stage::Draining || is_busy {
            return None;
        }
        removed.stage = Stage::Deleting;
        self.draining.remove(name);
        Some(removed.by_operator)
    }

    /// Handles the result of a deletion. Returns whether to readmit the node at once.
    pub(super) fn removed(&mut self, now: Now, name: &NodeName, result: source::Result<bool>) -> bool {
        let Some(removed) = self.nodes.get_mut(name) else { return false };
        match result {
            Ok(_) => {
                tracing::info!(node = name.as_str(), "removed from the fleet");
                removed.stage = Stage::Gone;
                removed.answer(&Ok(true));
                removed.readmit
            }
            Err(error) => {
                tracing::error!(node = name.as_str(), %error, "removing the node failed");
                removed.stage = Stage::Failed;
                removed.answer(&Err(failed(&error)));
                self.retries.insert((now + RETRY, name.clone()));
                false
            }
        }
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

    /// Handles a Node of a removed node. A new one readmits the node; one created during the
    /// deletion does so after it. Before the deletion, the Node comes from a write in flight, and
    /// the deletion removes it. A Node whose deletion is not known yet is not new: its change was
    /// on its way when the node was removed. Returns whether to admit at once.
    pub(super) fn node_changed(&mut self, name: &NodeName, uid: &Uid) -> bool {
        let Some(removed) = self.nodes.get_mut(name) else { return false };
        let is_stale = removed.node.as_ref() == Some(uid);
        #[cfg(test)]
        let is_stale = is_stale && !planted(Fault::StaleNodeReadmits);
        match removed.stage {
            _ if is_stale => {}
            Stage::Draining | Stage::Failed => removed.node = Some(uid.clone()),
            Stage::Deleting => removed.readmit = true,
            Stage::Gone => {
                tracing::info!(node = name.as_str(), "Node was created, readmitting the node");
                return true;
            }
            _ => {}
        }
        false
    }

    /// Handles the deletion of the Node of a removed node.
    pub(super) fn node_deleted(&mut self, name: &NodeName) {
        if let Some(removed) = self.nodes.get_mut(name) {
            (removed.node, removed.readmit) = (None, false);
        }
    }

    /// Returns the removed nodes whose Nodes are known.
    pub(super) fn with_node(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.iter().filter(|(_, removed)| removed.node.is_some()).map(|(name, _)| name)
    }

    /// Returns whether an admission by another replica or an operator is new here.
    pub(super) fn admitted_elsewhere(&self, name: &NodeName) -> bool {
        let is_news = self.nodes.get(name).is_some_and(|removed| removed.stage == Stage::Gone);
        if is_news {
            tracing::info!(node = name.as_str(), "admitted by another replica, readmitting the node");
        }
        is_news
    }

    /// Begins the admission of a node. Returns whether it was removed; [`Removals::admitted`]
    /// follows.
    pub(super) fn begin_admission(&mut self, name: &NodeName) -> bool {
        let removed = self.nodes.get_mut(name);
        removed.map(|removed| removed.stage = Stage::Admitting).is_some()
    }

    /// Handles the result of an admission. Returns the connection of the admitted node.
    pub(super) fn admitted(
        &mut self,
        now: Now,
        name: &NodeName,
        result: source::Result<bool>,
    ) -> Option<Admitted> {
        let removed = self.nodes.get_mut(name)?;
        if let Err(error) = result {
            tracing::error!(node = name.as_str(), %error, "readmitting the node failed");
            removed.answer(&Err(failed(&error)));
            removed.stage = Stage::NotAdmitted;
            self.retries.insert((now + RETRY, name.clone()));
            return None;
        }
        tracing::info!(node = name.as_str(), "readmitted to the fleet");
        removed.answer(&Ok(true));
        let Removed { connection, session, .. } = self.nodes.remove(name)?;
        let request = session.map(|session| {
            let reason = "node readmitted to the fleet".to_owned();
            HelloRequest { session, reason, retry_after_seconds: 0, removed: false }
        });
        Some(Admitted { connection, request })
    }
}

/// Last state of a node that is being removed.
#[derive(Debug, Default)]
pub(super) struct LastState {
    /// Answer to the operator who requested it; `None` if its Node was deleted.
    pub(super) answer: Option<Answer>,
    /// UID of its Node, if it is known.
    pub(super) node: Option<Uid>,
    /// Number of reads and writes in flight for it at the store.
    pub(super) busy: u32,
    pub(super) session: Option<String>,
    pub(super) connection: Option<String>,
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
    fn new(since: Timestamp) -> Self {
        Self {
            since,
            stage: Stage::Draining,
            session: None,
            connection: None,
            busy: 0,
            node: None,
            readmit: false,
            by_operator: false,
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

    /// Removes a node at the store, with a change of its Node before the deletion or without.
    fn removed(has_node: bool, is_created: bool) -> (Removals, NodeName) {
        let (mut removals, name) = (Removals::default(), node_name("edge-1"));
        removals.insert(&name, LastState { node: has_node.then(|| "old".into()), ..LastState::default() });
        assert!(!is_created || !removals.node_changed(&name, &"old".into()));
        assert_eq!(removals.begin_deletion(&name, false), Some(false));
        assert!(!removals.removed(Now::ZERO, &name, Ok(true)));
        (removals, name)
    }

    #[test]
    fn node_from_before_the_removal_readmits_nobody() {
        for (has_node, is_created) in [(true, false), (false, true)] {
            let (mut removals, name) = removed(has_node, is_created);
            assert!(!removals.node_changed(&name, &"old".into()), "its deletion has not arrived yet");
            assert_eq!(removals.with_node().collect::<Vec<_>>(), [&name]);
            assert!(removals.node_changed(&name, &"new".into()), "its deletion was missed");
            removals.node_deleted(&name);
            assert!(removals.node_changed(&name, &"old".into()), "a store may create it with its old UID");
        }
    }

    #[test]
    fn node_seen_between_attempts_to_delete_it_readmits_nobody() {
        let (mut removals, name) = (Removals::default(), node_name("edge-1"));
        removals.insert(&name, LastState::default());
        assert_eq!(removals.begin_deletion(&name, false), Some(false));
        assert!(!removals.removed(Now::ZERO, &name, Err(SourceError::Unread("gone".into()))));
        assert!(!removals.node_changed(&name, &"old".into()));
        let now = Now::ZERO + RETRY;
        assert_eq!(removals.next_retry(now), Some(Retry::Remove(name.clone())));
        assert_eq!(removals.begin_deletion(&name, false), Some(false));
        assert!(!removals.node_changed(&name, &"old".into()));
        assert!(!removals.removed(now, &name, Ok(true)), "the second attempt deletes it");
    }

    #[test]
    fn new_node_readmits_a_node_removed_without_one() {
        let (mut removals, name) = removed(false, false);
        assert!(removals.node_changed(&name, &"new".into()));
    }
}
