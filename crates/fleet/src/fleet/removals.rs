//! The nodes that were removed from the fleet, and how far each is on its way out or back in.
//!
//! A removed node has no machine. To each Hello it is told that it was removed, and it waits long
//! before the next one; other frames of it are dropped. What the store is doing about the node is
//! let end first: a record or a Node that is written after the removal would stay.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use edgesync_admin::cloud::{NodeInfo, RemovedNode, state};
use jiff::Timestamp;

use super::nodes::after;
use crate::admin::Answer;
use crate::source::{self, SourceError};
use edgesync_object::time::rfc3339;
use edgesync_object::{NodeName, Status};
use edgesync_protocol::frame::{HelloRequest, Up};
use edgesync_protocol::timing::Now;

/// How long a removed node waits before it asks again, in seconds.
const RETRY_AFTER: u64 = 3600;
/// How long a removal, or an admission, that failed is not tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The nodes that were removed.
#[derive(Debug, Default)]
pub(super) struct Removals {
    nodes: BTreeMap<NodeName, Removed>,
    /// Those that are [`Stage::Draining`].
    draining: BTreeSet<NodeName>,
    /// When something that failed is tried again.
    retries: BTreeSet<(Now, NodeName)>,
    /// Frames of them that were dropped.
    dropped: u64,
}

#[derive(Debug)]
struct Removed {
    since: Timestamp,
    stage: Stage,
    /// The session of its last Hello.
    session: Option<String>,
    connection: Option<String>,
    /// Reads and writes of the store about it that are under way.
    busy: u32,
    /// Its Node was created anew: it is to come back.
    wanted: bool,
    /// An operator has asked for it; else its Node was deleted.
    asked: bool,
    answers: Vec<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// What is under way about it is to end first.
    Draining,
    /// The store is removing it.
    Deleting,
    /// The store could not: it is tried again.
    Failed,
    /// The store knows that it was removed.
    Gone,
    /// The store is admitting it.
    Admitting,
    /// The store could not: it is tried again.
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

    /// The connection of a node has come or gone. Tells whether it is one of these.
    pub(super) fn connected(&mut self, name: &NodeName, connection: Option<&str>) -> bool {
        let Some(removed) = self.nodes.get_mut(name) else { return false };
        removed.connection = connection.map(str::to_owned);
        true
    }

    pub(super) fn connection(&self, name: &NodeName) -> Option<&str> {
        self.nodes.get(name)?.connection.as_deref()
    }

    /// All connections have gone.
    pub(super) fn disconnected(&mut self) {
        for removed in self.nodes.values_mut() {
            removed.connection = None;
        }
    }

    /// The node after this one in their order, as JSON.
    pub(super) fn next(&self, at: Option<&NodeName>) -> Option<(&NodeName, NodeInfo)> {
        let (name, removed) = self.nodes.range::<NodeName, _>(after(at)).next()?;
        Some((name, removed.show(name)))
    }

    pub(super) fn show_one(&self, name: &NodeName) -> Option<NodeInfo> {
        self.nodes.get(name).map(|removed| removed.show(name))
    }

    // --- out

    /// Enters a node that is removed.
    pub(super) fn insert(&mut self, name: &NodeName, leaving: Leaving) {
        let Leaving { answer, busy, session, connection } = leaving;
        let mut removed = Removed { busy, session, connection, ..Removed::new(Timestamp::now()) };
        removed.asked = answer.is_some();
        removed.answers.extend(answer);
        self.nodes.insert(name.clone(), removed);
        self.draining.insert(name.clone());
    }

    /// Answers an operator who removes a node that was removed before, once that is done. Returns
    /// the answer otherwise.
    pub(super) fn remove_again(&mut self, name: &NodeName, answer: Answer) -> Option<Answer> {
        let Some(removed) = self.nodes.get_mut(name) else { return Some(answer) };
        match removed.stage {
            Stage::Draining | Stage::Deleting => removed.answers.push(answer),
            // Those who asked may have gone.
            _ => drop(answer.send(Ok(false))),
        }
        None
    }

    /// Those of which a read or write of the store may be under way.
    pub(super) fn draining(&self) -> Vec<NodeName> {
        self.draining.iter().cloned().collect()
    }

    /// A read or write of the store about a node has ended.
    pub(super) fn ended(&mut self, name: &NodeName) {
        if let Some(removed) = self.nodes.get_mut(name) {
            removed.busy = removed.busy.saturating_sub(1);
        }
    }

    /// Begins to remove a node from the store, if nothing is under way about it any more. Returns
    /// whether an operator has asked for that; [`Removals::removed`] follows.
    pub(super) fn begin_deletion(&mut self, name: &NodeName, is_writing: bool) -> Option<bool> {
        let removed = self.nodes.get_mut(name)?;
        if removed.stage != Stage::Draining || removed.busy > 0 || is_writing {
            return None;
        }
        removed.stage = Stage::Deleting;
        self.draining.remove(name);
        Some(removed.asked)
    }

    /// The store has removed a node, or could not. Returns whether it is to be admitted at once.
    pub(super) fn removed(&mut self, now: Now, name: &NodeName, result: source::Result<bool>) -> bool {
        let Some(removed) = self.nodes.get_mut(name) else { return false };
        match result {
            Ok(_) => {
                tracing::info!(node = name.as_str(), "removed from the fleet");
                removed.stage = Stage::Gone;
                removed.answer(&Ok(true));
                removed.wanted
            }
            Err(error) => {
                tracing::error!(node = name.as_str(), %error, "the node could not be removed");
                removed.stage = Stage::Failed;
                removed.answer(&Err(failed(&error)));
                self.retries.insert((now + RETRY, name.clone()));
                false
            }
        }
    }

    /// The next request to the store that failed and is due again.
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

    /// Takes a frame of a removed node; `is_removed` says whether the store still has it as
    /// removed.
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

    /// What a removed node is told, if it has said Hello.
    pub(super) fn refusal(&self, name: &NodeName) -> Option<HelloRequest> {
        let removed = self.nodes.get(name)?;
        let (session, reason) = (removed.session.clone()?, removed.reason(name));
        Some(HelloRequest { session, reason, retry_after_seconds: RETRY_AFTER, removed: true })
    }

    // --- and in again

    /// An operator admits a node. Returns the answer if the node was not removed, or whether it is
    /// to be admitted.
    pub(super) fn admit_again(&mut self, name: &NodeName, answer: Answer) -> Result<bool, Answer> {
        let Some(removed) = self.nodes.get_mut(name) else { return Err(answer) };
        match removed.stage {
            Stage::Draining | Stage::Deleting | Stage::Failed => {
                let busy = format!("node '{name}' is being removed at the moment");
                // Those who asked may have gone.
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

    /// The Node of a removed node was created, which admits it. While the removal waits for the
    /// store, it is the store that has just made the Node: it goes with the rest. Returns whether
    /// the node is to be admitted at once.
    pub(super) fn node_created(&mut self, name: &NodeName) -> bool {
        let Some(removed) = self.nodes.get_mut(name) else { return false };
        match removed.stage {
            Stage::Deleting => removed.wanted = true,
            Stage::Gone => {
                tracing::info!(node = name.as_str(), "its Node was created: it is taken in again");
                return true;
            }
            _ => {}
        }
        false
    }

    /// Another replica, or an operator, has admitted a node. Returns whether that is news.
    pub(super) fn admitted_elsewhere(&self, name: &NodeName) -> bool {
        let is_news = self.nodes.get(name).is_some_and(|removed| removed.stage == Stage::Gone);
        if is_news {
            tracing::info!(node = name.as_str(), "it was admitted elsewhere: it is taken in again");
        }
        is_news
    }

    /// Begins to admit a node. Returns whether it was removed; [`Removals::admitted`] follows.
    pub(super) fn begin_admission(&mut self, name: &NodeName) -> bool {
        let removed = self.nodes.get_mut(name);
        removed.map(|removed| removed.stage = Stage::Admitting).is_some()
    }

    /// The store has admitted a node, or could not. Returns the connection that an admitted node
    /// has.
    pub(super) fn admitted(
        &mut self,
        now: Now,
        name: &NodeName,
        result: source::Result<bool>,
    ) -> Option<Admitted> {
        let removed = self.nodes.get_mut(name)?;
        if let Err(error) = result {
            tracing::error!(node = name.as_str(), %error, "the node could not be admitted");
            removed.answer(&Err(failed(&error)));
            removed.stage = Stage::NotAdmitted;
            self.retries.insert((now + RETRY, name.clone()));
            return None;
        }
        tracing::info!(node = name.as_str(), "admitted to the fleet again");
        removed.answer(&Ok(true));
        let Removed { connection, session, .. } = self.nodes.remove(name)?;
        let request = session.map(|session| {
            let reason = "this node is admitted to the fleet again".to_owned();
            HelloRequest { session, reason, retry_after_seconds: 0, removed: false }
        });
        Some(Admitted { connection, request })
    }
}

/// A node that is removed, as it was.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// The answer to the operator who has asked for it; else its Node was deleted.
    pub(super) answer: Option<Answer>,
    /// Reads and writes of the store about it that are under way.
    pub(super) busy: u32,
    pub(super) session: Option<String>,
    pub(super) connection: Option<String>,
}

/// What a frame of a removed node leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Nothing,
    /// It is told that it was removed, see [`Removals::refusal`].
    Refuse,
    /// It is admitted.
    Admit,
}

/// A request to the store that is due again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    Nothing,
    Remove(NodeName),
    Admit(NodeName),
}

/// A node that was admitted.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) connection: Option<String>,
    /// What it is told, if it has said Hello.
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
            wanted: false,
            asked: false,
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
            "node '{name}' was removed from the fleet at {}; 'edgesync-cloud node admit {name}' takes it in again",
            rfc3339(self.since)
        )
    }

    fn answer(&mut self, result: &Result<bool, Status>) {
        for answer in self.answers.drain(..) {
            // Those who asked may have gone.
            let _ = answer.send(result.clone());
        }
    }
}

fn failed(error: &SourceError) -> Status {
    Status::unavailable(format!("the store could not: {error}"), 5)
}
